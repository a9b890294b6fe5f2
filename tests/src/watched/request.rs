//! What is known of an accepted request.

use polyrail_core::verbs::{Opcode, SendFlags, WcStatus};

/// The state of an accepted request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) opcode: Opcode,
    pub(super) flags: SendFlags,
    pub(super) when_done: bool,
    pub(super) bytes: u32,
    /// Its bytes; of a signal that travels as an empty fragment, 1.
    pub(super) length: u64,
    /// Bytes posted, and bytes whose requests ended, well or not.
    pub(super) posted: u64,
    pub(super) ended: u64,
    /// The first thing that went wrong with its bytes, and with its notify.
    pub(super) error: Option<WcStatus>,
    pub(super) notify_error: Option<WcStatus>,
    /// SPRAY: the notify was posted, and acknowledged.
    pub(super) notified: bool,
    pub(super) notify_acknowledged: bool,
    /// SPRAY: the notify carries the data.
    pub(super) with_notify: bool,
    /// What completions have shown: bytes that ended, and that the notify is acknowledged. A batch
    /// shows nothing before its last request.
    pub(super) completed: u64,
    pub(super) notify_completed: bool,
    pub(super) reported: bool,
}

impl Request {
    pub(super) fn is_fragmented(&self) -> bool {
        use Opcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm};
        matches!(self.opcode, RdmaRead | RdmaWrite | RdmaWriteWithImm)
    }

    /// Whether all that precedes its notify, if anything does, was begun.
    pub(super) fn is_started(&self) -> bool {
        self.posted > 0 || self.length == 0
    }

    pub(super) fn data_done(&self) -> bool {
        self.ended == self.length && self.error.is_none()
    }

    /// Whether all of it is acknowledged; over SPRAY that may include a notify.
    pub(super) fn is_done(&self, spray: bool) -> bool {
        let wants_notify = spray && self.opcode == Opcode::RdmaWriteWithImm;
        self.data_done() && (!wants_notify || self.notify_acknowledged)
    }

    /// Whether completions have shown that it is done.
    pub(super) fn is_completed(&self, spray: bool) -> bool {
        let wants_notify = spray && self.opcode == Opcode::RdmaWriteWithImm;
        self.completed == self.length && (!wants_notify || self.notify_completed)
    }

    /// The status that it has to be reported with if it is not done: what never left is flushed.
    pub(super) fn expected_error(&self) -> WcStatus {
        self.error.or(self.notify_error).unwrap_or(WcStatus::WR_FLUSH_ERR)
    }
}
