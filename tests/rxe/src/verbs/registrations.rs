//! Memory of the caller's own, as endpoints use it, and how its packets travel.

use crate::fixture::{GID_INDEX, Rails};
use polyrail::backend::{Connect, ConnectOptions, DeviceError, DmaBuf, Domain, QpCap, RemoteQp};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::{
    CacheLimits, ForeignBuffer, RegisteredBuffer, RegistrationCache, StillRegistered,
};
use polyrail::rdma::{CompletionQueue, OpenOptions, QueuePair, VerbsDomain, open_devices};
use polyrail_core::verbs::{AccessFlags, SendWr, WcStatus};
use polyrail_ffi::Route;
use std::os::fd::AsFd;

const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

fn domains(end: &str) -> [VerbsDomain; 2] {
    let names = [0, 1].map(|rail| format!("rxe{end}{rail}").parse().unwrap());
    let domains =
        open_devices(&names, &OpenOptions { gid_index: Some(GID_INDEX), ..OpenOptions::default() })
            .unwrap();
    domains.try_into().unwrap()
}

/// Connected endpoints.
fn endpoints(
    near: &[&VerbsDomain],
    far: &[&VerbsDomain],
) -> [Endpoint<QueuePair, CompletionQueue>; 2] {
    let builder = EndpointBuilder::new().rails(2);
    let mut ends = [near, far].map(|domains| builder.build(domains).unwrap());
    let [near, far] = &mut ends;
    connect_endpoints(near, far).unwrap();
    ends
}

/// The status of a request, once it is done.
fn run([near, far]: &mut [Endpoint<QueuePair, CompletionQueue>; 2], wr: &SendWr<'_>) -> WcStatus {
    near.post_send(wr).unwrap();
    loop {
        _ = far.poll(1);
        if let Some(done) = near.poll(1).completions.pop() {
            return done.status;
        }
    }
}

pub(super) fn memory_of_the_callers_own_is_reached_until_it_is_closed(_: &Rails) {
    const LENGTH: usize = 300_000;
    let near = domains("A");
    let far = domains("B");
    let near: Vec<_> = near.iter().collect();
    let far: Vec<_> = far.iter().collect();
    let mut ends = endpoints(&near, &far);
    let from = vec![7u8; LENGTH];
    let mut to = vec![0u8; LENGTH];
    let start = from.as_ptr().cast_mut();
    // SAFETY: it is never written, and it is closed before it is freed.
    let source = unsafe { ForeignBuffer::new(start, LENGTH, AccessFlags::empty(), &near) }.unwrap();
    // SAFETY: it is closed before anybody touches the bytes.
    let target = unsafe { ForeignBuffer::new(to.as_mut_ptr(), LENGTH, WRITABLE, &far) }.unwrap();
    let keys = source.toward(&target.remote()).unwrap();
    let local = source.local(0, LENGTH as u32).unwrap();
    let write = SendWr::write(1, local, target.addr(), &keys);
    assert_eq!(run(&mut ends, &write), WcStatus::SUCCESS);
    target.close().unwrap();
    assert_eq!(to, from);
    to.fill(0);
    assert_eq!(run(&mut ends, &write), WcStatus::REM_ACCESS_ERR);
    assert!(to.iter().all(|byte| *byte == 0));
    source.close().unwrap();
}

pub(super) fn registrations_are_cached_by_range(_: &Rails) {
    let near = domains("A");
    let far = domains("B");
    let near: Vec<_> = near.iter().collect();
    let far: Vec<_> = far.iter().collect();
    let mut ends = endpoints(&near, &far);
    let target = RegisteredBuffer::new(4096, WRITABLE, &far).unwrap();
    let limits = CacheLimits { max_registrations: 1, ..CacheLimits::default() };
    let cache = RegistrationCache::new(&near, limits);
    let bytes = vec![7u8; 8192];
    let at = |start: usize| bytes.as_ptr().cast_mut().wrapping_add(start);
    let get = |start: usize, length: usize| {
        // SAFETY: the bytes are never written, and they are freed after the cache is closed.
        unsafe { cache.get(at(start), length, AccessFlags::empty()) }.unwrap()
    };
    let mut write = |start: usize| {
        let part = get(start, 100);
        let keys = part.toward(&target.remote()).unwrap();
        let local = part.local(0, 100).unwrap();
        assert_eq!(
            run(&mut ends, &SendWr::write(1, local, target.addr(), &keys)),
            WcStatus::SUCCESS
        );
        part.keys()[0].lkey
    };
    let whole = get(0, 4096);
    assert_eq!(write(1000), whole.keys()[0].lkey);
    assert_ne!(write(5000), whole.keys()[0].lkey);
    assert_eq!(cache.counters().registrations, 1, "the other one is in use");
    assert_eq!(cache.invalidate(at(0), 1), Err(StillRegistered { used: 1, kept: 0 }));
    drop(whole);
    assert_eq!(cache.invalidate(at(0), 8192), Ok(()));
    write(0);
    assert_eq!(cache.close(), Ok(()));
}

pub(super) fn memory_that_the_driver_cannot_register_is_refused_by_its_kind(_: &Rails) {
    let [domain, _] = domains("A");
    let mut bytes = [0u8; 64];
    let paged = WRITABLE | AccessFlags::ON_DEMAND;
    // SAFETY: nothing is registered.
    let refused = unsafe { ForeignBuffer::new(bytes.as_mut_ptr(), 64, paged, &[&domain]) };
    let device = domain.device_name().into();
    assert_eq!(refused.unwrap_err(), DeviceError::NoOnDemandPaging { device });
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let dma_buf = DmaBuf { fd: file.as_fd(), offset: 0, length: 4096, iova: 0 };
    // SAFETY: nothing is registered: the file is not a dma-buf.
    let refused = unsafe { ForeignBuffer::of_dma_buf(&dma_buf, WRITABLE, &[&domain]) };
    let error = refused.unwrap_err();
    let DeviceError::Register { source, .. } = &error else { panic!("{error}") };
    assert_eq!((source.call, source.errno), ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP));
}

pub(super) fn queue_pairs_tell_their_packets_from_others(_: &Rails) {
    let [domain, _] = domains("A");
    let options = ConnectOptions {
        traffic_class: 106,
        flow_label: 0xabcde,
        pkey_index: 9,
        ..ConnectOptions::default()
    };
    let cq = domain.create_cq(16).unwrap();
    let qp = domain.create_qp(&cq, QpCap::default()).unwrap();
    let port = domain.ports().unwrap()[0];
    let peer = RemoteQp { gid: port.gid, lid: port.lid, qp_num: 17, psn: 7, meeting: None };
    qp.init(&port, &options).unwrap();
    qp.ready_to_receive(&port, &peer, &options).unwrap();
    let set = qp.query().unwrap();
    let path = set.path.unwrap();
    let Route::Roce(grh) = path.route else { panic!("{path:?}") };
    // Not checked: the hop limit, which Linux takes from its own route, and the service level,
    // which rxe does not keep.
    assert_eq!((grh.traffic_class, grh.flow_label), (106, 0xabcde));
    // rxe takes any place in the table.
    assert_eq!(set.pkey_index, 9);
}
