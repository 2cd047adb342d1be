//! User programs, linked to fixed addresses: ELF64 files for x86-64, and ELF32 files for i386.
//!
//! [`load`] checks the whole file before it maps anything, and maps each segment with its own protection. Pages that
//! the file does not reach (`.bss`) are left to the page fault. [`build_stack`] puts on the first stack what the System V
//! ABI says a program finds there. What a file is decides where its program lies: a 32-bit one ends below 4 GiB, stack and
//! all.
//!
//! # Source
//!
//! *System V Application Binary Interface*, *Program Loading*; *AMD64 Architecture Processor Supplement*, *Process
//! Initialization*; *Intel386 Architecture Processor Supplement*, *Process Initialization*.

mod stack;

use core::fmt;

use ::elf::ElfBytes;
use ::elf::abi::{ELFCLASS32, ELFCLASS64, EM_386, EM_X86_64, ET_EXEC, PF_R, PF_W, PF_X, PT_INTERP, PT_LOAD};
use ::elf::endian::LittleEndian;
use ::elf::file::Class;
use ::elf::segment::ProgramHeader;

use crate::memory::layout::{PAGE_SIZE, USER_LIMIT, USER_LIMIT_32, USER_START, index, page_ceiling, page_floor};
use crate::memory::{AddressSpace, FaultError, MapError, Placement, Protection};

pub use stack::{StackError, build_stack};

/// Why a file can't be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The file does not begin with 0x7f "ELF".
    NotElf,
    /// The header and the program headers that it names are not whole, or not of the sizes that the class has.
    Header,
    /// Neither a 32-bit nor a 64-bit file.
    Class {
        /// The byte that says so.
        class: u8,
    },
    /// Not little-endian.
    ByteOrder,
    /// Another machine.
    Machine {
        /// The value of `e_machine`.
        machine: u16,
        /// What a file of the class has there.
        wanted: u16,
    },
    /// Not an executable with fixed addresses.
    Type {
        /// The value of `e_type`.
        kind: u16,
    },
    /// It wants a dynamic linker.
    Interpreter,
    /// No segment to load.
    NoSegment,
    /// A segment's bytes are not all in the file.
    Truncated {
        /// Address of the segment.
        address: u64,
        /// Bytes of the file it needs.
        needed: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// A segment has more bytes in the file than in memory.
    FileLargerThanMemory {
        /// Address of the segment.
        address: u64,
    },
    /// A segment leaves what the program may have of the user half, or begins in the pages that catch null pointers.
    OutsideUserHalf {
        /// Address of the segment.
        address: u64,
        /// Its bytes in memory.
        bytes: u64,
        /// The first address that the program can't have.
        limit: u64,
    },
    /// Two segments share a page.
    Overlap {
        /// Address of the second.
        address: u64,
    },
    /// A segment that can be written and executed.
    WritableAndExecutable {
        /// Address of the segment.
        address: u64,
    },
    /// The entry point is in no executable segment.
    Entry {
        /// The value of `e_entry`.
        address: u64,
    },
    /// The address space refused a segment.
    Map(MapError),
    /// A segment could not be filled.
    Fill(FaultError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotElf => f.write_str("not an ELF file"),
            Self::Header => f.write_str("ELF header or program headers are cut off or malformed"),
            Self::Class { class } => write!(
                f,
                "ELF class {class}, wanted {ELFCLASS32} (32-bit) or {ELFCLASS64} (64-bit)"
            ),
            Self::ByteOrder => f.write_str("big-endian ELF file, wanted little-endian"),
            Self::Machine { machine, wanted } => {
                let name = if wanted == EM_386 { "i386" } else { "x86-64" };
                write!(
                    f,
                    "ELF machine {machine}, wanted {wanted} ({name}) in a file of this class"
                )
            }
            Self::Type { kind } => {
                write!(
                    f,
                    "ELF type {kind}, wanted {ET_EXEC} (executable with fixed addresses; link with --no-pie)"
                )
            }
            Self::Interpreter => f.write_str("ELF file wants a dynamic linker, wanted a static one"),
            Self::NoSegment => f.write_str("ELF file has no segment to load"),
            Self::Truncated {
                address,
                needed,
                length,
            } => {
                write!(f, "segment at {address:#x} needs {needed} bytes of a file of {length}")
            }
            Self::FileLargerThanMemory { address } => {
                write!(f, "segment at {address:#x} is larger in the file than in memory")
            }
            Self::OutsideUserHalf { address, bytes, limit } => {
                write!(
                    f,
                    "segment at {address:#x} of {bytes:#x} bytes, wanted {USER_START:#x} to {limit:#x}"
                )
            }
            Self::Overlap { address } => write!(f, "segment at {address:#x} shares a page with another"),
            Self::WritableAndExecutable { address } => {
                write!(
                    f,
                    "segment at {address:#x} is writable and executable, wanted one of them"
                )
            }
            Self::Entry { address } => write!(f, "entry point {address:#x} is in no executable segment"),
            Self::Map(error) => write!(f, "segment: {error}"),
            Self::Fill(error) => write!(f, "segment: {error}"),
        }
    }
}

impl core::error::Error for LoadError {}

impl From<MapError> for LoadError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

impl From<FaultError> for LoadError {
    fn from(error: FaultError) -> Self {
        Self::Fill(error)
    }
}

/// A loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where it starts.
    pub entry: u64,
    /// Where its program headers are in memory (`AT_PHDR`); 0 when no segment holds them.
    pub program_headers: u64,
    /// How many there are (`AT_PHNUM`).
    pub program_header_count: u64,
    /// Whether it is 32-bit code.
    pub is_32_bit: bool,
}

