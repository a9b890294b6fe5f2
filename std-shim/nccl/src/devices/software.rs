//! Software NICs, for tests and first tries, where all ranks are in one process.

use super::description::{Description, Gpu, Group};
use crate::guard::{Code, Refusal};
use crate::rails::{Nics, nics};
use crate::settings::Settings;
use polyrail::interfaces::IpNet;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
#[cfg(feature = "test-hooks")]
use polyrail::nic::{Fault, When};
use polyrail::pairing::networks;
use std::sync::{Arc, Mutex, PoisonError};

/// The default devices.
const DEFAULT: [&str; 2] = ["software0", "software1"];

/// The reported rate.
const MBPS: u32 = 100_000;

/// The network of all software NICs in this process. Made once, so that all ranks share it.
static NETWORK: Mutex<Option<Network>> = Mutex::new(None);

struct Network {
    fabric: Fabric,
    made: Vec<(String, ProtectionDomain)>,
}

impl Network {
    fn device(&mut self, name: &str) -> Result<ProtectionDomain, Refusal> {
        if let Some((_, domain)) = self.made.iter().find(|(made, _)| made == name) {
            return Ok(domain.clone());
        }
        let domain = self.fabric.create_device(DeviceConfig::named(name)).alloc_pd();
        let domain =
            domain.map_err(|error| Refusal::new(Code::System, format!("{name}: {error}")))?;
        self.made.push((name.to_owned(), domain.clone()));
        Ok(domain)
    }
}

/// The NICs that the settings name.
pub(super) struct Software {
    domains: Vec<ProtectionDomain>,
    descriptions: Vec<Description>,
}

impl Software {
    pub(super) fn new(settings: &Settings) -> Result<Self, Refusal> {
        let mut names: Vec<String> = settings.devices.iter().map(ToString::to_string).collect();
        if names.is_empty() {
            names = DEFAULT.map(Into::into).into();
        }
        let mut network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Network { fabric: Fabric::threaded(), made: Vec::new() };
        let network = network.get_or_insert_with(new);
        let domains = names.iter().map(|name| network.device(name));
        let domains = domains.collect::<Result<Vec<_>, _>>()?;
        let describe = |(name, domain): (String, &ProtectionDomain)| Description {
            name,
            pci_path: None,
            guid: domain.device().guid(),
            speed_mbps: MBPS,
            port: 1,
            gpu: Gpu::default(),
        };
        let descriptions = names.into_iter().zip(&domains).map(describe).collect();
        Ok(Self { domains, descriptions })
    }
}

impl Group for Software {
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

/// Injects a fault into a software NIC, now or after it has carried this many more bytes. Returns
/// whether the NIC exists.
#[cfg(feature = "test-hooks")]
pub(crate) fn inject(name: &str, after_bytes: u64, fault: Fault) -> bool {
    let network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let made = network.iter().flat_map(|network| &network.made);
    let found = made.into_iter().find(|(made, _)| made == name);
    let when = if after_bytes == 0 { When::Now } else { When::Bytes(after_bytes) };
    found.map(|(_, domain)| domain.device().inject(when, fault)).is_some()
}
