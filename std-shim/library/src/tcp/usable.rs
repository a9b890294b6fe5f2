//! Opens devices over TCP that are not named.

use super::open::{OpenDevicesError, open_another_device};
use crate::endpoint::MAX_DEVICES;
use crate::interfaces::{AddressRank, InterfaceError, LocalAddress, usable};
use polyrail_tcp_nic::{DeviceOptions, ProtectionDomain};
use std::net::IpAddr;

/// The reason why a network interface with carrier is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotUsed {
    /// It is a loopback or dummy interface with an address of the host, and other interfaces are
    /// used.
    #[error("it is an address of a loopback or dummy interface, which may lead to a load balancer")]
    Loopback,
    /// It is a bridge without a NIC, and other interfaces are used.
    #[error("it is a bridge without a NIC, which leads to containers of this host")]
    InnerBridge,
    /// It has link-local addresses only, and other interfaces are used.
    #[error("it has only link-local addresses")]
    LinkLocal,
    /// A device that is used has the same address, and uses this interface, too.
    #[error("another device has its address {address}, and uses one of the interfaces at a time")]
    SameAddress {
        /// The address.
        address: IpAddr,
    },
    /// Endpoints have enough devices without it.
    #[error("an endpoint has at most {MAX_DEVICES} devices")]
    TooMany,
    /// It could not be opened.
    #[error(transparent)]
    Open(OpenDevicesError),
}

impl NotUsed {
    /// Returns why a device is not used that could not be opened.
    fn of_error(error: OpenDevicesError) -> Self {
        match error {
            OpenDevicesError::Twice { address, .. } => Self::SameAddress { address },
            error => Self::Open(error),
        }
    }

    /// Returns why an address of this rank is not used on a host that has a better one.
    fn of_rank(rank: AddressRank) -> Self {
        match rank {
            AddressRank::Nic | AddressRank::Loopback => Self::Loopback,
            AddressRank::InnerBridge => Self::InnerBridge,
            AddressRank::LinkLocal | AddressRank::NoCarrier => Self::LinkLocal,
        }
    }
}

/// Opens a device for each network interface at which other hosts reach this one, up to the maximum
/// of an endpoint, in the order of [`interfaces`](crate::interfaces). All of them have the same
/// rank: bridges of containers and interfaces with link-local addresses are opened
/// only on a host that has no others. Interfaces without carrier are left out; for each other
/// interface that is left out, calls `not_used` with the name of its device (`tcp:docker0`) and the
/// reason. An address that several interfaces have is one device, as with
/// [`open_devices`](super::open_devices).
///
/// Endpoints of two hosts use their devices in turn. If the hosts list their interfaces in
/// different orders, the end that answers [pairs](crate::pairing) its devices with those of the
/// other end.
///
/// # Errors
///
/// There is no such interface, or none can be opened.
pub fn open_usable_devices(
    options: &DeviceOptions,
    not_used: impl FnMut(&str, &NotUsed),
) -> Result<Vec<ProtectionDomain>, OpenDevicesError> {
    let devices = devices(&usable()?);
    if devices.is_empty() {
        return Err(InterfaceError::Unreachable.into());
    }
    open_best(&devices, |opened, name| open_another_device(opened, name, options), not_used)
}

/// A device that may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    /// The interface; if it is a loopback, whose own address is 127.0.0.1, the address.
    name: String,
    /// That of its best address.
    rank: AddressRank,
}

/// Returns the devices of these addresses, of which the best come first. Each is there once.
fn devices(addresses: &[LocalAddress]) -> Vec<Named> {
    let mut devices: Vec<Named> = Vec::new();
    for own in addresses {
        let name = match own.is_loopback {
            true => own.net.ip().to_string(),
            false => own.interface.clone(),
        };
        if devices.iter().all(|device| device.name != name) {
            devices.push(Named { name, rank: own.rank });
        }
    }
    devices
}

