//! Copies a file within one process, with a thread for each side.

use super::destination::{Destination, Making};
use super::error::{CopyError, CopyRole, TransferError};
use super::receiver::receive_file;
use super::sender::{Parcel, send_file};
use super::source::Source;
use crate::fault::{RailFault, Side, check_rails};
use crate::fault_schedule::{FaultLog, FaultSchedule};
use crate::hosts::hosts_with_rate;
use crate::job::{CopyJob, CopyPlan, Link, Shape, Sum};
use crate::session::{
    Environment, Failure, PeerTimeouts, QualityOfService, RailNews, RailRepair, Reporter,
    SessionError,
};
use crate::threads::{join, start, watched};
use polyrail::backend::ConnectOptions;
use polyrail::endpoint::{EndpointBuilder, RailReport, RailWeights};
use polyrail::nic::ProtectionDomain;
use polyrail::virtual_qp::Scheme;
use serde::Serialize;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How to copy a file.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Rails of the virtual queue pair.
    pub rails: usize,
    /// Devices of each side, which rails use in turn; `None`: one for each rail.
    pub devices: Option<usize>,
    /// How the receiver is notified that a chunk has arrived.
    pub scheme: Scheme,
    /// Size of the longest fragment in bytes.
    pub max_msg_size: u32,
    /// Size of one request in bytes.
    pub message_size: u64,
    /// Requests in flight at a time.
    pub window: u64,
    /// Limit of each device in bytes per second, within one process; `None`: no limit.
    pub line_rate: Option<NonZeroU64>,
    /// Faults to inject into the devices, within one process.
    pub faults: Vec<RailFault>,
    /// Code of the time after which packets that are not acknowledged are sent again; see
    /// [`ConnectOptions::timeout`].
    pub qp_timeout: u8,
    /// Priorities of the packets.
    pub quality: QualityOfService,
    /// What decides how much each rail carries.
    pub rail_weights: RailWeights,
    /// How to handle rails that fail.
    pub rail_repair: RailRepair,
    /// How long to wait for a receiver on another host.
    pub timeouts: PeerTimeouts,
    /// Whether the copy may replace an existing file.
    pub overwrite: bool,
    /// Whether the copy must be on disk before it gets its name.
    pub sync: bool,
}

impl Default for CopyOptions {
    /// Four rails on four devices, SPRAY, fragments of 64 KiB, 8 requests of 1 MiB in flight.
    fn default() -> Self {
        Self {
            rails: 4,
            devices: None,
            scheme: Scheme::Spray,
            max_msg_size: 64 << 10,
            message_size: 1 << 20,
            window: 8,
            line_rate: None,
            faults: Vec::new(),
            qp_timeout: ConnectOptions::default().timeout,
            quality: QualityOfService::default(),
            rail_weights: RailWeights::default(),
            rail_repair: RailRepair::default(),
            timeouts: PeerTimeouts::default(),
            overwrite: true,
            sync: false,
        }
    }
}

impl CopyOptions {
    /// Returns how requests are sent over this number of devices.
    pub fn shape(&self, devices: usize) -> Shape {
        Shape {
            scheme: Some(self.scheme),
            rails: self.rails,
            devices: devices.min(self.rails),
            max_msg_size: self.max_msg_size,
            message_size: self.message_size,
            window: self.window,
        }
    }

    /// Returns the builder of both endpoints.
    pub(crate) fn builder(&self) -> EndpointBuilder {
        let options = ConnectOptions { timeout: self.qp_timeout, ..ConnectOptions::default() };
        let builder = EndpointBuilder::new()
            .rails(self.rails)
            .scheme(self.scheme)
            .max_msg_size(self.max_msg_size)
            .rail_weights(self.rail_weights)
            .connect_options(self.quality.chosen(options));
        self.rail_repair.chosen(builder, self.rails)
    }
}

/// The progress of a copy, shared with threads that watch or stop it.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Size of the source in bytes; known once it is open. For directories, the sizes of the files
    /// that were found so far.
    pub total: AtomicU64,
    /// Bytes written so far; for directories also those of files that need not be written.
    pub written: AtomicU64,
    /// Set to end the copy soon, with [`SessionError::Interrupted`].
    pub interrupted: Arc<AtomicBool>,
    /// Events of injected faults.
    pub faults: FaultLog,
    /// Events of rails.
    pub rails: RailNews,
}

/// The report of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SideReport {
    /// Counts of its rails, and of the notify queue pair last.
    pub rails: Vec<RailReport>,
}

/// The report of a copy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyReport {
    /// Bytes copied.
    pub bytes: u64,
    /// Time from opening the source until the destination had its name, in seconds.
    pub seconds: f64,
    /// Throughput over that time, in GB/s (10^9 bytes a second).
    pub gigabytes_per_second: f64,
    /// CRC-32 of the bytes, computed at both ends, in hexadecimal.
    pub crc32: String,
    /// Requests that carried the file.
    pub requests: u64,
    /// The report of the sender, if it is in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<SideReport>,
    /// The report of the receiver, if it is in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<SideReport>,
}

