//! Completion channels wake the threads that wait.

mod support;

use polyrail_core::verbs::{Opcode, SendRequest};
use polyrail_software_nic::{CompletionChannel, Fabric, Fault, NicError, QpCap, QpInit, When};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use support::*;

fn is_notified(channel: &CompletionChannel) -> bool {
    let mut poll =
        libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is given and counted.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// A pair whose first side has a queue with a channel.
fn pair() -> (Pair, CompletionChannel) {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let channel = pair.a.device.create_channel().unwrap();
    pair.a.cq = pair.a.device.create_cq_with_channel(64, &channel).unwrap();
    pair.a.qp = pair.a.pd.create_qp(&QpInit::new(&pair.a.cq, QpCap::default())).unwrap();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
    pair.settle();
    assert!(pair.a.cq.channel().is_some() && pair.b.cq.channel().is_none());
    (pair, channel)
}

#[test]
fn an_armed_queue_reports_a_completion_once() {
    let (mut pair, channel) = pair();
    (1..=3).for_each(|wr_id| pair.a.recv(wr_id, nothing()).unwrap());
    let send = |pair: &mut Pair| {
        let request = SendRequest { opcode: Opcode::Send, ..pair.write(9, 0, 0) };
        pair.b.post(request).unwrap();
        assert_eq!(ids(&poll(&mut pair.b.cq).unwrap()), [9]);
    };
    send(&mut pair);
    assert!(!is_notified(&channel), "nobody asked");
    assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [1]);
    pair.a.cq.req_notify(false);
    assert!(!is_notified(&channel));
    send(&mut pair);
    assert!(is_notified(&channel));
    channel.clear();
    send(&mut pair);
    assert!(!is_notified(&channel), "once");
    assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [2, 3]);
}

#[test]
fn an_armed_queue_reports_requests_that_are_to_be_carried_out() {
    let (mut pair, channel) = pair();
    pair.a.cq.req_notify(false);
    assert!(!is_notified(&channel));
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    assert!(is_notified(&channel));
    channel.clear();
    // It was there before.
    pair.a.cq.req_notify(false);
    assert!(is_notified(&channel));
    assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [1]);
    channel.clear();
    pair.a.cq.req_notify(false);
    assert!(!is_notified(&channel));
}

#[test]
fn an_armed_queue_reports_completions_that_come_late() {
    let (mut pair, channel) = pair();
    pair.a.device.inject(When::Now, Fault::DelayCompletions(Duration::from_millis(500)));
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [0; 0]);
    channel.clear();
    pair.a.cq.req_notify(false);
    assert!(is_notified(&channel), "it is under way");
    channel.clear();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [1]);
    assert!(is_notified(&channel), "although a poll brought it");
}

#[test]
fn a_device_that_is_gone_has_no_channels() {
    let (pair, _) = pair();
    pair.a.device.inject(When::Now, Fault::DeviceGone);
    assert_eq!(pair.a.device.create_channel().map(|_| ()), Err(NicError::DeviceGone));
}
