//! The exit decision: may the kernel leave with this frame, and how.
//!
//! One function over plain values, [`decide`], answers for every frame; it is `const`, so it runs in a test on the host as it
//! runs in the kernel. The exits ask cheaper questions first, [`is_plain_sysret`] and [`is_plain_iret`], which say yes
//! only where `decide` would say the same, and call it for everything else.
//!
//! The order of the answers: a frame that would fault or do harm on any way out is a [`Refusal`]; of the others, those that
//! SYSRET can't restore as they are leave by IRET, for an [`IretReason`]; the rest leave by SYSRET.
//!
//! Invariant: the exit loads RIP, RFLAGS and RSP from the words that were examined here, so nothing has to be true of RCX and
//! R11 for safety. They are compared because the program could notice.

use core::fmt;

use entry_core::kernel::Leave;
use entry_core::rflags::Rflags;
use entry_core::{EntryKind, TrapFrame};
use static_assertions::const_assert;

use crate::refusal::Refusal;
use crate::rules::RuleSet;

/// `condition`, unless a test build takes the guard of that name away.
macro_rules! guard {
    ($name:tt, $condition:expr) => {
        cfg!(not(ablate = $name)) && $condition
    };
}

pub(crate) use guard;

/// Bits of RFLAGS that have no meaning: 3, 5, 15 and 63:22. Bit 1, always 1, is not among them: every exit sets it.
const RESERVED: u64 = !(Rflags::ARITHMETIC.bits()
    | Rflags::ALWAYS_ONE.bits()
    | Rflags::TRAP.bits()
    | Rflags::INTERRUPT_ENABLE.bits()
    | Rflags::DIRECTION.bits()
    | Rflags::IO_PRIVILEGE_LEVEL.bits()
    | Rflags::NESTED_TASK.bits()
    | Rflags::RESUME.bits()
    | Rflags::VIRTUAL_8086.bits()
    | Rflags::ALIGNMENT_CHECK.bits()
    | VIRTUAL_INTERRUPTS
    | Rflags::IDENTIFICATION.bits());

const VIRTUAL_INTERRUPTS: u64 = Rflags::VIRTUAL_INTERRUPT
    .union(Rflags::VIRTUAL_INTERRUPT_PENDING)
    .bits();

/// What a plain frame has clear, whichever way it leaves.
const NEVER_PLAIN: u64 =
    RESERVED | VIRTUAL_INTERRUPTS | Rflags::VIRTUAL_8086.bits() | Rflags::IO_PRIVILEGE_LEVEL.bits();

/// What a plain system call has clear besides, because SYSRET does not restore it as IRET does.
const NEVER_SYSRET: u64 = Rflags::TRAP.union(Rflags::RESUME).bits();

const IF: u64 = Rflags::INTERRUPT_ENABLE.bits();

/// What every frame that the CPU pushes in user mode has.
const ALWAYS: u64 = IF | Rflags::ALWAYS_ONE.bits();

/// The bits of a kind word that hold the [`EntryKind`].
const KIND: u64 = 0xff00;

/// The mark in a kind word by which RCX and R11 were declared dead.
const DEAD: u64 = {
    let mut frame = TrapFrame::zeroed();
    frame.declare_rcx_r11_dead();
    frame.kind_word() ^ TrapFrame::zeroed().kind_word()
};

/// The mark in a kind word by which RF was declared to hold nothing back.
const MAY_DROP_RF: u64 = {
    let mut frame = TrapFrame::zeroed();
    frame.declare_no_instruction_breakpoint();
    frame.kind_word() ^ TrapFrame::zeroed().kind_word()
};

const_assert!((DEAD | MAY_DROP_RF) & KIND == 0);

