//! Spin locks for state that threads of the kernel share.
//!
//! Interrupt handlers never take a [`Lock`]: a handler that interrupted the holder on the same CPU would wait for ever. An
//! [`IrqLock`] can be taken only with interrupts off, so handlers may. Its guard borrows the [`IrqOff`] proof: while it is
//! held the proof can't be given up, and nothing that demands `&mut IrqOff` can be called, above all not the
//! [scheduler](crate::process::scheduler).

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use entry_core::IrqOff;

/// A value that one holder at a time may touch.
pub struct Lock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `lock` hands out one guard at a time, and the guard is the only way to the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value of a [`Lock`] or an [`IrqLock`]; dropping it releases the lock.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// A free lock around `value`.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free and takes it. Taking one that this CPU holds already never ends.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        while self.is_held.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Guard { lock: self }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so the lock is held by it alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so the lock is held by it alone; `&mut self` makes this the only borrow.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock(held: {})", self.is_held.load(Ordering::Relaxed))
    }
}

/// A value that one CPU at a time may touch, with interrupts off.
#[derive(Debug)]
pub struct IrqLock<T>(Lock<T>);

impl<T> IrqLock<T> {
    /// A free lock around `value`.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    /// As [`Lock::lock`], with interrupts off for as long as it is held.
    #[inline(always)]
    pub fn lock<'a>(&'a self, _irq: &'a IrqOff) -> Guard<'a, T> {
        self.0.lock()
    }
}
