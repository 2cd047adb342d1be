//! The 256 slots that the IDT points at.

use crate::frame::EntryKind;
use crate::kernel::{Kernel, Options};
use crate::stub::exception::{exception_common, interrupt_common, page_fault_common, system_call_common};
use crate::stub::irqs_on::{IrqsOnKernel, interrupt_ist_common, system_call_ist_common};
use crate::stub::paranoid::paranoid_common;
use crate::vector::{ERROR_CODE_MASK, PARANOID_MASK, SLOT_BYTES, Vector};

macro_rules! slots {
    ($(#[$doc:meta])* $name:ident<$kernel:ident>, $interrupt:ident, $system_call:ident) => {
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(link_section = ".entry.text")]
        pub unsafe extern "sysv64" fn $name<K: $kernel, O: Options>() -> ! {
            core::arch::naked_asm!(
                // No alignment: the address of this function is that of the first slot.
                ".set entry_vector, 0",
                ".rept 256",
                "2:",
                // The word below RIP: the CPU's error code, the original RAX, or zero.
                ".if entry_vector == {int80}",
                "push rax",
                ".elseif (entry_vector >= 32) || ((({errors} >> (entry_vector & 31)) & 1) == 0)",
                "push 0",
                ".endif",
                // The kind word, and the path.
                ".if entry_vector == {int80}",
                "push {kind_int80}",
                "jmp {system_call}",
                ".elseif (entry_vector < 32) && ((({paranoids} >> (entry_vector & 31)) & 1) == 1)",
                "push {kind_paranoid} + entry_vector",
                "jmp {paranoid}",
                ".elseif entry_vector == {pf}",
                "push {kind_exception} + entry_vector",
                "jmp {page_fault}",
                ".elseif entry_vector < 32",
                "push {kind_exception} + entry_vector",
                "jmp {exception}",
                ".else",
                "push {kind_interrupt} + entry_vector",
                "jmp {interrupt}",
                ".endif",
                ".org 2b + {slot}, 0xcc",
                ".set entry_vector, entry_vector + 1",
                ".endr",
                slot = const SLOT_BYTES,
                errors = const ERROR_CODE_MASK,
                paranoids = const PARANOID_MASK,
                int80 = const Vector::INT80.0,
                pf = const Vector::PAGE_FAULT.0,
                kind_int80 = const EntryKind::Int80.word(Vector::INT80.0),
                kind_exception = const EntryKind::Exception.word(0),
                kind_interrupt = const EntryKind::Interrupt.word(0),
                kind_paranoid = const EntryKind::Paranoid.word(0),
                exception = sym exception_common::<K, O>,
                page_fault = sym page_fault_common::<K, O>,
                interrupt = sym $interrupt::<K, O>,
                system_call = sym $system_call::<K, O>,
                paranoid = sym paranoid_common::<K, O>,
            )
        }
    };
}

slots! {
    /// 256 slots of [`SLOT_BYTES`] bytes, one per vector; the gate of vector `v` points at slot `v`.
    ///
    /// Each slot completes the CPU's frame to the same shape: a zero where the CPU pushes no error code (the original RAX
    /// for INT 0x80), then the kind word with the vector; and jumps to the path of its kind. Which vectors have an error
    /// code is read from the [vector table](crate::vector). A slot that outgrows its bytes stops the build.
    ///
    /// **Reached by** interrupt gates. No register is changed.
    ///
    /// # Safety
    ///
    /// 1. Slots are reached through interrupt gates (never trap gates) of a CPU that was set up as [`Kernel`] demands.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Error Code*, *64-Bit Mode IDT*.
    vector_stubs<Kernel>, interrupt_common, system_call_common
}

slots! {
    /// The slots for a CPU with interrupts on at SYSCALL.
    ///
    /// As [`vector_stubs`], but vectors 32 to 255 all run on one stack of the interrupt stack table, and where they arrive in
    /// the kernel RIP says whose GS base is.
    ///
    /// # Safety
    ///
    /// 1. As [`vector_stubs`].
    /// 2. The IDT has been accepted by [`InterruptsOnEntry::new`](crate::irqs_on::InterruptsOnEntry::new).
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Interrupt Stack Table*.
    vector_stubs_irqs_on<IrqsOnKernel>, interrupt_ist_common, system_call_ist_common
}
