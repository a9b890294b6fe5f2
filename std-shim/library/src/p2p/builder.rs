//! Options of a message endpoint.

use super::message::End;
use crate::backend::{ConnectOptions, Domain};
use crate::endpoint::{RailWeights, StandbyDevices, WeightOptions};
use crate::heal::{CANCEL_GRACE, Healing};
use polyrail_core::p2p::{EntryForm, SplitPolicy};
use polyrail_core::virtual_qp::RailFailure;
use std::borrow::Borrow;
use std::time::Duration;

/// Options of a [`P2pEndpoint`](super::P2pEndpoint), which [`build`](Self::build) builds.
#[derive(Clone, Copy, Debug)]
pub struct P2pBuilder {
    pub(super) rails: usize,
    pub(super) queue_pairs: usize,
    pub(super) only: Option<End>,
    pub(super) split: SplitPolicy,
    pub(super) split_threshold: u32,
    pub(super) separate_signal: Option<u32>,
    pub(super) entry_form: EntryForm,
    pub(super) max_inline_data: u32,
    pub(super) flushes: bool,
    pub(super) reroutes: bool,
    pub(super) min_rails: u8,
    pub(super) standby_devices: StandbyDevices,
    pub(super) weights: WeightOptions,
    pub(super) healing: Healing,
    pub(super) cancel_grace: Duration,
    pub(super) options: ConnectOptions,
    /// The completion vector; `None`: completion queues are only polled.
    pub(super) comp_vector: Option<u32>,
}

impl Default for P2pBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl P2pBuilder {
    /// The defaults: two rails with one queue pair per direction, messages over 64 KiB split into
    /// equal shares, no flushes.
    pub fn new() -> Self {
        Self {
            rails: 2,
            queue_pairs: 1,
            only: None,
            split: SplitPolicy::default(),
            split_threshold: 64 << 10,
            separate_signal: None,
            entry_form: EntryForm::default(),
            max_inline_data: 64,
            flushes: false,
            reroutes: false,
            min_rails: 1,
            standby_devices: StandbyDevices::default(),
            weights: WeightOptions::default(),
            healing: Healing::default(),
            cancel_grace: CANCEL_GRACE,
            options: ConnectOptions { rnr_retry: FOREVER, ..ConnectOptions::default() },
            comp_vector: None,
        }
    }

    /// Sets the number of rails, 1 to 8; equal at both ends.
    #[must_use]
    pub fn rails(self, rails: usize) -> Self {
        Self { rails, ..self }
    }

    /// Sets the queue pairs per rail and direction, which messages use in turn; equal at both ends.
    /// All rails together have at most [`QUEUE_PAIRS`](super::QUEUE_PAIRS).
    #[must_use]
    pub fn queue_pairs_per_rail(self, queue_pairs: usize) -> Self {
        Self { queue_pairs, ..self }
    }

    /// Limits the endpoint to one end, for messages in one direction; the peer's endpoint has the
    /// other end. This halves the queue pairs, and a sender has no receives. By default an endpoint
    /// has both ends.
    #[must_use]
    pub fn only(self, end: impl Into<Option<End>>) -> Self {
        Self { only: end.into(), ..self }
    }

    /// Whether the endpoint has this end.
    pub(super) fn has(&self, end: End) -> bool {
        self.only.is_none_or(|only| only == end)
    }

    /// Sets how long messages are split over rails. Other policies than [`SplitPolicy::Even`], the
    /// default, are used as they are; with `Even`, [`rail_weights`](Self::rail_weights) decide.
    #[must_use]
    pub fn split(self, split: SplitPolicy) -> Self {
        Self { split, ..self }
    }

    /// Sets the length in bytes up to which a buffer uses one rail, in turn.
    #[must_use]
    pub fn split_threshold(self, bytes: u32) -> Self {
        Self { split_threshold: bytes, ..self }
    }

    /// Sets the length in bytes from which messages announce their payload with a separate request;
    /// see [`SenderConfig`](polyrail_core::p2p::SenderConfig::separate_signal).
    #[must_use]
    pub fn separate_signal(self, least: impl Into<Option<u32>>) -> Self {
        Self { separate_signal: least.into(), ..self }
    }

    /// Sets the maximum length of an inline request in bytes, 64 by default. It applies to entries
    /// that are written to the peer, and to [messages](super::P2pMember::isend_inline). If a device
    /// does not support it, [`build`](Self::build) fails.
    #[must_use]
    pub fn max_inline_data(self, max_inline_data: u32) -> Self {
        Self { max_inline_data, ..self }
    }

