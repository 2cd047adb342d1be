//! From the loader to the image's `kernel_main`.
//!
//! The entry code brings the CPU to 64-bit mode on the boot tables. Then, in this order: serial line, CPU features and
//! control registers, what the loader tells, free frames, the kernel's own tables, the interrupt controllers. Nothing
//! large is cleared and nothing scanned: a run that logs each instruction has to get through here.

pub mod cpu;
mod early;
mod entry;
mod multiboot2;
mod pvh;

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::device::exit::{Outcome, finish};
use crate::device::{apic, pic, screen, serial};
use crate::memory::frame::{self, MAX_RANGES, Range};
use crate::memory::layout::{KERNEL_BASE, LARGE_PAGE_SIZE, index};
use crate::memory::{kernel, user};
use crate::println;

/// Which loader started the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Xen's PVH, which QEMU's `-kernel` speaks.
    Pvh,
    /// Multiboot2, which GRUB speaks.
    Multiboot2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pvh => "PVH",
            Self::Multiboot2 => "multiboot2",
        })
    }
}

/// What the loader handed over.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Which loader.
    pub protocol: Protocol,
    /// The command line; empty when there is none.
    pub command_line: &'static str,
    /// The first module: the archive of user programs.
    pub archive: Option<&'static [u8]>,
    /// Bytes of usable RAM.
    pub memory_bytes: u64,
}

/// What the loader's data can be wrong about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootError {
    /// The information block does not begin with its magic number, or a field of it can't be right.
    Malformed {
        /// Which part.
        part: &'static str,
        /// The value found.
        value: u64,
    },
    /// The command line is longer than this kernel's room for it.
    CommandLineTooLong {
        /// Its room in bytes.
        room: usize,
    },
    /// The command line is not UTF-8.
    CommandLineNotUtf8,
    /// The CPU has no no-execute bit (CPUID `8000_0001`:EDX.NX).
    NoNx,
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Malformed { part, value } => write!(f, "boot information: {part} {value:#x} can't be right"),
            Self::CommandLineTooLong { room } => write!(f, "command line longer than {room} bytes"),
            Self::CommandLineNotUtf8 => f.write_str("command line is not UTF-8"),
            Self::NoNx => f.write_str("the CPU has no NX bit"),
        }
    }
}

impl core::error::Error for BootError {}

/// Bytes kept of the command line.
const COMMAND_LINE_ROOM: usize = 1024;
/// The boot tables map this much RAM.
const BOOT_MAP_BYTES: u64 = 1 << 30;

/// What a loader's information says, copied out of it before any frame is handed out.
struct Loaded {
    ranges: [Range; MAX_RANGES],
    range_count: usize,
    memory_bytes: u64,
    module: Option<Range>,
    has_text_screen: bool,
    command_line: [u8; COMMAND_LINE_ROOM],
    command_line_bytes: usize,
}

impl Loaded {
    const fn new() -> Self {
        Self {
            ranges: [Range { start: 0, end: 0 }; MAX_RANGES],
            range_count: 0,
            memory_bytes: 0,
            module: None,
            has_text_screen: false,
            command_line: [0; COMMAND_LINE_ROOM],
            command_line_bytes: 0,
        }
    }

    /// Notes a range of usable RAM. One more than there is room for is left unused.
    fn add_ram(&mut self, start: u64, length: u64) {
        let Some(end) = start.checked_add(length) else { return };
        if let Some(place) = self.ranges.get_mut(self.range_count) {
            *place = Range { start, end };
            self.range_count += 1;
            self.memory_bytes += length;
        }
    }

    /// Copies the command line, which ends in NUL at `text`.
    ///
    /// # Safety
    ///
    /// 1. `text` is readable up to a NUL, or for [`COMMAND_LINE_ROOM`] bytes.
    unsafe fn copy_command_line(&mut self, text: *const u8) -> Result<(), BootError> {
        for (at, place) in self.command_line.iter_mut().enumerate() {
            // SAFETY: condition 1; the loop ends at the NUL.
            let address = unsafe { text.add(at) };
            // SAFETY: as above.
            *place = unsafe { address.read() };
            if *place == 0 {
                self.command_line_bytes = at;
                return Ok(());
            }
        }
        Err(BootError::CommandLineTooLong {
            room: COMMAND_LINE_ROOM,
        })
    }
}

/// A value that boot writes once, before anything else reads it.
struct BootCell<T> {
    value: UnsafeCell<T>,
    is_set: AtomicBool,
}

// SAFETY: the value is written while `is_set` is false, by boot alone, and read only when it is true.
unsafe impl<T: Sync> Sync for BootCell<T> {}

impl<T> BootCell<T> {
    const fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(value),
            is_set: AtomicBool::new(false),
        }
    }

    /// Fills the cell in place, the first time.
    fn fill<R>(&self, fill: impl FnOnce(&mut T) -> R) -> R {
        assert!(!self.is_set.load(Ordering::Relaxed), "boot values are written once");
        // SAFETY: `is_set` is false, so no shared reference was handed out, and boot runs on one CPU.
        let result = fill(unsafe { &mut *self.value.get() });
        self.is_set.store(true, Ordering::Release);
        result
    }
}

impl<T> Deref for BootCell<T> {
    type Target = T;

    fn deref(&self) -> &T {
        assert!(self.is_set.load(Ordering::Acquire), "boot values are read after boot");
        // SAFETY: `is_set` is true, so nobody writes any more.
        unsafe { &*self.value.get() }
    }
}

static LOADED: BootCell<Loaded> = BootCell::new(Loaded::new());
static INFO: BootCell<Info> = BootCell::new(Info {
    protocol: Protocol::Pvh,
    command_line: "",
    archive: None,
    memory_bytes: 0,
});

