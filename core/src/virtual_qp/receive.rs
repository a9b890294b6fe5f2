//! Receives: a request's way here is post, arrival, report.
//!
//! A receive with a buffer takes a SEND and passes through to rail 0. A receive without one is
//! completed by a notification: with SPRAY it is posted to the notify queue pair, with DQPLB it is
//! counted against the fragments that arrive on the engine's own zero-length receives.

use super::VirtualQp;
use super::config::{PeerWindow, Scheme};
use super::error::{PostError, ProtocolError, RailId};
use super::failure::RailSet;
use super::numbers::SendNumbers;
use super::slot::{Keys, RecvSlot};
use crate::hardware::{CommitError, QueuePair, RecvBatch, Refusal, settle_commit};
use crate::sequence::SequenceImm;
use crate::tag::TagKind;
use crate::verbs::{Completion, RecvRequest, RecvWr, Sge, WcOpcode, WcStatus};
use crate::virtual_cq::{DirectCompletions, VirtualWc};
use crate::window::{Arrival, SequenceWindow};

/// What the receive queue of rail 0 is used for. It cannot be both: a SEND would consume a
/// zero-length receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveKind {
    /// Receives with buffers.
    Data,
    /// DQPLB's zero-length receives.
    Notification,
}

/// The peer's window leaves a DQPLB sender no number to use; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer's window of {} numbers does not exceed its {} receives on each of {rails} rails",
    peer.window, peer.receives_per_rail
)]
pub struct PeerWindowError {
    /// What the peer's card says.
    pub peer: PeerWindow,
    /// Rails of this queue pair.
    pub rails: usize,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// What this side's connection card tells a DQPLB sender.
    pub fn window(&self) -> PeerWindow {
        let receives = self.rails.iter().map(|rail| rail.recvs.limit).max();
        PeerWindow {
            window: SequenceWindow::<RAILS, DEPTH>::CAPACITY,
            receives_per_rail: receives.unwrap_or_default(),
        }
    }

    pub(super) fn own_window(&self) -> (PeerWindow, usize) {
        (self.window(), self.rails.len())
    }

    /// DQPLB: how far the peer lets this side run ahead, from its connection card. Until then the
    /// peer is taken to be built like this side.
    ///
    /// # Errors
    ///
    /// The window is too small to send anything.
    pub fn set_peer_window(&mut self, peer: PeerWindow) -> Result<(), PeerWindowError> {
        let rails = self.rails.len();
        let span = SendNumbers::span(peer, rails).ok_or(PeerWindowError { peer, rails })?;
        self.numbers.set_span(span);
        Ok(())
    }

    /// Duplicate fragments that DQPLB's receiver dropped.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
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
    pub fn prepare_receives(&mut self) -> Result<(), PostError> {
        if !self.is_multi() || self.config.scheme == Scheme::Spray {
            return Ok(());
        }
        if self.failed {
            return Err(PostError::InErrorState);
        }
        match self.receive_kind {
            Some(ReceiveKind::Notification) => {}
            Some(ReceiveKind::Data) => return Err(PostError::MixedReceives { serves_data: true }),
            // A data receive may have been tried and refused.
            None => self.rails[0].recvs.set_kind(TagKind::NotifyRecv),
        }
        let (mut posted, mut refused) = (0, None);
        for rail in self.rails.iter_mut().filter(|rail| rail.recvs.room() > 0) {
            let (accepted, error) = rail.post_notify_recvs(rail.recvs.room());
            posted += accepted;
            let Some(CommitError { refusal, .. }) = error else { continue };
            self.refill.insert(rail.id);
            if refusal != Refusal::QueueFull {
                refused = refused.or(Some(PostError::refused(rail.id, refusal)));
            }
        }
        // From the first one posted on, the queues serve notifications; polls post what is missing.
        if posted > 0 || refused.is_none() {
            self.receive_kind = Some(ReceiveKind::Notification);
        } else if self.receive_kind.is_none() {
            self.refill = RailSet::EMPTY;
        }
        refused.map_or(Ok(()), Err)
    }

