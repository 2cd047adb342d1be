//! Pipes: a ring of bytes between descriptors, with processes waiting at either end.
//!
//! Who waits is a set of process slots, one bit each, so that waiting needs no memory. A waiter that is woken looks
//! again: another one may have been faster.

use core::ops::ControlFlow;

use entry_core::IrqOff;

use super::scheduler::{self, SlotSet};
use super::signal::Signal;
use super::{Process, current};
use crate::lock::IrqLock;
use crate::memory::user;
use crate::syscall::Errno;

/// Bytes that a pipe holds. A write of at most this many bytes is atomic, as POSIX demands of `PIPE_BUF` bytes.
pub const CAPACITY: usize = 4096;

const MAX_PIPES: usize = 32;

/// Which side of a pipe a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The side that `read` takes bytes from.
    Reader,
    /// The side that `write` puts bytes into.
    Writer,
}

/// A pipe that some descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeId(u8);

struct Pipe {
    /// Descriptors of either end; the pipe is free when both are 0.
    readers: u32,
    writers: u32,
    /// Bytes ever taken out and put in; their difference is at most `CAPACITY`.
    taken: usize,
    put: usize,
    waiting_readers: SlotSet,
    waiting_writers: SlotSet,
    ring: [u8; CAPACITY],
}

static PIPES: [IrqLock<Pipe>; MAX_PIPES] = [const { IrqLock::new(Pipe::new()) }; MAX_PIPES];

impl Pipe {
    const fn new() -> Self {
        Self {
            readers: 0,
            writers: 0,
            taken: 0,
            put: 0,
            waiting_readers: SlotSet::EMPTY,
            waiting_writers: SlotSet::EMPTY,
            ring: [0; CAPACITY],
        }
    }

    const fn filled(&self) -> usize {
        self.put.wrapping_sub(self.taken)
    }

    /// Takes bytes out to user memory until there are no more or `length` is reached.
    #[inline(always)]
    fn take(&mut self, destination: u64, length: usize) -> Result<usize, Errno> {
        let mut done = 0;
        while done < length && self.filled() > 0 {
            let start = self.taken % CAPACITY;
            let step = (length - done).min(self.filled()).min(CAPACITY - start);
            let bytes = self.ring.get(start..start + step).ok_or(Errno::EFAULT)?;
            if user::copy_to_user(destination.wrapping_add(done as u64), bytes).is_err() {
                return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
            }
            self.taken = self.taken.wrapping_add(step);
            done += step;
        }
        Ok(done)
    }

    /// Puts bytes from user memory in until it is full or `length` is reached.
    #[inline(always)]
    fn put(&mut self, source: u64, length: usize) -> Result<usize, Errno> {
        let mut done = 0;
        while done < length && self.filled() < CAPACITY {
            let start = self.put % CAPACITY;
            let step = (length - done).min(CAPACITY - self.filled()).min(CAPACITY - start);
            let space = self.ring.get_mut(start..start + step).ok_or(Errno::EFAULT)?;
            if user::copy_from_user(space, source.wrapping_add(done as u64)).is_err() {
                return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
            }
            self.put = self.put.wrapping_add(step);
            done += step;
        }
        Ok(done)
    }
}

impl PipeId {
    /// Makes a pipe with one descriptor at each end.
    ///
    /// # Errors
    ///
    /// [`Errno::ENFILE`] if all pipes are in use.
    pub fn create(irq: &IrqOff) -> Result<Self, Errno> {
        for (id, pipe) in (0..).map(PipeId).zip(&PIPES) {
            let mut pipe = pipe.lock(irq);
            if pipe.readers == 0 && pipe.writers == 0 {
                pipe.readers = 1;
                pipe.writers = 1;
                pipe.taken = 0;
                pipe.put = 0;
                return Ok(id);
            }
        }
        Err(Errno::ENFILE)
    }

