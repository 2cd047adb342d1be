//! The entry stubs: generic naked functions, instantiated for a [`Kernel`] and a set of [`Options`].
//!
//! A stub saves and switches, calls Rust, and jumps to the exit; it decides only what can't wait for Rust: whether GS
//! has to be swapped. One path a file; what they share is here: the order of pushes, and the Rust half that each of
//! them calls with the frame's address.
//!
//! Interrupts are masked from the first instruction of each stub to the handler, and again from the handler's return to
//! the end: by IA32_FMASK for SYSCALL, by interrupt gates for the rest, by the proof that a handler gives back.
//!
//! What an option adds is absent without it, to the last instruction. The tables of registers are without
//! [`Options::IBRS`], which leaves other values in RAX, RCX and RDX at the call: all three are saved by then.
//!
//! The stubs carry no call-frame information: a kernel's panic handler prints the [`TrapFrame`] instead of unwinding
//! through it.

mod compat;
mod early;
mod exception;
mod floor;
mod irqs_on;
mod lean;
mod paranoid;
mod select;
mod syscall;
mod vectors;

pub use compat::syscall_compat_entry;
pub use early::{EarlyKernel, early_stubs};
pub use floor::syscall_floor;
pub use irqs_on::{IrqsOnKernel, IrqsOnStubs, syscall_entry_irqs_on};
pub use lean::{LeanKernel, LeanResult, syscall_entry_lean};
pub use select::{NoStubSet, Requirements};
pub use syscall::syscall_entry;
pub use vectors::{vector_stubs, vector_stubs_irqs_on};

use crate::debug::DebugStatus;
use crate::frame::TrapFrame;
use crate::guard::guard;
use crate::irq::{IrqOff, UserEntry, UserReturn};
use crate::kernel::{Exit, Kernel, Leave, Options, Tracking, is_work_pending};
use crate::percpu::PerCpuHeader;
use crate::plan::Installed;
use crate::vector::Vector;
use crate::windows;

/// Pushes the registers of a [`TrapFrame`], RCX down to R15: RSP points at the kind word before, at the frame's first word
/// after. For the `naked_asm!` of a stub of another crate's.
#[doc(hidden)]
#[macro_export]
macro_rules! push_frame_registers {
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
         push r15"
    };
}

