//! Canonical addresses and the end of user space, for 48 and 57 bits.
//!
//! An address is canonical when the bits above the width repeat its highest bit. The CPU tests that at places where a
//! fault is expensive: WRMSR of an address register, SYSRET, IRETQ. So addresses are tested here before they get there,
//! and a bad one is refused: no function of this module changes an address.
//!
//! The width is that of the paging mode in use ([`Width::from_cr4`]). A CPU with 5-level paging accepts 57-bit
//! addresses in WRMSR even while it runs with 48 bits, but jumping to one faults, so the mode decides, not the CPU's
//! ability.
//!
//! # Source
//!
//! Intel SDM vol. 1, *Canonical Addressing*; AMD APM vol. 2, *Canonical Address Form*.

use core::error::Error;
use core::fmt;

use x86_64::VirtAddr;

use crate::guard::guard;

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// How many bits of a linear address are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// 4-level paging: bits 63:47 are equal.
    Bits48,
    /// 5-level paging: bits 63:56 are equal.
    Bits57,
}

impl Width {
    /// The width that CR4 selects: bit 12, LA57.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Control Registers*.
    #[must_use]
    pub const fn from_cr4(cr4: u64) -> Self {
        if cr4 & 1 << 12 == 0 { Self::Bits48 } else { Self::Bits57 }
    }

    /// The number of bits: 48 or 57.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits48 => 48,
            Self::Bits57 => 57,
        }
    }

    /// The first address that is not canonical, which is also the number of bytes of the lower half.
    #[must_use]
    pub const fn lower_end(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// Whether the CPU could translate `address`.
    ///
    /// ```
    /// use entry_core::address::Width;
    /// assert!(Width::Bits48.is_canonical(0x0000_7fff_ffff_ffff));
    /// assert!(!Width::Bits48.is_canonical(0x0000_8000_0000_0000));
    /// assert!(Width::Bits57.is_canonical(0x0000_8000_0000_0000));
    /// ```
    #[must_use]
    #[inline]
    pub const fn is_canonical(self, address: u64) -> bool {
        // Adding half the range moves the two canonical halves next to each other, at 0.
        address.wrapping_add(self.lower_end()) < self.lower_end() << 1
    }
}

/// Why an address was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// The bits above the width do not repeat the highest bit.
    NonCanonical {
        /// The address.
        address: u64,
        /// The width that it was tested for.
        width: Width,
    },
    /// The address is 0, which for an entry point or a stack means that it was never set.
    Null,
    /// The address is not below the end of user space.
    NotUser {
        /// The address.
        address: u64,
        /// The end of user space.
        limit: UserLimit,
    },
    /// The end of user space is 0, not a multiple of the page size, or above the highest one for the width.
    BadLimit {
        /// The address given as the end of user space.
        address: u64,
        /// The highest one.
        highest: UserLimit,
    },
    /// The address needs 57 bits, and the receiver takes 48.
    TooWide {
        /// The address.
        address: u64,
    },
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonCanonical { address, width } => {
                write!(f, "address {address:#x} is not canonical for {} bits", width.bits())
            }
            Self::Null => write!(f, "address is 0"),
            Self::NotUser { address, limit } => {
                write!(
                    f,
                    "address {address:#x} is not below the end of user space {:#x}",
                    limit.get()
                )
            }
            Self::BadLimit { address, highest } => write!(
                f,
                "end of user space {address:#x} is not a multiple of {PAGE_BYTES:#x} from {PAGE_BYTES:#x} to {:#x}",
                highest.get()
            ),
            Self::TooWide { address } => write!(f, "address {address:#x} needs more than 48 bits"),
        }
    }
}

impl Error for AddressError {}

/// An address that was canonical for a [`Width`], unchanged.
///
/// ```
/// use entry_core::address::{AddressError, CanonicalAddress, Width};
/// let address = CanonicalAddress::new(0xffff_8000_0010_0000, Width::Bits48)?;
/// assert_eq!(address.get(), 0xffff_8000_0010_0000);
/// assert!(CanonicalAddress::new(0x8000_0010_0000, Width::Bits48).is_err());
/// # Ok::<(), AddressError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CanonicalAddress(u64);

impl CanonicalAddress {
    /// Takes `address` if it is canonical.
    ///
    /// # Errors
    ///
    /// [`AddressError::NonCanonical`].
    pub const fn new(address: u64, width: Width) -> Result<Self, AddressError> {
        if guard!("non-canonical-address", !width.is_canonical(address)) {
            return Err(AddressError::NonCanonical { address, width });
        }
        Ok(Self(address))
    }

