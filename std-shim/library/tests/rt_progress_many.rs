//! Requests that are handed to a progress thread together.

mod fixture;

use fixture::{Host, impatient};
use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::hardware::Refusal;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Fabric, ProtectionDomain};
use polyrail::progress::{
    HANDLE_DEPTH, Handle, Pending, ProgressThread, RequestError, SubmitError, SubmitManyError,
};
use polyrail::verbs::{AccessFlags, DeviceKeys, SendFlags, SendWr, WcStatus};
use polyrail::virtual_qp::{PostSendError, RailId};
use polyrail_faults::{DriverFault, Faults, WorkQueue};
use std::collections::VecDeque;

/// Bytes of a request.
const PIECE: usize = 64;

/// A thread with one virtual queue pair, connected to an endpoint that is kept, and where it
/// writes.
struct World {
    thread: ProgressThread,
    near: Host,
    far: Host,
    _far_set: EndpointSet,
}

impl World {
    fn new(builder: EndpointBuilder) -> Self {
        let fabric = Fabric::threaded();
        let [near, far] =
            ["near", "far"].map(|name| Host::new(&fabric, name, 1, 8 * HANDLE_DEPTH * PIECE));
        let builder = builder.connect_options(impatient());
        let [mut near_set, mut far_set] = [&near, &far].map(|host| host.set(&[(builder, &[0])]));
        for (near, far) in near_set.qps_mut().zip(far_set.qps_mut()) {
            connect_endpoints(near, far).unwrap();
        }
        let thread = ProgressThread::spawn(near_set).unwrap();
        Self { thread, near, far, _far_set: far_set }
    }

    fn keys(&self) -> Vec<DeviceKeys> {
        self.near.buffer.toward(&self.far.buffer.remote()).unwrap()
    }

    /// A write of the piece with this number, from and to its own place.
    fn write<'k>(&self, number: usize, keys: &'k [DeviceKeys]) -> SendWr<'k> {
        let local = self.near.buffer.local(number * PIECE, PIECE as u32).unwrap();
        let there = self.far.buffer.addr() + (number * PIECE) as u64;
        SendWr::write(number as u64, local, there, keys)
    }
}

/// Hands all of them over, as many at a time as there is room for, and waits for all. Their names
/// are their numbers.
fn carry_out(handle: &mut Handle, wrs: &[SendWr<'_>]) {
    let mut pending = VecDeque::new();
    let (mut rest, mut ended) = (wrs, 0);
    loop {
        let before = pending.len();
        let outcome = handle.post_many(rest, &mut pending);
        rest = &rest[pending.len() - before..];
        match outcome {
            Ok(()) => assert!(rest.is_empty()),
            Err(SubmitManyError { submitted, error }) => {
                assert_eq!((submitted, error), (pending.len() - before, SubmitError::Full));
            }
        }
        let Some(first) = pending.pop_front() else { break };
        succeeds(first, ended);
        ended += 1;
    }
    assert_eq!(ended, wrs.len() as u64);
}

#[track_caller]
fn succeeds(pending: Pending, wr_id: u64) {
    let wc = pending.wait().unwrap();
    assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
}

#[track_caller]
fn succeed(pending: Vec<Pending>) {
    (0..).zip(pending).for_each(|(wr_id, pending)| succeeds(pending, wr_id));
}

#[test]
fn each_has_its_own_outcome_in_their_order() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.thread.handle(0).unwrap();
    let (keys, count) = (world.keys(), 3 * HANDLE_DEPTH);
    (0..count).for_each(|n| world.near.buffer.fill(n * PIECE, PIECE, n as u8).unwrap());
    let wrs: Vec<_> = (0..count).map(|number| world.write(number, &keys)).collect();
    carry_out(&mut handle, &wrs);
    let mut bytes = vec![0; count * PIECE];
    world.far.buffer.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at / PIECE) as u8));
}

