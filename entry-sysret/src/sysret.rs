//! Builders of frames that leave by SYSRET: the start of a user function, and RCX and R11 given up.
//!
//! SYSRET leaves RIP in RCX and RFLAGS in R11. Where the receiving code knows nothing of those registers, a frame may as well
//! hold these values, and then it leaves by the faster way; [`decide`](crate::decide()) finds them equal.

use entry_core::TrapFrame;
use entry_core::rflags::Rflags;

use crate::decide::guard;
use crate::iret::{CodeSize, SETTABLE, check_target, sanitised};
use crate::refusal::Refusal;
use crate::rules::RuleSet;

/// A user function that the kernel makes a thread run: a signal handler, an upcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserCall {
    /// Which instruction set the function is in.
    pub size: CodeSize,
    /// Its address.
    pub rip: u64,
    /// RSP at its first instruction.
    pub rsp: u64,
    /// What it finds in RDI, RSI and RDX.
    pub arguments: [u64; 3],
}

/// Makes `frame` resume at the start of a user function, by SYSRET if nothing else forbids it.
///
/// The caller has saved what it wants to come back to ([`SavedContext::of`](crate::iret::SavedContext::of)). RAX is 0; RCX and
/// R11 are given up; TF, DF, RF and NT are cleared as the C ABI expects, and IF is set; the other registers stay the program's own.
///
/// ```
/// use entry_core::address::{UserLimit, Width};
/// use entry_core::kernel::Leave;
/// use entry_core::segment::SegmentLayout;
/// use entry_sysret::iret::{CodeSize, program_start};
/// use entry_sysret::sysret::{UserCall, call_user};
/// use entry_sysret::{ExitWords, Refusal, RuleSet, decide};
///
/// let rules = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
/// let mut frame = program_start(&rules, CodeSize::Bits64, 0x40_1000, 0x7fff_0000_0000)?;
/// let handler = UserCall { size: CodeSize::Bits64, rip: 0x40_2000, rsp: 0x7ffe_ffff_fe08, arguments: [10, 0, 0] };
/// call_user(&mut frame, &rules, &handler)?;
/// assert_eq!(decide(&ExitWords::of(&frame), &rules), Ok(Leave::Sysret));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Errors
///
/// The [`Refusal`] that the exit would meet; `frame` is unchanged then.
pub const fn call_user(frame: &mut TrapFrame, rules: &RuleSet, call: &UserCall) -> Result<(), Refusal> {
    let cs = call.size.selector(rules);
    if let Err(refusal) = check_target(rules, cs, rules.data, call.rip) {
        return Err(refusal);
    }
    let kept = if guard!("call-flags", true) {
        SETTABLE & !Rflags::TRAP.union(Rflags::DIRECTION).union(Rflags::RESUME).bits()
    } else {
        SETTABLE
    };
    let rflags = sanitised(frame.rflags() & kept, frame.rflags(), rules);
    let [rdi, rsi, rdx] = call.arguments;
    if guard!("call-marks", true) {
        frame.mark_built();
    }
    frame.set_rip(call.rip);
    frame.set_rsp(call.rsp);
    frame.set_rflags(rflags);
    frame.set_cs(cs);
    frame.set_ss(rules.data);
    frame.set_rax(0);
    frame.set_rdi(rdi);
    frame.set_rsi(rsi);
    frame.set_rdx(rdx);
    give_up_rcx_r11(frame);
    Ok(())
}

/// Gives RCX and R11 the values that SYSRET leaves in them, so that SYSRET restores the frame.
///
/// For a program that is about to start and may find anything there, and for an event whose ABI destroys them. To keep the
/// values in the frame for a debugger and leave by SYSRET all the same, use [`TrapFrame::declare_rcx_r11_dead`].
pub const fn give_up_rcx_r11(frame: &mut TrapFrame) {
    if guard!("give-up-rcx", true) {
        frame.set_rcx(frame.rip());
    }
    if guard!("give-up-r11", true) {
        frame.set_r11(frame.rflags());
    }
}
