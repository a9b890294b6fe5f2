//! On-demand paging: registered memory that is not pinned.

use crate::context::Context;
use crate::error::{Argument, Result, VerbsError};
use crate::sys;
use bitflags::bitflags;
use rdma_sys::{ibv_device_attr_ex, ibv_odp_general_caps, ibv_odp_transport_cap_bits as cap};
use std::mem::MaybeUninit;

bitflags! {
    /// Requests that may touch memory registered on demand (`enum ibv_odp_transport_cap_bits`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OnDemandRequests: u32 {
        /// SENDs may read it.
        const SEND = cap::IBV_ODP_SUPPORT_SEND.0;
        /// Receives may write it.
        const RECV = cap::IBV_ODP_SUPPORT_RECV.0;
        /// WRITEs may read it locally and write it remotely.
        const WRITE = cap::IBV_ODP_SUPPORT_WRITE.0;
        /// READs may write it locally and read it remotely.
        const READ = cap::IBV_ODP_SUPPORT_READ.0;
        /// Atomics may modify it.
        const ATOMIC = cap::IBV_ODP_SUPPORT_ATOMIC.0;
        /// Receives from shared receive queues may write it.
        const SRQ_RECV = cap::IBV_ODP_SUPPORT_SRQ_RECV.0;
    }
}

/// On-demand paging capabilities of a device (`struct ibv_odp_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDemandPaging {
    /// Whether the device supports [`ON_DEMAND`](polyrail_core::verbs::AccessFlags::ON_DEMAND).
    pub supported: bool,
    /// Whether a region may span the whole address space.
    pub implicit: bool,
    /// Requests over reliable connections.
    pub rc: OnDemandRequests,
    /// Requests over unreliable connections.
    pub uc: OnDemandRequests,
    /// Datagrams.
    pub ud: OnDemandRequests,
}

impl OnDemandPaging {
    fn from_raw(raw: &ibv_device_attr_ex) -> Self {
        let general = raw.odp_caps.general_caps;
        let has = |asked: ibv_odp_general_caps| general & u64::from(asked.0) != 0;
        let transport = &raw.odp_caps.per_transport_caps;
        Self {
            supported: has(ibv_odp_general_caps::IBV_ODP_SUPPORT),
            implicit: has(ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT),
            rc: OnDemandRequests::from_bits_retain(transport.rc_odp_caps),
            uc: OnDemandRequests::from_bits_retain(transport.uc_odp_caps),
            ud: OnDemandRequests::from_bits_retain(transport.ud_odp_caps),
        }
    }
}

impl Context {
    /// Queries the on-demand paging capabilities. They are all unset if the device or its driver
    /// does not support the query.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn on_demand_paging(&self) -> Result<OnDemandPaging> {
        const CALL: &str = "ibv_query_device_ex";
        let context = self.for_call(CALL)?;
        let mut raw = MaybeUninit::<ibv_device_attr_ex>::zeroed();
        // SAFETY: the context is open.
        let returned = unsafe { sys::query_device_ex(context, raw.as_mut_ptr()) };
        if matches!(sys::errno_of(returned), libc::EOPNOTSUPP | libc::ENOSYS) {
            return Ok(OnDemandPaging::default());
        }
        let argument = Argument::Device(self.device_name());
        VerbsError::check(returned, CALL, argument)?;
        // SAFETY: plain numbers, which the driver wrote or left zero.
        Ok(OnDemandPaging::from_raw(unsafe { raw.assume_init_ref() }))
    }
}
