//! SYSCALL from 64-bit code, full frame.

use crate::entry_window;
use crate::frame::{EntryKind, TrapFrame};
use crate::guard::{guard, stop};
use crate::kernel::{Exit, Kernel, Options};
use crate::msr::{Register, SpecCtrl};
use crate::percpu::PerCpuHeader;
use crate::stub::{
    load_kernel_tables, push_registers, push_syscall_image, push_user_stack, restrict_speculation, system_call,
};
use crate::windows::{flags, user_cr3};

/// SYSCALL from 64-bit code: builds the whole [`TrapFrame`] and calls [`Kernel::syscall`].
///
/// **Reached by**: SYSCALL at CPL 3 in 64-bit mode, through IA32_LSTAR.
///
/// **The CPU has** loaded RIP from LSTAR, CS and SS from IA32_STAR, put the return RIP into RCX and RFLAGS into R11,
/// and cleared in RFLAGS the bits of IA32_FMASK. **It has not** changed RSP, GS, CR3 or any other register.
///
/// | register | in | out, at the call | clobbered |
/// |---|---|---|---|
/// | RSP | user's | frame on the thread's kernel stack | – |
/// | RCX, R11 | user RIP, user RFLAGS | as they were, or zero with `CLEAR` | – |
/// | RAX | number | number, or zero with `CLEAR` | – |
/// | RDI | first argument | address of the frame | – |
/// | others | user's | user's, or zero with `CLEAR` | – |
/// | GS base | user's | kernel's | – |
///
/// **Windows**: user GS and user RSP at the first instruction; user RSP for the next two; from the load of RSP on, a
/// kernel stack. NMI, #MC and #DB in the windows have stacks of their own and decide about GS by comparison.
///
/// # Safety
///
/// 1. It is reached by SYSCALL alone, on a CPU that was set up as [`Kernel`] demands, with an IA32_FMASK that holds at
///    least [`FlagMask::REQUIRED`](crate::rflags::FlagMask).
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSCALL—Fast System Call*; AMD APM vol. 3, *SYSCALL*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn syscall_entry<K: Kernel, O: Options>() -> ! {
    core::arch::naked_asm!(
        // GS base is the user's, RSP is the user's.
        "2:",
        "swapgs",
        // GS base is the kernel's.
        "3:",
        "mov gs:[{scratch}], rsp",
        load_kernel_tables!(),
        "14:",
        "mov rsp, gs:[{stack}]",
        "4:",
        // RSP is a kernel stack; the words of an interrupt frame follow, as if an interrupt had pushed them.
        push_user_stack!(),
        push_syscall_image!(),
        push_registers!(),
        restrict_speculation!(),
        "mov rdi, rsp",
        "call {handler}",
        // EAX is the way to leave by, RSP is the frame.
        "jmp {leave}",
        stop!(),
        entry_window!("2b", "3b", "{user_both}"),
        entry_window!("3b", "14b", "{user_rsp}"),
        entry_window!("14b", "4b", "{kernel_tables}"),
        user_both = const flags::USER_GS | flags::USER_RSP | user_cr3::<O>(),
        user_rsp = const flags::USER_RSP | user_cr3::<O>(),
        kernel_tables = const flags::USER_RSP,
        scratch = const PerCpuHeader::SCRATCH_RSP,
        stack = const PerCpuHeader::KERNEL_STACK,
        ss = const K::LAYOUT.user_data().bits(),
        cs = const K::LAYOUT.user_code64().bits(),
        kind = const EntryKind::Syscall64.word(0),
        loads_tables = const guard!("syscall-tables", O::KPTI) as usize,
        ibrs = const guard!("restrict-speculation", O::IBRS) as usize,
        kernel_cr3 = const PerCpuHeader::KERNEL_CR3,
        spec_ctrl = const SpecCtrl::NUMBER,
        kernel_spec_ctrl = const PerCpuHeader::KERNEL_SPEC_CTRL,
        clear = const guard!("clear-registers", O::CLEAR) as usize,
        handler = sym system_call::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}

const _: () = assert!(
    TrapFrame::SIZE.is_multiple_of(16),
    "the stack is 16-byte aligned at the call"
);
