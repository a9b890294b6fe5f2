//! What users post and get back.

use hashbrown::HashMap;
use polyrail_core::hardware::{CommitError, CqError};
use polyrail_core::verbs::{DeviceId, LocalBuffer, Opcode, SendFlags, WcOpcode, WcStatus};

/// Keys of a buffer on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key of the local buffer.
    pub lkey: u32,
    /// Key of the remote buffer.
    pub rkey: u32,
}

/// Keys of a buffer on every device.
pub type DeviceKeysMap = HashMap<DeviceId, Keys>;

/// A send request (`IbvVirtualSendWr`).
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The caller's name for it.
    pub wr_id: u64,
    /// The local buffer.
    pub local: LocalBuffer,
    /// First byte of the remote buffer.
    pub remote_addr: u64,
    /// What to do.
    pub opcode: Opcode,
    /// How.
    pub flags: SendFlags,
    /// Immediate data.
    pub imm: u32,
    /// Keys of both buffers.
    pub device_keys: DeviceKeysMap,
}

/// A notification receive (`IbvVirtualRecvWr` of length 0).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    /// The caller's name for it.
    pub wr_id: u64,
}

/// A completion (`IbvVirtualWc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualWc {
    /// The caller's id of the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// The virtual queue pair.
    pub qp_num: u32,
    /// Immediate data, in whatever order the path left it in.
    pub imm: u32,
    /// Bytes of the request.
    pub byte_len: u32,
}

/// What goes wrong (`Error`, without its message).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The request has no bytes.
    Empty,
    /// Requests over several queue pairs are signaled.
    Unsignaled,
    /// Not supported over several queue pairs.
    Opcode(Opcode),
    /// The request has no keys for this device.
    MissingKeys(DeviceId),
    /// SPRAY notifies need a separate queue pair.
    NoNotifyQp,
    /// The driver refused.
    Post(CommitError),
    /// Polling failed.
    Poll(CqError),
    /// A completion of a queue pair that is not registered.
    UnknownQp(u32),
    /// A completion that is not its queue pair's next.
    OutOfOrder,
    /// An id in a queue but not in the map.
    NotTracked(u64),
    /// A DQPLB notification before its receive.
    NoReceive,
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        Self::Post(error)
    }
}

impl From<CqError> for Error {
    fn from(error: CqError) -> Self {
        Self::Poll(error)
    }
}
