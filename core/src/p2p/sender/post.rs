//! Posts the shares of messages, and builds their requests.

use super::end::Sender;
use super::slot::{Buffer, Share, Slot, Stage};
use crate::hardware::{QueuePair, Refusal, Taken};
use crate::p2p::error::NotNow;
use crate::p2p::immediate::{ImmLayout, Immediate, Told};
use crate::p2p::lane::{Port, Purpose, blank, key};
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::p2p::record::{self, RECORD_BYTES, RECORD_WORDS};
use crate::rail::{FailedBecause, MAX_RAILS, PhysicalRail, Rails};
use crate::verbs::{Imm, Opcode, SendFlags, SendRequest, Sge};

/// What requests need in addition to the message.
#[derive(Clone, Copy, Debug)]
struct Wire {
    port: Port,
    layout: ImmLayout,
    slot: u8,
    /// The sizes in this end's memory, on the device of the lane.
    sizes: Sge,
    /// Address and rkey of the record.
    record: (u64, u32),
}

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Posts every share of a message as far as there are credits, each over the queue pair that
    /// was `chosen` for its rail. If the first driver refuses all of its share, nothing changed.
    #[inline(never)]
    pub(super) fn post_message(
        &mut self,
        number: u64,
        chosen: &[u8; MAX_RAILS],
    ) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        if !self.slots[at].is_fast {
            return self.post_slowly(number, chosen);
        }
        let slot = &self.slots[at];
        let (mask, imm) = (slot.mask, slot.fast_imm(at as u8, self.layout));
        self.post_shares(at, (mask, chosen), imm, Slot::first_part)
    }

    /// Posts a message whose shares are one request each, with this immediate. `part` returns the
    /// first byte and the length of each share.
    #[inline(always)]
    pub(super) fn post_shares(
        &mut self,
        at: usize,
        (mask, chosen): (Mask, &[u8; MAX_RAILS]),
        imm: Imm,
        mut part: impl FnMut(&Slot, u8) -> (u32, u32),
    ) -> Result<(), NotNow> {
        // Only while nothing is out can the message be taken back. Afterwards the receiver waits
        // for every rail of the mask, so the rest is posted later.
        let mut is_first = true;
        for rail in mask {
            let place = usize::from(chosen[usize::from(rail)]);
            let part = part(&self.slots[at], rail);
            let taken = self.post_fast(at, rail, place, part, imm);
            if !self.given((at, rail, place), u64::from(part.1), taken, is_first)? {
                break;
            }
            is_first = false;
        }
        self.note_turns(mask, |at| chosen[at]);
        Ok(())
    }

    /// Posts a message whose shares are several requests.
    #[inline(never)]
    fn post_slowly(&mut self, number: u64, chosen: &[u8; MAX_RAILS]) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        if self.slots[at].told == Told::Record {
            // Before the first request: the leader's NIC reads the sizes at any time after its
            // post.
            self.stage_sizes(at);
        }
        let mut is_first = true;
        for rail in self.slots[at].mask {
            let place = usize::from(chosen[usize::from(rail)]);
            let slot = &mut self.slots[at];
            let (lane, payload) = (place as u8, slot.bytes(rail));
            let generation = self.lanes[place].health.lifecycle.generation();
            slot.shares[usize::from(rail)] =
                // The generation is remembered: the queue pair may be replaced before the share is
                // settled.
                Share { stage: Stage::Posting, lane, generation, payload, ..Slot::NO_SHARE };
            let taken = self.post_share(number, rail);
            if !self.given((at, rail, place), payload, taken, is_first)? {
                break;
            }
            is_first = false;
        }
        self.note_turns(self.slots[at].mask, |at| chosen[at]);
        Ok(())
    }

    /// Handles the result of posting a rail's share of `payload` bytes. Returns whether the next
    /// share may be posted.
    #[inline(always)]
    pub(super) fn given(
        &mut self,
        (at, rail, place): (usize, u8, usize),
        payload: u64,
        taken: Taken,
        is_first: bool,
    ) -> Result<bool, NotNow> {
        if let Some(refusal) = taken.refusal {
            if taken.count == 0 && is_first {
                return Err(self.nothing_taken(at, rail, place, refusal));
            }
            if let Some(errno) = refusal.errno() {
                self.refused(place, errno);
            }
        }
        // Also for a share that waits for credits: it is assigned to this rail.
        self.outstanding[usize::from(rail)] += payload;
        Ok(taken.refusal.is_none() || self.lanes.failure.is_none())
    }

    /// Notes the turns of the queue pairs that were chosen for these rails.
    #[inline]
    pub(super) fn note_turns(&mut self, rails: Mask, chosen: impl Fn(usize) -> u8) {
        // With one queue pair for each rail there are no turns to note.
        if self.each > 1 {
            for at in rails.map(usize::from) {
                self.turns[at] = chosen(at) / self.config.rails;
            }
        }
    }

    /// Takes a message back, because the first driver refused all of its share.
    #[cold]
    fn nothing_taken(&mut self, at: usize, rail: u8, place: usize, refusal: Refusal) -> NotNow {
        self.owed[place] = None;
        self.slots[at].take_back();
        // Without re-routing, the failure of a queue pair would fail the connection. The caller
        // gets the refusal instead, since nothing was sent.
        if let Some(errno) = refusal.errno().filter(|_| self.lanes.reroutes()) {
            self.refused(place, errno);
        }
        NotNow::Refused { rail, refusal }
    }

    /// Stores the sizes in the staging copy of the record.
    pub(super) fn stage_sizes(&self, at: usize) {
        let sizes = self.slots[at].buffers().iter().map(|buffer| buffer.local.length());
        let first = Self::RING_WORDS + at * RECORD_WORDS;
        record::store(self.region.words(first..first + RECORD_WORDS), sizes);
    }

    /// Stores in the staging copy of the record that the message was taken back.
    pub(super) fn stage_void(&self, at: usize) {
        let first = Self::RING_WORDS + at * RECORD_WORDS;
        let words = first..first + usize::from(self.slots[at].count);
        record::store_void(self.region.words(words));
    }

    /// Posts the rest of a share, as far as there are credits.
    #[inline(never)]
    pub(super) fn post_share(&mut self, number: u64, rail: u8) -> Taken {
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        let share = slot.shares[usize::from(rail)];
        // A moved share brings the record with its signal, so payload and signal are separate.
        if slot.is_fast && !share.is_moved {
            let place = usize::from(share.lane);
            if !self.lanes[place].has_room(1) {
                return Taken { count: 0, refusal: None };
            }
            let imm = slot.fast_imm(at as u8, self.layout);
            let taken = self.post_fast(at, rail, place, slot.first_part(rail), imm);
            if taken.count > 0 {
                self.owed[place] = None;
            }
            return taken;
        }
        let place = usize::from(share.lane);
        let wire = self.wire(at, place);
        let Self { lanes, slots, .. } = self;
        let (slot, lane) = (&mut slots[at], &mut lanes[place]);
        let all = slot.requests(rail, lane.max_message);
        // Waiting for all credits at once could take forever if a share needs more than the queue
        // has.
        let count = (all - share.next).min(lane.queue.credits());
        let mut taken = Taken { count: 0, refusal: None };
        if count > 0 {
            let is_end = share.next + count == all;
            let purpose = if is_end { Purpose::Share { number, rail } } else { Purpose::Part };
            let request = |index| slot.request(rail, share.next + index, &wire);
            taken = lane.post(count, true, purpose, request);
        }
        let share = &mut slot.shares[usize::from(rail)];
        // Only what the driver took: it takes a prefix of the chain (ibv_post_send(3)).
        share.next += taken.count;
        let is_owed = share.next < all;
        if !is_owed {
            share.stage = Stage::Posted;
            // The peer's count says how many immediates of this queue pair arrived, in their order.
            share.position = lane.immediates;
            lane.immediates = lane.immediates.wrapping_add(1);
        }
        self.owed[place] = is_owed.then_some((number, rail));
        self.owes |= is_owed;
        taken
    }

    /// Posts a share of one request, with this first byte and length, over a queue pair that has
    /// room.
    #[inline(always)]
    pub(super) fn post_fast(
        &mut self,
        at: usize,
        rail: u8,
        place: usize,
        (offset, length): (u32, u32),
        imm: Imm,
    ) -> Taken {
        let Self { lanes, slots, .. } = self;
        let (slot, lane) = (&mut slots[at], &mut lanes[place]);
        let number = slot.number;
        let payload = slot.buffers[0].write(offset, length, &lane.port());
        let request = SendRequest { opcode: Opcode::RdmaWriteWithImm, imm, ..payload };
        let taken = lane.post_one(request, true, Purpose::Share { number, rail });
        let is_posted = taken.count > 0;
        slot.shares[usize::from(rail)] = Share {
            stage: if is_posted { Stage::Posted } else { Stage::Posting },
            lane: place as u8,
            generation: lane.health.lifecycle.generation(),
            position: lane.immediates,
            next: u32::from(is_posted),
            payload: u64::from(length),
            ..Slot::NO_SHARE
        };
        if is_posted {
            lane.immediates = lane.immediates.wrapping_add(1);
        } else {
            // If other rails have shares of the message, this one has to follow on its queue pair.
            // If not, `nothing_taken` takes it back.
            self.owed[place] = Some((number, rail));
            self.owes = true;
        }
        taken
    }

    /// Returns what requests need in addition to the message.
    fn wire(&self, at: usize, place: usize) -> Wire {
        let lane = &self.lanes[place];
        let record = &self.records;
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

    /// Posts the unfinished shares of all queue pairs.
    #[cold]
    pub(super) fn post_owed(&mut self) {
        for place in 0..self.lanes.len() {
            let Some((number, rail)) = self.owed[place] else { continue };
            let slot = &self.slots[Self::slot_at(number)];
            if slot.number != number {
                // The receiver finished the message without this repetition, and the slot has a new
                // one.
                self.owed[place] = None;
                continue;
            }
            if !self.may_be_posted(number) {
                continue;
            }
            let taken = self.post_share(number, rail);
            if let Some(errno) = taken.refusal.and_then(|refusal| refusal.errno()) {
                self.refused(place, errno);
            }
        }
        // One flag, so that a poll without unfinished shares looks at no queue pair.
        self.owes = self.owed.iter().any(Option::is_some);
    }

    /// Fails a queue pair whose driver refused a request for good.
    #[cold]
    pub(super) fn refused(&mut self, place: usize, errno: i32) {
        let error = self.lanes[place].refusal_error(errno, 0);
        self.rail_failed(place, FailedBecause::Error(error));
    }
}

