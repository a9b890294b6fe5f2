//! The end that connects, which is the sender.

use super::call::{Call, Hello, Link, Message};
use super::handle::Handle;
use super::site::{Joining, Met, NotMade, Site, give_up, session};
use super::terms::Terms;
use crate::guard::{Code, Refusal};
use crate::rails::Wire;
use polyrail::chain::Chain;
use polyrail::link::{LinkError, Token};
use polyrail::p2p::End;
use std::time::Instant;

/// An attempt to connect.
pub(crate) struct Attempt {
    site: Site,
    handle: Handle,
    terms: Terms,
    since: Instant,
    /// When the peer answered, perhaps late: it then has as much time as it had for the answer.
    answered: Option<Instant>,
    stage: Stage,
}

/// The stage of an attempt. A step takes the stage out; if the step fails, the attempt is over.
enum Stage {
    /// The link is not being opened yet. With the reason, if this host lacked something for it,
    /// such as a file descriptor: then the next step tries again.
    Opening(Option<LinkError>),
    /// The link is being opened, or is open. With the reason, if this host had no file descriptor
    /// for this end: then the next step tries again.
    Reaching(Box<Link>, Option<Refusal>),
    /// This end has sent its hello, and waits for the peer's.
    Greeting(Box<Link>, Box<dyn Wire>),
    /// This end is being connected. With whether the peer's is connected already.
    Joining(Box<Link>, Box<Joining>, bool),
    /// This end is connected, and waits until the peer's is.
    Ready(Box<Link>, Box<dyn Wire>),
    /// The attempt failed, or has succeeded.
    Over,
}

/// The result of a step.
enum Step {
    Goes(Stage),
    Stays(Stage),
    Met(Met),
}

impl Attempt {
    /// Starts an attempt.
    pub(crate) fn new(site: Site, handle: Handle) -> Result<Self, Refusal> {
        site.check_backend(handle.backend, handle.process)?;
        let terms = Terms::between(&site.settings, site.device.nics.count(), &handle)?;
        let (since, stage) = (Instant::now(), Stage::Opening(None));
        Ok(Self { site, handle, terms, since, answered: None, stage })
    }

    /// Returns whether the attempt took too long.
    pub(crate) fn is_late(&self) -> bool {
        self.answered.unwrap_or(self.since).elapsed() > self.site.settings.connect_timeout
    }

