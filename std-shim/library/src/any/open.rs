//! Opens devices by their names.

use super::domain::AnyDomain;
use crate::backend::{DeviceName, DeviceNameError, Domain, OtherBackend};
use crate::endpoint::MAX_DEVICES;
use crate::nic::{DeviceConfig, Fabric, NicError};
#[cfg(feature = "verbs")]
use crate::rdma;
#[cfg(feature = "tcp")]
use crate::tcp;
use polyrail_process::PerProcess;

/// Options of opening devices, by backend.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The fabric of software NICs; `None` selects a fabric of the process, on which all software
    /// NICs reach each other. A fork has its own.
    pub fabric: Option<Fabric>,
    /// Options of devices over TCP.
    #[cfg(feature = "tcp")]
    pub tcp: tcp::DeviceOptions,
    /// Options of RDMA devices.
    #[cfg(feature = "verbs")]
    pub verbs: rdma::OpenOptions,
}

/// Opening devices failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text does not name a device.
    #[error(
        "{name:?} is not a device: software, software:NAME, tcp:INTERFACE or tcp:ADDRESS (either \
         perhaps with @ADDRESS for peers), or an RDMA device such as mlx5_0 or mlx5_0:1"
    )]
    Name {
        /// The text.
        name: String,
        /// Why it does not name an RDMA device.
        source: DeviceNameError,
    },
    /// The text probably means a device of another backend than it names.
    #[error(transparent)]
    OtherBackend(#[from] OtherBackend),
    /// More devices than an endpoint supports.
    #[error("{devices} devices, but at most {MAX_DEVICES} are allowed")]
    TooMany {
        /// Number of named devices.
        devices: usize,
    },
    /// A device of the software NIC or an RDMA device was named twice.
    #[error("device {device} is named twice")]
    Twice {
        /// Its name.
        device: String,
    },
    /// The library was built without the backend of the device.
    #[error("device {device} needs the feature `{feature}`, without which this program was built")]
    NotBuilt {
        /// Its name.
        device: String,
        /// The feature of the library.
        feature: &'static str,
    },
    /// A software NIC cannot be used.
    #[error("cannot use device {device}")]
    Software {
        /// Its name.
        device: String,
        /// The reason.
        source: NicError,
    },
    /// A device over TCP cannot be opened.
    #[cfg(feature = "tcp")]
    #[error(transparent)]
    Tcp(#[from] tcp::OpenDevicesError),
    /// An RDMA device cannot be opened.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] rdma::OpenError),
}

/// The fabric of software NICs whose options have none.
static FABRIC: PerProcess<Fabric> = PerProcess::new();

/// Opens devices by their names, in this order, and allocates a protection domain of each.
/// Endpoints use them in turn. Without names it opens none; the functions of each backend find
/// devices.
///
/// | name | device |
/// |---|---|
/// | `software`, `software:NAME` | a new software NIC, which reaches other software NICs of this process |
/// | `tcp:eth0`, `tcp:10.0.0.1`, `tcp:eth0@192.0.2.1:7500` | a network interface or address of this host, over TCP, perhaps with the address for peers; feature `tcp` |
/// | `mlx5_0`, `mlx5_0:1`, `mlx5_0@3`, `mlx5_0:1@3` | an RDMA device, perhaps with a port or a GID index; feature `verbs` |
///
/// ```
/// use polyrail::any::{AnyDomain, OpenOptions, open_devices};
/// use polyrail::backend::Domain;
///
/// # #[cfg(feature = "tcp")] {
/// let domains = open_devices(["software", "tcp:lo"], &OpenOptions::default())?;
/// let names: Vec<&str> = domains.iter().map(AnyDomain::device_name).collect();
/// assert_eq!(names, ["software", "tcp:lo"]);
/// # }
/// # Ok::<(), polyrail::any::OpenError>(())
/// ```
///
/// # Errors
///
/// See [`OpenError`].
pub fn open_devices(
    names: impl IntoIterator<Item: AsRef<str>>,
    options: &OpenOptions,
) -> Result<Vec<AnyDomain>, OpenError> {
    let names: Vec<_> = names.into_iter().collect();
    if names.len() > MAX_DEVICES {
        return Err(OpenError::TooMany { devices: names.len() });
    }
    let mut opened = Vec::with_capacity(names.len());
    for name in names {
        let domain = open_another(&opened, name.as_ref(), options)?;
        opened.push(domain);
    }
    Ok(opened)
}

/// Opens a device as [`open_devices`] does.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open_device(name: &str, options: &OpenOptions) -> Result<AnyDomain, OpenError> {
    open_another(&[], name, options)
}

