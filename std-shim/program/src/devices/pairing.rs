//! Finds the network interfaces of two hosts that share a network. No I/O.

use polyrail::endpoint::MAX_DEVICES;
use polyrail::interfaces::{IpNet, LocalAddress};
use polyrail::pairing::{self, Networks, in_turn};
use std::net::IpAddr;

/// The two ends of the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Met {
    /// The address of this side.
    pub(super) own: IpAddr,
    /// The address of the other side.
    pub(super) peer: IpAddr,
}

impl Met {
    /// Returns whether both sides are on one host.
    fn is_one_host(self) -> bool {
        self.own == self.peer || self.peer.is_loopback()
    }
}

/// Returns whether two addresses are in one network, by both their prefixes.
fn share_network(a: IpNet, b: IpNet) -> bool {
    a.contains(b.ip()) && b.contains(a.ip())
}

/// A pair of interfaces: places in both lists.
type Pair = (usize, usize);

/// Returns the addresses of this side to use with a server that offers `theirs`, a list of
/// addresses for each of its interfaces. Each address is of another interface of this side, and
/// leads to another interface of the server, or all lead to one. Of the interfaces of one host, the
/// address of the control connection is enough.
///
/// `own` are the addresses of this host, the best first, without those of links only. `route`
/// returns the address from which the system sends to another one; it decides if no pair is known
/// otherwise.
pub(super) fn reaching(
    own: &[LocalAddress],
    theirs: &[Vec<IpNet>],
    met: Met,
    route: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Vec<LocalAddress> {
    let place = |ip: IpAddr| own.iter().position(|own| own.net.ip() == ip);
    if met.is_one_host() {
        return place(met.own).map(|at| own[at].clone()).into_iter().collect();
    }
    // Every host has the networks of its loopback, and may have those of its own containers.
    let is_foreign = |ip: IpAddr| !ip.is_loopback() && place(ip).is_none();
    let mut pairs: Vec<Pair> = Vec::new();
    let is_used = |pairs: &[Pair], at: usize| {
        pairs.iter().any(|(used, _)| own[*used].interface == own[at].interface)
    };
    let leads_to = |own: &LocalAddress, interface: &[IpNet]| {
        interface.iter().any(|their| is_foreign(their.ip()) && share_network(own.net, *their))
    };
    // This pair is known to work.
    let met_interface = theirs.iter().position(|nets| nets.iter().any(|net| net.ip() == met.peer));
    pairs.extend(place(met.own).zip(met_interface));
    for (at, address) in own.iter().enumerate() {
        if address.net.ip().is_loopback() || is_used(&pairs, at) {
            continue;
        }
        let is_free = |their: &usize| pairs.iter().all(|(_, used)| used != their);
        let leads_there = |their: &usize| leads_to(address, &theirs[*their]);
        let their = (0..theirs.len()).filter(is_free).find(leads_there);
        pairs.extend(their.map(|their| (at, their)));
    }
    if let [(_, only)] = pairs[..] {
        for (at, address) in own.iter().enumerate() {
            if !is_used(&pairs, at) && leads_to(address, &theirs[only]) {
                pairs.push((at, only));
            }
        }
    }
    // Only then: by routes that are not symmetric, the server would send from other interfaces.
    if pairs.is_empty() {
        for (their, nets) in theirs.iter().enumerate() {
            let from =
                nets.iter().filter(|net| is_foreign(net.ip())).find_map(|net| route(net.ip()));
            let at = from.and_then(place).filter(|at| !is_used(&pairs, *at));
            pairs.extend(at.map(|at| (at, their)));
        }
    }
    pairs.sort_unstable();
    pairs.truncate(MAX_DEVICES);
    pairs.into_iter().map(|(at, _)| own[at].clone()).collect()
}

/// Why the devices of a peer get no partners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unpaired {
    /// No address of this side can reach this one of the peer's.
    Unreachable(IpAddr),
    /// The place that belongs to each address of the peer: rails, which use the devices of each
    /// side in turn, would join others.
    NotInTurn(Vec<usize>),
}

