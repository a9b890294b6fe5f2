//! The options of a device.

use polyrail_nic_parts::address::Mtu;
use polyrail_nic_parts::options::DeviceLimits;
use std::num::NonZeroU64;

/// The options of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its name, for users.
    pub name: String,
    /// Number of ports, at least 1 (0 counts as 1); all come up active.
    pub ports: u8,
    /// Its limits.
    pub limits: DeviceLimits,
    /// Line rate: payload bytes per second for all its queue pairs together, READs included;
    /// `None`: unlimited. The peer's rate does not matter.
    pub bytes_per_second: Option<NonZeroU64>,
    /// The largest MTU that its ports support (`active_mtu`).
    pub mtu: Mtu,
    /// Whether queue pairs and shared receive queues get all their memory when they are created, so
    /// that nothing allocates afterwards. Otherwise their queues begin small and grow as they fill,
    /// which suits thousands of queue pairs. Completion queues have memory for 1024 completions in
    /// either case, and grow beyond that.
    pub full_queues: bool,
}

impl DeviceConfig {
    /// Returns the options of a device with one port, the default limits, no line rate, and packets
    /// of up to 4096 bytes, whose queues grow.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ports: 1,
            limits: DeviceLimits::default(),
            bytes_per_second: None,
            mtu: Mtu::default(),
            full_queues: false,
        }
    }
}
