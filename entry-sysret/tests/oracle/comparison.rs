//! The decision held against the oracle, for tests and fuzzing.

use entry_core::EntryKind;
use entry_core::address::{UserLimit, Width};
use entry_core::kernel::Leave;
use entry_core::segment::SegmentLayout;
use entry_sysret::{ExitWords, IretReason, Refusal, RuleSet, decide, why_iret};

use crate::manual::{Entry, Machine, Question, reason, reasons, refusal, refusals};

pub(crate) const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;
/// Selectors of the natural layout, and limits, typed from the manuals and not asked of the crate: null, kernel code and data,
/// then 32-bit user code at index 3, user data at 4, 64-bit user code at 5.
pub(crate) const MACHINE: Machine = Machine {
    address_bits: 48,
    user_end: 0x7fff_ffff_f000,
    cs64: 5 << 3 | 3,
    cs32: 0,
    ss: 4 << 3 | 3,
    iopl_allowed: false,
    sysret_loads_ss: false,
};

/// Every set of rules, with the same as the oracle sees it.
pub(crate) fn machines() -> Vec<(RuleSet, Machine)> {
    let low = 0x4000_0000;
    let mut all = Vec::new();
    for (width, bits, end) in [
        (Width::Bits48, 48, 0x7fff_ffff_f000),
        (Width::Bits57, 57, 0xff_ffff_ffff_f000),
        (Width::Bits57, 57, 0x7fff_ffff_f000),
        (Width::Bits48, 48, low),
    ] {
        let limit = UserLimit::new(end, width).unwrap();
        for policy in 0..8 {
            let (code32, io, ss) = (policy & 1 != 0, policy & 2 != 0, policy & 4 != 0);
            let mut rules = RuleSet::new(&LAYOUT, limit, width);
            if code32 {
                rules = rules.with_code32();
            }
            if io {
                rules = rules.with_io_privilege();
            }
            if ss {
                rules = rules.with_sysret_loading_ss();
            }
            let machine = Machine {
                address_bits: bits,
                user_end: end,
                cs32: if code32 { 3 << 3 | 3 } else { 0 },
                iopl_allowed: io,
                sysret_loads_ss: ss,
                ..MACHINE
            };
            all.push((rules, machine));
        }
    }
    all
}

pub(crate) const fn kind(entry: Entry) -> Option<EntryKind> {
    match entry {
        Entry::Syscall64 => Some(EntryKind::Syscall64),
        Entry::Syscall32 => Some(EntryKind::Syscall32),
        Entry::Sysenter32 => Some(EntryKind::Sysenter32),
        Entry::Sysenter64 => Some(EntryKind::Sysenter64),
        Entry::Int80 => Some(EntryKind::Int80),
        Entry::Exception => Some(EntryKind::Exception),
        Entry::Interrupt => Some(EntryKind::Interrupt),
        Entry::NmiOrSuch => Some(EntryKind::Paranoid),
        Entry::Built => Some(EntryKind::Built),
        Entry::IretFault => Some(EntryKind::IretFault),
        Entry::Unknown => None,
    }
}

pub(crate) const fn words(q: &Question) -> ExitWords {
    ExitWords {
        kind: kind(q.entry),
        is_modified: q.modified,
        are_rcx_r11_dead: q.declared_dead,
        may_drop_rf: q.no_breakpoint,
        rip: q.rip,
        cs: q.cs,
        rflags: q.rflags,
        ss: q.ss,
        rcx: q.rcx,
        r11: q.r11,
    }
}

/// The decision must be one that the oracle allows.
pub(crate) fn check(q: &Question, rules: &RuleSet, m: &Machine) {
    let refused = refusals(q, m);
    let by_iret = reasons(q, m);
    let words = words(q);
    match decide(&words, rules) {
        Err(refusal) => {
            assert!(
                refused & bit_of_refusal(refusal) != 0,
                "{refusal:?}, but not by the manual: {q:x?} {m:x?}"
            );
        }
        Ok(leave) => {
            assert!(
                refused == 0,
                "{leave:?} of what must be refused ({refused:#x}): {q:x?} {m:x?}"
            );
            let wanted = match (by_iret == 0, q.cs == m.cs64) {
                (false, _) => Leave::Iret,
                (true, true) => Leave::Sysret,
                (true, false) => Leave::Sysret32,
            };
            assert_eq!(leave, wanted, "{q:x?} {m:x?}");
            match why_iret(&words, rules) {
                None => assert!(by_iret == 0, "{q:x?} {m:x?}"),
                Some(reason) => {
                    assert!(by_iret & bit_of_reason(reason) != 0, "{reason:?}: {q:x?} {m:x?}");
                }
            }
        }
    }
}

fn bit_of_refusal(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::UnknownEntryKind => refusal::UNKNOWN_ENTRY_KIND,
        Refusal::NonCanonicalRip { .. } => refusal::NON_CANONICAL_RIP,
        Refusal::KernelRip { .. } => refusal::KERNEL_RIP,
        Refusal::RipAboveUserLimit { .. } => refusal::RIP_ABOVE_USER_LIMIT,
        Refusal::RipAboveCode32 { .. } => refusal::RIP_ABOVE_CODE32,
        Refusal::KernelCodeSegment { .. } => refusal::KERNEL_CODE_SEGMENT,
        Refusal::LocalCodeSegment { .. } => refusal::LOCAL_CODE_SEGMENT,
        Refusal::UnlistedCodeSegment { .. } => refusal::UNLISTED_CODE_SEGMENT,
        Refusal::NullStackSegment { .. } => refusal::NULL_STACK_SEGMENT,
        Refusal::KernelStackSegment { .. } => refusal::KERNEL_STACK_SEGMENT,
        Refusal::LocalStackSegment { .. } => refusal::LOCAL_STACK_SEGMENT,
        Refusal::UnlistedStackSegment { .. } => refusal::UNLISTED_STACK_SEGMENT,
        Refusal::Virtual8086 { .. } => refusal::VIRTUAL8086,
        Refusal::VirtualInterrupts { .. } => refusal::VIRTUAL_INTERRUPTS,
        Refusal::ReservedFlags { .. } => refusal::RESERVED_FLAGS,
        Refusal::IoPrivilege { .. } => refusal::IO_PRIVILEGE,
        Refusal::InterruptsOff { .. } => refusal::INTERRUPTS_OFF,
        other => panic!("{other:?} is not in the oracle"),
    }
}

fn bit_of_reason(reason: IretReason) -> u32 {
    match reason {
        IretReason::ParanoidEntry => reason::PARANOID_ENTRY,
        IretReason::SingleStep => reason::SINGLE_STEP,
        IretReason::ResumeFlag => reason::RESUME_FLAG,
        IretReason::LiveRegisters => reason::LIVE_REGISTERS,
        IretReason::NullStackSegment => reason::NULL_STACK_SEGMENT,
        other => panic!("{other:?} is not in the oracle"),
    }
}
