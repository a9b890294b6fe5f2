//! The options of an endpoint.

use super::build_error::BuildError;
use super::shape::Shape;
use super::sizes::{DEPTH, largest_queue};
use crate::backend::{ConnectOptions, Domain};
use crate::heal::Healing;
use polyrail_core::verbs::{ImmOrder, ReportOrder};
use polyrail_core::virtual_qp::{Config, RailFailure, Scheme};

/// The options of an endpoint. [`build`](Self::build) makes one, and
/// [`EndpointSet::build`](super::EndpointSet::build) makes many that share completion queues.
#[derive(Clone, Copy, Debug)]
pub struct EndpointBuilder {
    pub(super) rails: usize,
    pub(super) config: Config,
    pub(super) shape: Shape,
    pub(super) options: ConnectOptions,
    pub(super) always_notify_qp: bool,
    pub(super) healing: Healing,
    pub(super) comp_vector: Option<u32>,
}

impl Default for EndpointBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl EndpointBuilder {
    /// Four rails, SPRAY, fragments of 64 KiB, 100 messages a queue pair.
    pub fn new() -> Self {
        Self {
            rails: 4,
            config: Config::default(),
            shape: Shape { max_inline_data: 64, max_sge: 4, queue_depth: 0 },
            options: ConnectOptions::default(),
            always_notify_qp: false,
            healing: Healing::default(),
            comp_vector: None,
        }
    }

    /// Number of rails.
    #[must_use]
    pub fn rails(self, rails: usize) -> Self {
        Self { rails, ..self }
    }

    /// How receivers are notified.
    #[must_use]
    pub fn scheme(self, scheme: Scheme) -> Self {
        self.config(Config { scheme, ..self.config })
    }

    /// Bytes of the longest fragment, a multiple of 128. Of two ends that differ, both take the lesser one when they
    /// connect.
    #[must_use]
    pub fn max_msg_size(self, max_msg_size: u32) -> Self {
        self.config(Config { max_msg_size, ..self.config })
    }

    /// All options of the engine, except the number, which [`build`](Self::build) assigns.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Bytes that an inline request can have, 64 by default. A device that has less refuses to
    /// [build](Self::build): [`DeviceError::InlineData`](crate::backend::DeviceError::InlineData).
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
    /// assert!(Chain(&error).to_string().starts_with("device soft0: inline data of 4096 bytes is not supported"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_inline_data(self, max_inline_data: u32) -> Self {
        Self { shape: Shape { max_inline_data, ..self.shape }, ..self }
    }

    /// Buffers that one fragment, SEND or receive can have: 4 by default, fewer on a device that takes fewer.
    /// Queues take memory for all of them: of mlx5 each request takes 64 bytes more for 4 further buffers.
    /// The engine makes use of [`MAX_SGE`](polyrail_core::hardware::MAX_SGE) at most, and of no more than all
    /// rails take. 0 counts as 1.
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

    /// Requests that each queue pair can hold each way, at least; by default [`DEPTH`](super::DEPTH), if the device
    /// takes as many. Only a single rail can have more, which are the device's business alone: up to the largest
    /// power of two that it takes ([`Domain::max_qp_wr`]). Of several rails the engine keeps the count, so with more
    /// it is refused to [build](Self::build): [`BuildError::QueueDepth`].
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

    /// Packet size, timeouts and retries of the connections, and what tells their packets from others.
    ///
    /// ```
    /// use polyrail::backend::ConnectOptions;
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder};
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// // DSCP 26, as switches are often told to expect of RoCE, and ECN.
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

    /// How users' immediates travel; the same at both ends. Toward a peer that runs the reference
    /// implementation, [`ImmOrder::LittleEndian`].
    #[must_use]
    pub fn imm_order(self, imm_order: ImmOrder) -> Self {
        self.config(Config { imm_order, ..self.config })
    }

    /// When requests over several rails are reported that do not choose
    /// [themselves](polyrail_core::verbs::SendWr::reported): in order by default.
    #[must_use]
    pub fn report_order(self, report_order: ReportOrder) -> Self {
        self.config(Config { report_order, ..self.config })
    }

    /// What a rail's failure does; the same at both ends, and only over several rails can one be
    /// re-routed. [`RailFailure::Fatal`] by default.
    #[must_use]
    pub fn rail_failure(self, rail_failure: RailFailure) -> Self {
        self.config(Config { rail_failure, ..self.config })
    }

    /// With [`RailFailure::Reroute`], how many data rails have to be in service at least: with fewer the
    /// endpoint has failed. 1 by default; with 0, requests wait for as long as there is no rail.
    #[must_use]
    pub fn min_rails(self, min_rails: u8) -> Self {
        self.config(Config { min_rails, ..self.config })
    }

    /// How the endpoint repairs rails if they are re-routed.
    #[must_use]
    pub fn healing(self, healing: Healing) -> Self {
        Self { healing, ..self }
    }

    /// Whether there is a notify queue pair even where none is needed: with DQPLB, or a single rail.
    /// Not by default.
    ///
    /// For a peer that runs the reference implementation, which always has one and connects it to the
    /// one on our card. It is with the first rail, takes one request at a time, and nothing is ever posted
    /// to it; a peer without one may connect all the same.
    #[must_use]
    pub fn always_notify_qp(self, always: bool) -> Self {
        Self { always_notify_qp: always, ..self }
    }

    /// Whether completion queues tell a completion channel when they have something, so that their owner can
    /// [wait](super::Endpoint::wait), and which interrupt of every device tells, modulo the number of those that
    /// it has. By default they do not: they are only polled. In a set, the first virtual queue pair on a device
    /// that says so decides for it.
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