/// What a frame says to the exit decision, as plain values.
///
/// ```
/// use entry_core::TrapFrame;
/// use entry_sysret::ExitWords;
/// let words = ExitWords::of(&TrapFrame::zeroed());
/// assert_eq!(words.rip, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitWords {
    /// How the kernel was entered; `None` if the kind word is not one that a stub writes.
    pub kind: Option<EntryKind>,
    /// Whether a register that the exit depends on was changed since.
    pub is_modified: bool,
    /// Whether the program's ABI says that RCX and R11 are destroyed.
    pub are_rcx_r11_dead: bool,
    /// Whether no instruction breakpoint is armed, so that RF has nothing to hold back.
    pub may_drop_rf: bool,
    /// RIP.
    pub rip: u64,
    /// CS, the whole word.
    pub cs: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// SS, the whole word.
    pub ss: u64,
    /// RCX.
    pub rcx: u64,
    /// R11.
    pub r11: u64,
}

impl ExitWords {
    /// The words of `frame`.
    #[inline(always)]
    #[must_use]
    pub const fn of(frame: &TrapFrame) -> Self {
        Self {
            kind: frame.entry_kind(),
            is_modified: frame.is_modified(),
            are_rcx_r11_dead: frame.rcx_r11_are_dead(),
            may_drop_rf: frame.rf_may_be_dropped(),
            rip: frame.rip(),
            cs: frame.cs(),
            rflags: frame.rflags(),
            ss: frame.ss(),
            rcx: frame.rcx(),
            r11: frame.r11(),
        }
    }

    #[inline(always)]
    const fn has(&self, flags: u64) -> bool {
        self.rflags & flags != 0
    }
}

/// Why a good frame leaves by IRET: what SYSRET would not restore.
///
/// In the order in which they are found; only the first is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IretReason {
    /// The frame is that of an NMI, #MC, #DB or #DF.
    ///
    /// **The CPU** blocks NMIs from the delivery of one until the next IRET, and SYSRET is no IRET: after it, NMIs would stay
    /// blocked in user mode until some later interrupt returned. Intel and AMD alike. No mark on the frame changes this.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *Handling Multiple NMIs*; AMD APM vol. 2, *NMI—Non-Maskable-Interrupt Exception*.
    ParanoidEntry,
    /// RFLAGS.TF is 1.
    ///
    /// **The CPU** traps after the instruction that follows IRET, but SYSRET with TF in R11 traps *before* the first user
    /// instruction; a debugger's step then never makes progress if its #DB returns by SYSRET too.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*; vol. 3B, *Single-Step Exception Condition*.
    SingleStep,
    /// RFLAGS.RF is 1, and nobody declared that it may be dropped.
    ///
    /// **The CPU** sets RF in the frame of every fault, so that the instruction that is tried again does not hit the same
    /// instruction breakpoint again. SYSRET clears RF. Where a breakpoint may be armed for the thread, dropping RF would
    /// report it twice, or for ever. [`TrapFrame::declare_no_instruction_breakpoint`] says that none is.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3B, *Instruction-Breakpoint Exception Condition*; vol. 2B, *SYSRET—Return From Fast System Call*.
    ResumeFlag,
    /// RCX or R11 is live, and differs from what SYSRET leaves in it.
    ///
    /// SYSRET needs RIP in RCX and RFLAGS in R11, so the program finds those values there. A frame of SYSCALL that nobody
    /// changed has them there anyway, and a caller of SYSENTER gave both up when it passed stack pointer and return address;
    /// one that was changed or built must have RCX = RIP and R11 = RFLAGS. The frame of an
    /// exception or interrupt is not even compared: its values could be equal only by accident, and the comparison would
    /// cost every interrupt. [`TrapFrame::declare_rcx_r11_dead`] waives the rule for any entry.
    ///
    /// **Attack**: none; but a program that is resumed after a signal with two registers changed fails at random.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *SYSRET—Return From Fast System Call*.
    LiveRegisters,
    /// The entry left SS null, the kernel allows 32-bit code, and it has not said that SYSRET loads all of SS.
    ///
    /// **The CPU**, entering 64-bit ring 0 through the IDT, loads SS with a null selector. Intel's SYSRET then loads selector
    /// and attributes of SS; AMD's loads the selector only, so the attributes stay those of a null segment. 64-bit code
    /// never notices; 32-bit code takes #SS at its first push, under a selector that looks right.
    ///
    /// SYSCALL leaves SS good, but a context switch after an interrupt can bring a null one to a thread that sits in a system
    /// call, which this decision can't see: under the same rules, the exit loads SS before it executes SYSRET.
    ///
    /// # Source
    ///
    /// AMD APM vol. 3, *SYSRET*; Intel SDM vol. 3A, *Stack Switching in IA-32e Mode*.
    NullStackSegment,
}

