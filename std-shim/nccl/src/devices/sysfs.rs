//! What sysfs has of a device of this host, and what replaces what it lacks.

use std::fs::{canonicalize, read_link};
use std::path::Path;

/// The reported rate of a port whose driver does not report one.
pub(crate) const UNKNOWN_MBPS: u32 = 10_000;

/// Returns the directory in sysfs of a device of this class (`net`, `infiniband`), by which NCCL
/// finds its place in the PCI topology. Software devices have none.
pub(crate) fn pci_path(class: &str, device: &str) -> Option<String> {
    let path = Path::new("/sys/class").join(class).join(device).join("device");
    pci_device(&canonicalize(path).ok()?)
}

/// Returns the PCI device at this path or nearest above it. NICs of virtual machines are on the bus
/// `virtio`, and parts of a NIC on the bus `auxiliary`: NCCL has no place for these.
fn pci_device(path: &Path) -> Option<String> {
    let is_pci =
        |path: &&Path| read_link(path.join("subsystem")).is_ok_and(|bus| bus.ends_with("bus/pci"));
    path.ancestors().find(is_pci)?.to_str().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, remove_dir_all};
    use std::os::unix::fs::symlink;
    use std::{env, process};

    #[test]
    fn a_device_on_another_bus_has_the_place_of_the_pci_device_above_it() {
        let root = env::temp_dir().join(format!("polyrail-nccl-sysfs-{}", process::id()));
        let card = root.join("devices/pci0000:00/0000:00:03.0");
        let virtio = card.join("virtio0");
        let usb = root.join("devices/platform/usb1");
        for (device, bus) in [(&card, "pci"), (&virtio, "virtio"), (&usb, "usb")] {
            create_dir_all(device).unwrap();
            symlink(root.join("bus").join(bus), device.join("subsystem")).unwrap();
        }
        let found = [&virtio, &card, &usb].map(|device| pci_device(device));
        remove_dir_all(&root).unwrap();
        let card = card.to_str().map(Into::into);
        assert_eq!(found, [card.clone(), card, None]);
    }
}
