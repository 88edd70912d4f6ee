//! Sets the stack of the module: parsing a condition calls deeper than other policies do.

fn main() {
    println!("cargo::rustc-link-arg-cdylib=-zstack-size=262144");
    println!("cargo::rerun-if-changed=build.rs");
}
