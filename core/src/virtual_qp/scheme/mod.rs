//! The schemes: how a receiver is notified that a WRITE_WITH_IMM is complete.
//!
//! [`SchemeState`] is the scheme in use. A step that differs between the schemes matches on it
//! once, and questions of several steps are methods here. The code and the state of each scheme are
//! in [`spray`] and [`dqplb`].

pub(crate) mod dqplb;
mod numbering;
mod shared;
mod spray;

pub(super) use numbering::{Numbering, Unnumbered};
pub(super) use shared::{Notification, Offers, Receiving};
pub(super) use spray::{Refused, notified, notified_first, notify_failed};

use super::slot::{SendSlot, Sends};
use crate::hardware::QueuePair;
use crate::rail::Rail;
use dqplb::{Dqplb, PeerWindow, SendNumbers};
use spray::Spray;

/// How a receiver is notified that a WRITE_WITH_IMM is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Fragments travel as plain writes; when all are acknowledged, one zero-length
    /// WRITE_WITH_IMM with the user's immediate follows on the notify queue pair. Of a
    /// [signal](crate::verbs::SendWr::signal) that is all there is. A request of one fragment and one
    /// buffer, posted by itself with nothing unacknowledged before it, is usually one WRITE_WITH_IMM on
    /// the notify queue pair, data included, which saves a round trip.
    #[default]
    Spray,
    /// Every fragment is a WRITE_WITH_IMM that carries a sequence number; the receiver counts. A
    /// [signal](crate::verbs::SendWr::signal) is one fragment without bytes. Saves a round trip;
    /// the user's immediate does not travel. Plain WRITEs and READs carry no number, so a
    /// WRITE_WITH_IMM behind some waits until they, and what was posted before them, are
    /// acknowledged: a notification tells of everything that was posted before it (of SENDs and
    /// atomics as [`PassThroughOrder`](super::PassThroughOrder) says).
    Dqplb,
}

impl Scheme {
    /// Returns whether its immediates use a separate queue pair, the notify queue pair.
    pub const fn uses_notify_qp(self) -> bool {
        matches!(self, Self::Spray)
    }

    /// Returns whether it posts receives on every data rail.
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

    /// The scheme at the beginning. `notify` is its notify queue pair, if it has one; `peer` what
    /// the peer is taken to be until its card is known, over `rails` rails.
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
        let Self::Spray(spray) = self else { return None };
        spray.notify.as_ref()
    }

    /// The queue pair that a scheme has beside the data rails.
    #[inline]
    pub(super) fn notify_mut(&mut self) -> Option<&mut Rail<Q, DEPTH>> {
        let Self::Spray(spray) = self else { return None };
        spray.notify.as_mut()
    }

    /// Returns the numbers for the fragments of a request with numbers, unless the request has to
    /// wait for earlier ones.
    #[inline]
    pub(super) fn numbers_for(
        &mut self,
        slot: &SendSlot<RAILS>,
        oldest_in_flight: Option<u64>,
        pass_through_ahead: bool,
    ) -> Option<&mut SendNumbers> {
        let Self::Dqplb(dqplb) = self else { return None };
        dqplb.numbers_for(slot, oldest_in_flight, pass_through_ahead)
    }

    /// Takes back the numbers of the last `count` fragments, of which a driver took none.
    pub(super) fn take_back_numbers(&mut self, count: u32) {
        // SPRAY has no numbers, and asks for none: its fragments are `Unnumbered`.
        let Self::Dqplb(dqplb) = self else { return };
        dqplb.take_back_numbers(count);
    }

    /// Notes that all of a request is with the rails.
    #[inline]
    pub(super) fn dispatched(&mut self, id: u64, slot: &SendSlot<RAILS>) {
        let Self::Dqplb(dqplb) = self else { return };
        dqplb.dispatched(id, slot);
    }

    /// Returns whether a notify waits for its acknowledgement.
    #[inline]
    pub(super) fn is_notifying(&self) -> bool {
        matches!(self, Self::Spray(spray) if spray.is_notifying())
    }

    /// Withholds the rest of a batch of notifies that the driver took in part, because the virtual
    /// queue pair failed.
    pub(super) fn withhold<const WRS: usize>(&mut self, sends: &mut Sends<RAILS, WRS>) {
        let Self::Spray(spray) = self else { return };
        spray.withhold(sends);
    }

    /// Returns whether the data rails' receive queues have receives of the scheme.
    pub(super) fn has_receives_on_rails(&self) -> bool {
        matches!(self, Self::Dqplb(dqplb) if dqplb.is_prepared())
    }
}
