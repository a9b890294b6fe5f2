//! Random bytes.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns bytes that cannot be guessed. They come from the system at each call: what a process
/// keeps to draw numbers from is the same in a process that it forks.
///
/// # Errors
///
/// The system's: EPERM or ENOSYS where a filter of system calls refuses getrandom(2).
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
    const { assert!(N <= 256, "the system gives this many at once (getrandom(2))") };
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        count if count == N => Ok(bytes),
        _ => Err(Errno::IO),
    }
}
