//! SYSENTER on this CPU: which strategy loads the stack of the current thread, and which kernel answers.
//!
//! From the start it is [`Way::FromHeader`] and [`OsKernel`](super::OsKernel), where the CPU has SYSENTER in long mode; experiments
//! choose others. For processes that have 32-bit code there is another stub, by which all of them enter. A process that is
//! tracked, or that has tables of its own, can't enter by it, since there is no such stub for SYSENTER: it is off while such a
//! process runs.

use core::arch::naked_asm;
use core::marker::PhantomData;

use entry_core::address::Width;
use entry_core::cpu::CpuFeatures;
use entry_core::kernel::{Baseline, WithSmap};
use entry_core::msr::Cpu;
use entry_core::tss::TaskStateSegment;
use entry_core::{IrqOff, Kernel, PerCpuHeader};
use entry_sysenter::arrival::{Arrival, EntryAddress};
use entry_sysenter::encode;
use entry_sysenter::error::{TrampolineError, Unsupported};
use entry_sysenter::stack::{
    AtFixedOffset, ByTrampoline, EntryStack, FromHeader, Strategy, Sysenter, SysenterPlan, WrmsrPerSwitch,
};
use entry_sysenter::stub::{self, Compat, entry32, entry64};
use entry_sysenter::support::SysenterSupport;
use entry_sysenter::trampoline::{Absolute, Form, RipRelative, SwapgsRelative, Trampoline64};
use x86_64::registers::control::{Cr0, Cr0Flags};

use super::compat::PrivilegedKernel32;
use super::variant::Privileged;
use super::{LAYOUT, PerCpu};
use crate::boot;
use crate::memory::layout::index;
use crate::{print, println};

/// Size of the stack between SYSENTER and the load of the thread's.
const STACK_BYTES: usize = 512;

/// Where the word lies, seen from the end of that stack, that holds the thread's.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "an offset in a structure of 104 bytes"
)]
const RSP0: i32 = TaskStateSegment::RSP0 as i32;

/// Where the header has the same, seen from GS base.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "an offset in a structure of one cache line"
)]
const HEADER_STACK: i32 = PerCpuHeader::KERNEL_STACK as i32;

/// How the thread's stack gets into RSP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The stub loads it from the per-CPU header.
    FromHeader,
    /// Each context switch writes `IA32_SYSENTER_ESP`.
    WrmsrPerSwitch,
    /// Generated code loads it from TSS.RSP0, whose address it has as a displacement from itself.
    ByTrampoline,
    /// The same with the address as a sign-extended number.
    ByAbsoluteTrampoline,
    /// Generated code swaps GS, and loads it from the per-CPU header.
    BySwapgsTrampoline,
    /// The stub loads it from TSS.RSP0, at a fixed distance from the end of the small stack.
    AtFixedOffset,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::FromHeader,
        Self::WrmsrPerSwitch,
        Self::ByTrampoline,
        Self::AtFixedOffset,
        Self::ByAbsoluteTrampoline,
        Self::BySwapgsTrampoline,
    ];

    /// Its name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::FromHeader => "header",
            Self::WrmsrPerSwitch => "wrmsr",
            Self::ByTrampoline => "rip-relative",
            Self::AtFixedOffset => "tss",
            Self::ByAbsoluteTrampoline => "absolute",
            Self::BySwapgsTrampoline => "swapgs",
        }
    }

    /// Lengths of the trampoline's instructions, the last of which is the jump to the stub; none where there is no trampoline.
    pub(crate) const fn instructions(self) -> &'static [usize] {
        const SWAPGS: usize = encode::SWAPGS.len();
        match self {
            Self::ByTrampoline => &[encode::MOV_RSP_RIP, encode::JMP_REL32],
            Self::ByAbsoluteTrampoline => &[encode::MOV_RSP_ABS, encode::JMP_REL32],
            Self::BySwapgsTrampoline => &[SWAPGS, encode::MOV_RSP_GS, encode::JMP_REL32],
            Self::FromHeader | Self::WrmsrPerSwitch | Self::AtFixedOffset => &[],
        }
    }
}

/// A kernel with the stub by which SYSENTER enters it.
pub(crate) trait Callee {
    /// Whether the stub serves processes that have 64-bit code alone.
    const SERVES_64_BIT: bool;
    /// Whether it serves those that have 32-bit code.
    const SERVES_32_BIT: bool;
    /// Whether it leaves to programs with IOPL 3.
    const ALLOWS_IO_PRIVILEGE: bool = false;

