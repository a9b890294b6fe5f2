//! Messages that go one way only.

mod fixture;
mod messages;

use fixture::{Host, LONG, ended, impatient};
use messages::{Pair, Side};
use polyrail::nic::{DeviceConfig, DeviceLimits, Fabric, Fault, When};
use polyrail::p2p::{
    CallError, End, EndControl, Failure, HealingMessage, P2pAddress, P2pBuilder, P2pConnectError,
    QueuePairId, RecvBuffer, connect_endpoints,
};
use polyrail::progress::messages::{P2pError, P2pThread};
use polyrail::virtual_qp::RailFailure;
use std::time::{Duration, Instant};

fn pair(builder: P2pBuilder) -> Pair {
    Pair::of([2, 2], 1 << 20, [&builder.only(End::Sender), &builder.only(End::Receiver)])
}

#[test]
fn messages_of_all_sizes_arrive_and_none_goes_back() {
    let mut pair = pair(P2pBuilder::new());
    for length in [0, 1, 128, 65_537, 1 << 20] {
        pair.exchange(length, 1 << 20);
    }
    assert_eq!(pair.near.offer(&[(0, 64, 1)]), Err(CallError::OneWay));
    assert_eq!(pair.far.send(0, 64, 1), Err(CallError::OneWay));
    assert_eq!((pair.near.endpoint.unfinished(), pair.far.endpoint.unfinished()), ((0, 0), (0, 0)));
    let queue_pairs = |side: &Side| {
        [End::Sender, End::Receiver].map(|end| side.endpoint.queue_pairs(end).count())
    };
    assert_eq!((queue_pairs(&pair.near), queue_pairs(&pair.far)), ([2, 0], [0, 2]));
    assert_eq!(pair.near.endpoint.counters().count(), 2);
    assert!(pair.near.endpoint.receiver().is_none() && pair.far.endpoint.sender().is_none());
    pair.near.endpoint.give_up(LONG);
    pair.far.endpoint.give_up(LONG);
    assert!(pair.near.endpoint.is_drained() && pair.far.endpoint.is_drained());
}

#[test]
fn an_address_has_what_is_there() {
    let fabric = Fabric::threaded();
    for (end, here, missing) in [(End::Sender, "sen", "recei"), (End::Receiver, "recei", "sen")] {
        let side = Side::new(&fabric, here, 2, 64, &P2pBuilder::new().only(end));
        let address = side.endpoint.address();
        let text = address.to_json();
        assert!(text.contains(here) && !text.contains(missing), "{text}");
        assert_eq!(P2pAddress::from_json(text.as_bytes()), Ok(address));
    }
}

#[test]
fn ends_without_the_other_are_refused_before_anything_is_moved() {
    let fabric = Fabric::threaded();
    let side =
        |name, only: Option<End>| Side::new(&fabric, name, 2, 64, &P2pBuilder::new().only(only));
    let mut near = side("near", Some(End::Sender));
    let peers = [
        (side("same", Some(End::Sender)), End::Sender, true),
        (side("both", None), End::Receiver, false),
    ];
    for (peer, end, here) in peers {
        let refused = near.endpoint.connect(&peer.endpoint.address());
        assert_eq!(refused, Err(P2pConnectError::OneWay { end, here }));
    }
    // A card without its queue pairs.
    let mut far = side("far", Some(End::Receiver));
    let mut bare = far.endpoint.address();
    bare.receiving.clear();
    let refused = near.endpoint.connect(&bare).unwrap_err();
    assert!(matches!(refused, P2pConnectError::QueuePairs { peer: 0, .. }), "{refused}");
    connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
    Pair { near, far }.exchange(64, 64);
}

