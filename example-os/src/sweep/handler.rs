//! What the sweep does in the kernel's handlers: notes where events arrived, resumes the victim, and ends the shot.
//!
//! The handlers may run between any two instructions of the kernel, nested in each other, so all they touch are words of
//! one static.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use entry_core::msr::{Cpu, GsBase, Register};
use entry_core::rflags::Rflags;
use entry_core::vector::Vector;
use entry_core::{IrqOff, TrapFrame};
use x86_64::registers::debug::{DebugAddressRegister, Dr0, Dr1, Dr7, Dr7Flags, Dr7Value};

use super::launch::come_back;
use super::registers::Registers;
use super::victim::Page;
use crate::device::apic;
use crate::entry::PerCpu;
use crate::memory::kernel;

/// Vector of the timer as injector: none that the kernel has a use for.
pub(super) const TIMER_VECTOR: u8 = 0xe1;
/// Vector of the interrupt that is an event.
pub(super) const EVENT_VECTOR: u8 = 0xe2;

/// The vector of the soft system call.
pub(super) const SYSTEM_CALL_VECTOR: u8 = Vector::INT80.0;

/// Vector of the interrupt inside the injected one.
const NESTED_VECTOR: u8 = 0xe3;

/// Length of UD2.
const UD2_BYTES: u64 = 2;

/// What is going on.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// Nothing: no event is expected.
    Idle = 0,
    /// An NMI is awaited, and left without IRET.
    Block = 1,
    /// The victim runs.
    Shot = 2,
    /// The victim has come back; interrupts that are still pending are let in.
    Drain = 3,
}

/// A place and how often something arrived there.
#[derive(Debug)]
pub(super) struct Arrivals {
    count: AtomicU32,
    last: AtomicU64,
}

impl Arrivals {
    const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            last: AtomicU64::new(0),
        }
    }

    fn clear(&self) {
        self.count.store(0, Relaxed);
        self.last.store(0, Relaxed);
    }

    fn note(&self, rip: u64) {
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        self.last.store(rip, Relaxed);
    }

    pub(super) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    pub(super) fn last(&self) -> u64 {
        self.last.load(Relaxed)
    }
}

/// The words that the shot and its handlers share.
pub(super) struct Shared {
    phase: AtomicU32,
    /// RSP of the context to come back to.
    pub(super) saved: AtomicU64,
    /// Address of the instruction breakpoint that injects, or 0.
    pub(super) target: AtomicU64,
    /// Address of the instruction breakpoint that is the event, or 0.
    pub(super) event: AtomicU64,
    /// Address of the victim's first instruction.
    pub(super) first: AtomicU64,
    /// RIP of the frame of the INT3 that ends the shot.
    pub(super) end: AtomicU64,
    /// Whether the injecting breakpoint's handler sends an NMI.
    pub(super) sends_nmi: AtomicBool,
    /// The page that the injecting breakpoint's handler takes from the victim, or 0, and then the one that it lacks.
    pub(super) takes_page: AtomicU8,
    lacks_page: AtomicU8,
    /// Whether the breakpoint of [`Event::BadIret`](super::Event::BadIret) makes the return fail.
    pub(super) breaks_return: AtomicBool,
    pub(super) breakpoints: Arrivals,
    pub(super) nmis: Arrivals,
    pub(super) timers: Arrivals,
    /// Those of them that came before the victim's end.
    pub(super) during: Arrivals,
    /// Interrupts inside them.
    pub(super) nested: Arrivals,
    /// Events of the victim.
    pub(super) events: Arrivals,
    /// #DB at no breakpoint: single steps, which the kernel itself recognises.
    pub(super) steps: Arrivals,
    /// Faults of IRETQ to user mode.
    pub(super) returns: Arrivals,
    /// Page faults for want of a page that was taken.
    pub(super) faults: Arrivals,
    /// Handlers that were entered with a flag of RFLAGS that is to be clear; the flags are the "place".
    pub(super) dirty: Arrivals,
    /// Handlers that were entered with a GS base that is not the kernel's; the base is the "place".
    pub(super) foreign: Arrivals,
    /// The kernel's GS base.
    pub(super) header: AtomicU64,
    /// Handlers that were entered with a CR3 that is not the kernel's; its value is the "place".
    pub(super) strayed: Arrivals,
    /// The kernel's CR3.
    pub(super) cr3: AtomicU64,
    /// Whether the timer's handler leaves work.
    pub(super) sets_work: AtomicBool,
    /// Shots that ended, in user mode, with work that nobody had done.
    pub(super) lost: Arrivals,
    /// What was left of the timer's count at the end.
    pub(super) remainder: AtomicU32,
    registers: core::cell::UnsafeCell<Registers>,
}

