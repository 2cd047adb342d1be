use crate::msr::register;
use crate::segment::SegmentLayout;

register! {
    /// `IA32_STAR`: the selectors of SYSCALL and SYSRET.
    ///
    /// | bits | meaning |
    /// |---|---|
    /// | 31:0 | entry point of SYSCALL in legacy mode (AMD); 0 here |
    /// | 47:32 | kernel code: CS after SYSCALL; SS is that + 8 |
    /// | 63:48 | base of SYSRET: CS of 32-bit code; SS is that + 8, CS of 64-bit code that + 16 |
    ///
    /// The CPU clears the RPL of bits 47:32. It sets that of CS and SS after SYSRET to 3 on Intel; AMD loads SS as it
    /// is, so the base needs RPL 3, which every [`SegmentLayout`] has.
    ///
    /// ```
    /// use entry_core::msr::Star;
    /// use entry_core::segment::SegmentLayout;
    /// assert_eq!(Star::new(&SegmentLayout::NATURAL).bits(), 0x001b_0008_0000_0000);
    /// ```
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSCALL—Fast System Call*, *SYSRET—Return From Fast System Call*; AMD APM vol. 2, *SYSCALL
    /// and SYSRET*.
    Star, 0xc000_0081, "STAR"
}

impl Star {
    /// The image for a layout.
    #[must_use]
    pub const fn new(layout: &SegmentLayout) -> Self {
        Self((layout.sysret_base().bits() as u64) << 48 | (layout.kernel_code().bits() as u64) << 32)
    }
}
