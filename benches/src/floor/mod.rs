//! The floor: the same physical work, posted raw.
//!
//! The floor is what a careful program with real NICs would write by hand without the engine's
//! additions: no routing, no order of reports, no recovery. Its work on the device is the engine's:
//! the same requests in the same batches, one doorbell per batch, polls with the same room. The
//! tests compare the two with [`crate::counted`].
//!
//! # What is known when
//!
//! | when | what |
//! |---|---|
//! | compile time | the opcode of a row, the format of DQPLB's immediates, the room of a poll |
//! | set-up, at run time | rails, their number and devices; bytes of a fragment; bytes of a request that go to one rail in one batch; the low-water mark of receives |
//! | each request | its `wr_id`, local and remote address and length; its keys, found by the place of the rail's device |
//! | each completion | what it belongs to, by its `wr_id`; its status; the immediate of an arriving message |
//!
//! So the number of requests in a burst, and of fragments and rails of a request, is unknown before
//! the request itself. A request in several batches counts its unacknowledged batches, because
//! otherwise the end of the buffer's use would be unknown. Divisions are not needed: a request is
//! split at steps that are known since set-up.

mod many;
mod messages;
mod receiver;
mod single;
mod striped;

pub use many::Many;
pub use messages::Messages;
pub use receiver::Receiver;
pub use single::Single;
pub use striped::Striped;

use crate::workload::{BLANK_REQUEST, Message, POLL};
use polyrail_core::hardware::{CompletionQueue, QueuePair, SendBatch};
use polyrail_core::verbs::{Completion, DeviceKeys, SendFlags, SendRequest};
use std::mem::MaybeUninit;

/// A queue pair, and where in lists of keys those for its device are.
#[derive(Debug)]
struct Rail<Q> {
    qp: Q,
    keys_at: usize,
}

impl<Q: QueuePair> Rail<Q> {
    /// # Panics
    ///
    /// If there are no keys for the device.
    fn new(qp: Q, keys: &[DeviceKeys]) -> Self {
        let device = qp.device();
        let keys_at = keys.iter().position(|keys| keys.device == device);
        Self { qp, keys_at: keys_at.expect("keys for every device") }
    }
}

/// A WRITE of `length` bytes of a message from `offset` on.
#[inline]
fn write(
    (message, offset, length): (&Message, u32, u32),
    wr_id: u64,
    keys: DeviceKeys,
    flags: SendFlags,
) -> SendRequest {
    SendRequest {
        wr_id,
        flags,
        sge: message.part(offset, length).sge(keys.lkey),
        remote_addr: message.remote_addr + u64::from(offset),
        rkey: keys.rkey,
        ..BLANK_REQUEST
    }
}

/// Posts one request with a separate doorbell.
#[inline]
fn post_one(qp: &mut impl QueuePair, request: &SendRequest) {
    let mut batch = qp.start_send();
    batch.add(request);
    commit(batch);
}

/// Polls once, with the usual room, and hands over what there was.
#[inline]
fn poll(cq: &mut impl CompletionQueue, mut each: impl FnMut(&Completion)) {
    let mut records = [const { MaybeUninit::uninit() }; POLL];
    cq.poll(&mut records).expect("the null device does not fail").iter().for_each(&mut each);
}

#[inline]
fn commit(batch: impl SendBatch) {
    batch.commit().expect("the null device takes everything");
}
