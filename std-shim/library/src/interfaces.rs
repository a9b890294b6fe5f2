//! The addresses at which other hosts reach this one.
//!
//! [`reachable_at`] lists them, the best first:
//!
//! | [rank](AddressRank) | addresses | reason for the rank |
//! |---|---|---|
//! | `Nic` | of NICs, bonds, VLANs, bridges with a NIC | |
//! | `Loopback` | on a loopback or dummy interface, but not of loopback: a router's or a host's `/32` | may be a service's address, which leads to a load balancer |
//! | `InnerBridge` | of bridges without a NIC, such as `docker0` | lead to containers and virtual machines of this host |
//! | `LinkLocal` | link-local: `169.254.0.0/16`, `fe80::/10` | lead to one link, which may be a management controller's |
//! | `NoCarrier` | of interfaces without carrier | lead nowhere at present |
//!
//! Within a rank, IPv4 comes before IPv6; permanent IPv6 addresses come before those that
//! expire unless they are renewed, then temporary (RFC 8981) and deprecated ones; and then the
//! kernel's order counts. IPv6 addresses that cannot be used yet, or that another host has, are
//! left out. So are addresses of loopback (`127.0.0.0/8`, `::1`) and of interfaces that are down,
//! unless an interface is named: every host has these, so a peer would reach itself.
//!
//! [`reachable`] lists the same addresses with their networks, so that two hosts can find the
//! interfaces that share one, and [`usable`] those of them that have carrier.

pub use crate::ip_net::{IpNet, IpNetError};

use polyrail_nic_parts::interface::{self, InterfaceAddress, interface_of, is_link_local};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::Path;

/// Where the kernel describes interfaces.
const SYSFS: &str = "/sys/class/net";

/// Which interfaces are considered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    /// Names or their beginnings; empty: all interfaces.
    names: Vec<String>,
    /// Whether the names are complete.
    is_exact: bool,
    /// Whether the named interfaces are left out, and all others are considered.
    excludes: bool,
}

impl InterfaceFilter {
    /// Selects all interfaces.
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects the interface of this name, even if it is a loopback. The label of an address, such
    /// as `eth0:1`, selects its interface.
    pub fn named(name: &str) -> Self {
        Self { names: vec![interface_of(name).into()], is_exact: true, excludes: false }
    }

    /// Reads the syntax of `NCCL_SOCKET_IFNAME`: `eth,ib` selects interfaces whose names begin with
    /// `eth` or `ib`, `=eth0` the one of this name, `^docker` all others, and `^=docker0` all but
    /// the one of this name. Empty text selects all.
    pub fn from_nccl(text: &str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (is_exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        // NCCL's lists may have ports, which it ignores here.
        let names = text.split(',').map(interface_of);
        let names: Vec<_> = names.filter(|name| !name.is_empty()).map(Into::into).collect();
        Self { names, is_exact, excludes }
    }

    /// Returns whether an interface is considered.
    pub fn selects(&self, interface: &str) -> bool {
        let is_it = |name: &String| match self.is_exact {
            true => interface == name,
            false => interface.starts_with(name.as_str()),
        };
        self.names.is_empty() || self.names.iter().any(is_it) != self.excludes
    }

    /// Returns whether interfaces are selected by name.
    fn names_some(&self) -> bool {
        !self.names.is_empty() && !self.excludes
    }
}

/// The syntax of [`from_nccl`](InterfaceFilter::from_nccl).
impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = |is_there, sign| if is_there { sign } else { "" };
        let (excludes, is_exact) = (sign(self.excludes, "^"), sign(self.is_exact, "="));
        write!(f, "{excludes}{is_exact}{}", self.names.join(","))
    }
}

/// The addresses of this host cannot be listed, or there are none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The system refused.
    #[error("cannot list the addresses of this host")]
    List(#[source] io::Error),
    /// Other hosts cannot reach this one.
    #[error(
        "no network interface of this host has an address at which other hosts could reach it; \
         for peers on this host, name the interface lo"
    )]
    Unreachable,
    /// The named interfaces do not exist, or have no address.
    #[error("{filter} selects no network interface with an address; this host has {}", known.join(", "))]
    NotSelected {
        /// What was to be selected.
        filter: InterfaceFilter,
        /// Names of the interfaces that have an address.
        known: Vec<String>,
    },
}

