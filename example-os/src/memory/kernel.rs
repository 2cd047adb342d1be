//! The kernel's own page tables.
//!
//! The image is mapped page by page with the rights of its parts: text may be executed, read-only data read, the rest
//! written, and nothing both written and executed. All of RAM is mapped a second time at [`DIRECT_MAP`], in large pages
//! and without execute; where that would show text and read-only data, in small ones without write. Tables for the
//! image, the stacks and the device page are part of the image, so that the root entries of the kernel half never
//! change and every address space can copy them.

use core::cell::UnsafeCell;

use x86_64::registers::control::{Cr4, Cr4Flags};

use super::frame::{self, Frame, OutOfMemory, Range};
use super::layout::{
    APIC_WINDOW, DIRECT_MAP, KERNEL_BASE, KERNEL_STACKS, LARGE_PAGE_SIZE, PAGE_SIZE, index, page_floor,
};
use super::table::{ENTRIES, Entry, Flags, Slot, Table, table_index};

/// Page tables for the image: 2 MiB each.
const IMAGE_TABLES: usize = 4;

/// The root is at an even page: an NMI that finds it loaded tells by bit 12 of CR3 that it is no table for user mode
/// ([`SplitTables`](entry_core::percpu::SplitTables)).
#[repr(C, align(8192))]
struct Tables {
    root: Table,
    direct: Table,
    top: Table,
    image_directory: Table,
    image: [Table; IMAGE_TABLES],
    upper_directory: Table,
    stacks: Table,
    devices: Table,
    /// Above what is shown to processes that the kernel hides from.
    hidden_top: Table,
    hidden_directory: Table,
    hidden_image: [Table; IMAGE_TABLES],
    /// Not a table: the frame that all untouched pages show.
    zeros: Table,
}

struct Shared(UnsafeCell<Tables>);

// SAFETY: the tables are written through `Slot`s alone, whose makers answer for being the only writer.
unsafe impl Sync for Shared {}

static TABLES: Shared = Shared(UnsafeCell::new(Tables {
    root: Table::EMPTY,
    direct: Table::EMPTY,
    top: Table::EMPTY,
    image_directory: Table::EMPTY,
    image: [Table::EMPTY; IMAGE_TABLES],
    upper_directory: Table::EMPTY,
    stacks: Table::EMPTY,
    devices: Table::EMPTY,
    hidden_top: Table::EMPTY,
    hidden_directory: Table::EMPTY,
    hidden_image: [Table::EMPTY; IMAGE_TABLES],
    zeros: Table::EMPTY,
}));

unsafe extern "C" {
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static data_start: u8;
    static data_end: u8;
    static entry_text_start: u8;
    static entry_pages_end: u8;
    static entry_data_end: u8;
}

/// The frame of a table of the image.
macro_rules! table_frame {
    ($($field:tt)+) => {
        Frame::containing(core::mem::offset_of!(Tables, $($field)+) as u64 + tables_start())
    };
}

#[inline(always)]
fn tables_start() -> u64 {
    TABLES.0.get().expose_provenance() as u64 - KERNEL_BASE
}

/// The frame of zeros that every page shows before its first write.
#[inline(always)]
pub(super) fn zero_frame() -> Frame {
    table_frame!(zeros)
}

/// Entry `index` of the kernel's root table.
pub(super) fn root_entry(index: usize) -> Entry {
    // SAFETY: the frame is the kernel's root table; after boot it is only read.
    unsafe { Slot::new(table_frame!(root), index) }.read()
}

/// Entry `index`, in the kernel half, of the root table on which user mode of a process runs that the kernel hides from.
pub(super) fn hidden_root_entry(index: usize) -> Entry {
    if index == table_index(KERNEL_BASE, 4) {
        Entry::new(table_frame!(hidden_top).start(), Flags::PRESENT | Flags::WRITABLE)
    } else {
        Entry::EMPTY
    }
}

/// What is mapped for such a process besides its own memory: the stubs, and the data that the CPU and the stubs read.
#[must_use]
pub fn shown_ranges() -> [core::ops::Range<u64>; 2] {
    let range = |start: *const u8, end: *const u8| start.addr() as u64..end.addr() as u64;
    [
        range(&raw const entry_text_start, &raw const entry_pages_end),
        range(&raw const data_start, &raw const entry_data_end),
    ]
}

/// Makes kernel pages leave the translation buffers with every load of CR3, from now on: for processes that the kernel hides
/// from, which could use what is left there otherwise.
pub fn stop_global_pages() {
    // SAFETY: without the bit, translations are dropped more often and walked again.
    unsafe { Cr4::update(|cr4| cr4.remove(Cr4Flags::PAGE_GLOBAL)) };
}