    #[inline(always)]
    fn pipe(self) -> &'static IrqLock<Pipe> {
        // The index is in range, since `create` made it; the remainder says so to the compiler.
        &PIPES[usize::from(self.0) % MAX_PIPES]
    }

    /// Counts one more descriptor of `end`.
    pub fn retain(self, end: End, irq: &IrqOff) {
        let mut pipe = self.pipe().lock(irq);
        match end {
            End::Reader => pipe.readers += 1,
            End::Writer => pipe.writers += 1,
        }
    }

    /// Counts one descriptor of `end` less. When it was the last, those who wait at the other end are woken: a reader
    /// sees the end of the file, a writer SIGPIPE.
    pub fn release(self, end: End, irq: &IrqOff) {
        let mut pipe = self.pipe().lock(irq);
        match end {
            End::Reader => pipe.readers -= 1,
            End::Writer => pipe.writers -= 1,
        }
        if pipe.readers == 0 {
            scheduler::wake_all(&mut pipe.waiting_writers, irq);
        }
        if pipe.writers == 0 {
            scheduler::wake_all(&mut pipe.waiting_readers, irq);
        }
    }

    /// Takes up to `length` bytes out to user memory; waits while there is none and somebody may still write.
    ///
    /// # Errors
    ///
    /// [`Errno::EFAULT`] for a bad destination, [`Errno::EINTR`] if the process is to end.
    #[inline(always)]
    pub fn read(self, destination: u64, length: usize, irq: &mut IrqOff) -> Result<usize, Errno> {
        if length == 0 {
            return Ok(0);
        }
        loop {
            match self.try_read(destination, length, current(), irq)? {
                ControlFlow::Break(done) => return Ok(done),
                ControlFlow::Continue(()) => scheduler::schedule(irq),
            }
        }
    }

    #[inline(always)]
    fn try_read(
        self,
        destination: u64,
        length: usize,
        reader: &Process,
        irq: &IrqOff,
    ) -> Result<ControlFlow<usize>, Errno> {
        let mut pipe = self.pipe().lock(irq);
        let done = pipe.take(destination, length)?;
        if done > 0 {
            scheduler::wake_all(&mut pipe.waiting_writers, irq);
            return Ok(ControlFlow::Break(done));
        }
        if pipe.writers == 0 {
            return Ok(ControlFlow::Break(0));
        }
        scheduler::wait_in(&mut pipe.waiting_readers, reader, irq)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Puts `length` bytes from user memory in; waits while the pipe is full. Up to [`CAPACITY`] bytes go in all at once.
    ///
    /// # Errors
    ///
    /// [`Errno::EPIPE`] if nobody can read any more (SIGPIPE is raised too), [`Errno::EFAULT`] for a bad source,
    /// [`Errno::EINTR`] if the process is to end.
    #[inline(always)]
    pub fn write(self, source: u64, length: usize, irq: &mut IrqOff) -> Result<usize, Errno> {
        let mut done = 0;
        while done < length {
            let (source, length) = (source.wrapping_add(done as u64), length - done);
            match self.try_write(source, length, current(), irq) {
                Ok(ControlFlow::Break(step)) => done += step,
                Ok(ControlFlow::Continue(())) => scheduler::schedule(irq),
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    #[inline(always)]
    fn try_write(
        self,
        source: u64,
        length: usize,
        writer: &Process,
        irq: &IrqOff,
    ) -> Result<ControlFlow<usize>, Errno> {
        let mut pipe = self.pipe().lock(irq);
        if pipe.readers == 0 {
            writer.raise(Signal::SIGPIPE, irq);
            return Err(Errno::EPIPE);
        }
        let wanted = if length <= CAPACITY { length } else { 1 };
        if CAPACITY - pipe.filled() >= wanted {
            let done = pipe.put(source, length)?;
            scheduler::wake_all(&mut pipe.waiting_readers, irq);
            return Ok(ControlFlow::Break(done));
        }
        scheduler::wait_in(&mut pipe.waiting_writers, writer, irq)?;
        Ok(ControlFlow::Continue(()))
    }
}
