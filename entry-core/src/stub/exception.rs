//! What follows a vector's slot: exceptions, maskable interrupts and INT 0x80.

use crate::frame::TrapFrame;
use crate::guard::{guard, stop};
use crate::kernel::{Exit, Kernel, Options};
use crate::msr::{Register, SpecCtrl};
use crate::percpu::{PerCpuHeader, SplitTables};
#[cfg(not(ablate = "system-call-of-a-device"))]
use crate::stub::kernel_interrupt as interrupt_on_the_system_calls_vector;
#[cfg(ablate = "system-call-of-a-device")]
use crate::stub::soft_system_call as interrupt_on_the_system_calls_vector;
use crate::stub::{
    kernel_exception, kernel_interrupt, move_to_thread_stack, pop_registers, push_registers, restore_rax,
    restrict_speculation, soft_system_call, user_exception, user_interrupt, user_page_fault,
};

/// Offset of CS from RSP when a slot has pushed the kind word.
pub(super) const CS: usize = TrapFrame::CS - TrapFrame::KIND;

/// Bits of CR3 that the user's tables have and the kernel's don't.
pub(super) const fn user_cr3_bits<O: Options>() -> u64 {
    if guard!("ring-0-identifier", O::PCID) {
        SplitTables::USER_ROOT | SplitTables::USER_PCID
    } else {
        SplitTables::USER_ROOT
    }
}

/// Before the Rust half of an event in ring 0, with `KPTI`: an exception may be that of the exit's IRETQ, with the user's
/// tables and GS base and on the entry stack. Whose tables they are, CR3 itself says. They are not put back: the event is
/// the user's then, and never goes back to that IRETQ.
macro_rules! find_kernel_tables {
    () => {
        ".if {finds_tables}
         mov rax, cr3
         test eax, {user_root}
         jz 6f
         and rax, {kernel_bits}
         .if {pcid}
         bts rax, 63
         .endif
         mov cr3, rax
         6:
         .endif"
    };
}

/// After the Rust half of an exception in ring 0: RAX is null, or the frame to leave with instead.
macro_rules! go_on_with_user_event {
    () => {
        concat!(
            "test rax, rax
             jz 4f
             mov rsp, rax\n",
            restrict_speculation!(),
            "\nmov rdi, rsp
             call {user}
             jmp {leave}\n",
            stop!(),
            "\n4:"
        )
    };
}

/// After the Rust half of an interrupt in ring 0: it goes back, always.
macro_rules! go_back {
    () => {
        ""
    };
}

/// Whether the stub's arm of ring 0 has an LFENCE: the Rust half has none.
macro_rules! stub {
    ($options:ident) => {
        guard!("fence-swapgs", $options::LFENCE)
    };
}

/// The Rust half has it.
macro_rules! rust {
    ($options:ident) => {
        false
    };
}

macro_rules! common {
    ($(#[$doc:meta])* $name:ident, $user:ident, $kernel:ident<$($parameter:ident),*>, $then:ident, fence in $fence:ident) => {
        $(#[$doc])*
        ///
        /// With `KPTI` the stack of TSS.RSP0 is the CPU's entry stack, and the frame is moved to the thread's once the kernel's
        /// tables are loaded.
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
        /// **Windows**: user GS until SWAPGS, on a kernel stack throughout; with `KPTI` the user's tables until CR3 is loaded,
        /// and the entry stack until the frame is moved.
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
                ".if {direction}",
                "cld",
                ".endif",
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
                // GS base is the kernel's.
                ".if {kpti}",
                move_to_thread_stack!(),
                restore_rax!(),
                ".endif",
                // RSP is the thread's kernel stack.
                push_registers!(),
                restrict_speculation!(),
                "mov rdi, rsp",
                "call {user}",
                // Why here and not in Rust: it has decided. IRET is positive.
                "test eax, eax",
                "jg {leave_by_iret}",
                "jmp {leave}",
                stop!(),
                // From the kernel: GS base was the kernel's all along, or IRETQ to user mode faulted.
                "3:",
                // Where the Rust half looks RIP up, it fences after that, before it reads anything through GS.
                ".if {kernel_lfence}",
                "lfence",
                ".endif",
                push_registers!(),
                find_kernel_tables!(),
                "mov rdi, rsp",
                "call {kernel}",
                $then!(),
                pop_registers!(),
                "iretq",
                stop!(),
                cs = const CS,
                direction = const guard!("clear-direction", true) as usize,
                smap = const guard!("clear-alignment-check", O::SMAP) as usize,
                lfence = const guard!("fence-swapgs", O::LFENCE) as usize,
                kernel_lfence = const $fence!(O) as usize,
                clear = const guard!("clear-registers", O::CLEAR) as usize,
                kpti = const O::KPTI as usize,
                loads_tables = const guard!("event-tables", true) as usize,
                ibrs = const guard!("restrict-speculation", O::IBRS) as usize,
                scratch_rax = const PerCpuHeader::SCRATCH_RAX,
                stack = const PerCpuHeader::KERNEL_STACK,
                kernel_cr3 = const PerCpuHeader::KERNEL_CR3,
                spec_ctrl = const SpecCtrl::NUMBER,
                kernel_spec_ctrl = const PerCpuHeader::KERNEL_SPEC_CTRL,
                finds_tables = const guard!("iret-fault-tables", O::KPTI) as usize,
                user_root = const SplitTables::USER_ROOT,
                kernel_bits = const (!user_cr3_bits::<O>()).cast_signed(),
                pcid = const !guard!("no-flush-without-pcid", !O::PCID) as usize,
                user = sym $user::<K>,
                kernel = sym $kernel::<$($parameter),*>,
                leave = sym <K::Exit as Exit>::leave::<O>,
                leave_by_iret = sym <K::Exit as Exit>::leave_by_iret::<O>,
            )
        }
    };
}

common! {
    /// Exceptions. **Reached by** the slots of vectors 0 to 31, the paranoid ones excepted.
    exception_common, user_exception, kernel_exception<K, O>, go_on_with_user_event, fence in rust
}

common! {
    /// Page faults. **Reached by** the slot of vector 14.
    page_fault_common, user_page_fault, kernel_exception<K, O>, go_on_with_user_event, fence in rust
}

common! {
    /// Maskable interrupts. **Reached by** the slots of vectors 32 to 255, the system-call vector excepted.
    interrupt_common, user_interrupt, kernel_interrupt<K>, go_back, fence in stub
}

common! {
    /// INT 0x80. **Reached by** its slot, which pushed the original RAX where an exception has its error code. A frame
    /// whose CS is the kernel's can only come from a device or another CPU that was given the vector; it is
    /// treated as the interrupt it is, and never as a system call.
    system_call_common, soft_system_call, interrupt_on_the_system_calls_vector<K>, go_back, fence in stub
}
