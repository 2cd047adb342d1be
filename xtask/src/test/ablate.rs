//! `cargo xtask test --ablate`: takes one guard away at a time, and demands that its test notices.
//!
//! A crate lists its guards in `tests/ablations.txt`: name, test file (`boot/FILE` for a test of the kernel), test. A guard is left out of a build that has
//! `--cfg ablate="NAME"`. The flag goes to the crates of this workspace alone, by a wrapper around the compiler with a path
//! of its own for each guard; cargo counts that path among what a build depends on, so nothing stale is ever run, and what
//! others wrote is compiled once for all guards.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::build::{self, Profile, executables};
use crate::error::{Error, Result, closest};
use crate::machine::guest::{self, NoLog, REBOOT, is_interrupted};
use crate::machine::{Accel, Boot, Clock, DEFAULT_CPU, Machine};
use crate::progress::Progress;
use crate::setup::{Need, Setup};
use crate::test::{Counts, counts_instructions};
use crate::toolchain::{Cargo, GUEST_TARGET, Toolchain};
use crate::workspace::{KERNEL, LIBRARIES, Workspace, write_whole};

/// Asks for every guard there is.
pub(crate) const ALL: &str = "all";
/// Where a crate lists its guards.
pub(crate) const LISTING: &str = "tests/ablations.txt";
/// No test of a guard takes as long, unless it hangs without the guard.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a waiting thread looks at the clock and for Ctrl-C.
const TURN: Duration = Duration::from_millis(10);

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guard {
    /// The crate that has it.
    pub(crate) package: &'static str,
    /// Its name: the value of the `cfg`.
    pub(crate) name: String,
    /// File of the test, without folder and ending.
    pub(crate) file: String,
    /// Name of the test.
    pub(crate) test: String,
}

impl Guard {
    /// The test image, when the test runs in the kernel.
    fn image(&self) -> Option<&str> {
        self.file.strip_prefix("boot/")
    }
}

/// Reads a listing: three words a line; `#` starts a comment.
pub(crate) fn parse(package: &'static str, text: &str) -> std::result::Result<Vec<Guard>, String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [name, file, test] => Ok(Guard {
                package,
                name: name.to_owned(),
                file: file.to_owned(),
                test: test.to_owned(),
            }),
            _ => Err(line.to_owned()),
        })
        .collect()
}

/// Every guard of every crate.
fn listed(root: &Path) -> Result<Vec<Guard>> {
    let mut guards = Vec::new();
    for package in LIBRARIES.into_iter().chain([KERNEL]) {
        let path = root.join(package).join(LISTING);
        // A crate without guards has no listing; `check` compares the listings with the sources.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        guards.extend(parse(package, &text).map_err(|line| Error::Unexpected {
            what: "a list of guards",
            line,
            wanted: "`GUARD FILE TEST`",
            remedy: "mend the tests/ablations.txt that has it",
        })?);
    }
    Ok(guards)
}

/// The guards that `--ablate` names.
fn chosen(guards: Vec<Guard>, wanted: &str) -> Result<Vec<Guard>> {
    if wanted == ALL {
        return Ok(guards);
    }
    let names: BTreeSet<String> = guards.iter().map(|guard| guard.name.clone()).collect();
    let found: Vec<Guard> = guards.into_iter().filter(|guard| guard.name == wanted).collect();
    if found.is_empty() {
        return Err(Error::Invalid {
            field: "--ablate",
            value: wanted.to_owned(),
            why: "which is no guard".to_owned(),
            remedy: format!(
                "use `{ALL}`, or one of {} in the files named ablations.txt, such as {}",
                names.len(),
                closest(wanted, names.iter().map(String::as_str)).join(", ")
            ),
        });
    }
    Ok(found)
}

/// The compiler's wrapper that leaves a guard out.
fn wrapper_text(name: &str) -> String {
    format!("#!/bin/sh\nexec \"$@\" --cfg 'ablate=\"{name}\"'\n")
}

fn wrapper(target: &Path, name: &str) -> Result<PathBuf> {
    let directory = target.join("guards");
    let path = directory.join(name);
    let text = wrapper_text(name);
    if fs::read_to_string(&path).is_ok_and(|found| found == text) {
        return Ok(path);
    }
    fs::create_dir_all(&directory)
        .and_then(|()| fs::metadata(&directory))
        .map_err(|source| Error::File {
            action: "make",
            path: directory,
            source,
            remedy: "make the build directory writable",
        })?;
    write_whole(&path, text.as_bytes())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|source| Error::File {
        action: "make executable",
        path: path.clone(),
        source,
        remedy: "build in a directory of your own",
    })?;
    Ok(path)
}

