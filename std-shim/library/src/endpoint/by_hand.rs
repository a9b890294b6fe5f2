//! Replacing rails by hand: what owners of endpoints and of sets call who do not let them
//! [heal](super::Healing) by themselves.

use super::qp::EndpointQp;
use super::replace::{Source, replace};
use super::replace_error::ReplaceError;
use super::replacement::{Replacement, ReplacementAddress};
use super::set::EndpointSet;
use super::single::Endpoint;
use crate::backend::Connect;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::RailId;

impl<Q, C> Endpoint<Q, C>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Makes a queue pair for a rail that is [Down](polyrail_core::virtual_qp::RailState::Down), on the device where it was at first,
    /// with the address that the port has now. If the device refuses, and it is rail 0 or the notify queue
    /// pair, for which requests wait, it is made on the device of another rail.
    ///
    /// Its [address](Replacement::address) is for the peer, which answers with one that
    /// [goes with it](Self::new_queue_pair_for); then both [replace](Self::replace) the rail.
    ///
    /// # Errors
    ///
    /// The rail is not Down, or no device gives a queue pair now.
    pub fn new_queue_pair(&self, rail: RailId) -> Result<Replacement<Q>, ReplaceError> {
        self.source().make(&self.qp, rail)
    }

    /// Makes a queue pair that goes with the peer's: for the same rail and generation, and on the device in
    /// the same place.
    ///
    /// # Errors
    ///
    /// As [`new_queue_pair`](Self::new_queue_pair); the peer's is of another generation, or on a device
    /// where this rail cannot be.
    pub fn new_queue_pair_for(
        &self,
        peer: &ReplacementAddress,
    ) -> Result<Replacement<Q>, ReplaceError> {
        self.source().make_for(&self.qp, peer)
    }

    /// Connects a queue pair with the peer's, and puts it in the rail's place. What the engine has to tell
    /// the peer then is to be carried as always ([`next_control`](EndpointQp::next_control)): the rail
    /// carries requests once both ends have replaced it.
    ///
    /// # Errors
    ///
    /// The two do not go together, or it is not wanted any more; a device refuses. If the peer has
    /// replaced the rail, it has to be told, and to [fail](EndpointQp::fail_rail) it: its new queue pair has
    /// no other end.
    pub fn replace(
        &mut self,
        replacement: Replacement<Q>,
        peer: &ReplacementAddress,
    ) -> Result<(), ReplaceError> {
        replace(&mut self.cq, 0, &mut self.qp, replacement, peer)
    }

    fn source(&self) -> Source<'_, Q, C> {
        Source { devices: &self.devices, cqs: self.cq.cqs() }
    }
}

impl<Q, C, const ROUTES: usize> EndpointSet<Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// [`Endpoint::new_queue_pair`] for virtual queue pair `number`.
    ///
    /// # Errors
    ///
    /// As there; or there is none of this number.
    pub fn new_queue_pair(
        &self,
        number: usize,
        rail: RailId,
    ) -> Result<Replacement<Q>, ReplaceError> {
        self.source().make(self.member(number)?, rail)
    }

    /// [`Endpoint::new_queue_pair_for`] for virtual queue pair `number`.
    ///
    /// # Errors
    ///
    /// As there; or there is none of this number.
    pub fn new_queue_pair_for(
        &self,
        number: usize,
        peer: &ReplacementAddress,
    ) -> Result<Replacement<Q>, ReplaceError> {
        self.source().make_for(self.member(number)?, peer)
    }

    /// [`Endpoint::replace`] for virtual queue pair `number`.
    ///
    /// # Errors
    ///
    /// As there; or there is none of this number.
    pub fn replace(
        &mut self,
        number: usize,
        replacement: Replacement<Q>,
        peer: &ReplacementAddress,
    ) -> Result<(), ReplaceError> {
        let count = self.len();
        let qp = self.members.get_mut(number).ok_or(ReplaceError::NoMember { number, count })?;
        replace(&mut self.common.cq, number as u16, qp, replacement, peer)
    }

    fn member(&self, number: usize) -> Result<&EndpointQp<Q>, ReplaceError> {
        self.get(number).ok_or(ReplaceError::NoMember { number, count: self.len() })
    }

    fn source(&self) -> Source<'_, Q, C> {
        Source { devices: &self.common.devices, cqs: self.common.cq.cqs() }
    }
}
