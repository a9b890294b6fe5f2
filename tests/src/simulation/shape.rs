//! The shape of a simulated world: everything that is chosen before its first step.

use super::virtual_qp::Size;
use crate::choices::{Choices, pick};
use polyrail_core::verbs::ReportOrder;
use polyrail_core::virtual_qp::{
    Config, FRAGMENT_ALIGN, MAX_RAILS, PassThroughOrder, RailChoice, RailId, Scheme,
};
use std::fmt;

/// How much goes wrong in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultLevel {
    /// Nothing fails.
    None,
    /// Drivers take requests in part or not at all, receivers are not ready, completions are late:
    /// everything still succeeds.
    Delays,
    /// Links, devices, drivers and peers fail.
    Failures,
}

/// The limits that a queue pair is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Maximum number of sends in flight.
    pub send: u32,
    /// Maximum number of posted receives.
    pub recv: u32,
    /// Bytes of an inline request.
    pub inline: u32,
    /// Buffers of a request, and of a receive.
    pub sge: u32,
}

impl Grant {
    /// Powers of two, and a multiple of 16: what is asked for is granted.
    fn choose(choices: &mut dyn Choices, deepest: u32) -> Self {
        Self {
            send: 1 << choices.below(deepest),
            recv: 1 << choices.below(deepest),
            inline: 16 * pick(choices, &[0, 1, 2, 4, 4, 10]),
            sge: pick(choices, &[1, 2, 3, 5, 8]),
        }
    }
}

/// One connection: two virtual queue pairs, built alike.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionShape {
    /// The const parameters.
    pub size: Size,
    /// Rails in use.
    pub rails: usize,
    /// The device of rail 0; the others follow.
    pub first_device: usize,
    /// The configuration of both ends, their numbers aside.
    pub config: Config,
    /// The longest fragment that was asked for: more than a rail carries is refused.
    pub wanted_msg_size: u32,
    /// The limits that the driver grants each rail.
    pub grants: [Grant; MAX_RAILS],
    /// The same for the notify queue pair.
    pub notify_grant: Grant,
    /// Whether rail 0's receives come from a shared receive queue, end by end.
    pub shared_receives: [bool; 2],
    /// Whether rail 0's receives have buffers, end by end. With DQPLB it is this or notifications;
    /// SPRAY and single rails always have them.
    pub data_receives: [bool; 2],
    /// Retries while a receiver is not ready; 7 is forever.
    pub rnr_retry: u8,
}

/// A world.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Devices of each of the two hosts.
    pub devices: usize,
    /// How much goes wrong.
    pub fault_level: FaultLevel,
    /// Maximum number of NIC steps between two calls: few keep queues full, many empty them.
    pub pace: u32,
    /// One end gets half of all requests, so that it gets far.
    pub leans: bool,
    /// Most requests pass through to rail 0.
    pub passes: bool,
    /// A plain queue pair completes on the same completion queues.
    pub bystander: bool,
    /// The longest message of each device, at both hosts.
    pub message_limits: [u32; MAX_DEVICES],
    /// The budget of every poll, if it is always the same.
    pub budget: Option<usize>,
    /// The connections at the beginning.
    pub connections: Vec<ConnectionShape>,
}

/// Devices of one host.
pub(super) const MAX_DEVICES: usize = 3;
/// Connections of one world.
pub(super) const MAX_CONNECTIONS: usize = 3;

impl Shape {
    pub(super) fn choose(choices: &mut dyn Choices) -> Self {
        let devices = 1 + choices.below(MAX_DEVICES as u32) as usize;
        let fault_level =
            pick(choices, &[FaultLevel::None, FaultLevel::Delays, FaultLevel::Failures]);
        let pace = pick(choices, &[6, 20, 60, 150]);
        let leans = choices.coin();
        let passes = choices.one_in(3);
        let bystander = choices.one_in(3);
        let budget = pick(choices, &[None, None, Some(1)]);
        let message_limits = match choices.coin() {
            true => [1 << 30; MAX_DEVICES],
            false => [(); MAX_DEVICES].map(|()| pick(choices, &[128, 300, 640, 4096, 1 << 30])),
        };
        let connections = pick(choices, &[1, 1, 2, MAX_CONNECTIONS]);
        let mut shape = Self {
            devices,
            fault_level,
            pace,
            leans,
            passes,
            bystander,
            message_limits,
            budget,
            connections: Vec::new(),
        };
        for _ in 0..connections {
            let connection = ConnectionShape::choose(choices, &shape);
            shape.connections.push(connection);
        }
        shape
    }
}

