//! The state of one message, until the next message takes its slot.

use crate::p2p::entry::{Entry, MAX_BUFFERS};
use crate::p2p::immediate::Told;
use crate::p2p::mask::Mask;
use crate::p2p::split::{EvenParts, Parts};
use crate::rail::MAX_RAILS;
use crate::verbs::LocalBuffer;

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
    /// It is being taken back: nothing more of it is posted, and queue pairs have shares in flight.
    TakingBack,
    /// It was taken back. The shares that did not arrive, or all, go out without payload, so that
    /// the receiver knows.
    Void,
    /// It was taken back, and the receiver knows.
    TakenBack,
}

/// What the receiver wants of the receive in a slot's turn: it may be one whose message comes after
/// the message that has the slot now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withdrawal {
    /// Number of the receive that the receiver wants back; 0 if there never was one.
    pub(super) number: u64,
    /// The receiver is to be sent that nothing more of it is written.
    pub(super) owes_answer: bool,
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
    /// Only the signal is sent: its payload is known to have arrived, or the message was taken back.
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
    /// Of these, the ones whose send was taken back before the message was posted.
    pub(super) taken_back: u8,
    /// The time for acknowledgements is over, of a message that is being taken back.
    pub(super) is_hurried: bool,
    /// Number of the last message of the slot that was taken back; 0 if none was.
    pub(super) void: u64,
    pub(super) withdrawal: Withdrawal,
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
        taken_back: 0,
        is_hurried: false,
        void: 0,
        withdrawal: Withdrawal { number: 0, owes_answer: false },
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

    /// Returns the first buffer with this tag and without a send.
    #[inline]
    pub(super) fn find(&self, tag: u32) -> Option<usize> {
        // Several buffers may have the same tag: each send takes the first one without a send.
        let has_no_send = |at: &usize| self.awaited >> at & 1 == 0;
        let mut fitting = (0..usize::from(self.count)).filter(has_no_send);
        fitting.find(|at| self.buffers[*at].remote.tag == tag)
    }

    /// Returns the first byte and the length of a rail's part of each buffer.
    pub(super) fn parts(&self, rail: u8) -> impl Iterator<Item = (u32, u32)> {
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

    /// Whether the message was taken back after it was posted, also if it is over.
    pub(super) const fn is_void(&self) -> bool {
        self.void == self.number
    }

    /// Whether the receiver wants the receive of the present message back.
    pub(super) const fn is_withdrawn(&self) -> bool {
        self.withdrawal.number == self.number
    }

    /// Whether every share has arrived.
    #[inline]
    pub(super) fn has_arrived(&self) -> bool {
        self.arrived == self.mask
    }
}
