//! Rails and planes of NICs: by rails, NCCL's merge policy `RAIL` merges NICs, and NCCL chooses NICs
//! for its rings; NICs of different planes are never connected.

use crate::abi::ID_UNDEFINED;
use crate::log;
use crate::settings::{ListedIds, RailIdChoice};
use polyrail::interfaces::IpNet;
use std::fmt;
use std::net::IpAddr;

/// The rail and the plane of a NIC, as NCCL counts them, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RailIds {
    pub(crate) rail: i16,
    pub(crate) plane: i16,
}

impl RailIds {
    const UNDEFINED: Self = Self { rail: ID_UNDEFINED, plane: ID_UNDEFINED };

    /// Returns the rail and the plane of a device of several NICs: those that all of them have.
    pub(super) fn of_parts(mut parts: impl Iterator<Item = Self>) -> Self {
        let first = parts.next().unwrap_or(Self::UNDEFINED);
        let common = |one, other| if one == other { one } else { ID_UNDEFINED };
        parts.fold(first, |all, part| Self {
            rail: common(all.rail, part.rail),
            plane: common(all.plane, part.plane),
        })
    }
}

/// As in `mlx5_0 (rail 1, plane 0)`; nothing if neither is defined.
impl fmt::Display for RailIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rail, self.plane) {
            (ID_UNDEFINED, ID_UNDEFINED) => Ok(()),
            (rail, ID_UNDEFINED) => write!(f, " (rail {rail})"),
            (ID_UNDEFINED, plane) => write!(f, " (plane {plane})"),
            (rail, plane) => write!(f, " (rail {rail}, plane {plane})"),
        }
    }
}

/// Returns the rail and the plane of each NIC, of which these are the names and the networks.
pub(super) fn rail_ids(
    choice: &RailIdChoice,
    names: &[&str],
    networks: &[Option<IpNet>],
) -> Vec<RailIds> {
    match choice {
        RailIdChoice::Networks => of_networks(networks),
        RailIdChoice::Listed(listed) => {
            let is_known = |ids: &&ListedIds| names.iter().any(|name| ids.is_of(name));
            for unknown in listed.iter().filter(|ids| !is_known(ids)) {
                log::warn(&format!("POLYRAIL_RAIL_IDS: {} is not a device", unknown.device));
            }
            let ids = |name: &&str| {
                let listed = listed.iter().find(|ids| ids.is_of(name));
                let ids = |ids: &ListedIds| RailIds {
                    rail: ids.rail,
                    plane: ids.plane.unwrap_or(ID_UNDEFINED),
                };
                listed.map_or(RailIds::UNDEFINED, ids)
            };
            names.iter().map(ids).collect()
        }
    }
}

/// Returns rails that are the numbers of the networks. All are undefined if the NICs have only one
/// network, which then says nothing about rails: InfiniBand usually has one subnet for all rails. They
/// are also undefined if two networks have the same number. Networks say nothing about planes.
///
/// Networks of few addresses do not count: each NIC has one of its own, with its switch, and the
/// numbers of these differ from host to host.
fn of_networks(networks: &[Option<IpNet>]) -> Vec<RailIds> {
    let networks: Vec<_> = networks.iter().map(|network| network.filter(is_of_many)).collect();
    let mut known: Vec<IpNet> = networks.iter().flatten().copied().collect();
    known.sort_unstable();
    known.dedup();
    let mut numbers: Vec<i16> = known.iter().map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let are_rails = known.len() > 1 && numbers.len() == known.len();
    let rail = |network: &Option<IpNet>| match network {
        Some(network) if are_rails => RailIds { rail: number(network), ..RailIds::UNDEFINED },
        _ => RailIds::UNDEFINED,
    };
    networks.iter().map(rail).collect()
}

/// Whether a network has at least eight addresses, so that it can be a rail of several hosts.
fn is_of_many(network: &IpNet) -> bool {
    let bits = if network.ip().is_ipv4() { 32 } else { 128 };
    bits - network.prefix() >= 3
}

