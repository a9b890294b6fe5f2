//! Shares are posted.

use super::end::Sender;
use super::slot::{Share, Slot, Stage, State, Wire};
use crate::hardware::{QueuePair, Refusal, Taken};
use crate::p2p::error::NotNow;
use crate::p2p::immediate::Told;
use crate::p2p::lane::key;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::p2p::record::{self, RECORD_BYTES, RECORD_WORDS};
use crate::rail::{FailedBecause, MAX_RAILS};
use crate::verbs::Imm;

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Posts every share of a message as far as there are credits, each by the queue pair that was `chosen`
    /// for its rail. If the driver of the first refuses all of it, the message is where it was before.
    #[inline]
    pub(super) fn post_message(
        &mut self,
        number: u64,
        chosen: &[u8; MAX_RAILS],
    ) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        let imm = slot.fast_imm(at as u8, self.layout);
        if slot.told == Told::Record {
            self.stage_sizes(at);
        }
        let mut is_posted = false;
        for rail in self.slots[at].mask {
            let place = usize::from(chosen[usize::from(rail)]);
            let payload = self.begin_share(at, rail, place);
            let taken = if self.slots[at].is_fast {
                self.post_fast(at, rail, place, imm)
            } else {
                self.post_share(number, rail)
            };
            if let Some(refusal) = taken.refusal.filter(|_| taken.count == 0 && !is_posted) {
                return Err(self.nothing_taken(at, rail, place, refusal));
            }
            is_posted = true;
            if self.each > 1 {
                self.turns[usize::from(rail)] = (place / usize::from(self.config.rails)) as u8;
            }
            self.outstanding[usize::from(rail)] += payload;
            if let Some(errno) = taken.refusal.and_then(|refusal| refusal.errno()) {
                self.refused(place, errno);
                if self.lanes.failure.is_some() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The driver of the first rail did not take anything of a message.
    #[cold]
    fn nothing_taken(&mut self, at: usize, rail: u8, place: usize, refusal: Refusal) -> NotNow {
        self.owed[place] = None;
        self.slots[at].take_back();
        if let Some(errno) = refusal.errno().filter(|_| self.lanes.reroutes()) {
            self.refused(place, errno);
        }
        NotNow::Refused { rail, refusal }
    }

    /// A share is given to a queue pair. Returns its bytes.
    #[inline]
    fn begin_share(&mut self, at: usize, rail: u8, place: usize) -> u64 {
        let Self { slots, lanes, .. } = self;
        let slot = &mut slots[at];
        let (stage, payload) = (Stage::Posting, slot.bytes(rail));
        let generation = lanes[place].lifecycle.generation();
        slot.shares[usize::from(rail)] =
            Share { stage, lane: place as u8, generation, payload, ..Slot::NO_SHARE };
        payload
    }
    /// Puts the sizes where the signal takes them from.
    pub(super) fn stage_sizes(&self, at: usize) {
        let sizes = self.slots[at].buffers().iter().map(|buffer| buffer.local.length());
        let first = Self::RING_WORDS + at * RECORD_WORDS;
        record::store(self.region.words(first..first + RECORD_WORDS), sizes);
    }

    /// Posts what was not posted yet of a share, as far as there are credits.
    pub(super) fn post_share(&mut self, number: u64, rail: u8) -> Taken {
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        let share = slot.shares[usize::from(rail)];
        if slot.is_fast && !share.is_moved {
            let imm = slot.fast_imm(at as u8, self.layout);
            let taken = self.post_fast(at, rail, usize::from(share.lane), imm);
            if taken.count > 0 {
                self.owed[usize::from(share.lane)] = None;
            }
            return taken;
        }
        let place = usize::from(share.lane);
        let wire = self.wire(at, place);
        let Self { lanes, slots, .. } = self;
        let (slot, lane) = (&mut slots[at], &mut lanes[place]);
        let all = slot.requests(rail, lane.max_message);
        let count = (all - share.next).min(lane.queue.credits());
        let mut taken = Taken { count: 0, refusal: None };
        if count > 0 {
            let purpose = Purpose::Share { number, rail, ends: share.next + count == all };
            let request = |index| slot.request(rail, share.next + index, &wire);
            taken = lane.post(count, true, purpose, request);
        }
        let share = &mut slot.shares[usize::from(rail)];
        share.next += taken.count;
        let is_owed = share.next < all;
        if !is_owed {
            share.stage = Stage::Posted;
            share.position = lane.immediates;
            lane.immediates = lane.immediates.wrapping_add(1);
        }
        self.owed[place] = is_owed.then_some((number, rail));
        self.owes |= is_owed;
        taken
    }

    /// The same of a share that is one request, by this queue pair.
    #[inline]
    fn post_fast(&mut self, at: usize, rail: u8, place: usize, imm: Imm) -> Taken {
        let Self { lanes, slots, .. } = self;
        let (slot, lane) = (&mut slots[at], &mut lanes[place]);
        let number = slot.number;
        let mut taken = Taken { count: 0, refusal: None };
        if lane.queue.credits() > 0 {
            let request = slot.fast_request(rail, imm, &lane.port());
            taken = lane.post_one(request, true, Purpose::Share { number, rail, ends: true });
        }
        if taken.count > 0 {
            let share = &mut slot.shares[usize::from(rail)];
            share.stage = Stage::Posted;
            share.position = lane.immediates;
            share.next = 1;
            lane.immediates = lane.immediates.wrapping_add(1);
        } else {
            self.owed[place] = Some((number, rail));
            self.owes = true;
        }
        taken
    }

    /// What the requests of a message need besides it.
    fn wire(&self, at: usize, place: usize) -> Wire {
        let lane = &self.lanes[place];
        let record = self.peer.map(|peer| peer.records).unwrap_or_default();
        let first = Self::RING_WORDS + at * RECORD_WORDS;
        let bytes = usize::from(self.slots[at].count) * size_of::<u64>();
        let lkey = self.region.lkey(lane.device);
        Wire {
            port: lane.port(),
            layout: self.layout,
            slot: at as u8,
            sizes: self.region.sge(first..first + RECORD_WORDS, bytes, lkey),
            record: (record.addr + (at * RECORD_BYTES) as u64, key(&record.rkeys, lane.peer_at)),
        }
    }

    /// Posts what queue pairs were not given yet of their shares.
    #[cold]
    pub(super) fn post_owed(&mut self) {
        for place in 0..self.lanes.len() {
            let Some((number, rail)) = self.owed[place] else { continue };
            if self.slots[Self::slot_at(number)].number != number {
                // Sent again, and the receiver is done with it all the same.
                self.owed[place] = None;
                continue;
            }
            let taken = self.post_share(number, rail);
            if let Some(errno) = taken.refusal.and_then(|refusal| refusal.errno()) {
                self.refused(place, errno);
            }
        }
        self.owes = self.owed.iter().any(Option::is_some);
    }

    /// A driver refused for good what it must take.
    #[cold]
    pub(super) fn refused(&mut self, place: usize, errno: i32) {
        let error = self.lanes[place].refusal_error(errno);
        self.lane_failed(place, FailedBecause::Error(error));
    }

    /// The share that a rail has of a message arrived, by this queue pair.
    #[inline]
    pub(super) fn arrived(&mut self, place: usize, number: u64, rail: u8) {
        let Self { slots, lanes, outstanding, .. } = self;
        let slot = &mut slots[Self::slot_at(number)];
        let share = &mut slot.shares[usize::from(rail)];
        // State is kept by number: the slot may be another message's by now.
        let is_ours = slot.number == number && usize::from(share.lane) == place;
        if !is_ours || share.stage != Stage::Posted {
            return;
        }
        share.stage = Stage::Arrived;
        outstanding[usize::from(lanes[place].rail)] -= share.payload;
        slot.arrived |= Mask::of(rail);
        if slot.state == State::Sending && slot.has_arrived() {
            slot.state = State::Done;
        }
    }
}
