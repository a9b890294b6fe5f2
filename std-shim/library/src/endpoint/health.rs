//! The state of an endpoint: counters of its rails, and failures, with device names.

use super::qp::{EndpointQp, GivenUp};
use crate::trace;
use polyrail_core::hardware::{CqError, QueuePair};
use polyrail_core::verbs::{DeviceId, WcStatus};
use polyrail_core::virtual_qp::{
    ControlError, Failure, PostError, ProtocolError, QpState, RailCounters, RailError, RailId,
    RailSet, RailState,
};
use polyrail_process::Forked;
use polyrail_software_nic as nic;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Name of the notify queue pair in a [`RailReport`].
const NOTIFY: &str = "notify";

/// Counters and state of one rail, or of the notify queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailReport {
    /// `0` to `7`, or `notify`.
    pub rail: String,
    /// Its device's name.
    pub device: String,
    /// Number of its queue pair.
    pub qp_num: u32,
    /// State of the rail.
    #[serde(serialize_with = "as_named")]
    pub state: RailState,
    /// Generation of its queue pair: 0 for the first, and one more for each replacement.
    pub generation: u16,
    /// Payload bytes posted to the device.
    pub bytes: u64,
    /// Send requests posted to the device.
    pub send_requests: u64,
    /// Batches of send requests.
    pub doorbells: u64,
    /// Completions of sends and receives.
    pub completions: u64,
    /// Failed completions.
    pub errors: u64,
    /// Number of failures after which other rails took over.
    pub failures: u64,
    /// Physical requests that were in flight at a failure and were posted again.
    pub posted_again: u64,
}

impl RailReport {
    /// Returns the name of the state, as it is serialized: `in service`, `draining`, `fenced`,
    /// `down` or `joining`.
    pub fn state_name(&self) -> &'static str {
        state_name(self.state)
    }
}

impl fmt::Display for RailReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rail, device, qp_num, generation, bytes, send_requests, errors, .. } = self;
        let state = state_name(self.state);
        match rail.as_str() {
            NOTIFY => write!(f, "{}", RailId::Notify)?,
            number => write!(f, "rail {number}")?,
        }
        write!(f, " (device {device}, queue pair {qp_num}): {state}")?;
        if *generation > 0 {
            write!(f, ", generation {generation}")?;
        }
        write!(f, "; {bytes} bytes in {send_requests} requests, {errors} errors")?;
        match self.failures {
            0 => Ok(()),
            failures => {
                let again = self.posted_again;
                write!(f, ", failed {failures} times, {again} requests posted again")
            }
        }
    }
}

fn as_named<S: Serializer>(state: &RailState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state_name(*state))
}

/// A state for people.
fn state_name(state: RailState) -> &'static str {
    match state {
        RailState::InService => "in service",
        RailState::Draining => "draining",
        RailState::Fenced => "fenced",
        RailState::Down => "down",
        RailState::Joining => "joining",
    }
}

/// A rail's failure, with its device's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRailError {
    /// The failure.
    pub error: RailError,
    /// Name of the device.
    pub device: String,
}

impl fmt::Display for NamedRailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RailError { rail, device, qp_num, status, vendor_err, errno, offset } = self.error;
        write!(f, "{rail} (device {}, queue pair {qp_num}) failed: ", self.device)?;
        match errno {
            Some(errno) => write!(f, "the driver refused a post: {}", system_error(errno))?,
            None => {
                write!(f, "{status:?}: {status}, vendor code {vendor_err:#x}")?;
                if let Some(meaning) = vendor_meaning(device, vendor_err) {
                    write!(f, " ({meaning})")?;
                }
            }
        }
        match offset {
            0 => Ok(()),
            _ => write!(f, ", {offset} bytes into its request"),
        }
    }
}

impl std::error::Error for NamedRailError {}

/// What the vendor code of a completion means, if the device is in software. The codes of other
/// devices are their drivers'.
fn vendor_meaning(device: DeviceId, code: u32) -> Option<&'static str> {
    let known = nic::is_device(device);
    #[cfg(feature = "tcp")]
    let known = known || polyrail_tcp_nic::is_device(device);
    known.then(|| nic::vendor::meaning(code)).flatten()
}

