//! The program copies files, run as a process.

mod program_support;

use program_support::*;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn files_of_all_sizes_arrive_whole() {
    let sizes = [0, 1, 127, 128, 64 << 10, (64 << 10) + 1, 1 << 20, (5 << 20) + 12_345];
    for scheme in ["spray", "dqplb"] {
        for bytes in sizes {
            let place = Place::with_source(bytes);
            let output = place.copy(&["--scheme", scheme, "--json"]);
            assert_success(&output);
            place.assert_copied();
            let report = json(&output);
            assert_eq!(report["bytes"], bytes, "{report}");
            let crc32 = format!("{:08x}", crc32fast::hash(&pattern(bytes)));
            assert_eq!(report["crc32"], crc32.as_str());
        }
    }
}

#[test]
fn any_number_of_rails_and_devices_works() {
    for scheme in ["spray", "dqplb"] {
        for rails in 1..=8 {
            let place = Place::with_source((3 << 20) + 77);
            let devices = (rails % 3 + 1).min(rails).to_string();
            let rails = rails.to_string();
            let output = place.copy(&[
                "--rails",
                &rails,
                "--devices",
                &devices,
                "--scheme",
                scheme,
                "--window",
                "3",
                "--message-size",
                "256K",
                "--max-msg-size",
                "16K",
                "--json",
            ]);
            assert_success(&output);
            place.assert_copied();
            let report = json(&output);
            let sent = report["sender"]["rails"].as_array().unwrap();
            let bytes: u64 = sent.iter().map(|rail| rail["bytes"].as_u64().unwrap()).sum();
            assert_eq!(bytes, (3 << 20) + 77);
            assert_eq!(report["requests"], 13);
            assert!(sent.iter().all(|rail| rail["errors"] == 0), "{report}");
        }
    }
}

#[test]
fn odd_windows_and_message_sizes_work() {
    let odd = [
        ("1", "1K", "128"),
        ("128", "4K", "64K"),
        ("1", "1G", "64K"),
        ("7", "1000", "384"),
        ("2", "100001", "1M"),
    ];
    for (window, message, fragment) in odd {
        for scheme in ["spray", "dqplb"] {
            let place = Place::with_source(300_000);
            let output = place.copy(&[
                "--window",
                window,
                "--message-size",
                message,
                "--max-msg-size",
                fragment,
                "--scheme",
                scheme,
            ]);
            assert_success(&output);
            place.assert_copied();
        }
    }
}

#[test]
fn the_report_shows_what_each_rail_did() {
    let place = Place::with_source(8 << 20);
    let output = place.copy(&[]);
    assert_success(&output);
    let report = stdout(&output);
    assert!(report.starts_with("8 MiB in "), "{report}");
    assert!(report.contains("8 requests of up to 1 MiB, spray over 4 rails on 4 devices"));
    let crc32 = format!("CRC-32 {:08x}, the same at both ends", crc32fast::hash(&pattern(8 << 20)));
    assert!(report.contains(&crc32), "{report}");
    // 8 requests of 16 fragments: 4 fragments and one doorbell a rail each.
    let line = report.lines().find(|line| line.starts_with("sender    2")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells, ["sender", "2", "tx2", "17", "2097152", "32", "8", "8", "0"]);
    assert_eq!(report.lines().filter(|line| line.starts_with("receiver")).count(), 5);

    let quiet = place.copy(&["--quiet"]);
    assert_success(&quiet);
    assert_eq!(stdout(&quiet), "");
}

