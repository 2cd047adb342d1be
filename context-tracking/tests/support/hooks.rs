//! The hooks for a thread that stands in for a CPU: what they do to the word is what the tests look at.

use context_tracking::{IrqOff, Tracker, Tracking};

/// The border to user mode; the thread goes on as if user mode had been called.
pub(crate) fn user_enter<T: Tracking>(irq: IrqOff) -> IrqOff {
    // SAFETY: there is no CPU, and nobody frees memory by the word.
    let leaving = unsafe { T::user_enter(irq) };
    // SAFETY: as above.
    unsafe { leaving.into_irq_off() }
}

pub(crate) fn exception_enter<T: Tracking>(irq: &IrqOff) -> T::Saved {
    // SAFETY: as in `user_enter`.
    unsafe { T::exception_enter(irq) }
}

pub(crate) fn exception_exit<T: Tracking>(irq: &IrqOff, saved: T::Saved) {
    // SAFETY: as in `user_enter`.
    unsafe { T::exception_exit(irq, saved) };
}

pub(crate) fn nmi_enter<T: Tracking>(irq: &IrqOff) -> T::Saved {
    // SAFETY: as in `user_enter`.
    unsafe { T::nmi_enter(irq) }
}

pub(crate) fn nmi_exit<T: Tracking>(irq: &IrqOff, saved: T::Saved) {
    // SAFETY: as in `user_enter`.
    unsafe { T::nmi_exit(irq, saved) };
}

macro_rules! hooks {
    ($($hook:ident)*) => {
        $(
            pub(crate) fn $hook<T: Tracker>(irq: &IrqOff) {
                // SAFETY: as in `user_enter`.
                unsafe { T::$hook(irq) };
            }
        )*
    };
}

hooks! { user_exit idle_enter idle_exit guest_enter guest_exit pass }
