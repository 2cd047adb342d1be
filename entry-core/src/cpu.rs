//! What the CPU can do, read from CPUID once.
//!
//! Entry code depends on a few dozen feature bits, and on the vendor where Intel and AMD gave one instruction two
//! meanings. They are collected into a plain value, so that a test can forge any CPU: every field is public, and
//! [`CpuFeatures::from_cpuid`] takes CPUID as a function.
//!
//! # Source
//!
//! Intel SDM vol. 2A, *CPUID—CPU Identification*; AMD APM vol. 3, *Obtaining Processor Information Via the CPUID
//! Instruction*.

use crate::address::Width;
use crate::guard::guard;

/// Who made the CPU, as far as entry code cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Vendor {
    /// `GenuineIntel`.
    Intel,
    /// `AuthenticAMD`.
    Amd,
    /// `HygonGenuine`: AMD's rules.
    Hygon,
    /// Any other. Nothing is assumed of it.
    Other,
}

/// The registers that CPUID returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuidLeaf {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// The features that entry and exit paths depend on.
///
/// Fields carry the manual's name for the feature. Change them at will in tests:
///
/// ```
/// use entry_core::cpu::{CpuFeatures, Vendor};
/// let mut cpu = CpuFeatures::from_cpuid(|_, _| Default::default());
/// assert!(!cpu.smap);
/// cpu.vendor = Vendor::Amd;
/// cpu.sep = true;
/// assert!(!cpu.has_sysenter_in_long_mode());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuFeatures {
    /// The vendor string of leaf 0.
    pub vendor: Vendor,
    /// Family, with the extended family added in.
    pub family: u16,
    /// Model, with the extended model as upper digit.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// Leaf 1 ECX 31: a hypervisor says that it is there.
    pub hypervisor: bool,
    /// Bits of a physical address.
    pub physical_bits: u8,
    /// Bits of a linear address that the CPU is able to translate: 48 or 57. The mode in use may have less.
    pub linear_bits: u8,

    /// SYSENTER and SYSEXIT. Early Pentium Pro parts that report it wrongly are corrected.
    pub sep: bool,
    /// SYSCALL and SYSRET. Intel CPUs report it in 64-bit mode only.
    pub syscall: bool,
    /// RDFSBASE, WRFSBASE, RDGSBASE, WRGSBASE.
    pub fsgsbase: bool,
    /// LKGS: loads GS, and the base into `KERNEL_GS_BASE`.
    pub lkgs: bool,
    /// Flexible return and event delivery.
    pub fred: bool,
    /// Time-stamp counter.
    pub tsc: bool,
    /// RDTSCP, and the `TSC_AUX` register.
    pub rdtscp: bool,
    /// RDPID, and the `TSC_AUX` register.
    pub rdpid: bool,
    /// Local APIC.
    pub apic: bool,
    /// Local APIC by MSRs.
    pub x2apic: bool,
    /// Local APIC timer by TSC deadline.
    pub tsc_deadline: bool,
    /// XSAVE.
    pub xsave: bool,

    /// Supervisor-mode execution prevention.
    pub smep: bool,
    /// Supervisor-mode access prevention: STAC and CLAC exist, else they are #UD.
    pub smap: bool,
    /// User-mode instruction prevention.
    pub umip: bool,
    /// Protection keys for user pages.
    pub pku: bool,
    /// Linear address space separation.
    pub lass: bool,
    /// No-execute page protection.
    pub nx: bool,
    /// Pages of 1 GiB.
    pub page1gb: bool,
    /// 5-level paging.
    pub la57: bool,
    /// Process-context identifiers: bit 63 of a CR3 write means no flush.
    pub pcid: bool,
    /// INVPCID.
    pub invpcid: bool,
    /// Global pages.
    pub pge: bool,
    /// CET shadow stacks.
    pub cet_ss: bool,
    /// CET indirect-branch tracking.
    pub cet_ibt: bool,

    /// `IA32_SPEC_CTRL` exists and has IBRS.
    pub ibrs: bool,
    /// `IA32_SPEC_CTRL` has STIBP.
    pub stibp: bool,
    /// `IA32_SPEC_CTRL` has SSBD.
    pub ssbd: bool,
    /// `IA32_SPEC_CTRL` has PSFD.
    pub psfd: bool,
    /// `IA32_SPEC_CTRL` has `BHI_DIS_S` (Intel `BHI_CTRL`).
    pub bhi_ctrl: bool,
    /// EFER has AIBRSE (AMD).
    pub automatic_ibrs: bool,
    /// VERW overwrites CPU buffers (Intel `MD_CLEAR`).
    pub md_clear: bool,
    /// VERW overwrites CPU buffers (AMD `VERW_CLEAR`, against transient scheduler attacks).
    pub verw_clear: bool,
    /// LFENCE always serializes (AMD).
    pub lfence_serializing: bool,
    /// Loading a null selector clears the base of FS or GS (AMD).
    pub null_selector_clears_base: bool,

    /// Fast REP MOVSB and REP STOSB.
    pub erms: bool,
    /// Fast short REP MOVSB.
    pub fsrm: bool,
}

