//! `UserContext::run` on the host: the exit is one that never leaves, and plays a program and the stub of its event.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use core::arch::naked_asm;
use core::cell::{Cell, RefCell};

use entry_core::address::{UserLimit, Width};
use entry_core::kernel::{Baseline, Exit, Kernel, Leave, Options};
use entry_core::msr::Msr;
use entry_core::percpu::PerCpuHeader;
use entry_core::plan::Installed;
use entry_core::vector::Vector;
use entry_core::{EntryKind, IrqOff, NoTracking, SegmentLayout, TrapFrame, UserEntry};
use entry_sysret::context::{Events, RunKernel, RunStack, UserContext, UserEvent};
use entry_sysret::iret::{CodeSize, program_start};
use entry_sysret::{ExitWords, Refusal, RuleSet, decide};

const RULES: RuleSet = RuleSet::new(&SegmentLayout::NATURAL, UserLimit::HIGHEST_48, Width::Bits48);

/// `IA32_FS_BASE` and `IA32_KERNEL_GS_BASE`.
const FS_BASE: u32 = 0xc000_0100;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// What happens in user mode: what the program does to its registers, and the handler that its event leads to.
type Program = fn(&mut TrapFrame, UserEntry) -> IrqOff;

thread_local! {
    static PROGRAM: Cell<Program> = const { Cell::new(|_, _| unreachable!()) };
    /// Frames that user mode was entered with, and how.
    static ENTERED: RefCell<Vec<(TrapFrame, Leave, u64)>> = const { RefCell::new(Vec::new()) };
    /// Writes of MSRs.
    static WRITES: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

struct HostExit;

// SAFETY: `leave` does not leave.
unsafe impl Exit for HostExit {
    type Refusal = Refusal;

    fn choose_plain(_frame: &TrapFrame, _irq: &IrqOff) -> Option<Leave> {
        None
    }

    fn choose(frame: &TrapFrame, _irq: &IrqOff) -> Result<Leave, Refusal> {
        decide(&ExitWords::of(frame), &RULES)
    }

    #[unsafe(naked)]
    unsafe extern "sysv64" fn leave<O: Options>() -> ! {
        naked_asm!(
            "mov rdi, rsp",
            "mov esi, eax",
            "mov rbx, -1",
            "mov rbp, -1",
            "mov r12, -1",
            "mov r13, -1",
            "mov r14, -1",
            "mov r15, -1",
            "call {user}",
            user = sym user,
        )
    }

    unsafe extern "sysv64" fn leave_by_iret<O: Options>() -> ! {
        unreachable!("`leave` is what `run` jumps to")
    }
}

/// The program, and what its stub does.
unsafe extern "sysv64" fn user(frame: *mut TrapFrame, leave: Leave) -> ! {
    // SAFETY: `leave` gives the address of the frame at RSP.
    let frame = unsafe { &mut *frame };
    let address = core::ptr::from_ref(frame).addr() as u64;
    ENTERED.with_borrow_mut(|entered| entered.push((frame.clone(), leave, address)));
    // SAFETY: there are no interrupts here, and nobody looks at CS.
    let entry = unsafe { UserEntry::assume() };
    let _irq = PROGRAM.get()(frame, entry);
    unreachable!("a handler came back");
}

struct HostKernel;

/// Registers that note what is written, and hold what is said about them below.
#[derive(Default)]
struct Registers;

impl Msr for Registers {
    unsafe fn read(&mut self, number: u32) -> u64 {
        u64::from(number) << 8
    }

    unsafe fn write(&mut self, number: u32, value: u64) {
        WRITES.with_borrow_mut(|writes| writes.push((number, value)));
    }
}

// SAFETY: it has no CPU.
unsafe impl RunKernel for HostKernel {
    type Exit = HostExit;
    type Tracking = NoTracking;
    type Msrs = Registers;
    const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

    fn kernel_exception(_frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        unreachable!()
    }

    fn kernel_interrupt(_frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        unreachable!()
    }

    fn paranoid(_frame: &mut TrapFrame, _irq: IrqOff) -> IrqOff {
        unreachable!()
    }

    fn nested_paranoid(_frame: &TrapFrame) -> ! {
        unreachable!()
    }
}

type Stubs = Events<HostKernel>;

/// Gives this thread a header to reach through GS, with a stack of its own.
fn set_up() -> (&'static PerCpuHeader, &'static RunStack<65536>) {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    let header: &'static PerCpuHeader = Box::leak(Box::new(PerCpuHeader::new()));
    let stack: &'static RunStack<65536> = Box::leak(Box::new(RunStack::new()));
    header.bind();
    // SAFETY: it is this thread's.
    unsafe { header.set_kernel_stack(stack.top()) };
    // SAFETY: nothing else uses GS on Linux.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, core::ptr::from_ref(header)) };
    assert_eq!(result, 0);
    (header, stack)
}

fn context() -> UserContext {
    UserContext::new(program_start(&RULES, CodeSize::Bits64, 0x40_1000, 0x7000).unwrap())
}

fn run_with<O: Options>(context: &mut UserContext, program: Program) -> UserEvent {
    PROGRAM.set(program);
    // SAFETY: there are no interrupts here.
    let irq = unsafe { IrqOff::assume() };
    // SAFETY: no program runs.
    let installed = unsafe { Installed::assume() };
    // SAFETY: `set_up` has made header and stack; the exit enters nothing.
    let (event, _irq) = unsafe { context.run::<HostKernel, O>(irq, &installed) };
    event
}

fn run(context: &mut UserContext, program: Program) -> UserEvent {
    run_with::<Baseline>(context, program)
}

fn entries() -> usize {
    ENTERED.with_borrow(Vec::len)
}

fn writes() -> Vec<(u32, u64)> {
    WRITES.take()
}

/// Writes a word that has no setter, as a stub does.
const fn put(frame: &mut TrapFrame, offset: usize, value: u64) {
    let word = core::ptr::from_mut(frame).cast::<u64>().wrapping_add(offset / 8);
    // SAFETY: the frame is 22 words.
    unsafe { word.write(value) };
}

const fn fault(frame: &mut TrapFrame, kind: EntryKind, vector: Vector, code: u64) {
    put(frame, TrapFrame::KIND, kind.word(vector.0));
    put(frame, TrapFrame::CODE, code);
}

#[test]
fn each_event_comes_back_as_what_it_is() {
    set_up();
    let table: [(Program, UserEvent); 6] = [
        (Stubs::syscall, UserEvent::SystemCall),
        (
            |frame, entry| {
                fault(frame, EntryKind::Exception, Vector(6), 0);
                Stubs::user_exception(frame, entry)
            },
            UserEvent::Exception {
                vector: Vector(6),
                error_code: 0,
            },
        ),
        (
            |frame, entry| {
                fault(frame, EntryKind::Exception, Vector(14), 6);
                Stubs::user_page_fault(frame, 0x1234_5678, entry)
            },
            UserEvent::PageFault {
                address: 0x1234_5678,
                error_code: 6,
            },
        ),
        (
            |frame, entry| {
                fault(frame, EntryKind::Interrupt, Vector(0x40), 0);
                Stubs::user_interrupt(frame, entry)
            },
            UserEvent::Interrupt { vector: 0x40 },
        ),
        (
            |frame, entry| {
                fault(frame, EntryKind::IretFault, Vector(13), 0x48);
                Stubs::user_exception(frame, entry)
            },
            UserEvent::IretFault {
                vector: Vector(13),
                error_code: 0x48,
            },
        ),
        (
            |frame, entry| {
                fault(frame, EntryKind::IretFault, Vector(14), 0);
                Stubs::user_page_fault(frame, 0, entry)
            },
            UserEvent::IretFault {
                vector: Vector(14),
                error_code: 0,
            },
        ),
    ];
    for (program, event) in table {
        assert_eq!(run(&mut context(), program), event);
    }
    assert_eq!(entries(), 6);
}

#[test]
fn the_frame_is_copied_in_and_out_and_lies_at_the_top_of_the_run_stack() {
    let (_, stack) = set_up();
    let mut context = context();
    context.frame_mut().set_r15(15);
    let before = context.frame().clone();
    let event = run(&mut context, |frame, entry| {
        // Every word of it: the number that it is.
        for word in 0..TrapFrame::SIZE / 8 {
            put(frame, word * 8, 1000 + word as u64);
        }
        Stubs::syscall(frame, entry)
    });
    assert_eq!(event, UserEvent::SystemCall);
    let entered = ENTERED.take();
    assert_eq!(entered, [(before, Leave::Iret, stack.top() - TrapFrame::SIZE as u64)]);
    let frame = context.frame();
    assert_eq!(
        (frame.r15(), frame.rcx(), frame.rip(), frame.ss()),
        (1000, 1014, 1017, 1021)
    );
    assert_eq!((frame.kind_word(), frame.error_code(), frame.rsp()), (1015, 1016, 1020));
}

/// Calls `shim(context)` with known values in the registers that a callee keeps, and returns how many it did not keep.
#[unsafe(naked)]
unsafe extern "sysv64" fn count_lost(shim: extern "sysv64" fn(*mut UserContext), context: *mut UserContext) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rsp",
        "mov rbx, 11",
        "mov rbp, 22",
        "mov r12, 33",
        "mov r13, 44",
        "mov r14, 55",
        "mov r15, 66",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "xor ecx, ecx",
        "cmp rbx, 11",
        "setne cl",
        "add eax, ecx",
        "cmp rbp, 22",
        "setne cl",
        "add eax, ecx",
        "cmp r12, 33",
        "setne cl",
        "add eax, ecx",
        "cmp r13, 44",
        "setne cl",
        "add eax, ecx",
        "cmp r14, 55",
        "setne cl",
        "add eax, ecx",
        "cmp r15, 66",
        "setne cl",
        "add eax, ecx",
        "pop rdx",
        "sub rdx, rsp",
        "setne cl",
        "add eax, ecx",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

#[test]
fn the_callers_registers_and_stack_are_as_they_were() {
    extern "sysv64" fn shim(context: *mut UserContext) {
        // SAFETY: the test passes the address of its context.
        let event = run(unsafe { &mut *context }, Stubs::syscall);
        assert_eq!(event, UserEvent::SystemCall);
    }
    set_up();
    let mut context = context();
    // SAFETY: the shim returns, and keeps to the ABI if `run` does.
    let lost = unsafe { count_lost(shim, &raw mut context) };
    assert_eq!(lost, 0);
    assert_eq!(entries(), 1);
}

#[test]
fn work_comes_back_before_user_mode_is_entered() {
    let (header, _) = set_up();
    header.set_work_pending();
    let mut context = context();
    assert_eq!(run(&mut context, Stubs::syscall), UserEvent::Work);
    assert_eq!(entries(), 0);
    header.clear_work_pending();
    assert_eq!(run(&mut context, Stubs::syscall), UserEvent::SystemCall);
}

#[test]
fn work_that_an_nmi_leaves_comes_back() {
    set_up();
    // What the stub of NMI does when its handler has set the flag.
    let event = run(&mut context(), |frame, entry| Stubs::work(frame, entry.into_irq_off()));
    assert_eq!(event, UserEvent::Work);
    let event = run(&mut context(), |frame, entry| {
        let refusal = Refusal::UnknownEntryKind;
        Stubs::refused(frame, refusal, entry.into_irq_off())
    });
    assert_eq!(event, UserEvent::Refused(Refusal::UnknownEntryKind));
}

#[test]
fn a_refused_frame_comes_back_and_user_mode_is_not_entered() {
    set_up();
    let mut context = context();
    context.frame_mut().set_rip(0x8000_0000_0000);
    let refusal = Refusal::NonCanonicalRip { rip: 0x8000_0000_0000 };
    assert_eq!(run(&mut context, Stubs::syscall), UserEvent::Refused(refusal));
    assert_eq!(entries(), 0);
    assert!(writes().is_empty());
    context.frame_mut().set_rip(0x40_1000);
    assert_eq!(run(&mut context, Stubs::syscall), UserEvent::SystemCall);
}

#[test]
fn a_system_call_is_left_by_sysret_the_next_time() {
    set_up();
    let mut context = context();
    for _ in 0..2 {
        let event = run(&mut context, |frame, entry| {
            fault(frame, EntryKind::Syscall64, Vector(0), 39);
            Stubs::syscall(frame, entry)
        });
        assert_eq!(event, UserEvent::SystemCall);
    }
    let ways: Vec<Leave> = ENTERED.take().iter().map(|(_, leave, _)| *leave).collect();
    assert_eq!(ways, [Leave::Iret, Leave::Sysret]);
}

/// Both bases as they are written.
const fn loads(fs: u64, gs: u64) -> [(u32, u64); 2] {
    [(FS_BASE, fs), (KERNEL_GS_BASE, gs)]
}

#[test]
fn bases_are_written_when_others_are_loaded() {
    set_up();
    let (mut one, mut other) = (context(), context());
    one.set_fs_base(0x1000, &RULES).unwrap();
    one.set_gs_base(0x2000, &RULES).unwrap();
    let once = |context: &mut UserContext| {
        assert_eq!(run(context, Stubs::syscall), UserEvent::SystemCall);
        writes()
    };
    assert_eq!(once(&mut one), loads(0x1000, 0x2000));
    assert_eq!(once(&mut one), []);
    assert_eq!(once(&mut other), loads(0, 0));
    assert_eq!(once(&mut one), loads(0x1000, 0x2000));
    // Other bases, and the same ones set anew.
    one.set_fs_base(0x3000, &RULES).unwrap();
    assert_eq!(once(&mut one), loads(0x3000, 0x2000));
    one.set_gs_base(0x2000, &RULES).unwrap();
    assert_eq!(once(&mut one), loads(0x3000, 0x2000));
    // Contexts that have changed places in memory.
    core::mem::swap(&mut one, &mut other);
    assert_eq!(once(&mut one), loads(0, 0));
    assert_eq!(once(&mut other), loads(0x3000, 0x2000));
    // A copy of what is loaded.
    let mut copy = other.clone();
    assert_eq!(once(&mut copy), loads(0x3000, 0x2000));
    assert_eq!(once(&mut other), loads(0x3000, 0x2000));
}

#[test]
fn bases_are_loaded_on_each_cpu() {
    let mut context = context();
    context.set_fs_base(0x1000, &RULES).unwrap();
    for _ in 0..2 {
        set_up();
        assert_eq!(run(&mut context, Stubs::syscall), UserEvent::SystemCall);
        assert_eq!(writes(), loads(0x1000, 0));
        assert_eq!(run(&mut context, Stubs::syscall), UserEvent::SystemCall);
        assert_eq!(writes(), []);
    }
}

#[test]
fn bases_that_programs_write_are_read_back() {
    struct WithFsgsbase;

    impl Options for WithFsgsbase {
        const FSGSBASE: bool = true;
    }

    set_up();
    let mut context = context();
    assert_eq!(run(&mut context, Stubs::syscall), UserEvent::SystemCall);
    assert_eq!((context.fs_base(), context.gs_base()), (0, 0));
    assert_eq!(
        run_with::<WithFsgsbase>(&mut context, Stubs::syscall),
        UserEvent::SystemCall
    );
    // What `Registers` answers.
    assert_eq!(context.fs_base(), 0xc0_0001_0000);
    assert_eq!(context.gs_base(), 0xc0_0001_0200);
}

#[test]
fn bases_are_user_addresses() {
    let mut context = context();
    for base in [0x7fff_ffff_f000, 0x8000_0000_0000, 0xffff_8000_0000_0000] {
        assert!(context.set_fs_base(base, &RULES).is_err());
        assert!(context.set_gs_base(base, &RULES).is_err());
    }
    assert_eq!((context.fs_base(), context.gs_base()), (0, 0));
}

#[test]
fn events_say_what_they_are() {
    let texts = [
        (UserEvent::SystemCall, "system call"),
        (
            UserEvent::PageFault {
                address: 0x1000,
                error_code: 6,
            },
            "page fault at 0x1000, error code 0x6",
        ),
        (
            UserEvent::Refused(Refusal::KernelRip { rip: 1 << 63 }),
            "the exit refuses: rip 0x8000000000000000 is in the kernel's half",
        ),
    ];
    for (event, text) in texts {
        assert_eq!(event.to_string(), text);
    }
}
