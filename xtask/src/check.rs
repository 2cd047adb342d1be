//! `cargo xtask check`: everything that is known without running the code.

pub(crate) mod house;

use std::path::Path;
use std::process::Stdio;

use crate::error::{Error, Result};
use crate::machine::guest::is_interrupted;
use crate::progress::Progress;
use crate::setup::{Need, Setup};
use crate::test::{Counts, conclude};
use crate::toolchain::{Cargo, GUEST_TARGET, Toolchain};
use crate::workspace::{KERNEL, LIBRARIES, Workspace};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The last line is `N passed, N failed`, with `, N skipped` when a tool is missing.")]
pub(crate) struct Args {}

/// One thing that is checked.
#[derive(Debug)]
struct Gate {
    name: &'static str,
    need: Option<Need>,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// A cargo call that must succeed.
    Cargo(Cargo),
    /// The same in a build directory of its own. What cargo unpacks of a package to verify those that depend on it, it keeps
    /// by name, version and this directory, and would take for the package of today.
    FreshCargo(Cargo),
    /// A house rule: gives the places where it is broken.
    House(fn(&Path) -> std::io::Result<Vec<String>>),
}

fn packages(names: &[&str]) -> Vec<String> {
    names
        .iter()
        .flat_map(|name| ["--package".to_owned(), (*name).to_owned()])
        .collect()
}

