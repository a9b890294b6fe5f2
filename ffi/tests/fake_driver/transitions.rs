//! Transitions and paths: the attributes and values that the driver receives.

use crate::fake::{calls_of, fail, with};
use crate::fixture::{All, path};
use polyrail_core::verbs::AccessFlags;
use polyrail_ffi::{
    Argument, ChangeInit, ChangeRts, ChangeSqd, DatagramChangeInit, DatagramChangeRts,
    DatagramChangeSqd, DatagramToInit, DatagramToRtr, Gid, Grh, ModifyError, Mtu, Path, PostMode,
    QpCap, QpInit, QpState, QueuePair, Rc, Recover, Resume, Route, Service, ToErr, ToInit, ToReset,
    ToRtr, ToRts, ToSqd, Transition, Uc, Ud, UnreliableChangeRts, UnreliableChangeSqd,
    UnreliableToRtr, UnreliableToRts, VerbsError,
};
use rdma_sys::{ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask as m, ibv_qp_state};

fn queue_pair<S: Service>(all: &All) -> QueuePair<S> {
    all.pd.create_qp(&QpInit::new(&all.cq, QpCap::default())).unwrap()
}

fn to_rtr() -> ToRtr {
    ToRtr {
        path: path(),
        path_mtu: Mtu::Mtu1024,
        dest_qp_num: 5,
        rq_psn: 6,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    }
}

fn to_rts() -> ToRts {
    ToRts { sq_psn: 7, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 }
}

/// Returns the attribute mask of a transition, without the state, and the attributes.
fn both<S: Service>(qp: &QueuePair<S>, transition: &impl Transition<S>) -> (u32, ibv_qp_attr) {
    qp.modify(transition).unwrap();
    let (mask, attributes) = with(|state| state.modified.take()).unwrap();
    assert_eq!(mask & 1, 1, "IBV_QP_STATE");
    (mask & !1, attributes)
}

fn given<S: Service>(qp: &QueuePair<S>, transition: &impl Transition<S>) -> u32 {
    both(qp, transition).0
}

