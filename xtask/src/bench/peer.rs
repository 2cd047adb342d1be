//! `bench --peers`: published crates for the same purpose, each in an image of its own in `xtask/peers`.
//!
//! Same emulator, same clock, same loops in user mode; what differs is the crate. The images are no part of the
//! workspace, and print the lines of the bench program.

use std::path::PathBuf;

use crate::bench::figure::{Figures, Repeat};
use crate::bench::ratio::Ratio;
use crate::build::executables;
use crate::error::{Error, Result};
use crate::setup::{Need, Setup};
use crate::toolchain::{Cargo, GUEST_TARGET, Toolchain};
use crate::workspace::Workspace;

/// One image.
#[derive(Debug, Clone, Copy)]
struct Peer {
    /// Its package.
    package: &'static str,
    /// What it uses, as published.
    shown: &'static str,
    /// Whether it needs a feature that only nightly compilers have.
    nightly: bool,
    /// Its rows, each with the row that does the same here.
    rows: &'static [(&'static str, &'static str)],
}

const PEERS: [Peer; 3] = [
    Peer {
        package: "peer-trapframe",
        shown: "trapframe 0.11.0, `run` in a loop",
        nightly: false,
        rows: &[
            ("peer/trapframe/null", "syscall/null/full"),
            ("peer/trapframe/undefined", "exception/user"),
        ],
    },
    Peer {
        package: "peer-ax-cpu",
        shown: "ax-cpu 0.10.3, `run_unchecked` in a loop",
        nightly: false,
        rows: &[
            ("peer/ax-cpu/null", "syscall/null/full"),
            ("peer/ax-cpu/int80", "syscall/null/int80"),
            ("peer/ax-cpu/undefined", "exception/user"),
        ],
    },
    Peer {
        package: "peer-x86-interrupt",
        shown: "x86_64 0.15.5, handlers of the x86-interrupt convention: no SWAPGS, no general registers",
        nightly: true,
        rows: &[
            ("peer/x86-interrupt/breakpoint", "exception/user"),
            ("peer/x86-interrupt/undefined", "exception/user"),
        ],
    },
];

/// One peer's figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Row name.
    pub(crate) name: &'static str,
    /// What was used.
    pub(crate) shown: &'static str,
    /// The row that does the same here.
    pub(crate) beside: &'static str,
    /// Instructions of one operation.
    pub(crate) instructions: Ratio,
}

/// An image that was built.
#[derive(Debug)]
pub(crate) struct Image {
    peer: Peer,
    /// Its ELF file.
    pub(crate) kernel: PathBuf,
}

/// The cargo call that builds an image.
fn cargo(peer: &Peer, workspace: &Workspace) -> Cargo {
    let toolchain = if peer.nightly {
        Toolchain::nightly()
    } else {
        Toolchain::Active
    };
    let manifest = workspace.root.join("xtask/peers/Cargo.toml");
    let words = [
        "build",
        "--manifest-path",
        &manifest.to_string_lossy(),
        "--package",
        peer.package,
        "--release",
        "--locked",
        "--target",
        GUEST_TARGET,
        "--message-format",
        "json-render-diagnostics",
    ]
    .map(str::to_owned);
    Cargo::new(toolchain, words)
        .in_target(workspace.target.join("peers"))
        .for_guest()
}

/// Builds every image.
pub(crate) fn build(workspace: &Workspace, setup: &mut Setup) -> Result<Vec<Image>> {
    setup.require(Need::TestImages)?;
    let mut images = Vec::new();
    for peer in PEERS {
        eprintln!("building {}", peer.package);
        let kernel = executables(&cargo(&peer, workspace).output(workspace)?)
            .into_iter()
            .find_map(|(name, file)| (name == peer.package).then_some(file))
            .ok_or_else(|| Error::Missing {
                what: format!("the executable of {}", peer.package),
                remedy: "restore xtask/peers from the repository".to_owned(),
            })?;
        images.push(Image { peer, kernel });
    }
    Ok(images)
}

/// The figures of two boots of an image, which must agree and be whole.
pub(crate) fn judge(image: &Image, first: &Figures, second: &Figures) -> Result<Vec<Measured>> {
    let refused = |what: String| Error::Verdict {
        what: format!("no figures of {}: {what}", image.peer.package),
        remedy: "see what it printed with --verbose".to_owned(),
    };
    if first != second {
        return Err(refused("two boots do not agree".to_owned()));
    }
    let mut calibration = first.calibration.iter().map(Repeat::ticks_per_operation);
    if first.calibration.is_empty() || calibration.any(|left| left != Some(Ratio::ZERO)) {
        return Err(refused("a loop of known length took more or fewer ticks".to_owned()));
    }
    let mut measured = Vec::new();
    for &(name, beside) in image.peer.rows {
        let repeats = first
            .rows
            .iter()
            .find(|(row, _)| row == name)
            .map(|(_, repeats)| repeats);
        let figures: Option<Vec<Ratio>> =
            repeats.and_then(|repeats| repeats.iter().map(Repeat::ticks_per_operation).collect());
        let Some([one, others @ ..]) = figures.as_deref() else {
            return Err(refused(format!("it has no row {name}")));
        };
        if others.iter().any(|other| other != one) {
            return Err(refused(format!("the repeats of {name} differ")));
        }
        measured.push(Measured {
            name,
            shown: image.peer.shown,
            beside,
            instructions: *one,
        });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ticks: u64, left: u64) -> Figures {
        let mut lines = vec![
            "[bench] calibration rounds=1 ticks=14 loop=10".to_owned(),
            format!("[bench] calibration rounds=2 ticks={} loop=10", 24 + left),
        ];
        for row in ["null", "undefined"] {
            lines.push(format!(
                "[bench] row=peer/trapframe/{row} rounds=1 ticks=100 loop=3 ops=1"
            ));
            lines.push(format!(
                "[bench] row=peer/trapframe/{row} rounds=2 ticks={ticks} loop=3 ops=1"
            ));
        }
        Figures::read(lines.iter().map(String::as_str)).unwrap()
    }

    fn image() -> Image {
        Image {
            peer: PEERS[0],
            kernel: PathBuf::new(),
        }
    }

    #[test]
    fn agreeing_boots_give_a_figure_for_each_row() {
        let measured = judge(&image(), &figures(194, 0), &figures(194, 0)).unwrap();
        assert_eq!(measured.len(), 2);
        assert_eq!(measured[0].instructions, Ratio::whole(91));
        assert_eq!(measured[0].beside, "syscall/null/full");
    }

    #[test]
    fn differing_boots_and_a_wrong_clock_are_refused() {
        assert!(judge(&image(), &figures(194, 0), &figures(195, 0)).is_err());
        assert!(judge(&image(), &figures(194, 1), &figures(194, 1)).is_err());
    }

    #[test]
    fn every_row_stands_beside_one_of_ours() {
        for peer in PEERS {
            for (name, beside) in peer.rows {
                assert!(name.starts_with("peer/"));
                assert!(crate::bench::row::find(beside).is_some(), "{beside}");
            }
        }
    }
}
