//! How a handle's requests reach the thread.

use super::error::SubmitError;
use super::pending::{Outcome, Pending};
use super::replies::Replies;
use super::shared::lock;
use crate::sync::RingArc;
use polyrail_core::spsc::{Consumer, Producer, PushError, Ring};
use polyrail_core::verbs::DeviceKeys;
use std::sync::Arc;

/// From a handle to the thread.
#[derive(Debug)]
pub(super) enum HandleMessage<R> {
    /// Requests that follow refer to these keys by this place.
    Keys { place: u8, keys: KeySet },
    /// A request.
    Post(R),
}

/// Messages that a handle can have on their way.
const MESSAGES: usize = if cfg!(polyrail_loom) { 2 } else { 256 };

type MessageRing<R> = RingArc<Ring<HandleMessage<R>, MESSAGES>>;
type MessageProducer<R> = Producer<HandleMessage<R>, MESSAGES, MessageRing<R>>;
pub(super) type MessageConsumer<R> = Consumer<HandleMessage<R>, MESSAGES, MessageRing<R>>;

/// Sets of device keys that a handle keeps with the thread.
const KEY_SETS: usize = 16;

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
struct KeySets {
    sets: arrayvec::ArrayVec<Box<[DeviceKeys]>, KEY_SETS>,
    /// The place that a new set takes.
    next: usize,
}

impl KeySets {
    /// The place of a set that the thread has.
    fn find(&self, keys: &[DeviceKeys]) -> Option<u8> {
        self.sets.iter().position(|set| **set == *keys).map(|place| place as u8)
    }

    /// The place and the set for the message that announces a new set to the thread. Call
    /// [`add`](Self::add) when the message is on its way.
    fn announce(&self, keys: &[DeviceKeys]) -> (u8, KeySet) {
        (self.next as u8, KeySet::from(keys))
    }

    /// The thread will know this set by the next place.
    fn add(&mut self, keys: &[DeviceKeys]) {
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

/// The producer's end of a ring of requests, with the device keys that the thread knows.
#[derive(Debug)]
pub(super) struct Submitter<R> {
    /// `None` when it was closed.
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
    /// Hands over a request that is reported by `replies`, in the slot that it is made with.
    pub(super) fn submit<O: Outcome>(
        &mut self,
        replies: &Arc<Replies<O>>,
        name: O::Name,
        request: impl FnOnce(u16) -> R,
    ) -> Result<Pending<O>, SubmitError> {
        let slot = lock(&replies.inbox).reserve(name)?;
        if let Err(error) = self.push(HandleMessage::Post(request(slot))) {
            lock(&replies.inbox).release(slot);
            return Err(error);
        }
        Ok(Pending::new(Arc::clone(replies), slot))
    }

    /// Hands over requests in their order, all at once, as far as there is room for them, and adds to `pending`;
    /// `named` is the caller's name and the keys of a request, unless it cannot be handed over.
    pub(super) fn submit_many<'w, O: Outcome, W>(
        &mut self,
        replies: &Arc<Replies<O>>,
        mut works: &'w [W],
        named: impl Fn(&'w W) -> Result<(O::Name, &'w [DeviceKeys]), SubmitError>,
        request: impl Fn(u16, u8, &'w W) -> R,
        pending: &mut Vec<Pending<O>>,
    ) -> Result<(), SubmitError> {
        let Self { messages, keys } = self;
        let messages = messages.as_mut().ok_or(SubmitError::ThreadGone)?;
        let mut inbox = lock(&replies.inbox);
        let mut next = |work| {
            let (name, device_keys) = named(work)?;
            let Some(place) = keys.find(device_keys) else {
                let (place, set) = keys.announce(device_keys);
                // The ring takes what it asks for.
                keys.add(device_keys);
                return Ok(HandleMessage::Keys { place, keys: set });
            };
            let slot = inbox.reserve(name)?;
            pending.push(Pending::new(Arc::clone(replies), slot));
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

    /// The place of these keys with the thread; announces them to it if they are new.
    pub(super) fn place_of(&mut self, keys: &[DeviceKeys]) -> Result<u8, SubmitError> {
        if let Some(place) = self.keys.find(keys) {
            return Ok(place);
        }
        let (place, set) = self.keys.announce(keys);
        self.push(HandleMessage::Keys { place, keys: set })?;
        self.keys.add(keys);
        Ok(place)
    }

    /// Hands nothing over any more.
    pub(super) fn close(&mut self) {
        self.messages = None;
    }

    fn push(&mut self, message: HandleMessage<R>) -> Result<(), SubmitError> {
        let messages = self.messages.as_mut().ok_or(SubmitError::ThreadGone)?;
        messages.push(message).map_err(|refused| match refused {
            PushError::Full(_) => SubmitError::Full,
            PushError::Closed(_) => SubmitError::ThreadGone,
        })
    }
}
