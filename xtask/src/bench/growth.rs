//! How the instructions of an operation grow with what there is of something: pages mapped, processes, memory that they
//! work on, exceptions within exceptions. None of these may make an operation longer.

use std::collections::BTreeSet;
use std::thread;

use crate::bench::Plan;
use crate::bench::figure::{Figures, Repeat};
use crate::bench::plot::{Series, digits};
use crate::bench::row::Row;
use crate::error::{Error, Result};
use crate::machine::{Boot, Machine};
use crate::progress::Progress;

/// Numbers of pages that are mapped by default: 16 and 64 MiB.
const PAGES: [u32; 2] = [4096, 16_384];
/// And with `--full`: 256 MiB and 1 GiB.
const MORE_PAGES: [u32; 2] = [65_536, 262_144];
/// And where there is a plot.
const PLOTTED_PAGES: [u32; 6] = [32, 128, 512, 2048, 8192, 32_768];
/// Rounds of a series that needs no more.
const ROUNDS: u32 = 128;

/// What there is more and more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Pages that are mapped, one in each operation.
    Pages,
    /// Processes in a ring of pipes.
    Processes,
    /// KiB that a process reads at its turn.
    WorkingSet,
    /// Exceptions in the kernel, each in the handler of the one before.
    Nesting,
}

impl Over {
    /// What is counted.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Processes => "processes",
            Self::WorkingSet => "KiB",
            Self::Nesting => "levels",
        }
    }

    /// The heading of a plot.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Self::Pages => "Growth with the pages mapped",
            Self::Processes => "Growth with the processes in the ring",
            Self::WorkingSet => "Growth with the memory that a process works on",
            Self::Nesting => "Growth with exceptions within exceptions",
        }
    }

    /// So many more instructions an operation may take with the most than with the least.
    const fn most_more(self) -> f64 {
        match self {
            // With fewer pages than a page table has entries, no operation has its share of one.
            Self::Pages => 3.0,
            Self::Processes | Self::WorkingSet => 0.0,
            // All handlers but the innermost have INT3 and what comes behind it.
            Self::Nesting => 2.0,
        }
    }

    /// So many more are what a slope is given for.
    const fn step(self) -> u32 {
        match self {
            Self::Pages => 1000,
            Self::Processes | Self::WorkingSet | Self::Nesting => 1,
        }
    }
}

/// A series of the bench program's own rows, which differ in nothing else.
struct Sizes {
    over: Over,
    /// The row whose operation it is.
    of: &'static str,
    /// How the report calls it.
    name: &'static str,
    /// How many, and the row with so many.
    rows: &'static [(u32, &'static str)],
}

const SIZES: [Sizes; 3] = [
    Sizes {
        over: Over::Processes,
        of: "switch/pipe/2p-0k/trampoline",
        name: "switch/pipe/…-16k/trampoline",
        rows: &[
            (2, "switch/pipe/2p-16k/trampoline"),
            (8, "switch/pipe/8p-16k/trampoline"),
            (16, "switch/pipe/16p-16k/trampoline"),
        ],
    },
    Sizes {
        over: Over::WorkingSet,
        of: "switch/pipe/2p-0k/trampoline",
        name: "switch/pipe/2p-…/trampoline",
        rows: &[
            (0, "switch/pipe/2p-0k/trampoline"),
            (16, "switch/pipe/2p-16k/trampoline"),
            (64, "switch/pipe/2p-64k/trampoline"),
        ],
    },
    Sizes {
        over: Over::Nesting,
        of: "exception/kernel",
        name: "exception/kernel",
        rows: &[
            (1, "exception/kernel"),
            (2, "exception/kernel@2"),
            (4, "exception/kernel@4"),
            (8, "exception/kernel@8"),
        ],
    },
];

/// Instructions of an operation over what there is of something.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    /// Of what.
    pub(crate) over: Over,
    /// How many, and the instructions.
    pub(crate) series: Series,
}

impl Growth {
    fn ends(&self) -> Option<[(f64, f64); 2]> {
        let (first, last) = (self.series.points.first()?, self.series.points.last()?);
        (first.0 < last.0).then_some([*first, *last])
    }

    /// Instructions of an operation for one more.
    pub(crate) fn slope(&self) -> Option<f64> {
        let [first, last] = self.ends()?;
        Some((last.1 - first.1) / (last.0 - first.0))
    }

