//! Both directions of a pair: the operations of users, which do not depend on the owner of the
//! completion queues.

use super::address::P2pAddress;
use super::error::NamedFailure;
use super::message::{End, QueuePairId};
use super::rail_log::RailLog;
use super::sizes::{EngineReceiver, EngineSender, RAILS, receiver_index, sender_index};
use crate::backend::{ConnectOptions, Domain};
use crate::endpoint::Weights;
use crate::heal::{Cancels, Healer, SilenceWatch};
use crate::queue_pair::{Joined, Place};
use polyrail_core::p2p::{
    CallError, ConnectionEnd, Failure, FlushHandle, Received, RecvBuffer, RecvHandle, SendHandle,
};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer};
use polyrail_core::virtual_cq::{CompletionTarget, TargetSet};
use polyrail_core::virtual_qp::{MAX_RAILS, QpState, RailCounters, RailState};
use polyrail_software_nic as nic;

/// Messages with one peer in both directions, or [only](super::P2pBuilder::only) one: then
/// operations of the other direction fail with [`OneWay`](CallError::OneWay). A message is written
/// directly into buffers that its receiver has offered. A [`P2pEndpoint`](super::P2pEndpoint) is
/// one member with its own completion queues; a [`P2pEndpointSet`](super::P2pEndpointSet) has many,
/// and polls for them. See the [module](super).
#[derive(Debug)]
pub struct P2pMember<D: Domain = nic::ProtectionDomain> {
    pub(super) sender: Option<Box<EngineSender<D::Qp>>>,
    pub(super) receiver: Option<Box<EngineReceiver<D::Qp, D::Srq>>>,
    /// Its number among the members that share completion queues.
    pub(super) number: u16,
    /// Distinguishes it from all other connections of this process.
    pub(super) id: u64,
    /// The place of the i-th queue pair of either direction.
    pub(super) places: Vec<Place>,
    /// Its rails, which the queue pairs of either direction belong to in turn.
    pub(super) rails: usize,
    pub(super) psn: u32,
    pub(super) options: ConnectOptions,
    pub(super) min_rails: u8,
    /// What decides how much each rail carries; `None`: its user's own split.
    pub(super) weights: Option<Weights>,
    /// The queue pairs that are connected, until enough are; and whether enough are.
    pub(super) joined: Joined<QueuePairId, P2pAddress>,
    pub(super) names: Vec<(DeviceId, String)>,
    /// The events of its queue pairs.
    pub(super) log: RailLog,
    /// The state of the repair of its rails; `None` if rails are not re-routed.
    pub(super) healer: Option<Box<Healer<QueuePairId, D::Qp, RAILS>>>,
    /// The messages and receives that are being taken back.
    pub(super) cancels: Cancels,
    /// The watch over the queue pairs for flushes.
    pub(super) flush_silence: SilenceWatch<MAX_RAILS>,
    /// The protocol's own memory. Last: queue pairs are destroyed before it is deregistered.
    pub(super) regions: Vec<D::Region>,
}

impl<D: Domain> P2pMember<D> {
    /// Offers 1 to 8 buffers to the peer as one receive; the peer's next message, or each of its
    /// parts, is written to one of them.
    ///
    /// If the peer has another offer already, one of the next polls sends this one, with the other
    /// offers since the last one: then receives of one buffer share a request.
    ///
    /// # Errors
    ///
    /// Nothing was offered. [Not now](CallError::NotNow): poll, and try again.
    #[inline]
    pub fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError> {
        let receiver = self.receiver.as_mut();
        let called = receiver.map_or(Err(CallError::OneWay), |receiver| receiver.irecv(buffers));
        self.report_if_failed(End::Receiver, &called);
        called
    }

