//! The handle: what a connecting end needs to know of a listening end, as bytes that NCCL carries.
//!
//! ```text
//!  bytes 0..4    "PRN2"
//!        4       4 or 6: version of IP
//!        5       devices
//!        6       rails, 0 if the sender may choose
//!        7       queue pairs of each rail
//!        8       bit 0: re-routes; bit 1: software NICs, bit 2: TCP
//!        10..12  port
//!        12..16  scope of the address
//!        16..32  address, IPv4 in the first four bytes
//!        32..48  token
//!        48..56  number of the process
//!        56..64  0; at the sender, its attempt to connect
//!        64..72  number of the listening end
//! ```

use crate::abi::HANDLE_BYTES;
use crate::guard::Refusal;
use crate::settings::Backend;
use std::ffi::c_void;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Length of the token that senders prove to have, in bytes.
pub(super) const TOKEN_BYTES: usize = 16;

const MAGIC: &[u8; 4] = b"PRN2";
const REROUTES: u8 = 1 << 0;
const SOFTWARE: u8 = 1 << 1;
const TCP: u8 = 1 << 2;
const LISTENER: usize = 64;
const BYTES: usize = 72;
const ATTEMPT: usize = 56;
const _: () = assert!(BYTES <= HANDLE_BYTES);

/// The handle of a listening end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) address: SocketAddr,
    /// The token that peers must have, so that only peers with the handle can connect.
    pub(crate) token: [u8; TOKEN_BYTES],
    /// The number of the listening end in its process.
    pub(crate) listener: u64,
    pub(crate) devices: u8,
    pub(crate) rails: Option<u8>,
    pub(crate) queue_pairs_per_rail: u8,
    pub(crate) reroutes: bool,
    pub(crate) backend: Backend,
    /// The number of its process. Software NICs connect only within one process.
    pub(crate) process: u64,
}

impl Handle {
    /// Writes the handle to NCCL's memory.
    ///
    /// # Safety
    ///
    /// The pointer is valid for writes of 128 bytes.
    pub(crate) unsafe fn write(&self, to: *mut c_void) {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..BYTES].copy_from_slice(&self.encode());
        // SAFETY: the caller's promise; any alignment will do.
        unsafe { to.cast::<[u8; HANDLE_BYTES]>().write_unaligned(bytes) };
    }

    /// Reads the handle, and the attempt that was noted in it.
    ///
    /// # Safety
    ///
    /// The pointer is valid for reads of 128 bytes.
    pub(crate) unsafe fn read(from: *const c_void) -> Result<(Self, u64), Refusal> {
        // SAFETY: the caller's promise; any alignment will do.
        let bytes = unsafe { from.cast::<[u8; BYTES]>().read_unaligned() };
        let handle = Self::decode(&bytes).ok_or_else(|| {
            let is_ours = bytes.starts_with(&MAGIC[..3]) && bytes[3] != MAGIC[3];
            Refusal::argument(match is_ours {
                true => "a handle of another version of the plugin",
                false => "a handle that no listening end wrote",
            })
        })?;
        Ok((handle, u64::from_le_bytes(part(&bytes, ATTEMPT))))
    }

    /// Notes an attempt to connect, for the next call with this handle.
    ///
    /// # Safety
    ///
    /// The pointer is valid for writes of 128 bytes.
    pub(crate) unsafe fn note_attempt(to: *mut c_void, attempt: u64) {
        // SAFETY: the caller's promise; any alignment will do.
        unsafe { to.byte_add(ATTEMPT).cast::<[u8; 8]>().write_unaligned(attempt.to_le_bytes()) };
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        match self.address {
            SocketAddr::V4(address) => {
                bytes[4] = 4;
                bytes[16..20].copy_from_slice(&address.ip().octets());
            }
            SocketAddr::V6(address) => {
                bytes[4] = 6;
                bytes[12..16].copy_from_slice(&address.scope_id().to_le_bytes());
                bytes[16..32].copy_from_slice(&address.ip().octets());
            }
        }
        bytes[5] = self.devices;
        bytes[6] = self.rails.unwrap_or(0);
        bytes[7] = self.queue_pairs_per_rail;
        bytes[8] = if self.reroutes { REROUTES } else { 0 }
            | match self.backend {
                Backend::Verbs => 0,
                Backend::Software => SOFTWARE,
                Backend::Tcp => TCP,
            };
        bytes[10..12].copy_from_slice(&self.address.port().to_le_bytes());
        bytes[32..48].copy_from_slice(&self.token);
        bytes[48..ATTEMPT].copy_from_slice(&self.process.to_le_bytes());
        bytes[LISTENER..].copy_from_slice(&self.listener.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let is_ours = bytes[..4] == *MAGIC && bytes[5] > 0 && bytes[7] > 0 && bytes[9] == 0;
        if !is_ours {
            return None;
        }
        let backend = match bytes[8] & !REROUTES {
            0 => Backend::Verbs,
            SOFTWARE => Backend::Software,
            TCP => Backend::Tcp,
            _ => return None,
        };
        let port = u16::from_le_bytes(part(bytes, 10));
        let address = match bytes[4] {
            4 => SocketAddrV4::new(Ipv4Addr::from(part::<4>(bytes, 16)), port).into(),
            6 => {
                let scope = u32::from_le_bytes(part(bytes, 12));
                SocketAddrV6::new(Ipv6Addr::from(part::<16>(bytes, 16)), port, 0, scope).into()
            }
            _ => return None,
        };
        Some(Self {
            address,
            token: part(bytes, 32),
            listener: u64::from_le_bytes(part(bytes, LISTENER)),
            devices: bytes[5],
            rails: (bytes[6] > 0).then_some(bytes[6]),
            queue_pairs_per_rail: bytes[7],
            reroutes: bytes[8] & REROUTES != 0,
            backend,
            process: u64::from_le_bytes(part(bytes, 48)),
        })
    }
}

