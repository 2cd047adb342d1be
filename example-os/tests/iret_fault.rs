//! Faults of the IRETQ that leaves for user mode: the program is told, with its registers, and the system goes on.
//!
//! The exit decision would refuse most of these frames, so the hook of a breakpoint leaves with them by itself. Runs on
//! TCG with any CPU model, and on Bochs. TCG lets IRETQ load a RIP that is not canonical and faults in user mode; a CPU faults in the kernel.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
mod program;

use core::arch::naked_asm;
use core::arch::x86_64::__cpuid;
use core::cell::UnsafeCell;

use entry_core::kernel::Baseline;
use entry_core::msr::{Cpu, GsBase, KernelGsBase, Register};
use entry_core::segment::Selector;
use entry_core::vector::Vector;
use entry_core::{EntryKind, Exit, TrapFrame};
use entry_sysret::IretOnly;
use example_os::entry::{self, LAYOUT, UserRules};
use example_os::memory::KernelStack;
use example_os::memory::layout::index;
use example_os::process::WaitStatus;
use example_os::process::signal::Signal;
use example_os::registers::Registers;
use program::{CODE, Machine, STACK_TOP, program};
use x86_64::VirtAddr;
use x86_64::instructions::tables;
use x86_64::structures::DescriptorTablePointer;

/// What goes wrong, and how the CPU says so.
#[derive(Clone, Copy)]
struct Fault {
    /// Spoils a good frame.
    spoil: fn(&mut TrapFrame),
    /// The segment that is not present meanwhile.
    absent: Option<Selector>,
    /// The vectors that are right.
    vectors: &'static [Vector],
    code: u64,
    kind: EntryKind,
}

impl Fault {
    /// A general-protection fault about a selector, or 0.
    const fn protection(spoil: fn(&mut TrapFrame), code: u64) -> Self {
        Self {
            spoil,
            absent: None,
            vectors: &[Vector::GENERAL_PROTECTION],
            code,
            kind: EntryKind::IretFault,
        }
    }

    /// A fault about a segment that is not present.
    const fn absent(selector: Selector, vectors: &'static [Vector]) -> Self {
        Self {
            spoil: |_| (),
            absent: Some(selector),
            vectors,
            code: selector.bits() as u64 & 0xfffc,
            kind: EntryKind::IretFault,
        }
    }
}

/// What the hook does and has seen.
struct State {
    fault: Fault,
    /// Whether the program is to go on after the fault.
    is_repaired: bool,
    /// The frame of the breakpoint, before it was spoilt.
    good: TrapFrame,
    bases: [u64; 2],
    /// Breakpoints seen.
    breakpoints: u32,
    /// Faults seen.
    faults: u32,
}

struct Shared(UnsafeCell<State>);

// SAFETY: one CPU; the hook and the code that sets it up never run at the same time.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(State {
    fault: Fault::protection(|_| (), 0),
    is_repaired: true,
    good: TrapFrame::zeroed(),
    bases: [0; 2],
    breakpoints: 0,
    faults: 0,
}));

/// CF, PF, AF, ZF, SF, DF, OF, AC and ID; IF and bit 1.
const FLAGS: u64 = 0x8d5 | 0x400 | 0x4_0000 | 0x20_0000 | 0x202;

fn bases() -> [u64; 2] {
    // SAFETY: 1. the kernel runs at CPL 0. 2. Every x86-64 CPU has it.
    let kernel = unsafe { GsBase::read(&mut Cpu) };
    // SAFETY: as above.
    let user = unsafe { KernelGsBase::read(&mut Cpu) };
    [kernel.bits(), user.bits()]
}

/// Leaves with a frame that no decision has seen.
///
/// # Safety
///
/// 1. `frame` is the frame at the top of the thread's kernel stack, and what is below it owns nothing.
/// 2. Interrupts are off and GS base is the kernel's.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_unexamined(frame: *mut TrapFrame) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        "jmp {leave}",
        leave = sym <IretOnly<UserRules> as Exit>::leave_by_iret::<Baseline>,
    )
}

/// Makes a segment present, or absent if it is.
fn toggle(selector: Selector) {
    const PRESENT: u64 = 1 << 47;
    let at = tables::sgdt()
        .base
        .as_mut_ptr::<u64>()
        .wrapping_add(usize::from(selector.bits() >> 3));
    // SAFETY: the descriptor is in the GDT, which is kernel data; nobody else uses it meanwhile.
    let descriptor = unsafe { at.read_volatile() };
    // SAFETY: as above; it is put back by the hook of the fault.
    unsafe { at.write_volatile(descriptor ^ PRESENT) };
}

