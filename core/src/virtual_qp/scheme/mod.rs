//! How the receiver of a WRITE_WITH_IMM learns that it is complete: the schemes.
//!
//! A scheme is one place: everything that only [`spray`] or only [`dqplb`] does is in its file, with
//! the state that it takes. [`SchemeRules`] lists what the steps of a request's way ask of it;
//! [`SchemeState`] is the one in use, and nobody asks which it is. To add one, write its file and name
//! it here.

pub(crate) mod dqplb;
mod numbering;
mod rules;
mod spray;

pub(super) use numbering::{Numbering, Unnumbered};
pub(super) use rules::{Notification, Receiving, Refused, SchemeRules};
pub(super) use spray::{notified, notified_first, notify_failed};

use super::error::{PostRecvError, PostSendError, ProtocolError};
use super::offers::Offers;
use super::slot::{Recvs, SendSlot, Sends};
use crate::hardware::QueuePair;
use crate::rail::{Rail, RailError};
use crate::verbs::{Opcode, SendWr};
use core::ops::Range;
use dqplb::{Dqplb, PeerWindow, PeerWindowError, SendNumbers, SequenceWindow};
use spray::Spray;

/// How the receiver learns that a WRITE_WITH_IMM is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Fragments travel as plain writes; when all are acknowledged, one zero-length
    /// WRITE_WITH_IMM with the user's immediate follows on the notify queue pair. Of a
    /// [signal](crate::verbs::SendWr::signal) that is all there is.
    #[default]
    Spray,
    /// Every fragment is a WRITE_WITH_IMM that carries a sequence number; the receiver counts. A
    /// [signal](crate::verbs::SendWr::signal) is one fragment without bytes.
    /// Saves a round trip; the user's immediate does not travel. Plain WRITEs and READs carry no number,
    /// so a WRITE_WITH_IMM behind some waits until they, and what was posted before them, are
    /// acknowledged: a notification tells of everything that was posted before it (of SENDs and
    /// atomics as [`PassThroughOrder`](super::PassThroughOrder) says).
    Dqplb,
}

impl Scheme {
    /// Whether its immediates travel on a queue pair of their own, the notify queue pair.
    pub const fn uses_notify_qp(self) -> bool {
        matches!(self, Self::Spray)
    }

    /// Whether it posts receives of its own on every data rail.
    pub const fn receives_on_rails(self) -> bool {
        matches!(self, Self::Dqplb)
    }
}

/// The scheme in use, with its state.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "no allocation: both are as large as rails demand")]
pub(super) enum SchemeState<Q, const RAILS: usize, const DEPTH: usize> {
    Spray(Spray<Q, DEPTH>),
    Dqplb(Dqplb<RAILS, DEPTH>),
}

/// Asks whichever scheme is in use.
macro_rules! ask {
    ($scheme:ident.$method:ident($($argument:expr),*)) => {
        match $scheme {
            SchemeState::Spray(rules) => {
                SchemeRules::<Q, RAILS, DEPTH>::$method(rules, $($argument),*)
            }
            SchemeState::Dqplb(rules) => {
                SchemeRules::<Q, RAILS, DEPTH>::$method(rules, $($argument),*)
            }
        }
    };
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize> SchemeState<Q, RAILS, DEPTH> {
    /// Before the queue pairs are known.
    pub(super) const NONE: Self = Self::Spray(Spray::new(None));

    /// The scheme at the beginning. `notify` is its notify queue pair, if it has one; `peer` what the
    /// peer is taken to be until its card is known, over `rails` rails.
    pub(super) fn new(
        scheme: Scheme,
        notify: Option<Rail<Q, DEPTH>>,
        peer: PeerWindow,
        rails: usize,
    ) -> Self {
        match scheme {
            Scheme::Spray => Self::Spray(Spray::new(notify)),
            Scheme::Dqplb => Self::Dqplb(Dqplb::new(peer, rails)),
        }
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize> SchemeRules<Q, RAILS, DEPTH>
    for SchemeState<Q, RAILS, DEPTH>
{
    #[inline]
    fn notify(&self) -> Option<&Rail<Q, DEPTH>> {
        ask!(self.notify())
    }

    #[inline]
    fn notify_mut(&mut self) -> Option<&mut Rail<Q, DEPTH>> {
        ask!(self.notify_mut())
    }

    fn check_send(&self, opcode: Opcode) -> Result<(), PostSendError> {
        ask!(self.check_send(opcode))
    }

    #[inline]
    fn prepare(&self, wr: &SendWr<'_>, slot: &mut SendSlot<RAILS>) -> Result<(), PostSendError> {
        ask!(self.prepare(wr, slot))
    }

    #[inline]
    fn holds_back(
        &self,
        slot: &SendSlot<RAILS>,
        oldest_in_flight: Option<u64>,
        pass_through_ahead: bool,
    ) -> bool {
        ask!(self.holds_back(slot, oldest_in_flight, pass_through_ahead))
    }

    #[inline]
    fn numbers(&mut self) -> Option<&mut SendNumbers> {
        ask!(self.numbers())
    }

    #[inline]
    fn dispatched(&mut self, id: u64, slot: &SendSlot<RAILS>) {
        ask!(self.dispatched(id, slot));
    }

    fn post_notifies<const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
        requests: Range<u64>,
        offers: &mut Offers,
    ) -> Result<bool, Refused> {
        ask!(self.post_notifies(sends, requests, offers))
    }

    fn retry_notifies<const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
        offers: &mut Offers,
    ) -> Result<(), Refused> {
        ask!(self.retry_notifies(sends, offers))
    }

    #[inline]
    fn is_notifying(&self) -> bool {
        ask!(self.is_notifying())
    }

    fn withhold<const WRS: usize>(&mut self, sends: &mut Sends<RAILS, WRS>) {
        ask!(self.withhold(sends));
    }

    fn set_peer_window(&mut self, peer: PeerWindow, rails: usize) -> Result<(), PeerWindowError> {
        ask!(self.set_peer_window(peer, rails))
    }

    fn duplicates(&self) -> u64 {
        ask!(self.duplicates())
    }

    fn prepare_receives(
        &mut self,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), PostRecvError> {
        ask!(self.prepare_receives(receiving))
    }

    fn has_receives_on_rails(&self) -> bool {
        ask!(self.has_receives_on_rails())
    }

    fn post_recv<const WRS: usize>(
        &mut self,
        wr_id: u64,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<Option<RailError>, PostRecvError> {
        ask!(self.post_recv(wr_id, recvs, receiving))
    }

    #[inline]
    fn window(&mut self) -> Option<&mut SequenceWindow<RAILS, DEPTH>> {
        ask!(self.window())
    }

    fn arrived<const WRS: usize>(
        &mut self,
        notification: Notification<'_>,
        recvs: &mut Recvs<WRS>,
    ) -> Result<(), ProtocolError> {
        ask!(self.arrived(notification, recvs))
    }

    #[inline]
    fn settle_receives<const WRS: usize>(
        &mut self,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), RailError> {
        ask!(self.settle_receives(recvs, receiving))
    }

    fn invariants(&self) {
        ask!(self.invariants());
    }
}
