//! The sets of stubs with options that not every CPU has: every way in and out of each.
//!
//! Runs on TCG and Bochs; a model that lacks what a set needs skips its test. No model of QEMU 7.2's TCG has process-context
//! identifiers or `IA32_SPEC_CTRL`. Bochs' Skylake has the former, and drops all translations at each load of CR3 whatever
//! bit 63 says; its Ice Lake has both. What is shown is that the stubs work, not that translations stay or that speculation
//! is restricted.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::TrapFrame;
use entry_core::msr::{Cpu, Register, SpecCtrl};
use entry_core::vector::Vector;
use example_os::device::apic;
use example_os::entry::{self, PerCpu};
use example_os::harness::{FINE, is_bochs};
use example_os::process::WaitStatus;
use program::{CODE, Machine, STACK_TOP, program};

/// The CPU has no such set of stubs.
const LACKS: WaitStatus = WaitStatus::exited(77);

/// NMIs that came.
static NMIS: AtomicU64 = AtomicU64::new(0);
/// `IA32_SPEC_CTRL` at UD2.
static CONTROL: AtomicU64 = AtomicU64::new(0);

/// Skips UD2, which would end a program, and lets the next NMI come after another odd time.
fn answer(frame: &mut TrapFrame) -> bool {
    match Vector(frame.vector()) {
        Vector::INVALID_OPCODE => frame.set_rip(frame.rip() + 2),
        Vector::NMI => {
            let number = NMIS.fetch_add(1, Ordering::Relaxed);
            let count = 5_000 + number.wrapping_mul(7_919) % 40_000;
            apic::timer_nmi(u32::try_from(count).unwrap_or(u32::MAX));
        }
        _ => return false,
    }
    true
}

/// As `answer`, on a CPU with `IA32_SPEC_CTRL`.
fn note_control(frame: &mut TrapFrame) -> bool {
    // SAFETY: 1. this is the kernel, on a CPU with the register.
    CONTROL.store(unsafe { SpecCtrl::read(&mut Cpu) }.bits(), Ordering::Relaxed);
    answer(frame)
}

/// A program that takes the set of stubs in ESI, or ends with 77, and then `$code`, which jumps to `9:` if all is not well.
macro_rules! with_set {
    ($($code:literal),+ $(,)?) => {
        program!(
            "mov eax, 0x4558", "mov edi, 1", "int 0x80", "mov edi, 77", "cmp rax, -38", "je 8f", "test eax, eax", "jnz 9f",
            $($code,)+
            "xor edi, edi", "8:", "mov eax, 60", "syscall", "ud2", "9:", "mov edi, 1", "jmp 8b",
        )
    };
}

/// Runs a program with a set of stubs, and RBX.
fn run_with(machine: &mut Machine, code: &[u8], set: u64, rbx: u64) -> WaitStatus {
    let mut frame = entry::first_frame(CODE, STACK_TOP);
    frame.set_rsi(set);
    frame.set_rbx(rbx);
    let pid = machine.start_at(CODE, code, &frame);
    machine.finish(pid).unwrap()
}

