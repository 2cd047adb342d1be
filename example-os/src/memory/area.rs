//! What a process asked for: its areas, in the order of their addresses.
//!
//! An area is a range of pages with one protection. The array is fixed, sorted, free of overlaps, and neighbours with
//! equal protection are joined, so a look-up is a short scan and the kernel needs no heap.

use core::fmt;

use bitflags::bitflags;

use super::layout::{MMAP_TOP, MMAP_TOP_32, PAGE_SIZE, USER_LIMIT, USER_LIMIT_32, USER_START, page_ceiling};

bitflags! {
    /// What a process may do with a page. The bits are Linux's `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    ///
    /// Page tables know no page that can be written or executed but not read, so any right includes reading.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Protection: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 1 << 1;
        /// Execute.
        const EXECUTE = 1 << 2;
    }
}

impl Protection {
    /// Whether this would be memory that can be written and executed, which no process gets.
    #[must_use]
    pub const fn breaks_w_xor_x(self) -> bool {
        self.contains(Self::WRITE.union(Self::EXECUTE))
    }
}

/// How the address given to `mmap` is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// A wish: taken when the range is free, otherwise the highest free range below [`MMAP_TOP`].
    Hint,
    /// The same for 32-bit code: below [`USER_LIMIT_32`], and without the wish below [`MMAP_TOP_32`].
    Hint32,
    /// `MAP_FIXED`: exactly there; what was there is unmapped.
    Fixed,
    /// `MAP_FIXED_NOREPLACE`: exactly there, or an error when anything is mapped.
    FixedNoReplace,
}

/// Why `mmap`, `munmap` or `mprotect` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// The length is zero.
    NoLength,
    /// An address that has to be a multiple of 4,096 is not.
    Unaligned {
        /// The address.
        address: u64,
    },
    /// The range leaves the user half, or wraps round.
    Range {
        /// Its first address.
        start: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The range to unmap leaves the user half, or wraps round.
    UnmapRange {
        /// Its first address.
        start: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// A fixed mapping would begin in the pages that catch null pointers.
    TooLow {
        /// The address.
        address: u64,
    },
    /// Write and execute were asked for together.
    WritableAndExecutable,
    /// Something is mapped where a new area may not replace it.
    Occupied {
        /// First address of the range asked for.
        start: u64,
    },
    /// Part of the range is not mapped.
    Hole {
        /// The first address that is not.
        address: u64,
    },
    /// No free range is long enough.
    NoSpace {
        /// The length in bytes.
        length: u64,
    },
    /// The process has as many areas as its table holds.
    TooManyAreas,
    /// No frame is left for a page or a table.
    OutOfMemory,
}

impl MapError {
    /// Linux's error number for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        const EPERM: i32 = 1;
        const ENOMEM: i32 = 12;
        const EACCES: i32 = 13;
        const EEXIST: i32 = 17;
        const EINVAL: i32 = 22;
        match self {
            Self::NoLength | Self::Unaligned { .. } | Self::UnmapRange { .. } => EINVAL,
            Self::TooLow { .. } => EPERM,
            Self::WritableAndExecutable => EACCES,
            Self::Occupied { .. } => EEXIST,
            Self::Range { .. } | Self::Hole { .. } | Self::NoSpace { .. } | Self::TooManyAreas | Self::OutOfMemory => {
                ENOMEM
            }
        }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoLength => f.write_str("length 0, wanted at least one byte"),
            Self::Unaligned { address } => write!(f, "address {address:#x}, wanted a multiple of {PAGE_SIZE}"),
            Self::Range { start, length } | Self::UnmapRange { start, length } => {
                write!(
                    f,
                    "range {start:#x} + {length:#x}, wanted an end at or below {USER_LIMIT:#x}"
                )
            }
            Self::TooLow { address } => write!(f, "address {address:#x}, wanted {USER_START:#x} or above"),
            Self::WritableAndExecutable => f.write_str("write and execute together, wanted one of them"),
            Self::Occupied { start } => write!(f, "range at {start:#x} overlaps a mapping, wanted it free"),
            Self::Hole { address } => write!(f, "address {address:#x} is not mapped, wanted a mapped range"),
            Self::NoSpace { length } => write!(f, "no free range of {length:#x} bytes"),
            Self::TooManyAreas => write!(f, "more than {MAX_AREAS} areas"),
            Self::OutOfMemory => f.write_str("out of memory"),
        }
    }
}

