//! Tests that run on the host, in three passes.
//!
//! First those of all default members, documentation examples included. Then, optimised, the tests that the
//! first pass left out because they look at optimised code. Then the models of concurrent code, which need a
//! compiler flag that makes their atomics those of the model checker.

use crate::error::{Error, Result};
use crate::test::Counts;
use crate::toolchain::{Cargo, Toolchain};
use crate::workspace::{LIBRARIES, Workspace};

/// Why a test is ignored in a build without optimisation.
const NEEDS_OPTIMISATION: &str = "needs an optimised build";
/// The package with models, and the `cfg` that builds them.
const MODELS: (&str, &str) = ("context-tracking", "loom");

/// What one pass printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pass {
    counts: Counts,
    /// How many test programs came to their result.
    programs: u32,
    /// Tests that wait for the optimised pass.
    waiting: Vec<String>,
    /// Between the headings of the failures and the result.
    in_failures: bool,
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

impl Pass {
    /// Takes a line of a test program; says whether it is to be seen by one who only wants what is not well.
    fn take(&mut self, line: &str) -> bool {
        if let Some(result) = result_line(line) {
            self.counts.add(result);
            self.programs += 1;
            let shown = self.in_failures;
            self.in_failures = false;
            return shown;
        }
        self.in_failures |= line == "failures:";
        let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) else {
            return self.in_failures;
        };
        if outcome.ends_with(NEEDS_OPTIMISATION) {
            self.waiting.push(name.to_owned());
            return false;
        }
        outcome != "ok"
    }
}

fn cargo(words: &[&str], filter: &[&str]) -> Cargo {
    let mut all = words.to_vec();
    if !filter.is_empty() {
        all.push("--");
        all.extend(filter);
    }
    Cargo::new(Toolchain::Active, all)
}

fn everything(filter: &[&str]) -> Cargo {
    cargo(&["test", "--no-fail-fast"], filter)
}

fn optimised(names: &[String]) -> Cargo {
    let mut words = vec!["test", "--no-fail-fast", "--release", "--tests"];
    for library in LIBRARIES {
        words.extend(["--package", library]);
    }
    let mut filter = vec!["--exact"];
    filter.extend(names.iter().map(String::as_str));
    cargo(&words, &filter)
}

fn models(workspace: &Workspace, filter: &[&str]) -> Cargo {
    let words = ["test", "--no-fail-fast", "--release", "--lib", "--package", MODELS.0];
    cargo(&words, filter)
        .in_target(workspace.target.join(MODELS.1))
        .with_cfg(MODELS.1)
}

/// Runs one pass, showing what is not well, or everything.
fn pass(cargo: &Cargo, workspace: &Workspace, verbose: bool) -> Result<Pass> {
    eprintln!("{}", cargo.shown());
    let mut pass = Pass::default();
    let status = cargo.lines(workspace, &mut |line| {
        if pass.take(line) || verbose {
            println!("{line}");
        }
    })?;
    if pass.programs == 0 || (!status.success() && pass.counts.failed == 0) {
        // Nothing was built, or a test program died without a result.
        return Err(Error::Command {
            command: cargo.shown(),
            status,
            remedy: "mend what it says above".to_owned(),
        });
    }
    Ok(pass)
}

/// Runs all passes.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>, verbose: bool) -> Result<Counts> {
    let filter: Vec<&str> = filter.into_iter().collect();
    let first = pass(&everything(&filter), workspace, verbose)?;
    let mut counts = first.counts;
    if !first.waiting.is_empty() {
        let second = pass(&optimised(&first.waiting), workspace, verbose)?;
        let ran = second.counts.passed + second.counts.failed;
        counts.skipped = counts.skipped.saturating_sub(ran);
        counts.add(second.counts);
    }
    counts.add(pass(&models(workspace, &filter), workspace, verbose)?.counts);
    println!("host: {}", counts.line());
    Ok(counts)
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
    fn shows_what_is_not_well_and_nothing_else() {
        let mut pass = Pass::default();
        let lines = [
            ("running 3 tests", false),
            ("test a ... ok", false),
            ("test b ... FAILED", true),
            ("test c ... ignored, no such CPU", true),
            ("test d ... ignored, needs an optimised build", false),
            ("", false),
            ("failures:", true),
            ("---- b stdout ----", true),
            ("thread 'b' panicked", true),
            (
                "test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out",
                true,
            ),
            ("running 0 tests", false),
        ];
        for (line, wanted) in lines {
            assert_eq!(pass.take(line), wanted, "{line}");
        }
        assert_eq!(pass.waiting, ["d"]);
        assert_eq!((pass.counts.passed, pass.counts.failed, pass.counts.skipped), (1, 1, 2));
        assert_eq!(pass.programs, 1);
    }

    #[test]
    fn filter_goes_to_the_test_programs() {
        assert_eq!(everything(&["frame"]).shown(), "cargo test --no-fail-fast -- frame");
        assert_eq!(everything(&[]).shown(), "cargo test --no-fail-fast");
    }

    #[test]
    fn optimised_pass_runs_the_named_tests_and_no_others() {
        assert_eq!(
            optimised(&["a::b".to_owned()]).shown(),
            "cargo test --no-fail-fast --release --tests --package entry-core --package entry-sysret \
             --package entry-sysenter --package context-tracking -- --exact a::b"
        );
    }
}
