//! The first stack of a program.
//!
//! From the top of what the program can have downwards: the strings, 16 bytes for `AT_RANDOM`, the auxiliary vector, the
//! environment and argument pointers with a null each, and the argument count, where RSP points. Words are of the program's
//! own size.

use core::fmt;

use super::{Image, PAGE_SIZE};
use crate::memory::layout::{CALL_PAGE_32, STACK_BYTES};
use crate::memory::{AddressSpace, FaultError, MapError, Placement, Protection};

/// The most arguments, and the most environment strings, that a program can be given.
const MAX_STRINGS: usize = 64;
/// The most bytes of strings: a quarter of the stack would be Linux's limit.
const MAX_STRING_BYTES: usize = 64 << 10;

/// Why a stack can't be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackError {
    /// More strings, or longer ones, than fit.
    TooLong {
        /// How many strings.
        strings: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// The range of the stack is taken.
    Map(MapError),
    /// No frame is left for it.
    Fill(FaultError),
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooLong { strings, bytes } => write!(
                f,
                "{strings} arguments and variables of {bytes} bytes, wanted {MAX_STRINGS} each of {MAX_STRING_BYTES} bytes \
                 together"
            ),
            Self::Map(error) => write!(f, "stack: {error}"),
            Self::Fill(error) => write!(f, "stack: {error}"),
        }
    }
}

impl core::error::Error for StackError {}

impl From<FaultError> for StackError {
    fn from(error: FaultError) -> Self {
        Self::Fill(error)
    }
}

/// Linux *include/uapi/linux/auxvec.h*.
mod auxiliary {
    pub(super) const NULL: u64 = 0;
    pub(super) const PHDR: u64 = 3;
    pub(super) const PHENT: u64 = 4;
    pub(super) const PHNUM: u64 = 5;
    pub(super) const PAGESZ: u64 = 6;
    pub(super) const ENTRY: u64 = 9;
    pub(super) const UID: u64 = 11;
    pub(super) const EUID: u64 = 12;
    pub(super) const GID: u64 = 13;
    pub(super) const EGID: u64 = 14;
    pub(super) const SECURE: u64 = 23;
    pub(super) const RANDOM: u64 = 25;
    pub(super) const SYSINFO: u64 = 32;
}

/// A cursor that fills the stack from its top.
struct Stack<'a> {
    space: &'a mut AddressSpace,
    pointer: u64,
    word_bytes: usize,
}

impl Stack<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<u64, StackError> {
        self.pointer -= bytes.len() as u64;
        self.space.write(self.pointer, bytes)?;
        Ok(self.pointer)
    }

    fn push_word(&mut self, word: u64) -> Result<u64, StackError> {
        self.push(&word.to_le_bytes()[..self.word_bytes])
    }

    /// Pushes the strings, each with its NUL; their addresses.
    fn push_strings(&mut self, strings: &[&[u8]]) -> Result<[u64; MAX_STRINGS], StackError> {
        let mut addresses = [0; MAX_STRINGS];
        for (address, string) in addresses.iter_mut().zip(strings) {
            self.push(&[0])?;
            *address = self.push(string)?;
        }
        Ok(addresses)
    }

    /// Pushes the pointers so that the first is lowest, with a null above the last.
    fn push_pointers(&mut self, pointers: &[u64]) -> Result<(), StackError> {
        self.push_word(0)?;
        for &pointer in pointers.iter().rev() {
            self.push_word(pointer)?;
        }
        Ok(())
    }
}

/// Maps the stack of 8 MiB below the first address that the program can't have and fills its top; the first value of RSP, a
/// multiple of 16.
///
/// A 32-bit program finds in `AT_SYSINFO` where it enters the kernel, as on Linux: the page at [`CALL_PAGE_32`], which is for
/// the caller to map.
///
/// The 16 bytes of `AT_RANDOM` come from the time-stamp counter and are no secret: the same program in the same machine
/// shall run the same way each time.
///
/// # Errors
///
/// [`StackError`].
pub fn build_stack(
    space: &mut AddressSpace,
    image: &Image,
    arguments: &[&[u8]],
    environment: &[&[u8]],
) -> Result<u64, StackError> {
    let bytes = arguments.iter().chain(environment).map(|string| string.len() + 1).sum();
    if arguments.len() > MAX_STRINGS || environment.len() > MAX_STRINGS || bytes > MAX_STRING_BYTES {
        return Err(StackError::TooLong {
            strings: arguments.len() + environment.len(),
            bytes,
        });
    }
    space
        .mmap(
            image.limit() - STACK_BYTES,
            STACK_BYTES,
            Protection::READ | Protection::WRITE,
            Placement::FixedNoReplace,
        )
        .map_err(StackError::Map)?;
    let mut stack = Stack {
        space,
        pointer: image.limit(),
        word_bytes: if image.is_32_bit { 4 } else { 8 },
    };
    // A null word ends the stack, as in Linux.
    stack.push_word(0)?;
    let environment_pointers = stack.push_strings(environment)?;
    let argument_pointers = stack.push_strings(arguments)?;
    stack.pointer &= !15;
    // SAFETY: RDTSC reads a counter.
    let seed = unsafe { core::arch::x86_64::_rdtsc() };
    stack.push(&seed.rotate_left(32).to_le_bytes())?;
    let random = stack.push(&seed.to_le_bytes())?;

    let mut auxiliary = [
        (auxiliary::PHDR, image.program_headers),
        (auxiliary::PHENT, image.program_header_bytes()),
        (auxiliary::PHNUM, image.program_header_count),
        (auxiliary::PAGESZ, PAGE_SIZE),
        (auxiliary::ENTRY, image.entry),
        (auxiliary::UID, 0),
        (auxiliary::EUID, 0),
        (auxiliary::GID, 0),
        (auxiliary::EGID, 0),
        (auxiliary::SECURE, 0),
        (auxiliary::RANDOM, random),
        (auxiliary::SYSINFO, CALL_PAGE_32),
        (auxiliary::NULL, 0),
    ];
    if !image.is_32_bit {
        // Nobody looks behind the end.
        let sysinfo = auxiliary.len() - 2;
        auxiliary[sysinfo] = (auxiliary::NULL, 0);
    }
    // PHDR and PHNUM go together: without the first, C libraries crash on the second.
    let auxiliary = if image.program_headers == 0 {
        &auxiliary[3..]
    } else {
        &auxiliary[..]
    };
    let words = 2 * auxiliary.len() + environment.len() + 1 + arguments.len() + 1 + 1;
    while !(stack.pointer - (words * stack.word_bytes) as u64).is_multiple_of(16) {
        stack.push_word(0)?;
    }
    for &(kind, value) in auxiliary.iter().rev() {
        stack.push_word(value)?;
        stack.push_word(kind)?;
    }
    stack.push_pointers(&environment_pointers[..environment.len()])?;
    stack.push_pointers(&argument_pointers[..arguments.len()])?;
    stack.push_word(arguments.len() as u64)
}
