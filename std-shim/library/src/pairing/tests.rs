use super::*;
use crate::backend::{Meeting, MeetingKey, Mtu};
use crate::interfaces::{AddressRank, LocalAddress};
use crate::queue_pair::Apart;
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::net::IpAddr;

fn gid(ip: &str) -> Gid {
    let ip: IpAddr = ip.parse().unwrap();
    Gid(match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    })
}

/// The port of an IP address.
fn port(ip: &str, is_tcp: bool) -> PortAddress {
    PortAddress { gid: gid(ip), lid: 0, is_tcp }
}

/// A port of an InfiniBand subnet.
fn infiniband(prefix: u16, lid: u16) -> PortAddress {
    PortAddress { gid: gid(&format!("fec0:0:0:{prefix}::{lid}")), lid, is_tcp: false }
}

fn local(nets: &[&str]) -> Vec<LocalAddress> {
    let address = |net: &&str| {
        let net: IpNet = net.parse().unwrap();
        let is_loopback = net.ip().is_loopback();
        LocalAddress { interface: "any".into(), net, rank: AddressRank::Nic, is_loopback }
    };
    nets.iter().map(address).collect()
}

/// Pairs devices over TCP at these addresses. `own` are addresses with their networks.
fn ordered(own: &[&str], theirs: &[&str], rails: usize) -> Result<Vec<usize>, PairingError> {
    let local = local(own);
    let host = ThisHost::from(local.clone());
    let device = |own: &LocalAddress| {
        let address = port(&own.net.ip().to_string(), true);
        let network = network(&address, &host);
        Own { name: own.net.to_string(), address: Some(address), network }
    };
    let own = local.iter().map(device).collect();
    let theirs = theirs.iter().map(|ip| port(ip, true)).collect();
    Hosts { own, theirs, host: &host }.order(rails)
}

#[test]
fn devices_are_in_the_order_of_the_peers_networks() {
    let own = ["10.0.2.1/24", "10.0.1.1/24", "fd00::1/64"];
    for (theirs, expected) in [
        (vec!["10.0.1.2", "10.0.2.2"], vec![1, 0]),
        (vec!["10.0.2.2", "10.0.1.2"], vec![0, 1]),
        (vec!["fd00::2", "10.0.2.2", "10.0.1.2"], vec![2, 0, 1]),
        (vec!["10.0.1.2"], vec![1]),
        // A router leads to the second one, so it gets a device that is left.
        (vec!["10.0.1.2", "10.9.9.9"], vec![1, 0]),
        (vec!["10.9.9.9", "10.0.2.2"], vec![1, 0]),
    ] {
        assert_eq!(ordered(&own, &theirs, theirs.len()).unwrap(), expected, "{theirs:?}");
    }
}

#[test]
fn in_one_network_the_order_counts() {
    let own = ["10.0.0.1/16", "10.0.0.2/16", "10.0.0.3/16", "10.0.0.4/16"];
    let theirs = ["10.0.1.9", "10.0.1.2", "10.0.1.4", "10.0.1.3"];
    assert_eq!(ordered(&own, &theirs, 4).unwrap(), [0, 1, 2, 3]);
    // More devices here: those of the same networks follow in whole rounds.
    assert_eq!(ordered(&own, &theirs[..2], 4).unwrap(), [0, 1, 2, 3]);
    assert_eq!(ordered(&own[..3], &theirs[..2], 4).unwrap(), [0, 1]);
    assert_eq!(ordered(&own[..3], &theirs[..1], 4).unwrap(), [0, 1, 2]);
    // Fewer here.
    assert_eq!(ordered(&own[..1], &theirs, 4).unwrap(), [0]);
}

