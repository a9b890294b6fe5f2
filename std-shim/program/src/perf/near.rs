//! The near end of a measurement between two hosts: it asks, posts the requests, and counts.

use super::config::{Limit, PerfConfig};
use super::drive::PerfSender;
use super::ends::Half;
use super::error::{PerfError, requests_of};
use super::round::{Ends, Round};
use super::sampler::Sampler;
use crate::fault::Side;
use crate::job::{Control, Hello, Job, JobOutcome, Message, Workload};
use crate::session::{Counterpart, Patience, RailNews, Reporter, ServerAddress, SessionError};
use polyrail::backend::Domain;
use polyrail::virtual_qp::RailCounters;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How often a busy near end tells the far end that it is alive: the far end does not notice a READ or a
/// WRITE.
const ALIVE_EVERY: Duration = Duration::from_millis(200);

/// The near end, connected with the far one.
pub(super) struct Near<'a, D: Domain> {
    peer: Counterpart<'a>,
    sender: PerfSender<D>,
    workload: Workload,
    /// When the far end was last told.
    told: Instant,
}

impl<'a, D: Domain> Near<'a, D> {
    /// Connects with the far end at `server`.
    pub(super) fn reach(
        config: &PerfConfig,
        server: &ServerAddress,
        domains: &[D],
        news: &RailNews,
        interrupted: &'a AtomicBool,
    ) -> Result<Self, PerfError> {
        let domains: Vec<&D> = domains.iter().take(config.rails).collect();
        let patience = Patience { answer: config.answer_timeout, ..Patience::default() };
        let control = server.connect(&patience)?;
        Self::meet(config, control, &domains, news, interrupted)
    }

    /// Asks the far end for a measurement, and connects with it.
    fn meet(
        config: &PerfConfig,
        control: Control,
        domains: &[&D],
        news: &RailNews,
        interrupted: &'a AtomicBool,
    ) -> Result<Self, PerfError> {
        // During the measurement the far end sends no messages; silence is detected on the rails.
        let mut peer = Counterpart::new(control, None, interrupted);
        let met = meet(config, &mut peer, domains, news);
        let (sender, workload) = met.inspect_err(|error| peer.tell_failure(error))?;
        Ok(Self { peer, sender, workload, told: Instant::now() })
    }

    /// Compares with the far end, and parts.
    pub(super) fn finish<T>(mut self, measured: Result<T, PerfError>) -> Result<T, PerfError> {
        let result = measured.and_then(|measured| self.compare().map(|()| measured));
        self.peer.conclude(self.sender.endpoint(), result.as_ref().err());
        result
    }

    /// Checks that as many requests arrived as were sent, if the far end notices the operation.
    fn compare(&mut self) -> Result<(), PerfError> {
        let requests = self.sender.posted();
        self.peer.tell(&Message::Done(JobOutcome::Perf { requests }))?;
        let sent = if self.workload.operation.is_received() { requests } else { 0 };
        let received = requests_of(self.peer.expect_outcome()?)?;
        if received == sent { Ok(()) } else { Err(PerfError::Lost { sent, received }) }
    }
}

impl<D: Domain> Ends for Near<'_, D> {
    fn counters(&self) -> RailCounters {
        self.sender.counters()
    }

    fn rail_names(&self) -> Vec<String> {
        self.sender.rail_names()
    }

    fn sampler(&mut self) -> &mut Sampler {
        &mut self.sender.sampler
    }

    /// Runs until all requests are acknowledged.
    fn run(&mut self, limit: Limit) -> Result<Round, PerfError> {
        let Self { peer, sender, told, .. } = self;
        let round = sender.run(limit, |_| {
            if peer.poll_control_sparsely()? && told.elapsed() >= ALIVE_EVERY {
                *told = Instant::now();
                peer.tell(&Message::Alive {})?;
            }
            Ok(true)
        });
        // If the far end is gone, a rail may fail before its message is read.
        if let Err(PerfError::Session(SessionError::Endpoint(_))) = round {
            peer.poll_control()?;
        }
        round
    }
}

fn meet<D: Domain>(
    config: &PerfConfig,
    peer: &mut Counterpart<'_>,
    domains: &[&D],
    news: &RailNews,
) -> Result<(PerfSender<D>, Workload), PerfError> {
    let workload = config.workload()?;
    let near = Half::new(workload, &config.builder(), domains, 1)?;
    let endpoint = near.endpoint.address();
    let buffer = near.ring.remote();
    let purpose = Some(Job::Perf(workload));
    let session = peer.session();
    peer.tell(&Message::Hello(Hello { endpoint, buffer, purpose, session }))?;
    let hello = peer.expect_hello()?;
    if let Some(purpose) = &hello.purpose {
        return Err(SessionError::both_ask(purpose).into());
    }
    peer.carry_for(&near.endpoint);
    let reporter = Reporter { side: Side::Near, news: news.clone() };
    let stall_timeout = config.care.stall_timeout;
    let mut sender = PerfSender::new(near.toward(hello.buffer.clone(), stall_timeout, reporter)?);
    sender.bring_up(peer, &hello)?;
    Ok((sender, workload))
}
