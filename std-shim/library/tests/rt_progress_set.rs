//! A progress thread with many virtual queue pairs on the same completion queues, with real threads
//! on the software NIC.

mod fixture;

use fixture::{Host, connect_sets, impatient, submit};
use polyrail::endpoint::{EndpointBuilder, EndpointError, EndpointQp, EndpointSet, NamedRailEvent};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, Fabric, Fault, When};
use polyrail::progress::{Handle, ProgressThread, RequestError, SubmitError};
use polyrail::verbs::{DeviceKeys, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{RailEventKind, RailFailure, Scheme};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// What one virtual queue pair is, and its devices by place.
type Shape = fixture::Shape<'static>;

/// Two devices, a buffer, and a thread with a virtual queue pair of each shape.
struct Side {
    devices: Vec<Device>,
    buffer: RegisteredBuffer,
    thread: ProgressThread,
    /// The numbers that the completions of each virtual queue pair carry.
    names: Vec<u32>,
}

/// Two sides, connected.
struct World {
    near: Side,
    far: Side,
    keys: Vec<DeviceKeys>,
}

impl World {
    fn new(shapes: &[Shape], bytes: usize) -> Self {
        let fabric = Fabric::threaded();
        let shapes: Vec<Shape> = shapes
            .iter()
            .map(|(builder, places)| (builder.connect_options(impatient()), *places))
            .collect();
        let [near, far] = ["near", "far"].map(|name| Host::new(&fabric, name, 2, bytes));
        let mut near_set = near.set(&shapes);
        let mut far_set = far.set(&shapes);
        connect_sets(&mut near_set, &mut far_set);
        let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
        let side = |host: Host, set: EndpointSet| {
            let Host { devices, buffer, .. } = host;
            let name = |qp: &EndpointQp| qp.virtual_qp().virtual_qp_num();
            let names = set.qps().map(name).collect();
            Side { devices, buffer, thread: ProgressThread::spawn(set).unwrap(), names }
        };
        let near = side(near, near_set);
        let far = side(far, far_set);
        Self { near, far, keys }
    }

    /// Writes once and waits for it.
    fn write(&self, handle: &mut Handle) -> Result<WcStatus, RequestError> {
        let local = self.near.buffer.local(0, 512).unwrap();
        let wr = SendWr::write(1, local, self.far.buffer.addr(), &self.keys);
        submit(|| handle.post_send(&wr)).wait().map(|wc| wc.status)
    }
}

/// Many virtual queue pairs, the producers of each, and the requests of each of those.
const QPS: usize = 20;
const PRODUCERS: usize = 3;
const EACH: usize = 20;

/// Bytes of each request's place; what it writes is shorter.
const PLACE: usize = 5120;

const fn rails(qp: usize) -> usize {
    [1, 2, 4, 3, 8][qp % 5]
}

/// No two alike.
fn shape(qp: usize) -> Shape {
    let scheme = [Scheme::Spray, Scheme::Dqplb][qp % 2];
    let max_msg_size = [1024, 4096, 65536][qp % 3];
    let builder = EndpointBuilder::new().rails(rails(qp)).scheme(scheme).max_msg_size(max_msg_size);
    (builder, [&[0, 1][..], &[1], &[0], &[1, 0]][qp % 4])
}

/// Offset and length of a request.
fn piece(qp: usize, producer: usize, seq: usize) -> (usize, usize) {
    let place = (qp * PRODUCERS + producer) * EACH + seq;
    (place * PLACE, length(place))
}

/// Bytes that are written to a place.
const fn length(place: usize) -> usize {
    1 + place * 1237 % 5000
}

/// Writes that notify, all of them.
fn produce(world: &World, qp: usize, producer: usize) {
    let mut handle = world.near.thread.handle(qp).unwrap();
    let post = |seq| {
        let (offset, length) = piece(qp, producer, seq);
        let local = world.near.buffer.local(offset, length as u32).unwrap();
        let addr = world.far.buffer.addr() + offset as u64;
        let imm = (qp << 16 | producer << 8 | seq) as u32;
        let wr = SendWr::write_with_imm(seq as u64, local, addr, imm, &world.keys);
        submit(|| handle.post_send(&wr))
    };
    let pending: Vec<_> = (0..EACH).map(post).collect();
    for (seq, pending) in (0..).zip(pending) {
        let wc = pending.wait().unwrap();
        let expected = (seq, WcStatus::SUCCESS, world.near.names[qp]);
        assert_eq!((wc.wr_id, wc.status, wc.qp_num), expected, "{qp}");
    }
}

/// Receives all notifications of a virtual queue pair, and no others.
fn consume(world: &World, qp: usize) {
    const ALL: u64 = (PRODUCERS * EACH) as u64;
    let mut handle = world.far.thread.handle(qp).unwrap();
    let post = |wr_id| submit(|| handle.post_recv(&RecvWr::notification(wr_id)));
    let pending: Vec<_> = (0..ALL).map(post).collect();
    let mut next = [0; PRODUCERS];
    for (wr_id, pending) in (0..).zip(pending) {
        let wc = pending.wait().unwrap();
        let expected = (wr_id, WcStatus::SUCCESS, world.far.names[qp]);
        assert_eq!((wc.wr_id, wc.status, wc.qp_num), expected, "{qp}");
        // Over several rails DQPLB delivers none.
        if let Some(imm) = wc.imm {
            let from = imm >> 16;
            let producer = (imm >> 8 & 0xff) as usize;
            let seq = imm & 0xff;
            assert_eq!((from as usize, seq), (qp, next[producer]));
            next[producer] += 1;
        }
    }
    let has_imm = rails(qp) == 1 || qp.is_multiple_of(2);
    assert_eq!(next, [if has_imm { EACH as u32 } else { 0 }; PRODUCERS]);
}

#[test]
fn many_queue_pairs_of_all_kinds() {
    const BYTES: usize = QPS * PRODUCERS * EACH * PLACE;
    let world = World::new(&std::array::from_fn::<_, QPS, _>(shape), BYTES);
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 31 + i / 251) as u8).collect();
    world.near.buffer.write_at(0, &bytes).unwrap();
    std::thread::scope(|scope| {
        let world = &world;
        for qp in 0..QPS {
            scope.spawn(move || consume(world, qp));
            for producer in 0..PRODUCERS {
                scope.spawn(move || produce(world, qp, producer));
            }
        }
    });
    let mut arrived = vec![0; BYTES];
    world.far.buffer.read_at(0, &mut arrived).unwrap();
    let places = arrived.chunks(PLACE).zip(bytes.chunks(PLACE));
    for (place, (arrived, sent)) in places.enumerate() {
        let length = length(place);
        assert!(arrived[..length] == sent[..length], "place {place}");
        assert!(arrived[length..].iter().all(|byte| *byte == 0), "behind place {place}");
    }
    let set = world.near.thread.shutdown().unwrap();
    assert!(set.qps().all(|qp| qp.first_error().is_none() && qp.unreported() == 0));
}

