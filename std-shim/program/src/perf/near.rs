//! The near end of a measurement between two hosts: it asks, posts the requests, and counts.

use super::config::{Limit, PerfConfig};
use super::drive::{Flush, Sender, rail_names, send};
use super::ends::{End, Half};
use super::error::{PerfError, requests_of};
use super::messages::MessageEnd;
use super::ping_pong::{self, Latency, Pinger, Player};
use super::requests::{RequestPlayer, RequestSender};
use super::round::{Ends, Round};
use super::sampler::Sampler;
use crate::fault::Side;
use crate::job::{Hello, Job, JobOutcome, Message, Workload};
use crate::session::{Counterpart, Patience, RailNews, Reporter, ServerAddress, SessionError};
use polyrail::RemoteBuffer;
use polyrail::backend::Domain;
use polyrail::exchange::Reach;
use polyrail::virtual_qp::RailCounters;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How often a busy near end tells the far end that it is alive: the far end does not notice a READ or a
/// WRITE.
const ALIVE_EVERY: Duration = Duration::from_millis(200);

/// The near end, connected with the far one.
pub(super) struct Near<'a, S> {
    peer: Counterpart<'a>,
    sender: S,
    workload: Workload,
    /// When the far end was last told.
    told: Instant,
}

/// An end that finds the other one on another host.
pub(super) trait Reaches<D>: Flush + Sized {
    /// Asks the far end for a measurement, and connects with it.
    fn meet(
        config: &PerfConfig,
        workload: Workload,
        peer: &mut Counterpart<'_>,
        domains: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError>;
}

impl<'a, S: Flush> Near<'a, S> {
    /// Connects with the far end at `server`; each request is `answered`, or not.
    pub(super) fn reach<D: Domain>(
        config: &PerfConfig,
        answered: bool,
        server: &ServerAddress,
        domains: &[D],
        news: &RailNews,
        interrupted: &'a AtomicBool,
    ) -> Result<Self, PerfError>
    where
        S: Reaches<D>,
    {
        let domains: Vec<&D> = domains.iter().take(config.rails).collect();
        let patience = Patience { answer: config.answer_timeout, ..Patience::default() };
        let control = server.connect(&patience)?;
        // During the measurement the far end sends no messages; silence is detected on the rails.
        let mut peer = Counterpart::new(control, None, interrupted);
        let workload = config.workload().map(|workload| Workload { answered, ..workload });
        let met = workload.and_then(|workload| {
            Ok((S::meet(config, workload, &mut peer, &domains, news)?, workload))
        });
        let (sender, workload) = met.inspect_err(|error| peer.tell_failure(error))?;
        Ok(Self { peer, sender, workload, told: Instant::now() })
    }

    /// Compares with the far end, and parts. This end counted so many requests.
    pub(super) fn finish<T>(
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

    /// Checks that as many requests arrived as were sent, if the far end notices the operation.
    fn compare(&mut self, requests: u64) -> Result<(), PerfError> {
        self.peer.tell(&Message::Done(JobOutcome::Perf { requests }))?;
        let sent = if self.workload.operation.is_received() { requests } else { 0 };
        let received = requests_of(self.peer.expect_outcome()?)?;
        if received == sent { Ok(()) } else { Err(PerfError::Lost { sent, received }) }
    }

    /// Looks after the far end in a round of a loop.
    fn attend(peer: &mut Counterpart<'_>, told: &mut Instant) -> Result<(), PerfError> {
        if peer.poll_control_sparsely()? && told.elapsed() >= ALIVE_EVERY {
            *told = Instant::now();
            peer.tell(&Message::Alive {})?;
        }
        Ok(())
    }

    /// If the far end is gone, a rail may fail before its message is read.
    fn blame<T>(&mut self, result: &Result<T, PerfError>) -> Result<(), PerfError> {
        match result {
            Err(PerfError::Session(error)) if error.is_of_rails() => {
                Ok(self.peer.poll_control()?)
            }
            _ => Ok(()),
        }
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
    fn run(&mut self, limit: Limit) -> Result<Round, PerfError> {
        let Self { peer, sender, told, .. } = self;
        let round = send(sender, limit, |_| Self::attend(peer, told).map(|()| true));
        self.blame(&round)?;
        round
    }
}

impl<P: Player> Near<'_, P> {
    /// Measures how long answers take, and parts.
    pub(super) fn play(self, config: &PerfConfig) -> Result<Latency, PerfError> {
        let Self { peer, sender, workload, told } = self;
        let mut near = Near { peer, sender: Pinger::new(sender), workload, told };
        let Near { peer, sender, told, .. } = &mut near;
        let measured = ping_pong::play(sender, config.limit, || Self::attend(peer, told));
        let measured = near.blame(&measured).and(measured);
        near.finish(|sender| sender.round_trips, measured)
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
        _: &RailNews,
    ) -> Result<Self, PerfError> {
        let stall_timeout = config.care.stall_timeout;
        let mut end = Self::new(workload, &config.p2p_builder(), domains, 1, stall_timeout)?;
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
    let near = Half::new(workload, &config.builder(), domains, 1)?;
    let hello = introduce(peer, workload, near.endpoint.address().into(), near.ring.remote())?;
    peer.carry_for(&near.endpoint);
    let reporter = Reporter { side: Side::Near, news: news.clone() };
    let end = near.toward(hello.buffer.clone(), config.care.stall_timeout, reporter)?;
    Ok((end, hello))
}

/// Asks the far end for a measurement, and returns its hello.
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
