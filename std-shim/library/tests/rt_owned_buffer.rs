//! Memory that the program registers, and takes back, without `unsafe`, over the software NIC and
//! over TCP.

mod fixture;
mod recorded;

use bytes::{Bytes, BytesMut};
use fixture::LONG;
use memmap2::{Mmap, MmapMut};
use polyrail::any::{AnyCompletionQueue, AnyDomain, AnyQueuePair, OpenOptions, open_devices};
use polyrail::backend::{DeviceError, Domain};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::{OwnedBuffer, RegisterError, SharedBuffer};
use polyrail::nic::{DeviceLimits, Fabric, NicError};
use polyrail::verbs::{AccessFlags, DEVICE_ADDRESSES, RecvWr, SendFlags, SendWr, WcStatus};
use polyrail::virtual_qp::PostSendError;
use recorded::Recorded;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Instant;

const BYTES: usize = 100_000;
const NONE: AccessFlags = AccessFlags::empty();
const READABLE: AccessFlags = AccessFlags::REMOTE_READ;
const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

type Owned<M> = OwnedBuffer<M, <AnyDomain as Domain>::Region>;
type Shared<M> = SharedBuffer<M, <AnyDomain as Domain>::Region>;

/// Two connected ends, each on a device of its own.
struct Ends {
    domains: [AnyDomain; 2],
    near: Endpoint<AnyQueuePair, AnyCompletionQueue>,
    far: Endpoint<AnyQueuePair, AnyCompletionQueue>,
}

impl Ends {
    fn new(names: [&str; 2], rails: usize) -> Self {
        let opened = open_devices(&names, &OpenOptions::default()).unwrap();
        let domains: [AnyDomain; 2] = opened.try_into().unwrap();
        let builder = EndpointBuilder::new().rails(rails);
        let [mut near, mut far] = [0, 1].map(|at| builder.build(&[&domains[at]]).unwrap());
        connect_endpoints(&mut near, &mut far).unwrap();
        Self { domains, near, far }
    }

    fn here(&self) -> [&AnyDomain; 1] {
        [&self.domains[0]]
    }

    fn there(&self) -> [&AnyDomain; 1] {
        [&self.domains[1]]
    }

    /// Posts a request at the near end, and returns its status.
    fn done(&mut self, wr: &SendWr<'_>) -> WcStatus {
        self.near.post_send(wr).unwrap();
        self.next()
    }

    fn next(&mut self) -> WcStatus {
        let begin = Instant::now();
        loop {
            _ = self.far.poll(16);
            if let Some(done) = self.near.poll(1).completions.pop() {
                return done.status;
            }
            assert!(begin.elapsed() < LONG, "nothing is reported");
        }
    }
}

/// Ends over each backend that needs no hardware.
fn all_ends(rails: usize) -> [Ends; 2] {
    let names = [["software:near", "software:far"], ["tcp:127.3.0.1", "tcp:127.3.0.2"]];
    names.map(|names| Ends::new(names, rails))
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at % 251) as u8).collect()
}

/// Writes a pattern from one memory to another, and takes both back.
fn moves<A, B>(ends: &mut Ends, from: A, to: B) -> (A, B)
where
    A: AsMut<[u8]> + Send + Debug + 'static,
    B: AsMut<[u8]> + Send + Debug + 'static,
{
    let (mut from, mut to) = (from, to);
    from.as_mut().copy_from_slice(&pattern());
    let places = [from.as_mut().as_ptr(), to.as_mut().as_ptr()].map(<*const u8>::addr);
    let from = Owned::new(from, NONE, &ends.here()).unwrap();
    let to = Owned::new(to, WRITABLE, &ends.there()).unwrap();
    assert_eq!([from.addr(), to.addr()], places.map(|at| at as u64 + DEVICE_ADDRESSES));
    let local = from.local(0, BYTES as u32).unwrap();
    let keys = from.toward(&to.remote()).unwrap();
    assert_eq!(ends.done(&SendWr::write(1, local, to.addr(), &keys)), WcStatus::SUCCESS);
    let (mut from, mut to) = (from.into_inner().unwrap(), to.into_inner().unwrap());
    assert!(to.as_mut() == pattern());
    assert_eq!([from.as_mut().as_ptr(), to.as_mut().as_ptr()].map(<*const u8>::addr), places);
    (from, to)
}

