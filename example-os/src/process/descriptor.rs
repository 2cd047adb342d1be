//! File descriptors: what a small number means to one process.

use entry_core::IrqOff;

use super::pipe::{End, PipeId};
use crate::syscall::Errno;

/// Descriptors that a process can have open.
pub const MAX_DESCRIPTORS: usize = 64;

/// What a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// The serial console. Reading it finds the end of the file at once.
    Console,
    /// One end of a pipe.
    Pipe(PipeId, End),
}

/// The descriptor table of one process.
#[derive(Debug)]
pub struct Descriptors {
    files: [Option<File>; MAX_DESCRIPTORS],
}

impl Descriptors {
    /// No descriptor open.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            files: [None; MAX_DESCRIPTORS],
        }
    }

    /// Descriptors 0, 1 and 2 on the console.
    #[must_use]
    pub fn console() -> Self {
        let mut files = [None; MAX_DESCRIPTORS];
        files[..3].fill(Some(File::Console));
        Self { files }
    }

    /// What `descriptor` refers to.
    ///
    /// # Errors
    ///
    /// [`Errno::EBADF`] if it is not open.
    #[inline(always)]
    pub fn get(&self, descriptor: u32) -> Result<File, Errno> {
        self.files
            .get(descriptor as usize)
            .copied()
            .flatten()
            .ok_or(Errno::EBADF)
    }

    /// Takes the lowest free descriptor.
    ///
    /// # Errors
    ///
    /// [`Errno::EMFILE`] if all are open.
    pub fn open(&mut self, file: File) -> Result<u32, Errno> {
        let (descriptor, entry) = (0..)
            .zip(&mut self.files)
            .find(|(_, entry)| entry.is_none())
            .ok_or(Errno::EMFILE)?;
        *entry = Some(file);
        Ok(descriptor)
    }

    /// Closes `descriptor`, and the pipe end with it when this was its last descriptor.
    ///
    /// # Errors
    ///
    /// [`Errno::EBADF`] if it is not open.
    pub fn close(&mut self, descriptor: u32, irq: &IrqOff) -> Result<(), Errno> {
        let file = self
            .files
            .get_mut(descriptor as usize)
            .and_then(Option::take)
            .ok_or(Errno::EBADF)?;
        if let File::Pipe(pipe, end) = file {
            pipe.release(end, irq);
        }
        Ok(())
    }

    /// Closes all.
    pub fn close_all(&mut self, irq: &IrqOff) {
        for entry in &mut self.files {
            if let Some(File::Pipe(pipe, end)) = entry.take() {
                pipe.release(end, irq);
            }
        }
    }

    /// The same descriptors for a fork child.
    #[must_use]
    pub fn duplicate(&self, irq: &IrqOff) -> Self {
        for file in self.files.iter().flatten() {
            if let File::Pipe(pipe, end) = file {
                pipe.retain(*end, irq);
            }
        }
        Self { files: self.files }
    }
}
