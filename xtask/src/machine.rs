//! QEMU's command line as a value: version, accelerator, CPU model, clock and log.

pub(crate) mod bochs;
pub(crate) mod disc;
pub(crate) mod guest;

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::error::{Error, Result};
use crate::toolchain::query;

/// The emulator's program name.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// The model that figures are quoted for.
pub(crate) const DEFAULT_CPU: &str = "Skylake-Client";

/// The other vendor, for tests.
pub(crate) const AMD_CPU: &str = "EPYC";

/// A model without SMAP, FSGSBASE and other late features, for tests of the entry paths.
pub(crate) const PLAIN_CPU: &str = "Nehalem";

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM where the host has VMX or SVM and /dev/kvm opens, else TCG
    Auto,
    /// QEMU's translator: works everywhere
    Tcg,
    /// The host's virtualisation
    Kvm,
}

/// Options of every verb that boots.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// What runs the guest's instructions
    #[arg(long, value_enum, default_value = "auto", value_name = "ACCEL")]
    pub(crate) accel: AccelChoice,

    /// CPU model, one of `qemu-system-x86_64 -cpu help` [default: Skylake-Client; host under KVM]
    #[arg(long, value_name = "MODEL")]
    pub(crate) cpu: Option<String>,

    /// Memory of the guest in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u32).range(32..=65536))]
    pub(crate) memory: u32,

    /// Seconds after which a guest that has not ended is stopped
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: u64,

    /// Show the QEMU command and everything the guest prints
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

impl Options {
    /// How long a guest may take.
    pub(crate) const fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The accelerator that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accel {
    /// The translator.
    Tcg,
    /// The host's virtualisation.
    Kvm,
}

impl Accel {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }
}

/// Why KVM cannot be used; `None` when it can.
fn kvm_obstacle() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !has_virtualisation(&cpuinfo) {
        return Some("/proc/cpuinfo has neither vmx nor svm".to_owned());
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .err()
        .map(|error| format!("/dev/kvm does not open ({error})"))
}

/// Whether the host's CPU offers VMX or SVM.
fn has_virtualisation(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_ascii_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

/// Takes the accelerator, with the reason.
pub(crate) fn choose(choice: AccelChoice) -> Result<(Accel, String)> {
    match (choice, kvm_obstacle()) {
        (AccelChoice::Tcg, _) => Ok((Accel::Tcg, "asked for".to_owned())),
        (AccelChoice::Kvm, None) => Ok((Accel::Kvm, "asked for".to_owned())),
        (AccelChoice::Kvm, Some(why)) => Err(Error::Invalid {
            field: "--accel",
            value: "kvm".to_owned(),
            why: format!("but {why}"),
            remedy: "use `--accel tcg`".to_owned(),
        }),
        (AccelChoice::Auto, None) => Ok((Accel::Kvm, "the host has VMX or SVM and /dev/kvm opens".to_owned())),
        (AccelChoice::Auto, Some(why)) => Ok((Accel::Tcg, why)),
    }
}

/// An emulator that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Qemu {
    /// The program.
    pub(crate) path: PathBuf,
    /// Its version.
    pub(crate) version: (u32, u32, u32),
}

/// Reads the version from the first line of `qemu-system-x86_64 --version`.
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let word = text.split("version ").nth(1)?.split_ascii_whitespace().next()?;
    let mut numbers = word.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    Some((
        numbers.next()??,
        numbers.next()??,
        numbers.next().flatten().unwrap_or(0),
    ))
}

impl Qemu {
    /// Looks for the emulator in `PATH`; `None` when it is not installed.
    pub(crate) fn find() -> Result<Option<Self>> {
        let Ok(path) = which::which(QEMU) else {
            return Ok(None);
        };
        let text = query(&path.to_string_lossy(), &["--version"]).unwrap_or_default();
        let unusable = |why: &str| Error::Invalid {
            field: QEMU,
            value: path.display().to_string(),
            why: why.to_owned(),
            remedy: "install QEMU 7.2 or newer".to_owned(),
        };
        match parse_version(&text) {
            None => Err(unusable("which does not tell its version")),
            Some(version) if version < (7, 2, 0) => Err(unusable("which is older than 7.2")),
            Some(version) => Ok(Some(Self { path, version })),
        }
    }

    /// The version as it is written.
    pub(crate) fn version_text(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("{major}.{minor}.{patch}")
    }

