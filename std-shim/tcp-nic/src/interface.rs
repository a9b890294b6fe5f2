//! The network interface of a device.

use polyrail_nic_parts::interface::{InterfaceAddress, addresses, interface_of, is_link_local};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Returns whether an address belongs to this host.
///
/// # Errors
///
/// The system refuses to list addresses.
pub(crate) fn is_of_this_host(ip: IpAddr) -> io::Result<bool> {
    Ok(ip.is_loopback() || addresses()?.iter().any(|own| own.ip == ip))
}

/// Returns the interface that has an address now: that of this name if it still has it, or another
/// one, because interfaces can be renamed. The port of the address does not matter.
///
/// # Errors
///
/// The system refuses to list them.
pub(crate) fn having(address: SocketAddr, name: &str) -> io::Result<Option<InterfaceAddress>> {
    let is_own = |own: &InterfaceAddress| match (own.at(0), address) {
        _ if address.ip().is_loopback() => own.is_loopback,
        // Several interfaces can have the same link-local address, each with a scope.
        (SocketAddr::V6(own), SocketAddr::V6(address)) => {
            (own.ip(), own.scope_id()) == (address.ip(), address.scope_id())
        }
        (own, address) => own.ip() == address.ip(),
    };
    Ok(addresses()?.into_iter().filter(is_own).min_by_key(|own| own.interface != name))
}

/// Finds the address of a device: of the interface of this name, or the address itself. The label of
/// an address (`eth0:1`) names its interface.
pub(crate) fn find(name: &str) -> io::Result<Option<InterfaceAddress>> {
    let all = addresses()?;
    let interface = interface_of(name);
    if let Ok(ip) = name.parse::<IpAddr>() {
        let exact = all.iter().find(|own| own.ip == ip).cloned();
        // All of 127.0.0.0/8 is of the loopback interface, which lists only one.
        let on_loopback = || {
            let lo = all.iter().find(|own| own.is_loopback)?;
            Some(InterfaceAddress { ip, ..lo.clone() })
        };
        let found = exact.or_else(|| if ip.is_loopback() { on_loopback() } else { None });
        return Ok(found);
    }
    let rank = |own: &&InterfaceAddress| (is_link_local(own.ip), own.ip.is_ipv6());
    Ok(all.iter().filter(|own| own.interface == interface).min_by_key(rank).cloned())
}
