//! This kernel behind the entry stubs: descriptor tables, MSRs, and what each kind of event leads to.
//!
//! [`install`] sets a CPU up; from then on everything arrives at [`OsKernel`]. System calls go to [`crate::syscall`],
//! page faults to the process's address space, everything else that a program does wrong ends it.
//!
//! Interrupts are on in system calls, between the completed frame and the exit work, in the idle thread, and in the lower
//! halves of interrupts; nowhere else.

pub mod compat;
mod exception;
mod interrupt;
pub(crate) mod options;
pub mod percpu;
pub(crate) mod sysenter;
pub mod variant;

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};

use entry_core::address::{UserLimit, Width};
use entry_core::cpu::CpuFeatures;
use entry_core::irqs_on::InterruptsOnEntry;
use entry_core::kernel::{Baseline, Options, WithSmap};
use entry_core::msr::{Cpu, Cstar, Fmask, FsBase, GsBase, KernelGsBase, Lstar, Register};
use entry_core::percpu::{EntryStack, IstStack};
use entry_core::plan::{EntryPoints, Installed, SyscallPlan};
use entry_core::rflags::FlagMask;
use entry_core::stub::{
    self, IrqsOnKernel, IrqsOnStubs, LeanKernel, ReturnToUser, StubTable, syscall_entry, syscall_entry_lean,
    syscall_floor,
};
use entry_core::tss::TaskStateSegment;
use entry_core::vector::{Idt, Ist, Vector};
use entry_core::{Exit, IrqOff, IrqOn, Kernel, NoTracking, SegmentLayout, Tracking, TrapFrame, UserEntry};
use entry_sysret::{RuleSet, Rules, SysretOrIret};
use x86_64::instructions::segmentation::{FS, GS, Segment};
use x86_64::structures::gdt::SegmentSelector;

use self::compat::{Kernel32, PrivilegedKernel32};
pub use self::exception::{KernelHook, set_kernel_hook, take_last_refusal};
pub(crate) use self::interrupt::EXPERIMENT_VECTOR;
pub use self::interrupt::{LowerHalf, set_lower_half};
pub use self::percpu::PerCpu;
use self::sysenter::{Callee64, Way};
use self::variant::Track;
use crate::boot;
use crate::device::{apic, pic};
use crate::experiment;
use crate::memory::kernel;
use crate::process::{self, WaitStatus, current, scheduler};
use crate::syscall;

/// The segment order of this kernel.
pub const LAYOUT: SegmentLayout = SegmentLayout::NATURAL;

/// The vector of the timer.
pub const TIMER_VECTOR: u8 = 0x40;

/// Timer interrupts are 10 ms apart on QEMU, whose APIC timer counts nanoseconds.
const TIMER_COUNT: u32 = 10_000_000;

/// Vectors of the legacy interrupt controllers' spurious interrupts, which may come although all lines are masked.
const LEGACY_SPURIOUS: [u8; 2] = [pic::BASE_VECTOR + 7, pic::BASE_VECTOR + 15];

const IST_BYTES: usize = 8192;

/// The entry stack holds a frame, and for a moment the handler of an IRET that faults.
const ENTRY_STACK_BYTES: usize = 8192;

// What lies in the section `.data.entry` is mapped for processes, too, that the kernel hides from.

#[unsafe(link_section = ".data.entry")]
static CPU0: Late<PerCpu> = Late(UnsafeCell::new(PerCpu::new()));
#[unsafe(link_section = ".data.entry")]
static GDT: Late<[u64; SegmentLayout::NATURAL_ENTRIES]> = Late(UnsafeCell::new([0; SegmentLayout::NATURAL_ENTRIES]));
#[unsafe(link_section = ".data.entry")]
static SPLIT_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
#[unsafe(link_section = ".data.entry")]
static SPLIT_WITH_PCID_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static GUARDED_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static RESTRICTED_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static NULL_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static IO_PRIVILEGE_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static IRQS_ON_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static TRACKED_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static OTHER_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static CODE32_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static NULL_CODE32_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));
static IO_CODE32_GATES: Late<Gates> = Late(UnsafeCell::new(Gates::EMPTY));

static INTERRUPT_STACK: IstStack<IST_BYTES> = IstStack::new();