/// All registers. A fault in user mode has RF in its frame.
const fn registers(frame: &TrapFrame) -> Registers {
    Registers::read(frame).with(Registers::RFLAGS, frame.rflags() & !0x1_0000)
}

fn hook(frame: &mut TrapFrame) -> bool {
    // SAFETY: see `Shared`.
    let state = unsafe { &mut *STATE.0.get() };
    if frame.vector() == Vector::BREAKPOINT.0 {
        state.breakpoints += 1;
        if state.breakpoints > 1 {
            let good = registers(&state.good).with(Registers::RIP, frame.rip());
            assert_eq!(registers(frame), good);
            return true;
        }
        state.good = frame.clone();
        state.bases = bases();
        (state.fault.spoil)(frame);
        if let Some(selector) = state.fault.absent {
            toggle(selector);
        }
        // SAFETY: 1. an exception from user mode has its frame there; the handlers below it hold nothing. 2. As in every
        // handler of an exception.
        unsafe { leave_unexamined(frame) };
    }
    let fault = state.fault;
    state.faults += 1;
    if let Some(selector) = fault.absent {
        toggle(selector);
    }
    let mut spoilt = state.good.clone();
    (fault.spoil)(&mut spoilt);
    assert!(fault.vectors.iter().any(|vector| vector.0 == frame.vector()), "{frame}");
    assert_eq!(frame.entry_kind(), Some(fault.kind), "{frame}");
    assert_eq!(frame.error_code(), fault.code, "{frame}");
    assert_eq!(registers(frame), registers(&spoilt));
    assert_eq!(bases(), state.bases);
    if !state.is_repaired {
        return false;
    }
    frame.set_rip(state.good.rip());
    frame.set_cs(state.good.cs());
    frame.set_ss(state.good.ss());
    frame.set_rflags(state.good.rflags());
    true
}

/// Runs a program that leaves its first breakpoint with a bad frame, and says how it ended.
fn run(machine: &mut Machine, fault: Fault, is_repaired: bool) -> WaitStatus {
    // SAFETY: see `Shared`; no program runs.
    let state = unsafe { &mut *STATE.0.get() };
    state.fault = fault;
    state.is_repaired = is_repaired;
    (state.breakpoints, state.faults) = (0, 0);
    let mut frame = entry::first_frame(CODE, STACK_TOP);
    let mut words = Registers::read(&frame);
    for (number, word) in (1..).zip(words.first(Registers::GENERAL)) {
        *word = 0x0101_0101_0101_0101 * number;
    }
    words.write(&mut frame);
    frame.set_rflags(FLAGS);
    let code = program!("int3", "int3", "mov eax, 60", "mov edi, 5", "syscall", "ud2");
    entry::set_kernel_hook(Some(hook));
    let pid = machine.start_at(CODE, code, &frame);
    let status = machine.finish(pid).unwrap();
    entry::set_kernel_hook(None);
    assert_eq!(state.faults, 1);
    assert_eq!(state.breakpoints, 1 + u32::from(is_repaired));
    // Whatever became of it, the next one is served.
    let next = program!(
        "mov eax, 39",
        "syscall",
        "mov [0x500000], eax",
        "mov eax, 60",
        "xor edi, edi",
        "syscall",
        "ud2"
    );
    assert_eq!(machine.run(next), WaitStatus::exited(0));
    status
}

fn survives(machine: &mut Machine, fault: Fault) {
    assert_eq!(run(machine, fault, true), WaitStatus::exited(5));
    let signal = match fault.vectors {
        [Vector::GENERAL_PROTECTION | Vector::PAGE_FAULT] => SIGSEGV,
        _ => SIGBUS,
    };
    assert_eq!(
        run(machine, fault, false),
        WaitStatus::killed(Signal::new(signal).unwrap())
    );
}

const SIGBUS: u8 = 7;
const SIGSEGV: u8 = 11;

/// Whether the CPU is TCG's.
fn is_tcg() -> bool {
    /// "TCGT", "CGTC", "GTCG".
    const TCG: [u32; 3] = [0x5447_4354, 0x4354_4743, 0x4743_5447];
    let leaf = __cpuid(0x4000_0000);
    [leaf.ebx, leaf.ecx, leaf.edx] == TCG
}

/// Where IRETQ to a RIP that is not canonical faults.
fn bad_rip(spoil: fn(&mut TrapFrame)) -> Fault {
    Fault {
        kind: if is_tcg() {
            EntryKind::Exception
        } else {
            EntryKind::IretFault
        },
        ..Fault::protection(spoil, 0)
    }
}