impl CpuFeatures {
    /// Executes CPUID on this CPU.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn detect() -> Self {
        Self::from_cpuid(cpuid)
    }

    /// Takes CPUID as a function of leaf (EAX) and subleaf (ECX). Leaves above the maximum that leaf 0, `0x8000_0000`
    /// or subleaf 7.0 reports are not asked for.
    ///
    /// ```
    /// use entry_core::cpu::{CpuFeatures, CpuidLeaf, Vendor};
    /// let cpu = CpuFeatures::from_cpuid(|leaf, _| match leaf {
    ///     0 => CpuidLeaf { eax: 1, ebx: 0x756e_6547, edx: 0x4965_6e69, ecx: 0x6c65_746e },
    ///     1 => CpuidLeaf { eax: 0x0005_06e3, edx: 1 << 11, ..Default::default() },
    ///     _ => CpuidLeaf::default(),
    /// });
    /// assert_eq!((cpu.vendor, cpu.family, cpu.model), (Vendor::Intel, 6, 0x5e));
    /// assert!(cpu.has_sysenter_in_long_mode());
    /// ```
    #[must_use]
    pub fn from_cpuid(cpuid: impl Fn(u32, u32) -> CpuidLeaf) -> Self {
        let none = CpuidLeaf::default();
        let basic = cpuid(0, 0);
        let extended = cpuid(0x8000_0000, 0).eax;
        let leaf = |number: u32, subleaf: u32| {
            let last = if number < 0x8000_0000 { basic.eax } else { extended };
            if number <= last { cpuid(number, subleaf) } else { none }
        };
        let version = leaf(1, 0);
        let seven = leaf(7, 0);
        let seven_one = if seven.eax >= 1 { leaf(7, 1) } else { none };
        let seven_two = if seven.eax >= 2 { leaf(7, 2) } else { none };
        let amd = leaf(0x8000_0001, 0);
        let sizes = leaf(0x8000_0008, 0);
        let amd21 = leaf(0x8000_0021, 0);

        let vendor = match (basic.ebx, basic.edx, basic.ecx) {
            (0x756e_6547, 0x4965_6e69, 0x6c65_746e) => Vendor::Intel,
            (0x6874_7541, 0x6974_6e65, 0x444d_4163) => Vendor::Amd,
            (0x6f67_7948, 0x6e65_476e, 0x656e_6975) => Vendor::Hygon,
            _ => Vendor::Other,
        };
        let bits = |word: u32, low: u32, count: u32| {
            let [byte, ..] = (word >> low & ((1 << count) - 1)).to_le_bytes();
            byte
        };
        let has = |word: u32, bit: u32| word & 1 << bit != 0;
        let base_family = u16::from(bits(version.eax, 8, 4));
        let family = if base_family == 15 {
            base_family + u16::from(bits(version.eax, 20, 8))
        } else {
            base_family
        };
        let extended_model = if matches!(base_family, 6 | 15) {
            bits(version.eax, 16, 4)
        } else {
            0
        };
        let model = extended_model << 4 | bits(version.eax, 4, 4);
        let stepping = bits(version.eax, 0, 4);
        // The manual's own test for parts that set SEP and have no SYSENTER.
        let false_sep = vendor == Vendor::Intel && family == 6 && model < 3 && stepping < 3;

        Self {
            vendor,
            family,
            model,
            stepping,
            hypervisor: has(version.ecx, 31),
            physical_bits: if sizes.eax == 0 { 36 } else { bits(sizes.eax, 0, 8) },
            linear_bits: if sizes.eax == 0 { 48 } else { bits(sizes.eax, 8, 8) },

            sep: has(version.edx, 11) && !guard!("false-sep", false_sep),
            syscall: has(amd.edx, 11),
            fsgsbase: has(seven.ebx, 0),
            lkgs: has(seven_one.eax, 18),
            fred: has(seven_one.eax, 17),
            tsc: has(version.edx, 4),
            rdtscp: has(amd.edx, 27),
            rdpid: has(seven.ecx, 22),
            apic: has(version.edx, 9),
            x2apic: has(version.ecx, 21),
            tsc_deadline: has(version.ecx, 24),
            xsave: has(version.ecx, 26),

            smep: has(seven.ebx, 7),
            smap: has(seven.ebx, 20),
            umip: has(seven.ecx, 2),
            pku: has(seven.ecx, 3),
            lass: has(seven_one.eax, 6),
            nx: has(amd.edx, 20),
            page1gb: has(amd.edx, 26),
            la57: has(seven.ecx, 16),
            pcid: has(version.ecx, 17),
            invpcid: has(seven.ebx, 10),
            pge: has(version.edx, 13),
            cet_ss: has(seven.ecx, 7),
            cet_ibt: has(seven.edx, 20),

            ibrs: has(seven.edx, 26) || has(sizes.ebx, 14),
            stibp: has(seven.edx, 27) || has(sizes.ebx, 15),
            ssbd: has(seven.edx, 31) || has(sizes.ebx, 24),
            psfd: has(seven_two.edx, 0) || has(sizes.ebx, 28),
            bhi_ctrl: has(seven_two.edx, 4),
            automatic_ibrs: has(amd21.eax, 8),
            md_clear: has(seven.edx, 10),
            verw_clear: has(amd21.eax, 5),
            lfence_serializing: has(amd21.eax, 2),
            null_selector_clears_base: has(amd21.eax, 6),

            erms: has(seven.ebx, 9),
            fsrm: has(seven.edx, 4),
        }
    }

    /// Whether SYSENTER works while the kernel runs in long mode, and its MSRs hold 64 bits.
    ///
    /// Intel: yes, from 64-bit code and from compatibility mode. AMD: #UD in both, and the MSRs drop the upper half of
    /// an address. A vendor that is not known is treated like AMD.
    ///
    /// # Source
    ///
    /// AMD APM vol. 2, *SYSENTER and SYSEXIT (Legacy Mode Only)*.
    #[must_use]
    pub const fn has_sysenter_in_long_mode(&self) -> bool {
        self.sep && matches!(self.vendor, Vendor::Intel)
    }

    /// Whether SYSCALL in compatibility mode enters the kernel at CSTAR. Intel: no, it is #UD. A vendor that is not
    /// known is treated like AMD, where an entry point that was never set would be jumped to.
    #[must_use]
    pub const fn has_syscall_in_compatibility_mode(&self) -> bool {
        self.syscall && !matches!(self.vendor, Vendor::Intel)
    }

    /// Whether the CPU has the `TSC_AUX` register.
    #[must_use]
    pub const fn has_tsc_aux(&self) -> bool {
        self.rdtscp || self.rdpid
    }

    /// The widest addresses that the CPU could be told to use. The mode in use is [`Width::from_cr4`].
    #[must_use]
    pub const fn widest(&self) -> Width {
        if self.la57 { Width::Bits57 } else { Width::Bits48 }
    }
}

/// CPUID. The function of the core library is unsafe up to Rust 1.88 and safe later on, so no one form of call compiles
/// without a warning on both.
#[cfg(target_arch = "x86_64")]
fn cpuid(leaf: u32, subleaf: u32) -> CpuidLeaf {
    let (eax, ebx, ecx, edx);
    // SAFETY: every CPU with 64-bit mode has CPUID, at any CPL. It writes the four registers; RBX, which the compiler
    // keeps for itself, is put back.
    unsafe {
        core::arch::asm!(
            "mov {rbx:r}, rbx",
            "cpuid",
            "xchg {rbx:r}, rbx",
            rbx = out(reg) ebx,
            inlateout("eax") leaf => eax,
            inlateout("ecx") subleaf => ecx,
            out("edx") edx,
            options(nostack, preserves_flags),
        );
    }
    CpuidLeaf { eax, ebx, ecx, edx }
}