#[test]
fn memory_comes_back_in_its_place_with_what_the_peer_wrote() {
    for mut ends in all_ends(3) {
        let boxed = vec![0; BYTES].into_boxed_slice();
        let (vec, boxed) = moves(&mut ends, vec![0; BYTES], boxed);
        let mut with_room = Vec::with_capacity(2 * BYTES);
        with_room.extend_from_slice(&vec);
        let (with_room, _) = moves(&mut ends, with_room, boxed);
        assert!(with_room.capacity() >= 2 * BYTES);
        let mapped = MmapMut::map_anon(BYTES).unwrap();
        let (bytes, mapped) = moves(&mut ends, BytesMut::zeroed(BYTES), mapped);
        let leaked: &'static mut [u8] = Box::leak(boxed_zeros());
        let (_, leaked) = moves(&mut ends, mapped, leaked);
        assert!(bytes.freeze() == *leaked);
    }
}

fn boxed_zeros() -> Box<[u8]> {
    vec![0; BYTES].into_boxed_slice()
}

/// Bytes that are inside the owner itself move only while they are not registered.
#[test]
fn memory_within_its_owner_stays_where_it_is_registered() {
    #[derive(Debug)]
    struct Inside(Box<u8>, [u8; 64]);

    impl AsMut<[u8]> for Inside {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.1
        }
    }

    for mut ends in all_ends(1) {
        let from = Owned::new([7u8; 64], NONE, &ends.here()).unwrap();
        let to = Owned::new(Inside(Box::new(9), [0; 64]), WRITABLE, &ends.there()).unwrap();
        let moved = Box::new((from, to));
        let (from, to) = *moved;
        let keys = from.toward(&to.remote()).unwrap();
        let local = from.local(0, 64).unwrap();
        assert_eq!(ends.done(&SendWr::write(1, local, to.addr(), &keys)), WcStatus::SUCCESS);
        let Inside(beside, inside) = to.into_inner().unwrap();
        assert_eq!((*beside, inside), (9, [7; 64]));
    }
}

#[test]
fn shared_memory_is_read_by_devices_peers_and_the_program_at_once() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &pattern()).unwrap();
    // SAFETY: nothing changes the file, which has no name.
    let mapped: Mmap = unsafe { Mmap::map(&file) }.unwrap();
    let bytes = Bytes::from(pattern());
    let shared: Arc<[u8]> = pattern().into();
    for mut ends in all_ends(2) {
        let clone = bytes.clone();
        let from = Shared::new(bytes.slice(1..), NONE, &ends.here()).unwrap();
        let served = Shared::new(Arc::clone(&shared), READABLE, &ends.there()).unwrap();
        let to = Owned::new(vec![0; BYTES], WRITABLE, &ends.there()).unwrap();
        let here = Owned::new(vec![0; BYTES], WRITABLE, &ends.here()).unwrap();
        assert_eq!((from.len(), from.memory().len()), (BYTES - 1, BYTES - 1));

        let length = BYTES as u32 - 1;
        let keys = from.toward(&to.remote()).unwrap();
        let local = from.local(0, length).unwrap();
        ends.near.post_send(&SendWr::write(1, local, to.addr(), &keys)).unwrap();
        assert!(from.memory() == &clone[1..] && served.memory()[..] == clone[..]);
        assert_eq!(ends.next(), WcStatus::SUCCESS);
        let keys = here.toward(&served.remote()).unwrap();
        let local = here.local(0, BYTES as u32).unwrap();
        let read = SendWr::read(2, local, served.addr(), &keys);
        assert_eq!(ends.done(&read), WcStatus::SUCCESS);
        assert!(here.into_inner().unwrap() == pattern());
        assert!(to.into_inner().unwrap()[..BYTES - 1] == pattern()[1..]);
        assert!(from.into_inner().unwrap() == clone[1..]);
        drop(served.into_inner().unwrap());
    }
    assert_eq!(Arc::strong_count(&shared), 1);
    let mut ends = Ends::new(["software:near", "software:far"], 1);
    let from = Shared::new(mapped, NONE, &ends.here()).unwrap();
    let to = Owned::new(vec![0; BYTES], WRITABLE, &ends.there()).unwrap();
    let keys = from.toward(&to.remote()).unwrap();
    let local = from.local(0, BYTES as u32).unwrap();
    assert_eq!(ends.done(&SendWr::write(1, local, to.addr(), &keys)), WcStatus::SUCCESS);
    assert!(to.into_inner().unwrap()[..] == from.memory()[..]);
}

