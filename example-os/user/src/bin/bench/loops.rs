//! The timed loops, in assembly so that the length of every round is known by construction.
//!
//! What a round executes besides the operation itself is the row's loop overhead; it is stated
//! beside each loop, and [`rows`](crate::rows) subtracts nothing: it prints the figure. The
//! entering instruction (SYSCALL, UD2, the load that faults) is part of the operation.
//!
//! There is one timed stretch for each line of figures, in the same order: checks do not use these
//! loops.

use core::arch::naked_asm;

use user::sys::Errno;
use user::{control, sys};

/// Reads the time-stamp counter into RAX and destroys RDX; the timed stretch begins after its return.
///
/// A logged run is cut at this symbol, hence the plain name.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) extern "sysv64" fn bench_mark_begin() -> u64 {
    // RDX may hold an argument that is loaded once, ahead of the stretch.
    naked_asm!("push rdx", "rdtsc", "shl rdx, 32", "or rax, rdx", "pop rdx", "ret")
}

/// Reads the time-stamp counter into RAX and destroys RDX; the timed stretch ends at the call of it.
///
/// A logged run is cut at this symbol, hence the plain name.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) extern "sysv64" fn bench_mark_end() -> u64 {
    naked_asm!("rdtsc", "shl rdx, 32", "or rax, rdx", "ret")
}

/// What a timed loop leaves.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Timed {
    /// Ticks from the first mark to the second.
    pub(crate) ticks: u64,
    /// RAX after the last round: what its last system call or load gave.
    pub(crate) last: u64,
}

/// A loop of the kernel's own, which reads the clock itself: a control call between the marks, which are for a logged run.
///
/// It is never inlined, so that the same code is around each stretch.
///
/// # Errors
/// Those of the control call.
///
/// # Safety
/// 1. As [`control::control`].
#[inline(never)]
pub(crate) unsafe fn kernel_loop(operation: usize, argument: usize) -> Result<Timed, Errno> {
    bench_mark_begin();
    // SAFETY: 1.
    let ticks = unsafe { control::control(operation, argument) };
    bench_mark_end();
    ticks.map(|ticks| Timed {
        ticks: ticks as u64,
        last: 0,
    })
}

/// Defines a function that runs `$body` for `rounds` rounds.
///
/// DEC and JNZ are 2 instructions of each round. `$before` runs once ahead of the timed stretch, `$once` at its
/// beginning, and `$after` once behind it. In all of them R13, R14 and R15 hold the other arguments; R12, RBX and RBP
/// belong to the loop. What surrounds the rounds takes the same time for any number of them, so it cancels between two
/// measurements.
macro_rules! timed {
    (
        $(#[$doc:meta])*
        $name:ident:
        before [$($before:literal),*]
        once [$($once:literal),*]
        round [$($body:expr),*]
        after [$($after:literal),*]
        $(, $key:ident = const $value:expr)*
    ) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "sysv64" fn $name(
            rounds: u64,
            first: usize,
            second: usize,
            third: usize,
        ) -> Timed {
            naked_asm!(
                "push rbx",
                "push rbp",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "mov r12, rdi",
                "mov r13, rsi",
                "mov r14, rdx",
                "mov r15, rcx",
                $($before,)*
                // Destroys RAX and RDX.
                "call {begin}",
                "mov rbx, rax",
                "xor eax, eax",
                $($once,)*
                ".balign 64",
                "2:",
                $($body,)*
                "dec r12",
                "jnz 2b",
                "mov rbp, rax",
                "call {end}",
                "sub rax, rbx",
                "mov rbx, rax",
                $($after,)*
                // The two words of the result.
                "mov rax, rbx",
                "mov rdx, rbp",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbp",
                "pop rbx",
                "ret",
                begin = sym bench_mark_begin,
                end = sym bench_mark_end,
                $($key = const $value,)*
            )
        }
    };
}

timed! {
    /// Nothing but 8 NOPs: 10 instructions of overhead and no operation.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    calibration:
    before []
    once []
    round ["nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop"]
    after []
}

timed! {
    /// System call number `first` without arguments: overhead 3 (MOV, DEC, JNZ).
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. The call ignores its arguments.
    system_call:
    before []
    once []
    round ["mov eax, r13d", "syscall"]
    after []
}

