//! Entries are written into the sender's memory.

use super::end::Receiver;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_BYTES, ENTRY_WORDS, Entry, MAX_BUFFERS};
use crate::p2p::error::NotNow;
use crate::p2p::lane::{blank, key};
use crate::p2p::memory::{Region, Words};
use crate::p2p::queue::Purpose;
use crate::rail::MAX_RAILS;
use crate::verbs::{LocalBuffer, Opcode, SendFlags, SendRequest};
use core::sync::atomic::AtomicU64;

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// The queue pair for the entries of a slot: the first one of each device, devices in turn, so that the
    /// entries of one slot follow each other on one connection as long as it works. `None` without a credit:
    /// full is back-pressure.
    #[inline(always)]
    pub(super) fn entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let device = if devices == 1 { 0 } else { at % devices };
        let place = usize::from(self.first_lanes[device]);
        let lane = &self.lanes[place];
        let works = usize::from(lane.device_at) == device && lane.lifecycle.is_in_service();
        if works { lane.has_room(1).then_some(place) } else { self.find_entry_lane(at) }
    }

    /// The same where queue pairs have failed.
    #[cold]
    fn find_entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let mut in_turn = (0..devices).map(|step| (at + step) % devices);
        let place = in_turn.find_map(|device| {
            self.lanes.iter().position(|lane| {
                usize::from(lane.device_at) == device && lane.lifecycle.is_in_service()
            })
        });
        place.filter(|place| self.lanes[*place].has_room(1))
    }

    /// Writes the entries of a slot, which are staged here, all with one request. If the driver does not take
    /// it, nothing changed.
    #[inline(always)]
    pub(super) fn post_entries(
        &mut self,
        at: usize,
        place: usize,
        staged: LocalBuffer,
        purpose: Purpose,
    ) -> Result<(), NotNow> {
        let Self { lanes, ring, lkeys, .. } = self;
        let lane = &mut lanes[place];
        let lkey = lkeys[usize::from(lane.device_at) % MAX_RAILS];
        let is_inline = staged.length() <= lane.max_inline;
        let request = SendRequest {
            flags: if is_inline { SendFlags::INLINE } else { SendFlags::empty() },
            sge: staged.sge(lkey),
            remote_addr: ring.addr + (at * MAX_BUFFERS * ENTRY_BYTES) as u64,
            rkey: key(&ring.rkeys, lane.peer_at),
            ..blank(Opcode::RdmaWrite)
        };
        // Counted, not by slot: whatever the number of devices, and whichever of them is gone, no more than a
        // quarter of the queue waits for a completion that was not asked for.
        let is_due = lane.queue.is_signal_due();
        let rail = lane.rail;
        let taken = lane.post_one(request, is_due || purpose != Purpose::Entries, purpose);
        match taken.refusal {
            Some(refusal) if taken.count == 0 => Err(NotNow::Refused { rail, refusal }),
            _ => Ok(()),
        }
    }

    /// Puts the entries of a slot where the request takes them from: there they are.
    pub(super) fn stage(&self, at: usize, entries: &[Entry]) -> LocalBuffer {
        let (words, staged) = Self::staging(&self.region, at, entries.len());
        for (words, entry) in words.chunks_exact(ENTRY_WORDS).zip(entries) {
            entry.store(self.form, words);
        }
        staged
    }

    /// Where the request takes the entries of a slot from, which nobody touches until the slot is taken anew;
    /// as words, and so many of them for the request.
    #[inline]
    pub(super) fn staging(
        region: &Region<M>,
        at: usize,
        count: usize,
    ) -> (&[AtomicU64], LocalBuffer) {
        const SLOT: usize = MAX_BUFFERS * ENTRY_WORDS;
        let first = Self::RECORDS_WORDS + at * SLOT;
        region.part(first..first + SLOT, count * ENTRY_BYTES)
    }
}
