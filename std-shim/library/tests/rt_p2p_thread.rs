//! Messages through a progress thread: many producers, what waits, and ends, with real threads on
//! the software NIC.

mod fixture;
mod threads;

use fixture::{Host, ended, submit};
use futures_util::future::join_all;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::Fabric;
use polyrail::p2p::{
    CallError, Failure, P2pBuilder, P2pEndpointSet, RecvBuffer, connect_endpoints,
};
use polyrail::progress::messages::{P2pError, P2pThread, PendingDone, PendingRecv};
use polyrail::progress::{HANDLE_DEPTH, SubmitError};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use threads::{BYTES, World};

/// What a message of this number is like: its place, and its length.
fn shape(number: usize) -> (usize, u32) {
    (number % 64 * 64, 8 + (number % 50) as u32)
}

#[test]
fn ten_thousand_messages_arrive_in_order_between_threads_that_each_have_a_handle() {
    const MESSAGES: usize = 10_000;
    let world = World::new(2, &P2pBuilder::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut handle = world.near.handle();
            let mut sent = VecDeque::new();
            for number in 0..MESSAGES {
                let (at, length) = shape(number);
                if sent.len() == 64 {
                    let first: PendingDone = sent.pop_front().unwrap();
                    ended(first).unwrap();
                }
                world.near.host.buffer.write_at(at, &number.to_ne_bytes()).unwrap();
                sent.push_back(submit(|| world.near.send(&mut handle, (at, length, 3))));
            }
            sent.into_iter().for_each(|pending| ended(pending).unwrap());
        });
        let mut handle = world.far.handle();
        let mut offered = VecDeque::new();
        for number in 0..MESSAGES + 64 {
            if let Some(arrived) = number.checked_sub(64) {
                let first: PendingRecv = offered.pop_front().unwrap();
                let (at, length) = shape(arrived);
                assert_eq!(ended(first).unwrap().sizes(), [length]);
                assert_eq!(world.far.bytes(at, 8), arrived.to_ne_bytes());
            }
            if number < MESSAGES {
                let (at, _) = shape(number);
                offered.push_back(submit(|| world.far.offer(&mut handle, &[(at, 64, 3)])));
            }
        }
    });
    let [near, far] = [world.near, world.far].map(|side| side.thread.shutdown().unwrap());
    for set in [near, far] {
        assert_eq!(set.get(0).unwrap().unfinished(), (0, 0));
    }
}

#[test]
fn two_threads_on_one_endpoint_each_keep_their_order() {
    const EACH: u32 = 1000;
    let world = World::new(2, &P2pBuilder::new());
    // Each has its own tags, places and order; every receive has a buffer of each.
    std::thread::scope(|scope| {
        for producer in 0..2_u32 {
            let world = &world;
            scope.spawn(move || {
                let mut handle = world.near.handle();
                for number in 0..EACH {
                    let at = producer as usize * 4096;
                    world.near.host.buffer.write_at(at, &number.to_ne_bytes()).unwrap();
                    ended(submit(|| world.near.send(&mut handle, (at, 4, producer)))).unwrap();
                }
            });
        }
        let mut handle = world.far.handle();
        for number in 0..EACH {
            let offered = [(0, 64, 0), (4096, 64, 1)];
            let received = ended(submit(|| world.far.offer(&mut handle, &offered))).unwrap();
            assert_eq!(received.sizes(), [4, 4]);
            for at in [0, 4096] {
                assert_eq!(world.far.bytes(at, 4), number.to_ne_bytes());
            }
        }
    });
}

