//! Pairs the devices of two hosts, so that each rail joins two devices that reach each other.
//!
//! Rail *i* connects the *i*-th rails of both ends, and the rails of an end use its devices in
//! turn. So the order of the devices at each end decides which devices a rail joins. Two hosts may
//! list their devices in different orders: `eth0` of one may be in the network of `eth1` of the
//! other.
//!
//! The end that answers knows the address of the end that asks before it builds its endpoint.
//! [`in_pairs`] puts its devices into the order of the peer's:
//!
//! 1. a device whose network has the peer's address comes first, and each device is used once
//!    while others of the network are left;
//! 2. the peer's other devices get the remaining devices in their order, as long as both ends have
//!    addresses of the same kind, since routers may connect them.
//!
//! Only one of the two ends orders its devices. The networks are those of the interfaces that have
//! the addresses of the devices; on InfiniBand the subnet prefix of the GID. [`partners`] is the
//! rule without devices, for programs that know more about their networks.

// No I/O, except that the networks of devices are read from the system.

use crate::backend::{Domain, DomainRef, Gid, Port, listed};
use crate::interfaces::{IpNet, ThisHost};
use crate::link::Reach;
use crate::queue_pair::{PortAddress, RailAddress};
use crate::trace;
use std::fmt;
use std::net::Ipv6Addr;

/// The facts by which devices of this host and of a peer are paired. The devices of each host are
/// counted from 0.
pub trait Networks {
    /// Returns whether a device here and one of the peer are in the same network.
    fn share_network(&self, own: usize, their: usize) -> bool;

    /// Returns whether a device here and one of the peer may reach each other, for example through
    /// a router.
    fn may_reach(&self, own: usize, their: usize) -> bool;

    /// Returns whether a device here has the address of one of the peer, which is then on this
    /// host.
    fn is_same(&self, own: usize, their: usize) -> bool;

    /// Returns whether two devices here use the same interface.
    fn share_interface(&self, own: usize, other: usize) -> bool {
        own == other
    }

    /// Returns the device here that is preferred for one of the peer, if it is not used yet and
    /// shares the network.
    fn preferred(&self, _their: usize) -> Option<usize> {
        None
    }

    /// Returns the device here that leads to one of the peer which is in no network of this host.
    fn routed(&self, _their: usize) -> Option<usize> {
        None
    }
}

/// Returns the device of this host to use with each device of the peer. Devices here may occur
/// several times, or not at all.
///
/// A device with the same address comes first, then one in the network of the peer's device, then
/// the [routed](Networks::routed) one, then the one at the same position. Among devices of the
/// network, and among the rest, a device that is not used yet comes before others.
///
/// ```
/// use polyrail::pairing::{Networks, partners};
///
/// /// The networks of the devices here, and of the peer's.
/// struct Subnets([u8; 2], [u8; 2]);
///
/// impl Networks for Subnets {
///     fn share_network(&self, own: usize, their: usize) -> bool {
///         self.0[own] == self.1[their]
///     }
///
///     fn may_reach(&self, _: usize, _: usize) -> bool {
///         true
///     }
///
///     fn is_same(&self, _: usize, _: usize) -> bool {
///         false
///     }
/// }
///
/// assert_eq!(partners(2, 2, &Subnets([1, 2], [2, 1])), Ok(vec![1, 0]));
/// ```
///
/// # Errors
///
/// No device here may reach this device of the peer.
pub fn partners(own: usize, theirs: usize, networks: &impl Networks) -> Result<Vec<usize>, usize> {
    let mut found: Vec<Option<usize>> = Vec::new();
    let is_free = |found: &[Option<usize>], at: usize| {
        !found.iter().flatten().any(|used| networks.share_interface(*used, at))
    };
    for their in 0..theirs {
        let shares = |at: &usize| networks.share_network(*at, their);
        let same = (0..own).find(|at| networks.is_same(*at, their));
        let mut free = networks.preferred(their).into_iter().chain(0..own);
        found.push(same.or_else(|| free.find(|at| shares(at) && is_free(&found, *at))));
    }
    for (their, at) in found.iter_mut().enumerate() {
        *at = at.or_else(|| (0..own).find(|at| networks.share_network(*at, their)));
    }
    let in_network = found.clone();
    for (their, _) in in_network.iter().enumerate().filter(|(_, at)| at.is_none()) {
        let reaches = |at: &usize| networks.may_reach(*at, their);
        let in_turn = || (0..own).map(|after| (their + after) % own).filter(reaches);
        let free = || in_turn().find(|at| is_free(&found, *at));
        found[their] = networks.routed(their).or_else(free).or_else(|| in_turn().next());
    }
    found.into_iter().enumerate().map(|(their, at)| at.ok_or(their)).collect()
}

/// Returns the devices among these [`partners`], each once, if rails that use them in turn join the
/// same pairs. The peer has this number of rails, which use its devices in turn.
pub fn in_turn(partners: &[usize], rails: usize) -> Option<Vec<usize>> {
    let mut each_once = Vec::new();
    for at in partners {
        if !each_once.contains(at) {
            each_once.push(*at);
        }
    }
    let is_paired =
        |rail: usize| partners[rail % partners.len()] == each_once[rail % each_once.len()];
    // Without devices there are no pairs.
    let is_in_turn = partners.is_empty() || (0..rails.max(partners.len())).all(is_paired);
    is_in_turn.then_some(each_once)
}

