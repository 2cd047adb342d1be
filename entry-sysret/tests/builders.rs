//! The builders, against what the manuals let a program change, in bit numbers.

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::Leave;
use entry_core::segment::SegmentLayout;
use entry_core::{EntryKind, TrapFrame};
use entry_sysret::iret::{CodeSize, KernelThread, KernelThreadError, SavedContext, fork_child, program_start, restore};
use entry_sysret::sysret::{UserCall, call_user, give_up_rcx_r11};
use entry_sysret::{ExitWords, Refusal, RuleSet, decide};
use proptest::prelude::*;

const CLOSED: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
const OPEN: RuleSet = CLOSED.with_code32().with_io_privilege();

const CODE64: u16 = 0x2b;
const CODE32: u16 = 0x1b;
const DATA: u16 = 0x23;

const GOOD: SavedContext = SavedContext {
    rax: 1,
    rbx: 2,
    rcx: 3,
    rdx: 4,
    rsi: 5,
    rdi: 6,
    rbp: 7,
    rsp: 8,
    r8: 9,
    r9: 10,
    r10: 11,
    r11: 12,
    r12: 13,
    r13: 14,
    r14: 15,
    r15: 16,
    rip: 0x40_1000,
    rflags: 0x202,
    cs: CODE64,
    ss: DATA,
};

const fn decision(frame: &TrapFrame, rules: &RuleSet) -> Result<Leave, Refusal> {
    decide(&ExitWords::of(frame), rules)
}

/// CF, PF, AF, ZF, SF, TF, DF, OF, RF, AC, ID: what a signal frame may set.
const MAY_SET: [u32; 11] = [0, 2, 4, 6, 7, 8, 10, 11, 16, 18, 21];

#[test]
fn restore_takes_every_register() {
    let mut frame = TrapFrame::zeroed();
    restore(&mut frame, &CLOSED, &GOOD).unwrap();
    assert_eq!(SavedContext::of(&frame), GOOD);
    assert_eq!(frame.entry_kind(), Some(EntryKind::Built));
    // RCX and R11 are live.
    assert_eq!(decision(&frame, &CLOSED), Ok(Leave::Iret));
}

#[test]
fn restore_after_a_system_call_does_not_leave_by_sysret() {
    let mut frame = program_start(&CLOSED, CodeSize::Bits64, 0x40_0000, 0).unwrap();
    frame.declare_rcx_r11_dead();
    restore(&mut frame, &CLOSED, &GOOD).unwrap();
    assert_eq!(decision(&frame, &CLOSED), Ok(Leave::Iret));
}

#[test]
fn restore_keeps_only_the_flags_of_the_program() {
    for number in 0..64 {
        for base in [0, 0x202] {
            let mut frame = TrapFrame::zeroed();
            restore(
                &mut frame,
                &CLOSED,
                &SavedContext {
                    rflags: base | 1 << number,
                    ..GOOD
                },
            )
            .unwrap();
            let wanted = if MAY_SET.contains(&number) { 1 << number } else { 0 };
            assert_eq!(frame.rflags(), 0x202 | wanted, "bit {number}");
        }
    }
}

#[test]
fn restore_turns_interrupts_on() {
    let mut frame = TrapFrame::zeroed();
    restore(&mut frame, &CLOSED, &SavedContext { rflags: 0, ..GOOD }).unwrap();
    assert_eq!(frame.rflags(), 0x202);
    assert!(decision(&frame, &CLOSED).is_ok());
}

#[test]
fn restore_takes_iopl_from_the_frame_alone() {
    for (rules, current, wanted) in [(CLOSED, 0x3202, 0x202), (OPEN, 0x3202, 0x3202), (OPEN, 0x202, 0x202)] {
        let mut frame = TrapFrame::zeroed();
        frame.set_rflags(current);
        restore(&mut frame, &rules, &SavedContext { rflags: 0x3202, ..GOOD }).unwrap();
        assert_eq!(frame.rflags(), wanted);
    }
}

#[test]
fn restore_makes_the_rpl_3() {
    let mut frame = TrapFrame::zeroed();
    restore(
        &mut frame,
        &CLOSED,
        &SavedContext {
            cs: 0x28,
            ss: 0x20,
            ..GOOD
        },
    )
    .unwrap();
    assert_eq!((frame.cs(), frame.ss()), (0x2b, 0x23));
}

