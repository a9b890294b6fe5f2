//! The PCI Express link of a device.

use serde::Serialize;

/// A PCI Express link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciLink {
    /// Rate of a lane, in the kernel's notation: `16.0 GT/s PCIe`.
    pub speed: String,
    /// Number of lanes.
    pub lanes: u32,
    /// Data rate of all lanes in Mbit/s, each direction, without line coding, as the kernel's log
    /// counts it ("available PCIe bandwidth"). Headers of packets take a part of it. `None` if the
    /// speed is newer than this library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbps: Option<u32>,
}

impl PciLink {
    /// Returns the link that the kernel reports with this speed and this number of lanes; `None` if
    /// it does not know the link.
    pub(super) fn reported(speed: String, lanes: u32) -> Option<Self> {
        // A virtual function reads as "Unknown" and 0; a device that does not answer as 63, all the
        // bits of the register's field, or as 255, `PCIE_LNK_WIDTH_UNKNOWN` of the kernel.
        let is_known = !speed.starts_with("Unknown") && WIDTHS.contains(&lanes);
        let mbps = lane_mbps(&speed).map(|lane| lane * lanes);
        is_known.then_some(Self { speed, lanes, mbps })
    }
}

/// Numbers of lanes that a link may have (PCI Express Base Specification, Link Status Register).
const WIDTHS: [u32; 7] = [1, 2, 4, 8, 12, 16, 32];

