//! What a simulated world is made of: everything that is chosen before its first step.

use super::virtual_qp::Size;
use crate::choices::{Choices, pick};
use polyrail_core::virtual_qp::{Config, PassThroughOrder, RailChoice, Scheme};
use std::fmt;

/// How bad the days in this world are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing fails.
    Fair,
    /// Drivers take requests in part or not at all, receivers are not ready, completions are late:
    /// everything succeeds all the same.
    Rough,
    /// Links, devices, drivers and peers fail.
    Storm,
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
    /// Send requests, and receives, that the driver grants each rail.
    pub queue: u32,
    /// The same for the notify queue pair.
    pub notify_queue: u32,
    /// Whether rail 0's receives have buffers, end by end. With DQPLB it is this or notifications;
    /// SPRAY and single rails always have them.
    pub data_receives: [bool; 2],
    /// Retries while a receiver is not ready; 7 is for ever.
    pub rnr_retry: u8,
}

/// A world.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Devices of each of the two hosts.
    pub devices: usize,
    /// How bad it gets.
    pub weather: Weather,
    /// What the NIC does between two calls, at most: little keeps queues full, much empties them.
    pub pace: u32,
    /// Half of all requests are one end's, so that it comes far.
    pub leans: bool,
    /// A plain queue pair completes on the same completion queues.
    pub bystander: bool,
    /// The connections at the beginning.
    pub connections: Vec<ConnectionShape>,
}

/// Connections of one world.
pub(super) const MAX_CONNECTIONS: usize = 3;

impl Shape {
    pub(super) fn choose(choices: &mut dyn Choices) -> Self {
        let devices = 1 + choices.below(3) as usize;
        let weather = pick(choices, &[Weather::Fair, Weather::Rough, Weather::Storm]);
        let pace = pick(choices, &[6, 20, 60, 150]);
        let leans = choices.coin();
        let bystander = choices.one_in(3);
        let connections = pick(choices, &[1, 1, 2, MAX_CONNECTIONS]);
        let connections =
            (0..connections).map(|_| ConnectionShape::choose(choices, devices, weather)).collect();
        Self { devices, weather, pace, leans, bystander, connections }
    }
}

impl ConnectionShape {
    pub(super) fn choose(choices: &mut dyn Choices, devices: usize, weather: Weather) -> Self {
        let size = pick(choices, &Size::ALL);
        // A type for several rails may have one.
        let fewest = if choices.one_in(8) { 1 } else { size.rails().min(2) };
        let rails = fewest + choices.below((size.rails() - fewest) as u32 + 1) as usize;
        let scheme = pick(choices, &[Scheme::Spray, Scheme::Dqplb]);
        let mixed = scheme == Scheme::Spray || rails == 1;
        let impatient = weather == Weather::Storm && choices.one_in(6);
        Self {
            size,
            rails,
            first_device: choices.below(devices as u32) as usize,
            config: Self::config(choices, scheme, size),
            queue: 1 << choices.below(5),
            notify_queue: 1 << choices.below(4),
            data_receives: [mixed || choices.one_in(4), mixed || choices.one_in(4)],
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

    /// The most requests that rail can have in flight.
    pub(super) fn credits(&self) -> u32 {
        self.config.max_msgs_per_qp.min(self.size.depth()).min(self.queue)
    }

    /// The same for the notify queue pair.
    pub(super) fn notify_credits(&self) -> u32 {
        self.config.max_msgs_per_qp.min(self.size.depth()).min(self.notify_queue)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, weather, pace, leans, bystander, connections } = self;
        write!(f, "{devices} devices a host, {weather:?}, pace {pace}")?;
        f.write_str(if *leans { ", leaning" } else { "" })?;
        f.write_str(if *bystander { ", a foreign queue pair" } else { "" })?;
        connections.iter().try_for_each(|connection| write!(f, "\n  {connection}"))
    }
}

impl fmt::Display for ConnectionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, rails, first_device, config, queue, notify_queue, rnr_retry, .. } = self;
        let Config { scheme, max_msg_size, max_msgs_per_qp, pass_through, .. } = config;
        let policy = match config.rail_choice {
            RailChoice::RoundRobin => "RoundRobin",
            RailChoice::LeastFinishTime { .. } => "LeastFinishTime",
        };
        write!(
            f,
            "{scheme:?} over {rails} rails of a type for {size:?}, fragments of {max_msg_size}, \
             {max_msgs_per_qp} messages a rail, {policy}, {pass_through:?}, queues of {queue} and \
             {notify_queue}, rail 0 on device {first_device}, rnr_retry {rnr_retry}, data receives {:?}",
            self.data_receives
        )
    }
}
