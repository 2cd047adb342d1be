//! Loading programs: a good file, and each way in which one can be bad.
//!
//! Any accelerator. The files are made here; no program runs.
#![no_std]
#![no_main]
#![feature(custom_test_frameworks)]
#![test_runner(example_os::harness::run)]
#![reexport_test_harness_main = "test_main"]

use example_os::archive::{Archive, ArchiveError};
use example_os::elf::{Image, LoadError, StackError, build_stack, load};
use example_os::memory::{AddressSpace, DIRECT_MAP, Protection, USER_LIMIT};

const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x40_1000;
const FILE_BYTES: usize = 0x2000;
const HEADERS: usize = 64;

/// A program of two segments: headers and code at [`CODE`], 16 bytes of data and 8 KiB of zeros at [`DATA`].
struct File([u8; FILE_BYTES]);

impl File {
    fn new() -> Self {
        let mut file = Self([0; FILE_BYTES]);
        file.put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        file.put(16, &2u16.to_le_bytes());
        file.put(18, &62u16.to_le_bytes());
        file.put(20, &1u32.to_le_bytes());
        file.put(24, &(CODE + 0x100).to_le_bytes());
        file.put(32, &(HEADERS as u64).to_le_bytes());
        file.put(52, &64u16.to_le_bytes());
        file.put(54, &56u16.to_le_bytes());
        file.put(56, &2u16.to_le_bytes());
        file.segment(0, 5, 0, CODE, 0x200, 0x200);
        file.segment(1, 6, 0x1000, DATA, 16, 8192);
        file.put(0x100, &[0x0f, 0x05]);
        file.put(0x1000, b"sixteen bytes ok");
        file
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn segment(&mut self, number: usize, flags: u32, offset: u64, address: u64, in_file: u64, in_memory: u64) {
        let at = HEADERS + number * 56;
        self.put(at, &1u32.to_le_bytes());
        self.put(at + 4, &flags.to_le_bytes());
        for (word, value) in [offset, address, address, in_file, in_memory, 0x1000]
            .into_iter()
            .enumerate()
        {
            self.put(at + 8 + 8 * word, &value.to_le_bytes());
        }
    }

    fn load(&self) -> Result<Image, LoadError> {
        load(&mut AddressSpace::new().unwrap(), &self.0)
    }
}

/// A 32-bit program of two segments: headers and code at [`CODE`], 4 bytes of data at [`DATA`].
struct File32([u8; FILE_BYTES]);

impl File32 {
    fn new() -> Self {
        let mut file = Self([0; FILE_BYTES]);
        file.put(0, &[0x7f, b'E', b'L', b'F', 1, 1, 1]);
        file.put(16, &2u16.to_le_bytes());
        file.put(18, &3u16.to_le_bytes());
        file.put(20, &1u32.to_le_bytes());
        file.put(24, &0x40_0100_u32.to_le_bytes());
        file.put(28, &52u32.to_le_bytes());
        file.put(40, &52u16.to_le_bytes());
        file.put(42, &32u16.to_le_bytes());
        file.put(44, &2u16.to_le_bytes());
        file.segment(0, 5, 0, 0x40_0000, 0x200);
        file.segment(1, 6, 0x1000, 0x40_1000, 4);
        file.put(0x100, &[0xcd, 0x80]);
        file.put(0x1000, b"four");
        file
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn segment(&mut self, number: usize, flags: u32, offset: u32, address: u32, bytes: u32) {
        for (word, value) in [1, offset, address, address, bytes, bytes, flags, 0x1000]
            .into_iter()
            .enumerate()
        {
            self.put(52 + number * 32 + 4 * word, &value.to_le_bytes());
        }
    }
}

fn word32(space: &AddressSpace, address: u64) -> u64 {
    let mut bytes = [0; 4];
    physical_bytes(space, address, &mut bytes);
    u32::from_le_bytes(bytes).into()
}

fn physical_bytes(space: &AddressSpace, address: u64, bytes: &mut [u8]) {
    let physical = space.translate(address).unwrap().physical;
    let source = core::ptr::with_exposed_provenance::<u8>(usize::try_from(DIRECT_MAP + physical).unwrap());
    // SAFETY: the direct map shows the page, and the callers stay within it.
    bytes.copy_from_slice(unsafe { core::slice::from_raw_parts(source, bytes.len()) });
}

fn word(space: &AddressSpace, address: u64) -> u64 {
    let mut bytes = [0; 8];
    physical_bytes(space, address, &mut bytes);
    u64::from_le_bytes(bytes)
}

example_os::tests! { ();
    fn loads_a_good_file(_suite) {
        let mut space = AddressSpace::new().unwrap();
        let image = load(&mut space, &File::new().0).unwrap();
        assert_eq!(image, Image { entry: CODE + 0x100, program_headers: CODE + 64, program_header_count: 2, is_32_bit: false });
        assert_eq!(space.translate(CODE).unwrap().protection, Protection::READ | Protection::EXECUTE);
        assert_eq!(space.translate(DATA).unwrap().protection, Protection::READ | Protection::WRITE);
        let mut bytes = [1; 24];
        physical_bytes(&space, DATA, &mut bytes);
        assert_eq!(&bytes, b"sixteen bytes ok\0\0\0\0\0\0\0\0");
        // The rest of the zeros is left to the page fault.
        assert_eq!(space.translate(DATA + 4096), None);
        assert!(space.areas().find(DATA + 8191).is_some());
    }

    fn loads_a_good_32_bit_file(_suite) {
        let mut space = AddressSpace::new().unwrap();
        let image = load(&mut space, &File32::new().0).unwrap();
        let wanted = Image { entry: CODE + 0x100, program_headers: CODE + 52, program_header_count: 2, is_32_bit: true };
        assert_eq!(image, wanted);
        assert_eq!(space.translate(CODE).unwrap().protection, Protection::READ | Protection::EXECUTE);
        assert_eq!(word32(&space, DATA), u32::from_le_bytes(*b"four").into());
    }

    fn refuses_a_32_bit_file_for_another_machine_or_beyond_its_memory(_suite) {
        let mut space = AddressSpace::new().unwrap();
        // x86-64 in a file of this class: the x32 convention.
        let mut file = File32::new();
        file.put(18, &62u16.to_le_bytes());
        assert_eq!(load(&mut space, &file.0), Err(LoadError::Machine { machine: 62, wanted: 3 }));
        for (address, bytes) in [(0xffff_e000, 4), (0xffff_d000, 0x1001), (0xffff_fffc, 4)] {
            let mut file = File32::new();
            file.segment(1, 6, 0x1000, address, 4);
            file.put(52 + 32 + 20, &u32::to_le_bytes(bytes));
            let (address, bytes) = (address.into(), bytes.into());
            let error = LoadError::OutsideUserHalf { address, bytes, limit: 0xffff_e000 };
            assert_eq!(load(&mut space, &file.0), Err(error));
        }
        assert!(space.areas().as_slice().is_empty());
    }

    fn builds_the_first_stack_of_a_32_bit_program(_suite) {
        for arguments in [&[&b"bin/init"[..], b"x"][..], &[b"bin/init"]] {
            let mut space = AddressSpace::new().unwrap();
            let image = load(&mut space, &File32::new().0).unwrap();
            let count = arguments.len() as u64;
            let esp = build_stack(&mut space, &image, arguments, &[b"HOME=/"]).unwrap();
            assert_eq!(esp % 16, 0);
            assert!(esp < 0xffff_e000);
            assert_eq!(word32(&space, esp), count);
            let mut text = [0; 9];
            physical_bytes(&space, word32(&space, esp + 4), &mut text);
            assert_eq!(&text, b"bin/init\0");
            let environment = esp + 4 + 4 * count + 4;
            assert_eq!(word32(&space, environment - 4), 0);
            physical_bytes(&space, word32(&space, environment), &mut text[..7]);
            assert_eq!(&text[..7], b"HOME=/\0");
            assert_eq!(word32(&space, environment + 4), 0);
            let auxiliary = |kind: u64| {
                let mut pairs = (0..16).map(|pair| environment + 8 + 8 * pair);
                pairs.find(|&at| word32(&space, at) == kind).map(|at| word32(&space, at + 4))
            };
            assert_eq!(auxiliary(3), Some(CODE + 52));
            assert_eq!(auxiliary(4), Some(32));
            assert_eq!(auxiliary(9), Some(CODE + 0x100));
            assert_eq!(auxiliary(32), Some(0xfbff_e000));
            assert_eq!(auxiliary(0), Some(0));
            assert!(auxiliary(25).is_some_and(|at| esp < at && at < 0xffff_dff0));
        }
    }

    fn refuses_what_is_no_elf_file(_suite) {
        let mut space = AddressSpace::new().unwrap();
        assert_eq!(load(&mut space, b""), Err(LoadError::NotElf));
        assert_eq!(load(&mut space, b"#!/bin/sh\n"), Err(LoadError::NotElf));
        assert_eq!(load(&mut space, b"\x7fELF"), Err(LoadError::Header));
        assert_eq!(load(&mut space, &File::new().0[..40]), Err(LoadError::Header));
    }

    fn refuses_other_classes_machines_and_types(_suite) {
        for (at, value, error) in [
            (4, 0, LoadError::Class { class: 0 }),
            (4, 3, LoadError::Class { class: 3 }),
            // What is a header of 64 bits is none of 32.
            (4, 1, LoadError::Header),
            (5, 2, LoadError::ByteOrder),
            (18, 183, LoadError::Machine { machine: 183, wanted: 62 }),
            (16, 1, LoadError::Type { kind: 1 }),
            (16, 3, LoadError::Type { kind: 3 }),
        ] {
            let mut file = File::new();
            file.put(at, &[value]);
            assert_eq!(file.load(), Err(error));
        }
    }

    fn refuses_a_dynamic_program(_suite) {
        let mut file = File::new();
        file.put(HEADERS + 56, &3u32.to_le_bytes());
        assert_eq!(file.load(), Err(LoadError::Interpreter));
    }

    fn refuses_a_truncated_file(_suite) {
        let file = File::new();
        let mut space = AddressSpace::new().unwrap();
        let error = LoadError::Truncated { address: DATA, needed: 0x1010, length: 0x100f };
        assert_eq!(load(&mut space, &file.0[..0x100f]), Err(error));
        assert!(space.areas().as_slice().is_empty(), "a bad file was mapped in part");
        assert_eq!(load(&mut space, &file.0[..100]), Err(LoadError::Header));
    }

    fn refuses_segments_outside_the_user_half(_suite) {
        for (address, bytes) in [
            (0, 16),
            (0xf000, 16),
            (USER_LIMIT, 16),
            (USER_LIMIT - 4096, 8192),
            (0xffff_ffff_8000_0000, 4096),
            (u64::MAX - 15, 16),
        ] {
            let mut file = File::new();
            file.segment(1, 6, 0x1000, address, 16, bytes);
            assert_eq!(file.load(), Err(LoadError::OutsideUserHalf { address, bytes, limit: USER_LIMIT }));
        }
    }

    fn refuses_segments_that_share_a_page(_suite) {
        let mut file = File::new();
        file.segment(1, 6, 0x1000, CODE + 0x200, 16, 16);
        assert_eq!(file.load(), Err(LoadError::Overlap { address: CODE + 0x200 }));
    }

    fn refuses_a_writable_and_executable_segment(_suite) {
        let mut file = File::new();
        file.segment(1, 7, 0x1000, DATA, 16, 16);
        assert_eq!(file.load(), Err(LoadError::WritableAndExecutable { address: DATA }));
    }

    fn refuses_a_segment_larger_in_the_file(_suite) {
        let mut file = File::new();
        file.segment(1, 6, 0x1000, DATA, 17, 16);
        assert_eq!(file.load(), Err(LoadError::FileLargerThanMemory { address: DATA }));
    }

    fn refuses_an_entry_that_is_no_code(_suite) {
        for address in [0, DATA, CODE + 0x200, u64::MAX] {
            let mut file = File::new();
            file.put(24, &address.to_le_bytes());
            assert_eq!(file.load(), Err(LoadError::Entry { address }));
        }
    }

    fn refuses_a_file_without_segments(_suite) {
        let mut file = File::new();
        file.put(56, &0u16.to_le_bytes());
        assert_eq!(file.load(), Err(LoadError::NoSegment));
    }

    fn builds_the_first_stack(_suite) {
        let mut space = AddressSpace::new().unwrap();
        let image = load(&mut space, &File::new().0).unwrap();
        let rsp = build_stack(&mut space, &image, &[b"bin/init", b"x"], &[b"HOME=/"]).unwrap();
        assert_eq!(rsp % 16, 0);
        assert_eq!(word(&space, rsp), 2);
        let mut text = [0; 9];
        physical_bytes(&space, word(&space, rsp + 8), &mut text);
        assert_eq!(&text, b"bin/init\0");
        assert_eq!(word(&space, rsp + 24), 0);
        physical_bytes(&space, word(&space, rsp + 32), &mut text[..7]);
        assert_eq!(&text[..7], b"HOME=/\0");
        assert_eq!(word(&space, rsp + 40), 0);
        let auxiliary = |kind: u64| {
            (0..16).map(|pair| rsp + 48 + 16 * pair).find(|&at| word(&space, at) == kind).map(|at| word(&space, at + 8))
        };
        assert_eq!(auxiliary(3), Some(CODE + 64));
        assert_eq!(auxiliary(5), Some(2));
        assert_eq!(auxiliary(6), Some(4096));
        assert_eq!(auxiliary(9), Some(CODE + 0x100));
        assert_eq!(auxiliary(0), Some(0));
        assert!(auxiliary(25).is_some_and(|at| rsp < at && at < USER_LIMIT));
    }

    fn refuses_more_arguments_than_fit(_suite) {
        let mut space = AddressSpace::new().unwrap();
        let image = load(&mut space, &File::new().0).unwrap();
        let arguments: [&[u8]; 65] = [b"a"; 65];
        let error = build_stack(&mut space, &image, &arguments, &[]);
        assert_eq!(error, Err(StackError::TooLong { strings: 65, bytes: 130 }));
        assert!(build_stack(&mut space, &image, &arguments[..64], &[]).is_ok());
    }

    fn finds_members_of_an_archive(_suite) {
        let mut bytes = [b'0'; 256];
        bytes[..6].copy_from_slice(b"070701");
        bytes[54..62].copy_from_slice(b"00000003");
        bytes[94..102].copy_from_slice(b"00000006");
        bytes[110..119].copy_from_slice(b"./one\0abc");
        bytes[120..126].copy_from_slice(b"070701");
        bytes[214..222].copy_from_slice(b"0000000b");
        bytes[230..241].copy_from_slice(b"TRAILER!!!\0");
        let archive = Archive::new(&bytes);
        assert_eq!(archive.find("one"), Ok(Some(&b"abc"[..])));
        assert_eq!(archive.find("two"), Ok(None));
    }

    fn names_what_is_wrong_with_an_archive(_suite) {
        assert_eq!(Archive::new(b"").find("x"), Err(ArchiveError::Truncated { offset: 0 }));
        assert_eq!(Archive::new(&[b'0'; 200]).find("x"), Err(ArchiveError::Magic { offset: 0 }));
        let mut header = [b'0'; 200];
        header[..6].copy_from_slice(b"070701");
        assert_eq!(Archive::new(&header).find("x"), Err(ArchiveError::Name { offset: 0 }));
        header[54..62].copy_from_slice(b"0000zz00");
        assert_eq!(Archive::new(&header).find("x"), Err(ArchiveError::Number { offset: 0 }));
        header[54..62].copy_from_slice(b"ffffffff");
        header[94..102].copy_from_slice(b"00000002");
        header[110..112].copy_from_slice(b"a\0");
        assert_eq!(Archive::new(&header).find("x"), Err(ArchiveError::Truncated { offset: 0 }));
    }
}
