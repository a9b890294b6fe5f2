//! Moving a queue pair from state to state.
//!
//! A transition is a struct with the fields that verbs demands: none can be forgotten, and none that
//! another kind of queue pair wants can be given. Those that lead from a state to itself have only
//! fields that may be left out.
//!
//! Alternate paths (`IBV_QP_ALT_PATH`, `IBV_QP_PATH_MIG_STATE`) are left out: RoCE has none, and the
//! engine's own rails do what they are for.

use super::QueuePair;
use super::service::{Connected, Rc, Service, Uc, Ud};
use crate::error::{Argument, VerbsError};
use crate::path::Path;
use crate::port::Mtu;
use crate::qp_state::QpState;
use crate::value::{ModifyError, bits, small};
use polyrail_core::verbs::AccessFlags;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};
use std::mem::MaybeUninit;

mod sealed {
    use super::{ModifyError, QpState, ibv_qp_attr, mask};

    pub trait Fill {
        /// Where it leads.
        const TO: QpState;

        /// The only state that it may be made from, if the driver must not be asked elsewhere.
        const FROM: Option<QpState> = None;

        /// Writes the attributes; returns which.
        fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError>;
    }
}

use sealed::Fill;

/// A transition that queue pairs of service `S` can make.
pub trait Transition<S: Service>: Fill {}

/// RESET to INIT, for RC and UC: receives can be posted.
///
/// ```compile_fail,E0063
/// // `access` is missing.
/// let to_init = polyrail_ffi::ToInit { port_num: 1, pkey_index: 0 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToInit {
    /// The local port, from 1 on.
    pub port_num: u8,
    /// Which entry of the port's P_Key table; mostly 0.
    pub pkey_index: u16,
    /// What the peer may do.
    pub access: AccessFlags,
}

/// RESET to INIT, for UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramToInit {
    /// The local port, from 1 on.
    pub port_num: u8,
    /// Which entry of the port's P_Key table; mostly 0.
    pub pkey_index: u16,
    /// What datagrams must carry to be received.
    pub qkey: u32,
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
    /// The way to the peer.
    pub path: Path,
    /// Payload bytes of a packet; the same at both ends, and no more than either port's
    /// [`active_mtu`](crate::PortAttributes::active_mtu).
    pub path_mtu: Mtu,
    /// The peer's number, 24 bits.
    pub dest_qp_num: u32,
    /// The packet sequence number that the peer starts with, 24 bits.
    pub rq_psn: u32,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits that met no receive, by a code of 5 bits: 0 is 655 ms, 1 is 10 us, 12
    /// is 640 us, 31 is 492 ms (InfiniBand specification, table 45).
    pub min_rnr_timer: u8,
}

/// INIT to RTR, for UC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreliableToRtr {
    /// The way to the peer.
    pub path: Path,
    /// Payload bytes of a packet; the same at both ends.
    pub path_mtu: Mtu,
    /// The peer's number, 24 bits.
    pub dest_qp_num: u32,
    /// The packet sequence number that the peer starts with, 24 bits.
    pub rq_psn: u32,
}

/// INIT to RTR, for UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramToRtr;

/// RTR to RTS, for RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRts {
    /// The packet sequence number that the peer was told, 24 bits.
    pub sq_psn: u32,
    /// An answer is waited for during 4.096 us times 2 to this power; 5 bits, 0 is for ever.
    pub timeout: u8,
    /// Repetitions without an answer, up to 7. On rxe 7 is for ever.
    pub retry_cnt: u8,
    /// Repetitions after the peer met no receive, up to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding toward the peer.
    pub max_rd_atomic: u8,
}

/// RTR to RTS, for UC and UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreliableToRts {
    /// The first packet's sequence number, 24 bits.
    pub sq_psn: u32,
}

/// RTS to SQD: the send queue starts no more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToSqd {
    /// Raise [`SqDrained`](crate::AsyncEvent::SqDrained) when nothing is under way any more.
    pub notify: bool,
}

/// SQD to RTS: the send queue goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume;

/// SQE to RTS, for UC and UD: the send queue takes up work again after a request of it failed. What
/// was behind that request was flushed; receives went on all the while.
///
/// ```compile_fail,E0277
/// // An RC queue pair whose send queue failed is in ERR, and leaves it by RESET.
/// use polyrail_ffi::{QueuePair, Rc, Recover};
/// fn recover(qp: &mut QueuePair<Rc>) {
///     qp.modify(&Recover).unwrap();
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recover;

