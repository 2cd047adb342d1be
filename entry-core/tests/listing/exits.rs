//! The exits that stubs take by themselves: their few tests let through only what the decision in Rust leaves by SYSRET.
//!
//! What they test is read from their bytes.

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::{Baseline, Leave};
use entry_core::stub::{syscall_entry_irqs_on, syscall_entry_lean};
use entry_core::{EntryKind, PerCpuHeader, SegmentLayout, TrapFrame};
use entry_sysret::{ExitWords, RuleSet, decide};
use iced_x86::{FlowControl, Instruction, MemorySize, Mnemonic, OpKind, Register};

use super::walk::{Path, count, paths, uses_header};
use super::{TestKernel, address, outside};

const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);

/// The one path of a stub that ends with SYSRET.
fn exit(stub: unsafe extern "sysv64" fn() -> !) -> Path {
    let found: Vec<Path> = paths(address(stub), &outside::<Baseline>())
        .into_iter()
        .filter(|path| path.last().unwrap().mnemonic() == Mnemonic::Sysretq)
        .collect();
    let [path] = &found[..] else {
        panic!("{} paths end with SYSRET", found.len())
    };
    let call = path
        .iter()
        .rposition(|instruction| instruction.mnemonic() == Mnemonic::Call)
        .unwrap();
    path[call + 1..].to_vec()
}

/// The instruction that comes before a branch that is not taken, for each branch of a path.
fn tests(path: &[Instruction]) -> Vec<(usize, Instruction)> {
    (1..path.len())
        .filter(|&place| path[place].flow_control() == FlowControl::ConditionalBranch)
        .inspect(|&place| assert_eq!(path[place + 1].ip(), path[place].next_ip(), "{}", path[place]))
        .map(|place| (place - 1, path[place - 1]))
        .collect()
}

/// What a stub's exit tests of RIP and RFLAGS.
struct Tests {
    /// What the upper half of RIP is below.
    rip_high: u32,
    flags: u32,
}

impl Tests {
    /// Reads them, and makes sure that what was tested is what SYSRET consumes.
    fn of(path: &[Instruction], rip_word: u64, flags_word: u64) -> Self {
        let tests = tests(path);
        let [.., (rip_place, rip), (flags_place, flags)] = tests[..] else {
            panic!("{} tests", tests.len())
        };
        // The upper half of the word that RCX was loaded from; unsigned, so that the kernel's half is above, too.
        assert_eq!((rip.mnemonic(), rip.memory_base()), (Mnemonic::Cmp, Register::RSP));
        assert_eq!(
            (rip.memory_size(), rip.memory_displacement64()),
            (MemorySize::UInt32, rip_word + 4)
        );
        assert_eq!(path[rip_place + 1].mnemonic(), Mnemonic::Jae);
        assert_eq!(
            (flags.mnemonic(), flags.op0_register()),
            (Mnemonic::Test, Register::R11D)
        );
        for (place, register, word) in [
            (rip_place, Register::RCX, rip_word),
            (flags_place, Register::R11, flags_word),
        ] {
            let (before, after) = path.split_at(place);
            let loads =
                |i: &&Instruction| i.op0_kind() == OpKind::Register && i.op0_register().full_register() == register;
            let load = before.iter().rev().find(loads).unwrap();
            assert_eq!((load.mnemonic(), load.memory_base()), (Mnemonic::Mov, Register::RSP));
            assert_eq!(load.memory_displacement64(), word);
            // The tests themselves write nothing.
            let writes = after
                .iter()
                .skip(1)
                .filter(loads)
                .filter(|i| i.mnemonic() != Mnemonic::Test);
            assert_eq!(writes.count(), 0, "{register:?} changes after its test");
        }
        Self {
            rip_high: rip.immediate32(),
            flags: flags.immediate32(),
        }
    }

    const fn let_through(&self, rip: u64, rflags: u64) -> bool {
        rip >> 32 < self.rip_high as u64 && rflags & self.flags as u64 == 0
    }