#[test]
fn nothing_writes_shared_memory() {
    for mut ends in all_ends(1) {
        let text: &'static [u8] = b"a constant of the program";
        for access in [WRITABLE, AccessFlags::LOCAL_WRITE, AccessFlags::MW_BIND | READABLE] {
            let refused = Shared::new(text, access, &ends.here()).unwrap_err();
            assert_eq!(refused.error, DeviceError::SharedAccess { access: access - READABLE });
            assert_eq!(refused.memory, Some(text));
        }
        let shared = Shared::new(text, READABLE, &ends.here()).unwrap();
        let served = Owned::new(vec![0; 64], WRITABLE | READABLE, &ends.there()).unwrap();
        let keys = shared.toward(&served.remote()).unwrap();
        let local = shared.local(0, 8).unwrap();
        let read = SendWr::read(1, local, served.addr(), &keys);
        assert_eq!(ends.done(&read), WcStatus::LOC_PROT_ERR);
        assert_eq!(shared.memory(), &b"a constant of the program");
    }
    for mut ends in all_ends(1) {
        let shared = Shared::new(Bytes::from(vec![1; 64]), READABLE, &ends.there()).unwrap();
        let from = Owned::new(vec![2; 64], NONE, &ends.here()).unwrap();
        let keys = from.toward(&shared.remote()).unwrap();
        let write = SendWr::write(1, from.local(0, 64).unwrap(), shared.addr(), &keys);
        assert_eq!(ends.done(&write), WcStatus::REM_ACCESS_ERR);
        assert_eq!(shared.into_inner().unwrap(), [1; 64][..]);
    }
}

