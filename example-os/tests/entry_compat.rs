//! 32-bit programs: each way in, what their registers hold afterwards, bad arguments, and every flag.
//!
//! The page by which they enter has SYSENTER on Intel's models and SYSCALL on AMD's; INT 0x80 is there on all. TCG's SYSCALL
//! works in 32-bit code on Intel's models, too, and its SYSENTER on AMD's: neither is what those CPUs do, and no test relies on
//! it. TCG does not mind a null DS in 32-bit code, nor a null SS behind SYSRET; Bochs minds the first.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use entry_core::cpu::{CpuFeatures, Vendor};
use entry_core::vector::Vector;
use entry_core::windows::{self, flags};
use entry_core::{IrqOff, TrapFrame};
use example_os::archive::Archive;
use example_os::device::apic;
use example_os::entry::compat::map_call_page;
use example_os::entry::{self, TIMER_VECTOR};
use example_os::harness::{FINE, is_bochs, killed};
use example_os::memory::AddressSpace;
use example_os::process::{self, WaitStatus};
use example_os::{boot, elf, skip};
use program::{CODE, Machine, STACK_TOP, program};

const SIGILL: u8 = 4;
const SIGTRAP: u8 = 5;
const SIGSEGV: u8 = 11;

const TF: u64 = 1 << 8;
const DF: u64 = 1 << 10;
const IOPL: u64 = 3 << 12;
const NT: u64 = 1 << 14;
const AC: u64 = 1 << 18;

/// Asked of CPUID, not of the kernel under test.
fn is_intel() -> bool {
    CpuFeatures::detect().vendor == Vendor::Intel
}

/// A program of 32-bit code. The page by which it enters is at 0xfbffe000; number 1 is `exit`, 20 is `getpid`.
macro_rules! program32 {
    ($($line:literal),+ $(; $name:ident = $value:expr)* $(,)?) => {
        program!(".code32", $($line,)+ ".code64" $(; $name = $value)*)
    };
}

fn frame32() -> TrapFrame {
    entry::first_frame_32(CODE, STACK_TOP)
}

/// Runs a program that begins with 32-bit code.
fn run32(machine: &mut Machine, code: &[u8]) -> WaitStatus {
    let pid = machine.start_at(CODE, code, &frame32());
    machine.finish(pid).unwrap()
}

/// What a program had when it was ended.
struct Last(UnsafeCell<Option<TrapFrame>>);

// SAFETY: there is one CPU; the hook writes with interrupts off, and the test reads while no program runs.
unsafe impl Sync for Last {}

static LAST: Last = Last(UnsafeCell::new(None));

/// Keeps the frame of an exception that ends the program, and leaves it to the kernel.
fn keep(frame: &mut TrapFrame) -> bool {
    if frame.is_user() {
        // SAFETY: see `Last`.
        unsafe { *LAST.0.get() = Some(frame.clone()) };
    }
    false
}

/// Runs a program that `signal` ends, and says what it had then.
fn run_to_signal(machine: &mut Machine, code: &[u8], frame: &TrapFrame, signal: u8) -> (u32, TrapFrame) {
    // SAFETY: see `Last`.
    unsafe { *LAST.0.get() = None };
    entry::set_kernel_hook(Some(keep));
    let pid = machine.start_at(CODE, code, frame);
    let status = machine.finish(pid);
    entry::set_kernel_hook(None);
    assert_eq!(status, Some(killed(signal)));
    // SAFETY: see `Last`.
    (pid, unsafe { (*LAST.0.get()).take() }.unwrap())
}

/// `getpid` by `$way`, then a far jump to 64-bit code, and UD2 there.
macro_rules! call_and_show {
    ($($way:literal),+) => {
        program32!(
            "mov eax, 20", $($way,)+
            // jmp 0x2b:5f
            ".byte 0xea", ".long 5f - 2b + 0x400000", ".short 0x2b",
            ".code64", "5:", "ud2"
        )
    };
}

fn call_by_int80() -> &'static [u8] {
    call_and_show!("int 0x80")
}

fn call_by_page() -> &'static [u8] {
    call_and_show!(".byte 0xe8", ".long 0xfbffe000 - (4f - 2b + 0x400000)", "4:")
}