    /// Whatever SYSCALL can have saved: all flags there are with IF set, and return addresses up to the first that is not
    /// canonical.
    fn check(&self) {
        const FLAGS: u64 = 0x3f_7fd5;
        const IF: u64 = 0x200;
        const LIMIT: u64 = UserLimit::HIGHEST_48.get();
        let words = |rip, rflags| ExitWords {
            kind: Some(EntryKind::Syscall64),
            is_modified: false,
            are_rcx_r11_dead: false,
            may_drop_rf: false,
            rip,
            cs: SegmentLayout::NATURAL.user_code64().bits().into(),
            rflags,
            ss: SegmentLayout::NATURAL.user_data().bits().into(),
            rcx: rip,
            r11: rflags,
        };
        let mut let_through = 0;
        // Every subset of the flags.
        let mut subset = 0u64;
        loop {
            let rflags = subset | IF | 2;
            for rip in [0, 2, 0x40_0000, LIMIT - 1] {
                if self.let_through(rip, rflags) {
                    assert_eq!(
                        decide(&words(rip, rflags), &RULES),
                        Ok(Leave::Sysret),
                        "{rip:#x} {rflags:#x}"
                    );
                    let_through += 1;
                }
            }
            // The first addresses that are not canonical, for 48 and for 57 bits.
            for rip in [0x8000_0000_0000, 0x8000_0000_0001, 1 << 56, 1 << 56 | 1] {
                assert!(!self.let_through(rip, rflags), "{rip:#x} {rflags:#x}");
            }
            subset = subset.wrapping_sub(FLAGS) & FLAGS;
            if subset == 0 {
                break;
            }
        }
        // CF, PF, AF, ZF, SF, OF, DF, AC and ID do no harm: each combination of them, with and without IF in the subset.
        assert_eq!(let_through, 4 * 2 * (1 << 9));
    }
}

/// Whether a test compares the word that says whether work is pending with zero.
fn asks_for_work(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Cmp
        && uses_header(instruction, PerCpuHeader::WORK)
        && instruction.immediate(1) == 0
}

#[test]
fn lean_exit_lets_through_what_the_decision_leaves_by_sysret() {
    let path = exit(syscall_entry_lean::<TestKernel, Baseline>);
    // Ten words: RAX, R9, R8, R10, RDX, RSI, RDI, RFLAGS, RIP, RSP.
    Tests::of(&path, 64, 56).check();
}

#[test]
fn lean_exit_asks_for_work_first() {
    let path = exit(syscall_entry_lean::<TestKernel, Baseline>);
    assert!(asks_for_work(&path[0]), "{}", path[0]);
    assert_eq!(tests(&path).len(), 3);
}

#[test]
fn exit_with_interrupts_on_lets_through_what_the_decision_leaves_by_sysret() {
    let path = exit(syscall_entry_irqs_on::<TestKernel, Baseline>);
    Tests::of(&path, TrapFrame::RIP as u64, TrapFrame::RFLAGS as u64).check();
}

#[test]
fn exit_with_interrupts_on_asks_for_work_and_an_untouched_frame_first() {
    let path = exit(syscall_entry_irqs_on::<TestKernel, Baseline>);
    assert!(asks_for_work(&path[0]), "{}", path[0]);
    let (_, kind) = tests(&path)[1];
    assert_eq!((kind.mnemonic(), kind.memory_base()), (Mnemonic::Cmp, Register::RSP));
    assert_eq!(kind.memory_displacement64(), TrapFrame::KIND as u64);
    assert_eq!(kind.immediate(1), EntryKind::Syscall64.word(0));
    assert_eq!(tests(&path).len(), 4);
    // IF is never touched: it is the way of all other frames that turns interrupts off.
    assert_eq!(count(&path, Mnemonic::Cli) + count(&path, Mnemonic::Sti), 0);
}
