//! A data breakpoint on what MOV SS reads, directly before an instruction that enters the kernel.

use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::TrapFrame;
use entry_core::vector::Vector;
use example_os::entry;
use example_os::process::WaitStatus;

use crate::program::{DATA, Machine};

/// Hits in user mode and in the kernel, and where the last one in the kernel was.
static IN_USER_MODE: AtomicU64 = AtomicU64::new(0);
static IN_KERNEL: AtomicU64 = AtomicU64::new(0);
static KERNEL_RIP: AtomicU64 = AtomicU64::new(0);

/// Counts, and has the kernel done with the event.
fn count(frame: &mut TrapFrame) -> bool {
    const BREAKPOINT_0: u64 = 1;
    if Vector(frame.vector()) != Vector::DEBUG || frame.error_code() & BREAKPOINT_0 == 0 {
        return false;
    }
    if frame.is_user() {
        IN_USER_MODE.fetch_add(1, Ordering::Relaxed);
    } else {
        IN_KERNEL.fetch_add(1, Ordering::Relaxed);
        KERNEL_RIP.store(frame.rip(), Ordering::Relaxed);
    }
    true
}

/// Runs a program with a breakpoint on reads and writes of the two bytes at [`DATA`].
///
/// Gives how it ended, the hits in user mode and in the kernel, and RIP at the last one there.
pub(crate) fn run(machine: &mut Machine, code: &[u8]) -> (WaitStatus, [u64; 2], u64) {
    for counter in [&IN_USER_MODE, &IN_KERNEL] {
        counter.store(0, Ordering::Relaxed);
    }
    entry::set_kernel_hook(Some(count));
    // SAFETY: reads and writes of two bytes at a user address, and the hook answers.
    unsafe { core::arch::asm!("mov dr0, {}", "mov dr7, {}", in(reg) DATA, in(reg) 0x7_0401_u64, options(nostack)) };
    let status = machine.run(code);
    // SAFETY: no breakpoint is enabled.
    unsafe { core::arch::asm!("mov dr7, {}", in(reg) 0x400_u64, options(nostack)) };
    entry::set_kernel_hook(None);
    let hits = [&IN_USER_MODE, &IN_KERNEL].map(|counter| counter.load(Ordering::Relaxed));
    (status, hits, KERNEL_RIP.load(Ordering::Relaxed))
}
