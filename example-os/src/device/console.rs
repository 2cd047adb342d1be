//! Where the kernel's text goes: to the serial line, and to the text screen where the loader found one.

use core::fmt;

use crate::device::{screen, serial};

/// Writes `bytes` as they are.
pub fn write(bytes: &[u8]) {
    serial::write(bytes);
    screen::write(bytes);
}

/// The target of [`print!`](crate::print) and [`println!`](crate::println).
#[derive(Debug)]
struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write(text.as_bytes());
        Ok(())
    }
}

/// Formats to the console.
pub fn print(arguments: fmt::Arguments<'_>) {
    // `Console` never fails; an error can come from a `Display` alone, and there is nowhere to report it to.
    let _ = fmt::Write::write_fmt(&mut Console, arguments);
}

/// Prints to the console.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::device::console::print(::core::format_args!($($argument)*)) };
}

/// Prints to the console, with a final newline.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::device::console::print(::core::format_args!("{}\n", ::core::format_args!($($argument)*)))
    };
}