    /// How much it grows, in words.
    pub(crate) fn words(&self) -> Option<String> {
        let ([first, last], slope) = (self.ends()?, self.slope()?);
        let (step, unit) = (self.over.step(), self.over.unit());
        let more = if step == 1 {
            "one more".to_owned()
        } else {
            format!("{step} more")
        };
        Some(format!(
            "{}: {} at {} {unit}, {} at {}; {:+.3} for {more}",
            self.series.name,
            digits(first.1),
            first.0,
            digits(last.1),
            last.0,
            // Thousandths, without a minus before a zero.
            (slope * f64::from(step) * 1000.0).round() / 1000.0 + 0.0
        ))
    }

    /// What is wrong, if an operation is longer where there is more.
    pub(crate) fn failure(&self) -> Option<String> {
        let [first, last] = self.ends()?;
        (last.1 > first.1 + self.over.most_more()).then(|| {
            format!(
                "{}: {} instructions at {} {}, but {} at {}",
                self.series.name,
                digits(last.1),
                last.0,
                self.over.unit(),
                digits(first.1),
                first.0
            )
        })
    }
}

/// Which series are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The larger mappings, too.
    pub(crate) is_full: bool,
    /// As many points as a plot needs.
    pub(crate) is_plotted: bool,
}

/// Numbers of pages to map, from the smallest on.
fn pages(wanted: Wanted) -> Vec<u32> {
    let mut pages: BTreeSet<u32> = PAGES.into();
    if wanted.is_full {
        pages.extend(MORE_PAGES);
    }
    if wanted.is_plotted {
        pages.extend(PLOTTED_PAGES);
    }
    pages.into_iter().collect()
}

/// The figure of a row.
pub(crate) fn figure(figures: &Figures, name: &str) -> Option<f64> {
    let (_, repeats) = figures.rows.iter().find(|(row, _)| row == name)?;
    Some(repeats.first().and_then(Repeat::ticks_per_operation)?.as_f64())
}

/// One boot with these rows.
pub(crate) fn boot(plan: &Plan, rounds: u32, names: &[&str], progress: &Progress) -> Result<Figures> {
    let machine = Machine {
        boot: Boot {
            append: plan.command_line(rounds, 1, names),
            ..plan.machine.boot.clone()
        },
        ..plan.machine.clone()
    };
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| plan.counted(&machine, progress));
        (plan.counted(&machine, progress), second.join())
    });
    let Ok(second) = second else {
        unreachable!("a boot does not panic");
    };
    agreed(first?, &second?)
}

/// The figures that two boots agree on; refuses others.
fn agreed(first: Figures, second: &Figures) -> Result<Figures> {
    if first.rows == second.rows {
        Ok(first)
    } else {
        Err(Error::Verdict {
            what: "two boots of a series do not agree".to_owned(),
            remedy: "see what they print with --verbose".to_owned(),
        })
    }
}

/// The series of the rows that were measured.
pub(crate) fn measure(plan: &Plan, rows: &[&Row], wanted: Wanted) -> Result<Vec<Growth>> {
    let mapping: Vec<&str> = rows.iter().filter(|row| row.maps_pages).map(|row| row.name).collect();
    let sizes: Vec<&Sizes> = SIZES
        .iter()
        .filter(|sizes| rows.iter().any(|row| row.name == sizes.of))
        .collect();
    if mapping.is_empty() && sizes.is_empty() {
        return Ok(Vec::new());
    }
    let progress = Progress::start("booting twice for each number of pages, and twice for the other series");
    let mut all = Vec::new();
    if !mapping.is_empty() {
        let mut points = vec![Vec::new(); mapping.len()];
        for pages in pages(wanted) {
            let figures = boot(plan, pages / 2, &mapping, &progress)?;
            for (points, name) in points.iter_mut().zip(&mapping) {
                points.extend(figure(&figures, name).map(|each| (f64::from(pages), each)));
            }
        }
        all.extend(mapping.iter().zip(points).map(|(&name, points)| Growth {
            over: Over::Pages,
            series: Series {
                name: name.to_owned(),
                points,
            },
        }));
    }
    if !sizes.is_empty() {
        let names: BTreeSet<&str> = sizes
            .iter()
            .flat_map(|sizes| sizes.rows.iter().map(|(_, name)| *name))
            .collect();
        let names: Vec<&str> = names.into_iter().collect();
        let figures = boot(plan, ROUNDS, &names, &progress)?;
        for sizes in sizes {
            let point = |(size, name): &(u32, &str)| Some((f64::from(*size), figure(&figures, name)?));
            all.push(Growth {
                over: sizes.over,
                series: Series {
                    name: sizes.name.to_owned(),
                    points: sizes.rows.iter().filter_map(point).collect(),
                },
            });
        }
    }
    // A machine that skips a row has no series of it.
    all.retain(|growth| growth.ends().is_some());
    Ok(all)
}

