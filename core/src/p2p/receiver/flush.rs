//! What arrived is made visible to devices that do not see it by themselves.
//!
//! A NIC's completion says that data is on its way to memory in order, as seen by this processor. Memory of
//! another device (a GPU's) is reached on another way; a READ of it by the same NIC comes back behind what
//! that NIC wrote before. So each device over which an immediate of the message came reads a few bytes of
//! it, over a queue pair that is connected to itself: the device that carried it, which for a share that was
//! moved is not the one of its rail.

use super::end::{FlushLane, Receiver};
use super::irecv::Received;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::blank;
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::rail::MAX_RAILS;
use crate::verbs::{Completion, DeviceId, Opcode, SendRequest};
use arrayvec::ArrayVec;

/// A flush that was started, until [`test_flush`](super::Receiver::test_flush) says that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what arrived is visible when the flush is done"]
pub struct FlushHandle {
    /// The devices that read, a bit for each place in the list.
    carriers: u8,
    /// How many READs of each must have succeeded.
    until: [u64; MAX_RAILS],
}

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Starts to make every byte of a message visible to whoever reads that memory. A message without bytes
    /// needs nothing. The buffers stay registered until it is done.
    ///
    /// It reads on the devices over which immediates came, and if a share was sent again, also on those that were
    /// [lost](Receiver::lose_queue_pair) meanwhile: with completions that nobody had taken, the payload may have
    /// come over them, and only the signal again.
    ///
    /// # Errors
    ///
    /// [`CannotFlush`](CallError::CannotFlush): a device over which the message came has no queue pair to
    /// flush with, or that one failed; nothing was posted. [Not now](CallError::NotNow): no room, and nothing was
    /// posted; or a driver [refused](NotNow::Refused). Then devices before that one do read, and into memory that is
    /// there for it: the next attempt just has them read again.
    pub fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError> {
        let mut handle = FlushHandle { carriers: 0, until: [0; MAX_RAILS] };
        let Some((addr, rkeys)) = received.last else { return Ok(handle) };
        // Callers come back until there is room everywhere: READs that went out each time would keep others out.
        let mut lanes = ArrayVec::<_, MAX_RAILS>::new();
        for at in (0..MAX_RAILS).filter(|at| received.carriers >> at & 1 == 1) {
            let device = self.devices.get(at).copied().unwrap_or_default();
            lanes.push((at, device, self.flush_lane(device)?));
        }
        if lanes.iter().any(|(.., place)| !self.flushes[*place].lane.has_room(1)) {
            return Err(NotNow::NoCredits.into());
        }
        for (at, device, place) in lanes {
            let word = Self::RECORDS_WORDS + Self::STAGING_WORDS + at;
            let lkey = self.region.lkey(device);
            let request = SendRequest {
                sge: self.region.sge(word..word + 1, 1, lkey),
                remote_addr: addr,
                rkey: rkeys[at],
                ..blank(Opcode::RdmaRead)
            };
            let FlushLane { lane, posted, .. } = &mut self.flushes[place];
            let taken = lane.post_one(request, true, Purpose::Flush);
            if let Some(refusal) = taken.refusal.filter(|_| taken.count == 0) {
                return Err(NotNow::Refused { rail: lane.rail, refusal }.into());
            }
            *posted += 1;
            handle.carriers |= 1 << at;
            handle.until[at] = *posted;
        }
        Ok(handle)
    }

    /// Whether a flush is done.
    ///
    /// # Errors
    ///
    /// [`CannotFlush`](CallError::CannotFlush): a device failed before it had read, so that nobody knows
    /// whether what it wrote is visible.
    pub fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError> {
        let mut is_done = true;
        for at in (0..MAX_RAILS).filter(|at| handle.carriers >> at & 1 == 1) {
            let device = self.devices.get(at).copied().unwrap_or_default();
            let flush = self.flushes.iter().find(|flush| flush.lane.device == device);
            let has_read = flush.is_some_and(|flush| flush.succeeded >= handle.until[at]);
            if !has_read {
                self.flush_lane(device)?;
            }
            is_done &= has_read;
        }
        Ok(is_done)
    }

    /// The place of the queue pair with which a device is flushed, if it works.
    fn flush_lane(&self, device: DeviceId) -> Result<usize, CallError> {
        let works =
            |flush: &FlushLane<Q, DEPTH>| flush.lane.device == device && !flush.lane.is_stopped;
        self.flushes.iter().position(works).ok_or(CallError::CannotFlush { device })
    }

    /// A completion that may be of a flush: returns how many it took.
    #[cold]
    pub(super) fn flushed(
        &mut self,
        place: usize,
        device: DeviceId,
        completion: &Completion,
    ) -> usize {
        let Some(at) = place.checked_sub(self.lanes.len()) else { return 0 };
        let Some(FlushLane { lane, succeeded, .. }) = self.flushes.get_mut(at) else { return 0 };
        let number = lane.queue.find(completion.wr_id);
        let Some(number) = number.filter(|_| lane.is_at(device, completion.qp_num)) else {
            return 0;
        };
        lane.counters.completions += 1;
        let is_success = completion.status.is_success();
        lane.queue.end(number, |purpose| {
            *succeeded += u64::from(is_success && purpose == Purpose::Flush);
        });
        if !is_success {
            // The connection goes on without: only those who flush are told.
            lane.counters.errors += 1;
            lane.stop();
        }
        1
    }
}
