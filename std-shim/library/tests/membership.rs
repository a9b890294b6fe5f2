//! Virtual queue pairs that come to a set and leave it, while the others work.

mod fixture;

use fixture::{Host, LONG};
use polyrail::endpoint::{BuildError, EndpointBuilder, EndpointQp, EndpointSet, connect_endpoints};
use polyrail::hardware::CompletionQueue as _;
use polyrail::nic::{DeviceConfig, DeviceLimits, Fabric, ProtectionDomain};
use polyrail::progress::ProgressThread;
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_cq::TooManyCqs;
use polyrail::virtual_qp::QpState;
use std::time::Instant;

const LENGTH: u32 = 5000;

/// A set on each side, whose virtual queue pairs of the same number are connected.
struct Sides {
    near: Host,
    far: Host,
    sets: [EndpointSet; 2],
}

impl Sides {
    fn new(devices: usize, members: &[(EndpointBuilder, &[usize])]) -> Self {
        let fabric = Fabric::threaded();
        let [near, far] =
            ["near", "far"].map(|name| Host::new(&fabric, name, devices, LENGTH as usize));
        let mut sets = [near.set(members), far.set(members)];
        let [a, b] = &mut sets;
        fixture::connect_sets(a, b);
        Self { near, far, sets }
    }

    /// Adds one to both sets, connected.
    fn add(&mut self, builder: EndpointBuilder, devices: &[usize]) -> usize {
        let Self { near, far, sets: [a, b] } = self;
        let on = |host: &Host, set: &mut EndpointSet| {
            let domains: Vec<_> = devices.iter().map(|at| &host.domains[*at]).collect();
            set.add(builder, &domains).unwrap()
        };
        let numbers = [on(near, a), on(far, b)];
        assert_eq!(numbers[0], numbers[1]);
        self.connect(numbers[0]);
        numbers[0]
    }

    fn connect(&mut self, number: usize) {
        let [a, b] = self.sets.each_mut().map(|set| set.get_mut(number).unwrap());
        connect_endpoints(a, b).unwrap();
    }

    /// A request over one of them, from post to notification.
    fn carries(&mut self, number: usize) {
        let keys = self.near.buffer.toward(&self.far.buffer.remote()).unwrap();
        let [a, b] = &mut self.sets;
        b.get_mut(number).unwrap().post_recv(&RecvWr::notification(1)).unwrap();
        let local = self.near.buffer.local(0, LENGTH).unwrap();
        let wr = SendWr::write_with_imm(2, local, self.far.buffer.addr(), 3, &keys);
        a.get_mut(number).unwrap().post_send(&wr).unwrap();
        for (set, wr_id) in [(0, 2), (1, 1)] {
            let wc = self.next(set);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS), "of {number}");
            assert_eq!(self.sets[set].number_of(wc.qp_num), Some(number));
        }
    }

    /// The next completion of one side; both are polled.
    fn next(&mut self, set: usize) -> polyrail::virtual_cq::VirtualWc {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < LONG);
            let mut next = None;
            let polled = self.sets[set].poll_with(1, |event| next = event.completion());
            assert_eq!(polled.error, None);
            if let Some(wc) = next {
                return wc;
            }
            // The other side's requests go on; what it has to report stays for later.
            _ = self.sets[1 - set].poll_with(0, |_| ());
        }
    }
}

#[test]
fn members_come_and_go_while_the_others_work() {
    let builder = EndpointBuilder::new().max_msg_size(1024);
    let mut sides = Sides::new(2, &[(builder, &[0]), (builder.rails(1), &[0])]);
    // On a device that the sets have not had, and on the old one: its queue becomes longer.
    assert_eq!(sides.add(builder, &[0, 1]), 2);
    let capacity = sides.sets[0].virtual_cq().cqs()[0].capacity();
    for number in 3..20 {
        assert_eq!(sides.add(builder.rails(1 + number % 4), &[number % 2]), number);
    }
    assert!(sides.sets[0].virtual_cq().cqs()[0].capacity() > capacity);
    (0..20).for_each(|number| sides.carries(number));
    // Some leave, and new ones get their numbers, the lowest first.
    for number in [4, 0, 7] {
        let old = sides.sets.each_mut().map(|set| set.remove(number).unwrap());
        drop(old);
        assert!(sides.sets.iter_mut().all(|set| set.remove(number).is_none()));
        assert!(sides.sets[0].get(number).is_none());
    }
    assert_eq!(sides.sets[0].len(), 17);
    sides.carries(5);
    assert_eq!([0; 3].map(|_| sides.add(builder, &[1])), [0, 4, 7]);
    (0..20).for_each(|number| sides.carries(number));
    assert!(sides.sets.iter().all(|set| set.qps().all(|qp| qp.first_error().is_none())));
}

#[test]
fn one_in_error_is_replaced_while_the_others_work() {
    let builder = EndpointBuilder::new().max_msg_size(1024);
    let mut sides = Sides::new(2, &[(builder, &[0, 1]), (builder, &[0, 1]), (builder, &[1])]);
    for _ in 0..50 {
        for set in 0..2 {
            let member = sides.sets[set].get_mut(1).unwrap();
            member.post_recv(&RecvWr::notification(9)).unwrap();
            member.fail();
            let flushed = sides.next(set);
            assert_eq!((flushed.wr_id, flushed.status), (9, WcStatus::WR_FLUSH_ERR));
        }
        sides.carries(0);
        let Sides { near, far, sets } = &mut sides;
        for (host, set) in [near, far].into_iter().zip(sets) {
            let old = set.rebuild(1, builder, &host.all()).unwrap();
            assert_eq!(old.state(), QpState::Error);
            assert_eq!(set.number_of(old.virtual_qp().virtual_qp_num()), None);
        }
        sides.connect(1);
        (0..3).for_each(|number| sides.carries(number));
    }
}

