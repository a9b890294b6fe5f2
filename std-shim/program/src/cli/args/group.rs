//! Arguments that several commands take.

use super::heading::{FAULTS, PLACE, REQUESTS, WAITING};
use super::value::{FailureName, fragment, rails, rate, seconds};
use crate::cli::exit::Failure;
use clap::Args;
use polyrail::backend::{ConnectOptions, DeviceName};
use polyrail::chain::Chain;
use polyrail::exchange::Token;
use polyrail::virtual_qp::RailFailure;
use polyrail_program::fault::RailFault;
use polyrail_program::session::{Patience, QualityOfService, RailCare};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

/// How requests are sent, for any purpose.
#[derive(Debug, Args)]
pub(in crate::cli) struct RequestArguments {
    /// Physical queue pairs that carry the data.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = rails, help_heading = REQUESTS)]
    pub(in crate::cli) rails: usize,
    /// Devices on either side, which the rails are spread over; if there are more devices than rails,
    /// the last ones stay unused [default: one for each rail].
    #[arg(long, value_name = "N", value_parser = rails, help_heading = REQUESTS)]
    pub(in crate::cli) devices: Option<usize>,
    /// Bytes that each device of the software NIC sends a second at most, so that many are faster than one
    /// [default: as fast as memory is].
    #[arg(long, value_name = "SIZE", value_parser = rate, help_heading = REQUESTS)]
    pub(in crate::cli) line_rate: Option<NonZeroU64>,
    /// Size of the longest fragment in bytes, a multiple of 128.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = fragment, help_heading = REQUESTS)]
    pub(in crate::cli) max_msg_size: u32,
}

/// The devices of this host.
#[derive(Debug, Args)]
pub(in crate::cli) struct DeviceArguments {
    /// An RDMA device, or one port of it. Repeatable; the order counts [default: all with an active
    /// port].
    #[arg(long, value_name = "DEVICE[:PORT]", help_heading = PLACE)]
    pub(in crate::cli) device: Vec<DeviceName>,
    /// Index of the ports' addresses, as shown by `polyrail devices` [default: RoCE v2 over IPv4 first].
    #[arg(long, value_name = "N", help_heading = PLACE)]
    pub(in crate::cli) gid_index: Option<u8>,
    /// Traffic class of this side's packets: on RoCE v2 four times the DSCP, plus 2 if switches may mark
    /// congestion (ECN) [default: 0].
    #[arg(long, visible_alias = "tclass", value_name = "N", help_heading = PLACE)]
    traffic_class: Option<u8>,
    /// Service level of this side's packets, 0 to 15; on RoCE, the priority [default: 0].
    #[arg(long, visible_alias = "sl", value_name = "N", value_parser = clap::value_parser!(u8).range(..=15), help_heading = PLACE)]
    service_level: Option<u8>,
}

impl DeviceArguments {
    /// Refuses them where data stays within this process, on the software NIC.
    pub(in crate::cli) fn refuse_without(&self, to: Option<&str>) -> Result<(), Failure> {
        let Self { device, gid_index, traffic_class, service_level } = self;
        let given = [gid_index, traffic_class, service_level].iter().any(|given| given.is_some());
        if to.is_some() || (device.is_empty() && !given) {
            return Ok(());
        }
        let message = "--device, --gid-index, --traffic-class and --service-level go with --to";
        Err(Failure::usage(message))
    }

    /// Returns how the network is to treat this side's packets.
    pub(in crate::cli) fn quality(&self) -> QualityOfService {
        QualityOfService {
            traffic_class: self.traffic_class.unwrap_or_default(),
            service_level: self.service_level.unwrap_or_default(),
        }
    }
}

/// Who may ask.
#[derive(Debug, Args)]
pub(in crate::cli) struct TokenArguments {
    /// A file with a secret of at least 16 bytes that both hosts have: either refuses one that does not know it,
    /// before anything else is told. It does not travel; the data is not encrypted.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = PLACE)]
    token_file: Option<PathBuf>,
}