#[test]
fn an_old_destination_is_replaced_and_its_mode_kept() {
    let place = Place::with_source(1000);
    fs::write(place.path("dst"), pattern(5000)).unwrap();
    fs::set_permissions(place.path("dst"), Permissions::from_mode(0o666)).unwrap();
    assert_success(&place.copy(&["--sync"]));
    place.assert_copied();
    // Despite the umask.
    assert_eq!(fs::metadata(place.path("dst")).unwrap().mode() & 0o777, 0o666);

    let place = Place::with_source(1000);
    fs::set_permissions(place.path("src"), Permissions::from_mode(0o700)).unwrap();
    assert_success(&place.copy(&[]));
    assert_eq!(fs::metadata(place.path("dst")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn behind_a_symbolic_link_the_file_is_replaced() {
    let place = Place::with_source(1000);
    fs::create_dir(place.path("other")).unwrap();
    fs::write(place.path("other/file"), "old").unwrap();
    symlink("other/file", place.path("dst")).unwrap();
    assert_success(&place.copy(&[]));
    assert_eq!(fs::read(place.path("other/file")).unwrap(), pattern(1000));
    assert!(fs::symlink_metadata(place.path("dst")).unwrap().is_symlink());
}

#[test]
fn a_symbolic_link_that_leads_nowhere_is_refused() {
    let place = Place::with_source(1000);
    symlink("nowhere", place.path("dst")).unwrap();
    let words = ["cannot write dst: it is a symbolic link that leads nowhere"];
    assert_failure(&place.copy(&[]), 4, &words);
    assert_eq!(fs::read_link(place.path("dst")).unwrap().to_str(), Some("nowhere"));
    assert_eq!(place.files(), ["dst", "src"]);
}

#[test]
fn a_character_device_is_written_in_place() {
    let place = Place::with_source(100_000);
    let before = fs::metadata("/dev/null").unwrap().ino();
    assert_success(&place.run(&["copy", "src", "/dev/null"]));
    assert_eq!(fs::metadata("/dev/null").unwrap().ino(), before);
}

/// A rail's failure ends the copy.
const FATAL: [&str; 2] = ["--rail-failure", "fatal"];

/// Runs a copy whose link fails, and checks that it fails as it should.
fn fail(scheme: &str, rails: &str, fault: &str, old: bool) {
    let place = Place::with_source(6 << 20);
    if old {
        fs::write(place.path("dst"), "old").unwrap();
    }
    let begin = Instant::now();
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
    assert!(begin.elapsed() < Duration::from_secs(20));
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

/// By default a failed link is given up after eight of these timeouts, half a second, before its rail is
/// considered dead.
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
    let place = Place::with_source(8 << 20);
    // Half a second, with both faults in the first half of it.
    let options =
        ["--line-rate", "4M", "--fault", "1:512K:slow:30ms", "--fault", "far.0:0:slow:30ms"];
    let output = place.copy(&options);
    place.assert_copied();
    let (rest, faults) = split_faults(&output);
    assert_eq!(rest, "");
    for said in [
        "rail 1 (device tx1): completions 20 ms late",
        "rail 1 (device tx1): completions in time again",
        "rail 0 (device rx0): completions 20 ms late",
        "rail 0 (device rx0): completions in time again",
    ] {
        assert!(faults.iter().any(|line| line.contains(said)), "{said} is not in {faults:?}");
    }
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

/// Copies with faults, which it survives, and returns what it said of rails.
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
fn a_copy_survives_faults_and_says_what_it_did() {
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
        // Nobody is told of what arrives on data rails.
        scope.spawn(|| survive("spray", &["1:300K:gone"]));
        scope.spawn(|| survive("spray", &["far.2:300K:gone"]));
    });
}

/// All links are cut, and one comes back.
#[test]
fn a_copy_waits_for_a_rail_when_there_is_none() {
    let faults = ["0:300K:cut:300ms", "1:300K", "2:300K", "3:300K"];
    for scheme in ["spray", "dqplb"] {
        let told = survive(scheme, &faults);
        assert!(told.iter().any(|line| line.contains(" is back in service after ")), "{told:?}");
    }
    let place = Place::with_source(6 << 20);
    let forever = ["--fault", "0:1M", "--fault", "1:1M", "--rails", "2", "--rail-timeout", "0.3"];
    let output = place.copy(&forever);
    let (rest, _) = split_faults(&output);
    let last = rest.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(6), "{rest}");
    assert!(last.contains("requests made no headway for 300ms with rail 0, rail 1"), "{rest}");
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn sources_that_cannot_be_read() {
    let place = Place::new();
    assert_failure(&place.copy(&[]), 3, &["cannot read src", "No such file"]);
    fs::create_dir(place.path("src")).unwrap();
    assert_failure(&place.copy(&[]), 3, &["cannot read src: it is a directory"]);
    assert_failure(&place.run(&["copy", "/dev/zero", "dst"]), 3, &["a character device"]);
    assert_eq!(place.files(), ["src"]);

    let place = Place::new();
    assert!(Command::new("mkfifo").arg(place.path("src")).status().unwrap().success());
    assert_failure(&place.copy(&[]), 3, &["cannot read src: it is a named pipe"]);
}

#[test]
fn destinations_that_cannot_be_written() {
    let place = Place::with_source(1000);
    fs::create_dir(place.path("dst")).unwrap();
    assert_failure(&place.copy(&[]), 4, &["cannot write dst: it is a directory"]);
    let output = place.run(&["copy", "src", "missing/dst"]);
    assert_failure(&output, 4, &["cannot write missing/dst", "No such file"]);
    let output = place.run(&["copy", "src", "src/dst"]);
    assert_failure(&output, 4, &["cannot write src/dst", "Not a directory"]);
    let output = place.run(&["copy", "src", "new/"]);
    assert_failure(&output, 4, &["cannot write new/"]);
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let output = place.run(&["copy", "src", "pipe"]);
    assert_failure(&output, 4, &["cannot write pipe: it is a named pipe"]);
    assert_eq!(place.files(), ["dst", "pipe", "src"]);
}

#[test]
fn names_may_be_as_long_as_the_file_system_permits() {
    for name in ["x".repeat(255), format!("x{}", "ü".repeat(127))] {
        let place = Place::with_source(1000);
        assert_success(&place.run(&["copy", "src", &name]));
        assert_eq!(fs::read(place.path(&name)).unwrap(), pattern(1000));
        let output = place.run(&["copy", "src", &format!("{name}y")]);
        assert_failure(&output, 4, &["File name too long"]);
    }
}

#[test]
fn an_error_names_only_the_destination() {
    let place = Place::with_source(1000);
    for destination in ["missing/dst", "src/dst", "new/"] {
        let output = place.run(&["copy", "src", destination]);
        assert_failure(&output, 4, &[&format!("cannot write {destination}: "), " (os error "]);
        assert!(!stderr(&output).contains("polyrail-part"), "{}", stderr(&output));
    }
}

#[test]
fn permissions_are_respected() {
    let place = Place::with_source(1000);
    fs::set_permissions(&place.directory, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.path("src"), Permissions::from_mode(0o644)).unwrap();
    let program = place.path("polyrail");
    fs::copy(PROGRAM, &program).unwrap();
    let run = |source: &str, destination: &str| {
        let mut command = Command::new(&program);
        if is_root() {
            // Root may do everything.
            command.uid(65_534).gid(65_534);
        }
        command.args(["copy", source, destination]).current_dir(&place.directory);
        command.output().unwrap()
    };
    fs::write(place.path("secret"), "x").unwrap();
    fs::set_permissions(place.path("secret"), Permissions::from_mode(0o000)).unwrap();
    fs::create_dir(place.path("open")).unwrap();
    fs::set_permissions(place.path("open"), Permissions::from_mode(0o777)).unwrap();
    let output = run("secret", "open/dst");
    assert_failure(&output, 3, &["cannot read secret", "Permission denied"]);
    // A read-only file stays as it is, though its directory would allow a rename.
    fs::write(place.path("open/fixed"), "x").unwrap();
    fs::set_permissions(place.path("open/fixed"), Permissions::from_mode(0o444)).unwrap();
    let output = run("src", "open/fixed");
    assert_failure(&output, 4, &["cannot write open/fixed", "Permission denied"]);
    assert_eq!(fs::read(place.path("open/fixed")).unwrap(), b"x");
    fs::create_dir(place.path("closed")).unwrap();
    fs::set_permissions(place.path("closed"), Permissions::from_mode(0o555)).unwrap();
    let output = run("src", "closed/dst");
    assert_failure(&output, 4, &["cannot write closed/dst", "Permission denied"]);
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let place = Place::with_source(1000);
    assert_failure(&place.run(&["copy", "src", "./src"]), 8, &["src and ./src are the same file"]);
    fs::hard_link(place.path("src"), place.path("link")).unwrap();
    assert_failure(&place.run(&["copy", "src", "link"]), 8, &["the same file"]);
    symlink("src", place.path("soft")).unwrap();
    assert_failure(&place.run(&["copy", "soft", "src"]), 8, &["the same file"]);
    assert_eq!(fs::read(place.path("src")).unwrap(), pattern(1000));
}

#[test]
fn a_full_disk_ends_the_copy() {
    for scheme in ["spray", "dqplb"] {
        let place = Place::with_source(5 << 20);
        let output = place.run(&["copy", "--scheme", scheme, "src", "/dev/full"]);
        assert_failure(&output, 5, &["cannot write /dev/full: writing 1048576 bytes at offset 0"]);
    }
}

#[test]
fn lack_of_memory_is_not_a_rail_failure() {
    let place = Place::new();
    fs::File::create(place.path("src")).unwrap().set_len(1 << 40).unwrap();
    let output = place.run_within(4_000_000, &["copy", "--message-size", "1G", "src", "dst"]);
    assert_failure(&output, 11, &["no memory for 8589934592 bytes"]);
    let perf = ["perf", "--count", "1", "--sizes", "256M", "--window", "128"];
    let output = place.run_within(500_000, &perf);
    assert_failure(&output, 11, &["no memory for "]);
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn a_short_file_takes_little_memory() {
    let place = Place::with_source(6 << 20);
    assert_success(&place.run_within(1_000_000, &["copy", "--message-size", "1G", "src", "dst"]));
    place.assert_copied();
}

#[test]
#[ignore = "mounts a file system, as root"]
fn a_full_file_system_keeps_nothing_of_the_copy() {
    let place = Place::with_source(9 << 20);
    let small = Mounted::new(&place);
    let output = place.run(&["copy", "src", "small/dst"]);
    let words = ["cannot write small/dst: writing 1048576 bytes at offset 4194304"];
    assert_failure(&output, 5, &words);
    assert_eq!(small.files(), 0);
}

/// A long copy that has begun.
struct Long {
    place: Place,
    child: Child,
}

impl Long {
    /// Starts one that does not end by itself.
    fn endless() -> Self {
        Self::new(1 << 40)
    }

    fn new(bytes: u64) -> Self {
        Self::with_hangup(bytes, libc::SIG_DFL)
    }

    /// Starts one with this disposition of SIGHUP, whatever the tests' own is.
    fn with_hangup(bytes: u64, disposition: libc::sighandler_t) -> Self {
        let place = Place::new();
        fs::File::create(place.path("src")).unwrap().set_len(bytes).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["copy", "--window", "1", "--message-size", "4K", "src", "dst"]);
        command.current_dir(&place.directory).stderr(Stdio::piped()).stdout(Stdio::piped());
        let dispose = move || {
            // SAFETY: it may be called between fork and exec, and the disposition calls no function.
            unsafe { libc::signal(libc::SIGHUP, disposition) };
            Ok(())
        };
        // SAFETY: the closure allocates nothing and takes no lock.
        unsafe { command.pre_exec(dispose) };
        let copy = Self { place, child: command.spawn().unwrap() };
        while copy.written() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        copy
    }

    /// Returns the bytes of the copy so far, whether it has a name or not.
    fn written(&self) -> u64 {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let lengths = descriptors.filter_map(|entry| {
            let path = entry.unwrap().path();
            let open = fs::read_link(&path).ok()?;
            let part = open.starts_with(&self.place.directory) && !open.ends_with("src");
            Some(if part { fs::metadata(path).ok()?.len() } else { 0 })
        });
        lengths.sum()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the call touches no memory of ours, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    #[track_caller]
    fn assert_failure(self, code: i32, words: &[&str]) {
        let output = self.child.wait_with_output().unwrap();
        assert_failure(&output, code, words);
        assert_eq!(self.place.files(), ["src"]);
    }
}

#[test]
fn an_interrupt_removes_what_was_written() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let copy = Long::endless();
        copy.signal(signal);
        copy.assert_failure(130, &["interrupted"]);
    }
}

#[test]
fn a_source_that_changes_is_not_copied() {
    let copy = Long::endless();
    fs::File::options().write(true).open(copy.place.path("src")).unwrap().set_len(1000).unwrap();
    copy.assert_failure(3, &["cannot read src: it ends after", "had 1099511627776"]);
    // A file that reports that it is empty, but is not.
    let output = Place::new().run(&["copy", "/proc/self/status", "dst"]);
    assert_failure(&output, 3, &["cannot read /proc/self/status: it has more than the 0 bytes"]);
}

#[test]
fn a_source_that_changes_and_keeps_its_length_is_not_copied() {
    const BYTES: u64 = 8 << 20;
    let copy = Long::new(BYTES);
    copy.signal(libc::SIGSTOP);
    assert!(copy.written() < BYTES);
    fs::File::options().write(true).open(copy.place.path("src")).unwrap().write_all(b"x").unwrap();
    copy.signal(libc::SIGCONT);
    copy.assert_failure(
        3,
        &["cannot read src: it changed while it was copied", "modification time"],
    );
}

#[test]
fn under_nohup_a_hangup_is_ignored() {
    const BYTES: u64 = 4 << 20;
    let copy = Long::with_hangup(BYTES, libc::SIG_IGN);
    copy.signal(libc::SIGHUP);
    let output = copy.child.wait_with_output().unwrap();
    assert_success(&output);
    assert_eq!(fs::metadata(copy.place.path("dst")).unwrap().len(), BYTES);
}

#[test]
fn a_copy_that_is_killed_leaves_nothing() {
    let mut copy = Long::endless();
    copy.child.kill().unwrap();
    copy.child.wait().unwrap();
    assert_eq!(copy.place.files(), ["src"]);
}

#[test]
fn a_limit_on_the_length_of_files_counts_as_a_full_disk() {
    let place = Place::with_source(3 << 20);
    fs::write(place.path("dst"), "old").unwrap();
    // 1 MiB, or 2 where a shell counts in units of 1024 bytes.
    let script = format!("ulimit -f 2048 && exec {PROGRAM} copy src dst");
    let mut command = Command::new("sh");
    let output = command.args(["-c", &script]).current_dir(&place.directory).output().unwrap();
    let words = ["cannot write dst: writing 1048576 bytes at offset", "File too large"];
    assert_failure(&output, 5, &words);
    assert_eq!(fs::read(place.path("dst")).unwrap(), b"old");
    assert_eq!(place.files(), ["dst", "src"]);
}
