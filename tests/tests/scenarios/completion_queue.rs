//! The virtual completion queue: attaching, fairness, feeding, moving, sets of several sizes.

use polyrail_core::hardware::QpLimits;
use polyrail_core::internals::{Tag, TagKind};
use polyrail_core::verbs::{Completion, DeviceId, RecvWr, SendFlags, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::RouteError;
use polyrail_core::virtual_cq::{
    AttachError, CompletionTarget, Event, TooManyCqs, VirtualCq, VirtualWc,
};
use polyrail_core::virtual_qp::{BuildError, Config, RailId};
use polyrail_tests::rig::{self, Rig, Setup, TestCq, TestQp, Way, ok};
use polyrail_tests::scripted::{LIMITS, Nic, QpHandle, ScriptedCq, ScriptedQp};

type Qp = TestQp<4, 8, 16>;

/// A queue pair of `rails` rails numbered from `first` on, as virtual queue pair `first`.
fn qp(nic: &Nic, cqs: &[ScriptedCq], rails: usize, first: u32) -> (Qp, Vec<QpHandle>) {
    let setup = Setup { notify: false, devices: cqs.len(), ..Setup::spray(rails) };
    let setup = setup.fragment(128).config(|config| config.virtual_qp_num = first);
    let (qp, handles, _) = setup.build_qp(nic, cqs, first);
    (qp, handles)
}

fn one_cq(capacity: u32) -> (Nic, [ScriptedCq; 1], TestCq) {
    let nic = Nic::new();
    let cqs = [nic.cq(0, capacity)];
    let cq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    (nic, cqs, cq)
}

#[test]
fn a_queue_must_be_deep_enough_for_everything_in_flight() {
    let (nic, cqs, mut cq) = one_cq(3 * 2 * 16 - 1);
    let [first, second, third] = [10, 20, 30].map(|number| qp(&nic, &cqs, 2, number).0);
    cq.attach(0, &first).unwrap();
    cq.attach(1, &second).unwrap();
    let id = polyrail_core::hardware::CompletionQueue::id(&cqs[0]);
    let too_small = AttachError::CqTooSmall { cq: id, capacity: 95, needed: 96 };
    assert_eq!(cq.attach(2, &third), Err(too_small));
    cq.invariants();
    assert!(cq.detach(0), "its entries are free again, and no others");
    assert_eq!(cq.attach(2, &third), Ok(()));
    assert_eq!(cq.attach(0, &first), Err(too_small));
}

/// The depth that the documentation promises suffices when every send and every receive fails.
#[test]
fn a_queue_of_the_promised_depth_takes_every_flush() {
    type Small = TestQp<3, 8, 32>;
    assert_eq!(Small::cq_entries(), 4 * 2 * 8);
    let mut setup = Setup::spray(3).fragment(128).depth(u32::MAX);
    setup.cq_capacity = Small::cq_entries();
    let mut rig: Rig<3, 8, 32> = setup.build();
    rig.post((0..32).map(|id| rig::write_imm(id, 128, 0)));
    let data = |id| RecvWr::data(id, rig::local(8), &rig::KEYS);
    (0..8).for_each(|id| rig.qp.post_recv(&data(id)).unwrap());
    (0..32).for_each(|id| rig.qp.post_recv(&RecvWr::notification(id)).unwrap());
    rig.rails.iter().chain(&rig.notify).for_each(QpHandle::flush);
    let reports = rig.poll_ids();
    assert_eq!(reports.len(), 32 + 8 + 32);
    assert!(reports.iter().all(|(_, status)| *status == WcStatus::WR_FLUSH_ERR));
}

#[test]
fn a_queue_pair_that_completes_elsewhere_cannot_be_attached() {
    let (nic, cqs, mut cq) = one_cq(1 << 12);
    let elsewhere = [cqs[0].clone(), nic.cq(1, 1 << 12)];
    let (stranger, _) = qp(&nic, &elsewhere, 2, 10);
    let foreign = AttachError::ForeignCq { device: DeviceId(1), qp_num: 11 };
    assert_eq!(cq.attach(0, &stranger), Err(foreign));
    cq.invariants();
    let (native, _) = qp(&nic, &cqs, 2, 10);
    assert_eq!(cq.attach(0, &native), Ok(()), "no route was left behind");
}

#[test]
fn an_index_or_a_route_can_be_taken_once() {
    let (nic, cqs, mut cq) = one_cq(1 << 12);
    let (first, _) = qp(&nic, &cqs, 2, 10);
    let (second, _) = qp(&nic, &cqs, 2, 20);
    cq.attach(3, &first).unwrap();
    assert_eq!(cq.attach(3, &second), Err(AttachError::Index { index: 3, limit: 64 }));
    assert_eq!(cq.attach(64, &second), Err(AttachError::Index { index: 64, limit: 64 }));
    let taken = AttachError::Number { virtual_qp_num: 10, index: 3 };
    assert_eq!(cq.attach(4, &first), Err(taken));
    assert!(!cq.detach(4), "nothing was attached there");
    assert_eq!(cq.attach(4, &second), Ok(()));
}

#[test]
fn a_full_routing_table_refuses_whole_queue_pairs() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 12)];
    let mut cq: VirtualCq<ScriptedCq, 1, 8> = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let (first, _) = qp(&nic, &cqs, 4, 10);
    let (second, _) = qp(&nic, &cqs, 4, 20);
    let (third, _) = qp(&nic, &cqs, 2, 30);
    cq.attach(0, &first).unwrap();
    let full = AttachError::Route(RouteError::Full { capacity: 6 });
    assert_eq!(cq.attach(1, &second), Err(full));
    assert_eq!(cq.attach(1, &third), Ok(()), "the two free routes are still free");
    cq.invariants();
}

