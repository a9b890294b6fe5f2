//! The thread: takes requests, gives them to the engine, polls, reports.

use super::news::{MemberEvent, News, P2pShared, Told};
use super::port::Port;
use crate::backend::Domain;
use crate::endpoint::WaitError;
use crate::idle::{Idle, NAP, Rest};
use crate::p2p::{P2pEndpointSet, P2pMember};
use crate::progress::alarm::Alarm;
use crate::progress::shared::Presence;
use crate::progress::sleep::{HEALING_NAP, sleep};
use crate::progress::wait::{Found, Waits, wait};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions of all members together that are taken before it is the handles' turn.
const POLL_BUDGET: usize = 64;

/// How long devices may take to give buffers back, of a member that failed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Rounds between two looks at what members have to tell: a look costs more than a round.
const ROUNDS_PER_LOOK: u32 = 256;

/// The thread's state.
pub(super) struct MessageLoop<D: Domain, const ROUTES: usize> {
    set: P2pEndpointSet<D, ROUTES>,
    /// The handles.
    ports: Vec<Port>,
    /// The place of the handle whose requests are started first.
    first: usize,
    /// Rounds until members are asked what they have to tell.
    rounds_to_look: u32,
    idle: Idle,
    /// A completion queue told that it has something, and nothing was found since.
    told: bool,
    /// When a completion queue broke.
    broken: Option<Instant>,
    /// The thread was told to shut down.
    draining: bool,
    /// How long messages that leave may take then.
    drain_timeout: Duration,
    // Last: when it reports that the thread is gone, all handles were dropped.
    shared: Presence<Port, News>,
}

impl<D: Domain, const ROUTES: usize> MessageLoop<D, ROUTES> {
    pub(super) fn new(
        set: P2pEndpointSet<D, ROUTES>,
        shared: Arc<P2pShared>,
        drain_timeout: Duration,
    ) -> Self {
        Self {
            set,
            ports: Vec::new(),
            first: 0,
            rounds_to_look: ROUNDS_PER_LOOK,
            idle: Idle::default(),
            told: false,
            broken: None,
            draining: false,
            drain_timeout,
            shared: Presence(shared),
        }
    }

    /// Runs until it is told to shut down, then drains.
    pub(super) fn run(mut self) -> P2pEndpointSet<D, ROUTES> {
        self.shared.0.enter();
        while !self.shared.0.is_closing() {
            self.round();
        }
        self.draining = true;
        self.drain(self.drain_timeout, Port::has_sent);
        self.fail_all();
        self.drain(FLUSH_TIMEOUT, Port::is_drained);
        self.look();
        self.set
    }

    /// Goes on until `is_drained` holds for every handle, or for `timeout`.
    fn drain(&mut self, timeout: Duration, is_drained: impl Fn(&Port) -> bool) {
        let end = Instant::now().checked_add(timeout);
        while self.shared.0.has_newcomers() || !self.ports.iter().all(&is_drained) {
            if end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
            self.round();
        }
    }

    /// Does what there is to do, once, or rests.
    fn round(&mut self) {
        let mut busy = self.adopt();
        busy |= self.listen();
        busy |= self.start();
        self.poll();
        busy |= self.finish();
        self.look_at_times();
        self.ports.retain(|port| !port.is_done());
        if busy {
            self.idle.reset();
            self.told = false;
            return;
        }
        match self.idle.rest() {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => self.sleep(),
        }
    }

    /// Adopts new handles.
    fn adopt(&mut self) -> bool {
        let newcomers = self.shared.0.take_newcomers();
        let any = !newcomers.is_empty();
        self.ports.extend(newcomers);
        any
    }

    /// Does what the owner told.
    fn listen(&mut self) -> bool {
        let told = self.shared.0.news.take_told();
        let any = !told.is_empty();
        for (number, told) in told {
            match told {
                // An end of which the peer says what no correct peer says has failed, and its requests show that.
                Told::Message(message) => _ = self.set.hear(number, message),
                Told::LinkRestored => {
                    self.set.member_mut(number).into_iter().for_each(P2pMember::link_restored);
                }
                Told::Fail => self.set.member_mut(number).into_iter().for_each(P2pMember::fail),
            }
        }
        if any {
            // What there is to answer is not for later.
            self.look();
        }
        any
    }

    /// Starts requests of each handle in turn, another one's first each time: the first takes whatever room there is.
    fn start(&mut self) -> bool {
        let Self { set, ports, first, .. } = self;
        let split = (*first).min(ports.len());
        let (later, sooner) = ports.split_at_mut(split);
        *first = if sooner.len() > 1 { *first + 1 } else { 0 };
        let mut moved = false;
        for port in sooner.iter_mut().chain(later) {
            moved |= set.member_mut(port.member).is_some_and(|member| port.start(member));
        }
        moved
    }

