//! The transitions RESET, INIT, RTR, RTS.

use super::fill::{Fill, min_rnr_timer, retry_cnt, rnr_retry, timeout};
use super::modify::Transition;
use crate::path::Path;
use crate::port::Mtu;
use crate::qp::service::{Connected, Rc, Uc, Ud};
use crate::qp_state::QpState;
use crate::value::{ModifyError, bits};
use polyrail_core::verbs::AccessFlags;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

/// RESET to INIT, for RC and UC: receives can be posted.
///
/// ```compile_fail,E0063
/// // `access` is missing.
/// let to_init = polyrail_ffi::ToInit { port_num: 1, pkey_index: 0 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToInit {
    /// The local port, numbered from 1.
    pub port_num: u8,
    /// Index in the port's P_Key table; usually 0.
    pub pkey_index: u16,
    /// Access rights of the peer.
    pub access: AccessFlags,
}

impl<S: Connected> Transition<S> for ToInit {}

impl Fill for ToInit {
    const TO: QpState = QpState::Init;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.port_num = self.port_num;
        raw.pkey_index = self.pkey_index;
        raw.qp_access_flags = self.access.bits();
        Ok(mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS)
    }
}

/// RESET to INIT, for UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramToInit {
    /// The local port, numbered from 1.
    pub port_num: u8,
    /// Index in the port's P_Key table; usually 0.
    pub pkey_index: u16,
    /// The Q_Key that incoming datagrams must carry.
    pub qkey: u32,
}

impl Transition<Ud> for DatagramToInit {}

impl Fill for DatagramToInit {
    const TO: QpState = QpState::Init;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.port_num = self.port_num;
        raw.pkey_index = self.pkey_index;
        raw.qkey = self.qkey;
        Ok(mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY)
    }
}

/// INIT to RTR, for RC.
///
/// ```compile_fail,E0063
/// // `path`, which says how packets get to the peer, is missing.
/// use polyrail_ffi::{Mtu, ToRtr};
/// let to_rtr = ToRtr {
///     path_mtu: Mtu::Mtu1024,
///     dest_qp_num: 17,
///     rq_psn: 0,
///     max_dest_rd_atomic: 16,
///     min_rnr_timer: 12,
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRtr {
    /// The path to the peer.
    pub path: Path,
    /// Path MTU; equal at both ends, and at most the
    /// [`active_mtu`](crate::PortAttributes::active_mtu) of either port.
    pub path_mtu: Mtu,
    /// The peer's queue pair number, 24 bits.
    pub dest_qp_num: u32,
    /// The peer's first packet sequence number, 24 bits.
    pub rq_psn: u32,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Delay that a peer waits before it retries after an RNR NAK, as a code of 5 bits: 0 is 655
    /// ms, 1 is 10 us, 12 is 640 us, 31 is 492 ms (InfiniBand specification, table 45).
    pub min_rnr_timer: u8,
}

impl Transition<Rc> for ToRtr {}

impl Fill for ToRtr {
    const TO: QpState = QpState::Rtr;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        let Self { path, path_mtu, dest_qp_num, rq_psn, .. } = *self;
        let common = UnreliableToRtr { path, path_mtu, dest_qp_num, rq_psn }.fill(raw)?;
        raw.max_dest_rd_atomic = self.max_dest_rd_atomic;
        raw.min_rnr_timer = min_rnr_timer(self.min_rnr_timer)?;
        Ok(common | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER)
    }
}

/// INIT to RTR, for UC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreliableToRtr {
    /// The path to the peer.
    pub path: Path,
    /// Path MTU; equal at both ends.
    pub path_mtu: Mtu,
    /// The peer's queue pair number, 24 bits.
    pub dest_qp_num: u32,
    /// The peer's first packet sequence number, 24 bits.
    pub rq_psn: u32,
}

impl Transition<Uc> for UnreliableToRtr {}

impl Fill for UnreliableToRtr {
    const TO: QpState = QpState::Rtr;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.ah_attr = self.path.raw()?;
        raw.path_mtu = self.path_mtu as u32;
        raw.dest_qp_num = bits("dest_qp_num", self.dest_qp_num, 24)?;
        raw.rq_psn = bits("rq_psn", self.rq_psn, 24)?;
        Ok(mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN)
    }
}

/// The transition of a UD queue pair from INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramToRtr;

impl Transition<Ud> for DatagramToRtr {}

impl Fill for DatagramToRtr {
    const TO: QpState = QpState::Rtr;

    fn fill(&self, _: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        Ok(mask(0))
    }
}

/// RTR to RTS, for RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRts {
    /// The first packet sequence number, which the peer has as `rq_psn`; 24 bits.
    pub sq_psn: u32,
    /// Timeout for acknowledgements: 4.096 us times 2 to this power, 5 bits; 0 waits without limit.
    pub timeout: u8,
    /// Retries without an acknowledgement, up to 7. On rxe 7 retries without limit.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, up to 6; 7 retries without limit.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: u8,
}

impl Transition<Rc> for ToRts {}

impl Fill for ToRts {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        let common = UnreliableToRts { sq_psn: self.sq_psn }.fill(raw)?;
        raw.timeout = timeout(self.timeout)?;
        raw.retry_cnt = retry_cnt(self.retry_cnt)?;
        raw.rnr_retry = rnr_retry(self.rnr_retry)?;
        raw.max_rd_atomic = self.max_rd_atomic;
        Ok(common
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC)
    }
}

/// RTR to RTS, for UC and UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreliableToRts {
    /// The first packet sequence number, 24 bits.
    pub sq_psn: u32,
}

impl Transition<Uc> for UnreliableToRts {}
impl Transition<Ud> for UnreliableToRts {}

impl Fill for UnreliableToRts {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.sq_psn = bits("sq_psn", self.sq_psn, 24)?;
        Ok(mask::IBV_QP_SQ_PSN)
    }
}