#[test]
fn more_queues_than_the_type_holds_are_refused() {
    let nic = Nic::new();
    let cqs = (0..3).map(|device| nic.cq(device, 8));
    let refused = VirtualCq::<ScriptedCq, 2, 8>::new(cqs).map(|_| ());
    assert_eq!(refused, Err(TooManyCqs { max: 2 }));
}

fn wcs(cq: &mut TestCq, set: &mut [Qp], budget: usize) -> Vec<VirtualWc> {
    let mut wcs = Vec::new();
    let polled = cq.poll(set, budget, |event| wcs.extend(event.completion()));
    assert_eq!((polled.events, polled.error), (wcs.len(), None));
    cq.invariants();
    set.iter().for_each(Qp::invariants);
    wcs
}

/// Design.md, section 6: "the starting CQ and QP rotate".
#[test]
fn small_budgets_starve_no_completion_queue() {
    for queues in [2, 3] {
        let nic = Nic::new();
        let cqs: Vec<_> = (0..queues).map(|device| nic.cq(device, 1 << 12)).collect();
        let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
        let (mut set, handles): (Vec<_>, Vec<_>) =
            (10..).zip(cqs.chunks(1)).map(|(number, one)| qp(&nic, one, 1, number)).unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        for budget in [1, 2, 1] {
            for (qp, handles) in set.iter_mut().zip(&handles) {
                (0..40).for_each(|_| qp.post_send(&rig::write(u64::from(budget), 8)).unwrap());
                handles[0].complete_all();
            }
            let before: Vec<_> = handles.iter().map(|handle| handle[0].slots()).collect();
            for _ in 0..12 {
                assert_eq!(wcs(&mut cq, &mut set, budget as usize).len(), budget as usize);
            }
            for (before, handle) in before.iter().zip(&handles) {
                let taken = before - handle[0].slots();
                assert!(taken >= 2 * budget, "each queue gets its turns, this one {taken}");
            }
            while !wcs(&mut cq, &mut set, 32).is_empty() {}
        }
    }
}

/// The same for virtual queue pairs of many rails on one queue.
#[test]
fn small_budgets_starve_no_virtual_queue_pair() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut set, handles): (Vec<_>, Vec<_>) =
        (0..3).map(|n| qp(&nic, &cqs, 2, 10 + 10 * n)).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    for qp in &mut set {
        (0..12).for_each(|id| qp.post_send(&rig::write(id, 128)).unwrap());
    }
    handles.iter().flatten().for_each(QpHandle::complete_all);
    let mut reported = [0; 3];
    for _ in 0..30 {
        for wc in wcs(&mut cq, &mut set, 2) {
            reported[wc.qp_num as usize / 10 - 1] += 1;
        }
    }
    assert!(reported.iter().all(|count| *count >= 8), "{reported:?}");
}

