//! `cargo xtask build`: the user programs, the kernel, and the archive that carries the programs.

pub(crate) mod archive;
pub(crate) mod boundaries;
pub(crate) mod elf32;
pub(crate) mod image;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cargo_metadata::Message;
use clap::ValueEnum;

use crate::build::image::Image;
use crate::error::{Error, Result};
use crate::machine::check_path;
use crate::setup::{Need, Setup};
use crate::toolchain::{Cargo, GUEST_TARGET, Toolchain};
use crate::workspace::{KERNEL, Workspace, write_whole};

/// How the compiler optimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// What figures are quoted for
    Release,
    /// Unoptimised, with overflow checks
    Dev,
}

impl Profile {
    /// Cargo's name for it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "dev",
        }
    }
}

/// Arguments of `build`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How the compiler optimises
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
}

/// The binary of the kernel's package that uses as little of it as it can.
pub(crate) const MINIMAL: &str = "minimal";

/// What a build made.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    /// The kernel's ELF file.
    pub(crate) kernel: PathBuf,
    /// The smallest kernel's.
    pub(crate) minimal: PathBuf,
    /// The user programs: name and ELF file.
    pub(crate) programs: Vec<(String, PathBuf)>,
    /// The archive of the programs.
    pub(crate) archive: PathBuf,
}

/// A cargo call that builds a package's programs for the guest.
pub(crate) fn cargo(package: &str, profile: Profile, target: &Path) -> Cargo {
    Cargo::new(
        Toolchain::Active,
        [
            "build",
            "--package",
            package,
            "--bins",
            "--target",
            GUEST_TARGET,
            "--profile",
            profile.name(),
            "--message-format",
            "json-render-diagnostics",
        ],
    )
    .in_target(target.to_owned())
    .for_guest()
}

/// The executables named in cargo's messages: target name and file.
pub(crate) fn executables(messages: &str) -> Vec<(String, PathBuf)> {
    Message::parse_stream(messages.as_bytes())
        .filter_map(std::result::Result::ok)
        .filter_map(|message| match message {
            Message::CompilerArtifact(artifact) => {
                let file = artifact.executable?;
                Some((artifact.target.name, file.into_std_path_buf()))
            }
            _ => None,
        })
        .collect()
}

/// Writes the archive of these programs, with the boundaries of the image that gets it.
pub(crate) fn write_archive(path: &Path, programs: &[(String, PathBuf)], image: &Path) -> Result<()> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File {
            action,
            path,
            source,
            remedy: "make the build directory writable and build again",
        }
    };
    let mut contents = Vec::new();
    for (name, file) in programs {
        contents.push((name.as_str(), fs::read(file).map_err(failed("read", file))?));
    }
    let boundaries = boundaries::list(&Image::read(image)?)?;
    let programs = contents.iter().map(|(name, bytes)| (*name, &bytes[..]));
    let archive = archive::pack(programs, Some(&boundaries)).map_err(failed("pack programs into", path))?;
    write_whole(path, &archive)
}

/// Writes the ELF32 file of a program of 32-bit code beside what the linker made, and says where.
fn make_elf32(elf64: &Path) -> Result<PathBuf> {
    let bytes = fs::read(elf64).map_err(|source| Error::File {
        action: "read",
        path: elf64.to_owned(),
        source,
        remedy: "build again",
    })?;
    let bytes = elf32::convert(&bytes).map_err(|why| Error::Invalid {
        field: "the program",
        value: elf64.display().to_string(),
        why: format!("which can't be made an ELF32 file: {why}"),
        remedy: "let it be static 32-bit code, linked below 4 GiB".to_owned(),
    })?;
    let path = elf64.with_extension("elf32");
    write_whole(&path, &bytes)?;
    // It runs on Linux, too.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|source| Error::File {
        action: "make executable",
        path: path.clone(),
        source,
        remedy: "make the build directory writable and build again",
    })?;
    Ok(path)
}

/// Builds everything that a boot needs.
pub(crate) fn build(workspace: &Workspace, setup: &mut Setup, profile: Profile) -> Result<Built> {
    setup.require(Need::Guest)?;
    workspace.writable()?;
    let target = workspace.guest_target();
    check_path(&target)?;

    eprintln!("building user programs ({})", profile.name());
    let mut programs = executables(&cargo(&workspace.user_package, profile, &target).output(workspace)?);
    // A file that the loader cannot take is found here, not in the guest.
    for (name, file) in &mut programs {
        Image::read(file)?;
        if elf32::is_wanted(name) {
            *file = make_elf32(file)?;
        }
    }
    eprintln!("building the kernel ({})", profile.name());
    let kernels = executables(&cargo(KERNEL, profile, &target).output(workspace)?);
    let binary = |wanted: &str| {
        let found = kernels.iter().find(|(name, _)| name == wanted);
        found.map(|(_, file)| file.clone()).ok_or_else(|| Error::Missing {
            what: format!("the executable {wanted} of {KERNEL}"),
            remedy: format!("let the package have a binary named {wanted}"),
        })
    };
    let (kernel, minimal) = (binary(KERNEL)?, binary(MINIMAL)?);
    let archive = target.join(format!("programs-{}.cpio", profile.name()));
    write_archive(&archive, &programs, &kernel)?;
    Ok(Built {
        kernel,
        minimal,
        programs,
        archive,
    })
}

/// `cargo xtask build`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let built = build(&workspace, &mut Setup::new(&workspace), args.profile)?;
    println!("kernel     {}", built.kernel.display());
    for (name, file) in &built.programs {
        println!("program    {name} {}", file.display());
    }
    println!("archive    {}", built.archive.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_builds_name_package_target_and_profile() {
        let cargo = cargo("example-os", Profile::Release, Path::new("/t"));
        assert_eq!(
            cargo.shown(),
            "cargo build --package example-os --bins --target x86_64-unknown-none --profile release \
             --message-format json-render-diagnostics"
        );
        assert!(cargo.guest);
    }

    #[test]
    fn executables_are_found_among_other_messages() {
        let messages = r#"{"reason":"build-finished","success":true}
{"reason":"compiler-artifact","package_id":"path+file:///w/u#user@0.1.0","manifest_path":"/w/u/Cargo.toml","target":{"kind":["bin"],"crate_types":["bin"],"name":"init","src_path":"/w/u/init.rs","edition":"2024","doc":true,"doctest":false,"test":false},"profile":{"opt_level":"3","debuginfo":0,"debug_assertions":false,"overflow_checks":false,"test":false},"features":[],"filenames":["/t/init"],"executable":"/t/init","fresh":false}
"#;
        assert_eq!(executables(messages), [("init".to_owned(), PathBuf::from("/t/init"))]);
    }
}
