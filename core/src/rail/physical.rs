//! One physical queue pair with its credits, what is in flight on it, and its receives.

use super::error::RailCounters;
use super::health::{Identity, PhysicalRail, RailHealth};
use super::id::RailId;
use super::in_flight::{Batch, InFlight};
use super::receives::Receives;
use super::tag::TagKind;
use crate::hardware::{
    QueuePair, RecvBatch, Refusal, SendBatch, Taken, add_gathered, add_scattered, address,
};
use crate::verbs::{DeviceId, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge};

/// The address of no queue pair: numbers have 24 bits.
const NO_ADDRESS: u64 = u64::MAX;

/// A rail, or the notify queue pair.
///
/// Laid out as written: what every post and completion of a single rail touches stands together,
/// up to the queue pair, since with thousands of them each cache line is a miss.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Rail<Q, const DEPTH: usize> {
    pub(crate) device: DeviceId,
    /// What completions of this rail carry.
    pub(crate) qp_num: u32,
    /// Its address while it [accepts](Self::accepts) fragments, else [`NO_ADDRESS`].
    accepts_as: u64,
    /// Send requests that were posted untracked, on an only rail.
    untracked: u64,
    // Between the two that a post updates: as neighbours they would be updated with one 16-byte
    // access, whose result the next post has to wait for.
    pub(crate) completions: u64,
    /// Payload bytes of what was posted untracked.
    untracked_bytes: u64,
    pub(crate) qp: Q,
    pub(crate) id: RailId,
    /// Place of the device's keys in a slot.
    pub(crate) keys_at: u8,
    /// The rail's bit in the round robin.
    pub(crate) turn_bit: u8,
    /// Its owner lets it carry fragments.
    pub(crate) is_enabled: bool,
    /// It leaves fragments to the other rails, as long as there are any: its owner reserves it.
    pub(crate) is_reserved: bool,
    /// It carries fragments only while no home rail is in service
    /// ([`Config::standby`](crate::virtual_qp::Config::standby)).
    pub(crate) is_standby: bool,
    /// It may be given what was not lost on it: it [is in service](Self::is_in_service) and has no
    /// lost fragments, whose places they would take.
    pub(crate) carries: bool,
    pub(crate) sends: InFlight<DEPTH>,
    pub(crate) recvs: Receives,
    pub(crate) errors: u64,
    /// Doorbells beyond one for each batch.
    pub(crate) more_doorbells: u64,
    /// Batches, or untracked requests, that had no doorbell of their own.
    pub(crate) shared_doorbells: u64,
    /// The oldest request at the last stall check, and whether it was in flight, if there was
    /// something to do.
    stall_mark: Option<(u64, bool)>,
    /// How far its failure is dealt with.
    pub(crate) health: RailHealth,
}

impl<Q: QueuePair, const DEPTH: usize> Rail<Q, DEPTH> {
    pub(crate) fn new(qp: Q, id: RailId, max_msgs: u32) -> Self {
        let number = id.number();
        let limits = qp.limits();
        let bound = max_msgs.min(DEPTH as u32);
        Self {
            id,
            device: qp.device(),
            qp_num: qp.qp_num(),
            keys_at: 0,
            turn_bit: 0,
            is_enabled: true,
            is_reserved: false,
            is_standby: false,
            carries: true,
            // One comparison answers both whether a completion is of this rail and whether the rail
            // is in its usual state (`accepts_at`).
            accepts_as: address(qp.device(), qp.qp_num()),
            completions: 0,
            untracked: 0,
            untracked_bytes: 0,
            errors: 0,
            more_doorbells: 0,
            shared_doorbells: 0,
            // SPRAY's and DQPLB's receives. `set_kind` changes it on a rail 0 that takes data.
            recvs: Receives::new(TagKind::NotifyRecv, number, bound.min(limits.max_recv_wr)),
            stall_mark: None,
            health: RailHealth::new(),
            sends: InFlight::new(number, bound.min(limits.max_send_wr)),
            qp,
        }
    }

    /// Sets whether the rail accepts fragments. While it does not, its completions are looked at
    /// one by one.
    pub(crate) fn set_accepts(&mut self, accepts: bool) {
        self.accepts_as = if accepts { address(self.device, self.qp_num) } else { NO_ADDRESS };
    }

    /// Whether it may be given fragments, credits aside: it is in service, and its driver has taken
    /// every batch whole.
    #[inline]
    pub(crate) const fn accepts(&self) -> bool {
        self.accepts_as != NO_ADDRESS
    }

    /// Whether it accepts fragments, and completions with this address are its own.
    #[inline]
    pub(crate) const fn accepts_at(&self, address: u64) -> bool {
        self.accepts_as == address
    }

    /// Whether completions of this queue pair of this device are its own.
    #[inline]
    pub(crate) fn is_at(&self, device: DeviceId, qp_num: u32) -> bool {
        self.device == device && self.qp_num == qp_num
    }

    /// Whether it may be given requests, as far as its owner and its health are concerned.
    #[inline]
    pub(crate) const fn is_in_service(&self) -> bool {
        self.is_enabled && self.health.lifecycle.is_in_service()
    }

    /// Whether other rails come first: it is reserved, or a standby rail.
    #[inline]
    pub(crate) const fn leaves_fragments(&self) -> bool {
        self.is_reserved | self.is_standby
    }

    /// Takes note of what may have changed what it carries.
    pub(crate) fn update_carries(&mut self) {
        // Lost batches keep their places in the ring. A new batch could be written over them ("lost
        // batches keep their places" in `lost_invariants`).
        self.carries = self.is_in_service() && !self.sends.has_lost();
    }

