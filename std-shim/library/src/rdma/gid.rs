//! Selects the GID of a port.

use polyrail_ffi::{GidEntry, GidType};

/// Returns the GID of `port` that rails use: the entry at `index`, or the best of all (see the
/// module's documentation).
pub(super) fn choose_gid(table: &[GidEntry], port: u8, index: Option<u8>) -> Option<&GidEntry> {
    let entries = table.iter().filter(|entry| entry.port == port && entry.index <= 255);
    match index {
        Some(index) => entries.into_iter().find(|entry| entry.index == u32::from(index)),
        None => entries.min_by_key(|entry| (rank(entry), entry.index)),
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

    fn chosen(entries: &[(GidType, &str)]) -> Option<u32> {
        choose_gid(&table(entries), 1, None).map(|entry| entry.index)
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
        let index = |port, index| choose_gid(&table, port, index).map(|entry| entry.index);
        assert_eq!(index(1, Some(0)), Some(0));
        assert_eq!(index(1, Some(2)), None, "an empty entry");
        assert_eq!(index(2, None), None);
    }
}
