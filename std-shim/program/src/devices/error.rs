//! Errors of finding and opening devices.

use crate::session::{Backend, SessionError};
use polyrail::interfaces::InterfaceError;
use polyrail::tcp::OpenDevicesError;

/// No devices can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// Two options choose different kinds of devices.
    #[error("{first} and {second} contradict each other: one is for RDMA devices, one for TCP")]
    Contradiction {
        /// The first option.
        first: String,
        /// The second option.
        second: String,
    },
    /// Only an option that is for RDMA devices chose them, and none can be used.
    #[error(
        "{option} is for RDMA devices, but none can be used on this host: omit it over TCP (see \
         --backend)"
    )]
    OnlyByOption {
        /// The option.
        option: &'static str,
        /// Why none can be used.
        #[source]
        source: Box<Self>,
    },
    /// The program was built without support for RDMA devices.
    #[error("this program was built without support for RDMA devices")]
    WithoutVerbs,
    /// RDMA devices cannot be opened.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] polyrail::rdma::OpenError),
    /// Network interfaces cannot be opened as devices.
    #[error(transparent)]
    Tcp(#[from] OpenDevicesError),
    /// The network interfaces of this host cannot be listed.
    #[error(transparent)]
    Interfaces(#[from] InterfaceError),
    /// No network interface of this host leads to a network of the server.
    #[error(
        "no network interface of this host shares a network with those that the server offers ({}): \
         name interfaces, such as --device tcp:eth0",
        theirs.join(", ")
    )]
    NoInterface {
        /// Addresses that the server offers.
        theirs: Vec<String>,
    },
    /// This host has no device of the only kind that the server offers.
    #[error("the server offers only {offered} devices, but this host has none")]
    OnlyOther {
        /// The kind that the server offers.
        offered: Backend,
        /// Why this host has none.
        #[source]
        source: Box<Self>,
    },
    /// The server offers no devices of the only kind that can be used.
    #[error("the server offers no {asked} devices")]
    NotOffered {
        /// The kind that this host can use.
        asked: Backend,
    },
    /// The server could not be asked for its devices.
    #[error("cannot ask the server at {address} for its devices")]
    Ask {
        /// The server's address.
        address: String,
        /// The reason.
        source: SessionError,
    },
}
