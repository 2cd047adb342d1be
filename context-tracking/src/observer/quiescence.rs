//! Has every CPU been outside the kernel since then? The question behind grace periods.
//!
//! A writer that has unpublished an object may free it as soon as no reader can still hold a pointer to it. Readers take
//! no lock and write nothing: that they run in the kernel is announced by the word that tracking keeps anyway. So the
//! writer looks at each CPU's word once, and waits until each has been quiescent at some moment since.
//!
//! [`Snapshot`] is that for one CPU, [`GracePeriod`] for all of them. Why it is right, and why the first look is a
//! read-modify-write, is argued in [`state`](crate::state). The crate's example `grace_period` builds a small RCU on it.
//!
//! A CPU that never leaves the kernel has to say that it holds nothing, by [`Ctx::pass`](crate::Ctx::pass) or by
//! scheduling. A CPU that was never started must not be asked: its word says "kernel".
//!
//! # Source
//!
//! Linux kernel documentation, *A Tour Through RCU's Requirements*, sections on grace-period and publish-subscribe
//! guarantees; *`NO_HZ`: Reducing Scheduling-Clock Ticks*, on CPUs that an observer must not disturb.

use crate::context::{Ctx, Kernel};
use crate::guard::guard;
use crate::state::CpuWord;
use crate::tracker::Tracker;
use entry_core::IrqOff;

/// One CPU as it was when a grace period began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The counter, if the CPU was watching; nothing to wait for otherwise.
    counter: Option<u64>,
}

impl Snapshot {
    /// Looks at a CPU. What the caller wrote before is seen by all kernel code that starts on that CPU after this.
    #[must_use]
    pub fn take(word: &CpuWord) -> Self {
        let now = word.load_ordered();
        Self {
            counter: guard!("grace-period", now.is_watching()).then_some(now.counter()),
        }
    }

    /// One that needs no waiting.
    const PASSED: Self = Self { counter: None };

    /// Whether the CPU has been quiescent since, at some moment. If so, all that its kernel code did before that moment
    /// happened before this returns.
    #[must_use]
    pub fn has_passed(&self, word: &CpuWord) -> bool {
        self.counter.is_none_or(|counter| word.load().counter() != counter)
    }
}

/// What [`GracePeriod::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// Every CPU has been quiescent: what was unreachable when the grace period began is unused now.
    Done,
    /// This CPU, by its index among the words, has not been quiescent yet.
    WaitingFor(usize),
    /// This CPU, by its index among the words, panicked or broke the rules. It may never pass, and its word can't be
    /// relied on: nothing may be freed.
    Poisoned(usize),
}

/// A grace period over `N` CPUs.
///
/// ```
/// use context_tracking::quiescence::{GracePeriod, Progress};
/// use context_tracking::{CpuWord, Ctx, IrqOff, Kernel, Tracker};
///
/// fn replace<T: Tracker>(ctx: &mut Ctx<Kernel, IrqOff, T>, cpus: [&'static CpuWord; 2]) {
///     // unpublish the old object, then:
///     let mut grace = GracePeriod::start(ctx, cpus);
///     while grace.poll() != Progress::Done {
///         core::hint::spin_loop();
///     }
///     // free it
/// }
/// ```
///
/// The writer can't hold what it waits for: a [`Watching`](crate::Watching) borrows the claim.
///
/// ```compile_fail,E0502
/// # use context_tracking::quiescence::GracePeriod;
/// # use context_tracking::{CpuWord, Ctx, IrqOff, Kernel, Tracker, Watching};
/// # fn read<'a, T>(_: Watching<'a, T>) -> &'a u32 { &0 }
/// fn replace<T: Tracker>(ctx: &mut Ctx<Kernel, IrqOff, T>, cpus: [&'static CpuWord; 1]) -> u32 {
///     let old = read(ctx.watching());
///     let _grace = GracePeriod::start(ctx, cpus);
///     *old
/// }
/// ```
///
/// ```
/// # use context_tracking::quiescence::GracePeriod;
/// # use context_tracking::{CpuWord, Ctx, IrqOff, Kernel, Tracker, Watching};
/// # fn read<'a, T>(_: Watching<'a, T>) -> &'a u32 { &0 }
/// fn replace<T: Tracker>(ctx: &mut Ctx<Kernel, IrqOff, T>, cpus: [&'static CpuWord; 1]) -> u32 {
///     let old = *read(ctx.watching());
///     let _grace = GracePeriod::start(ctx, cpus);
///     old
/// }
/// ```
#[derive(Debug)]
pub struct GracePeriod<'a, const N: usize> {
    cpus: [(&'a CpuWord, Snapshot); N],
}

impl<'a, const N: usize> GracePeriod<'a, N> {
    /// Begins a grace period: looks at each CPU once.
    ///
    /// The CPU that this runs on is taken as passed, since `ctx` shows that it holds nothing: the claim is borrowed
    /// mutably, and a handler on top of other kernel code has none.
    #[must_use]
    pub fn start<T: Tracker>(_ctx: &mut Ctx<Kernel, IrqOff, T>, cpus: [&'a CpuWord; N]) -> Self {
        let own = T::word();
        Self {
            cpus: cpus.map(|word| {
                let is_own = own.is_some_and(|own| core::ptr::eq(own, word));
                // The own word gets its read-modify-write too: whoever runs here next sees what was written before.
                let snapshot = Snapshot::take(word);
                (word, if is_own { Snapshot::PASSED } else { snapshot })
            }),
        }
    }

    /// Looks again at the CPUs that have not passed.
    ///
    /// Never waits by itself: a kernel polls from its timer tick, or between other work.
    pub fn poll(&mut self) -> Progress {
        let mut progress = Progress::Done;
        for (index, (word, snapshot)) in self.cpus.iter_mut().enumerate() {
            if guard!("poisoned-cpu", word.load().is_poisoned()) {
                return Progress::Poisoned(index);
            }
            if snapshot.has_passed(word) {
                *snapshot = Snapshot::PASSED;
            } else if progress == Progress::Done {
                progress = Progress::WaitingFor(index);
            }
        }
        progress
    }
}
