//! Requests whose local bytes are a list of buffers.
//!
//! Such a request takes a place of the ring for itself and one, behind it, for each buffer: so the list is
//! remembered for as long as fragments may have to be posted. The ring's cursors pass the buffers' places. No
//! fragment spans two buffers, nor does a batch, so each is posted as if its buffer were all there is.

use super::dispatch::{Progress, dispatch_fragments};
use super::error::PostSendError;
use super::qp::VirtualQp;
use super::scheme::{Inner, SchemeRules, Unnumbered};
use super::slot::{Keys, SendSlot, Sends, SlotState};
use super::tracker::TrackerFull;
use crate::hardware::QueuePair;
use crate::rail::RailError;
use crate::verbs::{LocalBuffer, LocalPart, Opcode, SendFlags, SendWr};

/// A request as far as one of its buffers goes.
struct View<const RAILS: usize> {
    /// The request, as if the buffer were at its place in a buffer of the request's length.
    slot: SendSlot<RAILS>,
    /// Where the buffer ends within the request.
    end: u32,
}

/// What is posted of a request from `offset` on, up to the end of the buffer there, if it has a list.
pub(super) fn slot_at<const RAILS: usize, const WRS: usize>(
    sends: &mut Sends<RAILS, WRS>,
    id: u64,
    offset: u32,
) -> SendSlot<RAILS> {
    let slot = *sends.slot(id);
    if slot.state.contains(SlotState::LISTED) { view(sends, id, offset).slot } else { slot }
}

