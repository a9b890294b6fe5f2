//! Other targets on the completion queue of a receiver that has to see it empty.

use crate::device::{Step, TestCq, TestQp};
use crate::rig::{Memory, Rig, Setup};
use polyrail_core::hardware::{ENGINE_WR_ID, QpLimits};
use polyrail_core::p2p::ConnectionEnd;
use polyrail_core::verbs::{SendWr, WcStatus};
use polyrail_core::virtual_cq::{CompletionTarget, Event};
use polyrail_core::virtual_qp::{Config, RailState, VirtualQp};

/// A virtual queue pair on the first completion queue of the receiver, with memory to write to.
struct Other {
    qp: VirtualQp<TestQp, 2, 8, 8>,
    /// Places of its rails.
    rails: Vec<usize>,
    memory: Memory,
}

/// The index under which it is attached.
const INDEX: u16 = 1;

/// Bytes of one of its fragments.
const FRAGMENT: u32 = 128;

impl Other {
    /// Over rails that may have `max_msgs` requests in flight each.
    fn new(rig: &mut Rig, rails: usize, max_msgs: u32) -> Self {
        let cq: TestCq = rig.far_cq.cqs()[0].clone();
        let peer_cq = rig.fabric.cq(rig.device(0).0, 64);
        let limits = QpLimits {
            max_send_wr: max_msgs.max(8),
            max_recv_wr: 0,
            max_inline_data: 0,
            max_msg_size: 1 << 20,
            max_send_sge: 1,
            max_recv_sge: 0,
        };
        let make = |_| {
            let (near, far) =
                (rig.fabric.qp(&cq, None, limits), rig.fabric.qp(&peer_cq, None, limits));
            rig.fabric.connect(&near, &far);
            near
        };
        let queue_pairs: Vec<_> = (0..rails).map(make).collect();
        let rails = queue_pairs.iter().map(|qp| qp.at).collect();
        let config = Config {
            virtual_qp_num: 77,
            max_msg_size: FRAGMENT,
            max_msgs_per_qp: max_msgs,
            ..Config::default()
        };
        let qp = VirtualQp::new(config, queue_pairs, None).expect("a sound configuration");
        rig.far_cq.attach(INDEX, &qp).expect("attaches");
        Self { qp, rails, memory: rig.target(1 << 12) }
    }

    /// Posts WRITEs of this many bytes. Over a single rail names are the driver's, and these
    /// devices take the engine's only.
    fn post(&mut self, ids: impl IntoIterator<Item = u64>, length: u32) {
        let Self { qp, memory, .. } = self;
        for id in ids {
            let wr = SendWr::write(
                ENGINE_WR_ID | id,
                memory.local(0, length),
                memory.block.addr(),
                &memory.keys,
            );
            qp.post_send(&wr).expect("room for it");
        }
    }

    /// Executes and acknowledges all that is posted.
    fn run(&self, rig: &Rig) {
        self.rails.iter().for_each(|at| rig.fabric.run_only(*at));
    }

    /// Polls the receiver's completion queues for both targets. Returns the names of what is
    /// reported.
    fn poll(&mut self, rig: &mut Rig, budget: usize) -> Vec<u64> {
        let mut reported = Vec::new();
        let receiver: &mut dyn CompletionTarget = &mut rig.connections[0].receiver;
        let mut targets: [&mut dyn CompletionTarget; 2] = [receiver, &mut self.qp];
        let sink =
            |event: Event| reported.extend(event.completion().map(|wc| wc.wr_id & !ENGINE_WR_ID));
        let polled = rig.far_cq.poll(&mut targets[..], budget, sink);
        assert_eq!(polled.error, None);
        self.qp.invariants();
        rig.invariants();
        reported
    }
}

/// A receiver whose first queue pair has failed: its flushed entry waits in the completion queue.
fn failed_receiver() -> Rig {
    let mut rig = Setup::rerouting(2).rig();
    let target = rig.target(1000);
    let _ = rig.irecv(&target, 1000);
    let far = rig.far(0);
    rig.fabric.fail(far, WcStatus::RETRY_EXC_ERR);
    rig
}

/// What passed through and found no budget comes before what is found while the completion queue is
/// emptied, whose turn it may be.
#[test]
fn what_waits_for_budget_comes_before_what_emptying_a_completion_queue_finds() {
    for polls in 1..=2 {
        let mut rig = failed_receiver();
        let mut other = Other::new(&mut rig, 1, 8);
        other.post(1..=3, 8);
        other.run(&rig);
        let mut reported: Vec<_> = (0..polls).flat_map(|_| other.poll(&mut rig, 1)).collect();
        other.post(4..=5, 8);
        other.run(&rig);
        reported.extend(other.poll(&mut rig, usize::MAX));
        assert_eq!(reported, [1, 2, 3, 4, 5], "after {polls} polls with a budget of 1");
    }
}

