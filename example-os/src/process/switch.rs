//! The context switch proper: callee-saved registers and RSP.
//!
//! Everything else that belongs to a process is switched by [`super::scheduler`] in Rust, before this is called.

use core::arch::naked_asm;
use core::mem::size_of;

use entry_core::{TrapFrame, stub};

use crate::entry;

/// Words that [`switch_stacks`] leaves on the stack: six registers and the return address.
const SAVED_WORDS: usize = 7;

/// Saves the running context on its own stack and goes on with another one, where that one called this function.
///
/// | register | in | out |
/// |---|---|---|
/// | RDI | where to store RSP | clobbered |
/// | RSI | RSP that an earlier call stored, or that [`prepare_first_switch`] returned | clobbered |
/// | RBX, RBP, R12–R15 | old context | new context |
///
/// The stack of a context that is switched out, from RSP up: R15, R14, R13, R12, RBX, RBP, return address.
///
/// # Safety
///
/// 1. RDI points to a writable word that belongs to the running context.
/// 2. RSI is the stored RSP of a context that is not running on any CPU, and is used for this one switch only.
/// 3. RFLAGS.IF is 0 until the new context has its bookkeeping in order.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn switch_stacks(save: *mut u64, load: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        // Now on the new context's stack.
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Where a new process begins: with RSP at a frame that leads to user mode.
///
/// **Reached by** the RET of a [`switch_stacks`] to a stack that [`prepare_first_switch`] laid out: RSP is the address of the
/// frame at the top of the stack, GS base is the kernel's, interrupts are off.
#[unsafe(naked)]
unsafe extern "sysv64" fn first_run() -> ! {
    naked_asm!(
        "mov rdi, rsp",
        "call {leave}",
        "int3",
        leave = sym entry::leave_first_frame,
    )
}

/// Lays out a stack so that the first switch to it leads to user mode with `frame`, and returns the RSP to switch to.
///
/// # Safety
///
/// 1. `top` is the 16-byte aligned end of a kernel stack that nobody uses, with room for a frame and seven words.
pub(super) unsafe fn prepare_first_switch(top: u64, frame: &TrapFrame) -> u64 {
    let frame_address = top - size_of::<TrapFrame>() as u64;
    let rsp = frame_address - (SAVED_WORDS * 8) as u64;
    let mut words = [0; SAVED_WORDS];
    words[SAVED_WORDS - 1] = stub::address(first_run);
    // SAFETY: condition 1: the frame lies inside the stack, and 16-byte aligned, since its size is a multiple of 16.
    unsafe { (frame_address as *mut TrapFrame).write(frame.clone()) };
    // SAFETY: condition 1: the words lie inside the stack, below the frame; 176 + 56 bytes keep 8-byte alignment.
    unsafe { (rsp as *mut [u64; SAVED_WORDS]).write(words) };
    rsp
}
