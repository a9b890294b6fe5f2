//! Real NICs: every active port is one.

use super::description::{Description, Gpu, Group};
use super::sysfs::{UNKNOWN_MBPS, pci_path};
use crate::guard::{Code, Refusal};
use crate::log;
use crate::rails::{Nics, nics};
use crate::settings::Settings;
use polyrail::backend::{DeviceError, DeviceName, DmaBuf, Domain};
use polyrail::chain::Chain;
use polyrail::devices::{DeviceReport, PortReport, devices};
use polyrail::interfaces::IpNet;
use polyrail::memory::ForeignBuffer;
use polyrail::pairing::networks;
use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices_with};
use polyrail::verbs::AccessFlags;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// Kernel modules that translate addresses of GPU memory for NICs.
const PEER_MEMORY: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
];

/// The open NICs.
pub(super) struct Verbs {
    domains: Vec<VerbsDomain>,
    descriptions: Vec<Description>,
}

impl Verbs {
    /// Opens the named ports, or all active ports.
    pub(super) fn open(settings: &Settings) -> Result<Self, Refusal> {
        let reports = devices().map_err(|error| Refusal::new(Code::System, Chain(&error)))?;
        let options = OpenOptions { gid_index: settings.gid_index, ..OpenOptions::default() };
        let mut verbs = Self { domains: Vec::new(), descriptions: Vec::new() };
        let wanted =
            if settings.devices.is_empty() { active(&reports) } else { settings.devices.clone() };
        for name in wanted {
            let opened = open_devices_with([&name], &options, |device, reason| {
                log::warn(&format!("a port of {device} is not used: {}", Chain(reason)));
            });
            match opened {
                Ok(domains) => verbs.take(&name, domains, &reports),
                Err(error) if settings.devices.is_empty() => {
                    log::warn(&format!("{name} is not used: {}", Chain(&error)));
                }
                Err(error) => return Err(Refusal::new(Code::System, Chain(&error))),
            }
        }
        if verbs.domains.is_empty() {
            let words = "no RDMA device has an active port";
            return Err(Refusal::new(Code::System, words));
        }
        Ok(verbs)
    }

    fn take(&mut self, name: &DeviceName, domains: Vec<VerbsDomain>, reports: &[DeviceReport]) {
        for domain in domains {
            let report = reports.iter().find(|report| report.name == name.device);
            let number = domain.ports().ok().and_then(|ports| Some(ports.first()?.number));
            let ports = report.map_or(&[][..], |report| &report.ports);
            let port = ports.iter().find(|port| Some(port.port) == number);
            self.descriptions.push(Description {
                // Of the device or port, whatever address was chosen.
                name: DeviceName { gid_index: None, ..name.clone() }.to_string(),
                pci_path: pci_path("infiniband", &name.device),
                guid: report.map_or(0, |report| guid(&report.guid)),
                speed_mbps: port
                    .map(|port| port.effective_mbps)
                    .filter(|mbps| *mbps > 0)
                    .unwrap_or(UNKNOWN_MBPS),
                port: number.unwrap_or(1),
                gpu: Gpu {
                    by_address: PEER_MEMORY.iter().any(|path| Path::new(path).exists()),
                    by_dma_buf: knows_dma_bufs(&domain),
                },
            });
            self.domains.push(domain);
        }
    }
}

impl Group for Verbs {
    fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    fn networks(&self) -> Vec<Option<IpNet>> {
        networks(&self.domains)
    }

    fn nics(&self, places: &[usize]) -> Arc<dyn Nics> {
        nics(places.iter().map(|place| self.domains[*place].clone()).collect())
    }
}

/// Returns all active ports.
fn active(reports: &[DeviceReport]) -> Vec<DeviceName> {
    let is_active = |port: &&PortReport| port.is_active();
    let ports = |report: &DeviceReport| {
        let name = |port: &PortReport| DeviceName {
            device: report.name.clone(),
            port: (report.ports.len() > 1).then_some(port.port),
            gid_index: None,
        };
        report.ports.iter().filter(is_active).map(name).collect::<Vec<_>>()
    };
    reports.iter().flat_map(ports).collect()
}

/// Parses a GUID in the notation of the tools.
fn guid(text: &str) -> u64 {
    u64::from_str_radix(&text.replace(':', ""), 16).unwrap_or_default()
}

/// Returns whether the driver supports dma-bufs. If it does, the error for an invalid dma-buf is
/// not "not supported".
fn knows_dma_bufs(domain: &VerbsDomain) -> bool {
    let Ok(file) = File::open("/dev/null") else { return false };
    let none = DmaBuf { fd: file.as_fd(), offset: 0, length: 4096, iova: 0 };
    // SAFETY: there is no memory behind it.
    match unsafe { ForeignBuffer::of_dma_buf(&none, AccessFlags::LOCAL_WRITE, &[domain]) } {
        Ok(_) => true,
        Err(DeviceError::NoDmaBuf { .. }) => false,
        Err(error) => !is_unknown(&error),
    }
}

fn is_unknown(error: &DeviceError) -> bool {
    let errno = match error {
        DeviceError::Verbs(source) | DeviceError::Register { source, .. } => source.errno,
        _ => return false,
    };
    [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS].contains(&errno)
}
