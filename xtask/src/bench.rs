//! `cargo xtask bench`: exact instructions and events of each kernel entry path.
//!
//! Three boots of one image. Two are timed by the instruction clock and must agree to the last digit; in
//! the third, with fewer rounds, QEMU logs every instruction. The log gives the executed path of each timed
//! stretch, the events on it, and a second count that must equal the first.

pub(crate) mod baseline;
pub(crate) mod clock;
pub(crate) mod cost;
pub(crate) mod cycles;
pub(crate) mod event;
pub(crate) mod figure;
pub(crate) mod growth;
pub(crate) mod html;
pub(crate) mod linux;
pub(crate) mod listing;
pub(crate) mod passes;
pub(crate) mod peer;
pub(crate) mod phase;
pub(crate) mod plot;
pub(crate) mod ratio;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod spent;
pub(crate) mod trace;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::bench::baseline::Baseline;
use crate::bench::clock::Kind;
use crate::bench::cost::Model;
use crate::bench::event::Event;
use crate::bench::figure::{Figures, Repeat, Timing, per_operation};
use crate::bench::growth::{Growth, Wanted};
use crate::bench::html::Extras;
use crate::bench::passes::Passes;
use crate::bench::ratio::Ratio;
use crate::bench::report::{Measured, Report};
use crate::bench::row::{ROWS, Row};
use crate::bench::spent::Meter;
use crate::bench::trace::{Code, Recorder, Totals};
use crate::build::image::Image;
use crate::build::{self, Built, Profile};
use crate::error::{Error, Result, closest};
use crate::machine::guest::{self, Ended, LogSink, NoLog};
use crate::machine::{self, Accel, Boot, Clock, Machine, Qemu, shown};
use crate::progress::Progress;
use crate::run::{LONGEST_COMMAND_LINE, command_line, model};
use crate::setup::Setup;
use crate::test::Counts;
use crate::workspace::{Workspace, prepare_file, write_whole};

/// The program that is timed.
const PROGRAM: &str = "bench";
/// Before a word, it says to the program that every row is meant whose name contains that.
const PART_OF_NAME: char = '~';
/// Before the rest of the command line, it makes the kernel say what code it has generated.
const TELL_CODE: &str = "code ";
/// Its marks around each timed stretch.
const MARKS: (&str, &str) = ("bench_mark_begin", "bench_mark_end");
/// The kernel's context switches, by the end of their paths.
const SWITCHES: [&str; 3] = [
    "switch::switch_stacks",
    "legacy32::code::switch_by_wrmsr",
    "legacy32::code::switch_by_trampoline",
];
/// Where the kernel puts a landing page into the program, and its code: `pop rcx`, `pop r11`, `ret 128`.
const LANDING_PAGE: (u64, [u8; 6]) = (0x7fff_fbff_f000, [0x59, 0x41, 0x5b, 0xc2, 128, 0]);
/// Where the kernel puts the page by which 32-bit code enters it, and its code on a CPU with SYSENTER: three pushes,
/// `mov ebp, esp`, `sysenter`, three pops, `ret`.
const CALL_PAGE: (u64, [u8; 11]) = (
    0xfbff_e000,
    [0x51, 0x52, 0x55, 0x89, 0xe5, 0x0f, 0x34, 0x5d, 0x5a, 0x59, 0xc3],
);
/// Most rounds of the logged run: each costs a line of log for every instruction.
const MOST_LOGGED_ROUNDS: u32 = 128;
/// A boot may take so many times as long when each instruction is logged.
const LOGGING: u32 = 5;
/// Rounds that tests log: enough to tell what happens in each.
const TESTED_ROUNDS: u32 = 8;
/// How often each row is timed on Linux, whose own tick falls into some of the stretches.
const LINUX_REPEATS: u32 = 9;
/// Linux takes longer to boot.
const LINUX_LIMIT: Duration = Duration::from_secs(300);
/// No page costs more than so many instructions for its share of a page table.
const PAGE_TABLE_SHARE: u32 = 3;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Counts are exact: with -icount shift=0 one tick of the guest's clock is one instruction, whatever
the host does. They always come from TCG; where KVM works, cycles of the host's CPU are added.
A row fails when two boots differ, when the executed path has other events than the row's name
promises, or when the path's length is not the count.")]
pub(crate) struct Args {
    /// Only rows whose name contains this
    filter: Option<String>,

    /// Write the results to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the rows to this file as comma-separated values, too
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write a page with plots to this file, too; takes some more boots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write a picture of what a null system call takes, here and wherever else it was measured, to this file, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Measure published crates for the same purpose, too
    #[arg(long)]
    peers: bool,

    /// Run the same program on Linux, too: on this kernel, or on the distribution's (downloaded once)
    #[arg(long, value_name = "KERNEL", num_args = 0..=1)]
    linux: Option<Option<PathBuf>>,

    /// Compare with an earlier run's JSON, and fail if a row takes more instructions now
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,

    /// So many more instructions than in the earlier run are no failure
    #[arg(long, default_value_t = 0, value_name = "N", requires = "baseline")]
    tolerance: u32,

    /// Show, apart from what was measured, what the events would cost by the published figures in this file
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,

    /// Rounds of the shorter of a row's two timed stretches
    #[arg(long, default_value_t = MOST_LOGGED_ROUNDS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,

    /// How often each row is timed in one boot
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,

