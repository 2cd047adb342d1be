//! The hazard table: one row for each refusal and each reason for IRET, under its name, and one test for each guard.
//!
//! Each test fails when the guard that it is listed with is taken away; the list is `ablations.txt`.

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::{Exit, Leave};
use entry_core::segment::SegmentLayout;
use entry_core::{EntryKind, IrqOff, TrapFrame};
use entry_sysret::{ExitWords, IretOnly, IretReason, Refusal, RuleSet, Rules, SysretOrIret, decide, why_iret};

const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48)
    .with_code32()
    .with_sysret_loading_ss();

/// 64-bit user code, 32-bit user code and user data of the natural layout.
const CODE64: u64 = 0x2b;
const CODE32: u64 = 0x1b;
const DATA: u64 = 0x23;

/// An untouched frame of SYSCALL.
const GOOD: ExitWords = ExitWords {
    kind: Some(EntryKind::Syscall64),
    is_modified: false,
    are_rcx_r11_dead: false,
    may_drop_rf: false,
    rip: 0x40_1000,
    cs: CODE64,
    rflags: 0x202,
    ss: DATA,
    rcx: 0x40_1000,
    r11: 0x202,
};

/// A page fault whose RCX and R11 are declared dead, on a real CPU: RF is set.
const DEAD_FAULT: ExitWords = ExitWords {
    kind: Some(EntryKind::Exception),
    are_rcx_r11_dead: true,
    may_drop_rf: true,
    rflags: 0x1_0202,
    rcx: 1,
    r11: 2,
    ..GOOD
};

fn refused(words: ExitWords) -> Refusal {
    decide(&words, &RULES).unwrap_err()
}

/// SYSRET restores `good`; with one thing changed it is IRET, for `reason`.
fn by_iret(good: ExitWords, changed: ExitWords, reason: IretReason) {
    assert_eq!(decide(&good, &RULES), Ok(Leave::Sysret));
    assert_eq!(decide(&changed, &RULES), Ok(Leave::Iret));
    assert_eq!(why_iret(&changed, &RULES), Some(reason));
}

#[test]
fn the_good_frames_are_good() {
    assert_eq!(decide(&GOOD, &RULES), Ok(Leave::Sysret));
    assert_eq!(decide(&DEAD_FAULT, &RULES), Ok(Leave::Sysret));
    let code32 = ExitWords {
        kind: Some(EntryKind::Syscall32),
        cs: CODE32,
        ..GOOD
    };
    assert_eq!(decide(&code32, &RULES), Ok(Leave::Sysret32));
}

#[test]
fn refuses_an_unknown_entry_kind() {
    assert_eq!(refused(ExitWords { kind: None, ..GOOD }), Refusal::UnknownEntryKind);
}

#[test]
fn refuses_a_non_canonical_rip() {
    for rip in [0x8000_0000_0000, 0x4000_0000_0000_0000, 0xffff_7fff_ffff_ffff] {
        assert_eq!(refused(ExitWords { rip, ..GOOD }), Refusal::NonCanonicalRip { rip });
    }
}

#[test]
fn refuses_a_kernel_rip() {
    for rip in [0xffff_8000_0000_0000, 0xffff_ffff_8010_0000, u64::MAX] {
        assert_eq!(refused(ExitWords { rip, ..GOOD }), Refusal::KernelRip { rip });
    }
}

#[test]
fn refuses_a_rip_above_the_user_limit() {
    for rip in [0x7fff_ffff_f000, 0x7fff_ffff_ffff] {
        assert_eq!(refused(ExitWords { rip, ..GOOD }), Refusal::RipAboveUserLimit { rip });
    }
}

/// A limit for 57 bits in a mode with 48: below it is the hole.
#[test]
fn refuses_a_non_canonical_rip_under_a_limit_that_is_too_high() {
    let wide = RuleSet::new(
        &SegmentLayout::NATURAL,
        UserLimit::highest(Width::Bits57),
        Width::Bits48,
    );
    for rip in [0x8000_0000_0000, 0xffff_ffff_f000, 0x7f_ffff_ffff_ffff] {
        let words = ExitWords { rip, rcx: rip, ..GOOD };
        assert_eq!(decide(&words, &wide), Err(Refusal::NonCanonicalRip { rip }));
        assert!(!entry_sysret::decide::is_plain_sysret(rip, words.rflags, &wide));
    }
}

