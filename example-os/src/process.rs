//! Processes: a table of fixed size, and what happens to its entries from fork to wait.
//!
//! A process has a slot in the table for as long as its PID is in use; the slot is `PID % MAX_PROCESSES`, so finding
//! one takes no search. Slot 0 belongs to the idle thread. Fields that others may look at are atomics; what belongs to
//! the process is behind [`IrqLock`]s of its own; the life cycle (who is free, alive, or a zombie) is behind the one
//! lock of the registry.

pub mod descriptor;
pub mod lock;
pub mod pipe;
pub mod scheduler;
pub mod signal;
mod switch;

use core::fmt;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use entry_core::{IrqOff, TrapFrame};

use self::descriptor::Descriptors;
use self::lock::IrqLock;
use self::signal::Signal;
use crate::archive::{Archive, ArchiveError};
use crate::device::exit::{Outcome, finish};
use crate::entry::{self, PerCpu};
use crate::memory::kernel_stack::KernelStack;
use crate::memory::{self, AddressSpace, OutOfMemory};
use crate::syscall::Errno;
use crate::{elf, println};

/// Slots of the table. A slot set is one word, so this is its number of bits.
pub const MAX_PROCESSES: usize = 64;

/// PID of the first process. The machine stops when it ends.
pub const INIT: u32 = 1;

const MAX_NAME_BYTES: usize = 32;
const MAX_ARGUMENTS: usize = 16;

/// What a switch loads.
#[derive(Debug)]
pub struct Context {
    /// RSP where the process was switched out.
    rsp: AtomicU64,
    /// 0 for the idle thread, which has no address space.
    cr3: AtomicU64,
    /// End of the kernel stack.
    stack_top: AtomicU64,
    fs_base: AtomicU64,
    gs_base: AtomicU64,
    /// What IA32_LSTAR holds while the process runs: experiments replace it.
    syscall_entry: AtomicU64,
}

/// An entry of the process table.
#[derive(Debug)]
pub struct Process {
    slot: u8,
    /// 0 when the slot is free.
    pid: AtomicU32,
    parent: AtomicU32,
    /// Number of the signal that is to end the process, or 0. Signals that are ignored are never recorded.
    fatal_signal: AtomicU32,
    /// Whether page faults are left by SYSRET, with RCX and R11 lost: an experiment that the program asks for.
    loses_rcx_r11_in_faults: AtomicBool,
    /// Whether an invalid opcode is skipped, for timing exceptions.
    skips_invalid_opcode: AtomicBool,
    context: Context,
    space: IrqLock<Option<AddressSpace>>,
    descriptors: IrqLock<Descriptors>,
    stack: IrqLock<Option<KernelStack>>,
    name: IrqLock<Name>,
}

/// The idle thread: what the boot CPU does when no process can run.
static IDLE: Process = Process::new(0);

static PROCESSES: [Process; MAX_PROCESSES] = {
    let mut table = [const { Process::new(0) }; MAX_PROCESSES];
    let mut slot = 0;
    while slot < MAX_PROCESSES {
        table[slot].slot = slot as u8;
        slot += 1;
    }
    table
};

static REGISTRY: IrqLock<Registry> = IrqLock::new(Registry { last_pid: 0, states: [State::Free; MAX_PROCESSES] });

/// How a process ended, encoded as `wait4` reports it: a signal number in bits 6:0, or else an exit code in bits 15:8.
///
/// # Source
///
/// Linux `wait(2)`, *WIFEXITED, WIFSIGNALED*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitStatus(u32);

impl WaitStatus {
    /// The process called `exit`.
    #[must_use]
    pub const fn exited(code: u8) -> Self {
        Self((code as u32) << 8)
    }

    /// A signal ended the process.
    #[must_use]
    pub const fn killed(signal: Signal) -> Self {
        Self(signal.number() as u32)
    }

