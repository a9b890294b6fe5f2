//! Step 1: a send request is checked, then takes a slot of the ring, or passes straight through.

use super::VirtualQp;
use super::config::{PassThroughOrder, Scheme};
use super::dispatch::{Progress, Refused};
use super::error::{PostError, RailId};
use super::slot::{Keys, SlotState};
use crate::hardware::{CommitError, QueuePair, Refusal, SendBatch, settle_commit};
use crate::in_flight::{Batch, Content};
use crate::verbs::{DeviceId, ImmOrder, Opcode, SendFlags, SendRequest, SendWr};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts a send request.
    ///
    /// Over several rails, WRITE and READ are cut into fragments; what finds no room on the rails
    /// waits in the ring and goes out as completions make room. SENDs and atomics pass through to
    /// rail 0 (see [`PassThroughOrder`]).
    ///
    /// # Errors
    ///
    /// The request is refused and forgotten, nothing changed. [`PostError::Full`] and
    /// [`PostError::QueueFull`] ask for a poll, the others for another request.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.is_multi() { self.post_multi(wr) } else { self.post_single(wr) }
    }

    #[inline]
    fn post_single(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let rail = &mut self.rails[0];
        let keys = keys_on(wr, rail.device, 0)?;
        let mut sends = rail.qp.start_send();
        sends.add(&physical(wr, keys, self.config.imm_order));
        match settle_commit(sends.commit(), 1) {
            Ok(()) => {
                rail.sends.count_untracked(wr.local.length());
                Ok(())
            }
            Err(CommitError { accepted: 0, refusal }) => {
                Err(PostError::refused(RailId::Data(0), refusal))
            }
            Err(CommitError { refusal, .. }) => {
                rail.sends.count_untracked(wr.local.length());
                self.driver_complained(RailId::Data(0), refusal);
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn post_multi(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.failed {
            return Err(PostError::InErrorState);
        }
        let posted = match wr.opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead => {
                self.post_fragmented(wr)
            }
            Opcode::Send | Opcode::SendWithImm | Opcode::CompareSwap | Opcode::FetchAdd => {
                self.post_pass_through(wr)
            }
            Opcode::LocalInv | Opcode::SendWithInv => Err(PostError::UnsupportedOpcode(wr.opcode)),
        };
        self.debug_invariants();
        posted
    }

    fn post_fragmented(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.check_fragmented(wr)?;
        let inline = wr.flags.contains(SendFlags::INLINE);
        let waits = self.sends.front_pending().is_some();
        if inline && waits {
            return Err(PostError::InlineMustWait);
        }
        let Self { sends, devices, notify, config, .. } = self;
        let id = sends.add_with(|slot| {
            for (at, device) in devices.iter().enumerate() {
                slot.keys[at] = keys_on(wr, *device, at)?;
            }
            slot.fill(wr, config.imm_order, SlotState::empty());
            if wr.opcode == Opcode::RdmaWriteWithImm && config.scheme == Scheme::Spray {
                let notify = notify.as_ref().ok_or(PostError::NoNotifyQp)?;
                slot.want_notify(keys_on(wr, notify.device, 0)?.rkey);
            }
            Ok::<_, PostError>(())
        })?;
        if waits {
            return Ok(());
        }
        match self.dispatch_now(id) {
            Progress::Posted => self.sends.pop_pending(),
            Progress::Waits if inline => return self.refuse_newest(PostError::InlineMustWait),
            Progress::Waits => {}
            Progress::Refused(refused) => {
                if self.sends.slot(id).outstanding == 0 {
                    let Refused { rail, errno, .. } = refused;
                    return self.refuse_newest(PostError::Driver { rail, errno });
                }
                self.dispatch_refused(id, refused);
            }
        }
        Ok(())
    }

    /// Forgets the newest request, of which nothing is posted.
    #[cold]
    fn refuse_newest(&mut self, error: PostError) -> Result<(), PostError> {
        self.sends.take_back();
        self.fence_mark = None;
        Err(error)
    }

    #[inline]
    fn check_fragmented(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let (opcode, length) = (wr.opcode, wr.local.length());
        if length == 0 {
            return Err(PostError::Empty(opcode));
        }
        if wr.remote_addr.checked_add(u64::from(length)).is_none() {
            return Err(PostError::RemoteRange { addr: wr.remote_addr, length });
        }
        if wr.flags == SendFlags::SIGNALED { Ok(()) } else { self.check_flags(wr) }
    }

    #[cold]
    fn check_flags(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        if !signaled && wr.opcode != Opcode::RdmaWriteWithImm {
            return Err(PostError::Unsignaled(wr.opcode));
        }
        if wr.flags.contains(SendFlags::INLINE) { self.check_inline(wr) } else { Ok(()) }
    }

    /// INLINE promises that the buffer is free when the post returns, so the request must fit one
    /// inline fragment on whatever rail it goes to.
    fn check_inline(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if wr.opcode.is_fetching() {
            return Err(PostError::InlineOpcode(wr.opcode));
        }
        let inline = self.rails.iter().map(|rail| rail.qp.limits().max_inline_data).min();
        let max = inline.unwrap_or_default().min(self.config.max_msg_size);
        let length = wr.local.length();
        if length > max { Err(PostError::InlineTooLong { length, max }) } else { Ok(()) }
    }

    fn post_pass_through(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let sends = matches!(wr.opcode, Opcode::Send | Opcode::SendWithImm);
        if sends && self.config.scheme == Scheme::Dqplb {
            return Err(PostError::SendWithDqplb(wr.opcode));
        }
        let rail = &self.rails[0];
        if !rail.up {
            return Err(PostError::RailDown);
        }
        let inline = wr.flags.contains(SendFlags::INLINE);
        if inline && wr.opcode.is_fetching() {
            return Err(PostError::InlineOpcode(wr.opcode));
        }
        let max = rail.qp.limits().max_inline_data;
        if inline && wr.local.length() > max {
            return Err(PostError::InlineTooLong { length: wr.local.length(), max });
        }
        let keys = keys_on(wr, rail.device, 0)?;
        if self.may_pass(wr) {
            match self.pass_through(wr, keys) {
                Ok(()) => return Ok(()),
                Err(Refusal::QueueFull) => {}
                Err(refusal) => return Err(PostError::refused(RailId::Data(0), refusal)),
            }
        }
        if inline { Err(PostError::InlineMustWait) } else { self.defer(wr, keys) }
    }

    /// Whether a pass-through request may go straight to rail 0.
    fn may_pass(&self, wr: &SendWr<'_>) -> bool {
        let fenced = wr.flags.contains(SendFlags::FENCE);
        let waits = fenced || self.config.pass_through == PassThroughOrder::Ordered;
        let overtakes = self.sends.unfinished_count() > 0 || !self.notify_idle();
        let behind = self.passing > 0 || self.deferred.oldest() != u64::MAX;
        let must_wait = self.deferred.is_waiting() || (fenced && behind) || (waits && overtakes);
        !must_wait && self.rail_0_has_room()
    }

    fn pass_through(&mut self, wr: &SendWr<'_>, keys: Keys) -> Result<(), Refusal> {
        let rail = &mut self.rails[0];
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let content = if signaled { Content::PassThrough } else { Content::Quiet };
        let batch = Batch::one(wr.wr_id, wr.local.length(), content, wr.opcode);
        let posted = match rail.post_one(physical(wr, keys, self.config.imm_order), batch) {
            Ok(()) => {
                self.passing += 1;
                Ok(())
            }
            Err(CommitError { accepted: 0, refusal }) => {
                if refusal == Refusal::QueueFull {
                    self.retry.insert(RailId::Data(0));
                }
                Err(refusal)
            }
            Err(CommitError { refusal, .. }) => {
                self.passing += 1;
                self.driver_complained(RailId::Data(0), refusal);
                Ok(())
            }
        };
        self.update_ready(0);
        posted
    }

    /// Gives a pass-through request its place in the ring, from where it goes as soon as its order
    /// and rail 0 let it.
    fn defer(&mut self, wr: &SendWr<'_>, keys: Keys) -> Result<(), PostError> {
        let Self { sends, config, .. } = self;
        let id = sends.add_with(|slot| {
            slot.keys[0] = keys;
            slot.compare_add = wr.compare_add;
            slot.swap = wr.swap;
            slot.fill(wr, config.imm_order, SlotState::PASS_THROUGH | SlotState::DEFERRED);
            Ok::<_, PostError>(())
        })?;
        self.note_deferred(id);
        Ok(())
    }
}

/// The keys of a request on a device. Requests that need none get none.
#[inline]
fn keys_on(wr: &SendWr<'_>, device: DeviceId, hint: usize) -> Result<Keys, PostError> {
    match Keys::find(wr.keys, device, hint) {
        Some(keys) => Ok(keys),
        None => no_keys(wr, device),
    }
}

#[cold]
fn no_keys(wr: &SendWr<'_>, device: DeviceId) -> Result<Keys, PostError> {
    let sends = matches!(wr.opcode, Opcode::Send | Opcode::SendWithImm);
    let no_buffer = wr.local.length() == 0 || wr.flags.contains(SendFlags::INLINE);
    if sends && no_buffer { Ok(Keys::default()) } else { Err(PostError::MissingKeys { device }) }
}

/// The physical form of a request that is not cut.
#[inline]
fn physical(wr: &SendWr<'_>, keys: Keys, imm_order: ImmOrder) -> SendRequest {
    SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.flags,
        imm: imm_order.encode(wr.imm),
        sge: wr.local.sge(keys.lkey),
        remote_addr: wr.remote_addr,
        rkey: keys.rkey,
        compare_add: wr.compare_add,
        swap: wr.swap,
    }
}
