//! Fragments that were lost with their rail. `core/docs/rails-that-fail.md`, "What happens to
//! requests".

use super::{RAIL_0, RAIL_1, dqplb, fail, fenced, ready, spray};
use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_core::virtual_qp::{QpState, RailEventKind, RailId, RailState};
use polyrail_tests::rig::{self, Setup, ok};
use polyrail_tests::scripted::LIMITS;
use polyrail_tests::view::{inner, of, write};

/// Plain fragments are posted again after the local drain, and reported after the fence.
#[test]
fn plain_fragments_are_posted_again_at_once_and_reported_after_the_fence() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 512)]);
    assert_eq!(rig.pieces(0), [[inner(write(0, 128)), write(128, 128)]]);
    assert_eq!(rig.pieces(1), [[inner(write(256, 128)), write(384, 128)]]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.qp.state(), QpState::Degraded);
    assert_eq!(rig.pieces(0), [[inner(write(256, 128)), write(384, 128)]]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), [], "the lost fragments may still be carried out");
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Down));
}

/// Of a batch whose first fragments were acknowledged, only the rest goes out again.
#[test]
fn what_was_acknowledged_is_not_posted_again() {
    let mut rig = spray().depth(4).rig();
    rig.post([rig::read(1, 1024)]);
    rig.pieces(0);
    rig.rails[0].complete_all();
    rig.rails[1].fail_after(3, WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[of(Opcode::RdmaRead, write(896, 128))]]);
}

/// A flush does not report unsignaled requests before it.
#[test]
fn a_flush_acknowledges_nothing() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 512)]);
    rig.pieces(0);
    rig.rails[0].complete_all();
    rig.rails[1].complete(1);
    rig.rails[1].flush();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[inner(write(256, 128)), write(384, 128)]]);
}

/// A lost batch is split as credits allow, and goes before new requests.
#[test]
fn what_was_lost_goes_first_in_parts_if_need_be() {
    let mut rig = spray().depth(2).rig();
    rig.post([rig::write(1, 512), rig::write(2, 256)]);
    assert_eq!(rig.pieces(0).concat().len(), 2);
    rig.rails[1].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [] as [Vec<_>; 0], "no credits");
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[inner(write(256, 128)), write(384, 128)]]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0), [[inner(write(0, 128)), write(128, 128)]], "then the next request");
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// Numbers must not arrive twice: after the fence, those beyond what arrived, with their old
/// numbers.
#[test]
fn numbered_fragments_wait_for_the_fence_and_keep_their_numbers() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 768, 0)]);
    let imms = |batches: Vec<Vec<SendRequest>>| -> Vec<u32> {
        batches.concat().iter().map(|request| request.imm.number()).collect()
    };
    let first = imms(rig.rails[0].take_doorbells());
    let second = imms(rig.rails[1].take_doorbells());
    assert_eq!((first.len(), second.len()), (3, 3));
    fail(&mut rig, 1, WcStatus::WR_FLUSH_ERR);
    assert!(rig.rails[0].take_doorbells().is_empty());
    rig.qp.control(fenced(RAIL_1, 0, 1)).unwrap();
    assert_eq!(imms(rig.rails[0].take_doorbells()), second[1..]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    let events = rig.rail_events();
    assert_eq!(events[1].kind, RailEventKind::Fenced { arrived: 1, again: 2 });
}

