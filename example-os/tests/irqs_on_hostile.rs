//! SYSCALL with interrupts left on, against programs that want an interrupt where RSP is theirs.
//!
//! Runs on TCG with `-icount shift=0`, so that an interrupt can come after any instruction; any CPU model. 32-bit SYSCALL reaches its stub on every model under TCG, on hardware only on AMD CPUs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use entry_core::TrapFrame;
use entry_core::vector::Vector;
use example_os::device::apic;
use example_os::entry::{self, PerCpu, TIMER_VECTOR};
use example_os::process::WaitStatus;
use example_os::process::signal::Signal;
use program::{Machine, STACK_TOP, program};

/// Ticks of the timer while a program runs: often enough to hit a window of a few instructions many times.
const OFTEN: u32 = 10_007;

/// Instructions from the start of the timer to the interrupt: they lead from the way out of UD2 past the way in of SYSCALL.
const COUNTS: core::ops::Range<u64> = 40..160;

/// Starts the timer at UD2, with the count in RBX, and skips it.
fn start_timer(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::INVALID_OPCODE.0 {
        return false;
    }
    apic::timer_one_shot(TIMER_VECTOR, u32::try_from(frame.rbx()).unwrap_or(u32::MAX));
    frame.set_rip(frame.rip() + 2);
    true
}

/// Runs a program among many interrupts: how it ended, and how many there were.
fn run_among_interrupts(machine: &mut Machine, code: &[u8]) -> (WaitStatus, u64) {
    let before = PerCpu::current(&machine.irq).ticks();
    apic::timer_periodic(TIMER_VECTOR, OFTEN);
    let status = machine.run(code);
    apic::timer_stop();
    (status, PerCpu::current(&machine.irq).ticks() - before)
}

example_os::tests! { Machine;
    fn a_system_call_from_32_bit_code_can_be_interrupted(machine) {
        // There are no 32-bit programs, so the first way out of the kernel ends each of these.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 1", "mov esi, 8", "int 0x80", "test eax, eax", "jnz 5f",
            "lea rcx, [rip + 4f]", "mov [0x500000], ecx", "mov dword ptr [0x500004], 0x1b",
            // A stack pointer that the kernel must not push to.
            "mov rsp, 0xffffffff00000000",
            "ud2",
            ".byte 0xff, 0x2c, 0x25, 0, 0, 0x50, 0",
            ".code32", "4:", "syscall", "jmp 4b", ".code64",
            "5:", "mov edi, 1", "mov eax, 60", "syscall", "ud2",
        );
        let mut frame = entry::first_frame(program::CODE, STACK_TOP);
        let before = PerCpu::current(&machine.irq).ticks();
        entry::set_kernel_hook(Some(start_timer));
        for count in COUNTS {
            frame.set_rbx(count);
            let pid = machine.start_at(program::CODE, code, &frame);
            let status = machine.finish(pid);
            assert_eq!(status, Some(WaitStatus::killed(Signal::SIGSEGV)), "count {count}");
            apic::timer_stop();
        }
        entry::set_kernel_hook(None);
        // The longest counts lead past the program's end.
        let ticks = PerCpu::current(&machine.irq).ticks() - before;
        assert!(ticks > COUNTS.end - COUNTS.start - 60, "{ticks} interrupts");
    }

    fn a_program_can_go_back_to_interrupts_off_among_interrupts(machine) {
        let code = program!(
            "mov ebx, 300000",
            // A stack pointer that the kernel must not push to.
            "mov rsp, 0xffffffff00000000",
            // Of another length each time, or the timer would keep step.
            "4:", "imul ecx, ebx, 7919", "and ecx, 127", "6:", "dec ecx", "jns 6b",
            "mov eax, 0x4558", "mov edi, 1", "mov esi, 8", "int 0x80", "test eax, eax", "jnz 5f",
            "mov eax, 0x4558", "mov edi, 1", "xor esi, esi", "syscall", "test eax, eax", "jnz 5f",
            "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2", "5:", "mov edi, 1", "mov eax, 60", "syscall", "ud2",
        );
        let (status, ticks) = run_among_interrupts(machine, code);
        assert_eq!(status, WaitStatus::exited(0));
        assert!(ticks > 100, "{ticks} interrupts are too few to mean anything");
    }
}