    /// Sends `buffer` to the buffer with this tag in the peer's next receive; `keys` are the
    /// buffer's [own keys](crate::memory::Registration::own_keys).
    ///
    /// # Errors
    ///
    /// Nothing changed. [Not now](CallError::NotNow): the peer has no unmatched buffer with this
    /// tag in its next receive, or there is no room; poll, and try again. A message that is too
    /// long is refused.
    #[inline]
    pub fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        let sender = self.sender.as_mut();
        let called =
            sender.map_or(Err(CallError::OneWay), |sender| sender.isend(buffer, tag, keys));
        self.report_if_failed(End::Sender, &called);
        called
    }

    /// Like [`isend`](Self::isend), for memory that the CPU can read, unlike memory of a GPU: a
    /// share of at most [`max_inline_data`](super::P2pBuilder::max_inline_data) bytes per rail is
    /// copied into the request, so the device need not fetch it. This is faster for short messages.
    ///
    /// # Errors
    ///
    /// As [`isend`](Self::isend).
    #[inline]
    pub fn isend_inline(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        let sender = self.sender.as_mut();
        let called =
            sender.map_or(Err(CallError::OneWay), |sender| sender.isend_inline(buffer, tag, keys));
        self.report_if_failed(End::Sender, &called);
        called
    }

    /// Whether a message has arrived at the peer. After it returned true, the buffer belongs to the
    /// caller again, and the handle is invalid.
    ///
    /// # Errors
    ///
    /// The connection failed, and the buffer belongs to the caller again; or the handle is unknown.
    #[inline]
    pub fn test_send(&mut self, handle: SendHandle) -> Result<bool, CallError> {
        let sender = self.sender.as_mut();
        let called = sender.map_or(Err(CallError::OneWay), |sender| sender.test(handle));
        self.report_if_failed(End::Sender, &called);
        called
    }

    /// Returns the message, if it has arrived. After that the buffers belong to the caller again,
    /// and the handle is invalid.
    ///
    /// # Errors
    ///
    /// The connection failed, and the buffers belong to the caller again; or the handle is unknown.
    #[inline]
    pub fn test_recv(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError> {
        let receiver = self.receiver.as_mut();
        let called = receiver.map_or(Err(CallError::OneWay), |receiver| receiver.test(handle));
        self.report_if_failed(End::Receiver, &called);
        called
    }

    /// Starts a flush, which makes every byte of a message visible to all readers of its memory,
    /// such as a GPU. The member must have been [built](super::P2pBuilder::flushes) for it.
    ///
    /// # Errors
    ///
    /// A device over which the message arrived cannot flush; or [not now](CallError::NotNow).
    pub fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError> {
        self.receiver.as_mut().ok_or(CallError::OneWay)?.flush(received)
    }

    /// Whether a flush is complete.
    ///
    /// # Errors
    ///
    /// A device failed before the flush was complete, or completed nothing for
    /// [`stall_timeout`](crate::heal::Healing::stall_timeout), if rails are re-routed.
    pub fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError> {
        self.receiver.as_ref().ok_or(CallError::OneWay)?.test_flush(handle)
    }

    /// Returns the numbers of sent and received messages that are incomplete, or whose completion
    /// was not returned to the caller yet.
    pub fn unfinished(&self) -> (usize, usize) {
        let Self { sender, receiver, .. } = self;
        let sent = sender.as_ref().map_or(0, |sender| sender.unfinished());
        (sent, receiver.as_ref().map_or(0, |receiver| receiver.unfinished()))
    }

    /// Returns the state of the connection: [`QpState::Error`] as soon as one of its ends has
    /// failed, which [`failure`](Self::failure) explains. The other end may still transfer
    /// messages.
    ///
    /// Unless rails are [re-routed](super::P2pBuilder::rail_failure), only a request that fails
    /// shows that the peer called [`give_up`](super::P2pEndpoint::give_up): an idle member stays
    /// [`QpState::Ready`], and accepts [`isend`](Self::isend). Watch the link to the peer.
    pub fn state(&self) -> QpState {
        let has_failed = [End::Sender, End::Receiver].map(|end| self.failure_of(end).is_some());
        let is_in_service = |end: End| {
            let mut places = 0..self.queue_pairs(end).count();
            places.all(|place| {
                let state = self.queue_pair_state(end, place);
                state.is_none_or(|(state, _)| state == RailState::InService)
            })
        };
        match has_failed {
            [false, false] if is_in_service(End::Sender) && is_in_service(End::Receiver) => {
                QpState::Ready
            }
            [false, false] => QpState::Degraded,
            _ => QpState::Error,
        }
    }

    /// Returns why the sending end failed, or else why the receiving end did; `None` if neither
    /// has.
    pub fn failure(&self) -> Option<NamedFailure> {
        let mut ends = [End::Sender, End::Receiver].into_iter();
        let (end, failure) = ends.find_map(|end| Some((end, *self.failure_of(end)?)))?;
        Some(NamedFailure { end, failure, device: self.device_of_failure(&failure) })
    }

    pub(super) fn failure_of(&self, end: End) -> Option<&Failure> {
        match end {
            End::Sender => self.sender.as_ref()?.failure(),
            End::Receiver => self.receiver.as_ref()?.failure(),
        }
    }

    /// Iterates over the queue pairs of one end; there are none if the member lacks the end.
    pub fn queue_pairs(&self, end: End) -> impl Iterator<Item = &D::Qp> {
        let Self { sender, receiver, .. } = self;
        let sender = sender.iter().filter(move |_| end == End::Sender);
        let receiver = receiver.iter().filter(move |_| end == End::Receiver);
        let sending = sender.flat_map(|sender| sender.queue_pairs());
        sending.chain(receiver.flat_map(|receiver| receiver.queue_pairs()))
    }

    /// Returns the state of a queue pair of one end, and its generation: 0 for the first in its
    /// place. `None` if the member lacks the end, or `place` is out of range.
    pub fn queue_pair_state(&self, end: End, place: usize) -> Option<(RailState, u16)> {
        match end {
            End::Sender => self.sender.as_ref()?.queue_pair_state(place),
            End::Receiver => self.receiver.as_ref()?.queue_pair_state(place),
        }
    }

    /// Iterates over the counters of each queue pair: first the sender's queue pairs, then the
    /// receiver's.
    pub fn counters(&self) -> impl Iterator<Item = RailCounters> {
        let sent = (0..).map_while(|place| self.queue_pair_counters(End::Sender, place));
        sent.chain((0..).map_while(|place| self.queue_pair_counters(End::Receiver, place)))
    }

    /// Returns the counters of a queue pair of one end; `None` if the member lacks the end, or
    /// `place` is out of range.
    pub(crate) fn queue_pair_counters(&self, end: End, place: usize) -> Option<RailCounters> {
        match end {
            End::Sender => self.sender.as_ref()?.counters(place),
            End::Receiver => self.receiver.as_ref()?.counters(place),
        }
    }

    /// Fails the connection: incomplete messages fail, once it is [drained](Self::is_drained).
    pub fn fail(&mut self) {
        let Self { sender, receiver, .. } = self;
        sender.iter_mut().for_each(|sender| sender.fail());
        receiver.iter_mut().for_each(|receiver| receiver.fail());
    }

    /// Whether both directions have failed, and no device accesses any buffer any more.
    pub fn is_drained(&self) -> bool {
        let Self { sender, receiver, .. } = self;
        sender.as_ref().is_none_or(|sender| sender.is_drained())
            && receiver.as_ref().is_none_or(|receiver| receiver.is_drained())
    }

    /// Returns the engine's sender, for operations that this type does not have; `None` if the
    /// member [only](super::P2pBuilder::only) receives.
    pub fn sender(&self) -> Option<&EngineSender<D::Qp>> {
        self.sender.as_deref()
    }

    /// Returns the engine's receiver, for operations that this type does not have; `None` if the
    /// member [only](super::P2pBuilder::only) sends.
    pub fn receiver(&self) -> Option<&EngineReceiver<D::Qp, D::Srq>> {
        self.receiver.as_deref()
    }

    /// Returns the target of completions, by the index at which it is attached.
    #[inline]
    pub(super) fn target(&mut self, index: u16) -> Option<&mut (dyn CompletionTarget + 'static)> {
        if index == self.sender_index() {
            self.sender.as_deref_mut().map(|sender| sender as _)
        } else {
            self.receiver.as_deref_mut().map(|receiver| receiver as _)
        }
    }

    /// Returns the index at which its sender is attached.
    pub(super) const fn sender_index(&self) -> u16 {
        sender_index(self.number)
    }

    pub(super) const fn receiver_index(&self) -> u16 {
        receiver_index(self.number)
    }
}

/// The targets of completions, if there is only one member.
pub(super) struct Targets<'m, D: Domain>(pub(super) &'m mut P2pMember<D>);

impl<D: Domain> TargetSet for Targets<'_, D> {
    type Target = dyn CompletionTarget;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.0.target(index)
    }
}
