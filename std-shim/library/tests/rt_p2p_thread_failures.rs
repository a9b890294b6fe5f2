//! Messages through a progress thread when peers, rails, devices and links fail, with real threads
//! on the software NIC.

mod fixture;
mod threads;

use fixture::{LONG, ended, impatient, submit};
use polyrail::heal::Healing;
use polyrail::nic::{Fault, When};
use polyrail::p2p::{CallError, Failure, HealingLink, P2pBuilder};
use polyrail::progress::messages::{P2pError, P2pHandle};
use polyrail::virtual_qp::{RailEventKind, RailFailure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};
use threads::{BYTES, Side, World};

#[test]
fn a_flush_on_a_device_that_goes_away_comes_back() {
    let builder = P2pBuilder::new()
        .rail_failure(RailFailure::Reroute)
        .flushes(true)
        .connect_options(impatient());
    let world = World::with_patience(2, &builder, Duration::ZERO);
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    let receive = world.far.offer(&mut receiver, &[(0, BYTES as u32, 1)]).unwrap();
    ended(world.near.send(&mut sender, (0, BYTES as u32, 1)).unwrap()).unwrap();
    let received = ended(receive).unwrap();
    let gone = &world.far.host.devices[1];
    gone.inject(When::Now, Fault::Silent(true));
    let mut flush = receiver.flush(&received).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(flush.try_take(), None);
    gone.inject(When::Now, Fault::DeviceGone);
    assert_eq!(ended(flush), Err(CallError::CannotFlush { device: gone.id() }.into()));
}

/// Its driver gives no READ up, and no other request is in flight there.
#[test]
fn a_flush_on_a_device_that_falls_silent_ends_and_messages_go_on() {
    let stall_timeout = Some(Duration::from_secs(1));
    let builder = P2pBuilder::new()
        .rail_failure(RailFailure::Reroute)
        .healing(Healing { stall_timeout, ..Healing::default() })
        .flushes(true)
        .connect_options(impatient());
    let world = World::with_patience(2, &builder, Duration::ZERO);
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    let mut exchange = |receiver: &mut P2pHandle| {
        let receive = world.far.offer(receiver, &[(0, BYTES as u32, 1)]).unwrap();
        ended(world.near.send(&mut sender, (0, BYTES as u32, 1)).unwrap()).unwrap();
        ended(receive).unwrap()
    };
    let received = exchange(&mut receiver);
    let silent = &world.far.host.devices[1];
    silent.inject(When::Now, Fault::Silent(true));
    let cannot = Err(CallError::CannotFlush { device: silent.id() }.into());
    assert_eq!(ended(receiver.flush(&received).unwrap()), cannot);
    let received = exchange(&mut receiver);
    assert_eq!(received.sizes(), [BYTES as u32]);
}

#[test]
fn a_peer_that_fails_gives_all_buffers_back() {
    let world = World::new(2, &P2pBuilder::new().connect_options(impatient()));
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    const HALF: u32 = BYTES as u32 / 2;
    let offer = |handle: &mut P2pHandle| world.far.offer(handle, &[(0, HALF, 1)]).unwrap();
    let [first, second, third] = [(); 3].map(|()| offer(&mut receiver));
    ended(world.near.send(&mut sender, (0, HALF, 1)).unwrap()).unwrap();
    assert_eq!(ended(first).unwrap().sizes(), [HALF]);
    // What is too long is refused when the second buffer is known to be offered.
    let too_long = ended(world.near.send(&mut sender, (0, BYTES as u32, 1)).unwrap());
    assert!(matches!(too_long, Err(P2pError::Call(CallError::TooLong { .. }))), "{too_long:?}");
    for device in &world.far.host.devices {
        device.inject(When::Now, Fault::LinkDown);
    }
    let sends: Vec<_> =
        (0..10).map(|_| submit(|| world.near.send(&mut sender, (0, HALF, 1)))).collect();
    for pending in sends {
        let failure = ended(pending).unwrap_err();
        assert!(
            matches!(failure, P2pError::Call(CallError::Failed(Failure::Rail(_)))),
            "{failure}"
        );
    }
    // At once from now on.
    let late = ended(submit(|| world.near.send(&mut sender, (0, 8, 1))));
    assert!(matches!(late, Err(P2pError::Call(CallError::Failed(_)))), "{late:?}");
    // The owner of the other end, which has another way to the peer, fails it.
    world.far.thread.give_up(0);
    let failed = P2pError::Call(CallError::Failed(Failure::Owner));
    for pending in [second, third] {
        assert_eq!(ended(pending), Err(failed));
    }
}

