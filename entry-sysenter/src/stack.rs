//! How the kernel stack of the current thread gets into RSP when user code executes SYSENTER: the strategies.
//!
//! SYSENTER loads RSP from `IA32_SYSENTER_ESP` and leaves it at that. Either the MSR follows the thread, or it stays the same
//! and something loads RSP from memory before the first push.
//!
//! | strategy | the MSR holds | RSP is loaded by | a context switch writes | an entry costs |
//! |---|---|---|---|---|
//! | [`WrmsrPerSwitch`] | the thread's stack | SYSENTER | the MSR: one WRMSR | nothing |
//! | [`ByTrampoline`] | a small stack | generated code, one copy per CPU | nothing of its own | a load and a jump |
//! | [`AtFixedOffset`] | the end of a small stack in front of the TSS | the stub, from TSS.RSP0 | nothing of its own | a load |
//! | [`FromHeader`] | a small stack | the stub, from the per-CPU header | nothing of its own | a load |
//!
//! "Nothing of its own": TSS.RSP0 and the header's kernel stack follow the thread whatever the system-call instruction is,
//! because interrupts and SYSCALL need them. [`FromHeader`] is the one to take when nothing is being compared.
//!
//! The invariant of all: **between SYSENTER and the load, RSP is a valid stack of this CPU**, an [`EntryStack`] where it is not
//! the thread's. Nothing is pushed there while every vector that can arrive in that window has an IST stack; should
//! that ever fail, the push lands in memory that is there for it, and not in a TSS or in nowhere.
//!
//! [`SysenterPlan`] holds the register images, [`Sysenter`] is the CPU once they are installed. SYSENTER is off while the
//! registers disagree, because `IA32_SYSENTER_CS` is cleared first and written last: so strategies can be exchanged
//! at run time, and user code meanwhile gets #GP.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Performing Fast Calls to System Procedures with the SYSENTER and SYSEXIT Instructions*.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Range;

use entry_core::address::Width;
use entry_core::msr::{Msr, Register, SysenterCs, SysenterEip, SysenterEsp};
use entry_core::plan::InstallError;
use entry_core::{IrqOff, SegmentLayout};
use static_assertions::assert_not_impl_any;

use crate::arrival::{Arrival, AtOffset, EntryAddress, OnEntryStack, Ready};
use crate::error::{FieldMisplaced, PlanError};
use crate::guard::guard;
use crate::stub;
use crate::support::SysenterSupport;
use crate::trampoline::{Form, Trampoline64};

/// A small stack for the moment between SYSENTER and the load of the thread's.
///
/// 512 bytes hold what the CPU could push, with a #DB handler's frame to spare. The address of the byte behind it is
/// [`EntryStack::top`]; in a `#[repr(C)]` structure, what follows the field begins there if its alignment allows.
///
/// ```
/// use entry_sysenter::stack::EntryStack;
/// static STACK: EntryStack<512> = EntryStack::new();
/// assert_eq!(STACK.top() % 16, 0);
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct EntryStack<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: only the CPU writes to it, by pushing; Rust code has no access to the bytes.
unsafe impl<const BYTES: usize> Sync for EntryStack<BYTES> {}

impl<const BYTES: usize> EntryStack<BYTES> {
    /// An empty stack. `BYTES` has to be a multiple of 16, and at least 128.
    #[must_use]
    pub const fn new() -> Self {
        const {
            assert!(
                BYTES.is_multiple_of(16) && BYTES >= 128,
                "the stack size is a multiple of 16, from 128 on"
            )
        };
        Self(UnsafeCell::new([0; BYTES]))
    }

    /// The address behind the last byte: the value for the stack pointer.
    #[must_use]
    pub fn top(&'static self) -> u64 {
        (self.0.get().addr() + BYTES) as u64
    }
}

impl<const BYTES: usize> Default for EntryStack<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

/// A row of the [module's table](self).
pub trait Strategy: sealed::Sealed {
    /// What the stub finds, and has to be compiled for.
    type Arrival: Arrival;
    /// Whether a context switch has to write `IA32_SYSENTER_ESP`.
    const WRITES_MSR_AT_SWITCH: bool;

    /// RIP after SYSENTER: `IA32_SYSENTER_EIP`.
    #[must_use]
    fn entry_point(&self) -> u64;

    /// RSP after SYSENTER: `IA32_SYSENTER_ESP`.
    #[must_use]
    fn stack(&self) -> u64;

    /// Where the instructions lie that run before the stub, if there are any.
    #[must_use]
    fn window(&self) -> Option<Range<u64>> {
        None
    }
}

