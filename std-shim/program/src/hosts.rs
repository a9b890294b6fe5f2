//! The hardware of a copy or a measurement within one process: two hosts made of software NICs on
//! one fabric. Only this file, `fault` and `fault_schedule` depend on the software NIC; the rest
//! runs on any [backend](polyrail::backend).

use polyrail::backend::DeviceError;
use polyrail::nic::{Device, DeviceConfig, Fabric, NicError, ProtectionDomain};
#[cfg(test)]
use polyrail::nic::{Fault, When};
use std::num::NonZeroU64;

/// One host: its devices, and a protection domain of each.
#[derive(Debug)]
pub(crate) struct Host {
    devices: Vec<Device>,
    domains: Vec<ProtectionDomain>,
}

impl Host {
    fn new(
        fabric: &Fabric,
        prefix: &str,
        devices: usize,
        line_rate: Option<NonZeroU64>,
    ) -> Result<Self, NicError> {
        let device = |number| {
            let named = DeviceConfig::named(format!("{prefix}{number}"));
            fabric.create_device(DeviceConfig { bytes_per_second: line_rate, ..named })
        };
        let devices: Vec<Device> = (0..devices).map(device).collect();
        let domains = devices.iter().map(Device::alloc_pd).collect::<Result<_, _>>()?;
        Ok(Self { devices, domains })
    }

    /// Returns the protection domains, one for each device.
    pub(crate) fn domains(&self) -> Vec<&ProtectionDomain> {
        self.domains.iter().collect()
    }

    /// Returns the protection domains as a slice of owned values.
    #[cfg(test)]
    pub(crate) fn all_domains(&self) -> &[ProtectionDomain] {
        &self.domains
    }

    /// Returns the devices.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the device of a rail.
    pub(crate) fn device_of(&self, rail: usize) -> &Device {
        &self.devices[rail % self.devices.len()]
    }

    /// Injects a fault into the device of a rail now.
    #[cfg(test)]
    pub(crate) fn inject(&self, rail: usize, fault: Fault) {
        self.device_of(rail).inject(When::Now, fault);
    }
}

/// Makes a sending and a receiving host on one fabric, each with this number of devices. Each
/// device sends `line_rate` bytes per second; `None`: without a limit.
pub(crate) fn hosts_with_rate(
    devices: usize,
    line_rate: Option<NonZeroU64>,
) -> Result<(Host, Host), DeviceError> {
    let fabric = Fabric::threaded();
    let here = Host::new(&fabric, "tx", devices, line_rate)?;
    Ok((here, Host::new(&fabric, "rx", devices, line_rate)?))
}

/// Makes two hosts whose devices have no line rate.
#[cfg(test)]
pub(crate) fn software_hosts(devices: usize) -> Result<(Host, Host), DeviceError> {
    hosts_with_rate(devices, None)
}
