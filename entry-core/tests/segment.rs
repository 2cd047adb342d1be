//! The segment order, its GDT and its errors. Numbers are those of the manuals' descriptor and selector formats.

use entry_core::segment::{Field, LayoutError, Relation, SegmentLayout, Selector, Selectors};
use x86_64::structures::gdt::{Descriptor, DescriptorFlags, SegmentSelector};

const fn selector(bits: u16) -> Selector {
    Selector::from_bits(bits)
}

/// A kernel without 32-bit programs and without SYSEXIT: the least that SYSCALL and SYSRET need.
const LEAST: Selectors = Selectors {
    kernel_code: selector(0x08),
    kernel_data: selector(0x10),
    user_code32: None,
    user_data: selector(0x1b),
    user_code64: selector(0x23),
    sysexit_data: None,
    tss: selector(0x28),
};

const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();

#[test]
fn natural_layout_satisfies_all_four_instructions() {
    let layout = SegmentLayout::NATURAL;
    assert_eq!(SegmentLayout::check(NATURAL), Ok(layout));
    assert_eq!(SegmentLayout::new(selector(0x08)), Ok(layout));
    // SYSCALL: CS = STAR 47:32, SS = + 8. SYSENTER the same from SYSENTER_CS.
    assert_eq!(layout.kernel_code().bits(), 0x08);
    assert_eq!(layout.kernel_data().bits(), 0x08 + 8);
    // SYSRET: CS = base (32), SS = base + 8, CS = base + 16 (64).
    assert_eq!(layout.sysret_base().bits(), 0x1b);
    assert_eq!(layout.user_code32().unwrap().bits(), 0x1b);
    assert_eq!(layout.user_data().bits(), 0x1b + 8);
    assert_eq!(layout.user_code64().bits(), 0x1b + 16);
    // SYSEXIT: CS = + 16, SS = + 24 (32); CS = + 32, SS = + 40 (64), RPL 3.
    assert_eq!(layout.user_code32().unwrap().bits(), (0x08 + 16) | 3);
    assert_eq!(layout.user_data().bits(), (0x08 + 24) | 3);
    assert_eq!(layout.user_code64().bits(), (0x08 + 32) | 3);
    assert_eq!(layout.sysexit_data().unwrap().bits(), (0x08 + 40) | 3);
    assert_eq!(layout.tss().bits(), 0x38);
}

#[test]
fn order_that_comes_to_mind_is_refused_with_the_right_one() {
    let natural_but_wrong = Selectors {
        user_code64: selector(0x1b),
        user_data: selector(0x23),
        ..LEAST
    };
    let error = SegmentLayout::check(natural_but_wrong).unwrap_err();
    assert_eq!(
        error,
        LayoutError::Misplaced {
            field: Field::UserCode64,
            value: selector(0x1b),
            wanted: selector(0x2b),
            relation: Relation::SysretCode64,
        }
    );
    let text = error.to_string();
    assert!(text.starts_with("user_code64 is 0x1b, wanted 0x2b: "), "{text}");
    let order = "kernel code, kernel data, 32-bit user code, user data, 64-bit user code, user data again, TSS";
    assert!(text.ends_with(order), "{text}");
}

#[test]
fn base_of_the_32_bit_form_is_not_taken_for_64_bit_code() {
    let confused = Selectors {
        user_code32: Some(selector(0x1b)),
        user_data: selector(0x23),
        user_code64: selector(0x1b),
        ..LEAST
    };
    assert!(matches!(
        SegmentLayout::check(confused),
        Err(LayoutError::Misplaced { field: Field::UserCode64, wanted, .. }) if wanted == selector(0x2b)
    ));
}

#[test]
fn one_table_serves_sysenter_and_syscall() {
    const GDT: [u64; 9] = SegmentLayout::natural_gdt(0, 0x67);
    assert_eq!(SegmentLayout::NATURAL.check_gdt(&GDT), Ok(()));
    assert_eq!(SegmentLayout::NATURAL.entries(), 9);
    // Without user data again, SYSEXIT to 64 bits has no stack segment.
    let error = SegmentLayout::check(Selectors {
        sysexit_data: Some(selector(0x23)),
        ..NATURAL
    })
    .unwrap_err();
    assert!(
        matches!(error, LayoutError::Misplaced { relation: Relation::SysexitStack64, wanted, .. } if wanted == selector(0x33))
    );
}

