//! Two processes of the program on this host, over TCP: `serve` in one, and `copy` or `perf` in the
//! other, without any RDMA device.

mod program_support;

use program_support::server::{LONG, Server, assert_ok};
use program_support::*;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Asserts the exit code, and that the last line on stderr contains each of the words.
#[track_caller]
fn assert_last_words(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let last = said.lines().last().unwrap_or_default();
    for word in words {
        assert!(last.contains(word), "{word:?} is not in: {said}");
    }
}

#[test]
fn files_are_copied_between_two_processes() {
    let place = Place::with_source((5 << 20) + 12_345);
    fs::create_dir(place.path("copies")).unwrap();
    let server = Server::start(&place, &["copies"]);
    let address = server.address();
    for scheme in ["spray", "dqplb"] {
        for rails in ["1", "4"] {
            let name = format!("{scheme}{rails}");
            let to = ["copy", "--to", &address, "--scheme", scheme, "--rails", rails, "--json"];
            let output = place.run(&[&to[..], &["--name", &name, "src"]].concat());
            assert_ok(&output);
            assert!(stderr(&output).contains("polyrail: over TCP, on tcp:lo"), "{output:?}");
            let report = json(&output);
            assert_eq!(report["sender"]["rails"][0]["device"], "tcp:lo", "{report}");
            let copy = fs::read(place.path("copies").join(&name)).unwrap();
            assert!(copy == fs::read(place.path("src")).unwrap(), "{name}");
        }
    }
}

#[test]
fn every_operation_is_measured_between_two_processes() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let address = server.address();
    let to = ["perf", "--to", &address, "--json"];
    let requests = ["--operations", "write,write-imm,read,send,p2p", "--sizes", "8,70000"];
    let atomics = ["--operations", "fetch-add,compare-swap"];
    let count = ["--count", "200"];
    // Write-imm has two schemes.
    for (arguments, lines) in [
        ([&requests[..], &count].concat(), 12),
        ([&atomics[..], &count].concat(), 2),
        ([&requests[..], &count, &["--bidirectional"]].concat(), 12),
        ([&requests[..2], &count, &["--latency"]].concat(), 6),
        ([&atomics[..], &count, &["--latency"]].concat(), 2),
        (
            [&requests[..2], &count, &["--rails", "1", "--sizes", "64", "--inline", "64"]].concat(),
            5,
        ),
    ] {
        let output = place.run(&[&to[..], &arguments].concat());
        assert_ok(&output);
        assert_eq!(json(&output).as_array().unwrap().len(), lines, "{arguments:?}");
    }
    let timeline = ["--timeline", "--count", "200", "--sizes", "64K"];
    assert_ok(&place.run(&[&to[..], &timeline].concat()));
}

#[test]
fn memcpy_is_only_in_the_picture_of_a_measurement_within_a_process() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let address = server.address();
    for (to, with_memcpy) in [(&[][..], true), (&["--to", &address], false)] {
        let few = ["--operations", "write", "--plot", "picture.svg"];
        assert_ok(&place.run(&[&QUICK[..], &few, to].concat()));
        let picture = fs::read_to_string(place.path("picture.svg")).unwrap();
        assert_eq!(picture.contains("memcpy"), with_memcpy, "{picture}");
    }
}

#[test]
fn a_server_prints_what_it_serves() {
    let place = Place::with_source(10);
    fs::create_dir(place.path("there")).unwrap();
    fs::write(place.path("token"), "a secret of some length\n").unwrap();
    for (arguments, what) in [
        (&[][..], "serves measurements only; token: no"),
        (&["there", "--token-file", "token"], "serves directory there; readable: no; token: yes"),
        (&["there", "--readable"], "serves directory there; readable: yes; token: no"),
        (&["new/", "--readable"], "serves directory new/; readable: yes; token: no"),
        (&["missing"], "replaces file missing; readable: no; token: no"),
        (&["src", "--readable"], "replaces file src; readable: no; token: no"),
    ] {
        let server = Server::start(&place, arguments);
        let line = server.line("token: ");
        assert_eq!(line, format!("polyrail: {what}"), "{arguments:?}");
        let said = server.said.lock().unwrap();
        // On a host with RDMA devices there is no such line.
        let why = said.iter().find(|line| line.starts_with("polyrail: no RDMA devices: "));
        assert!(why.is_none_or(|why| why.ends_with("; only TCP is offered")), "{said:?}");
    }
    assert_eq!(place.files(), ["new", "src", "there", "token"]);
    let refused = |path| place.run(&["serve", "--listen", "127.0.0.1:0", path]);
    assert_last_words(&refused("src/"), 4, &["cannot write src/: Not a directory"]);
    assert_last_words(&refused("no/such/"), 4, &["cannot write no/such/: No such file"]);
}