/// How well an address of this host suits other hosts, by the [module's](self) table. The best rank
/// is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressRank {
    /// Of a NIC, a bond, a VLAN, or a bridge with a NIC.
    Nic,
    /// Of a loopback or dummy interface.
    Loopback,
    /// Of a bridge without a NIC.
    InnerBridge,
    /// Valid only on one link.
    LinkLocal,
    /// Of an interface without carrier.
    NoCarrier,
}

/// An address at which others may reach this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Name of its interface.
    pub interface: String,
    /// The address and its network.
    pub net: IpNet,
    /// How well it suits other hosts.
    pub rank: AddressRank,
    /// Whether its interface is a loopback interface.
    pub is_loopback: bool,
}

impl LocalAddress {
    /// Returns whether its interface has carrier.
    pub fn has_carrier(&self) -> bool {
        self.rank != AddressRank::NoCarrier
    }

    /// Returns whether the address is valid only on its link: `169.254.0.0/16`, `fe80::/10`. Every
    /// link has these networks, so two hosts that have one need not share a link.
    pub fn is_link_local(&self) -> bool {
        is_link_local(self.net.ip())
    }
}

/// An address of this host that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    own: InterfaceAddress,
    /// Whether its interface is a bridge without a NIC.
    is_inner_bridge: bool,
    /// Whether its interface discards all that is sent by it.
    is_dummy: bool,
}

impl Deref for Candidate {
    type Target = InterfaceAddress;

    fn deref(&self) -> &InterfaceAddress {
        &self.own
    }
}

impl Candidate {
    fn rank(&self) -> AddressRank {
        match () {
            () if !self.is_up || !self.has_carrier => AddressRank::NoCarrier,
            () if is_link_local(self.ip) => AddressRank::LinkLocal,
            () if self.is_inner_bridge => AddressRank::InnerBridge,
            () if self.is_loopback || self.is_dummy => AddressRank::Loopback,
            () => AddressRank::Nic,
        }
    }

    fn in_network(&self) -> LocalAddress {
        LocalAddress {
            interface: self.interface.clone(),
            net: self.mask.map_or(self.ip.into(), |mask| IpNet::with_mask(self.ip, mask)),
            rank: self.rank(),
            is_loopback: self.is_loopback,
        }
    }
}

/// Returns the addresses at which other hosts reach a listener at `port` on all addresses of this
/// host, the best first. Not empty.
///
/// # Errors
///
/// The system refuses to list interfaces, or no address is left.
pub fn reachable_at(
    port: u16,
    filter: &InterfaceFilter,
) -> Result<Vec<SocketAddr>, InterfaceError> {
    chosen(filter, |address| address.at(port))
}

/// Returns the addresses of [`reachable_at`] with their interfaces and networks, the best first.
/// Not empty.
///
/// # Errors
///
/// As [`reachable_at`].
pub fn reachable(filter: &InterfaceFilter) -> Result<Vec<LocalAddress>, InterfaceError> {
    chosen(filter, Candidate::in_network)
}

/// Returns the addresses of [`reachable`] whose interfaces have carrier, the best first; none if
/// the host has no such address.
///
/// # Errors
///
/// The system refuses to list interfaces.
pub fn usable() -> Result<Vec<LocalAddress>, InterfaceError> {
    let mut usable = match reachable(&InterfaceFilter::all()) {
        Err(InterfaceError::Unreachable) => Vec::new(),
        found => found?,
    };
    usable.retain(LocalAddress::has_carrier);
    Ok(usable)
}

