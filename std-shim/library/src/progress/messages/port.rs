//! The thread's side of one handle.

use super::desk::Desk;
use super::error::P2pError;
use super::kind::{Flushes, Kind, Receives, Sends};
use super::lane::Lane;
use crate::backend::Domain;
use crate::p2p::P2pMember;
use crate::progress::replies::replies;
use crate::progress::set::Port;
use crate::progress::submit::submitter;

/// The thread's side of one handle.
#[derive(Debug)]
pub(super) struct P2pPort {
    /// The number of its member.
    pub(super) member: usize,
    sends: Desk<Sends>,
    receives: Desk<Receives>,
    flushes: Desk<Flushes>,
}

/// The handle's side: a lane for each kind.
pub(super) type Lanes = (LaneOf<Sends>, LaneOf<Receives>, LaneOf<Flushes>);

/// The handle's lane for a kind.
pub(super) type LaneOf<K> = Lane<<K as Kind>::Request, Result<<K as Kind>::Value, P2pError>>;

/// Makes both sides of a handle.
pub(super) fn port(member: usize) -> (Lanes, P2pPort) {
    let (send_lane, sends) = lane();
    let (recv_lane, receives) = lane();
    let (flush_lane, flushes) = lane();
    ((send_lane, recv_lane, flush_lane), P2pPort { member, sends, receives, flushes })
}

/// Makes both sides of one kind.
fn lane<K: Kind>() -> (LaneOf<K>, Desk<K>) {
    let (requests, consumer) = submitter();
    let (replies, reporter) = replies();
    (Lane::new(requests, replies), Desk::new(consumer, reporter))
}

impl P2pPort {
    /// Starts what can be started; returns whether anything moved. Receives first: they let peers go on.
    pub(super) fn start<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let received = self.receives.start(member);
        let sent = self.sends.start(member);
        self.flushes.start(member) || received || sent
    }

    /// Reports what has ended; returns whether anything had.
    pub(super) fn finish<D: Domain>(&mut self, member: &mut P2pMember<D>) -> bool {
        let received = self.receives.finish(member);
        let sent = self.sends.finish(member);
        self.flushes.finish(member) || received || sent
    }

    /// Whether the thread has something to do with requests that it took.
    pub(super) fn is_busy(&self) -> bool {
        self.sends.is_busy() || self.receives.is_busy() || self.flushes.is_busy()
    }

    /// Whether a message waits for a buffer of the peer's.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.sends.has_waiting()
    }
}

impl Port for P2pPort {
    fn has_news(&self) -> bool {
        let Self { sends, receives, flushes, .. } = self;
        sends.has_news() || receives.has_news() || flushes.has_news() || self.is_done()
    }

    fn has_sent(&self) -> bool {
        self.sends.is_idle() && self.flushes.is_idle()
    }

    fn is_drained(&self) -> bool {
        self.has_sent() && self.receives.is_idle()
    }

    fn is_done(&self) -> bool {
        self.sends.is_done() && self.receives.is_done() && self.flushes.is_done()
    }
}
