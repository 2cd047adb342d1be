//! The segment order that SYSCALL, SYSRET, SYSENTER, SYSEXIT and IRETQ demand, as one checked value.
//!
//! None of the four fast instructions reads the GDT. Each computes its selectors from an MSR, so a wrong order shows only
//! at the next IRETQ, or as a user program with the wrong stack segment. A [`SegmentLayout`] exists only if every relation
//! holds, and all that depends on the order comes from it: the GDT, STAR, `SYSENTER_CS`, the selectors of gates and frames.
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
//! That order, [`SegmentLayout::NATURAL`], is the only one without gaps that serves all of them. A kernel with an order of
//! its own passes it to [`SegmentLayout::check`].
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
//! Intel SDM vol. 2B, *SYSCALL—Fast System Call*, *SYSENTER—Fast System Call*, *SYSEXIT—Fast Return from Fast System Call*,
//! *SYSRET—Return From Fast System Call*; vol. 3A, *Segment Descriptors*, *TSS Descriptor in 64-bit mode*; AMD APM vol. 2,
//! *SYSCALL and SYSRET*, *SYSENTER and SYSEXIT (Legacy Mode Only)*.

use core::error::Error;
use core::fmt;

use x86_64::structures::gdt::SegmentSelector;
#[cfg(target_arch = "x86_64")]
use x86_64::{
    VirtAddr,
    instructions::tables::{lgdt, load_tss},
    registers::segmentation::{CS, DS, ES, SS, Segment},
    structures::DescriptorTablePointer,
};

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

/// Which selector an error speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// [`Selectors::kernel_code`].
    KernelCode,
    /// [`Selectors::kernel_data`].
    KernelData,
    /// [`Selectors::user_code32`].
    UserCode32,
    /// [`Selectors::user_data`].
    UserData,
    /// [`Selectors::user_code64`].
    UserCode64,
    /// [`Selectors::sysexit_data`].
    SysexitData,
    /// [`Selectors::tss`].
    Tss,
    /// The second entry of the TSS descriptor.
    TssUpper,
    /// SYSRET's base, STAR 63:48.
    SysretBase,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelCode => "kernel_code",
            Self::KernelData => "kernel_data",
            Self::UserCode32 => "user_code32",
            Self::UserData => "user_data",
            Self::UserCode64 => "user_code64",
            Self::SysexitData => "sysexit_data",
            Self::Tss => "tss",
            Self::TssUpper => "tss (second entry)",
            Self::SysretBase => "sysret base",
        })
    }
}

/// A relation that the CPU computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Relation {
    /// SYSCALL and SYSENTER load SS with the kernel code selector + 8.
    SyscallStack,
    /// SYSRET loads SS with its base + 8; the base is 32-bit user code.
    SysretStack,
    /// SYSRET to 64-bit code loads CS with its base + 16.
    SysretCode64,
    /// SYSEXIT to 32-bit code loads CS with the kernel code selector + 16.
    SysexitCode32,
    /// SYSEXIT to 32-bit code loads SS with the kernel code selector + 24.
    SysexitStack32,
    /// SYSEXIT to 64-bit code loads CS with the kernel code selector + 32.
    SysexitCode64,
    /// SYSEXIT to 64-bit code loads SS with the kernel code selector + 40.
    SysexitStack64,
}

/// A relation, followed by the order that satisfies all of them.
macro_rules! relation {
    ($text:literal) => {
        concat!(
            $text,
            "; order: kernel code, kernel data, 32-bit user code, user data, 64-bit user code, user data again, TSS"
        )
    };
}

impl Relation {
    const fn wanted(self) -> &'static str {
        match self {
            Self::SyscallStack => relation!("kernel data must be kernel code + 8 (SYSCALL, SYSENTER)"),
            Self::SysretStack => relation!("user data must be 32-bit user code + 8 (SYSRET)"),
            Self::SysretCode64 => relation!("64-bit user code must be user data + 8 (SYSRET)"),
            Self::SysexitCode32 => relation!("32-bit user code must be kernel code + 16 (SYSEXIT)"),
            Self::SysexitStack32 => relation!("user data must be kernel code + 24 (SYSEXIT)"),
            Self::SysexitCode64 => relation!("64-bit user code must be kernel code + 32 (SYSEXIT)"),
            Self::SysexitStack64 => relation!("user data again must be kernel code + 40 (SYSEXIT)"),
        }
    }
}

