#![doc = include_str!("../README.md")]
#![no_std]
#![warn(
    clippy::alloc_instead_of_core,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::unwrap_used
)]

pub mod context;
mod guard;
pub mod observer;
pub mod state;
pub mod tracker;

#[cfg(all(loom, test))]
mod loom_tests;

/// The atomics, or loom's model of them.
mod sync {
    #[cfg(not(all(loom, test)))]
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
    #[cfg(all(loom, test))]
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

pub use context::{Ctx, Exception, Guest, Idle, IrqUnknown, Kernel, Nmi, ReadyToExit, User, Watching};
pub use entry_core::{IrqOff, IrqOn, NoTracking, Tracking, UserEntry, UserReturn};
pub use observer::{NoObserver, Observer, quiescence, time};
pub use state::{CpuWord, State, Transition, Violation, Word};
pub use tracker::{Gs, GsWord, IrqSaved, PerCpu, Saved, Switched, Tracked, Tracker};
