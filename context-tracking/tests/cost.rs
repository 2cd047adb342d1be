//! What a transition costs, in instructions, read off the machine code of this very build.
//!
//! Only an optimised build says anything, so run it as `cargo test -p context-tracking --release --test cost`. The word is
//! reached through GS, as in a kernel; nothing is executed. What PUSHF, CLI and STI add in `IrqSaved` exists only in
//! builds for `target_os = "none"`, so that is measured in the kernel.

use context_tracking::{Gs, GsWord, IrqOff, NoTracking, Switched, Tracked, Tracking};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

struct Layout;

// SAFETY: nothing that uses it is ever called.
unsafe impl GsWord for Layout {
    const OFFSET: usize = 64;
    const CHECKED: bool = false;
}

type Cpu = Gs<Layout>;

/// Out of the kernel's border and back, as a stub's Rust half does it.
#[inline(never)]
extern "sysv64" fn round_trip<T: Tracking>() {
    // SAFETY: never called.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: never called.
    unsafe { T::user_exit(&irq) };
    // SAFETY: never called.
    let _ = unsafe { T::user_enter(irq) };
}

/// An exception or interrupt in the kernel.
#[inline(never)]
extern "sysv64" fn exception<T: Tracking>() {
    // SAFETY: never called.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: never called.
    let saved = unsafe { T::exception_enter(&irq) };
    // SAFETY: never called.
    unsafe { T::exception_exit(&irq, saved) };
}

/// The instructions of `function`, up to its first RET.
fn instructions(function: extern "sysv64" fn()) -> Vec<Instruction> {
    #[expect(
        clippy::fn_to_numeric_cast_any,
        reason = "the address of the machine code is what is wanted"
    )]
    let start = function as *const u8;
    let mut bytes = [0u8; 256];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the function lies in this program's text, and the rest of the test's text, of more than 256 bytes,
        // behind or around it in a mapped segment.
        *byte = unsafe { start.wrapping_add(offset).read() };
    }
    let mut decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
    let mut list = Vec::new();
    loop {
        let instruction = decoder.decode();
        assert!(!instruction.is_invalid(), "no RET within 256 bytes");
        if instruction.mnemonic() == Mnemonic::Ret {
            return list;
        }
        list.push(instruction);
    }
}

fn mnemonics(function: extern "sysv64" fn()) -> Vec<Mnemonic> {
    instructions(function).iter().map(Instruction::mnemonic).collect()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build")]
fn off_leaves_no_instruction() {
    assert_eq!(mnemonics(round_trip::<NoTracking>), []);
    assert_eq!(mnemonics(exception::<NoTracking>), []);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build")]
fn irqs_off_is_one_locked_addition_each_way() {
    let list = instructions(round_trip::<Tracked<Cpu>>);
    assert_eq!(
        list.iter().map(Instruction::mnemonic).collect::<Vec<_>>(),
        [Mnemonic::Add, Mnemonic::Add]
    );
    for instruction in &list {
        assert!(instruction.has_lock_prefix(), "{instruction}");
        assert_eq!(instruction.memory_segment(), iced_x86::Register::GS, "{instruction}");
        assert_eq!(instruction.memory_displacement64(), 64, "{instruction}");
    }
    // Out of user mode: one step of the counter, and the state from 2 to 0. Back: one step, and from 0 to 2.
    assert_eq!(list[0].immediate(1), 0x1_0000 - 2);
    assert_eq!(list[1].immediate(1), 0x1_0000 + 2);
}

/// Entry paths have no business with indirect branches, by which a table of states would be compiled.
#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build")]
fn an_exception_in_the_kernel_takes_three_instructions_and_no_table() {
    let list = mnemonics(exception::<Tracked<Cpu>>);
    assert_eq!(list[..3], [Mnemonic::Mov, Mnemonic::Test, Mnemonic::Jne]);
    assert!(!list.contains(&Mnemonic::Jmp), "{list:?}");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build")]
fn the_switch_is_one_test_and_one_branch() {
    let list = mnemonics(round_trip::<Switched<Cpu, Tracked<Cpu>>>);
    let each_way = [Mnemonic::Test, Mnemonic::Je, Mnemonic::Add];
    assert_eq!(list, [each_way, each_way].concat());
}