/// Every way in and out, 20 times, with registers that have to stay.
fn all_ways() -> &'static [u8] {
    with_set!(
        "mov rbx, 0x1122334455667788",
        "mov r12, -1",
        "mov ebp, 0x500000",
        "mov r13d, 20",
        "4:",
        "mov r8, rbx",
        "mov r10, r12",
        "mov edx, 0x55",
        "mov eax, 39",
        "syscall",
        "test eax, eax",
        "jz 9f",
        "cmp r8, rbx",
        "jne 9f",
        "cmp r10, r12",
        "jne 9f",
        "cmp edx, 0x55",
        "jne 9f",
        "mov eax, 0x4558",
        "xor edi, edi",
        "mov rcx, rbx",
        "mov r11, rbx",
        "int 0x80",
        "cmp eax, 0x454e5452",
        "jne 9f",
        "cmp rcx, rbx",
        "jne 9f",
        "cmp r11, rbx",
        "jne 9f",
        "cmp r8, rbx",
        "jne 9f",
        "cmp edx, 0x55",
        "jne 9f",
        // The first time around, a page fault.
        "mov [rbp], rbx",
        "cmp rbx, [rbp]",
        "jne 9f",
        "cmp rcx, rbx",
        "jne 9f",
        "cmp r11, rbx",
        "jne 9f",
        "ud2",
        "cmp rcx, rbx",
        "jne 9f",
        "cmp r11, rbx",
        "jne 9f",
        "cmp r12, -1",
        "jne 9f",
        "dec r13d",
        "jnz 4b",
        // A page is taken away: nothing of it may be left. It comes back as zeros.
        "mov eax, 9",
        "mov edi, 0x500000",
        "mov esi, 4096",
        "mov edx, 3",
        "mov r10d, 0x32",
        "mov r8, -1",
        "xor r9d, r9d",
        "syscall",
        "cmp rax, rbp",
        "jne 9f",
        "cmp qword ptr [rbp], 0",
        "jne 9f",
        "mov [rbp], rbx",
        "cmp [rbp], rbx",
        "jne 9f",
        // A child writes to its own copy.
        "mov eax, 57",
        "syscall",
        "test eax, eax",
        "jz 6f",
        "mov edi, -1",
        "xor esi, esi",
        "xor edx, edx",
        "xor r10d, r10d",
        "mov eax, 61",
        "syscall",
        "test eax, eax",
        "js 9f",
        "cmp [rbp], rbx",
        "jne 9f",
        "jmp 7f",
        "6:",
        "mov qword ptr [rbp], 5",
        "7:",
    )
}

/// Writes its bases, RBX and eight more, and yields; asks the kernel for them, and so does its child.
fn writes_bases() -> &'static [u8] {
    with_set!(
        "mov ebp, 20",
        "wrfsbase rbx",
        "lea r12, [rbx + 8]",
        "wrgsbase r12",
        "4:",
        "mov eax, 24",
        "syscall",
        "rdfsbase rax",
        "cmp rax, rbx",
        "jne 9f",
        "rdgsbase rax",
        "cmp rax, r12",
        "jne 9f",
        "dec ebp",
        "jnz 4b",
        // The kernel knows them, and a child has them.
        "mov eax, 158",
        "mov edi, 0x1003",
        "mov esi, 0x500000",
        "syscall",
        "cmp [0x500000], rbx",
        "jne 9f",
        "mov eax, 57",
        "syscall",
        "test eax, eax",
        "jz 6f",
        "mov edi, -1",
        "mov esi, 0x500000",
        "xor edx, edx",
        "xor r10d, r10d",
        "mov eax, 61",
        "syscall",
        "test eax, eax",
        "js 9f",
        "cmp dword ptr [0x500000], 0",
        "jne 9f",
        "jmp 7f",
        // It has the plain stubs, and asks.
        "6:",
        "mov eax, 158",
        "mov edi, 0x1004",
        "mov esi, 0x500008",
        "syscall",
        "cmp [0x500008], r12",
        "jne 9f",
        "7:",
    )
}

/// Has a base of the kernel's making over many yields.
fn keeps_a_base() -> &'static [u8] {
    program!(
        "mov ebp, 20",
        "mov eax, 158",
        "mov edi, 0x1002",
        "mov esi, 0x500000",
        "syscall",
        "test eax, eax",
        "jnz 9f",
        "mov dword ptr [0x500000], 0x1234",
        "4:",
        "mov eax, 24",
        "syscall",
        "cmp dword ptr fs:[0], 0x1234",
        "jne 9f",
        "dec ebp",
        "jnz 4b",
        "xor edi, edi",
        "8:",
        "mov eax, 60",
        "syscall",
        "ud2",
        "9:",
        "mov edi, 1",
        "jmp 8b",
    )
}

