//! Why something can't be generated, built or installed. One enum per operation; each value says what was wrong.

use core::fmt;

use entry_core::Selector;
use entry_core::address::AddressError;
use entry_core::cpu::Vendor;

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

/// Why SYSENTER can't be used on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// CPUID does not report SEP.
    NoSep,
    /// Family 6 below model 3, stepping 3: these parts report SEP, and SYSENTER is #UD.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSENTER—Fast System Call*.
    PentiumPro {
        /// The model.
        model: u8,
        /// The stepping.
        stepping: u8,
    },
    /// The vendor's long mode has no SYSENTER, or is not known to have it. AMD: #UD from 64-bit code and from compatibility
    /// mode, and the MSRs keep 32 bits of an address.
    ///
    /// # Source
    ///
    /// AMD APM vol. 2, *SYSENTER and SYSEXIT (Legacy Mode Only)*.
    LongMode {
        /// The vendor.
        vendor: Vendor,
    },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSep => write!(f, "cpuid does not report sep"),
            Self::PentiumPro { model, stepping } => {
                write!(
                    f,
                    "family 6 model {model} stepping {stepping} reports sep without having sysenter"
                )
            }
            Self::LongMode { vendor } => {
                write!(
                    f,
                    "cpu vendor is {vendor:?}, wanted one that has sysenter in long mode: Intel"
                )
            }
        }
    }
}

impl core::error::Error for Unsupported {}

/// Why a selector can't go into `IA32_SYSENTER_CS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelectorError {
    /// Bits 15:2 are 0. SYSENTER is then #GP; an emulator that compares the whole word with 0 enters ring 0 with a null CS
    /// for 1 to 3, and the next interrupt's return fails.
    Null {
        /// The selector.
        value: Selector,
    },
    /// The table indicator is set: SYSENTER does not read a table, but every return does, and the LDT is a process's.
    Local {
        /// The selector.
        value: Selector,
    },
    /// The RPL is not 0. SYSENTER ignores it, and SYSEXIT's arithmetic starts from a number that the kernel did not mean.
    Rpl {
        /// The selector.
        value: Selector,
    },
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { value } => write!(f, "sysenter_cs is {value}, a null selector"),
            Self::Local { value } => write!(f, "sysenter_cs is {value}, which names the ldt: bit 2 must be 0"),
            Self::Rpl { value } => write!(f, "sysenter_cs is {value} with rpl {}, wanted 0", value.rpl()),
        }
    }
}

impl core::error::Error for SelectorError {}

/// Why there is no plan for the SYSENTER registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// An address was refused.
    Address {
        /// The register that it was meant for.
        register: &'static str,
        /// Why.
        error: AddressError,
    },
    /// The stack is not 16-byte aligned, so the handler's would not be either.
    MisalignedStack {
        /// RSP after SYSENTER, or after the load.
        stack: u64,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { register, error } => write!(f, "{register}: {error}"),
            Self::MisalignedStack { stack } => write!(f, "stack {stack:#x} is not a multiple of 16"),
        }
    }
}

impl core::error::Error for PlanError {}

/// The word that the stub is compiled to load is not where the stack pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldMisplaced {
    /// Where the word is.
    pub found: u64,
    /// Where the stub looks for it.
    pub wanted: u64,
}

impl fmt::Display for FieldMisplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "stack pointer field is at {:#x}, wanted {:#x}",
            self.found, self.wanted
        )
    }
}

impl core::error::Error for FieldMisplaced {}

/// The layout has no segments where SYSEXIT looks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSysexitSegments;

impl fmt::Display for NoSysexitSegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the layout has no user_code32 or no sysexit_data, wanted both for sysexit")
    }
}

impl core::error::Error for NoSysexitSegments {}

/// What SYSEXIT takes from RDX or RCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand64 {
    /// RIP, from RDX.
    Rip,
    /// RSP, from RCX.
    Rsp,
}

impl fmt::Display for Operand64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rip => "rip",
            Self::Rsp => "rsp",
        })
    }
}

/// Why a frame can't leave by SYSEXIT.
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSEXIT—Fast Return from Fast System Call*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SysexitRefusal {
    /// SYSEXIT destroys RCX and RDX, and this program was not told: the frame is not one of SYSENTER, or of 64-bit SYSENTER whose
    /// contract preserves RDX.
    LiveRegisters,
    /// CS is not the layout's user code segment for the kind of frame: the form of SYSEXIT that returns there loads no other.
    CodeSegment {
        /// The frame's CS.
        cs: u64,
    },
    /// SS is not the layout's user data.
    StackSegment {
        /// The frame's SS.
        ss: u64,
    },
    /// The address is not canonical. **The CPU** raises #GP at SYSEXIT, in ring 0 with the user's GS base and registers.
    NonCanonical {
        /// RIP or RSP.
        operand: Operand64,
        /// The address.
        value: u64,
    },
    /// The address is canonical and not the user's.
    AboveUserLimit {
        /// RIP or RSP.
        operand: Operand64,
        /// The address.
        value: u64,
    },
    /// The address of 32-bit code or its stack has more than 32 bits. It is refused, not cut off.
    Above32Bits {
        /// RIP or RSP.
        operand: Operand64,
        /// The address.
        value: u64,
    },
    /// TF is set. The flags are loaded before SYSEXIT, so the trap would come in ring 0. IRET loads both at once.
    SingleStep {
        /// The frame's flags.
        rflags: u64,
    },
    /// VM is set: SYSENTER from virtual-8086 mode has lost it, and only IRET gives it back.
    Virtual8086 {
        /// The frame's flags.
        rflags: u64,
    },
    /// IF is clear, and STI before SYSEXIT would set it.
    InterruptsOff {
        /// The frame's flags.
        rflags: u64,
    },
    /// RF, NT, IOPL, VIF, VIP or a reserved bit is set, which POPF would drop or the kernel would have to run with.
    Flags {
        /// The frame's flags.
        rflags: u64,
    },
}

impl fmt::Display for SysexitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LiveRegisters => write!(f, "rcx or rdx is live, and sysexit destroys both"),
            Self::CodeSegment { cs } => write!(f, "cs is {cs:#x}, which sysexit can't load"),
            Self::StackSegment { ss } => write!(f, "ss is {ss:#x}, which sysexit can't load"),
            Self::NonCanonical { operand, value } => write!(f, "{operand} {value:#x} is not canonical"),
            Self::AboveUserLimit { operand, value } => write!(f, "{operand} {value:#x} is above the end of user space"),
            Self::Above32Bits { operand, value } => write!(f, "{operand} {value:#x} has more than 32 bits"),
            Self::SingleStep { rflags } => write!(f, "rflags {rflags:#x} has tf"),
            Self::Virtual8086 { rflags } => write!(f, "rflags {rflags:#x} has vm"),
            Self::InterruptsOff { rflags } => write!(f, "rflags {rflags:#x} has no if"),
            Self::Flags { rflags } => write!(f, "rflags {rflags:#x} has bits that sysexit can't restore"),
        }
    }
}

impl core::error::Error for SysexitRefusal {}
