//! How the receiver of a WRITE_WITH_IMM learns that it is complete: the schemes.
//!
//! [`SchemeState`] is the scheme in use; its methods list, in the order of a request's way, what the
//! steps ask of a scheme. What only [`spray`] or only [`dqplb`] does is in its own file, with the state
//! that it takes. To add a scheme, write its file and a variant here: the compiler names every step
//! that the scheme has to answer.

pub(crate) mod dqplb;
mod numbering;
mod shared;
mod spray;

pub(super) use numbering::{Numbering, Unnumbered};
pub(super) use shared::{Notification, Offers, Receiving};
pub(super) use spray::{Refused, notified, notified_first, notify_failed};

use super::error::{PostRecvError, PostSendError, ProtocolError};
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

    /// The queue pair that a scheme has beside the data rails.
    #[inline]
    pub(super) fn notify(&self) -> Option<&Rail<Q, DEPTH>> {
        match self {
            Self::Spray(spray) => spray.notify.as_ref(),
            Self::Dqplb(_) => None,
        }
    }

    /// The queue pair that a scheme has beside the data rails.
    #[inline]
    pub(super) fn notify_mut(&mut self) -> Option<&mut Rail<Q, DEPTH>> {
        match self {
            Self::Spray(spray) => spray.notify.as_mut(),
            Self::Dqplb(_) => None,
        }
    }

    /// Refuses SENDs if the peer's receives cannot take them.
    pub(super) fn check_send(&self, opcode: Opcode) -> Result<(), PostSendError> {
        match self {
            Self::Spray(_) => Ok(()),
            Self::Dqplb(_) => Err(PostSendError::SendWithDqplb(opcode)),
        }
    }

    /// Prepares the slot of a WRITE_WITH_IMM.
    #[inline]
    pub(super) fn prepare(
        &self,
        wr: &SendWr<'_>,
        slot: &mut SendSlot<RAILS>,
    ) -> Result<(), PostSendError> {
        match self {
            Self::Spray(spray) => spray.prepare(wr, slot),
            Self::Dqplb(_) => Ok(()),
        }
    }

    /// The numbers for a request's fragments, which are numbered, unless the request has to wait for
    /// earlier ones.
    #[inline]
    pub(super) fn numbers_for(
        &mut self,
        slot: &SendSlot<RAILS>,
        oldest_in_flight: Option<u64>,
        pass_through_ahead: bool,
    ) -> Option<&mut SendNumbers> {
        match self {
            Self::Spray(_) => None,
            Self::Dqplb(dqplb) => dqplb.numbers_for(slot, oldest_in_flight, pass_through_ahead),
        }
    }

    /// A driver took none of the last `count` numbered fragments.
    pub(super) fn take_back_numbers(&mut self, count: u32) {
        match self {
            Self::Spray(_) => {}
            Self::Dqplb(dqplb) => dqplb.take_back_numbers(count),
        }
    }

    /// Notes that all of a request is with the rails.
    #[inline]
    pub(super) fn dispatched(&mut self, id: u64, slot: &SendSlot<RAILS>) {
        match self {
            Self::Spray(_) => {}
            Self::Dqplb(dqplb) => dqplb.dispatched(id, slot),
        }
    }

    /// Posts the notifies of those of the `requests` that are acknowledged, as one batch and as far as
    /// there are credits. Returns whether any went out. The first request wants a notify.
    pub(super) fn post_notifies<const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
        requests: Range<u64>,
        offers: &mut Offers,
    ) -> Result<bool, Refused> {
        match self {
            Self::Spray(spray) => spray.post_notifies(sends, requests, offers),
            Self::Dqplb(_) => Ok(false),
        }
    }

    /// Offers the driver the rest of a batch of notifies that it took in part.
    pub(super) fn retry_notifies<const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
        offers: &mut Offers,
    ) -> Result<(), Refused> {
        match self {
            Self::Spray(spray) => spray.retry_notifies(sends, offers),
            Self::Dqplb(_) => Ok(()),
        }
    }

    /// Whether a notify waits for its acknowledgement.
    #[inline]
    pub(super) fn is_notifying(&self) -> bool {
        match self {
            Self::Spray(spray) => spray.is_notifying(),
            Self::Dqplb(_) => false,
        }
    }

    /// The virtual queue pair failed: does not send the rest of a batch of notifies that the driver took
    /// in part.
    pub(super) fn withhold<const WRS: usize>(&mut self, sends: &mut Sends<RAILS, WRS>) {
        match self {
            Self::Spray(spray) => spray.withhold(sends),
            Self::Dqplb(_) => {}
        }
    }

    /// Limits how far this side runs ahead of the peer.
    pub(super) fn set_peer_window(
        &mut self,
        peer: PeerWindow,
        rails: usize,
    ) -> Result<(), PeerWindowError> {
        match self {
            Self::Spray(_) => Ok(()),
            Self::Dqplb(dqplb) => dqplb.set_peer_window(peer, rails),
        }
    }

    /// Fragments that arrived twice.
    pub(super) fn duplicates(&self) -> u64 {
        match self {
            Self::Spray(_) => 0,
            Self::Dqplb(dqplb) => dqplb.duplicates(),
        }
    }

    /// Posts the receives that the scheme needs on the data rails, before the peer may send.
    pub(super) fn prepare_receives(
        &mut self,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), PostRecvError> {
        match self {
            Self::Spray(_) => Ok(()),
            Self::Dqplb(dqplb) => dqplb.prepare_receives(receiving),
        }
    }

    /// Whether the data rails' receive queues hold receives of the scheme.
    pub(super) fn has_receives_on_rails(&self) -> bool {
        match self {
            Self::Spray(_) => false,
            Self::Dqplb(dqplb) => dqplb.is_prepared(),
        }
    }

    /// Takes a user's receive for a notification.
    ///
    /// An error inside `Ok` is a complaint of a driver that took the receive all the same: its rail fails
    /// with the error.
    pub(super) fn post_recv<const WRS: usize>(
        &mut self,
        wr_id: u64,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<Option<RailError>, PostRecvError> {
        match self {
            Self::Spray(spray) => spray.post_recv(wr_id, recvs, receiving),
            Self::Dqplb(dqplb) => dqplb.post_recv(wr_id, recvs, receiving),
        }
    }

    /// The window in which the numbers of arriving fragments are noted, if fragments have numbers.
    #[inline]
    pub(super) fn window(&mut self) -> Option<&mut SequenceWindow<RAILS, DEPTH>> {
        match self {
            Self::Spray(_) => None,
            Self::Dqplb(dqplb) => Some(dqplb.window()),
        }
    }

    /// Takes the completion of a receive that the scheme posted.
    pub(super) fn arrived<const WRS: usize>(
        &mut self,
        notification: Notification<'_>,
        recvs: &mut Recvs<WRS>,
    ) -> Result<(), ProtocolError> {
        match self {
            Self::Spray(spray) => spray.arrived(notification, recvs),
            Self::Dqplb(dqplb) => dqplb.arrived(notification),
        }
    }

    /// Completes the receives that arrivals allow, and posts receives again.
    ///
    /// An error is a driver's refusal for good: its rail fails with the error.
    #[inline]
    pub(super) fn settle_receives<const WRS: usize>(
        &mut self,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), RailError> {
        match self {
            Self::Spray(spray) => spray.settle_receives(recvs, receiving),
            Self::Dqplb(dqplb) => dqplb.settle_receives(recvs, receiving),
        }
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        match self {
            Self::Spray(_) => {}
            Self::Dqplb(dqplb) => dqplb.invariants(),
        }
    }
}