impl TokenArguments {
    /// Refuses it where there is no other host.
    pub(in crate::cli) fn refuse_without(&self, to: Option<&str>) -> Result<(), Failure> {
        match &self.token_file {
            Some(_) if to.is_none() => Err(Failure::usage("--token-file goes with --to")),
            _ => Ok(()),
        }
    }

    /// Returns whether there is to be a token.
    pub(in crate::cli) fn is_given(&self) -> bool {
        self.token_file.is_some()
    }

    /// Returns the token, if there is one.
    pub(in crate::cli) fn read(&self) -> Result<Option<Token>, Failure> {
        let read = self.token_file.as_deref().map(Token::read).transpose();
        read.map_err(|error| Failure::usage(&Chain(&error).to_string()))
    }
}

/// Faults on request.
#[derive(Debug, Args)]
pub(in crate::cli) struct FaultArguments {
    /// Let something happen to the device of a rail, near (this side sends; the default) or far. WHEN: after
    /// the device has carried so many bytes, such as 1M, or at a time since data began to move, such as
    /// 200ms. HOW: `cut` (its link goes down; the default), `silent` (it does not answer), `slow` (its
    /// completions come 20 ms late), `corrupt` (requests fail though they were carried out) or `gone` (it is
    /// removed). FOR: a time, such as 1s [default: for ever]. Repeatable. With fewer devices than rails, all
    /// rails of the device count towards its bytes and suffer.
    #[arg(long, value_name = "[SIDE.]RAIL:WHEN[:HOW[:FOR]]", help_heading = FAULTS)]
    pub(in crate::cli) fault: Vec<RailFault>,
}

/// How long to wait for another host.
#[derive(Debug, Args)]
pub(in crate::cli) struct PatienceArguments {
    /// Seconds to wait for another host to connect, and for each answer while the two sides meet.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) answer_timeout: Duration,
    /// Seconds to wait for another host while nothing happens at all.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) idle_timeout: Duration,
    /// Seconds without data while the other host reports that it is alive. The far end sees no data
    /// of a measured write or read, so there it limits the whole measurement.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = WAITING)]
    pub(in crate::cli) progress_timeout: Duration,
}

impl PatienceArguments {
    pub(in crate::cli) fn patience(&self) -> Patience {
        Patience {
            answer: self.answer_timeout,
            idle: self.idle_timeout,
            progress: self.progress_timeout,
        }
    }
}

/// How queue pairs are connected and watched.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConnectionArguments {
    /// Wait 4.096 us * 2^N for an acknowledgement before sending packets again, 1 to 31; each side has
    /// its own [default: 18, a second; within one process 14].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31), help_heading = WAITING)]
    qp_timeout: Option<u8>,
    /// Seconds without progress after which a rail is considered dead.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = WAITING)]
    stall_timeout: Duration,
    /// Seconds to wait, while rails are out of service and nothing moves, until one is back.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, help_heading = WAITING)]
    rail_timeout: Duration,
}

/// What becomes of rails that fail.
#[derive(Debug, Args)]
pub(in crate::cli) struct FailureArguments {
    /// What a rail's failure does: the others take over, and it is brought back when it can be; or everything
    /// ends. A single rail always ends it.
    #[arg(long, value_enum, default_value_t = FailureName::Reroute, help_heading = FAULTS)]
    pub(in crate::cli) rail_failure: FailureName,
}

impl ConnectionArguments {
    /// Returns what becomes of rails that fail.
    pub(in crate::cli) fn care(&self, rail_failure: RailFailure) -> RailCare {
        let Self { stall_timeout, rail_timeout, .. } = *self;
        RailCare { rail_failure, stall_timeout, rail_timeout }
    }

    /// Returns the code, for a connection `between_hosts` or within one process.
    pub(in crate::cli) fn qp_timeout(&self, between_hosts: bool) -> u8 {
        /// 67 ms. The software NIC is never late, so a link that fails should be noticed soon.
        const WITHIN_A_PROCESS: u8 = 14;
        let default =
            if between_hosts { ConnectOptions::default().timeout } else { WITHIN_A_PROCESS };
        self.qp_timeout.unwrap_or(default)
    }
}
