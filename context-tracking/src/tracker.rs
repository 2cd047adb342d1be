//! Where the word of this CPU is, and the transitions in each of their forms.
//!
//! A kernel says once, by [`PerCpu`], how a CPU finds its [`CpuWord`]. The forms of tracking are types, each of which
//! implements [`Tracking`], so that entry stubs call them, and [`Tracker`], which adds idle, guest and the quiescent
//! moment:
//!
//! | type | interrupts | a transition costs, optimised, with the word reached by [`Gs`] |
//! |---|---|---|
//! | [`NoTracking`] | – | nothing |
//! | [`Tracked`] | known to be off | 1 instruction: LOCK ADD |
//! | [`IrqSaved`] | saved, turned off and restored each time | 6: PUSHF, POP, CLI, LOCK ADD, PUSH, POPF |
//! | [`Switched`] | as the type inside | that, and one test and branch |
//!
//! The second is what a system call should pay. The third is what Linux did before 2016 on
//! each system call, although its callers had interrupts off already; it is here for callers that really don't know,
//! and to measure the difference.
//!
//! # Checks
//!
//! Where [`PerCpu::CHECKED`] is set, which is the default in builds with debug assertions, each transition first
//! compares the word with what it should be. A wrong one is not made, is named to [`PerCpu::violation`], and poisons the
//! word so that nobody waits for this CPU. Without checks a wrong transition leaves a word that contradicts itself.
//!
//! # Source
//!
//! Intel SDM vol. 2A, *LOCK—Assert LOCK# Signal Prefix* and *CLI—Clear Interrupt Flag*; vol. 2B, *POPF/POPFD/POPFQ—Pop Stack
//! Into EFLAGS Register*, *STI—Set Interrupt Flag*; AMD APM vol. 3, the same instructions; vol. 2, *SWAPGS Instruction*, on data
//! reached through GS.

use core::marker::PhantomData;

use entry_core::{IrqOff, NoTracking, PerCpuHeader, Tracking, UserReturn};

use crate::guard::guard;
use crate::observer::{NoObserver, Observer};
use crate::state::{ACTIVE, CpuWord, State, Transition, Violation, Word, delta};

/// How the CPU that executes this finds its own word.
///
/// # Safety
///
/// 1. While interrupts are off, [`PerCpu::word`] returns the same word each time, and no other CPU gets it.
/// 2. [`PerCpu::load`], [`PerCpu::add`] and [`PerCpu::add_by`], if they are written anew, do to that word what the
///    defaults do, with at least their memory ordering, the last two as one read-modify-write each.
/// 3. Nothing else writes to the word.
/// 4. No function here faults, blocks, or turns interrupts on.
pub unsafe trait PerCpu: Sized + 'static {
    /// Whether transitions are checked before they are made.
    const CHECKED: bool = cfg!(debug_assertions);

    /// This CPU's word.
    fn word() -> &'static CpuWord;

    /// The word's value.
    #[must_use]
    #[inline(always)]
    fn load() -> Word {
        Self::word().load()
    }

    /// Adds to the word.
    #[inline(always)]
    fn add<const DELTA: i32>() {
        Self::word().add(DELTA);
    }

    /// Adds to the word what was found out at run time.
    #[inline(always)]
    fn add_by(delta: i32) {
        Self::word().add(delta);
    }

    /// Whether this CPU is tracked, where [`Switched`] asks.
    #[must_use]
    #[inline(always)]
    fn is_active() -> bool {
        Self::load().is_active()
    }

    /// Hears of a wrong transition, once: the word is poisoned before. The transition is not made.
    ///
    /// The default panics in builds with debug assertions. A kernel that would rather print goes on from here.
    #[cold]
    fn violation(violation: Violation) {
        if cfg!(debug_assertions) {
            stop(violation);
        }
    }
}

#[cold]
#[expect(clippy::panic, reason = "a debug assertion with a name")]
fn stop(violation: Violation) -> ! {
    panic!("context tracking: {violation}");
}