#[test]
fn refuses_a_rip_above_code32() {
    let rip = 0x1_0000_0000;
    assert_eq!(
        refused(ExitWords {
            rip,
            cs: CODE32,
            ..GOOD
        }),
        Refusal::RipAboveCode32 { rip }
    );
}

#[test]
fn refuses_a_kernel_code_segment() {
    for cs in [0x08, 0x28, 0x29, 0x2a, 0] {
        assert_eq!(refused(ExitWords { cs, ..GOOD }), Refusal::KernelCodeSegment { cs });
    }
}

#[test]
fn refuses_a_local_code_segment() {
    assert_eq!(
        refused(ExitWords { cs: 0x2f, ..GOOD }),
        Refusal::LocalCodeSegment { cs: 0x2f }
    );
}

#[test]
fn refuses_an_unlisted_code_segment() {
    for cs in [0x0b, 0x23, 0x4b, 0xfffb, 0x1_002b] {
        assert_eq!(refused(ExitWords { cs, ..GOOD }), Refusal::UnlistedCodeSegment { cs });
    }
}

#[test]
fn refuses_a_null_stack_segment() {
    for ss in 0..4 {
        assert_eq!(refused(ExitWords { ss, ..GOOD }), Refusal::NullStackSegment { ss });
    }
}

#[test]
fn refuses_a_kernel_stack_segment() {
    for ss in [0x10, 0x20, 0x21, 0x22] {
        assert_eq!(refused(ExitWords { ss, ..GOOD }), Refusal::KernelStackSegment { ss });
    }
}

#[test]
fn refuses_a_local_stack_segment() {
    assert_eq!(
        refused(ExitWords { ss: 0x27, ..GOOD }),
        Refusal::LocalStackSegment { ss: 0x27 }
    );
}

#[test]
fn refuses_an_unlisted_stack_segment() {
    for ss in [0x13, 0x2b, 0x33, 0xfffb] {
        assert_eq!(refused(ExitWords { ss, ..GOOD }), Refusal::UnlistedStackSegment { ss });
    }
}

#[test]
fn refuses_virtual_8086() {
    let rflags = 0x2_0202;
    assert_eq!(refused(ExitWords { rflags, ..GOOD }), Refusal::Virtual8086 { rflags });
}

#[test]
fn refuses_virtual_interrupts() {
    for rflags in [0x8_0202, 0x10_0202] {
        assert_eq!(
            refused(ExitWords { rflags, ..GOOD }),
            Refusal::VirtualInterrupts { rflags }
        );
    }
}

#[test]
fn refuses_reserved_flags() {
    for bit in [3, 5, 15, 22, 31, 32, 63] {
        let rflags = 0x202 | 1 << bit;
        assert_eq!(refused(ExitWords { rflags, ..GOOD }), Refusal::ReservedFlags { rflags });
    }
}

#[test]
fn refuses_io_privilege() {
    for rflags in [0x1202, 0x2202, 0x3202] {
        assert_eq!(refused(ExitWords { rflags, ..GOOD }), Refusal::IoPrivilege { rflags });
        assert_eq!(
            decide(&ExitWords { rflags, ..GOOD }, &RULES.with_io_privilege()),
            Ok(Leave::Sysret)
        );
    }
}

#[test]
fn refuses_interrupts_off() {
    assert_eq!(
        refused(ExitWords { rflags: 0x2, ..GOOD }),
        Refusal::InterruptsOff { rflags: 0x2 }
    );
    // A program with IOPL 3 can execute CLI; one with IOPL 2 can't.
    let open = RULES.with_io_privilege();
    assert_eq!(decide(&ExitWords { rflags: 0x3002, ..GOOD }, &open), Ok(Leave::Sysret));
    let rflags = 0x2002;
    assert_eq!(
        decide(&ExitWords { rflags, ..GOOD }, &open),
        Err(Refusal::InterruptsOff { rflags })
    );
}

