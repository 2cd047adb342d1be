//! Tests that run in the kernel: one image a file, one boot an image, and one more for each test that
//! ends the machine.
//!
//! A verdict needs the final line *and* the exit code that goes with it. A test that panics when it should
//! not, hangs or resets the machine is failed here, and the image is booted again behind it.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::machine::guest::{Ended, REBOOT};
use crate::progress::Progress;
use crate::test::Counts;
use crate::toolchain::{Cargo, GUEST_TARGET, Toolchain};
use crate::workspace::{KERNEL, Workspace};

/// Exit code for "the tests of this boot are over, some failed".
const TESTS_FAILED: i32 = 37;
const SUCCESS: i32 = 33;

/// What a serial line says about a test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line<'a> {
    Begin(&'a str),
    Ok(&'a str),
    Fail(&'a str, &'a str),
    Ignored(&'a str, &'a str),
    Reboot(u32),
    Final { passed: u32, failed: u32, ignored: u32 },
}

fn split(rest: &str) -> (&str, &str) {
    rest.split_once(": ").unwrap_or((rest, ""))
}

fn parse(line: &str) -> Option<Line<'_>> {
    if let Some(rest) = line.strip_prefix("[test] ") {
        let (verb, rest) = rest.split_once(' ')?;
        return match verb {
            "begin" => Some(Line::Begin(rest)),
            "ok" => Some(Line::Ok(rest)),
            "fail" => Some(split(rest)).map(|(name, why)| Line::Fail(name, why)),
            "ignored" => Some(split(rest)).map(|(name, why)| Line::Ignored(name, why)),
            _ => None,
        };
    }
    let rest = line.strip_prefix("[tests] ")?;
    if let Some(from) = rest.strip_prefix("reboot from=") {
        return from.trim().parse().ok().map(Line::Reboot);
    }
    let mut numbers = rest.split(", ").map(|part| part.split_once(' '));
    let mut next = |word: &str| match numbers.next() {
        Some(Some((number, found))) if found == word => number.parse().ok(),
        _ => None,
    };
    Some(Line::Final {
        passed: next("passed")?,
        failed: next("failed")?,
        ignored: next("ignored")?,
    })
}

/// One boot's account.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    counts: Counts,
    /// Index of the test after the last one that began.
    next: u32,
    /// A test that began and has not ended.
    running: Option<String>,
    reboot: Option<u32>,
    final_line: Option<(u32, u32, u32)>,
}

impl Account {
    fn new(from: u32) -> Self {
        Self {
            next: from,
            ..Self::default()
        }
    }

    /// Takes a line; gives what to show of it.
    fn take(&mut self, line: &str) -> Option<String> {
        match parse(line)? {
            Line::Begin(name) => {
                self.next += 1;
                self.running = Some(name.to_owned());
                None
            }
            Line::Ok(name) => {
                self.counts.passed += 1;
                self.running = None;
                Some(format!("ok       {name}"))
            }
            Line::Fail(name, why) => {
                self.counts.failed += 1;
                self.running = None;
                Some(format!("FAILED   {name}: {why}"))
            }
            Line::Ignored(name, why) => {
                self.counts.skipped += 1;
                self.running = None;
                Some(format!("skipped  {name}: {why}"))
            }
            Line::Reboot(from) => {
                self.reboot = Some(from);
                None
            }
            Line::Final {
                passed,
                failed,
                ignored,
            } => {
                self.final_line = Some((passed, failed, ignored));
                None
            }
        }
    }

    /// Where to go on, and what is wrong with the end of the boot.
    fn verdict(&self, from: u32, status: Option<i32>, trouble: &str) -> (Option<u32>, Option<String>) {
        let counted = (self.counts.passed, self.counts.failed, self.counts.skipped);
        match (status, self.final_line, self.reboot) {
            (Some(SUCCESS), Some(said), None) if said == counted && self.counts.failed == 0 => (None, None),
            (Some(TESTS_FAILED), Some(said), None) if said == counted && self.counts.failed > 0 => (None, None),
            (Some(SUCCESS | TESTS_FAILED), Some(said), None) => (
                None,
                Some(format!(
                    "the final line counts {said:?}, the lines before it {counted:?}, and the status is {status:?}"
                )),
            ),
            (Some(REBOOT), _, Some(next)) if next > from => (Some(next), None),
            (_, _, None) if self.next > from => {
                // Whatever ended the machine, tests that come after it still have their turn.
                let next = Some(self.next);
                match &self.running {
                    Some(name) => (next, Some(format!("{name}: {trouble}"))),
                    // The failure has been counted by its own line.
                    None if self.counts.failed > 0 => (next, None),
                    None => (next, Some(trouble.to_owned())),
                }
            }
            _ => (None, Some(trouble.to_owned())),
        }
    }
}

