//! The address space of a process.
//!
//! [`Areas`] say what is allowed; the page tables hold what has been touched. All memory is anonymous, private and made
//! on demand: the first read of a page maps one frame of zeros that everybody shares, the first write maps a frame of
//! its own. The upper half of the root table is the kernel's and equal in all spaces.
//!
//! A second root table lies behind the first, for user mode of a process that the kernel hides from: its upper half shows
//! what the CPU and the stubs need to get into the kernel, and nothing else.

use core::fmt;

use super::area::{Areas, MapError, PageRange, Placement, Protection};
use super::frame::{self, Frame, OutOfMemory};
use super::kernel;
use super::layout::{PAGE_SIZE, USER_LIMIT, index};
use super::table::{self, Entry, Flags, Slot, drop_translation, entry_bytes, table_index};

/// The user half of a root table is this many entries.
const USER_ENTRIES: usize = table::ENTRIES / 2;

/// Why a page fault has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultError {
    /// No area holds the address: SIGSEGV with `SEGV_MAPERR`.
    NoMapping,
    /// The area does not allow the access: SIGSEGV with `SEGV_ACCERR`.
    Denied,
    /// The access is fine, but no frame is left.
    OutOfMemory,
    /// The tables are not what this module makes them: a reserved bit, or a page of its own without its rights.
    Unexpected,
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMapping => "address not mapped",
            Self::Denied => "access not allowed",
            Self::OutOfMemory => "out of memory",
            Self::Unexpected => "corrupt page tables",
        })
    }
}

impl core::error::Error for FaultError {}

/// The error code of a page fault.
///
/// # Source
///
/// Intel SDM vol. 3A, *Page-Fault Exceptions*.
mod code {
    pub(super) const PRESENT: u64 = 1;
    pub(super) const WRITE: u64 = 1 << 1;
    pub(super) const RESERVED_BIT: u64 = 1 << 3;
    pub(super) const FETCH: u64 = 1 << 4;
    /// Whatever is not a read of an absent page.
    pub(super) const UNUSUAL: u64 = PRESENT | WRITE | RESERVED_BIT | FETCH;
}

/// What one page translates to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Physical address of the byte asked for.
    pub physical: u64,
    /// What user mode may do there.
    pub protection: Protection,
    /// Whether it is the shared frame of zeros.
    pub is_zero_page: bool,
}

/// An address space. See the [module](self).
#[derive(Debug)]
pub struct AddressSpace {
    root: Frame,
    areas: Areas,
}

impl AddressSpace {
    /// An empty user half below the kernel's.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`].
    pub fn new() -> Result<Self, OutOfMemory> {
        let root = frame::allocate_zeroed_pair().ok_or(OutOfMemory)?;
        for index in USER_ENTRIES..table::ENTRIES {
            // SAFETY: the frame is new, zeroed, and ours.
            let slot = unsafe { Slot::new(root, index) };
            // SAFETY: the entry is the kernel's own, valid in every space; the table is not in use yet.
            unsafe { slot.write(kernel::root_entry(index)) };
            // SAFETY: as above.
            let slot = unsafe { Slot::new(table::twin(root), index) };
            // SAFETY: as above.
            unsafe { slot.write(kernel::hidden_root_entry(index)) };
        }
        Ok(Self {
            root,
            areas: Areas::new(),
        })
    }

    /// The value of CR3 that selects this space.
    #[must_use]
    #[inline(always)]
    pub const fn cr3(&self) -> u64 {
        self.root.start()
    }

    /// Loads CR3.
    ///
    /// # Safety
    ///
    /// 1. The space stays alive until another is loaded.
    #[inline(always)]
    pub unsafe fn activate(&self) {
        // SAFETY: the kernel half is that of every space, so code, stack and data of the kernel stay where they are;
        // the user half belongs to this space, which lives on (condition 1).
        unsafe { kernel::write_cr3(self.cr3()) };
    }

    /// The areas, in the order of their addresses.
    #[must_use]
    pub const fn areas(&self) -> &Areas {
        &self.areas
    }

    /// Maps `length` bytes of anonymous, private, zeroed memory, and returns where.
    ///
    /// # Errors
    ///
    /// [`MapError`]. With [`Placement::Fixed`], [`MapError::TooLow`] and [`MapError::TooManyAreas`] leave the range
    /// unmapped.
    pub fn mmap(
        &mut self,
        address: u64,
        length: u64,
        protection: Protection,
        placement: Placement,
    ) -> Result<u64, MapError> {
        let range = match placement {
            Placement::Hint => self.areas.place(address, length)?,
            Placement::Hint32 => self.areas.place_32(address, length)?,
            Placement::Fixed | Placement::FixedNoReplace => PageRange::new(address, length)?,
        };
        if placement == Placement::Fixed && !protection.breaks_w_xor_x() {
            self.unmap(range)?;
        }
        self.areas.insert(range, protection)?;
        Ok(range.start())
    }

