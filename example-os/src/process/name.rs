//! What a process is called, for messages.

use core::fmt;

/// Bytes of a name that are kept.
pub(super) const MAX_NAME_BYTES: usize = 32;

/// A name, cut off at a character's boundary where it is too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    length: usize,
}

impl Name {
    /// No name.
    pub(super) const fn empty() -> Self {
        Self {
            bytes: [0; MAX_NAME_BYTES],
            length: 0,
        }
    }

    /// Keeps as much of `name` as there is room for.
    pub(super) fn new(name: &str) -> Self {
        let mut bytes = [0; MAX_NAME_BYTES];
        let mut length = 0;
        for character in name.chars() {
            let end = length + character.len_utf8();
            let Some(space) = bytes.get_mut(length..end) else { break };
            character.encode_utf8(space);
            length = end;
        }
        Self { bytes, length }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.bytes
                .get(..self.length)
                .and_then(|name| str::from_utf8(name).ok())
                .unwrap_or("?"),
        )
    }
}
