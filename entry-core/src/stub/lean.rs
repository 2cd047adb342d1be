//! SYSCALL from 64-bit code with a lean frame: what the C ABI lets a handler destroy, and no more.

use crate::entry_window;
use crate::frame::{EntryKind, TrapFrame};
use crate::guard::{guard, stop};
use crate::irq::IrqOff;
use crate::kernel::{Exit, Kernel, Leave, Options, Tracking};
use crate::msr::{Register, SpecCtrl};
use crate::percpu::PerCpuHeader;
use crate::rflags::Rflags;
use crate::stub::{finish_slow, load_kernel_tables, push_registers, restrict_speculation};
use crate::windows::{flags, user_cr3};

/// A kernel whose common system calls need six arguments and a number, and no frame.
///
/// The handler is compiled code with the C ABI, so it preserves RBX, RBP and R12 to R15 by itself and the stub saves
/// only the rest. A call that has to see or change the user's registers (fork, exec, sigreturn) sets the work flag
/// ([`PerCpuHeader::set_work_pending`]) and does its business in [`Kernel::work`], which gets the full frame.
///
/// Nobody is told of the border to user mode, so the stub refuses to compile where [`Kernel::Tracking`] is enabled.
///
/// ```
/// # use entry_core::stub::{LeanKernel, LeanResult};
/// # use entry_core::{IrqOff, Kernel};
/// /// Every number is unknown: -ENOSYS.
/// fn unknown(irq: IrqOff) -> LeanResult {
///     LeanResult::new(-38i64 as u64, irq)
/// }
/// ```
///
/// Only the stub may call the handler, which takes from that call that interrupts are off:
///
/// ```compile_fail,E0133
/// # use entry_core::stub::{LeanKernel, LeanResult};
/// fn again<K: LeanKernel>() -> LeanResult {
///     K::syscall_lean(0, 0, 0, 0, 0, 0, 39)
/// }
/// ```
///
/// ```
/// # use entry_core::stub::{LeanKernel, LeanResult};
/// unsafe fn again<K: LeanKernel>() -> LeanResult {
///     unsafe { K::syscall_lean(0, 0, 0, 0, 0, 0, 39) }
/// }
/// ```
pub trait LeanKernel: Kernel {
    /// A system call: RDI, RSI, RDX, R10, R8, R9 and the number as they were in user mode. Entered with interrupts off;
    /// the result carries the proof that they are off again.
    ///
    /// # Safety
    ///
    /// 1. The stub calls it, and nobody else: interrupts are off, GS base is the kernel's, and no proof that interrupts are
    ///    off exists on this CPU. This is what [`LeanKernel::lean_entry`] makes one of.
    unsafe extern "sysv64" fn syscall_lean(
        a0: u64,
        a1: u64,
        a2: u64,
        a3: u64,
        a4: u64,
        a5: u64,
        number: u64,
    ) -> LeanResult;

    /// The proof that a lean handler starts from.
    ///
    /// # Safety
    ///
    /// 1. Called once, first, in [`LeanKernel::syscall_lean`].
    #[inline(always)]
    unsafe fn lean_entry() -> IrqOff {
        // SAFETY: 1. the stub calls the handler with IF cleared by IA32_FMASK. 2. There is no other proof.
        unsafe { IrqOff::assume() }
    }
}

/// What a lean handler returns: the user's RAX, and the proof that interrupts are off, which takes no register.
#[derive(Debug)]
#[repr(transparent)]
pub struct LeanResult {
    value: u64,
    irq: IrqOff,
}

const _: () = assert!(size_of::<LeanResult>() == 8, "the result is returned in RAX");

impl LeanResult {
    /// The result of a system call.
    #[must_use]
    #[inline(always)]
    pub const fn new(value: u64, irq: IrqOff) -> Self {
        Self { value, irq }
    }

    /// The user's RAX.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.value
    }
}

/// Flags with which SYSRET either restores something else or reaches something it must not: a lean frame that has one of
/// them set goes by the full frame and the decision there.
#[expect(clippy::cast_possible_truncation, reason = "flags have 32 bits")]
pub(super) const NOT_LEAN: u32 = (Rflags::TRAP.bits()
    | Rflags::IO_PRIVILEGE_LEVEL.bits()
    | Rflags::NESTED_TASK.bits()
    | Rflags::RESUME.bits()
    | Rflags::VIRTUAL_8086.bits()
    | Rflags::VIRTUAL_INTERRUPT.bits()
    | Rflags::VIRTUAL_INTERRUPT_PENDING.bits()) as u32;

