//! The program of seed 000 in its own size: 1 GiB, mapped read-only and off the alignment of huge pages, read page by page and
//! unmapped, a hundred times.

use std::time::Duration;

use crate::bench::Plan;
use crate::bench::growth::{boot, figure};
use crate::bench::plot::digits;
use crate::bench::row::Row;
use crate::error::Result;
use crate::progress::Progress;

/// How often the program goes over its 1 GiB.
const ALL: u32 = 100;
/// How often by default: a pass is a quarter of a million faults.
const FEW: u32 = 2;
/// What the name of a row that maps pages ends in when it does so.
const SUFFIX: &str = "@1g";
/// A boot with all passes takes minutes.
const LIMIT: Duration = Duration::from_secs(1800);

/// What a fault takes in that program.
#[derive(Debug, Clone)]
pub(crate) struct Passes {
    /// The row whose operation it is.
    pub(crate) row: &'static Row,
    /// Passes over 1 GiB.
    pub(crate) passes: u32,
    /// Instructions of a fault.
    pub(crate) instructions: f64,
}

impl Passes {
    /// For people.
    pub(crate) fn words(&self) -> String {
        let count = if self.passes == ALL {
            "all 100".to_owned()
        } else {
            format!("{} of 100", self.passes)
        };
        format!("{}: {}, {count} passes", self.row.name, digits(self.instructions))
    }

    /// What is wrong, if a fault is longer than it may be.
    pub(crate) fn failure(&self) -> Option<String> {
        let target = self.row.target?;
        (self.instructions > f64::from(target)).then(|| {
            format!(
                "{}: {} instructions in {} passes over 1 GiB, wanted {target} at most",
                self.row.name,
                digits(self.instructions),
                self.passes
            )
        })
    }
}

/// The program with the ways out of those rows that map pages.
pub(crate) fn measure(plan: &Plan, rows: &[&'static Row], is_full: bool) -> Result<Vec<Passes>> {
    let passes = if is_full { ALL } else { FEW };
    let mapping: Vec<&Row> = rows.iter().copied().filter(|row| row.maps_pages).collect();
    if mapping.is_empty() {
        return Ok(Vec::new());
    }
    let plan = Plan {
        machine: plan.machine.clone(),
        limit: if is_full { plan.limit.max(LIMIT) } else { plan.limit },
        ..*plan
    };
    let progress = Progress::start(format!("passing over 1 GiB {passes} times for each way out of a fault"));
    let mut all = Vec::new();
    for row in mapping {
        let name = format!("{}{SUFFIX}", row.name);
        // The longer stretch has twice the rounds.
        let figures = boot(&plan, passes / 2, &[&name], &progress)?;
        all.extend(figure(&figures, &name).map(|instructions| Passes {
            row,
            passes,
            instructions,
        }));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row;

    fn sample(passes: u32, instructions: f64) -> Passes {
        let row = row::find("fault/zero-page/iret").unwrap();
        Passes {
            row,
            passes,
            instructions,
        }
    }

    #[test]
    fn words_say_how_much_of_the_program_ran() {
        assert_eq!(
            sample(2, 180.25).words(),
            "fault/zero-page/iret: 180.25, 2 of 100 passes"
        );
        assert_eq!(sample(100, 180.0).words(), "fault/zero-page/iret: 180, all 100 passes");
    }

    #[test]
    fn longer_than_the_rows_target_fails() {
        assert_eq!(sample(100, 240.0).failure(), None);
        assert_eq!(
            sample(100, 240.5).failure().unwrap(),
            "fault/zero-page/iret: 240.5 instructions in 100 passes over 1 GiB, wanted 240 at most"
        );
    }
}