    /// Print the instructions of one round of this row, in the order in which they were executed
    #[arg(long, value_name = "ROW", conflicts_with_all = ["filter", "json", "csv", "html", "svg", "peers", "linux", "baseline", "model"])]
    listing: Option<String>,

    /// Print the names of the rows that there are, and measure nothing
    #[arg(long, conflicts_with_all = ["json", "csv", "html", "svg", "peers", "linux", "baseline", "model", "listing"])]
    rows: bool,

    /// Time the rows that map pages over 256 MiB and 1 GiB, too, and over 1 GiB a hundred times (takes minutes)
    #[arg(long)]
    full: bool,

    /// How the compiler optimises; figures are only given for release
    #[arg(long, value_enum, default_value = "release", hide = true)]
    profile: Profile,

    #[command(flatten)]
    machine: machine::Options,
}

/// What is booted, and how.
pub(crate) struct Plan {
    /// The machine of timed runs.
    pub(crate) machine: Machine,
    /// How long one boot may take.
    pub(crate) limit: Duration,
    /// Whether everything is shown.
    pub(crate) verbose: bool,
    /// Rounds of the run that is logged.
    pub(crate) logged_rounds: u32,
}

impl Plan {
    /// The kernel's command line that starts the bench program with these rows.
    pub(crate) fn command_line(&self, rounds: u32, repeats: u32, rows: &[&str]) -> String {
        command_line(PROGRAM, &Self::arguments(rounds, repeats, rows))
    }

    /// The same for every row in turn, again and again.
    pub(crate) fn interleaved_command_line(&self, rounds: u32, repeats: u32, rows: &[&str]) -> String {
        let mut words = vec!["--interleaved".to_owned()];
        words.extend(Self::arguments(rounds, repeats, rows));
        command_line(PROGRAM, &words)
    }

    /// A plan for tests, which count instructions on the model that figures are quoted for.
    pub(crate) fn counting(built: &Built, qemu: &Qemu, options: &machine::Options) -> Self {
        Self {
            machine: Machine {
                qemu: qemu.clone(),
                accel: Accel::Tcg,
                cpu: machine::DEFAULT_CPU.to_owned(),
                memory: options.memory,
                boot: Boot {
                    kernel: built.kernel.clone(),
                    archive: Some(built.archive.clone()),
                    append: String::new(),
                },
                clock: Clock::Instructions,
                logged: Vec::new(),
                on_cpu: None,
            },
            limit: options.limit(),
            verbose: options.verbose,
            logged_rounds: TESTED_ROUNDS,
        }
    }

    /// Boots, and reads figures that count instructions.
    pub(crate) fn counted(&self, machine: &Machine, progress: &Progress) -> Result<Figures> {
        let (_, figures) = self.boot(machine, progress, &mut NoLog)?;
        instruction_clock(&figures)?;
        Ok(figures)
    }

    fn arguments(rounds: u32, repeats: u32, rows: &[&str]) -> Vec<String> {
        let mut words = vec![
            "--rounds".to_owned(),
            rounds.to_string(),
            "--repeats".to_owned(),
            repeats.to_string(),
        ];
        words.extend(rows.iter().map(|&row| row.to_owned()));
        words
    }

    /// Boots, and reads the figures.
    pub(crate) fn boot(
        &self,
        machine: &Machine,
        progress: &Progress,
        log: &mut dyn LogSink,
    ) -> Result<(Ended, Figures)> {
        if self.verbose {
            progress.line(&shown(&machine.command()));
        }
        let limit = if machine.logged.is_empty() {
            self.limit
        } else {
            self.limit * LOGGING
        };
        let ended = guest::boot(machine, limit, log, &mut |line| {
            if self.verbose {
                progress.line(line);
            } else {
                progress.note(line);
            }
        })?;
        let figures = Figures::read(ended.lines.iter().map(String::as_str));
        if let Ok(Figures { failed, .. }) = &figures
            && !failed.is_empty()
        {
            return Err(Error::Guest {
                what: format!("a check before timing failed: {}", failed.join("; ")),
                tail: Vec::new(),
                remedy: "mend what the row calls, or leave the row out with a filter".to_owned(),
            });
        }
        // What a guest that was cut off has printed needs no reading.
        if !ended.is_success() {
            return Err(ended.error(self.verbose));
        }
        let unknown = unknown_calls(&ended.lines);
        if !unknown.is_empty() {
            return Err(Error::Guest {
                what: format!("calls were made that the kernel has not: {}", unknown.join(", ")),
                tail: Vec::new(),
                remedy: "give it those, or leave the rows that make them out with a filter".to_owned(),
            });
        }
        let figures = figures.map_err(|malformed| Error::Unexpected {
            what: "the bench program",
            line: malformed.0,
            wanted: "a row with its two timed stretches",
            remedy: "see all lines with --verbose",
        })?;
        Ok((ended, figures))
    }
}

/// What the kernel said of system calls that it does not have: to time them would be to time an error.
fn unknown_calls(lines: &[String]) -> Vec<&str> {
    lines
        .iter()
        .filter_map(|line| line.strip_prefix("[syscall] "))
        .collect()
}

/// The name of the test below, for filters.
const UNKNOWN_CALL: &str = "bench::unknown_call_is_told";

