//! Entries are written into the sender's memory.

use super::end::Receiver;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::card::SenderCard;
use crate::p2p::entry::{ENTRY_BYTES, ENTRY_WORDS, Entry, EntryForm, MAX_BUFFERS};
use crate::p2p::error::NotNow;
use crate::p2p::lane::{blank, key};
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::verbs::{Opcode, SendFlags, SendRequest};

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
        let first = usize::from(self.first_lanes[device]);
        let lane = &self.lanes[first];
        let works = usize::from(lane.device_at) == device && lane.lifecycle.is_in_service();
        let place = if works { first } else { self.find_entry_lane(at)? };
        self.lanes[place].has_room(1).then_some(place)
    }

    /// The same, whether it has a credit or not, where queue pairs have failed.
    #[cold]
    fn find_entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let mut in_turn = (0..devices).map(|step| (at + step) % devices);
        in_turn.find_map(|device| {
            self.lanes.iter().position(|lane| {
                usize::from(lane.device_at) == device && lane.lifecycle.is_in_service()
            })
        })
    }

    /// Writes the entries of a slot, which are staged, all with one request. If the driver does not take it,
    /// nothing changed.
    #[inline(always)]
    pub(super) fn post_entries(
        &mut self,
        at: usize,
        place: usize,
        number: u64,
        count: u8,
        again: bool,
    ) -> Result<(), NotNow> {
        let Some(SenderCard { ring, .. }) = &self.peer else { return Err(NotNow::NoCredits) };
        let lane = &mut self.lanes[place];
        let first = Self::staged(at, 0);
        let bytes = usize::from(count) * ENTRY_BYTES;
        let lkey = self.lkeys[usize::from(lane.device_at)];
        let is_inline = bytes as u32 <= lane.qp.limits().max_inline_data;
        let request = SendRequest {
            flags: if is_inline { SendFlags::INLINE } else { SendFlags::empty() },
            sge: self.region.sge(first..first + MAX_BUFFERS * ENTRY_WORDS, bytes, lkey),
            remote_addr: ring.addr + (at * MAX_BUFFERS * ENTRY_BYTES) as u64,
            rkey: key(&ring.rkeys, lane.peer_at),
            ..blank(Opcode::RdmaWrite)
        };
        // Counted, not by slot: whatever the number of devices, and whichever of them is gone, no more than a
        // quarter of the queue waits for a completion that was not asked for.
        let is_due = lane.queue.unsignaled() + 1 >= lane.queue.limit().div_ceil(4);
        let purpose = Purpose::Entries { number, again };
        let rail = lane.rail;
        let taken = lane.post_one(request, is_due || again, purpose);
        match taken.refusal {
            Some(refusal) if taken.count == 0 => Err(NotNow::Refused { rail, refusal }),
            _ => Ok(()),
        }
    }

    /// Puts the entries of a slot where the request takes them from.
    pub(super) fn stage_entries(&self, at: usize) {
        let slot = &self.slots[at];
        for (index, entry) in slot.entries().iter().enumerate() {
            self.stage(at, index, entry);
        }
    }

    /// Puts an entry where the request takes it from, which nobody touches until the slot is taken anew.
    #[inline]
    pub(super) fn stage(&self, at: usize, index: usize, entry: &Entry) {
        let form = self.peer.as_ref().map_or_else(EntryForm::default, |peer| peer.form);
        let word = Self::staged(at, index);
        entry.store(form, self.region.words(word..word + ENTRY_WORDS));
    }

    /// The first word of a staged entry.
    #[inline]
    const fn staged(at: usize, index: usize) -> usize {
        Self::RECORDS_WORDS + (at * MAX_BUFFERS + index) * ENTRY_WORDS
    }
}
