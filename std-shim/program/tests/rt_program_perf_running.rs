//! What `polyrail perf` prints while it runs, and when it is interrupted, run as a process.

mod program_support;

use program_support::server::Server;
use program_support::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A measurement that would take half an hour or more.
const LONG: [&str; 5] = ["perf", "--operations", "write", "--seconds", "0.1"];

/// A measurement over time that would take half an hour or more.
const LONG_OVER_TIME: [&str; 5] = ["perf", "--interval", "50ms", "--seconds", "3600"];

/// A program whose output is read while it runs.
struct Running {
    program: Child,
    stdout: BufReader<ChildStdout>,
    read: String,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut program = Command::new(PROGRAM);
        program.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let stdout = BufReader::new(program.stdout.take().unwrap());
        Self { program, stdout, read: String::new() }
    }

    /// Reads a line while the program runs.
    fn line(&mut self) -> String {
        let before = self.read.len();
        self.stdout.read_line(&mut self.read).unwrap();
        assert_eq!(self.program.try_wait().unwrap(), None, "it has ended: {}", self.read);
        self.read[before..].to_owned()
    }

    /// Reads lines until one contains these words.
    fn until(&mut self, words: &str) {
        while !self.line().contains(words) {}
    }

    /// Interrupts the program as Ctrl-C does, and returns all its output. It must end as
    /// interrupted.
    fn interrupted(mut self) -> String {
        interrupt(&self.program);
        self.stdout.read_to_string(&mut self.read).unwrap();
        let mut said = String::new();
        self.program.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(self.program.wait().unwrap().code(), Some(130), "{said}");
        // Between two hosts, a line names the devices first.
        let said = said.lines().filter(|line| !line.starts_with("polyrail: over TCP"));
        assert_eq!(said.collect::<Vec<_>>(), ["polyrail: interrupted by a signal"]);
        std::mem::take(&mut self.read)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        _ = self.program.kill();
        _ = self.program.wait();
    }
}

/// Sends the signal of Ctrl-C.
fn interrupt(program: &Child) {
    let process = program.id().to_string();
    let kill = ["-c", "kill -INT $0", &process];
    assert!(Command::new("sh").args(kill).status().unwrap().success());
}

/// Returns the arguments with sizes for half an hour of lines.
fn with_sizes(arguments: &[&str]) -> Vec<String> {
    let sizes: Vec<String> = (1..=18_000).map(|size| size.to_string()).collect();
    let sizes = ["--sizes".to_owned(), sizes.join(",")];
    arguments.iter().map(|&argument| argument.to_owned()).chain(sizes).collect()
}

fn start_long(arguments: &[&str]) -> Running {
    let arguments = with_sizes(&[&LONG[..], arguments].concat());
    Running::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_table_is_printed_line_by_line_and_ends_with_an_interrupt() {
    let mut running = start_long(&[]);
    running.until("operation  scheme");
    running.until("write ");
    running.until("write ");
    let text = running.interrupted();
    let head = text.lines().position(|line| line.starts_with("operation  scheme")).unwrap();
    for row in text.lines().skip(head + 1) {
        assert!(row.starts_with("write  ") && row.split_whitespace().count() == 13, "{text}");
    }
}

#[test]
fn csv_is_printed_line_by_line_and_ends_with_an_interrupt() {
    let mut running = start_long(&["--csv"]);
    running.until("operation,scheme,");
    running.until("write,");
    running.until("write,");
    let csv = running.interrupted();
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
}

#[test]
fn json_is_whole_after_an_interrupt() {
    let mut running = start_long(&["--json"]);
    running.until("\"operation\": \"write\"");
    running.until("\"operation\": \"write\"");
    let text = running.interrupted();
    let lines: Value = serde_json::from_str(&text).unwrap();
    let sizes: Vec<u64> = lines
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["message_size"].as_u64().unwrap())
        .collect();
    assert!(sizes.len() > 1 && sizes.iter().copied().eq(1..=sizes.len() as u64), "{sizes:?}");
}

#[test]
fn latencies_are_printed_line_by_line_and_end_with_an_interrupt() {
    let mut running = start_long(&["--latency", "--rails", "1"]);
    running.until("round trips");
    running.until("write ");
    let text = running.interrupted();
    assert!(text.lines().last().unwrap().starts_with("write  "), "{text}");
}

#[test]
fn a_line_that_is_interrupted_has_the_figures_until_then() {
    let place = Place::new();
    let run = |seconds: &str| {
        let picture = place.path("perf.svg").display().to_string();
        let script = format!(
            "timeout --preserve-status --signal INT {seconds} {PROGRAM} perf --operations write \
             --sizes 4K --seconds 3600 --json --plot {picture}"
        );
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    // A machine that is busy with something else may have measured nothing by then.
    let output = ["1", "10", "60"].into_iter().map(run).find(|output| !output.stdout.is_empty());
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(130));
    let line = &json(&output)[0];
    assert!(line["requests"].as_u64().unwrap() > 0, "{line}");
    assert!(place.path("perf.svg").exists());
}

