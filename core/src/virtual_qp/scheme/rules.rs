//! What the steps of a request's way ask of a scheme.

use super::dqplb::{PeerWindow, PeerWindowError, SendNumbers, SequenceWindow};
use crate::hardware::QueuePair;
use crate::rail::{Rail, RailError, RailId};
use crate::verbs::{Completion, ImmOrder, Opcode, SendWr};
use crate::virtual_qp::error::{PostRecvError, PostSendError, ProtocolError};
use crate::virtual_qp::offers::Offers;
use crate::virtual_qp::slot::{Recvs, SendSlot, Sends};
use core::ops::Range;

/// What a scheme needs of its virtual queue pair to post receives.
pub(in crate::virtual_qp) struct Receiving<'q, Q, const DEPTH: usize> {
    /// The data rails.
    pub(in crate::virtual_qp) rails: &'q mut [Rail<Q, DEPTH>],
    pub(in crate::virtual_qp) offers: &'q mut Offers,
    /// Rail 0's receive queue is used for data receives.
    pub(in crate::virtual_qp) serves_data: bool,
    /// The virtual queue pair is in the error state.
    pub(in crate::virtual_qp) failed: bool,
}

/// The completion of a receive that the scheme posted.
pub(in crate::virtual_qp) struct Notification<'c> {
    pub(in crate::virtual_qp) rail: RailId,
    pub(in crate::virtual_qp) completion: &'c Completion,
    /// How users' immediates travel.
    pub(in crate::virtual_qp) imm_order: ImmOrder,
}

/// A driver refused for good a part of a request.
pub(in crate::virtual_qp) struct Refused {
    /// Its id in the ring.
    pub(in crate::virtual_qp) request: u64,
    pub(in crate::virtual_qp) error: RailError,
}

/// A scheme, in the order of a request's way. What a scheme does not do has a default here.
///
/// Where a [`RailError`] is returned, a driver refused something for good: its rail fails with it.
pub(in crate::virtual_qp) trait SchemeRules<Q: QueuePair, const RAILS: usize, const DEPTH: usize> {
    /// Its queue pair beside the data rails.
    fn notify(&self) -> Option<&Rail<Q, DEPTH>> {
        None
    }

    /// Its queue pair beside the data rails.
    fn notify_mut(&mut self) -> Option<&mut Rail<Q, DEPTH>> {
        None
    }

    /// Refuses SENDs if the peer's receives cannot take them.
    fn check_send(&self, _opcode: Opcode) -> Result<(), PostSendError> {
        Ok(())
    }

    /// Prepares the slot of a WRITE_WITH_IMM.
    fn prepare(&self, wr: &SendWr<'_>, slot: &mut SendSlot<RAILS>) -> Result<(), PostSendError>;

    /// Whether a request with numbered fragments has to wait for earlier ones.
    fn holds_back(
        &self,
        _slot: &SendSlot<RAILS>,
        _oldest_in_flight: Option<u64>,
        _pass_through_ahead: bool,
    ) -> bool {
        false
    }

    /// The numbers of its fragments, if it numbers them.
    fn numbers(&mut self) -> Option<&mut SendNumbers> {
        None
    }

    /// All of a request is with the rails.
    fn dispatched(&mut self, _id: u64, _slot: &SendSlot<RAILS>) {}

    /// Posts the notifies of those of the `requests` that are acknowledged, as one batch and as far as
    /// there are credits. Returns whether any went out. The first one wants a notify.
    fn post_notifies<const WRS: usize>(
        &mut self,
        _sends: &mut Sends<RAILS, WRS>,
        _requests: Range<u64>,
        _offers: &mut Offers,
    ) -> Result<bool, Refused> {
        Ok(false)
    }

    /// Offers the driver the rest of a batch of notifies that it took in part.
    fn retry_notifies<const WRS: usize>(
        &mut self,
        _sends: &mut Sends<RAILS, WRS>,
        _offers: &mut Offers,
    ) -> Result<(), Refused> {
        Ok(())
    }

    /// Whether a notify waits for its acknowledgement.
    fn is_notifying(&self) -> bool {
        false
    }

    /// The virtual queue pair failed: what the driver owes of a batch of notifies is not sent any more.
    fn withhold<const WRS: usize>(&mut self, _sends: &mut Sends<RAILS, WRS>) {}

    /// How far the peer lets this side run ahead.
    fn set_peer_window(&mut self, _peer: PeerWindow, _rails: usize) -> Result<(), PeerWindowError> {
        Ok(())
    }

    /// Fragments that arrived twice.
    fn duplicates(&self) -> u64 {
        0
    }

    /// Posts the receives that the scheme needs on the data rails, before the peer may send.
    fn prepare_receives(
        &mut self,
        _receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), PostRecvError> {
        Ok(())
    }

    /// Whether receives of the scheme's own use the data rails' receive queues.
    fn has_receives_on_rails(&self) -> bool {
        false
    }

    /// Takes a user's receive for a notification. An error inside `Ok` is a complaint of a driver that
    /// took it all the same.
    fn post_recv<const WRS: usize>(
        &mut self,
        wr_id: u64,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<Option<RailError>, PostRecvError>;

    /// Where the numbers of arriving fragments are noted, if the scheme numbers them.
    fn window(&mut self) -> Option<&mut SequenceWindow<RAILS, DEPTH>> {
        None
    }

    /// One of its receives completed.
    fn arrived<const WRS: usize>(
        &mut self,
        notification: Notification<'_>,
        recvs: &mut Recvs<WRS>,
    ) -> Result<(), ProtocolError>;

    /// Completes the receives that arrivals allow, and posts receives again.
    fn settle_receives<const WRS: usize>(
        &mut self,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), RailError>;

    /// Checks what must hold between any two calls.
    fn invariants(&self) {}
}