    /// Sets how the peer writes the entries of its receives. Use [`EntryForm::Plain`] only with
    /// devices that write in order; the software NIC does not.
    #[must_use]
    pub fn entry_form(self, entry_form: EntryForm) -> Self {
        Self { entry_form, ..self }
    }

    /// Sets whether received messages can be [flushed](super::P2pMember::flush). This takes one
    /// more queue pair per device, which is connected to itself.
    #[must_use]
    pub fn flushes(self, flushes: bool) -> Self {
        Self { flushes, ..self }
    }

    /// Sets what the failure of a rail does; equal at both ends. With [`RailFailure::Reroute`]
    /// other rails take over, and the owners of both ends must carry their [repair
    /// messages](super::P2pMember::healing_link), unless both ends are in one process.
    /// [`RailFailure::Fatal`] by default.
    #[must_use]
    pub fn rail_failure(self, rail_failure: RailFailure) -> Self {
        Self { reroutes: rail_failure == RailFailure::Reroute, ..self }
    }

    /// Sets the minimum number of rails in service, if rails are re-routed: with fewer, the
    /// endpoint fails. 1 by default; with 0, messages wait while no rail is in service.
    #[must_use]
    pub fn min_rails(self, min_rails: u8) -> Self {
        Self { min_rails, ..self }
    }

    /// Sets the devices that stand by, by their positions among the devices that
    /// [`build`](Self::build) is given, counted from 0. Their rails carry nothing new while a rail
    /// of another device is in service: see [standby
    /// rails](polyrail_core::p2p::Sender#standby-rails) and [the page about
    /// rails](crate::rails#standby-rails). None by default. The two ends may differ: each decides
    /// for what it sends. It needs [`RailFailure::Reroute`]; `build` refuses all devices, and a
    /// position that no device has.
    #[must_use]
    pub fn standby_devices(self, positions: impl IntoIterator<Item: Borrow<usize>>) -> Self {
        Self { standby_devices: StandbyDevices::new(positions), ..self }
    }

    /// Sets what decides how much of the data each rail carries; [`RailWeights::Auto`] by default.
    /// The two ends may differ: each decides for what it sends.
    #[must_use]
    pub fn rail_weights(self, weights: RailWeights) -> Self {
        Self { weights: self.weights.with_weights(weights), ..self }
    }

    /// Sets the rate of a device's ports in Mbit/s, in place of the rate that the device reports; 0:
    /// the reported one. Only the ratios matter. Devices that the endpoint does not use have no
    /// effect, but [`build`](Self::build) refuses rates of more than
    /// [`MAX_DEVICES`](crate::endpoint::MAX_DEVICES).
    #[must_use]
    pub fn device_mbps<D: Domain>(self, device: &D, mbps: u32) -> Self {
        let weights = self.weights.with_device_mbps(device.device_id(), mbps);
        Self { weights, ..self }
    }

    /// Sets how the endpoint repairs rails that failed; it does so only with
    /// [`RailFailure::Reroute`]. No message waits for one particular rail, so
    /// [`fallback_after`](Healing::fallback_after) and [`home_after`](Healing::home_after) have no
    /// effect.
    #[must_use]
    pub fn healing(self, healing: Healing) -> Self {
        Self { healing, ..self }
    }

    /// Sets how long messages that are [taken back](super::P2pMember::cancel_send) wait for what they
    /// have in flight before their queue pairs are fenced: 500 us by default. As
    /// [`EndpointBuilder::cancel_grace`](crate::endpoint::EndpointBuilder::cancel_grace).
    #[must_use]
    pub fn cancel_grace(self, cancel_grace: Duration) -> Self {
        Self { cancel_grace, ..self }
    }

    /// Sets MTU, timeouts, retries and packet fields of the connections. `rnr_retry` should stay 7,
    /// which retries without limit: a peer that has used up the receives of a pool then only delays
    /// others.
    #[must_use]
    pub fn connect_options(self, options: ConnectOptions) -> Self {
        Self { options, ..self }
    }

    /// Sets whether completion queues report to a completion channel, so that a
    /// [`P2pThread`](crate::progress::messages::P2pThread) can sleep, and selects the completion
    /// vector of every device, modulo the number of its vectors. By default there is no channel,
    /// and the queues are only polled.
    #[must_use]
    pub fn completion_channel(self, comp_vector: impl Into<Option<u32>>) -> Self {
        Self { comp_vector: comp_vector.into(), ..self }
    }
}

/// The value of `rnr_retry` that retries without limit (`ibv_modify_qp`).
const FOREVER: u8 = 7;
