//! Context tracking in a running kernel: what the word says, and how often its counter has stepped, on every way in and out.
//!
//! The counter steps once at each crossing of the border between user mode and kernel, so a program whose entries are
//! known leaves a known number of steps. With debug assertions each transition checks in addition where it comes from.
//! Runs on TCG with any CPU model; the NMI from user mode needs an APIC timer that delivers NMIs, which QEMU has.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use context_tracking::time::{Account, TimeAccount, TimeObserver, tsc};
use context_tracking::{CpuWord, Ctx, Gs, IrqSaved, Kernel, State, Tracked, Tracker};
use entry_core::{IrqOff, TrapFrame, windows};
use entry_sysret::Refusal;
use example_os::device::apic;
use example_os::entry::{self, PerCpu, TIMER_VECTOR};
use example_os::harness::FINE;
use example_os::memory::USER_LIMIT;
use example_os::process::signal::Signal;
use example_os::process::{self, WaitStatus};
use program::{Machine, STACK_TOP, program};

const SIGSEGV: WaitStatus = WaitStatus::killed(Signal::SIGSEGV);

const NMI: u8 = 2;
const DEBUG: u8 = 1;
const INVALID_OPCODE: u8 = 6;

/// What a hook saw last: the word's bits, and how often it was called.
static SEEN: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Steps of the counter while `code` runs from its start to its end, as which it must end.
fn steps(machine: &mut Machine, code: &[u8], end: WaitStatus) -> u64 {
    let before = rest(&machine.irq);
    assert_eq!(machine.run(code), end);
    rest(&machine.irq) - before
}

/// The counter of this CPU, which is in the kernel and knows it.
fn rest(irq: &IrqOff) -> u64 {
    let word = PerCpu::current(irq).tracking().load();
    assert_eq!((word.state(), word.nmi_depth()), (State::Kernel, 0));
    assert!(word.is_watching() && !word.is_poisoned());
    word.counter()
}

/// Remembers the word as it is in a handler.
fn look() {
    // SAFETY: hooks are called by handlers, which have interrupts off.
    let irq = unsafe { IrqOff::assume() };
    SEEN.store(PerCpu::current(&irq).tracking().load().bits(), Relaxed);
    CALLS.fetch_add(1, Relaxed);
}

/// The state and NMI depth that the hook saw in its only call.
fn seen_once() -> (State, u8) {
    assert_eq!(CALLS.swap(0, Relaxed), 1);
    let word = context_tracking::Word::from_bits(SEEN.load(Relaxed));
    assert!(word.is_watching());
    (word.state(), word.nmi_depth())
}

/// UD2 is skipped, and looked at.
fn on_undefined(frame: &mut TrapFrame) -> bool {
    if frame.vector() != INVALID_OPCODE {
        return false;
    }
    look();
    frame.set_rip(frame.rip() + 2);
    true
}

/// The lower half of an interrupt.
fn on_interrupt(_frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    look();
    irq
}

/// An NMI is looked at.
fn on_nmi(frame: &mut TrapFrame) -> bool {
    if frame.vector() != NMI {
        return false;
    }
    look();
    true
}

/// Leaves the CPU with the vectors that track, which those of the idle thread are until another process runs.
fn run_tracked(machine: &mut Machine) {
    let code = program!(
        "mov eax, 0x4558",
        "mov edi, 5",
        "mov esi, 2",
        "int 0x80",
        "xor edi, edi",
        "mov eax, 60",
        "syscall",
        "ud2",
    );
    assert_eq!(machine.run(code), FINE);
}

/// Lends out the machine's proof.
fn with_irq(machine: &mut Machine, change: impl FnOnce(IrqOff) -> IrqOff) {
    // SAFETY: the machine's own is not used meanwhile, and `change` gives back what it gets.
    let irq = unsafe { IrqOff::assume() };
    machine.irq = change(irq);
}

/// The time of this CPU, by a form of tracking that tells it.
struct Clock;

static ACCOUNT: TimeAccount = TimeAccount::new();

// SAFETY: 1. There is one CPU. 2. A static and RDTSC.
unsafe impl Account for Clock {
    fn account() -> &'static TimeAccount {
        &ACCOUNT
    }
}

