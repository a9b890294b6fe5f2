//! Sides that meet something else than each other.

use super::error::TransferError;
use super::hosts::{Host, software_hosts};
use super::link::{Hello, HungUp, Link, Message, Sum};
use super::plan::{Plan, PlanError};
use super::receiver::receive_file;
use super::sender::send_file;
use super::side::Environment;
use crate::RemoteBuffer;
use crate::endpoint::{Address, ConnectError, Endpoint, EndpointBuilder};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

const TOTAL: u64 = 300_000;

fn plan() -> Plan {
    Plan::new(TOTAL, 100_000, 2).unwrap()
}

fn environment<'a>(
    host: &'a Host,
    builder: &'a EndpointBuilder,
    interrupted: &'a AtomicBool,
) -> Environment<'a> {
    Environment { host, builder, stall_timeout: Duration::from_secs(5), interrupted }
}

/// What a receiver makes of a sender that says `messages` and hangs up.
fn received(messages: impl FnOnce(Address) -> Vec<Message>) -> TransferError {
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let endpoint: Endpoint = builder.build(&here.domains()).unwrap();
    let (near, far) = Link::pair();
    for message in messages(endpoint.address()) {
        near.send(message);
    }
    drop(near);
    let (file, interrupted) = (tempfile::tempfile().unwrap(), AtomicBool::new(false));
    let environment = environment(&there, &builder, &interrupted);
    receive_file(environment, far, &file, &AtomicU64::new(0)).unwrap_err()
}

fn hello(address: Address, plan: Option<Plan>) -> Message {
    let buffer = RemoteBuffer { addr: 0x1000, length: 2048, rkeys: vec![1, 2] };
    Message::Hello(Hello { address, buffer, plan })
}

#[test]
fn a_sender_that_is_none_is_refused() {
    let error = received(|_| vec![]);
    assert!(matches!(error, TransferError::HungUp(HungUp)), "{error}");
    let error = received(|_| vec![Message::Ready]);
    assert!(matches!(&error, TransferError::Protocol(what) if what.contains("Ready")), "{error}");
    let error = received(|_| vec![Message::Failed("tired".into())]);
    assert!(matches!(&error, TransferError::Peer(reason) if reason == "tired"), "{error}");
    let error = received(|address| vec![hello(address, None)]);
    assert!(matches!(&error, TransferError::Protocol(_)), "{error}");
    let senseless = Plan { total: u64::MAX, chunk: 0, window: 1 };
    let error = received(|address| vec![hello(address, Some(senseless))]);
    assert!(matches!(error, TransferError::Plan(PlanError::Chunk(0))), "{error}");
}

#[test]
fn a_sender_whose_endpoint_does_not_fit_is_refused() {
    let error = received(|mut address| {
        address.card.qp_nums.pop();
        vec![hello(address, Some(plan()))]
    });
    assert!(
        matches!(error, TransferError::Connect(ConnectError::Rails { peer: 3, .. })),
        "{error}"
    );
    let error =
        received(|address| vec![hello(address, Some(plan())), Message::Done(Sum::default())]);
    assert!(matches!(&error, TransferError::Protocol(what) if what.contains("Done")), "{error}");
}

/// Runs both sides with somebody in between who may change what is said over the link.
fn run_with(
    meddle: impl Fn(&mut Message) + Sync,
) -> (Result<Sum, TransferError>, Result<Sum, TransferError>) {
    let (here, there) = software_hosts(4).unwrap();
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&vec![7; TOTAL as usize]).unwrap();
    let target = tempfile::tempfile().unwrap();
    let (builder, interrupted) = (EndpointBuilder::new(), AtomicBool::new(false));
    let ((near, from_near), (to_far, far)) = (Link::pair(), Link::pair());
    thread::scope(|scope| {
        let sender = scope
            .spawn(|| send_file(environment(&here, &builder, &interrupted), near, plan(), &source));
        let receiver = scope.spawn(|| {
            let written = AtomicU64::new(0);
            receive_file(environment(&there, &builder, &interrupted), far, &target, &written)
        });
        let forward = |from: &Link, to: &Link| match from.recv(Duration::from_millis(1)) {
            Ok(Some(mut message)) => {
                meddle(&mut message);
                to.send(message);
                true
            }
            Ok(None) => true,
            Err(HungUp) => false,
        };
        while forward(&from_near, &to_far) & forward(&to_far, &from_near) {}
        // The one that is still there hears what was said last.
        while forward(&from_near, &to_far) {}
        while forward(&to_far, &from_near) {}
        drop((from_near, to_far));
        let sum = |result: thread::Result<Result<(Sum, _), _>>| {
            result.unwrap().map(|(sum, _): (Sum, Vec<crate::endpoint::RailReport>)| sum)
        };
        (sum(sender.join()), sum(receiver.join()))
    })
}

#[test]
fn both_sides_see_the_same_bytes() {
    let (sent, received) = run_with(|_| ());
    let sum = Sum { bytes: TOTAL, crc32: crc32fast::hash(&vec![7; TOTAL as usize]) };
    assert_eq!((sent.unwrap(), received.unwrap()), (sum, sum));
}

#[test]
fn sums_that_differ_fail_both_sides() {
    let (sent, received) = run_with(|message| {
        if let Message::Done(sum) = message {
            sum.crc32 ^= 1;
        }
    });
    assert!(matches!(sent, Err(TransferError::Checksum { .. })), "{sent:?}");
    let text = received.unwrap_err().to_string();
    assert!(text.contains("checksums differ: 300000 bytes with CRC-32"), "{text}");
}

#[test]
fn a_ring_that_is_too_short_is_noticed_before_anything_is_written() {
    let (sent, _) = run_with(|message| {
        if let Message::Hello(hello) = message
            && hello.plan.is_none()
        {
            hello.buffer.length = 1000;
        }
    });
    assert!(matches!(sent, Err(TransferError::Range(_))), "{sent:?}");
}

#[test]
fn a_wrong_key_is_the_receivers_devices_to_refuse() {
    let (sent, received) = run_with(|message| {
        if let Message::Hello(hello) = message
            && hello.plan.is_none()
        {
            hello.buffer.rkeys[1] ^= 0x100;
        }
    });
    let text = sent.unwrap_err().to_string();
    assert!(text.contains("rail 1 (device tx1") && text.contains("REM_ACCESS_ERR"), "{text}");
    let text = received.unwrap_err().to_string();
    assert!(text.contains("the other side gave up: rail 1 (device tx1"), "{text}");
}