impl fmt::Display for IretReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ParanoidEntry => "only IRET unblocks NMIs",
            Self::SingleStep => "TF is set",
            Self::ResumeFlag => "RF is set and a breakpoint may be armed",
            Self::LiveRegisters => "RCX or R11 is live",
            Self::NullStackSegment => "SS is null and 32-bit code exists",
        })
    }
}

/// Decides how to leave with `words`.
///
/// ```
/// use entry_core::address::{UserLimit, Width};
/// use entry_core::kernel::Leave;
/// use entry_core::segment::SegmentLayout;
/// use entry_core::EntryKind;
/// use entry_sysret::{decide, ExitWords, Refusal, RuleSet};
///
/// let rules = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
/// let good = ExitWords {
///     kind: Some(EntryKind::Syscall64),
///     is_modified: false,
///     are_rcx_r11_dead: false,
///     may_drop_rf: false,
///     rip: 0x40_1000,
///     cs: rules.code64(),
///     rflags: 0x202,
///     ss: rules.data(),
///     rcx: 0x40_1000,
///     r11: 0x202,
/// };
/// assert_eq!(decide(&good, &rules), Ok(Leave::Sysret));
///
/// let bad = ExitWords { rip: 0x8000_0000_0000, is_modified: true, ..good };
/// assert_eq!(decide(&bad, &rules), Err(Refusal::NonCanonicalRip { rip: 0x8000_0000_0000 }));
/// ```
///
/// # Errors
///
/// The first [`Refusal`] that applies.
#[inline(always)]
pub const fn decide(words: &ExitWords, rules: &RuleSet) -> Result<Leave, Refusal> {
    if let Some(refusal) = refuse(words, rules) {
        return Err(refusal);
    }
    if why_iret(words, rules).is_some() {
        return Ok(Leave::Iret);
    }
    if words.cs == rules.code64 {
        Ok(Leave::Sysret)
    } else {
        Ok(Leave::Sysret32)
    }
}

/// Whether a kind word is that of a SYSCALL from 64-bit code whose frame nobody has touched.
#[inline(always)]
#[must_use]
pub const fn is_untouched_syscall(kind_word: u64) -> bool {
    !guard!("fast-kind", kind_word != EntryKind::Syscall64.word(0))
}

/// Whether a kind word is that of a SYSENTER from 64-bit code whose frame nobody has touched.
///
/// Its stub's contract says of RCX and R11 what SYSCALL's says: they are destroyed.
#[inline(always)]
#[must_use]
pub const fn is_untouched_sysenter(kind_word: u64) -> bool {
    !guard!("fast-sysenter-kind", kind_word != EntryKind::Sysenter64.word(0))
}

/// Whether SYSRET restores a frame that [`is_untouched_syscall`] or [`is_untouched_sysenter`].
///
/// It says yes only where [`decide`] says [`Leave::Sysret`]. CS and SS are not examined: the stub wrote them, a setter would
/// have marked the frame, and SYSRET does not read them. IOPL and IF need no policy here: what a policy allows beyond
/// the default takes the long way.
#[inline(always)]
#[must_use]
pub const fn is_plain_sysret(rip: u64, rflags: u64, rules: &RuleSet) -> bool {
    if guard!("fast-rip", rip >= rules.limit.get()) {
        return false;
    }
    if guard!("fast-flags", rflags & (NEVER_PLAIN | NEVER_SYSRET | IF) != IF) {
        return false;
    }
    true
}

