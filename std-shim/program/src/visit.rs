//! A peer of a server that has sent its request, and the limits that it is served within.

use crate::fault::Side;
use crate::job::{Hello, Link, Shape};
use crate::session::{
    Environment, PeerTimeouts, QualityOfService, RailNews, RailRepair, Reporter, SessionError,
};
use polyrail::backend::{ConnectOptions, Domain};
use polyrail::endpoint::{Address, EndpointBuilder, RailWeights};
use polyrail::p2p::P2pAddress;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// How a server serves its peers.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// A directory, in which each copy gets the name that its sender chose; or else the file that
    /// each copy replaces. `None`: the server accepts no files.
    pub destination: Option<PathBuf>,
    /// Whether peers may read the files in the directory.
    pub readable: bool,
    /// Whether a copy may replace an existing file; a peer may forbid it for its own copy.
    pub overwrite: bool,
    /// Bytes of the longest file; `None`: no limit.
    pub max_file_size: Option<u64>,
    /// Bytes of memory that one peer may use on this host.
    pub max_memory: u64,
    /// Code of the time after which packets of this side that are not acknowledged are sent again;
    /// see [`ConnectOptions::timeout`]. This side sends the credits of a copy.
    pub qp_timeout: u8,
    /// How the network treats this side's packets.
    pub quality: QualityOfService,
    /// What decides how much of what this side sends each rail carries.
    pub rail_weights: RailWeights,
    /// When a rail counts as failed, and how long to wait for its return. The peer chooses whether
    /// its data is rerouted.
    pub rail_repair: RailRepair,
    /// Peers to serve at a time, at least one; others wait, and are refused if their turn does not
    /// come.
    pub peers: usize,
    /// How long to wait for a peer.
    pub timeouts: PeerTimeouts,
    /// Whether a copy must be on disk before it gets its name.
    pub sync: bool,
}

impl Default for ServeOptions {
    /// Serves measurements only, 4 peers at a time, each with up to 1 GiB of memory.
    fn default() -> Self {
        Self {
            destination: None,
            readable: false,
            overwrite: true,
            max_file_size: None,
            max_memory: 1 << 30,
            qp_timeout: ConnectOptions::default().timeout,
            quality: QualityOfService::default(),
            rail_weights: RailWeights::default(),
            rail_repair: RailRepair::default(),
            peers: 4,
            timeouts: PeerTimeouts::default(),
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

/// A peer that has sent its hello, and the resources to serve it.
pub(crate) struct Visit<'a, D> {
    pub(crate) control: Link,
    pub(crate) hello: &'a Hello,
    /// Those of this visit only, as many as the peer uses devices.
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

    /// Returns the address of the peer's endpoint for requests.
    ///
    /// # Errors
    ///
    /// The peer's endpoint is for messages.
    pub(crate) fn requests(&self) -> Result<&'a Address, SessionError> {
        let address = self.hello.reach.requests();
        address.ok_or_else(|| SessionError::other_kind("messages", "requests"))
    }

    /// Returns the address of the peer's endpoint for messages.
    ///
    /// # Errors
    ///
    /// The peer's endpoint is for requests.
    pub(crate) fn messages(&self) -> Result<&'a P2pAddress, SessionError> {
        let address = self.hello.reach.messages();
        address.ok_or_else(|| SessionError::other_kind("requests", "messages"))
    }

    /// Returns the builder of the endpoint that matches the peer's.
    pub(crate) fn builder(&self, endpoint: &Address) -> EndpointBuilder {
        let timeout = self.options.qp_timeout;
        let options = ConnectOptions { timeout, ..ConnectOptions::default() };
        let rails = endpoint.rails.len();
        let builder = EndpointBuilder::new()
            .rails(rails)
            .scheme(endpoint.scheme)
            .max_msg_size(endpoint.max_msg_size)
            .rail_weights(self.options.rail_weights)
            .connect_options(self.options.quality.chosen(options));
        self.rail_repair(endpoint).chosen(builder, rails)
    }

    /// Returns how to handle rails that fail: the peer's choice of rerouting, and this side's
    /// timeouts.
    pub(crate) fn rail_repair(&self, endpoint: &Address) -> RailRepair {
        let rail_failure = endpoint.card.rail_failure;
        RailRepair { rail_failure, ..self.options.rail_repair }
    }

    /// Returns the devices of this side to use.
    pub(crate) fn domains(&self) -> Vec<&'a D> {
        self.domains.iter().collect()
    }

    /// Returns how the requests of a copy are sent: in chunks of `chunk` bytes, `window` at a time.
    pub(crate) fn shape(&self, endpoint: &Address, chunk: u32, window: u32) -> Shape {
        Shape {
            scheme: Some(endpoint.scheme),
            rails: endpoint.rails.len(),
            devices: self.domains.len(),
            max_msg_size: endpoint.max_msg_size,
            message_size: chunk.into(),
            window: window.into(),
        }
    }

    /// Returns the environment of this side.
    pub(crate) fn environment(
        &self,
        builder: &'a EndpointBuilder,
        news: &RailNews,
        interrupted: &'a AtomicBool,
    ) -> Environment<'a, D> {
        Environment {
            domains: self.domains(),
            builder,
            stall_timeout: self.options.rail_repair.stall_timeout,
            reporter: Reporter { side: Side::Far, news: news.clone() },
            timeouts: Some(self.options.timeouts),
            interrupted,
        }
    }
}