impl ConnectionShape {
    pub(super) fn choose(choices: &mut dyn Choices, world: &Shape) -> Self {
        let devices = world.devices;
        let fault_level = world.fault_level;
        let size = pick(choices, &Size::ALL);
        // A type for several rails may have one.
        let fewest = if choices.one_in(8) { 1 } else { size.rails().min(2) };
        let rails = fewest + choices.below((size.rails() - fewest) as u32 + 1) as usize;
        let scheme = pick(choices, &[Scheme::Spray, Scheme::Dqplb]);
        let mixed = scheme == Scheme::Spray || rails == 1;
        let impatient = fault_level == FaultLevel::Failures && choices.one_in(6);
        let first_device = choices.below(devices as u32) as usize;
        let mut config = Self::config(choices, scheme, size);
        let wanted_msg_size = config.max_msg_size;
        if rails > 1 {
            let limits =
                (0..rails).map(|rail| world.message_limits[(first_device + rail) % devices]);
            let limit = limits.min().unwrap_or(u32::MAX) / FRAGMENT_ALIGN * FRAGMENT_ALIGN;
            config.max_msg_size = wanted_msg_size.min(limit);
        }
        if choices.one_in(3) {
            let rails = (1..rails as u8).filter(|_| choices.coin());
            config.standby = rails.map(RailId::Data).collect();
        }
        let alike = Grant::choose(choices, 5);
        let uneven = choices.coin();
        let grant = |()| if uneven { Grant::choose(choices, 5) } else { alike };
        Self {
            size,
            rails,
            first_device,
            config,
            wanted_msg_size,
            grants: [(); MAX_RAILS].map(grant),
            notify_grant: Grant::choose(choices, 4),
            data_receives: [mixed || choices.one_in(4), mixed || choices.one_in(4)],
            shared_receives: [mixed && choices.one_in(4), mixed && choices.one_in(4)],
            rnr_retry: if impatient { 2 } else { 7 },
        }
    }

    fn config(choices: &mut dyn Choices, scheme: Scheme, size: Size) -> Config {
        let rail_choice = if choices.one_in(3) {
            RailChoice::LeastFinishTime { bandwidth_mbps: [100, 200, 300, 50, 70, 100, 1, 400] }
        } else {
            RailChoice::RoundRobin
        };
        Config {
            scheme,
            rail_choice,
            pass_through: pick(
                choices,
                &[
                    PassThroughOrder::Ordered,
                    PassThroughOrder::Ordered,
                    PassThroughOrder::Unordered,
                ],
            ),
            max_msg_size: 128 * pick(choices, &[1, 1, 1, 2, 3, 6]),
            max_msgs_per_qp: 1 + choices.below(size.depth()),
            report_order: pick(
                choices,
                &[ReportOrder::InOrder, ReportOrder::InOrder, ReportOrder::WhenDone],
            ),
            ..Config::default()
        }
    }

    /// Whether requests are spread.
    pub(super) fn is_multi(&self) -> bool {
        self.rails > 1
    }

    /// Whether each end has a notify queue pair.
    pub(super) fn has_notify(&self) -> bool {
        self.is_multi() && self.config.scheme == Scheme::Spray
    }

    /// Whether WRITE_WITH_IMM may be sent toward this end.
    pub(super) fn notifies(&self, end: usize) -> bool {
        !self.is_multi() || self.config.scheme == Scheme::Spray || !self.data_receives[end]
    }

