//! Of which request a physical one is a part, and of how much of it.

use crate::rig::{LOCAL, REMOTE};
use polyrail_core::verbs::{Opcode, SendRequest};

/// Address space of one request, so that an address identifies its request.
pub(super) const STRIDE: u64 = 1 << 32;

/// Whether a request moves nothing and notifies no peer: it stands for the rest of a batch that was
/// given up, so that a completion covers the part that was posted.
pub(super) fn is_marker(request: &SendRequest) -> bool {
    request.opcode == Opcode::RdmaWrite && request.sge.length() == 0
}

/// What a fragment counts for: its bytes, or 1 if it is empty.
pub(super) fn units(request: &SendRequest) -> u64 {
    u64::from(request.sge.length().max(1))
}

/// The request of a fragment, and the fragment's place in it.
pub(super) fn place(request: &SendRequest) -> (usize, u64) {
    let at = request.sge.addr() - LOCAL;
    assert!(at == request.remote_addr.wrapping_sub(REMOTE) || request.remote_addr == 0);
    ((at / STRIDE) as usize, at % STRIDE)
}
