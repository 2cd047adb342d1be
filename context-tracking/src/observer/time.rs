//! Where the time of a CPU and of a process goes: user, system, idle, guest.
//!
//! At each change of state the time since the last one is added to the state that ended. The unit is one tick of the
//! clock that the kernel names; with [`tsc`] that is one tick of the time-stamp counter, and the kernel knows how many
//! make a second.
//!
//! - *System* is [`State::Kernel`]: system calls, and interrupts and exceptions of whatever they interrupted.
//! - NMI handlers count as what they interrupted.
//! - Totals are 64 bits and wrap. At 5 GHz that is after 116 years of one state on one CPU.
//! - The clock is read on one CPU only, so clocks that differ between CPUs do no harm. If it steps back, as after a
//!   resume or a write to the TSC, the interval counts as 0: a difference of 2⁶³ ticks or more is taken for a step back.
//! - RDTSC is not ordered with the instructions around it. An interval can be wrong by what the CPU has in flight, some
//!   hundred ticks at most; intervals share their end points, so the sum is right.
//!
//! # Source
//!
//! Intel SDM vol. 3B, *Time-Stamp Counter* and *Invariant TSC*; vol. 2B, *RDTSC—Read Time-Stamp Counter*; AMD APM vol. 3,
//! *RDTSC*.

use core::marker::PhantomData;

use entry_core::IrqOff;

use crate::guard::guard;
use crate::observer::Observer;
use crate::state::State;
use crate::sync::{AtomicU64, Ordering, fence};

/// Reads the time-stamp counter of this CPU. CR4.TSD restricts it for user mode alone.
#[must_use]
#[inline(always)]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC writes EDX:EAX and exists on every x86-64 CPU.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Time by state, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// In user programs.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// With nothing to do.
    pub idle: u64,
    /// In virtual machines.
    pub guest: u64,
}

impl Times {
    /// The difference to an earlier reading, which wraps where the totals have wrapped.
    ///
    /// ```
    /// use context_tracking::time::Times;
    /// let earlier = Times { user: u64::MAX, ..Times::default() };
    /// let now = Times { user: 4, system: 2, ..Times::default() };
    /// assert_eq!(now.since(earlier), Times { user: 5, system: 2, ..Times::default() });
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.wrapping_sub(earlier.user),
            system: self.system.wrapping_sub(earlier.system),
            idle: self.idle.wrapping_sub(earlier.idle),
            guest: self.guest.wrapping_sub(earlier.guest),
        }
    }

    /// The sum, which wraps.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            user: self.user.wrapping_add(other.user),
            system: self.system.wrapping_add(other.system),
            idle: self.idle.wrapping_add(other.idle),
            guest: self.guest.wrapping_add(other.guest),
        }
    }

    /// All of it: the time that passed.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.user
            .wrapping_add(self.system)
            .wrapping_add(self.idle)
            .wrapping_add(self.guest)
    }

    const fn of(&mut self, state: State) -> &mut u64 {
        match state {
            State::Kernel => &mut self.system,
            State::Idle => &mut self.idle,
            State::User => &mut self.user,
            State::Guest => &mut self.guest,
        }
    }
}

/// The ticks from one reading of the clock to the next; 0 if it stepped back.
const fn elapsed(since: u64, now: u64) -> u64 {
    let ticks = now.wrapping_sub(since);
    if guard!("clock-step-back", ticks >= 1 << 63) {
        0
    } else {
        ticks
    }
}

/// The account of one CPU: written by that CPU with interrupts off, read by any.
///
/// Readers never stop the writer: they look at a sequence number before and after, as in a seqlock.
#[derive(Debug, Default)]
pub struct TimeAccount {
    /// Odd while the rest is being written.
    sequence: AtomicU64,
    since: AtomicU64,
    state: AtomicU64,
    user: AtomicU64,
    system: AtomicU64,
    idle: AtomicU64,
    guest: AtomicU64,
}