    /// Checks a CPU model against the emulator's own list.
    pub(crate) fn check_model(&self, model: &str) -> Result<()> {
        let help = query(&self.path.to_string_lossy(), &["-cpu", "help"]).unwrap_or_default();
        let known = models(&help);
        // Features may follow the name after a comma.
        let name = model.split(',').next().unwrap_or(model);
        if known.is_empty() || known.contains(&name) {
            return Ok(());
        }
        let close = known
            .iter()
            .find(|candidate| candidate.eq_ignore_ascii_case(name))
            .map_or(String::new(), |candidate| format!("did you mean `{candidate}`? "));
        Err(Error::Invalid {
            field: "--cpu",
            value: model.to_owned(),
            why: format!("which QEMU {} does not know", self.version_text()),
            remedy: format!("{close}`{QEMU} -cpu help` lists the models, such as {DEFAULT_CPU} and {AMD_CPU}"),
        })
    }
}

/// Model names in the output of `-cpu help`.
fn models(help: &str) -> Vec<&str> {
    help.lines()
        .take_while(|line| !line.starts_with("Recognized CPUID"))
        .filter_map(|line| {
            // Before version 9 each line starts with the architecture's name.
            let line = line.strip_prefix("x86 ").unwrap_or(line);
            line.split_ascii_whitespace().next()
        })
        .filter(|word| *word != "Available")
        .collect()
}

/// What the guest's clocks show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Time that passes outside.
    Host,
    /// One tick for each instruction.
    Instructions,
    /// The same, and nothing else differs from boot to boot either: the date is always the same, waiting takes no time
    /// outside, and what looks random to the guest follows from this number.
    Repeatable(u32),
}

/// What to boot.
#[derive(Debug, Clone)]
pub(crate) struct Boot {
    /// Kernel ELF file.
    pub(crate) kernel: PathBuf,
    /// Archive of user programs.
    pub(crate) archive: Option<PathBuf>,
    /// Command line for the kernel.
    pub(crate) append: String,
}

/// One emulated machine, ready to start.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// The emulator.
    pub(crate) qemu: Qemu,
    /// What runs the instructions.
    pub(crate) accel: Accel,
    /// CPU model.
    pub(crate) cpu: String,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// What to boot.
    pub(crate) boot: Boot,
    /// What the clocks show.
    pub(crate) clock: Clock,
    /// Log each instruction executed in these ranges to standard error; empty for no log.
    pub(crate) logged: Vec<Range<u64>>,
    /// The host's CPU on which the emulator stays; any if there is none.
    pub(crate) on_cpu: Option<usize>,
}

/// The last CPU that this program may use: the first ones serve most of the devices.
pub(crate) fn last_cpu() -> Option<usize> {
    let allowed = sched_getaffinity(None).ok()?;
    (0..CpuSet::MAX_CPU).rev().find(|&number| allowed.is_set(number))
}