/// Poisons the word and reports, unless that was done before.
#[cold]
#[inline(never)]
fn report<C: PerCpu>(violation: Violation) {
    if guard!("said-once", violation.found().is_poisoned()) {
        return;
    }
    if guard!("poison", true) {
        C::word().poison();
    }
    C::violation(violation);
}

/// Whether `check` finds nothing wrong, or is not asked. Reports what it finds.
#[inline(always)]
fn passes<C: PerCpu>(check: impl FnOnce() -> Result<(), Violation>) -> bool {
    if C::CHECKED
        && let Err(violation) = check()
    {
        report::<C>(violation);
        return !guard!("not-made", true);
    }
    true
}

/// Where the word is in the structure that GS base points at.
///
/// ```
/// use core::mem::offset_of;
/// use context_tracking::{CpuWord, Gs, GsWord, Tracked};
/// use entry_core::PerCpuHeader;
///
/// #[repr(C)]
/// struct PerCpuData {
///     header: PerCpuHeader,
///     tracking: CpuWord,
/// }
/// // SAFETY: 1. the kernel binds the header of each `PerCpuData` and points GS base at it before it installs the stubs.
/// // 2. `tracking` is a field of that structure, and private.
/// unsafe impl GsWord for PerCpuData {
///     const OFFSET: usize = offset_of!(Self, tracking);
/// }
/// type Track = Tracked<Gs<PerCpuData>>;
/// ```
///
/// # Safety
///
/// 1. While a transition is made, GS base is the address of a [`PerCpuHeader`] on which [`PerCpuHeader::bind`] was
///    called, at the start of a structure that lives for ever and belongs to this CPU.
/// 2. A [`CpuWord`] lies at [`GsWord::OFFSET`] of that structure, and nothing else writes to it.
pub unsafe trait GsWord: 'static {
    /// Bytes from GS base to the word, less than 2³¹.
    const OFFSET: usize;
    /// See [`PerCpu::CHECKED`].
    const CHECKED: bool = cfg!(debug_assertions);

    /// See [`PerCpu::violation`].
    #[cold]
    fn violation(violation: Violation) {
        if cfg!(debug_assertions) {
            stop(violation);
        }
    }
}

/// Reaches the word through GS: a transition is one `lock add gs:[OFFSET], constant`.
#[derive(Debug)]
pub struct Gs<G>(PhantomData<G>);

// SAFETY: 1. GS base belongs to this CPU (condition 1 of `GsWord`), and so does what lies at a fixed offset from it.
// 2. See `load` and the two additions. 3. Condition 2 of `GsWord`. 4. They touch that word alone, which is mapped.
unsafe impl<G: GsWord> PerCpu for Gs<G> {
    const CHECKED: bool = G::CHECKED;

    #[inline(always)]
    fn word() -> &'static CpuWord {
        let word: *const CpuWord;
        // SAFETY: the structure starts with its own address, by condition 1 of `GsWord`; the sum is that of the word.
        unsafe {
            core::arch::asm!(
                "mov {word}, gs:[{own}]",
                "add {word}, {offset}",
                word = out(reg) word,
                own = const PerCpuHeader::SELF,
                offset = const G::OFFSET,
                options(nostack, readonly),
            );
        }
        // SAFETY: a `CpuWord` lies there and lives for ever, by both conditions of `GsWord`.
        unsafe { &*word }
    }

    /// One MOV. An aligned load is an acquire on x86-64, and the compiler moves nothing across the statement that
    /// could change the word, since the statement is taken to read all memory.
    #[inline(always)]
    fn load() -> Word {
        let bits: u64;
        // SAFETY: the word lies there by condition 2 of `GsWord`, and is read.
        unsafe {
            core::arch::asm!(
                "mov {bits}, gs:[{offset}]",
                bits = out(reg) bits,
                offset = const G::OFFSET,
                options(nostack, preserves_flags),
            );
        }
        Word::from_bits(bits)
    }

    /// One LOCK ADD: a read-modify-write that nothing is moved across, neither by the CPU nor, since the statement is
    /// taken to write all memory, by the compiler.
    #[inline(always)]
    fn add<const DELTA: i32>() {
        // SAFETY: the word lies there by condition 2 of `GsWord`, and this CPU is its one writer.
        unsafe {
            core::arch::asm!(
                "lock add qword ptr gs:[{offset}], {delta}",
                offset = const G::OFFSET,
                delta = const DELTA,
                options(nostack),
            );
        }
    }

    /// One LOCK ADD, as [`PerCpu::add`].
    #[inline(always)]
    fn add_by(delta: i32) {
        // SAFETY: as in `add`.
        unsafe {
            core::arch::asm!(
                "lock add gs:[{offset}], {delta}",
                offset = const G::OFFSET,
                delta = in(reg) i64::from(delta),
                options(nostack),
            );
        }
    }

    /// One TEST and one branch.
    #[inline(always)]
    fn is_active() -> bool {
        // SAFETY: the word lies there by condition 2 of `GsWord`, and its low byte is read.
        unsafe {
            core::arch::asm!(
                "test byte ptr gs:[{offset}], {active}",
                "jz {inactive}",
                offset = const G::OFFSET,
                active = const ACTIVE,
                inactive = label { return false },
                options(nostack, readonly),
            );
        }
        true
    }

    fn violation(violation: Violation) {
        G::violation(violation);
    }
}

