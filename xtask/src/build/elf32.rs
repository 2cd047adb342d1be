//! ELF32 files out of what the linker makes of 32-bit code.
//!
//! A program in assembly for 32-bit code is assembled and linked for x86-64, since that needs no other target; the
//! segments that come of it are those of an i386 program as long as every address has 32 bits. What is left to do is
//! another header.

use object::elf::{
    ELFCLASS32, ELFDATA2LSB, ELFMAG, EM_386, ET_EXEC, EV_CURRENT, FileHeader32, Ident, PF_R, PF_W, PT_GNU_STACK,
    PT_LOAD, ProgramHeader32,
};
use object::pod::bytes_of;
use object::{LittleEndian, Object, ObjectSegment, SegmentFlags, U16, U32};

type FileHeader = FileHeader32<LittleEndian>;
type ProgramHeader = ProgramHeader32<LittleEndian>;

/// Bytes of a page: offset and address of a segment are the same in its lower bits.
const PAGE: u32 = 4096;

/// Whether a program is one of 32-bit code, by its name.
pub(crate) fn is_wanted(program: &str) -> bool {
    program.ends_with("32")
}

/// Whether a file is an executable of i386 with fixed addresses.
pub(crate) fn is_program(bytes: &[u8]) -> bool {
    object::File::parse(bytes).is_ok_and(|file| {
        file.architecture() == object::Architecture::I386 && file.kind() == object::ObjectKind::Executable
    })
}

fn word(value: u32) -> U32<LittleEndian> {
    U32::new(LittleEndian, value)
}

fn half(value: u16) -> U16<LittleEndian> {
    U16::new(LittleEndian, value)
}

fn low(value: u64, what: &str) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("{what} {value:#x} has more than 32 bits"))
}

/// The ELF32 file for i386 with the entry point and the segments of this ELF64 file.
///
/// Fails if something in it has more than 32 bits, or if it is no executable.
pub(crate) fn convert(elf64: &[u8]) -> Result<Vec<u8>, String> {
    let file = object::File::parse(elf64).map_err(|error| error.to_string())?;
    if file.kind() != object::ObjectKind::Executable || !file.is_64() {
        return Err("it is no ELF64 executable".to_owned());
    }
    let mut headers = Vec::new();
    let mut contents = Vec::new();
    let segments: Vec<_> = file.segments().collect();
    let first = size_of::<FileHeader>() + (segments.len() + 1) * size_of::<ProgramHeader>();
    let mut offset = low(first as u64, "the length of the headers")?;
    for segment in &segments {
        let SegmentFlags::Elf { p_flags } = segment.flags() else {
            return Err("a segment has no flags".to_owned());
        };
        let address = low(segment.address(), "a segment's address")?;
        let in_memory = low(segment.size(), "a segment's length")?;
        if address.checked_add(in_memory).is_none() {
            return Err(format!("the segment at {address:#x} runs over the end of 32 bits"));
        }
        let data = segment.data().map_err(|error| error.to_string())?;
        // Up to the next offset that lies in its page as the address does in its own.
        let gap = address.wrapping_sub(offset) % PAGE;
        contents.resize(contents.len() + gap as usize, 0);
        contents.extend_from_slice(data);
        offset += gap;
        let length = low(data.len() as u64, "a segment's length")?;
        headers.push(program_header(
            PT_LOAD,
            p_flags,
            [offset, address, length, in_memory, PAGE],
        ));
        offset += length;
    }
    // Without it Linux makes the stack executable.
    headers.push(program_header(PT_GNU_STACK, PF_R | PF_W, [0; 5]));
    let mut bytes = bytes_of(&file_header(low(file.entry(), "the entry point")?, headers.len())).to_vec();
    bytes.extend(headers.iter().flat_map(bytes_of));
    bytes.extend(contents);
    Ok(bytes)
}

fn program_header(kind: u32, flags: u32, [offset, address, in_file, in_memory, align]: [u32; 5]) -> ProgramHeader {
    ProgramHeader {
        p_type: word(kind),
        p_offset: word(offset),
        p_vaddr: word(address),
        p_paddr: word(address),
        p_filesz: word(in_file),
        p_memsz: word(in_memory),
        p_flags: word(flags),
        p_align: word(align),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "sizes of headers, and a handful of them")]
fn file_header(entry: u32, program_headers: usize) -> FileHeader {
    FileHeader {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS32,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: 0,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: half(ET_EXEC),
        e_machine: half(EM_386),
        e_version: word(EV_CURRENT.into()),
        e_entry: word(entry),
        e_phoff: word(size_of::<FileHeader>() as u32),
        e_shoff: word(0),
        e_flags: word(0),
        e_ehsize: half(size_of::<FileHeader>() as u16),
        e_phentsize: half(size_of::<ProgramHeader>() as u16),
        e_phnum: half(program_headers as u16),
        e_shentsize: half(0),
        e_shnum: half(0),
        e_shstrndx: half(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF64 file with one segment of code.
    fn sample(entry: u64, address: u64) -> Vec<u8> {
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut put = |bytes: &[u8]| file.extend_from_slice(bytes);
        for value in [2_u16, 62] {
            put(&value.to_le_bytes());
        }
        put(&1_u32.to_le_bytes());
        for value in [entry, 64, 0] {
            put(&value.to_le_bytes());
        }
        put(&0_u32.to_le_bytes());
        for value in [64_u16, 56, 1, 0, 0, 0] {
            put(&value.to_le_bytes());
        }
        for value in [1_u32, 5] {
            put(&value.to_le_bytes());
        }
        for value in [120, address, address, 2, 6, 4096_u64] {
            put(&value.to_le_bytes());
        }
        put(&[0xcd, 0x80]);
        file
    }

    #[test]
    fn gives_an_i386_file_with_the_same_segments() {
        let bytes = convert(&sample(0x40_1000, 0x40_1000)).unwrap();
        assert!(is_program(&bytes) && !is_program(&sample(0x40_1000, 0x40_1000)));
        let file = object::File::parse(&bytes[..]).unwrap();
        assert_eq!(file.architecture(), object::Architecture::I386);
        assert!(!file.is_64() && file.kind() == object::ObjectKind::Executable);
        assert_eq!(file.entry(), 0x40_1000);
        let segments: Vec<_> = file.segments().collect();
        assert_eq!(segments.len(), 1);
        assert_eq!((segments[0].address(), segments[0].size()), (0x40_1000, 6));
        assert_eq!(segments[0].data().unwrap(), [0xcd, 0x80]);
        let (offset, _) = segments[0].file_range();
        assert_eq!(offset % 4096, 0x40_1000 % 4096);
    }

    #[test]
    fn refuses_what_has_more_than_32_bits() {
        let error = convert(&sample(0x1_0040_1000, 0x40_1000)).unwrap_err();
        assert_eq!(error, "the entry point 0x100401000 has more than 32 bits");
        let error = convert(&sample(0x40_1000, 0x1_0000_0000)).unwrap_err();
        assert_eq!(error, "a segment's address 0x100000000 has more than 32 bits");
        let error = convert(&sample(0x40_1000, 0xffff_fffc)).unwrap_err();
        assert_eq!(error, "the segment at 0xfffffffc runs over the end of 32 bits");
        assert!(convert(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn knows_programs_of_32_bit_code_by_their_names() {
        assert!(is_wanted("hello32"));
        assert!(!is_wanted("yield2") && !is_wanted("hello"));
    }
}
