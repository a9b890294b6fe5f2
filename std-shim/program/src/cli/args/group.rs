//! Arguments that several commands share.

use super::heading::{FAULTS, PLACE, REQUESTS, WAITING};
use super::value::{BackendName, FailureName, WeightsName, fragment, rails, rate, seconds};
use crate::cli::exit::Failure;
use clap::Args;
use polyrail::backend::ConnectOptions;
use polyrail::chain::Chain;
use polyrail::endpoint::RailWeights;
use polyrail::link::Token;
use polyrail::place::Near;
use polyrail::virtual_qp::RailFailure;
use polyrail_program::devices::{ChosenDevice, DeviceChoice};
use polyrail_program::fault::RailFault;
use polyrail_program::session::{PeerTimeouts, QualityOfService, RailRepair};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

/// How requests are sent, by any command.
#[derive(Debug, Args)]
pub(in crate::cli) struct RequestArguments {
    /// Physical queue pairs that carry the data.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = rails, help_heading = REQUESTS)]
    pub(in crate::cli) rails: usize,
    /// Devices of each side. Rails use them in turn; if there are more devices than rails, the last
    /// devices stay unused [default: one for each rail].
    #[arg(long, value_name = "N", value_parser = rails, help_heading = REQUESTS)]
    pub(in crate::cli) devices: Option<usize>,
    /// Limit each software NIC to SIZE bytes per second, so that more rails mean more throughput
    /// [default: no limit].
    #[arg(long, value_name = "SIZE", value_parser = rate, help_heading = REQUESTS)]
    pub(in crate::cli) line_rate: Option<NonZeroU64>,
    /// Size of the longest fragment in bytes, a multiple of 128.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fragment, help_heading = REQUESTS)]
    pub(in crate::cli) max_msg_size: u32,
}

/// Which devices of this host to use, and how.
#[derive(Debug, Args)]
pub(in crate::cli) struct DeviceArguments {
    /// Kind of devices to use [default: that of --device; without it verbs if both hosts have an
    /// active RDMA device, else tcp; `serve` offers both].
    #[arg(long, value_enum, help_heading = PLACE)]
    backend: Option<BackendName>,
    /// Device to use: an RDMA device, or one port of it, perhaps with the index of its GID instead
    /// of --gid-index; or over TCP a network interface or one of its addresses, such as tcp:eth0 or
    /// tcp:10.0.0.1, perhaps with the address at which the other host reaches it through NAT, such
    /// as tcp:eth0@192.0.2.1:7500. Repeatable; rails use the devices in this order [default: every
    /// RDMA device with an active port, or network interfaces in a network of the other host, up to
    /// one for each rail; `serve` offers all that have carrier].
    #[arg(long, value_name = "DEVICE[:PORT][@GID]|tcp:INTERFACE[@ADDRESS]", help_heading = PLACE)]
    device: Vec<ChosenDevice>,
    /// TCP port at which the network interfaces that are used accept connections of rails, for
    /// firewalls. Programs that use the same interface need different ports [default: any].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = PLACE)]
    tcp_port: Option<u16>,
    /// Index of the GID of RDMA devices' ports, as `polyrail devices` lists them. Selects verbs, as
    /// --backend does [default: of the
    /// addresses in this network namespace, RoCE v2 over IPv4 if there is one, else RoCE v2, else
    /// the first].
    #[arg(long, value_name = "N", help_heading = PLACE)]
    gid_index: Option<u8>,
    /// Let rails begin with the RDMA devices that are nearest to a PCI device, such as a GPU at
    /// 0000:3b:00.0, or, with `thread`, to the processors that this program may use; with `nothing`,
    /// in the order of their names. Selects verbs, as --backend does. The server pairs its devices
    /// with those of the other host by their networks [default: thread; a program that may use the
    /// processors of all NUMA nodes is near to nothing].
    #[arg(long, value_name = "PCI|thread|nothing", conflicts_with = "device", help_heading = PLACE)]
    near: Option<Near>,
    /// Traffic class of this side's packets; ignored over TCP. On RoCE v2: four times the DSCP,
    /// plus 2 to let switches mark congestion (ECN) [default: 0].
    #[arg(long, visible_alias = "tclass", value_name = "N", help_heading = PLACE)]
    traffic_class: Option<u8>,
    /// Service level of this side's packets, 0 to 15; ignored over TCP. On RoCE: their priority
    /// [default: 0].
    #[arg(long, visible_alias = "sl", value_name = "N", value_parser = clap::value_parser!(u8).range(..=15), help_heading = PLACE)]
    service_level: Option<u8>,
}

impl DeviceArguments {
    /// Refuses these options if data stays within this process, where there are no such devices.
    pub(in crate::cli) fn refuse_without(&self, to: Option<&str>) -> Result<(), Failure> {
        let Self { backend, device, tcp_port, gid_index, near, traffic_class, service_level } =
            self;
        let given = [gid_index, traffic_class, service_level].iter().any(|given| given.is_some())
            || !device.is_empty()
            || backend.is_some()
            || tcp_port.is_some()
            || near.is_some();
        if to.is_some() || !given {
            return Ok(());
        }
        let message = "--backend, --device, --tcp-port, --gid-index, --near, --traffic-class and \
                       --service-level require --to";
        Err(Failure::usage(message))
    }

    /// Returns the choice of devices.
    pub(in crate::cli) fn choice(&self) -> DeviceChoice {
        DeviceChoice {
            backend: self.backend.map(Into::into),
            devices: self.device.clone(),
            gid_index: self.gid_index,
            near: self.near,
            tcp_port: self.tcp_port,
        }
    }

