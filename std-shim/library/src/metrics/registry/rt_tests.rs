use super::*;
use crate::heal::{FailureCounts, RailTimes};
use crate::metrics::{RailMetrics, Traffic};
use polyrail_core::virtual_qp::{QpState, RailCounters, RailState};
use prometheus_parse::{Scrape, Value};

fn rail(device: &str, bytes: u64) -> RailMetrics {
    RailMetrics {
        traffic: Traffic::Requests,
        rail: "0".to_owned(),
        device: device.to_owned(),
        state: RailState::InService,
        counters: RailCounters { bytes, send_requests: bytes / 10, ..RailCounters::default() },
        failures: FailureCounts::default(),
        fences: 0,
        arrived: 0,
        posted_again: 0,
        times: RailTimes { in_service: Duration::from_secs(bytes), ..RailTimes::default() },
    }
}

fn connection(id: u64, rail: RailMetrics) -> ConnectionMetrics {
    let state = QpState::Ready;
    ConnectionMetrics { id, has_messages: false, state, unreported: 3, rails: vec![rail] }
}

/// Returns the value of the series with this name and these labels.
fn value(metrics: &Metrics, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let text = metrics.text(Format::Prometheus).unwrap();
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let fits = |sample: &&prometheus_parse::Sample| {
        sample.metric == name
            && labels.iter().all(|(label, value)| sample.labels.get(label) == Some(value))
    };
    let mut found = scrape.samples.iter().filter(fits);
    let sample = found.next()?;
    assert!(found.next().is_none(), "several series fit: {text}");
    match sample.value {
        Value::Counter(value) | Value::Gauge(value) => Some(value),
        ref other => panic!("{name}: {other:?}"),
    }
}

fn bytes_of(metrics: &Metrics, name: &str, device: &str) -> Option<f64> {
    let labels = [("component", "test"), ("name", name), ("device", device)];
    value(metrics, "polyrail_rail_sent_bytes_total", &labels)
}

#[test]
fn totals_survive_connections_and_never_shrink() {
    let metrics = Metrics::new("test");
    let mut source = metrics.source("copies");
    source.publish(vec![connection(1, rail("a", 100)), connection(2, rail("a", 50))]);
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(150.0));
    let seconds = [("state", "in_service")];
    assert_eq!(value(&metrics, "polyrail_rail_state_seconds_total", &seconds), Some(150.0));
    // The first has ended, and the second's rail is on another device from now on.
    source.publish(vec![connection(2, rail("b", 80))]);
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(150.0));
    assert_eq!(bytes_of(&metrics, "copies", "b"), Some(30.0));
    // Another connection with the number of the second.
    source.publish(vec![connection(2, rail("b", 20))]);
    assert_eq!(bytes_of(&metrics, "copies", "b"), Some(50.0));
    let states = [("state", "ready"), ("kind", "requests")];
    assert_eq!(value(&metrics, "polyrail_connections", &states), Some(1.0));
    assert_eq!(value(&metrics, "polyrail_unreported_requests", &[]), Some(3.0));
    drop(source);
    assert_eq!(value(&metrics, "polyrail_connections", &states), None);
    assert_eq!(bytes_of(&metrics, "copies", "b"), Some(50.0));
    // The same name again, and another one.
    let mut again = metrics.source("copies");
    again.publish(vec![connection(1, rail("b", 1))]);
    let mut other = metrics.source("others");
    other.publish(vec![connection(1, rail("b", 7))]);
    assert_eq!(bytes_of(&metrics, "copies", "b"), Some(51.0));
    assert_eq!(bytes_of(&metrics, "others", "b"), Some(7.0));
}

#[test]
fn an_owner_publishes_once_for_each_reader() {
    let metrics = Metrics::new("test");
    let mut source = metrics.source("copies");
    assert!(!source.is_wanted());
    source.publish_if_wanted(|| panic!("nobody asked"));
    // A reader that this thread keeps waiting for too long gets this.
    source.publish(vec![connection(1, rail("a", 5))]);
    let reader = {
        let metrics = metrics.clone();
        std::thread::spawn(move || metrics.connections().unwrap())
    };
    let mut published = 0;
    while !reader.is_finished() {
        source.publish_if_wanted(|| {
            published += 1;
            vec![connection(1, rail("a", 5))]
        });
    }
    // Again, if the reader ended before it was served.
    source.publish_if_wanted(|| {
        published += 1;
        vec![connection(1, rail("a", 5))]
    });
    assert_eq!(published, 1);
    let connections = reader.join().unwrap();
    assert_eq!(connections, [("copies".to_owned(), connection(1, rail("a", 5)))]);
    assert!(!source.is_wanted());
}

