//! Selects the GID of a port.

use crate::devices::GidInterface;
use polyrail_ffi::{GidEntry, GidType};

/// The reason why a port has no GID that rails can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoGid {
    /// There is none, or none at the index.
    Missing,
    /// The interfaces of all of them are in other network namespaces.
    OtherNamespace,
}

/// Returns the GID of `port` that rails use: the entry at `index`, or the best of all (see the
/// module's documentation).
pub(super) fn choose_gid(
    table: &[GidEntry],
    port: u8,
    index: Option<u8>,
    interface: impl Fn(&GidEntry) -> GidInterface,
) -> Result<&GidEntry, NoGid> {
    let mut entries = table.iter().filter(|entry| entry.port == port && entry.index <= 255);
    if let Some(index) = index {
        return entries.find(|entry| entry.index == u32::from(index)).ok_or(NoGid::Missing);
    }
    let entries: Vec<_> = entries.map(|entry| (entry, interface(entry))).collect();
    let here = entries.iter().filter(|(_, interface)| interface.is_here);
    let best =
        here.min_by_key(|(entry, interface)| (!interface.has_address, rank(entry), entry.index));
    match (best, entries.is_empty()) {
        (Some((entry, _)), _) => Ok(entry),
        (None, true) => Err(NoGid::Missing),
        (None, false) => Err(NoGid::OtherNamespace),
    }
}

/// Preference of an entry; lower is better.
fn rank(entry: &GidEntry) -> u8 {
    match entry.gid_type {
        GidType::RoceV2 if entry.gid.is_ipv4() => 0,
        GidType::RoceV2 if !entry.gid.is_link_local() => 1,
        GidType::RoceV2 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Gid;

    /// Makes the table of one port, with an entry for each type and address, from index 0.
    fn table(entries: &[(GidType, &str)]) -> Vec<GidEntry> {
        let entry = |(index, (gid_type, gid)): (u32, &(GidType, &str))| GidEntry {
            gid: polyrail_ffi::Gid(gid.parse::<Gid>().unwrap().0),
            index,
            port: 1,
            gid_type: *gid_type,
            ifindex: 0,
        };
        (0..).zip(entries).map(entry).collect()
    }

    fn interface(is_here: bool, has_address: bool) -> GidInterface {
        GidInterface { name: None, is_here, has_address }
    }

    fn chosen(entries: &[(GidType, &str)]) -> Option<u32> {
        let table = table(entries);
        let chosen = choose_gid(&table, 1, None, |_| interface(true, false));
        chosen.ok().map(|entry| entry.index)
    }

    use GidType::{Infiniband, RoceV1, RoceV2};
    const LOCAL: &str = "fe80::1";
    const GLOBAL: &str = "2001:db8::1";
    const IPV4: &str = "::ffff:10.0.0.1";

    #[test]
    fn roce_v2_over_ipv4_comes_first_then_roce_v2_then_what_there_is() {
        let usual = [(RoceV1, LOCAL), (RoceV2, LOCAL), (RoceV1, IPV4), (RoceV2, IPV4)];
        assert_eq!(chosen(&usual), Some(3), "the usual table of a RoCE port with an address");
        assert_eq!(chosen(&usual[..3]), Some(1));
        assert_eq!(chosen(&[(RoceV2, LOCAL), (RoceV2, GLOBAL)]), Some(1));
        assert_eq!(chosen(&[(RoceV1, LOCAL), (RoceV1, IPV4)]), Some(0));
        assert_eq!(chosen(&[(Infiniband, LOCAL), (Infiniband, GLOBAL)]), Some(0));
        assert_eq!(chosen(&[(RoceV2, IPV4), (RoceV2, "::ffff:10.0.0.2")]), Some(0));
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn an_index_overrides_the_choice_and_ports_do_not_mix() {
        let table = table(&[(RoceV2, LOCAL), (RoceV2, IPV4)]);
        let index = |port, index| {
            let chosen = choose_gid(&table, port, index, |_| interface(true, false));
            chosen.map(|entry| entry.index)
        };
        assert_eq!(index(1, Some(0)), Ok(0));
        assert_eq!(index(1, Some(2)), Err(NoGid::Missing), "an empty entry");
        assert_eq!(index(2, None), Err(NoGid::Missing));
    }

    /// A pod's macvlan is at a higher index than the host's interface.
    #[test]
    fn an_interface_of_another_namespace_is_not_chosen() {
        let other_pod = "::ffff:10.0.0.3";
        let table = table(&[(RoceV2, LOCAL), (RoceV2, IPV4), (RoceV2, other_pod), (RoceV2, IPV4)]);
        let index = |choice, is_here: &dyn Fn(u32) -> bool, has_address: &dyn Fn(u32) -> bool| {
            let interface = |entry: &GidEntry| {
                interface(is_here(entry.index), is_here(entry.index) && has_address(entry.index))
            };
            choose_gid(&table, 1, choice, interface).map(|entry| entry.index)
        };
        let (all, none) = (&|_| true, &|_| false);
        assert_eq!(index(None, &|index| index == 3, all), Ok(3));
        assert_eq!(index(None, &|index| index == 0, all), Ok(0), "link-local rather than foreign");
        // An interface of another pod has the same name and the same index.
        assert_eq!(index(None, &|index| index > 1, &|index| index == 3), Ok(3));
        assert_eq!(index(None, all, none), Ok(1));
        assert_eq!(index(None, none, none), Err(NoGid::OtherNamespace));
        assert_eq!(index(Some(2), none, none), Ok(2), "the user knows better");
    }
}
