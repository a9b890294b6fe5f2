//! What travels in one direction, and what is known of it: the requests of one end, the memory and the
//! receives of the other.

use super::shape::{Job, Kind};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{PassThroughOrder, RailEvent, Scheme};
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
    /// The place that a WRITE goes to.
    pub(super) place: usize,
    /// Fragments that were executed, bit by bit; the first stands for a SEND, an atomic, or the empty
    /// fragment of a signal.
    pub(super) ran: u32,
    /// Fragments of a READ, or the old value, that came back.
    pub(super) landed: u32,
    /// Its notify was executed.
    pub(super) notified: bool,
    /// The receiver was told that it, or something behind it, is there.
    pub(super) told: bool,
    pub(super) report: Option<WcStatus>,
}

impl Request {
    fn all_fragments(&self) -> u32 {
        (1 << self.job.fragments()) - 1
    }

    /// Whether all of its data was executed, and came back.
    pub(super) fn has_run(&self) -> bool {
        let all = if self.job.is_fragmented() { self.all_fragments() } else { 1 };
        let comes_back = matches!(self.job.kind, Kind::Read | Kind::FetchAdd);
        self.ran == all && (!comes_back || self.landed == all)
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
    /// Numbers that may be on their way, and those that were executed.
    pub(super) span: u32,
    pub(super) numbers: BTreeSet<u32>,
    pub(super) requests: Vec<Request>,
    /// Bytes of the places, each [`STRIDE`] long at most.
    pub(super) memory: Vec<[u8; 1024]>,
    /// The newest request of each place.
    pub(super) owners: Vec<usize>,
    /// Receives for notifications: posted, and reported.
    pub(super) notification_receives: usize,
    pub(super) notifications: usize,
    pub(super) data_receives: Vec<DataReceive>,
    pub(super) deliveries: usize,
    /// Receives that were reported as failed.
    pub(super) failed_notifications: usize,
    /// What the sending end's engine said of its rails.
    pub(super) rail_events: Vec<RailEvent>,
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
            requests: Vec::new(),
            memory: Vec::new(),
            owners: Vec::new(),
            notification_receives: 0,
            notifications: 0,
            data_receives: Vec::new(),
            deliveries: 0,
            failed_notifications: 0,
            rail_events: Vec::new(),
        }
    }

    /// A place that nobody waits for, or a new one.
    pub(super) fn free_place(&self) -> usize {
        let settled = |owner: &usize| self.requests[*owner].is_settled();
        self.owners.iter().position(settled).unwrap_or(self.owners.len())
    }

    /// A request was accepted.
    pub(super) fn accepted(&mut self, job: Job, place: usize) {
        if matches!(job.kind, Kind::Write | Kind::WriteImm) {
            if place == self.owners.len() {
                self.owners.push(0);
                self.memory.push([0; 1024]);
            }
            self.owners[place] = self.requests.len();
        }
        // With SPRAY a signal is only its notify.
        let is_notify = job.length == 0 && self.scheme == Scheme::Spray;
        self.requests.push(Request {
            job,
            place,
            ran: u32::from(is_notify),
            landed: 0,
            notified: false,
            told: false,
            report: None,
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
            // Requests of rail 0 follow each other before they come back.
            if request.job.is_fragmented() {
                !request.has_run()
            } else {
                pass_through && request.ran == 0
            }
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

    /// The n-th accepted request of a kind.
    pub(super) fn nth(&self, kind: Kind, nth: usize) -> Option<usize> {
        let all = self.requests.iter().enumerate();
        all.filter(|(_, request)| request.job.kind == kind).map(|(at, _)| at).nth(nth)
    }

    /// Accepted requests of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.requests.iter().filter(|request| request.job.kind == kind).count()
    }

    /// Checks that what is settled is still in place.
    pub(super) fn check_memory(&self) {
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