/// Boots a program that makes a call which no kernel has; the kernel must say so.
pub(crate) fn test_unknown_call(
    built: &Built,
    qemu: &Qemu,
    filter: Option<&str>,
    options: &machine::Options,
) -> Result<Counts> {
    let mut counts = Counts::default();
    if filter.is_some_and(|filter| !UNKNOWN_CALL.contains(filter)) {
        return Ok(counts);
    }
    let mut machine = Plan::counting(built, qemu, options).machine;
    machine.boot.append = command_line("crash", &["nosys".to_owned()]);
    let ended = guest::boot(&machine, options.limit(), &mut NoLog, &mut |_| ())?;
    let told = unknown_calls(&ended.lines);
    if told == ["no call 1000"] {
        counts.passed = 1;
    } else {
        println!("FAILED   {UNKNOWN_CALL}: the kernel told of {told:?}");
        counts.failed = 1;
    }
    println!("calls: {}", counts.line());
    Ok(counts)
}

/// Whether the kernel passes so many arguments on.
fn fits(arguments: &[String]) -> bool {
    /// As `MAX_ARGUMENTS` of the kernel.
    const MOST_ARGUMENTS: usize = 32;
    let bytes = TELL_CODE.len() + command_line(PROGRAM, arguments).len();
    arguments.len() <= MOST_ARGUMENTS && bytes <= LONGEST_COMMAND_LINE
}

/// The rows asked for.
fn chosen(args: &Args) -> Result<Vec<&'static Row>> {
    if args.filter.as_deref() == Some("") {
        return Err(Error::Invalid {
            field: "the filter",
            value: String::new(),
            why: "which is no part of a row's name".to_owned(),
            remedy: "leave it out for all rows; `cargo xtask bench --rows` prints their names".to_owned(),
        });
    }
    let (field, wanted, rows) = match (&args.listing, &args.filter) {
        (Some(name), _) => ("--listing", name, row::find(name).into_iter().collect()),
        (None, Some(filter)) => ("the filter", filter, row::matching(filter)),
        (None, None) => return Ok(ROWS.iter().filter(|row| !row.on_request).collect()),
    };
    if rows.is_empty() {
        let names = ROWS.iter().map(|row| row.name);
        return Err(Error::Invalid {
            field,
            value: wanted.clone(),
            why: "which matches no row".to_owned(),
            remedy: format!(
                "the nearest are {}; `cargo xtask bench --rows` prints all",
                closest(wanted, names).join(", ")
            ),
        });
    }
    Ok(rows)
}

/// The clock of a run that is to count instructions; refuses any other.
fn instruction_clock(figures: &Figures) -> Result<clock::Clock> {
    let refused = |what: String| Error::Verdict {
        what: format!("no figures: {what}"),
        remedy: "use a QEMU whose -icount shift=0 is exact (7.2 and later are)".to_owned(),
    };
    let clock = clock::decide(figures).ok_or_else(|| refused("the guest did not measure its clock".to_owned()))?;
    if clock.kind == Kind::Instructions {
        Ok(clock)
    } else {
        Err(refused(format!("the guest's clock is {clock}")))
    }
}

/// What the logged run showed of one row.
struct Seen {
    instructions: Ratio,
    events: [Ratio; Event::ALL.len()],
    failures: Vec<String>,
}

/// Compares a row's path with its ticks, and takes its events.
fn see(repeat: &Repeat, stretches: &[trace::Stretch], code: &Code) -> std::result::Result<Seen, String> {
    let totals = |position: usize| -> std::result::Result<Totals, String> {
        let steps = stretches.get(position).ok_or("the log has no such stretch")?;
        trace::add_up(steps, code).map_err(|pc| format!("the path left the programs at {pc:#x}"))
    };
    let shorter = totals(repeat.shorter.0)?;
    let longer = totals(repeat.longer.0)?;
    let instructions = repeat
        .instructions_per_operation(shorter.instructions, longer.instructions)
        .ok_or("the two stretches have the same number of rounds, or wait for longer than they last")?;
    let mut events = [Ratio::ZERO; Event::ALL.len()];
    for (event, count) in Event::ALL.into_iter().zip(&mut events) {
        *count = per_operation(
            (&repeat.shorter.1, shorter.events.get(event)),
            (&repeat.longer.1, longer.events.get(event)),
            0,
        )
        .ok_or("the two stretches have the same number of rounds")?;
    }
    let mut failures = Vec::new();
    let ticks = repeat.ticks_per_operation();
    if ticks != Some(instructions) {
        failures.push(format!(
            "the executed path has {instructions} instructions, the clock of the same run says {}",
            ticks.map_or_else(|| "nothing".to_owned(), |ticks| ticks.to_string())
        ));
    }
    Ok(Seen {
        instructions,
        events,
        failures,
    })
}

/// Events that differ from what the row's name promises.
fn broken_promises(row: &Row, events: &[Ratio; Event::ALL.len()]) -> Vec<String> {
    row.promise
        .iter()
        .filter_map(|(event, promised)| {
            let found = events[event as usize];
            (found != Ratio::whole(promised))
                .then(|| format!("{found} {} in an operation, promised {promised}", event.name()))
        })
        .collect()
}

