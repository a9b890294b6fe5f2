//! Messages between two endpoints on the software NIC.

mod fixture;
mod messages;

use fixture::{LONG, impatient};
use messages::{Pair, Side};
use polyrail::heal::Healing;
use polyrail::nic::{DeviceConfig, Fabric, Fault, When};
use polyrail::p2p::{
    CallError, End, Failure, HealingLink, NotNow, P2pAddress, P2pBuildError, P2pBuilder,
    P2pConnectError, SLOTS, connect_endpoints,
};
use polyrail::virtual_qp::{QpState, RailEventKind, RailFailure};
use std::time::{Duration, Instant};

#[test]
fn messages_of_all_sizes_arrive_over_any_number_of_rails() {
    const MOST: u32 = 1 << 20;
    for (rails, each) in [(1, 1), (2, 1), (2, 3), (3, 2), (8, 2)] {
        let builder = P2pBuilder::new().rails(rails).queue_pairs_per_rail(each);
        let mut pair = Pair::new([rails.min(4), rails.min(4)], MOST as usize, &builder);
        for length in [0, 1, 8, 127, 128, 129, 65_535, 65_536, 65_537, 300_001, MOST] {
            pair.exchange(length, MOST);
            pair.exchange(length, length);
        }
        // And the other way.
        let mut pair = pair.turned();
        pair.exchange(100_000, MOST);
    }
}

#[test]
fn the_payload_may_go_before_its_signal() {
    let builder = P2pBuilder::new().separate_signal(1);
    let mut pair = Pair::new([2, 2], 1 << 20, &builder);
    for length in [0, 100, 128, 200_000, 256 * 1000] {
        pair.exchange(length, 1 << 20);
    }
}

#[test]
fn eight_buffers_find_their_sends_by_tag_and_know_their_sizes() {
    let mut pair = Pair::new([2, 2], 8 << 20, &P2pBuilder::new());
    let place = |at: u32| (at as usize) << 20;
    let buffers: Vec<_> = (0..8).map(|at| (place(at), 1 << 20, 100 + at)).collect();
    let receive = pair.far.offer(&buffers).unwrap();
    let size = |at: u32| at * 70_001;
    let mut sends = Vec::new();
    for at in [3, 0, 7, 1, 6, 2, 5, 4] {
        pair.near.buffer.fill(place(at), 1 << 20, at as u8 + 1).unwrap();
        sends.push(pair.until(|pair| pair.near.send(place(at), size(at), 100 + at)).unwrap());
    }
    let sizes: Vec<u32> = (0..8).map(size).collect();
    assert_eq!(pair.received(receive).unwrap().sizes(), sizes);
    for send in sends {
        pair.sent(send).unwrap();
    }
    for at in 0..8 {
        let mut bytes = pair.far.bytes(place(at), size(at) as usize + 1);
        assert_eq!(bytes.pop(), Some(0), "what was not sent stays as it was");
        assert!(bytes.iter().all(|byte| *byte == at as u8 + 1));
    }
}

#[test]
fn what_cannot_go_now_changes_nothing() {
    let mut pair = Pair::new([2, 2], 1 << 16, &P2pBuilder::new());
    assert_eq!(pair.near.send(0, 8, 1), Err(NotNow::NoEntry.into()));
    let mut receives = Vec::new();
    for _ in 0..SLOTS {
        receives.push(pair.until(|pair| pair.far.offer(&[(0, 16, 1)])).unwrap());
    }
    let full = pair.far.offer(&[(0, 16, 1)]);
    assert_eq!(full, Err(NotNow::SlotTaken { number: 1 }.into()));
    let too_long = pair.until(|pair| pair.near.send(0, 17, 1));
    assert_eq!(too_long, Err(CallError::TooLong { length: 17, capacity: 16 }));
    assert_eq!(pair.near.send(0, 8, 2), Err(NotNow::NoSuchTag.into()));
    for receive in receives {
        let send = pair.until(|pair| pair.near.send(0, 8, 1)).unwrap();
        assert_eq!(pair.received(receive).unwrap().sizes(), [8]);
        pair.sent(send).unwrap();
        let again = pair.near.endpoint.test_send(send);
        assert_eq!(again, Err(CallError::NoRequest { number: send.number() }));
    }
    assert_eq!((pair.near.endpoint.unfinished(), pair.far.endpoint.unfinished()), ((0, 0), (0, 0)));
}

