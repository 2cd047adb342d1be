use crate::address::{AddressError, CanonicalAddress, UserLimit, Width};
use crate::guard::guard;
use crate::msr::register;

register! {
    /// `IA32_FS_BASE`: the base of FS, thread-local storage of the running program.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Segment Loading Instructions in IA-32e Mode*; AMD APM vol. 2, *FS and GS Registers in 64-Bit
    /// Mode*.
    FsBase, 0xc000_0100, "FS_BASE"
}

register! {
    /// `IA32_GS_BASE`: the base of GS. In the kernel, between SWAPGS and SWAPGS, it is the per-CPU area.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Segment Loading Instructions in IA-32e Mode*; AMD APM vol. 2, *FS and GS Registers in 64-Bit
    /// Mode*.
    GsBase, 0xc000_0101, "GS_BASE"
}

register! {
    /// `IA32_KERNEL_GS_BASE`: what SWAPGS exchanges with GS base. In the kernel it is the base of the running program.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SWAPGS—Swap GS Base Register*; AMD APM vol. 3, *SWAPGS*.
    KernelGsBase, 0xc000_0102, "KERNEL_GS_BASE"
}

/// The two constructors of a base register.
macro_rules! base {
    ($name:ident) => {
        impl $name {
            /// Takes a canonical address. WRMSR of another is #GP in the kernel.
            ///
            /// # Errors
            ///
            /// [`AddressError::NonCanonical`].
            #[inline]
            pub const fn new(base: u64, width: Width) -> Result<Self, AddressError> {
                match CanonicalAddress::new(base, width) {
                    Ok(base) => Ok(Self(base.get())),
                    Err(error) => Err(error),
                }
            }

            /// Takes what a program asks for: a user address. A program that could choose a base in the kernel's half
            /// could pass for the kernel where the sign of GS base decides.
            ///
            /// # Errors
            ///
            /// [`AddressError::NotUser`].
            #[inline]
            pub const fn new_user(base: u64, limit: UserLimit) -> Result<Self, AddressError> {
                if guard!("user-base", !limit.contains(base)) {
                    return Err(AddressError::NotUser { address: base, limit });
                }
                Ok(Self(base))
            }
        }
    };
}

base!(FsBase);
base!(GsBase);
base!(KernelGsBase);
