//! Two hosts that list their devices in different orders.

use polyrail::backend::Gid;
use polyrail::endpoint::{
    Address, ConnectError, Endpoint, EndpointBuilder, RailMismatch, connect_endpoints,
};
use polyrail::link::Reach;
use polyrail::memory::RegisteredBuffer;
use polyrail::p2p::{
    self, End, P2pAddress, P2pBuilder, P2pConnectError, P2pEndpoint, P2pEndpointSet,
};
use polyrail::pairing::{PairingError, in_pairs, networks, positions_in_pairs_or_in_order};
use polyrail::tcp::{DeviceOptions, ProtectionDomain, open_devices};
use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
use polyrail::virtual_qp::{RailFailure, RailId};

const BYTES: usize = 4 << 20;

const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// `::1` and `127.0.0.1` are two networks, which do not reach each other.
fn open(addresses: [&str; 2]) -> Vec<ProtectionDomain> {
    open_devices(addresses, &DeviceOptions::default()).unwrap()
}

fn builder() -> EndpointBuilder {
    EndpointBuilder::new().rail_failure(RailFailure::Reroute)
}

fn names(domains: &[&ProtectionDomain]) -> Vec<String> {
    domains.iter().map(|domain| domain.device().name().to_owned()).collect()
}

#[test]
fn devices_have_the_networks_of_their_addresses() {
    let [four, six] = [["127.0.0.2", "::1"], ["::1", "127.0.0.1"]].map(|names| {
        let networks = networks(&open(names)).into_iter();
        networks.map(|network| network.unwrap().to_string()).collect::<Vec<_>>()
    });
    assert_eq!(four, ["127.0.0.0/8", "::1/128"]);
    assert_eq!(six, ["::1/128", "127.0.0.0/8"]);
}

#[test]
fn requests_go_over_the_pairs_that_reach_each_other() {
    let (asking, answering) = (open(["127.0.0.1", "::1"]), open(["::1", "127.0.0.1"]));
    let asking: Vec<_> = asking.iter().collect();
    let mut near = builder().build(&asking).unwrap();

    // In order, no rail could be connected.
    let mut in_order = builder().build(&answering).unwrap();
    let refused = in_order.connect(&near.address()).unwrap_err();
    let ConnectError::Ends(RailMismatch::Gids { rail, device, here, peer }) = &refused else {
        panic!("{refused}")
    };
    assert_eq!((*rail, device.as_str()), (RailId::Data(0), "tcp:::1"));
    assert_eq!((here.to_string(), peer.to_string()), ("::1".into(), "::ffff:127.0.0.1".into()));

    let paired = in_pairs(&answering, &near.address().into()).unwrap();
    assert_eq!(names(&paired), names(&asking));
    let mut far = builder().build(&paired).unwrap();
    connect_endpoints(&mut near, &mut far).unwrap();
    let source = RegisteredBuffer::new(BYTES, ACCESS, asking.iter().copied()).unwrap();
    let target = RegisteredBuffer::new(BYTES, ACCESS, paired.iter().copied()).unwrap();
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
    source.write_at(0, &pattern).unwrap();
    let keys = source.toward(&target.remote()).unwrap();
    let from = source.local(0, BYTES as u32).unwrap();
    near.post_send(&SendWr::write(1, from, target.addr(), &keys)).unwrap();
    let done = loop {
        assert!(far.poll(16).error.is_none());
        if let Some(done) = near.poll(16).completions.pop() {
            break done;
        }
    };
    assert_eq!(done.status, WcStatus::SUCCESS);
    let mut arrived = vec![0; BYTES];
    target.read_at(0, &mut arrived).unwrap();
    assert!(arrived == pattern);
    assert!(near.take_rail_event().is_none(), "no rail has failed");
}

#[test]
fn messages_connect_over_the_pairs_that_reach_each_other() {
    let (asking, answering) = (open(["127.0.0.1", "::1"]), open(["::1", "127.0.0.1"]));
    let builder = P2pBuilder::new().rails(2);
    let mut near: P2pEndpoint<_> = builder.build(&asking).unwrap();
    let mut in_order = builder.build(&answering).unwrap();
    let refused = in_order.connect(&near.address()).unwrap_err();
    assert!(matches!(refused, P2pConnectError::Gids { queue_pair: 0, .. }), "{refused}");
    let paired = in_pairs(&answering, &near.address().into()).unwrap();
    let mut far = builder.build(&paired).unwrap();
    p2p::connect_endpoints(&mut near, &mut far).unwrap();
}

/// An address of another host: TEST-NET-1 (RFC 5737), which no host has.
fn on_another_host() -> Gid {
    "::ffff:192.0.2.1".parse().unwrap()
}

/// The address of an endpoint of this host, but on another host.
fn elsewhere(mut address: Address) -> Address {
    let rails = address.rails.iter_mut().chain(&mut address.notify);
    rails.for_each(|rail| rail.gid = on_another_host());
    address
}

