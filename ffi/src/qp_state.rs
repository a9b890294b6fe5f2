//! The states of a queue pair.

use rdma_sys::ibv_qp_state;
use std::fmt;

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// As created: requests cannot be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue accepts requests, but starts none.
    Sqd,
    /// The send queue failed (UC and UD): receives continue.
    Sqe,
    /// Outstanding and newly posted requests are flushed.
    Err,
    /// The driver reports an unknown state.
    Unknown,
}

impl QpState {
    pub(crate) const fn raw(self) -> ibv_qp_state::Type {
        match self {
            Self::Reset => ibv_qp_state::IBV_QPS_RESET,
            Self::Init => ibv_qp_state::IBV_QPS_INIT,
            Self::Rtr => ibv_qp_state::IBV_QPS_RTR,
            Self::Rts => ibv_qp_state::IBV_QPS_RTS,
            Self::Sqd => ibv_qp_state::IBV_QPS_SQD,
            Self::Sqe => ibv_qp_state::IBV_QPS_SQE,
            Self::Err => ibv_qp_state::IBV_QPS_ERR,
            Self::Unknown => ibv_qp_state::IBV_QPS_UNKNOWN,
        }
    }

    pub(crate) const fn from_raw(raw: ibv_qp_state::Type) -> Self {
        match raw {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Init,
            ibv_qp_state::IBV_QPS_RTR => Self::Rtr,
            ibv_qp_state::IBV_QPS_RTS => Self::Rts,
            ibv_qp_state::IBV_QPS_SQD => Self::Sqd,
            ibv_qp_state::IBV_QPS_SQE => Self::Sqe,
            ibv_qp_state::IBV_QPS_ERR => Self::Err,
            _ => Self::Unknown,
        }
    }

    /// Whether send requests can be posted. Verbs requires other states to refuse them, and not
    /// every driver checks.
    pub(crate) const fn takes_sends(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::Rtr)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
            Self::Unknown => "an unknown state",
        })
    }
}