    /// The stub for this CPU.
    fn entry<A: Arrival>(features: &CpuFeatures) -> EntryAddress<A>;
}

/// The kernel `K`, called by 64-bit code.
pub(crate) struct Callee64<K>(PhantomData<K>);

impl<K: Kernel> Callee for Callee64<K> {
    const SERVES_64_BIT: bool = true;
    const SERVES_32_BIT: bool = false;

    fn entry<A: Arrival>(features: &CpuFeatures) -> EntryAddress<A> {
        if features.smap {
            entry64::<K, A, WithSmap>()
        } else {
            entry64::<K, A, Baseline>()
        }
    }
}

/// The kernel of programs with IOPL 3, called by 64-bit code.
pub(crate) struct PrivilegedCallee;

impl Callee for PrivilegedCallee {
    const SERVES_64_BIT: bool = true;
    const SERVES_32_BIT: bool = false;
    const ALLOWS_IO_PRIVILEGE: bool = true;

    fn entry<A: Arrival>(features: &CpuFeatures) -> EntryAddress<A> {
        Callee64::<Privileged>::entry(features)
    }
}

/// The kernel `K`, called by 32-bit code.
pub(crate) struct Callee32<K>(PhantomData<K>);

impl<K: Compat> Callee for Callee32<K> {
    const SERVES_64_BIT: bool = false;
    const SERVES_32_BIT: bool = true;

    fn entry<A: Arrival>(features: &CpuFeatures) -> EntryAddress<A> {
        if features.smap {
            entry32::<K, A, WithSmap>()
        } else {
            entry32::<K, A, Baseline>()
        }
    }
}

/// The kernel `K`, called by code of either kind: the process decides.
pub(crate) struct CalleeBoth<K>(PhantomData<K>);

impl<K: Compat> Callee for CalleeBoth<K> {
    const SERVES_64_BIT: bool = true;
    const SERVES_32_BIT: bool = true;

    fn entry<A: Arrival>(features: &CpuFeatures) -> EntryAddress<A> {
        if features.smap {
            stub::entry::<K, A, WithSmap>()
        } else {
            stub::entry::<K, A, Baseline>()
        }
    }
}

/// The kernel of programs with IOPL 3, called by 32-bit code.
pub(crate) struct PrivilegedCallee32;

impl Callee for PrivilegedCallee32 {
    const SERVES_64_BIT: bool = false;
    const SERVES_32_BIT: bool = true;
    const ALLOWS_IO_PRIVILEGE: bool = true;

    fn entry<A: Arrival>(features: &CpuFeatures) -> EntryAddress<A> {
        Callee32::<PrivilegedKernel32>::entry(features)
    }
}

/// The task-state segment behind the small stack, so that RSP0 is [`RSP0`] bytes from the end of that.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct TaskState {
    stack: EntryStack<STACK_BYTES>,
    pub(super) segment: TaskStateSegment,
}

impl TaskState {
    pub(super) const fn new() -> Self {
        Self {
            stack: EntryStack::new(),
            segment: TaskStateSegment::new(),
        }
    }
}

/// SYSENTER with one of the strategies.
#[derive(Debug)]
pub(super) enum Installed {
    FromHeader(Sysenter<FromHeader>),
    WrmsrPerSwitch(Sysenter<WrmsrPerSwitch>),
    ByTrampoline(Sysenter<ByTrampoline<RipRelative>>),
    ByAbsoluteTrampoline(Sysenter<ByTrampoline<Absolute>>),
    BySwapgsTrampoline(Sysenter<ByTrampoline<SwapgsRelative>>),
    AtFixedOffset(Sysenter<AtFixedOffset<RSP0>>),
}

