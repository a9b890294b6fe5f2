//! Memory that is registered with one or more devices, and the data that a peer needs to access it.
//!
//! | memory | type | who touches it while it is registered |
//! |---|---|---|
//! | allocated here | [`RegisteredBuffer`] | devices; the program by copies |
//! | of the program, taken back later: `Vec<u8>`, `Box<[u8]>`, `BytesMut` | [`OwnedBuffer`] | devices; the program by copies |
//! | of the program, only sent: `Bytes`, `Mmap`, `Arc<[u8]>` | [`SharedBuffer`] | devices and the program read it |
//! | of the program, a pointer and a length; memory of a GPU | [`ForeignBuffer`] (`unsafe`) | as the caller promises |
//! | the same, registered many times | [`RegistrationCache`] (`unsafe`) | as the caller promises |
//! | of the peer | [`RemoteBuffer`] | devices, by its keys |
//!
//! All but the last have the methods of a [`Registration`]: address, length, and the keys of
//! requests.

// Files:
//
// `registration` is the part that all kinds share: address, length and keys. `buffer` owns its
// bytes, which the software NIC's crate allocates and copies; `owned` owns memory of the program,
// which takes it back; neither needs `unsafe`. `foreign` is memory of the caller, and `cache`
// keeps registrations of it by their ranges. `remote` describes a buffer of the peer.

mod buffer;
mod cache;
mod foreign;
mod owned;
mod range;
mod registration;
mod remote;

pub use buffer::RegisteredBuffer;
pub use cache::{CacheCounters, CacheLimits, CachedBuffer, RegistrationCache, StillRegistered};
pub use foreign::ForeignBuffer;
pub use owned::{OwnedBuffer, RegisterError, SharedBuffer};
pub use polyrail_software_nic::{OutOfMemory, Pages, RegionKeys};
pub use range::OutOfRange;
pub use registration::{Registration, keys_toward};
pub use remote::{DeviceCountMismatch, RemoteBuffer};
