//! Who runs next, and the switch to it.
//!
//! The run queue is a set of process slots, one bit each. The next one is the first runnable slot after the current
//! one, cyclically: round robin without a list. When the set is empty the idle thread runs, which is what the boot
//! stack becomes.
//!
//! The scheduler demands `&mut IrqOff`: interrupts are off while bookkeeping and stack disagree, and, since the guard
//! of an [`IrqLock`](crate::lock::IrqLock) borrows the proof, no lock can be held across a switch.
//!
//! A timer interrupt in the kernel counts and sets the work flag; the switch happens when the process next returns to user
//! mode. Only processes with interrupts on at SYSCALL are preempted before that.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::IrqOff;

use super::switch::switch_stacks;
use super::{IDLE, PROCESSES, Process, segments};
use crate::entry::PerCpu;
use crate::guard::guard;
use crate::syscall::Errno;

/// A set of process slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSet(u64);

impl SlotSet {
    /// No slot.
    pub const EMPTY: Self = Self(0);
}

/// The processes that could run now, the current one included.
static RUNNABLE: AtomicU64 = AtomicU64::new(0);

/// Lets a process run, if it doesn't already.
#[inline(always)]
pub(super) fn wake(process: &Process, _irq: &IrqOff) {
    RUNNABLE.fetch_or(1 << process.slot, Ordering::Relaxed);
}

/// Lets all processes of a set run, and empties the set.
#[inline(always)]
pub(super) fn wake_all(waiting: &mut SlotSet, _irq: &IrqOff) {
    if waiting.0 != 0 {
        RUNNABLE.fetch_or(waiting.0, Ordering::Relaxed);
        *waiting = SlotSet::EMPTY;
    }
}

/// Takes the current process out of the run queue until somebody wakes it; it runs on until it calls [`schedule`].
///
/// The caller holds the lock of whatever the process waits for, so that a wake-up cannot get lost in between.
///
/// # Errors
///
/// [`Errno::EINTR`], and the process stays runnable, if a signal is to end it.
#[inline(always)]
pub(super) fn stop(process: &Process, _irq: &IrqOff) -> Result<(), Errno> {
    RUNNABLE.fetch_and(!(1 << process.slot), Ordering::Relaxed);
    if process.has_pending_signal() {
        RUNNABLE.fetch_or(1 << process.slot, Ordering::Relaxed);
        return Err(Errno::EINTR);
    }
    Ok(())
}

/// [`stop`], with the process entered in a set of those to wake.
#[inline(always)]
pub(super) fn wait_in(waiting: &mut SlotSet, process: &Process, irq: &IrqOff) -> Result<(), Errno> {
    // A process that a signal woke is still in the set; once it has ended, nobody may wake its slot.
    stop(process, irq).inspect_err(|_| waiting.0 &= !(1 << process.slot))?;
    waiting.0 |= 1 << process.slot;
    Ok(())
}

/// Takes a process that ends out of the run queue for good.
pub(super) fn remove(process: &Process, _irq: &IrqOff) {
    RUNNABLE.fetch_and(!(1 << process.slot), Ordering::Relaxed);
}

/// Whether any process could run.
pub(super) fn has_runnable(_irq: &IrqOff) -> bool {
    RUNNABLE.load(Ordering::Relaxed) != 0
}

/// The first runnable process after `slot`, cyclically; the idle thread if there is none.
#[inline(always)]
fn next_after(slot: u8) -> &'static Process {
    let runnable = RUNNABLE.load(Ordering::Relaxed);
    if runnable == 0 {
        return &IDLE;
    }
    let first = u32::from(slot) + 1;
    let slot = first.wrapping_add(runnable.rotate_right(first & 63).trailing_zeros()) & 63;
    &PROCESSES[slot as usize]
}

