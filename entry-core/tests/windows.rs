//! The look-up of windows, by forged ones: this image has no others.

use core::arch::naked_asm;

use entry_core::entry_window;
use entry_core::stub::address;
use entry_core::windows::{self, Window, flags};

/// Instructions of one byte, each with a label: 20 and its offset. Windows with interrupts on in no order, one of which
/// overlaps another, and one is empty; IRETQs in the order of their addresses, two without a gap.
#[unsafe(naked)]
unsafe extern "sysv64" fn forged() -> ! {
    naked_asm!(
        "20: nop",
        "21: nop",
        "22: nop",
        "23: nop",
        "24: nop",
        "25: nop",
        "26: nop",
        "27: nop",
        "28: nop",
        "29: nop",
        "30: nop",
        "31: nop",
        "32: nop",
        "33: nop",
        "34: nop",
        "35: nop",
        "36: nop",
        "37: int3",
        entry_window!("29b", "33b", "{irqs_on}"),
        entry_window!("23b", "25b", "{irqs_on}"),
        entry_window!("31b", "35b", "{irqs_on}"),
        entry_window!("28b", "29b", "{irqs_on}"),
        entry_window!("25b", "25b", "{irqs_on}"),
        entry_window!("21b", "22b", "{iret}"),
        entry_window!("22b", "23b", "{iret}"),
        entry_window!("27b", "28b", "{iret}"),
        entry_window!("36b", "37b", "{iret}"),
        irqs_on = const flags::IRQS_ON,
        iret = const flags::IRET | flags::USER_GS,
    )
}

fn base() -> u64 {
    address(forged)
}

/// The first and the last offset of the window with interrupts on that each offset lies in, the first one of two.
const IRQS_ON: [Option<(u64, u64)>; 18] = [
    None,
    None,
    None,
    Some((3, 4)),
    Some((3, 4)),
    None,
    None,
    None,
    Some((8, 8)),
    Some((9, 12)),
    Some((9, 12)),
    Some((9, 12)),
    Some((9, 12)),
    Some((11, 14)),
    Some((11, 14)),
    None,
    None,
    None,
];

const IRETS: [u64; 4] = [1, 2, 7, 16];

fn offsets(window: &Window) -> (u64, u64) {
    (window.start() - base(), window.end() - 1 - base())
}

fn check_look_ups() {
    for (offset, wanted) in (0..).zip(IRQS_ON) {
        let rip = base() + offset;
        let found = windows::find_irqs_on(rip);
        assert_eq!(found.map(offsets), wanted, "at {offset}");
        assert!(found.is_none_or(|window| window.flags() == flags::IRQS_ON));
        assert_eq!(windows::is_iret(rip), IRETS.contains(&offset), "at {offset}");
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
fn windows_are_found_from_first_to_last_byte_whether_their_extent_is_known_or_not() {
    check_look_ups();
    windows::learn_extent();
    check_look_ups();
    windows::learn_extent();
    check_look_ups();
}

#[test]
fn every_window_is_among_all() {
    for (offset, wanted) in (0..).zip(IRQS_ON) {
        let wanted = wanted.or(IRETS.contains(&offset).then_some((offset, offset)));
        assert_eq!(windows::find(base() + offset).map(offsets), wanted, "at {offset}");
    }
    let count = windows::all()
        .iter()
        .filter(|window| window.start() < window.end())
        .count();
    assert_eq!(count, 4 + IRETS.len());
}