#[unsafe(link_section = ".data.entry")]
static ENTRY_STACK: EntryStack<ENTRY_STACK_BYTES> = EntryStack::new();
#[unsafe(link_section = ".data.entry")]
static DEBUG_STACK: IstStack<IST_BYTES> = IstStack::new();
#[unsafe(link_section = ".data.entry")]
static NMI_STACK: IstStack<IST_BYTES> = IstStack::new();
#[unsafe(link_section = ".data.entry")]
static DOUBLE_FAULT_STACK: IstStack<IST_BYTES> = IstStack::new();
#[unsafe(link_section = ".data.entry")]
static MACHINE_CHECK_STACK: IstStack<IST_BYTES> = IstStack::new();

/// A table of vectors, and the registers of SYSCALL that change with it. `IA32_LSTAR` is not one of them: see [`SyscallEntry`].
struct Gates {
    idt: Idt,
    fmask: Fmask,
    cstar: Cstar,
}

impl Gates {
    const EMPTY: Self = Self {
        idt: Idt::EMPTY,
        fmask: Fmask::new(FlagMask::REQUIRED),
        cstar: Cstar::from_bits(0),
    };

    /// Those whose slots begin at `slots`, with this stub for SYSCALL from compatibility mode.
    fn new(slots: u64, syscall_compat: u64) -> Self {
        Self {
            idt: vectors(slots),
            cstar: Cstar::from_bits(syscall_compat),
            ..Self::EMPTY
        }
    }
}

/// A structure that the CPU reads, with addresses in it that are known only at run time: [`install`] fills it.
struct Late<T>(UnsafeCell<T>);

// SAFETY: `fill` is called once, before the CPU or anybody else uses the value; afterwards it is shared as `T` allows.
unsafe impl<T: Sync> Sync for Late<T> {}

impl<T> Late<T> {
    /// Lets `set` change the value, and returns it for good.
    ///
    /// # Safety
    ///
    /// 1. It is called once.
    unsafe fn fill(&'static self, set: impl FnOnce(&mut T)) -> &'static T {
        // SAFETY: condition 1: no other reference exists.
        set(unsafe { &mut *self.0.get() });
        // SAFETY: condition 1: the unique reference was the last one.
        unsafe { &*self.0.get() }
    }
}

/// What may be in a frame that leaves for user mode.
#[derive(Debug)]
pub struct UserRules;

impl Rules for UserRules {
    const RULES: RuleSet = RuleSet::new(&LAYOUT, UserLimit::HIGHEST_48, Width::Bits48);
}

/// As [`UserRules`], with leave for IOPL 3 and so for IF = 0.
#[derive(Debug)]
pub struct IoRules;

impl Rules for IoRules {
    const RULES: RuleSet = UserRules::RULES.with_io_privilege();
}

/// The kernel, as the stubs see it: `T` is told of the border to user mode, `R` is what may cross it. See [`variant`].
#[derive(Debug)]
pub struct OsKernel<T = NoTracking, R = UserRules>(PhantomData<(T, R)>);

// SAFETY: 1. `install` loads the GDT of `LAYOUT` and computes the MSRs from it. 2. `install` sets GS base to a bound
// header; the scheduler sets stack and RSP0 together at each switch. 3. `install` binds four stacks. 4. The target
// x86_64-unknown-none has neither a red zone nor SSE. 5. Boot sets all of CR4, and clears CET and FRED. 6. Frames are changed
// by fix-ups that the faulting code has announced, and by tests' hooks. 7. Nobody turns interrupts on but a lower
// half, which runs for interrupts outside windows alone. 8. Paranoid events are counted or ignored.
unsafe impl<T: Tracking, R: Rules> Kernel for OsKernel<T, R> {
    type Exit = SysretOrIret<R>;
    type Tracking = T;
    const LAYOUT: SegmentLayout = LAYOUT;

    #[inline(always)]
    fn syscall(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        let irq = entry.into_irq_off().enable();
        let (answer, irq) = syscall::dispatch(frame, irq);
        frame.set_return_value(answer.bits());
        irq.disable()
    }

    #[inline(always)]
    fn user_exception(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        exception::from_user(frame, entry.into_irq_off())
    }

