//! The state machine of a queue pair, attribute by attribute.

mod support;

use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::{AccessFlags, WcStatus};
use polyrail_software_nic::{
    Attribute, ConnectOptions, Fabric, Fault, ModifyError, Mtu, QpAttributes, QpCap, QpState, When,
};
use support::*;

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};

fn options() -> ConnectOptions {
    ConnectOptions::default()
}

/// Attributes that a transition needs.
fn required(pair: &Pair, from: QpState, to: QpState) -> QpAttributes {
    match (from, to) {
        (Reset, Init) => options().to_init(),
        (Init, Rtr) => options().to_rtr(&pair.b.qp.as_remote(5)),
        (Rtr, Rts) => options().to_rts(6),
        _ => QpAttributes::default(),
    }
}

/// A pair whose `a` is in `state`.
fn pair_in(state: QpState) -> Pair {
    let pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let path: &[QpState] = match state {
        Reset => &[],
        Init => &[Init],
        Rtr => &[Init, Rtr],
        Rts => &[Init, Rtr, Rts],
        Sqd => &[Init, Rtr, Rts, Sqd],
        Err => &[Init, Err],
    };
    for &to in path {
        let attributes = required(&pair, pair.a.qp.state(), to);
        pair.a.qp.modify(to, &attributes).unwrap();
    }
    assert_eq!(pair.a.qp.state(), state);
    pair
}

#[test]
fn every_pair_of_states_is_allowed_or_refused() {
    let allowed: [(QpState, &[QpState]); 6] = [
        (Reset, &[Reset, Init]),
        (Init, &[Reset, Init, Rtr, Err]),
        (Rtr, &[Reset, Rts, Err]),
        (Rts, &[Reset, Rts, Sqd, Err]),
        (Sqd, &[Reset, Rts, Sqd, Err]),
        (Err, &[Reset, Err]),
    ];
    for (from, targets) in allowed {
        for to in QpState::ALL {
            let pair = pair_in(from);
            let attributes = required(&pair, from, to);
            let result = pair.a.qp.modify(to, &attributes);
            if targets.contains(&to) {
                assert_eq!((result, pair.a.qp.state()), (Ok(()), to), "{from} to {to}");
            } else {
                assert_eq!(result, Result::Err(ModifyError::Transition { from, to }));
                assert_eq!(pair.a.qp.state(), from, "{from} to {to}");
            }
        }
    }
}

#[test]
fn every_required_attribute_is_missed_by_name() {
    let mut missed = 0;
    for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
        let pair = pair_in(from);
        let full = required(&pair, from, to);
        for &attribute in Attribute::ALL.iter().filter(|&&attribute| full.has(attribute)) {
            let result = pair.a.qp.modify(to, &full.without(attribute));
            assert_eq!(result, Result::Err(ModifyError::Missing { from, to, attribute }));
            assert_eq!(pair.a.qp.state(), from);
            missed += 1;
        }
        pair.a.qp.modify(to, &full).unwrap();
    }
    assert_eq!(missed, 3 + 6 + 5);
}

