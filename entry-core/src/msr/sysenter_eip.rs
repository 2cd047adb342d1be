use crate::address::{AddressError, CanonicalAddress, Width};
use crate::msr::register;

register! {
    /// `IA32_SYSENTER_EIP`: where SYSENTER enters the kernel.
    ///
    /// Intel: 64 bits, and WRMSR of a value that is not canonical is #GP. AMD: 32 bits, the upper half is dropped
    /// without a word; SYSENTER is #UD there in long mode, so nothing but [`SysenterEip::UNUSED`] belongs in it.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSENTER—Fast System Call*; AMD APM vol. 2, *SYSENTER and SYSEXIT (Legacy Mode Only)*.
    SysenterEip, 0x176, "SYSENTER_EIP"
}

impl SysenterEip {
    /// The value for a CPU or kernel without SYSENTER.
    pub const UNUSED: Self = Self(0);

    /// Takes the entry point's address.
    ///
    /// # Errors
    ///
    /// [`AddressError::NonCanonical`], [`AddressError::Null`].
    pub const fn new(entry: u64, width: Width) -> Result<Self, AddressError> {
        match CanonicalAddress::new_non_null(entry, width) {
            Ok(entry) => Ok(Self(entry.get())),
            Err(error) => Err(error),
        }
    }
}