    #[inline(always)]
    fn user_page_fault(frame: &mut TrapFrame, address: u64, entry: UserEntry) -> IrqOff {
        exception::page_fault(frame, address, entry.into_irq_off())
    }

    fn user_interrupt(frame: &mut TrapFrame, entry: UserEntry) -> IrqOff {
        interrupt::handle(frame, entry.into_irq_off())
    }

    fn kernel_exception(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        exception::from_kernel(frame, irq)
    }

    fn kernel_interrupt(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        interrupt::handle(frame, irq)
    }

    fn paranoid(frame: &mut TrapFrame, irq: IrqOff) -> IrqOff {
        exception::paranoid(frame, irq)
    }

    fn nested_paranoid(frame: &TrapFrame) -> ! {
        exception::nested_paranoid(frame)
    }

    fn work(frame: &mut TrapFrame, mut irq: IrqOff) -> IrqOff {
        if let Some(variant) = current().context().take_requested_variant() {
            // SAFETY: work is called with the frame at the top of the current process's stack; nothing is left to do here.
            unsafe { variant::change(variant, frame, irq) };
        }
        let needs_reschedule = PerCpu::current(&irq).take_work();
        if let Some(signal) = current().pending_signal() {
            process::exit(WaitStatus::killed(signal), irq);
        }
        if needs_reschedule {
            scheduler::schedule(&mut irq);
        }
        irq
    }

    #[cold]
    fn refused(frame: &mut TrapFrame, refusal: <Self::Exit as Exit>::Refusal, irq: IrqOff) -> IrqOff {
        exception::refused(frame, refusal, irq)
    }
}

impl IrqsOnKernel for OsKernel {
    #[inline(always)]
    fn syscall_irqs_on(frame: &mut TrapFrame, irq: IrqOn) -> IrqOn {
        let (answer, irq) = syscall::dispatch(frame, irq);
        frame.set_return_value(answer.bits());
        irq
    }

    fn window_interrupt(frame: &mut TrapFrame, irq: &IrqOff) {
        interrupt::handle_in_window(frame, irq);
    }
}

/// The tables of vectors there are. The CPU has that of the process that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Vectors {
    /// That of [`OsKernel`].
    Normal,
    /// That of an experiment whose exceptions and INT 0x80 do nothing.
    Null,
    /// That of [`OsKernel`] with tracking.
    Tracked,
    /// That of [`OsKernel`] for programs with IOPL 3.
    IoPrivilege,
    /// That of [`OsKernel`] with interrupts on at SYSCALL, which goes with a mask of its own.
    IrqsOn,
    /// That of [`OsKernel`] for processes that have 32-bit code.
    Code32,
    /// The same, of an experiment whose exceptions, INT 0x80 and SYSCALL from 32-bit code do nothing.
    NullCode32,
    /// That of [`OsKernel`] for processes that have 32-bit code and IOPL 3.
    IoCode32,
    /// That of [`OsKernel`] with [`options::Guarded`].
    Guarded,
    /// That of [`OsKernel`] with [`options::Restricted`].
    Restricted,
    /// That of [`OsKernel`] hidden from user mode.
    Split,
    /// The same with process-context identifiers.
    SplitWithPcid,
}

impl Vectors {
    /// The inverse of `self as u8`.
    #[inline(always)]
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Normal,
            1 => Self::Null,
            2 => Self::Tracked,
            3 => Self::IoPrivilege,
            4 => Self::IrqsOn,
            5 => Self::Code32,
            6 => Self::NullCode32,
            7 => Self::IoCode32,
            8 => Self::Guarded,
            9 => Self::Restricted,
            10 => Self::Split,
            _ => Self::SplitWithPcid,
        }
    }

    /// Whether the vectors of this number are those of a kernel that hides: in one comparison.
    #[inline(always)]
    pub(crate) const fn are_split(number: u8) -> bool {
        number >= Self::Split as u8
    }

    /// Whether the stubs of SYSENTER for 64-bit code go with them: neither tracked nor hidden.
    const fn go_with_sysenter(self) -> bool {
        matches!(self, Self::Normal | Self::Null)
    }

    /// Whether they are those of processes that have 32-bit code, and go with its stubs of SYSENTER.
    pub(crate) const fn allow_32_bit_code(self) -> bool {
        matches!(self, Self::Code32 | Self::NullCode32 | Self::IoCode32)
    }

    const fn gates(self) -> &'static Late<Gates> {
        match self {
            Self::Normal => &GATES,
            Self::Null => &NULL_GATES,
            Self::Tracked => &TRACKED_GATES,
            Self::Split => &SPLIT_GATES,
            Self::IoPrivilege => &IO_PRIVILEGE_GATES,
            Self::IrqsOn => &IRQS_ON_GATES,
            Self::Code32 => &CODE32_GATES,
            Self::NullCode32 => &NULL_CODE32_GATES,
            Self::IoCode32 => &IO_CODE32_GATES,
            Self::Guarded => &GUARDED_GATES,
            Self::Restricted => &RESTRICTED_GATES,
            Self::SplitWithPcid => &SPLIT_WITH_PCID_GATES,
        }
    }
}

