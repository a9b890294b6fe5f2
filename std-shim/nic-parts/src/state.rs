//! Queue pair states, and the attributes that each transition requires or allows.
//!
//! ```text
//! RESET --> INIT --> RTR --> RTS <--> SQD      every state but RESET --> ERR
//!                                              every state           --> RESET
//! ```
//!
//! The rules are those of the InfiniBand specification, volume 1, section 11.2.5.2 ("Modify queue
//! pair") for reliable connections, as the Linux kernel's `ib_modify_qp_is_ok` enforces them.

use crate::address::{Gid, Mtu};
use crate::error::errno;
use polyrail_core::verbs::AccessFlags;
use polyrail_process::Forked;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// The state of a queue pair (`enum ibv_qp_state`, without SQE, which reliable connections never
/// enter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Initial state: nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive: requests of the peer are executed.
    Rtr,
    /// Ready to send: own requests are executed, too.
    Rts,
    /// Send queue drain: requests are accepted but not started.
    Sqd,
    /// Failed: everything is flushed.
    Err,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Err];

    /// Returns whether requests of the peer are executed.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
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
            Self::Err => "ERR",
        })
    }
}

/// The state, which both queues read during execution.
///
/// ERR may be entered with the lock of either the send or the receive queue; every other change
/// requires both.
#[derive(Debug)]
pub struct StateCell(AtomicU8);

impl StateCell {
    /// Makes a cell in RESET.
    pub const fn new() -> Self {
        Self(AtomicU8::new(QpState::Reset as u8))
    }

    /// Returns the state.
    #[inline]
    pub fn get(&self) -> QpState {
        QpState::ALL[usize::from(self.0.load(Ordering::Acquire))]
    }

    /// Changes the state. [`check`] decides which changes are permitted.
    #[inline]
    pub fn set(&self, state: QpState) {
        self.0.store(state as u8, Ordering::Release);
    }

    /// Changes the state from `from` to `to`. Returns false if it is another one meanwhile.
    #[inline]
    pub fn change(&self, from: QpState, to: QpState) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Enters ERR from any state but RESET. Returns whether that changed the state.
    #[inline]
    pub fn fail(&self) -> bool {
        let reset_or_failed = |state| {
            (state != QpState::Reset as u8 && state != QpState::Err as u8)
                .then_some(QpState::Err as u8)
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, reset_or_failed).is_ok()
    }
}

impl Default for StateCell {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $variant:ident, $field:ident: $type:ty, $name:literal;)*) => {
        /// An attribute of a queue pair (`enum ibv_qp_attr_mask`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Attribute {
            $($(#[$doc])* $variant,)*
        }

        /// Attributes of a transition; `None` means not given.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QpAttributes {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl Attribute {
            /// Every attribute.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns its name in verbs, without `IBV_QP_`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl QpAttributes {
            /// Returns whether `attribute` is given.
            pub const fn has(&self, attribute: Attribute) -> bool {
                match attribute {
                    $(Attribute::$variant => self.$field.is_some(),)*
                }
            }

            /// Returns the attributes without `attribute`.
            #[must_use]
            pub const fn without(mut self, attribute: Attribute) -> Self {
                match attribute {
                    $(Attribute::$variant => self.$field = None,)*
                }
                self
            }
        }
    };
}