/// What the loader handed over.
#[must_use]
pub fn info() -> &'static Info {
    &INFO
}

/// The value of CR3 for the tables of boot: the first GiB at 0, at the direct map and at the kernel's base, with all rights
/// and not for user mode. They are part of the image.
pub(crate) fn tables() -> u64 {
    entry::tables()
}

unsafe extern "Rust" {
    /// The image's main function: that of the kernel, or of a test image.
    ///
    /// # Safety
    ///
    /// 1. Called once, at the end of boot.
    #[link_name = "kernel_main"]
    unsafe fn kernel_main() -> !;
}

/// The first Rust code, on the boot stack and the boot tables.
extern "sysv64" fn start(information: u64, is_pvh: u64) -> ! {
    // SAFETY: RDTSC reads a counter.
    let tick = unsafe { core::arch::x86_64::_rdtsc() };
    serial::init();
    let protocol = if is_pvh == 1 {
        Protocol::Pvh
    } else {
        Protocol::Multiboot2
    };
    println!("[boot] kernel entered at tick {tick}");
    match init(protocol, information) {
        // SAFETY: this is the end of boot, and `start` is reached once.
        Ok(()) => unsafe { kernel_main() },
        Err(error) => finish(Outcome::BadBoot(format_args!("{error}"))),
    }
}

fn init(protocol: Protocol, information: u64) -> Result<(), BootError> {
    early::install();
    let features = cpu::init()?;
    user::init(features.smap);
    if information >= BOOT_MAP_BYTES {
        return Err(BootError::Malformed {
            part: "address",
            value: information,
        });
    }
    LOADED.fill(|loaded| match protocol {
        // SAFETY: the loader left the address of its information, which the boot tables map.
        Protocol::Pvh => unsafe { pvh::read(information, loaded) },
        // SAFETY: as above.
        Protocol::Multiboot2 => unsafe { multiboot2::read(information, loaded) },
    })?;
    let loaded: &'static Loaded = &LOADED;
    if loaded.has_text_screen {
        // SAFETY: 1. the loader says so. 2. The boot tables show the first GiB there, and the kernel's all of RAM.
        unsafe { screen::init() };
    }

    let apic = apic::physical_base();
    let ram_end = add_free_ram(loaded);
    if let Some(module) = loaded.module.filter(|module| module.end > ram_end) {
        return Err(BootError::Malformed {
            part: "end of the module",
            value: module.end,
        });
    }
    // SAFETY: 1. interrupts are off, nobody else runs. 2. The entry code loaded the boot tables, and the ranges are used
    // from the lowest on. 3. The address comes from the APIC's own register.
    let tables = unsafe { kernel::init(ram_end, apic.unwrap_or(0)) };
    if tables.is_err() {
        return Err(BootError::Malformed {
            part: "size of RAM",
            value: loaded.memory_bytes,
        });
    }
    cpu::reload_gdt();
    pic::disable();
    match apic {
        Ok(_) => apic::init(),
        Err(error) => finish(Outcome::BadBoot(format_args!("{error}"))),
    }

    let command_line = core::str::from_utf8(&loaded.command_line[..loaded.command_line_bytes])
        .map_err(|_| BootError::CommandLineNotUtf8)?;
    let archive = loaded.module.map(|module| {
        // SAFETY: the loader put the module there, the direct map shows it, and `add_free_ram` kept it out of the free
        // frames, so nobody writes it.
        unsafe { core::slice::from_raw_parts(kernel::direct(module.start), index(module.end - module.start)) }
    });
    let memory_bytes = loaded.memory_bytes;
    INFO.fill(|info| {
        *info = Info {
            protocol,
            command_line,
            archive,
            memory_bytes,
        }
    });
    println!("[boot] {protocol}, {} MiB of RAM, CPU {features}", memory_bytes >> 20);
    println!(
        "[boot] command line \"{command_line}\", archive of {} bytes",
        archive.map_or(0, <[u8]>::len)
    );
    Ok(())
}

/// Gives all RAM above 1 MiB, without the image and the module, to the frame allocator. Returns the end of RAM, up to
/// which the direct map goes.
fn add_free_ram(loaded: &Loaded) -> u64 {
    let image = kernel::image_range();
    let mut taken = [
        image,
        loaded.module.unwrap_or(Range {
            start: image.end,
            end: image.end,
        }),
    ];
    taken.sort_unstable_by_key(|range| range.start);
    let mut ram_end = 0;
    // The allocator uses the range that was added last first. The tables of the direct map have to come from the lowest.
    for &ram in loaded.ranges[..loaded.range_count].iter().rev() {
        ram_end = ram_end.max(ram.end.next_multiple_of(LARGE_PAGE_SIZE));
        let mut end = ram.end;
        for hole in taken.iter().rev() {
            let above = Range {
                start: hole.end.max(ram.start),
                end,
            };
            // SAFETY: the loader calls it RAM, and the holes are cut out; memory maps do not overlap.
            let _ = unsafe { frame::add_range(above) };
            end = end.min(hole.start);
        }
        // Below the image lies what firmware and loader keep in the first MiB.
        let below = Range {
            start: ram.start.max(image.start),
            end,
        };
        // SAFETY: as above.
        let _ = unsafe { frame::add_range(below) };
    }
    ram_end
}

/// The virtual address of `physical` in the first GiB, through the tables of the image.
const fn boot_pointer<T>(physical: u64) -> *const T {
    debug_assert!(physical < BOOT_MAP_BYTES);
    core::ptr::with_exposed_provenance(index(KERNEL_BASE + physical))
}
