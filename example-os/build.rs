//! Links every image of this package as a non-relocatable kernel at the addresses of `link.ld`.

use std::path::Path;

fn main() {
    let variable = |name| std::env::var(name).expect("cargo sets it");
    // Cargo knows its own directory again when the workspace has moved, and would look for this file where it was.
    let script = Path::new(&variable("OUT_DIR")).join("link.ld");
    std::fs::copy(Path::new(&variable("CARGO_MANIFEST_DIR")).join("link.ld"), &script)
        .expect("link.ld is in the package, and cargo has made OUT_DIR");
    for kind in ["bins", "tests"] {
        println!("cargo:rustc-link-arg-{kind}=--no-pie");
        println!("cargo:rustc-link-arg-{kind}=-T{}", script.display());
        println!("cargo:rustc-link-arg-{kind}=-zmax-page-size=0x1000");
    }
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
