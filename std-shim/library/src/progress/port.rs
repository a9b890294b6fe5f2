//! The thread's side of one handle.

use super::HANDLE_DEPTH;
use super::outcome::RequestOutcome;
use super::replies::{Replies, Reporter, replies};
use super::request::{Lane, Request, Work};
use super::set::{Port, TURN};
use super::shared::Driver;
use super::submit::{HandleMessage, KeySet, KnownKeys, MessageConsumer, Submitter, submitter};
use crate::endpoint::EndpointQp;
use arrayvec::ArrayVec;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::SendWr;
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::{PostError, PostManyError, PostSendError};
use std::collections::VecDeque;
use std::sync::Arc;

/// A request that was taken from the ring and not posted yet.
#[derive(Debug)]
struct Waiting {
    request: Request,
    /// The keys, if another set has taken their place since.
    keys: Option<KeySet>,
}

impl Waiting {
    /// Returns the request for the engine. Its name contains the handle's `number`.
    fn work<'k>(&'k self, known: &'k KnownKeys, number: usize) -> Work<'k> {
        let keys = self.keys.as_ref().unwrap_or_else(|| known.get(self.request.keys));
        self.request.work(name(number, self.request.lane().place(self.request.slot)), keys)
    }
}

/// The thread's side of a handle.
#[derive(Debug)]
pub(super) struct QpPort {
    /// The number of the virtual queue pair.
    pub(super) qp: usize,
    messages: MessageConsumer<Request>,
    desk: Desk,
}

/// Requests of a handle that wait for their turn, or for room.
#[derive(Debug)]
struct Desk {
    keys: KnownKeys,
    /// Requests by lane, oldest first. A lane has no more requests than slots, and the queues have
    /// room for all of them from the start.
    waiting: [VecDeque<Waiting>; 2],
    /// The number of sends that the engine is offered together. It shrinks when the engine has no
    /// room for them, or refuses one.
    at_once: usize,
    /// What is to be taken back: the slots of posted sends, and of sends that were not posted, with
    /// their reports. Of one turn of messages.
    cancels: ArrayVec<u16, TURN>,
    dropped: ArrayVec<(u16, VirtualWc), TURN>,
    out: Outbox,
}

/// Requests of a handle that are posted, and how they are reported.
#[derive(Debug)]
struct Outbox {
    /// Whether each slot of a lane has a posted request: a faulty device may complete requests that
    /// were never posted.
    is_posted: [Box<[bool]>; 2],
    /// The number of posted requests by lane.
    posted: [usize; 2],
    /// Sends that have completed so far.
    sent: u64,
    reporters: [Reporter<RequestOutcome>; 2],
}

/// Makes both sides of a handle of `driver`: the submitter, the replies of each lane, and the port.
pub(super) fn port(
    qp: usize,
    driver: &Arc<Driver>,
) -> (Submitter<Request>, [Replies<RequestOutcome>; 2], QpPort) {
    let (requests, messages) = submitter();
    let [(sent, sends), (received, receives)] = Lane::ALL.map(|_| replies(driver));
    let is_posted = Lane::ALL.map(|_| [false; HANDLE_DEPTH].into());
    let out = Outbox { is_posted, posted: [0; 2], sent: 0, reporters: [sends, receives] };
    let waiting = Lane::ALL.map(|_| VecDeque::with_capacity(HANDLE_DEPTH));
    let (cancels, dropped) = (ArrayVec::new(), ArrayVec::new());
    let desk = Desk { keys: KnownKeys::new(), waiting, at_once: TURN, cancels, dropped, out };
    (requests, [sent, received], QpPort { qp, messages, desk })
}

impl QpPort {
    /// Posts requests that waited and new ones, as far as there is room. Their names contain
    /// `number`. Returns whether anything moved.
    pub(super) fn post<Q>(&mut self, number: usize, qp: &mut EndpointQp<Q>) -> bool
    where
        Q: QueuePair,
    {
        let desk = &mut self.desk;
        let taken = self.messages.pop_batch(TURN, |message| desk.take(message));
        if !desk.cancels.is_empty() || !desk.dropped.is_empty() {
            desk.take_back(number, qp);
        }
        // Receives first: the peer may answer as soon as a send is posted.
        let posted = desk.post_receives(number, qp) | desk.post_sends(number, qp);
        posted || taken > 0
    }