#[test]
fn without_a_common_network_the_order_stays() {
    let own = ["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24"];
    assert_eq!(ordered(&own, &["10.7.0.1", "10.8.0.1"], 4).unwrap(), [0, 1, 2]);
    // Versions of IP do not meet, whatever the order.
    let both = ["fd00::1/64", "10.0.1.1/24"];
    assert_eq!(ordered(&both, &["10.7.0.1", "fd07::1"], 2).unwrap(), [1, 0]);
    let unreachable = ordered(&own[..2], &["10.7.0.1", "fd07::1"], 2).unwrap_err();
    assert_eq!(
        unreachable.to_string(),
        "no device here can reach the peer's device at fd07::1: \
         10.0.0.1/24 at ::ffff:10.0.0.1, 10.0.1.1/24 at ::ffff:10.0.1.1"
    );
}

#[test]
fn loopback_reaches_this_host_only() {
    let lo = ["127.0.0.1/8"];
    assert_eq!(ordered(&lo, &["127.0.0.5"], 1).unwrap(), [0]);
    let words = ordered(&lo, &["10.0.0.9"], 1).unwrap_err().to_string();
    assert!(words.contains("::ffff:10.0.0.9: 127.0.0.1/8 at ::ffff:127.0.0.1"), "{words}");
    // The peer's address is one of this host.
    let own = ["127.0.0.1/8", "10.0.0.9/24"];
    assert_eq!(ordered(&own, &["10.0.0.9"], 1).unwrap(), [1]);
    assert_eq!(ordered(&own, &["10.0.0.9", "127.0.0.1"], 2).unwrap(), [1, 0]);
}

#[test]
fn rails_never_join_devices_that_are_no_pair() {
    let own = ["10.0.0.1/24", "10.0.1.1/24"];
    // Rail 1 would join 10.0.1.1 to 10.0.0.7.
    let uneven = ordered(&own, &["10.0.0.2", "10.0.0.7", "10.0.1.2"], 3).unwrap_err();
    assert_eq!(
        uneven.to_string(),
        "rails use devices in turn, but the devices here that reach the peer's are, in this order: \
         10.0.0.1/24 at ::ffff:10.0.0.1, 10.0.0.1/24 at ::ffff:10.0.0.1, \
         10.0.1.1/24 at ::ffff:10.0.1.1"
    );
    assert_eq!(ordered(&own, &["10.0.0.2", "10.0.1.2", "10.0.0.7"], 3).unwrap(), [0, 1]);
}

#[test]
fn infiniband_is_paired_by_the_prefix_of_its_subnet() {
    let host = ThisHost::default();
    let device = |address: PortAddress| Own {
        name: "ib".into(),
        address: Some(address),
        network: network(&address, &host),
    };
    let own = vec![device(infiniband(1, 5)), device(infiniband(2, 6))];
    let hosts = Hosts { own, theirs: vec![infiniband(2, 7), infiniband(1, 8)], host: &host };
    assert_eq!(hosts.order(2).unwrap(), [1, 0]);
    let ethernet = Hosts { theirs: vec![port("fec0:0:0:1::9", false)], ..hosts };
    assert!(matches!(ethernet.order(1), Err(PairingError::Unreachable { .. })));
}

/// The one rule for pairs and for connecting.
#[test]
fn ports_of_one_backend_link_layer_and_version_of_ip_reach_each_other() {
    let (tcp, v4, v6) = (port("10.0.0.1", true), port("10.0.0.1", false), port("fd00::1", false));
    let (lo, link) = (port("127.0.0.1", true), port("fe80::1", false));
    let elsewhere = |_: IpAddr| false;
    for (own, peer, apart) in [
        (tcp, tcp, None),
        (tcp, v4, Some(Apart::Backends { here_is_tcp: true })),
        (v4, tcp, Some(Apart::Backends { here_is_tcp: false })),
        (v4, v4, None),
        (v4, v6, Some(Apart::Gids)),
        (v6, link, None),
        (infiniband(1, 5), infiniband(2, 6), None),
        // A port with a LID and one without have different link layers, whatever their GIDs.
        (infiniband(1, 5), v6, Some(Apart::LinkLayers { here_is_infiniband: true })),
        (v4, infiniband(1, 5), Some(Apart::LinkLayers { here_is_infiniband: false })),
        (lo, lo, None),
        (tcp, lo, None),
        (lo, tcp, Some(Apart::Loopback)),
    ] {
        assert_eq!(own.apart(&peer, elsewhere), apart, "{own:?}, {peer:?}");
        let meets = matches!(apart, None | Some(Apart::Loopback));
        assert_eq!(own.meets(&peer), meets, "{own:?}, {peer:?}");
    }
    assert_eq!(lo.apart(&tcp, |ip| ip == tcp.ip()), None, "an address of this host");
}