#[test]
fn what_leaves_takes_its_routes_along_and_keeps_its_requests() {
    let builder = EndpointBuilder::new();
    let mut sides = Sides::new(1, &[(builder, &[0]), (builder.rails(1), &[0])]);
    for number in [0, 1] {
        let member = sides.sets[0].get_mut(number).unwrap();
        member.post_recv(&RecvWr::notification(1)).unwrap();
        let left = sides.sets[0].remove(number).unwrap();
        left.virtual_qp().rails().for_each(|qp| qp.to_error().unwrap());
        left.virtual_qp().notify_qp().into_iter().for_each(|qp| qp.to_error().unwrap());
        let batch = sides.sets[0].poll(16);
        assert_eq!((batch.completions.len(), batch.foreign.len()), (0, 1), "of {number}");
        assert_eq!(batch.error, None);
    }
    assert!(sides.sets[0].is_empty());
}

#[test]
fn what_cannot_be_added_changes_nothing() {
    let fabric = Fabric::threaded();
    let limits = DeviceLimits { max_cqe: 4000, ..DeviceLimits::default() };
    let device = DeviceConfig { limits, ..DeviceConfig::named("small") };
    let small = fabric.create_device(device).alloc_pd().unwrap();
    let domain = |n| fabric.create_device(DeviceConfig::named(format!("nic{n}"))).alloc_pd();
    let others: Vec<_> = (0..8).map(|n| domain(n).unwrap()).collect();
    let builder = EndpointBuilder::new();
    let one = builder.rails(1);
    let mut set = EndpointSet::<_, _, 16>::with_routes([(builder, [&small])]).unwrap();
    let text = |refused: BuildError| polyrail::chain::Chain(&refused).to_string();
    // Four rails and a notify queue pair, of 256 entries each; twelve routes.
    assert_eq!(set.add(builder, &[&small]), Ok(1));
    let refused = set.add(builder, &[&small]).unwrap_err();
    assert_eq!(refused, BuildError::QueuePairs { needed: 15, max: 12, routes: 16 });
    let refused = set.rebuild(2, builder, &[&small]).unwrap_err();
    assert_eq!(refused, BuildError::NoMember { number: 2, count: 2 });
    // Room for both, the old one and the new one, is asked for, and the device has none.
    let refused = set.rebuild(1, builder, &[&small]).unwrap();
    drop(refused);
    let refused = set.rebuild(1, builder.rails(6), &[&small]).unwrap_err();
    assert!(text(refused).contains("at most 4000"));
    assert_eq!(set.rebuild(1, one, &[&others[0]]).map(|_| ()), Ok(()));
    assert_eq!(set.len(), 2);
    let no_rails = BuildError::Rails { rails: 9, max: 8 };
    assert_eq!(set.add(builder.rails(9), &[&small]), Err(no_rails));
    // One completion queue for each device.
    let mut eight = EndpointSet::build(others.iter().map(|domain| (one, [domain]))).unwrap();
    assert_eq!(eight.add(one, &[&small]), Err(BuildError::Cqs(TooManyCqs { max: 8 })));
    assert_eq!(eight.len(), 8);
}

#[test]
fn a_thread_reports_which_numbers_are_taken() {
    let fabric = Fabric::threaded();
    let host = Host::new(&fabric, "host", 1, 64);
    let mut set = host.set(&[(EndpointBuilder::new(), [0].as_slice()); 3]);
    drop(set.remove(1));
    let thread = ProgressThread::spawn(set).unwrap();
    let there = [0, 1, 2, 3].map(|number| thread.handle(number).is_some());
    assert_eq!(there, [true, false, true, false]);
    let pending = thread.handle(2).unwrap().post_recv(&RecvWr::notification(1)).unwrap();
    let set = thread.shutdown().unwrap();
    assert_eq!(pending.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(set.qps().map(EndpointQp::unreported).collect::<Vec<_>>(), [0, 0]);
    assert!(set.get(1).is_none());
}

/// What a thousand take: the figures in the docs of sets.
#[test]
fn a_thousand_members_fit_in_a_set() {
    let fabric = Fabric::threaded();
    let domains: [ProtectionDomain; 2] =
        ["a", "b"].map(|name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap());
    let [a, b] = &domains;
    let begin = Instant::now();
    let members = (0..1000).map(|_| (EndpointBuilder::new(), [a, b]));
    let mut set = EndpointSet::build(members).unwrap();
    println!("a thousand members: {:?}", begin.elapsed());
    assert_eq!(set.len(), 1000);
    let added = set.add(EndpointBuilder::new(), &[a, b]);
    assert_eq!(added, Ok(1000));
    let last = set.get_mut(1000).unwrap();
    last.post_recv(&RecvWr::notification(7)).unwrap();
    last.fail();
    let flushed = set.poll(16).completions;
    assert_eq!(flushed.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
}