#[test]
fn an_nmi_never_leaves_by_sysret() {
    let nmi = ExitWords {
        kind: Some(EntryKind::Paranoid),
        ..DEAD_FAULT
    };
    by_iret(DEAD_FAULT, nmi, IretReason::ParanoidEntry);
    by_iret(
        DEAD_FAULT,
        ExitWords {
            is_modified: true,
            ..nmi
        },
        IretReason::ParanoidEntry,
    );
}

#[test]
fn single_step_leaves_by_iret() {
    by_iret(GOOD, ExitWords { rflags: 0x302, ..GOOD }, IretReason::SingleStep);
    by_iret(
        DEAD_FAULT,
        ExitWords {
            rflags: 0x1_0302,
            ..DEAD_FAULT
        },
        IretReason::SingleStep,
    );
}

#[test]
fn a_resume_flag_that_may_matter_leaves_by_iret() {
    by_iret(
        DEAD_FAULT,
        ExitWords {
            may_drop_rf: false,
            ..DEAD_FAULT
        },
        IretReason::ResumeFlag,
    );
    by_iret(
        GOOD,
        ExitWords {
            rflags: 0x1_0202,
            ..GOOD
        },
        IretReason::ResumeFlag,
    );
}

#[test]
fn live_registers_leave_by_iret() {
    by_iret(
        DEAD_FAULT,
        ExitWords {
            are_rcx_r11_dead: false,
            ..DEAD_FAULT
        },
        IretReason::LiveRegisters,
    );
    // Not even if they are equal: an interrupt's are not compared.
    let equal = ExitWords {
        rflags: 0x202,
        rcx: GOOD.rip,
        r11: 0x202,
        are_rcx_r11_dead: false,
        ..DEAD_FAULT
    };
    by_iret(DEAD_FAULT, equal, IretReason::LiveRegisters);
}

#[test]
fn a_built_frame_needs_rcx_to_be_rip() {
    let built = ExitWords {
        kind: Some(EntryKind::Built),
        is_modified: true,
        ..GOOD
    };
    by_iret(
        built,
        ExitWords {
            rcx: 0x40_1001,
            ..built
        },
        IretReason::LiveRegisters,
    );
}

#[test]
fn a_built_frame_needs_r11_to_be_rflags() {
    let built = ExitWords {
        kind: Some(EntryKind::Built),
        is_modified: true,
        ..GOOD
    };
    by_iret(built, ExitWords { r11: 0x203, ..built }, IretReason::LiveRegisters);
}

#[test]
fn a_null_ss_leaves_by_iret_where_32_bit_code_exists() {
    let amd = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48).with_code32();
    assert_eq!(decide(&DEAD_FAULT, &amd), Ok(Leave::Iret));
    assert_eq!(why_iret(&DEAD_FAULT, &amd), Some(IretReason::NullStackSegment));
    assert_eq!(decide(&DEAD_FAULT, &RULES), Ok(Leave::Sysret));
    assert_eq!(decide(&GOOD, &amd), Ok(Leave::Sysret));
}

struct Default48;

/// 32-bit code exists, and SYSRET may leave the attributes of SS behind.
struct With32;

impl Rules for With32 {
    const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48).with_code32();
}

impl Rules for Default48 {
    const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
}

/// Words of a frame, in their order from R15 up.
const fn image(kind_word: u64, rip: u64, cs: u64, rflags: u64, ss: u64) -> [u64; 22] {
    [
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        rflags,
        rip,
        kind_word,
        0,
        rip,
        cs,
        rflags,
        0x7000_0000,
        ss,
    ]
}

/// What the exits answer in a hurry: `SysretOrIret` to a system call and to an event, `IretOnly`.
fn plain(image: [u64; 22]) -> (Option<Leave>, Option<Leave>, Option<Leave>) {
    // SAFETY: there are no interrupts to be off in a test, and nothing here relies on them.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: 22 words without padding or invalid patterns.
    let frame = unsafe { core::mem::transmute::<[u64; 22], TrapFrame>(image) };
    (
        SysretOrIret::<Default48>::choose_plain(&frame, &irq),
        SysretOrIret::<Default48>::choose_plain_event(&frame, &irq),
        IretOnly::<Default48>::choose_plain(&frame, &irq),
    )
}

