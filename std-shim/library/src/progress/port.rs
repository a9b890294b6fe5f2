//! The thread's side of one handle.

use super::depth::HANDLE_DEPTH;
use super::keys::{KeySet, KnownKeys};
use super::message::{HandleMessage, Lane, Request, Work};
use super::outcome::RequestOutcome;
use super::replies::{Replies, Reporter, replies};
use super::rings::MessageConsumer;
use super::submit::{Submitter, submitter};
use crate::endpoint::EndpointQp;
use polyrail_core::hardware::QueuePair;
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::PostError;
use std::collections::VecDeque;
use std::sync::Arc;

/// Messages taken from one handle before it is the next one's turn.
const TURN: usize = 32;

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
    messages: MessageConsumer<Request>,
    desk: Desk,
}

/// Posts a request to the virtual queue pair.
trait Post: FnMut(&Work<'_>) -> Result<(), PostError> {}

impl<F: FnMut(&Work<'_>) -> Result<(), PostError>> Post for F {}

/// Where its requests wait for room.
#[derive(Debug)]
struct Desk {
    keys: KnownKeys,
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
    /// Which slots of each lane have a posted request: a device can complete what was never posted.
    is_posted: [Box<[bool]>; 2],
    /// How many, by lane.
    posted: [usize; 2],
    /// Sends that were posted and came back, so far.
    sent: u64,
    reporters: [Reporter<RequestOutcome>; 2],
}

/// Makes both sides of a handle: its requests, the ways back of each lane, and the thread's side.
pub(super) fn port(qp: usize) -> (Submitter<Request>, [Replies<RequestOutcome>; 2], ThreadPort) {
    let (requests, messages) = submitter();
    let [(sent, sends), (received, receives)] = Lane::ALL.map(|_| replies());
    let is_posted = Lane::ALL.map(|_| [false; HANDLE_DEPTH].into());
    let out =
        Outbox { number: 0, is_posted, posted: [0; 2], sent: 0, reporters: [sends, receives] };
    let deferred = Lane::ALL.map(|_| VecDeque::with_capacity(HANDLE_DEPTH));
    let desk = Desk { keys: KnownKeys::new(), deferred, out };
    (requests, [sent, received], ThreadPort { qp, messages, desk })
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
            HandleMessage::Keys { place, keys } => desk.keys.learn(place, keys),
            HandleMessage::Post(request) => desk.take(request, &mut post),
        });
        moved || taken > 0
    }

    /// Reports a completion. A completion of a request that is not posted is the device's mistake, and
    /// is dropped.
    pub(super) fn complete(&mut self, place: u16, wc: VirtualWc) {
        let out = &mut self.desk.out;
        let lane = Lane::of(place);
        let slot = place - lane.place(0);
        let is_posted = out.is_posted[lane as usize].get_mut(usize::from(slot));
        match is_posted {
            Some(is_posted) if *is_posted => *is_posted = false,
            _ => return,
        }
        out.posted[lane as usize] -= 1;
        out.sent += u64::from(lane == Lane::Send);
        out.reporters[lane as usize].report(slot, Ok(wc));
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
    /// Posts a request, or defers it: behind those of its lane that are deferred, or for lack of room.
    fn take(&mut self, request: Request, post: &mut impl Post) {
        let keys = self.keys.get(request.keys);
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
        let (slot, lane) = (request.slot, request.lane());
        match post(&request.work(name(self.number, lane.place(slot)), keys)) {
            Ok(()) => {
                self.is_posted[lane as usize][usize::from(slot)] = true;
                self.posted[lane as usize] += 1;
            }
            Err(error) if error.is_back_pressure() => return false,
            Err(error) => self.reporters[lane as usize].report(slot, Err(error.into())),
        }
        true
    }
}

/// Set in the names of the thread's requests. What was posted before has names without it.
const OURS: u64 = 1 << 63;

/// The name under which a request is posted: its handle's number, and the place of its slot among those of both lanes.
const fn name(number: u32, place: u16) -> u64 {
    OURS | (number as u64) << 16 | place as u64
}

/// Number and place of a name, if it is one of ours.
pub(super) const fn number_and_place(name: u64) -> Option<(usize, u16)> {
    if name & OURS == 0 {
        return None;
    }
    Some((((name & !OURS) >> 16) as usize, name as u16))
}
