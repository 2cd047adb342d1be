//! Discs that GRUB boots: one kernel at once for Bochs, a menu for people.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::machine::shown;

/// The distribution's packages that hold GRUB for BIOS and what GRUB makes discs with.
pub(crate) const PACKAGES: [&str; 4] = ["grub-common", "grub-pc-bin", "xorriso", "mtools"];

/// The one that holds GRUB for UEFI.
pub(crate) const UEFI_PACKAGES: [&str; 1] = ["grub-efi-amd64-bin"];
/// The disc's name in the place where it is made.
pub(crate) const DISC: &str = "disc.iso";

/// Programs without which there is no disc.
const PROGRAMS: [&str; 3] = ["grub-mkrescue", "xorriso", "mformat"];
/// GRUB for each firmware.
const BIOS: &str = "/usr/lib/grub/i386-pc";
const UEFI: &str = "/usr/lib/grub/x86_64-efi";

/// What starts GRUB from the disc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Firmware {
    /// BIOS alone.
    Bios,
    /// BIOS and UEFI, from a disc or from a stick.
    Any,
}

impl Firmware {
    /// GRUB's modules on the disc.
    const fn modules(self) -> &'static str {
        match self {
            Self::Bios => "multiboot2 normal configfile",
            // GRUB for UEFI looks for every kind of partition, and complains of each module that is not there.
            Self::Any => {
                "multiboot2 normal configfile serial terminal test echo part_acorn part_amiga part_apple part_bsd \
                 part_dfly part_dvh part_plan part_sun part_sunpc"
            }
        }
    }
}

/// GRUB that was found.
#[derive(Debug, Clone)]
pub(crate) struct Grub {
    path: PathBuf,
}

impl Grub {
    /// Looks for everything; the error is the first thing that is not there.
    pub(crate) fn find(firmware: Firmware) -> std::result::Result<Self, String> {
        for program in PROGRAMS {
            if which::which(program).is_err() {
                return Err(program.to_owned());
            }
        }
        for directory in [BIOS, UEFI] {
            if !Path::new(directory).exists() && (directory == BIOS || firmware == Firmware::Any) {
                return Err(directory.to_owned());
            }
        }
        let path = which::which(PROGRAMS[0]).map_err(|_| PROGRAMS[0].to_owned())?;
        Ok(Self { path })
    }

    /// Makes [`DISC`] in `place`, of these files, each with its name on the disc below `/boot`, and of what GRUB is to do.
    pub(crate) fn make(&self, firmware: Firmware, place: &Path, files: &[(String, PathBuf)], menu: &str) -> Result<()> {
        write_tree(place, files, menu).map_err(|source| Error::File {
            action: "make a disc in",
            path: place.to_owned(),
            source,
            remedy: "make it writable and free some room, or set CARGO_TARGET_DIR to another directory",
        })?;
        let mut command = self.command(firmware);
        command.current_dir(place);
        let output = command.output().map_err(|source| Error::Start {
            command: shown(&command),
            source,
            remedy: "run `cargo xtask setup`",
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Command {
            command: shown(&command),
            status: output.status,
            remedy: format!("it said: {}", said.trim().lines().last().unwrap_or("nothing")),
        })
    }

    fn command(&self, firmware: Firmware) -> Command {
        let mut command = Command::new(&self.path);
        if firmware == Firmware::Bios {
            // Otherwise it takes every GRUB that is installed.
            command.args(["-d", BIOS]);
        }
        command
            .args(["--fonts=", "--locales=", "--themes="])
            .arg(format!("--install-modules={}", firmware.modules()))
            .args(["-o", DISC, "disc"])
            .stdin(Stdio::null());
        command
    }
}

fn write_tree(place: &Path, files: &[(String, PathBuf)], menu: &str) -> io::Result<()> {
    let boot = place.join("disc/boot");
    for (name, file) in files {
        let path = boot.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&boot))?;
        fs::copy(file, path)?;
    }
    let folder = boot.join("grub");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("grub.cfg"), menu)
}

/// A directory for a disc, which goes with the value.
pub(crate) fn place(directory: &Path) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("disc-")
        .tempdir_in(directory)
        .map_err(|source| Error::File {
            action: "make a disc in",
            path: directory.to_owned(),
            source,
            remedy: "make it writable, or set CARGO_TARGET_DIR to a directory that is",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(firmware: Firmware) -> String {
        let grub = Grub {
            path: PathBuf::from("grub-mkrescue"),
        };
        shown(&grub.command(firmware))
    }

    #[test]
    fn disc_for_bios_takes_no_other_grub() {
        assert!(line(Firmware::Bios).starts_with("grub-mkrescue -d /usr/lib/grub/i386-pc --fonts= "));
        assert!(!line(Firmware::Any).contains(" -d "));
    }

    #[test]
    fn files_and_menu_are_where_grub_finds_them() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "abc").unwrap();
        write_tree(place.path(), &[("tests/memory".to_owned(), file)], "boot\n").unwrap();
        let read = |name| fs::read_to_string(place.path().join("disc/boot").join(name)).unwrap();
        assert_eq!(read("tests/memory"), "abc");
        assert_eq!(read("grub/grub.cfg"), "boot\n");
    }
}
