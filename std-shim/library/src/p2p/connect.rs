//! Connects two endpoints.

use super::address::{P2pAddress, QueuePairAddress};
use super::error::P2pConnectError;
use super::member::P2pMember;
use super::message::{End, HealingLink, QueuePairId};
use crate::backend::{Connecting, DeviceError, Domain};
use crate::heal::Detected;
use crate::queue_pair::{Apart, Joined, RailAddress, join, retry};
use crate::trace;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::DeviceId;
use std::time::Duration;

impl<D: Domain> P2pMember<D> {
    /// Returns the address for the peer's [`connect`](Self::connect).
    pub fn address(&self) -> P2pAddress {
        P2pAddress {
            sender: self.sender.as_ref().map(|sender| sender.card()),
            sending: self.addresses(End::Sender),
            receiver: self.receiver.as_ref().map(|receiver| receiver.card()),
            receiving: self.addresses(End::Receiver),
        }
    }

    fn addresses(&self, end: End) -> Vec<QueuePairAddress> {
        let address = |(at, qp): (usize, &D::Qp)| QueuePairAddress {
            qp_num: qp.qp_num(),
            address: self.rail_address(qp, at),
        };
        self.queue_pairs(end).enumerate().map(address).collect()
    }

    fn rail_address(&self, qp: &D::Qp, at: usize) -> RailAddress {
        let place = &self.places[at];
        RailAddress::new(qp, (place.device, &place.port), self.psn, &self.options)
    }

    /// Connects an endpoint that was never connected with the endpoint whose
    /// [`address`](Self::address) is `peer`, and which connects to this one.
    ///
    /// The two ends need the same [number of rails](super::P2pBuilder::rails) and [effect of a
    /// rail's failure](super::P2pBuilder::rail_failure). Every queue pair goes through RTR to RTS.
    /// Both ends must have returned from this call before either posts a receive. The call waits
    /// while devices connect queue pairs: over RoCE the kernel searches for paths to the peer, for
    /// about a second if there is none. [`try_connect`](Self::try_connect) does not wait.
    ///
    /// If rails are [re-routed](super::P2pBuilder::rail_failure), an endpoint may begin with fewer
    /// rails: those whose ports are down, or have no path to the peer, count as failed, and are
    /// [repaired](crate::heal::Healing) later. [`min_rails`](super::P2pBuilder::min_rails) have
    /// to be connected. The two ends may lack different rails, and neither end uses a rail that the
    /// other one lacks: if fewer than `min_rails` are left, both endpoints fail. With `min_rails` 0
    /// they wait until rails are repaired.
    ///
    /// # Errors
    ///
    /// The two endpoints do not match (nothing changed), or a queue pair refused. If the error [may
    /// pass](P2pConnectError::may_pass), the same call may be repeated, and connects the rest.
    pub fn connect(&mut self, peer: &P2pAddress) -> Result<(), P2pConnectError> {
        self.connect_within(Duration::ZERO, peer)
    }

    /// Connects as [`connect`](Self::connect) does. Repeats attempts for up to `limit`, while their
    /// errors may pass.
    pub(crate) fn connect_within(
        &mut self,
        limit: Duration,
        peer: &P2pAddress,
    ) -> Result<(), P2pConnectError> {
        let qp = self.log.qp;
        let connected = trace::connect(qp, self.places.len(), || {
            self.begin_to_connect(peer)?;
            retry(limit, P2pConnectError::may_pass, || {
                while !self.connect_all(peer)? {
                    self.joined.wait();
                }
                Ok(())
            })?;
            Ok(true)
        });
        connected.inspect_err(|error| trace::not_connected(qp, error)).map(|_| ())
    }

    /// Connects as [`connect`](Self::connect) does, but does not wait while the device connects
    /// queue pairs: over RoCE the kernel searches for a path to the peer for about a second.
    /// Returns whether the endpoint is connected; if not, call again with the same address. For
    /// programs that serve several peers with one thread.
    ///
    /// The queue pairs are connected on other threads, at most
    /// [`MOST_ASIDE`](crate::backend::MOST_ASIDE) at a time in a process. Those between different
    /// ports are connected at the same time.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). If the error [may pass](P2pConnectError::may_pass), the next
    /// call begins another attempt; [`next_attempt`](crate::link::next_attempt) says when.
    pub fn try_connect(&mut self, peer: &P2pAddress) -> Result<bool, P2pConnectError> {
        if self.joined.continues(peer) && self.joined.has_to_wait() {
            return Ok(false);
        }
        let qp = self.log.qp;
        let connected = trace::connect(qp, self.places.len(), || {
            self.begin_to_connect(peer)?;
            self.connect_all(peer)
        });
        connected.inspect_err(|error| trace::not_connected(qp, error))
    }

