//! The entry stubs, disassembled: what each option adds, where, and that nothing is left of it when it is off.
//!
//! The stubs are instantiated here and read as bytes. Nothing is run: that takes a booted CPU.

#[path = "listing/exits.rs"]
mod exits;
#[path = "kernel/tracked.rs"]
mod tracked;
#[path = "listing/walk.rs"]
mod walk;

use std::collections::HashSet;

use entry_core::cpu::CpuFeatures;
use entry_core::kernel::{Baseline, Options, WithSmap};
use entry_core::plan::Installed;
use entry_core::stub::{
    EarlyKernel, NoStubSet, Requirements, StubTable, early_stubs, return_to_user, syscall_compat_entry, syscall_entry,
    syscall_entry_irqs_on, syscall_entry_lean, syscall_floor, vector_stubs, vector_stubs_irqs_on,
};
use entry_core::vector::SLOT_BYTES;
use entry_core::windows::{self, flags};
use entry_core::{EntryKind, Exit, IrqOff, Kernel, NoTracking, PerCpuHeader, SegmentLayout, TrapFrame};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpAccess, Register};

use tracked::{MyKernel, Told};
use walk::{
    Path, check_everywhere, count, first, instruction_at, instructions, loads_cr3, paths, texts, uses_header, zeroes,
};

type TestKernel = MyKernel<NoTracking>;
type TestExit = <TestKernel as Kernel>::Exit;

impl EarlyKernel for TestKernel {
    fn exception(_: &TrapFrame) -> ! {
        unreachable!("no stub is entered")
    }
}

macro_rules! options {
    ($name:ident: $($option:ident = $value:literal),*) => {
        #[derive(Debug)]
        struct $name;

        impl Options for $name {
            $(const $option: bool = $value;)*
        }
    };
}

options!(WithoutFence: LFENCE = false);
options!(WithFsGsBase: FSGSBASE = true);
options!(WithClear: CLEAR = true);
options!(WithKpti: KPTI = true);
options!(WithPcid: KPTI = true, PCID = true);
options!(WithVerw: VERW = true);
options!(WithIbrs: IBRS = true);
options!(Everything: SMAP = true, FSGSBASE = true, CLEAR = true, KPTI = true, PCID = true, VERW = true, IBRS = true);

fn address(stub: unsafe extern "sysv64" fn() -> !) -> u64 {
    #[expect(clippy::fn_to_numeric_cast_any, reason = "the bytes are read from there")]
    let address = stub as *const () as u64;
    address
}

/// Where every path of a stub with options `O` ends that does not leave by itself.
fn outside<O: Options>() -> [u64; 2] {
    [
        address(<TestExit as Exit>::leave::<O>),
        address(<TestExit as Exit>::leave_by_iret::<O>),
    ]
}

fn syscall<O: Options>() -> Vec<Path> {
    paths(address(syscall_entry::<TestKernel, O>), &outside::<O>())
}

fn compat<O: Options>() -> Vec<Path> {
    paths(address(syscall_compat_entry::<TestKernel, O>), &outside::<O>())
}

fn lean<O: Options>() -> Vec<Path> {
    paths(address(syscall_entry_lean::<TestKernel, O>), &outside::<O>())
}

fn vector<O: Options>(vector: u64) -> Vec<Path> {
    let slot = address(vector_stubs::<TestKernel, O>) + vector * SLOT_BYTES;
    paths(slot, &outside::<O>())
}

/// SYSCALL with interrupts left on.
fn irqs_on<O: Options>() -> Vec<Path> {
    paths(address(syscall_entry_irqs_on::<TestKernel, O>), &outside::<O>())
}

/// A vector of the table that goes with it.
fn vector_irqs_on<O: Options>(vector: u64) -> Vec<Path> {
    let slot = address(vector_stubs_irqs_on::<TestKernel, O>) + vector * SLOT_BYTES;
    paths(slot, &outside::<O>())
}

const INVALID_OPCODE: u64 = 6;
const NMI: u64 = 2;
const DOUBLE_FAULT: u64 = 8;
const PAGE_FAULT: u64 = 14;
const TIMER: u64 = 0x40;
const INT80: u64 = 0x80;

/// One vector for each path behind the slots; the first two differ in who pushes the error code.
const PLAIN_VECTORS: [u64; 4] = [INVALID_OPCODE, PAGE_FAULT, TIMER, INT80];

/// Those of them that are not the same stub with interrupts on at SYSCALL.
const INTERRUPTS: [u64; 2] = [TIMER, INT80];

fn vectors<O: Options>() -> Vec<Path> {
    PLAIN_VECTORS.into_iter().flat_map(vector::<O>).collect()
}

/// Paths of every stub.
fn everything<O: Options>() -> Vec<Path> {
    [
        syscall::<O>(),
        compat::<O>(),
        lean::<O>(),
        vectors::<O>(),
        vector::<O>(NMI),
    ]
    .concat()
}

