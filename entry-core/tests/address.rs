//! Canonical addresses and the end of user space.

use entry_core::address::{AddressError, CanonicalAddress, UserLimit, Width};
use x86_64::VirtAddr;

/// The manual's definition: the bits above the width repeat its highest bit.
const fn sign_extended(address: u64, bits: u32) -> bool {
    let above = 64 - bits;
    (address << above).cast_signed() >> above == address.cast_signed()
}

/// Every single bit, every prefix and suffix of ones, each with both neighbours.
fn edges() -> impl Iterator<Item = u64> {
    (0..64)
        .flat_map(|bit| [1u64 << bit, u64::MAX << bit, u64::MAX >> bit])
        .flat_map(|address| [address.wrapping_sub(1), address, address.wrapping_add(1)])
}

#[test]
fn canonical_is_sign_extended() {
    for (width, bits) in [(Width::Bits48, 48), (Width::Bits57, 57)] {
        for address in edges() {
            assert_eq!(
                width.is_canonical(address),
                sign_extended(address, bits),
                "{address:#x} for {bits} bits"
            );
        }
    }
}

#[test]
fn canonical_halves_end_where_the_manual_says() {
    for (width, lower, upper) in [
        (Width::Bits48, 0x0000_7fff_ffff_ffff, 0xffff_8000_0000_0000),
        (Width::Bits57, 0x00ff_ffff_ffff_ffff, 0xff00_0000_0000_0000),
    ] {
        for address in [0, 1, lower, upper, u64::MAX] {
            assert!(width.is_canonical(address), "{address:#x}");
        }
        for address in [lower + 1, upper - 1, 0x8000_0000_0000_0000, 0x7fff_ffff_ffff_ffff] {
            assert!(!width.is_canonical(address), "{address:#x}");
        }
    }
}

#[test]
fn addresses_are_refused_and_never_changed() {
    for address in edges() {
        let width = Width::Bits48;
        let wanted = if sign_extended(address, 48) {
            Ok(address)
        } else {
            Err(AddressError::NonCanonical { address, width })
        };
        assert_eq!(CanonicalAddress::new(address, width).map(CanonicalAddress::get), wanted);
    }
    assert_eq!(
        CanonicalAddress::new_non_null(0, Width::Bits48),
        Err(AddressError::Null)
    );
    assert_eq!(
        CanonicalAddress::new(0, Width::Bits48).map(CanonicalAddress::get),
        Ok(0)
    );
}

#[test]
fn wide_addresses_do_not_become_narrow_ones() {
    let wide = CanonicalAddress::new(0x0000_8000_0000_0000, Width::Bits57).unwrap();
    assert_eq!(
        VirtAddr::try_from(wide),
        Err(AddressError::TooWide {
            address: 0x0000_8000_0000_0000
        })
    );
    let narrow = CanonicalAddress::new(0xffff_8000_0000_0000, Width::Bits57).unwrap();
    let virt = VirtAddr::try_from(narrow).unwrap();
    assert_eq!(CanonicalAddress::from(virt), narrow);
}

#[test]
fn width_follows_cr4_bit_12() {
    assert_eq!(Width::from_cr4(0), Width::Bits48);
    assert_eq!(Width::from_cr4(1 << 12), Width::Bits57);
    assert_eq!(Width::from_cr4(!(1 << 12)), Width::Bits48);
}

#[test]
fn last_user_page_is_never_mappable() {
    assert_eq!(UserLimit::HIGHEST_48.get(), 0x0000_7fff_ffff_f000);
    assert_eq!(UserLimit::highest(Width::Bits57).get(), 0x00ff_ffff_ffff_f000);
    for (width, end) in [
        (Width::Bits48, 0x0000_8000_0000_0000u64),
        (Width::Bits57, 0x0100_0000_0000_0000),
    ] {
        let limit = UserLimit::highest(width);
        assert!(!limit.contains_range(end - 0x1000, 0x1000));
        assert!(!limit.contains_range(end - 0x1000, 1));
        assert!(limit.contains_range(end - 0x2000, 0x1000));
        assert!(!limit.contains_range(end - 0x2000, 0x1001));
        assert!(!limit.contains(end - 0x1000));
        // A SYSCALL (2 bytes) or the longest instruction (15 bytes) at the last address leaves a canonical return address.
        let last = limit.get() - 1;
        assert!(limit.contains(last));
        assert!(width.is_canonical(last + 2) && width.is_canonical(last + 15));
    }
}

#[test]
fn ranges_that_wrap_are_outside() {
    let limit = UserLimit::HIGHEST_48;
    for (start, bytes, inside) in [
        (0, 0x7fff_ffff_f000, true),
        (0, 0x7fff_ffff_f001, false),
        (0x7fff_ffff_f000, 0, true),
        (0x7fff_ffff_f001, 0, false),
        (1, u64::MAX, false),
        (u64::MAX, 1, false),
        (0xffff_8000_0000_0000, 0x1000, false),
        (0x1000, 0u64.wrapping_sub(0x1000), false),
    ] {
        assert_eq!(limit.contains_range(start, bytes), inside, "{start:#x} + {bytes:#x}");
    }
}

#[test]
fn limits_are_whole_pages_up_to_the_highest() {
    let highest = UserLimit::HIGHEST_48;
    for (address, good) in [
        (0, false),
        (1, false),
        (0x1000, true),
        (0x7fff_ffff_e000, true),
        (0x7fff_ffff_efff, false),
        (0x7fff_ffff_f000, true),
        (0x8000_0000_0000, false),
        (0xffff_ffff_ffff_f000, false),
    ] {
        let wanted = if good {
            Ok(address)
        } else {
            Err(AddressError::BadLimit { address, highest })
        };
        assert_eq!(UserLimit::new(address, Width::Bits48).map(UserLimit::get), wanted);
    }
    assert!(UserLimit::new(0x00ff_ffff_ffff_f000, Width::Bits57).is_ok());
}

#[test]
fn errors_name_value_and_what_was_wanted() {
    let error = CanonicalAddress::new(0x8000_0000_0000, Width::Bits48).unwrap_err();
    assert_eq!(error.to_string(), "address 0x800000000000 is not canonical for 48 bits");
    let error = UserLimit::new(0x8000_0000_0000, Width::Bits48).unwrap_err();
    assert_eq!(
        error.to_string(),
        "end of user space 0x800000000000 is not a multiple of 0x1000 from 0x1000 to 0x7ffffffff000"
    );
}

#[test]
fn a_limit_is_lowered_to_the_highest_of_a_width_and_never_raised() {
    let low = UserLimit::new(0x1000, Width::Bits48).unwrap();
    let narrow = UserLimit::HIGHEST_48;
    let wide = UserLimit::highest(Width::Bits57);
    for (limit, within_48, within_57) in [(low, low, low), (narrow, narrow, narrow), (wide, narrow, wide)] {
        assert_eq!(limit.within(Width::Bits48), within_48);
        assert_eq!(limit.within(Width::Bits57), within_57);
    }
}
