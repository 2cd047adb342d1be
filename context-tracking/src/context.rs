//! Contexts as values: what a CPU runs and whether interrupts can arrive, in the type.
//!
//! A [`Ctx<S, I, T>`] is a claim about the CPU that holds it: it is in state `S`, with interrupts as `I` says, tracked by
//! `T`. Each transition consumes the claim and returns the next one, and exists only on the claims it may start from.
//! So a wrong order is a type error:
//!
//! | mistake | what stops it |
//! |---|---|
//! | user, idle or guest entered with interrupts on | the methods exist for [`IrqOff`] only |
//! | entered twice | the first consumed the claim |
//! | entered from an NMI or exception handler | [`Nmi`] and [`Exception`] have no such methods |
//! | entered with a claim from before a schedule | [`Ctx::schedule`] consumes it and returns one for the CPU of afterwards |
//! | scheduled outside the kernel | [`Ctx::schedule`] exists for [`Kernel`] only |
//! | carried to another CPU by another thread | claims are not `Send` |
//! | forgotten, by `mem::forget` or an early return | the handler has to *return* what the claim held: [`IrqOff`] or [`UserReturn`] |
//! | an exit without a claim | a [`UserReturn`] comes from a [`ReadyToExit`], and that from a claim |
//!
//! Types can't see what arrives asynchronously, nor what the entry stub has done before: where a handler begins, what its
//! first claim says is for an `unsafe` block to answer for. Beyond that there are the [word](crate::state) and the checks on it.
//!
//! There is no `Drop` guard: a guard can be leaked, a value that has to be returned can't.
//!
//! # Source
//!
//! Linux kernel documentation, *Entry/exit handling for exceptions, interrupts, syscalls and KVM*: which state an entry
//! may start from, and that an interrupt which arrived in the kernel gets a state to hand back. Intel SDM vol. 3A, *Handling
//! Multiple NMIs*, on NMIs inside NMIs.

use core::fmt;
use core::marker::PhantomData;

use entry_core::{IrqGuard, IrqOff, IrqOn, UserEntry, UserReturn};
use static_assertions::assert_not_impl_any;

use crate::state::Transition;
use crate::tracker::Tracker;

/// In the kernel.
#[derive(Debug)]
pub enum Kernel {}
/// About to run a user program, or just back from one.
#[derive(Debug)]
pub enum User {}
/// Waiting for an interrupt.
#[derive(Debug)]
pub enum Idle {}
/// About to run a virtual machine, or just back from one.
#[derive(Debug)]
pub enum Guest {}

/// Nobody here knows whether interrupts are on. Transitions from here save IF and restore it.
#[derive(Debug)]
pub struct IrqUnknown(PhantomData<*mut ()>);