/// A CPU that notes with which interrupt flag it is looked at.
struct Probe;

static PROBE: CpuWord = CpuWord::new();
static LOOKS: AtomicU32 = AtomicU32::new(0);
static LOOKS_WITH_INTERRUPTS: AtomicU32 = AtomicU32::new(0);

// SAFETY: 1. There is one CPU. 2. The defaults are used. 3. The word is used for nothing else. 4. Flags are read.
unsafe impl context_tracking::PerCpu for Probe {
    fn word() -> &'static CpuWord {
        LOOKS.fetch_add(1, Relaxed);
        LOOKS_WITH_INTERRUPTS.fetch_add(u32::from(are_interrupts_on()), Relaxed);
        &PROBE
    }
}

fn are_interrupts_on() -> bool {
    let flags: u64;
    // SAFETY: PUSHFQ and POP leave the stack as it was.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags & 1 << 9 != 0
}

/// Runs `transition` with interrupts on, and says whether they are on afterwards.
fn with_interrupts_on(transition: impl FnOnce()) -> bool {
    // SAFETY: no lock is held, and nothing that is called here relies on a proof.
    unsafe { asm!("sti") };
    transition();
    let are_on = are_interrupts_on();
    // SAFETY: the machine's proof is right again.
    unsafe { asm!("cli") };
    are_on
}

/// UD2 raises an NMI in its handler, which is looked at.
fn on_nmi_in_handler(frame: &mut TrapFrame) -> bool {
    match frame.vector() {
        INVALID_OPCODE => {
            apic::send_nmi_to_self();
            frame.set_rip(frame.rip() + 2);
        }
        NMI => look(),
        _ => return false,
    }
    true
}

/// An NMI in user mode is looked at, and tells the program by RBX; one in the kernel is tried again.
fn on_nmi_in_program(frame: &mut TrapFrame) -> bool {
    if frame.vector() != NMI {
        return false;
    }
    if frame.cs() & 3 == 3 {
        look();
        frame.set_rbx(1);
    } else {
        apic::timer_nmi(100_000);
    }
    true
}

/// At the IRETQ by which a tracked program is left for, the word says "user" already. CS is broken there; in the handler
/// of the fault that follows the word is looked at.
fn on_return(frame: &mut TrapFrame) -> bool {
    if frame.vector() != DEBUG {
        look();
        return false;
    }
    // SAFETY: hooks are called by handlers, which have interrupts off.
    let irq = unsafe { IrqOff::assume() };
    if PerCpu::current(&irq).tracking().load().state() == State::User {
        let cs = core::ptr::with_exposed_provenance_mut::<u64>(usize::try_from(frame.rsp()).unwrap() + 8);
        // SAFETY: at an IRETQ, RSP points at the five words that it loads, of a stack that nobody else looks at.
        unsafe { cs.write(BEYOND_GDT) };
        break_at([0; 4]);
    }
    // RF: the instruction is executed when it is returned to.
    frame.set_rflags(frame.rflags() | 1 << 16);
    true
}

/// A selector of user mode's privilege with no descriptor.
const BEYOND_GDT: u64 = 0x7f3;

/// Lets #DB come before each of four instructions, and no others; 0 is none.
fn break_at(addresses: [u64; 4]) {
    let enabled = (0..4).fold(0x400_u64, |bits, number| {
        bits | u64::from(addresses[number] != 0) << (2 * number + 1)
    });
    // SAFETY: the kernel may write debug registers; the hook expects #DB.
    unsafe {
        core::arch::asm!(
            "mov dr7, {off}", "mov dr0, {0}", "mov dr1, {1}", "mov dr2, {2}", "mov dr3, {3}", "mov dr7, {enabled}",
            in(reg) addresses[0], in(reg) addresses[1], in(reg) addresses[2], in(reg) addresses[3],
            off = in(reg) 0x400_u64, enabled = in(reg) enabled,
        );
    }
}

