//! Network interfaces of this host.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address with port 0; link-local IPv6 addresses have their scope.
    pub address: SocketAddr,
    /// Whether the interface is up and has carrier.
    pub is_running: bool,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
}

/// Returns all addresses of this host.
///
/// # Errors
///
/// The system refuses to list them.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let list = getifaddrs().map_err(io::Error::from)?;
    Ok(list.filter_map(|entry| address(&entry)).collect())
}

/// Returns the IP address of an entry of the system's list, if it has one.
fn address(entry: &nix::ifaddrs::InterfaceAddress) -> Option<InterfaceAddress> {
    let storage = entry.address?;
    let address = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::V4(SocketAddrV4::new(v4.ip(), 0)),
        (_, Some(v6)) => SocketAddr::V6(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id())),
        _ => return None,
    };
    let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    // The system lists an IPv4 address under its label, which may be eth0:1 (getifaddrs(3) takes it
    // from IFA_LABEL). Names of interfaces have no colon.
    let interface = entry.interface_name.split(':').next().unwrap_or_default();
    Some(InterfaceAddress {
        interface: interface.into(),
        address,
        is_running: entry.flags.contains(running),
        is_loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
    })
}

/// Whether an address belongs to this host.
pub(crate) fn is_of_this_host(ip: IpAddr) -> bool {
    ip.is_loopback() || addresses().is_ok_and(|all| all.iter().any(|own| own.address.ip() == ip))
}

/// Returns whether there is an interface of this name, with or without an address.
pub(crate) fn exists(name: &str) -> io::Result<bool> {
    Ok(getifaddrs().map_err(io::Error::from)?.any(|entry| entry.interface_name == name))
}

/// Returns the interface that has an address now: that of this name if it still has it, or another
/// one, because interfaces can be renamed. The port of the address does not matter.
///
/// # Errors
///
/// The system refuses to list them.
pub(crate) fn having(address: SocketAddr, name: &str) -> io::Result<Option<InterfaceAddress>> {
    let is_own = |own: &InterfaceAddress| match (own.address, address) {
        _ if address.ip().is_loopback() => own.is_loopback,
        // Several interfaces can have the same link-local address, each with a scope.
        (SocketAddr::V6(own), SocketAddr::V6(address)) => {
            (own.ip(), own.scope_id()) == (address.ip(), address.scope_id())
        }
        (own, address) => own.ip() == address.ip(),
    };
    Ok(addresses()?.into_iter().filter(is_own).min_by_key(|own| own.interface != name))
}

/// Finds the address of a device: of the interface of this name, or the address itself.
pub(crate) fn find(name: &str) -> io::Result<Option<InterfaceAddress>> {
    let all = addresses()?;
    if let Ok(ip) = name.parse::<IpAddr>() {
        let exact = all.iter().find(|own| own.address.ip() == ip).cloned();
        // All of 127.0.0.0/8 is of the loopback interface, which lists only one.
        let on_loopback = || {
            let lo = all.iter().find(|own| own.is_loopback)?;
            Some(InterfaceAddress { address: SocketAddr::new(ip, 0), ..lo.clone() })
        };
        let found = exact.or_else(|| if ip.is_loopback() { on_loopback() } else { None });
        return Ok(found);
    }
    let rank = |own: &&InterfaceAddress| match own.address.ip() {
        IpAddr::V4(ip) => (u8::from(ip.is_link_local()), 0),
        IpAddr::V6(ip) => (u8::from(ip.is_unicast_link_local()), 1),
    };
    Ok(all.iter().filter(|own| own.interface == name).min_by_key(rank).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_label_belongs_to_its_interface() {
        let own = SocketAddrV4::new([10, 0, 0, 1].into(), 0);
        for label in ["eth0", "eth0:1"] {
            let entry = nix::ifaddrs::InterfaceAddress {
                interface_name: label.into(),
                flags: InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING,
                address: Some(own.into()),
                netmask: None,
                broadcast: None,
                destination: None,
            };
            let read = address(&entry).unwrap();
            assert_eq!((read.interface.as_str(), read.address), ("eth0", own.into()));
            assert!(read.is_running && !read.is_loopback);
        }
    }
}
