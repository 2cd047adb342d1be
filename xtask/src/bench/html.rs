//! `bench --html FILE`: the report as one page that needs nothing else.
//!
//! A policy in the page forbids every fetch and every script. Plots are SVG in the page, each in a `figure`
//! that says how many marks it must have.

use std::fmt::{Display, Write};
use std::path::Path;

use crate::bench::event::Event;
use crate::bench::growth::{self, Growth, Over};
use crate::bench::linux;
use crate::bench::phase::Phases;
use crate::bench::plot::{self, Bar, DATA, GRID, INK, Plot, Series, hexadecimal};
use crate::bench::ratio::Ratio;
use crate::bench::report::Report;
use crate::bench::row::Row;
use crate::error::{Error, Result};

/// Longer operations would make bars of the others invisible.
const LONGEST_BAR: u32 = 200;

/// What a page shows besides the report.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// Rows by phase.
    pub(crate) phases: Vec<(&'static str, Phases)>,
}

/// What an experiment's author published, and the rows that stand for it here.
struct Seed {
    number: &'static str,
    what: &'static str,
    theirs: &'static str,
    /// The same as a part: with their change, of what it was without.
    part: f64,
    /// The row without the change, and the one with it.
    rows: [&'static str; 2],
    /// Instructions of the loop around, which their figures have in them.
    around: u32,
}

const SEEDS: [Seed; 4] = [
    Seed {
        number: "000",
        what: "page faults left by SYSRET instead of IRET",
        theirs: "8.4 s → 6.5 s for the whole program, on Haswell",
        part: 6.5 / 8.4,
        rows: ["fault/zero-page/iret", "fault/zero-page/sysret-dead"],
        around: 0,
    },
    Seed {
        number: "002",
        what: "SYSENTER's stack pointer: WRMSR in each switch, or a trampoline",
        theirs: "3 µs a context switch (2 processes, no working set) either way, on a Pentium III",
        part: 1.0,
        rows: ["switch/pipe/2p-0k/wrmsr", "switch/pipe/2p-0k/trampoline"],
        around: 0,
    },
    Seed {
        number: "003",
        what: "system calls with interrupts left on, simulated in user mode",
        theirs: "158 → 113 cycles, on Intel family 6 model 62",
        part: 113.0 / 158.0,
        rows: ["irqflag/simulation/ring3-toggled", "irqflag/simulation/ring3-untouched"],
        around: 22,
    },
    Seed {
        number: "004",
        what: "context tracking that knows interrupts to be off, in a kill of oneself",
        theirs: "90 cycles less, 6 %, on AMD",
        part: 0.94,
        rows: ["tracking/kill-winch/irqsave", "tracking/kill-winch/irqsoff"],
        around: 0,
    },
];

impl Seed {
    /// Ours, as a part.
    fn ours(&self, report: &Report) -> Option<f64> {
        let around = f64::from(self.around);
        let [before, after] = self.rows.map(|name| report.row(name));
        let (before, after) = (
            before?.instructions.as_f64() + around,
            after?.instructions.as_f64() + around,
        );
        (before > 0.0).then_some(after / before)
    }
}

/// Text as it may stand in HTML.
fn escaped(text: impl Display) -> String {
    let text = text.to_string();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// What a style sheet puts in the place of each colour of a plot where the reader prefers dark: ink, lines, data.
const DARK: [&str; 5] = ["#E6E9ED", "#3A414A", "#5AA2F0", "#F2A54A", "#3CC59A"];

/// Rules that put them there, in pictures below `within`.
fn dark_rules(within: &str) -> String {
    let [ink, line, data @ ..] = DARK;
    let mut rules = format!(
        "{within}[fill=\"{}\"]{{fill:{ink}}}{within}[stroke=\"{}\"]{{stroke:{line}}}",
        hexadecimal(INK),
        hexadecimal(GRID)
    );
    for (color, dark) in DATA.into_iter().zip(data) {
        let color = hexadecimal(color);
        let _ = write!(
            rules,
            "{within}[fill=\"{color}\"]{{fill:{dark}}}{within}[stroke=\"{color}\"]{{stroke:{dark}}}"
        );
    }
    rules
}

fn style() -> String {
    let dark = dark_rules("svg ");
    format!(
        ":root{{color-scheme:light dark;--ink:{ink};--soft:#59636e;--line:{grid};--page:#fff;--card:#f7f8fa}}\
         @media (prefers-color-scheme:dark){{:root{{--ink:#e6e9ed;--soft:#9aa4b0;--line:#3a414a;--page:#14171b;\
         --card:#1c2026}}{dark}}}\
         *{{box-sizing:border-box}}\
         body{{margin:0 auto;max-width:1216px;padding:24px 16px 48px;background:var(--page);color:var(--ink);\
         font:15px/1.5 system-ui,sans-serif}}\
         h1{{font-size:24px;line-height:1.25;margin:0 0 8px}}h2{{font-size:18px;margin:32px 0 8px}}\
         p{{max-width:72ch;margin:0 0 12px}}.soft{{color:var(--soft)}}.bad{{color:#d1242f;font-weight:600}}\
         .plots{{columns:2 400px;column-gap:16px}}\
         figure{{margin:0 0 16px;break-inside:avoid;padding:12px;background:var(--card);border:1px solid var(--line);border-radius:8px;min-width:0}}\
         figcaption{{font-weight:600;margin-bottom:8px}}figcaption span{{display:block;font-weight:400;font-size:13px;color:var(--soft)}}\
         svg{{display:block;width:100%;max-width:560px;height:auto}}svg text{{font-family:system-ui,sans-serif}}\
         .wide{{overflow-x:auto}}table{{border-collapse:collapse;font-size:13.5px;min-width:100%}}\
         th,td{{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}}\
         th{{white-space:nowrap}}td.n,th.n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}\
         code{{font-size:13px}}code,td.w{{white-space:nowrap}}td.t{{min-width:12em}}",
        ink = hexadecimal(INK),
        grid = hexadecimal(GRID),
    )
}

/// A plot with its heading. Dimensions go, so that the style sheet decides.
fn figure(out: &mut String, heading: &str, below: &str, plot: &Plot) {
    let svg = plot.svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(heading)),
        1,
    );
    let _ = write!(
        out,
        "<figure data-marks=\"{}\"><figcaption>{}<span>{}</span></figcaption>{svg}</figure>",
        plot.marks,
        escaped(heading),
        escaped(below)
    );
}

