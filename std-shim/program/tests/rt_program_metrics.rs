//! `--metrics` of `polyrail serve` and `polyrail perf`, scraped while they work, and parsed by a
//! real parser.

mod program_support;

use polyrail::metrics::FAMILIES;
use program_support::server::{LONG, Server, assert_ok};
use program_support::*;
use prometheus_parse::{Scrape, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The series of a text, by their names and labels.
struct Samples(BTreeMap<(String, BTreeMap<String, String>), f64>);

impl Samples {
    fn parse(text: &str) -> Self {
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        let mut samples = BTreeMap::new();
        for sample in scrape.samples {
            let (Value::Counter(value) | Value::Gauge(value)) = sample.value else {
                panic!("{sample:?} has no kind");
            };
            let known = FAMILIES.iter().any(|family| family.name() == sample.metric);
            assert!(known, "{} is not in the table", sample.metric);
            let labels = sample.labels.iter().map(|(name, value)| (name.clone(), value.clone()));
            let twice = samples.insert((sample.metric, labels.collect()), value);
            assert_eq!(twice, None, "a series is there twice: {text}");
        }
        Self(samples)
    }

    /// Sums the series with this name and these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |of_series: &BTreeMap<String, String>| {
            let has = |(label, value): &(&str, &str)| {
                of_series.get(*label).is_some_and(|known| known == value)
            };
            labels.iter().all(has)
        };
        let series = self.0.iter().filter(|((known, labels), _)| known == name && fits(labels));
        series.map(|(_, value)| value).sum()
    }
}

fn scrape(address: &str) -> Samples {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    Samples::parse(body)
}

/// The address in a line such as `polyrail: metrics are at http://127.0.0.1:9470/metrics`.
fn address(line: &str) -> String {
    let address = line.split("http://").nth(1).unwrap();
    address.split('/').next().unwrap().to_owned()
}

#[test]
fn serve_is_scraped_while_it_copies() {
    const BYTES: usize = 64 << 20;
    let place = Place::with_source(BYTES);
    fs::create_dir(place.path("served")).unwrap();
    let server = Server::start(&place, &["--metrics", "127.0.0.1:0", "served"]);
    let metrics = address(&server.line("polyrail: metrics are at "));
    let idle = scrape(&metrics);
    assert_eq!(idle.sum("polyrail_build_info", &[("component", "program")]), 1.0);
    assert_eq!(idle.sum("polyrail_connections", &[]), 0.0);

    let to = server.address();
    let copies: Vec<_> = (0..2)
        .map(|number| {
            let mut copy = Command::new(PROGRAM);
            copy.args(["copy", "--quiet", "--to", &to, "--name", &format!("copy{number}"), "src"]);
            copy.current_dir(&place.directory).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let begin = Instant::now();
    let (mut most, mut last) = (0.0_f64, 0.0);
    let received = |samples: &Samples| {
        samples
            .sum("polyrail_rail_completions_total", &[("name", "serve"), ("traffic", "requests")])
    };
    let done = thread::scope(|scope| {
        let waited = scope.spawn(|| {
            copies.into_iter().map(|copy| copy.wait_with_output().unwrap()).collect::<Vec<_>>()
        });
        while !waited.is_finished() {
            assert!(begin.elapsed() < LONG);
            let samples = scrape(&metrics);
            most = most.max(samples.sum("polyrail_connections", &[("state", "ready")]));
            let now = received(&samples);
            assert!(now >= last, "a counter shrank from {last} to {now}");
            last = now;
        }
        waited.join().unwrap()
    });
    done.iter().for_each(assert_ok);
    assert!(most >= 1.0, "no scrape saw a connection");
    // What both connections counted stays after their ends.
    let begin = Instant::now();
    let after = loop {
        let samples = scrape(&metrics);
        if samples.sum("polyrail_connections", &[]) == 0.0 {
            break samples;
        }
        assert!(begin.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    };
    assert!(received(&after) >= last && received(&after) > 0.0);
    assert_eq!(after.sum("polyrail_rail_failures_total", &[]), 0.0);
    let bytes = fs::read(place.path("src")).unwrap();
    for number in 0..2 {
        assert!(fs::read(place.path(&format!("served/copy{number}"))).unwrap() == bytes);
    }
}

#[test]
fn perf_writes_to_a_folder_what_its_rails_carried() {
    let place = Place::new();
    fs::create_dir(place.path("metrics")).unwrap();
    for operation in ["write", "p2p"] {
        let operation = ["--operations", operation, "--metrics", "metrics"];
        let output = place.run(&[&QUICK, &operation[..]].concat());
        assert_ok(&output);
        assert!(stderr(&output).starts_with("polyrail: metrics are in metrics/polyrail-program-"));
    }
    let mut files = 0;
    for entry in fs::read_dir(place.path("metrics")).unwrap() {
        files += 1;
        let path = entry.unwrap().path();
        let samples = Samples::parse(&fs::read_to_string(&path).unwrap());
        let pid = path.file_stem().unwrap().to_str().unwrap().rsplit('-').next().unwrap();
        let bytes =
            samples.sum("polyrail_rail_sent_bytes_total", &[("name", "perf"), ("pid", pid)]);
        // 20 requests of each size, and a warm-up.
        assert!(bytes >= f64::from(20 * (1 << 10) + 20 * (64 << 10)), "{bytes} bytes in {path:?}");
        assert_eq!(samples.sum("polyrail_connections", &[]), 0.0, "they have ended");
    }
    assert_eq!(files, 2, "one for each process");
}

#[test]
fn a_failed_rail_is_in_the_metrics_with_its_reason() {
    let place = Place::new();
    let fault = ["perf", "--fault", "1:8M:cut:200ms", "--seconds", "1", "--metrics", "."];
    assert_ok(&place.run(&fault));
    let files = place.files();
    let [file] = &files[..] else { panic!("{files:?}") };
    let samples = Samples::parse(&fs::read_to_string(place.path(file)).unwrap());
    let rail = [("rail", "1")];
    assert!(
        samples.sum("polyrail_rail_failures_total", &[rail[0], ("reason", "port_down")]) >= 1.0
    );
    assert!(samples.sum("polyrail_rail_fences_total", &rail) >= 2.0, "both ends are here");
    let down = samples.sum("polyrail_rail_state_seconds_total", &[rail[0], ("state", "down")]);
    assert!(down > 0.1, "{down} s");
    assert_eq!(samples.sum("polyrail_rail_failures_total", &[("rail", "0")]), 0.0);
}

#[test]
fn work_goes_on_without_metrics_that_cannot_be_exported() {
    let place = Place::with_source(100_000);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let missing = place.path("missing").to_str().unwrap().to_owned();
    let why = [format!("served at {taken}"), format!("written to {missing}/polyrail-program-")];
    for (target, why) in [&taken, &missing].into_iter().zip(&why) {
        let output = place.run(&[&QUICK[..], &["--metrics", target]].concat());
        assert_ok(&output);
        let said = stderr(&output);
        assert!(said.contains(why) && said.contains("goes on without metrics"), "{said}");
        let server = Server::start(&place, &["--metrics", target, "dst"]);
        server.line("goes on without metrics");
        let output = place.run(&["copy", "--quiet", "--to", &server.address(), "src"]);
        assert_ok(&output);
        place.assert_copied();
        fs::remove_file(place.path("dst")).unwrap();
    }
    let output = place.run(&["serve", "--metrics", "host:name"]);
    assert_failure_of_usage(&output);
}

fn assert_failure_of_usage(output: &std::process::Output) {
    assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
    assert!(stderr(output).contains("host:name is not HOST:PORT"), "{}", stderr(output));
}
