//! How requests of a handle, and the device keys that they use, reach the thread.

use super::outcome::{Outcome, SubmitError};
use super::pending::Pending;
use super::replies::Slots;
use crate::sync::RingArc;
use polyrail_core::spsc::{Consumer, Producer, PushError, Ring};
use polyrail_core::verbs::DeviceKeys;
use std::sync::Arc;

/// A message from a handle to the thread.
#[derive(Debug)]
pub(super) enum HandleMessage<R> {
    /// Stores a key set in a place. Later requests refer to the set by its place.
    Keys { place: u8, keys: KeySet },
    /// A request.
    Post(R),
    /// Take the request in this slot back.
    Cancel(u16),
}

/// Capacity of the ring from a handle to the thread.
const MESSAGES: usize = if cfg!(polyrail_loom) { 2 } else { 256 };

type MessageRing<R> = RingArc<Ring<HandleMessage<R>, MESSAGES>>;
type MessageProducer<R> = Producer<HandleMessage<R>, MESSAGES, MessageRing<R>>;
pub(super) type MessageConsumer<R> = Consumer<HandleMessage<R>, MESSAGES, MessageRing<R>>;

/// Sets of device keys that the thread stores for a handle.
const KEY_SETS: usize = 16;

/// The device keys of a request. They are copied, since a borrowed slice cannot cross threads.
pub(super) type KeySet = Arc<[DeviceKeys]>;

/// A handle's view of the key sets that the thread has.
///
/// Requests between the same buffers have the same keys, so few sets serve many requests, and a
/// request carries one byte for them. A new set takes the place of the oldest. The ring keeps the
/// order, so the thread has taken all earlier requests by then.
///
/// The handle has copies: if it shared the sets with the thread, every change of their reference
/// counts would take their cache lines away from the handle.
#[derive(Debug, Default)]
struct KeySets {
    sets: arrayvec::ArrayVec<Box<[DeviceKeys]>, KEY_SETS>,
    /// The place for the next new set.
    next: usize,
}

impl KeySets {
    /// Returns the place of a set that the thread has.
    fn find(&self, keys: &[DeviceKeys]) -> Option<u8> {
        self.sets.iter().position(|set| **set == *keys).map(|place| place as u8)
    }

    /// Returns the place and the set for the message that announces a new set to the thread. The
    /// caller calls [`add`](Self::add) once the message is in the ring.
    fn announce(&self, keys: &[DeviceKeys]) -> (u8, KeySet) {
        (self.next as u8, KeySet::from(keys))
    }

    /// Records that the thread gets this set in the next place.
    fn add(&mut self, keys: &[DeviceKeys]) {
        let set = keys.into();
        match self.sets.get_mut(self.next) {
            Some(place) => *place = set,
            None => self.sets.push(set),
        }
        self.next = (self.next + 1) % KEY_SETS;
    }
}

/// The key sets of one handle that the thread has.
#[derive(Debug)]
pub(super) struct KnownKeys(Vec<KeySet>);

impl KnownKeys {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(KEY_SETS))
    }

    /// Stores a set, and returns the set that had the place before.
    pub(super) fn learn(&mut self, place: u8, keys: KeySet) -> Option<KeySet> {
        if let Some(known) = self.0.get_mut(usize::from(place)) {
            return Some(std::mem::replace(known, keys));
        }
        self.0.push(keys);
        None
    }

    /// Returns the set in a place.
    pub(super) fn get(&self, place: u8) -> &KeySet {
        &self.0[usize::from(place)]
    }
}

/// The producer's end of a ring of requests, with the device keys that the thread knows.
#[derive(Debug)]
pub(super) struct Submitter<R> {
    /// `None` once it is closed.
    messages: Option<MessageProducer<R>>,
    keys: KeySets,
}

