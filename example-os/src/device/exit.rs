//! The end of a run: one last line, then the machine is told to stop.

use core::fmt;

use x86_64::instructions::port::Port;

use crate::device::{screen, serial};
use crate::println;

/// QEMU's `isa-debug-exit`: QEMU ends with status `value << 1 | 1`.
const DEBUG_EXIT: u16 = 0xf4;
/// Bochs powers off when this port reads the word "Shutdown" letter by letter.
const BOCHS_POWER_OFF: u16 = 0x8900;

/// How a run ended. The number of each is what the debug-exit port gets; success is not 0, because a triple fault
/// ends QEMU with status 0.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// Process 1 exited with code 0, or all tests passed. 0x10.
    Success,
    /// The kernel panicked. 0x11.
    Panic,
    /// At least one test failed. 0x12.
    TestsFailed,
    /// Process 1 exited with another code or was killed; the text says which. 0x13.
    InitFailed(fmt::Arguments<'a>),
    /// The test runner wants the image booted again. 0x14.
    Reboot,
    /// What the loader handed over is no use; the text says what. 0x15.
    BadBoot(fmt::Arguments<'a>),
}

impl Outcome<'_> {
    const fn code(&self) -> u32 {
        match self {
            Self::Success => 0x10,
            Self::Panic => 0x11,
            Self::TestsFailed => 0x12,
            Self::InitFailed(_) => 0x13,
            Self::Reboot => 0x14,
            Self::BadBoot(_) => 0x15,
        }
    }
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("success"),
            Self::Panic => f.write_str("failure: panic"),
            Self::TestsFailed => f.write_str("failure: tests failed"),
            Self::InitFailed(reason) => write!(f, "failure: {reason}"),
            Self::Reboot => f.write_str("failure: reboot wanted by the test runner"),
            Self::BadBoot(reason) => write!(f, "failure: bad boot input: {reason}"),
        }
    }
}

/// Prints the `[exit]` line and ends the machine. One that has neither port, a real one above all, is left to whoever
/// reads its screen.
pub fn finish(outcome: Outcome<'_>) -> ! {
    println!("[exit] {outcome}");
    serial::flush();
    // SAFETY: the port belongs to the debug-exit device, or to nothing.
    unsafe { Port::new(DEBUG_EXIT).write(outcome.code()) };
    for &letter in b"Shutdown" {
        // SAFETY: the port belongs to Bochs' power-off device, or to nothing.
        unsafe { Port::new(BOCHS_POWER_OFF).write(letter) };
    }
    x86_64::instructions::interrupts::disable();
    println!("[halt] this machine does not end by itself: switch it off, or reset it");
    screen::show_all();
    loop {
        x86_64::instructions::hlt();
    }
}