/// With `CLEAR`: zeroes what a user could steer speculation with, once it is saved. RDI and RSP are given values by the
/// stub. For the `naked_asm!` of a stub of another crate's, which has an operand `clear`.
#[doc(hidden)]
#[macro_export]
macro_rules! clear_registers {
    () => {
        ".if {clear}
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

/// The registers, and CLEAR.
macro_rules! push_registers {
    () => {
        concat!(crate::push_frame_registers!(), "\n", crate::clear_registers!())
    };
}

/// SS and RSP of an interrupt frame, as if an interrupt had pushed them.
macro_rules! push_user_stack {
    () => {
        "push {ss}
         push qword ptr gs:[{scratch}]"
    };
}

/// The rest of it after SYSCALL, which put RIP into RCX and RFLAGS into R11; then the original RAX and the kind word.
macro_rules! push_syscall_image {
    () => {
        "push r11
         push {cs}
         push rcx
         push rax
         push {kind}"
    };
}

/// Pops R15 up to RAX, in the order of a [`TrapFrame`]'s words: RSP points at R11 after. For the `naked_asm!` of a stub of
/// another crate's.
#[doc(hidden)]
#[macro_export]
macro_rules! pop_frame_registers {
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
         pop rax"
    };
}

/// Undoes `push_registers` and drops the kind word and the code: RSP points at RIP after, ready for IRETQ.
macro_rules! pop_registers {
    () => {
        concat!(crate::pop_frame_registers!(), "\npop r11\npop rcx\nadd rsp, 16")
    };
}

/// With `KPTI`: loads the kernel's tables, of which nothing may be used before. Clobbers RSP.
///
/// GS base is the kernel's, interrupts are off.
macro_rules! load_kernel_tables {
    () => {
        ".if {loads_tables}
         mov rsp, gs:[{kernel_cr3}]
         mov cr3, rsp
         .endif"
    };
}

/// Moves an interrupt frame, of which RSP points at the kind word, to the thread's kernel stack, from a stack that is
/// mapped in the user's tables too; with `KPTI`, loads the kernel's tables in between. All registers are kept, RAX in the
/// scratch word until [`restore_rax`]; till then it points at the kind word of the old frame.
///
/// The frame came from user mode, GS base is the kernel's, interrupts are off.
macro_rules! move_to_thread_stack {
    () => {
        "mov gs:[{scratch_rax}], rax
         .if {loads_tables}
         mov rax, gs:[{kernel_cr3}]
         mov cr3, rax
         .endif
         mov rax, rsp
         mov rsp, gs:[{stack}]
         push qword ptr [rax + 48]
         push qword ptr [rax + 40]
         push qword ptr [rax + 32]
         push qword ptr [rax + 24]
         push qword ptr [rax + 16]
         push qword ptr [rax + 8]
         push qword ptr [rax]"
    };
}

/// The end of `move_to_thread_stack`.
macro_rules! restore_rax {
    () => {
        "mov rax, gs:[{scratch_rax}]"
    };
}

/// With `IBRS`: writes the kernel's `IA32_SPEC_CTRL`. Clobbers RAX, RCX and RDX, which are saved by then; nothing may be
/// predicted before.
macro_rules! restrict_speculation {
    () => {
        ".if {ibrs}
         mov ecx, {spec_ctrl}
         mov eax, gs:[{kernel_spec_ctrl}]
         xor edx, edx
         wrmsr
         .endif"
    };
}

pub(crate) use {
    load_kernel_tables, move_to_thread_stack, pop_registers, push_registers, push_syscall_image, push_user_stack,
    restore_rax, restrict_speculation,
};

/// Begins the Rust half of an entry from user mode: [`Tracking`] is told.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an entry from user mode, and nothing else refers to it until the Rust half returns.
/// 2. Interrupts are off, GS base is the kernel's.
/// 3. It is called once for each entry, and nothing but a look at CR2 or DR6 came before.
#[inline(always)]
unsafe fn begin<'a, K: Kernel>(frame: *mut TrapFrame) -> (&'a mut TrapFrame, UserEntry) {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: conditions 1 to 3.
    let entry = unsafe { UserEntry::assume() };
    // SAFETY: 1. and 2. by condition 3.
    unsafe { K::Tracking::user_exit(entry.irq_off()) };
    (frame, entry)
}

/// Ends a handler: pending work, the exit decision, tracking. Three tests when there is nothing to do.
///
/// `choose_plain` is the one of [`Exit`] for the way that the program came in.
#[inline(always)]
fn finish<K: Kernel>(
    frame: &mut TrapFrame,
    irq: IrqOff,
    choose_plain: impl FnOnce(&TrapFrame, &IrqOff) -> Option<Leave>,
) -> Leave {
    if !is_work_pending()
        && let Some(leave) = choose_plain(frame, &irq)
    {
        // SAFETY: 1. the stub leaves as soon as the Rust half returns. 2. This is its only return but for that of
        // `finish_slow`. 3. The flag was just tested, with interrupts off.
        let _ready: UserReturn = unsafe { K::Tracking::user_enter(irq) };
        return leave;
    }
    finish_slow::<K>(frame, irq)
}

/// Work, full decision and refusals, until the frame can be left with and nothing is pending.
#[cold]
#[inline(never)]
fn finish_slow<K: Kernel>(frame: &mut TrapFrame, mut irq: IrqOff) -> Leave {
    loop {
        while is_work_pending() {
            irq = K::work(frame, irq);
        }
        match K::Exit::choose(frame, &irq) {
            Ok(leave) => {
                // SAFETY: 1. and 2. as in `finish`. 3. The loop above ended with no work, and `choose` sets none.
                let _ready: UserReturn = unsafe { K::Tracking::user_enter(irq) };
                return leave;
            }
            Err(refusal) => irq = K::refused(frame, refusal, irq),
        }
    }
}

