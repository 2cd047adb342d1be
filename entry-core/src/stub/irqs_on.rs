//! SYSCALL with interrupts left on, and the interrupts that suit it.

use crate::frame::{EntryKind, TrapFrame};
use crate::guard::{guard, stop};
use crate::irq::{IrqOff, IrqOn};
use crate::kernel::{Exit, Kernel, Leave, Options, Tracking, is_work_pending};
use crate::percpu::PerCpuHeader;
use crate::stub::exception::CS;
use crate::stub::lean::{FIRST_NON_USER_HIGH, NOT_LEAN};
use crate::stub::{
    address, fence_swapgs, finish_slow, kernel_interrupt, move_to_thread_stack, push_registers, push_syscall_image,
    push_user_stack, restore_rax, soft_system_call, user_interrupt, vector_stubs_irqs_on,
};
use crate::windows::{self, flags};
use crate::{entry_restart_window, entry_window};

/// A kernel whose system calls begin and end with interrupts on: see [`irqs_on`](crate::irqs_on) for what that demands.
pub trait IrqsOnKernel: Kernel {
    /// A system call by SYSCALL. No claim of interrupts being off is made at any time; the frame is the caller's own.
    fn syscall_irqs_on(frame: &mut TrapFrame, irq: IrqOn) -> IrqOn;

    /// A maskable interrupt in a window of [`syscall_entry_irqs_on`]: GS base is the kernel's, RSP was not. It may set the
    /// work flag, which is seen before user mode is; the borrowed proof lets it neither turn interrupts on nor
    /// schedule, both of which would lose what was interrupted.
    fn window_interrupt(frame: &mut TrapFrame, irq: &IrqOff);
}

/// What `KPTI` is to the stubs here. Nothing else that would lengthen the windows exists either.
const fn no_kpti<O: Options>() -> usize {
    assert!(!O::KPTI, "interrupts on at SYSCALL: the windows don't say whose CR3 is");
    assert!(
        !O::VERW && !O::IBRS,
        "interrupts on at SYSCALL: there is no place for mitigations at the border"
    );
    0
}