#[test]
fn the_program_copies_in_and_out_while_devices_may_write() {
    for ends in all_ends(1) {
        let mut buffer = Owned::new(vec![0; 100], WRITABLE, &ends.here()).unwrap();
        buffer.write_at(90, b"end").unwrap();
        let mut bytes = [1; 4];
        buffer.read_at(89, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0end");
        for (offset, length) in [(99, 2), (usize::MAX, 1), (101, 0)] {
            assert!(buffer.local(offset, length).is_err());
            assert!(buffer.write_at(offset, &[2; 2][..length as usize]).is_err());
            assert!(buffer.read_at(offset, &mut bytes[..length as usize]).is_err());
        }
        for _ in 0..3 {
            let memory = buffer.into_inner().unwrap();
            assert_eq!(memory[89..93], *b"\0end");
            buffer = Owned::new(memory, NONE, &ends.there()).unwrap();
        }
    }
}

/// The device may be in the middle of any of the requests.
#[test]
fn memory_that_is_taken_back_early_is_written_no_more() {
    const REQUESTS: u64 = 24;
    for mut ends in all_ends(2) {
        let from = Owned::new(vec![7; BYTES], NONE, &ends.here()).unwrap();
        let to = Owned::new(vec![0; BYTES], WRITABLE, &ends.there()).unwrap();
        let keys = from.toward(&to.remote()).unwrap();
        let local = from.local(0, BYTES as u32).unwrap();
        for wr_id in 0..REQUESTS {
            ends.near.post_send(&SendWr::write(wr_id, local, to.addr(), &keys)).unwrap();
        }
        let mut target = to.into_inner().unwrap();
        target.fill(3);
        let source = from.into_inner().unwrap();
        let statuses: Vec<_> = (0..REQUESTS).map(|_| ends.next()).collect();
        let failed = statuses.iter().position(|status| *status != WcStatus::SUCCESS);
        assert!(
            statuses[failed.unwrap_or(statuses.len())..].iter().all(|status| !status.is_success())
        );
        assert!(target == [3; BYTES] && source == [7; BYTES]);
    }
}

#[test]
fn a_description_that_outlives_its_buffer_names_nothing() {
    for at in [0, 1] {
        let [software, tcp] = all_ends(2);
        let mut ends = [software, tcp].into_iter().nth(at).unwrap();
        let to = Owned::new(vec![0; 64], WRITABLE, &ends.there()).unwrap();
        let from = Owned::new(vec![7; 64], NONE, &ends.here()).unwrap();
        let (local, keys) = (from.local(0, 64).unwrap(), from.toward(&to.remote()).unwrap());
        let memory = from.into_inner().unwrap();
        let inline = SendWr::write(1, local, to.addr(), &keys)
            .with_flags(SendFlags::SIGNALED | SendFlags::INLINE);
        let addr = memory.as_ptr().addr() as u64 + DEVICE_ADDRESSES;
        drop(memory);
        let refused = ends.near.post_send(&inline);
        let expected = PostSendError::InlineDeviceAddress { addr };
        assert_eq!(refused, Err(expected));
        let status = ends.done(&SendWr::write(2, local, to.addr(), &keys));
        assert_eq!(status, WcStatus::LOC_PROT_ERR);
        assert_eq!(to.into_inner().unwrap(), [0; 64]);
    }
}

/// With one rail, the device refuses it.
#[test]
fn no_device_copies_inline_data_by_a_device_address() {
    for mut ends in all_ends(1) {
        let to = Owned::new(vec![0; 64], WRITABLE, &ends.there()).unwrap();
        let from = Owned::new(vec![7; 64], NONE, &ends.here()).unwrap();
        let (local, keys) = (from.local(0, 16).unwrap(), from.toward(&to.remote()).unwrap());
        let write = SendWr::write(1, local, to.addr(), &keys);
        let inline = write.with_flags(SendFlags::SIGNALED | SendFlags::INLINE);
        let refused = ends.near.post_send(&inline).unwrap_err();
        let by_device = matches!(refused, PostSendError::Driver { errno: libc::EINVAL, .. });
        assert!(by_device, "{refused:?}");
        assert_eq!(ends.done(&write), WcStatus::SUCCESS);
        assert_eq!(to.into_inner().unwrap()[..17], [[7; 16].as_slice(), &[0]].concat());
    }
}

#[test]
fn endpoints_and_buffers_may_end_in_any_order() {
    for mut ends in all_ends(2) {
        let to = Owned::new(vec![0; 64], WRITABLE, &ends.there()).unwrap();
        let from = Owned::new(vec![7; 64], NONE, &ends.here()).unwrap();
        let keys = from.toward(&to.remote()).unwrap();
        let write = SendWr::write(1, from.local(0, 64).unwrap(), to.addr(), &keys);
        assert_eq!(ends.done(&write), WcStatus::SUCCESS);
        ends.far.post_recv(&RecvWr::notification(1)).unwrap();
        let Ends { domains, near, far } = ends;
        drop((near, domains));
        assert_eq!(to.into_inner().unwrap(), [7; 64]);
        drop(far);
        assert_eq!(from.into_inner().unwrap(), [7; 64]);
    }
}

/// Memory that counts how often it is freed.
#[derive(Debug)]
struct Counted(Vec<u8>, Arc<AtomicU32>);

impl AsMut<[u8]> for Counted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}