/// Paths of the stubs with interrupts on at SYSCALL, which those options know that there are.
fn everything_irqs_on<O: Options>() -> Vec<Path> {
    let interrupts = INTERRUPTS.into_iter().flat_map(vector_irqs_on::<O>);
    irqs_on::<O>().into_iter().chain(interrupts).collect()
}

/// Whether the path of a vector came from user mode: the branch on CS is the first and was not taken.
fn is_from_user(path: &Path) -> bool {
    let branch = first(path, |instruction| {
        instruction.flow_control() == FlowControl::ConditionalBranch
    })
    .unwrap();
    path[branch + 1].ip() == path[branch].next_ip()
}

fn first_of(path: &[Instruction], mnemonic: Mnemonic) -> Option<usize> {
    first(path, |instruction| instruction.mnemonic() == mnemonic)
}

#[test]
fn the_first_way_to_user_mode_demands_the_token_of_an_installation() {
    fn demands_a_token(_: unsafe fn(*mut TrapFrame, IrqOff, &Installed) -> !) {}
    demands_a_token(StubTable::of::<TestKernel, Baseline>().return_to_user);
    demands_a_token(return_to_user::<TestKernel, Everything>);
}

#[test]
fn every_exit_is_followed_by_int3_and_nothing_is_below_rsp() {
    fn check<O: Options>() {
        check_everywhere(&syscall::<O>());
        check_everywhere(&compat::<O>());
        check_everywhere(&lean::<O>());
        for number in PLAIN_VECTORS.into_iter().chain([NMI]) {
            check_everywhere(&vector::<O>(number));
        }
    }
    fn check_irqs_on<O: Options>() {
        check_everywhere(&irqs_on::<O>());
        for number in INTERRUPTS {
            check_everywhere(&vector_irqs_on::<O>(number));
        }
    }
    check::<Baseline>();
    check::<WithSmap>();
    check::<WithFsGsBase>();
    check::<WithKpti>();
    check::<Everything>();
    check_irqs_on::<Baseline>();
    check_irqs_on::<WithSmap>();
    check_everywhere(&paths(address(syscall_floor), &[]));
}

/// Follows RSP along a path, from an address that 16 divides less `below`.
fn check_alignment(path: &[Instruction], below: u64) {
    let mut below = Some(below);
    let mut calls = 0;
    for instruction in path {
        match (instruction.mnemonic(), instruction.op0_register()) {
            (Mnemonic::Push, _) => below = below.map(|below| below + 8),
            (Mnemonic::Pop, _) => below = below.map(|below| below.wrapping_sub(8)),
            (Mnemonic::Add, Register::RSP) => below = below.map(|below| below.wrapping_sub(instruction.immediate(1))),
            // The top of a stack; or a frame that Rust put where 16 divides the address.
            (Mnemonic::Mov, Register::RSP) if uses_header(instruction, PerCpuHeader::KERNEL_STACK) => below = Some(0),
            (Mnemonic::Mov, Register::RSP) if instruction.op1_register() == Register::RAX => below = Some(0),
            // The user's, or none at all.
            (Mnemonic::Mov, Register::RSP) => below = None,
            (Mnemonic::Call, _) => {
                assert_eq!(
                    below.expect("a stack") % 16,
                    0,
                    "{instruction} at {:#x}",
                    instruction.ip()
                );
                calls += 1;
            }
            _ => {}
        }
    }
    assert_ne!(calls, 0);
}

#[test]
fn the_stack_is_aligned_to_16_bytes_at_every_call() {
    fn check<O: Options>() {
        for path in [syscall::<O>(), compat::<O>(), lean::<O>()].concat() {
            check_alignment(&path, 0);
        }
        for number in PLAIN_VECTORS.into_iter().chain([NMI, DOUBLE_FAULT]) {
            // Five words, and the error code; the CPU itself aligns the stack before.
            let has_code = [PAGE_FAULT, DOUBLE_FAULT].contains(&number);
            for path in vector::<O>(number) {
                check_alignment(&path, if has_code { 48 } else { 40 });
            }
        }
    }
    check::<Baseline>();
    check::<WithKpti>();
    check::<Everything>();
    for path in irqs_on::<Baseline>() {
        check_alignment(&path, 0);
    }
    for path in INTERRUPTS.into_iter().flat_map(vector_irqs_on::<Baseline>) {
        check_alignment(&path, 40);
    }
}

#[test]
fn no_stub_is_a_target_of_indirect_calls() {
    for path in everything::<Everything>()
        .into_iter()
        .chain(everything_irqs_on::<WithSmap>())
    {
        assert_eq!(count(&path, Mnemonic::Endbr64) + count(&path, Mnemonic::Endbr32), 0);
    }
}

