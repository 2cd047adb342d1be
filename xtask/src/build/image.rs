//! ELF files: bytes at an address, and the symbol there.

use std::fs;
use std::ops::Range;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};

use crate::error::{Error, Result};

/// What is needed of an executable ELF file.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// Executable segments: first address and contents.
    code: Vec<(u64, Vec<u8>)>,
    /// Symbols by address: address, size, readable name.
    symbols: Vec<(u64, u64, String)>,
    /// Symbols of the linker script: name and address.
    labels: Vec<(String, u64)>,
    /// Statics by address: address, size, readable name.
    statics: Vec<(u64, u64, String)>,
    /// Sections in memory: where, and name.
    sections: Vec<(Range<u64>, String)>,
}

/// The definitions of some kinds in a file, by address: address, size, readable name.
fn definitions(file: &object::File<'_>, kinds: &[SymbolKind]) -> Vec<(u64, u64, String)> {
    let mut found: Vec<_> = file
        .symbols()
        .filter(|symbol| symbol.is_definition() && kinds.contains(&symbol.kind()))
        .filter_map(|symbol| {
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
            Some((symbol.address(), symbol.size(), name))
        })
        .filter(|(_, _, name)| !name.is_empty())
        .collect();
    found.sort_by(|a, b| (a.0, a.1, &a.2).cmp(&(b.0, b.1, &b.2)));
    found
}

impl Image {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).map_err(|source| Error::File {
            action: "read",
            path: path.to_owned(),
            source,
            remedy: "give the path of a file that can be read",
        })?;
        Self::parse(&bytes).map_err(|why| Error::Invalid {
            field: "the program",
            value: path.display().to_string(),
            why: format!("which is no ELF64 executable for x86-64 ({why})"),
            remedy: "give the name of a program in example-os/user or a static ELF64 file".to_owned(),
        })
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let file = object::File::parse(bytes).map_err(|error| error.to_string())?;
        if file.architecture() != object::Architecture::X86_64 || !file.is_64() {
            return Err(format!("it is for {:?}", file.architecture()));
        }
        if file.kind() != object::ObjectKind::Executable {
            return Err(format!("it is a {:?} file", file.kind()));
        }
        let mut code = Vec::new();
        for segment in file.segments() {
            let executable =
                matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
            if executable {
                let data = segment.data().map_err(|error| error.to_string())?;
                code.push((segment.address(), data.to_vec()));
            }
        }
        let symbols = definitions(&file, &[SymbolKind::Text, SymbolKind::Label, SymbolKind::Unknown]);
        let statics = definitions(&file, &[SymbolKind::Data]);
        let sections = file
            .sections()
            .filter(|section| section.address() != 0)
            .filter_map(|section| {
                let range = section.address()..section.address() + section.size();
                Some((range, section.name().ok()?.to_owned()))
            })
            .collect();
        let labels = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Unknown && symbol.size() == 0 && !symbol.is_undefined())
            .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
            .collect();
        Ok(Self {
            code,
            symbols,
            labels,
            statics,
            sections,
        })
    }

    /// The image with a piece of code that is not in its file.
    pub(crate) fn with_code(mut self, start: u64, bytes: &[u8]) -> Self {
        self.code.push((start, bytes.to_vec()));
        self
    }

    /// Puts code that was generated at run time in the place of what the file has there.
    pub(crate) fn generate(&mut self, start: u64, bytes: &[u8]) {
        // Pieces are searched in order.
        self.code.insert(0, (start, bytes.to_vec()));
    }

    /// An image of one piece of code, for tests of what reads images.
    #[cfg(test)]
    pub(crate) fn from_code(start: u64, bytes: &[u8]) -> Self {
        Self {
            code: vec![(start, bytes.to_vec())],
            symbols: Vec::new(),
            labels: Vec::new(),
            statics: Vec::new(),
            sections: Vec::new(),
        }
    }

    /// An image of one function, with labels at its bounds.
    #[cfg(test)]
    pub(crate) fn of_function(start: u64, bytes: &[u8], name: &str, bounds: [&str; 2]) -> Self {
        let size = bytes.len() as u64;
        let [first, last] = bounds.map(str::to_owned);
        Self {
            code: vec![(start, bytes.to_vec())],
            symbols: vec![(start, size, name.to_owned())],
            labels: vec![(first, start), (last, start + size)],
            statics: Vec::new(),
            sections: Vec::new(),
        }
    }

    /// The bytes from `address` to the end of its segment; `None` outside executable segments.
    pub(crate) fn bytes_at(&self, address: u64) -> Option<&[u8]> {
        self.code.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    /// Where there is code.
    pub(crate) fn code_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.code
            .iter()
            .map(|(start, bytes)| *start..*start + bytes.len() as u64)
    }

    /// Addresses of symbols whose readable name, generic arguments left out, ends in `path`.
    pub(crate) fn addresses_of(&self, path: &str) -> Vec<u64> {
        let mut found: Vec<u64> = self
            .symbols
            .iter()
            .filter(|(_, _, name)| {
                without_generics(name)
                    .strip_suffix(path)
                    .is_some_and(|before| before.is_empty() || before.ends_with("::"))
            })
            .map(|(address, _, _)| *address)
            .collect();
        found.dedup();
        found
    }

    /// Address of a symbol that the linker script defines.
    pub(crate) fn label(&self, name: &str) -> Option<u64> {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, address)| *address)
    }

    /// Name and offset of the symbol that covers an address.
    pub(crate) fn symbol_at(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.symbols.partition_point(|(start, _, _)| *start <= address);
        let covers = |&&(start, size, _): &&(u64, u64, String)| size == 0 || address < start + size;
        self.symbols[..after]
            .iter()
            .rev()
            .take(8)
            .find(covers)
            .map(|(start, _, name)| (name.as_str(), address - start))
    }

    /// What an address stands for, the same wherever the linker puts it: a function or a static with the distance from its
    /// start, or else the section.
    pub(crate) fn place(&self, address: u64) -> Option<String> {
        let with_distance = |name: &str, distance: u64| match distance {
            0 => name.to_owned(),
            _ => format!("{name}+{distance:#x}"),
        };
        // A label without a size would cover everything behind it.
        let in_code = self.bytes_at(address).and_then(|_| self.symbol_at(address));
        if let Some((name, distance)) = in_code {
            return Some(with_distance(name, distance));
        }
        let mut statics = self.statics.iter();
        if let Some((start, _, name)) = statics.find(|(start, size, _)| (*start..start + size).contains(&address)) {
            return Some(with_distance(name, address - start));
        }
        let mut sections = self.sections.iter();
        let (_, name) = sections.find(|(range, _)| range.contains(&address))?;
        Some(format!("somewhere in {name}"))
    }
}

