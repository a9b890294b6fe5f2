//! The virtual completion queue: attaching, feeding, moving, and sets of several sizes.
//! `core/docs/architecture.md`, "The virtual completion queue".

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::{Tag, TagKind};
use polyrail_core::verbs::{Completion, DeviceId, RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::{
    AttachError, CompletionTarget, Event, RouteError, TooManyCqs, VirtualCq, VirtualWc,
};
use polyrail_core::virtual_qp::{
    PostRecvError, PostSendError, ProtocolError, QpState, RailId, TrackerFull,
};
use polyrail_tests::rig::{self, Rig, Setup, TestCq, TestQp, done, ok};
use polyrail_tests::scripted::{Nic, QpHandle, ScriptedCq};

pub(super) type Qp = TestQp<4, 8, 16>;

/// A queue pair of `rails` rails numbered from `first` on, as virtual queue pair `first`.
pub(super) fn qp(nic: &Nic, cqs: &[ScriptedCq], rails: usize, first: u32) -> (Qp, Vec<QpHandle>) {
    let setup = Setup { notify: false, devices: cqs.len(), ..Setup::spray(rails) };
    let setup = setup.fragment(128).config(|config| config.virtual_qp_num = first);
    let (qp, handles, _) = setup.build_qp(nic, cqs, first);
    (qp, handles)
}

pub(super) fn one_cq(capacity: u32) -> (Nic, [ScriptedCq; 1], TestCq) {
    let nic = Nic::new();
    let cqs = [nic.cq(0, capacity)];
    let cq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    (nic, cqs, cq)
}

/// What one poll reports; it must report nothing else, and no error.
pub(super) fn wcs(cq: &mut TestCq, set: &mut [Qp], budget: usize) -> Vec<VirtualWc> {
    let mut wcs = Vec::new();
    let polled = cq.poll(set, budget, |event| wcs.extend(event.completion()));
    assert_eq!((polled.events, polled.error), (wcs.len(), None));
    cq.invariants();
    set.iter().for_each(Qp::invariants);
    wcs
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

/// The first refusal reports the size, and not that of one queue pair after the other.
#[test]
fn a_refusal_reports_the_size_that_a_queue_needs_in_total() {
    for (rails, capacity) in [(2, 1), (2, 17), (2, 31), (4, 16), (4, 33), (4, 63)] {
        let total = 2 * 8 * rails as u32;
        let (nic, cqs, mut cq) = one_cq(capacity);
        let (first, _) = qp(&nic, &cqs, rails, 10);
        let id = polyrail_core::hardware::CompletionQueue::id(&cqs[0]);
        let too_small =
            |capacity, needed| Err(AttachError::CqTooSmall { cq: id, capacity, needed });
        assert_eq!(cq.attach(0, &first), too_small(capacity, total));
        cq.invariants();

        let (nic, cqs, mut cq) = one_cq(total + 5);
        cq.set_aside(id, 5).unwrap();
        let [first, second] = [10, 40].map(|number| qp(&nic, &cqs, rails, number).0);
        cq.attach(0, &first).unwrap();
        assert_eq!(cq.attach(1, &second), too_small(total + 5, 2 * total + 5));
    }
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

/// Without completion queues nothing is reserved, whatever is added later.
#[test]
fn a_queue_that_is_added_later_reserves_nothing_for_what_was_attached_before() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 2 * 2 * 16)];
    let [first, second, third, fourth] = [10, 20, 30, 40].map(|number| qp(&nic, &cqs, 2, number).0);
    let mut cq = TestCq::EMPTY;
    cq.attach(0, &first).unwrap();
    cq.attach(1, &second).unwrap();
    cq.add_cq(cqs[0].clone()).unwrap();
    assert!(cq.detach(1));
    cq.invariants();
    cq.attach(1, &second).unwrap();
    cq.attach(2, &third).unwrap();
    assert!(cq.detach(0));
    cq.invariants();
    let id = polyrail_core::hardware::CompletionQueue::id(&cqs[0]);
    let too_small = AttachError::CqTooSmall { cq: id, capacity: 64, needed: 96 };
    assert_eq!(cq.attach(0, &fourth), Err(too_small));
    assert!(cq.detach(2));
    assert_eq!(cq.attach(0, &fourth), Ok(()));
}

