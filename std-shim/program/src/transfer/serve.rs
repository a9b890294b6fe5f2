//! Receives a file from a peer of a [`Server`](crate::serve::Server), in another process.
//!
//! A peer is trusted only with the bytes of its file: it cannot choose a path, use more memory than
//! allowed, or block the server by staying silent.

use super::copy::{CopyProgress, CopyReport, SideReport};
use super::destination::{self, Destination, Making};
use super::error::{CopyError, CopyRole, TransferError};
use super::receiver::{IncomingFile, receive_from};
use crate::job::{CopyJob, FileName, Shape};
use crate::session::tell_failure;
use crate::threads::watched;
use crate::visit::Visit;
use polyrail::backend::Domain;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A file that was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Where it is.
    pub path: PathBuf,
    /// How its sender chose to copy it.
    pub shape: Shape,
    /// What was copied.
    pub report: CopyReport,
}

/// Receives the file of a peer. Calls `watch` ten times a second, on this thread, while another
/// thread receives.
///
/// # Errors
///
/// See [`CopyError`]; the error is also reported to the sender. After an error, the destination is
/// as it was before.
pub(crate) fn receive<D: Domain + Sync>(
    mut visit: Visit<'_, D>,
    job: &CopyJob,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<Received, CopyError> {
    let begin = Instant::now();
    let plan = job.plan;
    let prepared = visit.requests().map_err(|error| CopyError::transfer(CopyRole::Receiver, error));
    let prepared = prepared.and_then(|endpoint| Ok((endpoint, prepare(&visit, job)?)));
    let (endpoint, Prepared { path, target, file }) =
        prepared.inspect_err(|error| tell_failure(&mut visit.control, error))?;
    progress.total.store(plan.total, Ordering::Relaxed);
    let failed = |error| CopyError::of_side(CopyRole::Receiver, error, Path::new(""), &path);

    let builder = visit.builder(endpoint);
    let environment = visit.environment(&builder, &progress.rails, &progress.interrupted);
    let shape = visit.shape(endpoint, plan.chunk, plan.window);
    let complete = || target.finish(visit.options.sync).map_err(TransferError::Finish);
    let written = &progress.written;
    let incoming = IncomingFile { plan, file: &file, path: Some(&path), written, complete };
    let work = || receive_from(environment, visit.control, visit.hello, incoming);
    let received = watched("receives", work, watch).map_err(TransferError::from);
    let (sum, reports) = received.and_then(|received| received).map_err(failed)?;
    let report = CopyReport::new(sum, plan, begin.elapsed());
    let receiver = Some(SideReport { rails: reports });
    Ok(Received { shape, report: CopyReport { receiver, ..report }, path })
}

/// The destination of a file.
struct Prepared {
    path: PathBuf,
    target: Destination,
    /// The file of `target`, to write to until it is complete.
    file: File,
}

/// Checks that the file is allowed, and prepares its destination.
fn prepare<D: Domain>(visit: &Visit<'_, D>, job: &CopyJob) -> Result<Prepared, CopyError> {
    let options = visit.options;
    let bytes = job.plan.total;
    if let Some(limit) = options.max_file_size.filter(|limit| bytes > *limit) {
        return Err(CopyError::TooLong { bytes, limit });
    }
    visit
        .allow(job.plan.ring_bytes())
        .map_err(|error| CopyError::transfer(CopyRole::Receiver, error))?;
    let destination = options.destination.as_ref().ok_or(CopyError::NoDestination)?;
    let path = place(destination, job.name.as_ref())?;
    let making = Making {
        source: None,
        mode: job.mode.map_or(Making::NEW_FILE, u32::from),
        overwrite: job.overwrite && options.overwrite,
    };
    let target = Destination::create(&path, making)?;
    match target.file().try_clone() {
        Ok(file) => Ok(Prepared { path, target, file }),
        Err(source) => Err(CopyError::Destination { path, source }),
    }
}

/// Returns the path of the copy. In a directory, a name that the peer chose may replace only
/// regular files, since a symbolic link could lead out of the directory.
fn place(destination: &Path, name: Option<&FileName>) -> Result<PathBuf, CopyError> {
    if !destination.is_dir() {
        return Ok(destination.to_owned());
    }
    let Some(name) = name else {
        let what = "a directory, and the sender proposed no name";
        return Err(CopyError::DestinationKind { path: destination.to_owned(), what });
    };
    let path = destination.join(name.as_str());
    match fs::symlink_metadata(&path) {
        Ok(existing) if !existing.is_file() => {
            Err(CopyError::DestinationKind { path, what: destination::kind(&existing) })
        }
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(CopyError::Destination { path, source })
        }
        _ => Ok(path),
    }
}
