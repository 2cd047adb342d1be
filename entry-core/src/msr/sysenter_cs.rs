use crate::msr::register;
use crate::segment::SegmentLayout;

register! {
    /// `IA32_SYSENTER_CS`: the selectors of SYSENTER and SYSEXIT.
    ///
    /// | bits | meaning |
    /// |---|---|
    /// | 15:0 | kernel code; if bits 15:2 are 0, SYSENTER is #GP |
    /// | 63:16 | reserved |
    ///
    /// SYSENTER loads CS with it and SS with it + 8; SYSEXIT to 32-bit code CS with it + 16 and SS with it + 24;
    /// SYSEXIT to 64-bit code + 32 and + 40. QEMU's TCG tests only for 0, and enters ring 0 with a null CS for 1 to 3.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSENTER—Fast System Call*, *SYSEXIT—Fast Return from Fast System Call*.
    SysenterCs, 0x174, "SYSENTER_CS"
}

impl SysenterCs {
    /// SYSENTER is #GP in the program that tries it.
    pub const DISABLED: Self = Self(0);

    /// The image for a layout. A [`SegmentLayout`] has no null kernel code selector and RPL 0.
    #[must_use]
    pub const fn new(layout: &SegmentLayout) -> Self {
        Self(layout.kernel_code().bits() as u64)
    }
}
