//! The far end of a measurement between two hosts: it accepts a measurement, receives or answers
//! requests, and reports their number.

use super::both_ways::Endless;
use super::drive::{Eager, Flush, LATE, Receiver, Sender};
use super::ends::{self, End, Half};
use super::error::{PerfError, requests_of};
use super::messages::MessageEnd;
use super::ping_pong::{Player, Ponger};
use super::requests::{RequestPlayer, RequestReceiver, RequestSender};
use crate::fault::Side;
use crate::job::{Back, Hello, JobOutcome, Message, Operation, Shape, Workload};
use crate::session::{Counterpart, RailNews, Reporter, SessionError};
use crate::visit::Visit;
use polyrail::backend::Domain;
use polyrail::endpoint::{Address, EndpointBuilder};
use polyrail::link::Reach;
use polyrail::memory::RemoteBuffer;
use polyrail::p2p::P2pBuilder;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Longest time between polls during operations that the receiver does not notice. Polling more
/// often would take processor time from the measurement.
const MAX_PAUSE: Duration = Duration::from_millis(10);

/// A measurement that was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The measured operation.
    pub operation: Operation,
    /// The scheme and rails of the endpoints.
    pub shape: Shape,
    /// Requests that the near end counted, including its warm-up. The same number arrived here, if
    /// the operation is [received](super::Operation::is_received).
    pub requests: u64,
    /// Time from the hello to the end, in seconds.
    pub seconds: f64,
}

/// The kind of measurement that the near end requested.
enum Kind {
    Requests(EndpointBuilder),
    Messages(P2pBuilder),
}

/// Everything that an end is made from.
struct Stage<'a, D> {
    workload: Workload,
    domains: Vec<&'a D>,
    hello: &'a Hello,
    stall_timeout: Duration,
    reporter: Reporter,
}

/// Serves a measurement that a visitor requested, as its far end.
///
/// # Errors
///
/// See [`PerfError`]. The near end receives the error.
pub(crate) fn answer<D: Domain>(
    visit: Visit<'_, D>,
    workload: Workload,
    news: &RailNews,
    interrupted: &AtomicBool,
) -> Result<Measured, PerfError> {
    let begin = Instant::now();
    let stage = Stage {
        workload,
        domains: visit.domains(),
        hello: visit.hello,
        stall_timeout: visit.options.rail_repair.stall_timeout,
        reporter: Reporter { side: Side::Far, news: news.clone() },
    };
    let asked = visit.allow(workload.ring_bytes()).and_then(|()| asked(&visit, workload));
    let mut peer = Counterpart::new(visit.control, Some(visit.options.timeouts), interrupted);
    let (kind, shape) = asked.inspect_err(|error| peer.tell_failure(error))?;
    let requests = stage.serve(kind, &mut peer)?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Measured { operation: workload.operation, shape, requests, seconds })
}

fn asked<D: Domain>(
    visit: &Visit<'_, D>,
    workload: Workload,
) -> Result<(Kind, Shape), SessionError> {
    let shape = |scheme, rails, max_msg_size| Shape {
        scheme,
        rails,
        devices: visit.domains().len(),
        max_msg_size,
        message_size: workload.message_size.into(),
        window: workload.window.into(),
    };
    if workload.operation == Operation::P2p {
        let one_way = || SessionError::other_kind("messages that it does not send", "its messages");
        let ports = &visit.messages()?.sender.as_ref().ok_or_else(one_way)?.ports;
        let rails = usize::from(ports.rails);
        let builder = ends::p2p_builder(&workload, rails, ends::connect_options())
            .rail_weights(visit.options.rail_weights);
        return Ok((Kind::Messages(builder), shape(None, rails, ports.max_message[0])));
    }
    let endpoint = visit.requests()?;
    let Address { scheme, max_msg_size, .. } = *endpoint;
    let rails = endpoint.rails.len();
    let builder = ends::builder(&workload, rails, scheme, max_msg_size)
        .rail_weights(visit.options.rail_weights);
    let kind = Kind::Requests(visit.rail_repair(endpoint).chosen(builder, rails));
    Ok((kind, shape(workload.operation.scheme_of(scheme, rails), rails, max_msg_size)))
}

