//! The interrupt flag as a value.
//!
//! What an entry path may do depends on whether maskable interrupts can arrive. The types here carry that fact
//! instead of a comment: [`IrqOff`] exists only while RFLAGS.IF is 0 on this CPU, [`UserEntry`] says in addition
//! that the CPU has just come from user mode, and [`UserReturn`] that everything owed before a return to user mode is done.
//!
//! None of them is `Copy`, `Send` or `Sync`: a proof that could be kept would be a proof of the past.

use core::marker::PhantomData;

use static_assertions::assert_not_impl_any;

/// An instruction that changes IF. To the compiler it reads and writes memory: what interrupts handlers share with the rest
/// of a CPU's code is read and written between CLI and STI, and no access may be moved out of there or kept in a register
/// over the time that interrupts were on.
#[cfg(all(target_os = "none", not(ablate = "interrupts-order-memory")))]
macro_rules! change_interrupt_flag {
    ($instruction:literal) => {
        core::arch::asm!($instruction, options(nostack, preserves_flags))
    };
}

#[cfg(all(target_os = "none", ablate = "interrupts-order-memory"))]
macro_rules! change_interrupt_flag {
    ($instruction:literal) => {
        core::arch::asm!($instruction, options(nomem, nostack, preserves_flags))
    };
}

/// Proof that RFLAGS.IF is 0 on this CPU, for as long as the value exists.
///
/// The entry stubs are its source: each of them starts with interrupts masked. Only [`IrqOff::enable`] sets IF, and
/// it consumes the proof.
///
/// ```compile_fail,E0382
/// # use entry_core::IrqOff;
/// fn twice(irq: IrqOff) {
///     let _on = irq.enable();
///     let _again = irq; // the proof is gone
/// }
/// ```
///
/// ```
/// # use entry_core::IrqOff;
/// fn once(irq: IrqOff) -> IrqOff {
///     let on = irq.enable();
///     on.disable()
/// }
/// ```
#[derive(Debug)]
#[must_use = "the proof is handed on, or interrupts stay off with nobody knowing"]
pub struct IrqOff(PhantomData<*mut ()>);

/// The state after [`IrqOff::enable`]: interrupts may arrive between any two instructions.
#[derive(Debug)]
#[must_use = "a handler has to come back with `IrqOn::disable`"]
pub struct IrqOn(PhantomData<*mut ()>);

assert_not_impl_any!(IrqOff: Copy, Clone, Send, Sync);
assert_not_impl_any!(IrqOn: Copy, Clone, Send, Sync);

impl IrqOff {
    /// States that interrupts are off.
    ///
    /// # Safety
    ///
    /// 1. RFLAGS.IF is 0 on this CPU now.
    /// 2. Nothing sets it while the value exists, except through [`IrqOff::enable`].
    #[inline(always)]
    pub const unsafe fn assume() -> Self {
        Self(PhantomData)
    }

    /// Executes STI. A pending interrupt is taken after the next instruction.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2B, *STI—Set Interrupt Flag*.
    #[inline(always)]
    #[cfg_attr(
        not(target_os = "none"),
        expect(
            clippy::missing_const_for_fn,
            reason = "the instruction is left out on the host alone"
        )
    )]
    pub fn enable(self) -> IrqOn {
        #[cfg(target_os = "none")]
        // SAFETY: STI changes IF alone. Giving up `self` ends the claim that IF is 0.
        unsafe {
            change_interrupt_flag!("sti");
        }
        IrqOn(PhantomData)
    }
}

impl IrqOn {
    /// States that interrupts are on.
    ///
    /// # Safety
    ///
    /// 1. The kernel may be interrupted here: GS base and RSP are the kernel's, and no [`IrqOff`] exists on this CPU.
    #[inline(always)]
    pub const unsafe fn assume() -> Self {
        Self(PhantomData)
    }

    /// Executes CLI.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *CLI—Clear Interrupt Flag*.
    #[inline(always)]
    #[cfg_attr(
        not(target_os = "none"),
        expect(
            clippy::missing_const_for_fn,
            reason = "the instruction is left out on the host alone"
        )
    )]
    pub fn disable(self) -> IrqOff {
        #[cfg(target_os = "none")]
        // SAFETY: CLI changes IF alone.
        unsafe {
            change_interrupt_flag!("cli");
        }
        IrqOff(PhantomData)
    }
}

