//! What is refused when a virtual queue pair is built, and what remains after one is dropped.
//! `core/docs/reference.md`, defects 13, 14 and 19.

use polyrail_core::hardware::QpLimits;
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_qp::{BuildError, Config, Scheme};
use polyrail_tests::rig::{self, Setup, TestQp};
use polyrail_tests::scripted::{LIMITS, Nic, ScriptedQp};

#[test]
fn what_cannot_work_is_refused_when_it_is_built() {
    let nic = Nic::new();
    let cq = nic.cq(0, 64);
    let make = |number: u32| -> ScriptedQp { nic.qp(number, &cq, LIMITS).0 };
    let built = |rails: Vec<ScriptedQp>, notify: Option<ScriptedQp>| {
        TestQp::<4, 8, 16>::new(Config::default(), rails, notify).map(|_| ())
    };
    assert_eq!(built(vec![], None), Err(BuildError::NoRails));
    let five = (1..6).map(make).collect();
    assert_eq!(built(five, None), Err(BuildError::TooManyRails { max: 4 }));
    let duplicate = Err(BuildError::Duplicate { device: DeviceId(0), qp_num: 1 });
    assert_eq!(built(vec![make(1), make(1)], None), duplicate);
    assert_eq!(built(vec![make(2), make(1)], Some(make(1))), duplicate);
    assert_eq!(built(vec![make(1)], Some(make(2))), Err(BuildError::UnexpectedNotify));
    let dqplb = Config { scheme: Scheme::Dqplb, ..Config::default() };
    let unexpected = <TestQp>::new(dqplb, [make(1), make(2)], Some(make(3))).map(|_| ());
    assert_eq!(unexpected, Err(BuildError::UnexpectedNotify), "DQPLB over several rails");
    let none = QpLimits { max_send_wr: 0, ..LIMITS };
    let notify = nic.qp(9, &cq, none).0;
    let no_room = Err(BuildError::NoRoom { qp_num: 9, send: true });
    assert_eq!(built(vec![make(1), make(2)], Some(notify)), no_room);
    assert_eq!(nic.owners(), 2, "the physical ones were dropped");
}

fn build(config: Config, limits: QpLimits) -> Result<rig::TestQp, BuildError> {
    let nic = Nic::new();
    let cq = nic.cq(0, 1 << 10);
    let rails: Vec<ScriptedQp> = (10..12).map(|number| nic.qp(number, &cq, limits).0).collect();
    <rig::TestQp>::new(config, rails, None)
}

/// Defect 13: a limit of zero is refused when the queue pair is built.
#[test]
fn defect_13_a_limit_of_zero_messages_cannot_be_built() {
    let built = |scheme, max_msgs_per_qp, limits: QpLimits| {
        let config = Config { scheme, max_msgs_per_qp, ..Config::default() };
        build(config, limits).map(|_| ())
    };
    assert_eq!(built(Scheme::Spray, 0, LIMITS), Err(BuildError::NoMessages));
    // The text names the program's own terms, not numbers that were never given.
    let text = BuildError::NoMessages.to_string();
    assert_eq!(text, "max_msgs_per_qp is 0, so no request could be posted");
    let limits = QpLimits { max_recv_wr: 0, ..LIMITS };
    assert_eq!(
        built(Scheme::Dqplb, 1, limits),
        Err(BuildError::NoRoom { qp_num: 10, send: false })
    );
    assert_eq!(built(Scheme::Spray, 1, limits), Ok(()), "SPRAY's rails need no receives");
}

/// Defect 14: sizes are validated when the queue pair is built.
#[test]
fn defect_14_impossible_fragment_sizes_cannot_be_built() {
    for bytes in [0, 1, 127, 129, u32::MAX] {
        let config = Config { max_msg_size: bytes, ..Config::default() };
        assert_eq!(build(config, LIMITS).map(|_| ()), Err(BuildError::MaxMsgSize { bytes }));
    }
    let config = Config { max_msg_size: (1 << 20) + 128, ..Config::default() };
    let limits = QpLimits { max_msg_size: 1 << 20, ..LIMITS };
    let bytes = (1 << 20) + 128;
    let expected = BuildError::RailMsgSize { rail: 0, bytes, limit: 1 << 20 };
    assert_eq!(build(config, limits).map(|_| ()), Err(expected));
    let config = Config { max_msg_size: 1 << 20, ..config };
    assert!(build(config, limits).is_ok(), "what a rail can just carry");
}

/// Defect 19: a queue pair that is assigned over is dropped, its physical ones with it. (Using one
/// after it was moved away does not compile: `ui/use_after_move.rs`.)
#[test]
fn defect_19_assigning_over_a_queue_pair_drops_the_old_one() {
    let mut rig = Setup::spray(2).rig();
    let other = Setup::spray(2).rig();
    let before = rig.nic.owners();
    rig.qp = other.qp;
    assert_eq!(before - rig.nic.owners(), 3, "two rails and the notify queue pair");
}
