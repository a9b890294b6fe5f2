//! The network interfaces of this host and their addresses.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_indextoname, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::{fs, io, mem};

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

/// Returns all IP addresses of this host: IPv4 addresses and permanent IPv6 addresses, then IPv6
/// addresses that expire unless they are renewed, then temporary (RFC 8981), then deprecated ones.
/// Within each group the kernel's order counts, which begins with the newest IPv6 address. IPv6
/// addresses that cannot be used yet, or that another host has, are left out.
///
/// # Errors
///
/// The system refuses to list them.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let all: Vec<_> = getifaddrs()?.filter_map(|entry| ip_address(&entry)).collect();
    if all.iter().all(|own| own.ip.is_ipv4()) {
        return Ok(all);
    }
    // Of this thread: threads can have different network namespaces. A system without it does not
    // report lifetimes.
    let table = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    Ok(by_lifetime(all, &table))
}

/// How long an IPv6 address is expected to stay. The least stays longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lifetime {
    /// It does not expire.
    Permanent,
    /// It expires unless a router or a server renews it.
    Dynamic,
    /// It is replaced by another one within days (RFC 8981).
    Temporary,
    /// It is not to be used for new connections, and may expire soon.
    Deprecated,
}

impl Lifetime {
    /// Reads the flags of an address (`IFA_F_...` of `linux/if_addr.h`); `None`: it cannot be used.
    fn of_flags(flags: u8) -> Option<Self> {
        const TEMPORARY: u8 = 0x01;
        const OPTIMISTIC: u8 = 0x04;
        const DAD_FAILED: u8 = 0x08;
        const DEPRECATED: u8 = 0x20;
        const TENTATIVE: u8 = 0x40;
        const PERMANENT: u8 = 0x80;
        let has = |flag| flags & flag != 0;
        match () {
            () if has(DAD_FAILED) || has(TENTATIVE) && !has(OPTIMISTIC) => None,
            () if has(DEPRECATED) => Some(Self::Deprecated),
            () if has(TEMPORARY) => Some(Self::Temporary),
            () if has(PERMANENT) => Some(Self::Permanent),
            () => Some(Self::Dynamic),
        }
    }
}

/// Orders addresses by their lifetimes, which are in the kernel's table of IPv6 addresses, and
/// leaves out those that cannot be used.
fn by_lifetime(all: Vec<InterfaceAddress>, table: &str) -> Vec<InterfaceAddress> {
    let known: Vec<_> = table.lines().filter_map(ipv6_entry).collect();
    let lifetime = |own: &InterfaceAddress| {
        let is_it = |(ip, interface, _): &&(Ipv6Addr, &str, _)| {
            own.ip == *ip && own.interface == *interface
        };
        known.iter().find(is_it).map_or(Some(Lifetime::Permanent), |(.., lifetime)| *lifetime)
    };
    let mut usable: Vec<_> =
        all.into_iter().filter_map(|own| Some((lifetime(&own)?, own))).collect();
    usable.sort_by_key(|(lifetime, _)| *lifetime);
    usable.into_iter().map(|(_, own)| own).collect()
}

/// Reads a line of `if_inet6` (proc_net(5)): an address, the index of its interface, the length of
/// its prefix, its scope and its flags as hexadecimal numbers, and the name of its interface.
fn ipv6_entry(line: &str) -> Option<(Ipv6Addr, &str, Option<Lifetime>)> {
    let mut fields = line.split_ascii_whitespace();
    let ip = Ipv6Addr::from_bits(u128::from_str_radix(fields.next()?, 16).ok()?);
    let flags = u8::from_str_radix(fields.nth(3)?, 16).ok()?;
    Some((ip, fields.next()?, Lifetime::of_flags(flags)))
}

/// Returns the index of an interface of this network namespace.
pub fn index_of(name: &str) -> Option<u32> {
    if_nametoindex(name).ok()
}

