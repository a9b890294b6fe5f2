//! Opcodes of work requests and of completions.

use core::fmt;

/// Operation of a send work request (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Write to remote memory without a completion at the peer.
    RdmaWrite = 0,
    /// Write to remote memory, and complete a receive of the peer with a 32-bit immediate.
    RdmaWriteWithImm = 1,
    /// Send into the peer's next receive buffer.
    Send = 2,
    /// [`Send`](Self::Send) with a 32-bit immediate.
    SendWithImm = 3,
    /// Read from remote memory.
    RdmaRead = 4,
    /// Compare and swap 8 aligned bytes of remote memory; the old value is written to the local
    /// buffer.
    CompareSwap = 5,
    /// Add to 8 aligned bytes of remote memory; the old value is written to the local buffer.
    FetchAdd = 6,
    /// Invalidate a local key.
    LocalInv = 7,
    /// [`Send`](Self::Send) that invalidates a key of the peer on arrival.
    SendWithInv = 9,
}

impl Opcode {
    /// Returns the opcode of a successful completion of this request.
    pub const fn completion(self) -> WcOpcode {
        match self {
            Self::RdmaWrite | Self::RdmaWriteWithImm => WcOpcode::RDMA_WRITE,
            Self::Send | Self::SendWithImm | Self::SendWithInv => WcOpcode::SEND,
            Self::RdmaRead => WcOpcode::RDMA_READ,
            Self::CompareSwap => WcOpcode::COMP_SWAP,
            Self::FetchAdd => WcOpcode::FETCH_ADD,
            Self::LocalInv => WcOpcode::LOCAL_INV,
        }
    }

    /// Whether the request fetches remote bytes: READ and atomics.
    pub const fn is_fetching(self) -> bool {
        matches!(self, Self::RdmaRead | Self::CompareSwap | Self::FetchAdd)
    }
}

/// Opcode of a completion (`enum ibv_wc_opcode`), as the raw number: verbs leaves the field
/// undefined on failed completions, so every number is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcOpcode(pub u32);

impl WcOpcode {
    /// A SEND, with or without immediate.
    pub const SEND: Self = Self(0);
    /// An RDMA WRITE, with or without immediate.
    pub const RDMA_WRITE: Self = Self(1);
    /// An RDMA READ.
    pub const RDMA_READ: Self = Self(2);
    /// A compare and swap.
    pub const COMP_SWAP: Self = Self(3);
    /// A fetch and add.
    pub const FETCH_ADD: Self = Self(4);
    /// A memory window bind.
    pub const BIND_MW: Self = Self(5);
    /// A local invalidation.
    pub const LOCAL_INV: Self = Self(6);
    /// A receive that was completed by a SEND.
    pub const RECV: Self = Self(128);
    /// A receive that was completed by an RDMA WRITE with immediate.
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);
    /// Not a verbs opcode: the completion failed on a pass-through queue pair, so the opcode is
    /// unknown.
    pub const UNKNOWN: Self = Self(u32::MAX);

    /// Whether a *successful* completion with this opcode belongs to the receive queue
    /// (`IBV_WC_RECV` is a bit for this purpose).
    pub const fn is_recv(self) -> bool {
        self.0 & Self::RECV.0 != 0
    }

    /// Returns the name of the number in verbs, without `IBV_WC_`.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::SEND => "SEND",
            Self::RDMA_WRITE => "RDMA_WRITE",
            Self::RDMA_READ => "RDMA_READ",
            Self::COMP_SWAP => "COMP_SWAP",
            Self::FETCH_ADD => "FETCH_ADD",
            Self::BIND_MW => "BIND_MW",
            Self::LOCAL_INV => "LOCAL_INV",
            Self::RECV => "RECV",
            Self::RECV_RDMA_WITH_IMM => "RECV_RDMA_WITH_IMM",
            Self::UNKNOWN => "UNKNOWN",
            _ => return None,
        })
    }
}

impl fmt::Debug for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "WcOpcode({})", self.0),
        }
    }
}
