//! The program copies files while links and devices fail, run as a process.

mod program_support;

use program_support::*;
use std::fs;
use std::thread;

/// A rail's failure ends the copy.
const FATAL: [&str; 2] = ["--rail-failure", "fatal"];

/// Runs a copy whose link fails, and checks that it fails as it should.
fn fail(scheme: &str, rails: &str, fault: &str, old: bool) {
    let place = Place::with_source(6 << 20);
    if old {
        fs::write(place.path("dst"), "old").unwrap();
    }
    let scheme = ["--scheme", scheme, "--rails", rails, "--fault", fault];
    let output = place.copy(&[&scheme[..], &FATAL].concat());
    let rail = fault.split(':').next().unwrap();
    // The notify queue pair lives on the device of rail 0.
    let named = ["rail ", "the notify queue pair "].map(|name| match name {
        "rail " => format!("rail {rail} (device tx{rail}, queue pair"),
        name => format!("{name}(device tx{rail}, queue pair"),
    });
    let message = stderr(&output);
    let words = ["failed: RETRY_EXC_ERR: transport retries exceeded (status 12)"];
    let faults = assert_failure_by_fault(&output, 6, &words);
    let cut = format!("rail {rail} (device tx{rail}): link cut\n");
    assert!(faults.len() == 1 && faults[0].ends_with(&cut), "{faults:?}");
    assert!(named.iter().any(|name| message.contains(name)), "{fault}: {message}");
    assert_eq!(stdout(&output), "");
    if old {
        assert_eq!(fs::read(place.path("dst")).unwrap(), b"old");
        assert_eq!(place.files(), ["dst", "src"]);
    } else {
        assert_eq!(place.files(), ["src"]);
    }
}

#[test]
fn a_link_that_fails_ends_the_copy_wherever_it_happens() {
    thread::scope(|scope| {
        for scheme in ["spray", "dqplb"] {
            for fault in ["2:0", "2:1", "1:127", "3:128", "0:64K", "2:65537", "1:1000000", "0:1M"] {
                scope.spawn(move || fail(scheme, "4", fault, fault.ends_with('1')));
            }
            scope.spawn(move || fail(scheme, "1", "0:3M", false));
            scope.spawn(move || fail(scheme, "8", "7:300000", true));
        }
    });
}

#[test]
fn a_failed_rail_is_in_the_json_report_too() {
    let place = Place::with_source(4 << 20);
    let output = place.copy(&[&FATAL[..], &["--fault", "3:100K", "--json"]].concat());
    assert_failure_by_fault(&output, 6, &["rail 3"]);
    let report = json(&output);
    assert_eq!(report["exit_code"], 6);
    let rail = &report["failed_rail"];
    assert_eq!((&rail["rail"], &rail["device"]), (&"3".into(), &"tx3".into()), "{report}");
    assert_eq!((&rail["status"], &rail["status_code"]), (&"RETRY_EXC_ERR".into(), &12.into()));
}

#[test]
fn a_rail_that_falls_silent_is_found() {
    thread::scope(|scope| {
        for (rails, scheme) in [("4", "spray"), ("4", "dqplb"), ("1", "spray")] {
            scope.spawn(move || {
                let place = Place::with_source(6 << 20);
                let fault = if rails == "1" { "0:1M:silent" } else { "2:1M:silent" };
                let rails = ["--rails", rails, "--scheme", scheme, "--fault", fault];
                let output =
                    place.copy(&[&rails[..], &FATAL, &["--stall-timeout", "0.2"]].concat());
                let rail = &fault[..1];
                let words = format!("rail {rail} (device tx{rail}) fell silent");
                assert_failure_by_fault(&output, 6, &[&words]);
                assert_eq!(place.files(), ["src"]);
            });
        }
    });
}

/// By default a failed link is given up after eight of these timeouts, half a second, before its
/// rail is considered dead.
#[test]
fn a_side_waits_for_acknowledgements_for_the_given_time() {
    let place = Place::with_source(1 << 20);
    let options = ["--fault", "1:64K", "--stall-timeout", "3", "--qp-timeout", "31"];
    let options = [&options[..], &FATAL].concat();
    assert_failure_by_fault(&place.copy(&options), 6, &["rail 1 (device tx1) fell silent"]);
}

