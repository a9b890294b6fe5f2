//! A completion belongs to the queue pair whose device, number and tag it carries, and to no other,
//! whatever the owner does with indices, numbers and places. `core/docs/architecture.md`, "Tags".

use polyrail_core::hardware::{QpLimits, QueuePair, SendBatch};
use polyrail_core::internals::Tag;
use polyrail_core::verbs::{Completion, DeviceId, RecvWr, SendRequest, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::{AttachError, Event, VirtualCq};
use polyrail_core::virtual_qp::RailId;
use polyrail_tests::rig::{self, Rig, Setup, TestCq, TestQp, ok};
use polyrail_tests::scripted::{LIMITS, Nic, QpHandle};

type Qp = TestQp<4, 8, 16>;

/// A queue pair without its own receives: they come from a shared queue.
const SHARED: QpLimits = QpLimits { max_recv_wr: 0, ..LIMITS };

/// Virtual queue pairs `number` of `rails` rails each, on one device, in one set.
fn set(rails: usize, numbers: [u32; 3]) -> (TestCq, Vec<Qp>, Vec<Vec<QpHandle>>) {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 14)];
    let cq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let make = |(at, number): (usize, u32)| {
        let setup = Setup { notify: false, ..Setup::spray(rails) }.fragment(128);
        let setup = setup.config(|config| config.virtual_qp_num = number);
        let (qp, handles, _) = setup.build_qp(&nic, &cqs, 10 + 10 * at as u32);
        (qp, handles)
    };
    let (qps, handles) = numbers.into_iter().enumerate().map(make).unzip();
    (cq, qps, handles)
}

fn events(cq: &mut TestCq, qps: &mut [Qp]) -> Vec<Event> {
    let mut events = Vec::new();
    let polled = cq.poll(qps, usize::MAX, |event| events.push(event));
    assert_eq!((polled.events, polled.error), (events.len(), None));
    qps.iter().for_each(Qp::invariants);
    events
}

fn is_foreign(event: &Event) -> bool {
    matches!(event, Event::Foreign { .. })
}

#[test]
fn equal_numbers_cannot_be_attached_to_one_completion_queue() {
    for rails in [1, 2] {
        let (mut cq, qps, _) = set(rails, [7, 7, 8]);
        cq.attach(0, &qps[0]).unwrap();
        let taken = AttachError::Number { virtual_qp_num: 7, index: 0 };
        assert_eq!(cq.attach(1, &qps[1]), Err(taken));
        cq.attach(2, &qps[2]).unwrap();
        cq.detach(0);
        cq.attach(1, &qps[1]).expect("the number is free again");
        cq.invariants();
    }
}

/// After `vec.remove(0)` the index of each route names the next queue pair.
#[test]
fn a_queue_pair_that_moved_up_completes_nothing_of_the_one_that_was_there() {
    for rails in [1, 2] {
        let (mut cq, mut qps, mut handles) = set(rails, [1, 2, 3]);
        for (index, qp) in qps.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        qps[1].post_send(&rig::write(100, 128)).unwrap();
        qps[2].post_send(&rig::write(200, 128)).unwrap();
        cq.detach(0);
        drop(qps.remove(0));
        handles.remove(0);
        handles[0].iter().for_each(QpHandle::complete_all);
        let seen = events(&mut cq, &mut qps);
        assert_eq!((seen.len(), seen.iter().all(is_foreign)), (1, true), "{seen:?}");
        // Back at the index under which it is attached, it gets its own completions.
        cq.detach(2);
        cq.attach(0, &qps[1]).unwrap();
        qps.swap(0, 1);
        handles[1].iter().for_each(QpHandle::complete_all);
        let seen = events(&mut cq, &mut qps);
        let ids: Vec<_> = seen.iter().filter_map(|event| event.completion()).collect();
        assert_eq!(ids.iter().map(|wc| (wc.wr_id, wc.qp_num)).collect::<Vec<_>>(), [(200, 3)]);
    }
}

/// Two completion queues, each with a queue pair 7 at index 0: only device, number and tag
/// distinguish them apart when they change places.
#[test]
fn queue_pairs_that_change_places_do_not_complete_each_others_requests() {
    for rails in [1, 2] {
        let nic = Nic::new();
        let cqs = [nic.cq(0, 1 << 14)];
        let setup = Setup { notify: false, ..Setup::spray(rails) };
        let build = |first| setup.build_qp::<4, 8, 16>(&nic, &cqs, first);
        let (mut left, left_handles, _) = build(10);
        let (mut right, right_handles, _) = build(20);
        let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
        cq.attach(0, &left).unwrap();
        let mut other: TestCq = VirtualCq::new([]).unwrap();
        other.attach(0, &right).unwrap();
        left.post_send(&rig::send(1, 8)).unwrap();
        right.post_send(&rig::send(2, 8)).unwrap();
        std::mem::swap(&mut left, &mut right);
        left_handles[0].complete_all();
        let mut seen = Vec::new();
        let polled = cq.poll(&mut left, 16, |event| seen.push(event));
        assert_eq!((polled.events, is_foreign(&seen[0])), (1, true), "{seen:?}");
        assert_eq!(left.first_error(), None);
        assert_eq!(left.protocol_errors(), 0, "a foreign completion is not an error here");
        assert_eq!(right_handles[0].sends().len(), 1, "this one is still in flight");
    }
}

