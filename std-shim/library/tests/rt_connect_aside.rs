//! Peers to which the devices search for a path hold up neither the caller nor other peers.

mod fixture;

use fixture::{Host, LONG};
use polyrail::endpoint::{ConnectError, EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::p2p::{
    self, CallError, End, P2pBuilder, P2pConnectError, P2pEndpointSet, RecvBuffer,
};
use polyrail::verbs::{RecvWr, SendWr};
use polyrail::virtual_qp::{QpState, RailFailure, RailId, RailState};
use std::time::{Duration, Instant};

/// How long the device searches for each path.
const SEARCH: Duration = Duration::from_secs(2);

/// Peers without a path, beside one with which everything is well.
const LOST: usize = 5;

/// Devices, one for each rail: as many pairs of ports.
const RAILS: usize = 4;

/// Half of what the searches take one after another.
const LIMIT: Duration = Duration::from_secs(SEARCH.as_secs() * (LOST * RAILS) as u64 / 2);

const LENGTH: u32 = 1000;

/// A host with many peers, and the host of the peers.
struct Hosts {
    hub: Host,
    other: Host,
}

impl Hosts {
    fn new() -> Self {
        let fabric = Fabric::threaded();
        let [hub, other] =
            ["hub", "other"].map(|name| Host::new(&fabric, name, RAILS, LENGTH as usize));
        Self { hub, other }
    }

    /// From now on the hub's devices search for paths, and find none.
    fn lose(&self) {
        for device in &self.hub.devices {
            device.inject(When::Now, Fault::RefuseRtr { transitions: u32::MAX });
            device.inject(When::Now, Fault::SearchPaths(SEARCH));
        }
    }

    /// From now on the hub's devices find paths at once.
    fn find(&self) {
        for device in &self.hub.devices {
            device.inject(When::Now, Fault::RefuseRtr { transitions: 0 });
            device.inject(When::Now, Fault::SearchPaths(Duration::ZERO));
        }
    }
}

/// Calls until it is done, or fails.
fn until<E>(mut call: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    let begin = Instant::now();
    while !call()? {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A request of the first members, from post to notification.
fn carry(hosts: &Hosts, sets: &mut [EndpointSet; 2]) {
    let keys = hosts.hub.buffer.toward(&hosts.other.buffer.remote()).unwrap();
    let local = hosts.hub.buffer.local(0, LENGTH).unwrap();
    let wr = SendWr::write_with_imm(2, local, hosts.other.buffer.addr(), 3, &keys);
    let [hub, other] = sets;
    other.get_mut(0).unwrap().post_recv(&RecvWr::notification(1)).unwrap();
    hub.get_mut(0).unwrap().post_send(&wr).unwrap();
    let mut reported = [None; 2];
    until::<()>(|| {
        for (set, reported) in sets.iter_mut().zip(&mut reported) {
            let polled = set.poll_with(1, |event| *reported = event.completion().or(*reported));
            assert_eq!(polled.error, None);
        }
        Ok(reported.iter().all(Option::is_some))
    })
    .unwrap();
    assert!(reported.iter().flatten().all(|one| one.status.is_success()), "{reported:?}");
}

#[test]
fn requests_of_others_go_on_while_paths_are_searched_for() {
    let hosts = Hosts::new();
    let builder =
        EndpointBuilder::new().rails(RAILS).rail_failure(RailFailure::Reroute).min_rails(0);
    let places: Vec<usize> = (0..RAILS).collect();
    let shapes = vec![(builder, &*places); 1 + LOST];
    let mut sets = [hosts.hub.set(&shapes), hosts.other.set(&shapes)];
    let [well_here, well_there] = sets.each_mut().map(|set| set.get_mut(0).unwrap());
    connect_endpoints(well_here, well_there).unwrap();
    hosts.lose();
    let addresses: Vec<_> = sets[1].qps().map(|qp| qp.address()).collect();
    let begin = Instant::now();
    for (number, address) in addresses.iter().enumerate().skip(1) {
        let lost = sets[0].get_mut(number).unwrap();
        assert_eq!(lost.try_connect(address), Ok(false));
    }
    carry(&hosts, &mut sets);
    // One goes meanwhile.
    drop(sets[0].remove(LOST));
    for (number, address) in addresses.iter().enumerate().take(LOST).skip(1) {
        let lost = sets[0].get_mut(number).unwrap();
        until(|| lost.try_connect(address)).unwrap();
        let qp = lost.virtual_qp();
        assert!(qp.rail_state(RailId::Data(0)).is_some_and(|state| state != RailState::InService));
        assert_eq!(lost.state(), QpState::Degraded);
    }
    carry(&hosts, &mut sets);
    drop(sets);
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}

/// An attempt that fails is followed by another one, also by a call that waits.
#[test]
fn an_attempt_that_finds_no_path_is_repeated() {
    let hosts = Hosts::new();
    let places: Vec<usize> = (0..RAILS).collect();
    let shapes = [(EndpointBuilder::new().rails(RAILS), &*places)];
    let mut sets = [hosts.hub.set(&shapes), hosts.other.set(&shapes)];
    hosts.lose();
    let [here, there] = sets.each_mut().map(|set| set.get_mut(0).unwrap());
    let begin = Instant::now();
    assert_eq!(here.try_connect(&there.address()), Ok(false));
    let error = until(|| here.try_connect(&there.address())).unwrap_err();
    assert!(matches!(error, ConnectError::Modify { rail: RailId::Data(0), .. }), "{error}");
    assert!(error.may_pass() && begin.elapsed() >= SEARCH);
    let begin = Instant::now();
    let again = here.connect(&there.address());
    assert!(again == Err(error) && begin.elapsed() >= SEARCH, "{again:?}");
    hosts.find();
    assert_eq!(here.try_connect(&there.address()), Ok(true));
    assert_eq!(there.try_connect(&here.address()), Ok(true));
    carry(&hosts, &mut sets);
}

/// A message of the first members, from both calls to both results.
fn send(hosts: &Hosts, sets: &mut [P2pEndpointSet; 2]) {
    let Hosts { hub, other } = hosts;
    let [from, to] = [hub, other].map(|host| host.buffer.local(0, LENGTH).unwrap());
    let [from_keys, to_keys] = [hub, other].map(|host| host.buffer.own_keys());
    let buffer = RecvBuffer { local: to, tag: 1, keys: &to_keys };
    let receive = sets[1].get_mut(0).unwrap().irecv(&[buffer]).unwrap();
    let (mut send, mut is_received) = (None, false);
    until::<CallError>(|| {
        sets.iter_mut().for_each(|set| set.poll(16).check().unwrap());
        let [here, there] = sets.each_mut().map(|set| set.get_mut(0).unwrap());
        is_received = is_received || there.test_recv(receive)?.is_some();
        match send {
            Some(send) if is_received => here.test_send(send),
            Some(_) => Ok(false),
            None => match here.isend(from, 1, &from_keys) {
                Err(CallError::NotNow(_)) => Ok(false),
                sent => sent.map(|handle| send = Some(handle)).map(|()| false),
            },
        }
    })
    .unwrap();
}

#[test]
fn messages_of_others_go_on_while_paths_are_searched_for() {
    let hosts = Hosts::new();
    let builder = P2pBuilder::new().rails(RAILS).rail_failure(RailFailure::Reroute);
    let mut sets = [&hosts.hub, &hosts.other].map(|host| {
        let mut set = P2pEndpointSet::build(&builder, &host.all(), 1 + LOST as u16).unwrap();
        assert!((0..=LOST).all(|number| set.add().unwrap() == number));
        set
    });
    let [well_here, well_there] = sets.each_mut().map(|set| set.get_mut(0).unwrap());
    p2p::connect_endpoints(well_here, well_there).unwrap();
    hosts.lose();
    let address = |number| sets[1].get(number).unwrap().address();
    let addresses: Vec<_> = (0..=LOST).map(address).collect();
    let begin = Instant::now();
    for (number, address) in addresses.iter().enumerate().skip(1) {
        let lost = sets[0].get_mut(number).unwrap();
        assert_eq!(lost.try_connect(address), Ok(false));
    }
    send(&hosts, &mut sets);
    // One goes meanwhile.
    sets[0].give_up(LOST, LONG).unwrap();
    sets[0].remove(LOST).unwrap();
    for (number, address) in addresses.iter().enumerate().take(LOST).skip(1) {
        let lost = sets[0].get_mut(number).unwrap();
        let error = until(|| lost.try_connect(address)).unwrap_err();
        assert!(matches!(error, P2pConnectError::Modify { end: End::Sender, queue_pair: 0, .. }));
        assert!(error.may_pass());
    }
    hosts.find();
    assert_eq!(sets[0].get_mut(1).unwrap().try_connect(&addresses[1]), Ok(true));
    send(&hosts, &mut sets);
    drop(sets);
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}
