//! The interface between the progress loop and the set that it drives.

use super::shared::Mailbox;
use crate::endpoint::WaitError;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

/// Completions of a whole set that one poll takes before handles have their turn.
pub(super) const POLL_BUDGET: usize = 64;

/// Messages that the thread takes from one ring before the next handle has its turn.
pub(super) const TURN: usize = 32;

/// The time that devices have to return buffers once their owner has given up.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A set that a [`ProgressLoop`](super::run::ProgressLoop) drives: virtual queue pairs, or ends of
/// messages.
///
/// The loop decides when a step runs, when the thread rests, and when it ends. An implementation
/// decides what a step does to its set.
pub(super) trait ProgressSet {
    /// The set that the owner of the thread gives, and gets back.
    type Set;
    /// The thread's side of one handle.
    type Port: Port;
    /// State that the thread shares with its owner and the handles.
    type Mailbox: Mailbox;

    /// Whether the owner has left instructions that were not followed yet.
    fn has_instructions(_: &Self::Mailbox) -> bool {
        false
    }

    /// Follows the owner's instructions. Returns whether there were any.
    fn follow_instructions(&mut self, _: &Self::Mailbox) -> bool {
        false
    }

    /// Has the repair messages of peers wake the thread.
    fn set_waker(&self, waker: &Waker);

    /// Whether the next repair step can handle repair messages of peers.
    fn has_messages(&self) -> bool;

    /// Submits requests of a handle, as far as there is room. `number` is the handle's place among
    /// the ports. Returns whether anything moved.
    fn submit(&mut self, number: usize, port: &mut Self::Port) -> bool;

    /// Polls once, and reports requests that ended. Returns whether anything moved.
    fn poll(&mut self, ports: &mut Ports<Self::Port>, mailbox: &Self::Mailbox) -> bool;

    /// Arms the completion queues, and looks for everything that their completions may have changed
    /// before that.
    fn poll_armed(&mut self, ports: &mut Ports<Self::Port>) -> Result<ArmedPoll, WaitError>;

    /// Returns what becomes readable after a completion queue has notified; `None` if completion
    /// queues are only polled.
    fn completion_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Looks at rails: for silence, and for events that the owner reads. The loop calls it seldom,
    /// since it costs more than a round.
    fn look(&mut self, ports: &Ports<Self::Port>, mailbox: &Self::Mailbox);

    /// Catches up after a sleep: reports what [`poll_armed`](Self::poll_armed) found, repairs
    /// rails, and looks at them, because rounds are rare while the thread sleeps.
    fn wake(&mut self, ports: &mut Ports<Self::Port>, mailbox: &Self::Mailbox);

    /// Whether requests of this handle can never be reported, so that the loop has to abandon them.
    fn has_lost(&self, port: &Self::Port) -> bool;

    /// Returns what may change the set while the thread sleeps.
    fn awaits(&self, ports: &Ports<Self::Port>) -> Awaits;

    /// Returns how often silent rails have to be looked for, if silence is limited.
    fn stall_interval(&self) -> Option<Duration>;

    /// Fails every member, so that all requests come back.
    fn fail_all(&mut self);

    /// Gives the set back when the thread ends.
    fn into_set(self, mailbox: &Self::Mailbox) -> Self::Set;
}

/// The thread's side of one handle, as far as the loop sees it.
pub(super) trait Port {
    /// Whether the ring holds a request that the thread can take, or the port can be forgotten.
    fn has_news(&self) -> bool;

    /// Whether every request that sends data, or waits for it to arrive, has ended.
    fn has_sent(&self) -> bool;

    /// Whether every request has ended.
    fn is_drained(&self) -> bool;

    /// Whether the handle was dropped and every request has ended.
    fn is_done(&self) -> bool;
}

/// What may change a set while the thread sleeps; the later ones include the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaits {
    /// Only handles and the owner, which ring the bell.
    Handles,
    /// Peers may have messages, and rails need a look now and then.
    Peers,
    /// Devices complete requests, and wake the thread only if completion queues notify.
    Devices,
    /// Peers write to memory, or a time passes in which requests are taken back, which never wakes
    /// the thread.
    Memory,
}

/// What a poll of armed completion queues found.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArmedPoll {
    /// Something moved: the thread must not sleep.
    pub(super) moved: bool,
    /// A completion queue cannot be polled, and would end every sleep at once.
    pub(super) is_broken: bool,
}

/// The ports of a thread, each in a place whose number stays the same until the port is forgotten.
#[derive(Debug)]
pub(super) struct Ports<P> {
    places: Vec<Option<P>>,
    /// The place that has the next first turn.
    first: usize,
}

impl<P> Default for Ports<P> {
    fn default() -> Self {
        Self { places: Vec::new(), first: 0 }
    }
}

impl<P> Ports<P> {
    /// Adds a port in the first free place.
    pub(super) fn add(&mut self, port: P) {
        match self.places.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(port),
            None => self.places.push(Some(port)),
        }
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut P> {
        self.places.get_mut(number)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &P> {
        self.places.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.places.iter_mut().flatten()
    }

    /// Gives each port a turn, with its number, and begins with another port each time: the first
    /// one takes all the room there is. Returns whether any turn moved something.
    pub(super) fn in_turn(&mut self, mut turn: impl FnMut(usize, &mut P) -> bool) -> bool {
        let count = self.places.len();
        // Empty places are skipped: the port behind one would have the first turn twice as often.
        let is_taken = |number: &usize| self.places[*number].is_some();
        let Some(first) = (self.first..count).chain(0..self.first).find(is_taken) else {
            return false;
        };
        self.first = (first + 1) % count;
        let (later, sooner) = self.places.split_at_mut(first);
        let mut moved = false;
        for (number, place) in (first..).zip(sooner).chain((0..).zip(later)) {
            moved |= place.as_mut().is_some_and(|port| turn(number, port));
        }
        moved
    }

    /// Forgets ports, so that their unreported requests are abandoned.
    pub(super) fn forget(&mut self, mut is_over: impl FnMut(&P) -> bool) {
        for place in &mut self.places {
            drop(place.take_if(|port| is_over(port)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_the_first_turn_equally_often_beside_empty_places() {
        let mut ports = Ports::default();
        (0..5).for_each(|name| ports.add(name));
        ports.forget(|name| [1, 2].contains(name));
        let mut firsts = Vec::new();
        for _ in 0..6 {
            let mut turns = Vec::new();
            assert!(!ports.in_turn(|number, name| {
                assert_eq!(number, *name);
                turns.push(*name);
                false
            }));
            firsts.push(turns[0]);
            turns.sort_unstable();
            assert_eq!(turns, [0, 3, 4]);
        }
        assert_eq!(firsts, [0, 3, 4, 0, 3, 4]);
        ports.forget(|_| true);
        assert!(!ports.in_turn(|_, _| true));
    }
}