impl TimeAccount {
    /// An account that has not started.
    #[cfg(not(all(loom, test)))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            since: AtomicU64::new(0),
            state: AtomicU64::new(0),
            user: AtomicU64::new(0),
            system: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            guest: AtomicU64::new(0),
        }
    }

    /// Starts to count at `now`, in the kernel.
    pub fn start(&self, _irq: &IrqOff, now: u64) {
        self.write(|| {
            self.since.store(now, Ordering::Relaxed);
            self.state.store(State::Kernel as u64, Ordering::Relaxed);
        });
    }

    /// Adds the time since the last change to `from`; what follows belongs to `to`.
    #[inline]
    pub fn change(&self, from: State, to: State, now: u64) {
        self.write(|| {
            let ticks = elapsed(self.since.load(Ordering::Relaxed), now);
            let total = match from {
                State::Kernel => &self.system,
                State::Idle => &self.idle,
                State::User => &self.user,
                State::Guest => &self.guest,
            };
            total.store(total.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
            self.state.store(to as u64, Ordering::Relaxed);
        });
    }

    /// Runs `write` with the sequence number odd. This CPU is the one writer, so nothing here is a read-modify-write;
    /// the fence keeps the odd number before what `write` stores, and the last store releases it.
    #[inline(always)]
    fn write(&self, write: impl FnOnce()) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        write();
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Reads the totals of any CPU, with the interval that is running up to `now` counted as what runs in it.
    ///
    /// `None` if the account was written meanwhile: try again. On the account's own CPU that happens only in an NMI
    /// handler that interrupted the writer, where trying again would never end.
    #[must_use]
    pub fn try_read(&self, now: u64) -> Option<Times> {
        let before = self.sequence.load(Ordering::Acquire);
        let mut times = Times {
            user: self.user.load(Ordering::Relaxed),
            system: self.system.load(Ordering::Relaxed),
            idle: self.idle.load(Ordering::Relaxed),
            guest: self.guest.load(Ordering::Relaxed),
        };
        let since = self.since.load(Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        if before != after || before % 2 == 1 {
            return None;
        }
        let state = State::ALL.into_iter().find(|s| *s as u64 == state)?;
        let total = times.of(state);
        *total = total.wrapping_add(elapsed(since, now));
        Some(times)
    }

    /// Reads the totals of this CPU. With interrupts off nothing can be writing them.
    #[must_use]
    pub fn read_own(&self, _irq: &IrqOff, now: u64) -> Times {
        self.try_read(now).unwrap_or_default()
    }
}

/// The account of this CPU, and the clock.
///
/// # Safety
///
/// 1. While interrupts are off, [`Account::account`] returns the same account each time, and no other CPU gets it.
/// 2. Neither function faults, blocks, or turns interrupts on.
pub unsafe trait Account: 'static {
    /// This CPU's account.
    fn account() -> &'static TimeAccount;

    /// Now, in ticks.
    #[must_use]
    #[inline(always)]
    fn now() -> u64 {
        tsc()
    }
}

/// The [`Observer`] that keeps a [`TimeAccount`].
///
/// ```
/// use context_tracking::time::{Account, TimeAccount, TimeObserver, Times};
/// use context_tracking::{CpuWord, PerCpu, Tracked, Tracking};
/// # use context_tracking::IrqOff;
/// # use std::sync::atomic::{AtomicU64, Ordering};
/// # static CLOCK: AtomicU64 = AtomicU64::new(100);
///
/// static WORD: CpuWord = CpuWord::new();
/// static ACCOUNT: TimeAccount = TimeAccount::new();
/// struct Cpu;
/// // SAFETY: there is one CPU.
/// unsafe impl PerCpu for Cpu {
///     fn word() -> &'static CpuWord { &WORD }
/// }
/// // SAFETY: there is one CPU.
/// unsafe impl Account for Cpu {
///     fn account() -> &'static TimeAccount { &ACCOUNT }
/// #   fn now() -> u64 { CLOCK.load(Ordering::Relaxed) }
/// }
/// type Track = Tracked<Cpu, TimeObserver<Cpu>>;
/// # let irq = unsafe { IrqOff::assume() };
///
/// ACCOUNT.start(&irq, Cpu::now());
/// # CLOCK.fetch_add(3, Ordering::Relaxed);
/// let irq = unsafe { Track::user_enter(irq).into_irq_off() }; // 3 ticks later
/// # CLOCK.fetch_add(40, Ordering::Relaxed);
/// unsafe { Track::user_exit(&irq) }; // 40 ticks later
/// assert_eq!(ACCOUNT.read_own(&irq, Cpu::now()), Times { system: 3, user: 40, ..Times::default() });
/// ```
#[derive(Debug)]
pub struct TimeObserver<A>(PhantomData<A>);

// SAFETY: it writes the account of this CPU, by condition 1 of `Account`, and neither faults nor blocks.
unsafe impl<A: Account> Observer for TimeObserver<A> {
    #[inline(always)]
    fn changed(from: State, to: State) {
        A::account().change(from, to, A::now());
    }
}

/// The times of one process or thread: what its CPU's totals gained while it was the current one.
///
/// ```
/// use context_tracking::time::{ProcessTimes, Times};
///
/// let mut process = ProcessTimes::default();
/// process.switched_in(Times { user: 100, system: 50, ..Times::default() }); // the CPU's totals
/// process.switched_out(Times { user: 130, system: 51, ..Times::default() });
/// process.switched_in(Times { user: 7, ..Times::default() }); // on another CPU
/// assert_eq!(process.read(None), Times { user: 30, system: 1, ..Times::default() });
/// assert_eq!(process.read(Some(Times { user: 9, ..Times::default() })).user, 32);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessTimes {
    total: Times,
    mark: Times,
}

impl ProcessTimes {
    /// The process becomes current on a CPU whose totals are `cpu`: see [`TimeAccount::read_own`].
    pub const fn switched_in(&mut self, cpu: Times) {
        self.mark = cpu;
    }

    /// The process ceases to be current on the CPU on which it was; its totals are `cpu`.
    pub const fn switched_out(&mut self, cpu: Times) {
        self.total = self.total.plus(cpu.since(self.mark));
        self.mark = cpu;
    }

    /// What the process has used. While it runs, the totals of its CPU bring that up to date.
    #[must_use]
    pub const fn read(&self, running_on: Option<Times>) -> Times {
        match running_on {
            Some(cpu) => self.total.plus(cpu.since(self.mark)),
            None => self.total,
        }
    }
}
