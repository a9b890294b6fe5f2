//! The channel of repair messages between two endpoints.

use super::message::{HealingMessage, RailName};
use polyrail_process::Process;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

type Messages<R> = VecDeque<HealingMessage<R>>;

/// Messages in one direction.
#[derive(Debug)]
struct Mailbox<R: RailName> {
    /// Read by every poll, so it must not cost a lock.
    has_mail: AtomicBool,
    messages: Mutex<Messages<R>>,
    /// Wakes the thread that polls the endpoint which the messages are for, if it may sleep.
    waker: Mutex<Option<Waker>>,
}

impl<R: RailName> Mailbox<R> {
    fn new() -> Arc<Self> {
        let messages = Mutex::new(VecDeque::new());
        Arc::new(Self { has_mail: AtomicBool::new(false), messages, waker: Mutex::new(None) })
    }

    fn lock(&self) -> MutexGuard<'_, Messages<R>> {
        // A panic between two calls of its methods leaves a queue of plain data consistent.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: HealingMessage<R>, most: usize) -> bool {
        let has_room = self.add(&mut self.lock(), message, most);
        self.wake();
        has_room
    }

    fn wake(&self) {
        // A panic cannot happen while the lock is held.
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        waker.iter().for_each(Waker::wake_by_ref);
    }

    /// Adds a message; returns whether there was room, or the message already waits: a wish need
    /// not be sent twice.
    fn add(&self, messages: &mut Messages<R>, message: HealingMessage<R>, most: usize) -> bool {
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

    fn take(&self, messages: &mut Messages<R>) -> Option<HealingMessage<R>> {
        let message = messages.pop_front();
        self.has_mail.store(!messages.is_empty(), Ordering::Release);
        message
    }

    fn clear(&self) {
        self.empty(&mut self.lock());
    }

    fn empty(&self, messages: &mut Messages<R>) {
        messages.clear();
        self.has_mail.store(false, Ordering::Release);
    }
}

/// Maximum messages of the engine that wait for the owner. Newer messages stay in the engine, where
/// a message that reports a newer state replaces an older one.
const MOST_UNCARRIED: usize = 16;

/// Maximum messages that wait for the owner while messages of the peer are handled, each of which
/// may need an answer: more than two correct ends ever send at once.
const MOST_UNANSWERED: usize = 64;

/// Takes the oldest message of the first direction, if `may` allows it. If the end that sends in
/// this direction has room for an answer again, wakes its thread, which may sleep until then: its
/// waker is with the other direction, whose messages are for it.
fn take<R: RailName>(
    (from, back): (&Mailbox<R>, &Mailbox<R>),
    may: impl FnOnce() -> bool,
) -> Option<HealingMessage<R>> {
    if !from.has_mail() {
        return None;
    }
    let mut messages = from.lock();
    let message = may().then(|| from.take(&mut messages))?;
    let has_room_again = messages.len() + 1 == MOST_UNANSWERED;
    drop(messages);
    if has_room_again {
        back.wake();
    }
    message
}

/// Maximum messages of the peer that wait for a poll. A correct peer sends a few for each rail.
const MOST_UNHANDLED: usize = 256;

/// The endpoint was not polled for long, or the peer sends too many messages; the message was not
/// taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MOST_UNHANDLED} messages already wait for the endpoint: poll it, then try again")]
pub struct NotHandled<R: RailName>(pub HealingMessage<R>);

/// The repair messages of an endpoint that [repairs its rails](super::Healing) automatically. The
/// owner carries them to the peer and back, over any channel that keeps their order. Clones are
/// handles of the same endpoint, and any thread may use them.
///
/// Nothing has to be carried between endpoints of one process that
/// [`endpoint::connect_endpoints`](crate::endpoint::connect_endpoints) or
/// [`p2p::connect_endpoints`](crate::p2p::connect_endpoints) connected.
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
///         if let Some(failure) = end.failure() {
///             return Err(failure.into());
///         }
///         assert!(batch.completions.is_empty(), "nothing was posted");
///     }
///     // Between two hosts, as text over a connection.
///     while let Some(message) = near_link.next_message() {
///         far_link.handle(message)?;
///     }
///     while let Some(message) = far_link.next_message() {
///         near_link.handle(message)?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HealingLink<R: RailName>(Arc<Directions<R>>);