    /// The word that `wait4` stores.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for WaitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 & 0x7f {
            0 => write!(f, "exited with code {}", self.0 >> 8),
            signal => write!(f, "was killed by signal {signal}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Alive,
    /// Its parent waits for any child to end.
    Waiting,
    Zombie(WaitStatus),
}

struct Registry {
    last_pid: u32,
    states: [State; MAX_PROCESSES],
}

#[derive(Clone, Copy, Debug)]
struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    length: usize,
}

impl Name {
    const fn empty() -> Self {
        Self { bytes: [0; MAX_NAME_BYTES], length: 0 }
    }

    fn new(name: &str) -> Self {
        let mut bytes = [0; MAX_NAME_BYTES];
        let mut length = 0;
        for character in name.chars() {
            let end = length + character.len_utf8();
            let Some(space) = bytes.get_mut(length..end) else { break };
            character.encode_utf8(space);
            length = end;
        }
        Self { bytes, length }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.bytes.get(..self.length).and_then(|name| str::from_utf8(name).ok()).unwrap_or("?"))
    }
}

impl Context {
    const fn new() -> Self {
        Self {
            rsp: AtomicU64::new(0),
            cr3: AtomicU64::new(0),
            stack_top: AtomicU64::new(0),
            fs_base: AtomicU64::new(0),
            gs_base: AtomicU64::new(0),
            syscall_entry: AtomicU64::new(0),
        }
    }
}

impl Registry {
    /// Takes a free slot, with the next PID that belongs to one.
    fn take_pid(&mut self) -> Option<u32> {
        /// PIDs start again from 1 after this one, as on Linux.
        const LAST_PID: u32 = 32_767;
        for _ in 0..MAX_PROCESSES {
            self.last_pid = self.last_pid % LAST_PID + 1;
            let slot = slot_of(self.last_pid);
            if slot != 0 && self.states[slot] == State::Free {
                self.states[slot] = State::Alive;
                return Some(self.last_pid);
            }
        }
        None
    }

    /// Wakes a process that waits for its children.
    fn wake_waiting(&mut self, process: &Process, irq: &IrqOff) {
        let state = &mut self.states[usize::from(process.slot)];
        if *state == State::Waiting {
            *state = State::Alive;
            scheduler::wake(process, irq);
        }
    }
}

#[inline(always)]
const fn slot_of(pid: u32) -> usize {
    pid as usize % MAX_PROCESSES
}

/// The process with this PID, be it a zombie.
#[inline(always)]
fn find(pid: u32) -> Option<&'static Process> {
    let process = &PROCESSES[slot_of(pid)];
    (pid != 0 && process.pid.load(Ordering::Relaxed) == pid).then_some(process)
}

/// The process that runs on this CPU; the idle thread before there is one.
///
/// The answer stays true for the caller however often it is switched out, so it needs no proof.
#[inline(always)]
#[must_use]
pub fn current() -> &'static Process {
    PerCpu::current_process()
}

impl Process {
    const fn new(slot: u8) -> Self {
        Self {
            slot,
            pid: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            fatal_signal: AtomicU32::new(0),
            loses_rcx_r11_in_faults: AtomicBool::new(false),
            skips_invalid_opcode: AtomicBool::new(false),
            context: Context::new(),
            space: IrqLock::new(None),
            descriptors: IrqLock::new(Descriptors::empty()),
            stack: IrqLock::new(None),
            name: IrqLock::new(Name::empty()),
        }
    }