/// The value of CR3 that selects the kernel's own tables, with nothing in the user half.
#[must_use]
pub fn kernel_cr3() -> u64 {
    table_frame!(root).start()
}

/// Loads the kernel's own tables, so that the address space in CR3 can be dropped.
pub fn activate_kernel() {
    // SAFETY: the kernel half is the same in all spaces, and the kernel's own tables live for ever.
    unsafe { write_cr3(kernel_cr3()) };
}

/// Loads CR3.
///
/// # Safety
///
/// 1. `cr3` selects a root table whose kernel half is that of [`root_entry`], and which lives until CR3 is loaded again.
#[inline(always)]
pub(super) unsafe fn write_cr3(cr3: u64) {
    // SAFETY: the kernel half stays (condition 1). No `nomem`: what user addresses show changes.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) cr3, options(nostack, preserves_flags)) };
}

/// Makes this CPU forget the user half of the tables at `root`, if CR3 holds them. Kernel pages are global and stay.
pub(super) fn drop_user_translations(root: u64) {
    let current = cr3();
    // Below the address there may be an identifier. Its translations are dropped; those of the program's, by the stubs' kernel.
    if current & !(PAGE_SIZE - 1) == root {
        // SAFETY: it is the root that is loaded already.
        unsafe { write_cr3(current) };
    }
}

/// CR3 as it is: the address of the root table, and an identifier below.
#[inline(always)]
pub(crate) fn cr3() -> u64 {
    let current: u64;
    // SAFETY: reading CR3 has no effect.
    unsafe { core::arch::asm!("mov {}, cr3", out(reg) current, options(nomem, nostack, preserves_flags)) };
    current
}

/// Makes this CPU forget all translations under all process-context identifiers, but for global ones. It has INVPCID.
pub(crate) fn drop_all_translations() {
    /// The type of INVPCID.
    const ALL_CONTEXTS_BUT_GLOBAL: u64 = 3;
    let descriptor = [0_u64; 2];
    // SAFETY: what is forgotten is walked again; the callers ask CPUID first.
    unsafe {
        core::arch::asm!(
            "invpcid {kind}, [{descriptor}]",
            kind = in(reg) ALL_CONTEXTS_BUT_GLOBAL,
            descriptor = in(reg) descriptor.as_ptr(),
            options(nostack, preserves_flags),
        );
    }
}

/// The rights of a kernel page: text executes, read-only data reads, everything else is written.
fn image_flags(address: u64) -> Flags {
    let is_in = |start: *const u8, end: *const u8| (start.addr() as u64..end.addr() as u64).contains(&address);
    let base = Flags::PRESENT | Flags::GLOBAL;
    if is_in(&raw const text_start, &raw const text_end) {
        base
    } else if is_in(&raw const rodata_start, &raw const rodata_end) {
        base | Flags::NO_EXECUTE
    } else {
        base | Flags::NO_EXECUTE | Flags::WRITABLE
    }
}

/// Fills a slot of the kernel half.
///
/// # Safety
///
/// 1. `table` is a table of the kernel's, and this is boot, or `kernel_stack` changing an entry that it owns.
/// 2. As for [`Slot::write`].
pub(super) unsafe fn set(table: Frame, index: usize, entry: Entry) {
    // SAFETY: condition 1.
    let slot = unsafe { Slot::new(table, index) };
    // SAFETY: condition 2.
    unsafe { slot.write(entry) };
}

/// The table of the kernel stacks.
pub(super) fn stacks_table() -> Frame {
    table_frame!(stacks)
}