fn view<const RAILS: usize, const WRS: usize>(
    sends: &Sends<RAILS, WRS>,
    id: u64,
    offset: u32,
) -> View<RAILS> {
    let slots = (id..).map_while(|id| sends.find(id));
    let mut slots = slots.copied();
    let mut slot = slots.next().unwrap_or(SendSlot::BLANK);
    let mut end = 0;
    for part in slots.take_while(|slot| slot.state.contains(SlotState::PART)) {
        let start = end;
        end += part.local.length();
        if offset < end {
            slot.local = part.local.within(start, slot.local.length());
            for (keys, part) in slot.keys.iter_mut().zip(part.keys) {
                keys.lkey = part.lkey;
            }
            break;
        }
    }
    View { slot, end }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts a WRITE or READ, with or without immediate, over several rails, whose local bytes are the buffers
    /// of a list, one behind the other, in place of [`SendWr::local`]. The remote bytes are in one piece.
    ///
    /// No fragment spans two buffers. The request takes as many places of the ring as there are buffers, and
    /// one more, until it is reported in its turn; `buffers` itself is not needed any more.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send). [`PostSendError::List`]: the rail is an only one, the opcode is another, or
    /// the request is INLINE. [`PostSendError::ListTooLong`]: together the buffers are longer than a request can
    /// be. [`PostSendError::TooManyBuffers`]: more than the ring can hold.
    pub fn post_list(
        &mut self,
        wr: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        self.check_list(wr)?;
        let bytes = buffers.iter().map(|part| u64::from(part.local.length())).sum::<u64>();
        let length = u32::try_from(bytes).map_err(|_| PostSendError::ListTooLong { bytes })?;
        let Some(first) = buffers.first().filter(|_| length > 0) else {
            return self.post_alone(&SendWr { local: LocalBuffer::EMPTY, ..*wr });
        };
        // Its address is never used: each buffer stands in for it.
        let whole = SendWr { local: first.local.within(0, length), ..*wr };
        self.check_fragmented(&whole)?;
        let waits = self.sends.front_pending().is_some();
        let id = self.add_list(&whole, buffers)?;
        let posted = if waits { Ok(()) } else { self.dispatch_list(id) };
        self.debug_invariants();
        posted
    }

    fn check_list(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let is_spread =
            matches!(wr.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead);
        if !self.is_multi() || !is_spread || wr.flags.contains(SendFlags::INLINE) {
            return Err(PostSendError::List(wr.opcode));
        }
        if self.health.failed { Err(PostSendError::InErrorState) } else { Ok(()) }
    }

    /// Gives a request and its buffers their places in the ring.
    fn add_list(
        &mut self,
        wr: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<u64, PostSendError> {
        let filled = || buffers.iter().filter(|part| part.local.length() > 0);
        let count = filled().count();
        if count >= WRS {
            return Err(PostSendError::TooManyBuffers { count, max: WRS - 1 });
        }
        if count >= self.sends.room() {
            return Err(TrackerFull { capacity: WRS }.into());
        }
        let mut devices = self.devices.iter();
        let missing = devices
            .find(|device| filled().any(|part| Keys::find(part.keys, **device, 0).is_none()));
        if let Some(device) = missing {
            return Err(PostSendError::MissingKeys { device: *device });
        }
        let id = self.add_fragmented::<false>(wr)?;
        self.sends.slot(id).state.insert(SlotState::LISTED);
        let Self { sends, devices, .. } = self;
        for part in filled() {
            let mut slot =
                SendSlot { local: part.local, state: SlotState::PART, ..SendSlot::BLANK };
            for (at, (keys, device)) in slot.keys.iter_mut().zip(devices.iter()).enumerate() {
                *keys = Keys::find(part.keys, *device, at).unwrap_or_default();
            }
            sends.add(slot)?;
        }
        self.parts += count;
        Ok(id)
    }

    /// Posts what it can of the newest request, which has a list and is the only one pending.
    fn dispatch_list(&mut self, id: u64) -> Result<(), PostSendError> {
        match self.dispatch(id) {
            // The cursor passes the buffers too.
            Progress::Posted => self.dispatch_pending(),
            Progress::Refused(error) => {
                if self.sends.slot(id).batches_in_flight == 0 {
                    return Err(self.forget_list(error));
                }
                self.request_refused(id, error);
            }
            Progress::Nothing | Progress::Waits | Progress::Failed => {}
        }
        Ok(())
    }

    /// Forgets the newest request and its buffers, of which nothing is posted.
    #[cold]
    fn forget_list(&mut self, RailError { rail, errno, .. }: RailError) -> PostSendError {
        while let Some(slot) = self.sends.take_back() {
            self.parts -= usize::from(slot.state.contains(SlotState::PART));
        }
        self.pass_through.forget_fence();
        PostSendError::Driver { rail, errno: errno.unwrap_or_default() }
    }

    /// Posts what it can of the front pending request, which has a list: buffer after buffer.
    pub(super) fn dispatch_listed(&mut self, id: u64) -> Progress {
        if self.sends.slot(id).is_fenced() && !self.passes_fence(id) {
            return Progress::Waits;
        }
        loop {
            let Self { rails, sends, chooser, scheme, config, pass_through, .. } = self;
            let size = config.max_msg_size;
            let oldest_in_flight = sends.front_in_flight();
            let whole = *sends.slot(id);
            if whole.unposted() == 0 {
                scheme.dispatched(id, &whole);
                return Progress::Posted;
            }
            let View { slot: mut part, end } = view(sends, id, whole.offset);
            let is_last = end == whole.local.length();
            part.local = part.local.first(end);
            let result = if whole.is_numbered() {
                if scheme.holds_back(&whole, oldest_in_flight, pass_through.is_ahead_of(id)) {
                    return Progress::Waits;
                }
                let Some(numbers) = scheme.numbers() else { return Progress::Waits };
                if is_last {
                    dispatch_fragments::<false, _, _, _, _>(
                        rails, chooser, &mut part, numbers, size, id,
                    )
                } else {
                    part.last_flags &= SendFlags::SOLICITED;
                    let inner = &mut Inner(numbers);
                    dispatch_fragments::<false, _, _, _, _>(
                        rails, chooser, &mut part, inner, size, id,
                    )
                }
            } else {
                if !is_last {
                    part.last_flags = SendFlags::empty();
                }
                let none = &mut Unnumbered;
                dispatch_fragments::<false, _, _, _, _>(rails, chooser, &mut part, none, size, id)
            };
            let slot = sends.slot(id);
            slot.offset = part.offset;
            slot.batches_in_flight = part.batches_in_flight;
            match result {
                Ok(true) => {}
                Ok(false) => return Progress::Waits,
                Err(truncated) => return self.taken_in_part(&truncated),
            }
        }
    }

    /// What must hold between the ring and what is counted.
    pub(super) fn list_invariants(&self) {
        let parts = self.sends.iter().filter(|slot| slot.state.contains(SlotState::PART));
        assert_eq!(parts.count(), self.parts, "buffers in the ring");
    }
}