impl Installed {
    /// Writes the registers for `C` on this CPU.
    ///
    /// # Errors
    ///
    /// The CPU has no SYSENTER in long mode.
    pub(super) fn new<C: Callee>(way: Way, cpu: &'static PerCpu, irq: &IrqOff) -> Result<Self, Unsupported> {
        let features = CpuFeatures::detect();
        let support = SysenterSupport::on(&features)?;
        let task_state = cpu.task_state_area();
        let stack = &task_state.stack;
        let field = ((&raw const task_state.segment).addr() + TaskStateSegment::RSP0) as u64;
        Ok(match way {
            Way::FromHeader => Self::FromHeader(write(support, FromHeader::new(C::entry(&features), stack), irq)),
            Way::WrmsrPerSwitch => {
                let strategy = WrmsrPerSwitch::new(C::entry(&features), cpu.header().kernel_stack());
                Self::WrmsrPerSwitch(write(support, strategy, irq))
            }
            Way::ByTrampoline => {
                let code = Trampoline64::<RipRelative>::new(slot(0), field, C::entry(&features), Width::Bits48);
                Self::ByTrampoline(write(support, ByTrampoline::new(put(code), stack), irq))
            }
            Way::ByAbsoluteTrampoline => {
                let code = Trampoline64::<Absolute>::new(slot(1), field, C::entry(&features), Width::Bits48);
                Self::ByAbsoluteTrampoline(write(support, ByTrampoline::new(put(code), stack), irq))
            }
            Way::BySwapgsTrampoline => {
                let entry = C::entry(&features);
                let code = Trampoline64::<SwapgsRelative>::new(slot(2), HEADER_STACK, entry, Width::Bits48);
                Self::BySwapgsTrampoline(write(support, ByTrampoline::new(put(code), stack), irq))
            }
            Way::AtFixedOffset => {
                let strategy = AtFixedOffset::new(C::entry(&features), stack, field)
                    .unwrap_or_else(|error| panic!("SYSENTER: {error}"));
                Self::AtFixedOffset(write(support, strategy, irq))
            }
        })
    }

    /// Turns SYSENTER on or off.
    pub(super) fn set_enabled(&mut self, is_enabled: bool, irq: &IrqOff) {
        match self {
            Self::FromHeader(sysenter) => set_enabled(sysenter, is_enabled, irq),
            Self::WrmsrPerSwitch(sysenter) => set_enabled(sysenter, is_enabled, irq),
            Self::ByTrampoline(sysenter) => set_enabled(sysenter, is_enabled, irq),
            Self::ByAbsoluteTrampoline(sysenter) => set_enabled(sysenter, is_enabled, irq),
            Self::BySwapgsTrampoline(sysenter) => set_enabled(sysenter, is_enabled, irq),
            Self::AtFixedOffset(sysenter) => set_enabled(sysenter, is_enabled, irq),
        }
    }

    /// Whether a single-step trap at `rip` was armed by the user, before SYSENTER.
    pub(super) fn is_user_step(&self, rip: u64) -> bool {
        match self {
            Self::FromHeader(sysenter) => sysenter.is_user_step(rip),
            Self::WrmsrPerSwitch(sysenter) => sysenter.is_user_step(rip),
            Self::ByTrampoline(sysenter) => sysenter.is_user_step(rip),
            Self::ByAbsoluteTrampoline(sysenter) => sysenter.is_user_step(rip),
            Self::BySwapgsTrampoline(sysenter) => sysenter.is_user_step(rip),
            Self::AtFixedOffset(sysenter) => sysenter.is_user_step(rip),
        }
    }

    /// Where SYSENTER leads to: the stub, or a trampoline.
    pub(super) fn entry_point(&self) -> u64 {
        match self {
            Self::FromHeader(sysenter) => sysenter.plan().strategy().entry_point(),
            Self::WrmsrPerSwitch(sysenter) => sysenter.plan().strategy().entry_point(),
            Self::ByTrampoline(sysenter) => sysenter.plan().strategy().entry_point(),
            Self::ByAbsoluteTrampoline(sysenter) => sysenter.plan().strategy().entry_point(),
            Self::BySwapgsTrampoline(sysenter) => sysenter.plan().strategy().entry_point(),
            Self::AtFixedOffset(sysenter) => sysenter.plan().strategy().entry_point(),
        }
    }

    /// Whether a context switch has to call [`Installed::switch_to`].
    pub(super) const fn follows_threads(&self) -> bool {
        matches!(self, Self::WrmsrPerSwitch(_))
    }

