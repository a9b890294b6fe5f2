//! Many virtual queue pairs on the same completion queues, polled together.

mod fixture;

use fixture::{Host, Shape, connect_sets};
use polyrail::endpoint::{
    BuildError, Endpoint, EndpointBuilder, EndpointError, EndpointSet, StallWatch,
};
use polyrail::link::{Hello, Link, Message, bring_up};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{self, Device, DeviceConfig, Fabric, Fault, ProtectionDomain, When};
use polyrail::verbs::{DeviceKeys, RecvWr, SendWr, WcStatus};
use polyrail::virtual_cq::TooManyCqs;
use polyrail::virtual_qp::{PostSendError, QpState, Scheme};
use polyrail_core::hardware::CompletionQueue;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Bytes of a request: more fragments than there are rails.
const LENGTH: u32 = 5000;

/// Domains and memory of one side, each on two devices.
struct Side {
    domains: Vec<ProtectionDomain>,
    buffer: RegisteredBuffer,
    set: EndpointSet,
}

impl Side {
    fn new(fabric: &Fabric, name: &str, builders: &[Shape<'_>]) -> Self {
        let host = Host::new(fabric, name, 2, LENGTH as usize);
        let set = host.set(builders);
        let Host { domains, buffer, .. } = host;
        Self { domains, buffer, set }
    }

    fn device(&self, at: usize) -> &Device {
        self.domains[at].device()
    }
}

/// Two sides whose virtual queue pairs are connected, by number.
struct Pair {
    fabric: Fabric,
    near: Side,
    far: Side,
    keys: Vec<DeviceKeys>,
}

/// Different in all that can differ.
fn mixed() -> Vec<Shape<'static>> {
    let builder = EndpointBuilder::new().max_msg_size(1024);
    let dqplb = builder.scheme(Scheme::Dqplb).max_msg_size(2048);
    vec![
        (builder.rails(4), &[0, 1]),
        (builder.rails(1), &[0]),
        (dqplb.rails(3), &[0, 1]),
        (builder.rails(2), &[1]),
        (dqplb.rails(8), &[0]),
        (builder.rails(1), &[1]),
    ]
}