/// A claim: this CPU is in state `S`, with interrupts as `I` says, tracked by `T`. See the [module](self).
///
/// A claim has no size. `S` is [`Kernel`], [`User`], [`Idle`] or [`Guest`]; `I` is [`IrqOff`], [`IrqOn`] or
/// [`IrqUnknown`].
///
/// A handler behind the stubs of `entry-core`, which make the transitions at both ends themselves:
///
/// ```
/// use context_tracking::{Ctx, IrqOff, Kernel, Tracker, UserEntry};
///
/// fn syscall<T: Tracker>(entry: UserEntry) -> IrqOff {
///     // SAFETY: 1. the kernel's `Tracking` is `T`.
///     let ctx = unsafe { Ctx::<Kernel, IrqOff, T>::entered_from_user(entry) };
///     let ctx = ctx.irqs_on();
///     // the system call
///     ctx.irqs_off().into_irq_off()
/// }
/// ```
///
/// A handler of a kernel with stubs of its own, which makes them:
///
/// ```
/// use context_tracking::{Ctx, IrqOff, Kernel, Tracker, UserEntry, UserReturn};
///
/// fn syscall<T: Tracker>(entry: UserEntry) -> UserReturn {
///     // SAFETY: 1. the kernel's own stubs tell nobody.
///     let ctx = unsafe { Ctx::<Kernel, IrqOff, T>::enter_from_user(entry) };
///     let ctx = ctx.irqs_on();
///     // the system call
///     let mut ctx = ctx.irqs_off();
///     loop {
///         ctx = match ctx.exit_work(|_irq| false) {
///             Ok(ready) => return ready.user_enter(),
///             Err(ctx) => ctx.schedule(|_irq| {}),
///         }
///     }
/// }
/// ```
///
/// # What does not compile
///
/// User mode entered with interrupts on:
///
/// ```compile_fail,E0599
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User};
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let ctx = ctx.irqs_on();
///     ctx.user_enter()
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User};
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let ctx = ctx.irqs_on().irqs_off();
///     ctx.user_enter()
/// }
/// ```
///
/// Entered twice:
///
/// ```compile_fail,E0382
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User};
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let _user = ctx.user_enter();
///     ctx.user_enter()
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User};
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let user = ctx.user_enter();
///     user.user_exit().user_enter()
/// }
/// ```
///
/// Entered with a claim from before a schedule:
///
/// ```compile_fail,E0382
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User};
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let _after = ctx.schedule(|_irq| {});
///     ctx.user_enter()
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User};
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let after = ctx.schedule(|_irq| {});
///     after.user_enter()
/// }
/// ```
///
/// Scheduled outside the kernel:
///
/// ```compile_fail,E0599
/// # use context_tracking::{Ctx, Idle, IrqOff, Kernel, Tracker};
/// fn doze<T: Tracker>(ctx: Ctx<Idle, IrqOff, T>) -> Ctx<Kernel, IrqOff, T> {
///     ctx.schedule(|_irq| {})
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, Idle, IrqOff, Kernel, Tracker};
/// fn doze<T: Tracker>(ctx: Ctx<Idle, IrqOff, T>) -> Ctx<Kernel, IrqOff, T> {
///     ctx.idle_exit().schedule(|_irq| {})
/// }
/// ```
///
/// A claim carried to another thread, which is to say another CPU:
///
/// ```compile_fail,E0277
/// # use context_tracking::{Ctx, IrqOff, Kernel, NoTracking, UserEntry};
/// fn elsewhere(entry: UserEntry) {
///     let ctx = unsafe { Ctx::<Kernel, IrqOff, NoTracking>::enter_from_user(entry) };
///     std::thread::spawn(move || drop(ctx));
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, NoTracking, UserEntry};
/// fn elsewhere(entry: UserEntry) {
///     let ctx = unsafe { Ctx::<Kernel, IrqOff, NoTracking>::enter_from_user(entry) };
///     std::thread::spawn(move || drop(())); drop(ctx);
/// }
/// ```
///
/// A claim forgotten on the way out, in both kinds of handler:
///
/// ```compile_fail,E0308
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker};
/// fn finish<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> IrqOff {
///     core::mem::forget(ctx)
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker};
/// fn finish<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> IrqOff {
///     ctx.into_irq_off()
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use context_tracking::{Ctx, IrqOff, Kernel, ReadyToExit, Tracker, UserReturn};
/// fn finish<T: Tracker>(ready: ReadyToExit<T>) -> UserReturn {
///     core::mem::forget(ready)
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, ReadyToExit, Tracker, UserReturn};
/// fn finish<T: Tracker>(ready: ReadyToExit<T>) -> UserReturn {
///     ready.user_enter()
/// }
/// ```
///
/// An exit without a look at pending work:
///
/// ```compile_fail,E0308
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, UserReturn};
/// fn finish<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> UserReturn {
///     ctx.user_enter()
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, UserReturn};
/// fn finish<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Option<UserReturn> {
///     Some(ctx.exit_work(|_irq| false).ok()?.user_enter())
/// }
/// ```
///
/// A transition that the stub may have made already, without a word about it: the second one would make this CPU count as
/// quiescent while it runs kernel code, and an observer would free what is in use here.
///
/// ```compile_fail,E0133
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, UserEntry};
/// fn begin<T: Tracker>(entry: UserEntry) -> Ctx<Kernel, IrqOff, T> {
///     Ctx::enter_from_user(entry)
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, UserEntry};
/// unsafe fn begin<T: Tracker>(entry: UserEntry) -> Ctx<Kernel, IrqOff, T> {
///     unsafe { Ctx::enter_from_user(entry) }
/// }
/// ```
///
/// An exit without a claim:
///
/// ```compile_fail,E0133
/// # use context_tracking::{IrqOff, UserReturn};
/// fn finish(irq: IrqOff) -> UserReturn {
///     UserReturn::new(irq)
/// }
/// ```
///
/// ```
/// # use context_tracking::{IrqOff, UserReturn};
/// unsafe fn finish(irq: IrqOff) -> UserReturn {
///     unsafe { UserReturn::new(irq) }
/// }
/// ```
#[must_use = "the claim is handed on: to the next transition, or as a `UserReturn` to the entry stub"]
pub struct Ctx<S, I, T> {
    irq: I,
    state: PhantomData<(S, T)>,
}

