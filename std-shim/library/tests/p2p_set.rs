//! Many peers on the same devices: members of a set come, exchange messages, fail and go, each by
//! itself.

mod fixture;

use fixture::{LONG, impatient};
use polyrail::chain::Chain;
use polyrail::nic::{Fabric, Fault, When};
use polyrail::p2p::{
    CallError, End, NotNow, P2pBuildError, P2pBuilder, P2pEndpoint, P2pEndpointSet, P2pMember,
    P2pRemoveError, PoolError, Received, RecvBuffer, RecvHandle, SLOTS, SendHandle,
    connect_endpoints,
};
use polyrail::virtual_qp::{RailFailure, RailState};
use polyrail_faults::{DriverFault, Faults};
use std::time::Instant;

/// Bytes that each peer has in the memory of the hub, and in its own memory.
const ROOM: usize = 1 << 18;

/// A process with many peers.
struct Hub {
    host: fixture::Host,
    set: P2pEndpointSet,
}

/// One of them.
struct Peer {
    host: fixture::Host,
    endpoint: P2pEndpoint,
}

struct World {
    fabric: Fabric,
    builder: P2pBuilder,
    hub: Hub,
    /// By their numbers there, unless they are gone.
    peers: Vec<Option<Peer>>,
}

impl World {
    fn new(builder: P2pBuilder, devices: usize, most: u16) -> Self {
        let fabric = Fabric::threaded();
        let host = fixture::Host::new(&fabric, "hub", devices, ROOM * usize::from(most));
        let set = P2pEndpointSet::build(&builder, &host.all(), most).unwrap();
        Self { fabric, builder, hub: Hub { host, set }, peers: Vec::new() }
    }

    /// Brings a peer in, and returns its number.
    fn join(&mut self) -> usize {
        let devices = self.hub.host.devices.len();
        let host = fixture::Host::new(&self.fabric, "peer", devices, ROOM);
        let mut endpoint = self.builder.build(&host.all()).unwrap();
        let number = self.hub.set.add().unwrap();
        connect_endpoints(self.hub.set.get_mut(number).unwrap(), &mut endpoint).unwrap();
        self.peers.resize_with(self.peers.len().max(number + 1), || None);
        self.peers[number] = Some(Peer { host, endpoint });
        number
    }

    fn peer(&mut self, number: usize) -> &mut Peer {
        self.peers[number].as_mut().unwrap()
    }

    fn poll(&mut self) {
        self.hub.set.poll(16).check().unwrap();
        for peer in self.peers.iter_mut().flatten() {
            peer.endpoint.poll(16).check().unwrap();
        }
    }

    /// Tries again, polling, until it is not "not now".
    fn until<T>(
        &mut self,
        mut call: impl FnMut(&mut Self) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let begin = Instant::now();
        loop {
            match call(self) {
                Err(CallError::NotNow(reason)) => assert!(begin.elapsed() < LONG, "{reason}"),
                done => return done,
            }
            self.poll();
        }
    }

    /// The hub offers its room of a peer.
    fn offer(&mut self, number: usize) -> Result<RecvHandle, CallError> {
        let Hub { host, set } = &mut self.hub;
        let local = host.buffer.local(number * ROOM, ROOM as u32).unwrap();
        let keys = host.buffer.own_keys();
        set.get_mut(number).unwrap().irecv(&[RecvBuffer { local, tag: 1, keys: &keys }])
    }

    fn received(&mut self, number: usize, receive: RecvHandle) -> Result<Received, CallError> {
        self.until(|world| {
            let member = world.hub.set.get_mut(number).unwrap();
            member.test_recv(receive)?.ok_or(CallError::NotNow(NotNow::NoCredits))
        })
    }

    /// A peer sends this many bytes of a value.
    fn send(&mut self, number: usize, length: u32, byte: u8) -> Result<SendHandle, CallError> {
        self.peer(number).host.buffer.fill(0, ROOM, byte).unwrap();
        self.until(|world| {
            let Peer { host, endpoint, .. } = world.peer(number);
            endpoint.isend(host.buffer.local(0, length).unwrap(), 1, &host.buffer.own_keys())
        })
    }

