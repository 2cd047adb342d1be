//! `bench --model FILE`: what the counted events would cost by published figures. Nothing here is measured.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::bench::event::Event;
use crate::bench::report::Measured;
use crate::error::{Error, Result};

/// What one event costs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    /// The event's name in reports.
    event: String,
    /// Cycles of one such event.
    cycles: f64,
    /// The CPU that it was published for.
    cpu: String,
    /// Who published it, where and when.
    source: String,
}

/// The contents of a model file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    /// How reports call it.
    pub(crate) name: String,
    /// What a reader must know of it.
    note: String,
    cost: Vec<Cost>,
}

/// What a model says of one row.
#[derive(Debug, Clone, PartialEq)]
struct Estimate {
    /// Cycles of all events that have a cost; `None` when no such event happened.
    cycles: Option<f64>,
    /// Events that happened and have none.
    without: Vec<&'static str>,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cycles {
            Some(cycles) => write!(f, "{cycles:>6.0} model cycles")?,
            None => f.write_str("no event with a cost")?,
        }
        if !self.without.is_empty() {
            write!(f, "; without {}", self.without.join(", "))?;
        }
        Ok(())
    }
}

impl Model {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::File {
            action: "read",
            path: path.to_owned(),
            source,
            remedy: "give a model file, such as xtask/models/haswell-2014.toml",
        })?;
        Self::parse(&text).map_err(|why| Error::Invalid {
            field: "--model",
            value: path.display().to_string(),
            why: format!("which is no cost model ({why})"),
            remedy: "follow xtask/models/haswell-2014.toml".to_owned(),
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let model: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        for (position, cost) in model.cost.iter().enumerate() {
            if !Event::ALL.iter().any(|event| event.name() == cost.event) {
                return Err(format!("there is no event `{}`", cost.event));
            }
            if model.cost[..position].iter().any(|other| other.event == cost.event) {
                return Err(format!("event `{}` has two costs", cost.event));
            }
            if !cost.cycles.is_finite() || cost.cycles < 0.0 {
                return Err(format!("event `{}` costs {} cycles", cost.event, cost.cycles));
            }
            if cost.source.trim().is_empty() {
                return Err(format!("the cost of `{}` has no source", cost.event));
            }
        }
        Ok(model)
    }

    fn estimate(&self, measured: &Measured) -> Option<Estimate> {
        let mut estimate = Estimate {
            cycles: None,
            without: Vec::new(),
        };
        for (event, count) in Event::ALL.iter().zip(measured.events.as_ref()?) {
            let count = count.as_f64();
            if count == 0.0 {
                continue;
            }
            match self.cost.iter().find(|cost| cost.event == event.name()) {
                Some(cost) => {
                    estimate.cycles = Some(estimate.cycles.unwrap_or(0.0) + count * cost.cycles);
                }
                None => estimate.without.push(event.name()),
            }
        }
        Some(estimate)
    }

    /// The section of the report that comes after everything that was measured.
    pub(crate) fn text(&self, rows: &[Measured]) -> String {
        let mut text = format!(
            "\nCOST MODEL {}, not measured: counted events times published cycles; nothing else is\n\
             in it, and an event without a cost is named.\n{}\n",
            self.name, self.note
        );
        for cost in &self.cost {
            text.push_str(&format!(
                "  {}: {} cycles on {}\n    {}\n",
                cost.event, cost.cycles, cost.cpu, cost.source
            ));
        }
        for measured in rows {
            let Some(estimate) = self.estimate(measured) else {
                continue;
            };
            text.push_str(&format!("  {:<34} {estimate}\n", measured.row.name));
        }
        text
    }

    /// The same as JSON, for a place of its own.
    pub(crate) fn json(&self, rows: &[Measured]) -> Value {
        let costs: Vec<Value> = self
            .cost
            .iter()
            .map(|cost| json!({"event": cost.event, "cycles": cost.cycles, "cpu": cost.cpu, "source": cost.source}))
            .collect();
        let estimates: Vec<Value> = rows
            .iter()
            .filter_map(|measured| {
                let estimate = self.estimate(measured)?;
                let mut row = json!({"name": measured.row.name, "events_without_cost": estimate.without});
                if let Some(cycles) = estimate.cycles {
                    row["model_cycles"] = json!(cycles);
                }
                Some(row)
            })
            .collect();
        json!({"name": self.name, "measured": false, "note": self.note, "costs": costs, "rows": estimates})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ratio::Ratio;
    use crate::bench::row;

    fn shipped() -> Model {
        Model::parse(include_str!("../../models/haswell-2014.toml")).unwrap()
    }

    fn measured(events: &[(Event, u32)]) -> Measured {
        let mut counts = [Ratio::ZERO; Event::ALL.len()];
        for &(event, count) in events {
            counts[event as usize] = Ratio::whole(count);
        }
        Measured {
            row: &row::ROWS[0],
            instructions: Ratio::whole(171),
            spread: Ratio::ZERO,
            events: Some(counts),
            cycles: None,
            failures: Vec::new(),
        }
    }

    #[test]
    fn events_are_multiplied_and_the_rest_is_named() {
        let row = measured(&[(Event::Fault, 1), (Event::Iret, 1), (Event::Swapgs, 2)]);
        let estimate = shipped().estimate(&row).unwrap();
        assert_eq!(estimate.cycles, Some(1045.0));
        assert_eq!(estimate.without, ["swapgs"]);
    }

    #[test]
    fn a_row_without_costed_events_has_no_cycles() {
        let model = shipped();
        let row = measured(&[(Event::Sysret, 1)]);
        assert_eq!(
            model.estimate(&row).unwrap().to_string(),
            "no event with a cost; without sysret"
        );
        assert!(model.json(&[row])["rows"][0].get("model_cycles").is_none());
    }

    #[test]
    fn the_section_says_that_it_is_not_measured() {
        let text = shipped().text(&[measured(&[(Event::Iret, 1)])]);
        assert!(text.contains("not measured"), "{text}");
        assert!(text.contains("330 model cycles"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert_eq!(shipped().json(&[])["measured"], false);
    }

    #[test]
    fn a_cost_without_a_source_or_an_event_is_refused() {
        let with = |event: &str, source: &str| {
            Model::parse(&format!(
                "name = \"x\"\nnote = \"\"\n[[cost]]\nevent = \"{event}\"\ncycles = 1\ncpu = \"y\"\nsource = \"{source}\"\n"
            ))
        };
        assert!(with("iret", "z").is_ok());
        assert!(with("iret", "").is_err());
        assert!(with("yawn", "z").is_err());
    }
}
