//! Events with stacks of their own that interrupt each other: what is allowed, and that the rest is noticed.
//!
//! Runs on TCG with any CPU model, and on Bochs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use entry_core::TrapFrame;
use entry_core::vector::Vector;
use example_os::device::apic;
use example_os::entry::{self, PerCpu};
use example_os::harness::Machine;

static NMIS: AtomicU64 = AtomicU64::new(0);
static DEBUGS: AtomicU64 = AtomicU64::new(0);
static BREAKPOINTS: AtomicU64 = AtomicU64::new(0);

fn count(frame: &TrapFrame) {
    let counter = match Vector(frame.vector()) {
        Vector::NMI => &NMIS,
        Vector::DEBUG => &DEBUGS,
        Vector::BREAKPOINT => &BREAKPOINTS,
        other => panic!("{other} was not expected"),
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Two #DBs, after the NOP and after the second POPF.
fn single_step() {
    // SAFETY: the hook ignores the trap; the second POPF clears TF.
    unsafe { asm!("pushfq", "pushfq", "or dword ptr [rsp], 0x100", "popfq", "nop", "popfq") };
}

/// Sends an NMI and waits for it, or for so long that none will come.
fn nmi() {
    let before = NMIS.load(Ordering::Relaxed);
    apic::send_nmi_to_self();
    for _ in 0..1_000_000 {
        if NMIS.load(Ordering::Relaxed) != before {
            return;
        }
        core::hint::spin_loop();
    }
}

/// A single step in each NMI.
fn step_in_nmi(frame: &mut TrapFrame) -> bool {
    count(frame);
    if Vector(frame.vector()) == Vector::NMI {
        single_step();
    }
    true
}

/// An NMI in each single step.
fn nmi_in_step(frame: &mut TrapFrame) -> bool {
    count(frame);
    if Vector(frame.vector()) == Vector::DEBUG {
        nmi();
    }
    true
}

/// An NMI in an NMI that has unblocked them by an IRET, that of the breakpoint.
fn nmi_after_iret(frame: &mut TrapFrame) -> bool {
    count(frame);
    if Vector(frame.vector()) == Vector::NMI {
        // SAFETY: the hook ignores the trap.
        unsafe { asm!("int3") };
        assert_eq!(BREAKPOINTS.load(Ordering::Relaxed), 1);
        nmi();
        panic!("no NMI came after an IRET");
    }
    true
}

/// A single step in a single step.
fn step_in_step(frame: &mut TrapFrame) -> bool {
    count(frame);
    if Vector(frame.vector()) == Vector::DEBUG {
        single_step();
        panic!("no trap came");
    }
    true
}

/// Where the stub of NMIs leaves, once [`step_to_the_end`] has seen it.
static END: AtomicU64 = AtomicU64::new(0);

/// Steps through the rest of an NMI, and finds the instruction that ends it.
fn step_to_the_end(frame: &mut TrapFrame) -> bool {
    const IRETQ: [u8; 2] = [0x48, 0xcf];
    count(frame);
    if Vector(frame.vector()) == Vector::NMI {
        // SAFETY: the hook answers the traps. TF stays set until the stub's IRETQ.
        unsafe { asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq") };
        return true;
    }
    let code = core::ptr::with_exposed_provenance::<[u8; 2]>(usize::try_from(frame.rip()).unwrap());
    // SAFETY: the kernel executes there, and more than two bytes follow.
    if unsafe { code.read() } == IRETQ {
        END.store(frame.rip(), Ordering::Relaxed);
    }
    true
}

/// Sets DR0 and DR7: an instruction breakpoint, or none.
fn set_breakpoint(at: u64) {
    const ON: u64 = 0x402;
    const OFF: u64 = 0x400;
    let control = if at == 0 { OFF } else { ON };
    // SAFETY: whoever sets one has a hook that answers it.
    unsafe { asm!("mov dr0, {}", "mov dr7, {}", in(reg) at, in(reg) control, options(nostack)) };
}

/// An NMI that is raised when nothing but the last instruction of another is left to do. NMIs are blocked till then: there
/// was no IRET before that of the breakpoint, which is at that very instruction.
fn nmi_at_the_end(frame: &mut TrapFrame) -> bool {
    count(frame);
    match Vector(frame.vector()) {
        Vector::DEBUG => {
            set_breakpoint(0);
            apic::send_nmi_to_self();
        }
        _ if NMIS.load(Ordering::Relaxed) == 1 => set_breakpoint(END.load(Ordering::Relaxed)),
        _ => panic!("the frame of the first NMI is gone"),
    }
    true
}

fn hook(hook: entry::KernelHook) {
    for counter in [&NMIS, &DEBUGS, &BREAKPOINTS] {
        counter.store(0, Ordering::Relaxed);
    }
    entry::set_kernel_hook(Some(hook));
}

fn counts() -> [u64; 2] {
    [&NMIS, &DEBUGS].map(|counter| counter.load(Ordering::Relaxed))
}

example_os::tests! { Machine;
    fn a_single_step_in_an_nmi_and_the_reverse_are_fine(machine) {
        hook(step_in_nmi);
        for number in 1..=3 {
            nmi();
            assert_eq!(counts(), [number, 2 * number]);
        }
        hook(nmi_in_step);
        for number in 1..=3 {
            single_step();
            assert_eq!(counts(), [2 * number, 2 * number]);
        }
        assert_eq!(PerCpu::current(&machine.irq).nmis(), 9);
    }

    #[should_panic = "NMI on its own stack while another was being handled"]
    fn an_nmi_in_an_nmi_after_an_iret_is_noticed(_machine) {
        hook(nmi_after_iret);
        nmi();
    }

    #[should_panic = "NMI on its own stack while another was being handled"]
    fn an_nmi_at_the_last_instruction_of_an_nmi_is_noticed(_machine) {
        hook(step_to_the_end);
        nmi();
        assert_ne!(END.load(Ordering::Relaxed), 0);
        hook(nmi_at_the_end);
        nmi();
    }

    #[should_panic = "#DB on its own stack while another was being handled"]
    fn a_single_step_in_a_single_step_is_noticed(_machine) {
        hook(step_in_step);
        single_step();
    }
}
