//! The exits that a kernel names as its [`Exit`]: [`SysretOrIret`] and [`IretOnly`].
//!
//! Each joins the decision of [`decide()`] to the naked stub that obeys it.

use core::fmt;
use core::marker::PhantomData;

use entry_core::kernel::{Exit, Leave, Options};
use entry_core::{IrqOff, TrapFrame};

use crate::decide::{
    ExitWords, decide, has_live_registers, is_code32, is_dead_exception, is_plain_dead, is_plain_iret, is_plain_iret32,
    is_plain_sysret, is_plain_sysret32, is_untouched_syscall, is_untouched_syscall32, is_untouched_sysenter,
    is_untouched_sysenter32,
};
use crate::refusal::Refusal;
use crate::rules::Rules;
use crate::stub::{exit_stub, iret_exit_stub};

/// Leaves by SYSRET where it restores what the frame says, by IRET elsewhere.
///
/// An untouched frame of SYSCALL or SYSENTER costs three tests. So that it stays so, a kernel leaves the setters of RIP, RFLAGS, CS, SS,
/// RCX and R11 alone in system calls that need none of them.
pub struct SysretOrIret<R>(PhantomData<R>);

impl<R> fmt::Debug for SysretOrIret<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SysretOrIret")
    }
}

/// Leaves by IRET always: for a kernel that leaves SYSCALL off, where SYSRET is #UD; and what SYSRET gains is measured
/// against it.
pub struct IretOnly<R>(PhantomData<R>);

impl<R> fmt::Debug for IretOnly<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IretOnly")
    }
}

/// IRET, if the frame is plain.
#[inline(always)]
const fn plain_iret<R: Rules>(frame: &TrapFrame) -> Option<Leave> {
    let (cs, ss, rip, rflags) = (frame.cs(), frame.ss(), frame.rip(), frame.rflags());
    let is_plain = if is_code32(cs, &R::RULES) {
        is_plain_iret32(cs, ss, rip, rflags, &R::RULES)
    } else {
        is_plain_iret(cs, ss, rip, rflags, &R::RULES)
    };
    if is_plain { Some(Leave::Iret) } else { None }
}

// SAFETY: 1. `decide` refuses every frame that faults in ring 0 or reaches it; the plain tests agree with it where they say
// yes. 2. By the stub.
unsafe impl<R: Rules> Exit for SysretOrIret<R> {
    type Refusal = Refusal;

    #[inline(always)]
    fn choose_plain(frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        if is_untouched_syscall(frame.kind_word()) && is_plain_sysret(frame.rip(), frame.rflags(), &R::RULES) {
            return Some(Leave::Sysret);
        }
        None
    }

    #[inline(always)]
    fn choose_plain_sysenter(frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        if is_untouched_sysenter(frame.kind_word()) && is_plain_sysret(frame.rip(), frame.rflags(), &R::RULES) {
            return Some(Leave::Sysret);
        }
        None
    }

    #[inline(always)]
    fn choose_plain_syscall32(frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        if is_untouched_syscall32(frame.kind_word()) && is_plain_sysret32(frame.rip(), frame.rflags(), &R::RULES) {
            return Some(Leave::Sysret32);
        }
        None
    }

    #[inline(always)]
    fn choose_plain_sysenter32(frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        if is_untouched_sysenter32(frame.kind_word()) && is_plain_sysret32(frame.rip(), frame.rflags(), &R::RULES) {
            return Some(Leave::Sysret32);
        }
        None
    }

    #[inline(always)]
    fn choose_plain_event(frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        if has_live_registers(frame.kind_word()) {
            return plain_iret::<R>(frame);
        }
        if is_dead_exception(frame.kind_word())
            && is_plain_dead(frame.cs(), frame.ss(), frame.rip(), frame.rflags(), &R::RULES)
        {
            return Some(Leave::Sysret);
        }
        None
    }

    #[inline(always)]
    fn choose(frame: &TrapFrame, _irq: &IrqOff) -> Result<Leave, Refusal> {
        decide(&ExitWords::of(frame), &R::RULES)
    }

    #[unsafe(naked)]
    #[unsafe(link_section = ".entry.text")]
    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        exit_stub!(R::RULES)
    }

    #[unsafe(naked)]
    #[unsafe(link_section = ".entry.text")]
    unsafe extern "sysv64" fn leave_by_iret<O: Options>() -> ! {
        iret_exit_stub!(R::RULES.data())
    }
}

// SAFETY: 1. As above; a frame that is not refused is safe for IRET. 2. By the stub.
unsafe impl<R: Rules> Exit for IretOnly<R> {
    type Refusal = Refusal;

    #[inline(always)]
    fn choose_plain(frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        plain_iret::<R>(frame)
    }

    #[inline(always)]
    fn choose(frame: &TrapFrame, _irq: &IrqOff) -> Result<Leave, Refusal> {
        decide(&ExitWords::of(frame), &R::RULES)?;
        Ok(Leave::Iret)
    }

    #[unsafe(naked)]
    #[unsafe(link_section = ".entry.text")]
    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        exit_stub!(R::RULES)
    }

    #[unsafe(naked)]
    #[unsafe(link_section = ".entry.text")]
    unsafe extern "sysv64" fn leave_by_iret<O: Options>() -> ! {
        iret_exit_stub!(R::RULES.data())
    }
}
