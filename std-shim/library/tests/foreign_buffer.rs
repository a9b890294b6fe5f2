//! Memory of the caller's own, as its owner sees it.

mod recorded;

use polyrail::backend::{DeviceError, DmaBuf};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::{ForeignBuffer, RegisteredBuffer};
use polyrail::nic::{DeviceLimits, Fabric, NicError};
use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
use recorded::{Recorded, RecordedQp, RecordedRegion};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

fn domains(limits: [DeviceLimits; 2]) -> [Recorded; 2] {
    let fabric = Fabric::threaded();
    let mut names = ["a", "b"].into_iter();
    limits.map(|limits| Recorded::on(&fabric, names.next().unwrap(), limits))
}

fn register(
    bytes: &mut [u8],
    access: AccessFlags,
    domains: &[&Recorded],
) -> Result<ForeignBuffer<RecordedRegion>, DeviceError> {
    // SAFETY: every caller closes the buffer before it touches the bytes, or forgets both.
    unsafe { ForeignBuffer::new(bytes.as_mut_ptr(), bytes.len(), access, domains) }
}

#[test]
fn memory_of_the_callers_own_has_what_a_registered_buffer_has() {
    let [a, b] = domains([DeviceLimits::default(); 2]);
    let mut bytes = vec![0; 5000];
    let start = bytes.as_ptr().addr() as u64;
    let buffer = register(&mut bytes, WRITABLE, &[&a, &b]).unwrap();
    assert_eq!((buffer.addr(), buffer.len(), buffer.regions().len()), (start, 5000, 2));
    assert_eq!(buffer.keys_on(b.domain.device().id()), Some(buffer.keys()[1]));
    let remote = buffer.remote();
    assert_eq!((remote.addr, remote.length, remote.rkeys.len()), (start, 5000, 2));
    assert_eq!(buffer.toward(&remote).unwrap()[1].lkey, buffer.keys()[1].lkey);
    assert_eq!(buffer.local_keys()[0].rkey, 0);
    let part = buffer.local(1000, 4000).unwrap();
    assert_eq!((part.addr(), part.length()), (start + 1000, 4000));
    for (offset, length) in [(1000, 4001), (5001, 0), (usize::MAX, 1)] {
        assert!(buffer.local(offset, length).is_err(), "{length} from {offset} on");
    }
    assert_eq!((a.regions(), b.regions()), (1, 1));
    buffer.close().unwrap();
    assert_eq!((a.regions(), b.regions()), (0, 0));
}

#[test]
fn a_peer_writes_until_the_memory_is_closed_and_then_no_more() {
    let [a, b] = domains([DeviceLimits::default(); 2]);
    let builder = EndpointBuilder::new().rails(1);
    let mut near: Endpoint<RecordedQp> = builder.build(&[&a]).unwrap();
    let mut far: Endpoint<RecordedQp> = builder.build(&[&b]).unwrap();
    connect_endpoints(&mut near, &mut far).unwrap();
    let from = RegisteredBuffer::new(100, AccessFlags::empty(), &[&a]).unwrap();
    from.fill(0, 100, 7).unwrap();
    let mut bytes = vec![0; 100];
    let to = register(&mut bytes, WRITABLE, &[&b]).unwrap();
    let keys = from.toward(&to.remote()).unwrap();
    let addr = to.addr();
    let mut write = |offset: usize| {
        let local = from.local(offset, 50).unwrap();
        near.post_send(&SendWr::write(1, local, addr + offset as u64, &keys)).unwrap();
        loop {
            _ = far.poll(1);
            if let Some(done) = near.poll(1).completions.pop() {
                return done.status;
            }
        }
    };
    assert_eq!(write(0), WcStatus::SUCCESS);
    to.close().unwrap();
    assert_eq!(write(50), WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes, [[7; 50], [0; 50]].concat());
}