/// Puts the two timed boots and the logged one together.
fn judge(
    row: &'static Row,
    first: &Figures,
    second: &Figures,
    seen: std::result::Result<Seen, String>,
    slack: Ratio,
) -> Option<Measured> {
    let of = |figures: &Figures| {
        figures
            .rows
            .iter()
            .find(|(name, _)| name == row.name)
            .map(|(_, repeats)| {
                repeats
                    .iter()
                    .filter_map(Repeat::ticks_per_operation)
                    .collect::<Vec<_>>()
            })
    };
    let (one, two) = (of(first)?, of(second).unwrap_or_default());
    let smallest = *one.iter().min()?;
    let largest = *one.iter().max()?;
    let mut failures = Vec::new();
    if one != two {
        failures.push("two boots do not agree".to_owned());
    }
    let spread = largest.minus(smallest);
    if spread != Ratio::ZERO {
        failures.push(format!("the repeats differ by {spread}"));
    }
    let events = match seen {
        Ok(seen) => {
            failures.extend(seen.failures);
            failures.extend(broken_promises(row, &seen.events));
            let more = smallest.minus(seen.instructions);
            if more < Ratio::ZERO || more > slack {
                failures.push(format!(
                    "{smallest} instructions by the clock, {} in the logged run",
                    seen.instructions
                ));
            }
            Some(seen.events)
        }
        Err(why) => {
            failures.push(why);
            None
        }
    };
    Some(Measured {
        row,
        instructions: smallest,
        spread,
        events,
        cycles: None,
        failures,
    })
}

/// The bench program's ELF file.
fn program(built: &Built) -> Result<&Path> {
    let mut programs = built.programs.iter();
    programs
        .find_map(|(name, path)| (name == PROGRAM).then_some(path.as_path()))
        .ok_or_else(|| Error::Missing {
            what: format!("the user program {PROGRAM}"),
            remedy: "restore example-os/user from the repository".to_owned(),
        })
}

/// The code that a stretch can run through, and the log's start and end.
pub(crate) fn read_code(built: &Built) -> Result<(Code, Recorder)> {
    let kernel = Image::read(&built.kernel)?;
    let user = Image::read(program(built)?)?
        .with_code(LANDING_PAGE.0, &LANDING_PAGE.1)
        .with_code(CALL_PAGE.0, &CALL_PAGE.1);
    let only = |image: &Image, symbol: &str| match image.addresses_of(symbol)[..] {
        [address] => Ok(address),
        ref found => Err(Error::Missing {
            what: format!("the one symbol {symbol} ({} were found)", found.len()),
            remedy: "keep it as a function of its own that is never inlined".to_owned(),
        }),
    };
    let recorder = Recorder::new(only(&user, MARKS.0)?, only(&user, MARKS.1)?);
    let mut switches = Vec::new();
    for switch in SWITCHES {
        switches.push(only(&kernel, switch)?);
    }
    Ok((Code { kernel, user, switches }, recorder))
}

/// Boots with the log on and returns how that run ended, its figures and its timed stretches.
pub(crate) fn logged_run(
    plan: &Plan,
    rows: &[&str],
    code: &Code,
    mut recorder: Recorder,
    progress: &Progress,
) -> Result<(Ended, Figures, Vec<trace::Stretch>)> {
    let machine = Machine {
        boot: Boot {
            // Code that is generated at run time is in no file that the log could be read with.
            append: format!(
                "{TELL_CODE}{}",
                command_line(PROGRAM, &Plan::arguments(plan.logged_rounds, 1, rows))
            ),
            ..plan.machine.boot.clone()
        },
        logged: code.kernel.code_ranges().chain(code.user.code_ranges()).collect(),
        ..plan.machine.clone()
    };
    let (ended, figures) = plan.boot(&machine, progress, &mut recorder)?;
    if recorder.overflowed {
        return Err(Error::Verdict {
            what: "a logged stretch is longer than the recorder keeps".to_owned(),
            remedy: "lower the rounds that a row does at least".to_owned(),
        });
    }
    if recorder.stretches.len() != figures.stretches {
        return Err(Error::Verdict {
            what: format!(
                "the log has {} timed stretches, the program printed {}",
                recorder.stretches.len(),
                figures.stretches
            ),
            remedy: "let the bench program print one line for each pass between its marks".to_owned(),
        });
    }
    Ok((ended, figures, recorder.stretches))
}

/// `bench --listing ROW`.
fn list(plan: &Plan, row: &Row, mut code: Code, recorder: Recorder) -> Result<()> {
    let progress = Progress::start(format!("logging {}", row.name));
    let (ended, figures, stretches) = logged_run(plan, &[row.name], &code, recorder, &progress)?;
    code.read_generated(ended.lines.iter().map(String::as_str));
    drop(progress);
    let (round, timing) = round_of(row.name, &figures, &stretches)?;
    print!("{}", listing::text(round, &code));
    println!("Whose they are:");
    print!("{}", listing::shares(round, &code));
    println!(
        "{}: one round, {} operations and {} instructions around them",
        row.name, timing.operations, timing.overhead
    );
    Ok(())
}

/// One round of a row by the log, with what was printed of its stretch.
pub(crate) fn round_of<'a>(
    name: &str,
    figures: &'a Figures,
    stretches: &'a [trace::Stretch],
) -> Result<(&'a [trace::Step], &'a Timing)> {
    let found = figures.rows.iter().find(|(row, _)| row == name);
    found
        .and_then(|(_, repeats)| {
            let (position, timing) = &repeats.first()?.longer;
            let round = trace::last_round(stretches.get(*position)?, timing.rounds)?;
            Some((round, timing))
        })
        .ok_or_else(|| Error::Verdict {
            what: format!("{name} did not run in whole rounds"),
            remedy: figures.skipped.iter().find(|(row, _)| row == name).map_or_else(
                || "see what it printed with --verbose".to_owned(),
                |(_, reason)| format!("this machine skips it: {reason}"),
            ),
        })
}