impl<R: RailName> Clone for HealingLink<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Directions<R: RailName> {
    to_peer: Arc<Mailbox<R>>,
    from_peer: Arc<Mailbox<R>>,
    /// The owner has reported that messages were lost.
    broke: AtomicBool,
    /// A fork must not wait for locks, which another thread may have held.
    process: Process,
}

impl<R: RailName> HealingLink<R> {
    pub(crate) fn new() -> Self {
        let [to_peer, from_peer] = [(); 2].map(|()| Mailbox::new());
        let (broke, process) = (AtomicBool::new(false), Process::current());
        Self(Arc::new(Directions { to_peer, from_peer, broke, process }))
    }

    /// Returns two links, each of which receives what is sent on the other.
    pub(crate) fn pair() -> (Self, Self) {
        let one = Self::new();
        let Directions { to_peer, from_peer, .. } = &*one.0;
        let other = Directions {
            to_peer: Arc::clone(from_peer),
            from_peer: Arc::clone(to_peer),
            broke: AtomicBool::new(false),
            process: one.0.process,
        };
        (one, Self(Arc::new(other)))
    }

    /// Returns the next message for the peer, if there is one; `None` in a fork of the process.
    ///
    /// There is no notification: call it every few milliseconds, and until it returns `None`.
    /// Repairs wait for it.
    pub fn next_message(&self) -> Option<HealingMessage<R>> {
        let Directions { to_peer, from_peer, process, .. } = &*self.0;
        process.is_current().then(|| take((to_peer, from_peer), || true))?
    }

    /// Takes a message of the peer, which one of the next polls handles.
    ///
    /// # Errors
    ///
    /// Too many messages are not handled yet. This one was not taken: try again after a poll. A
    /// fork of the process gets this error, too.
    pub fn handle(&self, message: HealingMessage<R>) -> Result<(), NotHandled<R>> {
        let taken = self.0.process.is_current() && self.0.from_peer.push(message, MOST_UNHANDLED);
        taken.then_some(()).ok_or(NotHandled(message))
    }

    /// Call this when the channel of the messages was replaced: all state that may have been lost
    /// is sent again. The owners of **both** ends call it, each before it carries anything over the
    /// new channel. Does nothing in a fork of the process.
    pub fn restored(&self) {
        let Directions { to_peer, from_peer, broke, process } = &*self.0;
        if !process.is_current() {
            return;
        }
        from_peer.clear();
        // With the lock held: what the endpoint sent before is removed here, and what it sends
        // until it has noticed is dropped.
        let mut messages = to_peer.lock();
        broke.store(true, Ordering::Release);
        to_peer.empty(&mut messages);
        drop(messages);
        from_peer.wake();
    }
}

/// The endpoint's methods.
impl<R: RailName> HealingLink<R> {
    /// Returns the next message of the peer; `None` before the endpoint has noticed that the
    /// channel is a new one, and in a fork of the process.
    pub(super) fn received(&self) -> Option<HealingMessage<R>> {
        let Directions { to_peer, from_peer, process, .. } = &*self.0;
        process.is_current().then(|| take((from_peer, to_peer), || !self.is_broken()))?
    }

    /// Whether a message waits for the endpoint, or it has not noticed yet that messages were lost.
    pub(crate) fn has_news(&self) -> bool {
        self.0.from_peer.has_mail() || self.is_broken()
    }

    /// Whether a repair step has news to handle: a message that has no [room for an
    /// answer](Self::has_room_to_answer) waits until there is room.
    pub(crate) fn can_handle(&self) -> bool {
        self.is_broken() || (self.0.from_peer.has_mail() && self.has_room_to_answer())
    }

    fn is_broken(&self) -> bool {
        self.0.broke.load(Ordering::Acquire)
    }

