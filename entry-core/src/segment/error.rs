use core::error::Error;
use core::fmt;

use crate::segment::Selector;
#[cfg(doc)]
use crate::segment::Selectors;

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
///
/// In a constant, the refusal is the compiler's. Each of these lines compiles with the one selector that fits:
///
/// ```
/// use entry_core::segment::{SegmentLayout, Selector, Selectors};
///
/// const fn checked(selectors: Selectors) -> SegmentLayout {
///     match SegmentLayout::check(selectors) {
///         Ok(layout) => layout,
///         Err(error) => panic!("{}", error.wanted()),
///     }
/// }
/// const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();
/// const DATA: SegmentLayout = checked(Selectors { kernel_data: Selector::from_bits(0x10), ..NATURAL });
/// const BASE: SegmentLayout = checked(Selectors { user_code32: Some(Selector::from_bits(0x1b)), ..NATURAL });
/// const USER: SegmentLayout = checked(Selectors { user_data: Selector::from_bits(0x23), ..NATURAL });
/// const EXIT: SegmentLayout = checked(Selectors { sysexit_data: Some(Selector::from_bits(0x33)), ..NATURAL });
/// const TASK: SegmentLayout = checked(Selectors { tss: Selector::from_bits(0x38), ..NATURAL });
/// ```
///
/// A null selector:
///
/// ```compile_fail,E0080
/// # use entry_core::segment::{SegmentLayout, Selector, Selectors};
/// # const fn checked(selectors: Selectors) -> SegmentLayout {
/// #     match SegmentLayout::check(selectors) {
/// #         Ok(layout) => layout,
/// #         Err(error) => panic!("{}", error.wanted()),
/// #     }
/// # }
/// # const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();
/// const DATA: SegmentLayout = checked(Selectors { kernel_data: Selector::from_bits(0x00), ..NATURAL });
/// ```
///
/// SYSRET's base without RPL 3:
///
/// ```compile_fail,E0080
/// # use entry_core::segment::{SegmentLayout, Selector, Selectors};
/// # const fn checked(selectors: Selectors) -> SegmentLayout {
/// #     match SegmentLayout::check(selectors) {
/// #         Ok(layout) => layout,
/// #         Err(error) => panic!("{}", error.wanted()),
/// #     }
/// # }
/// # const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();
/// const BASE: SegmentLayout = checked(Selectors { user_code32: Some(Selector::from_bits(0x18)), ..NATURAL });
/// ```
///
/// A selector of the LDT:
///
/// ```compile_fail,E0080
/// # use entry_core::segment::{SegmentLayout, Selector, Selectors};
/// # const fn checked(selectors: Selectors) -> SegmentLayout {
/// #     match SegmentLayout::check(selectors) {
/// #         Ok(layout) => layout,
/// #         Err(error) => panic!("{}", error.wanted()),
/// #     }
/// # }
/// # const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();
/// const USER: SegmentLayout = checked(Selectors { user_data: Selector::from_bits(0x27), ..NATURAL });
/// ```
///
/// User data that SYSEXIT would not find:
///
/// ```compile_fail,E0080
/// # use entry_core::segment::{SegmentLayout, Selector, Selectors};
/// # const fn checked(selectors: Selectors) -> SegmentLayout {
/// #     match SegmentLayout::check(selectors) {
/// #         Ok(layout) => layout,
/// #         Err(error) => panic!("{}", error.wanted()),
/// #     }
/// # }
/// # const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();
/// const EXIT: SegmentLayout = checked(Selectors { sysexit_data: Some(Selector::from_bits(0x23)), ..NATURAL });
/// ```
///
/// A TSS whose descriptor begins in a segment:
///
/// ```compile_fail,E0080
/// # use entry_core::segment::{SegmentLayout, Selector, Selectors};
/// # const fn checked(selectors: Selectors) -> SegmentLayout {
/// #     match SegmentLayout::check(selectors) {
/// #         Ok(layout) => layout,
/// #         Err(error) => panic!("{}", error.wanted()),
/// #     }
/// # }
/// # const NATURAL: Selectors = *SegmentLayout::NATURAL.selectors();
/// const TASK: SegmentLayout = checked(Selectors { tss: Selector::from_bits(0x30), ..NATURAL });
/// ```
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
    /// The RPL is not 0 for the kernel's selectors, not 3 for the user's. AMD CPUs load SS from SYSRET's base as it is:
    /// with RPL 0 there, the user runs with a stack selector that the next IRETQ refuses.
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
