//! Endpoints that repair their rails while links go down and come up.

use crate::fixture::{GID_INDEX, PORT, Rails};
use polyrail::backend::{DeviceEvent, Domain, EventCursor};
use polyrail::endpoint::{Endpoint, EndpointBuilder, RailWeights, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices};
use polyrail::virtual_cq::Event;
use polyrail::virtual_qp::{QpState, RailEventKind, RailFailure, RailId, Scheme};
use polyrail_core::verbs::{AccessFlags, DeviceKeys, RecvWr, SendWr, WcStatus};
use polyrail_ffi::PostMode;
use polyrail_tests::behaviours::{Fixture, LIMIT};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of each WRITE, and how many are in flight: a few milliseconds' worth.
pub(super) const LENGTH: u32 = 64 << 10;
pub(super) const WINDOW: u64 = 4;

fn domains(end: &str) -> Vec<VerbsDomain> {
    let names = [0, 1].map(|rail| format!("rxe{end}{rail}").parse().unwrap());
    open_devices(&names, &OpenOptions { gid_index: Some(GID_INDEX), ..OpenOptions::default() })
        .unwrap()
}

/// One end with a rail on each device, with the memory that all its WRITEs read or reach.
pub(super) struct Side<D: Domain> {
    pub(super) endpoint: Endpoint<D::Qp, D::Cq>,
    pub(super) memory: RegisteredBuffer<D::Region>,
    posted: u64,
    pub(super) done: u64,
}

impl<D: Domain> Side<D> {
    fn new(domains: &[D], scheme: Scheme) -> Self {
        let domains: Vec<&D> = domains.iter().collect();
        let rails = domains.len();
        let builder = EndpointBuilder::new().rails(rails).scheme(scheme).max_msg_size(16 << 10);
        // Each rail is to carry requests, whatever its rate: the tests wait for that.
        let builder = builder.rail_weights(RailWeights::Equal);
        let endpoint = builder.rail_failure(RailFailure::Reroute).build(&domains).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = RegisteredBuffer::new(LENGTH as usize, access, &domains).unwrap();
        Self { endpoint, memory, posted: 0, done: 0 }
    }

    fn poll(&mut self) {
        let done = &mut self.done;
        let polled = self.endpoint.poll_with(16, |event| {
            let Event::Completion(wc) = event else { return };
            assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
            *done += 1;
        });
        assert_eq!(polled.error, None);
    }

    /// Requests that a rail has completed.
    fn acknowledged(&self, rail: RailId) -> u64 {
        let counters = self.endpoint.virtual_qp().counters(rail).unwrap();
        counters.completions - counters.errors
    }
}

pub(super) struct Ends<D: Domain> {
    pub(super) near: Side<D>,
    pub(super) far: Side<D>,
    keys: Vec<DeviceKeys>,
}

impl<D: Domain> Ends<D> {
    pub(super) fn new([near, far]: [Vec<D>; 2], scheme: Scheme) -> Self {
        let [mut near, mut far] = [near, far].map(|domains| Side::new(&domains, scheme));
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        let both = near.memory.keys().iter().zip(far.memory.keys());
        let keys = both
            .map(|(own, peer)| DeviceKeys { device: own.device, lkey: own.lkey, rkey: peer.rkey })
            .collect();
        Self { near, far, keys }
    }

    /// Polls both ends, and keeps WRITEs in flight.
    fn step(&mut self) {
        let Self { near, far, keys } = self;
        while far.posted < near.done + WINDOW {
            far.endpoint.post_recv(&RecvWr::notification(far.posted)).unwrap();
            far.posted += 1;
        }
        while near.posted < far.posted {
            let local = near.memory.local(0, LENGTH).unwrap();
            let wr = SendWr::write_with_imm(near.posted, local, far.memory.addr(), 7, keys);
            near.endpoint.post_send(&wr).unwrap();
            near.posted += 1;
        }
        near.poll();
        far.poll();
    }

    /// Returns when it was so.
    pub(super) fn run_until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> Instant {
        let start = Instant::now();
        while !is_so(self) {
            self.step();
            assert!(start.elapsed() < LIMIT, "{what}: {:?}", self.near.endpoint.rail_reports());
        }
        Instant::now()
    }