/// Copies `source` to `destination` over a virtual queue pair on the software NIC. Calls `watch`
/// ten times a second, on this thread, while two other threads copy.
///
/// A source that changes during the copy is an error, except if it changes through a shared
/// mapping, which does not always change the times of the file: then the copy may mix several
/// states of the source.
///
/// # Errors
///
/// See [`CopyError`]. After an error, the destination is as it was before.
pub fn copy_file(
    source: &Path,
    destination: &Path,
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<CopyReport, CopyError> {
    let begin = Instant::now();
    let opened = Source::open(source)?;
    let total = opened.metadata().len();
    let plan =
        CopyPlan::new(total, options.message_size, options.window).map_err(CopyError::Plan)?;
    let making = Making {
        source: Some((source, opened.metadata())),
        mode: opened.metadata().mode() & 0o777,
        overwrite: options.overwrite,
    };
    let target = Destination::create(destination, making)?;
    progress.total.store(total, Ordering::Relaxed);

    let outcome = run_sides(plan, &opened, target.file(), options, progress, watch)?;
    let ((sum, sender), (_, receiver)) =
        outcome.map_err(|(role, error)| CopyError::of_side(role, error, source, destination))?;
    target
        .finish(options.sync)
        .map_err(|error| CopyError::Destination { path: destination.to_owned(), source: error })?;
    let report = CopyReport::new(sum, plan, begin.elapsed());
    let sender = SideReport { rails: sender };
    let receiver = SideReport { rails: receiver };
    Ok(CopyReport { sender: Some(sender), receiver: Some(receiver), ..report })
}

impl CopyReport {
    /// Makes a report without the rails.
    pub(super) fn new(sum: Sum, plan: CopyPlan, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            bytes: sum.bytes,
            seconds,
            gigabytes_per_second: sum.bytes as f64 / seconds / 1e9,
            crc32: format!("{:08x}", sum.crc32),
            requests: plan.chunks(),
            sender: None,
            receiver: None,
        }
    }
}

/// Length and checksum of the file, and the counts of each rail.
type SideSum = (Sum, Vec<RailReport>);

/// The results of both sides, or the cause of a failure and the side that has it.
type SidesEnd<S, R, E> = Result<(S, R), (CopyRole, E)>;

/// Runs both sides of a copy of one file, each in a thread.
fn run_sides(
    plan: CopyPlan,
    source: &Source,
    target: &File,
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<SidesEnd<SideSum, SideSum, TransferError>, CopyError> {
    let parcel = Parcel { source, job: CopyJob::new(plan) };
    let send = |here: OnHost<'_>, near| send_file(here, near, parcel, &AtomicU64::new(0));
    let receive =
        |there: OnHost<'_>, far| receive_file(there, far, plan, target, &progress.written);
    between_hosts(options, progress, watch, send, receive)
}

/// What a side within one process runs with.
pub(super) type OnHost<'a> = Environment<'a, ProtectionDomain>;

/// Runs two sides within one process, each in a thread, on two hosts of software NICs.
pub(super) fn between_hosts<S: Send, R: Send, E: Failure + Send>(
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
    send: impl FnOnce(OnHost<'_>, Link) -> Result<S, E> + Send,
    receive: impl FnOnce(OnHost<'_>, Link) -> Result<R, E> + Send,
) -> Result<SidesEnd<S, R, E>, CopyError> {
    check_rails(&options.faults, options.rails).map_err(CopyError::Fault)?;
    let devices = options.devices.unwrap_or(options.rails).max(1);
    let setup = |error: SessionError| CopyError::transfer(CopyRole::Sender, error);
    let (here, there) =
        hosts_with_rate(devices, options.line_rate).map_err(|error| setup(error.into()))?;
    let schedule =
        FaultSchedule::start(&options.faults, &here, &there, &progress.faults).map_err(setup)?;
    let builder = options.builder();
    let (near, far) = Link::pair().map_err(|error| setup(error.into()))?;
    let environment = |side, domains| Environment {
        domains,
        builder: &builder,
        stall_timeout: options.rail_repair.stall_timeout,
        reporter: Reporter { side, news: progress.rails.clone() },
        // Both sides are in this process, and can only wait for files of this host.
        timeouts: None,
        interrupted: &progress.interrupted,
    };
    let here = environment(Side::Near, here.domains());
    let there = environment(Side::Far, there.domains());
    let work = || {
        std::thread::scope(|scope| {
            // Each thread owns its channel: if one panics, the other notices the closed channel.
            let receiver = start(scope, "receives", || receive(there, far))?;
            let sent = send(here, near);
            Ok((sent, join(receiver)))
        })
    };
    let sides = watched("sends", work, watch).and_then(|sides| sides);
    schedule.end();
    let (sent, received) = sides.map_err(setup)?;
    Ok(judge(sent, received))
}

/// Combines the results of both sides. If both failed, returns the cause rather than its effect.
fn judge<S, R, E: Failure>(sent: Result<S, E>, received: Result<R, E>) -> SidesEnd<S, R, E> {
    match (sent, received) {
        (Ok(sent), Ok(received)) => Ok((sent, received)),
        (Err(echo), Err(cause)) if echo.is_echo() => Err((CopyRole::Receiver, cause)),
        (Err(cause), _) => Err((CopyRole::Sender, cause)),
        (Ok(_), Err(cause)) => Err((CopyRole::Receiver, cause)),
    }
}