/// Rust half of a system call, for the stubs of this and other crates.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an entry from user mode, and nothing else refers to it.
/// 2. Interrupts are off, GS base is the kernel's.
pub unsafe extern "sysv64" fn system_call<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::syscall(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain)
}

/// Rust half of SYSENTER: [`system_call`], and an end that knows how it was entered.
///
/// # Safety
///
/// As [`system_call`].
pub unsafe extern "sysv64" fn sysenter_call<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::syscall(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_sysenter)
}

/// Rust half of SYSCALL from 32-bit code: [`system_call`], and an end that knows how it was entered.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn syscall32_call<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::syscall(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_syscall32)
}

/// Rust half of SYSENTER from 32-bit code: [`system_call`], and an end that knows how it was entered.
///
/// # Safety
///
/// As [`system_call`].
pub unsafe extern "sysv64" fn sysenter32_call<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::syscall(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_sysenter32)
}

/// Rust half of INT 0x80: [`system_call`], and an end that knows how it was entered.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn soft_system_call<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::syscall(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_event)
}

/// Rust half of an exception in user mode.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_exception<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::user_exception(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_event)
}

/// Rust half of a page fault in user mode.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_page_fault<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    let address = fault_address();
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust but for CR2.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::user_page_fault(frame, address, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_event)
}

/// CR2.
#[inline(always)]
fn fault_address() -> u64 {
    let address;
    // SAFETY: reading CR2 changes nothing.
    unsafe { core::arch::asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Rust half of a maskable interrupt in user mode.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_interrupt<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = K::user_interrupt(frame, entry);
    finish::<K>(frame, irq, K::Exit::choose_plain_event)
}

/// Rust half of NMI, #MC, #DB and #DF in user mode, after the stub moved to the thread's kernel stack.
///
/// # Safety
///
/// As [`system_call`].
unsafe extern "sysv64" fn user_paranoid<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: condition 1.
    note_debug_status(unsafe { &mut *frame });
    // SAFETY: 1. and 2. as here. 3. The stub calls one Rust half for each entry, and this is its first Rust but for DR6.
    let (frame, entry) = unsafe { begin::<K>(frame) };
    let irq = match Vector(frame.vector()) {
        Vector::DEBUG => K::user_exception(frame, entry),
        Vector::NMI => {
            let irq = K::paranoid(frame, entry.into_irq_off());
            // What is left to do may end in another thread, which may leave by SYSRET.
            if guard!("unblock-nmi", true) {
                unblock_nmis(&irq);
            }
            irq
        }
        _ => K::paranoid(frame, entry.into_irq_off()),
    };
    finish::<K>(frame, irq, K::Exit::choose_plain_event)
}

/// Takes the reason of a #DB out of DR6, where the next one would find it, into the frame.
#[inline(always)]
fn note_debug_status(frame: &mut TrapFrame) {
    if Vector(frame.vector()) == Vector::DEBUG {
        // SAFETY: 1. this is the first Rust after a #DB's stub, at CPL 0.
        frame.set_debug_status(unsafe { DebugStatus::take() });
    }
}

/// Executes IRETQ to the next instruction: the CPU delivers no NMI from the start of one to the next IRET. The stack of
/// NMIs is free, since the frame has left it.
///
/// # Source
///
/// Intel SDM vol. 3A, *Handling Multiple NMIs*.
#[inline(always)]
fn unblock_nmis(_irq: &IrqOff) {
    // SAFETY: CS, SS, RSP and RFLAGS are popped as they are, and RIP is that of the instruction behind. An SS that is null, as an
    // entry through the IDT leaves it, is right for IRETQ within ring 0 in 64-bit mode. What is pushed is popped.
    unsafe {
        core::arch::asm!(
            "mov {old:e}, ss",
            "mov {stack}, rsp",
            "push {old}",
            "push {stack}",
            "pushfq",
            "mov {old:e}, cs",
            "push {old}",
            "lea {old}, [rip + 2f]",
            "push {old}",
            "iretq",
            "2:",
            old = out(reg) _,
            stack = out(reg) _,
        );
    }
}