/// What an exception or NMI found, to be put back when it ends. Used once: it is not `Copy`.
#[derive(Debug)]
#[must_use = "the end of the exception or NMI has to put it back"]
pub struct Saved {
    /// State and depth.
    found: Word,
    /// Whether the counter was stepped.
    was_quiescent: bool,
}

impl Saved {
    /// What the CPU was running when the exception or NMI arrived.
    #[must_use]
    pub const fn interrupted(&self) -> State {
        self.found.state()
    }

    /// Whether it was quiescent: in such a handler nothing may be scheduled, since what was interrupted is not a task
    /// in the kernel.
    #[must_use]
    pub const fn was_quiescent(&self) -> bool {
        self.was_quiescent
    }
}

/// [`Tracking`], and the borders that no entry stub sees: idle, guest, and the quiescent moment.
///
/// The typed form of all this is [`Ctx`](crate::Ctx): use that where there is a choice.
///
/// # Safety
///
/// 1. [`Tracker::word`], if it is some word, is that of this CPU, on which the hooks act.
/// 2. While the hooks are called at the borders they name, the word's counter is odd whenever this CPU runs kernel code.
pub unsafe trait Tracker: Tracking {
    /// The CPU has nothing to do and is about to wait.
    ///
    /// # Safety
    ///
    /// 1. The CPU is in the kernel, outside handlers, and only waits until [`Tracker::idle_exit`].
    /// 2. Nothing that an observer could wait for is held.
    unsafe fn idle_enter(irq: &IrqOff);

    /// The idle loop goes on.
    ///
    /// # Safety
    ///
    /// 1. The last border was [`Tracker::idle_enter`].
    unsafe fn idle_exit(irq: &IrqOff);

    /// A virtual machine is about to run.
    ///
    /// # Safety
    ///
    /// 1. The CPU is in the kernel, outside handlers, and runs but the world switch until [`Tracker::guest_exit`].
    /// 2. Nothing that an observer could wait for is held.
    unsafe fn guest_enter(irq: &IrqOff);

    /// A virtual machine has stopped.
    ///
    /// # Safety
    ///
    /// 1. The last border was [`Tracker::guest_enter`].
    unsafe fn guest_exit(irq: &IrqOff);

    /// Two steps of the counter: a quiescent moment.
    ///
    /// # Safety
    ///
    /// 1. The CPU is in the kernel, outside handlers.
    /// 2. Nothing that an observer could wait for is held.
    unsafe fn pass(irq: &IrqOff);

    /// This CPU's word, if there is one.
    fn word() -> Option<&'static CpuWord>;
    /// Checks, where checks are on, that this CPU is in the kernel outside NMI handlers, as `transition` claims.
    fn assert_kernel(transition: Transition);
}

