//! What a transition costs, in instructions, read off the machine code of this very build.
//!
//! Only an optimised build says anything, so run it as `cargo test -p context-tracking --release --test cost`. The word is
//! reached through GS, as in a kernel; nothing is executed. What PUSHF, CLI and STI add in `IrqSaved` exists only in
//! builds for `target_os = "none"`, so that is measured in the kernel.

use core::marker::PhantomData;

use context_tracking::{Gs, GsWord, IrqOff, NoTracking, Switched, Tracked, Tracking};
use entry_core::kernel::{Exit, Leave, Options};
use entry_core::stub::system_call;
use entry_core::{Kernel, SegmentLayout, TrapFrame, UserEntry};
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

/// An exit that always takes the one way.
struct AlwaysIret;

// SAFETY: nothing that uses it is ever called.
unsafe impl Exit for AlwaysIret {
    type Refusal = ();

    #[inline(always)]
    fn choose_plain(_frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        Some(Leave::Iret)
    }

    fn choose(_frame: &TrapFrame, _irq: &IrqOff) -> Result<Leave, ()> {
        Ok(Leave::Iret)
    }

    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        unreachable!("never called")
    }

    unsafe extern "sysv64" fn leave_by_iret<O: Options>() -> ! {
        unreachable!("never called")
    }
}

/// A kernel whose system calls do nothing.
struct Nothing<T>(PhantomData<T>);

// SAFETY: nothing that uses it is ever called.
unsafe impl<T: Tracking> Kernel for Nothing<T> {
    type Exit = AlwaysIret;
    type Tracking = T;
    const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

    #[inline(always)]
    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        frame.set_return_value(0);
        entry.into_irq_off()
    }

    fn user_exception(_frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        entry.into_irq_off()
    }

    fn user_interrupt(_frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        entry.into_irq_off()
    }

    fn kernel_exception(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }

    fn kernel_interrupt(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }

    fn paranoid(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }

    fn work(_frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        irq
    }

    fn refused(_frame: &mut TrapFrame, (): (), irq: IrqOff) -> IrqOff {
        irq
    }
}

/// The Rust half of the system-call stub.
fn rust_half<T: Tracking>() -> Vec<Instruction> {
    let half: unsafe extern "sysv64" fn(*mut TrapFrame) -> Leave = system_call::<Nothing<T>>;
    #[expect(
        clippy::fn_to_numeric_cast_any,
        reason = "the address of the machine code is what is wanted"
    )]
    instructions_at(half as *const u8)
}

/// The instructions of `function`, up to its first RET.
fn instructions(function: extern "sysv64" fn()) -> Vec<Instruction> {
    #[expect(
        clippy::fn_to_numeric_cast_any,
        reason = "the address of the machine code is what is wanted"
    )]
    instructions_at(function as *const u8)
}

fn instructions_at(start: *const u8) -> Vec<Instruction> {
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

/// What the stub calls for a system call is, but for the two additions, the same with tracking and without.
#[test]
#[cfg_attr(debug_assertions, ignore = "needs an optimised build")]
fn the_stubs_rust_half_has_the_additions_and_nothing_else() {
    let is_addition = |instruction: &&Instruction| instruction.has_lock_prefix();
    let text = |instruction: &Instruction| format!("{:?} {:?}", instruction.code(), instruction.op0_kind());
    let off = rust_half::<NoTracking>();
    assert_eq!(off.iter().filter(is_addition).count(), 0);
    assert!(
        off.iter()
            .all(|instruction| instruction.memory_displacement64() != Layout::OFFSET as u64)
    );
    let on = rust_half::<Tracked<Cpu>>();
    assert_eq!(on.iter().filter(is_addition).count(), 2);
    let rest: Vec<_> = on
        .iter()
        .filter(|instruction| !is_addition(instruction))
        .map(text)
        .collect();
    assert_eq!(rest, off.iter().map(text).collect::<Vec<_>>());
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
