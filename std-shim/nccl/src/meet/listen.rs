//! The end that listens, which is the receiver.

use super::call::{Call, Hello, Link, Message};
use super::door::{self, Caller, Door};
use super::handle::Handle;
use super::site::{Joining, Met, NotMade, Site, give_up, session};
use super::terms::Terms;
use crate::guard::{Code, Refusal};
use crate::log;
use polyrail::chain::Chain;
use polyrail::interfaces::{InterfaceFilter, reachable_at};
use polyrail::link::LinkError;
use polyrail::p2p::End;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum senders that are answered at a time; others wait.
pub(super) const MOST_ANSWERED: usize = 64;

/// Time that a sender has to connect its end, if others need its place. Over RoCE the kernel may
/// search for a path for a second.
const GRACE: Duration = Duration::from_secs(2);

/// The end that listens.
pub(crate) struct Listener {
    site: Site,
    door: Arc<Door>,
    number: u64,
    /// The next sender, while this host has no file descriptor for this side's end. With the time
    /// since when it waits.
    lacking: Option<(Caller, Instant)>,
    answered: Vec<Answered>,
}

/// A sender that was answered, and this side's end for it.
struct Answered {
    link: Box<Link>,
    address: SocketAddr,
    since: Instant,
    joining: Joining,
    /// Whether the sender was sent that this side's end is connected.
    is_ready: bool,
    /// Whether the sender's end is connected.
    peer_is_ready: bool,
    terms: Terms,
}

impl Listener {
    /// Begins to listen, and returns the handle to connect with.
    pub(crate) fn new(site: Site) -> Result<(Self, Handle), Refusal> {
        let door = door::open(local_address(&site)?, site.timeouts())?;
        let number = door.listen();
        let handle = Handle {
            address: door.address(),
            token: door.token(),
            listener: number,
            devices: site.device.nics.count().min(u8::MAX.into()) as u8,
            rails: site.settings.rails,
            queue_pairs_per_rail: site.settings.queue_pairs_per_rail,
            reroutes: site.settings.healing,
            backend: site.settings.backend,
            process: site.process,
        };
        Ok((Self { site, door, number, lacking: None, answered: Vec::new() }, handle))
    }

    /// Serves senders, and returns the next connected end, if there is one. Never waits.
    pub(crate) fn accept(&mut self) -> Result<Option<Met>, Refusal> {
        self.door.answer();
        while self.make_room()
            && let Some((mut caller, since)) = self.next_caller()
        {
            match admit(&self.site, &caller.hello, &caller.call) {
                Ok(joining) => self.answered.extend(welcome(caller, joining)?),
                Err(NotMade { lacks_descriptor: true, .. })
                    if since.elapsed() < self.site.settings.connect_timeout =>
                {
                    self.lacking = Some((caller, since));
                    break;
                }
                Err(NotMade { refusal, .. }) => return Err(give_up(&mut caller.link, refusal)),
            }
        }
        let mut at = 0;
        while at < self.answered.len() {
            let answered = &mut self.answered[at];
            match answered.joining.step() {
                Ok(true) if !answered.is_ready => {
                    answered.is_ready = true;
                    if let Err(error) = answered.link.offer(&Message::Ready {}) {
                        self.dropped(at, &Chain(&error).to_string());
                        continue;
                    }
                }
                Ok(_) => {}
                Err(refusal) => {
                    let Answered { mut link, .. } = self.answered.swap_remove(at);
                    return Err(give_up(&mut link, refusal));
                }
            }
            if answered.is_ready && answered.peer_is_ready {
                let answered = self.answered.swap_remove(at);
                let Answered { link, address: peer, since, joining, terms, .. } = answered;
                let door = Some(Arc::clone(&self.door));
                return Ok(Some(Met { wire: joining.wire, link, peer, terms, since, door }));
            }
            let is_late = answered.since.elapsed() >= self.site.settings.connect_timeout;
            match answered.link.try_recv() {
                // Otherwise it waits for this side.
                Ok(None) if answered.is_ready && is_late => self.dropped(at, "it is silent"),
                Ok(None) => at += 1,
                Ok(Some(Message::Resumed {})) => {}
                Ok(Some(Message::Ready {})) => answered.peer_is_ready = true,
                // The sender cannot be connected.
                Ok(Some(Message::Failed { reason })) => {
                    self.answered.swap_remove(at);
                    return Err(Refusal::new(Code::Remote, format!("the peer: {reason}")));
                }
                Ok(Some(message)) => {
                    let error = LinkError::from(message.out_of_turn("\"ready\""));
                    self.dropped(at, &error.to_string());
                }
                Err(error) => self.dropped(at, &Chain(&error).to_string()),
            }
        }
        Ok(None)
    }

