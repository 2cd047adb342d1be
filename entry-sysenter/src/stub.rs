//! The SYSENTER entry stubs, and what a kernel needs to understand their frames.
//!
//! A stub starts where the CPU or a trampoline jumps to, repairs what SYSENTER leaves as the user had it, builds a
//! [`TrapFrame`], calls [`Kernel::syscall`] and leaves through [`Kernel::Exit`]. It keeps one invariant: before anything
//! that could IRET, enable interrupts or call Rust, RFLAGS has no flag of the user's that the kernel would trip over.
//!
//! | stub | callers | policy |
//! |---|---|---|
//! | [`sysenter64_entry`] | 64-bit code, Intel | who calls it from 32-bit code is treated as 64-bit code |
//! | [`sysenter32_entry`] | 32-bit code | who calls it from 64-bit code is treated as 32-bit code |
//! | [`sysenter_entry`] | both | the process decides: its landing address is 0 for a 64-bit process |
//!
//! The kernel can't see the caller's mode: SYSENTER overwrites CS without saving it. So the policy is stated by choosing a
//! stub, and a caller in the wrong mode gets the return that belongs to the other. That is no danger to the kernel, since
//! the exit checks RIP and CS of the frame as ever, and it gives the caller nothing that a far jump would not.
//!
//! [`Options::KPTI`] and [`Options::IBRS`] have nothing here, so stubs with them don't compile.
//!
//! # Register contract
//!
//! SYSENTER saves neither RIP nor RSP nor RFLAGS, so the caller hands them over. [`crate::user_page`] generates code that does.
//!
//! | | [`sysenter64_entry`] | [`sysenter32_entry`] |
//! |---|---|---|
//! | number, result | RAX | EAX |
//! | arguments | RDI, RSI, RDX, R10, R8, R9 | EBX, ECX, EDX, ESI, EDI, and the word at `[EBP]` |
//! | stack pointer | RCX | EBP |
//! | return address | R11 | [`Compat::LANDING`], a word of the kernel's |
//! | destroyed | RCX, R11, as by SYSCALL | ECX, EDX, restored by the user page |
//! | RFLAGS | as they were, with IF = 1 | as they were, with IF = 1 |
//!
//! Both make a call restartable: [`TrapFrame::restart_system_call`] goes back to the two bytes of SYSENTER before the
//! return address, and every register that it reads has its value again when the frame leaves by IRET.
//!
//! # Single-stepping into SYSENTER
//!
//! With TF set, the CPU raises #DB before the stub's first instruction, and after each one until TF is cleared. #DB must
//! have an IST stack, as [`Kernel`] demands, and its handler has to ignore a single step whose RIP [`is_user_step`]
//! recognises. The user's TF is in the frame: it leaves by IRET, and stepping goes on in user mode.
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSENTER—Fast System Call*; vol. 3B, *Single-Step Exception Condition*.

use core::arch::naked_asm;

use entry_core::kernel::{Exit, Kernel, Options};
use entry_core::rflags::Rflags;
use entry_core::stub::{sysenter_call, sysenter32_call};
use entry_core::windows::{self, flags};
use entry_core::{EntryKind, TrapFrame, entry_window};

use crate::arrival::{Arrival, EntryAddress};
use crate::error::BadStackArgument;
use crate::guard::guard;

/// A kernel that lets 32-bit code enter by SYSENTER.
///
/// # Safety
///
/// An implementation states, for every CPU on which a stub of this module for 32-bit code is installed:
///
/// 1. At [`Compat::LANDING`] bytes from the kernel's GS base is an aligned 8-byte word, below 2 GiB.
/// 2. While a 32-bit process runs on the CPU, the word is the address at which its user page wants to be returned to,
///    the one after SYSENTER; while a 64-bit process runs, it is 0.
pub unsafe trait Compat: Kernel {
    /// Offset from the kernel's GS base of the word that holds the current process's return address.
    const LANDING: usize;
}

