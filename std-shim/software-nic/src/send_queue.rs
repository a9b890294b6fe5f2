//! The send queue of one queue pair: its ring, and the progress of its front. `P` is the queue pair
//! to which its requests go.

use polyrail_nic_parts::address::{Gid, Mtu};
use polyrail_nic_parts::send_ring::SendRing;
use std::ops::{Deref, DerefMut};
use std::sync::Weak;

/// Send requests, oldest first. Positions count from the queue's beginning and never repeat:
///
/// ```text
/// released <= settled <= next <= posted
/// ```
///
/// Slots below `released` (stored in [`polyrail_nic_parts::completions::ReleasedSlots`]) are free:
/// their completion, or a later one, was polled. Requests below `settled` are complete. Requests
/// from `settled` to `next` were executed, or started, behind a deferred READ or atomic. The
/// request at `next` is the front.
#[derive(Debug)]
pub(crate) struct SendQueue<P> {
    ring: SendRing,
    pub(crate) next: u64,
    /// A READ or atomic that the peer has accepted, and whose data is not here yet.
    pub(crate) deferred: Option<Deferred>,
    pub(crate) front: Front,
    pub(crate) path: Path<P>,
    pub(crate) timers: Timers,
    pub(crate) psn: u32,
    pub(crate) own_qp_num: u32,
    /// Requests may have completed receives of the peer that are not in their queue yet.
    pub(crate) completes_receives: bool,
}

/// The progress of the request at the front.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Front {
    pub(crate) rnr_tries: u8,
    pub(crate) timeouts: u8,
    /// Do not retry before this time.
    pub(crate) until: Option<u64>,
    /// Do not retry before the fabric's count of changes exceeds this.
    pub(crate) blocked: Option<u64>,
    /// The data of a WRITE_WITH_IMM arrived; only its receive is missing.
    pub(crate) data_done: bool,
    /// The peer executed the request; only its acknowledgement is missing.
    pub(crate) delivered: bool,
    /// An attempt was made.
    pub(crate) started: bool,
    /// The device's line is sending it.
    pub(crate) on_line: bool,
}

/// A READ or atomic that the peer has accepted, and whose data is not here yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) position: u64,
    pub(crate) front: Front,
}

/// Where the requests go.
#[derive(Debug)]
pub(crate) struct Path<P> {
    /// The local port and its address.
    pub(crate) port: u8,
    pub(crate) own_gid: Gid,
    pub(crate) gid: Gid,
    pub(crate) dest_qp_num: u32,
    pub(crate) mtu: Mtu,
    /// The peer that was found last.
    pub(crate) peer: Weak<P>,
}

impl<P> Default for Path<P> {
    fn default() -> Self {
        Self {
            port: 0,
            own_gid: Gid::default(),
            gid: Gid::default(),
            dest_qp_num: 0,
            mtu: Mtu::default(),
            peer: Weak::new(),
        }
    }
}

/// The sender's timeouts and retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
}

/// Packet sequence numbers have 24 bits.
pub(crate) const PSN_MASK: u32 = (1 << 24) - 1;

impl<P> SendQueue<P> {
    /// Makes a ring of at least `min` requests with `inline_bytes` each, and up to `max_sge`
    /// buffers.
    pub(crate) fn new(min: u32, inline_bytes: u32, max_sge: u32) -> Self {
        Self {
            ring: SendRing::new(min, inline_bytes, max_sge),
            next: 0,
            deferred: None,
            front: Front::default(),
            path: Path::default(),
            timers: Timers::default(),
            psn: 0,
            own_qp_num: 0,
            completes_receives: false,
        }
    }

    /// Returns the position of the first request that has not completed.
    pub(crate) fn settled(&self) -> u64 {
        self.deferred.map_or(self.next, |deferred| deferred.position)
    }

    /// Returns whether a request waits to be executed or to complete.
    pub(crate) fn has_work(&self) -> bool {
        self.settled() < self.posted()
    }

    /// Returns whether a started request has not ended, which SQD waits for.
    pub(crate) fn is_underway(&self) -> bool {
        self.deferred.is_some() || (self.next < self.posted() && self.front.started)
    }

    /// Makes the next request the front, after the front was executed or deferred.
    pub(crate) fn step_past(&mut self, packets: u32) {
        self.psn = self.psn.wrapping_add(packets) & PSN_MASK;
        self.next += 1;
        self.front = Front::default();
    }

    /// Drops all requests.
    pub(crate) fn clear(&mut self) {
        self.next = self.posted();
        self.deferred = None;
        self.front = Front::default();
    }
}

impl<P> Deref for SendQueue<P> {
    type Target = SendRing;

    fn deref(&self) -> &SendRing {
        &self.ring
    }
}

impl<P> DerefMut for SendQueue<P> {
    fn deref_mut(&mut self) -> &mut SendRing {
        &mut self.ring
    }
}
