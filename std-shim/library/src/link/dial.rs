//! Connecting to the first of several addresses that answers.
//!
//! ```text
//!  0 ms     first address ─────────────────────── no answer
//!  250 ms        second address ───────────────── no answer
//!  500 ms             third address ──── connected: the attempts at the others end
//! ```
//!
//! An address that does not answer costs the others only a short delay (RFC 8305, "Happy
//! Eyeballs"), and an attempt that the system refuses costs nothing: the next one begins at once.
//! An address for which the system lacks resources now, such as a file descriptor, is tried again
//! at the next step. Attempts go on side by side until one succeeds, or the time limit, which is
//! one for all of them. At most 16, or 3 while a link is resumed, go on at once: the oldest gives
//! way to the next one, and its address is tried again after the others.

use super::error::{LinkError, is_lack};
use super::stream::{Network, Stream};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time until the next attempt begins beside the earlier ones: "Connection Attempt Delay", RFC
/// 8305, section 5.
const STAGGER: Duration = Duration::from_millis(250);

/// Maximum number of attempts at once: each has a socket, and a peer may offer 128 addresses.
const MAX_ATTEMPTS: usize = 16;

/// Maximum number of attempts at once while a link is resumed: all links of a process may break at
/// once.
pub(super) const FEW_ATTEMPTS: usize = 3;

/// Maximum number of addresses in the text of an error.
const NAMED: usize = 3;

/// Returns the addresses of `HOST:PORT`. The host is a name, an IPv4 address, or an IPv6 address in
/// brackets, which may have a scope: `[fe80::1%eth0]:7471`. Waits for the lookup of a name.
///
/// # Errors
///
/// The text is not `HOST:PORT`; the name is unknown; the system has no file descriptor for the
/// lookup.
pub fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    look_up(address).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => error,
        _ => no_descriptor().unwrap_or(error),
    })
}

/// Returns the system's error if it has no file descriptor now. The resolver may report that a name
/// is unknown instead: glibc does until a lookup of the process has succeeded.
fn no_descriptor() -> Option<io::Error> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.err().map(io::Error::from).filter(is_lack)
}

fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    // The standard library takes a scope in brackets only as a number, and without brackets also as
    // a name.
    let in_brackets = address.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:"));
    let found: Vec<_> = match in_brackets.map(|(host, port)| (host, port.parse::<u16>())) {
        Some((host, Ok(port))) => (host, port).to_socket_addrs()?.collect(),
        _ => address.to_socket_addrs()?.collect(),
    };
    Ok(found)
}

/// Returns a text of the first addresses, and the number of the others: errors and events have
/// limited room.
pub(super) fn names(addresses: &[SocketAddr]) -> String {
    let (named, others) = addresses.split_at(addresses.len().min(NAMED));
    let names: Vec<_> = named.iter().map(SocketAddr::to_string).collect();
    match (named.len(), others.len()) {
        (0, _) => "no address".into(),
        (_, 0) => names.join(", "),
        (_, 1) => format!("{} and 1 other", names.join(", ")),
        (_, count) => format!("{} and {count} others", names.join(", ")),
    }
}

/// Orders addresses such that the two versions of IP alternate (RFC 8305, section 4): a version
/// that does not work costs one attempt. The first address stays the first.
pub(super) fn alternate(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first_version =
        |address: &SocketAddr| addresses.first().is_some_and(|a| a.is_ipv6() == address.is_ipv6());
    let (first, second): (Vec<_>, Vec<_>) = addresses.iter().partition(|a| is_first_version(a));
    let mut second = second.into_iter();
    let mut ordered = Vec::with_capacity(addresses.len());
    for address in first {
        ordered.push(address);
        ordered.extend(second.next());
    }
    ordered.extend(second);
    ordered
}

/// An attempt to connect to one address.
#[derive(Debug)]
struct Attempt {
    address: SocketAddr,
    stream: Box<dyn Stream>,
}

/// The attempts to connect. The stream of the one that began last is with the owner, which can wait
/// for it. A stream whose attempt failed is dropped at once: its file descriptor may be the only
/// one that the next attempt can have.
#[derive(Debug)]
pub(super) struct Dial {
    network: Arc<dyn Network>,
    /// The address as the caller has given it.
    name: String,
    /// Addresses that are still to be tried.
    remaining: VecDeque<SocketAddr>,
    /// The address of the attempt that began last; `None` once that attempt has failed.
    newest: Option<SocketAddr>,
    /// Attempts that began before, and go on, the oldest first.
    earlier: Vec<Attempt>,
    stagger: Duration,
    /// When the next attempt begins.
    next_at: Instant,
    /// Why the next attempt has not begun, if the system lacked resources.
    lack: Option<io::Error>,
    /// When all attempts fail.
    until: Instant,
    /// Maximum number of attempts at once.
    most: usize,
}

