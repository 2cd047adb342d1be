//! Sets of stubs with options that the kernel does without unless an experiment asks for them.
//!
//! | set | options | what else goes with it |
//! |---|---|---|
//! | [`Guarded`] | FSGSBASE, CLEAR, VERW | CR4.FSGSBASE: programs write FS and GS base themselves, so a switch has to ask for both |
//! | [`Restricted`] | IBRS | `IA32_SPEC_CTRL` in the per-CPU header |
//! | [`Split`] | KPTI | tables without the kernel, and the entry stack |
//! | [`SplitWithPcid`] | KPTI, PCID | CR4.PCIDE, and [`PcidKernel`] |
//!
//! Each has CLAC where the CPU has SMAP.

use core::marker::PhantomData;

use entry_core::cpu::CpuFeatures;
use entry_core::kernel::{Baseline, Options, WithSmap};
use entry_core::stub::StubTable;
use entry_core::{Exit, IrqOff, Kernel, NoTracking, SegmentLayout, TrapFrame, UserEntry};
use entry_sysret::SysretOrIret;

use super::{LAYOUT, OsKernel, UserRules};
use crate::boot;
use crate::memory::kernel;

/// Registers are zeroed, GS base is read and written by instructions of its own, and VERW comes last.
#[derive(Debug)]
pub(super) struct Guarded<O>(PhantomData<O>);

impl<O: Options> Options for Guarded<O> {
    const SMAP: bool = O::SMAP;
    const FSGSBASE: bool = true;
    const CLEAR: bool = true;
    const VERW: bool = true;
}

/// `IA32_SPEC_CTRL` is written at the border.
#[derive(Debug)]
pub(super) struct Restricted<O>(PhantomData<O>);

impl<O: Options> Options for Restricted<O> {
    const SMAP: bool = O::SMAP;
    const IBRS: bool = true;
}

/// The kernel hides from user mode.
#[derive(Debug)]
pub(super) struct Split<O>(PhantomData<O>);

impl<O: Options> Options for Split<O> {
    const SMAP: bool = O::SMAP;
    const KPTI: bool = true;
}

/// The same with identifiers, so that translations stay from one border to the next.
#[derive(Debug)]
pub(super) struct SplitWithPcid<O>(PhantomData<O>);

impl<O: Options> Options for SplitWithPcid<O> {
    const SMAP: bool = O::SMAP;
    const KPTI: bool = true;
    const PCID: bool = true;
}

/// The stubs of `K` with `Set`, on this CPU: `Set` is chosen, what it has of CLAC is found out.
macro_rules! table {
    ($kernel:ty, $set:ident) => {
        if boot::cpu::features().smap {
            StubTable::of::<$kernel, $set<WithSmap>>()
        } else {
            StubTable::of::<$kernel, $set<Baseline>>()
        }
    };
}

/// The stubs of `K` that hide the kernel.
pub(super) fn split<K: Kernel>() -> StubTable {
    table!(K, Split)
}

/// The stubs of `K` that hide it and keep translations; [`has_pcid`] says whether the CPU runs them.
pub(super) fn split_with_pcid() -> StubTable {
    table!(PcidKernel, SplitWithPcid)
}

/// The stubs with [`Guarded`]. VERW, which is an old instruction, does no harm on a CPU where it clears nothing.
pub(super) fn guarded<K: Kernel>() -> StubTable {
    table!(K, Guarded)
}

/// The stubs with [`Restricted`].
pub(super) fn restricted() -> StubTable {
    table!(OsKernel, Restricted)
}

/// Whether the CPU has identifiers, and the instruction that makes it forget what it knows under all of them.
pub(crate) fn has_pcid() -> bool {
    let cpu = CpuFeatures::detect();
    cpu.pcid && cpu.invpcid
}

/// Identifier of the kernel's tables while a program of [`SplitWithPcid`] runs. There is one pair for all of them, and a switch
/// to one drops what is left of the last.
pub(crate) const KERNEL_PCID: u64 = 1;

/// System calls that change no translation: `sched_yield`, `getpid`, `getppid`.
const CHANGE_NO_TABLES: [u64; 3] = [24, 39, 110];

/// [`OsKernel`] on two sets of translations. It changes tables by INVLPG, which is about the kernel's identifier alone, so what
/// may have changed some drops the program's, too.
#[derive(Debug)]
pub(super) struct PcidKernel;

// SAFETY: the CPU set-up is that of `OsKernel`, whose layout and stacks this one shares.
unsafe impl Kernel for PcidKernel {
    type Exit = SysretOrIret<UserRules>;
    type Tracking = NoTracking;
    const LAYOUT: SegmentLayout = LAYOUT;

    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        let number = frame.rax();
        let irq = <OsKernel>::syscall(frame, entry);
        if !CHANGE_NO_TABLES.contains(&number) {
            kernel::drop_all_translations();
        }
        irq
    }

    fn user_exception(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        <OsKernel>::user_exception(frame, entry)
    }

    fn user_page_fault(frame: &mut TrapFrame, address: u64, entry: UserEntry) -> IrqOff {
        let irq = <OsKernel>::user_page_fault(frame, address, entry);
        kernel::drop_all_translations();
        irq
    }

    fn user_interrupt(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        <OsKernel>::user_interrupt(frame, entry)
    }

    fn kernel_exception(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        <OsKernel>::kernel_exception(frame, irq)
    }

    fn kernel_interrupt(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        <OsKernel>::kernel_interrupt(frame, irq)
    }

    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        <OsKernel>::paranoid(frame, irq)
    }

    fn nested_paranoid(frame: &TrapFrame) -> ! {
        <OsKernel>::nested_paranoid(frame)
    }

    fn work(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        <OsKernel>::work(frame, irq)
    }

    fn refused(frame: &mut TrapFrame, refusal: <Self::Exit as Exit>::Refusal, irq: IrqOff) -> IrqOff {
        <OsKernel>::refused(frame, refusal, irq)
    }
}