#[test]
fn more_virtual_queue_pairs_than_one_poll_looks_at_take_turns() {
    use polyrail_core::hardware::Refusal;
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut set, handles): (Vec<_>, Vec<_>) =
        (0..20).map(|n| qp(&nic, &cqs, 2, 10 * (n + 1))).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    for (qp, handles) in set.iter_mut().zip(&handles) {
        handles.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
        qp.post_send(&rig::write(1, 256)).unwrap();
        handles.iter().for_each(|rail| rail.refuse_all(None));
    }
    for _ in 0..2 {
        assert_eq!(wcs(&mut cq, &mut set, 32), []);
    }
    assert!(handles.iter().flatten().all(|rail| rail.sends().len() == 1), "all were polled");
}

/// "What is complete but over the limit comes out first next time", however many are attached.
#[test]
fn what_the_budget_left_behind_comes_first_next_time() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 14)];
    let mut cq: VirtualCq<ScriptedCq, 1, 256> = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let (mut set, handles): (Vec<_>, Vec<_>) =
        (0..40).map(|n| qp(&nic, &cqs, 2, 10 * (n + 1))).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    let mut poll = |set: &mut [Qp]| {
        let mut ids = Vec::new();
        let _ = cq.poll(set, 2, |event| ids.extend(event.completion().map(|wc| wc.wr_id)));
        ids
    };
    for at in 0..40 {
        (0..4).for_each(|id| set[at].post_send(&rig::write(id, 128)).unwrap());
        handles[at][1].complete_all();
        assert!(poll(&mut set).is_empty());
        handles[at][0].complete_all();
        assert_eq!(poll(&mut set), [0, 1]);
        assert_eq!(poll(&mut set), [2, 3]);
    }
}

/// A runtime that polls the physical queues itself: `feed` alone must drive everything.
#[test]
fn feed_alone_drives_everything() {
    use polyrail_core::hardware::Refusal;
    let nic = Nic::new();
    let own = nic.cq(0, 1 << 10);
    let mut cq: VirtualCq<ScriptedCq, 1, 16> = VirtualCq::new([]).unwrap();
    let (mut qp, handles) = qp(&nic, &[own], 2, 10);
    cq.attach(0, &qp).unwrap();
    handles.iter().for_each(|rail| rail.refuse_next(0, Refusal::QueueFull));
    qp.post_send(&rig::write(1, 256)).unwrap();
    let device = DeviceId(0);
    let mut feed = |completions: &[Completion], sink: &mut dyn FnMut(Event)| {
        // SAFETY: the scripted NIC touches no memory.
        unsafe { cq.feed(&mut qp, device, completions, sink) }
    };
    assert_eq!(feed(&[], &mut |_| ()), 0);
    let completions: Vec<_> = handles
        .iter()
        .map(|rail| (rail.qp_num(), rail.sends()[0].wr_id))
        .map(|(qp_num, wr_id)| Completion::success(qp_num, wr_id, WcOpcode::RDMA_WRITE))
        .collect();
    let mut seen = Vec::new();
    assert_eq!(feed(&completions, &mut |event| seen.extend(event.completion())), 1);
    assert_eq!((seen[0].wr_id, seen[0].status), (1, WcStatus::SUCCESS));
    assert!(cq.detach(0));
    cq.invariants();
}

#[test]
fn more_than_a_batch_can_be_fed_at_once() {
    let nic = Nic::new();
    let mut cq: VirtualCq<ScriptedCq, 0, 16> = VirtualCq::new([]).unwrap();
    let (mut qp, handles) = qp(&nic, &[nic.cq(0, 64)], 1, 10);
    cq.attach(0, &qp).unwrap();
    let completions: Vec<_> =
        (0..100).map(|id| Completion::success(10, id, WcOpcode::SEND)).collect();
    let mut ids = Vec::new();
    let sink = |event: Event| ids.extend(event.completion().map(|wc| wc.wr_id));
    // SAFETY: the scripted NIC touches no memory.
    assert_eq!(unsafe { cq.feed(&mut qp, DeviceId(0), &completions, sink) }, 100);
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    drop(handles);
    assert!(cq.detach(0));
}

