//! SYSENTER from 64-bit programs: each way of loading the stack, whatever flags the program had, and CPUs without it.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/held_back.rs"]
mod held_back;
#[path = "process/program.rs"]
mod program;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use entry_core::cpu::{CpuFeatures, Vendor};
use entry_core::msr::{Cpu, Register, SysenterEip};
use entry_core::vector::Vector;
use entry_core::windows::{self, flags};
use entry_core::{IrqOff, TrapFrame};
use entry_sysenter::support::SysenterSupport;
use entry_sysenter::user_page::{Entry64, UserPage};
use entry_sysret::Refusal;
use example_os::harness::{FINE, is_bochs, killed};
use example_os::process::WaitStatus;
use example_os::{entry, skip};
use program::{CODE, Machine, STACK_TOP, program};

const SIGILL: u8 = 4;
const SIGTRAP: u8 = 5;
const SIGSEGV: u8 = 11;

const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
const DF: u64 = 1 << 10;
const IOPL: u64 = 3 << 12;
const NT: u64 = 1 << 14;
const AC: u64 = 1 << 18;
/// CF, PF, AF, ZF, SF and OF.
const ARITHMETIC: u64 = 0x8d5;

/// Asked of CPUID, not of the kernel under test.
fn has_sysenter() -> bool {
    CpuFeatures::detect().vendor == Vendor::Intel
}

macro_rules! needs_sysenter {
    () => {
        if !has_sysenter() {
            skip!("this CPU has no SYSENTER in long mode");
        }
    };
}

/// A program that chooses `$way`, calls `getpid` by SYSENTER in all registers but those it passes, and looks at what is left.
macro_rules! call_by {
    ($way:literal) => {
        program!(
            "mov eax, 0x4558", "mov edi, 10", "mov esi, {way}", "int 0x80", "test rax, rax", "jnz 9f",
            "mov eax, 39", "syscall", "mov ebx, eax",
            "mov rdx, 4", "mov rsi, 5", "mov rdi, 6", "mov rbp, 7", "mov r8, 8", "mov r9, 9", "mov r10, 10",
            "mov r12, 12", "mov r13, 13", "mov r14, 14", "mov r15, 15",
            "mov eax, 39", "mov rcx, rsp", "lea r11, [rip + 4f]", "sysenter", "4:",
            "cmp rax, rbx", "jne 9f", "cmp rsp, {stack}", "jne 9f",
            "cmp rdx, 4", "jne 9f", "cmp rsi, 5", "jne 9f", "cmp rdi, 6", "jne 9f", "cmp rbp, 7", "jne 9f",
            "cmp r8, 8", "jne 9f", "cmp r9, 9", "jne 9f", "cmp r10, 10", "jne 9f", "cmp r12, 12", "jne 9f",
            "cmp r13, 13", "jne 9f", "cmp r14, 14", "jne 9f", "cmp r15, 15", "jne 9f",
            // Again after another process has run.
            "mov eax, 24", "mov rcx, rsp", "lea r11, [rip + 4f]", "sysenter", "4:", "test rax, rax", "jnz 9f",
            "mov eax, 39", "mov rcx, rsp", "lea r11, [rip + 4f]", "sysenter", "4:", "cmp rax, rbx", "jne 9f",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
            "9:", "mov edi, 1", "mov eax, 60", "syscall", "ud2";
            way = $way; stack = STACK_TOP
        )
    };
}

/// Chooses the way in R12, takes IOPL 3 if R13 is 1, and asks by SYSENTER for the kernel's flags, with the flags in RBX. Exits
/// with 0 if those have none of what SYSENTER leaves set, and its own are as R14 says.
fn flags_program() -> &'static [u8] {
    program!(
        "mov eax, 0x4558", "mov edi, 10", "mov rsi, r12", "int 0x80", "mov edi, 2", "test rax, rax", "jnz 9f",
        "mov eax, 0x4558", "mov edi, 11", "mov rsi, r13", "int 0x80", "mov edi, 3", "test rax, rax", "jnz 9f",
        "mov eax, 0x4558", "mov edi, 24", "mov rcx, rsp", "lea r11, [rip + 4f]", "push rbx", "popfq", "sysenter", "4:",
        "pushfq", "pop rcx", "push 0x202", "popfq",
        "mov edi, 4", "and ecx, {examined}", "cmp rcx, r14", "jne 9f",
        "mov edi, 5", "test eax, {forbidden}", "jnz 9f",
        "xor edi, edi", "9:", "mov eax, 60", "syscall", "ud2";
        examined = EXAMINED; forbidden = TF | DF | IOPL | NT | AC
    )
}

