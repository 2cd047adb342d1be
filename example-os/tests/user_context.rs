//! A kernel that runs user mode as a call: each kind of event comes back from `UserContext::run`, with all registers.
//!
//! Runs on TCG with any CPU model, with its clock counting instructions, and on Bochs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/assembly.rs"]
mod assembly;
#[path = "process/run.rs"]
mod run;

use core::arch::asm;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU32, Ordering};

use assembly::program;
use entry_core::kernel::Leave;
use entry_core::msr::Cpu;
use entry_core::vector::Vector;
use entry_core::{EntryKind, IrqOff, NoTracking, PerCpuHeader, SegmentLayout, TrapFrame};
use entry_sysret::context::{RunKernel, UserEvent};
use entry_sysret::{ExitWords, Refusal, Rules, SysretOrIret, decide};
use example_os::device::apic;
use example_os::entry::{LAYOUT, UserRules};
use example_os::harness::Suite;
use example_os::memory::{PAGE_SIZE, Placement, Protection};
use example_os::registers::Registers;
use example_os::{boot, println, skip};
use run::{CODE, DATA, Machine};
use x86_64::instructions::tables;

/// The kernel under test.
struct Loop;

/// NMIs that came.
static NMIS: AtomicU32 = AtomicU32::new(0);

// SAFETY: 1., 3. and 4. by `entry::install`. 2. By `entry::hand_over`; no process runs, so nobody changes the stacks.
unsafe impl RunKernel for Loop {
    type Exit = SysretOrIret<UserRules>;
    type Tracking = NoTracking;
    type Msrs = Cpu;
    const LAYOUT: SegmentLayout = LAYOUT;

    fn kernel_exception(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("exception in the kernel\n{frame}");
    }

    fn kernel_interrupt(frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        panic!("the tests leave interrupts off\n{frame}");
    }

    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        assert_eq!(frame.vector(), Vector::NMI.0, "{frame}");
        NMIS.fetch_add(1, Ordering::Relaxed);
        header(&irq).set_work_pending();
        irq
    }

    fn nested_paranoid(frame: &TrapFrame) -> ! {
        panic!("nested\n{frame}");
    }
}

fn header(irq: &IrqOff) -> &PerCpuHeader {
    // SAFETY: `entry::install` has set GS base.
    unsafe { PerCpuHeader::current(irq) }
}

/// A page that nobody has touched.
const FRESH: u64 = 0x51_0000;

impl Suite for Machine<Loop> {
    fn set_up() -> Self {
        let mut machine = Self::new();
        let writable = Protection::READ.union(Protection::WRITE);
        machine
            .space
            .mmap(FRESH, PAGE_SIZE, writable, Placement::Fixed)
            .unwrap();
        machine.space.write(DATA, &[0]).unwrap();
        machine
    }
}

impl Machine<Loop> {
    const fn irq(&self) -> &IrqOff {
        self.irq.as_ref().unwrap()
    }
}

type Get = fn(&TrapFrame) -> u64;

/// CF, PF, AF, ZF, SF, DF, OF, AC and ID; IF and bit 1.
const FLAGS: u64 = 0x8d5 | 0x400 | 0x4_0000 | 0x20_0000 | 0x202;

/// The registers of `frame` with a number of its own in each that a program is free to choose.
fn filled(frame: &TrapFrame, seed: u64) -> Registers {
    let mut words = Registers::read(frame);
    for (number, word) in (1..).zip(words.first(Registers::GENERAL + 1)) {
        *word = seed * number;
    }
    words.with(Registers::RFLAGS, FLAGS)
}

fn fill(frame: &mut TrapFrame, seed: u64) {
    filled(frame, seed).write(frame);
}

/// Makes sure that the program had what [`fill`] gave it.
fn check(frame: &TrapFrame, seed: u64) {
    let seen = Registers::read(frame).with(Registers::RFLAGS, frame.rflags() & !0x1_0000);
    assert_eq!(seen, filled(frame, seed));
}

/// As [`check`], but for RCX and R11, which SYSCALL destroys.
fn check_call(frame: &TrapFrame, seed: u64) {
    let wanted = filled(frame, seed)
        .with(Registers::RCX, frame.rip())
        .with(Registers::R11, FLAGS);
    assert_eq!(Registers::read(frame), wanted);
}

