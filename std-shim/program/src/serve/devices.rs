//! What a server needs of its devices, whatever backends they are of.

use super::visitor::{ServeError, Served, Visitor};
use crate::transfer::CopyProgress;
use crate::visit::ServeOptions;
use polyrail::backend::Domain;
use polyrail::link::Offer;
use std::fmt::Debug;
use std::net::SocketAddr;

/// The devices that a server serves its peers with.
pub trait Devices: Sync {
    /// Serves a visitor over these devices.
    ///
    /// # Errors
    ///
    /// See [`ServeError`]; the error is also reported to the peer.
    fn serve(
        &self,
        visitor: Visitor,
        options: &ServeOptions,
        progress: &CopyProgress,
        watch: impl FnMut(),
    ) -> Result<Served, ServeError>;
}

impl<D: Domain + Sync> Devices for [D] {
    fn serve(
        &self,
        visitor: Visitor,
        options: &ServeOptions,
        progress: &CopyProgress,
        watch: impl FnMut(),
    ) -> Result<Served, ServeError> {
        visitor.serve(self, options, progress, watch)
    }
}

/// What a server answers peers that ask for its devices.
pub trait Offers: Debug + Send + Sync {
    /// Returns the offer for a peer at this address.
    fn offer(&self, peer: SocketAddr) -> Offer;
}
