//! `bench --baseline FILE`: this run beside an earlier one's JSON.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::bench::ratio::Ratio;
use crate::error::{Error, Result};

/// Figures that are equal may differ by so much after a way through decimal digits.
const ROUNDING: f64 = 1e-6;

/// One row of an earlier run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Row {
    name: String,
    instructions: f64,
}

/// An earlier run. Fields that are not compared are left alone.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Baseline {
    schema: u32,
    clock: String,
    cpu: String,
    rows: Vec<Row>,
}

/// A row whose figure is another one now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The row.
    pub(crate) name: String,
    /// Instructions in the earlier run.
    pub(crate) old: f64,
    /// Instructions now.
    pub(crate) new: Ratio,
    /// Whether it is more, by more than is tolerated.
    pub(crate) worse: bool,
}

impl Change {
    /// The change in one line.
    pub(crate) fn line(&self) -> String {
        let verb = if self.worse { "WORSE" } else { "changed" };
        let old = (self.old * 100.0).round() / 100.0;
        format!("{verb}: {} took {old} instructions, takes {} now", self.name, self.new)
    }
}

impl Baseline {
    /// Reads the file, which must be of the same machine and have some of these rows.
    pub(crate) fn read(path: &Path, cpu: &str, rows: &[&str]) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::File {
            action: "read",
            path: path.to_owned(),
            source,
            remedy: "give a file that `bench --json FILE` has written",
        })?;
        let invalid = |why: String, remedy: &str| Error::Invalid {
            field: "--baseline",
            value: path.display().to_string(),
            why,
            remedy: remedy.to_owned(),
        };
        let baseline: Self = serde_json::from_str(&text).map_err(|error| {
            invalid(
                format!("which is no report of this program ({error})"),
                "give a file that `bench --json FILE` has written",
            )
        })?;
        if baseline.schema != 1 || baseline.clock != "icount" {
            return Err(invalid(
                format!("with schema {} and clock {}", baseline.schema, baseline.clock),
                "give a report with schema 1 and clock icount",
            ));
        }
        if baseline.cpu != cpu {
            return Err(invalid(
                format!("whose figures are for CPU {}, not {cpu}", baseline.cpu),
                "use the same --cpu",
            ));
        }
        if baseline.common(rows) == 0 {
            return Err(invalid(
                "which has none of the rows asked for".to_owned(),
                "give a report that was written with the same filter, or with none",
            ));
        }
        Ok(baseline)
    }

    /// How many of these rows it has.
    pub(crate) fn common(&self, rows: &[&str]) -> usize {
        self.rows.iter().filter(|row| rows.contains(&row.name.as_str())).count()
    }

    /// The rows whose figures differ.
    pub(crate) fn compare<'a>(&self, rows: impl IntoIterator<Item = (&'a str, Ratio)>, tolerance: u32) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, new) in rows {
            let Some(old) = self.rows.iter().find(|row| row.name == name) else {
                continue;
            };
            let more = new.as_f64() - old.instructions;
            if more.abs() > ROUNDING {
                changes.push(Change {
                    name: name.to_owned(),
                    old: old.instructions,
                    new,
                    worse: more > f64::from(tolerance) + ROUNDING,
                });
            }
        }
        changes
    }

    /// Rows that the earlier run has and this one has not.
    pub(crate) fn missing<'a>(&'a self, rows: &[&str]) -> Vec<&'a str> {
        let names = self.rows.iter().map(|row| row.name.as_str());
        names.filter(|name| !rows.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = r#"{"schema": 1, "clock": "icount", "cpu": "EPYC", "qemu": "7.2.22", "rows": [
        {"name": "a", "instructions": 64, "events": {"iret": 0}},
        {"name": "b", "instructions": 171.0078125},
        {"name": "gone", "instructions": 9}]}"#;

    fn read(text: &str) -> Result<Baseline> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Baseline::read(file.path(), "EPYC", &["a", "b", "new"])
    }

    #[test]
    fn equal_figures_are_no_change() {
        let b = Ratio::new(171 * 128 + 1, 128).unwrap();
        let rows = [("a", Ratio::whole(64)), ("b", b), ("new", Ratio::whole(1))];
        assert_eq!(read(EARLIER).unwrap().compare(rows, 0), []);
    }

    #[test]
    fn more_instructions_than_tolerated_are_worse_and_named() {
        let baseline = read(EARLIER).unwrap();
        let change = &baseline.compare([("a", Ratio::whole(65))], 0)[0];
        assert!(change.worse);
        assert_eq!(change.line(), "WORSE: a took 64 instructions, takes 65 now");
        assert!(!baseline.compare([("a", Ratio::whole(65))], 1)[0].worse);
        assert!(!baseline.compare([("a", Ratio::whole(63))], 0)[0].worse);
    }

    #[test]
    fn a_row_that_is_gone_is_named() {
        assert_eq!(read(EARLIER).unwrap().missing(&["a", "b"]), ["gone"]);
    }

    #[test]
    fn figures_of_another_machine_or_clock_are_refused() {
        assert!(read(&EARLIER.replace("EPYC", "Haswell")).is_err());
        assert!(read(&EARLIER.replace("icount", "plain TCG")).is_err());
        assert!(read("{}").is_err());
    }

    #[test]
    fn a_report_with_none_of_the_rows_is_refused() {
        let other = read(&EARLIER.replace("\"a\"", "\"c\"").replace("\"b\"", "\"d\""));
        let text = other.unwrap_err().to_string();
        assert!(text.contains("which has none of the rows asked for; "), "{text}");
        assert_eq!(read(EARLIER).unwrap().common(&["a", "new"]), 1);
    }
}