#[test]
fn a_fault_that_never_comes_does_no_harm() {
    let place = Place::with_source(1 << 20);
    let output = place.copy(&["--fault", "2:1G"]);
    assert!(output.status.success());
    let note = "polyrail: the fault on rail 2 did not happen: the copy ended before its device had \
                carried 1 GiB\n";
    assert_eq!(stderr(&output), note);
    place.assert_copied();
    assert_success(&place.copy(&["--fault", "2:1G", "--quiet"]));
    let output = place.copy(&["--fault", "far.0:600s:gone"]);
    let note =
        "polyrail: the fault on rail 0 did not happen: the copy ended before 600s had passed\n";
    assert_eq!((output.status.success(), stderr(&output).as_str()), (true, note));
}

#[test]
fn completions_that_are_late_for_a_while_do_no_harm() {
    let expected = [
        "rail 1 (device tx1): completions 20 ms late",
        "rail 1 (device tx1): completions in time again",
        "rail 0 (device rx0): completions 20 ms late",
        "rail 0 (device rx0): completions in time again",
    ];
    let copy = |rate| {
        let place = Place::with_source(8 << 20);
        let late = ["--fault", "1:512K:slow:30ms", "--fault", "far.0:0:slow:30ms"];
        let output = place.copy(&[&["--line-rate", rate], &late[..]].concat());
        place.assert_copied();
        let (rest, faults) = split_faults(&output);
        assert_eq!(rest, "");
        expected.iter().all(|said| faults.iter().any(|line| line.contains(said)))
    };
    // Half a second, with both faults in the first half of it. On a busy machine a fault may come
    // when a short copy ends.
    assert!(["4M", "1M", "128K"].into_iter().any(copy), "{expected:?} is never said");
    let place = Place::with_source(8 << 20);
    assert_success(&place.copy(&["--fault", "1:1M:slow:30ms", "--quiet"]));
}

#[test]
fn a_device_that_fails_ends_the_copy() {
    thread::scope(|scope| {
        for (fault, words) in [
            ("1:1M:corrupt", "(device tx1, queue pair"),
            ("far.1:1M:corrupt", "REM_OP_ERR"),
            ("1:1M:gone", "device tx1"),
            ("far.1:1M:gone", "x1"),
            ("far.1:1M", "RETRY_EXC_ERR"),
        ] {
            scope.spawn(move || {
                let place = Place::with_source(6 << 20);
                let options = [&FATAL[..], &["--fault", fault]].concat();
                assert_failure_by_fault(&place.copy(&options), 6, &[words]);
                assert_eq!(place.files(), ["src"]);
            });
        }
    });
}

#[test]
fn a_fault_takes_all_rails_of_its_device() {
    let place = Place::with_source(4 << 20);
    let options = ["--rails", "4", "--devices", "2", "--fault", "3:1M", "--json"];
    let output = place.copy(&[&options[..], &FATAL].concat());
    assert_failure_by_fault(&output, 6, &["(device tx1, queue pair"]);
    let rail = json(&output)["failed_rail"]["rail"].clone();
    assert!(rail == "1" || rail == "3", "{rail}");
}

/// Copies with faults, which it survives, and returns its lines about rails.
fn survive(scheme: &str, faults: &[&str]) -> Vec<String> {
    let place = Place::with_source(6 << 20);
    let faults = faults.iter().flat_map(|fault| ["--fault", *fault]);
    // Half a second without them.
    let options = ["--scheme", scheme, "--stall-timeout", "0.1", "--line-rate", "3M"];
    let options: Vec<&str> = options.into_iter().chain(faults).collect();
    let output = place.copy(&options);
    let (rest, _) = split_faults(&output);
    assert_eq!(output.status.code(), Some(0), "{options:?}: {rest}");
    place.assert_copied();
    rest.lines().map(str::to_owned).collect()
}

