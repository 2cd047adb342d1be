//! The control call: example-os's own system call that chooses kernel-side experiments.
//!
//! Linux answers it with `ENOSYS`, which is how a program tells the two apart. The question is put by SYSCALL, which every
//! kernel has; all else by INT 0x80, which stays with the kernel proper whatever stubs SYSCALL goes to.

use core::arch::asm;

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
/// destroys RCX and R11, 2 by SYSRET through a landing page, which keeps them.
pub const FAULT_EXIT: usize = 2;
/// Operation: runs the interrupt-flag loop in ring 0 and returns its ticks; the argument is one
/// of [`UNTOUCHED`] and [`TOGGLED`] plus the rounds shifted left by 8.
pub const IRQFLAG_SIMULATION: usize = 4;
/// Operation: takes an interrupt in ring 0 in each round and returns the ticks of it; the argument is one of [`IN_CODE`] and
/// [`IN_WINDOW`] plus the rounds shifted left by 8.
pub const KERNEL_INTERRUPTS: usize = 30;
/// For [`KERNEL_INTERRUPTS`]: in the kernel's code.
pub const IN_CODE: usize = 0;
/// For [`KERNEL_INTERRUPTS`]: in a window of the stubs, which only the vectors of [`STUBS_IRQS_ON`] look for.
pub const IN_WINDOW: usize = 1;
/// Operation: context tracking of this process and its children, see the `TRACKING_` constants; the stub set becomes
/// [`STUBS_NORMAL`].
pub const TRACKING: usize = 5;
/// Operation: 1 gives this process IOPL 3, so that it can turn interrupts off, 0 takes it away; the stub set becomes
/// [`STUBS_NORMAL`].
pub const IO_PRIVILEGE: usize = 11;
/// Operation: reads one of the `COUNT_` counters.
pub const READ_COUNTER: usize = 6;
/// Operation: 1 stops the timer tick, 0 starts it again.
pub const QUIET: usize = 7;

/// Operation: 1 makes INT 0x80 and SYSCALL from 32-bit code answer 0 and every exception skip two bytes, 0 gives them back to
/// the kernel proper. Made
/// by SYSCALL: see [`control_by_syscall`].
pub const NULL_VECTORS: usize = 8;
/// Operation: a timer interrupt every so many nanoseconds that is counted and leads to nothing else; 0 ends it.
pub const TIMER: usize = 9;

/// Operation: how SYSENTER gets at the stack and which kernel answers, one of the `SYSENTER_` constants with or without
/// [`SYSENTER_NULL`]. `ENOSYS` where the CPU has no SYSENTER.
pub const SYSENTER: usize = 10;
/// Operation: writes `IA32_SYSENTER_ESP` so many times and returns the ticks of it.
pub const WRITE_SYSENTER_STACK: usize = 12;

/// Operation: 1 lets this process have 32-bit code, 0 takes the leave away; the stub set becomes [`STUBS_NORMAL`].
///
/// 1 also maps the page at [`CALL_PAGE_32`] by which such code enters, and the result is one of the `PAGE_` constants.
pub const CODE_32: usize = 14;
/// Where that page lies.
pub const CALL_PAGE_32: usize = 0xfbff_e000;
/// The page enters by INT 0x80.
pub const PAGE_INT80: usize = 1;
/// The page enters by SYSENTER: an Intel CPU.
pub const PAGE_SYSENTER: usize = 2;
/// The page enters by SYSCALL: an AMD CPU.
pub const PAGE_SYSCALL: usize = 3;

/// Operation: writes FS and GS base so many times, shifted left by 8, by [`BASE_BY_WRMSR`] or [`BASE_BY_WRFSBASE`], and returns
/// the ticks of it. `ENOSYS` where the CPU has no WRFSBASE.
pub const WRITE_BASE: usize = 13;
/// WRMSR.
pub const BASE_BY_WRMSR: usize = 0;
/// WRFSBASE, and WRGSBASE between two SWAPGS.
pub const BASE_BY_WRFSBASE: usize = 1;

/// Operation: 1 lets a switch read and write FS and GS base by the instructions of FSGSBASE, 0 lets it write them by WRMSR.
/// `ENOSYS` where the CPU has no such instructions.
pub const INSTRUCTIONS_FOR_BASES: usize = 15;

/// Operation: breakpoints in the kernel, each in the handler of the one before, and returns the ticks of it; the argument is
/// how many of them, from 1 to 8, plus the rounds shifted left by 8.
pub const BREAKPOINTS: usize = 17;

