//! Requests that are gathered: short ones wait for the next poll, so that one system call sends
//! them and one receives them. Sent alone, a request of 4 KiB costs a system call, a packet and an
//! acknowledgement, which take several times as long as its bytes.
//!
//! Requests wait only while an earlier one is not acknowledged, so a request that finds the
//! connection idle is not delayed, and only while the completion queue is being polled. Whatever
//! comes first sends them: the next poll, the next frame of the peer, enough requests, the end of
//! polling (a request for a notification, or the I/O thread, which looks every millisecond). A
//! queue pair with a completion queue for receives of its own gathers nothing: a poll of that one
//! does not show that the other is polled, too.

use crate::outgoing::MOST_FRAMES;
use crate::shared::{QpShared, Queues};
use polyrail_nic_parts::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of requests, with their headers, from which on they do not wait: what one packet of the
/// system takes at most (`GSO_MAX_SIZE`), before the network divides it.
const ENOUGH: usize = 64 << 10;

impl QpShared {
    /// Counts requests that were just posted, of this many bytes with their headers. Returns
    /// whether they wait.
    pub(crate) fn gathers(&self, queues: &mut Queues, bytes: usize) -> bool {
        queues.gathered = queues.gathered.saturating_add(bytes);
        queues.gathered < ENOUGH
            && queues.requester.unsent() < MOST_FRAMES as u64
            && queues.requester.awaits_acknowledgement()
            && Arc::ptr_eq(&self.send_cq, &self.recv_cq)
            && !self.send_cq.io_watches.load(Ordering::SeqCst)
    }

    /// Sends the acknowledgement and the requests that the queue pair holds, unless they were sent
    /// for another reason. Must be called without locks.
    pub(crate) fn send_held(&self) {
        let acknowledges = self.holds_acknowledgement.swap(false, Ordering::SeqCst);
        let requests = self.holds_requests.swap(false, Ordering::SeqCst);
        let is_due = {
            let queues = lock(&self.queues);
            acknowledges && queues.responder.owes_acknowledgement()
                || requests && queues.requester.unsent() > 0
        };
        if is_due {
            self.send();
        }
    }
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::ends::{ends, wait};
    use polyrail_core::verbs::{AccessFlags, Sge};
    use polyrail_nic_parts::pages::Pages;

    #[test]
    fn requests_behind_one_that_is_not_acknowledged_wait_for_the_next_poll() {
        let (mut near, _far) = ends("127.8.1.1", "127.8.1.2");
        near.post(1, Sge::EMPTY);
        assert_eq!(near.unsent(), 0, "the connection was idle");
        near.post(1, Sge::EMPTY);
        near.post(1, Sge::EMPTY);
        assert_eq!(near.unsent(), 2);
        // Nothing of the peer is read, which would send them, too.
        let shared = Arc::clone(&near.qp.shared);
        let reading = lock(&shared.read);
        assert!(near.poll().is_empty());
        assert_eq!(near.unsent(), 0);
        drop(reading);
        near.complete(3);
        near.post(1, Sge::EMPTY);
        assert_eq!(near.unsent(), 0, "the connection is idle again");
        near.complete(1);
    }

    #[test]
    fn enough_requests_do_not_wait() {
        let (mut near, far) = ends("127.8.1.3", "127.8.1.4");
        near.post(1, Sge::EMPTY);
        near.post(MOST_FRAMES - 1, Sge::EMPTY);
        assert_eq!(near.unsent(), MOST_FRAMES as u64 - 1);
        near.post(1, Sge::EMPTY);
        assert_eq!(near.unsent(), 0);
        near.complete(1 + MOST_FRAMES);
        // As many bytes, which fail at the peer because it has no such memory.
        let pages = Arc::new(Pages::new(ENOUGH).unwrap());
        let region = near.pd.register_pages(&pages, AccessFlags::LOCAL_WRITE).unwrap();
        let sge = |length: usize| pages.local(0, length as u32).unwrap().sge(region.lkey());
        near.post(1, Sge::EMPTY);
        near.post(1, sge(ENOUGH / 2));
        assert_eq!(near.unsent(), 1);
        near.post(1, sge(ENOUGH / 2));
        assert_eq!(near.unsent(), 0);
        near.complete(3);
        drop(far);
    }

    #[test]
    fn requests_do_not_wait_when_their_owner_waits() {
        let (mut near, _far) = ends("127.8.1.5", "127.8.1.6");
        near.post(1, Sge::EMPTY);
        near.post(1, Sge::EMPTY);
        assert_eq!(near.unsent(), 1);
        near.cq.req_notify(false);
        assert_eq!(near.unsent(), 0);
        // As long as it does not poll, the I/O thread is notified.
        near.post(2, Sge::EMPTY);
        assert_eq!(near.unsent(), 0);
        near.complete(4);
    }

    #[test]
    fn requests_are_sent_when_the_peer_answers_an_earlier_one() {
        let (mut near, _far) = ends("127.8.1.7", "127.8.1.8");
        near.post(1, Sge::EMPTY);
        near.post(1, Sge::EMPTY);
        assert_eq!(near.unsent(), 1);
        // What the I/O thread does when the acknowledgement comes.
        wait(|| {
            near.cq.shared.drive(false);
            near.unsent() == 0
        });
        near.complete(2);
    }
}
