//! Maskable interrupts, in two halves.
//!
//! The upper half runs at once, wherever the interrupt came, with interrupts off: it answers the interrupt controller,
//! counts, and sets flags. The lower half may turn interrupts on and let other processes run. It has the proof to do so
//! by value, which the [window handler](entry_core::stub::IrqsOnKernel::window_interrupt) has not: where an entry stub is
//! interrupted in a window there is no lower half, and what the upper half asked for is done at the next exit.
//!
//! Nested interrupts need no stack of their own: the frame of each has left the interrupts' stack for the thread's before
//! its lower half begins, so the thread's stack has to hold as many frames as there are levels. Whoever turns interrupts on
//! bounds them.
//!
//! With interrupts on at SYSCALL the kernel is preempted; see [`preempt`]. With the other stubs it isn't: the flag waits for
//! the next return to user mode.

use core::sync::atomic::{AtomicUsize, Ordering};

use entry_core::{IrqOff, TrapFrame};

use super::{LEGACY_SPURIOUS, PerCpu, TIMER_VECTOR, exception};
use crate::device::apic;
use crate::guard::guard;
use crate::process::{current, scheduler};

/// The vector of the timer while an experiment has it.
pub(crate) const EXPERIMENT_VECTOR: u8 = 0x41;

/// What is left to do of an interrupt, on the stack of the thread that was interrupted. It may turn interrupts on, and has
/// to see to it that they don't nest without end.
pub type LowerHalf = fn(&TrapFrame, IrqOff) -> IrqOff;

/// The address of what a test has put there, or 0.
static LOWER_HALF: AtomicUsize = AtomicUsize::new(0);

/// Sets a lower half of all interrupts but those of the experiments' timer: before others are let run, and never for one
/// that came in a window.
pub fn set_lower_half(half: Option<LowerHalf>) {
    #[expect(clippy::fn_to_numeric_cast_any, reason = "an atomic holds a number, not a function")]
    let address = half.map_or(0, |half| half as usize);
    LOWER_HALF.store(address, Ordering::Relaxed);
}

/// An interrupt outside windows. The one that is measured comes first.
#[inline(always)]
pub(super) fn handle(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
    if frame.vector() != EXPERIMENT_VECTOR {
        return handle_other(frame, irq);
    }
    count(&irq);
    irq
}

#[inline(never)]
fn handle_other(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
    acknowledge(frame, &irq);
    let irq = lower_half(frame, irq);
    if frame.is_user() { irq } else { preempt(irq) }
}

/// An interrupt in a window.
#[inline(always)]
pub(super) fn handle_in_window(frame: &mut TrapFrame, irq: &IrqOff) {
    if frame.vector() == EXPERIMENT_VECTOR {
        count(irq);
    } else {
        acknowledge(frame, irq);
    }
}

#[inline(always)]
fn count(irq: &IrqOff) {
    apic::eoi();
    PerCpu::current(irq).count_tick();
}

/// The upper half.
#[inline(never)]
fn acknowledge(frame: &mut TrapFrame, irq: &IrqOff) {
    match frame.vector() {
        TIMER_VECTOR => {
            count(irq);
            PerCpu::current(irq).request_reschedule();
        }
        apic::SPURIOUS_VECTOR => {}
        vector if LEGACY_SPURIOUS.contains(&vector) => {}
        _ => exception::stray_interrupt(frame),
    }
}

fn lower_half(frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    let address = LOWER_HALF.load(Ordering::Relaxed);
    if address == 0 {
        return irq;
    }
    let pointer = core::ptr::with_exposed_provenance::<()>(address);
    // SAFETY: the address is that of a `LowerHalf`.
    let half = unsafe { core::mem::transmute::<*const (), LowerHalf>(pointer) };
    half(frame, irq)
}

/// Lets others run in the middle of a system call, if that was asked for and is allowed here.
///
/// Interrupts were on where it came, so no proof of the contrary exists there, and with it no
/// [lock](crate::lock::IrqLock) that is held. The idle thread is not preempted: it looks for work itself. What
/// else the process owes at its exit is not forgotten: a switch leaves the flag as the next process needs it.
fn preempt(mut irq: IrqOff) -> IrqOff {
    let cpu = PerCpu::current(&irq);
    if !cpu.has_interrupts_on() || current().is_idle() || !cpu.take_reschedule() {
        return irq;
    }
    cpu.count_preemption();
    scheduler::schedule(&mut irq);
    if guard!("preemption-keeps-work", true) {
        PerCpu::current(&irq).set_work_pending();
    }
    irq
}
