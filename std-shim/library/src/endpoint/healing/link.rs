//! The way between two endpoints that heal.

use super::message::HealingMessage;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Messages in one direction.
#[derive(Debug, Default)]
struct Mailbox {
    /// Read by every poll, so it must not cost a lock.
    has_mail: AtomicBool,
    messages: Mutex<VecDeque<HealingMessage>>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<HealingMessage>> {
        // Between two calls of its methods a queue of plain data is whole, whoever panicked.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was room.
    fn push(&self, message: HealingMessage, most: usize) -> bool {
        let mut messages = self.lock();
        if messages.len() >= most {
            return false;
        }
        messages.push_back(message);
        self.has_mail.store(true, Ordering::Release);
        true
    }

    fn pop(&self) -> Option<HealingMessage> {
        if !self.has_mail.load(Ordering::Acquire) {
            return None;
        }
        let mut messages = self.lock();
        let message = messages.pop_front();
        self.has_mail.store(!messages.is_empty(), Ordering::Release);
        message
    }

    fn clear(&self) {
        let mut messages = self.lock();
        messages.clear();
        self.has_mail.store(false, Ordering::Release);
    }
}

/// Most messages that an endpoint leaves for its owner to carry. What there is to tell besides stays
/// where it is, and may be replaced by something newer before it is told.
const MOST_UNCARRIED: usize = 16;

/// Most messages of the peer's that wait for a poll. A correct peer has a few of each rail.
const MOST_UNHEARD: usize = 256;

/// An endpoint was not polled for long, or its peer sends without end: the message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MOST_UNHEARD} messages wait for the endpoint to be polled")]
pub struct NotHeard(pub HealingMessage);

/// The messages of one endpoint that [heals by itself](super::Healing), for its owner to carry to the peer's
/// and back, over any channel that keeps their order. A handle: clones mean the same endpoint, and any
/// thread may use them, wherever the endpoint is.
///
/// Of endpoints of one process that [`connect_endpoints`](crate::endpoint::connect_endpoints) has connected,
/// nothing is to be carried.
///
/// ```
/// use polyrail::endpoint::{Endpoint, EndpointBuilder};
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::virtual_qp::{QpState, RailFailure, RailId};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::threaded();
/// # let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
/// # let here = device("here")?;
/// # let there = device("there")?;
/// let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
/// let mut near: Endpoint = builder.build(&[&here])?;
/// let mut far: Endpoint = builder.build(&[&there])?;
/// let (near_address, far_address) = (near.address(), far.address());
/// near.connect(&far_address)?;
/// far.connect(&near_address)?;
///
/// let near_link = near.healing_link().expect("its rails are re-routed");
/// let far_link = far.healing_link().expect("its rails are re-routed");
/// near.fail_rail(RailId::Data(2));
/// assert_eq!(near.state(), QpState::Degraded);
/// while near.state() != QpState::Ready || far.state() != QpState::Ready {
///     _ = near.poll(16);
///     _ = far.poll(16);
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

    /// The next message for the peer, if there is one.
    pub fn next_message(&self) -> Option<HealingMessage> {
        self.0.to_peer.pop()
    }

    /// Takes a message of the peer's. One of the next polls heeds it.
    ///
    /// # Errors
    ///
    /// Too many are not heeded yet. This one was not taken: try again after a poll.
    pub fn hear(&self, message: HealingMessage) -> Result<(), NotHeard> {
        let taken = self.0.from_peer.push(message, MOST_UNHEARD);
        taken.then_some(()).ok_or(NotHeard(message))
    }

    /// What carried the messages broke, and both ends have a new way: everything that may have been lost is
    /// told again. The owners of **both** ends call it, each before it carries anything over the new way.
    pub fn restored(&self) {
        self.0.to_peer.clear();
        self.0.from_peer.clear();
        self.0.broke.store(true, Ordering::Release);
    }
}

/// The endpoint's methods.
impl HealingLink {
    /// The next message of the peer's.
    pub(super) fn heard(&self) -> Option<HealingMessage> {
        self.0.from_peer.pop()
    }

    /// Whether there is something that the endpoint does not know yet.
    pub(super) fn has_news(&self) -> bool {
        self.0.from_peer.has_mail.load(Ordering::Acquire) || self.0.broke.load(Ordering::Acquire)
    }

    /// Tells the peer. What an endpoint says besides what its engine tells is bounded by what it heard.
    pub(super) fn say(&self, message: HealingMessage) {
        self.0.to_peer.push(message, usize::MAX);
    }

    /// Whether there is room for one message more.
    pub(super) fn has_room(&self) -> bool {
        self.0.to_peer.lock().len() < MOST_UNCARRIED
    }

    /// Whether messages were lost since the last call.
    pub(super) fn take_broke(&self) -> bool {
        self.0.broke.swap(false, Ordering::AcqRel)
    }
}
