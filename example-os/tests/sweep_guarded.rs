//! Timer, NMI and #DB at every instruction boundary of the stubs with FSGSBASE, CLEAR and VERW: programs may write GS base
//! themselves then, and one of the bases that are swept is the kernel's own.
//!
//! TCG with `-icount shift=0`, and Bochs; any CPU model with FSGSBASE.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::sweep::{GuardedSweep, Injector};

fn check(sweep: &mut GuardedSweep, injector: Injector) {
    match sweep.run(injector) {
        Some(is_good) => assert!(is_good, "a boundary or a register is wrong, see above"),
        None => example_os::skip!("this CPU has no FSGSBASE"),
    }
}

example_os::tests! { GuardedSweep;
    fn timer_interrupt_at_every_guarded_boundary_changes_nothing(sweep) {
        check(sweep, Injector::Timer);
    }

    fn nmi_at_every_guarded_boundary_changes_nothing(sweep) {
        check(sweep, Injector::Nmi);
    }

    fn debug_exception_at_every_guarded_boundary_changes_nothing(sweep) {
        check(sweep, Injector::Debug);
    }
}
