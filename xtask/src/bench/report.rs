//! The results of `bench`: tables for people, JSON for programs.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, presets};
use serde_json::{Map, Value, json};

use crate::bench::cycles::{Cycles, Host};
use crate::bench::event::Event;
use crate::bench::growth::Growth;
use crate::bench::linux;
use crate::bench::passes::Passes;
use crate::bench::peer;
use crate::bench::plot::digits;
use crate::bench::ratio::Ratio;
use crate::bench::row::Row;

/// Widest table.
const WIDTH: u16 = 100;

/// One row's results.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Which row.
    pub(crate) row: &'static Row,
    /// Instructions for one operation.
    pub(crate) instructions: Ratio,
    /// Largest less smallest figure over the repeats.
    pub(crate) spread: Ratio,
    /// Events for one operation, in the order of [`Event::ALL`]; `None` when the executed path was not seen.
    pub(crate) events: Option<[Ratio; Event::ALL.len()]>,
    /// Cycles on the host's CPU.
    pub(crate) cycles: Option<Cycles>,
    /// What is wrong with the row.
    pub(crate) failures: Vec<String>,
}

impl Measured {
    /// The figure, which a row that failed has none of: it is not from two runs that agree, or not of what its name says.
    pub(crate) fn shown(&self) -> String {
        if self.failures.is_empty() {
            self.instructions.to_string()
        } else {
            "FAILED".to_owned()
        }
    }
}

/// Everything that a report says.
#[derive(Debug)]
pub(crate) struct Report {
    /// CPU model of the machine.
    pub(crate) cpu: String,
    /// That CPU's own name, by CPUID.
    pub(crate) cpu_name: String,
    /// QEMU's version.
    pub(crate) qemu: String,
    /// Rows in order.
    pub(crate) rows: Vec<Measured>,
    /// Rows that cannot run here, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Published crates, when they were asked for.
    pub(crate) peers: Vec<peer::Measured>,
    /// Linux, when it was asked for.
    pub(crate) linux: Vec<linux::Measured>,
    /// Which Linux that was.
    pub(crate) linux_version: Option<String>,
    /// Instructions over what there is of something.
    pub(crate) growth: Vec<Growth>,
    /// The CPU of the cycles, when there are any.
    pub(crate) host: Option<Host>,
    /// The program of seed 000 in its own size.
    pub(crate) passes: Vec<Passes>,
}

fn amount(value: Ratio) -> Value {
    value
        .as_whole()
        .and_then(|whole| i64::try_from(whole).ok())
        .map_or_else(|| json!(value.as_f64()), |whole| json!(whole))
}

/// An empty table of the usual looks.
fn empty_table(header: Vec<&str>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_HORIZONTAL_ONLY)
        .remove_style(TableComponent::HorizontalLines)
        .remove_style(TableComponent::MiddleIntersections)
        .remove_style(TableComponent::LeftBorderIntersections)
        .remove_style(TableComponent::RightBorderIntersections)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header);
    // Names are what filters take: they are not broken.
    if let Some(name) = table.column_mut(0) {
        name.set_constraint(ColumnConstraint::ContentWidth);
    }
    table
}

