//! `cargo xtask setup`: finds or installs what the other verbs need.
//!
//! The other verbs ask for their own needs through [`Setup::require`], which is silent and stays away from
//! the network when all is there.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::machine::bochs::{self, Bochs};
use crate::machine::disc::{self, Firmware, Grub};
use crate::machine::{QEMU, Qemu};
use crate::test::browser;
use crate::test::iso::{OVMF_PACKAGES, Ovmf};
use crate::toolchain::{GUEST_TARGET, Installed, NIGHTLY, Piece, Toolchain, install, query};
use crate::workspace::Workspace;

/// Arguments of `setup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Rust pieces come from rustup; emulators from apt as root, else it is asked for on a terminal.")]
pub(crate) struct Args {}

/// The distribution's packages that hold the emulator and its firmware.
const QEMU_PACKAGES: [&str; 2] = ["qemu-system-x86", "seabios"];

/// A set of pieces that a verb needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Build for the guest.
    Guest,
    /// Build test images.
    TestImages,
    /// Lint and format.
    Lints,
    /// Lint test images.
    NightlyLints,
    /// Build with the oldest compiler.
    Oldest,
    /// Read what the compiler made.
    Tools,
}

impl Need {
    const ALL: [Self; 6] = [
        Self::Guest,
        Self::Lints,
        Self::Tools,
        Self::TestImages,
        Self::NightlyLints,
        Self::Oldest,
    ];

    /// The pieces that rustup installs for it.
    fn pieces(self, oldest: &str) -> Vec<Piece> {
        let target = |toolchain| Piece::Target(toolchain, GUEST_TARGET.to_owned());
        let component = |toolchain, name: &str| Piece::Component(toolchain, name.to_owned());
        match self {
            Self::Guest => vec![target(Toolchain::Active)],
            Self::TestImages => vec![Piece::Toolchain(NIGHTLY.to_owned()), target(Toolchain::nightly())],
            Self::Lints => vec![
                component(Toolchain::Active, "rustfmt"),
                component(Toolchain::Active, "clippy"),
            ],
            Self::NightlyLints => vec![
                Piece::Toolchain(NIGHTLY.to_owned()),
                target(Toolchain::nightly()),
                component(Toolchain::nightly(), "clippy"),
            ],
            Self::Oldest => vec![
                Piece::Toolchain(oldest.to_owned()),
                target(Toolchain::Named(oldest.to_owned())),
            ],
            Self::Tools => vec![component(Toolchain::Active, "llvm-tools")],
        }
    }
}

/// What has been found so far.
#[derive(Debug)]
pub(crate) struct Setup {
    installed: Installed,
    oldest: String,
    /// Pieces that were found or installed.
    settled: Vec<Piece>,
    /// Whether to say what was found, not only what was done.
    talkative: bool,
}

impl Setup {
    /// Nothing found yet; silent about what is there.
    pub(crate) fn new(workspace: &Workspace) -> Self {
        Self {
            installed: Installed::default(),
            oldest: workspace.oldest.clone(),
            settled: Vec::new(),
            talkative: false,
        }
    }

    fn found(&self, text: &str) {
        if self.talkative {
            println!("found      {text}");
        }
    }

    /// Makes sure that the pieces for a need are there.
    pub(crate) fn require(&mut self, need: Need) -> Result<()> {
        for piece in need.pieces(&self.oldest) {
            if self.settled.contains(&piece) {
                continue;
            }
            if self.installed.has(&piece) {
                self.found(&piece.name());
                self.settled.push(piece);
                continue;
            }
            eprintln!(
                "installing {} with `rustup {}`",
                piece.name(),
                piece.install().join(" ")
            );
            install(&piece)?;
            self.installed.forget();
            if !self.installed.has(&piece) {
                return Err(Error::Missing {
                    what: piece.name(),
                    remedy: format!(
                        "rustup said that it was installed: see `rustup {}`",
                        piece.install().join(" ")
                    ),
                });
            }
            println!("installed  {}", piece.name());
            self.settled.push(piece);
        }
        Ok(())
    }

    /// Makes sure that the emulator is there.
    pub(crate) fn require_qemu(&self) -> Result<Qemu> {
        if let Some(qemu) = Qemu::find()? {
            self.found(&format!("QEMU {} at {}", qemu.version_text(), qemu.path.display()));
            return Ok(qemu);
        }
        install_packages(QEMU, &QEMU_PACKAGES)?;
        let qemu = Qemu::find()?.ok_or_else(|| missing(QEMU, &QEMU_PACKAGES))?;
        println!("installed  QEMU {} at {}", qemu.version_text(), qemu.path.display());
        Ok(qemu)
    }

    /// Makes sure that the second emulator is there, with what boots a disc in it.
    pub(crate) fn require_bochs(&self) -> Result<Bochs> {
        let packages: Vec<&str> = bochs::PACKAGES.into_iter().chain(disc::PACKAGES).collect();
        self.require_files("Bochs", &packages, Bochs::find, |bochs| {
            format!("Bochs {}, with GRUB to boot it", bochs.version_text())
        })
    }

