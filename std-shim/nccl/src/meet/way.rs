//! The link of a connection, as long as that lives: if it breaks, its sender makes a new one, for which its receiver
//! waits.
//!
//! ```text
//!  sender                       receiver
//!     ── Again: session ────────► door
//!     ◄─────────────── Resumed ── finds the connection
//! ```

use super::door::Door;
use super::link::{Frame, Kind, Link, Read};
use super::reach::Reaching;
use super::session::Session;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two attempts, at first; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The link of a connection, and how it is made anew.
#[derive(Debug)]
pub(crate) struct Way {
    state: State,
    session: Session,
    side: Side,
    times: Times,
}

/// How the two ends find each other again.
#[derive(Debug)]
pub(super) enum Side {
    /// The sender goes there.
    Sender(SocketAddr),
    /// The receiver's door is there for it.
    Receiver { _door: Arc<Door> },
}

/// How long links may be silent, and away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// A link whose other end answers nothing for so long is broken.
    pub(super) patience: Duration,
    /// Until a link that is broken has to be made anew.
    pub(super) away: Duration,
    /// The same at the sender, while it is told that there is no such process or connection.
    pub(super) gone: Duration,
    /// The same at the receiver, if the link was reset.
    pub(super) reset: Duration,
}

#[derive(Debug)]
enum State {
    Open(Link),
    Away(Away),
    Over,
}

/// It broke.
#[derive(Debug)]
struct Away {
    /// Until when it has to be made anew.
    until: Instant,
    /// Since when each attempt was refused: the peer says that there is no such connection, or its system that there is
    /// no such process.
    refused: Option<Instant>,
    attempt: Attempt,
    pause: Duration,
    /// What went wrong last.
    why: String,
}

/// What the sender does about it.
#[derive(Debug)]
enum Attempt {
    /// Nothing, before this time.
    Pause(Instant),
    /// The network connects, since this time.
    Reaching(Reaching, Instant),
    /// The receiver is to say that it has found the connection.
    Asking(Link, Instant),
}

/// What has become of the link.
#[derive(Debug)]
pub(crate) enum Turn {
    Broke(String),
    /// It is made anew: what was said may be lost.
    Resumed,
    /// The peer has ended, or no link could be made: which of it, in words.
    Over(String),
}

impl Way {
    /// With the link by which the two ends met.
    pub(super) fn new(link: Link, session: Session, side: Side, times: Times) -> Self {
        Self { state: State::Open(link), session, side, times }
    }

    const fn is_receiver(&self) -> bool {
        matches!(self.side, Side::Receiver { .. })
    }

    /// Who is at the other end, for people.
    pub(crate) fn peer(&self) -> String {
        match &self.state {
            State::Open(link) => link.peer(),
            State::Away(_) | State::Over => "a peer without a link".to_owned(),
        }
    }

    /// Of the link, if there is one now.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Open(link) => Some(link.fd()),
            State::Away(_) | State::Over => None,
        }
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Adds a frame to what is to go out, if there is a link.
    pub(crate) fn push(&mut self, kind: Kind, body: &[u8]) {
        if let State::Open(link) = &mut self.state {
            link.push(kind, body);
        }
    }

    /// Sends what can be sent now.
    pub(crate) fn send(&mut self) -> Option<Turn> {
        let State::Open(link) = &mut self.state else { return None };
        let error = link.send().err()?;
        Some(self.break_off(&error))
    }

    /// The next frame, if it is there.
    pub(crate) fn read(&mut self) -> Result<Option<Frame>, Turn> {
        let State::Open(link) = &mut self.state else { return Ok(None) };
        match link.read() {
            Ok(Read::Frame(frame)) => Ok(Some(frame)),
            Ok(Read::Nothing) => Ok(None),
            Ok(Read::Ended) => Err(self.end("the peer has ended")),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(self.end(error)),
            Err(error) => Err(self.break_off(&error)),
        }
    }

    /// There will be no link any more.
    pub(crate) fn end(&mut self, why: impl ToString) -> Turn {
        self.state = State::Over;
        Turn::Over(why.to_string())
    }

    fn break_off(&mut self, error: &io::Error) -> Turn {
        let now = Instant::now();
        let Times { away, reset, .. } = self.times;
        let is_reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        // A process that is killed resets its links, too, and one that lives comes back soon. The sender asks; the
        // receiver has nothing else to go by.
        let most = if is_reset && self.is_receiver() { away.min(reset) } else { away };
        self.state = State::Away(Away {
            until: now + most,
            refused: None,
            // Links that break as soon as they are made are not made all the time.
            attempt: Attempt::Pause(now + FIRST_PAUSE),
            pause: FIRST_PAUSE,
            why: error.to_string(),
        });
        Turn::Broke(error.to_string())
    }

    /// Goes on to make a link anew, if there is none. Never waits.
    pub(crate) fn mend(&mut self) -> Option<Turn> {
        let State::Away(away) = &mut self.state else { return None };
        let now = Instant::now();
        if let Side::Sender(door) = &self.side {
            match away.step(door, &self.session, self.times, now) {
                Step::Waits => {}
                Step::Resumed(link) => {
                    self.state = State::Open(link);
                    return Some(Turn::Resumed);
                }
                Step::Over(why) => return Some(self.end(why)),
            }
        }
        if now < away.until {
            return None;
        }
        let words = format!("the link to the peer broke, and was not made anew: {}", away.why);
        Some(self.end(words))
    }

    /// Takes a link that was made anew, if it is for this connection.
    pub(crate) fn resume(&mut self, session: &Session, mut link: Link) -> Result<(), Link> {
        let is_over = matches!(self.state, State::Over);
        if is_over || !self.is_receiver() || !self.session.is(session) {
            return Err(link);
        }
        link.push(Kind::Resumed, &[]);
        self.state = State::Open(link);
        Ok(())
    }
}

