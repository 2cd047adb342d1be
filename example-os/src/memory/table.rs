//! Page-table entries, and the walk through four levels.
//!
//! Tables are reached through the direct map. An entry is read and written as one word; the CPU sets its accessed and
//! dirty bits behind our back, so both are volatile.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *4-Level Paging and 5-Level Paging*.

use bitflags::bitflags;

use super::frame::{self, Frame, OutOfMemory};
use super::layout::{PAGE_SIZE, index};

/// Entries of a table.
pub const ENTRIES: usize = 512;

bitflags! {
    /// The flag bits of a page-table entry.
    ///
    /// | bit | name | meaning |
    /// |---|---|---|
    /// | 0 | `PRESENT` | the entry is in use |
    /// | 1 | `WRITABLE` | writes are allowed |
    /// | 2 | `USER` | user mode may use it |
    /// | 3, 4 | `WRITE_THROUGH`, `CACHE_DISABLE` | together: uncached, for devices |
    /// | 7 | `LARGE` | in a page directory: maps 2 MiB |
    /// | 8 | `GLOBAL` | survives a load of CR3 |
    /// | 9 | `OWNED` | ours (the CPU ignores it): the frame belongs to this mapping and is freed with it |
    /// | 63 | `NO_EXECUTE` | instruction fetches fault |
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// The entry is in use.
        const PRESENT = 1;
        /// Writes are allowed.
        const WRITABLE = 1 << 1;
        /// User mode may use it.
        const USER = 1 << 2;
        /// Page-level write-through.
        const WRITE_THROUGH = 1 << 3;
        /// Page-level cache disable.
        const CACHE_DISABLE = 1 << 4;
        /// In a page directory: maps 2 MiB.
        const LARGE = 1 << 7;
        /// Survives a load of CR3.
        const GLOBAL = 1 << 8;
        /// The frame belongs to this mapping and is freed with it.
        const OWNED = 1 << 9;
        /// Instruction fetches fault.
        const NO_EXECUTE = 1 << 63;
    }
}

/// Bits 51:12: the physical address in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// One page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// An entry that maps nothing.
    pub const EMPTY: Self = Self(0);

    /// An entry for the frame or table at physical address `address`.
    #[must_use]
    #[inline(always)]
    pub const fn new(address: u64, flags: Flags) -> Self {
        Self(address & ADDRESS | flags.bits())
    }

    /// The frame or table that it names.
    #[must_use]
    #[inline(always)]
    pub const fn frame(self) -> Frame {
        Frame::containing(self.0 & ADDRESS)
    }

    /// Its flag bits, without those that [`Flags`] has no name for.
    #[must_use]
    #[inline(always)]
    pub const fn flags(self) -> Flags {
        Flags::from_bits_truncate(self.0)
    }

    /// Whether all of `flags` are set.
    #[must_use]
    #[inline(always)]
    pub const fn has(self, flags: Flags) -> bool {
        self.0 & flags.bits() == flags.bits()
    }

    /// Whether the entry is in use.
    #[must_use]
    #[inline(always)]
    pub const fn is_present(self) -> bool {
        self.has(Flags::PRESENT)
    }
}

/// A page-aligned table in the kernel image.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Table(pub(crate) [Entry; ENTRIES]);

impl Table {
    /// A table that maps nothing.
    pub(crate) const EMPTY: Self = Self([Entry::EMPTY; ENTRIES]);
}

/// Where one entry is.
#[derive(Clone, Copy, Debug)]
pub struct Slot(*mut Entry);

impl Slot {
    /// Entry `index` modulo 512 of the table in `table`.
    ///
    /// # Safety
    ///
    /// 1. The frame holds a page table, and goes on doing so while the slot is used.
    /// 2. Nobody else writes the entry while the slot is used, except the CPU.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn new(table: Frame, index: usize) -> Self {
        // SAFETY: a table has 512 entries and fills its frame (condition 1).
        Self(unsafe { table.pointer().cast::<Entry>().add(index % ENTRIES) })
    }

    /// The entry as it is.
    #[inline(always)]
    #[must_use]
    pub fn read(self) -> Entry {
        // SAFETY: the slot points at an entry of a live table (`Slot::new`).
        unsafe { self.0.read_volatile() }
    }

    /// Replaces the entry.
    ///
    /// # Safety
    ///
    /// 1. What the entry maps from now on may be accessed with the rights it gives.
    /// 2. If the CPU may hold the old translation, the caller drops it ([`drop_translation`]) before anything relies on
    ///    the new one.
    #[inline(always)]
    pub unsafe fn write(self, entry: Entry) {
        // SAFETY: the slot points at an entry of a live table that nobody else writes (`Slot::new`).
        unsafe { self.0.write_volatile(entry) };
    }
}