    /// Unmaps every page that the range touches. Pages that are not mapped are no error.
    ///
    /// # Errors
    ///
    /// [`MapError`]; then nothing changed.
    pub fn munmap(&mut self, start: u64, length: u64) -> Result<(), MapError> {
        let range = PageRange::new(start, length).map_err(|error| match error {
            MapError::Range { start, length } => MapError::UnmapRange { start, length },
            error => error,
        })?;
        self.unmap(range)
    }

    fn unmap(&mut self, range: PageRange) -> Result<(), MapError> {
        self.areas.remove(range)?;
        clear_range(self.root, 4, range.start(), range.end());
        if range.end() - range.start() >= entry_bytes(4) {
            self.copy_root();
        }
        // The frames are free already, but nobody can take one before this CPU is done here.
        self.drop_translations(range);
        Ok(())
    }

    /// Brings the twin of the root table up to date, after entries of the root itself may have changed.
    #[cold]
    fn copy_root(&self) {
        for index in 0..USER_ENTRIES {
            // SAFETY: the root came as a pair, and belongs to this space.
            unsafe { table::copy_to_twin(self.root, index) };
        }
    }

    /// Makes the CPU forget a range: page by page, or all of the user half when that is less work.
    fn drop_translations(&self, range: PageRange) {
        const FEW_PAGES: u64 = 32;
        if range.end() - range.start() <= FEW_PAGES * PAGE_SIZE {
            let mut address = range.start();
            while address < range.end() {
                drop_translation(address);
                address += PAGE_SIZE;
            }
        } else {
            kernel::drop_user_translations(self.cr3());
        }
    }

    /// Changes what the process may do with a range that is mapped throughout.
    ///
    /// # Errors
    ///
    /// [`MapError`]; then nothing changed.
    pub fn protect(&mut self, start: u64, length: u64, protection: Protection) -> Result<(), MapError> {
        let range = PageRange::new(start, length)?;
        self.areas.protect(range, protection)?;
        let mut address = range.start();
        while address < range.end() {
            // SAFETY: `root` is this space's root table, whose lower half has no large pages; the range lies in the
            // lower half; `&mut self` keeps others out.
            let Some(slot) = (unsafe { table::slot(self.root, address) }) else {
                address = (address / entry_bytes(2) + 1) * entry_bytes(2);
                continue;
            };
            let entry = slot.read();
            if entry != Entry::EMPTY {
                // SAFETY: the frame stays the same, with no more rights than its area has; the translation is dropped
                // next.
                unsafe { slot.write(page(entry.frame(), protection, entry.has(Flags::OWNED))) };
                drop_translation(address);
            }
            address += PAGE_SIZE;
        }
        Ok(())
    }

    /// Answers a page fault of user mode, or of a copy from or to user memory: maps the page if its area allows the
    /// access. `error_code` is what the CPU pushed.
    ///
    /// # Errors
    ///
    /// [`FaultError`].
    #[inline]
    pub fn resolve_fault(&mut self, address: u64, error_code: u64) -> Result<(), FaultError> {
        let Some(area) = self.areas.find(address) else {
            return Err(FaultError::NoMapping);
        };
        let protection = area.protection;
        // A read of a page that nothing has touched, below tables that exist: straight on. All else is out of line.
        if error_code & code::UNUSUAL != 0 || protection.is_empty() {
            return self.resolve_slowly(address, error_code, protection);
        }
        // SAFETY: `root` is this space's root table, whose lower half has no large pages; areas lie in the lower half;
        // `&mut self` keeps others out.
        let Some(slot) = (unsafe { table::slot(self.root, address) }) else {
            return self.resolve_slowly(address, error_code, protection);
        };
        if slot.read() != Entry::EMPTY {
            return self.resolve_slowly(address, error_code, protection);
        }
        // SAFETY: everybody may read the frame of zeros and nobody write it; the CPU holds no translation through an
        // absent entry.
        unsafe { slot.write(page(kernel::zero_frame(), protection, false)) };
        Ok(())
    }