/// SYSCALL from 64-bit code with IF as the user had it: builds the whole [`TrapFrame`], calls
/// [`IrqsOnKernel::syscall_irqs_on`], and leaves by SYSRET, without an instruction that touches IF.
///
/// **Reached by**: SYSCALL at CPL 3 in 64-bit mode, through IA32_LSTAR.
///
/// **The CPU has, has not**: as for [`syscall_entry`](crate::stub::syscall_entry), except that IF is still set.
///
/// Registers: as for [`syscall_entry`](crate::stub::syscall_entry).
///
/// **Windows**, in which an interrupt is handled on its own stack and returns:
///
/// | from, to | GS base | RSP | after an interrupt that leaves work |
/// |---|---|---|---|
/// | first instruction, SWAPGS | user's | user's | goes on: the exit sees it |
/// | SWAPGS, push of the user's RSP | kernel's | user's, or at words that aren't all there | goes on: the exit sees it |
/// | test for work, SWAPGS | kernel's | in the frame, then the user's | back to the test, RSP at the frame |
/// | SYSRET | user's | user's | back to the test, RSP at the frame |
///
/// Going back is right because nothing overwrites the frame: interrupts in a window don't use the thread's stack. Between
/// the windows RSP is a kernel stack and interrupts move to it.
///
/// What is tested on the way out are the conditions of [`syscall_entry_lean`](crate::stub::syscall_entry_lean), and that the frame is
/// what SYSCALL left. Everything else goes by CLI, work and the decision in Rust.
///
/// A kernel that nobody is told of:
///
/// ```
/// # mod kernel { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/tracked.rs")); }
/// # use kernel::{MyKernel, Told};
/// use entry_core::kernel::{Baseline, NoTracking};
/// use entry_core::stub::syscall_entry_irqs_on;
/// # fn main() {
/// let stub = entry_core::stub::address(syscall_entry_irqs_on::<MyKernel<NoTracking>, Baseline>);
/// # assert_ne!(stub, 0);
/// # }
/// ```
///
/// One that is tracked does not compile:
///
/// ```compile_fail,E0080
/// # mod kernel { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/tracked.rs")); }
/// # use kernel::{MyKernel, Told};
/// use entry_core::kernel::Baseline;
/// use entry_core::stub::syscall_entry_irqs_on;
/// # fn main() {
/// let stub = entry_core::stub::address(syscall_entry_irqs_on::<MyKernel<Told>, Baseline>);
/// # assert_ne!(stub, 0);
/// # }
/// ```
///
/// # Safety
///
/// 1. As [`syscall_entry`](crate::stub::syscall_entry), with the mask of
///    [`InterruptsOnEntry`](crate::irqs_on::InterruptsOnEntry) and its conditions.
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSCALL—Fast System Call*, *SYSRET—Return From Fast System Call*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn syscall_entry_irqs_on<K: IrqsOnKernel, O: Options>() -> ! {
    core::arch::naked_asm!(
        // GS base is the user's, RSP is the user's.
        "2:",
        "swapgs",
        // GS base is the kernel's. The scratch word is the CPU's, so the thread has to stay on it.
        "3:",
        "mov gs:[{scratch}], rsp",
        "mov rsp, gs:[{stack}]",
        push_user_stack!(),
        // RSP is the thread's kernel stack, and nothing is left in the CPU's words.
        "4:",
        push_syscall_image!(),
        push_registers!(),
        "mov rdi, rsp",
        "call {handler}",
        // RSP is the frame.
        "5:",
        // Why here and not in Rust: between the test for work and SYSRET only this stub knows what an interrupt may do.
        ".if {tests_work}",
        "cmp dword ptr gs:[{work}], 0",
        "jne 8f",
        ".endif",
        ".if {tests_kind}",
        "cmp qword ptr [rsp + {kind_word}], {kind}",
        "jne 8f",
        ".endif",
        "mov rcx, [rsp + {frame_rip}]",
        ".if {tests_rip}",
        "cmp dword ptr [rsp + {frame_rip} + 4], {limit}",
        "jae 8f",
        ".endif",
        "mov r11, [rsp + {frame_rflags}]",
        ".if {tests_flags}",
        "test r11d, {not_plain}",
        "jnz 8f",
        ".endif",
        crate::pop_frame_registers!(),
        "mov rsp, [rsp + {rsp}]",
        // RSP is the user's.
        "swapgs",
        // GS base is the user's.
        "6:",
        "sysretq",
        "7:",
        stop!(),
        // The way of all other frames, with interrupts off.
        "8:",
        "cli",
        "9:",
        "mov rdi, rsp",
        "call {slow}",
        "jmp {leave}",
        stop!(),
        entry_window!("2b", "3b", "{user_both}"),
        entry_window!("3b", "4b", "{user_rsp}"),
        entry_restart_window!("5b", "6b", "{user_rsp}", "5b"),
        entry_restart_window!("6b", "7b", "{user_both}", "5b"),
        user_both = const flags::USER_GS | flags::USER_RSP | flags::IRQS_ON,
        user_rsp = const flags::USER_RSP | flags::IRQS_ON,
        tests_work = const guard!("irqs-on-work", true) as usize,
        tests_kind = const guard!("irqs-on-kind", true) as usize,
        tests_rip = const guard!("irqs-on-rip", true) as usize,
        tests_flags = const guard!("irqs-on-flags", true) as usize,
        scratch = const PerCpuHeader::SCRATCH_RSP,
        stack = const PerCpuHeader::KERNEL_STACK,
        work = const PerCpuHeader::WORK,
        ss = const K::LAYOUT.user_data().bits(),
        cs = const K::LAYOUT.user_code64().bits(),
        kind = const EntryKind::Syscall64.word(0),
        kind_word = const TrapFrame::KIND,
        frame_rip = const TrapFrame::RIP,
        frame_rflags = const TrapFrame::RFLAGS,
        rsp = const TrapFrame::RSP - TrapFrame::POPPED,
        limit = const FIRST_NON_USER_HIGH,
        not_plain = const NOT_LEAN,
        clear = const guard!("clear-registers", O::CLEAR) as usize + no_kpti::<O>(),
        handler = sym system_call_irqs_on::<K>,
        slow = sym finish_with_interrupts_off::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}

/// Rust half of a system call with interrupts on.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an entry from user mode, and nothing else refers to it.
/// 2. GS base is the kernel's, and RIP in no window.
unsafe extern "sysv64" fn system_call_irqs_on<K: IrqsOnKernel>(frame: *mut TrapFrame) {
    const { assert!(!K::Tracking::ENABLED, "context tracking is told with interrupts off") };
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: condition 2; no proof was made since the entry.
    let irq = unsafe { IrqOn::assume() };
    let _on = K::syscall_irqs_on(frame, irq);
}

/// Rust half of the slow way out.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an entry from user mode, and nothing else refers to it.
/// 2. Interrupts are off, GS base is the kernel's.
unsafe extern "sysv64" fn finish_with_interrupts_off<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    finish_slow::<K>(frame, irq)
}

