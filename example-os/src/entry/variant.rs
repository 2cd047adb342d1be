//! Which of the kernel's stubs a process has: those that track it, those that let it have IOPL 3 or 32-bit code, or the
//! plain ones.
//!
//! The tracked state belongs to the CPU, the choice to be tracked to a process: it is a matter of the stubs by which the
//! process enters and leaves. A process that is not tracked has stubs without an instruction of tracking in them. While
//! it runs, the word stays at "kernel", as it is in every handler; so a switch between the two kinds, which happens in
//! the kernel, needs nothing but the other stubs.
//!
//! The exceptions and interrupts of a tracked process always take the cheap form: the word is the same.

use context_tracking::{Ctx, Gs, IrqSaved, Kernel, Tracked};
use entry_core::rflags::Rflags;
use entry_core::stub::{ReturnToUser, StubTable};
use entry_core::{IrqOff, NoTracking, TrapFrame};

use super::compat::{Kernel32, PrivilegedKernel32};
use super::{IoRules, OsKernel, PerCpu, SyscallEntry, Vectors, leave_by, options, stubs};
use crate::process::{current, segments};

/// Tracking by one locked addition to this CPU's word.
pub type Track = Tracked<Gs<PerCpu>>;

/// The kernel's stubs for a process, and what goes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Variant {
    /// Nothing special: not tracked, IOPL 0.
    Plain,
    /// Tracked by system calls that save and clear the interrupt flag around each transition, as if they didn't know it.
    IrqSaved,
    /// Tracked by system calls that know interrupts to be off.
    IrqOff,
    /// Not tracked, with IOPL 3: the program may turn interrupts off.
    IoPrivilege,
    /// Not tracked, with leave for 32-bit code.
    Code32,
    /// The same, with IOPL 3.
    IoCode32,
}

impl Variant {
    /// The inverse of `self as u8`.
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Plain,
            1 => Self::IrqSaved,
            2 => Self::IrqOff,
            3 => Self::IoPrivilege,
            4 => Self::Code32,
            _ => Self::IoCode32,
        }
    }

    /// Whether there may be 32-bit code.
    pub(crate) const fn allows_32_bit_code(self) -> bool {
        matches!(self, Self::Code32 | Self::IoCode32)
    }
}

/// The kernel's system-call entry for a process.
pub(crate) fn entry_of(variant: Variant) -> SyscallEntry {
    match variant {
        Variant::Plain => SyscallEntry::first(),
        Variant::IrqSaved => SyscallEntry::tracked::<OsKernel<IrqSaved<Track>>>(),
        Variant::IrqOff => SyscallEntry::tracked::<OsKernel<Track>>(),
        Variant::IoPrivilege => SyscallEntry::new(stubs::<Privileged>().syscall, Vectors::IoPrivilege),
        Variant::Code32 => SyscallEntry::new(stubs::<Kernel32>().syscall, Vectors::Code32),
        Variant::IoCode32 => SyscallEntry::new(stubs::<PrivilegedKernel32>().syscall, Vectors::IoCode32),
    }
}

/// The kernel of programs with IOPL 3.
pub(super) type Privileged = OsKernel<NoTracking, IoRules>;

/// The way to user mode that goes with [`entry_of`], for the current process.
pub(super) fn return_of(variant: Variant) -> ReturnToUser {
    let StubTable { return_to_user, .. } = match variant {
        Variant::Plain if current().context().is_split() => options::split::<OsKernel>(),
        Variant::Plain => stubs::<OsKernel>(),
        Variant::IrqSaved => stubs::<OsKernel<IrqSaved<Track>>>(),
        Variant::IrqOff => stubs::<OsKernel<Track>>(),
        Variant::IoPrivilege => stubs::<Privileged>(),
        Variant::Code32 => stubs::<Kernel32>(),
        Variant::IoCode32 => stubs::<PrivilegedKernel32>(),
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

/// Gives the current process another variant, and leaves for user mode by the stubs of that one: the entry that ends here
/// was told to the old one, the exit is told to the new one.
///
/// # Safety
///
/// 1. `frame` is the frame at the top of the current process's kernel stack, and whatever is live below it may be lost.
#[cold]
pub(super) unsafe fn change(variant: Variant, frame: *mut TrapFrame, irq: IrqOff) -> ! {
    let context = current().context();
    let old = context.variant();
    context.set_variant(variant);
    context.set_syscall_entry(entry_of(variant), &irq);
    match (old.allows_32_bit_code(), variant.allows_32_bit_code()) {
        (_, true) => segments::load_for_32_bit_code(&irq),
        (true, false) => segments::load_for_64_bit_code(&irq),
        (false, false) => {}
    }
    // SAFETY: condition 1.
    let words = unsafe { &mut *frame };
    let privilege = match variant {
        Variant::IoPrivilege | Variant::IoCode32 => Rflags::IO_PRIVILEGE_LEVEL,
        _ => Rflags::empty(),
    };
    words.set_rflags(words.rflags() & !Rflags::IO_PRIVILEGE_LEVEL.bits() | privilege.bits());
    // SAFETY: 1. condition 1. 2. Handlers run with kernel GS.
    unsafe { leave_by(return_of(variant), frame, irq) }
}
