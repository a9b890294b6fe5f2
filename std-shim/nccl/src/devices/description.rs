//! What NCCL wants to know of a NIC, and what finds them.

use crate::rails::Nics;
use std::sync::Arc;

/// What NCCL wants to know of a NIC.
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
    /// By addresses: a kernel module of the GPU's maker tells where they are.
    pub(crate) by_address: bool,
    /// By dma-bufs.
    pub(crate) by_dma_buf: bool,
}

impl Gpu {
    /// Whether there is any way.
    pub(crate) const fn is_reached(self) -> bool {
        self.by_address || self.by_dma_buf
    }
}

/// Makes devices of NICs, which all are of one kind.
pub(crate) trait Group: Send + Sync {
    /// What each NIC is.
    fn descriptions(&self) -> &[Description];

    /// These NICs, by their places, as one.
    fn nics(&self, places: &[usize]) -> Arc<dyn Nics>;
}
