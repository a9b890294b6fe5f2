//! Network interfaces: each is a NIC whose queue pairs are TCP connections.

use super::description::{Description, Gpu, Group, UNKNOWN_MBPS, pci_path};
use crate::guard::{Code, Refusal};
use crate::log;
use crate::rails::{Nics, nics};
use crate::settings::Settings;
use polyrail::chain::Chain;
use polyrail::tcp::{
    DeviceOptions, DeviceReport, PORT, ProtectionDomain, devices, open_device, open_usable_devices,
};
use std::error::Error;
use std::sync::Arc;

/// The open NICs.
pub(super) struct Tcp {
    domains: Vec<ProtectionDomain>,
    descriptions: Vec<Description>,
}

fn refused(error: &(dyn Error + 'static)) -> Refusal {
    Refusal::new(Code::System, Chain(error))
}

impl Tcp {
    /// Opens the named interfaces, or all at which other hosts reach this one.
    pub(super) fn open(settings: &Settings) -> Result<Self, Refusal> {
        let names = &settings.interfaces_for_rails;
        let options = DeviceOptions::default();
        let domains = if names.is_empty() {
            open_usable_devices(&options, |device, reason| {
                log::warn(&format!("{device} is not used: {}", Chain(reason)));
            })
        } else {
            names.iter().map(|name| open_device(name, &options)).collect()
        };
        let domains = domains.map_err(|error| refused(&error))?;
        let reports = devices().map_err(|error| refused(&error))?;
        let descriptions = domains.iter().map(|domain| describe(domain, &reports)).collect();
        Ok(Self { domains, descriptions })
    }
}

fn describe(domain: &ProtectionDomain, reports: &[DeviceReport]) -> Description {
    let device = domain.device();
    let report = reports.iter().find(|report| report.interface == device.interface());
    let [.., a, b, c, d, e, f, g, h] = device.gid().0;
    Description {
        name: device.name().into(),
        pci_path: pci_path("net", device.interface()),
        // Unique on this host.
        guid: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        speed_mbps: report.and_then(|report| report.mbps).unwrap_or(UNKNOWN_MBPS),
        port: PORT,
        gpu: Gpu::default(),
    }
}

impl Group for Tcp {
    fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    fn nics(&self, places: &[usize]) -> Arc<dyn Nics> {
        nics(places.iter().map(|place| self.domains[*place].clone()).collect())
    }
}
