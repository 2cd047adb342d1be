//! The timer raised at every instruction boundary of the stubs: what is held back comes later, and nothing changes.
//!
//! TCG with `-icount shift=0`, and Bochs; any CPU model.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::harness::is_long;
use example_os::sweep::{Injector, Sweep};

example_os::tests! { Sweep;
    fn timer_interrupt_raised_at_every_boundary_changes_nothing(sweep) {
        assert!(sweep.run(Injector::Timer), "a boundary or a register is wrong, see above");
        if is_long() {
            assert!(sweep.run_nested(), "interrupts inside them change something, see above");
        }
    }
}