/// `IA32_SYSENTER_ESP` is the current thread's kernel stack, and each context switch writes it.
///
/// What Linux did early in 2003, with `IA32_SYSENTER_CS` in addition. A WRMSR costs some hundred cycles; an entry costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrmsrPerSwitch {
    entry: EntryAddress<Ready>,
    stack: u64,
}

impl WrmsrPerSwitch {
    /// For a stub and the stack of the thread that runs now.
    #[must_use]
    pub const fn new(entry: EntryAddress<Ready>, stack: u64) -> Self {
        Self { entry, stack }
    }
}

impl Strategy for WrmsrPerSwitch {
    type Arrival = Ready;
    const WRITES_MSR_AT_SWITCH: bool = true;

    fn entry_point(&self) -> u64 {
        self.entry.get()
    }

    fn stack(&self) -> u64 {
        self.stack
    }
}

/// `IA32_SYSENTER_EIP` is a trampoline, which loads RSP and jumps to the stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByTrampoline<F: Form> {
    trampoline: Trampoline64<F>,
    stack: u64,
}

impl<F: Form> ByTrampoline<F> {
    /// For a trampoline, whose code was copied to its address, and this CPU's small stack.
    #[must_use]
    pub fn new<const BYTES: usize>(trampoline: Trampoline64<F>, stack: &'static EntryStack<BYTES>) -> Self {
        Self {
            trampoline,
            stack: stack.top(),
        }
    }
}

impl<F: Form> Strategy for ByTrampoline<F> {
    type Arrival = F::Arrival;
    const WRITES_MSR_AT_SWITCH: bool = false;

    fn entry_point(&self) -> u64 {
        self.trampoline.address()
    }

    fn stack(&self) -> u64 {
        self.stack
    }

    fn window(&self) -> Option<Range<u64>> {
        Some(self.trampoline.window())
    }
}

/// `IA32_SYSENTER_ESP` is the end of a small stack, and the word with the thread's stack pointer lies `OFFSET` bytes above.
///
/// What Linux came to on 32-bit CPUs: the word is in the TSS, which follows the stack, and the stub needs no address at all.
///
/// ```
/// use entry_core::tss::TaskStateSegment;
/// use entry_sysenter::arrival::{AtOffset, EntryAddress};
/// use entry_sysenter::stack::{AtFixedOffset, EntryStack};
///
/// #[repr(C)]
/// struct PerCpu {
///     stack: EntryStack<512>,
///     tss: TaskStateSegment,
/// }
/// // SAFETY: nothing is ever called through this.
/// # unsafe impl Sync for PerCpu {}
/// static CPU0: PerCpu = PerCpu { stack: EntryStack::new(), tss: TaskStateSegment::new() };
/// const RSP0: i32 = TaskStateSegment::RSP0 as i32;
///
/// fn strategy(entry: EntryAddress<AtOffset<RSP0>>) -> AtFixedOffset<RSP0> {
///     let field = (&raw const CPU0.tss).addr() + TaskStateSegment::RSP0;
///     AtFixedOffset::new(entry, &CPU0.stack, field as u64).expect("the TSS follows the stack")
/// }
/// # let entry = unsafe { EntryAddress::new(0xffff_ffff_8010_0000) };
/// # strategy(entry);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtFixedOffset<const OFFSET: i32> {
    entry: EntryAddress<AtOffset<OFFSET>>,
    stack: u64,
}

impl<const OFFSET: i32> AtFixedOffset<OFFSET> {
    /// For a stub, this CPU's small stack, and the address of the word that holds the thread's stack pointer.
    ///
    /// # Errors
    ///
    /// The word is not `OFFSET` bytes from the stack's end.
    pub fn new<const BYTES: usize>(
        entry: EntryAddress<AtOffset<OFFSET>>,
        stack: &'static EntryStack<BYTES>,
        field: u64,
    ) -> Result<Self, FieldMisplaced> {
        let wanted = stack.top().wrapping_add_signed(i64::from(OFFSET));
        if guard!("sysenter-field-misplaced", field != wanted) {
            return Err(FieldMisplaced { found: field, wanted });
        }
        Ok(Self {
            entry,
            stack: stack.top(),
        })
    }
}

impl<const OFFSET: i32> Strategy for AtFixedOffset<OFFSET> {
    type Arrival = AtOffset<OFFSET>;
    const WRITES_MSR_AT_SWITCH: bool = false;

    fn entry_point(&self) -> u64 {
        self.entry.get()
    }

    fn stack(&self) -> u64 {
        self.stack
    }
}

/// `IA32_SYSENTER_ESP` is a small stack; the stub swaps GS and loads RSP from the per-CPU header, as the SYSCALL stub does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromHeader {
    entry: EntryAddress<OnEntryStack>,
    stack: u64,
}