example_os::tests! { Machine;
    fn every_system_call_is_two_steps(machine) {
        // On by INT 0x80, which leaves by the stubs that track: 1. Three calls: 6. The last one: 1.
        let irqs_off = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80", "test rax, rax", "jnz 4f",
            "mov eax, 39", "syscall", "mov eax, 39", "syscall", "mov eax, 39", "syscall",
            "4:", "mov edi, eax", "sub edi, eax", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(steps(machine, irqs_off, FINE), 8);
        let irq_saved = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 1", "int 0x80", "test rax, rax", "jnz 4f",
            "mov eax, 39", "syscall", "mov eax, 39", "syscall", "mov eax, 39", "syscall",
            "4:", "mov edi, eax", "sub edi, eax", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(steps(machine, irq_saved, FINE), 8);
    }

    fn a_program_that_is_not_tracked_makes_no_step(machine) {
        let code = program!(
            "mov eax, 39", "syscall", "mov eax, [0x500000]", "mov eax, 39", "int 0x80",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(steps(machine, code, FINE), 0);
    }

    fn turned_off_there_are_no_steps_any_more(machine) {
        // On: 1. Off: 1 on the way in, none on the way out.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "mov eax, 0x4558", "xor esi, esi", "int 0x80", "test rax, rax", "jnz 4f",
            "mov eax, 39", "syscall", "mov eax, [0x500000]",
            "xor edi, edi", "mov eax, 60", "syscall", "4:", "ud2",
        );
        assert_eq!(steps(machine, code, FINE), 2);
    }

    fn every_exception_is_two_steps(machine) {
        // On: 1. Two page faults and two UD2 that the hook skips: 8. The end: 1.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "mov eax, [0x500000]", "mov [0x500000], eax", "ud2", "ud2",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        entry::set_kernel_hook(Some(on_undefined));
        let steps = steps(machine, code, FINE);
        entry::set_kernel_hook(None);
        assert_eq!((CALLS.swap(0, Relaxed), steps), (2, 10));
    }

    fn a_fatal_exception_ends_in_the_kernel(machine) {
        let code = program!("mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80", "xor ecx, ecx", "mov eax, [rcx]");
        assert_eq!(steps(machine, code, SIGSEGV), 2);
    }

    fn handlers_of_a_tracked_program_are_in_the_kernel(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80", "ud2",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        entry::set_kernel_hook(Some(on_undefined));
        let steps = steps(machine, code, FINE);
        entry::set_kernel_hook(None);
        assert_eq!(seen_once(), (State::Kernel, 0));
        assert_eq!(steps, 4);
    }

    fn an_nmi_in_a_handler_counts_its_depth(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80", "ud2",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        entry::set_kernel_hook(Some(on_nmi_in_handler));
        let steps = steps(machine, code, FINE);
        entry::set_kernel_hook(None);
        assert_eq!(seen_once(), (State::Kernel, 1));
        assert_eq!(steps, 4);
    }

    fn an_nmi_in_user_mode_is_an_entry_like_any_other(machine) {
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "xor ebx, ebx", "5:", "pause", "test ebx, ebx", "jz 5b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        entry::set_kernel_hook(Some(on_nmi_in_program));
        apic::timer_nmi(1_000_000);
        let before = rest(&machine.irq);
        let status = machine.run(code);
        entry::set_kernel_hook(None);
        assert_eq!(status, FINE);
        assert_eq!(seen_once(), (State::Kernel, 0));
        assert_eq!(rest(&machine.irq) - before, 4);
    }

    fn an_interrupt_in_user_mode_is_two_steps(machine) {
        // ES loses its selector at each return by IRET, so the program sees three of them.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "mov ebx, 3", "4:", "mov ecx, 3", "mov es, ecx", "5:", "mov edx, es", "test edx, edx", "jnz 5b",
            "dec ebx", "jnz 4b", "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        let ticks = PerCpu::current(&machine.irq).ticks();
        apic::timer_periodic(TIMER_VECTOR, 1_000_000);
        let steps = steps(machine, code, FINE);
        apic::timer_stop();
        let ticks = PerCpu::current(&machine.irq).ticks() - ticks;
        assert!(steps.is_multiple_of(2) && steps >= 2 + 2 * 3 && steps <= 2 + 2 * ticks, "{steps} steps, {ticks} ticks");
    }

    fn a_refused_exit_was_no_step(machine) {
        // SYSCALL as the last two bytes below the limit: its return address is the limit itself. It is fetched by a program
        // that is tracked, so: on 1, the call 1, and the refusal comes before the way out is told.
        let code = program!("mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80", "mov eax, 39", "syscall");
        let address = USER_LIMIT - code.len() as u64;
        let before = rest(&machine.irq);
        let pid = machine.start_at(address, code, &entry::first_frame(address, STACK_TOP));
        assert_eq!(machine.finish(pid), Some(SIGSEGV));
        assert!(matches!(entry::take_last_refusal(&machine.irq), Some(Refusal::RipAboveUserLimit { .. })));
        assert_eq!(rest(&machine.irq) - before, 2);
    }

    fn a_return_that_faults_is_taken_back(machine) {
        // The change to tracking leaves by IRETQ, which is broken after the way out was told: 1, and 1 back. The first entry
        // leaves by the same instruction, untracked.
        let code = program!("mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80", "ud2");
        // There is an IRETQ for each set of options, and four breakpoints.
        let is_return = |window: &&windows::Window| window.flags() & windows::flags::IRET != 0;
        let count = windows::all().iter().filter(is_return).count();
        entry::set_kernel_hook(Some(on_return));
        let mut broken = 0;
        for first in (0..count).step_by(4) {
            let mut returns = windows::all().iter().filter(is_return).skip(first).map(windows::Window::start);
            break_at(core::array::from_fn(|_| returns.next().unwrap_or_default()));
            let before = rest(&machine.irq);
            let status = machine.run(code);
            let steps = rest(&machine.irq) - before;
            if status == SIGSEGV {
                // And 2 of #DB, which finds a CPU that has told its way out.
                assert_eq!((seen_once(), steps), ((State::Kernel, 0), 4));
                broken += 1;
            } else {
                assert_eq!(steps, 2);
            }
            CALLS.store(0, Relaxed);
        }
        break_at([0; 4]);
        entry::set_kernel_hook(None);
        assert_eq!(broken, 1);
    }

    fn a_child_inherits_the_form(machine) {
        // Parent: on 1, fork 2, wait 2, the end 1. Child: the first way out 1, a call 2, the end 1.
        let code = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "mov eax, 57", "syscall", "test eax, eax", "jz 4f",
            "mov edi, eax", "xor esi, esi", "xor edx, edx", "xor r10d, r10d", "mov eax, 61", "syscall",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
            "4:", "mov eax, 39", "syscall", "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        assert_eq!(steps(machine, code, FINE), 10);
    }

    fn a_switch_between_both_kinds_changes_the_stubs(machine) {
        // Each yields to the other 100 times; only the tracked one makes steps: on 1, 100 calls, the end 1.
        let tracked = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "mov ebx, 100", "4:", "mov eax, 24", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        let plain = program!(
            "mov ebx, 100", "4:", "mov eax, 24", "syscall", "mov eax, [0x500000]", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        let before = rest(&machine.irq);
        let first = machine.start(tracked);
        let second = machine.start(plain);
        assert_eq!(machine.finish(first), Some(FINE));
        assert_eq!(machine.finish(second), Some(FINE));
        assert_eq!(rest(&machine.irq) - before, 202);
    }

    fn an_interrupt_of_idle_is_four_steps(machine) {
        run_tracked(machine);
        entry::set_lower_half(Some(on_interrupt));
        let before = rest(&machine.irq);
        apic::timer_one_shot(TIMER_VECTOR, 100_000);
        with_irq(machine, process::wait_for_interrupt);
        entry::set_lower_half(None);
        // Idle 1, the interrupt 1, its end 1, kernel 1.
        assert_eq!((seen_once(), rest(&machine.irq) - before), ((State::Kernel, 0), 4));
    }

    fn an_nmi_of_idle_leaves_the_state_and_is_four_steps(machine) {
        run_tracked(machine);
        entry::set_kernel_hook(Some(on_nmi));
        let before = rest(&machine.irq);
        apic::timer_nmi(100_000);
        with_irq(machine, process::wait_for_interrupt);
        entry::set_kernel_hook(None);
        assert_eq!((seen_once(), rest(&machine.irq) - before), ((State::Idle, 1), 4));
    }

    fn idle_is_no_state_of_untracked_kernels(machine) {
        let plain = program!("xor edi, edi", "mov eax, 60", "syscall", "ud2");
        run_tracked(machine);
        assert_eq!(machine.run(plain), FINE);
        let before = rest(&machine.irq);
        apic::timer_one_shot(TIMER_VECTOR, 100_000);
        with_irq(machine, process::wait_for_interrupt);
        assert_eq!(rest(&machine.irq), before);
    }

    fn idle_time_is_accounted(machine) {
        /// Nanoseconds, which are ticks of QEMU's time-stamp counter.
        const WAIT: u32 = 20_000_000;
        run_tracked(machine);
        let start = tsc();
        ACCOUNT.start(&machine.irq, start);
        with_irq(machine, |irq| {
            // SAFETY: 1. and 2. this is the idle thread, in the kernel, and the kernel has made no claim for it.
            let ctx = unsafe { Ctx::<Kernel, IrqOff, Tracked<Gs<PerCpu>, TimeObserver<Clock>>>::assume(irq) };
            apic::timer_one_shot(TIMER_VECTOR, WAIT);
            let idle = ctx.idle_enter().wait(|irq| {
                drop(irq);
                // SAFETY: no lock is held; the proof is made anew below.
                unsafe { asm!("sti", "hlt", "cli") };
                // SAFETY: CLI was the last instruction.
                unsafe { IrqOff::assume() }
            });
            idle.idle_exit().into_irq_off()
        });
        let now = tsc();
        let times = ACCOUNT.read_own(&machine.irq, now);
        assert!(times.idle > u64::from(WAIT / 2), "{times:?}");
        assert_eq!((times.user, times.guest, times.total()), (0, 0, now - start));
    }

    fn a_caller_that_does_not_know_has_interrupts_off_for_the_transition_alone(_machine) {
        type Track = IrqSaved<Tracked<Probe>>;
        // SAFETY: the probe's word is no CPU's; whether interrupts are off is what is tested.
        let irq = unsafe { IrqOff::assume() };
        assert!(with_interrupts_on(|| {
            // SAFETY: 1. and 2. as above.
            unsafe { Track::idle_enter(&irq) };
        }));
        assert!(with_interrupts_on(|| {
            // SAFETY: 1. as above.
            unsafe { Track::idle_exit(&irq) };
        }));
        // SAFETY: as above.
        let ctx = unsafe { Ctx::<Kernel, IrqOff, Tracked<Probe>>::assume(irq) }.forget_irq();
        LOOKS.store(0, Relaxed);
        assert!(with_interrupts_on(|| {
            let _kernel = ctx.idle_enter_irqsave().idle_exit_irqsave();
        }));
        assert!(LOOKS.load(Relaxed) >= 2);
        assert_eq!(LOOKS_WITH_INTERRUPTS.load(Relaxed), 0);
    }

    fn preemption_leaves_the_word_right(machine) {
        let tracked = program!(
            "mov eax, 0x4558", "mov edi, 5", "mov esi, 2", "int 0x80",
            "mov ebx, 200000", "4:", "mov eax, 39", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        let plain = program!(
            "mov ebx, 200000", "4:", "mov eax, 39", "syscall", "dec ebx", "jnz 4b",
            "xor edi, edi", "mov eax, 60", "syscall", "ud2",
        );
        let before = rest(&machine.irq);
        let programs = [machine.start(tracked), machine.start(plain), machine.start(tracked)];
        let switches = PerCpu::current(&machine.irq).switches();
        apic::timer_periodic(TIMER_VECTOR, 200_000);
        let ends = programs.map(|pid| machine.finish(pid));
        apic::timer_stop();
        assert_eq!(ends, [Some(FINE); 3]);
        assert!(PerCpu::current(&machine.irq).switches() - switches > 10);
        assert!(rest(&machine.irq) - before >= 2 * (2 + 400_000));
    }
}
