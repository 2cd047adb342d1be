//! The look-up of windows in an image without any with interrupts on, and with one that is empty between two IRETQs.

use core::arch::naked_asm;

use entry_core::entry_window;
use entry_core::stub::address;
use entry_core::windows::{self, flags};

/// Three instructions of one byte.
#[unsafe(naked)]
unsafe extern "sysv64" fn forged() -> ! {
    naked_asm!(
        "20: nop",
        "21: nop",
        "22: int3",
        "23:",
        entry_window!("20b", "21b", "{iret}"),
        entry_window!("22b", "22b", "{iret}"),
        entry_window!("22b", "23b", "{iret}"),
        iret = const flags::IRET,
    )
}

fn check_look_ups() {
    for offset in 0..4 {
        let rip = address(forged) + offset;
        assert_eq!(windows::is_iret(rip), offset == 0 || offset == 2, "at {offset}");
    }
    for rip in [0, address(forged), u64::MAX] {
        assert!(windows::find_irqs_on(rip).is_none(), "at {rip:#x}");
    }
}

#[test]
fn neither_no_windows_nor_an_empty_one_among_others_hides_one() {
    check_look_ups();
    windows::learn_extent();
    check_look_ups();
}
