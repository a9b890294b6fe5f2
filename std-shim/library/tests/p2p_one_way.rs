//! Messages that go one way only.

mod fixture;
mod messages;

use fixture::impatient;
use messages::{Pair, Side};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::p2p::{
    CallError, End, P2pAddress, P2pBuilder, P2pConnectError, P2pEndpointSet, connect_p2p_endpoints,
};
use polyrail::virtual_qp::ControlError;
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
    pair.near.endpoint.give_up(messages::LONG);
    pair.far.endpoint.give_up(messages::LONG);
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
    connect_p2p_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
    Pair { near, far }.exchange(64, 64);
}

#[test]
fn links_that_go_down_cost_no_message_and_come_back() {
    let builder = P2pBuilder::new().rails(2).reroutes(true).connect_options(impatient());
    for far in [false, true] {
        let mut pair = pair(builder);
        for device in [0, 1, 0] {
            let side = if far { &pair.far } else { &pair.near };
            let link = side.devices[device].clone();
            let receive = pair.until(|pair| pair.far.offer(&[(0, 1 << 20, 1)])).unwrap();
            let send = pair.until(|pair| pair.near.send(0, 1 << 20, 1)).unwrap();
            link.inject(When::Now, Fault::LinkDown);
            assert_eq!(pair.received(receive).unwrap().sizes(), [1 << 20]);
            pair.sent(send).unwrap();
            pair.exchange(100_000, 1 << 20);
            link.inject(When::Now, Fault::LinkUp);
            pair.wait_until_whole();
            pair.exchange(1 << 20, 1 << 20);
        }
        let events = |side: &mut Side| {
            let events = std::iter::from_fn(|| side.endpoint.take_event());
            events.map(|(end, ..)| end).collect::<Vec<_>>()
        };
        let (near, far) = (events(&mut pair.near), events(&mut pair.far));
        assert!(near.iter().all(|end| *end == End::Sender) && !near.is_empty(), "{near:?}");
        assert!(far.iter().all(|end| *end == End::Receiver) && !far.is_empty(), "{far:?}");
    }
}

/// A peer that tells of an end that is not here.
#[test]
fn news_of_the_other_way_are_refused() {
    let builder = P2pBuilder::new().rails(2).reroutes(true).connect_options(impatient());
    let mut both = Pair::new([2, 2], 1 << 20, &builder);
    let mut one_way = pair(builder);
    both.near.devices[0].inject(When::Now, Fault::LinkDown);
    let (begin, mut refused) = (Instant::now(), 0);
    while refused == 0 {
        assert!(begin.elapsed() < Duration::from_secs(5), "nothing was refused");
        both.near.endpoint.poll(16).unwrap();
        while let Some(message) = both.near.endpoint.next_message() {
            // What its receiver says is for a sender, of which the far end has none.
            match one_way.far.endpoint.hear(message) {
                Err(ControlError::OneWay) => refused += 1,
                heard => assert!(heard.is_ok() || one_way.far.endpoint.recv_failure().is_some()),
            }
        }
    }
    assert!(one_way.far.endpoint.send_failure().is_none());
}

#[test]
fn members_of_sets_go_one_way_too() {
    let fabric = Fabric::threaded();
    let hub = fixture::Host::new(&fabric, "hub", 2, 1 << 20);
    let receives = P2pBuilder::new().only(End::Receiver);
    let mut set: P2pEndpointSet = P2pEndpointSet::build(&receives, &hub.all(), 3).unwrap();
    let sends = P2pBuilder::new().only(End::Sender);
    for round in 0..5 {
        let mut peer = Side::new(&fabric, "peer", 2, 1 << 20, &sends);
        let number = set.add().unwrap();
        connect_p2p_endpoints(set.member_mut(number).unwrap(), &mut peer.endpoint).unwrap();
        set.give_up(number, messages::LONG).unwrap();
        peer.endpoint.give_up(messages::LONG);
        assert_eq!(set.remove(number), Ok(()), "round {round}");
    }
}