/// Returns the last 15 bits of a network's number, such as 7 for 10.0.7.0/24. It is the same on all
/// hosts.
fn number(network: &IpNet) -> i16 {
    let (address, bits) = match network.ip() {
        IpAddr::V4(ip) => (ip.to_bits().into(), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let number = u128::checked_shr(address, bits - u32::from(network.prefix())).unwrap_or(0);
    (number & i16::MAX as u128) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rails(networks: &[&str]) -> Vec<i16> {
        let networks: Vec<_> = networks.iter().map(|network| network.parse().ok()).collect();
        of_networks(&networks).into_iter().map(|ids| ids.rail).collect()
    }

    #[test]
    fn rails_are_the_numbers_of_networks() {
        for (networks, expected) in [
            (&["10.0.1.0/24", "10.0.2.0/24", "10.0.1.0/24", "unknown"][..], &[1, 2, 1, -1][..]),
            // Networks of a NIC and its switch.
            (&["10.0.0.4/31", "10.0.0.6/31"], &[-1, -1]),
            (&["10.0.0.4/30", "10.0.0.8/30"], &[-1, -1]),
            (&["fd00::4/126", "fd00::8/126", "10.0.0.1/32", "fd00::1/128"], &[-1; 4]),
            (&["10.0.1.0/24", "10.0.0.6/31", "10.0.2.0/24"], &[1, -1, 2]),
            (&["10.0.1.0/24", "10.0.0.6/31"], &[-1, -1]),
            // Eight addresses.
            (&["10.0.0.8/29", "10.0.0.16/29"], &[1, 2]),
            (&["fd00::8/125", "fd00::10/125"], &[1, 2]),
            (&["fd00:0:0:7::/64", "10.8.0.0/16"], &[7, 0xa08]),
            // Subnet prefixes of InfiniBand.
            (&["fe80::/64", "fec0:0:0:1::/64"], &[0, 1]),
            // One network, as of all rails of an InfiniBand subnet.
            (&["fe80::/64", "fe80::/64"], &[-1, -1]),
            (&["10.0.1.0/24", "unknown"], &[-1, -1]),
            // Two networks of one number.
            (&["10.0.1.0/24", "11.0.1.0/24", "10.0.2.0/24"], &[-1, -1, -1]),
            (&["0.0.0.0/0", "::/0"], &[-1, -1]),
            (&[], &[]),
        ] {
            assert_eq!(rails(networks), expected, "{networks:?}");
        }
    }

    #[test]
    fn a_device_of_several_nics_has_what_they_have_in_common() {
        let ids = |rail, plane| RailIds { rail, plane };
        for (parts, expected) in [
            (vec![ids(3, 1)], ids(3, 1)),
            (vec![ids(3, 1), ids(3, 0)], ids(3, -1)),
            (vec![ids(3, 1), ids(4, 1), ids(3, 1)], ids(-1, 1)),
            (vec![ids(3, -1), ids(-1, -1)], ids(-1, -1)),
            (vec![], ids(-1, -1)),
        ] {
            assert_eq!(RailIds::of_parts(parts.clone().into_iter()), expected, "{parts:?}");
        }
    }

    #[test]
    fn listed_devices_are_found_by_their_names() {
        let listed = |device: &str, rail, plane| ListedIds { device: device.into(), rail, plane };
        let choice = RailIdChoice::Listed(vec![
            listed("mlx5_1", 4, Some(2)),
            listed("eth0", 5, None),
            listed("gone", 6, None),
        ]);
        let names = ["mlx5_0", "mlx5_1", "tcp:eth0"];
        let ids = rail_ids(&choice, &names, &[None; 3]);
        let ids: Vec<_> = ids.iter().map(|ids| (ids.rail, ids.plane)).collect();
        assert_eq!(ids, [(-1, -1), (4, 2), (5, -1)]);
        let shown: Vec<_> =
            rail_ids(&choice, &names, &[None; 3]).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["", " (rail 4, plane 2)", " (rail 5)"]);
    }
}