/// What SYSCALL leads to, and the vectors that go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallEntry {
    address: u64,
    vectors: Vectors,
}

impl SyscallEntry {
    /// The stub of [`OsKernel`].
    #[must_use]
    pub fn normal() -> Self {
        Self::of::<OsKernel>()
    }

    /// The stub of another kernel for the same CPU set-up.
    #[must_use]
    pub(crate) fn of<K: Kernel>() -> Self {
        Self::untracked(stubs::<K>().syscall)
    }

    /// The stub of a kernel that hides from user mode.
    #[must_use]
    pub(crate) fn split<K: Kernel>() -> Self {
        const { assert!(!K::Tracking::ENABLED, "the vectors are not tracked") };
        Self::new(options::split::<K>().syscall, Vectors::Split)
    }

    /// What a process begins with: the stub of [`OsKernel`], hidden if [`set_hides_from_new_processes`] said so.
    #[must_use]
    pub(crate) fn first() -> Self {
        if HIDES.load(Ordering::Relaxed) {
            Self::split::<OsKernel>()
        } else {
            Self::normal()
        }
    }

    /// The stub of a kernel that is tracked.
    #[must_use]
    pub(crate) fn tracked<K: Kernel>() -> Self {
        const { assert!(K::Tracking::ENABLED, "the vectors are tracked") };
        Self::new(stubs::<K>().syscall, Vectors::Tracked)
    }

    /// The stub of a kernel that hides, with process-context identifiers.
    pub(crate) fn split_with_pcid() -> Self {
        Self::new(options::split_with_pcid().syscall, Vectors::SplitWithPcid)
    }

    /// The stub of a kernel with [`options::Guarded`].
    pub(crate) fn guarded<K: Kernel>() -> Self {
        Self::new(options::guarded::<K>().syscall, Vectors::Guarded)
    }

    /// The stub of the kernel with [`options::Restricted`].
    pub(crate) fn restricted() -> Self {
        Self::new(options::restricted().syscall, Vectors::Restricted)
    }

    /// The stub of a kernel with interrupts on.
    #[must_use]
    pub(crate) fn irqs_on<K: IrqsOnKernel>() -> Self {
        Self::new(irqs_on_stubs::<K>().syscall, Vectors::IrqsOn)
    }

    const fn untracked(address: u64) -> Self {
        Self::new(address, Vectors::Normal)
    }

    /// What was taken apart before.
    pub(crate) const fn new(address: u64, vectors: Vectors) -> Self {
        Self { address, vectors }
    }

    /// The stub with a lean frame. Neither it nor its exits have a place for CLAC, so it suits every CPU.
    #[must_use]
    pub(crate) fn lean<K: LeanKernel>() -> Self {
        Self::untracked(stub::address(syscall_entry_lean::<K, Baseline>))
    }

    /// The stub that zeroes registers. It suits every CPU, as above.
    #[must_use]
    pub(crate) fn clearing<K: Kernel>() -> Self {
        Self::untracked(stub::address(syscall_entry::<K, Clearing>))
    }

    /// The stub that calls nothing, for measuring.
    #[must_use]
    pub(crate) fn floor() -> Self {
        Self::untracked(stub::address(syscall_floor))
    }

    /// The value for `IA32_LSTAR`.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// The vectors that go with it.
    pub(crate) const fn vectors(self) -> Vectors {
        self.vectors
    }
}