    /// Every peer of these sends something to the hub, all at a time.
    fn exchange(&mut self, numbers: &[usize], length: u32) {
        self.hub.host.buffer.fill(0, self.hub.host.buffer.len(), 0).unwrap();
        let receives: Vec<_> = numbers
            .iter()
            .map(|&number| self.until(|world| world.offer(number)).unwrap())
            .collect();
        let byte = |number: usize| 1 + number as u8;
        let sends: Vec<_> = numbers
            .iter()
            .map(|&number| self.send(number, length + number as u32, byte(number)).unwrap())
            .collect();
        for ((&number, receive), send) in numbers.iter().zip(receives).zip(sends) {
            let received = self.received(number, receive).unwrap();
            assert_eq!(received.sizes(), [length + number as u32]);
            let mut bytes = vec![0; ROOM];
            self.hub.host.buffer.read_at(number * ROOM, &mut bytes).unwrap();
            let (told, rest) = bytes.split_at(length as usize + number);
            assert!(told.iter().all(|told| *told == byte(number)), "{number}");
            assert!(rest.iter().all(|rest| *rest == 0), "{number}");
            self.until(|world| match world.peer(number).endpoint.test_send(send)? {
                true => Ok(()),
                false => Err(NotNow::NoCredits.into()),
            })
            .unwrap();
        }
    }

    /// A member and its peer go.
    fn part(&mut self, number: usize) {
        self.hub.set.give_up(number, LONG).unwrap();
        self.hub.set.remove(number).unwrap();
        let mut peer = self.peers[number].take().unwrap();
        peer.endpoint.give_up(LONG);
        assert!(peer.endpoint.is_drained());
    }
}

