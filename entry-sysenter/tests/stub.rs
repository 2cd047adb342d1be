//! The entry stubs of this test executable, read by an independent disassembler, and run at CPL 3 as far as that goes.
//!
//! Only SWAPGS and CLAC are privileged. A stub for [`ReadySwapped`] without SMAP has neither, so it runs here from its first
//! instruction to the exit; its kernel is a handler that notes the flags it was called with, its exit gives the frame
//! to the test. TF is set too: the traps arrive as SIGTRAP, and each of them has to be in a window. (Linux' return from a
//! signal clears NT, so NT and TF together show less.)
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::arch::{asm, naked_asm};
use core::convert::Infallible;
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use entry_core::kernel::{Baseline, NoTracking, Options, WithSmap};
use entry_core::rflags::Rflags;
use entry_core::{EntryKind, Exit, IrqOff, Kernel, Leave, PerCpuHeader, SegmentLayout, TrapFrame, UserEntry};
use entry_sysenter::arrival::{Arrival, AtOffset, EntryAddress, OnEntryStack, Ready, ReadySwapped};
use entry_sysenter::error::BadStackArgument;
use entry_sysenter::stub::{self, Arguments32, Compat};
use entry_sysenter::sysexit::{sysexit32_exit, sysexit64_exit};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::{Object, ObjectSymbol};

/// What GS points at: the header, and words of this test.
#[repr(C)]
struct PerCpu {
    header: PerCpuHeader,
    landing: AtomicU64,
    saved_rsp: AtomicU64,
}

static PER_CPU: PerCpu = PerCpu {
    header: PerCpuHeader::new(),
    landing: AtomicU64::new(0),
    saved_rsp: AtomicU64::new(0),
};

struct TestKernel;

/// RFLAGS in the handler.
static FLAGS_IN_HANDLER: AtomicU64 = AtomicU64::new(0);

const RESULT: u64 = 0x1234_5678_9abc_def0;

// SAFETY: for these tests alone: GS base is `PER_CPU`, and no interrupt or exception stub is installed anywhere.
unsafe impl Kernel for TestKernel {
    type Exit = TestExit;
    type Tracking = NoTracking;
    const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        let flags: u64;
        // A stub that lets the user's flags through is to fail the test, and not to end the test program.
        // SAFETY: the stack is as it was, and RFLAGS what the ABI promises.
        unsafe { asm!("pushfq", "pop {}", "push 2", "popfq", out(reg) flags) };
        FLAGS_IN_HANDLER.store(flags, Ordering::Relaxed);
        frame.set_return_value(RESULT);
        entry.into_irq_off()
    }

    fn user_exception(_: &mut TrapFrame, _: UserEntry) -> IrqOff {
        unreachable!("no vector is installed")
    }

    fn user_interrupt(_: &mut TrapFrame, _: UserEntry) -> IrqOff {
        unreachable!("no vector is installed")
    }

    fn kernel_exception(_: &mut TrapFrame, _: IrqOff) -> IrqOff {
        unreachable!("no vector is installed")
    }

    fn kernel_interrupt(_: &mut TrapFrame, _: IrqOff) -> IrqOff {
        unreachable!("no vector is installed")
    }

    fn paranoid(_: &mut TrapFrame, _: IrqOff) -> IrqOff {
        unreachable!("no vector is installed")
    }

    fn work(_: &mut TrapFrame, _: IrqOff) -> IrqOff {
        unreachable!("no work is pending")
    }

    fn refused(_: &mut TrapFrame, refusal: Infallible, _: IrqOff) -> IrqOff {
        match refusal {}
    }
}

// SAFETY: the landing word is in `PER_CPU`, and set by the test.
unsafe impl Compat for TestKernel {
    const LANDING: usize = offset_of!(PerCpu, landing);
}

/// Gives the frame to `enter`'s caller.
struct TestExit;

// SAFETY: there is no user mode to leave for.
unsafe impl Exit for TestExit {
    type Refusal = Infallible;