/// Whether a kind word is that of a SYSCALL from 32-bit code whose frame nobody has touched.
#[inline(always)]
#[must_use]
pub const fn is_untouched_syscall32(kind_word: u64) -> bool {
    !guard!("fast-syscall32-kind", kind_word != EntryKind::Syscall32.word(0))
}

/// Whether a kind word is that of a SYSENTER from 32-bit code whose frame nobody has touched.
#[inline(always)]
#[must_use]
pub const fn is_untouched_sysenter32(kind_word: u64) -> bool {
    !guard!("fast-sysenter32-kind", kind_word != EntryKind::Sysenter32.word(0))
}

/// Whether SYSRET restores a frame that [`is_untouched_syscall32`] or [`is_untouched_sysenter32`].
///
/// It says yes only where [`decide`] says [`Leave::Sysret32`]. CS and SS are not examined, as for [`is_plain_sysret`].
#[inline(always)]
#[must_use]
pub const fn is_plain_sysret32(rip: u64, rflags: u64, rules: &RuleSet) -> bool {
    if guard!("fast-compat-rules", !rules.allows_code32()) {
        return false;
    }
    if guard!("fast-compat-rip", rip > u32::MAX as u64) {
        return false;
    }
    if guard!("fast-compat-flags", rflags & (NEVER_PLAIN | NEVER_SYSRET | IF) != IF) {
        return false;
    }
    true
}

/// Whether RCX and R11 of an entry from user mode through the IDT are live, as the marks say: IRET is then right.
#[inline(always)]
#[must_use]
pub const fn has_live_registers(kind_word: u64) -> bool {
    !guard!("fast-live", kind_word & DEAD != 0)
}

/// Whether a kind word is that of an exception whose RCX and R11 are dead and whose RF holds nothing back: a page fault
/// of a program that asked for it.
#[inline(always)]
#[must_use]
pub const fn is_dead_exception(kind_word: u64) -> bool {
    !guard!(
        "fast-dead-kind",
        kind_word & (KIND | DEAD | MAY_DROP_RF) != EntryKind::Exception.word(0) | DEAD | MAY_DROP_RF
    )
}

/// Whether SYSRET is right for a frame that [`is_dead_exception`].
///
/// It says yes only where [`decide`] says [`Leave::Sysret`].
#[inline(always)]
#[must_use]
pub const fn is_plain_dead(cs: u64, ss: u64, rip: u64, rflags: u64, rules: &RuleSet) -> bool {
    if guard!("fast-dead-ss", rules.allows_code32() && !rules.sysret_loads_ss) {
        return false;
    }
    if guard!("fast-dead-step", rflags & Rflags::TRAP.bits() != 0) {
        return false;
    }
    is_plain_iret(cs, ss, rip, rflags, rules)
}

/// Whether a frame of 64-bit code is safe to leave with by IRET, judged by the words that IRETQ consumes.
///
/// It says yes only where [`decide`] does not refuse. For an exception or interrupt that [`has_live_registers`],
/// `decide` then says [`Leave::Iret`].
#[inline(always)]
#[must_use]
pub const fn is_plain_iret(cs: u64, ss: u64, rip: u64, rflags: u64, rules: &RuleSet) -> bool {
    if guard!("fast-iret-cs", cs != rules.code64) {
        return false;
    }
    if guard!("fast-iret-ss", ss != rules.data) {
        return false;
    }
    if guard!("fast-iret-rip", rip >= rules.limit.get()) {
        return false;
    }
    if guard!("fast-iret-flags", rflags & (NEVER_PLAIN | ALWAYS) != ALWAYS) {
        return false;
    }
    true
}