/// Nothing points at a virtual queue pair, so it may move between post and completion.
#[test]
fn moving_a_queue_pair_between_post_and_completion_is_harmless() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut first, first_rails) = qp(&nic, &cqs, 2, 10);
    let (mut second, second_rails) = qp(&nic, &cqs, 3, 20);
    cq.attach(0, &first).unwrap();
    cq.attach(1, &second).unwrap();
    first.post_send(&rig::write(1, 512)).unwrap();
    second.post_send(&rig::write(2, 512)).unwrap();
    let mut set = vec![first];
    set.push(second); // the vector moves its first element
    first_rails[0].complete_all();
    assert_eq!(wcs(&mut cq, &mut set, 32), []);
    let mut boxed: Box<[Qp]> = set.into_boxed_slice();
    first_rails.iter().chain(&second_rails).for_each(QpHandle::complete_all);
    let reports = wcs(&mut cq, &mut boxed, 32);
    let mut seen: Vec<_> = reports.iter().map(|wc| (wc.qp_num, wc.wr_id, wc.status)).collect();
    seen.sort_by_key(|(qp_num, ..)| *qp_num);
    assert_eq!(seen, [(10, 1, WcStatus::SUCCESS), (20, 2, WcStatus::SUCCESS)]);
}

/// At another one's index, a virtual queue pair is not taken for that one.
#[test]
fn queue_pairs_that_changed_places_get_no_completion_of_each_other() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (first, rails) = qp(&nic, &cqs, 2, 10);
    let (second, _) = qp(&nic, &cqs, 2, 20);
    let mut set = vec![first, second];
    cq.attach(0, &set[0]).unwrap();
    cq.attach(1, &set[1]).unwrap();
    set[0].post_send(&rig::write(1, 256)).unwrap();
    set.swap(0, 1);
    rails[0].complete(1);
    let mut events = Vec::new();
    let _ = cq.poll(&mut set[..], 32, |event| events.push(event));
    assert!(matches!(events[..], [Event::Foreign { .. }]), "{events:?}");
    set.swap(0, 1);
    rails[1].complete(1);
    assert_eq!(wcs(&mut cq, &mut set, 32), []);
    assert_eq!(set.iter().map(|qp| qp.protocol_errors()).sum::<u64>(), 0);
}

#[test]
fn queue_pairs_of_all_sizes_share_a_queue() {
    let (nic, cqs, mut cq) = one_cq(1 << 15);
    let setup = |rails, number| {
        Setup::spray(rails).fragment(128).config(move |config| config.virtual_qp_num = number)
    };
    let (mut small, small_rails, _) = setup(1, 1).build_qp::<1, 8, 1>(&nic, &cqs, 100);
    let (mut medium, medium_rails, _) = setup(2, 2).build_qp::<2, 64, 128>(&nic, &cqs, 200);
    let (mut large, large_rails, _) = setup(8, 3).build_qp::<8, 16, 256>(&nic, &cqs, 300);
    cq.attach(5, &small).unwrap();
    cq.attach(0, &medium as &dyn CompletionTarget).unwrap();
    cq.attach(2, &large).unwrap();
    small.post_send(&rig::send(10, 8)).unwrap();
    medium.post_send(&rig::write(20, 512)).unwrap();
    large.post_send(&rig::write(30, 512)).unwrap();
    let rails = [small_rails, medium_rails, large_rails].concat();
    rails.iter().for_each(QpHandle::complete_all);
    let mut unused: Qp = qp(&nic, &cqs, 2, 400).0;
    let mut other: Qp = qp(&nic, &cqs, 2, 410).0;
    let mut third = qp(&nic, &cqs, 2, 420).0;
    let mut set: [&mut dyn CompletionTarget; 6] =
        [&mut medium, &mut unused, &mut large, &mut other, &mut third, &mut small];
    let mut seen = Vec::new();
    let polled = cq.poll(&mut set[..], 32, |event| seen.extend(event.completion()));
    assert_eq!(polled.events, 3);
    let mut ids: Vec<_> = seen.iter().map(|wc| (wc.qp_num, wc.wr_id)).collect();
    ids.sort_unstable();
    assert_eq!(ids, [(1, 10), (2, 20), (3, 30)]);
}

