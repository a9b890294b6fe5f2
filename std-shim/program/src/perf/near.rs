//! The near end of a measurement between two hosts: it requests the measurement, posts the
//! requests, and counts them.

use super::config::{Limit, PerfConfig};
use super::drive::{Eager, Flush, LATE, Sender, rail_names, send};
use super::ends::{End, Half};
use super::error::{PerfError, requests_of};
use super::messages::MessageEnd;
use super::ping_pong::{self, Latency, Pinger, Player};
use super::progress::PerfProgress;
use super::requests::{RequestPlayer, RequestSender};
use super::round::{Ended, Ends, Round};
use super::sampler::Sampler;
use crate::fault::Side;
use crate::job::{Back, Hello, Job, JobOutcome, Message, Workload};
use crate::session::{Counterpart, PeerTimeouts, RailNews, Reporter, ServerAddress, SessionError};
use polyrail::backend::Domain;
use polyrail::link::Reach;
use polyrail::memory::RemoteBuffer;
use polyrail::virtual_qp::RailCounters;
use std::time::{Duration, Instant};

/// Interval at which a busy near end reports to the far end that it is alive, because the far end
/// does not notice READs and WRITEs.
const ALIVE_EVERY: Duration = Duration::from_millis(200);

/// The near end, connected with the far one.
pub(super) struct Near<'a, S> {
    peer: Counterpart<'a>,
    sender: S,
    workload: Workload,
    /// Timeout for the far end's last message.
    answer_timeout: Duration,
    /// When the near end last reported that it is alive.
    last_alive: Instant,
}

/// An end that connects with an end on another host.
pub(super) trait Reaches<D>: Flush + Sized {
    /// Requests a measurement from the far end, and connects with it.
    fn meet(
        config: &PerfConfig,
        workload: Workload,
        peer: &mut Counterpart<'_>,
        domains: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError>;
}

impl<'a, S: Flush> Near<'a, S> {
    /// Connects with the far end at `server`.
    pub(super) fn reach<D: Domain>(
        config: &PerfConfig,
        workload: Workload,
        server: &ServerAddress,
        domains: &[D],
        progress: &'a PerfProgress,
    ) -> Result<Self, PerfError>
    where
        S: Reaches<D>,
    {
        let domains: Vec<&D> = domains.iter().take(config.rails).collect();
        let timeouts = PeerTimeouts { answer: config.answer_timeout, ..PeerTimeouts::default() };
        let control = server.connect(&timeouts)?;
        // No timeout: the far end sends no messages during the measurement, so silence is detected
        // on the rails.
        let mut peer = Counterpart::new(control, None, &progress.interrupted);
        let met = S::meet(config, workload, &mut peer, &domains, &progress.rails);
        let sender = met.inspect_err(|error| peer.tell_failure(error))?;
        // From now on an interrupt ends the measurement, and the two ends still compare counts.
        peer.leave_interrupts();
        let answer_timeout = config.answer_timeout;
        Ok(Self { peer, sender, workload, answer_timeout, last_alive: Instant::now() })
    }

    /// Compares the number of requests with the far end's, and closes the session. `requests` is
    /// this end's count.
    fn finish<T>(
        mut self,
        requests: impl FnOnce(&S) -> u64,
        measured: Result<T, PerfError>,
    ) -> Result<T, PerfError> {
        let requests = requests(&self.sender);
        let result = measured.and_then(|measured| self.compare(requests).map(|()| measured));
        let sender = &mut self.sender;
        self.peer.conclude(|timeout| sender.flush(timeout), result.as_ref().err());
        result
    }

    /// Closes the session after a measurement: as [`finish`](Self::finish), unless an interrupt cut
    /// it. The far end then learns of the interrupt, because counts of requests that are in flight
    /// cannot be compared.
    pub(super) fn end<T>(
        mut self,
        requests: impl FnOnce(&S) -> u64,
        measured: Result<Ended<T>, PerfError>,
    ) -> Result<T, PerfError> {
        let measured = match measured {
            Ok(Ended { measured, is_cut: true }) => {
                let sender = &mut self.sender;
                let interrupted = PerfError::from(SessionError::Interrupted);
                self.peer.conclude(|timeout| sender.flush(timeout), Some(&interrupted));
                return Ok(measured);
            }
            Ok(Ended { measured, is_cut: false }) => Ok(measured),
            Err(error) => Err(error),
        };
        self.finish(requests, measured)
    }

