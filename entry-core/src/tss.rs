//! The task-state segment: the stacks that the CPU switches to by itself.
//!
//! | offset | field |
//! |---|---|
//! | 4 | RSP0: the stack for interrupts and exceptions from user mode |
//! | 12, 20 | RSP1, RSP2: not used |
//! | 36–91 | IST1–IST7 |
//! | 102 | offset of the I/O permission bitmap: beyond the limit, so that programs have no ports |
//!
//! The CPU reads it at any time, so RSP0 is written as one aligned 64-bit store. The manual's layout puts the 64-bit
//! fields at odd multiples of 4; the type has 4 bytes in front of it, so that they are aligned all the same. That is
//! why the base for the descriptor is [`TaskStateSegment::base`] and not the address of the value.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Task Management in 64-bit Mode*; AMD APM vol. 2, *64-Bit Task State Segment*.

use core::cell::UnsafeCell;
use core::error::Error;
use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;

use static_assertions::const_assert_eq;
use volatile::VolatilePtr;

use crate::address::Width;
use crate::guard::guard;
use crate::vector::{EXCEPTIONS, Exception, Ist};

/// A task-state segment without an I/O bitmap.
///
/// ```
/// use entry_core::address::Width;
/// use entry_core::tss::TaskStateSegment;
/// use entry_core::vector::Ist;
/// let mut tss = TaskStateSegment::new();
/// assert!(tss.check(Width::Bits48).is_err()); // no stacks yet
/// for (ist, page) in [(Ist::Ist1, 2), (Ist::Ist2, 4), (Ist::Ist3, 6), (Ist::Ist4, 8)] {
///     tss.set_ist(ist, 0xffff_c000_0000_0000 + page * 0x1000);
/// }
/// assert_eq!(tss.check(Width::Bits48), Ok(()));
/// ```
#[derive(Debug)]
#[repr(C, align(128))]
pub struct TaskStateSegment {
    align: u32,
    reserved0: u32,
    rsp: [UnsafeCell<u64>; 3],
    reserved1: u64,
    ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    iomap_base: u16,
}

// The CPU's offsets, from `reserved0` on.
const_assert_eq!(offset_of!(TaskStateSegment, reserved0), 4);
const_assert_eq!(offset_of!(TaskStateSegment, rsp), 4 + 4);
const_assert_eq!(offset_of!(TaskStateSegment, ist), 4 + 36);
const_assert_eq!(offset_of!(TaskStateSegment, iomap_base), 4 + 102);

impl TaskStateSegment {
    /// The limit for the descriptor: 104 bytes, less one.
    pub const LIMIT: u16 = 0x67;

    /// Offset of RSP0 from the address of the value (not from [`TaskStateSegment::base`]), for stubs.
    pub const RSP0: usize = offset_of!(Self, rsp);