/// The rows that match and that Linux has something for.
fn linux_rows(filter: &str) -> Vec<&'static str> {
    let rows = row::matching(filter).into_iter();
    rows.filter(|row| row.linux.is_some()).map(|row| row.name).collect()
}

/// Boots Linux with the same program, once for each setting.
fn on_linux(
    plan: &Plan,
    workspace: &Workspace,
    built: &Built,
    kernel: &linux::Kernel,
    filter: Option<&str>,
) -> Result<Vec<linux::Measured>> {
    let initramfs = workspace.guest_target().join("initramfs.cpio");
    linux::write_initramfs(&initramfs, PROGRAM, program(built)?)?;
    // The program itself skips what needs the control call. Few rows may be named: Linux passes 32 words on.
    let asked = filter.map(linux_rows).unwrap_or_default();
    if filter.is_some() && asked.is_empty() {
        println!("no rows for Linux: none of these can run there");
        return Ok(Vec::new());
    }
    let few = fits(&Plan::arguments(MOST_LOGGED_ROUNDS, LINUX_REPEATS, &asked));
    let names = if few { asked.clone() } else { Vec::new() };
    let arguments = Plan::arguments(MOST_LOGGED_ROUNDS, LINUX_REPEATS, &names);
    let progress = Progress::start(format!("booting Linux {}, {}", kernel.version, kernel.path.display()));
    let mut by_setting = Vec::new();
    for setting in linux::SETTINGS {
        // Linux draws lots: where it is, how its stacks are laid. Two draws are measured, and always the same two.
        let machine = |seed| Machine {
            cpu: linux::CPU.to_owned(),
            memory: plan.machine.memory.max(512),
            clock: Clock::Repeatable(seed),
            boot: Boot {
                kernel: kernel.path.clone(),
                archive: Some(initramfs.clone()),
                append: linux::command_line(setting, PROGRAM, &arguments),
            },
            ..plan.machine.clone()
        };
        let boot = |seed| {
            let machine = machine(seed);
            if plan.verbose {
                progress.line(&shown(&machine.command()));
            }
            let ended = guest::boot(&machine, plan.limit.max(LINUX_LIMIT), &mut NoLog, &mut |line| {
                if plan.verbose {
                    progress.line(line);
                } else {
                    progress.note(line);
                }
            })?;
            Ok(linux::middle(&linux::figures(&ended)?))
        };
        let (first, second) = thread::scope(|scope| {
            let second = scope.spawn(|| boot(2));
            (boot(1), second.join())
        });
        let Ok(second) = second else {
            unreachable!("a boot does not panic");
        };
        by_setting.push(linux::agreed(first?, &second?)?);
    }
    let mut rows = linux::join(&by_setting);
    rows.retain(|row| filter.is_none() || asked.iter().any(|name| *name == row.name));
    if rows.is_empty() {
        println!("no rows for Linux: it skips all of these, which need the kernel's control call");
    }
    Ok(rows)
}

/// Boots each published crate's image twice.
fn peers(plan: &Plan, workspace: &Workspace, setup: &mut Setup) -> Result<Vec<peer::Measured>> {
    let images = peer::build(workspace, setup)?;
    let progress = Progress::start("booting published crates");
    let mut measured = Vec::new();
    for image in images {
        let machine = Machine {
            boot: Boot {
                kernel: image.kernel.clone(),
                archive: None,
                append: String::new(),
            },
            ..plan.machine.clone()
        };
        let (_, first) = plan.boot(&machine, &progress, &mut NoLog)?;
        let (_, second) = plan.boot(&machine, &progress, &mut NoLog)?;
        measured.extend(peer::judge(&image, &first, &second)?);
    }
    Ok(measured)
}

/// Where the instructions of each row go, by its logged path.
fn phases(
    report: &Report,
    logged: &Figures,
    stretches: &[trace::Stretch],
    code: &Code,
) -> Vec<(&'static str, phase::Phases)> {
    let of = |measured: &Measured| {
        let (round, timing) = round_of(measured.row.name, logged, stretches).ok()?;
        phase::of_round(round, code, measured.instructions, timing.operations)
    };
    let rows = report.rows.iter();
    rows.filter_map(|measured| Some((measured.row.name, of(measured)?)))
        .collect()
}

/// Two timed boots.
struct Timed {
    ended: Ended,
    first: Figures,
    second: Figures,
    clock: clock::Clock,
}

/// Two timed boots, one after the other.
fn timed_runs(plan: &Plan, progress: &Progress) -> Result<Timed> {
    let (ended, first) = plan.boot(&plan.machine, progress, &mut NoLog)?;
    let clock = instruction_clock(&first)?;
    progress.line(&format!("clock: {clock}"));
    let (_, second) = plan.boot(&plan.machine, progress, &mut NoLog)?;
    instruction_clock(&second)?;
    Ok(Timed {
        ended,
        first,
        second,
        clock,
    })
}

/// Names in lines that fit the table.
fn wrapped(names: &[&str]) -> String {
    const WIDTH: usize = 100;
    let (mut text, mut column) = (String::new(), 0);
    for name in names {
        if column > 0 && column + 2 + name.len() > WIDTH {
            text.push('\n');
            column = 0;
        }
        text.push_str("  ");
        text.push_str(name);
        column += 2 + name.len();
    }
    text.push('\n');
    text
}

