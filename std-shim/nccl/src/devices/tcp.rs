//! Network interfaces: each is a NIC whose queue pairs are TCP connections.

use super::description::{Description, Gpu, Group};
use super::sysfs::{UNKNOWN_MBPS, pci_path};
use crate::guard::{Code, Refusal};
use crate::log;
use crate::rails::{Nics, nics};
use crate::settings::Settings;
use polyrail::chain::Chain;
use polyrail::tcp::{
    DeviceOptions, DeviceReport, OpenDevicesError, PORT, ProtectionDomain, devices,
    open_another_device, open_usable_devices,
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
            open_named(names, &options)
        };
        let domains = domains.map_err(|error| match error {
            OpenDevicesError::Twice { .. } => Refusal::new(Code::Usage, error),
            error => refused(&error),
        })?;
        let reports = devices().map_err(|error| refused(&error))?;
        let descriptions = domains.iter().map(|domain| describe(domain, &reports)).collect();
        Ok(Self { domains, descriptions })
    }
}

/// Opens the named interfaces. They may be more than a connection uses.
fn open_named(
    names: &[String],
    options: &DeviceOptions,
) -> Result<Vec<ProtectionDomain>, OpenDevicesError> {
    let mut domains = Vec::new();
    for name in names {
        let domain = open_another_device(&domains, name, options)?;
        domains.push(domain);
    }
    Ok(domains)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Backend;

    fn open(names: &[&str]) -> Result<Tcp, Refusal> {
        let interfaces_for_rails = names.iter().map(|name| (*name).to_owned()).collect();
        let backend = Backend::Tcp;
        Tcp::open(&Settings { backend, interfaces_for_rails, ..Settings::default() })
    }

    #[test]
    fn an_address_is_one_device() {
        for names in [["lo", "127.0.0.1"], ["lo", "tcp:lo"], ["127.0.0.2", "tcp:127.0.0.2"]] {
            let words = open(&names).err().unwrap().words.clone();
            assert!(words.contains("is named twice: its address is 127.0.0."), "{words}");
        }
        let words = open(&["lo", "tcp:"]).err().unwrap().words.clone();
        assert!(words.contains("cannot open device tcp:"), "{words}");
    }

    #[test]
    fn named_interfaces_may_be_more_than_a_connection_uses() {
        let names: Vec<String> = (1..10).map(|number| format!("127.0.0.{number}")).collect();
        let opened = open(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert_eq!(opened.descriptions().len(), 9);
    }
}
