//! A link that belongs to a peer, and the stage of its handshake.

use super::failure::link_failure;
use super::handle::{Connecting, Others, Unused, said};
use super::meeting::{Meeting, OurHello, OurLink, OurMessage as Message};
use super::notes::PROGRAM;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use polyrail::link::{Attempts, GaveUp, HexBytes, LinkError, Reach, Reason};
use std::time::Instant;

/// Why two endpoints were not connected.
pub(crate) struct NotConnected {
    pub(crate) failure: Failure,
    /// Whether the same call may succeed later: a port is down, or no path to the peer is found.
    pub(crate) may_pass: bool,
}

impl From<Failure> for NotConnected {
    fn from(failure: Failure) -> Self {
        Self { failure, may_pass: false }
    }
}

impl From<NotConnected> for Failure {
    fn from(NotConnected { failure, .. }: NotConnected) -> Self {
        failure
    }
}

/// The operations of a peer that its link calls.
pub(crate) trait Meets {
    /// Returns the address of this side's endpoint.
    fn reach(&mut self) -> Result<Reach, Failure>;

    /// Returns the positions of this side's devices in the order in which rails use them; empty if
    /// it is the order of the domain.
    fn devices(&self) -> &[u8];

    /// Connects to the peer's endpoint, whose rails use these `devices` of its domain, without
    /// waiting. Returns whether it is connected; repeated if not, and after a pause while the error
    /// may pass.
    fn connect(&mut self, theirs: &Reach, devices: &[u8]) -> Result<bool, NotConnected>;

    /// Returns the next message of this end's rails for the other end, if there is one.
    fn next_control(&mut self) -> Option<Message>;

    /// Handles a message of the other end's rails. `NotNow`: it cannot be handled now.
    fn hear(&mut self, message: &Message) -> Result<(), Refusal>;

    /// Handles that messages in both directions may be lost.
    fn control_lost(&mut self);
}

/// A stage of the handshake.
pub(super) enum Stage {
    /// This side connects.
    Connecting(Connecting),
    /// The link is taken out, or has ended.
    Over,
    /// This side connects or has connected, its hello is sent or held back, and it waits for the
    /// other side's. If a process other than the peer answers, other addresses may be the peer's.
    Greeted(OurLink, Box<Others>),
    /// This side has the other side's hello, and is not connected yet.
    Joining(Box<Joining>),
    /// This side is ready, and waits until the peer is. With the peer's hello.
    Ready(OurLink, Vec<u8>),
    /// Both sides are ready.
    Met(OurLink),
}

/// A side that is not connected yet.
pub(super) struct Joining {
    pub(super) control: OurLink,
    pub(super) theirs: OurHello,
    /// Whether the other side is ready.
    pub(super) peer_is_ready: bool,
    attempts: Attempts<NotConnected>,
}

impl Joining {
    fn new(control: OurLink, theirs: OurHello) -> Self {
        let attempts = Attempts::new(control.message_timeout());
        Self { control, theirs, peer_is_ready: false, attempts }
    }

    /// Continues to connect with the other side. Returns whether this side is connected; it then
    /// has sent that it is ready.
    pub(super) fn go_on(&mut self, peer: &mut dyn Meets) -> Result<bool, Failure> {
        let Self { control, theirs, attempts, .. } = self;
        let devices = theirs.purpose.as_ref().map_or(&[] as &[u8], |meeting| &meeting.devices);
        let connect = || peer.connect(&theirs.reach, devices);
        match attempts.step(connect, |error| error.may_pass) {
            Ok(true) => {
                let offered = control.offer(&Message::Ready {});
                offered.map_err(|error| link_failure(&error)).map(|()| true)
            }
            Ok(false) => Ok(false),
            Err(gave_up) => {
                let failure = match gave_up {
                    GaveUp::Failed(NotConnected { failure, .. }) => failure,
                    GaveUp::Searching(error) => Failure::of(Code::Device, &error),
                };
                // If the message cannot be sent, the peer notices that the link is closed.
                _ = control.offer(&Message::Failed { reason: Reason::new(&failure.words) });
                Err(failure)
            }
        }
    }

