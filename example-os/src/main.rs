//! The kernel that `cargo xtask run` and `cargo xtask bench` boot.
#![no_std]
#![no_main]

use example_os::archive::Archive;
use example_os::device::exit::{Outcome, finish};
use example_os::{boot, entry, process};

#[unsafe(no_mangle)]
extern "Rust" fn kernel_main() -> ! {
    let info = boot::info();
    let Some(archive) = info.archive else {
        finish(Outcome::BadBoot(format_args!(
            "no archive of user programs; pass one as the first module"
        )))
    };
    let irq = entry::install();
    if let Err(error) = process::spawn_init(info.command_line, &Archive::new(archive)) {
        finish(Outcome::BadBoot(format_args!("{error}")));
    }
    process::run(irq)
}
