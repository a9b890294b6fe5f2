//! Completion statuses.

use core::fmt;

/// Status of a completed work request (`enum ibv_wc_status`), as the raw number: a newer driver may
/// report a status that has no name here, and it is passed to the caller unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Returns the constant's name without `IBV_WC_`, or `None` for an unknown number.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// Returns a description, or `None` for an unknown number.
            pub const fn description(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    SUCCESS = 0, "success";
    /// A local buffer is shorter than the message, or the message longer than the port can send.
    LOC_LEN_ERR = 1, "local length error";
    /// An internal consistency error of the local queue pair.
    LOC_QP_OP_ERR = 2, "local QP operation error";
    /// An internal consistency error of a local EE context (reliable datagram).
    LOC_EEC_OP_ERR = 3, "local EE context operation error";
    /// A local key does not cover the local buffer, or does not permit the access.
    LOC_PROT_ERR = 4, "local protection error";
    /// The queue pair entered the error state before this request was executed.
    WR_FLUSH_ERR = 5, "request flushed";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// The responder sent an unexpected response.
    BAD_RESP_ERR = 7, "bad response";
    /// A protection error on a local buffer while data was arriving.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The responder rejected the request as invalid.
    REM_INV_REQ_ERR = 9, "remote invalid request";
    /// A remote key does not cover the remote range, or does not permit the access.
    REM_ACCESS_ERR = 10, "remote access error";
    /// The responder could not complete the request because of a local error.
    REM_OP_ERR = 11, "remote operation error";
    /// The responder did not acknowledge the request within the retries.
    RETRY_EXC_ERR = 12, "transport retries exceeded";
    /// The responder had no receive posted within the RNR retries.
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded";
    /// Reliable datagram domain violation.
    LOC_RDD_VIOL_ERR = 14, "local RDD violation";
    /// Reliable datagram: invalid request.
    REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
    /// The responder aborted.
    REM_ABORT_ERR = 16, "remote aborted";
    /// Invalid EE context number.
    INV_EECN_ERR = 17, "invalid EE context number";
    /// Invalid EE context state.
    INV_EEC_STATE_ERR = 18, "invalid EE context state";
    /// The device failed.
    FATAL_ERR = 19, "fatal device error";
    /// The responder did not answer in time.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// An error that no other status describes.
    GENERAL_ERR = 21, "general error";
    /// The caller [took the request back](crate::virtual_qp::VirtualQp::cancel). Not a status of
    /// verbs, whose numbers are small: no driver reports it.
    CANCELLED = 0x0001_0000, "taken back by the caller";
}

impl WcStatus {
    /// Whether the request succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "WcStatus({})", self.0),
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.description().unwrap_or("unknown status"), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::format;

    #[test]
    fn the_manuals_codes_have_names_and_others_are_kept_as_numbers() {
        for code in 0..=21 {
            assert!(WcStatus(code).name().is_some(), "code {code}");
        }
        assert_eq!(format!("{}", WcStatus(12)), "transport retries exceeded (status 12)");
        assert_eq!(
            format!("{:?} {}", WcStatus(77), WcStatus(77)),
            "WcStatus(77) unknown status (status 77)"
        );
    }
}