/// Rows that do nothing, by what they are called in the plot of null calls.
const NULL_CALLS: [(&str, &str); 4] = [
    ("syscall/null/lean", "lean stub"),
    ("syscall/null/full", "full stub"),
    ("syscall/null/full-clear", "full stub, registers zeroed"),
    ("syscall/null/kpti", "full stub, two page tables"),
];

/// A system call that does nothing, here and elsewhere; `None` when none was measured here.
fn null_calls(report: &Report) -> Option<std::result::Result<Plot, plot::Failed>> {
    let bar = |name: String, place: usize, instructions: Ratio| {
        let mut parts = vec![0.0; 3];
        parts[place] = instructions.as_f64();
        Bar { name, parts }
    };
    let ours = NULL_CALLS.iter().filter_map(|(row, name)| {
        let measured = report.row(row)?;
        Some(bar((*name).to_owned(), 0, measured.instructions))
    });
    let mut all: Vec<Bar> = ours.collect();
    if all.is_empty() {
        return None;
    }
    let peers = report.peers.iter().filter(|peer| peer.beside == "syscall/null/full");
    all.extend(peers.map(|peer| bar(peer.name.trim_start_matches("peer/").to_owned(), 1, peer.instructions)));
    for linux in report.linux.iter().filter(|linux| linux.name == "syscall/null/full") {
        let settings = linux::SETTINGS.iter().zip(&linux.instructions).rev();
        all.extend(settings.map(|(setting, figure)| bar(format!("Linux, {}", setting.shown), 2, *figure)));
    }
    let legend = ["this repository", "published crate", "Linux"];
    Some(plot::bars(
        &all,
        &legend,
        "instructions of a system call that does nothing",
    ))
}

