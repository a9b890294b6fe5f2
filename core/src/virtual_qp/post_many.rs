//! Posts several requests with one call and the fewest doorbells: consecutive WRITEs and READs are
//! distributed over the rails like the fragments of a single request.

use super::choose::{Chooser, MOST_SHARED};
use super::dispatch::{Offered, add_fragments, load, unacknowledged};
use super::error::{PostManyError, PostSendError};
use super::keys::Keys;
use super::qp::VirtualQp;
use super::scheme::{Numbering, Unnumbered};
use super::slot::{SendSlot, Sends};
use crate::hardware::{QueuePair, SendBatch, Taken};
use crate::rail::{Batch, PhysicalRail, Rail, RailError};
use crate::verbs::{Opcode, SendFlags, SendWr};

/// How many requests were posted, and why the next one was not.
type Posted = (usize, Option<PostSendError>);

/// Fragments of requests, oldest first, that a driver was offered with one doorbell.
#[derive(Clone, Copy)]
struct Run {
    /// The first request and the last one.
    first: u64,
    last: u64,
    /// Bytes of the first one that were with rails before.
    offset: u32,
    /// Fragments.
    count: u32,
    taken: Taken,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts requests in order, with the same result as [`post_send`](Self::post_send) for each,
    /// but with fewer doorbells. A single rail needs one. Over several rails, consecutive WRITEs
    /// and READs need one for each rail that they use, as do consecutive SENDs and atomics that
    /// need not wait. (With DQPLB, plain requests, SOLICITED WRITE_WITH_IMMs and other
    /// WRITE_WITH_IMMs are separate groups.) A request with FENCE has a separate doorbell.
    ///
    /// ```
    /// use polyrail_core::hardware::QueuePair;
    /// use polyrail_core::verbs::SendWr;
    /// use polyrail_core::virtual_qp::{PostSendError, VirtualQp};
    ///
    /// /// Posts all of them, or returns how many there is no room for now.
    /// fn post_all<Q: QueuePair>(
    ///     qp: &mut VirtualQp<Q, 4, 128, 256>,
    ///     wrs: &[SendWr<'_>],
    /// ) -> Result<usize, PostSendError> {
    ///     match qp.post_many(wrs) {
    ///         Ok(()) => Ok(0),
    ///         Err(some) if some.error.is_back_pressure() => Ok(wrs.len() - some.posted),
    ///         Err(some) => Err(some.error),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// A request was refused. Nothing is kept of it and of the requests behind it; the error has
    /// the number of requests that were posted.
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
            // The driver may accept all requests and still return an error.
            let complaint = self.posted_to_rail_0(Ok(taken.refusal)).err();
            return (posted.len(), error.or(complaint.map(Into::into)));
        }
        let refused = taken.refusal.and_then(|refusal| self.posted_to_rail_0(Err(refusal)).err());
        (posted.len(), refused.map(Into::into))
    }

    fn post_each(&mut self, wrs: &[SendWr<'_>]) -> Posted {
        let mut posted = 0;
        while let Some(wr) = wrs.get(posted) {
            let spread = wrs[posted..].iter().take_while(|wr| is_spread(wr)).count();
            let (mut count, mut error) = (0, None);
            if spread > 1 {
                (count, error) = self.post_spread(&wrs[posted..posted + spread]);
            } else if spread == 0 {
                count = self.bypass_many(&wrs[posted..]);
            }
            if count == 0 && error.is_none() {
                error = self.post_alone(wr).err();
                count = usize::from(error.is_none());
            }
            posted += count;
            if error.is_some() {
                return (posted, error);
            }
        }
        (posted, None)
    }

    /// Posts requests with fragments, which wait only for rails and numbers. Fragments without room
    /// on the rails wait in the ring.
    fn post_spread(&mut self, wrs: &[SendWr<'_>]) -> Posted {
        if self.health.failed {
            return (0, Some(PostSendError::InErrorState));
        }
        // Requests go to the rails in order: behind a waiting request, all of these wait.
        let waits = self.sends.front_pending().is_some();
        let size = self.config.max_msg_size;
        let mut error = None;
        let mut posted = 0;
        // The sum over all requests may exceed 32 bits.
        let mut fragments = 0u64;
        let mut has_inline = false;
        for wr in wrs {
            let is_inline = wr.flags.contains(SendFlags::INLINE);
            let added = match self.check_fragmented(wr) {
                // The caller may reuse an inline buffer when the call returns.
                Ok(()) if is_inline && waits => Err(PostSendError::InlineMustWait),
                Ok(()) => self.add_apart(wr),
                Err(refused) => Err(refused),
            };
            if let Err(refused) = added {
                error = Some(refused);
                break;
            }
            let length = wr.local.length();
            fragments +=
                if length <= size { 1 } else { u64::from(self.chooser.fragments_in(length)) };
            has_inline |= is_inline;
            posted += 1;
        }
        if !waits && posted > 0 {
            // Shares are exact up to this number. More fragments never change a share, because the
            // rails have credits for far fewer.
            let left = fragments.min(u64::from(MOST_SHARED)) as u32;
            let refused = if fragments == posted as u64 {
                self.dispatch_runs::<true>(left)
            } else {
                self.dispatch_runs::<false>(left)
            };
            let kept = if let Some(RailError { rail, errno, .. }) = refused {
                error = Some(PostSendError::Driver { rail, errno: errno.unwrap_or_default() });
                self.sends.front_pending()
            } else if has_inline && let Some(id) = self.first_inline_pending() {
                error = Some(PostSendError::InlineMustWait);
                Some(id)
            } else {
                None
            };
            if let Some(refused) = kept {
                posted -= self.take_back_from(refused);
            }
        }
        self.debug_invariants();
        (posted, error)
    }

    #[cold]
    fn first_inline_pending(&self) -> Option<u64> {
        let is_inline = |slot: &SendSlot<RAILS>| slot.flags.contains(SendFlags::INLINE);
        self.sends.pending_ids().find(|id| self.sends.find(*id).is_some_and(is_inline))
    }

    /// Posts a run of the pending requests to each rail until one has to wait. `left` is the number
    /// of their fragments, at most [`MOST_SHARED`]. `ONE`: each request is one fragment. Returns
    /// the error of a driver that refused a request for good and has nothing of it.
    fn dispatch_runs<const ONE: bool>(&mut self, mut left: u32) -> Option<RailError> {
        let mut round = self.chooser.round();
        let share = self.chooser.share(left);
        while let Some(first) = self.sends.front_pending() {
            let Self { rails, chooser, .. } = self;
            let (at, most) = chooser.next(&mut round, left, share, || load(rails))?;
            let run = self.post_run::<ONE>(at, first, most);
            if run.count == 0 {
                return None;
            }
            left -= run.count;
            if run.taken.refusal.is_some() {
                let (not_taken, refused) = self.run_refused::<ONE>(at, &run);
                if refused.is_some() || self.health.failed {
                    return refused;
                }
                left += not_taken;
                // The rail is out of the round now, and what it did not take is for the others.
                round = self.chooser.round();
            }
        }
        None
    }

    /// Posts up to `most` fragments of the pending requests from `first` on to a rail, as long as
    /// the requests are of one kind.
    fn post_run<const ONE: bool>(&mut self, at: usize, first: u64, most: u32) -> Run {
        let Self { rails, sends, chooser, scheme, pass_through, config, .. } = self;
        let oldest_in_flight = sends.front_in_flight();
        let slot = *sends.slot(first);
        let is_alike = |other: &SendSlot<RAILS>| {
            // One loop posts a run, and it is compiled for fragments with numbers or for those
            // without.
            other.is_numbered() == slot.is_numbered()
                // With DQPLB a solicited request may have to wait for others (`holds_back`), so it
                // must not share a doorbell with them.
                && (other.flags ^ slot.flags) & SendFlags::SOLICITED == SendFlags::empty()
        };
        let most = most.min(rails[at].sends.credits());
        let alike = (first..).map_while(|id| sends.find(id)).take(most as usize);
        let alike = alike.take_while(|slot| is_alike(slot));
        let most = if ONE {
            alike.count() as u32
        } else {
            let fragments =
                |slot: &SendSlot<RAILS>| u64::from(chooser.fragments_in(slot.unposted()));
            alike.map(fragments).sum::<u64>().min(u64::from(most)) as u32
        };
        let none = Taken { count: 0, refusal: None };
        let mut run = Run { first, last: first, offset: slot.offset, count: most, taken: none };
        let cut = Fragments { chooser, size: config.max_msg_size };
        if slot.is_numbered() {
            let pass_through_ahead = pass_through.is_ahead_of(first);
            let numbers = scheme.numbers_for(&slot, oldest_in_flight, pass_through_ahead);
            let Some(numbers) = numbers else { return Run { count: 0, ..run } };
            run.count = numbers.room(most, || unacknowledged(rails));
            post_alike::<ONE, _, Q, RAILS, DEPTH, WRS>(
                &mut rails[at],
                sends,
                numbers,
                &mut run,
                cut,
            );
        } else {
            let none = &mut Unnumbered;
            post_alike::<ONE, _, Q, RAILS, DEPTH, WRS>(&mut rails[at], sends, none, &mut run, cut);
        }
        let rail = &mut rails[at];
        if rail.sends.credits() == 0 {
            chooser.set_exhausted(rail.turn_bit);
        }
        if run.taken.refusal.is_none() {
            self.run_dispatched(&run);
        }
        run
    }

    /// Marks the requests of a run that have nothing left to post as being with the rails.
    fn run_dispatched(&mut self, run: &Run) {
        for id in run.first..=run.last {
            let slot = self.sends.slot(id);
            if slot.unposted() > 0 {
                return;
            }
            self.scheme.dispatched(id, slot);
            self.sends.pop_pending();
        }
    }

    /// Handles a driver that took nothing or only the front of a run, or took it with an error.
    /// Returns the number of fragments in requests that are off the rail again, and the error if
    /// the driver refused a request for good and has nothing of it.
    #[cold]
    fn run_refused<const ONE: bool>(&mut self, at: usize, run: &Run) -> (u32, Option<RailError>) {
        let mut not_taken = run.count - run.taken.count;
        let mut back = 0;
        let mut batches = run.last - run.first + 1;
        let mut blamed = run.last;
        // From the newest on: a driver takes a prefix of the chain (ibv_post_send(3)).
        for id in (run.first..=run.last).rev() {
            let slot = self.sends.slot(id);
            // Only the first request of a run can have had fragments with rails before.
            let before = if id == run.first { run.offset } else { 0 };
            let count = if ONE { 1 } else { self.chooser.fragments_in(slot.offset - before) };
            if not_taken == 0 {
                break;
            }
            blamed = id;
            let taken = count.saturating_sub(not_taken);
            self.rails[at].sends.truncate(count, taken);
            not_taken -= count - taken;
            if taken == 0 {
                slot.offset = before;
                slot.batches_in_flight -= 1;
                back += count;
                batches -= 1;
            }
        }
        self.rails[at].shared_doorbells += batches.saturating_sub(1);
        if self.sends.find(run.first).is_some_and(SendSlot::is_numbered) {
            self.scheme.take_back_numbers(back);
        }
        self.run_dispatched(run);
        let rail = self.rails[at].id;
        self.offers.sends.insert(rail);
        self.update_availability(at);
        let Some(errno) = run.taken.refusal.and_then(|refusal| refusal.errno()) else {
            return (back, None);
        };
        let error = self.rails[at].refusal_error(errno, 0);
        if self.survives(&error) {
            self.rail_failed(error);
        } else if self.sends.slot(blamed).batches_in_flight == 0 {
            return (back, Some(error));
        } else {
            self.request_refused(blamed, error);
        }
        (back, None)
    }
}

/// Returns whether a request is split into fragments and waits for no fence.
fn is_spread(wr: &SendWr<'_>) -> bool {
    let is_fragmented =
        matches!(wr.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead);
    is_fragmented && wr.local.length() > 0 && !wr.flags.contains(SendFlags::FENCE)
}

/// How requests are cut.
#[derive(Clone, Copy)]
struct Fragments<'c, const RAILS: usize> {
    chooser: &'c Chooser<RAILS>,
    size: u32,
}

