//! A set of a thousand virtual queue pairs on the software NIC: how long it takes to make, and what
//! memory.

use crate::measure::MIN_REPEATS;
use polyrail::endpoint::{EndpointBuilder, EndpointSet, EngineQp};
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain, QueuePair};
use std::fs;
use std::time::{Duration, Instant};

/// The name of the row.
pub const NAME: &str = "set_of_1000";

/// Virtual queue pairs of a set.
pub const MEMBERS: usize = 1000;

/// What a set takes.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Median time to make it.
    pub time: Duration,
    /// Resident bytes of it, its devices' queues included.
    pub resident: u64,
    /// Bytes of the virtual queue pairs themselves.
    pub engine: u64,
}

/// Makes such sets, of four rails over two devices and a notify queue pair. Must be called first,
/// because memory that was freed before would be reused and not counted.
///
/// # Panics
///
/// If memory is exhausted.
pub fn measure() -> Set {
    let mut times = Vec::new();
    let mut resident = 0;
    for _ in 0..MIN_REPEATS {
        let fabric = Fabric::threaded();
        let domains: [ProtectionDomain; 2] = ["a", "b"].map(|name| {
            fabric.create_device(DeviceConfig::named(name)).alloc_pd().expect("a new device")
        });
        let [a, b] = &domains;
        let before = resident_bytes();
        let start = Instant::now();
        let set = EndpointSet::build((0..MEMBERS).map(|_| (EndpointBuilder::new(), [a, b])));
        times.push(start.elapsed());
        // The first time, nothing was given back yet.
        resident = resident.max(resident_bytes().saturating_sub(before));
        assert_eq!(set.expect("room for a thousand").len(), MEMBERS);
    }
    times.sort_unstable();
    let engine = (size_of::<EngineQp<QueuePair>>() * MEMBERS) as u64;
    Set { time: times[times.len() / 2], resident, engine }
}

/// Returns the resident memory of this process; 0 if the system does not report it.
pub(crate) fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .map_or(0, |pages: u64| pages * PAGE)
}
