//! What the program says, run as a process.

mod program_support;

use program_support::*;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::pipe;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

/// Where nobody reads: a pipe whose other end is closed, and a full disk.
fn deaf() -> [Stdio; 2] {
    let (_, closed) = pipe().unwrap();
    [closed.into(), File::options().write(true).open("/dev/full").unwrap().into()]
}

#[test]
fn an_exit_code_does_not_depend_on_who_reads_stderr() {
    let place = Place::with_source(4 << 20);
    for (arguments, code) in [
        (&["copy", "nope", "x"][..], 3),
        (&["copy", "--fault", "1:1M", "src", "dst"], 6),
        (&["perf", "--device", "mlx5_0"], 2),
    ] {
        for stderr in deaf() {
            let mut command = Command::new(PROGRAM);
            command.args(arguments).current_dir(&place.directory).stderr(stderr);
            assert_eq!(command.status().unwrap().code(), Some(code), "{arguments:?}");
        }
    }
}

#[test]
fn names_that_are_no_text_are_reported_all_the_same() {
    let place = Place::new();
    let name = OsStr::from_bytes(b"src \xff");
    fs::write(place.directory.path().join(name), pattern(1000)).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["copy", "--json"]).arg(name).arg("dst").current_dir(&place.directory);
    let output = command.output().unwrap();
    assert_success(&output);
    let report = json(&output);
    assert_eq!(
        (&report["source"], &report["destination"]),
        (&"src \u{fffd}".into(), &"dst".into())
    );
}

#[test]
fn a_report_that_cannot_be_written_is_no_failure_of_the_copy() {
    let place = Place::with_source(1000);
    for json in [&["--json"][..], &[]] {
        let [closed, full] = deaf();
        let run = |stdout: Stdio| {
            let mut command = Command::new(PROGRAM);
            command.arg("copy").args(json).args(["src", "dst"]).current_dir(&place.directory);
            command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output()
        };
        let output = run(full).unwrap();
        assert_failure(&output, 10, &["cannot write to standard output", "No space left"]);
        place.assert_copied();
        // That nobody reads on, as behind `head`, is usual.
        assert_success(&run(closed).unwrap());
    }
}

#[test]
fn a_failure_keeps_its_code_where_its_report_cannot_be_written() {
    let place = Place::new();
    for stdout in deaf() {
        let mut command = Command::new(PROGRAM);
        command.args(["copy", "--json", "src", "dst"]).current_dir(&place.directory).stdout(stdout);
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_failure(&output, 3, &["cannot read src"]);
    }
}
