//! The checks before SYSEXIT: one row per refusal, and every address next to a limit.

use entry_core::address::{UserLimit, Width};
use entry_core::segment::Selectors;
use entry_core::{EntryKind, SegmentLayout, Selector, TrapFrame};
use entry_sysenter::error::{NoSysexitSegments, Operand64, SysexitRefusal};
use entry_sysenter::sysexit::{Sysexit, SysexitRules};

fn rules(width: Width) -> SysexitRules {
    SysexitRules::new(&SegmentLayout::NATURAL, UserLimit::highest(width), width).unwrap()
}

/// A frame as a stub makes it: safe code can't give a frame its kind, so the word is written where the stubs write it.
fn frame(kind: EntryKind) -> TrapFrame {
    let mut frame = TrapFrame::zeroed();
    let is_64_bit = kind == EntryKind::Sysenter64;
    frame.set_cs(if is_64_bit { 0x2b } else { 0x1b });
    frame.set_ss(0x23);
    frame.set_rip(0x40_1000);
    frame.set_rsp(0x7fff_0000);
    frame.set_rflags(0x202);
    let words = (&raw mut frame).cast::<u64>();
    // SAFETY: the frame is 22 words, and the kind word is one of them.
    let word = unsafe { words.add(TrapFrame::KIND / 8) };
    // SAFETY: as above; any bits are a kind word.
    unsafe { word.write(kind.word(0)) };
    frame
}

fn refusal(frame: &TrapFrame) -> Option<SysexitRefusal> {
    let width = Width::Bits48;
    Sysexit::check(frame, &rules(width).with_rdx_destroyed()).err()
}

#[test]
fn good_frames_are_accepted_each_in_its_form() {
    let rules = rules(Width::Bits48).with_rdx_destroyed();
    for (kind, is_64_bit) in [(EntryKind::Sysenter64, true), (EntryKind::Sysenter32, false)] {
        let frame = frame(kind);
        let checked = Sysexit::check(&frame, &rules).unwrap();
        assert_eq!(checked.is_64_bit(), is_64_bit);
    }
}

#[test]
fn live_registers_are_those_of_every_entry_but_sysenter() {
    for kind in [
        EntryKind::Syscall64,
        EntryKind::Syscall32,
        EntryKind::Int80,
        EntryKind::Exception,
        EntryKind::Interrupt,
        EntryKind::Paranoid,
        EntryKind::Built,
    ] {
        for is_64_bit in [true, false] {
            let mut frame = frame(kind);
            frame.set_cs(if is_64_bit { 0x2b } else { 0x1b });
            assert_eq!(refusal(&frame), Some(SysexitRefusal::LiveRegisters), "{kind:?}");
        }
    }
}

#[test]
fn rdx_of_64_bit_code_is_live_unless_the_rules_say_otherwise() {
    let rules = rules(Width::Bits48);
    assert_eq!(
        Sysexit::check(&frame(EntryKind::Sysenter64), &rules).err(),
        Some(SysexitRefusal::LiveRegisters)
    );
    assert!(Sysexit::check(&frame(EntryKind::Sysenter32), &rules).is_ok());
}

#[test]
fn code_and_stack_segment_are_those_that_sysexit_loads() {
    for kind in [EntryKind::Sysenter64, EntryKind::Sysenter32] {
        let good = if kind == EntryKind::Sysenter64 { 0x2b } else { 0x1b };
        for selector in (0..0x60u64).chain([good | 1 << 16, 0x23 | 1 << 16]) {
            let mut changed = frame(kind);
            changed.set_cs(selector);
            let wanted = (selector != good).then_some(SysexitRefusal::CodeSegment { cs: selector });
            assert_eq!(refusal(&changed), wanted, "{kind:?} cs {selector:#x}");
            let mut changed = frame(kind);
            changed.set_ss(selector);
            let wanted = (selector != 0x23).then_some(SysexitRefusal::StackSegment { ss: selector });
            assert_eq!(refusal(&changed), wanted, "{kind:?} ss {selector:#x}");
        }
    }
}

/// Each power of two from 2^12 on, the end of user space, and what lies on both sides.
fn addresses() -> impl Iterator<Item = u64> {
    let limit = 0x7fff_ffff_f000u64;
    let powers = (12..64).map(|bit| 1u64 << bit);
    let negatives = (12..64).map(|bit| (1u64 << bit).wrapping_neg());
    powers
        .chain(negatives)
        .chain([limit, 0])
        .flat_map(|at| [at.wrapping_sub(1), at, at.wrapping_add(1)])
}