#[test]
fn missing_kernel_data_is_refused() {
    for (kernel_data, error) in [
        (
            0x00,
            LayoutError::Null {
                field: Field::KernelData,
                value: selector(0),
            },
        ),
        (
            0x18,
            LayoutError::Misplaced {
                field: Field::KernelData,
                value: selector(0x18),
                wanted: selector(0x10),
                relation: Relation::SyscallStack,
            },
        ),
        (
            0x08,
            LayoutError::Misplaced {
                field: Field::KernelData,
                value: selector(0x08),
                wanted: selector(0x10),
                relation: Relation::SyscallStack,
            },
        ),
    ] {
        assert_eq!(
            SegmentLayout::check(Selectors {
                kernel_data: selector(kernel_data),
                ..LEAST
            }),
            Err(error)
        );
    }
}

#[test]
fn null_selectors_are_refused_and_nothing_underflows() {
    // User SS 3 and CS 0x0b satisfy every comparison, and the base would be 8 below null.
    let user = Selectors {
        user_data: selector(0x03),
        user_code64: selector(0x0b),
        kernel_code: selector(0x18),
        kernel_data: selector(0x20),
        ..LEAST
    };
    assert_eq!(
        SegmentLayout::check(user),
        Err(LayoutError::Null {
            field: Field::UserData,
            value: selector(3)
        })
    );
    // Kernel CS 0 and SS 8.
    let kernel = Selectors {
        kernel_code: selector(0),
        kernel_data: selector(8),
        user_data: selector(0x13),
        user_code64: selector(0x1b),
        ..LEAST
    };
    assert_eq!(
        SegmentLayout::check(kernel),
        Err(LayoutError::Null {
            field: Field::KernelCode,
            value: selector(0)
        })
    );
    // User data in entry 1: the base is null.
    let base = Selectors {
        kernel_code: selector(0x18),
        kernel_data: selector(0x20),
        user_data: selector(0x0b),
        user_code64: selector(0x13),
        ..LEAST
    };
    assert_eq!(
        SegmentLayout::check(base),
        Err(LayoutError::Null {
            field: Field::SysretBase,
            value: selector(3)
        })
    );
}

#[test]
fn sysret_base_always_has_rpl_3() {
    let bad = Selectors {
        user_code32: Some(selector(0x18)),
        ..NATURAL
    };
    assert_eq!(
        SegmentLayout::check(bad),
        Err(LayoutError::WrongRpl {
            field: Field::UserCode32,
            value: selector(0x18),
            wanted: selector(0x1b)
        })
    );
    assert_eq!(SegmentLayout::check(LEAST).unwrap().sysret_base().bits(), 0x13);
}

#[test]
fn linux_order_is_accepted() {
    // KERNEL32_CS 1, KERNEL_CS 2, KERNEL_DS 3, USER32_CS 4, USER_DS 5, USER_CS 6, TSS 8.
    let linux = Selectors {
        kernel_code: selector(0x10),
        kernel_data: selector(0x18),
        user_code32: Some(selector(0x23)),
        user_data: selector(0x2b),
        user_code64: selector(0x33),
        sysexit_data: None,
        tss: selector(0x40),
    };
    let layout = SegmentLayout::check(linux).unwrap();
    assert_eq!(layout.sysret_base().bits(), 0x23);
    assert_eq!(layout.entries(), 10);
    assert_eq!(layout.gdt_limit(), 79);
}

const fn fields(selectors: &mut Selectors) -> [(Field, Option<&mut Selector>); 7] {
    [
        (Field::KernelCode, Some(&mut selectors.kernel_code)),
        (Field::KernelData, Some(&mut selectors.kernel_data)),
        (Field::UserCode32, selectors.user_code32.as_mut()),
        (Field::UserData, Some(&mut selectors.user_data)),
        (Field::UserCode64, Some(&mut selectors.user_code64)),
        (Field::SysexitData, selectors.sysexit_data.as_mut()),
        (Field::Tss, Some(&mut selectors.tss)),
    ]
}

