//! Step 1: checks a send request, then puts it into a slot of the ring or passes it through.

use super::dispatch::Progress;
use super::error::{PostSendError, RefusedBy};
use super::keys::Keys;
use super::qp::VirtualQp;
use super::scheme::SchemeState;
use super::slot::SlotState;
use crate::hardware::{QueuePair, Refusal, SendBatch, Taken};
use crate::rail::{RailError, RailId};
use crate::verbs::{DEVICE_ADDRESSES, LocalBuffer, Opcode, SendFlags, SendWr};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts a send request.
    ///
    /// Over several rails, WRITE and READ are split into fragments. Fragments for which the rails
    /// have no room wait in the ring, and are posted as completions make room. SENDs and atomics
    /// pass through to rail 0 (see [`PassThroughOrder`](super::PassThroughOrder)).
    ///
    /// A SEND, an atomic or a WRITE_WITH_IMM need not be SIGNALED. Then its failure is reported and
    /// its success is not, as in verbs; the peer is still notified of a WRITE_WITH_IMM. Until the
    /// request is complete it counts as [unreported](Self::unreported_sends), and requests behind
    /// it wait for their turn. WRITEs and READs must be SIGNALED, since nothing else would report
    /// that they are done.
    ///
    /// # Errors
    ///
    /// The request is refused, and nothing changed. After [`PostSendError::Full`] and
    /// [`PostSendError::QueueFull`], poll and try again; other errors are in the request.
    // Always in line: out of line, a post to an only rail stored the request in memory and loaded
    // it again, and took 91 instructions instead of 41 (in `routes_random_4096`).
    #[inline(always)]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if self.is_multi() {
            self.post_multi(wr)
        } else if RAILS > 1 {
            match wr.opcode {
                // If a call got the address of the request, a SEND over several rails would store
                // it in memory: 20 instructions more.
                Opcode::Send | Opcode::SendWithImm => self.post_single_apart(&{ *wr }),
                _ => self.post_single_of_several(wr),
            }
        } else {
            self.post_single(wr)
        }
    }

    /// Posts to the only rail.
    #[inline(always)]
    fn post_single(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        match Keys::find_at_hint(wr.keys, self.rails[0].device, 0) {
            Some(keys) => self.post_keyed(wr, keys),
            // Not the search alone: what it has to keep would take registers of every post.
            None => self.post_single_apart(&{ *wr }),
        }
    }

    /// Outlined copy of [`post_single`](Self::post_single), for requests whose first keys are not
    /// for the rail's device.
    #[cold]
    #[inline(never)]
    fn post_single_apart(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.post_keyed(wr, Keys::of(wr, self.rails[0].device, 0)?)
    }

    /// Copy of [`post_single`](Self::post_single) for types with room for several rails, which the
    /// compiler may put in line. Always in line, it made posts over several rails longer.
    #[inline]
    fn post_single_of_several(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.post_keyed(wr, Keys::of(wr, self.rails[0].device, 0)?)
    }

    /// Posts to the only rail, with the keys for its device.
    #[inline(always)]
    fn post_keyed(&mut self, wr: &SendWr<'_>, keys: Keys) -> Result<(), PostSendError> {
        let rail = &mut self.rails[0];
        let mut sends = rail.qp.start_send();
        sends.add(&keys.request(wr, self.header.imm_order));
        let posted = Taken::of(1, sends.commit()).single();
        if posted.is_ok() {
            rail.count_untracked(wr.local.length());
        }
        Ok(self.posted_to_rail_0(posted)?)
    }

    /// Handles the result of a request that was posted to rail 0 alone.
    #[inline]
    pub(super) fn posted_to_rail_0(
        &mut self,
        posted: Result<Option<Refusal>, Refusal>,
    ) -> Result<(), RefusedBy> {
        let rail = RailId::Data(0);
        match posted {
            Ok(None) => Ok(()),
            Ok(Some(complaint)) => {
                self.driver_complained(rail, complaint);
                Ok(())
            }
            Err(refusal) => Err(RefusedBy { rail, refusal }),
        }
    }

    /// Outlined copy of [`post_send`](Self::post_send) for callers that are not hot.
    #[inline(never)]
    pub(super) fn post_alone(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.post_send(wr)
    }

    #[inline(always)]
    fn post_multi(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if self.health.failed {
            return Err(PostSendError::InErrorState);
        }
        let posted = match wr.opcode {
            Opcode::RdmaWriteWithImm if self.is_short(wr) && self.goes_with_notify(wr) => {
                self.post_with_notify(wr)
            }
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead => {
                self.post_fragmented(wr)
            }
            Opcode::Send | Opcode::SendWithImm | Opcode::CompareSwap | Opcode::FetchAdd => {
                self.post_pass_through(wr)
            }
            // Both invalidate one key, which belongs to a single device: the keys of the other
            // rails' devices would stay valid.
            Opcode::LocalInv | Opcode::SendWithInv => {
                Err(PostSendError::UnsupportedOpcode(wr.opcode))
            }
        };
        self.debug_invariants();
        posted
    }

    fn post_fragmented(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if wr.local.length() == 0 {
            // Calls that are not in line get a copy of the request, here and below: if they got its
            // address, each post would have to store the request in memory.
            return self.post_empty(&{ *wr });
        }
        self.check_fragmented(wr)?;
        self.post_checked::<false>(wr)
    }

    /// Posts a request of 0 bytes, which must be a signal.
    #[cold]
    #[inline(never)]
    fn post_empty(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if wr.opcode != Opcode::RdmaWriteWithImm {
            return Err(PostSendError::Empty(wr.opcode));
        }
        self.check_flags(wr)?;
        self.post_checked::<true>(wr)
    }

    #[inline(always)]
    fn post_checked<const EMPTY: bool>(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        if inline && self.sends.front_pending().is_some() {
            return Err(PostSendError::InlineMustWait);
        }
        let id = self.add_fragmented::<EMPTY, false>(wr)?;
        self.dispatch_newest::<EMPTY>(id, inline)
    }

    /// Posts as much as it can of the newest request, which is in the ring. `APART`: not in line,
    /// for callers that are not hot.
    #[inline(always)]
    pub(super) fn dispatch_newest<const APART: bool>(
        &mut self,
        id: u64,
        inline: bool,
    ) -> Result<(), PostSendError> {
        // Checked after the request has its place. Before it, the result was kept in memory
        // meanwhile, and a request of one fragment took 407.5 instructions instead of 396.5.
        if self.sends.pending_count() > 1 {
            return Ok(());
        }
        let progress = if APART { self.dispatch(id) } else { self.dispatch_now(id) };
        match progress {
            Progress::Posted => self.sends.pop_pending(),
            Progress::Nothing => {
                // It has no fragments, so only earlier requests can hold it back.
                self.sends.pop_pending();
                self.acknowledge_now();
            }
            Progress::Waits if inline => {
                return self.refuse_newest(id, PostSendError::InlineMustWait);
            }
            Progress::Waits | Progress::Failed => {}
            Progress::Refused(error) => {
                if self.sends.slot(id).batches_in_flight == 0 {
                    let RailError { rail, errno, .. } = error;
                    let errno = errno.unwrap_or_default();
                    return self.refuse_newest(id, PostSendError::Driver { rail, errno });
                }
                self.request_refused(id, error);
            }
        }
        Ok(())
    }

    /// Outlined copy of [`add_fragmented`](Self::add_fragmented) for callers that are not hot.
    #[inline(never)]
    pub(super) fn add_apart(&mut self, wr: &SendWr<'_>) -> Result<u64, PostSendError> {
        self.add_fragmented::<false, true>(wr)
    }

    /// Adds a request to the ring. `APART` only makes the two uses different functions, because the
    /// compiler inlines a function with one use.
    #[inline(always)]
    fn add_fragmented<const EMPTY: bool, const APART: bool>(
        &mut self,
        wr: &SendWr<'_>,
    ) -> Result<u64, PostSendError> {
        let Self { sends, devices, scheme, header, ahead, .. } = self;
        sends.add_with(|slot| {
            let places = &*devices.places;
            for (at, (keys, place)) in slot.keys.iter_mut().zip(places).enumerate() {
                *keys = match Keys::find_at(wr.keys, places, at) {
                    Some(keys) => keys,
                    // A signal names no memory.
                    None if EMPTY => Keys::default(),
                    None => return Err(PostSendError::MissingKeys { device: place.device() }),
                };
            }
            slot.fill(wr, header.imm_order, header.first_state);
            if wr.opcode == Opcode::RdmaWriteWithImm
                && let SchemeState::Spray(spray) = &*scheme
            {
                let notify = spray.notify.as_ref().ok_or(PostSendError::NoNotifyQp)?;
                // After `fill` and the keys: it changes the state and opcode that `fill` sets, and
                // takes one of the keys.
                slot.prepare_notify(Keys::of(wr, notify.device, 0)?, notify.keys_at);
            }
            if let Some(order) = wr.report_order {
                ahead.choose(slot, order);
            }
            if EMPTY && slot.wants_notify() {
                slot.state.insert(SlotState::NO_DATA);
            }
            Ok::<_, PostSendError>(())
        })
    }

    /// Removes the newest request, `id`, no part of which is posted.
    #[cold]
    fn refuse_newest(&mut self, id: u64, error: PostSendError) -> Result<(), PostSendError> {
        self.take_back_from(id);
        self.pass_through.forget_fence();
        Err(error)
    }

    /// Removes the pending requests from `id` on, no part of which is posted. Returns their number,
    /// including the buffers of lists.
    #[cold]
    pub(super) fn take_back_from(&mut self, id: u64) -> usize {
        let (mut count, mut any) = (0, false);
        while self.sends.pending_ids().end > id
            && let Some(slot) = self.sends.take_back()
        {
            self.parts -= usize::from(slot.state.contains(SlotState::PART));
            any |= slot.state.contains(SlotState::WHEN_DONE);
            count += 1;
        }
        // With none left, completions are handled by the loop that does not check for such
        // requests.
        if any {
            let mut alive = self.sends.alive().filter_map(|id| self.sends.find(id));
            let others = alive.any(|slot| slot.state.contains(SlotState::WHEN_DONE));
            self.ahead
                .note_others(others || self.header.first_state.contains(SlotState::WHEN_DONE));
        }
        count
    }

    #[inline]
    pub(super) fn check_fragmented(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let length = wr.local.length();
        // Fragments add their offset to the address without a check.
        if wr.remote_addr.checked_add(u64::from(length)).is_none() {
            return Err(PostSendError::RemoteRange { addr: wr.remote_addr, length });
        }
        // One comparison for the usual flags.
        if wr.flags == SendFlags::SIGNALED { Ok(()) } else { self.check_flags(&{ *wr }) }
    }

    #[cold]
    #[inline(never)]
    fn check_flags(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        if !signaled && wr.opcode != Opcode::RdmaWriteWithImm {
            // Nothing else would show that its buffer is free again.
            return Err(PostSendError::Unsignaled(wr.opcode));
        }
        if !wr.flags.contains(SendFlags::INLINE) {
            Ok(())
        } else if self.reroute.is_on {
            // The buffer is free when the post returns, so a lost fragment could not be posted
            // again.
            Err(PostSendError::InlineRerouted)
        } else {
            self.check_inline(wr)
        }
    }

    /// Checks an INLINE request. Its buffer is free when the post returns (ibv_post_send(3)), so
    /// the request must fit one inline fragment on every rail.
    fn check_inline(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if wr.opcode.is_fetching() {
            return Err(PostSendError::InlineOpcode(wr.opcode));
        }
        wr.local.check_inline()?;
        let inline = self.rails.iter().map(|rail| rail.qp.limits().max_inline_data).min();
        let max = inline.unwrap_or_default().min(self.config.max_msg_size);
        let length = wr.local.length();
        if length > max { Err(PostSendError::InlineTooLong { length, max }) } else { Ok(()) }
    }
}

impl LocalBuffer {
    /// Refuses bytes that the CPU cannot copy into an inline request.
    pub(super) const fn check_inline(&self) -> Result<(), PostSendError> {
        match self.addr() {
            addr @ DEVICE_ADDRESSES.. => Err(PostSendError::InlineDeviceAddress { addr }),
            _ => Ok(()),
        }
    }
}
