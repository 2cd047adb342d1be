//! SYSCALL with interrupts left on: interrupts inside interrupts, and switches in the middle of system calls.
//!
//! The lower half of each interrupt turns interrupts on and raises the next one, so that frames stack up on the thread's
//! stack while the interrupts' own stack is used again; and a timer interrupt in a system call lets others run there and
//! then. Runs on TCG with `-icount shift=0` and any CPU model, and on Bochs: an interrupt can come after any instruction.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
#[expect(dead_code, reason = "its programs run side by side")]
mod program;

use core::hint;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use entry_core::windows::{self, Window, flags};
use entry_core::{IrqOff, TrapFrame};
use example_os::device::apic;
use example_os::entry::{self, PerCpu, TIMER_VECTOR};
use example_os::harness::FINE;
use example_os::process::current;
use program::{Machine, program};

/// A vector that no device has.
const OTHER_VECTOR: u8 = 0xd1;
/// Interrupts inside the first one.
const LEVELS: usize = 3;
/// Least ticks of the timer from one interrupt to the next: longer than a chain of them takes.
const LEAST_PERIOD: u32 = 6_000;

/// The vector that the lower half of each level raises.
static CHAIN: [AtomicU32; LEVELS] = [const { AtomicU32::new(0) }; LEVELS];
/// Lower halves under way, for each process: one may be switched out in the middle.
static DEPTHS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
/// Lower halves that began at each level.
static ARRIVALS: [AtomicU64; LEVELS + 1] = [const { AtomicU64::new(0) }; LEVELS + 1];
/// First ones, of interrupts in the kernel.
static IN_KERNEL: AtomicU64 = AtomicU64::new(0);
/// Lower halves of interrupts in windows: there are to be none.
static IN_WINDOW: AtomicU64 = AtomicU64::new(0);
/// Frames that the interrupts inside have changed.
static CHANGED: AtomicU64 = AtomicU64::new(0);

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Starts the timer with another period each time: a program would keep step with it. For the same reason, and because an
/// interrupt in a window has no lower half, the loops of the programs are of another length each time.
fn start_timer() {
    static STARTS: AtomicU32 = AtomicU32::new(0);
    let start = STARTS.fetch_add(1, Relaxed);
    apic::timer_periodic(TIMER_VECTOR, LEAST_PERIOD + start.wrapping_mul(7_919) % 4_096);
}

/// Looks at where the interrupt came.
fn look(frame: &TrapFrame) {
    start_timer();
    if !frame.is_user() {
        add_one(&IN_KERNEL);
        if windows::find_irqs_on(frame.rip()).is_some() {
            add_one(&IN_WINDOW);
        }
    }
}

/// A lower half that does nothing besides.
fn only_look(frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    look(frame);
    irq
}

/// The frame as it is in memory now.
fn read(frame: &TrapFrame) -> TrapFrame {
    // SAFETY: a reference can be read through, and no frame owns anything.
    unsafe { core::ptr::from_ref(frame).read_volatile() }
}

/// A lower half that takes the next interrupt of the chain.
fn nest(frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    let depth = &DEPTHS[current().pid() as usize % DEPTHS.len()];
    let level = depth.load(Relaxed) as usize;
    add_one(&ARRIVALS[level]);
    if level == 0 {
        look(frame);
    } else if windows::find_irqs_on(frame.rip()).is_some() {
        add_one(&IN_WINDOW);
    }
    if level == LEVELS {
        return irq;
    }
    let before = read(frame);
    let next = &ARRIVALS[level + 1];
    let arrived = next.load(Relaxed);
    depth.fetch_add(1, Relaxed);
    let on = irq.enable();
    apic::send_to_self(CHAIN[level].load(Relaxed).to_le_bytes()[0]);
    for _ in 0..1_000 {
        if next.load(Relaxed) != arrived {
            break;
        }
        hint::spin_loop();
    }
    let irq = on.disable();
    depth.fetch_sub(1, Relaxed);
    if read(frame) != before {
        add_one(&CHANGED);
    }
    irq
}

