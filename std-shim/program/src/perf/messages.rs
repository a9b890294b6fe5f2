//! The ends of a measurement over endpoints for messages: an end sends, offers buffers, or does
//! both.

use super::drive::{Flush, Receiver, Sender, sum};
use super::error::PerfError;
use super::ping_pong::Player;
use super::sampler::Sampler;
use crate::job::{Hello, Workload};
use crate::session::{Counterpart, RailNews, SessionError};
use polyrail::backend::Domain;
use polyrail::memory::RegisteredBuffer;
use polyrail::metrics::Source;
use polyrail::p2p::{
    CallError, P2pBuilder, P2pEndpoint, RecvBuffer, RecvHandle, SLOTS, SendHandle,
};
use polyrail::verbs::{AccessFlags, DeviceKeys};
use polyrail::virtual_qp::RailCounters;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of buffers that stay offered: the maximum, so that a sender never waits for a receiver
/// that is slightly late.
const OFFERS: u64 = SLOTS as u64;

/// Number of buffers that are offered at a time: one WRITE carries the offers of all of them, which
/// otherwise cost as much as the messages.
const OFFERED_TOGETHER: u64 = OFFERS / 4;

/// Maximum number of completions per poll.
const POLL_BUDGET: usize = 64;

/// The tag of all messages.
const TAG: u32 = 0;

/// One end. Messages are numbered from 0 in each direction.
pub(super) struct MessageEnd<D: Domain> {
    /// Dropped before its memory.
    pub(super) endpoint: P2pEndpoint<D>,
    pub(super) ring: RegisteredBuffer<D::Region>,
    keys: Vec<DeviceKeys>,
    workload: Workload,
    /// Messages that were sent, and whose arrival is not confirmed.
    sends: VecDeque<SendHandle>,
    /// Buffers that are offered, and have not received a message.
    offers: VecDeque<RecvHandle>,
    sent: u64,
    completed: u64,
    arrived: u64,
    progress: ProgressWatch,
    sampler: Sampler,
    metrics: Option<Source>,
}

