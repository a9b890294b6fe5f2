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
//! Attempts go on side by side until one succeeds, or the time limit, which is one for all of them.

use super::error::LinkError;
use super::stream::{Network, Stream};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time until the next attempt begins beside the earlier ones: "Connection Attempt Delay", RFC
/// 8305, section 5.
const STAGGER: Duration = Duration::from_millis(250);

/// Returns the addresses of `HOST:PORT`. The host is a name, an IPv4 address, or an IPv6 address in
/// brackets, which may have a scope: `[fe80::1%eth0]:7471`. Waits for the lookup of a name.
///
/// # Errors
///
/// The text is not `HOST:PORT`, or the name is unknown.
pub fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    // The standard library takes a scope in brackets only as a number, and without brackets also as
    // a name.
    let in_brackets = address.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:"));
    let found: Vec<_> = match in_brackets.map(|(host, port)| (host, port.parse::<u16>())) {
        Some((host, Ok(port))) => (host, port).to_socket_addrs()?.collect(),
        _ => address.to_socket_addrs()?.collect(),
    };
    Ok(found)
}

/// Orders addresses such that the two versions of IP alternate (RFC 8305, section 4): a version
/// that does not work costs one attempt. The first address stays the first.
fn alternate(addresses: &[SocketAddr]) -> VecDeque<SocketAddr> {
    let is_first_version =
        |address: &SocketAddr| addresses.first().is_some_and(|a| a.is_ipv6() == address.is_ipv6());
    let (first, second): (Vec<_>, Vec<_>) = addresses.iter().partition(|a| is_first_version(a));
    let mut second = second.into_iter();
    let mut ordered = VecDeque::with_capacity(addresses.len());
    for address in first {
        ordered.push_back(address);
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
/// for it.
#[derive(Debug)]
pub(super) struct Dial {
    network: Arc<dyn Network>,
    /// The address as the caller has given it.
    name: String,
    /// Addresses that were not tried yet.
    remaining: VecDeque<SocketAddr>,
    /// The address of the attempt that began last.
    newest: SocketAddr,
    /// Attempts that began before, and go on.
    earlier: Vec<Attempt>,
    stagger: Duration,
    /// When the next attempt begins.
    next_at: Instant,
    /// When all attempts fail.
    until: Instant,
}

impl Dial {
    /// Begins to connect to the first address that the system takes. `timeout` is the limit of all
    /// attempts together.
    ///
    /// # Errors
    ///
    /// There are no addresses, or the system cannot connect to any of them.
    pub(super) fn begin(
        network: Arc<dyn Network>,
        name: String,
        addresses: &[SocketAddr],
        (timeout, now): (Duration, Instant),
    ) -> Result<(Self, Box<dyn Stream>), LinkError> {
        let mut remaining = alternate(addresses);
        // Many addresses begin in a shorter interval: the last one has half of the time, too.
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let stagger = STAGGER.min(timeout / count.saturating_mul(2));
        let until = now.checked_add(timeout).unwrap_or(now + Duration::from_hours(24));
        match begin_next(&*network, &mut remaining) {
            Ok(Attempt { address: newest, stream }) => {
                let (earlier, next_at) = (Vec::new(), now + stagger);
                let dial =
                    Self { network, name, remaining, newest, earlier, stagger, next_at, until };
                Ok((dial, stream))
            }
            Err(source) => {
                let source = source.unwrap_or_else(|| ErrorKind::NotFound.into());
                Err(LinkError::Connect { address: name, source })
            }
        }
    }

    /// Continues as far as possible without waiting. `newest` is the stream of the attempt that
    /// began last. Returns the address that answered; `newest` is then its stream.
    ///
    /// # Errors
    ///
    /// All attempts failed, or the time is up.
    pub(super) fn step(
        &mut self,
        newest: &mut Box<dyn Stream>,
        now: Instant,
    ) -> Result<Option<SocketAddr>, LinkError> {
        let mut failed = None;
        let mut place = 0;
        while let Some(attempt) = self.earlier.get(place) {
            match attempt.stream.is_connected() {
                Ok(true) => {
                    let Attempt { address, stream } = self.earlier.swap_remove(place);
                    *newest = stream;
                    return Ok(Some(address));
                }
                Ok(false) => place += 1,
                Err(error) => {
                    failed = Some(error);
                    self.earlier.remove(place);
                }
            }
        }
        let is_under_way = match newest.is_connected() {
            Ok(true) => return Ok(Some(self.newest)),
            Ok(false) => true,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        if now >= self.until {
            return Err(self.failed(ErrorKind::TimedOut.into()));
        }
        // After a failure at once (RFC 8305, section 5).
        if failed.is_some() || now >= self.next_at {
            match begin_next(&*self.network, &mut self.remaining) {
                Ok(Attempt { address, stream }) => {
                    let before = Attempt {
                        address: mem::replace(&mut self.newest, address),
                        stream: mem::replace(newest, stream),
                    };
                    if is_under_way {
                        self.earlier.push(before);
                    }
                    self.next_at = now + self.stagger;
                    return Ok(None);
                }
                Err(error) => failed = error.or(failed),
            }
        }
        if let Some(error) = failed.filter(|_| !is_under_way) {
            let Some(Attempt { address, stream }) = self.earlier.pop() else {
                return Err(self.failed(error));
            };
            (self.newest, *newest) = (address, stream);
        }
        Ok(None)
    }

    fn failed(&self, source: io::Error) -> LinkError {
        LinkError::Connect { address: self.name.clone(), source }
    }
}

/// Begins to connect to the next address that the system takes. Without one, returns the last
/// error, or `None` if there are no addresses.
fn begin_next(
    network: &dyn Network,
    remaining: &mut VecDeque<SocketAddr>,
) -> Result<Attempt, Option<io::Error>> {
    let mut last = None;
    while let Some(address) = remaining.pop_front() {
        match network.connect(&address) {
            Ok(stream) => return Ok(Attempt { address, stream }),
            Err(error) => last = Some(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
