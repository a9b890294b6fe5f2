//! What virtual queue pairs take of what they share.

use polyrail_core::verbs::DeviceId;
use std::collections::HashMap;

/// What virtual queue pairs take of what they share.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Of the routing table.
    pub(super) queue_pairs: usize,
    /// Of the completion queue of each device.
    pub(super) entries: HashMap<DeviceId, u32>,
}

impl Needs {
    pub(super) fn add(&mut self, other: &Self) {
        self.queue_pairs += other.queue_pairs;
        for (device, entries) in &other.entries {
            let all = self.entries.entry(*device).or_default();
            *all = all.saturating_add(*entries);
        }
    }
}
