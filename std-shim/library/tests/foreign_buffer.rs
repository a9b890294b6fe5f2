//! Memory of the caller's own, as its owner sees it.

mod recorded;

use polyrail::backend::{DeviceError, DmaBuf};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::{ForeignBuffer, RegisteredBuffer};
use polyrail::nic::{DeviceLimits, Fabric, Fault, NicError, When};
use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
use recorded::{Recorded, RecordedQp, RecordedRegion};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
fn devices_register_long_memory_at_the_same_time() {
    let fabric = Fabric::threaded();
    let together = Arc::new((AtomicUsize::new(0), 8));
    let small = DeviceLimits { max_mr: 1, ..DeviceLimits::default() };
    let domains: Vec<_> = (0..8)
        .map(|at| {
            let limits = if at == 5 { small } else { DeviceLimits::default() };
            let domain = Recorded::on(&fabric, &format!("d{at}"), limits);
            Recorded { registers_with: Some(Arc::clone(&together)), ..domain }
        })
        .collect();
    let all: Vec<_> = domains.iter().collect();
    let mut bytes = vec![0; 4 << 20];
    let buffer = register(&mut bytes, WRITABLE, &all).unwrap();
    let ids: Vec<_> = domains.iter().map(|each| each.domain.device().id()).collect();
    assert_eq!(buffer.keys().iter().map(|keys| keys.device).collect::<Vec<_>>(), ids);

    // One of them has no room for a second region, and the others undo theirs.
    together.0.store(0, Ordering::SeqCst);
    let mut more = vec![0; 4 << 20];
    let refused = register(&mut more, WRITABLE, &all).unwrap_err();
    assert!(matches!(refused, DeviceError::Nic(NicError::Limit { limit: 1, .. })), "{refused}");
    assert!(domains.iter().all(|each| each.regions() == 1));
    buffer.close().unwrap();
    assert!(domains.iter().all(|each| each.regions() == 0));
}

/// A thread costs more than it saves if the memory is short, or only one device is slow.
#[test]
fn other_memory_is_registered_on_the_callers_thread() {
    const LONG: usize = 1 << 20;
    for (length, slow, is_here) in [
        (LONG, [true, true], [true, false]),
        (LONG - 1, [true, true], [true, true]),
        (LONG, [true, false], [true, true]),
        (LONG, [false, true], [true, true]),
        (LONG, [false, false], [true, true]),
    ] {
        let mut at = 0..2;
        let domains = domains([DeviceLimits::default(); 2])
            .map(|domain| Recorded { pins_memory: slow[at.next().unwrap()], ..domain });
        let mut bytes = vec![0; length];
        let buffer = register(&mut bytes, WRITABLE, &[&domains[0], &domains[1]]).unwrap();
        let here = Some(thread::current().id());
        let was_here = domains.each_ref().map(|each| *each.registered_on.lock().unwrap() == here);
        assert_eq!(was_here, is_here, "{length} bytes, slow: {slow:?}");
        buffer.close().unwrap();
    }
}

/// A refusal that needs no registration comes before any.
#[test]
fn access_that_one_device_lacks_is_refused_before_another_one_registers() {
    let pages = DeviceLimits { on_demand_paging: true, ..DeviceLimits::default() };
    let domains = domains([pages, DeviceLimits::default()]);
    let mut bytes = vec![0; 64];
    let access = WRITABLE | AccessFlags::ON_DEMAND;
    register(&mut bytes, access, &[&domains[0], &domains[1]]).unwrap_err();
    assert!(domains.iter().all(|each| each.registered_on.lock().unwrap().is_none()));
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
fn memory_that_is_longer_than_a_region_of_one_device_is_refused_with_the_limit() {
    let short = DeviceLimits { max_mr_size: 4096, ..DeviceLimits::default() };
    let [a, b] = domains([DeviceLimits::default(), short]);
    let mut bytes = vec![0; 4097];
    let refused = register(&mut bytes, WRITABLE, &[&a, &b]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "device b cannot register 4097 bytes as one region: its limit is 4096, so register the \
         memory in parts"
    );
    let DeviceError::RegionTooLong { device, length, limit, source } = refused else { panic!() };
    assert_eq!((&*device, length, limit), ("b", 4097, 4096));
    assert!(matches!(*source, DeviceError::Nic(NicError::Limit { limit: 4096, .. })), "{source}");
    assert_eq!((a.regions(), b.regions()), (0, 0));
    assert!(matches!(
        RegisteredBuffer::new(4097, WRITABLE, &[&a, &b]),
        Err(DeviceError::RegionTooLong { limit: 4096, .. })
    ));
    // Parts are several registrations.
    let (first, second) = bytes.split_at_mut(4096);
    let parts = [first, second].map(|part| register(part, WRITABLE, &[&a, &b]).unwrap());
    assert_ne!(parts[0].keys(), parts[1].keys());
    assert_eq!((a.regions(), b.regions()), (2, 2));
    parts.into_iter().for_each(|part| part.close().unwrap());
}

/// Drivers refuse for many reasons.
#[test]
fn a_refusal_that_is_not_about_the_length_stays_as_it_is() {
    let [a, _] = domains([DeviceLimits::default(); 2]);
    let mut bytes = vec![0; 64];
    let refused = register(&mut bytes, AccessFlags::REMOTE_WRITE, &[&a]).unwrap_err();
    assert!(matches!(refused, DeviceError::Nic(_)), "{refused}");
}

#[test]
fn memory_is_registered_without_a_device_that_is_gone() {
    let pages = DeviceLimits { on_demand_paging: true, ..DeviceLimits::default() };
    for length in [64, 1 << 20] {
        for gone in [0, 1] {
            let domains = domains([pages; 2]);
            let all: Vec<_> = domains.iter().collect();
            let mut bytes = vec![0; length];
            domains[gone].domain.device().inject(When::Now, Fault::DeviceGone);
            for access in [WRITABLE, WRITABLE | AccessFlags::ON_DEMAND] {
                let buffer = register(&mut bytes, access, &all).unwrap();
                let keys = buffer.keys();
                let ids: Vec<_> = keys.iter().map(|keys| keys.device).collect();
                assert_eq!(ids, [0, 1].map(|at| domains[at].domain.device().id()));
                assert_eq!((keys[gone].lkey, keys[gone].rkey), (0, 0));
                assert_ne!(keys[1 - gone].lkey, 0);
                assert_eq!((buffer.regions().len(), buffer.remote().rkeys.len()), (1, 2));
                assert_eq!([domains[gone].regions(), domains[1 - gone].regions()], [0, 1]);
                buffer.close().unwrap();
            }
            // There has to be one, and a refusal of the other one counts.
            assert_eq!(
                register(&mut bytes, WRITABLE, &[all[gone]]).unwrap_err(),
                DeviceError::Nic(NicError::DeviceGone)
            );
            let zero_based = WRITABLE | AccessFlags::ZERO_BASED;
            assert_eq!(register(&mut bytes, zero_based, &all).unwrap_err(), DeviceError::ZeroBased);
            domains[1 - gone].domain.device().inject(When::Now, Fault::DeviceGone);
            assert_eq!(
                register(&mut bytes, WRITABLE, &all).unwrap_err(),
                DeviceError::Nic(NicError::DeviceGone)
            );
            assert_eq!(domains.each_ref().map(Recorded::regions), [0, 0]);
        }
    }
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
