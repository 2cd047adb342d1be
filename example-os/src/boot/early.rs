//! Gates for the exceptions of boot, and of test images that install no entry paths: each ends the run with its vector
//! and registers.

use core::cell::UnsafeCell;

use entry_core::TrapFrame;
use entry_core::stub::{EarlyKernel, address, early_stubs};
use entry_core::vector::{EXCEPTIONS, GateDescriptor, Privilege, SLOT_BYTES, Vector};
use x86_64::VirtAddr;
use x86_64::instructions::tables::lidt;
use x86_64::structures::DescriptorTablePointer;

use super::entry::LAYOUT;

const VECTORS: usize = EXCEPTIONS.len();

struct Gates(UnsafeCell<[GateDescriptor; VECTORS]>);

// SAFETY: written once, by boot on its one CPU, before LIDT.
unsafe impl Sync for Gates {}

static GATES: Gates = Gates(UnsafeCell::new([GateDescriptor::MISSING; VECTORS]));

struct Boot;

impl EarlyKernel for Boot {
    fn exception(frame: &TrapFrame) -> ! {
        panic!(
            "{} before the entry paths were installed\n{frame}",
            Vector(frame.vector())
        )
    }
}

/// Fills and loads the table. The kernel's own replaces it later.
pub(super) fn install() {
    // SAFETY: nobody else has a reference: this is boot, and `install` runs once.
    let gates = unsafe { &mut *GATES.0.get() };
    for (vector, gate) in (0..).zip(gates) {
        let slot = address(early_stubs::<Boot>) + vector * SLOT_BYTES;
        *gate = GateDescriptor::new(slot, LAYOUT.kernel_code(), None, Privilege::Kernel)
            .unwrap_or_else(|error| panic!("gate {vector}: {error}"));
    }
    const LIMIT: u16 = 511;
    const { assert!(LIMIT as usize == size_of::<[GateDescriptor; VECTORS]>() - 1) };
    let pointer = DescriptorTablePointer {
        limit: LIMIT,
        base: VirtAddr::from_ptr(GATES.0.get()),
    };
    // SAFETY: the gates lead to stubs that are kernel text, through the code segment of boot, and live for ever.
    unsafe { lidt(&pointer) };
}
