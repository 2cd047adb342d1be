//! Processes: a table of fixed size, and what happens to its entries from fork to wait.
//!
//! A process has a slot in the table for as long as its PID is in use; the slot is `PID % MAX_PROCESSES`, so finding
//! one takes no search. Slot 0 belongs to the idle thread. Fields that others may look at are atomics; what belongs to
//! the process is behind [`IrqLock`]s of its own; the life cycle (who is free, alive, or a zombie) is behind the one
//! lock of the registry.
//!
//! | room | what is in it |
//! |---|---|
//! | `life` | start, fork, exit, wait, kill |
//! | `init` | the first process, and the idle thread that runs it |
//! | [`scheduler`], `switch` | who runs next; the switch to it |
//! | `context` | what a switch loads |
//! | `segments` | segment registers that only a program has a use for |
//! | [`descriptor`], [`pipe`] | what a process can read and write |
//! | [`signal`] | what ends a process |

mod context;
pub mod descriptor;
mod init;
mod life;
mod name;
pub mod pipe;
pub mod scheduler;
pub(crate) mod segments;
pub mod signal;
mod switch;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use entry_core::{IrqGuard, IrqOff};
use entry_sysret::Rules;
use entry_sysret::landing::LandingPage;

pub use self::context::Context;
use self::descriptor::Descriptors;
pub use self::init::{SpawnError, run, spawn_init, wait_for_interrupt};
pub use self::life::{Children, INIT, Target, WaitStatus, exit, fork, kill, start, wait};
use self::name::Name;
use self::signal::Signal;
use crate::entry::{PerCpu, UserRules};
use crate::lock::IrqLock;
use crate::memory::{AddressSpace, KernelStack};

/// Slots of the table. A slot set is one word, so this is its number of bits.
pub const MAX_PROCESSES: usize = 64;

/// An entry of the process table.
#[derive(Debug)]
pub struct Process {
    slot: u8,
    /// 0 when the slot is free.
    pid: AtomicU32,
    parent: AtomicU32,
    /// Number of the signal that is to end the process, or 0. Signals that are ignored are never recorded.
    fatal_signal: AtomicU32,
    /// How page faults are left: an experiment that the program asks for. See [`FaultExit::bits`].
    fault_exit: AtomicU64,
    /// Whether an invalid opcode is skipped, for timing exceptions.
    skips_invalid_opcode: AtomicBool,
    context: Context,
    space: IrqLock<Option<AddressSpace>>,
    descriptors: IrqLock<Descriptors>,
    stack: IrqLock<Option<KernelStack>>,
    name: IrqLock<Name>,
}

/// How the page faults of a process are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultExit {
    /// By IRET.
    Iret,
    /// By SYSRET, with RCX and R11 lost.
    Dead,
    /// By SYSRET through a landing page of the program, where it suits the frame.
    Landing(LandingPage),
}

impl FaultExit {
    /// 0, 1, or the address of the landing page.
    const fn bits(self) -> u64 {
        match self {
            Self::Iret => 0,
            Self::Dead => 1,
            Self::Landing(page) => page.address(),
        }
    }

    /// The inverse of [`FaultExit::bits`]; another number is IRET.
    #[inline(always)]
    const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Self::Iret,
            1 => Self::Dead,
            address => match LandingPage::new(address, &UserRules::RULES) {
                Ok(page) => Self::Landing(page),
                Err(_) => Self::Iret,
            },
        }
    }
}

/// The idle thread: what the boot CPU does when no process can run.
static IDLE: Process = Process::new(0);

static PROCESSES: [Process; MAX_PROCESSES] = {
    let mut table = [const { Process::new(0) }; MAX_PROCESSES];
    let mut slot = 0;
    while slot < MAX_PROCESSES {
        #[expect(clippy::cast_possible_truncation, reason = "there are 64 slots")]
        let number = slot as u8;
        table[slot].slot = number;
        slot += 1;
    }
    table
};

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
            fault_exit: AtomicU64::new(FaultExit::Iret.bits()),
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

    /// Whether this is the idle thread.
    pub(crate) fn is_idle(&self) -> bool {
        core::ptr::eq(self, &raw const IDLE)
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
        u8::try_from(self.fatal_signal.load(Ordering::Relaxed))
            .ok()
            .and_then(Signal::new)
    }

    /// How page faults are left.
    #[inline(always)]
    #[must_use]
    pub fn fault_exit(&self) -> FaultExit {
        FaultExit::from_bits(self.fault_exit.load(Ordering::Relaxed))
    }

    /// Sets [`Process::fault_exit`].
    pub fn set_fault_exit(&self, exit: FaultExit) {
        self.fault_exit.store(exit.bits(), Ordering::Relaxed);
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
        let _ = self
            .fatal_signal
            .compare_exchange(0, u32::from(signal.number()), Ordering::Relaxed, Ordering::Relaxed);
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
        let name = {
            // SAFETY: 1. it is dropped at once.
            let irq = unsafe { IrqGuard::new() };
            *self.name.lock(irq.irq_off())
        };
        write!(f, "pid {} {name}", self.pid())
    }
}
