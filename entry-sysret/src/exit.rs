//! The exits that a kernel names as its [`Exit`]: [`SysretOrIret`] and [`IretOnly`].
//!
//! Each joins the decision of [`crate::decide`] to the naked stub that obeys it.

use core::fmt;
use core::marker::PhantomData;

use entry_core::kernel::{Exit, Leave, Options};
use entry_core::{TrapFrame, UserReturn};

use crate::decide::{decide_frame, is_plain_iret, is_plain_syscall, is_unmarked};
use crate::refusal::Refusal;
use crate::rules::Rules;
use crate::stub;

/// Leaves by SYSRET where it restores what the frame says, by IRET elsewhere.
///
/// An untouched frame of SYSCALL costs three tests. So that it stays so, a kernel leaves the setters of RIP, RFLAGS, CS, SS,
/// RCX and R11 alone in system calls that need none of them.
pub struct SysretOrIret<R>(PhantomData<R>);

impl<R> fmt::Debug for SysretOrIret<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SysretOrIret")
    }
}

/// Leaves by IRET always. What SYSRET gains is measured against this.
pub struct IretOnly<R>(PhantomData<R>);

impl<R> fmt::Debug for IretOnly<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IretOnly")
    }
}

// SAFETY: 1. `decide` refuses every frame that faults in ring 0 or reaches it, and the plain tests agree with it where they
// say yes. 2. By the stub.
unsafe impl<R: Rules> Exit for SysretOrIret<R> {
    type Refusal = Refusal;

    #[inline(always)]
    fn choose(frame: &TrapFrame, _proof: &UserReturn) -> Result<Leave, Refusal> {
        if is_plain_syscall(frame.kind_word(), frame.rip(), frame.rflags(), &R::RULES) {
            return Ok(Leave::Sysret);
        }
        // An untouched frame of another entry: its registers are live, so it is IRET if it is safe.
        if is_unmarked(frame.kind_word())
            && is_plain_iret(frame.cs(), frame.ss(), frame.rip(), frame.rflags(), &R::RULES)
        {
            return Ok(Leave::Iret);
        }
        decide_frame(frame, &R::RULES)
    }

    #[unsafe(naked)]
    #[unsafe(link_section = ".entry.text")]
    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        stub::exit_stub!()
    }
}

// SAFETY: 1. As above; a frame that is not refused is safe for IRET. 2. By the stub.
unsafe impl<R: Rules> Exit for IretOnly<R> {
    type Refusal = Refusal;

    #[inline(always)]
    fn choose(frame: &TrapFrame, _proof: &UserReturn) -> Result<Leave, Refusal> {
        if is_plain_iret(frame.cs(), frame.ss(), frame.rip(), frame.rflags(), &R::RULES) {
            return Ok(Leave::Iret);
        }
        match decide_frame(frame, &R::RULES) {
            Ok(_) => Ok(Leave::Iret),
            Err(refusal) => Err(refusal),
        }
    }

    #[unsafe(naked)]
    #[unsafe(link_section = ".entry.text")]
    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        stub::exit_stub!()
    }
}