/// While the queue is emptied for one queue pair of a receiver, completions of another one come.
/// The receiver may then ask that one's driver for its word, with which more completions appear:
/// the empty queue proves nothing about them.
#[test]
fn a_queue_pair_whose_driver_gives_its_word_while_the_queue_is_emptied_was_not_seen_empty() {
    let mut rig = Setup { devices: 1, ..Setup::rerouting(3) }.rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    rig.settle();
    let _ = rig.irecv(&target, 1000);
    let send = rig.isend(&source, 1000);
    rig.fabric.clear_log();
    assert!(rig.receiver().fail_queue_pair(1));
    rig.poll_far();
    assert!(rig.far_cq.needs_poll(), "its completion queue is to be seen empty");
    let (near, far) = (rig.near(0), rig.far(0));
    assert_eq!(rig.fabric.execute(near), Step::Done);
    rig.fabric.hide_newest(far);
    rig.fabric.fail(far, WcStatus::RETRY_EXC_ERR);
    rig.poll_far();
    rig.recover();
    assert!(rig.sent(send) && rig.received(recv).is_some());
    assert_no_share_was_written_twice(&rig);
}

/// An owner that may wait after one poll that brings nothing would not come back for it.
#[test]
fn a_target_that_is_polled_while_a_completion_queue_is_emptied_goes_on_at_once() {
    let mut rig = failed_receiver();
    let mut other = Other::new(&mut rig, 2, 1);
    assert_eq!(other.poll(&mut rig, usize::MAX), [], "the receiver is to see the queue empty");
    other.post([1], 4 * FRAGMENT);
    other.run(&rig);
    assert_eq!(other.poll(&mut rig, usize::MAX), []);
    let posted: usize = other.rails.iter().map(|at| rig.fabric.posted(*at).len()).sum();
    assert_eq!(posted, 2, "what had waited for the two rails");
}

/// A completion queue that is full of what is others' is not seen empty before it has given out all
/// of it.
#[test]
fn a_queue_pair_whose_immediate_waits_behind_completions_of_others_was_not_seen_empty() {
    let mut rig = Setup { devices: 1, ..Setup::rerouting(3) }.rig();
    let mut other = Other::new(&mut rig, 1, 64);
    let (source, target) = (rig.source(1000), rig.target(1000));
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.fabric.clear_log();
    other.post(0..64, 8);
    other.run(&rig);
    let near = rig.near(1);
    assert_eq!(rig.fabric.execute(near), Step::Done);
    assert!(rig.receiver().fail_queue_pair(1));
    for _ in 0..4 {
        other.poll(&mut rig, 1);
        rig.carry();
    }
    while !other.poll(&mut rig, 1).is_empty() {}
    rig.recover();
    assert!(rig.sent(send) && rig.received(recv).is_some());
    assert_no_share_was_written_twice(&rig);
}

/// Of the messages since the log was cleared.
fn assert_no_share_was_written_twice(rig: &Rig) {
    let log = rig.fabric.take_log();
    let payload = log.iter().filter(|(_, request)| request.sge.length() > 64);
    let shares: Vec<_> = payload.map(|(_, request)| request.remote_addr).collect();
    let once: std::collections::BTreeSet<_> = shares.iter().collect();
    assert_eq!(once.len(), shares.len(), "a share is written again that had arrived: {shares:x?}");
}

/// Requests of others that pass straight through all the time do not keep a queue pair that failed
/// from being drained, however small the budget is: what waits for it would wait as long.
#[test]
fn a_queue_pair_is_drained_while_others_on_its_completion_queue_are_busy() {
    for budget in [usize::MAX, 40, 8, 2, 1] {
        let mut rig = failed_receiver();
        let mut other = Other::new(&mut rig, 1, 64);
        let mut outstanding = 0;
        // With a budget of 1, more polls than the completion queue holds.
        for _ in 0..2000 {
            other.post(outstanding..64, 8);
            other.run(&rig);
            outstanding = 64 - other.poll(&mut rig, budget).len() as u64;
        }
        let states: Vec<_> = (0..2).map(|at| rig.receiver().queue_pair_state(at)).collect();
        let drains = |(state, _): (RailState, u16)| state == RailState::Draining;
        assert!(
            !states.iter().flatten().copied().any(drains),
            "{states:?} after polls of {budget}"
        );
    }
}
