//! RFLAGS, and the mask that SYSCALL applies to it.
//!
//! SYSCALL clears exactly the flags whose bits are set in the FMASK MSR. Every flag that is not in it reaches the
//! kernel as the user left it: TF traps in ring 0, DF turns string instructions round, NT makes IRETQ fault, AC
//! switches SMAP off, IOPL hands out ports. So [`FlagMask`] starts from all of them, and safe code can only add.
//!
//! # Source
//!
//! Intel SDM vol. 1, *EFLAGS Register*; vol. 2B, *SYSCALL—Fast System Call*; AMD APM vol. 3, *SYSCALL*.

use core::error::Error;
use core::fmt;

use bitflags::bitflags;
use x86_64::registers::rflags::RFlags;

use crate::guard::guard;

bitflags! {
    /// RFLAGS.
    ///
    /// Every bit pattern is a value: bits that have no name are kept, so what the CPU or a user frame holds can always
    /// be looked at.
    ///
    /// ```
    /// use entry_core::rflags::Rflags;
    /// let flags = Rflags::from_bits_retain(0x8000_0000_0000_0202);
    /// assert!(flags.contains(Rflags::INTERRUPT_ENABLE));
    /// assert_eq!(flags.bits(), 0x8000_0000_0000_0202);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rflags: u64 {
        /// CF, bit 0.
        const CARRY = 1 << 0;
        /// Bit 1, which always reads as 1.
        const ALWAYS_ONE = 1 << 1;
        /// PF, bit 2.
        const PARITY = 1 << 2;
        /// AF, bit 4.
        const AUXILIARY_CARRY = 1 << 4;
        /// ZF, bit 6.
        const ZERO = 1 << 6;
        /// SF, bit 7.
        const SIGN = 1 << 7;
        /// TF, bit 8: #DB after each instruction.
        const TRAP = 1 << 8;
        /// IF, bit 9: maskable interrupts are on.
        const INTERRUPT_ENABLE = 1 << 9;
        /// DF, bit 10: string instructions count down.
        const DIRECTION = 1 << 10;
        /// OF, bit 11.
        const OVERFLOW = 1 << 11;
        /// IOPL, bits 13:12: the CPL up to which port access and CLI are allowed.
        const IO_PRIVILEGE_LEVEL = 0b11 << 12;
        /// NT, bit 14: IRETQ faults while it is set.
        const NESTED_TASK = 1 << 14;
        /// RF, bit 16: no instruction breakpoint on the next instruction.
        const RESUME = 1 << 16;
        /// VM, bit 17: virtual-8086 mode; no effect in 64-bit mode.
        const VIRTUAL_8086 = 1 << 17;
        /// AC, bit 18: alignment checks in ring 3; in ring 0 it lifts SMAP.
        const ALIGNMENT_CHECK = 1 << 18;
        /// VIF, bit 19.
        const VIRTUAL_INTERRUPT = 1 << 19;
        /// VIP, bit 20.
        const VIRTUAL_INTERRUPT_PENDING = 1 << 20;
        /// ID, bit 21: CPUID exists where it can be changed.
        const IDENTIFICATION = 1 << 21;

        const _ = !0;
    }
}

impl Rflags {
    /// CF, PF, AF, ZF, SF and OF.
    pub const ARITHMETIC: Self = Self::CARRY
        .union(Self::PARITY)
        .union(Self::AUXILIARY_CARRY)
        .union(Self::ZERO)
        .union(Self::SIGN)
        .union(Self::OVERFLOW);

    /// All flags that have a name, [`Rflags::ALWAYS_ONE`] excepted.
    const MASKABLE: Self = Self::ARITHMETIC
        .union(FlagMask::REQUIRED_FLAGS)
        .union(Self::VIRTUAL_8086)
        .union(Self::VIRTUAL_INTERRUPT)
        .union(Self::VIRTUAL_INTERRUPT_PENDING);
}