/// What SYSENTER leaves set although the kernel can't live with it.
///
/// | flag | what would happen |
/// |---|---|
/// | TF | #DB after each kernel instruction |
/// | NT | the kernel's next IRET is #GP |
/// | AC | the kernel reads and writes user memory in spite of SMAP |
/// | IOPL | port access and CLI for code that inherits these flags |
///
/// DF is cleared without a test, and so is AC where there is SMAP.
const REPAIRED: u64 = kept(cfg!(not(ablate = "sysenter-trap")), Rflags::TRAP)
    | kept(cfg!(not(ablate = "sysenter-nested-task")), Rflags::NESTED_TASK)
    | kept(cfg!(not(ablate = "sysenter-alignment-check")), Rflags::ALIGNMENT_CHECK)
    | kept(cfg!(not(ablate = "sysenter-io-privilege")), Rflags::IO_PRIVILEGE_LEVEL);

/// A guard that a test build can take away.
const fn kept(is_kept: bool, flags: Rflags) -> u64 {
    if is_kept { flags.bits() } else { 0 }
}

/// Whether the stubs clear DF.
const CLEARS_DIRECTION: usize = cfg!(not(ablate = "sysenter-direction")) as usize;

/// Whether the stubs write zeros for the registers that 32-bit code has not.
const WRITES_ZEROS: usize = cfg!(not(ablate = "sysenter-high-registers")) as usize;

/// Whether the stubs execute CLAC.
const fn clears_alignment_check<O: Options>() -> usize {
    (O::SMAP && cfg!(not(ablate = "sysenter-alignment-check"))) as usize
}

/// Whether the stubs zero registers; and the place where options are refused that they have nothing for.
const fn clears_registers<O: Options>() -> usize {
    assert!(
        !O::KPTI,
        "SYSENTER: the stubs load no page tables, and would call Rust under the user's"
    );
    assert!(
        !O::IBRS,
        "SYSENTER: the stubs don't write IA32_SPEC_CTRL, and the exit does"
    );
    O::CLEAR as usize
}

/// Offset of RFLAGS from the kind word, where RSP points when the flags are examined.
const RFLAGS: usize = TrapFrame::RFLAGS - TrapFrame::KIND;

/// From the first instruction to a kernel stack and kernel GS. Labels 2 and 3.
macro_rules! arrive {
    () => {
        "2:
         .if {from_stack}
         mov rsp, [rsp + {offset}]
         .endif
         .if {swaps}
         swapgs
         .endif
         3:
         .if {from_header}
         mov rsp, gs:[{offset}]
         .endif"
    };
}

/// SS, RSP of 64-bit code, and RFLAGS. No flag has changed before.
macro_rules! push_stack_and_flags_64 {
    () => {
        "push {ss}
         push rcx
         pushfq"
    };
}

/// The rest of the upper half of a frame for 64-bit code, down to the kind word.
macro_rules! push_call_64 {
    () => {
        "push {cs64}
         push r11
         push rax
         push {kind64}"
    };
}

/// Drops what 64-bit code may have left in the upper halves of 32-bit code's number and stack pointer.
macro_rules! drop_upper_halves {
    () => {
        "mov eax, eax
         mov ebp, ebp"
    };
}

/// The rest of the upper half of a frame for 32-bit code, below SS, RSP and RFLAGS.
macro_rules! push_call_32 {
    () => {
        "push {cs32}
         push qword ptr gs:[{landing}]
         push rax
         push {kind32}"
    };
}

/// Repairs RFLAGS once the user's are saved; their word gets IF, which SYSENTER has cleared. The label ends the stretch
/// in which the user's flags may be in force: nothing in it but pushes, which neither DF nor AC can harm.
///
/// Why here and not in Rust: POPF costs more than the rest of the stub, and Rust may not run with TF or NT set.
macro_rules! repair_flags {
    ($repair:literal, $repaired:literal) => {
        concat!(
            ".if {cld}\ncld\n.endif\n",
            ".if {clac}\nclac\n.endif\n",
            "or dword ptr [rsp + {rflags}], {if_flag}\n",
            "test dword ptr [rsp + {rflags}], {repaired}\n",
            "jnz ",
            $repair,
            "f\n",
            $repaired,
            ":"
        )
    };
}

/// The cold half of `repair_flags`. A single-step trap that POPF itself still takes is reported at the jump.
macro_rules! repair_flags_out_of_line {
    ($repair:literal, $repaired:literal, $end:literal) => {
        concat!($repair, ":\npush {clean}\npopfq\njmp ", $repaired, "b\n", $end, ":")
    };
}