    /// Takes `address` if it is canonical and not 0: an entry point or the top of a stack.
    ///
    /// # Errors
    ///
    /// [`AddressError::NonCanonical`], [`AddressError::Null`].
    pub const fn new_non_null(address: u64, width: Width) -> Result<Self, AddressError> {
        if guard!("null-address", address == 0) {
            return Err(AddressError::Null);
        }
        Self::new(address, width)
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Every `VirtAddr` of the `x86_64` crate is canonical for 48 bits, and so for 57.
impl From<VirtAddr> for CanonicalAddress {
    fn from(address: VirtAddr) -> Self {
        Self(address.as_u64())
    }
}

/// The `x86_64` crate knows 48 bits.
impl TryFrom<CanonicalAddress> for VirtAddr {
    type Error = AddressError;

    fn try_from(address: CanonicalAddress) -> Result<Self, AddressError> {
        Self::try_new(address.0).map_err(|_| AddressError::TooWide { address: address.0 })
    }
}

/// The end of user space: the first address that no user program has.
///
/// The highest limit is one page below the end of the lower half. A SYSCALL instruction in the last bytes of that page
/// would have a return address that is not canonical, without anybody having edited it; and some AMD parts misbehave
/// when they fetch across that boundary. So the last page is never mapped, and a mapper that keeps to
/// [`UserLimit::contains_range`] can't map it.
///
/// | width | highest limit |
/// |---|---|
/// | 48 | `0x0000_7fff_ffff_f000` |
/// | 57 | `0x00ff_ffff_ffff_f000` |
///
/// A kernel may use the 48-bit limit in every mode: it refuses more than it has to, never less.
///
/// # Source
///
/// AMD, *Revision Guide for AMD Athlon 64 and AMD Opteron Processors*, erratum 121; Intel SDM vol. 2B, *SYSRET—Return
/// From Fast System Call*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserLimit(u64);

impl UserLimit {
    /// The highest limit for 48 bits.
    pub const HIGHEST_48: Self = Self::highest(Width::Bits48);

    /// The highest limit for a width.
    #[must_use]
    pub const fn highest(width: Width) -> Self {
        Self(width.lower_end() - if guard!("last-user-page", true) { PAGE_BYTES } else { 0 })
    }

    /// A limit that the kernel chose.
    ///
    /// # Errors
    ///
    /// [`AddressError::BadLimit`]: 0, not a multiple of 4096, or above [`UserLimit::highest`].
    pub const fn new(address: u64, width: Width) -> Result<Self, AddressError> {
        let highest = Self::highest(width);
        if guard!(
            "user-limit",
            address == 0 || !address.is_multiple_of(PAGE_BYTES) || address > highest.0
        ) {
            return Err(AddressError::BadLimit { address, highest });
        }
        Ok(Self(address))
    }

    /// The first address outside.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This limit, or the [highest](UserLimit::highest) for `width` if that is lower: below a limit for 57 bits there are
    /// addresses that are not canonical for 48.
    ///
    /// ```
    /// use entry_core::address::{UserLimit, Width};
    /// let wide = UserLimit::highest(Width::Bits57);
    /// assert_eq!(wide.within(Width::Bits48), UserLimit::HIGHEST_48);
    /// assert_eq!(UserLimit::HIGHEST_48.within(Width::Bits57), UserLimit::HIGHEST_48);
    /// ```
    #[must_use]
    pub const fn within(self, width: Width) -> Self {
        let highest = Self::highest(width);
        if guard!("limit-within-width", self.0 > highest.0) {
            highest
        } else {
            self
        }
    }

    /// Whether `address` may be a user address. Such an address is canonical, and so is the address after any
    /// instruction that starts there.
    ///
    /// ```
    /// use entry_core::address::UserLimit;
    /// assert!(UserLimit::HIGHEST_48.contains(0x7fff_ffff_efff));
    /// assert!(!UserLimit::HIGHEST_48.contains(0x7fff_ffff_f000));
    /// ```
    #[must_use]
    #[inline]
    pub const fn contains(self, address: u64) -> bool {
        address < self.0
    }

    /// Whether all of `start .. start + bytes` may be mapped for the user. An empty range needs only a start at or
    /// below the limit.
    #[must_use]
    #[inline]
    pub const fn contains_range(self, start: u64, bytes: u64) -> bool {
        start <= self.0 && bytes <= self.0 - start
    }
}