/// Flags of user mode that SYSENTER and the way back are to keep.
const EXAMINED: u64 = TF | IF | DF | IOPL | NT | AC;

/// Chooses a way, and calls `getpid` by a SYSENTER that MOV SS with a watched operand precedes.
macro_rules! held_back_before {
    ($way:literal) => {
        program!(
            "mov eax, 0x4558", "mov edi, 10", "mov esi, {way}", "int 0x80", "mov word ptr [0x500000], 0x23",
            "mov eax, 39", "mov rcx, rsp", "lea r11, [rip + 4f]", "mov ss, word ptr [0x500000]", "sysenter", "4:",
            "xor edi, edi", "test rax, rax", "sets dil", "mov eax, 60", "syscall", "ud2";
            way = $way
        )
    };
}

/// Single steps that the hook saw in user mode.
static USER_STEPS: AtomicU32 = AtomicU32::new(0);

/// Counts, and ends the steps in user mode.
fn count_and_end_steps(frame: &mut TrapFrame) -> bool {
    if Vector(frame.vector()) != Vector::DEBUG {
        return false;
    }
    if !frame.is_user() {
        STEPS.fetch_add(1, Ordering::Relaxed);
        return false;
    }
    USER_STEPS.fetch_add(1, Ordering::Relaxed);
    frame.set_rflags(frame.rflags() & !TF);
    true
}

/// Chooses a way, sets TF and executes SYSENTER.
macro_rules! step_into {
    ($way:literal) => {
        program!(
            "mov eax, 0x4558", "mov edi, 10", "mov esi, {way}", "int 0x80",
            "mov eax, 39", "mov rcx, rsp", "lea r11, [rip + 4f]", "pushfq", "or dword ptr [rsp], 0x100", "mov rcx, rsp",
            "popfq", "sysenter", "4:", "nop", "hlt";
            way = $way
        )
    };
}

/// Single steps that the hook saw in the kernel, and those of them outside the stubs' windows.
static STEPS: AtomicU32 = AtomicU32::new(0);
static STRAY_STEPS: AtomicU32 = AtomicU32::new(0);

/// Counts, and leaves the event to the kernel.
fn count_steps(frame: &mut TrapFrame) -> bool {
    if Vector(frame.vector()) == Vector::DEBUG && !frame.is_user() {
        STEPS.fetch_add(1, Ordering::Relaxed);
        let is_in_window = windows::find(frame.rip()).is_some_and(|window| window.flags() & flags::USER_FLAGS != 0);
        if !is_in_window {
            STRAY_STEPS.fetch_add(1, Ordering::Relaxed);
        }
    }
    false
}

/// What a program had when it was interrupted.
struct Last(UnsafeCell<Option<TrapFrame>>);

// SAFETY: there is one CPU; the lower half writes with interrupts off, and the test reads while no program runs.
unsafe impl Sync for Last {}

static INTERRUPTED: Last = Last(UnsafeCell::new(None));

/// Keeps the frame of an interrupt.
fn keep_interrupted(frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    // SAFETY: see `Last`.
    unsafe { *INTERRUPTED.0.get() = Some(frame.clone()) };
    irq
}

