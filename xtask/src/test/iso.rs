//! Boots the disc of `cargo xtask iso` as its users do: from a stick by BIOS and by UEFI, and from a drive in Bochs.
//!
//! Each of the three has another clock, so that the table has to say three things: nothing but ratios in QEMU's own time,
//! ticks where a machine passes for a real one, instructions in Bochs, which counts them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bench::row::ROWS;
use crate::build::Built;
use crate::error::Result;
use crate::iso::{self, Default};
use crate::machine::bochs::{self, Bochs};
use crate::machine::disc::{self, DISC};
use crate::machine::guest::{self, Ended, NoLog, Serial};
use crate::machine::{DEFAULT_CPU, Qemu, shown};
use crate::progress::Progress;
use crate::setup::Setup;
use crate::test::Counts;
use crate::workspace::Workspace;

/// UEFI firmware for QEMU, code and variables, where distributions have it.
const OVMF: [(&str, &str); 2] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
];
/// The distribution's package that holds it.
pub(crate) const OVMF_PACKAGES: [&str; 1] = ["ovmf"];
/// The image whose tests are started from the menu.
const TESTED: &str = "boot";
/// Firmware and GRUB come before the guest.
const LIMIT: Duration = Duration::from_secs(120);

/// UEFI firmware that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ovmf {
    code: &'static str,
    variables: &'static str,
}

impl Ovmf {
    /// Looks for it; the error is the file that is not there.
    pub(crate) fn find() -> std::result::Result<Self, String> {
        let found = OVMF
            .into_iter()
            .find(|(code, variables)| Path::new(code).exists() && Path::new(variables).exists());
        let (code, variables) = found.ok_or_else(|| OVMF[0].0.to_owned())?;
        Ok(Self { code, variables })
    }
}

/// What the table says that its figures are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figures {
    Instructions,
    Ticks,
    Ratios,
}

impl Figures {
    /// The line above the table.
    const fn line(self) -> &'static str {
        match self {
            Self::Instructions => "Instructions of one operation, without the loop around it:",
            Self::Ticks => "Ticks of its time-stamp counter for one operation, the loop around it included:",
            Self::Ratios => "How many times as long as the first row one operation takes here:",
        }
    }
}

/// A machine that boots the disc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    /// QEMU with its BIOS, from a disk.
    Bios,
    /// The same without the device that ends it, from a drive.
    BiosThatStays,
    /// QEMU with UEFI, from a stick. It hides that it is an emulator.
    Uefi,
    /// Bochs with its BIOS, from a drive.
    Bochs,
}

/// What is demanded of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demand {
    Table(Figures),
    Tests,
}

/// Every test.
const TESTS: [(&str, Machine, Demand); 5] = [
    ("iso::benchmarks_by_bios", Machine::Bios, Demand::Table(Figures::Ratios)),
    ("iso::benchmarks_by_uefi", Machine::Uefi, Demand::Table(Figures::Ticks)),
    (
        "iso::benchmarks_in_bochs",
        Machine::Bochs,
        Demand::Table(Figures::Instructions),
    ),
    ("iso::tests_by_uefi", Machine::Uefi, Demand::Tests),
    (
        "iso::tests_on_a_machine_that_stays",
        Machine::BiosThatStays,
        Demand::Tests,
    ),
];

