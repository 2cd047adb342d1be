//! Exceptions taken in the kernel: what arrives, on which stack, and that the interrupted code goes on.
//!
//! Runs on TCG with any CPU model. It cannot show events in the stubs' windows: the exact sweeps do that.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::vector::Vector;
use entry_core::{EntryKind, IrqOff, TrapFrame};
use example_os::boot;
use example_os::device::apic;
use example_os::entry::{self, LAYOUT, PerCpu, TIMER_VECTOR};
use example_os::harness::Machine;

/// What the hook saw last: vector, kind, address of the frame, error code.
static VECTOR: AtomicU64 = AtomicU64::new(NONE);
static KIND: AtomicU64 = AtomicU64::new(0);
static FRAME: AtomicU64 = AtomicU64::new(0);
static CODE: AtomicU64 = AtomicU64::new(0);
/// How many bytes the hook skips.
static SKIP: AtomicU64 = AtomicU64::new(0);

/// No vector.
const NONE: u64 = 256;

/// RFLAGS as they were in the handler.
static HANDLERS_FLAGS: AtomicU64 = AtomicU64::new(0);

fn flags() -> u64 {
    let flags;
    // SAFETY: what is pushed is popped.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags
}

fn note(frame: &mut TrapFrame) -> bool {
    HANDLERS_FLAGS.store(flags(), Ordering::Relaxed);
    VECTOR.store(frame.vector().into(), Ordering::Relaxed);
    KIND.store(frame.entry_kind().map_or(0, |kind| kind as u64), Ordering::Relaxed);
    FRAME.store(core::ptr::from_ref(frame).addr() as u64, Ordering::Relaxed);
    CODE.store(frame.error_code(), Ordering::Relaxed);
    if frame.vector() == 1 && frame.error_code() & BREAKPOINT_0 != 0 {
        frame.set_rflags(frame.rflags() | RESUME_FLAG);
    }
    let skip = SKIP.load(Ordering::Relaxed);
    if skip != 0 {
        frame.set_rip(frame.rip() + skip);
    }
    let resume = RESUME.swap(0, Ordering::Relaxed);
    if resume != 0 {
        frame.set_rip(resume);
    }
    true
}

/// Lets the hook see the next exception and skip so many bytes.
fn expect(skip: u64) {
    VECTOR.store(NONE, Ordering::Relaxed);
    SKIP.store(skip, Ordering::Relaxed);
    entry::set_kernel_hook(Some(note));
}

/// A word for whoever has interrupts off, with nothing atomic or volatile about it.
struct Owned(UnsafeCell<u32>);

// SAFETY: there is one CPU, and interrupts are off wherever the word is accessed.
unsafe impl Sync for Owned {}

static OWNED: Owned = Owned(UnsafeCell::new(0));

/// A lower half that writes to it.
fn write_two(_frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    // SAFETY: interrupts are off.
    unsafe { OWNED.0.get().write(2) };
    irq
}

/// The distance of the last frame from this function's stack.
fn distance() -> u64 {
    let here = 0_u64;
    FRAME
        .load(Ordering::Relaxed)
        .abs_diff(core::ptr::from_ref(&here).addr() as u64)
}

/// Lets one instruction trap.
fn step_once() {
    // SAFETY: the trap comes after the NOP that follows POPF; the hook leaves TF set in the frame, the second POPF
    // clears it.
    unsafe {
        asm!("pushfq", "pushfq", "or dword ptr [rsp], 0x100", "popfq", "nop", "popfq",);
    }
}

/// DR6.BS and DR6.B0.
const STEP: u64 = 1 << 14;
const BREAKPOINT_0: u64 = 1;
/// RFLAGS.RF.
const RESUME_FLAG: u64 = 1 << 16;

/// Frames on the running stack are this close.
const NEAR: u64 = 4096;