/// How far an attempt came.
enum Step {
    Waits,
    Resumed(Link),
    Over(String),
}

impl Away {
    fn step(
        &mut self,
        door: &SocketAddr,
        session: &Session,
        Times { patience, gone, .. }: Times,
        now: Instant,
    ) -> Step {
        let attempt = std::mem::replace(&mut self.attempt, Attempt::Pause(now));
        let next = match attempt {
            Attempt::Pause(until) if now < until => Ok(Attempt::Pause(until)),
            Attempt::Pause(_) => Reaching::start(door)
                .map(|socket| Attempt::Reaching(socket, now))
                .map_err(Into::into),
            Attempt::Reaching(_, since) if now.duration_since(since) > ATTEMPT_TIMEOUT => {
                Err(ErrorKind::TimedOut.into())
            }
            Attempt::Asking(link, since) if now.duration_since(since) > ATTEMPT_TIMEOUT => {
                // The receiver may have taken it, or take it yet: it is to wait for the next one.
                link.reset();
                Err(ErrorKind::TimedOut.into())
            }
            Attempt::Reaching(socket, since) => match socket.step() {
                Ok(Ok(stream)) => Link::new(stream, patience).map(|mut link| {
                    link.push(Kind::Again, session.bytes());
                    Attempt::Asking(link, now)
                }),
                Ok(Err(socket)) => Ok(Attempt::Reaching(socket, since)),
                Err(error) => Err(error.into()),
            },
            Attempt::Asking(mut link, since) => match link.send().and_then(|_| link.read()) {
                Ok(Read::Frame(Frame { kind: Kind::Resumed, .. })) => return Step::Resumed(link),
                // It has ended, or the receiver's owner has yet to accept it.
                Ok(Read::Frame(_)) => Err(ErrorKind::ConnectionRefused.into()),
                Ok(Read::Nothing) => Ok(Attempt::Asking(link, since)),
                Ok(Read::Ended) => Err(ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            },
        };
        match next {
            Ok(attempt) => self.attempt = attempt,
            Err(error) => {
                let is_refused = error.kind() == ErrorKind::ConnectionRefused;
                self.refused = is_refused.then(|| self.refused.unwrap_or(now));
                if self.refused.is_some_and(|since| now.duration_since(since) >= gone) {
                    return Step::Over("the peer is gone".to_owned());
                }
                self.why = error.to_string();
                self.attempt = Attempt::Pause(now + self.pause);
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            }
        }
        Step::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meet::door;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const TIMES: Times = Times {
        patience: Duration::from_secs(60),
        away: Duration::from_millis(1500),
        gone: Duration::from_millis(500),
        reset: Duration::from_millis(1000),
    };

    fn session() -> Session {
        Session::from_bytes([7; Session::BYTES])
    }

    /// A link, and its other end.
    fn link() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Link::new(near, TIMES.patience).unwrap(), listener.accept().unwrap().0)
    }

    fn receiver() -> Way {
        let at = "127.0.0.1:0".parse().unwrap();
        let _door = door::open(at, TIMES.patience).unwrap();
        Way::new(link().0, session(), Side::Receiver { _door }, TIMES)
    }

