//! A peer that has connected and asked for something, and its limits.

use crate::fault::Side;
use crate::job::{Control, Hello};
use crate::session::{
    Environment, Patience, QualityOfService, RailCare, RailNews, Reporter, SessionError,
};
use polyrail::backend::{ConnectOptions, Domain};
use polyrail::endpoint::EndpointBuilder;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// How a server serves its peers.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// A directory, in which files appear under their senders' names; otherwise the file that each copy
    /// becomes. `None`: the server accepts no files.
    pub destination: Option<PathBuf>,
    /// Whether a file may replace another one; a peer may ask for less.
    pub overwrite: bool,
    /// Bytes of the longest file; `None`: no limit.
    pub max_file_size: Option<u64>,
    /// Bytes of memory that one peer may use here.
    pub max_memory: u64,
    /// Code of the time to wait for an acknowledgement of this side's requests, a copy's credits, before
    /// packets are sent again; see [`ConnectOptions::timeout`].
    pub qp_timeout: u8,
    /// How the network treats this side's packets.
    pub quality: QualityOfService,
    /// When rails are considered dead, and how long to wait for them; whether others take over is the
    /// peer's choice.
    pub care: RailCare,
    /// Peers to serve at a time, at least one; others wait a little, and are then sent away.
    pub peers: usize,
    /// How long to wait for a peer.
    pub patience: Patience,
    /// Whether a copy must reach the disk before it takes its name.
    pub sync: bool,
}

impl Default for ServeOptions {
    /// Only measurements, 4 peers at a time with 1 GiB of memory each, 10 s for rails.
    fn default() -> Self {
        Self {
            destination: None,
            overwrite: true,
            max_file_size: None,
            max_memory: 1 << 30,
            qp_timeout: ConnectOptions::default().timeout,
            quality: QualityOfService::default(),
            care: RailCare::default(),
            peers: 4,
            patience: Patience::default(),
            sync: false,
        }
    }
}

impl ServeOptions {
    /// Returns the default, but with files written to `destination`.
    pub fn new(destination: impl Into<PathBuf>) -> Self {
        Self { destination: Some(destination.into()), ..Self::default() }
    }
}

/// A peer that has said hello, and what serves it.
pub(crate) struct Visit<'a, D> {
    pub(crate) control: Control,
    pub(crate) hello: &'a Hello,
    pub(crate) domains: &'a [D],
    pub(crate) options: &'a ServeOptions,
}

impl<'a, D: Domain> Visit<'a, D> {
    /// Checks that the peer may use this many bytes of memory here.
    pub(crate) fn allow(&self, bytes: usize) -> Result<(), SessionError> {
        let bytes = bytes as u64;
        let limit = self.options.max_memory;
        if bytes > limit { Err(SessionError::TooMuchMemory { bytes, limit }) } else { Ok(()) }
    }

    /// Returns the builder of the endpoint that the peer asks for.
    pub(crate) fn builder(&self) -> EndpointBuilder {
        let endpoint = &self.hello.endpoint;
        let timeout = self.options.qp_timeout;
        let options = ConnectOptions { timeout, ..ConnectOptions::default() };
        let rails = endpoint.rails.len();
        let builder = EndpointBuilder::new()
            .rails(rails)
            .scheme(endpoint.scheme)
            .max_msg_size(endpoint.max_msg_size)
            .connect_options(self.options.quality.chosen(options));
        self.care().chosen(builder, rails)
    }

    /// Returns what becomes of rails that fail: the peer's choice, with this side's times.
    pub(crate) fn care(&self) -> RailCare {
        let rail_failure = self.hello.endpoint.card.rail_failure;
        RailCare { rail_failure, ..self.options.care }
    }

    /// Returns the environment of this side.
    pub(crate) fn environment(
        &self,
        builder: &'a EndpointBuilder,
        news: &RailNews,
        interrupted: &'a AtomicBool,
    ) -> Environment<'a, D> {
        // The peer's buffer is registered with every device that it uses.
        let domains = self.domains.iter().take(self.hello.buffer.rkeys.len()).collect();
        Environment {
            domains,
            builder,
            stall_timeout: self.options.care.stall_timeout,
            reporter: Reporter { side: Side::Far, news: news.clone() },
            patience: Some(self.options.patience),
            interrupted,
        }
    }
}
