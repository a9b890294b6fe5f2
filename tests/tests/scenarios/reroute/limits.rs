//! Where re-routing ends. `core/docs/rails-that-fail.md`, "Which errors are a rail's fault" and
//! "What each owner must do".

use super::{RAIL_0, RAIL_1, dqplb, fail, fenced, spray};
use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{SendFlags, WcStatus};
use polyrail_core::virtual_qp::{
    BuildError, Config, FailedBecause, Failure, PassThroughOrder, QpState, RailEventKind,
    RailFailure, RailState, VirtualQp,
};
use polyrail_tests::rig::{self, Rig, Setup, ok};
use polyrail_tests::scripted::{LIMITS, Nic, ScriptedQp};

#[test]
fn what_cannot_be_rerouted_is_refused_when_built() {
    let build = |rails: u32, min_rails: u8, max_recv_wr: u32| {
        let nic = Nic::new();
        let cq = nic.cq(0, 64);
        let limits = QpLimits { max_recv_wr, ..LIMITS };
        let rails: Vec<_> = (0..rails).map(|number| nic.qp(number, &cq, limits).0).collect();
        let config = Config { rail_failure: RailFailure::Reroute, min_rails, ..Config::default() };
        VirtualQp::<ScriptedQp, 4, 16, 32>::new(config, rails, None).map(|_| ())
    };
    assert_eq!(build(1, 1, 8), Err(BuildError::NothingToRerouteTo));
    assert_eq!(build(2, 3, 8), Err(BuildError::MinRails { min_rails: 3, rails: 2 }));
    assert_eq!(build(2, 1, 0), Err(BuildError::SharedReceives { qp_num: 0 }));
    assert_eq!(build(2, 2, 8), Ok(()));
}

#[test]
fn too_few_rails_are_an_error_at_once() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.qp.fail_rail(RAIL_1);
    assert_eq!(rig.qp.state(), QpState::Degraded);
    rig.qp.fail_rail(RAIL_0);
    assert_eq!(rig.qp.failure(), Some(Failure::TooFewRails { in_service: 0, min_rails: 1 }));
    let mut reports = rig.poll_ids();
    reports.extend(rig.poll_ids());
    assert_eq!(reports, [(1, WcStatus::WR_FLUSH_ERR)]);
    assert!(rig.qp.unfenced().eq([RAIL_0, RAIL_1]));
}

#[test]
fn with_no_least_number_requests_wait_for_a_rail() {
    let mut rig = spray().config(|config| config.min_rails = 0).rig();
    rig.qp.fail_rail(RAIL_1);
    rig.qp.fail_rail(RAIL_0);
    rig.post([rig::write(1, 256)]);
    assert_eq!(rig.poll(), []);
    rig.qp.fail();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(rig.qp.failure(), Some(Failure::Owner));
}

/// A request that fails devices one after the other is given up; lost links never are its fault.
#[test]
fn a_request_that_fails_rail_after_rail_is_given_up() {
    let rounds = |status| {
        let mut rig: Rig<4, 16, 32> = spray().build();
        rig.post([rig::write(1, 128)]);
        let mut generations = [0; 2];
        for round in 0..20 {
            let rail = usize::from(rig.rails[0].sends().is_empty());
            let id = [RAIL_0, RAIL_1][rail];
            rig.rails[rail].fail(status);
            rig.poll();
            if rig.qp.state() == QpState::Error {
                return Some(round);
            }
            rig.qp.control(fenced(id, generations[rail], 0)).unwrap();
            generations[rail] += 1;
            rig.replace(id, generations[rail], 100 + round);
            super::ready(&mut rig, id, generations[rail]);
        }
        None
    };
    assert_eq!(rounds(WcStatus::FATAL_ERR), Some(4), "the fifth failure, over two rails");
    assert_eq!(rounds(WcStatus::GENERAL_ERR), Some(4));
    assert_eq!(rounds(WcStatus::LOC_QP_OP_ERR), Some(4));
    assert_eq!(rounds(WcStatus::RETRY_EXC_ERR), None);
}

/// One failure counts once against a request, however many of its batches it hits.
#[test]
fn a_failure_counts_once_against_a_request() {
    let mut rig = spray().config(|config| config.min_rails = 0).rig();
    rig.post([rig::write(1, 256), rig::write(2, 256)]);
    // Rail 0 has fragments of one request and of the other, and then again.
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.pieces(0).len(), 4);
    for round in 0..4 {
        fail(&mut rig, 0, WcStatus::FATAL_ERR);
        rig.qp.control(fenced(RAIL_0, round, 0)).unwrap();
        rig.replace(RAIL_0, round + 1, 100 + u32::from(round));
        super::ready(&mut rig, RAIL_0, round + 1);
        assert_eq!(rig.pieces(0).len(), 4);
    }
    assert_eq!(rig.qp.failure(), None, "four failures, over two rails");
}

/// Maintenance: a healthy rail drains without loss, and comes back; its health is another matter.
#[test]
fn service_and_health_are_independent() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    assert!(rig.qp.rails_in_service().eq([RAIL_0, RAIL_1]));
    assert!(rig.qp.set_rail_in_service(1, false));
    assert!(rig.qp.rails_in_service().eq([RAIL_0]));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::InService));
    assert!(rig.qp.fail_rail(RAIL_1));
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.replace(RAIL_1, 1, 77);
    super::ready(&mut rig, RAIL_1, 1);
    rig.post([rig::write(2, 256)]);
    assert!(rig.rails[1].sends().is_empty(), "its owner still wants it out of service");
    assert!(rig.qp.set_rail_in_service(1, true));
    rig.post([rig::write(3, 256)]);
    assert!(!rig.rails[1].sends().is_empty());
    assert!(rig.qp.rails_in_service().eq([RAIL_0, RAIL_1]));
    rig.run_dry();
    assert_eq!(rig.qp.state(), QpState::Ready);
}