/// A missing directory is made, so that files get their own names in it.
#[test]
fn a_file_gets_its_name_in_a_directory_that_the_server_made() {
    let place = Place::with_source(100_000);
    let server = Server::start(&place, &["new/"]);
    assert_ok(&place.run(&["copy", "--to", &server.address(), "src"]));
    assert!(fs::read(place.path("new/src")).unwrap() == fs::read(place.path("src")).unwrap());
}

/// The line that names devices agrees with the one about those that stay unused.
#[test]
fn devices_that_no_rail_uses_are_not_named_as_used() {
    let place = Place::with_source(10);
    let devices = ["--device", "tcp:lo", "--device", "tcp:127.0.0.2"];
    let server = Server::start(&place, &[&devices[..], &["dst"]].concat());
    let to = ["copy", "--to", &server.address(), "--rails", "1", "src"];
    let output = place.run(&[&to[..], &devices].concat());
    assert_ok(&output);
    let used = "polyrail: over TCP, on tcp:lo\n";
    let unused = "polyrail: of 2 devices the last one stays unused: there is 1 rail\n";
    assert_eq!(stderr(&output), format!("{used}{unused}"));
    place.assert_copied();
}

/// `scp -r src dst HOST:/data` would take the last path for the destination.
#[test]
fn a_missing_path_after_to_is_a_source() {
    let place = Place::with_source(10);
    let server = Server::start(&place, &["new/"]);
    let words = ["cannot read missing: No such file", "; with --to every path is a source"];
    let to = ["copy", "--to", &server.address(), "-d", "tcp:lo"];
    assert_last_words(&place.run(&[&to[..], &["src", "missing"]].concat()), 3, &words);
    let output = place.run(&[&to[..], &["missing"]].concat());
    assert_last_words(&output, 3, &words[..1]);
    assert!(!stderr(&output).contains(words[1]), "{output:?}");
}

