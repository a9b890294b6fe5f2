//! Device keys, which cross to the thread once for many requests.

use polyrail_core::verbs::DeviceKeys;
use std::sync::Arc;

/// Sets of device keys that a handle keeps with the thread.
pub(super) const KEY_SETS: usize = 16;

/// The device keys of a request: a borrowed slice cannot cross threads.
pub(super) type KeySet = Arc<[DeviceKeys]>;

/// A handle's view of the key sets that the thread has.
///
/// Requests between the same buffers have the same keys, so few sets serve many requests, and a
/// request carries one byte for them. A new set takes the place of the oldest; the ring keeps order,
/// so requests that were pushed earlier have found theirs by then.
///
/// They are copies of its own: what counts those that share the thread's lies beside them, and changes.
#[derive(Debug, Default)]
pub(super) struct KeySets {
    sets: arrayvec::ArrayVec<Box<[DeviceKeys]>, KEY_SETS>,
    /// The place that a new set takes.
    next: usize,
}

impl KeySets {
    /// The place of a set that the thread has.
    pub(super) fn find(&self, keys: &[DeviceKeys]) -> Option<u8> {
        self.sets.iter().position(|set| **set == *keys).map(|place| place as u8)
    }

    /// The place and the set for the message that announces a new set to the thread. Call
    /// [`add`](Self::add) when the message is on its way.
    pub(super) fn announce(&self, keys: &[DeviceKeys]) -> (u8, KeySet) {
        (self.next as u8, KeySet::from(keys))
    }

    /// The thread will know this set by the next place.
    pub(super) fn add(&mut self, keys: &[DeviceKeys]) {
        let set = keys.into();
        match self.sets.get_mut(self.next) {
            Some(place) => *place = set,
            None => self.sets.push(set),
        }
        self.next = (self.next + 1) % KEY_SETS;
    }
}

/// The thread's view of them.
#[derive(Debug)]
pub(super) struct KnownKeys(Vec<KeySet>);

impl KnownKeys {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(KEY_SETS))
    }

    /// Returns those that had the place.
    pub(super) fn learn(&mut self, place: u8, keys: KeySet) -> Option<KeySet> {
        if let Some(known) = self.0.get_mut(usize::from(place)) {
            return Some(std::mem::replace(known, keys));
        }
        self.0.push(keys);
        None
    }

    /// Those that were announced for a place last.
    pub(super) fn get(&self, place: u8) -> &KeySet {
        &self.0[usize::from(place)]
    }
}
