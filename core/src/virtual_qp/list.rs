//! Requests whose local bytes are a list of buffers.
//!
//! Over several rails, such a request has a place in the ring for itself, and behind it one for
//! each buffer, because the list is needed as long as fragments may have to be posted. The ring's
//! cursors pass the places of the buffers. Over a single rail, and for a SEND that need not wait,
//! the list goes to the driver as it is.
//!
//! The fragments of a request with a list differ from others (see `dispatch`) in two ways: a
//! fragment has several buffers where it passes their borders, and fragments of a batch may have
//! different lengths.

use super::choose::Chooser;
use super::dispatch::{
    Progress, Truncated, fragment_request, load, post_gap, post_rest, unacknowledged,
};
use super::error::PostSendError;
use super::keys::Keys;
use super::parts::{Cut, Gathered, Walk};
use super::qp::VirtualQp;
use super::scheme::dqplb::SendNumbers;
use super::scheme::{Numbering, Unnumbered};
use super::slot::{SendSlot, Sends, SlotState};
use super::tracker::TrackerFull;
use crate::hardware::{MAX_SGE, QueuePair, SendBatch, Taken, add_gathered};
use crate::rail::tag::Tag;
use crate::rail::{Batch, Content, Rail, RailError};
use crate::verbs::{DeviceId, LocalBuffer, LocalPart, Opcode, SendFlags, SendWr, Sge};
use core::ops::Range;

/// Returns the buffers that have bytes, each with its index in the list.
pub(super) fn filled<'b, 'k>(
    buffers: &'b [LocalPart<'k>],
) -> impl Iterator<Item = (usize, &'b LocalPart<'k>)> + Clone {
    buffers.iter().enumerate().filter(|(_, part)| part.local.length() > 0)
}

/// Returns the scatter/gather entries that the engine uses: 1 to [`MAX_SGE`].
pub(super) fn usable(max_sge: u32) -> u32 {
    max_sge.clamp(1, MAX_SGE as u32)
}

/// Refuses a list of more than `max` buffers.
fn check_count(count: usize, max: usize) -> Result<(), PostSendError> {
    if count > max { Err(PostSendError::TooManyBuffers { count, max }) } else { Ok(()) }
}

/// Returns the lkey of a buffer on a device. An inline request needs none, because it is copied
/// when it is posted.
#[inline]
pub(super) fn lkey(
    flags: SendFlags,
    part: &LocalPart<'_>,
    buffer: usize,
    device: DeviceId,
) -> Result<u32, PostSendError> {
    if flags.contains(SendFlags::INLINE) {
        part.local.check_inline()?;
    }
    match Keys::find(part.keys, device, 0) {
        Some(keys) => Ok(keys.lkey),
        None if flags.contains(SendFlags::INLINE) => Ok(0),
        None => Err(PostSendError::BufferKeys { buffer, device }),
    }
}