#[test]
fn one_poll_serves_many_peers() {
    for (rails, devices) in [(1, 1), (2, 2), (3, 2)] {
        let mut world = World::new(P2pBuilder::new().rails(rails), devices, 6);
        let numbers: Vec<usize> = (0..6).map(|_| world.join()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        for length in [0, 8, 1000, 200_000] {
            world.exchange(&numbers, length);
        }
    }
}

/// What peers are sent arrives as well.
#[test]
fn the_hub_sends_to_each_peer() {
    let mut world = World::new(P2pBuilder::new(), 2, 3);
    let numbers: Vec<usize> = (0..3).map(|_| world.join()).collect();
    for &number in &numbers {
        let receive = world
            .until(|world| {
                let Peer { host, endpoint, .. } = world.peer(number);
                let local = host.buffer.local(0, ROOM as u32).unwrap();
                let keys = host.buffer.own_keys();
                endpoint.irecv(&[RecvBuffer { local, tag: 1, keys: &keys }])
            })
            .unwrap();
        let length = 100_000 + number as u32;
        let send = world
            .until(|world| {
                let Hub { host, set } = &mut world.hub;
                let local = host.buffer.local(0, length).unwrap();
                set.get_mut(number).unwrap().isend(local, 1, &host.buffer.own_keys())
            })
            .unwrap();
        let received = world
            .until(|world| {
                let told = world.peer(number).endpoint.test_recv(receive)?;
                told.ok_or(CallError::NotNow(NotNow::NoCredits))
            })
            .unwrap();
        assert_eq!(received.sizes(), [length]);
        world
            .until(|world| match world.hub.set.get_mut(number).unwrap().test_send(send)? {
                true => Ok(()),
                false => Err(NotNow::NoCredits.into()),
            })
            .unwrap();
    }
}

#[test]
fn members_come_and_go() {
    let mut world = World::new(P2pBuilder::new(), 2, 3);
    let mut numbers: Vec<usize> = (0..3).map(|_| world.join()).collect();
    assert!(matches!(world.hub.set.add(), Err(P2pBuildError::Members { most: 3 })));
    world.exchange(&numbers, 1000);
    // Far more often than pools and completion queues have room for at a time.
    for round in 0..12 {
        let gone = round % 3;
        // With a message offered that never comes.
        _ = world.offer(gone).unwrap();
        assert_eq!(
            world.hub.set.remove(gone),
            Err(P2pRemoveError::NotDrained { number: gone }),
            "round {round}"
        );
        world.part(gone);
        assert_eq!(world.hub.set.remove(gone), Err(P2pRemoveError::NoMember { number: gone }));
        let left: Vec<usize> = world.hub.set.numbers().collect();
        assert_eq!(left.len(), 2);
        world.exchange(&left, 70_000);
        assert_eq!(world.join(), gone);
        world.exchange(&numbers, 70_000);
    }
    numbers.reverse();
    numbers.into_iter().for_each(|number| world.part(number));
    assert_eq!(world.hub.set.numbers().count(), 0);
    assert_eq!(world.hub.set.remove(7), Err(P2pRemoveError::NoMember { number: 7 }));
}

/// Drivers forget the completions of a queue pair that is destroyed. If these could not be polled
/// before, it is unknown which receives are in the queue.
#[test]
fn receives_of_a_member_that_could_not_be_polled_are_not_granted_again() {
    let fabric = Fabric::threaded();
    let (hub, peer) =
        (fixture::Host::new(&fabric, "hub", 1, 64), fixture::Host::new(&fabric, "peer", 1, 64));
    let faults = Faults::new();
    let [hub_domain, peer_domain] = [(&hub, &faults), (&peer, &Faults::new())]
        .map(|(host, faults)| faults.domain(host.domains[0].clone()));
    let builder = P2pBuilder::new().rails(1);
    let mut set: P2pEndpointSet<_> = P2pEndpointSet::build(&builder, &[&hub_domain], 2).unwrap();
    let mut peers = [(); 2].map(|()| builder.build(&[&peer_domain]).unwrap());
    let local = hub.buffer.local(0, 64).unwrap();
    for (number, peer) in peers.iter_mut().enumerate() {
        assert_eq!(set.add().unwrap(), number);
        let member = set.get_mut(number).unwrap();
        connect_endpoints(member, peer).unwrap();
        // All receives of its account are posted.
        _ = member.irecv(&[RecvBuffer { local, tag: 1, keys: &hub.buffer.own_keys() }]).unwrap();
        set.give_up(number, LONG).unwrap();
    }
    faults.inject(DriverFault::FailPolls { errno: 5, polls: 1 });
    set.remove(0).unwrap();
    assert!(!faults.is_waiting(), "the queue was polled");
    set.remove(1).unwrap();
    // Those of the second are the next one's.
    assert_eq!(set.add().unwrap(), 0);
    let refused = set.add().unwrap_err();
    let full = PoolError::Full { asked: 512, left: 0, capacity: 512 };
    assert_eq!(refused, P2pBuildError::Pool { device: "hub0".into(), source: full });
    let words = "the shared receive queue of device hub0 has no room for another member that \
                 receives: cannot reserve 512 receives: 0 of 512 are left";
    assert_eq!(Chain(&refused).to_string(), words);
}

#[test]
fn a_member_that_fails_leaves_the_others_alone() {
    let builder = P2pBuilder::new()
        .connect_options(polyrail::backend::ConnectOptions { rnr_retry: 7, ..impatient() });
    let mut world = World::new(builder, 2, 3);
    let numbers: Vec<usize> = (0..3).map(|_| world.join()).collect();
    world.exchange(&numbers, 1000);
    // One peer is gone in the middle of a message.
    let receive = world.until(|world| world.offer(1)).unwrap();
    world.exchange(&[0, 2], 8);
    world.peer(1).host.devices.iter().for_each(|device| device.inject(When::Now, Fault::LinkDown));
    _ = world.send(1, 100_000, 9).unwrap();
    world.exchange(&[0, 2], 100_000);
    // This side notices it at its own next request there.
    let begin = Instant::now();
    let failed = |member: &P2pMember| member.failure().is_some();
    while !failed(world.hub.set.get(1).unwrap()) {
        assert!(begin.elapsed() < LONG);
        _ = world.offer(1);
        world.poll();
    }
    assert!(matches!(world.received(1, receive), Err(CallError::Failed(_))));
    world.exchange(&[0, 2], 100_000);
    world.part(1);
    world.exchange(&[0, 2], 8);
    // Its place is for another one.
    assert_eq!(world.join(), 1);
    world.exchange(&numbers, 100_000);
}

#[test]
fn receives_of_all_slots_of_all_members_have_room() {
    let mut world = World::new(P2pBuilder::new(), 2, 4);
    let numbers: Vec<usize> = (0..4).map(|_| world.join()).collect();
    let mut receives = Vec::new();
    for &number in &numbers {
        for _ in 0..SLOTS {
            receives.push((number, world.until(|world| world.offer(number)).unwrap()));
        }
        assert!(world.offer(number).unwrap_err().is_not_now());
    }
    for _ in 0..SLOTS {
        for &number in &numbers {
            _ = world.send(number, 100, 3).unwrap();
        }
    }
    for (number, receive) in receives {
        assert_eq!(world.received(number, receive).unwrap().sizes(), [100]);
    }
}

#[test]
fn rails_of_members_are_re_routed_and_come_back() {
    let mut world = World::new(P2pBuilder::new().rail_failure(RailFailure::Reroute), 2, 3);
    let numbers: Vec<usize> = (0..3).map(|_| world.join()).collect();
    world.exchange(&numbers, 200_000);
    // A device of the hub, and so a rail of every member.
    world.hub.host.devices[1].inject(When::Now, Fault::LinkDown);
    world.exchange(&numbers, 200_000);
    world.hub.host.devices[1].inject(When::Now, Fault::LinkUp);
    let in_service = |member: &P2pMember| {
        let is = |state: Option<(RailState, u16)>| {
            state.is_some_and(|(state, _)| state == RailState::InService)
        };
        let both = |at| [End::Sender, End::Receiver].map(|end| member.queue_pair_state(end, at));
        (0..2).flat_map(both).all(is)
    };
    let begin = Instant::now();
    while !numbers.iter().all(|&number| in_service(world.hub.set.get(number).unwrap())) {
        assert!(begin.elapsed() < LONG);
        world.poll();
    }
    world.exchange(&numbers, 200_000);
}
