//! Drives a link: connects it and exchanges messages, in steps that never wait.

use super::failure::link_failure;
use super::handle::{Connecting, said};
use super::meeting::{OurLink, OurMessage as Message};
use super::notes::PROGRAM;
use super::peer::{Joining, Meets, PeerLink, Stage, greet, join};
use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::events::{EventQueue, PeerEvent};
use crate::types::{EventKind, POLYRAIL_MESSAGE_BYTES};
use polyrail::link::LinkError;
use std::net::SocketAddr;
use std::time::Instant;

/// Drives a link as far as possible without waiting. Sets `link` to `None` if the link ended.
pub(crate) fn drive(
    link: &mut Option<PeerLink>,
    (number, peer): (u64, &mut dyn Meets),
    events: &mut EventQueue,
) {
    let Some(mut driven) = link.take() else { return };
    match driven.go_on(number, peer, events) {
        Ok(()) => *link = Some(driven),
        Err(Failure { code, words }) => {
            // It may have met just now.
            let kind = if driven.has_met() { EventKind::LinkLost } else { EventKind::NotConnected };
            events.push(number, PeerEvent::failed(kind, code, words));
        }
    }
}

/// The result of a step.
enum Step {
    /// The stage is unchanged: the next event has not happened.
    Stays(Stage),
    /// The next stage.
    Goes(Stage),
}

impl PeerLink {
    fn go_on(
        &mut self,
        number: u64,
        peer: &mut dyn Meets,
        events: &mut EventQueue,
    ) -> Result<(), Failure> {
        loop {
            if let Stage::Met(control) = &mut self.stage {
                return carry(control, &mut self.unhandled, number, peer, events);
            }
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            match self.step(stage, number, peer, events)? {
                Step::Goes(stage) => {
                    self.stage = stage;
                    self.since = Instant::now();
                }
                Step::Stays(stage) => {
                    self.stage = stage;
                    return self.check_time();
                }
            }
        }
    }

    fn step(
        &self,
        stage: Stage,
        number: u64,
        peer: &mut dyn Meets,
        events: &mut EventQueue,
    ) -> Result<Step, Failure> {
        match stage {
            Stage::Connecting(connecting) => match connecting.step() {
                Connecting::Begun(mut link, others) => {
                    // The link holds the hello back until both sides have proved their token.
                    greet(&mut link, &self.hello, peer)?;
                    Ok(Step::Goes(Stage::Greeted(*link, others)))
                }
                Connecting::Failed(failure) => Err(failure),
                waiting => Ok(Step::Stays(Stage::Connecting(waiting))),
            },
            Stage::Greeted(mut control, mut others) => match next(&mut control) {
                Ok(None) => {
                    others.add_found(&mut control);
                    let Some(waited) = others.silence(&control) else {
                        return Ok(Step::Stays(Stage::Greeted(control, others)));
                    };
                    let failure = link_failure(&control.no_answer("an answer", waited));
                    try_next(control, |answered| others.after_silence(answered, failure))
                }
                Ok(Some(Message::Hello(theirs))) => Ok(Step::Goes(join(control, theirs, peer)?)),
                Ok(Some(other)) => Err(out_of_turn(&other, "\"hello\"")),
                Err(failure) => try_next(control, |answered| others.next(answered, failure)),
            },
            Stage::Joining(joining) => Self::join(joining, number, peer, events),
            Stage::Ready(mut control, theirs) => match next(&mut control)? {
                None => Ok(Step::Stays(Stage::Ready(control, theirs))),
                Some(Message::Ready {}) => Ok(met(control, theirs, number, events)),
                // Nothing was sent that a reconnected link could have lost. The stage stays, and
                // its time goes on: a peer could break its link without end.
                Some(Message::Resumed {}) => Ok(Step::Stays(Stage::Ready(control, theirs))),
                Some(other) => Err(out_of_turn(&other, "\"ready\"")),
            },
            stage @ (Stage::Met(_) | Stage::Over) => Ok(Step::Stays(stage)),
        }
    }

    /// Continues to connect, until the time of the meeting is up.
    fn join(
        mut joining: Box<Joining>,
        number: u64,
        peer: &mut dyn Meets,
        events: &mut EventQueue,
    ) -> Result<Step, Failure> {
        if joining.go_on(peer)? {
            let Joining { control, theirs, peer_is_ready, .. } = *joining;
            let said = said(&theirs).to_vec();
            return Ok(match peer_is_ready {
                true => met(control, said, number, events),
                false => Step::Goes(Stage::Ready(control, said)),
            });
        }
        // The other side may fail in the meantime.
        match next(&mut joining.control) {
            Ok(None | Some(Message::Resumed {})) => {}
            Ok(Some(Message::Ready {})) => joining.peer_is_ready = true,
            Ok(Some(other)) => return Err(out_of_turn(&other, "\"ready\"")),
            Err(failure) => return Err(joining.explain(failure)),
        }
        Ok(Step::Stays(Stage::Joining(joining)))
    }