/// What entry at `level` (4 is the root) translates `address`.
#[inline(always)]
#[must_use]
pub const fn table_index(address: u64, level: u32) -> usize {
    index(address >> (12 + 9 * (level - 1))) % ENTRIES
}

/// The flags of every entry above the last level in the user half: the last level decides.
pub const USER_TABLE: Flags = Flags::PRESENT.union(Flags::WRITABLE).union(Flags::USER);

/// The last-level slot for `address` in the user half of the tables at `root`, with missing tables added.
///
/// # Errors
///
/// [`OutOfMemory`] when there is no frame for a table; tables that were added stay.
///
/// # Safety
///
/// 1. `root` holds a root table whose lower half has no large pages, and which has a [`twin`].
/// 2. `address` is in the lower half.
/// 3. Nobody else changes these tables meanwhile.
pub unsafe fn slot_or_new(root: Frame, address: u64) -> Result<Slot, OutOfMemory> {
    let mut table = root;
    for level in [4, 3, 2] {
        // SAFETY: the root, and each entry of the lower half, is a table (condition 1); nobody else writes (condition 3).
        let slot = unsafe { Slot::new(table, table_index(address, level)) };
        let entry = slot.read();
        table = if entry.is_present() {
            entry.frame()
        } else {
            let added = add_table(slot)?;
            if level == 4 {
                // SAFETY: the root has a twin (condition 1), and nobody else writes (condition 3).
                unsafe { copy_to_twin(root, table_index(address, 4)) };
            }
            added
        };
    }
    // SAFETY: as above.
    Ok(unsafe { Slot::new(table, table_index(address, 1)) })
}

/// The root table behind `root`, which user mode of a process runs on that the kernel hides from. Its lower half is the
/// same.
#[must_use]
pub const fn twin(root: Frame) -> Frame {
    Frame::containing(root.start() + PAGE_SIZE)
}

/// Makes an entry of the lower half in the twin what it is in `root`.
///
/// # Safety
///
/// 1. `root` holds a root table that has a [`twin`], and nobody else changes either meanwhile.
#[cold]
pub unsafe fn copy_to_twin(root: Frame, index: usize) {
    // SAFETY: condition 1.
    let entry = unsafe { Slot::new(root, index) }.read();
    // SAFETY: condition 1.
    let slot = unsafe { Slot::new(twin(root), index) };
    // SAFETY: user mode may do with the twin what it may do with the root; who removes an entry drops its translations.
    unsafe { slot.write(entry) };
}

fn add_table(slot: Slot) -> Result<Frame, OutOfMemory> {
    let table = frame::allocate_zeroed().ok_or(OutOfMemory)?;
    // SAFETY: an empty table maps nothing, and the CPU holds no translation through an absent entry.
    unsafe { slot.write(Entry::new(table.start(), USER_TABLE)) };
    Ok(table)
}

/// The last-level slot for `address` in the user half of the tables at `root`, if all tables above it exist.
///
/// # Safety
///
/// As for [`slot_or_new`].
#[must_use]
#[inline(always)]
pub unsafe fn slot(root: Frame, address: u64) -> Option<Slot> {
    let mut table = root;
    for level in [4, 3, 2] {
        // SAFETY: the root, and each entry of the lower half, is a table.
        let entry = unsafe { Slot::new(table, table_index(address, level)) }.read();
        if !entry.is_present() {
            return None;
        }
        table = entry.frame();
    }
    // SAFETY: as above.
    Some(unsafe { Slot::new(table, table_index(address, 1)) })
}

/// Makes this CPU forget what it knows of the page at `address`, and of the tables on the way to any page.
#[inline(always)]
pub fn drop_translation(address: u64) {
    // SAFETY: INVLPG changes no memory and no register; a forgotten translation is walked again.
    unsafe {
        core::arch::asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags));
    }
}

/// Bytes that one entry at `level` covers.
#[must_use]
pub const fn entry_bytes(level: u32) -> u64 {
    PAGE_SIZE << (9 * (level - 1))
}
