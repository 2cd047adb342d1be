//! Who looks at the states: time accounting on the CPU itself, grace periods from other CPUs.
//!
//! An [`Observer`] is called by its own CPU at each change of state. What other CPUs want to know they read from the
//! [`CpuWord`](crate::CpuWord), and no code runs for them at the transition: [`quiescence`].

pub mod quiescence;
pub mod time;

use crate::state::State;

/// Hears of each change of state on the CPU that makes it, with interrupts off, while the CPU is watching: just after
/// it came into the kernel, just before it leaves.
///
/// NMIs are not reported: one may have interrupted the observer itself. What an exception handler does on top of user,
/// idle or guest is reported as kernel.
///
/// # Safety
///
/// 1. [`Observer::changed`] neither faults nor blocks, and does not turn interrupts on.
pub unsafe trait Observer: 'static {
    /// The state changes or has changed: one of the two is always [`State::Kernel`].
    fn changed(from: State, to: State);
}

/// Nobody: leaves no instruction.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

// SAFETY: it does nothing.
unsafe impl Observer for NoObserver {
    #[inline(always)]
    fn changed(_from: State, _to: State) {}
}

/// Two observers, in this order.
// SAFETY: each of the two keeps the promise.
unsafe impl<A: Observer, B: Observer> Observer for (A, B) {
    #[inline(always)]
    fn changed(from: State, to: State) {
        A::changed(from, to);
        B::changed(from, to);
    }
}
