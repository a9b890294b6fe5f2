//! The actions of a fabric, as plain data.

use crate::fault::Fault;
use polyrail_core::verbs::{Opcode, WcStatus};
use std::time::Duration;

/// How a turn of a queue pair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnOutcome {
    /// The request was executed and acknowledged.
    Done,
    /// The request failed; its queue pair is in ERR, and the rest was flushed.
    Failed(WcStatus),
    /// The peer has no receive; the request is tried again later.
    NotReady,
    /// The peer did not answer; the request is tried again later.
    NoAnswer,
    /// The peer has accepted a READ or atomic, whose data arrives later. Requests without FENCE may
    /// overtake it meanwhile.
    Deferred,
    /// The queue pair is in ERR: this request and all behind it were flushed.
    Flushed,
}

/// The action of a step. Devices and completion queues are identified by their index on the fabric,
/// so that equal histories compare equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// A queue pair had its turn.
    Executed {
        /// Its device.
        device: u32,
        /// Its number.
        qp_num: u32,
        /// The request.
        wr_id: u64,
        /// Its opcode.
        opcode: Opcode,
        /// The result.
        outcome: TurnOutcome,
    },
    /// A completion can be polled from now on.
    Shown {
        /// The completion queue.
        cq: u32,
        /// The queue pair that it belongs to.
        qp_num: u32,
        /// The request that completed.
        wr_id: u64,
        /// Its status.
        status: WcStatus,
        /// Whether it was a receive.
        is_recv: bool,
    },
    /// Receives of a failed queue pair were flushed.
    FlushedReceives {
        /// Its device.
        device: u32,
        /// Its number.
        qp_num: u32,
    },
    /// A queue pair in ERR took its last receive from a shared receive queue, or will take none.
    LastWqeReached {
        /// Its device.
        device: u32,
        /// Its number.
        qp_num: u32,
    },
    /// Nothing else could happen, so time advanced to `until`.
    Waited {
        /// Time since the fabric's creation.
        until: Duration,
    },
    /// A planned fault happened.
    Struck {
        /// The device.
        device: u32,
        /// What happened to it.
        fault: FaultKind,
    },
}

/// The kind of a fault, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// [`Fault::LinkDown`].
    LinkDown,
    /// [`Fault::LinkUp`].
    LinkUp,
    /// [`Fault::DeviceGone`].
    DeviceGone,
    /// Any other.
    Other,
}

impl From<Fault> for FaultKind {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::LinkDown => Self::LinkDown,
            Fault::LinkUp => Self::LinkUp,
            Fault::DeviceGone => Self::DeviceGone,
            _ => Self::Other,
        }
    }
}