/// Whether CS is that of 32-bit code that the rules allow.
#[inline(always)]
#[must_use]
pub const fn is_code32(cs: u64, rules: &RuleSet) -> bool {
    !guard!("fast-iret32-cs", !rules.allows_code32() || cs != rules.code32)
}

/// As [`is_plain_iret`], for a frame of 32-bit code, which the rules have to allow.
#[inline(always)]
#[must_use]
pub const fn is_plain_iret32(cs: u64, ss: u64, rip: u64, rflags: u64, rules: &RuleSet) -> bool {
    if !is_code32(cs, rules) {
        return false;
    }
    if guard!("fast-iret32-ss", ss != rules.data) {
        return false;
    }
    if guard!("fast-iret32-rip", rip > u32::MAX as u64) {
        return false;
    }
    if guard!("fast-iret32-flags", rflags & (NEVER_PLAIN | ALWAYS) != ALWAYS) {
        return false;
    }
    true
}

/// Why neither way out is safe; `None` if IRET is.
#[inline(always)]
const fn refuse(words: &ExitWords, rules: &RuleSet) -> Option<Refusal> {
    if guard!("unknown-entry-kind", words.kind.is_none()) {
        return Some(Refusal::UnknownEntryKind);
    }
    if let Some(refusal) = refuse_target(words.cs, words.ss, words.rip, rules) {
        return Some(refusal);
    }
    refuse_flags(words.rflags, rules)
}

/// The part about CS, SS and RIP, which the builders ask too.
#[inline(always)]
pub(crate) const fn refuse_target(cs: u64, ss: u64, rip: u64, rules: &RuleSet) -> Option<Refusal> {
    if let Some(refusal) = refuse_code_segment(cs, rules) {
        return Some(refusal);
    }
    if let Some(refusal) = refuse_stack_segment(ss, rules) {
        return Some(refusal);
    }
    refuse_rip(rip, cs, rules)
}

#[inline(always)]
const fn refuse_code_segment(cs: u64, rules: &RuleSet) -> Option<Refusal> {
    if cs == rules.code64 || (rules.allows_code32() && cs == rules.code32) {
        return None;
    }
    if guard!("kernel-code-segment", cs & 3 != 3) {
        return Some(Refusal::KernelCodeSegment { cs });
    }
    if guard!("local-code-segment", cs & 4 != 0) {
        return Some(Refusal::LocalCodeSegment { cs });
    }
    if guard!("unlisted-code-segment", true) {
        return Some(Refusal::UnlistedCodeSegment { cs });
    }
    None
}

#[inline(always)]
const fn refuse_stack_segment(ss: u64, rules: &RuleSet) -> Option<Refusal> {
    if ss == rules.data {
        return None;
    }
    if guard!("null-stack-segment", ss & 0xfffc == 0) {
        return Some(Refusal::NullStackSegment { ss });
    }
    if guard!("kernel-stack-segment", ss & 3 != 3) {
        return Some(Refusal::KernelStackSegment { ss });
    }
    if guard!("local-stack-segment", ss & 4 != 0) {
        return Some(Refusal::LocalStackSegment { ss });
    }
    if guard!("unlisted-stack-segment", true) {
        return Some(Refusal::UnlistedStackSegment { ss });
    }
    None
}

#[inline(always)]
const fn refuse_rip(rip: u64, cs: u64, rules: &RuleSet) -> Option<Refusal> {
    if rules.allows_code32() && cs == rules.code32 {
        if guard!("rip-above-code32", rip > u32::MAX as u64) {
            return Some(Refusal::RipAboveCode32 { rip });
        }
        return None;
    }
    if rules.limit.contains(rip) {
        return None;
    }
    if guard!("non-canonical-rip", !rules.width.is_canonical(rip)) {
        return Some(Refusal::NonCanonicalRip { rip });
    }
    if guard!("kernel-rip", rip >> 63 != 0) {
        return Some(Refusal::KernelRip { rip });
    }
    if guard!("rip-above-user-limit", true) {
        return Some(Refusal::RipAboveUserLimit { rip });
    }
    None
}