impl FromHeader {
    /// For a stub and this CPU's small stack.
    #[must_use]
    pub fn new<const BYTES: usize>(entry: EntryAddress<OnEntryStack>, stack: &'static EntryStack<BYTES>) -> Self {
        Self {
            entry,
            stack: stack.top(),
        }
    }
}

impl Strategy for FromHeader {
    type Arrival = OnEntryStack;
    const WRITES_MSR_AT_SWITCH: bool = false;

    fn entry_point(&self) -> u64 {
        self.entry.get()
    }

    fn stack(&self) -> u64 {
        self.stack
    }
}

mod sealed {
    #[expect(
        unnameable_types,
        reason = "sealed: a strategy is a promise about code of this crate"
    )]
    pub trait Sealed {}
    impl Sealed for super::WrmsrPerSwitch {}
    impl<F: crate::trampoline::Form> Sealed for super::ByTrampoline<F> {}
    impl<const OFFSET: i32> Sealed for super::AtFixedOffset<OFFSET> {}
    impl Sealed for super::FromHeader {}
}

/// The images of the three SYSENTER registers of one CPU. Displayed as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysenterPlan<S> {
    strategy: S,
    cs: SysenterCs,
    esp: SysenterEsp,
    eip: SysenterEip,
}

impl<S: Strategy> SysenterPlan<S> {
    /// Computes the images and touches no hardware. `width` is that of the paging mode in use.
    ///
    /// The GDT's order, which SYSENTER and every exit compute with, is the layout's; [`SysenterSupport`] says that the CPU has
    /// the instruction in long mode, so there is no plan for one that hasn't.
    ///
    /// # Errors
    ///
    /// [`PlanError::Address`] for an entry point or stack that is not canonical, or 0; [`PlanError::MisalignedStack`].
    pub fn new(
        _support: SysenterSupport,
        layout: &SegmentLayout,
        strategy: S,
        width: Width,
    ) -> Result<Self, PlanError> {
        let refused = |register| move |error| PlanError::Address { register, error };
        let esp = SysenterEsp::new(strategy.stack(), width).map_err(refused(SysenterEsp::NAME))?;
        let eip = SysenterEip::new(strategy.entry_point(), width).map_err(refused(SysenterEip::NAME))?;
        if guard!("sysenter-misaligned-stack", !strategy.stack().is_multiple_of(16)) {
            return Err(PlanError::MisalignedStack {
                stack: strategy.stack(),
            });
        }
        Ok(Self {
            strategy,
            cs: SysenterCs::new(layout),
            esp,
            eip,
        })
    }

    /// Writes the registers and reads them back. SYSENTER is off from the first write to the last.
    ///
    /// This is also how a CPU changes from one strategy to another: a [`Sysenter`] of the old strategy is given up
    /// ([`Sysenter::disable`] and drop), and the new plan installed.
    ///
    /// # Errors
    ///
    /// A register reads other than it was written: an AMD CPU or an emulator that keeps 32 bits. SYSENTER stays off.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, on a CPU that [`SysenterSupport`] was granted for, whose GDT has the plan's layout.
    /// 2. At the strategy's entry point is its stub, mapped and executable in every address space that user code runs in;
    ///    in the case of a trampoline, its code, which leads to such a stub.
    /// 3. The strategy's stack, and the word that RSP is loaded from, are this CPU's alone and mapped in all of them.
    /// 4. Whenever user code runs, that word is the top of the current thread's kernel stack, 16-byte aligned, with nothing
    ///    live on it. With [`WrmsrPerSwitch`], the plan's stack is that of the thread which runs now.
    /// 5. #DB, NMI and #MC have IST stacks on this CPU.
    /// 6. No other [`Sysenter`] is in use on this CPU.
    pub unsafe fn install(self, msrs: &mut impl Msr, _irq: &IrqOff) -> Result<Sysenter<S>, InstallError> {
        // SAFETY: condition 1; with a null selector SYSENTER is #GP in user mode, so nothing the registers say is used.
        unsafe { SysenterCs::DISABLED.write(msrs) };
        // SAFETY: conditions 1 and 3; `new` has refused what is not canonical.
        unsafe { self.esp.write(msrs) };
        // SAFETY: conditions 1 and 2; `new` has refused what is not canonical.
        unsafe { self.eip.write(msrs) };
        // SAFETY: condition 1.
        unsafe { read_back(self.esp, msrs) }?;
        // SAFETY: condition 1.
        unsafe { read_back(self.eip, msrs) }?;
        // SAFETY: conditions 1 to 5: what SYSENTER uses is in place.
        unsafe { self.cs.write(msrs) };
        // SAFETY: condition 1.
        if let Err(error) = unsafe { read_back(self.cs, msrs) } {
            // SAFETY: as the first write.
            unsafe { SysenterCs::DISABLED.write(msrs) };
            return Err(error);
        }
        Ok(Sysenter {
            plan: self,
            is_enabled: true,
            not_send: core::marker::PhantomData,
        })
    }