impl From<RFlags> for Rflags {
    fn from(flags: RFlags) -> Self {
        Self::from_bits_retain(flags.bits())
    }
}

impl From<Rflags> for RFlags {
    fn from(flags: Rflags) -> Self {
        Self::from_bits_retain(flags.bits())
    }
}

/// The flags that SYSCALL clears: what belongs in the FMASK MSR.
///
/// ```
/// use entry_core::rflags::{FlagMask, Rflags};
/// assert_eq!(FlagMask::REQUIRED.bits(), 0x25_7fd5);
/// let more = FlagMask::REQUIRED.with(Rflags::VIRTUAL_INTERRUPT)?;
/// assert_eq!(more.bits(), 0x2d_7fd5);
/// # Ok::<(), entry_core::rflags::FlagMaskError>(())
/// ```
///
/// There is no way to take a flag out:
///
/// ```compile_fail,E0599
/// use entry_core::rflags::{FlagMask, Rflags};
/// let _ = FlagMask::REQUIRED.without(Rflags::TRAP);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagMask(Rflags);

impl FlagMask {
    pub(crate) const REQUIRED_FLAGS: Rflags = Rflags::ARITHMETIC
        .union(required(guard!("mask-trap", true), Rflags::TRAP))
        .union(required(guard!("mask-interrupt", true), Rflags::INTERRUPT_ENABLE))
        .union(required(guard!("mask-direction", true), Rflags::DIRECTION))
        .union(required(guard!("mask-io-privilege", true), Rflags::IO_PRIVILEGE_LEVEL))
        .union(required(guard!("mask-nested-task", true), Rflags::NESTED_TASK))
        .union(required(guard!("mask-resume", true), Rflags::RESUME))
        .union(required(guard!("mask-alignment-check", true), Rflags::ALIGNMENT_CHECK))
        .union(required(guard!("mask-identification", true), Rflags::IDENTIFICATION));

    /// The required set, `0x25_7fd5`:
    ///
    /// | flag | what the user could do with it |
    /// |---|---|
    /// | TF | a #DB on the first kernel instruction, on the user's stack |
    /// | IF | an interrupt there |
    /// | DF | the kernel's copies run backwards |
    /// | IOPL | port access, once a frame with these flags is loaded |
    /// | NT | the kernel's next IRETQ faults |
    /// | RF | a kernel breakpoint is skipped |
    /// | AC | the kernel reads and writes user memory in spite of SMAP |
    /// | ID, arithmetic | nothing; user values have no business in the kernel |
    pub const REQUIRED: Self = Self(Self::REQUIRED_FLAGS);

    /// Masks more flags.
    ///
    /// # Errors
    ///
    /// [`FlagMaskError::Reserved`] for bits that are no flag, and for bit 1, which the CPU keeps at 1.
    pub const fn with(self, flags: Rflags) -> Result<Self, FlagMaskError> {
        let reserved = flags.difference(Rflags::MASKABLE);
        if guard!("mask-reserved", reserved.bits() != 0) {
            return Err(FlagMaskError::Reserved { bits: reserved.bits() });
        }
        Ok(Self(self.0.union(flags)))
    }

    /// The flags.
    #[must_use]
    pub const fn flags(self) -> Rflags {
        self.0
    }

    /// The image for the FMASK MSR.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.bits()
    }
}

const fn required(is_guarded: bool, flag: Rflags) -> Rflags {
    if is_guarded { flag } else { Rflags::empty() }
}

impl Default for FlagMask {
    fn default() -> Self {
        Self::REQUIRED
    }
}

/// Why a flag can't be masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlagMaskError {
    /// Reserved bits were given.
    Reserved {
        /// These.
        bits: u64,
    },
}

impl fmt::Display for FlagMaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved { bits } => write!(f, "flag mask bits {bits:#x} are reserved in rflags"),
        }
    }
}

impl Error for FlagMaskError {}
