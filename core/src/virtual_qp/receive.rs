//! Receives: posting, arrival, and completion.
//!
//! A receive with a buffer is for a SEND and passes through to rail 0. A receive without a buffer
//! is completed by a notification, in the way of the scheme.

use super::data_receives::{Buffer, Outcome};
use super::error::{PostRecvError, RefusedBy};
use super::keys::Keys;
use super::parts::Gathered;
use super::qp::VirtualQp;
use super::scheme::dqplb::{PeerWindow, PeerWindowError};
use super::scheme::{Notification, SchemeState};
use crate::completion::DirectCompletions;
use crate::hardware::{MAX_SGE, QueuePair, RecvBatch, Taken, add_scattered};
use crate::rail::tag::TagKind;
use crate::rail::{PhysicalRail, RailId};
use crate::verbs::{Completion, DeviceId, DeviceKeys, LocalPart, RecvWr, Sge, WcOpcode, WcStatus};
use arrayvec::ArrayVec;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// DQPLB: how far the peer lets this side run ahead, from its connection card. Until then the
    /// peer is taken to be built like this side. With SPRAY, or one rail, there is nothing to know.
    ///
    /// # Errors
    ///
    /// The window is too small to send anything.
    pub fn set_peer_window(&mut self, peer: PeerWindow) -> Result<(), PeerWindowError> {
        if !self.is_multi() {
            return Ok(());
        }
        match &mut self.scheme {
            SchemeState::Spray(_) => Ok(()),
            SchemeState::Dqplb(dqplb) => dqplb.set_peer_window(peer, self.rails.len()),
        }
    }

    /// Duplicate fragments that DQPLB's receiver dropped.
    pub fn duplicates(&self) -> u64 {
        match &self.scheme {
            SchemeState::Spray(_) => 0,
            SchemeState::Dqplb(dqplb) => dqplb.duplicates(),
        }
    }

    /// DQPLB over several rails: posts the zero-length receives, so that no sender meets an empty
    /// receive queue. To be called between INIT and RTR; the first notification receive does it
    /// too, though perhaps too late for the first sender. With SPRAY, or one rail, there is
    /// nothing to do.
    ///
    /// # Errors
    ///
    /// The queue pair failed, rail 0 has data receives posted, or a driver refused. After a refusal
    /// the next call, or the next poll, posts what is missing.
    pub fn prepare_receives(&mut self) -> Result<(), PostRecvError> {
        if !self.is_multi() {
            return Ok(());
        }
        let (scheme, _, mut receiving) = self.receiving();
        match scheme {
            SchemeState::Spray(_) => Ok(()),
            SchemeState::Dqplb(dqplb) => dqplb.prepare_receives(&mut receiving),
        }
    }

    /// Posts a receive: for a SEND if it has a buffer, else for the notification of a
    /// WRITE_WITH_IMM.
    ///
    /// # Errors
    ///
    /// The receive is refused and forgotten, nothing changed. [`PostRecvError::Full`] and
    /// [`PostRecvError::QueueFull`] ask for a poll, the others for another request. (The first
    /// notification receive with DQPLB [prepares](Self::prepare_receives) all rails: if some
    /// drivers refuse, what others took stays posted.)
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if !self.is_multi() {
            return self.post_single_recv(wr);
        }
        if self.health.failed {
            return Err(PostRecvError::InErrorState);
        }
        let posted = match wr.local.length() {
            0 => self.post_notification_recv(wr.wr_id),
            _ => self.post_data_recv(wr),
        };
        self.debug_invariants();
        posted
    }

    /// Posts a receive whose bytes go to the buffers of a list, one behind the other: as many as
    /// [the queue pair takes](crate::hardware::QpLimits::max_recv_sge) of rail 0. Of their keys
    /// only the lkeys are used, and `buffers` itself is not needed any more when the call returns.
    /// Buffers without bytes are left out; if all are, this is a receive without one.
    ///
    /// With re-routing receives are remembered, in `DEPTH` places: each buffer takes one.
    ///
    /// # Errors
    ///
    /// As [`post_recv`](Self::post_recv). [`PostRecvError::NoBuffers`]: the list is empty.
    /// [`PostRecvError::TooManyBuffers`], and [`PostRecvError::BufferKeys`] if one of them is not
    /// registered with the device.
    pub fn post_recv_list(
        &mut self,
        wr_id: u64,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostRecvError> {
        if buffers.is_empty() {
            return Err(PostRecvError::NoBuffers);
        }
        let filled = || buffers.iter().enumerate().filter(|(_, part)| part.local.length() > 0);
        let count = filled().count();
        if count == 0 {
            return self.post_recv(&RecvWr::notification(wr_id));
        }
        let max = self.max_recv_sge as usize;
        if count > max {
            return Err(PostRecvError::TooManyBuffers { count, max });
        }
        // Only rail 0 has receives with buffers.
        let device = self.rails[0].device;
        let mut sges = Gathered::new();
        for (buffer, part) in filled() {
            let keys = Keys::find(part.keys, device, 0);
            let keys = keys.ok_or(PostRecvError::BufferKeys { buffer, device })?;
            sges.push(part.local.sge(keys.lkey));
        }
        if !self.is_multi() {
            return self.post_single_sges(wr_id, &sges);
        }
        if self.health.failed {
            return Err(PostRecvError::InErrorState);
        }
        let posted = if self.reroute.is_on {
            self.keep_list_recv(wr_id, filled())
        } else {
            self.post_data_sges(wr_id, &sges)
        };
        self.debug_invariants();
        posted
    }

    fn recv_sge(&self, wr: &RecvWr<'_>) -> Result<Sge, PostRecvError> {
        if wr.local.length() == 0 {
            return Ok(Sge::EMPTY);
        }
        let device = self.rails[0].device;
        let keys = Keys::find(wr.keys, device, 0).ok_or(PostRecvError::MissingKeys { device })?;
        Ok(wr.local.sge(keys.lkey))
    }

    fn post_single_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        let sge = self.recv_sge(wr)?;
        self.post_single_sges(wr.wr_id, &[sge])
    }

    fn post_single_sges(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostRecvError> {
        let mut batch = self.rails[0].qp.start_recv();
        add_scattered(&mut batch, wr_id, sges);
        let posted = Taken::of(1, batch.commit()).single();
        Ok(self.posted_to_rail_0(posted)?)
    }

    fn post_data_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if self.reroute.is_on {
            return self.keep_data_recv(wr);
        }
        let sge = self.recv_sge(wr)?;
        self.post_data_sges(wr.wr_id, &[sge])
    }

    fn check_data_recv(&self) -> Result<(), PostRecvError> {
        // A receive queue is consumed in order: a SEND would take a receive of DQPLB, which has no
        // buffer, and a numbered fragment would take the caller's.
        if self.scheme.has_receives_on_rails() {
            return Err(PostRecvError::MixedReceives { serves_data: false });
        }
        Ok(())
    }

    fn post_data_sges(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostRecvError> {
        self.check_data_recv()?;
        let rail = &mut self.rails[0];
        let id = rail.id;
        if rail.recvs.limit() == 0 {
            return Err(PostRecvError::NoReceiveQueue(id));
        }
        if rail.recvs.room() == 0 {
            return Err(PostRecvError::QueueFull(id));
        }
        // Before the post, because the tag of the receive contains the kind.
        if !self.data_receives.used() {
            rail.recvs.set_kind(TagKind::DataRecv);
        }
        let posted = rail.post_data_recv(sges).map(|(sequence, complaint)| {
            self.data_receives.posted(sequence, wr_id);
            complaint
        });
        if posted.is_err() {
            self.leave_kind_open();
        }
        Ok(self.posted_to_rail_0(posted)?)
    }

    /// Handles the refusal of a receive with a buffer. If it was the first one, rail 0's receive
    /// queue may still serve notifications.
    #[cold]
    fn leave_kind_open(&mut self) {
        if !self.data_receives.used() {
            self.rails[0].recvs.set_kind(TagKind::NotifyRecv);
        }
    }

    /// Returns the lkeys of a buffer for every device, or the first device without one.
    fn lkeys(&self, keys: &[DeviceKeys]) -> Result<[u32; RAILS], DeviceId> {
        let mut lkeys = [0; RAILS];
        for (at, (lkey, place)) in lkeys.iter_mut().zip(&self.devices.places).enumerate() {
            let device = place.device();
            *lkey = Keys::find(keys, device, at).ok_or(device)?.lkey;
        }
        Ok(lkeys)
    }

    fn keep_data_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.check_data_recv()?;
        let lkeys = self.lkeys(wr.keys);
        let lkeys = lkeys.map_err(|device| PostRecvError::MissingKeys { device })?;
        self.keep_recv(wr.wr_id, core::iter::once(Buffer { local: wr.local, lkeys }), 1)
    }

    fn keep_list_recv<'p, 'k: 'p>(
        &mut self,
        wr_id: u64,
        parts: impl Iterator<Item = (usize, &'p LocalPart<'k>)>,
    ) -> Result<(), PostRecvError> {
        self.check_data_recv()?;
        let mut buffers = ArrayVec::<_, MAX_SGE>::new();
        for (buffer, part) in parts {
            let lkeys = self.lkeys(part.keys);
            let lkeys = lkeys.map_err(|device| PostRecvError::BufferKeys { buffer, device })?;
            buffers.push(Buffer { local: part.local, lkeys });
        }
        let count = buffers.len();
        if count > DEPTH {
            return Err(PostRecvError::TooManyBuffers { count, max: DEPTH });
        }
        self.keep_recv(wr_id, buffers.into_iter(), count)
    }

    /// Keeps a receive of `count` buffers, so that it can be posted again if rail 0 fails, and
    /// posts it. While rail 0 is down, the receive waits.
    fn keep_recv(
        &mut self,
        wr_id: u64,
        buffers: impl Iterator<Item = Buffer<RAILS>>,
        count: usize,
    ) -> Result<(), PostRecvError> {
        let rail = &self.rails[0];
        let id = rail.id;
        // The limit of the receive queue holds although rail 0 may be down: the caller sees the
        // same back-pressure in both cases.
        let is_full = self.data_receives.unreported() >= rail.recvs.limit();
        if is_full || count > self.data_receives.room() {
            return Err(PostRecvError::QueueFull(id));
        }
        let takes_receives = rail.health.lifecycle.takes_receives();
        self.data_receives.add(wr_id, buffers);
        if !takes_receives {
            return Ok(());
        }
        let Taken { count, refusal } = self.post_data_receives();
        let Some(refusal) = refusal else { return Ok(()) };
        // Only a driver that took nothing has refused this receive. Otherwise the receive is
        // posted, or is kept to be posted later.
        if count == 0 {
            self.data_receives.take_back();
            self.leave_kind_open();
            return Err(RefusedBy { rail: id, refusal }.into());
        }
        self.driver_complained(id, refusal);
        Ok(())
    }

    fn post_notification_recv(&mut self, wr_id: u64) -> Result<(), PostRecvError> {
        let (scheme, recvs, mut receiving) = self.receiving();
        match scheme {
            SchemeState::Spray(spray) => {
                if let Some(complaint) = spray.post_recv(wr_id, recvs, &mut receiving)? {
                    self.rail_failed(complaint);
                }
                Ok(())
            }
            SchemeState::Dqplb(dqplb) => dqplb.post_recv(wr_id, recvs, &mut receiving),
        }
    }

    /// Handles the completion of a zero-length receive: a notification, or a flush.
    pub(super) fn complete_notify_recv(&mut self, id: RailId, completion: &Completion) {
        let Some(rail) = self.rail_mut(id) else { return };
        if rail.recvs.complete(completion.wr_id).is_none() {
            let expected = rail.recvs.expected();
            return self.mismatch(id, completion, expected);
        }
        if !completion.status.is_success() && self.receive_lost(id, completion) {
            return;
        }
        let imm_order = self.header.imm_order;
        let notification = Notification { rail: id, completion, imm_order };
        let arrived = match &mut self.scheme {
            SchemeState::Spray(spray) => spray.arrived(notification, &mut self.recvs),
            SchemeState::Dqplb(dqplb) => dqplb.arrived(notification),
        };
        if let Err(error) = arrived {
            // After a protocol error the engine cannot determine which requests are complete.
            self.health.note_protocol_error(error);
            let failed = Completion { status: WcStatus::BAD_RESP_ERR, ..*completion };
            self.completion_failed(id, &failed, 0);
        } else if !completion.status.is_success() {
            self.completion_failed(id, completion, 0);
        }
    }

    /// With re-routing: handles a flushed receive with a buffer. It is posted again, or in the
    /// error state reported in its turn.
    #[cold]
    fn data_receive_flushed(&mut self, id: RailId, completion: &Completion) -> bool {
        let Some(rail) = self.rail_mut(id) else { return false };
        let is_of_rail = rail.completion_error(completion, 0).is_of_rail_of_receive();
        if !self.reroute.is_on || !is_of_rail {
            return false;
        }
        if !self.receive_lost(id, completion) {
            self.completion_failed(id, completion, 0);
        }
        true
    }

    /// Handles the completion of a receive with a buffer.
    pub(super) fn complete_data_recv(
        &mut self,
        id: RailId,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        let Some(rail) = self.rail_mut(id) else { return };
        let Some(sequence) = rail.recvs.complete(completion.wr_id) else {
            let expected = rail.recvs.expected();
            return self.mismatch(id, completion, expected);
        };
        let ok = completion.status.is_success();
        if !ok && self.data_receive_flushed(id, completion) {
            return;
        }
        let outcome = Outcome {
            status: completion.status,
            // A failed completion has no valid opcode or length (ibv_poll_cq(3)).
            opcode: if ok { completion.opcode } else { WcOpcode::RECV },
            byte_len: if ok { completion.byte_len } else { 0 },
            imm: completion.imm().map(|imm| self.header.imm_order.decode(imm)),
        };
        if self.reroute.is_on {
            // All unreported receives are kept there in posting order, also those that are flushed
            // later. Care makes the next `report` look there.
            self.data_receives.complete(outcome);
            self.health.needs_recovery = true;
        } else {
            let wr_id = self.data_receives.wr_id(sequence);
            direct.push(outcome.report(wr_id, self.header.virtual_qp_num));
        }
        if !ok {
            self.completion_failed(id, completion, 0);
        }
    }
}
