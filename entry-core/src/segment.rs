//! The segment order that SYSCALL, SYSRET, SYSENTER, SYSEXIT and IRETQ demand, as one checked value.
//!
//! None of the four fast instructions reads the GDT. Each computes its selectors from an MSR, so a wrong order shows
//! only at the next IRETQ, or as a user program with the wrong stack segment. A [`SegmentLayout`] exists only if every
//! relation holds, and all that depends on the order comes from it: the GDT, STAR, `SYSENTER_CS`, the selectors of
//! gates and frames.
//!
//! | index | selector | segment | named by |
//! |---|---|---|---|
//! | 0 | `0x00` | null | |
//! | 1 | `0x08` | kernel code | SYSCALL: STAR 47:32; SYSENTER: `SYSENTER_CS` |
//! | 2 | `0x10` | kernel data | SYSCALL, SYSENTER: that + 8 |
//! | 3 | `0x1b` | 32-bit user code | SYSRET to 32 bits: STAR 63:48; SYSEXIT to 32 bits: `SYSENTER_CS` + 16 |
//! | 4 | `0x23` | user data | SYSRET: STAR 63:48 + 8; SYSEXIT to 32 bits: `SYSENTER_CS` + 24 |
//! | 5 | `0x2b` | 64-bit user code | SYSRET to 64 bits: STAR 63:48 + 16; SYSEXIT to 64 bits: `SYSENTER_CS` + 32 |
//! | 6 | `0x33` | user data again | SYSEXIT to 64 bits: `SYSENTER_CS` + 40 |
//! | 7, 8 | `0x38` | TSS, two entries | LTR |
//!
//! That order, [`SegmentLayout::NATURAL`], is the only one without gaps that serves all of them. A kernel with an order
//! of its own passes it to [`SegmentLayout::check`].
//!
//! A layout in a constant is checked by the compiler:
//!
//! ```
//! use entry_core::segment::{SegmentLayout, Selector, Selectors};
//!
//! const LAYOUT: SegmentLayout = match SegmentLayout::check(Selectors {
//!     kernel_code: Selector::from_bits(0x08),
//!     kernel_data: Selector::from_bits(0x10),
//!     user_code32: None,
//!     user_data: Selector::from_bits(0x1b),
//!     user_code64: Selector::from_bits(0x23),
//!     sysexit_data: None,
//!     tss: Selector::from_bits(0x28),
//! }) {
//!     Ok(layout) => layout,
//!     Err(error) => panic!("{}", error.wanted()),
//! };
//! assert_eq!(LAYOUT.sysret_base().bits(), 0x13);
//! ```
//!
//! The same with 64-bit user code before user data, the order that comes to mind first, does not compile:
//!
//! ```compile_fail,E0080
//! use entry_core::segment::{SegmentLayout, Selector, Selectors};
//!
//! const LAYOUT: SegmentLayout = match SegmentLayout::check(Selectors {
//!     kernel_code: Selector::from_bits(0x08),
//!     kernel_data: Selector::from_bits(0x10),
//!     user_code32: None,
//!     user_data: Selector::from_bits(0x23),
//!     user_code64: Selector::from_bits(0x1b),
//!     sysexit_data: None,
//!     tss: Selector::from_bits(0x28),
//! }) {
//!     Ok(layout) => layout,
//!     Err(error) => panic!("{}", error.wanted()),
//! };
//! assert_eq!(LAYOUT.sysret_base().bits(), 0x13);
//! ```
//!
//! # Source
//!
//! Intel SDM vol. 2B, *SYSCALL—Fast System Call*, *SYSENTER—Fast System Call*, *SYSEXIT—Fast Return from Fast System
//! Call*, *SYSRET—Return From Fast System Call*; vol. 3A, *Segment Descriptors*, *TSS Descriptor in 64-bit mode*; AMD
//! APM vol. 2, *SYSCALL and SYSRET*, *SYSENTER and SYSEXIT (Legacy Mode Only)*.