    /// The idle thread of the boot CPU, for the per-CPU structure to begin with.
    #[must_use]
    pub const fn idle() -> &'static Self {
        &IDLE
    }

    /// The process identifier.
    #[inline(always)]
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The parent's process identifier; 0 for the first process.
    #[inline(always)]
    #[must_use]
    pub fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// The descriptor table.
    #[inline(always)]
    #[must_use]
    pub const fn descriptors(&self) -> &IrqLock<Descriptors> {
        &self.descriptors
    }

    /// The address space; `None` once the process has ended, and for the idle thread.
    #[inline(always)]
    #[must_use]
    pub const fn space(&self) -> &IrqLock<Option<AddressSpace>> {
        &self.space
    }

    /// Whether a signal is to end the process before it next returns to user mode.
    #[inline(always)]
    #[must_use]
    pub fn has_pending_signal(&self) -> bool {
        self.fatal_signal.load(Ordering::Relaxed) != 0
    }

    /// The signal that [`Process::has_pending_signal`] is about.
    #[must_use]
    pub fn pending_signal(&self) -> Option<Signal> {
        u8::try_from(self.fatal_signal.load(Ordering::Relaxed)).ok().and_then(Signal::new)
    }

    /// Whether page faults are left by SYSRET, with RCX and R11 lost.
    #[inline(always)]
    #[must_use]
    pub fn loses_rcx_r11_in_faults(&self) -> bool {
        self.loses_rcx_r11_in_faults.load(Ordering::Relaxed)
    }

    /// Sets [`Process::loses_rcx_r11_in_faults`].
    pub fn set_loses_rcx_r11_in_faults(&self, loses: bool) {
        self.loses_rcx_r11_in_faults.store(loses, Ordering::Relaxed);
    }

    /// Whether an invalid opcode is skipped rather than fatal.
    #[inline(always)]
    #[must_use]
    pub fn skips_invalid_opcode(&self) -> bool {
        self.skips_invalid_opcode.load(Ordering::Relaxed)
    }

    /// Sets [`Process::skips_invalid_opcode`].
    pub fn set_skips_invalid_opcode(&self, skips: bool) {
        self.skips_invalid_opcode.store(skips, Ordering::Relaxed);
    }

    /// What a switch to the process loads.
    #[inline(always)]
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Raises a signal that is not ignored in a process that is alive.
    ///
    /// The first process gets none, as on Linux, where it has to ask for a signal by a handler.
    pub fn raise(&self, signal: Signal, irq: &IrqOff) {
        if signal.is_ignored_by_default() || self.pid() == INIT {
            return;
        }
        // The first one stays: it is what ends the process.
        let _ = self.fatal_signal.compare_exchange(
            0,
            u32::from(signal.number()),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        let cpu = PerCpu::current(irq);
        if core::ptr::eq(cpu.process(), self) {
            cpu.set_work_pending();
        } else {
            // It finds the signal when it is switched to; if it waits for something, the wait ends.
            scheduler::wake(self, irq);
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let irq = entry_core::IrqGuard::new();
        let name = *self.name.lock(irq.irq_off());
        write!(f, "pid {} {name}", self.pid())
    }
}

impl Context {
    /// FS base while the process runs.
    #[inline(always)]
    #[must_use]
    pub fn fs_base(&self) -> u64 {
        self.fs_base.load(Ordering::Relaxed)
    }

    /// The user's GS base while the process runs.
    #[inline(always)]
    #[must_use]
    pub fn gs_base(&self) -> u64 {
        self.gs_base.load(Ordering::Relaxed)
    }

    /// Sets FS base, of the current process at once.
    ///
    /// # Errors
    ///
    /// [`Errno::EPERM`], as on Linux, if the address is not one of user space.
    pub fn set_fs_base(&self, address: u64, irq: &IrqOff) -> Result<(), Errno> {
        if address >= memory::USER_LIMIT {
            return Err(Errno::EPERM);
        }
        self.fs_base.store(address, Ordering::Relaxed);
        PerCpu::current(irq).load_fs_base(address);
        Ok(())
    }

    /// Sets the user's GS base, of the current process at once.
    ///
    /// # Errors
    ///
    /// As [`Context::set_fs_base`].
    pub fn set_gs_base(&self, address: u64, irq: &IrqOff) -> Result<(), Errno> {
        if address >= memory::USER_LIMIT {
            return Err(Errno::EPERM);
        }
        self.gs_base.store(address, Ordering::Relaxed);
        PerCpu::current(irq).load_user_gs_base(address);
        Ok(())
    }

    /// Sets the system-call entry of the current process.
    pub fn set_syscall_entry(&self, entry: entry::SyscallEntry, irq: &IrqOff) {
        self.syscall_entry.store(entry.address(), Ordering::Relaxed);
        PerCpu::current(irq).load_syscall_entry(entry.address());
    }
}

/// A slot with a kernel stack, to be filled or given back.
struct Vacancy {
    pid: u32,
    process: &'static Process,
    stack: KernelStack,
}

impl Vacancy {
    fn take(irq: &IrqOff) -> Result<Self, Errno> {
        let pid = REGISTRY.lock(irq).take_pid().ok_or(Errno::EAGAIN)?;
        let process = &PROCESSES[slot_of(pid)];
        match KernelStack::new() {
            Ok(stack) => Ok(Self { pid, process, stack }),
            Err(OutOfMemory) => {
                REGISTRY.lock(irq).states[usize::from(process.slot)] = State::Free;
                Err(Errno::ENOMEM)
            }
        }
    }

    fn give_back(self, irq: &IrqOff) {
        REGISTRY.lock(irq).states[usize::from(self.process.slot)] = State::Free;
    }

    /// Makes it a process that will start with `frame`, by IRET, and lets it run.
    fn fill(self, parent: &Process, name: Name, space: AddressSpace, descriptors: Descriptors, frame: &TrapFrame, irq: &IrqOff) {
        let Self { pid, process, stack } = self;
        let top = stack.top();
        // SAFETY: the stack is new, and 16 KiB long.
        let rsp = unsafe { switch::prepare_first_switch(top, frame, entry::first_return()) };
        let context = &process.context;
        context.rsp.store(rsp, Ordering::Relaxed);
        context.cr3.store(space.cr3(), Ordering::Relaxed);
        context.stack_top.store(top, Ordering::Relaxed);
        context.fs_base.store(parent.context.fs_base(), Ordering::Relaxed);
        context.gs_base.store(parent.context.gs_base(), Ordering::Relaxed);
        context.syscall_entry.store(entry::SyscallEntry::normal().address(), Ordering::Relaxed);
        *process.space.lock(irq) = Some(space);
        *process.descriptors.lock(irq) = descriptors;
        *process.stack.lock(irq) = Some(stack);
        *process.name.lock(irq) = name;
        process.fatal_signal.store(0, Ordering::Relaxed);
        process.set_loses_rcx_r11_in_faults(false);
        process.set_skips_invalid_opcode(false);
        process.parent.store(parent.pid(), Ordering::Relaxed);
        process.pid.store(pid, Ordering::Relaxed);
        scheduler::wake(process, irq);
    }
}

/// Makes a copy of the current process, which leaves the kernel with `frame` and result 0; returns its PID.
///
/// # Errors
///
/// [`Errno::EAGAIN`] if the process table is full, [`Errno::ENOMEM`] if memory is.
pub fn fork(frame: &TrapFrame, irq: &IrqOff) -> Result<u32, Errno> {
    let parent = current();
    let vacancy = Vacancy::take(irq)?;
    let pid = vacancy.pid;
    let copy = parent.space.lock(irq).as_ref().ok_or(OutOfMemory).and_then(AddressSpace::fork);
    let space = match copy {
        Ok(space) => space,
        Err(OutOfMemory) => {
            vacancy.give_back(irq);
            return Err(Errno::ENOMEM);
        }
    };
    let mut frame = frame.clone();
    frame.set_return_value(0);
    frame.mark_built();
    let name = *parent.name.lock(irq);
    let descriptors = parent.descriptors.lock(irq).duplicate(irq);
    vacancy.fill(parent, name, space, descriptors, &frame, irq);
    Ok(pid)
}

/// Ends the current process. When it is the first one, the machine stops.
pub fn exit(status: WaitStatus, mut irq: IrqOff) -> ! {
    let process = current();
    if process.pid() == INIT {
        if status == WaitStatus::exited(0) {
            finish(Outcome::Success);
        }
        finish(Outcome::InitFailed(format_args!("{process} {status}")));
    }
    process.descriptors.lock(&irq).close_all(&irq);
    let cpu = PerCpu::current(&irq);
    // SAFETY: the kernel's own tables map all that the kernel uses; user memory is not touched any more.
    unsafe { cpu.load_cr3(memory::kernel_cr3()) };
    process.context.cr3.store(0, Ordering::Relaxed);
    drop(process.space.lock(&irq).take());
    bury(process, status, &irq);
    scheduler::schedule(&mut irq);
    unreachable!("a process ran after its end");
}

/// Hands the children of a process that ends to the first process, and the process itself to its parent.
fn bury(process: &Process, status: WaitStatus, irq: &IrqOff) {
    let mut registry = REGISTRY.lock(irq);
    scheduler::remove(process, irq);
    for child in PROCESSES.iter().filter(|child| child.pid() != 0 && child.parent() == process.pid()) {
        child.parent.store(INIT, Ordering::Relaxed);
        if let (State::Zombie(_), Some(init)) = (registry.states[usize::from(child.slot)], find(INIT)) {
            registry.wake_waiting(init, irq);
        }
    }
    registry.states[usize::from(process.slot)] = State::Zombie(status);
    if let Some(parent) = find(process.parent()) {
        registry.wake_waiting(parent, irq);
    }
}

/// Which children [`wait`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Any.
    Any,
    /// The one with this PID.
    One(u32),
}