/// [`Baseline`] with zeroed registers.
#[derive(Debug)]
struct Clearing;

impl Options for Clearing {
    const CLEAR: bool = true;
}

/// Whether the kernel hides from new processes.
static HIDES: AtomicBool = AtomicBool::new(false);

/// Whether processes that are made from now on get page tables without the kernel for their user mode. Those can't be
/// tracked.
pub fn set_hides_from_new_processes(hides: bool, _irq: &IrqOff) {
    kernel::stop_global_pages();
    HIDES.store(hides, Ordering::Relaxed);
}

/// The stubs of `K` that suit this CPU.
pub(crate) fn stubs<K: Kernel>() -> StubTable {
    let sets = [StubTable::of::<K, WithSmap>(), StubTable::of::<K, Baseline>()];
    *StubTable::select(&sets, &CpuFeatures::detect()).unwrap_or_else(|error| panic!("{error}"))
}

/// Marks the stack of NMIs as free, after a handler was left without its stub's IRET: NMIs stay blocked, and nothing is on
/// the stack. For the sweeps.
pub(crate) fn abandon_nmi(irq: &IrqOff) {
    let header = core::ptr::from_ref(PerCpu::current(irq).header());
    // SAFETY: per-CPU structures are statics; what ends is the claim to be on this CPU.
    let _top = NMI_STACK.bind(unsafe { &*header });
}

/// The stubs of `K` with interrupts on that suit this CPU.
fn irqs_on_stubs<K: IrqsOnKernel>() -> IrqsOnStubs {
    if boot::cpu::features().smap {
        IrqsOnStubs::of::<K, WithSmap>()
    } else {
        IrqsOnStubs::of::<K, Baseline>()
    }
}

/// The address of the first of the 256 slots that the IDT points at.
pub(crate) fn vector_stubs() -> u64 {
    stubs::<OsKernel>().vectors
}

/// The same with [`options::Guarded`].
pub(crate) fn guarded_vector_stubs() -> u64 {
    options::guarded::<OsKernel>().vectors
}

/// The same with [`options::Split`].
pub(crate) fn split_vector_stubs() -> u64 {
    options::split::<OsKernel>().vectors
}

/// The same with [`options::SplitWithPcid`].
pub(crate) fn split_with_pcid_vector_stubs() -> u64 {
    options::split_with_pcid().vectors
}

/// The same with interrupts on at SYSCALL.
pub(crate) fn irqs_on_vector_stubs() -> u64 {
    irqs_on_stubs::<OsKernel>().vectors
}

/// A frame for the first entry of a program.
#[must_use]
pub fn first_frame(rip: u64, rsp: u64) -> TrapFrame {
    /// Interrupts on; bit 1 is always 1.
    const RFLAGS: u64 = 0x202;
    let mut frame = TrapFrame::zeroed();
    frame.set_rip(rip);
    frame.set_cs(LAYOUT.user_code64().bits().into());
    frame.set_rflags(RFLAGS);
    frame.set_rsp(rsp);
    frame.set_ss(LAYOUT.user_data().bits().into());
    frame
}

/// The same for a program of 32-bit code, whose process then has the stubs for it.
#[must_use]
pub fn first_frame_32(rip: u64, rsp: u64) -> TrapFrame {
    let mut frame = first_frame(rip, rsp);
    frame.set_cs(code32());
    frame
}

/// The word that CS holds in 32-bit code.
pub(crate) const fn code32() -> u64 {
    // The first selector of SYSRET's block.
    LAYOUT.sysret_base().bits() as u64
}

/// Goes to user mode from a process's first switch.
///
/// # Safety
///
/// 1. `frame` is the frame at the top of the current process's kernel stack, and nothing else refers to it.
/// 2. Interrupts are off.
pub(crate) unsafe extern "sysv64" fn leave_first_frame(frame: *mut TrapFrame) -> ! {
    // SAFETY: condition 2.
    let irq = unsafe { IrqOff::assume() };
    let leave = variant::return_of(current().context().variant());
    // SAFETY: 1. condition 1. 2. The scheduler runs with kernel GS.
    unsafe { leave_by(leave, frame, irq) }
}