/// RCX down to R15 for 32-bit code, which has no R8 to R15: the frame gets zeros, so the exit loads zeros.
macro_rules! push_registers_32 {
    () => {
        concat!(
            "push rcx\n",
            push_zeros!(1),
            "push rax
             push rdx
             push rsi
             push rdi\n",
            push_zeros!(3),
            "push rbx
             push rbp\n",
            push_zeros!(4),
        )
    };
}

/// Fills words that have no register. A word that is left as it was on the stack would be loaded by the exit.
macro_rules! push_zeros {
    ($words:literal) => {
        concat!(
            ".if {zeros}\n.rept ",
            $words,
            "\npush 0\n.endr\n.else\nlea rsp, [rsp - 8 * ",
            $words,
            "]\n.endif\n"
        )
    };
}

/// Zeroes, if wanted, what the user could steer speculation with, calls Rust, and leaves.
macro_rules! call_and_leave {
    ($handler:literal) => {
        concat!(
            entry_core::clear_registers!(),
            "
             mov rdi, rsp
             call {",
            $handler,
            "}
             jmp {leave}
             int3"
        )
    };
}

/// SYSENTER from 64-bit code: builds the whole [`TrapFrame`] and calls [`Kernel::syscall`].
///
/// **Reached by**: SYSENTER at CPL 3 through `IA32_SYSENTER_EIP`, or a trampoline; with `A`'s stack and GS base.
///
/// **The CPU has** loaded RIP, RSP and CS from the SYSENTER MSRs, SS with CS + 8, and cleared IF, VM and RF. **It has not**
/// saved RIP, RSP, RFLAGS or CS, nor cleared TF, NT, AC, DF and IOPL, nor touched GS, CR3 or any other register.
///
/// | register | in | out, at the call | clobbered |
/// |---|---|---|---|
/// | RSP | as `A` says | frame on the thread's kernel stack | – |
/// | RCX, R11 | user RSP, user RIP | as they were, or zero with `CLEAR` | – |
/// | RAX | number | number, or zero with `CLEAR` | – |
/// | RDI | first argument | address of the frame | – |
/// | others | user's | user's, or zero with `CLEAR` | – |
/// | GS base | as `A` says | kernel's | – |
/// | RFLAGS | IF, VM, RF 0; the rest the user's | TF, NT, AC, DF, IOPL, IF 0 | – |
///
/// The frame: SS, RCX, RFLAGS with IF, CS, R11, RAX, kind, and then the registers as they are.
///
/// **Windows**: user GS until SWAPGS; user flags up to the test, and in the repair. RSP is never the user's. NMI, #MC
/// and #DB in the windows have stacks of their own and decide about GS by comparison.
///
/// # Safety
///
/// 1. It is reached by SYSENTER alone, in the state that `A` names, on a CPU that was set up as [`Kernel`] demands.
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSENTER—Fast System Call*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn sysenter64_entry<K: Kernel, A: Arrival, O: Options>() -> ! {
    naked_asm!(
        arrive!(),
        // RSP is a kernel stack, GS base the kernel's; RFLAGS is the user's but for IF, VM and RF.
        push_stack_and_flags_64!(),
        push_call_64!(),
        // RSP points at the kind word.
        repair_flags!("5", "4"),
        // RFLAGS is the kernel's.
        entry_core::push_frame_registers!(),
        call_and_leave!("handler64"),
        repair_flags_out_of_line!("5", "4", "6"),
        entry_window!("2b", "3b", "{before_swap}"),
        entry_window!("3b", "4b", "{user_flags}"),
        entry_window!("5b", "6b", "{user_flags}"),
        from_stack = const A::LOAD.is_from_stack(),
        from_header = const A::LOAD.is_from_header(),
        offset = const A::LOAD.offset(),
        swaps = const A::STUB_SWAPS as usize,
        cld = const CLEARS_DIRECTION,
        clac = const clears_alignment_check::<O>(),
        ss = const K::LAYOUT.user_data().bits(),
        cs64 = const K::LAYOUT.user_code64().bits(),
        kind64 = const EntryKind::Sysenter64.word(0),
        rflags = const RFLAGS,
        if_flag = const Rflags::INTERRUPT_ENABLE.bits(),
        repaired = const REPAIRED,
        clean = const Rflags::ALWAYS_ONE.bits(),
        clear = const clears_registers::<O>(),
        handler64 = sym sysenter_call::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
        before_swap = const before_swap::<A>(),
        user_flags = const flags::USER_FLAGS,
    )
}

/// SYSENTER from 32-bit code: as [`sysenter64_entry`], with the other register contract.
///
/// **Reached by**: SYSENTER at CPL 3 through `IA32_SYSENTER_EIP`, or a trampoline; with `A`'s stack and GS base.
///
/// **The CPU has** and **has not**: as for [`sysenter64_entry`]. In addition the upper halves of registers and R8 to R15
/// are undefined, coming from 32-bit code.
///
/// | register | in | out, at the call | clobbered |
/// |---|---|---|---|
/// | RSP | as `A` says | frame on the thread's kernel stack | – |
/// | EBP | user ESP | zero-extended, or zero with `CLEAR` | – |
/// | EAX | number | zero-extended, or zero with `CLEAR` | – |
/// | RDI | fifth argument | address of the frame | – |
/// | R8–R15 | undefined | undefined, or zero with `CLEAR` | – |
/// | others | user's | user's, or zero with `CLEAR` | – |
/// | GS base | as `A` says | kernel's | – |
/// | RFLAGS | IF, VM, RF 0; the rest the user's | TF, NT, AC, DF, IOPL, IF 0 | – |
///
/// The frame: SS, EBP, RFLAGS with IF, 32-bit CS, landing address, EAX, kind, then the registers as they are and zero for
/// R8 to R15, so that an exit to 32-bit code loads nothing of the kernel's into them.
///
/// **Windows**: as for [`sysenter64_entry`].
///
/// # Safety
///
/// 1. As for [`sysenter64_entry`].
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSENTER—Fast System Call*; vol. 1, *Compatibility Mode*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn sysenter32_entry<K: Compat, A: Arrival, O: Options>() -> ! {
    naked_asm!(
        arrive!(),
        // RSP is a kernel stack, GS base the kernel's; RFLAGS is the user's but for IF, VM and RF.
        drop_upper_halves!(),
        "push {ss}",
        "push rbp",
        "pushfq",
        push_call_32!(),
        // RSP points at the kind word.
        repair_flags!("5", "4"),
        // RFLAGS is the kernel's.
        push_registers_32!(),
        call_and_leave!("handler32"),
        repair_flags_out_of_line!("5", "4", "6"),
        entry_window!("2b", "3b", "{before_swap}"),
        entry_window!("3b", "4b", "{user_flags}"),
        entry_window!("5b", "6b", "{user_flags}"),
        from_stack = const A::LOAD.is_from_stack(),
        from_header = const A::LOAD.is_from_header(),
        offset = const A::LOAD.offset(),
        swaps = const A::STUB_SWAPS as usize,
        cld = const CLEARS_DIRECTION,
        clac = const clears_alignment_check::<O>(),
        zeros = const WRITES_ZEROS,
        ss = const K::LAYOUT.user_data().bits(),
        cs32 = const code32::<K>(),
        landing = const K::LANDING,
        kind32 = const EntryKind::Sysenter32.word(0),
        rflags = const RFLAGS,
        if_flag = const Rflags::INTERRUPT_ENABLE.bits(),
        repaired = const REPAIRED,
        clean = const Rflags::ALWAYS_ONE.bits(),
        clear = const clears_registers::<O>(),
        handler32 = sym sysenter32_call::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
        before_swap = const before_swap::<A>(),
        user_flags = const flags::USER_FLAGS,
    )
}

/// SYSENTER from either: [`sysenter32_entry`] if the current process has a landing address, else [`sysenter64_entry`].
///
/// One compare and one branch more than those, and a store for 32-bit code. Everything else is theirs: see there for registers,
/// frames and windows.
///
/// # Safety
///
/// 1. As for [`sysenter64_entry`].
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSENTER—Fast System Call*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn sysenter_entry<K: Compat, A: Arrival, O: Options>() -> ! {
    naked_asm!(
        arrive!(),
        // RSP is a kernel stack, GS base the kernel's; RFLAGS is the user's but for IF, VM and RF.
        // Why before the comparison: it changes flags, and those in the frame are the user's.
        push_stack_and_flags_64!(),
        // Why here and not in Rust: the user's stack pointer is in another register for each.
        "cmp qword ptr gs:[{landing}], 0",
        "jne 7f",
        push_call_64!(),
        // RSP points at the kind word.
        repair_flags!("5", "4"),
        // RFLAGS is the kernel's.
        entry_core::push_frame_registers!(),
        call_and_leave!("handler64"),
        "7:",
        drop_upper_halves!(),
        // RSP of the frame, where RCX is.
        "mov [rsp + 8], rbp",
        push_call_32!(),
        repair_flags!("9", "8"),
        // RFLAGS is the kernel's.
        push_registers_32!(),
        call_and_leave!("handler32"),
        repair_flags_out_of_line!("5", "4", "6"),
        repair_flags_out_of_line!("9", "8", "12"),
        entry_window!("2b", "3b", "{before_swap}"),
        entry_window!("3b", "4b", "{user_flags}"),
        entry_window!("7b", "8b", "{user_flags}"),
        entry_window!("5b", "12b", "{user_flags}"),
        from_stack = const A::LOAD.is_from_stack(),
        from_header = const A::LOAD.is_from_header(),
        offset = const A::LOAD.offset(),
        swaps = const A::STUB_SWAPS as usize,
        cld = const CLEARS_DIRECTION,
        clac = const clears_alignment_check::<O>(),
        zeros = const WRITES_ZEROS,
        ss = const K::LAYOUT.user_data().bits(),
        cs64 = const K::LAYOUT.user_code64().bits(),
        cs32 = const code32::<K>(),
        landing = const K::LANDING,
        kind64 = const EntryKind::Sysenter64.word(0),
        kind32 = const EntryKind::Sysenter32.word(0),
        rflags = const RFLAGS,
        if_flag = const Rflags::INTERRUPT_ENABLE.bits(),
        repaired = const REPAIRED,
        clean = const Rflags::ALWAYS_ONE.bits(),
        clear = const clears_registers::<O>(),
        handler64 = sym sysenter_call::<K>,
        handler32 = sym sysenter32_call::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
        before_swap = const before_swap::<A>(),
        user_flags = const flags::USER_FLAGS,
    )
}

/// Flags of the window up to SWAPGS.
const fn before_swap<A: Arrival>() -> u32 {
    if A::STUB_SWAPS {
        flags::USER_GS | flags::USER_FLAGS
    } else {
        flags::USER_FLAGS
    }
}

/// The selector of 32-bit user code. A layout without one stops the build of the stub.
#[expect(
    clippy::panic,
    reason = "evaluated by the compiler alone: it is the operand of a stub"
)]
const fn code32<K: Kernel>() -> u16 {
    match K::LAYOUT.user_code32() {
        Some(selector) => selector.bits(),
        None => panic!("the layout has no 32-bit user code segment"),
    }
}

