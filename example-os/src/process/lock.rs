//! A spin lock that can be taken only with interrupts off.
//!
//! The holder cannot be interrupted on its CPU, so an interrupt handler never spins on a lock that the code below it
//! holds. The guard borrows the [`IrqOff`] proof: while a lock is held the proof can't be given up, and nothing that
//! demands `&mut IrqOff` can be called, above all not the [scheduler](super::scheduler).

use core::cell::UnsafeCell;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use entry_core::IrqOff;

/// A value that one CPU at a time may use, with interrupts off.
#[derive(Debug)]
pub struct IrqLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `lock` hands out one guard at a time, so the value is only ever used by one CPU; `T: Send` lets it move there.
unsafe impl<T: Send> Sync for IrqLock<T> {}

impl<T> IrqLock<T> {
    /// A lock that nobody holds.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. Taking a lock that this CPU holds already never ends.
    #[inline(always)]
    pub fn lock<'a>(&'a self, _irq: &'a IrqOff) -> IrqLockGuard<'a, T> {
        while self.is_held.swap(true, Ordering::Acquire) {
            hint::spin_loop();
        }
        IrqLockGuard { lock: self }
    }
}

/// The right to use the value of an [`IrqLock`]; gives the lock back when dropped.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct IrqLockGuard<'a, T> {
    lock: &'a IrqLock<T>,
}

impl<T> Deref for IrqLockGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this CPU holds the lock and no other reference to the value is live.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for IrqLockGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` excludes another borrow through this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for IrqLockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
    }
}