/// QEMU's command line.
fn command(qemu: &Qemu, machine: Machine, ovmf: Option<Ovmf>) -> Command {
    let mut command = Command::new(&qemu.path);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    let hidden = if machine == Machine::Uefi { ",-hypervisor" } else { "" };
    command.args(["-accel", "tcg", "-cpu", &format!("{DEFAULT_CPU}{hidden}"), "-m", "256M"]);
    command.args(["-vga", "std"]);
    if let Some(ovmf) = ovmf {
        let flash = |of: &str, how: &str| format!("if=pflash,format=raw,{how}=on,file={of}");
        command.args(["-drive", &flash(ovmf.code, "readonly")]);
        command.args(["-drive", &flash(ovmf.variables, "snapshot")]);
    }
    command.args(["-drive", &format!("if=none,id=disc,format=raw,readonly=on,file={DISC}")]);
    command.args(match machine {
        Machine::Uefi => &["-device", "qemu-xhci", "-device", "usb-storage,drive=disc"][..],
        Machine::BiosThatStays => &["-device", "ide-cd,drive=disc"],
        Machine::Bios | Machine::Bochs => &["-device", "virtio-blk-pci,drive=disc"],
    });
    command.args(["-chardev", "stdio,id=com1,signal=off", "-serial", "chardev:com1"]);
    if machine != Machine::BiosThatStays {
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The figures of a row in the table, if it has any.
fn figures<'a>(lines: &'a [String], row: &str) -> Option<Vec<&'a str>> {
    let mut found = lines.iter().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        (name == row).then(|| rest.split_ascii_whitespace().collect::<Vec<_>>())
    });
    let figures = found.next()?;
    // A row that is there twice has none that can be trusted.
    found.next().is_none().then_some(figures)
}

/// What is wrong with a table.
fn complaints(lines: &[String], kind: Figures) -> Vec<String> {
    let mut wrong = Vec::new();
    if !lines.iter().any(|line| line == kind.line()) {
        wrong.push(format!("no line `{}`", kind.line()));
    }
    for row in ROWS.iter().filter(|row| !row.on_request) {
        let name = row.name;
        let Some(figures) = figures(lines, name) else {
            wrong.push(format!("no one line of {name}"));
            continue;
        };
        let numbers: Option<Vec<f64>> = figures.iter().map(|figure| figure.parse().ok()).collect();
        match (kind, numbers.as_deref()) {
            // Each vendor lacks another way in.
            (_, None) if figures.starts_with(&["-", "this", "CPU", "has", "no"]) => {}
            // Waiting is a matter of instructions.
            (Figures::Ticks | Figures::Ratios, None) if name.starts_with("interrupt/") && figures[0] == "-" => {}
            (Figures::Ticks, Some(&[_, median])) if median > 0.0 => {}
            (Figures::Ratios, Some(&[ratio])) if ratio >= 0.0 => {}
            (Figures::Instructions, Some(&[smallest, median])) => {
                let most = row.target.map_or(f64::INFINITY, f64::from);
                if smallest != median || median > most {
                    wrong.push(format!(
                        "{name} takes {smallest} to {median} instructions, the target is {most}"
                    ));
                }
            }
            _ => wrong.push(format!("{name} has the figures `{}`", figures.join(" "))),
        }
    }
    let last = " rows measured, ";
    if !lines
        .iter()
        .any(|line| line.contains(last) && line.ends_with(", 0 failed"))
    {
        wrong.push("no last line without failures".to_owned());
    }
    wrong.extend(strangers(lines, kind, last));
    wrong
}

/// Lines between the head of the table and its last line that are no rows.
fn strangers(lines: &[String], kind: Figures, last: &str) -> Vec<String> {
    let below = lines.iter().skip_while(|line| *line != kind.line()).skip(2);
    let inside = below.take_while(|line| !line.contains(last));
    let name = |line: &str| line.split(' ').next().map(str::to_owned).unwrap_or_default();
    inside
        .filter(|line| crate::bench::row::find(&name(line)).is_none())
        .map(|line| format!("`{line}` is in the table"))
        .collect()
}

/// What is wrong with a boot.
fn judge(ended: &Ended, machine: Machine, demand: Demand) -> Vec<String> {
    if !ended.is_success() {
        return vec![ended.trouble()];
    }
    let mut wrong = match demand {
        Demand::Table(figures) => complaints(&ended.lines, figures),
        Demand::Tests => {
            let is_verdict = |line: &String| line.starts_with("[tests] ") && line.contains(" passed, 0 failed");
            if ended.lines.iter().any(is_verdict) {
                Vec::new()
            } else {
                vec!["no verdict of the tests".to_owned()]
            }
        }
    };
    let stays = ended.lines.iter().any(|line| line.starts_with("[halt] "));
    if stays != (machine == Machine::BiosThatStays) {
        wrong.push("whether the machine ends by itself is not what it said".to_owned());
    }
    wrong
}

