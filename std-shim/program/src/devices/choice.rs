//! The devices that a user chose.

use super::error::DevicesError;
use crate::session::Backend;
use polyrail::backend::{DeviceName, DeviceNameError};
use polyrail::place::Near;
use polyrail::tcp::DeviceOptions;
use std::fmt;
use std::str::FromStr;

/// What names of devices over TCP begin with.
const TCP: &str = "tcp:";

/// A device by its name: `mlx5_0`, `mlx5_0:1@3`, `tcp:eth0`, `tcp:10.0.0.1`,
/// `tcp:eth0@192.0.2.1:7500`.
///
/// ```
/// use polyrail_program::devices::ChosenDevice;
///
/// assert_eq!("tcp:eth0".parse(), Ok(ChosenDevice::Tcp("eth0".into())));
/// assert!(matches!("mlx5_0:1".parse(), Ok(ChosenDevice::Verbs(name)) if name.port == Some(1)));
/// assert!("tcp:".parse::<ChosenDevice>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChosenDevice {
    /// An RDMA device.
    Verbs(DeviceName),
    /// A network interface, or an address of this host; perhaps with the address for peers, behind
    /// `@`.
    Tcp(String),
}

/// Text that is not the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChosenDeviceError {
    /// Not that of an RDMA device.
    #[error("{0}, nor tcp:INTERFACE, such as tcp:eth0, nor tcp:ADDRESS")]
    Verbs(#[from] DeviceNameError),
    /// A list.
    #[error("{0} is not a device: repeat --device for each one of a list")]
    List(String),
    /// No name behind `tcp:`.
    #[error("\"tcp:\" needs a network interface or an address behind it, such as tcp:eth0")]
    Tcp,
}

impl ChosenDevice {
    /// Returns the kind of the device.
    pub const fn backend(&self) -> Backend {
        match self {
            Self::Verbs(_) => Backend::Verbs,
            Self::Tcp(_) => Backend::Tcp,
        }
    }
}

impl FromStr for ChosenDevice {
    type Err = ChosenDeviceError;

    fn from_str(text: &str) -> Result<Self, ChosenDeviceError> {
        if text.contains(',') {
            return Err(ChosenDeviceError::List(text.to_owned()));
        }
        match text.strip_prefix(TCP) {
            Some("") => Err(ChosenDeviceError::Tcp),
            Some(name) => Ok(Self::Tcp(name.to_owned())),
            None => Ok(Self::Verbs(text.parse()?)),
        }
    }
}

impl fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(name) => name.fmt(f),
            Self::Tcp(name) => write!(f, "{TCP}{name}"),
        }
    }
}

/// The devices of this host that a user chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The kind of the devices; `None`: RDMA devices if both hosts have active ones, otherwise
    /// network interfaces.
    pub backend: Option<Backend>,
    /// Their names, in the order in which rails use them. Without names: every RDMA device with an
    /// active port, or the network interfaces that share a network with the other host, up to one
    /// for each rail.
    pub devices: Vec<ChosenDevice>,
    /// Index of the GIDs of RDMA devices that have none in their names.
    pub gid_index: Option<u8>,
    /// Without names, RDMA devices near to it come first; `None`: to the thread that opens them.
    pub near: Option<Near>,
    /// TCP port of the listener of each network interface; `None`: the system chooses ports.
    pub tcp_port: Option<u16>,
}

impl DeviceChoice {
    /// Returns the kind of the devices, if the user chose it: by its name, by the names of devices,
    /// or by an option that only one kind has.
    ///
    /// # Errors
    ///
    /// The choices contradict each other.
    pub fn backend(&self) -> Result<Option<Backend>, DevicesError> {
        let option = self.verbs_option().map(|option| (option.to_owned(), Backend::Verbs));
        let devices =
            self.devices.iter().map(|device| (format!("--device {device}"), device.backend()));
        let backend =
            self.backend.map(|backend| (format!("--backend {}", backend.name()), backend));
        let tcp_port = self.tcp_port.map(|_| ("--tcp-port".to_owned(), Backend::Tcp));
        let mut chosen = backend.into_iter().chain(devices).chain(option);
        let Some((first, backend)) = chosen.next() else { return Ok(None) };
        // A port for network interfaces does not choose them: there may be none with RDMA devices.
        match chosen.chain(tcp_port).find(|(_, other)| *other != backend) {
            Some((second, _)) => Err(DevicesError::Contradiction { first, second }),
            None => Ok(Some(backend)),
        }
    }

