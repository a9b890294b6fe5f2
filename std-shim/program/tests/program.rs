//! The program's command line, its help, its devices and its measurements, run as a process.

mod program_support;

use program_support::*;
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn devices_are_listed_or_what_is_missing_is_reported() {
    let output = Place::new().run(&["devices", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    if output.status.success() {
        assert!(report[0]["ports"].is_array(), "{report}");
    } else {
        assert_eq!(output.status.code(), Some(9));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.trim_end(), format!("polyrail: {}", report["error"].as_str().unwrap()));
    }
}

#[test]
fn without_the_devices_that_two_hosts_need_what_is_missing_is_reported() {
    let place = Place::with_source(100);
    let no_such = ["--device", "no_such_device"];
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "dst"][..],
        &["copy", "--to", "127.0.0.1:1", "src"],
        &["copy", "--to", "127.0.0.1:1", "src", "other name"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["perf", "--to", "127.0.0.1:1"],
        &["perf", "--to", "127.0.0.1:1", "--gid-index", "1", "--csv"],
    ] {
        let output = place.run(&[arguments, &no_such].concat());
        // Named if there are other devices.
        let words: &[&str] =
            if place.run(&["devices"]).status.success() { &["no_such_device"] } else { &[] };
        assert_failure(&output, 9, words);
        assert_eq!(place.files(), ["src"]);
    }
}