    /// Limits the time of a meeting, from when the link is open. Opening has separate limits.
    fn check_time(&mut self) -> Result<(), Failure> {
        let (control, expected) = match &self.stage {
            Stage::Greeted(control, _) => (control, "\"hello\""),
            Stage::Ready(control, _) => (control, "\"ready\""),
            // A side that is not connected in time reports why.
            Stage::Joining(_) | Stage::Connecting(_) | Stage::Met(_) | Stage::Over => return Ok(()),
        };
        if !control.is_open() {
            self.since = Instant::now();
            return Ok(());
        }
        let timeout = control.message_timeout();
        match control.time_left(self.since, timeout).is_zero() {
            true => Err(link_failure(&control.no_answer(expected, timeout))),
            false => Ok(()),
        }
    }
}

/// Tries the other addresses, because the listener that answered is not the peer.
fn try_next(
    control: OurLink,
    next: impl FnOnce(Option<SocketAddr>) -> Result<Connecting, Failure>,
) -> Result<Step, Failure> {
    let answered = control.peer_addr();
    // The next attempt may need its descriptor.
    drop(control);
    Ok(Step::Goes(Stage::Connecting(next(answered)?)))
}

/// Reports that both sides are ready, with the other side's hello.
fn met(control: OurLink, hello: Vec<u8>, number: u64, events: &mut EventQueue) -> Step {
    events.push(number, PeerEvent::new(EventKind::Connected, hello));
    Step::Goes(Stage::Met(control))
}

fn out_of_turn(message: &Message, expected: &'static str) -> Failure {
    link_failure(&LinkError::Handshake(message.out_of_turn(expected)))
}

/// Checks the length of a message of the peer's program: the link itself takes longer ones.
fn of_program(bytes: &[u8]) -> Result<&[u8], Failure> {
    let length = bytes.len();
    if length <= POLYRAIL_MESSAGE_BYTES {
        return Ok(bytes);
    }
    let words = format!(
        "the peer sent a message of {length} bytes, but the limit is {POLYRAIL_MESSAGE_BYTES}"
    );
    Err(Failure::new(Code::Link, words))
}

/// Returns the peer's next message, if one has arrived. A message that the peer failed is an error.
fn next(control: &mut OurLink) -> Result<Option<Message>, Failure> {
    match control.try_recv() {
        Ok(Some(Message::Failed { reason })) => Err(link_failure(&LinkError::GaveUp { reason })),
        Ok(message) => Ok(message),
        Err(error) => Err(link_failure(&error)),
    }
}

/// Messages that are taken from the peer in one call: a peer that floods the link must not keep
/// other links waiting.
const AT_ONCE: usize = 64;

/// Carries messages of rails and programs in both directions.
fn carry(
    control: &mut OurLink,
    unhandled: &mut Option<Message>,
    number: u64,
    peer: &mut dyn Meets,
    events: &mut EventQueue,
) -> Result<(), Failure> {
    for _ in 0..AT_ONCE {
        if !events.has_room(number) {
            break;
        }
        let message = match unhandled.take() {
            Some(message) => message,
            None => match next(control)? {
                Some(message) => message,
                None => break,
            },
        };
        match peer.hear(&message) {
            Ok(()) => {}
            // Only what follows resumes or ends the link, and once the link is resumed, the peer
            // repeats what counts.
            Err(Refusal::NotNow) if control.is_broken() => continue,
            Err(Refusal::NotNow) => {
                *unhandled = Some(message);
                break;
            }
            Err(Refusal::Failure(failure)) => return Err(failure),
        }
        match message {
            Message::Note { bytes } if bytes.0.first() == Some(&PROGRAM) => {
                events.push(number, PeerEvent::new(EventKind::Message, of_program(&bytes.0[1..])?));
            }
            Message::Resumed {} => {
                peer.control_lost();
                events.push(number, PeerEvent::new(EventKind::LinkResumed, []));
            }
            Message::Done(_) => {
                return Err(Failure::new(Code::Link, "the peer closed the link"));
            }
            _ => {}
        }
    }
    while !control.is_broken() && control.go_on_sending() {
        let Some(message) = peer.next_control() else { break };
        control.offer(&message).map_err(|error| link_failure(&error))?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod rt_tests;
