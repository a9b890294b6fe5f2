//! Options of an endpoint.

use super::build_error::BuildError;
use super::place::StandbyDevices;
use super::sizes::{DEPTH, Shape, largest_queue};
use super::weights::{RailWeights, WeightOptions};
use crate::backend::{ConnectOptions, Domain};
use crate::heal::{CANCEL_GRACE, Healing};
use polyrail_core::verbs::{ImmOrder, ReportOrder};
use polyrail_core::virtual_qp::{Config, RailFailure, Scheme};
use std::borrow::Borrow;
use std::time::Duration;

/// Options of an endpoint. [`build`](Self::build) builds one;
/// [`EndpointSet::build`](super::EndpointSet::build) builds many that share completion queues.
#[derive(Clone, Copy, Debug)]
pub struct EndpointBuilder {
    pub(super) rails: usize,
    pub(super) config: Config,
    pub(super) standby_devices: StandbyDevices,
    pub(super) weights: WeightOptions,
    pub(super) shape: Shape,
    pub(super) options: ConnectOptions,
    pub(super) always_notify_qp: bool,
    pub(super) healing: Healing,
    pub(super) cancel_grace: Duration,
    pub(super) comp_vector: Option<u32>,
}

impl Default for EndpointBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl EndpointBuilder {
    /// The defaults: four rails, SPRAY, fragments of 64 KiB, 100 messages per queue pair.
    pub fn new() -> Self {
        Self {
            rails: 4,
            config: Config::default(),
            standby_devices: StandbyDevices::default(),
            weights: WeightOptions::default(),
            shape: Shape { max_inline_data: 64, max_sge: 4, queue_depth: 0, max_wr: u32::MAX },
            options: ConnectOptions::default(),
            always_notify_qp: false,
            healing: Healing::default(),
            cancel_grace: CANCEL_GRACE,
            comp_vector: None,
        }
    }

    /// Sets the number of rails.
    #[must_use]
    pub fn rails(self, rails: usize) -> Self {
        Self { rails, ..self }
    }

