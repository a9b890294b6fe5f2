//! One queue pair of a connection's end, and the requests in flight on it.
//!
//! Requests are posted in chains, each with one doorbell. A reliable connection completes requests
//! in posting order, so a completion ends all requests up to its own. A chain may therefore be
//! unsignaled, and the accepted front of a chain that the driver took in part ends with the
//! completion of the next chain.

use super::entry::ENTRY_KEYS;
use super::error::BuildError;
use super::immediate::SIZE_UNIT;
use super::mask::Mask;
use crate::hardware::{QpLimits, QueuePair, SendBatch, Taken};
use crate::rail::tag::{Tag, TagKind};
use crate::rail::{Identity, PhysicalRail, RailCounters, RailHealth, RailId};
use crate::verbs::{DeviceId, DeviceKeys, Imm, Opcode, SendFlags, SendRequest, Sge};

/// A queue pair, what is in flight on it, and whether it may be used.
#[derive(Debug)]
pub(crate) struct Lane<Q, const DEPTH: usize> {
    pub(super) qp: Q,
    pub(super) device: DeviceId,
    pub(super) qp_num: u32,
    /// Its rail.
    pub(super) rail: u8,
    /// The set of its rail.
    pub(super) own: Mask,
    /// The place of its device in the list of this end's.
    pub(super) device_at: u8,
    /// The place of the device at its other end in the list of that end's.
    pub(super) peer_at: u8,
    /// The longest message that it is given, in bytes: a multiple of 128.
    pub(super) max_message: u32,
    /// The longest payload that a request of it brings along, in bytes.
    pub(super) max_inline: u32,
    pub(super) queue: SendQueue<DEPTH>,
    /// What it did, of requests and doorbells only what earlier queue pairs in its place did.
    pub(super) counters: RailCounters,
    /// How far its failure is dealt with.
    pub(super) health: RailHealth,
    /// Immediates that this queue pair was given, or that arrived on it, modulo 2^32.
    pub(super) immediates: u32,
    /// The oldest request in flight at the last stall check.
    pub(super) stall_mark: Option<u64>,
    /// Its completion queue was seen empty after the last receive that it took.
    pub(super) is_seen_empty: bool,
    /// What its completion queue is waited for to have given out, if it is not seen empty before.
    pub(super) taken_by_then: Option<u64>,
    /// Nothing more is posted to it.
    pub(super) is_stopped: bool,
    /// Nothing of it can complete any more.
    pub(super) is_drained: bool,
}

/// What requests need to know of their queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    /// The place of its device in the list of this end's.
    pub(super) device_at: u8,
    /// The place of the device at its other end in the list of that end's.
    pub(super) peer_at: u8,
    /// The longest message that it is given, in bytes.
    pub(super) max_message: u32,
    /// The longest payload that a request brings along, in bytes.
    pub(super) max_inline: u32,
}

impl Port {
    /// Whether a request brings payload of this length along.
    #[cold]
    pub(super) fn inline(&self, length: u32) -> SendFlags {
        if length <= self.max_inline { SendFlags::INLINE } else { SendFlags::empty() }
    }
}

impl<Q, const DEPTH: usize> Lane<Q, DEPTH> {
    /// What was done so far in its place.
    pub(super) const fn counters(&self) -> RailCounters {
        let Self { counters, queue, .. } = self;
        RailCounters {
            // A doorbell is a chain.
            doorbells: counters.doorbells.wrapping_add(queue.chains()),
            send_requests: counters.send_requests.wrapping_add(queue.posted()),
            ..*counters
        }
    }

    /// What requests need to know of it.
    #[inline]
    pub(super) const fn port(&self) -> Port {
        let Self { device_at, peer_at, max_message, max_inline, .. } = *self;
        Port { device_at, peer_at, max_message, max_inline }
    }
}