/// Builds the program of one test file, with a guard left out or as it is.
fn build(workspace: &Workspace, guard: &Guard, without: Option<&Path>) -> Result<PathBuf> {
    let (package, file) = match guard.image() {
        Some(image) => (KERNEL, image),
        None => (guard.package, guard.file.as_str()),
    };
    let words = [
        "test",
        "--quiet",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
        "--package",
        package,
        "--test",
        file,
    ];
    let cargo = if guard.image().is_some() {
        let words = words.into_iter().chain(["--release", "--target", GUEST_TARGET]);
        Cargo::new(Toolchain::nightly(), words)
            .in_target(workspace.nightly_target())
            .for_guest()
    } else {
        Cargo::new(Toolchain::Active, words).in_target(target(workspace))
    };
    let mut command = cargo.nested(workspace);
    command
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_INCREMENTAL", "0");
    match without {
        Some(wrapper) => command.env("RUSTC_WORKSPACE_WRAPPER", wrapper),
        None => command.env_remove("RUSTC_WORKSPACE_WRAPPER"),
    };
    let output = command.output().map_err(|source| cargo.not_started(source))?;
    if is_interrupted() {
        return Err(Error::Interrupted);
    }
    let failed = || Error::Command {
        command: cargo.shown(),
        status: output.status,
        remedy: String::from_utf8_lossy(&output.stderr)
            .lines()
            .find(|line| line.starts_with("error"))
            .unwrap_or("mend what the compiler says")
            .to_owned(),
    };
    if !output.status.success() {
        return Err(failed());
    }
    executables(&String::from_utf8_lossy(&output.stdout))
        .into_iter()
        .find_map(|(name, path)| (name == file).then_some(path))
        .ok_or_else(failed)
}

fn target(workspace: &Workspace) -> PathBuf {
    workspace.target.join("ablate")
}

/// How one test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Passed,
    Failed,
    /// There is no such test, or it is ignored.
    NotRun,
    Hung,
}

