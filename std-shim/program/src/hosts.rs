//! The hardware for a copy or a measurement within one process: two hosts made of software NICs on one
//! fabric. Only this file knows about it; the rest runs on any [backend](polyrail::backend).

use crate::size::parse_size;
use polyrail::backend::DeviceError;
use polyrail::nic::{Device, DeviceConfig, Fabric, Fault, NicError, ProtectionDomain, When};
use std::str::FromStr;

/// A link that fails after a number of bytes, to see what happens then: `2:1M`, `2:1M:silent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFault {
    /// The rail whose sending device loses its link; rails that share the device suffer too.
    pub rail: usize,
    /// Payload bytes that the device carries before it fails, for all its rails and for its peers.
    pub bytes: u64,
    /// Requests are never answered or given up, as with some drivers, instead of failing.
    pub silent: bool,
}

impl FromStr for LinkFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, silent) = match text.strip_suffix(":silent") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (rail, bytes) = rest
            .split_once(':')
            .ok_or_else(|| format!("{text:?} is not RAIL:BYTES, such as 2:1M"))?;
        let rail = rail.parse().map_err(|_| format!("{rail:?} is not the number of a rail"))?;
        let bytes = parse_size(bytes).map_err(|error| error.to_string())?;
        Ok(Self { rail, bytes, silent })
    }
}

/// One host: its devices, opened.
#[derive(Debug)]
pub(crate) struct Host {
    devices: Vec<Device>,
    domains: Vec<ProtectionDomain>,
}

impl Host {
    fn new(fabric: &Fabric, prefix: &str, devices: usize) -> Result<Self, NicError> {
        let device =
            |number| fabric.create_device(DeviceConfig::named(format!("{prefix}{number}")));
        let devices: Vec<Device> = (0..devices).map(device).collect();
        let domains = devices.iter().map(Device::alloc_pd).collect::<Result<_, _>>()?;
        Ok(Self { devices, domains })
    }

    /// Returns the protection domains, one for each device.
    pub(crate) fn domains(&self) -> Vec<&ProtectionDomain> {
        self.domains.iter().collect()
    }

    /// Returns the same as a slice of owned domains.
    #[cfg(test)]
    pub(crate) fn all_domains(&self) -> &[ProtectionDomain] {
        &self.domains
    }

    /// Injects a fault into the device of a rail, at once.
    #[cfg(test)]
    pub(crate) fn inject(&self, rail: usize, fault: Fault) {
        self.devices[rail % self.devices.len()].inject(When::Now, fault);
    }

    /// Makes the device of a rail lose its link.
    pub(crate) fn fail_link(&self, fault: LinkFault) {
        let device = &self.devices[fault.rail % self.devices.len()];
        let kind = if fault.silent { Fault::Silent(true) } else { Fault::LinkDown };
        device.inject(When::AfterBytes(fault.bytes), kind);
    }
}

/// Makes a sending and a receiving host that reach each other, each with this number of devices.
pub(crate) fn software_hosts(devices: usize) -> Result<(Host, Host), DeviceError> {
    let fabric = Fabric::threaded();
    Ok((Host::new(&fabric, "tx", devices)?, Host::new(&fabric, "rx", devices)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_as_people_write_them() {
        let fault = |rail, bytes, silent| Ok(LinkFault { rail, bytes, silent });
        assert_eq!("2:1M".parse(), fault(2, 1 << 20, false));
        assert_eq!("0:0:silent".parse(), fault(0, 0, true));
        for bad in ["", "2", "2:", ":1M", "-1:1M", "x:1M", "1:x", "1:1:loud"] {
            assert!(bad.parse::<LinkFault>().is_err(), "{bad}");
        }
    }
}
