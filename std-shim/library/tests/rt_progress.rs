//! The progress thread: many producers, back-pressure, ends and failures, with real threads on the
//! software NIC.

mod fixture;

use fixture::{Host, impatient, submit};
use futures_util::future::join_all;
use polyrail::endpoint::{
    Endpoint, EndpointBuilder, EndpointError, EndpointQp, EndpointSet, connect_endpoints,
};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, DeviceConfig, Fabric, Fault, ProtectionDomain, When};
use polyrail::progress::{
    HANDLE_DEPTH, Handle, Pending, ProgressOptions, ProgressThread, RequestError, SubmitError,
};
use polyrail::verbs::{AccessFlags, DeviceKeys, RecvWr, SendFlags, SendWr, WcStatus};
use polyrail::virtual_qp::{PostSendError, Scheme};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

/// Numbers of the two virtual queue pairs.
const NEAR: usize = 0;
const FAR: usize = 1;

/// Two connected virtual queue pairs in the care of one thread, and a buffer at each.
struct World {
    thread: ProgressThread,
    devices: Vec<Device>,
    from: RegisteredBuffer,
    to: RegisteredBuffer,
    keys: Vec<DeviceKeys>,
    domain: ProtectionDomain,
}

impl World {
    fn new(builder: EndpointBuilder) -> Self {
        Self::with_options(builder, ProgressOptions::default())
    }

    fn with_options(builder: EndpointBuilder, options: ProgressOptions) -> Self {
        let builder = builder.connect_options(impatient());
        let fabric = Fabric::threaded();
        let [near, far] = ["near", "far"].map(|name| Host::new(&fabric, name, 1, BYTES));
        let domains = [near.domains[0].clone(), far.domains[0].clone()];
        let devices = [near.devices, far.devices].concat();
        let from = near.buffer;
        let to = far.buffer;
        let mut set = EndpointSet::build(domains.iter().map(|domain| (builder, [domain]))).unwrap();
        let Some([near, far]) = set.get_disjoint_mut([0, 1]) else { panic!("two") };
        connect_endpoints(near, far).unwrap();
        let keys = from.toward(&to.remote()).unwrap();
        let thread = ProgressThread::spawn_with(set, options).unwrap();
        Self { thread, devices, from, to, keys, domain: domains[0].clone() }
    }

    fn handle(&self, qp: usize) -> Handle {
        self.thread.handle(qp).unwrap()
    }

    /// A write of `length` bytes at `offset`.
    fn write(&self, wr_id: u64, offset: usize, length: u32) -> SendWr<'_> {
        let local = self.from.local(offset, length).unwrap();
        SendWr::write(wr_id, local, self.to.addr() + offset as u64, &self.keys)
    }

    /// A write of 64 bytes that notifies.
    fn notify(&self, wr_id: u64, imm: u32) -> SendWr<'_> {
        let local = self.from.local(0, 64).unwrap();
        SendWr::write_with_imm(wr_id, local, self.to.addr(), imm, &self.keys)
    }
}

#[track_caller]
fn succeeds(pending: Pending, wr_id: u64) {
    let wc = pending.wait().unwrap();
    assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
}

#[test]
fn many_producers_each_in_order_and_every_request_once() {
    const PRODUCERS: u64 = 4;
    const EACH: u64 = 1500;
    for builder in [EndpointBuilder::new(), EndpointBuilder::new().rails(1)] {
        let world = World::new(builder);
        let mut receives = world.handle(FAR);
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let mut handle = world.handle(NEAR);
                let world = &world;
                scope.spawn(move || {
                    let mut pending = std::collections::VecDeque::new();
                    for seq in 0..EACH {
                        let wr = world.notify(seq, (producer << 16 | seq) as u32);
                        pending.push_back(submit(|| handle.post_send(&wr)));
                        // Every Pending names its own request, and is reported once.
                        while pending.len() > 100 {
                            let first = seq - (pending.len() as u64 - 1);
                            succeeds(pending.pop_front().unwrap(), first);
                        }
                    }
                    let first = EACH - pending.len() as u64;
                    (first..).zip(pending).for_each(|(seq, pending)| succeeds(pending, seq));
                });
            }
            let mut next = [0; PRODUCERS as usize];
            let mut posted = std::collections::VecDeque::new();
            for wr_id in 0..PRODUCERS * EACH {
                posted.push_back(submit(|| receives.post_recv(&RecvWr::notification(wr_id))));
                while posted.len() > 200 || (wr_id + 1 == PRODUCERS * EACH && !posted.is_empty()) {
                    let wc = posted.pop_front().unwrap().wait().unwrap();
                    let imm = wc.imm.unwrap();
                    let producer = (imm >> 16) as usize;
                    let seq = imm & 0xffff;
                    assert_eq!(seq, next[producer], "producer {producer}");
                    next[producer] += 1;
                }
            }
            assert_eq!(next, [EACH as u32; PRODUCERS as usize]);
        });
        world.thread.shutdown().unwrap();
    }
}

