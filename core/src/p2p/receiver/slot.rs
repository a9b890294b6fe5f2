//! The state of one receive: its immediates so far, and the sizes that follow from them.

use crate::p2p::entry::{Entry, MAX_BUFFERS};
use crate::p2p::immediate::Immediate;
use crate::p2p::mask::Mask;

/// The progress of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Unused, or `test` has returned the result.
    Free,
    /// Offered by the caller. The entries are not written yet, so nothing can arrive.
    Held,
    /// The entries are written, and immediates are missing.
    Waiting,
    /// All immediates have arrived, and the sizes are known.
    Done,
    /// All immediates have arrived, of a message that was taken back.
    Void,
}

/// How far a receive is that its owner wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// The sender is to be asked, once the entries are written.
    Wanted,
    /// The sender is asked.
    Asked,
    /// The sender writes nothing more. The slot waits for its void message.
    Final,
    /// As Final, and `test` has returned that.
    Tested,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Its number; 0 if there never was one.
    pub(super) number: u64,
    pub(super) state: State,
    /// Buffers of it.
    pub(super) count: u8,
    /// The rails that carry the message; empty before the first immediate.
    pub(super) mask: Mask,
    /// The rails whose immediates have arrived.
    pub(super) seen: Mask,
    /// The devices that delivered immediates, one bit for each place in the list.
    pub(super) carriers: u8,
    /// Devices that were lost while the receive waited, with completions that were not polled. They
    /// may have delivered the payload of a share that is moved.
    pub(super) lost_carriers: u8,
    /// Bytes that arrived with immediates.
    pub(super) sum: u64,
    /// Length in the immediates, in units of 128 bytes.
    pub(super) units: u32,
    /// The sizes are in the record: there are several buffers, or an immediate refers to it.
    /// Otherwise the size is the [sum](Self::add_up).
    pub(super) needs_record: bool,
    /// Exact sizes, once they are known.
    pub(super) sizes: [u32; MAX_BUFFERS],
    /// What was offered to the sender.
    pub(super) entries: [Entry; MAX_BUFFERS],
    /// The place of the queue pair that wrote the entries last.
    pub(super) entries_lane: u8,
    /// The entries must be written again by another queue pair.
    pub(super) wants_entries: bool,
    /// The place of the queue pair that writes the entries again, until that write has ended.
    pub(super) rewriting: Option<u8>,
    /// The last receive of the slot that its owner wants back.
    pub(super) withdrawal: (u64, Withdrawal),
}

/// An immediate that arrived for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) immediate: Immediate,
    /// The rail of its share.
    pub(super) rail: u8,
    /// The set of only that rail.
    pub(super) own: Mask,
    /// The bit of the device that delivered it, by its place in the list.
    pub(super) carrier: u8,
    /// Bytes that arrived with it.
    pub(super) bytes: u32,
}

impl Slot {
    pub(super) const BLANK: Self = Self {
        number: 0,
        state: State::Free,
        count: 0,
        mask: Mask::EMPTY,
        seen: Mask::EMPTY,
        carriers: 0,
        lost_carriers: 0,
        sum: 0,
        units: UNTOLD,
        needs_record: false,
        sizes: [0; MAX_BUFFERS],
        entries: [Entry {
            number: 0,
            addr: 0,
            length: 0,
            tag: 0,
            rkeys: [0; crate::p2p::entry::ENTRY_KEYS],
            count: 0,
            index: 0,
        }; MAX_BUFFERS],
        entries_lane: 0,
        wants_entries: false,
        rewriting: None,
        withdrawal: (0, Withdrawal::Wanted),
    };

    /// Takes receive `number`, whose entries are not written yet.
    #[inline]
    pub(super) fn hold(&mut self, number: u64, count: u8) {
        self.wants_entries = false;
        self.number = number;
        self.state = State::Held;
        self.count = count;
        self.mask = Mask::EMPTY;
        self.seen = Mask::EMPTY;
        self.carriers = 0;
        self.lost_carriers = 0;
        self.sum = 0;
        self.units = UNTOLD;
        // An immediate has room for one size only.
        self.needs_record = count > 1;
    }

    /// How far the present receive is, if its owner wants it back.
    pub(super) fn withdrawal(&self) -> Option<Withdrawal> {
        let (number, withdrawal) = self.withdrawal;
        (number == self.number).then_some(withdrawal)
    }

    /// Starts to wait for the message: the queue pair at this place has written the entries.
    #[inline]
    pub(super) fn wait(&mut self, entries_lane: u8) {
        self.entries_lane = entries_lane;
        self.state = State::Waiting;
    }

    /// Notes that a queue pair on this device was lost with completions that were not polled.
    pub(super) fn note_lost(&mut self, device_at: u8) {
        // A message that is done has all its devices in `carriers`.
        if self.state == State::Waiting {
            self.lost_carriers |= 1 << device_at;
        }
    }

    /// What was offered.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries[..usize::from(self.count)]
    }

    /// Returns whether all immediates have arrived.
    pub(super) fn is_complete(&self) -> bool {
        // Before the first immediate both are empty.
        !self.mask.is_empty() && self.seen == self.mask
    }

    /// Notes that the queue pair at `place` has written the entries again.
    pub(super) fn written_again(&mut self, place: usize, number: u64) {
        // A completion of an earlier receive of the slot, or of a queue pair that failed since,
        // must not free the slot while the newer write is in flight.
        if self.number == number && self.rewriting == Some(place as u8) {
            self.rewriting = None;
        }
    }
}

/// A value that is not a number of units, which has at most 23 bits.
pub(super) const UNTOLD: u32 = u32::MAX;
