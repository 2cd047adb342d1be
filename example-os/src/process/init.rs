//! The first process, and the thread that the boot stack becomes.

use core::fmt;

use entry_core::{IrqGuard, IrqOff};

use super::life::start_first;
use super::name::MAX_NAME_BYTES;
use super::scheduler;
use crate::archive::{Archive, ArchiveError};
use crate::device::exit::{Outcome, finish};
use crate::entry::compat::{CallPageError, map_call_page};
use crate::entry::{self, PerCpu, variant};
use crate::memory::{AddressSpace, OutOfMemory};
use crate::syscall::Errno;
use crate::{elf, println};

/// Arguments that the first process can get besides its name.
const MAX_ARGUMENTS: usize = 32;

/// Why the first process could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpawnError<'a> {
    /// The boot archive is damaged.
    Archive(ArchiveError),
    /// The boot archive has no such file.
    NotFound(&'a str),
    /// More arguments than a first process gets.
    TooManyArguments(usize),
    /// The file is no program that can be run.
    Load(&'a str, elf::LoadError),
    /// The page could not be mapped by which 32-bit code enters the kernel.
    CallPage(CallPageError),
    /// The first stack could not be made.
    Stack(elf::StackError),
    /// No memory, or no slot in the process table.
    Process(Errno),
}

impl fmt::Display for SpawnError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive(error) => write!(f, "boot archive: {error}"),
            Self::NotFound(path) => write!(f, "the boot archive has no bin/{path}"),
            Self::TooManyArguments(count) => write!(f, "{count} arguments, at most {MAX_ARGUMENTS} are passed on"),
            Self::Load(path, error) => write!(f, "{path}: {error}"),
            Self::CallPage(error) => write!(f, "{error}"),
            Self::Stack(error) => write!(f, "first stack: {error}"),
            Self::Process(errno) => write!(f, "no process could be made: {errno}"),
        }
    }
}

/// Makes the first process, from the file that the command line names by `init=` in the boot archive. Everything after
/// ` -- ` are its arguments.
///
/// # Errors
///
/// [`SpawnError`] says which step failed.
pub fn spawn_init<'a>(command_line: &'a str, archive: &Archive) -> Result<(), SpawnError<'a>> {
    let (options, arguments) = command_line.split_once(" -- ").unwrap_or((command_line, ""));
    let name = options
        .split_whitespace()
        .find_map(|option| option.strip_prefix("init="))
        .unwrap_or("init");
    let name = name.strip_prefix("bin/").unwrap_or(name);
    let mut path = [0; MAX_NAME_BYTES + 4];
    let file = join_path(&mut path, name).and_then(|path| archive.find(path).transpose());
    let file = file.ok_or(SpawnError::NotFound(name))?.map_err(SpawnError::Archive)?;

    let mut vector = [name.as_bytes(); 1 + MAX_ARGUMENTS];
    let count = arguments.split_whitespace().count();
    if count > MAX_ARGUMENTS {
        return Err(SpawnError::TooManyArguments(count));
    }
    for (entry, argument) in vector.iter_mut().skip(1).zip(arguments.split_whitespace()) {
        *entry = argument.as_bytes();
    }
    start_file(name, file, &vector[..=count])
}

/// Loads an ELF file as the first process.
fn start_file<'a>(name: &'a str, file: &[u8], arguments: &[&[u8]]) -> Result<(), SpawnError<'a>> {
    let mut space = AddressSpace::new().map_err(|OutOfMemory| SpawnError::Process(Errno::ENOMEM))?;
    let image = elf::load(&mut space, file).map_err(|error| SpawnError::Load(name, error))?;
    if image.is_32_bit {
        map_call_page(&mut space).map_err(SpawnError::CallPage)?;
    }
    let rsp = elf::build_stack(&mut space, &image, arguments, &[]).map_err(SpawnError::Stack)?;
    let frame = if image.is_32_bit {
        entry::first_frame_32(image.entry, rsp)
    } else {
        entry::first_frame(image.entry, rsp)
    };
    // SAFETY: 1. it is dropped at the end, and `start_first` leaves IF alone.
    let guard = unsafe { IrqGuard::new() };
    start_first(name, space, &frame, guard.irq_off()).map_err(SpawnError::Process)
}

/// `bin/` and a name, put together in `buffer`; `None` if it does not fit.
fn join_path<'a>(buffer: &'a mut [u8], name: &str) -> Option<&'a str> {
    const FOLDER: &[u8] = b"bin/";
    let path = buffer.get_mut(..FOLDER.len() + name.len())?;
    let (folder, rest) = path.split_at_mut_checked(FOLDER.len())?;
    folder.copy_from_slice(FOLDER);
    rest.copy_from_slice(name.as_bytes());
    str::from_utf8(path).ok()
}

/// Sleeps until an interrupt has been handled, for the idle thread.
pub fn wait_for_interrupt(irq: IrqOff) -> IrqOff {
    variant::wait(irq, scheduler::wait_for_interrupt)
}

/// Becomes the idle thread of this CPU: runs processes, and sleeps when there is nothing to run.
///
/// Nothing but an interrupt can make a process runnable while this thread runs. The timer wakes nobody yet, so when
/// every process waits for another one they wait for ever; that ends the machine after a few ticks.
pub fn run(mut irq: IrqOff) -> ! {
    /// Timer interrupts that may pass with nothing to run.
    const PATIENCE_TICKS: u64 = 3;
    entry::start_timer(&irq);
    // SAFETY: RDTSC reads a counter.
    let tick = unsafe { core::arch::x86_64::_rdtsc() };
    println!("[user] first instruction at tick {tick}");
    loop {
        scheduler::schedule(&mut irq);
        // A program may have stopped it, and without it this CPU would sleep for ever.
        entry::start_timer(&irq);
        let start = PerCpu::current(&irq).ticks();
        while !scheduler::has_runnable(&irq) {
            if PerCpu::current(&irq).ticks() - start >= PATIENCE_TICKS {
                finish(Outcome::InitFailed(format_args!("all processes wait for each other")));
            }
            irq = wait_for_interrupt(irq);
        }
    }
}
