//! The plugin stays loaded: NCCL unloads plugins when its last communicator ends, while threads of
//! NICs may still run.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