    /// Polls for all completions. When a completion queue breaks, members whose rails are re-routed do without it as
    /// far as they can; the others have failed. What nobody can ever report is given up.
    fn poll(&mut self) {
        let Err(error) = self.set.poll(POLL_BUDGET) else {
            self.broken = None;
            return;
        };
        self.shared.0.news.queue_broke(error);
        if !self.set.reroutes() && self.broken.is_none() {
            self.fail_all();
        }
        let now = Instant::now();
        if now - *self.broken.get_or_insert(now) < FLUSH_TIMEOUT {
            return;
        }
        let set = &self.set;
        self.ports.retain(|port| set.member(port.member).is_some_and(|member| !hangs(member)));
    }

    fn fail_all(&mut self) {
        for number in 0..self.set.bound() {
            self.set.member_mut(number).into_iter().for_each(P2pMember::fail);
        }
    }

    /// Reports what has ended.
    fn finish(&mut self) -> bool {
        let Self { set, ports, .. } = self;
        let mut moved = false;
        for port in ports {
            moved |= set.member_mut(port.member).is_some_and(|member| port.finish(member));
        }
        moved
    }

    /// Asks members from time to time what they have to tell.
    fn look_at_times(&mut self) {
        self.rounds_to_look -= 1;
        if self.rounds_to_look == 0 {
            self.look();
        }
    }

    /// Asks members what they have to tell their peers, and what happened.
    fn look(&mut self) {
        self.rounds_to_look = ROUNDS_PER_LOOK;
        if !self.set.reroutes() {
            return;
        }
        let news = &self.shared.0.news;
        for number in 0..self.set.bound() {
            let Some(member) = self.set.member_mut(number) else { continue };
            news.carry(number, || member.next_message());
            while let Some((end, place, event)) = member.take_event() {
                news.add_event(MemberEvent { member: number, end, place, event });
            }
        }
    }

    fn sleep(&mut self) {
        let shared = Arc::clone(&self.shared.0);
        shared.while_armed(|| {
            if !self.has_something_to_do() {
                match shared.alarm() {
                    Some(alarm) => self.wait(alarm),
                    None => sleep(self.nap()),
                }
            }
        });
        if self.set.reroutes() {
            // Polls that do so by themselves are rare now.
            self.set.heal();
            self.look();
        }
    }

    /// Whether there is something that nobody will wake it for any more.
    fn has_something_to_do(&self) -> bool {
        (self.shared.0.is_closing() && !self.draining)
            || self.shared.0.has_newcomers()
            || self.shared.0.news.has_told()
            || self.ports.iter().any(Port::has_news)
    }

    fn wait(&mut self, alarm: &Alarm) {
        let (nap, mut told) = (self.nap(), self.told);
        wait(self, alarm, nap, &mut told);
        self.told = told;
    }

    /// How long it may sleep at a time. Peers write what messages wait for into memory, which wakes nobody, and so do
    /// completions, unless completion queues tell.
    fn nap(&self) -> Option<Duration> {
        let hangs = |number| self.set.member(number).is_some_and(hangs);
        let is_told = self.shared.0.alarm().is_some();
        let is_busy = self.draining || self.ports.iter().any(Port::is_busy);
        let nap = match () {
            () if self.ports.iter().any(Port::waits_for_peer) => NAP,
            () if is_busy && !is_told => NAP,
            () if is_busy || self.set.reroutes() || self.set.numbers().any(hangs) => HEALING_NAP,
            () => return None,
        };
        Some(self.set.stall_interval().map_or(nap, |interval| nap.min(interval)))
    }
}

/// Once the completion queues are armed, everything is looked at that completions may have changed.
impl<D: Domain, const ROUTES: usize> Waits for MessageLoop<D, ROUTES> {
    fn poll_armed(&mut self) -> Result<Found, WaitError> {
        let polled = self.set.poll_armed()?;
        let moved = self.finish() | self.start();
        if moved {
            self.idle.reset();
            self.told = false;
        }
        Ok(match polled.error {
            Some(_) => Found::Broken,
            None if moved => Found::Something,
            None => Found::Nothing,
        })
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.set.completion_fd()
    }
}

/// Whether a direction of a member failed, and devices may still access its buffers.
fn hangs<D: Domain>(member: &P2pMember<D>) -> bool {
    let sender = member.sender().filter(|sender| sender.failure().is_some());
    let receiver = member.receiver().filter(|receiver| receiver.failure().is_some());
    sender.is_some_and(|sender| !sender.is_drained())
        || receiver.is_some_and(|receiver| !receiver.is_drained())
}

#[cfg(test)]
mod tests;
