//! The entry stubs: generic naked functions, instantiated for a [`Kernel`] and a set of [`Options`].
//!
//! A stub saves and switches, calls Rust, and jumps to the exit; it decides only what can't wait for Rust: whether GS
//! has to be swapped. One path a file; what they share is here: the order of pushes, and the Rust half that each of
//! them calls with the frame's address.
//!
//! Interrupts are masked from the first instruction of each stub to the handler, and again from
//! [`prepare_exit`](crate::kernel::prepare_exit) to the end: by IA32_FMASK for SYSCALL, by interrupt gates for the rest.
//!
//! The stubs carry no call-frame information: a kernel's panic handler prints the [`TrapFrame`] instead of unwinding
//! through it.

mod exception;
mod paranoid;
mod syscall;
mod vectors;

pub use syscall::syscall_entry;
pub use vectors::{SLOT_BYTES, SYSTEM_CALL_VECTOR, vector_stubs};

use crate::frame::TrapFrame;
use crate::irq::{IrqOff, UserEntry, UserReturn};
use crate::kernel::{Exit, Kernel, Leave, Options, Tracking};

/// Pushes RCX down to R15 below the kind word, and zeroes what a user could steer speculation with.
///
/// RSP points at the kind word before, at the frame's first word after. RDI and RSI are given values by the stub at once.
macro_rules! push_registers {
    () => {
        "push rcx
         push r11
         push rax
         push rdx
         push rsi
         push rdi
         push r8
         push r9
         push r10
         push rbx
         push rbp
         push r12
         push r13
         push r14
         push r15
         .if {clear}
         xor eax, eax
         xor ecx, ecx
         xor edx, edx
         xor esi, esi
         xor ebx, ebx
         xor ebp, ebp
         xor r8d, r8d
         xor r9d, r9d
         xor r10d, r10d
         xor r11d, r11d
         xor r12d, r12d
         xor r13d, r13d
         xor r14d, r14d
         xor r15d, r15d
         .endif"
    };
}

/// Undoes `push_registers` and drops the kind word and the code: RSP points at RIP after, ready for IRETQ.
macro_rules! pop_registers {
    () => {
        "pop r15
         pop r14
         pop r13
         pop r12
         pop rbp
         pop rbx
         pop r10
         pop r9
         pop r8
         pop rdi
         pop rsi
         pop rdx
         pop rax
         pop r11
         pop rcx
         add rsp, 16"
    };
}

pub(crate) use {pop_registers, push_registers};

/// Ends a handler: the exit decision, and what happens when it refuses.
#[inline(always)]
fn finish<K: Kernel>(frame: &mut TrapFrame, ready: UserReturn) -> Leave {
    match K::Exit::choose(frame, &ready) {
        Ok(leave) => leave,
        Err(refusal) => refused::<K>(frame, refusal, ready),
    }
}

#[cold]
#[inline(never)]
fn refused<K: Kernel>(frame: &mut TrapFrame, mut refusal: <K::Exit as Exit>::Refusal, mut ready: UserReturn) -> Leave {
    loop {
        let irq = ready.into_irq_off();
        K::Tracking::user_exit(&irq);
        ready = K::refused(frame, refusal, irq);
        match K::Exit::choose(frame, &ready) {
            Ok(leave) => return leave,
            Err(next) => refusal = next,
        }
    }
}

/// Rust half of a system call.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an entry from user mode, and nothing else refers to it.
/// 2. Interrupts are off, GS base is the kernel's.
unsafe extern "sysv64" fn system_call<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: conditions 1 and 2; the stub calls one Rust half per entry.
    let entry = unsafe { UserEntry::assume() };
    K::Tracking::user_exit(entry.irq_off());
    let ready = K::syscall(frame, entry);
    finish::<K>(frame, ready)
}

/// Rust half of an exception in user mode.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_exception<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: conditions 1 and 2; the stub calls one Rust half per entry.
    let entry = unsafe { UserEntry::assume() };
    K::Tracking::user_exit(entry.irq_off());
    let ready = K::user_exception(frame, entry);
    finish::<K>(frame, ready)
}

/// Rust half of a maskable interrupt in user mode.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_interrupt<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: conditions 1 and 2; the stub calls one Rust half per entry.
    let entry = unsafe { UserEntry::assume() };
    K::Tracking::user_exit(entry.irq_off());
    let ready = K::user_interrupt(frame, entry);
    finish::<K>(frame, ready)
}

