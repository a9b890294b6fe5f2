//! The program's command line, its help and its devices, run as a process.

mod program_support;

use program_support::*;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

#[test]
fn devices_are_listed_or_what_is_missing_is_reported() {
    let output = Place::new().run(&["devices", "--json"]);
    assert!(output.status.success());
    let rdma = rdma_devices(&output);
    let text = stdout(&Place::new().run(&["devices", "--verbose"]));
    assert!(text.contains("NUMA node"));
    match rdma.first() {
        Some(device) => {
            assert!(device["ports"].is_array() && device["place"].is_object(), "{device}");
            assert!(text.contains(device["name"].as_str().unwrap()), "{text}");
        }
        None => {
            let said = stderr(&output);
            assert!(said.starts_with("polyrail: no RDMA devices: "), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}

/// The RDMA devices among all that are listed.
fn rdma_devices(listed: &Output) -> Vec<Value> {
    let mut devices = json(listed).as_array().unwrap().clone();
    devices.retain(|device| device["transport"] != "TCP");
    devices
}

#[test]
fn without_the_devices_that_two_hosts_need_what_is_missing_is_reported() {
    let place = Place::with_source(100);
    let no_such = ["--device", "no_such_device"];
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "dst"][..],
        &["copy", "--to", "127.0.0.1:1", "src"],
        &["copy", "--to", "127.0.0.1:1", "--name", "other name", "src"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["perf", "--to", "127.0.0.1:1"],
        &["perf", "--to", "127.0.0.1:1", "--gid-index", "1", "--csv"],
        &["perf", "--to", "127.0.0.1:1", "--tclass", "106", "--sl", "3"],
    ] {
        let output = place.run(&[arguments, &no_such].concat());
        // Named if there are other devices.
        let devices = rdma_devices(&place.run(&["devices", "--json"]));
        let words: &[&str] = if devices.is_empty() { &[] } else { &["no_such_device"] };
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
        &["copy", "--near", "thread", "src", "dst"],
        &["copy", "--to", "127.0.0.1", "--near", "thread", "--device", "mlx5_0", "src"],
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
        &["serve", "--near", "gpu0", "dst"],
    ] {
        assert_eq!(place.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    for command in [&["copy", "src"][..], &["perf"]] {
        let output = place.run(&[command, &["--to", "127.0.0.1", "--fault", "0:1"]].concat());
        assert_failure(
            &output,
            2,
            &["--fault cannot be combined with --to: only the software NIC"],
        );
    }
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn command_lines_that_make_no_sense() {
    let place = Place::with_source(10);
    let senseless: [&[&str]; 55] = [
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
        &["perf", "--latency", "--operations", "write", "--sizes", "1M", "--count", "1"],
        &["perf", "--operations", "fetch-add", "--sizes", "16", "--count", "1"],
        &["perf", "--bidirectional", "--latency"],
        &["perf", "--bidirectional", "--timeline"],
        &["perf", "-b", "--fault", "1:1M"],
        &["perf", "--window", "0"],
        &["perf", "--window", "16385", "--rails", "1"],
        &["perf", "--window", "257", "--rails", "2"],
        &["perf", "--inline", "5K"],
        &["perf", "--inline", "64", "--sizes", "8", "--operations", "write"],
        &["perf", "--inline", "1K", "--sizes", "8", "--rails", "1", "--operations", "write"],
        &["perf", "--mtu", "1500"],
        &["copy", "--mtu", "1024", "src", "dst"],
        &["perf", "--latency", "--timeline"],
        &["perf", "--latency", "--interval", "1s"],
        &["perf", "--bidirectional", "--interval", "1s"],
        &["perf", "--interval", "999us"],
        &["perf", "--seconds", "1m"],
        &["perf", "-a", "-s", "64"],
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
        &["copy", "--to", "127.0.0.1:data", "src"],
        &["copy", "--to", "root@127.0.0.1", "src"],
        &["copy", "root@127.0.0.1:src", "dst"],
        &["perf", "--to", "127.0.0.1:data"],
    ];
    for arguments in senseless {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
    assert_failure(
        &place.copy(&["--fault", "4:1M"]),
        2,
        &["a fault on rail 4, but rails are numbered 0 to 3"],
    );
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn negative_numbers_are_numbers_that_make_no_sense() {
    let place = Place::with_source(10);
    for (option, number, word) in [
        ("--rails", "-1", "must be a number from 1 to 8"),
        ("--devices", "-2", "must be a number from 1 to 8"),
        ("--window", "-1", "must be a number from 1 to 128"),
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

/// Who knows `scp` or perftest writes them.
#[test]
fn arguments_of_other_programs_are_refused_with_what_to_write() {
    let place = Place::with_source(10);
    for (arguments, tip) in [
        (&["copy", "-r", "src", "dst"][..], Some("directories need no -r")),
        (&["copy", "-a", "src", "dst"], None),
        (&["perf", "10.0.0.2"], Some("name the server with --to")),
    ] {
        let output = place.run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let shown = said.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
        assert_eq!(shown, tip, "{said}");
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
fn help_names_the_page_of_perftest_and_every_column() {
    let place = Place::new();
    let help = stdout(&place.run(&["perf", "--help"]));
    for words in
        ["measuring.md", "CPU %", "bells/msg", "of memcpy", "percentiles", "posted to each"]
    {
        assert!(help.contains(words), "{words:?} is not in {help}");
    }
    let reports = [
        (stdout(&place.run(&["perf", "--count", "20", "--sizes", "1K"])), &help),
        (stdout(&place.run(&["perf", "-b", "--count", "20", "--sizes", "1K"])), &help),
    ];
    fs::write(place.path("src"), "12345").unwrap();
    let copy_help = stdout(&place.run(&["copy", "--help"]));
    let copied = (stdout(&place.copy(&[])), &copy_help);
    for (report, help) in reports.into_iter().chain([copied]) {
        let head = report.split("\n\n").nth(1).unwrap().lines().next().unwrap();
        for column in head.split("  ").map(str::trim).filter(|column| !column.is_empty()) {
            // Two columns for the two directions are one entry.
            let column = column.trim_start_matches("GB/s ");
            assert!(help.contains(column), "{column:?} is not in {help}");
        }
    }
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
        let flowed = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let default = "up to one for each rail; `serve` offers all that have carrier]";
        assert!(flowed.contains(default), "{help}");
        for word in
            ["--qp-timeout <N>", "--traffic-class <N>", "--tclass", "--service-level", "--sl"]
        {
            assert!(help.contains(word), "{word}: {help}");
        }
    }
    let help = stdout(&place.run(&["serve", "--help"]));
    for signal in ["SIGINT", "SIGTERM", "SIGHUP"] {
        assert!(help.contains(signal), "{signal}: {help}");
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
        "--latency",
        "-b, --bidirectional",
        "--inline <BYTES>",
        "--mtu <BYTES>",
        "fetch-add",
        "compare-swap",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let flowed = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let sizes = "4K..4M; with --timeline or --fault 1M; with --latency 8; atomics always 8]";
    assert!(flowed.contains(sizes), "{help}");
    // In an order that leads from where to what and how, and to what comes of it.
    let headings =
        ["Hosts and devices:", "What to measure:", "Requests:", "Faults:", "Waiting:", "Output:"];
    let places =
        headings.map(|heading| help.find(heading).unwrap_or_else(|| panic!("{heading}: {help}")));
    assert!(places.is_sorted(), "{help}");
    // Nothing stands outside of them but the help itself.
    let (_, others) = help.split_once("\nOptions:\n").unwrap();
    let others = others.split("\n\n").next().unwrap();
    assert_eq!(others.matches("  -").count(), 1, "{others}");
    let help = stdout(&place.run(&["serve", "--help"]));
    for word in ["--peers", "--once", "--answer-timeout", "--idle-timeout", "--progress-timeout"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(stdout(&place.run(&["--version"])).starts_with("polyrail "));
}

#[test]
fn every_command_has_a_man_page() {
    let place = Place::new();
    let page = |command: &[&str]| {
        let output = place.run(&[&["man"], command].concat());
        assert_success(&output);
        stdout(&output)
    };
    let all = page(&[]);
    for command in ["copy", "serve", "perf", "devices", "completions", "man"] {
        assert!(all.contains(&format!("polyrail\\-{command}(1)")), "{all}");
        let text = page(&[command]);
        for words in [".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n", ".SH VERSION\n"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }
    let perf = page(&["perf"]);
    for words in [".SH EXAMPLES\n", ".SH \"EXIT CODES\"\n", "\\fB\\-\\-interval\\fR", "CPU %"] {
        assert!(perf.contains(words), "{words:?} is not in {perf}");
    }
    assert_failure(&place.run(&["man", "fly"]), 2, &["\"fly\" is not a command", "perf, devices"]);
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

/// As in a container that has reached its limit of threads: no address space has room for a stack
/// of this size, so the system refuses each thread with EAGAIN.
#[test]
fn a_thread_that_cannot_be_started_ends_the_job_with_words() {
    let place = Place::with_source(100_000);
    let measures = |arguments: &[&'static str]| [&QUICK, arguments].concat();
    let both_ways = measures(&["--threads", "2", "--bidirectional", "--operations", "write"]);
    for (arguments, task) in [
        (vec!["copy", "src", "dst"], "sends"),
        (vec!["copy", "--fault", "0:1s:cut", "src", "dst"], "begins and ends faults"),
        (measures(&["--threads", "2"]), "receives"),
        (both_ways, "posts at the far end"),
        (measures(&["--threads", "2", "--latency"]), "answers"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.args(&arguments).current_dir(&place.directory);
        let output = command.env("RUST_MIN_STACK", (1_u64 << 47).to_string()).output().unwrap();
        let words = format!("cannot start a thread that {task}: Resource temporarily unavailable");
        assert_failure(&output, 11, &[&words]);
        assert_eq!(place.files(), ["src"]);
    }
}
