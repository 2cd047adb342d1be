//! `cargo xtask test`: host tests, then every test image in the emulator.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::boot_test;
use crate::build::{self, Profile};
use crate::error::{Error, Result};
use crate::guest::is_interrupted;
use crate::machine::{self, AMD_CPU, Accel, Boot, Clock, DEFAULT_CPU, Machine};
use crate::run::model;
use crate::setup::{Need, Setup};
use crate::toolchain::{Cargo, Toolchain};
use crate::workspace::Workspace;

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Images boot on an Intel and on an AMD model, or only on the one that --cpu names.
The last line is `N passed, N failed`, with `, N skipped` when tests could not run here.")]
pub(crate) struct Args {
    /// Only tests whose name contains this; the name of an image takes all its tests
    filter: Option<String>,

    #[command(flatten)]
    machine: machine::Options,
}

impl Args {
    /// Everything, with the defaults: what `ci` runs.
    pub(crate) const fn all(machine: machine::Options) -> Self {
        Self { filter: None, machine }
    }
}

/// How tests ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

impl Counts {
    /// Adds another account.
    pub(crate) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    const fn total(self) -> u32 {
        self.passed + self.failed + self.skipped
    }

    /// The last line of a verb that tests.
    pub(crate) fn line(self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        line
    }
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn result_line(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        rest.split("; ")
            .find_map(|part| part.strip_suffix(word)?.trim().parse().ok())
    };
    Some(Counts {
        passed: number("passed")?,
        failed: number("failed")?,
        skipped: number("ignored")?,
    })
}

/// The cargo call for tests on the host.
fn host_cargo(filter: Option<&str>) -> Cargo {
    let mut words = vec!["test", "--no-fail-fast"];
    if let Some(filter) = filter {
        words.extend(["--", filter]);
    }
    Cargo::new(Toolchain::Active, words)
}

/// Runs the host tests of the default members, documentation examples included.
fn host(workspace: &Workspace, filter: Option<&str>, verbose: bool) -> Result<Counts> {
    let cargo = host_cargo(filter);
    eprintln!("{}", cargo.shown());
    let mut child = cargo
        .nested(workspace)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| cargo.not_started(source))?;
    let mut counts = Counts::default();
    let mut results = 0;
    let mut detail = false;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
            if let Some(result) = result_line(&line) {
                counts.add(result);
                results += 1;
                detail = false;
            }
            // Between the headings of the failures and the result stands what went wrong.
            detail |= line == "failures:";
            let test = line.starts_with("test ") && result_line(&line).is_none();
            let bad = test && line.contains("FAILED");
            if verbose || bad || detail || (test && !line.ends_with("... ok")) {
                println!("{line}");
            }
        }
    }
    let status = child.wait().map_err(|source| cargo.not_started(source))?;
    if is_interrupted() {
        return Err(Error::Interrupted);
    }
    if results == 0 || (!status.success() && counts.failed == 0) {
        // Nothing was built, or a test program died without a result.
        return Err(Error::Command {
            command: cargo.shown(),
            status,
            remedy: "mend what it says above".to_owned(),
        });
    }
    println!("host: {}", counts.line());
    Ok(counts)
}

/// Boots every image on every model.
fn images(workspace: &Workspace, setup: &mut Setup, args: &Args) -> Result<Counts> {
    let filter = args.filter.as_deref();
    let qemu = setup.require_qemu()?;
    let (accel, why) = machine::choose(args.machine.accel)?;
    let mut models = vec![model(&args.machine, accel, &qemu)?];
    if args.machine.cpu.is_none() && accel == Accel::Tcg {
        models = vec![DEFAULT_CPU.to_owned(), AMD_CPU.to_owned()];
    }
    eprintln!("booting on {accel:?} ({why})");
    setup.require(Need::TestImages)?;
    let built = build::build(workspace, setup, Profile::Release)?;
    eprintln!("building test images");
    let mut counts = Counts::default();
    for (name, kernel) in boot_test::build_images(workspace)? {
        let only = filter.filter(|filter| !name.contains(filter));
        // Boundaries are those of the image itself, and are hit by counting instructions.
        let is_sweep = name.starts_with("sweep");
        let archive = if is_sweep {
            let path = workspace.guest_target().join(format!("programs-{name}.cpio"));
            build::write_archive(&path, &built.programs, &kernel)?;
            path
        } else {
            built.archive.clone()
        };
        for cpu in &models {
            let machine = Machine {
                qemu: qemu.clone(),
                accel,
                cpu: cpu.clone(),
                memory: args.machine.memory,
                boot: Boot {
                    kernel: kernel.clone(),
                    archive: Some(archive.clone()),
                    append: String::new(),
                },
                clock: if is_sweep { Clock::Instructions } else { Clock::Host },
                logged: Vec::new(),
            };
            counts.add(boot_test::run_image(&name, &machine, only, &args.machine)?);
        }
    }
    println!("boot: {}", counts.line());
    Ok(counts)
}

/// Runs what the arguments ask for and counts.
pub(crate) fn tests(args: &Args) -> Result<Counts> {
    if let Some(filter) = &args.filter
        && (filter.is_empty() || filter.contains(char::is_whitespace) || filter.starts_with('-'))
    {
        return Err(Error::Invalid {
            field: "the filter",
            value: filter.clone(),
            why: "which is no part of a test's name".to_owned(),
            remedy: "use letters, digits, `_`, `:` and `/`".to_owned(),
        });
    }
    let workspace = Workspace::find()?;
    let mut setup = Setup::new(&workspace);
    workspace.writable()?;
    let mut counts = host(&workspace, args.filter.as_deref(), args.machine.verbose)?;
    counts.add(images(&workspace, &mut setup, args)?);
    if let Some(filter) = &args.filter
        && counts.total() == 0
    {
        return Err(Error::Invalid {
            field: "the filter",
            value: filter.clone(),
            why: "which matches no test".to_owned(),
            remedy: "`cargo xtask test --verbose` names them all".to_owned(),
        });
    }
    Ok(counts)
}

/// The verdict over counts, after their line has been printed.
pub(crate) fn conclude(counts: Counts) -> Result<()> {
    println!("{}", counts.line());
    if counts.failed == 0 {
        return Ok(());
    }
    Err(Error::Verdict {
        what: format!("{} failed", counts.failed),
        remedy: "see the lines with FAILED above".to_owned(),
    })
}

/// `cargo xtask test`.
pub(crate) fn run(args: &Args) -> Result<()> {
    conclude(tests(args)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_result_line_of_cargo_test() {
        assert_eq!(
            result_line(
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s"
            ),
            Some(Counts {
                passed: 3,
                failed: 0,
                skipped: 1
            })
        );
        assert_eq!(
            result_line(
                "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
            ),
            Some(Counts {
                passed: 1,
                failed: 2,
                skipped: 0
            })
        );
        assert_eq!(result_line("test frame::tests::size ... ok"), None);
    }

    #[test]
    fn last_line_names_skipped_tests_when_there_are_any() {
        let mut counts = Counts {
            passed: 4,
            failed: 0,
            skipped: 0,
        };
        assert_eq!(counts.line(), "4 passed, 0 failed");
        counts.skipped = 2;
        assert_eq!(counts.line(), "4 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn filter_goes_to_the_test_programs() {
        assert_eq!(host_cargo(Some("frame")).shown(), "cargo test --no-fail-fast -- frame");
        assert_eq!(host_cargo(None).shown(), "cargo test --no-fail-fast");
    }
}