/// Waits for a child to end, and gives its slot free. `None` if none has ended and `is_patient` is false.
///
/// # Errors
///
/// [`Errno::ECHILD`] if there is no such child, [`Errno::EINTR`] if the process is to end.
pub fn wait(children: Children, is_patient: bool, irq: &mut IrqOff) -> Result<Option<(u32, WaitStatus)>, Errno> {
    loop {
        match try_wait(children, is_patient, irq)? {
            ControlFlow::Break(found) => return Ok(found),
            ControlFlow::Continue(()) => scheduler::schedule(irq),
        }
    }
}

fn try_wait(
    children: Children,
    is_patient: bool,
    irq: &IrqOff,
) -> Result<ControlFlow<Option<(u32, WaitStatus)>>, Errno> {
    let process = current();
    let mut registry = REGISTRY.lock(irq);
    let is_wanted = |child: &Process| {
        child.pid() != 0
            && child.parent() == process.pid()
            && (children == Children::Any || children == Children::One(child.pid()))
    };
    let mut has_child = false;
    for child in PROCESSES.iter().filter(|child| is_wanted(child)) {
        has_child = true;
        let state = &mut registry.states[usize::from(child.slot)];
        if let State::Zombie(status) = *state {
            *state = State::Free;
            drop(child.stack.lock(irq).take());
            child.parent.store(0, Ordering::Relaxed);
            return Ok(ControlFlow::Break(Some((child.pid.swap(0, Ordering::Relaxed), status))));
        }
    }
    if !has_child {
        return Err(Errno::ECHILD);
    }
    if !is_patient {
        return Ok(ControlFlow::Break(None));
    }
    scheduler::stop(process, irq)?;
    registry.states[usize::from(process.slot)] = State::Waiting;
    Ok(ControlFlow::Continue(()))
}