#[test]
fn the_handle_takes_as_many_as_it_has_room_for() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.thread.handle(0).unwrap();
    let keys = world.keys();
    let wrs: Vec<_> = (0..HANDLE_DEPTH + 9).map(|number| world.write(number, &keys)).collect();
    let mut pending = Vec::new();
    // The keys take a place in the ring from which they may not have been taken yet.
    let error = handle.post_many(&wrs, &mut pending).unwrap_err();
    assert_eq!(error.error, SubmitError::Full);
    assert_eq!(pending.len(), error.submitted);
    assert!((HANDLE_DEPTH - 1..=HANDLE_DEPTH).contains(&error.submitted), "{error}");
    succeed(pending);
}

#[test]
fn the_first_that_is_refused_and_those_behind_it_are_not_handed_over() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.thread.handle(0).unwrap();
    let keys = world.keys();
    let good = [0, 1, 2, 3].map(|number| world.write(number, &keys));
    for (flags, refusal) in [
        (SendFlags::empty(), SubmitError::Unsignaled),
        (SendFlags::SIGNALED | SendFlags::INLINE, SubmitError::Inline),
    ] {
        let mut wrs = good;
        wrs[2] = wrs[2].with_flags(flags);
        let mut pending = Vec::new();
        let error = handle.post_many(&wrs, &mut pending).unwrap_err();
        assert_eq!(error, SubmitManyError { submitted: 2, error: refusal });
        assert_eq!(pending.len(), 2);
        succeed(pending);
    }
    assert_eq!(handle.post_many(&[], &mut Vec::new()), Ok(()));
}

#[test]
fn those_that_the_engine_refuses_do_not_hold_up_the_others() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.thread.handle(0).unwrap();
    let keys = world.keys();
    let mut wrs = [0, 1, 2, 3, 4].map(|number| world.write(number, &keys));
    for bad in [1, 2, 4] {
        wrs[bad].keys = &[];
    }
    let device = world.near.devices[0].id();
    let missing = RequestError::Refused(PostSendError::MissingKeys { device }.into());
    let mut pending = Vec::new();
    handle.post_many(&wrs, &mut pending).unwrap();
    for (number, pending) in pending.into_iter().enumerate() {
        let outcome = pending.wait().map(|wc| (wc.wr_id, wc.status));
        let is_bad = wrs[number].keys.is_empty();
        let expected = Ok((number as u64, WcStatus::SUCCESS));
        assert_eq!(outcome, if is_bad { Err(missing) } else { expected });
    }
}

/// A thread over a single rail whose driver has these faults, and the hosts.
fn faulty(faults: &Faults) -> (Handle, [Host; 2], impl Sized) {
    let fabric = Fabric::threaded();
    let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, 1, 6 * HANDLE_DEPTH * PIECE));
    let [near, far] = hosts.each_ref().map(|host| host.domains[0].clone());
    let builder = EndpointBuilder::new().rails(1).connect_options(impatient());
    let mut sender = builder.build(&[&faults.domain(near)]).unwrap();
    let mut receiver = builder.build(&[&Faults::new().domain(far)]).unwrap();
    connect_endpoints(&mut sender, &mut receiver).unwrap();
    let thread = ProgressThread::spawn(sender).unwrap();
    let handle = thread.handle(0).unwrap();
    (handle, hosts, (thread, receiver))
}