    fn choose_plain(_: &TrapFrame, _: &IrqOff) -> Option<Leave> {
        Some(Leave::Iret)
    }

    fn choose(_: &TrapFrame, _: &IrqOff) -> Result<Leave, Infallible> {
        Ok(Leave::Iret)
    }

    #[unsafe(naked)]
    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        naked_asm!(
            "mov rax, rsp",
            "mov rsp, gs:[{saved}]",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbp",
            "pop rbx",
            "ret",
            saved = const offset_of!(PerCpu, saved_rsp),
        )
    }

    #[unsafe(naked)]
    unsafe extern "sysv64" fn leave_by_iret<O: Options>() -> ! {
        naked_asm!("ud2")
    }
}

/// RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8 to R15.
type Registers = [u64; 15];

/// Enters the stub at `stub` as SYSENTER does, with these registers and flags, on the stack `stack`. Returns the frame.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter(
    _stub: u64,
    _registers: *const Registers,
    _stack: *mut u8,
    _flags: u64,
) -> *const TrapFrame {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov gs:[{saved}], rsp",
        "mov rsp, rdx",
        "push rdi",
        "push rcx",
        "mov rax, [rsi]",
        "mov rbx, [rsi + 8]",
        "mov rcx, [rsi + 16]",
        "mov rdx, [rsi + 24]",
        "mov rdi, [rsi + 40]",
        "mov rbp, [rsi + 48]",
        "mov r8, [rsi + 56]",
        "mov r9, [rsi + 64]",
        "mov r10, [rsi + 72]",
        "mov r11, [rsi + 80]",
        "mov r12, [rsi + 88]",
        "mov r13, [rsi + 96]",
        "mov r14, [rsi + 104]",
        "mov r15, [rsi + 112]",
        "mov rsi, [rsi + 32]",
        "popfq",
        "ret",
        saved = const offset_of!(PerCpu, saved_rsp),
    )
}

#[repr(C, align(16))]
struct Stack([u8; 0x1_0000]);

/// One test at a time uses `PER_CPU` and the signal handler.
static CPU: Mutex<()> = Mutex::new(());

fn this_cpu() -> MutexGuard<'static, ()> {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    let guard = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: GS base of this thread is nobody else's on x86-64 Linux: thread-local storage uses FS.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, core::ptr::from_ref(&PER_CPU)) };
    assert_eq!(result, 0);
    guard
}

fn run(entry: EntryAddress<ReadySwapped>, registers: &Registers, flags: u64) -> (TrapFrame, u64) {
    let mut stack = Box::new(Stack([0x5a; _]));
    let top = stack.0.as_mut_ptr_range().end;
    // SAFETY: the stub finds kernel GS and a stack of its own, as `ReadySwapped` says; `TestExit` comes back and restores the
    // registers that a caller may rely on.
    let frame = unsafe { enter(entry.get(), registers, top, flags) };
    // The frame is the topmost thing on the stack.
    assert_eq!(frame.addr() + TrapFrame::SIZE, top.addr());
    // SAFETY: the frame lies on `stack`, which is still there.
    let frame = unsafe { (*frame).clone() };
    (frame, FLAGS_IN_HANDLER.load(Ordering::Relaxed))
}

/// CF, PF, AF, ZF, SF and OF, which nothing in a stub may change before it has saved them.
const ARITHMETIC: u64 = Rflags::ARITHMETIC.bits();
const IF: u64 = 1 << 9;
const TF: u64 = 1 << 8;
const DF: u64 = 1 << 10;
const IOPL: u64 = 3 << 12;
const NT: u64 = 1 << 14;
const AC: u64 = 1 << 18;

/// TF, DF, NT and AC, alone and together. IOPL can't be set at CPL 3.
fn flag_combinations() -> impl Iterator<Item = u64> {
    (0..16u64).map(|bits| {
        [TF, DF, NT, AC]
            .into_iter()
            .enumerate()
            .filter(|(i, _)| bits & 1 << i != 0)
            .map(|(_, flag)| flag)
            .sum()
    })
}

