//! SYSENTER and SYSEXIT in 32-bit protected mode: the round trip, the switch, and ESP at each instruction of the way.
//!
//! TCG and Bochs, models of both vendors: AMD's CPUs have both instructions there. It cannot show what a WRMSR costs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use entry_core::cpu::{CpuFeatures, Vendor};
use example_os::legacy32::{BLOCK_BYTES, Seen, Way, Workload, run as excursion};
use example_os::process::WaitStatus;
use program::{Machine, STACK_TOP, program};

/// Length of `mov esp, [field]`.
const LOAD_BYTES: u32 = 6;

fn step_through(way: Way, machine: &Machine) -> Seen {
    excursion(way, Workload::SingleStep, &machine.irq).unwrap()
}

example_os::tests! { Machine;
    fn calls_come_back_to_user_mode(machine) {
        for way in [Way::WrmsrPerSwitch, Way::ByTrampoline] {
            let seen = excursion(way, Workload::NullCall { rounds: 1000 }, &machine.irq).unwrap();
            assert_eq!(seen.last_cs & 3, 3, "{way:?}");
            assert_eq!(seen.other_rounds, 0, "{way:?}");
        }
    }

    fn tasks_take_turns(machine) {
        for way in [Way::WrmsrPerSwitch, Way::ByTrampoline] {
            for kib in [0, 16, 64] {
                let blocks = kib * 1024 / BLOCK_BYTES;
                let seen = excursion(way, Workload::Switch { rounds: 100, blocks }, &machine.irq).unwrap();
                assert_eq!(seen.last_cs & 3, 3, "{way:?}, {kib} KiB");
                // It is in the middle of its hundredth.
                assert_eq!(seen.other_rounds, 99, "{way:?}, {kib} KiB");
            }
        }
    }

    // With the stack in the MSR it is right from the first kernel instruction on, which a single-step trap can arrive at.
    fn stack_is_the_tasks_at_the_first_kernel_instruction(machine) {
        let seen = step_through(Way::WrmsrPerSwitch, machine);
        let first = seen.steps().iter().find(|step| step.cs & 3 == 0).unwrap();
        assert_eq!((first.eip, first.esp), (seen.entry, seen.stack_top));
        assert_eq!(seen.first_instruction, seen.entry);
        assert_eq!(seen.small_stack_word, 0);
    }

    // With the trampoline, what arrives there finds a valid stack, and the kernel proper finds the task's.
    fn stack_is_valid_in_the_trampoline_and_the_tasks_behind_it(machine) {
        let seen = step_through(Way::ByTrampoline, machine);
        let mut steps = seen.steps().iter().filter(|step| step.cs & 3 == 0);
        let load = steps.next().unwrap();
        assert_eq!((load.eip, load.esp), (seen.first_instruction, seen.small_stack_top));
        let jump = steps.next().unwrap();
        assert_eq!((jump.eip, jump.esp), (seen.first_instruction + LOAD_BYTES, seen.stack_top));
        let entry = steps.next().unwrap();
        assert_eq!((entry.eip, entry.esp), (seen.entry, seen.stack_top));
        // The trap's own frame went to the small stack, and EFLAGS with TF are its first word.
        assert_eq!(seen.small_stack_word & 0x100, 0x100);
    }

    // Every instruction between the SYSENTER and the one behind it is stepped over once.
    fn each_instruction_of_the_way_can_be_stepped_over(machine) {
        // Five of the kernel, and two of the trampoline.
        for (way, wanted) in [(Way::WrmsrPerSwitch, 5), (Way::ByTrampoline, 7)] {
            let seen = step_through(way, machine);
            assert_eq!(seen.steps().iter().filter(|step| step.cs & 3 == 0).count(), wanted, "{way:?}");
            let first = seen.steps().first().unwrap();
            let last = seen.steps().last().unwrap();
            assert_eq!((first.cs & 3, last.cs & 3), (3, 3), "{way:?}");
            assert!(last.eip > first.eip, "{way:?}");
        }
    }

    // What the excursion changes is put back: programs run, and enter by all that they have.
    fn long_mode_goes_on_as_before(machine) {
        let usual = program!(
            "mov eax, 0x4558", "xor edi, edi", "int 0x80", "cmp eax, 0x454e5452", "jne 4f", "mov eax, 39", "syscall",
            "test eax, eax", "jz 4f", "cmp rsp, {stack}", "jne 4f", "xor edi, edi", "mov eax, 60", "syscall", "ud2",
            "4:", "mov edi, 1", "mov eax, 60", "syscall", "ud2";
            stack = STACK_TOP
        );
        let by_sysenter = program!(
            "mov eax, 60", "xor edi, edi", "mov rcx, rsp", "lea r11, [rip + 4f]", "sysenter", "4:", "hlt"
        );
        let has_sysenter = CpuFeatures::detect().vendor == Vendor::Intel;
        for rounds in 0..3 {
            if rounds > 0 {
                excursion(Way::ByTrampoline, Workload::NullCall { rounds }, &machine.irq).unwrap();
            }
            assert_eq!(machine.run(usual), WaitStatus::exited(0));
            if has_sysenter {
                assert_eq!(machine.run(by_sysenter), WaitStatus::exited(0));
            }
        }
    }
}
