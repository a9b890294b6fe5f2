//! Sets of members whose messages go one way: as many as a set is made for, all at once.

mod fixture;

use fixture::{Host, LONG, impatient};
use polyrail::nic::{DeviceConfig, Fabric, Fault, When};
use polyrail::p2p::{
    End, P2pBuildError, P2pBuilder, P2pEndpointSet, P2pMember, RecvBuffer, connect_endpoints,
};
use polyrail::virtual_qp::{RailFailure, RailState};
use std::time::Instant;

const MEMBERS: u16 = 20;
const LENGTH: usize = 1000;

/// Two sets on two devices each, the i-th members connected.
struct Sets {
    hosts: [Host; 2],
    senders: P2pEndpointSet,
    receivers: P2pEndpointSet,
    numbers: Vec<(usize, usize)>,
}

impl Sets {
    fn new(builder: P2pBuilder) -> Self {
        let fabric = Fabric::threaded();
        let bytes = LENGTH * usize::from(MEMBERS);
        let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, 2, bytes));
        let build = |at: usize, end| {
            P2pEndpointSet::build(&builder.only(Some(end)), &hosts[at].all(), MEMBERS).unwrap()
        };
        let (senders, receivers) = (build(0, End::Sender), build(1, End::Receiver));
        Self { hosts, senders, receivers, numbers: Vec::new() }
    }

    fn add_all(&mut self) {
        let Self { senders, receivers, numbers, .. } = self;
        for _ in 0..MEMBERS {
            let (from, to) = (senders.add().unwrap(), receivers.add().unwrap());
            let to_member = receivers.get_mut(to).unwrap();
            connect_endpoints(senders.get_mut(from).unwrap(), to_member).unwrap();
            numbers.push((from, to));
        }
        for set in [senders, receivers] {
            assert_eq!(set.add(), Err(P2pBuildError::Members { most: MEMBERS }));
        }
    }

    fn poll(&mut self) {
        self.senders.poll(64).check().unwrap();
        self.receivers.poll(64).check().unwrap();
    }

    /// A message of each member's own bytes, all at a time.
    fn exchange(&mut self) {
        let keys = self.hosts.each_ref().map(|host| host.buffer.own_keys());
        let numbers = self.numbers.clone();
        let begin = Instant::now();
        let mut receives = Vec::new();
        for &(from, to) in &numbers {
            self.hosts[0].buffer.fill(from * LENGTH, LENGTH, from as u8 + 1).unwrap();
            let local = self.hosts[1].buffer.local(to * LENGTH, LENGTH as u32).unwrap();
            let offered = [RecvBuffer { local, tag: 1, keys: &keys[1] }];
            receives.push(loop {
                match self.receivers.get_mut(to).unwrap().irecv(&offered) {
                    Err(error) if error.is_not_now() => self.poll(),
                    receive => break receive.unwrap(),
                }
                assert!(begin.elapsed() < LONG);
            });
        }
        let mut sends = vec![None; numbers.len()];
        let mut open = numbers.len();
        while open > 0 {
            assert!(begin.elapsed() < LONG, "{open} have not sent");
            for (&(from, _), send) in numbers.iter().zip(&mut sends).filter(|(_, it)| it.is_none())
            {
                let local = self.hosts[0].buffer.local(from * LENGTH, LENGTH as u32).unwrap();
                match self.senders.get_mut(from).unwrap().isend(local, 1, &keys[0]) {
                    Err(error) if error.is_not_now() => (),
                    sent => (*send, open) = (Some(sent.unwrap()), open - 1),
                }
            }
            self.poll();
        }
        for ((&(from, to), send), receive) in numbers.iter().zip(sends).zip(receives) {
            while !self.senders.get_mut(from).unwrap().test_send(send.unwrap()).unwrap() {
                self.poll();
                assert!(begin.elapsed() < LONG);
            }
            while self.receivers.get_mut(to).unwrap().test_recv(receive).unwrap().is_none() {
                self.poll();
                assert!(begin.elapsed() < LONG);
            }
            let mut bytes = [0; LENGTH];
            self.hosts[1].buffer.read_at(to * LENGTH, &mut bytes).unwrap();
            assert_eq!(bytes, [from as u8 + 1; LENGTH]);
        }
    }

    fn is_whole(&self) -> bool {
        let works = |member: &P2pMember, end| {
            let state = |at| member.queue_pair_state(end, at).unwrap().0;
            (0..2).all(|at| state(at) == RailState::InService)
        };
        self.numbers.iter().all(|(from, to)| {
            works(self.senders.get(*from).unwrap(), End::Sender)
                && works(self.receivers.get(*to).unwrap(), End::Receiver)
        })
    }

    fn remove_all(&mut self) {
        for (from, to) in self.numbers.drain(..) {
            self.senders.give_up(from, LONG).unwrap();
            self.receivers.give_up(to, LONG).unwrap();
            assert_eq!(self.senders.remove(from), Ok(()));
            assert_eq!(self.receivers.remove(to), Ok(()));
        }
    }
}

#[test]
fn all_members_of_sets_go_one_way_at_once() {
    let mut sets = Sets::new(P2pBuilder::new().flushes(true));
    for _ in 0..3 {
        sets.add_all();
        (0..3).for_each(|_| sets.exchange());
        sets.remove_all();
    }
}

#[test]
fn links_of_either_side_fail_all_members_and_come_back() {
    let builder = P2pBuilder::new().rail_failure(RailFailure::Reroute).connect_options(impatient());
    let mut sets = Sets::new(builder);
    sets.add_all();
    for host in [0, 1] {
        let link = sets.hosts[host].devices[0].clone();
        link.inject(When::Now, Fault::LinkDown);
        sets.exchange();
        link.inject(When::Now, Fault::LinkUp);
        let begin = Instant::now();
        while !sets.is_whole() {
            sets.poll();
            assert!(begin.elapsed() < LONG);
        }
        sets.exchange();
    }
    sets.remove_all();
}

/// Three quarters of 256 routes, one for each queue pair; but at most as many members as there are
/// numbers.
#[test]
fn members_of_one_way_take_half_the_routes() {
    let ends = [End::Sender, End::Receiver];
    for (rails, fit) in [(1, 128), (2, 96)] {
        for end in ends {
            let hub = Fabric::threaded().create_device(DeviceConfig::named("hub"));
            let domain = hub.alloc_pd().unwrap();
            let builder = P2pBuilder::new().rails(rails).only(end);
            let mut set: P2pEndpointSet = P2pEndpointSet::build(&builder, &[&domain], 200).unwrap();
            let added = std::iter::from_fn(|| set.add().ok()).count();
            assert_eq!(added, fit, "{rails} rails, {end}: {:?}", set.add());
            set.give_up(0, LONG).unwrap();
            assert_eq!(set.remove(0), Ok(()));
            assert_eq!(set.add(), Ok(0));
        }
    }
}
