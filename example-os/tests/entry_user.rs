//! Entries from user mode and back, with whatever a program can put into its registers.
//!
//! Runs on TCG with any CPU model. TCG clears RF in fault frames and drops DF at SYSCALL by itself, so those two are not
//! shown here; 32-bit SYSCALL reaches its stub on every model under TCG, on hardware only on AMD CPUs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/held_back.rs"]
mod held_back;
#[path = "process/program.rs"]
mod program;

use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::msr::{Cpu, Lstar, Register};
use entry_core::rflags::Rflags;
use entry_core::vector::Vector;
use entry_core::windows::{self, flags};
use entry_core::{IrqOff, TrapFrame};
use example_os::boot;
use example_os::device::apic;
use example_os::entry::{self, PerCpu, TIMER_VECTOR};
use example_os::harness::{FINE, is_bochs, killed};
use example_os::memory::USER_LIMIT;
use example_os::process::signal::Signal;
use example_os::process::{self, WaitStatus};
use program::{CODE, Machine, STACK_TOP, program};

const SIGILL: u8 = 4;
const SIGTRAP: u8 = 5;
const SIGFPE: u8 = 8;
const SIGSEGV: u8 = 11;
const SIGPIPE: u8 = 13;

/// NT, AC, DF, ID and the arithmetic flags.
const LOUD_FLAGS: u32 = 0x4000 | 0x4_0000 | 0x400 | 0x20_0000 | 0x8d5;

/// RFLAGS as they were in the handler of UD2.
static HANDLERS_FLAGS: AtomicU64 = AtomicU64::new(0);

/// Skips UD2, which would end a program.
fn skip_ud2(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::INVALID_OPCODE.0 {
        return false;
    }
    let flags: u64;
    // SAFETY: what is pushed is popped.
    unsafe { core::arch::asm!("pushfq", "pop {}", out(reg) flags) };
    HANDLERS_FLAGS.store(flags, Ordering::Relaxed);
    frame.set_rip(frame.rip() + 2);
    true
}

/// What RBX of a program says about it: that it is to be ended, and that it waits for an NMI.
const DOOMED: u64 = 7;
const WAITING: u64 = 5;

/// An NMI ends one program and frees another from its wait. One that comes too early is tried again.
fn on_nmi(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::NMI.0 {
        return false;
    }
    match (frame.is_user(), frame.rbx()) {
        (true, WAITING) => {
            frame.set_rbx(0);
            return true;
        }
        // SAFETY: interrupts are off in the handler, and the proof ends here.
        (true, DOOMED) => process::current().raise(Signal::SIGPIPE, &unsafe { IrqOff::assume() }),
        _ => {}
    }
    apic::timer_nmi(100_000);
    true
}

/// Where the frame of the last #DB was, and whether it came in a window of the stubs.
static DEBUG_FRAME: AtomicU64 = AtomicU64::new(0);
static WINDOW_BREAKPOINTS: AtomicU64 = AtomicU64::new(0);

fn pass_breakpoints(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::DEBUG.0 {
        return false;
    }
    DEBUG_FRAME.store(core::ptr::from_ref(frame).addr() as u64, Ordering::Relaxed);
    if windows::find(frame.rip()).is_some() {
        WINDOW_BREAKPOINTS.fetch_add(1, Ordering::Relaxed);
    }
    frame.set_rflags(frame.rflags() | Rflags::RESUME.bits());
    true
}

/// Sets an instruction breakpoint, or takes it away.
fn set_breakpoint(at: Option<u64>) {
    let control = if at.is_some() { 0x402_u64 } else { 0x400 };
    // SAFETY: whoever sets one has a hook that answers it.
    unsafe {
        core::arch::asm!("mov dr0, {}", "mov dr7, {}", in(reg) at.unwrap_or(0), in(reg) control, options(nostack))
    };
}

