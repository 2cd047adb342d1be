//! System calls of 32-bit code: i386's numbers and registers, whatever instruction they come by.
//!
//! The convention belongs to the entry, not to the process: a frame of 32-bit code is served here. Arguments are the lower
//! halves of registers, results too. What a call does is the same as for 64-bit code, whose handlers are given the arguments
//! in a frame of their own convention; where a structure or the meaning of an argument differs, the handler is here.
//!
//! # Source
//!
//! Linux `arch/x86/entry/syscalls/syscall_32.tbl`.

use entry_core::{IrqOn, TrapFrame};
use entry_sysenter::stub::Arguments32;

use super::{Answer, Errno, Handler, Outcome, clamp_under_speculation, file, memory, process, unknown};
use crate::experiment;
use crate::memory::layout::index;
use crate::memory::user;

/// A handler of this convention: the frame, and what [`Arguments32`] found in it.
type Handler32 = fn(&TrapFrame, &Arguments32, IrqOn) -> Outcome;

/// Who serves a number.
#[derive(Clone, Copy)]
enum Service {
    /// A handler of 64-bit code.
    Same(Handler),
    /// One of this file.
    Own(Handler32),
}

/// Entries of the table: above all numbers that are offered, and a power of two.
const TABLE_ENTRIES: usize = 256;

static TABLE: [Service; TABLE_ENTRIES] = {
    let mut table = [Service::Same(unknown); TABLE_ENTRIES];
    table[1] = Service::Same(process::exit);
    table[2] = Service::Own(fork);
    table[3] = Service::Same(file::read);
    table[4] = Service::Same(file::write);
    table[6] = Service::Same(file::close);
    table[7] = Service::Own(waitpid);
    table[20] = Service::Same(process::getpid);
    table[37] = Service::Same(process::kill);
    table[42] = Service::Same(file::pipe);
    table[64] = Service::Same(process::getppid);
    table[91] = Service::Same(memory::munmap);
    table[114] = Service::Own(wait4);
    table[158] = Service::Same(process::sched_yield);
    table[192] = Service::Own(mmap2);
    table[252] = Service::Same(process::exit);
    table
};

/// Looks the number up and calls its handler.
pub(super) fn call(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let arguments = Arguments32::of(frame);
    let number = u64::from(arguments.number());
    let (answer, irq) = if number < TABLE_ENTRIES as u64 {
        // As in the other table.
        match TABLE[index(clamp_under_speculation(number)) % TABLE_ENTRIES] {
            Service::Same(handler) => handler(&translate(&arguments), irq),
            Service::Own(handler) => handler(frame, &arguments, irq),
        }
    } else if number == experiment::CONTROL {
        let [operation, argument, ..] = arguments.first_five();
        experiment::control(frame, operation.into(), argument.into(), irq)
    } else {
        (Answer::error(Errno::ENOSYS), irq)
    };
    (answer.low(), irq)
}

/// The first five arguments, where 64-bit code has them.
const fn translate(arguments: &Arguments32) -> TrapFrame {
    let [first, second, third, fourth, fifth] = arguments.first_five();
    let mut frame = TrapFrame::zeroed();
    frame.set_rdi(first as u64);
    frame.set_rsi(second as u64);
    frame.set_rdx(third as u64);
    frame.set_r10(fourth as u64);
    frame.set_r8(fifth as u64);
    frame
}

/// `fork()`: the child leaves with this very frame.
fn fork(frame: &TrapFrame, _arguments: &Arguments32, irq: IrqOn) -> Outcome {
    process::fork(frame, irq)
}

/// `waitpid(pid, status, options)`
fn waitpid(_frame: &TrapFrame, arguments: &Arguments32, irq: IrqOn) -> Outcome {
    let mut irq = irq.disable();
    let [pid, status, options, ..] = arguments.first_five();
    let result = process::wait_off(
        pid.cast_signed(),
        status.into(),
        options.cast_signed(),
        (0, 0),
        &mut irq,
    );
    (result.into(), irq.enable())
}

/// `wait4(pid, status, options, usage)`: `usage` has 32-bit words.
fn wait4(_frame: &TrapFrame, arguments: &Arguments32, irq: IrqOn) -> Outcome {
    const USAGE_BYTES: usize = 72;
    let mut irq = irq.disable();
    let [pid, status, options, usage, _] = arguments.first_five();
    let usage = (usage.into(), USAGE_BYTES);
    let result = process::wait_off(pid.cast_signed(), status.into(), options.cast_signed(), usage, &mut irq);
    (result.into(), irq.enable())
}

/// `mmap2(hint, length, protection, flags, descriptor, page)`: the last argument, the only sixth one here, is on the stack
/// for two of three ways in.
fn mmap2(_frame: &TrapFrame, arguments: &Arguments32, irq: IrqOn) -> Outcome {
    let read = |address: u32| {
        let mut bytes = [0; 4];
        user::copy_from_user(&mut bytes, address.into()).ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    // The page of a file is of no interest to anonymous memory, but an argument that isn't there is the caller's mistake.
    if arguments.sixth(read).is_err() {
        return (Answer::error(Errno::EFAULT), irq);
    }
    let [hint, length, protection, flags, _] = arguments.first_five();
    let irq = irq.disable();
    let result = memory::mmap_32(hint.into(), length.into(), protection.into(), flags.into(), &irq);
    (result.into(), irq.enable())
}
