//! The exit stub, disassembled: what each option adds, where, and that nothing is left of it when it is off.

#[path = "../../entry-core/tests/listing/walk.rs"]
mod walk;

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::{Baseline, Options};
use entry_core::windows::{self, flags};
use entry_core::{Exit, PerCpuHeader, SegmentLayout, TrapFrame};
use entry_sysret::{IretOnly, RuleSet, Rules, SysretOrIret};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use walk::{Path, check_everywhere, count, first, instructions, loads_cr3, paths, texts, uses_header, zeroes};

#[derive(Debug)]
struct TestRules;

impl Rules for TestRules {
    const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);
}

/// 32-bit code exists, on CPUs of any vendor.
#[derive(Debug)]
struct With32;

impl Rules for With32 {
    const RULES: RuleSet = TestRules::RULES.with_code32();
}

/// 32-bit code exists, on Intel's CPUs.
#[derive(Debug)]
struct With32OnIntel;

impl Rules for With32OnIntel {
    const RULES: RuleSet = With32::RULES.with_sysret_loading_ss();
}

macro_rules! options {
    ($name:ident: $($option:ident),*) => {
        #[derive(Debug)]
        struct $name;

        impl Options for $name {
            $(const $option: bool = true;)*
        }
    };
}

options!(WithKpti: KPTI);
options!(WithVerw: VERW);
options!(WithIbrs: IBRS);
options!(Everything: SMAP, FSGSBASE, CLEAR, KPTI, PCID, VERW, IBRS);

fn exit<E: Exit, O: Options>() -> Vec<Path> {
    #[expect(clippy::fn_to_numeric_cast_any, reason = "the bytes are read from there")]
    let address = <E as Exit>::leave::<O> as *const () as u64;
    paths(address, &[])
}

fn leave<O: Options>() -> Vec<Path> {
    exit::<SysretOrIret<TestRules>, O>()
}

/// The path that ends with `mnemonic`.
fn by<O: Options>(mnemonic: Mnemonic) -> Path {
    let mut found: Vec<Path> = leave::<O>()
        .into_iter()
        .filter(|path| path.last().unwrap().mnemonic() == mnemonic)
        .collect();
    assert_eq!(found.len(), 1, "{mnemonic:?}");
    found.remove(0)
}

const WAYS: [Mnemonic; 3] = [Mnemonic::Sysretq, Mnemonic::Iretq, Mnemonic::Sysret];

#[test]
fn three_ways_each_followed_by_int3_and_nothing_is_below_rsp() {
    fn check<O: Options>() {
        let all = leave::<O>();
        assert_eq!(all.len(), WAYS.len());
        check_everywhere(&all);
    }
    check::<Baseline>();
    check::<WithKpti>();
    check::<WithVerw>();
    check::<WithIbrs>();
    check::<Everything>();
}

#[test]
fn both_exits_are_the_same_stub() {
    let iret_only = exit::<IretOnly<TestRules>, Everything>();
    let text = |paths: &[Path]| paths.iter().map(texts).collect::<Vec<_>>();
    assert_eq!(text(&iret_only), text(&leave::<Everything>()));
}

#[test]
fn nothing_is_left_of_options_that_are_off() {
    // Test, two branches; 13 pops, RCX, R11, RSP, SWAPGS, SYSRET.
    assert_eq!(by::<Baseline>(Mnemonic::Sysretq).len(), 21);
    // Test, branch; 15 pops, ADD, SWAPGS, IRETQ.
    assert_eq!(by::<Baseline>(Mnemonic::Iretq).len(), 20);
    assert_eq!(by::<Baseline>(Mnemonic::Sysret).len(), 21);
    for instruction in instructions(&leave::<Baseline>()) {
        assert!(!loads_cr3(&instruction));
        assert!(!matches!(instruction.mnemonic(), Mnemonic::Wrmsr | Mnemonic::Verw));
        assert_ne!(instruction.segment_prefix(), Register::GS);
    }
}

