//! Connecting a queue pair on another thread, while the kernel searches for a path.

use crate::fake::{alive, calls_of, violations, with};
use crate::fixture::{All, path};
use polyrail_core::hardware::QueuePair as _;
use polyrail_core::verbs::AccessFlags;
use polyrail_ffi::{
    Argument, ModifyError, Mtu, PostMode, QpState, QueuePair, ToErr, ToInit, ToReset, ToRtr, ToRts,
    VerbsError,
};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(600);

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

fn to_init() -> ToInit {
    ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() }
}

fn refused(errno: i32, state: QpState) -> Result<(), ModifyError> {
    Err(VerbsError { call: "ibv_modify_qp", errno, argument: Argument::State(state) }.into())
}

/// A search for a path that ends with the errno that is sent, and the thread that waits for it.
struct Search {
    ends: Sender<i32>,
    thread: JoinHandle<Result<(), ModifyError>>,
}

impl Search {
    fn begin(qp: &QueuePair) -> Self {
        let (ends, search) = mpsc::channel();
        with(|state| state.search = Some(search));
        let connector = qp.connector().unwrap();
        let thread = thread::spawn(move || connector.connect(&to_rtr(), &to_rts()));
        let begun = Instant::now();
        while with(|state| state.search.is_some()) {
            assert!(begun.elapsed() < LIMIT, "no search");
            thread::yield_now();
        }
        Self { ends, thread }
    }

    fn end(self, errno: i32) -> Result<(), ModifyError> {
        self.ends.send(errno).unwrap();
        self.thread.join().unwrap()
    }
}

fn in_init(vendor_id: u32) -> All {
    with(|state| state.vendor_id = vendor_id);
    let all = All::new(PostMode::Classic).unwrap();
    all.qp.modify(&to_init()).unwrap();
    all
}

#[test]
fn its_owner_is_not_held_up_while_a_path_is_searched_for() {
    let all = in_init(0);
    let search = Search::begin(&all.qp);
    assert_eq!(all.qp.last_state(), QpState::Init);
    assert_eq!(all.qp.modify(&ToReset), refused(libc::EBUSY, QpState::Reset));
    let second = all.qp.connector().unwrap();
    assert_eq!(second.connect(&to_rtr(), &to_rts()), refused(libc::EBUSY, QpState::Rtr));
    assert_eq!(search.end(0), Ok(()));
    assert_eq!(all.qp.last_state(), QpState::Rts);
    let third = all.qp.connector().unwrap();
    assert_eq!(third.connect(&to_rtr(), &to_rts()), refused(libc::EINVAL, QpState::Rtr));
}

#[test]
fn without_a_path_it_stays_in_init_and_may_be_tried_again() {
    let all = in_init(0);
    let search = Search::begin(&all.qp);
    assert_eq!(search.end(libc::ETIMEDOUT), refused(libc::ETIMEDOUT, QpState::Rtr));
    assert_eq!(all.qp.last_state(), QpState::Init);
    assert_eq!(Search::begin(&all.qp).end(0), Ok(()));
}

#[test]
fn a_queue_pair_that_is_moved_to_err_meanwhile_stays_there() {
    for errno in [0, libc::ETIMEDOUT] {
        let all = in_init(0);
        let search = Search::begin(&all.qp);
        all.qp.modify(&ToErr).unwrap();
        assert_eq!(all.qp.last_state(), QpState::Err);
        assert_eq!(search.end(errno), refused(libc::EINVAL, QpState::Rtr));
        assert_eq!(all.qp.last_state(), QpState::Err);
        // The last call moved it to ERR, wherever the driver had moved it behind the owner's.
        let (_, last) = with(|state| state.modified.take()).unwrap();
        assert_eq!(last.qp_state, rdma_sys::ibv_qp_state::IBV_QPS_ERR);
    }
}

#[test]
fn it_is_destroyed_when_the_search_has_ended() {
    let all = in_init(0);
    let search = Search::begin(&all.qp);
    drop(all);
    assert!(alive().contains(&"qp"));
    // No peer reaches it meanwhile.
    let (_, last) = with(|state| state.modified.take()).unwrap();
    assert_eq!(last.qp_state, rdma_sys::ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(search.end(0), refused(libc::EINVAL, QpState::Rtr));
    assert_eq!((alive(), violations()), (vec![], vec![]));
}

#[test]
fn one_that_was_dropped_is_not_connected() {
    let all = in_init(0);
    let connector = all.qp.connector().unwrap();
    drop(all);
    let transitions = calls_of("ibv_modify_qp");
    assert_eq!(connector.connect(&to_rtr(), &to_rts()), refused(libc::EINVAL, QpState::Rtr));
    assert_eq!((calls_of("ibv_modify_qp"), alive()), (transitions, vec![]));
}

#[test]
fn closing_it_meanwhile_is_refused() {
    let All { qp, .. } = in_init(0);
    let search = Search::begin(&qp);
    let argument = Argument::Number("qp_num", qp.qp_num().into());
    let busy = VerbsError { call: "ibv_destroy_qp", errno: libc::EBUSY, argument };
    assert_eq!(qp.close(), Err(busy));
    assert_eq!(search.end(0), refused(libc::EINVAL, QpState::Rtr));
    assert_eq!((calls_of("ibv_destroy_qp"), alive()), (1, vec![]));
}

/// rxe: destroying the queue pair proves it.
#[test]
fn the_last_receive_is_known_once_the_search_has_ended() {
    const RXE: u32 = 0x00ff_ffff;
    let mut all = in_init(RXE);
    let search = Search::begin(&all.qp);
    all.qp.enter_error().unwrap();
    assert_eq!(all.qp.last_wqe_reached(), Ok(false));
    assert_eq!(calls_of("ibv_destroy_qp"), 0);
    search.end(libc::ETIMEDOUT).unwrap_err();
    let begun = Instant::now();
    while all.qp.last_wqe_reached() != Ok(true) {
        assert!(begun.elapsed() < LIMIT, "no end");
        thread::yield_now();
    }
    assert_eq!(calls_of("ibv_destroy_qp"), 1);
}