#[test]
fn a_device_that_goes_away_leaves_no_request_waiting() {
    let world = World::new(2, &P2pBuilder::new().connect_options(impatient()));
    let mut sender = world.near.handle();
    let receive = world.near.offer(&mut sender, &[(0, 64, 1)]).unwrap();
    let waits = world.near.send(&mut sender, (0, 64, 1)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    world.near.host.devices[1].inject(When::Now, Fault::DeviceGone);
    assert!(ended(waits).is_err());
    assert!(ended(receive).is_err());
    let device = world.near.host.devices[1].id();
    assert_eq!(sender.queue_error().map(|error| error.device), Some(device));
    assert_eq!(world.far.handle().queue_error(), None);
    // Later ones are refused, by the thread or at once.
    let late = world.near.send(&mut sender, (0, 64, 1)).map(ended);
    assert!(!matches!(late, Ok(Ok(()))), "{late:?}");
}

/// Carries the repair messages between both sides while `work` goes on.
fn while_carried([near, far]: [&HealingLink; 2], work: impl FnOnce()) {
    let ends = AtomicBool::new(false);
    let carry = |from: &HealingLink, to: &HealingLink| {
        while let Some(message) = from.next_message() {
            to.handle(message).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                carry(near, far);
                carry(far, near);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // However it ends.
        let _ends = Ends(&ends);
        work();
    });
}

/// Marks the end.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until queue pairs of both directions of a rail have returned.
fn wait_until_back(side: &Side) {
    let begin = Instant::now();
    let mut back = 0;
    while back < 2 {
        let event = side.thread.take_rail_event();
        let has_returned = event.is_some_and(|event| event.event.kind == RailEventKind::Returned);
        back += usize::from(has_returned);
        assert!(begin.elapsed() < LONG, "{back} of 2");
        yield_now();
    }
}

#[test]
fn a_rail_that_fails_on_the_way_costs_no_message_and_comes_back() {
    let builder =
        P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute).connect_options(impatient());
    let world = World::new(2, &builder);
    let mut sender = world.near.handle();
    let mut receiver = world.far.handle();
    let mut exchange = |count: u8, meanwhile: &dyn Fn(u8)| {
        for number in 0..count {
            let length = 200_000 + u32::from(number);
            world.near.host.buffer.fill(0, length as usize, number).unwrap();
            let receive = world.far.offer(&mut receiver, &[(0, BYTES as u32, 1)]).unwrap();
            let send = world.near.send(&mut sender, (0, length, 1)).unwrap();
            meanwhile(number);
            assert_eq!(ended(receive).unwrap().sizes(), [length]);
            ended(send).unwrap();
            assert!(world.far.bytes(0, length as usize).iter().all(|byte| *byte == number));
        }
    };
    for side in [&world.near, &world.far] {
        let link = &side.host.devices[1];
        exchange(5, &|_| ());
        exchange(20, &|number| {
            if number == 3 {
                link.inject(When::Now, Fault::LinkDown);
            }
        });
        link.inject(When::Now, Fault::LinkUp);
        wait_until_back(&world.near);
        exchange(5, &|_| ());
    }
}

#[test]
fn a_device_that_goes_away_costs_members_that_are_re_routed_no_message() {
    let builder = P2pBuilder::new().rail_failure(RailFailure::Reroute).connect_options(impatient());
    for is_far in [false, true] {
        let world = World::with_patience(2, &builder, Duration::ZERO);
        let (mut sender, mut receiver) = (world.near.handle(), world.far.handle());
        let side = if is_far { &world.far } else { &world.near };
        for number in 0..20 {
            let length = 200_000 + u32::from(number);
            world.near.host.buffer.fill(0, length as usize, number).unwrap();
            let receive = world.far.offer(&mut receiver, &[(0, BYTES as u32, 1)]).unwrap();
            let send = world.near.send(&mut sender, (0, length, 1)).unwrap();
            if number == 3 {
                side.host.devices[1].inject(When::Now, Fault::DeviceGone);
            }
            assert_eq!(ended(receive).unwrap().sizes(), [length]);
            ended(send).unwrap();
            assert!(world.far.bytes(0, length as usize).iter().all(|byte| *byte == number));
        }
    }
}

#[test]
fn a_link_between_owners_that_breaks_is_no_loss() {
    let builder =
        P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute).connect_options(impatient());
    let world = World::apart(2, &builder);
    let links = [&world.near, &world.far].map(|side| side.link.clone().unwrap());
    let (mut sender, mut receiver) = (world.near.handle(), world.far.handle());
    let device = &world.near.host.devices[1];
    device.inject(When::Now, Fault::LinkDown);
    let receive = world.far.offer(&mut receiver, &[(0, BYTES as u32, 1)]).unwrap();
    let send = world.near.send(&mut sender, (0, BYTES as u32, 1)).unwrap();
    // Their messages are lost.
    let begin = Instant::now();
    let mut lost = 0;
    while lost == 0 || begin.elapsed() < Duration::from_millis(100) {
        for link in &links {
            lost += std::iter::from_fn(|| link.next_message()).count();
        }
        assert!(begin.elapsed() < LONG);
    }
    device.inject(When::Now, Fault::LinkUp);
    links.iter().for_each(HealingLink::restored);
    while_carried(links.each_ref(), || {
        assert_eq!(ended(receive).unwrap().sizes(), [BYTES as u32]);
        ended(send).unwrap();
        wait_until_back(&world.near);
    });
}
