//! The loops: one end keeps a window of requests outstanding, the other posts receives.

use super::rig::{End, PerfError};
use super::{Limit, Operation, PerfConfig, Round};
use crate::backend::Domain;
use crate::endpoint::StallWatch;
use polyrail_core::verbs::{RecvWr, SendWr, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::{PostError, RailCounters, RailId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Requests outstanding at most: one queue pair takes 128.
pub(super) const MAX_WINDOW: u32 = 128;

/// Receives that are kept posted: all that a queue pair takes, so that a sender never waits for a
/// receiver that is a little late.
const RECEIVES: u64 = 128;

/// Events that one poll hands over at most.
const BUDGET: usize = 64;

/// Rounds of the loop between looks at the clock.
const CLOCK_EVERY: u32 = 16;

/// Polls an endpoint and counts its completions; the first failure is an error.
fn poll<D: Domain>(end: &mut End<D>) -> Result<u64, PerfError> {
    let (mut completed, mut failed) = (0, None);
    let polled = end.endpoint.poll_with(BUDGET, |event| {
        let Event::Completion(wc) = event else { return };
        completed += 1;
        if wc.status != WcStatus::SUCCESS {
            failed = failed.or(Some(wc.status));
        }
    });
    if let Some(status) = failed {
        return Err(end.endpoint.explain(status).into());
    }
    match polled.error {
        Some(error) => Err(end.endpoint.queue_error(error).into()),
        None => Ok(completed),
    }
}

/// Leaves the processor to others when there was nothing to do for some time.
#[derive(Debug, Default)]
struct Idle(u32);

impl Idle {
    #[inline]
    fn note(&mut self, busy: bool) {
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
    operation: Operation,
    window: u64,
    posted: u64,
    reported: u64,
    watch: StallWatch,
}

impl<D: Domain> Sender<D> {
    pub(super) fn new(config: &PerfConfig, end: End<D>) -> Self {
        let window = config.window.into();
        let watch = StallWatch::new(config.stall_timeout);
        Self { end, operation: config.operation, window, posted: 0, reported: 0, watch }
    }

    pub(super) fn slots(&self) -> usize {
        self.end.ring.slots
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
                fragments: sum.fragments + rail.fragments,
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
        let mut last = match limit {
            Limit::Count(count) => first + count,
            Limit::Time(_) => u64::MAX,
        };
        let (mut until_clock, mut idle) = (CLOCK_EVERY, Idle::default());
        loop {
            while self.posted < last.min(self.reported + self.window) && self.post()? {
                self.posted += 1;
            }
            let completed = poll(&mut self.end)?;
            self.reported += completed;
            let received = other(self.posted)?;
            if received && self.reported >= last {
                return Ok(Round { requests: self.posted - first, time: begin.elapsed() });
            }
            idle.note(completed > 0);
            until_clock -= 1;
            if until_clock == 0 {
                until_clock = CLOCK_EVERY;
                self.watch.check(&mut self.end.endpoint, self.posted, self.reported)?;
                if let Limit::Time(time) = limit
                    && begin.elapsed() >= time
                {
                    last = self.posted;
                }
            }
        }
    }

    fn post(&mut self) -> Result<bool, PerfError> {
        let (End { ring, keys, peer, endpoint }, request) = (&mut self.end, self.posted);
        let local = ring.local(request)?;
        let remote = peer.at(ring.offset(request), ring.message_size)?;
        let wr = match self.operation {
            Operation::Write => SendWr::write(request, local, remote, keys),
            Operation::WriteImm => {
                SendWr::write_with_imm(request, local, remote, request as u32, keys)
            }
            Operation::Read => SendWr::read(request, local, remote, keys),
            Operation::Send => SendWr::send(request, local, keys),
        };
        match endpoint.post_send(&wr) {
            Ok(()) => Ok(true),
            Err(PostError::Full(_) | PostError::QueueFull) => Ok(false),
            Err(PostError::InErrorState) => Err(endpoint.explain(WcStatus::WR_FLUSH_ERR).into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The other end, which posts receives if the operation consumes them.
pub(super) struct Receiver<D: Domain> {
    end: End<D>,
    operation: Operation,
    posted: u64,
    received: u64,
}

impl<D: Domain> Receiver<D> {
    /// Posts the first receives.
    pub(super) fn new(config: &PerfConfig, end: End<D>) -> Result<Self, PerfError> {
        let mut receiver = Self { end, operation: config.operation, posted: 0, received: 0 };
        receiver.post_receives()?;
        Ok(receiver)
    }

    /// Whether everything has arrived of so many requests.
    pub(super) fn has_all(&self, requests: u64) -> bool {
        !self.operation.is_received() || self.received >= requests
    }

    fn post_receives(&mut self) -> Result<(), PerfError> {
        while self.operation.is_received() && self.posted < self.received + RECEIVES {
            let End { endpoint, ring, keys, .. } = &mut self.end;
            let wr = match self.operation {
                Operation::Send => RecvWr::data(self.posted, ring.local(self.posted)?, keys),
                _ => RecvWr::notification(self.posted),
            };
            match endpoint.post_recv(&wr) {
                Ok(()) => self.posted += 1,
                Err(PostError::Full(_) | PostError::QueueFull) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Says whether anything arrived.
    pub(super) fn poll(&mut self) -> Result<bool, PerfError> {
        let received = poll(&mut self.end)?;
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
