//! Peers that are not ready or do not answer: how often requests are tried again, and for how long.

mod support;

use polyrail_core::verbs::{Opcode, SendRequest, WcStatus};
use polyrail_software_nic::{ConnectOptions, Fabric, Mtu, QpCap, QpInit, QpState, vendor};
use std::time::{Duration, Instant};
use support::*;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

#[test]
fn an_empty_receive_queue_is_retried_as_often_as_allowed() {
    for (rnr_retry, at_least) in [(0, 0), (2, 2)] {
        let delay = Duration::from_micros(960);
        let options = ConnectOptions { rnr_retry, min_rnr_timer: 13, ..impatient() };
        let fabric = Fabric::deterministic(1);
        let mut pair = Pair::with(fabric, QpCap::default(), &options);
        pair.a.post(pair.request(1, Opcode::Send, 0, 8)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!(ends(&a), [(1, WcStatus::RNR_RETRY_EXC_ERR)]);
        assert_eq!((a[0].vendor_err, b), (vendor::NO_RECEIVE, vec![]));
        assert_eq!(pair.b.qp.state(), QpState::Rts);
        let took = pair.fabric.now();
        assert!(took >= delay * at_least && took < delay * (at_least + 1), "{took:?}");
    }
}

/// Nobody answers `a`; its request fails after its retries, and `b` notices nothing.
fn unanswered(mut pair: Pair, why: u32) {
    let before = pair.b.qp.state();
    pair.a.post_all(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
    let (a, b) = pair.settle();
    assert_eq!(ends(&a), [(1, WcStatus::RETRY_EXC_ERR), (2, FLUSHED)]);
    assert_eq!((a[0].vendor_err, b), (why, vec![]));
    assert_eq!(pair.b.qp.state(), before);
}

#[test]
fn a_peer_in_reset_init_or_err_does_not_answer() {
    impatient_both_ways(|pair| {
        pair.b.qp.reset().unwrap();
        unanswered(pair, vendor::PEER_STATE);
    });
    impatient_both_ways(|pair| {
        pair.b.qp.reset().unwrap();
        pair.b.qp.to_init(&impatient()).unwrap();
        unanswered(pair, vendor::PEER_STATE);
    });
    impatient_both_ways(|pair| {
        pair.b.qp.to_error().unwrap();
        unanswered(pair, vendor::PEER_STATE);
    });
}

#[test]
fn a_destroyed_peer_does_not_answer() {
    impatient_both_ways(|mut pair| {
        pair.b.qp = pair.b.pd.create_qp(&QpInit::new(&pair.b.cq, QpCap::default())).unwrap();
        unanswered(pair, vendor::PEER_GONE);
    });
}

#[test]
fn a_peer_that_is_connected_to_somebody_else_does_not_answer() {
    let pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.b.qp.to_init(&impatient()).unwrap();
    pair.a.qp.connect(1, &pair.b.qp.as_remote(2), &impatient()).unwrap();
    let somebody = polyrail_software_nic::RemoteQp { qp_num: 999, ..pair.a.qp.as_remote(1) };
    pair.b.qp.connect(2, &somebody, &impatient()).unwrap();
    unanswered(pair, vendor::PEER_DESTINATION);
}

#[test]
fn a_peer_that_expects_another_sequence_number_does_not_answer() {
    let pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.b.qp.to_init(&impatient()).unwrap();
    pair.a.qp.connect(1, &pair.b.qp.as_remote(2), &impatient()).unwrap();
    pair.b.qp.connect(2, &pair.a.qp.as_remote(4), &impatient()).unwrap();
    unanswered(pair, vendor::PEER_PSN);
}

#[test]
fn sequence_numbers_count_packets_and_wrap() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let options = ConnectOptions { path_mtu: Mtu::Mtu256, ..impatient() };
    pair.b.qp.to_init(&options).unwrap();
    let last = 0xff_ffff;
    pair.a.qp.connect(last, &pair.b.qp.as_remote(2), &options).unwrap();
    pair.b.qp.connect(2, &pair.a.qp.as_remote(last), &options).unwrap();
    let chain =
        [pair.write(1, 0, 1000), pair.write(2, 0, 0), pair.request(3, Opcode::RdmaRead, 0, 600)];
    pair.a.post_all(&chain).unwrap();
    assert_eq!(ends(&pair.settle().0).len(), 3);
    // 4 + 1 + 3 packets: a new connection on one side that starts where the other one is works.
    pair.b.qp.reset().unwrap();
    pair.b.qp.to_init(&options).unwrap();
    pair.b.qp.connect(2, &pair.a.qp.as_remote(7), &options).unwrap();
    pair.a.post(pair.write(4, 0, 8)).unwrap();
    assert_eq!(ends(&pair.settle().0), [(4, WcStatus::SUCCESS)]);
}

#[test]
fn timeouts_take_as_long_as_documented() {
    let options = ConnectOptions { timeout: 14, retry_cnt: 2, ..impatient() };
    let mut pair = Pair::with(Fabric::deterministic(5), QpCap::default(), &options);
    pair.b.qp.to_error().unwrap();
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    pair.settle();
    let took = pair.fabric.now();
    let one = Duration::from_nanos(67_108_864);
    assert!(took >= one * 3 && took < one * 3 + Duration::from_millis(1), "{took:?}");

    let options = ConnectOptions { timeout: 8, retry_cnt: 2, ..impatient() };
    let mut pair = Pair::with(Fabric::threaded(), QpCap::default(), &options);
    pair.b.qp.to_error().unwrap();
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    let start = Instant::now();
    while pair.a.poll().is_empty() {}
    assert!(start.elapsed() >= Duration::from_micros(3 * 1048));
}

#[test]
fn timeout_0_waits_until_the_queue_pair_is_moved_to_err() {
    let options = ConnectOptions { timeout: 0, ..impatient() };
    for fabric in [Fabric::threaded(), Fabric::deterministic(3)] {
        let mut pair = Pair::with(fabric, QpCap::default(), &options);
        pair.b.qp.to_error().unwrap();
        pair.a.post(pair.write(1, 0, 8)).unwrap();
        assert_eq!(pair.settle().0, []);
        pair.a.qp.to_error().unwrap();
        assert_eq!(ends(&pair.settle().0), [(1, FLUSHED)]);
    }
}

/// Letting the time pass gains nothing, because the sender is woken when a receive is posted.
#[test]
fn a_sender_that_never_gives_up_goes_on_when_a_receive_is_posted() {
    // The longest that there is: 655 ms.
    let options = ConnectOptions { min_rnr_timer: 0, rnr_retry: 7, ..impatient() };
    let mut pair = Pair::with(Fabric::threaded(), QpCap::default(), &options);
    for wr_id in 0..20 {
        let begin = Instant::now();
        let request = SendRequest { opcode: Opcode::Send, ..pair.write(wr_id, 0, 0) };
        pair.a.post(request).unwrap();
        assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [0; 0]);
        pair.b.recv(100, nothing()).unwrap();
        assert_eq!(ids(&poll(&mut pair.a.cq).unwrap()), [wr_id], "{:?}", begin.elapsed());
    }
}
