//! `bench --linux`: the same bench program on a Linux kernel in the same emulator.
//!
//! The program is process 1 of an initramfs. When it ends, Linux panics with its exit code and, by
//! `panic=-1`, reboots, which ends the emulator.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::figure::{Figures, Repeat};
use crate::bench::ratio::Ratio;
use crate::build::archive;
use crate::error::{Error, Result};
use crate::machine::guest::Ended;
use crate::toolchain::query;
use crate::workspace::write_whole;

/// The model that Linux is measured on.
pub(crate) const CPU: &str = "Haswell";

/// A kernel command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    /// How reports call it.
    pub(crate) name: &'static str,
    /// How plots do.
    pub(crate) shown: &'static str,
    /// The words.
    words: &'static str,
}

/// What is measured.
pub(crate) const SETTINGS: [Setting; 3] = [
    Setting {
        name: "default",
        shown: "as distributed",
        words: "",
    },
    Setting {
        name: "off",
        shown: "no mitigations",
        words: "mitigations=off",
    },
    Setting {
        name: "lean",
        shown: "optional work off",
        words: "mitigations=off randomize_kstack_offset=off apparmor=0 lsm=yama audit=0 init_on_alloc=0 \
                cgroup_disable=memory",
    },
];

/// One row on Linux, by the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Row name.
    pub(crate) name: String,
    /// Instructions of one operation, in the order of [`SETTINGS`].
    pub(crate) instructions: Vec<Ratio>,
}

/// The kernel's command line for the bench program with these arguments.
pub(crate) fn command_line(setting: Setting, program: &str, arguments: &[String]) -> String {
    format!(
        "console=ttyS0 panic=-1 quiet {} rdinit=/bin/{program} -- {}",
        setting.words,
        arguments.join(" ")
    )
}

/// Writes the initramfs with this one program.
pub(crate) fn write_initramfs(path: &Path, name: &str, program: &Path) -> Result<()> {
    let failed = |source| Error::File {
        action: "pack",
        path: program.to_owned(),
        source,
        remedy: "build again",
    };
    let bytes = std::fs::read(program).map_err(failed)?;
    write_whole(path, &archive::pack_initramfs(name, &bytes).map_err(failed)?)
}

/// A kernel to boot.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Its bzImage.
    pub(crate) path: PathBuf,
    /// Its version, as it says it: `6.1.0-57-cloud-amd64`.
    pub(crate) version: String,
}

impl Kernel {
    /// Looks at the file.
    fn read(path: PathBuf) -> Result<Self> {
        let start = start_of(&path).map_err(|source| Error::File {
            action: "read",
            path: path.clone(),
            source,
            remedy: "give a bzImage that can be read",
        })?;
        match version(&start) {
            Some(version) => Ok(Self { path, version }),
            None => Err(Error::Invalid {
                field: "--linux",
                value: path.display().to_string(),
                why: "which is no bzImage of Linux".to_owned(),
                remedy: "give one, such as /boot/vmlinuz, or no file for the distribution's".to_owned(),
            }),
        }
    }
}

/// The first bytes of a file: Linux's boot protocol keeps its set-up code there, with a header in it.
fn start_of(path: &Path) -> std::io::Result<Vec<u8>> {
    /// As long as the set-up code can be.
    const LONGEST: u64 = 0x8000;
    let mut start = Vec::new();
    std::fs::File::open(path)?.take(LONGEST).read_to_end(&mut start)?;
    Ok(start)
}

/// The kernel's version, by the boot protocol: a signature, and where the text is; `None` if it is no bzImage.
fn version(start: &[u8]) -> Option<String> {
    /// What places in the header are counted from.
    const HEADER: usize = 0x200;
    if start.get(HEADER + 2..HEADER + 6)? != b"HdrS" {
        return None;
    }
    let place = start.get(HEADER + 0xe..HEADER + 0x10)?;
    let place = HEADER + usize::from(u16::from_le_bytes(place.try_into().ok()?));
    let text = std::ffi::CStr::from_bytes_until_nul(start.get(place..)?).ok()?;
    text.to_str().ok()?.split(' ').next().map(str::to_owned)
}

/// The kernel to boot: the given one, or the distribution's, which is downloaded once into `directory`.
pub(crate) fn kernel(given: Option<&Path>, directory: &Path) -> Result<Kernel> {
    match given {
        Some(path) => Kernel::read(path.to_owned()),
        None => Kernel::read(distributed(directory)?),
    }
}

/// The distribution's kernel.
fn distributed(directory: &Path) -> Result<PathBuf> {
    if let Some(found) = unpacked(directory) {
        return Ok(found);
    }
    let missing = |what: &str| Error::Missing {
        what: what.to_owned(),
        remedy: "give a kernel: --linux FILE".to_owned(),
    };
    let depends = query("apt-cache", &["depends", "linux-image-cloud-amd64"]).unwrap_or_default();
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|package| package.starts_with("linux-image-"))
        .ok_or_else(|| missing("a kernel package of the distribution"))?;
    eprintln!("downloading {package}");
    let start = |program: &str, arguments: &[&str]| {
        Command::new(program)
            .args(arguments)
            .current_dir(directory)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    std::fs::create_dir_all(directory).map_err(|source| Error::File {
        action: "make",
        path: directory.to_owned(),
        source,
        remedy: "make the build directory writable",
    })?;
    if !start("apt-get", &["download", package]) {
        return Err(missing("a connection to the distribution's packages"));
    }
    let archive = files(directory)
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| missing("the downloaded kernel package"))?;
    if !start("dpkg-deb", &["-x", &archive.to_string_lossy(), "."]) {
        return Err(missing("a dpkg-deb that unpacks the kernel package"));
    }
    unpacked(directory).ok_or_else(|| missing("a kernel in the downloaded package"))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn unpacked(directory: &Path) -> Option<PathBuf> {
    files(&directory.join("boot")).into_iter().find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    })
}

