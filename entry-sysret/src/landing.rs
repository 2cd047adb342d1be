//! The landing page: return from faults and interrupts by SYSRET with every register intact.
//!
//! SYSRET destroys RCX and R11, which are live in a program that was interrupted. A page that the kernel maps into the
//! program gives them back: the kernel puts RCX, R11 and RIP on the program's stack, below its red zone, and returns by
//! SYSRET to three instructions of that page.
//!
//! | offset | instruction | RSP after |
//! |---|---|---|
//! | 0 | `pop rcx` | RSP of the program − 144 |
//! | 1 | `pop r11` | − 136 |
//! | 3 | `ret 128` | the program's |
//!
//! None of them changes a flag. SYSRET gives the program its RFLAGS, so all 16 registers and the flags are what they were.
//! What has changed is 24 bytes of stack that no code may rely on.
//!
//! [`LandingPage::land`] rewrites the frame so that the program *is* at the first of them, with RCX and R11 dead: whatever
//! else the kernel then does with the frame (a signal, a switch, an exit by IRET) is right. The exit leaves by SYSRET since
//! RCX and R11 are dead. Where the landing page would not do, `land` says why and leaves the frame alone, and the exit
//! leaves by IRET. An event inside the landing page is such a case, so landings never nest.
//!
//! # Layout
//!
//! | offset | content |
//! |---|---|
//! | 0 | code, then INT3 up to the next row |
//! | [`LandingPage::EH_FRAME`] | `.eh_frame`: one CIE, one FDE, the terminator |
//!
//! Every address in it is relative, so the bytes work at any address.
//!
//! # Limits
//!
//! RET returns to an address that no CALL has put there: the CPU's return-stack buffer mispredicts, and a shadow stack would
//! refuse, so threads with a shadow stack leave by IRET. A debugger that steps finds TF set, and leaves by IRET too.
//!
//! # Source
//!
//! System V ABI, AMD64 supplement, *The Stack Frame* (red zone), *DWARF Register Number Mapping*; Linux Standard Base,
//! *Exception Frames*; Intel SDM vol. 1, *Shadow Stacks*.

use core::fmt;

use entry_core::rflags::Rflags;
use entry_core::{EntryKind, TrapFrame};
use static_assertions::const_assert;

use crate::decide::{ExitWords, guard, is_plain_iret};
use crate::rules::RuleSet;

/// Bytes below RSP that belong to the program.
const RED_ZONE: u64 = 128;
/// Bytes that are written below them.
const WORDS: u64 = 24;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// What the kernel knows of the stack of the program that runs.
pub trait UserStack {
    /// Whether shadow stacks are enabled for the program's user mode (`IA32_U_CET.SH_STK_EN`).
    fn has_shadow_stack(&self) -> bool;

    /// Stores three words at `address`, which may be misaligned and may cross a page, if the program could read and write all
    /// of them now without a fault. Returns whether it could; if not, nothing or a part may be stored.
    ///
    /// `address` and what follows are below the user limit. The implementation must not answer a page fault meanwhile: it
    /// walks the page tables, or stores under the kernel's exception table with faults left unanswered.
    fn store(&mut self, address: u64, words: [u64; 3]) -> bool;
}

/// Why a frame can't go through the landing page: it leaves as it would without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoLanding {
    /// The frame is not that of an exception or a maskable interrupt: a system call has no live RCX and R11, and only IRET
    /// unblocks NMIs.
    EntryKind,
    /// CS, SS, RIP or RFLAGS is not that of plain 64-bit code with interrupts on: the exit decision has to look at it.
    NotPlain,
    /// RFLAGS.TF is 1: a debugger's step would stop in the landing page.
    SingleStep,
    /// RFLAGS.RF is 1, and nobody declared that it may be dropped: the landing page's first instruction would consume it.
    ResumeFlag,
    /// The program has a shadow stack, on which RET would find no such return.
    ShadowStack,
    /// RIP is in the landing page.
    InLandingPage {
        /// RIP.
        rip: u64,
    },
    /// RSP is too low or too high for there to be a stack in user space.
    StackRange {
        /// RSP.
        rsp: u64,
    },
    /// RFLAGS.AC is 1 and RSP is misaligned: POP could raise #AC, of which the program would know nothing.
    AlignmentCheck {
        /// RSP.
        rsp: u64,
    },
    /// The stack below the red zone can't be written without a fault.
    StackNotWritable {
        /// Where the words would have been.
        address: u64,
    },
}

impl fmt::Display for NoLanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntryKind => f.write_str("the frame is not that of an exception or interrupt"),
            Self::NotPlain => f.write_str("CS, SS, RIP or RFLAGS is unusual"),
            Self::SingleStep => f.write_str("TF is set"),
            Self::ResumeFlag => f.write_str("RF is set and a breakpoint may be armed"),
            Self::ShadowStack => f.write_str("the program has a shadow stack"),
            Self::InLandingPage { rip } => write!(f, "RIP {rip:#x} is in the landing page"),
            Self::StackRange { rsp } => write!(f, "RSP {rsp:#x} has no user stack below it"),
            Self::AlignmentCheck { rsp } => write!(f, "RSP {rsp:#x} is misaligned and AC is set"),
            Self::StackNotWritable { address } => write!(f, "the stack at {address:#x} can't be written"),
        }
    }
}