#[test]
fn links_that_go_down_cost_no_message_and_come_back() {
    let builder =
        P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute).connect_options(impatient());
    for far in [false, true] {
        let mut pair = pair(builder);
        for device in [0, 1, 0] {
            let side = if far { &pair.far } else { &pair.near };
            let link = side.devices[device].clone();
            let (send, receive) = pair.start(1 << 20);
            link.inject(When::Now, Fault::LinkDown);
            pair.finish(send, receive, 1 << 20);
            pair.exchange(100_000, 1 << 20);
            link.inject(When::Now, Fault::LinkUp);
            pair.wait_until_whole();
            pair.exchange(1 << 20, 1 << 20);
        }
        let events = |side: &mut Side| {
            let events = std::iter::from_fn(|| side.endpoint.take_rail_event());
            events.map(|(end, ..)| end).collect::<Vec<_>>()
        };
        let (near, far) = (events(&mut pair.near), events(&mut pair.far));
        assert!(near.iter().all(|end| *end == End::Sender) && !near.is_empty(), "{near:?}");
        assert!(far.iter().all(|end| *end == End::Receiver) && !far.is_empty(), "{far:?}");
    }
}

/// A peer that sends repair messages for an end that is not here.
#[test]
fn repair_messages_for_an_end_that_is_not_here_change_nothing() {
    let builder =
        P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute).connect_options(impatient());
    let mut both = Pair::new([2, 2], 1 << 20, &builder);
    let mut one_way = pair(builder);
    both.near.devices[0].inject(When::Now, Fault::LinkDown);
    let ([from, _], [_, to]) = (both.links(), one_way.links());
    let of_receiver = |message: &HealingMessage| {
        matches!(message, HealingMessage::Control(EndControl { from: End::Receiver, .. }))
    };
    let (begin, mut strays) = (Instant::now(), 0);
    while strays == 0 {
        assert!(begin.elapsed() < LONG, "the receiver sent nothing");
        both.near.endpoint.poll(16).check().unwrap();
        // The messages of its receiver are for a sender, and the far end has none.
        for stray in std::iter::from_fn(|| from.next_message()).filter(of_receiver) {
            to.handle(stray).unwrap();
            strays += 1;
        }
    }
    let index = 1;
    let rail = QueuePairId { end: End::Receiver, index };
    to.handle(HealingMessage::Wanted { rail }).unwrap();
    to.handle(HealingMessage::Refused { rail, generation: 1 }).unwrap();
    one_way.far.endpoint.heal();
    one_way.exchange(1 << 20, 1 << 20);
    assert!(one_way.far.endpoint.take_rail_event().is_none());
}

/// The state that each of the two ends reports.
#[test]
fn each_end_reports_its_own_messages_and_flushes_what_it_received() {
    let mut pair = pair(P2pBuilder::new().flushes(true));
    let (send, receive) = pair.start(1 << 20);
    assert_eq!((pair.near.endpoint.unfinished(), pair.far.endpoint.unfinished()), ((1, 0), (0, 1)));
    let received = pair.received(receive).unwrap();
    pair.sent(send).unwrap();
    let flush = pair.until(|pair| pair.far.endpoint.flush(&received)).unwrap();
    pair.flushed(&flush).unwrap();
    assert_eq!(pair.near.endpoint.flush(&received), Err(CallError::OneWay));
    assert_eq!(pair.near.endpoint.test_flush(&flush), Err(CallError::OneWay));
    for side in [&mut pair.near, &mut pair.far] {
        side.endpoint.give_up(LONG);
    }
    let failed = |side: &Side| side.endpoint.failure().map(|why| (why.end, why.failure));
    assert_eq!(failed(&pair.near), Some((End::Sender, Failure::Owner)));
    assert_eq!(failed(&pair.far), Some((End::Receiver, Failure::Owner)));
}

/// Whoever comes back for a flush until there is room on all devices takes no room meanwhile.
#[test]
fn flushes_that_find_no_room_read_nothing() {
    let mut pair = pair(P2pBuilder::new().flushes(true).connect_options(impatient()));
    let (send, receive) = pair.start(1 << 20);
    let received = pair.received(receive).unwrap();
    pair.sent(send).unwrap();
    // What the second one is to read does not end.
    pair.far.devices[1].inject(When::Now, Fault::Silent(true));
    while pair.far.endpoint.flush(&received).is_ok() {
        pair.far.endpoint.poll(64).check().unwrap();
    }
    let settle = |pair: &mut Pair| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(100) {
            pair.far.endpoint.poll(64).check().unwrap();
        }
        pair.far.devices[0].carried_bytes()
    };
    let before = settle(&mut pair);
    for _ in 0..1000 {
        assert!(pair.far.endpoint.flush(&received).unwrap_err().is_not_now());
        pair.far.endpoint.poll(64).check().unwrap();
    }
    assert_eq!(settle(&mut pair), before);
}