#[test]
fn ends_with_different_devices_connect() {
    for devices in [[1, 3], [3, 1], [2, 4]] {
        let builder = P2pBuilder::new().rails(4);
        let mut pair = Pair::new(devices, 1 << 20, &builder);
        pair.exchange(1 << 20, 1 << 20);
        pair.turned().exchange(1 << 20, 1 << 20);
    }
}

#[test]
fn what_arrived_is_flushed_on_the_devices_that_brought_it() {
    let builder = P2pBuilder::new().flushes(true);
    let mut pair = Pair::new([2, 2], 1 << 20, &builder);
    for length in [0, 8, 1 << 20] {
        let (send, receive) = pair.start(length);
        let received = pair.received(receive).unwrap();
        pair.sent(send).unwrap();
        let flush = pair.until(|pair| pair.far.endpoint.flush(&received)).unwrap();
        pair.flushed(&flush).unwrap();
    }
    // An endpoint that was not built for flushes refuses them.
    let mut pair = Pair::new([1, 1], 64, &P2pBuilder::new().rails(1));
    let receive = pair.far.offer(&[(0, 8, 1)]).unwrap();
    let send = pair.until(|pair| pair.near.send(0, 8, 1)).unwrap();
    let received = pair.received(receive).unwrap();
    pair.sent(send).unwrap();
    let device = pair.far.domains[0].device().id();
    assert_eq!(pair.far.endpoint.flush(&received), Err(CallError::CannotFlush { device }));
}

#[test]
fn a_rail_that_fails_gives_all_buffers_back_with_its_name() {
    let builder = P2pBuilder::new().connect_options(impatient());
    let mut pair = Pair::new([2, 2], 1 << 20, &builder);
    pair.exchange(1 << 20, 1 << 20);
    let receive = pair.far.offer(&[(0, 1 << 20, 1)]).unwrap();
    let begin = Instant::now();
    while pair.near.send(0, 1, 2) != Err(NotNow::NoSuchTag.into()) {
        pair.poll();
        assert!(begin.elapsed() < LONG);
    }
    pair.near.devices[1].inject(When::Now, Fault::LinkDown);
    let send = pair.near.send(0, 1 << 20, 1).unwrap();
    let failure = pair.sent(send).unwrap_err();
    assert!(matches!(failure, CallError::Failed(Failure::Rail(_))), "{failure}");
    let why = pair.near.endpoint.failure().unwrap();
    assert_eq!((why.end, pair.near.endpoint.state()), (End::Sender, QpState::Error));
    let text = why.to_string();
    assert!(text.starts_with("sender: rail 1 (device near1, queue pair "), "{text}");
    assert!(matches!(why.failure, Failure::Rail(_)));
    // The owner of the other end, which has another way to the peer, fails it.
    pair.far.endpoint.fail();
    let failed = loop {
        pair.poll();
        match pair.far.endpoint.test_recv(receive) {
            Ok(None) => assert!(begin.elapsed() < LONG),
            Ok(Some(received)) => panic!("{received:?}"),
            Err(failed) => break failed,
        }
    };
    assert_eq!(failed, CallError::Failed(Failure::Owner));
    pair.near.endpoint.fail();
    while !(pair.near.endpoint.is_drained() && pair.far.endpoint.is_drained()) {
        pair.poll();
        assert!(begin.elapsed() < LONG);
    }
}

