//! Waiting for completions instead of polling for them.

use super::hosts::{Cq, Host, Qp, Route, ended, hosts};
use super::{Fixture, LIMIT};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::progress::ProgressThread;
use polyrail_core::verbs::{RecvWr, WcStatus};
use polyrail_core::virtual_qp::Scheme;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::retry_on_intr;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Enough for completions to come at all moments between two sleeps.
const ROUNDS: u64 = 40;

const SHAPES: [(Scheme, usize); 4] =
    [(Scheme::Spray, 1), (Scheme::Spray, 2), (Scheme::Dqplb, 1), (Scheme::Dqplb, 2)];

/// A pause that is another one each time, up to 3 ms: some are too short to fall asleep.
fn pause(round: u64) {
    thread::sleep(Duration::from_micros(round * 700 % 3000));
}

/// Both ends of a virtual queue pair that can be waited for.
fn ends<F: Fixture>(
    hosts: &[Host<F>; 2],
    (scheme, rails): (Scheme, usize),
) -> [Endpoint<Qp<F>, Cq<F>>; 2] {
    let builder = EndpointBuilder::new().rails(rails).scheme(scheme).completion_channel(0);
    let mut ends = hosts.each_ref().map(|host| host.endpoint(builder));
    let [near, far] = &mut ends;
    connect_endpoints(near, far).expect("ends that reach each other");
    ends
}

/// The names of requests.
const NOTIFIED: u64 = 1;
const WRITTEN: u64 = 2;

/// One end, which writes and is written to in turn.
struct Player<F: Fixture> {
    endpoint: Endpoint<Qp<F>, Cq<F>>,
    route: Route,
    /// What came and was not looked at.
    came: VecDeque<(u64, WcStatus)>,
}

impl<F: Fixture> Player<F> {
    fn post_recv(&mut self) {
        self.endpoint.post_recv(&RecvWr::notification(NOTIFIED)).expect("room");
    }

    /// Waits until a request of this name ended.
    fn wait_for(&mut self, wr_id: u64) {
        while !self.has(wr_id) {
            let came = &mut self.came;
            let polled = self
                .endpoint
                .wait(Some(LIMIT), |event| came.extend(event.completion().map(ended)))
                .expect("it has a channel");
            assert_eq!(polled.error, None);
            assert!(polled.events > 0, "{wr_id} did not come");
        }
        let at = self.came.iter().position(|end| end.0 == wr_id).expect("it has come");
        assert_eq!(self.came.remove(at), Some((wr_id, WcStatus::SUCCESS)));
    }

    fn has(&self, wr_id: u64) -> bool {
        self.came.iter().any(|end| end.0 == wr_id)
    }

    fn write(&mut self) {
        self.endpoint.post_send(&self.route.notify(WRITTEN)).expect("room");
        self.wait_for(WRITTEN);
    }

    /// Is written to; the next receive is there before the answer to this one.
    fn hear(&mut self) {
        self.wait_for(NOTIFIED);
        self.post_recv();
    }

    /// Begins each round.
    fn serve(mut self) {
        for round in 0..ROUNDS {
            pause(round);
            self.write();
            self.hear();
        }
    }

    /// Answers in each.
    fn answer(mut self) {
        for round in 0..ROUNDS {
            self.hear();
            pause(round + 1);
            self.write();
        }
    }
}

/// Two ends that can be written to.
fn players<F: Fixture>(hosts: &[Host<F>; 2], shape: (Scheme, usize)) -> [Player<F>; 2] {
    let [near, far] = hosts;
    let [a, b] = ends(hosts, shape);
    [(a, near.route(far)), (b, far.route(near))].map(|(endpoint, route)| {
        let mut player = Player { endpoint, route, came: VecDeque::new() };
        player.post_recv();
        player
    })
}

pub(super) fn two_ends_that_wait_miss_no_completion<F: Fixture>(fixture: &F) {
    let hosts = hosts(fixture);
    for shape in SHAPES {
        let [near, far] = players(&hosts, shape);
        thread::scope(|scope| {
            scope.spawn(move || near.serve());
            far.answer();
        });
    }
}