/// What the tests boot, and in what.
pub(crate) struct Bench<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) setup: &'a Setup,
    pub(crate) qemu: &'a Qemu,
    /// The second emulator, or why there is none.
    pub(crate) bochs: &'a std::result::Result<Bochs, String>,
    pub(crate) built: &'a Built,
    /// What cannot run has failed.
    pub(crate) strict: bool,
    pub(crate) verbose: bool,
}

impl Bench<'_> {
    /// Boots the disc in `place`.
    fn boot(&self, machine: Machine, place: &Path, ovmf: Option<Ovmf>, progress: &Progress) -> Result<Ended> {
        let mut on_line = |line: &str| {
            if self.verbose {
                progress.line(line);
            }
        };
        if let (Machine::Bochs, Ok(bochs)) = (machine, self.bochs) {
            return bochs.boot_disc(bochs::MODELS[0], place, LIMIT, self.verbose, &mut on_line);
        }
        let mut command = command(self.qemu, machine, ovmf);
        command.current_dir(place);
        if self.verbose {
            progress.line(&shown(&command));
        }
        guest::watch(command, Serial::Output, LIMIT, &mut NoLog, &mut on_line)
    }
}

/// Runs the tests whose names contain `filter`.
pub(crate) fn run(bench: &Bench<'_>, filter: Option<&str>) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut chosen = TESTS.to_vec();
    chosen.retain(|(name, ..)| filter.is_none_or(|filter| name.contains(filter)));
    if chosen.is_empty() {
        return Ok(counts);
    }
    let grub = bench.setup.require_grub().map_err(|error| error.to_string());
    let ovmf = bench.setup.require_ovmf().map_err(|error| error.to_string());
    let images = iso::images(bench.workspace, bench.built)?;
    for (name, machine, demand) in chosen {
        let missing = match machine {
            Machine::Uefi => ovmf.as_ref().err(),
            Machine::Bochs => bench.bochs.as_ref().err(),
            Machine::Bios | Machine::BiosThatStays => None,
        };
        let grub = match (&grub, missing) {
            (Ok(grub), None) => grub,
            (Err(why), _) | (_, Some(why)) => {
                counts.add(not_run(name, why, bench.strict));
                continue;
            }
        };
        let progress = Progress::start(format!("booting {name}"));
        let place = disc::place(&bench.workspace.guest_target())?;
        let default = match demand {
            Demand::Table(_) => Default::Benchmarks,
            Demand::Tests => Default::Tests(TESTED),
        };
        iso::make(grub, place.path(), bench.built, &images, default)?;
        let uefi = ovmf.as_ref().ok().filter(|_| machine == Machine::Uefi);
        let ended = bench.boot(machine, place.path(), uefi.copied(), &progress)?;
        let wrong = judge(&ended, machine, demand);
        if wrong.is_empty() {
            progress.line(&format!("ok       {name}"));
            counts.passed += 1;
            continue;
        }
        for line in ended.tail() {
            progress.line(&format!("  | {line}"));
        }
        progress.line(&format!("FAILED   {name}: {}", wrong.join("; ")));
        counts.failed += 1;
    }
    Ok(counts)
}

