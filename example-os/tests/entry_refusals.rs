//! The exit's refusals, at the real exit: a frame that no program may have ends its process before the CPU sees it.
//!
//! Runs on TCG with any CPU model; what is shown is our refusal, not the fault that the CPU would raise (TCG raises few of
//! them). Two variants have no test here: `RipAboveCode32`, since this kernel's rules allow no 32-bit code, and
//! `UnknownEntryKind`, since nothing outside the stubs can write a kind word.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use entry_core::TrapFrame;
use entry_sysret::Refusal;
use example_os::entry;
use example_os::memory::USER_LIMIT;
use example_os::process::WaitStatus;
use example_os::process::signal::Signal;
use program::{CODE, Machine, STACK_TOP, program};

/// Enters a program whose first frame is good but for one change. If the exit let it pass, it would exit with 0.
fn refusal_of(machine: &mut Machine, change: impl FnOnce(&mut TrapFrame)) -> Refusal {
    let mut frame = entry::first_frame(CODE, STACK_TOP);
    change(&mut frame);
    let code = program!("mov eax, 60", "xor edi, edi", "syscall", "ud2");
    let pid = machine.start_at(CODE, code, &frame);
    assert_eq!(machine.finish(pid), Some(WaitStatus::killed(Signal::SIGSEGV)));
    entry::take_last_refusal(&machine.irq).unwrap()
}

/// RFLAGS of a first frame, with more bits.
const fn flags(more: u64) -> u64 {
    0x202 | more
}

example_os::tests! { Machine;
    fn passes_a_good_frame(machine) {
        let code = program!("mov eax, 60", "xor edi, edi", "syscall", "ud2");
        assert_eq!(machine.run(code), WaitStatus::exited(0));
        assert_eq!(entry::take_last_refusal(&machine.irq), None);
    }

    fn refuses_a_non_canonical_rip(machine) {
        for rip in [0x8000_0000_0000, 0xffff_7fff_ffff_ffff] {
            assert_eq!(refusal_of(machine, |frame| frame.set_rip(rip)), Refusal::NonCanonicalRip { rip });
        }
    }

    fn refuses_a_kernel_rip(machine) {
        for rip in [0xffff_8000_0000_0000, 0xffff_ffff_8010_0000, u64::MAX] {
            assert_eq!(refusal_of(machine, |frame| frame.set_rip(rip)), Refusal::KernelRip { rip });
        }
    }

    fn refuses_a_rip_above_the_user_limit(machine) {
        for rip in [USER_LIMIT, 0x7fff_ffff_ffff] {
            assert_eq!(refusal_of(machine, |frame| frame.set_rip(rip)), Refusal::RipAboveUserLimit { rip });
        }
    }

    fn refuses_a_kernel_code_segment(machine) {
        for cs in [0x08, 0x28, 0x29, 0x2a] {
            assert_eq!(refusal_of(machine, |frame| frame.set_cs(cs)), Refusal::KernelCodeSegment { cs });
        }
    }

    fn refuses_a_local_code_segment(machine) {
        let cs = 0x2f;
        assert_eq!(refusal_of(machine, |frame| frame.set_cs(cs)), Refusal::LocalCodeSegment { cs });
    }

    fn refuses_an_unlisted_code_segment(machine) {
        // User data, the TSS, beyond the table. (32-bit user code is listed.)
        for cs in [0x23, 0x3b, 0x4b] {
            assert_eq!(refusal_of(machine, |frame| frame.set_cs(cs)), Refusal::UnlistedCodeSegment { cs });
        }
    }

    fn refuses_a_null_stack_segment(machine) {
        for ss in 0..4 {
            assert_eq!(refusal_of(machine, |frame| frame.set_ss(ss)), Refusal::NullStackSegment { ss });
        }
    }

    fn refuses_a_kernel_stack_segment(machine) {
        for ss in [0x10, 0x20, 0x22] {
            assert_eq!(refusal_of(machine, |frame| frame.set_ss(ss)), Refusal::KernelStackSegment { ss });
        }
    }

    fn refuses_a_local_stack_segment(machine) {
        let ss = 0x27;
        assert_eq!(refusal_of(machine, |frame| frame.set_ss(ss)), Refusal::LocalStackSegment { ss });
    }

    fn refuses_an_unlisted_stack_segment(machine) {
        for ss in [0x1b, 0x2b, 0x4b] {
            assert_eq!(refusal_of(machine, |frame| frame.set_ss(ss)), Refusal::UnlistedStackSegment { ss });
        }
    }

    fn refuses_virtual_8086(machine) {
        let rflags = flags(1 << 17);
        assert_eq!(refusal_of(machine, |frame| frame.set_rflags(rflags)), Refusal::Virtual8086 { rflags });
    }

    fn refuses_virtual_interrupts(machine) {
        for rflags in [flags(1 << 19), flags(1 << 20)] {
            assert_eq!(refusal_of(machine, |frame| frame.set_rflags(rflags)), Refusal::VirtualInterrupts { rflags });
        }
    }

    fn refuses_reserved_flags(machine) {
        for rflags in [flags(1 << 3), flags(1 << 5), flags(1 << 15), flags(1 << 22), flags(1 << 63)] {
            assert_eq!(refusal_of(machine, |frame| frame.set_rflags(rflags)), Refusal::ReservedFlags { rflags });
        }
    }

    fn refuses_io_privilege(machine) {
        for rflags in [flags(1 << 12), flags(2 << 12), flags(3 << 12)] {
            assert_eq!(refusal_of(machine, |frame| frame.set_rflags(rflags)), Refusal::IoPrivilege { rflags });
        }
    }

    fn refuses_interrupts_off(machine) {
        let rflags = 0x2;
        assert_eq!(refusal_of(machine, |frame| frame.set_rflags(rflags)), Refusal::InterruptsOff { rflags });
    }
}
