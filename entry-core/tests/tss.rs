//! The task-state segment's layout and its stacks.

use entry_core::address::Width;
use entry_core::tss::{TaskStateSegment, TssError};
use entry_core::vector::Ist;

const ALL: [Ist; 7] = [
    Ist::Ist1,
    Ist::Ist2,
    Ist::Ist3,
    Ist::Ist4,
    Ist::Ist5,
    Ist::Ist6,
    Ist::Ist7,
];

fn filled() -> TaskStateSegment {
    let mut tss = TaskStateSegment::new();
    for ist in ALL {
        tss.set_ist(ist, 0xffff_c000_0000_0000 + u64::from(ist.number()) * 0x4000);
    }
    tss
}

/// The 104 bytes as the CPU sees them.
fn image(tss: &TaskStateSegment) -> [u8; 104] {
    let start = std::ptr::from_ref(tss).cast::<u8>().wrapping_add(4);
    assert_eq!(start.addr() as u64, tss.base());
    // SAFETY: 4 + 104 bytes are inside the value, none of them padding, and nobody writes meanwhile.
    unsafe { start.cast::<[u8; 104]>().read() }
}

fn word(image: &[u8; 104], offset: usize) -> u64 {
    u64::from_le_bytes(image[offset..offset + 8].try_into().unwrap())
}

#[test]
fn fields_stand_at_the_offsets_of_the_manual() {
    let tss = filled();
    // SAFETY: no task register holds this TSS.
    unsafe { tss.set_rsp0(0xffff_c111_2222_3330) };
    let image = image(&tss);
    assert_eq!(word(&image, 4), 0xffff_c111_2222_3330);
    assert_eq!((word(&image, 12), word(&image, 20)), (0, 0));
    for number in 1..=7 {
        assert_eq!(
            word(&image, 36 + (number - 1) * 8),
            0xffff_c000_0000_0000 + number as u64 * 0x4000
        );
    }
    assert_eq!((word(&image, 28), word(&image, 92)), (0, 0), "reserved");
    assert_eq!(image[..4], [0; 4], "reserved");
    assert_eq!(image[100..102], [0; 2], "reserved");
    assert_eq!(image[102..], [0x68, 0], "the I/O bitmap lies beyond the limit");
    assert_eq!(TaskStateSegment::LIMIT, 103);
}

#[test]
fn rsp0_is_one_aligned_word() {
    let tss = filled();
    let address = std::ptr::from_ref(&tss).addr() + TaskStateSegment::RSP0;
    assert_eq!(address as u64, tss.base() + 4);
    assert_eq!(address % 8, 0);
    // SAFETY: no task register holds this TSS.
    unsafe { tss.set_rsp0(0x1000) };
    assert_eq!(tss.rsp0(), 0x1000);
}

#[test]
fn no_tss_crosses_a_page() {
    assert_eq!(4096 % align_of::<TaskStateSegment>(), 0);
    assert!(size_of::<TaskStateSegment>() <= align_of::<TaskStateSegment>());
}

#[test]
fn each_paranoid_exception_needs_its_stack() {
    assert_eq!(filled().check(Width::Bits48), Ok(()));
    for ist in ALL {
        let mut tss = filled();
        tss.set_ist(ist, 0);
        let wanted = if ist <= Ist::Ist4 {
            Err(TssError::Missing { ist })
        } else {
            Ok(())
        };
        assert_eq!(tss.check(Width::Bits48), wanted, "{ist:?}");
        tss.set_ist(ist, 0x8000_0000_0000);
        if ist <= Ist::Ist4 {
            let (top, width) = (0x8000_0000_0000, Width::Bits48);
            assert_eq!(tss.check(width), Err(TssError::NonCanonical { ist, top, width }));
            assert_eq!(tss.check(Width::Bits57), Ok(()));
        }
    }
}

#[test]
fn stacks_that_the_cpu_would_align_are_refused() {
    for ist in ALL {
        for offset in 1..16 {
            let mut tss = filled();
            let top = tss.ist(ist) + offset;
            tss.set_ist(ist, top);
            let wanted = if ist <= Ist::Ist4 {
                Err(TssError::Misaligned { ist, top })
            } else {
                Ok(())
            };
            assert_eq!(tss.check(Width::Bits48), wanted, "{ist:?}");
        }
    }
    assert_eq!(
        TssError::Misaligned {
            ist: Ist::Ist2,
            top: 0x1008
        }
        .to_string(),
        "ist2 is 0x1008, wanted a multiple of 16"
    );
}

#[test]
fn no_two_paranoid_exceptions_share_a_stack() {
    for ist in &ALL[..4] {
        for other in &ALL[..4] {
            let mut tss = filled();
            let top = tss.ist(*other);
            tss.set_ist(*ist, top);
            let wanted = if ist == other {
                Ok(())
            } else {
                Err(TssError::Shared {
                    ist: *ist.min(other),
                    other: *ist.max(other),
                    top,
                })
            };
            assert_eq!(tss.check(Width::Bits48), wanted);
        }
    }
}
