//! Metrics of endpoints, messages, progress threads, caches and links, as a collector reads them:
//! over HTTP and from a folder, parsed by a real parser.

mod fixture;
mod messages;
mod rerouted;

use fixture::pair::{pair, poll_both};
use fixture::{LONG, connect_sets, ended, impatient, submit};
use messages::Pair;
use polyrail::endpoint::EndpointBuilder;
use polyrail::heal::Healing;
use polyrail::memory::{CacheLimits, RegistrationCache};
use polyrail::metrics::{ExportError, Exporter, FAMILIES, Format, Metrics, Target};
use polyrail::nic::{DeviceConfig, Fabric, Fault, When};
use polyrail::p2p::{End, P2pBuilder};
use polyrail::progress::ProgressThread;
use polyrail::verbs::{AccessFlags, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{RailFailure, RailId, RailState, Scheme};
use prometheus_parse::{Scrape, Value};
use rerouted::{Ends, MESSAGES, healed};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// The samples of a text.
struct Samples(Scrape);

impl Samples {
    fn parse(text: &str) -> Self {
        Self(Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap())
    }

    /// Sums the series with this name and these labels; `None` if there are none.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        assert!(FAMILIES.iter().any(|family| family.name() == name), "{name} is not in the table");
        let mut sum = None;
        for sample in self.0.samples.iter().filter(|sample| sample.metric == name) {
            if labels.iter().all(|(label, value)| sample.labels.get(label) == Some(value)) {
                let (Value::Counter(value) | Value::Gauge(value)) = sample.value else {
                    panic!("{sample:?}")
                };
                sum = Some(sum.unwrap_or(0.0) + value);
            }
        }
        sum
    }
}

fn samples(metrics: &Metrics) -> Samples {
    Samples::parse(&metrics.text(Format::Prometheus).unwrap())
}