#[test]
fn clac_and_cld_come_before_anything_but_the_slot() {
    for number in 0..256 {
        for path in vector::<WithSmap>(number) {
            let cld = first_of(&path, Mnemonic::Cld).unwrap();
            let slot = &path[..cld];
            assert!(
                slot.iter()
                    .all(|instruction| matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Jmp)),
                "{number}: {slot:?}"
            );
            assert_eq!(path[cld + 1].mnemonic(), Mnemonic::Clac, "{number}");
        }
        for path in vector_irqs_on::<WithSmap>(number) {
            let cld = first_of(&path, Mnemonic::Cld).unwrap();
            assert_eq!(path[cld + 1].mnemonic(), Mnemonic::Clac, "{number}");
            assert!(path[..cld].iter().all(|i| i.mnemonic() != Mnemonic::Swapgs), "{number}");
        }
    }
}

/// `larger` without the instructions that an option adds is `baseline`, on paths of the same number.
fn assert_adds_only(larger: &[Path], baseline: &[Path], is_added: impl Fn(&Instruction) -> bool) {
    assert_eq!(larger.len(), baseline.len());
    for (larger, baseline) in larger.iter().zip(baseline) {
        assert!(larger.len() >= baseline.len());
        let rest = larger.iter().filter(|instruction| !is_added(instruction));
        assert_eq!(texts(rest), texts(baseline));
    }
}

#[test]
fn smap_adds_one_clac_to_each_vector_and_nothing_else() {
    assert_adds_only(&everything::<WithSmap>(), &everything::<Baseline>(), |instruction| {
        instruction.mnemonic() == Mnemonic::Clac
    });
    for path in [vectors::<WithSmap>(), vector::<WithSmap>(NMI)].concat() {
        assert_eq!(count(&path, Mnemonic::Clac), 1);
    }
    for path in everything::<Baseline>() {
        assert_eq!(count(&path, Mnemonic::Clac), 0);
    }
    assert_adds_only(
        &everything_irqs_on::<WithSmap>(),
        &everything_irqs_on::<Baseline>(),
        |instruction| instruction.mnemonic() == Mnemonic::Clac,
    );
    for path in everything_irqs_on::<Baseline>() {
        assert_eq!(count(&path, Mnemonic::Clac), 0);
    }
    // IA32_FMASK clears AC there.
    for path in [syscall::<WithSmap>(), compat::<WithSmap>(), lean::<WithSmap>()].concat() {
        assert_eq!(count(&path, Mnemonic::Clac), 0);
    }
}

/// Whether every way through the compiled function at `address` has an LFENCE, and none reads through GS before; perhaps in a
/// function that it calls, and those are followed `depth` deep.
fn fences(address: u64, depth: u32) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![address];
    while let Some(address) = open.pop() {
        if !seen.insert(address) {
            continue;
        }
        let instruction = instruction_at(address);
        if instruction.mnemonic() == Mnemonic::Lfence {
            continue;
        }
        if instruction.segment_prefix() == Register::GS {
            return false;
        }
        match instruction.flow_control() {
            FlowControl::Return => return false,
            FlowControl::Exception | FlowControl::Interrupt => {}
            FlowControl::UnconditionalBranch => open.push(instruction.near_branch_target()),
            FlowControl::ConditionalBranch => open.extend([instruction.near_branch_target(), instruction.next_ip()]),
            FlowControl::Call if depth > 0 && fences(instruction.near_branch_target(), depth - 1) => {}
            _ => open.push(instruction.next_ip()),
        }
    }
    true
}

#[test]
fn lfence_is_on_both_arms_before_memory_is_read_through_gs() {
    let irqs_on = INTERRUPTS.into_iter().flat_map(vector_irqs_on::<Baseline>);
    for path in vectors::<Baseline>().into_iter().chain(irqs_on) {
        let branch = first(&path, |instruction| {
            instruction.flow_control() == FlowControl::ConditionalBranch
        })
        .unwrap();
        let arm = &path[branch + 1..];
        let call = first_of(arm, Mnemonic::Call).unwrap();
        let Some(fence) = first_of(&arm[..call], Mnemonic::Lfence) else {
            // RIP will tell whose GS base it is, and Rust looks: the fence comes after that, and before all else.
            assert!(!is_from_user(&path));
            assert!(arm[..call].iter().all(|i| i.segment_prefix() != Register::GS));
            assert!(fences(arm[call].near_branch_target(), 1));
            continue;
        };
        let before: Vec<Mnemonic> = arm[..fence].iter().map(Instruction::mnemonic).collect();
        let swaps: &[Mnemonic] = if is_from_user(&path) { &[Mnemonic::Swapgs] } else { &[] };
        assert_eq!(before, swaps);
    }
    for path in vector::<Baseline>(NMI) {
        let fence = first_of(&path, Mnemonic::Lfence).unwrap();
        let through_gs = first(&path, |instruction| instruction.segment_prefix() == Register::GS);
        assert!(through_gs.is_none_or(|place| fence < place));
        assert!(fence < first_of(&path, Mnemonic::Call).unwrap());
        assert_eq!(count(&path, Mnemonic::Lfence), 1);
    }
    for path in everything::<WithoutFence>() {
        assert_eq!(count(&path, Mnemonic::Lfence), 0);
    }
    for path in vectors::<WithoutFence>().iter().filter(|path| !is_from_user(path)) {
        let call = &path[first_of(path, Mnemonic::Call).unwrap()];
        assert!(!fences(call.near_branch_target(), 1));
    }
    assert_adds_only(
        &everything::<Baseline>(),
        &everything::<WithoutFence>(),
        |instruction| instruction.mnemonic() == Mnemonic::Lfence,
    );
}