/// The upper half of the other vector.
fn acknowledge(frame: &mut TrapFrame) -> bool {
    if frame.vector() == OTHER_VECTOR {
        apic::eoi();
        return true;
    }
    false
}

/// Set of stubs 8. Then, with RSP pointing into the kernel, calls that must leave all registers alone but RAX, RCX and R11;
/// RBX counts.
fn calls() -> &'static [u8] {
    program!(
        "mov eax, 0x4558", "mov edi, 1", "mov esi, 8", "int 0x80", "test rax, rax", "jnz 6f",
        "mov ebx, 40000", "mov rsp, -1", "mov rdi, 0x11111111", "mov rsi, 0x22222222", "mov rdx, 0x33333333",
        "mov rbp, 0x44444444", "mov r8, 0x55555555", "mov r9, 0x66666666", "mov r10, 0x77777777",
        "mov r12, 0x88888888", "mov r13, 0x99999999", "mov r14, 0xaaaaaaaa", "mov r15, 0xbbbbbbbb",
        "4:", "imul ecx, ebx, 7919", "and ecx, 127", "8:", "dec ecx", "jns 8b",
        "mov eax, 110", "syscall", "5:", "lea rax, [rip + 5b]", "cmp rax, rcx", "jne 6f",
        "lea rax, [rdi + rsi]", "add rax, rdx", "add rax, rbp", "add rax, r8", "add rax, r9", "add rax, r10",
        "add rax, r12", "add rax, r13", "add rax, r14", "add rax, r15", "mov rcx, {sum}", "cmp rax, rcx", "jne 6f",
        "cmp rsp, -1", "jne 6f", "dec ebx", "jnz 4b",
        "xor edi, edi", "jmp 7f", "6:", "mov edi, 1", "7:", "mov eax, 60", "syscall", "ud2";
        sum = 0x1111_1111_u64 * 66
    )
}

/// Runs programs side by side among interrupts that end in `half`, and returns how many times one of them was switched out
/// in the middle of a system call.
fn run_among_interrupts<const N: usize>(machine: &mut Machine, half: entry::LowerHalf, codes: [&[u8]; N]) -> u64 {
    for counter in ARRIVALS.iter().chain([&IN_KERNEL, &IN_WINDOW, &CHANGED]) {
        counter.store(0, Relaxed);
    }
    entry::set_lower_half(Some(half));
    entry::set_kernel_hook(Some(acknowledge));
    let programs = codes.map(|code| machine.start(code));
    let before = PerCpu::current(&machine.irq).preemptions();
    start_timer();
    let ends = programs.map(|pid| machine.finish(pid));
    apic::timer_stop();
    entry::set_lower_half(None);
    entry::set_kernel_hook(None);
    assert_eq!(ends, [Some(FINE); N]);
    assert_eq!(IN_WINDOW.load(Relaxed), 0, "lower halves of interrupts in windows");
    assert_eq!(CHANGED.load(Relaxed), 0, "frames were changed");
    PerCpu::current(&machine.irq).preemptions() - before
}

/// Runs chains of interrupts with these vectors over one program.
fn run_chains(machine: &mut Machine, vectors: [u8; LEVELS]) {
    for (place, vector) in CHAIN.iter().zip(vectors) {
        place.store(vector.into(), Relaxed);
    }
    let _preemptions = run_among_interrupts(machine, nest, [calls()]);
    let arrivals: [u64; LEVELS + 1] = core::array::from_fn(|level| ARRIVALS[level].load(Relaxed));
    let in_kernel = IN_KERNEL.load(Relaxed);
    example_os::println!("interrupts at each level: {arrivals:?}, {in_kernel} of the first in the kernel");
    // More where the timer came before what a lower half had raised.
    assert!(arrivals.is_sorted(), "{arrivals:?}");
    assert!(
        in_kernel >= 20 && arrivals[0] >= in_kernel + 20,
        "{in_kernel} of {arrivals:?}"
    );
}