#[test]
fn an_owner_is_kept_until_the_last_device_has_let_go() {
    let [a, b] = domains([DeviceLimits::default(); 2]);
    let register = || {
        let owner = Arc::new([0u8; 64]);
        let start = owner.as_ptr().cast_mut();
        let kept = Arc::downgrade(&owner);
        let access = AccessFlags::empty();
        // SAFETY: the bytes are the owner's, and no request names them.
        let buffer = unsafe { ForeignBuffer::with_owner(start, 64, access, &[&a, &b], owner) };
        (buffer.unwrap(), kept)
    };
    let (dropped, kept) = register();
    assert_ne!(kept.strong_count(), 0);
    drop(dropped);
    assert_eq!(kept.strong_count(), 0);
    let (lost, kept) = register();
    b.keeps_regions.store(true, Ordering::Relaxed);
    assert!(matches!(lost.close(), Err(DeviceError::Deregister { errno: libc::EBUSY, .. })));
    assert_eq!(kept.strong_count(), 1, "b may still access it");
    assert_eq!((a.regions(), b.regions()), (0, 1));
}

#[test]
fn what_one_device_refuses_is_deregistered_with_the_others() {
    let none = DeviceLimits { max_mr: 0, ..DeviceLimits::default() };
    let [a, b] = domains([DeviceLimits::default(), none]);
    let mut bytes = vec![0; 64];
    let refused = register(&mut bytes, AccessFlags::empty(), &[&a, &b]).unwrap_err();
    assert!(matches!(refused, DeviceError::Nic(NicError::Limit { limit: 0, .. })), "{refused}");
    assert_eq!(a.regions(), 0);
    a.keeps_regions.store(true, Ordering::Relaxed);
    let kept = register(&mut bytes, AccessFlags::empty(), &[&a, &b]).unwrap_err();
    assert_eq!(
        kept.to_string(),
        "device stubborn may still access memory, because deregistering it failed: Device or resource busy \
         (os error 16)"
    );
    // The device never writes it.
    assert_eq!(a.regions(), 1);
}

#[test]
fn on_demand_paging_is_refused_by_devices_without_it() {
    let pages = DeviceLimits { on_demand_paging: true, ..DeviceLimits::default() };
    let [a, b] = domains([pages, DeviceLimits::default()]);
    let mut bytes = vec![0; 64];
    let access = WRITABLE | AccessFlags::ON_DEMAND;
    register(&mut bytes, access, &[&a]).unwrap().close().unwrap();
    let lacking = DeviceError::NoOnDemandPaging { device: "b".into() };
    assert_eq!(register(&mut bytes, access, &[&a, &b]).unwrap_err(), lacking);
    assert_eq!(RegisteredBuffer::new(64, access, &[&b]).unwrap_err(), lacking);
    assert!(RegisteredBuffer::new(64, access, &[&a]).is_ok());
    assert_eq!((a.regions(), b.regions()), (0, 0));
}

#[test]
fn what_has_no_meaning_is_refused() {
    let [a, _] = domains([DeviceLimits::default(); 2]);
    let mut bytes = vec![0; 64];
    let refused = |bytes: &mut [u8], access, domains: &[&Recorded]| {
        register(bytes, access, domains).unwrap_err()
    };
    assert_eq!(refused(&mut bytes, WRITABLE, &[]), DeviceError::NoDevice);
    let zero_based = WRITABLE | AccessFlags::ZERO_BASED;
    assert_eq!(refused(&mut bytes, zero_based, &[&a]), DeviceError::ZeroBased);
    assert!(matches!(refused(&mut [], WRITABLE, &[&a]), DeviceError::Nic(NicError::Zero { .. })));
    let file = tempfile::tempfile().unwrap();
    let dma_buf = DmaBuf { fd: file.as_fd(), offset: 0, length: 4096, iova: 0 };
    // SAFETY: nothing is registered.
    let registered = unsafe { ForeignBuffer::of_dma_buf(&dma_buf, WRITABLE, &[&a]) };
    assert_eq!(registered.unwrap_err(), DeviceError::NoDmaBuf { device: "a".into() });
}
