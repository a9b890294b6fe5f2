//! Opens devices: those that are named, or all usable ones.

use super::domain::VerbsDomain;
use super::gid::NoGid;
use super::port::usable_port;
use crate::backend::{DeviceName, OtherBackend, Port};
use crate::devices::{DevicesError, what_is_missing};
use crate::endpoint::MAX_DEVICES;
use crate::place::{Near, NoPciDevice, Origin, Place};
use crate::trace;
use polyrail_ffi::{Device, DeviceList, PortAttributes, PortState, Transport, VerbsError};
use std::borrow::Borrow;

/// Options of opening devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Index in the GID table of every port whose [name](DeviceName) has none; `None` selects the
    /// best entry, see the [module](crate::rdma#which-address). A port without an entry at this
    /// index is skipped, unless it is named, which is an error.
    pub gid_index: Option<u8>,
    /// Devices near to it come first, if none is named. By default it is the calling thread: if its
    /// processors are on some of the NUMA nodes only, the devices of these nodes come first, so that
    /// processes that are bound to different nodes use different devices.
    ///
    /// The two ends of a connection may thus have different orders. The end that answers puts its
    /// devices into the order of the other by their networks:
    /// [`in_pairs`](crate::pairing::in_pairs). Without it, name the devices at both ends, or choose
    /// [`Near::Nothing`] at both. Do so, too, where networks do not show which devices reach each
    /// other:
    ///
    /// - each device has a network of its own with its switch, such as a /31 or /32;
    /// - devices have link-local addresses only;
    /// - several InfiniBand fabrics have the same subnet prefix;
    /// - a host has more than [`MAX_DEVICES`] usable devices, and each end opens those near to it,
    ///   which may be of different networks.
    pub near: Near,
}

/// The reason why rails cannot use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It could not be opened or queried.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// iWARP connects by RDMA-CM, which this library does not use.
    #[error("iWARP devices are not supported: they need RDMA-CM to connect")]
    Iwarp,
    /// The device has no port of this number.
    #[error("the device has no port {port}: its ports are 1 to {last}")]
    NoPort {
        /// The requested port.
        port: u8,
        /// The last port.
        last: u8,
    },
    /// The named port is not active.
    #[error("port {port} is not active ({state:?}): check the cable, or its network interface")]
    Inactive {
        /// The port.
        port: u8,
        /// Its state.
        state: PortState,
    },
    /// None of its ports is active.
    #[error("no port is active: check the cable, or its network interface")]
    NoActivePort,
    /// The port has no GID at the index, or none at all.
    #[error("port {port} has no address {}", match index {
        Some(index) => format!("at GID index {index}: polyrail devices lists the indices"),
        None => "in its GID table: assign an address to its network interface".to_owned(),
    })]
    NoGid {
        /// The port.
        port: u8,
        /// The index, if one was requested.
        index: Option<u8>,
    },
    /// The network interfaces of all GIDs of the port are in other network namespaces.
    #[error(
        "the addresses of port {port} belong to network interfaces of other network namespaces: \
         assign it an interface of this one, or name an address, such as mlx5_0:{port}@3"
    )]
    OtherNamespace {
        /// The port.
        port: u8,
    },
    /// An endpoint uses no more devices, and others come before it.
    #[error(
        "at most {MAX_DEVICES} devices are used, and others come first: name the devices to use"
    )]
    TooMany,
}

impl Unusable {
    /// Returns whether a device that was not named is reported for this reason. A port without a
    /// cable is usual.
    const fn is_unexpected(&self) -> bool {
        !matches!(self, Self::NoActivePort)
    }
}