attributes! {
    /// Index into the port's table of partition keys; only 0 exists.
    PkeyIndex, pkey_index: u16, "PKEY_INDEX";
    /// The port to use, from 1 on.
    Port, port_num: u8, "PORT";
    /// Operations that peers may perform through this queue pair.
    AccessFlags, access: AccessFlags, "ACCESS_FLAGS";
    /// The address vector: the GID of the peer's port.
    AddressVector, gid: Gid, "AV";
    /// Payload bytes of a packet; both ends must agree.
    PathMtu, path_mtu: Mtu, "PATH_MTU";
    /// The peer's queue pair number, 24 bits.
    DestQpNum, dest_qp_num: u32, "DEST_QPN";
    /// The packet sequence number that the peer starts with, 24 bits.
    RqPsn, rq_psn: u32, "RQ_PSN";
    /// READs and atomics of the peer that may be outstanding here.
    MaxDestRdAtomic, max_dest_rd_atomic: u8, "MAX_DEST_RD_ATOMIC";
    /// Code of the time that the peer waits before it retries when no receive was posted, 0 to 31
    /// (see [`rnr_delay`]).
    MinRnrTimer, min_rnr_timer: u8, "MIN_RNR_TIMER";
    /// The acknowledgement timeout is 4.096 us * 2^timeout; 0 waits forever, at most 31.
    Timeout, timeout: u8, "TIMEOUT";
    /// Retries before an unanswered request fails, 0 to 7.
    RetryCnt, retry_cnt: u8, "RETRY_CNT";
    /// Retries while the peer has no receive posted, 0 to 6; 7 means forever.
    RnrRetry, rnr_retry: u8, "RNR_RETRY";
    /// The packet sequence number to start with, 24 bits.
    SqPsn, sq_psn: u32, "SQ_PSN";
    /// Own READs and atomics that may be outstanding.
    MaxRdAtomic, max_rd_atomic: u8, "MAX_QP_RD_ATOMIC";
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a transition was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The transition does not exist.
    #[error("a queue pair cannot go from {from} to {to}")]
    Transition {
        /// The state that the queue pair is in.
        from: QpState,
        /// The state that was asked for.
        to: QpState,
    },
    /// The transition needs an attribute that was not given.
    #[error("the transition from {from} to {to} needs {attribute}")]
    Missing {
        /// The state that the queue pair is in.
        from: QpState,
        /// The state that was asked for.
        to: QpState,
        /// What is missing.
        attribute: Attribute,
    },
    /// The transition cannot change an attribute that was given.
    #[error("the transition from {from} to {to} does not take {attribute}")]
    NotAllowed {
        /// The state that the queue pair is in.
        from: QpState,
        /// The state that was asked for.
        to: QpState,
        /// What must not be there.
        attribute: Attribute,
    },
    /// An attribute's value is out of range.
    #[error("{attribute} must not be {value}")]
    Value {
        /// Which one.
        attribute: Attribute,
        /// Its value.
        value: u64,
    },
    /// The peer's address belongs to another fabric, or to a real device.
    #[error(
        "{gid} is not an address of this fabric: software NICs reach only devices of their own fabric, and none of \
         another process"
    )]
    Unreachable {
        /// The address.
        gid: Gid,
    },
    /// The device is gone.
    #[error("the device is gone")]
    DeviceGone,
    /// This process is a fork of the process that made the queue pair.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// No path to the peer's address was found. On a software NIC, only `Fault::RefuseRtr` causes
    /// this.
    #[error("no path to the peer's address was found")]
    NoPath,
    /// The peer's address has no [`Meeting`](crate::address::Meeting), which a TCP NIC needs.
    #[error("the peer's address has no TCP port and key: it is not an address of a TCP NIC")]
    NoMeeting,
}

impl ModifyError {
    /// Returns the errno of a driver for it.
    pub const fn errno(self) -> i32 {
        match self {
            Self::DeviceGone => errno::ENODEV,
            Self::Forked(_) => errno::EPERM,
            Self::Unreachable { .. } | Self::NoMeeting => errno::EHOSTUNREACH,
            Self::NoPath => errno::ETIMEDOUT,
            Self::Transition { .. }
            | Self::Missing { .. }
            | Self::NotAllowed { .. }
            | Self::Value { .. } => errno::EINVAL,
        }
    }
}

/// The required and allowed attributes of a transition.
#[derive(Debug)]
pub struct Rule {
    required: &'static [Attribute],
    optional: &'static [Attribute],
}

impl Rule {
    const PLAIN: Self = Self { required: &[], optional: &[] };
}

/// Returns the rule of a transition, or `None` if the transition does not exist.
pub const fn rule(from: QpState, to: QpState) -> Option<Rule> {
    use Attribute::{
        AccessFlags, AddressVector, DestQpNum, MaxDestRdAtomic, MaxRdAtomic, MinRnrTimer, PathMtu,
        PkeyIndex, Port, RetryCnt, RnrRetry, RqPsn, SqPsn, Timeout,
    };
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    Some(match (from, to) {
        (_, Reset) | (Init | Rtr | Rts | Sqd | Err, Err) | (Rts, Sqd) => Rule::PLAIN,
        (Reset, Init) => Rule { required: &[PkeyIndex, Port, AccessFlags], optional: &[] },
        (Init, Init) => Rule { required: &[], optional: &[PkeyIndex, Port, AccessFlags] },
        (Init, Rtr) => Rule {
            required: &[AddressVector, PathMtu, DestQpNum, RqPsn, MaxDestRdAtomic, MinRnrTimer],
            optional: &[PkeyIndex, AccessFlags],
        },
        (Rtr, Rts) => Rule {
            required: &[Timeout, RetryCnt, RnrRetry, SqPsn, MaxRdAtomic],
            optional: &[AccessFlags, MinRnrTimer],
        },
        (Rts, Rts) | (Sqd, Rts) => Rule { required: &[], optional: &[AccessFlags, MinRnrTimer] },
        (Sqd, Sqd) => Rule {
            required: &[],
            optional: &[
                PkeyIndex,
                Port,
                AccessFlags,
                AddressVector,
                MaxDestRdAtomic,
                MinRnrTimer,
                Timeout,
                RetryCnt,
                RnrRetry,
                MaxRdAtomic,
            ],
        },
        _ => return None,
    })
}