fn chosen<T>(
    filter: &InterfaceFilter,
    as_known: impl Fn(&Candidate) -> T,
) -> Result<Vec<T>, InterfaceError> {
    let all = candidates().map_err(InterfaceError::List)?;
    let chosen = choose(&all, filter);
    if !chosen.is_empty() {
        return Ok(chosen.into_iter().map(as_known).collect());
    }
    if *filter == InterfaceFilter::all() {
        return Err(InterfaceError::Unreachable);
    }
    let mut known: Vec<_> = all.into_iter().map(|address| address.own.interface).collect();
    known.sort();
    known.dedup();
    Err(InterfaceError::NotSelected { filter: filter.clone(), known })
}

/// Returns whether an interface of this host has an address.
#[cfg(feature = "verbs")]
pub(crate) fn has_address(interface: &str, ip: IpAddr) -> bool {
    // Without the list, the address is unknown.
    interface::addresses()
        .is_ok_and(|all| all.iter().any(|a| a.interface == interface && a.ip == ip))
}

/// All addresses of this host; none if the system does not list them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThisHost(Vec<LocalAddress>);

impl ThisHost {
    /// Lists the addresses.
    pub(crate) fn now() -> Self {
        Self(all().unwrap_or_default())
    }

    /// Returns whether this host has an address. Without the list, it may have any address.
    pub(crate) fn may_have(&self, ip: IpAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|own| own.net.ip() == ip)
    }

    /// Returns the network of an address of this host; `None` if it is unknown, or only a link.
    pub(crate) fn network(&self, ip: IpAddr) -> Option<IpNet> {
        let listed = self.0.iter().find(|own| own.net.ip() == ip);
        // All addresses of 127.0.0.0/8 are this host's, and usually one is listed.
        let in_loopback = || self.0.iter().find(|own| ip.is_loopback() && own.net.contains(ip));
        let own = listed.or_else(in_loopback).filter(|own| !own.is_link_local())?;
        IpNet::new(ip, own.net.prefix())
    }
}

#[cfg(test)]
impl From<Vec<LocalAddress>> for ThisHost {
    fn from(all: Vec<LocalAddress>) -> Self {
        Self(all)
    }
}

/// Returns the addresses that other hosts may use, the best first.
fn choose<'a>(addresses: &'a [Candidate], filter: &InterfaceFilter) -> Vec<&'a Candidate> {
    let is_usable = |address: &&Candidate| {
        let is_named = filter.names_some();
        filter.selects(&address.interface)
            && (is_named || address.is_up && !address.ip.is_loopback())
            && !address.ip.is_unspecified()
    };
    let mut chosen: Vec<_> = addresses.iter().filter(is_usable).collect();
    chosen.sort_by_key(|address| (address.rank(), address.ip.is_ipv6()));
    chosen
}

/// Returns all addresses of this host with their networks, in the order of
/// [`interface::addresses`].
pub(crate) fn all() -> Result<Vec<LocalAddress>, InterfaceError> {
    let all = candidates().map_err(InterfaceError::List)?;
    Ok(all.iter().map(Candidate::in_network).collect())
}

/// Returns all IP addresses of this host, in the order of [`interface::addresses`].
fn candidates() -> io::Result<Vec<Candidate>> {
    // Asked once for each interface: one may have thousands of addresses.
    let mut kinds = BTreeMap::new();
    let candidate = |own: InterfaceAddress| -> io::Result<Candidate> {
        let (is_inner_bridge, is_dummy) = match kinds.get(&own.interface) {
            Some(known) => *known,
            None => {
                let is_inner_bridge = is_inner_bridge(Path::new(SYSFS), &own.interface);
                let found = (is_inner_bridge, interface::is_dummy(&own.interface)?);
                kinds.insert(own.interface.clone(), found);
                found
            }
        };
        Ok(Candidate { own, is_inner_bridge, is_dummy })
    };
    interface::addresses()?.into_iter().map(candidate).collect()
}

/// Returns whether an interface is a bridge none of whose ports is a NIC, or leads to one.
fn is_inner_bridge(net: &Path, interface: &str) -> bool {
    // Not a bridge, or sysfs is not there.
    let Ok(ports) = fs::read_dir(net.join(interface).join("brif")) else { return false };
    let mut names = ports.flatten().map(|port| port.file_name());
    !names.any(|port| leads_to_nic(&net.join(port)))
}