#[test]
fn the_bytes_of_all_producers_arrive() {
    let world = World::new(EndpointBuilder::new().rails(3).max_msg_size(1024));
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 31 + i / 251) as u8).collect();
    world.from.write_at(0, &bytes).unwrap();
    std::thread::scope(|scope| {
        for producer in 0..4 {
            let mut handle = world.handle(NEAR);
            let world = &world;
            scope.spawn(move || {
                let pieces = (producer..BYTES / 4096).step_by(4);
                let pending: Vec<_> = pieces
                    .map(|piece| {
                        let wr = world.write(piece as u64, piece * 4096, 4096);
                        (piece as u64, submit(|| handle.post_send(&wr)))
                    })
                    .collect();
                pending.into_iter().for_each(|(piece, pending)| succeeds(pending, piece));
            });
        }
    });
    let mut arrived = vec![0; BYTES];
    world.to.read_at(0, &mut arrived).unwrap();
    assert!(arrived == bytes);
}

#[test]
fn a_handle_without_room_pushes_back_and_its_sends_do_not_wait_for_its_receives() {
    let world = World::new(EndpointBuilder::new());
    let mut far = world.handle(FAR);
    let mut receives: Vec<_> = (0..HANDLE_DEPTH as u64)
        .map(|wr_id| submit(|| far.post_recv(&RecvWr::notification(wr_id))))
        .collect();
    let refused = far.post_recv(&RecvWr::notification(0)).unwrap_err();
    assert_eq!(refused, SubmitError::Full);
    // Sends of the same handle have room of their own.
    let old = world.to.local(8, 8).unwrap();
    let keys = world.to.toward(&world.from.remote()).unwrap();
    let wr = SendWr::fetch_add(9, old, world.from.addr(), 1, &keys);
    succeeds(submit(|| far.post_send(&wr)), 9);
    // A second handle has room, though the engine's ring is full: the thread defers its requests.
    let mut second = world.handle(FAR);
    let held: Vec<_> = (1000..1100)
        .map(|wr_id| submit(|| second.post_recv(&RecvWr::notification(wr_id))))
        .collect();
    succeeds(submit(|| second.post_send(&SendWr { wr_id: 10, ..wr })), 10);
    let mut near = world.handle(NEAR);
    succeeds(near.post_send(&world.notify(1, 0)).unwrap(), 1);
    succeeds(receives.remove(0), 0);
    succeeds(submit(|| near.post_send(&world.notify(2, 1))), 2);
    succeeds(receives.remove(0), 1);
    receives.push(submit(|| far.post_recv(&RecvWr::notification(256))));
    // Within each handle, the first request is served first.
    for imm in 2..2 + 255 + 100 {
        succeeds(submit(|| near.post_send(&world.notify(3, imm))), 3);
    }
    (2..).zip(receives).for_each(|(wr_id, pending)| succeeds(pending, wr_id));
    (1000..).zip(held).for_each(|(wr_id, pending)| succeeds(pending, wr_id));
}

#[test]
fn futures_complete_on_any_executor_and_in_any_thread() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.handle(NEAR);
    let mut batch = |first: u64| -> Vec<Pending> {
        (first..first + 100)
            .map(|wr_id| submit(|| handle.post_send(&world.write(wr_id, 0, 50_000))))
            .collect()
    };
    let all = pollster::block_on(join_all(batch(0)));
    assert!(all.iter().zip(0..).all(|(outcome, wr_id)| outcome.unwrap().wr_id == wr_id));
    let all = batch(100);
    std::thread::scope(|scope| {
        for (wr_id, pending) in (100..).zip(all).step_by(7) {
            scope.spawn(move || assert_eq!(pollster::block_on(pending).unwrap().wr_id, wr_id));
        }
    });
}

