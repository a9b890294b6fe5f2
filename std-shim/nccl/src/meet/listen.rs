//! The end that listens, and will receive.

use super::door::{self, Door};
use super::handle::{Handle, Token};
use super::hello;
use super::interface;
use super::link::{Frame, Kind, Link, Read};
use super::met::Met;
use super::session::Session;
use super::site::{Site, join};
use super::terms::Terms;
use super::way::{Side, Way};
use super::welcome::Welcome;
use crate::guard::{Code, Refusal};
use crate::log;
use crate::rails::Wire;
use crate::random::random;
use polyrail::p2p::End;
use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV6, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long whoever connects may take to say who it is: NCCL's ranks do so at once.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that may be under way at a time. More wait in the kernel's queue.
const MOST_INCOMING: usize = 64;

/// The end that listens.
pub(crate) struct Listener {
    site: Site,
    socket: TcpListener,
    address: SocketAddr,
    token: Token,
    incoming: Vec<Incoming>,
}

/// Somebody who connects.
struct Incoming {
    link: Link,
    since: Instant,
    /// Once it was welcome.
    welcome: Option<Welcomed>,
}

/// Our end for somebody, what was agreed on, and what the connection is known by.
struct Welcomed {
    wire: Box<dyn Wire>,
    terms: Terms,
    session: Session,
    door: Arc<Door>,
}

/// How far somebody came.
enum Step {
    /// Not to its end yet.
    Waits,
    Met(Welcomed),
    /// It was a stranger, or went away: nobody's fault here.
    Dropped(String),
    /// It was the peer, and cannot be connected.
    Failed(Refusal),
}

impl Listener {
    /// Listens, and says how to connect.
    pub(crate) fn new(site: Site) -> Result<(Self, Handle), Refusal> {
        let (ip, scope) = interface::address(site.settings.interface.as_deref())?;
        let mut address = SocketAddr::new(ip, 0);
        if let SocketAddr::V6(v6) = &mut address {
            *v6 = SocketAddrV6::new(*v6.ip(), 0, 0, scope);
        }
        let refused = |error| Refusal::new(Code::System, format!("cannot listen at {ip}: {error}"));
        let socket = TcpListener::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        let token = random::<16>()?;
        let handle = Handle {
            address,
            token,
            devices: site.device.nics.count().min(u8::MAX.into()) as u8,
            rails: site.settings.rails,
            queue_pairs_per_rail: site.settings.queue_pairs_per_rail,
            reroutes: site.settings.healing,
            software: site.is_software(),
            process: site.process,
        };
        Ok((Self { site, socket, address, token, incoming: Vec::new() }, handle))
    }

    /// Goes on with whoever connects, and returns the next one that is connected. Never waits.
    pub(crate) fn accept(&mut self) -> Result<Option<Met>, Refusal> {
        self.welcome_newcomers()?;
        let mut at = 0;
        while at < self.incoming.len() {
            match self.incoming[at].step(&self.site, self.address, &self.token) {
                Step::Waits => at += 1,
                Step::Met(Welcomed { wire, terms, session, door }) => {
                    let Incoming { link, .. } = self.incoming.swap_remove(at);
                    let side = Side::Receiver { _door: door };
                    let way = Way::new(link, session, side, self.site.times());
                    return Ok(Some(Met { wire, way, terms }));
                }
                Step::Dropped(why) => {
                    let dropped = self.incoming.swap_remove(at);
                    log::info(&format!(
                        "a connection from {} is dropped: {why}",
                        dropped.link.peer()
                    ));
                }
                Step::Failed(refusal) => {
                    self.incoming.swap_remove(at).link.refuse(&refusal.words);
                    return Err(refusal);
                }
            }
        }
        Ok(None)
    }

    fn welcome_newcomers(&mut self) -> Result<(), Refusal> {
        while self.incoming.len() < MOST_INCOMING {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    let link = Link::new(stream, self.site.times().patience);
                    // Whoever has no link is gone already.
                    self.incoming.extend(link.ok().map(Incoming::new));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Somebody went away before it was taken.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    let words = format!("cannot accept a connection: {error}");
                    return Err(Refusal::new(Code::System, words));
                }
            }
        }
        Ok(())
    }
}

impl Incoming {
    fn new(link: Link) -> Self {
        Self { link, since: Instant::now(), welcome: None }
    }

    fn step(&mut self, site: &Site, at: SocketAddr, token: &Token) -> Step {
        if let Err(error) = self.link.send() {
            return Step::Dropped(error.to_string());
        }
        let frame = match self.link.read() {
            Ok(Read::Frame(frame)) => frame,
            Ok(Read::Nothing) => return self.wait(site),
            Ok(Read::Ended) => return Step::Dropped("it has ended".into()),
            Err(error) => return Step::Dropped(error.to_string()),
        };
        match (frame, self.welcome.take()) {
            (Frame { kind: Kind::Hello, body }, None) => self.greet(site, at, token, &body),
            (Frame { kind: Kind::Ready, .. }, Some(welcomed)) => Step::Met(welcomed),
            (Frame { kind: Kind::Refused, body }, Some(_)) => {
                let words = format!("the peer: {}", String::from_utf8_lossy(&body));
                Step::Failed(Refusal::new(Code::Remote, words))
            }
            (Frame { kind, .. }, _) => Step::Dropped(format!("{kind:?} came out of turn")),
        }
    }

    fn wait(&self, site: &Site) -> Step {
        let timeout =
            if self.welcome.is_some() { site.settings.connect_timeout } else { HELLO_TIMEOUT };
        if self.since.elapsed() < timeout {
            Step::Waits
        } else {
            Step::Dropped("it is silent".into())
        }
    }

    /// Somebody said who it is.
    fn greet(&mut self, site: &Site, at: SocketAddr, token: &Token, body: &[u8]) -> Step {
        let Some(hello) = hello::decode(body, token) else {
            return Step::Dropped("it is a stranger".into());
        };
        match admit(site, at, &hello) {
            Ok((welcomed, welcome)) => {
                let address = welcomed.wire.address().to_json();
                self.link.push(Kind::Welcome, &welcome.encode(&address));
                self.welcome = Some(welcomed);
                // What does not go out at once goes with the next call.
                match self.link.send() {
                    Ok(_) => Step::Waits,
                    Err(error) => Step::Dropped(error.to_string()),
                }
            }
            Err(refusal) => Step::Failed(refusal),
        }
    }
}

/// Makes our end for somebody who has the token.
fn admit(
    site: &Site,
    at: SocketAddr,
    hello: &hello::Hello<'_>,
) -> Result<(Welcomed, Welcome), Refusal> {
    if hello.software != site.is_software() {
        return Err(Refusal::new(Code::Usage, "POLYRAIL_BACKEND differs at the two ends"));
    }
    if hello.software && hello.process != site.process {
        let words = "software NICs of two processes cannot reach each other";
        return Err(Refusal::new(Code::Usage, words));
    }
    let terms = Terms::decode(hello.terms, &site.settings).ok_or_else(|| {
        Refusal::new(
            Code::Usage,
            "the peer's rails, queue pairs or healing do not fit the settings here",
        )
    })?;
    let mut wire = site.wire(terms, End::Receiver)?;
    join(&mut *wire, hello.address)?;
    let session = Session::new()?;
    let door = door::open(at, site.times().patience)?;
    let port = door.port();
    Ok((Welcomed { wire, terms, session, door }, Welcome { port, session }))
}