#[test]
fn restore_accepts_no_selector_but_the_listed() {
    for (rules, codes) in [(CLOSED, &[CODE64][..]), (OPEN, &[CODE64, CODE32][..])] {
        for selector in 0..=u16::MAX {
            let mut frame = TrapFrame::zeroed();
            let result = restore(&mut frame, &rules, &SavedContext { cs: selector, ..GOOD });
            assert_eq!(result.is_ok(), codes.contains(&(selector | 3)), "cs {selector:#x}");
            if result.is_err() {
                assert_eq!(frame, TrapFrame::zeroed());
            }
            let result = restore(&mut frame, &rules, &SavedContext { ss: selector, ..GOOD });
            assert_eq!(result.is_ok(), selector | 3 == DATA, "ss {selector:#x}");
        }
    }
}

#[test]
fn builders_refuse_a_rip_that_is_not_the_users() {
    let call = |rip| UserCall {
        size: CodeSize::Bits64,
        rip,
        rsp: 0,
        arguments: [0; 3],
    };
    for rip in [0x7fff_ffff_f000, 0x8000_0000_0000, 0xffff_8000_0000_0000] {
        let mut frame = TrapFrame::zeroed();
        let refusal = restore(&mut frame, &CLOSED, &SavedContext { rip, ..GOOD }).unwrap_err();
        assert_eq!(program_start(&CLOSED, CodeSize::Bits64, rip, 0), Err(refusal));
        assert_eq!(call_user(&mut frame, &CLOSED, &call(rip)), Err(refusal));
        assert_eq!(frame, TrapFrame::zeroed());
    }
    let rip = 1 << 32;
    assert_eq!(
        program_start(&OPEN, CodeSize::Bits32, rip, 0),
        Err(Refusal::RipAboveCode32 { rip })
    );
}

#[test]
fn a_program_starts_with_clean_registers() {
    let frame = program_start(&CLOSED, CodeSize::Bits64, 0x40_1000, 0x7fff_0000).unwrap();
    let clean = SavedContext {
        rip: 0x40_1000,
        rsp: 0x7fff_0000,
        rflags: 0x202,
        cs: CODE64,
        ss: DATA,
        ..Default::default()
    };
    assert_eq!(SavedContext::of(&frame), clean);
    assert_eq!(decision(&frame, &CLOSED), Ok(Leave::Iret));
}

#[test]
fn a_32_bit_program_needs_the_rules_to_allow_it() {
    let cs = u64::from(CODE32);
    assert_eq!(
        program_start(&CLOSED, CodeSize::Bits32, 0x40_1000, 0),
        Err(Refusal::UnlistedCodeSegment { cs })
    );
    let frame = program_start(&OPEN, CodeSize::Bits32, 0x40_1000, 0).unwrap();
    assert_eq!(frame.cs(), cs);
    assert_eq!(decision(&frame, &OPEN), Ok(Leave::Iret));
}

#[test]
fn giving_up_rcx_and_r11_opens_sysret() {
    for (size, leave) in [(CodeSize::Bits64, Leave::Sysret), (CodeSize::Bits32, Leave::Sysret32)] {
        let mut frame = program_start(&OPEN, size, 0x40_1000, 0).unwrap();
        give_up_rcx_r11(&mut frame);
        assert_eq!(decision(&frame, &OPEN), Ok(leave));
    }
}

#[test]
fn giving_up_rcx_sets_it_to_rip() {
    let mut frame = program_start(&CLOSED, CodeSize::Bits64, 0x40_1000, 0).unwrap();
    give_up_rcx_r11(&mut frame);
    assert_eq!(frame.rcx(), 0x40_1000);
}

#[test]
fn giving_up_r11_sets_it_to_rflags() {
    let mut frame = program_start(&CLOSED, CodeSize::Bits64, 0x40_1000, 0).unwrap();
    give_up_rcx_r11(&mut frame);
    assert_eq!(frame.r11(), 0x202);
}

#[test]
fn a_user_call_starts_as_the_c_abi_expects() {
    let mut frame = TrapFrame::zeroed();
    // TF, DF, RF, NT and CF set: all but CF are cleared.
    restore(
        &mut frame,
        &CLOSED,
        &SavedContext {
            rflags: 0x1_0703,
            ..GOOD
        },
    )
    .unwrap();
    frame.set_rflags(frame.rflags() | 1 << 14);
    let call = UserCall {
        size: CodeSize::Bits64,
        rip: 0x40_2000,
        rsp: 0x7000_0008,
        arguments: [21, 22, 23],
    };
    call_user(&mut frame, &CLOSED, &call).unwrap();
    let wanted = SavedContext {
        rax: 0,
        rdi: 21,
        rsi: 22,
        rdx: 23,
        rip: 0x40_2000,
        rsp: 0x7000_0008,
        rflags: 0x203,
        rcx: 0x40_2000,
        r11: 0x203,
        ..GOOD
    };
    assert_eq!(SavedContext::of(&frame), wanted);
    assert_eq!(decision(&frame, &CLOSED), Ok(Leave::Sysret));
}

