//! Handlers of the `x86-interrupt` calling convention in an IDT of the `x86_64` crate.
#![no_std]
#![no_main]
#![feature(abi_x86_interrupt)]

use core::arch::naked_asm;

use peer_boot::{end, measure};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{InterruptDescriptorTable, InterruptStackFrame};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

static mut GDT: GlobalDescriptorTable = GlobalDescriptorTable::new();
static mut IDT: InterruptDescriptorTable = InterruptDescriptorTable::new();
static mut TSS: TaskStateSegment = TaskStateSegment::new();
static mut STACK: [u8; 16 << 10] = [0; 16 << 10];
static mut KERNEL_RSP: u64 = 0;

/// Stands for whatever a handler calls: the compiler must save what a call may destroy.
#[inline(never)]
extern "C" fn opaque(frame: &InterruptStackFrame) {
    // SAFETY: nothing is executed.
    unsafe { core::arch::asm!("/* {} */", in(reg) frame, options(nostack)) }
}

extern "x86-interrupt" fn breakpoint(frame: InterruptStackFrame) {
    opaque(&frame);
}

extern "x86-interrupt" fn undefined(mut frame: InterruptStackFrame) {
    // SAFETY: UD2 has two bytes, and another instruction follows it.
    unsafe { frame.as_mut().update(|frame| frame.instruction_pointer += 2) }
}

/// Goes to user mode; comes back when the program executes INT 0x20. Gives R15 less R14.
#[unsafe(naked)]
extern "sysv64" fn run(rip: u64, rsp: u64, rounds: u64, cs: u64, ss: u64) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rip + {saved}], rsp",
        "mov r12, rdx",
        "push r8",
        "push rsi",
        "push 2",
        "push rcx",
        "push rdi",
        "iretq",
        saved = sym KERNEL_RSP,
    )
}

/// Reached by: INT 0x20 of a program.
#[unsafe(naked)]
extern "C" fn finish() {
    naked_asm!(
        "mov rax, r15",
        "sub rax, r14",
        "mov rsp, [rip + {saved}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        saved = sym KERNEL_RSP,
    )
}

#[unsafe(no_mangle)]
extern "C" fn peer_main() -> ! {
    let stack = VirtAddr::new((&raw const STACK).addr() as u64 + (16 << 10));
    // SAFETY: one CPU, interrupts off, and this runs once: no other reference exists.
    let (gdt, idt, tss) = unsafe { (&mut *&raw mut GDT, &mut *&raw mut IDT, &mut *&raw mut TSS) };
    tss.privilege_stack_table[0] = stack;
    // Boot runs on selectors 8 and 16: kernel code and data come first here, too.
    gdt.append(Descriptor::kernel_code_segment());
    gdt.append(Descriptor::kernel_data_segment());
    let ss = gdt.append(Descriptor::user_data_segment());
    let cs = gdt.append(Descriptor::user_code_segment());
    let task = gdt.append(Descriptor::tss_segment(tss));
    gdt.load();
    // SAFETY: the descriptor is that of a TSS which lives on.
    unsafe { load_tss(task) };
    idt.breakpoint
        .set_handler_fn(breakpoint)
        .set_privilege_level(PrivilegeLevel::Ring3);
    idt.invalid_opcode.set_handler_fn(undefined);
    // SAFETY: the handler never returns to what it interrupted, and takes no error code.
    unsafe { idt[0x20].set_handler_addr(VirtAddr::new(finish as *const () as u64)) }
        .set_privilege_level(PrivilegeLevel::Ring3);
    idt.load();
    let ticks = |program: extern "sysv64" fn() -> !, rounds| {
        run(
            program as *const () as u64,
            peer_boot::user_stack() as u64,
            rounds,
            cs.0.into(),
            ss.0.into(),
        )
    };
    measure(None, 10, |rounds| ticks(peer_boot::nops_to_end, rounds));
    measure(Some("peer/x86-interrupt/breakpoint"), 2, |rounds| {
        ticks(peer_boot::breakpoints, rounds)
    });
    measure(Some("peer/x86-interrupt/undefined"), 2, |rounds| {
        ticks(peer_boot::undefined_to_end, rounds)
    });
    end(true)
}