example_os::tests! { Machine;
    fn invalid_opcode_arrives_on_the_running_stack(_machine) {
        expect(2);
        // SAFETY: the hook skips the two bytes.
        unsafe { asm!("ud2", options(nostack)) };
        assert_eq!(VECTOR.load(Ordering::Relaxed), 6);
        assert_eq!(KIND.load(Ordering::Relaxed), EntryKind::Exception as u64);
        assert_eq!(CODE.load(Ordering::Relaxed), 0);
        assert!(distance() < NEAR);
    }

    fn breakpoint_has_no_stack_of_its_own(_machine) {
        expect(0);
        // SAFETY: the hook ignores it.
        unsafe { asm!("int3") };
        assert_eq!(VECTOR.load(Ordering::Relaxed), 3);
        assert!(distance() < NEAR);
    }

    fn general_protection_has_its_error_code(_machine) {
        // MOV DS with a selector beyond the table: two bytes, error code is the selector.
        expect(2);
        // SAFETY: the load faults, DS keeps its value, the hook skips the instruction.
        unsafe { asm!("mov ds, {0:e}", in(reg) 0x1000_u32, options(nostack)) };
        assert_eq!(VECTOR.load(Ordering::Relaxed), 13);
        assert_eq!(CODE.load(Ordering::Relaxed), 0x1000);
    }

    fn page_fault_of_the_kernel_reaches_the_hook(_machine) {
        // MOV AL, [RCX] is two bytes; the page is the guard of the user half's end.
        expect(2);
        // SAFETY: the access faults and is skipped.
        unsafe { asm!("mov al, [rcx]", in("rcx") 0x7fff_ffff_f000_u64, out("al") _, options(nostack)) };
        assert_eq!(VECTOR.load(Ordering::Relaxed), 14);
        assert_eq!(CODE.load(Ordering::Relaxed), 0);
    }

    fn debug_exception_has_a_stack_of_its_own(_machine) {
        expect(0);
        step_once();
        assert_eq!(VECTOR.load(Ordering::Relaxed), 1);
        assert_eq!(KIND.load(Ordering::Relaxed), EntryKind::Paranoid as u64);
        assert!(distance() > NEAR);
    }

    fn a_debug_exception_reports_its_own_reason_alone(_machine) {
        for _ in 0..2 {
            expect(0);
            step_once();
            assert_eq!((VECTOR.load(Ordering::Relaxed), CODE.load(Ordering::Relaxed)), (1, STEP));
            expect(0);
            // SAFETY: the breakpoint is at the second NOP, and RF lets that pass when the hook has set it.
            unsafe {
                asm!(
                    "lea {at}, [rip + 2f]",
                    "mov dr0, {at}",
                    "mov dr7, {enabled}",
                    "nop",
                    "2:",
                    "nop",
                    "mov dr7, {off}",
                    at = out(reg) _,
                    enabled = in(reg) 0x402_u64,
                    off = in(reg) 0x400_u64,
                );
            }
            assert_eq!((VECTOR.load(Ordering::Relaxed), CODE.load(Ordering::Relaxed)), (1, BREAKPOINT_0));
        }
        let status: u64;
        // SAFETY: reading DR6 changes nothing.
        unsafe { asm!("mov {}, dr6", out(reg) status, options(nomem, nostack, preserves_flags)) };
        assert_eq!(status & 0xf00f, 0);
    }

    fn nmi_has_a_stack_of_its_own_and_returns(machine) {
        expect(0);
        let before = PerCpu::current(&machine.irq).nmis();
        for _ in 0..3 {
            VECTOR.store(NONE, Ordering::Relaxed);
            apic::send_nmi_to_self();
            while VECTOR.load(Ordering::Relaxed) == NONE {
                core::hint::spin_loop();
            }
            assert_eq!(VECTOR.load(Ordering::Relaxed), 2);
            assert!(distance() > NEAR);
        }
        assert_eq!(PerCpu::current(&machine.irq).nmis(), before + 3);
    }

    fn machine_check_has_a_stack_of_its_own_and_returns(_machine) {
        // No emulator raises one by itself. INT 18 in the kernel takes the same gate, and #MC pushes no error code either.
        for _ in 0..3 {
            expect(0);
            // SAFETY: the hook ignores it.
            unsafe { asm!("int 18") };
            assert_eq!(VECTOR.load(Ordering::Relaxed), 18);
            assert_eq!(KIND.load(Ordering::Relaxed), EntryKind::Paranoid as u64);
            assert!(distance() > NEAR);
        }
    }

    fn a_device_that_raises_the_system_calls_vector_makes_no_call(_machine) {
        expect(0);
        apic::send_to_self(Vector::INT80.0);
        // SAFETY: nothing else raises interrupts here.
        unsafe { asm!("sti", "nop", "nop", "cli") };
        // The stub's frame is that of a system call; what is made of it is an interrupt.
        assert_eq!(VECTOR.load(Ordering::Relaxed), u64::from(Vector::INT80.0));
        assert_eq!(KIND.load(Ordering::Relaxed), EntryKind::Int80 as u64);
        assert!(apic::is_in_service(Vector::INT80.0));
        apic::eoi();
        assert!(!apic::is_in_service(Vector::INT80.0));
        assert!(distance() < NEAR);
    }

    fn what_an_interrupt_wrote_is_read_after_it(_machine) {
        entry::set_lower_half(Some(write_two));
        apic::send_to_self(TIMER_VECTOR);
        // SAFETY: 1. interrupts are off in a test. 2. The machine's proof is not used meanwhile.
        let irq = unsafe { IrqOff::assume() };
        // From here to the reading nothing is called, so the compiler sees all that happens to the word.
        // SAFETY: interrupts are off.
        unsafe { OWNED.0.get().write(1) };
        let on = irq.enable();
        // SAFETY: the interrupt comes here.
        unsafe { asm!("nop", "nop", options(nomem, nostack, preserves_flags)) };
        let _irq = on.disable();
        // SAFETY: interrupts are off.
        let word = unsafe { OWNED.0.get().read() };
        entry::set_lower_half(None);
        assert_eq!(word, 2);
    }

    fn user_memory_is_closed_while_an_access_to_it_is_interrupted(_machine) {
        const ALIGNMENT_CHECK: u64 = 1 << 18;
        if !boot::cpu::features().smap {
            example_os::skip!("the CPU has no SMAP");
        }
        expect(2);
        let after: u64;
        // SAFETY: the hook skips UD2; nothing accesses user memory while that is open.
        unsafe { asm!("stac", "ud2", "pushfq", "pop {}", "clac", out(reg) after) };
        assert_eq!(VECTOR.load(Ordering::Relaxed), 6);
        assert_eq!(HANDLERS_FLAGS.load(Ordering::Relaxed) & ALIGNMENT_CHECK, 0);
        assert_eq!(after & ALIGNMENT_CHECK, ALIGNMENT_CHECK);
    }

    fn selectors_of_the_local_table_name_nothing(_machine) {
        // LAR says whether there is a descriptor, and reads it from wherever LDTR says.
        let is_there = |selector: u32| {
            let is_there: u8;
            // SAFETY: LAR changes a register and ZF.
            unsafe {
                asm!("lar {0:e}, {0:e}", "setz {1}", inout(reg) selector => _, out(reg_byte) is_there, options(nostack));
            }
            is_there == 1
        };
        for selector in [0x04, 0x0c, 0x14, 0x2f, 0xff4, 0xfffc] {
            assert!(!is_there(selector), "{selector:#x}");
        }
        // It does say so of one in the global table.
        assert!(is_there(LAYOUT.kernel_code().bits().into()));
    }

    fn double_fault_has_a_stack_of_its_own(_machine) {
        // With RSP at an unmapped page, the frame of the first exception can't be pushed.
        expect(0);
        let resumed: u64;
        // SAFETY: the hook for #DF continues at `2:`, where RSP is put back; RBX is kept by the stub.
        unsafe {
            asm!(
                "mov r12, rsp",
                "lea rax, [rip + 2f]",
                "mov [{resume}], rax",
                "mov rsp, {guard}",
                "ud2",
                "2:",
                "mov rsp, r12",
                "mov {resumed}, 1",
                resume = in(reg) RESUME.as_ptr(),
                guard = in(reg) 0x7fff_ffff_f000_u64,
                resumed = lateout(reg) resumed,
                out("rax") _,
                out("r12") _,
            );
        }
        assert_eq!(resumed, 1);
        assert_eq!(VECTOR.load(Ordering::Relaxed), 8);
        assert!(distance() > NEAR);
    }
}

/// Where the #DF test goes on.
static RESUME: AtomicU64 = AtomicU64::new(0);
