//! The second emulator: Bochs, started from a disc image that GRUB boots.
//!
//! Bochs checks what QEMU's translator lets pass, above all addresses that are not canonical. It has no exit status for
//! the guest to choose, so the guest's last serial line is what counts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::Result;
use crate::machine::disc::{self, DISC, Firmware, Grub};
use crate::machine::guest::{self, Ended, NoLog, Serial};
use crate::machine::{Boot, shown};
use crate::toolchain::query;
use crate::workspace::write_whole;

/// Its models, one of each vendor.
pub(crate) const MODELS: [&str; 2] = ["corei7_skylake_x", "ryzen"];
/// One with `IA32_SPEC_CTRL`, which QEMU's translator does not offer.
pub(crate) const WITH_SPEC_CTRL: &str = "corei7_icelake_u";
/// The distribution's packages that hold Bochs and its firmware.
pub(crate) const PACKAGES: [&str; 3] = ["bochs", "bochsbios", "vgabios"];
/// It interprets one instruction at a time, so a guest may take so much longer than in QEMU.
const SLOWER: u32 = 5;
/// Memory in MiB: enough for every test, and little to clear.
const MEMORY: u32 = 128;

const PROGRAM: &str = "bochs";
const BIOS: &str = "/usr/share/bochs/BIOS-bochs-latest";
const VGA_BIOS: &str = "/usr/share/bochs/VGABIOS-lgpl-latest";

/// Bochs that was found, with what is needed to boot in it.
#[derive(Debug, Clone)]
pub(crate) struct Bochs {
    path: PathBuf,
    grub: Grub,
}

impl Bochs {
    /// Looks for everything; the error is the first thing that is not there.
    pub(crate) fn find() -> std::result::Result<Self, String> {
        let path = which::which(PROGRAM).map_err(|_| PROGRAM.to_owned())?;
        for file in [BIOS, VGA_BIOS] {
            if !Path::new(file).exists() {
                return Err(file.to_owned());
            }
        }
        let grub = Grub::find(Firmware::Bios)?;
        Ok(Self { path, grub })
    }

    /// Its version, as it writes it.
    pub(crate) fn version_text(&self) -> String {
        let text = query(&self.path.to_string_lossy(), &["--help"]).unwrap_or_default();
        text.lines()
            .find_map(|line| line.trim().strip_prefix("Bochs x86 Emulator "))
            .unwrap_or("of unknown version")
            .trim()
            .to_owned()
    }

    /// Makes the disc, boots it, and removes it again.
    pub(crate) fn boot(
        &self,
        model: &str,
        boot: &Boot,
        directory: &Path,
        limit: Duration,
        verbose: bool,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<Ended> {
        let place = disc::place(directory)?;
        let mut files = vec![("kernel".to_owned(), boot.kernel.clone())];
        files.extend(boot.archive.clone().map(|archive| ("archive".to_owned(), archive)));
        let menu = menu(&boot.append, boot.archive.is_some());
        self.grub.make(Firmware::Bios, place.path(), &files, &menu)?;
        self.boot_disc(model, place.path(), limit, verbose, on_line)
    }

    /// Boots the disc in `place`, where its configuration is put, too.
    pub(crate) fn boot_disc(
        &self,
        model: &str,
        place: &Path,
        limit: Duration,
        verbose: bool,
        on_line: &mut dyn FnMut(&str),
    ) -> Result<Ended> {
        // Bochs has its debugger built in, which waits for the command.
        for (name, text) in [("bochsrc", configuration(model)), ("commands", "continue\n".to_owned())] {
            write_whole(&place.join(name), text.as_bytes())?;
        }
        let mut command = Command::new(&self.path);
        command
            .args(["-q", "-f", "bochsrc", "-rc", "commands"])
            .current_dir(place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if verbose {
            eprintln!("{} # model {model}, in {}", shown(&command), place.display());
        }
        guest::watch(command, Serial::Errors, limit * SLOWER, &mut NoLog, on_line)
    }
}

/// What GRUB does: load kernel and archive, and start.
fn menu(append: &str, has_archive: bool) -> String {
    let module = if has_archive { "module2 /boot/archive\n" } else { "" };
    // A guest cannot ask Bochs what it is, so the last word says it: some tests know of Bochs' own faults.
    format!("multiboot2 /boot/kernel {append} bochs\n{module}boot\n")
}

/// Bochs' configuration file. COM1 comes out of standard error.
fn configuration(model: &str) -> String {
    format!(
        "plugin_ctrl: unmapped=1, biosdev=1, speaker=0, extfpuirq=1, parallel=0, serial=1\n\
         config_interface: textconfig\n\
         display_library: rfb, options=\"timeout=0\"\n\
         memory: guest={MEMORY}, host={MEMORY}\n\
         romimage: file={BIOS}\n\
         vgaromimage: file={VGA_BIOS}\n\
         cpu: model={model}, count=1, ips=50000000, reset_on_triple_fault=0\n\
         ata0-master: type=cdrom, path={DISC}, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev=/dev/fd/2\n\
         log: log\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n\
         debug: action=ignore\n\
         clock: sync=none\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn menu_passes_the_command_line_and_the_archive() {
        assert_eq!(
            menu("from=3 only=nmi", true),
            "multiboot2 /boot/kernel from=3 only=nmi bochs\nmodule2 /boot/archive\nboot\n"
        );
        assert!(!menu("", false).contains("module2"));
    }

    #[test]
    fn configuration_names_the_model_and_stops_at_a_triple_fault() {
        let text = configuration("ryzen");
        assert!(text.contains("\ncpu: model=ryzen, count=1, "));
        assert!(text.contains("\nata0-master: type=cdrom, path=disc.iso, status=inserted\n"));
        assert!(text.contains("reset_on_triple_fault=0"));
        assert!(text.contains("\npanic: action=fatal\n"));
        assert!(text.contains("\nclock: sync=none\n"));
    }

    #[test]
    fn both_vendors_are_there() {
        assert!(MODELS[0].starts_with("corei7") && MODELS[1] == "ryzen");
    }
}