impl core::error::Error for MapError {}

/// A range of pages with one protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// What the process may do there.
    pub protection: Protection,
}

/// How many areas a process can have.
pub const MAX_AREAS: usize = 64;

const NO_AREA: Area = Area {
    start: 0,
    end: 0,
    protection: Protection::empty(),
};

/// The areas of one process.
#[derive(Clone, Debug)]
pub struct Areas {
    count: usize,
    /// Two places more than areas, for the pieces that exist while a range is cut out.
    list: [Area; MAX_AREAS + 2],
}

/// A range that was checked: page-aligned, not empty, within the user half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    start: u64,
    end: u64,
}

impl PageRange {
    /// The pages from `start` on that hold `length` bytes.
    ///
    /// # Errors
    ///
    /// [`MapError::NoLength`], [`MapError::Unaligned`] or [`MapError::Range`].
    pub fn new(start: u64, length: u64) -> Result<Self, MapError> {
        if length == 0 {
            return Err(MapError::NoLength);
        }
        if !start.is_multiple_of(PAGE_SIZE) {
            return Err(MapError::Unaligned { address: start });
        }
        let end = start
            .checked_add(length)
            .and_then(page_ceiling)
            .filter(|&end| end <= USER_LIMIT);
        end.map(|end| Self { start, end })
            .ok_or(MapError::Range { start, length })
    }

    /// First address.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Address after the last.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }
}

