//! The timer raised at every instruction boundary of the stubs: what is held back comes later, and nothing changes.
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
    fn timer_interrupt_raised_at_every_boundary_changes_nothing(machine) {
        machine.run(Injector::Timer);
    }
}
