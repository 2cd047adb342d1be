//! The landing page: which frames may use it, what its code is, and unwind information that agrees with the code.

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::Leave;
use entry_core::segment::SegmentLayout;
use entry_core::{EntryKind, TrapFrame};
use entry_sysret::landing::{BadLandingAddress, LandingPage, NoLanding, UserStack};
use entry_sysret::{ExitWords, RuleSet, decide};
use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext, UnwindSection};
use iced_x86::{Decoder, DecoderOptions, Instruction, Register as Name};

const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);

const PAGE: u64 = 0x7fff_0000_0000;
const RSP: u64 = 0x7ffe_0000_1000;

/// A page fault of a program, on a CPU that sets RF, in a kernel that arms no breakpoints.
const GOOD: ExitWords = ExitWords {
    kind: Some(EntryKind::Exception),
    is_modified: false,
    are_rcx_r11_dead: false,
    may_drop_rf: true,
    rip: 0x40_1000,
    cs: 0x2b,
    rflags: 0x1_0246,
    ss: 0x23,
    rcx: 0x1111,
    r11: 0x2222,
};

fn page() -> LandingPage {
    LandingPage::new(PAGE, &RULES).unwrap()
}

fn place(words: ExitWords, rsp: u64) -> Result<u64, NoLanding> {
    page().place(&words, rsp, &RULES)
}

/// A stack that can be written or not, and what was.
struct Stack {
    has_shadow_stack: bool,
    is_writable: bool,
    stored: Option<(u64, [u64; 3])>,
}

const STACK: Stack = Stack {
    has_shadow_stack: false,
    is_writable: true,
    stored: None,
};

impl UserStack for Stack {
    fn has_shadow_stack(&self) -> bool {
        self.has_shadow_stack
    }

    fn store(&mut self, address: u64, words: [u64; 3]) -> bool {
        self.stored = Some((address, words));
        self.is_writable
    }
}

/// A frame as the kernel builds one, which is no exception's.
const fn built() -> TrapFrame {
    let mut frame = TrapFrame::zeroed();
    frame.set_rip(GOOD.rip);
    frame.set_cs(GOOD.cs);
    frame.set_rflags(GOOD.rflags);
    frame.set_rsp(RSP);
    frame.set_ss(GOOD.ss);
    frame
}

/// A frame as the stub of a vector makes it.
const fn exception() -> TrapFrame {
    let mut frame = built();
    frame.set_rcx(GOOD.rcx);
    frame.set_r11(GOOD.r11);
    let at = (&raw mut frame).cast::<u64>().wrapping_add(TrapFrame::KIND / 8);
    // SAFETY: the kind word is one of the frame's 22 words, and any number is one.
    unsafe { at.write(EntryKind::Exception.word(14)) };
    frame.declare_no_instruction_breakpoint();
    frame
}

#[test]
fn a_page_fault_lands_below_the_red_zone() {
    assert_eq!(place(GOOD, RSP), Ok(RSP - 128 - 24));
    let kind = Some(EntryKind::Interrupt);
    assert_eq!(place(ExitWords { kind, ..GOOD }, RSP), Ok(RSP - 152));
}

#[test]
fn a_landed_frame_leaves_by_sysret() {
    let mut frame = exception();
    let mut stack = STACK;
    assert_eq!(decide(&ExitWords::of(&frame), &RULES), Ok(Leave::Iret));
    assert_eq!(page().land(&mut frame, &RULES, &mut stack), Ok(()));
    assert_eq!(stack.stored, Some((RSP - 152, [0x1111, 0x2222, 0x40_1000])));
    assert_eq!((frame.rip(), frame.rsp()), (PAGE, RSP - 152));
    assert_eq!(frame.rflags(), GOOD.rflags);
    assert_eq!(decide(&ExitWords::of(&frame), &RULES), Ok(Leave::Sysret));
}