/// The upper half of the first address that no lean frame leaves for: 2⁴⁷, where the lower half ends with 4-level paging.
///
/// One bit would not do: with 5-level paging SYSCALL in the last bytes below 2⁵⁶ saves 2⁵⁶, which is no more canonical and has
/// bit 47 clear.
pub(super) const FIRST_NON_USER_HIGH: u32 = 1 << (47 - 32);

/// SYSCALL from 64-bit code with a lean frame of ten words.
///
/// **Reached by**: SYSCALL at CPL 3 in 64-bit mode, through IA32_LSTAR.
///
/// **The CPU has, has not**: as for [`syscall_entry`](crate::stub::syscall_entry).
///
/// | register | in | at the call | out |
/// |---|---|---|---|
/// | RSP | user's | ten words below the top of the kernel stack | user's |
/// | RDI, RSI, RDX, R8, R9 | arguments | the same | as they were |
/// | R10, RCX | fourth argument, user RIP | any, fourth argument | as they were |
/// | RAX | number | number, and on the stack as the seventh argument | result |
/// | R11 | user RFLAGS | user RFLAGS | user RFLAGS |
/// | RBX, RBP, R12–R15 | user's | user's | preserved by the handler |
/// | GS base | user's | kernel's | user's |
///
/// Stack at the call, from the top: RSP, RIP, RFLAGS, RDI, RSI, RDX, R10, R8, R9, RAX.
///
/// The exit's three tests are the decision for this one kind of frame: no work; RIP below 2⁴⁷, since SYSCALL in the last bytes
/// of the lower half saves the first address behind it; and no flag that SYSRET can't restore. Nothing but [`Kernel::work`] can
/// reach the saved words, so RIP needs no other test. If one fails, the ten words become a full [`TrapFrame`] and the
/// Rust decision follows.
///
/// A kernel that nobody is told of:
///
/// ```
/// # mod kernel { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/tracked.rs")); }
/// # use kernel::{MyKernel, Told};
/// use entry_core::kernel::{Baseline, NoTracking};
/// use entry_core::stub::syscall_entry_lean;
/// # fn main() {
/// let stub = entry_core::stub::address(syscall_entry_lean::<MyKernel<NoTracking>, Baseline>);
/// # assert_ne!(stub, 0);
/// # }
/// ```
///
/// One that is tracked does not compile:
///
/// ```compile_fail,E0080
/// # mod kernel { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/tracked.rs")); }
/// # use kernel::{MyKernel, Told};
/// use entry_core::kernel::Baseline;
/// use entry_core::stub::syscall_entry_lean;
/// # fn main() {
/// let stub = entry_core::stub::address(syscall_entry_lean::<MyKernel<Told>, Baseline>);
/// # assert_ne!(stub, 0);
/// # }
/// ```
///
/// **Windows**: user GS and RSP at the first instruction, user RSP up to the third; the user's RSP again at the second
/// SWAPGS, then also GS at SYSRET.
///
/// # Safety
///
/// As [`syscall_entry`](crate::stub::syscall_entry).
///
/// # Source
///
/// Intel SDM vol. 2B, *SYSCALL—Fast System Call*, *SYSRET—Return From Fast System Call*.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
pub unsafe extern "sysv64" fn syscall_entry_lean<K: LeanKernel, O: Options>() -> ! {
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
        // RSP is the thread's kernel stack.
        "push qword ptr gs:[{scratch}]", // RSP
        "push rcx",                      // RIP
        "push r11",                      // RFLAGS
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "push r9",
        "push rax", // original RAX, and the seventh argument
        ".if {ibrs}",
        // R11 is saved; the arguments are not to be lost.
        "mov r11, rdx",
        restrict_speculation!(),
        "mov rdx, r11",
        ".endif",
        "mov rcx, r10",
        "call {handler}",
        // RAX is the result, interrupts are off by the proof that it carries.
        // Why here and not in Rust: these three tests are what the lean path saves the frame for.
        ".if {tests_work}",
        "cmp dword ptr gs:[{work}], 0",
        "jne 8f",
        ".endif",
        ".if {ibrs}",
        "mov r8, rax",
        "mov ecx, {spec_ctrl}",
        "mov eax, gs:[{user_spec_ctrl}]",
        "xor edx, edx",
        "wrmsr",
        "mov rax, r8",
        ".endif",
        ".if {kpti}",
        "mov r11, [rsp + 72]",
        "mov gs:[{scratch}], r11",
        ".endif",
        "mov r9, [rsp + 8]",
        "mov r8, [rsp + 16]",
        "mov r10, [rsp + 24]",
        "mov rdx, [rsp + 32]",
        "mov rsi, [rsp + 40]",
        "mov rdi, [rsp + 48]",
        "mov r11, [rsp + 56]",
        "mov rcx, [rsp + 64]",
        ".if {tests_rip}",
        "cmp dword ptr [rsp + 68], {limit}", // the upper half of RIP
        "jae 8f",
        ".endif",
        ".if {tests_flags}",
        "test r11d, {not_lean}",
        "jnz 8f",
        ".endif",
        ".if {kpti}",
        "mov rsp, gs:[{user_cr3}]",
        // RSP is no stack.
        "12:",
        ".if {leaves_tables}",
        "mov cr3, rsp",
        ".endif",
        // The tables are the user's.
        "13:",
        "mov rsp, gs:[{scratch}]",
        ".else",
        "mov rsp, [rsp + 72]",
        "12:",
        "13:",
        ".endif",
        // RSP is the user's.
        "swapgs",
        // GS base is the user's.
        "6:",
        ".if {verw}",
        "verw word ptr [rip + 9f]",
        ".endif",
        "sysretq",
        "7:",
        stop!(),
        ".if {verw}",
        ".balign 2",
        "9:",
        ".word {ss}",
        ".endif",
        // The full frame, from the same stack top.
        "8:",
        ".if {ibrs}",
        // Two of the ways here come after the user's IA32_SPEC_CTRL was written.
        "mov r8, rax",
        restrict_speculation!(),
        "mov rax, r8",
        ".endif",
        "pop qword ptr gs:[{scratch_rax}]",
        "pop r9",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop r11",
        "pop rcx",
        "pop qword ptr gs:[{scratch}]",
        "push {ss}",                         // SS
        "push qword ptr gs:[{scratch}]",     // RSP
        "push r11",                          // RFLAGS
        "push {cs}",                         // CS
        "push rcx",                          // RIP
        "push qword ptr gs:[{scratch_rax}]", // original RAX
        "push {kind}",                       // kind
        push_registers!(),
        "mov rdi, rsp",
        "call {slow}",
        "jmp {leave}",
        stop!(),
        entry_window!("2b", "3b", "{user_both}"),
        entry_window!("3b", "14b", "{user_rsp}"),
        entry_window!("14b", "4b", "{kernel_tables}"),
        entry_window!("12b", "13b", "{kernel_tables}"),
        entry_window!("13b", "6b", "{user_rsp}"),
        entry_window!("6b", "7b", "{user_both}"),
        tests_work = const guard!("lean-work", true) as usize,
        tests_rip = const guard!("lean-rip", true) as usize,
        tests_flags = const guard!("lean-flags", true) as usize,
        scratch = const PerCpuHeader::SCRATCH_RSP,
        scratch_rax = const PerCpuHeader::SCRATCH_RAX,
        stack = const PerCpuHeader::KERNEL_STACK,
        work = const PerCpuHeader::WORK,
        limit = const FIRST_NON_USER_HIGH,
        not_lean = const NOT_LEAN,
        ss = const K::LAYOUT.user_data().bits(),
        cs = const K::LAYOUT.user_code64().bits(),
        kind = const EntryKind::Syscall64.word(0),
        loads_tables = const guard!("syscall-tables", O::KPTI) as usize,
        leaves_tables = const guard!("lean-tables", true) as usize,
        kpti = const O::KPTI as usize,
        verw = const guard!("clear-buffers", O::VERW) as usize,
        user_cr3 = const PerCpuHeader::USER_CR3,
        user_spec_ctrl = const PerCpuHeader::USER_SPEC_CTRL,
        ibrs = const guard!("restrict-speculation", O::IBRS) as usize,
        kernel_cr3 = const PerCpuHeader::KERNEL_CR3,
        spec_ctrl = const SpecCtrl::NUMBER,
        kernel_spec_ctrl = const PerCpuHeader::KERNEL_SPEC_CTRL,
        clear = const 0,
        user_both = const flags::USER_GS | flags::USER_RSP | user_cr3::<O>(),
        user_rsp = const flags::USER_RSP | user_cr3::<O>(),
        kernel_tables = const flags::USER_RSP,
        handler = sym <K as LeanKernel>::syscall_lean,
        slow = sym lean_slow::<K>,
        leave = sym <K::Exit as Exit>::leave::<O>,
    )
}

/// Rust half of a lean system call that can't leave the lean way.
///
/// # Safety
///
/// 1. `frame` is the frame at RSP, of an entry from user mode, and nothing else refers to it.
/// 2. Interrupts are off, GS base is the kernel's.
unsafe extern "sysv64" fn lean_slow<K: Kernel>(frame: *mut TrapFrame) -> Leave {
    const { assert!(!K::Tracking::ENABLED, "the lean path does not tell context tracking") };
    // SAFETY: condition 1.
    let frame = unsafe { &mut *frame };
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    finish_slow::<K>(frame, irq)
}