/// `cargo xtask bench`.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.profile != Profile::Release {
        return Err(Error::Invalid {
            field: "--profile",
            value: args.profile.name().to_owned(),
            why: "whose code is several times as long as what anybody runs".to_owned(),
            remedy: "leave --profile out: figures are only given for release".to_owned(),
        });
    }
    let rows = chosen(args)?;
    if args.rows {
        let rows = if args.filter.is_some() {
            rows
        } else {
            ROWS.iter().collect()
        };
        for row in rows {
            println!("{}", row.name);
        }
        return Ok(());
    }
    let workspace = Workspace::find()?;
    let mut setup = Setup::new(&workspace);
    let qemu: Qemu = setup.require_qemu()?;
    // Instructions are counted by TCG, which has no model `host`.
    let cpu = model(&args.machine, Accel::Tcg, &qemu)?;
    machine::choose(args.machine.accel)?;
    for path in [&args.json, &args.csv, &args.html, &args.svg].into_iter().flatten() {
        // A place that cannot be written is said before the work, not after it.
        prepare_file(path)?;
    }
    if let Some(path) = &args.svg {
        html::check_picture(path, &rows)?;
    }
    let baseline = args
        .baseline
        .as_ref()
        .map(|path| Baseline::read(path, &cpu, &rows.iter().map(|row| row.name).collect::<Vec<_>>()))
        .transpose()?;
    let costs = args.model.as_deref().map(Model::read).transpose()?;
    let kernel = match &args.linux {
        Some(given) => Some(linux::kernel(given.as_deref(), &workspace.target.join("linux"))?),
        None => None,
    };
    let built = build::build(&workspace, &mut setup, args.profile)?;
    let (mut code, recorder) = read_code(&built)?;

    // All rows are asked for by silence, so that the program itself says what there is.
    let names: Vec<&str> = if args.filter.is_some() {
        rows.iter().map(|row| row.name).collect()
    } else {
        Vec::new()
    };
    // More than can be named one by one are named by what is common to most of them.
    let filter = args.filter.as_deref().unwrap_or_default();
    let part = format!("{PART_OF_NAME}{filter}");
    let names = if fits(&Plan::arguments(args.rounds, args.repeats, &names)) {
        names
    } else {
        named_in_part(&part, filter, names)
    };
    let plan = Plan {
        machine: Machine {
            qemu: qemu.clone(),
            accel: Accel::Tcg,
            cpu: cpu.clone(),
            memory: args.machine.memory,
            boot: Boot {
                kernel: built.kernel.clone(),
                archive: Some(built.archive.clone()),
                append: command_line(PROGRAM, &Plan::arguments(args.rounds, args.repeats, &names)),
            },
            clock: Clock::Instructions,
            logged: Vec::new(),
            on_cpu: None,
        },
        limit: args.machine.limit(),
        verbose: args.machine.verbose,
        logged_rounds: args.rounds.min(MOST_LOGGED_ROUNDS),
    };
    if let (Some(_), [row]) = (&args.listing, &rows[..]) {
        return list(&plan, row, code, recorder);
    }

    let meter = Meter::start();
    let progress = Progress::start(format!("booting three times on TCG with -icount shift=0, CPU {cpu}"));
    let (timed, logged) = thread::scope(|scope| {
        let logged = scope.spawn(|| logged_run(&plan, &names, &code, recorder, &progress));
        let timed = timed_runs(&plan, &progress);
        (timed, logged.join())
    });
    let Timed {
        ended,
        first,
        second,
        clock,
    } = timed?;
    let Ok(logged) = logged else {
        unreachable!("the logged run does not panic");
    };
    let (logged_end, logged_figures, stretches) = logged?;
    code.read_generated(logged_end.lines.iter().map(String::as_str));
    drop(progress);
    if let Some(time) = ended.until_user {
        eprintln!("first user instruction after {:.2} s", time.as_secs_f64());
    }
    let host = cycles::measure(&plan, args.machine.accel, &names)?;

    // With the same rounds the logged run does the very same; with more, a row that maps pages also maps
    // another page table for every 512.
    let slack = if args.rounds > plan.logged_rounds {
        Ratio::whole(PAGE_TABLE_SHARE)
    } else {
        Ratio::ZERO
    };
    let mut report = Report {
        cpu,
        cpu_name: clock.cpu,
        qemu: qemu.version_text(),
        rows: Vec::new(),
        skipped: first.skipped.clone(),
        peers: if args.peers {
            peers(&plan, &workspace, &mut setup)?
        } else {
            Vec::new()
        },
        linux: Vec::new(),
        linux_version: kernel.as_ref().map(|kernel| kernel.version.clone()),
        growth: Vec::new(),
        host: host.as_ref().map(|(host, _)| host.clone()),
        passes: Vec::new(),
    };
    if let Some(kernel) = &kernel {
        report.linux = on_linux(&plan, &workspace, &built, kernel, args.filter.as_deref())?;
    }
    let mut problems = Vec::new();
    for row in &rows {
        if first.skipped.iter().any(|(name, _)| name == row.name) {
            continue;
        }
        let seen = logged_figures
            .rows
            .iter()
            .find(|(name, _)| name == row.name)
            .and_then(|(_, repeats)| repeats.first())
            .ok_or_else(|| "the logged run has no such row".to_owned())
            .and_then(|repeat| see(repeat, &stretches, &code));
        let slack = if row.maps_pages { slack } else { Ratio::ZERO };
        match judge(row, &first, &second, seen, slack) {
            Some(mut measured) => {
                let figures = host.as_ref().map(|(_, figures)| figures);
                measured.cycles = figures.and_then(|figures| cycles::of(figures, row.name));
                report.rows.push(measured);
            }
            None => problems.push(format!("{}: the bench program did not run it", row.name)),
        }
    }
    for (name, _) in &first.rows {
        if row::find(name).is_none() {
            problems.push(format!("{name}: no promise for this row in xtask/src/bench/row.rs"));
        }
    }
    let timed: Vec<&'static Row> = report.rows.iter().map(|measured| measured.row).collect();
    let wanted = Wanted {
        is_full: args.full,
        is_plotted: args.html.is_some(),
    };
    report.growth = growth::measure(&plan, &timed, wanted)?;
    report.passes = passes::measure(&plan, &timed, args.full)?;
    eprintln!("{}", meter.stop());
    println!("{}", report.tables());
    print!("{}", report.notes());
    if args.filter.is_none() {
        let left: Vec<&str> = ROWS.iter().filter(|row| row.on_request).map(|row| row.name).collect();
        println!("left out, since only their cycles differ from those above, run with a filter:");
        print!("{}", wrapped(&left));
    }
    for problem in &problems {
        println!("FAILED: {problem}");
    }
    let mut worse = 0;
    if let Some(baseline) = &baseline {
        let rows = report
            .rows
            .iter()
            .map(|measured| (measured.row.name, measured.instructions));
        let changes = baseline.compare(rows, args.tolerance);
        for change in &changes {
            println!("{}", change.line());
            worse += usize::from(change.worse);
        }
        let names: Vec<&str> = report.rows.iter().map(|measured| measured.row.name).collect();
        if changes.is_empty() {
            println!("{} rows are as in the earlier run", baseline.common(&names));
        }
        if args.filter.is_none() {
            for name in baseline.missing(&names) {
                println!("WORSE: {name} was measured in the earlier run, is not now");
                worse += 1;
            }
        }
    }
    if let Some(model) = &costs {
        print!("{}", model.text(&report.rows));
    }
    if let Some(path) = &args.json {
        let mut json = report.json();
        if let Some(model) = &costs {
            json["model"] = model.json(&report.rows);
        }
        write_whole(path, format!("{json:#}\n").as_bytes())?;
    }
    if let Some(path) = &args.html {
        let extras = Extras {
            phases: phases(&report, &logged_figures, &stretches, &code),
        };
        write_whole(path, html::page(&report, &extras)?.as_bytes())?;
    }
    if let Some(path) = &args.svg {
        write_whole(path, html::picture(&report)?.as_bytes())?;
    }
    if let Some(path) = &args.csv {
        let text = report.csv().map_err(|error| Error::Verdict {
            what: format!("the rows cannot be written as CSV: {error}"),
            remedy: "use --json".to_owned(),
        })?;
        write_whole(path, &text)?;
    }
    let bad = problems.len()
        + report.growth.iter().filter_map(Growth::failure).count()
        + report.passes.iter().filter_map(Passes::failure).count()
        + report
            .rows
            .iter()
            .filter(|measured| !measured.failures.is_empty())
            .count();
    if bad > 0 {
        return Err(Error::Verdict {
            what: format!("{bad} of {} rows failed", report.rows.len() + problems.len()),
            remedy: "see the lines that start with FAILED above".to_owned(),
        });
    }
    if worse > 0 {
        return Err(Error::Verdict {
            what: format!("{worse} rows are worse than in the earlier run"),
            remedy: "see the lines that start with WORSE above, or raise --tolerance".to_owned(),
        });
    }
    Ok(())
}