/// The address of [`sysenter64_entry`].
#[must_use]
pub fn entry64<K: Kernel, A: Arrival, O: Options>() -> EntryAddress<A> {
    // SAFETY: the stub is made for `A`, and for registers and flags as the user left them.
    unsafe { EntryAddress::new(entry_core::stub::address(sysenter64_entry::<K, A, O>)) }
}

/// The address of [`sysenter32_entry`].
#[must_use]
pub fn entry32<K: Compat, A: Arrival, O: Options>() -> EntryAddress<A> {
    // SAFETY: the stub is made for `A`, and for registers and flags as the user left them.
    unsafe { EntryAddress::new(entry_core::stub::address(sysenter32_entry::<K, A, O>)) }
}

/// The address of [`sysenter_entry`].
#[must_use]
pub fn entry<K: Compat, A: Arrival, O: Options>() -> EntryAddress<A> {
    // SAFETY: the stub is made for `A`, and for registers and flags as the user left them.
    unsafe { EntryAddress::new(entry_core::stub::address(sysenter_entry::<K, A, O>)) }
}

/// Whether a #DB in the kernel at `rip` with DR6.BS set is a single step that the *user* armed before SYSENTER.
///
/// The handler returns without a word: the stub is about to clear TF, and user mode gets it back from
/// the frame. Where a trampoline runs before the stub, its [window](crate::trampoline::Trampoline64::window) has to be
/// asked as well.
///
/// ```
/// // Ordinary kernel code is in no window: a single step there is a kernel debugger's, or a bug.
/// assert!(!entry_sysenter::stub::is_user_step(0));
/// ```
#[must_use]
pub fn is_user_step(rip: u64) -> bool {
    guard!(
        "sysenter-user-step",
        windows::find(rip).is_some_and(|window| window.flags() & flags::USER_FLAGS != 0)
    )
}

