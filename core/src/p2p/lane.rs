//! One queue pair of a connection's end.

use super::entry::ENTRY_KEYS;
use super::error::BuildError;
use super::immediate::SIZE_UNIT;
use super::mask::Mask;
use super::queue::{Purpose, SendQueue};
use crate::hardware::{QpLimits, QueuePair, SendBatch, Taken};
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
    stall_mark: Option<u64>,
    /// Its completion queue was seen empty after the last receive that it took.
    pub(super) is_seen_empty: bool,
    /// What its completion queue is waited for to have given out, if it is not seen empty before.
    taken_by_then: Option<u64>,
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

    /// Stops posting to it, and moves it to the error state as soon as its driver allows that:
    /// draining asks again.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        // A refusal is not an error here: `drain` asks the driver again in every poll.
        let _ = self.enter_error();
    }

    /// Returns the limits that a queue pair in its place needs: name, granted and needed.
    pub(super) const fn limits(&self, granted: &QpLimits) -> [(&'static str, u32, u32); 2] {
        [
            ("max_send_wr", granted.max_send_wr, self.queue.limit()),
            ("max_msg_size", granted.max_msg_size, self.max_message),
        ]
    }

    /// Goes on draining it, and returns whether it is drained: it is in the error state, and
    /// everything posted to it has ended. With `receives` from a shared queue, it takes none of
    /// them any more either.
    pub(super) fn drain(&mut self, receives: bool) -> bool {
        // While the driver refuses, the queue pair still answers, and what is on its way may
        // arrive: that is no fence.
        if self.is_drained || !self.is_stopped || self.enter_error().is_some() {
            return self.is_drained;
        }
        let wants_marker = self.queue.unsignaled() > 0 && !self.queue.is_empty();
        if wants_marker && self.queue.credits() > 0 {
            // What has no completion ends with the next one that has. Refused, or without a credit,
            // which those before will give back, it is posted by a later poll.
            self.post_one(blank(Opcode::RdmaWrite), true, Purpose::Marker);
        }
        // An empty send queue proves nothing about receives of a shared queue. Only the driver
        // knows that the queue pair takes none of them any more.
        self.is_drained = self.queue.is_empty() && (!receives || self.takes_no_receive());
        self.is_drained
    }

    /// Takes note that its completion queue, which holds no more than `capacity`, has given out
    /// `taken` so far. When that is `capacity` more than when it was waited for first, all is taken
    /// that the queue held then, and nothing of this queue pair came after that.
    pub(super) fn note_taken(&mut self, taken: u64, capacity: u32) {
        let by_then = *self.taken_by_then.get_or_insert(taken + u64::from(capacity));
        self.is_seen_empty |= taken >= by_then;
    }

    /// Whether it takes no receive any more.
    fn takes_no_receive(&mut self) -> bool {
        self.health.is_gone || matches!(self.qp.last_wqe_reached(), Ok(true))
    }

    /// The queue pair is no more: what was in flight has ended.
    pub(super) fn lose(&mut self) {
        self.is_stopped = true;
        self.health.note_gone();
        // No completion of a destroyed queue pair is awaited, so its completion queue need not be
        // seen empty.
        self.is_seen_empty = true;
        self.queue.end_all();
    }

    /// Whether nothing has ended since the previous call although there is something in flight. If
    /// none of the requests has a completion, a request that has one is posted behind them, and the
    /// next call decides.
    pub(super) fn check_stalled(&mut self) -> bool {
        if !self.queue.is_empty() && !self.queue.expects_completion() && self.has_room(1) {
            self.post_one(blank(Opcode::RdmaWrite), true, Purpose::Marker);
        }
        let expects = self.queue.expects_completion();
        // Without a completion to come, the oldest request stays the same however fast the queue
        // pair is.
        let mark = expects.then_some(self.queue.oldest());
        let is_stalled = mark.is_some() && mark == self.stall_mark;
        self.stall_mark = mark;
        is_stalled
    }

    /// Whether its driver must be asked again to go on.
    pub(super) const fn needs_poll(&self) -> bool {
        self.is_stopped && !self.is_drained
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
