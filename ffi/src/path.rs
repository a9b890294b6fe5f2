//! How packets get to a peer, and address handles.

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
    /// Index of the own address in the port's table. It decides between RoCE v1 and v2.
    pub sgid_index: u8,
    /// Routers on the way; 64 by default.
    pub hop_limit: u8,
    /// Traffic class; of RoCE v2, DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits; of RoCE v2, it spreads flows over paths.
    pub flow_label: u32,
}

impl Grh {
    /// To `dgid`, from the address with this index.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self { dgid, sgid_index, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }
}

/// How packets find the peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By LID, within an InfiniBand subnet; with a GRH, to another subnet.
    Infiniband {
        /// The peer's LID, or the router's.
        dlid: u16,
        /// Low bits of the own LID that select a path, 7 bits.
        src_path_bits: u8,
        /// To another subnet.
        grh: Option<Grh>,
    },
    /// By GID, on Ethernet.
    Roce(Grh),
}

/// A path to a peer (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The local port, from 1 on.
    pub port_num: u8,
    /// How packets find the peer's port.
    pub route: Route,
    /// Service level, 4 bits; on RoCE, the priority.
    pub service_level: u8,
}

impl Path {
    /// To a LID in the same InfiniBand subnet.
    pub const fn infiniband(port_num: u8, dlid: u16) -> Self {
        let route = Route::Infiniband { dlid, src_path_bits: 0, grh: None };
        Self { port_num, route, service_level: 0 }
    }

    /// To a GID on Ethernet.
    pub const fn roce(port_num: u8, grh: Grh) -> Self {
        Self { port_num, route: Route::Roce(grh), service_level: 0 }
    }

    /// The path that a C struct describes; `None` if it leads nowhere, as before a queue pair is in RTR.
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
            // LID 0 is no address.
            (0, Some(grh)) => Route::Roce(grh),
            (dlid, grh) => Route::Infiniband { dlid, src_path_bits: raw.src_path_bits, grh },
        };
        Some(Self { port_num: raw.port_num, route, service_level: raw.sl })
    }

    /// The C struct, unless a value does not fit its field.
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

/// An address handle: a path that datagrams can take (`struct ibv_ah`).
///
/// # Dropping it early
///
/// A [batch](crate::DatagramBatch) keeps it until it is committed, since the driver reads it then.
/// Dropped while a send that names it is outstanding, it may cost that send, and never memory. Of
/// rdma-core's providers (version 44), mlx4, mlx5, hns, pvrdma and mthca without memory of its own
/// copy the address into the request, which goes on. rxe, efa, irdma, bnxt and ocrdma copy the
/// handle's number: the send fails, or goes where a handle points that was given the number since.
/// Older mthca lets the device fetch the address from a page of the provider's, registered for as
/// long as it is allocated (`mthca_free_av`): likewise.
#[derive(Debug)]
pub struct AddressHandle {
    raw: Owned<ibv_ah>,
    pd: ProtectionDomain,
}

impl ProtectionDomain {
    /// A new address handle.
    ///
    /// # Errors
    ///
    /// A value that does not fit its field. EINVAL: no such port or GID index; ENETUNREACH,
    /// EHOSTUNREACH, ETIMEDOUT: no way to the GID.
    pub fn create_ah(&self, path: &Path) -> Result<AddressHandle, ModifyError> {
        let mut attr = path.raw()?;
        // SAFETY: the domain is alive, and the attributes are only read.
        let raw = unsafe { rdma_sys::ibv_create_ah(self.as_ptr(), &raw mut attr) };
        let argument = Argument::Number("port_num", path.port_num.into());
        // SAFETY: null, or a fresh handle that is handed over.
        let raw = unsafe { Owned::new(raw, "ibv_create_ah", argument) }?;
        Ok(AddressHandle { raw, pd: self.clone() })
    }
}

impl AddressHandle {
    /// The domain it was made in.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// What the driver reports.
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
        // SAFETY: both readings of the union are plain bytes.
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
