//! Shared receive queues.

mod support;

use polyrail_core::hardware::{CommitError, QueuePair as _, Refusal};
use polyrail_core::verbs::{Opcode, SendRequest, WcStatus};
use polyrail_software_nic::{
    AsyncEvent, Fabric, QpCap, QpInit, QpState, QueuePair, SharedReceiveQueue, connect_pair,
};
use support::*;

/// Two senders on `a`, two receivers on `b` that share their receives.
struct Shared {
    pair: Pair,
    srq: SharedReceiveQueue,
    second: (QueuePair, QueuePair),
}

impl Shared {
    fn new(fabric: Fabric, limit: u32) -> Self {
        let mut pair = Pair::unconnected(fabric, QpCap::default());
        let srq = pair.b.pd.create_srq(8, limit).unwrap();
        let init = QpInit { srq: Some(&srq), ..QpInit::new(&pair.b.cq, QpCap::default()) };
        pair.b.qp = pair.b.pd.create_qp(&init).unwrap();
        let receiver = pair.b.pd.create_qp(&init).unwrap();
        let init = QpInit::new(&pair.a.cq, QpCap::default());
        let sender = pair.a.pd.create_qp(&init).unwrap();
        connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
        connect_pair(&sender, &receiver, &impatient()).unwrap();
        Self { pair, srq, second: (sender, receiver) }
    }

    /// Sends 8 bytes from the second sender.
    fn send_second(&mut self, request: SendRequest) {
        std::mem::swap(&mut self.pair.a.qp, &mut self.second.0);
        self.pair.a.post(request).unwrap();
        std::mem::swap(&mut self.pair.a.qp, &mut self.second.0);
    }
}

#[test]
fn receives_serve_messages_in_the_order_they_come() {
    let mut shared = Shared::new(Fabric::threaded(), 0);
    for wr_id in 0..3 {
        let sge = shared.pair.b.sge(1000 + 10 * wr_id as usize, 10);
        recv(&mut shared.srq, wr_id, sge).unwrap();
    }
    assert_eq!(shared.srq.len(), 3);
    let send = shared.pair.request(1, Opcode::Send, 0, 8);
    shared.pair.a.post(send).unwrap();
    shared.pair.a.poll();
    shared.send_second(send);
    shared.pair.a.poll();
    shared.pair.a.post(send).unwrap();
    let (_, b) = shared.pair.settle();
    assert_eq!(ids(&b), [0, 1, 2]);
    let first = shared.pair.b.qp.qp_num();
    let second = shared.second.1.qp_num();
    assert_eq!(b.iter().map(|c| c.qp_num).collect::<Vec<_>>(), [first, second, first]);
    assert!(shared.srq.is_empty());
}

#[test]
fn own_receives_are_refused_and_none_are_granted() {
    let mut shared = Shared::new(Fabric::threaded(), 0);
    assert_eq!(shared.pair.b.qp.limits().max_recv_wr, 0);
    let refused = CommitError { accepted: 0, refusal: Refusal::Driver(22) };
    assert_eq!(shared.pair.b.recv(1, nothing()), Err(refused));
}

#[test]
fn a_full_shared_queue_refuses() {
    let mut shared = Shared::new(Fabric::threaded(), 0);
    (0..8).for_each(|wr_id| recv(&mut shared.srq, wr_id, nothing()).unwrap());
    let full = CommitError { accepted: 0, refusal: Refusal::QueueFull };
    assert_eq!(recv(&mut shared.srq, 8, nothing()), Err(full));
}

#[test]
fn the_limit_event_comes_once_until_it_is_armed_again() {
    for fabric in [Fabric::threaded(), Fabric::deterministic(1)] {
        let mut shared = Shared::new(fabric, 2);
        (0..8).for_each(|wr_id| recv(&mut shared.srq, wr_id, nothing()).unwrap());
        let notify = shared.pair.request(1, Opcode::RdmaWriteWithImm, 0, 0);
        shared.pair.a.post_all(&[notify; 6]).unwrap();
        shared.pair.settle();
        assert!(!shared.srq.limit_reached());
        shared.pair.a.post(notify).unwrap();
        shared.pair.settle();
        assert!(shared.srq.limit_reached());
        assert_eq!(shared.pair.b.device.next_event(), Some(AsyncEvent::SrqLimitReached));
        shared.pair.a.post(notify).unwrap();
        shared.pair.settle();
        assert_eq!(shared.pair.b.device.next_event(), None);
        shared.srq.set_limit(1);
        assert!(!shared.srq.limit_reached());
        recv(&mut shared.srq, 9, nothing()).unwrap();
        shared.pair.a.post(notify).unwrap();
        shared.pair.settle();
        assert!(shared.srq.limit_reached());
    }
}

#[test]
fn an_empty_shared_queue_is_not_ready() {
    let mut shared = Shared::new(Fabric::deterministic(1), 0);
    shared.pair.a.post(shared.pair.request(1, Opcode::Send, 0, 8)).unwrap();
    assert_eq!(ends(&shared.pair.settle().0), [(1, WcStatus::RNR_RETRY_EXC_ERR)]);
}

#[test]
fn shared_receives_are_not_flushed() {
    let mut shared = Shared::new(Fabric::deterministic(1), 0);
    (0..3).for_each(|wr_id| recv(&mut shared.srq, wr_id, nothing()).unwrap());
    shared.pair.b.qp.to_error().unwrap();
    assert_eq!(shared.pair.b.qp.state(), QpState::Err);
    assert_eq!(shared.pair.settle(), (vec![], vec![]));
    let notify = shared.pair.request(1, Opcode::RdmaWriteWithImm, 0, 0);
    shared.send_second(notify);
    assert_eq!(ends(&shared.pair.settle().1), [(0, WcStatus::SUCCESS)]);
}

#[test]
fn a_shared_queue_outlives_its_handle() {
    let mut shared = Shared::new(Fabric::threaded(), 0);
    recv(&mut shared.srq, 5, nothing()).unwrap();
    drop(shared.srq);
    shared.pair.a.post(shared.pair.request(1, Opcode::RdmaWriteWithImm, 0, 0)).unwrap();
    assert_eq!(ids(&shared.pair.settle().1), [5]);
}

#[test]
fn clones_are_handles_of_one_queue() {
    let mut shared = Shared::new(Fabric::deterministic(1), 0);
    let mut other = shared.srq.clone();
    recv(&mut other, 5, nothing()).unwrap();
    recv(&mut shared.srq, 6, nothing()).unwrap();
    assert_eq!((shared.srq.len(), other.len()), (2, 2));
    shared.pair.a.post(shared.pair.request(1, Opcode::RdmaWriteWithImm, 0, 0)).unwrap();
    assert_eq!(ids(&shared.pair.settle().1), [5]);
    assert_eq!(other.len(), 1);
}
