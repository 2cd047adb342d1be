//! Loops in 32-bit code: this 64-bit program jumps there and back, as only `example-os` lets it, and only when asked.
//!
//! 32-bit code has the lower 4 GiB alone, so it runs on a small stack of its own; and the kernel keeps neither R8 to R15
//! nor the upper halves for it, so everything else waits in memory.
//!
//! The far jumps go through memory, by instructions that are the same in both kinds of code.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;
use core::mem::offset_of;

use user::control;

use crate::loops::{Timed, bench_mark_begin, bench_mark_end};

/// Selector of 32-bit user code in the kernel's table.
const CODE_32: u16 = 0x1b;
/// Selector of 64-bit user code.
const CODE_64: u16 = 0x2b;

/// What a far jump loads.
#[repr(C, packed)]
struct FarPointer {
    offset: u32,
    selector: u16,
}

/// What 32-bit code needs below 4 GiB.
#[repr(C, align(16))]
struct Low {
    stack: [u8; 1024],
    to_32: FarPointer,
    to_64: FarPointer,
    /// RSP of 64-bit code.
    rsp: u64,
    /// Ticks at the first mark.
    start: u64,
}

#[expect(dead_code, reason = "assembly alone uses it, by its address")]
struct LowMemory(UnsafeCell<Low>);

// SAFETY: a program has one thread, and only the loops touch it.
unsafe impl Sync for LowMemory {}

/// The program is linked below 4 GiB.
static LOW: LowMemory = LowMemory(UnsafeCell::new(Low {
    stack: [0; 1024],
    to_32: FarPointer {
        offset: 0,
        selector: CODE_32,
    },
    to_64: FarPointer {
        offset: 0,
        selector: CODE_64,
    },
    rsp: 0,
    start: 0,
}));

/// Nulls DS, ES, FS and GS, which 32-bit code was given: each switch would have to load them, and the rows that follow would
/// pay for it.
pub(crate) fn null_data_segments() {
    // SAFETY: 64-bit code uses none of them, and this program neither FS nor GS.
    unsafe {
        asm!(
            "mov ds, {null:e}",
            "mov es, {null:e}",
            "mov fs, {null:e}",
            "mov gs, {null:e}",
            null = in(reg) 0,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Takes the place of the marks in functions that do something once.
#[unsafe(naked)]
extern "sysv64" fn no_mark() -> u64 {
    naked_asm!("xor eax, eax", "ret")
}

/// Defines a function that runs `$body` for `rounds` rounds in 32-bit code, between the functions `$begin` and `$end`.
///
/// EBX is the call's number, EDI the address of the page by which 32-bit code enters; ESI counts. SUB and JNZ are 2
/// instructions of each round. `last` is EAX after the last one.
macro_rules! in_32_bit_code {
    ($(#[$doc:meta])* $name:ident: $begin:ident, $end:ident, round [$($body:literal),*]) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "sysv64" fn $name(rounds: u64, number: usize) -> Timed {
            naked_asm!(
                "push rbx",
                "push rbp",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "mov [rip + {low} + {rsp}], rsp",
                "lea rsp, [rip + {low} + {stack_bytes}]",
                "lea rax, [rip + 2f]",
                "mov [rip + {low} + {to_32}], eax",
                "lea rax, [rip + 3f]",
                "mov [rip + {low} + {to_64}], eax",
                "mov ebx, esi",
                "mov esi, edi",
                "mov edi, {page}",
                // Destroys RAX and RDX.
                "call {begin}",
                "mov [rip + {low} + {start}], rax",
                "jmp fword ptr [rip + {low} + {to_32}]",
                ".code32",
                ".balign 64",
                "2:",
                $($body,)*
                "sub esi, 1",
                "jnz 2b",
                // jmp fword ptr [low + to_64]
                ".byte 0xff, 0x2d",
                ".long {low} + {to_64}",
                ".code64",
                "3:",
                "mov ebp, eax",
                "call {end}",
                "sub rax, [rip + {low} + {start}]",
                // The other word of the result.
                "mov edx, ebp",
                "mov rsp, [rip + {low} + {rsp}]",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbp",
                "pop rbx",
                "ret",
                low = sym LOW,
                rsp = const offset_of!(Low, rsp),
                start = const offset_of!(Low, start),
                to_32 = const offset_of!(Low, to_32),
                to_64 = const offset_of!(Low, to_64),
                stack_bytes = const offset_of!(Low, to_32),
                page = const control::CALL_PAGE_32,
                begin = sym $begin,
                end = sym $end,
            )
        }
    };
}

in_32_bit_code! {
    /// System call `number` by INT 0x80: overhead 3 (MOV, SUB, JNZ).
    ///
    /// # Safety
    /// 1. `rounds` is from 1 to 2^32 - 1.
    /// 2. The call ignores its arguments, and this process may have 32-bit code.
    soft_interrupt: bench_mark_begin, bench_mark_end, round ["mov eax, ebx", "int 0x80"]
}

in_32_bit_code! {
    /// Once, and without a clock.
    ///
    /// # Safety
    /// As [`soft_interrupt`].
    soft_interrupt_once: no_mark, no_mark, round ["mov eax, ebx", "int 0x80"]
}

in_32_bit_code! {
    /// System call `number` by the page, which has SYSENTER: overhead 11: MOV, CALL, three times PUSH and three times
    /// POP, RET, SUB, JNZ. The stack pointer that SYSENTER's callers hand over, 1 instruction, is part of the operation.
    ///
    /// # Safety
    /// As [`soft_interrupt`].
    sysenter: bench_mark_begin, bench_mark_end, round ["mov eax, ebx", "call edi"]
}

in_32_bit_code! {
    /// Once, and without a clock.
    ///
    /// # Safety
    /// As [`soft_interrupt`].
    sysenter_once: no_mark, no_mark, round ["mov eax, ebx", "call edi"]
}

in_32_bit_code! {
    /// System call `number` by SYSCALL: overhead 3 (MOV, SUB, JNZ).
    ///
    /// # Safety
    /// As [`soft_interrupt`]; the CPU has SYSCALL in 32-bit code.
    syscall: bench_mark_begin, bench_mark_end, round ["mov eax, ebx", "syscall"]
}

in_32_bit_code! {
    /// Once, and without a clock.
    ///
    /// # Safety
    /// As [`syscall`].
    syscall_once: no_mark, no_mark, round ["mov eax, ebx", "syscall"]
}