/// Sums of entries that 32 bits do not hold are not cut off.
#[test]
fn what_is_set_aside_stays_so_though_the_sum_is_large() {
    let (nic, cqs, mut cq) = one_cq(u32::MAX);
    let id = polyrail_core::hardware::CompletionQueue::id(&cqs[0]);
    let most = u32::MAX - 32;
    cq.set_aside(id, most).unwrap();
    let [first, second] = [10, 20].map(|number| qp(&nic, &cqs, 2, number).0);
    cq.attach(0, &first).unwrap();
    let too_small = AttachError::CqTooSmall { cq: id, capacity: u32::MAX, needed: u32::MAX };
    assert_eq!(cq.attach(1, &second), Err(too_small));
    assert!(cq.detach(0));
    assert_eq!(cq.attach(0, &first), Ok(()));
    assert_eq!(cq.attach(1, &second), Err(too_small));
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

/// A runtime that polls the physical queues itself: `feed` alone must drive everything.
#[test]
fn feed_alone_drives_everything() {
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

/// Feeding by hand: a runtime that polls completion queues itself.
#[test]
fn completions_fed_by_hand_one_or_a_slice_count_as_polled_ones() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::write(2, 128)]);
    let completion = |rail: usize, at: usize| {
        let request = rig.rails[rail].sends()[at];
        Completion::success(10 + rail as u32, request.wr_id, WcOpcode::RDMA_WRITE)
    };
    let one = completion(0, 0);
    let slice = [completion(1, 0), completion(0, 1)];
    let mut seen = Vec::new();
    let device = DeviceId(0);
    let mut feed = |completions: &[Completion]| {
        // SAFETY: the scripted NIC touches no memory.
        unsafe { rig.cq.feed(&mut rig.qp, device, completions, |event| seen.push(event)) }
    };
    assert_eq!(feed(&[one]), 0);
    assert_eq!(feed(&slice), 2);
    let wcs: Vec<_> = seen.into_iter().filter_map(Event::completion).collect();
    let expected = [done(1, WcOpcode::RDMA_WRITE, 256), done(2, WcOpcode::RDMA_WRITE, 128)];
    assert_eq!(wcs, expected);
    rig.qp.invariants();
}

/// Defect 7: an error beside the completions, not instead of them.
#[test]
fn defect_07_an_error_while_polling_costs_no_completion() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let broken = rig.cqs[1].clone();
    rig.nic.break_cq(&broken, Some(5));
    for _ in 0..3 {
        let (events, polled) = rig.poll_events(32);
        let error = polled.error.unwrap();
        assert_eq!((error.errno, error.device.0), (5, 1));
        let ids: Vec<_> = events.into_iter().filter_map(Event::completion).collect();
        assert!(ids.iter().all(|wc| wc.wr_id == 1) && ids.len() <= 1);
    }
    assert_eq!(rig.qp.unreported_sends(), 1);
    rig.nic.break_cq(&broken, None);
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// Defect 7: neither a protocol error nor a foreign completion costs the rest of its batch.
#[test]
fn defect_07_bad_completions_cost_the_good_ones_of_their_batch_nothing() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails[0].complete(1);
    let out_of_turn = Tag::new(TagKind::Send, 0, 1).wr_id();
    rig.rails[0].inject(Completion::success(10, out_of_turn, WcOpcode::SEND));
    let stranger = Completion::success(99, 5, WcOpcode::SEND);
    rig.rails[0].inject(stranger);
    rig.rails[1].complete(1);
    let (events, polled) = rig.poll_events(32);
    assert_eq!(polled.error, None);
    let completions: Vec<_> = events.iter().filter_map(|event| event.completion()).collect();
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    let device = polyrail_core::verbs::DeviceId(0);
    assert!(events.contains(&Event::Foreign { device, completion: stranger }));
    let error = ProtocolError::Tag { rail: RailId::Data(0), wr_id: out_of_turn, expected: None };
    assert_eq!(rig.qp.take_protocol_error(), Some(error));
    assert_eq!(rig.qp.state(), QpState::Ready);
}