#[test]
fn fsgsbase_replaces_rdmsr_and_swapgs_of_paranoid_entries_from_ring_0() {
    for path in vector::<WithFsGsBase>(NMI).iter().filter(|path| !is_from_user(path)) {
        assert_eq!(count(path, Mnemonic::Swapgs), 0);
        assert_eq!(count(path, Mnemonic::Rdmsr), 0);
        let read = first_of(path, Mnemonic::Rdgsbase).unwrap();
        let write = &path[read + 1];
        assert_eq!(write.mnemonic(), Mnemonic::Wrgsbase);
        assert_ne!(path[read].op0_register(), write.op0_register());
        assert!(read < first_of(path, Mnemonic::Call).unwrap());
        let is_nested = path.last().unwrap().mnemonic() == Mnemonic::Int3;
        assert_eq!(count(path, Mnemonic::Wrgsbase), if is_nested { 1 } else { 2 });
        if !is_nested {
            let back = path
                .iter()
                .rev()
                .find(|instruction| instruction.mnemonic() == Mnemonic::Wrgsbase)
                .unwrap();
            assert_eq!(back.op0_register(), path[read].op0_register());
        }
    }
    for path in everything::<Baseline>() {
        assert_eq!(count(&path, Mnemonic::Rdgsbase) + count(&path, Mnemonic::Wrgsbase), 0);
    }
    let elsewhere = |paths: Vec<Path>| paths.iter().map(texts).collect::<Vec<_>>();
    assert_eq!(elsewhere(vectors::<WithFsGsBase>()), elsewhere(vectors::<Baseline>()));
    assert_eq!(elsewhere(syscall::<WithFsGsBase>()), elsewhere(syscall::<Baseline>()));
}

#[test]
fn clear_zeroes_every_register_of_the_users_between_the_pushes_and_the_call() {
    /// RDI becomes the frame's address.
    const ZEROED: usize = 14;
    let stubs = [
        syscall::<WithClear>(),
        compat::<WithClear>(),
        vectors::<WithClear>(),
        everything_irqs_on::<WithClear>(),
    ];
    for path in stubs.concat() {
        let call = first_of(&path, Mnemonic::Call).unwrap();
        let last_push = path[..call]
            .iter()
            .rposition(|instruction| instruction.mnemonic() == Mnemonic::Push)
            .unwrap();
        let mut zeroed: Vec<Register> = path[last_push..call]
            .iter()
            .filter(|i| zeroes(i))
            .map(|i| i.op0_register().full_register())
            .collect();
        zeroed.sort_unstable();
        zeroed.dedup();
        assert_eq!(zeroed.len(), ZEROED);
        assert!(!zeroed.contains(&Register::RSP) && !zeroed.contains(&Register::RDI));
    }
    for path in [syscall::<Baseline>(), compat::<Baseline>(), vectors::<Baseline>()].concat() {
        assert_eq!(path.iter().filter(|i| zeroes(i)).count(), 0);
    }
    assert_adds_only(&vectors::<WithClear>(), &vectors::<Baseline>(), zeroes);
    assert_adds_only(&syscall::<WithClear>(), &syscall::<Baseline>(), zeroes);
}

/// What a stub may use while the user's tables are loaded: the header, the stack it arrived on, and its own text.
fn check_before_kernel_tables(path: &[Instruction]) {
    let mut info = iced_x86::InstructionInfoFactory::new();
    for instruction in path {
        assert_ne!(instruction.flow_control(), FlowControl::Call, "{instruction}");
        for memory in info.info(instruction).used_memory() {
            if memory.access() == OpAccess::NoMemAccess {
                continue;
            }
            match (memory.segment(), memory.base()) {
                (Register::GS, Register::None) => {
                    let end = memory.displacement() + memory.memory_size().size() as u64;
                    assert!(end <= size_of::<PerCpuHeader>() as u64, "{instruction}");
                }
                (_, Register::RSP | Register::RIP) => {}
                other => panic!("{instruction} uses {other:?} before CR3 is loaded"),
            }
        }
        let loads_stack =
            instruction.op0_register() == Register::RSP && uses_header(instruction, PerCpuHeader::KERNEL_STACK);
        assert!(!loads_stack, "{instruction} before CR3 is loaded");
    }
}