assert_not_impl_any!(Ctx<Kernel, IrqOff, ()>: Copy, Clone, Send, Sync);
assert_not_impl_any!(Ctx<Kernel, IrqOn, ()>: Copy, Clone, Send, Sync);
assert_not_impl_any!(Ctx<Kernel, IrqUnknown, ()>: Copy, Clone, Send, Sync);

impl<S, I: fmt::Debug, T> fmt::Debug for Ctx<S, I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ctx")
            .field(&core::any::type_name::<S>())
            .field(&self.irq)
            .finish()
    }
}

impl<S, I, T> Ctx<S, I, T> {
    const fn new(irq: I) -> Self {
        Self {
            irq,
            state: PhantomData,
        }
    }
}

impl<S, T> Ctx<S, IrqOff, T> {
    /// The fact that interrupts are off, borrowed.
    #[inline(always)]
    pub const fn irq_off(&self) -> &IrqOff {
        &self.irq
    }
}

impl<I, T: Tracker> Ctx<Kernel, I, T> {
    /// A witness that this CPU is watching, for as long as the claim is not used for anything else.
    #[must_use]
    #[inline(always)]
    pub const fn watching(&self) -> Watching<'_, T> {
        Watching(PhantomData)
    }

    /// Gives up the knowledge of whether interrupts are on.
    #[inline(always)]
    pub fn forget_irq(self) -> Ctx<Kernel, IrqUnknown, T> {
        Ctx::new(IrqUnknown(PhantomData))
    }
}

impl<T: Tracker> Ctx<Kernel, IrqOff, T> {
    /// Makes the transition from user mode, at the start of a handler. For kernels whose stubs make none themselves:
    /// with `entry-core` that is where `Kernel::Tracking` is [`NoTracking`](crate::NoTracking) and `T` another.
    ///
    /// # Safety
    ///
    /// 1. The transition has not been made for this entry: the stub that `entry` comes from tells nobody who writes to the
    ///    word of `T`.
    #[inline(always)]
    pub unsafe fn enter_from_user(entry: UserEntry) -> Self {
        let irq = entry.into_irq_off();
        // SAFETY: 1. `entry` says that user mode was just left. 2. It is used up, and condition 1.
        unsafe { T::user_exit(&irq) };
        Self::new(irq)
    }

    /// The claim of a handler whose stub has made the transition already: with `entry-core` that is where
    /// `Kernel::Tracking` is `T`. Such a handler ends with [`Ctx::into_irq_off`].
    ///
    /// # Safety
    ///
    /// 1. The transition has been made for this entry: the stub that `entry` comes from tells `T`.
    #[inline(always)]
    pub unsafe fn entered_from_user(entry: UserEntry) -> Self {
        T::assert_kernel(Transition::Kernel);
        Self::new(entry.into_irq_off())
    }

    /// The first claim of a CPU at boot, and of a thread that starts in the kernel.
    ///
    /// # Safety
    ///
    /// 1. This CPU's word says kernel, outside NMI handlers, as a new word does.
    /// 2. Whatever runs here has no other claim, and is not an exception or NMI handler.
    #[inline(always)]
    pub unsafe fn assume(irq: IrqOff) -> Self {
        T::assert_kernel(Transition::Kernel);
        Self::new(irq)
    }

    /// Turns interrupts on.
    #[inline(always)]
    pub fn irqs_on(self) -> Ctx<Kernel, IrqOn, T> {
        Ctx::new(self.irq.enable())
    }