impl Areas {
    /// No areas.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            count: 0,
            list: [NO_AREA; MAX_AREAS + 2],
        }
    }

    /// The areas in the order of their addresses.
    #[must_use]
    #[inline(always)]
    pub fn as_slice(&self) -> &[Area] {
        // `min` tells the compiler what is always true, and saves it a panic in the page fault.
        &self.list[..self.count.min(MAX_AREAS)]
    }

    /// The area that holds `address`.
    #[must_use]
    #[inline(always)]
    pub fn find(&self, address: u64) -> Option<&Area> {
        for area in self.as_slice() {
            // Sorted: the first area that ends above the address holds it, or none does.
            if address < area.end {
                return if address >= area.start { Some(area) } else { None };
            }
        }
        None
    }

    fn overlaps(&self, range: PageRange) -> bool {
        self.as_slice()
            .iter()
            .any(|area| area.start < range.end && range.start < area.end)
    }

    /// Where `mmap` with [`Placement::Hint`] puts `length` bytes.
    ///
    /// # Errors
    ///
    /// [`MapError::NoLength`], or [`MapError::NoSpace`].
    pub fn place(&self, hint: u64, length: u64) -> Result<PageRange, MapError> {
        self.place_below(hint, length, MMAP_TOP, USER_LIMIT)
    }

    /// Where `mmap` with [`Placement::Hint32`] puts `length` bytes.
    ///
    /// # Errors
    ///
    /// As [`Areas::place`].
    pub fn place_32(&self, hint: u64, length: u64) -> Result<PageRange, MapError> {
        self.place_below(hint, length, MMAP_TOP_32, USER_LIMIT_32)
    }

    /// The hint if it is free and ends at or below `limit`, else the highest free range below `top`.
    fn place_below(&self, hint: u64, length: u64, top: u64, limit: u64) -> Result<PageRange, MapError> {
        if length == 0 {
            return Err(MapError::NoLength);
        }
        let no_space = MapError::NoSpace { length };
        let length = page_ceiling(length).ok_or(no_space)?;
        let hint = hint & !(PAGE_SIZE - 1);
        if hint != 0
            && let Ok(range) = PageRange::new(hint.max(USER_START), length)
            && range.end <= limit
            && !self.overlaps(range)
        {
            return Ok(range);
        }
        let mut end = top;
        for area in self.as_slice().iter().rev() {
            if end.checked_sub(length).is_some_and(|start| start >= area.end) {
                break;
            }
            end = end.min(area.start);
        }
        let start = end
            .checked_sub(length)
            .filter(|&start| start >= USER_START)
            .ok_or(no_space)?;
        Ok(PageRange { start, end })
    }

    /// Adds an area where nothing is.
    ///
    /// # Errors
    ///
    /// [`MapError::TooLow`], [`MapError::WritableAndExecutable`], [`MapError::Occupied`], [`MapError::TooManyAreas`].
    pub fn insert(&mut self, range: PageRange, protection: Protection) -> Result<(), MapError> {
        let PageRange { start, end } = range;
        if start < USER_START {
            return Err(MapError::TooLow { address: start });
        }
        if protection.breaks_w_xor_x() {
            return Err(MapError::WritableAndExecutable);
        }
        if self.overlaps(range) {
            return Err(MapError::Occupied { start });
        }
        let at = self.as_slice().partition_point(|area| area.start < start);
        if let Some(below) = at.checked_sub(1)
            && self.list[below].end == start
            && self.list[below].protection == protection
        {
            self.list[below].end = end;
            self.join(below);
            return Ok(());
        }
        if self.count == MAX_AREAS {
            return Err(MapError::TooManyAreas);
        }
        self.insert_at(at, Area { start, end, protection });
        self.join(at);
        Ok(())
    }

    /// Takes the range out, cutting areas that reach over its ends.
    ///
    /// # Errors
    ///
    /// [`MapError::TooManyAreas`] when an area would have to be cut in two and the table is full; then nothing changed.
    pub fn remove(&mut self, range: PageRange) -> Result<(), MapError> {
        let is_inside_one = self
            .as_slice()
            .iter()
            .any(|area| area.start < range.start && range.end < area.end);
        if is_inside_one && self.count == MAX_AREAS {
            return Err(MapError::TooManyAreas);
        }
        let (first, last) = self.cut(range);
        self.list.copy_within(last..self.count, first);
        self.count -= last - first;
        Ok(())
    }

    /// Changes the protection of a range that is mapped throughout.
    ///
    /// # Errors
    ///
    /// [`MapError::WritableAndExecutable`], [`MapError::Hole`], [`MapError::TooManyAreas`]; then nothing changed.
    pub fn protect(&mut self, range: PageRange, protection: Protection) -> Result<(), MapError> {
        if protection.breaks_w_xor_x() {
            return Err(MapError::WritableAndExecutable);
        }
        let mut covered = range.start;
        for area in self.as_slice() {
            if area.start <= covered && covered < area.end {
                covered = area.end;
            }
        }
        if covered < range.end {
            return Err(MapError::Hole { address: covered });
        }
        let cuts = [range.start, range.end]
            .into_iter()
            .filter(|&at| self.position_to_cut(at).is_some())
            .count();
        if self.count + cuts > MAX_AREAS {
            return Err(MapError::TooManyAreas);
        }
        let (first, last) = self.cut(range);
        for area in &mut self.list[first..last] {
            area.protection = protection;
        }
        for at in (first.saturating_sub(1)..last).rev() {
            self.join(at);
        }
        Ok(())
    }

    /// The area that `at` would cut in two.
    fn position_to_cut(&self, at: u64) -> Option<usize> {
        self.as_slice().iter().position(|area| area.start < at && at < area.end)
    }

    /// Cuts areas at both ends of the range, so that whole areas lie in it: the indices of those. There are up to two
    /// areas more than before.
    fn cut(&mut self, range: PageRange) -> (usize, usize) {
        for at in [range.start, range.end] {
            if let Some(index) = self.position_to_cut(at) {
                let upper = Area {
                    start: at,
                    ..self.list[index]
                };
                self.list[index].end = at;
                self.insert_at(index + 1, upper);
            }
        }
        let first = self.as_slice().partition_point(|area| area.end <= range.start);
        let last = self.as_slice().partition_point(|area| area.start < range.end);
        (first, last)
    }

    fn insert_at(&mut self, at: usize, area: Area) {
        self.list.copy_within(at..self.count, at + 1);
        self.list[at] = area;
        self.count += 1;
    }

    /// Joins the area at `at` with the one above it when they touch and have the same protection.
    fn join(&mut self, at: usize) {
        if at + 1 < self.count
            && self.list[at].end == self.list[at + 1].start
            && self.list[at].protection == self.list[at + 1].protection
        {
            self.list[at].end = self.list[at + 1].end;
            self.list.copy_within(at + 2..self.count, at + 1);
            self.count -= 1;
        }
    }
}

impl Default for Areas {
    fn default() -> Self {
        Self::new()
    }
}