impl Machine {
    /// The command to start. Serial output goes to standard output.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.qemu.path);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        let one_at_a_time = !self.logged.is_empty();
        let by_property = self.qemu.version >= (8, 1, 0);
        let accel = if one_at_a_time && by_property {
            format!("{},one-insn-per-tb=on", self.accel.name())
        } else {
            self.accel.name().to_owned()
        };
        command.args(["-accel", &accel]);
        if one_at_a_time && !by_property {
            command.arg("-singlestep");
        }
        command.args(["-cpu", &self.cpu, "-m", &format!("{}M", self.memory)]);
        match self.clock {
            Clock::Host => {}
            Clock::Instructions => {
                command.args(["-icount", "shift=0"]);
            }
            Clock::Repeatable(seed) => {
                command.args(["-icount", "shift=0,sleep=off", "-rtc", "base=2020-01-01,clock=vm"]);
                command.args(["-seed", &seed.to_string()]);
            }
        }
        command.args(["-chardev", "stdio,id=com1,signal=off", "-serial", "chardev:com1"]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
        command.arg("-kernel").arg(&self.boot.kernel);
        if let Some(archive) = &self.boot.archive {
            command.arg("-initrd").arg(archive);
        }
        if !self.boot.append.is_empty() {
            command.args(["-append", &self.boot.append]);
        }
        if one_at_a_time {
            let ranges: Vec<String> = self
                .logged
                .iter()
                .map(|range| format!("{:#x}..{:#x}", range.start, range.end.saturating_sub(1)))
                .collect();
            command.args(["-d", "exec,nochain,int", "-dfilter", &ranges.join(",")]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// A command as a line that can be pasted into a shell.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=:".contains(c);
            if word.chars().all(plain) && !word.is_empty() {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether a path can be given to QEMU, which takes commas in some options for separators.
pub(crate) fn check_path(path: &Path) -> Result<()> {
    if path.to_string_lossy().contains(',') {
        return Err(Error::Invalid {
            field: "the build directory",
            value: path.display().to_string(),
            why: "which has a comma in its name, where QEMU sees the end of an option".to_owned(),
            remedy: "set CARGO_TARGET_DIR to a directory without one".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(version: (u32, u32, u32)) -> Machine {
        Machine {
            qemu: Qemu {
                path: PathBuf::from(QEMU),
                version,
            },
            accel: Accel::Tcg,
            cpu: DEFAULT_CPU.to_owned(),
            memory: 256,
            boot: Boot {
                kernel: PathBuf::from("kernel"),
                archive: Some(PathBuf::from("archive")),
                append: "init=bin/bench -- --rounds 4".to_owned(),
            },
            clock: Clock::Instructions,
            logged: Vec::new(),
            on_cpu: None,
        }
    }

    #[test]
    fn timed_run_has_the_instruction_clock_and_no_log() {
        assert_eq!(
            shown(&machine((7, 2, 22)).command()),
            "qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -accel tcg \
             -cpu Skylake-Client -m 256M -icount shift=0 -chardev stdio,id=com1,signal=off \
             -serial chardev:com1 -device isa-debug-exit,iobase=0xf4,iosize=0x04 -kernel kernel \
             -initrd archive -append 'init=bin/bench -- --rounds 4'"
        );
    }

    #[test]
    fn logged_run_steps_by_the_option_that_the_version_has() {
        let logged = vec![0x20_0000..0x20_1000, 0xffff_ffff_8000_0000..0xffff_ffff_8001_0000];
        let line = |version| {
            shown(
                &Machine {
                    logged: logged.clone(),
                    on_cpu: None,
                    ..machine(version)
                }
                .command(),
            )
        };
        assert!(line((7, 2, 22)).contains("-accel tcg -singlestep "));
        assert!(line((8, 0, 0)).contains("-accel tcg -singlestep "));
        assert!(line((8, 1, 0)).contains("-accel tcg,one-insn-per-tb=on "));
        assert!(
            line((10, 0, 0))
                .ends_with("-d exec,nochain,int -dfilter 0x200000..0x200fff,0xffffffff80000000..0xffffffff8000ffff")
        );
    }

    #[test]
    fn repeatable_run_has_its_own_date_and_random_numbers() {
        let line = shown(
            &Machine {
                clock: Clock::Repeatable(2),
                ..machine((7, 2, 22))
            }
            .command(),
        );
        assert!(line.contains(" -icount shift=0,sleep=off -rtc base=2020-01-01,clock=vm -seed 2 "));
    }

    #[test]
    fn kvm_has_no_instruction_clock() {
        let line = shown(
            &Machine {
                accel: Accel::Kvm,
                clock: Clock::Host,
                cpu: "host".to_owned(),
                ..machine((7, 2, 22))
            }
            .command(),
        );
        assert!(line.contains("-accel kvm -cpu host -m 256M -chardev"));
        assert!(!line.contains("icount"));
    }

    #[test]
    fn version_is_read_with_and_without_a_distribution_suffix() {
        assert_eq!(
            parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"),
            Some((7, 2, 22))
        );
        assert_eq!(parse_version("QEMU emulator version 9.2.0"), Some((9, 2, 0)));
        assert_eq!(parse_version("QEMU emulator version 10.0.2-rc1"), Some((10, 0, 2)));
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn models_are_read_in_both_forms_of_the_list() {
        let old = "Available CPUs:\nx86 486                   (alias)\nx86 EPYC                  (alias)\n\nRecognized CPUID flags:\n  3dnow acpi\n";
        assert_eq!(models(old), ["486", "EPYC"]);
        let new = "Available CPUs:\n  486                   (alias)\n  EPYC                  (alias)\n\nRecognized CPUID flags:\n  3dnow\n";
        assert_eq!(models(new), ["486", "EPYC"]);
    }

    #[test]
    fn virtualisation_is_a_whole_word_of_the_flags_line() {
        assert!(has_virtualisation("flags\t\t: fpu vme vmx sse\n"));
        assert!(has_virtualisation("flags : svm\n"));
        assert!(!has_virtualisation("flags : fpu vmxx\nmodel name : svm\n"));
    }
}