/// A frame of 32-bit code with something in the upper halves, and in the registers that only 64-bit code has.
fn full_frame() -> TrapFrame {
    let mut frame = frame32();
    frame.set_rbx(0xb0b0_0001_0000_000b);
    frame.set_rcx(0xc0c0_0002_0000_000c);
    frame.set_rdx(0xd0d0_0003_0000_000d);
    frame.set_rsi(0x5050_0004_0000_0051);
    frame.set_rdi(0xd1d1_0005_0000_00d1);
    frame.set_rbp(0xb9b9_0006_0000_00b9);
    frame.set_r8(0x0808_0007_0000_0008);
    frame.set_r9(0x0909_0008_0000_0009);
    frame.set_r10(0x1010_0009_0000_0010);
    frame.set_r11(0x1111_000a_0000_0011);
    frame.set_r12(0x1212_000b_0000_0012);
    frame.set_r13(0x1313_000c_0000_0013);
    frame.set_r14(0x1414_000d_0000_0014);
    frame.set_r15(0x1515_000e_0000_0015);
    frame
}

const fn low_registers(frame: &TrapFrame) -> [u64; 6] {
    [
        frame.rbx(),
        frame.rcx(),
        frame.rdx(),
        frame.rsi(),
        frame.rdi(),
        frame.rbp(),
    ]
}

/// Without R11, which SYSCALL destroys.
const fn high_registers(frame: &TrapFrame) -> [u64; 7] {
    [
        frame.r8(),
        frame.r9(),
        frame.r10(),
        frame.r12(),
        frame.r13(),
        frame.r14(),
        frame.r15(),
    ]
}

/// The lower halves are as they were, and the upper ones are as they were or 0.
fn check_low_registers(before: &TrapFrame, after: &TrapFrame) {
    for (before, after) in low_registers(before).into_iter().zip(low_registers(after)) {
        assert!(
            after == before || after == before & 0xffff_ffff,
            "{before:#x} became {after:#x}"
        );
    }
}

/// A 64-bit program that leaves a pattern in every register, and so in the frames on its kernel stack, which the next
/// process gets.
fn leave_a_pattern(machine: &mut Machine) {
    let code = program!(
        "mov rbx, 0x5a5a5a5a5a5a5a5a",
        "mov rdi, rbx",
        "mov rsi, rbx",
        "mov rdx, rbx",
        "mov rbp, rbx",
        "mov r8, rbx",
        "mov r9, rbx",
        "mov r10, rbx",
        "mov r12, rbx",
        "mov r13, rbx",
        "mov r14, rbx",
        "mov r15, rbx",
        "mov eax, 39",
        "syscall",
        "xor edi, edi",
        "mov eax, 60",
        "syscall",
        "ud2"
    );
    assert_eq!(machine.run(code), FINE);
}

/// 64-bit code that gets what R12 says of operation 14 of the control call, stores the flags in R14, and jumps to 32-bit
/// code: `getpid` with the flags in EBX, which POPFD loads right before `$enter`, and a look at what is left of those stored.
macro_rules! flags_program {
    ($($enter:literal),+) => {
        program!(
            "mov eax, 0x4558", "mov edi, 14", "mov esi, r12d", "int 0x80", "test eax, eax", "jle 5f",
            "mov [0x500010], r14d",
            "lea rcx, [rip + 6f]", "mov [0x500000], ecx", "mov dword ptr [0x500004], 0x1b",
            ".byte 0xff, 0x2c, 0x25, 0, 0, 0x50, 0",
            "5:", "ud2",
            ".code32", "6:",
            "mov eax, 20", "int 0x80", "mov esi, eax",
            "mov eax, 20", "call 4f",
            "pushfd", "pop ecx", "push 0x202", "popfd",
            "cmp eax, esi", "jne 9f", "xor ecx, [0x500010]", "test ecx, 0x47400", "jnz 9f",
            "mov eax, 1", "xor ebx, ebx", "int 0x80",
            "9:", "mov eax, 1", "mov ebx, 1", "int 0x80",
            "4:", $($enter,)+ ".code64"
        )
    };
}

/// By INT 0x80, and by what the page has: as that does it, with POPFD in between.
fn flags_programs() -> [&'static [u8]; 2] {
    [
        flags_program!("push ebx", "popfd", "int 0x80", "ret"),
        if is_intel() {
            flags_program!(
                "push ecx",
                "push edx",
                "push ebp",
                "mov ebp, esp",
                "push ebx",
                "popfd",
                "sysenter"
            )
        } else {
            flags_program!(
                "push ebp",
                "mov ebp, ecx",
                "push ebx",
                "popfd",
                "syscall",
                "pop ebp",
                "ret"
            )
        },
    ]
}

