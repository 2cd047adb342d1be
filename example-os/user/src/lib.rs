//! What a program needs to run on example-os and, as the same file, on Linux.
//!
//! A program is a static ELF64 file without relocations that enters at `_start` with `argc` and
//! `argv` on its stack and talks to the kernel through SYSCALL with Linux's numbers, registers and
//! error numbers. This crate does no buffering, no allocation and no floating point; it never
//! touches an SSE register.
//!
//! - [`program!`] names the function that runs, [`Args`] is what it gets.
//! - [`sys`] has one function for each system call.
//! - [`println!`] writes to file descriptor 1. A panic is written there too and exits with 101.
//! - [`control`] is the one call that only example-os has: it chooses kernel-side experiments.
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//!
//! user::program!(main);
//!
//! fn main(args: user::Args) -> i32 {
//!     user::println!("{} arguments", args.count());
//!     0
//! }
//! ```
#![no_std]

#[cfg(not(all(target_arch = "x86_64", target_os = "none")))]
compile_error!("user programs are built with `--target x86_64-unknown-none`");

pub mod control;
pub mod output;
mod start;
pub mod sys;

pub use start::{Args, start};

/// Reads the time-stamp counter.
///
/// # Source
/// Intel SDM vol. 2B, *RDTSC—Read Time-Stamp Counter*; AMD APM vol. 3, *RDTSC*.
#[must_use]
pub fn rdtsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and neither example-os nor Linux sets CR4.TSD.
    unsafe { core::arch::x86_64::_rdtsc() }
}
