//! The end of a queue pair: failures take effect here, with both halves locked, so that no thread
//! moves bytes of the requests that are reported.

use crate::arrival;
use crate::outgoing::Outgoing;
use crate::read_half::ReadHalf;
use crate::shared::{QpShared, Queues};
use crate::transmit;
use polyrail_core::verbs::{Completion, WcStatus};
use polyrail_nic_parts::completions::Entry;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::memory::MemoryTable;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::{lock, read};
use std::sync::atomic::Ordering;

impl QpShared {
    /// Records that a failure was found. It takes effect in [`run`].
    pub(crate) fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Records that the connection is lost, and ends it. Outstanding requests, and those posted
    /// later, fail. Must be called without the lock of the queues.
    pub(crate) fn lose(&self, vendor: u32) {
        lock(&self.queues).requester.lose(vendor);
        self.close();
        self.note_failure();
    }
}

/// Lets a failure take effect, if one was found and no other thread does so. Must be called without
/// locks.
pub(crate) fn run(qp: &QpShared) {
    // Nearly always there is none, and a load leaves the cache line to all threads.
    while qp.has_failed.load(Ordering::Acquire) && qp.has_failed.swap(false, Ordering::AcqRel) {
        take_effect(qp);
    }
}

/// Lets a failure take effect. When it returns, it has. [`run`] may return before, because another
/// thread has taken the flag and not the locks. Must be called without locks.
pub(crate) fn take_effect(qp: &QpShared) {
    let mut incoming = lock(&qp.read);
    let mut outgoing = qp.write.lock();
    let memory = read(&qp.device.memory);
    let mut queues = lock(&qp.queues);
    fail(qp, &mut incoming, &mut outgoing, &mut queues, &memory);
    drop((queues, memory, outgoing, incoming));
    // The refusal.
    transmit::run(qp);
}

/// Moves the queue pair to ERR, if it is not there and no request has failed, and flushes
/// everything.
fn fail(
    qp: &QpShared,
    incoming: &mut ReadHalf,
    outgoing: &mut Outgoing,
    queues: &mut Queues,
    memory: &MemoryTable,
) {
    let state = qp.state.get();
    // What is posted in ERR is flushed, whatever led there.
    let failure = queues.requester.due_failure().filter(|_| state != QpState::Err);
    let has_failed = failure.is_some() || state == QpState::Err;
    if !has_failed || state == QpState::Reset {
        return;
    }
    qp.state.fail();
    let refuses = queues.responder.has_refused() || incoming.is_discarding();
    let refuses = refuses && !queues.requester.is_lost() && !qp.is_cut.load(Ordering::Acquire);
    let refuses = refuses && outgoing.keep_responses(&queues.requester, qp.domain, memory);
    if refuses {
        incoming.discard();
    } else {
        incoming.end();
        outgoing.clear();
        queues.responder.end();
        queues.requester.lose(vendor::FLUSHED);
        qp.close();
    }
    if let Some(failure) = failure
        && let Some(position) = queues.requester.take_failed()
    {
        let wr_id = queues.requester.ring.get(position).wr_id;
        let (status, vendor) = (failure.status, failure.vendor);
        qp.complete(position, Completion::failure(qp.number, wr_id, status, vendor));
    }
    flush_sends(qp, queues);
    if incoming.has_taken {
        arrival::fail_receive(qp, incoming, WcStatus::WR_FLUSH_ERR, vendor::FLUSHED);
    }
    flush_receives(qp, queues);
}

fn flushed(qp: &QpShared, wr_id: u64) -> Completion {
    Completion::failure(qp.number, wr_id, WcStatus::WR_FLUSH_ERR, vendor::FLUSHED)
}

/// Completes every outstanding send request as flushed, signaled or not.
fn flush_sends(qp: &QpShared, queues: &mut Queues) {
    while let Some(position) = queues.requester.take_failed() {
        let wr_id = queues.requester.ring.get(position).wr_id;
        qp.complete(position, flushed(qp, wr_id));
    }
    queues.requester.end();
}

/// Completes every posted receive as flushed. Shared receives stay in their queue.
fn flush_receives(qp: &QpShared, queues: &mut Queues) {
    while let Some((request, releases)) = queues.responder.posts.pop() {
        qp.recv_cq.push(Entry {
            completion: flushed(qp, request.wr_id),
            releases,
            owner: qp.recv_owner,
            is_recv: true,
            solicited: true,
        });
    }
}

/// Moves the queue pair to ERR. When it returns, nothing of the peer is placed any more.
pub(crate) fn cut(qp: &QpShared) {
    qp.is_cut.store(true, Ordering::Release);
    {
        // Commits look at the state under the same lock.
        let _queues = lock(&qp.queues);
        qp.state.fail();
    }
    take_effect(qp);
}

/// Ends the connection, and drops all requests without completions.
pub(crate) fn destroy(qp: &QpShared) {
    let mut incoming = lock(&qp.read);
    // A receive that its owner has polled may not be acknowledged yet, if another thread placed it,
    // or if the acknowledgement waits for an answer. Requests may wait for a poll.
    qp.holds_acknowledgement.store(false, Ordering::SeqCst);
    // Under the lock that is kept: `run` may leave the work to a thread that then finds the half
    // taken by this one, and leaves it, too.
    let mut outgoing = qp.write.lock();
    transmit::send(qp, &mut outgoing);
    let mut queues = lock(&qp.queues);
    qp.state.set(QpState::Reset);
    incoming.end();
    outgoing.clear();
    queues.responder.end();
    queues.responder.posts.clear();
    while queues.requester.take_failed().is_some() {}
    queues.requester.end();
    queues.requester.lose(vendor::FLUSHED);
    qp.released.release(false, queues.requester.ring.posted());
    qp.released.release(true, queues.responder.posts.posted());
    qp.close();
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::device::{Device, DeviceOptions};
    use crate::ends::ends_with_held_acknowledgement;
    use crate::queue_pair::QpInit;
    use polyrail_nic_parts::options::{ConnectOptions, QpCap};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    /// Of three threads, one is placing bytes, and one has found the failure and waits for the
    /// first.
    #[test]
    fn a_queue_pair_has_entered_err_when_the_call_of_its_owner_returns() {
        let device = Device::open("127.8.0.1", &DeviceOptions::default()).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(8).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap();
        qp.connect(0, &qp.as_remote(0), &ConnectOptions::default()).unwrap();
        let has_returned = AtomicBool::new(false);
        let placing = lock(&qp.shared.read);
        thread::scope(|scope| {
            qp.shared.state.fail();
            qp.shared.note_failure();
            scope.spawn(|| run(&qp.shared));
            while qp.shared.has_failed.load(Ordering::Acquire) {
                thread::yield_now();
            }
            scope.spawn(|| {
                qp.to_error().unwrap();
                has_returned.store(true, Ordering::Release);
            });
            thread::sleep(Duration::from_millis(100));
            assert!(!has_returned.load(Ordering::Acquire), "bytes are still placed");
            drop(placing);
        });
        assert!(has_returned.into_inner());
    }

    /// Another thread holds the write half, and looks for work no more before it unlocks.
    #[test]
    fn an_acknowledgement_is_sent_before_the_queue_pair_is_gone() {
        let (near, mut far) = ends_with_held_acknowledgement("127.8.0.9", "127.8.0.10");
        let shared = Arc::clone(&near.qp.shared);
        thread::scope(|scope| {
            let writing = shared.write.lock();
            scope.spawn(move || drop(near));
            thread::sleep(Duration::from_millis(200));
            drop(writing);
        });
        assert_eq!(far.complete(1), [WcStatus::SUCCESS]);
    }
}