/// Counts a boot that cannot be. With `strict` it has failed.
fn not_run(name: &str, why: &str, strict: bool) -> Counts {
    println!("{}  {name}: {why}", if strict { "FAILED " } else { "skipped" });
    Counts {
        passed: 0,
        failed: u32::from(strict),
        skipped: u32::from(!strict),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn line(machine: Machine, ovmf: Option<Ovmf>) -> String {
        let qemu = Qemu {
            path: PathBuf::from("qemu"),
            version: (7, 2, 0),
        };
        shown(&command(&qemu, machine, ovmf))
    }

    /// A table whose rows all have these figures.
    fn table(kind: Figures, figures: &str) -> Vec<String> {
        let mut lines = vec![kind.line().to_owned(), "row  min  median".to_owned()];
        for row in ROWS.iter().filter(|row| !row.on_request) {
            lines.push(format!("{:<36}{figures}", row.name));
        }
        lines.push("40 rows measured, 0 without a figure, 0 failed".to_owned());
        lines
    }

    #[test]
    fn machine_with_uefi_hides_that_it_is_an_emulator() {
        let ovmf = Ovmf {
            code: "code",
            variables: "variables",
        };
        let line = line(Machine::Uefi, Some(ovmf));
        assert!(line.contains(" -cpu Skylake-Client,-hypervisor "), "{line}");
        assert!(line.contains("if=pflash,format=raw,readonly=on,file=code "), "{line}");
        assert!(line.contains("usb-storage,drive=disc"), "{line}");
    }

    #[test]
    fn machine_that_stays_has_no_device_that_ends_it() {
        assert!(line(Machine::Bios, None).contains("isa-debug-exit"));
        assert!(!line(Machine::BiosThatStays, None).contains("isa-debug-exit"));
    }

    #[test]
    fn good_tables_pass() {
        for (kind, figures) in [
            (Figures::Ticks, "71.0  80.5"),
            (Figures::Ratios, "1.3"),
            (Figures::Instructions, "0.0  0.0"),
        ] {
            assert!(complaints(&table(kind, figures), kind).is_empty());
        }
    }

    #[test]
    fn a_table_of_other_figures_fails() {
        let lines = table(Figures::Ticks, "71.0  80.5");
        assert!(complaints(&lines, Figures::Ratios).len() > ROWS.len() / 2);
        let slow = table(Figures::Instructions, "65.0  65.0");
        let wrong = complaints(&slow, Figures::Instructions);
        assert!(
            wrong.contains(&"syscall/null/full takes 65 to 65 instructions, the target is 64".to_owned()),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_row_that_is_missing_or_has_no_figure_fails() {
        let mut lines = table(Figures::Ratios, "1.3");
        lines[2] = "syscall/null/full                      -  reason".to_owned();
        assert_eq!(
            complaints(&lines, Figures::Ratios),
            ["syscall/null/full has the figures `- reason`"]
        );
        lines[2] = "syscall/null/full                      -  this CPU has no SYSCALL in 32-bit code".to_owned();
        assert!(complaints(&lines, Figures::Ratios).is_empty());
        lines.remove(2);
        assert_eq!(
            complaints(&lines, Figures::Ratios),
            ["no one line of syscall/null/full"]
        );
        lines.pop();
        assert_eq!(complaints(&lines, Figures::Ratios).len(), 2);
    }

    #[test]
    fn a_line_that_is_no_row_fails_inside_the_table_only() {
        let mut lines = table(Figures::Ratios, "1.3");
        lines.insert(0, "[boot] before".to_owned());
        lines.push("[exit] success".to_owned());
        assert!(complaints(&lines, Figures::Ratios).is_empty());
        lines.insert(9, "[code] ffff8003 48".to_owned());
        assert_eq!(
            complaints(&lines, Figures::Ratios),
            ["`[code] ffff8003 48` is in the table"]
        );
    }

    #[test]
    fn boot_that_cannot_be_is_skipped_and_fails_where_nothing_may_be_missing() {
        assert_eq!(
            not_run("iso::x", "ovmf is missing", false).line(),
            "0 passed, 0 failed, 1 skipped"
        );
        assert_eq!(not_run("iso::x", "ovmf is missing", true).line(), "0 passed, 1 failed");
    }
}
