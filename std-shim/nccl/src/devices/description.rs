//! Properties of a NIC that NCCL asks for, and the trait of kinds of NICs.

use crate::rails::Nics;
use std::fs::canonicalize;
use std::path::Path;
use std::sync::Arc;

/// The reported rate of a port whose driver does not report one.
pub(crate) const UNKNOWN_MBPS: u32 = 10_000;

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

/// Returns the directory in sysfs of a device of this class (`net`, `infiniband`), by which NCCL
/// finds its place in the PCI topology. Software devices have none.
pub(crate) fn pci_path(class: &str, device: &str) -> Option<String> {
    let path =
        canonicalize(Path::new("/sys/class").join(class).join(device).join("device")).ok()?;
    path.to_str().map(Into::into)
}

/// NICs of one kind, from which devices are made.
pub(crate) trait Group: Send + Sync {
    /// Returns the description of each NIC.
    fn descriptions(&self) -> &[Description];

    /// Returns the NICs with these indices as one device.
    fn nics(&self, places: &[usize]) -> Arc<dyn Nics>;
}