impl Report {
    /// JSON in schema 1. A field that was not measured is absent.
    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|measured| {
                let mut row = Map::new();
                row.insert("name".to_owned(), json!(measured.row.name));
                if let Some(seed) = measured.row.seed {
                    row.insert("seed".to_owned(), json!(seed));
                }
                row.insert("instructions".to_owned(), amount(measured.instructions));
                row.insert("instructions_spread".to_owned(), amount(measured.spread));
                if let Some(events) = &measured.events {
                    let events: Map<String, Value> = Event::ALL
                        .iter()
                        .zip(events)
                        .map(|(event, count)| (event.name().to_owned(), amount(*count)))
                        .collect();
                    row.insert("events".to_owned(), Value::Object(events));
                }
                if let Some(cycles) = &measured.cycles {
                    row.insert("cycles".to_owned(), json!(cycles.median));
                    row.insert("cycles_interval".to_owned(), json!(cycles.interval));
                    row.insert("cycles_samples".to_owned(), json!(cycles.samples));
                    row.insert("cycles_outliers".to_owned(), json!(cycles.outliers));
                }
                if let Some(target) = measured.row.target {
                    row.insert("target".to_owned(), json!(target));
                }
                if !measured.failures.is_empty() {
                    row.insert("failures".to_owned(), json!(measured.failures));
                }
                Value::Object(row)
            })
            .collect();
        let mut json = json!({
            "schema": 1,
            "clock": "icount",
            "cpu": self.cpu,
            "cpu_name": self.cpu_name,
            "qemu": self.qemu,
            "rows": rows,
        });
        if !self.peers.is_empty() {
            let peers = self.peers.iter().map(|peer| {
                json!({
                    "name": peer.name,
                    "instructions": amount(peer.instructions),
                    "uses": peer.shown,
                    "beside": peer.beside,
                })
            });
            json["peers"] = peers.collect();
        }
        if !self.linux.is_empty() {
            let rows = self.linux.iter().map(|row| {
                let mut fields = Map::new();
                fields.insert("name".to_owned(), json!(row.name));
                for (setting, figure) in linux::SETTINGS.iter().zip(&row.instructions) {
                    fields.insert(setting.name.to_owned(), amount(*figure));
                }
                Value::Object(fields)
            });
            json["linux"] = json!({
                "version": self.linux_version,
                "cpu": linux::CPU,
                "rows": rows.collect::<Vec<_>>(),
            });
        }
        if let Some(host) = &self.host {
            json["host"] = json!({"cpu": host.name, "number": host.number, "clock": host.clock});
        }
        if !self.growth.is_empty() {
            let series = self.growth.iter().map(|growth| {
                json!({
                    "name": growth.series.name,
                    "over": growth.over.unit(),
                    "points": growth.series.points,
                    "slope": growth.slope(),
                })
            });
            json["growth"] = series.collect();
        }
        if !self.passes.is_empty() {
            let passes = self.passes.iter().map(|passes| {
                json!({
                    "name": passes.row.name,
                    "passes": passes.passes,
                    "pages": 262_144,
                    "instructions": passes.instructions,
                })
            });
            json["seed_000"] = passes.collect();
        }
        json
    }

    /// The rows, and the published crates, with one column for each kind of figure. A figure that was not measured is empty.
    pub(crate) fn csv(&self) -> std::result::Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let first = ["name", "seed", "instructions", "instructions_spread"];
        let last = [
            "cycles",
            "cycles_low",
            "cycles_high",
            "cycles_outliers",
            "target",
            "linux_recorded_lean",
            "linux_recorded_default",
            "failures",
        ];
        let measured_linux = linux::SETTINGS.map(|setting| format!("linux_measured_{}", setting.name));
        let fixed = first.into_iter().chain(Event::ALL.map(Event::name)).chain(last);
        let header: Vec<String> = fixed.map(str::to_owned).chain(measured_linux).collect();
        writer.write_record(&header)?;
        for measured in &self.rows {
            let row = measured.row;
            let exact = |value: Ratio| amount(value).to_string();
            let mut record = vec![
                row.name.to_owned(),
                row.seed.unwrap_or_default().to_owned(),
                exact(measured.instructions),
                exact(measured.spread),
            ];
            match &measured.events {
                Some(events) => record.extend(events.iter().map(|&count| exact(count))),
                None => record.extend(Event::ALL.map(|_| String::new())),
            }
            match &measured.cycles {
                Some(cycles) => {
                    let (low, high) = cycles.interval;
                    record.extend([cycles.median, low, high].map(|cycles| cycles.to_string()));
                    record.push(cycles.outliers.len().to_string());
                }
                None => record.extend([const { String::new() }; 4]),
            }
            record.push(row.target.map_or_else(String::new, |target| target.to_string()));
            record.push(row.linux.map_or_else(String::new, |linux| linux.lean.to_string()));
            record.push(row.linux.map_or_else(String::new, |linux| linux.default.to_string()));
            record.push(measured.failures.join("; "));
            match self.linux.iter().find(|linux| linux.name == row.name) {
                Some(linux) => record.extend(linux.instructions.iter().map(|&figure| exact(figure))),
                None => record.extend(linux::SETTINGS.map(|_| String::new())),
            }
            writer.write_record(&record)?;
        }
        for peer in &self.peers {
            let figure = [
                peer.name.to_owned(),
                String::new(),
                amount(peer.instructions).to_string(),
            ];
            let empty = std::iter::repeat_with(String::new).take(header.len() - figure.len());
            writer.write_record(figure.into_iter().chain(empty))?;
        }
        writer
            .into_inner()
            .map_err(|error| csv::Error::from(error.into_error()))
    }

    /// The tables: figures, and the events that go with them.
    pub(crate) fn tables(&self) -> String {
        format!("{}\n\n{}", self.figures(), self.events())
    }

    /// The figures, a line for each row.
    fn figures(&self) -> String {
        let with_cycles = self.rows.iter().any(|measured| measured.cycles.is_some());
        let mut header = vec!["row", "seed", "instr.", "target", "Linux"];
        if with_cycles {
            header.push("cycles");
        }
        let mut table = empty_table(header);
        for measured in &self.rows {
            let row = measured.row;
            let mut cells = vec![
                row.name.to_owned(),
                row.seed.unwrap_or("").to_owned(),
                measured.shown(),
                row.target.map_or_else(String::new, |target| format!("≤ {target}")),
                self.on_linux(row),
            ];
            if with_cycles {
                let median = |cycles: &Cycles| digits(cycles.median);
                cells.push(measured.cycles.as_ref().map_or_else(String::new, median));
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }

    /// What each operation is made of: a column for each event that any of them has.
    fn events(&self) -> String {
        let happened = |event: usize| {
            let mut counts = self.rows.iter().filter_map(|measured| measured.events.as_ref());
            counts.any(|counts| counts[event] != Ratio::ZERO)
        };
        let events: Vec<usize> = (0..Event::ALL.len()).filter(|event| happened(*event)).collect();
        let mut header = vec!["events of one operation"];
        header.extend(events.iter().map(|event| Event::ALL[*event].heading()));
        let mut table = empty_table(header);
        for measured in &self.rows {
            let mut cells = vec![measured.row.name.to_owned()];
            match &measured.events {
                None => cells.push("not seen".to_owned()),
                Some(counts) => cells.extend(events.iter().map(|event| match counts[*event] {
                    Ratio::ZERO => String::new(),
                    count => count.to_string(),
                })),
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_padding((0, 0)).set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }

    /// What Linux takes: optional work off / as distributed, as this run measured it. In brackets what is recorded of the
    /// nearest call, where this run did not.
    pub(crate) fn on_linux(&self, row: &Row) -> String {
        let measured = self.linux.iter().find(|linux| linux.name == row.name);
        match (measured.map(|linux| &linux.instructions[..]), row.linux) {
            (Some([default, .., lean]), _) => format!("{lean} / {default}"),
            (_, Some(linux)) => format!("({} / {})", linux.lean, linux.default),
            _ => String::new(),
        }
    }

    /// The row of this name.
    pub(crate) fn row(&self, name: &str) -> Option<&Measured> {
        self.rows.iter().find(|measured| measured.row.name == name)
    }

    /// The CPU of the cycles, and how far they can be relied on.
    fn cycle_lines(&self) -> String {
        let Some(host) = &self.host else {
            return String::new();
        };
        let mut lines = format!(
            "Cycles: CPU {}, {}.\n  Clock: {}.\n  Medians with the interval that holds the true one with 95 % confidence, and what lies far off:\n",
            host.number,
            host.name,
            host.clock.replace("; ", ";\n  ")
        );
        for measured in &self.rows {
            let Some(cycles) = &measured.cycles else { continue };
            let (low, high) = cycles.interval;
            let mut line = format!(
                "  {:<36} {:>8} [{}, {}]",
                measured.row.name,
                digits(cycles.median),
                digits(low),
                digits(high)
            );
            if let (Some(first), Some(last)) = (cycles.outliers.first(), cycles.outliers.last()) {
                line.push_str(&format!(
                    "   {} of {} outside, {} to {}",
                    cycles.outliers.len(),
                    cycles.samples,
                    digits(*first),
                    digits(*last)
                ));
            }
            lines.push_str(&line);
            lines.push('\n');
        }
        lines
    }

    /// Published crates, each beside the row that does the same.
    fn peer_lines(&self) -> String {
        let mut lines = String::new();
        let mut shown = "";
        for peer in &self.peers {
            if peer.shown != shown {
                shown = peer.shown;
                lines.push_str(&format!("{shown}:\n"));
            }
            let ours = self.row(peer.beside).map_or_else(String::new, |ours| {
                format!("   here {:>4}  {}", ours.instructions.to_string(), peer.beside)
            });
            lines.push_str(&format!(
                "  {:<32} {:>5}{ours}\n",
                peer.name,
                peer.instructions.to_string()
            ));
        }
        lines
    }

    /// Linux with each command line, and how many times as many instructions as here.
    fn linux_lines(&self) -> String {
        if self.linux.is_empty() {
            return String::new();
        }
        let version = self.linux_version.as_deref().unwrap_or_default();
        let mut lines = format!("Linux {version}, same program, CPU {}:\n", linux::CPU);
        lines.push_str(&format!("{:<30} {:>6}", "", "here"));
        for setting in linux::SETTINGS {
            lines.push_str(&format!(" {:>18}", setting.name));
        }
        lines.push('\n');
        for row in &self.linux {
            let ours = self.row(&row.name).map(|ours| ours.instructions);
            let here = ours.map_or_else(|| "-".to_owned(), |ours| ours.to_string());
            lines.push_str(&format!("  {:<28} {here:>6}", row.name));
            for figure in &row.instructions {
                let times = ours
                    .filter(|ours| *ours > Ratio::ZERO)
                    .map_or_else(String::new, |ours| {
                        format!("{:>6.2} x", figure.as_f64() / ours.as_f64())
                    });
                lines.push_str(&format!(" {:>9} {times:>8}", figure.to_string()));
            }
            lines.push('\n');
        }
        lines
    }

    /// Ours beside the times of seed 002: each switch with WRMSR, the same with a trampoline, and the ratio.
    fn switch_lines(&self) -> String {
        let mut lines = String::new();
        for before in &self.rows {
            let Some(name) = before.row.name.strip_suffix("/wrmsr") else {
                continue;
            };
            let Some(after) = self.row(&format!("{name}/trampoline")) else {
                continue;
            };
            let ratio = after.instructions.as_f64() / before.instructions.as_f64();
            lines.push_str(&format!(
                "  {name:<20} {}, {} ({ratio:.2})\n",
                before.instructions, after.instructions
            ));
        }
        lines
    }

    /// What a reader must know beside the table.
    pub(crate) fn notes(&self) -> String {
        let mut notes = format!(
            "Instructions for one operation, exact: QEMU {} TCG, -icount shift=0, CPU {}.\n\
             The entering instruction counts; the loop around it is taken off. Linux: in the same emulator, CPU\n\
             {}, optional work off / as distributed; in brackets recorded of Linux 6.1 for the nearest\n\
             call, without brackets measured in this run (--linux).\n",
            self.qemu,
            self.cpu,
            linux::CPU
        );
        if self.rows.iter().any(|measured| measured.row.seed == Some("000")) {
            notes.push_str(
                "Seed 000: instruction counts have the reverse sign. SYSRET takes more instructions than\n\
                 IRET, each of which is cheaper on a real CPU; an instruction count cannot show that. Their gain,\n\
                 8.4 s to 6.5 s, is one of cycles only.\n",
            );
            if !self.passes.is_empty() {
                notes.push_str("Their program, 1 GiB read page by page, 100 passes; instructions of a fault:\n");
            }
            for passes in &self.passes {
                notes.push_str(&format!("  {}\n", passes.words()));
            }
        }
        if self.rows.iter().any(|measured| measured.row.seed == Some("002")) {
            notes.push_str(
                "Seed 002: theirs are times of lmbench, in µs, WRMSR at each switch and then a trampoline, rounded to\n\
                 whole µs: 2p/0K 3, 3 (1.00) · 2p/16K 16, 14 (0.88) · 2p/64K 44, 47 (1.07) · 8p/16K 18, 18 (1.00) ·\n\
                 8p/64K 47, 50 (1.06) · 16p/16K 20, 20 (1.00) · 16p/64K 77, 61 (0.79) · pipe 16, 15 (0.94). Ours are\n\
                 instructions, to which a WRMSR is one like any other; what it costs is cycles of a real CPU.\n\
                 The switches of legacy32 write two MSRs, as theirs did, the others one:\n",
            );
            notes.push_str(&self.switch_lines());
        }
        if self.rows.iter().any(|measured| measured.row.seed == Some("003")) {
            notes.push_str(
                "Seed 003: theirs is 158 and 113 cycles, toggled and untouched in user mode. An instruction count\n\
                 can't tell what IF costs. Null calls touch it in neither form: irqs-on is shorter than full\n\
                 because its stub makes the tests of the way out itself.\n",
            );
        }
        if self.rows.iter().any(|measured| measured.row.seed == Some("004")) {
            notes.push_str(
                "Seed 004: theirs is 90 cycles, 6 % of a kill, between transitions that save the interrupt flag\n\
                 and transitions that know it to be 0; ours is irqsave less irqsoff, in instructions.\n",
            );
        }
        for measured in &self.rows {
            if let Some(target) = measured.row.target
                && measured.instructions > Ratio::whole(target)
            {
                notes.push_str(&format!(
                    "over target: {} takes {}, wanted {target} at most\n",
                    measured.row.name, measured.instructions
                ));
            }
        }
        if !self.growth.is_empty() {
            notes.push_str("Instructions of an operation where there is more:\n");
        }
        for words in self.growth.iter().filter_map(Growth::words) {
            notes.push_str(&format!("  {words}\n"));
        }
        notes.push_str(&self.cycle_lines());
        notes.push_str(&self.peer_lines());
        notes.push_str(&self.linux_lines());
        for (row, reason) in &self.skipped {
            notes.push_str(&format!("skipped: {row}: {reason}\n"));
        }
        for failure in self.growth.iter().filter_map(Growth::failure) {
            notes.push_str(&format!("FAILED: {failure}\n"));
        }
        for failure in self.passes.iter().filter_map(Passes::failure) {
            notes.push_str(&format!("FAILED: {failure}\n"));
        }
        for measured in &self.rows {
            for failure in &measured.failures {
                notes.push_str(&format!("FAILED: {}: {failure}\n", measured.row.name));
            }
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{growth, row};

    fn report() -> Report {
        let mut events = [Ratio::ZERO; Event::ALL.len()];
        events[Event::Sysret as usize] = Ratio::whole(1);
        events[Event::Swapgs as usize] = Ratio::whole(2);
        Report {
            cpu: "Skylake-Client".to_owned(),
            cpu_name: "Intel Core Processor (Skylake)".to_owned(),
            qemu: "7.2.22".to_owned(),
            rows: row::ROWS
                .iter()
                .map(|row| Measured {
                    row,
                    instructions: Ratio::whole(61),
                    spread: Ratio::ZERO,
                    events: Some(events),
                    cycles: None,
                    failures: Vec::new(),
                })
                .collect(),
            skipped: vec![("sysenter/null/64".to_owned(), "AMD".to_owned())],
            peers: vec![peer::Measured {
                name: "peer/trapframe/null",
                shown: "trapframe",
                beside: "syscall/null/full",
                instructions: Ratio::whole(91),
            }],
            linux: vec![linux::Measured {
                name: "syscall/null/full".to_owned(),
                instructions: [221, 208, 194].map(Ratio::whole).to_vec(),
            }],
            linux_version: Some("6.1.0-57-cloud-amd64".to_owned()),
            growth: vec![growth::sample(
                growth::Over::Nesting,
                "exception/kernel",
                &[(1.0, 90.0), (8.0, 90.25)],
            )],
            host: None,
            passes: vec![Passes {
                row: row::find("fault/zero-page/iret").unwrap(),
                passes: 2,
                instructions: 180.5,
            }],
        }
    }

    fn cycles() -> Cycles {
        Cycles {
            median: 123_456.5,
            interval: (123_450.0, 123_460.25),
            outliers: vec![10.0, 200_000.0],
            samples: 31,
        }
    }

    #[test]
    fn cycles_come_with_their_cpu_interval_and_outliers() {
        let mut report = report();
        report.rows[0].cycles = Some(cycles());
        report.host = Some(Host {
            name: "Some CPU, microcode 0x2b000603".to_owned(),
            number: 1,
            clock: "hardware virtualisation".to_owned(),
        });
        let notes = report.notes();
        assert!(
            notes.contains("Cycles: CPU 1, Some CPU, microcode 0x2b000603."),
            "{notes}"
        );
        assert!(
            notes.contains("123456.5 [123450, 123460.25]   2 of 31 outside, 10 to 200000"),
            "{notes}"
        );
        for line in notes.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
        }
        let json = report.json();
        assert_eq!(json["rows"][0]["cycles"], 123_456.5);
        assert_eq!(json["rows"][0]["cycles_interval"][1], 123_460.25);
        assert_eq!(json["host"]["number"], 1);
    }

    #[test]
    fn tables_fit_a_hundred_columns() {
        let mut report = report();
        for measured in &mut report.rows {
            measured.events = Some([Ratio::whole(2); Event::ALL.len()]);
            measured.cycles = Some(cycles());
        }
        let table = report.tables();
        for line in table.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
        }
        for row in row::ROWS {
            let lines = table
                .lines()
                .filter(|line| line.trim_start().starts_with(&format!("{} ", row.name)));
            assert_eq!(lines.count(), 2, "{} is wrapped", row.name);
        }
        let headings = table
            .lines()
            .skip_while(|line| !line.contains("events of one operation"));
        assert!(headings.take_while(|line| !line.contains('═')).count() <= 2, "{table}");
    }

    #[test]
    fn notes_fit_and_name_the_reverse_sign() {
        let notes = report().notes();
        assert!(notes.contains("reverse sign"));
        assert!(notes.contains("exception/kernel: 90 at 1 levels, 90.25 at 8; +0.036 for one more"));
        assert!(notes.contains("skipped: sysenter/null/64: AMD"));
        assert!(
            notes.contains("Linux 6.1.0-57-cloud-amd64, same program, CPU Haswell:\n"),
            "{notes}"
        );
        assert!(
            notes.contains("peer/trapframe/null                 91   here   61  syscall/null/full"),
            "{notes}"
        );
        for line in notes.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
        }
    }

    #[test]
    fn row_that_failed_has_no_figure_in_the_table() {
        let mut report = report();
        assert!(!report.figures().contains("FAILED"));
        report.rows[0].failures.push("two boots do not agree".to_owned());
        let table = report.figures();
        let line = table.lines().find(|line| line.contains(" syscall/null/full ")).unwrap();
        assert!(line.contains(" FAILED ") && !line.contains(" 61 "), "{line}");
        assert!(
            report
                .notes()
                .contains("FAILED: syscall/null/full: two boots do not agree\n")
        );
    }

    #[test]
    fn linux_of_this_run_takes_the_place_of_what_is_recorded() {
        let mut report = report();
        report.linux[0].instructions = [230, 210, 200].map(Ratio::whole).to_vec();
        let line = |table: &str, name: &str| {
            let line = table.lines().find(|line| line.contains(&format!(" {name} ")));
            line.unwrap().trim_end().to_owned()
        };
        let table = report.figures();
        assert!(line(&table, "syscall/null/full").ends_with(" 200 / 230"), "{table}");
        assert!(line(&table, "syscall/null/lean").ends_with(" (194 / 221)"), "{table}");
        assert!(line(&table, "fault/floor").ends_with(" 61"), "{table}");
        report.linux.clear();
        assert!(line(&report.figures(), "syscall/null/full").ends_with(" (194 / 221)"));
    }

    #[test]
    fn each_switch_stands_with_its_ratio_beside_seed_002() {
        let mut report = report();
        for measured in &mut report.rows {
            let instructions = match measured.row.name {
                "legacy32/switch/wrmsr" => 40,
                "legacy32/switch/trampoline" => 30,
                _ => 61,
            };
            measured.instructions = Ratio::whole(instructions);
        }
        let notes = report.notes();
        assert!(notes.contains("  legacy32/switch      40, 30 (0.75)\n"), "{notes}");
        assert!(notes.contains("  switch/pipe/2p-64k   61, 61 (1.00)\n"), "{notes}");
    }

    #[test]
    fn json_has_no_field_that_was_not_measured() {
        let json = report().json();
        assert_eq!(json["schema"], 1);
        let row = &json["rows"][0];
        assert_eq!(row["name"], "syscall/null/full");
        assert_eq!(row["instructions"], 61);
        assert_eq!(row["events"]["sysret"], 1);
        assert_eq!(row["events"]["iret"], 0);
        assert!(row.get("cycles").is_none());
        assert!(row.get("failures").is_none());
        assert_eq!(json["peers"][0]["instructions"], 91);
        assert_eq!(json["linux"]["rows"][0]["lean"], 194);
        assert_eq!(json["growth"][0]["over"], "levels");
        assert_eq!(json["growth"][0]["points"][1][0], 8.0);
        assert_eq!(json["seed_000"][0]["instructions"], 180.5);
    }

    #[test]
    fn csv_has_a_line_for_each_row_and_as_many_fields_in_each() {
        let report = report();
        let bytes = report.csv().unwrap();
        let mut reader = csv::Reader::from_reader(&bytes[..]);
        let header = reader.headers().unwrap().clone();
        assert_eq!(&header[2], "instructions");
        let records: Vec<_> = reader.records().map(std::result::Result::unwrap).collect();
        assert_eq!(records.len(), report.rows.len() + report.peers.len());
        assert_eq!(&records[0][0], "syscall/null/full");
        let lean = header.iter().position(|name| name == "linux_measured_lean").unwrap();
        assert_eq!((&records[0][lean], &records[1][lean]), ("194", ""));
        let peer = &records[report.rows.len()];
        assert_eq!((&peer[0], &peer[2]), ("peer/trapframe/null", "91"));
        assert_eq!(&records[0][2], "61");
        let sysret = header.iter().position(|name| name == "sysret").unwrap();
        assert_eq!(&records[0][sysret], "1");
    }

    #[test]
    fn target_that_is_missed_is_named() {
        let mut report = report();
        report.rows[0].instructions = Ratio::whole(70);
        assert!(
            report
                .notes()
                .contains("over target: syscall/null/full takes 70, wanted 64 at most")
        );
    }
}
