//! A small kernel that composes [`entry_core`], [`entry_sysret`], [`entry_sysenter`] and [`context_tracking`].
//!
//! | room | what is in it |
//! |---|---|
//! | [`boot`] | from the loader to Rust: PVH and multiboot2, long mode, CPU set-up |
//! | [`memory`] | frames, page tables, address spaces, copies from and to user memory |
//! | [`elf`], [`archive`] | user programs: loading them, finding them |
//! | [`entry`] | the kernel behind the entry stubs: tables, registers, what each event leads to |
//! | [`process`] | processes, scheduler, context switch, pipes, signals |
//! | [`syscall`], [`experiment`] | system calls; the control call of the benchmarks |
//! | [`legacy32`] | an excursion to 32-bit protected mode, for SYSENTER as it was in 2003 |
//! | [`device`] | serial line, text screen, local APIC, end of the run |
//! | [`mod@panic`], [`harness`] | how a run ends badly; in-kernel tests |
//! | [`sweep`], [`registers`] | events at every instruction of the stubs; all registers at once |
//!
//! System calls follow the Linux x86-64 ABI, so that one static ELF file runs here and on Linux.
#![no_std]

pub mod archive;
pub mod boot;
pub mod device;
pub mod elf;
pub mod entry;
pub mod experiment;
mod guard;
pub mod harness;
pub mod legacy32;
pub mod lock;
pub mod memory;
pub mod panic;
pub mod process;
pub mod registers;
pub mod sweep;
pub mod syscall;