/// The figures of a boot, which must have ended with the program's success.
pub(crate) fn figures(ended: &Ended) -> Result<Figures> {
    let refused = |what: String| Error::Guest {
        what: format!("no figures of Linux: {what}"),
        tail: ended.tail(),
        remedy: "see all it printed with --verbose".to_owned(),
    };
    let ended_well = ended
        .lines
        .iter()
        .any(|line| line.contains("Attempted to kill init! exitcode=0x00000000"));
    let figures = Figures::read(ended.lines.iter().map(String::as_str)).map_err(|bad| refused(bad.0))?;
    if !figures.failed.is_empty() {
        return Err(refused(figures.failed.join("; ")));
    }
    if !ended_well {
        return Err(refused("the program did not end with success".to_owned()));
    }
    let mut calibration = figures.calibration.iter().map(Repeat::ticks_per_operation);
    if figures.calibration.is_empty() || calibration.any(|left| left != Some(Ratio::ZERO)) {
        return Err(refused("a loop of known length took more or fewer ticks".to_owned()));
    }
    Ok(figures)
}

/// The middle figure of each row: Linux's own tick falls into some of the stretches, shorter and longer ones.
pub(crate) fn middle(figures: &Figures) -> Vec<(String, Ratio)> {
    let middle = |repeats: &[Repeat]| {
        let mut values: Vec<Ratio> = repeats.iter().filter_map(Repeat::ticks_per_operation).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    };
    let rows = figures.rows.iter();
    rows.filter_map(|(name, repeats)| Some((name.clone(), middle(repeats)?)))
        .collect()
}

/// The smaller figure of each row in two boots, which may differ by a hundredth: Linux is never at the same place twice.
pub(crate) fn agreed(mut first: Vec<(String, Ratio)>, second: &[(String, Ratio)]) -> Result<Vec<(String, Ratio)>> {
    /// One part in so many.
    const PART: u32 = 100;
    for (name, figure) in &mut first {
        let other = second.iter().find(|(row, _)| row == name).map(|(_, figure)| *figure);
        let close = other.filter(|other| {
            let (less, more) = (other.as_f64().min(figure.as_f64()), other.as_f64().max(figure.as_f64()));
            (more - less) * f64::from(PART) <= more.abs()
        });
        let Some(other) = close else {
            return Err(Error::Verdict {
                what: format!(
                    "two boots of Linux do not agree on {name}: {figure} and {}",
                    other.map_or_else(|| "nothing".to_owned(), |other| other.to_string())
                ),
                remedy: "try again, on a host with less to do".to_owned(),
            });
        };
        *figure = (*figure).min(other);
    }
    Ok(first)
}

/// Rows with a figure for every setting.
pub(crate) fn join(by_setting: &[Vec<(String, Ratio)>]) -> Vec<Measured> {
    let Some((first, others)) = by_setting.split_first() else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    for (name, figure) in first {
        let mut instructions = vec![*figure];
        for other in others {
            instructions.extend(other.iter().find(|(row, _)| row == name).map(|(_, figure)| *figure));
        }
        if instructions.len() == by_setting.len() {
            rows.push(Measured {
                name: name.clone(),
                instructions,
            });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_go_to_process_1() {
        let line = command_line(SETTINGS[1], "bench", &["--rounds".to_owned(), "4".to_owned()]);
        assert_eq!(
            line,
            "console=ttyS0 panic=-1 quiet mitigations=off rdinit=/bin/bench -- --rounds 4"
        );
    }

    #[test]
    fn middle_repeat_counts_and_rows_need_every_setting() {
        let mut lines = Vec::new();
        for longer in [400, 297, 297, 250, 297] {
            lines.push("[bench] row=a rounds=1 ticks=100 loop=3 ops=1".to_owned());
            lines.push(format!("[bench] row=a rounds=2 ticks={longer} loop=3 ops=1"));
        }
        let one = middle(&Figures::read(lines.iter().map(String::as_str)).unwrap());
        assert_eq!(one, [("a".to_owned(), Ratio::whole(194))]);
        let joined = join(&[one.clone(), one.clone()]);
        assert_eq!(joined[0].instructions, [Ratio::whole(194), Ratio::whole(194)]);
        assert_eq!(join(&[one, Vec::new()]), []);
    }

    #[test]
    fn two_boots_may_differ_by_a_hundredth() {
        let row = |figure| vec![("a".to_owned(), Ratio::whole(figure))];
        assert_eq!(agreed(row(194), &row(194)).unwrap(), row(194));
        assert_eq!(agreed(row(6400), &row(6341)).unwrap(), row(6341));
        assert!(agreed(row(6400), &row(6300)).is_err());
        assert!(agreed(row(194), &[]).is_err());
    }

    #[test]
    fn a_kernel_that_cannot_be_read_is_named() {
        let error = kernel(Some(Path::new("/nonexistent/vmlinuz")), Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /nonexistent/vmlinuz: "));
    }

    #[test]
    fn a_file_that_is_no_kernel_is_refused_before_anything_is_booted() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = kernel(Some(&manifest), Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("which is no bzImage of Linux"), "{error}");
        assert_eq!(version(b"MZ"), None);
        let mut start = vec![0; 0x210];
        start[0x202..0x206].copy_from_slice(b"HdrS");
        start[0x20e] = 0x10;
        assert_eq!(version(&start), None);
        start.extend(b"6.1.0-57-cloud-amd64 (builder@host) #1 SMP\0rest");
        assert_eq!(version(&start).unwrap(), "6.1.0-57-cloud-amd64");
    }
}
