//! From start to burial: PIDs, fork, exit, wait, kill.

use core::fmt;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use entry_core::{IrqOff, TrapFrame};

use super::descriptor::Descriptors;
use super::name::Name;
use super::segments::Selectors;
use super::signal::Signal;
use super::{FaultExit, IDLE, MAX_PROCESSES, PROCESSES, Process, current, scheduler, switch};
use crate::device::exit::{Outcome, finish};
use crate::entry::variant::Variant;
use crate::entry::{self, PerCpu};
use crate::lock::IrqLock;
use crate::memory::{self, AddressSpace, KernelStack, OutOfMemory};
use crate::syscall::Errno;

/// PID of the first process, which nobody else gets. The machine stops when it ends.
pub const INIT: u32 = 1;

static REGISTRY: IrqLock<Registry> = IrqLock::new(Registry {
    last_pid: INIT,
    states: [State::Free; MAX_PROCESSES],
});

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

impl Registry {
    /// Takes a free slot, with the next PID that belongs to one.
    fn take_pid(&mut self) -> Option<u32> {
        /// The last PID before they start again.
        const LAST_PID: u32 = 32_767;
        for _ in 0..MAX_PROCESSES {
            self.last_pid = if self.last_pid == LAST_PID {
                INIT + 1
            } else {
                self.last_pid + 1
            };
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

/// A slot with a kernel stack, to be filled or given back.
struct Vacancy {
    pid: u32,
    process: &'static Process,
    stack: KernelStack,
}

impl Vacancy {
    fn take(irq: &IrqOff) -> Result<Self, Errno> {
        let pid = REGISTRY.lock(irq).take_pid().ok_or(Errno::EAGAIN)?;
        Self::with_stack(pid, irq)
    }

    /// The slot of the first process.
    fn take_first(irq: &IrqOff) -> Result<Self, Errno> {
        let old = core::mem::replace(&mut REGISTRY.lock(irq).states[slot_of(INIT)], State::Alive);
        if old != State::Free {
            REGISTRY.lock(irq).states[slot_of(INIT)] = old;
            return Err(Errno::EAGAIN);
        }
        Self::with_stack(INIT, irq)
    }

    /// Adds the stack to a slot that was taken.
    fn with_stack(pid: u32, irq: &IrqOff) -> Result<Self, Errno> {
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
    fn fill(
        self,
        parent: &Process,
        name: Name,
        space: AddressSpace,
        descriptors: Descriptors,
        frame: &TrapFrame,
        irq: &IrqOff,
    ) {
        let Self { pid, process, stack } = self;
        let top = stack.top();
        // SAFETY: the stack is new, and 16 KiB long.
        let rsp = unsafe { switch::prepare_first_switch(top, frame) };
        let context = &process.context;
        context.rsp.store(rsp, Ordering::Relaxed);
        context.cr3.store(space.cr3(), Ordering::Relaxed);
        context.stack_top.store(top, Ordering::Relaxed);
        let is_32_bit = frame.cs() == entry::code32();
        // A child's are those of the parent, which runs; nobody's are null.
        let selectors = if is_32_bit && core::ptr::eq(parent, &raw const IDLE) {
            Selectors::of_32_bit_code()
        } else {
            Selectors::loaded()
        };
        let (has_fs, has_gs) = selectors.have_bases();
        let base = |has_own, of_parent| if has_own { 0 } else { of_parent };
        context.selectors.set(selectors);
        context
            .fs_base
            .store(base(has_fs, parent.context.fs_base()), Ordering::Relaxed);
        context
            .gs_base
            .store(base(has_gs, parent.context.gs_base()), Ordering::Relaxed);
        let inherited = parent.context.variant();
        let variant = if is_32_bit && !inherited.allows_32_bit_code() {
            Variant::Code32
        } else {
            inherited
        };
        context.store_syscall_entry(entry::variant::entry_of(variant));
        context.set_variant(variant);
        *process.space.lock(irq) = Some(space);
        *process.descriptors.lock(irq) = descriptors;
        *process.stack.lock(irq) = Some(stack);
        *process.name.lock(irq) = name;
        process.fatal_signal.store(0, Ordering::Relaxed);
        process.set_fault_exit(FaultExit::Iret);
        process.set_skips_invalid_opcode(false);
        process.parent.store(parent.pid(), Ordering::Relaxed);
        process.pid.store(pid, Ordering::Relaxed);
        scheduler::wake(process, irq);
    }
}

/// Makes a process without a parent that starts with `frame` in `space`, with the console as its descriptors 0 to 2;
/// returns its PID.
///
/// # Errors
///
/// [`Errno::EAGAIN`] if the process table is full, [`Errno::ENOMEM`] if memory is.
pub fn start(name: &str, space: AddressSpace, frame: &TrapFrame, irq: &IrqOff) -> Result<u32, Errno> {
    let vacancy = Vacancy::take(irq)?;
    let pid = vacancy.pid;
    vacancy.fill(&IDLE, Name::new(name), space, Descriptors::console(), frame, irq);
    Ok(pid)
}

/// Makes the first process, as [`start`] makes others.
///
/// # Errors
///
/// As [`start`]; [`Errno::EAGAIN`] if there is one.
pub(super) fn start_first(name: &str, space: AddressSpace, frame: &TrapFrame, irq: &IrqOff) -> Result<(), Errno> {
    let vacancy = Vacancy::take_first(irq)?;
    vacancy.fill(&IDLE, Name::new(name), space, Descriptors::console(), frame, irq);
    Ok(())
}

/// Makes a copy of the current process, which leaves the kernel with `frame` and result 0; returns its PID.
///
/// # Errors
///
/// [`Errno::EAGAIN`] if the process table is full, [`Errno::ENOMEM`] if memory is.
pub fn fork(frame: &TrapFrame, irq: &IrqOff) -> Result<u32, Errno> {
    let parent = current();
    parent.context.refresh_bases(PerCpu::current(irq));
    let vacancy = Vacancy::take(irq)?;
    let pid = vacancy.pid;
    let copy = parent
        .space
        .lock(irq)
        .as_ref()
        .ok_or(OutOfMemory)
        .and_then(AddressSpace::fork);
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
    for child in PROCESSES
        .iter()
        .filter(|child| child.pid() != 0 && child.parent() == process.pid())
    {
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
    if !matches!(
        registry.states[usize::from(process.slot)],
        State::Zombie(_) | State::Free
    ) {
        process.raise(signal, irq);
    }
}