/// Single steps in the program, and those in the kernel that are in no window of a stub.
static STEPS: AtomicU32 = AtomicU32::new(0);
static STRAY_STEPS: AtomicU32 = AtomicU32::new(0);

/// Takes TF away from a program that is stepped. What is in the kernel is left to the kernel.
fn end_stepping(frame: &mut TrapFrame) -> bool {
    if Vector(frame.vector()) != Vector::DEBUG {
        return false;
    }
    if frame.is_user() {
        STEPS.fetch_add(1, Ordering::Relaxed);
        frame.set_rflags(frame.rflags() & !TF);
        return true;
    }
    if windows::find(frame.rip()).is_none_or(|window| window.flags() & flags::USER_FLAGS == 0) {
        STRAY_STEPS.fetch_add(1, Ordering::Relaxed);
    }
    false
}

/// Where SS is loaded on the way to 32-bit code, and where SYSRET is: `mov ss, [rip + …]` and `sysret` in 32-bit form.
fn exit_to_32_bit_code() -> impl Iterator<Item = (u64, u64)> {
    const MOV_SS: [u8; 2] = [0x8e, 0x15];
    const SYSRET: [u8; 2] = [0x0f, 0x07];
    /// The load comes so many bytes before the exit, at most.
    const DISTANCE: u64 = 128;
    let bytes_at = |address: u64| {
        // SAFETY: the callers stay in the kernel's code around a window.
        unsafe { core::ptr::with_exposed_provenance::<[u8; 2]>(usize::try_from(address).unwrap()).read_unaligned() }
    };
    windows::all()
        .iter()
        .filter(|window| window.flags() & (flags::USER_GS | flags::USER_RSP) == flags::USER_GS | flags::USER_RSP)
        .map(|window| window.end() - 2)
        .filter(move |&sysret| bytes_at(sysret) == SYSRET && bytes_at(sysret - 1)[0] != 0x48)
        .filter_map(move |sysret| {
            let load = (sysret - DISTANCE..sysret).rev().find(|&at| bytes_at(at) == MOV_SS)?;
            Some((load, sysret))
        })
}

/// Lets #DB come before each of up to four instructions, and no others.
fn break_at(addresses: &[u64]) {
    let mut registers = [0; 4];
    registers[..addresses.len()].copy_from_slice(addresses);
    let enabled = (0..addresses.len()).fold(0x400_u64, |bits, number| bits | 2 << (2 * number));
    // SAFETY: the kernel may write debug registers; the hook expects #DB.
    unsafe {
        core::arch::asm!(
            "mov dr7, {off}", "mov dr0, {0}", "mov dr1, {1}", "mov dr2, {2}", "mov dr3, {3}", "mov dr7, {enabled}",
            in(reg) registers[0], in(reg) registers[1], in(reg) registers[2], in(reg) registers[3],
            off = in(reg) 0x400_u64, enabled = in(reg) enabled,
        );
    }
}

/// SS before it is loaded, and at SYSRET; all ones for a breakpoint that has not been hit.
static SS_BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);
static SS_AT_SYSRET: AtomicU64 = AtomicU64::new(u64::MAX);

/// Notes SS at each breakpoint, and goes from the load to the exit of the same stub.
fn note_ss(frame: &mut TrapFrame) -> bool {
    if Vector(frame.vector()) != Vector::DEBUG || frame.is_user() {
        return false;
    }
    if let Some((_, sysret)) = exit_to_32_bit_code().find(|(load, _)| *load == frame.rip()) {
        SS_BEFORE.store(frame.ss(), Ordering::Relaxed);
        break_at(&[sysret]);
    } else {
        SS_AT_SYSRET.store(frame.ss(), Ordering::Relaxed);
        break_at(&[]);
    }
    true
}

/// The landing address: behind SYSENTER, in the page.
const LANDING: u64 = 0xfbff_e007;

/// A frame of 32-bit code that makes the control call which is left by SYSEXIT, with a timer interrupt pending then or not.
fn sysexit_frame(is_interrupted: bool) -> TrapFrame {
    let mut frame = full_frame();
    frame.set_rax(0xa0a0_0000_0000_4558);
    frame.set_rbx(0xb0b0_0001_0000_0019);
    frame.set_rcx(0xc0c0_0002_0000_0000 | u64::from(is_interrupted));
    frame
}