    /// Ends the typed form: what remains is the fact that interrupts are off, and that the CPU is in the kernel.
    #[inline(always)]
    pub const fn into_irq_off(self) -> IrqOff {
        self.irq
    }

    /// Makes the transition to user mode, for a kernel that calls user mode and gets an event back. What may follow
    /// until [`Ctx::user_exit`] is that call.
    #[inline(always)]
    pub fn user_enter(self) -> Ctx<User, IrqOff, T> {
        // SAFETY: 1. what may follow is the call of user mode. 2. The claim is used up. 3. No witness borrows it.
        let leaving = unsafe { T::user_enter(self.irq) };
        // SAFETY: 1. the state is that of user mode by intent, and the new claim says so.
        Ctx::new(unsafe { leaving.into_irq_off() })
    }

    /// Makes the transition to idle.
    #[inline(always)]
    pub fn idle_enter(self) -> Ctx<Idle, IrqOff, T> {
        // SAFETY: 1. the claim was "kernel" and is used up. 2. Nothing borrows it.
        unsafe { T::idle_enter(&self.irq) };
        Ctx::new(self.irq)
    }

    /// Makes the transition to guest.
    #[inline(always)]
    pub fn guest_enter(self) -> Ctx<Guest, IrqOff, T> {
        // SAFETY: 1. the claim was "kernel" and is used up. 2. Nothing borrows it.
        unsafe { T::guest_enter(&self.irq) };
        Ctx::new(self.irq)
    }

    /// Switches to another task, and returns a claim for the CPU on which this one goes on.
    ///
    /// `switch` returns when this task is resumed, perhaps on another CPU; that CPU was in the kernel too, as is every
    /// CPU that switches. For observers this is a quiescent moment: nothing that borrows a claim is alive.
    #[inline(always)]
    pub fn schedule(self, switch: impl FnOnce(&IrqOff)) -> Self {
        // SAFETY: 1. the claim is "kernel". 2. It is borrowed by nobody else.
        unsafe { T::pass(&self.irq) };
        switch(&self.irq);
        T::assert_kernel(Transition::Schedule);
        Self::new(self.irq)
    }

    /// Tells observers that this CPU holds nothing they would have to wait for, at this moment. For long loops that
    /// stay in the kernel.
    #[inline(always)]
    pub fn pass(&mut self) {
        // SAFETY: 1. the claim is "kernel". 2. It is borrowed by nobody else.
        unsafe { T::pass(&self.irq) };
    }

    /// Asks whether anything is left to do before user mode, with interrupts off and staying so.
    ///
    /// # Errors
    ///
    /// There is: the claim comes back, so that it can be done.
    #[inline(always)]
    pub fn exit_work(self, is_pending: impl FnOnce(&IrqOff) -> bool) -> Result<ReadyToExit<T>, Self> {
        if is_pending(&self.irq) {
            Err(self)
        } else {
            Ok(ReadyToExit(self))
        }
    }
}

impl<T: Tracker> Ctx<Kernel, IrqOn, T> {
    /// Turns interrupts off.
    #[inline(always)]
    pub fn irqs_off(self) -> Ctx<Kernel, IrqOff, T> {
        Ctx::new(self.irq.disable())
    }
}

/// Interrupts off for one transition.
#[inline(always)]
fn save_irq() -> IrqGuard {
    // SAFETY: 1. the callers drop it when the transition is made, which leaves IF alone.
    unsafe { IrqGuard::new() }
}

/// Transitions for callers that don't know whether interrupts are on. PUSHF, CLI and a conditional STI around each: where
/// the fact is known, use the other form.
///
/// ```
/// use context_tracking::{Ctx, IrqOff, IrqUnknown, Kernel, Tracker};
///
/// fn wait_anyhow<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>, halt: impl FnOnce()) -> Ctx<Kernel, IrqUnknown, T> {
///     let idle = ctx.forget_irq().idle_enter_irqsave();
///     halt();
///     idle.idle_exit_irqsave()
/// }
/// ```
impl<T: Tracker> Ctx<Kernel, IrqUnknown, T> {
    /// [`Ctx::user_enter`], with IF saved around it.
    #[inline(always)]
    pub fn user_enter_irqsave(self) -> Ctx<User, IrqUnknown, T> {
        let _guard = save_irq();
        // SAFETY: the guard turned interrupts off and outlives the proof, which is given up at once.
        let irq = unsafe { IrqOff::assume() };
        // SAFETY: as in the other form.
        let _leaving = unsafe { T::user_enter(irq) };
        Ctx::new(self.irq)
    }