/// Refuses rows of which there would be no such plot.
pub(crate) fn check_picture(path: &Path, rows: &[&Row]) -> Result<()> {
    if rows
        .iter()
        .any(|row| NULL_CALLS.iter().any(|(name, _)| *name == row.name))
    {
        return Ok(());
    }
    Err(Error::Invalid {
        field: "--svg",
        value: path.display().to_string(),
        why: "which shows null system calls, and none of these rows is one".to_owned(),
        remedy: "use a filter that matches `syscall/null`, or none".to_owned(),
    })
}

/// That plot as a picture of its own, light or dark as its reader is.
pub(crate) fn picture(report: &Report) -> Result<String> {
    let plot = null_calls(report).unwrap_or_else(|| Err("there are no null calls".into()));
    let plot = plot.map_err(not_drawn)?;
    let start = plot.svg.find('>').map_or(0, |end| end + 1);
    let (head, rest) = plot.svg.split_at(start);
    Ok(format!(
        "{head}<style>text{{font-family:system-ui,sans-serif}}@media (prefers-color-scheme:dark){{{}}}</style>{}\n",
        dark_rules(""),
        rest.trim_end()
    ))
}

fn not_drawn(error: plot::Failed) -> Error {
    Error::Verdict {
        what: format!("a plot cannot be drawn: {error}"),
        remedy: "use --json or --csv".to_owned(),
    }
}

fn plots(out: &mut String, report: &Report, extras: &Extras) -> std::result::Result<(), plot::Failed> {
    if let Some(plot) = null_calls(report) {
        let below =
            "Here, by crates as published, and on Linux in the same emulator, which has no call of that number.";
        figure(out, "A system call that does nothing", below, &plot?);
    }
    let phases: Vec<Bar> = extras
        .phases
        .iter()
        .map(|(name, phases)| Bar {
            name: (*name).to_owned(),
            parts: [phases.entry, phases.handler, phases.exit].map(Ratio::as_f64).to_vec(),
        })
        .collect();
    let parts = ["entry", "handler", "exit"];
    let (long, short): (Vec<Bar>, Vec<Bar>) = phases
        .into_iter()
        .partition(|bar| bar.parts.iter().sum::<f64>() > f64::from(LONGEST_BAR));
    if !short.is_empty() {
        let plot = plot::bars(&short, &parts, "instructions of one operation")?;
        let below =
            "Entry: to the kernel's first own function. Exit: from its last one on. A stub that does all is entry.";
        figure(out, "Where the instructions go", below, &plot);
    }
    if !long.is_empty() {
        let plot = plot::bars(&long, &parts, "instructions of one operation")?;
        figure(out, "Longer operations", "On a scale of their own.", &plot);
    }
    let mut beside = Vec::new();
    for linux in &report.linux {
        let ours = report.row(&linux.name).map_or(0.0, |ours| ours.instructions.as_f64());
        if let [default, _, lean] = linux.instructions[..]
            && ours > 0.0
        {
            let (default, lean) = (default.as_f64() / ours, lean.as_f64() / ours);
            beside.push(Bar {
                name: linux.name.clone(),
                parts: vec![lean, (default - lean).max(0.0)],
            });
        }
    }
    if !beside.is_empty() {
        let plot = plot::bars(
            &beside,
            &["optional work off", "more, as distributed"],
            "times as many as ours",
        )?;
        let below =
            "The same program on Linux in the same emulator, in this run: its instructions for each one of ours.";
        figure(out, "Beside Linux", below, &plot);
    }
    let bar = |name: &str, instructions: Ratio, is_ours: bool| Bar {
        name: name.to_owned(),
        parts: if is_ours {
            vec![instructions.as_f64(), 0.0]
        } else {
            vec![0.0, instructions.as_f64()]
        },
    };
    let mut crates: Vec<Bar> = Vec::new();
    for peer in &report.peers {
        if !crates.iter().any(|bar| bar.name == peer.beside) {
            crates.extend(
                report
                    .row(peer.beside)
                    .map(|ours| bar(peer.beside, ours.instructions, true)),
            );
        }
        crates.push(bar(peer.name, peer.instructions, false));
    }
    if !crates.is_empty() {
        let plot = plot::bars(
            &crates,
            &["this repository", "published crate"],
            "instructions of one operation",
        )?;
        let below = "As published, in an image of its own. x86-interrupt handlers neither swap GS nor give registers.";
        figure(out, "Beside other crates", below, &plot);
    }
    let mut seeds = Vec::new();
    for seed in &SEEDS {
        if let Some(ours) = seed.ours(report) {
            let bar = |whose: &str, parts: [f64; 2]| Bar {
                name: format!("{} {whose}", seed.number),
                parts: parts.to_vec(),
            };
            seeds.push(bar("theirs", [seed.part, 0.0]));
            seeds.push(bar("ours", [0.0, ours]));
        }
    }
    if !seeds.is_empty() {
        let plot = plot::bars(
            &seeds,
            &["theirs: time, on real CPUs", "ours: instructions"],
            "with the change, as a part of without",
        )?;
        let below =
            "Theirs were published by their authors. Where time and path length differ, one instruction is dear.";
        figure(out, "The experiments' own figures beside ours", below, &plot);
    }
    for over in [Over::Pages, Over::Processes, Over::WorkingSet, Over::Nesting] {
        let growths: Vec<&Growth> = report.growth.iter().filter(|growth| growth.over == over).collect();
        if growths.is_empty() {
            continue;
        }
        // The legend has no room for the part that all names share.
        let series: Vec<Series> = growths
            .iter()
            .map(|growth| Series {
                name: growth.series.name.rsplit('/').next().unwrap_or_default().to_owned(),
                points: growth.series.points.clone(),
            })
            .collect();
        let plot = plot::lines(&series, over.unit(), "instructions of one operation")?;
        let below: Vec<String> = growths.iter().filter_map(|growth| growth.words()).collect();
        figure(out, over.heading(), &below.join(". "), &plot);
    }
    Ok(())
}