/// INIT to INIT, for RC and UC: changes what is given, and leaves the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeInit {
    /// See [`ToInit::port_num`].
    pub port_num: Option<u8>,
    /// See [`ToInit::pkey_index`].
    pub pkey_index: Option<u16>,
    /// See [`ToInit::access`].
    pub access: Option<AccessFlags>,
}

/// INIT to INIT, for UD: changes what is given, and leaves the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramChangeInit {
    /// See [`DatagramToInit::port_num`].
    pub port_num: Option<u8>,
    /// See [`DatagramToInit::pkey_index`].
    pub pkey_index: Option<u16>,
    /// See [`DatagramToInit::qkey`].
    pub qkey: Option<u32>,
}

/// RTS to RTS, for RC: changes what is given while requests go on. The path is changed in SQD.
///
/// ```compile_fail,E0560
/// // A path in use cannot be changed.
/// fn elsewhere(path: polyrail_ffi::Path) -> polyrail_ffi::ChangeRts {
///     polyrail_ffi::ChangeRts { path: Some(path), ..Default::default() }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeRts {
    /// What the peer may do from now on.
    pub access: Option<AccessFlags>,
    /// See [`ToRtr::min_rnr_timer`].
    pub min_rnr_timer: Option<u8>,
}

/// RTS to RTS, for UC: changes what is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreliableChangeRts {
    /// What the peer may do from now on.
    pub access: Option<AccessFlags>,
}

/// RTS to RTS, for UD: changes what is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramChangeRts {
    /// What datagrams must carry from now on.
    pub qkey: Option<u32>,
}

/// SQD to SQD, for RC: changes what is given, the path among it, once nothing is under way any more
/// ([`SqDrained`](crate::AsyncEvent::SqDrained)). [`Resume`] goes on, by the new path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSqd {
    /// The way to the peer.
    pub path: Option<Path>,
    /// See [`ToInit::pkey_index`].
    pub pkey_index: Option<u16>,
    /// What the peer may do from now on.
    pub access: Option<AccessFlags>,
    /// See [`ToRtr::max_dest_rd_atomic`].
    pub max_dest_rd_atomic: Option<u8>,
    /// See [`ToRtr::min_rnr_timer`].
    pub min_rnr_timer: Option<u8>,
    /// See [`ToRts::timeout`].
    pub timeout: Option<u8>,
    /// See [`ToRts::retry_cnt`].
    pub retry_cnt: Option<u8>,
    /// See [`ToRts::rnr_retry`].
    pub rnr_retry: Option<u8>,
    /// See [`ToRts::max_rd_atomic`].
    pub max_rd_atomic: Option<u8>,
}

/// SQD to SQD, for UC: changes what is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreliableChangeSqd {
    /// The way to the peer.
    pub path: Option<Path>,
    /// See [`ToInit::pkey_index`].
    pub pkey_index: Option<u16>,
    /// What the peer may do from now on.
    pub access: Option<AccessFlags>,
}

/// SQD to SQD, for UD: changes what is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramChangeSqd {
    /// See [`DatagramToInit::pkey_index`].
    pub pkey_index: Option<u16>,
    /// What datagrams must carry from now on.
    pub qkey: Option<u32>,
}

/// To ERR: everything outstanding is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToErr;

/// To RESET: everything outstanding is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToReset;

impl<S: Connected> Transition<S> for ToInit {}
impl Transition<Ud> for DatagramToInit {}
impl Transition<Rc> for ToRtr {}
impl Transition<Uc> for UnreliableToRtr {}
impl Transition<Ud> for DatagramToRtr {}
impl Transition<Rc> for ToRts {}
impl Transition<Uc> for UnreliableToRts {}
impl Transition<Ud> for UnreliableToRts {}
impl<S: Service> Transition<S> for ToSqd {}
impl<S: Service> Transition<S> for Resume {}
impl Transition<Uc> for Recover {}
impl Transition<Ud> for Recover {}
impl<S: Connected> Transition<S> for ChangeInit {}
impl Transition<Ud> for DatagramChangeInit {}
impl Transition<Rc> for ChangeRts {}
impl Transition<Uc> for UnreliableChangeRts {}
impl Transition<Ud> for DatagramChangeRts {}
impl Transition<Rc> for ChangeSqd {}
impl Transition<Uc> for UnreliableChangeSqd {}
impl Transition<Ud> for DatagramChangeSqd {}
impl<S: Service> Transition<S> for ToErr {}
impl<S: Service> Transition<S> for ToReset {}

