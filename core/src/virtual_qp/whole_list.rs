//! Requests with a list that are one fragment, and that a rail can take at once.
//!
//! The driver gets the caller's buffers, so the buffers take no places in the ring. Places for 4
//! buffers, filled, read and passed, took 1903 instructions a request in place of 632.

use super::dispatch::{Offered, Progress, dispatch_fragments, fragment_request};
use super::error::PostSendError;
use super::list::{filled, lkey};
use super::parts::Gathered;
use super::qp::VirtualQp;
use super::scheme::{Numbering, Unnumbered};
use super::slot::SendSlot;
use crate::hardware::{QueuePair, SendBatch, Taken, add_gathered};
use crate::rail::Rail;
use crate::verbs::{DeviceId, LocalPart, SendFlags, SendWr, Sge};

/// The buffers of a request on one device.
struct OnDevice {
    device: DeviceId,
    gathered: Gathered,
}

impl OnDevice {
    /// Gathers the buffers for a device. There are at most as many as a request can have.
    #[inline(always)]
    fn gather(
        &mut self,
        flags: SendFlags,
        buffers: &[LocalPart<'_>],
        device: DeviceId,
    ) -> Result<(), PostSendError> {
        self.device = device;
        self.gathered.clear();
        for (at, part) in filled(buffers) {
            self.gathered.push(part.local.sge(lkey(flags, part, at, device)?));
        }
        Ok(())
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Returns whether a list of `count` buffers is one fragment that needs no places in the ring if
    /// a rail takes it now.
    #[inline]
    pub(super) fn is_whole(&self, whole: &SendWr<'_>, count: usize) -> bool {
        // With re-routing, the fragment may have to be posted again, from the buffers in the ring.
        !self.reroute.is_on
            && !whole.flags.contains(SendFlags::FENCE)
            && whole.local.length() <= self.config.max_msg_size
            && count <= self.max_sge as usize
    }

    /// Posts a request whose list is one fragment, from the caller's buffers. They get places in
    /// the ring, for which there is room, only if the request has to wait.
    #[inline]
    pub(super) fn post_whole(
        &mut self,
        whole: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        let device = self.devices.places[0].device();
        let mut list = OnDevice { device, gathered: Gathered::new() };
        // Most virtual queue pairs have rails of one device, so this is also the check of all keys.
        list.gather(whole.flags, buffers, device)?;
        self.check_keys(whole.flags, buffers, 1..self.devices.places.len())?;
        let id = self.add_apart(whole)?;
        let Self { rails, sends, chooser, scheme, config, pass_through, .. } = self;
        let size = config.max_msg_size;
        let oldest_in_flight = sends.front_in_flight();
        let slot = sends.slot(id);
        let result = if slot.is_numbered() {
            let pass_through_ahead = pass_through.is_ahead_of(id);
            let numbers = scheme.numbers_for(slot, oldest_in_flight, pass_through_ahead);
            numbers.map_or(Ok(false), |numbers| {
                dispatch_fragments::<true, _, Q, RAILS, DEPTH>(
                    rails,
                    chooser,
                    slot,
                    numbers,
                    size,
                    id,
                    |rail, slot, offered, _| post_to(rail, slot, offered, &mut list, buffers),
                )
            })
        } else {
            dispatch_fragments::<true, _, Q, RAILS, DEPTH>(
                rails,
                chooser,
                slot,
                &mut Unnumbered,
                size,
                id,
                |rail, slot, offered, _| post_to(rail, slot, offered, &mut list, buffers),
            )
        };
        if matches!(result, Ok(true)) {
            scheme.dispatched(id, slot);
            sends.pop_pending();
            return Ok(());
        }
        self.add_parts(id, buffers)?;
        let progress = match result {
            Err(truncated) => self.taken_in_part(&truncated),
            Ok(_) => Progress::Waits,
        };
        self.list_dispatched(id, whole.flags.contains(SendFlags::INLINE), progress)
    }
}

/// Posts the one fragment of a request to a rail.
#[inline(always)]
fn post_to<N: Numbering, Q: QueuePair, const RAILS: usize, const DEPTH: usize>(
    rail: &mut Rail<Q, DEPTH>,
    slot: &SendSlot<RAILS>,
    offered: Offered<N>,
    list: &mut OnDevice,
    buffers: &[LocalPart<'_>],
) -> Taken {
    let Offered { tag, number, .. } = offered;
    if list.device != rail.device {
        // All keys were found before.
        let _ = list.gather(slot.flags, buffers, rail.device);
    }
    let keys = slot.keys[usize::from(rail.keys_at)];
    let flags = slot.last_flags.union(SendFlags::SIGNALED);
    let request = fragment_request::<N, RAILS>(slot, keys, tag.last(), flags);
    let request = request(N::imm(number, true), Sge::EMPTY, slot.remote_addr);
    let mut sends = rail.qp.start_send();
    add_gathered(&mut sends, request, &list.gathered);
    Taken::of(1, sends.commit())
}
