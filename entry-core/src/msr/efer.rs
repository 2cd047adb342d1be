use bitflags::bitflags;
use x86_64::registers::model_specific::EferFlags;

use crate::msr::Register;

bitflags! {
    /// `IA32_EFER`: extended features.
    ///
    /// | bit | name | meaning |
    /// |---|---|---|
    /// | 0 | SCE | SYSCALL and SYSRET work |
    /// | 8 | LME | long mode is chosen |
    /// | 10 | LMA | long mode is active; read-only on AMD, ignored by Intel CPUs |
    /// | 11 | NXE | bit 63 of page-table entries forbids execution |
    /// | 12 | SVME | SVM (AMD) |
    /// | 13 | LMSLE | segment limits in long mode (some AMD) |
    /// | 14 | FFXSR | fast FXSAVE (AMD) |
    /// | 15 | TCE | translation cache extension (AMD) |
    /// | 20 | UAIE | upper address ignore (AMD) |
    /// | 21 | AIBRSE | automatic IBRS (AMD) |
    ///
    /// Unknown bits are kept. Writing one that the CPU lacks is #GP, and QEMU's TCG ignores it: so EFER is changed by
    /// reading it, adding bits whose CPUID bit is set, writing and reading back.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Extended Feature Enable Register*; AMD APM vol. 2, *Extended Feature Enable Register
    /// (EFER)*.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Efer: u64 {
        /// SCE, bit 0.
        const SYSTEM_CALL_ENABLE = 1 << 0;
        /// LME, bit 8.
        const LONG_MODE_ENABLE = 1 << 8;
        /// LMA, bit 10.
        const LONG_MODE_ACTIVE = 1 << 10;
        /// NXE, bit 11.
        const NO_EXECUTE_ENABLE = 1 << 11;
        /// SVME, bit 12.
        const SECURE_VIRTUAL_MACHINE_ENABLE = 1 << 12;
        /// LMSLE, bit 13.
        const LONG_MODE_SEGMENT_LIMIT_ENABLE = 1 << 13;
        /// FFXSR, bit 14.
        const FAST_FXSAVE = 1 << 14;
        /// TCE, bit 15.
        const TRANSLATION_CACHE_EXTENSION = 1 << 15;
        /// UAIE, bit 20.
        const UPPER_ADDRESS_IGNORE_ENABLE = 1 << 20;
        /// AIBRSE, bit 21.
        const AUTOMATIC_IBRS_ENABLE = 1 << 21;

        const _ = !0;
    }
}

impl Register for Efer {
    const NUMBER: u32 = 0xc000_0080;
    const NAME: &str = "EFER";

    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Self::from_bits_retain(bits)
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        Self::bits(&self)
    }
}

impl From<EferFlags> for Efer {
    fn from(flags: EferFlags) -> Self {
        Self::from_bits_retain(flags.bits())
    }
}

impl From<Efer> for EferFlags {
    fn from(efer: Efer) -> Self {
        Self::from_bits_retain(Efer::bits(&efer))
    }
}