/// Whom [`kill`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The process with this PID.
    One(u32),
    /// Every process: there is one process group.
    Group,
    /// Every process but the first one and the caller.
    Others,
}

/// Sends a signal; `None` only asks whether there is somebody to send it to.
///
/// # Errors
///
/// [`Errno::ESRCH`] if there is nobody.
#[inline(always)]
pub fn kill(target: Target, signal: Option<Signal>, irq: &IrqOff) -> Result<(), Errno> {
    if let Target::One(pid) = target {
        let process = find(pid).ok_or(Errno::ESRCH)?;
        match signal {
            Some(signal) if !signal.is_ignored_by_default() => send(process, signal, irq),
            _ => {}
        }
        return Ok(());
    }
    kill_many(target, signal, irq)
}

#[cold]
#[inline(never)]
fn kill_many(target: Target, signal: Option<Signal>, irq: &IrqOff) -> Result<(), Errno> {
    let caller = current().pid();
    let mut is_anybody = false;
    for process in &PROCESSES {
        let pid = process.pid();
        if pid != 0 && (target == Target::Group || (pid != INIT && pid != caller)) {
            is_anybody = true;
            if let Some(signal) = signal {
                send(process, signal, irq);
            }
        }
    }
    if is_anybody { Ok(()) } else { Err(Errno::ESRCH) }
}