#[test]
fn a_user_call_keeps_no_mark_of_the_entry() {
    let mut frame = program_start(&CLOSED, CodeSize::Bits64, 0x40_0000, 0).unwrap();
    let built = frame.kind_word();
    frame.declare_rcx_r11_dead();
    frame.declare_no_instruction_breakpoint();
    let call = UserCall {
        size: CodeSize::Bits64,
        rip: 0x40_2000,
        rsp: 0x7000_0008,
        arguments: [0; 3],
    };
    call_user(&mut frame, &CLOSED, &call).unwrap();
    assert_eq!(frame.kind_word(), built);
}

#[test]
fn a_fork_child_differs_in_rax_and_stack_alone() {
    let mut parent = TrapFrame::zeroed();
    restore(&mut parent, &CLOSED, &GOOD).unwrap();
    let child = fork_child(&parent, None);
    assert_eq!(SavedContext::of(&child), SavedContext { rax: 0, ..GOOD });
    assert_eq!(child.kind_word(), parent.kind_word());
    let child = fork_child(&parent, Some(0x5000));
    assert_eq!(
        SavedContext::of(&child),
        SavedContext {
            rax: 0,
            rsp: 0x5000,
            ..GOOD
        }
    );
}

extern "sysv64" fn never(_: u64) -> ! {
    unreachable!()
}

#[test]
fn a_kernel_thread_needs_an_aligned_stack() {
    for top in [0, 8, 0xffff_8000_0000_0001] {
        let error = KernelThread::new(&SegmentLayout::NATURAL, never, 0, top).unwrap_err();
        assert_eq!(error, KernelThreadError::BadStack { top });
    }
    assert!(KernelThread::new(&SegmentLayout::NATURAL, never, 0, 0xffff_8000_0000_0010).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    /// Whatever a program writes into its signal frame, the exit accepts the result, and it is ring 3 with interrupts on.
    #[test]
    fn restore_never_builds_what_the_exit_refuses(
        current: u64, rip: u64, shift in 0u32..40, rflags: u64, cs: u16, ss: u16, pick in 0u8..8, rcx: u64,
    ) {
        for rules in [CLOSED, OPEN] {
            let mut frame = TrapFrame::zeroed();
            frame.set_rflags(current);
            let context = SavedContext {
                rip: rip >> shift,
                rflags,
                cs: match pick & 3 { 0 => cs, 1 => CODE32, _ => CODE64 },
                ss: if pick & 4 == 0 { DATA } else { ss },
                rcx,
                ..GOOD
            };
            match restore(&mut frame, &rules, &context) {
                Ok(()) => {
                    prop_assert!(decision(&frame, &rules).is_ok());
                    prop_assert_eq!(frame.cs() & 3, 3);
                    prop_assert_eq!(frame.rflags() >> 9 & 1, 1);
                }
                Err(refusal) => {
                    let mut raw = TrapFrame::zeroed();
                    raw.set_rip(context.rip);
                    raw.set_cs(u64::from(context.cs | 3));
                    raw.set_ss(u64::from(context.ss | 3));
                    raw.set_rflags(0x202);
                    prop_assert_eq!(decision(&raw, &rules), Err(refusal));
                }
            }
        }
    }

    #[test]
    fn calls_never_build_what_the_exit_refuses(current: u64, rip: u64, shift in 0u32..40, rsp: u64) {
        for rules in [CLOSED, OPEN] {
            for size in [CodeSize::Bits64, CodeSize::Bits32] {
                let mut frame = TrapFrame::zeroed();
                frame.set_rflags(current);
                let call = UserCall { size, rip: rip >> shift, rsp, arguments: [1, 2, 3] };
                if call_user(&mut frame, &rules, &call).is_ok() {
                    prop_assert!(matches!(decision(&frame, &rules), Ok(Leave::Sysret | Leave::Sysret32)));
                }
            }
        }
    }
}
