//! Doors, at which senders connect and resume links: one port of this process for each local
//! address, for any number of listening ends.

use super::call::{Call, Hello, Link, Message};
use super::handle::TOKEN_BYTES;
use crate::guard::{Code, Refusal};
use crate::log;
use crate::random::random;
use polyrail::chain::Chain;
use polyrail::link::{self, Arrival, Arrivals, LinkError, Reason, Timeouts, Token};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// All open doors, and some that are closed.
static DOORS: Mutex<Vec<Weak<Door>>> = Mutex::new(Vec::new());

/// A sender whose hello has named the end to connect to.
pub(super) struct Caller {
    pub(super) link: Box<Link>,
    pub(super) hello: Hello,
    pub(super) call: Call,
    pub(super) address: SocketAddr,
}

/// A port of this process. It is open while an end listens there or a connection that was accepted
/// there exists. Afterwards the system refuses senders at once.
pub(crate) struct Door {
    listener: link::Listener,
    address: SocketAddr,
    token: [u8; TOKEN_BYTES],
    timeouts: Timeouts,
    hall: Mutex<Hall>,
}

/// The senders that have connected to a door.
#[derive(Default)]
struct Hall {
    arrivals: Arrivals<Call>,
    /// The senders of each listening end, by its number.
    callers: HashMap<u64, VecDeque<Caller>>,
}

/// Limit of senders that wait for one listening end: NCCL accepts them one by one, and a peer that
/// has the handle can connect as often as it likes.
const MOST_CALLERS: usize = 1024;

fn locked<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain data, which is valid after a panic.
    data.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the door at this IP address, whatever its port, and opens it if necessary.
pub(super) fn open(at: SocketAddr, timeouts: Timeouts) -> Result<Arc<Door>, Refusal> {
    let is_there = |door: &Arc<Door>| {
        let mut there = door.address;
        there.set_port(at.port());
        there == at && door.timeouts == timeouts
    };
    let mut doors = locked(&DOORS);
    if let Some(door) = doors.iter().filter_map(Weak::upgrade).find(is_there) {
        return Ok(door);
    }
    let opened = Arc::new(Door::open(at, timeouts)?);
    doors.retain(|door| door.strong_count() > 0);
    doors.push(Arc::downgrade(&opened));
    Ok(opened)
}

fn all() -> Vec<Arc<Door>> {
    locked(&DOORS).iter().filter_map(Weak::upgrade).collect()
}

/// Calls `call` with the socket of each door, until a call fails.
pub(crate) fn with_sockets<E>(call: impl Fn(BorrowedFd<'_>) -> Result<(), E>) -> Result<(), E> {
    all().iter().try_for_each(|door| call(door.listener.as_fd()))
}

/// Serves all senders at all doors: resumes links, and assigns new senders to their ends. Returns
/// whether some senders have not sent their first message yet. Never waits.
pub(crate) fn answer() -> bool {
    let mut awaits = false;
    for door in all() {
        awaits |= door.answer();
    }
    awaits
}

impl Door {
    fn open(mut at: SocketAddr, timeouts: Timeouts) -> Result<Self, Refusal> {
        at.set_port(0);
        let refused = |error: &LinkError| Refusal::new(Code::System, Chain(error));
        let listener = link::Listener::bind(&at.to_string()).map_err(|error| refused(&error))?;
        let address = listener.local_addr().map_err(|error| refused(&error))?;
        let token = random()?;
        let secret = Token::new(token);
        let secret = secret.map_err(|error| Refusal::new(Code::Internal, Chain(&error)))?;
        let listener = listener.with_token(secret);
        Ok(Self { listener, address, token, timeouts, hall: Mutex::default() })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) const fn token(&self) -> [u8; TOKEN_BYTES] {
        self.token
    }

    /// Adds a listening end, and returns its number.
    pub(super) fn listen(&self) -> u64 {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        locked(&self.hall).callers.insert(number, VecDeque::new());
        number
    }

    /// Removes a listening end, and refuses its senders.
    pub(super) fn close(&self, number: u64) {
        let callers = locked(&self.hall).callers.remove(&number);
        let why = "no such end listens, or not any more";
        callers.into_iter().flatten().for_each(|caller| refuse(*caller.link, why));
    }

    /// Returns whether a sender waits for an end.
    pub(super) fn is_called(&self, number: u64) -> bool {
        locked(&self.hall).callers.get(&number).is_some_and(|callers| !callers.is_empty())
    }

    /// Returns the next sender of an end.
    pub(super) fn caller(&self, number: u64) -> Option<Caller> {
        locked(&self.hall).callers.get_mut(&number)?.pop_front()
    }

    pub(super) fn answer(&self) -> bool {
        let mut hall = locked(&self.hall);
        let Hall { arrivals, callers } = &mut *hall;
        let refused = |address, why: LinkError| {
            log::info(&format!("a connection from {address} is dropped: {}", Chain(&why)));
        };
        match arrivals.step(&self.listener, &self.timeouts, refused) {
            Ok(arrived) => {
                for Arrival { link, hello, address } in arrived {
                    match hello.purpose.map(|call| (call, callers.get_mut(&call.listener))) {
                        Some((call, Some(callers))) if callers.len() < MOST_CALLERS => {
                            let link = Box::new(link);
                            callers.push_back(Caller { link, hello, call, address });
                        }
                        Some((_, Some(_))) => refuse(link, "too many senders wait here already"),
                        _ => refuse(link, "no such end listens, or not any more"),
                    }
                }
            }
            // The next call may find others.
            Err(error) => log::warn(&Chain(&error).to_string()),
        }
        !arrivals.is_empty()
    }
}

fn refuse(mut link: Link, why: &str) {
    // If the message cannot be sent at once, the peer notices that the link is closed.
    _ = link.offer(&Message::Failed { reason: Reason::new(why) });
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::TcpStream;
    use std::time::Duration;

    /// An address that no other test uses, since it would share the door.
    fn timeouts() -> Timeouts {
        Timeouts { silence: Duration::from_millis(12_345), ..Timeouts::default() }
    }

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn a_door_is_open_as_long_as_it_has_a_user() {
        let [one, same] = [0, 1].map(|_| open(at("127.0.0.1:1"), timeouts()).unwrap());
        assert_eq!(one.address, same.address);
        // The address at which others reach this process may change during the test.
        let other = open(at("127.0.0.2:1"), timeouts()).unwrap();
        let (there, elsewhere) = (one.address, other.address);
        assert!(elsewhere.ip() != there.ip());
        drop(one);
        let _comes = TcpStream::connect(there).unwrap();
        while !same.answer() {}
        // As in a process that was forked.
        let _child = same.listener.as_fd().try_clone_to_owned().unwrap();
        drop(same);
        assert_eq!(TcpStream::connect(there).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        TcpStream::connect(elsewhere).unwrap();
    }
}
