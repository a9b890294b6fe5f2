//! Detects that a queue pair in ERR took its last shared receive.

use crate::fake::{QP_NUM, alive, fail, heal, queue_event, violations, with};
use crate::fixture::{All, open};
use polyrail_core::hardware::{
    QueuePair as _, ReceiveQueue as _, RecvBatch as _, Refusal, SendBatch as _,
};
use polyrail_core::verbs::{AccessFlags, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge};
use polyrail_ffi::{
    AsyncEvent, ModifyError, PostMode, QpCap, QpInit, QpState, QueuePair, ToErr, ToInit, ToReset,
    VerbsError,
};
use rdma_sys::ibv_event_type as raw;
use std::time::{Duration, Instant};

const LAST_WQE_REACHED: u32 = raw::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
const PORT_ERR: u32 = raw::IBV_EVENT_PORT_ERR as u32;
const RXE: u32 = 0x00ff_ffff;
const LIMIT: Duration = Duration::from_secs(600);

/// Creates a queue pair with a shared receive queue, in ERR, on a device of this vendor.
fn in_error(vendor_id: u32, post_mode: PostMode) -> All {
    with(|state| state.vendor_id = vendor_id);
    let all = All::new(post_mode).unwrap();
    to_error(&all.qp);
    all
}

fn to_error(qp: &QueuePair) {
    qp.modify(&ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() }).unwrap();
    qp.enter_error().unwrap();
}

fn refused(errno: i32) -> Result<bool, Refusal> {
    Err(Refusal::Driver(errno))
}

/// Polls `last_wqe_reached` until it is true. The first answer must be false.
fn ask(qp: &mut QueuePair) -> Result<bool, Refusal> {
    let start = Instant::now();
    loop {
        match qp.last_wqe_reached() {
            Ok(false) => assert!(start.elapsed() < LIMIT, "no end"),
            known => return known,
        }
        std::thread::yield_now();
    }
}

#[test]
fn it_is_asked_in_err_and_with_shared_receives_only() {
    for vendor_id in [0, RXE] {
        with(|state| state.vendor_id = vendor_id);
        let mut all = All::new(PostMode::Classic).unwrap();
        assert_eq!(all.qp.last_wqe_reached(), refused(libc::EINVAL));
        let init = QpInit::new(&all.cq, QpCap::default());
        let mut own: QueuePair = all.pd.create_qp(&init).unwrap();
        to_error(&own);
        assert_eq!(own.last_wqe_reached(), refused(libc::EINVAL));
        assert_eq!(alive().iter().filter(|&&kind| kind == "qp").count(), 2);
    }
}

#[test]
fn an_event_reports_it_whichever_handle_reads_the_event() {
    let qp_num = QP_NUM;
    for reads in [false, true] {
        let mut all = in_error(0, PostMode::Classic);
        assert_eq!(all.qp.last_wqe_reached(), Ok(false));
        queue_event(PORT_ERR, "port");
        assert_eq!(all.qp.last_wqe_reached(), Ok(false));
        queue_event(LAST_WQE_REACHED, "qp");
        queue_event(PORT_ERR, "port");
        let port = Some(AsyncEvent::PortError { port: 2 });
        let first_two = || [(); 2].map(|()| all.context.next_event().unwrap());
        let expected = [port, Some(AsyncEvent::LastWqeReached { qp_num })];
        if reads {
            assert_eq!(first_two(), expected);
            assert_eq!(all.qp.last_wqe_reached(), Ok(true));
        } else {
            assert_eq!(all.qp.last_wqe_reached(), Ok(true));
            assert_eq!(first_two(), expected, "asking takes no event from anybody");
        }
        assert_eq!([(); 2].map(|()| all.context.next_event().unwrap()), [port, None]);
        assert_eq!(all.qp.last_wqe_reached(), Ok(true), "for good");
        assert!(alive().contains(&"qp"), "it is destroyed for its owner only");
    }
}

#[test]
fn other_events_of_the_queue_pair_say_nothing() {
    let mut all = in_error(0, PostMode::Extended);
    for other in [raw::IBV_EVENT_QP_FATAL, raw::IBV_EVENT_SQ_DRAINED] {
        queue_event(other as u32, "qp");
    }
    assert_eq!(all.qp.last_wqe_reached(), Ok(false));
}

