//! `cargo xtask iso`: a disc or stick that runs benchmarks and tests on a machine of one's own.
//!
//! GRUB starts from it by BIOS and by UEFI, and offers a menu. Nobody on such a machine reads the lines that the other
//! verbs read, so the benchmark prints a table itself; everything goes to the serial line, and under BIOS to the screen.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::{self, Built, Profile};
use crate::error::{Error, Result};
use crate::machine::disc::{self, DISC, Firmware, Grub};
use crate::run::command_line;
use crate::setup::{Need, Setup};
use crate::test::boot;
use crate::test::{archive_of, counts_instructions};
use crate::workspace::{Workspace, prepare_file, write_whole};

/// Arguments of `iso`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Write it to a stick with `dd if=FILE of=/dev/STICK bs=4M conv=fsync`, which destroys what the stick
holds, or burn it. A machine that boots it by BIOS shows the results on its screen and sends them
through the first serial port (0x3f8, 115200 baud, 8N1); by UEFI it only sends them. Secure Boot has
to be off.
The menu's first entry, which starts by itself, times every row of `cargo xtask bench`.")]
pub(crate) struct Args {
    /// Write the image to this file [default: example-os.iso in the build directory]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Rounds and repeats of each row: short enough that most stretches are not disturbed, often enough for a median.
const BENCHMARK: &[&str] = &["--table", "--rounds", "1024", "--repeats", "11"];
/// The first serial port. On a machine without one GRUB goes on without it.
const CONSOLE: &str = "\
if serial --unit=0 --speed=115200; then
  terminal_input --append serial
  terminal_output --append serial
fi
";
/// What is said of a machine without a text screen.
const WITHOUT_SCREEN: &str = "\
if [ \"$grub_platform\" = efi ]; then
  set where=' (results on the serial line alone)'
  export where
fi
";

/// An image of tests: its name, its ELF file and its archive of programs.
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) kernel: PathBuf,
    pub(crate) archive: PathBuf,
}

/// What GRUB starts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default<'a> {
    /// The benchmarks, after some seconds.
    Benchmarks,
    /// The tests of an image, at once.
    Tests(&'a str),
}

/// Whether the tests of an image can be run where nothing counts instructions and nobody boots the machine again.
fn is_for_any_machine(image: &str) -> bool {
    // This one sweeps by the trap flag, which needs neither.
    image == "sweep_debug" || !counts_instructions(image) && !["nested", "should_panic"].contains(&image)
}

/// The test images that are put on a disc.
pub(crate) fn images(workspace: &Workspace, built: &Built) -> Result<Vec<Image>> {
    let names = workspace.test_images.iter().map(String::as_str);
    let names: Vec<&str> = names.filter(|name| is_for_any_machine(name)).collect();
    boot::build_images(workspace, &names)?
        .into_iter()
        .map(|(name, kernel)| {
            let archive = archive_of(workspace, built, &name, &kernel)?;
            Ok(Image { name, kernel, archive })
        })
        .collect()
}

/// Makes the disc in `place`.
pub(crate) fn make(grub: &Grub, place: &Path, built: &Built, images: &[Image], default: Default<'_>) -> Result<()> {
    let mut files = vec![
        ("kernel".to_owned(), built.kernel.clone()),
        ("programs".to_owned(), built.archive.clone()),
    ];
    for image in images {
        files.push((format!("tests/{}", image.name), image.kernel.clone()));
        if image.archive != built.archive {
            files.push((format!("tests/{}.programs", image.name), image.archive.clone()));
        }
    }
    let menu = menu(images, &built.archive, default);
    grub.make(Firmware::Any, place, &files, &menu)
}

/// One entry of the menu.
fn entry(id: &str, title: &str, kernel: &str, append: &str, archive: &str) -> String {
    let space = if append.is_empty() { "" } else { " " };
    format!(
        "menuentry \"{title}$where\" --id {id} {{\n  echo 'Results: serial line 0x3f8, 115200 8N1; screen under BIOS'\n  \
         multiboot2 /boot/{kernel}{space}{append}\n  module2 /boot/{archive}\n}}\n"
    )
}

