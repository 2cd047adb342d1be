//! What a PVH loader tells: `hvm_start_info`.
//!
//! # Source
//!
//! Xen public header *arch-x86/hvm/start_info.h*.

use super::{BootError, Loaded, boot_pointer};
use crate::memory::frame::Range;

const MAGIC: u32 = 0x336e_c578;
/// A range of usable RAM, as in an E820 map.
const RAM: u32 = 1;

/// Version 1 of the block.
#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_count: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    start: u64,
    bytes: u64,
    command_line: u64,
    reserved: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryRange {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// Copies what the block at `address` says.
///
/// # Safety
///
/// 1. A PVH loader left the address, and nothing that it points to was overwritten.
/// 2. The boot tables are in CR3.
pub(super) unsafe fn read(address: u64, loaded: &mut Loaded) -> Result<(), BootError> {
    // SAFETY: condition 1; every bit pattern is a value of the type.
    let info = unsafe { boot_pointer::<StartInfo>(address).read_unaligned() };
    if info.magic != MAGIC {
        return Err(BootError::Malformed {
            part: "magic",
            value: u64::from(info.magic),
        });
    }
    if info.version == 0 {
        return Err(BootError::Malformed {
            part: "version without a memory map,",
            value: 0,
        });
    }
    for number in 0..u64::from(info.memory_map_count) {
        let at = checked("memory map", info.memory_map + number * size_of::<MemoryRange>() as u64)?;
        // SAFETY: condition 1: the map has that many records.
        let range = unsafe { boot_pointer::<MemoryRange>(at).read_unaligned() };
        if range.kind == RAM {
            loaded.add_ram(range.start, range.bytes);
        }
    }
    if info.module_count > 0 {
        let at = checked("module list", info.modules)?;
        // SAFETY: condition 1: the list has at least one record.
        let module = unsafe { boot_pointer::<Module>(at).read_unaligned() };
        let end = module.start.checked_add(module.bytes).ok_or(BootError::Malformed {
            part: "module size",
            value: module.bytes,
        })?;
        loaded.module = Some(Range {
            start: module.start,
            end,
        });
    }
    if info.command_line != 0 {
        let at = checked("command line", info.command_line)?;
        // SAFETY: condition 1: the text ends in NUL, and the GiB that the boot tables map goes on behind it.
        unsafe { loaded.copy_command_line(boot_pointer(at))? };
    }
    Ok(())
}

/// An address that the boot tables map, with room for a record behind it.
const fn checked(part: &'static str, address: u64) -> Result<u64, BootError> {
    if address < super::BOOT_MAP_BYTES - 4096 {
        Ok(address)
    } else {
        Err(BootError::Malformed { part, value: address })
    }
}