/// "An error of one virtual QP stays with it until read and costs the others nothing."
#[test]
fn an_error_of_one_queue_pair_costs_the_others_nothing() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (first, first_rails) = qp(&nic, &cqs, 2, 10);
    let (second, second_rails) = qp(&nic, &cqs, 2, 20);
    let mut set = vec![first, second];
    cq.attach(0, &set[0]).unwrap();
    cq.attach(1, &set[1]).unwrap();
    for qp in &mut set {
        qp.post_send(&rig::write(1, 256)).unwrap();
    }
    let out_of_turn = Tag::new(TagKind::Send, 0, 1).wr_id();
    first_rails[0].inject(Completion::success(10, out_of_turn, WcOpcode::SEND));
    second_rails[0].complete(1);
    first_rails[0].fail(WcStatus::RETRY_EXC_ERR);
    second_rails[1].complete(1);
    first_rails[1].complete(1);
    let reports = wcs(&mut cq, &mut set, 32);
    let seen: Vec<_> = reports.iter().map(|wc| (wc.qp_num, wc.status)).collect();
    assert_eq!(seen.len(), 2);
    assert!(seen.contains(&(10, WcStatus::RETRY_EXC_ERR)));
    assert!(seen.contains(&(20, WcStatus::SUCCESS)));
    assert!(set[0].take_protocol_error().is_some() && set[1].take_protocol_error().is_none());
}

#[test]
fn a_ring_full_of_unreported_requests_refuses_and_recovers() {
    use polyrail_core::virtual_qp::{PostRecvError, PostSendError, TrackerFull};
    let mut rig: Rig<2, 8, 4> = Setup::spray(2).fragment(128).build();
    rig.post((0..4).map(|id| rig::write(id, 128)));
    let full = Err(PostSendError::Full(TrackerFull { capacity: 4 }));
    assert_eq!(rig.qp.post_send(&rig::write(4, 128)), full);
    assert_eq!(rig.qp.post_send(&rig::send(4, 128)), full, "it would have to wait in the ring");
    rig.rails.iter().for_each(QpHandle::complete_all);
    assert_eq!(rig.poll_events(1).0.len(), 1);
    assert_eq!(rig.qp.post_send(&rig::write(4, 128)), Ok(()));
    assert_eq!(rig.qp.post_send(&rig::write(5, 128)), full);
    assert_eq!(rig.run_dry().len(), 4);
    (0..4).for_each(|id| rig.qp.post_recv(&RecvWr::notification(id)).unwrap());
    let full = PostRecvError::Full(TrackerFull { capacity: 4 });
    assert_eq!(rig.qp.post_recv(&RecvWr::notification(4)), Err(full));
}

#[test]
fn what_cannot_work_is_refused_when_it_is_built() {
    let nic = Nic::new();
    let cq = nic.cq(0, 64);
    let make = |number: u32| -> ScriptedQp { nic.qp(number, &cq, LIMITS).0 };
    let built = |rails: Vec<ScriptedQp>, notify: Option<ScriptedQp>| {
        Qp::new(Config::default(), rails, notify).map(|_| ())
    };
    assert_eq!(built(vec![], None), Err(BuildError::NoRails));
    let five = (1..6).map(make).collect();
    assert_eq!(built(five, None), Err(BuildError::TooManyRails { max: 4 }));
    let duplicate = Err(BuildError::Duplicate { device: DeviceId(0), qp_num: 1 });
    assert_eq!(built(vec![make(1), make(1)], None), duplicate);
    assert_eq!(built(vec![make(2), make(1)], Some(make(1))), duplicate);
    assert_eq!(built(vec![make(1)], Some(make(2))), Err(BuildError::UnexpectedNotify));
    let none = QpLimits { max_send_wr: 0, ..LIMITS };
    let notify = nic.qp(9, &cq, none).0;
    let no_room = Err(BuildError::NoRoom { qp_num: 9, send: true });
    assert_eq!(built(vec![make(1), make(2)], Some(notify)), no_room);
    assert_eq!(nic.owners(), 2, "the physical ones were dropped");
}

