//! An NMI at every instruction boundary of the stubs.
//!
//! TCG with `-icount shift=0`, and Bochs; any CPU model.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "sweep/exceptions.rs"]
mod exceptions;

use example_os::sweep::Injector;

use crate::exceptions::Machine;

example_os::tests! { Machine;
    fn nmi_at_every_boundary_changes_nothing(machine) {
        machine.run(Injector::Nmi);
    }

    fn nmi_after_every_instruction_changes_nothing(machine) {
        if !machine.can_inject(Injector::TimerNmi) {
            example_os::skip!("the timer of this machine delivers no NMI");
        }
        machine.run(Injector::TimerNmi);
    }
}
