//! The vector table, gates and the IDT.

use entry_core::segment::{SegmentLayout, Selector};
use entry_core::vector::{
    ERROR_CODE_MASK, EXCEPTIONS, GateDescriptor, GateError, Idt, Ist, Kind, PARANOID_MASK, Privilege, Vector,
};

const STUBS: u64 = 0xffff_ffff_8012_0000;

fn idt() -> Idt {
    Idt::new(STUBS, &SegmentLayout::NATURAL).unwrap()
}

#[test]
fn error_codes_are_pushed_by_exactly_these_vectors() {
    let with: Vec<u8> = (0..=255).filter(|&number| Vector(number).has_error_code()).collect();
    assert_eq!(with, [8, 10, 11, 12, 13, 14, 17, 21, 29, 30]);
    assert_eq!(ERROR_CODE_MASK, 0x6022_7d00);
}

#[test]
fn mnemonics_are_those_of_the_manuals() {
    let wanted = [
        "#DE", "#DB", "NMI", "#BP", "#OF", "#BR", "#UD", "#NM", "#DF", "", "#TS", "#NP", "#SS", "#GP", "#PF", "",
        "#MF", "#AC", "#MC", "#XM", "#VE", "#CP", "", "", "", "", "", "", "#HV", "#VC", "#SX", "",
    ];
    assert_eq!(EXCEPTIONS.map(|row| row.mnemonic), wanted);
    for (index, row) in EXCEPTIONS.iter().enumerate() {
        assert_eq!(usize::from(row.vector.0), index);
        assert_eq!(row.kind == Kind::Reserved, row.mnemonic.is_empty());
        assert_eq!(row.vector.exception(), Some(row));
    }
    for number in 32..=255 {
        assert_eq!(Vector(number).exception(), None);
        assert_eq!(Vector(number).ist(), None);
    }
}

#[test]
fn constants_name_their_mnemonics() {
    for (vector, mnemonic) in [
        (Vector::DIVIDE_ERROR, "#DE"),
        (Vector::DEBUG, "#DB"),
        (Vector::NMI, "NMI"),
        (Vector::BREAKPOINT, "#BP"),
        (Vector::OVERFLOW, "#OF"),
        (Vector::BOUND_RANGE, "#BR"),
        (Vector::INVALID_OPCODE, "#UD"),
        (Vector::DEVICE_NOT_AVAILABLE, "#NM"),
        (Vector::DOUBLE_FAULT, "#DF"),
        (Vector::INVALID_TSS, "#TS"),
        (Vector::SEGMENT_NOT_PRESENT, "#NP"),
        (Vector::STACK_SEGMENT, "#SS"),
        (Vector::GENERAL_PROTECTION, "#GP"),
        (Vector::PAGE_FAULT, "#PF"),
        (Vector::X87_FLOATING_POINT, "#MF"),
        (Vector::ALIGNMENT_CHECK, "#AC"),
        (Vector::MACHINE_CHECK, "#MC"),
        (Vector::SIMD_FLOATING_POINT, "#XM"),
        (Vector::VIRTUALIZATION, "#VE"),
        (Vector::CONTROL_PROTECTION, "#CP"),
        (Vector::HYPERVISOR_INJECTION, "#HV"),
        (Vector::VMM_COMMUNICATION, "#VC"),
        (Vector::SECURITY, "#SX"),
    ] {
        assert_eq!(vector.to_string(), mnemonic);
    }
    assert_eq!(Vector(15).to_string(), "vector 15");
    assert_eq!(Vector::INT80.to_string(), "interrupt 0x80");
}

#[test]
fn the_four_paranoid_vectors_have_stacks_of_their_own() {
    let stacks: Vec<(u8, u8)> = (0..=255)
        .filter_map(|number| Some((number, Vector(number).ist()?.number())))
        .collect();
    assert_eq!(stacks, [(1, 1), (2, 2), (8, 3), (18, 4)]);
    assert_eq!(PARANOID_MASK, 0x0004_0106);
}

#[test]
fn breakpoint_has_no_stack_of_its_own() {
    assert_eq!(Vector::BREAKPOINT.ist(), None);
    assert_eq!(idt().gate(Vector::BREAKPOINT).ist_number(), 0);
}

#[test]
fn no_vector_with_an_error_code_is_open_to_programs() {
    let open: Vec<u8> = EXCEPTIONS
        .iter()
        .filter(|row| row.user_may_raise)
        .map(|row| row.vector.0)
        .collect();
    assert_eq!(open, [3, 4]);
    for row in EXCEPTIONS {
        assert!(
            !(row.user_may_raise && (row.has_error_code || row.ist.is_some())),
            "{row:?}"
        );
    }
}

#[test]
fn gate_bits_are_those_of_the_manual() {
    let code = Selector::from_bits(0x08);
    for (ist, privilege, low) in [
        (None, Privilege::Kernel, 0x8012_8e00_0008_3456),
        (Some(Ist::Ist2), Privilege::Kernel, 0x8012_8e02_0008_3456),
        (Some(Ist::Ist7), Privilege::Kernel, 0x8012_8e07_0008_3456),
        (None, Privilege::User, 0x8012_ee00_0008_3456),
    ] {
        let gate = GateDescriptor::new(0xffff_ffff_8012_3456, code, ist, privilege).unwrap();
        assert_eq!(gate.bits(), [low, 0x0000_0000_ffff_ffff]);
        assert_eq!(gate.handler(), 0xffff_ffff_8012_3456);
        assert_eq!(gate.code(), code);
        assert!(gate.is_present());
    }
    assert_eq!(GateDescriptor::MISSING.bits(), [0, 0]);
    assert!(!GateDescriptor::MISSING.is_present());
}

