//! The user pages' unwind information, applied: a breakpoint at each instruction of a page that a program calls, and the caller's
//! registers found again from the bytes in the program's memory and from what the program has there.
//!
//! TCG and Bochs, models of both vendors: SYSENTER on Intel's, 32-bit SYSCALL on AMD's, the others on all. The reader of the
//! information is independent of the crate that writes it.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

#[path = "process/program.rs"]
#[expect(dead_code, reason = "its programs are whole ones")]
mod program;

use core::arch::asm;
use core::cell::UnsafeCell;

use entry_core::TrapFrame;
use entry_core::cpu::{CpuFeatures, Vendor};
use entry_core::vector::Vector;
use entry_sysenter::user_page::{Entry32, Entry64, UserPage};
use example_os::memory::layout::CALL_PAGE_32;
use example_os::memory::user::copy_from_user;
use example_os::process::WaitStatus;
use example_os::process::signal::Signal;
use example_os::{entry, skip};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, ReaderOffset, Register, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow,
};
use program::{CODE, Machine, STACK_TOP, program};

const SIGILL: u8 = 4;

/// Asked of CPUID, not of the kernel under test.
fn is_intel() -> bool {
    CpuFeatures::detect().vendor == Vendor::Intel
}

/// Room for the rules of a page, without a heap.
struct OnStack;

impl<T: ReaderOffset> UnwindContextStorage<T> for OnStack {
    type Rules = [(Register, RegisterRule<T>); 8];
    type Stack = [UnwindTableRow<T, Self>; 2];
}

/// Registers by their DWARF numbers, and the return address behind those of 64-bit code.
type Registers = [u64; 17];
/// Bytes that hold any of the pages.
const PAGE_BYTES: usize = 128;

/// A call of a page.
#[derive(Debug)]
struct Call {
    page: u64,
    is_64_bit: bool,
    /// Offsets of the page's instructions.
    instructions: &'static [u64],
    /// How many of them have been looked at.
    seen: usize,
    /// The caller's stack pointer before the call, and the address behind it.
    stack_pointer: u64,
    return_address: u64,
    /// What the caller has, and which of it counts.
    registers: Registers,
    kept: &'static [u16],
}

/// The call under way.
struct UnderWay(UnsafeCell<Option<Call>>);

// SAFETY: there is one CPU; the hook changes it with interrupts off, and the test reads while no program runs.
unsafe impl Sync for UnderWay {}

static CALL: UnderWay = UnderWay(UnsafeCell::new(None));

/// The registers of a frame, in DWARF's order.
const fn registers(frame: &TrapFrame, is_64_bit: bool) -> Registers {
    if is_64_bit {
        return [
            frame.rax(),
            frame.rdx(),
            frame.rcx(),
            frame.rbx(),
            frame.rsi(),
            frame.rdi(),
            frame.rbp(),
            frame.rsp(),
            frame.r8(),
            frame.r9(),
            frame.r10(),
            frame.r11(),
            frame.r12(),
            frame.r13(),
            frame.r14(),
            frame.r15(),
            frame.rip(),
        ];
    }
    let mut all = [0; 17];
    let low = [
        frame.rax(),
        frame.rcx(),
        frame.rdx(),
        frame.rbx(),
        frame.rsp(),
        frame.rbp(),
        frame.rsi(),
        frame.rdi(),
        frame.rip(),
    ];
    let mut number = 0;
    while number < low.len() {
        all[number] = low[number] & 0xffff_ffff;
        number += 1;
    }
    all
}

/// One step of an unwinder: the CFA, and the caller's registers and return address.
fn unwind(page: u64, is_64_bit: bool, rip: u64, now: &Registers) -> (u64, Registers, u64) {
    let (word_bytes, return_column) = if is_64_bit { (8, Register(16)) } else { (4, Register(8)) };
    let mut bytes = [0; PAGE_BYTES];
    copy_from_user(&mut bytes, page).unwrap();
    let mut section = EhFrame::new(&bytes[UserPage::EH_FRAME..], LittleEndian);
    section.set_address_size(word_bytes);
    let bases = BaseAddresses::default()
        .set_text(page)
        .set_eh_frame(page + UserPage::EH_FRAME as u64);
    let mut context = UnwindContext::<_, OnStack>::new_in();
    let row = section
        .unwind_info_for_address(&bases, &mut context, rip, EhFrame::cie_from_offset)
        .unwrap();
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
        panic!("{:?}", row.cfa());
    };
    let cfa = now[usize::from(register.0)].wrapping_add_signed(offset);
    let word_at = |address: u64| {
        let mut word = [0; 8];
        copy_from_user(&mut word[..usize::from(word_bytes)], address).unwrap();
        u64::from_le_bytes(word)
    };
    let find = |column: Register| match row.register(column) {
        RegisterRule::Undefined | RegisterRule::SameValue => now[usize::from(column.0)],
        RegisterRule::Offset(offset) => word_at(cfa.wrapping_add_signed(offset)),
        rule => panic!("{column:?} {rule:?}"),
    };
    let mut caller = [0; 17];
    for (number, value) in (0..).zip(&mut caller) {
        *value = find(Register(number));
    }
    (cfa, caller, find(return_column))
}

