//! NMI, #MC, #DB and #DF: events that arrive between any two instructions, with GS and RSP whoever's they are.

use crate::frame::TrapFrame;
use crate::kernel::{Exit, Kernel, Options};
use crate::msr::{GsBase, Register};
use crate::percpu::PerCpuHeader;
use crate::stub::exception::CS;
use crate::stub::{kernel_paranoid, pop_registers, push_registers, user_paranoid};

/// Vector of #DB.
pub(super) const DEBUG: u8 = 1;
/// Vector of the NMI.
pub(super) const NMI: u8 = 2;
/// Vector of #DF.
pub(super) const DOUBLE_FAULT: u8 = 8;
/// Vector of #MC.
pub(super) const MACHINE_CHECK: u8 = 18;

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
/// **Reached by** the slots of vectors 1, 2, 8 and 18.
///
/// **The CPU has** switched to the vector's IST stack, pushed the interrupt frame, cleared IF and TF, and blocked
/// further NMIs if it is one, until the next IRET. **It has not** cleared AC or DF, nor touched GS.
///
/// | register | in | out, at the call from ring 0 | clobbered |
/// |---|---|---|---|
/// | RSP | kind word on the IST stack | frame on the IST stack | – |
/// | RDI | interrupted | address of the frame | – |
/// | RBX | interrupted | whether, or to what, GS base has to go back | – |
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
        "cld",
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
        "mov gs:[{scratch}], rax",
        "mov rax, rsp",
        "mov rsp, gs:[{stack}]",
        // RSP is the thread's kernel stack, RAX points at the kind word on the IST stack.
        "push qword ptr [rax + 48]", // SS
        "push qword ptr [rax + 40]", // RSP
        "push qword ptr [rax + 32]", // RFLAGS
        "push qword ptr [rax + 24]", // CS
        "push qword ptr [rax + 16]", // RIP
        "push qword ptr [rax + 8]",  // error code
        "push qword ptr [rax]",      // kind
        "mov rax, gs:[{scratch}]",
        push_registers!(),
        "mov rdi, rsp",
        "call {user}",
        "jmp {leave}",
        "int3",
        // From ring 0: GS base is anybody's.
        "3:",
        push_registers!(),
        "mov rdi, [rsp + {size}]", // the header's address, above the CPU's frame
        ".if {fsgsbase}",
        "rdgsbase rbx",
        "wrgsbase rdi",
        // GS base is the kernel's; RBX is what it was.
        "lfence",
        ".else",
        "mov ecx, {gs_base}",
        "rdmsr",
        "shl rdx, 32",
        "or rax, rdx",
        "xor ebx, ebx",
        "cmp rax, rdi",
        "je 4f",
        "swapgs",
        "inc ebx",
        "4:",
        // GS base is the kernel's; EBX says whether it was swapped.
        ".if {lfence}",
        "lfence",
        ".endif",
        ".endif",
        "mov rdi, rsp",
        "call {kernel}",
        ".if {fsgsbase}",
        "wrgsbase rbx",
        ".else",
        "test ebx, ebx",
        "jz 5f",
        "swapgs",
        "5:",
        ".endif",
        // GS base is as it was found.
        pop_registers!(),
        "iretq",
        "int3",
        cs = const CS,
        size = const TrapFrame::SIZE,
        scratch = const PerCpuHeader::SCRATCH_RAX,
        stack = const PerCpuHeader::KERNEL_STACK,
        gs_base = const GsBase::NUMBER,
        smap = const O::SMAP as usize,
        fsgsbase = const O::FSGSBASE as usize,
        lfence = const O::LFENCE as usize,
        clear = const O::CLEAR as usize,
        user = sym user_paranoid::<K>,
        kernel = sym kernel_paranoid::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}
