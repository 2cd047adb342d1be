//! Exceptions: page faults are served, the rest ends the program, or the machine if the kernel caused it.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use entry_core::debug::DebugStatus;
use entry_core::vector::Vector;
use entry_core::windows::{self, flags};
use entry_core::{IrqOff, TrapFrame};
use entry_sysret::landing::{LandingPage, UserStack};
use entry_sysret::{Refusal, Rules};

use super::{PerCpu, UserRules};
use crate::lock::IrqLock;
use crate::memory::{AddressSpace, FaultError, user};
use crate::println;
use crate::process::signal::Signal;
use crate::process::{self, FaultExit, Process, WaitStatus, current};

/// Length of UD2.
const UD2_BYTES: u64 = 2;

/// Looks at an event before the kernel does. Returns whether it has been dealt with.
pub type KernelHook = fn(&mut TrapFrame) -> bool;

/// The hook's address, or 0.
static KERNEL_HOOK: AtomicUsize = AtomicUsize::new(0);

/// Sets what sees events first, so that a test can take its own.
///
/// It gets all exceptions in the kernel, all NMIs, #MC, #DB and #DF, and whatever the kernel has no answer to: exceptions
/// that would end a program, interrupts of unknown vectors.
pub fn set_kernel_hook(hook: Option<KernelHook>) {
    #[expect(clippy::fn_to_numeric_cast_any, reason = "an atomic holds a number, not a function")]
    let address = hook.map_or(0, |hook| hook as usize);
    KERNEL_HOOK.store(address, Ordering::Relaxed);
}

fn is_handled_by_hook(frame: &mut TrapFrame) -> bool {
    let address = KERNEL_HOOK.load(Ordering::Relaxed);
    if address == 0 {
        return false;
    }
    let pointer = core::ptr::with_exposed_provenance::<()>(address);
    // SAFETY: the address is that of a `KernelHook`.
    let hook = unsafe { core::mem::transmute::<*const (), KernelHook>(pointer) };
    hook(frame)
}

/// The address that a page fault was about.
#[inline(always)]
fn fault_address() -> u64 {
    let address;
    // SAFETY: reading CR2 changes nothing.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// An exception in user mode.
#[inline(always)]
pub(super) fn from_user(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
    match Vector(frame.vector()) {
        Vector::INVALID_OPCODE if current().skips_invalid_opcode() => {
            frame.set_rip(frame.rip().wrapping_add(UD2_BYTES));
            irq
        }
        _ => fatal(frame, irq),
    }
}

/// A page fault in user mode.
#[inline(always)]
pub(super) fn page_fault(frame: &mut TrapFrame, address: u64, irq: IrqOff) -> IrqOff {
    let process = current();
    let resolved = resolve(address, frame.error_code(), &irq);
    if let Err(error) = resolved {
        return fatal_page_fault(frame, address, error, irq);
    }
    PerCpu::current(&irq).count_fault();
    match process.fault_exit() {
        FaultExit::Iret => {}
        FaultExit::Dead => {
            frame.declare_rcx_r11_dead();
            // The kernel arms no instruction breakpoints, and programs can't.
            frame.declare_no_instruction_breakpoint();
        }
        FaultExit::Landing(page) => land(frame, page, process, &irq),
    }
    irq
}

/// Lets a page fault be left through the landing page, if it can be; by IRET, if not.
#[inline(always)]
fn land(frame: &mut TrapFrame, page: LandingPage, process: &Process, irq: &IrqOff) {
    if let Some(space) = process.space().lock(irq).as_mut() {
        // The kernel arms no instruction breakpoints, and programs can't.
        frame.declare_no_instruction_breakpoint();
        let _left_by_iret = page.land(frame, &UserRules::RULES, &mut Stack(space));
    }
}

/// The stack of the process whose address space it is.
struct Stack<'a>(&'a mut AddressSpace);

impl UserStack for Stack<'_> {
    /// The kernel enables none.
    #[inline(always)]
    fn has_shadow_stack(&self) -> bool {
        false
    }

    #[inline(always)]
    fn store(&mut self, address: u64, words: [u64; 3]) -> bool {
        self.0.store_present(address, words)
    }
}

#[inline(always)]
fn resolve(address: u64, error_code: u64, irq: &IrqOff) -> Result<(), FaultError> {
    match current().space().lock(irq).as_mut() {
        Some(space) => space.resolve_fault(address, error_code),
        None => Err(FaultError::NoMapping),
    }
}

