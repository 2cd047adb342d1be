//! The exceptions of boot: before there is a per-CPU header, a TSS or user mode.

use crate::frame::{EntryKind, TrapFrame};
use crate::guard::{guard, stop};
use crate::stub::push_registers;
use crate::vector::{ERROR_CODE_MASK, EXCEPTIONS, SLOT_BYTES};

/// A kernel during boot, which can report an exception and do nothing else about it.
pub trait EarlyKernel: 'static {
    /// An exception, on the stack that was in use. All of them are of kind [`EntryKind::Exception`].
    fn exception(frame: &TrapFrame) -> !;
}

/// 32 slots of [`SLOT_BYTES`] bytes, one per exception, for an IDT that serves until the kernel's own: without one the first
/// mistake of boot is a triple fault, which says nothing.
///
/// They need no GS base, no TSS and no interrupt stacks; so there is no user mode behind them, and nothing returns.
///
/// **Reached by** interrupt gates without a stack of the interrupt stack table, at CPL 0.
///
/// **The CPU has** pushed SS, RSP, RFLAGS, CS, RIP and perhaps an error code on the stack in use, 16-byte aligned, and
/// cleared IF and TF. **It has not** cleared AC or DF. With SMAP, AC does no harm: nothing here is told by a program.
///
/// | register | in | out, at the call | clobbered |
/// |---|---|---|---|
/// | RSP | interrupted | frame | – |
/// | RDI | interrupted | address of the frame | – |
/// | others | interrupted | interrupted | – |
///
/// **Windows**: none; everything is the kernel's.
///
/// ```
/// use entry_core::segment::SegmentLayout;
/// use entry_core::stub::{EarlyKernel, address, early_stubs};
/// use entry_core::vector::{EXCEPTIONS, GateDescriptor, GateError, Privilege, SLOT_BYTES};
/// use entry_core::TrapFrame;
///
/// struct Boot;
///
/// impl EarlyKernel for Boot {
///     fn exception(frame: &TrapFrame) -> ! {
///         panic!("exception during boot\n{frame}")
///     }
/// }
///
/// /// What LIDT is given.
/// fn gates() -> Result<[GateDescriptor; 32], GateError> {
///     let code = SegmentLayout::NATURAL.kernel_code();
///     let mut gates = [GateDescriptor::MISSING; EXCEPTIONS.len()];
///     for (vector, gate) in (0..).zip(&mut gates) {
///         let slot = address(early_stubs::<Boot>) + vector * SLOT_BYTES;
///         *gate = GateDescriptor::new(slot, code, None, Privilege::Kernel)?;
///     }
///     Ok(gates)
/// }
/// # gates().unwrap();
/// ```
///
/// # Safety
///
/// 1. Slots are reached through interrupt gates at CPL 0, without a change of stack.
///
/// # Source
///
/// Intel SDM vol. 3A, *Error Code*, *64-Bit Mode Stack Frame*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn early_stubs<K: EarlyKernel>() -> ! {
    core::arch::naked_asm!(
        ".set entry_vector, 0",
        ".rept {vectors}",
        "2:",
        // The word below RIP: the CPU's error code, or zero.
        ".if (({errors} >> entry_vector) & 1) == 0",
        "push 0",
        ".endif",
        "push {kind} + entry_vector",
        "jmp 3f",
        ".org 2b + {slot}, 0xcc",
        ".set entry_vector, entry_vector + 1",
        ".endr",
        "3:",
        ".if {direction}",
        "cld",
        ".endif",
        push_registers!(),
        "mov rdi, rsp",
        "call {report}",
        stop!(),
        direction = const guard!("clear-direction", true) as usize,
        vectors = const EXCEPTIONS.len(),
        errors = const ERROR_CODE_MASK,
        slot = const SLOT_BYTES,
        kind = const EntryKind::Exception.word(0),
        clear = const 0,
        report = sym report::<K>,
    )
}

/// # Safety
///
/// 1. `frame` is the frame at RSP, and nothing else refers to it.
unsafe extern "sysv64" fn report<K: EarlyKernel>(frame: *const TrapFrame) -> ! {
    // SAFETY: condition 1.
    K::exception(unsafe { &*frame })
}