timed! {
    /// System call number `first` by SYSENTER: overhead 3 (MOV, DEC, JNZ). The stack pointer and the return address that
    /// SYSENTER's callers hand over, 2 instructions, are part of the operation.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. The call ignores its arguments, and the kernel is example-os on a CPU with SYSENTER.
    sysenter_call:
    before []
    once []
    round ["mov eax, r13d", "mov rcx, rsp", "lea r11, [rip + 3f]", "sysenter", "3:"]
    after []
}

timed! {
    /// INT 0x80 with number `first`: overhead 3 (MOV, DEC, JNZ).
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. The call ignores its arguments.
    soft_interrupt:
    before []
    once []
    round ["mov eax, r13d", "int 0x80"]
    after []
}

timed! {
    /// A load of two bytes' length from `first`, which the kernel skips: overhead 2. The load itself is not counted:
    /// an instruction that faults has not run.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. Nothing is mapped at `first`, and the kernel skips the load.
    skipped_load:
    before []
    once ["mov rsi, r13"]
    round ["mov eax, [rsi]"]
    after []
}

timed! {
    /// Waits in each round until an interrupt has come and gone: overhead 3 (MOV, DEC, JNZ), and
    /// [`INTERRUPT_POLL`] instructions for each of the polls, whose number is the result.
    ///
    /// What shows the interrupt is ES: IRET to user mode nulls a selector whose segment user mode may not use, and so
    /// turns the null selector 3 into 0.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. Interrupts come, and further apart than one round.
    interrupted:
    before []
    once ["mov ecx, 3"]
    round ["mov es, ecx", "3:", "inc rax", "mov edx, es", "test edx, edx", "jnz 3b"]
    after []
}

/// Instructions of a poll in [`interrupted`].
pub(crate) const INTERRUPT_POLL: u64 = 4;

timed! {
    /// `kill(first, second)`: overhead 3. The arguments are loaded once, system calls keep them.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. The signal is one that does nothing.
    kill:
    before []
    once ["mov edi, r13d", "mov esi, r14d"]
    round ["mov eax, {kill}", "syscall"]
    after [],
    kill = const sys::KILL
}

timed! {
    /// Reads one byte in each of `rounds` pages from `first` on: overhead 3 (ADD, DEC, JNZ).
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. That many pages are mapped readable at `first`.
    touch:
    before []
    once []
    round ["movzx eax, byte ptr [r13]", "add r13, {page}"]
    after [],
    page = const sys::PAGE_BYTES
}

timed! {
    /// As [`touch`], with page faults returning by SYSRET meanwhile, which destroys RCX and R11.
    ///
    /// The switch is thrown here, so that no compiled code runs under it.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. That many pages are mapped readable at `first`.
    touch_with_sysret:
    before ["mov eax, {control}", "mov edi, {fault_exit}", "mov esi, 1", "int 0x80"]
    once []
    round ["movzx eax, byte ptr [r13]", "add r13, {page}"]
    after ["mov eax, {control}", "mov edi, {fault_exit}", "xor esi, esi", "int 0x80"],
    page = const sys::PAGE_BYTES,
    control = const control::NUMBER,
    fault_exit = const control::FAULT_EXIT
}

timed! {
    /// The flag instructions of a system call around 20 NOPs: overhead 22.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. This process has IOPL 3.
    flag_toggled:
    before []
    once []
    round ["pushfq", "cli", "sti", ".rept 20", "nop", ".endr", "cli", "popfq"]
    after []
}

timed! {
    /// 20 NOPs: overhead 22, and no operation.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    flag_untouched:
    before []
    once []
    round [".rept 20", "nop", ".endr"]
    after []
}

timed! {
    /// UD2, which the kernel skips: overhead 2.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. The kernel skips UD2.
    undefined:
    before []
    once []
    round ["ud2"]
    after []
}