const REGISTERS: Registers = [
    0xaaaa_0001_0000_0027,
    0xbbbb_0002_0000_0b0b,
    0xcccc_0003_7fff_c0c0,
    0xdddd_0004_0000_0d0d,
    0x5151_0005_0000_0515,
    0xd1d1_0006_0000_0d1d,
    0xb9b9_0007_ffff_b0b0,
    0x0808_0008_0000_0808,
    0x0909_0009_0000_0909,
    0x1010_000a_0000_1010,
    0x1111_000b_0040_1000,
    0x1212_000c_0000_1212,
    0x1313_000d_0000_1313,
    0x1414_000e_0000_1414,
    0x1515_000f_0000_1515,
];

#[test]
fn flags_of_64_bit_callers_never_reach_the_handler() {
    let _cpu = this_cpu();
    PER_CPU.landing.store(0, Ordering::Relaxed);
    trap::install();
    for entry in [
        stub::entry64::<TestKernel, _, Baseline>(),
        stub::entry::<TestKernel, _, Baseline>(),
    ] {
        for (flags, arithmetic) in flag_combinations().flat_map(|flags| [(flags, 0), (flags, ARITHMETIC)]) {
            trap::reset();
            let kept = if flags & TF == 0 {
                TF | DF | NT | AC | IF
            } else {
                TF | DF | AC | IF
            };
            let (frame, in_handler) = run(entry, &REGISTERS, flags | arithmetic | 1 << 1);
            assert_eq!(in_handler & (TF | DF | NT | AC | IOPL), 0, "{flags:#x}");
            assert_eq!(frame.rflags() & kept, flags & kept | IF, "{flags:#x}");
            assert_eq!(frame.rflags() & ARITHMETIC, arithmetic, "{flags:#x}");
            assert_eq!(trap::count() > 0, flags & TF != 0, "{flags:#x}");
            assert_eq!(trap::outside_windows(), 0, "{flags:#x}");
        }
    }
}

#[test]
fn flags_of_32_bit_callers_never_reach_the_handler() {
    let _cpu = this_cpu();
    PER_CPU.landing.store(0xf7f0_0010, Ordering::Relaxed);
    trap::install();
    for entry in [
        stub::entry32::<TestKernel, _, Baseline>(),
        stub::entry::<TestKernel, _, Baseline>(),
    ] {
        for (flags, arithmetic) in flag_combinations().flat_map(|flags| [(flags, 0), (flags, ARITHMETIC)]) {
            trap::reset();
            let kept = if flags & TF == 0 {
                TF | DF | NT | AC | IF
            } else {
                TF | DF | AC | IF
            };
            let (frame, in_handler) = run(entry, &REGISTERS, flags | arithmetic | 1 << 1);
            assert_eq!(in_handler & (TF | DF | NT | AC | IOPL), 0, "{flags:#x}");
            assert_eq!(frame.rflags() & kept, flags & kept | IF, "{flags:#x}");
            assert_eq!(frame.rflags() & ARITHMETIC, arithmetic, "{flags:#x}");
            assert_eq!(trap::count() > 0, flags & TF != 0, "{flags:#x}");
            assert_eq!(trap::outside_windows(), 0, "{flags:#x}");
        }
    }
}

