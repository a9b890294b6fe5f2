//! Copies directories to and from a [`Server`](crate::serve::Server) in another process.

use super::local::{TreeReport, roots, tree_plan};
use super::receive::receive_tree;
use super::record::RelativePath;
use super::send::send_tree;
use super::stream::{Meter, Opening};
use super::target::{Rules, Target, last_name};
use super::walk::Walk;
use crate::job::{Job, PullJob, TreeJob};
use crate::session::ServerAddress;
use crate::threads::watched;
use crate::transfer::copy::{CopyOptions, CopyProgress, SideReport};
use crate::transfer::error::{CopyError, CopyRole};
use crate::transfer::send_to::environment;
use polyrail::backend::Domain;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copies files and directories to a [`Server`](crate::serve::Server) over these devices, as
/// [`copy_tree`](super::copy_tree) does within one process, into the directory that it serves. New
/// files get the permissions of their sources, limited by the server's umask; old ones keep
/// theirs.
///
/// The options `devices`, `faults` and `sync` apply to copies within one process, and have no
/// effect here.
///
/// # Errors
///
/// See [`CopyError`]. Files that were complete before an error stay.
pub fn send_tree_to<D: Domain + Sync>(
    sources: &[PathBuf],
    server: impl Into<ServerAddress>,
    domains: &[D],
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<TreeReport, CopyError> {
    let begin = Instant::now();
    let plan = tree_plan(options)?;
    let roots = roots(sources)?;
    for root in &roots {
        if !root.path.is_visible() {
            return Err(CopyError::Name { path: root.path.as_path().to_owned() });
        }
    }
    let mut walk = Walk::new(roots, true);
    let control = server
        .into()
        .connect(&options.timeouts)
        .map_err(|error| CopyError::transfer(CopyRole::Sender, error))?;
    let builder = options.builder();
    let environment = environment(domains, &builder, options, progress);
    let job = Job::Tree(TreeJob { plan, overwrite: options.overwrite });
    let meter = Meter { total: Some(&progress.total), done: Some(&progress.written) };
    let walked = &mut walk;
    let work = || send_tree(environment, control, Opening::Ask(job), plan, walked, meter);
    let sent = watched("sends", work, watch)
        .map_err(|error| CopyError::transfer(CopyRole::Sender, error))?;
    let sent = sent.map_err(|error| error.of(CopyRole::Sender))?;
    let report = TreeReport::new(&sent, begin.elapsed());
    let rails = Some(SideReport { rails: sent.rails });
    Ok(TreeReport { sender: rails, skipped_files: walk.named, ..report })
}

/// Copies the file or directory at `path`, in the directory that a [`Server`](crate::serve::Server)
/// serves, over these devices. If `destination` is a directory or ends with `/`, the copy gets its
/// own name in it; otherwise a file is written to `destination` itself, and a directory into a new
/// directory `destination`. Files that exist with the same size and time are not sent.
///
/// Times, permissions and holes are kept. Symbolic links are skipped. The options `devices` and
/// `faults` apply to copies within one process, and have no effect here.
///
/// # Errors
///
/// See [`CopyError`]. Files that were complete before an error stay.
pub fn pull_tree<D: Domain + Sync>(
    path: &str,
    destination: &Path,
    server: impl Into<ServerAddress>,
    domains: &[D],
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<TreeReport, CopyError> {
    let begin = Instant::now();
    let plan = tree_plan(options)?;
    let wanted = pulled(path)?;
    let target =
        Target::file_or_directory(destination, last_name(&wanted).to_owned(), Rules::of(options));
    let control = server
        .into()
        .connect(&options.timeouts)
        .map_err(|error| CopyError::transfer(CopyRole::Receiver, error))?;
    let builder = options.builder();
    let environment = environment(domains, &builder, options, progress);
    let job = Job::Pull(PullJob { plan, path: path.to_owned() });
    let meter = Meter { total: Some(&progress.total), done: Some(&progress.written) };
    let work = || receive_tree(environment, control, Opening::Ask(job), plan, target, meter);
    let received = watched("receives", work, watch)
        .map_err(|error| CopyError::transfer(CopyRole::Receiver, error))?;
    let received = received.map_err(|error| error.of(CopyRole::Receiver))?;
    let report = TreeReport::new(&received, begin.elapsed());
    Ok(TreeReport { receiver: Some(SideReport { rails: received.rails }), ..report })
}

/// Returns the path of a file or directory that a server may send, if it is valid: below the
/// directory that is served, and not hidden in it.
pub(super) fn pulled(path: &str) -> Result<RelativePath, CopyError> {
    let refused = || CopyError::PulledPath { path: path.into() };
    // As with a path of this host, slashes at the end make no difference.
    let name = path.trim_end_matches('/').as_bytes();
    RelativePath::new(name.to_vec()).filter(RelativePath::is_visible).ok_or_else(refused)
}