/// An `errno` in the system's words.
pub(super) fn system_error(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

/// Why an endpoint failed, or refused a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// A rail failed.
    #[error(transparent)]
    Rail(NamedRailError),
    /// A message or completion arrived that correct devices and peers do not produce.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Too many rails failed.
    #[error("only {in_service} rails are in service, but min_rails is {min_rails}")]
    TooFewRails {
        /// Data rails in service.
        in_service: u8,
        /// The [chosen](super::EndpointBuilder::min_rails) minimum.
        min_rails: u8,
        /// The first failure of a rail, if a completion reported one.
        #[source]
        first: Option<NamedRailError>,
    },
    /// The peer's endpoint failed.
    #[error("the peer's endpoint failed")]
    Peer,
    /// The peer sent an invalid control message.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Requests were acknowledged, but the peer never polled their completions.
    #[error(
        "the peer lost completions on {rail} (device {device}): it polled {arrived}, but {acknowledged} are acknowledged"
    )]
    CompletionsLost {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// Number of arrived requests that the peer reported, modulo 2^32.
        arrived: u32,
        /// Number of acknowledged requests, modulo 2^32.
        acknowledged: u32,
    },
    /// Its owner called [`fail`](super::EndpointQp::fail).
    #[error("the application gave up the endpoint")]
    GivenUp,
    /// The peer did not report in time which requests in flight on a failed rail arrived, or its
    /// messages were not [carried](super::HealingLink).
    #[error(
        "{rail} (device {device}) failed, and the peer has not reported for {waited:?} what arrived; {}",
        StillWritten(*unfenced)
    )]
    NoFence {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// Time waited.
        waited: Duration,
        /// Rails through which the peer's memory may still be written.
        unfenced: RailSet,
    },
    /// Requests waited too long, without any acknowledgement, for rails that are out of service, or
    /// that came back and carried nothing.
    #[error(
        "requests made no progress for {waited:?} with {out_of_service} out of service; {}",
        StillWritten(*unfenced)
    )]
    NotHealed {
        /// The rails that were out of service.
        out_of_service: RailSet,
        /// Time waited.
        waited: Duration,
        /// Rails through which the peer's memory may still be written.
        unfenced: RailSet,
    },
    /// A request failed, but no rail is known to have failed.
    #[error("a request failed: {0:?}: {0}")]
    Request(WcStatus),
    /// A rail neither completed its requests nor failed, so its queue pair was moved to ERR.
    #[error("{rail} (device {device}) fell silent: no progress for {waited:?}")]
    Silent {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// Minimum time without progress.
        waited: Duration,
    },
    /// A request was posted before the endpoint was connected. If rails are re-routed, the post is
    /// accepted, and the endpoint fails: build another one.
    #[error("{rail} (device {device}) takes no requests before it is connected: connect first")]
    NotConnected {
        /// The rail that refused it.
        rail: RailId,
        /// Its device's name.
        device: String,
    },
    /// The driver refused a request.
    #[error("{rail} (device {device}): the driver refused the request: {}", system_error(*errno))]
    Driver {
        /// The rail.
        rail: RailId,
        /// Its device's name.
        device: String,
        /// The error.
        errno: i32,
    },
    /// The request has no keys for a device that it needs.
    #[error(
        "the request has no keys for device {device}: register its buffer with every device that rails are on"
    )]
    MissingKeys {
        /// The device's name.
        device: String,
    },
    /// A request was refused.
    #[error(transparent)]
    Refused(PostError),
    /// This process is a fork of the process that made the endpoint, which goes on there.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// A completion queue cannot be polled.
    #[error("completion queue of device {device}: polling failed: {}", system_error(error.errno))]
    Queue {
        /// The error of the poll.
        error: CqError,
        /// The device's name.
        device: String,
    },
}

/// Whether requests that are reported as failed may still be carried out.
struct StillWritten(RailSet);

impl fmt::Display for StillWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("the peer's memory is no longer written"),
            false => write!(f, "the peer's memory may still be written through {}", self.0),
        }
    }
}

