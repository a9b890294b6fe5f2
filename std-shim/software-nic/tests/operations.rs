//! What the software NIC does beyond the behaviours of every backend (`tests/src/behaviours`), in
//! both ways to run.

mod support;

use polyrail_core::hardware::{
    CommitError, QueuePair as _, ReceiveQueue as _, RecvBatch as _, Refusal, SendBatch as _,
};
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_software_nic::{AsyncEvent, ConnectOptions, Fabric, QpCap, QpInit, QpState, vendor};
use support::*;

/// Runs a test on a threaded fabric and on some deterministic ones.
fn both_ways(test: impl Fn(Pair)) {
    test(Pair::threaded());
    (0..8).for_each(|seed| test(Pair::deterministic(seed)));
}

#[test]
fn empty_writes_and_reads_do_not_look_at_their_keys() {
    both_ways(|mut pair| {
        for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
            let request = pair.request(7, opcode, 0, 0);
            pair.a.post(SendRequest { rkey: 99, remote_addr: 3, ..request }).unwrap();
            let (a, _) = pair.settle();
            assert_eq!(ends(&a), [(7, WcStatus::SUCCESS)]);
        }
    });
}

#[test]
fn inline_data_is_bounded_by_what_was_granted_and_never_for_reads() {
    let mut pair = Pair::threaded();
    let granted = pair.a.qp.limits().max_inline_data;
    let inline = |request| SendRequest { flags: SendFlags::INLINE, ..request };
    let refused = Err(CommitError { accepted: 0, refusal: Refusal::Driver(22) });
    assert_eq!(pair.a.post(inline(pair.write(1, 0, granted))), Ok(()));
    assert_eq!(pair.a.post(inline(pair.write(2, 0, granted + 1))), refused);
    assert_eq!(pair.a.post(inline(pair.request(3, Opcode::RdmaRead, 0, 8))), refused);
}

#[test]
fn an_inline_request_from_a_dropped_buffer_reads_zeros() {
    let mut pair = Pair::threaded();
    pair.b.buffer.fill(0, 4, 9);
    let gone = Buffer::new(4096, ALL_ACCESS, &pair.a.pd);
    let local = gone.local(0, 4);
    drop(gone);
    let request = SendRequest { sge: local.sge(0), ..pair.write(1, 0, 4) };
    pair.a.post(SendRequest { flags: SendFlags::INLINE, ..request }).unwrap();
    pair.settle();
    assert_eq!(pair.b.bytes(0, 4), [0; 4]);
}

#[test]
fn unsignaled_requests_hold_their_slots_until_a_later_completion_is_polled() {
    let cap = QpCap { max_send_wr: 4, ..QpCap::default() };
    let mut pair = Pair::with(Fabric::threaded(), cap, &ConnectOptions::default());
    let quiet = |request| SendRequest { flags: SendFlags::empty(), ..request };
    let full = |accepted| Err(CommitError { accepted, refusal: Refusal::QueueFull });
    for wr_id in 0..3 {
        pair.a.post(quiet(pair.write(wr_id, 0, 8))).unwrap();
    }
    assert_eq!(pair.settle().0, []);
    assert_eq!(pair.a.qp.outstanding_sends(), 3);
    let two = [pair.write(3, 0, 8), pair.write(4, 0, 8)];
    assert_eq!(pair.a.post_all(&two), full(1));
    assert_eq!(pair.a.post(pair.write(5, 0, 8)), full(0));
    assert_eq!(ids(&pair.settle().0), [3]);
    assert_eq!(pair.a.qp.outstanding_sends(), 0);
    pair.a.post_all(&[pair.write(6, 0, 8); 4]).unwrap();
}

#[test]
fn a_queue_full_of_unsignaled_requests_stays_full() {
    let cap = QpCap { max_send_wr: 2, ..QpCap::default() };
    let mut pair = Pair::with(Fabric::threaded(), cap, &ConnectOptions::default());
    let quiet = SendRequest { flags: SendFlags::empty(), ..pair.write(1, 0, 8) };
    pair.a.post_all(&[quiet; 2]).unwrap();
    pair.settle();
    let refused = pair.a.post(quiet).unwrap_err();
    assert_eq!(refused.refusal, Refusal::QueueFull);
}

#[test]
fn a_queue_pair_that_signals_all_completes_unsignaled_requests() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let init = QpInit { sq_sig_all: true, ..QpInit::new(&pair.a.cq, QpCap::default()) };
    pair.a.qp = pair.a.pd.create_qp(&init).unwrap();
    let options = ConnectOptions::default();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &options).unwrap();
    pair.a.post(SendRequest { flags: SendFlags::empty(), ..pair.write(5, 0, 8) }).unwrap();
    assert_eq!(ids(&pair.settle().0), [5]);
}

#[test]
fn a_bad_request_inside_a_chain_stops_it_and_earlier_ones_run() {
    both_ways(|mut pair| {
        let bad = SendRequest { opcode: Opcode::LocalInv, ..pair.write(3, 0, 8) };
        let chain = [pair.write(1, 0, 8), pair.write(2, 0, 8), bad, pair.write(4, 0, 8)];
        let refused = pair.a.post_all(&chain);
        assert_eq!(refused, Err(CommitError { accepted: 2, refusal: Refusal::Driver(95) }));
        assert_eq!(ids(&pair.settle().0), [1, 2]);
        assert_eq!(pair.a.qp.state(), QpState::Rts);
    });
}