/// Returns, for each address of a peer's devices, the place of the address of this side to use with
/// it; the places that occur earlier are left out, so that there may be fewer of them. The peer has
/// this number of rails, which use the devices of each side in turn.
///
/// The first choice is an address in the same network, on an interface that is not used yet, then
/// the one from which the system sends to the peer's, then the address of the control connection,
/// then the one at the same place.
pub(super) fn partners(
    own: &[LocalAddress],
    theirs: &[IpAddr],
    rails: usize,
    met: IpAddr,
    route: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Result<Vec<usize>, Unpaired> {
    let addresses = Addresses { own, theirs, met, route };
    let partners = pairing::partners(own.len(), theirs.len(), &addresses);
    let all = partners.map_err(|their| Unpaired::Unreachable(theirs[their]))?;
    in_turn(&all, rails).ok_or(Unpaired::NotInTurn(all))
}

/// The addresses of both sides.
struct Addresses<'a, R> {
    own: &'a [LocalAddress],
    theirs: &'a [IpAddr],
    /// The address of this side at which the control connection arrived.
    met: IpAddr,
    /// Returns the address from which the system sends to another one.
    route: R,
}

impl<R> Addresses<'_, R> {
    fn place(&self, ip: IpAddr) -> Option<usize> {
        self.own.iter().position(|own| own.net.ip() == ip)
    }
}

