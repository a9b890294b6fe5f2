//! Requests whose arrival the peer counts (SENDs and notifies), and atomics, which it cannot count.
//! `core/docs/rails-that-fail.md`, "What happens to requests".

use super::{RAIL_0, fail, fenced, ready, spray};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::{DeviceId, Opcode, SendFlags, WcStatus};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::{Failure, PostSendError, QpState, RailId, RailState};
use polyrail_tests::rig::{self, Rig, ok};
use std::mem::MaybeUninit;

/// Those that arrived are done; the others go out on the replacement of rail 0, before any new
/// ones.
#[test]
fn sends_go_out_again_on_the_replacement_of_rail_0() {
    let mut rig = spray().rig();
    rig.post((1..=3).map(|id| rig::send(id, 8)));
    rig.rails[0].complete(1);
    rig.rails[0].flush();
    assert_eq!(rig.poll_ids(), ok(&[1]), "a completion that succeeded is final");
    rig.rails[0].take_doorbells();
    rig.qp.control(fenced(RAIL_0, 0, 2)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[2]), "it had arrived");
    rig.post([rig::send(4, 16)]);
    rig.replace(RAIL_0, 1, 77);
    assert!(rig.rails[0].sends().is_empty());
    ready(&mut rig, RAIL_0, 1);
    let lengths: Vec<_> = rig.rails[0].sends().iter().map(|send| send.sge.length()).collect();
    assert_eq!(lengths, [8, 16], "request 3, then 4");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[3, 4]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// An unsignaled SEND that arrived is not reported, as one that succeeds.