/// Goes to user mode by a set of stubs.
///
/// # Safety
///
/// 1. `frame` is the frame at the top of the current process's kernel stack, and whatever is live below it may be lost.
/// 2. GS base is the kernel's.
unsafe fn leave_by(leave: ReturnToUser, frame: *mut TrapFrame, irq: IrqOff) -> ! {
    let cpu = core::ptr::from_ref(PerCpu::current(&irq));
    // SAFETY: per-CPU structures are statics, and the thread stays on this CPU, since interrupts stay off.
    let installed = unsafe { &*cpu }.installed();
    // SAFETY: 1. condition 1. 2. Condition 2; `install` has set the CPU up for all kernels here, with one layout.
    unsafe { leave(frame, irq, installed) }
}

/// Sets this CPU up: GDT, TSS with its stacks, IDT, GS base, and the registers of the system-call instructions. Interrupts
/// stay off.
///
/// # Panics
///
/// If it is called twice, or if a table or register can't be made what it has to be, with the reason.
pub fn install() -> IrqOff {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    assert!(!IS_INSTALLED.swap(true, Ordering::Relaxed), "the CPU is set up twice");
    // SAFETY: the flag above lets this be reached once.
    let cpu = unsafe { CPU0.fill(|cpu| give_stacks(cpu.task_state_mut())) };
    cpu.header().bind();
    // SAFETY: 1. the stack is this CPU's alone, and mapped in all tables; RSP0 is set with the tables.
    unsafe { cpu.header().set_entry_stack(ENTRY_STACK.top()) };
    for stack in [&DEBUG_STACK, &NMI_STACK, &DOUBLE_FAULT_STACK, &MACHINE_CHECK_STACK] {
        let _top = stack.bind(cpu.header());
    }
    // SAFETY: as for the per-CPU structure, which is complete; boot runs at CPL 0 with interrupts off.
    unsafe { load_segments(cpu.task_state()) };
    // SAFETY: as for the per-CPU structure.
    unsafe { fill_gates() };
    // SAFETY: 1. they were just filled. 2. Boot runs at CPL 0, and TR is loaded. 3. Interrupts are off, and SYSCALL is.
    unsafe { load_gates(&GATES) };
    set_bases(cpu);
    set_registers(cpu);
    // SAFETY: boot hands over with interrupts off, and nothing above turns them on.
    let irq = unsafe { IrqOff::assume() };
    // A CPU without SYSENTER in long mode does without.
    let _ = cpu.install_sysenter::<Callee64<OsKernel>>(Way::FromHeader, &irq);
    irq
}

/// Gives this CPU, which is set up, to another kernel for good: system calls and all vectors lead to the stubs of `K`, which arrive
/// on `stack`. For tests of kernels of another shape.
///
/// # Panics
///
/// If it is called twice.
///
/// # Safety
///
/// 1. No process runs or will.
/// 2. As [`PerCpuHeader::set_kernel_stack`](entry_core::PerCpuHeader::set_kernel_stack) of `stack`.
pub unsafe fn hand_over<K: Kernel>(stack: u64, irq: &IrqOff) -> Installed {
    static IS_HANDED_OVER: AtomicBool = AtomicBool::new(false);
    assert!(
        !IS_HANDED_OVER.swap(true, Ordering::Relaxed),
        "there is one other kernel"
    );
    let stubs = stubs::<K>();
    let gates = Gates::new(stubs.vectors, stubs.syscall_compat);
    // SAFETY: the flag above lets this be reached once.
    let _filled = unsafe { OTHER_GATES.fill(|place| *place = gates) };
    // SAFETY: 1. the gates were just filled. 2. This is the kernel, and `install` has loaded TR. 3. By the proof.
    unsafe { load_gates(&OTHER_GATES) };
    // SAFETY: 1. this is the kernel. 2. Kernel code is at canonical addresses. 3. It is a stub for this CPU.
    unsafe { Lstar::from_bits(stubs.syscall).write(&mut Cpu) };
    let cpu = PerCpu::current(irq);
    // SAFETY: condition 2.
    unsafe { cpu.set_kernel_stack(stack) };
    // A CPU without SYSENTER in long mode does without.
    let _ = cpu.install_sysenter::<Callee64<K>>(Way::FromHeader, irq);
    // SAFETY: 1. `install` has set the registers, and the entry points were exchanged here. 2. Condition 1:
    // nothing else runs that would set others.
    unsafe { Installed::assume() }
}