/// Two queue pairs of two rails, each on a queue of its own; `each` is called before every one of
/// this many polls. Returns how many completions each queue gave.
fn taken_from(polls: usize, budget: usize, waiting: [usize; 2]) -> [u32; 2] {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 12), nic.cq(1, 1 << 12)];
    let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let (mut set, handles): (Vec<_>, Vec<_>) =
        cqs.chunks(1).zip([10, 20]).map(|(one, number)| qp(&nic, one, 1, number)).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    let mut taken = [0; 2];
    for _ in 0..polls {
        for (at, waiting) in waiting.iter().enumerate() {
            while (handles[at][0].slots() as usize) < *waiting {
                set[at].post_send(&rig::write(1, 8)).unwrap();
            }
            handles[at][0].complete_all();
        }
        let before: Vec<_> = handles.iter().map(|handle| handle[0].slots()).collect();
        wcs(&mut cq, &mut set, budget);
        for (at, handle) in handles.iter().enumerate() {
            taken[at] += before[at] - handle[0].slots();
        }
    }
    taken
}

/// After a poll that ends where it began, the next one begins elsewhere: a queue that always has as
/// much as one poll takes leaves the other its turn.
#[test]
fn the_first_queue_of_a_poll_changes_after_full_turns_too() {
    for budget in [4, 16, 32] {
        // Always slightly less than a poll takes, so that the second queue has the last completion
        // of each.
        for waiting in [[budget - 1, 200], [200, budget - 1]] {
            let taken = taken_from(12, budget, waiting);
            let most = 12 * budget as u32;
            assert!(taken.iter().all(|taken| *taken >= most / 4), "{taken:?} of {most}");
        }
    }
}

/// A sink that panics is the caller's fault, and costs one event: the one that it was given.
#[test]
fn a_sink_that_panics_loses_nothing_else() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let run = |panics_at: usize, budget: usize| {
        let (nic, cqs, mut cq) = one_cq(1 << 14);
        let (mut set, handles): (Vec<_>, Vec<_>) = [(1, 10), (2, 20), (2, 30), (1, 40)]
            .map(|(rails, n)| qp(&nic, &cqs, rails, n))
            .into_iter()
            .unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        for round in 0..3 {
            for (qp, rails) in set.iter_mut().zip(&handles) {
                qp.post_send(&rig::send(10 * round, 8)).unwrap();
                qp.post_send(&rig::write(10 * round + 1, 128)).unwrap();
                qp.post_send(&rig::write(10 * round + 2, 128)).unwrap();
                let stranger = Completion::success(99, round, WcOpcode::SEND);
                rails.iter().for_each(QpHandle::complete_all);
                rails[0].inject(stranger);
            }
        }
        let mut events = Vec::new();
        for poll in 0..200 {
            let mut given = 0;
            let poll = AssertUnwindSafe(|| {
                cq.poll(&mut set[..], budget, |event| {
                    events.push(event);
                    given += 1;
                    assert!(poll > 3 || given != panics_at, "the sink's own");
                })
            });
            let _ = catch_unwind(poll).map(|polled| assert_eq!(polled.error, None));
            handles.iter().flatten().for_each(QpHandle::complete_all);
            cq.invariants();
        }
        let foreign = events.iter().filter(|event| matches!(event, Event::Foreign { .. })).count();
        let mut wcs: Vec<_> = events.iter().filter_map(|event| event.completion()).collect();
        assert!(wcs.iter().all(|wc| wc.status.is_success()));
        wcs.sort_by_key(|wc| (wc.qp_num, wc.wr_id));
        let expected: Vec<_> = [10, 20, 30, 40]
            .into_iter()
            .flat_map(|qp_num| [0, 1, 2, 10, 11, 12, 20, 21, 22].map(|id| (qp_num, id)))
            .collect();
        assert_eq!(wcs.iter().map(|wc| (wc.qp_num, wc.wr_id)).collect::<Vec<_>>(), expected);
        assert_eq!(foreign, 12);
        assert!(set.iter().all(|qp| qp.unreported_sends() == 0));
    };
    let outcome = catch_unwind(|| {
        for panics_at in 0..20 {
            for budget in [1, 2, 3, 7, 32, usize::MAX] {
                run(panics_at, budget);
            }
        }
    });
    outcome.unwrap();
}

