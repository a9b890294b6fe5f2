//! Paths to a peer, and address handles.

use crate::error::{Argument, VerbsError};
use crate::gid::Gid;
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::value::{ModifyError, bits, small};
use rdma_sys::{ibv_ah, ibv_ah_attr, ibv_global_route};

/// A global routing header (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The peer's address.
    pub dgid: Gid,
    /// Index of the local GID in the port's table. The entry decides between RoCE v1 and v2.
    pub sgid_index: u8,
    /// Maximum number of routers on the path; 64 by default.
    pub hop_limit: u8,
    /// Traffic class; on RoCE v2, DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits; on RoCE v2, it selects the path of the flow.
    pub flow_label: u32,
}

impl Grh {
    /// A header to `dgid`, from the local GID with this index.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self { dgid, sgid_index, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }
}

/// The address of the peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By LID, within an InfiniBand subnet; with a GRH, to another subnet.
    Infiniband {
        /// The peer's LID, or the router's.
        dlid: u16,
        /// Low bits of the local LID, which select a path; 7 bits.
        src_path_bits: u8,
        /// The header for a peer in another subnet.
        grh: Option<Grh>,
    },
    /// By GID, on Ethernet.
    Roce(Grh),
}

/// A path to a peer (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The local port, numbered from 1.
    pub port_num: u8,
    /// The address of the peer's port.
    pub route: Route,
    /// Service level, 4 bits; on RoCE, the priority.
    pub service_level: u8,
}

impl Path {
    /// A path to a LID in the same InfiniBand subnet.
    pub const fn infiniband(port_num: u8, dlid: u16) -> Self {
        let route = Route::Infiniband { dlid, src_path_bits: 0, grh: None };
        Self { port_num, route, service_level: 0 }
    }

    /// A path to a GID on Ethernet.
    pub const fn roce(port_num: u8, grh: Grh) -> Self {
        Self { port_num, route: Route::Roce(grh), service_level: 0 }
    }

    /// Converts a C struct; returns `None` if it has no address, as before a queue pair is in RTR.
    pub(crate) fn from_raw(raw: &ibv_ah_attr) -> Option<Self> {
        let grh = (raw.is_global != 0).then(|| Grh {
            dgid: Gid::from_raw(&raw.grh.dgid),
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
        });
        let route = match (raw.dlid, grh) {
            (0, None) => return None,
            // LID 0 is reserved.
            (0, Some(grh)) => Route::Roce(grh),
            (dlid, grh) => Route::Infiniband { dlid, src_path_bits: raw.src_path_bits, grh },
        };
        Some(Self { port_num: raw.port_num, route, service_level: raw.sl })
    }

    /// Converts to the C struct. Fails if a value does not fit its field.
    pub(crate) fn raw(&self) -> Result<ibv_ah_attr, ModifyError> {
        let (dlid, src_path_bits, grh) = match self.route {
            Route::Infiniband { dlid, src_path_bits, grh } => (dlid, src_path_bits, grh),
            Route::Roce(grh) => (0, 0, Some(grh)),
        };
        let route = grh.unwrap_or(Grh::new(Gid::default(), 0));
        Ok(ibv_ah_attr {
            grh: ibv_global_route {
                dgid: route.dgid.raw(),
                flow_label: bits("flow_label", route.flow_label, 20)?,
                sgid_index: route.sgid_index,
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
            },
            dlid,
            sl: small("sl", self.service_level, 4)?,
            src_path_bits: small("src_path_bits", src_path_bits, 7)?,
            static_rate: 0,
            is_global: grh.is_some().into(),
            port_num: self.port_num,
        })
    }
}

/// An address handle: the path of a datagram (`struct ibv_ah`).
///
/// # Dropping it early
///
/// A [batch](crate::DatagramBatch) borrows the handle until it is committed, since the driver reads
/// it then. Dropping the handle while a send that names it is outstanding may lose that send, but
/// is memory safe. In rdma-core 44, mlx4, mlx5, hns, pvrdma, and mthca without on-board memory copy
/// the address into the request, so the send is unaffected. rxe, efa, irdma, bnxt and ocrdma copy
/// the handle's number: the send fails, or goes to the address of a newer handle with the same
/// number. Older mthca lets the device fetch the address from a page of the provider, which stays
/// registered while it is allocated (`mthca_free_av`); the effect is the same.
#[derive(Debug)]
pub struct AddressHandle {
    raw: Owned<ibv_ah>,
    pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// A value does not fit its field. EINVAL: the port or the GID index does not exist;
    /// ENETUNREACH, EHOSTUNREACH, ETIMEDOUT: the GID cannot be reached.
    pub fn create_ah(&self, path: &Path) -> Result<AddressHandle, ModifyError> {
        const CALL: &str = "ibv_create_ah";
        let mut attr = path.raw()?;
        // SAFETY: the domain is alive, and the attributes are only read.
        let raw = unsafe { rdma_sys::ibv_create_ah(self.for_call(CALL)?, &raw mut attr) };
        let argument = Argument::Number("port_num", path.port_num.into());
        // SAFETY: null, or a new handle that nothing else owns.
        let raw = unsafe { Owned::new(raw, CALL, argument) }?;
        Ok(AddressHandle { raw, pd: self.clone() })
    }
}

impl AddressHandle {
    /// Returns the protection domain of the handle.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Destroys the handle.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn close(self) -> Result<(), VerbsError> {
        self.raw.close()
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_with_a_routing_header_are_global() {
        let local = Path::infiniband(1, 7).raw().unwrap();
        assert_eq!((local.is_global, local.dlid, local.port_num), (0, 7, 1));
        let gid = Gid([9; 16]);
        let roce = Path::roce(2, Grh::new(gid, 3)).raw().unwrap();
        assert_eq!((roce.is_global, roce.dlid, roce.grh.sgid_index), (1, 0, 3));
        // SAFETY: all fields of the union are plain bytes.
        assert_eq!((unsafe { roce.grh.dgid.raw }, roce.grh.hop_limit), ([9; 16], 64));
        let route = Route::Infiniband { dlid: 5, src_path_bits: 1, grh: Some(Grh::new(gid, 0)) };
        let routed = Path { port_num: 1, route, service_level: 4 }.raw().unwrap();
        assert_eq!((routed.is_global, routed.dlid, routed.sl), (1, 5, 4));
    }

    #[test]
    fn a_path_is_read_as_it_was_written() {
        let grh = Grh { traffic_class: 5, flow_label: 6, ..Grh::new(Gid([9; 16]), 3) };
        let infiniband = |grh| Route::Infiniband { dlid: 5, src_path_bits: 1, grh };
        for route in [infiniband(None), infiniband(Some(grh)), Route::Roce(grh)] {
            let path = Path { port_num: 2, route, service_level: 4 };
            assert_eq!(Path::from_raw(&path.raw().unwrap()), Some(path));
        }
        assert_eq!(Path::from_raw(&Path::infiniband(1, 0).raw().unwrap()), None);
    }
}