/// Returns whether an interface, by its directory in sysfs, belongs to a device, as NICs do, or is
/// above other interfaces, as bonds and VLANs are. Interfaces of containers and virtual machines
/// (veth, tap) are neither.
fn leads_to_nic(interface: &Path) -> bool {
    let is_above_others = || {
        fs::read_dir(interface).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"lower_"))
            })
        })
    };
    interface.join("device").exists() || is_above_others()
}

#[cfg(test)]
mod rt_tests {
    use super::*;

    /// An address of an interface that is up and has carrier.
    fn address(interface: &str, ip: &str) -> Candidate {
        let ip: IpAddr = ip.parse().unwrap();
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let own = InterfaceAddress {
            interface: interface.into(),
            ip,
            mask: None,
            scope_id: if is_link_local { 7 } else { 0 },
            is_up: true,
            has_carrier: true,
            is_loopback: interface == "lo",
        };
        let (is_inner_bridge, is_dummy) = (interface == "docker0", interface == "dummy0");
        Candidate { own, is_inner_bridge, is_dummy }
    }

    fn shown(addresses: &[Candidate], filter: &InterfaceFilter) -> Vec<String> {
        let chosen = choose(addresses, filter);
        chosen.into_iter().map(|address| address.at(1).to_string()).collect()
    }

    fn lo() -> [Candidate; 2] {
        [address("lo", "127.0.0.1"), address("lo", "::1")]
    }

    #[test]
    fn both_versions_of_ip_are_there_and_loopback_is_not() {
        let [v4, v6] = lo();
        let host = [
            v4,
            address("eth0", "10.0.0.1"),
            v6,
            address("eth0", "2001:db8::1"),
            address("eth0", "fe80::1"),
        ];
        let all = ["10.0.0.1:1", "[2001:db8::1]:1", "[fe80::1%7]:1"];
        assert_eq!(shown(&host, &InterfaceFilter::all()), all);
        assert_eq!(shown(&lo(), &InterfaceFilter::all()), [""; 0]);
        let named = InterfaceFilter::named("lo");
        assert_eq!(shown(&lo(), &named), ["127.0.0.1:1", "[::1]:1"]);
    }

    #[test]
    fn an_address_of_a_bmc_or_of_containers_is_last() {
        let no_cable = |name, ip| {
            let candidate = address(name, ip);
            let own = InterfaceAddress { has_carrier: false, ..candidate.own };
            Candidate { own, ..candidate }
        };
        let down = address("eth1", "10.0.1.1");
        let down = Candidate { own: InterfaceAddress { is_up: false, ..down.own }, ..down };
        let host = [
            address("usb0", "169.254.3.1"),
            address("docker0", "172.17.0.1"),
            no_cable("eth0", "10.0.0.1"),
            down,
            address("bond0", "10.0.2.1"),
            address("br0", "10.0.3.1"),
        ];
        let all = ["10.0.2.1:1", "10.0.3.1:1", "172.17.0.1:1", "169.254.3.1:1", "10.0.0.1:1"];
        assert_eq!(shown(&host, &InterfaceFilter::all()), all);
    }

    #[test]
    fn a_host_whose_address_is_on_lo_is_reached_there() {
        let [v4, v6] = lo();
        let host = [v4, address("lo", "10.0.0.5"), v6, address("eth0", "fe80::1")];
        assert_eq!(shown(&host, &InterfaceFilter::all()), ["10.0.0.5:1", "[fe80::1%7]:1"]);
        // The address of a service behind a load balancer is there, too.
        for interface in ["lo", "dummy0"] {
            let host = [address(interface, "10.0.0.5"), address("eth0", "10.1.0.1")];
            assert_eq!(shown(&host, &InterfaceFilter::all()), ["10.1.0.1:1", "10.0.0.5:1"]);
        }
    }

