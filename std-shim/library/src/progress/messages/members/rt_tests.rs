//! The thread's rounds, one at a time.

use super::super::mailbox::P2pShared;
use super::*;
use crate::heal::Healing;
use crate::idle::NAP;
use crate::memory::RegisteredBuffer;
use crate::p2p::{
    End, HealingMessage, P2P_ROUTES, P2pBuilder, P2pEndpoint, QueuePairId, RecvBuffer,
    connect_endpoints,
};
use crate::progress::SubmitError;
use crate::progress::messages::{P2pError, P2pHandle, PendingRecv, port};
use crate::progress::run::{LONG_NAP, ProgressLoop};
use crate::progress::set::Port;
use crate::progress::shared::{Alarm, Shared};
use polyrail_core::verbs::{AccessFlags, DeviceKeys};
use polyrail_core::virtual_qp::RailFailure;
use polyrail_software_nic::{DeviceConfig, Fabric, ProtectionDomain};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

/// An end whose thread is the test's.
struct Side {
    messages: ProgressLoop<Members<ProtectionDomain, P2P_ROUTES>>,
    shared: Arc<P2pShared>,
    buffer: RegisteredBuffer,
    keys: Vec<DeviceKeys>,
}

impl Side {
    fn new(end: P2pEndpoint, domain: &ProtectionDomain) -> Self {
        let shared =
            Arc::new(Shared::new(P2pMailbox::new([true], false), Some(Alarm::new().unwrap())));
        let messages =
            ProgressLoop::new(Members::new(end.into()), Arc::clone(&shared), Duration::ZERO);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let buffer = RegisteredBuffer::new(4096, access, &[domain]).unwrap();
        let keys = buffer.own_keys();
        Self { messages, shared, buffer, keys }
    }

    fn handle(&self) -> P2pHandle {
        let (lanes, port) = port::port(0, &self.shared.driver);
        self.shared.introduce(port);
        P2pHandle::new(lanes, Arc::clone(&self.shared))
    }

    /// Sleeps until there is something, without a nap: what is missed is waited for until the watch
    /// ends it.
    fn sleep(&mut self) {
        let Self { messages, shared, .. } = self;
        shared.while_armed(|| {
            if let (false, Some(alarm)) = (messages.has_something_to_do(), shared.alarm()) {
                messages.wait(alarm, None);
            }
        });
    }

    fn offer(&self, handle: &mut P2pHandle, at: usize, tag: u32) -> PendingRecv {
        let local = self.buffer.local(at, 64).unwrap();
        handle.irecv(&[RecvBuffer { local, tag, keys: &self.keys }]).unwrap()
    }
}

fn pair() -> [Side; 2] {
    pair_of(P2pBuilder::new().rails(1))
}

fn pair_of(builder: P2pBuilder) -> [Side; 2] {
    let fabric = Fabric::threaded();
    let domains = ["near", "far"]
        .map(|name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap());
    let mut ends = domains.each_ref().map(|domain| builder.build(&[domain]).unwrap());
    let [near, far] = &mut ends;
    connect_endpoints(near, far).unwrap();
    let [near, far] = ends;
    [Side::new(near, &domains[0]), Side::new(far, &domains[1])]
}

#[test]
fn a_thread_leaves_nobody_waiting_however_it_ends() {
    let [near, _far] = pair();
    let mut adopted = near.handle();
    let waits = near.offer(&mut adopted, 0, 1);
    let Side { mut messages, shared, buffer, keys } = near;
    messages.round();
    let sent = adopted.isend(buffer.local(0, 8).unwrap(), 1, &keys).unwrap();
    messages.round();
    drop(messages);
    assert_eq!(waits.wait(), Err(P2pError::Abandoned));
    assert_eq!(sent.wait(), Err(P2pError::Abandoned));
    let refused = adopted.isend(buffer.local(0, 8).unwrap(), 1, &keys).unwrap_err();
    assert_eq!(refused, SubmitError::ThreadGone);
    assert!(shared.is_closing());
}

#[test]
fn of_messages_that_wait_the_first_of_a_tag_goes_first() {
    let [mut near, mut far] = pair();
    let (mut sender, mut receiver) = (near.handle(), far.handle());
    // The first offer is for the third message. When that has gone, it is the turn of the one
    // before it, not of the one behind it with the same tag.
    let tags = [5, 6, 7, 5];
    for (number, tag) in (0..).zip(tags) {
        near.buffer.fill(number * 64, 64, number as u8).unwrap();
        let local = near.buffer.local(number * 64, 64).unwrap();
        drop(sender.isend(local, tag, &near.keys).unwrap());
    }
    near.messages.round();
    let mut offered: Vec<_> = [7, 5, 5, 6]
        .into_iter()
        .zip(0..)
        .map(|(tag, at)| far.offer(&mut receiver, at * 64, tag))
        .collect();
    // All offers are there before any message goes.
    (0..100).for_each(|_| far.messages.round());
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    while !offered.is_empty() {
        assert!(begin.elapsed() < LONG, "{offered:?}");
        near.messages.round();
        far.messages.round();
        offered.retain_mut(|pending| pending.try_take().is_none());
    }
    let mut first = [0; 4];
    (0..4).for_each(|at| far.buffer.read_at(at * 64, &mut first[at..=at]).unwrap());
    assert_eq!(first, [2, 0, 3, 1]);
}