/// Opens a device that is none of `opened`.
fn open_another(
    opened: &[AnyDomain],
    name: &str,
    options: &OpenOptions,
) -> Result<AnyDomain, OpenError> {
    if name == "software" || name.strip_prefix("software:").is_some_and(|name| !name.is_empty()) {
        return open_software(opened, name, options);
    }
    if name.starts_with("tcp:") {
        return open_tcp(opened, name, options);
    }
    let parsed = name.parse::<DeviceName>().map_err(|source| match OtherBackend::of(name) {
        Some(other) => OpenError::OtherBackend(other),
        None => OpenError::Name { name: name.to_owned(), source },
    })?;
    open_verbs(opened, &parsed, options)
}

/// Refuses a name that one of the opened devices has. Devices of different backends have different
/// names.
fn check_new(opened: &[AnyDomain], device: &str) -> Result<(), OpenError> {
    match opened.iter().any(|opened| opened.device_name() == device) {
        true => Err(OpenError::Twice { device: device.to_owned() }),
        false => Ok(()),
    }
}

fn open_software(
    opened: &[AnyDomain],
    name: &str,
    options: &OpenOptions,
) -> Result<AnyDomain, OpenError> {
    check_new(opened, name)?;
    let fabric = options.fabric.as_ref().unwrap_or_else(|| FABRIC.get_or_make(Fabric::threaded));
    let domain = fabric.create_device(DeviceConfig::named(name)).alloc_pd();
    let failed = |source| OpenError::Software { device: name.to_owned(), source };
    domain.map(AnyDomain::Software).map_err(failed)
}

#[cfg(feature = "tcp")]
fn open_tcp(
    opened: &[AnyDomain],
    name: &str,
    options: &OpenOptions,
) -> Result<AnyDomain, OpenError> {
    let over_tcp = |domain: &AnyDomain| match domain {
        AnyDomain::Tcp(domain) => Some(domain.clone()),
        _ => None,
    };
    // Two names of one address are refused.
    let opened: Vec<_> = opened.iter().filter_map(over_tcp).collect();
    Ok(AnyDomain::Tcp(tcp::open_another_device(&opened, name, &options.tcp)?))
}

#[cfg(not(feature = "tcp"))]
fn open_tcp(_: &[AnyDomain], name: &str, _: &OpenOptions) -> Result<AnyDomain, OpenError> {
    Err(OpenError::NotBuilt { device: name.to_owned(), feature: "tcp" })
}

#[cfg(feature = "verbs")]
fn open_verbs(
    opened: &[AnyDomain],
    name: &DeviceName,
    options: &OpenOptions,
) -> Result<AnyDomain, OpenError> {
    check_new(opened, &name.device)?;
    let opened = rdma::open_devices([name], &options.verbs);
    let domains = opened.map_err(|error| match error {
        rdma::OpenError::OtherBackend(other) => other.into(),
        error => OpenError::Verbs(error),
    })?;
    Ok(AnyDomain::Verbs(domains.into_iter().next().expect("a device for each name")))
}