/// Rust half of an interrupt in ring 0, on the interrupts' own stack. Returns null to go back to what was interrupted, or
/// the frame's new place on the stack that was in use, from which [`kernel_interrupt`] goes on.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, and nothing else refers to it.
/// 2. Interrupts are off, and were on at the frame's RIP, of which the windows therefore say whose GS base is.
unsafe extern "sysv64" fn interrupt_on_own_stack<K: IrqsOnKernel, O: Options>(frame: *mut TrapFrame) -> *mut TrapFrame {
    // SAFETY: condition 1.
    let words = unsafe { &mut *frame };
    // Before anything that needs GS: the records are reached by their address alone.
    let window = windows::find_irqs_on(words.rip()).filter(|_| guard!("irqs-on-window", true));
    let has_user_gs = window.is_some_and(|window| guard!("irqs-on-gs", window.flags() & flags::USER_GS != 0));
    if has_user_gs {
        swap_gs();
    }
    fence_swapgs::<O>();
    let Some(window) = window else {
        #[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
        let below = frame.with_addr((words.rsp() as usize - TrapFrame::SIZE) & !15);
        // SAFETY: RIP is in no window, so RSP was that of a kernel stack; what lies below it is free, for the
        // kernel has no red zone (condition 4 of `Kernel`). The stack in use is another.
        unsafe { below.copy_from_nonoverlapping(frame, 1) };
        return below;
    };
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    K::window_interrupt(words, &irq);
    match window.restart() {
        Some(restart) if guard!("irqs-on-roll-back", is_work_pending()) => {
            // SAFETY: GS base is the kernel's, either all along or since it was swapped.
            let header = unsafe { PerCpuHeader::current(&irq) };
            words.set_rip(restart);
            words.set_rsp(header.kernel_stack() - TrapFrame::SIZE as u64);
        }
        _ if has_user_gs => swap_gs(),
        _ => {}
    }
    core::ptr::null_mut()
}

/// SWAPGS.
#[inline(always)]
fn swap_gs() {
    // SAFETY: the one caller knows from the window whose GS base it is, and uses the kernel's alone.
    unsafe { core::arch::asm!("swapgs", options(nostack, preserves_flags)) };
}