    /// Makes sure that there is what makes a disc for BIOS and UEFI.
    pub(crate) fn require_grub(&self) -> Result<Grub> {
        let packages: Vec<&str> = disc::PACKAGES.into_iter().chain(disc::UEFI_PACKAGES).collect();
        let find = || Grub::find(Firmware::Any);
        self.require_files("GRUB", &packages, find, |_| "GRUB for BIOS and UEFI".to_owned())
    }

    /// Makes sure that there is UEFI firmware for the emulator.
    pub(crate) fn require_ovmf(&self) -> Result<Ovmf> {
        self.require_files("OVMF", &OVMF_PACKAGES, Ovmf::find, |_| "OVMF, UEFI for QEMU".to_owned())
    }

    /// Makes sure that there is a browser, for the test of the benchmark's page.
    pub(crate) fn require_browser(&self) -> Result<PathBuf> {
        self.require_files("Chromium", &["chromium"], browser::find, |path| {
            format!("browser {}", path.display())
        })
    }

    /// Finds what packages hold, or installs them.
    fn require_files<T>(
        &self,
        what: &str,
        packages: &[&'static str],
        find: impl Fn() -> std::result::Result<T, String>,
        shown: impl Fn(&T) -> String,
    ) -> Result<T> {
        if let Ok(found) = find() {
            self.found(&shown(&found));
            return Ok(found);
        }
        install_packages(what, packages)?;
        let found = find().map_err(|file| missing(&file, packages))?;
        println!("installed  {}", shown(&found));
        Ok(found)
    }
}

/// The command that installs packages, without the part that makes it run as root.
fn apt_words(packages: &[&'static str]) -> Vec<&'static str> {
    let mut words = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    words.extend(packages);
    words
}

fn missing(what: &str, packages: &[&'static str]) -> Error {
    let remedy = if which::which("apt-get").is_ok() {
        format!("run `sudo {}`", apt_words(packages).join(" "))
    } else {
        format!("install what Debian has in {}", packages.join(", "))
    };
    Error::Missing {
        what: what.to_owned(),
        remedy,
    }
}

/// Installs packages where that is allowed: as root, or after asking on a terminal.
fn install_packages(what: &str, packages: &[&'static str]) -> Result<()> {
    if which::which("apt-get").is_err() {
        return Err(missing(what, packages));
    }
    let words = apt_words(packages);
    let prefix: &[&str] = if rustix::process::geteuid().is_root() {
        &[]
    } else if std::io::stdin().is_terminal() && which::which("sudo").is_ok() {
        eprint!("{what} is missing. Run `sudo {}`? [y/N] ", words.join(" "));
        let mut answer = String::new();
        let asked = std::io::stderr()
            .flush()
            .and_then(|()| std::io::stdin().lock().read_line(&mut answer));
        if asked.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(missing(what, packages));
        }
        &["sudo"]
    } else {
        return Err(missing(what, packages));
    };
    eprintln!("installing {what} with `{}`", words.join(" "));
    if run_words(prefix, &words)? {
        return Ok(());
    }
    // The package lists of a fresh machine are empty.
    if run_words(prefix, &["apt-get", "update"])? && run_words(prefix, &words)? {
        return Ok(());
    }
    Err(missing(what, packages))
}

fn run_words(prefix: &[&str], words: &[&str]) -> Result<bool> {
    let all: Vec<&str> = prefix.iter().chain(words).copied().collect();
    let [program, arguments @ ..] = &all[..] else {
        return Ok(false);
    };
    Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(if prefix.is_empty() {
            Stdio::null()
        } else {
            Stdio::inherit()
        })
        .stdout(Stdio::null())
        .status()
        .map(|status| status.success())
        .map_err(|source| Error::Start {
            command: all.join(" "),
            source,
            remedy: "install the packages by hand",
        })
}

/// `cargo xtask setup`.
pub(crate) fn run(_: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let mut setup = Setup::new(&workspace);
    setup.talkative = true;
    let version = query("rustc", &["--version"]).unwrap_or_default();
    setup.found(&format!("{} (active)", version.trim()));
    let mut missing = 0;
    for need in Need::ALL {
        if let Err(error) = setup.require(need) {
            println!("error      {error}");
            missing += 1;
        }
    }
    for found in [
        setup.require_qemu().map(drop),
        setup.require_bochs().map(drop),
        setup.require_grub().map(drop),
        setup.require_ovmf().map(drop),
        setup.require_browser().map(drop),
    ] {
        if let Err(error) = found {
            println!("error      {error}");
            missing += 1;
        }
    }
    if missing == 0 {
        return Ok(());
    }
    Err(Error::Verdict {
        what: "the set-up is not complete".to_owned(),
        remedy: "do what the lines that start with `error` say".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_has_pieces_that_rustup_can_install() {
        for need in Need::ALL {
            let pieces = need.pieces("1.88");
            assert!(!pieces.is_empty());
            for piece in pieces {
                let words = piece.install();
                assert!(words[1] == "add" || words[1] == "install", "{words:?}");
            }
        }
    }

    #[test]
    fn emulator_is_installed_without_questions() {
        assert_eq!(
            apt_words(&QEMU_PACKAGES).join(" "),
            "apt-get install --yes --no-install-recommends qemu-system-x86 seabios"
        );
    }
}