#[test]
fn a_reader_does_not_wait_long_for_an_owner_that_does_not_poll() {
    let metrics = Metrics::new("test");
    let mut source = metrics.source("copies");
    source.publish(vec![connection(1, rail("a", 5))]);
    let begin = Instant::now();
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(5.0));
    assert!((PATIENCE..600 * PATIENCE).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let age = value(&metrics, "polyrail_snapshot_age_seconds", &[("name", "copies")]).unwrap();
    assert!(age >= 2.0 * PATIENCE.as_secs_f64(), "{age}");
    // Nobody is waited for after that. One reading of several may be slow on a busy machine.
    drop(source);
    let reading = || {
        let begin = Instant::now();
        metrics.text(Format::OpenMetrics).unwrap();
        begin.elapsed()
    };
    let fastest = (0..20).map(|_| reading()).min().unwrap();
    assert!(fastest < PATIENCE, "{fastest:?}");
}

#[test]
fn a_source_after_another_counts_what_is_new() {
    let metrics = Metrics::new("test");
    let mut first = metrics.source("copies");
    first.publish(vec![connection(1, rail("a", 100))]);
    let mut second = metrics.source("copies");
    second.after(first);
    // A reader in between sees the connection once.
    let states = [("state", "ready"), ("kind", "requests")];
    assert_eq!(value(&metrics, "polyrail_connections", &states), Some(1.0));
    second.publish(vec![connection(1, rail("a", 130)), connection(2, rail("a", 5))]);
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(135.0));
    let mut renamed = metrics.source("others");
    renamed.after(second);
    renamed.publish(vec![connection(1, rail("a", 140)), connection(2, rail("a", 5))]);
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(135.0));
    assert_eq!(bytes_of(&metrics, "others", "a"), Some(10.0));
    // Other metrics have other totals.
    let elsewhere = Metrics::new("test");
    let mut last = elsewhere.source("copies");
    last.after(renamed);
    last.publish(vec![connection(1, rail("a", 140))]);
    assert_eq!(bytes_of(&elsewhere, "copies", "a"), Some(140.0));
    assert_eq!(value(&metrics, "polyrail_connections", &states), None);
}

#[test]
fn a_connection_is_published_alone_and_counted_once() {
    let metrics = Metrics::new("test");
    let mut source = metrics.source("copies");
    source.publish(vec![connection(1, rail("a", 100)), connection(2, rail("a", 50))]);
    source.publish_one(connection(1, rail("a", 110)));
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(160.0));
    assert!(source.is_wanted(), "the reader asked for all");
    // It was not removed after all.
    source.publish(vec![connection(1, rail("a", 115)), connection(2, rail("a", 50))]);
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(165.0));
    source.publish_one(connection(1, rail("a", 120)));
    source.publish(vec![connection(2, rail("a", 50))]);
    assert_eq!(bytes_of(&metrics, "copies", "a"), Some(170.0));
    let states = [("state", "ready"), ("kind", "requests")];
    assert_eq!(value(&metrics, "polyrail_connections", &states), Some(1.0));
}

#[test]
fn names_of_devices_are_escaped() {
    let metrics = Metrics::new("a \"component\"");
    let mut source = metrics.source("back\\slash\nand line");
    source.publish(vec![connection(1, rail("\"}", 5))]);
    for format in [Format::OpenMetrics, Format::Prometheus] {
        let text = metrics.text(format).unwrap();
        let labels = "{component=\"a \\\"component\\\"\",name=\"back\\\\slash\\nand line\",\
                      traffic=\"requests\",device=\"\\\"}\",rail=\"0\"} 5\n";
        assert!(text.contains(&format!("polyrail_rail_sent_bytes_total{labels}")), "{text}");
    }
}

#[test]
fn the_two_formats_have_the_same_series() {
    let metrics = Metrics::new("test");
    let mut source = metrics.source("copies");
    source.publish(vec![connection(1, rail("a", 5))]);
    let [open, prometheus] =
        [Format::OpenMetrics, Format::Prometheus].map(|format| metrics.text(format).unwrap());
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert!(open.contains("# TYPE polyrail_rail_sent_bytes counter\n"), "{open}");
    assert!(prometheus.contains("# TYPE polyrail_rail_sent_bytes_total counter\n"), "{prometheus}");
    let series = |text: &str| -> Vec<String> {
        let of_samples = text.lines().filter(|line| !line.starts_with('#'));
        of_samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    assert_eq!(series(&open), series(&prometheus));
    for line in series(&open) {
        let name = line.split('{').next().unwrap();
        assert!(super::super::FAMILIES.iter().any(|family| family.name() == name), "{line}");
    }
}
