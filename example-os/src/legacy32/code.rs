//! The way to 32-bit protected mode and back, and what runs there.
//!
//! Everything but [`cross`] and [`back`] lies in the boot part of the image, whose addresses are those of RAM: in
//! protected mode, on the boot tables and with paging off alike.

use core::arch::naked_asm;
use core::mem::offset_of;

use entry_core::msr::{Efer, Register, SysenterCs, SysenterEip, SysenterEsp};
use entry_sysenter::trampoline::Trampoline32;

use super::{
    BLOCK_BYTES, KERNEL_CODE, KERNEL_DATA, LONG_CODE, LOW, Low, MAX_STEPS, STACK_WORDS, Step, TASK_STATE, TSS_ESP0,
    Task, USER_DATA,
};
use crate::entry::LAYOUT;
use crate::memory::DIRECT_MAP;

const CR0_PAGING: i32 = i32::MIN;
const CR4_PAGE_SIZE: u32 = 1 << 4;
const CR4_PAE: u32 = 1 << 5;
const EFER_LONG_MODE: i32 = 1 << 8;
const TRAP: i32 = 1 << 8;

/// Words that a switch leaves on the kernel stack: EBP, EDI, ESI, EBX, EDX, ECX.
pub(super) const SWITCHED_WORDS: u32 = 6;

/// Bytes kept free for the trampoline.
const SLOT_BYTES: usize = 16;
const _: () = assert!(Trampoline32::SIZE <= SLOT_BYTES, "the trampoline fits");

/// Where a function of the boot part begins, in RAM and in protected mode.
#[expect(
    clippy::fn_to_numeric_cast_any,
    clippy::cast_possible_truncation,
    reason = "tables and registers hold the address, and the boot part lies in the first MiBs"
)]
pub(super) fn address(function: unsafe extern "sysv64" fn() -> !) -> u32 {
    function as usize as u32
}

/// Goes to protected mode, and returns when a task has executed the INT that ends the excursion.
///
/// | register | in | out |
/// |---|---|---|
/// | RDI | [`Low`] through the direct map | clobbered |
/// | RBX, RBP, R12–R15, RSP | caller's | caller's |
/// | CR3, CR4, GDTR, IDTR, CS, SS | kernel's | kernel's |
/// | TR | kernel's | that of the excursion |
/// | DS, ES | any | null |
/// | MSRs of SYSENTER | any | those of the excursion |
///
/// # Safety
///
/// 1. CPL is 0 and IF is 0; nothing but this CPU runs, and no NMI comes.
/// 2. The structure holds tables, tasks and registers for the excursion.
/// 3. `boot_cr3` is that of tables with the first GiB at 0, at the direct map and at the kernel's base, executable.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn cross(low: *mut Low) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi + {saved_rsp}], rsp",
        "mov rax, cr3",
        "mov [rdi + {saved_cr3}], rax",
        "mov rax, cr4",
        "mov [rdi + {saved_cr4}], rax",
        "sgdt [rdi + {saved_gdt}]",
        "sidt [rdi + {saved_idt}]",
        "mov rax, [rdi + {boot_cr3}]",
        "mov cr3, rax",
        // On the boot tables. They don't map kernel stacks.
        "mov esp, offset {low} + {small_stack_end}",
        "lgdt [rdi + {gdt_pointer}]",
        "push {kernel_code}",
        "mov eax, offset {into_protected_mode}",
        "push rax",
        "retfq",
        saved_rsp = const offset_of!(Low, saved_rsp),
        saved_cr3 = const offset_of!(Low, saved_cr3),
        saved_cr4 = const offset_of!(Low, saved_cr4),
        saved_gdt = const offset_of!(Low, saved_gdt),
        saved_idt = const offset_of!(Low, saved_idt),
        boot_cr3 = const offset_of!(Low, boot_cr3),
        low = sym LOW,
        small_stack_end = const SMALL_STACK_END,
        gdt_pointer = const offset_of!(Low, gdt_pointer),
        kernel_code = const KERNEL_CODE,
        into_protected_mode = sym into_protected_mode,
    )
}

const SMALL_STACK_END: usize = offset_of!(Low, small_stack) + 4 * STACK_WORDS;
const ESP0: usize = offset_of!(Low, tss) + 4 * TSS_ESP0;

