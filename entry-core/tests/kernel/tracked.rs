// A kernel that does nothing, generic over who is told of the border to user mode, and somebody who is: for documentation
// tests, and for tests that read its stubs.

use core::marker::PhantomData;

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::Tracking;
use entry_core::stub::{IrqsOnKernel, LeanKernel, LeanResult};
use entry_core::{IrqOff, IrqOn, Kernel, SegmentLayout, TrapFrame, UserEntry, UserReturn};
use entry_sysret::{Refusal, RuleSet, Rules, SysretOrIret};

pub(crate) struct MyKernel<T>(PhantomData<T>);

impl<T: 'static> Rules for MyKernel<T> {
    const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
}

// SAFETY: no stub of it is ever entered.
unsafe impl<T: Tracking> Kernel for MyKernel<T> {
    type Exit = SysretOrIret<Self>;
    type Tracking = T;
    const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

    fn syscall(_: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        entry.into_irq_off()
    }
    fn user_exception(_: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        entry.into_irq_off()
    }
    fn user_interrupt(_: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        entry.into_irq_off()
    }
    fn kernel_exception(_: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }
    fn kernel_interrupt(_: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }
    fn paranoid(_: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }
    fn work(_: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }
    fn refused(_: &mut TrapFrame, _: Refusal, irq: IrqOff) -> IrqOff {
        irq
    }
}

impl<T: Tracking> LeanKernel for MyKernel<T> {
    unsafe extern "sysv64" fn syscall_lean(_: u64, _: u64, _: u64, _: u64, _: u64, _: u64, _: u64) -> LeanResult {
        // SAFETY: it is called once, first, here, in a handler that the stub calls.
        LeanResult::new(0, unsafe { Self::lean_entry() })
    }
}

impl<T: Tracking> IrqsOnKernel for MyKernel<T> {
    fn syscall_irqs_on(_: &mut TrapFrame, irq: IrqOn) -> IrqOn {
        irq
    }
    fn window_interrupt(_: &mut TrapFrame, _: &IrqOff) {}
}

pub(crate) struct Told;

// SAFETY: the hooks are empty.
unsafe impl Tracking for Told {
    const ENABLED: bool = true;
    type Saved = ();

    unsafe fn user_exit(_: &IrqOff) {}
    unsafe fn user_enter(irq: IrqOff) -> UserReturn {
        // SAFETY: the caller's.
        unsafe { UserReturn::new(irq) }
    }
    unsafe fn exception_enter(_: &IrqOff) {}
    unsafe fn exception_exit(_: &IrqOff, (): ()) {}
    unsafe fn nmi_enter(_: &IrqOff) {}
    unsafe fn nmi_exit(_: &IrqOff, (): ()) {}
}
