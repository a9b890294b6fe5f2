//! Connecting in one call: the usual attributes for the usual transitions.

use crate::queue_pair::QueuePair;
use polyrail_nic_parts::address::RemoteQp;
use polyrail_nic_parts::options::ConnectOptions;
use polyrail_nic_parts::state::{ModifyError, QpAttributes, QpState};

impl QueuePair {
    /// Moves the queue pair from RESET to INIT on port 1, so that receives can be posted before the
    /// peer is known.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify).
    pub fn to_init(&self, options: &ConnectOptions) -> Result<(), ModifyError> {
        self.modify(QpState::Init, &options.to_init())
    }

    /// Moves the queue pair from RESET (on port 1) or INIT to RTS. `local_psn` is the 24-bit number
    /// that the peer received.
    ///
    /// # Errors
    ///
    /// As [`modify`](Self::modify). Earlier successful transitions are not undone.
    pub fn connect(
        &self,
        local_psn: u32,
        remote: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), ModifyError> {
        if self.state() == QpState::Reset {
            self.to_init(options)?;
        }
        self.modify(QpState::Rtr, &options.to_rtr(remote))?;
        self.modify(QpState::Rts, &options.to_rts(local_psn))
    }

    /// Moves the queue pair to ERR, and flushes all outstanding requests.
    ///
    /// # Errors
    ///
    /// The queue pair is in RESET, or the device is gone.
    pub fn to_error(&self) -> Result<(), ModifyError> {
        self.modify(QpState::Err, &QpAttributes::default())
    }

    /// Moves the queue pair to RESET, and drops all outstanding requests.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn reset(&self) -> Result<(), ModifyError> {
        self.modify(QpState::Reset, &QpAttributes::default())
    }

    /// Returns the address of this queue pair for a peer, with `psn` as its first packet sequence
    /// number.
    pub fn as_remote(&self, psn: u32) -> RemoteQp {
        RemoteQp { gid: self.gid(), lid: 0, qp_num: self.number(), psn, meeting: None }
    }
}

/// Connects two queue pairs of the same process that are in RESET.
///
/// # Errors
///
/// As [`QueuePair::modify`].
pub fn connect_pair(
    a: &QueuePair,
    b: &QueuePair,
    options: &ConnectOptions,
) -> Result<(), ModifyError> {
    let psn_a = 0x00a0_0000 + a.number();
    let psn_b = 0x00b0_0000 + b.number();
    for qp in [a, b] {
        if qp.state() == QpState::Reset {
            qp.to_init(options)?;
        }
    }
    let remote_a = a.as_remote(psn_a);
    let remote_b = b.as_remote(psn_b);
    a.connect(psn_a, &remote_b, options)?;
    b.connect(psn_b, &remote_a, options)
}
