//! The 32-bit entry, the two loaders' headers, and the boot tables.
//!
//! Both loaders leave the CPU in 32-bit protected mode with paging off and a physical address in EBX. The tables are
//! data of the image: one directory of 2 MiB pages shows the first GiB at 0 (for the instruction that turns paging on),
//! at the direct map and at the kernel's base. Both loaders zero the part of a segment that the file does not hold, so
//! nothing is cleared here.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Initializing IA-32e Mode*; Xen *x86/HVM direct boot ABI (PVH)*; *Multiboot2 Specification*,
//! *OS image format* and *I386 machine state*.

use core::arch::{global_asm, naked_asm};

use entry_core::SegmentLayout;
use entry_core::msr::{Efer, Register};
use x86_64::registers::control::{Cr0Flags, Cr4Flags};

const STACK_BYTES: usize = 32 << 10;

#[repr(C, align(4096))]
struct Stack([u8; STACK_BYTES]);

/// The stack of boot, and of the image's main function.
static mut STACK: Stack = Stack([0; STACK_BYTES]);

/// The order of the first GDT: the kernel's own, of which it has the descriptors for ring 0.
pub(super) const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

/// The first GDT.
pub(super) const GDT: [u64; 3] = {
    let [null, code, data, ..] = SegmentLayout::natural_gdt(0, 0);
    [null, code, data]
};

/// The offset of the first GDT's last byte.
pub(super) const GDT_LIMIT: u16 = 23;
const _: () = assert!(GDT_LIMIT as usize == size_of_val(&GDT) - 1);

global_asm!(
    // The multiboot2 header: magic, architecture i386, length, checksum, and the tag that ends the list.
    ".pushsection .boot.multiboot2, \"a\", @progbits",
    ".balign 8",
    "2:",
    ".long 0xe85250d6, 0, 3f - 2b",
    ".long 0x100000000 - (0xe85250d6 + (3f - 2b))",
    ".short 0, 0",
    ".long 8",
    "3:",
    ".popsection",
    // The PVH note: name "Xen", type 18 (XEN_ELFNOTE_PHYS32_ENTRY), the entry's physical address.
    ".pushsection .note.pvh, \"a\", @note",
    ".balign 4",
    ".long 4, 8, 18",
    ".asciz \"Xen\"",
    ".quad {pvh_entry}",
    ".popsection",
    // The boot tables, and the GDT with its pointer.
    ".pushsection .boot.data, \"aw\", @progbits",
    ".balign 4096",
    "boot_root:",
    ".quad boot_low + 3",
    ".zero 272 * 8",
    ".quad boot_low + 3",
    ".zero 237 * 8",
    ".quad boot_top + 3",
    "boot_low:",
    ".quad boot_directory + 3",
    ".zero 511 * 8",
    "boot_top:",
    ".zero 510 * 8",
    ".quad boot_directory + 3",
    ".zero 8",
    "boot_directory:",
    ".set page, 0x83",
    ".rept 512",
    ".quad page",
    ".set page, page + 0x200000",
    ".endr",
    "boot_gdt:",
    ".quad {null}, {code}, {data}",
    "boot_gdt_pointer:",
    ".short {gdt_limit}",
    ".long boot_gdt",
    ".popsection",
    null = const GDT[0],
    code = const GDT[1],
    data = const GDT[2],
    gdt_limit = const GDT_LIMIT,
    pvh_entry = sym pvh_entry,
);

/// The value of CR3 for the boot tables, which stay where they are.
#[unsafe(naked)]
pub(super) extern "sysv64" fn tables() -> u64 {
    naked_asm!("mov eax, offset boot_root", "ret")
}

/// Reached by: QEMU's `-kernel`. EBX: physical address of `hvm_start_info`.
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
unsafe extern "C" fn pvh_entry() -> ! {
    naked_asm!(
        ".code32",
        "mov esi, 1",
        "jmp {enter}",
        ".code64",
        enter = sym enter_long_mode,
    )
}

/// Reached by: GRUB. EBX: physical address of the multiboot2 information. The entry point of the ELF file.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".boot.text")]
unsafe extern "C" fn multiboot2_entry() -> ! {
    naked_asm!(
        ".code32",
        "xor esi, esi",
        "jmp {enter}",
        ".code64",
        enter = sym enter_long_mode,
    )
}

/// Turns long mode on and goes to the high half. ESI: 1 for PVH, else 0. EBX: the loader's information.
#[unsafe(naked)]
#[unsafe(link_section = ".boot.text")]
unsafe extern "C" fn enter_long_mode() -> ! {
    naked_asm!(
        ".code32",
        "cli",
        "cld",
        "mov edi, ebx",
        // All of it: UEFI leaves more in both registers than the loaders' specifications say.
        "mov eax, {pae}",
        "mov cr4, eax",
        "mov eax, offset boot_root",
        "mov cr3, eax",
        "mov ecx, {efer}",
        "rdmsr",
        "or eax, {long_mode}",
        "wrmsr",
        "mov eax, {paging}",
        "mov cr0, eax",
        // Compatibility mode until CS names a 64-bit segment.
        "lgdt [boot_gdt_pointer]",
        ".byte 0xea",
        ".long 2f",
        ".short {code}",
        ".code64",
        "2:",
        "mov eax, {data}",
        "mov ss, eax",
        "xor eax, eax",
        "mov ds, eax",
        "mov es, eax",
        "mov fs, eax",
        "mov gs, eax",
        "movabs rsp, offset {stack} + {stack_bytes}",
        "movabs rax, offset {start}",
        "call rax",
        "int3",
        pae = const Cr4Flags::PHYSICAL_ADDRESS_EXTENSION.bits(),
        efer = const Efer::NUMBER,
        long_mode = const Efer::bits(&Efer::LONG_MODE_ENABLE),
        // The sign is that of 32 bits.
        paging = const Cr0Flags::PAGING
            .union(Cr0Flags::WRITE_PROTECT)
            .union(Cr0Flags::EXTENSION_TYPE)
            .union(Cr0Flags::PROTECTED_MODE_ENABLE)
            .bits()
            .cast_signed() << 32 >> 32,
        code = const LAYOUT.kernel_code().bits(),
        data = const LAYOUT.kernel_data().bits(),
        stack = sym STACK,
        stack_bytes = const STACK_BYTES,
        start = sym super::start,
    )
}