#[test]
fn loopback_is_not_connected_to_another_host() {
    let domains = open(["127.0.0.1", "127.0.0.2"]);
    let peer: Endpoint<_, _> = builder().build(&domains).unwrap();
    let mut endpoint = builder().build(&domains).unwrap();
    let refused = endpoint.connect(&elsewhere(peer.address())).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "rail 0 (device tcp:127.0.0.1): loopback here (::ffff:127.0.0.1), ::ffff:192.0.2.1 at the \
         peer, which is on another host"
    );
    let unpaired = in_pairs(&domains, &Reach::from(elsewhere(peer.address()))).unwrap_err();
    let PairingError::Unreachable { peer: gid, own } = &unpaired else { panic!("{unpaired}") };
    assert_eq!((gid.to_string().as_str(), own.len()), ("::ffff:192.0.2.1", 2));
    // Nothing changed: the endpoint can be connected to one of this host.
    endpoint.connect(&peer.address()).unwrap();
}

#[test]
fn messages_of_loopback_are_not_connected_to_another_host() {
    let domains = open(["127.0.0.1", "127.0.0.2"]);
    let builder = P2pBuilder::new().rails(2);
    let mut peer: P2pEndpoint<_> = builder.build(&domains).unwrap();
    let mut endpoint = builder.build(&domains).unwrap();
    let mut address: P2pAddress = peer.address();
    // Only the second queue pair of this end's receiver leads to another host.
    address.sending[1].address.gid = on_another_host();
    let refused = endpoint.connect(&address).unwrap_err();
    let expected = P2pConnectError::Loopback {
        end: End::Receiver,
        queue_pair: 1,
        device: "tcp:127.0.0.2".into(),
        here: "::ffff:127.0.0.2".parse().unwrap(),
        peer: on_another_host(),
    };
    assert_eq!(refused, expected);
    assert!(!refused.may_pass());
    assert!(
        refused.to_string().ends_with(
            "(device tcp:127.0.0.2): loopback here (::ffff:127.0.0.2), ::ffff:192.0.2.1 at the \
             peer, which is on another host"
        ),
        "{refused}"
    );
    // Nothing changed: the endpoint can be connected to one of this host.
    p2p::connect_endpoints(&mut endpoint, &mut peer).unwrap();
}

/// The last bytes of the addresses of the devices that the rails of a new member use, in their
/// order.
fn used(domains: &[ProtectionDomain], builder: P2pBuilder, order: &[usize]) -> Vec<usize> {
    let mut set: P2pEndpointSet<_> = P2pEndpointSet::build(&builder, domains, 1).unwrap();
    let number = set.add_in_order(order).unwrap();
    let member = set.get(number).unwrap();
    let device = |at| {
        let name = member.device_of(at)?;
        domains.iter().position(|domain| domain.device().name() == name)
    };
    (0..).map_while(device).collect()
}

#[test]
fn a_member_uses_devices_in_an_order_that_has_each_once() {
    let domains: Vec<_> = open(["127.0.0.1", "127.0.0.2"])
        .into_iter()
        .chain(open_devices(["127.0.0.3"], &DeviceOptions::default()).unwrap())
        .collect();
    let three = P2pBuilder::new().rails(3);
    assert_eq!(used(&domains, three, &[2, 0, 1]), [2, 0, 1]);
    assert_eq!(used(&domains, three.queue_pairs_per_rail(2), &[2, 0, 1]), [2, 0, 1, 2, 0, 1]);
    assert_eq!(used(&domains[..2], P2pBuilder::new().rails(4), &[1, 0]), [1, 0, 1, 0]);
    // The third device has no rail, and no place in the order.
    assert_eq!(used(&domains, P2pBuilder::new().rails(2), &[1, 0]), [1, 0]);

    // The order of the list, because the queues of some devices would be too short.
    for unusable in [&[][..], &[2], &[1, 0], &[0, 0, 1], &[2, 1, 0, 2], &[2, 1, 3], &[2, 1, 0, 3]] {
        assert_eq!(used(&domains, three, unusable), [0, 1, 2], "{unusable:?}");
    }
    // Two devices have two rails each, and one has one.
    assert_eq!(used(&domains, P2pBuilder::new().rails(5), &[2, 1, 0]), [0, 1, 2, 0, 1]);
}

/// Three rails alternate over two devices of this end, but two networks have two devices of the
/// peer and one.
#[test]
fn rails_that_cannot_use_pairs_in_turn_use_the_devices_in_order() {
    let own = open(["::1", "127.0.0.1"]);
    let v4 = open(["127.0.0.2", "127.0.0.3"]);
    let [third, _] = open(["::1", "127.0.0.4"]).try_into().unwrap();
    let [first, second] = v4.try_into().unwrap();
    let asking = [first, second, third];
    let asking: P2pEndpoint<_> = P2pBuilder::new().rails(3).build(&asking).unwrap();
    let peer: Reach = asking.address().into();
    let uneven = in_pairs(&own, &peer).unwrap_err();
    assert!(matches!(uneven, PairingError::NotInTurn { .. }), "{uneven}");
    let mut reasons = Vec::new();
    let positions =
        positions_in_pairs_or_in_order(&own, &peer, |why| reasons.push(why.clone())).unwrap();
    assert_eq!((positions, reasons), (vec![0, 1], vec![uneven]));

    // Pairs have no reason.
    let one: P2pEndpoint<_> = P2pBuilder::new().rails(1).build(&own[1..]).unwrap();
    let peer: Reach = one.address().into();
    let positions = positions_in_pairs_or_in_order(&own, &peer, |why| panic!("{why}")).unwrap();
    assert_eq!(positions, [1]);
}
