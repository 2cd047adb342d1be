//! `cargo xtask test`: host tests, then every test image in both emulators.

pub(crate) mod ablate;
pub(crate) mod boot;
pub(crate) mod browser;
pub(crate) mod golden;
pub(crate) mod host;
pub(crate) mod iso;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bench;
use crate::bench::cycles;
use crate::build::{self, Built, Profile};
use crate::error::{Error, Result};
use crate::machine::bochs::{self, Bochs};
use crate::machine::guest::{self, NoLog};
use crate::machine::{self, AMD_CPU, Accel, Boot, Clock, DEFAULT_CPU, Machine, PLAIN_CPU, Qemu, shown};
use crate::run::model;
use crate::setup::{Need, Setup};
use crate::workspace::Workspace;

/// Images whose stubs depend on what the CPU has: they boot on a model that has next to nothing, too.
const ON_A_PLAIN_CPU_TOO: [&str; 6] = [
    "boot",
    "entry_exceptions",
    "entry_int80",
    "entry_user",
    "kpti",
    "nested",
];

/// Images whose interrupts have to come after any instruction: boundaries are hit by counting instructions.
pub(crate) fn counts_instructions(image: &str) -> bool {
    image.starts_with("sweep") || image.starts_with("irqs_on_") || image == "user_context"
}

/// Images that say something else, or the same with more right, on a machine that checks more: entries and exits, the
/// sweeps over them, and what they stand on. The rest is about the kernel's own calls.
fn boots_in_bochs(image: &str) -> bool {
    ["entry_", "sweep_"].iter().any(|start| image.starts_with(start))
        || [
            "boot",
            "differential",
            "iret_fault",
            "irqs_on_nested",
            "kpti",
            "landing",
            "legacy32",
            "memory",
            "nested",
            "screen",
            "should_panic",
            "sysenter",
            "user_context",
        ]
        .contains(&image)
}

/// How much more time the long form may take.
const LONGER: u32 = 10;

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Images boot on an Intel and on an AMD model of QEMU, those of entry and exit also on both of Bochs,
some on one without SMAP and FSGSBASE; with --cpu only on that one of QEMU. The disc of `iso`
boots by BIOS, by UEFI and in Bochs.
The last line is `N passed, N failed`, with `, N skipped` when tests could not run here.")]
pub(crate) struct Args {
    /// Only tests whose name contains this; the name of an image boots that one, and runs nothing else
    filter: Option<String>,

    /// Only this: build without the guard of that name, or without each in turn, and demand that its test fails
    #[arg(long, value_name = "NAME|all", conflicts_with = "filter")]
    ablate: Option<String>,

    /// Only this: keep the main rows' listings as this compiler and QEMU execute them
    #[arg(long, conflicts_with = "ablate")]
    bless: bool,

    /// Sweeps and storms in their long form: with interrupts inside each other at every boundary, and ten times the storms
    #[arg(long, conflicts_with = "ablate")]
    long: bool,

    #[command(flatten)]
    machine: machine::Options,

    /// What cannot run has failed
    #[arg(skip)]
    strict: bool,
}

impl Args {
    /// Everything, and nothing may be missing: what `ci` runs.
    pub(crate) const fn all(machine: machine::Options) -> Self {
        Self {
            filter: None,
            ablate: None,
            bless: false,
            long: false,
            machine,
            strict: true,
        }
    }

    /// How long an image may take.
    const fn limit(&self) -> Duration {
        let limit = self.machine.limit();
        if self.long { limit.saturating_mul(LONGER) } else { limit }
    }

    /// The command line of an image.
    fn command_line(&self, words: String) -> String {
        if self.long { format!("{words} long") } else { words }
    }
}

/// How tests ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

impl Counts {
    /// Adds another account.
    pub(crate) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    const fn total(self) -> u32 {
        self.passed + self.failed + self.skipped
    }

    /// The last line of a verb that tests.
    pub(crate) fn line(self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        line
    }
}

/// What the images boot on, found before anything is built.
struct Emulator {
    qemu: Qemu,
    accel: Accel,
    /// The CPU models.
    models: Vec<String>,
    /// Whether no model was asked for.
    are_usual: bool,
    /// The second emulator, or why there is none.
    bochs: std::result::Result<Bochs, String>,
}

impl Emulator {
    fn find(setup: &Setup, options: &machine::Options) -> Result<Self> {
        let qemu = setup.require_qemu()?;
        let (accel, why) = machine::choose(options.accel)?;
        let mut models = vec![model(options, accel, &qemu)?];
        let are_usual = options.cpu.is_none() && accel == Accel::Tcg;
        if are_usual {
            models = vec![DEFAULT_CPU.to_owned(), AMD_CPU.to_owned()];
        }
        // Installed where that is possible; elsewhere its boots are skipped, or have failed in `ci`.
        let bochs = setup.require_bochs().map_err(|error| error.to_string());
        eprintln!("images will boot on {accel:?} ({why})");
        Ok(Self {
            qemu,
            accel,
            models,
            are_usual,
            bochs,
        })
    }
}