#[test]
fn ss_is_loaded_before_sysret_where_32_bit_code_exists_and_sysret_does_not_load_it() {
    let loads_ss = |path: &Path| {
        let load = first(path, |i| {
            i.mnemonic() == Mnemonic::Mov && i.op0_register() == Register::SS
        })?;
        assert!(path[load].is_ip_rel_memory_operand());
        // SAFETY: the operand is in the stub, which is mapped readable.
        Some(unsafe { (path[load].ip_rel_memory_address() as *const u16).read_unaligned() })
    };
    let way = |path: &Path| path.last().unwrap().mnemonic();
    fn all<R: Rules>() -> Vec<Path> {
        [
            exit::<SysretOrIret<R>, Baseline>(),
            exit::<IretOnly<R>, Baseline>(),
            exit::<SysretOrIret<R>, Everything>(),
        ]
        .concat()
    }
    for path in all::<With32>() {
        let is_sysret = way(&path) != Mnemonic::Iretq;
        assert_eq!(loads_ss(&path), is_sysret.then_some(0x10), "{:?}", texts(&path));
    }
    for path in [all::<TestRules>(), all::<With32OnIntel>()].concat() {
        assert_eq!(loads_ss(&path), None, "{:?}", texts(&path));
    }
}

#[test]
fn sysret_takes_rip_and_rflags_from_the_interrupt_image() {
    for (way, rcx) in [(Mnemonic::Sysretq, Register::RCX), (Mnemonic::Sysret, Register::ECX)] {
        for path in [by::<Baseline>(way), by::<Everything>(way)] {
            let last_load = |register: Register| {
                path.iter()
                    .rev()
                    .find(|i| i.mnemonic() == Mnemonic::Mov && i.op0_register() == register)
                    .unwrap()
            };
            let from_r11 = |word: usize| (word - TrapFrame::R11) as u64;
            for (register, word) in [(rcx, TrapFrame::RIP), (Register::R11, TrapFrame::RFLAGS)] {
                let load = last_load(register);
                assert_eq!(load.memory_base(), Register::RSP);
                assert_eq!(load.memory_displacement64(), from_r11(word));
            }
        }
    }
}

#[test]
fn kpti_loads_the_users_cr3_after_the_last_use_of_the_kernel_stack() {
    for way in WAYS {
        let path = by::<WithKpti>(way);
        assert_eq!(path.iter().filter(|i| loads_cr3(i)).count(), 1);
        let load = first(&path, loads_cr3).unwrap();
        assert!(uses_header(&path[load - 1], PerCpuHeader::USER_CR3));
        assert_eq!(path[load].op1_register(), path[load - 1].op0_register());
        let after = &path[load + 1..];
        assert_eq!(count(after, Mnemonic::Swapgs), 1);
        if way == Mnemonic::Iretq {
            // RSP is the entry stack's, on which RAX lies below the five words.
            let stack = first(&path, |i| {
                uses_header(i, PerCpuHeader::ENTRY_STACK) && i.op0_register() == Register::RSP
            })
            .unwrap();
            assert!(stack < load);
            assert_eq!(path[stack + 1].mnemonic(), Mnemonic::Sub);
            let texts = texts(after);
            assert_eq!(texts, ["pop rax", "swapgs", "Iretq"]);
        } else {
            // The user's RSP comes from the header.
            assert!(uses_header(&after[0], PerCpuHeader::SCRATCH_RSP));
            assert_eq!(after[0].op0_register().full_register(), Register::RSP);
            assert_eq!(after.len(), 3);
        }
    }
}

#[test]
fn kpti_copies_each_word_of_the_image_to_its_place() {
    let path = by::<WithKpti>(Mnemonic::Iretq);
    let top = path
        .iter()
        .find(|i| uses_header(i, PerCpuHeader::ENTRY_STACK))
        .unwrap()
        .op0_register();
    let mut copied = Vec::new();
    for pair in path.windows(2) {
        let [load, store] = pair else {
            unreachable!("two at a time")
        };
        if store.mnemonic() == Mnemonic::Mov && store.op0_kind() == OpKind::Memory && store.memory_base() == top {
            assert_eq!(load.op0_register(), store.op1_register());
            assert_eq!(load.memory_base(), Register::RSP);
            copied.push((
                usize::try_from(load.memory_displacement64()).unwrap(),
                store.memory_displacement64().cast_signed(),
            ));
        }
    }
    let wanted = [
        (TrapFrame::SS, -8),
        (TrapFrame::RSP, -16),
        (TrapFrame::RFLAGS, -24),
        (TrapFrame::CS, -32),
        (TrapFrame::RIP, -40),
        (TrapFrame::RAX, -48),
    ];
    assert_eq!(copied, wanted);
}

