//! Counts of what happened to the links of the process. They belong to no endpoint.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of events of one kind.
#[derive(Debug)]
pub(crate) struct Count(AtomicU64);

/// Links that broke, and are resumed.
pub(crate) static LINK_BREAKS: Count = Count(AtomicU64::new(0));

/// Links that were resumed.
pub(crate) static LINK_RESUMPTIONS: Count = Count(AtomicU64::new(0));

/// Peers whose link ended before their hello.
pub(crate) static REFUSED_PEERS: Count = Count(AtomicU64::new(0));

impl Count {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
