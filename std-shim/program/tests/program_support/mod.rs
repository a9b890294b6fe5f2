//! What the tests of the program share: a place to run it in, its files and its output.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

pub mod namespaces;
pub mod server;

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_polyrail");

/// A measurement that is over at once.
pub const QUICK: [&str; 5] = ["perf", "--count", "20", "--sizes", "1K,64K"];

/// A directory with a source in it.
pub struct Place {
    pub directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn with_source(bytes: usize) -> Self {
        let place = Self::new();
        fs::write(place.path("src"), pattern(bytes)).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `polyrail copy ARGUMENTS src dst` here.
    pub fn copy(&self, arguments: &[&str]) -> Output {
        self.run(&[&["copy"], arguments, &["src", "dst"]].concat())
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM).args(arguments).current_dir(&self.directory).output().unwrap()
    }

    /// Runs it with at most `kib` KiB of address space.
    pub fn run_within(&self, kib: u32, arguments: &[&str]) -> Output {
        let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, PROGRAM]).args(arguments).current_dir(&self.directory);
        command.output().unwrap()
    }

    /// Returns the names of all files here, in order.
    pub fn files(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<String> = fs::read_dir(&self.directory).unwrap().map(name).collect();
        names.sort();
        names
    }

    pub fn assert_copied(&self) {
        assert!(fs::read(self.path("src")).unwrap() == fs::read(self.path("dst")).unwrap());
        assert_eq!(self.files(), ["dst", "src"]);
    }
}

/// A file system of 4 MiB at `small` in a place, as long as this lives.
pub struct Mounted<'a>(&'a Place);

impl<'a> Mounted<'a> {
    pub fn new(place: &'a Place) -> Self {
        fs::create_dir(place.path("small")).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(place.path("small"));
        assert!(mount.status().unwrap().success(), "cannot mount; this takes root");
        Self(place)
    }

    pub fn files(&self) -> usize {
        fs::read_dir(self.0.path("small")).unwrap().count()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        _ = Command::new("umount").arg(self.0.path("small")).status();
    }
}

pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap()
}

#[track_caller]
pub fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, stderr(output));
    assert_eq!(stderr(output), "");
}

/// Asserts the exit code, and that the only line on stderr contains each of the words.
#[track_caller]
pub fn assert_failure(output: &Output, code: i32, words: &[&str]) {
    assert_message(output, &stderr(output), code, words);
}

/// Asserts a failure after faults on request: lines on stderr report these, and the last line
/// reports the failure. Returns the former.
#[track_caller]
pub fn assert_failure_by_fault(output: &Output, code: i32, words: &[&str]) -> Vec<String> {
    let (message, faults) = split_faults(output);
    assert_message(output, &message, code, words);
    assert!(!faults.is_empty(), "{message}");
    faults
}

/// Returns stderr without its lines about faults that began and ended, and these lines.
pub fn split_faults(output: &Output) -> (String, Vec<String>) {
    let said = stderr(output);
    let lines = said.lines().map(|line| format!("{line}\n"));
    let (faults, rest): (Vec<String>, Vec<String>) =
        lines.partition(|line| line.starts_with("polyrail: fault at "));
    (rest.concat(), faults)
}

#[track_caller]
fn assert_message(output: &Output, message: &str, code: i32, words: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.starts_with("polyrail: ") && message.lines().count() == 1, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}
