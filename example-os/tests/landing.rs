//! Page faults that are left through the landing page: whatever the program has, it has it after.
//!
//! Runs on TCG with any CPU model, and on Bochs, where frames of faults have RF. Neither has shadow stacks, so that reason to
//! leave by IRET is not shown here.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::TrapFrame;
use entry_core::vector::Vector;
use example_os::device::apic;
use example_os::entry::{self, PerCpu, TIMER_VECTOR};
use example_os::harness::FINE;
use example_os::memory::layout::LANDING_PAGE;
use example_os::process::WaitStatus;
use program::{CODE, Machine, STACK_TOP, program};

/// RSP of a program in a page that it has touched, away from the page's ends.
const RSP: u64 = STACK_TOP - 0x800;

/// What the last breakpoint saw.
static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Notes RSP and the words below the red zone, for tests that ask what was written; skips nothing.
fn note_stack(frame: &mut TrapFrame) -> bool {
    if frame.vector() != Vector::BREAKPOINT.0 {
        return false;
    }
    for (word, seen) in (0..).zip(&SEEN) {
        let value = example_os::memory::user::read_user_u64(frame.rsp().wrapping_sub(152).wrapping_add(8 * word));
        seen.store(value.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    true
}

/// Runs `code` with RSP and RFLAGS as given, and returns how it ended and the words below its red zone at its breakpoint.
fn run_with(machine: &mut Machine, code: &[u8], rsp: u64, rflags: u64) -> (WaitStatus, [u64; 3]) {
    for seen in &SEEN {
        seen.store(0, Ordering::Relaxed);
    }
    let mut frame = entry::first_frame(CODE, rsp);
    frame.set_rflags(rflags);
    entry::set_kernel_hook(Some(note_stack));
    let pid = machine.start_at(CODE, code, &frame);
    let status = machine.finish(pid).unwrap();
    entry::set_kernel_hook(None);
    (status, SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed)))
}

/// The program: touches its stack unless RSP is special, asks for the landing page, fills all registers and the red zone,
/// reads a fresh page, and compares. R14 is the code's own: the address that it reads.
fn touches(machine: &mut Machine, rsp: u64, rflags: u64) -> [u64; 3] {
    let code = program!(
        "mov r15, rsp",
        "mov rsp, 0x700000",
        "push 0",
        "push 0",
        "sub rsp, 0x1100",
        "push 0",
        "mov rsp, r15",
        "mov eax, 0x4558",
        "mov edi, 2",
        "mov esi, 2",
        "int 0x80",
        "test eax, eax",
        "jnz 4f",
        "mov r14d, 0x500000",
        "mov rbx, 0x1111111111111111",
        "mov rcx, 0x2222222222222222",
        "mov rdx, 0x3333333333333333",
        "mov rsi, 0x4444444444444444",
        "mov rdi, 0x5555555555555555",
        "mov rbp, 0x6666666666666666",
        "mov r8, 0x7777777777777777",
        "mov r9, 0x8888888888888888",
        "mov r10, 0x9999999999999999",
        "mov r11, 0xaaaaaaaaaaaaaaaa",
        "mov r12, 0xbbbbbbbbbbbbbbbb",
        "mov r13, 0xcccccccccccccccc",
        // The fault. Only AL changes.
        "mov al, [r14]",
        "int3",
        "cmp rsp, r15",
        "jne 4f",
        "mov rax, 0x2222222222222222",
        "cmp rcx, rax",
        "jne 4f",
        "mov rax, 0xaaaaaaaaaaaaaaaa",
        "cmp r11, rax",
        "jne 4f",
        "mov rax, 0x1111111111111111",
        "cmp rbx, rax",
        "jne 4f",
        "mov rax, 0x3333333333333333",
        "cmp rdx, rax",
        "jne 4f",
        "mov rax, 0x4444444444444444",
        "cmp rsi, rax",
        "jne 4f",
        "mov rax, 0x5555555555555555",
        "cmp rdi, rax",
        "jne 4f",
        "mov rax, 0x6666666666666666",
        "cmp rbp, rax",
        "jne 4f",
        "mov rax, 0x7777777777777777",
        "cmp r8, rax",
        "jne 4f",
        "mov rax, 0x8888888888888888",
        "cmp r9, rax",
        "jne 4f",
        "mov rax, 0x9999999999999999",
        "cmp r10, rax",
        "jne 4f",
        "mov rax, 0xbbbbbbbbbbbbbbbb",
        "cmp r12, rax",
        "jne 4f",
        "mov rax, 0xcccccccccccccccc",
        "cmp r13, rax",
        "jne 4f",
        "xor edi, edi",
        "jmp 5f",
        "4:",
        "mov edi, 1",
        "5:",
        "mov eax, 60",
        "syscall",
        "ud2",
    );
    let (status, words) = run_with(machine, code, rsp, rflags);
    assert_eq!(status, FINE, "rsp {rsp:#x} rflags {rflags:#x}");
    words
}

/// The first two words that the landing page pops.
const RCX_R11: [u64; 2] = [0x2222_2222_2222_2222, 0xaaaa_aaaa_aaaa_aaaa];

fn lands(machine: &mut Machine, rsp: u64, rflags: u64) -> bool {
    let [rcx, r11, rip] = touches(machine, rsp, rflags);
    if [rcx, r11] == RCX_R11 {
        assert!(rip > CODE && rip < CODE + 4096, "{rip:#x}");
        return true;
    }
    false
}

