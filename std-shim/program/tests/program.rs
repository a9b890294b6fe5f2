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
        assert!(report[0]["ports"].is_array() && report[0]["place"].is_object(), "{report}");
        let text = Place::new().run(&["devices", "--verbose"]).stdout;
        assert!(String::from_utf8(text).unwrap().contains("NUMA node"));
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
        &["perf", "--to", "127.0.0.1:1", "--tclass", "106", "--sl", "3"],
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
        &["perf", "--to", "127.0.0.1", "--line-rate", "1G"],
        &["copy", "--to", "127.0.0.1", "--line-rate", "1G", "src"],
        &["perf", "--device", "mlx5_0"],
        &["perf", "--gid-index", "1"],
        &["perf", "--traffic-class", "106"],
        &["copy", "--sl", "3", "src", "dst"],
        &["serve", "dst", "other"],
        &["serve", "--device", "mlx5_0:0", "dst"],
        &["serve", "--gid-index", "256", "dst"],
    ] {
        assert_eq!(place.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    for command in [&["copy", "src"][..], &["perf"]] {
        let output = place.run(&[command, &["--to", "127.0.0.1", "--fault", "0:1"]].concat());
        assert_failure(&output, 2, &["--fault goes without --to: only the software NIC"]);
    }
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn command_lines_that_make_no_sense() {
    let place = Place::with_source(10);
    let senseless: [&[&str]; 35] = [
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
        &["copy", "--fault", "1:1M:gone:1s", "src", "dst"],
        &["copy", "--line-rate", "0", "src", "dst"],
        &["perf", "--fault", "1:1M:loud"],
        &["perf", "--fault", "4:1M"],
        &["perf", "--timeline", "--sizes", "1K,64K"],
        &["perf", "--fault", "1:1M", "--schemes", "spray,dqplb"],
        &["perf", "--sizes", "1M..1K"],
        &["perf", "--json", "--csv"],
        &["perf", "--seconds", "0"],
        &["perf", "--latency", "--operations", "p2p,read"],
        &["perf", "--latency", "--timeline"],
        &["perf", "--latency", "--plot", "perf.svg"],
        &["perf", "--latency", "--fault", "1:1M"],
        &["perf", "--qp-timeout", "32"],
        &["copy", "--qp-timeout", "32", "src", "dst"],
        &["serve", "--qp-timeout", "0"],
        &["serve", "--service-level", "16"],
        &["perf", "--to", "127.0.0.1", "--tclass", "256"],
        &["copy", "--to", "127.0.0.1", "--tclass", "-1", "src"],
        &["perf", "--to", "127.0.0.1", "--answer-timeout", "0"],
        &["copy", "--to", "127.0.0.1", "--idle-timeout", "0", "src"],
        &["copy", "--token-file", "token", "src", "dst"],
        &["perf", "--token-file", "token"],
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
fn a_token_that_cannot_be_read_is_reported_before_anything_else() {
    let place = Place::with_source(100);
    fs::write(place.path("short"), "secret\n").unwrap();
    for (file, words) in [("missing", "cannot read the token in missing"), ("short", "6 bytes")] {
        for command in [
            &["serve", "--listen", "127.0.0.1:0"][..],
            &["copy", "--to", "127.0.0.1:1", "src"],
            &["perf", "--to", "127.0.0.1:1"],
            &["perf", "--timeline", "--to", "127.0.0.1:1"],
        ] {
            let output = place.run(&[command, &["--token-file", file]].concat());
            assert_failure(&output, 2, &[words]);
        }
    }
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
        for word in
            ["--qp-timeout <N>", "--traffic-class <N>", "--tclass", "--service-level", "--sl"]
        {
            assert!(help.contains(word), "{word}: {help}");
        }
    }
    let help = stdout(&place.run(&["perf", "--help"]));
    for word in [
        "--sizes",
        "--plot",
        "--csv",
        "--json",
        "--threads",
        "memcpy",
        "--to",
        "--device",
        "--timeline",
        "--fault <[SIDE.]RAIL:WHEN[:HOW[:FOR]]>",
        "--line-rate",
        "over time 1M; latency 8]",
        "--latency",
    ] {
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
fn perf_stays_on_the_processors_that_it_was_told() {
    let place = Place::new();
    let allowed = fs::read_to_string("/proc/self/status").unwrap();
    let (_, allowed) = allowed.split_once("Cpus_allowed_list:").unwrap();
    let first = allowed.trim().split([',', '-', '\n']).next().unwrap();
    let output = place.run(&[&QUICK[..], &["--json", "--cpus", first]].concat());
    assert_success(&output);
    let line = &json(&output)[0];
    assert_eq!(line["options"]["cpus"], first, "{line}");
    assert_eq!(line["machine"]["cpus"], 1, "as many as it may use: {line}");
    assert_failure(&place.run(&[&QUICK[..], &["--cpus", "1023"]].concat()), 2, &["--cpus 1023"]);
    let senseless = place.run(&[&QUICK[..], &["--cpus", "3-1"]].concat());
    assert_eq!(senseless.status.code(), Some(2));
    assert!(stderr(&senseless).contains("not a processor"), "{}", stderr(&senseless));
}

#[test]
fn perf_measures_every_operation() {
    let place = Place::new();
    let output = place.run(&[&QUICK[..], &["--json"]].concat());
    assert_success(&output);
    let report = json(&output);
    let lines = report.as_array().unwrap();
    // write, write-imm with two schemes, read, send, p2p; two sizes each.
    assert_eq!(lines.len(), 12);
    for line in lines {
        assert_eq!(line["requests"], 20, "{line}");
        for figure in ["requests_per_second", "gigabytes_per_second", "relative_to_memcpy"] {
            assert!(line[figure].as_f64().unwrap() > 0.0, "{line}");
        }
        let [gigabytes, gigabits] = ["gigabytes_per_second", "gigabits_per_second"]
            .map(|figure| line[figure].as_f64().unwrap());
        assert!((gigabits / gigabytes - 8.0).abs() < 1e-9, "{line}");
        let (machine, options) = (&line["machine"], &line["options"]);
        assert!(machine["cpus"].as_u64().unwrap() > 0 && machine["kernel"].is_string(), "{line}");
        assert_eq!((&options["count"], &options["seconds"]), (&20.into(), &Value::Null));
        assert_eq!(options["rail_failure"], "reroute", "{line}");
    }
    let named = |line: &Value| format!("{} {}", line["operation"], line["scheme"]);
    let names: Vec<String> = lines.iter().step_by(2).map(named).collect();
    let expected = ["write -", "write-imm spray", "write-imm dqplb", "read -", "send -", "p2p -"];
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
    assert_eq!(text.lines().filter(|line| line.contains(" KiB  ")).count(), 12, "{text}");
    let output = place.run(&[&QUICK[..], &["--csv", "--rails", "1"]].concat());
    assert_success(&output);
    let csv = stdout(&output);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 10);
}

#[test]
fn perf_measures_half_round_trips() {
    let place = Place::new();
    let quick = ["perf", "--latency", "--count", "50"];
    let output = place.run(&[&quick[..], &["--json", "--rails", "2"]].concat());
    assert_success(&output);
    let report = json(&output);
    let lines = report.as_array().unwrap();
    let named = |line: &Value| format!("{} {}", line["operation"], line["scheme"]).replace('"', "");
    let names: Vec<String> = lines.iter().map(named).collect();
    assert_eq!(names, ["write-imm spray", "write-imm dqplb", "send -", "p2p -"]);
    for line in lines {
        assert_eq!(
            (&line["round_trips"], &line["message_size"]),
            (&50.into(), &8.into()),
            "{line}"
        );
        let names = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "max_ns"];
        let times = names.map(|name| line[name].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{line}");
    }
    let choice = ["--operations", "p2p,send", "--sizes", "1,64K", "--threads", "2"];
    let output = place.run(&[&quick[..], &choice].concat());
    assert_success(&output);
    let text = stdout(&output);
    for words in ["one request in flight", "p99.9 us", "p2p        -       64 KiB           50  "] {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
    let output = place.run(&[&quick[..], &choice, &["--csv"]].concat());
    let csv = stdout(&output);
    assert_eq!(csv.lines().count(), 1 + 4);
    assert!(csv.lines().all(|line| line.split(',').count() == 14), "{csv}");
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

/// A measurement over time that is over at once.
const OVER_TIME: [&str; 4] = ["perf", "--timeline", "--seconds", "0.1"];

#[test]
fn perf_over_time_prints_what_each_rail_did() {
    let place = Place::new();
    let output = place.run(&OVER_TIME);
    assert_success(&output);
    let text = stdout(&output);
    for words in ["the software NIC: 4 rails, ", "write-imm of 1 MiB, spray: ", "rail 3 (tx3)  "] {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
    assert!(!text.contains("goodput:"), "{text}");
    let choice = ["--operations", "read", "--sizes", "64K", "--rails", "2", "--json"];
    let output = place.run(&[&OVER_TIME[..], &choice].concat());
    assert_success(&output);
    let report = json(&output);
    assert_eq!((&report["operation"], &report["message_size"]), (&"read".into(), &65536.into()));
    assert_eq!(report["rail_names"], serde_json::json!(["rail 0 (tx0)", "rail 1 (tx1)"]));
    assert_eq!((&report["goodput"], &report["marks"]), (&Value::Null, &serde_json::json!([])));
    let samples = report["samples"].as_array().unwrap();
    assert!(!samples.is_empty());
    for sample in samples {
        assert!(sample["gigabytes_per_second"].is_f64(), "{sample}");
        assert_eq!(sample["rails"].as_array().unwrap().len(), 2, "{sample}");
    }
}

#[test]
fn perf_over_time_shows_faults_that_come_and_go() {
    let place = Place::new();
    let fault =
        ["perf", "--seconds", "1", "--line-rate", "64M", "--sizes", "64K", "--max-msg-size"];
    let fault =
        [&fault[..], &["4K", "--fault", "2:200ms:slow:200ms", "--plot", "plot.svg"]].concat();
    let output = place.run(&fault);
    assert!(output.status.success(), "{}", stderr(&output));
    let (rest, told) = split_faults(&output);
    assert_eq!((rest.as_str(), told.len()), ("", 2), "{told:?}");
    assert!(stdout(&output).contains("\ngoodput: "), "{}", stdout(&output));
    let svg = fs::read_to_string(place.path("plot.svg")).unwrap();
    for words in [
        "goodput on the software NIC",
        "all rails: acknowledged",
        "rail 3 (tx3): posted",
        "rail 2 (device tx2): completions 20 ms late",
        "rail 2 (device tx2): completions in time again",
    ] {
        assert!(svg.contains(words), "{words:?} is not in the picture");
    }
    let report = json(&place.run(&[&fault[..], &["--json"]].concat()));
    let marks = report["marks"].as_array().unwrap();
    assert_eq!((&marks[0]["begins"], &marks[1]["begins"]), (&true.into(), &false.into()));
    assert_eq!((marks.len(), &marks[0]["cause"]), (2, &"fault 0".into()));
    for figure in ["before", "during", "after", "during_ratio", "after_ratio"] {
        assert!(report["goodput"][figure].as_f64().unwrap() > 0.0, "{}", report["goodput"]);
    }
    let csv = stdout(&place.run(&[&fault[..], &["--csv"]].concat()));
    let head = "seconds,gigabytes_per_second,rail_0,rail_1,rail_2,rail_3,marks";
    assert_eq!(csv.lines().next(), Some(head));
    assert!(csv.lines().all(|line| line.split(',').count() == 7), "{csv}");
    assert_eq!(csv.matches("\"rail 2 (device tx2): ").count(), 2, "{csv}");
}

#[test]
fn a_fault_that_never_comes_does_not_change_a_measurement() {
    let place = Place::new();
    let output = place.run(&[&OVER_TIME[..], &["--fault", "far.1:600s:gone"]].concat());
    let note = "polyrail: the fault on rail 1 did not happen: the measurement ended before 600s had \
                passed\n";
    assert_eq!((output.status.success(), stderr(&output).as_str()), (true, note));
    assert!(!stdout(&output).contains("goodput:"));
}

#[test]
fn a_line_rate_limits_every_device() {
    let place = Place::with_source(4 << 20);
    let output = place.copy(&["--line-rate", "8M", "--rails", "2", "--json"]);
    assert_success(&output);
    place.assert_copied();
    // 2 MiB over each of two devices, of which 1 ms is free.
    assert!(json(&output)["seconds"].as_f64().unwrap() > 0.24, "{}", stdout(&output));
    let rate = ["--line-rate", "8M", "--rails", "2"];
    let output = place.run(&[&OVER_TIME[..], &rate].concat());
    assert_success(&output);
    assert!(stdout(&output).contains("2 rails, 8 MiB/s a device, "), "{}", stdout(&output));
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