#[test]
fn an_address_travels_as_text() {
    let fabric = Fabric::threaded();
    let builder = P2pBuilder::new().rails(3).queue_pairs_per_rail(2);
    let mut near = Side::new(&fabric, "near", 3, 64, &builder);
    let mut far = Side::new(&fabric, "far", 3, 64, &builder);
    let [near_text, far_text] = [&near, &far].map(|side| side.endpoint.address().to_json());
    let near_address = P2pAddress::from_json(near_text.as_bytes()).unwrap();
    assert_eq!(near_address, near.endpoint.address());
    near.endpoint.connect(&P2pAddress::from_json(far_text.as_bytes()).unwrap()).unwrap();
    far.endpoint.connect(&near_address).unwrap();
    let mut pair = Pair { near, far };
    pair.exchange(64, 64);
    for (piece, by) in [
        ("\"sender\"", "\"server\""),
        ("\"form\":\"hashed\"", "\"form\":\"other\""),
        ("\"qpNum\":", "\"qpNum\":-"),
        ("\"depth\"", "\"depth\":1,\"depth\""),
    ] {
        let spoilt = near_text.replacen(piece, by, 1);
        assert_ne!(spoilt, near_text, "{piece}");
        assert!(P2pAddress::from_json(spoilt.as_bytes()).is_err(), "{piece}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_moved() {
    let fabric = Fabric::threaded();
    let side = |name, builder: &P2pBuilder| Side::new(&fabric, name, 2, 64, builder);
    let mut near = side("near", &P2pBuilder::new().rails(2));
    let fewer = side("fewer", &P2pBuilder::new().rails(1));
    let (end, here, peer) = (End::Sender, 2, 1);
    assert_eq!(
        near.endpoint.connect(&fewer.endpoint.address()),
        Err(P2pConnectError::QueuePairs { end, here, peer })
    );
    let mut odd = fewer.endpoint.address();
    let far = side("far", &P2pBuilder::new().rails(2));
    odd.receiving = far.endpoint.address().receiving;
    odd.sending = far.endpoint.address().sending;
    let error = near.endpoint.connect(&odd).unwrap_err();
    assert!(matches!(error, P2pConnectError::Card { end: End::Sender, .. }), "{error}");
    let mut far = far;
    connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
    Pair { near, far }.exchange(64, 64);
}

#[test]
fn endpoints_of_impossible_shapes_are_refused() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("only")).alloc_pd().unwrap();
    for (rails, each) in [(8, 3), (1, 0), (2, 9)] {
        let built = P2pBuilder::new().rails(rails).queue_pairs_per_rail(each).build(&[&domain]);
        assert_eq!(built.unwrap_err(), P2pBuildError::QueuePairs { rails, each });
    }
    for rails in [0, 9] {
        let built = P2pBuilder::new().rails(rails).build(&[&domain]);
        assert!(matches!(built, Err(P2pBuildError::Rails(_))), "{built:?}");
    }
}

fn rerouted(rails: usize) -> P2pBuilder {
    P2pBuilder::new().rails(rails).rail_failure(RailFailure::Reroute).connect_options(impatient())
}

#[test]
fn a_link_that_goes_down_costs_no_message_and_comes_back() {
    for device in [0, 1] {
        for far in [false, true] {
            let mut pair = Pair::new([2, 2], 1 << 20, &rerouted(2));
            pair.exchange(1 << 20, 1 << 20);
            let (send, receive) = pair.start(1 << 20);
            let side = if far { &pair.far } else { &pair.near };
            side.devices[device].inject(When::Now, Fault::LinkDown);
            let link = side.devices[device].clone();
            pair.finish(send, receive, 1 << 20);
            // Over the other rail alone.
            for length in [0, 100, 1 << 20] {
                pair.exchange(length, 1 << 20);
            }
            let mut events = Vec::new();
            while let Some((end, place, event)) = pair.near.endpoint.take_rail_event() {
                assert_eq!(place, device, "{end:?} {event:?}");
                events.push(event.kind);
            }
            let has_failed = |kind: &RailEventKind| matches!(kind, RailEventKind::Failed { .. });
            assert!(events.iter().any(has_failed), "{events:?}");
            link.inject(When::Now, Fault::LinkUp);
            pair.wait_until_whole();
            for length in [0, 100, 1 << 20] {
                pair.exchange(length, 1 << 20);
            }
            pair.turned().exchange(1 << 20, 1 << 20);
        }
    }
}

