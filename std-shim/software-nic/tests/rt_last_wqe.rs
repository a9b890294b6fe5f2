//! When a queue pair in ERR has taken its last receive from a shared receive queue.

mod support;

use polyrail_core::hardware::{QueuePair as _, Refusal};
use polyrail_core::verbs::{Completion, Opcode, WcStatus};
use polyrail_software_nic::{
    AsyncEvent, Fabric, Fault, QpCap, QpInit, SharedReceiveQueue, Step, When, connect_pair, errno,
};
use std::time::Duration;
use support::*;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const WITHIN: Duration = Duration::from_micros(500);

/// A sender on `a`, and a receiver on `b` with four receives, 0 to 3, of a shared queue.
struct Shared {
    pair: Pair,
    srq: SharedReceiveQueue,
}

impl Shared {
    fn new(fabric: Fabric) -> Self {
        let mut pair = Pair::unconnected(fabric, QpCap::default());
        let mut srq = pair.b.pd.create_srq(4, 0).unwrap();
        let init = QpInit { srq: Some(&srq), ..QpInit::new(&pair.b.cq, QpCap::default()) };
        pair.b.qp = pair.b.pd.create_qp(&init).unwrap();
        connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
        (0..4).for_each(|wr_id| recv(&mut srq, wr_id, nothing()).unwrap());
        Self { pair, srq }
    }

    fn suffer(&self, fault: Fault) {
        self.pair.b.device.inject(When::Now, fault);
        assert!(self.pair.b.device.suffers(fault));
    }

    fn fail(&self) {
        self.pair.b.qp.enter_error().unwrap();
    }

    fn notify(&mut self, wr_id: u64, length: u32) {
        let request = self.pair.request(wr_id, Opcode::RdmaWriteWithImm, 0, length);
        self.pair.a.post(request).unwrap();
    }

    fn is_over(&mut self) -> bool {
        self.pair.b.qp.last_wqe_reached().unwrap()
    }

    fn says_that_it_is_over(&self) -> bool {
        let qp_num = self.pair.b.qp.qp_num();
        self.pair.b.device.next_event() == Some(AsyncEvent::LastWqeReached { qp_num })
    }

    fn settle(&mut self) -> (Vec<Completion>, Vec<Completion>) {
        self.pair.settle()
    }
}

fn both_ways(mut test: impl FnMut(Shared)) {
    test(Shared::new(Fabric::threaded()));
    (0..20).for_each(|seed| test(Shared::new(Fabric::deterministic(seed))));
}

#[test]
fn without_faults_the_end_comes_with_err_and_one_event() {
    both_ways(|mut shared| {
        shared.fail();
        assert!(shared.says_that_it_is_over());
        assert!(shared.is_over() && shared.is_over());
        shared.fail();
        shared.notify(1, 8);
        let (a, b) = shared.settle();
        assert_eq!((ends(&a), b), (vec![(1, WcStatus::RETRY_EXC_ERR)], vec![]));
        assert_eq!(shared.pair.b.device.next_event(), None);
        assert_eq!(shared.srq.len(), 4);
    });
}

#[test]
fn a_queue_pair_that_failed_by_itself_reports_it_too() {
    both_ways(|mut shared| {
        let mut bad = shared.pair.request(1, Opcode::RdmaWriteWithImm, 0, 8);
        bad.rkey ^= 1;
        shared.pair.a.post(bad).unwrap();
        shared.settle();
        let qp_num = shared.pair.b.qp.qp_num();
        let event = shared.pair.b.device.next_event();
        assert_eq!(event, Some(AsyncEvent::QpAccessError { qp_num }));
        assert!(shared.says_that_it_is_over() && shared.is_over());
    });
}

#[test]
fn a_queue_pair_whose_sends_fail_reports_it_too() {
    both_ways(|mut shared| {
        shared.pair.a.qp.enter_error().unwrap();
        let mut request = shared.pair.request(1, Opcode::RdmaWrite, 0, 0);
        request.rkey = shared.pair.a.rkey();
        shared.pair.b.post(request).unwrap();
        let (_, b) = shared.settle();
        assert_eq!(ends(&b), [(1, WcStatus::RETRY_EXC_ERR)]);
        assert!(shared.says_that_it_is_over() && shared.is_over());
    });
}

#[test]
fn it_is_asked_in_err_with_shared_receives_and_after_the_sends_only() {
    let refused = Err(Refusal::Driver(errno::EINVAL));
    let mut shared = Shared::new(Fabric::deterministic(1));
    assert_eq!(shared.pair.b.qp.last_wqe_reached(), refused);
    shared.pair.a.qp.enter_error().unwrap();
    assert_eq!(shared.pair.a.qp.last_wqe_reached(), refused);
    shared.pair.b.device.inject(When::Now, Fault::DeviceGone);
    let gone = Err(Refusal::Driver(errno::ENODEV));
    assert_eq!(shared.pair.b.qp.last_wqe_reached(), gone);
}