fn plain_event<R: Rules>(kind_word: u64, rflags: u64) -> Option<Leave> {
    // SAFETY: there are no interrupts to be off in a test, and nothing here relies on them.
    let irq = unsafe { IrqOff::assume() };
    let image = image(kind_word, 0x40_1000, CODE64, rflags, DATA);
    // SAFETY: 22 words without padding or invalid patterns.
    let frame = unsafe { core::mem::transmute::<[u64; 22], TrapFrame>(image) };
    SysretOrIret::<R>::choose_plain_event(&frame, &irq)
}

/// Bits 17 and 18: RCX and R11 are dead, RF holds nothing back.
const DEAD_MARKS: u64 = 1 << 17 | 1 << 18;

#[test]
fn the_quick_answer_for_dead_registers_is_sysret() {
    assert_eq!(plain_event::<Default48>(FAULT, 0x1_0202), Some(Leave::Iret));
    assert_eq!(
        plain_event::<Default48>(FAULT | DEAD_MARKS, 0x1_0202),
        Some(Leave::Sysret)
    );
}

#[test]
fn the_quick_answer_for_dead_registers_is_for_exceptions() {
    // One mark alone, an interrupt, an NMI.
    for word in [
        FAULT | 1 << 17,
        EntryKind::Interrupt.word(32) | DEAD_MARKS,
        EntryKind::Paranoid.word(2) | DEAD_MARKS,
    ] {
        assert_eq!(plain_event::<Default48>(word, 0x202), None, "{word:#x}");
    }
}

#[test]
fn the_quick_answer_for_dead_registers_tests_single_step() {
    assert_eq!(plain_event::<Default48>(FAULT | DEAD_MARKS, 0x302), None);
}

#[test]
fn the_quick_answer_for_dead_registers_tests_for_32_bit_code() {
    assert_eq!(plain_event::<With32>(FAULT | DEAD_MARKS, 0x202), None);
}

const SYSCALL: u64 = EntryKind::Syscall64.word(0);
const FAULT: u64 = EntryKind::Exception.word(14);

#[test]
fn the_quick_answer_for_syscall_is_for_untouched_frames() {
    assert_eq!(
        plain(image(SYSCALL, 0x40_1000, CODE64, 0x202, DATA)).0,
        Some(Leave::Sysret)
    );
    // Bit 16: a setter was used.
    assert_eq!(plain(image(SYSCALL | 1 << 16, 0x40_1000, CODE64, 0x202, DATA)).0, None);
    // No untouched frame of another kind has RCX and R11 to spare.
    for kind in [EntryKind::Built.word(0), EntryKind::Int80.word(0), FAULT] {
        assert_eq!(plain(image(kind, 0x40_1000, CODE64, 0x202, DATA)).0, None);
    }
}

#[test]
fn the_quick_answer_for_sysenter_is_for_untouched_frames_of_64_bit_code() {
    // SAFETY: there are no interrupts to be off in a test, and nothing here relies on them.
    let irq = unsafe { IrqOff::assume() };
    let answer = |kind| {
        let image = image(kind, 0x40_1000, CODE64, 0x202, DATA);
        // SAFETY: 22 words without padding or invalid patterns.
        let frame = unsafe { core::mem::transmute::<[u64; 22], TrapFrame>(image) };
        SysretOrIret::<Default48>::choose_plain_sysenter(&frame, &irq)
    };
    let sysenter = EntryKind::Sysenter64.word(0);
    assert_eq!(answer(sysenter), Some(Leave::Sysret));
    // Bit 16: a setter was used.
    assert_eq!(answer(sysenter | 1 << 16), None);
    for kind in [EntryKind::Sysenter32.word(0), EntryKind::Built.word(0), FAULT] {
        assert_eq!(answer(kind), None);
    }
}