/// Has none, however often others run that have.
fn has_no_base() -> &'static [u8] {
    program!(
        "mov ebp, 20",
        "4:",
        "mov eax, 24",
        "syscall",
        "rdfsbase rax",
        "test rax, rax",
        "jnz 9f",
        "rdgsbase rax",
        "test rax, rax",
        "jnz 9f",
        "dec ebp",
        "jnz 4b",
        "xor edi, edi",
        "8:",
        "mov eax, 60",
        "syscall",
        "ud2",
        "9:",
        "mov edi, 1",
        "jmp 8b",
    )
}

/// Has a selector in FS and in GS besides, which a switch loads before the bases.
fn writes_bases_behind_selectors() -> &'static [u8] {
    program!(
        "mov ebp, 20",
        "mov ebx, 0x2000",
        "mov eax, ss",
        "mov fs, eax",
        "mov gs, eax",
        "wrfsbase rbx",
        "lea r12, [rbx + 8]",
        "wrgsbase r12",
        "4:",
        "mov eax, 24",
        "syscall",
        "rdfsbase rax",
        "cmp rax, rbx",
        "jne 9f",
        "rdgsbase rax",
        "cmp rax, r12",
        "jne 9f",
        "mov eax, fs",
        "mov ecx, ss",
        "cmp eax, ecx",
        "jne 9f",
        "mov eax, gs",
        "cmp eax, ecx",
        "jne 9f",
        "dec ebp",
        "jnz 4b",
        "xor edi, edi",
        "8:",
        "mov eax, 60",
        "syscall",
        "ud2",
        "9:",
        "mov edi, 1",
        "jmp 8b",
    )
}

/// Makes operation 15 of the control call with ESI, and exits with the error.
fn choose_bases() -> &'static [u8] {
    program!(
        "mov eax, 0x4558",
        "mov edi, 15",
        "syscall",
        "mov edi, eax",
        "neg edi",
        "mov eax, 60",
        "syscall",
        "ud2"
    )
}

