//! SYSCALL from compatibility mode, which AMD CPUs send to IA32_CSTAR.

use crate::entry_window;
use crate::frame::EntryKind;
use crate::guard::{guard, stop};
use crate::kernel::{Exit, Kernel, Options, Tracking};
use crate::msr::{Register, SpecCtrl};
use crate::percpu::PerCpuHeader;
use crate::stub::{
    load_kernel_tables, push_registers, push_syscall_image, push_user_stack, restrict_speculation, syscall32_call,
};
use crate::windows::{flags, user_cr3};

/// [`flags::IRQS_ON`] unless the options or the tracking of `K` rule interrupts at SYSCALL out.
const fn interruptible<K: Kernel, O: Options>() -> u32 {
    if O::KPTI || O::VERW || O::IBRS || K::Tracking::ENABLED {
        0
    } else {
        flags::IRQS_ON
    }
}

/// SYSCALL from compatibility mode: builds the whole [`TrapFrame`](crate::frame::TrapFrame) with kind
/// [`EntryKind::Syscall32`] and calls [`Kernel::syscall`].
///
/// A kernel without 32-bit programs installs it all the same: IA32_CSTAR must never point at nothing, since a 64-bit
/// program can jump to compatibility mode by itself wherever a 32-bit code descriptor exists.
///
/// **Reached by**: SYSCALL at CPL 3 in compatibility mode on AMD CPUs, through IA32_CSTAR; Intel CPUs raise #UD.
///
/// **The CPU has** put the return EIP into ECX and EFLAGS into R11, loaded CS and SS from IA32_STAR, and cleared the flags of
/// IA32_FMASK. **It has not** changed RSP or GS, nor kept the caller's CS; upper halves are undefined for the caller, and
/// R8 to R15 hold whatever they held.
///
/// | register | in | out, at the call | clobbered |
/// |---|---|---|---|
/// | RSP | user's | frame on the thread's kernel stack | – |
/// | RCX, R11 | user EIP, user EFLAGS | as they were, or zero with `CLEAR` | – |
/// | RAX | number | number, or zero with `CLEAR` | – |
/// | RDI | user's | address of the frame | – |
/// | others | user's | user's, or zero with `CLEAR` | – |
/// | GS base | user's | kernel's | – |
///
/// **Windows**: as for [`syscall_entry`](crate::stub::syscall_entry). CLI comes first, for a CPU whose IA32_FMASK is that of
/// [`InterruptsOnEntry`](crate::irqs_on::InterruptsOnEntry): an interrupt before it is one in a window.
///
/// # Safety
///
/// As [`syscall_entry`](crate::stub::syscall_entry).
///
/// # Source
///
/// AMD APM vol. 2, *SYSCALL and SYSRET*, *CSTAR*; vol. 3, *SYSCALL*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn syscall_compat_entry<K: Kernel, O: Options>() -> ! {
    core::arch::naked_asm!(
        // GS base is the user's, RSP is the user's. Interrupts may be on: there is one mask for both stubs of SYSCALL.
        "2:",
        ".if {interrupts_off}",
        "cli",
        ".endif",
        "15:",
        "swapgs",
        // GS base is the kernel's.
        "3:",
        "mov gs:[{scratch}], rsp",
        load_kernel_tables!(),
        "14:",
        "mov rsp, gs:[{stack}]",
        "4:",
        // RSP is a kernel stack. EIP and ESP have 32 bits; the rest is whatever the CPU left.
        ".if {upper_halves}",
        "mov ecx, ecx",
        "mov dword ptr gs:[{scratch} + 4], 0",
        ".endif",
        push_user_stack!(),
        push_syscall_image!(),
        push_registers!(),
        restrict_speculation!(),
        "mov rdi, rsp",
        "call {handler}",
        "jmp {leave}",
        stop!(),
        entry_window!("2b", "15b", "{user_both_irqs_on}"),
        entry_window!("15b", "3b", "{user_both}"),
        entry_window!("3b", "14b", "{user_rsp}"),
        entry_window!("14b", "4b", "{kernel_tables}"),
        interrupts_off = const guard!("compat-interrupts-off", true) as usize,
        upper_halves = const guard!("compat-upper-halves", true) as usize,
        scratch = const PerCpuHeader::SCRATCH_RSP,
        stack = const PerCpuHeader::KERNEL_STACK,
        ss = const K::LAYOUT.user_data().bits(),
        // The first selector of SYSRET's block is the 32-bit code segment.
        cs = const K::LAYOUT.sysret_base().bits(),
        kind = const EntryKind::Syscall32.word(0),
        loads_tables = const guard!("syscall-tables", O::KPTI) as usize,
        ibrs = const guard!("restrict-speculation", O::IBRS) as usize,
        kernel_cr3 = const PerCpuHeader::KERNEL_CR3,
        spec_ctrl = const SpecCtrl::NUMBER,
        kernel_spec_ctrl = const PerCpuHeader::KERNEL_SPEC_CTRL,
        clear = const guard!("clear-registers", O::CLEAR) as usize,
        user_both_irqs_on = const flags::USER_GS | flags::USER_RSP | user_cr3::<O>() | interruptible::<K, O>(),
        user_both = const flags::USER_GS | flags::USER_RSP | user_cr3::<O>(),
        user_rsp = const flags::USER_RSP | user_cr3::<O>(),
        kernel_tables = const flags::USER_RSP,
        handler = sym syscall32_call::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}
