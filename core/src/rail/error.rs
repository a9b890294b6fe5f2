//! How a rail failed, and what it has done so far.

use super::id::RailId;
use crate::verbs::{DeviceId, WcStatus};
use core::fmt;

/// How a rail failed; kept for the first failure of a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailError {
    /// Which rail.
    pub rail: RailId,
    /// Its device.
    pub device: DeviceId,
    /// Its queue pair.
    pub qp_num: u32,
    /// The completion's status; GENERAL_ERR if there was none because the driver refused a post.
    pub status: WcStatus,
    /// The completion's vendor code.
    pub vendor_err: u32,
    /// The driver's code, if it refused a post.
    pub errno: Option<i32>,
    /// First byte, within its request, of the fragment that failed; 0 for everything else.
    pub offset: u32,
}

impl RailError {
    /// Whether another rail may succeed.
    pub(crate) const fn is_of_rail(&self) -> bool {
        // Every other status, a bad key or a bad length, is a mistake of a program. It would fail
        // one rail after the other: `rails-that-fail.md`, "Which errors are a rail's fault".
        matches!(
            self.status,
            WcStatus::LOC_QP_OP_ERR // of some devices, when their port is down
                | WcStatus::RETRY_EXC_ERR
                | WcStatus::RNR_RETRY_EXC_ERR
                | WcStatus::RESP_TIMEOUT_ERR
                | WcStatus::REM_OP_ERR // what a peer's broken completion queue looks like
                | WcStatus::WR_FLUSH_ERR
                | WcStatus::FATAL_ERR
                | WcStatus::GENERAL_ERR // refusals of drivers among them
        )
    }

    /// Whether another rail may succeed after a receive failed in this way.
    pub(crate) const fn is_of_rail_of_receive(&self) -> bool {
        // A receive reports LOC_QP_OP_ERR for a bad buffer, and not for a port that is down.
        self.is_of_rail() && !matches!(self.status, WcStatus::LOC_QP_OP_ERR)
    }

    /// Whether something else failed before.
    pub(crate) fn is_flush(&self) -> bool {
        self.status == WcStatus::WR_FLUSH_ERR
    }

    /// Whether the requests themselves may be the cause.
    pub(crate) const fn suspects_requests(&self) -> bool {
        // A bad key may look the same as a port that is down (LOC_QP_OP_ERR of rxe), so a request
        // that is lost to such failures again and again is given up.
        matches!(self.status, WcStatus::LOC_QP_OP_ERR | WcStatus::FATAL_ERR | WcStatus::GENERAL_ERR)
    }
}

impl fmt::Display for RailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rail, device, qp_num, status, vendor_err, errno, offset } = self;
        write!(f, "{rail} (device {}, queue pair {qp_num}) failed: ", device.0)?;
        // A refusal has no completion, so a status and a vendor code would mean nothing.
        match errno {
            Some(errno) => write!(f, "the driver refused a post with errno {errno}")?,
            None => write!(f, "{status}, vendor code {vendor_err:#x}")?,
        }
        write!(f, ", at offset {offset}")
    }
}

impl core::error::Error for RailError {}

/// What a rail has done so far. Wraps around after 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailCounters {
    /// Payload bytes of send requests handed to the device. While the driver has not taken all of
    /// a batch, all bytes of the batch.
    pub bytes: u64,
    /// Send requests handed to the device: fragments, pass-through requests, notifies.
    pub send_requests: u64,
    /// Doorbells of send requests: one for a batch, and one more for each further part of a batch
    /// that the driver took in parts.
    pub doorbells: u64,
    /// Completions of what the engine posted, of sends and of receives, those out of turn included.
    pub completions: u64,
    /// Failed ones among them, and those that broke DQPLB's or SPRAY's protocol.
    pub errors: u64,
}