fn table(out: &mut String, report: &Report) {
    let with_cycles = report.rows.iter().any(|measured| measured.cycles.is_some());
    let heading = if with_cycles { "<th class=\"n\">cycles</th>" } else { "" };
    let _ = write!(
        out,
        "<div class=\"wide\"><table><thead><tr><th>row</th><th>seed</th><th class=\"n\">instructions</th>\
         <th class=\"n\">target</th><th class=\"n\">Linux</th>{heading}<th>events of one operation</th></tr></thead><tbody>",
    );
    for measured in &report.rows {
        let row = measured.row;
        let words = measured.events.as_ref().map_or_else(
            || "not seen".to_owned(),
            |events| {
                let happened = Event::ALL
                    .iter()
                    .zip(events)
                    .filter(|(_, count)| **count != Ratio::ZERO);
                happened
                    .map(|(event, count)| format!("{count} {}", event.name()))
                    .collect::<Vec<_>>()
                    .join(", ")
            },
        );
        let cycles = match &measured.cycles {
            Some(cycles) => format!("<td class=\"n\">{}</td>", plot::digits(cycles.median)),
            None if with_cycles => "<td></td>".to_owned(),
            None => String::new(),
        };
        let _ = write!(
            out,
            "<tr><td><code>{}</code></td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td>{cycles}<td class=\"w\">{}",
            escaped(row.name),
            row.seed.unwrap_or(""),
            measured.shown(),
            row.target.map_or_else(String::new, |target| format!("≤ {target}")),
            report.on_linux(row),
            escaped(words)
        );
        for failure in &measured.failures {
            let _ = write!(out, "<br><span class=\"bad\">FAILED: {}</span>", escaped(failure));
        }
        out.push_str("</td></tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn seeds(out: &mut String, report: &Report) {
    out.push_str(
        "<div class=\"wide\"><table><thead><tr><th>seed</th><th>what</th><th>theirs, on real CPUs</th>\
         <th>ours, in instructions</th></tr></thead><tbody>",
    );
    for seed in SEEDS {
        let ours: Vec<String> = report
            .rows
            .iter()
            .filter(|measured| seed.rows.contains(&measured.row.name))
            .map(|measured| format!("{} <code>{}</code>", measured.instructions, escaped(measured.row.name)))
            .collect();
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"t\">{}</td><td class=\"t\">{}</td><td class=\"w\">{}</td></tr>",
            seed.number,
            escaped(seed.what),
            escaped(seed.theirs),
            ours.join("<br>")
        );
    }
    out.push_str("</tbody></table></div>");
}

/// The page.
pub(crate) fn page(report: &Report, extras: &Extras) -> Result<String> {
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Kernel entry paths in instructions</title><link rel=\"icon\" href=\"data:,\">\
         <style>{}</style></head><body><h1>Kernel entry paths in instructions</h1>\
         <p>Instructions of one operation, exact: QEMU {} TCG, one tick of the clock an instruction, CPU {} ({}). \
         The entering instruction counts; the loop around it is taken off.</p>\
         <p class=\"soft\">Instructions are not cycles: IRET, WRMSR and a write of CR3 count one each here, like any \
         other. Events that cost more on a real CPU are listed with each row.</p><div class=\"plots\">",
        style(),
        escaped(&report.qemu),
        escaped(&report.cpu),
        escaped(&report.cpu_name),
    );
    plots(&mut out, report, extras).map_err(not_drawn)?;
    out.push_str("</div><h2>The experiments' own figures</h2><p class=\"soft\">Theirs are times of real CPUs of their day, ours are path lengths: the two cannot be compared as numbers. A path length cannot show what IRET or a flag write costs.</p>");
    seeds(&mut out, report);
    let _ = write!(
        out,
        "<h2>All rows</h2><p class=\"soft\">Linux: in the same emulator on its {} model, optional work off / as \
         distributed. In brackets: recorded of Linux 6.1 for the nearest call. Without: measured in this run{}.</p>",
        linux::CPU,
        report
            .linux_version
            .as_ref()
            .map_or_else(String::new, |version| format!(" on Linux {}", escaped(version)))
    );
    table(&mut out, report);
    if !report.skipped.is_empty() {
        out.push_str("<h2>Not measured here</h2><ul>");
        for (row, reason) in &report.skipped {
            let _ = write!(out, "<li><code>{}</code>: {}</li>", escaped(row), escaped(reason));
        }
        out.push_str("</ul>");
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

/// Figures of a report that looks like a real one, for tests of the page: each row takes its target.
pub(crate) fn sample() -> (Report, Extras) {
    let rows: Vec<crate::bench::report::Measured> = crate::bench::row::ROWS
        .iter()
        .map(|row| crate::bench::report::Measured {
            row,
            instructions: Ratio::whole(row.target.unwrap_or(5)),
            spread: Ratio::ZERO,
            events: Some([Ratio::whole(1); Event::ALL.len()]),
            cycles: None,
            failures: Vec::new(),
        })
        .collect();
    let phases = |whole: Ratio| Phases {
        entry: whole.minus(Ratio::whole(3)),
        handler: Ratio::whole(1),
        exit: Ratio::whole(2),
    };
    let extras = Extras {
        phases: rows
            .iter()
            .map(|measured| (measured.row.name, phases(measured.instructions)))
            .collect(),
    };
    let report = Report {
        cpu: "Skylake-Client".to_owned(),
        cpu_name: "Intel Core Processor (Skylake)".to_owned(),
        qemu: "7.2.22".to_owned(),
        rows,
        skipped: vec![("sysenter/null/64".to_owned(), "no SYSENTER <here>".to_owned())],
        peers: vec![crate::bench::peer::Measured {
            name: "peer/trapframe/null",
            shown: "trapframe",
            beside: "syscall/null/full",
            instructions: Ratio::whole(91),
        }],
        linux: vec![crate::bench::linux::Measured {
            name: "syscall/null/full".to_owned(),
            instructions: [221, 208, 194].map(Ratio::whole).to_vec(),
        }],
        linux_version: Some("6.1.0-57-cloud-amd64".to_owned()),
        passes: Vec::new(),
        growth: vec![
            growth::sample(
                Over::Pages,
                "fault/zero-page/iret",
                &[(16.0, 170.0), (128.0, 171.0), (1024.0, 171.2)],
            ),
            growth::sample(Over::WorkingSet, "a/b", &[(0.0, 500.0), (16.0, 500.0), (64.0, 500.0)]),
        ],
        host: None,
    };
    (report, extras)
}

/// What is wrong with the figures of a page as a browser holds it: each must have its marks.
pub(crate) fn missing_marks(document: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut figures = 0;
    for part in document.split("<figure ").skip(1) {
        figures += 1;
        let picture = part.split("</figure>").next().unwrap_or_default();
        let wanted = picture
            .strip_prefix("data-marks=\"")
            .and_then(|rest| rest.split('"').next())
            .and_then(|number| number.parse::<usize>().ok());
        let found = plot::marks_in(picture);
        if wanted != Some(found) || found == 0 {
            wrong.push(format!("plot {figures} has {found} marks, not {wanted:?}"));
        }
    }
    if figures == 0 {
        wrong.push("there is no plot".to_owned());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_page() -> String {
        let (report, extras) = sample();
        page(&report, &extras).unwrap()
    }

    #[test]
    fn page_names_every_row_and_fetches_nothing() {
        let page = sample_page();
        for row in crate::bench::row::ROWS {
            assert!(page.contains(row.name), "{}", row.name);
        }
        for fetch in ["src=", "href=\"http", "url(", "@import", "<script"] {
            assert!(!page.contains(fetch), "{fetch}");
        }
        assert!(page.contains("no SYSENTER &lt;here&gt;"));
    }

    #[test]
    fn cycles_have_a_column_when_there_are_any() {
        let (mut report, extras) = sample();
        let columns = |report: &Report| page(report, &extras).unwrap().contains(">cycles</th>");
        assert!(!columns(&report));
        report.rows[0].cycles = Some(crate::bench::cycles::Cycles {
            median: 123_456.5,
            interval: (123_450.0, 123_460.25),
            outliers: Vec::new(),
            samples: 31,
        });
        assert!(columns(&report));
        assert!(page(&report, &extras).unwrap().contains(">123456.5</td>"));
    }

    #[test]
    fn seeds_stand_beside_rows_that_there_are() {
        for seed in &SEEDS {
            for name in seed.rows {
                assert_eq!(
                    crate::bench::row::find(name).and_then(|row| row.seed),
                    Some(seed.number),
                    "{name}"
                );
            }
        }
        let (report, _) = sample();
        // Both rows of seed 003 are 5 in the sample.
        assert_eq!(SEEDS[2].ours(&report), Some(1.0));
        assert_eq!(SEEDS[3].ours(&report), Some(1.0));
        assert!(SEEDS[0].ours(&report).is_some_and(|part| part > 1.0));
    }

    #[test]
    fn picture_of_null_calls_has_all_three_kinds_and_a_dark_form() {
        let (mut report, _) = sample();
        let picture = picture(&report).unwrap();
        for name in [
            "full stub",
            "trapframe/null",
            "Linux, optional work off",
            "prefers-color-scheme:dark",
        ] {
            assert!(picture.contains(name), "{name}");
        }
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        report.rows.clear();
        assert!(super::picture(&report).is_err());
    }

    #[test]
    fn picture_of_other_rows_is_refused_before_they_are_measured() {
        let check = |filter| check_picture(Path::new("x.svg"), &crate::bench::row::matching(filter));
        assert!(check("syscall/null").is_ok());
        let error = check("pipe").unwrap_err().to_string();
        assert!(error.contains("none of these rows is one; use a filter"), "{error}");
    }

    #[test]
    fn linux_is_plotted_when_this_run_measured_it() {
        let (mut report, extras) = sample();
        assert!(page(&report, &extras).unwrap().contains("Beside Linux"));
        assert!(
            page(&report, &extras)
                .unwrap()
                .contains("measured in this run on Linux 6.1.0-57-cloud-amd64.")
        );
        report.linux.clear();
        assert!(!page(&report, &extras).unwrap().contains("Beside Linux"));
    }

    #[test]
    fn plots_have_their_marks_and_a_lost_one_is_noticed() {
        let page = sample_page();
        assert_eq!(missing_marks(&page), Vec::<String>::new());
        let lost = page.replacen("<circle ", "<ellipse ", 1);
        assert_eq!(missing_marks(&lost).len(), 1);
        assert_eq!(missing_marks("<p>"), ["there is no plot"]);
    }
}
