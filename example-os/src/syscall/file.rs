//! Calls on descriptors: `read`, `write`, `close`, `pipe`.

use entry_core::{IrqOff, IrqOn, TrapFrame};

use super::{Errno, Outcome};
use crate::device::console;
use crate::memory::layout::index;
use crate::memory::user;
use crate::process::current;
use crate::process::descriptor::File;
use crate::process::pipe::{End, PipeId};

/// The most that one `read` or `write` transfers, as on Linux.
const MAX_LENGTH: u64 = 0x7fff_f000;

/// The lower half of a register, as the ABI passes an `int` or `unsigned int`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half of the register has no meaning"
)]
#[inline(always)]
const fn low(register: u64) -> u32 {
    register as u32
}

#[inline(always)]
fn lookup(descriptor: u64, irq: &IrqOff) -> Result<File, Errno> {
    current().descriptors().lock(irq).get(low(descriptor))
}

/// `read(descriptor, buffer, length)`
pub(super) fn read(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let mut irq = irq.disable();
    let result = read_off(frame.rdi(), frame.rsi(), frame.rdx(), &mut irq);
    (result.into(), irq.enable())
}

#[inline(always)]
fn read_off(descriptor: u64, buffer: u64, length: u64, irq: &mut IrqOff) -> Result<u64, Errno> {
    match lookup(descriptor, irq)? {
        File::Console => Ok(0),
        File::Pipe(pipe, End::Reader) => pipe
            .read(buffer, index(length.min(MAX_LENGTH)), irq)
            .map(|done| done as u64),
        File::Pipe(_, End::Writer) => Err(Errno::EBADF),
    }
}

/// `write(descriptor, buffer, length)`
pub(super) fn write(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let mut irq = irq.disable();
    let file = lookup(frame.rdi(), &irq);
    if file == Ok(File::Console) {
        let irq = irq.enable();
        return (write_console(frame.rsi(), frame.rdx().min(MAX_LENGTH)).into(), irq);
    }
    let result = write_off(file, frame.rsi(), frame.rdx(), &mut irq);
    (result.into(), irq.enable())
}

#[inline(always)]
fn write_off(file: Result<File, Errno>, buffer: u64, length: u64, irq: &mut IrqOff) -> Result<u64, Errno> {
    match file? {
        File::Pipe(pipe, End::Writer) => pipe
            .write(buffer, index(length.min(MAX_LENGTH)), irq)
            .map(|done| done as u64),
        File::Pipe(_, End::Reader) | File::Console => Err(Errno::EBADF),
    }
}

/// Copies to the console, in pieces.
#[cold]
#[inline(never)]
fn write_console(buffer: u64, length: u64) -> Result<u64, Errno> {
    let mut piece = [0; 256];
    let mut done = 0;
    while done < length {
        let step = (length - done).min(piece.len() as u64);
        let bytes = piece.get_mut(..index(step)).ok_or(Errno::EFAULT)?;
        if user::copy_from_user(bytes, buffer.wrapping_add(done)).is_err() {
            return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
        }
        console::write(bytes);
        done += step;
    }
    Ok(done)
}

/// `close(descriptor)`
pub(super) fn close(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let irq = irq.disable();
    let result = current().descriptors().lock(&irq).close(low(frame.rdi()), &irq);
    (result.into(), irq.enable())
}

/// `pipe(descriptors)`: stores two `int`s, the reading end first.
pub(super) fn pipe(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let irq = irq.disable();
    let result = pipe_off(frame.rdi(), &irq);
    (result.into(), irq.enable())
}

fn pipe_off(address: u64, irq: &IrqOff) -> Result<(), Errno> {
    let pipe = PipeId::create(irq)?;
    let descriptors = current().descriptors();
    let reader = descriptors
        .lock(irq)
        .open(File::Pipe(pipe, End::Reader))
        .inspect_err(|_| {
            pipe.release(End::Reader, irq);
            pipe.release(End::Writer, irq);
        })?;
    let writer = descriptors
        .lock(irq)
        .open(File::Pipe(pipe, End::Writer))
        .inspect_err(|_| {
            pipe.release(End::Writer, irq);
        });
    let stored = writer.and_then(|writer| {
        let mut pair = [0; 8];
        let (first, second) = pair.split_at_mut(4);
        first.copy_from_slice(&reader.to_le_bytes());
        second.copy_from_slice(&writer.to_le_bytes());
        user::copy_to_user(address, &pair).map_err(|_| {
            // It was opened above, so closing it cannot fail.
            let _ = descriptors.lock(irq).close(writer, irq);
            Errno::EFAULT
        })
    });
    if stored.is_err() {
        let _ = descriptors.lock(irq).close(reader, irq);
    }
    stored
}