    /// Continues the attempt as far as possible without waiting. Returns the connected end, once
    /// there is one.
    pub(crate) fn step(&mut self) -> Result<Option<Met>, Refusal> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            let step = match stage {
                Stage::Opening(_) => self.open(),
                Stage::Reaching(link, lack) => self.reach(link, lack),
                Stage::Greeting(link, wire) => self.greet(link, wire),
                Stage::Joining(link, joining, peer_is_ready) => {
                    self.join(link, joining, peer_is_ready)
                }
                Stage::Ready(link, wire) => self.wait(link, wire),
                Stage::Over => Err(Refusal::new(Code::Internal, "this attempt to connect is over")),
            };
            match step? {
                Step::Goes(stage) => {
                    if matches!(stage, Stage::Joining(..)) {
                        self.answered = Some(Instant::now());
                    }
                    self.stage = stage;
                }
                Step::Met(met) => return Ok(Some(met)),
                // An end that cannot be connected in time reports why.
                Step::Stays(stage) if !matches!(stage, Stage::Joining(..)) && self.is_late() => {
                    return Err(self.late(stage));
                }
                Step::Stays(stage) => {
                    self.stage = stage;
                    return Ok(None);
                }
            }
        }
    }

    fn late(&self, stage: Stage) -> Refusal {
        match stage {
            Stage::Opening(Some(error)) => return self.broken(&error),
            Stage::Reaching(_, Some(refusal)) => return refusal,
            _ => {}
        }
        let timeout = self.site.settings.connect_timeout;
        let words = format!("the peer at {} did not answer for {timeout:?}", self.handle.address);
        Refusal::new(Code::Remote, words)
    }

    fn broken(&self, error: &LinkError) -> Refusal {
        let address = self.handle.address;
        let words = match error {
            LinkError::GaveUp { reason } | LinkError::TokenRefused { reason } => {
                format!("the peer at {address} refused: {reason}")
            }
            LinkError::Connect { .. } => Chain(error).to_string(),
            _ => format!("the link to the peer at {address}: {}", Chain(error)),
        };
        let code = if error.lacks_resources() { Code::System } else { Code::Remote };
        Refusal::new(code, words)
    }

    /// Returns the next message, if one has arrived.
    fn next(&self, link: &mut Link) -> Result<Option<Message>, Refusal> {
        match link.try_recv() {
            Ok(Some(Message::Failed { reason })) => Err(self.broken(&LinkError::GaveUp { reason })),
            Ok(message) => Ok(message),
            Err(error) => Err(self.broken(&error)),
        }
    }

    fn out_of_turn(&self, message: &Message, expected: &'static str) -> Refusal {
        self.broken(&message.out_of_turn(expected).into())
    }

    /// Begins to open the link.
    fn open(&self) -> Result<Step, Refusal> {
        let token = Token::new(self.handle.token);
        let token = token.map_err(|error| Refusal::new(Code::Internal, Chain(&error)))?;
        match Link::begin(&[self.handle.address], &self.site.timeouts(), Some(&token)) {
            Ok(link) => Ok(Step::Goes(Stage::Reaching(link.into(), None))),
            Err(error) if error.lacks_resources() => Ok(Step::Stays(Stage::Opening(Some(error)))),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Sends this end's hello, once the link is open.
    fn reach(&self, mut link: Box<Link>, lack: Option<Refusal>) -> Result<Step, Refusal> {
        match (self.next(&mut link), lack) {
            (Ok(None), _) => {}
            (Ok(Some(message)), _) => return Err(self.out_of_turn(&message, "nothing")),
            (Err(refusal), None) => return Err(refusal),
            // The peer may have waited too long for this side.
            (Err(refusal), Some(lack)) => {
                let words = format!("{}; then {}", lack.words, refusal.words);
                return Err(Refusal::new(lack.code, words));
            }
        }
        if !link.is_open() {
            return Ok(Step::Stays(Stage::Reaching(link, None)));
        }
        let wire = match self.site.wire(self.terms, End::Sender, None) {
            Ok(wire) => wire,
            Err(NotMade { refusal, lacks_descriptor: true }) => {
                return Ok(Step::Stays(Stage::Reaching(link, Some(refusal))));
            }
            Err(NotMade { refusal, .. }) => return Err(refusal),
        };
        let call = Call {
            listener: self.handle.listener,
            process: self.site.process,
            backend: self.site.settings.backend,
            terms: self.terms,
        };
        let hello = Hello::without_memory(wire.address().into(), Some(call), session(&link)?);
        let offered = link.offer(&Message::Hello(hello));
        offered.map_err(|error| self.broken(&error))?;
        Ok(Step::Goes(Stage::Greeting(link, wire)))
    }

    /// Starts to connect this end, once the peer's hello has arrived.
    fn greet(&self, mut link: Box<Link>, wire: Box<dyn Wire>) -> Result<Step, Refusal> {
        let hello = match self.next(&mut link)? {
            None => return Ok(Step::Stays(Stage::Greeting(link, wire))),
            Some(Message::Hello(hello)) => hello,
            Some(message) => return Err(self.out_of_turn(&message, "\"hello\"")),
        };
        let limit = self.site.settings.connect_timeout;
        match Joining::new(wire, &hello.reach, limit) {
            Ok(joining) => Ok(Step::Goes(Stage::Joining(link, joining.into(), false))),
            Err(refusal) => Err(give_up(&mut link, refusal)),
        }
    }

    /// Connects this end, and sends that it is connected.
    fn join(
        &self,
        mut link: Box<Link>,
        mut joining: Box<Joining>,
        mut peer_is_ready: bool,
    ) -> Result<Step, Refusal> {
        match joining.step() {
            Ok(true) => {
                link.offer(&Message::Ready {}).map_err(|error| self.broken(&error))?;
                let wire = joining.wire;
                if peer_is_ready {
                    return Ok(Step::Met(self.met(link, wire)));
                }
                return Ok(Step::Goes(Stage::Ready(link, wire)));
            }
            Ok(false) => {}
            Err(refusal) => return Err(give_up(&mut link, refusal)),
        }
        // The peer may fail in the meantime.
        match self.next(&mut link)? {
            None | Some(Message::Resumed {}) => {}
            Some(Message::Ready {}) => peer_is_ready = true,
            Some(message) => return Err(self.out_of_turn(&message, "\"ready\"")),
        }
        Ok(Step::Stays(Stage::Joining(link, joining, peer_is_ready)))
    }

    fn met(&self, link: Box<Link>, wire: Box<dyn Wire>) -> Met {
        let Self { handle, terms, since, .. } = *self;
        Met { wire, link, peer: handle.address, terms, since, door: None }
    }

    fn wait(&self, mut link: Box<Link>, wire: Box<dyn Wire>) -> Result<Step, Refusal> {
        match self.next(&mut link)? {
            None => Ok(Step::Stays(Stage::Ready(link, wire))),
            // Nothing was sent that a resumed link could have lost.
            Some(Message::Resumed {}) => Ok(Step::Goes(Stage::Ready(link, wire))),
            Some(Message::Ready {}) => Ok(Step::Met(self.met(link, wire))),
            Some(message) => Err(self.out_of_turn(&message, "\"ready\"")),
        }
    }
}

#[cfg(test)]
mod rt_tests {
    use super::super::listen::{Listener, MOST_ANSWERED};
    use super::*;
    use crate::devices::Devices;
    use crate::settings::{Backend, Settings};
    use std::sync::Arc;
    use std::time::Duration;

    /// Nothing here takes as long.
    const LONG: Duration = Duration::from_secs(60);

    /// Calls until it returns something.
    fn until<T>(mut call: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            match call() {
                Some(done) => return done,
                None => assert!(begin.elapsed() < LONG),
            }
        }
    }

    #[test]
    fn senders_that_are_never_ready_keep_no_other_sender_out() {
        // The places of senders are not freed by time.
        let connect_timeout = 10 * LONG;
        let settings =
            Settings { backend: Backend::Software, connect_timeout, ..Settings::default() };
        let devices = Devices::open(&settings).unwrap();
        let device = Arc::clone(devices.get(0).unwrap());
        let site = Site { settings: Arc::new(settings), device, traffic_class: 0, process: 1 };
        let (mut listener, handle) = Listener::new(site.clone()).unwrap();
        // They have said hello, and say nothing after it.
        let greeted = |_| {
            let mut attempt = Attempt::new(site.clone(), handle).unwrap();
            until(|| {
                assert!(attempt.step().unwrap().is_none() && listener.accept().unwrap().is_none());
                matches!(attempt.stage, Stage::Greeting(..)).then_some(())
            });
            attempt
        };
        let silent: Vec<_> = (0..MOST_ANSWERED + 6).map(greeted).collect();
        let mut attempt = Attempt::new(site.clone(), handle).unwrap();
        let (mut sender, mut receiver) = (None, None);
        until(|| {
            if sender.is_none() {
                sender = attempt.step().unwrap();
            }
            if receiver.is_none() {
                receiver = listener.accept().unwrap();
            }
            (sender.is_some() && receiver.is_some()).then_some(())
        });
        drop(silent);
    }
}
