//! 32-bit programs: the kernel's stubs for them, and the page by which they enter.
//!
//! A process that has 32-bit code has stubs of its own ([`Variant::Code32`](super::variant::Variant)), whose exits let such
//! code have its way; those of all others refuse it, and have no instruction more for it. 64-bit code runs in such a process,
//! too. The kernel neither hides from it nor is it tracked: there are no such stubs for it.
//!
//! Which instruction suits the CPU is the business of the page at [`CALL_PAGE_32`]: SYSENTER on Intel's, SYSCALL on AMD's.
//! INT 0x80 works on all.

use core::fmt;

use entry_core::NoTracking;
use entry_core::cpu::CpuFeatures;
use entry_sysenter::stub::Compat;
use entry_sysenter::user_page::{Entry32, UserPage};
use entry_sysret::{RuleSet, Rules};

use super::{OsKernel, PerCpu, UserRules, stubs};
use crate::memory::layout::{CALL_PAGE_32, index};
use crate::memory::{AddressSpace, FaultError, MapError, PAGE_SIZE, Placement, Protection};

/// As [`UserRules`], with leave for 32-bit code.
#[derive(Debug)]
pub struct Code32Rules;

impl Rules for Code32Rules {
    const RULES: RuleSet = UserRules::RULES.with_code32();
}

/// The kernel of processes that have 32-bit code.
pub(crate) type Kernel32 = OsKernel<NoTracking, Code32Rules>;

// SAFETY: 1. the word is in the per-CPU structure. 2. `PerCpu::take_syscall_entry` sets it, and every switch between a process
// that has 32-bit code and another one goes there.
unsafe impl Compat for Kernel32 {
    const LANDING: usize = PerCpu::LANDING;
}

/// As [`Code32Rules`], with leave for IOPL 3 and so for IF = 0.
#[derive(Debug)]
pub struct IoCode32Rules;

impl Rules for IoCode32Rules {
    const RULES: RuleSet = Code32Rules::RULES.with_io_privilege();
}

/// The kernel of processes that have 32-bit code and IOPL 3.
pub(crate) type PrivilegedKernel32 = OsKernel<NoTracking, IoCode32Rules>;

// SAFETY: as `Kernel32`.
unsafe impl Compat for PrivilegedKernel32 {
    const LANDING: usize = PerCpu::LANDING;
}

/// How the page enters the kernel on this CPU.
pub(crate) fn entry() -> Entry32 {
    Entry32::on(&CpuFeatures::detect())
}

/// Where SYSCALL of 32-bit code leads to in a process that may have such code.
pub(crate) fn syscall_entry() -> u64 {
    stubs::<Kernel32>().syscall_compat
}

/// Where SYSENTER returns to: behind it, in the page.
pub(crate) const fn landing() -> u64 {
    CALL_PAGE_32 + UserPage::for_32_bit_code(Entry32::Sysenter).landing() as u64
}

/// The page could not be given to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPageError {
    /// Its place is taken.
    Map(MapError),
    /// No frame is left for it.
    Fill(FaultError),
}

impl fmt::Display for CallPageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(error) => write!(f, "page to enter the kernel by: {error}"),
            Self::Fill(error) => write!(f, "page to enter the kernel by: {error}"),
        }
    }
}

impl core::error::Error for CallPageError {}

/// Maps the page by which 32-bit code enters the kernel on this CPU.
///
/// # Errors
///
/// [`CallPageError`].
pub fn map_call_page(space: &mut AddressSpace) -> Result<(), CallPageError> {
    let protection = Protection::READ.union(Protection::EXECUTE);
    space
        .mmap(CALL_PAGE_32, PAGE_SIZE, protection, Placement::Fixed)
        .map_err(CallPageError::Map)?;
    let mut bytes = [0; index(PAGE_SIZE)];
    // A page is longer than what is generated.
    let _length = UserPage::for_32_bit_code(entry()).write_to(&mut bytes);
    space.write(CALL_PAGE_32, &bytes).map_err(CallPageError::Fill)
}
