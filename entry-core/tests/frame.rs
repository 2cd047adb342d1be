//! The trap frame: where each word is, what the accessors say of it, and which setters an exit has to know about.

use entry_core::{EntryKind, TrapFrame};

const WORDS: usize = 22;

/// A frame as a stub would have pushed it.
const fn pushed(image: [u64; WORDS]) -> TrapFrame {
    // SAFETY: 22 words without padding, any pattern of which is a frame.
    unsafe { core::mem::transmute::<[u64; WORDS], TrapFrame>(image) }
}

const fn image(frame: TrapFrame) -> [u64; WORDS] {
    // SAFETY: as above.
    unsafe { core::mem::transmute::<TrapFrame, [u64; WORDS]>(frame) }
}

/// Every word has a number of its own; the kind word says `kind`.
fn numbered(kind: EntryKind, vector: u8) -> TrapFrame {
    let mut words = [0; WORDS];
    for (number, word) in (100..).zip(&mut words) {
        *word = number;
    }
    words[15] = kind.word(vector);
    pushed(words)
}

const KINDS: [(EntryKind, u64); 10] = [
    (EntryKind::Syscall64, 0x100),
    (EntryKind::Syscall32, 0x200),
    (EntryKind::Sysenter32, 0x300),
    (EntryKind::Sysenter64, 0x400),
    (EntryKind::Int80, 0x500),
    (EntryKind::Exception, 0x600),
    (EntryKind::Interrupt, 0x700),
    (EntryKind::Paranoid, 0x800),
    (EntryKind::Built, 0x900),
    (EntryKind::IretFault, 0xa00),
];

type Get = fn(&TrapFrame) -> u64;
type Set = fn(&mut TrapFrame, u64);

/// The registers that no exit condition depends on, by their place from the bottom.
const PLAIN: [(usize, Get, Set); 14] = [
    (0, TrapFrame::r15, TrapFrame::set_r15),
    (1, TrapFrame::r14, TrapFrame::set_r14),
    (2, TrapFrame::r13, TrapFrame::set_r13),
    (3, TrapFrame::r12, TrapFrame::set_r12),
    (4, TrapFrame::rbp, TrapFrame::set_rbp),
    (5, TrapFrame::rbx, TrapFrame::set_rbx),
    (6, TrapFrame::r10, TrapFrame::set_r10),
    (7, TrapFrame::r9, TrapFrame::set_r9),
    (8, TrapFrame::r8, TrapFrame::set_r8),
    (9, TrapFrame::rdi, TrapFrame::set_rdi),
    (10, TrapFrame::rsi, TrapFrame::set_rsi),
    (11, TrapFrame::rdx, TrapFrame::set_rdx),
    (12, TrapFrame::rax, TrapFrame::set_rax),
    (20, TrapFrame::rsp, TrapFrame::set_rsp),
];

/// Those that it depends on.
const WATCHED: [(usize, Get, Set); 6] = [
    (13, TrapFrame::r11, TrapFrame::set_r11),
    (14, TrapFrame::rcx, TrapFrame::set_rcx),
    (17, TrapFrame::rip, TrapFrame::set_rip),
    (18, TrapFrame::cs, TrapFrame::set_cs),
    (19, TrapFrame::rflags, TrapFrame::set_rflags),
    (21, TrapFrame::ss, TrapFrame::set_ss),
];

#[test]
fn words_stand_where_the_stubs_push_them() {
    let frame = numbered(EntryKind::Syscall64, 0);
    for (place, get, _) in PLAIN.into_iter().chain(WATCHED) {
        assert_eq!(get(&frame), 100 + place as u64);
    }
    assert_eq!((frame.error_code(), frame.original_rax()), (116, 116));
    let offsets = [
        (TrapFrame::RAX, 12),
        (TrapFrame::R11, 13),
        (TrapFrame::RCX, 14),
        (TrapFrame::KIND, 15),
        (TrapFrame::CODE, 16),
        (TrapFrame::RIP, 17),
        (TrapFrame::CS, 18),
        (TrapFrame::RFLAGS, 19),
        (TrapFrame::RSP, 20),
        (TrapFrame::SS, 21),
    ];
    for (offset, place) in offsets {
        assert_eq!(offset, place * 8);
    }
    assert_eq!((TrapFrame::SIZE, TrapFrame::POPPED), (176, 13 * 8));
    assert_eq!(align_of::<TrapFrame>(), 16);
}

