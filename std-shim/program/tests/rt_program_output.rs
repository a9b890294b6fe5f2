//! What the program prints, run as a process.

mod program_support;

use program_support::server::{LONG, Server, assert_ok};
use program_support::*;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::pipe;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Outputs without a reader: a pipe whose other end is closed, and a full disk.
fn deaf() -> [Stdio; 2] {
    let (_, closed) = pipe().unwrap();
    [closed.into(), File::options().write(true).open("/dev/full").unwrap().into()]
}

#[test]
fn an_exit_code_does_not_depend_on_the_reader_of_stderr() {
    let place = Place::with_source(4 << 20);
    for (arguments, code) in [
        (&["copy", "nope", "x"][..], 3),
        (&["copy", "--rails", "1", "--fault", "0:1M", "src", "dst"], 6),
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
fn names_that_are_not_text_are_reported_too() {
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
fn names_that_a_terminal_would_obey_are_escaped() {
    let place = Place::with_source(1000);
    // It would show as "exe.txt", in red.
    let name = "\u{1b}[31m\u{202e}txt.exe";
    let escaped = "\\u{1b}[31m\\u{202e}txt.exe";
    let output = place.run(&["copy", name, "dst"]);
    assert_failure(&output, 3, &[&format!("cannot read {escaped}: No such file")]);
    assert!(!stderr(&output).contains(['\u{1b}', '\u{202e}']));
    // Also where the command line makes no sense: names come from `*`.
    let output = place.run(&["devices", name]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("\\u{202e}txt.exe") && said.contains("Usage:"), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said}");
    // For programs, messages are the same as for people, and names are exact.
    let output = place.run(&["copy", "--json", name, "dst"]);
    assert!(json(&output)["error"].as_str().unwrap().contains(escaped), "{}", json(&output));
    let output = place.run(&["copy", "--json", "src", name]);
    assert!(!stdout(&output).contains(['\u{1b}', '\u{202e}']), "{}", stdout(&output));
    assert_eq!(json(&output)["destination"], name);
}

#[test]
fn a_report_that_cannot_be_written_is_not_a_failure_of_the_copy() {
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
        // A reader that goes away, as `head` does, is normal.
        assert_success(&run(closed).unwrap());
    }
}

#[test]
fn a_failure_keeps_its_code_if_its_report_cannot_be_written() {
    let place = Place::new();
    for stdout in deaf() {
        let mut command = Command::new(PROGRAM);
        command.args(["copy", "--json", "src", "dst"]).current_dir(&place.directory).stdout(stdout);
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_failure(&output, 3, &["cannot read src"]);
    }
}

#[test]
fn a_picture_that_cannot_be_written_fails_before_anything_is_measured() {
    let place = Place::with_source(0);
    for (file, words) in [
        ("missing/perf.svg", "cannot write missing/perf.svg: No such file"),
        (".", "cannot write .: it is a directory"),
        ("src/perf.svg", "cannot write src/perf.svg: Not a directory"),
    ] {
        let output = place.run(&[&QUICK[..], &["--plot", file]].concat());
        assert_failure(&output, 4, &[words]);
        assert_eq!(stdout(&output), "");
    }
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn a_picture_has_no_suffix_of_another_format() {
    let place = Place::new();
    let drawn =
        |file| place.run(&[&QUICK[..], &["--operations", "write", "--plot", file]].concat());
    let output = drawn("perf.png");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the picture is SVG: choose a name that ends with .svg"), "{said}");
    assert_success(&drawn("perf.SVG"));
    assert_success(&drawn("perf"));
    assert_eq!(place.files(), ["perf", "perf.SVG"]);
}

#[test]
fn a_picture_appears_when_it_is_complete() {
    let place = Place::new();
    fs::write(place.path("perf.svg"), "old").unwrap();
    // The last of these sizes needs more memory than there is.
    let arguments = ["--plot", "perf.svg", "--rails", "1", "--operations", "write"];
    let huge = ["perf", "--count", "20", "--sizes", "1K,256M"];
    let output = place.run_within(500_000, &[&huge[..], &arguments].concat());
    assert!(!output.status.success());
    assert_eq!(fs::read_to_string(place.path("perf.svg")).unwrap(), "old");
    assert_success(&place.run(&[&QUICK[..], &arguments].concat()));
    assert!(fs::read_to_string(place.path("perf.svg")).unwrap().starts_with("<svg"));
    assert_eq!(place.files(), ["perf.svg"]);
    let output = place.run(&[&QUICK[..], &["--plot", "/dev/full"]].concat());
    assert_failure(&output, 5, &["cannot write /dev/full: No space left"]);
}

/// Runs an endless copy for a while, on its own terminal or without any, and returns its output.
fn copy_for_a_while(terminal: bool) -> Output {
    let place = Place::new();
    File::create(place.path("src")).unwrap().set_len(1 << 40).unwrap();
    let copy =
        format!("timeout --foreground --preserve-status -s INT 1 {PROGRAM} copy src /dev/null");
    let (program, arguments) = match terminal {
        true => ("script", &["-qec", &copy, "/dev/null"][..]),
        false => ("sh", &["-c", &copy][..]),
    };
    let mut command = Command::new(program);
    command.args(arguments).env("TERM", "xterm").current_dir(&place.directory);
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_progress_bar_appears_on_terminals_only() {
    let shown = stdout(&copy_for_a_while(true));
    for word in ["   0%  ", " of 1.00 TiB  ", "/s  ", "polyrail: "] {
        assert!(shown.contains(word), "{word:?} is not in: {shown:?}");
    }
    let piped = copy_for_a_while(false);
    assert_failure(&piped, 130, &["interrupted"]);
    assert_eq!(stdout(&piped), "");
}

#[test]
fn a_servers_reports_name_the_peer() {
    let place = Place::with_source(100_000);
    fs::create_dir_all(place.path("served/tree")).unwrap();
    let mut shell = Command::new("sh");
    let script = "exec \"$0\" serve --listen 127.0.0.1:0 --readable served > report";
    let server = Server::run(shell.args(["-c", script, PROGRAM]).current_dir(&place.directory));
    let address = server.address();
    assert_ok(&place.run(&["copy", "--to", &address, "src"]));
    assert_ok(&place.run(&["copy", "--to", &address, "src", "served/tree"]));
    assert_ok(&place.run(&["copy", &format!("{address}:src"), "dst"]));
    let begin = Instant::now();
    for words in [" copied to served/src: ", " copied into served: ", " read from served/src: "] {
        let reported = || {
            let text = fs::read_to_string(place.path("report")).unwrap();
            text.lines().any(|line| line.starts_with("127.0.0.1:") && line.contains(words))
        };
        while !reported() {
            assert!(begin.elapsed() < LONG, "{words:?} is not in the report");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_server_reports_where_it_wrote_to_and_what_it_read() {
    let place = Place::new();
    fs::create_dir_all(place.path("served/tree")).unwrap();
    fs::write(place.path("served/tree/file"), "file").unwrap();
    fs::create_dir(place.path("other")).unwrap();
    let mut shell = Command::new("sh");
    let script = "exec \"$0\" serve --listen 127.0.0.1:0 --json --readable served > report";
    let server = Server::run(shell.args(["-c", script, PROGRAM]).current_dir(&place.directory));
    let address = server.address();
    let reports = |count| {
        let begin = Instant::now();
        loop {
            let text = fs::read_to_string(place.path("report")).unwrap();
            let reports =
                serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
            let reports: Vec<_> = reports.map_while(Result::ok).collect();
            if reports.len() == count {
                return reports;
            }
            assert!(begin.elapsed() < LONG, "{text}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    assert_ok(&place.run(&["copy", "--quiet", &format!("{address}:tree"), "dst"]));
    let sent = &reports(1)[0];
    assert_eq!(sent.get("sources"), Some(&vec!["served/tree"].into()), "{sent}");
    assert_eq!(sent.get("destination"), None, "{sent}");
    assert_ok(&place.run(&["copy", "--quiet", "--to", &address, "other"]));
    let received = &reports(2)[1];
    assert_eq!(received.get("sources"), None, "{received}");
    assert_eq!(received.get("destination"), Some(&"served".into()), "{received}");
}