#[test]
fn a_dropped_pending_cancels_nothing_and_its_place_is_used_again() {
    let world = World::new(EndpointBuilder::new());
    world.from.fill(0, BYTES, 7).unwrap();
    let mut handle = world.handle(NEAR);
    for wr_id in 0..4 * HANDLE_DEPTH {
        drop(submit(|| handle.post_send(&world.write(0, wr_id * 64, 64))));
    }
    succeeds(submit(|| handle.post_send(&world.write(1, 0, 64))), 1);
    let mut bytes = vec![0; 4 * HANDLE_DEPTH * 64];
    world.to.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn requests_of_a_dropped_handle_are_carried_out() {
    let world = World::new(EndpointBuilder::new());
    for round in 0..50 {
        let mut handle = world.handle(NEAR);
        let pending: Vec<_> = (0..20)
            .map(|wr_id| submit(|| handle.post_send(&world.write(wr_id, 0, 10_000))))
            .collect();
        drop(handle);
        if round % 2 == 0 {
            (0..).zip(pending).for_each(|(wr_id, pending)| succeeds(pending, wr_id));
        }
    }
    let set = world.thread.shutdown().unwrap();
    assert_eq!(set.get(NEAR).unwrap().unreported(), 0);
}

#[test]
fn a_thread_that_sleeps_is_woken() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.handle(NEAR);
    for wr_id in 0..5 {
        std::thread::sleep(Duration::from_millis(60));
        succeeds(handle.post_send(&world.write(wr_id, 0, 64)).unwrap(), wr_id);
    }
    std::thread::sleep(Duration::from_millis(60));
    succeeds(world.handle(NEAR).post_send(&world.write(9, 0, 64)).unwrap(), 9);
    std::thread::sleep(Duration::from_millis(60));
    world.thread.shutdown().unwrap();
}

#[test]
fn a_receiver_that_sleeps_keeps_its_queues_filled_for_dqplb() {
    let builder = EndpointBuilder::new().scheme(Scheme::Dqplb).max_msg_size(128);
    let world = World::new(builder);
    let mut near = world.handle(NEAR);
    let mut far = world.handle(FAR);
    for wr_id in 0..3 {
        std::thread::sleep(Duration::from_millis(60));
        let local = world.from.local(0, 128 * 1024).unwrap();
        let wr = SendWr::write_with_imm(wr_id, local, world.to.addr(), 0, &world.keys);
        let sent = near.post_send(&wr).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        succeeds(far.post_recv(&RecvWr::notification(wr_id)).unwrap(), wr_id);
        succeeds(sent, wr_id);
    }
}

#[test]
fn shutting_down_drains_first() {
    let world = World::new(EndpointBuilder::new());
    let mut near = world.handle(NEAR);
    let mut far = world.handle(FAR);
    let receive = far.post_recv(&RecvWr::notification(5)).unwrap();
    let writes: Vec<_> = (0..200)
        .map(|wr_id| submit(|| near.post_send(&world.write(wr_id, 0, BYTES as u32 / 2))))
        .collect();
    let World { thread, .. } = world;
    let set = thread.shutdown().unwrap();
    assert_eq!(set.qps().map(EndpointQp::unreported).collect::<Vec<_>>(), [0, 0]);
    for (wr_id, mut pending) in (0..).zip(writes) {
        let wc = pending.try_take().expect("every outcome is there").unwrap();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
    }
    let wc = receive.wait().unwrap();
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::WR_FLUSH_ERR));
    let refused = far.post_recv(&RecvWr::notification(6)).unwrap_err();
    assert_eq!(refused, SubmitError::ThreadGone);
}