/// With `LFENCE`: nothing is read through GS before it is certain whose base it is, where that was decided by a look at RIP. It
/// stands on both arms; for the branch on CS, which came before, it stands, too.
///
/// # Source
///
/// Intel, *Speculative Behavior of SWAPGS and Segment Registers*.
#[inline(always)]
fn fence_swapgs<O: Options>() {
    if guard!("fence-swapgs", O::LFENCE) {
        // SAFETY: LFENCE changes nothing.
        unsafe { core::arch::asm!("lfence", options(nostack, preserves_flags)) };
    }
}

/// Rust half of an exception in the kernel. Returns null to go back to what was interrupted, or the frame of a user
/// event to go on with: see [`take_back_iret`].
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, and nothing else refers to it.
/// 2. Interrupts are off, and GS base is the kernel's unless the exception is that of an IRETQ to user mode.
unsafe extern "sysv64" fn kernel_exception<K: Kernel, O: Options>(frame: *mut TrapFrame) -> *mut TrapFrame {
    // SAFETY: condition 1.
    let words = unsafe { &mut *frame };
    // Before anything that needs GS: the records are reached by their address alone.
    if guard!("iret-fault", windows::is_iret(words.rip())) {
        // SAFETY: 1. as here. 2. The record says so.
        return unsafe { take_back_iret::<O>(frame) };
    }
    fence_swapgs::<O>();
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: nothing but a look at RIP came before; `saved` is given back below.
    let saved = unsafe { K::Tracking::exception_enter(&irq) };
    let irq = K::kernel_exception(words, irq);
    // SAFETY: `saved` is this entry's, and the stub returns now.
    unsafe { K::Tracking::exception_exit(&irq, saved) };
    core::ptr::null_mut()
}

/// Turns a fault of IRETQ into an event of the program that it was leaving for.
///
/// IRETQ to user mode is the last instruction before it, and it can fault in ring 0: with a selector beyond the GDT, not
/// present, of the wrong privilege or null, or with a RIP that is not canonical. GS base is the user's by then and all
/// registers but RSP are too; on the stack lie the five words that it could not load. What the program had is
/// therefore all there: its registers in the frame of the exception, the rest in the five words, and together they are
/// put where the frame was that the exit consumed: at the top of the thread's stack.
///
/// The order of the frame's words makes that place overlap the exception's own frame, which is why it is copied first.
/// With [`Options::KPTI`] the five words and the exception's frame are on the entry stack.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an exception whose RIP is that of the exits' IRETQ, and nothing else refers to it.
/// 2. GS base is the user's and the kernel's is in IA32_KERNEL_GS_BASE.
///
/// # Source
///
/// Intel SDM vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*.
#[cold]
#[inline(never)]
unsafe fn take_back_iret<O: Options>(frame: *mut TrapFrame) -> *mut TrapFrame {
    if guard!("iret-fault-gs", true) {
        // SAFETY: condition 2.
        unsafe { core::arch::asm!("swapgs", options(nostack, preserves_flags)) };
    }
    fence_swapgs::<O>();
    // SAFETY: condition 1.
    let fault = unsafe { frame.read() };
    #[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
    let consumed = frame.with_addr(fault.rsp() as usize - TrapFrame::RIP);
    // SAFETY: at the IRETQ, RSP points at the RIP word of the frame that the exit was given, or of the copy that it made of
    // the five words, whose memory is the top of this stack; every bit pattern is a frame.
    let image = unsafe { consumed.read() };
    let consumed = if O::KPTI {
        // SAFETY: the exit ran, and the exception was delivered, with interrupts off.
        let irq = unsafe { IrqOff::assume() };
        // SAFETY: GS base is the kernel's since the SWAPGS above.
        let header = unsafe { PerCpuHeader::current(&irq) };
        #[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
        let top = header.kernel_stack() as usize;
        core::ptr::with_exposed_provenance_mut::<TrapFrame>(top - TrapFrame::SIZE)
    } else {
        consumed
    };
    // SAFETY: the frame that the exit consumed was at the top of the thread's stack, where nothing else is live. The stack in
    // use is below `frame`, which is below or overlaps `consumed` or is on another stack, and `frame` is not used again.
    unsafe { consumed.write(TrapFrame::of_iret_fault(&fault, &image)) };
    consumed
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
    // SAFETY: this is the first Rust after the stub; `saved` is given back below.
    let saved = unsafe { K::Tracking::exception_enter(&irq) };
    let irq = K::kernel_interrupt(frame, irq);
    // SAFETY: `saved` is this entry's, and the stub returns now.
    unsafe { K::Tracking::exception_exit(&irq, saved) };
}

