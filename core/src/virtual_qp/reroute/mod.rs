//! Rails that fail, with [`RailFailure::Reroute`](super::RailFailure::Reroute).
//!
//! The steps from failure to return are those of every end (`rail::rails`). Here is what they mean
//! for requests:
//!
//! 1. `stop`: a completion failed, a driver refused, the owner or the peer reported a failure. What
//!    is in flight on the rail succeeds or is lost (`rail::in_flight`).
//! 2. `fence`: with the peer's count, what arrived of what was lost is done.
//! 3. `again`: what did not arrive is posted again on rails with credits, plain fragments already
//!    before the peer's count; SENDs and notifies on the new queue pair of their rail.
//! 4. `replace`: a new queue pair takes the rail's place, and its receives are posted.
//!
//! `rails` has these as one end's part of the common steps, and `give_up` is the end of a virtual
//! queue pair that cannot go on.
//!
//! As long as it is unknown what arrived of what a rail lost, nothing in the ring moves past
//! `posted`: the copy that was posted again may be acknowledged while the lost copy can still be
//! executed, so the request must not be reported yet.

mod again;
mod fence;
mod give_up;
mod rails;
mod replace;
mod stop;
