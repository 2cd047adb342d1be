//! The listings of the main rows that are kept: a change that moves one shows what it moved.
//!
//! What a compiler makes of the same source is another thing with each version, and what the kernel runs depends on
//! what the emulated CPU has. So listings are kept for a compiler's version and QEMU's major version; others are skipped.

use std::fs;
use std::path::{Path, PathBuf};

use similar::TextDiff;

use crate::bench::listing;
use crate::bench::{self, Plan};
use crate::build::Built;
use crate::error::{Error, Result};
use crate::machine::{self, Qemu};
use crate::progress::Progress;
use crate::test::Counts;
use crate::toolchain::query;
use crate::workspace::{Workspace, write_whole};

/// Whose listings are kept.
const ROWS: [&str; 9] = [
    "syscall/null/floor",
    "syscall/null/full",
    "syscall/null/lean",
    "syscall/null/full-clear",
    "syscall/null/kpti",
    "syscall/null/int80",
    "syscall/getppid",
    "exception/user",
    "interrupt/user",
];
/// Where they are, from the repository's root.
const DIRECTORY: &str = "xtask/golden";

/// The test's name for a row, for filters.
fn name(row: &str) -> String {
    format!("listing::{row}")
}

/// The compiler's version as it says it: `rustc 1.95.0 (59807616e 2026-04-14)`.
fn version(text: &str) -> Option<&str> {
    text.strip_prefix("rustc ")?.split_ascii_whitespace().next()
}

/// The file of a row's listing.
fn file(directory: &Path, row: &str) -> PathBuf {
    directory.join(format!("{}.txt", row.replace('/', "-")))
}

/// What is different, in the form of a patch; `None` when nothing is.
fn difference(kept: &str, executed: &str) -> Option<String> {
    (kept != executed).then(|| {
        TextDiff::from_lines(kept, executed)
            .unified_diff()
            .header("kept", "executed")
            .to_string()
    })
}

/// The listings of these rows, by one boot.
fn listings(built: &Built, qemu: &Qemu, rows: &[&str], options: &machine::Options) -> Result<Vec<String>> {
    let (mut code, recorder) = bench::read_code(built)?;
    let plan = Plan::counting(built, qemu, options);
    let progress = Progress::start("logging the main rows");
    let (ended, figures, stretches) = bench::logged_run(&plan, rows, &code, recorder, &progress)?;
    code.read_generated(ended.lines.iter().map(String::as_str));
    drop(progress);
    let listing = |row: &&str| {
        let (round, _) = bench::round_of(row, &figures, &stretches)?;
        Ok(listing::lasting(round, &code))
    };
    rows.iter().map(listing).collect()
}

/// Compares what is executed with what is kept, or keeps it.
pub(crate) fn run(
    workspace: &Workspace,
    built: &Built,
    qemu: &Qemu,
    filter: Option<&str>,
    bless: bool,
    options: &machine::Options,
) -> Result<Counts> {
    let mut counts = Counts::default();
    let wanted = |row: &&str| filter.is_none_or(|filter| name(row).contains(filter));
    let rows: Vec<&str> = ROWS.into_iter().filter(wanted).collect();
    if rows.is_empty() {
        return Ok(counts);
    }
    let said = query("rustc", &["--version"]).unwrap_or_default();
    let Some(compiler) = version(&said) else {
        return Err(Error::Missing {
            what: "the version of rustc".to_owned(),
            remedy: "put the rustc that cargo calls into PATH".to_owned(),
        });
    };
    let key = format!("rustc-{compiler}-qemu-{}", qemu.version.0);
    let directory = workspace.root.join(DIRECTORY).join(&key);
    if !directory.is_dir() && !bless {
        for row in &rows {
            println!(
                "skipped  {}: no listings of {key} are kept; `cargo xtask test --bless` adds them",
                name(row)
            );
            counts.skipped += 1;
        }
        return Ok(counts);
    }
    if bless {
        fs::create_dir_all(&directory).map_err(|source| Error::File {
            action: "make",
            path: directory.clone(),
            source,
            remedy: "make the repository writable",
        })?;
    }
    for (row, executed) in rows.iter().zip(listings(built, qemu, &rows, options)?) {
        let path = file(&directory, row);
        // A listing that is not there differs from any.
        let kept = fs::read_to_string(&path).unwrap_or_default();
        match difference(&kept, &executed) {
            None => counts.passed += 1,
            Some(_) if bless => {
                write_whole(&path, executed.as_bytes())?;
                println!("written  {}", path.display());
                counts.passed += 1;
            }
            Some(difference) => {
                println!("FAILED   {}: another path is executed than {key} has", name(row));
                print!("{difference}");
                println!("if it is meant to be: `cargo xtask test --bless`");
                counts.failed += 1;
            }
        }
    }
    println!("listings: {}", counts.line());
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row;

    #[test]
    fn version_is_the_second_word() {
        assert_eq!(version("rustc 1.95.0 (59807616e 2026-04-14)\n"), Some("1.95.0"));
        assert_eq!(version("rustc 1.97.0-nightly (x 2026-05-19)"), Some("1.97.0-nightly"));
        assert_eq!(version("clang 19"), None);
    }

    #[test]
    fn every_listing_is_of_a_row_that_is_timed_anyway() {
        for name in ROWS {
            assert!(row::find(name).is_some_and(|row| !row.on_request), "{name}");
        }
    }

    #[test]
    fn every_kept_directory_has_every_listing_and_no_other() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
        let directories: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!directories.is_empty());
        for directory in directories {
            let mut found: Vec<_> = fs::read_dir(&directory)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            let mut wanted: Vec<_> = ROWS.iter().map(|row| file(&directory, row)).collect();
            found.sort();
            wanted.sort();
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn a_moved_instruction_is_shown() {
        let text = difference(
            "f+0x0  push rax\nf+0x1  ret\n",
            "f+0x0  push rax\nf+0x1  nop\nf+0x2  ret\n",
        )
        .unwrap();
        assert!(text.contains("\n-f+0x1  ret\n+f+0x1  nop\n+f+0x2  ret\n"), "{text}");
        assert_eq!(difference("same\n", "same\n"), None);
    }
}
