//! The thread's side of one handle.

use super::inbox::Inbox;
use super::message::{HandleMessage, KEY_SETS, KeySet, Lane, Report, Request, Work};
use super::rings::{HANDLE_DEPTH, MESSAGES, MessageProducer, MessageRing, ReportRing, SLOTS};
use crate::endpoint::EndpointQp;
use atomic_waker::AtomicWaker;
use polyrail_core::hardware::QueuePair;
use polyrail_core::spsc::{Consumer, Producer, PushError, Ring};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::PostError;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Messages taken from one handle before it is the next one's turn.
const TURN: usize = 32;

/// What a handle and its [`Pending`](super::Pending)s share.
///
/// The lock makes them one consumer of the ring of reports: a handle and its Pendings may be in
/// different threads, and each check takes the reports of all. It is held for one check. The progress
/// thread never waits for it, since it only knows the wakers, and neither do other handles.
#[derive(Debug)]
pub(super) struct HandlePort {
    pub(super) inbox: Mutex<Inbox>,
    /// For each slot, the waker of the task that waits for its request.
    pub(super) wakers: Arc<[AtomicWaker]>,
}

/// The wakers of a handle; all are woken when the thread drops them.
#[derive(Debug)]
struct Wakers(Arc<[AtomicWaker]>);

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.iter().for_each(AtomicWaker::wake);
    }
}

/// A request that the engine has no room for, with its keys: their place may be taken by others.
#[derive(Debug)]
struct Deferred {
    request: Request,
    keys: KeySet,
}

/// The thread's side of a handle.
#[derive(Debug)]
pub(super) struct ThreadPort {
    /// Its virtual queue pair, by number.
    pub(super) qp: usize,
    messages: Consumer<HandleMessage, MESSAGES, MessageRing>,
    desk: Desk,
}

