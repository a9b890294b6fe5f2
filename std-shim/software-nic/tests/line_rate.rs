//! Devices with a line rate.

mod support;

use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_software_nic::{DeviceConfig, Fabric, Fault, QpCap, QpInit, When, connect_pair};
use std::num::NonZeroU64;
use std::time::Duration;
use support::*;

/// A pair whose first end sends this many bytes a second.
fn limited(fabric: Fabric, rate: u64) -> Pair {
    let config = DeviceConfig {
        bytes_per_second: Some(NonZeroU64::new(rate).unwrap()),
        ..DeviceConfig::named("a")
    };
    let a = Side::on(fabric.create_device(config), QpCap::default());
    let b = Side::new(&fabric, "b", QpCap::default());
    connect_pair(&a.qp, &b.qp, &impatient()).unwrap();
    Pair { fabric, a, b }
}

/// Settles until this many requests of the first end are complete, and returns their ends.
fn settle(pair: &mut Pair, requests: usize) -> Vec<(u64, WcStatus)> {
    let mut completions = Vec::new();
    while completions.len() < requests {
        completions.extend(pair.settle().0);
    }
    ends(&completions)
}

#[test]
fn requests_take_the_time_that_their_bytes_take() {
    for fabric in [Fabric::threaded(), Fabric::deterministic(1), Fabric::deterministic(2)] {
        let mut pair = limited(fabric, 1_000_000);
        let begin = pair.fabric.now();
        // 10 ms, of which the line may have made up for 1 ms.
        pair.a.post_all(&[0; 10].map(|_| pair.write(1, 0, 1000))).unwrap();
        assert_eq!(settle(&mut pair, 10), [(1, WcStatus::SUCCESS); 10]);
        let took = pair.fabric.now() - begin;
        assert!(took >= Duration::from_millis(9), "{took:?}");
        assert!(pair.fabric.is_threaded() || took < Duration::from_millis(11), "{took:?}");
        let begin = pair.fabric.now();
        pair.a.post_all(&[0; 10].map(|_| pair.request(2, Opcode::RdmaRead, 0, 1000))).unwrap();
        settle(&mut pair, 10);
        assert!(pair.fabric.now() - begin >= Duration::from_millis(9));
    }
}

#[test]
fn queue_pairs_of_a_device_share_its_line() {
    let mut pair = limited(Fabric::deterministic(1), 1_000_000);
    let init = |side: &Side| side.pd.create_qp(&QpInit::new(&side.cq, QpCap::default())).unwrap();
    let (mut near, far) = (init(&pair.a), init(&pair.b));
    connect_pair(&near, &far, &impatient()).unwrap();
    let requests = [0; 10].map(|_| pair.write(1, 0, 1000));
    pair.a.post_all(&requests).unwrap();
    std::mem::swap(&mut near, &mut pair.a.qp);
    pair.a.post_all(&requests).unwrap();
    settle(&mut pair, 20);
    let took = pair.fabric.now();
    assert!((19..21).contains(&took.as_millis()), "{took:?}");
}

#[test]
fn a_link_that_is_cut_meanwhile_fails_what_waits_for_the_line() {
    let mut pair = limited(Fabric::deterministic(1), 1_000_000);
    pair.a.device.inject(When::Bytes(1500), Fault::LinkDown);
    pair.a.post_all(&[1, 2, 3].map(|id| pair.write(id, 0, 1000))).unwrap();
    let exceeded = WcStatus::RETRY_EXC_ERR;
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(settle(&mut pair, 3), [(1, WcStatus::SUCCESS), (2, exceeded), (3, flushed)]);
    assert_eq!(pair.a.device.carried_bytes(), 1500);
}
