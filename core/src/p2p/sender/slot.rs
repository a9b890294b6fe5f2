//! What a sender remembers of a message, until the next one takes its slot.

use crate::p2p::entry::{Entry, MAX_BUFFERS};
use crate::p2p::immediate::{ImmLayout, Immediate, Told};
use crate::p2p::lane::{Port, blank, key};
use crate::p2p::mask::Mask;
use crate::p2p::split::{EvenParts, Parts};
use crate::rail::MAX_RAILS;
use crate::verbs::{Imm, LocalBuffer, Opcode, SendFlags, SendRequest, Sge};

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody waits for it: none there was, or its callers were told.
    Free,
    /// Its entries are here; not every buffer has found its send.
    Matching,
    /// It is with the rails.
    Sending,
    /// Every share has arrived.
    Done,
}

/// How far a share is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The message gives this rail nothing.
    None,
    /// Requests of it are with a queue pair; others wait for it.
    Posting,
    /// All its requests are with a queue pair.
    Posted,
    /// It arrived, as far as is known.
    Arrived,
    /// It did not arrive, and waits for another queue pair.
    Lost,
}

/// What one rail carries of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) stage: Stage,
    /// The place of the queue pair that carries it.
    pub(super) lane: u8,
    /// Which queue pair in that place.
    pub(super) generation: u16,
    /// How many immediates that one was given before the share's, modulo 2^32.
    pub(super) position: u32,
    /// Requests of it that were posted.
    pub(super) next: u32,
    /// Payload bytes that the queue pair has to do for it.
    pub(super) payload: u64,
    /// Another rail than that for which the message was split carries it.
    pub(super) is_moved: bool,
    /// Its payload is known to have arrived: only the signal goes out again.
    pub(super) is_bare: bool,
}

/// One buffer of a message, at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) local: LocalBuffer,
    /// Requests may bring its bytes along.
    pub(super) may_inline: bool,
    /// Its keys, for each of this end's devices.
    pub(super) lkeys: [u32; MAX_RAILS],
    /// Where it goes.
    pub(super) remote: Entry,
    /// How it is spread, unless the message [is even](Slot::is_even).
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
    /// Buffers that have found their sends, and whose callers were not told.
    pub(super) awaited: u8,
    /// Failures of devices and drivers that it took part in.
    pub(super) failures: u8,
    /// What its immediates say of the sizes.
    pub(super) told: Told,
    /// Each share is one request: the payload, with the immediate.
    pub(super) is_fast: bool,
    /// Its only buffer is spread evenly over the rails in the mask, one or more.
    pub(super) is_even: bool,
    pub(super) mask: Mask,
    /// The rails whose shares have arrived, of those in the mask.
    pub(super) arrived: Mask,
    /// Those of the rails in the mask mean something.
    pub(super) shares: [Share; MAX_RAILS],
    pub(super) buffers: [Buffer; MAX_BUFFERS],
}