/// The server has the reason: a limit of its system.
#[test]
fn a_file_that_the_server_cannot_write_is_named_here() {
    let place = Place::with_source(1 << 20);
    let mut shell = Command::new("sh");
    let script = "ulimit -f 8; exec \"$0\" serve --listen 127.0.0.1:0 dst";
    let server = Server::run(shell.args(["-c", script, PROGRAM]).current_dir(&place.directory));
    let output = place.run(&["copy", "--to", &server.address(), "src"]);
    let words = ["the other side reports: cannot write dst: writing ", "File too large"];
    assert_last_words(&output, 6, &words);
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn a_connection_that_is_refused_has_a_likely_cause() {
    let place = Place::with_source(10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let cause = ["Connection refused", "; is `polyrail serve` running there?"];
    for device in ["tcp:lo", "tcp:127.0.0.2"] {
        for command in [&["copy", "src"][..], &["perf"]] {
            let to = ["--to", &address, "--device", device];
            assert_last_words(&place.run(&[command, &to].concat()), 6, &cause);
        }
    }
    assert_last_words(&place.run(&["copy", "--to", &address, "src"]), 6, &cause);
}

#[test]
fn the_name_of_an_interface_and_the_index_of_a_gid_are_not_for_hosts_without_rdma_devices() {
    let place = Place::with_source(10);
    let server = Server::start(&place, &[]);
    let address = server.address();
    let named = "lo is a network interface, not an RDMA device: use the backend tcp (tcp:lo)";
    for arguments in
        [&["serve"][..], &["perf", "--to", &address], &["copy", "--to", &address, "src"]]
    {
        assert_last_words(&place.run(&[arguments, &["--device", "lo"]].concat()), 9, &[named]);
    }
    if !stderr(&place.run(&["devices"])).contains("no RDMA devices") {
        eprintln!("skipped: this host has RDMA devices");
        return;
    }
    for arguments in [&["serve"][..], &["perf", "--to", &address]] {
        for [option, value] in [["--gid-index", "3"], ["--near", "3b:00.0"]] {
            let output = place.run(&[arguments, &[option, value]].concat());
            let words = format!("{option} is for RDMA devices");
            assert_last_words(&output, 9, &[&words, "omit it over TCP"]);
        }
    }
}

/// A peer that only asks for the server's devices is not the one.
#[test]
fn once_serves_the_peer_that_copies() {
    let place = Place::with_source(100_000);
    let mut server = Server::start(&place, &["--once", "dst"]);
    assert_ok(&place.run(&["copy", "--to", &server.address(), "src"]));
    assert!(server.child.wait().unwrap().success());
    place.assert_copied();
    let said = server.said.lock().unwrap().join("\n");
    assert!(!said.contains("from 127.0.0.1"), "{said}");
}

/// A copy of a file that has no end in the time of a test, to a server that writes to `/dev/null`.
struct Endless {
    copy: Child,
    server: Server,
}

impl Endless {
    /// Returns once data moves.
    fn start(place: &Place, arguments: &[&str]) -> Self {
        // Without blocks on the disk.
        fs::File::create(place.path("src")).unwrap().set_len(1 << 40).unwrap();
        let server = Server::start(place, &["/dev/null"]);
        let mut copy = Command::new(PROGRAM)
            .args(["copy", "--to", &server.address(), "src"])
            .args(arguments)
            .current_dir(&place.directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        // Bytes that it read of its source, and a little more.
        let read = |copy: &Child| {
            let io = fs::read_to_string(format!("/proc/{}/io", copy.id())).unwrap_or_default();
            io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(0_u64)
        };
        while read(&copy) < 200 << 20 {
            let ended = copy.try_wait().unwrap();
            assert!(begin.elapsed() < LONG && ended.is_none(), "{ended:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Self { copy, server }
    }

    fn signal_server(&self, signal: &str) {
        self::signal(&self.server, signal);
    }

    /// Returns what the copy ends with.
    fn end(mut self) -> Output {
        exit_code(&mut self.copy);
        self.copy.wait_with_output().unwrap()
    }
}

/// Waits until a process ends, but not for ever.
fn exit_code(child: &mut Child) -> Option<i32> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(begin.elapsed() < LONG, "it goes on");
        thread::sleep(Duration::from_millis(10));
    }
}

fn signal(server: &Server, signal: &str) {
    let server = server.child.id().to_string();
    assert!(Command::new("kill").args([signal, &server]).status().unwrap().success());
}

/// As it is documented for services.
#[test]
fn a_signal_ends_a_server_and_its_exit_code_says_whether_a_copy_was_under_way() {
    let place = Place::new();
    // Under nohup, this process and its children ignore SIGHUP (signal 1), and the server goes on.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignores_hangup = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1;
    for name in ["-INT", "-TERM", "-HUP"].into_iter().take(if ignores_hangup { 2 } else { 3 }) {
        let mut server = Server::start(&place, &["/dev/null"]);
        server.address();
        signal(&server, name);
        assert_eq!(exit_code(&mut server.child), Some(0), "{name}");
    }
    let mut endless = Endless::start(&place, &[]);
    endless.signal_server("-TERM");
    assert_eq!(exit_code(&mut endless.server.child), Some(130));
    assert!(!endless.end().status.success());
}

#[test]
fn a_server_that_is_killed_ends_the_copy_with_words() {
    let place = Place::new();
    let endless = Endless::start(&place, &[]);
    endless.signal_server("-KILL");
    assert_last_words(&endless.end(), 6, &["polyrail: sender: ", "the peer closed the link"]);
}

#[test]
fn a_server_that_is_stopped_ends_the_copy_with_words() {
    let place = Place::new();
    let endless = Endless::start(&place, &["--idle-timeout", "2"]);
    endless.signal_server("-STOP");
    assert_last_words(&endless.end(), 6, &["nothing happened for 2s"]);
}

#[test]
fn a_server_goes_on_when_its_peer_is_killed() {
    let place = Place::new();
    let mut endless = Endless::start(&place, &[]);
    endless.copy.kill().unwrap();
    endless.server.line("closed the link");
    let address = endless.server.address();
    let to = ["perf", "--to", &address, "--operations", "write-imm"];
    assert_ok(&place.run(&[&to[..], &QUICK[1..]].concat()));
    endless.end();
}

#[test]
fn a_peer_without_the_servers_token_is_refused() {
    let place = Place::with_source(1000);
    fs::write(place.path("token"), "0123456789abcdef").unwrap();
    fs::write(place.path("other"), "0123456789abcdeF").unwrap();
    let server = Server::start(&place, &["--token-file", "token", "dst"]);
    let to = ["copy", "--to", &server.address(), "src"];
    let with = |token: &[&str]| place.run(&[&to[..], token].concat());
    assert_last_words(&with(&[]), 6, &["same token"]);
    assert_last_words(&with(&["--token-file", "other"]), 6, &["another token"]);
    assert!(!place.path("dst").exists());
    assert_ok(&with(&["--token-file", "token"]));
    assert!(fs::read(place.path("dst")).unwrap() == fs::read(place.path("src")).unwrap());
}

#[test]
fn devices_are_chosen_by_interface_address_or_backend() {
    let place = Place::with_source(100_000);
    let free =
        || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (here, there) = (free(), free());
    let named = ["--device", "tcp:lo", "--device", "tcp:127.0.0.2"];
    for (serve, copy, devices) in [
        (&named[..], &named[..], "tcp:lo, tcp:127.0.0.2"),
        (&["--backend", "tcp"], &["--device", "tcp:127.0.0.1"], "tcp:127.0.0.1"),
        (&["--device", "tcp:127.0.0.2"], &["--backend", "tcp"], "tcp:lo"),
        (&["--device", "tcp:lo", "--tcp-port", &there], &["--tcp-port", &here], "tcp:lo"),
    ] {
        let server = Server::start(&place, &[serve, &["dst"]].concat());
        let output = place.run(&[&["copy", "--to", &server.address(), "src"], copy].concat());
        assert_ok(&output);
        let over = format!("polyrail: over TCP, on {devices}");
        assert!(stderr(&output).starts_with(&over), "{output:?}");
        assert!(fs::read(place.path("dst")).unwrap() == fs::read(place.path("src")).unwrap());
        fs::remove_file(place.path("dst")).unwrap();
    }
}

#[test]
fn devices_that_cannot_be_opened_are_named() {
    let place = Place::with_source(100);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    for (arguments, code, words) in [
        (&["--device", "tcp:no_such"][..], 9, &["tcp:no_such", "there are", "lo"][..]),
        (&["--device", "tcp:192.0.2.99"], 9, &["tcp:192.0.2.99"]),
        (&["--device", "tcp:lo", "--device", "tcp:127.0.0.1"], 9, &["named twice", "127.0.0.1"]),
        (&["--device", "tcp:lo", "--tcp-port", &port], 9, &["cannot listen", &port, "in use"]),
        (&["--device", "tcp:lo", "--device", "mlx5_0"], 2, &["tcp:lo", "mlx5_0", "contradict"]),
        (&["--backend", "verbs", "--device", "tcp:lo"], 2, &["--backend verbs", "contradict"]),
        (&["--backend", "tcp", "--gid-index", "3"], 2, &["--gid-index", "contradict"]),
        (&["--backend", "tcp", "--near", "thread"], 2, &["--near", "contradict"]),
    ] {
        assert_failure(&place.run(&[&serve[..], arguments].concat()), code, words);
        let to = ["copy", "--to", "127.0.0.1:1", "src"];
        assert_failure(&place.run(&[&to[..], arguments].concat()), code, words);
    }
    for arguments in [&["--device", "tcp:"][..], &["--backend", "ib"], &["--tcp-port", "0"]] {
        assert_eq!(place.run(&[&serve[..], arguments].concat()).status.code(), Some(2));
    }
    for arguments in [&["--backend", "tcp"][..], &["--tcp-port", "7000"], &["--device", "tcp:lo"]] {
        assert_failure(&place.copy(arguments), 2, &["require --to"]);
    }
    assert_eq!(place.files(), ["src"]);
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let place = Place::with_source(100);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = place.run(&["copy", "--to", &nobody, "src"]);
    assert_failure(&output, 6, &[&nobody, "cannot connect", "refused"]);
}

#[test]
fn network_interfaces_are_listed() {
    let place = Place::new();
    let output = place.run(&["devices", "--json"]);
    assert_ok(&output);
    let report = json(&output);
    let lo = report.as_array().unwrap().iter().find(|device| device["name"] == "tcp:lo").unwrap();
    assert_eq!((&lo["transport"], &lo["up"]), (&"TCP".into(), &true.into()), "{lo}");
    assert_eq!((&lo["interface"], &lo["addresses"][0]), (&"lo".into(), &"127.0.0.1/8".into()));
    assert!(lo["place"].is_object(), "{lo}");
    let text = stdout(&place.run(&["devices"]));
    let line = text.lines().find(|line| line.starts_with("tcp:lo ")).unwrap();
    assert!(line.contains("up") && line.ends_with("127.0.0.1/8"), "{text}");
    assert!(stdout(&place.run(&["devices", "--verbose"])).contains("NUMA node"));
}

/// The commands of the first example between two processes in the README, after the build: they
/// make a directory, serve it, and copy a file into it.
fn readme_commands() -> [String; 3] {
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let block = blocks.clone().find(|block| block.contains("copy --to 127.0.0.1")).unwrap();
    let command =
        |words: &str| block.lines().find(|line| line.starts_with(words)).unwrap().to_owned();
    ["mkdir", "target/release/polyrail serve", "target/release/polyrail copy --to"].map(command)
}

/// Waits until no other program listens at the port; says whether there was such a time.
fn is_free(address: &str) -> bool {
    let begin = Instant::now();
    while TcpListener::bind(address).is_err() {
        if begin.elapsed() > Duration::from_secs(120) {
            return false;
        }
        thread::sleep(Duration::from_millis(100));
    }
    true
}

#[test]
fn the_readmes_example_works_as_it_stands() {
    if !is_free("0.0.0.0:7471") {
        eprintln!("skipped: another program listens at the port 7471");
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.path("target/release")).unwrap();
    symlink(PROGRAM, place.path("target/release/polyrail")).unwrap();
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    fs::copy(readme, place.path("README.md")).unwrap();
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        // Without a shell between, so that the server can be ended.
        command.args(["-c", &format!("exec {line}")]).current_dir(&place.directory);
        command
    };
    let [make, serve, copy] = readme_commands();
    assert_ok(&shell(&make).output().unwrap());
    let _server = Server::run(&mut shell(&serve));
    assert_ok(&shell(&copy).output().unwrap());
    let directory = make.split_whitespace().nth(2).unwrap();
    let expected = fs::read(Path::new(readme)).unwrap();
    assert!(fs::read(place.path(directory).join("README.md")).unwrap() == expected);
    // The text below the example names this command.
    let back = "copy 127.0.0.1:README.md target";
    assert!(fs::read_to_string(readme).unwrap().contains(&format!("`{back}`")));
    assert_ok(&shell(&format!("target/release/polyrail {back}")).output().unwrap());
    assert!(fs::read(place.path("target/README.md")).unwrap() == expected);
}