impl<Q: QueuePair, const DEPTH: usize> Lane<Q, DEPTH> {
    /// The queue pair at this place, of `rails` rails.
    pub(super) fn new(qp: Q, place: usize, rails: u8) -> Self {
        let limits = qp.limits();
        let rail = (place % usize::from(rails.max(1))) as u8;
        Self {
            device: qp.device(),
            qp_num: qp.qp_num(),
            rail,
            own: Mask::of(rail),
            device_at: 0,
            peer_at: 0,
            max_message: limits.max_msg_size - limits.max_msg_size % SIZE_UNIT,
            max_inline: limits.max_inline_data,
            queue: SendQueue::new(rail, limits.max_send_wr),
            counters: RailCounters::default(),
            health: RailHealth::new(),
            immediates: 0,
            stall_mark: None,
            is_seen_empty: false,
            taken_by_then: None,
            is_stopped: false,
            is_drained: false,
            qp,
        }
    }

    /// Whether it can carry requests at all. `least` is how many it must have room for.
    pub(super) fn check(&self, least: u32) -> Result<(), BuildError> {
        let qp_num = self.qp_num;
        for (what, given, needed) in [
            ("max_send_wr", self.queue.limit(), least),
            ("max_msg_size", self.max_message, SIZE_UNIT),
        ] {
            if given < needed {
                return Err(BuildError::Limit { what, qp_num, given, needed });
            }
        }
        Ok(())
    }

    /// Whether a completion is of this queue pair.
    #[inline]
    pub(super) fn is_at(&self, device: DeviceId, qp_num: u32) -> bool {
        self.qp_num == qp_num && self.device == device
    }

    /// Whether it may be given `count` requests.
    #[inline]
    pub(super) const fn has_room(&self, count: u32) -> bool {
        !self.is_stopped && self.queue.credits() >= count
    }

    /// Posts a chain of `count` requests, for which there are credits; if `signaled`, its last one
    /// has a completion. Of a share that the driver did not take whole, the chain does not end it.
    #[inline]
    pub(super) fn post(
        &mut self,
        count: u32,
        signaled: bool,
        purpose: Purpose,
        mut request: impl FnMut(u32) -> SendRequest,
    ) -> Taken {
        let mut tag = self.queue.next_tag();
        let mut batch = self.qp.start_send();
        let mut bytes = 0;
        for index in 0..count {
            let mut next = request(index);
            next.wr_id = tag.wr_id();
            if signaled && index + 1 == count {
                next.flags |= SendFlags::SIGNALED;
            }
            bytes += u64::from(next.sge.length());
            batch.add(&next);
            tag = tag.plus(1);
        }
        let taken = Taken::of(count, batch.commit());
        if taken.count == count {
            self.queue.push_chain(count, signaled, purpose);
        // What the driver took has no signaled request behind it, and the immediate may be missing:
        // the share is not complete with this chain.
        } else if taken.count > 0 {
            self.queue.push_chain(taken.count, false, purpose.cut());
        } else {
            return taken;
        }
        self.counters.bytes += bytes;
        taken
    }

    /// Posts one request, for which there is a credit.
    #[inline]
    pub(super) fn post_one(
        &mut self,
        mut request: SendRequest,
        signaled: bool,
        purpose: Purpose,
    ) -> Taken {
        request.wr_id = self.queue.next_tag().wr_id();
        if signaled {
            request.flags |= SendFlags::SIGNALED;
        }
        let mut batch = self.qp.start_send();
        batch.add(&request);
        let taken = Taken::of(1, batch.commit());
        if taken.count > 0 {
            self.queue.push(signaled, purpose);
            self.counters.bytes += u64::from(request.sge.length());
        }
        taken
    }

    /// Returns the limits that a queue pair in its place needs: name, granted and needed.
    pub(super) const fn limits(&self, granted: &QpLimits) -> [(&'static str, u32, u32); 2] {
        [
            ("max_send_wr", granted.max_send_wr, self.queue.limit()),
            ("max_msg_size", granted.max_msg_size, self.max_message),
        ]
    }
}

impl<Q: QueuePair, const DEPTH: usize> PhysicalRail for Lane<Q, DEPTH> {
    type Qp = Q;

    fn identity(&self) -> Identity {
        Identity { rail: RailId::Data(self.rail), device: self.device, qp_num: self.qp_num }
    }

    fn health(&self) -> &RailHealth {
        &self.health
    }

