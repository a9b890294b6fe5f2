//! The state of one message, until the next message takes its slot.

use crate::p2p::entry::{Entry, MAX_BUFFERS};
use crate::p2p::immediate::{ImmLayout, Immediate, Told};
use crate::p2p::lane::{Port, blank, key};
use crate::p2p::mask::Mask;
use crate::p2p::split::{EvenParts, Parts};
use crate::rail::MAX_RAILS;
use crate::verbs::{Imm, LocalBuffer, Opcode, SendFlags, SendRequest, Sge};

/// The progress of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Unused, or `test` has returned all results.
    Free,
    /// The entries have arrived, and not every buffer has a send.
    Matching,
    /// Posted to the rails, possibly not completely.
    Sending,
    /// Every share has arrived.
    Done,
}

/// The progress of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The rail carries nothing of the message.
    None,
    /// Some requests are posted, others wait for credits.
    Posting,
    /// All requests are posted.
    Posted,
    /// Acknowledged.
    Arrived,
    /// Lost, and waits for another queue pair.
    Lost,
}

/// The share of one rail in a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) stage: Stage,
    /// The place of the queue pair that carries it.
    pub(super) lane: u8,
    /// The generation of that queue pair.
    pub(super) generation: u16,
    /// Number of immediates that were posted to it before the share's, modulo 2^32.
    pub(super) position: u32,
    /// Requests of it that were posted.
    pub(super) next: u32,
    /// Payload bytes of the share.
    pub(super) payload: u64,
    /// Another rail than the one for which the message was split carries it.
    pub(super) is_moved: bool,
    /// Its payload is known to have arrived, so only the signal is sent again.
    pub(super) is_bare: bool,
}

/// One buffer of a message, at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) local: LocalBuffer,
    /// Requests may carry its bytes inline.
    pub(super) may_inline: bool,
    /// Its lkeys for the devices of this end.
    pub(super) lkeys: [u32; MAX_RAILS],
    /// The peer's buffer.
    pub(super) remote: Entry,
    /// How it is split, unless the message [is even](Slot::is_even).
    pub(super) parts: Parts,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Its number; 0 if there never was one.
    pub(super) number: u64,
    pub(super) state: State,
    /// Buffers of it.
    pub(super) count: u8,
    /// Buffers that have a send whose result `test` has not returned, one bit each.
    pub(super) awaited: u8,
    /// Failures of devices and drivers that it took part in.
    pub(super) failures: u8,
    /// The length in its immediates.
    pub(super) told: Told,
    /// Each share is one request: the payload, with the immediate.
    pub(super) is_fast: bool,
    /// Its only buffer is split evenly over the rails in the mask, one or more.
    pub(super) is_even: bool,
    pub(super) mask: Mask,
    /// The rails whose shares have arrived, of those in the mask.
    pub(super) arrived: Mask,
    /// The shares, of which only those of rails in the mask are valid.
    pub(super) shares: [Share; MAX_RAILS],
    pub(super) buffers: [Buffer; MAX_BUFFERS],
}

/// What requests need in addition to the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) port: Port,
    pub(super) layout: ImmLayout,
    pub(super) slot: u8,
    /// The sizes in this end's memory, on the device of the lane.
    pub(super) sizes: Sge,
    /// Address and rkey of the record.
    pub(super) record: (u64, u32),
}

impl Slot {
    pub(super) const NO_SHARE: Share = Share {
        stage: Stage::None,
        lane: 0,
        generation: 0,
        position: 0,
        next: 0,
        payload: 0,
        is_moved: false,
        is_bare: false,
    };

    pub(super) const BLANK: Self = Self {
        number: 0,
        state: State::Free,
        count: 0,
        awaited: 0,
        failures: 0,
        told: Told::Record,
        is_fast: false,
        is_even: false,
        mask: Mask::EMPTY,
        arrived: Mask::EMPTY,
        shares: [Self::NO_SHARE; MAX_RAILS],
        buffers: [Buffer {
            local: LocalBuffer::EMPTY,
            may_inline: false,
            lkeys: [0; MAX_RAILS],
            remote: Entry {
                number: 0,
                addr: 0,
                length: 0,
                tag: 0,
                rkeys: [0; MAX_RAILS],
                count: 0,
                index: 0,
            },
            parts: Parts::NONE,
        }; MAX_BUFFERS],
    };