    /// Checks that all sent requests arrived, if the far end notices the operation.
    fn compare(&mut self, requests: u64) -> Result<(), PerfError> {
        self.tell_done(requests)?;
        let outcome = self.peer.expect_outcome()?;
        self.check(requests, outcome)
    }

    fn tell_done(&mut self, requests: u64) -> Result<(), PerfError> {
        let done = JobOutcome::Perf { requests, back: None };
        Ok(self.peer.tell(&Message::Done(done))?)
    }

    fn check(&self, requests: u64, outcome: JobOutcome) -> Result<(), PerfError> {
        let sent = if self.workload.is_noticed() { requests } else { 0 };
        let received = requests_of(outcome)?;
        if received == sent { Ok(()) } else { Err(PerfError::Lost { sent, received }) }
    }

    /// Polls the control connection in a round of a loop, and reports that this end is alive if
    /// that is due.
    fn attend(peer: &mut Counterpart<'_>, last_alive: &mut Instant) -> Result<(), PerfError> {
        if peer.poll_control_sparsely()? && last_alive.elapsed() >= ALIVE_EVERY {
            *last_alive = Instant::now();
            peer.tell(&Message::Alive {})?;
        }
        Ok(())
    }

    /// Prefers the far end's own error: if the far end gave up, a rail may fail before the message
    /// with its reason is read.
    fn blame<T>(&mut self, result: &Result<T, PerfError>) -> Result<(), PerfError> {
        match result {
            Err(PerfError::Session(error)) if error.is_of_rails() => {
                Ok(self.peer.poll_control()?)
            }
            _ => Ok(()),
        }
    }
}

impl<S: Sender> Near<'_, S> {
    /// Compares the numbers of requests in both directions, and closes the session. Returns what
    /// the far end posted.
    pub(super) fn finish_both_ways<T>(
        mut self,
        measured: Result<T, PerfError>,
    ) -> Result<(T, Back), PerfError> {
        let result = measured.and_then(|measured| {
            let compared = self.compare_both_ways();
            self.blame(&compared)?;
            Ok((measured, compared?))
        });
        let sender = &mut self.sender;
        self.peer.conclude(|timeout| sender.flush(timeout), result.as_ref().err());
        result
    }

    fn compare_both_ways(&mut self) -> Result<Back, PerfError> {
        let requests = self.sender.posted();
        self.tell_done(requests)?;
        let outcome = self.receive_until_outcome()?;
        self.check(requests, outcome)?;
        let back = outcome.back().ok_or_else(SessionError::other_outcome)?;
        let begin = Instant::now();
        // All requests are acknowledged, so their completions are in the queue already or lost.
        while self.workload.is_noticed() && self.sender.arrived() != back.posted {
            self.sender.poll()?;
            if begin.elapsed() >= LATE {
                let (sent, received) = (back.posted, self.sender.arrived());
                return Err(PerfError::Lost { sent, received });
            }
        }
        Ok(back)
    }

    /// Receives the far end's remaining requests until its outcome arrives.
    fn receive_until_outcome(&mut self) -> Result<JobOutcome, PerfError> {
        let begin = Instant::now();
        let mut idle = Eager::default();
        while begin.elapsed() < self.answer_timeout {
            let busy = self.sender.poll()?;
            idle.note(busy);
            self.peer.poll_control_sparsely()?;
            if let Some(outcome) = self.peer.outcome() {
                return Ok(outcome);
            }
        }
        // This returns the error for the missing message.
        Ok(self.peer.expect_outcome()?)
    }
}

