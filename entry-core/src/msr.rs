//! Model-specific registers: one access point, one typed value for each register.
//!
//! The only RDMSR and WRMSR of the library family are in [`Cpu`]. All else goes through the trait [`Msr`], so that a
//! plan can be installed into [`FakeMsrs`] on the host.
//!
//! A value is made by `new`, which refuses what the CPU would answer with #GP (or what it would accept and be wrong
//! with), or by `from_bits`, for what was read and for tests. Reading never fails on bits that have no name here.
//!
//! | number | register | type |
//! |---|---|---|
//! | `0x48` | `IA32_SPEC_CTRL` | [`SpecCtrl`] |
//! | `0x174` | `IA32_SYSENTER_CS` | [`SysenterCs`] |
//! | `0x175` | `IA32_SYSENTER_ESP` | [`SysenterEsp`] |
//! | `0x176` | `IA32_SYSENTER_EIP` | [`SysenterEip`] |
//! | `0xc000_0080` | `IA32_EFER` | [`Efer`] |
//! | `0xc000_0081` | `IA32_STAR` | [`Star`] |
//! | `0xc000_0082` | `IA32_LSTAR` | [`Lstar`] |
//! | `0xc000_0083` | `IA32_CSTAR` | [`Cstar`] |
//! | `0xc000_0084` | `IA32_FMASK` | [`Fmask`] |
//! | `0xc000_0100` | `IA32_FS_BASE` | [`FsBase`] |
//! | `0xc000_0101` | `IA32_GS_BASE` | [`GsBase`] |
//! | `0xc000_0102` | `IA32_KERNEL_GS_BASE` | [`KernelGsBase`] |
//! | `0xc000_0103` | `IA32_TSC_AUX` | [`TscAux`] |
//!
//! # Source
//!
//! Intel SDM vol. 4, *Architectural MSRs*; AMD APM vol. 2, *MSR Cross-Reference*.

use core::error::Error;
use core::fmt;

mod base;
mod cstar;
mod efer;
mod fake;
mod fmask;
mod lstar;
mod spec_ctrl;
mod star;
mod sysenter_cs;
mod sysenter_eip;
mod sysenter_esp;
mod tsc_aux;

pub use base::{FsBase, GsBase, KernelGsBase};
pub use cstar::Cstar;
pub use efer::Efer;
pub use fake::FakeMsrs;
pub use fmask::Fmask;
pub use lstar::Lstar;
pub use spec_ctrl::SpecCtrl;
pub use star::Star;
pub use sysenter_cs::SysenterCs;
pub use sysenter_eip::SysenterEip;
pub use sysenter_esp::SysenterEsp;
pub use tsc_aux::TscAux;

/// Why a register value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MsrError {
    /// The CPU has no such bits in the register: WRMSR would be #GP, or an emulator would drop them.
    Unsupported {
        /// The register.
        register: &'static str,
        /// The bits.
        bits: u64,
    },
}

impl fmt::Display for MsrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { register, bits } => {
                write!(f, "{register} bits {bits:#x} do not exist on this cpu, wanted 0")
            }
        }
    }
}

impl Error for MsrError {}

/// The MSRs of the CPU that executes the call.
pub trait Msr {
    /// Reads register `number`.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0.
    /// 2. The CPU has the register.
    unsafe fn read(&mut self, number: u32) -> u64;

    /// Writes register `number`.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0.
    /// 2. The CPU has the register, and `value` sets no bit that is reserved in it.
    /// 3. What the register controls (entry points, stacks, bases, modes) is right with `value` from the next instruction on.
    unsafe fn write(&mut self, number: u32, value: u64);
}

/// A register of [this module](self).
pub trait Register: Copy {
    /// The register number: RCX of RDMSR and WRMSR.
    const NUMBER: u32;
    /// The manual's name, without the IA32 prefix.
    const NAME: &str;

    /// Takes any 64 bits.
    #[must_use]
    fn from_bits(bits: u64) -> Self;

    /// The 64 bits.
    #[must_use]
    fn bits(self) -> u64;

    /// Reads the register.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0.
    /// 2. The CPU has the register.
    #[must_use]
    #[inline]
    unsafe fn read(msrs: &mut impl Msr) -> Self {
        // SAFETY: the caller's 1 and 2.
        Self::from_bits(unsafe { msrs.read(Self::NUMBER) })
    }

    /// Writes the register.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0.
    /// 2. The CPU has the register and, if the value was not made by `new`, none of its reserved bits is set.
    /// 3. What the register controls is right with this value from the next instruction on.
    #[inline]
    unsafe fn write(self, msrs: &mut impl Msr) {
        // SAFETY: the caller's 1 to 3.
        unsafe { msrs.write(Self::NUMBER, self.bits()) }
    }
}

/// The real registers.
///
/// # Source
///
/// Intel SDM vol. 2B, *RDMSR—Read From Model Specific Register*; vol. 2D, *WRMSR—Write to Model Specific Register*.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

#[cfg(target_arch = "x86_64")]
impl Msr for Cpu {
    #[inline(always)]
    unsafe fn read(&mut self, number: u32) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: the caller's 1 and 2 exclude #GP. RDMSR writes EDX:EAX alone. No `nomem`: a read is not moved across
        // other accesses.
        unsafe {
            core::arch::asm!(
                "rdmsr",
                in("ecx") number,
                out("eax") low,
                out("edx") high,
                options(nostack, preserves_flags),
            );
        }
        u64::from(high) << 32 | u64::from(low)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "WRMSR takes the halves in EDX and EAX")]
    unsafe fn write(&mut self, number: u32, value: u64) {
        // SAFETY: the caller's 1 and 2 exclude #GP, 3 covers what the write brings about. WRMSR writes no general
        // register. No `nomem`: stores that the new value depends on stay before it.
        unsafe {
            core::arch::asm!(
                "wrmsr",
                in("ecx") number,
                in("eax") value as u32,
                in("edx") (value >> 32) as u32,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// What a register type of one `u64` has in common with the others.
macro_rules! register {
    ($(#[$doc:meta])* $name:ident, $number:literal, $manual:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Takes any 64 bits.
            #[must_use]
            pub const fn from_bits(bits: u64) -> Self {
                Self(bits)
            }

            /// The 64 bits.
            #[must_use]
            pub const fn bits(self) -> u64 {
                self.0
            }
        }

        impl crate::msr::Register for $name {
            const NUMBER: u32 = $number;
            const NAME: &str = $manual;

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                Self(bits)
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                self.0
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}
use register;
