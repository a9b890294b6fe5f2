//! Random bytes.

use crate::guard::{Code, Refusal};

/// Returns unpredictable bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    polyrail_nic_parts::random::random().map_err(|errno| {
        Refusal::new(Code::System, format!("cannot read random bytes from the system: {errno}"))
    })
}