impl<D: Domain> MessageEnd<D> {
    /// Makes an end and fills its ring with `byte`, because untouched pages would all map to the
    /// same zero page. Its messages may make no progress for at most `stall_timeout`.
    pub(super) fn new(
        workload: Workload,
        builder: &P2pBuilder,
        domains: &[&D],
        byte: u8,
        stall_timeout: Duration,
    ) -> Result<Self, SessionError> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let ring = RegisteredBuffer::new(workload.ring_bytes(), access, domains)?;
        ring.fill(0, ring.len(), byte)?;
        Ok(Self {
            endpoint: builder.build(domains)?,
            keys: ring.own_keys(),
            ring,
            workload,
            sends: VecDeque::with_capacity(SLOTS),
            offers: VecDeque::with_capacity(SLOTS),
            sent: 0,
            completed: 0,
            arrived: 0,
            progress: ProgressWatch::new(stall_timeout),
            sampler: Sampler::off(),
            metrics: None,
        })
    }

    /// Publishes its metrics from now on, if those of this job are wanted.
    pub(super) fn count(&mut self, news: &RailNews) {
        self.metrics = news.source();
    }

    /// Publishes metrics if a reader asked for them. Called when nothing completed, and when buffers
    /// are offered, so that a poll that finds completions costs nothing more.
    fn publish(&mut self) {
        if let Some(metrics) = &mut self.metrics {
            metrics.publish_if_wanted(|| vec![self.endpoint.metrics()]);
        }
    }

    /// Connects with an end in another process.
    pub(super) fn bring_up(
        &mut self,
        peer: &mut Counterpart<'_>,
        hello: &Hello,
    ) -> Result<(), PerfError> {
        Ok(peer.bring_up_p2p(&mut self.endpoint, hello)?)
    }

    /// Offers buffers up to the number that stays offered, or until there is no room, as soon as
    /// enough are missing.
    pub(super) fn offer(&mut self) -> Result<(), PerfError> {
        if self.offers.len() as u64 > OFFERS - OFFERED_TOGETHER {
            return Ok(());
        }
        self.publish();
        while (self.offers.len() as u64) < OFFERS {
            let offered = self.arrived + self.offers.len() as u64;
            let slot = self.workload.far_slot(offered);
            let local = self.ring.local(slot, self.workload.message_size)?;
            let buffer = RecvBuffer { local, tag: TAG, keys: &self.keys };
            match now(self.endpoint.irecv(&[buffer]))? {
                Some(offer) => self.offers.push_back(offer),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends the next message; returns `false` if that is not possible now.
    fn send(&mut self) -> Result<bool, PerfError> {
        let slot = self.workload.slot(self.sent);
        let local = self.ring.local(slot, self.workload.message_size)?;
        let sent = match self.workload.is_inline() {
            true => self.endpoint.isend_inline(local, TAG, &self.keys),
            false => self.endpoint.isend(local, TAG, &self.keys),
        };
        let Some(send) = now(sent)? else {
            return Ok(false);
        };
        self.sends.push_back(send);
        self.sent += 1;
        Ok(true)
    }

    /// Removes completed messages in both directions. Returns whether there were any.
    fn take(&mut self) -> Result<bool, PerfError> {
        self.endpoint.poll(POLL_BUDGET).check()?;
        let before = self.completed + self.arrived;
        while let Some(send) = self.sends.front()
            && self.endpoint.test_send(*send)?
        {
            self.sends.pop_front();
            self.completed += 1;
        }
        while let Some(offer) = self.offers.front()
            && self.endpoint.test_recv(*offer)?.is_some()
        {
            self.offers.pop_front();
            self.arrived += 1;
        }
        let is_idle = self.completed + self.arrived == before;
        if is_idle {
            self.publish();
        }
        Ok(!is_idle)
    }

    fn check(&mut self) -> Result<(), PerfError> {
        self.publish();
        Ok(self.progress.check(self.sent, self.completed)?)
    }
}

/// What it has counted stays in the metrics.
impl<D: Domain> Drop for MessageEnd<D> {
    fn drop(&mut self) {
        if let Some(metrics) = &mut self.metrics {
            metrics.publish(vec![self.endpoint.metrics()]);
        }
    }
}

impl<D: Domain> Flush for MessageEnd<D> {
    fn flush(&mut self, timeout: Duration) {
        self.endpoint.give_up(timeout);
    }
}

impl<D: Domain> Sender for MessageEnd<D> {
    fn post(&mut self) -> Result<bool, PerfError> {
        self.send()
    }

    fn poll(&mut self) -> Result<bool, PerfError> {
        let busy = self.take()?;
        if self.workload.bidirectional {
            self.offer()?;
        }
        Ok(busy)
    }

    fn arrived(&self) -> u64 {
        self.arrived
    }

    fn posted(&self) -> u64 {
        self.sent
    }

    fn completed(&self) -> u64 {
        self.completed
    }

    fn window(&self) -> u64 {
        self.workload.window.into()
    }

    fn message_size(&self) -> u64 {
        self.workload.message_size.into()
    }

    fn check_progress(&mut self) -> Result<(), PerfError> {
        self.check()
    }

    fn rails(&self) -> impl Iterator<Item = RailCounters> {
        (0..).map_while(|rail| self.endpoint.sender()?.counters(rail))
    }

    fn counters(&self) -> RailCounters {
        sum(self.rails())
    }

    fn device_of(&self, rail: usize) -> String {
        self.endpoint.device_of(rail).unwrap_or_default().to_owned()
    }

    fn sampler(&mut self) -> &mut Sampler {
        &mut self.sampler
    }
}

impl<D: Domain> Receiver for MessageEnd<D> {
    fn poll(&mut self) -> Result<bool, PerfError> {
        let busy = self.take()?;
        self.offer()?;
        Ok(busy)
    }

    fn received(&self) -> u64 {
        self.arrived
    }

    fn has_all(&self, requests: u64) -> bool {
        self.arrived >= requests
    }
}

impl<D: Domain> Player for MessageEnd<D> {
    fn make_room(&mut self) -> Result<(), PerfError> {
        self.offer()
    }

    fn hit(&mut self) -> Result<bool, PerfError> {
        self.send()
    }

    fn arrivals(&mut self) -> Result<u64, PerfError> {
        self.take()?;
        Ok(self.arrived)
    }

    fn check_progress(&mut self) -> Result<(), PerfError> {
        self.check()
    }
}

/// Returns the result of a call, or `None` if the call has to be repeated.
fn now<T>(called: Result<T, CallError>) -> Result<Option<T>, SessionError> {
    match called {
        Ok(done) => Ok(Some(done)),
        Err(refusal) if refusal.is_not_now() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Detects messages without progress.
#[derive(Debug)]
struct ProgressWatch {
    timeout: Duration,
    /// The number of completed messages, and the time since which it is unchanged while others are
    /// pending.
    since: Option<(u64, Instant)>,
}

impl ProgressWatch {
    const fn new(timeout: Duration) -> Self {
        Self { timeout, since: None }
    }

    fn check(&mut self, sent: u64, completed: u64) -> Result<(), SessionError> {
        match self.since {
            Some((before, since)) if before == completed && sent > completed => {
                let is_late = since.elapsed() >= self.timeout;
                let late = SessionError::MessagesStalled { waited: self.timeout };
                if is_late { Err(late) } else { Ok(()) }
            }
            _ => {
                self.since = Some((completed, Instant::now()));
                Ok(())
            }
        }
    }
}