#[test]
fn a_copy_survives_faults_and_reports_what_it_did() {
    thread::scope(|scope| {
        for scheme in ["spray", "dqplb"] {
            for faults in [
                &["far.0:300K"][..],
                &["0:300K:cut:100ms"],
                &["1:300K", "2:600K"],
                &["1:300K:cut:50ms", "far.2:600K:cut:50ms"],
                &["far.2:300K:silent"],
                &["3:300K:corrupt:20ms"],
                &["1:300K:slow:100ms", "2:300K"],
            ] {
                scope.spawn(move || {
                    let told = survive(scheme, faults);
                    let rail = |fault: &str| fault.trim_start_matches("far.")[..1].to_owned();
                    // A fault that is over soon may not have been noticed at all.
                    for fault in faults.iter().filter(|fault| !fault.ends_with("ms")) {
                        let rail = format!("rail {} (device ", rail(fault));
                        let of = |word: &str| {
                            told.iter().any(|line| line.contains(&rail) && line.contains(word))
                        };
                        assert!(of(") failed: ") || of(" failed at the peer"), "{fault}: {told:?}");
                        assert!(of(" are posted again"), "{fault}: {told:?}");
                    }
                });
            }
        }
        // Arrivals on data rails notify no receiver.
        scope.spawn(|| survive("spray", &["1:300K:gone"]));
        scope.spawn(|| survive("spray", &["far.2:300K:gone"]));
    });
}

/// Both ends drop what arrives, on all rails, although queue pairs connect again.
#[test]
fn a_copy_over_rails_that_drop_everything_ends() {
    thread::scope(|scope| {
        for scheme in ["spray", "dqplb"] {
            scope.spawn(move || {
                let place = Place::with_source(6 << 20);
                let mut options: Vec<String> = ["0", "1", "far.0", "far.1"]
                    .iter()
                    .flat_map(|rail| ["--fault".to_owned(), format!("{rail}:300K:drop")])
                    .collect();
                let more = ["--rails", "2", "--scheme", scheme, "--rail-timeout", "1"];
                options.extend(more.map(str::to_owned));
                // 2 times 8 attempts of 67 ms, and the limit.
                options.extend(["--qp-timeout", "14"].map(str::to_owned));
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                let output = place.copy(&options);
                let (rest, _) = split_faults(&output);
                let last = rest.lines().last().unwrap_or_default();
                assert_eq!(output.status.code(), Some(6), "{rest}");
                let had_no_report = last.contains(&format!("{NO_REPORT}1s"));
                assert!(said_no_progress(last, "1s") || had_no_report, "{rest}");
                assert_eq!(place.files(), ["src"]);
            });
        }
    });
}

/// How a copy ends on a busy machine: a queue pair gives up before the limit for requests, and the
/// peer's report is what does not come.
const NO_REPORT: &str = "the peer has not reported for ";

fn said_no_progress(said: &str, limit: &str) -> bool {
    said.contains(&format!("requests made no progress for {limit}"))
}

/// All links are cut, and one comes back.
#[test]
fn a_copy_waits_for_a_rail_when_there_is_none() {
    for scheme in ["spray", "dqplb"] {
        let returns = |time| {
            let cut = format!("0:300K:cut:{time}");
            let told = survive(scheme, &[&cut, "1:300K", "2:300K", "3:300K"]);
            told.iter().any(|line| line.contains(" is back in service after "))
        };
        // On a busy machine, a cut that is over soon may not have been noticed.
        assert!(["300ms", "3s", "30s"].into_iter().any(returns), "{scheme}");
    }
    let names_the_rails = |(seconds, limit): (&str, &str)| {
        let place = Place::with_source(6 << 20);
        let forever = ["--fault", "0:1M", "--fault", "1:1M", "--rails", "2", "--rail-timeout"];
        let output = place.copy(&[&forever[..], &[seconds]].concat());
        let (rest, _) = split_faults(&output);
        let last = rest.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(6), "{rest}");
        assert_eq!(place.files(), ["src"]);
        let is_named = said_no_progress(last, &format!("{limit} with rail 0, rail 1"));
        assert!(is_named || last.contains(NO_REPORT), "{rest}");
        is_named
    };
    assert!([("0.3", "300ms"), ("3", "3s"), ("30", "30s")].into_iter().any(names_the_rails));
}

/// A link is cut for the rest of a copy, while its rail still has data to carry.
#[test]
fn the_report_of_a_copy_says_which_rail_is_down() {
    let place = Place::with_source(6 << 20);
    let output = place.copy(&["--fault", "2:1M"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = stdout(&output);
    assert!(report.contains("  errors  failures  state at the end\n"), "{report}");
    for (rail, is_down) in [("1", false), ("2", true)] {
        let row = report.lines().find(|line| line.starts_with(&format!("sender    {rail}")));
        let row = row.unwrap();
        assert_eq!(row.ends_with("         0  in service"), !is_down, "{report}");
        assert_eq!(row.ends_with("  in service"), !is_down, "{report}");
    }
}