#[inline(always)]
const fn refuse_flags(rflags: u64, rules: &RuleSet) -> Option<Refusal> {
    if guard!("virtual-8086", rflags & Rflags::VIRTUAL_8086.bits() != 0) {
        return Some(Refusal::Virtual8086 { rflags });
    }
    if guard!("virtual-interrupts", rflags & VIRTUAL_INTERRUPTS != 0) {
        return Some(Refusal::VirtualInterrupts { rflags });
    }
    if guard!("reserved-flags", rflags & RESERVED != 0) {
        return Some(Refusal::ReservedFlags { rflags });
    }
    let iopl = rflags & Rflags::IO_PRIVILEGE_LEVEL.bits();
    if guard!("io-privilege", iopl != 0 && !rules.allows_io_privilege) {
        return Some(Refusal::IoPrivilege { rflags });
    }
    if guard!(
        "interrupts-off",
        rflags & IF == 0 && iopl != Rflags::IO_PRIVILEGE_LEVEL.bits()
    ) {
        return Some(Refusal::InterruptsOff { rflags });
    }
    None
}

/// Why SYSRET would not restore a frame that may leave; `None` if it would. For diagnosis: the frame is not tested for
/// what [`decide`] refuses.
///
/// ```
/// use entry_core::address::{UserLimit, Width};
/// use entry_core::segment::SegmentLayout;
/// use entry_core::TrapFrame;
/// use entry_sysret::{why_iret, ExitWords, IretReason, RuleSet};
///
/// let rules = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
/// let mut frame = TrapFrame::zeroed();
/// frame.set_rip(0x40_1000);
/// assert_eq!(why_iret(&ExitWords::of(&frame), &rules), Some(IretReason::LiveRegisters));
/// ```
#[inline(always)]
#[must_use]
pub const fn why_iret(words: &ExitWords, rules: &RuleSet) -> Option<IretReason> {
    if guard!("paranoid-entry", matches!(words.kind, Some(EntryKind::Paranoid) | None)) {
        return Some(IretReason::ParanoidEntry);
    }
    if guard!("single-step", words.has(Rflags::TRAP.bits())) {
        return Some(IretReason::SingleStep);
    }
    if guard!("resume-flag", words.has(Rflags::RESUME.bits()) && !words.may_drop_rf) {
        return Some(IretReason::ResumeFlag);
    }
    if guard!("live-registers", !words.may_lose_registers()) {
        return Some(IretReason::LiveRegisters);
    }
    if guard!(
        "null-stack-segment-sysret",
        words.came_through_idt() && rules.allows_code32() && !rules.sysret_loads_ss
    ) {
        return Some(IretReason::NullStackSegment);
    }
    None
}

impl ExitWords {
    #[inline(always)]
    const fn came_through_idt(&self) -> bool {
        matches!(
            self.kind,
            Some(
                EntryKind::Int80
                    | EntryKind::Exception
                    | EntryKind::Interrupt
                    | EntryKind::Paranoid
                    | EntryKind::IretFault
            )
        )
    }

    /// Whether the instruction, or the convention of its callers, destroys RCX and R11.
    #[inline(always)]
    const fn came_by_call(&self) -> bool {
        matches!(
            self.kind,
            Some(EntryKind::Syscall64 | EntryKind::Syscall32 | EntryKind::Sysenter64 | EntryKind::Sysenter32)
        )
    }

    /// Whether the program may find RIP in RCX and RFLAGS in R11.
    #[inline(always)]
    const fn may_lose_registers(&self) -> bool {
        if self.are_rcx_r11_dead {
            return true;
        }
        if self.came_through_idt() {
            return false;
        }
        if !self.is_modified && self.came_by_call() {
            return true;
        }
        if guard!("rcx-is-rip", self.rcx != self.rip) {
            return false;
        }
        if guard!("r11-is-rflags", self.r11 != self.rflags) {
            return false;
        }
        true
    }
}
