//! What a multiboot2 loader tells: a list of tags.
//!
//! # Source
//!
//! *Multiboot2 Specification*, *Boot information format*.

use super::{BootError, Loaded, boot_pointer};
use crate::device::screen;
use crate::memory::frame::Range;

const TAG_END: u32 = 0;
const TAG_COMMAND_LINE: u32 = 1;
const TAG_MODULE: u32 = 3;
const TAG_MEMORY_MAP: u32 = 6;
const TAG_FRAMEBUFFER: u32 = 8;
const RAM: u32 = 1;

/// Bytes of a tag's type and size.
const TAG_HEADER: u64 = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryRange {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// What a framebuffer tag holds behind its header.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Framebuffer {
    address: u64,
    pitch: u32,
    width: u32,
    height: u32,
    bits_per_pixel: u8,
    kind: u8,
}

impl Framebuffer {
    /// Whether it is the text screen of a PC with VGA; with UEFI there is none.
    const fn is_text_screen(self) -> bool {
        const TEXT: u8 = 2;
        self.kind == TEXT
            && self.address == screen::ADDRESS
            && self.width as usize == screen::COLUMNS
            && self.height as usize == screen::ROWS
    }
}

/// Copies what the tags at `address` say.
///
/// # Safety
///
/// 1. A multiboot2 loader left the address, and nothing that it points to was overwritten.
/// 2. The boot tables are in CR3.
pub(super) unsafe fn read(address: u64, loaded: &mut Loaded) -> Result<(), BootError> {
    // SAFETY: condition 1: the first word is the size of the whole.
    let total = u64::from(unsafe { word(address) });
    let end = address + total;
    if end > super::BOOT_MAP_BYTES {
        return Err(BootError::Malformed {
            part: "size",
            value: total,
        });
    }
    let mut tag = address + 8;
    while tag + TAG_HEADER <= end {
        // SAFETY: the tag's header lies before the end of the information.
        let kind = unsafe { word(tag) };
        // SAFETY: as above.
        let bytes = u64::from(unsafe { word(tag + 4) });
        if bytes < TAG_HEADER || tag + bytes > end {
            return Err(BootError::Malformed {
                part: "tag size",
                value: bytes,
            });
        }
        match kind {
            TAG_END => return Ok(()),
            // SAFETY: the text ends in NUL within the tag.
            TAG_COMMAND_LINE => unsafe { loaded.copy_command_line(boot_pointer(tag + TAG_HEADER))? },
            TAG_MODULE if loaded.module.is_none() => {
                // SAFETY: a module tag holds two addresses behind its header.
                let start = u64::from(unsafe { word(tag + TAG_HEADER) });
                // SAFETY: as above.
                let end = u64::from(unsafe { word(tag + TAG_HEADER + 4) });
                if end < start {
                    return Err(BootError::Malformed {
                        part: "module end",
                        value: end,
                    });
                }
                loaded.module = Some(Range { start, end });
            }
            TAG_MEMORY_MAP => {
                // SAFETY: a memory-map tag holds the size of a record behind its header.
                let step = u64::from(unsafe { word(tag + TAG_HEADER) });
                if step < size_of::<MemoryRange>() as u64 {
                    return Err(BootError::Malformed {
                        part: "memory-map record size",
                        value: step,
                    });
                }
                let mut record = tag + TAG_HEADER + 8;
                while record + step <= tag + bytes {
                    // SAFETY: the record lies within the tag; every bit pattern is a value of the type.
                    let range = unsafe { boot_pointer::<MemoryRange>(record).read_unaligned() };
                    if range.kind == RAM {
                        loaded.add_ram(range.start, range.bytes);
                    }
                    record += step;
                }
            }
            TAG_FRAMEBUFFER if bytes >= TAG_HEADER + size_of::<Framebuffer>() as u64 => {
                // SAFETY: the record lies within the tag; every bit pattern is a value of the type.
                let found = unsafe { boot_pointer::<Framebuffer>(tag + TAG_HEADER).read_unaligned() };
                loaded.has_text_screen = found.is_text_screen();
            }
            _ => {}
        }
        tag = (tag + bytes).next_multiple_of(8);
    }
    Err(BootError::Malformed {
        part: "tag list without an end, size",
        value: total,
    })
}

/// The 32-bit word at physical address `address`.
///
/// # Safety
///
/// 1. It lies in the loader's information, which the boot tables map.
const unsafe fn word(address: u64) -> u32 {
    // SAFETY: condition 1.
    unsafe { boot_pointer::<u32>(address).read_unaligned() }
}