#[test]
fn transitions_give_what_the_manual_demands_and_no_more() {
    let all = All::new(PostMode::Classic).unwrap();
    let init = ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() };
    let to_init = m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS;
    let path = m::IBV_QP_AV | m::IBV_QP_PATH_MTU | m::IBV_QP_DEST_QPN | m::IBV_QP_RQ_PSN;
    let rc = queue_pair::<Rc>(&all);
    assert_eq!(given(&rc, &init), to_init.0);
    let responder = m::IBV_QP_MAX_DEST_RD_ATOMIC | m::IBV_QP_MIN_RNR_TIMER;
    assert_eq!(given(&rc, &to_rtr()), (path | responder).0);
    let requester = m::IBV_QP_TIMEOUT
        | m::IBV_QP_RETRY_CNT
        | m::IBV_QP_RNR_RETRY
        | m::IBV_QP_SQ_PSN
        | m::IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(given(&rc, &to_rts()), requester.0);
    assert_eq!(given(&rc, &ToSqd { notify: true }), m::IBV_QP_EN_SQD_ASYNC_NOTIFY.0);
    assert_eq!(given(&rc, &Resume), m::IBV_QP_CUR_STATE.0);
    assert_eq!((given(&rc, &ToErr), given(&rc, &ToReset)), (0, 0));
    assert_eq!(rc.last_state(), QpState::Reset);

    let uc = queue_pair::<Uc>(&all);
    let ToRtr { path: way, path_mtu, dest_qp_num, rq_psn, .. } = to_rtr();
    assert_eq!(given(&uc, &init), to_init.0);
    let unreliable = UnreliableToRtr { path: way, path_mtu, dest_qp_num, rq_psn };
    assert_eq!(given(&uc, &unreliable), path.0);
    assert_eq!(given(&uc, &UnreliableToRts { sq_psn: 1 }), m::IBV_QP_SQ_PSN.0);

    let ud = queue_pair::<Ud>(&all);
    let init = DatagramToInit { port_num: 1, pkey_index: 0, qkey: 9 };
    let to_init = m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_QKEY;
    assert_eq!(given(&ud, &init), to_init.0);
    assert_eq!(given(&ud, &DatagramToRtr), 0);
    assert_eq!(given(&ud, &UnreliableToRts { sq_psn: 1 }), m::IBV_QP_SQ_PSN.0);

    // `IBV_QP_CUR_STATE` is set, since a failure moved the queue pair there, not the program.
    for (given, attributes) in [both(&uc, &Recover), both(&ud, &Recover)] {
        assert_eq!(given, m::IBV_QP_CUR_STATE.0);
        assert_eq!(attributes.cur_qp_state, ibv_qp_state::IBV_QPS_SQE);
    }
    assert_eq!((uc.last_state(), ud.last_state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn values_that_do_not_fit_are_refused_before_the_driver_sees_them() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    let value = |attribute, value, max| ModifyError::Value { attribute, value, max };
    let refused = [
        (ToRts { timeout: 32, ..to_rts() }, value("timeout", 32, 31)),
        (ToRts { retry_cnt: 8, ..to_rts() }, value("retry_cnt", 8, 7)),
        (ToRts { rnr_retry: 8, ..to_rts() }, value("rnr_retry", 8, 7)),
        (ToRts { sq_psn: 1 << 24, ..to_rts() }, value("sq_psn", 1 << 24, (1 << 24) - 1)),
    ];
    for (transition, error) in refused {
        assert_eq!(qp.modify(&transition), Err(error));
    }
    let wide = ToRtr { dest_qp_num: 1 << 24, ..to_rtr() };
    assert_eq!(qp.modify(&wide), Err(value("dest_qp_num", 1 << 24, (1 << 24) - 1)));
    let Path { port_num, .. } = path();
    let grh = Grh { flow_label: 1 << 20, ..Grh::new(Gid([1; 16]), 0) };
    let bits = Route::Infiniband { dlid: 1, src_path_bits: 128, grh: None };
    let wide = [
        (Path::roce(port_num, grh), value("flow_label", 1 << 20, (1 << 20) - 1)),
        (Path { service_level: 16, ..path() }, value("sl", 16, 15)),
        (Path { route: bits, ..path() }, value("src_path_bits", 128, 127)),
    ];
    for (path, error) in wide {
        assert_eq!(qp.modify(&ToRtr { path, ..to_rtr() }), Err(error));
        assert_eq!(all.pd.create_ah(&path).err(), Some(error));
    }
    assert_eq!((calls_of("ibv_modify_qp"), calls_of("ibv_create_ah")), (0, 1));
}

#[test]
fn a_refused_transition_names_the_state_it_led_to_and_changes_nothing() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    fail("ibv_modify_qp", libc::EINVAL);
    let argument = Argument::State(QpState::Rtr);
    let error = VerbsError { call: "ibv_modify_qp", errno: libc::EINVAL, argument };
    assert_eq!(qp.modify(&to_rtr()), Err(ModifyError::Verbs(error)));
    assert!(error.to_string().contains("GID index"), "{error}");
    assert_eq!(qp.last_state(), QpState::Reset);
}

/// Makes a transition and an address handle with `path`; returns the C struct, which must be equal
/// for both.
fn handed_over(qp: &QueuePair<Rc>, all: &All, path: Path) -> ibv_ah_attr {
    let (_, attributes) = both(qp, &ToRtr { path, ..to_rtr() });
    drop(all.pd.create_ah(&path).unwrap());
    let ah = with(|state| state.ah.take()).unwrap();
    // Compared by fields, since the struct has padding.
    assert_eq!(fields(&attributes.ah_attr), fields(&ah));
    ah
}

/// Every field of a path: dlid, sl, source path bits, rate, whether it has a header, port.
fn fields(ah: &ibv_ah_attr) -> ([u32; 6], [u8; 16], [u32; 4]) {
    let ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } = &ah.grh;
    let header = [*flow_label, (*sgid_index).into(), (*hop_limit).into(), (*traffic_class).into()];
    let ibv_ah_attr { dlid, sl, src_path_bits, static_rate, is_global, port_num, .. } = *ah;
    let bytes = [sl, src_path_bits, static_rate, is_global, port_num].map(u32::from);
    let [sl, bits, rate, is_global, port] = bytes;
    // SAFETY: all fields of the union are plain bytes.
    ([dlid.into(), sl, bits, rate, is_global, port], unsafe { dgid.raw }, header)
}

