//! Which process is tracked, and in which form.
//!
//! The tracked state belongs to the CPU, the choice to be tracked to a process: it is a matter of the stubs by which the
//! process enters and leaves. A process that is not tracked has stubs without an instruction of tracking in them. While
//! it runs, the word stays at "kernel", as it is in every handler; so a switch between the two kinds, which happens in
//! the kernel, needs nothing but the other stubs.
//!
//! The exceptions and interrupts of a tracked process always take the cheap form: the word is the same.

use context_tracking::{Ctx, Gs, IrqSaved, Kernel, Tracked};
use entry_core::stub::StubTable;
use entry_core::{IrqOff, TrapFrame};

use super::{OsKernel, PerCpu, SyscallEntry, split_stubs, stubs};
use crate::process::current;

/// Tracking by one locked addition to this CPU's word.
pub type Track = Tracked<Gs<PerCpu>>;

/// How a process is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// Not at all.
    Off,
    /// By system calls that save and clear the interrupt flag around each transition, as if they didn't know it.
    IrqSaved,
    /// By system calls that know interrupts to be off.
    IrqOff,
}

impl Form {
    /// The inverse of `self as u8`.
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Off,
            1 => Self::IrqSaved,
            _ => Self::IrqOff,
        }
    }
}

/// The kernel's system-call entry for a process.
pub(crate) fn entry_of(form: Form) -> SyscallEntry {
    match form {
        Form::Off => SyscallEntry::first(),
        Form::IrqSaved => SyscallEntry::tracked::<OsKernel<IrqSaved<Track>>>(),
        Form::IrqOff => SyscallEntry::tracked::<OsKernel<Track>>(),
    }
}

/// The way to user mode that goes with [`entry_of`], for the current process.
pub(super) fn return_of(form: Form) -> unsafe fn(*mut TrapFrame, IrqOff) -> ! {
    let StubTable { return_to_user, .. } = match form {
        Form::Off if current().context().is_split() => split_stubs::<OsKernel>(),
        Form::Off => stubs::<OsKernel>(),
        Form::IrqSaved => stubs::<OsKernel<IrqSaved<Track>>>(),
        Form::IrqOff => stubs::<OsKernel<Track>>(),
    };
    return_to_user
}

/// Waits for an interrupt by `halt`, in the state "idle" if the vectors of this CPU track.
pub(crate) fn wait(irq: IrqOff, halt: impl FnOnce(IrqOff) -> IrqOff) -> IrqOff {
    if !PerCpu::current(&irq).is_tracked() {
        return halt(irq);
    }
    // SAFETY: 1. the idle thread is in the kernel, outside handlers. 2. It has no other claim.
    let ctx = unsafe { Ctx::<Kernel, IrqOff, Track>::assume(irq) };
    ctx.idle_enter().wait(halt).idle_exit().into_irq_off()
}

/// Gives the current process another form, and leaves for user mode by the stubs of that form: the entry that ends here
/// was told to the old one, the exit is told to the new one.
///
/// # Safety
///
/// 1. `frame` is the frame at the top of the current process's kernel stack, and whatever is live below it may be lost.
#[cold]
pub(super) unsafe fn change(form: Form, frame: *mut TrapFrame, irq: IrqOff) -> ! {
    let context = current().context();
    context.set_tracking(form);
    context.set_syscall_entry(entry_of(form), &irq);
    let leave = return_of(form);
    // SAFETY: 1. condition 1. 2. Handlers run with kernel GS, on a CPU that `install` has set up.
    unsafe { leave(frame, irq) }
}