#[test]
fn an_unsignaled_send_that_arrived_is_not_reported() {
    let mut rig = spray().rig();
    rig.post([rig::send(1, 8).with_flags(SendFlags::empty()), rig::send(2, 8)]);
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    rig.qp.control(fenced(RAIL_0, 0, 2)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// While rail 0 is down, SENDs wait; others go on.
#[test]
fn sends_wait_for_rail_0_and_writes_do_not() {
    let mut rig = spray().rig();
    rig.qp.fail_rail(RAIL_0);
    rig.post([rig::send(1, 8), rig::write(2, 128)]);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert!(rig.rails[0].sends().is_empty());
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    rig.replace(RAIL_0, 1, 77);
    ready(&mut rig, RAIL_0, 1);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// It is unknown whether a lost atomic was carried out: it fails, and the virtual queue pair with
/// it.
#[test]
fn a_lost_atomic_ends_the_virtual_queue_pair() {
    let mut rig = spray().rig();
    rig.post([rig::fetch_add(1), rig::write(2, 128)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    rig.rails[1].complete_all();
    let mut reports = rig.poll_ids();
    reports.extend(rig.poll_ids());
    reports.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0], (1, WcStatus::WR_FLUSH_ERR));
    assert_eq!(rig.qp.state(), QpState::Error);
    assert!(matches!(rig.qp.failure(), Some(Failure::Rail(error)) if error.rail == RAIL_0));
}

/// The queue of notifies: those that arrived are done, the others go out again.
#[test]
fn notifies_that_did_not_arrive_go_out_on_the_replacement() {
    let mut rig = spray().rig();
    rig.post_together((1..=3).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1, 2, 3]]);
    rig.notify().fail(WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.post([rig::write_imm(4, 128, 4), rig::write(5, 128)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RailId::Notify, 0, 1)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.replace(RailId::Notify, 1, 77);
    ready(&mut rig, RailId::Notify, 1);
    assert_eq!(rig.notifies(), [[2, 3, 4]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2, 3, 4, 5]));
}

/// An ordered SEND stays behind a notify that was lost.
#[test]
fn an_ordered_send_waits_for_a_lost_notify() {
    let mut rig = spray().rig();
    rig.post([rig::write_imm(1, 256, 1)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    rig.notify().fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.rails[0].take_doorbells();
    rig.post([rig::send(2, 8)]);
    assert!(rig.rails[0].sends().is_empty());
    rig.qp.control(fenced(RailId::Notify, 0, 0)).unwrap();
    assert!(rig.rails[0].sends().is_empty());
    rig.replace(RailId::Notify, 1, 77);
    ready(&mut rig, RailId::Notify, 1);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0), [Opcode::Send]);
}

/// INLINE data is gone when the post returns.
#[test]
fn inline_requests_are_refused() {
    let mut rig = spray().rig();
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    for request in [rig::write(1, 8), rig::send(1, 8)] {
        let posted = rig.qp.post_send(&request.with_flags(flags));
        assert_eq!(posted, Err(PostSendError::InlineRerouted));
    }
    assert_eq!(rig.qp.rail_state(RAIL_0), Some(RailState::InService));
}

/// A fenced SEND behind a lost one, requests that go on, and a ring that comes round.
#[test]
fn a_fenced_send_behind_a_lost_one_goes_out() {
    let mut rig: Rig<4, 16, 8> = spray().unordered().build();
    let fence = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::send(0, 8), rig::send(1, 8).with_flags(fence), rig::write(2, 128)]);
    rig.post([rig::write(3, 128).with_flags(fence)]);
    rig.rails[0].flush();
    rig.rails[1].complete_all();
    rig.poll();
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    rig.rails[1].complete_all();
    rig.poll();
    rig.rails[1].complete_all();
    rig.poll();
    rig.replace(RAIL_0, 1, 77);
    ready(&mut rig, RAIL_0, 1);
    let mut done = Vec::new();
    for _ in 0..4 {
        rig.rails.iter().for_each(|rail| rail.complete_all());
        done.extend(rig.poll_ids());
    }
    assert_eq!(done, ok(&[0, 1, 3]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// SENDs are reported in order: one that arrived and was lost before one that goes out on the
/// replacement.
#[test]
fn a_send_that_arrived_is_reported_before_the_next_one() {
    let mut rig = spray().rig();
    rig.post([rig::send(1, 8), rig::send(2, 8)]);
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    rig.qp.control(fenced(RAIL_0, 0, 1)).unwrap();
    rig.replace(RAIL_0, 1, 77);
    ready(&mut rig, RAIL_0, 1);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

/// Feeds the engine exactly one completion.
fn poll_one_completion(rig: &mut Rig) -> Vec<VirtualWc> {
    let mut one = [const { MaybeUninit::uninit() }; 1];
    let completions = rig.cqs[0].poll(&mut one).expect("a working queue");
    let mut wcs = Vec::new();
    // SAFETY: just polled from the only queue of this device, in order.
    unsafe {
        rig.cq.feed(&mut rig.qp, DeviceId(0), completions, |event| wcs.extend(event.completion()))
    };
    rig.qp.invariants();
    wcs
}

/// Given up between the flush of the first notify of a batch and that of the second: neither
/// succeeded.
#[test]
fn a_batch_of_notifies_that_is_partly_lost_fails_whole() {
    let mut rig = spray().rig();
    rig.post_together((1..=2).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    rig.notify().fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(poll_one_completion(&mut rig), []);
    rig.qp.fail();
    let mut reports = Vec::new();
    (0..3).for_each(|_| reports.extend(rig.poll_ids()));
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(reports, [(1, flushed), (2, flushed)]);
}

/// Given up while one SEND is lost and the next one still in flight: each is reported once, in
/// order.
#[test]
fn sends_that_are_lost_and_in_flight_are_flushed_in_order() {
    let mut rig = spray().unordered().rig();
    rig.post([rig::send(1, 8), rig::send(2, 8), rig::send(3, 8)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(poll_one_completion(&mut rig), []);
    rig.qp.fail();
    let mut reports = Vec::new();
    (0..3).for_each(|_| reports.extend(rig.poll_ids()));
    let ids: Vec<_> = reports.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// A notification behind a SEND that arrived goes out by itself.
#[test]
fn what_waits_behind_a_send_that_arrived_goes_on() {
    let mut rig = spray().rig();
    rig.post([rig::send(1, 8), rig::write_imm(2, 128, 7)]);
    rig.rails[0].flush();
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[1].complete_all();
    rig.qp.control(fenced(RAIL_0, 0, 1)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[7]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
}
