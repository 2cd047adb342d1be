//! The harness itself: tests that are expected to panic, each of which costs a boot, and ignored ones.
//!
//! Any accelerator.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::harness::Suite;

struct Machine {
    was_touched: bool,
}

impl Suite for Machine {
    fn set_up() -> Self {
        Self { was_touched: false }
    }
}

// Tests run in the order of their names.
example_os::tests! { Machine;
    #[should_panic]
    fn a_failed_assertion_is_a_panic(machine) {
        machine.was_touched = true;
        assert!(!machine.was_touched);
    }

    #[should_panic]
    fn an_index_out_of_bounds_is_a_panic(machine) {
        machine.was_touched = true;
        let array = [1, 2, 3];
        machine.was_touched = array[core::hint::black_box(3)] == 0;
    }

    #[ignore = "shows that ignored tests are counted"]
    fn never_runs(_machine) {
        panic!("an ignored test ran");
    }

    fn starts_afresh_after_each_reboot(machine) {
        assert!(!machine.was_touched);
    }
}
