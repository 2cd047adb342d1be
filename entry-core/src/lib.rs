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

pub mod address;
pub mod cpu;
pub mod debug;
pub mod frame;
mod guard;
pub mod irq;
pub mod irqs_on;
pub mod kernel;
pub mod msr;
pub mod percpu;
pub mod plan;
pub mod rflags;
pub mod segment;
pub mod stub;
pub mod tss;
pub mod vector;
pub mod windows;

pub use frame::{EntryKind, TrapFrame};
pub use irq::{IrqGuard, IrqOff, IrqOn, UserEntry, UserReturn};
pub use kernel::{Exit, Kernel, Leave, NoTracking, Tracking};
pub use percpu::PerCpuHeader;
pub use segment::{SegmentLayout, Selector};
