//! Memory that is registered with one or more devices, and the data that a peer needs to access it.
//!
//! `registration` is the part that all kinds share: address, length and keys. `buffer` owns its
//! bytes, which the software NIC's crate allocates and copies; `owned` owns memory of the program,
//! which takes it back; neither needs `unsafe`. `foreign` is memory of the caller, and `cache` keeps
//! registrations of it by their ranges. `remote` describes a buffer of the peer.

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