/// The device is gone: none of its completions come, and what was in flight is posted elsewhere.
#[test]
fn a_lost_rail_waits_for_no_completion() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 512)]);
    rig.rails[0].complete_all();
    rig.pieces(0);
    // SAFETY: the scripted NIC touches no memory.
    assert!(unsafe { rig.qp.lose_rail(RAIL_1) });
    assert_eq!(rig.pieces(0).concat().len(), 2);
    rig.rails[0].complete_all();
    assert_eq!(
        rig.poll(),
        [],
        "its own completions, which come all the same, are of no rail any more"
    );
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.protocol_errors(), 0);
}

/// A complaint about a request that was taken: the rail failed, the request did not.
#[test]
fn a_driver_that_complains_of_a_send_that_it_took_is_a_failed_rail() {
    let mut rig = spray().rig();
    rig.rails[0].complain_next(1, Refusal::Driver(5));
    rig.post([rig::send(1, 8)]);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.rail_state(RAIL_0), Some(RailState::Fenced));
    rig.qp.control(fenced(RAIL_0, 0, 1)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    let events = rig.rail_events();
    assert_eq!(events[1].kind, RailEventKind::Fenced { arrived: 1, again: 0 });
    fail_other(&mut rig);
}

/// Completions of what was lost and retired never free anything twice.
fn fail_other(rig: &mut Rig) {
    rig.replace(RAIL_0, 1, 77);
    super::ready(rig, RAIL_0, 1);
    rig.post([rig::write(2, 256)]);
    fail(rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

#[test]
fn setup_without_rerouting_is_as_it_was() {
    assert_eq!(Setup::spray(2).config.rail_failure, RailFailure::Fatal);
}

/// A queue pair that answers may still carry out what is on its way: nothing is sent before it is
/// silent.
#[test]
fn a_queue_pair_that_still_answers_is_not_fenced() {
    let mut rig = spray().rig();
    let refusal = Refusal::Driver(19);
    rig.rails[1].refuse_error(Some(refusal));
    assert!(rig.qp.fail_rail(RAIL_1));
    for _ in 0..3 {
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Draining));
    }
    let failed = RailEventKind::Failed { why: FailedBecause::Owner, refused: Some(refusal) };
    assert_eq!(rig.rail_events()[0].kind, failed);
    rig.rails[1].refuse_error(None);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Fenced));
}

/// Completions in the error state, where no request waits for a fence.
#[test]
fn completions_of_a_queue_pair_that_was_replaced_change_nothing() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 512), rig::send(2, 8)]);
    rig.qp.fail();
    for rail in [RAIL_0, RAIL_1] {
        // SAFETY: the scripted NIC touches no memory.
        assert!(unsafe { rig.qp.lose_rail(rail) });
    }
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(rig.poll_ids(), [(1, flushed), (2, flushed)]);
    assert_eq!(rig.qp.protocol_errors(), 0);
}

/// Given up while a fence is awaited: what was posted again and acknowledged may still be written
/// by what was lost, so it is no success.
#[test]
fn without_its_fence_a_request_that_was_posted_again_is_no_success() {
    let mut rig = spray().rig();
    rig.post([rig::write(1, 256)]);
    rig.rails[0].complete_all();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    rig.qp.fail();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
    assert!(rig.qp.unfenced().eq([RAIL_1]));
}

/// Such requests do not wait for the peer, on a queue pair, for credits, or for a rail.
#[test]
fn requests_that_take_no_receive_count_until_they_are_acknowledged() {
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let without = [rig::write(9, 128), rig::read(9, 128), rig::fetch_add(9)];
    let with = [rig::send(9, 64), rig::write(9, 128).with_flags(fenced)];
    let unordered = || spray().config(|config| config.pass_through = PassThroughOrder::Unordered);
    for (wr, counts) in without.map(|wr| (wr, true)).into_iter().chain(with.map(|wr| (wr, false))) {
        // Behind a SEND on rail 0, the only one.
        let mut rig = unordered().rig();
        rig.qp.fail_rail(RAIL_1);
        rig.post([rig::send(1, 64)]);
        assert!(!rig.qp.has_requests_without_receive());
        rig.post([wr]);
        assert_eq!(rig.qp.has_requests_without_receive(), counts, "{wr:?}");
        assert!(rig.qp.may_wait_for_receive(RAIL_0));
        rig.run_dry();
        assert!(!rig.qp.has_requests_without_receive());
    }
    // Without credits, and of what a rail lost.
    let mut rig = unordered().depth(2).rig();
    rig.qp.fail_rail(RAIL_1);
    rig.post([rig::send(1, 64), rig::send(2, 64), rig::write(3, 256)]);
    assert!(rig.qp.has_requests_without_receive());
    rig.run_dry();
    assert!(!rig.qp.has_requests_without_receive());
    let mut rig = spray().config(|config| config.min_rails = 0).rig();
    rig.post([rig::write(1, 256)]);
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    assert!(rig.qp.has_requests_without_receive());
}

/// With SPRAY the peer's receive is for the notify, with DQPLB for each fragment.
#[test]
fn the_fragments_of_a_notification_take_receives_with_dqplb_only() {
    for (setup, counts) in [(spray(), true), (dqplb(), false)] {
        let mut rig: Rig = setup.rig();
        rig.post([rig::write_imm(1, 256, 9)]);
        assert_eq!(rig.qp.has_requests_without_receive(), counts);
        rig.rails.iter().for_each(|rail| rail.complete_all());
        rig.poll();
        assert!(!rig.qp.has_requests_without_receive());
    }
}