/// Everything had arrived: nothing goes out again, and the request is done.
#[test]
fn numbered_fragments_that_all_arrived_are_done() {
    let mut rig = dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    rig.post([rig::write_imm(1, 512, 0)]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.rails[0].take_doorbells();
    rig.qp.control(fenced(RAIL_1, 0, 2)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert!(rig.rails[0].take_doorbells().is_empty());
}

/// "FENCE ... waits for the cursor, not for acknowledgements" (a counterexample of the model's): a
/// fragment posted again is acknowledged, and the lost one may still be carried out.
#[test]
fn a_fenced_request_waits_for_the_fence_of_the_rail() {
    let mut rig = spray().rig();
    let fence = rig::write(2, 128).with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    rig.post([rig::write(1, 256), fence]);
    rig.pieces(0);
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.pieces(0).len(), 1, "the lost one again, and no more");
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.pieces(0).len(), 1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// The same for the notification of what was lost.
#[test]
fn a_notify_waits_for_the_fence_of_the_rail() {
    let mut rig = spray().rig();
    rig.post([rig::write_imm(1, 256, 7)]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert!(rig.notifies().is_empty());
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.notifies(), [[7]]);
}

/// A rail on which everything succeeded is fenced without anybody waiting.
#[test]
fn a_rail_that_lost_nothing_holds_up_nothing() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.rails[1].flush();
    assert!(rig.qp.fail_rail(RAIL_1));
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.post([rig::write(2, 256)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// "When all rails failed and the first comes back, the ring holds lost batches and new ones."
#[test]
fn all_rails_fail_and_the_first_to_return_carries_what_all_of_them_lost() {
    let mut rig = spray().depth(4).config(|config| config.min_rails = 0).rig();
    rig.post([rig::write(1, 1024), rig::write(2, 256)]);
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.qp.state(), QpState::Degraded);
    for rail in [RAIL_0, RAIL_1] {
        rig.qp.control(fenced(rail, 0, 0)).unwrap();
    }
    rig.replace(RAIL_1, 1, 77);
    assert_eq!(rig.rails[1].take_doorbells().len(), 0, "the peer is not ready");
    ready(&mut rig, RAIL_1, 1);
    let mut offsets = Vec::new();
    for _ in 0..4 {
        offsets.extend(rig.pieces(1).concat().iter().map(|piece| piece.offset));
        rig.rails[1].complete_all();
        rig.poll().iter().for_each(|wc| assert!(wc.status.is_success()));
    }
    offsets[..8].sort_unstable();
    assert_eq!(offsets, [0, 128, 256, 384, 512, 640, 768, 896, 0, 128]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

/// The rail that returns carries what it lost, and at once what others lost: before new requests.
#[test]
fn the_last_rail_returns_first_and_carries_what_the_first_one_lost() {
    let mut rig = spray().depth(8).config(|config| config.min_rails = 0).rig();
    rig.post([rig::write(1, 512)]);
    for (place, rail) in [RAIL_0, RAIL_1].into_iter().enumerate() {
        fail(&mut rig, place, WcStatus::RETRY_EXC_ERR);
        rig.qp.control(fenced(rail, 0, 0)).unwrap();
    }
    rig.post([rig::write(2, 128)]);
    rig.replace(RAIL_1, 1, 77);
    ready(&mut rig, RAIL_1, 1);
    let offsets = rig.pieces(1).concat().iter().map(|piece| piece.offset).collect::<Vec<_>>();
    assert_eq!(offsets, [256, 384, 0, 128, 0]);
}

/// The second failure: of the rail that carries what the first one lost, before its fence.
#[test]
fn what_was_posted_again_is_lost_again() {
    let mut rig = Setup::spray(3).fragment(128).reroute().rig();
    rig.post([rig::write(1, 384)]);
    rig.rails[0].complete_all();
    rig.rails[2].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    let carrier = (0..3).find(|rail| !rig.rails[*rail].sends().is_empty()).unwrap();
    fail(&mut rig, carrier, WcStatus::RETRY_EXC_ERR);
    let last = (0..3).find(|rail| !rig.rails[*rail].sends().is_empty()).unwrap();
    rig.rails[last].complete_all();
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RailId::Data(carrier as u8), 0, 0)).unwrap();
    assert_eq!(rig.poll(), [], "of the first one");
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// A driver that took the front of a batch and refuses the rest for good: a failed rail.
#[test]
fn a_driver_that_refuses_the_rest_of_a_batch_is_a_failed_rail() {
    for refusal in [Refusal::Driver(5), Refusal::QueueFull] {
        let mut rig = spray().rig();
        rig.rails[1].refuse_next(1, refusal);
        if refusal == Refusal::QueueFull {
            rig.post([rig::write(1, 512)]);
            rig.rails[1].refuse_all(Some(refusal));
            rig.rails[1].complete(1);
            rig.rails[0].complete_all();
            assert_eq!(rig.poll(), []);
            assert!(rig.qp.check_stalled().is_empty());
            assert!(rig.qp.check_stalled().contains(RAIL_1));
            rig.rails[1].refuse_all(None);
        } else {
            rig.post([rig::write(1, 512)]);
            rig.rails[0].complete_all();
        }
        assert_ne!(rig.qp.rail_state(RAIL_1), Some(RailState::InService));
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Fenced), "{refusal}");
        rig.rails[0].complete_all();
        assert_eq!(rig.poll(), []);
        rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
        assert_eq!(rig.poll_ids(), ok(&[1]));
    }
}

/// A driver that refuses everything: the other rails carry the request that was refused, and the
/// caller does not notice it.
#[test]
fn a_driver_that_refuses_is_a_failed_rail() {
    let mut rig = spray().rig();
    rig.rails[1].refuse_all(Some(Refusal::Driver(5)));
    rig.post([rig::write(1, 512)]);
    assert_eq!(rig.pieces(0).concat().len(), 4);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.first_error().unwrap().errno, Some(5));
}

/// Uneven rails: the smaller one takes what the larger one lost in parts.
#[test]
fn a_small_rail_carries_what_a_large_one_lost() {
    let mut setup = spray();
    setup.rail_limits = vec![QpLimits { max_send_wr: 1, ..LIMITS }, LIMITS];
    let mut rig = setup.rig();
    rig.post([rig::write(1, 2048)]);
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    let mut done = Vec::new();
    for _ in 0..20 {
        rig.rails[0].complete_all();
        done.extend(rig.poll_ids());
    }
    assert_eq!(done, ok(&[1]));
    let mut offsets: Vec<_> = rig.pieces(0).concat().iter().map(|piece| piece.offset).collect();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), 16);
}