#[test]
fn a_frame_that_does_not_land_is_unchanged() {
    for (mut frame, why) in [
        (built(), NoLanding::EntryKind),
        (exception(), NoLanding::StackNotWritable { address: RSP - 152 }),
    ] {
        let before = frame.clone();
        let mut stack = Stack {
            is_writable: false,
            ..STACK
        };
        assert_eq!(page().land(&mut frame, &RULES, &mut stack), Err(why));
        assert_eq!(frame, before);
    }
}

#[test]
fn a_stack_that_is_not_writable_does_not_land() {
    let mut stack = Stack {
        is_writable: false,
        ..STACK
    };
    let address = RSP - 152;
    assert_eq!(
        page().land(&mut exception(), &RULES, &mut stack),
        Err(NoLanding::StackNotWritable { address })
    );
}

#[test]
fn a_shadow_stack_does_not_land() {
    let mut stack = Stack {
        has_shadow_stack: true,
        ..STACK
    };
    assert_eq!(
        page().land(&mut exception(), &RULES, &mut stack),
        Err(NoLanding::ShadowStack)
    );
    assert_eq!(stack.stored, None);
}

#[test]
fn only_exceptions_and_interrupts_land() {
    for kind in [
        None,
        Some(EntryKind::Syscall64),
        Some(EntryKind::Int80),
        Some(EntryKind::Paranoid),
        Some(EntryKind::Built),
        Some(EntryKind::IretFault),
    ] {
        assert_eq!(place(ExitWords { kind, ..GOOD }, RSP), Err(NoLanding::EntryKind));
    }
}

#[test]
fn frames_that_are_not_plain_do_not_land() {
    for words in [
        ExitWords { cs: 0x1b, ..GOOD },
        ExitWords { cs: 0x28, ..GOOD },
        ExitWords { ss: 0, ..GOOD },
        ExitWords {
            rip: 0x8000_0000_0000,
            ..GOOD
        },
        // IF clear, IOPL 1, VM, VIF.
        ExitWords { rflags: 2, ..GOOD },
        ExitWords { rflags: 0x1202, ..GOOD },
        ExitWords {
            rflags: 0x2_0202,
            ..GOOD
        },
        ExitWords {
            rflags: 0x8_0202,
            ..GOOD
        },
    ] {
        assert_eq!(place(words, RSP), Err(NoLanding::NotPlain));
    }
}

#[test]
fn single_step_does_not_land() {
    let rflags = 0x302;
    assert_eq!(place(ExitWords { rflags, ..GOOD }, RSP), Err(NoLanding::SingleStep));
}

#[test]
fn a_resume_flag_that_may_matter_does_not_land() {
    let words = ExitWords {
        may_drop_rf: false,
        ..GOOD
    };
    assert_eq!(place(words, RSP), Err(NoLanding::ResumeFlag));
    let clear = ExitWords { rflags: 0x202, ..words };
    assert_eq!(place(clear, RSP), Ok(RSP - 152));
}

#[test]
fn landings_do_not_nest() {
    for offset in [0, 1, 3, 5, 0xfff] {
        let rip = PAGE + offset;
        assert_eq!(
            place(ExitWords { rip, ..GOOD }, RSP),
            Err(NoLanding::InLandingPage { rip })
        );
    }
    for rip in [PAGE - 1, PAGE + 0x1000] {
        assert_eq!(place(ExitWords { rip, ..GOOD }, RSP), Ok(RSP - 152));
    }
}

#[test]
fn the_words_lie_in_user_space() {
    // UserLimit::HIGHEST_48 is 0x7fff_ffff_f000, and the words end 128 bytes below RSP.
    for rsp in [
        0,
        151,
        0x7fff_ffff_f081,
        0x8000_0000_0000,
        0xffff_8000_0000_0000,
        u64::MAX,
    ] {
        assert_eq!(place(GOOD, rsp), Err(NoLanding::StackRange { rsp }));
    }
    for rsp in [152, 0x7fff_ffff_f000, 0x7fff_ffff_f080] {
        assert_eq!(place(GOOD, rsp), Ok(rsp - 152));
    }
}