/// What the exit answers in a hurry to SYSCALL and SYSENTER of 32-bit code, and to an event in it.
fn plain32<R: Rules>(image: [u64; 22]) -> (Option<Leave>, Option<Leave>, Option<Leave>) {
    // SAFETY: there are no interrupts to be off in a test, and nothing here relies on them.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: 22 words without padding or invalid patterns.
    let frame = unsafe { core::mem::transmute::<[u64; 22], TrapFrame>(image) };
    (
        SysretOrIret::<R>::choose_plain_syscall32(&frame, &irq),
        SysretOrIret::<R>::choose_plain_sysenter32(&frame, &irq),
        SysretOrIret::<R>::choose_plain_event(&frame, &irq),
    )
}

const SYSCALL32: u64 = EntryKind::Syscall32.word(0);
const SYSENTER32: u64 = EntryKind::Sysenter32.word(0);

#[test]
fn the_quick_answer_for_syscall_of_32_bit_code_is_for_untouched_frames() {
    let answer = |kind| plain32::<With32>(image(kind, 0xf7f0_0007, CODE32, 0x202, DATA)).0;
    assert_eq!(answer(SYSCALL32), Some(Leave::Sysret32));
    // Bit 16: a setter was used.
    for kind in [
        SYSCALL32 | 1 << 16,
        SYSENTER32,
        SYSCALL,
        EntryKind::Int80.word(0),
        FAULT,
    ] {
        assert_eq!(answer(kind), None, "{kind:#x}");
    }
}

#[test]
fn the_quick_answer_for_sysenter_of_32_bit_code_is_for_untouched_frames() {
    let answer = |kind| plain32::<With32>(image(kind, 0xf7f0_0007, CODE32, 0x202, DATA)).1;
    assert_eq!(answer(SYSENTER32), Some(Leave::Sysret32));
    // Bit 16: a setter was used.
    let sysenter64 = EntryKind::Sysenter64.word(0);
    for kind in [SYSENTER32 | 1 << 16, SYSCALL32, SYSCALL, sysenter64, FAULT] {
        assert_eq!(answer(kind), None, "{kind:#x}");
    }
}

#[test]
fn the_quick_answer_for_32_bit_calls_asks_whether_there_is_32_bit_code() {
    let frame = |kind| image(kind, 0xf7f0_0007, CODE32, 0x202, DATA);
    assert_eq!(plain32::<Default48>(frame(SYSCALL32)).0, None);
    assert_eq!(plain32::<Default48>(frame(SYSENTER32)).1, None);
}

#[test]
fn the_quick_answer_for_32_bit_calls_tests_rip() {
    let answer = |rip| plain32::<With32>(image(SYSCALL32, rip, CODE32, 0x202, DATA)).0;
    assert_eq!(answer(0xffff_ffff), Some(Leave::Sysret32));
    for rip in [1 << 32, 0x8000_0000_0000, u64::MAX] {
        assert_eq!(answer(rip), None, "{rip:#x}");
    }
}

/// TF, IOPL, IF, RF, VM, VIF, VIP, and bits without a meaning.
const NOT_PLAIN: [u64; 11] = [
    0x302,
    0x1202,
    0x3202,
    0x2,
    0x1_0202,
    0x2_0202,
    0x8_0202,
    0x10_0202,
    0x40_0202,
    0x20a,
    1 << 63 | 0x202,
];

#[test]
fn the_quick_answer_for_32_bit_calls_tests_flags() {
    for rflags in NOT_PLAIN {
        let frame = image(SYSENTER32, 0xf7f0_0007, CODE32, rflags, DATA);
        assert_eq!(plain32::<With32>(frame).1, None, "{rflags:#x}");
    }
}

#[test]
fn the_quick_answer_for_events_in_32_bit_code_tests_cs() {
    assert_eq!(
        plain32::<With32>(image(FAULT, 0x40_1000, CODE32, 0x202, DATA)).2,
        Some(Leave::Iret)
    );
    for cs in [0, 0x08, 0x18, 0x1f, 0x33, 0x1_001b] {
        assert_eq!(
            plain32::<With32>(image(FAULT, 0x40_1000, cs, 0x202, DATA)).2,
            None,
            "{cs:#x}"
        );
    }
    // And whether there is 32-bit code.
    assert_eq!(
        plain32::<Default48>(image(FAULT, 0x40_1000, CODE32, 0x202, DATA)).2,
        None
    );
}