    /// Every fault, in all its cases.
    #[cold]
    #[inline(never)]
    fn resolve_slowly(&mut self, address: u64, error_code: u64, protection: Protection) -> Result<(), FaultError> {
        if error_code & code::RESERVED_BIT != 0 {
            return Err(FaultError::Unexpected);
        }
        let is_write = error_code & code::WRITE != 0;
        let is_allowed = if error_code & code::FETCH != 0 {
            protection.contains(Protection::EXECUTE)
        } else if is_write {
            protection.contains(Protection::WRITE)
        } else {
            !protection.is_empty()
        };
        if !is_allowed {
            return Err(FaultError::Denied);
        }
        // SAFETY: as in `resolve_fault`.
        let slot = unsafe { table::slot_or_new(self.root, address) }.map_err(|OutOfMemory| FaultError::OutOfMemory)?;
        let old = slot.read();
        let new = if is_write && !old.has(Flags::OWNED) {
            let frame = frame::allocate_zeroed().ok_or(FaultError::OutOfMemory)?;
            page(frame, protection, true)
        } else if old == Entry::EMPTY {
            page(kernel::zero_frame(), protection, false)
        } else if error_code & code::PRESENT == 0 {
            // Another thread was faster.
            return Ok(());
        } else {
            // The entry allows what the area allows: the CPU can have found nothing to refuse.
            return Err(FaultError::Unexpected);
        };
        // SAFETY: the frame is new and becomes this mapping's own, or it is the frame of zeros, which nobody may write;
        // an old translation is dropped next.
        unsafe { slot.write(new) };
        drop_translation(address);
        Ok(())
    }

    /// What `address` translates to, if its page has been touched.
    #[must_use]
    pub fn translate(&self, address: u64) -> Option<Mapping> {
        if address >= USER_LIMIT {
            return None;
        }
        // SAFETY: `root` is this space's root table, whose lower half has no large pages, and the address is in it.
        let entry = unsafe { table::slot(self.root, address) }?.read();
        if !entry.is_present() {
            return None;
        }
        let mut protection = Protection::empty();
        protection.set(Protection::READ, entry.has(Flags::USER));
        protection.set(Protection::WRITE, entry.has(Flags::USER | Flags::WRITABLE));
        protection.set(
            Protection::EXECUTE,
            entry.has(Flags::USER) && !entry.has(Flags::NO_EXECUTE),
        );
        Some(Mapping {
            physical: entry.frame().start() + address % PAGE_SIZE,
            protection,
            is_zero_page: !entry.has(Flags::OWNED),
        })
    }

