//! The side that waits: takes files and measurements from whoever connects, one after the other.
//!
//! `visit` is a peer that has asked, and what it may have; [`transfer`] takes its
//! file, [`perf`] is the far end of its measurement.

#[cfg(test)]
mod tests;
mod visit;

pub use visit::ServeOptions;
pub(crate) use visit::Visit;

use crate::backend::Domain;
use crate::exchange::{Link, LinkError, Listener, Purpose, Timeouts};
use crate::perf::{self, Measured, PerfError};
use crate::session::{SessionError, expect_asker, tell_failure};
use crate::transfer::{self, CopyError, Progress, Received};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The port that servers listen at unless told otherwise.
pub const DEFAULT_PORT: u16 = 7471;

/// Waits for peers.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
}

/// A peer that has connected, and not said anything yet.
#[derive(Debug)]
pub struct Visitor {
    link: Link,
    /// Where it connected from.
    pub address: SocketAddr,
}

/// What a peer was served with.
#[derive(Clone, Debug, PartialEq)]
pub enum Served {
    /// Its file came.
    Copy(Received),
    /// Its requests were measured.
    Perf(Measured),
}

/// Why a peer was not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It did not get as far as to ask for something.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Its file did not come.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Its measurement failed.
    #[error(transparent)]
    Perf(#[from] PerfError),
}

impl Server {
    /// Listens at `address`, such as `0.0.0.0:7471`.
    ///
    /// # Errors
    ///
    /// See [`Listener::bind`].
    pub fn bind(address: &str) -> Result<Self, LinkError> {
        Ok(Self { listener: Listener::bind(address)? })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn local_addr(&self) -> Result<SocketAddr, LinkError> {
        self.listener.local_addr()
    }

    /// Waits for the next peer; `None` when `interrupted` is set.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn accept(&self, interrupted: &AtomicBool) -> Result<Option<Visitor>, LinkError> {
        let timeouts = Timeouts { accept: Some(Duration::from_millis(100)), ..Timeouts::default() };
        while !interrupted.load(Ordering::Relaxed) {
            match self.listener.accept(&timeouts) {
                Ok((link, address)) => return Ok(Some(Visitor { link, address })),
                Err(LinkError::Nobody { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Visitor {
    /// Gives the peer what it asks for, over these devices; how many of them, the rails, the scheme
    /// and the fragment size are its choice. While a file comes, `watch` is called ten times a
    /// second, on this thread.
    ///
    /// # Errors
    ///
    /// See [`ServeError`]; the peer is told.
    pub fn serve<D: Domain + Sync>(
        mut self,
        domains: &[D],
        options: &ServeOptions,
        progress: &Progress,
        watch: impl FnMut(),
    ) -> Result<Served, ServeError> {
        let hello = &expect_asker(&mut self.link)?;
        let mut visit = Visit { link: self.link, hello, domains, options };
        match &hello.purpose {
            Some(Purpose::Copy { plan, name }) => {
                let received = transfer::receive(visit, *plan, name.as_ref(), progress, watch);
                Ok(Served::Copy(received?))
            }
            Some(Purpose::Perf(workload)) => {
                Ok(Served::Perf(perf::answer(visit, *workload, &progress.interrupted)?))
            }
            None => {
                let error = SessionError::Protocol("its hello does not say what for".into());
                tell_failure(&mut visit.link, &error);
                Err(error.into())
            }
        }
    }
}
