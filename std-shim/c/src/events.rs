//! Events of peers that the program has not taken yet.

use crate::arguments::out_list;
use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::sized::place;
use crate::types::{Event, EventKind, POLYRAIL_MESSAGE_BYTES, POLYRAIL_RAIL_NOTIFY};
use polyrail::printable;
use polyrail::virtual_qp::{RailEvent, RailEventKind, RailId};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;

/// The link and the rails of a peer are not read while this many events of the peer wait. The limit
/// is per peer, so that a peer that sends without end cannot keep other peers from being read.
const MOST_PER_PEER: usize = 64;

/// One thing that happened.
#[derive(Debug)]
pub(crate) struct PeerEvent {
    pub(crate) kind: EventKind,
    pub(crate) rail: u32,
    pub(crate) code: Code,
    pub(crate) bytes: Vec<u8>,
}

impl PeerEvent {
    /// An event with bytes of the peer's program, which the link limits to POLYRAIL_MESSAGE_BYTES.
    pub(crate) fn new(kind: EventKind, bytes: impl Into<Vec<u8>>) -> Self {
        Self { kind, rail: 0, code: Code::Ok, bytes: bytes.into() }
    }

    /// An event with text, which is cut to POLYRAIL_MESSAGE_BYTES: a longer event would stay in the
    /// queue of a program with that much room, before all later events.
    fn with_words(kind: EventKind, words: &str) -> Self {
        Self::new(kind, printable::cut(words, POLYRAIL_MESSAGE_BYTES))
    }

    /// An event with a code and text.
    pub(crate) fn failed(kind: EventKind, code: Code, words: String) -> Self {
        Self { code, ..Self::with_words(kind, &words) }
    }

    /// What happened to a rail.
    pub(crate) fn of_rail(event: &RailEvent, words: String) -> Self {
        let (kind, code) = match event.kind {
            RailEventKind::Failed { .. } => (EventKind::RailFailed, Code::Device),
            RailEventKind::Fenced { .. } => (EventKind::RailFenced, Code::Ok),
            RailEventKind::Returned => (EventKind::RailReturned, Code::Ok),
        };
        Self { rail: rail_number(event.rail), ..Self::failed(kind, code, words) }
    }
}

/// Returns the number of a rail in C.
fn rail_number(rail: RailId) -> u32 {
    match rail {
        RailId::Data(number) => number.into(),
        RailId::Notify => POLYRAIL_RAIL_NOTIFY,
    }
}

/// What happened to the peers of an object, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: VecDeque<(u64, PeerEvent)>,
    /// Events of each peer that has any.
    counts: HashMap<u64, usize>,
}

impl EventQueue {
    pub(crate) fn push(&mut self, peer: u64, item: PeerEvent) {
        self.events.push_back((peer, item));
        *self.counts.entry(peer).or_default() += 1;
    }

    /// Returns whether there is room for more events of this peer, which otherwise wait in its link
    /// and rails.
    pub(crate) fn has_room(&self, peer: u64) -> bool {
        self.counts.get(&peer).is_none_or(|count| *count < MOST_PER_PEER)
    }

    /// Drops the events of a peer that was removed.
    pub(crate) fn forget(&mut self, peer: u64) {
        if self.counts.remove(&peer).is_some() {
            self.events.retain(|(whose, _)| *whose != peer);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn pop(&mut self) {
        let Some((peer, _)) = self.events.pop_front() else { return };
        if let Entry::Occupied(mut count) = self.counts.entry(peer) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Hands out the oldest event.
    ///
    /// # Safety
    ///
    /// As for all arguments, the pointers are valid for their types.
    pub(crate) unsafe fn next(
        &mut self,
        event: *mut Event,
        bytes: *mut c_void,
        capacity: usize,
    ) -> Result<(), Refusal> {
        // SAFETY: guaranteed by the caller.
        let event = unsafe { place(event) }?;
        // SAFETY: guaranteed by the caller.
        let room = unsafe { out_list(bytes.cast::<u8>(), capacity, "bytes") }?;
        let Some((peer, item)) = self.events.front() else { return Err(Refusal::NotNow) };
        let length = item.bytes.len();
        event.put(&Event {
            size: 0,
            kind: item.kind as u32,
            peer: *peer,
            length: length as u64,
            rail: item.rail,
            code: item.code as i32,
        });
        let Some(room) = room.get_mut(..length) else {
            let words =
                format!("the event has {length} bytes, but there is room for only {capacity}");
            return refuse(Code::TooShort, words);
        };
        for (room, byte) in room.iter_mut().zip(&item.bytes) {
            room.write(*byte);
        }
        self.pop();
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