// SAFETY: 1. There is none. 2. So no counter is even.
unsafe impl Tracker for NoTracking {
    #[inline(always)]
    unsafe fn idle_enter(_irq: &IrqOff) {}
    #[inline(always)]
    unsafe fn idle_exit(_irq: &IrqOff) {}
    #[inline(always)]
    unsafe fn guest_enter(_irq: &IrqOff) {}
    #[inline(always)]
    unsafe fn guest_exit(_irq: &IrqOff) {}
    #[inline(always)]
    unsafe fn pass(_irq: &IrqOff) {}
    #[inline(always)]
    fn word() -> Option<&'static CpuWord> {
        None
    }
    #[inline(always)]
    fn assert_kernel(_transition: Transition) {}
}

/// Tracking by callers that are known to have interrupts off, which entry stubs are: the cheap form, and the natural one.
///
/// `O` is told of each change of state while the CPU is watching: see [`Observer`].
///
/// Wrong orders are found at run time, by debug assertions:
///
/// ```should_panic
/// # use context_tracking::{CpuWord, IrqOff, PerCpu, Tracked, Tracker, Tracking};
/// # static WORD: CpuWord = CpuWord::new();
/// # struct Cpu;
/// # unsafe impl PerCpu for Cpu {
/// #     const CHECKED: bool = true;
/// #     fn word() -> &'static CpuWord { &WORD }
/// #     fn violation(v: context_tracking::Violation) { panic!("context tracking: {v}"); }
/// # }
/// # let irq = unsafe { IrqOff::assume() };
/// unsafe { Tracked::<Cpu>::idle_enter(&irq) };
/// let _ = unsafe { Tracked::<Cpu>::user_enter(irq) }; // panics: "user enter in state idle, wanted kernel"
/// ```
///
/// With [`Ctx`](crate::Ctx) most of them don't compile.
#[derive(Debug)]
pub struct Tracked<C, O = NoObserver>(PhantomData<(C, O)>);

impl<C: PerCpu, O: Observer> Tracked<C, O> {
    /// Leaves the kernel for `to`: the observer first, the word last.
    #[inline(always)]
    fn leave<const DELTA: i32>(transition: Transition, to: State) {
        if !passes::<C>(|| C::load().check(transition, State::Kernel)) {
            return;
        }
        O::changed(State::Kernel, to);
        C::add::<DELTA>();
    }

    /// Comes back to the kernel from `from`: the word first, the observer last.
    #[inline(always)]
    fn arrive<const DELTA: i32>(transition: Transition, from: State) {
        if !passes::<C>(|| C::load().check(transition, from)) {
            return;
        }
        C::add::<DELTA>();
        O::changed(from, State::Kernel);
    }
}

// SAFETY: the hooks add to one mapped word, which neither faults nor blocks, and don't touch IF; the observer is bound
// to the same.
unsafe impl<C: PerCpu, O: Observer> Tracking for Tracked<C, O> {
    const ENABLED: bool = true;
    type Saved = Saved;

    #[inline(always)]
    unsafe fn user_exit(_irq: &IrqOff) {
        Self::arrive::<{ delta::EXIT_USER }>(Transition::UserExit, State::User);
    }

    #[inline(always)]
    unsafe fn user_enter(irq: IrqOff) -> UserReturn {
        Self::leave::<{ delta::ENTER_USER }>(Transition::UserEnter, State::User);
        // SAFETY: 1. and 3. by the caller's 3 and 1. 2. The line above.
        unsafe { UserReturn::new(irq) }
    }

    /// Nothing is written where the kernel itself was interrupted: one load, one branch.
    ///
    /// An NMI between the load and the addition changes nothing that was decided by the load, since it puts state and
    /// depth back and steps the counter twice or not at all.
    #[inline(always)]
    unsafe fn exception_enter(_irq: &IrqOff) -> Saved {
        let found = C::load();
        passes::<C>(|| found.check_begin(Transition::ExceptionEnter));
        let was_quiescent = !found.is_watching();
        if was_quiescent {
            C::add_by(found.exit_delta());
            O::changed(found.state(), State::Kernel);
        }
        Saved { found, was_quiescent }
    }

