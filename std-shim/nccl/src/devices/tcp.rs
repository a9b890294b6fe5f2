//! Network interfaces: each is a NIC whose queue pairs are TCP connections.

use super::description::{Description, Gpu, Group};
use super::sysfs::{UNKNOWN_MBPS, pci_path};
use crate::guard::{Code, Refusal};
use crate::log;
use crate::rails::{Nics, nics};
use crate::settings::Settings;
use polyrail::chain::Chain;
use polyrail::interfaces::IpNet;
use polyrail::pairing::networks;
use polyrail::tcp::{
    DeviceOptions, DeviceReport, OpenDevicesError, OpenError, PORT, ProtectionDomain, devices,
    open_another_device, open_usable_devices,
};
use std::error::Error;
use std::net::IpAddr;
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
            OpenDevicesError::Twice { .. }
            | OpenDevicesError::Advertised { .. }
            | OpenDevicesError::Open { source: OpenError::Advertised { .. }, .. } => {
                Refusal::new(Code::Usage, error)
            }
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
    Description {
        name: device.name().into(),
        pci_path: pci_path("net", device.interface()),
        guid: guid(device.address().ip(), device.interface()),
        speed_mbps: report.and_then(|report| report.effective_mbps).unwrap_or(UNKNOWN_MBPS),
        port: PORT,
        gpu: Gpu::default(),
    }
}

/// Returns a number for an address. NCCL counts NICs with equal numbers as ports of one card, so
/// those of a host must differ: the number depends on the whole address, since interfaces in
/// networks of equal numbering have the same last bytes, and on the interface of a link-local
/// address, since several can have the same one. All processes of the host get the same number.
fn guid(ip: IpAddr, interface: &str) -> u64 {
    let (octets, is_link_local) = match ip {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), ip.is_link_local()),
        IpAddr::V6(ip) => (ip.octets(), ip.is_unicast_link_local()),
    };
    let place = if is_link_local { interface } else { "" };
    fnv_1a(octets.into_iter().chain(place.bytes()))
}

/// Returns the hash FNV-1a of 64 bits.
fn fnv_1a(bytes: impl Iterator<Item = u8>) -> u64 {
    /// The offset basis and the prime of the
    /// [definition](http://www.isthe.com/chongo/tech/comp/fnv/).
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

impl Group for Tcp {
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

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::settings::Backend;

    fn open(names: &[&str]) -> Result<Tcp, Refusal> {
        let interfaces_for_rails = names.iter().map(|name| (*name).to_owned()).collect();
        let backend = Backend::Tcp;
        Tcp::open(&Settings { backend, interfaces_for_rails, ..Settings::default() })
    }

    #[test]
    fn every_address_of_a_host_has_a_guid() {
        let texts = [
            ("10.0.0.1", "eth0"),
            ("10.0.1.1", "eth0"),
            ("fd00:0:0:1::5", "eth0"),
            ("fd00:0:0:2::5", "eth0"),
            ("::5", "eth0"),
            ("fe80::5", "eth0"),
            ("fe80::5", "eth1"),
            ("169.254.0.2", "eth0"),
            ("169.254.0.2", "eth1"),
        ];
        let guids = texts.map(|(ip, interface)| guid(ip.parse().unwrap(), interface));
        for (at, one) in guids.iter().enumerate() {
            assert!(!guids[..at].contains(one), "{:?}", texts[at]);
        }
        // An address is one device, and its interface may change.
        assert_eq!(guid([10, 0, 0, 1].into(), "eth1"), guids[0]);
        // The test vectors of RFC 9923 (FNV), section 8.
        assert_eq!(fnv_1a("a".bytes()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv_1a("foobar".bytes()), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn an_address_is_one_device() {
        for names in [["lo", "127.0.0.1"], ["lo", "tcp:lo"], ["127.0.0.2", "tcp:127.0.0.2"]] {
            let words = open(&names).err().unwrap().words.clone();
            assert!(words.contains("is named twice: its address is 127.0.0."), "{words}");
        }
        let words = open(&["lo", "tcp:"]).err().unwrap().words.clone();
        assert!(words.contains("cannot open device \"tcp:\""), "{words}");
    }

    #[test]
    fn named_interfaces_may_be_more_than_a_connection_uses() {
        let names: Vec<String> = (1..10).map(|number| format!("127.0.0.{number}")).collect();
        let opened = open(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert_eq!(opened.descriptions().len(), 9);
    }
}