/// What a program has at the first instruction after SYSEXIT, with ESP as given.
fn check_after_sysexit(before: &TrapFrame, esp: u64, after: &TrapFrame) {
    assert_eq!(
        (after.rip(), after.cs(), after.rsp(), after.ss()),
        (LANDING, 0x1b, esp, 0x23)
    );
    // SYSEXIT's own operands; the stack pointer was in EBP, too.
    assert_eq!((after.rdx(), after.rcx(), after.rbp()), (LANDING, esp, esp));
    assert_eq!(after.rax(), 0x4558);
    for (before, after) in [
        (before.rbx(), after.rbx()),
        (before.rsi(), after.rsi()),
        (before.rdi(), after.rdi()),
    ] {
        assert!(
            after == before || after == before & 0xffff_ffff,
            "{before:#x} became {after:#x}"
        );
    }
    // Nothing of the kernel's.
    assert_eq!((high_registers(after), after.r11()), ([0; 7], 0));
    // A fault sets RF.
    assert_eq!(after.rflags() & !(1 << 16), before.rflags());
}

/// What a program had when it was interrupted.
static INTERRUPTED: Last = Last(UnsafeCell::new(None));

/// Keeps the frame of an interrupt.
fn keep_interrupted(frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    // SAFETY: see `Last`.
    unsafe { *INTERRUPTED.0.get() = Some(frame.clone()) };
    irq
}

