//! Why something can't be generated, built or installed. One enum per operation; each value says what was wrong.

use core::fmt;

/// A distance that a signed 32-bit displacement can't express.
///
/// The CPU sign-extends the displacement, so the target has to lie from 2^31 bytes before `origin` to 2^31 - 1 bytes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfReach {
    /// Where the displacement counts from: the end of the instruction, or 0 for an absolute address.
    pub origin: u64,
    /// The address that was wanted.
    pub target: u64,
}

impl fmt::Display for OutOfReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#x} is more than a signed 32-bit displacement from {:#x}",
            self.target, self.origin
        )
    }
}

impl core::error::Error for OutOfReach {}

/// Which of a trampoline's addresses an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The trampoline's own address.
    Trampoline,
    /// The word that holds the stack pointer.
    Field,
    /// The stub that the trampoline jumps to.
    Entry,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trampoline => "trampoline",
            Self::Field => "stack pointer field",
            Self::Entry => "entry",
        })
    }
}

/// Why a trampoline can't be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrampolineError {
    /// The address, or the last byte of what is there, is not canonical: the CPU would fault at the first system call,
    /// in ring 0 and without a stack.
    NonCanonical {
        /// Whose address.
        operand: Operand,
        /// The address that is not canonical.
        address: u64,
    },
    /// Code or field run over the end of the address space.
    Wraps {
        /// Whose address.
        operand: Operand,
        /// Its first byte.
        address: u64,
    },
    /// The instruction's displacement has 32 bits, and the operand is further away.
    OutOfReach {
        /// Field or entry.
        operand: Operand,
        /// From where to where.
        distance: OutOfReach,
    },
    /// The operand lies in the trampoline: the field would be code, or the jump would come back.
    Overlap {
        /// Field or entry.
        operand: Operand,
        /// The operand's address.
        address: u64,
        /// The trampoline's address.
        at: u64,
        /// The trampoline's length.
        bytes: u64,
    },
}

impl fmt::Display for TrampolineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NonCanonical { operand, address } => write!(f, "{operand} address {address:#x} is not canonical"),
            Self::Wraps { operand, address } => {
                write!(f, "{operand} at {address:#x} runs over the end of the address space")
            }
            Self::OutOfReach { operand, distance } => write!(f, "{operand} out of reach: {distance}"),
            Self::Overlap {
                operand,
                address,
                at,
                bytes,
            } => {
                write!(
                    f,
                    "{operand} at {address:#x} lies in the {bytes} bytes of the trampoline at {at:#x}"
                )
            }
        }
    }
}

impl core::error::Error for TrampolineError {}

/// The caller's buffer is shorter than the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooSmall {
    /// Bytes wanted.
    pub needed: usize,
    /// Bytes that the buffer has.
    pub given: usize,
}

impl fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are needed, the buffer has {}", self.needed, self.given)
    }
}

impl core::error::Error for BufferTooSmall {}

/// The sixth argument of a 32-bit system call can't be read: the caller gets EFAULT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadStackArgument {
    /// The stack pointer that the caller handed over.
    pub stack: u32,
}

impl fmt::Display for BadStackArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no argument can be read from the user stack at {:#x}", self.stack)
    }
}

impl core::error::Error for BadStackArgument {}
