//! Opens devices over TCP by their names.

use crate::endpoint::MAX_DEVICES;
use crate::interfaces::InterfaceError;
use polyrail_nic_parts::error::NicError;
use polyrail_nic_parts::interface::is_link_local;
use polyrail_tcp_nic::{Device, DeviceOptions, OpenError, ProtectionDomain};
use std::net::{IpAddr, SocketAddr};

/// Opening devices failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenDevicesError {
    /// A device cannot be opened.
    #[error("cannot open device {}", match &**name {
        "" => "\"tcp:\"".to_owned(),
        name => format!("tcp:{name}"),
    })]
    Open {
        /// Its name, without `tcp:`.
        name: String,
        /// The reason.
        source: OpenError,
    },
    /// What is behind `@` in the name is not an address.
    #[error(
        "device tcp:{name} needs an address behind @, at which peers reach it, such as 192.0.2.1 or 192.0.2.1:7500"
    )]
    Advertised {
        /// Its name, without `tcp:`.
        name: String,
    },
    /// The device has no protection domain left.
    #[error("cannot use device tcp:{name}")]
    Domain {
        /// Its name, without `tcp:`.
        name: String,
        /// The reason.
        source: NicError,
    },
    /// Two names are of the same address.
    #[error("device tcp:{name} is named twice: its address is {address}")]
    Twice {
        /// The second name, without `tcp:`.
        name: String,
        /// The address.
        address: IpAddr,
    },
    /// More devices than an endpoint supports.
    #[error("{devices} devices, but at most {MAX_DEVICES} are allowed")]
    TooMany {
        /// Number of named devices.
        devices: usize,
    },
    /// No device was named, and no network interface of this host can be used.
    #[error(transparent)]
    Interfaces(#[from] InterfaceError),
}

/// Opens the devices of these network interfaces (`eth0`, `tcp:eth0`) or addresses (`10.0.0.1`), in
/// this order, and allocates a protection domain of each. Endpoints use them in turn.
///
/// A name can have another address behind `@`, at which peers connect to the device, with or
/// without a port (`eth0@192.0.2.1`, `eth0@192.0.2.1:7500`, `eth0@[2001:db8::1]:7500`): see
/// [`DeviceOptions::advertised`], which is for the other devices.
///
/// ```
/// use polyrail::endpoint::EndpointBuilder;
/// use polyrail::tcp::{DeviceOptions, open_devices};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let domains = open_devices(["lo"], &DeviceOptions::default())?;
/// let endpoint = EndpointBuilder::new().rails(4).build(&domains)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// See [`OpenDevicesError`].
pub fn open_devices(
    names: impl IntoIterator<Item: AsRef<str>>,
    options: &DeviceOptions,
) -> Result<Vec<ProtectionDomain>, OpenDevicesError> {
    let names: Vec<_> = names.into_iter().collect();
    if names.len() > MAX_DEVICES {
        return Err(OpenDevicesError::TooMany { devices: names.len() });
    }
    let mut domains: Vec<ProtectionDomain> = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let domain = open_another_device(&domains, name, options)?;
        domains.push(domain);
    }
    Ok(domains)
}

/// Opens a device as [`open_devices`] does, whose address must be none of `opened`, for a program
/// with more devices than an endpoint has. If several interfaces have one address, its device uses
/// one of them at a time; link-local addresses are others on each.
///
/// # Errors
///
/// See [`OpenDevicesError`].
pub fn open_another_device(
    opened: &[ProtectionDomain],
    name: &str,
    options: &DeviceOptions,
) -> Result<ProtectionDomain, OpenDevicesError> {
    let place = |address: SocketAddr| match address {
        SocketAddr::V4(address) => (IpAddr::from(*address.ip()), 0),
        SocketAddr::V6(address) => (IpAddr::from(*address.ip()), address.scope_id()),
    };
    let is_taken =
        |address| opened.iter().any(|domain| place(domain.device().address()) == place(address));
    let twice = |address| OpenDevicesError::Twice { name: without_prefix(name).into(), address };
    let domain = open_device(name, options).map_err(|error| match error {
        // The listener of the first one has the port.
        OpenDevicesError::Open { source: OpenError::Listen { address, .. }, .. }
            if is_taken(address) =>
        {
            twice(address.ip())
        }
        error => error,
    })?;
    let device = domain.device();
    let is_same = |other: &Device| {
        let is_elsewhere =
            is_link_local(device.address().ip()) && other.interface() != device.interface();
        place(other.address()) == place(device.address()) && !is_elsewhere
    };
    match opened.iter().any(|other| is_same(other.device())) {
        true => Err(twice(device.address().ip())),
        false => Ok(domain),
    }
}

/// Returns the name of a network interface or an address without the prefix that names of devices
/// over TCP may have.
fn without_prefix(name: &str) -> &str {
    name.strip_prefix("tcp:").unwrap_or(name)
}

/// Returns an address with a port, or with port 0.
fn socket_address(text: &str) -> Option<SocketAddr> {
    text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0))).ok()
}