/// `part` in place of the names that have `filter` in them, and the others of the experiment that it names.
fn named_in_part<'a>(part: &'a str, filter: &str, names: Vec<&'a str>) -> Vec<&'a str> {
    let others = names.into_iter().filter(|name| !name.contains(filter));
    core::iter::once(part).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ticks: [u64; 4]) -> Figures {
        let line = |rounds, ticks| format!("[bench] row=syscall/null/full rounds={rounds} ticks={ticks} loop=3 ops=1");
        let lines = [
            line(10, ticks[0]),
            line(20, ticks[1]),
            line(10, ticks[2]),
            line(20, ticks[3]),
        ];
        Figures::read(lines.iter().map(String::as_str)).unwrap()
    }

    fn seen(instructions: u32) -> Seen {
        let mut events = [Ratio::ZERO; Event::ALL.len()];
        events[Event::Sysret as usize] = Ratio::whole(1);
        Seen {
            instructions: Ratio::whole(instructions),
            events,
            failures: Vec::new(),
        }
    }

    fn failures(first: [u64; 4], second: [u64; 4], seen: Seen) -> Vec<String> {
        let row = row::find("syscall/null/full").unwrap();
        judge(row, &figures(first), &figures(second), Ok(seen), Ratio::ZERO)
            .unwrap()
            .failures
    }

    const GOOD: [u64; 4] = [655, 1295, 655, 1295];

    #[test]
    fn more_rows_than_the_kernel_can_be_told_are_noticed() {
        assert!(fits(&Plan::arguments(128, 3, &["syscall/null/full"; 28])));
        assert!(!fits(&Plan::arguments(128, 3, &["syscall/null/full"; 29])));
        assert!(!fits(&Plan::arguments(
            128,
            3,
            &["irqflag/simulation/ring3-untouched/and-more"; 24]
        )));
    }

    #[test]
    fn an_experiment_that_is_named_in_part_is_whole_and_can_be_told() {
        let all: Vec<&str> = row::matching("switch").iter().map(|row| row.name).collect();
        assert!(!fits(&Plan::arguments(128, 3, &all)));
        let names = named_in_part("~switch", "switch", all.clone());
        assert!(fits(&Plan::arguments(128, 3, &names)));
        let is_named = |row: &&str| names.contains(row) || row.contains("switch");
        assert!(all.iter().all(is_named));
        assert!(names.contains(&"pipe/latency"));
        assert!(names[1..].iter().all(|name| !name.contains("switch")));
    }

    #[test]
    fn names_are_wrapped_and_none_is_lost() {
        let names = ["switch/pipe/16p-64k/trampoline"; 7];
        let text = wrapped(&names);
        assert!(text.lines().all(|line| line.len() <= 100));
        assert_eq!(text.split_whitespace().count(), 7);
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn agreeing_runs_with_the_promised_events_pass() {
        assert!(failures(GOOD, GOOD, seen(61)).is_empty());
    }

    #[test]
    fn differing_boots_fail() {
        assert_eq!(
            failures(GOOD, [655, 1305, 655, 1305], seen(61)),
            ["two boots do not agree"]
        );
    }

    #[test]
    fn differing_repeats_fail() {
        let odd = [655, 1295, 655, 1305];
        assert_eq!(failures(odd, odd, seen(61)), ["the repeats differ by 1"]);
    }

    #[test]
    fn a_path_of_another_length_fails() {
        assert_eq!(
            failures(GOOD, GOOD, seen(60)),
            ["61 instructions by the clock, 60 in the logged run"]
        );
    }

    #[test]
    fn unpromised_events_fail() {
        let mut seen = seen(61);
        seen.events[Event::Sysret as usize] = Ratio::ZERO;
        seen.events[Event::Iret as usize] = Ratio::whole(1);
        assert_eq!(
            failures(GOOD, GOOD, seen),
            [
                "1 iret in an operation, promised 0",
                "0 sysret in an operation, promised 1"
            ]
        );
    }

    /// Two stretches of a loop around a SYSCALL whose kernel side is SWAPGS, SYSRET, with their ticks.
    fn stretches(ticks_off: u64) -> (Repeat, Vec<trace::Stretch>, Code) {
        let code = Code {
            user: Image::from_code(0x40_2000, &[0x0f, 0x05, 0x48, 0xff, 0xc9, 0x75, 0xf9]),
            kernel: Image::from_code(0xffff_8000, &[0x0f, 0x01, 0xf8, 0x48, 0x0f, 0x07]),
            switches: Vec::new(),
        };
        let round = [
            (0x40_2000, 3),
            (0xffff_8000, 0),
            (0xffff_8003, 0),
            (0x40_2002, 3),
            (0x40_2005, 3),
        ];
        let stretch = |rounds: usize| {
            round
                .into_iter()
                .cycle()
                .take(round.len() * rounds)
                .map(|(pc, level)| trace::Step {
                    pc,
                    level,
                    bits: 64,
                    charged: true,
                    vector: None,
                })
                .collect()
        };
        let timing = |rounds, ticks| crate::bench::figure::Timing {
            row: "syscall/null/full".to_owned(),
            rounds,
            ticks,
            overhead: 2,
            operations: 1,
            idle: 0,
        };
        let repeat = Repeat {
            shorter: (0, timing(2, 17)),
            longer: (1, timing(4, 27 + ticks_off)),
        };
        (repeat, vec![stretch(2), stretch(4)], code)
    }

    #[test]
    fn the_path_gives_length_and_events() {
        let (repeat, stretches, code) = stretches(0);
        let seen = see(&repeat, &stretches, &code).unwrap();
        assert_eq!(seen.instructions, Ratio::whole(3));
        assert_eq!(seen.events[Event::Sysret as usize], Ratio::whole(1));
        assert_eq!(seen.events[Event::Swapgs as usize], Ratio::whole(1));
        assert_eq!(seen.events[Event::Iret as usize], Ratio::ZERO);
        assert!(seen.failures.is_empty());
    }

    #[test]
    fn a_path_that_is_not_what_its_own_clock_says_fails() {
        let (repeat, stretches, code) = stretches(2);
        assert_eq!(
            see(&repeat, &stretches, &code).unwrap().failures,
            ["the executed path has 3 instructions, the clock of the same run says 4"]
        );
    }

    #[test]
    fn a_stretch_without_a_log_fails() {
        let (repeat, stretches, code) = stretches(0);
        assert!(see(&repeat, &stretches[..1], &code).is_err());
    }

    #[test]
    fn a_clock_that_counts_no_instructions_is_refused() {
        let read = |ticks: u64| {
            let lines = [
                "[bench] machine hypervisor=TCGTCGTCGTCG cpu=x".to_owned(),
                "[bench] calibration rounds=10 ticks=103 loop=10".to_owned(),
                format!("[bench] calibration rounds=20 ticks={ticks} loop=10"),
                "[bench] ring0 rounds=10 ticks=225 loop=22".to_owned(),
                "[bench] ring0 rounds=20 ticks=445 loop=22".to_owned(),
            ];
            Figures::read(lines.iter().map(String::as_str)).unwrap()
        };
        assert!(instruction_clock(&read(203)).is_ok());
        let refusal = instruction_clock(&read(204)).unwrap_err().to_string();
        assert!(refusal.contains("the guest's clock is plain TCG"), "{refusal}");
        assert!(instruction_clock(&Figures::default()).is_err());
    }
}
