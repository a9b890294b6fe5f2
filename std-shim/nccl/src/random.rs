//! Random bytes.

use crate::guard::{Code, Refusal};
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns unpredictable bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(count) if count == N => Ok(bytes),
        _ => Err(Refusal::new(Code::System, "cannot read random bytes from the system")),
    }
}
