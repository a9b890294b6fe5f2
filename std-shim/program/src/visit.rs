//! A side that has connected and asked for something, and what it may have.

use crate::job::{Control, Hello};
use crate::session::{Environment, Patience, SessionError};
use polyrail::backend::{ConnectOptions, Domain};
use polyrail::endpoint::EndpointBuilder;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What a server does with what comes.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// A directory, in which files appear under the names that senders give them; else the file that
    /// each copy becomes. `None`: no files are taken.
    pub destination: Option<PathBuf>,
    /// Bytes of memory that one peer may have here.
    pub max_memory: u64,
    /// Code of the time that an acknowledgement of this side's requests, a copy's credits, is waited for
    /// before packets are sent again; see [`ConnectOptions::timeout`].
    pub qp_timeout: u8,
    /// How long a rail may make no headway before it is taken for dead.
    pub stall_timeout: Duration,
    /// Peers that are served at a time, at least one; others wait a little, and are sent away then.
    pub peers: usize,
    /// How long a peer is waited for.
    pub patience: Patience,
    /// Whether a copy has to reach the disk before it takes its name.
    pub sync: bool,
}

impl Default for ServeOptions {
    /// Measurements only, 4 peers at a time with 1 GiB of memory each, 10 s for rails.
    fn default() -> Self {
        Self {
            destination: None,
            max_memory: 1 << 30,
            qp_timeout: ConnectOptions::default().timeout,
            stall_timeout: Duration::from_secs(10),
            peers: 4,
            patience: Patience::default(),
            sync: false,
        }
    }
}

impl ServeOptions {
    /// The default, and files into `destination`.
    pub fn new(destination: impl Into<PathBuf>) -> Self {
        Self { destination: Some(destination.into()), ..Self::default() }
    }
}

/// A peer that has said hello, and what it is served with.
pub(crate) struct Visit<'a, D> {
    pub(crate) control: Control,
    pub(crate) hello: &'a Hello,
    pub(crate) domains: &'a [D],
    pub(crate) options: &'a ServeOptions,
}

impl<'a, D: Domain> Visit<'a, D> {
    /// Whether the peer may have so many bytes of memory here.
    pub(crate) fn allow(&self, bytes: usize) -> Result<(), SessionError> {
        let bytes = bytes as u64;
        let limit = self.options.max_memory;
        if bytes > limit { Err(SessionError::TooMuchMemory { bytes, limit }) } else { Ok(()) }
    }

    /// Makes the endpoint that the peer wants to meet.
    pub(crate) fn builder(&self) -> EndpointBuilder {
        let endpoint = &self.hello.endpoint;
        let timeout = self.options.qp_timeout;
        EndpointBuilder::new()
            .rails(endpoint.rails.len())
            .scheme(endpoint.scheme)
            .max_msg_size(endpoint.max_msg_size)
            .connect_options(ConnectOptions { timeout, ..ConnectOptions::default() })
    }

    /// What this side runs in.
    pub(crate) fn environment(
        &self,
        builder: &'a EndpointBuilder,
        interrupted: &'a AtomicBool,
    ) -> Environment<'a, D> {
        // The peer's buffer is registered with each of the devices that it uses.
        let domains = self.domains.iter().take(self.hello.buffer.rkeys.len()).collect();
        Environment {
            domains,
            builder,
            stall_timeout: self.options.stall_timeout,
            patience: Some(self.options.patience),
            interrupted,
        }
    }
}