/// Why a layout was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// A null selector, with whatever RPL.
    Null {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
    },
    /// The table indicator is set: the CPU's arithmetic keeps it, and the LDT is not the kernel's.
    Local {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
    },
    /// The RPL is not 0 for the kernel's selectors, not 3 for the user's. AMD CPUs load SS from SYSRET's base as it is: with
    /// RPL 0 there, the user runs with a stack selector that the next IRETQ refuses.
    WrongRpl {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
        /// The same descriptor with the right RPL.
        wanted: Selector,
    },
    /// The selector is not the one that the CPU computes.
    Misplaced {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
        /// What the CPU computes.
        wanted: Selector,
        /// From what.
        relation: Relation,
    },
    /// Two selectors name one descriptor.
    Overlap {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
        /// The other.
        other: Field,
    },
    /// The descriptor lies outside the table.
    OutsideTable {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
        /// The entries that the table has.
        entries: usize,
    },
    /// The descriptor in the table is not of the kind that the CPU will pretend it is.
    WrongDescriptor {
        /// Which.
        field: Field,
        /// Its value.
        value: Selector,
        /// The descriptor.
        found: u64,
        /// A right one.
        wanted: u64,
        /// The bits that have to agree.
        compared: u64,
    },
}

impl LayoutError {
    /// What was wanted, for a panic in a constant.
    #[must_use]
    pub const fn wanted(self) -> &'static str {
        match self {
            Self::Null { .. } => "a selector is null",
            Self::Local { .. } => "a selector names the LDT: bit 2 must be 0",
            Self::WrongRpl { .. } => "kernel and TSS selectors must have RPL 0, user selectors and SYSRET's base RPL 3",
            Self::Misplaced { relation, .. } => relation.wanted(),
            Self::Overlap { .. } => "two selectors name one descriptor; the TSS takes two entries",
            Self::OutsideTable { .. } => "the table is too small",
            Self::WrongDescriptor { .. } => "a descriptor is of the wrong type, DPL or size",
        }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { field, value } => write!(f, "{field} is {value}, a null selector"),
            Self::Local { field, value } => write!(f, "{field} is {value}, which names the LDT: bit 2 must be 0"),
            Self::WrongRpl { field, value, wanted } => {
                write!(f, "{field} is {value} with RPL {}, wanted {wanted}", value.rpl())
            }
            Self::Misplaced {
                field,
                value,
                wanted,
                relation,
            } => {
                write!(f, "{field} is {value}, wanted {wanted}: {}", relation.wanted())
            }
            Self::Overlap { field, value, other } => {
                write!(
                    f,
                    "{field} is {value}, the descriptor of {other}; the TSS takes two entries"
                )
            }
            Self::OutsideTable { field, value, entries } => {
                write!(f, "{field} is {value}, outside a table of {entries} entries")
            }
            Self::WrongDescriptor {
                field,
                value,
                found,
                wanted,
                compared,
            } => write!(
                f,
                "{field} is {value} with descriptor {found:#018x}, wanted {wanted:#018x} in the bits {compared:#018x}"
            ),
        }
    }
}

impl Error for LayoutError {}

/// Descriptor images. The accessed bit is set, so that the CPU never writes to the table.
mod descriptor {
    /// P, S, execute/read, accessed, DPL 0, L, G, limit 4 GiB.
    pub(super) const KERNEL_CODE: u64 = 0x00af_9b00_0000_ffff;
    /// P, S, read/write, accessed, DPL 0, B, G, limit 4 GiB.
    pub(super) const KERNEL_DATA: u64 = 0x00cf_9300_0000_ffff;
    /// P, S, execute/read, accessed, DPL 3, D, G, limit 4 GiB.
    pub(super) const USER_CODE32: u64 = 0x00cf_fb00_0000_ffff;
    /// P, S, read/write, accessed, DPL 3, B, G, limit 4 GiB.
    pub(super) const USER_DATA: u64 = 0x00cf_f300_0000_ffff;
    /// P, S, execute/read, accessed, DPL 3, L, G, limit 4 GiB.
    pub(super) const USER_CODE64: u64 = 0x00af_fb00_0000_ffff;
    /// P, 64-bit TSS, available, DPL 0.
    pub(super) const TSS: u64 = 0x0000_8900_0000_0000;