#[test]
fn operands_of_64_bit_code_are_canonical_and_the_users() {
    for value in addresses() {
        let is_canonical = !(0x8000_0000_0000..0xffff_8000_0000_0000).contains(&value);
        let wanted = |operand, is_user: bool| match (is_user, is_canonical) {
            (true, _) => None,
            (false, true) => Some(SysexitRefusal::AboveUserLimit { operand, value }),
            (false, false) => Some(SysexitRefusal::NonCanonical { operand, value }),
        };
        let mut changed = frame(EntryKind::Sysenter64);
        changed.set_rip(value);
        assert_eq!(
            refusal(&changed),
            wanted(Operand64::Rip, value < 0x7fff_ffff_f000),
            "{value:#x}"
        );
        let mut changed = frame(EntryKind::Sysenter64);
        changed.set_rsp(value);
        assert_eq!(
            refusal(&changed),
            wanted(Operand64::Rsp, value <= 0x7fff_ffff_f000),
            "{value:#x}"
        );
    }
}

#[test]
fn width_of_57_bits_moves_the_limit() {
    let rules = rules(Width::Bits57).with_rdx_destroyed();
    for (rip, wanted) in [
        (0x00ff_ffff_ffff_efff, None),
        (0x00ff_ffff_ffff_f000, Some(true)),
        (0x0100_0000_0000_0000, Some(false)),
        (0xfeff_ffff_ffff_ffff, Some(false)),
        (0xff00_0000_0000_0000, Some(true)),
    ] {
        let mut changed = frame(EntryKind::Sysenter64);
        changed.set_rip(rip);
        let wanted = wanted.map(|is_canonical| {
            let (operand, value) = (Operand64::Rip, rip);
            if is_canonical {
                SysexitRefusal::AboveUserLimit { operand, value }
            } else {
                SysexitRefusal::NonCanonical { operand, value }
            }
        });
        assert_eq!(Sysexit::check(&changed, &rules).err(), wanted, "{rip:#x}");
    }
}

#[test]
fn operands_of_32_bit_code_have_32_bits() {
    for value in addresses() {
        let is_good = value < 1 << 32;
        let wanted = |operand| (!is_good).then_some(SysexitRefusal::Above32Bits { operand, value });
        let mut changed = frame(EntryKind::Sysenter32);
        changed.set_rip(value);
        assert_eq!(refusal(&changed), wanted(Operand64::Rip), "{value:#x}");
        let mut changed = frame(EntryKind::Sysenter32);
        changed.set_rsp(value);
        assert_eq!(refusal(&changed), wanted(Operand64::Rsp), "{value:#x}");
    }
}

#[test]
fn every_flag_is_restored_or_refused() {
    // CF, bit 1, PF, AF, ZF, SF, DF, OF, AC, ID.
    let restored = 1u64 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 11 | 1 << 18 | 1 << 21;
    for kind in [EntryKind::Sysenter64, EntryKind::Sysenter32] {
        for bit in 0..64u32 {
            let rflags = 0x202 ^ 1u64 << bit;
            let mut changed = frame(kind);
            changed.set_rflags(rflags);
            let wanted = match bit {
                8 => Some(SysexitRefusal::SingleStep { rflags }),
                9 => Some(SysexitRefusal::InterruptsOff { rflags }),
                17 => Some(SysexitRefusal::Virtual8086 { rflags }),
                _ if restored & 1 << bit != 0 => None,
                _ => Some(SysexitRefusal::Flags { rflags }),
            };
            assert_eq!(refusal(&changed), wanted, "bit {bit}");
        }
    }
}

#[test]
fn layout_without_segments_for_sysexit_has_no_rules() {
    let layout = SegmentLayout::check(Selectors {
        kernel_code: Selector::from_bits(0x08),
        kernel_data: Selector::from_bits(0x10),
        user_code32: None,
        user_data: Selector::from_bits(0x1b),
        user_code64: Selector::from_bits(0x23),
        sysexit_data: None,
        tss: Selector::from_bits(0x28),
    })
    .unwrap();
    assert_eq!(
        SysexitRules::new(&layout, UserLimit::HIGHEST_48, Width::Bits48),
        Err(NoSysexitSegments)
    );
}

#[test]
fn a_limit_that_is_too_high_for_the_width_lets_nothing_through_that_is_not_canonical() {
    let limit = UserLimit::highest(Width::Bits57);
    let rules = SysexitRules::new(&SegmentLayout::NATURAL, limit, Width::Bits48)
        .unwrap()
        .with_rdx_destroyed();
    let value = 0x8000_0000_0000;
    let mut with_rip = frame(EntryKind::Sysenter64);
    with_rip.set_rip(value);
    let mut with_rsp = frame(EntryKind::Sysenter64);
    with_rsp.set_rsp(value);
    for (frame, operand) in [(with_rip, Operand64::Rip), (with_rsp, Operand64::Rsp)] {
        assert_eq!(
            Sysexit::check(&frame, &rules).err(),
            Some(SysexitRefusal::NonCanonical { operand, value })
        );
    }
}
