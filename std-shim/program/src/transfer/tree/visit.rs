//! A server's side of a copy of directories.

use super::local::TreeReport;
use super::receive;
use super::remote::pulled;
use super::send::send_tree;
use super::stream::{Meter, Opening, SideEnd};
use super::target::{Roots, Rules, Target};
use super::walk::{Root, Walk};
use crate::job::{PullJob, Shape, TreeJob, TreePlan};
use crate::session::{SessionError, tell_failure};
use crate::threads::watched;
use crate::transfer::copy::{CopyProgress, SideReport};
use crate::transfer::destination;
use crate::transfer::error::{CopyError, CopyRole};
use crate::visit::Visit;
use polyrail::backend::Domain;
use polyrail::endpoint::Address;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Directories and files that were received.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedTree {
    /// The directory that they are in.
    pub directory: PathBuf,
    /// How their sender chose to copy them.
    pub shape: Shape,
    /// What was copied.
    pub report: TreeReport,
}

/// A file or directory that was sent to a peer that asked for it.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenTree {
    /// Where it is.
    pub path: PathBuf,
    /// How the peer chose to copy it.
    pub shape: Shape,
    /// What was copied.
    pub report: TreeReport,
}

/// Receives the directories of a peer. Calls `watch` ten times a second, on this thread, while
/// another thread receives.
///
/// # Errors
///
/// See [`CopyError`]; the error is also reported to the sender. Files that were complete before an
/// error stay.
pub(crate) fn receive_tree<D: Domain + Sync>(
    mut visit: Visit<'_, D>,
    job: TreeJob,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<ReceivedTree, CopyError> {
    let begin = Instant::now();
    let TreeJob { plan, overwrite } = job;
    let prepared = prepare(&visit, plan, CopyRole::Receiver).map(|(endpoint, directory)| {
        let options = visit.options;
        let rules = Rules {
            overwrite: overwrite && options.overwrite,
            exact: false,
            max_file_size: options.max_file_size,
            sync: options.sync,
        };
        (endpoint, directory, Target::existing(directory, Roots::Visible, rules))
    });
    let (endpoint, directory, target) =
        prepared.inspect_err(|error| tell_failure(&mut visit.control, error))?;
    let builder = visit.builder(endpoint);
    let environment = visit.environment(&builder, &progress.rails, &progress.interrupted);
    let shape = visit.shape(endpoint, plan.chunk, plan.window);
    let opening = Opening::Answer(visit.hello);
    let meter = Meter { total: Some(&progress.total), done: Some(&progress.written) };
    let control = visit.control;
    let work = || receive::receive_tree(environment, control, opening, plan, target, meter);
    let end = watched("receives", work, watch)
        .map_err(|error| CopyError::transfer(CopyRole::Receiver, error))?;
    let end = end.map_err(|error| error.of(CopyRole::Receiver))?;
    let report = TreeReport::new(&end, begin.elapsed());
    let receiver = Some(SideReport { rails: end.rails });
    let report = TreeReport { receiver, ..report };
    Ok(ReceivedTree { directory: directory.to_owned(), shape, report })
}

/// Sends a peer the file or directory that it asked for. Calls `watch` ten times a second, on this
/// thread, while another thread sends.
///
/// # Errors
///
/// See [`CopyError`]; the error is also reported to the peer.
pub(crate) fn give_tree<D: Domain + Sync>(
    mut visit: Visit<'_, D>,
    job: &PullJob,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<GivenTree, CopyError> {
    let begin = Instant::now();
    let plan = job.plan;
    // First, so that the peer of a server without a directory is not asked to make one writable.
    let readable = visit.options.readable.then_some(()).ok_or(CopyError::NotReadable);
    let prepared = readable
        .and_then(|()| prepare(&visit, plan, CopyRole::Sender))
        .and_then(|(endpoint, directory)| Ok((endpoint, asked(directory, &job.path)?)));
    let (endpoint, root) = prepared.inspect_err(|error| tell_failure(&mut visit.control, error))?;
    let builder = visit.builder(endpoint);
    let environment = visit.environment(&builder, &progress.rails, &progress.interrupted);
    let shape = visit.shape(endpoint, plan.chunk, plan.window);
    let opening = Opening::Answer(visit.hello);
    let path = root.from.clone();
    let mut walk = Walk::new(vec![root], false);
    let meter = Meter { total: Some(&progress.total), done: Some(&progress.written) };
    let control = visit.control;
    let walked = &mut walk;
    let work = || send_tree(environment, control, opening, plan, walked, meter);
    let end = watched("sends", work, watch)
        .map_err(|error| CopyError::transfer(CopyRole::Sender, error))?;
    let end: SideEnd = end.map_err(|error| error.of(CopyRole::Sender))?;
    let report = TreeReport::new(&end, begin.elapsed());
    let sender = Some(SideReport { rails: end.rails });
    let report = TreeReport { sender, skipped_files: walk.named, ..report };
    Ok(GivenTree { path, shape, report })
}

/// Checks what both directions require, and returns the peer's endpoint and the directory that is
/// served.
fn prepare<'a, D: Domain>(
    visit: &Visit<'a, D>,
    plan: TreePlan,
    role: CopyRole,
) -> Result<(&'a Address, &'a Path), CopyError> {
    let refused = |error: SessionError| CopyError::transfer(role, error);
    let endpoint = visit.requests().map_err(refused)?;
    visit.allow(plan.ring_bytes()).map_err(refused)?;
    let directory = visit.options.destination.as_deref().ok_or(CopyError::NoDestination)?;
    let failed = |source| CopyError::Destination { path: directory.to_owned(), source };
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok((endpoint, directory)),
        Ok(found) => {
            let what = destination::kind(&found);
            Err(CopyError::NotADirectory { path: directory.to_owned(), what })
        }
        Err(error) => Err(failed(error)),
    }
}

/// Returns the file or directory that a peer asked for, if it is reached without symbolic links,
/// which could lead out of the directory that is served.
fn asked(directory: &Path, path: &str) -> Result<Root, CopyError> {
    let path = pulled(path)?;
    let mut from = directory.to_owned();
    for name in path.names() {
        from.push(name);
        let found = fs::symlink_metadata(&from)
            .map_err(|source| CopyError::Source { path: from.clone(), source })?;
        if found.is_symlink() {
            let what = destination::kind(&found);
            return Err(CopyError::SourceKind { path: from, what });
        }
    }
    Root::new(&from)
}