    /// Takes the message back: no request of it was posted.
    #[cold]
    pub(super) fn take_back(&mut self) {
        self.state = State::Matching;
        self.mask = Mask::EMPTY;
    }

    /// One bit for each buffer.
    #[inline]
    pub(super) const fn all(&self) -> u8 {
        // Without a branch; `count` is 1 to 8 in a slot that is in use (`Entry::check`).
        u8::MAX >> (MAX_BUFFERS as u8 - self.count)
    }

    /// The buffers that it has.
    #[inline]
    pub(super) fn buffers(&self) -> &[Buffer] {
        &self.buffers[..usize::from(self.count)]
    }

    /// Returns the first byte and the length of a rail's part of each buffer.
    fn parts(&self, rail: u8) -> impl Iterator<Item = (u32, u32)> {
        let Self { is_even, mask, .. } = *self;
        // An even split follows from the mask and is not stored: that is the usual form.
        let part = move |buffer: &Buffer| match is_even {
            true => EvenParts::part(buffer.local.length(), mask, rail),
            false => buffer.parts.part(rail),
        };
        self.buffers().iter().map(part)
    }

    /// Returns the first byte and the length of a rail's part of the first buffer.
    pub(super) fn first_part(&self, rail: u8) -> (u32, u32) {
        self.parts(rail).next().unwrap_or_default()
    }

    /// Returns the bytes of a rail's parts of all buffers.
    pub(super) fn bytes(&self, rail: u8) -> u64 {
        self.parts(rail).map(|(_, length)| u64::from(length)).sum()
    }

    /// Whether every share has arrived.
    #[inline]
    pub(super) fn has_arrived(&self) -> bool {
        self.arrived == self.mask
    }

    /// Notes that the share of a rail arrived over the queue pair at `place`. Returns its payload
    /// bytes, or 0 if that was known.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, rail: u8, place: usize) -> u64 {
        let rail = rail % MAX_RAILS as u8;
        let share = &mut self.shares[usize::from(rail)];
        // State is keyed by the message number, because another message may have the slot now
        // (messages.md, "Why an 8-bit slot is safe").
        let is_ours = self.number == number && usize::from(share.lane) == place;
        // A share that was counted by the peer's fence, or is lost, is settled already.
        if !is_ours || share.stage != Stage::Posted {
            return 0;
        }
        let payload = share.payload;
        share.stage = Stage::Arrived;
        self.arrived |= Mask::of(rail);
        // Repetitions for a message that `test` has returned must not make it done again.
        if self.state == State::Sending && self.has_arrived() {
            self.state = State::Done;
        }
        payload
    }

    /// Returns the number of requests of a share, with physical messages of at most `max_message`
    /// bytes.
    pub(super) fn requests(&self, rail: u8, max_message: u32) -> u32 {
        if self.shares[usize::from(rail)].is_bare {
            return 1;
        }
        // One more for the signal, which is a request of its own in this form.
        self.parts(rail).map(|(_, bytes)| bytes.div_ceil(max_message)).sum::<u32>() + 1
    }

    /// Returns whether the signal of a rail carries the record. Each moved share does, because the
    /// lost one may have been the leader's.
    fn brings_sizes(&self, rail: u8) -> bool {
        let is_leaders = self.told == Told::Record && self.mask.leader() == Some(rail);
        is_leaders || self.shares[usize::from(rail)].is_moved
    }

    /// Returns the immediate of the shares of a fast message.
    #[inline]
    pub(super) const fn fast_imm(&self, slot: u8, layout: ImmLayout) -> Imm {
        layout.encode(Immediate { slot, mask: self.mask, told: self.told })
    }

    /// Returns request `index` of a share whose payload and signal are separate requests.
    pub(super) fn request(&self, rail: u8, mut index: u32, wire: &Wire) -> SendRequest {
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
    pub(super) fn write(&self, offset: u32, length: u32, port: &Port) -> SendRequest {
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
