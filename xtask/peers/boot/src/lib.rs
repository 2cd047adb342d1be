//! What every peer image needs: a PVH entry, a serial port, an end, and the loops that user mode runs.
//!
//! The first GiB is mapped where it is, open to user mode, so that user code can be part of the image. Interrupts
//! stay off, or masked where a crate wants them on.
#![no_std]

use core::arch::{global_asm, naked_asm};
use core::fmt::{self, Write};

const STACK_BYTES: usize = 64 << 10;

#[repr(C, align(4096))]
struct Stack([u8; STACK_BYTES]);

static mut BOOT_STACK: Stack = Stack([0; STACK_BYTES]);
static mut USER_STACK: Stack = Stack([0; STACK_BYTES]);

global_asm!(
    // The PVH note: name "Xen", type 18 (XEN_ELFNOTE_PHYS32_ENTRY).
    ".pushsection .note.pvh, \"a\", @note",
    ".balign 4",
    ".long 4, 8, 18",
    ".asciz \"Xen\"",
    ".quad _start",
    ".popsection",
    ".pushsection .data.boot, \"aw\", @progbits",
    ".balign 4096",
    "peer_root:",
    ".quad peer_pointers + 7",
    ".zero 511 * 8",
    "peer_pointers:",
    ".quad peer_directory + 7",
    ".zero 511 * 8",
    "peer_directory:",
    // Present, writable, user, 2 MiB.
    ".set peer_page, 0x87",
    ".rept 512",
    ".quad peer_page",
    ".set peer_page, peer_page + 0x200000",
    ".endr",
    "peer_gdt:",
    ".quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff",
    "peer_gdt_pointer:",
    ".short 23",
    ".quad peer_gdt",
    ".popsection",
    ".pushsection .text.boot, \"ax\", @progbits",
    ".code32",
    ".globl _start",
    "_start:",
    "cli",
    "cld",
    "mov eax, cr4",
    "or eax, 0x20",
    "mov cr4, eax",
    "mov eax, offset peer_root",
    "mov cr3, eax",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "or eax, 0x100",
    "wrmsr",
    "mov eax, cr0",
    "or eax, 0x80000000",
    "mov cr0, eax",
    "lgdt [peer_gdt_pointer]",
    ".byte 0xea",
    ".long 2f",
    ".short 8",
    ".code64",
    "2:",
    "mov eax, 16",
    "mov ss, eax",
    "mov ds, eax",
    "mov es, eax",
    "lea rsp, [rip + {stack} + {bytes}]",
    "xor ebp, ebp",
    "call peer_main",
    "ud2",
    ".popsection",
    stack = sym BOOT_STACK,
    bytes = const STACK_BYTES,
);

/// The end of the stack that user mode gets.
pub fn user_stack() -> usize {
    (&raw const USER_STACK).addr() + STACK_BYTES
}

fn out8(port: u16, value: u8) {
    // SAFETY: only COM1's data register, which takes any byte, and the masks of the interrupt controllers are written to.
    unsafe { core::arch::asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

/// Masks every line of the two interrupt controllers.
pub fn mask_interrupt_controllers() {
    out8(0x21, 0xff);
    out8(0xa1, 0xff);
}

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            out8(0x3f8, byte);
        }
        Ok(())
    }
}

/// Writes a line to COM1.
pub fn line(text: fmt::Arguments<'_>) {
    // Writing to the port cannot fail.
    let _ = Serial.write_fmt(format_args!("{text}\n"));
}

/// Ends the machine.
pub fn end(success: bool) -> ! {
    let code: u32 = if success { 0x10 } else { 0x11 };
    // SAFETY: the debug-exit device ends the machine, which is what is wanted.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") code, options(nomem, nostack)) }
    loop {}
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    line(format_args!("[panic] {info}"));
    end(false)
}

/// Defines a user-mode program: R12 rounds of `$body`, DEC and JNZ, then `$end`. R14 and R15 are the clock before
/// and after.
macro_rules! rounds {
    ($(#[$doc:meta])* $name:ident: [$($body:literal),*] $end:literal) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub extern "sysv64" fn $name() -> ! {
            naked_asm!(
                "rdtsc",
                "shl rdx, 32",
                "or rax, rdx",
                "mov r14, rax",
                "2:",
                $($body,)*
                "dec r12",
                "jnz 2b",
                "rdtsc",
                "shl rdx, 32",
                "or rax, rdx",
                "mov r15, rax",
                $end,
                "ud2",
            )
        }
    };
}

rounds! {
    /// 8 NOPs: 10 instructions a round. Ends with INT3.
    nops: ["nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop"] "int3"
}
rounds! {
    /// A system call: overhead 3. Ends with INT3.
    system_calls: ["mov eax, 39", "syscall"] "int3"
}
rounds! {
    /// A system call by INT 0x80: overhead 3. Ends with INT3.
    legacy_calls: ["mov eax, 39", "int 0x80"] "int3"
}
rounds! {
    /// UD2, to be skipped: overhead 2. Ends with INT3.
    undefined: ["ud2"] "int3"
}
rounds! {
    /// INT3: overhead 2. Ends with INT 0x20.
    breakpoints: ["int3"] "int 0x20"
}
rounds! {
    /// As [`nops`], and ends with INT 0x20.
    nops_to_end: ["nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop"] "int 0x20"
}
rounds! {
    /// As [`undefined`], and ends with INT 0x20.
    undefined_to_end: ["ud2"] "int 0x20"
}

/// Rounds of the shorter stretch.
const ROUNDS: u64 = 128;

/// Prints the figures of a row: three repeats, each of a shorter and a longer stretch.
///
/// `timed` runs so many rounds and gives the ticks. A row without a name is the loop of known length.
pub fn measure(row: Option<&str>, overhead: u64, mut timed: impl FnMut(u64) -> u64) {
    for _ in 0..3 {
        for rounds in [ROUNDS, 2 * ROUNDS] {
            let ticks = timed(rounds);
            match row {
                Some(row) => line(format_args!(
                    "[bench] row={row} rounds={rounds} ticks={ticks} loop={overhead} ops=1"
                )),
                None => line(format_args!(
                    "[bench] calibration rounds={rounds} ticks={ticks} loop={overhead}"
                )),
            }
        }
    }
}
