//! Transitions from a state to itself, which change attributes.

use super::fill::{Fill, min_rnr_timer, retry_cnt, rnr_retry, timeout};
use super::modify::Transition;
use crate::path::Path;
use crate::qp::service::{Connected, Rc, Uc, Ud};
use crate::qp_state::QpState;
use crate::value::ModifyError;
use polyrail_core::verbs::AccessFlags;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

/// Writes the attributes that are set, with a check where one is given. Returns the mask of these
/// attributes.
macro_rules! given {
    ($raw:ident: $($value:expr => $field:ident by $attribute:ident $(, $check:expr)?;)*) => {{
        let mut given = mask(0);
        $(if let Some(value) = $value {
            $raw.$field = given!(@check value $(, $check)?);
            given |= mask::$attribute;
        })*
        Ok(given)
    }};
    (@check $value:ident) => { $value };
    (@check $value:ident, $check:expr) => { $check($value)? };
}

/// INIT to INIT, for RC and UC: changes the attributes that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeInit {
    /// See [`ToInit::port_num`](super::ToInit::port_num).
    pub port_num: Option<u8>,
    /// See [`ToInit::pkey_index`](super::ToInit::pkey_index).
    pub pkey_index: Option<u16>,
    /// See [`ToInit::access`](super::ToInit::access).
    pub access: Option<AccessFlags>,
}

impl<S: Connected> Transition<S> for ChangeInit {}

impl Fill for ChangeInit {
    const TO: QpState = QpState::Init;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw:
            self.port_num => port_num by IBV_QP_PORT;
            self.pkey_index => pkey_index by IBV_QP_PKEY_INDEX;
            self.access => qp_access_flags by IBV_QP_ACCESS_FLAGS, flags;
        }
    }
}

/// INIT to INIT, for UD: changes the attributes that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramChangeInit {
    /// See [`DatagramToInit::port_num`](super::DatagramToInit::port_num).
    pub port_num: Option<u8>,
    /// See [`DatagramToInit::pkey_index`](super::DatagramToInit::pkey_index).
    pub pkey_index: Option<u16>,
    /// See [`DatagramToInit::qkey`](super::DatagramToInit::qkey).
    pub qkey: Option<u32>,
}

impl Transition<Ud> for DatagramChangeInit {}

impl Fill for DatagramChangeInit {
    const TO: QpState = QpState::Init;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw:
            self.port_num => port_num by IBV_QP_PORT;
            self.pkey_index => pkey_index by IBV_QP_PKEY_INDEX;
            self.qkey => qkey by IBV_QP_QKEY;
        }
    }
}

/// RTS to RTS, for RC: changes the attributes that are set while requests are in progress. The path
/// can be changed in SQD only.
///
/// ```compile_fail,E0560
/// // A path in use cannot be changed.
/// fn elsewhere(path: polyrail_ffi::Path) -> polyrail_ffi::ChangeRts {
///     polyrail_ffi::ChangeRts { path: Some(path), ..Default::default() }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeRts {
    /// New access rights of the peer.
    pub access: Option<AccessFlags>,
    /// See [`ToRtr::min_rnr_timer`](super::ToRtr::min_rnr_timer).
    pub min_rnr_timer: Option<u8>,
}

impl Transition<Rc> for ChangeRts {}

impl Fill for ChangeRts {
    const TO: QpState = QpState::Rts;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw:
            self.access => qp_access_flags by IBV_QP_ACCESS_FLAGS, flags;
            self.min_rnr_timer => min_rnr_timer by IBV_QP_MIN_RNR_TIMER, min_rnr_timer;
        }
    }
}

/// RTS to RTS, for UC: changes the attributes that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreliableChangeRts {
    /// New access rights of the peer.
    pub access: Option<AccessFlags>,
}

impl Transition<Uc> for UnreliableChangeRts {}

impl Fill for UnreliableChangeRts {
    const TO: QpState = QpState::Rts;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw: self.access => qp_access_flags by IBV_QP_ACCESS_FLAGS, flags; }
    }
}

/// RTS to RTS, for UD: changes the attributes that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramChangeRts {
    /// The new Q_Key that incoming datagrams must carry.
    pub qkey: Option<u32>,
}

