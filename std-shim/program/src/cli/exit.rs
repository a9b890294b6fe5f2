//! Failures of commands: exit codes, and messages on stderr.

use super::output;
use polyrail::backend::DeviceError;
use polyrail::chain::Chain;
use polyrail::endpoint::{BuildError, ConnectError, EndpointError, NamedRailError};
use polyrail::link::LinkError;
use polyrail::printable;
use polyrail::virtual_qp::RailId;
use polyrail_program::devices::DevicesError;
use polyrail_program::perf::PerfError;
use polyrail_program::serve::ServeError;
use polyrail_program::session::SessionError;
use polyrail_program::transfer::{CopyError, TransferError};
use serde::Serialize;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// Exit codes, as `--help` lists them. clap also exits with 2, for invalid command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Exit {
    Unexpected = 1,
    Usage = 2,
    Source = 3,
    Destination = 4,
    NoSpace = 5,
    Rail = 6,
    Corrupted = 7,
    SameFile = 8,
    NoDevices = 9,
    Stdout = 10,
    Memory = 11,
    Interrupted = 130,
}

/// A command that failed.
#[derive(Debug)]
pub(super) struct Failure {
    exit: Exit,
    message: String,
    rail: Option<RailFailure>,
}

/// The rail that failed, for JSON.
#[derive(Clone, Debug, Serialize)]
struct RailFailure {
    rail: String,
    device: String,
    /// The completion that failed; `None` if the rail stopped completing requests.
    #[serde(flatten)]
    completion: Option<FailedCompletion>,
}

/// The completion that reported the failure.
#[derive(Clone, Debug, Serialize)]
struct FailedCompletion {
    qp_num: u32,
    status: String,
    status_code: u32,
    vendor_err: u32,
}

/// A failure as JSON.
#[derive(Debug, Serialize)]
struct FailureReport<'a> {
    error: &'a str,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_rail: Option<&'a RailFailure>,
}

impl Failure {
    /// The command succeeded, but its report could not be written to stdout.
    pub(super) fn stdout(error: &io::Error) -> Self {
        let message = format!("cannot write to standard output: {error}");
        Self { exit: Exit::Stdout, message, rail: None }
    }

    /// A picture cannot be drawn.
    pub(super) fn drawing(why: impl Display) -> Self {
        let message = format!("cannot draw the picture: {why}");
        Self { exit: Exit::Unexpected, message, rail: None }
    }

    /// The command line is invalid in a way that clap cannot check.
    pub(super) fn usage(why: &str) -> Self {
        Self { exit: Exit::Usage, message: why.to_owned(), rail: None }
    }

    /// The user asked to stop.
    pub(super) fn interrupted() -> Self {
        Self { exit: Exit::Interrupted, message: "interrupted by a signal".to_owned(), rail: None }
    }

    /// Returns the failure with a hint behind its message.
    pub(super) fn with(mut self, hint: &str) -> Self {
        self.message += hint;
        self
    }

    /// Prints the message on stderr; the command continues.
    pub(super) fn note(&self, what: &str) {
        output::tell(&format!("polyrail: {what}: {}\n", printable::escaped(&self.message)));
    }

    /// Prints the message on stderr, and returns the exit code.
    pub(super) fn report(&self) -> ExitCode {
        output::tell(&format!("polyrail: {}\n", printable::escaped(&self.message)));
        ExitCode::from(self.exit as u8)
    }

    /// Prints the failure as JSON on stdout. Ignores errors: this failure matters more.
    pub(super) fn print_json(&self) {
        _ = output::write_json(&FailureReport {
            error: &printable::escaped(&self.message),
            exit_code: self.exit as u8,
            failed_rail: self.rail.as_ref(),
        });
    }
}