    /// [`Ctx::idle_enter`], with IF saved around it.
    #[inline(always)]
    pub fn idle_enter_irqsave(self) -> Ctx<Idle, IrqUnknown, T> {
        // SAFETY: 1. the claim was "kernel" and is used up. 2. Nothing borrows it.
        unsafe { T::idle_enter(save_irq().irq_off()) };
        Ctx::new(self.irq)
    }

    /// [`Ctx::guest_enter`], with IF saved around it.
    #[inline(always)]
    pub fn guest_enter_irqsave(self) -> Ctx<Guest, IrqUnknown, T> {
        // SAFETY: 1. the claim was "kernel" and is used up. 2. Nothing borrows it.
        unsafe { T::guest_enter(save_irq().irq_off()) };
        Ctx::new(self.irq)
    }
}

impl<T: Tracker> Ctx<User, IrqUnknown, T> {
    /// [`Ctx::user_exit`], with IF saved around it.
    #[inline(always)]
    pub fn user_exit_irqsave(self) -> Ctx<Kernel, IrqUnknown, T> {
        // SAFETY: 1. the call of user mode has returned. 2. The claim was "user" and is used up.
        unsafe { T::user_exit(save_irq().irq_off()) };
        Ctx::new(self.irq)
    }
}

impl<T: Tracker> Ctx<Idle, IrqUnknown, T> {
    /// [`Ctx::idle_exit`], with IF saved around it.
    #[inline(always)]
    pub fn idle_exit_irqsave(self) -> Ctx<Kernel, IrqUnknown, T> {
        // SAFETY: the claim was "idle" and is used up.
        unsafe { T::idle_exit(save_irq().irq_off()) };
        Ctx::new(self.irq)
    }
}

impl<T: Tracker> Ctx<Guest, IrqUnknown, T> {
    /// [`Ctx::guest_exit`], with IF saved around it.
    #[inline(always)]
    pub fn guest_exit_irqsave(self) -> Ctx<Kernel, IrqUnknown, T> {
        // SAFETY: the claim was "guest" and is used up.
        unsafe { T::guest_exit(save_irq().irq_off()) };
        Ctx::new(self.irq)
    }
}

impl<T: Tracker> Ctx<User, IrqOff, T> {
    /// Makes the transition back from user mode.
    #[inline(always)]
    pub fn user_exit(self) -> Ctx<Kernel, IrqOff, T> {
        // SAFETY: 1. the call of user mode has returned. 2. The claim was "user" and is used up.
        unsafe { T::user_exit(&self.irq) };
        Ctx::new(self.irq)
    }
}

impl<T: Tracker> Ctx<Idle, IrqOff, T> {
    /// Waits: `halt` turns interrupts on, halts, and turns them off again. What arrives meanwhile is tracked as an
    /// exception on top of idle, which can't schedule; the idle loop does, after [`Ctx::idle_exit`].
    ///
    /// On x86-64 `halt` must be STI directly followed by HLT, or an interrupt between them is slept through.
    #[inline(always)]
    pub fn wait(self, halt: impl FnOnce(IrqOff) -> IrqOff) -> Self {
        Self::new(halt(self.irq))
    }

    /// Makes the transition back from idle.
    #[inline(always)]
    pub fn idle_exit(self) -> Ctx<Kernel, IrqOff, T> {
        // SAFETY: the claim was "idle" and is used up.
        unsafe { T::idle_exit(&self.irq) };
        Ctx::new(self.irq)
    }
}

impl<T: Tracker> Ctx<Guest, IrqOff, T> {
    /// Runs the virtual machine until it stops. Nothing but world-switch code belongs into `run`.
    #[inline(always)]
    pub fn run<R>(&mut self, run: impl FnOnce(&IrqOff) -> R) -> R {
        run(&self.irq)
    }

