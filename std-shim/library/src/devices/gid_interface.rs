//! The network interface of a GID, and whether this process can use it.

use crate::interfaces::has_address;
use polyrail_ffi::{GidEntry, GidType};
use polyrail_nic_parts::interface::index_of;
use std::fs;
use std::net::Ipv6Addr;

/// The network interface of a GID.
///
/// A device is usually visible in all network namespaces, and its GID tables have the addresses of
/// interfaces in all of them. Packets with the address of another namespace's interface are lost:
/// replies are routed to that namespace, or the peer's host does not find the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GidInterface {
    /// Its name, in its own namespace.
    pub(crate) name: Option<String>,
    /// Whether the interface is in this process's network namespace. InfiniBand GIDs need none.
    pub(crate) is_here: bool,
    /// Whether the GID is an address of the interface, in this namespace.
    pub(crate) has_address: bool,
}

impl GidInterface {
    /// Looks up the interface of an entry of a device's GID table.
    pub(crate) fn of(device: &str, entry: &GidEntry) -> Self {
        let GidEntry { port, index, .. } = *entry;
        // The kernel has the name of the interface here, whatever its namespace.
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}");
        let name = fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let name = name.filter(|name| !name.is_empty());
        let (name, is_here) = find(name, entry.ifindex, index_of, || entry.interface());
        let ip = Ipv6Addr::from(entry.gid.0).to_canonical();
        let has_address = is_here && name.as_deref().is_some_and(|name| has_address(name, ip));
        Self { name, is_here: is_here || entry.gid_type == GidType::Infiniband, has_address }
    }
}

/// Returns the name of an interface, and whether it is in this namespace. Names and indices are
/// those of its own namespace: another interface here may have the same name or the same index.
fn find(
    name: Option<String>,
    ifindex: u32,
    index_of: impl Fn(&str) -> Option<u32>,
    name_here: impl Fn() -> Option<String>,
) -> (Option<String>, bool) {
    match name {
        Some(name) => {
            let here = index_of(&name);
            // 0: unknown.
            let is_here = here.is_some_and(|here| ifindex == 0 || here == ifindex);
            (Some(name), is_here)
        }
        // Without sysfs, or without an interface.
        None => {
            let name = name_here();
            let is_here = ifindex == 0 || name.is_some();
            (name, is_here)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_here_if_name_and_index_are_the_same() {
        let index_of = |name: &str| (name == "net1").then_some(5);
        let is_here = |name: Option<&str>, ifindex, here: Option<&str>| {
            find(name.map(Into::into), ifindex, index_of, || here.map(Into::into))
        };
        let net1 = || Some("net1".to_owned());
        assert_eq!(is_here(Some("net1"), 5, Some("net1")), (net1(), true));
        // The interface of the host, which has the index of one that is here.
        let host = (Some("ens1f0".to_owned()), false);
        assert_eq!(is_here(Some("ens1f0"), 5, Some("net1")), host);
        // The interface of another pod, which has the same name.
        assert_eq!(is_here(Some("net1"), 9, None), (net1(), false));
        assert_eq!(is_here(Some("net1"), 0, None), (net1(), true));
        // Without sysfs.
        assert_eq!(is_here(None, 5, Some("net1")), (net1(), true));
        assert_eq!(is_here(None, 9, None), (None, false));
        assert_eq!(is_here(None, 0, None), (None, true));
    }
}
