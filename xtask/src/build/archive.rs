//! The archive that carries the user programs: newc cpio, which Linux also takes as an initramfs.

use std::io::{self, Write};

use cpio::newc::Builder;

/// A directory, readable by all.
const DIRECTORY: u32 = 0o040_755;
/// A regular file that may be executed.
const PROGRAM: u32 = 0o100_755;
/// A regular file.
const FILE: u32 = 0o100_644;

/// Packs programs as `bin/NAME`, and the boundaries of the image that is to have the archive as `etc/boundaries`.
///
/// Owner, time and inode numbers do not depend on the host, so that the same programs give the same archive.
pub(crate) fn pack<'a>(
    programs: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    boundaries: Option<&str>,
) -> io::Result<Vec<u8>> {
    let mut members = vec![("bin".to_owned(), DIRECTORY, &[][..])];
    for (name, contents) in programs {
        members.push((format!("bin/{name}"), PROGRAM, contents));
    }
    if let Some(text) = boundaries {
        members.push(("etc".to_owned(), DIRECTORY, &[][..]));
        members.push(("etc/boundaries".to_owned(), FILE, text.as_bytes()));
    }
    let mut out = Vec::new();
    for (inode, (name, mode, contents)) in (1..).zip(members) {
        let size = u32::try_from(contents.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name} exceeds 4 GiB")))?;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let mut writer = Builder::new(&name).ino(inode).mode(mode).nlink(links).write(out, size);
        writer.write_all(contents)?;
        out = writer.finish()?;
    }
    cpio::newc::trailer(out)
}

/// Packs one program as `bin/NAME` for Linux, with the console that process 1 writes to.
pub(crate) fn pack_initramfs(name: &str, program: &[u8]) -> io::Result<Vec<u8>> {
    /// A character device.
    const DEVICE: u32 = 0o020_600;
    let size = u32::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name} exceeds 4 GiB")))?;
    let directory = |name: &str, inode| Builder::new(name).ino(inode).mode(DIRECTORY).nlink(2);
    let mut out = directory("dev", 1).write(Vec::new(), 0).finish()?;
    let console = Builder::new("dev/console").ino(2).mode(DEVICE).nlink(1);
    out = console.rdev_major(5).rdev_minor(1).write(out, 0).finish()?;
    out = directory("bin", 3).write(out, 0).finish()?;
    let file = Builder::new(&format!("bin/{name}")).ino(4).mode(PROGRAM).nlink(1);
    let mut writer = file.write(out, size);
    writer.write_all(program)?;
    cpio::newc::trailer(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_names_modes_and_contents() {
        let archive = pack([("init", &b"abc"[..]), ("bench", &b"defgh"[..])], Some("fn 1 a\n")).unwrap();
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
                ("etc".to_owned(), DIRECTORY, Vec::new()),
                ("etc/boundaries".to_owned(), FILE, b"fn 1 a\n".to_vec()),
            ]
        );
    }

    #[test]
    fn starts_with_the_newc_magic_and_is_the_same_each_time() {
        let one = pack([("init", &b"abc"[..])], None).unwrap();
        assert_eq!(&one[..6], b"070701");
        assert_eq!(one, pack([("init", &b"abc"[..])], None).unwrap());
        assert_eq!(one.len() % 4, 0);
    }

    #[test]
    fn initramfs_has_a_console_before_the_program() {
        let archive = pack_initramfs("bench", b"abc").unwrap();
        let mut rest = &archive[..];
        let mut seen = Vec::new();
        loop {
            let reader = cpio::newc::Reader::new(rest).unwrap();
            let entry = reader.entry();
            if entry.is_trailer() {
                break;
            }
            seen.push((entry.name().to_owned(), entry.rdev_major(), entry.rdev_minor()));
            rest = reader.finish().unwrap();
        }
        let names: Vec<&str> = seen.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["dev", "dev/console", "bin", "bin/bench"]);
        assert_eq!((seen[1].1, seen[1].2), (5, 1));
    }
}
