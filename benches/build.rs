//! Tells the crate what it is compiled with: instruction counts depend on it.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=POLYRAIL_COMPILER={}", compiler());
    println!("cargo::rustc-env=POLYRAIL_TARGET={}", env::var("TARGET").unwrap_or_default());
}

/// The compiler's version and that of its LLVM; empty if it reports none.
fn compiler() -> String {
    let output =
        env::var_os("RUSTC").and_then(|rustc| Command::new(rustc).arg("-vV").output().ok());
    let output = output.map_or(Vec::new(), |output| output.stdout);
    let text = String::from_utf8_lossy(&output);
    let wanted = |line: &&str| line.starts_with("rustc ") || line.starts_with("LLVM version: ");
    text.lines().filter(wanted).collect::<Vec<_>>().join(", ")
}