/// From compatibility mode to protected mode, and into the first task.
///
/// Reached by [`cross`], on the boot tables and the small stack.
///
/// # Safety
///
/// 1. As [`cross`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
unsafe extern "sysv64" fn into_protected_mode() -> ! {
    naked_asm!(
        ".code32",
        "mov eax, {kernel_data}",
        "mov ss, eax",
        // Null selectors serve in 64-bit mode alone, and IRET would null one of DPL 0. FS and GS are left alone: in long mode
        // their bases are something else.
        "mov eax, {user_data}",
        "mov ds, eax",
        "mov es, eax",
        // Turning paging off leaves long mode.
        "mov eax, cr0",
        "and eax, {without_paging}",
        "mov cr0, eax",
        "mov ecx, {efer}",
        "rdmsr",
        "and eax, {without_long_mode}",
        "wrmsr",
        "mov eax, {page_size}",
        "mov cr4, eax",
        "mov eax, [{low} + {tasks} + {directory}]",
        "mov cr3, eax",
        "mov eax, cr0",
        "or eax, {paging}",
        "mov cr0, eax",
        // Protected mode with 4 MiB pages.
        "lidt [{low} + {idt_pointer}]",
        "mov eax, {task_state}",
        "ltr ax",
        "xor edx, edx",
        "mov ecx, {sysenter_cs}",
        "mov eax, [{low} + {cs}]",
        "wrmsr",
        "mov ecx, {sysenter_esp}",
        "mov eax, [{low} + {esp}]",
        "wrmsr",
        "mov ecx, {sysenter_eip}",
        "mov eax, [{low} + {eip}]",
        "wrmsr",
        "mov ebx, [{low} + {rounds}]",
        "mov esi, offset {low} + {memory}",
        "mov edi, [{low} + {blocks}]",
        "mov esp, offset {low} + {first}",
        "iretd",
        ".code64",
        kernel_data = const KERNEL_DATA,
        without_paging = const !CR0_PAGING,
        efer = const Efer::NUMBER,
        without_long_mode = const !EFER_LONG_MODE,
        page_size = const CR4_PAGE_SIZE,
        low = sym LOW,
        tasks = const offset_of!(Low, tasks),
        directory = const offset_of!(Task, directory),
        paging = const CR0_PAGING,
        idt_pointer = const offset_of!(Low, idt_pointer),
        task_state = const TASK_STATE,
        sysenter_cs = const SysenterCs::NUMBER,
        cs = const offset_of!(Low, sysenter_cs),
        sysenter_esp = const SysenterEsp::NUMBER,
        esp = const offset_of!(Low, sysenter_esp),
        sysenter_eip = const SysenterEip::NUMBER,
        eip = const offset_of!(Low, sysenter_eip),
        user_data = const USER_DATA,
        rounds = const offset_of!(Low, rounds),
        memory = const offset_of!(Low, memory),
        blocks = const offset_of!(Low, blocks),
        first = const offset_of!(Low, first),
    )
}

/// From protected mode to long mode and the kernel's half.
///
/// Reached by INT of a task, on its kernel stack.
///
/// # Safety
///
/// 1. As [`cross`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn into_long_mode() -> ! {
    naked_asm!(
        ".code32",
        "mov eax, cr0",
        "and eax, {without_paging}",
        "mov cr0, eax",
        "mov eax, {pae}",
        "mov cr4, eax",
        "mov eax, [{low} + {boot_cr3}]",
        "mov cr3, eax",
        "mov ecx, {efer}",
        "rdmsr",
        "or eax, {long_mode}",
        "wrmsr",
        "mov eax, cr0",
        "or eax, {paging}",
        "mov cr0, eax",
        // Compatibility mode until CS names a 64-bit segment: a far jump, written out for want of a mnemonic.
        ".byte 0xea",
        ".long 2f",
        ".short {long_code}",
        ".code64",
        "2:",
        "movabs rdi, {direct_map}",
        "mov eax, offset {low}",
        "add rdi, rax",
        "movabs rax, offset {back}",
        "jmp rax",
        "int3",
        without_paging = const !CR0_PAGING,
        pae = const CR4_PAE,
        low = sym LOW,
        boot_cr3 = const offset_of!(Low, boot_cr3),
        efer = const Efer::NUMBER,
        long_mode = const EFER_LONG_MODE,
        paging = const CR0_PAGING,
        long_code = const LONG_CODE,
        direct_map = const DIRECT_MAP,
        back = sym back,
    )
}

