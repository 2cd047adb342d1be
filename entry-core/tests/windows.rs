//! The look-up of windows, by forged ones: this image has no others.

use core::arch::naked_asm;

use entry_core::entry_window;
use entry_core::stub::address;
use entry_core::windows::{self, Window, flags};

/// Instructions of one byte, and windows in no order: with interrupts on from 9 to 13, from 3 to 5, from 11 to 15, an empty
/// one at 1 and one of 8 alone; and one that is an IRETQ's, at 7.
#[unsafe(naked)]
unsafe extern "sysv64" fn forged() -> ! {
    naked_asm!(
        "nop",
        "2:",
        "nop",
        "nop",
        "3:",
        "nop",
        "nop",
        "4:",
        "nop",
        "nop",
        "5:",
        "nop",
        "6:",
        "nop",
        "7:",
        "nop",
        "nop",
        "8:",
        "nop",
        "nop",
        "9:",
        "nop",
        "nop",
        "20:",
        "int3",
        entry_window!("7b", "9b", "{irqs_on}"),
        entry_window!("3b", "4b", "{irqs_on}"),
        entry_window!("8b", "20b", "{irqs_on}"),
        entry_window!("2b", "2b", "{irqs_on}"),
        entry_window!("5b", "6b", "{iret}"),
        entry_window!("6b", "7b", "{irqs_on}"),
        irqs_on = const flags::IRQS_ON,
        iret = const flags::IRET | flags::USER_GS,
    )
}

fn base() -> u64 {
    address(forged)
}

/// The window with interrupts on that each offset lies in, the first one of two: its first and last offset.
const IRQS_ON: [(u64, Option<(u64, u64)>); 18] = [
    (0, None),
    (1, None),
    (2, None),
    (3, Some((3, 4))),
    (4, Some((3, 4))),
    (5, None),
    (6, None),
    (7, None),
    (8, Some((8, 8))),
    (9, Some((9, 12))),
    (10, Some((9, 12))),
    (11, Some((9, 12))),
    (12, Some((9, 12))),
    (13, Some((11, 14))),
    (14, Some((11, 14))),
    (15, None),
    (16, None),
    (17, None),
];

fn offsets(window: &Window) -> (u64, u64) {
    (window.start() - base(), window.end() - 1 - base())
}

fn check_look_ups() {
    for (offset, wanted) in IRQS_ON {
        let found = windows::find_irqs_on(base() + offset);
        assert_eq!(found.map(offsets), wanted, "at {offset}");
        assert!(found.is_none_or(|window| window.flags() == flags::IRQS_ON));
        assert_eq!(windows::is_iret(base() + offset), offset == 7, "at {offset}");
    }
    for rip in [
        0,
        1,
        base() - (1 << 20),
        base() - 1,
        base() + (1 << 20),
        u64::MAX - 1,
        u64::MAX,
    ] {
        assert!(windows::find_irqs_on(rip).is_none(), "at {rip:#x}");
        assert!(!windows::is_iret(rip), "at {rip:#x}");
    }
}

#[test]
fn windows_are_found_from_first_to_last_byte_whether_their_bounds_are_known_or_not() {
    check_look_ups();
    windows::learn_bounds();
    check_look_ups();
    windows::learn_bounds();
    check_look_ups();
}

#[test]
fn every_window_is_among_all() {
    for (offset, wanted) in IRQS_ON {
        let wanted = wanted.or((offset == 7).then_some((7, 7)));
        assert_eq!(windows::find(base() + offset).map(offsets), wanted, "at {offset}");
    }
    assert_eq!(
        windows::all()
            .iter()
            .filter(|window| window.start() < window.end())
            .count(),
        5
    );
}