fn menu(images: &[Image], programs: &Path, default: Default<'_>) -> String {
    let (timeout, first) = match default {
        Default::Benchmarks => (5, "benchmarks".to_owned()),
        Default::Tests(image) => (0, format!("tests>{image}")),
    };
    let arguments: Vec<String> = BENCHMARK.iter().map(|&word| word.to_owned()).collect();
    let mut menu = format!("{CONSOLE}{WITHOUT_SCREEN}set timeout={timeout}\nset default='{first}'\n");
    menu += &entry(
        "benchmarks",
        "Benchmarks",
        "kernel",
        &command_line("bench", &arguments),
        "programs",
    );
    menu += &entry(
        "calls",
        "System calls and their errors",
        "kernel",
        &command_line("init", &[]),
        "programs",
    );
    menu += "submenu \"Tests in the kernel\" --id tests {\n";
    for Image { name, archive, .. } in images {
        let archive = if archive == programs {
            "programs".to_owned()
        } else {
            format!("tests/{name}.programs")
        };
        menu += &entry(name, name, &format!("tests/{name}"), "", &archive);
    }
    menu + "}\n"
}

/// `cargo xtask iso`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let mut setup = Setup::new(&workspace);
    workspace.writable()?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => workspace.target.join("example-os.iso"),
    };
    // What cannot be written is told before the long work.
    prepare_file(&output)?;
    let grub = setup.require_grub()?;
    setup.require(Need::TestImages)?;
    let built = build::build(&workspace, &mut setup, Profile::Release)?;
    eprintln!("building test images");
    let images = images(&workspace, &built)?;
    let place = disc::place(&workspace.guest_target())?;
    make(&grub, place.path(), &built, &images, Default::Benchmarks)?;
    let made = place.path().join(DISC);
    let contents = fs::read(&made).map_err(|source| Error::File {
        action: "read",
        path: made,
        source,
        remedy: "run it again, and alone",
    })?;
    write_whole(&output, &contents)?;
    println!("image      {} ({} MiB)", output.display(), contents.len() >> 20);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, archive: &str) -> Image {
        Image {
            name: name.to_owned(),
            kernel: PathBuf::from("/t").join(name),
            archive: PathBuf::from(archive),
        }
    }

    #[test]
    fn benchmarks_start_by_themselves_and_print_a_table() {
        let menu = menu(&[], Path::new("/t/programs"), Default::Benchmarks);
        assert!(menu.contains("\nset timeout=5\nset default='benchmarks'\n"), "{menu}");
        assert!(
            menu.contains("\n  multiboot2 /boot/kernel init=bin/bench -- --table "),
            "{menu}"
        );
    }

    #[test]
    fn each_image_has_an_entry_with_its_own_programs_or_those_of_all() {
        let images = [image("memory", "/t/programs"), image("sweep_debug", "/t/programs-2")];
        let menu = menu(&images, Path::new("/t/programs"), Default::Tests("memory"));
        assert!(menu.contains("\nset timeout=0\nset default='tests>memory'\n"), "{menu}");
        assert!(
            menu.contains("  multiboot2 /boot/tests/memory\n  module2 /boot/programs\n"),
            "{menu}"
        );
        assert!(
            menu.contains("  multiboot2 /boot/tests/sweep_debug\n  module2 /boot/tests/sweep_debug.programs\n"),
            "{menu}"
        );
    }

    #[test]
    fn images_that_need_an_emulator_or_another_boot_stay_away() {
        assert!(
            ["memory", "entry_user", "sweep_debug"]
                .into_iter()
                .all(is_for_any_machine)
        );
        assert!(
            !["sweep_timer", "sweep_nmi", "irqs_on_hostile", "nested", "should_panic"]
                .into_iter()
                .any(is_for_any_machine)
        );
    }
}