/// No device can be used.
impl From<DevicesError> for Failure {
    fn from(error: DevicesError) -> Self {
        let (exit, rail) = match &error {
            DevicesError::Contradiction { .. } => (Exit::Usage, None),
            DevicesError::Ask { source, .. } => session_exit(source),
            _ => (Exit::NoDevices, None),
        };
        let cure = match &error {
            DevicesError::WithoutVerbs => ": build it with the feature verbs",
            _ => "",
        };
        Self { exit, message: format!("{}{cure}", message(&error)), rail }
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        let mut cause = &error;
        while let CopyError::InDirectory { source, .. } = cause {
            cause = source;
        }
        let (exit, rail) = match cause {
            CopyError::Source { .. }
            | CopyError::SourceKind { .. }
            | CopyError::LongPath { .. }
            | CopyError::NotReadable
            | CopyError::Reading { .. } => (Exit::Source, None),
            CopyError::Destination { source, .. } if is_full(source) => (Exit::NoSpace, None),
            CopyError::Destination { .. }
            | CopyError::DestinationKind { .. }
            | CopyError::Exists { .. }
            | CopyError::NotADirectory { .. }
            | CopyError::TooLong { .. }
            | CopyError::NoDestination => (Exit::Destination, None),
            CopyError::Writing { source, .. } => match &**source {
                TransferError::Write { source, .. } | TransferError::Finish(source)
                    if is_full(source) =>
                {
                    (Exit::NoSpace, None)
                }
                _ => (Exit::Destination, None),
            },
            CopyError::SameFile { .. } | CopyError::IntoItself { .. } => (Exit::SameFile, None),
            CopyError::Plan(_)
            | CopyError::Fault(_)
            | CopyError::Name { .. }
            | CopyError::NoName { .. }
            | CopyError::SameName { .. }
            | CopyError::PulledPath { .. } => (Exit::Usage, None),
            CopyError::Transfer { source, .. } => transfer_exit(source),
            _ => (Exit::Unexpected, None),
        };
        Self { exit, message: message(&error), rail }
    }
}

/// The server cannot listen.
impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Self { exit: Exit::Unexpected, message: Chain(&error).to_string(), rail: None }
    }
}

impl From<PerfError> for Failure {
    fn from(error: PerfError) -> Self {
        let (exit, rail) = match &error {
            PerfError::Session(error) => session_exit(error),
            PerfError::Workload(_) | PerfError::Fault(_) => (Exit::Usage, None),
            PerfError::Lost { .. } => (Exit::Corrupted, None),
            PerfError::Memory(_) => (Exit::Memory, None),
            _ => (Exit::Unexpected, None),
        };
        Self { exit, message: message(&error), rail }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Copy(error) => error.into(),
            ServeError::Perf(error) => error.into(),
            ServeError::Session(error) => {
                let (exit, rail) = session_exit(&error);
                Self { exit, message: Chain(&error).to_string(), rail }
            }
            error => {
                Self { exit: Exit::Unexpected, message: Chain(&error).to_string(), rail: None }
            }
        }
    }
}

/// Returns the message of an error with its causes. Where a server refused a connection, it says
/// what to look for.
fn message(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let mut causes = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    let is_refused = causes.any(|cause| cause.kind() == ErrorKind::ConnectionRefused);
    let cure = if is_refused { "; is `polyrail serve` running there?" } else { "" };
    format!("{}{cure}", Chain(error))
}

fn transfer_exit(error: &TransferError) -> (Exit, Option<RailFailure>) {
    match error {
        TransferError::Checksum { .. } | TransferError::Counts { .. } => (Exit::Corrupted, None),
        TransferError::Session(error) => session_exit(error),
        _ => (Exit::Rail, None),
    }
}

fn session_exit(error: &SessionError) -> (Exit, Option<RailFailure>) {
    match error {
        SessionError::Endpoint(error) => (Exit::Rail, failed_rail(error)),
        SessionError::Interrupted => (Exit::Interrupted, None),
        SessionError::Post(EndpointError::Driver { .. }) => (Exit::Rail, None),
        SessionError::Post(EndpointError::Refused(error)) if error.driver_refusal().is_some() => {
            (Exit::Rail, None)
        }
        SessionError::Protocol(_) | SessionError::Post(_) | SessionError::Range(_) => {
            (Exit::Unexpected, None)
        }
        SessionError::TooMuchMemory { .. } | SessionError::Thread { .. } => (Exit::Memory, None),
        SessionError::Build(error) => (build_exit(error), None),
        SessionError::Device(error) => (device_exit(error), None),
        SessionError::Connect(ConnectError::Modify { source, .. }) => (device_exit(source), None),
        _ => (Exit::Rail, None),
    }
}

fn build_exit(error: &BuildError) -> Exit {
    match error {
        BuildError::Devices { .. }
        | BuildError::Rails { .. }
        | BuildError::QueueDepth { .. }
        | BuildError::VirtualQp(_) => Exit::Usage,
        BuildError::Device { source, .. } => device_exit(source),
        _ => Exit::Rail,
    }
}