impl<D: Domain> Stage<'_, D> {
    /// Connects with the near end, and runs the measurement. Returns how many requests the near end
    /// counted.
    fn serve(&self, kind: Kind, peer: &mut Counterpart<'_>) -> Result<u64, PerfError> {
        match kind {
            Kind::Requests(builder) if self.workload.answered => {
                let player = self.meet(&builder, peer).and_then(|end| {
                    let mut player = RequestPlayer::new(end);
                    player.bring_up(peer, self.hello)?;
                    Ok(Ponger::new(player))
                });
                attend(player, peer, reply)
            }
            Kind::Requests(builder) if self.workload.bidirectional => {
                let sender = self.meet(&builder, peer).and_then(|end| {
                    let mut sender = RequestSender::new(end);
                    sender.bring_up(peer, self.hello)?;
                    Ok(sender)
                });
                attend(sender, peer, |sender, peer| send_back(sender, peer, self.workload))
            }
            Kind::Requests(builder) => {
                let receiver = self.meet(&builder, peer).and_then(|end| {
                    let mut receiver = RequestReceiver::new(end);
                    receiver.bring_up(peer, self.hello)?;
                    Ok(receiver)
                });
                attend(receiver, peer, |receiver, peer| follow(receiver, peer, self.workload))
            }
            Kind::Messages(builder) if self.workload.answered => {
                let player = self.meet_for_messages(&builder, peer).map(Ponger::new);
                attend(player, peer, reply)
            }
            Kind::Messages(builder) if self.workload.bidirectional => {
                let sender = self.meet_for_messages(&builder, peer);
                attend(sender, peer, |sender, peer| send_back(sender, peer, self.workload))
            }
            Kind::Messages(builder) => {
                let receiver = self.meet_for_messages(&builder, peer);
                attend(receiver, peer, |receiver, peer| follow(receiver, peer, self.workload))
            }
        }
    }

    fn meet(
        &self,
        builder: &EndpointBuilder,
        peer: &mut Counterpart<'_>,
    ) -> Result<End<D>, PerfError> {
        let far = Half::new(self.workload, builder, &self.domains, 2)?;
        introduce(peer, far.endpoint.address().into(), far.ring.remote())?;
        peer.carry_for(&far.endpoint);
        let buffer = self.hello.buffer.clone();
        Ok(far.toward(buffer, self.stall_timeout, self.reporter.clone())?)
    }

    fn meet_for_messages(
        &self,
        builder: &P2pBuilder,
        peer: &mut Counterpart<'_>,
    ) -> Result<MessageEnd<D>, PerfError> {
        let Self { workload, stall_timeout, .. } = *self;
        let mut far = MessageEnd::new(workload, builder, &self.domains, 2, stall_timeout)?;
        far.count(&self.reporter.news);
        introduce(peer, far.endpoint.address().into(), far.ring.remote())?;
        far.bring_up(peer, self.hello)?;
        Ok(far)
    }
}

/// Answers the near end's hello.
fn introduce(
    peer: &mut Counterpart<'_>,
    reach: Reach,
    buffer: RemoteBuffer,
) -> Result<(), SessionError> {
    let session = peer.session();
    peer.tell(&Message::Hello(Hello { reach, buffer, purpose: None, session }))
}

/// Runs the measurement, and closes the session.
fn attend<'a, F: Flush>(
    met: Result<F, PerfError>,
    peer: &mut Counterpart<'a>,
    follow: impl FnOnce(&mut F, &mut Counterpart<'a>) -> Result<u64, PerfError>,
) -> Result<u64, PerfError> {
    peer.awaits("the near end's requests, or its message that it is done");
    let mut far = met.inspect_err(|error| peer.tell_failure(error))?;
    let result = follow(&mut far, peer).map_err(|failure| match failure {
        PerfError::Session(error) => peer.defer(error).into(),
        failure => failure,
    });
    peer.conclude(|timeout| far.flush(timeout), result.as_ref().err());
    result
}