fn give_stacks(task_state: &mut TaskStateSegment) {
    task_state.set_ist(Ist::Ist1, DEBUG_STACK.top());
    task_state.set_ist(Ist::Ist2, NMI_STACK.top());
    task_state.set_ist(Ist::Ist3, DOUBLE_FAULT_STACK.top());
    task_state.set_ist(Ist::Ist4, MACHINE_CHECK_STACK.top());
    task_state.set_ist(Ist::Ist5, INTERRUPT_STACK.top());
    if let Err(error) = task_state.check(Width::Bits48) {
        panic!("task-state segment: {error}");
    }
}

/// # Safety
///
/// 1. It is called once.
/// 2. CPL is 0 and interrupts are off.
unsafe fn load_segments(task_state: &'static TaskStateSegment) {
    let table = SegmentLayout::natural_gdt(task_state.base(), TaskStateSegment::LIMIT);
    // SAFETY: condition 1.
    let _filled = unsafe { GDT.fill(|gdt| *gdt = table) };
    // SAFETY: 1. condition 2. 2. The table is static, this CPU's alone, and mapped in all tables. 3. It was made for `LAYOUT`.
    unsafe { LAYOUT.load(GDT.0.get()) };
    // SAFETY: the kernel does not use FS.
    unsafe { FS::set_reg(SegmentSelector::NULL) };
    // SAFETY: nothing uses GS before `set_bases`.
    unsafe { GS::set_reg(SegmentSelector::NULL) };
}

/// The table for the stubs whose first slot is at `stubs`.
fn vectors(stubs: u64) -> Idt {
    let mut table = Idt::new(stubs, &LAYOUT).unwrap_or_else(|error| panic!("IDT: {error}"));
    let int80 = table.gate(Vector::INT80).handler();
    table
        .set_system_call(Vector::INT80, int80)
        .unwrap_or_else(|error| panic!("IDT: {error}"));
    table
}

/// # Safety
///
/// 1. It is called once.
unsafe fn fill_gates() {
    let plain = stubs::<OsKernel>();
    for (place, stubs) in [
        (&GATES, plain),
        // Its INT 0x80 and exceptions do nothing; SYSCALL, from 32-bit code too, is the kernel's.
        (
            &NULL_GATES,
            StubTable {
                vectors: experiment::null_vectors(),
                ..plain
            },
        ),
        (&TRACKED_GATES, stubs::<OsKernel<Track>>()),
        (&SPLIT_GATES, options::split::<OsKernel>()),
        (&SPLIT_WITH_PCID_GATES, options::split_with_pcid()),
        (&GUARDED_GATES, options::guarded::<OsKernel>()),
        (&RESTRICTED_GATES, options::restricted()),
        (&IO_PRIVILEGE_GATES, stubs::<OsKernel<NoTracking, IoRules>>()),
        (&CODE32_GATES, stubs::<Kernel32>()),
        (&IO_CODE32_GATES, stubs::<PrivilegedKernel32>()),
        (&NULL_CODE32_GATES, experiment::null_stubs_32()),
    ] {
        let gates = Gates::new(stubs.vectors, stubs.syscall_compat);
        // SAFETY: condition 1, and the places differ.
        let _filled = unsafe { place.fill(|place| *place = gates) };
    }
    let slots = irqs_on_vector_stubs();
    let mut gates = Gates::new(slots, plain.syscall_compat);
    gates.idt.set_interrupt_stack(Ist::Ist5);
    // SAFETY: 1. and 2. `select_gates` changes mask and CSTAR with the table, and `PerCpu::take_syscall_entry` LSTAR, all with
    // interrupts off. 3. All kernels here share layout, stacks and exit. 4. The TSS has one. 5. The scheduler demands
    // the proof by value or `&mut`. 6. The linker script keeps it.
    let allowed = unsafe { InterruptsOnEntry::new(&gates.idt, slots) };
    let allowed = allowed.unwrap_or_else(|error| panic!("IDT with interrupts on: {error}"));
    gates.fmask = allowed.mask();
    // SAFETY: condition 1.
    let _filled = unsafe { IRQS_ON_GATES.fill(|place| *place = gates) };
}