#[cold]
#[inline(never)]
fn fatal_page_fault(frame: &mut TrapFrame, address: u64, error: FaultError, irq: IrqOff) -> IrqOff {
    if is_handled_by_hook(frame) {
        return irq;
    }
    println!("[fault] {}: #PF at {address:#x}: {error:?}\n{frame}", current());
    process::exit(WaitStatus::killed(Signal::SIGSEGV), irq)
}

#[cold]
#[inline(never)]
fn fatal(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
    if is_handled_by_hook(frame) {
        return irq;
    }
    println!(
        "[fault] {}: {} in user mode\n{frame}",
        current(),
        Vector(frame.vector())
    );
    process::exit(WaitStatus::killed(Signal::of_exception(frame.vector())), irq)
}

/// What the exit last refused.
static LAST_REFUSAL: IrqLock<Option<Refusal>> = IrqLock::new(None);

/// Takes what the exit refused since the last call, the latest if there was more than one: for tests, which the end of
/// the process tells only that something was.
pub fn take_last_refusal(irq: &IrqOff) -> Option<Refusal> {
    LAST_REFUSAL.lock(irq).take()
}

/// The exit decision refused a frame: something put a value there that no program can have.
#[cold]
#[inline(never)]
pub(super) fn refused(frame: &TrapFrame, refusal: Refusal, irq: IrqOff) -> IrqOff {
    *LAST_REFUSAL.lock(&irq) = Some(refusal);
    println!("[fault] {}: exit refused, {refusal:?}: {refusal}\n{frame}", current());
    process::exit(WaitStatus::killed(Signal::SIGSEGV), irq)
}

/// An exception in the kernel. Accesses to user memory are expected to fault; nothing else is.
pub(super) fn from_kernel(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
    if let Some(fixup) = user::fixup(frame.rip()) {
        let is_resolved =
            Vector(frame.vector()) == Vector::PAGE_FAULT && resolve(fault_address(), frame.error_code(), &irq).is_ok();
        if !is_resolved {
            frame.set_rip(fixup);
        }
        return irq;
    }
    if is_handled_by_hook(frame) {
        return irq;
    }
    unexpected(frame)
}

/// NMI, #MC and #DF from anywhere, #DB from the kernel.
pub(super) fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
    if Vector(frame.vector()) == Vector::NMI {
        PerCpu::current(&irq).count_nmi();
    }
    if is_handled_by_hook(frame) || Vector(frame.vector()) == Vector::NMI || is_step_into_sysenter(frame, &irq) {
        return irq;
    }
    unexpected(frame)
}

/// Whether this is a #DB because the program had set TF before SYSENTER, which leaves it set. The stub clears it, and the
/// program gets it back.
fn is_step_into_sysenter(frame: &TrapFrame, irq: &IrqOff) -> bool {
    Vector(frame.vector()) == Vector::DEBUG
        && !frame.is_user()
        && frame.debug_status().contains(DebugStatus::STEP)
        && PerCpu::current(irq).is_user_step(frame.rip(), irq)
}

/// A second NMI, #MC, #DB or #DF in the kernel while the first one's frame was needed.
#[cold]
#[inline(never)]
pub(super) fn nested_paranoid(frame: &TrapFrame) -> ! {
    panic!(
        "{} on its own stack while another was being handled, whose frame is lost\n{frame}",
        Vector(frame.vector())
    );
}

/// An interrupt of a vector that no device was given.
#[cold]
#[inline(never)]
pub(super) fn stray_interrupt(frame: &mut TrapFrame) {
    if !is_handled_by_hook(frame) {
        unexpected(frame)
    }
}

/// Ends the machine: an event that this kernel has no answer to.
#[cold]
#[inline(never)]
fn unexpected(frame: &TrapFrame) -> ! {
    let place = match windows::find(frame.rip()).map(|window| window.flags()) {
        Some(bits) if bits & flags::IRET != 0 => " at the IRET to user mode",
        Some(_) => " in a stub, under user GS or user RSP",
        None if frame.is_user() => " in user mode",
        None => " in the kernel",
    };
    panic!(
        "unexpected {}{place}, CR2 {:#x}\n{frame}",
        Vector(frame.vector()),
        fault_address()
    );
}