/// The names of the tests in an image's source: of the functions in `tests!`, which say no type of what they take.
fn names_in(source: &str) -> Vec<String> {
    let lines = source
        .lines()
        .skip_while(|line| !line.starts_with("example_os::tests! {"));
    let name = |line: &str| {
        let (name, rest) = line.strip_prefix("    fn ")?.split_once('(')?;
        let is_one = rest
            .strip_suffix(") {")
            .is_some_and(|suite| !suite.contains([':', ',']));
        is_one.then(|| name.to_owned())
    };
    lines.filter_map(name).collect()
}

/// The images that have tests to run, each with the names of all its tests.
///
/// Without a filter, these are all images; with one, those whose name or one of whose tests' names contains it; with the
/// name of an image, that one. Found in the sources: to build or to boot an image takes much longer.
pub(crate) fn matching(workspace: &Workspace, filter: Option<&str>) -> Result<Vec<(String, Vec<String>)>> {
    let mut images = Vec::new();
    for image in &workspace.test_images {
        let path = workspace.root.join(KERNEL).join("tests").join(format!("{image}.rs"));
        let source = std::fs::read_to_string(&path).map_err(|source| Error::File {
            action: "read",
            path,
            source,
            remedy: "restore it from the repository",
        })?;
        images.push((image.clone(), names_in(&source)));
    }
    if let Some(filter) = filter {
        if images.iter().any(|(image, _)| image == filter) {
            images.retain(|(image, _)| image == filter);
        } else {
            images.retain(|(image, tests)| std::iter::once(image).chain(tests).any(|name| name.contains(filter)));
        }
    }
    images.sort();
    Ok(images)
}

/// The cargo call that builds these test images.
fn cargo(workspace: &Workspace, images: &[&str]) -> Cargo {
    let mut words = vec!["test", "--package", KERNEL];
    words.extend(images.iter().flat_map(|image| ["--test", image]));
    words.extend(["--target", GUEST_TARGET, "--release", "--no-run"]);
    words.extend(["--message-format", "json-render-diagnostics"]);
    Cargo::new(Toolchain::nightly(), words)
        .in_target(workspace.nightly_target())
        .for_guest()
}

/// Builds these images: name and ELF file, in the order of their names.
pub(crate) fn build_images(workspace: &Workspace, images: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut built = crate::build::executables(&cargo(workspace, images).output(workspace)?);
    built.retain(|(name, _)| images.contains(&name.as_str()));
    built.sort();
    Ok(built)
}

/// Boots with a command line, and shows each serial line.
pub(crate) type Start<'a> = dyn Fn(String, &mut dyn FnMut(&str)) -> Result<Ended> + 'a;

