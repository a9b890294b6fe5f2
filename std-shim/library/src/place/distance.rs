//! How far devices are from a thread or from a GPU.

use super::{PciAddress, Place, attribute, pci_path};
use crate::cpus::CpuList;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where the kernel shows the machine.
const SYSFS: &str = "/sys";

/// The distance that the kernel reports between two NUMA nodes if the firmware names none
/// (`REMOTE_DISTANCE`, `include/linux/topology.h`). A node is at distance 10 from itself.
const OTHER_NODE: u32 = 20;

/// What devices are to be near to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Near {
    /// Nothing: devices keep the order of their names.
    Nothing,
    /// The processors that the calling thread may use. A thread that may use processors of all NUMA
    /// nodes is near to nothing.
    #[default]
    ThisThread,
    /// A PCI function, such as a GPU.
    Pci(PciAddress),
}

/// Text that says nothing of what devices are to be near to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is none of \"thread\", \"nothing\" and the address of a PCI device, such as \
     0000:3b:00.0"
)]
pub struct NearError {
    /// The text.
    pub text: String,
}

/// `thread`, `nothing`, or the address of a PCI function in any notation of [`PciAddress`].
///
/// ```
/// use polyrail::place::Near;
///
/// assert_eq!("thread".parse(), Ok(Near::ThisThread));
/// assert!(matches!("0000:3b:00.0".parse(), Ok(Near::Pci(_))));
/// assert!("gpu0".parse::<Near>().is_err());
/// ```
impl FromStr for Near {
    type Err = NearError;

    fn from_str(text: &str) -> Result<Self, NearError> {
        match text {
            "nothing" => Ok(Self::Nothing),
            "thread" => Ok(Self::ThisThread),
            _ => text.parse().map(Self::Pci).map_err(|_| NearError { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::ThisThread => f.write_str("thread"),
            Self::Pci(address) => address.fmt(f),
        }
    }
}

/// There is no such PCI function in this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no PCI device {address} in this machine: lspci lists them")]
pub struct NoPciDevice {
    /// The address.
    pub address: PciAddress,
}

/// The place of a thread or of a PCI function, from which distances are measured.
///
/// ```
/// use polyrail::place::{Distance, Near, Origin, Place};
///
/// let thread = Origin::of(Near::ThisThread)?;
/// for nic in thread.nearest_first(vec!["mlx5_0", "mlx5_1"], |nic| Place::of(nic)) {
///     println!("{nic} is near: {}", thread.distance(&Place::of(nic)) <= Distance::SameNode);
/// }
/// # Ok::<(), polyrail::place::NoPciDevice>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pci: Option<String>,
    nodes: Vec<Node>,
    /// PCI functions of the same class and NUMA node that come before it.
    turn: usize,
}

/// A NUMA node, with the distances from it to all nodes, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    number: u32,
    distances: Vec<(u32, u32)>,
}

/// How far a device is from an [`Origin`]; nearer is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Below the same PCI root port, with this many steps from function to function: up to the
    /// nearest bridge that they share, and down. Data between the two does not pass the processor.
    Bridges(u32),
    /// On the same NUMA node.
    SameNode,
    /// On another NUMA node, at the distance that the kernel reports.
    OtherNode(u32),
    /// Not known: the kernel reports no place of one of the two, or the origin is everywhere.
    Unknown,
}

impl Origin {
    /// Returns the origin of distances.
    ///
    /// # Errors
    ///
    /// There is no PCI function of this address. That the kernel reports nothing else about it is
    /// no error: distances are then [`Unknown`](Distance::Unknown).
    pub fn of(near: Near) -> Result<Self, NoPciDevice> {
        Self::below(Path::new(SYSFS), near)
    }

    /// Like [`of`](Self::of), from the sysfs directory.
    fn below(sysfs: &Path, near: Near) -> Result<Self, NoPciDevice> {
        match near {
            Near::Nothing => Ok(Self::default()),
            Near::ThisThread => {
                let allowed = sched_getaffinity(None);
                Ok(allowed.map_or_else(|_| Self::default(), |cpus| Self::of_cpus(sysfs, &cpus)))
            }
            Near::Pci(address) => Self::of_pci(sysfs, address),
        }
    }