pub(super) fn a_wait_without_news_ends_in_time<F: Fixture>(fixture: &F) {
    let hosts = hosts(fixture);
    for shape in SHAPES {
        let [mut near, _far] = ends(&hosts, shape);
        for timeout in [Duration::ZERO, Duration::from_millis(20)] {
            let begin = Instant::now();
            let polled = near.wait(Some(timeout), |_| ()).expect("it has a channel");
            assert_eq!((polled.events, polled.error), (0, None));
            assert!(begin.elapsed() >= timeout);
        }
    }
}

/// An event loop of the owner's: an epoll that watches completions beside something else.
struct EventLoop {
    events: OwnedFd,
    other: OwnedFd,
}

impl EventLoop {
    const OTHER: u64 = 1;
    const COMPLETIONS: u64 = 2;

    fn new(completions: impl AsFd) -> Self {
        let events = epoll::create(CreateFlags::CLOEXEC).expect("an epoll");
        let other = eventfd(0, EventfdFlags::CLOEXEC).expect("a file descriptor");
        let watch = |fd, data| {
            let data = EventData::new_u64(data);
            epoll::add(&events, fd, data, EventFlags::IN).expect("it can be watched");
        };
        watch(other.as_fd(), Self::OTHER);
        watch(completions.as_fd(), Self::COMPLETIONS);
        Self { events, other }
    }

    /// Sleeps until something is reported, and returns it.
    fn next(&self) -> Vec<u64> {
        let mut told = Vec::with_capacity(2);
        let limit = Timespec::try_from(LIMIT).expect("it is short");
        // A process that was stopped and goes on finds its sleep interrupted (signal(7)).
        retry_on_intr(|| epoll::wait(&self.events, spare_capacity(&mut told), Some(&limit)))
            .expect("an epoll");
        told.iter().map(|event| event.data.u64()).collect()
    }
}

pub(super) fn a_file_descriptor_tells_an_event_loop<F: Fixture>(fixture: &F) {
    let hosts = hosts(fixture);
    let [near, mut far] = players(&hosts, (Scheme::Spray, 2));
    let events = EventLoop::new(far.endpoint.completion_fd().expect("it has a channel"));
    thread::scope(|scope| {
        scope.spawn(move || near.serve());
        for _ in 0..ROUNDS {
            while !far.has(NOTIFIED) {
                let came = &mut far.came;
                let polled = far
                    .endpoint
                    .poll_armed(|event| came.extend(event.completion().map(ended)))
                    .expect("it has a channel");
                assert_eq!(polled.error, None);
                assert!(polled.events > 0 || events.next() == [EventLoop::COMPLETIONS]);
            }
            far.hear();
            far.write();
        }
    });
    rustix::io::write(&events.other, &1_u64.to_ne_bytes()).expect("room");
    assert!(events.next().contains(&EventLoop::OTHER));
}

pub(super) fn threads_that_sleep_wake_for_requests_and_completions<F: Fixture>(fixture: &F) {
    let hosts = hosts(fixture);
    let route = hosts[0].route(&hosts[1]);
    for shape in SHAPES {
        let threads = ends(&hosts, shape).map(|end| ProgressThread::spawn(end).expect("a thread"));
        let [mut sends, mut receives] =
            threads.each_ref().map(|thread| thread.handle(0).expect("its only one"));
        for round in 0..ROUNDS {
            let notified = receives.post_recv(&RecvWr::notification(round)).expect("room");
            // Long enough for both to fall asleep, sometimes.
            thread::sleep(Duration::from_millis(round % 4 * 5));
            let sent = sends.post_send(&route.notify(round)).expect("room");
            for pending in [sent, notified] {
                assert_eq!(pending.wait().map(ended), Ok((round, WcStatus::SUCCESS)));
            }
        }
        for thread in threads {
            let set = thread.shutdown().expect("it did not panic");
            assert!(set.qps().all(|qp| qp.first_error().is_none()));
        }
    }
}