/// Boots one image until all its tests have had their turn.
///
/// `boot` boots it on `model` with a command line. `known` are the names that its tests should have. `filter` is for
/// names of tests; `None` runs all of them.
pub(crate) fn run_image(
    name: &str,
    model: &str,
    known: &[String],
    filter: Option<&str>,
    verbose: bool,
    boot: &Start<'_>,
) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut from = 0;
    let progress = Progress::start(format!("booting {name} on {model}"));
    loop {
        let mut words = Vec::new();
        if from > 0 {
            words.push(format!("from={from}"));
        }
        words.extend(filter.map(|filter| format!("only={filter}")));
        let mut account = Account::new(from);
        let mut unknown = Vec::new();
        let ended = boot(words.join(" "), &mut |line| {
            if verbose {
                progress.line(line);
            } else {
                progress.note(line);
            }
            if let Some(Line::Begin(test)) = parse(line)
                && !known.iter().any(|name| name == test)
            {
                unknown.push(test.to_owned());
            }
            if let Some(shown) = account.take(line) {
                progress.line(&format!("{name} [{model}] {shown}"));
            }
        })?;
        let (next, wrong) = account.verdict(from, ended.status(), &ended.trouble());
        counts.add(account.counts);
        if (wrong.is_some() || account.counts.failed > 0) && !verbose {
            // The lines of the failing test alone name it; what the guest said before is why.
            for line in ended.tail() {
                progress.line(&format!("  | {line}"));
            }
        }
        for test in unknown {
            counts.failed += 1;
            progress.line(&format!(
                "{name} [{model}] FAILED   {test}: is not found in the source, so that no filter would run it"
            ));
        }
        if let Some(wrong) = wrong {
            counts.failed += 1;
            progress.line(&format!("{name} [{model}] FAILED   {wrong}"));
        }
        match next {
            Some(next) => from = next,
            None => return Ok(counts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(from: u32, lines: &[&str]) -> Account {
        let mut account = Account::new(from);
        for line in lines {
            let _ = account.take(line);
        }
        account
    }

    #[test]
    fn names_of_tests_are_those_of_functions_without_types_in_the_macro() {
        let source = "fn before(x) {\n}\nexample_os::tests! { Machine;\n    /// Text.\n    fn one_way(machine) {\n        \
                      fn inner(a) {\n    }\n    #[should_panic = \"x\"]\n    fn other(_machine) {\n    fn typed(a: u8) {\n}\n";
        assert_eq!(names_in(source), ["one_way", "other"]);
    }

    #[test]
    fn filter_takes_an_image_by_its_name_or_those_with_a_test_of_that_name() {
        let workspace = Workspace::find().unwrap();
        let all = matching(&workspace, None).unwrap();
        assert_eq!(all.len(), workspace.test_images.len());
        for (image, tests) in &all {
            assert!(!tests.is_empty(), "{image} has no test");
        }
        let names = |filter| -> Vec<String> {
            let found = matching(&workspace, Some(filter)).unwrap();
            found.into_iter().map(|(image, _)| image).collect()
        };
        assert_eq!(names("irqs_on"), ["irqs_on"]);
        assert_eq!(names("sweep_d"), ["sweep_debug"]);
        let (image, tests) = &all[0];
        assert!(names(&tests[0]).contains(image));
        assert_eq!(names("listing::syscall"), Vec::<String>::new());
    }

    #[test]
    fn only_the_images_that_are_wanted_are_built() {
        let workspace = Workspace::find().unwrap();
        let shown = cargo(&workspace, &["boot", "memory"]).shown();
        assert!(
            shown.contains("test --package example-os --test boot --test memory --target "),
            "{shown}"
        );
    }

    #[test]
    fn all_good_needs_final_line_and_exit_code() {
        let good = account(
            0,
            &[
                "[test] begin a",
                "[test] ok a",
                "[test] ignored b: needs AMD",
                "[tests] 1 passed, 0 failed, 1 ignored",
            ],
        );
        assert_eq!(good.verdict(0, Some(SUCCESS), ""), (None, None));
        assert_eq!((good.counts.passed, good.counts.skipped), (1, 1));
        assert!(good.verdict(0, Some(TESTS_FAILED), "").1.is_some());
        assert_eq!(good.verdict(0, Some(0), "reset"), (Some(1), Some("reset".to_owned())));
    }

    #[test]
    fn silence_is_a_failure() {
        let silent = account(0, &[]);
        assert_eq!(
            silent.verdict(0, Some(SUCCESS), "silent"),
            (None, Some("silent".to_owned()))
        );
    }

    #[test]
    fn final_line_that_counts_otherwise_is_a_failure() {
        let odd = account(
            0,
            &["[test] begin a", "[test] ok a", "[tests] 2 passed, 0 failed, 0 ignored"],
        );
        assert!(odd.verdict(0, Some(SUCCESS), "").1.is_some());
    }

    #[test]
    fn expected_panic_is_booted_again_behind_it() {
        let panicked = account(2, &["[test] begin c", "[test] ok c", "[tests] reboot from=3"]);
        assert_eq!(panicked.verdict(2, Some(REBOOT), ""), (Some(3), None));
    }

    #[test]
    fn reboot_that_does_not_advance_is_a_failure() {
        let stuck = account(3, &["[tests] reboot from=3"]);
        assert_eq!(
            stuck.verdict(3, Some(REBOOT), "again"),
            (None, Some("again".to_owned()))
        );
    }

    #[test]
    fn unwanted_panic_is_counted_once_and_the_rest_still_runs() {
        let panicked = account(
            0,
            &[
                "[test] begin a",
                "[test] ok a",
                "[test] begin b",
                "[test] fail b: panicked at x",
            ],
        );
        assert_eq!(panicked.counts.failed, 1);
        assert_eq!(panicked.verdict(0, Some(35), "the kernel panicked"), (Some(2), None));
    }

    #[test]
    fn hang_names_the_test_that_was_running() {
        let hung = account(0, &["[test] begin a"]);
        assert_eq!(
            hung.verdict(0, None, "did not end"),
            (Some(1), Some("a: did not end".to_owned()))
        );
    }

    #[test]
    fn lines_of_others_are_left_alone() {
        assert_eq!(parse("[boot] memory"), None);
        assert_eq!(parse("[tests] nonsense"), None);
        assert_eq!(
            parse("[test] fail a::b: left: 1, right: 2"),
            Some(Line::Fail("a::b", "left: 1, right: 2"))
        );
    }
}
