//! A queue pair that connects to its peer: attempts, one after the other.

use crate::clock::now;
use crate::commands::token;
use crate::ending;
use crate::handshake::{Dial, DialError, Stepped};
use crate::shared::{Inbox, QpShared};
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::lock;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::sync::Weak;

/// Pauses between two attempts to connect, in nanoseconds.
const FIRST_PAUSE: u64 = 10_000_000;
const LONGEST_PAUSE: u64 = 1_000_000_000;

/// Nanoseconds in which a connection proves itself.
pub(crate) const PROOF_LIMIT: u64 = 5_000_000_000;

/// A connection that proves itself is waited for once at a time: nothing is reported any more when
/// it has been given to its queue pair, which other threads serve.
pub(crate) const READABLE_ONCE: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ONESHOT);

/// A queue pair that connects to its peer.
#[derive(Debug)]
pub(crate) struct Call {
    qp: Weak<QpShared>,
    /// Its name in the thread. An event of an earlier attempt makes the newest one look in vain.
    pub(crate) name: u64,
    attempt: Option<Dial>,
    /// When the attempt ends, or the next one begins.
    pub(crate) at: u64,
    pause: u64,
}

impl Call {
    pub(crate) fn new(qp: Weak<QpShared>) -> Self {
        Self { qp, name: token(), attempt: None, at: 0, pause: FIRST_PAUSE }
    }
}

/// Ends an attempt whose time is over, and begins the next one. Returns whether the call is over.
pub(crate) fn renew_call(inbox: &Inbox, call: &mut Call, now: u64) -> bool {
    let Some(qp) = call.qp.upgrade() else { return true };
    let is_needed = matches!(qp.state.get(), QpState::Rtr | QpState::Rts);
    if !is_needed || qp.socket.get().is_some() || lock(&qp.queues).requester.is_lost() {
        return true;
    }
    if call.attempt.as_ref().is_some_and(Dial::has_proved) {
        // The other side knows its peer only later.
        call.at = now + PROOF_LIMIT;
        return false;
    }
    call.attempt = None;
    call.at = now + call.pause;
    if !qp.device.carries() {
        return false;
    }
    let Ok(dial) = Dial::begin(&qp) else {
        call.pause = (2 * call.pause).min(LONGEST_PAUSE);
        return false;
    };
    let flags = EventFlags::OUT | EventFlags::ONESHOT;
    let data = EventData::new_u64(call.name);
    let added = dial.as_fd().map(|fd| epoll::add(&inbox.epoll, fd, data, flags));
    if added.is_some_and(|added| added.is_ok()) {
        call.attempt = Some(dial);
        call.at = now + PROOF_LIMIT;
    }
    false
}

/// Goes on with an attempt. Returns whether the call is over.
pub(crate) fn step_call(inbox: &Inbox, call: &mut Call) -> bool {
    let Some(qp) = call.qp.upgrade() else { return true };
    let Some(dial) = &mut call.attempt else { return false };
    let stepped = dial.step(&qp);
    let stepped = stepped.and_then(|stepped| {
        let Some(fd) = dial.as_fd().filter(|_| stepped == Stepped::Waits) else {
            return Ok(stepped);
        };
        let flags =
            if dial.is_connected() { READABLE_ONCE } else { EventFlags::OUT | EventFlags::ONESHOT };
        let watched = epoll::modify(&inbox.epoll, fd, EventData::new_u64(call.name), flags);
        watched.map(|()| stepped).map_err(|_| DialError::Again)
    });
    match stepped {
        Ok(Stepped::Waits) => false,
        Ok(Stepped::Over) => true,
        Err(DialError::Version) => {
            qp.lose(vendor::PEER_VERSION);
            ending::run(&qp);
            true
        }
        Err(DialError::Again) => {
            call.attempt = None;
            call.at = now() + call.pause;
            call.pause = (2 * call.pause).min(LONGEST_PAUSE);
            false
        }
    }
}
