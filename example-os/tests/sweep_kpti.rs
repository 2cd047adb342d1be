//! Timer, NMI and #DB at every instruction boundary of the stubs with KPTI: where either load of CR3 has been executed, too, and
//! where it has not.
//!
//! TCG with `-icount shift=0`, and Bochs; any CPU model. Without process-context identifiers, which QEMU has none of.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::sweep::{Injector, SplitSweep};

fn check(sweep: &mut SplitSweep, injector: Injector) {
    assert!(sweep.run(injector), "a boundary or a register is wrong, see above");
}

example_os::tests! { SplitSweep;
    fn timer_interrupt_at_every_boundary_with_kpti_changes_nothing(sweep) {
        check(sweep, Injector::Timer);
    }

    fn nmi_at_every_boundary_with_kpti_changes_nothing(sweep) {
        check(sweep, Injector::Nmi);
    }

    fn debug_exception_at_every_boundary_with_kpti_changes_nothing(sweep) {
        check(sweep, Injector::Debug);
    }
}