mod error;
mod gdt;

use core::fmt;

use x86_64::structures::gdt::SegmentSelector;

use crate::guard::guard;

pub use self::error::{Field, LayoutError, Relation};

/// A segment selector: index in bits 15:3, table indicator (1 = LDT) in bit 2, RPL in bits 1:0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Selector(u16);

impl Selector {
    /// Takes any 16 bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The 16 bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The index of the descriptor in its table.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.0 >> 3
    }

    /// The requested privilege level.
    #[must_use]
    pub const fn rpl(self) -> u16 {
        self.0 & 3
    }

    /// Whether the table indicator names the LDT.
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0 & 4 != 0
    }

    /// Whether it names entry 0 of the GDT: `0x0` to `0x3`.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 & !3 == 0
    }

    /// The selector of the descriptor `bytes` further on, as the CPU computes it.
    const fn after(self, bytes: u16) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    const fn with_rpl(self, rpl: u16) -> Self {
        Self(self.0 & !3 | rpl)
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({:#04x})", self.0)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

impl From<SegmentSelector> for Selector {
    fn from(selector: SegmentSelector) -> Self {
        Self(selector.0)
    }
}

impl From<Selector> for SegmentSelector {
    fn from(selector: Selector) -> Self {
        Self(selector.0)
    }
}

/// The selectors that a kernel uses, before they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selectors {
    /// 64-bit kernel code, RPL 0.
    pub kernel_code: Selector,
    /// Kernel data, RPL 0: what SYSCALL and SYSENTER put into SS.
    pub kernel_data: Selector,
    /// 32-bit user code, RPL 3; `None` if there are no 32-bit programs. SYSRET's base then lies 8 below user data.
    pub user_code32: Option<Selector>,
    /// User data, RPL 3.
    pub user_data: Selector,
    /// 64-bit user code, RPL 3.
    pub user_code64: Selector,
    /// User data again, RPL 3, where SYSEXIT to 64 bits looks for it; `None` if the kernel never executes SYSEXIT.
    pub sysexit_data: Option<Selector>,
    /// The TSS, RPL 0; its descriptor takes this entry and the next.
    pub tss: Selector,
}

/// A segment order that every entry and exit instruction agrees with.
///
/// See the [module](self) for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLayout(Selectors);

impl SegmentLayout {
    /// The order of the [module's table](self), from entry 1 on.
    pub const NATURAL: Self = Self(Self::in_order(Selector::from_bits(0x08)));

    /// Entries of the table of [`SegmentLayout::natural_gdt`].
    pub const NATURAL_ENTRIES: usize = 9;

    /// The order of the [module's table](self), from `kernel_code` on.
    ///
    /// # Errors
    ///
    /// [`LayoutError`], as for [`SegmentLayout::check`].
    ///
    /// ```
    /// use entry_core::segment::{LayoutError, SegmentLayout, Selector};
    /// let layout = SegmentLayout::new(Selector::from_bits(0x10))?;
    /// assert_eq!(layout.user_code64().bits(), 0x33);
    /// # Ok::<(), LayoutError>(())
    /// ```
    pub const fn new(kernel_code: Selector) -> Result<Self, LayoutError> {
        Self::check(Self::in_order(kernel_code))
    }

    const fn in_order(kernel_code: Selector) -> Selectors {
        Selectors {
            kernel_code,
            kernel_data: kernel_code.after(8),
            user_code32: Some(kernel_code.after(16).with_rpl(3)),
            user_data: kernel_code.after(24).with_rpl(3),
            user_code64: kernel_code.after(32).with_rpl(3),
            sysexit_data: Some(kernel_code.after(40).with_rpl(3)),
            tss: kernel_code.after(48),
        }
    }

    /// Checks the selectors that a kernel already has.
    ///
    /// # Errors
    ///
    /// The first of these that is wrong: null, table indicator and RPL of each selector; the relations of SYSCALL and
    /// SYSRET; those of SYSEXIT where [`Selectors::sysexit_data`] is given; two selectors for one descriptor.
    ///
    /// ```
    /// use entry_core::segment::{SegmentLayout, Selector, Selectors};
    /// let error = SegmentLayout::check(Selectors {
    ///     kernel_code: Selector::from_bits(0x08),
    ///     kernel_data: Selector::from_bits(0x10),
    ///     user_code32: None,
    ///     user_data: Selector::from_bits(0x23),
    ///     user_code64: Selector::from_bits(0x1b),
    ///     sysexit_data: None,
    ///     tss: Selector::from_bits(0x28),
    /// })
    /// .unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "user_code64 is 0x1b, wanted 0x2b: 64-bit user code must be user data + 8 (SYSRET); order: kernel code, \
    ///      kernel data, 32-bit user code, user data, 64-bit user code, user data again, TSS"
    /// );
    /// ```
    pub const fn check(selectors: Selectors) -> Result<Self, LayoutError> {
        let Selectors {
            kernel_code,
            kernel_data,
            user_code32,
            user_data,
            user_code64,
            sysexit_data,
            tss,
        } = selectors;
        let fields = [
            (Field::KernelCode, Some(kernel_code), 0),
            (Field::KernelData, Some(kernel_data), 0),
            (Field::UserCode32, user_code32, 3),
            (Field::UserData, Some(user_data), 3),
            (Field::UserCode64, Some(user_code64), 3),
            (Field::SysexitData, sysexit_data, 3),
            (Field::Tss, Some(tss), 0),
        ];
        let mut rest: &[_] = &fields;
        while let [(field, selector, rpl), tail @ ..] = rest {
            if let Some(selector) = *selector
                && let Err(error) = Self::check_one(*field, selector, *rpl)
            {
                return Err(error);
            }
            rest = tail;
        }

        let relations = [
            (
                Field::KernelData,
                Some(kernel_data),
                kernel_code,
                8,
                Relation::SyscallStack,
            ),
            (
                Field::UserData,
                Some(user_data),
                Self(selectors).sysret_base(),
                8,
                Relation::SysretStack,
            ),
            (
                Field::UserCode64,
                Some(user_code64),
                Self(selectors).sysret_base(),
                16,
                Relation::SysretCode64,
            ),
        ];
        if let Err(error) = Self::check_relations(&relations) {
            return Err(error);
        }
        if let Err(error) = Self::check_one(Field::SysretBase, Self(selectors).sysret_base(), 3) {
            return Err(error);
        }
        if sysexit_data.is_some() {
            let relations = [
                (Field::UserCode32, user_code32, kernel_code, 16, Relation::SysexitCode32),
                (
                    Field::UserData,
                    Some(user_data),
                    kernel_code,
                    24,
                    Relation::SysexitStack32,
                ),
                (
                    Field::UserCode64,
                    Some(user_code64),
                    kernel_code,
                    32,
                    Relation::SysexitCode64,
                ),
                (
                    Field::SysexitData,
                    sysexit_data,
                    kernel_code,
                    40,
                    Relation::SysexitStack64,
                ),
            ];
            if let Err(error) = Self::check_relations(&relations) {
                return Err(error);
            }
        }

        match Self::check_overlaps(selectors) {
            Ok(()) => Ok(Self(selectors)),
            Err(error) => Err(error),
        }
    }

    const fn check_overlaps(selectors: Selectors) -> Result<(), LayoutError> {
        let Selectors {
            kernel_code,
            kernel_data,
            user_code32,
            user_data,
            user_code64,
            sysexit_data,
            tss,
        } = selectors;
        if tss.index() == u16::MAX >> 3 {
            return Err(LayoutError::OutsideTable {
                field: Field::TssUpper,
                value: tss,
                entries: 8192,
            });
        }
        let slots = [
            (Field::KernelCode, Some(kernel_code)),
            (Field::KernelData, Some(kernel_data)),
            (Field::UserCode32, user_code32),
            (Field::UserData, Some(user_data)),
            (Field::UserCode64, Some(user_code64)),
            (Field::SysexitData, sysexit_data),
            (Field::Tss, Some(tss)),
            (Field::TssUpper, Some(tss.after(8))),
        ];
        let mut rest: &[_] = &slots;
        while let [(other, first), tail @ ..] = rest {
            let mut later = tail;
            while let [(field, second), tail @ ..] = later {
                if let (Some(first), Some(second)) = (*first, *second)
                    && guard!("segment-overlap", first.index() == second.index())
                {
                    return Err(LayoutError::Overlap {
                        field: *field,
                        value: second,
                        other: *other,
                    });
                }
                later = tail;
            }
            rest = tail;
        }
        Ok(())
    }

    const fn check_one(field: Field, value: Selector, rpl: u16) -> Result<(), LayoutError> {
        if guard!("null-selector", value.is_null()) {
            return Err(LayoutError::Null { field, value });
        }
        if guard!("local-selector", value.is_local()) {
            return Err(LayoutError::Local { field, value });
        }
        if guard!("selector-rpl", value.rpl() != rpl) {
            return Err(LayoutError::WrongRpl {
                field,
                value,
                wanted: value.with_rpl(rpl),
            });
        }
        Ok(())
    }

    const fn check_relations(
        relations: &[(Field, Option<Selector>, Selector, u16, Relation)],
    ) -> Result<(), LayoutError> {
        let mut rest = relations;
        while let [(field, selector, from, bytes, relation), tail @ ..] = rest {
            // 13 bits of index that overflow would come out small, never equal to a selector above `from`.
            if let Some(value) = *selector
                && guard!(
                    "segment-order",
                    value.index() as u32 * 8 != from.index() as u32 * 8 + *bytes as u32
                )
            {
                let wanted = from.after(*bytes).with_rpl(value.rpl());
                return Err(LayoutError::Misplaced {
                    field: *field,
                    value,
                    wanted,
                    relation: *relation,
                });
            }
            rest = tail;
        }
        Ok(())
    }

    /// The selectors.
    #[must_use]
    pub const fn selectors(&self) -> &Selectors {
        &self.0
    }

    /// Kernel code: STAR 47:32, `SYSENTER_CS`, the CS of every gate.
    #[must_use]
    pub const fn kernel_code(&self) -> Selector {
        self.0.kernel_code
    }

    /// Kernel data: SS after SYSCALL and SYSENTER. Interrupts from user mode load a null SS instead.
    #[must_use]
    pub const fn kernel_data(&self) -> Selector {
        self.0.kernel_data
    }

    /// 32-bit user code with RPL 3, if there is any.
    #[must_use]
    pub const fn user_code32(&self) -> Option<Selector> {
        self.0.user_code32
    }

    /// User data with RPL 3: SS for IRETQ to user mode, and after SYSRET.
    #[must_use]
    pub const fn user_data(&self) -> Selector {
        self.0.user_data
    }

    /// 64-bit user code with RPL 3: CS for IRETQ to user mode, and after SYSRET to 64 bits.
    #[must_use]
    pub const fn user_code64(&self) -> Selector {
        self.0.user_code64
    }

    /// SS after SYSEXIT to 64 bits, if the kernel uses SYSEXIT.
    #[must_use]
    pub const fn sysexit_data(&self) -> Option<Selector> {
        self.0.sysexit_data
    }

    /// The operand of LTR.
    #[must_use]
    pub const fn tss(&self) -> Selector {
        self.0.tss
    }

    /// STAR 63:48, with RPL 3: 32-bit user code, or the selector 8 below user data where there is none.
    #[must_use]
    pub const fn sysret_base(&self) -> Selector {
        match self.0.user_code32 {
            Some(selector) => selector,
            None => Selector(self.0.user_data.0.wrapping_sub(8)),
        }
    }
}