#[test]
fn options_of_one_host_and_of_two_do_not_mix() {
    let place = Place::with_source(100);
    for arguments in [
        &["copy", "src"][..],
        &["copy", "--to", "127.0.0.1", "--devices", "2", "src"],
        &["copy", "--device", "mlx5_0", "src", "dst"],
        &["copy", "--gid-index", "1", "src", "dst"],
        &["perf", "--to", "127.0.0.1", "--devices", "2"],
        &["perf", "--to", "127.0.0.1", "--threads", "1"],
        &["perf", "--device", "mlx5_0"],
        &["perf", "--gid-index", "1"],
        &["serve", "dst", "other"],
        &["serve", "--device", "mlx5_0:0", "dst"],
        &["serve", "--gid-index", "256", "dst"],
    ] {
        assert_eq!(place.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = place.run(&["copy", "--to", "127.0.0.1", "--fault", "0:1", "src"]);
    assert_failure(&output, 2, &["--fault goes without --to: only the software NIC"]);
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn command_lines_that_make_no_sense() {
    let place = Place::with_source(10);
    let senseless: [&[&str]; 20] = [
        &[],
        &["copy"],
        &["copy", "src"],
        &["copy", "--rails", "0", "src", "dst"],
        &["copy", "--rails", "9", "src", "dst"],
        &["copy", "--scheme", "fast", "src", "dst"],
        &["copy", "--max-msg-size", "100", "src", "dst"],
        &["copy", "--message-size", "0", "src", "dst"],
        &["copy", "--window", "129", "src", "dst"],
        &["copy", "--fault", "x", "src", "dst"],
        &["perf", "--sizes", "1M..1K"],
        &["perf", "--json", "--csv"],
        &["perf", "--seconds", "0"],
        &["perf", "--qp-timeout", "32"],
        &["copy", "--qp-timeout", "32", "src", "dst"],
        &["serve", "--qp-timeout", "0"],
        &["perf", "--to", "127.0.0.1", "--answer-timeout", "0"],
        &["copy", "--to", "127.0.0.1", "--idle-timeout", "0", "src"],
        &["serve", "--peers", "0"],
        &["serve", "--peers", "2", "--once"],
    ];
    for arguments in senseless {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
    assert_failure(
        &place.copy(&["--fault", "4:1M"]),
        2,
        &["a fault on rail 4, but rails are 0 to 3"],
    );
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn negative_numbers_are_numbers_that_make_no_sense() {
    let place = Place::with_source(10);
    for (option, number, word) in [
        ("--rails", "-1", "it must be from 1 to 8"),
        ("--devices", "-2", "it must be from 1 to 8"),
        ("--window", "-1", "it must be from 1 to 128"),
        ("--stall-timeout", "-0.5", "more than 0"),
        ("--message-size", "-1", "not a size"),
        ("--message-size", "-1M", "unexpected argument '-1'"),
    ] {
        let output = place.copy(&[option, number]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(word), "{said}");
        assert!(!said.contains("tip:"), "{said}");
    }
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn unused_devices_are_reported() {
    let place = Place::with_source(10);
    let one = "polyrail: of 5 devices the last one stays unused: there are 4 rails\n";
    let two = "polyrail: of 3 devices the last 2 stay unused: there is 1 rail\n";
    for (devices, rails, note) in [("5", "4", one), ("3", "1", two), ("4", "4", ""), ("1", "4", "")]
    {
        let shape = ["--devices", devices, "--rails", rails];
        let output = place.copy(&shape);
        assert!(output.status.success());
        assert_eq!(stderr(&output), note);
        let output = place.run(&[&QUICK[..], &["--operations", "write"], &shape].concat());
        assert!(output.status.success());
        assert_eq!(stderr(&output), note);
        assert_success(&place.copy(&[&shape[..], &["--quiet"]].concat()));
    }
}

#[test]
fn a_reader_that_goes_away_is_not_a_failure() {
    let place = Place::with_source(10);
    let script = format!("{PROGRAM} copy src dst | true; {PROGRAM} completions bash | head -n 1");
    let output = Command::new("sh").args(["-c", &script]).current_dir(&place.directory).output();
    assert_eq!(stderr(&output.unwrap()), "");
}

#[test]
fn help_explains_itself() {
    let place = Place::new();
    let help = stdout(&place.run(&["--help"]));
    for word in ["copy", "perf", "completions", "Examples:", "powers of 1024"] {
        assert!(help.contains(word), "{help}");
    }
    let help = stdout(&place.run(&["copy", "--help"]));
    for word in
        ["--rails", "--scheme", "spray", "dqplb", "--fault", "Exit codes:", "130", "[default: 1M]"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    for command in ["copy", "perf", "serve"] {
        let help = stdout(&place.run(&[command, "--help"]));
        assert!(help.contains("--qp-timeout <N>"), "{help}");
    }
    let help = stdout(&place.run(&["perf", "--help"]));
    for word in ["--sizes", "--plot", "--csv", "--json", "--threads", "memcpy", "--to", "--device"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    let help = stdout(&place.run(&["serve", "--help"]));
    for word in ["--peers", "--once", "--answer-timeout", "--idle-timeout", "--progress-timeout"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(stdout(&place.run(&["--version"])).starts_with("polyrail "));
}

#[test]
fn shells_get_their_completions() {
    let place = Place::new();
    for (shell, word) in
        [("bash", "complete -F"), ("zsh", "#compdef polyrail"), ("fish", "complete -c polyrail")]
    {
        let output = place.run(&["completions", shell]);
        assert_success(&output);
        let script = stdout(&output);
        assert!(script.contains(word) && script.contains("max-msg-size"), "{script}");
    }
}

#[test]
fn perf_measures_every_operation() {
    let place = Place::new();
    let output = place.run(&[&QUICK[..], &["--json"]].concat());
    assert_success(&output);
    let report = json(&output);
    let lines = report.as_array().unwrap();
    // write, write-imm with two schemes, read, send; two sizes each.
    assert_eq!(lines.len(), 10);
    for line in lines {
        assert_eq!(line["requests"], 20, "{line}");
        for figure in ["requests_per_second", "gigabytes_per_second", "relative_to_memcpy"] {
            assert!(line[figure].as_f64().unwrap() > 0.0, "{line}");
        }
    }
    let named = |line: &Value| format!("{} {}", line["operation"], line["scheme"]);
    let names: Vec<String> = lines.iter().step_by(2).map(named).collect();
    let expected = ["write -", "write-imm spray", "write-imm dqplb", "read -", "send -"];
    let expected = expected.map(|name| format!("\"{}\"", name.replace(' ', "\" \"")));
    assert_eq!(names, expected);
}

#[test]
fn perf_prints_tables_and_csv() {
    let place = Place::new();
    let output = place.run(&[&QUICK[..], &["--threads", "2", "--rails", "2"]].concat());
    assert_success(&output);
    let text = stdout(&output);
    assert!(text.starts_with("the software NIC: 2 rails, "), "{text}");
    assert!(text.contains("a thread for each end"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" KiB  ")).count(), 10, "{text}");
    let output = place.run(&[&QUICK[..], &["--csv", "--rails", "1"]].concat());
    assert_success(&output);
    let csv = stdout(&output);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 8);
}

#[test]
fn perf_draws() {
    let place = Place::new();
    assert_success(&place.run(&[&QUICK[..], &["--plot", "perf.svg"]].concat()));
    let svg = fs::read_to_string(place.path("perf.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for word in ["memcpy", "write-imm dqplb", "64 KiB", "GB/s"] {
        assert!(svg.contains(word), "{word}");
    }
}

#[test]
#[ignore = "mounts a file system, as root"]
fn a_full_file_system_keeps_the_old_picture() {
    let place = Place::new();
    let small = Mounted::new(&place);
    fs::write(place.path("small/perf.svg"), "old").unwrap();
    assert!(fs::write(place.path("small/filler"), vec![0; 4 << 20]).is_err());
    let output = place.run(&[&QUICK[..], &["--plot", "small/perf.svg"]].concat());
    assert_failure(&output, 5, &["cannot write small/perf.svg: No space left"]);
    assert_eq!(fs::read_to_string(place.path("small/perf.svg")).unwrap(), "old");
    assert_eq!(small.files(), 2);
}
