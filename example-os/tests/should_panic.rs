//! The harness itself: tests that are expected to panic, each of which costs a boot, and ignored ones.
//!
//! Any accelerator.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::harness::Suite;
use example_os::memory::{AddressSpace, KernelStack, PAGE_SIZE, Placement, Protection};

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
    #[should_panic = "assertion failed"]
    fn a_failed_assertion_is_a_panic(machine) {
        machine.was_touched = true;
        assert!(!machine.was_touched);
    }

    #[should_panic = "#UD before the entry paths"]
    fn an_exception_without_entry_paths_is_a_panic(machine) {
        machine.was_touched = true;
        // SAFETY: UD2 raises #UD, and the gates of boot end the run.
        unsafe { core::arch::asm!("ud2", options(nomem, nostack)) };
    }

    #[should_panic = "#PF before the entry paths"]
    fn an_access_below_a_kernel_stack_is_a_panic(machine) {
        machine.was_touched = true;
        let stack = KernelStack::new().unwrap();
        let guard = core::ptr::with_exposed_provenance::<u8>(usize::try_from(stack.top() - 16 * 1024 - 1).unwrap());
        // SAFETY: the page is not mapped: the read ends in a page fault, and the gates of boot end the run.
        unsafe { guard.read_volatile() };
    }

    #[should_panic = "#PF before the entry paths"]
    fn an_access_to_user_memory_without_need_is_a_panic(machine) {
        machine.was_touched = true;
        if !example_os::boot::cpu::features().smap {
            example_os::skip!("the CPU has no SMAP");
        }
        let mut space = AddressSpace::new().unwrap();
        let at = space.mmap(0, PAGE_SIZE, Protection::READ, Placement::Hint).unwrap();
        space.write(at, b"mapped").unwrap();
        // SAFETY: the space lives to the end of the test, which ends the boot.
        unsafe { space.activate() };
        let pointer = core::ptr::with_exposed_provenance::<u8>(usize::try_from(at).unwrap());
        // SAFETY: the page is mapped for user mode: with SMAP the read is a page fault, and the gates of boot end the run.
        unsafe { pointer.read_volatile() };
    }

    #[should_panic = "index out of bounds"]
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
