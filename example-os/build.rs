//! Links every image of this package as a non-relocatable kernel at the addresses of `link.ld`.

fn main() {
    // At run time: what was compiled once may be found again from a copy of the workspace.
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    for kind in ["bins", "tests"] {
        println!("cargo:rustc-link-arg-{kind}=--no-pie");
        println!("cargo:rustc-link-arg-{kind}=-T{directory}/link.ld");
        println!("cargo:rustc-link-arg-{kind}=-zmax-page-size=0x1000");
    }
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=build.rs");
}