    fn health_mut(&mut self) -> &mut RailHealth {
        &mut self.health
    }

    fn qp_and_health(&mut self) -> (&mut Q, &mut RailHealth) {
        (&mut self.qp, &mut self.health)
    }

    fn replace(&mut self, queue_pair: Q, device_at: usize) -> Q {
        self.device = queue_pair.device();
        self.qp_num = queue_pair.qp_num();
        self.device_at = device_at as u8;
        self.max_inline = queue_pair.limits().max_inline_data;
        self.is_drained = false;
        self.is_seen_empty = false;
        // These are about the completions of the old queue pair.
        self.taken_by_then = None;
        core::mem::replace(&mut self.qp, queue_pair)
    }

    fn start_over(&mut self, generation: u16) {
        // Before the queue starts over: its own counts are of one generation.
        self.counters = self.counters();
        self.queue.start_over(generation);
        self.immediates = 0;
        self.stall_mark = None;
    }
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The last request of a rail's share of a message, with the immediate.
    Share {
        /// Number of the message.
        number: u64,
        /// The rail of the share, for which the message was split.
        rail: u8,
    },
    /// Another request of a share.
    Part,
    /// The entries of a receive.
    Entries,
    /// The entries of a receive that a failed queue pair has written before.
    EntriesAgain {
        /// Number of the receive.
        number: u64,
    },
    /// A READ that makes what arrived visible.
    Flush,
    /// No payload: a signaled request whose completion ends the requests before it.
    Marker,
}

/// The requests in flight on one send queue, and its credits: free slots of it.
#[derive(Debug)]
pub(super) struct SendQueue<const DEPTH: usize> {
    /// Tag of request 0.
    // The tag of a request follows from this one and its number, so no tags are stored.
    first: Tag,
    posted: u64,
    /// Requests that have ended.
    ended: u64,
    /// Number of the request after the last signaled one.
    signaled: u64,
    limit: u32,
    /// Limit of consecutive unsignaled requests, the next signaled one included.
    quarter: u32,
    /// Chains posted.
    chains: u64,
    /// The purpose of request i is at index i modulo `DEPTH`.
    // A ring of requests and not of chains, so that a request is found by its number, without a
    // search.
    purposes: [Purpose; DEPTH],
}

impl<const DEPTH: usize> SendQueue<DEPTH> {
    /// Creates an empty queue of `limit` slots, at most `DEPTH`.
    pub(super) const fn new(rail: u8, limit: u32) -> Self {
        let limit = if limit < DEPTH as u32 { limit } else { DEPTH as u32 };
        Self {
            first: Tag::new(TagKind::Send, rail, 0),
            posted: 0,
            ended: 0,
            signaled: 0,
            limit,
            // Unsignaled requests keep their slots until a later completion, so at most a quarter
            // of the queue waits for one (messages.md, "Offers: entries").
            quarter: limit.div_ceil(4),
            chains: 0,
            purposes: [Purpose::Marker; DEPTH],
        }
    }

    /// Slots in all.
    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Free slots.
    #[inline]
    pub(super) const fn credits(&self) -> u32 {
        self.limit - (self.posted - self.ended) as u32
    }

    /// Whether nothing is in flight.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.posted == self.ended
    }

    /// Requests posted since the last one that will have a completion.
    #[inline]
    pub(super) const fn unsignaled(&self) -> u32 {
        (self.posted - self.signaled) as u32
    }

    /// Returns whether the next request must be signaled: with it, a quarter of the queue has been
    /// posted since the last signaled one.
    #[inline]
    pub(super) const fn is_signal_due(&self) -> bool {
        self.unsignaled() + 1 >= self.quarter
    }

    /// Requests posted so far.
    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Chains posted so far.
    pub(super) const fn chains(&self) -> u64 {
        self.chains
    }

    /// Returns whether a request in flight is signaled.
    pub(super) const fn expects_completion(&self) -> bool {
        self.signaled > self.ended
    }

    /// Number of the oldest request in flight.
    pub(super) const fn oldest(&self) -> u64 {
        self.ended
    }