impl Pair {
    fn new(builders: &[Shape<'_>]) -> Self {
        let fabric = Fabric::deterministic(7);
        let mut near = Side::new(&fabric, "near", builders);
        let mut far = Side::new(&fabric, "far", builders);
        connect_sets(&mut near.set, &mut far.set);
        let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
        Self { fabric, near, far, keys }
    }

    fn write(&mut self, qp: usize, wr_id: u64) -> Result<(), PostSendError> {
        let local = self.near.buffer.local(0, LENGTH).unwrap();
        let wr = SendWr::write(wr_id, local, self.far.buffer.addr(), &self.keys);
        self.near.set.get_mut(qp).unwrap().post_send(&wr)
    }
}

#[test]
fn each_completion_names_its_queue_pair() {
    let builders = mixed();
    let mut pair = Pair::new(&builders);
    assert_eq!(pair.near.set.virtual_cq().cqs().len(), 2);
    for round in 0..20 {
        for qp in 0..builders.len() {
            // The same names everywhere.
            pair.write(qp, round).unwrap();
            pair.far.set.get_mut(qp).unwrap().post_recv(&RecvWr::notification(round)).unwrap();
        }
    }
    let mut next = vec![0; builders.len()];
    while next != vec![20; builders.len()] {
        assert!(pair.fabric.step().is_some(), "{next:?}");
        let batch = pair.near.set.poll(16);
        assert_eq!((batch.foreign, batch.error), (vec![], None));
        for wc in batch.completions {
            let qp = pair.near.set.number_of(wc.qp_num).unwrap();
            assert_eq!((wc.wr_id, wc.status), (next[qp], WcStatus::SUCCESS), "{qp}");
            next[qp] += 1;
        }
    }
    assert!(pair.near.set.number_of(0).is_none());
    pair.near.set.virtual_cq().invariants();
}

#[test]
fn no_queue_pair_starves() {
    /// Requests that each keeps outstanding.
    const OUTSTANDING: u64 = 20;
    let builders = mixed();
    let all = OUTSTANDING * builders.len() as u64;
    for (budget, polls) in [(1, 500), (8, 100)] {
        let mut pair = Pair::new(&builders);
        for qp in 0..builders.len() {
            (0..OUTSTANDING).for_each(|wr_id| pair.write(qp, wr_id).unwrap());
        }
        let mut served = vec![0; builders.len()];
        let mut full = 0;
        for now in 0..polls {
            pair.fabric.run_until_idle(1000);
            _ = pair.far.set.poll(1000);
            let batch = pair.near.set.poll(budget);
            full += u64::from(batch.completions.len() == budget);
            for wc in batch.completions {
                let qp = pair.near.set.number_of(wc.qp_num).unwrap();
                served[qp] = now;
                pair.write(qp, wc.wr_id).unwrap();
            }
            for (qp, last) in served.iter().enumerate() {
                // Twice the time that it takes to serve whatever else is outstanding.
                let waited = (now - last) * budget as u64;
                assert!(waited < 2 * all, "{qp} waits for too long, budget {budget}");
            }
        }
        assert!(full > polls * 9 / 10, "the budget was enough in all but {full} of {polls} polls");
    }
}

#[test]
fn the_queues_hold_everything_that_can_be_in_flight() {
    let builders = &mixed()[..3];
    let mut pair = Pair::new(builders);
    let mut posted = vec![0; builders.len()];
    let mut flushed = HashMap::new();
    for (qp, posted) in posted.iter_mut().enumerate() {
        while pair.write(qp, 1).is_ok() {
            *posted += 1;
        }
        let receive = RecvWr::notification(2);
        while pair.near.set.get_mut(qp).unwrap().post_recv(&receive).is_ok() {
            *posted += 1;
        }
        pair.near.set.get_mut(qp).unwrap().fail();
    }
    pair.fabric.run_until_idle(u64::MAX);
    loop {
        let batch = pair.near.set.poll(1000);
        assert_eq!(batch.error, None);
        if batch.completions.is_empty() {
            break;
        }
        for wc in batch.completions {
            assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR);
            *flushed.entry(pair.near.set.number_of(wc.qp_num).unwrap()).or_insert(0) += 1;
        }
        pair.fabric.run_until_idle(u64::MAX);
    }
    assert!(posted.iter().all(|posted| *posted >= 200), "{posted:?}");
    assert_eq!(flushed, posted.into_iter().enumerate().collect());
}

#[test]
fn one_that_fails_is_explained_and_costs_the_others_nothing() {
    let single = EndpointBuilder::new().rails(1);
    let mut pair = Pair::new(&[(single, &[0]), (single, &[1]), (single.rails(2), &[0])]);
    pair.near.device(1).inject(When::Now, Fault::LinkDown);
    (0..3).for_each(|qp| pair.write(qp, 5).unwrap());
    let mut statuses = HashMap::new();
    while statuses.len() < 3 {
        assert!(pair.fabric.step().is_some());
        for wc in pair.near.set.poll(16).completions {
            statuses.insert(pair.near.set.number_of(wc.qp_num).unwrap(), wc.status);
        }
        _ = pair.far.set.poll(16);
    }
    assert_eq!(statuses[&0], WcStatus::SUCCESS);
    assert_eq!(statuses[&1], WcStatus::RETRY_EXC_ERR);
    assert_eq!(statuses[&2], WcStatus::SUCCESS);
    let qps: Vec<_> = pair.near.set.qps().collect();
    let states: Vec<_> = qps.iter().map(|qp| qp.state()).collect();
    assert_eq!(states, [QpState::Ready, QpState::Error, QpState::Ready]);
    let errors: Vec<_> = qps.iter().map(|qp| qp.rail_reports()[0].errors).collect();
    assert_eq!(errors, [0, 1, 0]);
    let text = pair.near.set.get_mut(1).unwrap().explain(WcStatus::RETRY_EXC_ERR).to_string();
    assert!(
        text.starts_with("rail 0 (device near1, queue pair 17) failed: RETRY_EXC_ERR"),
        "{text}"
    );
}