/// Returns the buffers of one physical request on a device.
fn gather(
    flags: SendFlags,
    buffers: &[LocalPart<'_>],
    device: DeviceId,
    max: u32,
) -> Result<Gathered, PostSendError> {
    check_count(filled(buffers).count(), max as usize)?;
    filled(buffers).map(|(at, part)| Ok(part.local.sge(lkey(flags, part, at, device)?))).collect()
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts a request whose local bytes are the buffers of a list, one behind the other, in place
    /// of [`SendWr::local`]. The remote bytes are in one piece. `buffers` itself is not needed any
    /// more when the call returns; the bytes are, as ever. Buffers without bytes are left out.
    ///
    /// | | buffers at most |
    /// |---|---|
    /// | WRITE and READ, with or without immediate, over several rails | [`places of the ring`](Self), less one |
    /// | SEND, and any request over a single rail | what [the queue pair takes](crate::hardware::QpLimits::max_send_sge) |
    /// | atomics | take one buffer, and no list |
    ///
    /// Over several rails, fragments pass the borders of buffers: each has as many buffers as all
    /// rails take, up to [`MAX_SGE`], and is shorter than others only where it would have more. The
    /// request needs as many free places of the ring as there are buffers, and one more. It keeps
    /// them until it is reported in its turn, or only one of them, if it is one fragment that a
    /// rail takes at once and need not be re-routed.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). [`PostSendError::NoBuffers`]: the list is empty.
    /// [`PostSendError::List`]: the opcode takes one buffer. [`PostSendError::ListTooLong`]:
    /// together the buffers are longer than a request can be. [`PostSendError::TooManyBuffers`]:
    /// see above. [`PostSendError::BufferKeys`]: one of them is not registered with a device that
    /// it would be needed on.
    pub fn post_list(
        &mut self,
        wr: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        let first = buffers.first().ok_or(PostSendError::NoBuffers)?;
        if matches!(wr.opcode, Opcode::CompareSwap | Opcode::FetchAdd | Opcode::LocalInv) {
            return Err(PostSendError::List(wr.opcode));
        }
        let bytes = buffers.iter().map(|part| u64::from(part.local.length())).sum::<u64>();
        let length = u32::try_from(bytes).map_err(|_| PostSendError::ListTooLong { bytes })?;
        // Nothing is left to gather, so the list takes no places in the ring.
        if length == 0 {
            return self.post_alone(&SendWr { local: LocalBuffer::EMPTY, ..*wr });
        }
        // Only the length is used; the addresses come from the buffers.
        let whole = SendWr { local: first.local.within(0, length), ..*wr };
        if !self.is_multi() {
            return self.post_single_list(&whole, buffers);
        }
        if self.health.failed {
            return Err(PostSendError::InErrorState);
        }
        let posted = match wr.opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead => {
                self.post_spread_list(&whole, buffers)
            }
            Opcode::Send | Opcode::SendWithImm => self.pass_list_through(&whole, buffers),
            _ => Err(PostSendError::UnsupportedOpcode(wr.opcode)),
        };
        self.debug_invariants();
        posted
    }

    fn post_single_list(
        &mut self,
        whole: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        let Rail { device, .. } = self.rails[0];
        let max = self.rails[0].qp.limits().max_send_sge;
        let keys = match whole.opcode {
            // A SEND names no memory of the peer.
            Opcode::Send | Opcode::SendWithImm => Keys::default(),
            _ => Keys::of(whole, device, 0)?,
        };
        let gathered = gather(whole.flags, buffers, device, usable(max))?;
        let rail = &mut self.rails[0];
        let mut sends = rail.qp.start_send();
        add_gathered(&mut sends, keys.request(whole, self.header.imm_order), &gathered);
        let posted = Taken::of(1, sends.commit()).single();
        if posted.is_ok() {
            rail.count_untracked(whole.local.length());
        }
        Ok(self.posted_to_rail_0(posted)?)
    }

    /// Returns the buffers of a list for the driver of rail 0.
    pub(super) fn gather_on_rail_0(
        &self,
        whole: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<Gathered, PostSendError> {
        gather(whole.flags, buffers, self.rails[0].device, self.max_sge)
    }

    fn post_spread_list(
        &mut self,
        whole: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        self.check_fragmented(whole)?;
        let is_inline = whole.flags.contains(SendFlags::INLINE);
        let waits = self.sends.front_pending().is_some();
        let count = filled(buffers).count();
        if is_inline {
            // An inline request is one fragment, so the whole list must fit one request.
            check_count(count, self.max_sge as usize)?;
            if waits {
                return Err(PostSendError::InlineMustWait);
            }
        }
        self.check_places(count)?;
        if !waits && self.is_whole(whole, count) {
            return self.post_whole(whole, buffers);
        }
        self.check_keys(whole.flags, buffers, 0..self.devices.places.len())?;
        let id = self.add_apart(whole)?;
        self.add_parts(id, buffers)?;
        // Requests go to the rails oldest first, so behind a waiting request this one waits, too.
        if waits {
            return Ok(());
        }
        let progress = self.dispatch(id);
        self.list_dispatched(id, is_inline, progress)
    }

    /// Refuses a list of `count` buffers that does not fit the ring.
    pub(super) fn check_places(&self, count: usize) -> Result<(), PostSendError> {
        // More buffers than that never fit, so polling does not help: this is not back-pressure.
        check_count(count, WRS - 1)?;
        // The request itself takes one more place. Checked before anything is added, so that a
        // refusal changes nothing.
        if count >= self.sends.room() {
            return Err(TrackerFull { capacity: WRS }.into());
        }
        Ok(())
    }

    /// Refuses a list that has a buffer without a key for one of these places of devices.
    pub(super) fn check_keys(
        &self,
        flags: SendFlags,
        buffers: &[LocalPart<'_>],
        places: Range<usize>,
    ) -> Result<(), PostSendError> {
        // A fragment may go to any of these devices, and a lost one may be posted again on another.
        for place in &self.devices.places[places] {
            for (at, part) in filled(buffers) {
                lkey(flags, part, at, place.device())?;
            }
        }
        Ok(())
    }

    /// Adds the buffers of the newest request to the ring, which has room for them.
    pub(super) fn add_parts(
        &mut self,
        id: u64,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        let Self { sends, devices, parts, .. } = self;
        sends.slot(id).state.insert(SlotState::LISTED);
        for (_, part) in filled(buffers) {
            let mut slot =
                SendSlot { local: part.local, state: SlotState::PART, ..SendSlot::BLANK };
            for (at, (keys, place)) in slot.keys.iter_mut().zip(&devices.places).enumerate() {
                *keys = Keys::find(part.keys, place.device(), at).unwrap_or_default();
            }
            sends.add(slot)?;
            // `list_invariants` checks this count. Buffers are no requests, so `unreported_sends`
            // subtracts it.
            *parts += 1;
        }
        Ok(())
    }

    /// Handles how far the newest request got, which has a list and was the only one pending.
    pub(super) fn list_dispatched(
        &mut self,
        id: u64,
        is_inline: bool,
        progress: Progress,
    ) -> Result<(), PostSendError> {
        match progress {
            // The buffers occupy the places behind the request, and the cursor passes them with it.
            Progress::Posted => {
                while self.sends.front_pending().is_some() {
                    self.sends.pop_pending();
                }
            }
            Progress::Waits if is_inline => {
                return Err(self.forget_list(id, PostSendError::InlineMustWait));
            }
            Progress::Refused(error) => {
                if self.sends.slot(id).batches_in_flight == 0 {
                    let RailError { rail, errno, .. } = error;
                    let errno = errno.unwrap_or_default();
                    return Err(self.forget_list(id, PostSendError::Driver { rail, errno }));
                }
                self.request_refused(id, error);
            }
            Progress::Nothing | Progress::Waits | Progress::Failed => {}
        }
        Ok(())
    }

    /// Removes request `id`, the newest, and its buffers, of which nothing is posted.
    #[cold]
    fn forget_list(&mut self, id: u64, error: PostSendError) -> PostSendError {
        self.take_back_from(id);
        // Otherwise the next fence would compare with this mark and not wait for requests that
        // bypass the ring in between.
        self.pass_through.forget_fence();
        error
    }

    /// Returns how requests with lists are cut.
    #[inline]
    pub(super) const fn cut(&self) -> Cut {
        Cut { size: self.config.max_msg_size, buffers: self.max_sge }
    }

    /// Posts as much as it can of the front pending request, which has a list.
    pub(super) fn dispatch_listed(&mut self, id: u64) -> Progress {
        if self.sends.slot(id).is_fenced() && !self.passes_fence(id) {
            return Progress::Waits;
        }
        let cut = self.cut();
        let Self { rails, sends, chooser, scheme, pass_through, .. } = self;
        let oldest_in_flight = sends.front_in_flight();
        // A copy, because its buffers are in the same ring, which is read below.
        let slot = *sends.slot(id);
        let result = if slot.is_numbered() {
            let pass_through_ahead = pass_through.is_ahead_of(id);
            let numbers = scheme.numbers_for(&slot, oldest_in_flight, pass_through_ahead);
            let Some(numbers) = numbers else { return Progress::Waits };
            dispatch_parts(rails, sends, chooser, numbers, cut, id)
        } else {
            dispatch_parts(rails, sends, chooser, &mut Unnumbered, cut, id)
        };
        match result {
            Ok(true) => {
                scheme.dispatched(id, &slot);
                Progress::Posted
            }
            Ok(false) => Progress::Waits,
            Err(truncated) => self.taken_in_part(&truncated),
        }
    }

    /// Checks the count of buffers in the ring.
    pub(super) fn list_invariants(&self) {
        let parts = self.sends.iter().filter(|slot| slot.state.contains(SlotState::PART));
        assert_eq!(parts.count(), self.parts, "buffers in the ring");
    }
}

/// Splits the rest of request `id` into one share for each rail that has credits. Returns whether
/// all of it is with the rails.
fn dispatch_parts<
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rails: &mut [Rail<Q, DEPTH>],
    sends: &mut Sends<RAILS, WRS>,
    chooser: &mut Chooser<RAILS>,
    numbers: &mut N,
    cut: Cut,
    id: u64,
) -> Result<bool, Truncated> {
    let slot = *sends.slot(id);
    let mut offset = slot.offset;
    let mut walk = Walk::at(sends, id, offset);
    let all = walk.fragments_left(sends, cut);
    if all == 0 {
        return Ok(true);
    }
    let share = chooser.share(all);
    let mut left = numbers.room(all, || unacknowledged(rails));
    let without_number = all - left;
    let mut round = chooser.round();
    while left > 0 {
        let Some((at, most)) = chooser.next(&mut round, left, share, || load(rails)) else { break };
        let rail = &mut rails[at];
        let count = most.min(rail.sends.credits());
        left -= count;
        let is_end = left + without_number == 0;
        let from = walk;
        // Walked and not multiplied: a fragment that would need too many buffers is shorter.
        let length = walk.pass_many(sends, cut, count);
        let number = numbers.take(count);
        let remembered = N::remembered(number);
        let batch = Batch::fragments(id, N::CONTENT, offset, length, remembered, count);
        let tag = rail.sends.push(batch);
        if rail.sends.credits() == 0 {
            chooser.set_exhausted(rail.turn_bit);
        }
        let offered = OfferedParts::<N> { count, offset, tag, number, is_end, from };
        let taken = post_parts(rail, sends, &slot, offered, cut);
        offset += length;
        let slot = sends.slot(id);
        slot.offset = offset;
        slot.batches_in_flight += 1;
        if let Some(refusal) = taken.refusal {
            return Err(Truncated { at, count, taken: taken.count, refusal });
        }
        if is_end {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The fragments of a batch that a driver is to be offered.
#[derive(Clone, Copy)]
struct OfferedParts<N: Numbering> {
    /// How many, at least 1.
    count: u32,
    /// First byte of them within the request.
    offset: u32,
    /// Tag and number of the first one.
    tag: Tag,
    number: N::Number,
    /// The request ends with them.
    is_end: bool,
    /// Where they begin.
    from: Walk,
}

/// Posts fragments of a request with a list to one rail.
fn post_parts<
    N: Numbering,
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rail: &mut Rail<Q, DEPTH>,
    list: &Sends<RAILS, WRS>,
    slot: &SendSlot<RAILS>,
    offered: OfferedParts<N>,
    cut: Cut,
) -> Taken {
    let OfferedParts { count, offset, mut tag, mut number, is_end, from: mut walk } = offered;
    let keys = slot.keys[usize::from(rail.keys_at)];
    let inner_flags = N::inner_flags(slot);
    let mut remote_addr = slot.remote_addr + u64::from(offset);
    let mut gathered = Gathered::new();
    let mut sends = rail.qp.start_send();
    for at in 1..=count {
        let length = walk.gather(list, cut, rail.keys_at, &mut gathered);
        let is_last = at == count;
        let ends = is_last && is_end;
        let mut flags = if ends { slot.last_flags } else { inner_flags };
        // Its completion retires the whole batch.
        flags.set(SendFlags::SIGNALED, is_last);
        let own_tag = if is_last { tag.last() } else { tag };
        let request = fragment_request::<N, RAILS>(slot, keys, own_tag, flags);
        let request = request(N::imm(number, ends), Sge::EMPTY, remote_addr);
        add_gathered(&mut sends, request, &gathered);
        tag = tag.next_of_batch();
        number = N::after(number);
        remote_addr += u64::from(length);
    }
    Taken::of(count, sends.commit())
}

/// Posts the fragments of a batch from `index` on, the first of them under `tag`, whether their
/// request has a list or not, or was taken back.
pub(super) fn post_rest_of<
    Q: QueuePair,
    const RAILS: usize,
    const DEPTH: usize,
    const WRS: usize,
>(
    rail: &mut Rail<Q, DEPTH>,
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
    index: u32,
    tag: Tag,
    cut: Cut,
) -> Taken {
    let slot = *sends.slot(batch.wr);
    if batch.content == Content::Gap {
        return post_gap(rail, &slot, batch, index, tag);
    }
    if !slot.state.contains(SlotState::LISTED) {
        return post_rest(rail, &slot, batch, index, tag, cut.size);
    }
    if slot.is_numbered() {
        let rest = rest_of_parts::<SendNumbers, RAILS, WRS>(sends, batch, index, tag, cut);
        post_parts(rail, sends, &slot, rest, cut)
    } else {
        let rest = rest_of_parts::<Unnumbered, RAILS, WRS>(sends, batch, index, tag, cut);
        post_parts(rail, sends, &slot, rest, cut)
    }
}

fn rest_of_parts<N: Numbering, const RAILS: usize, const WRS: usize>(
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
    index: u32,
    tag: Tag,
    cut: Cut,
) -> OfferedParts<N> {
    // From the first byte of the batch on, fragments end where they did the first time (see
    // `parts`). From the first byte of the request they might not: batches begin anywhere.
    let mut from = Walk::at(sends, batch.wr, batch.offset);
    let offset = batch.offset + from.pass_many(sends, cut, index);
    let is_end = batch.offset + batch.length == sends.slot(batch.wr).local.length();
    let count = u32::from(batch.count) - index;
    OfferedParts { count, offset, tag, number: N::number_of(batch, index), is_end, from }
}