/// Opens the device of a network interface or an address, as [`open_devices`] does.
///
/// # Errors
///
/// See [`OpenDevicesError`].
pub fn open_device(
    name: &str,
    options: &DeviceOptions,
) -> Result<ProtectionDomain, OpenDevicesError> {
    let full_name = without_prefix(name);
    let (name, options) = match full_name.split_once('@') {
        Some((name, advertised)) => {
            let advertised = Some(
                socket_address(advertised)
                    .ok_or_else(|| OpenDevicesError::Advertised { name: full_name.into() })?,
            );
            (name, &DeviceOptions { advertised, ..*options })
        }
        None => (full_name, options),
    };
    let failed = |source| OpenDevicesError::Open { name: name.into(), source };
    let device = Device::open(name, options).map_err(failed)?;
    device.alloc_pd().map_err(|source| OpenDevicesError::Domain { name: name.into(), source })
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use std::error::Error;
    use std::net::TcpListener;

    fn open(names: &[&str], port: u16) -> Result<Vec<ProtectionDomain>, OpenDevicesError> {
        open_devices(names, &DeviceOptions { port, ..DeviceOptions::default() })
    }

    #[test]
    fn devices_open_by_interface_and_by_address() {
        let opened = open(&["lo", "tcp:127.0.0.2"], 0).unwrap();
        let names: Vec<_> = opened.iter().map(|domain| domain.device().name()).collect();
        assert_eq!(names, ["tcp:lo", "tcp:127.0.0.2"]);
        assert_ne!(opened[0].device().address().port(), 0);
    }

    #[test]
    fn a_name_can_have_the_address_for_peers() {
        let [v4, ..] = &open(&["tcp:lo@192.0.2.1"], 0).unwrap()[..] else { panic!() };
        let device = v4.device();
        assert_eq!((device.name(), device.address().ip()), ("tcp:lo", [127, 0, 0, 1].into()));
        assert_eq!(
            device.advertised().to_string(),
            format!("192.0.2.1:{}", device.address().port())
        );
        assert_eq!(device.gid().to_string(), "::ffff:192.0.2.1");
        let opened = open(&["127.0.0.1@192.0.2.1:7500", "127.0.0.2@192.0.2.1:7501"], 0).unwrap();
        let ports = opened.iter().map(|domain| domain.device().advertised().port());
        assert_eq!(ports.collect::<Vec<_>>(), [7500, 7501]);
        for bad in ["lo@", "lo@if3", "lo@192.0.2.1:", "lo@2001:db8::1:70000"] {
            let error = open(&[bad], 0).unwrap_err();
            let words = format!("device tcp:{bad} needs an address behind @");
            assert!(error.to_string().starts_with(&words), "{error}");
        }
        for bad in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "2001:db8::1", "[::]:7500"] {
            let error = open(&[&format!("127.0.0.1@{bad}")], 0).unwrap_err();
            assert!(error.source().unwrap().to_string().contains("cannot be advertised"), "{bad}");
        }
    }

    #[test]
    fn an_interface_without_an_address_is_named() {
        let with_address = crate::interfaces::all().unwrap();
        let has_address = |name: &String| with_address.iter().any(|own| own.interface == *name);
        let names = std::fs::read_dir("/sys/class/net").unwrap().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        let Some(name) = names.filter(|name| !has_address(name)).min() else {
            eprintln!("skipped: every network interface of this host has an address");
            return;
        };
        let error = open(&[&name], 0).unwrap_err();
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert!(source.contains(&name) && source.contains("has no address"), "{error}: {source}");
    }

    #[test]
    fn every_error_names_the_device() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for port in [0, free] {
            for second in ["127.0.0.1", "tcp:127.0.0.1"] {
                let error = open(&["lo", second], port).unwrap_err();
                let twice = "device tcp:127.0.0.1 is named twice: its address is 127.0.0.1";
                assert_eq!(error.to_string(), twice);
            }
        }
        let error = open(&["tcp:tcp:lo"], 0).unwrap_err();
        assert_eq!(error.to_string(), "cannot open device tcp:tcp:lo");
        for name in ["", "tcp:"] {
            let error = open(&[name], 0).unwrap_err();
            assert_eq!(error.to_string(), "cannot open device \"tcp:\"");
            let source = error.source().unwrap().to_string();
            assert!(source.starts_with("\"\" is not a network interface"), "{source}");
        }
        let error = open(&["no such"], 0).unwrap_err();
        assert_eq!(error.to_string(), "cannot open device tcp:no such");
        assert!(matches!(error, OpenDevicesError::Open { source: OpenError::NotFound { .. }, .. }));
        let taken = TcpListener::bind("127.0.0.3:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = open(&["127.0.0.3"], port).unwrap_err();
        let source = error.source().unwrap().to_string();
        assert_eq!(source, format!("cannot listen on 127.0.0.3:{port}"));
        let error = open(&["lo"; 9], 0).unwrap_err();
        assert_eq!(error.to_string(), "9 devices, but at most 8 are allowed");
    }
}