#[test]
fn intervals_are_printed_as_they_pass() {
    let mut running = Running::start(&LONG_OVER_TIME);
    running.until("  seconds     GB/s   rail 0   rail 1");
    let ends = [running.line(), running.line(), running.line()];
    let text = running.interrupted();
    for (index, row) in ends.iter().enumerate() {
        let cells: Vec<f64> = row.split_whitespace().map(|cell| cell.parse().unwrap()).collect();
        // Three times 0.05 is more than 0.15, in binary.
        let milliseconds = (cells[0] * 1000.0).round() as usize;
        assert!(cells.len() == 6 && milliseconds >= 50 * (index + 1), "{text}");
    }
    for words in ["the software NIC: 4 rails, ", " requests in ", "rail 3 (tx3)  ", "in service"] {
        assert!(text.matches(words).count() >= 1, "{words:?} is not in: {text}");
    }
    assert_eq!(text.matches("the software NIC").count(), 1, "{text}");
}

#[test]
fn csv_and_json_over_time_are_whole_after_an_interrupt() {
    let mut running = Running::start(&[&LONG_OVER_TIME[..], &["--csv"]].concat());
    running.until("seconds,gigabytes_per_second,rail_0");
    running.until("0.");
    let csv = running.interrupted();
    assert!(csv.lines().all(|line| line.split(',').count() == 7), "{csv}");
    let script = format!(
        "timeout --preserve-status --signal INT 2 {PROGRAM} {} --json",
        LONG_OVER_TIME.join(" ")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    // With an interrupt during the set-up there are no figures.
    if !output.stdout.is_empty() {
        let report = json(&output);
        assert_eq!(report["options"]["interval_seconds"], 0.05, "{report}");
        assert!(!report["samples"].as_array().unwrap().is_empty(), "{report}");
    }
}

/// The server counts the same requests, and serves the next peer.
#[test]
fn a_measurement_between_two_hosts_ends_in_order_with_an_interrupt() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let address = server.address();
    let to = ["--to", &address, "--device", "tcp:lo", "--operations", "write-imm"];
    let mut running = Running::start(&[&LONG_OVER_TIME[..], &to].concat());
    running.until("  seconds     GB/s   rail 0");
    running.line();
    let text = running.interrupted();
    assert!(text.contains(" requests in "), "{text}");
    let next = place.run(&[&["perf", "--count", "50", "--sizes", "4K"], &to[..]].concat());
    assert!(next.status.success(), "{}", stderr(&next));
    let said = server.said.lock().unwrap();
    assert!(!said.iter().any(|line| line.contains("interrupted")), "{said:?}");
}

#[test]
fn a_reader_that_goes_away_ends_a_measurement_without_an_error() {
    for arguments in [LONG_OVER_TIME.join(" "), with_sizes(&LONG).join(" ")] {
        let script = format!("{PROGRAM} {arguments} | head -n 4; echo ${{PIPESTATUS[0]}}");
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        let text = stdout(&output);
        assert_eq!((text.lines().last(), stderr(&output).as_str()), (Some("0"), ""), "{text}");
    }
}

#[test]
fn a_picture_is_drawn_for_a_reader_that_goes_away() {
    let place = Place::new();
    let picture = place.path("perf.svg");
    for form in ["", "--csv"] {
        let script = format!(
            "{PROGRAM} perf --interval 10ms --seconds 1 {form} --plot {} | head -n 1; \
             echo ${{PIPESTATUS[0]}}",
            picture.display()
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        let text = stdout(&output);
        assert_eq!((text.lines().last(), stderr(&output).as_str()), (Some("0"), ""), "{text}");
        assert!(std::fs::read_to_string(&picture).unwrap().contains("</svg>"));
        std::fs::remove_file(&picture).unwrap();
    }
}

/// A server that accepts the connection, and says nothing.
#[test]
fn an_interrupt_ends_the_program_while_it_reaches_the_server() {
    for form in ["--timeline", "--latency", "--csv"] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        // A test that runs in the background may have the signal ignored.
        let mut program = Command::new("env");
        program.args(["--default-signal=INT", PROGRAM, "perf", form, "--to", &address]);
        program.args(["--backend", "tcp", "--answer-timeout", "60"]);
        let mut program = program.stderr(Stdio::piped()).spawn().unwrap();
        let (_silent, _) = server.accept().unwrap();
        interrupt(&program);
        let mut said = String::new();
        program.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let ended = program.wait().unwrap();
        let is_interrupted = ended.signal() == Some(libc::SIGINT) || ended.code() == Some(130);
        assert!(is_interrupted, "{form}: {ended}: {said}");
    }
}