/// The requests of a message.
impl Slot {
    /// Returns the number of requests of a share, with physical messages of at most `max_message`
    /// bytes.
    fn requests(&self, rail: u8, max_message: u32) -> u32 {
        if self.shares[usize::from(rail)].is_bare {
            return 1;
        }
        // One more for the signal, which is a request of its own in this form.
        self.parts(rail).map(|(_, bytes)| bytes.div_ceil(max_message)).sum::<u32>() + 1
    }

    /// Returns whether the signal of a rail carries the record. Each moved share does, because the
    /// lost one may have been the leader's, and each share of a message that was taken back.
    fn brings_sizes(&self, rail: u8) -> bool {
        let is_leaders = self.told == Told::Record && self.mask.leader() == Some(rail);
        let share = &self.shares[usize::from(rail)];
        is_leaders || share.is_moved || share.is_bare
    }

    /// Returns the immediate of the shares of a fast message.
    #[inline]
    const fn fast_imm(&self, slot: u8, layout: ImmLayout) -> Imm {
        layout.encode(Immediate { slot, mask: self.mask, told: self.told })
    }

    /// Returns request `index` of a share whose payload and signal are separate requests.
    fn request(&self, rail: u8, mut index: u32, wire: &Wire) -> SendRequest {
        let longest = wire.port.max_message;
        // After `test` returned the message, its buffer is the caller's: a repetition must not read
        // it.
        let payload = if self.shares[usize::from(rail)].is_bare { &[] } else { self.buffers() };
        for (buffer, (offset, length)) in payload.iter().zip(self.parts(rail)) {
            let pieces = length.div_ceil(longest);
            if index < pieces {
                let before = index * longest;
                return buffer.write(offset + before, longest.min(length - before), &wire.port);
            }
            index -= pieces;
        }
        // The last request of the share, so the immediate arrives behind the payload.
        self.signal(rail, wire)
    }