/// The other device carries everything then, and nothing waits for the one that is gone.
#[test]
fn devices_that_are_gone_keep_no_request_waiting() {
    let builder = P2pBuilder::new()
        .rail_failure(RailFailure::Reroute)
        .flushes(true)
        .connect_options(impatient());
    for far in [false, true] {
        let mut pair = pair(builder);
        pair.exchange(1 << 20, 1 << 20);
        let side = if far { &pair.far } else { &pair.near };
        side.devices[0].inject(When::Now, Fault::DeviceGone);
        let begin = Instant::now();
        let (mut receive, mut send, mut received, mut sent) = (None, None, None, false);
        while received.is_none() || !sent {
            assert!(begin.elapsed() < LONG, "far: {far}");
            // A device that is gone is polled in vain.
            _ = pair.near.endpoint.poll(16);
            _ = pair.far.endpoint.poll(16);
            pair.carry();
            receive = receive.or_else(|| pair.far.offer(&[(0, 1 << 20, 5)]).ok());
            send = send.or_else(|| pair.near.send(0, 1 << 20, 5).ok());
            if let (Some(receive), None) = (receive, received) {
                received = pair.far.endpoint.test_recv(receive).unwrap();
            }
            if let (Some(send), false) = (send, sent) {
                sent = pair.near.endpoint.test_send(send).unwrap();
            }
        }
        for side in [&mut pair.near, &mut pair.far] {
            side.endpoint.fail();
            let begin = Instant::now();
            while !side.endpoint.is_drained() {
                assert!(begin.elapsed() < LONG, "far: {far}");
                _ = side.endpoint.poll(64);
            }
        }
    }
}

#[test]
fn a_sender_needs_no_shared_receive_queue() {
    let fabric = Fabric::threaded();
    let mut config = DeviceConfig::named("bare");
    config.limits = DeviceLimits { max_srq_wr: 0, ..DeviceLimits::default() };
    let domain = fabric.create_device(config).alloc_pd().unwrap();
    let builder = P2pBuilder::new().rails(1);
    assert!(builder.build(&[&domain]).is_err());
    assert!(builder.only(End::Receiver).build(&[&domain]).is_err());
    let sender = builder.only(End::Sender).build(&[&domain]).unwrap();
    assert_eq!(sender.queue_pairs(End::Sender).count(), 1);
}

#[test]
fn threads_drive_endpoints_that_go_one_way() {
    let fabric = Fabric::threaded();
    let [near, far] = ["near", "far"].map(|name| Host::new(&fabric, name, 2, 1 << 20));
    for comp_vector in [None, Some(0)] {
        let builder = P2pBuilder::new().completion_channel(comp_vector);
        let mut sends = builder.only(End::Sender).build(&near.all()).unwrap();
        let mut receives = builder.only(End::Receiver).build(&far.all()).unwrap();
        connect_endpoints(&mut sends, &mut receives).unwrap();
        let threads = [sends, receives].map(|endpoint| P2pThread::spawn(endpoint).unwrap());
        let [mut sends, mut receives] = threads.each_ref().map(|each| each.handle(0).unwrap());
        let keys = [near.buffer.own_keys(), far.buffer.own_keys()];
        let local = [&near, &far].map(|host| host.buffer.local(0, 1 << 20).unwrap());
        let [from, to] = [0, 1].map(|at| RecvBuffer { local: local[at], tag: 1, keys: &keys[at] });
        let one_way = |refused| assert_eq!(refused, P2pError::Call(CallError::OneWay));
        one_way(ended(receives.isend(local[1], 1, &keys[1]).unwrap()).unwrap_err());
        one_way(ended(sends.irecv(&[from]).unwrap()).unwrap_err());
        for _ in 0..10 {
            let receive = receives.irecv(&[to]).unwrap();
            ended(sends.isend(local[0], 1, &keys[0]).unwrap()).unwrap();
            assert_eq!(ended(receive).unwrap().sizes(), [1 << 20]);
        }
        threads.into_iter().for_each(|thread| drop(thread.shutdown().unwrap()));
    }
}