/// Opens the devices that have the rank of the first.
fn open_best<T>(
    devices: &[Named],
    open: impl Fn(&[T], &str) -> Result<T, OpenDevicesError>,
    mut not_used: impl FnMut(&str, &NotUsed),
) -> Result<Vec<T>, OpenDevicesError> {
    let mut opened = Vec::new();
    let mut first_error = None;
    let best = devices.first().map(|device| device.rank);
    for Named { name, rank } in devices {
        let reason = match *rank {
            rank if Some(rank) != best => NotUsed::of_rank(rank),
            _ if opened.len() == MAX_DEVICES => NotUsed::TooMany,
            _ => match open(&opened, name) {
                Ok(domain) => {
                    opened.push(domain);
                    continue;
                }
                Err(error) if first_error.is_none() => {
                    first_error = Some((name, error));
                    continue;
                }
                Err(error) => NotUsed::of_error(error),
            },
        };
        not_used(&format!("tcp:{name}"), &reason);
    }
    match first_error {
        Some((_, error)) if opened.is_empty() => Err(error),
        Some((name, error)) => {
            not_used(&format!("tcp:{name}"), &NotUsed::of_error(error));
            Ok(opened)
        }
        None => Ok(opened),
    }
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use AddressRank::{InnerBridge, LinkLocal, Loopback, Nic};

    fn named(all: &[(&str, AddressRank)]) -> Vec<Named> {
        let device = |&(name, rank): &(&str, AddressRank)| Named { name: name.into(), rank };
        all.iter().map(device).collect()
    }

    #[test]
    fn a_device_is_there_once_with_its_best_rank() {
        let own = |interface: &str, ip: &str, rank| LocalAddress {
            interface: interface.into(),
            net: ip.parse().unwrap(),
            rank,
            is_loopback: interface == "lo",
        };
        let all = [
            own("eth0", "10.0.0.1/24", Nic),
            own("eth1", "10.0.1.1/24", Nic),
            own("eth0", "fd00::1/64", Nic),
            own("lo", "10.9.0.1/32", Loopback),
            own("eth1", "fe80::1/64", LinkLocal),
            own("lo", "169.254.20.10/32", LinkLocal),
        ];
        let expected =
            [("eth0", Nic), ("eth1", Nic), ("10.9.0.1", Loopback), ("169.254.20.10", LinkLocal)];
        assert_eq!(devices(&all), named(&expected));
    }

    /// Returns the opened devices, and the names of those that are not used with the reasons.
    fn opened(
        all: &[(&str, AddressRank)],
        refused: &[&str],
    ) -> (Result<Vec<String>, OpenDevicesError>, Vec<String>) {
        let mut lines = Vec::new();
        let open = |_: &[String], name: &str| match refused.contains(&name) {
            true => Err(OpenDevicesError::TooMany { devices: name.len() }),
            false => Ok(name.to_owned()),
        };
        let not_used = |name: &str, reason: &NotUsed| lines.push(format!("{name}: {reason}"));
        (open_best(&named(all), open, not_used), lines)
    }

    #[test]
    fn only_interfaces_of_the_best_rank_are_opened() {
        let all = [
            ("eth0", Nic),
            ("eth1", Nic),
            ("10.0.0.9", Loopback),
            ("docker0", InnerBridge),
            ("eth2", LinkLocal),
        ];
        let (devices, lines) = opened(&all, &[]);
        assert_eq!(devices.unwrap(), ["eth0", "eth1"]);
        let words = [NotUsed::Loopback, NotUsed::InnerBridge, NotUsed::LinkLocal];
        let names = ["tcp:10.0.0.9", "tcp:docker0", "tcp:eth2"];
        let expected: Vec<_> =
            names.iter().zip(words).map(|(name, reason)| format!("{name}: {reason}")).collect();
        assert_eq!(lines, expected);
        let (devices, lines) = opened(&[("docker0", InnerBridge), ("eth2", LinkLocal)], &[]);
        assert_eq!((devices.unwrap(), lines.len()), (vec!["docker0".to_owned()], 1));
    }

    #[test]
    fn more_than_an_endpoint_has_are_left_out() {
        let names: Vec<String> = (0..10).map(|number| format!("eth{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), Nic)).collect();
        let (devices, lines) = opened(&all, &["eth3"]);
        let devices = devices.unwrap();
        assert_eq!((devices.len(), devices[3].as_str()), (8, "eth4"));
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("tcp:eth9: an endpoint has at most 8"), "{lines:?}");
        assert!(lines[1].starts_with("tcp:eth3: "), "{lines:?}");
    }

    /// Unnumbered links: NCCL, for example, would take two devices of one address for one card.
    #[test]
    fn an_address_of_several_interfaces_is_one_device() {
        let all = named(&[("eth0", Nic), ("eth1", Nic), ("eth2", Nic)]);
        let address = IpAddr::from([10, 9, 0, 1]);
        let open = |opened: &[&str], name: &str| match opened {
            [] => Ok("eth0"),
            _ => Err(OpenDevicesError::Twice { name: name.into(), address }),
        };
        let mut lines = Vec::new();
        let not_used = |name: &str, reason: &NotUsed| lines.push(format!("{name}: {reason}"));
        assert_eq!(open_best(&all, open, not_used).unwrap(), ["eth0"]);
        let words =
            "another device has its address 10.9.0.1, and uses one of the interfaces at a time";
        assert_eq!(lines, [format!("tcp:eth2: {words}"), format!("tcp:eth1: {words}")]);
    }

    #[test]
    fn a_host_whose_interfaces_all_refuse_gets_the_first_error() {
        let (devices, lines) = opened(&[("eth0", Nic), ("ethernet1", Nic)], &["eth0", "ethernet1"]);
        assert!(matches!(devices, Err(OpenDevicesError::TooMany { devices: 4 })));
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn the_interfaces_of_this_host_are_opened() {
        let opened = open_usable_devices(&DeviceOptions::default(), |_, _| {});
        match (opened, usable().map(|all| devices(&all))) {
            (Ok(domains), Ok(devices)) => {
                let first = format!("tcp:{}", devices[0].name);
                assert_eq!(domains[0].device().name(), first);
            }
            (Err(OpenDevicesError::Interfaces(_)), _) => {}
            (opened, devices) => panic!("{opened:?} of {devices:?}"),
        }
    }
}
