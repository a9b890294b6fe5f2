//! The order of reports, errors, and polling: the examples of the C++ design that polyrail
//! implements.

use polyrail_core::verbs::{Completion, DeviceId, Imm, RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_tests::rig::{self, Rig, Setup, done, ok};

const KB_100: u32 = 100 << 10;

/// A (200 KB, two fragments), then B (80 KB); B completes first. B is on a rail without a fragment
/// of A, since an RC queue pair would complete A's fragment first.
#[test]
fn b_completes_first_and_is_reported_after_a() {
    let mut rig = Setup::spray(3).fragment(KB_100).rig();
    rig.post([rig::write(100, 2 * KB_100), rig::write(200, 80 << 10)]);
    rig.rails[2].complete(1);
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    rig.rails[1].complete(1);
    let expected =
        [done(100, WcOpcode::RDMA_WRITE, 2 * KB_100), done(200, WcOpcode::RDMA_WRITE, 80 << 10)];
    assert_eq!(rig.poll(), expected);
}

/// Requests 1 (on rails 0 and 1), 2 (on rails 2 and 3) and 3 (on rail 0).
fn abc() -> Rig {
    let mut rig = Setup::spray(4).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::write(2, 256), rig::write(3, 128)]);
    rig
}

/// Three requests A, B and C. C shares rail 0 with A's first fragment.
#[test]
fn a_b_c_come_out_in_posting_order() {
    let mut rig = abc();
    rig.rails[2].complete(1);
    assert_eq!(rig.poll(), [], "a fragment of B");
    rig.rails[0].complete(2);
    assert_eq!(rig.poll(), [], "a fragment of A, and all of C");
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]), "A; B is not complete");
    rig.rails[3].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2, 3]), "B, and C with it");
}

/// The same requests complete in the order B, A, C, A.
#[test]
fn c_waits_for_b_even_though_a_is_reported() {
    let mut rig = abc();
    for (rail, expected) in [(2, vec![]), (0, vec![]), (0, vec![]), (1, ok(&[1]))] {
        rig.rails[rail].complete(1);
        assert_eq!(rig.poll_ids(), expected);
    }
    rig.rails[3].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2, 3]));
}

/// Completions of receives never wait for pending sends.
#[test]
fn sends_and_receives_are_ordered_independently() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    let recv = polyrail_core::verbs::RecvWr::notification(50);
    rig.qp.post_recv(&recv).unwrap();
    rig.notify().deliver_imm(polyrail_core::verbs::Imm::from_number(9));
    let mut expected = done(50, WcOpcode::RECV_RDMA_WITH_IMM, 0);
    expected.imm = Some(9);
    assert_eq!(rig.poll(), [expected]);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 256)]);
}

/// The status of a request is its first error: the one whose completion came first.
#[test]
fn the_first_error_wins_and_is_reported_when_all_fragments_are_in() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    rig.post([rig::write(1, 3 * 128), rig::write(2, 128)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    assert_eq!(rig.poll(), [], "two fragments are still in flight");
    rig.rails[2].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    let expected = [(1, WcStatus::REM_ACCESS_ERR), (2, WcStatus::SUCCESS)];
    assert_eq!(rig.poll_ids(), expected, "what was in flight reports its real status");
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.status, error.offset), (WcStatus::REM_ACCESS_ERR, 128));
}

#[test]
fn within_a_batch_the_failure_wins_over_the_flushes_behind_it() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 8 * 128)]);
    rig.rails[0].fail_after(2, WcStatus::LOC_PROT_ERR);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::LOC_PROT_ERR)]);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.offset, error.qp_num), (2 * 128, 10));
    assert_eq!(error.vendor_err & 0xFF00_0000, 0x8100_0000);
}

/// A batch gives the same results as its completions one by one.
#[test]
fn completions_in_one_batch_and_one_by_one_report_the_same() {
    let wanted = {
        let mut rig = abc();
        rig.rails.iter().for_each(|rail| rail.complete_all());
        rig.poll_ids()
    };
    assert_eq!(wanted, ok(&[1, 2, 3]));
    let mut rig = abc();
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let mut one_by_one = Vec::new();
    while rig.nic.unpolled() > 0 || rig.qp.unreported_sends() > 0 {
        let (events, _) = rig.poll_events(1);
        one_by_one.extend(events.into_iter().filter_map(Event::completion));
    }
    let ids: Vec<_> = one_by_one.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, wanted);
}

/// What is complete beyond the budget comes out first next time. It needs no second queue, since it
/// stays in the ring.
#[test]
fn the_budget_limits_reports_and_the_rest_comes_first_in_order() {
    let mut rig = Setup::spray(4).fragment(128).rig();
    rig.post((0..10).map(|id| rig::write(id, 128)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let mut seen = Vec::new();
    let mut polls = 0;
    while rig.qp.unreported_sends() > 0 {
        let (events, _) = rig.poll_events(3);
        seen.extend(events.into_iter().filter_map(Event::completion).map(|wc| wc.wr_id));
        polls += 1;
        assert!(polls < 100);
    }
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_budget_of_zero_reports_nothing_and_loses_nothing() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_events(0).0, []);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn poll_one_hands_out_events_one_by_one() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let mut next = || rig.cq.poll_one(&mut rig.qp).0.and_then(Event::completion);
    assert_eq!(next().map(|wc| wc.wr_id), Some(1));
    assert_eq!(next().map(|wc| wc.wr_id), Some(2));
    assert_eq!(next(), None);
}

/// Priority polling: the completions of one device first.
#[test]
fn poll_cq_takes_from_one_queue_only() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails[0].complete(1);
    rig.rails[1].complete(1);
    let mut seen = Vec::new();
    let polled = rig.cq.poll_cq(1, &mut rig.qp, 32, |event| seen.push(event));
    assert_eq!((polled.events, seen.len()), (0, 0), "request 1 is not complete");
    assert_eq!(rig.nic.unpolled(), 1);
    let polled = rig.cq.poll_cq(0, &mut rig.qp, 32, |event| seen.push(event));
    assert_eq!((polled.events, polled.error), (2, None));
    let ids: Vec<_> = seen.into_iter().filter_map(Event::completion).map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn poll_cq_hands_over_what_its_own_budget_left_behind() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post((0..4).map(|id| rig::write(id, 128)));
    // Request 0 last, so that all four become reportable with the last completion.
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let _ = rig.cq.poll_cq(0, &mut rig.qp, 1, |event| seen.push(event));
    }
    let ids: Vec<_> = seen.into_iter().filter_map(Event::completion).map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
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

/// Sends and receives are ordered separately; neither keeps the other waiting.
#[test]
fn finished_sends_and_receives_are_reported_in_turns() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    for id in [11, 12, 13] {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
        rig.notify().deliver_imm(Imm::from_number(0));
    }
    rig.post((1..=3).map(|id| rig::write(id, 128)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[11, 1, 12, 2, 13, 3]));
}
