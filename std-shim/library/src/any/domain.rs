//! Devices.

use super::completion_queue::AnyCompletionQueue;
use super::dispatch::{any, each};
use super::queue_pair::AnyQueuePair;
use super::receive_queue::AnySharedReceiveQueue;
use super::region::AnyRegion;
use crate::backend::{
    Connecting, DeviceError, DeviceEvent, DmaBuf, Domain, EventCursor, MemoryOwner, MemoryRange,
    Port, QpCap,
};
use crate::memory::RegionKeys;
use crate::nic;
#[cfg(feature = "verbs")]
use crate::rdma;
#[cfg(feature = "tcp")]
use crate::tcp;
use polyrail_core::verbs::{AccessFlags, DeviceId};

any! {
    /// An open device of any backend, with a protection domain and the ports that rails use.
    /// Cloning is cheap: clones share the device.
    ///
    /// Completion queues and shared receive queues of one backend are refused by devices of another
    /// ([`DeviceError::OtherBackend`]).
    #[derive(Clone, Debug)]
    AnyDomain: nic::ProtectionDomain, tcp::ProtectionDomain, rdma::VerbsDomain
}

/// A domain of one backend.
trait Backend:
    Domain<
        Qp: Into<AnyQueuePair>,
        Cq: Into<AnyCompletionQueue>,
        Srq: Into<AnySharedReceiveQueue>,
        Region: Into<AnyRegion>,
    > + Into<AnyDomain>
{
    /// Returns the completion queue inside, if it is of this backend.
    fn cq_in(cq: &AnyCompletionQueue) -> Option<&Self::Cq>;

    fn cq_in_mut(cq: &mut AnyCompletionQueue) -> Option<&mut Self::Cq>;

    /// Returns the shared receive queue inside, if it is of this backend.
    fn srq_in(srq: &AnySharedReceiveQueue) -> Option<&Self::Srq>;

    fn other_backend(&self, object: &'static str) -> DeviceError {
        DeviceError::OtherBackend { device: self.device_name().into(), object }
    }

    fn cq<'c>(&self, cq: &'c AnyCompletionQueue) -> Result<&'c Self::Cq, DeviceError> {
        Self::cq_in(cq).ok_or_else(|| self.other_backend("completion queue"))
    }

    fn srq<'s>(&self, srq: &'s AnySharedReceiveQueue) -> Result<&'s Self::Srq, DeviceError> {
        Self::srq_in(srq).ok_or_else(|| self.other_backend("shared receive queue"))
    }

    fn resize_any(&self, cq: &mut AnyCompletionQueue, capacity: u32) -> Result<(), DeviceError> {
        let cq = Self::cq_in_mut(cq).ok_or_else(|| self.other_backend("completion queue"))?;
        self.resize_cq(cq, capacity)
    }

    fn make_any_aside<T: Send + 'static>(
        &self,
        (cq, srq): (&AnyCompletionQueue, Option<&AnySharedReceiveQueue>),
        cap: QpCap,
        port: u8,
        steps: impl FnOnce(AnyQueuePair, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<T> {
        let srq = srq.map(|srq| self.srq(srq)).transpose();
        match self.cq(cq).and_then(|cq| Ok((cq, srq?))) {
            Ok(queues) => self.make_aside(queues, cap, port, |qp, port| steps(qp.into(), port)),
            Err(error) => Connecting::done(Err(error)),
        }
    }
}

macro_rules! backend {
    ($domain:ty, $variant:ident) => {
        impl Backend for $domain {
            fn cq_in(cq: &AnyCompletionQueue) -> Option<&Self::Cq> {
                match cq {
                    AnyCompletionQueue::$variant(cq) => Some(cq),
                    #[allow(
                        unreachable_patterns,
                        reason = "without features, there is one backend"
                    )]
                    _ => None,
                }
            }

            fn cq_in_mut(cq: &mut AnyCompletionQueue) -> Option<&mut Self::Cq> {
                match cq {
                    AnyCompletionQueue::$variant(cq) => Some(cq),
                    #[allow(
                        unreachable_patterns,
                        reason = "without features, there is one backend"
                    )]
                    _ => None,
                }
            }

            fn srq_in(srq: &AnySharedReceiveQueue) -> Option<&Self::Srq> {
                match srq {
                    AnySharedReceiveQueue::$variant(srq) => Some(srq),
                    #[allow(
                        unreachable_patterns,
                        reason = "without features, there is one backend"
                    )]
                    _ => None,
                }
            }
        }
    };
}

backend!(nic::ProtectionDomain, Software);
#[cfg(feature = "tcp")]
backend!(tcp::ProtectionDomain, Tcp);
#[cfg(feature = "verbs")]
backend!(rdma::VerbsDomain, Verbs);

/// Converts a region, with its keys.
fn registered<R: Into<AnyRegion>>((region, keys): (R, RegionKeys)) -> (AnyRegion, RegionKeys) {
    (region.into(), keys)
}

