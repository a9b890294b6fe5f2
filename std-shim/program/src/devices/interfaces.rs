//! Network interfaces of this host as devices.

use polyrail::interfaces::{
    self, AddressRank, InterfaceError, InterfaceFilter, LocalAddress, reachable,
};
use polyrail::tcp::{DeviceOptions, OpenDevicesError, ProtectionDomain, open_device};
use std::net::{IpAddr, UdpSocket};

/// Returns the addresses of this host at which peers can be reached now, the best first; those of
/// loopback are last. Addresses that are valid only on one link are left out: those of two hosts
/// say nothing about their links.
///
/// # Errors
///
/// The system refuses to list addresses.
pub(super) fn usable() -> Result<Vec<LocalAddress>, InterfaceError> {
    let mut usable = interfaces::usable()?;
    usable.retain(|own| own.rank != AddressRank::LinkLocal);
    let loopback = listed(reachable(&InterfaceFilter::named("lo")))?;
    usable.extend(loopback.into_iter().filter(|own| own.net.ip().is_loopback()));
    Ok(usable)
}

/// Returns the addresses, none if the host has no such address.
fn listed(
    found: Result<Vec<LocalAddress>, InterfaceError>,
) -> Result<Vec<LocalAddress>, InterfaceError> {
    match found {
        Err(InterfaceError::Unreachable | InterfaceError::NotSelected { .. }) => Ok(Vec::new()),
        found => found,
    }
}

/// Returns the address from which the system sends to another one.
pub(super) fn route(to: IpAddr) -> Option<IpAddr> {
    /// Any port: no packet is sent.
    const DISCARD: u16 = 9;
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((to, DISCARD)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Opens the device of an address, one of `all`. Its name is that of the interface if the address
/// is the interface's first one, otherwise the address.
pub(super) fn open(
    own: &LocalAddress,
    all: &[LocalAddress],
    options: &DeviceOptions,
) -> Result<ProtectionDomain, OpenDevicesError> {
    let ip = own.net.ip();
    let first = all.iter().find(|other| other.interface == own.interface);
    if first.is_some_and(|first| first.net.ip() == ip) {
        // The interface may have got another first address, or has one that is not usable and whose
        // port is taken.
        if let Some(opened) =
            open_device(&own.interface, options).ok().filter(|it| address(it) == ip)
        {
            return Ok(opened);
        }
    }
    open_device(&ip.to_string(), options)
}

/// Returns the address of a device.
pub(super) fn address(domain: &ProtectionDomain) -> IpAddr {
    domain.device().address().ip()
}

/// Returns the address of a device with its interface and network.
///
/// # Errors
///
/// The system refuses to list addresses.
pub(super) fn local_address(domain: &ProtectionDomain) -> Result<LocalAddress, InterfaceError> {
    let ip = address(domain);
    let interface = domain.device().interface();
    let listed = listed(reachable(&InterfaceFilter::named(interface)))?;
    let listed = listed.into_iter().find(|own| own.net.ip() == ip);
    // Addresses such as 127.0.0.2 are not listed, nor is one that the interface has lost.
    Ok(listed.unwrap_or_else(|| {
        let is_loopback = ip.is_loopback();
        let rank = if is_loopback { AddressRank::Loopback } else { AddressRank::NoCarrier };
        LocalAddress { interface: interface.into(), net: ip.into(), rank, is_loopback }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn only_a_host_without_addresses_has_no_interfaces() {
        let (filter, known) = (InterfaceFilter::named("lo"), vec!["lo".into()]);
        for none in [InterfaceError::Unreachable, InterfaceError::NotSelected { filter, known }] {
            assert_eq!(listed(Err(none)).unwrap(), []);
        }
        // EMFILE: the process has no free descriptor.
        let refused = listed(Err(InterfaceError::List(Error::from_raw_os_error(24))));
        assert!(matches!(refused, Err(InterfaceError::List(_))), "{refused:?}");
    }
}