/// Runs the next process; comes back when it is the caller's turn again.
///
/// A caller that is to wait has called `stop` before; one that just yields has not.
#[inline]
pub fn schedule(irq: &mut IrqOff) {
    let cpu = PerCpu::current(irq);
    let previous = cpu.process();
    let next = next_after(previous.slot);
    if core::ptr::eq(next, previous) {
        return;
    }
    if !guard!("schedule-interrupts-off", true) {
        // SAFETY: none: this is what the proof rules out, for the test that has to notice.
        unsafe { asm!("sti") };
    }
    if cpu.has_syscall_entry(next.context.syscall_entry.load(Ordering::Relaxed)) {
        switch(cpu, previous, next, irq);
    } else {
        switch_entry(cpu, previous, next, irq);
    }
    if !guard!("schedule-interrupts-off", true) {
        // SAFETY: as above.
        unsafe { asm!("cli") };
    }
}

/// [`switch`] to a process with other stubs. The idle thread has none.
#[cold]
#[inline(never)]
fn switch_entry(cpu: &PerCpu, previous: &Process, next: &'static Process, irq: &IrqOff) {
    previous.context.refresh_bases(cpu);
    if !core::ptr::eq(next, &raw const IDLE) {
        let was_split = cpu.is_split();
        cpu.take_syscall_entry(next.context.syscall_entry(), irq);
        if guard!("tables-after-a-switch", was_split && !cpu.is_split()) {
            // SAFETY: 1. as for `load_cr3` in `switch`, which follows; every root table has a twin.
            unsafe { cpu.load_tables(next.context.cr3.load(Ordering::Relaxed)) };
        }
    }
    switch(cpu, previous, next, irq);
}

/// Switches everything that belongs to a process, the stack last.
#[inline(always)]
fn switch(cpu: &PerCpu, previous: &Process, next: &'static Process, irq: &IrqOff) {
    cpu.count_switch();
    let context = &next.context;
    segments::switch(cpu, &previous.context, context, irq);
    // The idle thread has no user half and runs in whatever address space is loaded.
    let cr3 = context.cr3.load(Ordering::Relaxed);
    if cr3 != 0 {
        // SAFETY: `cr3` is that of a live process, whose tables map the kernel like all others.
        unsafe { cpu.load_cr3(cr3) };
        // SAFETY: the stack is `next`'s own and, as seen from user mode, empty; interrupts are off in `schedule`.
        unsafe { cpu.set_kernel_stack(context.stack_top.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        unsafe { cpu.set_sysenter_stack(context.stack_top.load(Ordering::Relaxed), irq) };
        if cpu.is_split() {
            // SAFETY: 1. as for `load_cr3`; every root table has a twin.
            unsafe { cpu.load_tables(cr3) };
        }
        context.load_bases(&previous.context, cpu);
    }
    cpu.set_process(next);
    cpu.set_work(false, next.has_pending_signal());
    // SAFETY: 1. the word is in `previous`, whose context this is. 2. `next` is not running: it is not the current
    // process, and there is one CPU; its RSP was stored by an earlier switch or by `prepare_first_switch`, and is
    // stored anew before it is loaded again. 3. `schedule` borrows the proof; the bookkeeping is done.
    unsafe { switch_stacks(previous.context.rsp.as_ptr(), context.rsp.load(Ordering::Relaxed)) };
}

/// Sleeps until an interrupt has been handled.
///
/// STI lets no interrupt in before the instruction after it has been executed, so none can slip in between and leave
/// HLT waiting for the next one.
///
/// # Source
///
/// Intel SDM vol. 2B, *STI—Set Interrupt Flag*; vol. 2A, *HLT—Halt*.
pub(super) fn wait_for_interrupt(irq: IrqOff) -> IrqOff {
    drop(irq);
    // SAFETY: the kernel may be interrupted here: no proof and no lock is left. Memory is not declared untouched,
    // since the handler changes it.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
    // SAFETY: CLI was the last instruction.
    unsafe { IrqOff::assume() }
}
