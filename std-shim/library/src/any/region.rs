//! Registered memory.

use super::dispatch::{any, each};
use crate::backend::{DeviceError, Region};
use crate::nic;
#[cfg(feature = "verbs")]
use crate::rdma;
#[cfg(feature = "tcp")]
use crate::tcp;

any! {
    /// Memory that is registered with a device.
    #[derive(Debug)]
    AnyRegion: nic::MemoryRegion, tcp::MemoryRegion, rdma::VerbsRegion
}

impl Region for AnyRegion {
    fn close(self) -> Result<(), DeviceError> {
        each!(AnyRegion, self, region => Region::close(region))
    }
}