example_os::tests! { Machine;
    fn every_way_works_with_fsgsbase_cleared_registers_and_verw(machine) {
        entry::set_kernel_hook(Some(answer));
        let status = run_with(machine, all_ways(), 9, 0);
        entry::set_kernel_hook(None);
        if status == LACKS {
            example_os::skip!("this CPU has no FSGSBASE");
        }
        assert_eq!(status, FINE);
    }

    fn every_way_works_with_ibrs(machine) {
        entry::set_kernel_hook(Some(note_control));
        let code = with_set!("ud2");
        // Asked for before the hook reads a register that may not be there.
        entry::set_kernel_hook(None);
        if run_with(machine, with_set!("xor eax, eax"), 10, 0) == LACKS {
            example_os::skip!("this CPU has no IBRS");
        }
        entry::set_kernel_hook(Some(note_control));
        CONTROL.store(0, Ordering::Relaxed);
        let status = run_with(machine, code, 10, 0);
        assert_eq!(status, FINE);
        assert_eq!(CONTROL.load(Ordering::Relaxed), 1);
        assert_eq!(run_with(machine, all_ways(), 10, 0), FINE);
        entry::set_kernel_hook(None);
    }

    fn every_way_works_with_process_context_identifiers(machine) {
        entry::set_kernel_hook(Some(answer));
        let status = run_with(machine, all_ways(), 11, 0);
        if status == LACKS {
            entry::set_kernel_hook(None);
            example_os::skip!("this CPU has no process-context identifiers");
        }
        // Once more, since the identifiers are the same; and with none in between.
        let again = [11, 0, 11].map(|set| run_with(machine, all_ways(), set, 0));
        entry::set_kernel_hook(None);
        assert_eq!(status, FINE);
        assert_eq!(again, [FINE; 3]);
    }

    fn bases_that_programs_write_are_theirs(machine) {
        let mut frame = entry::first_frame(CODE, STACK_TOP);
        frame.set_rsi(9);
        let mut pids = [0; 4];
        for (pid, base) in pids.iter_mut().zip([0, 0x1000, 0xffff_8000_0000_0000, 0x7fff_ffff_fff0]) {
            frame.set_rbx(base);
            *pid = machine.start_at(CODE, writes_bases(), &frame);
        }
        let others = [(); 2].map(|()| machine.start(keeps_a_base()));
        let statuses = pids.map(|pid| machine.finish(pid).unwrap());
        assert_eq!(others.map(|pid| machine.finish(pid)), [Some(FINE); 2]);
        if statuses[0] == LACKS {
            example_os::skip!("this CPU has no FSGSBASE");
        }
        assert_eq!(statuses, [FINE; 4]);
        // CR4.FSGSBASE goes with the stubs.
        let status = machine.run(program!("rdfsbase rax", "ud2"));
        assert_eq!(status, WaitStatus::killed(example_os::process::signal::Signal::new(4).unwrap()));
    }

    fn bases_survive_a_switch_by_the_instructions_that_programs_have(machine) {
        const ENOSYS: u8 = 38;
        let mut frame = entry::first_frame(CODE, STACK_TOP);
        frame.set_rsi(1);
        let pid = machine.start_at(CODE, choose_bases(), &frame);
        let status = machine.finish(pid).unwrap();
        if status == WaitStatus::exited(ENOSYS) {
            example_os::skip!("this CPU has no FSGSBASE");
        }
        assert_eq!(status, FINE);
        // The plain stubs; and among them those that come and go with leave to write bases.
        let mut pids = [0; 8];
        let bases = [0, 0x1000, 0xffff_8000_0000_0000, 0x7fff_ffff_fff0].into_iter();
        for (pid, (base, set)) in pids.iter_mut().zip(bases.flat_map(|base| [(base, 0), (base, 9)])) {
            frame.set_rbx(base);
            frame.set_rsi(set);
            *pid = machine.start_at(CODE, writes_bases(), &frame);
        }
        let others = [keeps_a_base(), has_no_base(), writes_bases_behind_selectors(), has_no_base()];
        let others = others.map(|code| machine.start(code));
        assert_eq!(pids.map(|pid| machine.finish(pid)), [Some(FINE); 8]);
        assert_eq!(others.map(|pid| machine.finish(pid)), [Some(FINE); 4]);
        // Nobody has theirs, not even who starts from idle.
        assert_eq!(machine.run(has_no_base()), FINE);
        // CR4.FSGSBASE goes with the way.
        frame.set_rsi(0);
        let pid = machine.start_at(CODE, choose_bases(), &frame);
        assert_eq!(machine.finish(pid), Some(FINE));
        let status = machine.run(program!("rdfsbase rax", "ud2"));
        assert_eq!(status, WaitStatus::killed(example_os::process::signal::Signal::new(4).unwrap()));
        assert_eq!(machine.run(keeps_a_base()), FINE);
    }

    fn a_forged_gs_base_survives_every_way_and_nmis(machine) {
        let code = with_set!(
            "wrgsbase rbx", "mov r13d, 5000",
            "4:", "mov eax, 39", "syscall", "rdgsbase rax", "cmp rax, rbx", "jne 9f",
            "mov eax, 0x4558", "xor edi, edi", "int 0x80", "rdgsbase rax", "cmp rax, rbx", "jne 9f",
            "ud2", "rdgsbase rax", "cmp rax, rbx", "jne 9f", "dec r13d", "jnz 4b",
            "mov [0x500000], rbx", "rdgsbase rax", "cmp rax, rbx", "jne 9f",
        );
        let own = core::ptr::from_ref(PerCpu::current(&machine.irq)).addr() as u64;
        NMIS.store(0, Ordering::Relaxed);
        entry::set_kernel_hook(Some(answer));
        for base in [own, own + 8, 0xffff_ffff_ffff_ff00, 0] {
            apic::timer_nmi(10_000);
            let status = run_with(machine, code, 9, base);
            apic::timer_stop();
            if status == LACKS {
                entry::set_kernel_hook(None);
                example_os::skip!("this CPU has no FSGSBASE");
            }
            assert_eq!(status, FINE, "{base:#x}");
        }
        entry::set_kernel_hook(None);
        // The timer of Bochs delivers none.
        assert!(is_bochs() || NMIS.load(Ordering::Relaxed) > 20, "{} NMIs", NMIS.load(Ordering::Relaxed));
    }
}
