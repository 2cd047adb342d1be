//! Builds the example kernel, boots it in QEMU, tests it and counts what its entry paths execute.

mod bench;
mod build;
mod check;
mod ci;
mod error;
mod iso;
mod machine;
mod progress;
mod run;
mod setup;
mod test;
mod toolchain;
mod workspace;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::error::{Error, Result};

/// Build, boot, test and measure the example kernel.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Find or install what the other verbs need, and say what was found and done
    Setup(setup::Args),
    /// Build the user programs, the kernel, and the archive that carries the programs
    Build(build::Args),
    /// Boot the kernel in QEMU and run one program on it
    Run(run::Args),
    /// Run the host tests, then boot every test image
    Test(test::Args),
    /// Count the instructions and events of each kernel entry path
    Bench(bench::Args),
    /// Make a disc or stick that runs benchmarks and tests on a machine of one's own
    Iso(iso::Args),
    /// Formatting, lints, documentation, oldest compiler, packages and house rules
    Check(check::Args),
    /// `check`, `test`, then `test --ablate all`: what continuous integration runs
    Ci(ci::Args),
}

fn dispatch(cli: &Cli) -> Result<()> {
    match &cli.verb {
        Verb::Setup(args) => setup::run(args),
        Verb::Build(args) => build::run(args),
        Verb::Run(args) => run::run(args),
        Verb::Test(args) => test::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Iso(args) => iso::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Ci(args) => ci::run(args),
    }
}

/// clap's complaint in one line, with the place where help is: that of the verb, if there is one.
fn usage_line(error: &clap::Error, verb: Option<&str>) -> String {
    use clap::CommandFactory;
    let verb = verb.filter(|verb| Cli::command().find_subcommand(verb).is_some());
    let help = verb.map_or_else(|| "--help".to_owned(), |verb| format!("{verb} --help"));
    let text = error.render().to_string();
    let parts: Vec<String> = text
        .split("\n\n")
        .filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more"))
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
        .collect();
    format!("{}; see `cargo xtask {help}`", parts.join("; "))
}

/// Ends this program when nobody reads what it prints any more, which `println!` takes for a panic.
fn end_with_the_output() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        let Some(why) = text.strip_prefix("failed printing to stdout: ") else {
            return usual(info);
        };
        if !why.contains("os error 32") {
            // Standard error may be gone, too; then nothing is left to tell it by.
            let _ = writeln!(std::io::stderr(), "error: cannot write to standard output: {why}");
        }
        // A machine that is running ends with its parent.
        std::process::exit(1);
    }));
}

fn main() -> ExitCode {
    end_with_the_output();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    // Nothing to do when not even help can be printed.
                    let _ = error.print();
                    ExitCode::SUCCESS
                }
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    let _ = error.print();
                    ExitCode::from(2)
                }
                _ => {
                    eprintln!("{}", usage_line(&error, std::env::args().nth(1).as_deref()));
                    ExitCode::from(2)
                }
            };
        }
    };
    match machine::guest::catch_interrupts().and_then(|()| dispatch(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Error::Guest { tail, .. } = &error {
                for line in tail {
                    eprintln!("  | {line}");
                }
            }
            if !matches!(error, Error::Counted) {
                eprintln!("error: {error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn help_has_no_line_that_is_wrapped_again() {
        use clap::CommandFactory;
        for verb in Cli::command().get_subcommands() {
            let text = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", verb.get_name());
            }
        }
    }

    #[test]
    fn unknown_option_points_to_the_help_of_its_verb() {
        let error = Cli::try_parse_from(["xtask", "run", "--cpus"]).unwrap_err();
        let line = usage_line(&error, Some("run"));
        assert!(line.ends_with("; see `cargo xtask run --help`"), "{line}");
    }

    #[test]
    fn unknown_verb_gives_one_line_with_the_remedy() {
        let error = Cli::try_parse_from(["xtask", "bnech"]).unwrap_err();
        let line = usage_line(&error, Some("bnech"));
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(
            line,
            "error: unrecognized subcommand 'bnech'; tip: a similar subcommand exists: 'bench'; \
             see `cargo xtask --help`"
        );
    }
}
