//! Both directions of a pair: what users call, whoever owns the completion queues.

use super::healer::Healer;
use super::message::End;
use super::sizes::{EngineReceiver, EngineSender, receiver_index, sender_index};
use super::tracing::Tracing;
use crate::backend::{ConnectOptions, Domain};
use crate::endpoint::Place;
use polyrail_core::p2p::{
    CallError, Failure, FlushHandle, Received, RecvBuffer, RecvHandle, SendHandle,
};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer};
use polyrail_core::virtual_qp::{RailCounters, RailEvent};
use polyrail_software_nic as nic;

/// Messages with one peer, both ways: what this side sends lands in buffers that the peer has offered, and the other way
/// round. A [`P2pEndpoint`](super::P2pEndpoint) is one with completion queues of its own, a
/// [`P2pEndpointSet`](super::P2pEndpointSet) has many, and polls for them. See the [module](super).
#[derive(Debug)]
pub struct P2pMember<D: Domain = nic::ProtectionDomain> {
    pub(super) sender: Box<EngineSender<D::Qp>>,
    pub(super) receiver: Box<EngineReceiver<D::Qp, D::Srq>>,
    /// Its number among those that share completion queues.
    pub(super) number: u16,
    /// Where the i-th queue pair of either direction is.
    pub(super) places: Vec<Place>,
    pub(super) psn: u32,
    pub(super) options: ConnectOptions,
    pub(super) names: Vec<(DeviceId, String)>,
    pub(super) tracing: Tracing,
    /// If rails are re-routed.
    pub(super) healer: Option<Box<Healer<D>>>,
    /// The protocol's own memory. Last: queue pairs are destroyed before it is deregistered.
    pub(super) regions: Vec<D::Region>,
}

impl<D: Domain> P2pMember<D> {
    /// Offers 1 to 8 buffers to the peer, whose next message, or the parts of it, will land in them.
    ///
    /// # Errors
    ///
    /// Nothing changed, and nothing was offered. [Not now](CallError::NotNow): poll, and try again.
    #[inline]
    pub fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError> {
        let called = self.receiver.irecv(buffers);
        self.tell_if_failed(End::Receiver, &called);
        called
    }

    /// Sends `buffer` to the buffer with this tag among those that the peer has offered first; `keys` are its
    /// [own](crate::memory::Registration::own_keys).
    ///
    /// # Errors
    ///
    /// Nothing changed. [Not now](CallError::NotNow): the peer has offered no such buffer yet, or there is no room;
    /// poll, and try again. A message that is too long is refused.
    #[inline]
    pub fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        let called = self.sender.isend(buffer, tag, keys);
        self.tell_if_failed(End::Sender, &called);
        called
    }

    /// [`isend`](Self::isend) of memory that this process can read, which that of a GPU is not: what is short enough
    /// ([`max_inline_data`](super::P2pBuilder::max_inline_data) on each rail) goes to the device with the request, and
    /// is not fetched by it. Faster for short messages.
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
        let called = self.sender.isend_inline(buffer, tag, keys);
        self.tell_if_failed(End::Sender, &called);
        called
    }

    /// Whether a message has arrived at the peer. Once it said so, the buffer is the caller's again, and the handle
    /// is of no use any more.
    ///
    /// # Errors
    ///
    /// The connection failed, and the buffer is the caller's again; there is no such request.
    #[inline]
    pub fn test_send(&mut self, handle: SendHandle) -> Result<bool, CallError> {
        let called = self.sender.test(handle);
        self.tell_if_failed(End::Sender, &called);
        called
    }

    /// The message, if it has arrived here. Once it said so, the buffers are the caller's again, and the handle is
    /// of no use any more.
    ///
    /// # Errors
    ///
    /// The connection failed, and the buffers are the caller's again; there is no such request.
    #[inline]
    pub fn test_recv(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError> {
        let called = self.receiver.test(handle);
        self.tell_if_failed(End::Receiver, &called);
        called
    }

    /// Starts to make every byte of a message visible to whoever reads that memory, such as a GPU. Only
    /// members that were [built for that](super::P2pBuilder::flushes).
    ///
    /// # Errors
    ///
    /// A device over which it came cannot flush; or [not now](CallError::NotNow).
    pub fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError> {
        self.receiver.flush(received)
    }

    /// Whether a flush is done.
    ///
    /// # Errors
    ///
    /// A device failed before it had read.
    pub fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError> {
        self.receiver.test_flush(handle)
    }

    /// The oldest event of a queue pair that was not taken yet: of which end, and its place there. Of more than 256
    /// the oldest are forgotten. None of an endpoint whose rails are not re-routed.
    pub fn take_event(&mut self) -> Option<(End, usize, RailEvent)> {
        self.log_events();
        self.healer.as_mut()?.events.pop_front()
    }

    /// Messages of either direction that are not done, or whose callers were not told: sent, received.
    pub fn unfinished(&self) -> (usize, usize) {
        (self.sender.unfinished(), self.receiver.unfinished())
    }

    /// Why sending failed, if it did.
    pub fn send_failure(&self) -> Option<&Failure> {
        self.sender.failure()
    }

    /// Why receiving failed, if it did.
    pub fn recv_failure(&self) -> Option<&Failure> {
        self.receiver.failure()
    }

    /// What each queue pair did: those that send, then those that receive.
    pub fn counters(&self) -> impl Iterator<Item = RailCounters> {
        let (sender, receiver) = (&self.sender, &self.receiver);
        let sent = (0..).map_while(|at| sender.counters(at));
        sent.chain((0..).map_while(|at| receiver.counters(at)))
    }

    /// Gives the connection up: what is not done fails, once it is [drained](Self::is_drained).
    pub fn fail(&mut self) {
        self.sender.fail();
        self.receiver.fail();
    }

    /// Whether, after a failure of both directions, no device accesses any buffer any more.
    pub fn is_drained(&self) -> bool {
        self.sender.is_drained() && self.receiver.is_drained()
    }

    /// The engine's sender, for what this type does not offer.
    pub fn sender(&self) -> &EngineSender<D::Qp> {
        &self.sender
    }

    /// The engine's receiver, for what this type does not offer.
    pub fn receiver(&self) -> &EngineReceiver<D::Qp, D::Srq> {
        &self.receiver
    }

    /// What its two directions are attached as.
    pub(super) const fn sender_index(&self) -> u16 {
        sender_index(self.number)
    }

    pub(super) const fn receiver_index(&self) -> u16 {
        receiver_index(self.number)
    }
}
