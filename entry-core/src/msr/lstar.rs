use crate::address::{AddressError, CanonicalAddress, Width};
use crate::msr::register;

register! {
    /// `IA32_LSTAR`: where SYSCALL from 64-bit code enters the kernel.
    ///
    /// A value that is not canonical is #GP in WRMSR on hardware; QEMU's TCG takes it. 0 is refused as well: with
    /// EFER.SCE set, it is a jump in ring 0 to a page that a program might map.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSCALL—Fast System Call*; AMD APM vol. 2, *SYSCALL and SYSRET*.
    Lstar, 0xc000_0082, "LSTAR"
}

impl Lstar {
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