/// Rust half of a paranoid vector that arrived in ring 0.
///
/// # Safety
///
/// As [`kernel_exception`].
unsafe extern "sysv64" fn kernel_paranoid<K: Kernel>(frame: *mut TrapFrame) {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    note_debug_status(frame);
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: this is the first Rust after the stub; `saved` is given back below.
    let saved = unsafe { K::Tracking::nmi_enter(&irq) };
    let irq = K::paranoid(frame, irq);
    // SAFETY: `saved` is this entry's, and the stub returns now.
    unsafe { K::Tracking::nmi_exit(&irq, saved) };
}

/// Rust half of a paranoid vector that arrived in ring 0 and found its stack in use.
///
/// # Safety
///
/// As [`kernel_exception`].
unsafe extern "sysv64" fn nested_paranoid<K: Kernel>(frame: *mut TrapFrame) -> ! {
    // SAFETY: condition 1.
    K::nested_paranoid(unsafe { &*frame })
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
/// 2. GS base is the kernel's and the CPU is set up as [`Kernel`] demands; that its system-call registers are, `_installed`
///    proves: a token of this CPU, for `K` or for a kernel with the same layout.
pub unsafe fn return_to_user<K: Kernel, O: Options>(frame: *mut TrapFrame, irq: IrqOff, _installed: &Installed) -> ! {
    // SAFETY: condition 1.
    let words = unsafe { &mut *frame };
    let leave = finish_slow::<K>(words, irq);
    // SAFETY: interrupts are off since the proof was made, GS base is the kernel's by condition 2, RSP becomes the frame's
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

/// [`return_to_user`] of some kernel, for some options.
pub type ReturnToUser = unsafe fn(frame: *mut TrapFrame, irq: IrqOff, installed: &Installed) -> !;

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
    /// For IA32_CSTAR.
    pub syscall_compat: u64,
    /// The first of 256 slots of [`SLOT_BYTES`](crate::vector::SLOT_BYTES) bytes, for the IDT.
    pub vectors: u64,
    /// [`return_to_user`] for the same options.
    pub return_to_user: ReturnToUser,
    /// What the CPU must have for them.
    pub requirements: Requirements,
}

impl StubTable {
    /// The stubs of `K` for options `O`.
    #[must_use]
    pub fn of<K: Kernel, O: Options>() -> Self {
        Self {
            syscall: address(syscall_entry::<K, O>),
            syscall_compat: address(syscall_compat_entry::<K, O>),
            vectors: address(vector_stubs::<K, O>),
            return_to_user: return_to_user::<K, O>,
            requirements: Requirements::of::<O>(),
        }
    }
}

/// The address of a stub, for a register or a gate.
#[expect(clippy::fn_to_numeric_cast_any, reason = "the CPU is given the address")]
pub fn address(stub: unsafe extern "sysv64" fn() -> !) -> u64 {
    stub as usize as u64
}
