//! Timer, NMI and #DB at every instruction boundary of the stubs with KPTI and process-context identifiers: each load of CR3 has
//! bit 63 and another identifier.
//!
//! Bochs with an Intel model: QEMU's translator has no identifiers. It can't show a translation that was kept too long, since Bochs
//! drops all of them at each load of CR3.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::sweep::{Injector, PcidSweep};

fn check(sweep: &mut PcidSweep, injector: Injector) {
    match sweep.run(injector) {
        Some(is_good) => assert!(is_good, "a boundary or a register is wrong, see above"),
        None => example_os::skip!("this CPU has no process-context identifiers"),
    }
}

example_os::tests! { PcidSweep;
    fn timer_interrupt_at_every_boundary_with_pcid_changes_nothing(sweep) {
        check(sweep, Injector::Timer);
    }

    fn nmi_at_every_boundary_with_pcid_changes_nothing(sweep) {
        check(sweep, Injector::Nmi);
    }

    fn debug_exception_at_every_boundary_with_pcid_changes_nothing(sweep) {
        check(sweep, Injector::Debug);
    }
}