/// Boots the smallest kernel, which has no tests: its program says a line, and ends it with the verdict.
fn boot_minimal(machine: &Machine, options: &machine::Options) -> Result<Counts> {
    const SAYS: &str = "[minimal] the program says 42";
    let ended = guest::boot(machine, options.limit(), &mut NoLog, &mut |_| ())?;
    let mut counts = Counts::default();
    if ended.is_success() && ended.lines.iter().any(|line| line == SAYS) {
        println!("ok       {} on {}", build::MINIMAL, machine.cpu);
        counts.passed = 1;
    } else {
        let said = if ended.is_success() {
            format!("no line `{SAYS}`")
        } else {
            ended.trouble()
        };
        println!("FAILED   {} on {}: {said}", build::MINIMAL, machine.cpu);
        counts.failed = 1;
    }
    Ok(counts)
}

/// The image whose name the filter is, if it is one's.
fn named_image<'a>(workspace: &Workspace, filter: Option<&'a str>) -> Option<&'a str> {
    filter.filter(|filter| workspace.test_images.iter().any(|image| image == filter))
}

/// Boots every image on every model, in QEMU and in Bochs; or the one that the filter names.
fn images(workspace: &Workspace, setup: &mut Setup, emulator: Emulator, args: &Args) -> Result<Counts> {
    let filter = args.filter.as_deref();
    let Emulator {
        qemu,
        accel,
        models,
        are_usual,
        bochs,
    } = emulator;
    let built = build::build(workspace, setup, Profile::Release)?;
    let mut counts = Counts::default();
    let named = named_image(workspace, filter);
    if named.is_none() || args.bless {
        let listings = golden::run(workspace, &built, &qemu, filter, args.bless, &args.machine)?;
        if args.bless {
            return Ok(listings);
        }
        counts.add(listings);
        counts.add(bench::test_unknown_call(&built, &qemu, filter, &args.machine)?);
        counts.add(cycles::rehearse(&built, &qemu, filter, &args.machine)?);
    }
    if filter.is_none_or(|filter| build::MINIMAL.contains(filter)) {
        for cpu in &models {
            let machine = Machine {
                qemu: qemu.clone(),
                accel,
                cpu: cpu.clone(),
                memory: args.machine.memory,
                boot: Boot {
                    kernel: built.minimal.clone(),
                    archive: None,
                    append: String::new(),
                },
                clock: Clock::Host,
                logged: Vec::new(),
                on_cpu: None,
            };
            counts.add(boot_minimal(&machine, &args.machine)?);
        }
    }
    let matching = boot::matching(workspace, filter)?;
    let wanted: Vec<&str> = matching.iter().map(|(name, _)| name.as_str()).collect();
    let kernels = if wanted.is_empty() {
        Vec::new()
    } else {
        setup.require(Need::TestImages)?;
        let which = filter.map_or_else(String::new, |_| format!(": {}", wanted.join(", ")));
        eprintln!("building test images{which}");
        boot::build_images(workspace, &wanted)?
    };
    for (name, kernel) in kernels {
        let tests = matching.iter().find(|(image, _)| *image == name);
        let tests = tests.map_or(&[][..], |(_, tests)| tests);
        let only = filter.filter(|filter| !name.contains(filter));
        let archive = archive_of(workspace, &built, &name, &kernel)?;
        let is_entry = are_usual && ON_A_PLAIN_CPU_TOO.contains(&name.as_str());
        let plain = is_entry.then(|| PLAIN_CPU.to_owned());
        let boot = |append| Boot {
            kernel: kernel.clone(),
            archive: Some(archive.clone()),
            append: args.command_line(append),
        };
        for cpu in models.iter().chain(&plain) {
            let start = |append, on_line: &mut dyn FnMut(&str)| {
                let machine = Machine {
                    qemu: qemu.clone(),
                    accel,
                    cpu: cpu.clone(),
                    memory: args.machine.memory,
                    boot: boot(append),
                    clock: if counts_instructions(&name) {
                        Clock::Instructions
                    } else {
                        Clock::Host
                    },
                    logged: Vec::new(),
                    on_cpu: None,
                };
                if args.machine.verbose {
                    eprintln!("{}", shown(&machine.command()));
                }
                guest::boot(&machine, args.limit(), &mut NoLog, on_line)
            };
            counts.add(boot::run_image(&name, cpu, tests, only, args.machine.verbose, &start)?);
        }
        // With --cpu the name is that of one of QEMU's models.
        if args.machine.cpu.is_some() || !boots_in_bochs(&name) {
            continue;
        }
        counts.add(match &bochs {
            Ok(bochs) => in_bochs(bochs, workspace, args, (&name, tests, only), &boot)?,
            Err(why) => without_bochs(&name, why, args.strict),
        });
    }
    // Its firmware and its menu take a model of their own.
    if are_usual {
        let bench = iso::Bench {
            workspace,
            setup,
            qemu: &qemu,
            bochs: &bochs,
            built: &built,
            strict: args.strict,
            verbose: args.machine.verbose,
        };
        counts.add(iso::run(&bench, filter)?);
    }
    println!("boot: {}", counts.line());
    Ok(counts)
}