#[cfg(not(feature = "verbs"))]
fn open_verbs(_: &[AnyDomain], name: &DeviceName, _: &OpenOptions) -> Result<AnyDomain, OpenError> {
    let not_built = || OpenError::NotBuilt { device: name.device.clone(), feature: "verbs" };
    Err(OtherBackend::of(&name.device).map_or_else(not_built, OpenError::OtherBackend))
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use std::error::Error;

    fn refused(names: &[&str]) -> OpenError {
        open_devices(names, &OpenOptions::default()).unwrap_err()
    }

    #[test]
    fn software_nics_have_the_name_and_the_fabric_that_they_are_given() {
        let fabric = Fabric::threaded();
        let options = OpenOptions { fabric: Some(fabric), ..OpenOptions::default() };
        let opened = open_devices(&["software", "software:a", "software:b"], &options).unwrap();
        let names: Vec<_> = opened.iter().map(Domain::device_name).collect();
        assert_eq!(names, ["software", "software:a", "software:b"]);
        let ids: Vec<_> = opened.iter().map(Domain::device_id).collect();
        assert!(ids[0] < ids[1] && ids[1] < ids[2], "{ids:?}");
    }

    #[test]
    fn text_that_names_no_device_is_refused() {
        for name in ["", "software:", "mlx5_0:0", "eth0:x"] {
            let error = refused(&[name]);
            assert!(
                error.to_string().starts_with(&format!("{name:?} is not a device: ")),
                "{error}"
            );
            assert!(error.source().is_some());
        }
    }

    #[test]
    fn a_name_of_another_backend_is_answered_with_what_to_write() {
        for (name, write) in [
            ("lo", "tcp:lo"),
            ("lo@192.0.2.1", "tcp:lo@192.0.2.1"),
            ("127.0.0.1", "tcp:127.0.0.1"),
            ("::1", "tcp:::1"),
            ("tcp", "tcp:INTERFACE or tcp:ADDRESS, such as tcp:eth0"),
            ("TCP:lo", "tcp:lo"),
            ("Software", "software or software:NAME"),
            ("Software:a", "software:a"),
        ] {
            let error = refused(&["software", name]);
            assert!(matches!(error, OpenError::OtherBackend(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(write), "{text}");
        }
    }

    #[test]
    fn a_device_is_opened_once() {
        for device in ["software", "software:a"] {
            let error = refused(&[device, "software:c", device]);
            assert_eq!(error.to_string(), format!("device {device} is named twice"));
        }
        let error = refused(&["software"; 9]);
        assert_eq!(error.to_string(), "9 devices, but at most 8 are allowed");
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn devices_over_tcp_are_known_by_their_addresses() {
        let options = OpenOptions::default();
        let opened = open_devices(&["tcp:lo", "software", "tcp:127.0.0.9"], &options).unwrap();
        let names: Vec<_> = opened.iter().map(Domain::device_name).collect();
        assert_eq!(names, ["tcp:lo", "software", "tcp:127.0.0.9"]);
        let error = refused(&["tcp:lo", "software", "tcp:127.0.0.1"]);
        assert_eq!(
            error.to_string(),
            "device tcp:127.0.0.1 is named twice: its address is 127.0.0.1"
        );
        let error = open_device("tcp:no such", &options).unwrap_err();
        assert_eq!(error.to_string(), "cannot open device tcp:no such");
        let error = open_device("tcp:", &options).unwrap_err();
        assert_eq!(error.to_string(), "cannot open device \"tcp:\"");
    }

    #[cfg(not(feature = "tcp"))]
    #[test]
    fn devices_over_tcp_need_the_feature() {
        let error = refused(&["tcp:lo"]);
        let text = "device tcp:lo needs the feature `tcp`, without which this program was built";
        assert_eq!(error.to_string(), text);
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn other_names_are_of_rdma_devices() {
        let error = refused(&["no_such_device:1"]);
        assert!(matches!(error, OpenError::Verbs(_)), "{error}");
        assert!(error.to_string().contains("device no_such_device"), "{error}");
    }

    #[cfg(not(feature = "verbs"))]
    #[test]
    fn rdma_devices_need_the_feature() {
        let error = refused(&["mlx5_0"]);
        let text = "device mlx5_0 needs the feature `verbs`, without which this program was built";
        assert_eq!(error.to_string(), text);
    }
}
