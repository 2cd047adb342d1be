use crate::address::{AddressError, CanonicalAddress, Width};
use crate::msr::register;

register! {
    /// `IA32_SYSENTER_ESP`: RSP after SYSENTER.
    ///
    /// Intel: 64 bits, and WRMSR of a value that is not canonical is #GP. AMD: 32 bits, the upper half is dropped
    /// without a word; SYSENTER is #UD there in long mode, so nothing but [`SysenterEsp::UNUSED`] belongs in it.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSENTER—Fast System Call*; AMD APM vol. 2, *SYSENTER and SYSEXIT (Legacy Mode Only)*.
    SysenterEsp, 0x175, "SYSENTER_ESP"
}

impl SysenterEsp {
    /// The value for a CPU or kernel without SYSENTER.
    pub const UNUSED: Self = Self(0);

    /// Takes the top of a kernel stack, or what the entry stub loads it from.
    ///
    /// # Errors
    ///
    /// [`AddressError::NonCanonical`], [`AddressError::Null`].
    pub const fn new(stack: u64, width: Width) -> Result<Self, AddressError> {
        match CanonicalAddress::new_non_null(stack, width) {
            Ok(stack) => Ok(Self(stack.get())),
            Err(error) => Err(error),
        }
    }
}