fn device_exit(error: &DeviceError) -> Exit {
    match error {
        DeviceError::Memory(_) => Exit::Memory,
        // A smaller window, or shorter requests, need less memory at once.
        DeviceError::Mtu { .. }
        | DeviceError::PeerMtu { .. }
        | DeviceError::InlineData { .. }
        | DeviceError::RegionTooLong { .. } => Exit::Usage,
        // Usually the limit of locked memory (ulimit -l).
        #[cfg(feature = "verbs")]
        DeviceError::Register { source, .. } if source.errno == libc::ENOMEM => Exit::Memory,
        _ => Exit::Rail,
    }
}

fn failed_rail(error: &EndpointError) -> Option<RailFailure> {
    match error {
        EndpointError::Rail(NamedRailError { error, device }) => {
            let completion = FailedCompletion {
                qp_num: error.qp_num,
                status: format!("{:?}", error.status),
                status_code: error.status.0,
                vendor_err: error.vendor_err,
            };
            Some(RailFailure::new(error.rail, device, Some(completion)))
        }
        EndpointError::Silent { rail, device, .. } => Some(RailFailure::new(*rail, device, None)),
        _ => None,
    }
}

impl RailFailure {
    fn new(rail: RailId, device: &str, completion: Option<FailedCompletion>) -> Self {
        let rail = match rail {
            RailId::Data(rail) => rail.to_string(),
            RailId::Notify => "notify".to_owned(),
        };
        Self { rail, device: device.to_owned(), completion }
    }
}

/// Returns whether the disk or a quota is full, or the file is too long for a limit.
fn is_full(error: &io::Error) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail::virtual_qp;

    #[test]
    fn options_that_contradict_each_other_are_not_a_rail_failure() {
        let too_long =
            virtual_qp::BuildError::RailMsgSize { rail: 1, bytes: 1 << 30, limit: 1 << 20 };
        let too_many = BuildError::Rails { rails: 9, max: 8 };
        let device = || "a0".to_owned();
        let too_deep = BuildError::QueueDepth { device: device(), rails: 1, asked: 2, most: 1 };
        let short = DeviceError::Mtu { port: 1, asked: 4096, most: 1024 };
        let short = BuildError::Device { device: device(), source: short };
        for error in [too_many, too_long.into(), too_deep, short] {
            assert_eq!(Failure::from(PerfError::from(error)).exit, Exit::Usage);
        }
        let source = DeviceError::PeerMtu { asked: 4096, most: 1024 };
        let rail = RailId::Data(0);
        let peers = ConnectError::Modify { rail, device: device(), source };
        assert_eq!(Failure::from(PerfError::from(peers)).exit, Exit::Usage);
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn a_limit_of_locked_memory_is_not_a_rail_failure() {
        use polyrail::rdma::{Argument, VerbsError};
        for (errno, exit) in [(libc::ENOMEM, Exit::Memory), (libc::EINVAL, Exit::Rail)] {
            let source = VerbsError { call: "ibv_reg_mr", errno, argument: Argument::None };
            let error = DeviceError::Register { device: "mlx5_0".into(), source: source.into() };
            let too_long = DeviceError::RegionTooLong {
                device: "mlx5_0".into(),
                length: 2,
                limit: 1,
                source: Box::new(error.clone()),
            };
            assert_eq!(Failure::from(PerfError::from(error)).exit, exit);
            assert_eq!(Failure::from(PerfError::from(too_long)).exit, Exit::Usage);
        }
    }

    #[test]
    fn a_driver_that_refuses_a_request_is_a_rail_failure() {
        use polyrail::virtual_qp::PostRecvError;
        let refused = PostRecvError::Driver { rail: RailId::Data(0), errno: 22 };
        assert_eq!(Failure::from(PerfError::from(refused)).exit, Exit::Rail);
        let named = EndpointError::Driver { rail: RailId::Data(0), device: "a0".into(), errno: 22 };
        assert_eq!(Failure::from(PerfError::from(SessionError::Post(named))).exit, Exit::Rail);
        let mistaken = PostRecvError::NoNotifyQp;
        assert_eq!(Failure::from(PerfError::from(mistaken)).exit, Exit::Unexpected);
    }

    #[test]
    fn a_peer_that_requires_too_much_memory_is_not_a_rail_failure() {
        let error = SessionError::TooMuchMemory { bytes: 2, limit: 1 };
        assert_eq!(Failure::from(PerfError::Session(error)).exit, Exit::Memory);
    }
}
