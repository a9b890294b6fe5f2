//! What `polyrail perf` measures and prints, run as a process.

mod program_support;

use program_support::*;
use serde_json::Value;
use std::fs;

#[test]
fn perf_stays_on_the_processors_that_it_was_given() {
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

/// Whoever finds a figure later learns with which choices it was measured.
#[test]
fn json_has_every_option_of_perf() {
    let place = Place::new();
    let help = stdout(&place.run(&["perf", "--help"]));
    // After the options come examples and notes.
    let (options, _) = help.split_once("\nExamples:\n").unwrap();
    let options = options.lines().filter_map(|line| {
        // What is further to the right is the text of an option, which may begin with another one.
        let words = line.trim_start();
        let is_option = words.starts_with('-') && line.len() - words.len() < 8;
        let long = words.split("--").nth(1).filter(|_| is_option)?;
        long.split([' ', ',']).next()
    });
    let line = &json(&place.run(&[&QUICK[..], &["--json"]].concat()))[0];
    let timeline = json(&place.run(&[&OVER_TIME[..], &["--json"]].concat()));
    let mut count = 0;
    for option in options {
        count += 1;
        let name = match option {
            // The report itself, and not what it is about.
            "json" | "csv" | "plot" | "help" => continue,
            "operations" => "operation",
            "schemes" => "scheme",
            "sizes" | "all-sizes" => "message_size",
            "interval" | "stall-timeout" | "rail-timeout" | "answer-timeout" => {
                &format!("{}_seconds", option.replace('-', "_"))
            }
            _ => &option.replace('-', "_"),
        };
        for report in [line, &timeline] {
            let is_there = report.get(name).or_else(|| report["options"].get(name)).is_some();
            assert!(is_there, "--{option} is not in {report}");
        }
    }
    assert!(count > 30, "{count} options in {help}");
}

#[test]
fn perf_measures_both_directions() {
    let place = Place::new();
    let both = |seconds: &str, choice: &[&str]| {
        let both = ["perf", "--bidirectional", "--seconds", seconds, "--sizes", "64K"];
        let output = place.run(&[&both[..], &["--operations"], choice].concat());
        assert_success(&output);
        output
    };
    let of = |rate: &Value| rate["gigabytes_per_second"].as_f64().unwrap();
    // On a machine that is busy with something else, an end may send nothing in a short time.
    let measure = |seconds| json(&both(seconds, &["write,send", "--json"]));
    let is_whole = |report: &Value| {
        let mut lines = report.as_array().unwrap().iter();
        lines.all(|line| of(&line["there"]) > 0.0 && of(&line["back"]) > 0.0)
    };
    let report = ["0.1", "1", "10"].into_iter().map(measure).find(is_whole).unwrap();
    for line in report.as_array().unwrap() {
        let (sum, there, back) = (of(line), of(&line["there"]), of(&line["back"]));
        assert!((sum / (there + back) - 1.0).abs() < 1e-9, "{line}");
        assert_eq!(line["options"]["bidirectional"], true);
    }
    let text = stdout(&both("0.1", &["read", "--threads", "2"]));
    for words in ["8 requests in flight each way", "GB/s there", "GB/s back"] {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
    let csv = stdout(&both("0.1", &["p2p", "--csv"]));
    assert!(csv.contains(",gigabytes_per_second_there,gigabytes_per_second_back\n"), "{csv}");
    assert!(!csv.trim_end().ends_with(','), "{csv}");
}

#[test]
fn perf_measures_atomics_inline_packets_and_long_windows() {
    let place = Place::new();
    let quick = ["perf", "--count", "3000", "--json", "--operations"];
    let lines = json(&place.run(&[&quick[..], &["fetch-add,compare-swap"]].concat()));
    let names = lines.as_array().unwrap().iter().map(|line| &line["operation"]);
    assert_eq!(names.collect::<Vec<_>>(), ["fetch-add", "compare-swap"]);
    assert_eq!(lines[0]["message_size"], 8);
    let choice = ["write", "--sizes", "64", "--rails", "1", "--inline", "64", "--mtu", "1024"];
    let output = place.run(&[&quick[..], &choice, &["--window", "1000"]].concat());
    assert_success(&output);
    let line = &json(&output)[0];
    assert_eq!((&line["options"]["inline"], &line["options"]["mtu"]), (&64.into(), &1024.into()));
    assert_eq!((&line["window"], &line["requests"]), (&1000.into(), &3000.into()));
    let output = place.run(&[&quick[..], &["send", "--sizes", "64", "--window", "256"]].concat());
    assert_success(&output);
}

#[test]
fn perf_takes_the_short_options_of_perftest() {
    let place = Place::new();
    let short = ["perf", "-s", "64", "-n", "300", "-q", "2", "-t", "16", "-u", "12", "-m", "1024"];
    let output = place.run(&[&short[..], &["-b", "-I", "0", "--json"]].concat());
    assert_success(&output);
    let line = &json(&output)[0];
    let (rails, window, size) = (&line["rails"], &line["window"], &line["message_size"]);
    assert_eq!((rails, window, size), (&2.into(), &16.into(), &64.into()), "{line}");
    let options = &line["options"];
    assert_eq!((&options["count"], &options["mtu"]), (&300.into(), &1024.into()), "{line}");
    assert_eq!((&options["qp_timeout"], &options["inline"]), (&12.into(), &0.into()), "{line}");
    assert_eq!(options["bidirectional"], true, "{line}");
    let all = ["perf", "-a", "-D", "20ms", "--operations", "write", "--json"];
    let lines = json(&place.run(&all));
    let sizes = lines.as_array().unwrap().iter().map(|line| line["message_size"].as_u64().unwrap());
    assert_eq!(sizes.collect::<Vec<_>>(), (1..=23).map(|power| 1 << power).collect::<Vec<_>>());
    assert_eq!(lines[0]["options"]["seconds"], 0.02);
    // These are for the devices of another host.
    for option in [["-d", "mlx5_0"], ["-x", "3"], ["-S", "5"]] {
        let output = place.run(&[&QUICK[..], &option].concat());
        assert_failure(&output, 2, &["--service-level require --to"]);
    }
}

/// Each with the words that name the remedy.
#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let place = Place::new();
    for (arguments, words) in [
        (&["--inline", "64", "--sizes", "8"][..], "choose --rail-failure fatal or one rail"),
        (
            &["--inline", "1K", "--rails", "1"],
            "device tx0: 1024 bytes of inline data exceed what the device supports: ",
        ),
        (&["--window", "257"], "from 1 to 16384 over one rail, and to 256 over several"),
        (
            &["--operations", "compare-swap", "--sizes", "4"],
            "the request size is 4 bytes, but compare-swap always has 8",
        ),
        (
            &["--latency", "--operations", "write", "--sizes", "65K"],
            "choose write-imm, one rail or a larger --max-msg-size",
        ),
        (
            &["--operations", "p2p", "--rail-weights", "measured"],
            "choose another value of --rail-weights",
        ),
    ] {
        let quick = ["perf", "--count", "1", "--sizes", "8", "--operations", "write"];
        let given = |option: &str| arguments.contains(&option);
        let defaults = quick[3..].chunks(2).filter(|pair| !given(pair[0])).flatten().copied();
        let line: Vec<&str> =
            quick[..3].iter().copied().chain(defaults).chain(arguments.iter().copied()).collect();
        let output = place.run(&line);
        assert_failure(&output, 2, &[words]);
    }
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
        let figures = ["requests_per_second", "gigabytes_per_second", "cpu_percent"];
        for figure in figures.into_iter().chain(["relative_to_memcpy"]) {
            assert!(line[figure].as_f64().unwrap() > 0.0, "{line}");
        }
        let [gigabytes, gigabits] = ["gigabytes_per_second", "gigabits_per_second"]
            .map(|figure| line[figure].as_f64().unwrap());
        assert!((gigabits / gigabytes - 8.0).abs() < 1e-9, "{line}");
        let (machine, options) = (&line["machine"], &line["options"]);
        assert!(machine["cpus"].as_u64().unwrap() > 0 && machine["kernel"].is_string(), "{line}");
        assert_eq!((&options["count"], &options["seconds"]), (&20.into(), &Value::Null));
        assert_eq!(options["rail_failure"], "reroute", "{line}");
        assert_eq!(options["rail_weights"], "auto", "{line}");
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
    let expected = ["write -", "write-imm spray", "write-imm dqplb", "read -", "send -", "p2p -"];
    assert_eq!(names, expected);
    for line in lines {
        assert_eq!(
            (&line["round_trips"], &line["message_size"]),
            (&50.into(), &8.into()),
            "{line}"
        );
        assert_eq!(line["halved"], line["operation"] != "read", "{line}");
        assert_eq!(line["options"]["inline"], 0, "{line}");
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
    assert!(csv.lines().all(|line| line.split(',').count() == 15), "{csv}");
    let atomics = ["--operations", "fetch-add,read", "--rails", "1"];
    let text = stdout(&place.run(&[&quick[..], &atomics].concat()));
    assert!(text.contains("\nRound trips\n") && text.contains("fetch-add  "), "{text}");
    let one_rail = ["--operations", "write,send", "--rails", "1", "--json"];
    let lines = json(&place.run(&[&quick[..], &one_rail].concat()));
    assert_eq!(lines[1]["options"]["inline"], 64, "{lines}");
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
fn perf_draws_a_histogram_of_latencies() {
    let place = Place::new();
    let latency = ["perf", "--latency", "--count", "300", "--rails", "1", "--plot", "latency.svg"];
    assert_success(&place.run(&[&latency[..], &["--operations", "read,send"]].concat()));
    let svg = fs::read_to_string(place.path("latency.svg")).unwrap();
    for words in ["latency on the software NIC", "microseconds", "read, 8 B", "send, 8 B"] {
        assert!(svg.contains(words), "{words}");
    }
    // The outlines of bars; axes are black.
    for color in ["#0072B2", "#E69F00"] {
        let is_outline = |line: &&str| line.contains("<polyline") && line.contains(color);
        let outlines = svg.lines().filter(is_outline).filter(|line| line.matches(',').count() > 4);
        assert_eq!(outlines.count(), 1, "{svg}");
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
    let words =
        ["the software NIC: 4 rails, ", "write-imm of 1 MiB, spray: ", "rail 3 (tx3)  ", "CPU "];
    for words in words.into_iter().chain(["  state at the end\n", " 0  in service\n"]) {
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
    assert_eq!(
        report["rail_states"][1],
        serde_json::json!({"failures": 0, "down_since_seconds": null})
    );
    assert!(report["cpu_percent"].as_f64().unwrap() > 0.0, "{report}");
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
    // In one row if the machine took no sample between them.
    assert_eq!(csv.matches("rail 2 (device tx2): completions ").count(), 2, "{csv}");
}

/// A link that is cut for the rest of the measurement.
#[test]
fn the_table_after_a_fault_says_which_rail_is_down() {
    let place = Place::new();
    // More bytes of a rail pass before its failure is noticed than the machine carries in this
    // time.
    let fault = ["perf", "--seconds", "2", "--qp-timeout", "8", "--fault", "2:1M:cut"];
    let text = stdout(&place.run(&fault));
    let row = |rail: &str| text.lines().find(|line| line.starts_with(rail)).unwrap().to_owned();
    assert!(row("rail 2 (tx2)").contains("  down since "), "{text}");
    assert!(row("rail 1 (tx1)").ends_with("  0  in service"), "{text}");
    let report = json(&place.run(&[&fault[..], &["--json"]].concat()));
    let [one, two] = [1, 2].map(|rail| report["rail_states"][rail]["down_since_seconds"].as_f64());
    assert!(one.is_none() && two.is_some(), "{}", report["rail_states"]);
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