macro_rules! ist_common {
    ($(#[$doc:meta])* $name:ident, $user:ident) => {
        $(#[$doc])*
        ///
        /// **The CPU has** switched to the interrupts' stack, pushed SS, RSP, RFLAGS, CS and RIP, and cleared IF and TF. **It
        /// has not** cleared AC or DF, nor touched GS.
        ///
        /// | register | in | out, at the call | clobbered |
        /// |---|---|---|---|
        /// | RSP | kind word, on the interrupts' stack | frame, on the thread's stack; in a window, on the interrupts' | – |
        /// | RDI | interrupted | address of the frame | – |
        /// | others | interrupted | interrupted, or zero with `CLEAR` | – |
        /// | GS base | of the interrupted mode; in the kernel, RIP tells | kernel's | – |
        ///
        /// **Windows**: user GS until SWAPGS, or until the Rust half has looked RIP up; on a stack of the kernel's throughout.
        ///
        /// # Safety
        ///
        /// 1. Jumped to from a vector's slot, on the stack that [`InterruptsOnEntry`](crate::irqs_on::InterruptsOnEntry) demands.
        ///
        /// # Source
        ///
        /// Intel SDM vol. 3A, *Interrupt Stack Table*.
        #[unsafe(naked)]
        #[unsafe(link_section = ".entry.text")]
        pub(super) unsafe extern "sysv64" fn $name<K: IrqsOnKernel, O: Options>() -> ! {
            core::arch::naked_asm!(
                ".if {direction}",
                "cld",
                ".endif",
                ".if {smap}",
                "clac",
                ".endif",
                // Why here and not in Rust: from user mode no Rust may run before GS is right.
                "test byte ptr [rsp + {cs}], 3",
                "jz 3f",
                "swapgs",
                ".if {lfence}",
                "lfence",
                ".endif",
                // GS base is the kernel's. The next interrupt must find this stack free.
                move_to_thread_stack!(),
                restore_rax!(),
                // RSP is the thread's kernel stack.
                push_registers!(),
                "mov rdi, rsp",
                "call {user}",
                "jmp {leave}",
                stop!(),
                // The Rust half fences once it has looked RIP up, before it reads anything through GS.
                "3:",
                push_registers!(),
                "mov rdi, rsp",
                "call {kernel}",
                "test rax, rax",
                "jz 4f",
                // RSP is the stack that was interrupted, and this one free.
                "mov rsp, rax",
                "mov rdi, rax",
                "call {moved}",
                "4:",
                crate::stub::pop_registers!(),
                "iretq",
                stop!(),
                cs = const CS,
                direction = const guard!("clear-direction", true) as usize,
                smap = const guard!("clear-alignment-check", O::SMAP) as usize,
                lfence = const guard!("fence-swapgs", O::LFENCE) as usize,
                clear = const guard!("clear-registers", O::CLEAR) as usize,
                loads_tables = const no_kpti::<O>(),
                kernel_cr3 = const PerCpuHeader::KERNEL_CR3,
                scratch_rax = const PerCpuHeader::SCRATCH_RAX,
                stack = const PerCpuHeader::KERNEL_STACK,
                user = sym $user::<K>,
                kernel = sym interrupt_on_own_stack::<K, O>,
                moved = sym kernel_interrupt::<K>,
                leave = sym <K::Exit as Exit>::leave::<O>,
            )
        }
    };
}

ist_common! {
    /// Maskable interrupts of a CPU with interrupts on at SYSCALL. **Reached by** the slots of vectors 32 to 255, the
    /// system-call vector excepted.
    interrupt_ist_common, user_interrupt
}

ist_common! {
    /// INT 0x80 of a CPU with interrupts on at SYSCALL. **Reached by** its slot, which pushed the original RAX. From ring 0 it
    /// is an interrupt like the others.
    system_call_ist_common, soft_system_call
}

/// The addresses that a CPU with interrupts on at SYSCALL is set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqsOnStubs {
    /// For IA32_LSTAR.
    pub syscall: u64,
    /// The first of 256 slots, for the IDT.
    pub vectors: u64,
}

impl IrqsOnStubs {
    /// The stubs of `K` for options `O`.
    #[must_use]
    pub fn of<K: IrqsOnKernel, O: Options>() -> Self {
        Self {
            syscall: address(syscall_entry_irqs_on::<K, O>),
            vectors: address(vector_stubs_irqs_on::<K, O>),
        }
    }
}