/// Opening devices failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There are no devices, and none was named.
    #[error(transparent)]
    None(#[from] DevicesError),
    /// There are no devices, so there is no device of this name.
    #[error("cannot use device {device}, which is not a network interface either")]
    Absent {
        /// The first name.
        device: String,
        /// Why there are no devices.
        #[source]
        reason: Box<DevicesError>,
    },
    /// There is no device of this name, which probably means a device of another backend.
    #[error(transparent)]
    OtherBackend(#[from] OtherBackend),
    /// There is no device of this name.
    #[error("unknown device {device}; this machine has {}", known.join(", "))]
    Unknown {
        /// The requested name.
        device: String,
        /// Names of the existing devices.
        known: Vec<String>,
    },
    /// A device was named twice. (Rails on one device use its ports in turn anyway.)
    #[error("device {device} is named twice")]
    Twice {
        /// Its name.
        device: String,
    },
    /// More devices than an endpoint supports.
    #[error("{devices} devices, but at most {MAX_DEVICES} are allowed")]
    TooMany {
        /// Number of named devices.
        devices: usize,
    },
    /// Rails cannot use a named device.
    #[error("cannot use device {device}")]
    Unusable {
        /// Its name.
        device: String,
        /// The reason.
        #[source]
        reason: Unusable,
    },
    /// Devices were to be near to a PCI device that does not exist.
    #[error(transparent)]
    NoPciDevice(#[from] NoPciDevice),
    /// Rails cannot use any device.
    #[error("no device can be used: {}", reasons(devices))]
    AllUnusable {
        /// Names of the devices, with the reasons.
        devices: Vec<(String, Unusable)>,
    },
}

fn reasons(devices: &[(String, Unusable)]) -> String {
    let reason = |(device, reason): &(String, Unusable)| format!("{device}: {reason}");
    devices.iter().map(reason).collect::<Vec<_>>().join("; ")
}

/// Opens the devices of these names, in this order. Without names, opens all devices that have an
/// active port with an address, up to [`MAX_DEVICES`]: by default those [near](OpenOptions::near) to
/// the calling thread first, and otherwise in the library's order. Devices and active ports that were
/// not named and are not used are events of [`trace`](crate::trace).
///
/// # Errors
///
/// A named device does not exist or cannot be used; without names, no device can be used, or there
/// is no PCI device to be near to.
pub fn open_devices(
    names: impl IntoIterator<Item: Borrow<DeviceName>>,
    options: &OpenOptions,
) -> Result<Vec<VerbsDomain>, OpenError> {
    open_devices_with(names, options, |_, _| {})
}

/// Opens devices like [`open_devices`]. Also calls `not_used` with the name of the device and the
/// reason for each device and active port that was not named and is not used, so that an
/// expected rail is not missing without a word. A device without an active port is not reported.
///
/// # Errors
///
/// As [`open_devices`].
pub fn open_devices_with(
    names: impl IntoIterator<Item: Borrow<DeviceName>>,
    options: &OpenOptions,
    mut not_used: impl FnMut(&str, &Unusable),
) -> Result<Vec<VerbsDomain>, OpenError> {
    let names: Vec<_> = names.into_iter().map(|name| name.borrow().clone()).collect();
    let list = match DeviceList::new().map_err(DevicesError::from) {
        Ok(list) if list.iter().len() > 0 => list,
        Ok(_) => return Err(no_devices(&names, what_is_missing())),
        Err(reason) => return Err(no_devices(&names, reason)),
    };
    let mut report = |device: &str, reason: &Unusable| {
        trace::port_not_used(device, reason);
        not_used(device, reason);
    };
    match &*names {
        [] => open_usable(&list, options, &mut report),
        names => open_named(&list, names, options, &mut report),
    }
}

/// Returns the error of opening devices where there are none.
fn no_devices(names: &[DeviceName], reason: DevicesError) -> OpenError {
    let other = names.iter().find_map(|name| OtherBackend::of(&name.device));
    match (other, names) {
        (Some(other), _) => other.into(),
        (None, [first, ..]) => {
            OpenError::Absent { device: first.device.clone(), reason: Box::new(reason) }
        }
        (None, []) => reason.into(),
    }
}

fn open_named(
    list: &DeviceList,
    names: &[DeviceName],
    options: &OpenOptions,
    not_used: &mut dyn FnMut(&str, &Unusable),
) -> Result<Vec<VerbsDomain>, OpenError> {
    if names.len() > MAX_DEVICES {
        return Err(OpenError::TooMany { devices: names.len() });
    }
    let open = |(place, name): (usize, &DeviceName)| {
        let device = name.device.clone();
        if names[..place].iter().any(|earlier| earlier.device == device) {
            return Err(OpenError::Twice { device });
        }
        let Some(found) = list.find(&device) else {
            if let Some(other) = OtherBackend::of(&device) {
                return Err(other.into());
            }
            let known = list.iter().map(|device| device.name().to_string()).collect();
            return Err(OpenError::Unknown { device, known });
        };
        open_device(&found, name.port, name.gid_index.or(options.gid_index), not_used)
            .map_err(|reason| OpenError::Unusable { device, reason })
    };
    names.iter().enumerate().map(open).collect()
}

fn open_usable(
    list: &DeviceList,
    options: &OpenOptions,
    not_used: &mut dyn FnMut(&str, &Unusable),
) -> Result<Vec<VerbsDomain>, OpenError> {
    let origin = Origin::of(options.near)?;
    let mut domains = Vec::new();
    let mut devices = Vec::new();
    for device in list.iter() {
        match open_device(&device, None, options.gid_index, not_used) {
            Ok(domain) => domains.push((device.name().to_string(), domain)),
            Err(reason) => devices.push((device.name().to_string(), reason)),
        }
    }
    if domains.is_empty() {
        return Err(OpenError::AllUnusable { devices });
    }
    let domains =
        first_of(origin.nearest_first(domains, |(name, _)| Place::of(name)), &mut devices);
    for (device, reason) in devices.iter().filter(|(_, reason)| reason.is_unexpected()) {
        not_used(device, reason);
    }
    Ok(domains)
}

/// Returns the usable devices that an endpoint has room for, and adds the others to `unusable`.
fn first_of<D>(usable: Vec<(String, D)>, unusable: &mut Vec<(String, Unusable)>) -> Vec<D> {
    let mut usable = usable.into_iter();
    let first = usable.by_ref().take(MAX_DEVICES).map(|(_, device)| device).collect();
    unusable.extend(usable.map(|(name, _)| (name, Unusable::TooMany)));
    first
}

fn open_device(
    device: &Device<'_>,
    port: Option<u8>,
    index: Option<u8>,
    not_used: &mut dyn FnMut(&str, &Unusable),
) -> Result<VerbsDomain, Unusable> {
    if device.transport() == Transport::Iwarp {
        return Err(Unusable::Iwarp);
    }
    let context = device.open()?;
    let last = context.attributes().phys_port_cnt;
    let table = context.gid_table()?;
    let usable = |number, attributes: &PortAttributes| {
        usable_port(&context, number, attributes, &table, index).map_err(|none| match none {
            NoGid::Missing => Unusable::NoGid { port: number, index },
            NoGid::OtherNamespace => Unusable::OtherNamespace { port: number },
        })
    };
    let ports = match port {
        Some(port) if !(1..=last).contains(&port) => return Err(Unusable::NoPort { port, last }),
        Some(number) => {
            let attributes = context.query_port(number)?;
            if !attributes.state.is_active() {
                return Err(Unusable::Inactive { port: number, state: attributes.state });
            }
            vec![usable(number, &attributes)?]
        }
        None => {
            let mut active = Vec::new();
            for number in 1..=last {
                let attributes = context.query_port(number)?;
                if attributes.state.is_active() {
                    active.push(usable(number, &attributes));
                }
            }
            let unusable: Vec<_> = active.iter().filter_map(|port| port.err()).collect();
            let usable = usable_of(active)?;
            unusable.iter().for_each(|reason| not_used(&device.name(), reason));
            usable
        }
    };
    Ok(VerbsDomain::new(context.alloc_pd()?, ports, index))
}

/// Returns the usable ones of a device's active ports, or, if there are none, the reason of the
/// first.
fn usable_of(active: Vec<Result<Port, Unusable>>) -> Result<Vec<Port>, Unusable> {
    let first = active.iter().find_map(|port| port.as_ref().err().copied());
    let usable: Vec<_> = active.into_iter().flatten().collect();
    if usable.is_empty() { Err(first.unwrap_or(Unusable::NoActivePort)) } else { Ok(usable) }
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::backend::{Gid, Mtu};

    #[test]
    fn without_devices_the_error_names_what_is_missing() {
        let Err(expected) = crate::devices::devices() else { return };
        let error = open_devices([] as [DeviceName; 0], &OpenOptions::default()).unwrap_err();
        assert_eq!(error, OpenError::None(expected.clone()));
        let names = ["mlx5_0", "mlx5_1:1"].map(|name| name.parse::<DeviceName>().unwrap());
        let error = open_devices(&names, &OpenOptions::default()).unwrap_err();
        let words = "cannot use device mlx5_0, which is not a network interface either";
        assert_eq!(error.to_string(), words);
        assert_eq!(
            error,
            OpenError::Absent { device: "mlx5_0".into(), reason: Box::new(expected) }
        );
    }

    #[test]
    fn a_network_interface_is_not_an_rdma_device_that_is_missing() {
        let names = ["mlx5_0", "lo:1"].map(|name| name.parse::<DeviceName>().unwrap());
        for error in [
            no_devices(&names, DevicesError::KernelModule),
            open_devices(&names[1..], &OpenOptions::default()).unwrap_err(),
        ] {
            assert_eq!(error, OpenError::OtherBackend(OtherBackend::of("lo").unwrap()));
        }
    }

    #[test]
    fn a_port_without_an_address_does_not_cost_the_others() {
        let gid = Gid::default();
        let port = |number| Port {
            number,
            gid_index: 0,
            gid,
            lid: 0,
            mtu: Mtu::Mtu4096,
            max_rd_atomic: 1,
        };
        let without = |port| Unusable::NoGid { port, index: Some(3) };
        assert_eq!(usable_of(vec![Err(without(1)), Ok(port(2))]), Ok(vec![port(2)]));
        assert_eq!(usable_of(vec![Err(without(1)), Err(without(2))]), Err(without(1)));
        assert_eq!(usable_of(vec![]), Err(Unusable::NoActivePort));
    }

    #[test]
    fn devices_beyond_the_limit_are_reported() {
        let usable = |devices: usize| (0..devices).map(|at| (format!("mlx5_{at}"), at)).collect();
        let mut unusable = vec![("rxe0".to_owned(), Unusable::NoActivePort)];
        let all: Vec<_> = (0..MAX_DEVICES).collect();
        assert_eq!(first_of(usable(MAX_DEVICES), &mut unusable), all);
        assert_eq!(unusable.len(), 1);
        assert_eq!(first_of(usable(MAX_DEVICES + 2), &mut unusable), all);
        let [_, ref beyond @ ..] = unusable[..] else { panic!() };
        let names: Vec<_> = beyond.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["mlx5_8", "mlx5_9"]);
        assert!(beyond.iter().all(|(_, reason)| reason.is_unexpected()));
        assert!(Unusable::TooMany.to_string().contains("at most 8 devices"));
    }

    #[test]
    fn a_device_that_is_left_out_is_reported_unless_no_port_is_active() {
        let (call, argument) = ("ibv_open_device", polyrail_ffi::Argument::None);
        let denied = VerbsError { call, errno: libc::EACCES, argument };
        for reason in [
            Unusable::Verbs(denied),
            Unusable::Iwarp,
            Unusable::NoGid { port: 1, index: None },
            Unusable::OtherNamespace { port: 1 },
        ] {
            assert!(reason.is_unexpected(), "{reason}");
        }
        assert!(!Unusable::NoActivePort.is_unexpected());
    }

    #[test]
    fn every_error_names_the_device() {
        let device = || "mlx5_7".to_owned();
        let reason = Unusable::NoGid { port: 2, index: Some(3) };
        for error in [
            OpenError::Unknown { device: device(), known: vec!["rxe0".into()] },
            OpenError::Twice { device: device() },
            OpenError::Unusable { device: device(), reason },
            OpenError::AllUnusable { devices: vec![(device(), Unusable::NoActivePort)] },
        ] {
            assert!(error.to_string().contains("mlx5_7"), "{error}");
        }
        assert!(reason.to_string().contains("port 2 has no address at GID index 3"), "{reason}");
    }
}
