//! The callers' receives with buffers, which pass through to rail 0.

use crate::completion::VirtualWc;
use crate::debug::List;
use crate::verbs::{LocalBuffer, WcOpcode, WcStatus};
use core::fmt;

/// A receive with a buffer.
#[derive(Clone, Copy, Debug)]
struct DataReceive<const RAILS: usize> {
    /// The `wr_id` of its caller.
    wr_id: u64,
    what: What<RAILS>,
}

#[derive(Clone, Copy, Debug)]
enum What<const RAILS: usize> {
    Waits(Buffer<RAILS>),
    /// Another buffer of the receive before it.
    More(Buffer<RAILS>),
    Complete(Outcome),
}

/// Where a receive puts what arrives, with the keys of the buffer on every device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer<const RAILS: usize> {
    pub(super) local: LocalBuffer,
    pub(super) lkeys: [u32; RAILS],
}

/// The result of a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) status: WcStatus,
    pub(super) opcode: WcOpcode,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
}

impl Outcome {
    const FLUSHED: Self =
        Self { status: WcStatus::WR_FLUSH_ERR, opcode: WcOpcode::RECV, byte_len: 0, imm: None };

    /// Its completion.
    pub(super) const fn report(self, wr_id: u64, qp_num: u32) -> VirtualWc {
        let Self { status, opcode, byte_len, imm } = self;
        VirtualWc { wr_id, status, opcode, qp_num, byte_len, imm }
    }
}

/// The data receives that are not reported. Without re-routing, only the `wr_id` of each posted one
/// is kept. With re-routing, each is kept whole, so that it can be posted again, and they are
/// reported from here, in order.
///
/// ```text
///     reported      complete      next
///   ------+------------+-------------+----> numbers
///         | wait to be | posted,     |
///         | reported   | or will be  |
/// ```
#[derive(Clone, Copy)]
pub(super) struct DataReceives<const RAILS: usize, const DEPTH: usize> {
    /// A receive was posted, so rail 0's receive queue is for data from then on.
    used: bool,
    reported: u64,
    complete: u64,
    next: u64,
    /// Numbers of additional buffers, which are not receives.
    more: u32,
    /// The receive with number i is at index i modulo `DEPTH`.
    receives: [DataReceive<RAILS>; DEPTH],
}

impl<const RAILS: usize, const DEPTH: usize> DataReceives<RAILS, DEPTH> {
    pub(super) const NONE: Self = Self {
        used: false,
        reported: 0,
        complete: 0,
        next: 0,
        more: 0,
        receives: [DataReceive { wr_id: 0, what: What::Complete(Outcome::FLUSHED) }; DEPTH],
    };

    const fn index(number: u64) -> usize {
        number as usize & (DEPTH - 1)
    }

    /// Whether rail 0's receive queue is for data.
    pub(super) const fn used(&self) -> bool {
        self.used
    }

    /// Without re-routing: notes that the receive with this number on rail 0 was posted.
    pub(super) fn posted(&mut self, sequence: u64, wr_id: u64) {
        self.used = true;
        self.receives[Self::index(sequence)].wr_id = wr_id;
    }

    /// Returns the `wr_id` of the receive with this number.
    pub(super) const fn wr_id(&self, sequence: u64) -> u64 {
        self.receives[Self::index(sequence)].wr_id
    }

    /// Receives that are remembered.
    pub(super) const fn unreported(&self) -> u32 {
        self.places() - self.more
    }

    /// Places in use: one for each receive and for each additional buffer.
    const fn places(&self) -> u32 {
        (self.next - self.reported) as u32
    }

    /// Places that are free.
    pub(super) const fn room(&self) -> usize {
        DEPTH - self.places() as usize
    }

    /// Adds a receive of these buffers, at least one.
    pub(super) fn add(&mut self, wr_id: u64, buffers: impl Iterator<Item = Buffer<RAILS>>) {
        self.used = true;
        for (at, buffer) in buffers.enumerate() {
            debug_assert!((self.places() as usize) < DEPTH);
            let what = if at == 0 { What::Waits(buffer) } else { What::More(buffer) };
            self.more += u32::from(at > 0);
            self.receives[Self::index(self.next)] = DataReceive { wr_id, what };
            self.next += 1;
        }
    }

