//! Shows that the kernel survives a program's fault and says which: does one forbidden thing.
//!
//! `crash WHAT`, see [`KINDS`]. Coming back from any of them is itself a failure: exit status 1.
#![no_std]
#![no_main]

use core::arch::asm;

use user::{Args, println, sys};

user::program!(main);

/// What can be asked for.
const KINDS: &str = "ud2, null (read at 0), kernel (read of the kernel's half), noncanonical \
    (jump to one), div0, int3, hlt (privileged), stack (push with RSP 0), loop (never ends), \
    nosys (a system call that no kernel has)";

fn main(args: Args) -> i32 {
    let Some(kind) = args.get(1) else {
        println!("usage: crash WHAT, which is one of {KINDS}");
        return 2;
    };
    match kind {
        // SAFETY: faults without another effect; should it return, nothing has changed.
        "ud2" => unsafe { asm!("ud2") },
        // SAFETY: as for `ud2`; RAX is declared.
        "null" => unsafe { asm!("mov rax, [0]", out("rax") _) },
        // SAFETY: as for `ud2`; RAX is declared.
        "kernel" => unsafe { asm!("mov rax, [{at}]", at = in(reg) KERNEL, out("rax") _) },
        // SAFETY: no code is there to be executed.
        "noncanonical" => unsafe { asm!("jmp {at}", at = in(reg) NON_CANONICAL) },
        // SAFETY: as for `ud2`; what DIV writes is declared.
        "div0" => unsafe { asm!("xor ecx, ecx", "div ecx", out("ecx") _, out("eax") _, out("edx") _) },
        // SAFETY: as for `ud2`.
        "int3" => unsafe { asm!("int3") },
        // SAFETY: as for `ud2`.
        "hlt" => unsafe { asm!("hlt") },
        // SAFETY: RSP is put back, should the push go through.
        "stack" => unsafe { asm!("mov {save}, rsp", "xor esp, esp", "push rax", "mov rsp, {save}", save = out(reg) _) },
        // No kernel's number; the answer, an error, is of no interest.
        "nosys" => {
            // SAFETY: 1. and 2. hold: there is no such call.
            let _ = unsafe { sys::raw(NO_CALL, [0; 6]) };
        }
        "loop" => loop {
            core::hint::spin_loop();
        },
        _ => {
            println!("crash: `{kind}` is none of {KINDS}");
            return 2;
        }
    }
    println!("crash: {kind} did not end the program");
    1
}

/// A number that is no call's.
const NO_CALL: usize = 1000;
/// An address in the kernel's half.
const KERNEL: u64 = 0xffff_ffff_8000_0000;
/// The first address that is in neither half with 48 address bits.
const NON_CANONICAL: u64 = 0x0000_8000_0000_0000;
