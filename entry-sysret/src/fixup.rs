//! What to do when IRETQ itself faults: the fault becomes the program's.
//!
//! The decision refuses every frame that it can know to be bad, but a descriptor may change between test and instruction, and
//! a kernel with more selectors than ours may let more through. A fault of the IRETQ that leaves for user mode is raised in
//! ring 0, at that instruction, with GS base and all general registers already the user's:
//!
//! ```text
//!   higher     | SS | RSP | RFLAGS | CS | RIP |   the image, RSP pointed at RIP
//!              | 8 bytes, so that RSP is a multiple of 16
//!              | SS | RSP | RFLAGS | CS | RIP |   pushed by the fault; this RSP is the image's address
//!              | error code | kind | RCX … R15    pushed by the stub; the registers are the user's
//!   lower
//! ```
//!
//! So the fault's frame holds the program's registers, and the image the words that were wrong. [`adopt`] puts the two
//! together: the result is the frame of a user exception that says where the program was to resume, to be handled as any
//! other fault of that program. Before Rust runs, the stub has to have executed SWAPGS; after it, nothing is special.
//!
//! # Source
//!
//! Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*; vol. 3A, *64-Bit Mode Stack Frame*.

use entry_core::TrapFrame;

use crate::decide::guard;

/// The five words that IRETQ pops, from the address that RSP had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IretImage {
    /// RIP.
    pub rip: u64,
    /// CS.
    pub cs: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// RSP.
    pub rsp: u64,
    /// SS.
    pub ss: u64,
}

const NOT_PRESENT: u8 = 11;
const STACK_SEGMENT: u8 = 12;
const GENERAL_PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;

/// Whether `fault` was raised in ring 0 by exactly the IRETQ at `iret`, with a vector by which that instruction can fail:
/// #NP, #SS, #GP or #PF.
///
/// A program can't fake it: the CS in the frame is the one that the CPU was in.
#[must_use]
pub const fn is_iret_fault(fault: &TrapFrame, iret: u64) -> bool {
    if guard!("fixup-address", fault.rip() != iret) {
        return false;
    }
    if guard!("fixup-ring", fault.cs() & 3 != 0) {
        return false;
    }
    if guard!("fixup-vector", true) {
        return matches!(
            fault.vector(),
            NOT_PRESENT | STACK_SEGMENT | GENERAL_PROTECTION | PAGE_FAULT
        );
    }
    true
}

/// Turns the frame of an IRETQ fault into that of an exception of the program: vector, error code and registers of the fault,
/// RIP, CS, RFLAGS, RSP and SS of the image.
///
/// The image is what the exit could not consume, so the frame can't be left with as it is: the kernel sends a signal, which
/// replaces RIP and selectors, or ends the thread. If it does neither, the exit decision refuses the frame or the IRETQ faults
/// again, and the kernel is told again.
pub const fn adopt(fault: &mut TrapFrame, image: &IretImage) {
    fault.set_rip(image.rip);
    fault.set_cs(image.cs);
    fault.set_rflags(image.rflags);
    fault.set_rsp(image.rsp);
    fault.set_ss(image.ss);
}
