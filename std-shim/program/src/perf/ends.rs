//! One end of a measurement: an endpoint with a ring of slots, and the other end's ring.

use crate::job::{Operation, Workload};
use crate::session::{Reporter, SessionError, Traffic};
use polyrail::backend::{ConnectOptions, Domain};
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::memory::{OutOfRange, RegisteredBuffer, RemoteBuffer};
use polyrail::p2p::P2pBuilder;
use polyrail::verbs::{AccessFlags, DeviceKeys, LocalBuffer};
use polyrail::virtual_qp::{Config, Scheme};
use std::time::Duration;

/// An end without the other end's ring.
pub(super) struct Half<D: Domain> {
    pub(super) endpoint: Endpoint<D::Qp, D::Cq>,
    pub(super) ring: RegisteredBuffer<D::Region>,
    workload: Workload,
}

impl<D: Domain> Half<D> {
    /// Makes an end and fills its ring with `byte`, because untouched pages would all map to the
    /// same zero page.
    pub(super) fn new(
        workload: Workload,
        builder: &EndpointBuilder,
        domains: &[&D],
        byte: u8,
    ) -> Result<Self, SessionError> {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let ring = RegisteredBuffer::new(workload.ring_bytes(), access, domains)?;
        ring.fill(0, ring.len(), byte)?;
        Ok(Self { endpoint: builder.build(domains)?, ring, workload })
    }

    /// Returns the end, with the address of the other end's ring. Its requests may make no progress
    /// for at most `stall_timeout`. Events of its rails go to `reporter`.
    pub(super) fn toward(
        self,
        peer: RemoteBuffer,
        stall_timeout: Duration,
        reporter: Reporter,
    ) -> Result<End<D>, SessionError> {
        let Self { endpoint, ring, workload } = self;
        let keys = ring.toward(&peer)?;
        let traffic = Traffic::new(endpoint, stall_timeout, reporter);
        Ok(End { traffic, slots: Slots { ring, workload, keys, peer } })
    }
}

/// One end.
pub(super) struct End<D: Domain> {
    /// Dropped before its memory.
    pub(super) traffic: Traffic<D>,
    pub(super) slots: Slots<D::Region>,
}

/// The local ring, and the other end's.
pub(super) struct Slots<R> {
    ring: RegisteredBuffer<R>,
    pub(super) workload: Workload,
    /// Keys of requests from this ring to the other end's.
    pub(super) keys: Vec<DeviceKeys>,
    /// The other end's ring.
    peer: RemoteBuffer,
}

impl<R> Slots<R> {
    /// Returns the slot of a request.
    pub(super) fn local(&self, request: u64) -> Result<LocalBuffer, OutOfRange> {
        self.ring.local(self.workload.slot(request), self.workload.message_size)
    }

    /// Returns the address of the slot at the other end.
    pub(super) fn remote(&self, request: u64) -> Result<u64, OutOfRange> {
        self.peer.at(self.workload.far_slot(request), self.workload.message_size)
    }

    /// Returns the slot of a request of the other end.
    pub(super) fn arriving(&self, request: u64) -> Result<LocalBuffer, OutOfRange> {
        self.ring.local(self.workload.far_slot(request), self.workload.message_size)
    }

    /// Writes the number of a request into its last byte before it is posted.
    pub(super) fn stamp(&self, request: u64) -> Result<(), OutOfRange> {
        let last = self.workload.slot(request) + self.workload.message_size as usize - 1;
        self.ring.write_at(last, &[self.workload.stamp(request)])
    }

    /// Returns whether the last byte of a request of the other end has arrived. The bytes before it
    /// have also arrived, unless the request was split.
    pub(super) fn has_arrived(&self, request: u64) -> Result<bool, OutOfRange> {
        let last = self.workload.far_slot(request) + self.workload.message_size as usize - 1;
        let mut byte = [0];
        self.ring.read_at(last, &mut byte)?;
        Ok(byte == [self.workload.stamp(request)])
    }
}

/// Returns the builder of endpoints for measurements of requests.
pub(super) fn builder(
    workload: &Workload,
    rails: usize,
    scheme: Scheme,
    max_msg_size: u32,
) -> EndpointBuilder {
    // With DQPLB, all receives are for notifications, so SENDs are measured with SPRAY.
    let scheme = if workload.operation == Operation::Send { Scheme::Spray } else { scheme };
    let config = Config { scheme, max_msg_size, max_msgs_per_qp: u32::MAX, ..Config::default() };
    let builder = EndpointBuilder::new().rails(rails).config(config);
    let builder = match rails {
        1 => builder.queue_depth(workload.queue_depth()),
        _ => builder,
    };
    let builder = match workload.is_inline() {
        true => builder.max_inline_data(workload.inline),
        false => builder,
    };
    builder.connect_options(connect_options())
}

/// Returns the builder of endpoints for measurements of messages. A failed rail ends the
/// measurement.
pub(super) fn p2p_builder(
    workload: &Workload,
    rails: usize,
    options: ConnectOptions,
) -> P2pBuilder {
    // Retried without limit, because a sender waits for the receives of a shared pool.
    let options = ConnectOptions { rnr_retry: 7, ..options };
    let builder = P2pBuilder::new().rails(rails).connect_options(options);
    if workload.is_inline() { builder.max_inline_data(workload.inline) } else { builder }
}

/// Returns the connect options of both kinds of endpoints.
pub(super) fn connect_options() -> ConnectOptions {
    // 10 us, because the default would make a late receiver cost a millisecond.
    ConnectOptions { min_rnr_timer: 1, ..ConnectOptions::default() }
}