#[test]
fn paths_are_handed_over_field_by_field() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    let near = Path::infiniband(2, 0x1234);
    let ah = handed_over(&qp, &all, near);
    assert_eq!(fields(&ah).0, [0x1234, 0, 0, 0, 0, 2], "by LID, and no header");

    let dgid = Gid(std::array::from_fn(|byte| byte as u8));
    let grh = Grh { dgid, sgid_index: 3, hop_limit: 4, traffic_class: 5, flow_label: 0x6_0007 };
    let route = Route::Infiniband { dlid: 8, src_path_bits: 9, grh: Some(grh) };
    let ah = handed_over(&qp, &all, Path { port_num: 1, route, service_level: 10 });
    assert_eq!(fields(&ah), ([8, 10, 9, 0, 1, 1], dgid.0, [0x6_0007, 3, 4, 5]));

    let ah = handed_over(&qp, &all, Path { service_level: 7, ..Path::roce(2, grh) });
    assert_eq!(fields(&ah), ([0, 7, 0, 0, 1, 2], dgid.0, [0x6_0007, 3, 4, 5]));
}

#[test]
fn transitions_hand_over_every_value() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let (_, seen) = both(&qp, &ToInit { port_num: 2, pkey_index: 0x102, access });
    assert_eq!((seen.port_num, seen.pkey_index, seen.qp_access_flags), (2, 0x102, 2 | 8));
    assert_eq!(seen.qp_state, ibv_qp_state::IBV_QPS_INIT);
    let to_rtr = ToRtr { max_dest_rd_atomic: 9, ..to_rtr() };
    let (_, seen) = both(&qp, &to_rtr);
    assert_eq!((seen.path_mtu, seen.dest_qp_num, seen.rq_psn), (3, 5, 6));
    assert_eq!((seen.max_dest_rd_atomic, seen.min_rnr_timer), (9, 12));
    let to_rts = ToRts { sq_psn: 1, timeout: 2, retry_cnt: 3, rnr_retry: 4, max_rd_atomic: 5 };
    let (_, seen) = both(&qp, &to_rts);
    let bytes = [seen.timeout, seen.retry_cnt, seen.rnr_retry, seen.max_rd_atomic];
    assert_eq!((seen.sq_psn, bytes), (1, [2, 3, 4, 5]));
    let (_, seen) = both(&qp, &ToSqd { notify: true });
    assert_eq!((seen.qp_state, seen.en_sqd_async_notify), (ibv_qp_state::IBV_QPS_SQD, 1));
    let (_, seen) = both(&qp, &Resume);
    assert_eq!(seen.cur_qp_state, ibv_qp_state::IBV_QPS_SQD);

    let ud = queue_pair::<Ud>(&all);
    let (_, seen) = both(&ud, &DatagramToInit { port_num: 1, pkey_index: 3, qkey: 1 << 30 });
    assert_eq!((seen.port_num, seen.pkey_index, seen.qkey), (1, 3, 1 << 30));
}