    /// Posts a receive: for a SEND if it has a buffer, else for the notification of a
    /// WRITE_WITH_IMM.
    ///
    /// # Errors
    ///
    /// The receive is refused and forgotten, nothing changed. [`PostError::Full`] and
    /// [`PostError::QueueFull`] ask for a poll, the others for another request.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if !self.is_multi() {
            return self.post_single_recv(wr);
        }
        if self.failed {
            return Err(PostError::InErrorState);
        }
        let posted = match (wr.local.length(), self.config.scheme) {
            (0, Scheme::Spray) => self.post_spray_recv(wr),
            (0, Scheme::Dqplb) => self.post_dqplb_recv(wr),
            _ => self.post_data_recv(wr),
        };
        self.debug_invariants();
        posted
    }

    fn recv_sge(&self, wr: &RecvWr<'_>) -> Result<Sge, PostError> {
        if wr.local.length() == 0 {
            return Ok(Sge::EMPTY);
        }
        let device = self.rails[0].device;
        let keys = Keys::find(wr.keys, device, 0).ok_or(PostError::MissingKeys { device })?;
        Ok(wr.local.sge(keys.lkey))
    }

    fn post_single_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let sge = self.recv_sge(wr)?;
        let mut batch = self.rails[0].qp.start_recv();
        batch.add(&RecvRequest { wr_id: wr.wr_id, sge });
        match settle_commit(batch.commit(), 1) {
            Ok(()) => Ok(()),
            Err(CommitError { accepted: 0, refusal }) => {
                Err(PostError::refused(RailId::Data(0), refusal))
            }
            Err(CommitError { refusal, .. }) => {
                self.driver_complained(RailId::Data(0), refusal);
                Ok(())
            }
        }
    }

    fn post_data_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.receive_kind == Some(ReceiveKind::Notification) {
            return Err(PostError::MixedReceives { serves_data: false });
        }
        let sge = self.recv_sge(wr)?;
        let rail = &mut self.rails[0];
        if rail.recvs.limit == 0 {
            return Err(PostError::NoReceiveQueue(rail.id));
        }
        if rail.recvs.room() == 0 {
            return Err(PostError::QueueFull);
        }
        if self.receive_kind.is_none() {
            rail.recvs.set_kind(TagKind::DataRecv);
        }
        let id = rail.id;
        let (posted, refusal) = rail.post_data_recv(sge);
        let Some(sequence) = posted else {
            return refusal.map_or(Ok(()), |refusal| Err(PostError::refused(id, refusal)));
        };
        self.receive_kind = Some(ReceiveKind::Data);
        self.data_recvs[sequence as usize & (DEPTH - 1)] = wr.wr_id;
        if let Some(refusal) = refusal {
            self.driver_complained(id, refusal);
        }
        Ok(())
    }

    fn post_spray_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let notify = self.notify.as_ref().ok_or(PostError::NoNotifyQp)?;
        if notify.recvs.limit == 0 {
            return Err(PostError::NoReceiveQueue(notify.id));
        }
        let id = self.recvs.add(RecvSlot::new(wr.wr_id))?;
        if self.recvs.front_pending() != Some(id) {
            return Ok(());
        }
        // It alone is pending, so it is what was refused.
        let Some(error) = self.post_pending_recvs() else { return Ok(()) };
        self.recvs.take_back();
        Err(error)
    }

    /// Posts waiting SPRAY receives to the notify queue pair, as far as it has room. Says what a
    /// driver refused for good.
    fn post_pending_recvs(&mut self) -> Option<PostError> {
        self.refill = RailSet::EMPTY;
        let notify = self.notify.as_mut()?;
        let count = notify.recvs.room().min(self.recvs.pending_count() as u32);
        if count == 0 {
            return None;
        }
        let (accepted, error) = notify.post_notify_recvs(count);
        for _ in 0..accepted {
            self.recvs.pop_pending();
        }
        let refusal = error?.refusal;
        if refusal == Refusal::QueueFull {
            self.refill.insert(RailId::Notify);
            return None;
        }
        if accepted == count {
            self.driver_complained(RailId::Notify, refusal);
            return None;
        }
        Some(PostError::refused(RailId::Notify, refusal))
    }

    fn post_dqplb_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.receive_kind != Some(ReceiveKind::Notification) {
            self.prepare_receives()?;
        }
        self.recvs.add(RecvSlot::new(wr.wr_id))?;
        self.recvs.pop_pending();
        if self.early_notifications > 0 {
            self.early_notifications -= 1;
            self.recvs.pop_in_flight();
        }
        Ok(())
    }

    /// A zero-length receive completed: a notification, or the flush of its queue pair.
    pub(super) fn complete_notify_recv(&mut self, id: RailId, completion: &Completion) {
        let Some(rail) = self.rail_mut(id) else { return };
        if rail.recvs.complete(completion.wr_id).is_none() {
            let expected = rail.recvs.expected();
            return self.mismatch(id, completion, expected);
        }
        // Status first: a flushed receive is no data, whatever its immediate says.
        if id == RailId::Notify {
            self.spray_arrival(completion);
        } else if completion.status.is_success() {
            self.dqplb_arrival(id, completion);
        }
        if !completion.status.is_success() {
            self.completion_failed(id, completion, 0);
        }
    }

    fn spray_arrival(&mut self, completion: &Completion) {
        let Some(front) = self.recvs.front_in_flight() else { return };
        let slot = self.recvs.slot(front);
        let imm = completion.imm().map(|imm| self.config.imm_order.decode(imm));
        (slot.status, slot.imm) = (completion.status, imm);
        if completion.status.is_success() {
            slot.byte_len = completion.byte_len;
            if imm.is_none() {
                slot.status = WcStatus::BAD_RESP_ERR;
                let error = ProtocolError::NoImm { rail: RailId::Notify };
                self.peer_failed(RailId::Notify, completion, error);
            }
        }
        self.recvs.pop_in_flight();
    }

    /// An arrival that is not simply the next new number.
    #[cold]
    fn dqplb_arrival(&mut self, id: RailId, completion: &Completion) {
        let Some(imm) = completion.imm() else {
            return self.peer_failed(id, completion, ProtocolError::NoImm { rail: id });
        };
        let Some(fragment) = SequenceImm::decode(imm) else {
            let error = ProtocolError::MalformedImm { rail: id, imm: imm.wire() };
            return self.peer_failed(id, completion, error);
        };
        match self.window.insert(fragment) {
            Ok(Arrival::New) => {}
            Ok(Arrival::Duplicate) => self.duplicates += 1,
            Err(source) => {
                let error = ProtocolError::OutsideWindow { rail: id, source };
                self.peer_failed(id, completion, error);
            }
        }
    }

    /// The peer broke DQPLB's protocol: which requests are complete can no longer be known.
    #[cold]
    fn peer_failed(&mut self, id: RailId, completion: &Completion, error: ProtocolError) {
        self.note_protocol_error(error);
        let failed = Completion { status: WcStatus::BAD_RESP_ERR, ..*completion };
        self.completion_failed(id, &failed, 0);
    }

    /// A receive with a buffer completed.
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
        direct.push(VirtualWc {
            wr_id: self.data_recvs[sequence as usize & (DEPTH - 1)],
            status: completion.status,
            opcode: if ok { completion.opcode } else { WcOpcode::RECV },
            qp_num: self.config.virtual_qp_num,
            byte_len: if ok { completion.byte_len } else { 0 },
            imm: completion.imm().map(|imm| self.config.imm_order.decode(imm)),
        });
        if !ok {
            self.completion_failed(id, completion, 0);
        }
    }

    /// Completes the receives that arrivals allow, and posts receives again.
    #[inline]
    pub(super) fn settle_receives(&mut self) {
        match self.config.scheme {
            Scheme::Dqplb if self.receive_kind == Some(ReceiveKind::Notification) => {
                self.settle_dqplb();
            }
            Scheme::Spray if self.recvs.front_pending().is_some() => self.settle_spray(),
            _ => {}
        }
        if self.failed {
            self.flush_receives();
        }
    }

    fn settle_dqplb(&mut self) {
        let mut ended = u64::from(self.window.advance());
        while ended > 0 && self.recvs.front_in_flight().is_some() {
            self.recvs.pop_in_flight();
            ended -= 1;
        }
        self.early_notifications += ended;
        for rail in &self.rails {
            if rail.recvs.is_low() {
                self.refill.insert(rail.id);
            }
        }
        if !self.refill.is_empty() {
            self.refill_receives();
        }
    }

    fn settle_spray(&mut self) {
        if self.failed {
            self.refill = RailSet::EMPTY;
            return;
        }
        if let Some(PostError::Driver { errno, .. }) = self.post_pending_recvs()
            && let Some(notify) = &self.notify
        {
            let error = notify.refusal_error(errno, 0);
            self.fail(error);
        }
    }

    /// Posts receives again on the rails that are at their low-water mark. A rail that failed
    /// gets none: they would only be flushed.
    fn refill_receives(&mut self) {
        let refill = core::mem::take(&mut self.refill);
        for id in refill {
            if self.failed {
                return;
            }
            let Some(rail) = self.rail_mut(id) else { continue };
            match rail.post_notify_recvs(rail.recvs.room()).1 {
                None => {}
                Some(CommitError { refusal: Refusal::QueueFull, .. }) => self.refill.insert(id),
                Some(CommitError { refusal: Refusal::Driver(errno), .. }) => {
                    let error = rail.refusal_error(errno, 0);
                    self.fail(error);
                }
            }
        }
    }

    /// In the error state, receives that no queue pair holds are reported as flushed; those posted
    /// to the notify queue pair come first, when it is flushed.
    #[cold]
    fn flush_receives(&mut self) {
        if self.notify.as_ref().is_some_and(|notify| !notify.recvs.is_empty()) {
            return;
        }
        while self.recvs.front_pending().is_some() {
            self.recvs.pop_pending();
        }
        while let Some(id) = self.recvs.front_in_flight() {
            self.recvs.slot(id).status = WcStatus::WR_FLUSH_ERR;
            self.recvs.pop_in_flight();
        }
    }
}