    #[inline(always)]
    unsafe fn exception_exit(_irq: &IrqOff, saved: Saved) {
        let place = if saved.was_quiescent {
            State::Kernel as u64
        } else {
            saved.found.place()
        };
        if !passes::<C>(|| C::load().check_end(Transition::ExceptionExit, place)) {
            return;
        }
        if saved.was_quiescent {
            O::changed(State::Kernel, saved.found.state());
            C::add_by(saved.found.enter_delta());
        }
    }

    /// Counts, and steps the counter if the CPU was quiescent. The state stays and the observer isn't told: an NMI may
    /// have interrupted the observer. See [`Tracking::exception_enter`] on a second NMI between load and addition.
    #[inline(always)]
    unsafe fn nmi_enter(_irq: &IrqOff) -> Saved {
        let found = C::load();
        passes::<C>(|| found.check_begin(Transition::NmiEnter));
        let was_quiescent = !found.is_watching();
        if was_quiescent {
            C::add::<{ delta::ENTER_NMI_QUIESCENT }>();
        } else {
            C::add::<{ delta::ENTER_NMI }>();
        }
        Saved { found, was_quiescent }
    }

    #[inline(always)]
    unsafe fn nmi_exit(_irq: &IrqOff, saved: Saved) {
        let place = saved.found.place().wrapping_add(delta::ENTER_NMI as u64);
        if !passes::<C>(|| C::load().check_end(Transition::NmiExit, place)) {
            return;
        }
        if saved.was_quiescent {
            C::add::<{ delta::EXIT_NMI_QUIESCENT }>();
        } else {
            C::add::<{ delta::EXIT_NMI }>();
        }
    }
}

// SAFETY: 1. `PerCpu::word`, on which `load` and `add` act. 2. The constants of `delta` step the counter exactly where
// kernel code begins or ends; exceptions and NMIs decide by the counter itself.
unsafe impl<C: PerCpu, O: Observer> Tracker for Tracked<C, O> {
    #[inline(always)]
    unsafe fn idle_enter(_irq: &IrqOff) {
        Self::leave::<{ delta::ENTER_IDLE }>(Transition::IdleEnter, State::Idle);
    }

    #[inline(always)]
    unsafe fn idle_exit(_irq: &IrqOff) {
        Self::arrive::<{ delta::EXIT_IDLE }>(Transition::IdleExit, State::Idle);
    }

    #[inline(always)]
    unsafe fn guest_enter(_irq: &IrqOff) {
        Self::leave::<{ delta::ENTER_GUEST }>(Transition::GuestEnter, State::Guest);
    }

    #[inline(always)]
    unsafe fn guest_exit(_irq: &IrqOff) {
        Self::arrive::<{ delta::EXIT_GUEST }>(Transition::GuestExit, State::Guest);
    }

    #[inline(always)]
    unsafe fn pass(_irq: &IrqOff) {
        if !passes::<C>(|| C::load().check(Transition::Pass, State::Kernel)) {
            return;
        }
        C::add::<{ delta::PASS }>();
    }

    #[inline(always)]
    fn word() -> Option<&'static CpuWord> {
        Some(C::word())
    }

    #[inline(always)]
    fn assert_kernel(transition: Transition) {
        if guard!("kernel-claim", true) {
            passes::<C>(|| C::load().check(transition, State::Kernel));
        }
    }
}

/// Tracking by callers that don't know whether interrupts are on: each transition saves IF, clears it, and restores it.
///
/// As a kernel's [`Tracking`] it is correct and slower than [`Tracked`]. It is there to measure by how much, so it
/// restores IF as it was done at the time, by POPF, which is slow on every CPU. Where the caller really doesn't know,
/// [`Ctx`](crate::Ctx) with [`IrqUnknown`](crate::IrqUnknown) is the form to use: it goes by [`IrqGuard`](entry_core::IrqGuard).
///
#[derive(Debug)]
pub struct IrqSaved<T>(PhantomData<T>);

