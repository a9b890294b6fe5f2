//! Random bytes.

use crate::guard::{Code, Refusal};
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(count) if count == N => Ok(bytes),
        _ => Err(Refusal::new(Code::System, "the system gave no random bytes")),
    }
}