/// What requests need besides the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) port: Port,
    pub(super) layout: ImmLayout,
    pub(super) slot: u8,
    /// The sizes in this end's memory, on the device of the lane.
    pub(super) sizes: Sge,
    /// Where they go, and the key for it.
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

    /// None of it was posted: it was not given to the rails.
    #[cold]
    pub(super) fn take_back(&mut self) {
        self.state = State::Matching;
        self.mask = Mask::EMPTY;
    }

    /// One bit for each buffer.
    #[inline]
    pub(super) const fn all(&self) -> u8 {
        u8::MAX >> (MAX_BUFFERS as u8 - self.count)
    }

    /// The buffers that it has.
    #[inline]
    pub(super) fn buffers(&self) -> &[Buffer] {
        &self.buffers[..usize::from(self.count)]
    }

    /// The first byte and the length of the part that a rail carries of each buffer.
    fn parts(&self, rail: u8) -> impl Iterator<Item = (u32, u32)> {
        let Self { is_even, mask, .. } = *self;
        let part = move |buffer: &Buffer| match is_even {
            true => EvenParts::part(buffer.local.length(), mask, rail),
            false => buffer.parts.part(rail),
        };
        self.buffers().iter().map(part)
    }

    /// The same of the first buffer.
    pub(super) fn first_part(&self, rail: u8) -> (u32, u32) {
        self.parts(rail).next().unwrap_or_default()
    }

    /// Bytes that a rail carries of the buffers.
    pub(super) fn bytes(&self, rail: u8) -> u64 {
        self.parts(rail).map(|(_, length)| u64::from(length)).sum()
    }

    /// Whether every share has arrived.
    #[inline]
    pub(super) fn has_arrived(&self) -> bool {
        self.arrived == self.mask
    }

    /// The share that a rail has of this message arrived, by the queue pair at this place. Returns its bytes,
    /// unless that is known.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, rail: u8, place: usize) -> u64 {
        let rail = rail % MAX_RAILS as u8;
        let share = &mut self.shares[usize::from(rail)];
        // State is kept by number: the slot may be another message's by now.
        let is_ours = self.number == number && usize::from(share.lane) == place;
        if !is_ours || share.stage != Stage::Posted {
            return 0;
        }
        let payload = share.payload;
        share.stage = Stage::Arrived;
        self.arrived |= Mask::of(rail);
        if self.state == State::Sending && self.has_arrived() {
            self.state = State::Done;
        }
        payload
    }

    /// Requests of such a share, in messages of at most `max_message` bytes.
    pub(super) fn requests(&self, rail: u8, max_message: u32) -> u32 {
        if self.shares[usize::from(rail)].is_bare {
            return 1;
        }
        self.parts(rail).map(|(_, bytes)| bytes.div_ceil(max_message)).sum::<u32>() + 1
    }

    /// Whether a rail's signal brings the sizes along. Each that was moved does: what was lost may be the
    /// leader's.
    fn brings_sizes(&self, rail: u8) -> bool {
        let is_leaders = self.told == Told::Record && self.mask.leader() == Some(rail);
        is_leaders || self.shares[usize::from(rail)].is_moved
    }

    /// The immediate of each share that is one request.
    #[inline]
    pub(super) const fn fast_imm(&self, slot: u8, layout: ImmLayout) -> Imm {
        layout.encode(Immediate { slot, mask: self.mask, told: self.told })
    }

    /// Request `index` of a rail's share whose payload and signal are requests of their own.
    pub(super) fn request(&self, rail: u8, mut index: u32, wire: &Wire) -> SendRequest {
        let longest = wire.port.max_message;
        let payload = if self.shares[usize::from(rail)].is_bare { &[] } else { self.buffers() };
        for (buffer, (offset, length)) in payload.iter().zip(self.parts(rail)) {
            let pieces = length.div_ceil(longest);
            if index < pieces {
                let before = index * longest;
                return buffer.write(offset + before, longest.min(length - before), &wire.port);
            }
            index -= pieces;
        }
        self.signal(rail, wire)
    }

    const fn immediate(&self, rail: u8, slot: u8) -> Immediate {
        let is_moved = self.shares[rail as usize].is_moved;
        let told = if is_moved { Told::Moved(rail) } else { self.told };
        Immediate { slot, mask: self.mask, told }
    }

    /// The request that tells of a rail's share.
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
    /// A WRITE of a part of it.
    #[inline]
    pub(super) fn write(&self, offset: u32, length: u32, port: &Port) -> SendRequest {
        let lkey = self.lkeys[usize::from(port.device_at) % MAX_RAILS];
        // A branch, which costs those who did not ask for it less than a choice.
        let flags = if self.may_inline { port.inline(length) } else { SendFlags::empty() };
        SendRequest {
            flags,
            sge: self.local.part(offset, length).sge(lkey),
            remote_addr: self.remote.addr.wrapping_add(u64::from(offset)),
            rkey: key(&self.remote.rkeys, port.peer_at),
            ..blank(Opcode::RdmaWrite)
        }
    }
}
