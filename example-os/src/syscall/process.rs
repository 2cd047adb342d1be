//! Calls about processes.

use entry_core::{IrqOff, IrqOn, TrapFrame};

use super::{Answer, Errno, Outcome};
use crate::entry::PerCpu;
use crate::memory::user;
use crate::process::signal::Signal;
use crate::process::{self, Children, Target, WaitStatus, current, scheduler};

/// The lower half of a register, as the ABI passes an `int`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half of the register has no meaning"
)]
#[inline(always)]
const fn int(register: u64) -> i32 {
    register as i32
}

/// `getpid()`
pub(super) fn getpid(_frame: &TrapFrame, irq: IrqOn) -> Outcome {
    (Answer::value(current().pid().into()), irq)
}

/// `getppid()`
pub(super) fn getppid(_frame: &TrapFrame, irq: IrqOn) -> Outcome {
    (Answer::value(current().parent().into()), irq)
}

/// `sched_yield()`
pub(super) fn sched_yield(_frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let mut irq = irq.disable();
    scheduler::schedule(&mut irq);
    (Answer::ZERO, irq.enable())
}

/// `exit(code)` and `exit_group(code)`: a process has one thread.
pub(super) fn exit(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    #[expect(clippy::cast_possible_truncation, reason = "the parent sees the low 8 bits")]
    let code = frame.rdi() as u8;
    process::exit(WaitStatus::exited(code), irq.disable())
}

/// `fork()`
pub(super) fn fork(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let irq = irq.disable();
    let result = process::fork(frame, &irq).map(u64::from);
    (result.into(), irq.enable())
}

/// `kill(pid, signal)`: signal 0 only asks.
pub(super) fn kill(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let irq = irq.disable();
    let result = kill_off(int(frame.rdi()), int(frame.rsi()), &irq);
    (result.into(), irq.enable())
}

#[inline(always)]
fn kill_off(pid: i32, signal: i32, irq: &IrqOff) -> Result<(), Errno> {
    let signal = match u8::try_from(signal).map_err(|_| Errno::EINVAL)? {
        0 => None,
        number => Some(Signal::new(number).ok_or(Errno::EINVAL)?),
    };
    let target = match pid {
        1.. => Target::One(pid.unsigned_abs()),
        0 => Target::Group,
        -1 => Target::Others,
        // There is one process group, and it has no number.
        _ => return Err(Errno::ESRCH),
    };
    process::kill(target, signal, irq)
}

/// Bytes of a `struct rusage` of 64-bit code.
const LONGEST_USAGE: usize = 144;

/// `wait4(pid, status, options, usage)`: `usage` is filled with zeros.
pub(super) fn wait4(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    let mut irq = irq.disable();
    let [pid, status, options, usage, ..] = frame.arguments();
    let result = wait_off(int(pid), status, int(options), (usage, LONGEST_USAGE), &mut irq);
    (result.into(), irq.enable())
}

/// `usage` is where to, and how many bytes it has there: up to [`LONGEST_USAGE`].
pub(super) fn wait_off(
    pid: i32,
    status_address: u64,
    options: i32,
    (usage, usage_bytes): (u64, usize),
    irq: &mut IrqOff,
) -> Result<u64, Errno> {
    const WNOHANG: i32 = 1;
    const WUNTRACED: i32 = 2;
    const WCONTINUED: i32 = 8;
    if options & !(WNOHANG | WUNTRACED | WCONTINUED) != 0 {
        return Err(Errno::EINVAL);
    }
    let children = match pid {
        1.. => Children::One(pid.unsigned_abs()),
        // 0 asks for the caller's process group, which is everybody's.
        0 | -1 => Children::Any,
        _ => return Err(Errno::ECHILD),
    };
    let Some((pid, status)) = process::wait(children, options & WNOHANG == 0, irq)? else {
        return Ok(0);
    };
    if status_address != 0 {
        user::copy_to_user(status_address, &status.bits().to_le_bytes()).map_err(|_| Errno::EFAULT)?;
    }
    if usage != 0 {
        user::copy_to_user(usage, &[0; LONGEST_USAGE][..usage_bytes]).map_err(|_| Errno::EFAULT)?;
    }
    Ok(pid.into())
}

/// `arch_prctl(operation, address)`: FS and GS base.
pub(super) fn arch_prctl(frame: &TrapFrame, irq: IrqOn) -> Outcome {
    const ARCH_SET_GS: i32 = 0x1001;
    const ARCH_SET_FS: i32 = 0x1002;
    const ARCH_GET_FS: i32 = 0x1003;
    const ARCH_GET_GS: i32 = 0x1004;
    let irq = irq.disable();
    let context = current().context();
    let address = frame.rsi();
    let store = |value| user::write_user_u64(address, value).map_err(|_| Errno::EFAULT);
    context.refresh_bases(PerCpu::current(&irq));
    let result = match int(frame.rdi()) {
        ARCH_SET_FS => context.set_fs_base(address, &irq),
        ARCH_SET_GS => context.set_gs_base(address, &irq),
        ARCH_GET_FS => store(context.fs_base()),
        ARCH_GET_GS => store(context.gs_base()),
        _ => Err(Errno::EINVAL),
    };
    (result.into(), irq.enable())
}