/// A series as a sample, for tests of what shows it.
pub(crate) fn sample(over: Over, name: &str, points: &[(f64, f64)]) -> Growth {
    Growth {
        over,
        series: Series {
            name: name.to_owned(),
            points: points.to_vec(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row;

    #[test]
    fn slope_is_said_in_words_for_as_many_as_matter() {
        let pages = sample(Over::Pages, "a", &[(0.0, 10.0), (1000.0, 12.0)]);
        assert_eq!(
            pages.words().unwrap(),
            "a: 10 at 0 pages, 12 at 1000; +2.000 for 1000 more"
        );
        let levels = sample(Over::Nesting, "b", &[(1.0, 90.0), (4.0, 93.0), (8.0, 93.5)]);
        assert_eq!(
            levels.words().unwrap(),
            "b: 90 at 1 levels, 93.5 at 8; +0.500 for one more"
        );
        assert_eq!(levels.slope(), Some(0.5));
        let less = sample(Over::Pages, "c", &[(4096.0, 10.000_01), (16_384.0, 10.0)]);
        assert_eq!(
            less.words().unwrap(),
            "c: 10 at 4096 pages, 10 at 16384; +0.000 for 1000 more"
        );
    }

    #[test]
    fn one_that_grows_by_more_than_is_explained_fails() {
        let fails = |over, most| sample(over, "a", &[(2.0, 500.0), (16.0, most)]).failure().is_some();
        assert!(!fails(Over::Processes, 500.0) && !fails(Over::Processes, 400.0) && fails(Over::Processes, 500.5));
        assert!(!fails(Over::WorkingSet, 500.0) && fails(Over::WorkingSet, 500.5));
        assert!(!fails(Over::Nesting, 502.0) && fails(Over::Nesting, 502.5));
        assert!(!fails(Over::Pages, 503.0) && fails(Over::Pages, 503.5));
        assert_eq!(
            sample(Over::Processes, "a", &[(2.0, 500.0), (16.0, 501.5)])
                .failure()
                .unwrap(),
            "a: 501.5 instructions at 16 processes, but 500 at 2"
        );
    }

    #[test]
    fn boots_that_differ_give_no_series() {
        let figures = |ticks| {
            let lines = [
                "[bench] row=a rounds=10 ticks=655 loop=3 ops=1".to_owned(),
                format!("[bench] row=a rounds=20 ticks={ticks} loop=3 ops=1"),
            ];
            Figures::read(lines.iter().map(String::as_str)).unwrap()
        };
        assert!(agreed(figures(1295), &figures(1295)).is_ok());
        assert!(agreed(figures(1295), &figures(1296)).is_err());
    }

    #[test]
    fn one_point_is_no_series() {
        assert_eq!(sample(Over::Pages, "a", &[(2.0, 500.0)]).words(), None);
        assert_eq!(sample(Over::Pages, "a", &[]).failure(), None);
    }

    #[test]
    fn pages_come_from_the_smallest_on() {
        let wanted = |is_full, is_plotted| pages(Wanted { is_full, is_plotted });
        assert_eq!(wanted(false, false), [4096, 16_384]);
        assert_eq!(wanted(true, false), [4096, 16_384, 65_536, 262_144]);
        assert_eq!(wanted(true, true).len(), 10);
        assert!(wanted(true, true).is_sorted());
    }

    #[test]
    fn series_are_of_rows_that_are_measured() {
        for sizes in &SIZES {
            assert!(row::find(sizes.of).is_some_and(|row| !row.on_request), "{}", sizes.of);
            assert!(sizes.rows.is_sorted());
        }
    }
}
