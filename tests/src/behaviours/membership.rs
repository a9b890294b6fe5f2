//! Virtual queue pairs that come to a set, leave it and are replaced, while the others work; their
//! completion queues grow. And endpoints that are polled in all ways.

use super::hosts::{EndpointOf, Host, Route, SetOf, connect, ended, hosts};
use super::{End, Fixture, LIMIT};
use polyrail::backend::Domain;
use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
use polyrail_core::hardware::CompletionQueue as _;
use polyrail_core::verbs::{Completion, RecvWr, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::{QpState, Scheme};
use std::mem::MaybeUninit;
use std::time::Instant;

/// Sets of both ends, whose members of the same number are connected.
struct Sets<F: Fixture> {
    hosts: [Host<F>; 2],
    sets: [SetOf<F>; 2],
    route: Route,
    /// Of each set, what came and was not looked at, with the numbers of members.
    came: [Vec<(usize, u64, WcStatus)>; 2],
}

impl<F: Fixture> Sets<F> {
    fn new(fixture: &F, builder: EndpointBuilder, members: usize) -> Self {
        let hosts = hosts(fixture);
        let mut sets = hosts.each_ref().map(|host| host.set(builder, members));
        (0..members).for_each(|number| connect::<F>(&mut sets, number));
        let route = hosts[0].route(&hosts[1]);
        Self { hosts, sets, route, came: [const { Vec::new() }; 2] }
    }

    /// Has a member write, without polling.
    fn write(&mut self, number: usize) {
        let [near, far] = self.sets.each_mut().map(|set| set.get_mut(number).expect("a member"));
        far.post_recv(&RecvWr::notification(1)).expect("room");
        near.post_send(&self.route.notify(2)).expect("room");
    }

    /// The next completion of a member; both sets are polled.
    fn next(&mut self, which: usize, number: usize) -> (u64, WcStatus) {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.came[which].iter().position(|came| came.0 == number) {
                let (_, wr_id, status) = self.came[which].remove(at);
                return (wr_id, status);
            }
            assert!(begin.elapsed() < LIMIT, "no completion of {number}");
            for (set, came) in self.sets.iter_mut().zip(&mut self.came) {
                let batch = set.poll(16);
                assert_eq!(batch.error, None);
                // A device may report what was posted to a queue pair that has left and was
                // destroyed.
                let is_of_gone =
                    |foreign: &(_, Completion)| foreign.1.status == WcStatus::WR_FLUSH_ERR;
                assert!(batch.foreign.iter().all(is_of_gone), "{:?}", batch.foreign);
                came.extend(batch.completions.into_iter().map(|completion| {
                    let (wr_id, status) = ended(completion);
                    (set.number_of(completion.qp_num).expect("of a member"), wr_id, status)
                }));
            }
        }
    }

    fn finish(&mut self, number: usize) {
        for (which, wr_id) in [(0, 2), (1, 1)] {
            assert_eq!(self.next(which, number), (wr_id, WcStatus::SUCCESS), "of {number}");
        }
    }

    fn add(&mut self, builder: EndpointBuilder) -> usize {
        let add = |at: usize, set: &mut SetOf<F>| {
            set.add(builder, &self.hosts[at].domains()).expect("room for one more")
        };
        let [near, far] = &mut self.sets;
        let number = add(0, near);
        assert_eq!(add(1, far), number);
        connect::<F>(&mut self.sets, number);
        number
    }
}

pub(super) fn members_come_go_and_are_replaced_while_others_work<F: Fixture>(fixture: &F) {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let builder = EndpointBuilder::new().rails(2).scheme(scheme);
        let mut sets = Sets::new(fixture, builder, 2);
        // One comes.
        sets.write(0);
        assert_eq!(sets.add(builder), 2);
        sets.finish(0);
        sets.write(2);
        sets.finish(2);
        // One fails, and another takes its place.
        sets.write(0);
        for which in 0..2 {
            let member = sets.sets[which].get_mut(1).expect("a member");
            member.post_recv(&RecvWr::notification(9)).expect("room");
            member.fail();
        }
        sets.finish(0);
        for which in 0..2 {
            assert_eq!(sets.next(which, 1), (9, WcStatus::WR_FLUSH_ERR));
        }
        sets.write(0);
        for (host, set) in sets.hosts.iter().zip(&mut sets.sets) {
            let old = set.rebuild(1, builder, &host.domains()).expect("room for both");
            assert_eq!(old.state(), QpState::Error);
        }
        connect::<F>(&mut sets.sets, 1);
        sets.finish(0);
        sets.write(1);
        sets.finish(1);
        // One goes, and the next has its number.
        sets.write(2);
        for set in &mut sets.sets {
            drop(set.remove(0).expect("a member"));
        }
        sets.finish(2);
        assert_eq!(sets.add(builder.rails(1)), 0);
        for number in 0..3 {
            sets.write(number);
            sets.finish(number);
        }
    }
}