    /// All stacks 0.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            align: 0,
            reserved0: 0,
            rsp: [const { UnsafeCell::new(0) }; 3],
            reserved1: 0,
            ist: [0; 7],
            reserved2: 0,
            reserved3: 0,
            iomap_base: Self::LIMIT + 1,
        }
    }

    /// The linear address for the descriptor.
    #[must_use]
    pub fn base(&self) -> u64 {
        (&raw const self.reserved0).addr() as u64
    }

    /// Sets the top of an interrupt stack. The CPU aligns it down to 16.
    pub const fn set_ist(&mut self, ist: Ist, top: u64) {
        let [ist1, ist2, ist3, ist4, ist5, ist6, ist7] = &mut self.ist;
        *match ist {
            Ist::Ist1 => ist1,
            Ist::Ist2 => ist2,
            Ist::Ist3 => ist3,
            Ist::Ist4 => ist4,
            Ist::Ist5 => ist5,
            Ist::Ist6 => ist6,
            Ist::Ist7 => ist7,
        } = top;
    }

    /// The top of an interrupt stack.
    #[must_use]
    pub const fn ist(&self, ist: Ist) -> u64 {
        let [ist1, ist2, ist3, ist4, ist5, ist6, ist7] = self.ist;
        match ist {
            Ist::Ist1 => ist1,
            Ist::Ist2 => ist2,
            Ist::Ist3 => ist3,
            Ist::Ist4 => ist4,
            Ist::Ist5 => ist5,
            Ist::Ist6 => ist6,
            Ist::Ist7 => ist7,
        }
    }

    /// Sets RSP0: the top of the stack for the next interrupt or exception from user mode.
    ///
    /// # Safety
    ///
    /// If TR holds this TSS:
    ///
    /// 1. `top` is the top of a mapped kernel stack, 16-byte aligned, and nothing else uses that stack while user mode runs
    ///    or an entry from it is handled.
    /// 2. The caller runs on the CPU whose TSS this is.
    #[inline(always)]
    pub unsafe fn set_rsp0(&self, top: u64) {
        // SAFETY: the pointer comes from a reference to a cell of this value, aligned for u64; the type is not `Sync`,
        // so no other thread of Rust code writes it, and the CPU only reads it.
        let rsp0 = unsafe { VolatilePtr::new(self.rsp0_cell()) };
        rsp0.write(top);
    }

    /// RSP0.
    #[must_use]
    #[inline]
    pub fn rsp0(&self) -> u64 {
        // SAFETY: as in `set_rsp0`; reading needs no more.
        let rsp0 = unsafe { VolatilePtr::new(self.rsp0_cell()) };
        rsp0.read()
    }

    #[inline(always)]
    fn rsp0_cell(&self) -> NonNull<u64> {
        let [rsp0, ..] = &self.rsp;
        NonNull::from(rsp0).cast()
    }

    /// Checks that every exception with a stack of its own has one: not 0, canonical, a multiple of 16, no two the same.
    ///
    /// # Errors
    ///
    /// [`TssError`], naming the first that is wrong.
    pub const fn check(&self, width: Width) -> Result<(), TssError> {
        let mut rest: &[Exception] = &EXCEPTIONS;
        while let [row, tail @ ..] = rest {
            rest = tail;
            let Some(ist) = row.ist else { continue };
            let top = self.ist(ist);
            if guard!("missing-interrupt-stack", top == 0) {
                return Err(TssError::Missing { ist });
            }
            if guard!("non-canonical-interrupt-stack", !width.is_canonical(top)) {
                return Err(TssError::NonCanonical { ist, top, width });
            }
            if guard!("misaligned-interrupt-stack", !top.is_multiple_of(16)) {
                return Err(TssError::Misaligned { ist, top });
            }
            let mut later = tail;
            while let [row, tail @ ..] = later {
                later = tail;
                if let Some(other) = row.ist
                    && guard!("shared-interrupt-stack", self.ist(other) == top)
                {
                    return Err(TssError::Shared { ist, other, top });
                }
            }
        }
        Ok(())
    }
}

impl Default for TaskStateSegment {
    fn default() -> Self {
        Self::new()
    }
}

/// What is wrong with an interrupt stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TssError {
    /// It was never set.
    Missing {
        /// Which.
        ist: Ist,
    },
    /// Its top is not canonical.
    NonCanonical {
        /// Which.
        ist: Ist,
        /// Its top.
        top: u64,
        /// The width that it was tested for.
        width: Width,
    },
    /// Its top is not a multiple of 16. The CPU would align it, and the stub look for the header's address in the wrong place.
    Misaligned {
        /// Which.
        ist: Ist,
        /// Its top.
        top: u64,
    },
    /// Two exceptions have one stack: one inside the other would overwrite its frame.
    Shared {
        /// Which.
        ist: Ist,
        /// The other.
        other: Ist,
        /// The top of both.
        top: u64,
    },
}

impl fmt::Display for TssError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { ist } => write!(f, "ist{} is 0, wanted the top of a stack", ist.number()),
            Self::NonCanonical { ist, top, width } => {
                write!(
                    f,
                    "ist{} is {top:#x}, not canonical for {} bits",
                    ist.number(),
                    width.bits()
                )
            }
            Self::Misaligned { ist, top } => write!(f, "ist{} is {top:#x}, wanted a multiple of 16", ist.number()),
            Self::Shared { ist, other, top } => {
                write!(
                    f,
                    "ist{} and ist{} are both {top:#x}, wanted two stacks",
                    ist.number(),
                    other.number()
                )
            }
        }
    }
}

impl Error for TssError {}
