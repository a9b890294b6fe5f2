//! A peer that has sent its request, and serving it.

use crate::job::{Hello, Job, Link};
use crate::perf::{self, Measured, PerfError};
use crate::session::{SessionError, local_ip, tell_failure};
use crate::transfer::{self, CopyError, CopyProgress, GivenTree, Received, ReceivedTree};
use crate::visit::{ServeOptions, Visit};
use polyrail::backend::Domain;
use std::net::{IpAddr, SocketAddr};

/// A peer that has connected and sent its request.
#[derive(Debug)]
pub struct Visitor {
    pub(super) control: Link,
    pub(super) hello: Hello,
    pub(super) purpose: Job,
    /// The address of the peer.
    pub address: SocketAddr,
}

/// The result of serving a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum Served {
    /// Its file was received.
    Copy(Received),
    /// Its directories and files were received.
    Tree(ReceivedTree),
    /// A file or directory was sent to it.
    Pull(GivenTree),
    /// Its requests were measured.
    Perf(Measured),
}

/// Why a peer was not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The peer was refused, or left before its turn.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Its file was not received.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Its measurement failed.
    #[error(transparent)]
    Perf(#[from] PerfError),
}

impl Visitor {
    /// Returns the hello of the peer.
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns the address of this side of the control connection.
    pub(crate) fn local_ip(&self) -> Result<IpAddr, SessionError> {
        Ok(local_ip(&self.control)?)
    }

    /// Refuses the peer, with the reason.
    pub(crate) fn refuse(mut self, error: SessionError) -> ServeError {
        tell_failure(&mut self.control, &error);
        error.into()
    }

    /// Serves the peer over these devices, in protection domains of its own: keys that another peer
    /// has are worth nothing on its queue pairs. The peer chooses the number of devices and rails,
    /// the scheme and the fragment size. Calls `watch` ten times a second, on this thread, while a
    /// file is received or sent.
    ///
    /// # Errors
    ///
    /// See [`ServeError`]; the error is also reported to the peer.
    pub fn serve<D: Domain + Sync>(
        self,
        domains: &[D],
        options: &ServeOptions,
        progress: &CopyProgress,
        watch: impl FnMut(),
    ) -> Result<Served, ServeError> {
        let Self { mut control, hello, purpose, .. } = self;
        // The peer's buffer has a key for each device that the peer uses.
        let used = domains.iter().take(hello.buffer.rkeys.len());
        let separate = used.map(Domain::separate).collect::<Result<Vec<D>, _>>();
        let separate = separate.map_err(SessionError::from);
        let domains = separate.inspect_err(|error| tell_failure(&mut control, error))?;
        let visit = Visit { control, hello: &hello, domains: &domains, options };
        match purpose {
            Job::Copy(copy) => Ok(Served::Copy(transfer::receive(visit, &copy, progress, watch)?)),
            Job::Tree(tree) => {
                Ok(Served::Tree(transfer::receive_tree(visit, tree, progress, watch)?))
            }
            Job::Pull(pull) => {
                Ok(Served::Pull(transfer::give_tree(visit, &pull, progress, watch)?))
            }
            Job::Perf(workload) => Ok(Served::Perf(perf::answer(
                visit,
                workload,
                &progress.rails,
                &progress.interrupted,
            )?)),
        }
    }
}
