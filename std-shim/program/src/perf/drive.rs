//! The loops: one end keeps a window of requests in flight, the other posts receives. They work the same
//! from any thread or process.

use super::config::Limit;
use super::ends::{End, Slots};
use super::error::PerfError;
use super::round::Round;
use super::sampler::Sampler;
use super::timeline::Sample;
use crate::job::{Hello, Operation};
use crate::session::{About, Counterpart, SessionError, Traffic};
use polyrail::backend::Domain;
use polyrail::endpoint::{Endpoint, EndpointError, EndpointQp};
use polyrail::idle::{Idle, Rest};
use polyrail::verbs::{RecvWr, SendWr};
use polyrail::virtual_qp::{RailCounters, RailId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Receives that stay posted: all that a queue pair takes, so that a sender never waits for a receiver that
/// is a little late.
const RECEIVES: u64 = 128;

/// Time between checks for silent rails. A time and not a count, since over slow paths a round of the loop
/// can take a second.
const WATCH_EVERY: Duration = Duration::from_millis(1);

/// Lets others run when there was nothing to do for some time. Never sleeps, so that measured requests do
/// not wait.
#[derive(Debug, Default)]
pub(super) struct Eager(Idle);

impl Eager {
    #[inline]
    pub(super) fn note(&mut self, busy: bool) {
        if busy {
            self.0.reset();
        } else if self.0.rest() != Rest::Spin {
            self.0.reset();
            std::thread::yield_now();
        }
    }
}

/// The end that posts requests.
pub(super) struct PerfSender<D: Domain> {
    end: End<D>,
    pub(super) sampler: Sampler,
}

impl<D: Domain> PerfSender<D> {
    pub(super) const fn new(end: End<D>) -> Self {
        Self { end, sampler: Sampler::off() }
    }

    /// Connects with the far end, in another process.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        peer.bring_up(&mut self.end.traffic.endpoint, hello, |_| Ok(()))
    }

    pub(super) fn endpoint(&mut self) -> &mut Endpoint<D::Qp, D::Cq> {
        &mut self.end.traffic.endpoint
    }

    pub(super) fn posted(&self) -> u64 {
        self.end.traffic.posted
    }

    pub(super) fn counters(&self) -> RailCounters {
        let qp = self.end.traffic.endpoint.virtual_qp();
        let rails = (0..8).map(RailId::Data).chain([RailId::Notify]);
        rails.filter_map(|rail| qp.counters(rail)).fold(RailCounters::default(), |sum, rail| {
            RailCounters {
                bytes: sum.bytes + rail.bytes,
                send_requests: sum.send_requests + rail.send_requests,
                doorbells: sum.doorbells + rail.doorbells,
                completions: sum.completions + rail.completions,
                errors: sum.errors + rail.errors,
            }
        })
    }

    /// Posts requests up to the limit, and polls until all are complete. `other` is called in every round
    /// of the loop, for the other end, and returns whether that has received everything posted.
    pub(super) fn run(
        &mut self,
        limit: Limit,
        mut other: impl FnMut(u64) -> Result<bool, PerfError>,
    ) -> Result<Round, PerfError> {
        let begin = Instant::now();
        let first = self.posted();
        let window = u64::from(self.end.slots.workload.window);
        let mut last = match limit {
            Limit::Count(count) => first + count,
            Limit::Time(_) => u64::MAX,
        };
        let mut next_watch = WATCH_EVERY;
        let mut idle = Eager::default();
        self.watch(Duration::ZERO);
        loop {
            while self.posted() < last.min(self.end.traffic.reported + window) && self.post()? {}
            let completed = self.end.traffic.poll(|_, _| About::Own)?;
            let received = other(self.posted())?;
            if received && self.end.traffic.reported >= last {
                let time = begin.elapsed();
                if self.sampler.is_on() {
                    self.sample(time);
                }
                return Ok(Round { requests: self.posted() - first, time });
            }
            idle.note(completed > 0);
            let elapsed = begin.elapsed();
            if let Limit::Time(time) = limit
                && elapsed >= time
            {
                last = self.posted();
            }
            if elapsed >= next_watch {
                next_watch = elapsed + WATCH_EVERY;
                self.end.traffic.check_headway()?;
                self.watch(elapsed);
            }
        }
    }

    /// Takes a sample if it is due; unless nobody wants to know.
    fn watch(&mut self, at: Duration) {
        if self.sampler.is_due(at) {
            self.sample(at);
        }
    }

    /// Takes a sample.
    fn sample(&mut self, at: Duration) {
        let Self { end: End { traffic, slots }, sampler } = self;
        let qp = traffic.endpoint.virtual_qp();
        let rails = (0..).map_while(|rail| qp.counters(RailId::Data(rail)));
        let completed = traffic.reported * u64::from(slots.workload.message_size);
        sampler.note(Sample { at, completed, rails: rails.map(|rail| rail.bytes).collect() });
    }

    /// Returns the names of the rails that carry payload, with their devices.
    pub(super) fn rail_names(&self) -> Vec<String> {
        let endpoint = &self.end.traffic.endpoint;
        let rails =
            (0..).take_while(|&rail| endpoint.virtual_qp().counters(RailId::Data(rail)).is_some());
        rails
            .map(|rail| format!("rail {rail} ({})", endpoint.device_of(RailId::Data(rail))))
            .collect()
    }

    fn post(&mut self) -> Result<bool, PerfError> {
        let End { traffic, slots } = &mut self.end;
        let request = traffic.posted;
        let local = slots.local(request)?;
        let remote = slots.remote(request)?;
        let keys = &slots.keys;
        let wr = match slots.workload.operation {
            Operation::Write => SendWr::write(request, local, remote, keys),
            Operation::WriteImm => {
                SendWr::write_with_imm(request, local, remote, request as u32, keys)
            }
            Operation::Read => SendWr::read(request, local, remote, keys),
            Operation::Send => SendWr::send(request, local, keys),
        };
        Ok(traffic.post(&wr)?)
    }
}

