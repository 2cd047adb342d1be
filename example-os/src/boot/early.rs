//! Gates for the exceptions of boot, and of test images that install no entry paths: each ends the run with its vector
//! and registers. Without them the first mistake would be a triple fault, which says nothing.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;

use entry_core::segment::Selector;
use entry_core::vector::{ERROR_CODE_MASK, EXCEPTIONS, GateDescriptor, Privilege, SLOT_BYTES};
use x86_64::VirtAddr;
use x86_64::instructions::tables::lidt;
use x86_64::structures::DescriptorTablePointer;

use super::entry::CODE;

const VECTORS: usize = EXCEPTIONS.len();

struct Gates(UnsafeCell<[GateDescriptor; VECTORS]>);

// SAFETY: written once, by boot on its one CPU, before LIDT.
unsafe impl Sync for Gates {}

static GATES: Gates = Gates(UnsafeCell::new([GateDescriptor::MISSING; VECTORS]));

/// What the stubs push, from the lowest address, and the CPU above it.
#[derive(Debug)]
#[repr(C)]
struct Frame {
    vector: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Fills and loads the table. The kernel's own replaces it later.
pub(super) fn install() {
    let stubs: u64;
    // SAFETY: LEA only computes an address.
    unsafe {
        asm!("lea {}, [rip + {}]", out(reg) stubs, sym early_stubs, options(nomem, nostack, preserves_flags));
    }
    // SAFETY: nobody else has a reference: this is boot, and `install` runs once.
    let gates = unsafe { &mut *GATES.0.get() };
    for (vector, gate) in (0..).zip(gates) {
        *gate = GateDescriptor::new(
            stubs + vector * SLOT_BYTES,
            Selector::from_bits(CODE),
            None,
            Privilege::Kernel,
        )
        .unwrap_or_else(|error| panic!("gate {vector}: {error}"));
    }
    const LIMIT: u16 = 511;
    const { assert!(LIMIT as usize == size_of::<[GateDescriptor; VECTORS]>() - 1) };
    let pointer = DescriptorTablePointer {
        limit: LIMIT,
        base: VirtAddr::from_ptr(GATES.0.get()),
    };
    // SAFETY: the gates lead to the stubs below, through the code segment of boot, and live for ever.
    unsafe { lidt(&pointer) };
}

/// 32 slots, one for each exception.
///
/// **Reached by** interrupt gates without IST, at CPL 0 on the boot stack. **Stack**: what the CPU pushed, then an error
/// code of 0 where it pushed none, then the vector. No CFI: nothing returns through here.
#[unsafe(naked)]
unsafe extern "sysv64" fn early_stubs() -> ! {
    naked_asm!(
        ".balign 16",
        ".set vector, 0",
        ".rept {vectors}",
        "2:",
        ".if (({with_code} >> vector) & 1) == 0",
        "push 0",
        ".endif",
        "push vector",
        "jmp 3f",
        ".org 2b + {slot}, 0xcc",
        ".set vector, vector + 1",
        ".endr",
        "3:",
        "cld",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {report}",
        "int3",
        vectors = const VECTORS,
        with_code = const ERROR_CODE_MASK,
        slot = const SLOT_BYTES,
        report = sym report,
    )
}

extern "sysv64" fn report(frame: &Frame) -> ! {
    let name = usize::try_from(frame.vector)
        .ok()
        .and_then(|vector| EXCEPTIONS.get(vector))
        .map(|row| row.mnemonic);
    panic!(
        "{} before the entry paths were installed: {frame:x?}",
        name.unwrap_or("exception")
    )
}