#[test]
fn without_the_list_of_addresses_any_may_be_of_this_host() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert!(ThisHost::default().may_have(ip("192.0.2.1")));
    assert_eq!(ThisHost::default().network(ip("192.0.2.1")), None);
    let host = ThisHost::from(local(&["10.0.0.1/24", "169.254.0.1/16", "127.0.0.1/8"]));
    assert!(host.may_have(ip("10.0.0.1")) && !host.may_have(ip("10.0.0.2")));
    assert_eq!(host.network(ip("10.0.0.1")), "10.0.0.1/24".parse().ok());
    assert_eq!(host.network(ip("127.0.0.9")), "127.0.0.9/8".parse().ok());
    assert_eq!(host.network(ip("169.254.0.1")), None, "every link has this network");
}

#[test]
fn a_device_without_an_address_is_named_as_such() {
    let host = ThisHost::from(local(&["10.0.0.1/24"]));
    let address = port("10.0.0.1", false);
    let device = |name: &str, address: Option<PortAddress>| Own {
        name: name.into(),
        address,
        network: address.and_then(|address| network(&address, &host)),
    };
    let own = vec![device("mlx5_0", None), device("mlx5_1", Some(address))];
    let theirs = ["10.0.0.2", "10.0.0.3", "fd00::1"].map(|ip| port(ip, false)).to_vec();
    let error = Hosts { own, theirs, host: &host }.order(3).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rails use devices in turn, but the devices here that reach the peer's are, in this order: \
         mlx5_1 at ::ffff:10.0.0.1, mlx5_1 at ::ffff:10.0.0.1, mlx5_0 (no address)"
    );
}

#[test]
fn a_peer_without_rails_is_refused() {
    for own in [&["10.0.0.1/24"][..], &[]] {
        assert_eq!(ordered(own, &[], 0), Err(PairingError::NoRails));
    }
}

#[test]
fn only_devices_of_one_backend_are_a_pair() {
    let nic = ThisHost::from(local(&["10.0.0.1/24"]));
    // An RDMA device and its network interface have the same address.
    let device = |is_tcp| {
        let address = port("10.0.0.1", is_tcp);
        Own { name: "nic".into(), address: Some(address), network: network(&address, &nic) }
    };
    let theirs = |is_tcp| port("10.0.0.2", is_tcp);
    let own = vec![device(true), device(false)];
    let hosts = Hosts { own, theirs: vec![theirs(false), theirs(true)], host: &nic };
    assert_eq!(hosts.order(2).unwrap(), [1, 0]);
}

fn rail(device: u8) -> RailAddress {
    let meeting = Some(Meeting { port: 1, key: MeetingKey([0; 16]) });
    let gid = gid(&format!("10.0.{device}.1"));
    RailAddress { device, gid, lid: 0, mtu: Mtu::Mtu1024, psn: 0, rd_atomic: 1, meeting }
}

#[test]
fn the_turn_of_a_peer_is_read_from_its_rails() {
    for (rails, length) in [
        (vec![0, 1, 2, 0, 1, 2, 0], 3),
        (vec![1, 0, 1, 0], 2),
        (vec![0, 0, 0], 1),
        (vec![0, 1, 0, 0], 3),
        (vec![3, 2, 1], 3),
        (vec![], 0),
    ] {
        let rails: Vec<_> = rails.into_iter().map(rail).collect();
        assert_eq!(turn(&rails).len(), length, "{length} of {}", rails.len());
    }
}

