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
//! Where the rules allow 32-bit code, SS is loaded before: AMD's SYSRET keeps all of it but the selector, and an interrupt of
//! another thread may have left it null.
//!
//! With [`KPTI`](entry_core::Options::KPTI) the user's tables are loaded when no register is left but RSP, which SYSRET's way
//! therefore keeps in the header meanwhile; IRET's way goes through the CPU's entry stack, since the thread's is not mapped in
//! them. With [`VERW`](entry_core::Options::VERW) that instruction comes last, and its selector lies behind the stub.
//!
//! **Windows**: SYSRET: the user's RSP, then also the user's GS, up to the instruction itself. IRETQ: the user's GS for
//! one instruction, which can fault; its record is how the fault is recognised.
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; vol. 2A, *IRET/IRETD/IRETQ—Interrupt Return*.

use entry_core::Leave;

/// Writes the user's IA32_SPEC_CTRL, with `IBRS`. EAX and what a test of it left in the flags stay.
macro_rules! allow_speculation {
    () => {
        ".if {ibrs}
         mov r8d, eax
         mov ecx, {spec_ctrl}
         mov eax, gs:[{user_spec_ctrl}]
         xor edx, edx
         wrmsr
         mov eax, r8d
         test eax, eax
         .endif"
    };
}

/// INT3 behind an instruction that leaves for good: nothing is executed there, even by a CPU that guesses.
#[cfg(not(ablate = "exit-stop-speculation"))]
macro_rules! stop {
    () => {
        "int3"
    };
}

#[cfg(ablate = "exit-stop-speculation")]
macro_rules! stop {
    () => {
        "nop"
    };
}

/// VERW, then the instruction that leaves.
macro_rules! leave_by {
    ($instruction:literal) => {
        concat!(
            ".if {verw}
             verw word ptr [rip + 21f]
             .endif\n",
            $instruction
        )
    };
}

/// Loads what SYSRET consumes: RSP points at R11 before, and is the user's after. The registers' width is that of the code.
macro_rules! load_sysret_words {
    ($rcx:literal, $rsp:literal) => {
        concat!(
            ".if {kpti}
             mov r11, [rsp + {rsp}]
             mov gs:[{scratch}], r11
             .endif
             mov ",
            $rcx,
            ", [rsp + {rip}]
             mov r11, [rsp + {rflags}]
             .if {kpti}
             mov rsp, gs:[{user_cr3}]
             16:
             .if {loads_tables}
             mov cr3, rsp
             .endif
             17:
             mov ",
            $rsp,
            ", gs:[{scratch}]
             .else
             mov ",
            $rsp,
            ", [rsp + {rsp}]
             16:
             17:
             .endif"
        )
    };
}

/// The body of [`Exit::leave`](entry_core::Exit::leave), for a naked function with the options `O`. `$verw_selector` is that
/// of a data segment that can be written.
macro_rules! exit_stub {
    ($rules:expr) => {
        core::arch::naked_asm!(
            // Why here and not in Rust: Rust has decided; the registers it would need are about to be the user's. IRET is
            // positive, SYSRETL has the sign bit.
            "test eax, eax",
            "jg {by_iret}",
            $crate::stub::allow_speculation!(),
            ".if {loads_ss}",
            "mov ss, word ptr [rip + 22f]",
            ".endif",
            "js 8f",
            ::entry_core::pop_frame_registers!(),
            // RSP points at R11; the interrupt image is above.
            $crate::stub::load_sysret_words!("rcx", "rsp"),
            // RSP is the user's, and so are the tables.
            "swapgs",
            // GS base is the user's.
            "3:",
            $crate::stub::leave_by!("sysretq"),
            "4:",
            $crate::stub::stop!(),
            ::entry_core::entry_window!("16b", "17b", "{no_stack}"),
            ::entry_core::entry_window!("17b", "3b", "{user_rsp}"),
            ::entry_core::entry_window!("3b", "4b", "{user_both}"),
            // SYSRETL: 32-bit code has neither R8 to R15 nor upper halves; the frame's words are what it had, or zero.
            "8:",
            ::entry_core::pop_frame_registers!(),
            $crate::stub::load_sysret_words!("ecx", "esp"),
            // RSP is the user's, and so are the tables.
            "swapgs",
            // GS base is the user's.
            "13:",
            $crate::stub::leave_by!("sysret"),
            "14:",
            $crate::stub::stop!(),
            ".if {verw}",
            ".balign 2",
            "21:",
            ".word {verw_selector}",
            ".endif",
            ".if {loads_ss}",
            ".balign 2",
            "22:",
            ".word {kernel_ss}",
            ".endif",
            ::entry_core::entry_window!("16b", "17b", "{no_stack}"),
            ::entry_core::entry_window!("17b", "13b", "{user_rsp}"),
            ::entry_core::entry_window!("13b", "14b", "{user_both}"),
            by_iret = sym <Self as ::entry_core::Exit>::leave_by_iret::<O>,
            rip = const ::entry_core::TrapFrame::RIP - ::entry_core::TrapFrame::POPPED,
            rflags = const ::entry_core::TrapFrame::RFLAGS - ::entry_core::TrapFrame::POPPED,
            rsp = const ::entry_core::TrapFrame::RSP - ::entry_core::TrapFrame::POPPED,
            scratch = const ::entry_core::PerCpuHeader::SCRATCH_RSP,
            user_cr3 = const ::entry_core::PerCpuHeader::USER_CR3,
            user_spec_ctrl = const ::entry_core::PerCpuHeader::USER_SPEC_CTRL,
            spec_ctrl = const <::entry_core::msr::SpecCtrl as ::entry_core::msr::Register>::NUMBER,
            verw_selector = const $rules.data(),
            loads_ss = const $rules.exit_loads_ss() as usize,
            kernel_ss = const $rules.kernel_data,
            kpti = const O::KPTI as usize,
            loads_tables = const $crate::decide::guard!("exit-tables", true) as usize,
            verw = const $crate::decide::guard!("exit-clear-buffers", O::VERW) as usize,
            ibrs = const $crate::decide::guard!("exit-allow-speculation", O::IBRS) as usize,
            no_stack = const ::entry_core::windows::flags::USER_RSP,
            user_rsp = const ::entry_core::windows::flags::USER_RSP | ::entry_core::windows::user_cr3::<O>(),
            user_both = const ::entry_core::windows::flags::USER_GS
                | ::entry_core::windows::flags::USER_RSP
                | ::entry_core::windows::user_cr3::<O>(),
        )
    };
}