impl core::error::Error for NoLanding {}

/// An address that can't be a landing page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadLandingAddress {
    /// It is not a multiple of 4096.
    Misaligned {
        /// The address.
        address: u64,
    },
    /// The page is not below the end of user space.
    AboveUserLimit {
        /// The address.
        address: u64,
    },
}

impl fmt::Display for BadLandingAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { address } => write!(f, "address {address:#x} of the landing page is not page-aligned"),
            Self::AboveUserLimit { address } => {
                write!(f, "address {address:#x} of the landing page is not in user space")
            }
        }
    }
}

impl core::error::Error for BadLandingAddress {}

/// A landing page in a program's address space.
///
/// ```
/// use entry_core::address::{UserLimit, Width};
/// use entry_core::segment::SegmentLayout;
/// use entry_sysret::RuleSet;
/// use entry_sysret::landing::{BadLandingAddress, LandingPage};
/// let rules = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
/// let page = LandingPage::new(0x7fff_f000_0000, &rules)?;
/// assert_eq!(page.address(), 0x7fff_f000_0000);
/// assert!(LandingPage::new(0x7fff_f000_0001, &rules).is_err());
/// # Ok::<(), BadLandingAddress>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandingPage {
    address: u64,
}

impl LandingPage {
    /// Bytes of code.
    pub const CODE_BYTES: usize = CODE_BYTES as usize;
    /// Offset of the unwind information.
    pub const EH_FRAME: usize = EH_FRAME as usize;
    /// Code, INT3 up to [`LandingPage::EH_FRAME`], and unwind information: what a kernel copies to the start of the page,
    /// which it maps readable and executable, and not writable.
    pub const BYTES: &'static [u8] = &PAGE_BYTES;
    /// How far below the program's RSP the lowest byte lies that is written.
    pub const STACK_BYTES: u64 = RED_ZONE + WORDS;

    /// The landing page at `address`, for programs under `rules`.
    ///
    /// # Errors
    ///
    /// [`BadLandingAddress`].
    pub const fn new(address: u64, rules: &RuleSet) -> Result<Self, BadLandingAddress> {
        if guard!("landing-page-aligned", !address.is_multiple_of(PAGE)) {
            return Err(BadLandingAddress::Misaligned { address });
        }
        if guard!(
            "landing-page-limit",
            rules.limit.get() < PAGE || address > rules.limit.get() - PAGE
        ) {
            return Err(BadLandingAddress::AboveUserLimit { address });
        }
        Ok(Self { address })
    }

    /// Its address.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Where the three words go for a frame with `words` and `rsp`.
    ///
    /// # Errors
    ///
    /// [`NoLanding`], but for the reasons that only [`UserStack`] can know.
    #[inline(always)]
    pub const fn place(self, words: &ExitWords, rsp: u64, rules: &RuleSet) -> Result<u64, NoLanding> {
        if guard!(
            "landing-kind",
            !matches!(words.kind, Some(EntryKind::Exception | EntryKind::Interrupt))
        ) {
            return Err(NoLanding::EntryKind);
        }
        if guard!(
            "landing-plain",
            !is_plain_iret(words.cs, words.ss, words.rip, words.rflags, rules)
        ) {
            return Err(NoLanding::NotPlain);
        }
        if guard!("landing-single-step", words.rflags & Rflags::TRAP.bits() != 0) {
            return Err(NoLanding::SingleStep);
        }
        if guard!(
            "landing-resume-flag",
            words.rflags & Rflags::RESUME.bits() != 0 && !words.may_drop_rf
        ) {
            return Err(NoLanding::ResumeFlag);
        }
        if guard!("landing-recursion", words.rip.wrapping_sub(self.address) < PAGE) {
            return Err(NoLanding::InLandingPage { rip: words.rip });
        }
        if guard!(
            "landing-stack-range",
            rsp < Self::STACK_BYTES || rsp - RED_ZONE > rules.limit.get()
        ) {
            return Err(NoLanding::StackRange { rsp });
        }
        if guard!(
            "landing-alignment",
            words.rflags & Rflags::ALIGNMENT_CHECK.bits() != 0 && !rsp.is_multiple_of(8)
        ) {
            return Err(NoLanding::AlignmentCheck { rsp });
        }
        Ok(rsp.wrapping_sub(Self::STACK_BYTES))
    }

