//! What one end owes its peer: acknowledgements, answers and responses. No I/O.

use crate::wire::{FIRST, Header, Kind, LAST, SEGMENT, WORD};
use polyrail_nic_parts::recv_ring::RecvRing;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Responder {
    /// The queue pair's receives; without slots if they are shared.
    pub(crate) posts: RecvRing,
    /// Number of the peer's requests that are executed.
    executed: u64,
    /// How many of them no frame has acknowledged.
    unacknowledged: u64,
    /// The request that met no receive. Everything is discarded until it comes again.
    awaited: Option<u64>,
    not_ready_due: bool,
    /// A receive is posted for it, of which the peer has to be notified.
    ready_due: bool,
    /// The peer was notified of a receive: it sends the request again.
    ready_sent: bool,
    /// Code of the time that the peer waits between two tries.
    pub(crate) min_rnr_timer: u8,
    responses: VecDeque<Response>,
    most_responses: usize,
    refusal: Option<Header>,
}

/// An answer with data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Response {
    /// A part of the memory, which is read when it is sent.
    Read { number: u64, addr: u64, rkey: u32, total: u32, sent: u32 },
    /// The old value of a word.
    Atomic { number: u64, old: u64 },
}

/// The contents of a frame of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Remote { addr: u64, rkey: u32 },
    Word(u64),
    Nothing,
}

impl Responder {
    pub(crate) fn new(posts: RecvRing, most_responses: u8) -> Self {
        Self {
            posts,
            executed: 0,
            unacknowledged: 0,
            awaited: None,
            not_ready_due: false,
            ready_due: false,
            ready_sent: false,
            min_rnr_timer: 0,
            responses: VecDeque::with_capacity(most_responses.into()),
            most_responses: 0,
            refusal: None,
        }
    }

    /// Sets how many READs and atomics of the peer may be in progress.
    pub(crate) fn set_most_responses(&mut self, most: u8) {
        self.most_responses = most.into();
    }

    /// Number of the request that is executed next.
    pub(crate) fn executed(&self) -> u64 {
        self.executed
    }

    /// Records that the request was executed.
    pub(crate) fn execute(&mut self) {
        self.executed += 1;
        self.unacknowledged += 1;
    }

