//! SYSCALL with interrupts left on, in real time: timer interrupts as fast as they come, wherever they come.
//!
//! The sweep puts one interrupt at each boundary; this puts many anywhere, with switches between processes that have
//! interrupts on at SYSCALL and one that has not. Runs on TCG with any CPU model, without `-icount`: it is the host that
//! decides where an interrupt falls.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
#[expect(dead_code, reason = "its programs run side by side")]
mod program;

use entry_core::IrqOff;
use example_os::device::apic;
use example_os::entry::{PerCpu, TIMER_VECTOR};
use example_os::harness::{FINE, rounds};
use program::{Machine, program};

/// Nanoseconds between two interrupts of a storm: some hundred instructions.
const PERIOD: u32 = 20_000;

/// Interrupts, switches, and those of them in the middle of a system call.
fn counts(irq: &IrqOff) -> [u64; 3] {
    let cpu = PerCpu::current(irq);
    [cpu.ticks(), cpu.switches(), cpu.preemptions()]
}

example_os::tests! { Machine;
    fn a_storm_of_interrupts_changes_nothing(machine) {
        // Set of stubs 8. Then, with RSP pointing into the kernel, calls that must leave all registers alone but RAX, RCX
        // and R11; RBX counts, and R12 has what RCX and R11 are added to.
        let irqs_on = program!(
            "mov eax, 0x4558", "mov edi, 1", "mov esi, 8", "int 0x80", "test rax, rax", "jnz 6f",
            "mov ebx, 300000", "mov rsp, -1", "mov rdi, 0x11111111", "mov rsi, 0x22222222", "mov rdx, 0x33333333",
            "mov rbp, 0x44444444", "mov r8, 0x55555555", "mov r9, 0x66666666", "mov r10, 0x77777777",
            "mov r12, 0x88888888", "mov r13, 0x99999999", "mov r14, 0xaaaaaaaa", "mov r15, 0xbbbbbbbb",
            "4:", "mov eax, 39", "syscall", "5:", "lea rax, [rip + 5b]", "cmp rax, rcx", "jne 6f",
            "lea rax, [rdi + rsi]", "add rax, rdx", "add rax, rbp", "add rax, r8", "add rax, r9", "add rax, r10",
            "add rax, r12", "add rax, r13", "add rax, r14", "add rax, r15", "mov rcx, {sum}", "cmp rax, rcx", "jne 6f",
            "cmp rsp, -1", "jne 6f", "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 7f", "6:", "mov edi, 1", "7:", "mov eax, 60", "syscall", "ud2";
            sum = 0x1111_1111_u64 * 66
        );
        // The same stubs, yielding and faulting; and a program that has interrupts off at SYSCALL.
        let yielding = program!(
            "mov eax, 0x4558", "mov edi, 1", "mov esi, 8", "int 0x80", "test rax, rax", "jnz 6f",
            "mov ebx, 50000", "4:", "mov eax, 24", "syscall", "test rax, rax", "jnz 6f", "mov eax, [0x500000]",
            "mov eax, 110", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 7f", "6:", "mov edi, 1", "7:", "mov eax, 60", "syscall", "ud2",
        );
        let plain = program!(
            "mov ebx, 50000", "4:", "mov eax, 24", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        for _ in 0..rounds() {
            let before = counts(&machine.irq);
            let programs = [irqs_on, yielding, plain, irqs_on].map(|code| machine.start(code));
            apic::timer_periodic(TIMER_VECTOR, PERIOD);
            let ends = programs.map(|pid| machine.finish(pid));
            apic::timer_stop();
            let after = counts(&machine.irq);
            let [ticks, switches, preemptions] = core::array::from_fn(|index| after[index] - before[index]);
            example_os::println!("storm: {ticks} interrupts, {switches} switches, {preemptions} in system calls");
            assert_eq!(ends, [Some(FINE); 4]);
            assert!(ticks > 200 && switches > 1000, "{ticks} interrupts, {switches} switches");
            assert!(preemptions > 20, "{preemptions} switches in system calls");
        }
    }
}