    /// Counts a request that went to an only rail. Each of these has its own doorbell.
    #[inline]
    pub(crate) fn count_untracked(&mut self, bytes: u32) {
        self.untracked += 1;
        self.untracked_bytes += u64::from(bytes);
    }

    /// What it has done so far.
    pub(crate) fn counters(&self) -> RailCounters {
        RailCounters {
            bytes: self.sends.bytes_posted() + self.untracked_bytes,
            send_requests: self.sends.requests_posted() + self.untracked,
            doorbells: self.sends.batches_posted() + self.more_doorbells + self.untracked
                - self.shared_doorbells,
            completions: self.completions,
            errors: self.errors,
        }
    }

    /// Posts a request that moves nothing in place of what the driver never took of the partial
    /// batch: what it took has no signaled request behind it, and completes with this one. Returns
    /// whether the driver took it.
    pub(crate) fn post_marker(&mut self, remote_addr: u64, rkey: u32) -> bool {
        let Some((batch, index, next)) = self.sends.partial() else { return true };
        // The tag that `push` noted for the batch: its completion retires the batch.
        let last = next.plus(u64::from(u32::from(batch.count) - index - 1)).last();
        let mut sends = self.qp.start_send();
        sends.add(&SendRequest {
            wr_id: last.wr_id(),
            // A WRITE, because it consumes no receive of the peer and so changes neither end's
            // count.
            opcode: Opcode::RdmaWrite,
            flags: SendFlags::SIGNALED,
            imm: Imm::default(),
            sge: Sge::EMPTY,
            remote_addr,
            rkey,
            compare_add: 0,
            swap: 0,
        });
        let is_taken = Taken::of(1, sends.commit()).count > 0;
        if is_taken {
            self.sends.mark_end();
            self.more_doorbells += 1;
        }
        is_taken
    }

    /// Posts one pass-through request, `batch` on its own. The buffers of a `list` that is
    /// not empty replace the buffer of the request.
    #[inline(always)]
    pub(crate) fn post_one(
        &mut self,
        mut request: SendRequest,
        list: &[Sge],
        batch: Batch,
    ) -> Result<Option<Refusal>, Refusal> {
        // Taken note of before the post, since the tag comes from there; a refusal takes it back.
        request.wr_id = self.sends.push(batch).last().wr_id();
        // Also if the caller's request is unsignaled: only a completion gives the credit back.
        request.flags |= SendFlags::SIGNALED;
        let mut sends = self.qp.start_send();
        if list.is_empty() {
            sends.add(&request);
        } else {
            add_gathered(&mut sends, request, list);
        }
        let posted = Taken::of(1, sends.commit()).single();
        if posted.is_err() {
            self.sends.truncate(1, 0);
        }
        posted
    }

    /// Posts `count` zero-length receives.
    pub(crate) fn post_empty_recvs(&mut self, count: u32) -> Taken {
        debug_assert!(count <= self.recvs.room());
        let mut batch = self.qp.start_recv();
        let mut tag = self.recvs.next();
        for _ in 0..count {
            batch.add(&RecvRequest { wr_id: tag.wr_id(), sge: Sge::EMPTY });
            tag = tag.plus(1);
        }
        let taken = Taken::of(count, batch.commit());
        // ibv_post_recv(3): those from `bad_wr` on are not posted, and their tags are used again.
        self.recvs.push(taken.count);
        taken
    }

    /// Posts one receive with these buffers. Returns its number.
    pub(crate) fn post_data_recv(
        &mut self,
        buffers: &[Sge],
    ) -> Result<(u64, Option<Refusal>), Refusal> {
        let tag = self.recvs.next();
        let mut batch = self.qp.start_recv();
        add_scattered(&mut batch, tag.wr_id(), buffers);
        let complaint = Taken::of(1, batch.commit()).single()?;
        self.recvs.push(1);
        Ok((tag.sequence(), complaint))
    }

    /// Whether nothing has been taken or retired since the previous call although there was
    /// something to do: requests in flight, or something that its driver `refuses`.
    pub(crate) fn check_stalled(&mut self, refuses: bool) -> bool {
        // The number alone is not enough: a request that the driver took between two calls has the
        // number that was missing at the first one, and was posted a moment ago.
        let busy = refuses || !self.sends.is_empty();
        let mark = busy.then_some((self.sends.oldest_request(), !self.sends.is_empty()));
        let stalled = busy && mark == self.stall_mark;
        self.stall_mark = mark;
        stalled
    }
}

impl<Q: QueuePair, const DEPTH: usize> PhysicalRail for Rail<Q, DEPTH> {
    type Qp = Q;

    fn identity(&self) -> Identity {
        Identity { rail: self.id, device: self.device, qp_num: self.qp_num }
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

    fn is_in_service(&self) -> bool {
        self.is_in_service()
    }

    fn counts_as_in_service(&self) -> bool {
        let lifecycle = &self.health.lifecycle;
        self.is_enabled && (lifecycle.is_in_service() || lifecycle.is_out_on_purpose())
    }

    fn replace(&mut self, queue_pair: Q, device_at: usize) -> Q {
        self.device = queue_pair.device();
        self.qp_num = queue_pair.qp_num();
        self.keys_at = device_at as u8;
        // The mark is of requests of the old queue pair.
        self.stall_mark = None;
        // Fragments wait until the end has looked at the new state.
        self.set_accepts(false);
        core::mem::replace(&mut self.qp, queue_pair)
    }

    fn start_over(&mut self, generation: u16) {
        self.sends.start_over(generation);
        self.recvs.start_over(generation);
    }
}