/// Writes until the flag is set, and none may fail.
fn keep_writing(world: &World, qp: usize, stop: &AtomicBool) {
    let mut handle = world.near.thread.handle(qp).unwrap();
    while !stop.load(Ordering::Relaxed) {
        assert_eq!(world.write(&mut handle), Ok(WcStatus::SUCCESS), "{qp}");
    }
    assert_eq!(handle.endpoint_error(), None);
}

/// Sets what it holds when it is dropped, also by a panic, so that every thread ends.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `disturb` while these are written to, and a little longer.
fn while_others_write(world: &World, others: &[usize], disturb: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = SetAtEnd(&stop);
        for qp in others {
            scope.spawn(|| keep_writing(world, *qp, &stop));
        }
        std::thread::sleep(Duration::from_millis(20));
        disturb();
        std::thread::sleep(Duration::from_millis(20));
    });
}

#[test]
fn one_that_fails_does_not_disturb_the_others() {
    let builder = EndpointBuilder::new();
    for (rails, device) in [(1, &[1][..]), (4, &[1]), (4, &[0, 1])] {
        let shapes = [(builder, &[0][..]), (builder.rails(rails), device), (builder, &[0])];
        let world = World::new(&shapes, 4096);
        let mut one = handle(&world, 1);
        let mut two = handle(&world, 1);
        let receive = two.post_recv(&RecvWr::notification(3)).unwrap();
        while_others_write(&world, &[0, 2], || {
            assert_eq!(world.write(&mut one), Ok(WcStatus::SUCCESS));
            world.near.devices[1].inject(When::Now, Fault::LinkDown);
            while world.write(&mut one) == Ok(WcStatus::SUCCESS) {}
            assert_eq!(receive.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
            for handle in [&mut one, &mut two] {
                let Some(EndpointError::Rail(error)) = handle.endpoint_error() else { panic!() };
                assert_eq!(error.device, "near1");
                let refused = handle.post_recv(&RecvWr::notification(4)).unwrap_err();
                assert_eq!(refused, SubmitError::EndpointFailed);
            }
        });
    }
}

fn handle(world: &World, qp: usize) -> Handle {
    world.near.thread.handle(qp).unwrap()
}

#[test]
fn a_broken_queue_fails_those_with_rails_on_it() {
    let builder = EndpointBuilder::new();
    let world = World::new(
        &[(builder, &[0]), (builder, &[1]), (builder, &[0, 1]), (builder.rails(1), &[0])],
        4096,
    );
    let mut concerned = [handle(&world, 1), handle(&world, 2)];
    let receive = |handle: &mut Handle| handle.post_recv(&RecvWr::notification(3)).unwrap();
    let receives = concerned.each_mut().map(receive);
    // What was handed over first is posted first: the receives are with the devices.
    for handle in &mut concerned {
        assert_eq!(world.write(handle), Ok(WcStatus::SUCCESS));
    }
    while_others_write(&world, &[0, 3], || {
        world.near.devices[1].inject(When::Now, Fault::DeviceGone);
        for (handle, receive) in concerned.iter().zip(receives) {
            assert_eq!(receive.wait(), Err(RequestError::Abandoned));
            let Some(EndpointError::Queue { device, .. }) = handle.endpoint_error() else {
                panic!()
            };
            assert_eq!(device, "near1");
        }
    });
    // New handles take the places of those that were given up.
    while_others_write(&world, &[3, 0], || {
        let refused = handle(&world, 2).post_recv(&RecvWr::notification(4)).unwrap_err();
        assert_eq!(refused, SubmitError::EndpointFailed);
    });
    let set = world.near.thread.shutdown().unwrap();
    let healthy = set.qps().map(|qp| qp.first_error().is_none() && qp.unreported() == 0);
    assert_eq!(
        healthy.enumerate().filter(|(_, ok)| *ok).map(|(n, _)| n).collect::<Vec<_>>(),
        [0, 3]
    );
}

#[test]
fn every_broken_queue_is_found() {
    let builder = EndpointBuilder::new().rails(1);
    let world = World::new(&[(builder, &[0]), (builder, &[1])], 4096);
    let mut handles = [handle(&world, 0), handle(&world, 1)];
    let pending =
        handles.each_mut().map(|handle| handle.post_recv(&RecvWr::notification(1)).unwrap());
    world.near.devices.iter().for_each(|device| device.inject(When::Now, Fault::DeviceGone));
    // Refused by the device, or given up with it.
    assert!(pending.into_iter().all(|pending| pending.wait().is_err()));
    let begin = Instant::now();
    for (handle, name) in handles.iter().zip(["near0", "near1"]) {
        let error = loop {
            match handle.endpoint_error() {
                Some(error) => break error,
                None => yield_now(),
            }
            assert!(begin.elapsed() < fixture::LONG, "{name} is not known to be gone");
        };
        let EndpointError::Queue { device, .. } = error else { panic!("{error}") };
        assert_eq!(device, name);
    }
}

/// What happened to the rails of this side until `is_there`.
fn events_until(side: &Side, is_there: impl Fn(usize, &NamedRailEvent) -> bool) -> Vec<String> {
    let begin = Instant::now();
    let mut told = Vec::new();
    loop {
        while let Some((qp, event)) = side.thread.take_rail_event() {
            told.push(format!("{qp}: {event}"));
            if is_there(qp, &event) {
                return told;
            }
        }
        assert!(begin.elapsed() < fixture::LONG, "{told:?}");
        yield_now();
    }
}

#[test]
fn rails_that_fail_cost_no_request_and_come_back() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let builder = EndpointBuilder::new().scheme(scheme).rail_failure(RailFailure::Reroute);
        let world = World::new(&[(builder, &[0, 1]), (EndpointBuilder::new(), &[0])], 4096);
        let mut rerouted = handle(&world, 0);
        let device = &world.near.devices[1];
        let failed =
            |event: &NamedRailEvent| matches!(event.event.kind, RailEventKind::Failed { .. });
        while_others_write(&world, &[1], || {
            device.inject(When::Now, Fault::LinkDown);
            for _ in 0..100 {
                assert_eq!(world.write(&mut rerouted), Ok(WcStatus::SUCCESS));
            }
        });
        for side in [&world.near, &world.far] {
            let told = events_until(side, |qp, event| qp == 0 && failed(event));
            assert_eq!(told.len(), 1, "{told:?}");
        }
        device.inject(When::Now, Fault::LinkUp);
        // Nobody posts anything now.
        for side in [&world.near, &world.far] {
            for _ in 0..2 {
                events_until(side, |_, event| event.event.kind == RailEventKind::Returned);
            }
        }
        assert_eq!(world.write(&mut rerouted), Ok(WcStatus::SUCCESS));
        assert_eq!(rerouted.endpoint_error(), None);
    }
}

/// Its queue is broken, and only those whose rails fail for good are given up with it.
#[test]
fn a_device_that_is_removed_costs_no_request_where_others_take_over() {
    let builder = EndpointBuilder::new();
    let rerouted = builder.rail_failure(RailFailure::Reroute);
    let world = World::new(&[(rerouted, &[0, 1]), (builder, &[0, 1]), (builder, &[0])], 4096);
    let mut handles = [handle(&world, 0), handle(&world, 1)];
    while_others_write(&world, &[2], || {
        assert_eq!(world.write(&mut handles[0]), Ok(WcStatus::SUCCESS));
        world.near.devices[1].inject(When::Now, Fault::DeviceGone);
        let begin = Instant::now();
        while handles[1].endpoint_error().is_none() {
            assert_eq!(world.write(&mut handles[0]), Ok(WcStatus::SUCCESS));
            assert!(begin.elapsed() < fixture::LONG, "nobody misses the device");
        }
        for _ in 0..100 {
            assert_eq!(world.write(&mut handles[0]), Ok(WcStatus::SUCCESS));
        }
    });
    assert_eq!(handles[0].endpoint_error(), None);
}
