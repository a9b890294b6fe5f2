//! The network interfaces of this host, as devices over TCP.

use crate::interfaces::{self, InterfaceError, IpNet};
use crate::place::{Place, attribute};
use serde::{Serialize, Serializer};
use std::path::Path;

/// A network interface with an address, which can be opened as a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// Its name as a device: `tcp:eth0`.
    pub name: String,
    /// `TCP`.
    pub transport: &'static str,
    /// Name of the interface.
    pub interface: String,
    /// Addresses of the interface, with the lengths of their prefixes. Each can be opened by
    /// itself: `tcp:10.0.0.1`.
    #[serde(serialize_with = "as_text")]
    pub addresses: Vec<IpNet>,
    /// Whether the interface is up and has carrier.
    pub up: bool,
    /// Data rate of its link in Mbit/s; `None` if the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbps: Option<u32>,
    /// Rate in Mbit/s at which the host can use the link: `mbps`, or the data rate of the device's
    /// PCI link if that is less ([`Place::limited_mbps`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_mbps: Option<u32>,
    /// Its place in the machine.
    pub place: Place,
}

fn as_text<S: Serializer>(addresses: &[IpNet], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(IpNet::to_string))
}

/// Lists the network interfaces of this host that have an address, in the kernel's order;
/// IPv6 addresses that expire or are deprecated come last.
///
/// # Errors
///
/// The system refuses to list them.
pub fn devices() -> Result<Vec<DeviceReport>, InterfaceError> {
    let mut devices: Vec<DeviceReport> = Vec::new();
    for own in interfaces::all()? {
        match devices.iter_mut().find(|device| device.interface == own.interface) {
            Some(device) => device.addresses.push(own.net),
            None => {
                let place = Place::of_interface(&own.interface);
                let mbps = mbps_of(&own.interface);
                devices.push(DeviceReport {
                    name: format!("tcp:{}", own.interface),
                    transport: "TCP",
                    addresses: vec![own.net],
                    up: own.has_carrier(),
                    mbps,
                    effective_mbps: mbps.map(|mbps| place.limited_mbps(mbps)),
                    place,
                    interface: own.interface,
                });
            }
        }
    }
    Ok(devices)
}

/// Returns the data rate of an interface's link in Mbit/s; `None` if the driver does not report it.
pub(super) fn mbps_of(interface: &str) -> Option<u32> {
    // -1 or an error where the driver does not know it.
    attribute(&Path::new("/sys/class/net").join(interface), "speed")
}

#[cfg(test)]
mod rt_tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_a_device() {
        let devices = devices().unwrap();
        let lo = devices.iter().find(|device| device.name == "tcp:lo").unwrap();
        assert!(lo.up && lo.place == Place::default() && lo.mbps.is_none(), "{lo:?}");
        let json = serde_json::to_value(lo).unwrap();
        assert_eq!(
            (&json["addresses"][0], &json["transport"]),
            (&"127.0.0.1/8".into(), &"TCP".into())
        );
    }
}
