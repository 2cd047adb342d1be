//! Whether the registers that the kernel must keep are kept.

use core::arch::naked_asm;

/// Defines a function that fills registers, runs `$event`, and returns 0 when all of `$kept` are
/// as before, else the place in that list of the first that is not, from 1 on. The direction
/// flag is set meanwhile; 101 says that it did not survive.
macro_rules! keeps_registers {
    ($(#[$doc:meta])* $name:ident, [$($event:literal),+], $kept:literal) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "sysv64" fn $name(operand: usize) -> usize {
            naked_asm!(
                "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
                "mov rax, rdi",
                ".set place, 1",
                concat!(".irp register, ", $kept),
                "movabs \\register, 0x0102030405060708 * place",
                ".set place, place + 1",
                ".endr",
                "std",
                $($event,)+
                // Compares destroy the flags, so the direction flag is looked at first.
                "pushfq",
                "cld",
                "bt dword ptr [rsp], 10",
                "lea rsp, [rsp + 8]",
                "mov eax, 101",
                "jnc 3f",
                ".set place, 1",
                concat!(".irp register, ", $kept),
                "movabs rax, 0x0102030405060708 * place",
                "cmp \\register, rax",
                "mov eax, place",
                "jne 3f",
                ".set place, place + 1",
                ".endr",
                "xor eax, eax",
                "3:",
                "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
                "ret",
            )
        }
    };
}

keeps_registers! {
    /// Over system call `operand`: all but RAX, RCX and R11.
    ///
    /// # Safety
    /// 1. The call ignores its arguments.
    over_system_call, ["syscall"], "rbx, rbp, rdi, rsi, rdx, r8, r9, r10, r12, r13, r14, r15"
}

keeps_registers! {
    /// Over a read of the byte at `operand`: all but RAX, which the read itself fills.
    ///
    /// # Safety
    /// 1. `operand` is the address of a readable byte.
    over_page_fault, ["movzx eax, byte ptr [rax]"],
    "rbx, rcx, rbp, rdi, rsi, rdx, r8, r9, r10, r11, r12, r13, r14, r15"
}

/// Makes system call `number` and returns 0 when RCX holds the address after SYSCALL and R11 the
/// flags, 1 when RCX does not, 2 when R11 does not.
///
/// # Safety
/// 1. The call ignores its arguments.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn rcx_and_r11(number: usize) -> usize {
    naked_asm!(
        "mov rax, rdi",
        "syscall",
        "2:",
        "pushfq",
        "pop rdx",
        "lea rsi, [rip + 2b]",
        "mov eax, 1",
        "cmp rcx, rsi",
        "jne 3f",
        "mov eax, 2",
        "cmp r11, rdx",
        "jne 3f",
        "xor eax, eax",
        "3:",
        "ret",
    )
}