/// Builds the kernel's tables for RAM up to `ram_end` and loads them: from here on the boot tables, and with them the
/// identity map, are gone.
///
/// # Errors
///
/// [`OutOfMemory`] when there is no frame for the tables of the direct map.
///
/// # Safety
///
/// 1. This is boot: interrupts are off and nobody else runs.
/// 2. CR3 holds the boot tables; the frames that the allocator gives now are within their first GiB.
/// 3. `apic` is the physical address of the local APIC's page.
pub(crate) unsafe fn init(ram_end: u64, apic: u64) -> Result<(), OutOfMemory> {
    let table = Flags::PRESENT | Flags::WRITABLE;
    let link = |frame: Frame| Entry::new(frame.start(), table);
    let data = table | Flags::GLOBAL | Flags::NO_EXECUTE;

    let fixed = |place: Frame, at: usize, entry: Entry| {
        // SAFETY: the table is one of the image's, not in use yet; what it maps is said beside each call.
        unsafe { set(place, at, entry) };
    };
    fixed(
        table_frame!(root),
        table_index(DIRECT_MAP, 4),
        link(table_frame!(direct)),
    );
    fixed(table_frame!(root), table_index(KERNEL_BASE, 4), link(table_frame!(top)));
    fixed(
        table_frame!(top),
        table_index(KERNEL_BASE, 3),
        link(table_frame!(image_directory)),
    );
    fixed(
        table_frame!(top),
        table_index(KERNEL_STACKS, 3),
        link(table_frame!(upper_directory)),
    );
    fixed(
        table_frame!(upper_directory),
        table_index(KERNEL_STACKS, 2),
        link(table_frame!(stacks)),
    );
    let window = APIC_WINDOW.get() as u64;
    fixed(
        table_frame!(upper_directory),
        table_index(window, 2),
        link(table_frame!(devices)),
    );
    let uncached = data | Flags::WRITE_THROUGH | Flags::CACHE_DISABLE;
    fixed(
        table_frame!(devices),
        table_index(window, 1),
        Entry::new(apic, uncached),
    );

    let image_table = |address: u64| {
        let number = table_index(address, 2) as u64;
        Frame::containing(table_frame!(image).start() + number * PAGE_SIZE)
    };
    for number in 0..IMAGE_TABLES as u64 {
        let address = KERNEL_BASE + number * LARGE_PAGE_SIZE;
        fixed(
            table_frame!(image_directory),
            table_index(address, 2),
            link(image_table(address)),
        );
    }
    let mut page = (&raw const text_start).addr() as u64;
    let end = (&raw const data_end).addr() as u64;
    while page < end {
        fixed(
            image_table(page),
            table_index(page, 1),
            Entry::new(page - KERNEL_BASE, image_flags(page)),
        );
        page += PAGE_SIZE;
    }

    fixed(
        table_frame!(hidden_top),
        table_index(KERNEL_BASE, 3),
        link(table_frame!(hidden_directory)),
    );
    for number in 0..IMAGE_TABLES {
        let frame = Frame::containing(table_frame!(hidden_image).start() + number as u64 * PAGE_SIZE);
        let address = KERNEL_BASE + number as u64 * LARGE_PAGE_SIZE;
        fixed(table_frame!(hidden_directory), table_index(address, 2), link(frame));
    }
    for mut range in shown_ranges() {
        while range.start < range.end {
            let page = range.start;
            let number = table_index(page, 2) as u64;
            let table = Frame::containing(table_frame!(hidden_image).start() + number * PAGE_SIZE);
            let flags = image_flags(page) - Flags::GLOBAL;
            fixed(table, table_index(page, 1), Entry::new(page - KERNEL_BASE, flags));
            range.start += PAGE_SIZE;
        }
    }

    let read_only = Range {
        start: (&raw const text_start).addr() as u64 - KERNEL_BASE,
        end: (&raw const rodata_end).addr() as u64 - KERNEL_BASE,
    };
    let mut directory = None;
    let mut large = 0;
    while large < ram_end {
        let address = DIRECT_MAP + large;
        if table_index(address, 2) == 0 || directory.is_none() {
            let frame = frame::allocate_zeroed().ok_or(OutOfMemory)?;
            fixed(table_frame!(direct), table_index(address, 3), link(frame));
            directory = Some(frame);
        }
        let Some(directory) = directory else {
            return Err(OutOfMemory);
        };
        let entry = if large < read_only.end && read_only.start < large + LARGE_PAGE_SIZE {
            link(direct_table(large, read_only)?)
        } else {
            Entry::new(large, data | Flags::LARGE)
        };
        fixed(directory, table_index(address, 2), entry);
        large += LARGE_PAGE_SIZE;
    }
    // SAFETY: the new tables map the image, the stack in it and the direct map where the boot tables do.
    unsafe { write_cr3(kernel_cr3()) };
    Ok(())
}

/// A table of small pages for the 2 MiB at physical address `start`, without write where `read_only` is.
fn direct_table(start: u64, read_only: Range) -> Result<Frame, OutOfMemory> {
    let table = frame::allocate().ok_or(OutOfMemory)?;
    for at in 0..ENTRIES {
        let address = start + at as u64 * PAGE_SIZE;
        let mut flags = Flags::PRESENT | Flags::GLOBAL | Flags::NO_EXECUTE;
        flags.set(Flags::WRITABLE, !(read_only.start..read_only.end).contains(&address));
        // SAFETY: the frame is new and becomes a table here.
        unsafe { set(table, at, Entry::new(address, flags)) };
    }
    Ok(table)
}

/// The size of the image in RAM, boot part included, as a range of physical addresses.
pub(crate) fn image_range() -> Range {
    Range {
        start: 0x10_0000,
        end: page_floor((&raw const data_end).addr() as u64 - KERNEL_BASE),
    }
}

/// A byte of RAM that the direct map shows.
#[must_use]
pub(crate) const fn direct(physical: u64) -> *const u8 {
    core::ptr::with_exposed_provenance(index(DIRECT_MAP + physical))
}
