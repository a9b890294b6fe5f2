//! Properties of devices.

use crate::code::Code;
#[cfg(any(feature = "tcp", feature = "verbs"))]
use crate::error::Failure;
use crate::error::Refusal;
#[cfg(not(all(feature = "tcp", feature = "verbs")))]
use crate::error::refuse;
use crate::types::{DeviceInfo, POLYRAIL_NAME_BYTES, POLYRAIL_PATH_BYTES};
use polyrail::nic::{Device, DeviceConfig, Fabric};
use polyrail::printable;
#[cfg(feature = "tcp")]
use polyrail::tcp;
use std::ffi::c_char;
#[cfg(feature = "tcp")]
use std::net::IpAddr;

/// Text with a terminating 0, cut off if it is too long.
pub(crate) fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    let text = printable::cut(text, N - 1);
    for (place, byte) in bytes.iter_mut().zip(text.bytes().take_while(|byte| *byte != 0)) {
        *place = byte as c_char;
    }
    bytes
}

const UNKNOWN_NODE: i32 = -1;

const NO_ADDRESS: [u8; 16] = [0; 16];

pub(crate) fn info_of_software(device: &Device) -> DeviceInfo {
    DeviceInfo {
        name: fixed::<POLYRAIL_NAME_BYTES>(device.name()),
        pci_path: fixed::<POLYRAIL_PATH_BYTES>(""),
        guid: device.guid(),
        mbps: 0,
        numa_node: UNKNOWN_NODE,
        ports: device.ports().into(),
        address: NO_ADDRESS,
        reserved: [0; 2],
    }
}

/// Devices of a domain that names none.
pub(crate) fn software() -> DeviceInfo {
    info_of_software(&Fabric::threaded().create_device(DeviceConfig::named("soft0")))
}

#[cfg(feature = "verbs")]
fn info_of(report: &polyrail::devices::DeviceReport) -> DeviceInfo {
    let active = report.ports.iter().filter(|port| port.is_active());
    let guid: String = report.guid.split(':').collect();
    DeviceInfo {
        name: fixed::<POLYRAIL_NAME_BYTES>(&report.name),
        pci_path: fixed::<POLYRAIL_PATH_BYTES>(report.place.pci.as_deref().unwrap_or_default()),
        guid: u64::from_str_radix(&guid, 16).unwrap_or_default(),
        mbps: report.effective_mbps().into(),
        numa_node: report.place.numa_node.map_or(UNKNOWN_NODE, |node| node as i32),
        ports: active.count() as u32,
        address: NO_ADDRESS,
        reserved: [0; 2],
    }
}

#[cfg(feature = "verbs")]
fn reports() -> Result<Vec<polyrail::devices::DeviceReport>, Refusal> {
    let reports = polyrail::devices::devices();
    Ok(reports.map_err(|error| Failure::of(Code::NoDevice, &error))?)
}

#[cfg(feature = "verbs")]
pub(crate) fn verbs() -> Result<Vec<DeviceInfo>, Refusal> {
    Ok(reports()?.iter().filter(|report| report.error.is_none()).map(info_of).collect())
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn verbs() -> Result<Vec<DeviceInfo>, Refusal> {
    without_verbs()
}

/// Returns the stand-in for real NICs in a build without verbs.
#[cfg(not(feature = "verbs"))]
pub(crate) fn without_verbs<T>() -> Result<T, Refusal> {
    refuse(Code::Unsupported, "this library was built without real NICs (the feature verbs)")
}

/// Returns the devices of a domain, in its order.
#[cfg(feature = "verbs")]
pub(crate) fn infos_of_verbs(
    domains: &[polyrail::rdma::VerbsDomain],
) -> Result<Vec<DeviceInfo>, Refusal> {
    use polyrail::backend::Domain;
    let reports = reports()?;
    let info = |domain: &polyrail::rdma::VerbsDomain| {
        let name = domain.device_name();
        let report = reports.iter().find(|report| report.name == name);
        report.map(info_of).ok_or_else(|| {
            Failure::new(Code::NoDevice, format_args!("device {name} is gone")).into()
        })
    };
    domains.iter().map(info).collect()
}

/// Returns the description of a network interface as a device with this name and address.
#[cfg(feature = "tcp")]
fn info_of_interface(report: &tcp::DeviceReport, name: &str, address: IpAddr) -> DeviceInfo {
    let place = &report.place;
    let ip = match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    DeviceInfo {
        name: fixed::<POLYRAIL_NAME_BYTES>(name),
        pci_path: fixed::<POLYRAIL_PATH_BYTES>(place.pci.as_deref().unwrap_or_default()),
        guid: 0,
        mbps: report.effective_mbps.map_or(0, u64::from),
        numa_node: place.numa_node.map_or(UNKNOWN_NODE, |node| node as i32),
        ports: report.up.into(),
        address: ip.octets(),
        reserved: [0; 2],
    }
}

/// Returns the address of a device that is named by its interface.
#[cfg(feature = "tcp")]
fn first_address(report: &tcp::DeviceReport) -> Option<IpAddr> {
    let addresses = report.addresses.iter().map(|net| net.ip());
    addresses.min_by_key(|address| match address {
        IpAddr::V4(ip) => (ip.is_link_local(), false),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), true),
    })
}

#[cfg(feature = "tcp")]
fn interfaces() -> Result<Vec<tcp::DeviceReport>, Refusal> {
    Ok(tcp::devices().map_err(|error| Failure::of(Code::System, &error))?)
}

/// Returns the network interfaces of this host that have an address.
#[cfg(feature = "tcp")]
pub(crate) fn tcp() -> Result<Vec<DeviceInfo>, Refusal> {
    let info = |report: &tcp::DeviceReport| {
        Some(info_of_interface(report, &report.name, first_address(report)?))
    };
    Ok(interfaces()?.iter().filter_map(info).collect())
}

/// Returns the devices of a domain, in its order.
#[cfg(feature = "tcp")]
pub(crate) fn infos_of_tcp(domains: &[tcp::ProtectionDomain]) -> Result<Vec<DeviceInfo>, Refusal> {
    let reports = interfaces()?;
    let info = |domain: &tcp::ProtectionDomain| {
        let device = domain.device();
        let report = reports.iter().find(|report| report.interface == device.interface());
        let info = |report| {
            let info = info_of_interface(report, device.name(), device.address().ip());
            DeviceInfo { ports: device.is_up().into(), ..info }
        };
        report.map(info).ok_or_else(|| {
            let name = device.name();
            Failure::new(Code::NoDevice, format_args!("device {name} is gone")).into()
        })
    };
    domains.iter().map(info).collect()
}

#[cfg(not(feature = "tcp"))]
pub(crate) fn tcp() -> Result<Vec<DeviceInfo>, Refusal> {
    without_tcp()
}

/// Returns the stand-in for devices over TCP in a build without them.
#[cfg(not(feature = "tcp"))]
pub(crate) fn without_tcp<T>() -> Result<T, Refusal> {
    refuse(Code::Unsupported, "this library was built without TCP (the feature tcp)")
}

#[cfg(all(test, not(feature = "verbs")))]
mod tests {
    use super::*;

    /// Without verbs, looking for devices is an error, and not an empty list.
    #[test]
    fn without_real_nics_none_is_listed() {
        let Err(Refusal::Failure(failure)) = verbs() else { panic!("expected an error") };
        assert_eq!(failure.code, Code::Unsupported);
    }
}