/// A path without `<…>` parts.
pub(crate) fn without_generics(name: &str) -> String {
    let mut depth = 0_u32;
    let mut plain = String::new();
    for character in name.chars() {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain.trim_end_matches("::").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Image {
        Image {
            code: vec![(0x1000, vec![0x90, 0x0f, 0x05, 0xc3])],
            labels: Vec::new(),
            statics: vec![(0x2008, 8, "kernel::TABLE".to_owned())],
            sections: vec![(0x2000..0x2100, ".rodata".to_owned())],
            symbols: vec![
                (0x1000, 3, "kernel::task::switch_to".to_owned()),
                (0x1003, 0, "label".to_owned()),
            ],
        }
    }

    #[test]
    fn gives_bytes_inside_segments_only() {
        let image = sample();
        assert_eq!(image.bytes_at(0x1001), Some(&[0x0f, 0x05, 0xc3][..]));
        assert_eq!(image.bytes_at(0x0fff), None);
        assert_eq!(image.bytes_at(0x1004), None);
        assert!(image.code_ranges().eq(std::iter::once(0x1000..0x1004)));
    }

    #[test]
    fn finds_the_symbol_around_an_address() {
        let image = sample();
        assert_eq!(image.symbol_at(0x1001), Some(("kernel::task::switch_to", 1)));
        assert_eq!(image.symbol_at(0x1003), Some(("label", 0)));
        assert_eq!(image.symbol_at(0x10), None);
    }

    #[test]
    fn places_do_not_depend_on_addresses() {
        let image = sample();
        assert_eq!(image.place(0x1001).unwrap(), "kernel::task::switch_to+0x1");
        assert_eq!(image.place(0x2008).unwrap(), "kernel::TABLE");
        assert_eq!(image.place(0x200c).unwrap(), "kernel::TABLE+0x4");
        assert_eq!(image.place(0x2010).unwrap(), "somewhere in .rodata");
        assert_eq!(image.place(0x3000), None);
    }

    #[test]
    fn finds_a_function_by_the_end_of_its_path() {
        let image = sample();
        assert_eq!(image.addresses_of("switch_to"), [0x1000]);
        assert_eq!(image.addresses_of("task::switch_to"), [0x1000]);
        assert!(image.addresses_of("itch_to").is_empty());
    }

    #[test]
    fn generic_arguments_are_no_part_of_a_path() {
        assert_eq!(without_generics("a::b::<c::D>"), "a::b");
        assert_eq!(without_generics("<a::B as c::D>::e"), "::e");
    }

    #[test]
    fn a_text_file_is_no_image() {
        assert!(Image::parse(b"#!/bin/sh\n").is_err());
    }
}
