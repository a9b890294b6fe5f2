//! The channel of repair messages between two endpoints.

use super::message::HealingMessage;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Messages = VecDeque<HealingMessage>;

/// Messages in one direction.
#[derive(Debug, Default)]
struct Mailbox {
    /// Read by every poll, so it must not cost a lock.
    has_mail: AtomicBool,
    messages: Mutex<Messages>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Messages> {
        // Between two calls of its methods a queue of plain data is whole, whoever panicked.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: HealingMessage, most: usize) -> bool {
        self.add(&mut self.lock(), message, most)
    }

    /// Whether there was room, or it waits there already and need not be said twice.
    fn add(&self, messages: &mut Messages, message: HealingMessage, most: usize) -> bool {
        let is_wish = matches!(message, HealingMessage::Wanted { .. });
        if is_wish && messages.contains(&message) {
            return true;
        }
        if messages.len() >= most {
            return false;
        }
        messages.push_back(message);
        self.has_mail.store(true, Ordering::Release);
        true
    }

    fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    fn pop(&self) -> Option<HealingMessage> {
        self.has_mail().then(|| self.take(&mut self.lock()))?
    }

    fn take(&self, messages: &mut Messages) -> Option<HealingMessage> {
        let message = messages.pop_front();
        self.has_mail.store(!messages.is_empty(), Ordering::Release);
        message
    }

    fn clear(&self) {
        self.empty(&mut self.lock());
    }

    fn empty(&self, messages: &mut Messages) {
        messages.clear();
        self.has_mail.store(false, Ordering::Release);
    }
}

/// Most messages that an endpoint leaves for its owner to carry. What there is to tell besides stays
/// where it is, and may be replaced by something newer before it is told.
const MOST_UNCARRIED: usize = 16;

/// Most messages that wait for its owner when it hears the peer's, of which each may have to be answered: more
/// than all that two correct ends ever have to tell each other at once.
const MOST_UNANSWERED: usize = 64;

/// Most messages of the peer's that wait for a poll. A correct peer has a few of each rail.
const MOST_UNHEARD: usize = 256;

/// The endpoint was not polled for long, or the peer sends too many messages; the message was not
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MOST_UNHEARD} messages already wait for the endpoint: poll it, then try again")]
pub struct NotHeard(pub HealingMessage);

/// The repair messages of an endpoint that [repairs its rails](crate::endpoint::Healing) automatically. The
/// owner carries them to the peer and back, over any channel that keeps their order. Clones are
/// handles of the same endpoint, and any thread may use them.
///
/// Nothing has to be carried between endpoints of one process that
/// [`connect_endpoints`](crate::endpoint::connect_endpoints) connected.
///
/// ```
/// use polyrail::endpoint::{Endpoint, EndpointBuilder};
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::verbs::WcStatus;
/// use polyrail::virtual_qp::{QpState, RailFailure, RailId};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::threaded();
/// # let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
/// # let here = device("here")?;
/// # let there = device("there")?;
/// let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
/// let mut near = builder.build(&[&here])?;
/// let mut far = builder.build(&[&there])?;
/// let (near_address, far_address) = (near.address(), far.address());
/// near.connect(&far_address)?;
/// far.connect(&near_address)?;
///
/// let near_link = near.healing_link().expect("its rails are re-routed");
/// let far_link = far.healing_link().expect("its rails are re-routed");
/// near.fail_rail(RailId::Data(2));
/// assert_eq!(near.state(), QpState::Degraded);
/// while near.state() != QpState::Ready || far.state() != QpState::Ready {
///     for end in [&mut near, &mut far] {
///         let batch = end.poll(16);
///         if let Some(error) = batch.error {
///             return Err(end.queue_error(error).into());
///         }
///         if end.state() == QpState::Error {
///             return Err(end.explain(WcStatus::WR_FLUSH_ERR).into());
///         }
///         assert!(batch.completions.is_empty(), "nothing was posted");
///     }
///     // Between two hosts, as text over a connection.
///     while let Some(message) = near_link.next_message() {
///         far_link.hear(message)?;
///     }
///     while let Some(message) = far_link.next_message() {
///         near_link.hear(message)?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HealingLink(Arc<Ways>);

#[derive(Debug)]
struct Ways {
    to_peer: Arc<Mailbox>,
    from_peer: Arc<Mailbox>,
    /// The owner has said that messages were lost.
    broke: AtomicBool,
}