impl<R: Fn(IpAddr) -> Option<IpAddr>> Networks for Addresses<'_, R> {
    fn share_network(&self, own: usize, their: usize) -> bool {
        self.own[own].net.contains(self.theirs[their])
    }

    fn may_reach(&self, own: usize, their: usize) -> bool {
        self.own[own].net.ip().is_ipv4() == self.theirs[their].is_ipv4()
    }

    fn share_interface(&self, own: usize, other: usize) -> bool {
        self.own[own].interface == self.own[other].interface
    }

    fn is_same(&self, own: usize, their: usize) -> bool {
        self.own[own].net.ip() == self.theirs[their]
    }

    /// The peer prefers the pair of the control connection, too.
    fn preferred(&self, _: usize) -> Option<usize> {
        self.place(self.met)
    }

    fn routed(&self, their: usize) -> Option<usize> {
        let routed = (self.route)(self.theirs[their]).and_then(|ip| self.place(ip));
        routed.or_else(|| self.place(self.met).filter(|at| self.may_reach(*at, their)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail::interfaces::AddressRank;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Addresses of this host: `eth0 10.0.0.1/24`.
    fn host(addresses: &[&str]) -> Vec<LocalAddress> {
        let address = |text: &&str| {
            let (interface, net) = text.split_once(' ').unwrap();
            let net = net.parse().unwrap();
            let is_loopback = interface == "lo";
            let rank = if is_loopback { AddressRank::Loopback } else { AddressRank::Nic };
            LocalAddress { interface: interface.into(), net, rank, is_loopback }
        };
        addresses.iter().map(address).collect()
    }

    /// Addresses of a server, by interface.
    fn offer(interfaces: &[&[&str]]) -> Vec<Vec<IpNet>> {
        let nets = |nets: &&[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
        interfaces.iter().map(nets).collect()
    }

    fn chosen(own: &[&str], theirs: &[&[&str]], met: [&str; 2], route: &str) -> Vec<String> {
        let [own_ip, peer] = met.map(ip);
        let met = Met { own: own_ip, peer };
        let chosen = reaching(&host(own), &offer(theirs), met, |_| route.parse().ok());
        chosen.iter().map(|own| format!("{} {}", own.interface, own.net.ip())).collect()
    }

    const LO: &str = "lo 127.0.0.1/8";

    #[test]
    fn interfaces_that_share_a_network_are_used_each_once() {
        let own =
            ["eth0 10.0.0.1/24", "eth0 fd00::1/64", "eth1 10.0.1.1/24", "eth2 10.0.2.1/24", LO];
        let theirs: [&[&str]; 3] =
            [&["10.0.3.2/24"], &["10.0.1.2/24"], &["10.0.0.2/24", "fd00::2/64"]];
        let met = ["10.0.0.1", "10.0.0.2"];
        assert_eq!(chosen(&own, &theirs, met, ""), ["eth0 10.0.0.1", "eth1 10.0.1.1"]);
        let over_v6 = ["fd00::1", "fd00::2"];
        assert_eq!(chosen(&own, &theirs, over_v6, ""), ["eth0 fd00::1", "eth1 10.0.1.1"]);
    }

    #[test]
    fn containers_of_both_hosts_are_not_a_network_of_both() {
        let own = ["eth0 10.0.0.1/24", "docker0 172.17.0.1/16", LO];
        let theirs: [&[&str]; 2] = [&["10.0.0.2/24"], &["172.17.0.1/16"]];
        assert_eq!(chosen(&own, &theirs, ["10.0.0.1", "10.0.0.2"], ""), ["eth0 10.0.0.1"]);
        // A server in a container of this host.
        let met = ["172.17.0.1", "172.17.0.2"];
        assert_eq!(chosen(&own, &[&["172.17.0.2/16"]], met, ""), ["docker0 172.17.0.1"]);
    }

    #[test]
    fn several_interfaces_in_one_network_are_paired_one_to_one_or_all_to_one() {
        let own = ["eth0 10.0.0.1/24", "eth1 10.0.0.2/24", LO];
        let met = ["10.0.0.1", "10.0.0.4"];
        let two: [&[&str]; 2] = [&["10.0.0.3/24"], &["10.0.0.4/24"]];
        assert_eq!(chosen(&own, &two, met, ""), ["eth0 10.0.0.1", "eth1 10.0.0.2"]);
        assert_eq!(chosen(&own, &[two[1]], met, ""), ["eth0 10.0.0.1", "eth1 10.0.0.2"]);
        assert_eq!(chosen(&own[..1], &two, met, ""), ["eth0 10.0.0.1"]);
    }

    #[test]
    fn one_host_uses_the_interface_of_the_control_connection() {
        let own = ["eth0 10.0.0.1/24", "eth1 10.0.1.1/24", LO];
        let theirs: [&[&str]; 3] = [&["10.0.0.1/24"], &["10.0.1.1/24"], &["127.0.0.1/8"]];
        assert_eq!(chosen(&own, &theirs, ["127.0.0.1", "127.0.0.1"], ""), ["lo 127.0.0.1"]);
        assert_eq!(chosen(&own, &theirs, ["10.0.1.1", "10.0.1.1"], ""), ["eth1 10.0.1.1"]);
    }

    #[test]
    fn hosts_that_share_no_network_use_the_route() {
        let own = ["eth0 10.0.0.1/24", "eth1 192.0.2.1/24", LO];
        // The control connection goes to an offered address, through a router.
        let theirs: [&[&str]; 2] = [&["10.7.0.2/24"], &["10.8.0.2/24"]];
        assert_eq!(chosen(&own, &theirs, ["10.0.0.1", "10.7.0.2"], ""), ["eth0 10.0.0.1"]);
        // The server offers other interfaces than that of the control connection.
        let met = ["192.0.2.1", "198.51.100.2"];
        assert_eq!(chosen(&own, &theirs, met, "10.0.0.1"), ["eth0 10.0.0.1"]);
        assert_eq!(chosen(&own, &theirs, met, ""), [""; 0]);
        // An address of its own leads to this host, not to the server.
        assert_eq!(chosen(&own, &[&["10.0.0.1/24"]], met, "10.0.0.1"), [""; 0]);
    }

    fn paired(own: &[&str], theirs: &[&str], met: &str, route: &str) -> Vec<usize> {
        let theirs: Vec<_> = theirs.iter().map(|their| ip(their)).collect();
        let rails = theirs.len();
        partners(&host(own), &theirs, rails, ip(met), |_| route.parse().ok()).unwrap()
    }

    #[test]
    fn a_server_pairs_its_interfaces_with_those_of_the_peer() {
        let own = ["eth0 10.0.0.2/24", "eth1 10.0.1.2/24", "eth1 fd00::2/64", LO];
        assert_eq!(paired(&own, &["10.0.1.1", "10.0.0.1"], "10.0.0.2", ""), [1, 0]);
        assert_eq!(paired(&own, &["10.0.0.1", "fd00::1"], "10.0.0.2", ""), [0, 2]);
        assert_eq!(paired(&own, &["127.0.0.1"], "127.0.0.1", ""), [3]);
        assert_eq!(paired(&own, &["10.0.1.2"], "10.0.1.2", ""), [1], "a peer on this host");
        // All to one.
        assert_eq!(paired(&own, &["10.0.0.1", "10.0.0.7"], "10.0.0.2", ""), [0]);
    }

    #[test]
    fn rails_never_join_interfaces_that_are_no_pair() {
        let own = host(&["eth0 10.0.0.2/24", "eth1 10.0.1.2/24"]);
        let paired = |theirs: &[&str], rails| {
            let theirs: Vec<_> = theirs.iter().map(|their| ip(their)).collect();
            partners(&own, &theirs, rails, ip("10.0.0.2"), |_| None)
        };
        // Rail 1 would join eth1 to 10.0.0.7.
        let uneven = ["10.0.0.1", "10.0.0.7", "10.0.1.1"];
        assert_eq!(paired(&uneven, 3), Err(Unpaired::NotInTurn(vec![0, 0, 1])));
        // So would rail 3 join eth1 to 10.0.0.1.
        let short = ["10.0.0.1", "10.0.1.1", "10.0.0.7"];
        assert_eq!(paired(&short, 3), Ok(vec![0, 1]));
        assert_eq!(paired(&short, 4), Err(Unpaired::NotInTurn(vec![0, 1, 0])));
        let even = ["10.0.0.1", "10.0.1.1", "10.0.0.7", "10.0.1.7"];
        assert_eq!(paired(&even, 8), Ok(vec![0, 1]));
        assert_eq!(paired(&[], 1), Ok(vec![]));
    }

    #[test]
    fn interfaces_in_one_network_are_used_in_turn() {
        let own = ["eth0 10.0.0.3/24", "eth1 10.0.0.4/24"];
        assert_eq!(paired(&own, &["10.0.0.1", "10.0.0.2"], "10.0.0.4", ""), [1, 0]);
        assert_eq!(paired(&own, &["10.0.0.1"], "10.0.0.3", ""), [0]);
    }

    #[test]
    fn without_a_common_network_the_route_decides_and_then_the_order() {
        let own = ["eth0 10.0.0.2/24", "eth1 10.0.1.2/24"];
        assert_eq!(paired(&own, &["10.7.0.1"], "192.0.2.2", "10.0.1.2"), [1]);
        assert_eq!(paired(&own, &["10.7.0.1"], "10.0.1.2", ""), [1]);
        assert_eq!(paired(&own, &["10.7.0.1", "10.8.0.1"], "192.0.2.2", ""), [0, 1]);
        let v6 = [ip("10.7.0.1"), ip("fd00::1")];
        let unreachable = |at: usize| Err(Unpaired::Unreachable(v6[at]));
        assert_eq!(partners(&host(&own), &v6, 2, ip("192.0.2.2"), |_| None), unreachable(1));
        assert_eq!(partners(&[], &v6, 2, ip("192.0.2.2"), |_| None), unreachable(0));
    }
}
