//! `cargo xtask run`: boots the kernel with one program and shows what it prints.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::build::elf32;
use crate::build::image::Image;
use crate::build::{self, Profile, write_archive};
use crate::error::{Error, Result};
use crate::machine::guest::{self, NoLog};
use crate::machine::{self, Accel, Boot, Clock, DEFAULT_CPU, Machine, Qemu, shown};
use crate::setup::Setup;
use crate::workspace::Workspace;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Standard output has what the guest prints. The status is 0 when the program ends with 0, else 1.
For example: `cargo xtask run --program crash -- ud2`")]
pub(crate) struct Args {
    /// Program to run as process 1: a name from example-os/user, or the path of a static ELF file for x86-64 or i386
    #[arg(long, default_value = "init", value_name = "NAME|PATH")]
    program: String,

    /// How the compiler optimises
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,

    #[command(flatten)]
    machine: machine::Options,

    /// Arguments for the program
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

/// The most bytes that the kernel takes for a command line; QEMU lets one of 4 KiB overwrite what it tells the kernel.
pub(crate) const LONGEST_COMMAND_LINE: usize = 1024;

/// The kernel's command line that starts a program.
pub(crate) fn command_line(program: &str, arguments: &[String]) -> String {
    let mut line = format!("init=bin/{program}");
    if !arguments.is_empty() {
        line.push_str(" -- ");
        line.push_str(&arguments.join(" "));
    }
    line
}

/// The CPU model to use, checked against the emulator's list.
pub(crate) fn model(options: &machine::Options, accel: Accel, qemu: &Qemu) -> Result<String> {
    match &options.cpu {
        Some(model) if accel == Accel::Tcg && model.split(',').next() == Some("host") => Err(Error::Invalid {
            field: "--cpu",
            value: model.clone(),
            why: "which is the host's own under KVM, and this boots on TCG".to_owned(),
            remedy: format!("take a model that TCG has, such as {DEFAULT_CPU}"),
        }),
        Some(model) => qemu.check_model(model).map(|()| model.clone()),
        None if accel == Accel::Kvm => Ok("host".to_owned()),
        None => Ok(DEFAULT_CPU.to_owned()),
    }
}

/// A name for an archive that no other run uses, which may have been given another program; the file goes with it.
fn archive_of_its_own(workspace: &Workspace) -> Result<TempPath> {
    let directory = workspace.guest_target();
    tempfile::Builder::new()
        .prefix("programs-")
        .suffix(".cpio")
        .tempfile_in(&directory)
        .map(tempfile::NamedTempFile::into_temp_path)
        .map_err(|source| Error::File {
            action: "write to",
            path: directory,
            source,
            remedy: "make it writable",
        })
}

/// Whether the kernel's loader could take a file, as far as its header says.
fn check_program(path: &Path) -> Result<()> {
    let is_32_bit = fs::read(path).is_ok_and(|bytes| elf32::is_program(&bytes));
    if is_32_bit { Ok(()) } else { Image::read(path).map(drop) }
}

/// `cargo xtask run`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let mut setup = Setup::new(&workspace);
    let qemu = setup.require_qemu()?;
    let (accel, why) = machine::choose(args.machine.accel)?;
    let cpu = model(&args.machine, accel, &qemu)?;
    let from_file = args.program.contains('/');
    if from_file {
        check_program(Path::new(&args.program))?;
    } else if !workspace.programs.contains(&args.program) {
        return Err(Error::Invalid {
            field: "--program",
            value: args.program.clone(),
            why: "which is no program of example-os/user".to_owned(),
            remedy: format!(
                "take one of {}, or a path with a slash in it",
                workspace.programs.join(", ")
            ),
        });
    }
    let name = if from_file {
        let file = Path::new(&args.program).file_name();
        file.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    } else {
        args.program.clone()
    };
    if let Some(bad) = args
        .arguments
        .iter()
        .chain([&name])
        .find(|word| word.is_empty() || word.contains(char::is_whitespace))
    {
        return Err(Error::Invalid {
            field: "an argument",
            value: bad.clone(),
            why: "which is empty or has a space, where the kernel's command line ends a word".to_owned(),
            remedy: "use words without spaces".to_owned(),
        });
    }
    if command_line(&name, &args.arguments).len() > LONGEST_COMMAND_LINE {
        return Err(Error::Invalid {
            field: "the number of bytes in the arguments",
            value: args.arguments.join(" ").len().to_string(),
            why: format!("but the kernel's command line has room for {LONGEST_COMMAND_LINE} in all"),
            remedy: "give fewer or shorter ones".to_owned(),
        });
    }
    let mut built = build::build(&workspace, &mut setup, args.profile)?;
    let given = if from_file {
        Some(archive_of_its_own(&workspace)?)
    } else {
        None
    };
    if let Some(archive) = &given {
        built.programs.retain(|(known, _)| *known != name);
        built.programs.push((name.clone(), PathBuf::from(&args.program)));
        built.archive = archive.to_path_buf();
        write_archive(&built.archive, &built.programs, &built.kernel)?;
    }
    eprintln!("booting on {accel:?} ({why}), CPU {cpu}, {} MiB", args.machine.memory);
    let machine = Machine {
        qemu,
        accel,
        cpu,
        memory: args.machine.memory,
        boot: Boot {
            kernel: built.kernel,
            archive: Some(built.archive),
            append: command_line(&name, &args.arguments),
        },
        clock: Clock::Host,
        logged: Vec::new(),
        on_cpu: None,
    };
    if args.machine.verbose {
        eprintln!("{}", shown(&machine.command()));
    }
    let ended = guest::boot(&machine, args.machine.limit(), &mut NoLog, &mut |line| {
        println!("{line}")
    })?;
    if let Some(time) = ended.until_user {
        eprintln!("first user instruction after {:.2} s", time.as_secs_f64());
    }
    if ended.is_success() {
        Ok(())
    } else {
        Err(ended.error(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_names_program_and_arguments() {
        assert_eq!(command_line("hello", &[]), "init=bin/hello");
        assert_eq!(
            command_line("bench", &["--rounds".to_owned(), "4".to_owned()]),
            "init=bin/bench -- --rounds 4"
        );
    }
}