example_os::tests! { Machine;
    fn exits_with_its_code(machine) {
        assert_eq!(machine.run(program!("mov eax, 60", "mov edi, 0x1207", "syscall", "ud2")), WaitStatus::exited(7));
        assert_eq!(machine.run(program!("mov eax, 231", "mov edi, 9", "syscall", "ud2")), WaitStatus::exited(9));
    }

    fn unexpected_exceptions_end_the_program(machine) {
        assert_eq!(machine.run(program!("ud2")), killed(SIGILL));
        assert_eq!(machine.run(program!("xor ecx, ecx", "div ecx")), killed(SIGFPE));
        assert_eq!(machine.run(program!("int3")), killed(SIGTRAP));
        assert_eq!(machine.run(program!("hlt")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("cli")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("xor ecx, ecx", "mov eax, [rcx]")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("mov rcx, 0xffffffff80000000", "jmp rcx")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("mov rcx, 0x800000000000", "jmp rcx")), killed(SIGSEGV));
    }

    fn vectors_of_devices_and_exceptions_are_not_for_programs(machine) {
        assert_eq!(machine.run(program!("int 0x40")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("int 14")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("int 8")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("int 2")), killed(SIGSEGV));
        assert_eq!(machine.run(program!("int 1")), killed(SIGSEGV));
    }

    fn a_number_of_a_system_call_is_bounded_and_has_32_bits(machine) {
        let code = program!(
            "mov eax, 39", "syscall", "mov ebx, eax",
            // The lower half is the number, in the comparison and in the table alike.
            "mov rax, 0x500000027", "syscall", "cmp rax, rbx", "jne 5f",
            "mov rax, 0xffffffff00000027", "syscall", "cmp rax, rbx", "jne 5f",
            // Behind the last entry, and far behind.
            "lea r12, [rip + 7f]",
            "4:", "mov rax, [r12]", "syscall", "cmp rax, -38", "jne 5f",
            "add r12, 8", "lea rcx, [rip + 8f]", "cmp r12, rcx", "jb 4b",
            "xor edi, edi", "6:", "mov eax, 60", "syscall", "ud2", "5:", "mov edi, 1", "jmp 6b",
            ".balign 8", "7:", ".quad 255, 256, 295, 0x7fffffff, 0x80000000, 0x80000027, 0xffffffff, -1", "8:",
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn int80_offers_the_control_call_alone(machine) {
        let code = program!(
            "mov eax, 39", "int 0x80", "cmp rax, -38", "jne 4f",
            "mov eax, 0x4558", "xor edi, edi", "int 0x80", "cmp eax, 0x454e5452", "jne 4f",
            "xor edi, edi", "jmp 5f", "4:", "mov edi, 1", "5:", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn loud_flags_survive_a_system_call(machine) {
        // The kernel must not keep them either: NT would make its IRET fault, AC would open user memory to it.
        let code = program!(
            "push {flags} + 0x202", "mov rbx, [rsp]", "mov eax, 39", "popfq", "syscall",
            "pushfq", "pop rcx", "push 0x202", "popfq",
            "xor edi, edi", "cmp rcx, rbx", "setne dil", "mov eax, 60", "syscall", "ud2";
            flags = LOUD_FLAGS
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn loud_flags_survive_a_page_fault(machine) {
        let code = program!(
            "push {flags} + 0x202", "mov rbx, [rsp]", "mov esi, 0x500000", "popfq", "mov eax, [rsi]",
            "pushfq", "pop rcx", "push 0x202", "popfq",
            // Hardware adds RF to the frame of a fault, and IRET consumes it.
            "xor edi, edi", "cmp rcx, rbx", "setne dil", "mov eax, 60", "syscall", "ud2";
            flags = LOUD_FLAGS
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn loud_flags_survive_int80(machine) {
        let code = program!(
            "push {flags} + 0x202", "mov rbx, [rsp]", "mov eax, 0x4558", "xor edi, edi", "popfq", "int 0x80",
            "pushfq", "pop rcx", "push 0x202", "popfq",
            "xor edi, edi", "cmp rcx, rbx", "setne dil", "cmp eax, 0x454e5452", "setne al", "or dil, al",
            "mov eax, 60", "syscall", "ud2";
            flags = LOUD_FLAGS
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn loud_flags_survive_an_exception(machine) {
        let code = program!(
            "push {flags} + 0x202", "mov rbx, [rsp]", "popfq", "ud2",
            "pushfq", "pop rcx", "push 0x202", "popfq",
            "xor edi, edi", "cmp rcx, rbx", "setne dil", "mov eax, 60", "syscall", "hlt";
            flags = LOUD_FLAGS
        );
        entry::set_kernel_hook(Some(skip_ud2));
        let status = machine.run(code);
        entry::set_kernel_hook(None);
        assert_eq!(status, FINE);
        // TF, IF, DF and NT; and AC, where it means something to the kernel.
        let alignment_check = if boot::cpu::features().smap { 0x4_0000 } else { 0 };
        assert_eq!(HANDLERS_FLAGS.load(Ordering::Relaxed) & (0x4700 | alignment_check), 0);
    }

    #[should_panic = "interrupt 0x80 was raised by a device"]
    fn a_device_that_raises_the_system_calls_vector_ends_the_machine(machine) {
        apic::timer_one_shot(Vector::INT80.0, 1_000_000);
        // RAX is the number of a call that INT 0x80 offers.
        let status = machine.run(program!("mov eax, 0x4558", "xor edi, edi", "mov ecx, 100000000", "4:", "loop 4b", "ud2"));
        panic!("it ended with {status:?}");
    }

    fn a_stack_pointer_into_the_stack_of_an_event_fools_nobody(machine) {
        entry::set_kernel_hook(Some(pass_breakpoints));
        // SAFETY: one #DB after the NOP and one after the second POPF, which clears TF.
        unsafe { core::arch::asm!("pushfq", "pushfq", "or dword ptr [rsp], 0x100", "popfq", "nop", "popfq") };
        // RSP at the end of the stub of #DB, when only the interrupt image is left on its stack.
        let at_the_end = DEBUG_FRAME.load(Ordering::Relaxed) + TrapFrame::RIP as u64;
        WINDOW_BREAKPOINTS.store(0, Ordering::Relaxed);
        let mut frame = entry::first_frame(CODE, STACK_TOP);
        frame.set_rbx(at_the_end);
        let code = program!(
            "mov ebp, 3",
            "4:", "mov rsp, rbx", "mov eax, 110", "syscall", "cmp rsp, rbx", "jne 5f", "dec ebp", "jnz 4b",
            "xor edi, edi", "6:", "mov eax, 60", "syscall", "ud2", "5:", "mov edi, 1", "jmp 6b",
        );
        let pid = machine.start_at(CODE, code, &frame);
        // SAFETY: 1. this is the kernel. 2. Every CPU in 64-bit mode has it.
        set_breakpoint(Some(unsafe { Lstar::read(&mut Cpu) }.bits()));
        let status = machine.finish(pid);
        set_breakpoint(None);
        entry::set_kernel_hook(None);
        assert_eq!(status, Some(FINE));
        // Three calls, and the last one.
        assert_eq!(WINDOW_BREAKPOINTS.load(Ordering::Relaxed), 4);
    }

    fn a_data_breakpoint_that_mov_ss_holds_back_does_no_harm(machine) {
        // Whether it is held back until the kernel's first instruction, the emulator decides; TCG raises it at once.
        let code = program!(
            "mov word ptr [0x500000], 0x23", "mov eax, 110", "mov ss, word ptr [0x500000]", "syscall",
            "xor edi, edi", "test rax, rax", "sets dil", "mov eax, 60", "syscall", "ud2",
        );
        let (status, hits, kernel_rip) = held_back::run(machine, code);
        assert_eq!(status, FINE);
        assert_eq!(hits, if is_bochs() { [1, 1] } else { [2, 0] });
        if is_bochs() {
            // The very first instruction: nothing is the kernel's yet.
            let nothing = flags::USER_GS | flags::USER_RSP;
            let window = windows::find(kernel_rip).map_or(0, windows::Window::flags);
            assert_eq!(window & nothing, nothing, "{kernel_rip:#x}");
        }
    }

    fn trap_flag_at_int80_or_an_exception_traps_the_program(machine) {
        let code = program!(
            "mov eax, 0x4558", "xor edi, edi", "pushfq", "or dword ptr [rsp], 0x100", "popfq", "int 0x80", "nop", "hlt"
        );
        assert_eq!(machine.run(code), killed(SIGTRAP));
        let code = program!("pushfq", "or dword ptr [rsp], 0x100", "popfq", "ud2", "nop", "hlt");
        entry::set_kernel_hook(Some(skip_ud2));
        let status = machine.run(code);
        entry::set_kernel_hook(None);
        assert_eq!(status, killed(SIGTRAP));
    }

    fn trap_flag_at_syscall_traps_the_program(machine) {
        if is_bochs() {
            example_os::skip!("Bochs 2.7 traps at the target of SYSCALL although SFMASK clears TF");
        }
        let code = program!("mov eax, 39", "pushfq", "or dword ptr [rsp], 0x100", "popfq", "syscall", "nop", "ud2");
        assert_eq!(machine.run(code), killed(SIGTRAP));
    }

    fn any_stack_pointer_survives_a_system_call(machine) {
        let code = program!(
            "mov r12, rsp",
            "lea rbx, [rip + 6f]",
            "4:", "mov rsp, [rbx]", "mov eax, 39", "syscall", "cmp rsp, [rbx]", "jne 5f",
            "add rbx, 8", "lea rcx, [rip + 7f]", "cmp rbx, rcx", "jb 4b",
            "mov rsp, r12", "xor edi, edi", "mov eax, 60", "syscall", "ud2",
            "5:", "mov edi, 1", "mov eax, 60", "syscall", "ud2",
            ".balign 8",
            "6:", ".quad 0, 1, 0x7fffffffffff, 0x800000000000, 0xffff800000000000, 0xffffffff80000000, -1", "7:",
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn any_stack_pointer_survives_a_page_fault(machine) {
        let code = program!(
            "mov rsp, -1", "mov esi, 0x500000", "mov eax, [rsi]", "xor edi, edi", "cmp rsp, -1", "setne dil",
            "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn a_system_call_at_the_end_of_user_space_is_refused(machine) {
        // SYSCALL as the last two bytes below the limit: its return address is the limit itself.
        let address = USER_LIMIT - 2;
        let mut frame = entry::first_frame(address, STACK_TOP);
        frame.set_rax(39);
        let pid = machine.start_at(address, program!("syscall"), &frame);
        assert_eq!(machine.finish(pid), Some(killed(SIGSEGV)));
    }

    fn a_fault_of_32_bit_code_is_refused(machine) {
        // A fault that is answered: the program could go on but for its code segment.
        let code = program!(
            "lea rcx, [rip + 4f]", "mov [0x500000], ecx", "mov dword ptr [0x500004], 0x1b", "mov esi, 0x6f1000",
            // A far jump through memory: TCG makes RETF and IRET read the stack as the kernel, which SMAP forbids.
            ".byte 0xff, 0x2c, 0x25, 0, 0, 0x50, 0",
            ".code32", "4:", "mov eax, [esi]", "ud2", ".code64",
        );
        assert_eq!(machine.run(code), killed(SIGSEGV));
    }

    fn system_call_from_32_bit_code_offers_none_of_the_64_bit_calls(machine) {
        // It would end the program with status 0; the exit refuses to go back to 32-bit code.
        let code = program!(
            "lea rcx, [rip + 4f]", "mov [0x500000], ecx", "mov dword ptr [0x500004], 0x1b", "mov eax, 60", "xor edi, edi",
            ".byte 0xff, 0x2c, 0x25, 0, 0, 0x50, 0",
            ".code32", "4:", "syscall", "ud2", ".code64",
        );
        // Bochs' Intel model has no such instruction there, as Intel's CPUs don't; the other emulator goes by EFER.
        let is_undefined = is_bochs() && boot::cpu::features().vendor == *b"GenuineIntel";
        assert_eq!(machine.run(code), killed(if is_undefined { SIGILL } else { SIGSEGV }));
    }

    fn nmis_are_unblocked_after_one_that_ended_its_program(machine) {
        if is_bochs() {
            example_os::skip!("the timer of Bochs delivers no NMI");
        }
        // It is switched out in a system call, which it leaves by SYSRET: that unblocks no NMI.
        let waiting = program!(
            "mov eax, 24", "syscall", "mov ebx, {waiting}", "mov ecx, 100000000",
            "4:", "pause", "test ebx, ebx", "jz 5f", "dec ecx", "jnz 4b",
            "5:", "mov edi, ebx", "mov eax, 60", "syscall", "ud2";
            waiting = WAITING
        );
        let waiting = machine.start(waiting);
        let doomed = machine.start(program!("mov ebx, {doomed}", "4:", "pause", "jmp 4b"; doomed = DOOMED));
        entry::set_kernel_hook(Some(on_nmi));
        apic::timer_nmi(1_000_000);
        let status = machine.finish(waiting);
        entry::set_kernel_hook(None);
        assert_eq!(machine.finish(doomed), Some(killed(SIGPIPE)));
        assert_eq!(status, Some(FINE));
    }

    fn timer_interrupt_keeps_every_register(machine) {
        let code = program!(
            "mov rax, 1", "mov rbx, 2", "mov rdx, 4", "mov rsi, 5", "mov rdi, 6", "mov rbp, 7", "mov r8, 8", "mov r9, 9",
            "mov r10, 10", "mov r11, 11", "mov r12, 12", "mov r13, 13", "mov r14, 14", "mov r15, 15",
            "mov rcx, 100000000", "4:", "dec rcx", "jnz 4b",
            "lea rcx, [rax + 2 * rbx]", "lea rcx, [rcx + 4 * rdx]", "lea rcx, [rcx + 8 * rsi]", "add rcx, rdi",
            "lea rcx, [rcx + 2 * rbp]", "lea rcx, [rcx + 4 * r8]", "lea rcx, [rcx + 8 * r9]", "add rcx, r10",
            "lea rcx, [rcx + 2 * r11]", "lea rcx, [rcx + 4 * r12]", "lea rcx, [rcx + 8 * r13]", "add rcx, r14",
            "lea rcx, [rcx + 2 * r15]",
            "xor edi, edi",
            // 1 + 2*2 + 4*4 + 8*5 + 6 + 2*7 + 4*8 + 8*9 + 10 + 2*11 + 4*12 + 8*13 + 14 + 2*15
            "cmp rcx, 413", "setne dil", "mov eax, 60", "syscall", "ud2",
        );
        let before = PerCpu::current(&machine.irq).ticks();
        apic::timer_periodic(TIMER_VECTOR, 1_000_000);
        let status = machine.run(code);
        apic::timer_stop();
        assert_eq!(status, FINE);
        assert!(PerCpu::current(&machine.irq).ticks() > before);
    }

    fn bases_of_fs_and_gs_are_the_programs(machine) {
        // arch_prctl: 0x1002 sets FS, 0x1001 sets GS, 0x1003 stores FS; an address of the kernel is refused.
        let code = program!(
            "mov dword ptr [0x500000], 0x1234", "mov dword ptr [0x500100], 0x5678",
            "mov eax, 158", "mov edi, 0x1002", "mov esi, 0x500000", "syscall", "test rax, rax", "jnz 4f",
            "mov eax, 158", "mov edi, 0x1001", "mov esi, 0x500100", "syscall", "test rax, rax", "jnz 4f",
            "cmp dword ptr fs:[0], 0x1234", "jne 4f", "cmp dword ptr gs:[0], 0x5678", "jne 4f",
            "mov eax, 24", "syscall",
            "cmp dword ptr fs:[0], 0x1234", "jne 4f", "cmp dword ptr gs:[0], 0x5678", "jne 4f",
            "mov eax, 158", "mov edi, 0x1003", "mov esi, 0x500008", "syscall", "test rax, rax", "jnz 4f",
            "cmp qword ptr [0x500008], 0x500000", "jne 4f",
            "mov eax, 158", "mov edi, 0x1001", "mov rsi, 0xffffffff80000000", "syscall", "cmp rax, -1", "jne 4f",
            "mov eax, 158", "mov edi, 0x1002", "mov rsi, 0x800000000000", "syscall", "cmp rax, -1", "jne 4f",
            "xor edi, edi", "jmp 5f", "4:", "mov edi, 1", "5:", "mov eax, 60", "syscall", "ud2",
        );
        // Two of them: the second one's yield switches to the first one and back.
        let first = machine.start(code);
        let second = machine.start(code);
        assert_eq!(machine.finish(first), Some(FINE));
        assert_eq!(machine.finish(second), Some(FINE));
        // A load of the selectors makes the bases 0 for the program that does it, not for another one with the same bases.
        let code = program!(
            "mov dword ptr [0x500000], 0x1234",
            "mov eax, 158", "mov edi, 0x1002", "mov esi, 0x500000", "syscall",
            "mov eax, 158", "mov edi, 0x1001", "mov esi, 0x500000", "syscall",
            "mov eax, 24", "syscall",
            "cmp dword ptr fs:[0], 0x1234", "jne 4f", "cmp dword ptr gs:[0], 0x1234", "jne 4f",
            "xor edi, edi", "mov fs, edi", "mov gs, edi", "jmp 5f", "4:", "mov edi, 1", "5:", "mov eax, 60", "syscall", "ud2",
        );
        let first = machine.start(code);
        let second = machine.start(code);
        assert_eq!(machine.finish(first), Some(FINE));
        assert_eq!(machine.finish(second), Some(FINE));
        // A program that sets none has none of theirs.
        let plain = program!("mov eax, gs:[0]", "ud2");
        assert_eq!(machine.run(plain), killed(SIGSEGV));
    }

    fn segment_registers_are_the_programs(machine) {
        // Whatever the other programs load, DS, ES, FS and GS are as this one left them; so are the bases of FS and GS, which a
        // selector takes away.
        let loads = program!(
            "mov eax, 0x23", "mov ds, eax", "mov eax, 0x2b", "mov es, eax", "mov eax, 0x33", "mov fs, eax",
            "mov eax, 0x20", "mov gs, eax", "mov ebx, 20",
            "4:", "mov eax, 24", "syscall",
            "mov eax, ds", "cmp eax, 0x23", "jne 5f", "mov eax, es", "cmp eax, 0x2b", "jne 5f",
            "mov eax, fs", "cmp eax, 0x33", "jne 5f", "mov eax, gs", "cmp eax, 0x20", "jne 5f",
            "dec ebx", "jnz 4b",
            // A child has them, too.
            "mov eax, 57", "syscall", "mov ebx, eax", "mov eax, fs", "cmp eax, 0x33", "jne 5f",
            "test ebx, ebx", "jz 6f",
            "mov edi, -1", "mov esi, 0x500000", "xor edx, edx", "xor r10d, r10d", "mov eax, 61", "syscall",
            "test eax, eax", "js 5f", "cmp dword ptr [0x500000], 0", "jne 5f",
            "6:", "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        let leaves_null = program!(
            "mov ebx, 20",
            "4:", "mov ecx, ds", "mov eax, es", "or ecx, eax", "mov eax, fs", "or ecx, eax", "mov eax, gs", "or ecx, eax",
            "jnz 5f", "mov eax, 24", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        let has_bases = program!(
            "mov dword ptr [0x500000], 0x1234", "mov dword ptr [0x500100], 0x5678", "mov ebx, 20",
            "mov eax, 158", "mov edi, 0x1002", "mov esi, 0x500000", "syscall", "test rax, rax", "jnz 5f",
            "mov eax, 158", "mov edi, 0x1001", "mov esi, 0x500000", "syscall", "test rax, rax", "jnz 5f",
            // From here on GS has base 0.
            "mov eax, 0x23", "mov gs, eax",
            "4:", "mov eax, 24", "syscall",
            "cmp dword ptr fs:[0], 0x1234", "jne 5f", "mov ecx, 0x500100", "cmp dword ptr gs:[rcx], 0x5678", "jne 5f",
            "mov eax, gs", "cmp eax, 0x23", "jne 5f",
            "dec ebx", "jnz 4b",
            // A base takes the selector away.
            "mov eax, 158", "mov edi, 0x1001", "mov esi, 0x500100", "syscall", "test rax, rax", "jnz 5f",
            "mov eax, gs", "test eax, eax", "jnz 5f", "mov eax, 24", "syscall", "cmp dword ptr gs:[0], 0x5678", "jne 5f",
            "xor edi, edi", "jmp 6f", "5:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        let pids = [loads, leaves_null, has_bases, leaves_null, loads].map(|code| machine.start(code));
        for pid in pids {
            assert_eq!(machine.finish(pid), Some(FINE));
        }
        // Nor does one that comes after.
        assert_eq!(machine.run(loads), FINE);
        assert_eq!(machine.run(leaves_null), FINE);
    }
}
