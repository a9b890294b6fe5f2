//! What travels in one direction, and what is known of it: the requests of one end, the memory and
//! the receives of the other.

use super::shape::{Job, Kind, MOST_BYTES};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{PassThroughOrder, Scheme};
use std::collections::BTreeSet;
use std::fmt;

/// Addresses of one request, or one place, are this far apart.
pub(super) const STRIDE: u64 = 0x1000;
/// Local buffers of requests, by their number.
pub(super) const SOURCE: u64 = 0x1000_0000;
/// Remote buffers of WRITEs, by place.
pub(super) const PLACES: u64 = 0x2000_0000;
/// Remote buffers of READs and atomics, by the request's number.
pub(super) const READABLE: u64 = 0x3000_0000;
/// Buffers of receives, by their number.
pub(super) const RECEIVES: u64 = 0x4000_0000;
/// Bit of the names of receives.
pub(super) const RECEIVE: u64 = 1 << 32;

/// A request that was accepted.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) job: Job,
    /// Where its fragments begin.
    pub(super) cuts: Vec<u32>,
    /// The place that a WRITE goes to.
    pub(super) place: usize,
    /// Fragments that were executed, bit by bit; the first stands for a SEND, an atomic, or the
    /// empty fragment of a signal.
    pub(super) ran: u32,
    /// Fragments of a READ, or the old value, that came back.
    pub(super) landed: u32,
    /// Its notify was posted, perhaps to a queue pair that failed.
    pub(super) notify_is_posted: bool,
    /// Its notify was executed.
    pub(super) notified: bool,
    /// The receiver was notified of it, or of something behind it.
    pub(super) told: bool,
    pub(super) report: Option<WcStatus>,
    /// Its application takes it back.
    pub(super) is_wanted_back: bool,
    /// Numbers that its fragments were posted with.
    pub(super) numbers: BTreeSet<u32>,
    /// The number with the mark of the last one, if that was posted.
    pub(super) last_number: Option<u32>,
    /// That number was executed without its data.
    pub(super) lost_its_end: bool,
}

impl Request {
    fn all_fragments(&self) -> u32 {
        (1 << self.cuts.len()) - 1
    }

    /// Which of its fragments begins at an offset, and how long that is.
    pub(super) fn fragment_at(&self, offset: u32) -> Option<(u32, u32)> {
        let at = self.cuts.iter().position(|cut| *cut == offset)?;
        let end = self.cuts.get(at + 1).copied().unwrap_or(self.job.length);
        Some((at as u32, end - offset))
    }

    /// Whether all of its data was executed, and came back.
    pub(super) fn has_run(&self) -> bool {
        let all = if self.job.is_fragmented() { self.all_fragments() } else { 1 };
        let comes_back = matches!(self.job.kind, Kind::Read | Kind::FetchAdd);
        self.ran == all && (!comes_back || self.landed == all)
    }

    /// Whether its last fragment was executed, and counts.
    pub(super) fn has_ended(&self) -> bool {
        !self.lost_its_end && self.ran >> (self.cuts.len() - 1) & 1 == 1
    }

    /// Whether its memory may be used for something else.
    pub(super) fn is_free(&self) -> bool {
        self.is_settled() || self.report == Some(WcStatus::CANCELLED)
    }

    /// Whether its owners think it done, so that it changes nothing any more.
    pub(super) fn is_settled(&self) -> bool {
        self.told || self.report.is_some_and(WcStatus::is_success)
    }
}

/// A receive with a buffer.
#[derive(Clone, Debug)]
pub(super) struct DataReceive {
    /// The SEND that landed last, and its bytes.
    pub(super) holds: Option<usize>,
    pub(super) is_reported: bool,
}

pub(super) struct Direction {
    pub(super) scheme: Scheme,
    pub(super) order: PassThroughOrder,
    /// Numbers that may be on their way, and those that were executed behind one that was not.
    pub(super) span: u32,
    pub(super) numbers: BTreeSet<u32>,
    /// The oldest number that was not executed.
    pub(super) oldest_number: u32,
    pub(super) requests: Vec<Request>,
    /// Bytes of the places, each [`STRIDE`] long at most.
    pub(super) memory: Vec<[u8; MOST_BYTES]>,
    /// A place was written, or a request of one settled, since memory was checked.
    pub(super) is_unchecked: bool,
    /// The newest request of each place.
    pub(super) owners: Vec<usize>,
    /// Receives for notifications: posted, and reported.
    pub(super) notification_receives: usize,
    pub(super) notifications: usize,
    pub(super) data_receives: Vec<DataReceive>,
    pub(super) deliveries: usize,
    /// Receives that were reported as failed.
    pub(super) failed_notifications: usize,
}

/// Memory and events follow from the rest.
impl fmt::Debug for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, owners, notification_receives, notifications, .. } = self;
        let Self { data_receives, deliveries, failed_notifications, .. } = self;
        write!(f, "{requests:?}{owners:?}{notification_receives}{notifications}")?;
        write!(f, "{data_receives:?}{deliveries}{failed_notifications}")
    }
}