    /// Makes `frame` resume in the landing page, from where the program goes on as it was. The exit then leaves by SYSRET.
    ///
    /// # Errors
    ///
    /// [`NoLanding`]; `frame` is unchanged then, and the exit leaves by IRET.
    #[inline(always)]
    pub fn land(self, frame: &mut TrapFrame, rules: &RuleSet, stack: &mut impl UserStack) -> Result<(), NoLanding> {
        let address = self.place(&ExitWords::of(frame), frame.rsp(), rules)?;
        if guard!("landing-shadow-stack", stack.has_shadow_stack()) {
            return Err(NoLanding::ShadowStack);
        }
        let is_stored = stack.store(address, [frame.rcx(), frame.r11(), frame.rip()]);
        if guard!("landing-stack-not-writable", !is_stored) {
            return Err(NoLanding::StackNotWritable { address });
        }
        frame.set_rip(self.address);
        frame.set_rsp(address);
        frame.declare_rcx_r11_dead();
        // RF was clear, or may be dropped.
        frame.declare_no_instruction_breakpoint();
        Ok(())
    }
}

/// `pop rcx` · `pop r11` · `ret 128`.
const CODE: [u8; CODE_BYTES as usize] = [0x59, 0x41, 0x5b, 0xc2, 128, 0];
const_assert!(CODE[4] as u64 == RED_ZONE);

const CODE_BYTES: u8 = 6;
const EH_FRAME: u8 = 16;
const CIE_BYTES: u8 = 24;
const FDE_BYTES: u8 = 40;
/// [`LandingPage::STACK_BYTES`].
const STACK_BYTES: u8 = 152;
const_assert!(LandingPage::STACK_BYTES == STACK_BYTES as u64);
const INT3: u8 = 0xcc;

/// `DW_CFA_def_cfa_offset` with a number of two LEB128 bytes, from 128 to 255.
const fn define_offset(offset: u8) -> [u8; 3] {
    [0x0e, offset | 0x80, 1]
}

/// `DW_CFA_offset`: the register was saved `8 * words` bytes below the CFA.
const fn saved(register: u8, words: u8) -> [u8; 2] {
    [0x80 | register, words]
}

/// `DW_CFA_restore` would go back to the CIE's rule, and there the registers are saved: `DW_CFA_same_value`.
const fn unchanged(register: u8) -> [u8; 2] {
    [0x08, register]
}

/// `DW_CFA_advance_loc`.
const fn advance(bytes: u8) -> u8 {
    0x40 | bytes
}

/// DWARF numbers of registers.
mod dwarf {
    pub(super) const RCX: u8 = 2;
    pub(super) const RSP: u8 = 7;
    pub(super) const R11: u8 = 11;
    pub(super) const RETURN_ADDRESS: u8 = 16;
}

/// Parts one after the other, and `rest` up to `N`. Too many bytes stop the build.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler alone")]
const fn join<const N: usize>(parts: &[&[u8]], rest: u8) -> [u8; N] {
    let mut bytes = [rest; N];
    let (mut to, mut part) = (0, 0);
    while part < parts.len() {
        let mut from = 0;
        while from < parts[part].len() {
            bytes[to] = parts[part][from];
            (from, to) = (from + 1, to + 1);
        }
        part += 1;
    }
    bytes
}

/// A common information entry for frames of signals: RIP is that of an instruction to be executed, not behind a call. The
/// CFA is the program's RSP.
const CIE: [u8; CIE_BYTES as usize] = join(
    &[
        &[CIE_BYTES - 4, 0, 0, 0],         // length
        &[0; 4],                           // this is a CIE
        &[1],                              // version
        b"zRS\0",                          // augmentation: a length, how pointers are encoded, a signal's frame
        &[1, 0x78, dwarf::RETURN_ADDRESS], // code alignment 1, data alignment -8
        &[1, 0x1b],                        // DW_EH_PE_pcrel | DW_EH_PE_sdata4
    ],
    0,
);

/// A frame description entry for the code at the page's start.
const FDE: [u8; FDE_BYTES as usize] = {
    // From the FDE's address field to the page's start.
    let back = (EH_FRAME + CIE_BYTES + 8) as u32;
    join(
        &[
            &[FDE_BYTES - 4, 0, 0, 0], // length
            &[CIE_BYTES + 4, 0, 0, 0], // back to the CIE
            &0u32.wrapping_sub(back).to_le_bytes(),
            &[CODE_BYTES, 0, 0, 0],
            &[0],                                // no augmentation data
            &[0x0c, dwarf::RSP, STACK_BYTES, 1], // DW_CFA_def_cfa
            &saved(dwarf::RETURN_ADDRESS, 17),
            &saved(dwarf::R11, 18),
            &saved(dwarf::RCX, 19),
            &[advance(1)],
            &define_offset(144),
            &unchanged(dwarf::RCX),
            &[advance(2)],
            &define_offset(136),
            &unchanged(dwarf::R11),
        ],
        0,
    )
};
// As a LEB128 number it is itself and 1.
const_assert!(STACK_BYTES >= 128);

/// Code and unwind information; a length of 0 ends the latter.
const PAGE_BYTES: [u8; EH_FRAME as usize + CIE_BYTES as usize + FDE_BYTES as usize + 4] = {
    let code: [u8; LandingPage::EH_FRAME] = join(&[&CODE], INT3);
    join(&[&code, &CIE, &FDE, &[0; 4]], 0)
};