impl<Q> EndpointQp<Q>
where
    Q: QueuePair,
{
    /// Returns the state of the virtual queue pair; [`failure`](Self::failure) explains
    /// [`QpState::Error`].
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Returns the first failure of a rail; later failures do not replace it. If rails are
    /// re-routed, the endpoint may have survived it.
    pub fn first_error(&self) -> Option<NamedRailError> {
        self.qp.first_error().map(|error| self.named(error))
    }

    /// Returns why the endpoint failed: the failure of a rail or the protocol error that moved it
    /// to the error state. `None` if it has not failed, or if only a request failed, with a single
    /// rail. The first call after a failure also [emits](crate::trace) it.
    pub fn failure(&mut self) -> Option<EndpointError> {
        // The engine returns it once, but it stays the reason.
        self.protocol_error = self.protocol_error.or_else(|| self.qp.take_protocol_error());
        let protocol = self.protocol_error.map(EndpointError::from);
        let failure = || self.qp.failure().map(|failure| self.named_failure(failure));
        let error = protocol.or_else(failure)?;
        if !std::mem::replace(&mut self.is_end_told, true) {
            trace::ended(self.qp.virtual_qp_num(), &error);
        }
        Some(error)
    }

    /// Returns why a request completed with `status`: the [failure](Self::failure) of the endpoint,
    /// or else the status.
    pub fn explain(&mut self, status: WcStatus) -> EndpointError {
        self.failure().unwrap_or(EndpointError::Request(status))
    }

    fn named_failure(&self, failure: Failure) -> EndpointError {
        // Rails that are re-routed fail one after another when their drivers refuse a request.
        if !self.joined.is_over()
            && let Some(RailError { rail, errno: Some(_), .. }) = self.qp.first_error()
        {
            return EndpointError::NotConnected { rail, device: self.device_of(rail) };
        }
        match failure {
            Failure::Rail(error) => EndpointError::Rail(self.named(error)),
            Failure::TooFewRails { in_service, min_rails } => {
                // A flush only follows from the end itself.
                let is_cause =
                    |first: &NamedRailError| first.error.status != WcStatus::WR_FLUSH_ERR;
                let first = self.first_error().filter(is_cause);
                EndpointError::TooFewRails { in_service, min_rails, first }
            }
            Failure::Peer => EndpointError::Peer,
            Failure::Control(error) => error.into(),
            Failure::CompletionsLost { rail, arrived, acknowledged } => {
                let device = self.device_of(rail);
                EndpointError::CompletionsLost { rail, device, arrived, acknowledged }
            }
            Failure::Owner => self.named_end(),
        }
    }

    /// Why its owner, or the endpoint itself, gave it up.
    fn named_end(&self) -> EndpointError {
        match self.given_up {
            None => EndpointError::GivenUp,
            Some(GivenUp::NoFence { rail, waited, unfenced }) => {
                let device = self.device_of(rail);
                EndpointError::NoFence { rail, device, waited, unfenced }
            }
            Some(GivenUp::NotHealed { out_of_service, waited, unfenced }) => {
                EndpointError::NotHealed { out_of_service, waited, unfenced }
            }
        }
    }

    fn named(&self, error: RailError) -> NamedRailError {
        NamedRailError { error, device: self.device_name(error.device) }
    }

    /// Adds the device's name to the error of a poll. In a fork of the process, names that.
    pub fn queue_error(&self, error: CqError) -> EndpointError {
        if let Err(forked) = self.process.check() {
            return forked.into();
        }
        EndpointError::Queue { error, device: self.device_name(error.device) }
    }

    /// Explains a refused post, with the names of devices. Reports an endpoint that is not
    /// connected, or used in a fork of its process, as such.
    pub fn post_error(&self, error: impl Into<PostError>) -> EndpointError {
        let error = error.into();
        if let Err(forked) = self.process.check() {
            return forked.into();
        }
        if let Some((rail, errno)) = error.driver_refusal() {
            let device = self.device_of(rail);
            return if self.joined.is_over() {
                EndpointError::Driver { rail, device, errno }
            } else {
                EndpointError::NotConnected { rail, device }
            };
        }
        match error.missing_keys() {
            Some(device) => EndpointError::MissingKeys { device: self.device_name(device) },
            None => EndpointError::Refused(error),
        }
    }

    /// Returns the rails whose oldest batch is the same as at the previous call; see
    /// [`VirtualQp::check_stalled`](polyrail_core::virtual_qp::VirtualQp::check_stalled).
    pub fn check_stalled(&mut self) -> RailSet {
        self.qp.check_stalled()
    }

    /// Returns the number of accepted but unreported requests: sends and notification receives.
    /// With one rail only the device counts them, and this is 0.
    pub fn unreported(&self) -> usize {
        self.qp.unreported_sends() + self.qp.unreported_recvs()
    }

    /// Returns the report of every rail, with the notify queue pair last.
    pub fn rail_reports(&self) -> Vec<RailReport> {
        let rails = (0..).zip(self.qp.rails()).map(|(rail, qp)| (RailId::Data(rail), qp));
        let notify = self.qp.notify_qp().map(|qp| (RailId::Notify, qp));
        rails.chain(notify).map(|(rail, qp)| self.rail_report(rail, qp)).collect()
    }

    fn rail_report(&self, rail: RailId, qp: &Q) -> RailReport {
        let counters = self.qp.counters(rail).unwrap_or_default();
        let RailCounters { bytes, send_requests, doorbells, completions, errors } = counters;
        let name = match rail {
            RailId::Data(number) => number.to_string(),
            RailId::Notify => NOTIFY.to_owned(),
        };
        let device = self.device_name(qp.device());
        let qp_num = qp.qp_num();
        let history = self.log.history(rail);
        RailReport {
            rail: name,
            device,
            qp_num,
            state: self.qp.rail_state(rail).unwrap_or(RailState::InService),
            generation: self.qp.rail_generation(rail).unwrap_or_default(),
            bytes,
            send_requests,
            doorbells,
            completions,
            errors,
            failures: history.map_or(0, |history| history.failures.total()),
            posted_again: history.map_or(0, |history| history.posted_again),
        }
    }

    /// Returns the name of a rail's device; empty if there is no such rail.
    pub fn device_of(&self, rail: RailId) -> String {
        let qp = match rail {
            RailId::Data(rail) => self.qp.rails().nth(rail.into()),
            RailId::Notify => self.notify_qp(),
        };
        qp.map(|qp| self.device_name(qp.device())).unwrap_or_default()
    }

    /// Name of the device in a place; empty if there is none.
    pub(super) fn device_at(&self, place: usize) -> String {
        self.devices.get(place).map(|id| self.device_name(*id)).unwrap_or_default()
    }

    pub(super) fn device_name(&self, device: DeviceId) -> String {
        let known = self.names.iter().find(|(id, _)| *id == device);
        known.map_or_else(|| format!("number {}", device.0), |(_, name)| name.clone())
    }
}