    fn begin_to_connect(&mut self, peer: &P2pAddress) -> Result<(), P2pConnectError> {
        if !self.joined.continues(peer) {
            self.agree(peer)?;
            self.joined.begin(peer);
        }
        Ok(())
    }

    /// Checks that the two ends match, and takes the peer's cards.
    fn agree(&mut self, peer: &P2pAddress) -> Result<(), P2pConnectError> {
        let there = [
            (End::Sender, self.sender.is_some(), peer.receiver.is_some()),
            (End::Receiver, self.receiver.is_some(), peer.sender.is_some()),
        ];
        if let Some((end, here, _)) = there.into_iter().find(|(_, here, there)| here != there) {
            return Err(P2pConnectError::OneWay { end, here });
        }
        let mut ends = vec![(End::Sender, &peer.receiving), (End::Receiver, &peer.sending)];
        let is_here = |end| there.contains(&(end, true, true));
        if let Some((end, stray)) = ends.iter().find(|(end, all)| !is_here(*end) && !all.is_empty())
        {
            return Err(P2pConnectError::QueuePairs { end: *end, here: 0, peer: stray.len() });
        }
        ends.retain(|(end, _)| is_here(*end));
        for (end, theirs) in &ends {
            self.check(*end, theirs)?;
        }
        let card = |end| move |source| P2pConnectError::Card { end, source };
        // Both, before either takes one.
        if let Some((sender, theirs)) = self.sender.as_ref().zip(peer.receiver.as_ref()) {
            sender.check_card(theirs).map_err(card(End::Sender))?;
        }
        if let Some((receiver, theirs)) = self.receiver.as_ref().zip(peer.sender.as_ref()) {
            receiver.check_card(theirs).map_err(card(End::Receiver))?;
        }
        if let Some((sender, theirs)) = self.sender.as_mut().zip(peer.receiver.as_ref()) {
            sender.connect(theirs).map_err(card(End::Sender))?;
        }
        if let Some((receiver, theirs)) = self.receiver.as_mut().zip(peer.sender.as_ref()) {
            receiver.connect(theirs).map_err(card(End::Receiver))?;
        }
        Ok(())
    }

    /// Continues to connect the queue pairs that are not connected yet. Begins with fewer if that
    /// is possible. Returns whether the member is connected, or queue pairs are still being
    /// connected.
    fn connect_all(&mut self, peer: &P2pAddress) -> Result<bool, P2pConnectError> {
        let ends = [(End::Sender, &peer.receiving), (End::Receiver, &peer.sending)];
        let theirs = ends.into_iter().flat_map(|(end, theirs)| {
            let rail = move |index: u8| QueuePairId { end, index };
            (0..).map(rail).zip(theirs)
        });
        let theirs: Vec<(QueuePairId, &QueuePairAddress)> = theirs.collect();
        let ports = theirs.iter().filter_map(|(rail, theirs)| {
            Some((*rail, self.places.get(usize::from(rail.index))?, theirs.address.gid))
        });
        let mut joined = std::mem::replace(&mut self.joined, Joined::new());
        let join = |rail: QueuePairId| {
            let found = theirs.iter().find(|(of, _)| *of == rail);
            found.map_or(Connecting::done(Ok(())), |(_, theirs)| self.join(rail, theirs))
        };
        let heals = self.healer.is_some();
        let refused = joined.join(ports, heals, join);
        let is_enough = |joined: &_| self.is_enough(joined);
        let missing = refused.map(|refused| joined.begin_without(refused, |_| heals, is_enough));
        self.joined = joined;
        let Some(missing) = missing else { return Ok(false) };
        for (rail, source) in missing.map_err(|(rail, source)| self.not_joined(rail, source))? {
            let error = self.not_joined(rail, source);
            self.report_attempt(rail.end, rail.index.into(), &error);
            if self.fail_queue_pair(rail) {
                self.log.note_detected(rail, Detected::NotConnected);
            }
        }
        Ok(true)
    }

