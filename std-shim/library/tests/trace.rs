//! What is told of connections by `tracing`.
#![cfg(feature = "tracing")]

mod fixture;

use fixture::Host;
use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
use polyrail::nic::Fabric;
use polyrail::verbs::{SendWr, WcStatus};
use polyrail::virtual_qp::{QpState, RailFailure, RailId};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::format::FmtSpan;

/// Lines that were told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Told {
    /// What is told on this thread meanwhile, a line each.
    fn during(work: impl FnOnce()) -> Vec<String> {
        let told = Self::default();
        let writer = told.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_span_events(FmtSpan::NEW)
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = told.0.lock().unwrap();
        String::from_utf8_lossy(&bytes).lines().map(Into::into).collect()
    }
}

/// The lines with these words.
fn count(lines: &[String], words: &[&str]) -> usize {
    lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn a_connection_its_failure_and_its_return_are_told() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 2, 4096));
    let builder = EndpointBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let mut near = builder.build(&hosts[0].all()).unwrap();
    let mut far = builder.build(&hosts[1].all()).unwrap();
    let lines = Told::during(|| {
        connect_endpoints(&mut near, &mut far).unwrap();
        assert!(near.fail_rail(RailId::Data(1)));
        while near.state() != QpState::Ready || far.state() != QpState::Ready {
            _ = near.poll(16);
            _ = far.poll(16);
        }
        while near.take_rail_event().or_else(|| far.take_rail_event()).is_some() {}
    });
    assert_eq!(count(&lines, &["connect{", "rails=2", "new"]), 2, "{lines:#?}");
    assert_eq!(count(&lines, &["INFO", "polyrail::trace", "connected", "rails=2"]), 2);
    for (level, words) in [("WARN", ""), ("INFO", "is drained"), ("INFO", "back in service")] {
        let found = count(&lines, &[level, "rail=rail 1", "device=", words]);
        assert_eq!(found, 2, "{words}, of both ends: {lines:#?}");
    }
}

#[test]
fn ends_that_do_not_match_and_why_one_ended_are_told() {
    let fabric = Fabric::threaded();
    let hosts = ["here", "there"].map(|name| Host::new(&fabric, name, 1, 4096));
    let build =
        |host: usize, rails| EndpointBuilder::new().rails(rails).build(&hosts[host].all()).unwrap();
    let lines = Told::during(|| {
        connect_endpoints(&mut build(0, 2), &mut build(1, 3)).unwrap_err();
    });
    assert_eq!(count(&lines, &["WARN", "cannot connect", "qp="]), 1, "{lines:#?}");

    let (mut near, mut far) = (build(0, 2), build(1, 2));
    let lines = Told::during(|| {
        connect_endpoints(&mut near, &mut far).unwrap();
        let local = hosts[0].buffer.local(0, 64).unwrap();
        // A key of nobody's.
        let mut remote = hosts[1].buffer.remote();
        remote.rkeys.iter_mut().for_each(|rkey| *rkey ^= 0x5a5a);
        let keys = hosts[0].buffer.toward(&remote).unwrap();
        near.post_send(&SendWr::write(1, local, remote.addr, &keys)).unwrap();
        let failed = loop {
            if let Some(done) = near.poll(16).completions.pop() {
                break done;
            }
        };
        assert_ne!(failed.status, WcStatus::SUCCESS);
        let why = near.explain(failed.status).to_string();
        assert_eq!(near.explain(failed.status).to_string(), why);
    });
    // However often it is asked.
    assert_eq!(count(&lines, &["ERROR", "REM_ACCESS_ERR"]), 1, "{lines:#?}");
}
