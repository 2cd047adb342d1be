//! Links the programs as fixed-address ELF files: what the kernel's loader and Linux both take.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Later arguments win, so this undoes the target's default of a static PIE.
    println!("cargo::rustc-link-arg-bins=--no-pie");
    println!("cargo::rustc-link-arg-bins=--image-base=0x400000");
    // No dynamic linker will run, so nobody would make the RELRO part read-only.
    println!("cargo::rustc-link-arg-bins=-znorelro");
    println!("cargo::rustc-link-arg-bins=--build-id=none");
}