    /// Makes the transition back from guest.
    #[inline(always)]
    pub fn guest_exit(self) -> Ctx<Kernel, IrqOff, T> {
        // SAFETY: the claim was "guest" and is used up.
        unsafe { T::guest_exit(&self.irq) };
        Ctx::new(self.irq)
    }
}

/// A kernel context with nothing left to do: what [`Ctx::exit_work`] gives, and the only way to a [`UserReturn`] here.
#[must_use = "the handler owes a `UserReturn`"]
pub struct ReadyToExit<T>(Ctx<Kernel, IrqOff, T>);

impl<T> fmt::Debug for ReadyToExit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadyToExit").field(&self.0).finish()
    }
}

impl<T: Tracker> ReadyToExit<T> {
    /// Makes the transition to user mode; the last thing before the handler returns.
    #[inline(always)]
    pub fn user_enter(self) -> UserReturn {
        // SAFETY: 1. it is the last thing before the handler returns. 2. The claim is used up. 3. `exit_work` found none.
        unsafe { T::user_enter(self.0.irq) }
    }

    /// Goes back, for instance because the exit refuses the frame.
    #[inline(always)]
    pub const fn into_kernel(self) -> Ctx<Kernel, IrqOff, T> {
        self.0
    }
}

/// An exception or interrupt that arrived in the kernel, in whatever state the word was. For kernels whose stubs don't
/// make these transitions themselves.
///
/// ```
/// use context_tracking::{Exception, IrqOff, Tracker};
///
/// fn kernel_interrupt<T: Tracker>(irq: IrqOff, handle: impl FnOnce()) -> IrqOff {
///     // SAFETY: 1. the kernel's own stubs tell nobody. 2. It ends below, and what is made in between ends before.
///     let exception = unsafe { Exception::<T>::enter(&irq) };
///     handle();
///     exception.exit();
///     irq
/// }
/// ```
///
/// User mode can't be entered from here:
///
/// ```compile_fail,E0599
/// # use context_tracking::{Exception, IrqOff, Tracker};
/// fn kernel_interrupt<T: Tracker>(irq: IrqOff) {
///     let exception = unsafe { Exception::<T>::enter(&irq) };
///     exception.user_enter()
/// }
/// ```
///
/// ```
/// # use context_tracking::{Exception, IrqOff, Tracker};
/// fn kernel_interrupt<T: Tracker>(irq: IrqOff) {
///     let exception = unsafe { Exception::<T>::enter(&irq) };
///     exception.exit()
/// }
/// ```
#[must_use = "the end of the handler has to put the state back"]
pub struct Exception<'a, T: Tracker> {
    saved: T::Saved,
    irq: &'a IrqOff,
}

assert_not_impl_any!(Exception<'static, crate::NoTracking>: Copy, Clone, Send, Sync);

impl<T: Tracker> fmt::Debug for Exception<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exception").finish_non_exhaustive()
    }
}

impl<'a, T: Tracker> Exception<'a, T> {
    /// Saves the state and makes it "kernel".
    ///
    /// # Safety
    ///
    /// 1. An exception or interrupt in the kernel begins to be handled, of which the stub has not told `T`.
    /// 2. [`Exception::exit`] is called before that handler returns, and every [`Exception`] and [`Nmi`] that is made on this
    ///    CPU in between ends before: one that outlived this one would be watching no more.
    #[inline(always)]
    pub unsafe fn enter(irq: &'a IrqOff) -> Self {
        Self {
            // SAFETY: 1. by condition 1, and the token is given back by `exit`, by 2.
            saved: unsafe { T::exception_enter(irq) },
            irq,
        }
    }

    /// Puts the state back; the last thing before the handler returns.
    #[inline(always)]
    pub fn exit(self) {
        // SAFETY: the token is that of this handler, which ends.
        unsafe { T::exception_exit(self.irq, self.saved) };
    }

    /// A witness that this CPU is watching.
    #[must_use]
    #[inline(always)]
    pub const fn watching(&self) -> Watching<'_, T> {
        Watching(PhantomData)
    }

    /// What was saved.
    #[must_use]
    #[inline(always)]
    pub const fn saved(&self) -> &T::Saved {
        &self.saved
    }
}

