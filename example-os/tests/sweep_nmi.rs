//! An NMI at every instruction boundary of the stubs.
//!
//! TCG with `-icount shift=0`, and Bochs; any CPU model. Bochs' timer delivers no NMI, so one of the two tests is skipped
//! there.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::sweep::{Injector, Sweep};

example_os::tests! { Sweep;
    fn nmi_after_every_instruction_changes_nothing(sweep) {
        if !sweep.can_inject(Injector::TimerNmi) {
            example_os::skip!("the timer of this machine delivers no NMI");
        }
        assert!(sweep.run(Injector::TimerNmi), "a boundary or a register is wrong, see above");
    }

    fn nmi_at_every_boundary_changes_nothing(sweep) {
        assert!(sweep.run(Injector::Nmi), "a boundary or a register is wrong, see above");
    }
}