    /// Reports a completion. The caller calls [`wake`](Self::wake) afterwards. Drops a completion
    /// of a request that is not posted, which only a faulty device makes.
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
        out.reporters[lane as usize].note(slot, Ok(wc));
    }

    /// Wakes the tasks that wait for reported requests.
    pub(super) fn wake(&mut self) {
        self.desk.out.reporters.iter_mut().for_each(Reporter::wake);
    }

    /// Whether no request of the lane is in the ring, waiting or posted.
    fn is_idle(&self, lane: Lane) -> bool {
        let Desk { waiting, out, .. } = &self.desk;
        let lane = lane as usize;
        self.messages.is_empty() && waiting[lane].is_empty() && out.posted[lane] == 0
    }

    /// Whether requests are posted, or wait for room.
    pub(super) fn is_busy(&self) -> bool {
        let Desk { waiting, out, .. } = &self.desk;
        out.posted != [0; 2] || waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Returns how many sends were posted so far, and how many of them have completed.
    pub(super) fn sends(&self) -> [u64; 2] {
        let Outbox { posted, sent, .. } = &self.desk.out;
        [sent + posted[Lane::Send as usize] as u64, *sent]
    }
}

impl Port for QpPort {
    fn has_news(&self) -> bool {
        !self.messages.is_empty() || self.is_done()
    }

    fn has_sent(&self) -> bool {
        self.is_idle(Lane::Send)
    }

    fn is_drained(&self) -> bool {
        Lane::ALL.iter().all(|lane| self.is_idle(*lane))
    }

    fn is_done(&self) -> bool {
        // Closed first: then nothing can be pushed any more.
        self.messages.is_closed() && self.is_drained()
    }
}

impl Desk {
    /// Takes a message from the handle.
    fn take(&mut self, message: HandleMessage<Request>) {
        match message {
            HandleMessage::Keys { place, keys } => {
                let Some(before) = self.keys.learn(place, keys) else { return };
                let waiting = self.waiting.iter_mut().flatten();
                let of_them = |one: &&mut Waiting| one.keys.is_none() && one.request.keys == place;
                waiting.filter(of_them).for_each(|one| one.keys = Some(Arc::clone(&before)));
            }
            HandleMessage::Cancel(slot) => self.note_cancel(slot),
            HandleMessage::Post(request) => {
                self.waiting[request.lane() as usize].push_back(Waiting { request, keys: None });
            }
        }
    }

    /// Notes that the send in a slot is to be taken back, in its turn: later messages may be about
    /// another request in the same slot.
    #[cold]
    fn note_cancel(&mut self, slot: u16) {
        let Self { waiting: [waiting, _], cancels, dropped, out, .. } = self;
        if out.is_posted[Lane::Send as usize][usize::from(slot)] {
            return cancels.push(slot);
        }
        let place = waiting.iter().position(|one| one.request.slot == slot);
        let report = place.and_then(|place| Some((place, waiting[place].request.taken_back()?)));
        if let Some((place, report)) = report {
            waiting.remove(place);
            dropped.push((slot, report));
        }
    }

    /// Takes back what is to be taken back.
    #[cold]
    fn take_back<Q: QueuePair>(&mut self, number: usize, qp: &mut EndpointQp<Q>) {
        let Self { cancels, dropped, out, .. } = self;
        for slot in cancels.drain(..) {
            // One that is refused goes on, and its outcome says how it ends.
            _ = qp.cancel(name(number, Lane::Send.place(slot)));
        }
        let qp_num = qp.virtual_qp().virtual_qp_num();
        for (slot, wc) in dropped.drain(..) {
            out.reporters[Lane::Send as usize].report(slot, Ok(VirtualWc { qp_num, ..wc }));
        }
    }

