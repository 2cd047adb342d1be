//! Free page frames of RAM.
//!
//! A frame comes from the list of frames that were given back, or else from a pointer that moves through the ranges the
//! loader named. The list needs no memory: each free frame holds the address of the next. Both ways take a handful of
//! instructions however much RAM there is, and booting clears nothing.

use core::fmt;

use super::layout::{DIRECT_MAP, PAGE_SIZE, index};
use crate::lock::Lock;

/// One page frame: a physical address that is a multiple of 4,096.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Frame(u64);

/// No frame, kernel stack or table slot is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:#x})", self.0)
    }
}

impl Frame {
    /// The frame that holds physical address `address`.
    #[must_use]
    #[inline(always)]
    pub const fn containing(address: u64) -> Self {
        Self(address & !(PAGE_SIZE - 1))
    }

    /// Its physical address.
    #[must_use]
    #[inline(always)]
    pub const fn start(self) -> u64 {
        self.0
    }

    /// Where the direct map shows it.
    #[must_use]
    #[inline(always)]
    pub const fn pointer(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(index(DIRECT_MAP + self.0))
    }
}

/// A range of physical addresses, `end` not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

/// How many ranges of free RAM are kept; what a loader names beyond that stays unused.
pub const MAX_RANGES: usize = 32;

struct Frames {
    /// First frame of the list of freed ones; 0 ends it (frame 0 is never handed out).
    list: u64,
    /// First frame of the list of freed pairs; 0 ends it.
    pairs: u64,
    next: u64,
    end: u64,
    ranges: [Range; MAX_RANGES],
    range_count: usize,
    free_count: u64,
}

static FRAMES: Lock<Frames> = Lock::new(Frames {
    list: 0,
    pairs: 0,
    next: 0,
    end: 0,
    ranges: [Range { start: 0, end: 0 }; MAX_RANGES],
    range_count: 0,
    free_count: 0,
});

impl Frames {
    #[inline(always)]
    fn take(&mut self) -> Option<Frame> {
        let frame = if self.list != 0 {
            let frame = Frame(self.list);
            // SAFETY: the frame is on the list, so nobody else uses it, and `free` wrote the next one's address there.
            self.list = unsafe { frame.pointer().cast::<u64>().read() };
            frame
        } else {
            if self.next == self.end && self.next_range().is_none() {
                return self.break_pair();
            }
            let frame = Frame(self.next);
            self.next += PAGE_SIZE;
            frame
        };
        self.free_count -= 1;
        Some(frame)
    }

    /// A frame, when only pairs are left.
    #[cold]
    fn break_pair(&mut self) -> Option<Frame> {
        // Counts both out, and the other one in again.
        let first = self.take_pair()?;
        self.put(Frame(first.0 + PAGE_SIZE));
        self.free_count += 1;
        Some(first)
    }

    /// Two frames, the first of which has an even number.
    fn take_pair(&mut self) -> Option<Frame> {
        if self.pairs != 0 {
            let frame = Frame(self.pairs);
            // SAFETY: the frame is on the list, so nobody else uses it, and `free_pair` wrote the next one's address there.
            self.pairs = unsafe { frame.pointer().cast::<u64>().read() };
            self.free_count -= 2;
            return Some(frame);
        }
        loop {
            if self.next == self.end {
                self.next_range()?;
            }
            let first = Frame(self.next);
            let is_pair = first.0.is_multiple_of(2 * PAGE_SIZE) && self.end - self.next >= 2 * PAGE_SIZE;
            self.next += if is_pair { 2 * PAGE_SIZE } else { PAGE_SIZE };
            if is_pair {
                self.free_count -= 2;
                return Some(first);
            }
            self.put(first);
        }
    }

    /// Puts a frame on the list that nobody uses.
    const fn put(&mut self, frame: Frame) {
        // SAFETY: nobody else uses the frame.
        unsafe { frame.pointer().cast::<u64>().write(self.list) };
        self.list = frame.0;
    }

    #[cold]
    fn next_range(&mut self) -> Option<()> {
        self.range_count = self.range_count.checked_sub(1)?;
        let range = self.ranges[self.range_count];
        self.next = range.start;
        self.end = range.end;
        Some(())
    }
}

/// Hands a range of unused RAM to the allocator. Partial frames at its ends are left out; false when the list of ranges
/// is full.
///
/// # Safety
///
/// 1. Each frame of the range is RAM, in the direct map by the time it is allocated, and used by nobody.
/// 2. It overlaps no range given before.
pub(crate) unsafe fn add_range(range: Range) -> bool {
    let start = range.start.next_multiple_of(PAGE_SIZE);
    let end = range.end & !(PAGE_SIZE - 1);
    if start >= end {
        return true;
    }
    let mut frames = FRAMES.lock();
    let count = frames.range_count;
    if count == MAX_RANGES {
        return false;
    }
    frames.ranges[count] = Range { start, end };
    frames.range_count = count + 1;
    frames.free_count += (end - start) / PAGE_SIZE;
    true
}

/// A frame with arbitrary contents.
#[must_use]
#[inline]
pub fn allocate() -> Option<Frame> {
    FRAMES.lock().take()
}

/// A frame of zeros.
#[must_use]
#[inline]
pub fn allocate_zeroed() -> Option<Frame> {
    let frame = allocate()?;
    // SAFETY: the frame was free, so nobody else uses it, and the direct map shows the whole of it.
    unsafe { frame.pointer().write_bytes(0, index(PAGE_SIZE)) };
    Some(frame)
}

/// Two adjacent frames of zeros; the first one's number is even.
#[must_use]
pub fn allocate_zeroed_pair() -> Option<Frame> {
    let frame = FRAMES.lock().take_pair()?;
    // SAFETY: both frames were free, so nobody else uses them, and the direct map shows the whole of them.
    unsafe { frame.pointer().write_bytes(0, 2 * index(PAGE_SIZE)) };
    Some(frame)
}

/// Gives a pair back.
///
/// # Safety
///
/// 1. The pair came from [`allocate_zeroed_pair`] and was not given back since.
/// 2. As [`free`], for both frames.
pub unsafe fn free_pair(first: Frame) {
    let mut frames = FRAMES.lock();
    // SAFETY: condition 2: nobody else uses the frames.
    unsafe { first.pointer().cast::<u64>().write(frames.pairs) };
    frames.pairs = first.0;
    frames.free_count += 2;
}

/// Gives a frame back.
///
/// # Safety
///
/// 1. The frame came from [`allocate`] or [`allocate_zeroed`] and was not given back since.
/// 2. No page table maps it except the direct map, and no reference into it is left.
#[inline]
pub unsafe fn free(frame: Frame) {
    let mut frames = FRAMES.lock();
    // SAFETY: condition 2: nobody else uses the frame.
    unsafe { frame.pointer().cast::<u64>().write(frames.list) };
    frames.list = frame.0;
    frames.free_count += 1;
}

/// How many frames are free.
#[must_use]
pub fn free_count() -> u64 {
    FRAMES.lock().free_count
}