    /// Whether SENDs may be posted toward this end.
    pub(super) fn takes_sends(&self, end: usize) -> bool {
        let dqplb = self.is_multi() && self.config.scheme == Scheme::Dqplb;
        self.data_receives[end] && !dqplb
    }

    /// Whether this end counts the sequence numbers of DQPLB.
    pub(super) fn counts_arrivals(&self, end: usize) -> bool {
        self.is_multi() && self.config.scheme == Scheme::Dqplb && self.notifies(end)
    }

    /// What a physical queue pair is granted.
    pub(super) fn grant(&self, rail: RailId) -> Grant {
        match rail {
            RailId::Data(rail) => self.grants[rail as usize],
            RailId::Notify => self.notify_grant,
        }
    }

    /// The maximum number of requests in flight on a physical queue pair.
    pub(super) fn credits(&self, rail: RailId) -> u32 {
        self.config.max_msgs_per_qp.min(self.size.depth()).min(self.grant(rail).send)
    }

    /// The same for the receives that the engine posts.
    pub(super) fn receives(&self, rail: RailId) -> u32 {
        self.config.max_msgs_per_qp.min(self.size.depth()).min(self.grant(rail).recv)
    }

    /// The data rails.
    pub(super) fn data_rails(&self) -> impl Iterator<Item = RailId> + use<> {
        (0..self.rails as u8).map(RailId::Data)
    }

    /// The data rails that carry fragments while all are in service.
    pub(super) fn home_rails(&self) -> impl Iterator<Item = RailId> + use<> {
        let standby = self.config.standby;
        self.data_rails().filter(move |rail| !standby.contains(*rail))
    }

    /// Bytes that fit inline into a request of several fragments, or of one whole.
    pub(super) fn inline_limit(&self, is_cut: bool) -> u32 {
        let rails = if is_cut { &self.grants[..self.rails] } else { &self.grants[..1] };
        let least = rails.iter().map(|grant| grant.inline).min().unwrap_or(0);
        if is_cut { least.min(self.config.max_msg_size) } else { least }
    }

    /// Buffers that a request can have which is not cut: all rails take as many.
    pub(super) fn sge_limit(&self) -> usize {
        let grants = self.grants[..self.rails].iter();
        grants.map(|grant| grant.sge).min().unwrap_or(1) as usize
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, fault_level, pace, leans, bystander, connections, .. } = self;
        write!(f, "{devices} devices a host, {fault_level:?}, pace {pace}")?;
        f.write_str(if *leans { ", leaning" } else { "" })?;
        f.write_str(if self.passes { ", passing" } else { "" })?;
        f.write_str(if *bystander { ", a foreign queue pair" } else { "" })?;
        write!(f, ", messages of {:?}", &self.message_limits[..*devices])?;
        self.budget.iter().try_for_each(|budget| write!(f, ", budget {budget}"))?;
        connections.iter().try_for_each(|connection| write!(f, "\n  {connection}"))
    }
}

impl fmt::Display for ConnectionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, rails, first_device, config, rnr_retry, .. } = self;
        let Config { scheme, max_msg_size, max_msgs_per_qp, pass_through, report_order, .. } =
            config;
        let policy = match config.rail_choice {
            RailChoice::RoundRobin => "RoundRobin",
            RailChoice::LeastFinishTime { .. } => "LeastFinishTime",
        };
        write!(
            f,
            "{scheme:?} over {rails} rails of a type for {size:?}, fragments of {max_msg_size}, \
             {max_msgs_per_qp} messages a rail, {policy}, {pass_through:?}, {report_order:?}, rail 0 on device \
             {first_device}, rnr_retry {rnr_retry}, data receives {:?}, shared {:?}, standby {}\n    granted",
            self.data_receives, self.shared_receives, config.standby
        )?;
        let notify = self.has_notify().then_some(&self.notify_grant);
        self.grants[..*rails].iter().chain(notify).try_for_each(|grant| {
            let Grant { send, recv, inline, sge } = grant;
            write!(f, " {send}/{recv}/{inline}/{sge}")
        })
    }
}