#[test]
fn frame_of_a_64_bit_caller_follows_the_contract() {
    let _cpu = this_cpu();
    PER_CPU.landing.store(0, Ordering::Relaxed);
    for entry in [
        stub::entry64::<TestKernel, _, Baseline>(),
        stub::entry::<TestKernel, _, Baseline>(),
    ] {
        let (frame, _) = run(entry, &REGISTERS, 1 << 1);
        let [rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15] = REGISTERS;
        assert_eq!(
            (frame.entry_kind(), frame.is_modified()),
            (Some(EntryKind::Sysenter64), false)
        );
        assert_eq!((frame.original_rax(), frame.rax()), (rax, RESULT));
        assert_eq!((frame.cs(), frame.ss()), (0x2b, 0x23));
        assert_eq!((frame.rip(), frame.rsp()), (r11, rcx));
        assert_eq!(frame.arguments(), [rdi, rsi, rdx, r10, r8, r9]);
        // What a restart reads again is as it was.
        assert_eq!((frame.rcx(), frame.r11()), (rcx, r11));
        assert_eq!([frame.rbx(), frame.rbp()], [rbx, rbp]);
        assert_eq!(
            [frame.r12(), frame.r13(), frame.r14(), frame.r15()],
            [r12, r13, r14, r15]
        );
    }
}

#[test]
fn frame_of_a_32_bit_caller_follows_the_contract_and_has_nothing_above_32_bits_that_matters() {
    let _cpu = this_cpu();
    PER_CPU.landing.store(0xf7f0_0010, Ordering::Relaxed);
    for entry in [
        stub::entry32::<TestKernel, _, Baseline>(),
        stub::entry::<TestKernel, _, Baseline>(),
    ] {
        let (frame, _) = run(entry, &REGISTERS, 1 << 1);
        assert_eq!(
            (frame.entry_kind(), frame.is_modified()),
            (Some(EntryKind::Sysenter32), false)
        );
        assert_eq!((frame.original_rax(), frame.rax()), (0x27, RESULT));
        assert_eq!((frame.cs(), frame.ss()), (0x1b, 0x23));
        assert_eq!((frame.rip(), frame.rsp()), (0xf7f0_0010, 0xffff_b0b0));
        let high = [
            frame.r8(),
            frame.r9(),
            frame.r10(),
            frame.r11(),
            frame.r12(),
            frame.r13(),
            frame.r14(),
            frame.r15(),
        ];
        assert_eq!(high, [0; 8]);
        let arguments = Arguments32::of(&frame);
        assert_eq!(arguments.number(), 0x27);
        assert_eq!(arguments.first_five(), [0x0b0b, 0x7fff_c0c0, 0x0d0d, 0x0515, 0x0d1d]);
        assert_eq!(
            arguments.sixth(|address| (address == 0xffff_b0b0).then_some(66)),
            Ok(66)
        );
        assert_eq!(arguments.sixth(|_| None), Err(BadStackArgument { stack: 0xffff_b0b0 }));
    }
}

#[test]
fn sixth_argument_may_not_run_over_the_end_of_the_address_space() {
    let _cpu = this_cpu();
    PER_CPU.landing.store(0xf7f0_0010, Ordering::Relaxed);
    for back in 1..=8u32 {
        let stack = 0u32.wrapping_sub(back);
        let mut registers = REGISTERS;
        registers[6] = stack.into();
        let (frame, _) = run(stub::entry32::<TestKernel, _, Baseline>(), &registers, 1 << 1);
        let sixth = Arguments32::of(&frame).sixth(|_| Some(6));
        assert_eq!(
            sixth,
            if back < 4 {
                Err(BadStackArgument { stack })
            } else {
                Ok(6)
            }
        );
    }
}

/// SIGTRAP as the test's #DB: counts single steps, and those for which [`stub::is_user_step`] says no.
mod trap {
    use super::*;

