//! Places of devices in the machine, and how far they are from a thread or a GPU, from sysfs.

mod distance;
mod link;
mod pci;

pub use distance::{Distance, Near, NearError, NoPciDevice, Origin};
pub use link::PciLink;
pub use pci::{PciAddress, PciAddressError};

use crate::cpus::CpuList;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where the kernel lists devices by their kind.
const CLASS: &str = "/sys/class";

/// The place of a device. Attributes that the kernel does not report are `None`. A software device
/// has the place of its network device.
///
/// ```no_run
/// use polyrail::cpus::pin_thread;
/// use polyrail::place::Place;
///
/// let place = Place::of("mlx5_0"); // or Place::of_interface("eth0")
/// if let Some(cpus) = &place.cpus {
///     pin_thread(cpus)?; // before buffers are allocated
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its PCI function, behind the bridges that lead to it: `0000:80:01.1/0000:81:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The nearest NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The nearest CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Its present PCI link: of a virtual function, that of its physical function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<PciLink>,
    /// The best PCI link that the device supports. If it is better than `link`, the slot limits the
    /// link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_link: Option<PciLink>,
    /// The network device of a software device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Firmware version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// The vendor's name of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
}

impl Place {
    /// Returns the place of the RDMA device with this name.
    pub fn of(device: &str) -> Self {
        Self::below(Path::new(CLASS), device)
    }

    /// Returns the place of the network interface with this name. A virtual interface has none.
    pub fn of_interface(interface: &str) -> Self {
        Self::of_hardware(&Path::new(CLASS).join("net").join(interface).join("device"))
    }

    /// Like [`of`](Self::of), from the sysfs `class` directory.
    fn below(class: &Path, device: &str) -> Self {
        let shown = class.join("infiniband").join(device);
        let parent = attribute::<String>(&shown, "parent");
        let hardware = match &parent {
            Some(parent) => class.join("net").join(parent).join("device"),
            None => shown.join("device"),
        };
        Self {
            parent,
            firmware: attribute(&shown, "fw_ver"),
            board: attribute(&shown, "board_id"),
            ..Self::of_hardware(&hardware)
        }
    }

    /// Returns the rate in Mbit/s at which the device can use a port of this rate: it is at most
    /// the data rate of its [`link`](Self::link), if that is known. All ports and all functions of
    /// a device share its link.
    pub fn limited_mbps(&self, port_mbps: u32) -> u32 {
        let link = self.link.as_ref().and_then(|link| link.mbps);
        link.map_or(port_mbps, |link| link.min(port_mbps))
    }

    /// Returns the place of a device by its directory in sysfs.
    fn of_hardware(hardware: &Path) -> Self {
        let path = hardware.canonicalize().ok();
        let function = path.as_deref().and_then(pci_function);
        let link = |which: &str| {
            let function = function?;
            // A virtual function has no link, but may claim the best one. In a guest, its physical
            // function cannot be seen.
            link_of(&function.join("physfn"), which).or_else(|| link_of(function, which))
        };
        Self {
            pci: path.as_deref().and_then(pci_path),
            // -1 on a machine with one node, or if the node is unknown.
            numa_node: attribute(hardware, "numa_node"),
            cpus: attribute(hardware, "local_cpulist"),
            link: link("current"),
            max_link: link("max"),
            ..Self::default()
        }
    }
}

/// Returns the present link (`current`) or the best link (`max`) of the PCI function in this
/// directory; `None` if the kernel does not know it.
fn link_of(function: &Path, which: &str) -> Option<PciLink> {
    let speed = attribute(function, &format!("{which}_link_speed"))?;
    let lanes = attribute(function, &format!("{which}_link_width"))?;
    PciLink::reported(speed, lanes)
}

/// Reads an attribute; `None` if it does not exist or cannot be parsed.
pub(crate) fn attribute<T: FromStr>(directory: &Path, name: &str) -> Option<T> {
    let text = std::fs::read_to_string(directory.join(name)).ok()?;
    let text = text.trim();
    if text.is_empty() { None } else { text.parse().ok() }
}

/// Returns the directory of the PCI function that a device is, or is a part of: parts of a NIC are
/// on the bus `auxiliary`. A device on the bus `virtio` is on a PCI function, too, but does not use
/// its link, which the hypervisor makes up.
fn pci_function(directory: &Path) -> Option<&Path> {
    let is_part = |path: &Path| {
        std::fs::read_link(path.join("subsystem")).is_ok_and(|bus| bus.ends_with("bus/auxiliary"))
    };
    let function = directory.ancestors().find(|path| !is_part(path))?;
    function.file_name()?.to_str().is_some_and(is_pci_function).then_some(function)
}

/// Returns the PCI functions in the path of a device's directory, from the root.
fn pci_path(directory: &Path) -> Option<String> {
    let names = directory.iter().filter_map(|name| name.to_str());
    let functions: PathBuf = names.filter(|name| is_pci_function(name)).collect();
    functions.to_str().filter(|path| !path.is_empty()).map(Into::into)
}

/// Whether this is the address of a PCI function, as sysfs writes it: `0000:81:00.0`.
fn is_pci_function(name: &str) -> bool {
    name.parse::<PciAddress>().is_ok_and(|address| address.to_string() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    /// Makes a sysfs with a NIC on the second socket, and a software device on a virtual interface.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let nic = root.path().join("devices/pci0000:80/0000:80:01.1/0000:81:00.0");
        let shown = root.path().join("class/infiniband/mlx5_0");
        let software = root.path().join("class/infiniband/rxe0");
        let ethernet = root.path().join("class/net/eth0");
        for directory in [&nic, &shown, &software, &ethernet] {
            create_dir_all(directory).unwrap();
        }
        symlink(&nic, shown.join("device")).unwrap();
        symlink(&nic, ethernet.join("device")).unwrap();
        for (name, text) in [
            ("numa_node", "1\n"),
            ("local_cpulist", "16-31,48-63\n"),
            ("current_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "8\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ] {
            write(nic.join(name), text).unwrap();
        }
        write(shown.join("fw_ver"), "28.39.1002\n").unwrap();
        write(shown.join("board_id"), "MT_0000000838\n").unwrap();
        write(software.join("parent"), "eth0\n").unwrap();
        write(software.join("fw_ver"), "\n").unwrap();
        root
    }

    #[test]
    fn a_nic_is_where_its_pci_function_is() {
        let root = machine();
        let place = Place::below(&root.path().join("class"), "mlx5_0");
        let link = |speed: &str, lanes, mbps| {
            Some(PciLink { speed: speed.into(), lanes, mbps: Some(mbps) })
        };
        assert_eq!(
            place,
            Place {
                pci: Some("0000:80:01.1/0000:81:00.0".into()),
                numa_node: Some(1),
                cpus: Some("16-31,48-63".parse().unwrap()),
                link: link("16.0 GT/s PCIe", 8, 126_024),
                max_link: link("32.0 GT/s PCIe", 16, 504_112),
                parent: None,
                firmware: Some("28.39.1002".into()),
                board: Some("MT_0000000838".into()),
            }
        );
        let without_verbs = Place::of_hardware(&root.path().join("class/net/eth0/device"));
        assert_eq!(without_verbs, Place { firmware: None, board: None, ..place });
    }

    #[test]
    fn a_device_in_software_is_where_the_one_below_it_is() {
        let root = machine();
        let class = root.path().join("class");
        let place = Place::below(&class, "rxe0");
        assert_eq!((place.parent.as_deref(), place.firmware), (Some("eth0"), None));
        assert_eq!(place.cpus, Place::below(&class, "mlx5_0").cpus);
        write(class.join("infiniband/rxe0/parent"), "veth0\n").unwrap();
        let virtual_only = Place::below(&class, "rxe0");
        assert_eq!((virtual_only.pci, virtual_only.cpus, virtual_only.link), (None, None, None));
    }

    #[test]
    fn what_the_kernel_does_not_know_is_missing() {
        let root = machine();
        let class = root.path().join("class");
        let nic = class.join("infiniband/mlx5_0/device");
        write(nic.join("numa_node"), "-1\n").unwrap();
        write(nic.join("local_cpulist"), "\n").unwrap();
        write(nic.join("current_link_width"), "0\n").unwrap();
        let place = Place::below(&class, "mlx5_0");
        assert_eq!((place.numa_node, place.cpus, place.link), (None, None, None));
        assert_eq!(Place::below(&class, "gone"), Place::default());
    }

    #[test]
    fn only_functions_are_part_of_a_pci_path() {
        let path = |text: &str| pci_path(Path::new(text));
        assert_eq!(path("/sys/devices/virtual/net/veth0"), None);
        assert_eq!(
            path("/sys/devices/pci0000:00/0000:00:03.0/virtio0").as_deref(),
            Some("0000:00:03.0")
        );
        assert_eq!(path("/sys/devices/10000:01:00.0").as_deref(), Some("10000:01:00.0"));
    }
}
