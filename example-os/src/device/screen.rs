//! The text screen of a PC with VGA: 25 rows of 80 columns.
//!
//! Output only and without a lock, like the serial line. What was printed is kept, since it may be more than the screen
//! shows and a machine without a serial line has nothing else to show it: `show_all` leafs through it at the end.
//!
//! # Source
//!
//! IBM *VGA Technical Reference*, *Alphanumeric Modes*, *CRT Controller Registers*; Motorola *MC146818* data sheet, *Address
//! Map*; *Multiboot2 Specification*, *Framebuffer info*.

use core::num::NonZero;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use volatile::VolatilePtr;
use x86_64::instructions::port::Port;

use crate::memory::layout::{DIRECT_MAP, index};

/// Characters of a line.
pub const COLUMNS: usize = 80;
/// Lines on the screen.
pub const ROWS: usize = 25;
/// Physical address of the first cell.
pub const ADDRESS: u64 = 0xb_8000;

/// Where the direct map shows the first cell.
const FIRST_CELL: NonZero<usize> = NonZero::new(index(DIRECT_MAP + ADDRESS)).unwrap();
/// Light grey on black, the upper byte of a cell.
const COLOUR: u16 = 0x0700;
/// Lines that are kept.
const KEPT: usize = 512;
/// Lines that the first of two pages has in common with the second.
const OVERLAP: usize = 1;
/// The real-time clock: number of the register, and its value.
const CLOCK_INDEX: u16 = 0x70;
const CLOCK_VALUE: u16 = 0x71;
const CLOCK_SECONDS: u8 = 0;
/// Seconds for which a page is shown.
const PAGE_SECONDS: u32 = 8;
/// Reads of the clock after which one that stands still is given up: about as many seconds again, at a microsecond each.
const MOST_READS: u32 = 8_000_000;
/// The display controller: number of the register, and its value.
const DISPLAY_INDEX: u16 = 0x3d4;
const DISPLAY_VALUE: u16 = 0x3d5;
const CURSOR_START: u8 = 0x0a;
const CURSOR_OFF: u8 = 1 << 5;

static IS_THERE: AtomicBool = AtomicBool::new(false);
/// Number of the line that is being written, from the first one on.
static LINE: AtomicUsize = AtomicUsize::new(0);
/// Where its next character goes.
static COLUMN: AtomicUsize = AtomicUsize::new(0);
/// The characters of the last [`KEPT`] lines; 0 is blank.
static TEXT: [[AtomicU8; COLUMNS]; KEPT] = [const { [const { AtomicU8::new(0) }; COLUMNS] }; KEPT];

/// Clears the screen. From here on [`write`] writes to it.
///
/// # Safety
///
/// 1. At [`ADDRESS`] is the memory of a text screen with [`ROWS`] rows of [`COLUMNS`] cells.
/// 2. The direct map shows it, from now on.
pub(crate) unsafe fn init() {
    IS_THERE.store(true, Ordering::Relaxed);
    show(0);
    for (port, value) in [(DISPLAY_INDEX, CURSOR_START), (DISPLAY_VALUE, CURSOR_OFF)] {
        // SAFETY: the ports belong to the display controller of that screen (condition 1); a cursor is only seen.
        unsafe { Port::new(port).write(value) };
    }
}

/// Writes text. What is not ASCII shows as a question mark for each of its characters.
pub fn write(bytes: &[u8]) {
    if !IS_THERE.load(Ordering::Relaxed) {
        return;
    }
    for &byte in bytes {
        match byte {
            b'\n' => new_line(),
            b' '..=b'~' => put(byte),
            // The first byte of a character in UTF-8.
            0xc0.. => put(b'?'),
            _ => {}
        }
    }
}

fn put(character: u8) {
    if COLUMN.load(Ordering::Relaxed) >= COLUMNS {
        new_line();
    }
    let (line, column) = (LINE.load(Ordering::Relaxed), COLUMN.load(Ordering::Relaxed));
    TEXT[line % KEPT][column].store(character, Ordering::Relaxed);
    COLUMN.store(column + 1, Ordering::Relaxed);
    set_cell(line.min(ROWS - 1), column, character);
}

/// Starts a line; on a full screen the others move up.
fn new_line() {
    let line = LINE.load(Ordering::Relaxed) + 1;
    for place in &TEXT[line % KEPT] {
        place.store(0, Ordering::Relaxed);
    }
    COLUMN.store(0, Ordering::Relaxed);
    LINE.store(line, Ordering::Relaxed);
    if line >= ROWS {
        show(line + 1 - ROWS);
    }
}

/// Fills the screen with the lines from number `first` on.
fn show(first: usize) {
    for row in 0..ROWS {
        for (column, character) in TEXT[(first + row) % KEPT].iter().enumerate() {
            set_cell(row, column, character.load(Ordering::Relaxed));
        }
    }
}

fn set_cell(row: usize, column: usize, character: u8) {
    let offset = (row * COLUMNS + column) * size_of::<u16>();
    cell(offset).write(COLOUR | u16::from(character));
}

/// The cell at `offset` bytes from the first.
fn cell(offset: usize) -> VolatilePtr<'static, u16> {
    let first: NonNull<u16> = NonNull::with_exposed_provenance(FIRST_CELL);
    // SAFETY: `offset` lies in the screen's memory, which does not wrap around.
    let cell = unsafe { first.byte_add(offset) };
    // SAFETY: `init` had it promised that the memory is there and shown.
    unsafe { VolatilePtr::new(cell) }
}

/// The characters that row `row` of the screen shows.
#[must_use]
pub fn row(row: usize) -> Option<[u8; COLUMNS]> {
    if !IS_THERE.load(Ordering::Relaxed) || row >= ROWS {
        return None;
    }
    Some(core::array::from_fn(|column| {
        let [character, _] = cell((row * COLUMNS + column) * size_of::<u16>()).read().to_le_bytes();
        character
    }))
}

/// Leafs through everything that is kept, page after page and for ever. Returns only where there is no screen, or where
/// one page shows it all.
pub(crate) fn show_all() {
    let lines = LINE.load(Ordering::Relaxed) + usize::from(COLUMN.load(Ordering::Relaxed) > 0);
    if !IS_THERE.load(Ordering::Relaxed) || lines <= ROWS {
        return;
    }
    loop {
        let mut first = lines.saturating_sub(KEPT);
        while first + ROWS < lines {
            show(first);
            wait();
            first += ROWS - OVERLAP;
        }
        show(lines - ROWS);
        wait();
    }
}

/// Waits while a page is shown.
fn wait() {
    let mut changes = 0;
    let mut last = second();
    for _ in 0..MOST_READS {
        let now = second();
        changes += u32::from(now != last);
        last = now;
        if changes >= PAGE_SECONDS {
            return;
        }
    }
}

/// The second of the minute, in whatever form the clock has it.
fn second() -> u8 {
    // SAFETY: nobody else uses the clock; the number chooses a register, with NMIs as they are after reset.
    unsafe { Port::new(CLOCK_INDEX).write(CLOCK_SECONDS) };
    // SAFETY: reading the seconds changes nothing.
    unsafe { Port::new(CLOCK_VALUE).read() }
}
