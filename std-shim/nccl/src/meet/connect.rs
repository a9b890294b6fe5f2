//! The end that connects, and will send.

use super::handle::Handle;
use super::hello;
use super::link::{Frame, Kind, Link, Read};
use super::met::Met;
use super::reach::Reaching;
use super::site::{Site, join};
use super::terms::Terms;
use super::way::{Side, Way};
use super::welcome::Welcome;
use crate::guard::{Code, Refusal};
use crate::rails::Wire;
use polyrail::p2p::End;
use rustix::io::Errno;
use std::time::Instant;

/// An attempt to connect, under way.
pub(crate) struct Attempt {
    site: Site,
    handle: Handle,
    terms: Terms,
    since: Instant,
    stage: Stage,
}

/// How far it is. What is worked on is taken out; if that fails, nothing is left.
enum Stage {
    /// The network connects.
    Reaching(Reaching),
    /// The peer is to welcome us.
    Greeting(Link, Box<dyn Wire>),
    /// Our end is connected; the peer is to hear of it.
    Telling(Link, Box<dyn Wire>, Welcome),
    /// It failed, or is done.
    Over,
}

impl Attempt {
    /// Starts one.
    pub(crate) fn new(site: Site, handle: Handle) -> Result<Self, Refusal> {
        if handle.software != site.is_software() {
            return Err(Refusal::new(Code::Usage, "POLYRAIL_BACKEND differs at the two ends"));
        }
        if handle.software && handle.process != site.process {
            let words = "software NICs of two processes cannot reach each other";
            return Err(Refusal::new(Code::Usage, words));
        }
        let terms = Terms::between(&site.settings, site.device.nics.count(), &handle)?;
        let socket = Reaching::start(&handle.address);
        let socket = socket.map_err(|error| unreachable(&handle, error))?;
        Ok(Self { site, handle, terms, since: Instant::now(), stage: Stage::Reaching(socket) })
    }

    /// Whether it took too long.
    pub(crate) fn is_late(&self) -> bool {
        self.since.elapsed() > self.site.settings.connect_timeout
    }

    /// Goes on. Never waits.
    pub(crate) fn step(&mut self) -> Result<Option<Met>, Refusal> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            let next = match stage {
                Stage::Reaching(socket) => self.reach(socket),
                Stage::Greeting(link, wire) => self.greet(link, wire),
                Stage::Telling(mut link, wire, welcome) => match link.send() {
                    Ok(true) => return Ok(Some(self.met(link, wire, welcome))),
                    Ok(false) => Ok((Stage::Telling(link, wire, welcome), false)),
                    Err(error) => Err(self.broken(error)),
                },
                Stage::Over => Err(Refusal::new(Code::Internal, "this attempt to connect is over")),
            };
            let (stage, goes_on) = next?;
            self.stage = stage;
            if !goes_on {
                return self.check_time().map(|()| None);
            }
        }
    }

    fn check_time(&mut self) -> Result<(), Refusal> {
        if !self.is_late() {
            return Ok(());
        }
        let what = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Reaching(_) => "could not be reached",
            _ => "did not answer",
        };
        let timeout = self.site.settings.connect_timeout;
        let words = format!("the peer at {} {what} for {timeout:?}", self.handle.address);
        Err(Refusal::new(Code::Remote, words))
    }

    fn broken(&self, error: impl std::fmt::Display) -> Refusal {
        let words = format!("the link to the peer at {}: {error}", self.handle.address);
        Refusal::new(Code::Remote, words)
    }

    /// The network may have connected: says who we are.
    fn reach(&self, socket: Reaching) -> Result<(Stage, bool), Refusal> {
        let stream = match socket.step().map_err(|error| unreachable(&self.handle, error))? {
            Ok(stream) => stream,
            Err(socket) => return Ok((Stage::Reaching(socket), false)),
        };
        let link = Link::new(stream, self.site.times().patience);
        let mut link = link.map_err(|error| self.broken(error))?;
        let wire = self.site.wire(self.terms, End::Sender)?;
        let address = wire.address().to_json();
        link.push(
            Kind::Hello,
            &hello::encode(&self.site, &self.handle.token, self.terms, &address),
        );
        Ok((Stage::Greeting(link, wire), true))
    }

    /// The peer may have welcomed us: connects our end.
    fn greet(&self, mut link: Link, mut wire: Box<dyn Wire>) -> Result<(Stage, bool), Refusal> {
        link.send().map_err(|error| self.broken(error))?;
        let body = match link.read().map_err(|error| self.broken(error))? {
            Read::Nothing => return Ok((Stage::Greeting(link, wire), false)),
            Read::Ended => return Err(self.broken("it has ended")),
            Read::Frame(Frame { kind: Kind::Welcome, body }) => body,
            Read::Frame(Frame { kind: Kind::Refused, body }) => {
                let words = String::from_utf8_lossy(&body).into_owned();
                return Err(Refusal::new(Code::Remote, format!("the peer refused: {words}")));
            }
            Read::Frame(Frame { kind, .. }) => {
                return Err(self.broken(format!("{kind:?} came out of turn")));
            }
        };
        let joined = Welcome::decode(&body)
            .ok_or_else(|| self.broken("it has a Welcome that is none"))
            .and_then(|(welcome, address)| join(&mut *wire, address).map(|()| welcome));
        let welcome = match joined {
            Ok(welcome) => welcome,
            Err(refusal) => {
                link.refuse(&refusal.words);
                return Err(refusal);
            }
        };
        link.push(Kind::Ready, &[]);
        Ok((Stage::Telling(link, wire, welcome), true))
    }

    fn met(&self, link: Link, wire: Box<dyn Wire>, welcome: Welcome) -> Met {
        let Welcome { port, session } = welcome;
        let mut door = self.handle.address;
        door.set_port(port);
        let way = Way::new(link, session, Side::Sender(door), self.site.times());
        Met { wire, way, terms: self.terms }
    }
}

fn unreachable(handle: &Handle, error: Errno) -> Refusal {
    let words = format!("cannot connect to {}: {error}", handle.address);
    Refusal::new(Code::Remote, words)
}