/// Checks a transition against its rule, and the values that do not depend on the device.
///
/// # Errors
///
/// The transition does not exist; an attribute is missing, not allowed, or out of range.
pub fn check(from: QpState, to: QpState, attributes: &QpAttributes) -> Result<(), ModifyError> {
    let rule = rule(from, to).ok_or(ModifyError::Transition { from, to })?;
    for &attribute in Attribute::ALL {
        let needed = rule.required.contains(&attribute);
        match (attributes.has(attribute), needed) {
            (false, true) => return Err(ModifyError::Missing { from, to, attribute }),
            (true, false) if !rule.optional.contains(&attribute) => {
                return Err(ModifyError::NotAllowed { from, to, attribute });
            }
            _ => {}
        }
    }
    check_values(attributes)
}

/// Checks the values that do not depend on the device.
fn check_values(a: &QpAttributes) -> Result<(), ModifyError> {
    const BITS_24: u64 = (1 << 24) - 1;
    let limits = [
        (Attribute::PkeyIndex, a.pkey_index.map(u64::from), 0),
        (Attribute::DestQpNum, a.dest_qp_num.map(u64::from), BITS_24),
        (Attribute::RqPsn, a.rq_psn.map(u64::from), BITS_24),
        (Attribute::SqPsn, a.sq_psn.map(u64::from), BITS_24),
        (Attribute::MinRnrTimer, a.min_rnr_timer.map(u64::from), 31),
        (Attribute::Timeout, a.timeout.map(u64::from), 31),
        (Attribute::RetryCnt, a.retry_cnt.map(u64::from), 7),
        (Attribute::RnrRetry, a.rnr_retry.map(u64::from), 7),
    ];
    for (attribute, value, max) in limits {
        if let Some(value) = value.filter(|&value| value > max) {
            return Err(ModifyError::Value { attribute, value });
        }
    }
    Ok(())
}

/// Returns the nanoseconds that a peer waits after "receiver not ready" with this `min_rnr_timer`
/// code (InfiniBand specification, volume 1, table 45). Codes over 31 are invalid, and are treated
/// as 31.
#[inline]
pub const fn rnr_delay(code: u8) -> u64 {
    const UNITS_OF_10_US: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    let index = if code > 31 { 31 } else { code as usize };
    UNITS_OF_10_US[index] * 10_000
}

/// Returns the nanoseconds that an acknowledgement may take with this `timeout` code; `None` means
/// forever.
#[inline]
pub const fn ack_timeout(code: u8) -> Option<u64> {
    match code {
        0 => None,
        1..=31 => Some(4096 << code),
        _ => Some(4096 << 31),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_as_many_packets_as_the_mtu_says() {
        let cases = [(0, 1), (1, 1), (256, 1), (257, 2), (u32::MAX, 1 << 24)];
        for (length, packets) in cases {
            assert_eq!(Mtu::Mtu256.packets(length), packets, "{length} bytes");
        }
        assert_eq!(Mtu::Mtu4096.packets(65_536), 16);
    }

    #[test]
    fn timers_are_those_of_the_specification() {
        assert_eq!(rnr_delay(0), 655_360_000);
        assert_eq!(rnr_delay(1), 10_000);
        assert_eq!(rnr_delay(12), 640_000);
        assert_eq!(rnr_delay(31), 491_520_000);
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(67_108_864));
    }

    #[test]
    fn err_is_entered_once_and_never_from_reset() {
        let state = StateCell::new();
        assert!(!state.fail());
        state.set(QpState::Rtr);
        assert!(state.fail());
        assert!(!state.fail());
        assert_eq!(state.get(), QpState::Err);
    }
}