/// What a record says.
fn words(window: &Window) -> (u64, u64, u32, Option<u64>) {
    (window.start(), window.end(), window.flags(), window.restart())
}

example_os::tests! { Machine;
    fn what_entries_look_up_are_the_records_of_all_windows(_machine) {
        let mut counts = [0; 2];
        for window in windows::all().iter().filter(|window| window.start() < window.end()) {
            for rip in [window.start(), window.end() - 1] {
                let found = windows::find_irqs_on(rip).map(words);
                assert_eq!(found, (window.flags() & flags::IRQS_ON != 0).then(|| words(window)));
                assert_eq!(windows::is_iret(rip), window.flags() & flags::IRET != 0);
            }
            counts[0] += u32::from(window.flags() & flags::IRQS_ON != 0);
            counts[1] += u32::from(window.flags() & flags::IRET != 0);
        }
        assert!(counts.iter().all(|&count| count > 1), "{counts:?}");
    }

    fn interrupts_of_one_vector_nest(machine) {
        run_chains(machine, [TIMER_VECTOR; LEVELS]);
    }

    fn interrupts_of_different_vectors_nest(machine) {
        run_chains(machine, [OTHER_VECTOR, TIMER_VECTOR, OTHER_VECTOR]);
    }

    fn system_calls_are_preempted_and_never_in_a_window(machine) {
        let plain = program!(
            "mov ebx, 30000", "4:", "imul ecx, ebx, 7919", "and ecx, 127", "8:", "dec ecx", "jns 8b", "mov eax, 110", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        let code = calls();
        let preemptions = run_among_interrupts(machine, only_look, [code, plain, code]);
        let in_kernel = IN_KERNEL.load(Relaxed);
        example_os::println!("{preemptions} preemptions by {in_kernel} interrupts in the kernel");
        assert!(preemptions > 20, "{preemptions} preemptions by {in_kernel} interrupts");
    }

    fn handlers_are_preempted_inside_each_other(machine) {
        for place in &CHAIN {
            place.store(TIMER_VECTOR.into(), Relaxed);
        }
        let code = calls();
        let preemptions = run_among_interrupts(machine, nest, [code, code, code]);
        let chains = ARRIVALS[0].load(Relaxed);
        example_os::println!("{preemptions} preemptions in {chains} chains");
        // It is the innermost handler that is switched out, whatever the first one interrupted.
        assert!(preemptions > 500 && preemptions > chains / 2, "{preemptions} preemptions in {chains} chains");
    }

    fn work_outlasts_a_preemption(machine) {
        // IOPL 3 is asked for, and given at the next exit: the process may be switched out in between.
        let code = program!(
            "mov ebx, 5000", "4:", "imul ecx, ebx, 7919", "and ecx, 127", "8:", "dec ecx", "jns 8b",
            "mov eax, 0x4558", "mov edi, 1", "mov esi, 8", "int 0x80", "test rax, rax", "jnz 6f",
            "mov eax, 0x4558", "mov edi, 11", "mov esi, 1", "int 0x80", "test rax, rax", "jnz 6f",
            "pushfq", "pop rax", "not eax", "test eax, 0x3000", "jnz 6f",
            "mov eax, 0x4558", "mov edi, 11", "xor esi, esi", "int 0x80", "test rax, rax", "jnz 6f",
            "dec ebx", "jnz 4b",
            "xor edi, edi", "jmp 7f", "6:", "mov edi, 1", "7:", "mov eax, 60", "syscall", "ud2",
        );
        let preemptions = run_among_interrupts(machine, only_look, [code, code]);
        example_os::println!("{preemptions} preemptions");
        assert!(preemptions > 10, "{preemptions} preemptions");
    }
}
