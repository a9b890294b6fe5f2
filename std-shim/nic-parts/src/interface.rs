//! The network interfaces of this host and their addresses.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// The netmask, if the system reports one.
    pub mask: Option<IpAddr>,
    /// Index of the interface, for link-local IPv6; otherwise 0.
    pub scope_id: u32,
    /// Whether the interface is up (`IFF_UP`).
    pub is_up: bool,
    /// Whether it has carrier (`IFF_RUNNING`).
    pub has_carrier: bool,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
}

impl InterfaceAddress {
    /// Returns the address with this port.
    pub fn at(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
        }
    }
}

/// Returns whether an address is valid only on its link: `169.254.0.0/16`, `fe80::/10`.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Returns all IP addresses of this host, in the kernel's order.
///
/// # Errors
///
/// The system refuses to list them.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    Ok(getifaddrs()?.filter_map(|entry| ip_address(&entry)).collect())
}

/// Returns whether there is an interface of this name, with or without an address.
///
/// # Errors
///
/// The system refuses to list them.
pub fn exists(name: &str) -> io::Result<bool> {
    Ok(getifaddrs()?.any(|entry| interface_of(&entry.interface_name) == interface_of(name)))
}

/// Returns the interface of a name that the system lists, which is the label of an IPv4 address if
/// it has one: `eth0:1` (getifaddrs(3) takes it from IFA_LABEL). Names of interfaces have no colon.
pub fn interface_of(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// Returns the IP address of an entry of the system's list, if it has one.
fn ip_address(entry: &nix::ifaddrs::InterfaceAddress) -> Option<InterfaceAddress> {
    let (ip, scope_id) = ip_of(&entry.address?)?;
    let has = |flag| entry.flags.contains(flag);
    Some(InterfaceAddress {
        interface: interface_of(&entry.interface_name).into(),
        ip,
        mask: entry.netmask.as_ref().and_then(ip_of).map(|(mask, _)| mask),
        scope_id,
        is_up: has(InterfaceFlags::IFF_UP),
        has_carrier: has(InterfaceFlags::IFF_RUNNING),
        is_loopback: has(InterfaceFlags::IFF_LOOPBACK),
    })
}

/// Returns an address of either version of IP, with the index of its interface if it is link-local.
fn ip_of(storage: &SockaddrStorage) -> Option<(IpAddr, u32)> {
    match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(v4), _) => Some((v4.ip().into(), 0)),
        (None, Some(v6)) => Some((v6.ip().into(), v6.scope_id())),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_label_belongs_to_its_interface() {
        let entry = |name: &str| nix::ifaddrs::InterfaceAddress {
            interface_name: name.into(),
            flags: InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING,
            address: Some(SocketAddrV4::new([10, 0, 0, 1].into(), 0).into()),
            netmask: None,
            broadcast: None,
            destination: None,
        };
        for label in ["eth0", "eth0:1", "eth0:vip", "eth0:", "eth0.5:1"] {
            let interface = if label.starts_with("eth0.5") { "eth0.5" } else { "eth0" };
            let read = ip_address(&entry(label)).unwrap();
            assert_eq!(
                (read.interface.as_str(), read.ip.to_string().as_str()),
                (interface, "10.0.0.1")
            );
            assert!(read.is_up && read.has_carrier && !read.is_loopback);
            assert_eq!(read.at(7).to_string(), "10.0.0.1:7");
        }
        let none = nix::ifaddrs::InterfaceAddress { address: None, ..entry("a") };
        assert_eq!(ip_address(&none), None);
    }
}
