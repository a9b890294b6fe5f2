use super::*;
use crate::backend::{DeviceEvent, MemoryOwner, MemoryRange, Port};
use crate::memory::RegisteredBuffer;
use polyrail_software_nic::{
    CompletionQueue, DeviceConfig, EventCursor, Fabric, MemoryRegion, NicError, Pages,
    ProtectionDomain, QpCap, QueuePair, SharedReceiveQueue,
};
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn keys_pair_up_by_the_place_of_the_device() {
    let fabric = Fabric::threaded();
    let domains: Vec<_> = ["a", "b", "c"]
        .map(|name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap())
        .into();
    let access = AccessFlags::LOCAL_WRITE;
    let here = RegisteredBuffer::new(64, access, &[&domains[0]]).unwrap();
    let there = RegisteredBuffer::new(64, access, &[&domains[1], &domains[2]]).unwrap();
    let keys = there.toward(&there.remote()).unwrap();
    assert_eq!(keys[1].device, domains[2].device().id());
    assert_eq!(keys[1].rkey, there.keys()[1].rkey);
    let keys = here.toward(&there.remote()).unwrap();
    let pairs: Vec<_> = keys.iter().map(|keys| (keys.lkey, keys.rkey)).collect();
    let [own] = here.keys() else { panic!("one") };
    assert_eq!(pairs, [0, 1].map(|far| (own.lkey, there.keys()[far].rkey)));
    let back = there.toward(&here.remote()).unwrap();
    let pairs: Vec<_> = back.iter().map(|keys| (keys.lkey, keys.rkey)).collect();
    assert_eq!(pairs, [0, 1].map(|near| (there.keys()[near].lkey, own.rkey)));
    // Limited to the number of rails, whatever the peer sends.
    let many = RemoteBuffer { addr: 0, length: 1, rkeys: vec![0; 1000] };
    assert_eq!(there.toward(&many).unwrap().len(), MAX_RAILS);
    let none = RemoteBuffer { rkeys: vec![], ..many };
    let mismatch = DeviceCountMismatch { local: 1, remote: 0 };
    assert_eq!(here.toward(&none), Err(mismatch));
    assert_eq!(here.local_keys()[0].lkey, here.keys()[0].lkey);
}

/// A domain whose device refuses registrations, and reports its end only after it was asked.
#[derive(Clone)]
struct Leaving {
    inner: ProtectionDomain,
    refuses: bool,
    asked: Arc<AtomicU32>,
}

impl Leaving {
    fn register(&self, pages: &Arc<Pages>) -> Result<(MemoryRegion, RegionKeys), DeviceError> {
        if self.refuses {
            return Err(NicError::DeviceGone.into());
        }
        Domain::register_pages(&self.inner, pages, AccessFlags::LOCAL_WRITE)
    }
}

impl Domain for Leaving {
    type Qp = QueuePair;
    type Cq = CompletionQueue;
    type Srq = SharedReceiveQueue;
    type Region = MemoryRegion;

    fn device_id(&self) -> DeviceId {
        self.inner.device_id()
    }

    fn device_name(&self) -> &str {
        self.inner.device_name()
    }

    /// Returns false at the first call, and true from then on, if the device refuses.
    fn is_gone(&self) -> bool {
        self.refuses && self.asked.fetch_add(1, Ordering::Relaxed) > 0
    }

    fn max_region_bytes(&self) -> u64 {
        self.inner.max_region_bytes()
    }

    fn has_on_demand_paging(&self) -> Result<bool, DeviceError> {
        self.inner.has_on_demand_paging()
    }

    fn separate(&self) -> Result<Self, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn max_qp_wr(&self) -> u32 {
        unreachable!("a registration does not call this")
    }

    fn max_sge(&self) -> u32 {
        unreachable!("a registration does not call this")
    }

    fn max_srq_wr(&self) -> u32 {
        unreachable!("a registration does not call this")
    }

    fn ports(&self) -> Result<Vec<Port>, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn port(&self, _: u8) -> Result<Port, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn event_cursor(&self) -> EventCursor {
        unreachable!("a registration does not call this")
    }

    fn next_event(&self, _: &mut EventCursor) -> Option<DeviceEvent> {
        unreachable!("a registration does not call this")
    }

    fn create_cq(&self, _: u32) -> Result<CompletionQueue, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn create_cq_with_channel(&self, _: u32, _: u32) -> Result<CompletionQueue, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn resize_cq(&self, _: &mut CompletionQueue, _: u32) -> Result<(), DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn create_qp(&self, _: &CompletionQueue, _: QpCap) -> Result<QueuePair, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn create_srq(&self, _: u32) -> Result<SharedReceiveQueue, DeviceError> {
        unreachable!("a registration does not call this")
    }

    fn create_qp_with_srq(
        &self,
        _: &CompletionQueue,
        _: &SharedReceiveQueue,
        _: QpCap,
    ) -> Result<QueuePair, DeviceError> {
        unreachable!("a registration does not call this")
    }

    unsafe fn register_memory(
        &self,
        _: MemoryRange,
        _: AccessFlags,
        _: Option<MemoryOwner>,
    ) -> Result<(MemoryRegion, RegionKeys), DeviceError> {
        unreachable!("the registration is given what registers")
    }
}

#[test]
fn a_device_that_ends_meanwhile_leaves_no_device_without_keys() {
    let fabric = Fabric::threaded();
    let pages = Arc::new(Pages::new(64).unwrap());
    for (refusing, expected) in [(0, None), (1, None), (2, Some(2))] {
        let domains: Vec<Leaving> = (0..3)
            .map(|place| {
                let device = fabric.create_device(DeviceConfig::named(format!("soft{place}")));
                let inner = device.alloc_pd().unwrap();
                Leaving { inner, refuses: place == refusing, asked: Arc::default() }
            })
            .collect();
        let listed: Vec<&Leaving> = domains.iter().collect();
        let access = AccessFlags::LOCAL_WRITE;
        let registered =
            Registration::new((0, 64), access, &listed, |domain| domain.register(&pages));
        match registered {
            // All devices were asked before the last one reported its end.
            Ok(registration) => {
                assert_eq!(expected, Some(registration.regions().len()), "{refusing}");
                let keys = registration.keys();
                assert_eq!(keys.len(), 3);
                assert_eq!((keys[2].lkey, keys[2].rkey), (0, 0));
            }
            Err(error) => {
                assert_eq!(expected, None, "{refusing}: {error}");
                assert!(matches!(error, DeviceError::Nic(NicError::DeviceGone)), "{error}");
            }
        }
    }
}