example_os::tests! { Machine;
    fn a_page_fault_goes_through_the_landing_page(machine) {
        assert!(lands(machine, RSP, 0x202));
        // DF, ID, NT, and the arithmetic flags.
        for flags in [0x400, 0x20_0000, 0x4000, 0x8d5] {
            assert!(lands(machine, RSP, 0x202 | flags), "{flags:#x}");
        }
    }

    fn any_alignment_of_the_stack_is_good(machine) {
        for less in [1, 3, 8, 17] {
            assert!(lands(machine, RSP - less, 0x202));
        }
    }

    fn alignment_checks_need_an_aligned_stack(machine) {
        assert!(lands(machine, RSP, 0x4_0202));
        assert!(!lands(machine, RSP - 4, 0x4_0202));
    }

    fn a_stack_that_is_not_there_is_left_by_iret(machine) {
        // Never mapped, not canonical, the kernel's, read-only code, too low, not touched yet.
        let addresses = [0x90_0000, 0x8000_0000_0000, 0xffff_ffff_8010_0000, CODE + 0x800, 0, 100, 0x6f_a800];
        for rsp in addresses {
            assert!(!lands(machine, rsp, 0x202), "{rsp:#x}");
        }
    }

    fn words_that_cross_a_page_are_left_by_iret(machine) {
        // The page below the top one has been touched, too.
        assert!(!lands(machine, STACK_TOP - 0x1000 + 140, 0x202));
        assert!(lands(machine, STACK_TOP - 0x1000 + 152, 0x202));
        assert!(lands(machine, STACK_TOP - 0x1000 + 128, 0x202));
    }

    fn the_red_zone_is_the_programs(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 2", "mov esi, 2", "int 0x80", "test eax, eax", "jnz 4f",
            "mov rbx, 0x1234567812345678", "mov ecx, 16", "5:", "mov rdx, rcx", "neg rdx",
            "mov [rsp + 8*rdx], rbx", "dec ecx", "jnz 5b",
            "mov al, [0x500000]", "int3",
            "mov ecx, 16", "5:", "mov rdx, rcx", "neg rdx",
            "cmp [rsp + 8*rdx], rbx", "jne 4f", "dec ecx", "jnz 5b",
            "xor edi, edi", "jmp 6f", "4:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        let (status, [_, _, rip]) = run_with(machine, code, RSP, 0x202);
        assert_eq!(status, FINE);
        assert!(rip > CODE && rip < CODE + 4096, "{rip:#x}");
    }

    fn a_fault_in_the_landing_page_is_left_by_iret(machine) {
        // The program jumps to the second POP with a stack that nobody has touched: the fault there must not land again.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 2", "mov esi, 2", "int 0x80", "test eax, eax", "jnz 4f",
            "mov r15, rsp", "mov rsp, 0x6fa800",
            "mov rax, {page} + 1", "jmp rax",
            "4:", "mov edi, 1", "mov eax, 60", "syscall", "ud2";
            page = LANDING_PAGE
        );
        // POP R11 reads zeros from the fresh page, RET goes to address 0, where there is nothing.
        let (status, _) = run_with(machine, code, RSP, 0x202);
        assert_eq!(status.bits() & 0x7f, 11);
    }

    fn timer_interrupts_in_between_change_nothing(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 2", "mov esi, 2", "int 0x80", "test eax, eax", "jnz 4f",
            "push 0",
            "mov ebx, 5000",
            // 16 pages are mapped, read and unmapped again and again.
            "5:", "mov eax, 9", "xor edi, edi", "mov esi, 0x10000", "mov edx, 1", "mov r10d, 0x22", "mov r8, -1",
            "xor r9d, r9d", "syscall", "test rax, rax", "js 4f", "mov r12, rax", "mov r13, rax", "mov ebp, 16",
            "6:", "mov rcx, 0x2222222222222222", "mov r11, 0xaaaaaaaaaaaaaaaa", "mov al, [r13]",
            "mov rdx, 0x2222222222222222", "cmp rcx, rdx", "jne 4f",
            "mov rdx, 0xaaaaaaaaaaaaaaaa", "cmp r11, rdx", "jne 4f",
            "add r13, 4096", "dec ebp", "jnz 6b",
            "mov eax, 11", "mov rdi, r12", "mov esi, 0x10000", "syscall", "test eax, eax", "jnz 4f",
            "dec ebx", "jnz 5b",
            "xor edi, edi", "jmp 7f", "4:", "mov edi, 1", "7:", "mov eax, 60", "syscall", "ud2",
        );
        let before = PerCpu::current(&machine.irq).ticks();
        apic::timer_periodic(TIMER_VECTOR, 100_003);
        let status = machine.run(code);
        apic::timer_stop();
        assert_eq!(status, FINE);
        assert!(PerCpu::current(&machine.irq).ticks() > before);
    }

    fn a_child_inherits_the_page_and_not_the_choice(machine) {
        // The child's fault is left by IRET, the parent's lands, and both have their registers.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 2", "mov esi, 2", "int 0x80", "test eax, eax", "jnz 4f",
            "mov eax, 57", "syscall", "mov ebx, eax", "push 0",
            "mov rcx, 0x2222222222222222", "mov r11, 0xaaaaaaaaaaaaaaaa", "mov al, [0x500000]",
            "mov rdx, 0x2222222222222222", "cmp rcx, rdx", "jne 4f",
            "mov rdx, 0xaaaaaaaaaaaaaaaa", "cmp r11, rdx", "jne 4f",
            "test ebx, ebx", "jz 5f",
            "mov edi, -1", "mov rsi, rsp", "xor edx, edx", "xor r10d, r10d", "mov eax, 61", "syscall",
            "cmp eax, ebx", "jne 4f", "cmp dword ptr [rsp], 0", "jne 4f",
            "5:", "xor edi, edi", "jmp 6f", "4:", "mov edi, 1", "6:", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(machine.run(code), FINE);
    }
}
