//! How the kernel ends when it finds itself wrong.

use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::registers::control::{Cr2, Cr3, Cr4};
use x86_64::registers::rflags;

use crate::device::exit::{Outcome, finish};
use crate::{harness, println};

static IS_PANICKING: AtomicBool = AtomicBool::new(false);

/// A panic on one line: where, then why.
pub(crate) struct Panic<'a>(pub(crate) &'a PanicInfo<'a>);

/// Writes a text of several lines as one.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (number, line) in text.split('\n').enumerate() {
            if number > 0 {
                self.0.write_str("; ")?;
            }
            self.0.write_str(if number > 0 { line.trim_start() } else { line })?;
        }
        Ok(())
    }
}

impl fmt::Display for Panic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = self.0.location() {
            write!(f, "{location}: ")?;
        }
        fmt::Write::write_fmt(&mut OneLine(f), format_args!("{}", self.0.message()))
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    x86_64::instructions::interrupts::disable();
    if IS_PANICKING.swap(true, Ordering::Relaxed) {
        // Formatting the first panic panicked: say so without formatting anything of it.
        println!("[panic] again, while a panic was printed");
        finish(Outcome::Panic);
    }
    harness::on_panic(info);
    println!("[panic] at {}", Panic(info));
    let stack_pointer: u64;
    // SAFETY: reading RSP has no effect.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) stack_pointer, options(nomem, nostack, preserves_flags)) };
    println!(
        "[panic] rsp {stack_pointer:016x} rflags {:08x} cr2 {:016x} cr3 {:016x} cr4 {:08x}",
        rflags::read_raw(),
        Cr2::read_raw(),
        Cr3::read_raw().0.start_address().as_u64(),
        Cr4::read_raw(),
    );
    finish(Outcome::Panic)
}