    /// Writes into the space without activating it, whatever the protection: how a program and its first stack get
    /// there. Pages are made as needed.
    ///
    /// # Errors
    ///
    /// [`FaultError::NoMapping`] when an address has no area, [`FaultError::OutOfMemory`].
    pub fn write(&mut self, mut address: u64, mut bytes: &[u8]) -> Result<(), FaultError> {
        while !bytes.is_empty() {
            let area = self.areas.find(address).ok_or(FaultError::NoMapping)?;
            let frame = self.owned_frame(address, area.protection)?;
            let offset = index(address % PAGE_SIZE);
            let (now, later) = bytes.split_at(bytes.len().min(index(PAGE_SIZE) - offset));
            // SAFETY: `offset` is within the frame.
            let destination = unsafe { frame.pointer().add(offset) };
            // SAFETY: the frame belongs to this space alone, `now` ends at or before its end, and lies in kernel memory.
            unsafe { destination.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            address += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// The frame of its own behind `address`, made if there is none yet.
    fn owned_frame(&mut self, address: u64, protection: Protection) -> Result<Frame, FaultError> {
        // SAFETY: as in `resolve_fault`.
        let slot = unsafe { table::slot_or_new(self.root, address) }.map_err(|OutOfMemory| FaultError::OutOfMemory)?;
        let old = slot.read();
        if old.has(Flags::OWNED) {
            return Ok(old.frame());
        }
        let frame = frame::allocate_zeroed().ok_or(FaultError::OutOfMemory)?;
        // SAFETY: the frame is new and becomes this mapping's own; a translation to the frame of zeros is dropped next.
        unsafe { slot.write(page(frame, protection, true)) };
        drop_translation(address);
        Ok(frame)
    }

    /// Stores three words in one page that the program could write now without a fault. Returns whether it could; nothing
    /// is stored if not.
    #[inline(always)]
    pub fn store_present(&mut self, address: u64, words: [u64; 3]) -> bool {
        const BYTES: u64 = 24;
        let offset = address % PAGE_SIZE;
        if address >= USER_LIMIT || offset > PAGE_SIZE - BYTES {
            return false;
        }
        // SAFETY: as in `resolve_fault`.
        let Some(slot) = (unsafe { table::slot(self.root, address) }) else {
            return false;
        };
        let entry = slot.read();
        // A page that is writable is one of the space's own.
        if !entry.has(Flags::PRESENT.union(Flags::WRITABLE)) {
            return false;
        }
        // SAFETY: `offset` is within the frame.
        let destination = unsafe { entry.frame().pointer().add(index(offset)) };
        // SAFETY: the words end in the frame, which belongs to this space; the program may look at it, but it does not
        // run.
        unsafe { destination.cast::<[u64; 3]>().write_unaligned(words) };
        true
    }

    /// A copy with frames of its own; the frame of zeros stays shared.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; then nothing is left of the copy.
    pub fn fork(&self) -> Result<Self, OutOfMemory> {
        let mut child = Self::new()?;
        child.areas = self.areas.clone();
        copy_tables(self.root, child.root, 4)?;
        child.copy_root();
        Ok(child)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        clear_range(self.root, 4, 0, USER_ENTRIES as u64 * entry_bytes(4));
        // SAFETY: the root came from the allocator, its user half is empty now, and the owner has loaded another CR3
        // (`activate`).
        unsafe { frame::free_pair(self.root) };
    }
}

/// The entry of a page: `is_owned` tells a frame of its own from the shared frame of zeros, which is never writable.
///
/// A page without any right is not present, so that the kernel's copies can't reach it either; a frame of its own stays
/// noted in the entry.
#[inline(always)]
const fn page(frame: Frame, protection: Protection, is_owned: bool) -> Entry {
    if protection.is_empty() {
        return if is_owned {
            Entry::new(frame.start(), Flags::OWNED)
        } else {
            Entry::EMPTY
        };
    }
    let mut flags = Flags::PRESENT.union(Flags::USER);
    if is_owned {
        flags = flags.union(Flags::OWNED);
        if protection.contains(Protection::WRITE) {
            flags = flags.union(Flags::WRITABLE);
        }
    }
    if !protection.contains(Protection::EXECUTE) {
        flags = flags.union(Flags::NO_EXECUTE);
    }
    Entry::new(frame.start(), flags)
}

/// Unmaps `start..end` in the table at `level` that covers it, and frees what it owned: frames, and tables that the
/// range covers whole. The caller drops the translations, if the tables are in use.
fn clear_range(table: Frame, level: u32, start: u64, end: u64) {
    let step = entry_bytes(level);
    let mut at = start & !(step - 1);
    while at < end {
        let above = at + step;
        // SAFETY: the caller owns the tables and walks down from the root; `at` is in the lower half.
        let slot = unsafe { Slot::new(table, table_index(at, level)) };
        let entry = slot.read();
        if entry != Entry::EMPTY {
            let is_whole = start <= at && above <= end;
            if level > 1 {
                clear_range(entry.frame(), level - 1, start.max(at), end.min(above));
            }
            if is_whole {
                // SAFETY: the entry maps nothing any more; the caller drops the translations.
                unsafe { slot.write(Entry::EMPTY) };
                if level > 1 || entry.has(Flags::OWNED) {
                    // SAFETY: the frame came from the allocator for this entry, which was the only one to name it.
                    unsafe { frame::free(entry.frame()) };
                }
            }
        }
        at = above;
    }
}

/// Copies what the user half of `from` maps into the empty table `to`.
fn copy_tables(from: Frame, to: Frame, level: u32) -> Result<(), OutOfMemory> {
    let count = if level == 4 { USER_ENTRIES } else { table::ENTRIES };
    for index in 0..count {
        // SAFETY: both are tables of this level, and the caller owns them.
        let entry = unsafe { Slot::new(from, index) }.read();
        if entry == Entry::EMPTY {
            continue;
        }
        // SAFETY: as above.
        let slot = unsafe { Slot::new(to, index) };
        if level == 1 && !entry.has(Flags::OWNED) {
            // SAFETY: the frame of zeros may be shared, read-only as it is here; the table is not in use yet.
            unsafe { slot.write(entry) };
            continue;
        }
        let frame = if level == 1 {
            frame::allocate()
        } else {
            frame::allocate_zeroed()
        }
        .ok_or(OutOfMemory)?;
        // SAFETY: the frame is new, and at the last level it is filled below; the table is not in use yet.
        unsafe { slot.write(Entry::new(frame.start(), entry.flags())) };
        if level == 1 {
            let source = entry.frame().pointer().cast_const();
            // SAFETY: two different frames, both whole in the direct map, the target used by nobody yet.
            unsafe { frame.pointer().copy_from_nonoverlapping(source, self::index(PAGE_SIZE)) };
        } else {
            copy_tables(entry.frame(), frame, level - 1)?;
        }
    }
    Ok(())
}