/// Lets #DB come before the instruction at `address`, or never.
fn break_at(address: Option<u64>) {
    const OFF: u64 = 0x400;
    let enabled = OFF | if address.is_some() { 2 } else { 0 };
    // SAFETY: the kernel may write debug registers; the hook expects #DB.
    unsafe {
        asm!(
            "mov dr7, {off}", "mov dr0, {address}", "mov dr7, {enabled}",
            off = in(reg) OFF, address = in(reg) address.unwrap_or_default(), enabled = in(reg) enabled,
        );
    }
}

/// Unwinds from the breakpoint, compares, and goes to the next one.
fn look(frame: &mut TrapFrame) -> bool {
    if Vector(frame.vector()) != Vector::DEBUG || !frame.is_user() {
        return false;
    }
    // SAFETY: see `UnderWay`.
    let call = unsafe { (*CALL.0.get()).as_mut() }.unwrap();
    assert_eq!(frame.rip(), call.page + call.instructions[call.seen]);
    let now = registers(frame, call.is_64_bit);
    let (cfa, caller, return_address) = unwind(call.page, call.is_64_bit, frame.rip(), &now);
    // What the ABIs define it as.
    assert_eq!(cfa, call.stack_pointer, "{:#x}", frame.rip());
    assert_eq!(return_address, call.return_address, "{:#x}", frame.rip());
    for &number in call.kept {
        let index = usize::from(number);
        assert_eq!(
            caller[index],
            call.registers[index],
            "register {number} at {:#x}",
            frame.rip()
        );
    }
    call.seen += 1;
    break_at(call.instructions.get(call.seen).map(|offset| call.page + offset));
    true
}

/// Where the program lies; before it there is room for a page.
const PROGRAM: u64 = CODE + 0x400;

/// Number of `getpid` in 64-bit code.
const GETPID: u64 = 39;
/// The same in 32-bit code.
const GETPID_32: u64 = 20;

/// Calls a page, and looks from each of its instructions.
fn call(machine: &mut Machine, bits: u32, content: Option<UserPage>, instructions: &'static [u64]) {
    let is_64_bit = bits == 64;
    let page = content.map_or(CALL_PAGE_32, |_| CODE);
    let (program, mut frame) = if is_64_bit {
        (program!("call rbx", "ud2"), entry::first_frame(PROGRAM, STACK_TOP))
    } else {
        (
            program!(".code32", "call ebx", "ud2", ".code64"),
            entry::first_frame_32(PROGRAM, STACK_TOP),
        )
    };
    frame.set_rax(if is_64_bit { GETPID } else { GETPID_32 });
    frame.set_rbx(page);
    for (number, set) in (1..).zip([
        TrapFrame::set_rcx,
        TrapFrame::set_rdx,
        TrapFrame::set_rbp,
        TrapFrame::set_rsi,
        TrapFrame::set_rdi,
        TrapFrame::set_r8,
        TrapFrame::set_r9,
        TrapFrame::set_r10,
        TrapFrame::set_r11,
        TrapFrame::set_r12,
        TrapFrame::set_r13,
        TrapFrame::set_r14,
        TrapFrame::set_r15,
    ]) {
        set(&mut frame, 0x0101_0101_0101_0101 * number);
    }
    let mut code = [0xcc; 0x400 + 16];
    if let Some(content) = content {
        code[..content.bytes().len()].copy_from_slice(content.bytes());
    }
    code[0x400..][..program.len()].copy_from_slice(program);
    let call = Call {
        page,
        is_64_bit,
        instructions,
        seen: 0,
        stack_pointer: STACK_TOP,
        return_address: PROGRAM + program.len() as u64 - 2,
        registers: registers(&frame, is_64_bit),
        kept: if is_64_bit {
            // All but RAX, and RCX and R11, which the contract gives away.
            &[1, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15]
        } else {
            // All but EAX and ESP.
            &[1, 2, 3, 5, 6, 7]
        },
    };
    // SAFETY: see `UnderWay`.
    unsafe { *CALL.0.get() = Some(call) };
    entry::set_kernel_hook(Some(look));
    break_at(Some(page + instructions[0]));
    let pid = machine.start_at(CODE, &code, &frame);
    let status = machine.finish(pid);
    break_at(None);
    entry::set_kernel_hook(None);
    assert_eq!(status, Some(WaitStatus::killed(Signal::new(SIGILL).unwrap())));
    // SAFETY: see `UnderWay`.
    let call = unsafe { (*CALL.0.get()).take() }.unwrap();
    assert_eq!(call.seen, instructions.len());
}

example_os::tests! { Machine;
    fn caller_is_found_from_each_instruction_of_the_64_bit_page_with_syscall(machine) {
        call(machine, 64, Some(UserPage::for_64_bit_code(Entry64::Syscall)), &[0, 2]);
    }

    fn caller_is_found_from_each_instruction_of_the_64_bit_page_with_sysenter(machine) {
        if !is_intel() {
            skip!("this CPU has no SYSENTER in long mode");
        }
        call(machine, 64, Some(UserPage::for_64_bit_code(Entry64::Sysenter)), &[0, 3, 10, 12]);
    }

    // Three pushes, a move, SYSENTER or SYSCALL, three pops, a return: the page of the kernel's choice, where it has mapped it.
    fn caller_is_found_from_each_instruction_of_the_32_bit_page_of_this_cpu(machine) {
        call(machine, 32, None, &[0, 1, 2, 3, 5, 7, 8, 9, 10]);
    }

    fn caller_is_found_from_each_instruction_of_the_32_bit_page_with_int80(machine) {
        call(machine, 32, Some(UserPage::for_32_bit_code(Entry32::Int80)), &[0, 2]);
    }
}