impl Domain for AnyDomain {
    type Qp = AnyQueuePair;
    type Cq = AnyCompletionQueue;
    type Srq = AnySharedReceiveQueue;
    type Region = AnyRegion;

    fn device_id(&self) -> DeviceId {
        each!(AnyDomain, self, domain => domain.device_id())
    }

    fn device_name(&self) -> &str {
        each!(AnyDomain, self, domain => domain.device_name())
    }

    fn is_tcp(&self) -> bool {
        each!(AnyDomain, self, domain => domain.is_tcp())
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        each!(AnyDomain, self, domain => domain.separate().map(Into::into))
    }

    fn max_qp_wr(&self) -> u32 {
        each!(AnyDomain, self, domain => domain.max_qp_wr())
    }

    fn max_sge(&self) -> u32 {
        each!(AnyDomain, self, domain => domain.max_sge())
    }

    fn max_srq_wr(&self) -> u32 {
        each!(AnyDomain, self, domain => domain.max_srq_wr())
    }

    fn max_region_bytes(&self) -> u64 {
        each!(AnyDomain, self, domain => domain.max_region_bytes())
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        each!(AnyDomain, self, domain => domain.ports())
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        each!(AnyDomain, self, domain => domain.port(number))
    }

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        each!(AnyDomain, self, domain => domain.port_mbps(number))
    }

    fn is_gone(&self) -> bool {
        each!(AnyDomain, self, domain => Domain::is_gone(domain))
    }

    fn event_cursor(&self) -> EventCursor {
        each!(AnyDomain, self, domain => domain.event_cursor())
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        each!(AnyDomain, self, domain => domain.next_event(reader))
    }

    fn create_cq(&self, capacity: u32) -> Result<AnyCompletionQueue, DeviceError> {
        each!(AnyDomain, self, domain => domain.create_cq(capacity).map(Into::into))
    }

    fn create_cq_with_channel(
        &self,
        capacity: u32,
        comp_vector: u32,
    ) -> Result<AnyCompletionQueue, DeviceError> {
        each!(AnyDomain, self, domain => {
            domain.create_cq_with_channel(capacity, comp_vector).map(Into::into)
        })
    }

    fn resize_cq(&self, cq: &mut AnyCompletionQueue, capacity: u32) -> Result<(), DeviceError> {
        each!(AnyDomain, self, domain => domain.resize_any(cq, capacity))
    }

    fn create_qp(&self, cq: &AnyCompletionQueue, cap: QpCap) -> Result<AnyQueuePair, DeviceError> {
        each!(AnyDomain, self, domain => Ok(Domain::create_qp(domain, domain.cq(cq)?, cap)?.into()))
    }

    fn create_srq(&self, max_wr: u32) -> Result<AnySharedReceiveQueue, DeviceError> {
        each!(AnyDomain, self, domain => Domain::create_srq(domain, max_wr).map(Into::into))
    }

    fn create_qp_with_srq(
        &self,
        cq: &AnyCompletionQueue,
        srq: &AnySharedReceiveQueue,
        cap: QpCap,
    ) -> Result<AnyQueuePair, DeviceError> {
        each!(AnyDomain, self, domain => {
            Ok(domain.create_qp_with_srq(domain.cq(cq)?, domain.srq(srq)?, cap)?.into())
        })
    }

    fn make_aside<T: Send + 'static>(
        &self,
        queues: (&AnyCompletionQueue, Option<&AnySharedReceiveQueue>),
        cap: QpCap,
        port: u8,
        steps: impl FnOnce(AnyQueuePair, Port) -> Result<T, DeviceError> + Send + 'static,
    ) -> Connecting<T> {
        each!(AnyDomain, self, domain => domain.make_any_aside(queues, cap, port, steps))
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        each!(AnyDomain, self, domain => domain.has_on_demand_paging())
    }

    fn pins_memory(&self) -> bool {
        each!(AnyDomain, self, domain => domain.pins_memory())
    }

    unsafe fn register_memory(
        &self,
        memory: MemoryRange,
        access: AccessFlags,
        owner: Option<MemoryOwner>,
    ) -> Result<(AnyRegion, RegionKeys), DeviceError> {
        each!(AnyDomain, self, domain => {
            // SAFETY: guaranteed by the caller.
            unsafe { domain.register_memory(memory, access, owner) }.map(registered)
        })
    }

    unsafe fn register_dma_buf(
        &self,
        dma_buf: &DmaBuf<'_>,
        access: AccessFlags,
    ) -> Result<(AnyRegion, RegionKeys), DeviceError> {
        each!(AnyDomain, self, domain => {
            // SAFETY: guaranteed by the caller.
            unsafe { domain.register_dma_buf(dma_buf, access) }.map(registered)
        })
    }
}
