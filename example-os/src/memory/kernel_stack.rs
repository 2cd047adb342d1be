//! Kernel stacks with an unmapped page below, so that an overflow ends in a double fault and not in other data.
//!
//! There are 64 slots of 32 KiB each: four pages that are never mapped, then four pages of stack.

use super::frame::{self, OutOfMemory};
use super::kernel;
use super::layout::{KERNEL_STACKS, PAGE_SIZE};
use super::table::{Entry, Flags, Slot, drop_translation, table_index};
use crate::lock::Lock;

/// Pages of one stack.
const PAGES: u64 = 4;
/// Pages of one slot: the stack, and as many unmapped ones below it.
const SLOT_PAGES: u64 = 2 * PAGES;

/// One bit for each slot in use.
static SLOTS: Lock<u64> = Lock::new(0);

/// A kernel stack of 16 KiB; dropping it gives it back.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelStack {
    slot: u32,
}

impl KernelStack {
    /// Maps a free slot.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] when no slot or no frame is free.
    pub fn new() -> Result<Self, OutOfMemory> {
        let slot = {
            let mut slots = SLOTS.lock();
            let slot = slots.trailing_ones();
            if slot == u64::BITS {
                return Err(OutOfMemory);
            }
            *slots |= 1 << slot;
            slot
        };
        // From here on, dropping `stack` gives back what was mapped so far.
        let stack = Self { slot };
        for page in stack.pages() {
            let frame = frame::allocate().ok_or(OutOfMemory)?;
            let flags = Flags::PRESENT | Flags::WRITABLE | Flags::GLOBAL | Flags::NO_EXECUTE | Flags::OWNED;
            // SAFETY: the slot is ours by its bit, and its entries were empty; the frame is new.
            unsafe {
                kernel::set(
                    kernel::stacks_table(),
                    table_index(page, 1),
                    Entry::new(frame.start(), flags),
                )
            };
        }
        Ok(stack)
    }

    /// The address after the last byte: what RSP starts with. A multiple of 16.
    #[must_use]
    pub const fn top(&self) -> u64 {
        KERNEL_STACKS + (self.slot as u64 + 1) * SLOT_PAGES * PAGE_SIZE
    }

    fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        let top = self.top();
        (1..=PAGES).map(move |page| top - page * PAGE_SIZE)
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        for page in self.pages() {
            // SAFETY: the entry belongs to this stack's slot.
            let slot = unsafe { Slot::new(kernel::stacks_table(), table_index(page, 1)) };
            let entry = slot.read();
            if !entry.is_present() {
                continue;
            }
            // SAFETY: nobody runs on a stack that is dropped; the translation is dropped next.
            unsafe { slot.write(Entry::EMPTY) };
            drop_translation(page);
            // SAFETY: `new` took the frame for this entry, which is gone.
            unsafe { frame::free(entry.frame()) };
        }
        *SLOTS.lock() &= !(1 << self.slot);
    }
}