#[test]
fn one_that_falls_silent_is_found() {
    const SILENCE: Duration = Duration::from_millis(40);
    let mut pair = Pair::new(&[(EndpointBuilder::new(), &[0]), (EndpointBuilder::new(), &[1])]);
    pair.near.device(1).inject(When::Now, Fault::Silent(true));
    (0..2).for_each(|qp| pair.write(qp, 5).unwrap());
    let mut watches = [const { StallWatch::new(SILENCE) }; 2];
    let mut reported = [0; 2];
    let begin = Instant::now();
    let error = loop {
        pair.fabric.run_until_idle(1000);
        for wc in pair.near.set.poll(16).completions {
            reported[pair.near.set.number_of(wc.qp_num).unwrap()] += 1;
        }
        _ = pair.far.set.poll(16);
        let Some([first, second]) = pair.near.set.get_disjoint_mut([0, 1]) else { panic!("two") };
        assert_eq!(watches[0].check(first, 1, reported[0]), Ok(()));
        if let Err(error) = watches[1].check(second, 1, reported[1]) {
            break error;
        }
        assert!(begin.elapsed() < fixture::LONG);
    };
    assert!(matches!(error, EndpointError::Silent { device, .. } if device == "near1"));
    assert_eq!(reported, [1, 0]);
}

#[test]
fn each_is_brought_up_over_a_control_connection() {
    let builders = mixed();
    let fabric = Fabric::deterministic(3);
    let [mut near, mut far] = ["near", "far"].map(|name| Side::new(&fabric, name, &builders));
    let (here, there): (Vec<_>, Vec<_>) = builders.iter().map(|_| Link::pair().unwrap()).unzip();
    std::thread::scope(|scope| {
        scope.spawn(|| bring_all_up(&mut far, there));
        bring_all_up(&mut near, here);
    });
    let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
    let local = near.buffer.local(0, LENGTH).unwrap();
    for qp in near.set.qps_mut() {
        let wr = SendWr::write_with_imm(1, local, far.buffer.addr(), 7, &keys);
        qp.post_send(&wr).unwrap();
    }
    let mut notified = Vec::new();
    while notified.len() < builders.len() {
        assert!(fabric.step().is_some());
        _ = near.set.poll(16);
        notified.extend(far.set.poll(16).completions.iter().map(|wc| (wc.qp_num, wc.wr_id)));
    }
    notified.sort_unstable();
    let expected = far.set.qps().map(|qp| (qp.virtual_qp().virtual_qp_num(), 3));
    assert!(notified.into_iter().eq(expected));
}

/// Brings every virtual queue pair up, with a receive, and meets the peer's of the same number.
fn bring_all_up(side: &mut Side, controls: Vec<Link>) {
    let buffer = side.buffer.remote();
    for (qp, mut control) in side.set.qps_mut().zip(controls) {
        let endpoint = qp.address();
        let buffer = buffer.clone();
        let hello = Hello { reach: endpoint.into(), buffer, purpose: None, session: None };
        control.send(&Message::Hello(hello)).unwrap();
        let peer = control.expect_hello().unwrap();
        let up = bring_up(qp, &mut control, &peer, |qp| {
            Ok::<_, Box<dyn std::error::Error>>(qp.post_recv(&RecvWr::notification(3))?)
        });
        up.unwrap();
    }
}

