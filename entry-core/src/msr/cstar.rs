use crate::address::{AddressError, CanonicalAddress, Width};
use crate::msr::register;

register! {
    /// `IA32_CSTAR`: where SYSCALL from compatibility mode enters the kernel, on AMD.
    ///
    /// Intel CPUs have the register and never use it: there SYSCALL in compatibility mode is #UD. On AMD it must point
    /// at a stub even in a kernel without 32-bit programs, since any program can switch to compatibility mode.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSCALL—Fast System Call*; AMD APM vol. 2, *SYSCALL and SYSRET*.
    Cstar, 0xc000_0083, "CSTAR"
}

impl Cstar {
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
