//! Copies from and to the memory of the process in CR3.
//!
//! A user pointer is checked against [`USER_LIMIT`], and the access itself may fault. Each instruction that touches user
//! memory is recorded in a section of the image together with the place where to go on if it can't be answered, so the
//! page-fault handler recognises it by its exact address ([`fixup`]); a fault at any other instruction of the kernel is
//! a bug. With SMAP, AC is set around these instructions alone.
//!
//! # Source
//!
//! Intel SDM vol. 3A, *Determination of Access Rights* (SMAP).

use core::arch::naked_asm;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use super::layout::USER_LIMIT;

/// A user pointer that is no use: outside the user half, not mapped, or not allowed. Linux's `EFAULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAddress {
    /// The first address of the access.
    pub address: u64,
}

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user address {:#x} is not accessible", self.address)
    }
}

impl core::error::Error for BadAddress {}

static HAS_SMAP: AtomicBool = AtomicBool::new(false);

/// Tells whether CR4.SMAP is set: STAC and CLAC fault on a CPU without it.
pub(crate) fn init(has_smap: bool) {
    HAS_SMAP.store(has_smap, Ordering::Relaxed);
}

#[inline(always)]
const fn check(address: u64, length: usize) -> Result<(), BadAddress> {
    let length = length as u64;
    if length <= USER_LIMIT && address <= USER_LIMIT - length {
        Ok(())
    } else {
        Err(BadAddress { address })
    }
}

/// Copies `destination.len()` bytes from user memory at `source`.
///
/// # Errors
///
/// [`BadAddress`]; the destination may be partly written then.
#[inline]
pub fn copy_from_user(destination: &mut [u8], source: u64) -> Result<(), BadAddress> {
    check(source, destination.len())?;
    // SAFETY: 1. the destination is a slice; 2. the source is in the user half.
    let failed = unsafe { copy(destination.as_mut_ptr() as u64, source, destination.len()) };
    if failed == 0 {
        Ok(())
    } else {
        Err(BadAddress { address: source })
    }
}

/// Copies `source` to user memory at `destination`.
///
/// # Errors
///
/// [`BadAddress`]; the destination may be partly written then.
#[inline]
pub fn copy_to_user(destination: u64, source: &[u8]) -> Result<(), BadAddress> {
    check(destination, source.len())?;
    // SAFETY: 1. the source is a slice; 2. the destination is in the user half.
    let failed = unsafe { copy(destination, source.as_ptr() as u64, source.len()) };
    if failed == 0 {
        Ok(())
    } else {
        Err(BadAddress { address: destination })
    }
}

/// Reads eight bytes from user memory.
///
/// # Errors
///
/// [`BadAddress`].
pub fn read_user_u64(address: u64) -> Result<u64, BadAddress> {
    let mut bytes = [0; 8];
    copy_from_user(&mut bytes, address)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes eight bytes to user memory.
///
/// # Errors
///
/// [`BadAddress`].
pub fn write_user_u64(address: u64, value: u64) -> Result<(), BadAddress> {
    copy_to_user(address, &value.to_le_bytes())
}

/// Copies between kernel and user memory; 0 when all was copied.
///
/// # Safety
///
/// 1. One of the two ranges is kernel memory that the caller may read or write.
/// 2. The other lies in the user half.
#[inline(always)]
unsafe fn copy(destination: u64, source: u64, length: usize) -> u64 {
    if HAS_SMAP.load(Ordering::Relaxed) {
        // SAFETY: the caller's conditions; CR4.SMAP is set.
        unsafe { copy_bytes::<1>(destination, source, length) }
    } else {
        // SAFETY: the caller's conditions.
        unsafe { copy_bytes::<0>(destination, source, length) }
    }
}

/// Copies eight bytes at a time, then the rest one by one. String instructions stop at a fault with RSI, RDI and RCX at
/// the byte or word that faulted, and go on there when the fault has been answered.
///
/// RDI, RSI, RDX in → RAX out: 0, or 1 after a fault without an answer. RCX, RDX, RSI, RDI are clobbered.
///
/// # Safety
///
/// 1. As for [`copy`].
/// 2. `SMAP` is 1 exactly when CR4.SMAP is set.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_bytes<const SMAP: usize>(destination: u64, source: u64, length: usize) -> u64 {
    naked_asm!(
        ".if {smap}",
        "stac",
        ".endif",
        "mov rcx, rdx",
        "shr rcx, 3",
        // Most copies of a system call are short.
        "jz 3f",
        "2:",
        "rep movsq",
        "3:",
        "mov ecx, edx",
        "and ecx, 7",
        "4:",
        "rep movsb",
        "xor eax, eax",
        ".if {smap}",
        "clac",
        ".endif",
        "ret",
        "5:",
        "mov eax, 1",
        ".if {smap}",
        "clac",
        ".endif",
        "ret",
        ".pushsection .user_fixups, \"a\", @progbits",
        ".quad 2b, 5b",
        ".quad 4b, 5b",
        ".popsection",
        smap = const SMAP,
    )
}

/// One record of the section: where an access is, and where to go on when it fails.
#[derive(Clone, Copy)]
#[repr(C)]
struct Fixup {
    access: u64,
    resume: u64,
}

unsafe extern "C" {
    static user_fixups_start: Fixup;
    static user_fixups_end: Fixup;
}

/// Where the kernel goes on when the user-memory access at `rip` can't be answered; `None` when `rip` is no such access.
#[must_use]
pub fn fixup(rip: u64) -> Option<u64> {
    let start = &raw const user_fixups_start;
    let bytes = (&raw const user_fixups_end).addr() - start.addr();
    // SAFETY: the linker script puts the records, and nothing else, between the two symbols.
    let records = unsafe { core::slice::from_raw_parts(start, bytes / size_of::<Fixup>()) };
    records
        .iter()
        .find(|record| record.access == rip)
        .map(|record| record.resume)
}