    static COUNT: AtomicU64 = AtomicU64::new(0);
    static OUTSIDE: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn install() {
        static ALTERNATE: Mutex<Option<Box<Stack>>> = Mutex::new(None);
        let mut alternate = ALTERNATE.lock().unwrap();
        let stack = alternate.insert(Box::new(Stack([0; _])));
        let stack = libc::stack_t {
            ss_sp: stack.0.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: stack.0.len(),
        };
        // SAFETY: the memory lives until another thread's stack takes its place, when this test is over.
        let result = unsafe { libc::sigaltstack(&raw const stack, null_mut()) };
        assert_eq!(result, 0);
        // SAFETY: an action of zeros is a valid one.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        #[expect(clippy::fn_to_numeric_cast_any, reason = "libc's type for a handler")]
        let handler = (on_trap as *const ()).addr();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO wants and calls nothing that isn't async-signal-safe.
        let result = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, null_mut()) };
        assert_eq!(result, 0);
    }

    pub(crate) fn reset() {
        COUNT.store(0, Ordering::Relaxed);
        OUTSIDE.store(0, Ordering::Relaxed);
    }

    pub(crate) fn count() -> u64 {
        COUNT.load(Ordering::Relaxed)
    }

    pub(crate) fn outside_windows() -> u64 {
        OUTSIDE.load(Ordering::Relaxed)
    }

    extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // The user's AC and NT are still there: compiled code may access memory that is not aligned.
        // SAFETY: the stack is as it was, and RFLAGS what the ABI promises.
        unsafe { asm!("push 2", "popfq") };
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: SA_SIGINFO's third argument.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let rip = registers[usize::try_from(libc::REG_RIP).unwrap()].cast_unsigned();
        COUNT.fetch_add(1, Ordering::Relaxed);
        // The RET of `enter` is the first instruction that traps; its trap is reported at the stub.
        if !stub::is_user_step(rip) {
            OUTSIDE.fetch_add(1, Ordering::Relaxed);
            // The test has failed; without this it would take hours to say so.
            registers[usize::try_from(libc::REG_EFL).unwrap()] &= !TF.cast_signed();
        }
    }
}

/// The instructions of the stub, from the symbol table's size and this process's own memory.
fn disassemble(address: u64) -> Vec<Instruction> {
    let file = fs::read("/proc/self/exe").unwrap();
    let elf = object::File::parse(&*file).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let exe = fs::read_link("/proc/self/exe").unwrap();
    let first = maps.lines().find(|line| line.ends_with(exe.to_str().unwrap())).unwrap();
    let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let bias = if elf.kind() == object::ObjectKind::Dynamic {
        base
    } else {
        0
    };
    let symbol = elf
        .symbols()
        .find(|symbol| symbol.address() + bias == address && symbol.size() > 0)
        .unwrap();
    let size = usize::try_from(symbol.size()).unwrap();
    let start = core::ptr::with_exposed_provenance(usize::try_from(address).unwrap());
    // SAFETY: the symbol's bytes are mapped, readable code of this executable.
    let bytes = unsafe { core::slice::from_raw_parts(start, size) };
    let decoded: Vec<_> = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE)
        .into_iter()
        .collect();
    assert!(decoded.iter().all(|instruction| !instruction.is_invalid()));
    decoded
}

fn position(code: &[Instruction], mnemonic: Mnemonic) -> Option<usize> {
    code.iter().position(|instruction| instruction.mnemonic() == mnemonic)
}

fn loads_rsp(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_r64_rm64 && instruction.op0_register() == Register::RSP
}

