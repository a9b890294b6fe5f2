//! GIDs, the addresses of ports.

use crate::context::Context;
use crate::error::{Argument, Result, VerbsError};
use rdma_sys::{ibv_gid, ibv_gid_entry};
use std::fmt;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;

/// A GID, the address of a port (`union ibv_gid`), most significant byte first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether this is an IPv4-mapped address (`::ffff:a.b.c.d`), which RoCE v2 uses for IPv4.
    pub fn is_ipv4(&self) -> bool {
        Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }

    /// Whether this is a link-local address (`fe80::/10`).
    pub fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }

    pub(crate) const fn raw(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }

    pub(crate) fn from_raw(raw: &ibv_gid) -> Self {
        // SAFETY: all fields of the union are 16 plain bytes.
        Self(unsafe { raw.raw })
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

/// The protocol of packets with a GID (`enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, with a global routing header.
    Infiniband,
    /// RoCE version 1: Ethernet frames with EtherType 0x8915, which routers do not forward.
    RoceV1,
    /// RoCE version 2: UDP port 4791.
    RoceV2,
    /// Anything else, by its number.
    Other(u32),
}

/// A valid entry of a GID table (`struct ibv_gid_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The entry's index in the port's table, for [`Grh::sgid_index`](crate::Grh::sgid_index).
    pub index: u32,
    /// The port, numbered from 1.
    pub port: u8,
    /// The protocol of its packets.
    pub gid_type: GidType,
    /// Index of the network device; 0 without one.
    pub ifindex: u32,
}

impl GidEntry {
    /// Returns the name of the network device, if it exists.
    pub fn interface(&self) -> Option<String> {
        let mut name = [0u8; libc::IF_NAMESIZE];
        // SAFETY: the buffer has the length that the call requires.
        let found = unsafe { libc::if_indextoname(self.ifindex, name.as_mut_ptr().cast()) };
        if found.is_null() {
            return None;
        }
        let end = name.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    fn from_raw(raw: &ibv_gid_entry) -> Self {
        Self {
            gid: Gid::from_raw(&raw.gid),
            index: raw.gid_index,
            port: raw.port_num as u8,
            gid_type: match raw.gid_type {
                rdma_sys::IBV_GID_TYPE_IB => GidType::Infiniband,
                rdma_sys::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
                rdma_sys::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
                other => GidType::Other(other),
            },
            ifindex: raw.ndev_ifindex,
        }
    }
}

impl Context {
    /// Returns the valid entries of the GID tables of all ports.
    ///
    /// # Errors
    ///
    /// Errors of querying a port or its table.
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        const CALL: &str = "ibv_query_gid_table";
        let context = self.for_call(CALL)?;
        let mut most = 0;
        for port in 1..=self.attributes().phys_port_cnt {
            most += self.query_port(port)?.gid_table_len as usize;
        }
        let mut raw: Vec<MaybeUninit<ibv_gid_entry>> = Vec::new();
        raw.resize_with(most, MaybeUninit::zeroed);
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and the library writes at most `most` entries of that size.
        let found = unsafe {
            rdma_sys::_ibv_query_gid_table(context, raw.as_mut_ptr().cast(), most, 0, size)
        };
        let Ok(found) = usize::try_from(found) else {
            let argument = Argument::Number("max_entries", most as u64);
            return Err(VerbsError::new(CALL, -found as i32, argument));
        };
        // SAFETY: plain numbers, at least zeroed.
        let entry = |raw: &MaybeUninit<_>| GidEntry::from_raw(unsafe { raw.assume_init_ref() });
        Ok(raw.iter().take(found).map(entry).collect())
    }

    /// Returns an entry of a port's GID table.
    ///
    /// # Errors
    ///
    /// ENODATA: the entry is empty; EINVAL: the port or the entry does not exist.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        const CALL: &str = "ibv_query_gid_ex";
        let context = self.for_call(CALL)?;
        let mut raw = MaybeUninit::<ibv_gid_entry>::zeroed();
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open, and one entry of that size is written.
        let returned = unsafe {
            rdma_sys::_ibv_query_gid_ex(context, port.into(), index, raw.as_mut_ptr(), 0, size)
        };
        let argument = Argument::Number("gid_index", index.into());
        VerbsError::check(returned, CALL, argument)?;
        // SAFETY: plain numbers, at least zeroed.
        Ok(GidEntry::from_raw(unsafe { raw.assume_init_ref() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_written_as_an_address_and_knows_what_it_stands_for() {
        let mapped = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]);
        assert_eq!((mapped.to_string().as_str(), mapped.is_ipv4()), ("::ffff:10.0.0.1", true));
        let local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((local.to_string().as_str(), local.is_link_local()), ("fe80::1", true));
        assert!(!local.is_ipv4() && !mapped.is_link_local());
    }
}