/// The devices of two hosts cannot be paired. Each device here comes with its name, and with its
/// address if it has one at present.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PairingError {
    /// No device here can reach one of the peer's: their addresses are of different kinds, or only
    /// one of them is over TCP, or a loopback device cannot leave this host.
    #[error("no device here can reach the peer's device at {peer}: {}", Names(own))]
    Unreachable {
        /// The address of the peer's device.
        peer: Gid,
        /// The devices here.
        own: Vec<(String, Option<Gid>)>,
    },
    /// The devices here that reach the peer's do not alternate as the peer's do, so rails that use
    /// the devices of each end in turn would join others.
    #[error(
        "rails use devices in turn, but the devices here that reach the peer's are, in this order: {}",
        Names(own)
    )]
    NotInTurn {
        /// The device here for each device of the peer.
        own: Vec<(String, Option<Gid>)>,
    },
    /// The peer has no rails, and so no devices.
    #[error("the peer's endpoint has no rails, so that there are no devices of it to pair")]
    NoRails,
}

/// Shows devices with their addresses.
struct Names<'n>(&'n [(String, Option<Gid>)]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, gid)) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            match gid {
                Some(gid) => write!(f, "{comma}{name} at {gid}")?,
                None => write!(f, "{comma}{name} (no address)")?,
            }
        }
        Ok(())
    }
}

/// Returns the devices of this end in the order of the peer's devices, by the [rule](self) of this
/// module. The result is for the endpoint and for its memory. `peer` is the peer's endpoint, from
/// its [`Hello`](crate::link::Hello); its end keeps the order of its devices.
///
/// If no device here shares a network with the peer's, the order does not change, unless the
/// devices cannot reach each other in it. Positions of
/// [standby devices](crate::endpoint::EndpointBuilder) are those of the result. If there are more
/// devices here than the peer has, those that are left in the same networks follow; devices in
/// other networks are left out.
///
/// ```
/// use polyrail::endpoint::{Endpoint, EndpointBuilder};
/// use polyrail::link::Reach;
/// use polyrail::pairing::in_pairs;
/// # use polyrail::nic::{DeviceConfig, Fabric};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::threaded();
/// # let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
/// # let (asking, answering) = (device("asking")?, [device("soft0")?, device("soft1")?]);
/// # let asking: Endpoint = EndpointBuilder::new().build(&[&asking])?;
/// let peer: Reach = asking.address().into();
/// let domains = in_pairs(&answering, &peer)?;
/// let endpoint: Endpoint = EndpointBuilder::new().build(&domains)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// See [`PairingError`].
pub fn in_pairs<'d, D: Domain>(
    domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    peer: &Reach,
) -> Result<Vec<&'d D>, PairingError> {
    let domains = listed(domains);
    let order = positions_in_pairs(domains.iter().copied(), peer)?;
    Ok(order.into_iter().map(|at| domains[at]).collect())
}

/// Returns the positions of the devices that [`in_pairs`] returns, in their order.
///
/// # Errors
///
/// See [`PairingError`].
pub fn positions_in_pairs<'d, D: Domain>(
    domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    peer: &Reach,
) -> Result<Vec<usize>, PairingError> {
    let rails = peer.rails();
    // Without the list, networks are unknown, and the order counts.
    let host = ThisHost::now();
    let hosts = Hosts {
        own: listed(domains).into_iter().map(|domain| Own::new(domain, &host)).collect(),
        theirs: turn(&rails).iter().map(PortAddress::from).collect(),
        host: &host,
    };
    hosts.order(rails.len())
}

/// Returns the positions that [`positions_in_pairs`] returns. If rails would not join these pairs
/// ([`NotInTurn`](PairingError::NotInTurn)), returns those of all devices in the order given,
/// because routers may connect the devices in it. Then calls `not_in_turn` with the reason, which
/// is also an event of [`trace`].
///
/// # Errors
///
/// [`PairingError::Unreachable`], [`PairingError::NoRails`].
pub fn positions_in_pairs_or_in_order<'d, D: Domain>(
    domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    peer: &Reach,
    not_in_turn: impl FnOnce(&PairingError),
) -> Result<Vec<usize>, PairingError> {
    let domains = listed(domains);
    match positions_in_pairs(domains.iter().copied(), peer) {
        Err(reason @ PairingError::NotInTurn { .. }) => {
            trace::not_in_turn(&reason);
            not_in_turn(&reason);
            Ok((0..domains.len()).collect())
        }
        positions => positions,
    }
}

/// Returns the network of each device's address, by which [`in_pairs`] pairs them; `None` if it is
/// unknown, or only a link. On InfiniBand it is the subnet prefix of the GID, as of IPv6.
pub fn networks<'d, D: Domain>(
    domains: impl IntoIterator<Item: DomainRef<'d, D>>,
) -> Vec<Option<IpNet>> {
    let host = ThisHost::now();
    let network = |domain| Own::new(domain, &host).network.map(|network| network.network());
    listed(domains).into_iter().map(network).collect()
}