impl Direction {
    pub(super) fn new(scheme: Scheme, order: PassThroughOrder, span: u32) -> Self {
        Self {
            scheme,
            order,
            span,
            numbers: BTreeSet::new(),
            oldest_number: 0,
            requests: Vec::new(),
            memory: Vec::new(),
            is_unchecked: false,
            owners: Vec::new(),
            notification_receives: 0,
            notifications: 0,
            data_receives: Vec::new(),
            deliveries: 0,
            failed_notifications: 0,
        }
    }

    /// Places for a run of requests, one for each that writes: first the places that no caller
    /// waits for, then new ones.
    pub(super) fn free_places(&self, jobs: &[Job]) -> Vec<usize> {
        let settled = |place: &usize| self.requests[self.owners[*place]].is_free();
        let known = self.owners.len();
        let mut free = (0..known).filter(settled).chain(known..);
        let mut next = |job: &Job| if job.writes() { free.next().unwrap_or(known) } else { 0 };
        jobs.iter().map(&mut next).collect()
    }

    /// A request was accepted.
    pub(super) fn accepted(&mut self, job: Job, place: usize) {
        if job.writes() {
            if place == self.owners.len() {
                self.owners.push(0);
                self.memory.push([0; MOST_BYTES]);
            }
            self.owners[place] = self.requests.len();
        }
        // With SPRAY a signal is only its notify.
        let is_notify = job.length == 0 && self.scheme == Scheme::Spray;
        self.requests.push(Request {
            job,
            cuts: job.cuts(),
            place,
            ran: u32::from(is_notify),
            landed: 0,
            notify_is_posted: false,
            notified: false,
            told: false,
            report: None,
            is_wanted_back: false,
            numbers: BTreeSet::new(),
            last_number: None,
            lost_its_end: false,
        });
    }

    /// Whether a request is complete in the sense of the engine's order.
    pub(super) fn is_complete(&self, number: usize) -> bool {
        let request = &self.requests[number];
        let notifies = self.scheme == Scheme::Spray && request.job.kind == Kind::WriteImm;
        request.has_run() && (!notifies || request.notified)
    }

    /// The first request before this one that was not executed, of those that it is ordered with.
    pub(super) fn missing_before(&self, number: usize, pass_through: bool) -> Option<usize> {
        (0..number).find(|at| {
            let request = &self.requests[*at];
            if request.is_wanted_back {
                return false;
            }
            // Requests of rail 0 follow each other before they come back.
            if request.job.is_fragmented() {
                !request.has_run()
            } else {
                pass_through && request.ran == 0
            }
        })
    }

    /// Whether there are pass-through requests that are not reported, or not complete.
    pub(super) fn has_open_pass_through(&self) -> bool {
        self.requests.iter().any(|request| {
            let is_over = request.has_run() && (request.report.is_some() || !request.job.signaled);
            !request.job.is_fragmented() && !is_over
        })
    }

    /// Whether pass-through requests keep their place among the others.
    pub(super) fn is_ordered(&self) -> bool {
        self.order == PassThroughOrder::Ordered
    }

    /// The byte that a request puts at an offset.
    pub(super) fn byte(number: usize, offset: usize) -> u8 {
        (number as u8 + 1).wrapping_mul(31).wrapping_add((offset ^ offset >> 7) as u8)
    }

    /// The n-th accepted request of a kind, of those that consume a receive of the peer.
    pub(super) fn nth(&self, kind: Kind, nth: usize) -> Option<usize> {
        self.of_kind(kind).nth(nth)
    }

    /// Accepted requests of a kind, of those that consume a receive of the peer.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.of_kind(kind).count()
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = usize> {
        let consumes = move |request: &Request| {
            // With DQPLB, the mark of the last number is what notifies.
            let is_delivered = self.scheme == Scheme::Dqplb && request.has_ended();
            request.job.kind == kind && (!request.is_wanted_back || is_delivered)
        };
        let all = self.requests.iter().enumerate();
        all.filter(move |(_, request)| consumes(request)).map(|(at, _)| at)
    }

    /// Whether requests are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.iter().any(|request| request.report.is_none())
    }

    /// Checks that what is settled is still in place, if anything could have changed that.
    pub(super) fn check_memory(&mut self) {
        if !std::mem::take(&mut self.is_unchecked) {
            return;
        }
        for (place, owner) in self.owners.iter().enumerate() {
            if self.requests[*owner].is_settled() {
                self.check_bytes(*owner, place);
            }
        }
    }

    pub(super) fn check_bytes(&self, number: usize, place: usize) {
        let length = self.requests[number].job.length as usize;
        for (offset, byte) in self.memory[place][..length].iter().enumerate() {
            let wanted = Self::byte(number, offset);
            assert_eq!(
                *byte, wanted,
                "byte {offset} of request {number} changed after it was done"
            );
        }
    }
}