    /// Sends a message to the peer, whether or not there is [room](Self::has_room): apart from
    /// control messages, an endpoint sends a limited number for each message that it handled. The
    /// message is dropped if messages were lost and the endpoint has not noticed yet, and in a fork
    /// of the process.
    pub(super) fn send(&self, message: HealingMessage<R>) {
        let Directions { to_peer, process, .. } = &*self.0;
        if !process.is_current() {
            return;
        }
        let mut messages = to_peer.lock();
        if !self.is_broken() {
            to_peer.add(&mut messages, message, usize::MAX);
        }
        drop(messages);
        to_peer.wake();
    }

    /// Sets what wakes the thread that polls the endpoint: without it, the thread would find a
    /// message of the peer only at the end of its sleep. Does nothing in a fork of the process.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        if !self.0.process.is_current() {
            return;
        }
        let mut own = self.0.from_peer.waker.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Some(waker.clone());
    }

    /// Whether there is room for one message more; never in a fork of the process.
    pub(super) fn has_room(&self) -> bool {
        self.has_fewer_than(MOST_UNCARRIED)
    }

    /// Whether there is room for an answer to one message more; never in a fork of the process.
    pub(super) fn has_room_to_answer(&self) -> bool {
        self.has_fewer_than(MOST_UNANSWERED)
    }

    fn has_fewer_than(&self, most: usize) -> bool {
        self.0.process.is_current() && self.0.to_peer.lock().len() < most
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
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    const MESSAGE: HealingMessage<RailId> =
        HealingMessage::Refused { rail: RailId::Notify, generation: 1 };

    /// Counts how often it wakes.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The owner carries messages for the peer, or the peer in the same process takes them.
    #[test]
    fn an_end_without_room_to_answer_is_woken_when_there_is_room() {
        let (near, far) = HealingLink::pair();
        type Take = fn(&HealingLink<RailId>) -> Option<HealingMessage<RailId>>;
        for (taker, take) in
            [(&near, HealingLink::next_message as Take), (&far, HealingLink::received)]
        {
            let wakes = Arc::new(Wakes::default());
            near.set_waker(&Waker::from(Arc::clone(&wakes)));
            near.handle(MESSAGE).unwrap();
            assert!(near.can_handle());
            for _ in 0..=MOST_UNANSWERED {
                near.send(MESSAGE);
            }
            assert!(near.has_news() && !near.can_handle());
            let count = || wakes.0.load(Ordering::Relaxed);
            let before = count();
            assert_eq!(take(taker), Some(MESSAGE));
            assert_eq!((near.can_handle(), count()), (false, before));
            assert_eq!(take(taker), Some(MESSAGE));
            assert_eq!((near.can_handle(), count()), (true, before + 1));
            while take(taker).is_some() {}
            assert_eq!(count(), before + 1);
            assert_eq!(near.received(), Some(MESSAGE));
        }
    }

    #[test]
    fn an_end_without_room_to_answer_learns_of_a_break() {
        let link = HealingLink::new();
        (0..MOST_UNANSWERED).for_each(|_| link.send(MESSAGE));
        link.handle(MESSAGE).unwrap();
        assert!(!link.can_handle());
        link.restored();
        assert!(link.can_handle());
    }

    /// The endpoint may be in the middle of a poll when its owner reports that the channel was
    /// replaced.
    #[test]
    fn nothing_goes_over_a_new_link_before_the_endpoint_knows_of_it() {
        let link = HealingLink::new();
        link.send(MESSAGE);
        link.handle(MESSAGE).unwrap();
        link.restored();
        link.send(MESSAGE);
        assert_eq!(link.next_message(), None);
        // The peer has noticed already.
        link.handle(MESSAGE).unwrap();
        assert_eq!(link.received(), None);
        assert!(link.has_news() && link.take_broke());
        assert_eq!(link.received(), Some(MESSAGE));
        link.send(MESSAGE);
        assert_eq!(link.next_message(), Some(MESSAGE));
    }
}