#[test]
fn attributes_that_do_not_belong_are_refused_by_name() {
    let cases = [
        (Reset, Init, Attribute::SqPsn),
        (Init, Rtr, Attribute::SqPsn),
        (Init, Rtr, Attribute::Port),
        (Rtr, Rts, Attribute::DestQpNum),
        (Rts, Rts, Attribute::RqPsn),
        (Rts, Sqd, Attribute::AccessFlags),
        (Sqd, Sqd, Attribute::PathMtu),
        (Rts, Err, Attribute::Timeout),
        (Rts, Reset, Attribute::Timeout),
    ];
    for (from, to, attribute) in cases {
        let pair = pair_in(from);
        let mut attributes = required(&pair, from, to);
        match attribute {
            Attribute::SqPsn => attributes.sq_psn = Some(1),
            Attribute::Port => attributes.port_num = Some(1),
            Attribute::DestQpNum => attributes.dest_qp_num = Some(1),
            Attribute::RqPsn => attributes.rq_psn = Some(1),
            Attribute::AccessFlags => attributes.access = Some(AccessFlags::empty()),
            Attribute::PathMtu => attributes.path_mtu = Some(Mtu::Mtu256),
            _ => attributes.timeout = Some(1),
        }
        let result = pair.a.qp.modify(to, &attributes);
        assert_eq!(result, Result::Err(ModifyError::NotAllowed { from, to, attribute }));
        assert_eq!(pair.a.qp.state(), from);
    }
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let too_much = |attribute, value| Result::Err(ModifyError::Value { attribute, value });
    let mut pair = pair_in(Reset);
    let init = options().to_init();
    let modify = |pair: &mut Pair, to, attributes: QpAttributes| pair.a.qp.modify(to, &attributes);
    for port in [0, 2] {
        let result = modify(&mut pair, Init, QpAttributes { port_num: Some(port), ..init });
        assert_eq!(result, too_much(Attribute::Port, port.into()));
    }
    let result = modify(&mut pair, Init, QpAttributes { pkey_index: Some(1), ..init });
    assert_eq!(result, too_much(Attribute::PkeyIndex, 1));
    modify(&mut pair, Init, init).unwrap();

    let rtr = options().to_rtr(&pair.b.qp.as_remote(5));
    let big = 1 << 24;
    let cases = [
        (QpAttributes { dest_qp_num: Some(big), ..rtr }, Attribute::DestQpNum, big.into()),
        (QpAttributes { rq_psn: Some(big), ..rtr }, Attribute::RqPsn, big.into()),
        (QpAttributes { min_rnr_timer: Some(32), ..rtr }, Attribute::MinRnrTimer, 32),
        (QpAttributes { max_dest_rd_atomic: Some(17), ..rtr }, Attribute::MaxDestRdAtomic, 17),
    ];
    for (attributes, attribute, value) in cases {
        assert_eq!(modify(&mut pair, Rtr, attributes), too_much(attribute, value));
    }
    modify(&mut pair, Rtr, rtr).unwrap();

    let rts = options().to_rts(6);
    let cases = [
        (QpAttributes { sq_psn: Some(big), ..rts }, Attribute::SqPsn, big.into()),
        (QpAttributes { timeout: Some(32), ..rts }, Attribute::Timeout, 32),
        (QpAttributes { retry_cnt: Some(8), ..rts }, Attribute::RetryCnt, 8),
        (QpAttributes { rnr_retry: Some(8), ..rts }, Attribute::RnrRetry, 8),
        (QpAttributes { max_rd_atomic: Some(17), ..rts }, Attribute::MaxRdAtomic, 17),
    ];
    for (attributes, attribute, value) in cases {
        assert_eq!(modify(&mut pair, Rts, attributes), too_much(attribute, value));
    }
}

