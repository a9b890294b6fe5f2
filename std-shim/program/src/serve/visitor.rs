//! A peer that has asked for something, and serving it.

use crate::job::{Control, Hello, Job};
use crate::perf::{self, Measured, PerfError};
use crate::session::SessionError;
use crate::transfer::{self, CopyError, CopyProgress, Received};
use crate::visit::{ServeOptions, Visit};
use polyrail::backend::Domain;
use std::net::SocketAddr;

/// A peer that has connected, and asked for something.
#[derive(Debug)]
pub struct Visitor {
    pub(super) control: Control,
    pub(super) hello: Hello,
    pub(super) purpose: Job,
    /// Where it connected from.
    pub address: SocketAddr,
}

/// What a peer was served with.
#[derive(Clone, Debug, PartialEq)]
pub enum Served {
    /// Its file arrived.
    Copy(Received),
    /// Its requests were measured.
    Perf(Measured),
}

/// Why a peer was not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It did not get its turn.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Its file did not arrive.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Its measurement failed.
    #[error(transparent)]
    Perf(#[from] PerfError),
}

impl Visitor {
    /// Serves the peer's request over these devices; it chooses how many of them, the rails, the scheme and
    /// the fragment size. During a file, `watch` is called ten times a second, on this thread.
    ///
    /// # Errors
    ///
    /// See [`ServeError`]; the peer learns of it.
    pub fn serve<D: Domain + Sync>(
        self,
        domains: &[D],
        options: &ServeOptions,
        progress: &CopyProgress,
        watch: impl FnMut(),
    ) -> Result<Served, ServeError> {
        let Self { control, hello, purpose, .. } = self;
        let visit = Visit { control, hello: &hello, domains, options };
        match purpose {
            Job::Copy(copy) => Ok(Served::Copy(transfer::receive(visit, &copy, progress, watch)?)),
            Job::Perf(workload) => Ok(Served::Perf(perf::answer(
                visit,
                workload,
                &progress.rails,
                &progress.interrupted,
            )?)),
        }
    }
}