impl HealingLink {
    pub(in crate::endpoint) fn new() -> Self {
        let [to_peer, from_peer] = [(); 2].map(|()| Arc::default());
        Self(Arc::new(Ways { to_peer, from_peer, broke: AtomicBool::new(false) }))
    }

    /// Two links of which each hears what the other one says.
    pub(in crate::endpoint) fn pair() -> (Self, Self) {
        let one = Self::new();
        let Ways { to_peer, from_peer, .. } = &*one.0;
        let other = Ways {
            to_peer: Arc::clone(from_peer),
            from_peer: Arc::clone(to_peer),
            broke: AtomicBool::new(false),
        };
        (one, Self(Arc::new(other)))
    }

    /// Returns the next message for the peer, if there is one.
    pub fn next_message(&self) -> Option<HealingMessage> {
        self.0.to_peer.pop()
    }

    /// Takes a message of the peer, which one of the next polls handles.
    ///
    /// # Errors
    ///
    /// Too many messages are not handled yet. This one was not taken: try again after a poll.
    pub fn hear(&self, message: HealingMessage) -> Result<(), NotHeard> {
        let taken = self.0.from_peer.push(message, MOST_UNHEARD);
        taken.then_some(()).ok_or(NotHeard(message))
    }

    /// Call this when the channel of the messages was replaced: all state that may have been lost
    /// is sent again. The owners of **both** ends call it, each before it carries anything over the
    /// new channel.
    pub fn restored(&self) {
        let Ways { to_peer, from_peer, broke } = &*self.0;
        from_peer.clear();
        // With the lock held: what the endpoint says is lost here, or it is refused until it knows.
        let mut messages = to_peer.lock();
        broke.store(true, Ordering::Release);
        to_peer.empty(&mut messages);
    }
}

/// The endpoint's methods.
impl HealingLink {
    /// The next message of the peer's; none that came by a new way before the endpoint knows of it.
    pub(super) fn heard(&self) -> Option<HealingMessage> {
        let Ways { from_peer, .. } = &*self.0;
        if !from_peer.has_mail() {
            return None;
        }
        let mut messages = from_peer.lock();
        if self.is_broken() {
            return None;
        }
        from_peer.take(&mut messages)
    }

    /// Whether there is something that the endpoint does not know yet.
    pub(super) fn has_news(&self) -> bool {
        self.0.from_peer.has_mail() || self.is_broken()
    }

    fn is_broken(&self) -> bool {
        self.0.broke.load(Ordering::Acquire)
    }

    /// Tells the peer. What an endpoint says besides what its engine tells is bounded by what it heard. It is
    /// lost if messages were, and the endpoint does not know that yet.
    pub(super) fn say(&self, message: HealingMessage) {
        let Ways { to_peer, .. } = &*self.0;
        let mut messages = to_peer.lock();
        if !self.is_broken() {
            to_peer.add(&mut messages, message, usize::MAX);
        }
    }

    /// Whether there is room for one message more.
    pub(super) fn has_room(&self) -> bool {
        self.0.to_peer.lock().len() < MOST_UNCARRIED
    }

    /// Whether there is room for an answer to one message more.
    pub(super) fn has_room_to_answer(&self) -> bool {
        self.0.to_peer.lock().len() < MOST_UNANSWERED
    }

    /// Whether messages were lost since the last call.
    pub(super) fn take_broke(&self) -> bool {
        self.0.broke.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::virtual_qp::RailId;

    const MESSAGE: HealingMessage = HealingMessage::Refused { rail: RailId::Notify, generation: 1 };

    /// The endpoint may be in the middle of a poll when its owner says that the link is another one.
    #[test]
    fn nothing_goes_over_a_new_link_before_the_endpoint_knows_of_it() {
        let link = HealingLink::new();
        link.say(MESSAGE);
        link.hear(MESSAGE).unwrap();
        link.restored();
        link.say(MESSAGE);
        assert_eq!(link.next_message(), None);
        // The peer knows already.
        link.hear(MESSAGE).unwrap();
        assert_eq!(link.heard(), None);
        assert!(link.has_news() && link.take_broke());
        assert_eq!(link.heard(), Some(MESSAGE));
        link.say(MESSAGE);
        assert_eq!(link.next_message(), Some(MESSAGE));
    }
}