#[test]
fn every_gate_is_an_interrupt_gate_with_the_layouts_cs() {
    let mut idt = idt();
    idt.set_system_call(Vector::INT80, STUBS + 0x2000).unwrap();
    for number in 0..=255 {
        let vector = Vector(number);
        let gate = idt.gate(vector);
        assert_eq!(gate.bits()[0] >> 40 & 0x9f, 0x8e, "{vector}: present, type 0xe");
        assert_eq!(gate.code(), SegmentLayout::NATURAL.kernel_code());
        assert_eq!(
            gate.dpl(),
            if matches!(number, 3 | 4 | 0x80) { 3 } else { 0 },
            "{vector}"
        );
        assert_eq!(gate.ist_number(), vector.ist().map_or(0, Ist::number), "{vector}");
        let handler = if number == 0x80 {
            STUBS + 0x2000
        } else {
            STUBS + u64::from(number) * 16
        };
        assert_eq!(gate.handler(), handler, "{vector}");
    }
}

#[test]
fn gates_refuse_a_cs_that_is_not_the_kernels() {
    for bits in 0..=u16::MAX {
        let selector = Selector::from_bits(bits);
        let result = GateDescriptor::new(STUBS, selector, None, Privilege::Kernel);
        if bits > 3 && bits % 8 == 0 {
            assert!(result.is_ok());
        } else {
            assert_eq!(result, Err(GateError::BadCodeSelector { selector }));
        }
    }
    assert_eq!(
        GateDescriptor::new(0, Selector::from_bits(8), None, Privilege::Kernel),
        Err(GateError::BadHandler { address: 0 })
    );
}

#[test]
fn system_call_vector_is_an_interrupt_and_the_only_one() {
    for number in 0..=255 {
        let vector = Vector(number);
        let mut idt = idt();
        let result = idt.set_system_call(vector, STUBS);
        if number < 32 {
            assert_eq!(result, Err(GateError::SystemCallIsException { vector }));
            continue;
        }
        assert_eq!(result, Ok(()));
        assert_eq!((idt.gate(vector).dpl(), idt.gate(vector).ist_number()), (3, 0));
        assert_eq!(idt.set_system_call(vector, STUBS + 16), Ok(()), "the same vector again");
        let other = Vector(if number == 255 { 32 } else { number + 1 });
        assert_eq!(
            idt.set_system_call(other, STUBS),
            Err(GateError::NotForUser { vector: other })
        );
        assert_eq!(idt.gate(other).dpl(), 0);
    }
}

#[test]
fn handlers_keep_stack_and_privilege() {
    let mut idt = idt();
    idt.set_system_call(Vector::INT80, STUBS).unwrap();
    let mut with_interrupt_stack = idt.clone();
    with_interrupt_stack.set_interrupt_stack(Ist::Ist5);
    for (mut idt, number) in [idt.clone(), with_interrupt_stack]
        .into_iter()
        .flat_map(|idt| (0..=255).map(move |number| (idt.clone(), number)))
    {
        let vector = Vector(number);
        let before = idt.gate(vector);
        idt.set_handler(vector, 0xffff_ffff_8765_4320).unwrap();
        let after = idt.gate(vector);
        assert_eq!(after.handler(), 0xffff_ffff_8765_4320);
        assert_eq!(
            (after.dpl(), after.ist_number(), after.code()),
            (before.dpl(), before.ist_number(), before.code())
        );
    }
    assert_eq!(
        idt.set_handler(Vector::NMI, 0),
        Err(GateError::BadHandler { address: 0 })
    );
}

#[test]
fn empty_table_takes_no_gate() {
    let mut idt = Idt::EMPTY;
    let selector = Selector::from_bits(0);
    assert_eq!(
        idt.set_handler(Vector::PAGE_FAULT, STUBS),
        Err(GateError::BadCodeSelector { selector })
    );
    assert_eq!(
        idt.set_system_call(Vector::INT80, STUBS),
        Err(GateError::BadCodeSelector { selector })
    );
    assert_eq!(idt, Idt::EMPTY);
}

#[test]
fn slots_stay_inside_the_address_space() {
    let last = u64::MAX - 256 * 16 + 1;
    assert!(Idt::new(last, &SegmentLayout::NATURAL).is_ok());
    for stubs in [0, last + 1, u64::MAX] {
        assert_eq!(
            Idt::new(stubs, &SegmentLayout::NATURAL).map(drop),
            Err(GateError::BadHandler { address: stubs })
        );
    }
}

#[test]
fn table_can_be_made_by_the_compiler() {
    const IDT: Result<Idt, GateError> = Idt::new(STUBS, &SegmentLayout::NATURAL);
    assert_eq!(IDT.unwrap(), idt());
    assert_eq!(Idt::LIMIT, 4095);
    assert_eq!(align_of::<Idt>() % 16, 0);
}

#[test]
fn errors_say_what_was_wanted() {
    assert_eq!(
        GateError::NotForUser {
            vector: Vector::PAGE_FAULT
        }
        .to_string(),
        "vector 14 (#PF) with DPL 3, wanted DPL 0: programs may raise #BP, #OF and one system-call vector"
    );
    assert_eq!(
        GateError::BadCodeSelector {
            selector: Selector::from_bits(0x2b)
        }
        .to_string(),
        "gate code selector is 0x2b, wanted a GDT selector that is not null, with RPL 0"
    );
}
