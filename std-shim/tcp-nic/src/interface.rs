//! The network interface of a device.

use crate::shared::DeviceShared;
use polyrail_nic_parts::interface::{
    InterfaceAddress, addresses, index_of, interface_of, is_dummy, is_link_local, name_of,
};
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

/// Returns the interfaces by which a device reaches its peers now, the best first. They have its
/// address; the port of the address does not matter. The best one has carrier, and is the one where
/// the device was opened, perhaps with another name now, if that still has the address. Otherwise
/// it is another one, because hosts can have one address on several links. Loopback and dummy
/// interfaces, which always have carrier, are left out unless the device was opened there, and so
/// are other interfaces with the same link-local address, which lead elsewhere.
///
/// # Errors
///
/// The system refuses to list them, or has no descriptor left to ask for their kind.
pub(crate) fn places(device: &DeviceShared) -> io::Result<Vec<InterfaceAddress>> {
    let is_own = |own: &InterfaceAddress| match (own.at(0), device.address) {
        _ if device.address.ip().is_loopback() => own.is_loopback,
        // Several interfaces can have the same link-local address, each with a scope.
        (SocketAddr::V6(own), SocketAddr::V6(address)) => {
            (own.ip(), own.scope_id()) == (address.ip(), address.scope_id())
        }
        (own, address) => own.ip() == address.ip(),
    };
    // An interface that was deleted may be made again, with its name and another index.
    let home = device.index.and_then(name_of).unwrap_or_else(|| device.interface.clone());
    let is_home = |own: &InterfaceAddress| own.interface == home;
    let only_home = is_link_local(device.address.ip());
    let mut places = Vec::new();
    for own in addresses()?.into_iter().filter(is_own) {
        let is_place = match is_home(&own) {
            true => true,
            false => !only_home && (!device.leads_to_others || leads_to_others(&own)?),
        };
        if is_place {
            places.push(own);
        }
    }
    places.sort_by_key(|own| (!has_carrier(own), !is_home(own)));
    Ok(places)
}

/// Returns whether an interface is up and has carrier.
pub(crate) const fn has_carrier(own: &InterfaceAddress) -> bool {
    own.is_up && own.has_carrier
}

/// Returns whether packets to other hosts can leave by an interface. By loopback and dummy
/// interfaces, where hosts have addresses that belong to no link, they cannot.
///
/// # Errors
///
/// The system has no descriptor left to ask for the kind of the interface.
pub(crate) fn leads_to_others(own: &InterfaceAddress) -> io::Result<bool> {
    Ok(!own.is_loopback && !is_dummy(&own.interface)?)
}

/// Finds the address of a device: of the interface of this name, or the address itself, perhaps
/// with its interface (`fe80::1%eth0`). Without that, a link-local address may be one of several
/// interfaces; another address is the same wherever it is, and its device is that of a link. The
/// label of an address (`eth0:1`) names its interface.
pub(crate) fn find(name: &str) -> io::Result<Vec<InterfaceAddress>> {
    let all = addresses()?;
    let (address, zone) = match name.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (name, None),
    };
    let Ok(ip) = address.parse::<IpAddr>() else {
        let rank = |own: &&InterfaceAddress| (is_link_local(own.ip), own.ip.is_ipv6());
        let of_interface = all.iter().filter(|own| own.interface == interface_of(name));
        return Ok(of_interface.min_by_key(rank).cloned().into_iter().collect());
    };
    // RFC 4007, section 11.2: names and indices of interfaces are zones.
    let is_in_zone = |own: &InterfaceAddress| {
        let is_zone = |zone: &str| zone == own.interface || zone.parse() == Ok(own.scope_id);
        zone.is_none_or(is_zone)
    };
    let has_it = |own: &&InterfaceAddress| own.ip == ip && is_in_zone(own);
    let mut exact: Vec<_> = all.iter().filter(has_it).cloned().collect();
    if !is_link_local(ip) {
        exact.sort_by_key(|own| (own.is_loopback, !has_carrier(own)));
        exact.truncate(1);
    }
    // An interface can have an address with several prefixes.
    exact.dedup_by(|one, other| one.interface == other.interface);
    // All of 127.0.0.0/8 is of the loopback interface, which lists only one.
    let lo = all.into_iter().find(|own| own.is_loopback && is_in_zone(own));
    Ok(match lo {
        Some(lo) if exact.is_empty() && ip.is_loopback() => vec![InterfaceAddress { ip, ..lo }],
        _ => exact,
    })
}

/// Returns the index of the interface that has the address of a device now; 0 if it is unknown.
pub(crate) fn index(device: &DeviceShared) -> u32 {
    let places = places(device).unwrap_or_default();
    places.first().and_then(|own| index_of(&own.interface)).unwrap_or(0)
}
