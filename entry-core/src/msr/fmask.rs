use crate::msr::register;
use crate::rflags::FlagMask;

register! {
    /// `IA32_FMASK` (AMD: SFMASK): the flags that SYSCALL clears.
    ///
    /// Bits 63:32 are reserved. See [`FlagMask`] for what belongs in it and why.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSCALL—Fast System Call*; AMD APM vol. 2, *SYSCALL and SYSRET*.
    Fmask, 0xc000_0084, "FMASK"
}

impl Fmask {
    /// The image for a mask.
    #[must_use]
    pub const fn new(mask: FlagMask) -> Self {
        Self(mask.bits())
    }
}
