//! The exit stub: obeys what [`decide`](crate::decide()) said.
//!
//! Leaves for user mode with the frame at RSP, the way that EAX says. It is a macro so that each implementation of
//! [`Exit`](entry_core::Exit) is the stub itself, without a jump to it.
//!
//! **Reached by** a jump from an entry stub, after its Rust half returned.
//!
//! | register | in | out | clobbered |
//! |---|---|---|---|
//! | EAX | [`Leave`](entry_core::Leave) | from the frame | – |
//! | RSP | address of the frame | from the frame's RSP word | – |
//! | RCX, R11 | any | SYSRET: the frame's RIP and RFLAGS words; IRET: from the frame | – |
//! | others | any | from the frame | – |
//! | GS base | kernel's | user's | – |
//!
//! SYSRET takes RIP from RCX, RFLAGS from R11, and leaves RSP alone. All three are loaded from the words of the
//! interrupt image that the decision examined, not from the RCX and R11 words, so no other path can make what is
//! consumed differ from what was checked. CS and SS are constants of `IA32_STAR`: the frame's words are not consumed.
//!
//! **Windows**: SYSRET: the user's RSP, then also the user's GS, up to the instruction itself. IRETQ: the user's GS for
//! one instruction, which can fault; its record is how the fault is recognised.
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*.

use entry_core::Leave;

/// Pops R15 up to RAX, in the order of the frame's words: RSP points at R11 after.
macro_rules! pop_thirteen {
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

/// The body of [`Exit::leave`](entry_core::Exit::leave), for a naked function.
macro_rules! exit_stub {
    () => {
        core::arch::naked_asm!(
            // Why here and not in Rust: Rust has decided; the registers it would need are about to be the user's.
            "test eax, eax",
            "jnz 5f",
            $crate::stub::pop_thirteen!(),
            // RSP points at R11; the interrupt image is above.
            "mov rcx, [rsp + {rip}]",
            "mov r11, [rsp + {rflags}]",
            "mov rsp, [rsp + {rsp}]",
            // RSP is the user's.
            "2:",
            "swapgs",
            // GS base is the user's.
            "3:",
            "sysretq",
            "4:",
            "int3",
            "5:",
            // IRET is positive, SYSRETL has the sign bit.
            "js 8f",
            $crate::stub::pop_thirteen!(),
            "pop r11",
            "pop rcx",
            "add rsp, 16",
            "swapgs",
            // GS base is the user's, RSP points at the RIP word.
            "6:",
            "iretq",
            "7:",
            "int3",
            // SYSRETL: 32-bit code has neither R8 to R15 nor upper halves; the frame's words are what it had, or zero.
            "8:",
            $crate::stub::pop_thirteen!(),
            "mov ecx, [rsp + {rip}]",
            "mov r11, [rsp + {rflags}]",
            "mov esp, [rsp + {rsp}]",
            // RSP is the user's.
            "12:",
            "swapgs",
            // GS base is the user's.
            "13:",
            "sysret",
            "14:",
            "int3",
            ::entry_core::entry_window!("2b", "3b", "{user_rsp}"),
            ::entry_core::entry_window!("3b", "4b", "{user_both}"),
            ::entry_core::entry_window!("6b", "7b", "{user_iret}"),
            ::entry_core::entry_window!("12b", "13b", "{user_rsp}"),
            ::entry_core::entry_window!("13b", "14b", "{user_both}"),
            rip = const ::entry_core::TrapFrame::RIP - ::entry_core::TrapFrame::POPPED,
            rflags = const ::entry_core::TrapFrame::RFLAGS - ::entry_core::TrapFrame::POPPED,
            rsp = const ::entry_core::TrapFrame::RSP - ::entry_core::TrapFrame::POPPED,
            user_rsp = const ::entry_core::windows::flags::USER_RSP,
            user_both = const ::entry_core::windows::flags::USER_GS | ::entry_core::windows::flags::USER_RSP,
            user_iret = const ::entry_core::windows::flags::USER_GS | ::entry_core::windows::flags::IRET,
        )
    };
}

const _: () = assert!(Leave::Sysret as u32 == 0 && Leave::Iret as u32 == 1 && Leave::Sysret32 as u32 == 1 << 31);

pub(crate) use {exit_stub, pop_thirteen};
