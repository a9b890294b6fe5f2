//! Requests that are taken back.

use super::set::RequestsOn;
use crate::arguments::out;
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::peers::common::Common;
use crate::peers::object::on_requests;
use crate::table::exclusive;
use crate::types::Peers;
use polyrail::backend::Domain;
use polyrail::virtual_qp::CancelError;

/// Returns the code of a peer whose requests cannot be taken back.
fn cannot_cancel(error: &CancelError) -> Failure {
    let code = match error {
        CancelError::InErrorState => Code::Failed,
        CancelError::Peer { .. } => Code::Unsupported,
        // Of all requests with an id, none is refused for what it is.
        _ => Code::State,
    };
    Failure::of(code, error)
}

impl<D: Domain> RequestsOn<D> {
    fn cancel(&mut self, common: &Common, peer: u64, id: u64) -> Result<usize, Refusal> {
        let qp = self.member(common, peer)?;
        match qp.cancel_all(id).map_err(|error| cannot_cancel(&error))? {
            0 => {
                refuse(Code::Request, format_args!("no request with id {id:#x} can be taken back"))
            }
            count => Ok(count),
        }
    }
}

/// Takes back all WRITEs and READs of a peer that have this `id` and are under way, and stores
/// their number. Nothing more of them is posted, and each is reported by a later poll: as
/// POLYRAIL_STATUS_CANCELLED with the number of bytes that may have been written, or as a success
/// if it was done in time. Until then, its memory belongs to the devices. What is in flight is
/// awaited for cancel_grace_us; then the rails that carry it are fenced and get new queue pairs.
/// Other requests are not affected, except that they may take longer.
///
/// POLYRAIL_CODE_REQUEST: no such request is under way, or it is done but for its report, its
/// receiver is being notified, it is being taken back already, or it is a SEND or an atomic.
/// POLYRAIL_CODE_STATE: without rerouting (POLYRAIL_RAIL_FAILURE_REROUTE, at least 2 rails).
/// POLYRAIL_CODE_UNSUPPORTED: the peer has a version of this library that cannot do so. Peers for
/// requests only: POLYRAIL_CODE_KIND for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peers_cancel(
    peers: *mut Peers,
    peer: u64,
    id: u64,
    count: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let count = unsafe { out(count, "count") }?;
        let cancelled = on_requests!(&mut *exclusive(peers)?, (common, requests) => {
            requests.cancel(common, peer, id)
        });
        count.write(cancelled?);
        Ok(())
    })
}