    /// The strategy.
    #[must_use]
    pub const fn strategy(&self) -> &S {
        &self.strategy
    }
}

impl<S> fmt::Display for SysenterPlan<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:#010x}  {:#018x}",
            SysenterEsp::NAME,
            SysenterEsp::NUMBER,
            self.esp.bits()
        )?;
        writeln!(
            f,
            "{:<12} {:#010x}  {:#018x}",
            SysenterEip::NAME,
            SysenterEip::NUMBER,
            self.eip.bits()
        )?;
        write!(
            f,
            "{:<12} {:#010x}  {:#018x}",
            SysenterCs::NAME,
            SysenterCs::NUMBER,
            self.cs.bits()
        )
    }
}

/// # Safety
///
/// 1. CPL is 0, and the CPU has the register.
unsafe fn read_back<R: Register>(planned: R, msrs: &mut impl Msr) -> Result<(), InstallError> {
    // SAFETY: condition 1.
    let found = unsafe { R::read(msrs) };
    if !guard!("sysenter-read-back", found.bits() != planned.bits()) {
        return Ok(());
    }
    Err(InstallError::ReadBack {
        number: R::NUMBER,
        name: R::NAME,
        planned: planned.bits(),
        found: found.bits(),
    })
}

/// SYSENTER on one CPU, installed. Neither `Copy` nor `Send`: it stays on its CPU.
#[derive(Debug)]
pub struct Sysenter<S> {
    plan: SysenterPlan<S>,
    is_enabled: bool,
    not_send: core::marker::PhantomData<*mut ()>,
}

assert_not_impl_any!(Sysenter<WrmsrPerSwitch>: Copy, Clone, Send, Sync);

impl<S: Strategy> Sysenter<S> {
    /// The part of a context switch that belongs to SYSENTER: one WRMSR with [`WrmsrPerSwitch`], unless the stack is the same
    /// as before; nothing with the others.
    ///
    /// `IA32_SYSENTER_CS` is not written: it changes only in [`Sysenter::disable`] and [`Sysenter::enable`].
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, on the CPU on which this was installed.
    /// 2. `stack` is 16-byte aligned and canonical, the top of the kernel stack of the thread that runs next, with nothing
    ///    live on it.
    #[inline]
    pub unsafe fn switch_to(&mut self, stack: u64, msrs: &mut impl Msr, _irq: &IrqOff) {
        if S::WRITES_MSR_AT_SWITCH && self.plan.esp.bits() != stack {
            self.plan.esp = SysenterEsp::from_bits(stack);
            // SAFETY: conditions 1 and 2; interrupts are off, so no user code runs before the switch is complete.
            unsafe { self.plan.esp.write(msrs) };
        }
    }

    /// Turns SYSENTER off: user code that executes it gets #GP. For a thread that must not enter by it, as 32-bit
    /// kernels have in virtual-8086 mode, where SYSENTER would lose VM. Without effect if it is off.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, on the CPU on which this was installed.
    pub unsafe fn disable(&mut self, msrs: &mut impl Msr, _irq: &IrqOff) {
        if guard!("sysenter-disable", self.is_enabled) {
            // SAFETY: condition 1; a null selector makes SYSENTER #GP before anything else is used.
            unsafe { SysenterCs::DISABLED.write(msrs) };
            self.is_enabled = false;
        }
    }

    /// Turns SYSENTER on again. Without effect if it is on.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0, on the CPU on which this was installed.
    /// 2. What [`SysenterPlan::install`] demanded still holds; the last stack given to [`Sysenter::switch_to`] is that of the
    ///    thread which runs next.
    pub unsafe fn enable(&mut self, msrs: &mut impl Msr, _irq: &IrqOff) {
        if !self.is_enabled {
            // SAFETY: conditions 1 and 2; stack and entry point were written before, and `switch_to` goes on while it is off.
            unsafe { self.plan.cs.write(msrs) };
            self.is_enabled = true;
        }
    }

    /// Whether user code can enter by SYSENTER.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether a #DB in the kernel at `rip`, with DR6.BS set, is a single step that the user armed before SYSENTER: RIP is in
    /// the trampoline, or where [`stub::is_user_step`] knows it.
    #[must_use]
    pub fn is_user_step(&self, rip: u64) -> bool {
        let window = self.plan.strategy.window();
        guard!(
            "sysenter-trampoline-step",
            window.is_some_and(|window| window.contains(&rip))
        ) || stub::is_user_step(rip)
    }

    /// The images as they are now.
    #[must_use]
    pub const fn plan(&self) -> &SysenterPlan<S> {
        &self.plan
    }
}
