//! Which IDT allows interrupts at SYSCALL.

use entry_core::irqs_on::{InterruptStackError, InterruptsOnEntry};
use entry_core::rflags::FlagMask;
use entry_core::segment::SegmentLayout;
use entry_core::vector::{Idt, Ist, Vector};

const SLOTS: u64 = 0xffff_ffff_8012_0000;
const SLOT_BYTES: u64 = 16;

fn idt(ist: Ist) -> Idt {
    let mut idt = Idt::new(SLOTS, &SegmentLayout::NATURAL).unwrap();
    idt.set_system_call(Vector::INT80, SLOTS + 0x80 * SLOT_BYTES).unwrap();
    idt.set_interrupt_stack(ist);
    idt
}

const fn examine(idt: &Idt) -> Result<InterruptsOnEntry, InterruptStackError> {
    // SAFETY: nothing is loaded.
    unsafe { InterruptsOnEntry::new(idt, SLOTS) }
}

#[test]
fn all_interrupts_on_one_stack_allow_a_mask_without_if() {
    for ist in [Ist::Ist5, Ist::Ist6, Ist::Ist7] {
        let allowed = examine(&idt(ist)).unwrap();
        assert_eq!(allowed.mask().bits(), FlagMask::REQUIRED.bits() & !0x200);
        assert_eq!(allowed.mask().bits(), 0x25_7dd5);
    }
}

#[test]
fn stack_of_interrupts_leaves_dpl_and_handlers_alone() {
    let before = Idt::new(SLOTS, &SegmentLayout::NATURAL).unwrap();
    let after = idt(Ist::Ist5);
    for number in 0..=255 {
        let (old, new) = (before.gate(Vector(number)), after.gate(Vector(number)));
        assert_eq!((old.handler(), old.code()), (new.handler(), new.code()));
        assert_eq!(new.dpl(), if number == 0x80 { 3 } else { old.dpl() });
        assert_eq!(new.ist_number(), if number < 32 { old.ist_number() } else { 5 });
    }
}

#[test]
fn a_vector_without_a_stack_is_refused() {
    let plain = Idt::new(SLOTS, &SegmentLayout::NATURAL).unwrap();
    assert_eq!(
        examine(&plain),
        Err(InterruptStackError::NoStack { vector: Vector(32) })
    );
    // The gate of system calls has none if it is set later.
    for number in 33..=255 {
        let mut late = plain.clone();
        late.set_interrupt_stack(Ist::Ist5);
        let vector = Vector(number);
        late.set_system_call(vector, SLOTS + u64::from(number) * SLOT_BYTES)
            .unwrap();
        assert_eq!(examine(&late), Err(InterruptStackError::NoStack { vector }));
    }
}

#[test]
fn a_stack_that_an_exception_has_is_refused() {
    for (ist, vector) in [(Ist::Ist1, 1), (Ist::Ist2, 2), (Ist::Ist3, 8), (Ist::Ist4, 18)] {
        let wanted = InterruptStackError::SharedStack {
            vector: Vector(vector),
            ist: ist.number(),
        };
        assert_eq!(examine(&idt(ist)), Err(wanted));
        let text = wanted.to_string();
        assert!(text.starts_with(&format!("vector {vector} (")) && text.ends_with("wanted that for interrupts alone"));
    }
}

#[test]
fn a_vector_with_another_stub_is_refused() {
    for number in 32..=255 {
        let mut other = Idt::new(SLOTS, &SegmentLayout::NATURAL).unwrap();
        let vector = Vector(number);
        let handler = SLOTS + 0x10_0000;
        other.set_handler(vector, handler).unwrap();
        other.set_interrupt_stack(Ist::Ist5);
        let wanted = SLOTS + u64::from(number) * SLOT_BYTES;
        assert_eq!(
            examine(&other),
            Err(InterruptStackError::OtherStub {
                vector,
                handler,
                wanted
            })
        );
    }
}