timed! {
    /// Writes a byte from `third` to `second` and reads one from `first` to it: overhead 6 (four
    /// MOVs or XORs, DEC, JNZ). RSI and RDX are loaded once, system calls keep them.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. `third` is the address of a byte that nothing else uses.
    write_and_read:
    before []
    once ["mov rsi, r15", "mov edx, 1"]
    round [
        "mov eax, {write}", "mov edi, r14d", "syscall",
        "xor eax, eax", "mov edi, r13d", "syscall"
    ]
    after [],
    write = const sys::WRITE
}

/// The other side of [`write_and_read`]: reads a byte from `from` to `byte` and writes it to `to`
/// until the process is killed. Overhead 5 a round (two MOVs, a MOV, an XOR and a JMP).
///
/// # Safety
/// 1. `byte` is the address of a byte that nothing else uses.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn read_and_write(from: i32, to: i32, byte: *mut u8) -> ! {
    naked_asm!(
        "mov r13d, edi",
        "mov r14d, esi",
        "mov rsi, rdx",
        "mov edx, 1",
        "2:",
        "xor eax, eax",
        "mov edi, r13d",
        "syscall",
        "mov eax, {write}",
        "mov edi, r14d",
        "syscall",
        "jmp 2b",
        write = const sys::WRITE,
    )
}

/// What a process of a ring works on.
#[repr(C)]
pub(crate) struct RingWork {
    /// The byte that goes round.
    pub(crate) byte: u64,
    /// Start of the memory that it reads at each turn.
    pub(crate) memory: usize,
    /// How much that is, in [`RING_BLOCK`]s.
    pub(crate) blocks: usize,
}

/// Bytes that one block of a ring's working set has: eight cache lines.
pub(crate) const RING_BLOCK: usize = 512;

/// Instructions for one block: eight loads, ADD, DEC, JNZ.
pub(crate) const RING_BLOCK_INSTRUCTIONS: u64 = 11;

/// Reads R15's [`RingWork`] once over, 4 instructions and those of its blocks. R8, R9 and R10 are destroyed.
macro_rules! read_memory {
    () => {
        "mov r8, [r15 + 8]
         mov r9, [r15 + 16]
         test r9, r9
         jz 5f
         4:
         mov r10, [r8]
         mov r10, [r8 + 64]
         mov r10, [r8 + 128]
         mov r10, [r8 + 192]
         mov r10, [r8 + 256]
         mov r10, [r8 + 320]
         mov r10, [r8 + 384]
         mov r10, [r8 + 448]
         add r8, 512
         dec r9
         jnz 4b
         5:"
    };
}

timed! {
    /// Writes a byte to `second`, reads one from `first`, both by SYSENTER, and reads the memory of the [`RingWork`] at
    /// `third`: overhead 10 (four MOVs or XORs, 4 around the memory, DEC, JNZ) and the blocks. RSI and RDX are loaded once.
    ///
    /// # Safety
    /// 1. `rounds` is not 0.
    /// 2. `third` is the address of a [`RingWork`] that nothing else uses, whose memory can be read.
    /// 3. The kernel is example-os on a CPU with SYSENTER.
    ring_by_sysenter:
    before []
    once ["mov rsi, r15", "mov edx, 1"]
    round [
        "mov eax, {write}", "mov edi, r14d", "mov rcx, rsp", "lea r11, [rip + 3f]", "sysenter", "3:",
        "xor eax, eax", "mov edi, r13d", "mov rcx, rsp", "lea r11, [rip + 3f]", "sysenter", "3:",
        read_memory!()
    ]
    after [],
    write = const sys::WRITE
}

/// The other processes of [`ring_by_sysenter`]: read a byte from `from`, write it to `to`, read the memory, until the
/// process is killed. Overhead 9 a round (two MOVs, a MOV, an XOR, 4 around the memory and a JMP) and the blocks.
///
/// # Safety
/// 1. As [`ring_by_sysenter`], for `work`.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn pass_on_by_sysenter(from: i32, to: i32, work: *mut RingWork) -> ! {
    naked_asm!(
        "mov r13d, edi",
        "mov r14d, esi",
        "mov r15, rdx",
        "mov rsi, rdx",
        "mov edx, 1",
        "2:",
        "xor eax, eax",
        "mov edi, r13d",
        "mov rcx, rsp",
        "lea r11, [rip + 3f]",
        "sysenter",
        "3:",
        "mov eax, {write}",
        "mov edi, r14d",
        "mov rcx, rsp",
        "lea r11, [rip + 3f]",
        "sysenter",
        "3:",
        read_memory!(),
        "jmp 2b",
        write = const sys::WRITE,
    )
}

