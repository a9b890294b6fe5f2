//! Memory that devices may access, registered with one or more of them, and what a peer has to know to
//! reach it.
//!
//! `registration` is what all kinds have in common: where the bytes are, and their keys. `buffer` owns its
//! bytes, pages that the software NIC's crate allocates and touches, and needs no `unsafe`; `foreign` is memory
//! of the caller's own, and `cache` keeps registrations of it by their ranges. `remote` is the peer's side.

mod buffer;
mod cache;
mod foreign;
mod range;
mod registration;
mod remote;

pub use buffer::RegisteredBuffer;
pub use cache::{CacheCounters, CacheLimits, CachedBuffer, RegistrationCache, StillRegistered};
pub use foreign::ForeignBuffer;
pub use polyrail_software_nic::{OutOfMemory, Pages, RegionKeys};
pub use range::OutOfRange;
pub use registration::{Registration, keys_toward};
pub use remote::{DeviceCountMismatch, RemoteBuffer};
