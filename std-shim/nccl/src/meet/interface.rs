//! The address at which peers reach this process.

use crate::guard::{Code, Refusal};
use rustix::io::Errno;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// An address of a network device, with its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    interface: String,
    ip: IpAddr,
    scope: u32,
    is_up: bool,
    is_loopback: bool,
}

/// Returns the address of this network device; without a name, of the first device that is up, and
/// of a loopback only if there is no other. Prefers IPv4 to IPv6, and any other address to a
/// link-local one.
pub(crate) fn address(interface: Option<&str>) -> Result<(IpAddr, u32), Refusal> {
    let addresses = addresses().map_err(|error| {
        Refusal::new(Code::System, format!("cannot list the addresses of this machine: {error}"))
    })?;
    choose(&addresses, interface).ok_or_else(|| match interface {
        Some(name) => {
            let words = format!(
                "POLYRAIL_INTERFACE={name}: there is no such network device with an address"
            );
            Refusal::new(Code::Usage, words)
        }
        None => Refusal::new(Code::System, "no network device of this machine has an address"),
    })
}

fn choose(addresses: &[Address], interface: Option<&str>) -> Option<(IpAddr, u32)> {
    let fits =
        |address: &&Address| interface.map_or(address.is_up, |name| name == address.interface);
    let rank = |address: &&Address| {
        (address.is_loopback && interface.is_none(), address.scope != 0, address.ip.is_ipv6())
    };
    // The first of the preferred kind, in the kernel's order.
    let best = addresses.iter().filter(fits).min_by_key(rank)?;
    Some((best.ip, best.scope))
}

/// Returns all addresses of this machine.
fn addresses() -> Result<Vec<Address>, Errno> {
    let mut list = ptr::null_mut();
    // SAFETY: the list is written where there is room for it.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: it is an entry of the list, or its end.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: as the system made it.
        addresses.extend(unsafe { read(entry) });
        next = entry.ifa_next;
    }
    // SAFETY: it is as the system made it, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// Returns the entry's address, if it is an IP address.
///
/// # Safety
///
/// The entry is in a list of `getifaddrs`.
unsafe fn read(entry: &libc::ifaddrs) -> Option<Address> {
    // SAFETY: an entry without an address has none.
    let family = unsafe { entry.ifa_addr.as_ref() }?.sa_family;
    let (ip, scope) = match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            (Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into(), 0)
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            (Ipv6Addr::from(address.sin6_addr.s6_addr).into(), address.sin6_scope_id)
        }
        _ => return None,
    };
    // SAFETY: every entry has a name.
    let interface = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
    let has = |flag: i32| entry.ifa_flags & flag as u32 != 0;
    let (is_up, is_loopback) = (has(libc::IFF_UP), has(libc::IFF_LOOPBACK));
    Some(Address { interface, ip, scope, is_up, is_loopback })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: &str, ip: &str, scope: u32) -> Address {
        let is_loopback = interface == "lo";
        Address {
            interface: interface.into(),
            ip: ip.parse().unwrap(),
            scope,
            is_up: true,
            is_loopback,
        }
    }

    #[test]
    fn the_address_that_leads_farthest_is_chosen() {
        let all = [
            address("lo", "127.0.0.1", 0),
            address("eth0", "fe80::1", 2),
            address("eth0", "2001:db8::1", 0),
            Address { is_up: false, ..address("eth1", "10.1.0.1", 0) },
            address("eth2", "10.2.0.1", 0),
        ];
        let chosen =
            |count, name| choose(&all[..count], name).map(|(ip, scope)| (ip.to_string(), scope));
        assert_eq!(chosen(5, None), Some(("10.2.0.1".into(), 0)));
        assert_eq!(chosen(4, None), Some(("2001:db8::1".into(), 0)));
        assert_eq!(chosen(2, None), Some(("fe80::1".into(), 2)));
        assert_eq!(chosen(1, None), Some(("127.0.0.1".into(), 0)));
        assert_eq!(chosen(5, Some("lo")), Some(("127.0.0.1".into(), 0)));
        assert_eq!(chosen(5, Some("eth3")), None);
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert_eq!(super::address(Some("lo")).unwrap().0, Ipv4Addr::LOCALHOST);
        let refused = super::address(Some("no such")).unwrap_err();
        assert!(refused.words.contains("POLYRAIL_INTERFACE=no such"), "{}", refused.words);
    }
}
