//! Asks a server for its devices, before a side chooses its own.

use super::error::SessionError;
use super::peer_timeouts::PeerTimeouts;
use super::server_address::ServerAddress;
use crate::job::Link;
use polyrail::link::{LinkError, Offer};
use rustix::net::getsockname;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// What a side found out by asking a server.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The devices that the server offers.
    pub(crate) offer: Offer,
    /// The address of this side of the control connection.
    pub(crate) own: IpAddr,
    /// The address of the server.
    pub(crate) peer: IpAddr,
}

/// Connects to a server, and asks it for its devices.
///
/// # Errors
///
/// The server cannot be reached, refuses, or does not answer in time.
pub(crate) fn ask(server: &ServerAddress, timeouts: &PeerTimeouts) -> Result<Asked, SessionError> {
    let mut control = server.connect(timeouts)?;
    let offer = control.ask()?;
    let own = local_ip(&control)?;
    let peer = control.peer_addr().map_or(own, |peer| peer.ip().to_canonical());
    Ok(Asked { offer, own, peer })
}

/// Returns the address of this side of a control connection.
///
/// # Errors
///
/// The system reports an error.
pub(crate) fn local_ip(control: &Link) -> Result<IpAddr, LinkError> {
    let failed =
        |source: io::Error| LinkError::Io { doing: "asking for the local address", source };
    let fd = control.fd().ok_or_else(|| failed(io::ErrorKind::NotConnected.into()))?;
    let address = getsockname(fd).map_err(|errno| failed(errno.into()))?;
    let address = SocketAddr::try_from(address).map_err(|errno| failed(errno.into()))?;
    Ok(address.ip().to_canonical())
}
