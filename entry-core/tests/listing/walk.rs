//! Every path through a stub, from the bytes of the test program itself.
//!
//! Stubs have no loops, so their paths are finite; a path ends at an instruction that leaves the stub.

use std::collections::HashSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// The most bytes that an instruction has.
const LONGEST: usize = 15;

/// One way through a stub.
pub(crate) type Path = Vec<Instruction>;

/// Decodes the instruction at `address`, which is one of this program's functions or lies in one.
pub(crate) fn instruction_at(address: u64) -> Instruction {
    // SAFETY: the bytes are code of this program, which is mapped readable and never changes; a stub is followed by more of
    // it than an instruction is long.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, LONGEST) };
    let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    assert!(
        !instruction.is_invalid(),
        "no instruction at {address:#x}: {bytes:02x?}"
    );
    instruction
}

/// All paths from `start`. A jump to one of `outside` ends a path, as do IRETQ, SYSRET and INT3; calls return.
pub(crate) fn paths(start: u64, outside: &[u64]) -> Vec<Path> {
    let mut done = Vec::new();
    let mut open = vec![(start, Path::new())];
    while let Some((address, mut path)) = open.pop() {
        let instruction = instruction_at(address);
        path.push(instruction);
        assert!(path.len() < 400, "a stub of {} instructions, or a loop", path.len());
        match instruction.flow_control() {
            FlowControl::Return | FlowControl::Interrupt | FlowControl::Exception => done.push(path),
            FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                if outside.contains(&target) {
                    done.push(path);
                } else {
                    open.push((target, path));
                }
            }
            FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target();
                if outside.contains(&target) {
                    done.push(path.clone());
                } else {
                    open.push((target, path.clone()));
                }
                open.push((instruction.next_ip(), path));
            }
            FlowControl::Next | FlowControl::Call => open.push((instruction.next_ip(), path)),
            other => panic!("{instruction} is {other:?}, which no stub has"),
        }
    }
    done
}

/// Each instruction of `paths` once.
pub(crate) fn instructions(paths: &[Path]) -> Vec<Instruction> {
    let mut seen = HashSet::new();
    paths
        .iter()
        .flatten()
        .filter(|instruction| seen.insert(instruction.ip()))
        .copied()
        .collect()
}

/// How many instructions of `path` are `mnemonic`.
pub(crate) fn count(path: &[Instruction], mnemonic: Mnemonic) -> usize {
    path.iter()
        .filter(|instruction| instruction.mnemonic() == mnemonic)
        .count()
}

/// The place of the first instruction for which `wanted` holds.
pub(crate) fn first(path: &[Instruction], wanted: impl Fn(&Instruction) -> bool) -> Option<usize> {
    path.iter().position(wanted)
}

/// Whether an instruction writes CR3.
pub(crate) fn loads_cr3(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::CR3
}

/// Whether an instruction accesses memory through GS at `offset`.
pub(crate) fn uses_header(instruction: &Instruction, offset: usize) -> bool {
    instruction.segment_prefix() == Register::GS
        && instruction.memory_base() == Register::None
        && instruction.memory_displacement64() == offset as u64
}

/// Whether an instruction zeroes a register by XOR.
pub(crate) fn zeroes(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Xor
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
}

/// What holds of every stub: INT3 behind each instruction that never goes on, and no access below RSP.
pub(crate) fn check_everywhere(paths: &[Path]) {
    for instruction in instructions(paths) {
        let leaves = match instruction.flow_control() {
            FlowControl::Return => true,
            FlowControl::UnconditionalBranch => paths
                .iter()
                .any(|path| path.last().is_some_and(|last| last.ip() == instruction.ip())),
            _ => false,
        };
        if leaves {
            let next = instruction_at(instruction.next_ip());
            assert_eq!(next.mnemonic(), Mnemonic::Int3, "behind {instruction}");
        }
        if instruction.memory_base() == Register::RSP {
            let displacement = instruction.memory_displacement64().cast_signed();
            assert!(
                displacement >= 0,
                "{instruction} at {:#x} is below RSP",
                instruction.ip()
            );
        }
    }
}

/// The instructions as text without addresses, branches and calls without their targets.
pub(crate) fn texts<'a>(path: impl IntoIterator<Item = &'a Instruction>) -> Vec<String> {
    path.into_iter()
        .map(|instruction| match instruction.flow_control() {
            FlowControl::Next if !instruction.is_ip_rel_memory_operand() => instruction.to_string(),
            _ => format!("{:?}", instruction.mnemonic()),
        })
        .collect()
}