    fn of_pci(sysfs: &Path, address: PciAddress) -> Result<Self, NoPciDevice> {
        let functions = sysfs.join("bus/pci/devices");
        let Ok(own) = functions.join(address.to_string()).canonicalize() else {
            return Err(NoPciDevice { address });
        };
        let node: Option<u32> = attribute(&own, "numa_node");
        let class: Option<String> = attribute(&own, "class");
        let is_alike = |other: &Path| {
            attribute(other, "numa_node") == node && attribute(other, "class") == class
        };
        let earlier = names(&functions).into_iter().filter(|name| {
            name.parse::<PciAddress>().is_ok_and(|other| other < address)
                && is_alike(&functions.join(name))
        });
        Ok(Self {
            pci: pci_path(&own),
            nodes: node.into_iter().map(|number| Node::of(sysfs, number)).collect(),
            turn: if class.is_some() { earlier.count() } else { 0 },
        })
    }

    fn of_cpus(sysfs: &Path, allowed: &CpuSet) -> Self {
        let with_cpus = |number| {
            // A node without processors, such as the memory of a GPU, has an empty list.
            let cpus: CpuList = attribute(&directory(sysfs, number), "cpulist")?;
            Some((number, cpus.iter().any(|cpu| allowed.is_set(cpu))))
        };
        let nodes: Vec<(u32, bool)> = numbers(sysfs).into_iter().filter_map(with_cpus).collect();
        if nodes.iter().all(|(_, is_allowed)| *is_allowed) {
            return Self::default();
        }
        let allowed = nodes.into_iter().filter(|(_, is_allowed)| *is_allowed);
        let nodes = allowed.map(|(number, _)| Node::of(sysfs, number)).collect();
        Self { nodes, ..Self::default() }
    }

    /// Returns the distance of a device.
    pub fn distance(&self, device: &Place) -> Distance {
        if let (Some(here), Some(there)) = (&self.pci, &device.pci)
            && let Some(steps) = steps(here, there)
        {
            return Distance::Bridges(steps);
        }
        let Some(node) = device.numa_node else { return Distance::Unknown };
        let distances = self.nodes.iter().map(|from| from.distance(node));
        distances.min().unwrap_or(Distance::Unknown)
    }

    /// Sorts devices, of which `place` returns the places: nearest first. Devices at the same
    /// distance keep their order, except that each of several GPUs begins with another one of them.
    ///
    /// `place` is not called if the origin is [`Nothing`](Near::Nothing) or everywhere: then all
    /// distances are unknown, and the order stays.
    pub fn nearest_first<T>(&self, devices: Vec<T>, place: impl Fn(&T) -> Place) -> Vec<T> {
        if *self == Self::default() {
            return devices;
        }
        let distance = |device: T| (self.distance(&place(&device)), device);
        let mut devices: Vec<_> = devices.into_iter().map(distance).collect();
        devices.sort_by_key(|(distance, _)| *distance);
        for alike in devices.chunk_by_mut(|(a, _), (b, _)| a == b) {
            alike.rotate_left(self.turn % alike.len());
        }
        devices.into_iter().map(|(_, device)| device).collect()
    }
}

impl Node {
    fn of(sysfs: &Path, number: u32) -> Self {
        // The kernel lists the distances in the order of the nodes that are online.
        let text: String =
            std::fs::read_to_string(directory(sysfs, number).join("distance")).unwrap_or_default();
        let distances = text.split_whitespace().map_while(|distance| distance.parse().ok());
        Self { number, distances: numbers(sysfs).into_iter().zip(distances).collect() }
    }

    fn distance(&self, node: u32) -> Distance {
        if node == self.number {
            return Distance::SameNode;
        }
        let known = self.distances.iter().find(|(number, _)| *number == node);
        Distance::OtherNode(known.map_or(OTHER_NODE, |(_, distance)| *distance))
    }
}

/// Returns the steps between two functions below one root port. They are named with the bridges
/// that lead to them.
fn steps(here: &str, there: &str) -> Option<u32> {
    let shared = here.split('/').zip(there.split('/')).take_while(|(a, b)| a == b).count();
    let below = |path: &str| (path.split('/').count() - shared) as u32;
    (shared > 0).then(|| below(here) + below(there))
}

fn directory(sysfs: &Path, node: u32) -> PathBuf {
    sysfs.join(format!("devices/system/node/node{node}"))
}

/// Returns the numbers of the nodes that are online, rising; none without support for NUMA.
fn numbers(sysfs: &Path) -> Vec<u32> {
    let nodes = names(&sysfs.join("devices/system/node"));
    let number = |name: &String| name.strip_prefix("node")?.parse().ok();
    let mut numbers: Vec<u32> = nodes.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the names in a directory; none if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return vec![] };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests;