/// Turns interrupts off for a scope whose caller does not know whether they are on, and restores IF on drop.
///
/// This is the form that entry paths avoid, since they know that interrupts are off: PUSHF, CLI and a test each time. Use it
/// in code that is reached both ways.
///
/// ```
/// # use entry_core::IrqGuard;
/// # fn counter() {}
/// # if cfg!(target_os = "none") {
/// // SAFETY: 1. this is the one guard, and `counter` leaves IF alone.
/// let guard = unsafe { IrqGuard::new() };
/// counter(); // interrupts are off here; `guard.irq_off()` is the proof
/// drop(guard);
/// # }
/// ```
///
/// Of two guards, the first one dropped would turn interrupts on under the other's proof if it was made first: so making one
/// is a promise.
///
/// ```compile_fail,E0133
/// # use entry_core::IrqGuard;
/// # fn outlive() {
/// let first = IrqGuard::new();
/// let second = IrqGuard::new();
/// drop(first); // IF is 1
/// let _ = second.irq_off();
/// # }
/// ```
#[derive(Debug)]
#[must_use = "interrupts are restored when the guard is dropped"]
pub struct IrqGuard {
    was_on: bool,
    irq: IrqOff,
}

impl IrqGuard {
    /// Saves RFLAGS.IF and executes CLI.
    ///
    /// # Safety
    ///
    /// 1. Until the guard is dropped, nothing sets IF on this CPU: guards that were made earlier are dropped later, and no
    ///    [`IrqOff`] that exists already is [enabled](IrqOff::enable).
    #[inline(always)]
    #[cfg_attr(
        not(target_os = "none"),
        expect(
            clippy::missing_const_for_fn,
            reason = "the instruction is left out on the host alone"
        )
    )]
    pub unsafe fn new() -> Self {
        #[cfg(target_os = "none")]
        let was_on = {
            let flags: u64;
            // SAFETY: PUSHF and POP leave the stack as it was; CLI changes IF alone, which `drop` restores.
            unsafe {
                core::arch::asm!("pushfq", "pop {}", "cli", out(reg) flags);
            }
            flags & (1 << 9) != 0
        };
        #[cfg(not(target_os = "none"))]
        let was_on = false;
        Self {
            was_on,
            irq: IrqOff(PhantomData),
        }
    }

    /// The proof, for the life of the guard.
    #[inline(always)]
    pub const fn irq_off(&self) -> &IrqOff {
        &self.irq
    }
}

impl Drop for IrqGuard {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(target_os = "none")]
        if self.was_on {
            // SAFETY: IF was 1 when the guard was made, so the surrounding code expects interrupts.
            unsafe {
                change_interrupt_flag!("sti");
            }
        }
        #[cfg(not(target_os = "none"))]
        let _ = self.was_on;
    }
}

/// Proof that this CPU has just entered the kernel from user mode, with interrupts off and kernel GS in place.
///
/// An entry stub makes one for each entry and gives it to the handler; there is no other source in safe code.
#[derive(Debug)]
#[must_use = "the handler owes an `IrqOff` for it"]
pub struct UserEntry(IrqOff);

assert_not_impl_any!(UserEntry: Copy, Clone, Send, Sync);

impl UserEntry {
    /// States that the kernel was just entered from user mode.
    ///
    /// # Safety
    ///
    /// 1. The saved CS of the frame at hand has RPL 3.
    /// 2. RFLAGS.IF is 0 and GS base is the kernel's.
    /// 3. No other `UserEntry` was made for this entry.
    #[inline(always)]
    pub const unsafe fn assume() -> Self {
        // SAFETY: condition 2.
        Self(unsafe { IrqOff::assume() })
    }

    /// Keeps only the fact that interrupts are off.
    #[inline(always)]
    pub const fn into_irq_off(self) -> IrqOff {
        self.0
    }

    /// The fact that interrupts are off, borrowed.
    #[inline(always)]
    pub const fn irq_off(&self) -> &IrqOff {
        &self.0
    }
}

/// Proof that all that is owed before a return to user mode is done, and that interrupts have been off since.
///
/// The last thing that is made before an exit: by [`Tracking::user_enter`](crate::kernel::Tracking::user_enter) in the
/// stubs' Rust half, once the way out is chosen, or by the `context-tracking` crate for a kernel with exits of its own.
#[derive(Debug)]
#[must_use = "without an exit, context tracking and the CPU disagree"]
pub struct UserReturn(IrqOff);

assert_not_impl_any!(UserReturn: Copy, Clone, Send, Sync);

impl UserReturn {
    /// States that the kernel may leave for user mode.
    ///
    /// # Safety
    ///
    /// 1. Every piece of pending work (reschedule, signals) was tested for after IF became 0, and there was none.
    /// 2. Context tracking, where it is in use, has recorded that this CPU goes to user mode.
    /// 3. The exit decision is made, and nothing follows but the exit itself.
    #[inline(always)]
    pub const unsafe fn new(irq: IrqOff) -> Self {
        Self(irq)
    }

    /// Keeps only the fact that interrupts are off, for a kernel that turns back at the last moment.
    ///
    /// # Safety
    ///
    /// 1. Context tracking, where it is in use, is told so before any other kernel code runs, or has the state of user
    ///    mode by intent.
    #[inline(always)]
    pub const unsafe fn into_irq_off(self) -> IrqOff {
        self.0
    }

    /// The fact that interrupts are off, borrowed.
    #[inline(always)]
    pub const fn irq_off(&self) -> &IrqOff {
        &self.0
    }
}
