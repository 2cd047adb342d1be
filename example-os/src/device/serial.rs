//! The serial line COM1: a 16550 UART, polled.
//!
//! Output only, without a lock and without memory of its own, so that it works in a panic and in any handler.
//!
//! # Source
//!
//! National Semiconductor *PC16550D* data sheet, *Registers*.

use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
const INTERRUPT_ENABLE: u16 = COM1 + 1;
const FIFO_CONTROL: u16 = COM1 + 2;
const LINE_CONTROL: u16 = COM1 + 3;
const LINE_STATUS: u16 = COM1 + 5;

const DIVISOR_LATCH: u8 = 0x80;
const EIGHT_BITS_NO_PARITY: u8 = 0x03;
const FIFO_ON_AND_CLEAR: u8 = 0x07;
const TRANSMITTER_READY: u8 = 0x20;
const TRANSMITTER_EMPTY: u8 = 0x40;
/// 115,200 baud over the wanted rate.
const DIVISOR: u8 = 1;

/// Sets the UART to 115,200 baud, eight bits, no parity, no interrupts. QEMU sends without this, Bochs does not.
pub(crate) fn init() {
    for (port, value) in [
        (INTERRUPT_ENABLE, 0),
        (LINE_CONTROL, DIVISOR_LATCH),
        (COM1, DIVISOR),
        (INTERRUPT_ENABLE, 0),
        (LINE_CONTROL, EIGHT_BITS_NO_PARITY),
        (FIFO_CONTROL, FIFO_ON_AND_CLEAR),
    ] {
        // SAFETY: these ports belong to COM1, and no write there touches memory.
        unsafe { Port::new(port).write(value) };
    }
}

/// Sends `bytes` as they are, waiting for room before each.
pub fn write(bytes: &[u8]) {
    for &byte in bytes {
        write_byte(byte);
    }
}

/// Waits until the last bit has left the UART: Bochs drops what is still in it at power-off.
pub(crate) fn flush() {
    wait_for(TRANSMITTER_EMPTY);
}

fn wait_for(condition: u8) {
    loop {
        // SAFETY: reading the line status has no effect on memory.
        let status: u8 = unsafe { Port::new(LINE_STATUS).read() };
        if status & condition != 0 {
            return;
        }
    }
}

fn write_byte(byte: u8) {
    wait_for(TRANSMITTER_READY);
    // SAFETY: the transmitter holding register takes any byte.
    unsafe { Port::new(COM1).write(byte) };
}
