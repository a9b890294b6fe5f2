//! Shares are posted.

use super::end::Sender;
use super::slot::{Stage, State, Wire};
use crate::hardware::{QueuePair, Taken};
use crate::p2p::error::NotNow;
use crate::p2p::immediate::Told;
use crate::p2p::lane::key;
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::p2p::record::{self, RECORD_BYTES, RECORD_WORDS};
use crate::rail::FailedBecause;

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Posts every share of a message as far as there are credits. If the driver of the first refuses all
    /// of it, the message is where it was before.
    pub(super) fn post_message(&mut self, number: u64) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        if self.slots[at].told == Told::Record {
            self.stage_sizes(at);
        }
        let mut is_posted = false;
        for rail in self.slots[at].mask {
            let lane = usize::from(self.slots[at].shares[usize::from(rail)].lane);
            let taken = self.post_share(number, rail);
            let errno = taken.refusal.and_then(|refusal| refusal.errno());
            if let Some(refusal) = taken.refusal.filter(|_| taken.count == 0 && !is_posted) {
                self.owed[lane] = None;
                self.slots[at].take_back();
                if let Some(errno) = errno.filter(|_| self.lanes.reroutes()) {
                    self.refused(lane, errno);
                }
                return Err(NotNow::Refused { rail, refusal });
            }
            is_posted = true;
            self.turns[usize::from(rail)] = (lane / usize::from(self.config.rails)) as u8;
            self.outstanding[usize::from(rail)] += self.slots[at].payload(rail);
            if let Some(errno) = errno {
                self.refused(lane, errno);
            }
            if self.lanes.failure.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Puts the sizes where the signal takes them from.
    pub(super) fn stage_sizes(&self, at: usize) {
        let sizes = self.slots[at].buffers().iter().map(|buffer| buffer.local.length());
        let first = Self::RING_WORDS + at * RECORD_WORDS;
        record::store(self.region.words(first..first + RECORD_WORDS), sizes);
    }

    /// Posts what was not posted yet of a share, as far as there are credits.
    #[inline]
    pub(super) fn post_share(&mut self, number: u64, rail: u8) -> Taken {
        let at = Self::slot_at(number);
        let share = self.slots[at].shares[usize::from(rail)];
        if self.slots[at].is_fast && !share.is_moved {
            return self.post_fast(at, rail);
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

    /// The same of a share that is one request.
    #[inline]
    fn post_fast(&mut self, at: usize, rail: u8) -> Taken {
        let Self { lanes, slots, layout, .. } = self;
        let slot = &mut slots[at];
        let number = slot.number;
        let place = usize::from(slot.shares[usize::from(rail)].lane);
        let lane = &mut lanes[place];
        let mut taken = Taken { count: 0, refusal: None };
        if lane.queue.credits() > 0 {
            let request = slot.fast_request(rail, at as u8, *layout, &lane.port());
            taken = lane.post_one(request, true, Purpose::Share { number, rail, ends: true });
        }
        let share = &mut slot.shares[usize::from(rail)];
        if taken.count > 0 {
            share.stage = Stage::Posted;
            share.position = lane.immediates;
            share.next = 1;
            lane.immediates = lane.immediates.wrapping_add(1);
            self.owed[place] = None;
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
        let slot = &mut self.slots[Self::slot_at(number)];
        let share = &mut slot.shares[usize::from(rail)];
        // State is kept by number: the slot may be another message's by now.
        let is_ours = slot.number == number && usize::from(share.lane) == place;
        if !is_ours || share.stage != Stage::Posted {
            return;
        }
        share.stage = Stage::Arrived;
        let carrier = self.lanes[place].rail;
        self.outstanding[usize::from(carrier)] -= slot.payload(rail);
        if slot.state == State::Sending && slot.has_arrived() {
            slot.state = State::Done;
        }
    }
}