    /// Posts sends in order, many at once so that there are few doorbells. Returns whether any left
    /// the queue.
    fn post_sends<Q: QueuePair>(&mut self, number: usize, qp: &mut EndpointQp<Q>) -> bool {
        let Self { keys, waiting: [waiting, _], at_once, out, .. } = self;
        let before = waiting.len();
        while !waiting.is_empty() {
            let sends = waiting.iter().take(*at_once);
            let (offered, posted, error) = offer(qp, sends, keys, number);
            waiting.drain(..posted).for_each(|one| out.note_posted(Lane::Send, one.request.slot));
            match error {
                None => *at_once = (*at_once * 2).min(TURN),
                // An error after all were taken means that the virtual queue pair has failed;
                // completions report them.
                Some(_) if posted == offered => {}
                Some(error) if error.is_back_pressure() => {
                    *at_once = (offered / 2).max(1);
                    break;
                }
                // A driver that takes all or none does not report which send it refuses, so sends
                // are offered in smaller groups until the refused one is alone.
                Some(_) if offered > 1 => *at_once = offered / 2,
                Some(error) => {
                    if let Some(one) = waiting.pop_front() {
                        out.refuse(Lane::Send, one.request.slot, error.into());
                    }
                }
            }
        }
        waiting.len() < before
    }

    /// Posts receives in order. Returns whether any left the queue.
    fn post_receives<Q: QueuePair>(&mut self, number: usize, qp: &mut EndpointQp<Q>) -> bool {
        let Self { keys, waiting: [_, waiting], out, .. } = self;
        let before = waiting.len();
        while let Some(one) = waiting.front()
            && let Work::Recv(wr) = one.work(keys, number)
        {
            let slot = one.request.slot;
            match qp.post_recv(&wr) {
                Ok(()) => out.note_posted(Lane::Recv, slot),
                Err(error) if error.is_back_pressure() => break,
                Err(error) => out.refuse(Lane::Recv, slot, error.into()),
            }
            waiting.pop_front();
        }
        waiting.len() < before
    }
}

/// Offers sends to the engine. Returns how many were offered, how many it took, and why it did not
/// take the next one.
fn offer<'w, Q: QueuePair>(
    qp: &mut EndpointQp<Q>,
    sends: impl Iterator<Item = &'w Waiting>,
    keys: &KnownKeys,
    number: usize,
) -> (usize, usize, Option<PostSendError>) {
    let sends = sends.filter_map(|one| match one.work(keys, number) {
        Work::Send(wr) => Some(wr),
        Work::Recv(_) => None,
    });
    let wrs: ArrayVec<SendWr<'_>, TURN> = sends.collect();
    match qp.post_many(&wrs) {
        Ok(()) => (wrs.len(), wrs.len(), None),
        Err(PostManyError { posted, error }) => (wrs.len(), posted, Some(error)),
    }
}

impl Outbox {
    fn note_posted(&mut self, lane: Lane, slot: u16) {
        self.is_posted[lane as usize][usize::from(slot)] = true;
        self.posted[lane as usize] += 1;
    }

    /// Reports that the engine refuses a request.
    fn refuse(&mut self, lane: Lane, slot: u16, error: PostError) {
        self.reporters[lane as usize].report(slot, Err(error.into()));
    }
}

/// Marks the names of requests that the thread posts. Requests that were posted before the thread
/// started have names without it.
const OURS: u64 = 1 << 63;

/// Returns the `wr_id` of a request: the number of its handle, and the place of its slot among the
/// slots of both lanes.
const fn name(number: usize, place: u16) -> u64 {
    OURS | (number as u64) << 16 | place as u64
}

/// Returns the number and the place in a `wr_id`, if the thread made it.
pub(super) const fn number_and_place(name: u64) -> Option<(usize, u16)> {
    if name & OURS == 0 {
        return None;
    }
    Some((((name & !OURS) >> 16) as usize, name as u16))
}