impl Fill for ToInit {
    const TO: QpState = QpState::Init;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.port_num = self.port_num;
        raw.pkey_index = self.pkey_index;
        raw.qp_access_flags = self.access.bits();
        Ok(mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS)
    }
}

impl Fill for DatagramToInit {
    const TO: QpState = QpState::Init;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.port_num = self.port_num;
        raw.pkey_index = self.pkey_index;
        raw.qkey = self.qkey;
        Ok(mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY)
    }
}

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

impl Fill for DatagramToRtr {
    const TO: QpState = QpState::Rtr;

    fn fill(&self, _: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        Ok(mask(0))
    }
}

impl Fill for UnreliableToRts {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.sq_psn = bits("sq_psn", self.sq_psn, 24)?;
        Ok(mask::IBV_QP_SQ_PSN)
    }
}

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

impl Fill for ToSqd {
    const TO: QpState = QpState::Sqd;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.en_sqd_async_notify = self.notify.into();
        Ok(mask::IBV_QP_EN_SQD_ASYNC_NOTIFY)
    }
}

impl Fill for Resume {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.cur_qp_state = QpState::Sqd.raw();
        Ok(mask::IBV_QP_CUR_STATE)
    }
}

impl Fill for Recover {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.cur_qp_state = QpState::Sqe.raw();
        Ok(mask::IBV_QP_CUR_STATE)
    }
}

/// Writes what is given, each value checked or as it is; returns which attributes that was.
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

impl Fill for UnreliableChangeRts {
    const TO: QpState = QpState::Rts;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw: self.access => qp_access_flags by IBV_QP_ACCESS_FLAGS, flags; }
    }
}

impl Fill for DatagramChangeRts {
    const TO: QpState = QpState::Rts;
    const FROM: Option<QpState> = Some(Self::TO);

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        given! { raw: self.qkey => qkey by IBV_QP_QKEY; }
    }
}

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

fn min_rnr_timer(code: u8) -> Result<u8, ModifyError> {
    small("min_rnr_timer", code, 5)
}

fn timeout(code: u8) -> Result<u8, ModifyError> {
    small("timeout", code, 5)
}

fn retry_cnt(count: u8) -> Result<u8, ModifyError> {
    small("retry_cnt", count, 3)
}

fn rnr_retry(count: u8) -> Result<u8, ModifyError> {
    small("rnr_retry", count, 3)
}

impl Fill for ToErr {
    const TO: QpState = QpState::Err;

    fn fill(&self, _: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        Ok(mask(0))
    }
}

impl Fill for ToReset {
    const TO: QpState = QpState::Reset;

    fn fill(&self, _: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        Ok(mask(0))
    }
}

impl<S: Service> QueuePair<S> {
    /// Makes a transition (`ibv_modify_qp`). Threads that ask for one at the same time make theirs one
    /// after the other.
    ///
    /// ```compile_fail,E0277
    /// // Datagrams have no peer to connect to.
    /// use polyrail_ffi::{QueuePair, ToRts, Ud};
    /// fn connect(qp: &mut QueuePair<Ud>, to_rts: ToRts) {
    ///     qp.modify(&to_rts).unwrap();
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// A value that does not fit its field. EINVAL: the queue pair is in another state, or the
    /// device does not like the attributes; ENETUNREACH, EHOSTUNREACH, ETIMEDOUT: no way to the
    /// GID.
    pub fn modify<T: Transition<S>>(&self, transition: &T) -> Result<(), ModifyError> {
        // SAFETY: a C struct of numbers, for which zeros do.
        let mut raw = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
        let given = transition.fill(&mut raw)? | mask::IBV_QP_STATE;
        raw.qp_state = T::TO.raw();
        let mut last = self.state.lock();
        // A change of attributes elsewhere would be a move to that state, as from SQD to RTS.
        if T::FROM.is_some_and(|from| from != self.last_state()) {
            let argument = Argument::State(T::TO);
            return Err(VerbsError::new("ibv_modify_qp", libc::EINVAL, argument).into());
        }
        // A batch that was forgotten holds the driver's lock; aborted later, it would put back queue
        // positions from before a reset.
        self.sender.abort();
        // SAFETY: the queue pair is alive, and the attributes are only read.
        let returned =
            unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), &raw mut raw, given.0 as libc::c_int) };
        VerbsError::check(returned, "ibv_modify_qp", Argument::State(T::TO))?;
        last.set(T::TO);
        Ok(())
    }
}