/// The end of [`cross`]: the kernel's tables and stack, and the return.
///
/// Reached by [`into_long_mode`], on the boot tables. RDI: [`Low`] through the direct map.
///
/// # Safety
///
/// 1. As [`cross`].
#[unsafe(naked)]
unsafe extern "sysv64" fn back() -> ! {
    naked_asm!(
        "mov rax, [rdi + {saved_cr4}]",
        "mov cr4, rax",
        "mov rax, [rdi + {saved_cr3}]",
        "mov cr3, rax",
        "lgdt [rdi + {saved_gdt}]",
        "lidt [rdi + {saved_idt}]",
        "mov eax, {kernel_data}",
        "mov ss, eax",
        "mov rsp, [rdi + {saved_rsp}]",
        // On the kernel's own tables and stack.
        "xor eax, eax",
        "mov ds, eax",
        "mov es, eax",
        "push {kernel_code}",
        "lea rax, [rip + 2f]",
        "push rax",
        "retfq",
        "2:",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        saved_cr4 = const offset_of!(Low, saved_cr4),
        saved_cr3 = const offset_of!(Low, saved_cr3),
        saved_gdt = const offset_of!(Low, saved_gdt),
        saved_idt = const offset_of!(Low, saved_idt),
        saved_rsp = const offset_of!(Low, saved_rsp),
        kernel_data = const LAYOUT.kernel_data().bits(),
        kernel_code = const LAYOUT.kernel_code().bits(),
    )
}

/// The body of a task: its rounds, and the INT that ends the excursion.
///
/// EDX gets the address behind SYSENTER by a MOV that is written out, since the assembler takes no such operand.
macro_rules! run_rounds {
    () => {
        naked_asm!(
            ".code32
         2:
         mov ecx, esp
         .byte 0xba
         .long 3f
         sysenter
         3:
         mov eax, esi
         mov ecx, edi
         test ecx, ecx
         jz 5f
         4:
         mov edx, [eax]
         mov edx, [eax + 64]
         mov edx, [eax + 128]
         mov edx, [eax + 192]
         mov edx, [eax + 256]
         mov edx, [eax + 320]
         mov edx, [eax + 384]
         mov edx, [eax + 448]
         add eax, {block}
         dec ecx
         jnz 4b
         5:
         dec ebx
         jnz 2b
         int {end}
         int3
         .code64",
            block = const BLOCK_BYTES,
            end = const super::END_VECTOR,
        )
    };
}

/// What a task does: a call by SYSENTER, then its memory, EBX times; then the INT that ends the excursion.
///
/// | register | in |
/// |---|---|
/// | EBX | rounds, 0 for 2^32 |
/// | ESI | address of its memory |
/// | EDI | blocks of it |
///
/// A round is MOV, MOV and SYSENTER, which belong to the call; 4 instructions around the memory and 11 a block; DEC, JNZ.
///
/// # Safety
///
/// 1. CPL is 3, in protected mode.
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn task() -> ! {
    run_rounds!()
}

/// The same for the second task, so that a log of a run tells the two apart.
///
/// # Safety
///
/// 1. As [`task`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn other_task() -> ! {
    run_rounds!()
}

/// One call with TF set from before SYSENTER to behind it. SYSENTER and SYSEXIT leave TF alone.
///
/// # Safety
///
/// 1. As [`task`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn stepped_task() -> ! {
    naked_asm!(
        ".code32",
        "pushfd",
        "or dword ptr [esp], {trap}",
        "popfd",
        "mov ecx, esp",
        ".byte 0xba",
        ".long 3f",
        "sysenter",
        "3:",
        "pushfd",
        "and dword ptr [esp], {without_trap}",
        "popfd",
        "int {end}",
        "int3",
        ".code64",
        trap = const TRAP,
        without_trap = const !TRAP,
        end = const super::END_VECTOR,
    )
}

/// The place for the trampoline. What it holds at first traps.
///
/// # Safety
///
/// 1. It is not called.
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn slot() -> ! {
    naked_asm!(".fill {bytes}, 1, 0xcc", bytes = const SLOT_BYTES)
}

/// A kernel that does nothing: two words on the stack, and back.
///
/// **Reached by** SYSENTER, or by the trampoline. ESP is the end of the task's kernel stack. ECX, EDX: where to go back to. IF
/// was 0 in the task and stays so, hence no STI.
///
/// # Safety
///
/// 1. CPL is 0, in protected mode.
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn null_call() -> ! {
    naked_asm!(
        ".code32", "push ecx", "push edx", "pop edx", "pop ecx", "sysexit", "int3", ".code64",
    )
}

