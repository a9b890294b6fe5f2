//! Makes a received message visible to other devices, such as a GPU.
//!
//! A completion orders the data for this processor. Memory of another device is reached on another
//! path, but a READ by a NIC returns after the earlier writes of the same NIC to that memory. So
//! each device that delivered an immediate of the message reads a few bytes of it, over a queue
//! pair that is connected to itself. For a moved share, that is the device that carried it and not
//! the device of its rail.

use super::end::{FlushLane, Receiver};
use super::irecv::Received;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::{Purpose, blank};
use crate::p2p::memory::Words;
use crate::rail::MAX_RAILS;
use crate::verbs::{Completion, DeviceId, Opcode, SendRequest};
use arrayvec::ArrayVec;

/// A started flush, for [`test_flush`](super::Receiver::test_flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what arrived is visible when the flush is done"]
pub struct FlushHandle {
    /// The devices that read, one bit for each place in the list.
    carriers: u8,
    /// The number of successful READs that each device must reach.
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
    /// Starts to make every byte of a message visible to all readers of its memory. A message
    /// without bytes needs nothing. The buffers must stay registered until the flush is done.
    ///
    /// The devices that delivered immediates read. If a share was sent again, devices that were
    /// [lost](crate::p2p::ConnectionEnd::lose_queue_pair) meanwhile with unpolled completions must
    /// read too, because they may have delivered the payload.
    ///
    /// # Errors
    ///
    /// [`CannotFlush`](CallError::CannotFlush): a device that delivered the message has no queue
    /// pair for a flush, or that queue pair failed; nothing was posted. [Not
    /// now](CallError::NotNow): there is no room, and nothing was posted; or a driver
    /// [refused](NotNow::Refused). After a refusal, earlier devices read into memory of the
    /// receiver, and the next attempt repeats their READs.
    pub fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError> {
        let mut handle = FlushHandle { carriers: 0, until: [0; MAX_RAILS] };
        let Some((addr, rkeys)) = received.last else { return Ok(handle) };
        // All devices must have room before the first READ. A caller repeats the call until it
        // succeeds, and READs that went out each time would fill the queues of other flushes.
        let mut lanes = ArrayVec::<_, MAX_RAILS>::new();
        for at in (0..MAX_RAILS).filter(|at| received.carriers >> at & 1 == 1) {
            let device = self.devices.get(at).copied().unwrap_or_default();
            lanes.push((at, device, self.flush_lane(device)?));
        }
        if lanes.iter().any(|(.., place)| !self.flushes[*place].lane.has_room(1)) {
            return Err(NotNow::NoCredits.into());
        }
        for (at, device, place) in lanes {
            // The value that is read is not used. Each device has a word, so that no two NICs write
            // the same one.
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
            // READs of one queue pair complete in order, so a count is enough to find this one.
            handle.until[at] = *posted;
        }
        Ok(handle)
    }

    /// Returns whether a flush is done.
    ///
    /// # Errors
    ///
    /// [`CannotFlush`](CallError::CannotFlush): a device failed before its READ completed, or its
    /// owner [reported](crate::p2p::ConnectionEnd::fail_queue_pair) that, so its writes may not be
    /// visible.
    pub fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError> {
        let mut is_done = true;
        for at in (0..MAX_RAILS).filter(|at| handle.carriers >> at & 1 == 1) {
            let device = self.devices.get(at).copied().unwrap_or_default();
            let flush = self.flushes.iter().find(|flush| flush.lane.device == device);
            let has_read = flush.is_some_and(|flush| flush.succeeded >= handle.until[at]);
            // A READ that has succeeded counts although its queue pair failed later.
            if !has_read {
                self.flush_lane(device)?;
            }
            is_done &= has_read;
        }
        Ok(is_done)
    }

    /// Returns the place of the working queue pair that flushes a device.
    fn flush_lane(&self, device: DeviceId) -> Result<usize, CallError> {
        let works =
            |flush: &FlushLane<Q, DEPTH>| flush.lane.device == device && !flush.lane.is_stopped;
        self.flushes.iter().position(works).ok_or(CallError::CannotFlush { device })
    }

    /// Handles a completion that may be of a flush. Returns 1 if it is, else 0.
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
            // Only successes: a READ that failed says nothing about the writes before it.
            *succeeded += u64::from(is_success && purpose == Purpose::Flush);
        });
        if !is_success {
            // The connection goes on: only calls of `flush` and `test_flush` depend on this queue
            // pair.
            lane.counters.errors += 1;
            lane.stop();
        }
        1
    }
}