/// Returns the `N` bytes from `at` on, which must be within the array.
fn part<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(address: &str) -> Handle {
        Handle {
            address: address.parse().unwrap(),
            token: std::array::from_fn(|at| at as u8),
            listener: 0xfedc_ba98_7654_3210,
            devices: 2,
            rails: None,
            queue_pairs_per_rail: 1,
            reroutes: true,
            backend: Backend::Verbs,
            process: 0x0123_4567_89ab_cdef,
        }
    }

    #[test]
    fn a_handle_is_what_was_written() {
        for handle in [
            handle("10.0.0.1:7471"),
            Handle {
                rails: Some(8),
                backend: Backend::Software,
                reroutes: false,
                ..handle("[fe80::1%3]:1")
            },
            Handle { backend: Backend::Tcp, ..handle("10.0.0.1:1") },
        ] {
            let mut room = [0xffu8; HANDLE_BYTES];
            // SAFETY: there is room.
            unsafe {
                handle.write(room.as_mut_ptr().cast());
                assert_eq!(Handle::read(room.as_ptr().cast()).unwrap(), (handle, 0));
                Handle::note_attempt(room.as_mut_ptr().cast(), u64::MAX - 5);
                assert_eq!(Handle::read(room.as_ptr().cast()).unwrap(), (handle, u64::MAX - 5));
            }
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = handle("10.0.0.1:7471").encode();
        for (at, byte) in [(0, b'X'), (4, 5), (5, 0), (7, 0), (8, 6), (8, 8), (9, 1)] {
            let mut bytes = good;
            bytes[at] = byte;
            assert_eq!(Handle::decode(&bytes), None, "byte {at}");
        }
        assert_eq!(Handle::decode(&[0; BYTES]), None);
        let mut old = [0; HANDLE_BYTES];
        old[..4].copy_from_slice(b"PRN1");
        // SAFETY: there are as many bytes.
        let refused = unsafe { Handle::read(old.as_ptr().cast()) }.unwrap_err();
        assert!(refused.words.contains("another version"), "{}", refused.words);
    }
}