    /// The acknowledgement for a frame that is made now.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        self.unacknowledged = 0;
        self.executed as u32
    }

    /// Records that a frame was dropped, which may have brought an acknowledgement.
    pub(crate) fn drop_acknowledgement(&mut self) {
        self.unacknowledged = self.executed.min(1);
    }

    /// Whether a frame has to be made because no other one brings the acknowledgement.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Returns the number of executed requests that no frame has acknowledged, or 1 if it is
    /// unknown.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.unacknowledged
    }

    /// Records that the next request met no receive.
    pub(crate) fn miss_receive(&mut self) {
        self.awaited = Some(self.executed);
        self.not_ready_due = true;
        self.ready_sent = false;
    }

    /// Whether a frame of a request is discarded, because a request before it met no receive. The
    /// first frame of the request that is tried again ends that, once the peer was notified of a
    /// receive. A peer that tries without that would fill the list of those that wait.
    pub(crate) fn discards(&mut self, header: &Header) -> bool {
        let Some(awaited) = self.awaited else { return false };
        if header.has(FIRST) && header.number == awaited as u32 && self.ready_sent {
            self.awaited = None;
            return false;
        }
        true
    }

    /// Records that a receive was posted. Returns whether the peer has to be notified of it.
    pub(crate) fn receive_posted(&mut self) -> bool {
        self.ready_due = self.awaited.is_some() && !self.ready_sent;
        self.ready_due
    }

    /// Whether a READ or atomic more may be answered.
    pub(crate) fn has_room(&self) -> bool {
        self.responses.len() < self.most_responses
    }

    /// Adds an answer.
    pub(crate) fn respond(&mut self, response: Response) {
        self.responses.push_back(response);
    }

    /// Records that a request is refused. Responses that are owed are sent before.
    pub(crate) fn refuse(&mut self, refusal: Header) {
        self.refusal.get_or_insert(refusal);
    }

    pub(crate) fn has_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Returns the next frame of a control message.
    pub(crate) fn next_control(&mut self) -> Option<Header> {
        let awaited = self.awaited.filter(|_| self.refusal.is_none())?;
        if std::mem::take(&mut self.not_ready_due) {
            let rnr_timer = self.min_rnr_timer;
            return Some(Header { rnr_timer, ..Header::new(Kind::NotReady, awaited) });
        }
        self.ready_sent |= self.ready_due;
        std::mem::take(&mut self.ready_due).then(|| Header::new(Kind::Ready, awaited))
    }

    /// Returns the refusal, once, when nothing has to be sent before it.
    pub(crate) fn next_refusal(&mut self) -> Option<Header> {
        if self.responses.is_empty() { self.refusal.take() } else { None }
    }

    /// Returns the next frame of a response.
    pub(crate) fn next_response(&mut self) -> Option<(Header, Answer)> {
        match self.responses.front_mut()? {
            &mut Response::Atomic { number, old } => {
                self.responses.pop_front();
                let header = Header::new(Kind::AtomicResponse, number);
                Some((Header { length: WORD, total: WORD, ..header }, Answer::Word(old)))
            }
            Response::Read { number, addr, rkey, total, sent } => {
                let offset = *sent;
                let length = (*total - offset).min(SEGMENT);
                let first = if offset == 0 { FIRST } else { 0 };
                let last = if offset + length == *total { LAST } else { 0 };
                let header = Header {
                    flags: first | last,
                    length,
                    total: *total,
                    offset,
                    ..Header::new(Kind::ReadResponse, *number)
                };
                let answer = match length {
                    0 => Answer::Nothing,
                    _ => Answer::Remote { addr: *addr + u64::from(offset), rkey: *rkey },
                };
                *sent += length;
                if last != 0 {
                    self.responses.pop_front();
                }
                Some((header, answer))
            }
        }
    }

    /// Drops everything that is owed.
    pub(crate) fn end(&mut self) {
        self.responses.clear();
        self.awaited = None;
        self.refusal = None;
        self.unacknowledged = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::WcStatus;

    fn responder() -> Responder {
        let mut responder = Responder::new(RecvRing::new(4, 1), 4);
        responder.set_most_responses(2);
        responder
    }

    fn first(number: u64) -> Header {
        Header { flags: FIRST | LAST, ..Header::new(Kind::Send, number) }
    }

    #[test]
    fn one_acknowledgement_is_for_all_that_was_executed() {
        let mut responder = responder();
        assert!(!responder.owes_acknowledgement());
        (0..3).for_each(|_| responder.execute());
        assert!(responder.owes_acknowledgement());
        assert_eq!(responder.acknowledge(), 3);
        assert!(!responder.owes_acknowledgement());
    }

    #[test]
    fn an_acknowledgement_is_owed_again_when_its_frame_is_dropped() {
        let mut responder = responder();
        responder.drop_acknowledgement();
        assert!(!responder.owes_acknowledgement(), "nothing was executed");
        responder.execute();
        responder.acknowledge();
        responder.drop_acknowledgement();
        assert!(responder.owes_acknowledgement());
        assert_eq!(responder.acknowledge(), 1);
    }

    #[test]
    fn everything_is_discarded_until_the_request_comes_again() {
        let mut responder = responder();
        assert!(!responder.receive_posted(), "nothing waits");
        responder.execute();
        assert!(!responder.discards(&first(1)));
        responder.miss_receive();
        assert!(responder.discards(&first(1)), "it was sent before the answer");
        let answer = responder.next_control().unwrap();
        assert_eq!((answer.kind, answer.number), (Kind::NotReady, 1));
        assert!(responder.discards(&first(2)));
        assert!(responder.discards(&first(1)), "the peer was notified of no receive");
        assert!(responder.next_control().is_none());
        assert!(responder.receive_posted());
        let ready = responder.next_control().unwrap();
        assert_eq!((ready.kind, ready.number), (Kind::Ready, 1));
        assert!(responder.discards(&Header { flags: LAST, ..first(1) }), "not its first frame");
        assert!(!responder.discards(&first(1)));
        assert!(!responder.discards(&first(2)));
    }

    #[test]
    fn a_receive_that_comes_before_the_answer_follows_it() {
        let mut responder = responder();
        responder.miss_receive();
        assert!(responder.receive_posted());
        let kinds = [responder.next_control(), responder.next_control()];
        assert_eq!(kinds.map(|frame| frame.unwrap().kind), [Kind::NotReady, Kind::Ready]);
    }

    #[test]
    fn the_peer_is_notified_of_one_receive_for_each_time_it_missed_one() {
        let mut responder = responder();
        responder.miss_receive();
        responder.next_control().unwrap();
        assert!(responder.receive_posted());
        assert_eq!(responder.next_control().unwrap().kind, Kind::Ready);
        assert!(!responder.receive_posted(), "the request is on its way");
        assert!(responder.next_control().is_none());
        // Another queue pair took the shared receives.
        assert!(!responder.discards(&first(0)));
        responder.miss_receive();
        responder.next_control().unwrap();
        assert!(responder.receive_posted());
        assert_eq!(responder.next_control().unwrap().kind, Kind::Ready);
    }

    #[test]
    fn a_response_travels_in_segments_and_a_refusal_follows_it() {
        let mut responder = responder();
        let total = 2 * SEGMENT + 1;
        responder.respond(Response::Read { number: 0, addr: 4096, rkey: 9, total, sent: 0 });
        assert!(responder.has_room());
        responder.respond(Response::Atomic { number: 1, old: 5 });
        assert!(!responder.has_room());
        responder.refuse(Header::refusal(2, WcStatus::REM_ACCESS_ERR, 1));
        assert!(responder.next_refusal().is_none());
        let mut frames = Vec::new();
        while let Some((header, answer)) = responder.next_response() {
            // As it is checked by the peer.
            assert_eq!(Header::decode(&header.encode()), Ok(header));
            frames.push((header.offset, header.length, answer));
        }
        let [first, second, third, atomic] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((first.0, first.1, second.0, second.1), (0, SEGMENT, SEGMENT, SEGMENT));
        assert_eq!((third.0, third.1), (2 * SEGMENT, 1));
        let Answer::Remote { addr, rkey: 9 } = third.2 else { panic!("{third:?}") };
        assert_eq!(addr, 4096 + u64::from(2 * SEGMENT));
        assert!(matches!(atomic.2, Answer::Word(5)));
        assert_eq!(responder.next_refusal().map(|header| header.number), Some(2));
        assert!(responder.next_refusal().is_none());
    }
}