    /// Adds to the failure of the link why this side is not connected.
    pub(super) fn explain(&self, Failure { code, words }: Failure) -> Failure {
        let why = match self.attempts.failure() {
            Some(error) => format!("this side was not connected: {}", error.failure.words),
            None => "this side was still being connected".to_owned(),
        };
        Failure { code, words: format!("{words}; {why}") }
    }
}

/// A link that belongs to a peer.
pub(crate) struct PeerLink {
    pub(super) stage: Stage,
    /// The program's part of this side's hello.
    pub(super) hello: Vec<u8>,
    pub(super) since: Instant,
    /// A message of the other end that could not be handled yet.
    pub(super) unhandled: Option<Message>,
}

impl PeerLink {
    /// Begins to meet. An accepted link has the other side's hello already.
    pub(crate) fn begin(link: Unused, hello: &[u8], peer: &mut dyn Meets) -> Result<Self, Failure> {
        let since = Instant::now();
        let hello = hello.to_vec();
        let stage = match link {
            Unused::Connecting(connecting) => Stage::Connecting(connecting),
            Unused::Accepted(accepted) => {
                let (mut control, theirs, _) = *accepted;
                greet(&mut control, &hello, peer)?;
                join(control, theirs, peer)?
            }
        };
        Ok(Self { stage, hello, since, unhandled: None })
    }

    /// Returns whether both sides are ready.
    pub(crate) const fn has_met(&self) -> bool {
        matches!(self.stage, Stage::Met(_))
    }

    /// Returns whether this side has the other side's hello, and is not connected yet.
    #[cfg(test)]
    pub(crate) const fn is_joining(&self) -> bool {
        matches!(self.stage, Stage::Joining(_))
    }

    /// Sends a message if the handshake is done and there is room; returns whether it was sent.
    fn say(&mut self, message: &Message) -> Result<bool, LinkError> {
        let Stage::Met(control) = &mut self.stage else { return Ok(false) };
        if control.is_broken() || !control.go_on_sending() {
            return Ok(false);
        }
        control.offer(message)?;
        Ok(true)
    }

    /// Ends the link: sends the peer a last message.
    pub(crate) fn end(mut self) {
        let last = match self.stage {
            Stage::Met(_) => Message::Done(polyrail::link::NoOutcome {}),
            _ => Message::Failed { reason: Reason::new("the peer was removed") },
        };
        let control = match &mut self.stage {
            Stage::Greeted(control, _) | Stage::Ready(control, _) | Stage::Met(control) => control,
            Stage::Joining(joining) => &mut joining.control,
            Stage::Connecting(_) | Stage::Over => return,
        };
        // If the message cannot be sent, the peer notices that the link is closed.
        _ = control.offer(&last);
    }
}

/// Sends a note to the program at the other end of a peer's link.
pub(crate) fn say(link: &mut Option<PeerLink>, said: &[u8]) -> Result<(), Refusal> {
    let Some(link) = link else {
        return refuse(Code::State, "the peer has no link, or its link has ended");
    };
    let note = Message::Note { bytes: HexBytes([&[PROGRAM], said].concat()) };
    match link.say(&note).map_err(|error| link_failure(&error))? {
        true => Ok(()),
        false => Err(Refusal::NotNow),
    }
}

/// Sends this side's hello.
pub(super) fn greet(
    control: &mut OurLink,
    hello: &[u8],
    peer: &mut dyn Meets,
) -> Result<(), Failure> {
    let devices = peer.devices().to_vec();
    let purpose = Meeting { hello: HexBytes(hello.to_vec()), devices };
    let session = control.session();
    let hello = OurHello::without_memory(peer.reach()?, Some(purpose), session);
    control.offer(&Message::Hello(hello)).map_err(|error| link_failure(&error))
}

/// Begins to connect with the other side, whose hello has come.
pub(super) fn join(
    control: OurLink,
    theirs: OurHello,
    peer: &mut dyn Meets,
) -> Result<Stage, Failure> {
    let mut joining = Joining::new(control, theirs);
    Ok(match joining.go_on(peer)? {
        true => Stage::Ready(joining.control, said(&joining.theirs).to_vec()),
        false => Stage::Joining(Box::new(joining)),
    })
}
