//! Processes from start to burial, and what they wait for in between.
//!
//! Runs on TCG with any CPU model; one CPU.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use example_os::device::apic;
use example_os::entry::{PerCpu, TIMER_VECTOR};
use example_os::harness::killed;
use example_os::memory::frame;
use example_os::process::signal::Signal;
use example_os::process::{self, Target, WaitStatus};
use example_os::syscall::Errno;
use program::{Machine, program};

const SIGKILL: u8 = 9;
const SIGPIPE: u8 = 13;
const SIGWINCH: u8 = 28;

example_os::tests! { Machine;
    fn memory_of_a_process_comes_back(machine) {
        let code = program!("mov eax, 60", "xor edi, edi", "syscall", "ud2");
        // The first one fills what the kernel keeps, tables of kernel stacks for example.
        machine.run(code);
        let free = frame::free_count();
        for _ in 0..200 {
            assert_eq!(machine.run(code), WaitStatus::exited(0));
        }
        assert_eq!(frame::free_count(), free);
    }

    fn parent_sees_how_its_child_ended(machine) {
        // fork; the child exits with 5; wait4(-1, DATA, 0, 0); the parent exits with the status's second byte.
        let code = program!(
            "mov eax, 57", "syscall", "test eax, eax", "jnz 4f",
            "mov eax, 60", "mov edi, 5", "syscall", "ud2",
            "4:", "mov ebx, eax", "mov eax, 61", "mov edi, -1", "mov esi, 0x500000", "xor edx, edx", "xor r10d, r10d",
            "syscall", "cmp eax, ebx", "jne 5f", "movzx edi, byte ptr [0x500001]", "mov eax, 60", "syscall",
            "5:", "ud2",
        );
        assert_eq!(machine.run(code), WaitStatus::exited(5));
    }

    fn full_table_is_an_error_and_empties_again(machine) {
        // Forks until an error, reaps until an error; exits with 11 (EAGAIN) if the second one was ECHILD.
        let code = program!(
            "4:", "mov eax, 57", "syscall", "test rax, rax", "jz 6f", "jns 4b",
            "neg rax", "mov rbx, rax",
            "5:", "mov eax, 61", "mov edi, -1", "xor esi, esi", "xor edx, edx", "xor r10d, r10d", "syscall",
            "test rax, rax", "jns 5b", "cmp rax, -10", "jne 7f", "mov edi, ebx", "mov eax, 60", "syscall",
            "6:", "mov eax, 60", "xor edi, edi", "syscall",
            "7:", "ud2",
        );
        let free = frame::free_count();
        assert_eq!(machine.run(code), WaitStatus::exited(11));
        assert_eq!(machine.run(code), WaitStatus::exited(11));
        assert_eq!(frame::free_count(), free);
    }

    fn reader_of_an_empty_pipe_waits_until_it_is_killed(machine) {
        // pipe(DATA); read(its reading end).
        let pid = machine.start(program!(
            "mov eax, 22", "mov edi, 0x500000", "syscall",
            "xor eax, eax", "mov edi, [0x500000]", "mov esi, 0x500010", "mov edx, 1", "syscall", "ud2",
        ));
        assert_eq!(machine.finish(pid), None);
        let winch = Signal::new(SIGWINCH);
        assert_eq!(process::kill(Target::One(pid), winch, &machine.irq), Ok(()));
        assert_eq!(machine.finish(pid), None);
        assert_eq!(process::kill(Target::One(pid), Signal::new(SIGKILL), &machine.irq), Ok(()));
        assert_eq!(machine.finish(pid), Some(killed(SIGKILL)));
        assert_eq!(process::kill(Target::One(pid), None, &machine.irq), Err(Errno::ESRCH));
    }

    fn writer_without_reader_gets_sigpipe(machine) {
        // pipe(DATA); close(reading end); write(writing end).
        let code = program!(
            "mov eax, 22", "mov edi, 0x500000", "syscall",
            "mov eax, 3", "mov edi, [0x500000]", "syscall",
            "mov eax, 1", "mov edi, [0x500004]", "mov esi, 0x500000", "mov edx, 1", "syscall", "ud2",
        );
        assert_eq!(machine.run(code), killed(SIGPIPE));
    }

    fn long_write_passes_through_a_short_pipe(machine) {
        // The child writes 48 KiB of its stack in one call; the parent reads in pieces of up to 1000 bytes until the
        // end of the file, and exits with the bytes divided by 1024.
        let code = program!(
            "mov eax, 22", "mov edi, 0x500000", "syscall",
            "mov eax, 57", "syscall", "test eax, eax", "jz 6f",
            "mov eax, 3", "mov edi, [0x500004]", "syscall", "xor ebx, ebx",
            "4:", "xor eax, eax", "mov edi, [0x500000]", "mov esi, 0x500100", "mov edx, 1000", "syscall",
            "test rax, rax", "jz 5f", "js 7f", "add rbx, rax", "jmp 4b",
            "5:", "test ebx, 1023", "jnz 7f", "shr ebx, 10", "mov edi, ebx", "mov eax, 60", "syscall",
            "6:", "mov eax, 1", "mov edi, [0x500004]", "mov esi, 0x6f1000", "mov edx, 49152", "syscall",
            "cmp rax, 49152", "jne 7f", "mov eax, 60", "xor edi, edi", "syscall",
            "7:", "ud2",
        );
        let pid = machine.start(code);
        assert_eq!(machine.finish(pid), Some(WaitStatus::exited(48)));
    }

    fn bad_buffers_are_refused_and_nothing_is_lost(machine) {
        // write(1, kernel address) and pipe(kernel address) are EFAULT; read of a pipe into nowhere keeps the byte.
        let code = program!(
            "mov eax, 1", "mov edi, 1", "mov rsi, 0xffffffff80100000", "mov edx, 8", "syscall", "cmp rax, -14", "jne 4f",
            "mov eax, 22", "mov rdi, 0xffffffff80100000", "syscall", "cmp rax, -14", "jne 4f",
            "mov eax, 22", "mov edi, 0x500000", "syscall", "test rax, rax", "jnz 4f",
            "mov eax, 1", "mov edi, [0x500004]", "mov esi, 0x500000", "mov edx, 1", "syscall", "cmp rax, 1", "jne 4f",
            "xor eax, eax", "mov edi, [0x500000]", "xor esi, esi", "mov edx, 1", "syscall", "cmp rax, -14", "jne 4f",
            "xor eax, eax", "mov edi, [0x500000]", "mov esi, 0x500010", "mov edx, 9", "syscall", "cmp rax, 1", "jne 4f",
            // The failed pipe took no descriptor: the good one has 3 and 4.
            "cmp dword ptr [0x500000], 3", "jne 4f", "cmp dword ptr [0x500004], 4", "jne 4f",
            "xor edi, edi", "jmp 5f", "4:", "mov edi, 1", "5:", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(machine.run(code), WaitStatus::exited(0));
    }

    fn program_that_never_yields_is_preempted(machine) {
        // The child loops for ever; the parent lets it run three times, kills it, and exits with what wait4 says.
        let code = program!(
            "mov eax, 57", "syscall", "test eax, eax", "jz 5f", "mov ebx, eax", "mov ebp, 3",
            "4:", "mov eax, 24", "syscall", "dec ebp", "jnz 4b",
            "mov eax, 62", "mov edi, ebx", "mov esi, 9", "syscall",
            "mov eax, 61", "mov edi, ebx", "mov esi, 0x500000", "xor edx, edx", "xor r10d, r10d", "syscall",
            "mov edi, [0x500000]", "mov eax, 60", "syscall",
            "5:", "jmp 5b",
        );
        apic::timer_periodic(TIMER_VECTOR, 1_000_000);
        let status = machine.run(code);
        apic::timer_stop();
        assert_eq!(status, WaitStatus::exited(SIGKILL));
    }

    fn storm_of_timer_interrupts_corrupts_nothing(machine) {
        // Twelve programs at once, each 2000 times: checks its PID, yields, passes a byte through a pipe of its own, maps a
        // page, reads and writes it, unmaps it; and in the end checks the registers that must have survived all that.
        let code = program!(
            "mov eax, 39", "syscall", "mov r12, rax", "imul r13, r12, 0x1357", "imul r14, r12, 0x2468", "mov r15, rsp",
            "mov eax, 22", "mov edi, 0x500000", "syscall", "mov ebp, 2000",
            "4:",
            "mov eax, 39", "syscall", "cmp rax, r12", "jne 5f",
            "mov eax, 24", "syscall", "test rax, rax", "jnz 5f",
            "mov [0x500010], r12b",
            "mov eax, 1", "mov edi, [0x500004]", "mov esi, 0x500010", "mov edx, 1", "syscall", "cmp rax, 1", "jne 5f",
            "xor eax, eax", "mov edi, [0x500000]", "mov esi, 0x500020", "mov edx, 1", "syscall", "cmp rax, 1", "jne 5f",
            "cmp [0x500020], r12b", "jne 5f",
            "mov eax, 9", "xor edi, edi", "mov esi, 4096", "mov edx, 3", "mov r10d, 0x22", "mov r8, -1", "xor r9d, r9d",
            "syscall", "test rax, rax", "js 5f", "mov rbx, rax",
            "cmp qword ptr [rbx + 8], 0", "jne 5f", "mov [rbx + 16], r13", "cmp [rbx + 16], r13", "jne 5f",
            "mov eax, 11", "mov rdi, rbx", "mov esi, 4096", "syscall", "test rax, rax", "jnz 5f",
            "dec ebp", "jnz 4b",
            "imul rcx, r12, 0x1357", "cmp rcx, r13", "jne 5f", "imul rcx, r12, 0x2468", "cmp rcx, r14", "jne 5f",
            "cmp rsp, r15", "jne 5f",
            "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        let free = frame::free_count();
        let before = PerCpu::current(&machine.irq).ticks();
        let pids: [u32; 12] = core::array::from_fn(|_| machine.start(code));
        apic::timer_periodic(TIMER_VECTOR, 20_000);
        for pid in pids {
            assert_eq!(machine.finish(pid), Some(WaitStatus::exited(0)));
        }
        apic::timer_stop();
        assert!(PerCpu::current(&machine.irq).ticks() - before > 100);
        assert_eq!(frame::free_count(), free);
    }
}