/// The other end, which posts receives if the operation consumes any.
pub(super) struct PerfReceiver<D: Domain> {
    end: End<D>,
    /// Receives that were posted.
    posted: u64,
}

impl<D: Domain> PerfReceiver<D> {
    pub(super) const fn new(end: End<D>) -> Self {
        Self { end, posted: 0 }
    }

    /// Connects with the near end, in another process, after posting receives.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        let Self { end: End { traffic: Traffic { endpoint, arrived, .. }, slots }, posted } = self;
        peer.bring_up(endpoint, hello, |endpoint| replenish::<D>(endpoint, slots, posted, *arrived))
    }

    /// Posts receives up to the number that stays posted.
    pub(super) fn post_receives(&mut self) -> Result<(), PerfError> {
        let Self { end: End { traffic: Traffic { endpoint, arrived, .. }, slots }, posted } = self;
        replenish::<D>(endpoint, slots, posted, *arrived).map_err(|error| match error {
            PerfError::Session(SessionError::Post(EndpointError::Refused(refusal))) => {
                SessionError::refused(endpoint, refusal).into()
            }
            error => error,
        })
    }

    pub(super) fn endpoint(&mut self) -> &mut Endpoint<D::Qp, D::Cq> {
        &mut self.end.traffic.endpoint
    }

    /// Returns how many requests arrived.
    pub(super) const fn received(&self) -> u64 {
        self.end.traffic.arrived
    }

    /// Returns whether this many requests have arrived.
    pub(super) fn has_all(&self, requests: u64) -> bool {
        !self.end.slots.workload.operation.is_received() || self.received() >= requests
    }

    /// Returns whether anything arrived.
    pub(super) fn poll(&mut self) -> Result<bool, PerfError> {
        let received = self.end.traffic.poll(|_, _| About::Arrival)?;
        if received > 0 {
            self.post_receives()?;
        }
        Ok(received > 0)
    }

    /// Polls until `stop` is set.
    pub(super) fn run_until(&mut self, stop: &AtomicBool) -> Result<(), PerfError> {
        let mut idle = Eager::default();
        while !stop.load(Ordering::Acquire) {
            idle.note(self.poll()?);
        }
        Ok(())
    }
}

/// Posts receives until enough are posted, if the operation consumes any.
fn replenish<D: Domain>(
    endpoint: &mut EndpointQp<D::Qp>,
    slots: &Slots<D::Region>,
    posted: &mut u64,
    received: u64,
) -> Result<(), PerfError> {
    let operation = slots.workload.operation;
    while operation.is_received() && *posted < received + RECEIVES {
        let wr = match operation {
            Operation::Send => RecvWr::data(*posted, slots.local(*posted)?, &slots.keys),
            _ => RecvWr::notification(*posted),
        };
        match endpoint.post_recv(&wr) {
            Ok(()) => *posted += 1,
            Err(refusal) if refusal.is_back_pressure() => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