    /// What 64-bit mode looks at in a code segment: P, DPL, S, execute, conforming, L, D.
    pub(super) const CODE64_BITS: u64 = 0x0060_fc00_0000_0000;
    /// What 64-bit mode looks at in a data segment: P, DPL, S, execute, expand-down, writable.
    pub(super) const DATA64_BITS: u64 = 0x0000_fe00_0000_0000;
    /// What compatibility mode looks at: everything but accessed and AVL.
    pub(super) const FLAT_BITS: u64 = 0xffef_feff_ffff_ffff;
    /// P, DPL, S and type but for busy.
    pub(super) const TSS_BITS: u64 = 0x0000_fd00_0000_0000;
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
                    && first.index() == second.index()
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
        Ok(Self(selectors))
    }

    const fn check_one(field: Field, value: Selector, rpl: u16) -> Result<(), LayoutError> {
        if value.is_null() {
            return Err(LayoutError::Null { field, value });
        }
        if value.is_local() {
            return Err(LayoutError::Local { field, value });
        }
        if value.rpl() != rpl {
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
                && value.index() as u32 * 8 != from.index() as u32 * 8 + *bytes as u32
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

    /// The entries that a GDT for this layout needs.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.last_index() as usize + 1
    }

    /// The limit for LGDT: bytes of [`SegmentLayout::entries`], less one.
    #[must_use]
    pub const fn gdt_limit(&self) -> u16 {
        self.last_index() * 8 + 7
    }

    const fn last_index(&self) -> u16 {
        let mut last = 0;
        let mut rest: &[_] = &self.slots();
        while let [(_, selector, _), tail @ ..] = rest {
            if let Some(selector) = selector
                && selector.index() > last
            {
                last = selector.index();
            }
            rest = tail;
        }
        last
    }

    /// The GDT of [`SegmentLayout::NATURAL`]: null, six segments, the TSS.
    ///
    /// `tss_base` is the linear address of the TSS, `tss_limit` its bytes less one.
    ///
    /// ```
    /// use entry_core::segment::SegmentLayout;
    /// const GDT: [u64; 9] = SegmentLayout::natural_gdt(0, 0x67);
    /// assert_eq!(GDT[1], 0x00af_9b00_0000_ffff);
    /// ```
    #[must_use]
    pub const fn natural_gdt(tss_base: u64, tss_limit: u16) -> [u64; 9] {
        let [lower, upper] = Self::tss_descriptor(tss_base, tss_limit);
        [
            0,
            descriptor::KERNEL_CODE,
            descriptor::KERNEL_DATA,
            descriptor::USER_CODE32,
            descriptor::USER_DATA,
            descriptor::USER_CODE64,
            descriptor::USER_DATA,
            lower,
            upper,
        ]
    }

    /// A GDT of `N` entries for this layout; entries that it does not name are null.
    ///
    /// # Errors
    ///
    /// [`LayoutError::OutsideTable`] if `N` is less than [`SegmentLayout::entries`].
    #[expect(clippy::indexing_slicing, reason = "the index is compared with N one step before")]
    pub const fn gdt<const N: usize>(&self, tss_base: u64, tss_limit: u16) -> Result<[u64; N], LayoutError> {
        let [lower, upper] = Self::tss_descriptor(tss_base, tss_limit);
        let mut table = [0; N];
        let mut rest: &[_] = &self.slots();
        while let [(field, selector, kind), tail @ ..] = rest {
            rest = tail;
            let Some(value) = *selector else { continue };
            let index = value.index() as usize;
            if index >= N {
                return Err(LayoutError::OutsideTable {
                    field: *field,
                    value,
                    entries: N,
                });
            }
            table[index] = match field {
                Field::Tss => lower,
                Field::TssUpper => upper,
                _ => kind.0,
            };
        }
        Ok(table)
    }

    /// Checks the descriptors of a GDT that a kernel already has.
    ///
    /// SYSCALL and SYSRET load fixed attributes whatever the table says; IRETQ reads the table. If they differ, a program
    /// changes its mode or its privilege when an interrupt hits it.
    ///
    /// # Errors
    ///
    /// [`LayoutError::OutsideTable`], [`LayoutError::WrongDescriptor`].
    #[expect(
        clippy::indexing_slicing,
        reason = "the index is compared with the length one step before"
    )]
    pub const fn check_gdt(&self, gdt: &[u64]) -> Result<(), LayoutError> {
        let mut rest: &[_] = &self.slots();
        while let [(field, selector, (wanted, compared)), tail @ ..] = rest {
            rest = tail;
            let Some(value) = *selector else { continue };
            let index = value.index() as usize;
            if index >= gdt.len() {
                return Err(LayoutError::OutsideTable {
                    field: *field,
                    value,
                    entries: gdt.len(),
                });
            }
            let found = gdt[index];
            if (found ^ *wanted) & *compared != 0 {
                let (wanted, compared) = (*wanted, *compared);
                return Err(LayoutError::WrongDescriptor {
                    field: *field,
                    value,
                    found,
                    wanted,
                    compared,
                });
            }
        }
        Ok(())
    }

    /// Every descriptor of the layout: image, and the bits of it that matter.
    const fn slots(&self) -> [(Field, Option<Selector>, (u64, u64)); 8] {
        // Base, limit and B of user data matter to 32-bit programs alone.
        let user_data_bits = if self.0.user_code32.is_some() {
            descriptor::FLAT_BITS
        } else {
            descriptor::DATA64_BITS
        };
        [
            (
                Field::KernelCode,
                Some(self.0.kernel_code),
                (descriptor::KERNEL_CODE, descriptor::CODE64_BITS),
            ),
            (
                Field::KernelData,
                Some(self.0.kernel_data),
                (descriptor::KERNEL_DATA, descriptor::DATA64_BITS),
            ),
            (
                Field::UserCode32,
                self.0.user_code32,
                (descriptor::USER_CODE32, descriptor::FLAT_BITS),
            ),
            (
                Field::UserData,
                Some(self.0.user_data),
                (descriptor::USER_DATA, user_data_bits),
            ),
            (
                Field::UserCode64,
                Some(self.0.user_code64),
                (descriptor::USER_CODE64, descriptor::CODE64_BITS),
            ),
            (
                Field::SysexitData,
                self.0.sysexit_data,
                (descriptor::USER_DATA, descriptor::DATA64_BITS),
            ),
            (Field::Tss, Some(self.0.tss), (descriptor::TSS, descriptor::TSS_BITS)),
            (Field::TssUpper, Some(self.0.tss.after(8)), (0, 0)),
        ]
    }

    /// The two entries of a 64-bit TSS descriptor: available, DPL 0.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 3A, *TSS Descriptor in 64-bit mode*.
    #[must_use]
    pub const fn tss_descriptor(base: u64, limit: u16) -> [u64; 2] {
        let lower = descriptor::TSS | limit as u64 | (base & 0x00ff_ffff) << 16 | (base >> 24 & 0xff) << 56;
        [lower, base >> 32]
    }

    /// Makes a GDT the CPU's: LGDT, then CS, SS, DS, ES and TR from this layout. FS and GS stay as they are, since loading a
    /// selector would change their bases.
    ///
    /// # Safety
    ///
    /// 1. CPL is 0 and RFLAGS.IF is 0.
    /// 2. `gdt` is valid for reads and writes for ever, in every address space, and used for this CPU alone: LTR marks the
    ///    TSS as busy.
    /// 3. [`SegmentLayout::check_gdt`] accepts it, and its TSS descriptor (available, not busy) names a TSS that stays.
    ///
    /// # Source
    ///
    /// Intel SDM vol. 2A, *LGDT/LIDT—Load Global/Interrupt Descriptor Table Register*, *LTR—Load Task Register*.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn load(&self, gdt: *mut [u64]) {
        // SAFETY: the address is passed on to LGDT, which takes 64 bits; nothing computes with it.
        let base = unsafe { VirtAddr::new_unsafe(gdt.cast::<u64>().addr() as u64) };
        // SAFETY: 1 to 3; the limit is that of a table with `entries` entries, which `check_gdt` found there.
        unsafe {
            lgdt(&DescriptorTablePointer {
                limit: self.gdt_limit(),
                base,
            })
        };
        // SAFETY: the descriptor is 64-bit kernel code by 3.
        unsafe { CS::set_reg(self.kernel_code().into()) };
        // SAFETY: the descriptor is kernel data by 3.
        unsafe { SS::set_reg(self.kernel_data().into()) };
        // SAFETY: 64-bit mode does not use DS.
        unsafe { DS::set_reg(SegmentSelector::NULL) };
        // SAFETY: 64-bit mode does not use ES.
        unsafe { ES::set_reg(SegmentSelector::NULL) };
        // SAFETY: the descriptor is an available TSS by 3, and the table may be written by 2.
        unsafe { load_tss(self.tss().into()) };
    }
}