/// Sends a request and returns the answer, its head apart from its body.
fn http(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr) -> Samples {
    let (head, body) = http(address, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    Samples::parse(&body)
}

#[test]
fn requests_are_counted_by_rail_and_device() {
    let (mut near, mut far) = pair(2, &EndpointBuilder::new());
    far.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
    near.notify(&far, 2, 1 << 20, 42);
    poll_both(&mut near, &mut far, (1, 1));
    let metrics = Metrics::new("test");
    let mut source = metrics.source("near");
    source.publish(vec![near.endpoint.metrics()]);
    let samples = samples(&metrics);
    let bytes = |labels: &[_]| samples.sum("polyrail_rail_sent_bytes_total", labels).unwrap();
    assert_eq!(bytes(&[]), f64::from(1 << 20));
    // Four rails on two devices, in turn.
    assert_eq!(bytes(&[("device", "a0")]), bytes(&[("device", "a1")]));
    assert_eq!(bytes(&[("rail", "3")]), f64::from(1 << 18));
    let reports = near.endpoint.rail_reports();
    let completions: u64 = reports.iter().map(|report| report.completions).sum();
    let of_metrics = samples.sum("polyrail_rail_completions_total", &[]);
    assert_eq!(of_metrics, Some(completions as f64));
    let in_service = [("state", "in_service"), ("traffic", "requests")];
    assert_eq!(samples.sum("polyrail_queue_pairs", &in_service), Some(5.0));
    assert_eq!(samples.sum("polyrail_connections", &[("state", "ready")]), Some(1.0));
    assert!(samples.sum("polyrail_rail_state_seconds_total", &in_service).unwrap() > 0.0);
    assert_eq!(samples.sum("polyrail_rail_failures_total", &[]), None);
}

#[test]
fn failures_are_counted_by_reason_with_the_time_out_of_service() {
    let mut ends = Ends::new(1, 4, &healed(Scheme::Spray));
    let device = ends.near.devices[2].clone();
    device.inject(When::Now, Fault::LinkDown);
    ends.poll_until(|ends| {
        [&ends.near, &ends.far].iter().all(|end| end.state(RailId::Data(2)) == RailState::Down)
    });
    let metrics = Metrics::new("test");
    let mut sources = ["near", "far"].map(|name| metrics.source(name));
    let mut publish = |ends: &Ends| {
        sources[0].publish(vec![ends.near.endpoint.metrics()]);
        sources[1].publish(vec![ends.far.endpoint.metrics()]);
        samples(&metrics)
    };
    let out = publish(&ends);
    let rail = [("name", "near"), ("rail", "2")];
    let with = |label| [rail[0], rail[1], label];
    let failed = "polyrail_rail_failures_total";
    assert_eq!(out.sum(failed, &with(("reason", "port_down"))), Some(1.0));
    assert_eq!(out.sum(failed, &[("name", "far"), ("rail", "2")]), Some(1.0));
    assert_eq!(out.sum("polyrail_rail_fences_total", &rail), Some(1.0));
    assert_eq!(out.sum("polyrail_queue_pairs", &with(("state", "down"))), Some(1.0));
    assert_eq!(out.sum("polyrail_connections", &[("state", "degraded")]), Some(2.0));
    device.inject(When::Now, Fault::LinkUp);
    ends.poll_until(Ends::is_ready);
    let back = publish(&ends);
    let events = &ends.near.events;
    let out_for = events.last().unwrap().out_for.as_secs_f64();
    let seconds =
        |state| back.sum("polyrail_rail_state_seconds_total", &with(("state", state))).unwrap();
    let counted = seconds("draining") + seconds("down");
    assert!((counted - out_for).abs() < 1e-6, "{counted} s, and {out_for} s by its events");
    assert_eq!(back.sum("polyrail_connections", &[("state", "ready")]), Some(2.0));
    ends.limit(MESSAGES);
    ends.finish(|_| ());
}

#[test]
fn messages_are_counted_by_direction_and_so_are_their_failures() {
    let healing = Healing { first_interval: Duration::ZERO, ..Healing::default() };
    let builder = P2pBuilder::new().rail_failure(RailFailure::Reroute).healing(healing);
    let mut pair = Pair::new([2, 2], 1 << 20, &builder.connect_options(impatient()));
    pair.exchange(300_000, 1 << 20);
    let metrics = Metrics::new("test");
    let mut source = metrics.source("near");
    source.publish(vec![pair.near.endpoint.metrics()]);
    let sent = samples(&metrics);
    let bytes = |labels: &[_]| sent.sum("polyrail_rail_sent_bytes_total", labels).unwrap();
    assert!(bytes(&[("traffic", "sent_messages")]) >= 300_000.0);
    assert!(bytes(&[("device", "near0")]) > 0.0 && bytes(&[("device", "near1")]) > 0.0);
    assert_eq!(sent.sum("polyrail_connections", &[("kind", "messages")]), Some(1.0));
    pair.near.devices[1].inject(When::Now, Fault::LinkDown);
    let begin = Instant::now();
    while !(0..2).any(|place| {
        let state = pair.near.endpoint.queue_pair_state(End::Sender, place);
        state.is_some_and(|(state, _)| state == RailState::Down)
    }) {
        assert!(begin.elapsed() < LONG);
        pair.poll();
    }
    source.publish(vec![pair.near.endpoint.metrics()]);
    let labels = [("reason", "port_down"), ("traffic", "sent_messages"), ("device", "near1")];
    let failed = samples(&metrics).sum("polyrail_rail_failures_total", &labels);
    assert!(failed.unwrap() >= 1.0, "{failed:?}");
    assert_eq!(samples(&metrics).sum("polyrail_connections", &[("state", "degraded")]), Some(1.0));
}

#[test]
fn a_thread_that_sleeps_publishes_for_each_reader() {
    let fabric = Fabric::threaded();
    let [here, there] = ["here", "there"].map(|name| fixture::Host::new(&fabric, name, 1, 4096));
    let builder = EndpointBuilder::new();
    let mut near = here.set(&[(builder, &[0]), (builder, &[0])]);
    let mut far = there.set(&[(builder, &[0]), (builder, &[0])]);
    connect_sets(&mut near, &mut far);
    let thread = ProgressThread::spawn(near).unwrap();
    let metrics = Metrics::new("test");
    thread.publish_metrics(metrics.source("thread"));
    let ready = [("name", "thread"), ("state", "ready")];
    let begin = Instant::now();
    while samples(&metrics).sum("polyrail_connections", &ready) != Some(2.0) {
        assert!(begin.elapsed() < LONG);
    }
    // A reader that does not wake it waits for 100 ms every time.
    let reading = || {
        // Long enough that the thread sleeps.
        std::thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        metrics.text(Format::Prometheus).unwrap();
        begin.elapsed()
    };
    let fastest = (0..20).map(|_| reading()).min().unwrap();
    assert!(fastest < Duration::from_millis(50), "{fastest:?}");
    let near = thread.shutdown().unwrap();
    // The source has ended with the thread; what was counted stays.
    let after = samples(&metrics);
    assert_eq!(after.sum("polyrail_connections", &ready), None);
    assert_eq!(after.sum("polyrail_rail_sent_bytes_total", &[("name", "thread")]), Some(0.0));
    assert_eq!(near.metrics().len(), 2);
}

#[test]
fn a_source_that_replaces_another_counts_nothing_twice() {
    let fabric = Fabric::threaded();
    let [here, there] = ["here", "there"].map(|name| fixture::Host::new(&fabric, name, 1, 4096));
    let builder = EndpointBuilder::new();
    let mut near = here.set(&[(builder, &[0])]);
    let mut far = there.set(&[(builder, &[0])]);
    connect_sets(&mut near, &mut far);
    let thread = ProgressThread::spawn(near).unwrap();
    let mut handle = thread.handle(0).unwrap();
    let keys = here.buffer.toward(&there.buffer.remote()).unwrap();
    let local = here.buffer.local(0, 4096).unwrap();
    let mut write = || {
        let wr = SendWr::write(1, local, there.buffer.addr(), &keys);
        assert_eq!(ended(submit(|| handle.post_send(&wr))).unwrap().status, WcStatus::SUCCESS);
    };
    let metrics = Metrics::new("test");
    let bytes = |name| {
        let labels = [("name", name)];
        samples(&metrics).sum("polyrail_rail_sent_bytes_total", &labels).unwrap_or_default()
    };
    let until = |name, expected: f64| {
        let begin = Instant::now();
        while bytes(name) != expected {
            assert!(begin.elapsed() < LONG, "{name}: {}, not {expected}", bytes(name));
        }
    };
    thread.publish_metrics(metrics.source("first"));
    write();
    until("first", 4096.0);
    write();
    // No reader asked since, so the first source has one more write to publish.
    thread.publish_metrics(metrics.source("first"));
    until("first", 8192.0);
    thread.publish_metrics(metrics.source("second"));
    let begin = Instant::now();
    let of_second = [("name", "second")];
    while samples(&metrics).sum("polyrail_connections", &of_second) != Some(1.0) {
        assert!(begin.elapsed() < LONG);
    }
    write();
    until("second", 4096.0);
    assert_eq!(bytes("first"), 8192.0);
    // Handed over, but the thread may end before it takes the source.
    thread.publish_metrics(metrics.source("second"));
    write();
    thread.shutdown().unwrap();
    assert_eq!((bytes("first"), bytes("second")), (8192.0, 8192.0));
}

#[test]
fn endpoints_for_messages_share_a_source() {
    let builder = P2pBuilder::new().connect_options(impatient());
    // Two fabrics, in which the queue pairs have the same numbers.
    let mut pairs = [(); 2].map(|()| Pair::new([1, 1], 1 << 20, &builder));
    for (pair, length) in pairs.iter_mut().zip([300_000, 100_000]) {
        pair.exchange(length, 1 << 20);
    }
    let metrics = Metrics::new("test");
    let mut source = metrics.source("both");
    let mut sums = Vec::new();
    for _ in 0..3 {
        source.publish(pairs.iter().map(|pair| pair.near.endpoint.metrics()).collect());
        let samples = samples(&metrics);
        assert_eq!(samples.sum("polyrail_connections", &[]), Some(2.0));
        sums.push(samples.sum("polyrail_rail_sent_bytes_total", &[]).unwrap());
    }
    assert!(sums[0] >= 400_000.0, "{sums:?}");
    assert_eq!(sums, [sums[0]; 3]);
}

#[test]
fn caches_are_counted_until_they_are_dropped() {
    let device = Fabric::threaded().create_device(DeviceConfig::named("soft0"));
    let cache = RegistrationCache::new(&[&device.alloc_pd().unwrap()], CacheLimits::default());
    let metrics = Metrics::new("test");
    metrics.watch_cache("tensors", &cache);
    let mut memory = vec![0_u8; 8192];
    for _ in 0..3 {
        // SAFETY: the cache is closed before the memory is freed, and no request names it.
        drop(unsafe { cache.get(memory.as_mut_ptr(), 8192, AccessFlags::LOCAL_WRITE) }.unwrap());
    }
    let count = |name| samples(&metrics).sum(name, &[("name", "tensors")]);
    assert_eq!(count("polyrail_registration_cache_hits_total"), Some(2.0));
    assert_eq!(count("polyrail_registration_cache_misses_total"), Some(1.0));
    assert_eq!(count("polyrail_registration_cache_size_bytes"), Some(8192.0));
    cache.close().unwrap();
    assert_eq!(count("polyrail_registration_cache_size_bytes"), None);
    assert_eq!(count("polyrail_registration_cache_hits_total"), Some(2.0));
}

#[test]
fn http_answers_get_at_metrics_alone() {
    let metrics = Metrics::new("test");
    let exporter = Exporter::start(metrics, &Target::Address("127.0.0.1:0".to_owned())).unwrap();
    let address = exporter.local_addr().unwrap();
    let version = [("version", env!("CARGO_PKG_VERSION")), ("component", "test")];
    assert_eq!(get(address).sum("polyrail_build_info", &version), Some(1.0));
    let accept = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let (head, body) = http(address, accept);
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let (head, body) = http(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.is_empty(), "{head}");
    for (request, status) in [
        ("GET / HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("DELETE /metrics HTTP/1.1", "405"),
        ("nothing at all", "400"),
    ] {
        let (head, body) = http(address, &format!("{request}\r\n\r\n"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
        assert!(body.contains("/metrics"), "{request}: {body}");
    }
    // A client that sends nothing delays the next one, and no longer than its time.
    let silent = TcpStream::connect(address).unwrap();
    get(address);
    drop(silent);
    drop(exporter);
    assert!(TcpStream::connect(address).is_err(), "it has ended");
}

/// The only file in a folder.
fn only_file(folder: &Path) -> std::path::PathBuf {
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.next().unwrap();
    assert_eq!(files.next(), None, "beside {file:?}");
    file
}

#[test]
fn a_folder_has_one_whole_file_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = Metrics::new("te/st");
    let target: Target = folder.path().to_str().unwrap().parse().unwrap();
    let exporter = Exporter::start(metrics.clone(), &target).unwrap();
    let pid = std::process::id().to_string();
    let path = folder.path().join(format!("polyrail-te_st-{pid}.prom"));
    assert_eq!((only_file(folder.path()), exporter.path()), (path.clone(), Some(path.as_path())));
    let read = || Samples::parse(&std::fs::read_to_string(&path).unwrap());
    let labels = [("pid", pid.as_str()), ("component", "te/st")];
    assert_eq!(read().sum("polyrail_build_info", &labels), Some(1.0));
    let (mut near, mut far) = pair(1, &EndpointBuilder::new());
    near.write_to(&far, 1, 4096);
    poll_both(&mut near, &mut far, (1, 0));
    let mut source = metrics.source("writes");
    source.publish(vec![near.endpoint.metrics()]);
    assert_eq!(read().sum("polyrail_rail_sent_bytes_total", &labels), None);
    // The process may end soon: the file is written at once.
    drop(source);
    assert_eq!(read().sum("polyrail_rail_sent_bytes_total", &labels), Some(4096.0));
    metrics.source("more").publish(vec![far.endpoint.metrics()]);
    drop(exporter);
    let connections = read().sum("polyrail_connections", &[]);
    assert_eq!(connections, None, "it has the state at the end");
    assert_eq!(only_file(folder.path()), path);
}

#[test]
fn the_file_of_the_newest_exporter_is_written_when_the_last_source_ends() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let metrics = Metrics::new("test");
    let [first, second] = folders.each_ref().map(|folder| {
        let target = Target::Folder(folder.path().to_owned());
        let exporter = Exporter::start(metrics.clone(), &target).unwrap();
        (exporter.path().unwrap().to_owned(), Some(exporter))
    });
    let has_cache = |path: &Path| {
        let samples = Samples::parse(&std::fs::read_to_string(path).unwrap());
        samples.sum("polyrail_registration_cache_hits_total", &[]).is_some()
    };
    let device = Fabric::threaded().create_device(DeviceConfig::named("soft0"));
    let cache = RegistrationCache::new(&[&device.alloc_pd().unwrap()], CacheLimits::default());
    metrics.watch_cache("tensors", &cache);
    drop(metrics.source("short"));
    assert!(has_cache(&second.0));
    assert!(!has_cache(&first.0));
    drop(second.1);
    // The exporter owns its file.
    std::fs::remove_file(&second.0).unwrap();
    drop(metrics.source("short"));
    assert!(!second.0.exists());
    drop(first.1);
    assert!(has_cache(&first.0), "it has the state at the end");
    cache.close().unwrap();
}

#[test]
fn a_target_that_cannot_be_used_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = Exporter::start(Metrics::new("test"), &Target::Address(address.clone()));
    let error = error.unwrap_err();
    assert_eq!(error.to_string(), format!("metrics cannot be served at {address}"));
    assert!(error.source().unwrap().to_string().contains("in use"), "{:?}", error.source());
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = Exporter::start(Metrics::new("test"), &Target::Folder(missing.clone()));
    let error = error.unwrap_err();
    assert!(matches!(error, ExportError::Folder { .. }), "{error}");
    assert!(error.to_string().contains(missing.to_str().unwrap()), "{error}");
    // A file in the place of the folder.
    std::fs::write(&missing, "").unwrap();
    assert!(Exporter::start(Metrics::new("test"), &Target::Folder(missing)).is_err());
}

/// In a folder that others may write to, a link in the place of the file must not be followed.
#[test]
fn a_link_in_the_place_of_the_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, "of somebody else").unwrap();
    let pid = std::process::id();
    for name in [format!(".polyrail-link-{pid}.part"), format!("polyrail-link-{pid}.prom")] {
        std::os::unix::fs::symlink(&other, folder.path().join(name)).unwrap();
    }
    let target = Target::Folder(folder.path().to_owned());
    drop(Exporter::start(Metrics::new("link"), &target).unwrap());
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "of somebody else");
    let written = folder.path().join(format!("polyrail-link-{pid}.prom"));
    assert!(std::fs::symlink_metadata(written).unwrap().is_file());
}
