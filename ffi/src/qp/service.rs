//! What kinds of queue pairs there are.

use polyrail_core::verbs::Opcode;
use rdma_sys::{ibv_qp_create_send_ops_flags as ops, ibv_qp_type};

mod sealed {
    pub trait Sealed {}
}

/// A queue pair's kind of service, as a type: what fits another kind does not compile.
pub trait Service: sealed::Sealed + Send + Sync + std::fmt::Debug + 'static {
    #[doc(hidden)]
    const TYPE: ibv_qp_type::Type;
    /// The operations that the extended way of posting is asked for, and fewer if those are refused.
    #[doc(hidden)]
    const OPS: &'static [u64];
    /// Whether requests of this kind can be posted.
    fn supports(opcode: Opcode) -> bool;
}

/// A service with one peer for each queue pair.
pub trait Connected: Service {}

/// Reliable connected: everything arrives once and in order, or an error is reported.
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connected: in order, but lost messages are lost.
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagram: each message goes where its address handle says.
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

/// Not every device that posts the extended way has these.
const INVALIDATIONS: u32 = ops::IBV_QP_EX_WITH_LOCAL_INV.0 | ops::IBV_QP_EX_WITH_SEND_WITH_INV.0;

/// The bit by which the extended way is asked for an operation.
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