/// Saves RFLAGS and turns interrupts off. On a host, where CLI is a privileged instruction, it only saves.
#[inline(always)]
fn save_flags() -> u64 {
    let flags: u64;
    // SAFETY: PUSHF and POP leave the stack as it was.
    unsafe {
        core::arch::asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags));
    }
    #[cfg(all(target_os = "none", not(ablate = "irq-saved-off")))]
    // SAFETY: CLI changes IF alone, which `restore_flags` restores. It may not be moved into or out of the stretch that
    // it guards, so it counts as an access to memory.
    unsafe {
        core::arch::asm!("cli", options(nostack, preserves_flags));
    }
    flags
}

/// Restores what [`save_flags`] returned.
#[inline(always)]
fn restore_flags(flags: u64) {
    #[cfg(not(ablate = "irq-saved-restored"))]
    // SAFETY: PUSH and POPF leave the stack as it was, and RFLAGS as `save_flags` found it, so IF is on only if it was.
    unsafe {
        core::arch::asm!("push {}", "popfq", in(reg) flags);
    }
    #[cfg(ablate = "irq-saved-restored")]
    let _ = flags;
}

macro_rules! around {
    ($($irq:ident: $hook:ident;)*) => {
        $(
            #[inline(always)]
            unsafe fn $hook($irq: &IrqOff) {
                let flags = save_flags();
                // SAFETY: by the same conditions.
                unsafe { T::$hook($irq) };
                restore_flags(flags);
            }
        )*
    };
}

// SAFETY: the hooks are those of `T`; IF is as it was after each.
unsafe impl<T: Tracking> Tracking for IrqSaved<T> {
    const ENABLED: bool = T::ENABLED;
    type Saved = T::Saved;

    around! {
        irq: user_exit;
    }

    #[inline(always)]
    unsafe fn user_enter(irq: IrqOff) -> UserReturn {
        let flags = save_flags();
        // SAFETY: by the same conditions.
        let leaving = unsafe { T::user_enter(irq) };
        restore_flags(flags);
        leaving
    }

    #[inline(always)]
    unsafe fn exception_enter(irq: &IrqOff) -> T::Saved {
        let flags = save_flags();
        // SAFETY: by the same conditions.
        let saved = unsafe { T::exception_enter(irq) };
        restore_flags(flags);
        saved
    }

    #[inline(always)]
    unsafe fn exception_exit(irq: &IrqOff, saved: T::Saved) {
        let flags = save_flags();
        // SAFETY: by the same conditions.
        unsafe { T::exception_exit(irq, saved) };
        restore_flags(flags);
    }

    /// Not saved: an NMI handler has interrupts off, whoever was interrupted.
    #[inline(always)]
    unsafe fn nmi_enter(irq: &IrqOff) -> T::Saved {
        // SAFETY: by the same conditions.
        unsafe { T::nmi_enter(irq) }
    }

    #[inline(always)]
    unsafe fn nmi_exit(irq: &IrqOff, saved: T::Saved) {
        // SAFETY: by the same conditions.
        unsafe { T::nmi_exit(irq, saved) };
    }
}

// SAFETY: 1 and 2 hold as they do for `T`.
unsafe impl<T: Tracker> Tracker for IrqSaved<T> {
    around! {
        irq: idle_enter;
        irq: idle_exit;
        irq: guest_enter;
        irq: guest_exit;
        irq: pass;
    }

    #[inline(always)]
    fn word() -> Option<&'static CpuWord> {
        T::word()
    }

    #[inline(always)]
    fn assert_kernel(transition: Transition) {
        T::assert_kernel(transition);
    }
}

/// Tracking that each CPU can turn on and off for itself: one test and a predictable branch when it is off.
///
/// The switch is a bit of the word itself, and not one for all CPUs: a CPU that is in user mode while it is thrown would
/// come back through a border it never went out by. While it is off the word stays at "kernel, watching", so an
/// observer waits rather than frees too early.
///
/// ```
/// # use context_tracking::{CpuWord, IrqOff, PerCpu, State, Switched, Tracked, Tracking};
/// # static WORD: CpuWord = CpuWord::new();
/// # struct Cpu;
/// # unsafe impl PerCpu for Cpu { fn word() -> &'static CpuWord { &WORD } }
/// # let irq = unsafe { IrqOff::assume() };
/// type Track = Switched<Cpu, Tracked<Cpu>>;
/// # unsafe {
/// let irq = Track::user_enter(irq).into_irq_off();
/// assert_eq!(WORD.load().state(), State::Kernel); // off
/// Track::user_exit(&irq);
/// Track::activate(&irq);
/// let _leaving = Track::user_enter(irq);
/// # }
/// assert_eq!(WORD.load().state(), State::User);
/// ```
#[derive(Debug)]
pub struct Switched<C, T>(PhantomData<(C, T)>);