    /// The tag of the next request.
    #[inline]
    pub(super) const fn next_tag(&self) -> Tag {
        self.first.plus(self.posted)
    }

    /// Records a chain of `count` requests, of which the last has this `purpose` and may be
    /// `signaled`.
    pub(super) fn push_chain(&mut self, count: u32, signaled: bool, purpose: Purpose) {
        debug_assert!(count > 0 && count <= self.credits());
        // Parts have places of their own, because a completion can also end in the middle of a
        // chain that failed.
        for _ in 1..count {
            self.purposes[place::<DEPTH>(self.posted)] = Purpose::Part;
            self.posted += 1;
        }
        self.push(signaled, purpose);
    }

    /// Records a chain of one request.
    #[inline]
    pub(super) fn push(&mut self, signaled: bool, purpose: Purpose) {
        debug_assert!(self.credits() > 0);
        self.purposes[place::<DEPTH>(self.posted)] = purpose;
        self.posted += 1;
        // Only a signaled request surely completes; the requests before it end with it.
        if signaled {
            self.signaled = self.posted;
        }
        self.chains += 1;
    }

    /// Number of the request in flight that has this `wr_id`.
    #[inline]
    pub(super) fn find(&self, wr_id: u64) -> Option<u64> {
        // The tag contains the generation, so a completion of a replaced queue pair is not found.
        let since = Tag::from_wr_id(wr_id).requests_since(self.first, self.ended)?;
        // A number that was never posted, or has ended, is not in flight: a driver may repeat a
        // completion.
        (since < self.posted - self.ended).then_some(self.ended + since)
    }

    /// Ends request `number`, which is in flight, and all requests before it. Calls `each` for
    /// each.
    #[inline]
    pub(super) fn end(&mut self, number: u64, mut each: impl FnMut(Purpose)) {
        // A reliable connection completes requests in order, so what is before has ended as well.
        for ended in self.ended..=number {
            each(self.purposes[place::<DEPTH>(ended)]);
        }
        self.ended = number + 1;
    }

    /// Ends all requests, without regard to their results.
    pub(super) const fn end_all(&mut self) {
        self.ended = self.posted;
    }

    /// Starts again for the queue pair of another `generation`. All requests must have ended.
    pub(super) fn start_over(&mut self, generation: u16) {
        debug_assert!(self.is_empty());
        let first = self.first.of_generation(generation);
        // Another generation gives other tags, so late completions of the old queue pair are not
        // found.
        *self = Self { first, ..Self::new(first.rail(), self.limit) };
    }

    /// What must hold between any two calls.
    pub(super) fn invariants(&self) {
        assert!(self.ended <= self.posted && self.signaled <= self.posted);
        assert!(self.posted - self.ended <= u64::from(self.limit), "credits");
        assert!(self.chains <= self.posted);
    }
}

impl Purpose {
    /// The same of a chain without its end.
    const fn cut(self) -> Self {
        match self {
            // Its completion must not count as that of the whole share.
            Self::Share { .. } => Self::Part,
            other => other,
        }
    }
}

/// The place of a request.
#[inline]
const fn place<const DEPTH: usize>(at: u64) -> usize {
    (at % DEPTH as u64) as usize
}

/// A request of no bytes.
#[inline]
pub(super) fn blank(opcode: Opcode) -> SendRequest {
    SendRequest {
        wr_id: 0,
        opcode,
        flags: SendFlags::empty(),
        imm: Imm::default(),
        sge: Sge::EMPTY,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
    }
}

/// The key for one of the other end's devices. For an unknown device, a key that opens nothing.
#[inline]
pub(super) fn key(rkeys: &[u32; ENTRY_KEYS], device: u8) -> u32 {
    rkeys.get(usize::from(device)).copied().unwrap_or_default()
}

/// The keys of a buffer on a device, most likely at this place.
#[inline]
pub(super) fn find_keys(keys: &[DeviceKeys], at: usize, device: DeviceId) -> Option<&DeviceKeys> {
    let is_it = |keys: &&DeviceKeys| keys.device == device;
    keys.get(at).filter(is_it).or_else(|| keys.iter().find(is_it))
}

#[cfg(test)]
mod tests;
