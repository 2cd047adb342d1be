//! Which CPUs have SYSENTER, as a value that the rest of the crate asks for.
//!
//! CPUID's SEP bit is not the whole answer: early Pentium Pro parts set it and have no such instruction, and on AMD CPUs
//! it speaks of protected mode alone. In long mode SYSENTER is #UD there, and its MSRs drop the upper half of an address;
//! a kernel that filled them in would see neither until a 32-bit program found out. A [`SysenterSupport`] exists only where
//! the instruction works.
//!
//! | vendor | protected mode | 64-bit code | compatibility mode |
//! |---|---|---|---|
//! | Intel | yes | yes | yes |
//! | AMD, Hygon | yes | #UD | #UD |
//! | other | by SEP | refused | refused |
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSENTER—Fast System Call*; AMD APM vol. 2, *SYSENTER and SYSEXIT (Legacy Mode Only)*.

use entry_core::Selector;
use entry_core::cpu::{CpuFeatures, Vendor};
use entry_core::msr::SysenterCs;

use crate::error::{SelectorError, Unsupported};
use crate::guard::guard;

/// SYSENTER works on the CPU that was examined, in long mode.
///
/// ```
/// use entry_core::cpu::{CpuFeatures, Vendor};
/// use entry_sysenter::error::Unsupported;
/// use entry_sysenter::support::SysenterSupport;
/// let mut cpu = CpuFeatures::from_cpuid(|_, _| Default::default());
/// (cpu.sep, cpu.vendor, cpu.family) = (true, Vendor::Amd, 25);
/// assert_eq!(SysenterSupport::on(&cpu), Err(Unsupported::LongMode { vendor: Vendor::Amd }));
/// cpu.vendor = Vendor::Intel;
/// assert!(SysenterSupport::on(&cpu).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysenterSupport(());

impl SysenterSupport {
    /// Whether SYSENTER works in long mode, from 64-bit code and from compatibility mode.
    ///
    /// # Errors
    ///
    /// [`Unsupported`]: no SEP, a part that sets SEP wrongly, or a vendor whose long mode has no SYSENTER.
    pub const fn on(cpu: &CpuFeatures) -> Result<Self, Unsupported> {
        if let Err(unsupported) = ProtectedModeSupport::on(cpu) {
            return Err(unsupported);
        }
        // What is known of no vendor but Intel is assumed of none.
        if guard!("sysenter-long-mode", !matches!(cpu.vendor, Vendor::Intel)) {
            return Err(Unsupported::LongMode { vendor: cpu.vendor });
        }
        Ok(Self(()))
    }
}

/// SYSENTER works on the CPU that was examined, in 32-bit protected mode with EFER.LMA clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectedModeSupport(());

impl ProtectedModeSupport {
    /// Whether SYSENTER works in protected mode.
    ///
    /// # Errors
    ///
    /// [`Unsupported`]: no SEP, or a part that sets SEP wrongly.
    pub const fn on(cpu: &CpuFeatures) -> Result<Self, Unsupported> {
        let is_early_pentium_pro =
            matches!(cpu.vendor, Vendor::Intel) && cpu.family == 6 && cpu.model < 3 && cpu.stepping < 3;
        if guard!("sysenter-false-sep", is_early_pentium_pro) {
            return Err(Unsupported::PentiumPro {
                model: cpu.model,
                stepping: cpu.stepping,
            });
        }
        if guard!("sysenter-no-sep", !cpu.sep) {
            return Err(Unsupported::NoSep);
        }
        Ok(Self(()))
    }
}

/// The image of `IA32_SYSENTER_CS` for a kernel code selector that does not come from a
/// [`SegmentLayout`](entry_core::SegmentLayout): of a protected-mode kernel, say.
///
/// ```
/// use entry_core::Selector;
/// use entry_sysenter::error::SelectorError;
/// use entry_sysenter::support::sysenter_cs;
/// assert_eq!(sysenter_cs(Selector::from_bits(0x60)).unwrap().bits(), 0x60);
/// let null = Selector::from_bits(3);
/// assert_eq!(sysenter_cs(null), Err(SelectorError::Null { value: null }));
/// ```
///
/// # Errors
///
/// [`SelectorError`]: null, with whatever RPL; in the LDT; an RPL that is not 0.
pub const fn sysenter_cs(kernel_code: Selector) -> Result<SysenterCs, SelectorError> {
    if guard!("sysenter-null-selector", kernel_code.is_null()) {
        return Err(SelectorError::Null { value: kernel_code });
    }
    if guard!("sysenter-local-selector", kernel_code.is_local()) {
        return Err(SelectorError::Local { value: kernel_code });
    }
    if guard!("sysenter-selector-rpl", kernel_code.rpl() != 0) {
        return Err(SelectorError::Rpl { value: kernel_code });
    }
    Ok(SysenterCs::from_bits(kernel_code.bits() as u64))
}