#[test]
fn an_empty_batch_is_fine() {
    let mut pair = Pair::threaded();
    assert_eq!(pair.a.post_all(&[]), Ok(()));
    assert_eq!(pair.settle(), (vec![], vec![]));
}

#[test]
fn solicited_requests_wake_those_who_wait_for_them() {
    both_ways(|mut pair| {
        pair.b.recv(1, nothing()).unwrap();
        pair.b.recv(2, nothing()).unwrap();
        let plain = pair.request(7, Opcode::RdmaWriteWithImm, 0, 0);
        pair.b.cq.req_notify(true);
        pair.a.post(plain).unwrap();
        pair.settle();
        assert!(!pair.b.cq.take_event());
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        pair.a.post(SendRequest { flags, ..plain }).unwrap();
        pair.settle();
        assert!(pair.b.cq.take_event());
        assert!(!pair.b.cq.take_event());
        assert_eq!(pair.b.cq.solicited_completions(), 1);
    });
}

#[test]
fn any_completion_wakes_those_who_wait_for_any() {
    let mut pair = Pair::threaded();
    pair.a.cq.req_notify(false);
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    pair.settle();
    assert!(pair.a.cq.take_event());
}

#[test]
fn a_queue_pair_connected_to_itself_works() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let myself = pair.a.qp.as_remote(77);
    pair.a.qp.connect(77, &myself, &ConnectOptions::default()).unwrap();
    pair.a.buffer.write_at(0, b"echo");
    pair.a.recv(1, pair.a.sge(100, 4)).unwrap();
    pair.a.post(pair.request(2, Opcode::Send, 0, 4)).unwrap();
    let (a, _) = pair.settle();
    assert_eq!(ids(&a), [1, 2]);
    assert_eq!(pair.a.bytes(100, 4), b"echo");
}

#[test]
fn sends_and_receives_may_complete_in_different_queues() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let mut recv_cq = pair.b.device.create_cq(16).unwrap();
    let init = QpInit { recv_cq: &recv_cq, ..QpInit::new(&pair.b.cq, QpCap::default()) };
    pair.b.qp = pair.b.pd.create_qp(&init).unwrap();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
    pair.b.recv(1, nothing()).unwrap();
    pair.a.post(pair.request(2, Opcode::RdmaWriteWithImm, 0, 0)).unwrap();
    assert_eq!(pair.settle().1, []);
    assert_eq!(ids(&poll(&mut recv_cq).unwrap()), [1]);
}

#[test]
fn messages_over_the_limit_of_the_device_fail_here() {
    let fabric = Fabric::threaded();
    let mut pair = Pair::with(fabric, QpCap::default(), &impatient());
    let limit = pair.a.qp.limits().max_msg_size;
    // SAFETY: the request fails before anybody looks at the bytes, which do not exist.
    let long = unsafe { polyrail_core::verbs::LocalBuffer::new(4096, limit + 1) };
    pair.a.post(SendRequest { sge: long.sge(pair.a.lkey()), ..pair.write(1, 0, 8) }).unwrap();
    let (a, _) = pair.settle();
    assert_eq!(ends(&a), [(1, WcStatus::LOC_LEN_ERR)]);
    assert_eq!(a[0].vendor_err, vendor::MESSAGE_TOO_LONG);
}

#[test]
fn sqd_holds_new_requests_until_rts_comes_back() {
    both_ways(|mut pair| {
        pair.a.qp.modify(QpState::Sqd, &Default::default()).unwrap();
        let number = pair.a.qp.qp_num();
        assert_eq!(pair.a.device.next_event(), Some(AsyncEvent::SqDrained { qp_num: number }));
        pair.a.post(pair.write(1, 0, 8)).unwrap();
        assert_eq!(pair.settle().0, []);
        pair.a.qp.modify(QpState::Rts, &Default::default()).unwrap();
        assert_eq!(ids(&pair.settle().0), [1]);
    });
}

#[test]
fn sqd_still_serves_the_peer() {
    let mut pair = Pair::threaded();
    pair.b.qp.modify(QpState::Sqd, &Default::default()).unwrap();
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    assert_all_success(&pair.settle().0);
}

/// Queues that take one buffer take a list of one.
#[test]
fn a_list_of_one_buffer_is_that_buffer() {
    let cap = QpCap { max_send_sge: 1, max_recv_sge: 1, ..QpCap::default() };
    let mut pair = Pair::with(Fabric::threaded(), cap, &impatient());
    pair.a.buffer.fill(0, 8, 7);
    let (from, to) = (pair.a.sge(0, 8), pair.b.sge(100, 8));
    let mut receives = pair.b.qp.start_recv();
    receives.add_list(1, &[to, nothing()]);
    receives.commit().unwrap();
    let send = SendRequest { sge: nothing(), ..pair.request(2, Opcode::Send, 0, 8) };
    let mut sends = pair.a.qp.start_send();
    sends.add_list(&send, &[nothing(), from]);
    sends.commit().unwrap();
    let (a, b) = pair.settle();
    assert_eq!((ends(&a), ends(&b)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
    assert_eq!(b[0].byte_len, 8);
    assert_eq!(pair.b.bytes(100, 8), [7; 8]);
    let two = [from, from];
    let mut sends = pair.a.qp.start_send();
    sends.add_list(&send, &two);
    assert!(sends.commit().is_err());
}