#[test]
fn a_misaligned_stack_does_not_land_with_alignment_checks() {
    let rflags = 0x4_0202;
    for rsp in [RSP + 1, RSP + 4, RSP + 7] {
        let words = ExitWords { rflags, ..GOOD };
        assert_eq!(place(words, rsp), Err(NoLanding::AlignmentCheck { rsp }));
        assert_eq!(place(GOOD, rsp), Ok(rsp - 152));
    }
    assert_eq!(place(ExitWords { rflags, ..GOOD }, RSP + 8), Ok(RSP + 8 - 152));
}

#[test]
fn a_landing_page_is_a_page() {
    for address in [1, 0x800, PAGE + 0xfff] {
        assert_eq!(
            LandingPage::new(address, &RULES),
            Err(BadLandingAddress::Misaligned { address })
        );
    }
}

#[test]
fn a_landing_page_is_in_user_space() {
    for address in [0x7fff_ffff_f000, 0x8000_0000_0000, 0xffff_8000_0000_0000] {
        assert_eq!(
            LandingPage::new(address, &RULES),
            Err(BadLandingAddress::AboveUserLimit { address })
        );
    }
    assert!(LandingPage::new(0x7fff_ffff_e000, &RULES).is_ok());
}

fn code() -> Vec<Instruction> {
    Decoder::with_ip(
        64,
        &LandingPage::BYTES[..LandingPage::CODE_BYTES],
        PAGE,
        DecoderOptions::NONE,
    )
    .into_iter()
    .collect()
}

#[test]
fn code_is_what_the_documentation_says() {
    let listing: Vec<_> = code().iter().map(ToString::to_string).collect();
    assert_eq!(listing, ["pop rcx", "pop r11", "ret 80h"]);
    let flags = code().iter().fold(0, |all, i| all | i.rflags_modified());
    assert_eq!(flags, 0);
}

#[test]
fn code_is_followed_by_int3_up_to_the_unwind_information() {
    let rest = &LandingPage::BYTES[LandingPage::CODE_BYTES..LandingPage::EH_FRAME];
    assert!(!rest.is_empty() && rest.iter().all(|byte| *byte == 0xcc));
}

#[test]
fn unwind_information_agrees_with_the_code_at_every_instruction() {
    let mut section = EhFrame::new(&LandingPage::BYTES[LandingPage::EH_FRAME..], LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default()
        .set_text(PAGE)
        .set_eh_frame(PAGE + LandingPage::EH_FRAME as u64);
    let mut context = UnwindContext::new();
    // Offsets from the program's RSP, which is the CFA.
    let mut rsp = -152;
    let mut popped = Vec::new();
    for instruction in code() {
        let fde = section
            .fde_for_address(&bases, instruction.ip(), EhFrame::cie_from_offset)
            .unwrap();
        assert!(fde.cie().is_signal_trampoline());
        let row = fde
            .unwind_info_for_address(&section, &bases, &mut context, instruction.ip())
            .unwrap();
        let cfa = CfaRule::RegisterAndOffset {
            register: Register(7),
            offset: -rsp,
        };
        assert_eq!(*row.cfa(), cfa, "{instruction}");
        assert_eq!(row.register(Register(16)), RegisterRule::Offset(-136), "{instruction}");
        for (register, name, at) in [(Register(2), Name::RCX, -152), (Register(11), Name::R11, -144)] {
            let rule = if popped.contains(&name) {
                RegisterRule::SameValue
            } else {
                RegisterRule::Offset(at)
            };
            assert_eq!(row.register(register), rule, "{instruction}");
        }
        popped.push(instruction.op0_register());
        rsp += i64::from(instruction.stack_pointer_increment());
        if instruction.mnemonic() == iced_x86::Mnemonic::Ret {
            assert_eq!(rsp, 0);
        }
    }
    assert_eq!(rsp, 0);
    let mut entries = section.entries(&bases);
    let mut count = 0;
    while entries.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 2);
}