#[test]
fn each_flipped_bit_of_each_selector_is_refused() {
    for index in 0..7 {
        for bit in 0..16 {
            let mut selectors = NATURAL;
            let [.., (field, Some(value))] = &mut fields(&mut selectors)[..=index] else {
                unreachable!()
            };
            let field = *field;
            **value = selector(value.bits() ^ 1 << bit);
            let result = SegmentLayout::check(selectors);
            match (field, bit) {
                // The TSS may be anywhere else: these bits of 0x38 move it to other entries.
                (Field::Tss, 6..) => assert!(result.is_ok(), "{field} bit {bit}"),
                (_, 0..=1) => {
                    assert!(matches!(result, Err(LayoutError::WrongRpl { field: named, .. }) if named == field))
                }
                (_, 2) => assert!(matches!(result, Err(LayoutError::Local { field: named, .. }) if named == field)),
                _ => assert!(result.is_err(), "{field} bit {bit}"),
            }
        }
    }
}

/// All placements of the four selectors of the least layout and of the six of the full one, in ten entries.
#[test]
fn accepted_layouts_are_exactly_those_the_cpu_computes() {
    const ENTRIES: u16 = 9;
    let user = |index: u16| selector(index * 8 + 3);
    let kernel = |index: u16| selector(index * 8);
    let tss = selector(0x100);
    let mut accepted = 0;
    for code in 0..ENTRIES {
        for data in 0..ENTRIES {
            for user_data in 0..ENTRIES {
                for code64 in 0..ENTRIES {
                    let four = Selectors {
                        kernel_code: kernel(code),
                        kernel_data: kernel(data),
                        user_code32: None,
                        user_data: user(user_data),
                        user_code64: user(code64),
                        sysexit_data: None,
                        tss,
                    };
                    let distinct = ![code, data].contains(&user_data) && ![code, data].contains(&code64);
                    let right = code > 0 && data == code + 1 && user_data > 1 && code64 == user_data + 1 && distinct;
                    assert_eq!(SegmentLayout::check(four).is_ok(), right, "{four:?}");
                    for code32 in 0..ENTRIES {
                        let five = Selectors {
                            user_code32: Some(user(code32)),
                            ..four
                        };
                        let right32 = right && code32 + 1 == user_data && ![code, data].contains(&code32);
                        assert_eq!(SegmentLayout::check(five).is_ok(), right32, "{five:?}");
                        for again in 0..ENTRIES {
                            let six = Selectors {
                                sysexit_data: Some(user(again)),
                                ..five
                            };
                            let exit = right32 && code32 == code + 2 && again == code + 5;
                            assert_eq!(SegmentLayout::check(six).is_ok(), exit, "{six:?}");
                            accepted += u32::from(exit);
                        }
                    }
                }
            }
        }
    }
    assert_eq!(accepted, 3); // kernel code in entry 1, 2 or 3
}

#[test]
fn tss_must_not_overlap() {
    for (tss, field, other) in [
        (0x18, Field::Tss, Field::UserData),
        (0x20, Field::Tss, Field::UserCode64),
        (0x10, Field::Tss, Field::KernelData),
    ] {
        let error = SegmentLayout::check(Selectors {
            tss: selector(tss),
            ..LEAST
        })
        .unwrap_err();
        assert!(
            matches!(error, LayoutError::Overlap { field: a, other: b, .. } if (a, b) == (field, other))
                || matches!(
                    error,
                    LayoutError::Overlap {
                        field: Field::TssUpper,
                        ..
                    }
                ),
            "{error}"
        );
    }
    // The second entry alone overlaps.
    let shifted = SegmentLayout::new(selector(0x18)).unwrap();
    let error = SegmentLayout::check(Selectors {
        tss: selector(0x10),
        ..*shifted.selectors()
    })
    .unwrap_err();
    assert_eq!(
        error,
        LayoutError::Overlap {
            field: Field::TssUpper,
            value: selector(0x18),
            other: Field::KernelCode
        }
    );
    // The last entry of the largest table has no second.
    let error = SegmentLayout::check(Selectors {
        tss: selector(0xfff8),
        ..LEAST
    })
    .unwrap_err();
    assert_eq!(
        error,
        LayoutError::OutsideTable {
            field: Field::TssUpper,
            value: selector(0xfff8),
            entries: 8192
        }
    );
    assert_eq!(
        SegmentLayout::check(Selectors {
            tss: selector(0xfff0),
            ..LEAST
        })
        .unwrap()
        .gdt_limit(),
        0xffff
    );
}

#[test]
fn selectors_at_the_end_of_the_table_do_not_wrap() {
    for index in 8180..8192 {
        let result = SegmentLayout::new(selector(index * 8));
        assert_eq!(result.is_ok(), index + 7 < 8192, "{index}");
    }
}