/// # Safety
///
/// 1. [`fill_gates`] has run.
/// 2. CPL is 0, and TR holds a TSS with its stacks.
/// 3. No interrupt and no SYSCALL comes before it returns.
unsafe fn load_gates(gates: &'static Late<Gates>) {
    // SAFETY: nobody writes them after `fill_gates`.
    let gates = unsafe { &*gates.0.get() };
    // SAFETY: 1. condition 2. 2. All x86-64 CPUs have it. 3. It is made for the table that follows, and condition 3.
    unsafe { gates.fmask.write(&mut Cpu) };
    // SAFETY: 1. condition 2. 2. All x86-64 CPUs have it. 3. It is the stub that goes with that table, and condition 3.
    unsafe { gates.cstar.write(&mut Cpu) };
    // SAFETY: 1. condition 2. 2. The stubs are kernel code, mapped in every address space. 3. Condition 2; RSP0 is set by
    // the first context switch, before there is user mode to come from.
    unsafe { gates.idt.load() };
}

/// Gives this CPU a table of vectors and what goes with it, for [`PerCpu`], which remembers it.
fn select_gates(vectors: Vectors, may_write_bases: bool) {
    // Both tables' stubs do with the instructions, and one's not without: an NMI may come in between.
    if may_write_bases {
        boot::cpu::let_programs_write_bases(true);
    }
    if vectors == Vectors::SplitWithPcid {
        boot::cpu::use_pcid();
    }
    // SAFETY: 1. and 2. `PerCpu` is reached with an `IrqOff`, which nobody has before `install` has done both. 3. By the proof.
    unsafe { load_gates(vectors.gates()) };
    if !may_write_bases {
        boot::cpu::let_programs_write_bases(false);
    }
}

fn set_bases(cpu: &'static PerCpu) {
    let address = core::ptr::from_ref(cpu).addr() as u64;
    let base = GsBase::new(address, Width::Bits48).unwrap_or_else(|error| panic!("GS base: {error}"));
    // SAFETY: 1. `install` runs at CPL 0. 2. All x86-64 CPUs have it. 3. The header is bound; nothing used GS before.
    unsafe { base.write(&mut Cpu) };
    // SAFETY: 1. and 2. as above. 3. It is the user's, and 0 is what `PerCpu` says it is.
    unsafe { KernelGsBase::from_bits(0).write(&mut Cpu) };
    // SAFETY: 1. and 2. as above. 3. It is the user's, and 0 is what `PerCpu` says it is.
    unsafe { FsBase::from_bits(0).write(&mut Cpu) };
}

fn set_registers(cpu: &'static PerCpu) {
    let stubs = stubs::<OsKernel>();
    let entries = EntryPoints {
        syscall: Some(stubs.syscall),
        syscall32: Some(stubs.syscall_compat),
        ..EntryPoints::default()
    };
    let plan = SyscallPlan::new(
        &LAYOUT,
        FlagMask::REQUIRED,
        &entries,
        &CpuFeatures::detect(),
        Width::Bits48,
    );
    let plan = plan.unwrap_or_else(|error| panic!("system-call registers: {error}"));
    // SAFETY: 1. `install` runs at CPL 0, the features are this CPU's. 2. Both stubs are made for `LAYOUT` and the
    // required mask, and are kernel code. 3. `load_segments` loaded the natural GDT. 4. They are this CPU's registers.
    let installed = unsafe { plan.install(&mut Cpu) }.unwrap_or_else(|error| panic!("system-call registers: {error}"));
    cpu.remember_syscall_entry(SyscallEntry::normal(), installed);
}

/// Starts the periodic timer of this CPU.
pub(crate) fn start_timer(_irq: &IrqOff) {
    apic::timer_periodic(TIMER_VECTOR, TIMER_COUNT);
}

/// Starts the timer for an experiment: its interrupts are counted and lead to nothing else.
pub(crate) fn start_experiment_timer(count: u32, _irq: &IrqOff) {
    apic::timer_periodic(EXPERIMENT_VECTOR, count);
}

/// Stops it.
pub(crate) fn stop_timer(_irq: &IrqOff) {
    apic::timer_stop();
}