/// Returns the present name of the interface with this index in this network namespace; `None` if
/// there is none, or its name is no text.
pub fn name_of(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

/// Returns whether an interface is a dummy, which discards all that is sent by it. Hosts have
/// addresses there that belong to no link.
///
/// # Errors
///
/// The system has no descriptor left to ask for the driver.
pub fn is_dummy(interface: &str) -> io::Result<bool> {
    Ok(driver(interface)?.is_some_and(|driver| driver == *b"dummy"))
}

/// Returns the name of the driver of an interface; `None` if there is no such interface, or it has
/// no driver, as loopback interfaces.
fn driver(interface: &str) -> io::Result<Option<Vec<u8>>> {
    /// `ETHTOOL_GDRVINFO` of `linux/ethtool.h`.
    const GET_DRIVER: u32 = 3;
    /// The beginning of `struct ethtool_drvinfo`, and the length of the rest.
    #[repr(C)]
    struct Driver {
        command: u32,
        name: [u8; 32],
        rest: [u8; 160],
    }
    let mut driver = Driver { command: GET_DRIVER, name: [0; 32], rest: [0; 160] };
    // SAFETY: zeros are an empty name and no address.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays 0.
    if interface.len() >= request.ifr_name.len() {
        return Ok(None);
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut driver).cast();
    // Any socket will do.
    let socket = UnixDatagram::unbound()?;
    // SAFETY: the system writes to `driver`, which is as long as the command takes.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) };
    let name = driver.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok((status == 0).then(|| name.to_vec()))
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
mod rt_tests {
    use super::*;

    fn address(interface: &str, ip: &str) -> InterfaceAddress {
        InterfaceAddress {
            interface: interface.into(),
            ip: ip.parse().unwrap(),
            mask: None,
            scope_id: 0,
            is_up: true,
            has_carrier: true,
            is_loopback: false,
        }
    }

    /// The table has the lines of a host of Linux 6.18.
    #[test]
    fn ipv6_addresses_that_stay_are_first() {
        let table = "\
            fd000000000000000000000000000001 04 40 00 20     eth0\n\
            fd000000000000000000000000000002 04 40 00 01     eth0\n\
            fd000000000000000000000000000003 04 40 00 00     eth0\n\
            fd000000000000000000000000000004 04 40 00 c0     eth0\n\
            fd000000000000000000000000000005 04 40 00 c8     eth0\n\
            fd000000000000000000000000000006 04 40 00 44     eth0\n\
            fd000000000000000000000000000007 04 40 00 82     eth0\n\
            fd000000000000000000000000000001 05 40 00 80     eth1\n\
            fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\
            not an entry\n";
        let mut all = vec![address("eth0", "10.0.0.1")];
        all.extend((1..8).map(|last| address("eth0", &format!("fd00::{last}"))));
        all.extend([address("eth1", "fd00::1"), address("eth0", "fe80::fc:ff:fe00:1")]);
        all.push(address("eth2", "fd00::9"));
        let ordered = by_lifetime(all.clone(), table);
        let shown = |all: &[InterfaceAddress]| {
            let shown = all.iter().map(|own| format!("{} {}", own.interface, own.ip));
            shown.collect::<Vec<_>>()
        };
        let expected = [
            "eth0 10.0.0.1",
            "eth0 fd00::7",
            "eth1 fd00::1",
            "eth0 fe80::fc:ff:fe00:1",
            "eth2 fd00::9",
            "eth0 fd00::3",
            "eth0 fd00::6",
            "eth0 fd00::2",
            "eth0 fd00::1",
        ];
        assert_eq!(shown(&ordered), expected);
        assert_eq!(by_lifetime(all.clone(), ""), all);
    }

    #[test]
    fn a_loopback_interface_is_not_a_dummy() {
        for name in ["lo", "no such", "a name that is too long"] {
            assert_eq!((driver(name).unwrap(), is_dummy(name).unwrap()), (None, false), "{name}");
        }
    }

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