/// Operation: an excursion to 32-bit protected mode; returns the ticks of it. `ENOSYS` where the CPU has no SYSENTER there.
///
/// The argument has the `PROTECTED_` bits, the blocks of memory shifted left by 8, and the rounds shifted left by 16.
pub const PROTECTED_MODE: usize = 16;
/// A trampoline loads the stack; else each switch writes the MSRs.
pub const PROTECTED_TRAMPOLINE: usize = 1;
/// Two tasks take turns; else one makes null calls.
pub const PROTECTED_SWITCH: usize = 2;

/// SYSENTER: its stub loads the stack from the per-CPU header. So it is after boot.
pub const SYSENTER_FROM_HEADER: usize = 0;
/// SYSENTER: each context switch writes the stack to its MSR.
pub const SYSENTER_WRMSR: usize = 1;
/// SYSENTER: a trampoline loads the stack from the task-state segment.
pub const SYSENTER_TRAMPOLINE: usize = 2;
/// SYSENTER: its stub loads the stack from the task-state segment, at a fixed offset.
pub const SYSENTER_TSS: usize = 3;
/// SYSENTER: every call returns 0.
pub const SYSENTER_NULL: usize = 1 << 4;

/// Stub set: the kernel proper.
pub const STUBS_NORMAL: usize = 0;
/// Stub set: full frame, every call returns 0, left by SYSRET.
pub const STUBS_NULL_FULL: usize = 1;
/// Stub set: full frame, every call returns 0, left by IRET.
pub const STUBS_NULL_IRET: usize = 2;
/// Stub set: lean frame, every call returns 0.
pub const STUBS_NULL_LEAN: usize = 3;
/// Stub set: full frame and zeroed registers, every call returns 0, left by SYSRET.
pub const STUBS_NULL_CLEAR: usize = 4;
/// Stub set: no frame and no test, every call returns 0.
pub const STUBS_FLOOR: usize = 5;
/// Stub set: full frame, every call returns 0, and user mode has page tables without the kernel.
pub const STUBS_NULL_KPTI: usize = 6;

/// Stub set: full frame with interrupts left on, every call returns 0.
pub const STUBS_NULL_IRQS_ON: usize = 7;
/// Stub set: the kernel proper with interrupts left on.
pub const STUBS_IRQS_ON: usize = 8;

/// No tracking.
pub const TRACKING_OFF: usize = 0;
/// Tracking by transitions that save the interrupt flag.
pub const TRACKING_IRQ_SAVE: usize = 1;
/// Tracking by transitions that know interrupts to be off.
pub const TRACKING_IRQS_OFF: usize = 2;

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
/// `EINVAL` for an operation or argument that the kernel does not have.
///
/// # Safety
/// 1. After [`SELECT_STUBS`] with another set than [`STUBS_NORMAL`], no SYSCALL is relied on until the normal set is back:
///    each returns 0 and does nothing.
/// 2. The kernel is example-os: [`is_example_os`] said so.
/// 3. After [`FAULT_EXIT`] with 1, no code runs that keeps a value in RCX or R11 over an access
///    that can fault, until it is set to 0 again.
pub unsafe fn control(operation: usize, argument: usize) -> Result<usize, Errno> {
    let result;
    // SAFETY: the call neither writes nor unmaps memory of the caller; it changes RAX alone. The rest is 1. and 2.
    unsafe {
        asm!(
            "int 0x80",
            inlateout("rax") NUMBER => result,
            in("rdi") operation,
            in("rsi") argument,
            options(nostack),
        );
    }
    sys::check(result)
}

/// As [`control`], by SYSCALL, which serves it while the normal stub set is selected.
///
/// # Errors
/// As [`control`].
///
/// # Safety
/// 1. As [`control`].
/// 2. After [`NULL_VECTORS`] with 1, until it is 0 again, no exception is relied on, page faults included, and no INT 0x80.
pub unsafe fn control_by_syscall(operation: usize, argument: usize) -> Result<usize, Errno> {
    // SAFETY: 1. and 2. the call neither writes nor unmaps memory of the caller.
    sys::check(unsafe { sys::raw(NUMBER, [operation, argument, 0, 0, 0, 0]) })
}

/// Whether the kernel is example-os.
#[must_use]
pub fn is_example_os() -> bool {
    // SAFETY: 1. and 2. a query reads and writes no memory; where the number is unknown nothing happens.
    let answer = unsafe { sys::raw(NUMBER, [QUERY, 0, 0, 0, 0, 0]) };
    answer == ANSWER
}

/// Reads counter `number`, one of the `COUNT_` constants.
///
/// # Errors
/// `ENOSYS` on another kernel, otherwise as [`control`].
pub fn counter(number: usize) -> Result<usize, Errno> {
    if !is_example_os() {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: 1. and 3. reading a counter changes neither the stub set nor the fault exit. 2. Just asked.
    unsafe { control(READ_COUNTER, number) }
}