pub(super) fn a_completion_queue_grows_and_keeps_what_it_holds<F: Fixture>(fixture: &F) {
    let domain = &fixture.open(End::Near)[0];
    let mut cq = domain.create_cq(4).expect("a completion queue");
    for capacity in [5, 100, 1000] {
        domain.resize_cq(&mut cq, capacity).expect("a device that can");
        assert!(cq.capacity() >= capacity);
    }
    let builder = EndpointBuilder::new().rails(1);
    let mut sets = Sets::new(fixture, builder, 1);
    let capacity = |sets: &Sets<F>| sets.sets[0].virtual_cq().cqs()[0].capacity();
    let before = capacity(&sets);
    // The receiver's queue holds what the sender's completions prove to have arrived, when both
    // grow.
    const WRITES: usize = 5;
    (0..WRITES).for_each(|_| sets.write(0));
    let mut written = 0;
    let begin = Instant::now();
    while written < WRITES {
        written += sets.sets[0].poll(16).completions.len();
        assert!(begin.elapsed() < LIMIT, "{written}");
    }
    while capacity(&sets) == before {
        sets.add(builder);
    }
    for _ in 0..WRITES {
        assert_eq!(sets.next(1, 0), (1, WcStatus::SUCCESS));
    }
    (0..sets.sets[0].len()).for_each(|number| {
        sets.write(number);
        sets.finish(number);
    });
}

/// How an owner takes completions.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// From one queue after the other.
    Queues,
    /// Event by event, from all queues.
    One,
    /// The owner polls the queues itself, and feeds what it found.
    Fed,
}

/// The next completion of an endpoint, of its parts.
fn taken<F: Fixture>(endpoint: &mut EndpointOf<F>, way: Way) -> (u64, WcStatus) {
    let begin = Instant::now();
    let (qp, cq) = endpoint.parts_mut();
    for at in (0..cq.cqs().len()).cycle() {
        let mut came = None;
        let mut see = |event: Event| came = Some(event.completion().expect("of this endpoint"));
        match way {
            Way::Queues => assert_eq!(cq.poll_cq(at, qp, 1, see).error, None),
            Way::One => {
                let (event, polled) = cq.poll_one(qp);
                assert_eq!(polled.error, None);
                event.into_iter().for_each(see);
            }
            Way::Fed => {
                let mut out = [MaybeUninit::uninit()];
                let queue = &mut cq.cqs_mut()[at];
                let device = queue.device();
                let completions =
                    queue.poll(&mut out).expect("a working completion queue").to_vec();
                // SAFETY: polled from a queue of this device, and fed once, in order.
                let events = unsafe { cq.feed(qp, device, &completions, &mut see) };
                assert_eq!(events, usize::from(came.is_some()));
            }
        }
        if let Some(completion) = came {
            return ended(completion);
        }
        assert!(begin.elapsed() < LIMIT, "nothing by {way:?}");
    }
    unreachable!("there is a queue")
}

pub(super) fn completions_of_an_endpoint_are_taken_in_all_ways<F: Fixture>(fixture: &F) {
    let hosts = hosts(fixture);
    let mut ends = hosts.each_ref().map(|host| host.endpoint(EndpointBuilder::new().rails(2)));
    let [near, far] = &mut ends;
    connect_endpoints(near, far).expect("ends that reach each other");
    let route = hosts[0].route(&hosts[1]);
    for (wr_id, way) in (0..).zip([Way::Queues, Way::One, Way::Fed]) {
        far.post_recv(&RecvWr::notification(wr_id)).expect("room");
        near.post_send(&route.notify(wr_id)).expect("room");
        for end in [&mut *near, &mut *far] {
            assert_eq!(taken::<F>(end, way), (wr_id, WcStatus::SUCCESS), "{way:?}");
        }
    }
}
