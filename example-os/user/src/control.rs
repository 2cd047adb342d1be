//! The control call: example-os's own system call that chooses kernel-side experiments.
//!
//! Linux answers it with `ENOSYS`, which is how a program tells the two apart.

use crate::sys::{self, Errno};

/// Its system-call number, far above Linux's.
pub const NUMBER: usize = 0x4558;

/// What [`QUERY`] answers: the bytes `ENTR`.
const ANSWER: usize = 0x454e_5452;

/// Operation: says that this is example-os.
pub const QUERY: usize = 0;
/// Operation: selects the SYSCALL stub set, see the `STUBS_` constants.
pub const SELECT_STUBS: usize = 1;
/// Operation: how this process comes back from a page fault: 0 by IRET, 1 by SYSRET, which
/// destroys RCX and R11.
pub const FAULT_EXIT: usize = 2;
/// Operation: 1 lets the #UD handler skip the two bytes of UD2, 0 makes it fatal again.
pub const SKIP_UD2: usize = 3;
/// Operation: runs the interrupt-flag loop in ring 0 and returns its ticks; the argument is one
/// of [`UNTOUCHED`] and [`TOGGLED`] plus the rounds shifted left by 8.
pub const IRQFLAG_SIMULATION: usize = 4;
/// Operation: reads one of the `COUNT_` counters.
pub const READ_COUNTER: usize = 6;

/// Stub set: the kernel proper.
pub const STUBS_NORMAL: usize = 0;
/// Stub set: full frame, every call returns 0, left by SYSRET.
pub const STUBS_NULL_FULL: usize = 1;
/// Stub set: full frame, every call returns 0, left by IRET.
pub const STUBS_NULL_IRET: usize = 2;

/// Interrupt-flag loop without its five flag instructions.
pub const UNTOUCHED: usize = 0;
/// Interrupt-flag loop with PUSHFQ, CLI and STI before the work and CLI and POPFQ after it.
pub const TOGGLED: usize = 1;

/// Counter: page faults from user mode that were served.
pub const COUNT_FAULTS: usize = 0;
/// Counter: context switches.
pub const COUNT_SWITCHES: usize = 1;
/// Counter: timer interrupts.
pub const COUNT_TICKS: usize = 2;

/// Asks the kernel for `operation`.
///
/// # Errors
/// `ENOSYS` on any other kernel, `EINVAL` for an operation or argument that it does not have.
///
/// # Safety
/// 1. After [`SELECT_STUBS`] with another set than [`STUBS_NORMAL`], no call but this one is
///    relied on until the normal set is back: every other call returns 0 and does nothing.
/// 2. After [`FAULT_EXIT`] with 1, no code runs that keeps a value in RCX or R11 over an access
///    that can fault, until it is set to 0 again.
pub unsafe fn control(operation: usize, argument: usize) -> Result<usize, Errno> {
    // SAFETY: the call neither writes nor unmaps memory of the caller; the rest is 1. and 2.
    let result = unsafe { sys::raw(NUMBER, [operation, argument, 0, 0, 0, 0]) };
    sys::check(result)
}

/// Whether the kernel is example-os.
#[must_use]
pub fn is_example_os() -> bool {
    // SAFETY: a query changes neither the stub set (1.) nor the fault exit (2.).
    unsafe { control(QUERY, 0) == Ok(ANSWER) }
}

/// Reads counter `number`, one of the `COUNT_` constants.
///
/// # Errors
/// As [`control`].
pub fn counter(number: usize) -> Result<usize, Errno> {
    // SAFETY: reading a counter changes neither the stub set (1.) nor the fault exit (2.).
    unsafe { control(READ_COUNTER, number) }
}
