//! The harness itself: tests that are expected to panic, each of which costs a boot, and ignored ones.
//!
//! Any accelerator.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::harness::Suite;

struct Counter {
    tests_run: u32,
}

impl Suite for Counter {
    fn set_up() -> Self {
        Self { tests_run: 0 }
    }
}

example_os::tests! { Counter;
    fn gets_what_the_set_up_made(counter) {
        assert_eq!(counter.tests_run, 0);
        counter.tests_run += 1;
    }

    #[should_panic]
    fn a_failed_assertion_is_a_panic(counter) {
        counter.tests_run += 1;
        assert_eq!(counter.tests_run, 0);
    }

    #[should_panic]
    fn an_index_out_of_bounds_is_a_panic(counter) {
        let array = [1, 2, 3];
        counter.tests_run = array[core::hint::black_box(3)];
    }

    #[ignore = "shows that ignored tests are counted"]
    fn never_runs(_counter) {
        panic!("an ignored test ran");
    }

    fn runs_after_the_reboots_on_a_fresh_machine(counter) {
        assert_eq!(counter.tests_run, 0);
    }
}