const SEED: u64 = 0x0101_0101_0101_0101;
const INVALID_OPCODE: UserEvent = UserEvent::Exception {
    vector: Vector::INVALID_OPCODE,
    error_code: 0,
};
const BREAKPOINT: UserEvent = UserEvent::Exception {
    vector: Vector::BREAKPOINT,
    error_code: 0,
};
const TIMER: u8 = 0x41;

/// Makes a segment of user mode present, or absent if it is.
fn toggle_user_data() {
    const PRESENT: u64 = 1 << 47;
    let at = tables::sgdt()
        .base
        .as_mut_ptr::<u64>()
        .wrapping_add(usize::from(LAYOUT.user_data().bits() >> 3));
    // SAFETY: the descriptor is in the GDT, which is kernel data; nobody else uses it meanwhile.
    let descriptor = unsafe { at.read_volatile() };
    // SAFETY: as above; the test puts it back.
    unsafe { at.write_volatile(descriptor ^ PRESENT) };
}

example_os::tests! { Machine<Loop>;
    fn a_system_call_comes_back_with_all_registers(machine) {
        let mut context = machine.load(program!("syscall", "int3", "syscall"));
        fill(context.frame_mut(), SEED);
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
        assert_eq!(context.frame().entry_kind(), Some(EntryKind::Syscall64));
        assert_eq!((context.frame().rip(), context.frame().original_rax()), (CODE + 2, SEED));
        check_call(context.frame(), SEED);
        // Back by SYSRET: RCX and R11 are its.
        context.frame_mut().set_return_value(0);
        assert_eq!(machine.run(&mut context), BREAKPOINT);
        let frame = context.frame();
        assert_eq!((frame.rip(), frame.rax()), (CODE + 3, 0));
        assert_eq!((frame.rcx(), frame.r11()), (CODE + 2, FLAGS));
        // Back by IRET, with all registers others.
        fill(context.frame_mut(), 3 * SEED);
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
        check_call(context.frame(), 3 * SEED);
    }

    fn each_kind_of_system_call_is_told(machine) {
        let mut context = machine.load(program!("int 0x80", "syscall"));
        fill(context.frame_mut(), SEED);
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
        assert_eq!(context.frame().entry_kind(), Some(EntryKind::Int80));
        check(context.frame(), SEED);
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
        assert_eq!(context.frame().entry_kind(), Some(EntryKind::Syscall64));
    }

    fn a_system_call_that_is_restarted_comes_again_as_it_was(machine) {
        for (code, kind) in [
            (program!("syscall", "int3"), EntryKind::Syscall64),
            (program!("int 0x80", "int3"), EntryKind::Int80),
        ] {
            let mut context = machine.load(code);
            fill(context.frame_mut(), SEED);
            let number = context.frame().rax();
            for _ in 0..3 {
                assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
                let frame = context.frame_mut();
                assert_eq!((frame.entry_kind(), frame.rip(), frame.rax()), (Some(kind), CODE + 2, number));
                frame.set_return_value((-4_i64).cast_unsigned());
                frame.restart_system_call();
                // By IRET: RCX is not RIP.
                let words = ExitWords::of(frame);
                assert_eq!(decide(&words, &UserRules::RULES), Ok(Leave::Iret));
            }
            assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
            context.frame_mut().set_return_value(0);
            assert_eq!(machine.run(&mut context), BREAKPOINT);
            assert_eq!((context.frame().rip(), context.frame().rax()), (CODE + 3, 0));
        }
    }

    fn flags_of_a_program_are_not_the_kernels(machine) {
        // TF, IF, DF, IOPL and NT; AC, where the kernel has a use for it.
        const HARMFUL: u64 = 0x7700;
        let alignment_check = if boot::cpu::features().smap { 0x4_0000 } else { 0 };
        for (code, event) in [
            (program!("syscall"), UserEvent::SystemCall),
            (program!("int 0x80"), UserEvent::SystemCall),
            (program!("ud2"), INVALID_OPCODE),
        ] {
            let mut context = machine.load(code);
            context.frame_mut().set_rflags(FLAGS | 0x4000);
            let came = machine.run(&mut context);
            // Nobody has loaded others since the program was left.
            let flags: u64;
            // SAFETY: what is pushed is popped.
            unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
            assert_eq!(came, event);
            assert_eq!(flags & (HARMFUL | alignment_check), 0, "{flags:#x}");
            assert_eq!(context.frame().rflags() & !0x1_0000, FLAGS | 0x4000);
        }
    }

    fn an_invalid_opcode_comes_back_and_can_be_skipped(machine) {
        let mut context = machine.load(program!("ud2", "int3"));
        fill(context.frame_mut(), SEED);
        assert_eq!(machine.run(&mut context), INVALID_OPCODE);
        assert_eq!(context.frame().rip(), CODE);
        check(context.frame(), SEED);
        // It is there for as long as nobody does anything about it.
        assert_eq!(machine.run(&mut context), INVALID_OPCODE);
        context.frame_mut().set_rip(CODE + 2);
        assert_eq!(machine.run(&mut context), BREAKPOINT);
        check(context.frame(), SEED);
    }

    fn a_page_fault_comes_back_with_its_address_and_can_be_served(machine) {
        let mut context = machine.load(program!("mov [rdi + 8], rsi", "mov rdx, [rdi + 8]", "int3"));
        context.frame_mut().set_rdi(FRESH);
        context.frame_mut().set_rsi(SEED);
        // A write of user mode to a page that is not there.
        let fault = UserEvent::PageFault { address: FRESH + 8, error_code: 6 };
        assert_eq!(machine.run(&mut context), fault);
        machine.space.resolve_fault(FRESH + 8, 6).unwrap();
        assert_eq!(machine.run(&mut context), BREAKPOINT);
        assert_eq!(context.frame().rdx(), SEED);
    }

    fn protection_faults_tell_their_error_code(machine) {
        let mut context = machine.load(program!("mov ds, eax"));
        context.frame_mut().set_rax(0x50);
        let fault = UserEvent::Exception { vector: Vector::GENERAL_PROTECTION, error_code: 0x50 };
        assert_eq!(machine.run(&mut context), fault);
    }

    fn a_timer_interrupt_comes_back_and_the_program_goes_on(machine) {
        let mut context = machine.load(program!("4:", "inc r15", "jmp 4b"));
        fill(context.frame_mut(), SEED);
        let mut rounds = context.frame().r15();
        for _ in 0..3 {
            apic::timer_one_shot(TIMER, 2_000);
            assert_eq!(machine.run(&mut context), UserEvent::Interrupt { vector: TIMER });
            apic::eoi();
            assert_eq!(context.frame().entry_kind(), Some(EntryKind::Interrupt));
            assert!(context.frame().r15() > rounds);
            rounds = context.frame().r15();
            context.frame_mut().set_rflags(FLAGS);
            context.frame_mut().set_r15(SEED * 15);
            check(context.frame(), SEED);
            context.frame_mut().set_r15(rounds);
        }
    }

    fn a_single_step_comes_back(machine) {
        let mut context = machine.load(program!("nop", "nop", "int3"));
        context.frame_mut().set_rflags(0x302);
        // DR6.BS
        let step = UserEvent::Exception { vector: Vector::DEBUG, error_code: 1 << 14 };
        for offset in [1, 2] {
            assert_eq!(machine.run(&mut context), step);
            assert_eq!(context.frame().rip(), CODE + offset);
        }
        context.frame_mut().set_rflags(0x202);
        assert_eq!(machine.run(&mut context), BREAKPOINT);
    }

    fn a_bad_rip_is_refused_and_the_next_run_is_fine(machine) {
        let mut context = machine.load(program!("syscall"));
        for (rip, refusal) in [
            (0x8000_0000_0000, Refusal::NonCanonicalRip { rip: 0x8000_0000_0000 }),
            (0xffff_ffff_8000_0000, Refusal::KernelRip { rip: 0xffff_ffff_8000_0000 }),
        ] {
            context.frame_mut().set_rip(rip);
            assert_eq!(machine.run(&mut context), UserEvent::Refused(refusal));
            assert_eq!(context.frame().rip(), rip);
        }
        context.frame_mut().set_cs(LAYOUT.kernel_code().bits().into());
        context.frame_mut().set_rip(CODE);
        let refusal = Refusal::KernelCodeSegment { cs: LAYOUT.kernel_code().bits().into() };
        assert_eq!(machine.run(&mut context), UserEvent::Refused(refusal));
        context.frame_mut().set_cs(LAYOUT.user_code64().bits().into());
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
    }

    fn an_iret_that_faults_comes_back(machine) {
        let mut context = machine.load(program!("int3"));
        fill(context.frame_mut(), SEED);
        toggle_user_data();
        let event = machine.run(&mut context);
        toggle_user_data();
        // #SS on a CPU, #NP on TCG.
        let UserEvent::IretFault { vector, error_code } = event else { panic!("{event}") };
        assert!([Vector::STACK_SEGMENT, Vector::SEGMENT_NOT_PRESENT].contains(&vector), "{event}");
        assert_eq!(error_code, u64::from(LAYOUT.user_data().bits() & 0xfffc));
        check(context.frame(), SEED);
        assert_eq!(machine.run(&mut context), BREAKPOINT);
        check(context.frame(), SEED);
    }

    fn work_comes_first(machine) {
        let mut context = machine.load(program!("syscall"));
        header(machine.irq()).set_work_pending();
        assert_eq!(machine.run(&mut context), UserEvent::Work);
        assert_eq!(context.frame().rip(), CODE);
        header(machine.irq()).clear_work_pending();
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
    }

    fn an_nmi_in_user_mode_that_leaves_work_comes_back(machine) {
        if boot::info().command_line.ends_with("bochs") {
            skip!("Bochs' timer sends no NMI");
        }
        let mut context = machine.load(program!("4:", "jmp 4b"));
        fill(context.frame_mut(), SEED);
        let before = NMIS.load(Ordering::Relaxed);
        apic::timer_nmi(2_000);
        assert_eq!(machine.run(&mut context), UserEvent::Work);
        header(machine.irq()).clear_work_pending();
        assert_eq!(NMIS.load(Ordering::Relaxed), before + 1);
        assert_eq!(context.frame().entry_kind(), Some(EntryKind::Paranoid));
        check(context.frame(), SEED);
        // NMIs are not blocked, and the program is interrupted again.
        apic::timer_nmi(2_000);
        assert_eq!(machine.run(&mut context), UserEvent::Work);
        header(machine.irq()).clear_work_pending();
        check(context.frame(), SEED);
    }

    fn each_program_has_its_bases(machine) {
        let code = program!("mov rax, fs:[0]", "mov rbx, gs:[8]", "syscall", "mov r8, fs:[0]", "mov r9, gs:[8]", "syscall");
        let mut contexts = [machine.load(code), machine.load(code)];
        for (number, context) in (1..).zip(&mut contexts) {
            let word = DATA + 0x100 * number;
            machine.space.write(word, &number.to_le_bytes()).unwrap();
            machine.space.write(word + 0x18, &(10 * number).to_le_bytes()).unwrap();
            context.set_fs_base(word, &UserRules::RULES).unwrap();
            context.set_gs_base(word + 0x10, &UserRules::RULES).unwrap();
        }
        // Twice, in turn: the bases are not those of the program that ran before.
        for (first, second) in [(TrapFrame::rax as Get, TrapFrame::rbx as Get), (TrapFrame::r8, TrapFrame::r9)] {
            for (number, context) in (1..).zip(&mut contexts) {
                assert_eq!(machine.run(context), UserEvent::SystemCall);
                assert_eq!((first(context.frame()), second(context.frame())), (number, 10 * number));
            }
        }
    }

    fn a_round_has_a_price(machine) {
        const ROUNDS: u64 = 1000;
        let mut context = machine.load(program!("4:", "syscall", "jmp 4b"));
        assert_eq!(machine.run(&mut context), UserEvent::SystemCall);
        // SAFETY: RDTSC reads a counter.
        let start = unsafe { _rdtsc() };
        for _ in 0..ROUNDS {
            let event = machine.run(&mut context);
            assert!(matches!(event, UserEvent::SystemCall));
        }
        // SAFETY: as above.
        let end = unsafe { _rdtsc() };
        println!("[boot] {} ticks from SYSCALL to SYSCALL, with one jump in between", (end - start) / ROUNDS);
        assert_eq!(context.frame().entry_kind(), Some(EntryKind::Syscall64));
    }
}
