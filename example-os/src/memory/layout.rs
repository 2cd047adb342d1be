//! The map of the 48-bit address space.
//!
//! | from | to | what |
//! |---|---|---|
//! | 0 | 0xffff | never mapped, so that a null pointer with an offset faults |
//! | 0x1_0000 | [`USER_LIMIT`] | the process |
//! | [`USER_LIMIT`] | 0x7fff_ffff_ffff | one page, never mapped: the instruction after a SYSCALL has a canonical address |
//! | [`DIRECT_MAP`] | + size of RAM | all of RAM |
//! | [`KERNEL_BASE`] + 1 MiB | + 8 MiB | the kernel image |
//! | [`KERNEL_STACKS`] | + 2 MiB | kernel stacks |
//! | [`APIC_WINDOW`] | + 4 KiB | local APIC |

use core::num::NonZero;

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes of a page that a page-directory entry maps by itself.
pub const LARGE_PAGE_SIZE: u64 = 2 << 20;
/// The lowest address that a process can map.
pub const USER_START: u64 = 0x1_0000;
/// The first address above what a process can map.
pub const USER_LIMIT: u64 = 0x7fff_ffff_f000;
/// Bytes reserved for the first stack of a process, which ends at [`USER_LIMIT`].
pub const STACK_BYTES: u64 = 8 << 20;
/// Where `mmap` starts its search downwards: 128 MiB below [`USER_LIMIT`], as in Linux.
pub const MMAP_TOP: u64 = USER_LIMIT - (128 << 20);
/// Where a process has its landing page, if it asks for one: below its stack and above what `mmap` chooses.
pub const LANDING_PAGE: u64 = USER_LIMIT - (64 << 20);
/// The first address above what a 32-bit program can map: two pages below 4 GiB, as in Linux, so that nothing that such a
/// program computes with 32 bits runs over the end.
pub const USER_LIMIT_32: u64 = 0xffff_e000;
/// As [`MMAP_TOP`], for a 32-bit program, whose stack ends at [`USER_LIMIT_32`].
pub const MMAP_TOP_32: u64 = USER_LIMIT_32 - (128 << 20);
/// Where a process with 32-bit code has the page by which that code enters the kernel.
pub const CALL_PAGE_32: u64 = USER_LIMIT_32 - (64 << 20);
/// Where physical address 0 is mapped.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// What the addresses of the kernel image have on top of its physical ones.
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The first kernel stack's slot.
pub const KERNEL_STACKS: u64 = 0xffff_ffff_c000_0000;
/// The local APIC's page.
pub const APIC_WINDOW: NonZero<usize> = NonZero::new(0xffff_ffff_c020_0000).unwrap();

/// The page boundary at or below `address`.
#[must_use]
pub const fn page_floor(address: u64) -> u64 {
    address & !(PAGE_SIZE - 1)
}

/// The page boundary at or above `address`; `None` behind the end of the address space.
#[must_use]
pub const fn page_ceiling(address: u64) -> Option<u64> {
    match address.checked_add(PAGE_SIZE - 1) {
        Some(end) => Some(page_floor(end)),
        None => None,
    }
}

/// A 64-bit size or index as the type that Rust indexes with.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits on x86-64")]
#[inline(always)]
pub const fn index(value: u64) -> usize {
    value as usize
}