/// The body of [`Exit::leave_by_iret`](entry_core::Exit::leave_by_iret), for a naked function with the options `O`.
macro_rules! iret_exit_stub {
    ($verw_selector:expr) => {
        core::arch::naked_asm!(
            $crate::stub::allow_speculation!(),
            ".if {kpti}",
            // The five words and RAX go to the entry stack, which the user's tables map.
            "mov rcx, gs:[{entry_stack}]",
            "mov rax, [rsp + {frame_ss}]",
            "mov [rcx - 8], rax",
            "mov rax, [rsp + {frame_rsp}]",
            "mov [rcx - 16], rax",
            "mov rax, [rsp + {frame_rflags}]",
            "mov [rcx - 24], rax",
            "mov rax, [rsp + {frame_cs}]",
            "mov [rcx - 32], rax",
            "mov rax, [rsp + {frame_rip}]",
            "mov [rcx - 40], rax",
            "mov rax, [rsp + {frame_rax}]",
            "mov [rcx - 48], rax",
            ".endif",
            ::entry_core::pop_frame_registers!(),
            "pop r11",
            "pop rcx",
            ".if {kpti}",
            "mov rsp, gs:[{entry_stack}]",
            "sub rsp, 48",
            // RSP points at RAX on the entry stack.
            "mov rax, gs:[{user_cr3}]",
            ".if {loads_tables}",
            "mov cr3, rax",
            ".endif",
            // The tables are the user's.
            "15:",
            "pop rax",
            ".else",
            "add rsp, 16",
            "15:",
            ".endif",
            "swapgs",
            // GS base is the user's, RSP points at the RIP word.
            "18:",
            ".if {verw}",
            "verw word ptr [rip + 21f]",
            ".endif",
            "6:",
            "iretq",
            "7:",
            $crate::stub::stop!(),
            ".if {verw}",
            ".balign 2",
            "21:",
            ".word {verw_selector}",
            ".endif",
            ::entry_core::entry_window!("15b", "18b", "{user_tables}"),
            ::entry_core::entry_window!("18b", "6b", "{user_gs}"),
            ::entry_core::entry_window!("6b", "7b", "{user_iret}"),
            frame_ss = const ::entry_core::TrapFrame::SS,
            frame_rsp = const ::entry_core::TrapFrame::RSP,
            frame_rflags = const ::entry_core::TrapFrame::RFLAGS,
            frame_cs = const ::entry_core::TrapFrame::CS,
            frame_rip = const ::entry_core::TrapFrame::RIP,
            frame_rax = const ::entry_core::TrapFrame::RAX,
            user_cr3 = const ::entry_core::PerCpuHeader::USER_CR3,
            entry_stack = const ::entry_core::PerCpuHeader::ENTRY_STACK,
            user_spec_ctrl = const ::entry_core::PerCpuHeader::USER_SPEC_CTRL,
            spec_ctrl = const <::entry_core::msr::SpecCtrl as ::entry_core::msr::Register>::NUMBER,
            verw_selector = const $verw_selector,
            kpti = const O::KPTI as usize,
            loads_tables = const $crate::decide::guard!("exit-tables", true) as usize,
            verw = const $crate::decide::guard!("exit-clear-buffers", O::VERW) as usize,
            ibrs = const $crate::decide::guard!("exit-allow-speculation", O::IBRS) as usize,
            user_tables = const ::entry_core::windows::user_cr3::<O>(),
            user_gs = const ::entry_core::windows::flags::USER_GS | ::entry_core::windows::user_cr3::<O>(),
            user_iret = const ::entry_core::windows::flags::USER_GS
                | ::entry_core::windows::flags::IRET
                | ::entry_core::windows::user_cr3::<O>(),
        )
    };
}

const _: () = assert!(Leave::Sysret as u32 == 0 && Leave::Iret as u32 == 1 && Leave::Sysret32 as u32 == 1 << 31);

pub(crate) use {allow_speculation, exit_stub, iret_exit_stub, leave_by, load_sysret_words, stop};