/// Its driver reports nothing, at either end, of what is sent.
#[test]
fn a_rail_that_falls_silent_costs_no_message() {
    let stall_timeout = Some(Duration::from_millis(200));
    let builder = rerouted(2).healing(Healing { stall_timeout, ..Healing::default() });
    for far in [false, true] {
        let mut pair = Pair::new([2, 2], 1 << 20, &builder);
        pair.exchange(1 << 20, 1 << 20);
        let receive = pair.until(|pair| pair.far.offer(&[(0, 1 << 20, 1)])).unwrap();
        let has_come = |pair: &mut Pair| match pair.near.send(0, 1, 2) {
            Err(CallError::NotNow(NotNow::NoSuchTag)) => Ok(()),
            other => other.map(|_| ()),
        };
        pair.until(has_come).unwrap();
        let side = if far { &pair.far } else { &pair.near };
        let device = side.devices[1].clone();
        device.inject(When::Now, Fault::Silent(true));
        let send = pair.until(|pair| pair.near.send(0, 1 << 20, 1)).unwrap();
        pair.finish(send, receive, 1 << 20);
    }
}

/// What offers the buffer is lost, and nothing else is under way on that rail; rails that are only
/// idle stay.
#[test]
fn an_offer_over_a_rail_that_falls_silent_is_made_again() {
    let stall_timeout = Some(Duration::from_millis(200));
    let builder = rerouted(2).healing(Healing { stall_timeout, ..Healing::default() });
    let mut pair = Pair::new([2, 2], 1 << 20, &builder);
    pair.exchange(1 << 20, 1 << 20);
    let idle = Instant::now();
    while idle.elapsed() < Duration::from_secs(1) {
        pair.poll();
    }
    let ends = [&mut pair.near.endpoint, &mut pair.far.endpoint];
    assert!(
        ends.into_iter().all(|end| end.take_rail_event().is_none()),
        "idle rails are not silent"
    );
    pair.far.devices[0].inject(When::Now, Fault::Silent(true));
    // Every other one is offered over that device.
    for _ in 0..4 {
        let (send, receive) = pair.start(1 << 20);
        pair.finish(send, receive, 1 << 20);
    }
}

#[test]
fn rails_that_fail_again_and_again_cost_no_message() {
    let builder = rerouted(4).queue_pairs_per_rail(2).flushes(true);
    let mut pair = Pair::new([4, 4], 1 << 20, &builder);
    for time in 0..12 {
        let device = time * 7 % 4;
        let side = if time % 3 == 0 { &pair.far } else { &pair.near };
        let link = side.devices[device].clone();
        let (send, receive) = pair.start(1 << 20);
        link.inject(When::Now, Fault::LinkDown);
        pair.finish(send, receive, 1 << 20);
        pair.exchange(300_000, 1 << 20);
        link.inject(When::Now, Fault::LinkUp);
        if time % 2 == 0 {
            pair.wait_until_whole();
        }
    }
    pair.wait_until_whole();
    pair.exchange(1 << 20, 1 << 20);
}

#[test]
fn a_link_between_owners_that_breaks_is_no_loss() {
    let mut pair = Pair::new([2, 2], 1 << 20, &rerouted(2));
    let link = pair.near.devices[1].clone();
    link.inject(When::Now, Fault::LinkDown);
    // Their messages are lost.
    let links = pair.links();
    let (begin, mut lost) = (Instant::now(), 0);
    while lost == 0 || begin.elapsed() < Duration::from_millis(100) {
        assert!(begin.elapsed() < LONG, "nothing was sent");
        for side in [&mut pair.near, &mut pair.far] {
            side.endpoint.poll(16).check().unwrap();
        }
        lost += links.iter().flat_map(|link| std::iter::from_fn(|| link.next_message())).count();
    }
    link.inject(When::Now, Fault::LinkUp);
    links.iter().for_each(HealingLink::restored);
    pair.wait_until_whole();
    pair.exchange(1 << 20, 1 << 20);
}