    /// That of a sender, whose link has broken.
    fn broken(door: &TcpListener) -> Way {
        let mut way =
            Way::new(link().0, session(), Side::Sender(door.local_addr().unwrap()), TIMES);
        assert!(matches!(way.break_off(&ErrorKind::TimedOut.into()), Turn::Broke(_)));
        assert!(!way.is_open() && way.fd().is_none());
        assert!(way.read().unwrap().is_none() && way.send().is_none());
        way
    }

    /// What becomes of it, and how long that takes.
    fn mended(mut way: Way) -> (Turn, Duration) {
        let begin = Instant::now();
        loop {
            if let Some(turn) = way.mend() {
                return (turn, begin.elapsed());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn over((turn, took): (Turn, Duration)) -> (String, Duration) {
        match turn {
            Turn::Over(why) => (why, took),
            turn => panic!("{turn:?}"),
        }
    }

    #[test]
    fn a_sender_asks_until_it_is_answered() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = broken(&door);
        let receiver = thread::spawn(move || {
            // The first one breaks, too.
            drop(door.accept().unwrap());
            let mut link = Link::new(door.accept().unwrap().0, TIMES.patience).unwrap();
            loop {
                match link.read().unwrap() {
                    Read::Nothing => thread::sleep(Duration::from_millis(1)),
                    Read::Frame(frame) => {
                        link.push(Kind::Resumed, &[]);
                        assert!(link.send().unwrap());
                        return (frame, link);
                    }
                    Read::Ended => panic!("it has ended"),
                }
            }
        });
        assert!(matches!(mended(way).0, Turn::Resumed));
        let (frame, _link) = receiver.join().unwrap();
        assert_eq!(frame, Frame { kind: Kind::Again, body: session().bytes().to_vec() });
    }

    #[test]
    fn a_sender_gives_up_in_time_and_says_why() {
        // Somebody who takes links, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (why, took) = over(mended(broken(&silent)));
        assert!(took >= TIMES.away && why.contains("not made anew: "), "{why}, {took:?}");
        // Nobody.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = broken(&gone);
        drop(gone);
        let (why, took) = over(mended(way));
        assert!(took >= TIMES.gone && why.contains("peer is gone"), "{why}, {took:?}");
        // Somebody else.
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = broken(&other);
        thread::spawn(move || {
            for stream in other.incoming() {
                Link::new(stream.unwrap(), TIMES.patience).unwrap().refuse("who?");
            }
        });
        let (why, took) = over(mended(way));
        assert!(took >= TIMES.gone && why.contains("peer is gone"), "{why}, {took:?}");
    }

    /// The receiver took the link too late, or what it said is lost.
    #[test]
    fn a_link_that_a_sender_gives_up_is_no_end() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut way = broken(&door);
        let since = loop {
            assert!(way.mend().is_none());
            if let State::Away(Away { attempt: Attempt::Asking(_, since), .. }) = &mut way.state {
                break since;
            }
        };
        *since = since.checked_sub(2 * ATTEMPT_TIMEOUT).unwrap();
        assert!(way.mend().is_none());
        let mut receiver = receiver();
        let given_up = Link::new(door.accept().unwrap().0, TIMES.patience).unwrap();
        assert!(receiver.resume(&session(), given_up).is_ok());
        let turn = loop {
            if let Err(turn) = receiver.read() {
                break turn;
            }
        };
        assert!(matches!(turn, Turn::Broke(_)), "{turn:?}");
        assert!(receiver.resume(&session(), link().0).is_ok());
    }

    #[test]
    fn a_receiver_takes_only_its_own_link_and_waits_for_it() {
        let mut way = receiver();
        let other = Session::from_bytes([8; Session::BYTES]);
        assert!(way.resume(&other, link().0).is_err());
        assert!(way.is_open());
        // The other end may know first that a link is broken.
        assert!(way.resume(&session(), link().0).is_ok());
        assert!(matches!(way.break_off(&ErrorKind::ConnectionReset.into()), Turn::Broke(_)));
        assert!(way.mend().is_none());
        assert!(way.resume(&session(), link().0).is_ok() && way.is_open());
        assert!(matches!(way.break_off(&ErrorKind::TimedOut.into()), Turn::Broke(_)));
        thread::sleep(TIMES.away);
        assert!(matches!(way.mend(), Some(Turn::Over(_))));
        assert!(way.resume(&session(), link().0).is_err(), "it is over");
        // A sender is never called.
        let (link_of_sender, _) = link();
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let mut way = Way::new(link_of_sender, session(), Side::Sender(nowhere), TIMES);
        assert!(way.resume(&session(), link().0).is_err());
    }
}