fn cargo(toolchain: Toolchain, parts: &[&[String]]) -> Cargo {
    Cargo::new(toolchain, parts.iter().flat_map(|part| part.iter().cloned()))
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

const fn gate(name: &'static str, need: Option<Need>, cargo: Cargo) -> Gate {
    Gate {
        name,
        need,
        action: Action::Cargo(cargo),
    }
}

/// Every gate, cheap ones first.
fn all(workspace: &Workspace) -> Vec<Gate> {
    let libraries = packages(&LIBRARIES);
    let guests = packages(&[KERNEL, &workspace.user_package]);
    let bare = words(&format!("--target {GUEST_TARGET}"));
    let deny = words("-- -D warnings");
    let doc = |mut cargo: Cargo| {
        cargo.deny_doc_warnings = true;
        cargo
    };
    let mut gates = vec![gate(
        "format",
        Some(Need::Lints),
        cargo(Toolchain::Active, &[&words("fmt --all --check")]),
    )];
    for (name, rule) in house::RULES {
        gates.push(Gate {
            name,
            need: None,
            action: Action::House(*rule),
        });
    }
    gates.extend([
        gate(
            "lints on the host",
            Some(Need::Lints),
            cargo(Toolchain::Active, &[&words("clippy --all-targets"), &deny]),
        ),
        gate(
            "lints for x86_64-unknown-none",
            Some(Need::Lints),
            cargo(
                Toolchain::Active,
                &[&words("clippy --lib --bins"), &bare, &libraries, &guests, &deny],
            )
            .in_target(workspace.guest_target())
            .for_guest(),
        ),
        gate(
            "lints of test images",
            Some(Need::NightlyLints),
            cargo(
                Toolchain::nightly(),
                &[&words("clippy --tests --package"), &words(KERNEL), &bare, &deny],
            )
            .in_target(workspace.nightly_target())
            .for_guest(),
        ),
        // The code of the error with which an example must not compile is compared by this compiler alone.
        gate(
            "error codes in documentation",
            Some(Need::NightlyLints),
            cargo(Toolchain::nightly(), &[&words("test --quiet --doc"), &libraries])
                .in_target(workspace.nightly_target()),
        ),
        gate(
            "documentation on the host",
            None,
            doc(cargo(Toolchain::Active, &[&words("doc --no-deps"), &libraries])),
        ),
        gate(
            "documentation for x86_64-unknown-none",
            Some(Need::Guest),
            doc(cargo(
                Toolchain::Active,
                &[&words("doc --no-deps --lib"), &bare, &libraries, &packages(&[KERNEL])],
            )
            .in_target(workspace.guest_target())
            .for_guest()),
        ),
        gate(
            "oldest compiler",
            Some(Need::Oldest),
            cargo(
                Toolchain::Named(workspace.oldest.clone()),
                &[&words("build --target x86_64-unknown-linux-gnu"), &bare, &libraries],
            )
            .in_target(workspace.oldest_target()),
        ),
        Gate {
            name: "packages",
            need: None,
            action: Action::FreshCargo(cargo(Toolchain::Active, &[&words("package --allow-dirty"), &libraries])),
        },
    ]);
    gates
}

/// How one gate ended.
enum Outcome {
    Passed,
    Failed(Vec<String>),
    Skipped(String),
}

fn pass(gate: &Gate, workspace: &Workspace, setup: &mut Setup) -> Result<Outcome> {
    if let Some(need) = gate.need
        && let Err(error) = setup.require(need)
    {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    match &gate.action {
        Action::House(rule) => {
            let broken = rule(&workspace.root).map_err(|source| Error::File {
                action: "read",
                path: workspace.root.clone(),
                source,
                remedy: "restore the files of the repository",
            })?;
            Ok(if broken.is_empty() {
                Outcome::Passed
            } else {
                Outcome::Failed(broken)
            })
        }
        Action::Cargo(cargo) => call(cargo, workspace),
        Action::FreshCargo(cargo) => {
            let target = tempfile::tempdir_in(&workspace.target).map_err(|source| Error::File {
                action: "make a directory in",
                path: workspace.target.clone(),
                source,
                remedy: "make it writable",
            })?;
            call(&cargo.clone().in_target(target.path().to_owned()), workspace)
        }
    }
}

fn call(cargo: &Cargo, workspace: &Workspace) -> Result<Outcome> {
    let output = cargo
        .nested(workspace)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .map_err(|source| cargo.not_started(source))?;
    if is_interrupted() {
        return Err(Error::Interrupted);
    }
    if output.status.success() {
        return Ok(Outcome::Passed);
    }
    let text = [output.stdout, output.stderr].concat();
    let mut lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
    lines.push(format!("`{}` ended with {}", cargo.shown(), output.status));
    Ok(Outcome::Failed(lines))
}

/// Passes every gate and counts. With `strict` a gate that cannot run has failed.
pub(crate) fn gates(strict: bool) -> Result<Counts> {
    let workspace = Workspace::find()?;
    workspace.writable()?;
    let mut setup = Setup::new(&workspace);
    let mut counts = Counts::default();
    for gate in all(&workspace) {
        let progress = Progress::start(format!("checking {}", gate.name));
        let outcome = pass(&gate, &workspace, &mut setup)?;
        let seconds = progress.seconds();
        match outcome {
            Outcome::Passed => {
                counts.passed += 1;
                progress.line(&format!("ok       {} ({seconds:.1} s)", gate.name));
            }
            Outcome::Failed(lines) => {
                counts.failed += 1;
                for line in lines {
                    progress.line(&format!("  | {line}"));
                }
                progress.line(&format!("FAILED   {}", gate.name));
            }
            Outcome::Skipped(why) if strict => {
                counts.failed += 1;
                progress.line(&format!("FAILED   {}: could not run: {why}", gate.name));
            }
            Outcome::Skipped(why) => {
                counts.skipped += 1;
                progress.line(&format!("skipped  {}: {why}", gate.name));
            }
        }
    }
    Ok(counts)
}

/// `cargo xtask check`.
pub(crate) fn run(_: &Args) -> Result<()> {
    conclude(gates(false)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Workspace {
        Workspace {
            root: "/w".into(),
            target: "/w/target".into(),
            user_package: "user".to_owned(),
            programs: Vec::new(),
            test_images: Vec::new(),
            oldest: "1.88".to_owned(),
        }
    }

    fn shown(name: &str) -> String {
        all(&workspace())
            .into_iter()
            .find_map(|gate| match gate.action {
                Action::Cargo(cargo) if gate.name == name => Some(cargo.shown()),
                _ => None,
            })
            .unwrap()
    }

    #[test]
    fn lints_cover_libraries_kernel_and_programs() {
        assert_eq!(
            shown("lints for x86_64-unknown-none"),
            "cargo clippy --lib --bins --target x86_64-unknown-none --package entry-core --package entry-sysret \
             --package entry-sysenter --package context-tracking --package example-os --package user \
             -- -D warnings"
        );
    }

    #[test]
    fn oldest_compiler_builds_the_libraries_both_ways() {
        assert_eq!(
            shown("oldest compiler"),
            "rustup run 1.88 cargo build --target x86_64-unknown-linux-gnu --target x86_64-unknown-none \
             --package entry-core --package entry-sysret --package entry-sysenter --package context-tracking"
        );
    }

    #[test]
    fn test_images_are_linted_by_the_compiler_that_builds_them() {
        assert!(shown("lints of test images").starts_with("rustup run nightly-"));
    }

    #[test]
    fn error_codes_are_compared_by_a_compiler_that_does() {
        assert!(shown("error codes in documentation").starts_with("rustup run nightly-"));
    }

    #[test]
    fn gates_have_names_of_their_own() {
        let gates = all(&workspace());
        for (position, gate) in gates.iter().enumerate() {
            assert!(gates[position + 1..].iter().all(|other| other.name != gate.name));
        }
    }
}
