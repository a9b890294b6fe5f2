//! The loops: one end keeps a window of requests outstanding, the other posts receives. Who calls
//! them, from which thread or process, makes no difference to them.

use super::config::Limit;
use super::ends::{End, Slots};
use super::error::PerfError;
use super::round::Round;
use crate::job::Hello;
use crate::job::Operation;
use crate::session::{Counterpart, SessionError};
use polyrail::backend::Domain;
use polyrail::endpoint::{Endpoint, EndpointError, EndpointQp, StallWatch};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_cq::Event;
use polyrail::virtual_qp::{RailCounters, RailId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Receives that are kept posted: all that a queue pair takes, so that a sender never waits for a
/// receiver that is a little late.
const RECEIVES: u64 = 128;

/// Events that one poll hands over at most.
const BUDGET: usize = 64;

/// Between looks at rails that may have fallen silent. By time, since over slow paths a round of the
/// loop can take a second.
const WATCH_EVERY: Duration = Duration::from_millis(1);

/// Polls an endpoint and counts its completions; the first failure is an error.
fn poll<D: Domain>(endpoint: &mut Endpoint<D::Qp, D::Cq>) -> Result<u64, PerfError> {
    let (mut completed, mut failed) = (0, None);
    let polled = endpoint.poll_with(BUDGET, |event| {
        let Event::Completion(wc) = event else { return };
        completed += 1;
        if wc.status != WcStatus::SUCCESS {
            failed = failed.or(Some(wc.status));
        }
    });
    if let Some(status) = failed {
        return Err(endpoint.explain(status).into());
    }
    match polled.error {
        Some(error) => Err(endpoint.queue_error(error).into()),
        None => Ok(completed),
    }
}

/// Leaves the processor to others when there was nothing to do for some time.
#[derive(Debug, Default)]
pub(super) struct Idle(u32);

impl Idle {
    #[inline]
    pub(super) fn note(&mut self, busy: bool) {
        const SPINS: u32 = 256;
        self.0 = if busy { 0 } else { self.0 + 1 };
        if self.0 == SPINS {
            self.0 = 0;
            std::thread::yield_now();
        }
    }
}

/// The end that posts requests.
pub(super) struct Sender<D: Domain> {
    end: End<D>,
    posted: u64,
    reported: u64,
    watch: StallWatch,
}

impl<D: Domain> Sender<D> {
    pub(super) fn new(end: End<D>, stall_timeout: Duration) -> Self {
        Self { end, posted: 0, reported: 0, watch: StallWatch::new(stall_timeout) }
    }

    /// Connects with the far end, in another process.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        peer.bring_up(&mut self.end.endpoint, hello, |_| Ok(()))
    }

    pub(super) fn endpoint(&mut self) -> &mut Endpoint<D::Qp, D::Cq> {
        &mut self.end.endpoint
    }

    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    pub(super) fn counters(&self) -> RailCounters {
        let qp = self.end.endpoint.virtual_qp();
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

    /// Posts requests up to the limit, and polls until they are over. `other` is called in every
    /// round of the loop, for the other end, and says whether that has all that was posted.
    pub(super) fn run(
        &mut self,
        limit: Limit,
        mut other: impl FnMut(u64) -> Result<bool, PerfError>,
    ) -> Result<Round, PerfError> {
        let (begin, first) = (Instant::now(), self.posted);
        let window = u64::from(self.end.slots.workload.window);
        let mut last = match limit {
            Limit::Count(count) => first + count,
            Limit::Time(_) => u64::MAX,
        };
        let (mut next_watch, mut idle) = (WATCH_EVERY, Idle::default());
        loop {
            while self.posted < last.min(self.reported + window) && self.post()? {
                self.posted += 1;
            }
            let completed = poll::<D>(&mut self.end.endpoint)?;
            self.reported += completed;
            let received = other(self.posted)?;
            if received && self.reported >= last {
                return Ok(Round { requests: self.posted - first, time: begin.elapsed() });
            }
            idle.note(completed > 0);
            let elapsed = begin.elapsed();
            if let Limit::Time(time) = limit
                && elapsed >= time
            {
                last = self.posted;
            }
            if elapsed >= next_watch {
                next_watch = elapsed + WATCH_EVERY;
                self.watch.check(&mut self.end.endpoint, self.posted, self.reported)?;
            }
        }
    }

    fn post(&mut self) -> Result<bool, PerfError> {
        let (End { endpoint, slots }, request) = (&mut self.end, self.posted);
        let (local, remote, keys) = (slots.local(request)?, slots.remote(request)?, &slots.keys);
        let wr = match slots.workload.operation {
            Operation::Write => SendWr::write(request, local, remote, keys),
            Operation::WriteImm => {
                SendWr::write_with_imm(request, local, remote, request as u32, keys)
            }
            Operation::Read => SendWr::read(request, local, remote, keys),
            Operation::Send => SendWr::send(request, local, keys),
        };
        match endpoint.post_send(&wr) {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.is_back_pressure() => Ok(false),
            Err(refusal) => Err(SessionError::refused(endpoint, refusal).into()),
        }
    }
}

/// The other end, which posts receives if the operation consumes them.
pub(super) struct Receiver<D: Domain> {
    end: End<D>,
    posted: u64,
    received: u64,
}

impl<D: Domain> Receiver<D> {
    pub(super) const fn new(end: End<D>) -> Self {
        Self { end, posted: 0, received: 0 }
    }

    /// Connects with the near end, in another process; receives are posted before.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        let Self { end: End { endpoint, slots }, posted, received } = self;
        peer.bring_up(endpoint, hello, |endpoint| {
            replenish::<D>(endpoint, slots, posted, *received)
        })
    }

    /// Posts receives, as many as are to be posted.
    pub(super) fn post_receives(&mut self) -> Result<(), PerfError> {
        let Self { end: End { endpoint, slots }, posted, received } = self;
        replenish::<D>(endpoint, slots, posted, *received).map_err(|error| match error {
            PerfError::Session(SessionError::Post(EndpointError::Refused(refusal))) => {
                SessionError::refused(endpoint, refusal).into()
            }
            error => error,
        })
    }

    pub(super) fn endpoint(&mut self) -> &mut Endpoint<D::Qp, D::Cq> {
        &mut self.end.endpoint
    }

    /// Requests that arrived.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Whether everything has arrived of so many requests.
    pub(super) fn has_all(&self, requests: u64) -> bool {
        !self.end.slots.workload.operation.is_received() || self.received >= requests
    }

    /// Says whether anything arrived.
    pub(super) fn poll(&mut self) -> Result<bool, PerfError> {
        let received = poll::<D>(&mut self.end.endpoint)?;
        self.received += received;
        if received > 0 {
            self.post_receives()?;
        }
        Ok(received > 0)
    }

    /// Polls until told to stop.
    pub(super) fn run_until(&mut self, stop: &AtomicBool) -> Result<(), PerfError> {
        let mut idle = Idle::default();
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