#[test]
fn a_thread_whose_receives_wait_for_room_naps_and_one_without_requests_sleeps() {
    let [mut near, _far] = pair();
    let mut handle = near.handle();
    assert!(near.messages.adopt());
    assert_eq!(near.messages.nap(), None);
    let waits: Vec<_> = (0..200).map(|_| near.offer(&mut handle, 0, 1)).collect();
    let has_news = |side: &Side| side.messages.ports.iter().any(Port::has_news);
    assert!(has_news(&near));
    (0..100).for_each(|_| near.messages.round());
    // The engine has as many as it takes, and the rest is in the ring.
    assert!(!has_news(&near));
    assert_eq!(near.messages.nap(), Some(LONG_NAP));
    // An offer of the peer does not wake the thread.
    let sent = handle.isend(near.buffer.local(0, 8).unwrap(), 1, &near.keys).unwrap();
    near.messages.round();
    assert_eq!(near.messages.nap(), Some(NAP));
    near.messages.set.fail_all();
    let begin = Instant::now();
    for mut waits in waits {
        while waits.try_take().is_none() {
            near.messages.round();
            assert!(begin.elapsed() < LONG);
        }
    }
    assert!(sent.wait().is_err());
    assert_eq!(near.messages.nap(), None);
}

#[test]
fn silence_is_looked_for_often_enough_while_a_thread_sleeps() {
    let stall_timeout = Some(Duration::from_millis(8));
    let healing = Healing { stall_timeout, ..Healing::default() };
    let builder = P2pBuilder::new().rail_failure(RailFailure::Reroute).completion_channel(0);
    for (builder, nap) in [(builder, 10), (builder.healing(healing), 1)] {
        let [mut near, _far] = pair_of(builder.rails(2));
        let mut handle = near.handle();
        let _waits = near.offer(&mut handle, 0, 1);
        near.messages.round();
        assert_eq!(near.messages.nap(), Some(Duration::from_millis(nap)));
    }
}

/// Ends the sleeps of others when something takes too long, unless it is dropped before.
struct Watch(Option<mpsc::Sender<()>>);

impl Watch {
    fn over(shared: &Arc<P2pShared>) -> Self {
        let (ends, end) = mpsc::channel::<()>();
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            if end.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
                shared.close();
            }
        });
        Self(Some(ends))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// Each end sleeps until it is notified, and messages arrive before, while and after it falls
/// asleep.
#[test]
fn no_completion_is_missed_by_a_thread_that_sleeps() {
    const MESSAGES: u64 = 400;
    let [mut near, mut far] = pair_of(P2pBuilder::new().rails(1).completion_channel(0));
    let _watches = [&near, &far].map(|side| Watch::over(&side.shared));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut handle = near.handle();
            for number in 0..MESSAGES {
                // Around the time that the other end takes to fall asleep.
                std::thread::sleep(Duration::from_micros(number * 7 % 60));
                let local = near.buffer.local(0, 8).unwrap();
                let mut sent = handle.isend(local, 1, &near.keys).unwrap();
                near.messages.adopt();
                near.messages.submit();
                while near.messages.ports.iter().any(P2pPort::waits_for_peer) {
                    near.messages.round();
                    assert!(!near.shared.is_closing(), "message {number}: no buffer for it");
                }
                while sent.try_take().is_none() {
                    near.sleep();
                    near.messages.submit();
                    assert!(
                        !near.shared.is_closing(),
                        "message {number} was sent, and its completion missed"
                    );
                }
            }
        });
        let mut handle = far.handle();
        far.messages.adopt();
        for number in 0..MESSAGES {
            let mut received = far.offer(&mut handle, 0, 1);
            while received.try_take().is_none() {
                far.messages.submit();
                far.sleep();
                assert!(
                    !far.shared.is_closing(),
                    "message {number} arrived, and its completion missed"
                );
            }
        }
    });
}

/// The bell is armed when the message arrives, or has it found before the sleep.
#[test]
fn a_repair_message_of_the_peer_ends_a_sleep() {
    let builder = P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    for pause in [0, 20] {
        let [mut near, mut far] = pair_of(builder.completion_channel(0));
        near.messages.set.set_waker(&Waker::from(Arc::clone(&near.shared)));
        let _watch = Watch::over(&near.shared);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(pause));
                // It reports to its peer that it has failed.
                far.messages.set.fail_all();
            });
            while !near.messages.set.has_messages() {
                near.sleep();
                assert!(!near.shared.is_closing(), "nothing woke the thread");
            }
        });
    }
}

/// The peer sends messages and takes no answers.
#[test]
fn messages_that_cannot_be_answered_yet_do_not_end_a_sleep() {
    let builder = P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let rail = QueuePairId { end: End::Sender, index: 0 };
    let message = HealingMessage::Refused { rail, generation: 1 };
    for pause in [0, 20] {
        let [mut near, mut far] = pair_of(builder.completion_channel(0));
        let link = |side: &Side| side.messages.set.set.get(0).unwrap().healing_link().unwrap();
        near.messages.set.set_waker(&Waker::from(Arc::clone(&near.shared)));
        let _watch = Watch::over(&near.shared);
        while link(&far).handle(message).is_ok() {}
        link(&near).handle(message).unwrap();
        near.messages.set.wake(&mut near.messages.ports, &near.shared.mailbox);
        assert!(!near.messages.has_something_to_do());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(pause));
                // It takes the answers.
                far.messages.set.set.heal();
            });
            while !near.messages.set.has_messages() {
                near.sleep();
                assert!(!near.shared.is_closing(), "nothing woke the thread");
            }
        });
    }
}