/// Returns the data rate of a lane in Mbit/s (`PCIE_SPEED2MBS_ENC` of the kernel's
/// `drivers/pci/pci.h`): the line coding is 8b/10b up to 5 GT/s, and 128b/130b up to 32 GT/s.
fn lane_mbps(speed: &str) -> Option<u32> {
    // Kernels before 5.7 write `8 GT/s`, and kernels before 5.13 leave ` PCIe` out.
    let (rate, _) = speed.split_once(" GT/s")?;
    Some(match rate.strip_suffix(".0").unwrap_or(rate) {
        "2.5" => 2_500 * 8 / 10,
        "5" => 5_000 * 8 / 10,
        "8" => 8_000 * 128 / 130,
        "16" => 16_000 * 128 / 130,
        "32" => 32_000 * 128 / 130,
        "64" => 64_000,
        "128" => 128_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A sysfs with one NIC.
    struct Server(TempDir);

    const ROOT_PORT: &str = "devices/pci0000:80/0000:80:01.1";
    const PHYSICAL: &str = "devices/pci0000:80/0000:80:01.1/0000:81:00.0";
    const VIRTUAL: &str = "devices/pci0000:80/0000:80:01.1/0000:81:00.2";

    impl Server {
        /// Makes a sysfs where a directory is the device of `mlx5_0`.
        fn new(device: &str) -> Self {
            let server = Self(tempfile::tempdir().unwrap());
            let root = server.0.path();
            let shown = root.join("class/infiniband/mlx5_0");
            for directory in [&root.join(device), &root.join(PHYSICAL), &shown] {
                create_dir_all(directory).unwrap();
            }
            symlink(root.join(device), shown.join("device")).unwrap();
            server
        }

        /// Writes the link of a function: the present one, or the best one.
        fn link(self, function: &str, which: &str, speed: &str, lanes: &str) -> Self {
            let function = self.0.path().join(function);
            write(function.join(format!("{which}_link_speed")), format!("{speed}\n")).unwrap();
            write(function.join(format!("{which}_link_width")), format!("{lanes}\n")).unwrap();
            self
        }

        fn place(&self) -> Place {
            Place::below(&self.0.path().join("class"), "mlx5_0")
        }
    }

    #[test]
    fn the_narrower_of_port_and_link_is_the_rate_of_a_nic() {
        for (speed, lanes, link, port, effective) in [
            // ConnectX-3, 40 Gbit/s.
            ("5 GT/s", "8", 32_000, 40_000, 32_000),
            ("2.5 GT/s PCIe", "4", 8_000, 10_000, 8_000),
            // ConnectX-5, 100 Gbit/s, in a slot of half its lanes, and in a whole one.
            ("8 GT/s", "8", 63_008, 100_000, 63_008),
            ("8.0 GT/s PCIe", "16", 126_016, 100_000, 100_000),
            // ConnectX-6, HDR, of a DGX A100.
            ("16.0 GT/s PCIe", "16", 252_048, 200_000, 200_000),
            // ConnectX-7, NDR, in a slot of the generation before it, and in its own.
            ("16.0 GT/s PCIe", "16", 252_048, 400_000, 252_048),
            ("32.0 GT/s PCIe", "16", 504_112, 400_000, 400_000),
            // ConnectX-8, XDR.
            ("32.0 GT/s PCIe", "16", 504_112, 800_000, 504_112),
            ("64.0 GT/s PCIe", "16", 1_024_000, 800_000, 800_000),
            // A port whose rate is unknown.
            ("16.0 GT/s PCIe", "16", 252_048, 0, 0),
        ] {
            let place = Server::new(PHYSICAL).link(PHYSICAL, "current", speed, lanes).place();
            let mbps = place.link.as_ref().and_then(|link| link.mbps);
            assert_eq!(mbps, Some(link), "{speed} x{lanes}");
            assert_eq!(place.limited_mbps(port), effective, "{speed} x{lanes}, {port}");
        }
    }

    #[test]
    fn a_link_that_the_kernel_does_not_know_limits_nothing() {
        for (speed, lanes) in [
            ("Unknown", "0"),
            ("Unknown speed", "8"),
            ("Unknown", "255"),
            ("16.0 GT/s PCIe", "0"),
            ("16.0 GT/s PCIe", "63"),
            ("16.0 GT/s PCIe", "255"),
            ("16.0 GT/s PCIe", "-1"),
            ("16.0 GT/s PCIe", ""),
            ("", "16"),
        ] {
            let place = Server::new(PHYSICAL).link(PHYSICAL, "current", speed, lanes).place();
            assert_eq!(place.link, None, "{speed:?} x{lanes:?}");
            assert_eq!(place.limited_mbps(400_000), 400_000);
        }
        // A link whose speed is not in the table is shown.
        for speed in ["256.0 GT/s PCIe", "0 GT/s", "1e9 GT/s", "-8.0 GT/s", "16.0"] {
            let place = Server::new(PHYSICAL).link(PHYSICAL, "current", speed, "16").place();
            let link = Some(PciLink { speed: speed.into(), lanes: 16, mbps: None });
            assert_eq!((&place.link, place.limited_mbps(400_000)), (&link, 400_000));
        }
        assert_eq!(Server::new(PHYSICAL).place().link, None, "a kernel without these files");
    }

    /// The bridge above it is wider: what counts is the function's own link.
    #[test]
    fn a_function_has_its_own_link() {
        let server = Server::new(PHYSICAL)
            .link(ROOT_PORT, "current", "32.0 GT/s PCIe", "16")
            .link(PHYSICAL, "current", "8.0 GT/s PCIe", "8")
            .link(PHYSICAL, "max", "16.0 GT/s PCIe", "16");
        let Place { link, max_link, .. } = server.place();
        let mbps = |link: Option<PciLink>| link.and_then(|link| link.mbps);
        assert_eq!((mbps(link), mbps(max_link)), (Some(63_008), Some(252_048)));
    }

    #[test]
    fn a_virtual_function_has_the_link_of_its_physical_one() {
        let server = Server::new(VIRTUAL)
            .link(VIRTUAL, "current", "Unknown", "0")
            .link(VIRTUAL, "max", "16.0 GT/s PCIe", "16")
            .link(PHYSICAL, "current", "8.0 GT/s PCIe", "16")
            .link(PHYSICAL, "max", "32.0 GT/s PCIe", "16");
        let root = server.0.path();
        assert_eq!(server.place().link, None, "in a guest, which does not see the physical one");
        symlink(root.join(PHYSICAL), root.join(VIRTUAL).join("physfn")).unwrap();
        let Place { pci, link, max_link, .. } = server.place();
        assert_eq!(pci.as_deref(), Some("0000:80:01.1/0000:81:00.2"));
        assert_eq!(link.and_then(|link| link.mbps), Some(126_016));
        assert_eq!(max_link.and_then(|link| link.mbps), Some(504_112));
    }

    #[test]
    fn a_part_of_a_function_has_the_link_of_the_function() {
        for (part, bus, expected) in [
            ("mlx5_core.sf.2", "auxiliary", 126_024),
            // A device of a virtual machine: its function has the link that the hypervisor makes
            // up.
            ("virtio0", "virtio", 200_000),
        ] {
            let part = format!("{PHYSICAL}/{part}");
            let server = Server::new(&part).link(PHYSICAL, "current", "16.0 GT/s PCIe", "8");
            let root = server.0.path();
            symlink(root.join("bus").join(bus), root.join(&part).join("subsystem")).unwrap();
            assert_eq!(server.place().limited_mbps(200_000), expected, "{bus}");
        }
    }
}
