//! Transitions and paths: which attributes they give to the driver, and with which values.

use crate::fake::{calls_of, fail, with};
use crate::fixture::{All, path};
use polyrail_core::verbs::AccessFlags;
use polyrail_ffi::{
    Argument, DatagramToInit, DatagramToRtr, Gid, Grh, ModifyError, Mtu, Path, PostMode, QpCap,
    QpInit, QpState, QueuePair, Rc, Recover, Resume, Route, Service, ToErr, ToInit, ToReset, ToRtr,
    ToRts, ToSqd, Transition, Uc, Ud, UnreliableToRtr, UnreliableToRts, VerbsError,
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

/// What a transition gives to the driver: which attributes, without the state itself, and all of them.
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

    // The state that a failure led to is told, since nobody moved the queue pair there.
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
fn a_refused_transition_says_where_it_led_and_changes_nothing() {
    let all = All::new(PostMode::Classic).unwrap();
    let qp = queue_pair::<Rc>(&all);
    fail("ibv_modify_qp", libc::EINVAL);
    let argument = Argument::State(QpState::Rtr);
    let error = VerbsError { call: "ibv_modify_qp", errno: libc::EINVAL, argument };
    assert_eq!(qp.modify(&to_rtr()), Err(ModifyError::Verbs(error)));
    assert!(error.to_string().contains("GID index"), "{error}");
    assert_eq!(qp.last_state(), QpState::Reset);
}

/// The path is written by the C struct's fields, for a transition and for an address handle.
fn handed_over(qp: &QueuePair<Rc>, all: &All, path: Path) -> ibv_ah_attr {
    let (_, attributes) = both(qp, &ToRtr { path, ..to_rtr() });
    drop(all.pd.create_ah(&path).unwrap());
    let ah = with(|state| state.ah.take()).unwrap();
    // Not compared as bytes: the struct has gaps.
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
    // SAFETY: both readings of the union are plain bytes.
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
