//! Requests that are taken back through handles of a progress thread, with real threads.

mod fixture;

use fixture::{Host, ended, impatient, submit};
use polyrail::endpoint::{ENDPOINT_ROUTES, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{CompletionQueue, Device, Fabric, Fault, QueuePair, When};
use polyrail::progress::{Handle, HandleCancelError, ProgressThread, SubmitError};
use polyrail::verbs::{DeviceKeys, LocalBuffer, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{RailFailure, Scheme};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const PART: usize = 64 << 10;
const TARGET_POISON: u8 = 0xEE;
const SOURCE_POISON: u8 = 0xDD;

type Thread = ProgressThread<QueuePair, CompletionQueue, ENDPOINT_ROUTES>;

/// Two threads with an endpoint each, over four rails.
struct World {
    threads: [Thread; 2],
    devices: Vec<Device>,
    from: RegisteredBuffer,
    to: RegisteredBuffer,
    keys: Vec<DeviceKeys>,
}

fn builder(scheme: Scheme) -> EndpointBuilder {
    EndpointBuilder::new()
        .scheme(scheme)
        .max_msg_size(1024)
        .rail_failure(RailFailure::Reroute)
        .connect_options(impatient())
}

impl World {
    fn new(builder: EndpointBuilder) -> Self {
        let fabric = Fabric::threaded();
        let [near, far] = ["near", "far"].map(|name| Host::new(&fabric, name, 4, BYTES));
        let mut ends = [&near, &far].map(|host| builder.build(&host.all()).unwrap());
        let [one, other] = &mut ends;
        connect_endpoints(one, other).unwrap();
        let threads = ends.map(|end| ProgressThread::spawn(end).unwrap());
        let (devices, from, to) = (near.devices, near.buffer, far.buffer);
        let keys = from.toward(&to.remote()).unwrap();
        Self { threads, devices, from, to, keys }
    }

    fn handle(&self) -> Handle {
        self.threads[0].handle(0).unwrap()
    }

    /// Nothing that is posted is executed, or it is again.
    fn set_silent(&self, is_silent: bool) {
        self.devices.iter().for_each(|it| it.inject(When::Now, Fault::Silent(is_silent)));
    }

    /// A WRITE of a part to the same place.
    fn write(&self, wr_id: u64, part: usize, length: usize) -> SendWr<'_> {
        let local = self.from.local(part * PART, length as u32).unwrap();
        SendWr::write(wr_id, local, self.to.addr() + (part * PART) as u64, &self.keys)
    }

    fn target(&self, part: usize) -> Vec<u8> {
        let mut bytes = vec![0; PART];
        self.to.read_at(part * PART, &mut bytes).unwrap();
        bytes
    }
}

/// Also if the thread sleeps, or completion queues wake it.
#[test]
fn what_a_handle_takes_back_ends_with_the_report() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for channel in [None, Some(0)] {
            let world = World::new(builder(scheme).completion_channel(channel));
            let mut handle = world.handle();
            world.from.fill(0, BYTES, 7).unwrap();
            world.set_silent(true);
            let pending = handle.post_send(&world.write(5, 0, PART)).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            let begin = Instant::now();
            handle.cancel(&pending).unwrap();
            let wc = ended(pending).unwrap();
            assert_eq!((wc.wr_id, wc.status), (5, WcStatus::CANCELLED));
            assert_eq!(wc.byte_len as usize, PART, "all of it was posted");
            // Sooner than a rail is given up that is silent, or that the peer does not fence.
            assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
            world.from.fill(0, PART, SOURCE_POISON).unwrap();
            world.to.fill(0, PART, TARGET_POISON).unwrap();
            world.set_silent(false);
            // The connection is as good as before, for other requests of any handle.
            for number in 1..9 {
                let wr = world.write(number, number as usize, PART);
                let pending = submit(|| handle.post_send(&wr));
                assert_eq!(ended(pending).unwrap().status, WcStatus::SUCCESS);
                assert!(world.target(number as usize).iter().all(|byte| *byte == 7));
            }
            assert!(world.target(0).iter().all(|byte| *byte == TARGET_POISON));
        }
    }
}