    #[test]
    fn nccls_syntax_is_nccls() {
        let host = [
            address("lo", "127.0.0.1"),
            address("eth0", "10.0.0.1"),
            address("eth1", "10.0.1.1"),
            address("eth10", "10.0.10.1"),
            address("ib0", "10.0.2.1"),
        ];
        let with = |text| shown(&host, &InterfaceFilter::from_nccl(text)).join(" ");
        assert_eq!(with("ib"), "10.0.2.1:1");
        assert_eq!(with("eth1"), "10.0.1.1:1 10.0.10.1:1");
        assert_eq!(with("=eth1"), "10.0.1.1:1");
        assert_eq!(with("=eth1,ib0"), "10.0.1.1:1 10.0.2.1:1");
        assert_eq!(with("^eth"), "10.0.2.1:1", "loopback is not named");
        assert_eq!(with("^=eth1"), "10.0.0.1:1 10.0.10.1:1 10.0.2.1:1");
        assert_eq!(with("lo"), "127.0.0.1:1");
        assert_eq!(with("ib0:1"), "10.0.2.1:1");
        assert_eq!(with("mlx"), "");
        assert_eq!(InterfaceFilter::from_nccl(""), InterfaceFilter::all());
    }

    #[test]
    fn the_label_of_an_address_selects_its_interface() {
        let own = [address("eth0", "10.0.0.1")];
        for name in ["eth0", "eth0:1", "eth0:vip"] {
            assert_eq!(shown(&own, &InterfaceFilter::named(name)), ["10.0.0.1:1"], "{name}");
        }
    }

    #[test]
    fn this_host_has_a_loopback() {
        let at = reachable_at(7471, &InterfaceFilter::named("lo")).unwrap();
        assert!(at.contains(&"127.0.0.1:7471".parse().unwrap()), "{at:?}");
        let error = reachable_at(7471, &InterfaceFilter::named("no such")).unwrap_err();
        assert!(
            matches!(&error, InterfaceError::NotSelected { known, .. } if known.contains(&"lo".into()))
        );
        let words = error.to_string();
        assert!(words.starts_with("=no such selects no network interface"), "{words}");
        for text in ["eth,ib0", "=eth0", "^docker", "^=docker0,br0"] {
            assert_eq!(InterfaceFilter::from_nccl(text).to_string(), text);
        }
    }

    #[test]
    fn addresses_have_their_networks() {
        let lo = reachable(&InterfaceFilter::named("lo")).unwrap();
        let loopback = lo.iter().find(|own| own.net.ip() == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert_eq!((loopback.interface.as_str(), loopback.net.prefix()), ("lo", 8));
        assert!(loopback.has_carrier() && loopback.is_loopback && !loopback.is_link_local());
        assert!(
            usable().unwrap().iter().all(|own| own.has_carrier() && !own.net.ip().is_loopback())
        );
        let without_mask = address("eth0", "fe80::1").in_network();
        assert_eq!(without_mask.net.to_string(), "fe80::1/128");
        assert!(without_mask.is_link_local());
    }

    #[test]
    fn a_bridge_is_judged_by_its_ports() {
        let net = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(net.path().join(path)).unwrap();
        // A NIC, a bond of it, and the ends of a container's and a virtual machine's interfaces.
        ["eth0/device", "bond0/lower_eth0", "veth1/queues", "tap1/queues"]
            .iter()
            .for_each(|path| make(path));
        let is_inner = |bridge: &str, ports: &[&str]| {
            make(&format!("{bridge}/brif"));
            ports.iter().for_each(|port| make(&format!("{bridge}/brif/{port}")));
            is_inner_bridge(net.path(), bridge)
        };
        assert!(is_inner("docker0", &["veth1"]) && is_inner("virbr0", &["tap1"]));
        assert!(is_inner("docker1", &[]));
        assert!(!is_inner("br0", &["veth1", "eth0"]) && !is_inner("br1", &["bond0", "tap1"]));
        assert!(!is_inner_bridge(net.path(), "eth0") && !is_inner_bridge(net.path(), "none"));
    }
}
