//! The kernel that `cargo xtask run` and `cargo xtask bench` boot. With the word `sweep` on its command line it runs no
//! program, but tests its own stubs. With the word `kpti`, user mode has page tables without the kernel;
//! with the word `code`, lines that start with `[code]` say what code it has generated.
#![no_std]
#![no_main]

use example_os::archive::Archive;
use example_os::device::exit::{Outcome, finish};
use example_os::sweep::{Set, Sweep};
use example_os::{boot, entry, process};

#[unsafe(no_mangle)]
extern "Rust" fn kernel_main() -> ! {
    let info = boot::info();
    let Some(archive) = info.archive else {
        finish(Outcome::BadBoot(format_args!(
            "no archive of user programs; pass one as the first module"
        )))
    };
    let archive = Archive::new(archive);
    let irq = entry::install();
    if info.command_line.split(' ').any(|word| word == "kpti") {
        entry::set_hides_from_new_processes(true, &irq);
    }
    if info.command_line.split(' ').any(|word| word == "sweep") {
        // The stubs under test are those of the image that is timed.
        let is_good = Sweep::new(Set::Usual, &archive, irq).run_all();
        finish(if is_good {
            Outcome::Success
        } else {
            Outcome::TestsFailed
        });
    }
    if let Err(error) = process::spawn_init(info.command_line, &archive) {
        finish(Outcome::BadBoot(format_args!("{error}")));
    }
    process::run(irq)
}