/// Others wait for room before it, and are posted all the same.
#[test]
fn a_request_that_was_not_posted_is_dropped() {
    let world = World::new(builder(Scheme::Spray));
    let mut handle = world.handle();
    world.set_silent(true);
    // Many more fragments than the rails hold; the last requests find no room in the engine.
    let wrs: Vec<_> = (0..200).map(|number| world.write(number, 1, PART)).collect();
    let mut pending = Vec::new();
    handle.post_many(&wrs, &mut pending).unwrap();
    let mut other = world.handle();
    world.to.fill(0, PART, TARGET_POISON).unwrap();
    let last = other.post_send(&world.write(300, 0, PART)).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    other.cancel(&last).unwrap();
    let wc = ended(last).unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (300, WcStatus::CANCELLED, 0));
    world.set_silent(false);
    for one in &pending {
        // Some are taken back, as fast as the ring takes it; which of them is up to the threads.
        match handle.cancel(one) {
            Ok(()) | Err(HandleCancelError::Submit(SubmitError::Full)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    for (number, one) in (0..).zip(pending) {
        let wc = ended(one).unwrap();
        assert_eq!(wc.wr_id, number);
        assert!([WcStatus::SUCCESS, WcStatus::CANCELLED].contains(&wc.status), "{wc:?}");
    }
    assert!(world.target(0).iter().all(|byte| *byte == TARGET_POISON));
    let wr = world.write(1, 2, PART);
    assert_eq!(ended(submit(|| handle.post_send(&wr))).unwrap().status, WcStatus::SUCCESS);
}

/// A slot is used again by later requests, which a late wish does not take back.
#[test]
fn a_wish_that_comes_late_takes_nothing_else_back() {
    let world = World::new(builder(Scheme::Spray));
    let mut handle = world.handle();
    for number in 0..2000 {
        let first = submit(|| handle.post_send(&world.write(number, 0, 64)));
        handle.cancel(&first).unwrap();
        // Most are dropped before they are posted, others arrive in their grace.
        let status = ended(first).unwrap().status;
        assert!([WcStatus::SUCCESS, WcStatus::CANCELLED].contains(&status), "{status:?}");
        let second = submit(|| handle.post_send(&world.write(number, 0, 64)));
        assert_eq!(ended(second).unwrap().status, WcStatus::SUCCESS);
    }
}

#[test]
fn what_a_handle_cannot_take_back_is_refused() {
    let world = World::new(builder(Scheme::Spray));
    let [mut handle, mut other] = [world.handle(), world.handle()];
    let mut done = handle.post_send(&world.write(1, 0, 64)).unwrap();
    assert_eq!(other.cancel(&done), Err(HandleCancelError::Foreign));
    while done.try_take().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(handle.cancel(&done), Err(HandleCancelError::Ended));
    let receive = handle.post_recv(&RecvWr::notification(2)).unwrap();
    assert_eq!(handle.cancel(&receive), Err(HandleCancelError::Foreign));
    // A SEND goes on.
    let mut far = world.threads[1].handle(0).unwrap();
    let (local, keys) = (world.to.local(0, 64).unwrap(), world.to.local_keys());
    let received = far.post_recv(&RecvWr::data(3, local, &keys)).unwrap();
    let sent = handle.post_send(&SendWr::send(4, LocalBuffer::EMPTY, &[])).unwrap();
    handle.cancel(&sent).unwrap();
    assert_eq!(ended(received).unwrap().status, WcStatus::SUCCESS);
    assert_eq!(ended(sent).unwrap().status, WcStatus::SUCCESS);

    let fatal = World::new(builder(Scheme::Spray).rail_failure(RailFailure::Fatal));
    let mut handle = fatal.handle();
    let pending = handle.post_send(&fatal.write(1, 0, 64)).unwrap();
    assert_eq!(handle.cancel(&pending), Err(HandleCancelError::NotRerouting));
    assert_eq!(ended(pending).unwrap().status, WcStatus::SUCCESS);
}