/// After a panic, each completion of the rest of that batch and of the next one may be of another
/// queue pair than the one before it.
#[test]
fn after_a_sink_panicked_every_way_to_poll_goes_on() {
    use polyrail_core::hardware::CompletionQueue;
    use std::mem::MaybeUninit;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let run = |way: Way| {
        let (nic, cqs, mut cq) = one_cq(1 << 14);
        let (mut set, handles): (Vec<_>, Vec<_>) =
            [10, 20, 30, 40].map(|number| qp(&nic, &cqs, 2, number)).into_iter().unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        handles[0][0].inject(Completion::success(99, 0, WcOpcode::SEND));
        for id in 0..16 {
            for (qp, handles) in set.iter_mut().zip(&handles) {
                qp.post_send(&rig::write(id, 128)).unwrap();
                handles.iter().for_each(QpHandle::complete_all);
            }
        }
        let panics = AssertUnwindSafe(|| cq.poll(&mut set[..], 32, |_| panic!("the sink's own")));
        assert!(catch_unwind(panics).is_err());
        let mut reports = 0;
        let mut sink = |event: Event| reports += u32::from(event.completion().is_some());
        match way {
            Way::Queue(at, budget) => {
                let _ = cq.poll_cq(at, &mut set[..], budget, &mut sink);
            }
            _ => {
                let mut batch = [const { MaybeUninit::uninit() }; 32];
                let completions = cqs[0].clone().poll(&mut batch).unwrap();
                // SAFETY: just polled from a queue of this device, in order.
                unsafe { cq.feed(&mut set[..], DeviceId(0), completions, &mut sink) };
            }
        }
        while cq.poll(&mut set[..], 32, &mut sink).events > 0 {}
        assert_eq!(reports, 64, "{way:?}");
    };
    let outcome = catch_unwind(|| {
        [Way::Queue(0, usize::MAX), Way::Queue(0, 40), Way::Feed(0)].into_iter().for_each(run);
    });
    outcome.unwrap();
}

/// A failure of an only rail is known to its queue pair before its completion finds budget.
#[test]
fn what_passed_through_and_waits_for_budget_is_counted_with_its_failures() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut rig = Setup::spray(1).rig();
    rig.rails[0].inject(Completion::success(99, 0, WcOpcode::SEND));
    rig.post((0..4).map(|id| rig::send(id, 8)));
    rig.rails[0].complete(2);
    rig.rails[0].flush();
    let panics = AssertUnwindSafe(|| rig.cq.poll(&mut rig.qp, 32, |_| panic!("the sink's own")));
    let outcome = catch_unwind(panics);
    assert!(outcome.is_err());
    assert_eq!(names(rig.poll_events(1).0), [0]);
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.completions, counters.errors), (4, 2));
    assert_eq!(rig.qp.first_error().map(|error| error.status), Some(WcStatus::WR_FLUSH_ERR));
    assert_eq!(names(rig.poll_events(32).0), [1, 2, 3]);
}

#[test]
fn a_queue_that_is_not_there_brings_nothing() {
    let mut rig = Setup::spray(1).rig();
    rig.post([rig::send(1, 8)]);
    rig.rails[0].complete_all();
    let cqs = rig.cq.cqs().len();
    for (at, budget) in [(cqs, 32), (usize::MAX, 32), (0, 0)] {
        let polled = rig.cq.poll_cq(at, &mut rig.qp, budget, |event| panic!("{event:?}"));
        assert_eq!((polled.events, polled.error), (0, None));
    }
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// What found no budget comes before what completed after it, however it is polled next.
#[test]
fn what_waits_for_budget_keeps_its_order() {
    for way in [Way::Queue(0, 1), Way::Queue(0, 7), Way::One, Way::All(1), Way::Feed(0)] {
        for rails in [1, 2] {
            let mut rig = Setup::spray(rails).fragment(128).rig();
            rig.post((0..3).map(|id| rig::send(id, 8)));
            rig.rails[0].complete_all();
            let mut ids: Vec<_> = names(rig.poll_by(Way::All(1)).0);
            rig.post([rig::send(3, 8)]);
            rig.rails[0].complete_all();
            for _ in 0..4 {
                ids.extend(names(rig.poll_by(way).0));
            }
            assert_eq!(ids, [0, 1, 2, 3], "{rails} rails, {way:?}");
        }
    }
}

fn names(events: Vec<Event>) -> Vec<u64> {
    events.into_iter().filter_map(|event| event.completion().map(|wc| wc.wr_id)).collect()
}

/// Queue pairs on the queue that is polled first do not keep others waiting forever.
#[test]
fn polling_one_queue_with_a_small_budget_starves_no_other() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut set, handles): (Vec<_>, Vec<_>) =
        [10, 20].map(|number| qp(&nic, &cqs, 2, number)).into_iter().unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    (0..4).for_each(|id| set[0].post_send(&rig::write(id, 128)).unwrap());
    handles[0].iter().for_each(QpHandle::complete_all);
    let mut first = 0;
    for _ in 0..12 {
        set[1].post_send(&rig::write(9, 128)).unwrap();
        handles[1].iter().for_each(QpHandle::complete_all);
        let sink = |event: Event| first += usize::from(event.completion().unwrap().qp_num == 10);
        assert_eq!(cq.poll_cq(0, &mut set[..], 1, sink).error, None);
    }
    assert_eq!(first, 4);
}

