//! The two legacy 8259A interrupt controllers, which are moved out of the way and masked.
//!
//! # Source
//!
//! Intel *8259A* data sheet, *Initialization Command Words*.

use x86_64::instructions::port::Port;

const FIRST_COMMAND: u16 = 0x20;
const FIRST_DATA: u16 = 0x21;
const SECOND_COMMAND: u16 = 0xa0;
const SECOND_DATA: u16 = 0xa1;

/// First of the 16 vectors that the controllers own. Only spurious ones, 0x27 and 0x2f, can still arrive.
pub const BASE_VECTOR: u8 = 0x20;

/// Moves the 16 lines to [`BASE_VECTOR`], away from the exceptions, and masks them all.
pub(crate) fn disable() {
    for (port, value) in [
        (FIRST_COMMAND, 0x11),
        (SECOND_COMMAND, 0x11),
        (FIRST_DATA, BASE_VECTOR),
        (SECOND_DATA, BASE_VECTOR + 8),
        (FIRST_DATA, 1 << 2),
        (SECOND_DATA, 2),
        (FIRST_DATA, 1),
        (SECOND_DATA, 1),
        (FIRST_DATA, 0xff),
        (SECOND_DATA, 0xff),
    ] {
        // SAFETY: the ports belong to the interrupt controllers, and interrupts are off during boot.
        unsafe { Port::new(port).write(value) };
    }
}
