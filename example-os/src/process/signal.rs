//! Signals: their numbers, and what each does to a process that has no handler for it.
//!
//! # Source
//!
//! Linux `signal(7)`, *Standard signals*; the numbers are those of x86-64.

use entry_core::vector::Vector;

/// A signal number, 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// Illegal instruction.
    pub const SIGILL: Self = Self(4);
    /// Breakpoint or single step.
    pub const SIGTRAP: Self = Self(5);
    /// Misaligned access, or stack-segment fault.
    pub const SIGBUS: Self = Self(7);
    /// Arithmetic error.
    pub const SIGFPE: Self = Self(8);
    /// Bad memory access, or a general-protection fault.
    pub const SIGSEGV: Self = Self(11);
    /// Write to a pipe that nobody reads.
    pub const SIGPIPE: Self = Self(13);

    const SIGCHLD: u8 = 17;
    const SIGCONT: u8 = 18;
    const SIGURG: u8 = 23;
    const SIGWINCH: u8 = 28;
    const LAST: u8 = 64;

    /// Checks a number; 0 is no signal.
    #[must_use]
    #[inline(always)]
    pub const fn new(number: u8) -> Option<Self> {
        if number == 0 || number > Self::LAST {
            None
        } else {
            Some(Self(number))
        }
    }

    /// The number, 1 to 64.
    #[must_use]
    #[inline(always)]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Whether the default action is to do nothing. No process is ever stopped here, so SIGCONT has nothing to do either.
    #[must_use]
    #[inline(always)]
    pub const fn is_ignored_by_default(self) -> bool {
        const IGNORED: u64 = 1 << Signal::SIGCHLD | 1 << Signal::SIGCONT | 1 << Signal::SIGURG | 1 << Signal::SIGWINCH;
        // Bit 64 would be out of range for a u64; the number is taken modulo 64, and signal 0 does not exist.
        IGNORED >> (self.0 & 63) & 1 != 0
    }

    /// The signal that an unexpected exception from user mode raises.
    #[must_use]
    pub const fn of_exception(vector: u8) -> Self {
        match Vector(vector) {
            Vector::DIVIDE_ERROR | Vector::X87_FLOATING_POINT | Vector::SIMD_FLOATING_POINT => Self::SIGFPE,
            Vector::DEBUG | Vector::BREAKPOINT => Self::SIGTRAP,
            Vector::INVALID_OPCODE | Vector::DEVICE_NOT_AVAILABLE => Self::SIGILL,
            Vector::SEGMENT_NOT_PRESENT | Vector::STACK_SEGMENT | Vector::ALIGNMENT_CHECK => Self::SIGBUS,
            _ => Self::SIGSEGV,
        }
    }
}
