//! Formatted text to file descriptor 1.

use core::fmt;

use crate::sys;

/// Writes one formatted line.
///
/// A line of up to 256 bytes is one `write`, so lines of two processes do not mix.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::output::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}

struct Writer {
    buffer: [u8; 256],
    used: usize,
}

impl Writer {
    fn flush(&mut self) {
        let mut rest = &self.buffer[..self.used];
        while !rest.is_empty() {
            // With no way to write, there is no way to report it.
            let Ok(written) = sys::write(1, rest) else {
                break;
            };
            rest = &rest[written..];
        }
        self.used = 0;
    }
}

impl fmt::Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.used == self.buffer.len() {
                self.flush();
            }
            self.buffer[self.used] = byte;
            self.used += 1;
        }
        Ok(())
    }
}

/// Writes `text` to file descriptor 1; [`println!`](crate::println) is the way to call it.
pub fn print(text: fmt::Arguments<'_>) {
    let mut writer = Writer {
        buffer: [0; 256],
        used: 0,
    };
    // Only a `Display` of our own could fail, and none does.
    let _ = fmt::Write::write_fmt(&mut writer, text);
    writer.flush();
}