/// Yields until the process is killed. Overhead 2 a round (MOV, JMP).
#[unsafe(naked)]
pub(crate) extern "sysv64" fn yield_forever() -> ! {
    naked_asm!(
        "2:",
        "mov eax, {sched_yield}",
        "syscall",
        "jmp 2b",
        sched_yield = const sys::SCHED_YIELD,
    )
}

/// Reads the byte at `address` and says how the kernel came back from the page fault: 0 if RCX
/// was kept, as IRET can, 1 if RCX holds the address of the read, as SYSRET needs, 2 otherwise.
///
/// `fault_exit` is what [`control::FAULT_EXIT`] is set to meanwhile; it is 0 afterwards.
///
/// # Safety
/// 1. `address` is that of a readable byte.
/// 2. The kernel is example-os.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn fault_exit_taken(address: usize, fault_exit: usize) -> u64 {
    naked_asm!(
        "mov r8, rdi",
        "mov eax, {control}",
        "mov edi, {fault_exit}",
        "int 0x80",
        "xor ecx, ecx",
        "2:",
        "movzx eax, byte ptr [r8]",
        "mov r9d, 0",
        "lea rdx, [rip + 2b]",
        "test rcx, rcx",
        "jz 3f",
        "mov r9d, 1",
        "cmp rcx, rdx",
        "je 3f",
        "mov r9d, 2",
        "3:",
        "mov eax, {control}",
        "mov edi, {fault_exit}",
        "xor esi, esi",
        "int 0x80",
        "mov eax, r9d",
        "ret",
        control = const control::NUMBER,
        fault_exit = const control::FAULT_EXIT,
    )
}

/// Runs UD2 three times and returns how often the next instruction was reached, which is 3 when
/// the kernel skips it.
///
/// # Safety
/// 1. The kernel skips UD2.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn undefined_three_times() -> u64 {
    naked_asm!(
        "xor eax, eax",
        "ud2",
        "inc eax",
        "ud2",
        "inc eax",
        "ud2",
        "inc eax",
        "ret",
    )
}

/// RFLAGS of this program.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn rflags() -> u64 {
    naked_asm!("pushfq", "pop rax", "ret")
}

/// Turns interrupts off and on as a round of [`flag_toggled`], and returns RFLAGS from in between, while they are off.
///
/// # Safety
/// 1. This process has IOPL 3.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn flag_toggled_once() -> u64 {
    naked_asm!("pushfq", "cli", "sti", "cli", "pushfq", "pop rax", "popfq", "ret")
}

/// INT 0x80 with number `number`; returns what the kernel answers.
///
/// # Safety
/// 1. The call ignores its arguments.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn soft_interrupt_once(number: usize) -> u64 {
    naked_asm!("mov rax, rdi", "int 0x80", "ret")
}

/// System call `number` by SYSENTER; returns what the kernel answers.
///
/// # Safety
/// 1. The call ignores its arguments, and the kernel is example-os on a CPU with SYSENTER.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sysenter_once(number: usize) -> u64 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rsp",
        "lea r11, [rip + 2f]",
        "sysenter",
        "2:",
        "ret"
    )
}

/// Loads from `address` with an instruction of two bytes and returns 1 if the kernel has skipped it.
///
/// # Safety
/// 1. The kernel skips the load, or `address` is that of a readable word that isn't 1.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn skipped_load_once(address: usize) -> u64 {
    naked_asm!("mov rsi, rdi", "mov eax, 1", "mov eax, [rsi]", "ret")
}

/// As [`interrupted`], without a clock.
///
/// # Safety
/// 1. As [`interrupted`].
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn wait_for_interrupts(rounds: u64) {
    naked_asm!(
        "mov ecx, 3",
        "2:",
        "mov es, ecx",
        "3:",
        "mov edx, es",
        "test edx, edx",
        "jnz 3b",
        "dec rdi",
        "jnz 2b",
        "ret",
    )
}
