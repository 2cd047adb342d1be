//! The boot archive: a cpio file in the `newc` format, as Linux takes it for its initramfs.
//!
//! Each member is a 110-byte header of ASCII hex digits, the name with a final NUL, padding to 4 bytes, the data, and
//! padding to 4 bytes. A member named `TRAILER!!!` ends the archive.
//!
//! # Source
//!
//! Linux *Documentation/driver-api/early-userspace/buffer-format.rst*.

use core::fmt;

const HEADER_BYTES: usize = 110;
const MAGIC: &[u8] = b"070701";
const MAGIC_WITH_CHECKSUM: &[u8] = b"070702";

/// What is wrong with an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArchiveError {
    /// No `newc` magic at this offset.
    Magic {
        /// Offset of the member in bytes.
        offset: usize,
    },
    /// A header field is not eight hexadecimal digits.
    Number {
        /// Offset of the member in bytes.
        offset: usize,
    },
    /// A member goes on behind the end of the archive, or the final member is missing.
    Truncated {
        /// Offset of the member in bytes.
        offset: usize,
    },
    /// A member's name is not UTF-8 that ends in one NUL.
    Name {
        /// Offset of the member in bytes.
        offset: usize,
    },
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offset, wanted) = match *self {
            Self::Magic { offset } => (offset, "the magic 070701 of a newc archive"),
            Self::Number { offset } => (offset, "eight hexadecimal digits in each header field"),
            Self::Truncated { offset } => (offset, "a whole member, and TRAILER!!! at the end"),
            Self::Name { offset } => (offset, "a name in UTF-8 that ends in NUL"),
        };
        write!(f, "archive member at byte {offset}: wanted {wanted}")
    }
}

impl core::error::Error for ArchiveError {}

/// One member of an [`Archive`].
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Path without a leading `./`.
    pub name: &'a str,
    /// The file's bytes.
    pub data: &'a [u8],
}

/// A `newc` archive in memory.
#[derive(Clone, Copy, Debug)]
pub struct Archive<'a> {
    bytes: &'a [u8],
}

impl<'a> Archive<'a> {
    /// An archive over `bytes`. Nothing is checked before the members are read.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The members in order, ending after the first error.
    #[must_use]
    pub const fn entries(&self) -> Entries<'a> {
        Entries {
            bytes: self.bytes,
            offset: 0,
            is_done: false,
        }
    }

    /// The bytes of the member called `path`.
    ///
    /// # Errors
    ///
    /// The first [`ArchiveError`] met before the member is found.
    pub fn find(&self, path: &str) -> Result<Option<&'a [u8]>, ArchiveError> {
        for entry in self.entries() {
            let entry = entry?;
            if entry.name == path {
                return Ok(Some(entry.data));
            }
        }
        Ok(None)
    }
}

/// Iterator over the members of an [`Archive`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    offset: usize,
    is_done: bool,
}

impl<'a> Entries<'a> {
    fn member(&mut self) -> Result<Option<Entry<'a>>, ArchiveError> {
        let offset = self.offset;
        let truncated = ArchiveError::Truncated { offset };
        let header = self
            .bytes
            .get(offset..)
            .and_then(|rest| rest.get(..HEADER_BYTES))
            .ok_or(truncated)?;
        if !header.starts_with(MAGIC) && !header.starts_with(MAGIC_WITH_CHECKSUM) {
            return Err(ArchiveError::Magic { offset });
        }
        let data_bytes = field(header, 6).ok_or(ArchiveError::Number { offset })?;
        let name_bytes = field(header, 11).ok_or(ArchiveError::Number { offset })?;

        let name_start = offset + HEADER_BYTES;
        let name_end = name_start.checked_add(name_bytes).ok_or(truncated)?;
        let name = self.bytes.get(name_start..name_end).ok_or(truncated)?;
        let name = name
            .strip_suffix(&[0])
            .and_then(|name| core::str::from_utf8(name).ok())
            .ok_or(ArchiveError::Name { offset })?;
        if name == "TRAILER!!!" {
            return Ok(None);
        }

        let data_start = name_end.next_multiple_of(4);
        let data_end = data_start.checked_add(data_bytes).ok_or(truncated)?;
        let data = self.bytes.get(data_start..data_end).ok_or(truncated)?;
        self.offset = data_end.next_multiple_of(4);
        Ok(Some(Entry {
            name: name.strip_prefix("./").unwrap_or(name),
            data,
        }))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let member = self.member();
        self.is_done = !matches!(member, Ok(Some(_)));
        member.transpose()
    }
}

/// Header field number `index`: eight hexadecimal digits after the six of the magic.
fn field(header: &[u8], index: usize) -> Option<usize> {
    let start = MAGIC.len() + index * 8;
    header
        .get(start..start + 8)?
        .iter()
        .try_fold(0, |value: usize, &digit| {
            let digit = char::from(digit).to_digit(16)?;
            Some(value << 4 | digit as usize)
        })
}