    const fn immediate(&self, rail: u8, slot: u8) -> Immediate {
        let is_moved = self.shares[rail as usize].is_moved;
        // The receiver has to know whose share this is, since another rail carries it.
        let told = if is_moved { Told::Moved(rail) } else { self.told };
        // The mask is that of all shares: the receiver refuses a message whose masks differ.
        Immediate { slot, mask: self.mask, told }
    }

    /// Returns the signal of a rail's share.
    fn signal(&self, rail: u8, wire: &Wire) -> SendRequest {
        let imm = wire.layout.encode(self.immediate(rail, wire.slot));
        let bare = SendRequest { imm, ..blank(Opcode::RdmaWriteWithImm) };
        if !self.brings_sizes(rail) {
            return bare;
        }
        let (remote_addr, rkey) = wire.record;
        SendRequest { sge: wire.sizes, remote_addr, rkey, ..bare }
    }
}

impl Buffer {
    /// Returns a WRITE of a part of the buffer.
    #[inline]
    fn write(&self, offset: u32, length: u32, port: &Port) -> SendRequest {
        let lkey = self.lkeys[usize::from(port.device_at) % MAX_RAILS];
        // A branch, so that a message without inline data does not compute `port.inline`.
        let flags = if self.may_inline { port.inline(length) } else { SendFlags::empty() };
        SendRequest {
            flags,
            sge: self.local.part(offset, length).sge(lkey),
            // `Entry::check` has refused buffers that exceed the address space.
            remote_addr: self.remote.addr.wrapping_add(u64::from(offset)),
            rkey: key(&self.remote.rkeys, port.peer_at),
            ..blank(Opcode::RdmaWrite)
        }
    }
}
