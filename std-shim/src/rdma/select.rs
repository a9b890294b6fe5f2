//! What is to be opened: devices as people name them, and the address that a port is used by.

use polyrail_ffi::{GidEntry, GidType};
use std::fmt;
use std::str::FromStr;

/// A device, or one port of it, as people write it: `mlx5_0`, `mlx5_0:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The device's name.
    pub device: String,
    /// The port, from 1 on; `None`: every port that carries data.
    pub port: Option<u8>,
}

/// Text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not DEVICE or DEVICE:PORT, such as mlx5_0 or mlx5_0:1")]
pub struct DeviceNameError(String);

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let error = || DeviceNameError(text.to_owned());
        let (device, port) = match text.split_once(':') {
            None => (text, None),
            Some((device, port)) => match port.parse() {
                Ok(0) | Err(_) => return Err(error()),
                Ok(port) => (device, Some(port)),
            },
        };
        if device.is_empty() {
            return Err(error());
        }
        Ok(Self { device: device.to_owned(), port })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.device),
            Some(port) => write!(f, "{}:{port}", self.device),
        }
    }
}

/// The address that rails take at `port`: the one at `index`, or the best of all (see the module's
/// documentation).
pub(super) fn choose_gid(table: &[GidEntry], port: u8, index: Option<u8>) -> Option<&GidEntry> {
    let entries = table.iter().filter(|entry| entry.port == port && entry.index <= 255);
    match index {
        Some(index) => entries.into_iter().find(|entry| entry.index == u32::from(index)),
        None => entries.min_by_key(|entry| (rank(entry), entry.index)),
    }
}

/// The less, the better.
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

    #[test]
    fn devices_as_people_name_them() {
        let name = |device: &str, port| Ok(DeviceName { device: device.to_owned(), port });
        assert_eq!("mlx5_0".parse(), name("mlx5_0", None));
        assert_eq!("rxeA0:2".parse(), name("rxeA0", Some(2)));
        assert_eq!("rxeA0:2".parse::<DeviceName>().unwrap().to_string(), "rxeA0:2");
        for bad in ["", ":1", "a:", "a:0", "a:256", "a:x", "a:1:1"] {
            assert_eq!(bad.parse::<DeviceName>(), Err(DeviceNameError(bad.to_owned())), "{bad}");
        }
    }

    /// A table of one port, an entry for each type and address, from index 0 on.
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