#[test]
fn keys_whose_place_others_take_stay_with_their_requests() {
    let faults = Faults::new();
    let (mut handle, [near, far], _kept) = faulty(&faults);
    let domain: &ProtectionDomain = &near.domains[0];
    let sources: Vec<_> = (0..100_u8)
        .map(|n| {
            let source = RegisteredBuffer::new(PIECE, AccessFlags::empty(), &[domain]).unwrap();
            source.fill(0, PIECE, n).unwrap();
            let keys = source.toward(&far.buffer.remote()).unwrap();
            (source, keys)
        })
        .collect();
    let count = 6 * HANDLE_DEPTH;
    let wrs: Vec<_> = (0..count)
        .map(|number| {
            let (source, keys) = &sources[number % sources.len()];
            let local = source.local(0, PIECE as u32).unwrap();
            SendWr::write(number as u64, local, far.buffer.addr() + (number * PIECE) as u64, keys)
        })
        .collect();
    // Requests wait with the thread while the keys of those behind them come.
    faults.inject(DriverFault::QueueFull { queue: WorkQueue::Send, commits: 50 });
    carry_out(&mut handle, &wrs);
    let mut bytes = vec![0; count * PIECE];
    far.buffer.read_at(0, &mut bytes).unwrap();
    let expected = |at: usize| (at / PIECE % sources.len()) as u8;
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

#[test]
fn they_are_posted_with_few_doorbells() {
    let world = World::new(EndpointBuilder::new().rails(4));
    let mut handle = world.thread.handle(0).unwrap();
    let keys = world.keys();
    let wrs: Vec<_> = (0..16).map(|number| world.write(number, &keys)).collect();
    carry_out(&mut handle, &wrs);
    drop(handle);
    let set = world.thread.shutdown().unwrap();
    let qp = set.qps().next().unwrap();
    let doorbells = |rail| qp.virtual_qp().counters(RailId::Data(rail)).unwrap().doorbells;
    assert_eq!([0, 1, 2, 3].map(doorbells), [1; 4]);
}

#[test]
fn a_driver_that_takes_a_part_or_none_costs_no_request() {
    let faults = Faults::new();
    let (mut handle, [near, far], _kept) = faulty(&faults);
    let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
    let write = |number: usize| {
        let local = near.buffer.local(number * PIECE, PIECE as u32).unwrap();
        SendWr::write(number as u64, local, far.buffer.addr(), &keys)
    };
    let wrs: Vec<_> = (0..32).map(write).collect();
    for (requests, refusal) in [
        (0, Refusal::Driver(22)),
        (0, Refusal::QueueFull),
        (5, Refusal::QueueFull),
        (31, Refusal::QueueFull),
    ] {
        let queue = WorkQueue::Send;
        faults.inject(DriverFault::AcceptOnly { queue, nth_batch: 0, requests, refusal });
        carry_out(&mut handle, &wrs);
        assert!(!faults.is_waiting(), "{requests} {refusal:?}");
    }
}

#[test]
fn those_that_the_caller_does_not_take_are_carried_out_and_leave_their_places() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.thread.handle(0).unwrap();
    let keys = world.keys();
    let wrs: Vec<_> = (0..32).map(|number| world.write(number, &keys)).collect();
    for _ in 0..3 * HANDLE_DEPTH / wrs.len() {
        // Room for some: it takes what it has room for, and drops the others.
        let mut few = Few(Vec::new());
        while let Err(some) = handle.post_many(&wrs, &mut few) {
            assert_eq!(some.error, SubmitError::Full);
        }
        few.0.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
    }
}

/// Keeps four at most.
struct Few(Vec<Pending>);

impl Extend<Pending> for Few {
    fn extend<I: IntoIterator<Item = Pending>>(&mut self, pending: I) {
        let room = 4 - self.0.len();
        self.0.extend(pending.into_iter().take(room));
    }
}

#[test]
fn a_thread_that_is_gone_takes_none() {
    let world = World::new(EndpointBuilder::new());
    let mut handle = world.thread.handle(0).unwrap();
    let keys = world.near.buffer.toward(&world.far.buffer.remote()).unwrap();
    let local = world.near.buffer.local(0, 64).unwrap();
    let wrs = [SendWr::write(1, local, world.far.buffer.addr(), &keys)];
    world.thread.shutdown().unwrap();
    let mut pending = Vec::new();
    let error = handle.post_many(&wrs, &mut pending).unwrap_err();
    assert_eq!(error, SubmitManyError { submitted: 0, error: SubmitError::ThreadGone });
    assert!(pending.is_empty());
}