/// What is true of every stub: nothing touches the stack before it is the thread's and GS the kernel's, and nothing is
/// called before every flag of the user's is dealt with.
fn assert_order<A: Arrival>(entry: EntryAddress<A>, smap: bool, load: Option<(Register, Register, u64)>) {
    let code = disassemble(entry.get());
    let first_push = position(&code, Mnemonic::Push).unwrap();
    let swapgs: Vec<_> = code
        .iter()
        .enumerate()
        .filter(|(_, i)| i.mnemonic() == Mnemonic::Swapgs)
        .collect();
    assert_eq!(swapgs.len(), usize::from(A::STUB_SWAPS));
    assert!(swapgs.iter().all(|(at, _)| *at < first_push));
    for instruction in &code {
        let uses_gs = instruction.segment_prefix() == Register::GS;
        assert!(
            !uses_gs || swapgs.iter().all(|(_, swap)| swap.ip() < instruction.ip()),
            "{instruction}"
        );
    }

    let loads: Vec<_> = code.iter().filter(|i| loads_rsp(i)).collect();
    assert_eq!(loads.len(), usize::from(load.is_some()));
    if let Some((base, segment, displacement)) = load {
        let [load] = loads[..] else { panic!("one load") };
        assert!(load.ip() < code[first_push].ip());
        assert_eq!(load.memory_base(), base);
        assert_eq!(load.segment_prefix(), segment);
        assert_eq!(load.memory_displacement64(), displacement);
    }

    // Each call comes after a test of TF, IOPL, NT and AC in the saved flags, whose branch leads to POPF.
    let popfs: Vec<_> = code
        .iter()
        .enumerate()
        .filter(|(_, i)| i.mnemonic() == Mnemonic::Popfq)
        .collect();
    let calls: Vec<_> = code
        .iter()
        .enumerate()
        .filter(|(_, i)| i.mnemonic() == Mnemonic::Call)
        .collect();
    assert_eq!(calls.len(), popfs.len());
    let mut from = 0;
    for (call, _) in calls {
        let test = code[from..call]
            .iter()
            .position(|i| i.code() == Code::Test_rm32_imm32)
            .expect("flags are tested")
            + from;
        assert_eq!(u64::from(code[test].immediate32()), TF | IOPL | NT | AC);
        assert_eq!(
            (code[test].memory_base(), code[test].memory_displacement64()),
            (Register::RSP, 32)
        );
        // Before that, and after the flags are saved, DF and AC are cleared.
        let saved = from.max(position(&code, Mnemonic::Pushfq).expect("flags are saved"));
        let clears = |mnemonic| position(&code[saved..test], mnemonic).is_some();
        assert_eq!((clears(Mnemonic::Cld), clears(Mnemonic::Clac)), (true, smap));
        let branch = &code[test + 1];
        assert_eq!(branch.mnemonic(), Mnemonic::Jne);
        let repair = code.iter().position(|i| i.ip() == branch.near_branch_target()).unwrap();
        let [push, pop, back] = &code[repair..repair + 3] else {
            panic!("push, popf, jmp")
        };
        assert_eq!((push.op0_kind(), push.immediate(0)), (OpKind::Immediate8to64, 2));
        assert_eq!(pop.mnemonic(), Mnemonic::Popfq);
        assert_eq!(
            (back.mnemonic(), back.near_branch_target()),
            (Mnemonic::Jmp, branch.next_ip())
        );
        // Nothing in between enables interrupts, calls or returns.
        for instruction in &code[..=test] {
            let forbidden = [
                Mnemonic::Sti,
                Mnemonic::Iretq,
                Mnemonic::Ret,
                Mnemonic::Sysret,
                Mnemonic::Sysexit,
            ];
            assert!(!forbidden.contains(&instruction.mnemonic()), "{instruction}");
        }
        // The exit is jumped to, and speculation stops behind it.
        assert_eq!(code[call + 1].mnemonic(), Mnemonic::Jmp);
        assert_eq!(code[call + 2].mnemonic(), Mnemonic::Int3);
        from = call + 1;
    }

    // Up to the branch, and in the repair, TF may be set.
    let first_test = position(&code, Mnemonic::Test).unwrap();
    assert!(code[..=first_test + 1].iter().all(|i| stub::is_user_step(i.ip())));
    for (at, _) in popfs {
        assert!(code[at - 1..=at + 1].iter().all(|i| stub::is_user_step(i.ip())));
    }
    assert!(
        code.iter()
            .filter(|i| matches!(i.mnemonic(), Mnemonic::Call | Mnemonic::Int3))
            .all(|i| !stub::is_user_step(i.ip()))
    );
}

fn assert_order_of_all<A: Arrival>(load: Option<(Register, Register, u64)>) {
    assert_order(stub::entry64::<TestKernel, A, Baseline>(), false, load);
    assert_order(stub::entry32::<TestKernel, A, Baseline>(), false, load);
    assert_order(stub::entry::<TestKernel, A, Baseline>(), false, load);
    assert_order(stub::entry64::<TestKernel, A, WithSmap>(), true, load);
    assert_order(stub::entry32::<TestKernel, A, WithSmap>(), true, load);
    assert_order(stub::entry::<TestKernel, A, WithSmap>(), true, load);
}