// SAFETY: `registers` is written by the handler that ends a shot and read by the code that it comes back to, on one CPU.
unsafe impl Sync for Shared {}

pub(super) static SHARED: Shared = Shared {
    phase: AtomicU32::new(Phase::Idle as u32),
    saved: AtomicU64::new(0),
    target: AtomicU64::new(0),
    event: AtomicU64::new(0),
    first: AtomicU64::new(0),
    end: AtomicU64::new(0),
    sends_nmi: AtomicBool::new(false),
    takes_page: AtomicU8::new(0),
    lacks_page: AtomicU8::new(0),
    breaks_return: AtomicBool::new(false),
    breakpoints: Arrivals::new(),
    nmis: Arrivals::new(),
    timers: Arrivals::new(),
    during: Arrivals::new(),
    nested: Arrivals::new(),
    events: Arrivals::new(),
    steps: Arrivals::new(),
    returns: Arrivals::new(),
    faults: Arrivals::new(),
    dirty: Arrivals::new(),
    foreign: Arrivals::new(),
    header: AtomicU64::new(0),
    strayed: Arrivals::new(),
    cr3: AtomicU64::new(0),
    sets_work: AtomicBool::new(false),
    lost: Arrivals::new(),
    remainder: AtomicU32::new(0),
    registers: core::cell::UnsafeCell::new(Registers::ZERO),
};

impl Shared {
    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Relaxed);
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Relaxed) == phase as u32
    }

    /// Forgets what arrived.
    pub(super) fn clear(&self) {
        for arrivals in [
            &self.breakpoints,
            &self.nmis,
            &self.timers,
            &self.during,
            &self.nested,
            &self.events,
            &self.steps,
            &self.returns,
            &self.faults,
            &self.dirty,
            &self.foreign,
            &self.strayed,
            &self.lost,
        ] {
            arrivals.clear();
        }
    }

    /// What the victim had at the end of the shot.
    pub(super) fn registers(&self) -> Registers {
        // SAFETY: the shot has ended, so nobody writes.
        unsafe { *self.registers.get() }
    }

    /// Arms the breakpoints whose addresses are set.
    pub(super) fn arm_breakpoints(&self) {
        let (target, event) = (self.target.load(Relaxed), self.event.load(Relaxed));
        Dr0::write(target);
        Dr1::write(event);
        let mut value = Dr7Value::from(Dr7Flags::empty());
        if target != 0 {
            value.insert_flags(Dr7Flags::GLOBAL_BREAKPOINT_0_ENABLE);
        }
        if event != 0 {
            value.insert_flags(Dr7Flags::GLOBAL_BREAKPOINT_1_ENABLE);
        }
        Dr7::write(value);
    }
}

/// Disarms all breakpoints.
pub(super) fn disarm_breakpoints() {
    Dr7::write(Dr7Value::from(Dr7Flags::empty()));
}

/// Flags that a stub or the CPU clears on every entry.
const CLEAR_IN_HANDLERS: u64 = Rflags::TRAP
    .union(Rflags::INTERRUPT_ENABLE)
    .union(Rflags::DIRECTION)
    .union(Rflags::NESTED_TASK)
    .union(Rflags::ALIGNMENT_CHECK)
    .bits();

fn current_flags() -> u64 {
    let flags: u64;
    // SAFETY: PUSHFQ and POP leave the stack as it was.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags
}

/// The kernel's hook: sees NMI, #DB, what the kernel has no answer to, and nothing else.
pub(super) fn handle(frame: &mut TrapFrame) -> bool {
    let shared = &SHARED;
    let dirty = current_flags() & CLEAR_IN_HANDLERS;
    if dirty != 0 {
        shared.dirty.note(dirty);
    }
    // SAFETY: 1. this is the kernel. 2. Every x86-64 CPU has the register.
    let base = unsafe { GsBase::read(&mut Cpu) };
    if base.bits() != shared.header.load(Relaxed) {
        shared.foreign.note(base.bits());
    }
    let cr3 = kernel::cr3();
    if cr3 != shared.cr3.load(Relaxed) {
        shared.strayed.note(cr3);
    }
    match frame.vector() {
        TIMER_VECTOR if shared.is(Phase::Shot) || shared.is(Phase::Drain) => {
            apic::eoi();
            shared.timers.note(frame.rip());
            if shared.is(Phase::Shot) {
                shared.during.note(frame.rip());
                if shared.sets_work.load(Relaxed) {
                    cpu().set_work_pending();
                }
            }
        }
        NESTED_VECTOR if shared.is(Phase::Shot) => {
            apic::eoi();
            shared.nested.note(frame.rip());
        }
        EVENT_VECTOR | SYSTEM_CALL_VECTOR if shared.is(Phase::Shot) => {
            apic::eoi();
            shared.events.note(frame.rip());
        }
        vector => return handle_exception(shared, Vector(vector), frame),
    }
    true
}