#[test]
fn producers_that_post_during_a_shutdown_get_an_answer_to_everything() {
    for rails in [1, 4] {
        let world = World::new(EndpointBuilder::new().rails(rails));
        let handles: Vec<_> = (0..3).map(|_| world.handle(NEAR)).collect();
        let local = world.from.local(0, 4096).unwrap();
        let thread = world.thread;
        let addr = world.to.addr();
        let keys = &world.keys;
        std::thread::scope(|scope| {
            for mut handle in handles {
                scope.spawn(move || {
                    let mut pending = Vec::new();
                    let end = loop {
                        match handle.post_send(&SendWr::write(1, local, addr, keys)) {
                            Ok(request) => pending.push(request),
                            Err(SubmitError::Full) => {
                                pending.drain(..).for_each(|pending| _ = pending.wait());
                            }
                            Err(error) => break error,
                        }
                    };
                    assert_eq!(end, SubmitError::ThreadGone);
                    for pending in pending {
                        match pending.wait() {
                            Ok(wc) => assert_eq!(wc.wr_id, 1),
                            // Handed over after the thread's last check.
                            Err(error) => assert_eq!(error, RequestError::Abandoned),
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            thread.shutdown().unwrap();
        });
    }
}

#[test]
fn a_silent_device_does_not_hold_a_shutdown_up() {
    let drain_timeout = Duration::from_millis(30);
    let options = ProgressOptions { drain_timeout, ..ProgressOptions::default() };
    let world = World::with_options(EndpointBuilder::new(), options);
    world.devices[NEAR].inject(When::Now, Fault::Silent(true));
    let mut handle = world.handle(NEAR);
    let pending = handle.post_send(&world.write(1, 0, 64)).unwrap();
    let World { thread, .. } = world;
    let begin = Instant::now();
    thread.shutdown().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3));
    assert_eq!(pending.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn a_silent_rail_fails_its_queue_pair_after_the_stall_timeout() {
    let waited = Duration::from_millis(200);
    for rails in [1, 4] {
        let options = ProgressOptions { drain_timeout: Duration::MAX, stall_timeout: Some(waited) };
        let world = World::with_options(EndpointBuilder::new().rails(rails), options);
        let mut sends = world.handle(NEAR);
        let mut receives = world.handle(NEAR);
        // Waiting for a peer is not silence, and neither is having nothing to do.
        let receive = receives.post_recv(&RecvWr::notification(3)).unwrap();
        succeeds(sends.post_send(&world.write(1, 0, 64)).unwrap(), 1);
        std::thread::sleep(2 * waited);
        assert_eq!(sends.endpoint_error(), None);
        world.devices[NEAR].inject(When::Now, Fault::Silent(true));
        let begin = Instant::now();
        let pending = sends.post_send(&world.write(2, 0, 64)).unwrap();
        assert_eq!(pending.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
        assert!(begin.elapsed() >= waited);
        assert_eq!(receive.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
        let silent = receives.endpoint_error().unwrap().to_string();
        assert!(silent.contains("(device near0) fell silent: no progress for 200ms"), "{silent}");
        assert_eq!(world.handle(FAR).endpoint_error(), None);
    }
}

#[test]
fn a_failure_reaches_every_handle_of_the_queue_pair_and_no_other() {
    for rails in [1, 4] {
        let world = World::new(EndpointBuilder::new().rails(rails));
        let mut one = world.handle(NEAR);
        let mut two = world.handle(NEAR);
        let receive = two.post_recv(&RecvWr::notification(3)).unwrap();
        succeeds(one.post_send(&world.write(1, 0, 64)).unwrap(), 1);
        assert_eq!(one.endpoint_error(), None);
        world.devices[NEAR].inject(When::Now, Fault::LinkDown);
        let status = one.post_send(&world.write(2, 0, 64)).unwrap().wait().unwrap().status;
        assert_eq!(status, WcStatus::RETRY_EXC_ERR);
        // Requests that would never complete come back too.
        assert_eq!(receive.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
        for handle in [&mut one, &mut two] {
            let Some(EndpointError::Rail(error)) = handle.endpoint_error() else { panic!() };
            assert_eq!(error.device, "near0");
            let refused = handle.post_send(&world.write(4, 0, 64)).unwrap_err();
            assert_eq!(refused, SubmitError::EndpointFailed);
        }
        assert_eq!(world.handle(FAR).endpoint_error(), None);
    }
}

#[test]
fn a_device_that_goes_away_leaves_no_request_waiting() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.handle(NEAR);
    let receive = handle.post_recv(&RecvWr::notification(3)).unwrap();
    let awaited = std::thread::spawn(move || pollster::block_on(receive));
    std::thread::sleep(Duration::from_millis(20));
    world.devices[NEAR].inject(When::Now, Fault::DeviceGone);
    // The thread may sleep, and a device that is gone reports nothing: the next request finds out.
    let outcome = handle.post_send(&world.write(1, 0, 64)).map(Pending::wait);
    assert!(!matches!(outcome, Ok(Ok(wc)) if wc.status.is_success()), "{outcome:?}");
    // Refused if the thread came to it so late.
    let ended = awaited.join().unwrap();
    let is_known = matches!(ended, Err(RequestError::Abandoned | RequestError::Refused(_)));
    assert!(is_known, "{ended:?}");
    let Some(EndpointError::Queue { device, .. }) = handle.endpoint_error() else { panic!() };
    assert_eq!(device, "near0");
}

#[test]
fn a_single_endpoint_is_a_set_of_one() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("both")).alloc_pd().unwrap();
    let [mut near, mut far] =
        [(); 2].map(|()| -> Endpoint { EndpointBuilder::new().build(&[&domain]).unwrap() });
    connect_endpoints(&mut near, &mut far).unwrap();
    // What its owner posted before is dropped, though the thread uses such numbers too.
    (256..276).for_each(|wr_id| far.post_recv(&RecvWr::notification(wr_id)).unwrap());
    let [near, far] = [near, far].map(|endpoint| ProgressThread::spawn(endpoint).unwrap());
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = RegisteredBuffer::new(64, access, &[&domain]).unwrap();
    let keys = buffer.toward(&buffer.remote()).unwrap();
    let local = buffer.local(0, 64).unwrap();
    let mut receiver = far.handle(0).unwrap();
    let received: Vec<_> = (0..300)
        .step_by(15)
        .map(|wr_id| receiver.post_recv(&RecvWr::notification(wr_id)).unwrap())
        .collect();
    let mut sender = near.handle(0).unwrap();
    for imm in 0..40 {
        let wr = SendWr::write_with_imm(2, local, buffer.addr(), imm, &keys);
        succeeds(sender.post_send(&wr).unwrap(), 2);
    }
    for (imm, received) in (20..).zip(received) {
        assert_eq!(received.wait().unwrap().imm, Some(imm));
    }
    assert!(near.handle(1).is_none());
    assert_eq!(near.shutdown().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_handed_over_is_refused_at_once_or_by_the_engine() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.handle(NEAR);
    let wr = world.write(1, 0, 64);
    let refused = |handle: &mut Handle, wr: &SendWr<'_>| handle.post_send(wr).unwrap_err();
    assert_eq!(refused(&mut handle, &wr.with_flags(SendFlags::empty())), SubmitError::Unsignaled);
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    assert_eq!(refused(&mut handle, &wr.with_flags(inline)), SubmitError::Inline);
    let outcome = handle.post_send(&SendWr { keys: &[], ..wr }).unwrap().wait();
    let device = world.devices[NEAR].id();
    assert_eq!(outcome, Err(RequestError::Refused(PostSendError::MissingKeys { device }.into())));
    succeeds(handle.post_send(&wr).unwrap(), 1);
    assert!(world.thread.handle(2).is_none());
}

#[test]
fn more_buffers_than_the_thread_keeps_keys_of_are_served() {
    let world = World::new(EndpointBuilder::new());
    let buffers: Vec<_> = (0..40_u8)
        .map(|n| {
            let buffer = RegisteredBuffer::new(64, AccessFlags::empty(), &[&world.domain]).unwrap();
            buffer.fill(0, 64, n).unwrap();
            let keys = buffer.toward(&world.to.remote()).unwrap();
            (buffer, keys)
        })
        .collect();
    let mut handle = world.handle(NEAR);
    for round in 0..3 {
        let pending: Vec<_> = (0..)
            .zip(&buffers)
            .map(|(n, (buffer, keys))| {
                let local = buffer.local(0, 64).unwrap();
                let at = n * 64;
                let wr = SendWr::write(n, local, world.to.addr() + at, keys);
                submit(|| handle.post_send(&wr))
            })
            .collect();
        (0..).zip(pending).for_each(|(n, pending)| succeeds(pending, n));
        let mut bytes = [0; 40 * 64];
        world.to.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == (i / 64) as u8), "round {round}");
        world.to.fill(0, 40 * 64, 0xff).unwrap();
    }
}