    /// Tells SYSENTER of the thread that runs next.
    ///
    /// # Safety
    ///
    /// 1. `stack` is the top of its kernel stack, 16-byte aligned, with nothing live on it as seen from user mode.
    #[inline(always)]
    pub(super) unsafe fn switch_to(&mut self, stack: u64, irq: &IrqOff) {
        if let Self::WrmsrPerSwitch(sysenter) = self {
            // SAFETY: 1. values of this type stay in the structure of their CPU. 2. condition 1.
            unsafe { sysenter.switch_to(stack, &mut Cpu, irq) };
        }
    }
}

fn set_enabled<S: Strategy>(sysenter: &mut Sysenter<S>, is_enabled: bool, irq: &IrqOff) {
    if is_enabled {
        // SAFETY: 1. values of this type stay in the structure of their CPU. 2. `switch_to` is called at each switch.
        unsafe { sysenter.enable(&mut Cpu, irq) };
    } else {
        // SAFETY: 1. as above.
        unsafe { sysenter.disable(&mut Cpu, irq) };
    }
}

fn write<S: Strategy>(support: SysenterSupport, strategy: S, irq: &IrqOff) -> Sysenter<S> {
    let plan = SysenterPlan::new(support, &LAYOUT, strategy, Width::Bits48);
    let plan = plan.unwrap_or_else(|error| panic!("SYSENTER: {error}"));
    // SAFETY: 1. this is the kernel, on this CPU, with the GDT of `LAYOUT`. 2. Stubs and trampoline are in the text that all tables
    // map. 3. The stack is in the per-CPU structure, and so are header and TSS. 4. The scheduler keeps both words; with the
    // first strategy they begin with the current thread's. 5. `install` bound four IST stacks. 6. The caller has taken the
    // old value out of the structure of this CPU.
    let installed = unsafe { plan.install(&mut Cpu, irq) };
    installed.unwrap_or_else(|error| panic!("SYSENTER: {error}"))
}

/// Trampolines that there are places for.
const SLOTS: usize = 3;
/// Bytes kept free for each.
const SLOT_BYTES: usize = 32;

/// The places, inside the text that all tables map. What they hold at first traps.
#[unsafe(naked)]
#[unsafe(link_section = ".entry.text")]
unsafe extern "sysv64" fn sysenter_slot() -> ! {
    naked_asm!(".fill {bytes}, 1, 0xcc", bytes = const SLOTS * SLOT_BYTES)
}

/// Address of a place.
fn slot(number: usize) -> u64 {
    assert!(number < SLOTS, "SYSENTER: there is no slot {number}");
    let start: unsafe extern "sysv64" fn() -> ! = sysenter_slot;
    #[expect(
        clippy::fn_to_numeric_cast_any,
        reason = "the slots are a place, not a function to call"
    )]
    let start = start as usize;
    (start + number * SLOT_BYTES) as u64
}

/// Says which code was generated, if the word `code` on the command line asks for it: somebody will disassemble a log of
/// this run.
pub(crate) fn announce(address: u64, code: &[u8]) {
    if !boot::info().command_line.split(' ').any(|word| word == "code") {
        return;
    }
    print!("[code] {address:x}");
    for byte in code {
        print!(" {byte:02x}");
    }
    println!("");
}

/// Puts a trampoline into the slot that it was made for, unless it is there.
fn put<F: Form>(code: Result<Trampoline64<F>, TrampolineError>) -> Trampoline64<F> {
    const { assert!(size_of::<F::Bytes>() <= SLOT_BYTES, "the trampoline fits") };
    let code = code.unwrap_or_else(|error| panic!("SYSENTER: {error}"));
    let place = core::ptr::with_exposed_provenance_mut::<F::Bytes>(index(code.address()));
    // SAFETY: the slot is at least as long, and any bytes make an array of bytes.
    if unsafe { place.read() } == *code.bytes() {
        return code;
    }
    announce(code.address(), code.bytes().as_ref());
    let protected = Cr0::read();
    // SAFETY: the kernel's own pages can be written for a moment, with interrupts off; nothing here writes but the line below.
    // Both writes of CR0 serialise, so the CPU fetches what was written.
    unsafe { Cr0::write(protected - Cr0Flags::WRITE_PROTECT) };
    // SAFETY: the slot is at least as long, belongs to this form, and is not being executed: there is one CPU.
    unsafe { place.write(*code.bytes()) };
    // SAFETY: what it was before.
    unsafe { Cr0::write(protected) };
    code
}
