//! Nothing allocates between a handle and its completion, neither in the producer's thread nor in
//! the progress thread: every kind of request, requests that wait for room, and every way to wait.
//!
//! A single test: the allocations of all threads are counted.

use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::progress::{Handle, Pending, ProgressThread, SubmitError};
use polyrail_core::verbs::{AccessFlags, DeviceKeys, RecvWr, SendWr};
use polyrail_core::virtual_qp::Scheme;
use polyrail_tests::allocations::{CountingAllocator, allocations, allocations_of_all_threads};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Requests of a round from each handle. Two handles have more than the engine takes at a time, 256
/// each way, so the thread holds some.
const EACH: u64 = 200;

/// Number of the virtual queue pair that uses DQPLB.
const DQPLB: usize = 1;

/// Bytes of a request: five fragments.
const LENGTH: u32 = 5 * 1024;

/// One virtual queue pair's handles, two at each end, and their requests.
struct Traffic {
    senders: [Handle; 2],
    receivers: [Handle; 2],
    pending: Vec<Pending>,
    /// DQPLB posts its own receives where SENDs would arrive.
    takes_data: bool,
}

/// The buffers: from here to there.
struct Memory {
    from: RegisteredBuffer,
    to: RegisteredBuffer,
    keys: Vec<DeviceKeys>,
    far_keys: Vec<DeviceKeys>,
}

/// Submits, again while there is no room.
fn submit(mut post: impl FnMut() -> Result<Pending, SubmitError>) -> Pending {
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

impl Traffic {
    /// Requests of each kind, this many from each handle.
    fn round(&mut self, each: u64, memory: &Memory) {
        self.notify(each, memory);
        self.pass_through(memory);
        self.forget(each, memory);
    }

    /// Writes that complete receives. All are awaited as futures, then by blocking.
    fn notify(&mut self, each: u64, Memory { from, to, keys, .. }: &Memory) {
        for wr_id in 0..each {
            for handle in &mut self.receivers {
                self.pending.push(submit(|| handle.post_recv(&RecvWr::notification(wr_id))));
            }
        }
        let local = from.local(0, LENGTH).expect("within the buffer");
        for wr_id in 0..each {
            let wr = SendWr::write_with_imm(wr_id, local, to.addr(), 7, keys);
            for handle in &mut self.senders {
                self.pending.push(submit(|| handle.post_send(&wr)));
            }
        }
        let mut context = Context::from_waker(Waker::noop());
        self.pending.retain_mut(|pending| Pin::new(pending).poll(&mut context).is_pending());
        self.pending.drain(..).for_each(succeeds);
    }

    /// Data that meets a receive, and an atomic, each by itself: the threads sleep between them.
    fn pass_through(&mut self, Memory { from, to, keys, far_keys }: &Memory) {
        let [sender, _] = &mut self.senders;
        let [receiver, _] = &mut self.receivers;
        if self.takes_data {
            let into = to.local(0, LENGTH).expect("within the buffer");
            let received = submit(|| receiver.post_recv(&RecvWr::data(1, into, far_keys)));
            let local = from.local(0, LENGTH).expect("within the buffer");
            succeeds(submit(|| sender.post_send(&SendWr::send(2, local, keys))));
            succeeds(received);
        }
        sleep(Duration::from_millis(5));
        let old = from.local(0, 8).expect("within the buffer");
        succeeds(submit(|| sender.post_send(&SendWr::fetch_add(3, old, to.addr(), 1, keys))));
    }

    /// Requests without a waiter.
    fn forget(&mut self, each: u64, Memory { from, to, keys, .. }: &Memory) {
        let local = from.local(0, LENGTH).expect("within the buffer");
        let [handle, _] = &mut self.senders;
        for wr_id in 0..each {
            drop(submit(|| handle.post_send(&SendWr::write(wr_id, local, to.addr(), keys))));
        }
        let last = submit(|| handle.post_send(&SendWr::read(4, local, to.addr(), keys)));
        succeeds(last);
    }
}

fn succeeds(pending: Pending) {
    let wc = pending.wait().expect("a completion");
    assert!(wc.status.is_success(), "{wc:?}");
}

/// A thread at each end, with a virtual queue pair of each kind.
struct World {
    memory: Memory,
    senders: ProgressThread,
    receivers: ProgressThread,
}

impl World {
    fn new(shapes: [EndpointBuilder; 3]) -> Self {
        let fabric = Fabric::threaded();
        let full = |name| DeviceConfig { full_queues: true, ..DeviceConfig::named(name) };
        let device = |name| fabric.create_device(full(name));
        let [near, far] = ["near", "far"].map(|name| device(name).alloc_pd().expect("a device"));
        let set = |domain| -> EndpointSet {
            EndpointSet::build(shapes.map(|builder| (builder, [domain]))).expect("a set")
        };
        let mut senders = set(&near);
        let mut receivers = set(&far);
        for (sender, receiver) in senders.qps_mut().zip(receivers.qps_mut()) {
            connect_endpoints(sender, receiver).expect("alike");
        }
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let buffer =
            |domain| RegisteredBuffer::new(LENGTH as usize, access, &[domain]).expect("memory");
        let from = buffer(&near);
        let to = buffer(&far);
        let keys = from.toward(&to.remote()).expect("one device each");
        let far_keys = to.local_keys();
        let spawn = |set: EndpointSet| ProgressThread::spawn(set).expect("a thread");
        let senders = spawn(senders);
        let receivers = spawn(receivers);
        Self { memory: Memory { from, to, keys, far_keys }, senders, receivers }
    }

    fn traffic(&self, qp: usize) -> Traffic {
        let [senders, receivers] = [&self.senders, &self.receivers]
            .map(|thread| [(); 2].map(|()| thread.handle(qp).expect("a handle")));
        let pending = Vec::with_capacity(4 * EACH as usize);
        Traffic { senders, receivers, pending, takes_data: qp != DQPLB }
    }

    /// Creates what this thread blocks with.
    fn block_once(&self) {
        let Traffic { senders: [mut sender, _], receivers: [mut receiver, _], .. } =
            self.traffic(0);
        let Memory { from, to, keys, .. } = &self.memory;
        let received = submit(|| receiver.post_recv(&RecvWr::notification(1)));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sleep(Duration::from_millis(20));
                let local = from.local(0, LENGTH).expect("within the buffer");
                let wr = SendWr::write_with_imm(2, local, to.addr(), 7, keys);
                succeeds(submit(|| sender.post_send(&wr)));
            });
            succeeds(received);
        });
    }
}

fn the_counter_counts() {
    let own = allocations();
    let all = allocations_of_all_threads();
    std::thread::spawn(|| drop(std::hint::black_box(Box::new(7)))).join().expect("no panic");
    let own = allocations() - own;
    assert!(allocations_of_all_threads() - all > own, "other threads' are counted");
}

#[test]
fn from_handle_to_completion_nothing_allocates() {
    the_counter_counts();
    let spray = EndpointBuilder::new().max_msg_size(1024);
    let dqplb = spray.scheme(Scheme::Dqplb).rails(3);
    let world = World::new([spray, dqplb, spray.rails(1)]);
    world.block_once();
    for qp in 0..3 {
        let mut traffic = world.traffic(qp);
        // Gives both threads the keys.
        traffic.round(1, &world.memory);
        let before = allocations_of_all_threads();
        (0..5).for_each(|_| traffic.round(EACH, &world.memory));
        assert_eq!(allocations_of_all_threads() - before, 0, "queue pair {qp}");
    }
}