/// Posts a request to the virtual queue pair.
trait Post: FnMut(&Work<'_>) -> Result<(), PostError> {}

impl<F: FnMut(&Work<'_>) -> Result<(), PostError>> Post for F {}

/// Where its requests wait for room.
#[derive(Debug)]
struct Desk {
    keys: Vec<KeySet>,
    /// Requests that wait for room, by lane, oldest first. Never more than the lane has slots, for
    /// which there is room from the start.
    deferred: [VecDeque<Deferred>; 2],
    out: Outbox,
}

/// Its requests that are posted, and the way back.
#[derive(Debug)]
struct Outbox {
    /// The handle's number; the upper part of its requests' names.
    number: u32,
    /// Which slots have a posted request: a device can complete what was never posted.
    is_posted: Box<[bool]>,
    /// How many, by lane.
    posted: [usize; 2],
    /// Sends that were posted and came back, so far.
    sent: u64,
    reports: Producer<Report, SLOTS, ReportRing>,
    // After `reports`: a task that is woken at the end finds the ring closed.
    wakers: Wakers,
}

/// Makes both sides of a handle.
pub(super) fn port(qp: usize) -> (MessageProducer, HandlePort, ThreadPort) {
    let ring = MessageRing::default();
    let Ok((sender, messages)) = Ring::split_shared(ring) else { unreachable!("a new ring") };
    let ring = ReportRing::default();
    let Ok((reports, receiver)) = Ring::split_shared(ring) else { unreachable!("a new ring") };
    let wakers: Arc<[AtomicWaker]> = (0..SLOTS).map(|_| AtomicWaker::new()).collect();
    let port = HandlePort { inbox: Mutex::new(Inbox::new(receiver)), wakers: Arc::clone(&wakers) };
    let is_posted = [false; SLOTS].into();
    let wakers = Wakers(wakers);
    let out = Outbox { number: 0, is_posted, posted: [0; 2], sent: 0, reports, wakers };
    let deferred = Lane::ALL.map(|_| VecDeque::with_capacity(HANDLE_DEPTH));
    let desk = Desk { keys: Vec::with_capacity(KEY_SETS), deferred, out };
    (sender, port, ThreadPort { qp, messages, desk })
}

impl ThreadPort {
    /// Gives it a number, for the names of its requests.
    pub(super) fn set_number(&mut self, number: u32) {
        self.desk.out.number = number;
    }

    /// Posts what waited, then what came; returns whether anything moved.
    pub(super) fn post<Q>(&mut self, qp: &mut EndpointQp<Q>) -> bool
    where
        Q: QueuePair,
    {
        let desk = &mut self.desk;
        let mut post = |work: &Work<'_>| match work {
            Work::Send(wr) => qp.post_send(wr).map_err(PostError::from),
            Work::Recv(wr) => qp.post_recv(wr).map_err(PostError::from),
        };
        let moved = desk.post_deferred(&mut post);
        let taken = self.messages.pop_batch(TURN, |message| match message {
            HandleMessage::Keys { place, keys } => desk.learn(place, keys),
            HandleMessage::Post(request) => desk.take(request, &mut post),
        });
        moved || taken > 0
    }

    /// Reports a completion. A completion of a request that is not posted is the device's mistake, and
    /// is dropped.
    pub(super) fn complete(&mut self, slot: u16, wc: VirtualWc) {
        let out = &mut self.desk.out;
        match out.is_posted.get_mut(usize::from(slot)) {
            Some(is_posted) if *is_posted => *is_posted = false,
            _ => return,
        }
        let lane = usize::from(slot) / HANDLE_DEPTH;
        out.posted[lane] -= 1;
        out.sent += u64::from(lane == Lane::Send as usize);
        out.report(slot, Ok(wc));
    }

    /// Whether something waits in the ring, or the handle is gone and nothing is left to do.
    pub(super) fn has_news(&self) -> bool {
        !self.messages.is_empty() || self.is_done()
    }

    /// The handle is gone, and so are its requests.
    pub(super) fn is_done(&self) -> bool {
        // Closed first: then nothing can be pushed any more.
        self.messages.is_closed() && self.is_drained()
    }

    /// No request of the lane is on its way, deferred or posted.
    pub(super) fn is_idle(&self, lane: Lane) -> bool {
        let Desk { deferred, out, .. } = &self.desk;
        let lane = lane as usize;
        self.messages.is_empty() && deferred[lane].is_empty() && out.posted[lane] == 0
    }

    /// No request of either lane is.
    pub(super) fn is_drained(&self) -> bool {
        Lane::ALL.iter().all(|lane| self.is_idle(*lane))
    }

    /// Requests that the virtual queue pair has.
    pub(super) fn posted(&self) -> usize {
        self.desk.out.posted.iter().sum()
    }

    /// Sends that were posted so far, and those of them that came back.
    pub(super) fn sends(&self) -> [u64; 2] {
        let Outbox { posted, sent, .. } = &self.desk.out;
        [sent + posted[Lane::Send as usize] as u64, *sent]
    }

    /// Whether requests wait for room.
    pub(super) fn has_deferred(&self) -> bool {
        self.desk.deferred.iter().any(|deferred| !deferred.is_empty())
    }
}

impl Desk {
    fn learn(&mut self, place: u8, keys: KeySet) {
        match self.keys.get_mut(usize::from(place)) {
            Some(known) => *known = keys,
            None => self.keys.push(keys),
        }
    }

    /// Posts a request, or defers it: behind those of its lane that are deferred, or for lack of room.
    fn take(&mut self, request: Request, post: &mut impl Post) {
        let keys = &self.keys[usize::from(request.keys)];
        let deferred = &mut self.deferred[request.lane() as usize];
        if !deferred.is_empty() || !self.out.try_post(&request, keys, post) {
            deferred.push_back(Deferred { request, keys: Arc::clone(keys) });
        }
    }

    /// Posts what is deferred, in order, as far as there is room.
    fn post_deferred(&mut self, post: &mut impl Post) -> bool {
        let mut moved = false;
        for deferred in &mut self.deferred {
            while let Some(Deferred { request, keys }) = deferred.front()
                && self.out.try_post(request, keys, post)
            {
                deferred.pop_front();
                moved = true;
            }
        }
        moved
    }
}

impl Outbox {
    /// Posts a request, or reports that the engine refuses it; false if there is no room now.
    fn try_post(&mut self, request: &Request, keys: &KeySet, post: &mut impl Post) -> bool {
        let slot = request.slot;
        match post(&request.work(name(self.number, slot), keys)) {
            Ok(()) => {
                self.is_posted[usize::from(slot)] = true;
                self.posted[request.lane() as usize] += 1;
            }
            Err(error) if error.is_back_pressure() => return false,
            Err(error) => self.report(slot, Err(error)),
        }
        true
    }

    fn report(&mut self, slot: u16, result: Result<VirtualWc, PostError>) {
        match self.reports.push(Report { slot, result }) {
            Ok(()) => self.wakers.0[usize::from(slot)].wake(),
            // The handle and its `Pending`s are gone.
            Err(PushError::Closed(_)) => {}
            Err(PushError::Full(_)) => unreachable!("a handle has no more slots than the ring"),
        }
    }
}

/// Set in the names of the thread's requests. What was posted before has names without it.
const OURS: u64 = 1 << 63;

/// The name under which a request is posted: its handle's number and its slot.
const fn name(number: u32, slot: u16) -> u64 {
    OURS | (number as u64) << 16 | slot as u64
}

/// Number and slot of a name, if it is one of ours.
pub(super) const fn number_and_slot(name: u64) -> Option<(usize, u16)> {
    if name & OURS == 0 {
        return None;
    }
    Some((((name & !OURS) >> 16) as usize, name as u16))
}