/// Posts the fragments of a run to one rail, a batch for each request. Records the last request of
/// the run, and how much the driver took.
fn post_alike<
    const ONE: bool,
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rail: &mut Rail<Q, DEPTH>,
    sends: &mut Sends<RAILS, WRS>,
    numbers: &mut N,
    run: &mut Run,
    Fragments { chooser, size }: Fragments<'_, RAILS>,
) {
    if run.count == 0 {
        return;
    }
    let mut left = run.count;
    let mut id = run.first;
    let mut batch = rail.qp.start_send();
    loop {
        let slot = sends.slot(id);
        let unposted = slot.unposted();
        let all = if ONE { 1 } else { chooser.fragments_in(unposted) };
        let count = all.min(left);
        let is_end = count == all;
        let before_last = (count - 1) * size;
        let last_length = if is_end { unposted - before_last } else { size };
        let length = before_last + last_length;
        let offset = slot.offset;
        let number = numbers.take(count);
        let remembered = N::remembered(number);
        let noted = Batch::fragments(id, N::CONTENT, offset, length, remembered, count);
        let tag = rail.sends.push(noted);
        slot.offset = offset + length;
        slot.batches_in_flight += 1;
        let offered = Offered { count, offset, last_length, tag, number, is_end };
        add_fragments::<N, _, RAILS>(&mut batch, rail.keys_at, slot, offered, size);
        left -= count;
        if left == 0 {
            break;
        }
        id += 1;
    }
    run.last = id;
    run.taken = Taken::of(run.count, batch.commit());
    if run.taken.refusal.is_none() {
        // All batches but the first.
        rail.shared_doorbells += run.last - run.first;
    }
}
