//! NMI, #MC, #DB and #DF: events that arrive between any two instructions, with GS and RSP whoever's they are.

use crate::frame::TrapFrame;
use crate::guard::{guard, stop};
use crate::kernel::{Exit, Kernel, Options};
use crate::msr::{GsBase, Register, SpecCtrl};
use crate::percpu::{IST_DEPTH, PerCpuHeader, SplitTables};
use crate::stub::exception::{CS, user_cr3_bits};
use crate::stub::{
    kernel_paranoid, move_to_thread_stack, nested_paranoid, pop_registers, push_registers, restore_rax,
    restrict_speculation, user_paranoid,
};

/// Offset of the IST stack's depth word from the frame.
const DEPTH: usize = TrapFrame::SIZE + IST_DEPTH;

/// The paranoid vectors.
///
/// From user mode it is an exception like any other, once the frame is moved from the IST stack to the thread's: then
/// the handler may be rescheduled and the IST stack is free again.
///
/// From ring 0 nothing may be assumed. The interrupted code may be a stub before its SWAPGS or an exit after it, so the
/// saved CS says nothing about GS. The header's address is read from above the frame
/// ([`IstStack`](crate::percpu::IstStack)) and compared with GS base. Equal: GS works, whoever set it, and nothing is
/// done. Different: GS base is the user's; with `FSGSBASE` it is kept in RBX, replaced, and put back exactly; without,
/// the kernel's base must be in IA32_KERNEL_GS_BASE, and SWAPGS fetches it and brings it back. The handler runs on the
/// IST stack, with no pending work done and no way to SYSRET: the return is IRETQ, here.
///
/// An event that finds the stack in use has overwritten the frame of the one that uses it, and goes to
/// [`Kernel::nested_paranoid`], from which nothing returns. The stack counts as in use until the instruction that gives the
/// frame up.
///
/// **Reached by** the slots of the vectors in [`PARANOID_MASK`](crate::vector::PARANOID_MASK).
///
/// **The CPU has** switched to the vector's IST stack, pushed the interrupt frame, cleared IF and TF, and blocked
/// further NMIs if it is one, until the next IRET. **It has not** cleared AC or DF, nor touched GS.
///
/// | register | in | out, at the call from ring 0 | clobbered |
/// |---|---|---|---|
/// | RSP | kind word on the IST stack | frame on the IST stack | – |
/// | RDI | interrupted | address of the frame | – |
/// | RBX | interrupted | whether, or to what, GS base has to go back | – |
/// | R12 | interrupted | 0 | – |
/// | R13 | interrupted | with `IBRS`, the `IA32_SPEC_CTRL` to go back to | – |
/// | R14 | interrupted | with `KPTI`, the CR3 to go back to | – |
/// | GS base | anybody's | kernel's | – |
///
/// **Windows**: user GS until the SWAPGS or WRGSBASE; the interrupted code's GS again after the second.
///
/// # Safety
///
/// 1. Jumped to from a vector's slot, on an IST stack that was bound to this CPU's header.
///
/// # Source
///
/// Intel SDM vol. 3A, *Interrupt Stack Table*, *Handling Multiple NMIs*; AMD APM vol. 2, *NMI—Non-Maskable-Interrupt*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub(super) unsafe extern "sysv64" fn paranoid_common<K: Kernel, O: Options>() -> ! {
    core::arch::naked_asm!(
        ".if {direction}",
        "cld",
        ".endif",
        ".if {smap}",
        "clac",
        ".endif",
        // Why here and not in Rust: no Rust may run before GS is right.
        "test byte ptr [rsp + {cs}], 3",
        "jz 3f",
        // From user mode: GS base is the user's for certain, and the scratch word is free.
        "swapgs",
        ".if {lfence}",
        "lfence",
        ".endif",
        // GS base is the kernel's. The IST stack is in use until the frame has left it.
        "mov dword ptr [rsp + {depth_below}], 1",
        move_to_thread_stack!(),
        "mov dword ptr [rax + {depth_below}], 0",
        restore_rax!(),
        // RSP is the thread's kernel stack.
        push_registers!(),
        restrict_speculation!(),
        "mov rdi, rsp",
        "call {user}",
        "jmp {leave}",
        stop!(),
        // From ring 0: GS base is anybody's, and so is CR3.
        "3:",
        push_registers!(),
        // R12D becomes 1 if the stack was in use: it was not marked free, or that was the last thing done, up to the
        // IRETQ with the frame that is gone now. RIP is compared because RSP alone could be a user's, in a window.
        "mov r12d, [rsp + {depth}]",
        ".if {marks_use}",
        "mov dword ptr [rsp + {depth}], 1",
        ".endif",
        "lea rcx, [rsp + {last_rsp}]",
        "cmp [rsp + {rsp}], rcx",
        "jne 9f",
        ".if {compares_rip}",
        "mov rcx, [rsp + {rip}]",
        "lea rdx, [rip + 7f]",
        "cmp rcx, rdx",
        "je 8f",
        ".if {verw}",
        "lea rdx, [rip + 12f]",
        "cmp rcx, rdx",
        "je 8f",
        ".endif",
        "jmp 9f",
        ".endif",
        "8:",
        ".if {knows_the_end}",
        "mov r12d, 1",
        ".endif",
        "9:",
        ".if {kpti}",
        // R14 is the CR3 that was found.
        "mov r14, cr3",
        "test r14d, {user_root}",
        "jz 6f",
        "mov rax, r14",
        "and rax, {kernel_bits}",
        ".if {pcid}",
        "bts rax, 63",
        ".endif",
        ".if {finds_tables}",
        "mov cr3, rax",
        ".endif",
        "6:",
        // The tables are the kernel's.
        ".endif",
        "mov rdi, [rsp + {size}]", // the header's address, above the CPU's frame
        ".if {fsgsbase}",
        "rdgsbase rbx",
        ".if {finds_gs}",
        "wrgsbase rdi",
        ".endif",
        // GS base is the kernel's; RBX is what it was.
        "lfence",
        ".else",
        "mov ecx, {gs_base}",
        "rdmsr",
        "shl rdx, 32",
        "or rax, rdx",
        "xor ebx, ebx",
        "cmp rax, rdi",
        ".if {finds_gs}",
        "je 4f",
        "swapgs",
        "inc ebx",
        ".endif",
        "4:",
        // GS base is the kernel's; EBX says whether it was swapped.
        ".if {lfence}",
        "lfence",
        ".endif",
        ".endif",
        ".if {ibrs}",
        // R13D is the IA32_SPEC_CTRL that was found.
        "mov ecx, {spec_ctrl}",
        "rdmsr",
        "mov r13d, eax",
        ".endif",
        restrict_speculation!(),
        "mov rdi, rsp",
        "test r12d, r12d",
        "jnz 15f",
        "call {kernel}",
        ".if {ibrs}",
        "mov ecx, {spec_ctrl}",
        "mov eax, r13d",
        "xor edx, edx",
        "wrmsr",
        ".endif",
        ".if {puts_gs_back} == 0",
        ".elseif {fsgsbase}",
        "wrgsbase rbx",
        ".else",
        "test ebx, ebx",
        "jz 5f",
        "swapgs",
        "5:",
        ".endif",
        // GS base is as it was found.
        ".if {kpti}",
        "test r14d, {user_root}",
        "jz 6f",
        ".if {pcid}",
        "bts r14, 63",
        ".endif",
        ".if {puts_tables_back}",
        "mov cr3, r14",
        ".endif",
        "6:",
        // And so is CR3.
        ".endif",
        pop_registers!(),
        "mov dword ptr [rsp + {depth_above}], 0",
        ".if {verw}",
        "12:",
        "verw word ptr [rip + 13f]",
        ".endif",
        "7:",
        "iretq",
        stop!(),
        // There is nothing to return to.
        "15:",
        "call {nested}",
        stop!(),
        ".if {verw}",
        ".balign 2",
        "13:",
        ".word {verw_selector}",
        ".endif",
        cs = const CS,
        size = const TrapFrame::SIZE,
        rip = const TrapFrame::RIP,
        rsp = const TrapFrame::RSP,
        // From the kind word, the frame's first word, and the RIP word.
        depth_below = const DEPTH - TrapFrame::KIND,
        depth = const DEPTH,
        depth_above = const DEPTH - TrapFrame::RIP,
        last_rsp = const TrapFrame::RIP,
        scratch_rax = const PerCpuHeader::SCRATCH_RAX,
        stack = const PerCpuHeader::KERNEL_STACK,
        kernel_cr3 = const PerCpuHeader::KERNEL_CR3,
        user_root = const SplitTables::USER_ROOT,
        kernel_bits = const (!user_cr3_bits::<O>()).cast_signed(),
        gs_base = const GsBase::NUMBER,
        spec_ctrl = const SpecCtrl::NUMBER,
        kernel_spec_ctrl = const PerCpuHeader::KERNEL_SPEC_CTRL,
        verw_selector = const K::LAYOUT.kernel_data().bits(),
        direction = const guard!("clear-direction", true) as usize,
        marks_use = const guard!("paranoid-stack-in-use", true) as usize,
        compares_rip = const guard!("paranoid-rip", true) as usize,
        knows_the_end = const guard!("paranoid-last-instruction", true) as usize,
        finds_gs = const guard!("paranoid-gs", true) as usize,
        puts_gs_back = const guard!("paranoid-gs-back", true) as usize,
        finds_tables = const guard!("paranoid-tables", true) as usize,
        puts_tables_back = const guard!("paranoid-tables-back", true) as usize,
        smap = const guard!("clear-alignment-check", O::SMAP) as usize,
        fsgsbase = const O::FSGSBASE as usize,
        lfence = const guard!("fence-swapgs", O::LFENCE) as usize,
        clear = const guard!("clear-registers", O::CLEAR) as usize,
        kpti = const O::KPTI as usize,
        loads_tables = const guard!("event-tables", O::KPTI) as usize,
        pcid = const !guard!("no-flush-without-pcid", !O::PCID) as usize,
        verw = const guard!("clear-buffers", O::VERW) as usize,
        ibrs = const guard!("restrict-speculation", O::IBRS) as usize,
        user = sym user_paranoid::<K>,
        kernel = sym kernel_paranoid::<K>,
        nested = sym nested_paranoid::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}