impl Dial {
    /// Begins to connect to the first address that the system takes; the others follow in this
    /// order. `timeout` is the limit of all attempts together.
    ///
    /// # Errors
    ///
    /// There are no addresses; the system cannot connect to any of them; or it [lacks
    /// resources](LinkError::lacks_resources), which is temporary.
    pub(super) fn begin(
        network: Arc<dyn Network>,
        name: String,
        addresses: &[SocketAddr],
        (timeout, now): (Duration, Instant),
    ) -> Result<(Self, Box<dyn Stream>), LinkError> {
        let mut remaining = VecDeque::from_iter(addresses.iter().copied());
        // Many addresses begin in a shorter interval: the last one has half of the time, too.
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let stagger = STAGGER.min(timeout / count.saturating_mul(2));
        let until = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(24 * 60 * 60));
        match begin_next(&*network, &mut remaining) {
            Ok(Attempt { address, stream }) => {
                let dial = Self {
                    network,
                    name,
                    remaining,
                    newest: Some(address),
                    earlier: Vec::new(),
                    stagger,
                    next_at: now + stagger,
                    lack: None,
                    until,
                    most: MAX_ATTEMPTS,
                };
                Ok((dial, stream))
            }
            Err(source) => {
                let source = source.unwrap_or_else(|| ErrorKind::NotFound.into());
                Err(LinkError::Connect { address: name, source })
            }
        }
    }

    /// Limits the number of attempts at once.
    pub(super) fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Adds addresses, which are tried after those that are known, and begins the time limit again.
    pub(super) fn also(&mut self, addresses: &[SocketAddr], (timeout, now): (Duration, Instant)) {
        if !addresses.is_empty() {
            self.name = format!("{}, {}", self.name, names(addresses));
        }
        self.remaining.extend(alternate(addresses));
        self.until = self.until.max(now.checked_add(timeout).unwrap_or(self.until));
    }

    /// Continues as far as possible without waiting. `newest` is the stream of the attempt that
    /// began last, or `None` if no attempt is under way, because the next one waits until the
    /// system has resources. Returns the address that answered; `newest` is then its stream.
    ///
    /// # Errors
    ///
    /// All attempts failed, or the time is up.
    pub(super) fn step(
        &mut self,
        newest: &mut Option<Box<dyn Stream>>,
        now: Instant,
    ) -> Result<Option<SocketAddr>, LinkError> {
        let mut failed = None;
        if let Some(address) = self.answered(newest, &mut failed) {
            return Ok(Some(address));
        }
        if now >= self.until {
            // An owner that calls seldom finds a failure late. The error of the only attempt that
            // was left says more than that the time is up.
            let is_last = self.newest.is_none() && self.earlier.is_empty();
            let failed = failed.filter(|_| is_last && self.remaining.is_empty());
            let source = self.lack.take().or(failed);
            return Err(self.failed(source.unwrap_or_else(|| ErrorKind::TimedOut.into())));
        }
        // After a failure at once (RFC 8305, section 5).
        if failed.is_some() || self.lack.is_some() || now >= self.next_at {
            self.make_room();
            match begin_next(&*self.network, &mut self.remaining) {
                Ok(Attempt { address, stream }) => {
                    let before = (self.newest.replace(address), newest.replace(stream));
                    if let (Some(address), Some(stream)) = before {
                        self.earlier.push(Attempt { address, stream });
                    }
                    self.next_at = now + self.stagger;
                    self.lack = None;
                    return Ok(None);
                }
                Err(Some(error)) if is_lack(&error) => self.lack = Some(error),
                Err(error) => {
                    self.lack = None;
                    failed = error.or(failed);
                }
            }
        }
        if self.newest.is_some() {
            return Ok(None);
        }
        match (self.earlier.pop(), failed) {
            (Some(Attempt { address, stream }), _) => {
                (self.newest, *newest) = (Some(address), Some(stream));
                Ok(None)
            }
            (None, Some(error)) if self.lack.is_none() => Err(self.failed(error)),
            (None, _) => Ok(None),
        }
    }

    /// Ends the oldest attempt if there are as many as there may be, and another is to begin.
    fn make_room(&mut self) {
        let under_way = self.earlier.len() + usize::from(self.newest.is_some());
        if under_way >= self.most && !self.remaining.is_empty() {
            self.remaining.push_back(self.earlier.remove(0).address);
        }
    }

    /// Returns the address that answered, if one has; `newest` is then its stream. Otherwise drops
    /// the attempts that failed, and leaves the last one's error in `failed`.
    fn answered(
        &mut self,
        newest: &mut Option<Box<dyn Stream>>,
        failed: &mut Option<io::Error>,
    ) -> Option<SocketAddr> {
        let mut place = 0;
        while let Some(attempt) = self.earlier.get(place) {
            match attempt.stream.is_connected() {
                Ok(true) => {
                    let Attempt { address, stream } = self.earlier.swap_remove(place);
                    *newest = Some(stream);
                    return Some(address);
                }
                Ok(false) => place += 1,
                Err(error) => {
                    *failed = Some(error);
                    self.earlier.remove(place);
                }
            }
        }
        match newest.as_ref()?.is_connected() {
            Ok(true) => self.newest,
            Ok(false) => None,
            Err(error) => {
                *failed = Some(error);
                (self.newest, *newest) = (None, None);
                None
            }
        }
    }

    fn failed(&self, source: io::Error) -> LinkError {
        LinkError::Connect { address: self.name.clone(), source }
    }
}

/// Begins to connect to the next address that the system takes. Without one, returns the last
/// error, or `None` if there are no addresses. An address for which the system lacks resources
/// stays the next one.
fn begin_next(
    network: &dyn Network,
    remaining: &mut VecDeque<SocketAddr>,
) -> Result<Attempt, Option<io::Error>> {
    let mut last = None;
    while let Some(address) = remaining.pop_front() {
        match network.connect(&address) {
            Ok(stream) => return Ok(Attempt { address, stream }),
            Err(error) if is_lack(&error) => {
                remaining.push_front(address);
                return Err(Some(error));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