#[test]
fn kpti_loads_cr3_once_before_anything_of_the_kernels_is_used() {
    for path in [syscall::<WithKpti>(), compat::<WithKpti>(), lean::<WithKpti>()].concat() {
        let load = first(&path, loads_cr3).unwrap();
        check_before_kernel_tables(&path[..load]);
        // No stack yet, at all.
        assert_eq!(count(&path[..load], Mnemonic::Push), 0);
        assert!(uses_header(&path[load - 1], PerCpuHeader::KERNEL_CR3));
        assert!(uses_header(&path[load + 1], PerCpuHeader::KERNEL_STACK));
    }
    for number in PLAIN_VECTORS.into_iter().chain([NMI]) {
        let all = vector::<WithKpti>(number);
        for path in all.iter().filter(|path| is_from_user(path)) {
            let load = first(path, loads_cr3).unwrap();
            check_before_kernel_tables(&path[..load]);
            assert!(uses_header(&path[load - 1], PerCpuHeader::KERNEL_CR3));
            let stack = first(path, |i| uses_header(i, PerCpuHeader::KERNEL_STACK)).unwrap();
            assert!(load < stack && stack < first_of(path, Mnemonic::Call).unwrap());
            assert_eq!(path.iter().filter(|i| loads_cr3(i)).count(), 1);
            // All seven words from the kind word up are moved.
            let moved = path
                .iter()
                .filter(|i| i.mnemonic() == Mnemonic::Push && i.memory_base() == Register::RAX);
            assert_eq!(
                moved.map(Instruction::memory_displacement64).collect::<Vec<_>>(),
                [48, 40, 32, 24, 16, 8, 0]
            );
        }
        for path in all.iter().filter(|path| !is_from_user(path)) {
            // Which tables are loaded is asked of CR3 and of nothing else.
            let read = first(path, |i| {
                i.mnemonic() == Mnemonic::Mov && i.op1_register() == Register::CR3
            })
            .unwrap();
            check_before_kernel_tables(&path[..read]);
            let load = first(path, loads_cr3);
            let call = first_of(path, Mnemonic::Call).unwrap();
            assert!(load.is_none_or(|load| read < load && load < call || call < load));
        }
    }
    for path in everything::<Baseline>() {
        assert!(!path.iter().any(|i| loads_cr3(i) || i.op1_register() == Register::CR3));
    }
}

#[test]
fn paranoid_entries_put_back_the_cr3_that_they_found() {
    let mut with_user_tables = 0;
    for path in vector::<WithKpti>(NMI).iter().filter(|path| !is_from_user(path)) {
        if path.last().unwrap().mnemonic() != Mnemonic::Iretq {
            continue;
        }
        let read = path.iter().find(|i| i.op1_register() == Register::CR3).unwrap();
        let loads: Vec<&Instruction> = path.iter().filter(|i| loads_cr3(i)).collect();
        if let [to_kernel, back] = loads[..] {
            assert_ne!(to_kernel.op1_register(), read.op0_register());
            assert_eq!(back.op1_register(), read.op0_register());
            with_user_tables += 1;
        }
    }
    assert_ne!(with_user_tables, 0);
}

#[test]
fn events_in_ring_0_make_the_users_root_and_identifier_the_kernels() {
    fn check<O: Options>(cleared: u64) {
        for number in PLAIN_VECTORS.into_iter().chain([NMI]) {
            let mut loads = 0;
            for path in vector::<O>(number).iter().filter(|path| !is_from_user(path)) {
                let call = first_of(path, Mnemonic::Call).unwrap();
                let Some(load) = first(&path[..call], loads_cr3) else {
                    continue;
                };
                let and = path[..load].iter().rfind(|i| i.mnemonic() == Mnemonic::And).unwrap();
                assert_eq!(and.op0_register(), path[load].op1_register());
                assert_eq!(!and.immediate(1), cleared, "vector {number}");
                loads += 1;
            }
            assert_ne!(loads, 0, "vector {number}");
        }
    }
    check::<WithKpti>(1 << 12);
    check::<WithPcid>(1 << 12 | 1 << 11);
}

#[test]
fn no_flush_bit_is_set_only_with_pcid() {
    for path in everything::<WithKpti>() {
        assert_eq!(count(&path, Mnemonic::Bts), 0);
    }
    for path in vector::<WithPcid>(NMI).iter().filter(|path| !is_from_user(path)) {
        for (place, _) in path.iter().enumerate().filter(|(_, i)| loads_cr3(i)) {
            assert_eq!(path[place - 1].mnemonic(), Mnemonic::Bts);
            assert_eq!(path[place - 1].op0_register(), path[place].op1_register());
            assert_eq!(path[place - 1].immediate8(), 63);
        }
    }
}

#[test]
fn kpti_costs_two_instructions_for_syscall() {
    assert_eq!(syscall::<WithKpti>()[0].len(), syscall::<Baseline>()[0].len() + 2);
}

