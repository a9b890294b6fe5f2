//! Copies directories within one process, and the report of any copy of directories.

use super::receive::receive_tree;
use super::send::send_tree;
use super::stream::{Meter, Opening, SideEnd};
use super::target::{Roots, Rules, Target};
use super::walk::{Root, Walk};
use crate::job::{Job, Link, TreeJob, TreePlan, TreeSum};
use crate::session::expect_asker;
use crate::transfer::copy::{CopyOptions, CopyProgress, OnHost, SideReport, between_hosts};
use crate::transfer::error::CopyError;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The report of a copy of directories.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeReport {
    /// Files that were sent.
    pub files: u64,
    /// Files that the receiver had already, with the same size and time.
    pub unchanged: u64,
    /// Files that were not sent, because they are neither files nor directories: symbolic links to
    /// directories or to nothing, pipes, sockets, devices.
    pub skipped: u64,
    /// Bytes sent, without holes.
    pub bytes: u64,
    /// Time in seconds.
    pub seconds: f64,
    /// Throughput over that time, in GB/s (10^9 bytes a second).
    pub gigabytes_per_second: f64,
    /// Requests that carried the files.
    pub requests: u64,
    /// Paths and kinds of the first 100 files that were skipped, if the sender is in this process.
    #[serde(skip)]
    pub skipped_files: Vec<(PathBuf, &'static str)>,
    /// The report of the sender, if it is in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<SideReport>,
    /// The report of the receiver, if it is in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<SideReport>,
}

impl TreeReport {
    /// Makes a report without the rails.
    pub(super) fn new(end: &SideEnd, time: Duration) -> Self {
        let TreeSum { files, unchanged, bytes, skipped } = end.sum;
        let seconds = time.as_secs_f64();
        Self {
            files,
            unchanged,
            skipped,
            bytes,
            seconds,
            gigabytes_per_second: bytes as f64 / seconds / 1e9,
            requests: end.chunks,
            skipped_files: Vec::new(),
            sender: None,
            receiver: None,
        }
    }
}

/// Copies files and directories into the directory `destination`, over a virtual queue pair on the
/// software NIC. Each source gets its own name there. Calls `watch` ten times a second, on this
/// thread, while two other threads copy.
///
/// The directory is made if it is missing. Files and directories keep their times and permissions,
/// and files their holes. Files whose size and time are those of the source are not copied again.
/// Symbolic links to files are followed; what else is neither a file nor a directory is skipped.
///
/// # Errors
///
/// See [`CopyError`]. Files that were complete before an error stay.
pub fn copy_tree(
    sources: &[PathBuf],
    destination: &Path,
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<TreeReport, CopyError> {
    let begin = Instant::now();
    let plan = tree_plan(options)?;
    let roots = roots(sources)?;
    refuse_itself(&roots, destination)?;
    let target = Target::made(destination, Roots::Any, Rules::of(options))?;
    let mut walk = Walk::new(roots, true);
    let job = TreeJob { plan, overwrite: options.overwrite };
    let walked = &mut walk;
    let send = |here: OnHost<'_>, near| {
        let meter = Meter { total: Some(&progress.total), done: None };
        send_tree(here, near, Opening::Ask(Job::Tree(job)), plan, walked, meter)
    };
    let receive = |there: OnHost<'_>, mut far: Link| {
        let hello = expect_asker(&mut far)?;
        let meter = Meter { total: None, done: Some(&progress.written) };
        receive_tree(there, far, Opening::Answer(&hello), plan, target, meter)
    };
    let ends = between_hosts(options, progress, watch, send, receive)?;
    let (sent, received) = ends.map_err(|(role, error)| error.of(role))?;
    let report = TreeReport::new(&sent, begin.elapsed());
    let sender = Some(SideReport { rails: sent.rails });
    let receiver = Some(SideReport { rails: received.rails });
    Ok(TreeReport { sender, receiver, skipped_files: walk.named, ..report })
}

/// Returns the chunks that the options ask for.
pub(super) fn tree_plan(options: &CopyOptions) -> Result<TreePlan, CopyError> {
    TreePlan::new(options.message_size, options.window).map_err(CopyError::Plan)
}

/// Returns the roots of a walk, whose names differ.
pub(super) fn roots(sources: &[PathBuf]) -> Result<Vec<Root>, CopyError> {
    let roots: Vec<Root> =
        sources.iter().map(|source| Root::new(source)).collect::<Result<_, _>>()?;
    for (place, root) in roots.iter().enumerate() {
        if let Some(first) = roots[..place].iter().find(|first| first.path == root.path) {
            let (first, second) = (first.from.clone(), root.from.clone());
            return Err(CopyError::SameName { first, second });
        }
        // Missing sources are found before anything is written.
        fs::metadata(&root.from)
            .map_err(|source| CopyError::Source { path: root.from.clone(), source })?;
    }
    Ok(roots)
}

/// Refuses to copy a directory into itself, which would never end, and anything onto itself.
fn refuse_itself(roots: &[Root], destination: &Path) -> Result<(), CopyError> {
    // A destination that is missing is made in its parent.
    let existing = destination.ancestors().find_map(|path| {
        let path = if path == Path::new("") { Path::new(".") } else { path };
        fs::canonicalize(path).ok()
    });
    let Some(above) = existing else { return Ok(()) };
    for Root { from: source, path } in roots {
        let Ok(from) = fs::canonicalize(source) else { continue };
        let copy = destination.join(path.as_path());
        if fs::canonicalize(&copy).is_ok_and(|to| to == from) {
            return Err(CopyError::SameFile { from: source.clone(), to: copy });
        }
        if from.is_dir() && above.starts_with(&from) {
            let (from, to) = (source.clone(), destination.to_owned());
            return Err(CopyError::IntoItself { from, to });
        }
    }
    Ok(())
}