#[test]
fn an_event_reports_nothing_of_a_queue_pair_that_was_reset() {
    let mut all = in_error(0, PostMode::Classic);
    queue_event(LAST_WQE_REACHED, "qp");
    all.qp.modify(&ToReset).unwrap();
    to_error(&all.qp);
    assert_eq!(all.qp.last_wqe_reached(), refused(libc::EINVAL));
}

#[test]
fn events_that_cannot_be_read_are_an_error() {
    let mut all = in_error(0, PostMode::Classic);
    fail("ibv_get_async_event", libc::EIO);
    assert_eq!(all.qp.last_wqe_reached(), refused(libc::EIO));
    heal();
    assert_eq!(all.qp.last_wqe_reached(), Ok(false));
}

#[test]
fn rxe_reports_it_by_destroying_the_queue_pair() {
    for post_mode in [PostMode::Classic, PostMode::Extended] {
        let mut all = in_error(RXE, post_mode);
        assert_eq!(ask(&mut all.qp), Ok(true));
        assert_eq!(all.qp.last_wqe_reached(), Ok(true), "for good");
        assert!(!alive().contains(&"qp"));
        assert_eq!((all.qp.qp_num(), all.qp.last_state()), (QP_NUM, QpState::Reset));
        drop(all);
        assert_eq!((alive(), violations()), (vec![], vec![]));
    }
}

#[test]
fn a_queue_pair_that_was_destroyed_to_know_takes_nothing_any_more() {
    for post_mode in [PostMode::Classic, PostMode::Extended] {
        let mut all = in_error(RXE, post_mode);
        std::mem::forget(all.qp.start_send());
        assert_eq!(ask(&mut all.qp), Ok(true));
        let mut batch = all.qp.start_send();
        batch.add(&SendRequest {
            wr_id: 1,
            opcode: Opcode::RdmaWrite,
            flags: SendFlags::empty(),
            imm: Imm::default(),
            sge: Sge::EMPTY,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
        });
        let error = Refusal::Driver(libc::EINVAL);
        assert_eq!(batch.commit().map_err(|error| error.refusal), Err(error));
        let mut batch = all.qp.start_recv();
        batch.add(&RecvRequest { wr_id: 1, sge: Sge::EMPTY });
        assert_eq!(batch.commit().map_err(|error| error.refusal), Err(error));
        let query = all.qp.query().map_err(|VerbsError { call, errno, .. }| (call, errno));
        assert_eq!(query, Err(("ibv_query_qp", libc::EINVAL)));
        assert!(matches!(
            all.qp.modify(&ToErr),
            Err(ModifyError::Verbs(VerbsError { errno: libc::EINVAL, .. }))
        ));
        assert_eq!(all.qp.enter_error(), Ok(()), "it is there");
        assert_eq!(with(|state| state.posted.len()), 0);
    }
}

#[test]
fn a_queue_pair_that_cannot_be_destroyed_never_reports_it() {
    let mut all = in_error(RXE, PostMode::Classic);
    fail("ibv_destroy_qp", libc::EBUSY);
    assert_eq!(ask(&mut all.qp), refused(libc::EBUSY));
    heal();
    assert_eq!(all.qp.last_wqe_reached(), refused(libc::EBUSY));
    drop(all);
    let left = ["qp", "cq", "srq", "pd", "channel", "context"];
    assert!(
        left.iter().all(|kind| alive().contains(kind)),
        "memory that it may access stays: {:?}",
        alive()
    );
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn what_is_dropped_while_it_is_destroyed_is_destroyed_in_order() {
    let mut all = in_error(RXE, PostMode::Classic);
    assert_eq!(all.qp.last_wqe_reached().map(|_| ()), Ok(()));
    let close = |all: All| all.qp.close();
    assert_eq!(close(all), Ok(()), "it waits");
    let start = Instant::now();
    while !alive().is_empty() {
        assert!(start.elapsed() < LIMIT, "{:?}", alive());
    }
    assert_eq!(violations(), [""; 0]);
    assert!(open().0.next_event().unwrap().is_none());
}