    /// Returns how the network is to treat this side's packets.
    pub(in crate::cli) fn quality(&self) -> QualityOfService {
        QualityOfService {
            traffic_class: self.traffic_class.unwrap_or_default(),
            service_level: self.service_level.unwrap_or_default(),
        }
    }
}

/// How both hosts authenticate each other.
#[derive(Debug, Args)]
pub(in crate::cli) struct TokenArguments {
    /// File with a secret of at least 16 bytes, the same on both hosts. Each host refuses a peer
    /// that does not have it, before any other message. The secret is not sent, and data is not
    /// encrypted.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = PLACE)]
    token_file: Option<PathBuf>,
}

impl TokenArguments {
    /// Refuses a token if there is no other host.
    pub(in crate::cli) fn refuse_without(&self, to: Option<&str>) -> Result<(), Failure> {
        match &self.token_file {
            Some(_) if to.is_none() => Err(Failure::usage("--token-file requires --to")),
            _ => Ok(()),
        }
    }

    /// Returns whether a token file was named.
    pub(in crate::cli) fn is_given(&self) -> bool {
        self.token_file.is_some()
    }

    /// Reads the token, if a file was named.
    pub(in crate::cli) fn read(&self) -> Result<Option<Token>, Failure> {
        let read = self.token_file.as_deref().map(Token::read).transpose();
        read.map_err(|error| Failure::usage(&Chain(&error).to_string()))
    }
}

/// Faults to inject.
#[derive(Debug, Args)]
pub(in crate::cli) struct FaultArguments {
    /// Inject a fault into the device of a rail. SIDE: `near` (this side, which sends; the default)
    /// or `far`. WHEN: once the device has carried a number of bytes, such as 1M, or at a time
    /// after data began to move, such as 200ms. HOW: `cut` (its link goes down; the default),
    /// `silent` (it stops answering), `drop` (it drops what arrives, and its port stays up), `slow`
    /// (its completions are 20 ms late), `corrupt` (requests fail although they were carried out)
    /// or `gone` (the device is removed). FOR: how long the fault lasts, such as 1s [default: until
    /// the end]. Repeatable. Rails that share the device are all affected, and their bytes all
    /// count.
    #[arg(long, value_name = "[SIDE.]RAIL:WHEN[:HOW[:FOR]]", help_heading = FAULTS)]
    pub(in crate::cli) fault: Vec<RailFault>,
}

/// How long to wait for the other host.
#[derive(Debug, Args)]
pub(in crate::cli) struct TimeoutArguments {
    /// Seconds to wait for a connection, and for each answer while a connection is set up or
    /// closed; up to --idle-timeout more if the control channel breaks meanwhile.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) answer_timeout: Duration,
    /// Seconds to wait while the other host sends nothing at all: neither data nor control
    /// messages.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) idle_timeout: Duration,
    /// Seconds to wait for data while the other host reports that it is alive. The far end of a
    /// measured write or read sees no data, so there this limits the whole measurement.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) progress_timeout: Duration,
}

impl TimeoutArguments {
    pub(in crate::cli) fn timeouts(&self) -> PeerTimeouts {
        PeerTimeouts {
            answer: self.answer_timeout,
            idle: self.idle_timeout,
            progress: self.progress_timeout,
        }
    }
}

/// How queue pairs are connected and watched.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConnectionArguments {
    /// How much of what this side sends each rail carries. Rates are measured only if rails are
    /// rerouted.
    #[arg(long, value_enum, default_value_t = WeightsName::Auto, help_heading = REQUESTS)]
    rail_weights: WeightsName,
    /// Retransmit packets that are not acknowledged within 4.096 us * 2^N, 1 to 31. Applies to
    /// packets of this side. Over TCP, a rail fails after 8 times this without an answer [default:
    /// 18, which is 1.07 s; within one process 14, which is 67 ms].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31), help_heading = WAITING)]
    qp_timeout: Option<u8>,
    /// Seconds without progress after which a rail counts as failed.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = WAITING)]
    stall_timeout: Duration,
    /// Seconds without an acknowledgement, while rails are down or carry nothing, after which the
    /// command fails.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, help_heading = WAITING)]
    rail_timeout: Duration,
}

/// What happens when a rail fails.
#[derive(Debug, Args)]
pub(in crate::cli) struct FailureArguments {
    /// What to do when a rail fails: reroute its data over the other rails and repair it, or stop.
    /// With a single rail, its failure always stops the command.
    #[arg(long, value_enum, default_value_t = FailureName::Reroute, help_heading = FAULTS)]
    pub(in crate::cli) rail_failure: FailureName,
}

impl ConnectionArguments {
    /// Returns what decides how much each rail carries.
    pub(in crate::cli) fn rail_weights(&self) -> RailWeights {
        self.rail_weights.into()
    }

    /// Returns how to handle rails that fail.
    pub(in crate::cli) fn rail_repair(&self, rail_failure: RailFailure) -> RailRepair {
        let Self { stall_timeout, rail_timeout, .. } = *self;
        RailRepair { rail_failure, stall_timeout, rail_timeout }
    }

    /// Returns N of `--qp-timeout`, or its default between two hosts or within one process.
    pub(in crate::cli) fn qp_timeout(&self, between_hosts: bool) -> u8 {
        /// 67 ms: short, since an acknowledgement of the software NIC is late only if its link is
        /// cut.
        const WITHIN_A_PROCESS: u8 = 14;
        let default =
            if between_hosts { ConnectOptions::default().timeout } else { WITHIN_A_PROCESS };
        self.qp_timeout.unwrap_or(default)
    }
}
