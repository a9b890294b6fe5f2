//! The queue pairs for flushes.

use crate::hardware::QueuePair;
use crate::p2p::error::BuildError;
use crate::p2p::lane::Lane;
use crate::rail::MAX_RAILS;
use arrayvec::ArrayVec;

/// A queue pair that is connected to itself.
#[derive(Debug)]
pub(super) struct FlushLane<Q, const DEPTH: usize> {
    pub(super) lane: Lane<Q, DEPTH>,
    pub(super) posted: u64,
    pub(super) succeeded: u64,
}

/// Makes lanes for flushes.
pub(super) fn lanes<Q: QueuePair, const DEPTH: usize>(
    queue_pairs: impl IntoIterator<Item = Q>,
) -> Result<ArrayVec<FlushLane<Q, DEPTH>, MAX_RAILS>, BuildError> {
    let mut lanes = ArrayVec::<FlushLane<Q, DEPTH>, MAX_RAILS>::new();
    for qp in queue_pairs {
        let lane = Lane::new(qp, lanes.len(), MAX_RAILS as u8);
        lane.check(1)?;
        let device = lane.device;
        let is_new = lanes.iter().all(|other| other.lane.device != device);
        let given = lanes.len() + 1;
        if !is_new {
            return Err(BuildError::Account { device });
        }
        let all = BuildError::QueuePairs { given, rails: MAX_RAILS as u8, max: MAX_RAILS };
        lanes.try_push(FlushLane { lane, posted: 0, succeeded: 0 }).map_err(|_| all)?;
    }
    Ok(lanes)
}