#[test]
fn sends_are_refused_before_rts_and_flushed_in_err() {
    for state in [Reset, Init, Rtr] {
        let mut pair = pair_in(state);
        let refused = CommitError { accepted: 0, refusal: Refusal::Driver(22) };
        assert_eq!(pair.a.post(pair.write(1, 0, 8)), Result::Err(refused), "{state}");
    }
    let mut pair = pair_in(Err);
    pair.a.post_all(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(ends(&pair.settle().0), [(1, flushed), (2, flushed)]);
}

#[test]
fn receives_are_refused_in_reset_taken_from_init_on_and_flushed_in_err() {
    let mut pair = pair_in(Reset);
    let refused = CommitError { accepted: 0, refusal: Refusal::Driver(22) };
    assert_eq!(pair.a.recv(1, nothing()), Result::Err(refused));
    for state in [Init, Rtr, Rts, Sqd] {
        let mut pair = pair_in(state);
        assert_eq!(pair.a.recv(1, nothing()), Ok(()), "{state}");
        assert_eq!(pair.settle().0, [], "{state}");
    }
    let mut pair = pair_in(Err);
    pair.a.recv(1, nothing()).unwrap();
    assert_eq!(ends(&pair.settle().0), [(1, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn a_queue_pair_in_rtr_serves_its_peer() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.b.qp.modify(Init, &options().to_init()).unwrap();
    pair.a.qp.connect(5, &pair.b.qp.as_remote(6), &options()).unwrap();
    pair.b.qp.modify(Rtr, &options().to_rtr(&pair.a.qp.as_remote(5))).unwrap();
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn capacities_are_granted_rounded_up_and_refused_over_the_limits() {
    use polyrail_core::hardware::QueuePair as _;
    use polyrail_software_nic::{NicError, QpInit};
    let pair = pair_in(Reset);
    let create = |cap| pair.a.pd.create_qp(&QpInit::new(&pair.a.cq, cap));
    let limits =
        create(QpCap { max_send_wr: 100, max_recv_wr: 3, max_inline_data: 17, ..QpCap::default() });
    let limits = limits.unwrap().limits();
    assert_eq!((limits.max_send_wr, limits.max_recv_wr, limits.max_inline_data), (128, 4, 32));
    let none = create(QpCap { max_send_wr: 0, ..QpCap::default() });
    assert_eq!(none.unwrap_err(), NicError::Zero { what: "max_send_wr" });
    let huge = create(QpCap { max_recv_wr: 1 << 20, ..QpCap::default() });
    assert!(matches!(huge, Result::Err(NicError::Limit { limit: 32_768, .. })));
    assert_eq!(pair.a.device.create_cq(0).unwrap_err().errno(), 22);
    let foreign = pair.a.pd.create_qp(&QpInit::new(&pair.b.cq, QpCap::default()));
    assert_eq!(foreign.unwrap_err(), NicError::OtherDevice { what: "completion queue" });
}

#[test]
fn nothing_changes_on_a_device_that_is_gone() {
    let pair = pair_in(Init);
    pair.a.device.inject(When::Now, Fault::DeviceGone);
    assert_eq!(pair.a.qp.reset(), Result::Err(ModifyError::DeviceGone));
    assert_eq!(pair.a.qp.state(), Init);
}

#[test]
fn errors_name_the_transition_and_the_attribute() {
    let error = ModifyError::Missing { from: Init, to: Rtr, attribute: Attribute::DestQpNum };
    assert_eq!(error.to_string(), "the transition from INIT to RTR needs DEST_QPN");
    let error = ModifyError::Transition { from: Reset, to: Rts };
    assert_eq!(error.to_string(), "a queue pair cannot go from RESET to RTS");
}

#[test]
fn devices_of_another_fabric_are_not_reached() {
    let near = pair_in(Init);
    let far = pair_in(Init);
    assert_ne!(near.a.device.guid(), far.a.device.guid());
    let gid = far.b.qp.gid();
    let refused = ModifyError::Unreachable { gid };
    let to_rtr = options().to_rtr(&far.b.qp.as_remote(5));
    assert_eq!(near.a.qp.modify(Rtr, &to_rtr), Result::Err(refused));
    assert_eq!(near.a.qp.state(), Init);
    assert!(refused.to_string().starts_with(&format!("{gid} is not an address of this fabric")));
}

#[test]
fn a_transition_to_rtr_is_refused_as_often_as_planned() {
    let pair = pair_in(Init);
    let attributes = required(&pair, Init, Rtr);
    pair.a.device.inject(When::Now, Fault::RefuseRtr { transitions: 2 });
    for _ in 0..2 {
        assert_eq!(pair.a.qp.modify(Rtr, &attributes), Result::Err(ModifyError::NoPath));
        assert_eq!(pair.a.qp.state(), Init);
    }
    pair.a.qp.modify(Rtr, &attributes).unwrap();
}