    /// Sets how receivers are notified.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        self.config(Config { scheme, ..self.config })
    }

    /// Sets the length of the longest fragment in bytes, a multiple of 128. If the two ends differ,
    /// both use the smaller one.
    #[must_use]
    pub fn max_msg_size(self, max_msg_size: u32) -> Self {
        self.config(Config { max_msg_size, ..self.config })
    }

    /// Sets all options of the engine, except the number, which [`build`](Self::build) assigns.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets the maximum length of an inline request in bytes, 64 by default. If a device does not
    /// support it, [`build`](Self::build) fails with
    /// [`DeviceError::InlineData`](crate::backend::DeviceError::InlineData).
    ///
    /// ```
    /// use polyrail::chain::Chain;
    /// use polyrail::endpoint::EndpointBuilder;
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// let endpoint = EndpointBuilder::new().max_inline_data(256).build(&[&domain])?;
    /// let error = EndpointBuilder::new().max_inline_data(4096).build(&[&domain]).unwrap_err();
    /// let text = Chain(&error).to_string();
    /// assert!(text.starts_with("device soft0: 4096 bytes of inline data exceed what the device supports"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_inline_data(self, max_inline_data: u32) -> Self {
        Self { shape: Shape { max_inline_data, ..self.shape }, ..self }
    }

    /// Sets the maximum scatter/gather entries per fragment, SEND or receive: 4 by default, or the
    /// device's limit if that is smaller. Queues allocate memory for all of them: on mlx5 each
    /// request takes 64 bytes more for every 4 further entries. The engine uses at most
    /// [`MAX_SGE`](polyrail_core::hardware::MAX_SGE), and at most the smallest limit of all rails.
    /// If rails are re-routed, this is limited by the least capable device, because a rail may move
    /// there. 0 counts as 1.
    ///
    /// ```
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder};
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail_core::hardware::QueuePair;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// let endpoint: Endpoint = EndpointBuilder::new().max_sge(16).build(&[&domain])?;
    /// let granted = |qp: &polyrail::nic::QueuePair| qp.limits().max_send_sge;
    /// assert!(endpoint.virtual_qp().rails().map(granted).all(|max_sge| max_sge == 16));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_sge(self, max_sge: u32) -> Self {
        Self { shape: Shape { max_sge, ..self.shape }, ..self }
    }

    /// Sets the minimum number of outstanding requests per queue; by default
    /// [`DEPTH`](super::DEPTH), or the device's limit if that is smaller (if rails are re-routed,
    /// the smallest limit of all devices). Only an endpoint with a
    /// single rail can have more, up to the largest power of two that the device supports
    /// ([`Domain::max_qp_wr`]). With several rails the engine tracks the requests, with room for
    /// [`DEPTH`](super::DEPTH) per rail and direction, so [`build`](Self::build) fails with
    /// [`BuildError::QueueDepth`] for more.
    ///
    /// ```
    /// use polyrail::endpoint::EndpointBuilder;
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// let deep = EndpointBuilder::new().rails(1).queue_depth(1000).build(&[&domain])?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn queue_depth(self, queue_depth: u32) -> Self {
        Self { shape: Shape { queue_depth, ..self.shape }, ..self }
    }

    /// Sets MTU, timeouts, retries and packet fields of the connections.
    ///
    /// ```
    /// use polyrail::backend::ConnectOptions;
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder};
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// // DSCP 26, which switches often expect for RoCE, and ECN.
    /// let options = ConnectOptions { traffic_class: 26 << 2 | 2, ..ConnectOptions::default() };
    /// let builder = EndpointBuilder::new().connect_options(options);
    /// let endpoint = builder.build(&[&domain])?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn connect_options(self, options: ConnectOptions) -> Self {
        Self { options, ..self }
    }

    /// Sets the byte order of users' immediates on the wire; equal at both ends. A peer that runs
    /// the reference implementation needs [`ImmOrder::LittleEndian`].
    #[must_use]
    pub fn imm_order(self, imm_order: ImmOrder) -> Self {
        self.config(Config { imm_order, ..self.config })
    }

    /// Sets the order in which requests over several rails are reported; by default, the order of
    /// posting. A request can [override](polyrail_core::verbs::SendWr::reported) it.
    #[must_use]
    pub fn report_order(self, report_order: ReportOrder) -> Self {
        self.config(Config { report_order, ..self.config })
    }

    /// Sets what happens when a rail fails; equal at both ends. Requests are re-routed only if
    /// there are several rails. [`RailFailure::Fatal`] by default.
    #[must_use]
    pub fn rail_failure(self, rail_failure: RailFailure) -> Self {
        self.config(Config { rail_failure, ..self.config })
    }

    /// Sets the minimum number of data rails in service, with [`RailFailure::Reroute`]: with fewer,
    /// the endpoint fails. 1 by default; with 0, requests wait while no rail is in service.
    #[must_use]
    pub fn min_rails(self, min_rails: u8) -> Self {
        self.config(Config { min_rails, ..self.config })
    }

    /// Sets the devices that stand by, by their positions among the devices that
    /// [`build`](Self::build) is given, counted from 0. Their rails carry fragments only while no
    /// rail of another device is in service: see [standby
    /// rails](polyrail_core::virtual_qp::VirtualQp#standby-rails) and [the page about
    /// rails](crate::rails#standby-rails). None by default. The two ends may differ: each decides
    /// for what it sends.
    ///
    /// The first device cannot stand by, because it has rail 0, which carries SENDs and atomics.
    /// [`build`](Self::build) refuses it, all devices, and a position that no device has.
    #[must_use]
    pub fn standby_devices(self, positions: impl IntoIterator<Item: Borrow<usize>>) -> Self {
        Self { standby_devices: StandbyDevices::new(positions), ..self }
    }

    /// Sets what decides how much of the data each rail carries; [`RailWeights::Auto`] by default.
    /// The two ends may differ: each decides for what it sends.
    ///
    /// A [`rail_choice`](Config::rail_choice) in [`config`](Self::config) that is not the default
    /// stays as it is. A choice that is
    /// [set later](polyrail_core::virtual_qp::VirtualQp::set_rail_choice) is replaced when rates
    /// change, unless `config` has such a choice or weights are [`RailWeights::Equal`].
    ///
    /// ```
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder, RailWeights};
    /// use polyrail::virtual_qp::RailChoice;
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let near = fabric.create_device(DeviceConfig::named("near")).alloc_pd()?;
    /// # let far = fabric.create_device(DeviceConfig::named("far")).alloc_pd()?;
    /// // The switch behind the second device limits it to 100 Gbit/s.
    /// let builder = EndpointBuilder::new().device_mbps(&near, 400_000).device_mbps(&far, 100_000);
    /// let endpoint: Endpoint = builder.build(&[&near, &far])?;
    /// let choice = endpoint.virtual_qp().config().rail_choice;
    /// assert!(matches!(choice, RailChoice::LeastFinishTime { .. }));
    /// let endpoint: Endpoint = builder.rail_weights(RailWeights::Equal).build(&[&near, &far])?;
    /// assert_eq!(endpoint.virtual_qp().config().rail_choice, RailChoice::RoundRobin);
    /// # Ok(())
    /// # }
    /// ```
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

    /// How the endpoint repairs rails if they are re-routed.
    #[must_use]
    pub fn healing(self, healing: Healing) -> Self {
        Self { healing, ..self }
    }

    /// Sets how long requests that are [taken back](super::EndpointQp::cancel) wait for what they
    /// have in flight before their rails are fenced: 500 us by default.
    ///
    /// What is acknowledged in this time needs no fence. So a rail that works is almost never
    /// fenced, if the time is about twice what its requests take: a fence costs it a new queue
    /// pair, and what other requests have in flight there is posted again. The time begins with the
    /// first request that is taken back while no other one waits, and ends for all that are being
    /// taken back then. With zero, rails are fenced at once.
    #[must_use]
    pub fn cancel_grace(self, cancel_grace: Duration) -> Self {
        Self { cancel_grace, ..self }
    }

    /// Sets whether there is always a notify queue pair, even if none is needed: with DQPLB, or
    /// with a single rail. False by default.
    ///
    /// It serves peers that run the reference implementation, which always has a notify queue pair
    /// and connects it to the one on the card. It is on the first rail's device, holds one request,
    /// and is never used. A peer without one can connect, too.
    #[must_use]
    pub fn always_notify_qp(self, always: bool) -> Self {
        Self { always_notify_qp: always, ..self }
    }

    /// Sets whether completion queues report to a completion channel, so that their owner can
    /// [wait](super::Endpoint::wait), and selects the completion vector of every device, modulo the
    /// number of its vectors. By default there is no channel, and the queues are only polled. In a
    /// set, the first virtual queue pair on a device that sets this decides for the device.
    #[must_use]
    pub fn completion_channel(self, comp_vector: impl Into<Option<u32>>) -> Self {
        Self { comp_vector: comp_vector.into(), ..self }
    }

    /// Refuses a depth that a device does not have, or the engine.
    pub(super) fn check_queue_depth<D: Domain>(&self, domain: &D) -> Result<(), BuildError> {
        let most = match self.rails {
            1 => largest_queue(domain.max_qp_wr()),
            _ => (DEPTH as u32).min(largest_queue(domain.max_qp_wr())),
        };
        if self.shape.queue_depth <= most {
            return Ok(());
        }
        let device = domain.device_name().to_owned();
        let Self { shape: Shape { queue_depth: asked, .. }, rails, .. } = *self;
        Err(BuildError::QueueDepth { device, rails, asked, most })
    }
}
