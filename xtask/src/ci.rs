//! `cargo xtask ci`: `check`, `test`, then `test --ablate all`, in one account.

use crate::check;
use crate::error::{Error, Result};
use crate::machine;
use crate::test::ablate;
use crate::test::{self, conclude};

/// Arguments of `ci`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A gate that could not run counts as failed. The last line is `N passed, N failed`.")]
pub(crate) struct Args {
    #[command(flatten)]
    machine: machine::Options,
}

/// `cargo xtask ci`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut counts = check::gates(true)?;
    for (name, outcome) in [
        ("test", test::tests(&test::Args::all(args.machine.clone()))),
        ("test --ablate all", ablate::run(ablate::ALL)),
    ] {
        match outcome {
            Ok(tests) => counts.add(tests),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                println!("FAILED   {name}: {error}");
                counts.failed += 1;
            }
        }
    }
    conclude(counts)
}