#[test]
fn the_quick_answer_for_events_in_32_bit_code_tests_ss() {
    for ss in [0, 3, 0x10, 0x20, 0x27, 0x2b, 1 << 32 | 0x23] {
        assert_eq!(
            plain32::<With32>(image(FAULT, 0x40_1000, CODE32, 0x202, ss)).2,
            None,
            "{ss:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_events_in_32_bit_code_tests_rip() {
    for rip in [1 << 32, 0x8000_0000_0000, u64::MAX] {
        assert_eq!(
            plain32::<With32>(image(FAULT, rip, CODE32, 0x202, DATA)).2,
            None,
            "{rip:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_events_in_32_bit_code_tests_flags() {
    // IRET restores TF and RF.
    for rflags in NOT_PLAIN.into_iter().filter(|flags| ![0x302, 0x1_0202].contains(flags)) {
        assert_eq!(
            plain32::<With32>(image(FAULT, 0x40_1000, CODE32, rflags, DATA)).2,
            None,
            "{rflags:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_syscall_tests_rip() {
    assert_eq!(
        plain(image(SYSCALL, 0x7fff_ffff_efff, CODE64, 0x202, DATA)).0,
        Some(Leave::Sysret)
    );
    for rip in [0x7fff_ffff_f000, 0x8000_0000_0000, u64::MAX] {
        assert_eq!(plain(image(SYSCALL, rip, CODE64, 0x202, DATA)).0, None);
    }
}

#[test]
fn the_quick_answer_for_syscall_tests_flags() {
    for rflags in [
        0x302,
        0x1202,
        0x3202,
        0x2,
        0x1_0202,
        0x2_0202,
        0x8_0202,
        0x10_0202,
        0x40_0202,
        0x20a,
        1 << 63 | 0x202,
    ] {
        assert_eq!(
            plain(image(SYSCALL, 0x40_1000, CODE64, rflags, DATA)).0,
            None,
            "{rflags:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_events_tests_cs() {
    for cs in [0, 0x08, 0x1b, 0x28, 0x2f, 0x4b, 0x1_002b] {
        assert_eq!(
            plain(image(FAULT, 0x40_1000, cs, 0x202, DATA)),
            (None, None, None),
            "{cs:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_events_tests_ss() {
    for ss in [0, 3, 0x10, 0x20, 0x27, 0x2b, 1 << 32 | 0x23] {
        assert_eq!(
            plain(image(FAULT, 0x40_1000, CODE64, 0x202, ss)),
            (None, None, None),
            "{ss:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_events_tests_rip() {
    assert_eq!(
        plain(image(FAULT, 0x7fff_ffff_efff, CODE64, 0x202, DATA)),
        (None, Some(Leave::Iret), Some(Leave::Iret))
    );
    for rip in [0x7fff_ffff_f000, 0x8000_0000_0000, u64::MAX] {
        assert_eq!(
            plain(image(FAULT, rip, CODE64, 0x202, DATA)),
            (None, None, None),
            "{rip:#x}"
        );
    }
}

#[test]
fn the_quick_answer_for_events_tests_flags() {
    for rflags in [
        0x1202,
        0x3202,
        0x2,
        0x2_0202,
        0x8_0202,
        0x10_0202,
        0x40_0202,
        0x20a,
        1 << 63 | 0x202,
    ] {
        assert_eq!(
            plain(image(FAULT, 0x40_1000, CODE64, rflags, DATA)),
            (None, None, None),
            "{rflags:#x}"
        );
    }
}

/// The sentences that a kernel prints.
#[test]
fn refusals_and_reasons_say_what_was_found() {
    assert_eq!(
        Refusal::NonCanonicalRip { rip: 1 << 47 }.to_string(),
        "rip 0x800000000000 is not canonical"
    );
    assert_eq!(
        Refusal::KernelCodeSegment { cs: 8 }.to_string(),
        "cs 0x8 has an rpl other than 3"
    );
    assert_eq!(IretReason::SingleStep.to_string(), "TF is set");
}
