//! SENDs and atomics pass through to rail 0: at once if their order allows it, otherwise deferred.
//!
//! A deferred request has a place in the ring, which determines the requests before it, but the
//! ring's cursors pass it. It delays dispatch, notifies and reports of other requests only as far
//! as their order requires. Deferred requests are posted to rail 0 in posting order, complete in
//! that order, and are reported when they complete. Their slots are kept until then.

mod operands;
mod state;

pub(super) use operands::Operands;
pub(super) use state::PassThrough;

use super::config::PassThroughOrder;
use super::error::{PostSendError, RefusedBy};
use super::keys::Keys;
use super::parts::{Cut, Gathered, Walk};
use super::qp::VirtualQp;
use super::scheme::SchemeState;
use super::slot::{SendSlot, Sends, SlotState};
use super::tracker::TrackerFull;
use crate::completion::{DirectCompletions, VirtualWc};
use crate::hardware::{MAX_SGE, QueuePair, Refusal, SendBatch, Taken};
use crate::rail::{Batch, Content, PhysicalRail, RailId};
use crate::verbs::{Completion, LocalPart, Opcode, SendFlags, SendWr, Sge, WcStatus};
use state::NONE;

/// Returns the first request after `id` in this state.
fn next_after<const RAILS: usize, const WRS: usize>(
    sends: &Sends<RAILS, WRS>,
    id: u64,
    state: SlotState,
) -> u64 {
    let later = (id + 1..).map_while(|id| sends.find(id).map(|slot| (id, slot)));
    let mut found = later.filter(|(_, slot)| slot.state.contains(state));
    found.next().map_or(NONE, |(id, _)| id)
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Step 1 of a SEND or atomic: posts it past the ring if its order allows it, otherwise adds it
    /// to the ring.
    #[inline(always)]
    pub(super) fn post_pass_through(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.check_pass_through(wr)?;
        let keys = Keys::of(wr, self.rails[0].device, 0)?;
        if self.bypass_if_it_may(wr, keys, &[])? {
            return Ok(());
        }
        let operands = Operands::of(wr);
        // Checked before anything is added, so that a refusal changes nothing.
        if self.sends.room() < 1 + usize::from(operands.is_some()) {
            return Err(TrackerFull { capacity: WRS }.into());
        }
        // A copy, as in `post_fragmented`.
        let id = self.add_deferred::<false>(&{ *wr }, keys)?;
        if let Some(operands) = operands {
            self.sends.add(operands.slot())?;
            self.parts += 1;
        }
        self.defer(id);
        Ok(())
    }

    /// Posts a SEND with a list of buffers.
    pub(super) fn pass_list_through(
        &mut self,
        whole: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        self.check_pass_through(whole)?;
        // Each buffer has separate keys, and a SEND names no memory of the peer.
        let keys = Keys::default();
        let gathered = self.gather_on_rail_0(whole, buffers)?;
        if self.bypass_if_it_may(whole, keys, &gathered)? {
            return Ok(());
        }
        let devices = if self.reroute.is_on { self.devices.places.len() } else { 0 };
        self.check_places(gathered.len())?;
        self.check_keys(whole.flags, buffers, 0..devices)?;
        let id = self.add_deferred::<true>(whole, keys)?;
        self.add_parts(id, buffers)?;
        self.defer(id);
        Ok(())
    }

    /// Posts a pass-through request, if it need not wait. Returns whether it was posted.
    #[inline(always)]
    fn bypass_if_it_may(
        &mut self,
        wr: &SendWr<'_>,
        keys: Keys,
        list: &[Sge],
    ) -> Result<bool, PostSendError> {
        if self.may_bypass(wr) {
            match self.bypass(wr, keys, list) {
                // Not an error yet: the request can wait in the ring.
                Err(RefusedBy { refusal: Refusal::QueueFull, .. }) => {}
                posted => return Ok(posted.map(|()| true)?),
            }
        }
        if wr.flags.contains(SendFlags::INLINE) {
            // The caller may reuse the buffer when the post returns, so an inline request cannot
            // wait.
            return Err(PostSendError::InlineMustWait);
        }
        Ok(false)
    }

    /// Posts the leading requests that may go straight to rail 0, if there are several. Returns how
    /// many; the caller posts the next request alone.
    pub(super) fn bypass_many(&mut self, wrs: &[SendWr<'_>]) -> usize {
        let room = self.rails[0].sends.credits() as usize;
        let may_pass = |(at, wr): &(usize, &SendWr<'_>)| {
            // A fence waits for the requests before it, and those of the same chain are not
            // complete. Whether the first one may go at all is asked by `may_bypass`.
            let follows = *at == 0 || !wr.flags.contains(SendFlags::FENCE);
            follows && is_pass_through(wr.opcode) && self.check_pass_through(wr).is_ok()
        };
        let count = wrs.iter().take(room).enumerate().take_while(may_pass).count();
        if count < 2 || self.health.failed || !self.may_bypass(&wrs[0]) {
            return 0;
        }
        let imm_order = self.header.imm_order;
        let rail = &mut self.rails[0];
        let mut added = 0;
        let mut sends = rail.qp.start_send();
        for wr in &wrs[..count] {
            let Ok(keys) = Keys::of(wr, rail.device, 0) else { break };
            let signaled = wr.flags.contains(SendFlags::SIGNALED);
            let content = if signaled { Content::PassThrough } else { Content::Unsignaled };
            let batch = Batch::one(wr.wr_id, wr.local.length(), content, wr.opcode);
            let mut request = keys.request(wr, imm_order);
            request.wr_id = rail.sends.push(batch).last().wr_id();
            // Signaled whatever the caller asked: its completion frees its credit. The content of
            // the batch remembers whether to report it.
            request.flags |= SendFlags::SIGNALED;
            sends.add(&request);
            added += 1;
        }
        if added == 0 {
            return 0;
        }
        let taken = Taken::of(added, sends.commit());
        // From the newest on: a driver takes a prefix of the chain (ibv_post_send(3)).
        for _ in taken.count..added {
            rail.sends.truncate(1, 0);
        }
        rail.shared_doorbells += u64::from(taken.count.saturating_sub(1));
        self.pass_through.bypassing += taken.count;
        match taken.refusal {
            Some(Refusal::QueueFull) => self.offers.sends.insert(RailId::Data(0)),
            Some(complaint) if taken.count == added => {
                self.driver_complained(RailId::Data(0), complaint);
            }
            // The next request is offered again on its own, which shows whether it is refused.
            Some(Refusal::Driver(_)) | None => {}
        }
        self.update_availability(0);
        self.debug_invariants();
        taken.count as usize
    }

    #[inline(always)]
    fn check_pass_through(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let is_send = matches!(wr.opcode, Opcode::Send | Opcode::SendWithImm);
        // The peer's rail 0 holds receives without buffers for the numbers, and a SEND would take
        // one.
        if is_send && matches!(self.scheme, SchemeState::Dqplb(_)) {
            return Err(PostSendError::SendWithDqplb(wr.opcode));
        }
        let rail = &self.rails[0];
        // Only rail 0 can carry the request, and when it returns is up to the owner. A request that
        // waited would hold back the notifies behind it for as long.
        if !rail.is_enabled {
            return Err(PostSendError::RailDown);
        }
        if wr.flags.contains(SendFlags::INLINE) {
            if self.reroute.is_on {
                // The buffer is free when the post returns, so the request could not be posted
                // again.
                return Err(PostSendError::InlineRerouted);
            }
            if wr.opcode.is_fetching() {
                // INLINE is for SEND and WRITE only (ibv_post_send(3)).
                return Err(PostSendError::InlineOpcode(wr.opcode));
            }
            wr.local.check_inline()?;
            let length = wr.local.length();
            let max = rail.qp.limits().max_inline_data;
            if length > max {
                return Err(PostSendError::InlineTooLong { length, max });
            }
        }
        Ok(())
    }

    /// Returns whether a pass-through request may go straight to rail 0.
    #[inline(always)]
    fn may_bypass(&self, wr: &SendWr<'_>) -> bool {
        // With re-routing it may have to be posted again, so the ring must keep it.
        if self.reroute.is_on || self.pass_through.is_waiting() || !self.rail_0_has_room() {
            return false;
        }
        let fenced = wr.flags.contains(SendFlags::FENCE);
        if fenced && !self.pass_through.is_idle() {
            return false;
        }
        // A reliable connection would keep it behind the fragments; on several rails only a wait
        // does.
        let may_overtake = !fenced && self.pass_through.order == PassThroughOrder::Unordered;
        may_overtake || (self.sends.unacknowledged_count() == 0 && !self.scheme.is_notifying())
    }

    #[inline(always)]
    fn bypass(&mut self, wr: &SendWr<'_>, keys: Keys, list: &[Sge]) -> Result<(), RefusedBy> {
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let content = if signaled { Content::PassThrough } else { Content::Unsignaled };
        let batch = Batch::one(wr.wr_id, wr.local.length(), content, wr.opcode);
        let request = keys.request(wr, self.header.imm_order);
        let rail = &mut self.rails[0];
        match rail.post_one(request, list, batch) {
            Ok(None) => {
                self.pass_through.bypassing += 1;
                if rail.sends.credits() == 0 {
                    self.chooser.set_exhausted(rail.turn_bit);
                }
                Ok(())
            }
            posted => self.bypass_refused(posted),
        }
    }

    /// Handles a driver that refused a request that was to bypass the ring, or took it with an
    /// error.
    #[cold]
    #[inline(never)]
    fn bypass_refused(
        &mut self,
        posted: Result<Option<Refusal>, Refusal>,
    ) -> Result<(), RefusedBy> {
        match posted {
            Ok(_) => self.pass_through.bypassing += 1,
            // The rail takes no fragments until a poll has offered it something again, so that they
            // do not take every slot that becomes free.
            Err(Refusal::QueueFull) => self.offers.sends.insert(RailId::Data(0)),
            Err(Refusal::Driver(_)) => {}
        }
        let posted = self.posted_to_rail_0(posted);
        self.update_availability(0);
        posted
    }

    /// Adds a pass-through request to the ring. A `LISTED` request needs only the keys of its
    /// buffers.
    #[inline(never)]
    fn add_deferred<const LISTED: bool>(
        &mut self,
        wr: &SendWr<'_>,
        keys: Keys,
    ) -> Result<u64, PostSendError> {
        let imm_order = self.header.imm_order;
        let Self { sends, devices, reroute, .. } = self;
        let id = sends.add_with(|slot| {
            slot.keys[0] = keys;
            if reroute.is_on && !LISTED {
                // Rail 0 may return on any of the devices, so keys for all of them are kept.
                for (at, keys) in slot.keys.iter_mut().enumerate().take(devices.places.len()) {
                    *keys = Keys::of_at(wr, &devices.places, at)?;
                }
            }
            slot.fill(wr, imm_order, SlotState::PASS_THROUGH | SlotState::DEFERRED);
            Ok::<_, PostSendError>(())
        })?;
        self.pass_through.add(id, self.reroute.is_on);
        // The cursors pass this request before it completes, and its slot must outlive them.
        self.sends.keep_from(self.pass_through.keeps_from());
        Ok(id)
    }

    /// Defers the newest request of the ring until its order and rail 0 allow it to be posted.
    fn defer(&mut self, id: u64) {
        // With requests before it that wait for rails, the ring's cursor passes it, and its
        // buffers, in their turn.
        while self.sends.front_pending().is_some_and(|front| front >= id) {
            self.sends.pop_pending();
        }
        // Without re-routing, `bypass_if_it_may` has just found that the request must wait.
        if self.reroute.is_on {
            self.post_deferred();
        }
    }

    /// Posts deferred requests, oldest first, until one has to wait.
    #[cold]
    pub(super) fn post_deferred(&mut self) {
        while !self.health.failed && self.pass_through.is_waiting() {
            let id = self.pass_through.next;
            if !self.may_post_deferred(id) {
                return;
            }
            let slot = *self.sends.slot(id);
            let keys_at = self.rails[0].keys_at;
            let mut request = slot.pass_through(keys_at);
            if slot.opcode.is_fetching() {
                Operands::in_slot(self.sends.slot(id + 1)).add_to(&mut request);
            }
            let batch = Batch::one(id, slot.local.length(), Content::Deferred, slot.opcode);
            let posted = if slot.state.contains(SlotState::LISTED) {
                // A SEND is one physical request, so its buffers are not cut.
                let whole = Cut { size: slot.local.length(), buffers: MAX_SGE as u32 };
                let mut gathered = Gathered::new();
                Walk::at(&self.sends, id, 0).gather(&self.sends, whole, keys_at, &mut gathered);
                self.rails[0].post_one(request, &gathered, batch)
            } else {
                self.rails[0].post_one(request, &[], batch)
            };
            if posted.is_ok() {
                self.pass_through.next = next_after(&self.sends, id, SlotState::DEFERRED);
            }
            match posted {
                Ok(None) => {}
                Err(Refusal::QueueFull) => self.offers.sends.insert(RailId::Data(0)),
                Ok(Some(refusal)) | Err(refusal) => {
                    let error = self.rails[0].refusal_error(refusal.errno_or_full(), 0);
                    self.request_refused(id, error);
                }
            }
            self.update_availability(0);
        }
    }

    fn may_post_deferred(&self, id: u64) -> bool {
        let PassThrough { order, bypassing, oldest, .. } = self.pass_through;
        let slot = self.sends.find(id);
        let fenced = slot.is_some_and(|slot| slot.flags.contains(SendFlags::FENCE));
        // A fence on purpose would lose an atomic, and the virtual queue pair with it.
        let holds_atomics = self.rails[0].health.lifecycle.holds_atomics();
        if holds_atomics && slot.is_some_and(|slot| slot.opcode.is_fetching()) {
            return false;
        }
        // FENCE waits in either order: it is for what the caller orders itself.
        let waits = fenced || order == PassThroughOrder::Ordered;
        let first = bypassing == 0 && oldest == id;
        self.rail_0_has_room_for_accepted()
            && (first || !fenced)
            && (!waits || self.is_acknowledged_before(id))
    }

    /// Returns whether all fragmented requests before request `id` are acknowledged, notifies
    /// included.
    pub(super) fn is_acknowledged_before(&self, id: u64) -> bool {
        let acknowledged = self.sends.front_in_flight().is_none_or(|front| front >= id)
            && self.sends.front_pending().is_none_or(|front| front >= id);
        acknowledged && !(self.scheme.is_notifying() && self.has_notify_before(id))
    }

    fn has_notify_before(&self, id: u64) -> bool {
        let first = self.sends.front_finished().unwrap_or(id);
        let mut earlier = (first..id).map_while(|id| self.sends.find(id));
        earlier.any(SendSlot::wants_notify)
    }

    /// Handles the completion of a deferred request, which is reported at once unless it succeeded
    /// and is unsignaled.
    pub(super) fn complete_deferred(
        &mut self,
        batch: &Batch,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        if self.reroute.is_on {
            // A request can also be complete by the peer's count, without a completion, so reports
            // come from the ring, in order.
            return self.deferred_is_complete(batch.wr, completion.status);
        }
        let slot = self.sends.slot(batch.wr);
        slot.state.remove(SlotState::DEFERRED);
        let wr_id = slot.wr_id;
        if slot.flags.contains(SendFlags::SIGNALED) || !completion.status.is_success() {
            direct.push(self.passed_through(wr_id, batch, completion));
        }
        self.finish_deferred(batch.wr);
    }

    /// Returns the report of a pass-through request.
    pub(super) fn passed_through(
        &self,
        wr_id: u64,
        batch: &Batch,
        completion: &Completion,
    ) -> VirtualWc {
        VirtualWc {
            wr_id,
            status: completion.status,
            opcode: batch.opcode.completion(),
            qp_num: self.header.virtual_qp_num,
            byte_len: batch.length,
            imm: None,
        }
    }

    /// Removes a deferred request that is complete or flushed.
    pub(super) fn finish_deferred(&mut self, id: u64) {
        self.pass_through.incomplete -= 1;
        if self.pass_through.oldest == id {
            self.pass_through.oldest = next_after(&self.sends, id, SlotState::DEFERRED);
            self.sends.keep_from(self.pass_through.keeps_from());
        }
    }

    /// With re-routing: notes that a deferred request is complete. It is reported after earlier
    /// ones.
    pub(super) fn deferred_is_complete(&mut self, id: u64, status: WcStatus) {
        let slot = self.sends.slot(id);
        slot.state.remove(SlotState::DEFERRED);
        slot.fail(status);
        self.pass_through.complete += 1;
        self.health.needs_recovery = true;
        self.finish_deferred(id);
    }

    /// Returns the report of the oldest deferred request, if it is complete. The success of an
    /// unsignaled request is not reported.
    pub(super) fn report_complete(&mut self) -> Option<VirtualWc> {
        while self.pass_through.has_complete() {
            let id = self.pass_through.unreported;
            let slot = self.sends.slot(id);
            let wc = slot.report(self.header.virtual_qp_num);
            let is_signaled = slot.flags.contains(SendFlags::SIGNALED);
            self.pass_through.complete -= 1;
            // Before `keep_from`, which frees the slots before the oldest one that is still needed.
            self.pass_through.unreported = next_after(&self.sends, id, SlotState::PASS_THROUGH);
            self.sends.keep_from(self.pass_through.keeps_from());
            if is_signaled || !wc.status.is_success() {
                return Some(wc);
            }
        }
        None
    }

    /// Returns whether the next report is of a deferred request that will not be posted any more:
    /// no pass-through request is in flight before it.
    #[inline]
    pub(super) fn is_flushing(&self) -> bool {
        let PassThrough { bypassing, oldest, next, .. } = self.pass_through;
        self.health.failed && next != NONE && bypassing == 0 && oldest == next
    }

    /// Flushes the next deferred request, which will not be posted any more. Returns its id.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_deferred(&mut self) -> u64 {
        let id = self.pass_through.next;
        self.pass_through.next = next_after(&self.sends, id, SlotState::DEFERRED);
        let slot = self.sends.slot(id);
        slot.state.remove(SlotState::DEFERRED);
        slot.fail(WcStatus::WR_FLUSH_ERR);
        id
    }

    /// Checks what must hold between the ring, rail 0 and the pass-through requests.
    pub(super) fn pass_through_invariants(&self) {
        let PassThrough { bypassing, oldest, next, incomplete, to_pass, .. } = self.pass_through;
        let on_rail_0 = || {
            let sends = &self.rails[0].sends;
            sends.iter().chain(sends.lost_batches())
        };
        let bypasses = on_rail_0().filter(|batch| batch.content.bypasses_ring()).count();
        assert_eq!(bypassing as usize, bypasses, "notifies wait for what bypasses the ring");
        let is_deferred = |id: &u64| {
            self.sends.find(*id).is_some_and(|slot| slot.state.contains(SlotState::DEFERRED))
        };
        let alive = self.sends.alive();
        assert_eq!(alive.clone().find(is_deferred).unwrap_or(NONE), oldest, "the oldest");
        assert_eq!(alive.clone().filter(is_deferred).count(), incomplete as usize);
        let passes = self.sends.iter().filter(|slot| slot.state.contains(SlotState::PASS_THROUGH));
        assert_eq!(passes.count(), to_pass as usize, "pass-through requests in the ring");
        let in_flight = |id: u64| {
            let mut deferred = on_rail_0().filter(|batch| batch.content == Content::Deferred);
            deferred.any(|batch| batch.wr == id)
        };
        for id in alive.filter(is_deferred) {
            // `next` alone says which requests rail 0 has, so no flag of a slot has to.
            assert_eq!(in_flight(id), id < next, "deferred requests are posted in order");
        }
    }
}

const fn is_pass_through(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Send | Opcode::SendWithImm | Opcode::CompareSwap | Opcode::FetchAdd)
}