#[test]
fn verw_comes_last_of_all_where_a_stub_leaves_by_itself() {
    let check = |paths: Vec<Path>, leaving: Mnemonic| {
        let mut found = 0;
        for path in paths {
            let Some((last, before)) = path.split_last() else {
                unreachable!("a path has an end")
            };
            if last.mnemonic() == leaving && count(before, Mnemonic::Verw) != 0 {
                let verw = before.last().unwrap();
                assert_eq!(verw.mnemonic(), Mnemonic::Verw, "before {last}");
                // The memory form: that with a register need not clear anything.
                assert!(verw.is_ip_rel_memory_operand());
                let operand = verw.ip_rel_memory_address();
                // SAFETY: the operand is in the stub, which is mapped readable.
                let selector = unsafe { (operand as *const u16).read() };
                let layout = SegmentLayout::NATURAL;
                assert!([layout.kernel_data().bits(), layout.user_data().bits()].contains(&selector));
                found += 1;
            } else {
                assert_eq!(count(&path, Mnemonic::Verw), 0);
                assert_ne!(last.mnemonic(), leaving);
            }
        }
        assert_ne!(found, 0);
    };
    check(lean::<WithVerw>(), Mnemonic::Sysretq);
    check(vector::<WithVerw>(NMI), Mnemonic::Iretq);
    // Back to ring 0, or to the exit.
    for path in [vectors::<WithVerw>(), everything::<Baseline>()].concat() {
        assert_eq!(count(&path, Mnemonic::Verw), 0);
    }
}

#[test]
fn ibrs_is_written_before_the_first_call_and_put_back_by_whoever_leaves() {
    let writes = |path: &[Instruction]| count(path, Mnemonic::Wrmsr);
    for path in [syscall::<WithIbrs>(), compat::<WithIbrs>()].concat() {
        let call = first_of(&path, Mnemonic::Call).unwrap();
        assert_eq!((writes(&path[..call]), writes(&path)), (1, 1));
    }
    for path in lean::<WithIbrs>() {
        let call = first_of(&path, Mnemonic::Call).unwrap();
        assert_eq!(writes(&path[..call]), 1);
        let wanted = match path.last().unwrap().mnemonic() {
            Mnemonic::Sysretq => 2,
            // Back to the kernel's, perhaps after the user's.
            _ if path.iter().any(|i| i.mnemonic() == Mnemonic::Jae) => 3,
            _ => 2,
        };
        assert_eq!(writes(&path), wanted);
    }
    for number in PLAIN_VECTORS.into_iter().chain([NMI]) {
        for path in vector::<WithIbrs>(number) {
            let call = first_of(&path, Mnemonic::Call).unwrap();
            if is_from_user(&path) || number == NMI {
                assert_eq!(writes(&path[..call]), 1);
            }
        }
    }
    for path in vector::<WithIbrs>(NMI).iter().filter(|path| !is_from_user(path)) {
        let is_nested = path.last().unwrap().mnemonic() == Mnemonic::Int3;
        assert_eq!(writes(path), if is_nested { 1 } else { 2 });
    }
    for path in everything::<Baseline>() {
        assert_eq!(writes(&path), 0);
    }
}

#[test]
fn nothing_is_left_of_options_that_are_off() {
    // The paths of the plainest set, counted by hand.
    let lengths = |paths: Vec<Path>| {
        let mut lengths: Vec<usize> = paths.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        lengths
    };
    // SWAPGS, 2 moves, 7 + 15 pushes, move, call, jump.
    assert_eq!(lengths(syscall::<WithoutFence>()), [28]);
    // CLI, and two more moves.
    assert_eq!(lengths(compat::<WithoutFence>()), [31]);
    // Push, push, jump; CLD, test, branch; then SWAPGS, 15 pushes, move, call, test, a branch to IRET or past it and a jump;
    // or 15 pushes, move, call, 16 to undo them, IRETQ.
    assert_eq!(lengths(vector::<WithoutFence>(TIMER)), [26, 27, 40]);
}

/// Every path of the stubs of one kernel.
fn all_texts<K: Kernel>() -> Vec<Vec<String>> {
    let outside = [
        address(<K::Exit as Exit>::leave::<Baseline>),
        address(<K::Exit as Exit>::leave_by_iret::<Baseline>),
    ];
    let calls = [
        address(syscall_entry::<K, Baseline>),
        address(syscall_compat_entry::<K, Baseline>),
    ];
    let slots = address(vector_stubs::<K, Baseline>);
    let vectors = (0..256).map(|vector| slots + vector * SLOT_BYTES);
    calls
        .into_iter()
        .chain(vectors)
        .flat_map(|stub| paths(stub, &outside))
        .map(|path| texts(&path))
        .collect()
}

#[test]
fn no_stub_knows_whether_somebody_is_told_of_the_border() {
    assert_eq!(all_texts::<TestKernel>(), all_texts::<MyKernel<Told>>());
}

#[test]
fn syscall_from_32_bit_code_turns_interrupts_off_first() {
    // The mask is that of the 64-bit stub, which may leave them on.
    for path in [compat::<Baseline>(), compat::<Everything>()].concat() {
        assert_eq!(path[0].mnemonic(), Mnemonic::Cli);
    }
}