#[test]
fn one_more_message_may_complete_until_the_end() {
    both_ways(|mut shared| {
        shared.suffer(Fault::OneMoreReceive(Duration::from_secs(1)));
        shared.pair.a.buffer.fill(0, 8, 7);
        shared.fail();
        assert!(!shared.is_over(), "a message may be on its way");
        shared.notify(1, 8);
        shared.notify(2, 0);
        let (a, b) = shared.settle();
        assert_eq!(ends(&b), [(0, WcStatus::SUCCESS)]);
        assert_eq!(ends(&a), [(1, WcStatus::RETRY_EXC_ERR), (2, FLUSHED)], "it got no answer");
        assert_eq!(shared.pair.b.bytes(0, 8), [7; 8]);
        assert!(shared.says_that_it_is_over() && shared.is_over());
        assert_eq!(shared.srq.len(), 3);
    });
}

#[test]
fn the_end_comes_without_one_more_message_as_well() {
    both_ways(|mut shared| {
        shared.suffer(Fault::OneMoreReceive(WITHIN));
        shared.fail();
        assert_eq!(shared.pair.b.device.next_event(), None);
        // Nobody asks: the device goes on by itself.
        shared.settle();
        std::thread::sleep(WITHIN);
        shared.settle();
        assert!(shared.says_that_it_is_over() && shared.is_over());
        shared.notify(1, 8);
        assert_eq!(shared.settle().1, []);
        assert_eq!(shared.srq.len(), 4);
    });
}

#[test]
fn a_step_is_the_end() {
    let mut shared = Shared::new(Fabric::deterministic(1));
    shared.suffer(Fault::OneMoreReceive(WITHIN));
    shared.fail();
    assert!(matches!(shared.pair.fabric.step(), Some(Step::Waited { .. })));
    let qp_num = shared.pair.b.qp.qp_num();
    assert_eq!(shared.pair.fabric.step(), Some(Step::LastWqeReached { device: 1, qp_num }));
    assert_eq!(shared.pair.fabric.step(), None);
    assert!(shared.is_over());
}

#[test]
fn without_a_receive_the_message_that_comes_late_is_not_answered_either() {
    both_ways(|mut shared| {
        while !shared.srq.is_empty() {
            shared.notify(1, 0);
            shared.settle();
        }
        shared.suffer(Fault::OneMoreReceive(Duration::from_millis(1)));
        shared.fail();
        shared.notify(2, 0);
        assert_eq!(ends(&shared.settle().0), [(2, WcStatus::RETRY_EXC_ERR)], "not RNR");
    });
}

#[test]
fn a_receive_may_be_lost_with_the_queue_pair() {
    both_ways(|mut shared| {
        shared.suffer(Fault::TakeSharedReceive(true));
        shared.fail();
        let (_, b) = shared.settle();
        assert_eq!(ends(&b), [(0, FLUSHED)]);
        assert_eq!(b[0].qp_num, shared.pair.b.qp.qp_num());
        assert!(shared.says_that_it_is_over() && shared.is_over());
        assert_eq!(shared.srq.len(), 3);
    });
}

#[test]
fn the_end_comes_behind_completions_that_do_not_show_yet() {
    let mut shared = Shared::new(Fabric::deterministic(3));
    shared.notify(1, 8);
    let fabric = &shared.pair.fabric;
    while !matches!(fabric.step(), Some(Step::Executed { .. })) {}
    shared.fail();
    assert!(!shared.is_over() && shared.pair.b.poll().is_empty());
    let (_, b) = shared.settle();
    assert_eq!(ids(&b), [0]);
    assert!(shared.is_over());
}

/// After the word and a poll that finds less than it might, nothing ever comes, whatever comes in
/// between.
#[test]
fn after_the_word_nothing_comes() {
    for seed in 0..500 {
        let mut shared = Shared::new(Fabric::deterministic(seed));
        shared.suffer(Fault::OneMoreReceive(Duration::from_micros(seed % 40)));
        shared.suffer(Fault::TakeSharedReceive(seed % 3 == 0));
        (1..=4).for_each(|wr_id| shared.notify(wr_id, 8));
        (0..seed % 7).for_each(|_| _ = shared.pair.fabric.step());
        shared.fail();
        let mut completed = 0;
        while !shared.is_over() {
            completed += shared.pair.b.poll().len();
            shared.pair.fabric.step();
        }
        completed += shared.pair.b.poll().len();
        assert_eq!(shared.settle().1, [], "seed {seed}");
        assert_eq!(completed, 4 - shared.srq.len() as usize, "seed {seed}");
    }
}

#[test]
fn a_queue_pair_that_was_reset_starts_over() {
    let mut shared = Shared::new(Fabric::deterministic(1));
    shared.fail();
    assert!(shared.says_that_it_is_over());
    shared.pair.b.qp.reset().unwrap();
    shared.pair.a.qp.reset().unwrap();
    connect_pair(&shared.pair.a.qp, &shared.pair.b.qp, &impatient()).unwrap();
    shared.suffer(Fault::OneMoreReceive(Duration::from_secs(1)));
    shared.fail();
    assert!(!shared.is_over());
    shared.notify(1, 0);
    shared.settle();
    assert!(shared.says_that_it_is_over() && shared.is_over());
}