impl Image {
    /// The first address that the program can't have.
    const fn limit(&self) -> u64 {
        limit(self.is_32_bit)
    }

    /// Bytes of a program header (`AT_PHENT`).
    const fn program_header_bytes(&self) -> u64 {
        if self.is_32_bit { 32 } else { 56 }
    }
}

/// The first address that a program can't have.
const fn limit(is_32_bit: bool) -> u64 {
    if is_32_bit { USER_LIMIT_32 } else { USER_LIMIT }
}

/// Maps the program in `file` into `space`.
///
/// # Errors
///
/// [`LoadError`]. For a bad file nothing is mapped; after [`LoadError::Map`] or [`LoadError::Fill`] the space holds a part
/// of the program and is of no use.
pub fn load(space: &mut AddressSpace, file: &[u8]) -> Result<Image, LoadError> {
    let (elf, image) = check(file)?;
    for segment in segments(&elf)? {
        let first = page_floor(segment.p_vaddr);
        let length = segment.p_vaddr - first + segment.p_memsz;
        space.mmap(first, length, protection(&segment), Placement::FixedNoReplace)?;
        let start = index(segment.p_offset);
        // `check` has found the whole segment in the file.
        space.write(segment.p_vaddr, &file[start..start + index(segment.p_filesz)])?;
    }
    Ok(image)
}

type Elf<'a> = ElfBytes<'a, LittleEndian>;

/// Everything that can be wrong with a file.
fn check(file: &[u8]) -> Result<(Elf<'_>, Image), LoadError> {
    let header = parse_header(file)?;
    let is_32_bit = header.ehdr.class == Class::ELF32;
    let limit = limit(is_32_bit);
    let mut previous_end = 0;
    let mut entry_is_code = false;
    let mut program_headers = 0;
    let mut count = 0;
    for segment in segments(&header)? {
        count += 1;
        let address = segment.p_vaddr;
        let bytes = segment.p_memsz;
        if segment.p_filesz > bytes {
            return Err(LoadError::FileLargerThanMemory { address });
        }
        let length = file.len() as u64;
        let needed = segment.p_offset.saturating_add(segment.p_filesz);
        if needed > length {
            return Err(LoadError::Truncated {
                address,
                needed,
                length,
            });
        }
        let outside = LoadError::OutsideUserHalf { address, bytes, limit };
        let end = address.checked_add(bytes).and_then(page_ceiling).ok_or(outside)?;
        if address < USER_START || end > limit {
            return Err(outside);
        }
        if page_floor(address) < previous_end {
            return Err(LoadError::Overlap { address });
        }
        if protection(&segment).breaks_w_xor_x() {
            return Err(LoadError::WritableAndExecutable { address });
        }
        previous_end = end;
        let holds = |value: u64| address <= value && value < address + bytes;
        entry_is_code |= segment.p_flags & PF_X != 0 && holds(header.ehdr.e_entry);
        if segment.p_offset <= header.ehdr.e_phoff && header.ehdr.e_phoff < segment.p_offset + segment.p_filesz {
            program_headers = address + (header.ehdr.e_phoff - segment.p_offset);
        }
    }
    if count == 0 {
        return Err(LoadError::NoSegment);
    }
    if !entry_is_code {
        return Err(LoadError::Entry {
            address: header.ehdr.e_entry,
        });
    }
    let image = Image {
        entry: header.ehdr.e_entry,
        program_headers,
        program_header_count: u64::from(header.ehdr.e_phnum),
        is_32_bit,
    };
    Ok((header, image))
}

fn parse_header(file: &[u8]) -> Result<Elf<'_>, LoadError> {
    use ::elf::abi::{EI_CLASS, EI_DATA, ELFDATA2LSB, ELFMAGIC};
    if !file.starts_with(&ELFMAGIC) {
        return Err(LoadError::NotElf);
    }
    let wanted = match *file.get(EI_CLASS).ok_or(LoadError::Header)? {
        ELFCLASS32 => EM_386,
        ELFCLASS64 => EM_X86_64,
        class => return Err(LoadError::Class { class }),
    };
    if *file.get(EI_DATA).ok_or(LoadError::Header)? != ELFDATA2LSB {
        return Err(LoadError::ByteOrder);
    }
    let elf = Elf::minimal_parse(file).map_err(|_| LoadError::Header)?;
    if elf.ehdr.e_machine != wanted {
        return Err(LoadError::Machine {
            machine: elf.ehdr.e_machine,
            wanted,
        });
    }
    if elf.ehdr.e_type != ET_EXEC {
        return Err(LoadError::Type { kind: elf.ehdr.e_type });
    }
    let headers = elf.segments().ok_or(LoadError::NoSegment)?;
    if headers.iter().any(|header| header.p_type == PT_INTERP) {
        return Err(LoadError::Interpreter);
    }
    Ok(elf)
}

/// The segments to load, in the order of the file, which is that of their addresses.
fn segments<'a>(elf: &Elf<'a>) -> Result<impl Iterator<Item = ProgramHeader> + use<'a>, LoadError> {
    let headers = elf.segments().ok_or(LoadError::NoSegment)?;
    Ok(headers
        .iter()
        .filter(|header| header.p_type == PT_LOAD && header.p_memsz > 0))
}

fn protection(segment: &ProgramHeader) -> Protection {
    let mut protection = Protection::empty();
    protection.set(Protection::READ, segment.p_flags & PF_R != 0);
    protection.set(Protection::WRITE, segment.p_flags & PF_W != 0);
    protection.set(Protection::EXECUTE, segment.p_flags & PF_X != 0);
    protection
}