#[test]
fn syscall_from_32_bit_code_keeps_32_bits_of_rip_and_rsp() {
    for path in [compat::<Baseline>(), compat::<Everything>()].concat() {
        let push = first_of(&path, Mnemonic::Push).unwrap();
        let truncates_rip = |i: &Instruction| {
            (i.mnemonic(), i.op0_register(), i.op1_register()) == (Mnemonic::Mov, Register::ECX, Register::ECX)
        };
        let truncates_rsp = |i: &Instruction| {
            let is_zero = i.op1_kind() == iced_x86::OpKind::Immediate32 && i.immediate32() == 0;
            is_zero && uses_header(i, PerCpuHeader::SCRATCH_RSP + 4)
        };
        assert!(first(&path[..push], truncates_rip).is_some());
        assert!(first(&path[..push], truncates_rsp).is_some());
    }
}

#[test]
fn paranoid_stack_is_marked_in_use_and_given_up_last() {
    let is_depth = |instruction: &Instruction, value: u64| {
        instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == iced_x86::OpKind::Memory
            && instruction.op1_kind() == iced_x86::OpKind::Immediate32
            && u64::from(instruction.immediate32()) == value
    };
    for path in vector::<Baseline>(NMI) {
        let marked = first(&path, |i| is_depth(i, 1)).unwrap();
        assert!(marked < first_of(&path, Mnemonic::Call).unwrap());
        match path.last().unwrap().mnemonic() {
            Mnemonic::Iretq => assert!(is_depth(&path[path.len() - 2], 0)),
            // From user mode: free as soon as the frame has been moved.
            Mnemonic::Jmp => {
                let freed = first(&path, |i| is_depth(i, 0)).unwrap();
                assert_eq!(path[freed].memory_base(), Register::RAX);
                assert_eq!(
                    path[freed].memory_displacement64(),
                    path[marked].memory_displacement64()
                );
                assert_eq!(path[freed - 1].mnemonic(), Mnemonic::Push);
            }
            // Nested: never free again.
            other => {
                assert_eq!(other, Mnemonic::Int3);
                assert!(first(&path, |i| is_depth(i, 0)).is_none());
            }
        }
    }
}

/// Follows GS base, RSP and CR3 along a path, and compares with the records.
fn check_windows(path: &[Instruction], starts_with: u32) {
    let mut holds = starts_with;
    for instruction in path {
        let found = windows::find(instruction.ip()).map_or(0, windows::Window::flags);
        // Interrupts can be on before CLI, which the stub behind CSTAR begins with, and nowhere else here.
        let may_be_on = instruction.mnemonic() == Mnemonic::Cli && starts_with & flags::USER_CR3 == 0;
        assert_eq!(found & flags::IRQS_ON != 0, may_be_on, "{instruction}");
        assert_eq!(
            found & !flags::IRQS_ON,
            holds,
            "{instruction} at {:#x}",
            instruction.ip()
        );
        if instruction.mnemonic() == Mnemonic::Swapgs {
            holds ^= flags::USER_GS;
        } else if loads_cr3(instruction) {
            holds ^= flags::USER_CR3;
        } else if uses_header(instruction, PerCpuHeader::KERNEL_STACK) {
            holds &= !flags::USER_RSP;
        } else if instruction.op0_register() == Register::RSP
            && (uses_header(instruction, PerCpuHeader::USER_CR3) || instruction.memory_base() == Register::RSP)
        {
            holds |= flags::USER_RSP;
        }
    }
}

#[test]
fn records_say_whose_gs_rsp_and_cr3_are_at_each_instruction() {
    let start = flags::USER_GS | flags::USER_RSP;
    for path in [syscall::<Baseline>(), compat::<Baseline>(), lean::<Baseline>()].concat() {
        check_windows(&path, start);
    }
    for path in [
        syscall::<WithKpti>(),
        compat::<WithKpti>(),
        lean::<WithKpti>(),
        lean::<Everything>(),
    ]
    .concat()
    {
        check_windows(&path, start | flags::USER_CR3);
    }
}

#[test]
fn slots_end_in_int3_and_push_what_the_kind_says() {
    for number in 0..=255_u8 {
        let path = &vector::<Baseline>(number.into())[0];
        let kind = match number {
            1 | 2 | 8 | 18 => EntryKind::Paranoid,
            0x80 => EntryKind::Int80,
            0..32 => EntryKind::Exception,
            _ => EntryKind::Interrupt,
        };
        let has_code = matches!(number, 8 | 10..=14 | 17 | 21 | 29 | 30);
        let pushed: Vec<&Instruction> = path.iter().take_while(|i| i.mnemonic() == Mnemonic::Push).collect();
        assert_eq!(pushed.len(), if has_code { 1 } else { 2 }, "vector {number}");
        assert_eq!(
            pushed.last().unwrap().immediate(0),
            kind.word(number),
            "vector {number}"
        );
        let jump = path[pushed.len()];
        let end = path[0].ip() + SLOT_BYTES;
        for address in jump.next_ip()..end {
            assert_eq!(
                walk::instruction_at(address).mnemonic(),
                Mnemonic::Int3,
                "vector {number}"
            );
        }
    }
}

