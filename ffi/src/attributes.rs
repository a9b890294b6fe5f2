//! Capabilities of a device.

use crate::error::{Argument, DeviceName, Result, VerbsError};
use rdma_sys::{ibv_atomic_cap, ibv_context, ibv_device_attr};
use std::mem::MaybeUninit;

/// The other operations that atomics are atomic with (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicCap {
    /// No atomics.
    None,
    /// Atomic with other atomics of the same device.
    Device,
    /// Atomic with the CPU and other devices, too.
    Global,
}

/// Capabilities of a device (`struct ibv_device_attr`). Limits are maxima; sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// GUID of the node.
    pub node_guid: u64,
    /// Vendor number, assigned by the IEEE.
    pub vendor_id: u32,
    /// The vendor's number for the device.
    pub vendor_part_id: u32,
    /// The vendor's number for the revision.
    pub hw_ver: u32,
    /// Size of the largest memory region.
    pub max_mr_size: u64,
    /// Page sizes that regions can have, as a bit set.
    pub page_size_cap: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Outstanding requests on one work queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries per request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions in one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Outstanding READs and atomics per queue pair, as the target.
    pub max_qp_rd_atom: u32,
    /// Outstanding READs and atomics per queue pair, as the initiator.
    pub max_qp_init_rd_atom: u32,
    /// Scope of atomics.
    pub atomic_cap: AtomicCap,
    /// Memory windows.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives in one shared receive queue.
    pub max_srq_wr: u32,
    /// Entries of a port's P_Key table.
    pub max_pkeys: u16,
    /// Physical ports, numbered from 1 on.
    pub phys_port_cnt: u8,
    /// `enum ibv_device_cap_flags`, as the driver set it.
    pub cap_flags: u32,
}

impl DeviceAttributes {
    /// Whether the device is rxe, the kernel's software RDMA driver.
    pub(crate) const fn is_rxe(&self) -> bool {
        /// The vendor number that rxe reports since Linux 5.8 (`RXE_VENDOR_ID`). No vendor has this
        /// number.
        const RXE_VENDOR_ID: u32 = 0x00ff_ffff;
        self.vendor_id == RXE_VENDOR_ID
    }

    pub(crate) fn query(context: *mut ibv_context, name: DeviceName) -> Result<Self> {
        let mut raw = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the caller's context is open; the struct is plain numbers, so zeros are valid.
        let returned = unsafe { rdma_sys::ibv_query_device(context, raw.as_mut_ptr()) };
        VerbsError::check(returned, "ibv_query_device", Argument::Device(name))?;
        // SAFETY: at least zeroed.
        Ok(Self::from_raw(unsafe { raw.assume_init_ref() }))
    }

    fn from_raw(raw: &ibv_device_attr) -> Self {
        let count = |number: libc::c_int| u32::try_from(number).unwrap_or(0);
        Self {
            node_guid: u64::from_be(raw.node_guid),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            hw_ver: raw.hw_ver,
            max_mr_size: raw.max_mr_size,
            page_size_cap: raw.page_size_cap,
            max_qp: count(raw.max_qp),
            max_qp_wr: count(raw.max_qp_wr),
            max_sge: count(raw.max_sge),
            max_cq: count(raw.max_cq),
            max_cqe: count(raw.max_cqe),
            max_mr: count(raw.max_mr),
            max_pd: count(raw.max_pd),
            max_qp_rd_atom: count(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: count(raw.max_qp_init_rd_atom),
            atomic_cap: match raw.atomic_cap {
                ibv_atomic_cap::IBV_ATOMIC_NONE => AtomicCap::None,
                ibv_atomic_cap::IBV_ATOMIC_HCA => AtomicCap::Device,
                _ => AtomicCap::Global,
            },
            max_mw: count(raw.max_mw),
            max_ah: count(raw.max_ah),
            max_srq: count(raw.max_srq),
            max_srq_wr: count(raw.max_srq_wr),
            max_pkeys: raw.max_pkeys,
            phys_port_cnt: raw.phys_port_cnt,
            cap_flags: raw.device_cap_flags,
        }
    }
}
