//! The three structures that track requests.

use super::request::{DeviceKeysMap, Error, SendWr};
use hashbrown::HashMap;
use polyrail_core::verbs::{LocalBuffer, Opcode, WcOpcode, WcStatus};
use std::collections::VecDeque;

/// A request from post to report (`ActiveVirtualWr`).
#[derive(Clone, Debug)]
pub struct ActiveWr {
    /// The caller's id of the request.
    pub user_wr_id: u64,
    /// Completions still to come, notify included.
    pub remaining: u32,
    /// The first failure.
    pub status: WcStatus,
    /// Opcode of the last completion.
    pub wc_opcode: WcOpcode,
    /// The local buffer.
    pub local: LocalBuffer,
    /// First byte of the remote buffer.
    pub remote_addr: u64,
    /// What to do.
    pub opcode: Opcode,
    /// The caller's immediate.
    pub imm: u32,
    /// Keys of both buffers.
    pub device_keys: DeviceKeysMap,
    /// Bytes posted.
    pub offset: u32,
    /// SPRAY is to notify the receiver.
    pub needs_notify: bool,
    /// It has, or is about to.
    pub notify_posted: bool,
}

impl ActiveWr {
    /// A send of which `remaining` completions will come.
    pub fn send(wr: &SendWr, remaining: u32, needs_notify: bool) -> Self {
        Self {
            user_wr_id: wr.wr_id,
            remaining,
            status: WcStatus::SUCCESS,
            wc_opcode: WcOpcode::SEND,
            local: wr.local,
            remote_addr: wr.remote_addr,
            opcode: wr.opcode,
            imm: wr.imm,
            device_keys: wr.device_keys.clone(),
            offset: 0,
            needs_notify,
            notify_posted: false,
        }
    }

    /// A notification receive.
    pub fn recv(wr_id: u64) -> Self {
        Self {
            user_wr_id: wr_id,
            remaining: 1,
            status: WcStatus::SUCCESS,
            wc_opcode: WcOpcode::SEND,
            local: LocalBuffer::EMPTY,
            remote_addr: 0,
            opcode: Opcode::RdmaWriteWithImm,
            imm: 0,
            device_keys: DeviceKeysMap::new(),
            offset: 0,
            needs_notify: false,
            notify_posted: false,
        }
    }

    /// One completion came in.
    pub fn complete_one(&mut self, status: WcStatus, opcode: WcOpcode) {
        self.remaining -= 1;
        self.wc_opcode = opcode;
        if self.status.is_success() && !status.is_success() {
            self.status = status;
        }
    }
}

/// A map of what is alive, a queue of what waits for posting, a queue of what waits for report.
#[derive(Debug, Default)]
pub struct WrTracker {
    active: HashMap<u64, ActiveWr>,
    pending: VecDeque<u64>,
    outstanding: VecDeque<u64>,
    next_id: u64,
}

impl WrTracker {
    /// Appends a request to both queues. Returns its id.
    pub fn add(&mut self, wr: ActiveWr) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.active.insert(id, wr);
        self.pending.push_back(id);
        self.outstanding.push_back(id);
        id
    }

    /// The request with this id.
    ///
    /// # Errors
    ///
    /// It is not alive.
    pub fn find(&mut self, id: u64) -> Result<&mut ActiveWr, Error> {
        self.active.get_mut(&id).ok_or(Error::NotTracked(id))
    }

    /// Forgets a request; the queues are the caller's business.
    pub fn remove(&mut self, id: u64) {
        self.active.remove(&id);
    }

    /// The oldest request that waits for posting.
    pub fn front_pending(&self) -> Option<u64> {
        self.pending.front().copied()
    }

    /// It is posted.
    pub fn pop_pending(&mut self) {
        self.pending.pop_front();
    }

    /// The oldest request that waits for report.
    pub fn front_finished(&self) -> Option<u64> {
        self.outstanding.front().copied()
    }

    /// It is reported.
    pub fn pop_finished(&mut self) {
        self.outstanding.pop_front();
    }
}
