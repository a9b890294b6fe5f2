//! Nothing allocates between a handle of messages and its outcome, neither in the producer's thread
//! nor in the progress thread: messages that wait for their buffers, receives that wait for room,
//! eight buffers, flushes, and every way to wait.
//!
//! A single test: the allocations of all threads are counted.

use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::p2p::{P2P_ROUTES, P2pBuilder, Received, RecvBuffer, connect_endpoints};
use polyrail::progress::messages::{P2pHandle, P2pThread, PendingDone, PendingRecv};
use polyrail::progress::{Outcome, Pending, SubmitError};
use polyrail::verbs::{AccessFlags, DeviceKeys};
use polyrail_tests::allocations::{CountingAllocator, allocations_of_all_threads};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Messages of a round from each handle: more receives than the engine takes at a time.
const EACH: u32 = 100;

/// Bytes of a message, which is spread over the rails.
const LENGTH: u32 = 8 << 10;

/// A thread at each end, two handles on each, and memory.
struct World {
    senders: [P2pHandle; 2],
    receivers: [P2pHandle; 2],
    from: RegisteredBuffer,
    to: RegisteredBuffer,
    from_keys: Vec<DeviceKeys>,
    to_keys: Vec<DeviceKeys>,
    sent: Vec<PendingDone>,
    offered: Vec<PendingRecv>,
    _threads: [P2pThread<ProtectionDomain, P2P_ROUTES>; 2],
}

/// Submits, again while there is no room.
fn submit<O: Outcome>(mut post: impl FnMut() -> Result<Pending<O>, SubmitError>) -> Pending<O> {
    let begin = Instant::now();
    loop {
        match post() {
            Ok(pending) => return pending,
            Err(SubmitError::Full) => yield_now(),
            Err(error) => panic!("{error}"),
        }
        assert!(begin.elapsed() < Duration::from_secs(600), "no room for too long");
    }
}

impl World {
    /// Threads sleep on completion channels, or for naps.
    fn new(comp_vector: Option<u32>) -> Self {
        let fabric = Fabric::threaded();
        let host = |name: &str| {
            [0, 1].map(|at| {
                let config = DeviceConfig::named(format!("{name}{at}"));
                let config = DeviceConfig { full_queues: true, ..config };
                let device = fabric.create_device(config);
                device.alloc_pd().expect("a device")
            })
        };
        let (near, far) = (host("near"), host("far"));
        let (near, far) = (near.each_ref(), far.each_ref());
        let builder = P2pBuilder::new().split_threshold(1024).flushes(true);
        let builder = builder.completion_channel(comp_vector);
        let mut ends = [near, far].map(|domains| builder.build(&domains).expect("an endpoint"));
        let [here, there] = &mut ends;
        connect_endpoints(here, there).expect("alike");
        let threads = ends.map(|end| P2pThread::spawn(end).expect("a thread"));
        let [senders, receivers] =
            threads.each_ref().map(|thread| [(); 2].map(|()| thread.handle(0).expect("member 0")));
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let buffer = |domains: &[&ProtectionDomain]| {
            RegisteredBuffer::new(8 * LENGTH as usize, access, domains).expect("memory")
        };
        let (from, to) = (buffer(&near), buffer(&far));
        let (from_keys, to_keys) = (from.own_keys(), to.own_keys());
        let sent = Vec::with_capacity(2 * EACH as usize);
        let offered = Vec::with_capacity(2 * EACH as usize);
        let _threads = threads;
        Self { senders, receivers, from, to, from_keys, to_keys, sent, offered, _threads }
    }

    fn send(&mut self, handle: usize, tag: u32) -> PendingDone {
        let local = self.from.local(0, LENGTH).expect("within the buffer");
        submit(|| self.senders[handle].isend(local, tag, &self.from_keys))
    }

    /// Offers this many buffers with rising tags.
    fn offer(&mut self, handle: usize, buffers: usize, tag: u32) -> PendingRecv {
        let buffer = |at: usize| RecvBuffer {
            local: self.to.local(at * LENGTH as usize, LENGTH).expect("within the buffer"),
            tag: tag + at as u32,
            keys: &self.to_keys,
        };
        let all = [0, 1, 2, 3, 4, 5, 6, 7].map(buffer);
        submit(|| self.receivers[handle].irecv(&all[..buffers]))
    }

    fn round(&mut self, each: u32) {
        self.early(each);
        self.eight();
        self.late(each);
    }

    /// Buffers before messages. All are awaited as futures, then by blocking.
    fn early(&mut self, each: u32) {
        for _ in 0..each {
            for handle in [0, 1] {
                let offered = self.offer(handle, 1, 1);
                self.offered.push(offered);
            }
        }
        for _ in 0..each {
            for handle in [0, 1] {
                let sent = self.send(handle, 1);
                self.sent.push(sent);
            }
        }
        let mut context = Context::from_waker(Waker::noop());
        self.sent.retain_mut(|pending| Pin::new(pending).poll(&mut context).is_pending());
        self.sent.drain(..).for_each(|pending| pending.wait().expect("it is sent"));
        self.offered.drain(..).for_each(|pending| _ = arrives(pending));
    }

    /// Eight buffers, and a flush, each by itself: the threads sleep between them.
    fn eight(&mut self) {
        let offered = self.offer(0, 8, 10);
        for tag in [13, 10, 17, 11, 16, 12, 15, 14] {
            let sent = self.send(tag as usize % 2, tag);
            self.sent.push(sent);
        }
        let received = arrives(offered);
        assert_eq!(received.sizes(), [LENGTH; 8]);
        self.sent.drain(..).for_each(|pending| pending.wait().expect("it is sent"));
        sleep(Duration::from_millis(5));
        submit(|| self.receivers[0].flush(&received)).wait().expect("it is flushed");
    }

    /// Messages before buffers, of two tags, without waiters.
    fn late(&mut self, each: u32) {
        for number in 0..each {
            drop(self.send(0, 1 + number % 2));
        }
        for number in 0..each {
            let offered = self.offer(1, 1, 2 - number % 2);
            self.offered.push(offered);
        }
        self.offered.drain(..).for_each(|pending| _ = arrives(pending));
    }

    /// Creates what this thread blocks with.
    fn block_once(&mut self) {
        let offered = self.offer(0, 1, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(20));
                self.send(0, 1).wait().expect("it is sent");
            });
            arrives(offered);
        });
    }
}

fn arrives(pending: PendingRecv) -> Received {
    pending.wait().expect("a message")
}

#[test]
fn from_handle_to_outcome_nothing_allocates() {
    let before = allocations_of_all_threads();
    std::thread::spawn(|| drop(std::hint::black_box(Box::new(7)))).join().expect("no panic");
    assert!(allocations_of_all_threads() > before, "the counter counts");
    for comp_vector in [None, Some(0)] {
        let mut world = World::new(comp_vector);
        world.block_once();
        // Gives both threads the keys.
        world.round(2);
        let before = allocations_of_all_threads();
        (0..5).for_each(|_| world.round(EACH));
        assert_eq!(allocations_of_all_threads() - before, 0, "{comp_vector:?}");
    }
}
