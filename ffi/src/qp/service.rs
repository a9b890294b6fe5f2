//! The kinds of queue pairs.

use polyrail_core::verbs::Opcode;
use rdma_sys::{ibv_qp_create_send_ops_flags as ops, ibv_qp_type};

mod sealed {
    pub trait Sealed {}
}

/// A queue pair's transport service, as a type: attributes and requests of another service do not
/// compile.
pub trait Service: sealed::Sealed + Send + Sync + std::fmt::Debug + 'static {
    #[doc(hidden)]
    const TYPE: ibv_qp_type::Type;
    /// The sets of operations that extended posting requests, in order: if the driver refuses a
    /// set, the next smaller one is requested.
    #[doc(hidden)]
    const OPS: &'static [u64];
    /// Whether the service supports an opcode.
    fn supports(opcode: Opcode) -> bool;
}

/// A connected service: each queue pair has one peer.
pub trait Connected: Service {}

/// Reliable connected: each message arrives once and in order, or an error is reported.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connected: messages arrive in order, but may be lost.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagram: each message goes to the destination of its address handle.
#[derive(Clone, Copy, Debug)]
pub struct Ud;

impl sealed::Sealed for Rc {}
impl sealed::Sealed for Uc {}
impl sealed::Sealed for Ud {}
impl Connected for Rc {}
impl Connected for Uc {}

const SENDS: u32 = ops::IBV_QP_EX_WITH_SEND.0 | ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;

const WRITES: u32 = ops::IBV_QP_EX_WITH_RDMA_WRITE.0 | ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;

const READS: u32 = ops::IBV_QP_EX_WITH_RDMA_READ.0
    | ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
    | ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;

/// Optional, because not all devices support these with extended posting.
const INVALIDATIONS: u32 = ops::IBV_QP_EX_WITH_LOCAL_INV.0 | ops::IBV_QP_EX_WITH_SEND_WITH_INV.0;

/// Returns the bit that requests an operation for extended posting.
pub(super) const fn operation(opcode: Opcode) -> u64 {
    let bit = match opcode {
        Opcode::RdmaWrite => ops::IBV_QP_EX_WITH_RDMA_WRITE,
        Opcode::RdmaWriteWithImm => ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Opcode::Send => ops::IBV_QP_EX_WITH_SEND,
        Opcode::SendWithImm => ops::IBV_QP_EX_WITH_SEND_WITH_IMM,
        Opcode::RdmaRead => ops::IBV_QP_EX_WITH_RDMA_READ,
        Opcode::CompareSwap => ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        Opcode::FetchAdd => ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        Opcode::LocalInv => ops::IBV_QP_EX_WITH_LOCAL_INV,
        Opcode::SendWithInv => ops::IBV_QP_EX_WITH_SEND_WITH_INV,
    };
    bit.0 as u64
}

impl Service for Rc {
    const TYPE: ibv_qp_type::Type = ibv_qp_type::IBV_QPT_RC;
    const OPS: &'static [u64] =
        &[(SENDS | WRITES | READS | INVALIDATIONS) as u64, (SENDS | WRITES | READS) as u64];

    fn supports(_: Opcode) -> bool {
        true
    }
}

impl Service for Uc {
    const TYPE: ibv_qp_type::Type = ibv_qp_type::IBV_QPT_UC;
    const OPS: &'static [u64] = &[(SENDS | WRITES | INVALIDATIONS) as u64, (SENDS | WRITES) as u64];

    fn supports(opcode: Opcode) -> bool {
        !opcode.is_fetching()
    }
}

impl Service for Ud {
    const TYPE: ibv_qp_type::Type = ibv_qp_type::IBV_QPT_UD;
    const OPS: &'static [u64] = &[SENDS as u64];

    fn supports(opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Send | Opcode::SendWithImm)
    }
}
