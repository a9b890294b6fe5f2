//! What sysfs has of a device of this host, and what replaces what it lacks.

use std::fs::canonicalize;
use std::path::Path;

/// The reported rate of a port whose driver does not report one.
pub(crate) const UNKNOWN_MBPS: u32 = 10_000;

/// Returns the directory in sysfs of a device of this class (`net`, `infiniband`), by which NCCL
/// finds its place in the PCI topology. Software devices have none.
pub(crate) fn pci_path(class: &str, device: &str) -> Option<String> {
    let path =
        canonicalize(Path::new("/sys/class").join(class).join(device).join("device")).ok()?;
    path.to_str().map(Into::into)
}
