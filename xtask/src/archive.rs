//! The archive that carries the user programs: newc cpio, which Linux also takes as an initramfs.

use std::io::{self, Write};

use cpio::newc::Builder;

/// A directory, readable by all.
const DIRECTORY: u32 = 0o040_755;
/// A regular file that may be executed.
const PROGRAM: u32 = 0o100_755;

/// Packs programs as `bin/NAME`.
///
/// Owner, time and inode numbers do not depend on the host, so that the same programs give the same archive.
pub(crate) fn pack<'a>(programs: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    out = Builder::new("bin")
        .ino(1)
        .mode(DIRECTORY)
        .nlink(2)
        .write(out, 0)
        .finish()?;
    for (inode, (name, contents)) in (2..).zip(programs) {
        let size = u32::try_from(contents.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name} exceeds 4 GiB")))?;
        let mut writer = Builder::new(&format!("bin/{name}"))
            .ino(inode)
            .mode(PROGRAM)
            .write(out, size);
        writer.write_all(contents)?;
        out = writer.finish()?;
    }
    cpio::newc::trailer(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_names_modes_and_contents() {
        let archive = pack([("init", &b"abc"[..]), ("bench", &b"defgh"[..])]).unwrap();
        let mut rest = &archive[..];
        let mut seen = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut contents = Vec::new();
            io::Read::read_to_end(&mut reader, &mut contents).unwrap();
            seen.push((name, mode, contents));
            rest = reader.finish().unwrap();
        }
        assert_eq!(
            seen,
            [
                ("bin".to_owned(), DIRECTORY, Vec::new()),
                ("bin/init".to_owned(), PROGRAM, b"abc".to_vec()),
                ("bin/bench".to_owned(), PROGRAM, b"defgh".to_vec()),
            ]
        );
    }

    #[test]
    fn starts_with_the_newc_magic_and_is_the_same_each_time() {
        let one = pack([("init", &b"abc"[..])]).unwrap();
        assert_eq!(&one[..6], b"070701");
        assert_eq!(one, pack([("init", &b"abc"[..])]).unwrap());
        assert_eq!(one.len() % 4, 0);
    }
}