example_os::tests! { Machine;
    fn cs_beyond_the_table(machine) {
        survives(machine, Fault::protection(|frame| frame.set_cs(0x4b), 0x48));
        survives(machine, Fault::protection(|frame| frame.set_cs(0xfffb), 0xfff8));
    }

    fn ss_beyond_the_table(machine) {
        survives(machine, Fault::protection(|frame| frame.set_ss(0x4b), 0x48));
    }

    fn cs_in_the_local_table(machine) {
        survives(machine, Fault::protection(|frame| frame.set_cs(0x2f), 0x2c));
    }

    fn ss_in_the_local_table(machine) {
        survives(machine, Fault::protection(|frame| frame.set_ss(0x27), 0x24));
    }

    fn null_cs(machine) {
        survives(machine, Fault::protection(|frame| frame.set_cs(0), 0));
        survives(machine, Fault::protection(|frame| frame.set_cs(3), 0));
    }

    fn null_ss(machine) {
        survives(machine, Fault::protection(|frame| frame.set_ss(0), 0));
        survives(machine, Fault::protection(|frame| frame.set_ss(3), 0));
    }

    fn cs_of_the_wrong_rpl(machine) {
        let code = u64::from(LAYOUT.user_code64().bits() & 0xfffc);
        survives(machine, Fault::protection(|frame| frame.set_cs(frame.cs() & !3), code));
        survives(machine, Fault::protection(|frame| frame.set_cs(frame.cs() & !3 | 1), code));
        survives(machine, Fault::protection(|frame| frame.set_cs(frame.cs() & !3 | 2), code));
    }

    fn ss_of_the_wrong_rpl(machine) {
        let code = u64::from(LAYOUT.user_data().bits() & 0xfffc);
        survives(machine, Fault::protection(|frame| frame.set_ss(frame.ss() & !3), code));
        survives(machine, Fault::protection(|frame| frame.set_ss(frame.ss() & !3 | 1), code));
    }

    fn cs_that_is_no_code(machine) {
        let data = u64::from(LAYOUT.user_data().bits() & 0xfffc);
        survives(machine, Fault::protection(|frame| frame.set_cs(LAYOUT.user_data().bits().into()), data));
        let tss = u64::from(LAYOUT.tss().bits() & 0xfffc);
        survives(machine, Fault::protection(|frame| frame.set_cs(u64::from(LAYOUT.tss().bits()) | 3), tss));
    }

    fn ss_that_is_no_data(machine) {
        let code = u64::from(LAYOUT.user_code64().bits() & 0xfffc);
        survives(machine, Fault::protection(|frame| frame.set_ss(LAYOUT.user_code64().bits().into()), code));
    }

    fn cs_not_present(machine) {
        survives(machine, Fault::absent(LAYOUT.user_code64(), &[Vector::SEGMENT_NOT_PRESENT]));
    }

    fn ss_not_present(machine) {
        // #SS on a CPU, #NP on TCG.
        let vectors = &[Vector::STACK_SEGMENT, Vector::SEGMENT_NOT_PRESENT];
        survives(machine, Fault::absent(LAYOUT.user_data(), vectors));
    }

    fn descriptor_in_a_page_that_is_not_there(machine) {
        // The table ends with its page and its limit does not: a selector behind its last one is a page fault.
        let stack = KernelStack::new().unwrap();
        let old = tables::sgdt();
        let bytes = usize::from(old.limit) + 1;
        let copy = core::ptr::with_exposed_provenance_mut::<u8>(index(stack.top()) - bytes);
        // SAFETY: the table is kernel data, and the stack is new.
        unsafe { copy.copy_from_nonoverlapping(old.base.as_ptr(), bytes) };
        let longer = DescriptorTablePointer {
            limit: old.limit + 4096,
            base: VirtAddr::from_ptr(copy),
        };
        // SAFETY: it holds the same descriptors.
        unsafe { tables::lgdt(&longer) };
        let fault = Fault {
            vectors: &[Vector::PAGE_FAULT],
            ..Fault::protection(|frame| frame.set_cs(0x4b), 0)
        };
        survives(machine, fault);
        // SAFETY: as before.
        unsafe { tables::lgdt(&old) };
    }

    fn rip_that_is_not_canonical(machine) {
        survives(machine, bad_rip(|frame| frame.set_rip(0x8000_0000_0000)));
        survives(machine, bad_rip(|frame| frame.set_rip(0xffff_7fff_ffff_ffff)));
        survives(machine, bad_rip(|frame| frame.set_rip(0x7fff_0000_0000_0000)));
    }
}
