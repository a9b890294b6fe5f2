//! Sends a file to a [`Server`](crate::serve::Server) in another process.

use super::copy::{CopyOptions, CopyProgress, CopyReport, SideReport};
use super::error::{CopyError, CopyRole, TransferError};
use super::sender::{Parcel, send_file};
use super::source::Source;
use crate::fault::Side;
use crate::job::{CopyJob, CopyPlan, FileName};
use crate::session::{Environment, Reporter, ServerAddress};
use crate::threads::watched;
use polyrail::backend::Domain;
use polyrail::endpoint::EndpointBuilder;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Returns the environment of a side whose other side is a server.
pub(super) fn environment<'a, D>(
    domains: &'a [D],
    builder: &'a EndpointBuilder,
    options: &CopyOptions,
    progress: &'a CopyProgress,
) -> Environment<'a, D> {
    Environment {
        // Buffers are registered with each of these devices, so devices that no rail uses are left
        // out.
        domains: domains.iter().take(options.rails).collect(),
        builder,
        stall_timeout: options.rail_repair.stall_timeout,
        reporter: Reporter { side: Side::Near, news: progress.rails.clone() },
        timeouts: Some(options.timeouts),
        interrupted: &progress.interrupted,
    }
}

/// Copies `source` to a [`Server`](crate::serve::Server), such as `10.0.0.2:7471`, over these
/// devices. `name` is the name of the copy there; `None`: that of the source. Calls `watch` ten
/// times a second, on this thread, while another thread sends.
///
/// The options `devices`, `faults` and `sync` apply to copies within one process, and have no
/// effect here.
///
/// # Errors
///
/// See [`CopyError`]. After success, the server's file is complete and has its name.
pub fn send_to<D: Domain + Sync>(
    source: &Path,
    name: Option<&OsStr>,
    server: impl Into<ServerAddress>,
    domains: &[D],
    options: &CopyOptions,
    progress: &CopyProgress,
    watch: impl FnMut(),
) -> Result<CopyReport, CopyError> {
    let begin = Instant::now();
    let opened = Source::open(source)?;
    let total = opened.metadata().len();
    let plan =
        CopyPlan::new(total, options.message_size, options.window).map_err(CopyError::Plan)?;
    let wanted = name.or(source.file_name()).unwrap_or_default();
    let name = wanted.to_str().and_then(FileName::new);
    let name = name.ok_or_else(|| CopyError::Name { path: wanted.into() })?;
    progress.total.store(plan.total, Ordering::Relaxed);

    let server = server.into();
    let failed = |error: TransferError| {
        CopyError::of_side(CopyRole::Sender, error, source, Path::new(&server.address))
    };
    let control = server.connect(&options.timeouts).map_err(|error| failed(error.into()))?;
    let builder = options.builder();
    let environment = environment(domains, &builder, options, progress);
    let mode = Some((opened.metadata().mode() & 0o777) as u16);
    let job = CopyJob { plan, name: Some(name), mode, overwrite: options.overwrite };
    let parcel = Parcel { source: &opened, job };
    let (sum, rails) =
        watched("sends", || send_file(environment, control, parcel, &progress.written), watch)
            .map_err(TransferError::from)
            .and_then(|sent| sent)
            .map_err(failed)?;
    let report = CopyReport::new(sum, plan, begin.elapsed());
    Ok(CopyReport { sender: Some(SideReport { rails }), ..report })
}