    /// Removes the newest receive, which was not posted.
    pub(super) fn take_back(&mut self) {
        debug_assert!(self.complete < self.next);
        self.next -= 1;
        while matches!(self.receives[Self::index(self.next)].what, What::More(_)) {
            self.more -= 1;
            self.next -= 1;
        }
        // If no receive was ever accepted, rail 0's receive queue may still serve notifications.
        self.used = self.next > 0;
    }

    /// Reorders the keys after the places of devices have changed. `places_before` has a former
    /// place of the device of each place; a device has the same lkey at all its places.
    pub(super) fn renumber(&mut self, places_before: &[Option<usize>]) {
        for number in self.reported..self.next {
            let DataReceive { what, .. } = &mut self.receives[Self::index(number)];
            // Completed receives need no key any more.
            if let What::Waits(buffer) | What::More(buffer) = what {
                let before = buffer.lkeys;
                for (lkey, place) in buffer.lkeys.iter_mut().zip(places_before) {
                    *lkey = place.map_or(0, |place| before[place]);
                }
            }
        }
    }

    /// Returns the number behind a receive and all its buffers.
    fn behind(&self, number: u64) -> u64 {
        let is_more = |at: &u64| matches!(self.receives[Self::index(*at)].what, What::More(_));
        // Without lists, which is usual, every receive has one number, and no search is needed.
        let more =
            if self.more == 0 { 0 } else { (number + 1..self.next).take_while(is_more).count() };
        number + 1 + more as u64
    }

    /// Returns the buffers of the oldest receive that is not posted, if `posted` receives are.
    pub(super) fn first_unposted(
        &self,
        posted: u32,
    ) -> Option<impl Iterator<Item = &Buffer<RAILS>>> {
        let mut number = self.complete;
        if self.more == 0 {
            number += u64::from(posted);
        } else {
            (0..posted).for_each(|_| number = self.behind(number));
        }
        if number >= self.next {
            return None;
        }
        let places = number..self.behind(number);
        Some(places.filter_map(|at| match &self.receives[Self::index(at)].what {
            What::Waits(buffer) | What::More(buffer) => Some(buffer),
            What::Complete(_) => None,
        }))
    }

    /// Completes the oldest posted receive.
    pub(super) fn complete(&mut self, outcome: Outcome) {
        // A receive queue completes in posting order, so no search is needed.
        debug_assert!(self.complete < self.next);
        let behind = self.behind(self.complete);
        self.receives[Self::index(self.complete)].what = What::Complete(outcome);
        self.complete = behind;
    }

    /// Returns whether there is something to report. `flushed`: incomplete receives will never
    /// complete.
    pub(super) const fn has_report(&self, flushed: bool) -> bool {
        self.reported < if flushed { self.next } else { self.complete }
    }

    /// Returns the report of the oldest receive.
    pub(super) fn report(&mut self, qp_num: u32, flushed: bool) -> Option<VirtualWc> {
        if !self.has_report(flushed) {
            return None;
        }
        // Only with `flushed`: no queue pair holds this receive, so no completion will come.
        if self.reported == self.complete {
            self.complete(Outcome::FLUSHED);
        }
        let DataReceive { wr_id, what } = self.receives[Self::index(self.reported)];
        let behind = self.behind(self.reported);
        self.more -= (behind - self.reported - 1) as u32;
        self.reported = behind;
        let What::Complete(outcome) = what else { return None };
        Some(outcome.report(wr_id, qp_num))
    }
}

/// Shows only the receives that are remembered; other places have no meaning. (Without re-routing,
/// rail 0 knows which `wr_id`s are of posted receives.)
impl<const RAILS: usize, const DEPTH: usize> fmt::Debug for DataReceives<RAILS, DEPTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remembered =
            List(|| (self.reported..self.next).map(|at| &self.receives[Self::index(at)]));
        let mut receives = f.debug_struct("DataReceives");
        receives.field("used", &self.used).field("reported", &self.reported);
        receives.field("complete", &self.complete).field("next", &self.next);
        receives.field("more", &self.more).field("remembered", &remembered).finish()
    }
}
