//! #DB at every instruction boundary of the stubs, by an instruction breakpoint.
//!
//! TCG and Bochs, any CPU model. It cannot show #DB in #DB's own entry: there the kernel's rule is that no breakpoint may be
//! set on the stubs at all.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::sweep::{Injector, Sweep};

example_os::tests! { Sweep;
    fn debug_exception_at_every_boundary_changes_nothing(sweep) {
        assert!(sweep.run(Injector::Debug), "a boundary or a register is wrong, see above");
    }
}