/// A WRITE that is complete waits for budget, while requests that pass straight through complete all the
/// time: however a queue is polled, each takes its turn.
#[test]
fn polling_one_queue_with_a_small_budget_starves_no_ring() {
    for ways in [[Way::Queue(0, 1); 2], [Way::All(1), Way::Queue(0, 1)], [Way::All(0), Way::All(1)]]
    {
        for rails in [1, 2] {
            let (nic, cqs, mut cq) = one_cq(1 << 14);
            let (mut set, handles): (Vec<_>, Vec<_>) = [(2, 10), (rails, 20)]
                .map(|(rails, number)| qp(&nic, &cqs, rails, number))
                .into_iter()
                .unzip();
            for (index, qp) in set.iter().enumerate() {
                cq.attach(index as u16, qp).unwrap();
            }
            (0..4).for_each(|id| set[0].post_send(&rig::write(id, 128)).unwrap());
            handles[0].iter().for_each(QpHandle::complete_all);
            let mut served = [0; 2];
            for way in ways.into_iter().cycle().take(40) {
                while handles[1][0].slots() < 4 {
                    set[1].post_send(&rig::send(9, 8)).unwrap();
                }
                handles[1][0].complete_all();
                let sink =
                    |event: Event| served[event.completion().unwrap().qp_num as usize / 20] += 1;
                let polled = match way {
                    Way::Queue(at, budget) => cq.poll_cq(at, &mut set[..], budget, sink),
                    Way::All(budget) => cq.poll(&mut set[..], budget, sink),
                    _ => unreachable!(),
                };
                assert_eq!(polled.error, None);
            }
            assert_eq!(served[0], 4, "{served:?} {rails} {ways:?}");
            assert!(served[1] >= 16, "{served:?}");
        }
    }
}

/// Another one with the same number and fewer rails, put in the place of the one that is attached.
#[test]
fn a_queue_pair_of_fewer_rails_takes_no_completion_of_the_one_whose_place_it_has() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut wide, handles) = qp(&nic, &cqs, 4, 10);
    cq.attach(0, &wide).unwrap();
    wide.post_send(&rig::write(1, 4 * 128)).unwrap();
    for rails in [1, 2, 3] {
        let setup = Setup { notify: false, ..Setup::spray(rails) };
        let setup = setup.config(|config| config.virtual_qp_num = 10);
        let (mut narrow, ..) = setup.build_qp::<4, 8, 16>(&nic, &cqs, 20 * rails as u32);
        handles[rails].complete_all();
        let mut seen = Vec::new();
        let polled = cq.poll(&mut narrow, 16, |event| seen.push(event));
        assert_eq!((polled.events, polled.error), (1, None));
        assert!(matches!(seen[0], Event::Foreign { .. }), "{seen:?}");
    }
}

/// A queue pair that took completions in a poll whose sink panicked, and was detached before the next
/// one, goes on when it is attached again: no more completions of it may come.
#[test]
fn a_queue_pair_that_is_attached_again_after_a_sink_panicked_goes_on() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut rig = Setup::spray(2).fragment(128).rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::send(1, 8), rig::write(2, 256).with_flags(fenced)]);
    rig.rails[0].complete_all();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let panics = AssertUnwindSafe(|| rig.cq.poll(&mut rig.qp, 32, |_| panic!("the sink's own")));
    let outcome = catch_unwind(panics);
    std::panic::set_hook(hook);
    assert!(outcome.is_err(), "it was given request 1");
    assert!(rig.cq.detach(0));
    assert_eq!(rig.poll(), []);
    rig.cq.attach(0, &rig.qp).unwrap();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.run_dry().len(), 1, "request 2 waited for request 1 only");
}