fn counted(bytes: usize) -> (Counted, Arc<AtomicU32>) {
    let freed = Arc::default();
    (Counted(vec![5; bytes], Arc::clone(&freed)), freed)
}

fn stubborn(limits: [DeviceLimits; 2]) -> [Recorded; 2] {
    let fabric = Fabric::threaded();
    let mut names = ["a", "b"].into_iter();
    limits.map(|limits| Recorded::on(&fabric, names.next().unwrap(), limits))
}

#[test]
fn memory_is_freed_once_and_never_while_a_device_may_write_it() {
    let [a, b] = stubborn([DeviceLimits::default(); 2]);
    let (memory, freed) = counted(64);
    drop(OwnedBuffer::new(memory, WRITABLE, &[&a, &b]).unwrap());
    assert_eq!((freed.load(SeqCst), a.regions(), b.regions()), (1, 0, 0));

    let (memory, freed) = counted(64);
    let buffer = OwnedBuffer::new(memory, WRITABLE, &[&a, &b]).unwrap();
    let memory = buffer.into_inner().unwrap();
    assert_eq!((freed.load(SeqCst), memory.0[63]), (0, 5));
    drop(memory);
    assert_eq!(freed.load(SeqCst), 1);

    let (memory, freed) = counted(64);
    std::mem::forget(OwnedBuffer::new(memory, WRITABLE, &[&a]).unwrap());
    assert_eq!((freed.load(SeqCst), a.regions()), (0, 1));

    b.keeps_regions.store(true, SeqCst);
    let (memory, freed) = counted(64);
    let buffer = OwnedBuffer::new(memory, WRITABLE, &[&a, &b]).unwrap();
    let lost = buffer.into_inner().unwrap_err();
    assert!(matches!(lost, DeviceError::Deregister { errno: libc::EBUSY, .. }), "{lost}");
    assert_eq!((freed.load(SeqCst), a.regions(), b.regions()), (0, 1, 1));
}

#[test]
fn memory_that_is_not_registered_is_returned() {
    let none = DeviceLimits { max_mr: 0, ..DeviceLimits::default() };
    let [a, b] = stubborn([DeviceLimits::default(), none]);
    let (memory, freed) = counted(64);
    let RegisterError { error, memory } = OwnedBuffer::new(memory, NONE, &[&a, &b]).unwrap_err();
    assert!(matches!(error, DeviceError::Nic(NicError::Limit { limit: 0, .. })), "{error}");
    let nowhere: [&Recorded; 0] = [];
    let refused = OwnedBuffer::new(memory.unwrap(), NONE, &nowhere).unwrap_err();
    assert_eq!(refused.to_string(), "memory cannot be registered without a device");
    let zero_based = WRITABLE | AccessFlags::ZERO_BASED;
    let refused = OwnedBuffer::new(refused.memory.unwrap(), zero_based, &[&a]).unwrap_err();
    assert_eq!(refused.error, DeviceError::ZeroBased);
    assert_eq!((freed.load(SeqCst), refused.memory.unwrap().0[0]), (0, 5));
    assert_eq!(a.regions(), 0);

    let empty = OwnedBuffer::new(Vec::with_capacity(9), NONE, &[&a]).unwrap_err();
    assert_eq!(DeviceError::from(empty).to_string(), no_bytes());

    // One device refuses, and the other one then fails to deregister.
    a.keeps_regions.store(true, SeqCst);
    let (memory, freed) = counted(64);
    let refused = OwnedBuffer::new(memory, NONE, &[&a, &b]).unwrap_err();
    assert!(matches!(refused.error, DeviceError::Deregister { .. }), "{refused:?}");
    assert!(refused.memory.is_none());
    assert_eq!((freed.load(SeqCst), a.regions()), (0, 1));
}

fn no_bytes() -> String {
    NicError::Zero { what: "the length of a memory region" }.to_string()
}
