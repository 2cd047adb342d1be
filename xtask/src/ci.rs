//! `cargo xtask ci`: `check`, then `test`, in one account.

use crate::check;
use crate::error::Result;
use crate::machine;
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
    match test::tests(&test::Args::all(args.machine.clone())) {
        Ok(tests) => counts.add(tests),
        Err(crate::error::Error::Interrupted) => return Err(crate::error::Error::Interrupted),
        Err(error) => {
            println!("FAILED   test: {error}");
            counts.failed += 1;
        }
    }
    conclude(counts)
}