#[test]
fn changes_within_a_state_give_what_is_given_and_no_more() {
    let all = All::new(PostMode::Classic).unwrap();
    let access = Some(AccessFlags::REMOTE_READ);
    let rc = queue_pair::<Rc>(&all);
    rc.modify(&ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() }).unwrap();
    let change = ChangeInit { port_num: Some(2), pkey_index: Some(3), access };
    let (mask, seen) = both(&rc, &change);
    assert_eq!(mask, (m::IBV_QP_PORT | m::IBV_QP_PKEY_INDEX | m::IBV_QP_ACCESS_FLAGS).0);
    assert_eq!((seen.port_num, seen.pkey_index, seen.qp_access_flags), (2, 3, 4));
    assert_eq!(seen.qp_state, ibv_qp_state::IBV_QPS_INIT);
    assert_eq!(given(&rc, &ChangeInit::default()), 0);
    assert_eq!(rc.last_state(), QpState::Init);

    rc.modify(&to_rtr()).unwrap();
    rc.modify(&to_rts()).unwrap();
    let (mask, seen) = both(&rc, &ChangeRts { access, min_rnr_timer: Some(7) });
    assert_eq!(mask, (m::IBV_QP_ACCESS_FLAGS | m::IBV_QP_MIN_RNR_TIMER).0);
    assert_eq!((seen.qp_access_flags, seen.min_rnr_timer), (4, 7));
    assert_eq!(seen.qp_state, ibv_qp_state::IBV_QPS_RTS);
    assert_eq!(given(&rc, &ChangeRts { access, ..ChangeRts::default() }), m::IBV_QP_ACCESS_FLAGS.0);

    rc.modify(&ToSqd { notify: false }).unwrap();
    let path = Path::infiniband(2, 0x4321);
    let (mask, seen) = both(&rc, &ChangeSqd { path: Some(path), ..ChangeSqd::default() });
    assert_eq!((mask, seen.ah_attr.dlid), (m::IBV_QP_AV.0, 0x4321));
    assert_eq!(seen.qp_state, ibv_qp_state::IBV_QPS_SQD);
    let all_of_it = ChangeSqd {
        path: Some(path),
        pkey_index: Some(1),
        access,
        max_dest_rd_atomic: Some(2),
        min_rnr_timer: Some(3),
        timeout: Some(4),
        retry_cnt: Some(5),
        rnr_retry: Some(6),
        max_rd_atomic: Some(7),
    };
    let (mask, seen) = both(&rc, &all_of_it);
    let common = m::IBV_QP_AV | m::IBV_QP_PKEY_INDEX | m::IBV_QP_ACCESS_FLAGS;
    let more = m::IBV_QP_MAX_DEST_RD_ATOMIC
        | m::IBV_QP_MIN_RNR_TIMER
        | m::IBV_QP_TIMEOUT
        | m::IBV_QP_RETRY_CNT
        | m::IBV_QP_RNR_RETRY
        | m::IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(mask, (common | more).0);
    assert_eq!((seen.pkey_index, seen.qp_access_flags, seen.max_dest_rd_atomic), (1, 4, 2));
    let bytes = [seen.min_rnr_timer, seen.timeout, seen.retry_cnt, seen.rnr_retry];
    assert_eq!((bytes, seen.max_rd_atomic), ([3, 4, 5, 6], 7));

    let uc = queue_pair::<Uc>(&all);
    uc.modify(&Recover).unwrap();
    assert_eq!(given(&uc, &UnreliableChangeRts { access }), m::IBV_QP_ACCESS_FLAGS.0);
    uc.modify(&ToSqd { notify: false }).unwrap();
    let change = UnreliableChangeSqd { path: Some(path), pkey_index: Some(1), access };
    assert_eq!(given(&uc, &change), common.0);

    let ud = queue_pair::<Ud>(&all);
    ud.modify(&DatagramToInit { port_num: 1, pkey_index: 0, qkey: 9 }).unwrap();
    let qkey = Some(8);
    let change = DatagramChangeInit { port_num: None, pkey_index: None, qkey };
    let (mask, seen) = both(&ud, &change);
    assert_eq!((mask, seen.qkey), (m::IBV_QP_QKEY.0, 8));
    ud.modify(&Recover).unwrap();
    assert_eq!(given(&ud, &DatagramChangeRts { qkey }), m::IBV_QP_QKEY.0);
    ud.modify(&ToSqd { notify: false }).unwrap();
    let change = DatagramChangeSqd { pkey_index: Some(1), qkey };
    assert_eq!(given(&ud, &change), (m::IBV_QP_PKEY_INDEX | m::IBV_QP_QKEY).0);
}

#[test]
fn changes_are_refused_in_another_state_and_with_values_that_do_not_fit() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    let refused = |state| {
        let argument = Argument::State(state);
        Err(VerbsError { call: "ibv_modify_qp", errno: libc::EINVAL, argument }.into())
    };
    assert_eq!(qp.modify(&ChangeInit::default()), refused(QpState::Init));
    assert_eq!(qp.modify(&ChangeRts::default()), refused(QpState::Rts));
    assert_eq!(qp.modify(&ChangeSqd::default()), refused(QpState::Sqd));
    assert_eq!(calls_of("ibv_modify_qp"), 0);
    qp.modify(&ToSqd { notify: false }).unwrap();
    assert_eq!(qp.modify(&ChangeRts::default()), refused(QpState::Rts), "it would resume");
    let value = |attribute, value, max| Err(ModifyError::Value { attribute, value, max });
    let wide = ChangeSqd { timeout: Some(32), ..ChangeSqd::default() };
    assert_eq!(qp.modify(&wide), value("timeout", 32, 31));
    let path = Some(Path { service_level: 16, ..path() });
    assert_eq!(qp.modify(&ChangeSqd { path, ..ChangeSqd::default() }), value("sl", 16, 15));
    assert_eq!(calls_of("ibv_modify_qp"), 1);
}

#[test]
fn a_query_returns_the_path_and_the_state_that_the_driver_assumes() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    assert_eq!(qp.query().unwrap().path, None);
    qp.modify(&to_rtr()).unwrap();
    let said = qp.query().unwrap();
    assert_eq!((said.path, said.path_mtu), (Some(path()), Some(Mtu::Mtu1024)));
    assert_eq!((said.state, said.cur_state), (QpState::Sqe, QpState::Rts));
}