    fn not_joined(
        &self,
        QueuePairId { end, index }: QueuePairId,
        source: DeviceError,
    ) -> P2pConnectError {
        let queue_pair = usize::from(index);
        P2pConnectError::Modify { end, queue_pair, device: self.device_at(queue_pair), source }
    }

    /// Whether enough rails of both ends are connected: each has at least one queue pair that is.
    fn is_enough(&self, joined: &Joined<QueuePairId, P2pAddress>) -> bool {
        let is_joined = |end: End, rail: usize| {
            let is_of_rail = |index: u8| usize::from(index) % self.rails == rail;
            joined.count(|joined| joined.end == end && is_of_rail(joined.index)) > 0
        };
        [End::Sender, End::Receiver].into_iter().all(|end| {
            let is_here = self.queue_pairs(end).next().is_some();
            let rails = (0..self.rails).filter(|rail| is_joined(end, *rail)).count();
            !is_here || rails >= usize::from(self.min_rails)
        })
    }

    fn check(&self, end: End, theirs: &[QueuePairAddress]) -> Result<(), P2pConnectError> {
        let (here, peer) = (self.places.len(), theirs.len());
        if here != peer {
            return Err(P2pConnectError::QueuePairs { end, here, peer });
        }
        for ((queue_pair, theirs), qp) in theirs.iter().enumerate().zip(self.queue_pairs(end)) {
            let own = self.rail_address(qp, queue_pair);
            let Some(apart) = own.apart(&theirs.address) else { continue };
            let device = self.device_at(queue_pair);
            let (here, peer) = (own.gid, theirs.address.gid);
            return Err(match apart {
                Apart::Backends { here_is_tcp } => {
                    P2pConnectError::Backends { end, queue_pair, device, here_is_tcp }
                }
                Apart::LinkLayers { here_is_infiniband } => {
                    P2pConnectError::LinkLayers { end, queue_pair, device, here_is_infiniband }
                }
                Apart::Gids => P2pConnectError::Gids { end, queue_pair, device, here, peer },
                Apart::Loopback => {
                    P2pConnectError::Loopback { end, queue_pair, device, here, peer }
                }
            });
        }
        Ok(())
    }

    fn join(&self, rail: QueuePairId, theirs: &QueuePairAddress) -> Connecting<()> {
        let at = usize::from(rail.index);
        let qp = self.queue_pairs(rail.end).nth(at);
        let Some(qp) = qp else { return Connecting::done(Ok(())) };
        let QueuePairAddress { qp_num, address } = theirs;
        let own = self.rail_address(qp, at);
        join((qp, &self.places[at].port, &own), *qp_num, address, &self.options)
    }

    fn device_at(&self, queue_pair: usize) -> String {
        self.device_of(queue_pair).unwrap_or_default().to_owned()
    }

    /// Returns the name of the device of the i-th queue pair, which is the same for both ends.
    pub fn device_of(&self, queue_pair: usize) -> Option<&str> {
        let place = self.places.get(queue_pair)?;
        self.names.get(place.device).map(|(_, name)| name.as_str())
    }

    /// Returns the name of a device.
    pub fn device_name(&self, device: DeviceId) -> Option<&str> {
        let found = self.names.iter().find(|(id, _)| *id == device);
        found.map(|(_, name)| name.as_str())
    }
}

/// Connects two message endpoints of one process, or members of sets, that were never connected,
/// and that were built with the same number of rails and effect of a rail's failure.
///
/// If both ends [repair](crate::heal::Healing) their rails automatically, they exchange their
/// repair messages directly, and the application carries none.
///
/// # Errors
///
/// As [`P2pMember::connect`].
pub fn connect_endpoints<D: Domain>(
    a: &mut P2pMember<D>,
    b: &mut P2pMember<D>,
) -> Result<(), P2pConnectError> {
    let (address_a, address_b) = (a.address(), b.address());
    a.connect(&address_b)?;
    b.connect(&address_a)?;
    if let (Some(a), Some(b)) = (&mut a.healer, &mut b.healer) {
        let (link_a, link_b) = HealingLink::pair();
        a.set_link(link_a);
        b.set_link(link_b);
    }
    Ok(())
}