#[test]
fn early_slots_complete_the_frame_and_end_in_a_call_that_does_not_return() {
    for number in 0..32_u8 {
        let slot = address(early_stubs::<TestKernel>) + u64::from(number) * SLOT_BYTES;
        let paths = paths(slot, &[]);
        let [path] = &paths[..] else {
            panic!("vector {number} has {} paths", paths.len())
        };
        check_everywhere(&paths);
        let has_code = matches!(number, 8 | 10..=14 | 17 | 21 | 29 | 30);
        let pushes = first(path, |instruction| instruction.mnemonic() == Mnemonic::Jmp).unwrap();
        assert_eq!(pushes, if has_code { 1 } else { 2 }, "vector {number}");
        assert_eq!(
            path[pushes - 1].immediate(0),
            EntryKind::Exception.word(number),
            "vector {number}"
        );
        assert!(path[pushes].next_ip() <= path[0].ip() + SLOT_BYTES, "vector {number}");
        assert_eq!(path[pushes + 1].mnemonic(), Mnemonic::Cld, "vector {number}");
        // The frame is complete, and the stack 16-byte aligned, at the call.
        let pushed = path
            .iter()
            .filter(|instruction| instruction.mnemonic() == Mnemonic::Push);
        assert_eq!(
            8 * (pushed.count() + 5 + usize::from(has_code)),
            TrapFrame::SIZE,
            "vector {number}"
        );
        assert_eq!(count(path, Mnemonic::Call), 1);
        assert!(
            !path
                .iter()
                .any(|instruction| instruction.segment_prefix() == Register::GS)
        );
    }
}

#[test]
fn walks_cover_what_they_claim() {
    // 7 branches of the paranoid stub at most; each path is one of 3 kinds.
    let all = vector::<Everything>(NMI);
    assert!(all.len() > 8);
    let ends: Vec<Mnemonic> = all.iter().map(|path| path.last().unwrap().mnemonic()).collect();
    for end in [Mnemonic::Iretq, Mnemonic::Jmp, Mnemonic::Int3] {
        assert!(ends.contains(&end));
    }
    assert!(instructions(&all).len() > 100);
}

fn cpu() -> CpuFeatures {
    CpuFeatures::from_cpuid(|_, _| Default::default())
}

#[test]
fn requirements_are_those_of_the_options() {
    assert_eq!(Requirements::of::<Baseline>(), Requirements::empty());
    assert_eq!(Requirements::of::<WithSmap>(), Requirements::SMAP);
    assert_eq!(Requirements::of::<WithKpti>(), Requirements::empty());
    assert_eq!(Requirements::of::<WithPcid>(), Requirements::PCID);
    assert_eq!(Requirements::of::<WithVerw>(), Requirements::MD_CLEAR);
    assert_eq!(Requirements::of::<WithIbrs>(), Requirements::IBRS);
    assert_eq!(Requirements::of::<WithFsGsBase>(), Requirements::FSGSBASE);
    assert_eq!(Requirements::of::<Everything>(), Requirements::all());
    assert_eq!(
        StubTable::of::<TestKernel, Everything>().requirements,
        Requirements::all()
    );
}

#[test]
fn first_set_that_the_cpu_allows_is_selected() {
    let sets = [
        StubTable::of::<TestKernel, Everything>(),
        StubTable::of::<TestKernel, WithSmap>(),
        StubTable::of::<TestKernel, Baseline>(),
    ];
    let chosen = |cpu: &CpuFeatures| StubTable::select(&sets, cpu).map(|set| set.syscall);
    let mut cpu = cpu();
    assert_eq!(chosen(&cpu), Ok(sets[2].syscall));
    cpu.smap = true;
    assert_eq!(chosen(&cpu), Ok(sets[1].syscall));
    (cpu.fsgsbase, cpu.pcid, cpu.md_clear) = (true, true, true);
    assert_eq!(chosen(&cpu), Ok(sets[1].syscall));
    cpu.ibrs = true;
    assert_eq!(chosen(&cpu), Ok(sets[0].syscall));
    // Intel's bit or AMD's: the instruction is the same.
    cpu.md_clear = false;
    assert_eq!(chosen(&cpu), Ok(sets[1].syscall));
    cpu.verw_clear = true;
    assert_eq!(chosen(&cpu), Ok(sets[0].syscall));
    cpu.smap = false;
    assert_eq!(chosen(&cpu), Ok(sets[2].syscall));
}

#[test]
fn error_names_what_the_last_set_lacks() {
    let sets = [
        StubTable::of::<TestKernel, Everything>(),
        StubTable::of::<TestKernel, WithSmap>(),
    ];
    let error = StubTable::select(&sets, &cpu()).unwrap_err();
    let wanted = NoStubSet {
        sets: 2,
        missing: Requirements::SMAP,
    };
    assert_eq!(error, wanted);
    assert_eq!(
        error.to_string(),
        "none of 2 sets of stubs runs on this CPU, wanted SMAP for the last"
    );
    assert_eq!(StubTable::select(&[], &cpu()).unwrap_err().sets, 0);
}