    /// Returns an option that was given and is for RDMA devices.
    fn verbs_option(&self) -> Option<&'static str> {
        let gid_index = self.gid_index.map(|_| "--gid-index");
        gid_index.or(self.near.map(|_| "--near"))
    }

    /// Returns the option that chose RDMA devices, if neither their names nor that of their kind
    /// did.
    pub(super) fn only_verbs_option(&self) -> Option<&'static str> {
        let is_named = self.backend.is_some() || !self.devices.is_empty();
        if is_named { None } else { self.verbs_option() }
    }

    /// Returns the options of network interfaces.
    pub(super) fn tcp_options(&self) -> DeviceOptions {
        DeviceOptions { port: self.tcp_port.unwrap_or_default(), ..DeviceOptions::default() }
    }

    /// Returns the names of network interfaces and addresses.
    pub(super) fn tcp_names(&self) -> Vec<String> {
        let tcp = self.devices.iter().filter(|device| device.backend() == Backend::Tcp);
        tcp.map(ToString::to_string).collect()
    }

    /// Returns the names of RDMA devices.
    #[cfg(feature = "verbs")]
    pub(super) fn verbs_names(&self) -> Vec<DeviceName> {
        let name = |device: &ChosenDevice| match device {
            ChosenDevice::Verbs(name) => Some(name.clone()),
            ChosenDevice::Tcp(_) => None,
        };
        self.devices.iter().filter_map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        backend: Option<Backend>,
        devices: &[&str],
        gid_index: Option<u8>,
        tcp_port: Option<u16>,
    ) -> Result<Option<Backend>, String> {
        let devices = devices.iter().map(|name| name.parse().unwrap()).collect();
        let choice = DeviceChoice { backend, devices, gid_index, near: None, tcp_port };
        choice.backend().map_err(|error| error.to_string())
    }

    #[test]
    fn what_devices_are_near_to_chooses_rdma_devices() {
        for near in [Near::Nothing, Near::ThisThread].map(Some) {
            let choice = DeviceChoice { near, ..DeviceChoice::default() };
            assert_eq!(choice.backend().unwrap(), Some(Backend::Verbs));
            assert_eq!(choice.only_verbs_option(), Some("--near"));
            let backend = Some(Backend::Tcp);
            let choice = DeviceChoice { backend, near, ..DeviceChoice::default() };
            let error = choice.backend().unwrap_err().to_string();
            assert!(error.starts_with("--backend tcp and --near contradict"), "{error}");
            assert_eq!(choice.only_verbs_option(), None);
        }
        assert_eq!(DeviceChoice::default().backend().unwrap(), None);
    }

    #[test]
    fn a_backend_is_chosen_by_its_name_its_devices_or_its_options() {
        use Backend::{Tcp, Verbs};
        assert_eq!(chosen(None, &[], None, None), Ok(None));
        assert_eq!(chosen(None, &[], None, Some(7000)), Ok(None));
        assert_eq!(chosen(Some(Tcp), &[], None, Some(7000)), Ok(Some(Tcp)));
        assert_eq!(chosen(Some(Verbs), &["mlx5_0"], Some(3), None), Ok(Some(Verbs)));
        assert_eq!(chosen(None, &["mlx5_0", "mlx5_1:1@3"], None, None), Ok(Some(Verbs)));
        assert_eq!(chosen(None, &["tcp:eth0", "tcp:10.0.0.1"], None, None), Ok(Some(Tcp)));
        assert_eq!(chosen(None, &[], Some(3), None), Ok(Some(Verbs)));
    }

    #[test]
    fn a_list_is_not_a_device() {
        for text in ["mlx5_0,mlx5_1", "tcp:eth0,tcp:eth1", "tcp:eth0,eth1", "tcp:eth0,"] {
            let error = text.parse::<ChosenDevice>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{text} is not a device: repeat --device for each one of a list")
            );
        }
    }

    #[test]
    fn choices_that_contradict_each_other_are_named() {
        use Backend::{Tcp, Verbs};
        for (backend, devices, gid_index, tcp_port, words) in [
            (Some(Tcp), &["mlx5_0"][..], None, None, ["--backend tcp", "--device mlx5_0"]),
            (Some(Verbs), &["tcp:eth0"], None, None, ["--backend verbs", "--device tcp:eth0"]),
            (None, &["mlx5_0", "tcp:eth0"], None, None, ["--device mlx5_0", "--device tcp:eth0"]),
            (None, &["tcp:eth0"], Some(3), None, ["--device tcp:eth0", "--gid-index"]),
            (Some(Verbs), &[], None, Some(7000), ["--backend verbs", "--tcp-port"]),
        ] {
            let error = chosen(backend, devices, gid_index, tcp_port).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