/// Rust half of NMI, #MC, #DB and #DF in user mode, after the stub moved to the thread's kernel stack.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_paranoid<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: conditions 1 and 2; the stub calls one Rust half per entry.
    let entry = unsafe { UserEntry::assume() };
    K::Tracking::user_exit(entry.irq_off());
    let ready = if frame.vector() == paranoid::DEBUG {
        K::user_exception(frame, entry)
    } else {
        let irq = K::paranoid(frame, entry.into_irq_off());
        crate::kernel::prepare_exit::<K>(frame, irq)
    };
    finish::<K>(frame, ready)
}

/// Rust half of an exception in the kernel.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, and nothing else refers to it.
/// 2. Interrupts are off, GS base is the kernel's.
unsafe extern "sysv64" fn kernel_exception<K: Kernel>(frame: *mut TrapFrame) {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    let saved = K::Tracking::exception_enter(&irq);
    let irq = K::kernel_exception(frame, irq);
    K::Tracking::exception_exit(&irq, saved);
}

/// Rust half of a maskable interrupt in the kernel.
///
/// # Safety
///
/// As [`kernel_exception`].
unsafe extern "sysv64" fn kernel_interrupt<K: Kernel>(frame: *mut TrapFrame) {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    let saved = K::Tracking::exception_enter(&irq);
    let irq = K::kernel_interrupt(frame, irq);
    K::Tracking::exception_exit(&irq, saved);
}

/// Rust half of a paranoid vector that arrived in ring 0.
///
/// # Safety
///
/// As [`kernel_exception`].
unsafe extern "sysv64" fn kernel_paranoid<K: Kernel>(frame: *mut TrapFrame) {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    let saved = K::Tracking::nmi_enter(&irq);
    let irq = K::paranoid(frame, irq);
    K::Tracking::nmi_exit(&irq, saved);
}

/// Goes to user mode with a frame that the kernel built: first entry of a process, exec, a fork child's first run.
///
/// The end of a kernel thread that becomes a user thread: pending work is done, [`Tracking`] is told, and the exit
/// decision is made as after any handler.
///
/// # Safety
///
/// 1. `frame` lies at the top of the current thread's kernel stack, above everything that is live on it, and nothing
///    else refers to it.
/// 2. GS base is the kernel's and the CPU is set up as [`Kernel`] demands.
pub unsafe fn return_to_user<K: Kernel, O: Options>(frame: *mut TrapFrame, irq: IrqOff) -> ! {
    // SAFETY: condition 1.
    let words = unsafe { &mut *frame };
    let ready = crate::kernel::prepare_exit::<K>(words, irq);
    let leave = finish::<K>(words, ready);
    // SAFETY: interrupts are off since `prepare_exit`, GS base is the kernel's by condition 2, RSP becomes the frame's
    // address and EAX what `choose` said: what `Exit::leave` asks for.
    unsafe {
        core::arch::asm!(
            "mov rsp, {frame}",
            "jmp {leave}",
            frame = in(reg) frame,
            leave = sym <K::Exit as Exit>::leave::<O>,
            in("eax") leave as u32,
            options(noreturn),
        );
    }
}

/// The addresses that a CPU is set up with: what goes into LSTAR and the IDT for one set of options.
///
/// ```no_run
/// # use entry_core::kernel::{Baseline, Kernel};
/// # use entry_core::stub::StubTable;
/// fn table<K: Kernel>() -> StubTable {
///     StubTable::of::<K, Baseline>()
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StubTable {
    /// For IA32_LSTAR.
    pub syscall: u64,
    /// The first of 256 slots of [`SLOT_BYTES`] bytes, for the IDT.
    pub vectors: u64,
    /// [`return_to_user`] for the same options.
    pub return_to_user: unsafe fn(*mut TrapFrame, IrqOff) -> !,
}

impl StubTable {
    /// The stubs of `K` for options `O`.
    #[must_use]
    pub fn of<K: Kernel, O: Options>() -> Self {
        Self {
            syscall: syscall_entry::<K, O> as *const () as u64,
            vectors: vector_stubs::<K, O> as *const () as u64,
            return_to_user: return_to_user::<K, O>,
        }
    }
}
