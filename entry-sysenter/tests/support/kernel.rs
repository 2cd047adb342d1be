// The kernel of the example on the crate page: one that already implements `Kernel`.

use core::sync::atomic::AtomicU64;

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::NoTracking;
use entry_core::{IrqOff, Kernel, PerCpuHeader, SegmentLayout, TrapFrame, UserEntry};
use entry_sysret::{Refusal, RuleSet, Rules, SysretOrIret};

pub struct MyKernel;

impl Rules for MyKernel {
    const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48).with_code32();
}

#[repr(C)]
pub struct PerCpu {
    pub header: PerCpuHeader,
    pub landing: AtomicU64,
}

// SAFETY: nothing of it ever runs.
unsafe impl Kernel for MyKernel {
    type Exit = SysretOrIret<Self>;
    type Tracking = NoTracking;
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
