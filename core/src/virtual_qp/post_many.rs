//! Several requests with one call, and with the fewest doorbells: short ones that follow each other are
//! shared out to the rails like the fragments of a long one.

use super::dispatch::{load, unacknowledged};
use super::error::{PostManyError, PostSendError};
use super::fragments::fragment_request;
use super::qp::VirtualQp;
use super::scheme::{Numbering, SchemeRules, Unnumbered};
use super::slot::{Keys, SendSlot, Sends};
use crate::hardware::{QueuePair, SendBatch, Taken};
use crate::rail::{Batch, Rail, RailError};
use crate::verbs::{Opcode, SendFlags, SendWr};

/// How many requests were posted, and why the next one was not.
type Posted = (usize, Option<PostSendError>);

/// Requests, oldest first, that a driver was offered with one doorbell.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    count: u32,
    taken: Taken,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts requests in their order, as [`post_send`](Self::post_send) posts each of them, with fewer
    /// doorbells: over a single rail with one; over several with one for each rail that WRITEs and READs of one
    /// fragment go to, as long as they follow each other. Longer ones, SENDs, atomics, and requests with FENCE
    /// or INLINE ring for themselves.
    ///
    /// # Errors
    ///
    /// The first request that is refused and those behind it are forgotten; the error tells how many were
    /// posted before.
    pub fn post_many(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostManyError> {
        let (posted, error) =
            if self.is_multi() { self.post_each(wrs) } else { self.post_single_many(wrs) };
        error.map_or(Ok(()), |error| Err(PostManyError { posted, error }))
    }

    #[inline(never)]
    fn post_single_many(&mut self, wrs: &[SendWr<'_>]) -> Posted {
        let imm_order = self.header.imm_order;
        let rail = &mut self.rails[0];
        let mut error = None;
        let mut count = 0;
        let mut sends = rail.qp.start_send();
        for wr in wrs {
            match Keys::of(wr, rail.device, 0) {
                Ok(keys) => sends.add(&keys.request(wr, imm_order)),
                Err(missing) => {
                    error = Some(missing);
                    break;
                }
            }
            count += 1;
        }
        if count == 0 {
            return (0, error);
        }
        let taken = Taken::of(count, sends.commit());
        let posted = &wrs[..taken.count as usize];
        posted.iter().for_each(|wr| rail.count_untracked(wr.local.length()));
        rail.shared_doorbells += u64::from(taken.count.saturating_sub(1));
        if taken.count == count {
            // It took them all, and may complain all the same.
            let complaint = self.posted_to_rail_0(Ok(taken.refusal)).err();
            return (posted.len(), error.or(complaint.map(Into::into)));
        }
        let refused = taken.refusal.and_then(|refusal| self.posted_to_rail_0(Err(refusal)).err());
        (posted.len(), refused.map(Into::into))
    }

    fn post_each(&mut self, wrs: &[SendWr<'_>]) -> Posted {
        let mut posted = 0;
        while let Some(wr) = wrs.get(posted) {
            let short = wrs[posted..].iter().take_while(|wr| self.is_short(wr)).count();
            let (count, error) = if short > 1 {
                self.post_short(&wrs[posted..posted + short])
            } else {
                self.post_alone(wr).map_or_else(|error| (0, Some(error)), |()| (1, None))
            };
            posted += count;
            if error.is_some() {
                return (posted, error);
            }
        }
        (posted, None)
    }

    /// [`post_send`](Self::post_send) over several rails, but not in line: who calls that wants it to be.
    #[inline(never)]
    pub(super) fn post_alone(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.post_multi(wr)
    }

    /// Whether a request is one fragment, which nothing but rails and numbers has to be waited for.
    fn is_short(&self, wr: &SendWr<'_>) -> bool {
        let is_fragment =
            matches!(wr.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead);
        let length = wr.local.length();
        let is_special = wr.flags.intersects(SendFlags::FENCE.union(SendFlags::INLINE));
        is_fragment && length > 0 && length <= self.config.max_msg_size && !is_special
    }

    /// Posts requests of one fragment each. What finds no room on the rails waits in the ring.
    fn post_short(&mut self, wrs: &[SendWr<'_>]) -> Posted {
        if self.health.failed {
            return (0, Some(PostSendError::InErrorState));
        }
        let waits = self.sends.front_pending().is_some();
        let mut posted = 0;
        let mut error = None;
        for wr in wrs {
            let added = self.check_fragmented(wr).and_then(|()| self.add_fragmented::<false>(wr));
            match added {
                Ok(_) => posted += 1,
                Err(refused) => {
                    error = Some(refused);
                    break;
                }
            }
        }
        if !waits && let Some(RailError { rail, errno, .. }) = self.dispatch_runs() {
            while self.sends.take_back().is_some() {
                posted -= 1;
            }
            error = Some(PostSendError::Driver { rail, errno: errno.unwrap_or_default() });
        }
        self.debug_invariants();
        (posted, error)
    }

    /// Gives each rail a run of the pending requests, which are of one fragment each, until one has to wait.
    /// Returns why a driver refused one for good.
    fn dispatch_runs(&mut self) -> Option<RailError> {
        let mut round = self.chooser.round();
        let share = self.chooser.share(self.sends.pending_count().max(1) as u32);
        while let Some(first) = self.sends.front_pending() {
            let left = self.sends.pending_count() as u32;
            let Self { rails, chooser, .. } = self;
            let (at, most) = chooser.next(&mut round, left, share, || load(rails))?;
            let run = self.post_run(at, first, most);
            if run.count == 0 {
                return None;
            }
            if run.taken.refusal.is_some() {
                let refused = self.run_refused(at, &run);
                if refused.is_some() || self.health.failed {
                    return refused;
                }
                round = self.chooser.round();
            }
        }
        None
    }

    /// Posts up to `most` of the pending requests from `first` on to a rail, as far as they are of one kind.
    fn post_run(&mut self, at: usize, first: u64, most: u32) -> Run {
        let Self { rails, sends, chooser, scheme, pass_through, .. } = self;
        let oldest_in_flight = sends.front_in_flight();
        let slot = *sends.slot(first);
        let is_alike = |other: &SendSlot<RAILS>| {
            other.is_numbered() == slot.is_numbered()
                && (other.flags ^ slot.flags) & SendFlags::SOLICITED == SendFlags::empty()
        };
        let most = most.min(rails[at].sends.credits());
        let alike = (first..).map_while(|id| sends.find(id)).take(most as usize);
        let most = alike.take_while(|slot| is_alike(slot)).count() as u32;
        let (count, taken) = if slot.is_numbered() {
            let waits = scheme.holds_back(&slot, oldest_in_flight, pass_through.is_ahead_of(first));
            let Some(numbers) = scheme.numbers().filter(|_| !waits) else {
                return Run { first, count: 0, taken: Taken { count: 0, refusal: None } };
            };
            let count = numbers.room(most, || unacknowledged(rails));
            let taken = post_alike(&mut rails[at], sends, numbers, first, count);
            numbers.take_back(count - taken.count);
            (count, taken)
        } else {
            (most, post_alike(&mut rails[at], sends, &mut Unnumbered, first, most))
        };
        let rail = &mut rails[at];
        if rail.sends.credits() == 0 {
            chooser.set_exhausted(rail.turn_bit);
        }
        for id in first..first + u64::from(taken.count) {
            scheme.dispatched(id, sends.slot(id));
            sends.pop_pending();
        }
        for id in first + u64::from(taken.count)..first + u64::from(count) {
            let slot = sends.slot(id);
            slot.offset = 0;
            slot.batches_in_flight = 0;
        }
        Run { first, count, taken }
    }

    /// A driver took none or only the front of a run, or complained of it. Returns why, if it is for good.
    #[cold]
    fn run_refused(&mut self, at: usize, run: &Run) -> Option<RailError> {
        let rail = self.rails[at].id;
        self.offers.sends.insert(rail);
        self.update_availability(at);
        let errno = run.taken.refusal.and_then(|refusal| refusal.errno())?;
        let error = self.rails[at].refusal_error(errno, 0);
        if self.survives(&error) {
            self.rail_failed(error);
            return None;
        }
        if run.taken.count < run.count {
            return Some(error);
        }
        self.request_refused(run.first + u64::from(run.count - 1), error);
        None
    }
}

/// Posts `count` requests of one fragment each, from `first` on, to one rail. What its driver did not take is
/// in flight no more.
fn post_alike<
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rail: &mut Rail<Q, DEPTH>,
    sends: &mut Sends<RAILS, WRS>,
    numbers: &mut N,
    first: u64,
    count: u32,
) -> Taken {
    if count == 0 {
        return Taken { count: 0, refusal: None };
    }
    let keys_at = usize::from(rail.keys_at);
    let mut batch = rail.qp.start_send();
    for id in first..first + u64::from(count) {
        let slot = sends.slot(id);
        let number = numbers.take(1);
        let length = slot.local.length();
        let remembered = N::remembered(number);
        let noted = Batch::fragments(id, N::CONTENT, 0, length, remembered, 1);
        let tag = rail.sends.push(noted).last();
        slot.offset = length;
        slot.batches_in_flight = 1;
        let keys = slot.keys[keys_at];
        let flags = slot.last_flags.union(SendFlags::SIGNALED);
        let request = fragment_request::<N, RAILS>(slot, keys, tag, flags);
        batch.add(&request(N::imm(number, true), slot.local.sge(keys.lkey), slot.remote_addr));
    }
    let taken = Taken::of(count, batch.commit());
    for _ in taken.count..count {
        rail.sends.truncate(1, 0);
    }
    rail.shared_doorbells += u64::from(taken.count.saturating_sub(1));
    taken
}
