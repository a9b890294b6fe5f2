//! Properties of a NIC that NCCL asks for, and the trait of kinds of NICs.

use crate::rails::Nics;
use polyrail::interfaces::IpNet;
use std::sync::Arc;

/// Properties of a NIC that NCCL asks for.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// Its directory in sysfs.
    pub(crate) pci_path: Option<String>,
    pub(crate) guid: u64,
    pub(crate) speed_mbps: u32,
    pub(crate) port: u8,
    pub(crate) gpu: Gpu,
}

/// How a NIC reaches memory of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// By address: a kernel module of the GPU's vendor translates addresses for the NIC.
    pub(crate) by_address: bool,
    /// By dma-bufs.
    pub(crate) by_dma_buf: bool,
}

impl Gpu {
    /// Returns whether the NIC reaches memory of GPUs.
    pub(crate) const fn is_reached(self) -> bool {
        self.by_address || self.by_dma_buf
    }
}

/// NICs of one kind, from which devices are made.
pub(crate) trait Group: Send + Sync {
    /// Returns the description of each NIC.
    fn descriptions(&self) -> &[Description];

    /// Returns the network of each NIC, if it is known.
    fn networks(&self) -> Vec<Option<IpNet>>;

    /// Returns the NICs with these indices as one device.
    fn nics(&self, places: &[usize]) -> Arc<dyn Nics>;
}
