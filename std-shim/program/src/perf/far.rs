//! The far end of a measurement between two hosts: it is asked, posts the receives, and reports what
//! arrived.

use super::drive::{Eager, PerfReceiver};
use super::ends::{self, Half};
use super::error::{PerfError, requests_of};
use crate::job::{Hello, JobOutcome, Message, Operation, Shape, Workload};
use crate::session::{Counterpart, Environment, RailNews};
use crate::visit::Visit;
use polyrail::backend::Domain;
use polyrail::endpoint::Address;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Longest time between polls while requests pass by unnoticed. Polling more often would take processor time
/// from the measurement.
const PATIENCE: Duration = Duration::from_millis(10);

/// How long requests that the near end saw acknowledged may be missing: their completions are here already,
/// or will never come.
const LATE: Duration = Duration::from_secs(2);

/// A measurement that was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub operation: Operation,
    /// How requests were sent.
    pub shape: Shape,
    /// Requests that the near end counted, its warm-up included. As many arrived here, if the operation is
    /// [received](super::Operation::is_received).
    pub requests: u64,
    /// Time from the hello to the end, in seconds.
    pub seconds: f64,
}

/// Serves the measurement that a visitor has asked for, as its far end.
///
/// # Errors
///
/// See [`PerfError`]; the near end learns of it.
pub(crate) fn answer<D: Domain>(
    visit: Visit<'_, D>,
    workload: Workload,
    news: &RailNews,
    interrupted: &AtomicBool,
) -> Result<Measured, PerfError> {
    let begin = Instant::now();
    let hello = visit.hello;
    let Address { scheme, max_msg_size, .. } = hello.endpoint;
    let rails = hello.endpoint.rails.len();
    let builder = ends::builder(workload.operation, rails, scheme, max_msg_size);
    let builder = visit.care().chosen(builder, rails);
    let environment = visit.environment(&builder, news, interrupted);
    let allowed = visit.allow(workload.ring_bytes());
    let mut peer = Counterpart::new(visit.control, environment.patience, interrupted);
    let met = allowed
        .map_err(PerfError::from)
        .and_then(|()| meet(workload, &environment, &mut peer, hello));
    peer.awaits("the near end's requests, or its message that it is done");
    let mut receiver = met.inspect_err(|error| peer.tell_failure(error))?;
    let result = follow(&mut receiver, &mut peer, workload).map_err(|failure| match failure {
        PerfError::Session(error) => peer.defer(error).into(),
        failure => failure,
    });
    peer.conclude(receiver.endpoint(), result.as_ref().err());
    let shape = Shape {
        scheme: workload.operation.scheme_of(scheme, rails),
        rails,
        devices: environment.domains.len(),
        max_msg_size,
        message_size: workload.message_size.into(),
        window: workload.window.into(),
    };
    Ok(Measured {
        operation: workload.operation,
        shape,
        requests: result?,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

fn meet<D: Domain>(
    workload: Workload,
    environment: &Environment<'_, D>,
    peer: &mut Counterpart<'_>,
    hello: &Hello,
) -> Result<PerfReceiver<D>, PerfError> {
    let far = Half::new(workload, environment.builder, &environment.domains, 2)?;
    let endpoint = far.endpoint.address();
    let buffer = far.ring.remote();
    let session = peer.session();
    peer.tell(&Message::Hello(Hello { endpoint, buffer, purpose: None, session }))?;
    peer.carry_for(&far.endpoint);
    let Environment { stall_timeout, reporter, .. } = environment;
    let mut receiver =
        PerfReceiver::new(far.toward(hello.buffer.clone(), *stall_timeout, reporter.clone())?);
    receiver.bring_up(peer, hello)?;
    Ok(receiver)
}

/// Receives until the near end is done, and returns how many requests that counted.
fn follow<D: Domain>(
    receiver: &mut PerfReceiver<D>,
    peer: &mut Counterpart<'_>,
    workload: Workload,
) -> Result<u64, PerfError> {
    let sent = if workload.operation.is_received() {
        receive(receiver, peer)?
    } else {
        loop {
            if let Some(outcome) = peer.outcome() {
                break requests_of(outcome)?;
            }
            // Of what it does not notice, the rails may fail all the same.
            receiver.poll()?;
            peer.listen(PATIENCE)?;
        }
    };
    peer.tell(&Message::Done(JobOutcome::Perf { requests: receiver.received() }))?;
    Ok(sent)
}

/// Receives requests until all have arrived.
fn receive<D: Domain>(
    receiver: &mut PerfReceiver<D>,
    peer: &mut Counterpart<'_>,
) -> Result<u64, PerfError> {
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