example_os::tests! { Machine;
    fn is_there_on_intel_and_invalid_elsewhere(machine) {
        let code = program!(
            "mov eax, 60", "xor edi, edi", "mov rcx, rsp", "lea r11, [rip + 4f]", "sysenter", "4:", "hlt"
        );
        let wanted = match (has_sysenter(), is_bochs()) {
            (true, _) => FINE,
            (false, false) => killed(SIGILL),
            // Bochs has the instruction on AMD's models, too, which finds a null selector in its register.
            (false, true) => killed(SIGSEGV),
        };
        assert_eq!(machine.run(code), wanted);
        // The kernel goes on, and SYSCALL with it.
        assert_eq!(machine.run(program!("mov eax, 60", "xor edi, edi", "syscall")), FINE);
    }

    fn control_call_knows_whether_it_is_there(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 10", "xor esi, esi", "int 0x80", "mov edi, eax", "mov eax, 60", "syscall"
        );
        let wanted = if has_sysenter() { FINE } else { WaitStatus::exited(38_u8.wrapping_neg()) };
        assert_eq!(machine.run(code), wanted);
    }

    // The way out that the crate has but does not take by itself: registers, flags, stack, and the segments that it loads.
    fn sysexit_goes_back_to_64_bit_code(machine) {
        needs_sysenter!();
        let code = program!(
            // A page fault with SS as SYSEXIT leaves it would be refused at the exit.
            "push 0", "pop rax", "mov r8, 8", "mov r9, 9", "mov r10, 10", "mov rbx, 11", "mov rbp, 12", "mov r12, 13", "mov r13, 14", "mov r14, 15",
            "mov r15, 16", "mov rsi, 18", "std", "mov eax, 0x4558", "mov edi, 25", "mov rcx, rsp", "lea r11, [rip + 4f]",
            "sysenter", "4:", "pushfq", "cld", "lea r11, [rip + 4b]",
            "cmp rdx, r11", "jne 9f", "pop rdx", "cmp rcx, rsp", "jne 9f", "cmp rsp, {stack}", "jne 9f",
            "and edx, {examined}", "cmp edx, {flags}", "jne 9f", "cmp eax, 0x4558", "jne 9f", "cmp edi, 25", "jne 9f",
            "cmp r8, 8", "jne 9f", "cmp r9, 9", "jne 9f", "cmp r10, 10", "jne 9f", "cmp rbx, 11", "jne 9f", "cmp rbp, 12", "jne 9f",
            "cmp r12, 13", "jne 9f", "cmp r13, 14", "jne 9f", "cmp r14, 15", "jne 9f", "cmp r15, 16", "jne 9f", "cmp rsi, 18", "jne 9f",
            "mov eax, cs", "cmp eax, 0x2b", "jne 9f", "mov eax, ss", "cmp eax, 0x33", "jne 9f",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
            "9:", "mov edi, 1", "mov eax, 60", "syscall", "ud2";
            stack = STACK_TOP; examined = EXAMINED; flags = IF | DF
        );
        assert_eq!(machine.run(code), FINE);
        // A frame of SYSCALL is not one that it can leave with.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 25", "syscall", "mov edi, eax", "mov eax, 60", "syscall", "ud2"
        );
        assert_eq!(machine.run(code), WaitStatus::exited(22_u8.wrapping_neg()));
    }

    // STI lets an interrupt in behind the next instruction, and that is SYSEXIT. The selector that SYSEXIT loads SS with is not one
    // that the usual exits let through, so the program ends there.
    fn an_interrupt_that_waits_for_sysexit_finds_64_bit_code(machine) {
        needs_sysenter!();
        let code = program!(
            "mov eax, 0x4558", "mov edi, 25", "mov esi, 1", "mov rcx, rsp", "mov r11d, 0x400100", "sysenter", "ud2"
        );
        let mut before = entry::first_frame(CODE, STACK_TOP);
        for (number, set) in [
            TrapFrame::set_rbx,
            TrapFrame::set_rbp,
            TrapFrame::set_r8,
            TrapFrame::set_r9,
            TrapFrame::set_r10,
            TrapFrame::set_r12,
            TrapFrame::set_r13,
            TrapFrame::set_r14,
            TrapFrame::set_r15,
        ]
        .into_iter()
        .enumerate()
        {
            set(&mut before, 0x1111_1111_1111_1111 * (number as u64 + 1));
        }
        before.set_rflags(IF | DF | AC | ARITHMETIC | 2);
        // SAFETY: see `Last`.
        unsafe { *INTERRUPTED.0.get() = None };
        entry::set_lower_half(Some(keep_interrupted));
        let pid = machine.start_at(CODE, code, &before);
        let status = machine.finish(pid);
        entry::set_lower_half(None);
        // SAFETY: see `Last`.
        let seen = unsafe { (*INTERRUPTED.0.get()).take() }.expect("an interrupt");
        assert_eq!((seen.rip(), seen.cs(), seen.rsp(), seen.ss()), (0x40_0100, 0x2b, STACK_TOP, 0x33));
        assert_eq!((seen.rdx(), seen.rcx(), seen.r11()), (0x40_0100, STACK_TOP, 0x40_0100));
        assert_eq!((seen.rax(), seen.rdi(), seen.rsi()), (0x4558, 25, 1));
        assert_eq!(seen.rflags(), before.rflags());
        let kept = |frame: &TrapFrame| {
            let low = [frame.rbx(), frame.rbp(), frame.r8(), frame.r9(), frame.r10()];
            (low, [frame.r12(), frame.r13(), frame.r14(), frame.r15()])
        };
        assert_eq!(kept(&seen), kept(&before));
        assert_eq!(status, Some(killed(SIGSEGV)));
        assert_eq!(entry::take_last_refusal(&machine.irq), Some(Refusal::UnlistedStackSegment { ss: 0x33 }));
    }

    // Each would be #GP in ring 0, or lead there. The usual way out takes such a stack pointer, and not such an address.
    fn operands_that_sysexit_would_fault_on_are_refused(machine) {
        needs_sysenter!();
        // The operands are in RBX and R11. The program exits with the answer, negated, whatever its stack is.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 25", "xor esi, esi", "mov rcx, rbx", "sysenter", "ud2", ".org 2b + 0x100, 0x90",
            "mov edi, eax", "neg edi", "mov eax, 60", "syscall", "ud2"
        );
        const GOOD_RIP: u64 = CODE + 0x100;
        const EINVAL: u8 = 22;
        for (rsp, rip, wanted) in [
            (STACK_TOP, GOOD_RIP, WaitStatus::exited(0x4558_u32.wrapping_neg().to_le_bytes()[0])),
            (0x7fff_ffff_f000, GOOD_RIP, WaitStatus::exited(0x4558_u32.wrapping_neg().to_le_bytes()[0])),
            (0x7fff_ffff_f001, GOOD_RIP, WaitStatus::exited(EINVAL)),
            (0x8000_0000_0000, GOOD_RIP, WaitStatus::exited(EINVAL)),
            (0xffff_7fff_ffff_ffff, GOOD_RIP, WaitStatus::exited(EINVAL)),
            (0xffff_8000_0000_0000, GOOD_RIP, WaitStatus::exited(EINVAL)),
            (STACK_TOP, 0x7fff_ffff_f000, killed(SIGSEGV)),
            (STACK_TOP, 0x8000_0000_0000, killed(SIGSEGV)),
            (STACK_TOP, 0xffff_ffff_8000_0000, killed(SIGSEGV)),
        ] {
            let mut frame = entry::first_frame(CODE, STACK_TOP);
            frame.set_rbx(rsp);
            frame.set_r11(rip);
            let pid = machine.start_at(CODE, code, &frame);
            assert_eq!(machine.finish(pid), Some(wanted), "{rsp:#x}, {rip:#x}");
        }
    }

    // 64-bit code calls the page and need not know: SYSENTER where the CPU has it, SYSCALL where SYSENTER is #UD.
    fn user_page_enters_by_what_the_cpu_has(machine) {
        const PROGRAM_OFFSET: usize = 0x400;
        let support = SysenterSupport::on(&CpuFeatures::detect());
        assert_eq!(support.is_ok(), has_sysenter());
        let page = UserPage::for_64_bit_code(if support.is_ok() { Entry64::Sysenter } else { Entry64::Syscall });
        let opcode: &[u8] = if support.is_ok() { &[0x0f, 0x34] } else { &[0x0f, 0x05] };
        assert!(page.bytes()[..page.code_bytes()].windows(2).any(|bytes| bytes == opcode));
        let program = program!(
            "mov r12d, {page}", "mov eax, 39", "syscall", "mov ebx, eax", "mov rdx, 4", "mov r8, 8", "mov r10, 10", "std",
            "mov eax, 39", "call r12", "cmp eax, ebx", "jne 9f", "cmp rsp, {stack}", "jne 9f", "cmp rdx, 4", "jne 9f",
            "cmp r8, 8", "jne 9f", "cmp r10, 10", "jne 9f", "pushfq", "pop rcx", "cld", "bt ecx, 10", "jnc 9f",
            "xor edi, edi", "mov eax, 60", "call r12",
            "9:", "mov edi, 1", "mov eax, 60", "syscall", "ud2";
            page = CODE; stack = STACK_TOP
        );
        let mut code = [0xcc; PROGRAM_OFFSET + 256];
        code[..page.bytes().len()].copy_from_slice(page.bytes());
        code[PROGRAM_OFFSET..][..program.len()].copy_from_slice(program);
        let frame = entry::first_frame(CODE + PROGRAM_OFFSET as u64, STACK_TOP);
        let pid = machine.start_at(CODE, &code, &frame);
        assert_eq!(machine.finish(pid), Some(FINE));
    }

    fn each_way_of_loading_the_stack_works(machine) {
        needs_sysenter!();
        for code in [call_by!(0), call_by!(1), call_by!(2), call_by!(3), call_by!(4), call_by!(5), call_by!(0)] {
            // Two of them, so that each has another stack after its yield.
            let first = machine.start(code);
            let second = machine.start(code);
            assert_eq!(machine.finish(first), Some(FINE));
            assert_eq!(machine.finish(second), Some(FINE));
        }
    }

    // NT, AC, DF, IOPL and TF, alone and together, with each way of loading the stack.
    fn all_combinations_of_flags_are_survived(machine) {
        needs_sysenter!();
        for way in 0..6 {
            for pattern in 0..32_u64 {
                let chosen = |bit: u32, flag: u64| if pattern >> bit & 1 == 1 { flag } else { 0 };
                let user = IF | chosen(0, NT) | chosen(1, AC) | chosen(2, DF) | chosen(4, TF);
                let iopl = chosen(3, IOPL);
                let mut frame = entry::first_frame(CODE, STACK_TOP);
                // POPFQ sets all of them but IOPL.
                frame.set_rbx(user | 2);
                frame.set_r12(way | if iopl == 0 { 0 } else { 1 << 5 });
                frame.set_r13(u64::from(iopl != 0));
                frame.set_r14(user | iopl);
                STEPS.store(0, Ordering::Relaxed);
                USER_STEPS.store(0, Ordering::Relaxed);
                entry::set_kernel_hook(Some(count_and_end_steps));
                let pid = machine.start_at(CODE, flags_program(), &frame);
                let status = machine.finish(pid);
                entry::set_kernel_hook(None);
                assert_eq!(status, Some(FINE), "way {way}, pattern {pattern:#x}");
                let is_stepped = user & TF != 0;
                // The first instruction behind SYSENTER, and before that each up to POPF.
                assert_eq!(USER_STEPS.load(Ordering::Relaxed), u32::from(is_stepped), "way {way}, pattern {pattern:#x}");
                assert_eq!(STEPS.load(Ordering::Relaxed) >= 8, is_stepped, "way {way}, pattern {pattern:#x}");
            }
        }
        // For the other tests.
        assert_eq!(machine.run(call_by!(0)), FINE);
    }

    fn trap_flag_at_sysenter_traps_the_program(machine) {
        needs_sysenter!();
        for (way, code) in [
            (0, step_into!(0)),
            (1, step_into!(1)),
            (2, step_into!(2)),
            (3, step_into!(3)),
            (4, step_into!(4)),
            (5, step_into!(5)),
        ] {
            STEPS.store(0, Ordering::Relaxed);
            STRAY_STEPS.store(0, Ordering::Relaxed);
            entry::set_kernel_hook(Some(count_steps));
            let status = machine.run(code);
            entry::set_kernel_hook(None);
            // After the NOP; HLT would have been #GP.
            assert_eq!(status, killed(SIGTRAP));
            // Each instruction up to POPF was stepped over, those of the trampoline among them.
            assert!(STEPS.load(Ordering::Relaxed) >= 8, "way {way}: {} steps", STEPS.load(Ordering::Relaxed));
            let of_trampoline = match way {
                2 | 4 => 2,
                5 => 3,
                _ => 0,
            };
            assert_eq!(STRAY_STEPS.load(Ordering::Relaxed), of_trampoline, "way {way}");
        }
    }

    // Whether it is held back until the kernel's first instruction, the emulator decides; TCG raises it at once.
    fn a_data_breakpoint_that_mov_ss_holds_back_does_no_harm(machine) {
        needs_sysenter!();
        for code in [
            held_back_before!(0),
            held_back_before!(1),
            held_back_before!(2),
            held_back_before!(3),
            held_back_before!(4),
            held_back_before!(5),
        ] {
            let (status, hits, kernel_rip) = held_back::run(machine, code);
            assert_eq!(status, FINE);
            assert_eq!(hits, if is_bochs() { [1, 1] } else { [2, 0] });
            // SAFETY: 1. this is the kernel. 2. Every CPU in 64-bit mode has it.
            let target = unsafe { SysenterEip::read(&mut Cpu) }.bits();
            assert!(!is_bochs() || kernel_rip == target, "{kernel_rip:#x}");
        }
    }

    fn a_return_address_of_the_kernels_is_refused(machine) {
        needs_sysenter!();
        let code = program!("mov eax, 39", "mov rcx, rsp", "mov r11, 0xffffffff80000000", "sysenter", "hlt");
        assert_eq!(machine.run(code), killed(SIGSEGV));
        let code = program!("mov eax, 39", "mov rcx, rsp", "mov r11, 0x800000000000", "sysenter", "hlt");
        assert_eq!(machine.run(code), killed(SIGSEGV));
    }

    fn any_stack_pointer_survives_it(machine) {
        needs_sysenter!();
        let code = program!(
            "mov rbx, 0x800000000000", "mov rcx, rbx", "mov eax, 39", "lea r11, [rip + 4f]", "sysenter", "4:",
            "xor edi, edi", "cmp rsp, rbx", "setne dil", "mov eax, 60", "syscall", "ud2"
        );
        assert_eq!(machine.run(code), FINE);
    }

    // A process that the kernel hides from turns it off at each switch to it, and the others turn it on again: with the stack of
    // the one that runs then.
    fn it_is_off_and_on_again_with_each_way_of_loading_the_stack(machine) {
        needs_sysenter!();
        let hidden = program!(
            "mov ebx, 4", "4:", "mov eax, 24", "syscall", "dec ebx", "jnz 4b", "mov eax, 60", "xor edi, edi", "mov rcx, rsp",
            "lea r11, [rip + 5f]", "sysenter", "5:", "hlt"
        );
        for code in [call_by!(0), call_by!(1), call_by!(2), call_by!(3), call_by!(4), call_by!(5)] {
            let first = machine.start(code);
            entry::set_hides_from_new_processes(true, &machine.irq);
            let off = machine.start(hidden);
            entry::set_hides_from_new_processes(false, &machine.irq);
            let second = machine.start(code);
            assert_eq!(machine.finish(first), Some(FINE));
            assert_eq!(machine.finish(second), Some(FINE));
            assert_eq!(machine.finish(off), Some(killed(SIGSEGV)));
        }
    }

    // Each process changes the way under the others, which go on with it.
    fn ways_are_exchanged_while_programs_use_them(machine) {
        needs_sysenter!();
        for _ in 0..3 {
            let programs = [call_by!(1), call_by!(5), call_by!(0), call_by!(3), call_by!(2), call_by!(4)];
            let pids = programs.map(|code| machine.start(code));
            for pid in pids {
                assert_eq!(machine.finish(pid), Some(FINE));
            }
        }
    }

    fn it_is_off_while_a_hidden_kernels_process_runs(machine) {
        needs_sysenter!();
        // Its tables would not map what the stub is about to use.
        entry::set_hides_from_new_processes(true, &machine.irq);
        let hidden = program!("mov eax, 60", "xor edi, edi", "mov rcx, rsp", "lea r11, [rip + 4f]", "sysenter", "4:", "hlt");
        let status = machine.run(hidden);
        entry::set_hides_from_new_processes(false, &machine.irq);
        assert_eq!(status, killed(SIGSEGV));
        assert_eq!(machine.run(hidden), FINE);
    }
}