/// The switch up to and including ESP0 of the TSS and CR3. EAX: the task that runs now.
macro_rules! switch {
    () => {
        "push ecx
         push edx
         push ebx
         push esi
         push edi
         push ebp
         mov eax, [{low} + {current}]
         mov [eax + {task_esp}], esp
         mov eax, [eax + {next}]
         mov [{low} + {current}], eax
         mov esp, [eax + {task_esp}]
         mov edx, [eax + {stack_top}]
         mov [{low} + {esp0}], edx
         mov eax, [eax + {directory}]
         mov cr3, eax"
    };
}

/// What [`switch`] has pushed, and back.
macro_rules! resume {
    () => {
        "pop ebp
         pop edi
         pop esi
         pop ebx
         pop edx
         pop ecx
         sysexit
         int3"
    };
}

/// A kernel that lets the other task run.
///
/// **Reached by** the trampoline, otherwise as [`null_call`].
///
/// # Safety
///
/// 1. As [`null_call`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn switch_by_trampoline() -> ! {
    naked_asm!(
        ".code32",
        switch!(),
        resume!(),
        ".code64",
        low = sym LOW,
        current = const offset_of!(Low, current),
        task_esp = const offset_of!(Task, esp),
        next = const offset_of!(Task, next),
        stack_top = const offset_of!(Task, stack_top),
        esp0 = const ESP0,
        directory = const offset_of!(Task, directory),
    )
}

/// A kernel that lets the other task run, and tells SYSENTER so: `IA32_SYSENTER_CS` and `IA32_SYSENTER_ESP` at each switch.
///
/// **Reached by** SYSENTER, otherwise as [`null_call`].
///
/// # Safety
///
/// 1. As [`null_call`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn switch_by_wrmsr() -> ! {
    naked_asm!(
        ".code32",
        switch!(),
        "mov ecx, {sysenter_cs}",
        "mov eax, {kernel_code}",
        "xor edx, edx",
        "wrmsr",
        "mov ecx, {sysenter_esp}",
        "mov eax, [{low} + {esp0}]",
        "xor edx, edx",
        "wrmsr",
        resume!(),
        ".code64",
        low = sym LOW,
        current = const offset_of!(Low, current),
        task_esp = const offset_of!(Task, esp),
        next = const offset_of!(Task, next),
        stack_top = const offset_of!(Task, stack_top),
        esp0 = const ESP0,
        directory = const offset_of!(Task, directory),
        sysenter_cs = const SysenterCs::NUMBER,
        kernel_code = const KERNEL_CODE,
        sysenter_esp = const SysenterEsp::NUMBER,
    )
}

/// Notes where a single step has found the CPU, and goes on.
///
/// **Reached by** the gate of #DB: from CPL 3 on the stack of ESP0, from CPL 0 on whatever ESP was.
///
/// # Safety
///
/// 1. As [`null_call`].
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
pub(super) unsafe extern "sysv64" fn note_step() -> ! {
    naked_asm!(
        ".code32",
        "push eax",
        "push ecx",
        "push edx",
        "mov eax, [{low} + {count}]",
        "cmp eax, {most}",
        "jae 4f",
        "inc dword ptr [{low} + {count}]",
        "imul eax, eax, {step_bytes}",
        "add eax, offset {low} + {steps}",
        // Above the three words: EIP, CS, EFLAGS, and from CPL 3 ESP and SS.
        "mov ecx, [esp + 12]",
        "mov [eax + {eip}], ecx",
        "mov ecx, [esp + 16]",
        "mov [eax + {cs}], ecx",
        "lea edx, [esp + 24]",
        "test cl, 3",
        "jz 3f",
        "mov edx, [edx]",
        "3:",
        "mov [eax + {esp}], edx",
        "4:",
        "pop edx",
        "pop ecx",
        "pop eax",
        "iretd",
        ".code64",
        low = sym LOW,
        count = const offset_of!(Low, step_count),
        most = const MAX_STEPS,
        step_bytes = const size_of::<Step>(),
        steps = const offset_of!(Low, steps),
        eip = const offset_of!(Step, eip),
        cs = const offset_of!(Step, cs),
        esp = const offset_of!(Step, esp),
    )
}