/// A device here.
#[derive(Clone, Debug)]
struct Own {
    name: String,
    /// Its address; `None` if it has none at present.
    address: Option<PortAddress>,
    /// The network of its address; `None` if it is unknown, or only a link.
    network: Option<IpNet>,
}

impl Own {
    fn new(domain: &impl Domain, host: &ThisHost) -> Self {
        // Its rails use all its ports in turn. An error is reported when the endpoint is built.
        let port = domain.ports().ok().and_then(|ports| ports.first().copied());
        let is_tcp = domain.is_tcp();
        let address = port.map(|Port { gid, lid, .. }| PortAddress { gid, lid, is_tcp });
        let network = address.and_then(|address| network(&address, host));
        Self { name: domain.device_name().to_owned(), address, network }
    }
}

/// Returns the network of an address of this host; `None` if it is unknown, or only a link.
fn network(address: &PortAddress, host: &ThisHost) -> Option<IpNet> {
    /// Bits of the subnet prefix of a GID (InfiniBand, volume 1, 4.1.1).
    const SUBNET_PREFIX: u8 = 64;
    match address.is_infiniband() {
        true => IpNet::new(Ipv6Addr::from(address.gid.0).into(), SUBNET_PREFIX),
        false => host.network(address.ip()),
    }
}

/// The devices of this host and of a peer.
struct Hosts<'h> {
    own: Vec<Own>,
    theirs: Vec<PortAddress>,
    host: &'h ThisHost,
}

impl Networks for Hosts<'_> {
    fn share_network(&self, own: usize, their: usize) -> bool {
        let peer = &self.theirs[their];
        let own = &self.own[own];
        let ip = if peer.is_infiniband() { Ipv6Addr::from(peer.gid.0).into() } else { peer.ip() };
        own.address.is_some_and(|own| own.meets(peer))
            && own.network.is_some_and(|network| network.contains(ip))
    }

    fn may_reach(&self, own: usize, their: usize) -> bool {
        let peer = &self.theirs[their];
        let may_be_here = |ip| self.host.may_have(ip);
        // Without an address nothing is known, so the order counts.
        self.own[own].address.is_none_or(|own| own.apart(peer, may_be_here).is_none())
    }

    fn is_same(&self, own: usize, their: usize) -> bool {
        let peer = &self.theirs[their];
        self.own[own].address.is_some_and(|own| own.gid == peer.gid && own.meets(peer))
    }
}

impl Hosts<'_> {
    /// Returns the devices here in the order of the peer's, which has this number of rails.
    fn order(&self, rails: usize) -> Result<Vec<usize>, PairingError> {
        let (own, theirs) = (self.own.len(), self.theirs.len());
        if theirs == 0 {
            return Err(PairingError::NoRails);
        }
        let is_paired = |their| (0..own).any(|at| self.share_network(at, their));
        let by_place = |rail: usize| self.may_reach(rail % own, rail % theirs);
        let is_routed = own > 0 && !(0..theirs).any(is_paired);
        if is_routed && (0..rails.max(own)).all(by_place) {
            return Ok((0..own).collect());
        }
        let partners = partners(own, theirs, self).map_err(|their| PairingError::Unreachable {
            peer: self.theirs[their].gid,
            own: self.named(0..own),
        })?;
        let not_in_turn = || PairingError::NotInTurn { own: self.named(partners.iter().copied()) };
        let mut order = in_turn(&partners, rails).ok_or_else(not_in_turn)?;
        if order.len() == theirs {
            self.add_rounds(&mut order);
        }
        Ok(order)
    }

    /// Adds the devices that are left, one for each device of the peer in its network, as long as
    /// there is one for all of them: otherwise the turns of the two ends would differ.
    fn add_rounds(&self, order: &mut Vec<usize>) {
        loop {
            let before = order.len();
            for their in 0..self.theirs.len() {
                let is_left = |at: &usize| !order.contains(at) && self.share_network(*at, their);
                match (0..self.own.len()).find(is_left) {
                    Some(at) => order.push(at),
                    None => {
                        order.truncate(before);
                        return;
                    }
                }
            }
            if order.len() == before {
                return;
            }
        }
    }

    fn named(&self, devices: impl IntoIterator<Item = usize>) -> Vec<(String, Option<Gid>)> {
        let named = |at: usize| {
            let Own { name, address, .. } = &self.own[at];
            (name.clone(), address.map(|address| address.gid))
        };
        devices.into_iter().map(named).collect()
    }
}

/// Returns the devices of a peer in the order in which its rails use them, from the addresses of
/// its rails.
fn turn(rails: &[RailAddress]) -> &[RailAddress] {
    let repeats = |length: &usize| {
        rails[*length..].iter().zip(rails).all(|(rail, before)| rail.device == before.device)
    };
    let length = (1..rails.len()).find(repeats).unwrap_or(rails.len());
    &rails[..length]
}

#[cfg(test)]
mod tests;