impl Transition<Ud> for DatagramChangeRts {}

impl Fill for DatagramChangeRts {
    const TO: QpState = QpState::Rts;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw: self.qkey => qkey by IBV_QP_QKEY; }
    }
}

/// SQD to SQD, for RC: changes the attributes that are set, including the path, once no request is
/// in progress ([`SqDrained`](crate::AsyncEvent::SqDrained)). [`Resume`](super::Resume) then
/// continues on the new path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSqd {
    /// The path to the peer.
    pub path: Option<Path>,
    /// See [`ToInit::pkey_index`](super::ToInit::pkey_index).
    pub pkey_index: Option<u16>,
    /// New access rights of the peer.
    pub access: Option<AccessFlags>,
    /// See [`ToRtr::max_dest_rd_atomic`](super::ToRtr::max_dest_rd_atomic).
    pub max_dest_rd_atomic: Option<u8>,
    /// See [`ToRtr::min_rnr_timer`](super::ToRtr::min_rnr_timer).
    pub min_rnr_timer: Option<u8>,
    /// See [`ToRts::timeout`](super::ToRts::timeout).
    pub timeout: Option<u8>,
    /// See [`ToRts::retry_cnt`](super::ToRts::retry_cnt).
    pub retry_cnt: Option<u8>,
    /// See [`ToRts::rnr_retry`](super::ToRts::rnr_retry).
    pub rnr_retry: Option<u8>,
    /// See [`ToRts::max_rd_atomic`](super::ToRts::max_rd_atomic).
    pub max_rd_atomic: Option<u8>,
}

impl Transition<Rc> for ChangeSqd {}

impl Fill for ChangeSqd {
    const TO: QpState = QpState::Sqd;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        let Self { path, pkey_index, access, .. } = *self;
        let common = UnreliableChangeSqd { path, pkey_index, access }.fill(raw)?;
        let more: Result<mask, ModifyError> = given! { raw:
            self.max_dest_rd_atomic => max_dest_rd_atomic by IBV_QP_MAX_DEST_RD_ATOMIC;
            self.min_rnr_timer => min_rnr_timer by IBV_QP_MIN_RNR_TIMER, min_rnr_timer;
            self.timeout => timeout by IBV_QP_TIMEOUT, timeout;
            self.retry_cnt => retry_cnt by IBV_QP_RETRY_CNT, retry_cnt;
            self.rnr_retry => rnr_retry by IBV_QP_RNR_RETRY, rnr_retry;
            self.max_rd_atomic => max_rd_atomic by IBV_QP_MAX_QP_RD_ATOMIC;
        };
        Ok(common | more?)
    }
}

/// SQD to SQD, for UC: changes the attributes that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreliableChangeSqd {
    /// The path to the peer.
    pub path: Option<Path>,
    /// See [`ToInit::pkey_index`](super::ToInit::pkey_index).
    pub pkey_index: Option<u16>,
    /// New access rights of the peer.
    pub access: Option<AccessFlags>,
}

impl Transition<Uc> for UnreliableChangeSqd {}

impl Fill for UnreliableChangeSqd {
    const TO: QpState = QpState::Sqd;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw:
            self.path => ah_attr by IBV_QP_AV, |path: Path| path.raw();
            self.pkey_index => pkey_index by IBV_QP_PKEY_INDEX;
            self.access => qp_access_flags by IBV_QP_ACCESS_FLAGS, flags;
        }
    }
}

/// SQD to SQD, for UD: changes the attributes that are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramChangeSqd {
    /// See [`DatagramToInit::pkey_index`](super::DatagramToInit::pkey_index).
    pub pkey_index: Option<u16>,
    /// The new Q_Key that incoming datagrams must carry.
    pub qkey: Option<u32>,
}

impl Transition<Ud> for DatagramChangeSqd {}

impl Fill for DatagramChangeSqd {
    const TO: QpState = QpState::Sqd;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw:
            self.pkey_index => pkey_index by IBV_QP_PKEY_INDEX;
            self.qkey => qkey by IBV_QP_QKEY;
        }
    }
}

fn flags(access: AccessFlags) -> Result<u32, ModifyError> {
    Ok(access.bits())
}