/// A completion as a shared receive queue's receive brings it, with the caller's `wr_id`.
fn arrival(qp_num: u32, wr_id: u64) -> Completion {
    Completion { byte_len: 64, ..Completion::success(qp_num, wr_id, WcOpcode::RECV) }
}

fn shared_receives() -> Rig {
    let mut setup = Setup::spray(2).fragment(128);
    setup.limits = SHARED;
    setup.notify_limits = SHARED;
    setup.rig()
}

/// 5 is "send, last, rail 0, sequence 0" in the low bits of a tag.
#[test]
fn receives_of_a_shared_queue_are_the_callers_each_one() {
    let mut rig = shared_receives();
    rig.post([rig::write(1, 256)]);
    let num = |handle: &QpHandle| handle.qp_num();
    let rails = [num(&rig.rails[0]), num(&rig.rails[1]), num(rig.notify())];
    let handles: Vec<_> = rig.rails.iter().chain(&rig.notify).cloned().collect();
    let mut expected = Vec::new();
    for wr_id in (0..64).chain([1 << 24 | 5, u64::MAX >> 1]) {
        for (handle, qp_num) in handles.iter().zip(rails) {
            for completion in [
                arrival(qp_num, wr_id),
                Completion { wr_id, ..Completion::failure(qp_num, 0, WcStatus::LOC_LEN_ERR, 7) },
            ] {
                handle.inject(completion);
                expected.push(Event::Foreign { device: DeviceId(0), completion });
            }
        }
    }
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let (events, _) = rig.poll_events(usize::MAX);
        assert!(!events.is_empty(), "{} of {} came out", seen.len(), expected.len());
        seen.extend(events);
    }
    assert_eq!(seen, expected);
    assert_eq!(rig.qp.protocol_errors(), 0);
    assert_eq!(rig.qp.unreported_sends(), 1, "the WRITE is in flight");
    rig.rails.iter().for_each(QpHandle::complete_all);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// For the case that an implementation lets a receive carry a tag's mark.
#[test]
fn a_successful_receive_is_never_taken_for_a_send() {
    let mut rig = shared_receives();
    rig.post([rig::write(1, 256)]);
    for rail in [0, 1] {
        let handle = rig.rails[rail].clone();
        let tag = handle.sends()[0].wr_id;
        assert_ne!(tag & Tag::MARK, 0, "every tag is marked");
        handle.inject(arrival(handle.qp_num(), tag));
    }
    let (seen, _) = rig.poll_events(usize::MAX);
    assert_eq!((seen.len(), seen.iter().all(is_foreign)), (2, true), "{seen:?}");
    assert_eq!(rig.qp.unreported_sends(), 1);
    rig.rails.iter().for_each(QpHandle::complete_all);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn requests_posted_behind_the_engines_back_are_the_callers() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128)]);
    let request = SendRequest { wr_id: 5, ..rig.rails[0].sends()[0] };
    // SAFETY: the queue pair stays where it is, and the request has no tag.
    let qp = unsafe { rig.qp.physical_mut(RailId::Data(0)) }.unwrap();
    let mut batch = qp.start_send();
    batch.add(&request);
    batch.commit().unwrap();
    rig.rails[0].complete_all();
    let (events, _) = rig.poll_events(16);
    let completion = Completion::success(10, 5, WcOpcode::RDMA_WRITE);
    assert!(events.contains(&Event::Foreign { device: DeviceId(0), completion }), "{events:?}");
    assert_eq!((events.len(), rig.qp.protocol_errors()), (2, 0));
}

/// A send is never taken for a receive either.
#[test]
fn a_send_is_never_taken_for_a_receive() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    let handle = rig.rails[0].clone();
    let tag = handle.recvs()[0].wr_id;
    let qp_num = handle.qp_num();
    handle.inject(Completion::success(qp_num, tag, WcOpcode::RDMA_WRITE));
    let (seen, _) = rig.poll_events(usize::MAX);
    assert_eq!((seen.len(), seen.iter().all(is_foreign)), (1, true), "{seen:?}");
    assert_eq!(rig.qp.first_error(), None);
}

/// Defect 18: a completion after its virtual queue pair is gone belongs to the caller.
#[test]
fn defect_18_a_completion_after_detach_is_foreign() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    assert!(rig.cq.detach(0));
    assert!(!rig.cq.detach(0), "only once");
    rig.rails[0].complete(1);
    let wr_id = rig.qp.rails().next().map(|_| rig.rails[0].take_doorbells()[0][0].wr_id);
    let (events, _) = rig.poll_events(32);
    let [Event::Foreign { device, completion }] = events[..] else { panic!("{events:?}") };
    assert_eq!((device.0, completion.qp_num, Some(completion.wr_id)), (0, 10, wr_id));
}

/// Defect 18: the same when the virtual queue pair is dropped while it is attached.
#[test]
fn defect_18_a_completion_of_a_dropped_queue_pair_is_foreign() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    rig.rails[1].complete(1);
    let mut none: [rig::TestQp; 0] = [];
    let mut events = Vec::new();
    let polled = rig.cq.poll(&mut none[..], 32, |event| events.push(event));
    assert_eq!((polled.events, polled.error), (1, None));
    assert!(matches!(events[0], Event::Foreign { completion, .. } if completion.qp_num == 11));
}