/// An NMI, #MC, #DB or #DF, at any instruction, perhaps inside another or inside a transition. For kernels whose stubs
/// don't make these transitions themselves.
///
/// User mode can't be entered from here:
///
/// ```compile_fail,E0599
/// # use context_tracking::{IrqOff, Nmi, Tracker};
/// fn nmi<T: Tracker>(irq: IrqOff) {
///     let nmi = unsafe { Nmi::<T>::enter(&irq) };
///     nmi.user_enter()
/// }
/// ```
///
/// ```
/// # use context_tracking::{IrqOff, Nmi, Tracker};
/// fn nmi<T: Tracker>(irq: IrqOff) {
///     let nmi = unsafe { Nmi::<T>::enter(&irq) };
///     nmi.exit()
/// }
/// ```
#[must_use = "the end of the handler has to put the depth back"]
pub struct Nmi<'a, T: Tracker> {
    saved: T::Saved,
    irq: &'a IrqOff,
}

assert_not_impl_any!(Nmi<'static, crate::NoTracking>: Copy, Clone, Send, Sync);

impl<T: Tracker> fmt::Debug for Nmi<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nmi").finish_non_exhaustive()
    }
}

impl<'a, T: Tracker> Nmi<'a, T> {
    /// Counts the NMI, and makes this CPU watching if it was not.
    ///
    /// # Safety
    ///
    /// 1. An NMI, #MC, #DB or #DF in the kernel begins to be handled, of which the stub has not told `T`.
    /// 2. [`Nmi::exit`] is called before that handler returns, and every [`Exception`] and [`Nmi`] that is made on this CPU in
    ///    between ends before.
    #[inline(always)]
    pub unsafe fn enter(irq: &'a IrqOff) -> Self {
        Self {
            // SAFETY: 1. by condition 1, and the token is given back by `exit`, by 2.
            saved: unsafe { T::nmi_enter(irq) },
            irq,
        }
    }

    /// Puts the depth back; the last thing before the handler returns.
    #[inline(always)]
    pub fn exit(self) {
        // SAFETY: the token is that of this handler, which ends.
        unsafe { T::nmi_exit(self.irq, self.saved) };
    }

    /// A witness that this CPU is watching.
    #[must_use]
    #[inline(always)]
    pub const fn watching(&self) -> Watching<'_, T> {
        Watching(PhantomData)
    }
}

/// A witness that this CPU is watching: observers wait for what happens while it is alive.
///
/// A read-side section asks for one. Since it borrows the claim it came from, the claim can't be used to enter user
/// mode, idle or a guest, nor to schedule, before the section has ended:
///
/// ```compile_fail,E0505
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User, Watching};
/// # fn read<'a, T>(_: Watching<'a, T>) -> &'a u32 { &0 }
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let value = read(ctx.watching());
///     let user = ctx.user_enter();
///     assert_eq!(*value, 0);
///     user
/// }
/// ```
///
/// ```
/// # use context_tracking::{Ctx, IrqOff, Kernel, Tracker, User, Watching};
/// # fn read<'a, T>(_: Watching<'a, T>) -> &'a u32 { &0 }
/// fn leave<T: Tracker>(ctx: Ctx<Kernel, IrqOff, T>) -> Ctx<User, IrqOff, T> {
///     let value = read(ctx.watching());
///     assert_eq!(*value, 0);
///     ctx.user_enter()
/// }
/// ```
///
/// A kernel that preempts kernel code from an interrupt must not do so while a witness is alive: it has to count them,
/// or keep interrupts off in its read-side sections.
pub struct Watching<'a, T>(PhantomData<(&'a T, *mut ())>);

assert_not_impl_any!(Watching<'static, ()>: Send, Sync);

impl<T> Watching<'_, T> {
    /// States that this CPU is watching, where a stub made the transition and the handler got no claim, as for
    /// exceptions and NMIs in the kernel.
    ///
    /// # Safety
    ///
    /// 1. This CPU's word has an odd counter, and stays so for the witness's life.
    #[must_use]
    #[inline(always)]
    pub const unsafe fn assume() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for Watching<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Watching<'_, T> {}

impl<T> fmt::Debug for Watching<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watching")
    }
}