#[test]
fn a_setter_changes_its_word_and_the_mark_alone() {
    for (setters, mark) in [(&PLAIN[..], 0), (&WATCHED[..], 1 << 16)] {
        for &(place, get, set) in setters {
            let mut frame = numbered(EntryKind::Syscall64, 0);
            assert!(!frame.is_modified());
            let mut wanted = image(frame.clone());
            set(&mut frame, 7);
            assert_eq!(get(&frame), 7);
            assert_eq!(frame.is_modified(), mark != 0, "word {place}");
            wanted[place] = 7;
            wanted[15] |= mark;
            assert_eq!(image(frame), wanted, "word {place}");
        }
    }
}

#[test]
fn kind_and_vector_are_read_back_and_nothing_else_is_a_kind() {
    for (kind, word) in KINDS {
        assert_eq!(kind.word(0), word);
        for vector in [0, 1, 0x80, 0xff] {
            let frame = numbered(kind, vector);
            assert_eq!((frame.entry_kind(), frame.vector()), (Some(kind), vector));
            assert_eq!(frame.kind_word(), word | u64::from(vector));
        }
    }
    for bits in (0..=0xff_u64).filter(|bits| !(1..=10).contains(bits)) {
        let mut words = [0; WORDS];
        words[15] = bits << 8;
        assert_eq!(pushed(words).entry_kind(), None, "{bits:#x}");
    }
}

#[test]
fn marks_are_bits_of_their_own() {
    let mut frame = numbered(EntryKind::Exception, 14);
    assert!(!frame.rcx_r11_are_dead() && !frame.rf_may_be_dropped());
    frame.declare_rcx_r11_dead();
    assert_eq!(frame.kind_word(), 0x2_060e);
    assert!(frame.rcx_r11_are_dead() && !frame.rf_may_be_dropped() && !frame.is_modified());
    frame.declare_no_instruction_breakpoint();
    assert_eq!(frame.kind_word(), 0x6_060e);
    assert!(frame.rf_may_be_dropped());
    assert_eq!((frame.entry_kind(), frame.vector()), (Some(EntryKind::Exception), 14));
    // A frame that the kernel built keeps none of what was declared of another.
    frame.mark_built();
    assert_eq!(frame.kind_word(), 0x1_0900);
    assert!(!frame.rcx_r11_are_dead() && !frame.rf_may_be_dropped());
}

#[test]
fn arguments_are_in_the_order_of_the_abi() {
    let frame = numbered(EntryKind::Syscall64, 0);
    // RDI, RSI, RDX, R10, R8, R9
    assert_eq!(frame.arguments(), [109, 110, 111, 106, 108, 107]);
}

#[test]
fn a_return_value_leaves_the_quick_exit_open() {
    let mut frame = numbered(EntryKind::Syscall64, 0);
    frame.set_return_value(5);
    assert_eq!((frame.rax(), frame.original_rax()), (5, 116));
    assert!(!frame.is_modified());
}

#[test]
fn a_restart_brings_the_number_back_and_leaves_by_iret() {
    for kind in [EntryKind::Syscall64, EntryKind::Int80] {
        let mut frame = numbered(kind, 0);
        // -EINTR, or whatever the handler has left there.
        frame.set_return_value((-4_i64).cast_unsigned());
        frame.restart_system_call();
        assert_eq!((frame.rax(), frame.rip()), (116, 117 - 2));
        // RCX is not RIP any more, and the exit is told to look.
        assert!(frame.is_modified());
        assert_ne!(frame.rcx(), frame.rip());
    }
}

#[test]
fn user_mode_is_told_by_the_rpl_of_cs() {
    for (cs, is_user) in [
        (0x08, false),
        (0x1b, true),
        (0x2b, true),
        (0x29, false),
        (0x2a, false),
        (3, true),
    ] {
        let mut frame = TrapFrame::zeroed();
        frame.set_cs(cs);
        assert_eq!(frame.is_user(), is_user, "{cs:#x}");
    }
}

#[test]
fn a_frame_of_zeros_is_built_by_the_kernel() {
    let frame = TrapFrame::zeroed();
    assert_eq!((frame.entry_kind(), frame.vector()), (Some(EntryKind::Built), 0));
    let mut words = image(frame);
    words[15] = 0;
    assert_eq!(words, [0; WORDS]);
}

#[test]
fn a_frame_prints_every_register() {
    let text = numbered(EntryKind::Exception, 13).to_string();
    assert!(text.starts_with("Some(Exception) vector 13 code 0x74\n"), "{text}");
    for number in (100..122).filter(|number| ![115, 116].contains(number)) {
        assert!(text.contains(&format!("{number:x}")), "{number:#x} in {text}");
    }
}