/// The arguments of a system call by 32-bit code, whatever instruction it came by.
///
/// | entry | number | arguments |
/// |---|---|---|
/// | INT 0x80 | EAX | EBX, ECX, EDX, ESI, EDI, EBP |
/// | SYSENTER | EAX | EBX, ECX, EDX, ESI, EDI, the word at the user's stack pointer |
/// | SYSCALL | EAX | EBX, EBP, EDX, ESI, EDI, the word at the user's stack pointer |
///
/// SYSCALL destroys ECX, and SYSENTER needs EBP for the stack pointer: the [user page](crate::user_page) moves what was
/// there. Only the lower halves are taken: the upper ones are undefined when 32-bit code enters.
///
/// ```
/// use entry_core::TrapFrame;
/// use entry_sysenter::stub::Arguments32;
/// fn sum(frame: &TrapFrame, read_user: impl Fn(u32) -> Option<u32>) -> i64 {
///     let arguments = Arguments32::of(frame);
///     match arguments.sixth(read_user) {
///         Ok(sixth) => arguments.first_five().iter().map(|a| i64::from(*a)).sum::<i64>() + i64::from(sixth),
///         Err(_) => -14, // EFAULT
///     }
/// }
/// assert_eq!(sum(&TrapFrame::zeroed(), |_| None), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments32 {
    number: u32,
    first_five: [u32; 5],
    sixth: Sixth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sixth {
    Value(u32),
    OnStack(u32),
}