/// Two hosts whose devices are in few networks.
#[derive(Clone, Debug)]
struct Drawn {
    own: Vec<u8>,
    theirs: Vec<u8>,
}

impl Arbitrary for Drawn {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut host = |least: usize| {
            let devices = least + usize::arbitrary(g) % (9 - least);
            (0..devices).map(|_| u8::arbitrary(g) % 4).collect()
        };
        Self { own: host(1), theirs: host(0) }
    }
}

impl Networks for Drawn {
    fn share_network(&self, own: usize, their: usize) -> bool {
        self.own[own] == self.theirs[their]
    }

    fn may_reach(&self, _: usize, _: usize) -> bool {
        true
    }

    fn is_same(&self, _: usize, _: usize) -> bool {
        false
    }
}

/// Whatever the networks: a device of the peer gets one of its network if there is one, as many
/// different ones as there are, and within a network the order counts.
#[test]
fn as_many_pairs_as_possible_are_in_one_network() {
    fn paired(hosts: Drawn) -> bool {
        let Drawn { own, theirs } = &hosts;
        let partners = partners(own.len(), theirs.len(), &hosts).unwrap();
        (0..4).all(|network| {
            let is_here = |devices: &[u8]| devices.iter().filter(|of| **of == network).count();
            let pairs = theirs.iter().zip(&partners).filter(|(of, _)| **of == network);
            let mut used: Vec<usize> = pairs.map(|(_, at)| *at).collect();
            let in_network = used.iter().all(|at| own[*at] == network) || is_here(own) == 0;
            let first = &used[..is_here(own).min(used.len())];
            let in_order = is_here(own) == 0 || first.is_sorted();
            used.sort_unstable();
            used.dedup();
            let different = is_here(own) == 0 || used.len() == is_here(own).min(is_here(theirs));
            in_network && in_order && different
        })
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(2000)
        .quickcheck(paired as fn(Drawn) -> bool);
}

fn texts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// A rail never joins devices of different networks if both ends have a device of each network of
/// the other. Devices are refused only if no order of them lets rails join the pairs in turn.
#[test]
fn rails_stay_in_their_networks() {
    const RAILS: usize = 8;
    fn paired(hosts: Drawn) -> bool {
        let net = |(at, network): (usize, &u8)| format!("10.0.{network}.{}/24", at + 1);
        let own: Vec<String> = hosts.own.iter().enumerate().map(net).collect();
        let ip = |(at, network): (usize, &u8)| format!("10.0.{network}.{}", at + 101);
        let theirs: Vec<String> = hosts.theirs.iter().enumerate().map(ip).collect();
        let rails = if theirs.is_empty() { 0 } else { RAILS };
        let pairs = partners(own.len(), theirs.len(), &hosts).unwrap();
        let devices = pairs.iter().collect::<std::collections::BTreeSet<_>>().len();
        // Whatever the order, rail `devices` uses the device of rail 0 again.
        let is_in_turn = (0..rails).all(|rail| pairs[rail % theirs.len()] == pairs[rail % devices]);
        let is_routed = !hosts.theirs.iter().any(|their| hosts.own.contains(their));
        match ordered(&texts(&own), &texts(&theirs), rails) {
            Ok(order) => {
                (is_in_turn || is_routed)
                    && (0..rails).all(|rail| {
                        let their = hosts.theirs[rail % theirs.len()];
                        let here = hosts.own[order[rail % order.len()]];
                        here == their || !hosts.own.contains(&their)
                    })
            }
            Err(PairingError::NotInTurn { own: named }) => {
                let names = named.iter().map(|(name, _)| name);
                !is_in_turn && !is_routed && names.eq(pairs.iter().map(|at| &own[*at]))
            }
            Err(PairingError::NoRails) => theirs.is_empty(),
            Err(PairingError::Unreachable { .. }) => false,
        }
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(2000)
        .quickcheck(paired as fn(Drawn) -> bool);
}