/// Receives until the near end is done. Returns how many requests the near end counted.
fn follow(
    receiver: &mut impl Receiver,
    peer: &mut Counterpart<'_>,
    workload: Workload,
) -> Result<u64, PerfError> {
    let sent = if workload.is_noticed() {
        receive(receiver, peer)?
    } else {
        loop {
            if let Some(outcome) = peer.outcome() {
                break requests_of(outcome)?;
            }
            // Rails may also fail during operations that the receiver does not notice.
            receiver.poll()?;
            peer.listen(MAX_PAUSE)?;
        }
    };
    let requests = receiver.received();
    peer.report(JobOutcome::Perf { requests, back: None })?;
    Ok(sent)
}

/// Answers until the near end is done, which by then has received every answer.
fn reply<P: Player>(far: &mut Ponger<P>, peer: &mut Counterpart<'_>) -> Result<u64, PerfError> {
    let mut idle = Eager::default();
    peer.poll_seldom();
    let sent = loop {
        let busy = far.answer()?;
        if busy {
            peer.moved();
        }
        idle.note(busy);
        peer.poll_control_sparsely()?;
        if let Some(outcome) = peer.outcome() {
            break requests_of(outcome)?;
        }
    };
    let received = far.answered;
    if received != sent {
        return Err(PerfError::Lost { sent, received });
    }
    peer.report(JobOutcome::Perf { requests: received, back: None })?;
    Ok(sent)
}

/// Sends and receives until the near end is done. Returns how many requests the near end counted.
fn send_back(
    sender: &mut impl Sender,
    peer: &mut Counterpart<'_>,
    workload: Workload,
) -> Result<u64, PerfError> {
    let begin = Instant::now();
    let mut endless = Endless::default();
    let sent = loop {
        let busy = endless.round(sender)?;
        if busy {
            peer.moved();
        }
        endless.idle.note(busy);
        peer.poll_control_sparsely()?;
        if let Some(outcome) = peer.outcome() {
            break requests_of(outcome)?;
        }
    };
    let completed = sender.completed();
    let nanoseconds = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
    let mut complete_since = None;
    loop {
        if sender.poll()? {
            peer.moved();
        }
        sender.check_progress()?;
        // Rails that fail now need the repair messages of the near end.
        peer.poll_control_sparsely()?;
        if sender.completed() < sender.posted() {
            continue;
        }
        let received = sender.arrived();
        if received == sent || !workload.is_noticed() {
            break;
        }
        let since = complete_since.get_or_insert_with(Instant::now);
        if received > sent || since.elapsed() >= LATE {
            return Err(PerfError::Lost { sent, received });
        }
    }
    let back = Some(Back { posted: sender.posted(), completed, nanoseconds });
    let requests = sender.arrived();
    peer.report(JobOutcome::Perf { requests, back })?;
    Ok(sent)
}

/// Receives requests until all have arrived.
fn receive(receiver: &mut impl Receiver, peer: &mut Counterpart<'_>) -> Result<u64, PerfError> {
    let mut idle = Eager::default();
    let mut missing_since = None;
    loop {
        let arrived = receiver.poll()?;
        if arrived {
            peer.moved();
        }
        idle.note(arrived);
        peer.poll_control_sparsely()?;
        let Some(outcome) = peer.outcome() else { continue };
        let sent = requests_of(outcome)?;
        let received = receiver.received();
        if received == sent {
            return Ok(sent);
        }
        let since = missing_since.get_or_insert_with(Instant::now);
        if received > sent || since.elapsed() >= LATE {
            return Err(PerfError::Lost { sent, received });
        }
    }
}