impl<S: Sender> Ends for Near<'_, S> {
    fn counters(&self) -> RailCounters {
        self.sender.counters()
    }

    fn rail_names(&self) -> Vec<String> {
        rail_names(&self.sender)
    }

    fn sampler(&mut self) -> &mut Sampler {
        self.sender.sampler()
    }

    /// Runs until all requests are acknowledged.
    fn run(&mut self, limit: Limit, progress: &PerfProgress) -> Result<Round, PerfError> {
        let Self { peer, sender, last_alive, .. } = self;
        let round =
            send(sender, limit, progress, |_| Self::attend(peer, last_alive).map(|()| true));
        self.blame(&round)?;
        round
    }
}

impl<P: Player> Near<'_, P> {
    /// Measures the latency, and closes the session.
    pub(super) fn play(
        self,
        config: &PerfConfig,
        progress: &PerfProgress,
    ) -> Result<Latency, PerfError> {
        let Self { peer, sender, workload, answer_timeout, last_alive } = self;
        let sender = Pinger::new(sender);
        let mut near = Near { peer, sender, workload, answer_timeout, last_alive };
        let Near { peer, sender, last_alive, .. } = &mut near;
        peer.poll_seldom();
        let measured = ping_pong::play(sender, config, progress, || Self::attend(peer, last_alive));
        let measured = near.blame(&measured).and(measured);
        near.end(|sender| sender.round_trips, measured)
    }
}

impl<D: Domain> Reaches<D> for RequestSender<D> {
    fn meet(
        config: &PerfConfig,
        workload: Workload,
        peer: &mut Counterpart<'_>,
        domains: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let (end, hello) = meet_for_requests(config, workload, peer, domains, news)?;
        let mut sender = Self::new(end);
        sender.bring_up(peer, &hello)?;
        Ok(sender)
    }
}

impl<D: Domain> Reaches<D> for RequestPlayer<D> {
    fn meet(
        config: &PerfConfig,
        workload: Workload,
        peer: &mut Counterpart<'_>,
        domains: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let (end, hello) = meet_for_requests(config, workload, peer, domains, news)?;
        let mut player = Self::new(end);
        player.bring_up(peer, &hello)?;
        Ok(player)
    }
}

impl<D: Domain> Reaches<D> for MessageEnd<D> {
    fn meet(
        config: &PerfConfig,
        workload: Workload,
        peer: &mut Counterpart<'_>,
        domains: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let stall_timeout = config.rail_repair.stall_timeout;
        let mut end =
            Self::new(workload, &config.p2p_builder(&workload), domains, 1, stall_timeout)?;
        end.count(news);
        let hello = introduce(peer, workload, end.endpoint.address().into(), end.ring.remote())?;
        end.bring_up(peer, &hello)?;
        Ok(end)
    }
}

fn meet_for_requests<D: Domain>(
    config: &PerfConfig,
    workload: Workload,
    peer: &mut Counterpart<'_>,
    domains: &[&D],
    news: &RailNews,
) -> Result<(End<D>, Hello), PerfError> {
    let near = Half::new(workload, &config.builder(&workload), domains, 1)?;
    let hello = introduce(peer, workload, near.endpoint.address().into(), near.ring.remote())?;
    peer.carry_for(&near.endpoint);
    let reporter = Reporter { side: Side::Near, news: news.clone() };
    let end = near.toward(hello.buffer.clone(), config.rail_repair.stall_timeout, reporter)?;
    Ok((end, hello))
}

/// Requests a measurement from the far end, and returns its hello.
fn introduce(
    peer: &mut Counterpart<'_>,
    workload: Workload,
    reach: Reach,
    buffer: RemoteBuffer,
) -> Result<Hello, SessionError> {
    let purpose = Some(Job::Perf(workload));
    let session = peer.session();
    peer.tell(&Message::Hello(Hello { reach, buffer, purpose, session }))?;
    let hello = peer.expect_hello()?;
    match &hello.purpose {
        Some(purpose) => Err(SessionError::both_ask(purpose)),
        None => Ok(hello),
    }
}
