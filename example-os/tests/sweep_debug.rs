//! #DB at every instruction boundary of the stubs, by an instruction breakpoint.
//!
//! TCG and Bochs, any CPU model. It cannot show #DB in #DB's own entry: there the kernel's rule is that no breakpoint may be
//! set on the stubs at all.
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
    fn debug_exception_at_every_boundary_changes_nothing(machine) {
        machine.run(Injector::Debug);
    }
}