#[test]
fn verw_is_the_last_instruction_before_the_one_that_leaves() {
    for way in WAYS {
        for path in [by::<WithVerw>(way), by::<Everything>(way)] {
            let verw = &path[path.len() - 2];
            assert_eq!(verw.mnemonic(), Mnemonic::Verw);
            assert!(verw.is_ip_rel_memory_operand());
            // SAFETY: the operand is in the stub, which is mapped readable.
            let selector = unsafe { (verw.ip_rel_memory_address() as *const u16).read_unaligned() };
            assert_eq!(selector, SegmentLayout::NATURAL.user_data().bits());
        }
        let rest: Vec<Instruction> = by::<WithVerw>(way)
            .into_iter()
            .filter(|i| i.mnemonic() != Mnemonic::Verw)
            .collect();
        assert_eq!(texts(&rest), texts(&by::<Baseline>(way)));
    }
}

#[test]
fn ibrs_writes_the_users_value_and_keeps_the_decision() {
    for way in WAYS {
        let path = by::<WithIbrs>(way);
        let write = first(&path, |i| i.mnemonic() == Mnemonic::Wrmsr).unwrap();
        assert_eq!(count(&path, Mnemonic::Wrmsr), 1);
        let before = &path[..write];
        assert!(before.iter().any(|i| uses_header(i, PerCpuHeader::USER_SPEC_CTRL)));
        assert!(before.iter().any(|i| zeroes(i) && i.op0_register() == Register::EDX));
        assert!(
            before
                .iter()
                .any(|i| i.op0_register() == Register::ECX && i.immediate(1) == 0x48)
        );
        // EAX, the way to leave, is kept in a register that no WRMSR uses, and tested again for the branch that follows.
        let save = first(&path, |i| i.mnemonic() == Mnemonic::Mov).unwrap();
        assert_eq!(path[save].op1_register(), Register::EAX);
        assert_eq!(path[write + 1].op0_register(), Register::EAX);
        assert_eq!(path[write + 1].op1_register(), path[save].op0_register());
        assert_eq!(path[write + 2].mnemonic(), Mnemonic::Test);
        let rest = [&path[..save], &path[write + 3..]].concat();
        assert_eq!(texts(&rest), texts(&by::<Baseline>(way)));
    }
}

#[test]
fn records_say_whose_gs_rsp_and_cr3_are_at_each_instruction() {
    fn check<O: Options>() {
        for path in leave::<O>() {
            let mut holds = 0;
            for (place, instruction) in path.iter().enumerate() {
                let mut wanted = holds;
                if instruction.mnemonic() == Mnemonic::Iretq {
                    wanted |= flags::IRET;
                }
                let found = windows::find(instruction.ip()).map_or(0, windows::Window::flags);
                assert_eq!(found, wanted, "{instruction}, number {place}");
                let is_way_of_iret = path.last().unwrap().mnemonic() == Mnemonic::Iretq;
                if instruction.mnemonic() == Mnemonic::Swapgs {
                    holds ^= flags::USER_GS;
                } else if loads_cr3(instruction) {
                    holds ^= flags::USER_CR3;
                } else if instruction.mnemonic() == Mnemonic::Mov
                    && instruction.op0_register().full_register() == Register::RSP
                    && !is_way_of_iret
                {
                    holds |= flags::USER_RSP;
                }
            }
        }
    }
    check::<Baseline>();
    check::<WithKpti>();
    check::<WithVerw>();
    check::<Everything>();
}
