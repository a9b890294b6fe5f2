//! The program copies files, run as a process.

mod program_support;

use program_support::*;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

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
    let counts = ["sender", "2", "tx2", "17", "2097152", "32", "8", "8", "0"];
    assert_eq!(cells, [&counts[..], &["0", "in", "service"]].concat());
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
fn without_overwrite_an_old_destination_stays() {
    let place = Place::with_source(1000);
    assert_success(&place.copy(&["--no-overwrite"]));
    place.assert_copied();
    fs::write(place.path("dst"), "old").unwrap();
    assert_failure(
        &place.copy(&["--no-overwrite"]),
        4,
        &["dst exists, and --no-overwrite forbids replacing it"],
    );
    assert_eq!(fs::read(place.path("dst")).unwrap(), b"old");
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
    let words = ["cannot write dst: it is a dangling symbolic link"];
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

#[test]
fn sources_that_cannot_be_read() {
    let place = Place::new();
    assert_failure(&place.copy(&[]), 3, &["cannot read src", "No such file"]);
    assert_failure(&place.run(&["copy", "/dev/zero", "dst"]), 3, &["a character device"]);
    assert!(place.files().is_empty());

    let place = Place::new();
    assert!(Command::new("mkfifo").arg(place.path("src")).status().unwrap().success());
    assert_failure(&place.copy(&[]), 3, &["cannot read src: it is a named pipe"]);
}

#[test]
fn destinations_that_cannot_be_written() {
    let place = Place::with_source(1000);
    let output = place.run(&["copy", "src", "missing/dst"]);
    assert_failure(&output, 4, &["cannot write missing/dst", "No such file"]);
    let output = place.run(&["copy", "src", "src/dst"]);
    assert_failure(&output, 4, &["cannot write src/dst", "Not a directory"]);
    let output = place.run(&["copy", "src", "missing/new/"]);
    assert_failure(&output, 4, &["cannot write missing/new/"]);
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let output = place.run(&["copy", "src", "pipe"]);
    assert_failure(&output, 4, &["cannot write pipe: it is a named pipe"]);
    assert_eq!(place.files(), ["pipe", "src"]);
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
    for destination in ["missing/dst", "src/dst", "missing/new/"] {
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
    assert_failure(&output, 11, &["cannot allocate 8589934592 bytes"]);
    let perf = ["perf", "--count", "1", "--sizes", "256M", "--window", "128"];
    let output = place.run_within(500_000, &perf);
    assert_failure(&output, 11, &["cannot allocate "]);
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
        Self::begun(1 << 40, libc::SIG_DFL).expect("it does not end")
    }

    /// Starts one of so many bytes with this disposition of SIGHUP, whatever the tests' own is.
    /// Returns `None` if it ended before this thread could see it begin.
    fn begun(bytes: u64, disposition: libc::sighandler_t) -> Option<Self> {
        let place = Place::new();
        fs::File::create(place.path("src")).unwrap().set_len(bytes).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["copy", "--window", "1", "--message-size", "4K", "src", "dst"]);
        command.current_dir(&place.directory).stderr(Stdio::piped()).stdout(Stdio::piped());
        let dispose = move || {
            // SAFETY: it may be called between fork and exec, and the disposition calls no
            // function.
            unsafe { libc::signal(libc::SIGHUP, disposition) };
            Ok(())
        };
        // SAFETY: the closure allocates nothing and takes no lock.
        unsafe { command.pre_exec(dispose) };
        let mut copy = Self { place, child: command.spawn().unwrap() };
        while copy.written() == 0 {
            if copy.child.try_wait().unwrap().is_some() {
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
        Some(copy)
    }

    /// Starts one, and stops it in the middle. A copy that was too short for that is followed by a
    /// longer one: this thread may not run for a while.
    fn stopped_within(disposition: libc::sighandler_t) -> (Self, u64) {
        let lengths = [4 << 20, 32 << 20, 256 << 20, 2 << 30];
        let mut copies = lengths.into_iter().filter_map(|bytes| {
            let copy = Self::begun(bytes, disposition)?;
            let is_within = copy.stop() && copy.written() < bytes;
            is_within.then_some((copy, bytes))
        });
        copies.next().expect("a copy that does not end before it is stopped")
    }

    /// Stops it, and returns whether it has not ended before.
    fn stop(&self) -> bool {
        self.signal(libc::SIGSTOP);
        // SAFETY: zeros are a value of the type.
        let mut state: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the call writes the value, and the child has not been waited for.
        let waited = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut state, flags) };
        assert_eq!(waited, 0);
        state.si_code == libc::CLD_STOPPED
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
    copy.assert_failure(
        3,
        &["cannot read src: the file shrank during the copy, from 1099511627776 bytes to at most "],
    );
    // A file that reports that it is empty, but is not.
    let output = Place::new().run(&["copy", "/proc/self/status", "dst"]);
    assert_failure(
        &output,
        3,
        &["cannot read /proc/self/status: the file is longer than the 0 bytes that it reported"],
    );
}

#[test]
fn a_source_that_changes_and_keeps_its_length_is_not_copied() {
    let (copy, _) = Long::stopped_within(libc::SIG_DFL);
    fs::File::options().write(true).open(copy.place.path("src")).unwrap().write_all(b"x").unwrap();
    copy.signal(libc::SIGCONT);
    copy.assert_failure(
        3,
        &["cannot read src: the file changed during the copy", "modification time"],
    );
}

#[test]
fn under_nohup_a_hangup_is_ignored() {
    let (copy, bytes) = Long::stopped_within(libc::SIG_IGN);
    copy.signal(libc::SIGHUP);
    copy.signal(libc::SIGCONT);
    let output = copy.child.wait_with_output().unwrap();
    assert_success(&output);
    assert_eq!(fs::metadata(copy.place.path("dst")).unwrap().len(), bytes);
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
