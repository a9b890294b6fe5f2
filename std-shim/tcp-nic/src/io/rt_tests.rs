//! What is due when, and what a wake costs.

use super::*;
use crate::device::{Device, DeviceOptions};
use crate::ends::ends_with_held_acknowledgement;
use crate::queue_pair::QpInit;
use polyrail_core::verbs::WcStatus;
use polyrail_nic_parts::options::QpCap;
use rustix::event::epoll::CreateFlags;
use rustix::event::{EventfdFlags, eventfd};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A thread's work that a test does.
fn work() -> Work {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).unwrap();
    let (commands, ends) = (Mutex::default(), AtomicBool::new(false));
    Work::new(Arc::new(Inbox { epoll, wake, commands, ends }), None)
}

/// A command may be sent between any two steps of a thread that wakes.
#[test]
fn a_command_sent_while_the_thread_wakes_is_taken() {
    const COMMANDS: usize = 20_000;
    let mut work = work();
    let inbox = Arc::clone(&work.inbox);
    let thread = std::thread::spawn(move || work.run());
    let is_taken = |limit: Duration| {
        let start = Instant::now();
        while !lock(&inbox.commands).is_empty() {
            if start.elapsed() > limit {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    };
    for command in 0..COMMANDS {
        inbox.send(Command::Closed);
        // The next one comes at every time from when this one is taken.
        assert!(is_taken(Duration::from_secs(600)), "command {command} is never taken");
        (0..command % 64).for_each(|_| std::hint::spin_loop());
    }
    inbox.ends.store(true, Ordering::Release);
    inbox.wake();
    thread.join().unwrap();
}

#[test]
fn a_listener_that_rests_does_not_keep_the_thread_awake_when_its_device_is_closed() {
    let device = Device::open("127.8.0.3", &DeviceOptions::default()).unwrap();
    let mut work = work();
    let door = Door { device: Arc::downgrade(&device.0), rests_until: Some(1_000) };
    work.doors.insert(token(), door);
    drop(device);
    assert_eq!(work.do_what_is_due(999), Some(1_000));
    assert_eq!(work.do_what_is_due(1_000), None);
    work.inbox.send(Command::Closed);
    work.take_commands();
    assert!(work.doors.is_empty());
}

#[test]
fn a_listener_goes_on_when_a_connection_has_proved_itself_or_has_gone() {
    let device = Device::open("127.8.0.4", &DeviceOptions::default()).unwrap();
    let mut work = work();
    epoll::add(&work.inbox.epoll, &device.0.listener, EventData::new_u64(0), EventFlags::empty())
        .unwrap();
    let (door, name, device) = (token(), token(), Arc::downgrade(&device.0));
    work.doors.insert(door, Door { device: device.clone(), rests_until: Some(u64::MAX) });
    let stream = std::net::TcpStream::connect(device.upgrade().unwrap().address).unwrap();
    let visit = Visit { guest: Guest::new(stream.into()), device, since: now() };
    work.visits.insert(name, u64::MAX, visit);
    work.end_visit(name);
    assert_eq!((work.doors[&door].rests_until, work.visits.contains(name)), (None, false));
}

#[test]
fn a_thread_spins_after_events_for_the_longest_time_of_its_open_devices() {
    let open = |address, spin| {
        let spin = Duration::from_nanos(spin);
        Device::open(address, &DeviceOptions { spin, ..DeviceOptions::default() }).unwrap()
    };
    const HOUR: u64 = 3_600_000_000_000;
    let (spins, sleeps) = (open("127.8.0.5", HOUR), open("127.8.0.6", 0));
    let mut work = work();
    for device in [&spins, &sleeps] {
        work.inbox.send(Command::Device(Arc::downgrade(&device.0), token()));
    }
    work.take_commands();
    assert_eq!(work.sleeps_until(None), None, "nothing has happened");
    work.note_events(0);
    assert_eq!(work.sleeps_until(None), None);
    work.note_events(1);
    assert_eq!(work.sleeps_until(Some(7)), Some(0));
    work.spins_until = now();
    assert_eq!(work.sleeps_until(Some(7)), Some(7), "the time is over");
    work.note_events(1);
    drop(spins);
    work.inbox.send(Command::Closed);
    work.take_commands();
    assert_eq!((work.spin, work.sleeps_until(Some(7))), (0, Some(7)));
}

/// The owner polled after the link was open, and before the thread took the command.
#[test]
fn what_a_completion_queue_holds_is_sent_when_its_link_was_opened() {
    let (near, mut far) = ends_with_held_acknowledgement("127.8.0.7", "127.8.0.8");
    let mut work = work();
    let cq = Arc::downgrade(&near.cq.shared);
    work.inbox.send(Command::Cq(cq.clone()));
    work.closed.push(cq);
    work.inbox.send(Command::Resume);
    work.take_commands();
    assert!(near.cq.shared.io_watches.load(Ordering::SeqCst));
    assert_eq!(far.complete(1), [WcStatus::SUCCESS]);
}

#[test]
fn a_wake_costs_what_is_due_and_not_what_there_is() {
    const QUEUE_PAIRS: usize = 1000;
    const SECOND: u64 = 1_000_000_000;
    let device = Device::open("127.8.0.2", &DeviceOptions::default()).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(8).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let qps: Vec<_> =
        (0..QUEUE_PAIRS).map(|_| pd.create_qp(&QpInit::new(&cq, cap)).unwrap()).collect();
    let mut work = work();
    let begin = SECOND;
    for qp in &qps {
        work.inbox.send(Command::Watch(qp.shared.me.clone()));
    }
    work.take_commands();
    let next = work.do_what_is_due(begin).unwrap();
    assert_eq!(work.watches.visits, QUEUE_PAIRS, "each once");
    for wake in 0..100 {
        assert_eq!(work.do_what_is_due(begin + wake), Some(next));
    }
    assert_eq!(work.watches.visits, QUEUE_PAIRS, "none of them is due");
    work.inbox.send(Command::Watch(qps[500].shared.me.clone()));
    work.take_commands();
    work.do_what_is_due(begin + 100);
    assert_eq!(work.watches.visits, QUEUE_PAIRS + 1, "the one that has a request");
    // Nothing is posted, so they are not watched any more.
    work.do_what_is_due(next);
    assert_eq!(work.do_what_is_due(next + 2 * SECOND), None);
    let most = 3 * QUEUE_PAIRS + 1;
    assert!(work.watches.visits <= most, "{}", work.watches.visits);
}