/// Makes both ends of a ring.
pub(super) fn submitter<R>() -> (Submitter<R>, MessageConsumer<R>) {
    let ring = MessageRing::default();
    let Ok((messages, consumer)) = Ring::split_shared(ring) else { unreachable!("a new ring") };
    (Submitter { messages: Some(messages), keys: KeySets::default() }, consumer)
}

impl<R> Submitter<R> {
    /// Hands over a request. `request` makes it for the slot in which it will be reported.
    pub(super) fn submit<O: Outcome>(
        &mut self,
        slots: &mut Slots<O>,
        name: O::Name,
        request: impl FnOnce(u16) -> R,
    ) -> Result<Pending<O>, SubmitError> {
        let slot = slots.reserve()?;
        if let Err(error) = self.push(HandleMessage::Post(request(slot))) {
            slots.release(slot);
            return Err(error);
        }
        Ok(Pending::new(Arc::clone(&slots.replies), slot, name))
    }

    /// Hands over requests in order, all at once, as far as there is room, and adds a [`Pending`]
    /// for each. `named` returns the caller's name and the keys of a request, or why it cannot be
    /// handed over.
    pub(super) fn submit_many<'w, O: Outcome, W>(
        &mut self,
        slots: &mut Slots<O>,
        mut works: &'w [W],
        named: impl Fn(&'w W) -> Result<(O::Name, &'w [DeviceKeys]), SubmitError>,
        request: impl Fn(u16, u8, &'w W) -> R,
        pending: &mut Vec<Pending<O>>,
    ) -> Result<(), SubmitError> {
        let Self { messages, keys } = self;
        let messages = messages.as_mut().ok_or(SubmitError::ThreadGone)?;
        let mut next = |work| {
            let (name, device_keys) = named(work)?;
            let Some(place) = keys.find(device_keys) else {
                let (place, set) = keys.announce(device_keys);
                // The ring asks only for messages that it has room for.
                keys.add(device_keys);
                return Ok(HandleMessage::Keys { place, keys: set });
            };
            let slot = slots.reserve()?;
            pending.push(Pending::new(Arc::clone(&slots.replies), slot, name));
            Ok(HandleMessage::Post(request(slot, place, work)))
        };
        let mut refusal = None;
        messages.push_batch(&mut std::iter::from_fn(|| {
            let (work, later) = works.split_first()?;
            let message = next(work).map_err(|error| refusal = Some(error)).ok()?;
            if matches!(message, HandleMessage::Post(_)) {
                works = later;
            }
            Some(message)
        }));
        match refusal {
            Some(error) => Err(error),
            None if works.is_empty() => Ok(()),
            None if messages.is_closed() => Err(SubmitError::ThreadGone),
            None => Err(SubmitError::Full),
        }
    }

    /// Whether the thread has these keys.
    pub(super) fn knows(&self, keys: &[DeviceKeys]) -> bool {
        self.keys.find(keys).is_some()
    }

    /// Returns the place of these keys; announces them to the thread if they are new.
    pub(super) fn place_of(&mut self, keys: &[DeviceKeys]) -> Result<u8, SubmitError> {
        if let Some(place) = self.keys.find(keys) {
            return Ok(place);
        }
        let (place, set) = self.keys.announce(keys);
        self.push(HandleMessage::Keys { place, keys: set })?;
        self.keys.add(keys);
        Ok(place)
    }

    /// Closes the ring; the thread still takes what is in it.
    pub(super) fn close(&mut self) {
        self.messages = None;
    }

    /// Hands over that the request in this slot is to be taken back.
    pub(super) fn cancel(&mut self, slot: u16) -> Result<(), SubmitError> {
        self.push(HandleMessage::Cancel(slot))
    }

    fn push(&mut self, message: HandleMessage<R>) -> Result<(), SubmitError> {
        let messages = self.messages.as_mut().ok_or(SubmitError::ThreadGone)?;
        messages.push(message).map_err(|refused| match refused {
            PushError::Full(_) => SubmitError::Full,
            PushError::Closed(_) => SubmitError::ThreadGone,
        })
    }
}
