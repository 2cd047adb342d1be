//! System calls: numbers, arguments, results and errors of Linux on x86-64.
//!
//! The number is in RAX, the arguments in RDI, RSI, RDX, R10, R8, R9, the result comes back in RAX; -4095 to -1 are
//! errors. By SYSENTER, where the CPU has it, the same calls are made with the same registers; Linux has no such way. A call
//! that is not here answers [`Errno::ENOSYS`]. For 32-bit code, which has a table of its own, see `compat`.
//!
//! A handler runs with interrupts on and may turn them off for a while, or wait; it gives the [`IrqOn`] state back
//! together with its answer.

mod compat;
mod file;
mod memory;
mod process;

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use entry_core::vector::Vector;
use entry_core::{EntryKind, IrqOn, TrapFrame};

use crate::device::apic;
use crate::entry::code32;
use crate::experiment;
use crate::guard::guard;
use crate::memory::layout::index;
use crate::println;

/// A Linux error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(u16);

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errors! {
    /// Operation not permitted.
    EPERM = 1;
    /// No such process.
    ESRCH = 3;
    /// Interrupted by a signal.
    EINTR = 4;
    /// Bad descriptor.
    EBADF = 9;
    /// No such child.
    ECHILD = 10;
    /// Try again: too many processes.
    EAGAIN = 11;
    /// Out of memory.
    ENOMEM = 12;
    /// Permission denied.
    EACCES = 13;
    /// Bad user address.
    EFAULT = 14;
    /// Already exists.
    EEXIST = 17;
    /// No such device: the file cannot be mapped.
    ENODEV = 19;
    /// Invalid argument.
    EINVAL = 22;
    /// Too many pipes in the system.
    ENFILE = 23;
    /// Too many descriptors in the process.
    EMFILE = 24;
    /// Nobody reads the pipe.
    EPIPE = 32;
    /// No such system call.
    ENOSYS = 38;
}

impl Errno {
    /// Takes the positive number of another module's error.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        u16::try_from(number).map_or(Self::EINVAL, Self)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}

/// What a system call leaves in RAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(u64);

impl Answer {
    /// Success without a value.
    pub const ZERO: Self = Self(0);

    /// A value.
    #[inline(always)]
    #[must_use]
    pub const fn value(value: u64) -> Self {
        Self(value)
    }

    /// An error: its number, negated.
    #[inline(always)]
    #[must_use]
    pub const fn error(errno: Errno) -> Self {
        Self((errno.0 as u64).wrapping_neg())
    }

    /// The lower half alone, which is all that 32-bit code has.
    #[must_use]
    pub const fn low(self) -> Self {
        Self(self.0 & 0xffff_ffff)
    }

    /// The word for RAX.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl From<Result<u64, Errno>> for Answer {
    #[inline(always)]
    fn from(result: Result<u64, Errno>) -> Self {
        result.map_or_else(Self::error, Self::value)
    }
}

impl From<Result<(), Errno>> for Answer {
    #[inline(always)]
    fn from(result: Result<(), Errno>) -> Self {
        result.map_or_else(Self::error, |()| Self::ZERO)
    }
}

/// What a handler returns: the answer, and the state of interrupts.
type Outcome = (Answer, IrqOn);

/// A handler. The frame holds the arguments.
type Handler = fn(&TrapFrame, IrqOn) -> Outcome;

/// Entries of the table: above all numbers that are offered, and a power of two.
const TABLE_ENTRIES: usize = 256;

static TABLE: [Handler; TABLE_ENTRIES] = {
    let mut table = [unknown as Handler; TABLE_ENTRIES];
    table[0] = file::read;
    table[1] = file::write;
    table[3] = file::close;
    table[9] = memory::mmap;
    table[11] = memory::munmap;
    table[22] = file::pipe;
    table[24] = process::sched_yield;
    table[39] = process::getpid;
    table[57] = process::fork;
    table[60] = process::exit;
    table[61] = process::wait4;
    table[62] = process::kill;
    table[110] = process::getppid;
    table[158] = process::arch_prctl;
    table[231] = process::exit;
    table
};

/// Looks the number up and calls its handler.
///
/// The number is the lower half of RAX, as on Linux, cut off once: what is compared is what is used as index.
#[inline(always)]
pub fn dispatch(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    if frame.kind_word() != EntryKind::Syscall64.word(0) {
        return other_entry(frame, irq);
    }
    call(frame, irq)
}

/// Looks the number up and calls its handler: the number and the arguments are where 64-bit code has them.
#[inline(always)]
fn call(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let number = frame.rax() & 0xffff_ffff;
    if number >= TABLE_ENTRIES as u64 {
        return beyond_table(frame, number, irq);
    }
    // The remainder is free: the compiler can't know what the clamp left, and masks it.
    TABLE[index(clamp_under_speculation(number)) % TABLE_ENTRIES](frame, irq)
}

/// Hides from the compiler that `number` is in range already, so that the mask which follows stays in the code: a CPU
/// that speculates past the comparison must not index with a number of the user's choice (CVE-2017-5753).
#[inline(always)]
fn clamp_under_speculation(number: u64) -> u64 {
    let hidden;
    // SAFETY: the template is empty.
    unsafe { asm!("", inout("rax") number => hidden, options(pure, nomem, nostack, preserves_flags)) };
    hidden
}

/// A call by SYSENTER is one by SYSCALL.
#[cold]
#[inline(never)]
fn other_entry(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    if frame.kind_word() == EntryKind::Sysenter64.word(0) {
        return call(frame, irq);
    }
    other_call(frame, irq)
}

/// One of 32-bit code is another matter. What is left is INT 0x80 in 64-bit code, where Linux takes the numbers for i386's, and of
/// which only the control call is offered: so it can be made whatever SYSCALL leads to.
#[cold]
#[inline(never)]
fn other_call(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    refuse_devices(frame);
    match frame.entry_kind() {
        Some(EntryKind::Sysenter32 | EntryKind::Syscall32) => compat::call(frame, irq),
        _ if frame.cs() == code32() => compat::call(frame, irq),
        _ => beyond_table(frame, frame.rax(), irq),
    }
}

/// Ends the machine if the program did not call: no device is given the vector of INT 0x80, and one that raises it all the
/// same interrupts a program with the very frame of a call.
fn refuse_devices(frame: &TrapFrame) {
    let is_raised = frame.entry_kind() == Some(EntryKind::Int80) && apic::is_in_service(Vector::INT80.0);
    if guard!("call-raised-by-a-device", is_raised) {
        panic!(
            "{} was raised by a device, and is the system call's\n{frame}",
            Vector::INT80
        );
    }
}

#[cold]
#[inline(never)]
fn beyond_table(frame: &TrapFrame, number: u64, irq: IrqOn) -> Outcome {
    if number == experiment::CONTROL {
        experiment::control(frame, frame.rdi(), frame.rsi(), irq)
    } else {
        unknown(frame, irq)
    }
}

/// Every number that is not offered. It is told, since a program that times its calls may not look at their answers; INT 0x80 of
/// 64-bit code is not, which offers next to nothing on purpose.
#[cold]
#[inline(never)]
fn unknown(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    /// A program may ask for ever.
    const MOST_TOLD: u32 = 64;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let is_offered_elsewhere = frame.entry_kind() == Some(EntryKind::Int80);
    if !is_offered_elsewhere && TOLD.fetch_add(1, Ordering::Relaxed) < MOST_TOLD {
        println!("[syscall] no call {}", frame.rax());
    }
    (Answer::error(Errno::ENOSYS), irq)
}