/// The lower half of the injected interrupt: takes another one, with interrupts on.
pub(super) fn take_another(frame: &TrapFrame, irq: IrqOff) -> IrqOff {
    /// More instructions than that takes.
    const PATIENCE: u32 = 1_000;
    let shared = &SHARED;
    if frame.vector() != TIMER_VECTOR || !shared.is(Phase::Shot) {
        return irq;
    }
    let on = irq.enable();
    apic::send_to_self(NESTED_VECTOR);
    for _ in 0..PATIENCE {
        if shared.nested.count() > 0 {
            break;
        }
        core::hint::spin_loop();
    }
    on.disable()
}

fn handle_exception(shared: &Shared, vector: Vector, frame: &mut TrapFrame) -> bool {
    match vector {
        Vector::NMI if shared.is(Phase::Block) => end(shared, frame),
        Vector::NMI if shared.is(Phase::Shot) => {
            shared.nmis.note(frame.rip());
        }
        Vector::DEBUG if shared.is(Phase::Shot) => {
            // One instruction, tried again without the breakpoint.
            frame.set_rflags(frame.rflags() | Rflags::RESUME.bits());
            let rip = frame.rip();
            if rip == shared.event.load(Relaxed) {
                shared.events.note(rip);
            } else if rip == shared.target.load(Relaxed) {
                shared.breakpoints.note(rip);
                if shared.sends_nmi.swap(false, Relaxed) {
                    apic::send_nmi_to_self();
                }
                let page = shared.takes_page.swap(0, Relaxed);
                if page != 0 {
                    shared.lacks_page.store(page, Relaxed);
                    set_accessible(page, false);
                }
            } else {
                shared.steps.note(rip);
                return false;
            }
        }
        Vector::BREAKPOINT if shared.is(Phase::Shot) && frame.rip() == shared.end.load(Relaxed) => end(shared, frame),
        Vector::BREAKPOINT if shared.is(Phase::Shot) => {
            shared.events.note(frame.rip());
            if shared.breaks_return.load(Relaxed) {
                super::victim::set_user_data_present(false);
            }
        }
        Vector::SEGMENT_NOT_PRESENT | Vector::STACK_SEGMENT if shared.breaks_return.load(Relaxed) => {
            super::victim::set_user_data_present(true);
            shared.returns.note(frame.rip());
        }
        Vector::PAGE_FAULT if shared.lacks_page.load(Relaxed) != 0 => {
            shared.faults.note(frame.rip());
            set_accessible(shared.lacks_page.swap(0, Relaxed), true);
        }
        Vector::INVALID_OPCODE if shared.is(Phase::Shot) => {
            shared.events.note(frame.rip());
            frame.set_rip(frame.rip() + UD2_BYTES);
        }
        _ => return false,
    }
    true
}

/// Takes the page of that number, or gives it back.
fn set_accessible(page: u8, is_accessible: bool) {
    // SAFETY: handlers run with interrupts off.
    let irq = unsafe { IrqOff::assume() };
    for each in Page::ALL {
        if each as u8 == page {
            each.set_accessible(is_accessible, &irq);
        }
    }
}

/// This CPU, for a handler.
fn cpu() -> &'static PerCpu {
    // SAFETY: handlers run with interrupts off.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: there is one CPU, whose structure is static.
    unsafe { &*core::ptr::from_ref(PerCpu::current(&irq)) }
}

/// Ends the shot with the registers of `frame`.
fn end(shared: &Shared, frame: &TrapFrame) -> ! {
    disarm_breakpoints();
    if shared.sets_work.load(Relaxed) && cpu().is_work_pending() {
        shared.lost.note(shared.timers.last());
    }
    shared.remainder.store(apic::timer_count(), Relaxed);
    apic::timer_stop();
    // SAFETY: nobody reads before the context that is gone back to.
    unsafe { *shared.registers.get() = Registers::read(frame) };
    shared.set_phase(Phase::Drain);
    // SAFETY: 1. The phase says that a launch is under way. 2. The abandoned frames are those of the stub, its Rust half and
    // the kernel's handler, which own nothing here. 3. The stubs see to it.
    unsafe { come_back(shared.saved.load(Relaxed)) }
}