#[test]
fn those_on_a_broken_queue_are_known() {
    let builder = EndpointBuilder::new().rails(2);
    let mut pair = Pair::new(&[(builder, &[0]), (builder, &[1]), (builder, &[0, 1])]);
    pair.near.device(1).inject(When::Now, Fault::DeviceGone);
    let error = pair.near.set.poll(16).error.unwrap();
    let concerned: Vec<_> = pair.near.set.qps().map(|qp| qp.completes_on(error.cq)).collect();
    assert_eq!(concerned, [false, true, true]);
    let text = pair.near.set.get(2).unwrap().queue_error(error).to_string();
    let expected = "completion queue of device near1: polling failed: No such device (os error 19)";
    assert_eq!(text, expected);
}

#[test]
fn a_set_that_is_too_large_is_refused() {
    type Small = EndpointSet<nic::QueuePair, nic::CompletionQueue, 16>;
    let fabric = Fabric::threaded();
    let domain = |n| fabric.create_device(DeviceConfig::named(format!("nic{n}"))).alloc_pd();
    let domains: Vec<_> = (0..9).map(|n| domain(n).unwrap()).collect();
    let builder = EndpointBuilder::new();
    let two = |builder| Small::with_routes([(builder, [&domains[0]]), (builder, [&domains[1]])]);
    // Four rails and a notify queue pair each, and three quarters of 16 places.
    assert_eq!(two(builder).unwrap().len(), 2);
    assert_eq!(two(builder.scheme(Scheme::Dqplb).rails(6)).unwrap().len(), 2);
    let refused = two(builder.rails(6)).unwrap_err();
    assert_eq!(refused, BuildError::QueuePairs { needed: 14, max: 12, routes: 16 });
    let expected = "14 queue pairs, but a set with ROUTES = 16 has room for 12: with ROUTES = 32 there is enough";
    assert_eq!(refused.to_string(), expected);
    // One completion queue for each device.
    let single = domains.iter().map(|domain| (builder.rails(1), [domain]));
    let refused = EndpointSet::build(single).unwrap_err();
    assert_eq!(refused, BuildError::Cqs(TooManyCqs { max: 8 }));
    // An invalid member makes the set invalid.
    let refused = two(builder.rails(9)).unwrap_err();
    assert_eq!(refused, BuildError::Rails { rails: 9, max: 8 });
}

#[test]
fn a_device_that_is_named_twice_has_one_queue() {
    let fabric = Fabric::threaded();
    let device = fabric.create_device(DeviceConfig::named("nic"));
    let domains = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
    let builder = EndpointBuilder::new().rails(1);
    let members = domains.iter().map(|domain| (builder, [domain]));
    let set = EndpointSet::build(members).unwrap();
    let [cq] = set.virtual_cq().cqs() else { panic!("one") };
    assert!(set.qps().all(|qp| qp.completes_on(cq.id())));
}

#[test]
fn an_endpoint_is_a_set_of_one() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
    let endpoint: Endpoint = EndpointBuilder::new().build(&[&domain]).unwrap();
    let number = endpoint.virtual_qp().virtual_qp_num();
    let mut set = EndpointSet::from(endpoint);
    assert_eq!(set.number_of(number), Some(0));
    set.get_mut(0).unwrap().post_recv(&RecvWr::notification(3)).unwrap();
    set.get_mut(0).unwrap().fail();
    let flushed = loop {
        if let Some(flushed) = set.poll(16).completions.pop() {
            break flushed;
        }
    };
    assert_eq!((flushed.wr_id, flushed.qp_num), (3, number));
}

#[test]
fn an_empty_set_reports_nothing() {
    let mut set = EndpointSet::build::<ProtectionDomain, [&ProtectionDomain; 0]>([]).unwrap();
    assert_eq!(set.poll(16), Default::default());
    assert!(set.is_empty());
}

#[test]
fn a_set_of_the_usual_size_needs_no_type_and_little_stack() {
    /// Three quarters of what threads get.
    const STACK_BYTES: usize = 3 << 19;
    let build = || {
        let fabric = Fabric::threaded();
        let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
        let members = (0..64).map(|_| (EndpointBuilder::new(), [&domain]));
        EndpointSet::build(members).unwrap().len()
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(build).unwrap();
    assert_eq!(thread.join().unwrap(), 64);
}