impl Arguments32 {
    /// The arguments in `frame`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "32-bit code has the lower halves alone")]
    pub const fn of(frame: &TrapFrame) -> Self {
        let (second, sixth) = match frame.entry_kind() {
            Some(EntryKind::Sysenter32) => (frame.rcx(), Sixth::OnStack(frame.rsp() as u32)),
            Some(EntryKind::Syscall32) => (frame.rbp(), Sixth::OnStack(frame.rsp() as u32)),
            _ => (frame.rcx(), Sixth::Value(frame.rbp() as u32)),
        };
        Self {
            number: frame.original_rax() as u32,
            first_five: [
                frame.rbx() as u32,
                second as u32,
                frame.rdx() as u32,
                frame.rsi() as u32,
                frame.rdi() as u32,
            ],
            sixth,
        }
    }

    /// The system-call number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// All arguments but the sixth.
    #[must_use]
    pub const fn first_five(&self) -> [u32; 5] {
        self.first_five
    }

    /// The sixth argument. Where it is on the user's stack, `read` fetches four bytes of user memory, or says that it can't.
    ///
    /// The stack pointer is the caller's word for it and may be any address. It is read through a checked copy, and only
    /// for the calls that have six arguments; a bad one is the caller's error, not the kernel's fault.
    ///
    /// # Errors
    ///
    /// [`BadStackArgument`] if the four bytes run over the end of the 4 GiB, or `read` returned `None`.
    pub fn sixth(&self, read: impl FnOnce(u32) -> Option<u32>) -> Result<u32, BadStackArgument> {
        match self.sixth {
            Sixth::Value(value) => Ok(value),
            Sixth::OnStack(stack) if guard!("sysenter-stack-argument", stack > u32::MAX - 3) => {
                Err(BadStackArgument { stack })
            }
            Sixth::OnStack(stack) => read(stack).ok_or(BadStackArgument { stack }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::clears_registers;
    use entry_core::kernel::{Baseline, Options};

    struct Hidden;

    impl Options for Hidden {
        const KPTI: bool = true;
    }

    struct Restricted;

    impl Options for Restricted {
        const IBRS: bool = true;
    }

    #[test]
    fn stubs_without_further_options_are_fine() {
        assert_eq!(clears_registers::<Baseline>(), 0);
    }

    #[test]
    #[should_panic = "page tables"]
    fn stubs_are_refused_to_a_kernel_that_hides() {
        clears_registers::<Hidden>();
    }

    #[test]
    #[should_panic = "IA32_SPEC_CTRL"]
    fn stubs_are_refused_to_a_kernel_that_restricts_speculation() {
        clears_registers::<Restricted>();
    }
}
