//! What follows a vector's slot: exceptions, maskable interrupts and INT 0x80.

use crate::frame::TrapFrame;
use crate::kernel::{Exit, Kernel, Options};
use crate::stub::{
    kernel_exception, kernel_interrupt, pop_registers, push_registers, system_call, user_exception, user_interrupt,
};

/// Offset of CS from RSP when a slot has pushed the kind word.
pub(super) const CS: usize = TrapFrame::CS - TrapFrame::KIND;

/// After the Rust half of an exception in ring 0: RAX is null, or the frame to leave with instead.
macro_rules! go_on_with_user_event {
    () => {
        "test rax, rax
         jz 4f
         mov rsp, rax
         mov rdi, rax
         call {user}
         jmp {leave}
         int3
         4:"
    };
}

/// After the Rust half of an interrupt in ring 0: it goes back, always.
macro_rules! go_back {
    () => {
        ""
    };
}

macro_rules! common {
    ($(#[$doc:meta])* $name:ident, $user:ident, $kernel:ident, $then:ident) => {
        $(#[$doc])*
        ///
        /// **The CPU has** switched to the stack of TSS.RSP0 if it came from user mode, pushed SS, RSP, RFLAGS, CS, RIP
        /// and perhaps an error code, and cleared IF and TF. **It has not** cleared AC or DF, nor touched GS.
        ///
        /// | register | in | out, at the call | clobbered |
        /// |---|---|---|---|
        /// | RSP | kind word | frame | – |
        /// | RDI | interrupted | address of the frame | – |
        /// | others | interrupted | interrupted, or zero with `CLEAR` | – |
        /// | GS base | of the interrupted mode | kernel's | – |
        ///
        /// **Windows**: user GS until SWAPGS, on a kernel stack throughout.
        ///
        /// # Safety
        ///
        /// 1. Jumped to from a vector's slot.
        ///
        /// # Source
        ///
        /// Intel SDM vol. 3A, *64-Bit Mode Stack Frame*, *Stack Switching in IA-32e Mode*.
        #[unsafe(naked)]
        #[unsafe(link_section = ".entry.text")]
        pub(super) unsafe extern "sysv64" fn $name<K: Kernel, O: Options>() -> ! {
            core::arch::naked_asm!(
                "cld",
                ".if {smap}",
                "clac",
                ".endif",
                // Why here and not in Rust: no Rust may run before GS is right.
                "test byte ptr [rsp + {cs}], 3",
                "jz 3f",
                "swapgs",
                ".if {lfence}",
                "lfence",
                ".endif",
                // GS base is the kernel's, RSP is the thread's kernel stack.
                push_registers!(),
                "mov rdi, rsp",
                "call {user}",
                "jmp {leave}",
                "int3",
                // From the kernel: GS base was the kernel's all along, or IRETQ to user mode faulted.
                "3:",
                ".if {lfence}",
                "lfence",
                ".endif",
                push_registers!(),
                "mov rdi, rsp",
                "call {kernel}",
                $then!(),
                pop_registers!(),
                "iretq",
                "int3",
                cs = const CS,
                smap = const O::SMAP as usize,
                lfence = const O::LFENCE as usize,
                clear = const O::CLEAR as usize,
                user = sym $user::<K>,
                kernel = sym $kernel::<K>,
                leave = sym <K::Exit as Exit>::leave::<O>,
            )
        }
    };
}

common! {
    /// Exceptions. **Reached by** the slots of vectors 0 to 31, the paranoid ones excepted.
    exception_common, user_exception, kernel_exception, go_on_with_user_event
}

common! {
    /// Maskable interrupts. **Reached by** the slots of vectors 32 to 255, the system-call vector excepted.
    interrupt_common, user_interrupt, kernel_interrupt, go_back
}

common! {
    /// INT 0x80. **Reached by** its slot, which pushed the original RAX where an exception has its error code. A frame
    /// whose CS is the kernel's can only come from a device or another CPU that was given the vector; it is
    /// treated as the interrupt it is, and never as a system call.
    system_call_common, system_call, kernel_interrupt, go_back
}