#[test]
fn stub_behind_a_loaded_stack_swaps_and_loads_nothing() {
    assert_order_of_all::<Ready>(None);
}

#[test]
fn stub_behind_a_swapping_trampoline_does_not_swap() {
    assert_order_of_all::<ReadySwapped>(None);
}

#[test]
fn stub_on_the_stack_before_the_tss_loads_from_a_fixed_distance() {
    assert_order_of_all::<AtOffset<4>>(Some((Register::RSP, Register::None, 4)));
}

#[test]
fn stub_on_the_entry_stack_loads_from_the_header_after_it_swapped() {
    let field = PerCpuHeader::KERNEL_STACK as u64;
    assert_order_of_all::<OnEntryStack>(Some((Register::None, Register::GS, field)));
}

#[test]
fn clear_leaves_no_user_value_for_the_handler() {
    struct Clear;
    impl Options for Clear {
        const CLEAR: bool = true;
    }
    let code = disassemble(stub::entry64::<TestKernel, Ready, Clear>().get());
    let call = position(&code, Mnemonic::Call).unwrap();
    let zeroed: Vec<_> = code[..call]
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Xor)
        .map(|i| i.op0_register().full_register())
        .collect();
    let wanted = [
        Register::RAX,
        Register::RCX,
        Register::RDX,
        Register::RSI,
        Register::RBX,
        Register::RBP,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    assert_eq!(zeroed, wanted);
    let plain = disassemble(stub::entry64::<TestKernel, Ready, Baseline>().get());
    assert_eq!(position(&plain, Mnemonic::Xor), None);
}

#[test]
fn sysexit_follows_sti_which_follows_swapgs_which_follows_the_flags() {
    #[expect(clippy::fn_to_numeric_cast_any, reason = "the code at the address is read")]
    let exits = [
        (
            sysexit64_exit as *const () as u64,
            Code::Sysexitq,
            Register::RDX,
            Register::RCX,
        ),
        (
            sysexit32_exit as *const () as u64,
            Code::Sysexitd,
            Register::EDX,
            Register::ECX,
        ),
    ];
    for (address, sysexit, rip, rsp) in exits {
        let code = disassemble(address);
        let end = &code[code.len() - 6..];
        let codes: Vec<_> = end.iter().map(Instruction::code).collect();
        assert_eq!(
            codes,
            [
                Code::And_rm64_imm32,
                Code::Popfq,
                Code::Swapgs,
                Code::Sti,
                sysexit,
                Code::Int3
            ]
        );
        // IF is cleared in the image, so that nothing but STI's shadow separates it from user mode.
        assert_eq!((end[0].memory_base(), end[0].immediate(1)), (Register::RSP, !IF));
        // RIP and RSP are loaded, for 32-bit code with their upper halves zeroed, from the words that were checked.
        let loads = |register| {
            let mut loads = code
                .iter()
                .filter(|i| i.mnemonic() == Mnemonic::Mov && i.op0_register() == register);
            let load = loads.next().unwrap();
            assert!(loads.next().is_none());
            load.memory_displacement64()
        };
        let from_rcx = |offset| (offset - TrapFrame::RCX) as u64;
        assert_eq!(
            (loads(rip), loads(rsp)),
            (from_rcx(TrapFrame::RIP), from_rcx(TrapFrame::RSP))
        );
        // GS is the user's behind SWAPGS, up to SYSEXIT; nowhere else.
        for instruction in &code {
            let window = entry_core::windows::find(instruction.ip()).map_or(0, entry_core::windows::Window::flags);
            let user_gs = [Code::Sti, sysexit].contains(&instruction.code());
            assert_eq!(
                window,
                if user_gs {
                    entry_core::windows::flags::USER_GS
                } else {
                    0
                },
                "{instruction}"
            );
        }
    }
}