#[test]
fn messages_wait_for_their_buffers_and_pass_each_other_by_tag() {
    let world = World::new(2, &P2pBuilder::new());
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    // Two of each tag, all before anything is offered.
    let place = |at: u32| (at as usize) << 10;
    let tags = [5, 6, 7, 5, 6, 7];
    let mut sent: Vec<_> = (0..)
        .zip(tags)
        .map(|(at, tag)| {
            world.near.host.buffer.fill(place(at), 100, at as u8 + 1).unwrap();
            world.near.send(&mut sender, (place(at), 10 + at, tag)).unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    assert!(sent.iter_mut().all(|pending| pending.try_take().is_none()));
    // In another order; the bytes distinguish the messages of one tag.
    for (to, (tag, first)) in (8..).zip([(7, 2), (5, 0), (5, 3), (6, 1), (7, 5), (6, 4)]) {
        let offered = [(place(to), 100, tag)];
        let received = ended(world.far.offer(&mut receiver, &offered).unwrap()).unwrap();
        assert_eq!(received.sizes(), [10 + first], "tag {tag}");
        assert_eq!(world.far.bytes(place(to), 1), [first as u8 + 1]);
    }
    sent.into_iter().for_each(|pending| ended(pending).unwrap());
}

#[test]
fn eight_buffers_of_as_many_registrations_arrive_whatever_came_before() {
    let world = World::new(2, &P2pBuilder::new());
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    let buffers = many(&world.far.host);
    let keys: Vec<_> = buffers.iter().map(|buffer| buffer.own_keys()).collect();
    for round in 0..40_usize {
        let chosen: Vec<_> = (0..8).map(|at| (round * 5 + at * 8 + at * at) % 21).collect();
        let offered: Vec<_> = (0..)
            .zip(&chosen)
            .map(|(at, &buffer)| RecvBuffer {
                local: buffers[buffer].local(at as usize * 512, 512).unwrap(),
                tag: at,
                keys: &keys[buffer],
            })
            .collect();
        let receive = receiver.irecv(&offered).unwrap();
        let send = |at: u32| {
            let place = at as usize * 512;
            world.near.host.buffer.fill(place, 512, (round + at as usize) as u8).unwrap();
            world.near.send(&mut sender, (place, 400 + at, at)).unwrap()
        };
        let sent: Vec<_> = [3, 0, 7, 1, 6, 2, 5, 4].map(send).into();
        let all = pollster::block_on(join_all(sent));
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        let received = receive.wait().unwrap();
        assert_eq!(received.sizes(), [400, 401, 402, 403, 404, 405, 406, 407]);
        for (at, buffer) in chosen.into_iter().enumerate() {
            let mut bytes = vec![0; 400 + at];
            buffers[buffer].read_at(at * 512, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == (round + at) as u8), "round {round}, {at}");
        }
    }
}

/// Buffers of 4096 bytes, more than a handle keeps keys of.
fn many(host: &Host) -> Vec<RegisteredBuffer> {
    let new = |_| RegisteredBuffer::new(4096, fixture::ALL_ACCESS, &host.all()).unwrap();
    (0..21).map(new).collect()
}

#[test]
fn what_waits_keeps_its_keys() {
    // More than the engine takes at a time.
    const EACH: usize = 150;
    let world = World::new(2, &P2pBuilder::new());
    let [from, to] = [&world.near, &world.far].map(|side| many(&side.host));
    let (mut sender, mut receiver) = (world.near.handle(), world.far.handle());
    let place = |number: usize| (number % 21, number / 21 * 512);
    let sent: Vec<_> = (0..EACH)
        .map(|number| {
            let (buffer, at) = place(number);
            from[buffer].fill(at, 512, number as u8).unwrap();
            let (local, keys) = (from[buffer].local(at, 512).unwrap(), from[buffer].own_keys());
            submit(|| sender.isend(local, 1, &keys))
        })
        .collect();
    let offered: Vec<_> = (0..EACH)
        .map(|number| {
            let (buffer, at) = place(number);
            let (local, keys) = (to[buffer].local(at, 512).unwrap(), to[buffer].own_keys());
            submit(|| receiver.irecv(&[RecvBuffer { local, tag: 1, keys: &keys }]))
        })
        .collect();
    sent.into_iter().for_each(|pending| ended(pending).unwrap());
    for (number, pending) in offered.into_iter().enumerate() {
        assert_eq!(ended(pending).unwrap().sizes(), [512]);
        let (buffer, at) = place(number);
        let mut bytes = [0; 512];
        to[buffer].read_at(at, &mut bytes).unwrap();
        assert_eq!(bytes, [number as u8; 512]);
    }
}

#[test]
fn what_arrived_is_flushed() {
    let world = World::new(2, &P2pBuilder::new().flushes(true));
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    for length in [0, 8, BYTES as u32] {
        let receive = world.far.offer(&mut receiver, &[(0, BYTES as u32, 1)]).unwrap();
        let send = world.near.send(&mut sender, (0, length, 1)).unwrap();
        let received = ended(receive).unwrap();
        ended(send).unwrap();
        ended(receiver.flush(&received).unwrap()).unwrap();
    }
    // An endpoint that was not built for flushes refuses them.
    let world = World::new(1, &P2pBuilder::new().rails(1));
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    let receive = world.far.offer(&mut receiver, &[(0, 8, 1)]).unwrap();
    let send = world.near.send(&mut sender, (0, 8, 1)).unwrap();
    let received = ended(receive).unwrap();
    ended(send).unwrap();
    let device = world.far.host.devices[0].id();
    let refused = ended(receiver.flush(&received).unwrap());
    assert_eq!(refused, Err(CallError::CannotFlush { device }.into()));
}

#[test]
fn what_cannot_be_is_refused_and_the_next_goes_on() {
    let world = World::new(1, &P2pBuilder::new().rails(1));
    assert!(world.near.thread.handle(1).is_none());
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    for buffers in [0, 9] {
        let refused = world.far.offer(&mut receiver, &vec![(0, 8, 1); buffers]).unwrap_err();
        assert_eq!(refused, SubmitError::Buffers { buffers });
    }
    let receive = world.far.offer(&mut receiver, &[(0, 8, 1)]).unwrap();
    let too_long = world.near.send(&mut sender, (0, 9, 1)).unwrap();
    let without_keys = sender.isend(world.near.host.buffer.local(0, 8).unwrap(), 1, &[]).unwrap();
    let fits = world.near.send(&mut sender, (0, 8, 1)).unwrap();
    assert_eq!(ended(too_long), Err(CallError::TooLong { length: 9, capacity: 8 }.into()));
    let device = world.near.host.devices[0].id();
    assert_eq!(ended(without_keys), Err(CallError::MissingKeys { device }.into()));
    ended(fits).unwrap();
    assert_eq!(ended(receive).unwrap().sizes(), [8]);
}

#[test]
fn a_handle_without_room_pushes_back_and_kinds_do_not_wait_for_each_other() {
    let world = World::new(1, &P2pBuilder::new().rails(1));
    let mut near = world.near.handle();
    let mut far = world.far.handle();
    let mut held: VecDeque<_> =
        (0..HANDLE_DEPTH).map(|_| submit(|| world.near.offer(&mut near, &[(0, 8, 1)]))).collect();
    let refused = world.near.offer(&mut near, &[(0, 8, 1)]).unwrap_err();
    assert_eq!(refused, SubmitError::Full);
    let mut sends: VecDeque<_> =
        (0..HANDLE_DEPTH).map(|_| submit(|| world.near.send(&mut near, (64, 4, 2)))).collect();
    let refused = world.near.send(&mut near, (64, 4, 2)).unwrap_err();
    assert_eq!(refused, SubmitError::Full);
    for _ in 0..HANDLE_DEPTH {
        ended(submit(|| world.far.offer(&mut far, &[(64, 8, 2)]))).unwrap();
        ended(sends.pop_front().unwrap()).unwrap();
        let back = submit(|| world.far.send(&mut far, (0, 8, 1)));
        ended(held.pop_front().unwrap()).unwrap();
        ended(back).unwrap();
    }
}

#[test]
fn a_future_that_is_dropped_keeps_its_buffer_until_the_message_left() {
    let world = World::new(2, &P2pBuilder::new());
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    world.near.host.buffer.fill(0, BYTES, 7).unwrap();
    drop(submit(|| world.near.send(&mut sender, (0, BYTES as u32, 1))));
    // Nor does it matter that the handle is gone.
    drop(sender);
    let received = world.far.offer(&mut receiver, &[(0, BYTES as u32, 1)]).unwrap();
    assert_eq!(ended(received).unwrap().sizes(), [BYTES as u32]);
    assert!(world.far.bytes(0, BYTES).iter().all(|byte| *byte == 7));
    // A slot that is not tested any more goes to another request in the end.
    let mut sender = world.near.handle();
    for _ in 0..3 * HANDLE_DEPTH {
        drop(submit(|| world.far.offer(&mut receiver, &[(0, 64, 1)])));
        drop(submit(|| world.near.send(&mut sender, (0, 64, 1))));
    }
}

#[test]
fn a_shutdown_brings_everything_back() {
    let patience = Duration::from_millis(500);
    let world = World::with_patience(2, &P2pBuilder::new(), patience);
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    // Some have buffers; one has none that fits; and receives wait, more than the engine takes at a
    // time.
    let offered: Vec<_> =
        (0..4).map(|_| world.far.offer(&mut receiver, &[(0, 64, 1)]).unwrap()).collect();
    let sent: Vec<_> = (0..4).map(|_| world.near.send(&mut sender, (0, 64, 1)).unwrap()).collect();
    let waits = world.near.send(&mut sender, (0, 64, 9)).unwrap();
    let held: Vec<_> =
        (0..200).map(|_| submit(|| world.near.offer(&mut sender, &[(4096, 64, 1)]))).collect();
    let begin = Instant::now();
    let World { near, far } = world;
    let set = near.thread.shutdown().unwrap();
    assert!(begin.elapsed() >= patience, "the message that waits has its time");
    assert!(set.get(0).unwrap().is_drained());
    sent.into_iter().for_each(|mut pending| assert_eq!(pending.try_take(), Some(Ok(()))));
    let failed = P2pError::Call(CallError::Failed(Failure::Owner));
    assert_eq!(ended(waits), Err(failed));
    for mut pending in held {
        assert_eq!(pending.try_take(), Some(Err(failed)));
    }
    let refused = sender.isend(far.host.buffer.local(0, 8).unwrap(), 1, &[]).unwrap_err();
    assert_eq!(refused, SubmitError::ThreadGone);
    offered.into_iter().for_each(|pending| assert_eq!(ended(pending).unwrap().sizes(), [64]));
    drop(far.thread);
}

#[test]
fn members_of_a_set_have_handles_of_their_own() {
    let fabric = Fabric::threaded();
    let hub = Host::new(&fabric, "hub", 1, BYTES);
    let builder = P2pBuilder::new().rails(1);
    let mut set: P2pEndpointSet = P2pEndpointSet::build(&builder, &hub.all(), 3).unwrap();
    let leaves: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|name| {
            let host = Host::new(&fabric, name, 1, 4096);
            let mut end = builder.build(&host.all()).unwrap();
            let number = set.add().unwrap();
            connect_endpoints(set.get_mut(number).unwrap(), &mut end).unwrap();
            (host, P2pThread::spawn(end).unwrap())
        })
        .collect();
    let thread = P2pThread::spawn(set).unwrap();
    let keys = hub.buffer.own_keys();
    let mut handles: Vec<_> = (0..3).map(|member| thread.handle(member).unwrap()).collect();
    let receives: Vec<_> = (0..)
        .zip(&mut handles)
        .map(|(at, handle)| {
            let local = hub.buffer.local(at * 64, 64).unwrap();
            handle.irecv(&[RecvBuffer { local, tag: 1, keys: &keys }]).unwrap()
        })
        .collect();
    for (at, (host, leaf)) in leaves.iter().enumerate() {
        host.buffer.fill(0, 64, at as u8 + 1).unwrap();
        let local = host.buffer.local(0, 10 + at as u32).unwrap();
        leaf.handle(0).unwrap().isend(local, 1, &host.buffer.own_keys()).unwrap().wait().unwrap();
    }
    for (at, receive) in receives.into_iter().enumerate() {
        assert_eq!(ended(receive).unwrap().sizes(), [10 + at as u32]);
    }
    // One that is given up costs the others nothing.
    thread.give_up(1);
    let refused = ended(handles[1].isend(hub.buffer.local(0, 8).unwrap(), 1, &keys).unwrap());
    assert_eq!(refused, Err(CallError::Failed(Failure::Owner).into()));
    let (host, leaf) = &leaves[2];
    let mut leaf = leaf.handle(0).unwrap();
    let own = host.buffer.own_keys();
    let offered = RecvBuffer { local: host.buffer.local(0, 64).unwrap(), tag: 4, keys: &own };
    let receive = leaf.irecv(&[offered]).unwrap();
    ended(handles[2].isend(hub.buffer.local(0, 8).unwrap(), 4, &keys).unwrap()).unwrap();
    assert_eq!(ended(receive).unwrap().sizes(), [8]);
    assert_eq!(thread.shutdown().unwrap().numbers().count(), 3);
}