/// What the output of a test program that was asked for one test means.
fn ending(output: &str, succeeded: bool) -> Ending {
    let ran = output.lines().any(|line| line == "running 1 test");
    let ignored = output
        .lines()
        .any(|line| line.starts_with("test ") && line.contains(" ... ignored"));
    match (ran && !ignored, succeeded) {
        (false, _) => Ending::NotRun,
        (true, true) => Ending::Passed,
        // A program that a signal ended says no more than the first line.
        (true, false) => Ending::Failed,
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only when the child is gone already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_one(program: &Path, test: &str, directory: &Path) -> Result<Ending> {
    let not_started = |source| Error::Start {
        command: program.display().to_string(),
        source,
        remedy: "build in a directory whose files may be executed",
    };
    let mut child = Killed(
        Command::new(program)
            .args(["--exact", test])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(not_started)?,
    );
    let output = child.0.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        // What cannot be read is missing in the text, which then is no proof.
        let _ = output.map(|mut output| output.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(not_started)? {
            break status;
        }
        if is_interrupted() {
            return Err(Error::Interrupted);
        }
        if start.elapsed() > LIMIT {
            return Ok(Ending::Hung);
        }
        thread::sleep(TURN);
    };
    Ok(ending(&reader.join().unwrap_or_default(), status.success()))
}

/// Boots a test image for one of its tests.
fn boot_one(workspace: &Workspace, image: &str, kernel: PathBuf, test: &str) -> Result<Ending> {
    let mut setup = Setup::new(workspace);
    let qemu = setup.require_qemu()?;
    setup.require(Need::TestImages)?;
    let built = build::build(workspace, &mut setup, Profile::Release)?;
    let archive = workspace.guest_target().join("programs-ablated.cpio");
    build::write_archive(&archive, &built.programs, &kernel)?;
    let machine = Machine {
        qemu,
        accel: Accel::Tcg,
        cpu: DEFAULT_CPU.to_owned(),
        memory: 256,
        boot: Boot {
            kernel,
            archive: Some(archive),
            append: format!("only={test}"),
        },
        clock: if counts_instructions(image) {
            Clock::Instructions
        } else {
            Clock::Host
        },
        logged: Vec::new(),
        on_cpu: None,
    };
    let ended = guest::boot(&machine, 2 * LIMIT, &mut NoLog, &mut |_| ())?;
    let said = |verb: &str| ended.lines.iter().any(|line| *line == format!("[test] {verb} {test}"));
    // A test that is expected to panic ends the machine so that it is booted again.
    let ends_well = ended.is_success() || ended.status() == Some(REBOOT);
    Ok(match (said("begin"), ends_well) {
        (true, true) if said("ok") => Ending::Passed,
        (_, true) | (false, false) => Ending::NotRun,
        // A machine that hangs or resets without the guard does not pass either.
        (true, false) => Ending::Failed,
    })
}

fn run_test(workspace: &Workspace, guard: &Guard, program: PathBuf) -> Result<Ending> {
    match guard.image() {
        Some(image) => boot_one(workspace, image, program, &guard.test),
        None => run_one(&program, &guard.test, &workspace.root.join(guard.package)),
    }
}

/// What is wrong with a guard or its test; `None` when the test passes with it and fails without it.
fn wrong(workspace: &Workspace, guard: &Guard) -> Result<Option<String>> {
    let whole = build(workspace, guard, None)?;
    match run_test(workspace, guard, whole)? {
        Ending::Passed => {}
        Ending::Failed => return Ok(Some("its test fails with the guard in place".to_owned())),
        Ending::NotRun => return Ok(Some(format!("{}.rs runs no test of that name", guard.file))),
        Ending::Hung => return Ok(Some("its test hangs".to_owned())),
    }
    let without = match build(workspace, guard, Some(&wrapper(&target(workspace), &guard.name)?)) {
        Ok(program) => program,
        Err(error @ Error::Command { .. }) => return Ok(Some(format!("does not build without it: {error}"))),
        Err(error) => return Err(error),
    };
    Ok(match run_test(workspace, guard, without)? {
        Ending::Failed => None,
        Ending::Passed => Some("its test passes without it".to_owned()),
        Ending::NotRun => Some("its test is not there without it".to_owned()),
        Ending::Hung => Some(format!("its test hangs without it, for {} s", LIMIT.as_secs())),
    })
}

/// Takes the named guard away, or each in turn.
pub(crate) fn run(wanted: &str) -> Result<Counts> {
    let workspace = Workspace::find()?;
    let guards = chosen(listed(&workspace.root)?, wanted)?;
    workspace.writable()?;
    let mut counts = Counts::default();
    for guard in &guards {
        let progress = Progress::start(format!("without {}", guard.name));
        let wrong = wrong(&workspace, guard)?;
        let shown = format!("{} of {}: {}::{}", guard.name, guard.package, guard.file, guard.test);
        match wrong {
            None => {
                counts.passed += 1;
                progress.line(&format!("ok       without {shown} fails ({:.1} s)", progress.seconds()));
            }
            Some(why) => {
                counts.failed += 1;
                progress.line(&format!("FAILED   without {shown}: {why}"));
            }
        }
    }
    println!("guards: {}", counts.line());
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_has_three_words_a_line_and_comments() {
        let text = "# guards\n\nrip hazards refuses_a_kernel_rip\n";
        assert_eq!(
            parse("entry-sysret", text).unwrap(),
            [Guard {
                package: "entry-sysret",
                name: "rip".to_owned(),
                file: "hazards".to_owned(),
                test: "refuses_a_kernel_rip".to_owned(),
            }]
        );
        assert_eq!(parse("entry-sysret", "rip test\n"), Err("rip test".to_owned()));
    }

    #[test]
    fn unknown_guard_gives_one_line_with_the_nearest_ones() {
        let guards = parse("entry-sysret", "rip hazards a\nrcx hazards b\nrip hazards c\n").unwrap();
        let error = chosen(guards.clone(), "rpi").unwrap_err().to_string();
        let start =
            "--ablate is `rpi`, which is no guard; use `all`, or one of 2 in the files named ablations.txt, such as r";
        assert!(error.starts_with(start), "{error}");
        assert_eq!(chosen(guards.clone(), "rip").unwrap().len(), 2);
        assert_eq!(chosen(guards, ALL).unwrap().len(), 3);
    }

    #[test]
    fn only_a_test_that_ran_can_fail() {
        let ran = "\nrunning 1 test\ntest a ... FAILED\n";
        assert_eq!(ending(ran, false), Ending::Failed);
        assert_eq!(ending("running 1 test\n", false), Ending::Failed);
        assert_eq!(ending("running 1 test\ntest a ... ok\n", true), Ending::Passed);
        assert_eq!(ending("running 0 tests\n", true), Ending::NotRun);
        assert_eq!(ending("", false), Ending::NotRun);
        assert_eq!(
            ending("running 1 test\ntest a ... ignored, no such CPU\n", true),
            Ending::NotRun
        );
    }

    #[test]
    fn wrapper_adds_the_cfg_and_hands_on_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let path = wrapper(directory.path(), "some-guard").unwrap();
        let output = Command::new(path).args(["echo", "a b"]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "a b --cfg ablate=\"some-guard\"\n"
        );
    }
}
