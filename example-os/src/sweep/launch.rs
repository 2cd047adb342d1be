//! Into the victim's first instruction with every register chosen, and back from a handler.
//!
//! The way in is not one of the stubs under test: their boundaries would be met before the event that they are met for.
//! Nor is there a memory access of the victim's between the load of its registers and the event, so its RSP may be anything.

use core::arch::naked_asm;
use core::cell::UnsafeCell;

use entry_core::{Kernel, TrapFrame};

use crate::device::apic;
use crate::entry::OsKernel;

/// How the victim is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Way {
    /// By SYSRET to the kind of code that CS says, which leaves NMIs blocked if they are. RCX is RIP and R11 is RFLAGS.
    Sysret = 0,
    /// By IRETQ, which lets NMIs in.
    Iret = 1,
    /// In ring 0: POPFQ and RET, of the words that the frame's RSP points at. NMIs stay as they are.
    Kernel = 2,
}

/// The registers of the victim, where a program's own tables have them, too.
#[unsafe(link_section = ".data.entry")]
static FRAME: Frame = Frame(UnsafeCell::new(TrapFrame::zeroed()));

struct Frame(UnsafeCell<TrapFrame>);

// SAFETY: written through a raw pointer before a launch and read by it, on one CPU.
unsafe impl Sync for Frame {}

/// Puts `frame` where [`launch`] finds it on any tables.
pub(super) fn place(frame: &TrapFrame) -> *const TrapFrame {
    let place = FRAME.0.get();
    // SAFETY: the static is writable, and no launch is under way.
    unsafe { place.write(frame.clone()) };
    place
}

/// Saves the running context in `saved`, and enters the victim with the registers of `frame`. Returns when a handler calls
/// [`come_back`] with that word.
///
/// | register | in | out |
/// |---|---|---|
/// | RDI | `frame` | clobbered |
/// | RSI | `saved` | clobbered |
/// | EDX | `way` | clobbered |
/// | RCX | `tables`: 0, or the CR3 to enter it with | clobbered |
/// | RBX, RBP, R12–R15, RSP | caller's | caller's |
///
/// **Windows**: with `tables` the program's CR3 from its load on, so this is with the stubs, which such tables have.
///
/// # Safety
///
/// 1. RFLAGS.IF is 0, GS base is the kernel's, the stacks of entries from user mode are set and not in use.
/// 2. `frame` is what the victim is to have: selectors of the layout for user mode, or for [`Way::Kernel`] an RSP that
///    points at RFLAGS and RIP on a kernel stack. It lies where [`place`] puts it.
/// 3. Every event of the victim leads to a handler that either resumes it or comes back.
/// 4. `tables` is 0, or selects tables of the victim that have the stubs and their data, and the stubs load the kernel's; the
///    victim runs in user mode then.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub(super) unsafe extern "sysv64" fn launch(frame: *const TrapFrame, saved: *mut u64, way: Way, tables: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rsi], rsp",
        "test rcx, rcx",
        "jz 2f",
        "mov cr3, rcx",
        // The tables are the program's.
        "2:",
        "mov rsp, rdi",
        // RSP is the frame.
        "cmp edx, {iret}",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rax",
        "je 3f",
        "ja 4f",
        "mov rcx, [rsp + {rip}]",
        "mov r11, [rsp + {rflags}]",
        "cmp qword ptr [rsp + {cs}], {code32}",
        "mov rsp, [rsp + {rsp}]",
        "swapgs",
        "je 5f",
        "sysretq",
        "5:",
        "sysret",
        "3:",
        "pop r11",
        "pop rcx",
        "add rsp, 16",
        "swapgs",
        "iretq",
        "4:",
        "pop r11",
        "pop rcx",
        "mov rsp, [rsp + {rsp} - 16]",
        "popfq",
        "ret",
        iret = const Way::Iret as u32,
        rip = const TrapFrame::RIP - TrapFrame::POPPED,
        cs = const TrapFrame::CS - TrapFrame::POPPED,
        // The first selector of SYSRET's block.
        code32 = const <OsKernel>::LAYOUT.sysret_base().bits(),
        rflags = const TrapFrame::RFLAGS - TrapFrame::POPPED,
        rsp = const TrapFrame::RSP - TrapFrame::POPPED,
    )
}

/// Goes on where [`launch`] was called, from a handler of whatever depth on whatever stack: what is on that stack is
/// abandoned.
///
/// # Safety
///
/// 1. `saved` was stored by a call of [`launch`] that has not returned, and nothing that its caller uses has changed.
/// 2. Nothing on the abandoned stack owns anything.
/// 3. RFLAGS.IF and RFLAGS.DF are 0, GS base is the kernel's.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn come_back(saved: u64) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Saves the running context in `saved`, sends an NMI to this CPU, and returns when its handler comes back: without IRET,
/// so that NMIs stay blocked.
///
/// # Safety
///
/// 1. RFLAGS.IF is 0 and GS base is the kernel's.
/// 2. The handler of NMI calls [`come_back`].
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn take_nmi(saved: *mut u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "sub rsp, 8",
        "call {send}",
        "2:",
        "pause",
        "jmp 2b",
        send = sym send_nmi,
    )
}

extern "sysv64" fn send_nmi() {
    apic::send_nmi_to_self();
}

/// IRETQ to its own return address: lets NMIs in.
///
/// # Safety
///
/// 1. CPL is 0, and CS and SS are the kernel's.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn unblock_nmi() {
    naked_asm!(
        "pop rax",
        "mov rdx, rsp",
        "mov ecx, ss",
        "push rcx",
        "push rdx",
        "pushfq",
        "mov ecx, cs",
        "push rcx",
        "push rax",
        "iretq",
    )
}

/// Lets pending interrupts in.
///
/// # Safety
///
/// 1. RFLAGS.IF is 0, and the caller expects interrupts here.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn let_interrupts_in() {
    naked_asm!("sti", "nop", "cli", "ret")
}

/// Code for [`Way::Kernel`]: an invalid opcode, then the end.
///
/// # Safety
///
/// 1. As [`launch`], whose victim it is.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn kernel_invalid_opcode() -> ! {
    naked_asm!("ud2", "int3")
}

/// Code for [`Way::Kernel`]: nothing, then the end.
///
/// # Safety
///
/// 1. As [`launch`], whose victim it is.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn kernel_nothing() -> ! {
    naked_asm!("nop", "int3")
}
