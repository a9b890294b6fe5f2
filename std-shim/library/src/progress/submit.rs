//! How a handle's requests reach the thread.

use super::error::SubmitError;
use super::keys::KeySets;
use super::message::HandleMessage;
use super::outcome::Outcome;
use super::pending::Pending;
use super::replies::Replies;
use super::rings::{MessageConsumer, MessageProducer, MessageRing};
use super::shared::lock;
use polyrail_core::spsc::{PushError, Ring};
use polyrail_core::verbs::DeviceKeys;
use std::sync::Arc;

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