    /// Returns the next sender, and since when it has waited for a file descriptor of this side.
    fn next_caller(&mut self) -> Option<(Caller, Instant)> {
        let next = || self.door.caller(self.number).map(|caller| (caller, Instant::now()));
        self.lacking.take().or_else(next)
    }

    /// Returns whether another sender can be answered. If senders wait and there is no room, drops
    /// the sender that was answered first, at least [`GRACE`] ago: one for which this side is
    /// ready, if there is one.
    fn make_room(&mut self) -> bool {
        if self.answered.len() >= MOST_ANSWERED && self.door.is_called(self.number) {
            // This side may never be ready for a sender that says that it is.
            let late = |answered: &Answered| answered.since.elapsed() >= GRACE;
            let all = self.answered.iter().enumerate().filter(|(_, answered)| late(answered));
            let first = all.min_by_key(|(_, answered)| (!answered.is_ready, answered.since));
            if let Some((at, _)) = first {
                self.dropped(at, "it is not ready, and others need its place");
            }
        }
        self.answered.len() < MOST_ANSWERED
    }

    /// Logs that a sender was dropped, which is not an error of this side.
    fn dropped(&mut self, at: usize, why: &str) {
        let Answered { address, joining, .. } = self.answered.swap_remove(at);
        log::info(&format!("a connection from {address} is dropped: {why}"));
        if let Some(error) = joining.failure() {
            log::info(&format!("its end here was not connected: {}", Chain(error)));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.door.close(self.number);
    }
}

/// Returns the address at which senders reach this process: the best one of the selected network
/// devices.
fn local_address(site: &Site) -> Result<SocketAddr, Refusal> {
    let interfaces = &site.settings.interfaces;
    // Software NICs connect only within this process, which may have no other address.
    if site.is_software() && *interfaces == InterfaceFilter::all() {
        return Ok((Ipv4Addr::LOCALHOST, 0).into());
    }
    let words =
        |error: &dyn Error| format!("POLYRAIL_INTERFACE or NCCL_SOCKET_IFNAME: {}", Chain(error));
    let found = reachable_at(0, interfaces);
    let found = found.map_err(|error| Refusal::new(Code::Usage, words(&error)))?;
    let best = found.first().copied();
    best.ok_or_else(|| Refusal::new(Code::Internal, "a list of addresses is empty"))
}

/// Makes this side's end for a sender, and tries to connect it.
fn admit(site: &Site, hello: &Hello, call: &Call) -> Result<Joining, NotMade> {
    site.check_backend(call.backend, call.process)?;
    if !call.terms.fit(&site.settings) {
        let words = "the peer's rails, queue pairs or healing do not fit the settings here";
        return Err(Refusal::new(Code::Usage, words).into());
    }
    let wire = site.wire(call.terms, End::Receiver, Some(&hello.reach))?;
    let mut joining = Joining::new(wire, &hello.reach, site.settings.connect_timeout)?;
    joining.step()?;
    Ok(joining)
}

/// Answers a sender with the address of this side's end.
fn welcome(caller: Caller, joining: Joining) -> Result<Option<Answered>, Refusal> {
    let Caller { mut link, call, address, .. } = caller;
    let since = Instant::now();
    let answer = Hello::without_memory(joining.wire.address().into(), None, session(&link)?);
    match link.offer(&Message::Hello(answer)) {
        Ok(()) => {
            let (is_ready, peer_is_ready, terms) = (false, false, call.terms);
            Ok(Some(Answered { link, address, since, joining, is_ready, peer_is_ready, terms }))
        }
        Err(error) => {
            log::info(&format!("a connection from {address} is dropped: {}", Chain(&error)));
            Ok(None)
        }
    }
}