example_os::tests! { Machine;
    fn a_program_in_a_file_makes_each_call(machine) {
        let archive = Archive::new(boot::info().archive.unwrap());
        let file = archive.find("bin/hello32").unwrap().unwrap();
        let mut space = AddressSpace::new().unwrap();
        let image = elf::load(&mut space, file).unwrap();
        assert!(image.is_32_bit);
        map_call_page(&mut space).unwrap();
        let rsp = elf::build_stack(&mut space, &image, &[b"hello32"], &[]).unwrap();
        let frame = entry::first_frame_32(image.entry, rsp);
        let pid = process::start("hello32", space, &frame, &machine.irq).unwrap();
        assert_eq!(machine.finish(pid), Some(FINE));
    }

    fn the_page_has_the_instruction_of_the_cpu(machine) {
        // Behind three pushes and a move.
        let code = if is_intel() {
            program32!("cmp word ptr [0xfbffe005], 0x340f", "setne bl", "movzx ebx, bl", "mov eax, 1", "int 0x80")
        } else {
            program32!("cmp word ptr [0xfbffe005], 0x050f", "setne bl", "movzx ebx, bl", "mov eax, 1", "int 0x80")
        };
        assert_eq!(run32(machine, code), FINE);
        // It can't be written.
        assert_eq!(run32(machine, program32!("mov byte ptr [0xfbffe000], 0xcc", "ud2")), killed(SIGSEGV));
    }

    fn int80_keeps_every_register(machine) {
        let before = full_frame();
        let (pid, after) = run_to_signal(machine, call_by_int80(), &before, SIGILL);
        assert_eq!(after.rax(), pid.into());
        check_low_registers(&before, &after);
        assert_eq!(high_registers(&after), high_registers(&before));
        assert_eq!(after.r11(), before.r11());
        assert_eq!((after.cs(), after.rsp()), (0x2b, STACK_TOP));
    }

    fn registers_that_32_bit_code_has_not_hold_nothing_of_the_kernels(machine) {
        leave_a_pattern(machine);
        let before = full_frame();
        let (pid, after) = run_to_signal(machine, call_by_page(), &before, SIGILL);
        assert_eq!(after.rax(), pid.into());
        check_low_registers(&before, &after);
        // SYSENTER's stub can't say what they were: it makes them zero.
        let wanted = if is_intel() { [0; 7] } else { high_registers(&before) };
        assert_eq!(high_registers(&after), wanted);
        // SYSRET leaves the flags there.
        assert_eq!(after.r11() & !0x8d5, 0x202);
        assert_eq!((after.cs(), after.rsp()), (0x2b, STACK_TOP));
    }

    fn a_fault_keeps_every_register(machine) {
        // An access to the stack that is answered, and one instruction later the end.
        let before = full_frame();
        let code = program32!("mov eax, [0x6f1000]", "ud2");
        let (_, after) = run_to_signal(machine, code, &before, SIGILL);
        assert_eq!(low_registers(&after), low_registers(&before));
        assert_eq!(high_registers(&after), high_registers(&before));
        assert_eq!((after.r11(), after.cs(), after.ss()), (before.r11(), 0x1b, 0x23));
    }

    fn upper_half_of_the_number_is_no_part_of_it(machine) {
        let mut before = full_frame();
        before.set_rax(0xa0a0_0000_0000_0014);
        // No instruction of the program writes RAX.
        let code = program32!("int 0x80", "ud2");
        let (pid, after) = run_to_signal(machine, code, &before, SIGILL);
        assert_eq!(after.rax(), pid.into());
    }

    fn a_stack_argument_that_cannot_be_read_is_an_error(machine) {
        /// EFAULT, as 32-bit code sees it.
        const BAD_ADDRESS: u64 = 0xffff_fff2;
        let code = if is_intel() {
            program32!("mov ebp, esp", "sysenter")
        } else {
            program32!("syscall", "pop ebp")
        };
        // Not mapped; not mapped, at the end; over the end of 4 GiB, by three bytes and by one.
        for stack in [0, 0x60_0000, 0xffff_fffc, 0xffff_fffd, 0xffff_ffff] {
            // mmap2, which has six arguments.
            let mut frame = frame32();
            frame.set_rsp(stack);
            frame.set_rax(192);
            frame.set_rdx(3);
            frame.set_rsi(0x22);
            let (_, after) = run_to_signal(machine, code, &frame, SIGSEGV);
            // The program faulted at its own next access to that stack, with the error in its hands.
            assert_eq!((after.rax(), after.cs(), after.rsp()), (BAD_ADDRESS, 0x1b, stack), "{stack:#x}");
            assert_eq!(after.rip(), if is_intel() { 0xfbff_e007 } else { CODE + 2 });
            // getpid, which has none.
            frame.set_rax(20);
            let (pid, after) = run_to_signal(machine, code, &frame, SIGSEGV);
            assert_eq!((after.rax(), after.rsp()), (pid.into(), stack), "{stack:#x}");
        }
    }

    fn all_combinations_of_flags_are_survived(machine) {
        for (way, code) in flags_programs().into_iter().enumerate() {
            for pattern in 0..32_u64 {
                let chosen = |bit: u32, flag: u64| if pattern >> bit & 1 == 1 { flag } else { 0 };
                let user = chosen(0, NT) | chosen(1, AC) | chosen(2, DF) | chosen(3, TF);
                if is_bochs() && !is_intel() && way == 1 && user & TF != 0 {
                    // Bochs 2.7 traps at the target of SYSCALL although SFMASK clears TF.
                    continue;
                }
                let iopl = chosen(4, IOPL);
                let mut frame = entry::first_frame(CODE, STACK_TOP);
                // POPFD sets all of them but IOPL.
                frame.set_rbx(0x202 | user);
                frame.set_r12(if iopl == 0 { 1 } else { 2 });
                frame.set_r14(user | iopl);
                STEPS.store(0, Ordering::Relaxed);
                STRAY_STEPS.store(0, Ordering::Relaxed);
                entry::set_kernel_hook(Some(end_stepping));
                let pid = machine.start_at(CODE, code, &frame);
                let status = machine.finish(pid);
                entry::set_kernel_hook(None);
                assert_eq!(status, Some(FINE), "way {way}, pattern {pattern:#x}");
                // The first instruction of the program behind the call traps, and no other.
                assert_eq!(STEPS.load(Ordering::Relaxed), u32::from(user & TF != 0), "way {way}, pattern {pattern:#x}");
                assert_eq!(STRAY_STEPS.load(Ordering::Relaxed), 0, "way {way}, pattern {pattern:#x}");
            }
        }
    }

    // The way out that the crate has but does not take by itself.
    fn sysexit_goes_back_to_32_bit_code(machine) {
        if !is_intel() {
            skip!("this CPU has no SYSENTER in long mode");
        }
        // CF, PF, AF, ZF, SF, DF, OF, AC and ID, alone and together.
        let flags = [0, 1 << 0, 1 << 2, 1 << 4, 1 << 6, 1 << 7, DF, 1 << 11, AC, 1 << 21];
        let all = flags.into_iter().fold(0, |all, flag| all | flag);
        for flag in flags.into_iter().chain([all]) {
            leave_a_pattern(machine);
            let mut before = sysexit_frame(false);
            before.set_rflags(0x202 | flag);
            // Not mapped: the program faults at its first instruction.
            before.set_rsp(0x60_0000);
            let (_, after) = run_to_signal(machine, program32!("mov ebp, esp", "sysenter"), &before, SIGSEGV);
            check_after_sysexit(&before, before.rsp(), &after);
        }
        // The page restores what SYSEXIT destroys.
        let before = sysexit_frame(false);
        let code = program32!(".byte 0xe8", ".long 0xfbffe000 - (4f - 2b + 0x400000)", "4:", "ud2");
        let (_, after) = run_to_signal(machine, code, &before, SIGILL);
        check_low_registers(&before, &after);
        assert_eq!((after.rip(), after.cs(), after.rsp(), after.ss()), (CODE + 5, 0x1b, STACK_TOP, 0x23));
    }

    // STI lets an interrupt in behind the next instruction, and that is SYSEXIT.
    fn an_interrupt_that_waits_for_sysexit_finds_32_bit_code(machine) {
        if !is_intel() {
            skip!("this CPU has no SYSENTER in long mode");
        }
        leave_a_pattern(machine);
        let before = sysexit_frame(true);
        let code = program32!(".byte 0xe8", ".long 0xfbffe000 - (4f - 2b + 0x400000)", "4:", "ud2");
        // SAFETY: see `Last`.
        unsafe { *INTERRUPTED.0.get() = None };
        entry::set_lower_half(Some(keep_interrupted));
        let (_, after) = run_to_signal(machine, code, &before, SIGILL);
        entry::set_lower_half(None);
        // SAFETY: see `Last`.
        let interrupted = unsafe { (*INTERRUPTED.0.get()).take() };
        // Below the return address and three words of the page's.
        check_after_sysexit(&before, STACK_TOP - 16, &interrupted.expect("an interrupt"));
        // And the program goes on.
        check_low_registers(&before, &after);
        assert_eq!((after.rip(), after.cs(), after.rsp(), after.ss()), (CODE + 5, 0x1b, STACK_TOP, 0x23));
    }

    fn what_sysexit_cannot_do_for_32_bit_code_is_refused(machine) {
        /// EINVAL, as 32-bit code sees it.
        const INVALID: u64 = 0xffff_ffea;
        // INT 0x80 keeps the registers that SYSEXIT destroys.
        let (_, after) = run_to_signal(machine, program32!("int 0x80", "ud2"), &sysexit_frame(false), SIGILL);
        assert_eq!(after.rax(), INVALID);
        if !is_intel() {
            skip!("this CPU has no SYSENTER in long mode");
        }
        // The flags are in ESI. What the page pops is 0, its return address too.
        let code = program32!("mov ebp, esp", "push esi", "popfd", "sysenter");
        for (flag, signal) in [(TF, SIGTRAP), (NT, SIGSEGV)] {
            let mut before = sysexit_frame(false);
            before.set_rsi(0x202 | flag);
            before.set_rsp(STACK_TOP - 16);
            let (_, after) = run_to_signal(machine, code, &before, signal);
            // The usual way out restores them.
            assert_eq!((after.rax(), after.rflags() & flag), (INVALID, flag), "{flag:#x}");
        }
    }

    fn what_the_cpu_has_not_in_32_bit_code_ends_the_program(machine) {
        if is_intel() {
            // TCG goes by the register alone, which has to lead to the kernel somewhere.
            let status = run32(machine, program32!("mov eax, 1", "xor ebx, ebx", "syscall", "ud2"));
            assert!([FINE, killed(SIGILL)].contains(&status), "{status}");
        } else {
            // SYSENTER is off.
            let status = run32(machine, program32!("mov eax, 1", "xor ebx, ebx", "mov ebp, esp", "sysenter", "ud2"));
            assert!([killed(SIGILL), killed(SIGSEGV)].contains(&status), "{status}");
        }
        // The kernel goes on.
        assert_eq!(machine.run(program!("mov eax, 60", "xor edi, edi", "syscall")), FINE);
    }

    fn processes_of_both_kinds_take_turns(machine) {
        // It finds its data segment in DS and ES, and drops the latter. Ten times: sched_yield by the page, getpid both ways,
        // and the two registers are as it left them.
        let code32 = program32!(
            "mov edi, 0xfbffe000", "mov esi, 10",
            "mov eax, es", "cmp ax, 0x23", "jne 9f", "xor eax, eax", "mov es, eax",
            "4:", "mov eax, ds", "cmp ax, 0x23", "jne 9f", "mov eax, es", "test ax, ax", "jnz 9f",
            "mov eax, 158", "call edi", "test eax, eax", "jnz 9f",
            "mov eax, 20", "int 0x80", "mov ebx, eax", "mov eax, 20", "call edi", "cmp eax, ebx", "jne 9f",
            "dec esi", "jnz 4b",
            "mov eax, 1", "xor ebx, ebx", "int 0x80", "9:", "mov eax, 1", "mov ebx, 1", "int 0x80"
        );
        let code64 = program!(
            "mov ebx, 10",
            "4:", "mov eax, 24", "syscall", "test eax, eax", "jnz 9f", "mov eax, 39", "syscall", "test eax, eax", "jle 9f",
            "dec ebx", "jnz 4b",
            "mov eax, 60", "xor edi, edi", "syscall", "9:", "mov eax, 60", "mov edi, 1", "syscall", "ud2"
        );
        // The second time the kernel hides from the 64-bit one; from 32-bit code it does not hide.
        for hides in [false, true] {
            entry::set_hides_from_new_processes(hides, &machine.irq);
            let all = [
                machine.start_at(CODE, code32, &frame32()),
                machine.start(code64),
                machine.start_at(CODE, code32, &frame32()),
                machine.start_at(CODE, code32, &frame32()),
            ];
            entry::set_hides_from_new_processes(false, &machine.irq);
            for pid in all {
                assert_eq!(machine.finish(pid), Some(FINE), "hides: {hides}");
            }
        }
    }

    fn sysenter_is_on_again_after_a_hidden_kernels_process(machine) {
        if !is_intel() {
            skip!("this CPU has no SYSENTER in long mode");
        }
        // The first process has the stub for 32-bit code installed, so that the last has but to turn it on.
        let code32 = program32!(
            "mov edi, 0xfbffe000", "mov eax, 20", "int 0x80", "mov ebx, eax", "mov eax, 20", "call edi", "sub ebx, eax",
            "mov eax, 1", "int 0x80"
        );
        let code64 = program!("mov eax, 60", "xor edi, edi", "syscall", "ud2");
        assert_eq!(run32(machine, code32), FINE);
        entry::set_hides_from_new_processes(true, &machine.irq);
        let hidden = machine.run(code64);
        entry::set_hides_from_new_processes(false, &machine.irq);
        assert_eq!(hidden, FINE);
        assert_eq!(run32(machine, code32), FINE);
    }

    fn leave_for_32_bit_code_comes_and_goes_with_its_data_segments(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 14", "mov esi, 1", "int 0x80", "test eax, eax", "jle 9f",
            "mov ecx, ds", "cmp ecx, 0x23", "jne 9f", "mov ecx, es", "cmp ecx, 0x23", "jne 9f",
            "mov eax, 0x4558", "mov edi, 14", "xor esi, esi", "int 0x80", "test eax, eax", "jnz 9f",
            "mov ecx, ds", "mov edx, es", "or ecx, edx", "jnz 9f",
            "mov eax, 60", "xor edi, edi", "syscall", "9:", "mov eax, 60", "mov edi, 1", "syscall", "ud2"
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn sysenter_of_64_bit_code_counts_as_that_of_32_bit_code(machine) {
        if !is_intel() {
            skip!("this CPU has no SYSENTER in long mode");
        }
        // A process that has 32-bit code: the kernel can't see which it was. It returns behind the page's SYSENTER, in 32-bit
        // code: three words from the stack, then the address of what looks at the answer and at CS.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 14", "mov esi, 1", "int 0x80", "test eax, eax", "jle 5f",
            "mov eax, 39", "syscall", "mov r15d, eax", "mov [0x500020], eax",
            "lea rcx, [rip + 4f]", "mov rbp, 0xb9b900000050000c",
            "mov dword ptr [0x50000c], 0", "mov dword ptr [0x500010], 0", "mov dword ptr [0x500014], 0",
            "mov [0x500018], ecx",
            // i386's number of getpid, and that of 64-bit code in its upper half.
            "mov rax, 0x2700000014", "sysenter",
            "5:", "ud2",
            ".code32", "4:",
            "mov ecx, cs", "cmp cx, 0x1b", "jne 9f", "cmp eax, [0x500020]", "jne 9f", "cmp esp, 0x50001c", "jne 9f",
            "mov eax, 1", "xor ebx, ebx", "int 0x80", "9:", "mov eax, 1", "mov ebx, 1", "int 0x80", ".code64"
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn memory_of_32_bit_code_ends_below_4_gib(machine) {
        // MAP_FIXED over the end is ENOMEM; a wish there is put elsewhere.
        let code = program32!(
            "mov eax, 192", "mov ebx, 0xffffe000", "mov ecx, 4096", "mov edx, 3", "mov esi, 0x32", "mov edi, -1",
            "xor ebp, ebp", "int 0x80", "cmp eax, -12", "jne 9f",
            "mov eax, 192", "mov esi, 0x22", "int 0x80", "cmp eax, 0xfffff000", "jae 9f", "mov byte ptr [eax], 1",
            "mov eax, 1", "xor ebx, ebx", "int 0x80", "9:", "mov eax, 1", "mov ebx, 1", "int 0x80"
        );
        assert_eq!(run32(machine, code), FINE);
    }

    fn other_processes_have_no_32_bit_code(machine) {
        // A 64-bit program that jumps there ends at its first event, whatever that is.
        let code = program!(
            "lea rcx, [rip + 4f]", "mov [0x500000], ecx", "mov dword ptr [0x500004], 0x1b", "mov eax, 20",
            ".byte 0xff, 0x2c, 0x25, 0, 0, 0x50, 0",
            ".code32", "4:", "int 0x80", "mov eax, 1", "xor ebx, ebx", "int 0x80", ".code64"
        );
        assert_eq!(machine.run(code), killed(SIGSEGV));
        // Operation 14 of the control call lets it.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 14", "mov esi, 1", "int 0x80", "test eax, eax", "jle 9f",
            "lea rcx, [rip + 4f]", "mov [0x500000], ecx", "mov dword ptr [0x500004], 0x1b", "mov eax, 20",
            ".byte 0xff, 0x2c, 0x25, 0, 0, 0x50, 0",
            ".code32", "4:", "int 0x80", "mov eax, 1", "xor ebx, ebx", "int 0x80", ".code64",
            "9:", "ud2"
        );
        assert_eq!(machine.run(code), FINE);
    }

    fn ss_is_good_when_32_bit_code_goes_on_after_another_process_was_interrupted(machine) {
        // SS can be seen in the frame of a breakpoint at the last instruction of the exit.
        let exits: [Option<u64>; 4] = core::array::from_fn(|number| exit_to_32_bit_code().nth(number).map(|(load, _)| load));
        let count = exit_to_32_bit_code().count();
        assert!((1..=4).contains(&count), "{count} exits");
        let mut loads = [0; 4];
        for (load, exit) in loads.iter_mut().zip(exits.into_iter().flatten()) {
            *load = exit;
        }
        // It yields to the other, comes back when that is interrupted, and ends it.
        let waiting = program32!(
            "mov eax, 158", "mov edi, 0xfbffe000", "call edi",
            "mov eax, 20", "int 0x80", "lea ebx, [eax + 1]", "mov ecx, 9", "mov eax, 37", "int 0x80",
            "mov ebx, eax", "mov eax, 1", "int 0x80"
        );
        let waiting = machine.start_at(CODE, waiting, &frame32());
        let busy = machine.start(program!("4:", "pause", "jmp 4b"));
        entry::set_kernel_hook(Some(note_ss));
        break_at(&loads[..count]);
        apic::timer_periodic(TIMER_VECTOR, 1_000_000);
        let status = machine.finish(waiting);
        apic::timer_stop();
        break_at(&[]);
        entry::set_kernel_hook(None);
        assert_eq!(status, Some(FINE));
        assert_eq!(machine.finish(busy), Some(killed(9)));
        assert_eq!(SS_BEFORE.load(Ordering::Relaxed), 0);
        assert_eq!(SS_AT_SYSRET.load(Ordering::Relaxed), 0x10);
    }
}