impl<C: PerCpu, T: Tracker> Switched<C, T> {
    /// Turns tracking on for this CPU. The word says "kernel" from now on, whatever it said.
    ///
    /// # Safety
    ///
    /// 1. The CPU is in the kernel, outside NMI handlers and outside exception handlers that interrupted user, idle or
    ///    guest: their end would restore what they didn't save.
    /// 2. The next border is reported by hooks of this type, or the word is put right before it.
    pub unsafe fn activate(_irq: &IrqOff) {
        C::word().set_active(true);
    }

    /// Turns tracking off for this CPU.
    ///
    /// # Safety
    ///
    /// 1. As [`Switched::activate`], and the word says "kernel".
    pub unsafe fn deactivate(_irq: &IrqOff) {
        T::assert_kernel(Transition::Kernel);
        C::word().set_active(false);
    }
}

macro_rules! when_active {
    ($($irq:ident: $hook:ident;)*) => {
        $(
            #[inline(always)]
            unsafe fn $hook($irq: &IrqOff) {
                if C::is_active() {
                    // SAFETY: by the same conditions.
                unsafe { T::$hook($irq) };
                }
            }
        )*
    };
}

// SAFETY: the hooks are those of `T`, or nothing.
unsafe impl<C: PerCpu, T: Tracker> Tracking for Switched<C, T> {
    const ENABLED: bool = T::ENABLED;
    type Saved = Option<T::Saved>;

    when_active! {
        irq: user_exit;
    }

    #[inline(always)]
    unsafe fn user_enter(irq: IrqOff) -> UserReturn {
        if C::is_active() {
            // SAFETY: by the same conditions.
            unsafe { T::user_enter(irq) }
        } else {
            // SAFETY: by the same conditions.
            unsafe { NoTracking::user_enter(irq) }
        }
    }

    #[inline(always)]
    unsafe fn exception_enter(irq: &IrqOff) -> Option<T::Saved> {
        if C::is_active() {
            // SAFETY: by the same condition.
            Some(unsafe { T::exception_enter(irq) })
        } else {
            None
        }
    }

    #[inline(always)]
    unsafe fn exception_exit(irq: &IrqOff, saved: Option<T::Saved>) {
        if let Some(saved) = saved {
            // SAFETY: by the same conditions.
            unsafe { T::exception_exit(irq, saved) };
        }
    }

    #[inline(always)]
    unsafe fn nmi_enter(irq: &IrqOff) -> Option<T::Saved> {
        if C::is_active() {
            // SAFETY: by the same condition.
            Some(unsafe { T::nmi_enter(irq) })
        } else {
            None
        }
    }

    #[inline(always)]
    unsafe fn nmi_exit(irq: &IrqOff, saved: Option<T::Saved>) {
        if let Some(saved) = saved {
            // SAFETY: by the same conditions.
            unsafe { T::nmi_exit(irq, saved) };
        }
    }
}

// SAFETY: 1. As for `T`. 2. While it is off the word says "kernel", with an odd counter: `deactivate` is called there
// and `activate` puts it there.
unsafe impl<C: PerCpu, T: Tracker> Tracker for Switched<C, T> {
    when_active! {
        irq: idle_enter;
        irq: idle_exit;
        irq: guest_enter;
        irq: guest_exit;
        irq: pass;
    }

    #[inline(always)]
    fn word() -> Option<&'static CpuWord> {
        T::word()
    }

    #[inline(always)]
    fn assert_kernel(transition: Transition) {
        if C::is_active() {
            T::assert_kernel(transition);
        }
    }
}