#[test]
fn natural_gdt_holds_the_descriptors_the_cpu_assumes() {
    let gdt = SegmentLayout::natural_gdt(0xffff_8123_4567_89a0, 0x67);
    assert_eq!(
        gdt,
        [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_fb00_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x4500_8967_89a0_0067,
            0x0000_0000_ffff_8123,
        ]
    );
    // The x86_64 crate's descriptors, made by other hands.
    assert_eq!(gdt[1], DescriptorFlags::KERNEL_CODE64.bits());
    assert_eq!(gdt[2], DescriptorFlags::KERNEL_DATA.bits());
    assert_eq!(gdt[3], DescriptorFlags::USER_CODE32.bits());
    assert_eq!(gdt[4], DescriptorFlags::USER_DATA.bits());
    assert_eq!(gdt[5], DescriptorFlags::USER_CODE64.bits());
    let tss = x86_64::structures::tss::TaskStateSegment::new();
    // SAFETY: the descriptor is compared, not loaded.
    let Descriptor::SystemSegment(low, high) = (unsafe { Descriptor::tss_segment_unchecked(&raw const tss) }) else {
        panic!("a TSS descriptor has two words");
    };
    let base = (&raw const tss).addr() as u64;
    assert_eq!(SegmentLayout::tss_descriptor(base, 0x67), [low, high]);
}

#[test]
fn other_layouts_get_their_tables_too() {
    assert_eq!(
        SegmentLayout::NATURAL.gdt(0x1000, 0x67),
        Ok(SegmentLayout::natural_gdt(0x1000, 0x67))
    );
    let layout = SegmentLayout::check(LEAST).unwrap();
    let gdt: [u64; 7] = layout.gdt(0, 0x67).unwrap();
    assert_eq!(
        gdt,
        [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0x0000_8900_0000_0067,
            0
        ]
    );
    assert_eq!((layout.entries(), layout.gdt_limit()), (7, 55));
    assert_eq!(layout.check_gdt(&gdt), Ok(()));
    assert_eq!(
        layout.gdt::<6>(0, 0x67),
        Err(LayoutError::OutsideTable {
            field: Field::TssUpper,
            value: selector(0x30),
            entries: 6
        })
    );
    assert_eq!(
        layout.check_gdt(&gdt[..4]),
        Err(LayoutError::OutsideTable {
            field: Field::UserCode64,
            value: selector(0x23),
            entries: 4
        })
    );
}

/// Each bit of each descriptor, flipped: refused if the CPU looks at it, else let through.
#[test]
fn wrong_descriptors_are_refused_bit_by_bit() {
    let range = |low: u32, high: u32| (low..=high).fold(0u64, |bits, bit| bits | 1 << bit);
    let accessed_and_avl = 1 << 40 | 1 << 52;
    let code64 = range(42, 47) | 1 << 53 | 1 << 54;
    let data64 = range(41, 47);
    let flat = !accessed_and_avl;
    let tss = range(42, 47) | 1 << 40;
    for (entry, field, compared) in [
        (1, Field::KernelCode, code64),
        (2, Field::KernelData, data64),
        (3, Field::UserCode32, flat),
        (4, Field::UserData, flat),
        (5, Field::UserCode64, code64),
        (6, Field::SysexitData, data64),
        (7, Field::Tss, tss),
    ] {
        for bit in 0..64 {
            let mut gdt = SegmentLayout::natural_gdt(0, 0x67);
            gdt[entry] ^= 1 << bit;
            let result = SegmentLayout::NATURAL.check_gdt(&gdt);
            if compared & 1 << bit == 0 {
                assert_eq!(result, Ok(()), "{field} bit {bit}");
            } else {
                assert!(
                    matches!(result, Err(LayoutError::WrongDescriptor { field: named, found, .. }) if named == field && found == gdt[entry]),
                    "{field} bit {bit}: {result:?}"
                );
            }
        }
    }
}

#[test]
fn selectors_convert_both_ways() {
    for bits in 0..=u16::MAX {
        let ours = selector(bits);
        let theirs: SegmentSelector = ours.into();
        assert_eq!(theirs.0, bits);
        assert_eq!(Selector::from(theirs), ours);
        assert_eq!(theirs.index(), ours.index());
        assert_eq!(u16::from(theirs.rpl() as u8), ours.rpl());
        assert_eq!(ours.is_null(), bits < 4);
        assert_eq!(ours.is_local(), bits / 4 % 2 == 1);
    }
}