/// The archive that a test image boots with. That of a sweep names the boundaries of the image itself.
pub(crate) fn archive_of(workspace: &Workspace, built: &Built, image: &str, kernel: &Path) -> Result<PathBuf> {
    if !image.starts_with("sweep") {
        return Ok(built.archive.clone());
    }
    let path = workspace.guest_target().join(format!("programs-{image}.cpio"));
    build::write_archive(&path, &built.programs, kernel)?;
    Ok(path)
}

/// Boots an image on each of Bochs' models.
fn in_bochs(
    bochs: &Bochs,
    workspace: &Workspace,
    args: &Args,
    (name, tests, only): (&str, &[String], Option<&str>),
    boot: &dyn Fn(String) -> Boot,
) -> Result<Counts> {
    let mut counts = Counts::default();
    let (directory, verbose) = (workspace.guest_target(), args.machine.verbose);
    let more = (name == "entry_options").then_some(bochs::WITH_SPEC_CTRL);
    for cpu in bochs::MODELS.into_iter().chain(more) {
        let start = |append, on_line: &mut dyn FnMut(&str)| {
            bochs.boot(cpu, &boot(append), &directory, args.limit(), verbose, on_line)
        };
        let model = format!("Bochs {cpu}");
        counts.add(boot::run_image(name, &model, tests, only, verbose, &start)?);
    }
    Ok(counts)
}

/// Counts the boots that cannot be. With `strict` they have failed.
fn without_bochs(name: &str, why: &str, strict: bool) -> Counts {
    let boots = u32::try_from(bochs::MODELS.len()).unwrap_or(u32::MAX);
    let outcome = if strict { "FAILED  " } else { "skipped " };
    println!("{name} [Bochs] {outcome} {why}");
    Counts {
        passed: 0,
        failed: if strict { boots } else { 0 },
        skipped: if strict { 0 } else { boots },
    }
}

/// Runs what the arguments ask for and counts.
pub(crate) fn tests(args: &Args) -> Result<Counts> {
    if let Some(filter) = &args.filter
        && (filter.is_empty() || filter.contains(char::is_whitespace) || filter.starts_with('-'))
    {
        return Err(Error::Invalid {
            field: "the filter",
            value: filter.clone(),
            why: "which is no part of a test's name".to_owned(),
            remedy: "use letters, digits, `_`, `:` and `/`".to_owned(),
        });
    }
    let workspace = Workspace::find()?;
    let mut setup = Setup::new(&workspace);
    workspace.writable()?;
    // What cannot be had or was named wrongly is said before the long work.
    let emulator = Emulator::find(&setup, &args.machine)?;
    let mut counts = Counts::default();
    if !args.bless && named_image(&workspace, args.filter.as_deref()).is_none() {
        counts.add(browser::run(&setup, args.filter.as_deref(), args.strict)?);
        counts.add(host::run(&workspace, args.filter.as_deref(), args.machine.verbose)?);
    }
    counts.add(images(&workspace, &mut setup, emulator, args)?);
    if let Some(filter) = &args.filter
        && counts.total() == 0
    {
        return Err(Error::Invalid {
            field: "the filter",
            value: filter.clone(),
            why: "which matches no test".to_owned(),
            remedy: "`cargo xtask test --verbose` names them all".to_owned(),
        });
    }
    Ok(counts)
}

/// Prints the line that ends every verb that tests, and gives the verdict.
pub(crate) fn conclude(counts: Counts) -> Result<()> {
    println!("{}", counts.line());
    if counts.failed == 0 {
        Ok(())
    } else {
        Err(Error::Counted)
    }
}

/// `cargo xtask test`.
pub(crate) fn run(args: &Args) -> Result<()> {
    conclude(match &args.ablate {
        Some(name) => ablate::run(name)?,
        None => tests(args)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_without_bochs_is_skipped_and_fails_where_nothing_may_be_missing() {
        let count = |strict| without_bochs("memory", "bochs is missing", strict).line();
        assert_eq!(count(false), "0 passed, 0 failed, 2 skipped");
        assert_eq!(count(true), "0 passed, 2 failed");
    }

    #[test]
    fn entries_exits_and_sweeps_boot_in_bochs() {
        assert!(
            [
                "entry_user",
                "sweep_nmi",
                "boot",
                "memory",
                "differential",
                "landing",
                "iret_fault"
            ]
            .into_iter()
            .all(boots_in_bochs)
        );
        assert!(!boots_in_bochs("elf"));
    }

    #[test]
    fn last_line_names_skipped_tests_when_there_are_any() {
        let mut counts = Counts {
            passed: 4,
            failed: 0,
            skipped: 0,
        };
        assert_eq!(counts.line(), "4 passed, 0 failed");
        counts.skipped = 2;
        assert_eq!(counts.line(), "4 passed, 0 failed, 2 skipped");
    }
}