/// Raises a signal unless the process is a zombie.
#[cold]
#[inline(never)]
fn send(process: &Process, signal: Signal, irq: &IrqOff) {
    let registry = REGISTRY.lock(irq);
    if !matches!(registry.states[usize::from(process.slot)], State::Zombie(_) | State::Free) {
        process.raise(signal, irq);
    }
}

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
    /// The first stack could not be made.
    Stack(elf::StackError),
    /// No memory, or no slot in the process table.
    Process(Errno),
}

impl fmt::Display for SpawnError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive(error) => write!(f, "boot archive: {error}"),
            Self::NotFound(path) => write!(f, "{path} is not in the boot archive"),
            Self::TooManyArguments(count) => write!(f, "{count} arguments, at most {MAX_ARGUMENTS} are passed on"),
            Self::Load(path, error) => write!(f, "{path}: {error}"),
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
    let name = options.split_whitespace().find_map(|option| option.strip_prefix("init=")).unwrap_or("init");
    let name = name.strip_prefix("bin/").unwrap_or(name);
    let mut path = [0; MAX_NAME_BYTES + 4];
    let file = join_path(&mut path, name).and_then(|path| archive.find(path).transpose());
    let file = file.ok_or(SpawnError::NotFound(name))?.map_err(SpawnError::Archive)?;

    let mut vector = [name.as_bytes(); MAX_ARGUMENTS];
    let count = 1 + arguments.split_whitespace().count();
    if count > MAX_ARGUMENTS {
        return Err(SpawnError::TooManyArguments(count - 1));
    }
    for (entry, argument) in vector.iter_mut().skip(1).zip(arguments.split_whitespace()) {
        *entry = argument.as_bytes();
    }
    spawn(name, file, &vector[..count])
}

/// Makes a process without a parent that runs an ELF file.
///
/// # Errors
///
/// [`SpawnError`] says which step failed.
pub fn spawn<'a>(name: &'a str, file: &[u8], arguments: &[&[u8]]) -> Result<(), SpawnError<'a>> {
    let mut space = AddressSpace::new().map_err(|OutOfMemory| SpawnError::Process(Errno::ENOMEM))?;
    let image = elf::load(&mut space, file).map_err(|error| SpawnError::Load(name, error))?;
    let rsp = elf::build_stack(&mut space, &image, arguments, &[]).map_err(SpawnError::Stack)?;
    let frame = entry::first_frame(image.entry, rsp);
    let guard = entry_core::IrqGuard::new();
    let irq = guard.irq_off();
    let vacancy = Vacancy::take(irq).map_err(SpawnError::Process)?;
    vacancy.fill(&IDLE, Name::new(name), space, Descriptors::console(), &frame, irq);
    Ok(())
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
        let start = PerCpu::current(&irq).ticks();
        while !scheduler::has_runnable(&irq) {
            if PerCpu::current(&irq).ticks() - start >= PATIENCE_TICKS {
                finish(Outcome::InitFailed(format_args!("all processes wait for each other")));
            }
            irq = scheduler::wait_for_interrupt(irq);
        }
    }
}
