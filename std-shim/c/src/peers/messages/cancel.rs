//! Messages and receives that are taken back.

use super::set::MessagesOn;
use super::under_way::{Entry, Work};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::peers::common::Common;
use crate::peers::object::on_messages;
use crate::table::exclusive;
use crate::types::Peers;
use polyrail::backend::Domain;
use polyrail::p2p::CancelError;

/// Returns the code of a request that cannot be taken back.
fn cannot_cancel(error: &CancelError) -> Failure {
    let code = match error {
        CancelError::Failed(_) => Code::Failed,
        CancelError::NotRerouting => Code::State,
        CancelError::Peer { .. } | CancelError::OneWay => Code::Unsupported,
        CancelError::NoRequest { .. }
        | CancelError::AlreadyCancelled { .. }
        | CancelError::TooLate { .. } => Code::Request,
    };
    Failure::of(code, error)
}

impl<D: Domain> MessagesOn<D> {
    fn cancel(&mut self, common: &Common, number: u64) -> Result<(), Refusal> {
        let Entry { peer, work } = *self.under_way.get(number)?;
        let member = self.member(common, peer)?;
        let cancelled = match work {
            Work::Send(handle) => member.cancel_send(handle),
            Work::Receive(handle) => member.cancel_recv(handle),
            Work::Kept(_) | Work::Flush(_) => {
                return refuse(Code::Request, "the receive is done: it is too late");
            }
        };
        Ok(cancelled.map_err(|error| cannot_cancel(&error))?)
    }
}

/// Takes a message or a receive back that is under way. polyrail_messages_test returns what became
/// of it: POLYRAIL_CODE_TAKEN_BACK, or POLYRAIL_CODE_OK if it was delivered in time. The peer's
/// request has the same result. Until then, its memory belongs to the devices. A receive that is
/// taken back is used up: the peer's next message goes to the one behind it. What is in flight is
/// awaited for cancel_grace_us; then the queue pairs that carry it are fenced and replaced. Both
/// ends must go on with polls.
///
/// POLYRAIL_CODE_REQUEST: there is no such request, it is done but for its test, or it is being
/// taken back already. POLYRAIL_CODE_STATE: without rerouting (POLYRAIL_RAIL_FAILURE_REROUTE).
/// POLYRAIL_CODE_UNSUPPORTED: the peer has a version of this library that cannot do so.
/// POLYRAIL_CODE_FAILED: the connection failed; polyrail_messages_test returns that, too.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_messages_cancel(peers: *mut Peers, request: u64) -> Code {
    call(
        || on_messages!(&mut *exclusive(peers)?, (common, messages) => messages.cancel(common, request)),
    )
}