    /// Returns when the sender learned that this happened to a rail. What happened after it may be
    /// asked for next.
    fn run_until_reported(
        &mut self,
        what: &str,
        rail: RailId,
        is_it: impl Fn(RailEventKind) -> bool,
    ) -> Instant {
        let mut told = None;
        self.run_until(what, |ends| {
            while told.is_none()
                && let Some(event) = ends.near.endpoint.take_rail_event()
            {
                if event.event.rail == rail && is_it(event.event.kind) {
                    told = Some(event.at);
                }
            }
            told.is_some()
        });
        told.unwrap()
    }
}

/// Waits until the port of a domain is down, whichever other reader takes the event. Returns when
/// that was.
fn down_at(domain: &VerbsDomain, mut reader: EventCursor) -> Instant {
    let start = Instant::now();
    loop {
        while let Some(event) = domain.next_event(&mut reader) {
            if event == (DeviceEvent::PortDown { port: PORT }) {
                return Instant::now();
            }
        }
        assert!(start.elapsed() < LIMIT, "the port does not go down");
        thread::sleep(Duration::from_micros(100));
    }
}

/// What a port's end costs, from its own event on.
struct Healed {
    given_up: Duration,
    /// Something was acknowledged on the other rail after that.
    elsewhere: Duration,
    fenced: Duration,
    /// The next request was complete.
    next: Duration,
    /// From the link's return to the rail's.
    back: Duration,
}

fn heal(rails: &Rails, scheme: Scheme, number: usize) -> Healed {
    let rail = RailId::Data(number as u8);
    let other = RailId::Data(1 - number as u8);
    let mut ends = Ends::new(["A", "B"].map(domains), scheme);
    let watched = &domains("A")[number];
    let reader = watched.event_cursor();
    ends.run_until("traffic", |ends| ends.near.done > 3 * WINDOW);
    thread::scope(|scope| {
        let down = scope.spawn(|| down_at(watched, reader));
        scope.spawn(|| rails.set_link(number, false));
        let is_failure = |kind| matches!(kind, RailEventKind::Failed { .. });
        let given_up = ends.run_until_reported("a failure", rail, is_failure);
        let before = ends.near.acknowledged(other);
        let elsewhere = ends.run_until("the other rail", |e| e.near.acknowledged(other) > before);
        let is_fence = |kind| matches!(kind, RailEventKind::Fenced { .. });
        let fenced = ends.run_until_reported("a fence", rail, is_fence);
        let done = ends.near.done;
        let next = ends.run_until("requests", |ends| ends.near.done > done);
        let down = down.join().unwrap();
        rails.set_link(number, true);
        let up = Instant::now();
        let is_ready = |side: &Side<VerbsDomain>| side.endpoint.state() == QpState::Ready;
        let back = ends.run_until("return", |ends| is_ready(&ends.near) && is_ready(&ends.far));
        let done = ends.near.done;
        ends.run_until("traffic", |ends| ends.near.done > done + 3 * WINDOW);
        let [given_up, elsewhere, fenced, next] =
            [given_up, elsewhere, fenced, next].map(|at| at.saturating_duration_since(down));
        Healed { given_up, elsewhere, fenced, next, back: back - up }
    })
}

/// The queue pairs' own timeout is a second, and they try seven times. Prints how long it took. The
/// limit is less than the 3 s for which the kernel keeps packets, and with them a queue pair, when
/// a neighbour does not answer. An emulated machine may stand still for as long, so a port that was
/// healed late goes down again: what waits for requests or packets to time out is late every time.
pub(super) fn a_port_that_goes_down_is_healed_long_before_requests_time_out(rails: &Rails) {
    const SLOW: Duration = Duration::from_millis(2500);
    if rails.post_mode() != PostMode::Classic {
        // Endpoints choose for themselves.
        return;
    }
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for number in [1, 0] {
            let is_soon = (0..3).any(|_| {
                let healed = heal(rails, scheme, number);
                let Healed { given_up, elsewhere, fenced, next, back } = healed;
                println!(
                    "  {scheme:?}, port of rail {number} down: given up after {given_up:.1?}, acknowledged elsewhere \
                     after {elsewhere:.1?}, fenced after {fenced:.1?}, next request done after {next:.1?}; up: back \
                     after {back:.1?}"
                );
                next < SLOW
            });
            assert!(is_soon, "{scheme:?}: port of rail {number}");
        }
    }
}
