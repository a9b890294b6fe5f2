//! Settings, from the environment, because NCCL passes no others to a plugin.

use crate::log::Level;
use polyrail::backend::DeviceName;
use polyrail::endpoint::RailWeights;
use polyrail::interfaces::InterfaceFilter;
use polyrail::service_variables::is_service_variable;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// The prefix of all variables.
const PREFIX: &str = "POLYRAIL_";

/// The variable for devices.
const DEVICES: &str = "POLYRAIL_DEVICES";

/// NCCL's variable for the network devices of its own TCP connections.
const NCCL_INTERFACES: &str = "NCCL_SOCKET_IFNAME";

/// The kind of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// Real NICs.
    #[default]
    Verbs,
    /// Software NICs: all ranks are in one process.
    Software,
    /// Network interfaces: queue pairs are TCP connections.
    Tcp,
}

impl Backend {
    /// All of them, with their names.
    pub(crate) const NAMES: [(&str, Self); 3] =
        [("verbs", Self::Verbs), ("software", Self::Software), ("tcp", Self::Tcp)];

    /// Returns its name.
    #[cfg(not(all(feature = "tcp", feature = "verbs")))]
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, backend)| *backend == self).map_or("", |(name, _)| name)
    }
}

/// Where the rails and planes of NICs come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RailIdChoice {
    /// From their networks.
    #[default]
    Networks,
    /// From a list; those of other NICs are undefined.
    Listed(Vec<ListedIds>),
}

/// The rail of a NIC, and perhaps its plane, in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedIds {
    pub(crate) device: String,
    pub(crate) rail: i16,
    pub(crate) plane: Option<i16>,
}

impl ListedIds {
    /// Whether they are of the NIC with this name.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        names_device(&self.device, name)
    }
}

/// Whether a setting names this device. A device over TCP is named with or without `tcp:`.
pub(crate) fn names_device(given: &str, device: &str) -> bool {
    given == device || device.strip_prefix("tcp:") == Some(given)
}

/// As in `mlx5_0=0` or `mlx5_1:2=1:0`.
impl FromStr for ListedIds {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (device, ids) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or(())?;
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<i16>().ok().filter(|_| is_number).ok_or(())
        };
        let (rail, plane) = match ids.split_once(':') {
            Some((rail, plane)) => (rail, Some(number(plane)?)),
            None => (ids, None),
        };
        Ok(Self { device: device.to_owned(), rail: number(rail)?, plane })
    }
}

/// All settings. The default is used for missing variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) backend: Backend,
    /// Empty: all active ports.
    pub(crate) devices: Vec<DeviceName>,
    /// Interfaces or addresses, instead of `devices`. Empty: all at which other hosts reach this
    /// one.
    pub(crate) interfaces_for_rails: Vec<String>,
    /// Rails of a connection; by default the number of NICs of the end that has more.
    pub(crate) rails: Option<u8>,
    pub(crate) queue_pairs_per_rail: u8,
    /// What decides how much each rail carries.
    pub(crate) rail_weights: RailWeights,
    /// Rates in Mbit/s that replace those of devices, by their names.
    pub(crate) device_mbps: Vec<(String, u32)>,
    /// Messages up to this many bytes go over one rail.
    pub(crate) split_threshold: u32,
    /// From this many bytes on, payload and immediate are two requests.
    pub(crate) separate_signal: Option<u32>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) gid_index: Option<u8>,
    pub(crate) rail_ids: RailIdChoice,
    /// The code of the acknowledgement timeout: 4.096 us * 2^code.
    pub(crate) qp_timeout: u8,
    pub(crate) retries: u8,
    /// How long the two ends may take to connect.
    pub(crate) connect_timeout: Duration,
    /// Whether other rails take over when a rail fails.
    pub(crate) healing: bool,
    /// How long a rail may make no progress.
    pub(crate) stall_timeout: Duration,
    /// How long rails may fail and come back without carrying anything.
    pub(crate) rail_timeout: Duration,
    /// How long the TCP link between two ends may be broken.
    pub(crate) link_timeout: Duration,
    /// The network devices for the TCP connection between two ends: `POLYRAIL_INTERFACE`, or
    /// `NCCL_SOCKET_IFNAME`.
    pub(crate) interfaces: InterfaceFilter,
    pub(crate) log_level: Level,
    /// Whether NCCL is asked to flush all receives, including those in host memory.
    pub(crate) always_flush: bool,
    /// Variables of Kubernetes, which are ignored, in the order of their names.
    pub(crate) ignored: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            devices: Vec::new(),
            interfaces_for_rails: Vec::new(),
            rails: None,
            queue_pairs_per_rail: 1,
            rail_weights: RailWeights::default(),
            device_mbps: Vec::new(),
            split_threshold: 64 << 10,
            separate_signal: None,
            traffic_class: 0,
            service_level: 0,
            gid_index: None,
            rail_ids: RailIdChoice::default(),
            qp_timeout: 18,
            retries: 7,
            connect_timeout: Duration::from_secs(120),
            healing: true,
            stall_timeout: Duration::from_secs(10),
            rail_timeout: Duration::from_secs(60),
            link_timeout: Duration::from_secs(300),
            interfaces: InterfaceFilter::all(),
            log_level: Level::default(),
            always_flush: false,
            ignored: Vec::new(),
        }
    }
}

/// Settings of the plugin for NIXL, which reads the same environment, and of the library (METRICS).
const OF_OTHERS: [&str; 7] =
    ["FRAGMENT", "METRICS", "NEAR", "TOKEN", "PORT", "TCP_PORT", "SOFTWARE_BYTES_PER_SECOND"];

/// An unknown or malformed variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("{0} is not a setting of this plugin")]
    Unknown(String),
    #[error("{name}={value:?}: expected {expected}")]
    Malformed { name: String, value: OsString, expected: String },
}

impl Settings {
    /// Reads the settings from the environment of this process.
    pub(crate) fn from_env() -> Result<Self, SettingError> {
        Self::read(std::env::vars_os())
    }

    /// Reads the settings from these variables; only those with the plugin's prefix, and
    /// `NCCL_SOCKET_IFNAME`, are used.
    pub(crate) fn read(
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        let mut of_nccl = None;
        let mut devices = None;
        for (name, value) in variables {
            let has_prefix = |name: &OsStr| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
            if has_prefix(&name) {
                let name = name.to_string_lossy();
                if is_service_variable(&name, &value.to_string_lossy()) {
                    settings.ignored.push(name.into_owned());
                } else if name == DEVICES {
                    devices = Some(value);
                } else {
                    settings.set(&name, name.trim_start_matches(PREFIX), &value)?;
                }
            } else if name == NCCL_INTERFACES {
                of_nccl = Some(InterfaceFilter::from_nccl(&value.to_string_lossy()));
            }
        }
        settings.ignored.sort();
        // The backend, which gives names their meaning, may follow in the environment.
        if let Some(value) = &devices {
            let value = Value { name: DEVICES, value };
            match settings.backend {
                Backend::Tcp => settings.interfaces_for_rails = value.interfaces()?,
                Backend::Verbs | Backend::Software => settings.devices = value.devices()?,
            }
        }
        if let Some(interfaces) = of_nccl
            && settings.interfaces == InterfaceFilter::all()
        {
            settings.interfaces = interfaces;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, key: &str, value: &OsStr) -> Result<(), SettingError> {
        let value = Value { name, value };
        match key {
            "BACKEND" => {
                self.backend = value.one_of(&Backend::NAMES)?;
            }
            "RAILS" => self.rails = Some(value.number(1, 8)?),
            "QUEUE_PAIRS_PER_RAIL" => self.queue_pairs_per_rail = value.number(1, 16)?,
            "RAIL_WEIGHTS" => self.rail_weights = value.one_of(&RailWeights::NAMES)?,
            "DEVICE_MBPS" => self.device_mbps = value.rates()?,
            "SPLIT_THRESHOLD" => self.split_threshold = value.bytes()?,
            "SEPARATE_SIGNAL" => {
                self.separate_signal = if value.is("off") { None } else { Some(value.bytes()?) };
            }
            "TRAFFIC_CLASS" => self.traffic_class = value.number(0, u8::MAX)?,
            "SERVICE_LEVEL" => self.service_level = value.number(0, 15)?,
            "GID_INDEX" => self.gid_index = Some(value.number(0, u8::MAX)?),
            "RAIL_IDS" => self.rail_ids = value.rail_ids()?,
            "QP_TIMEOUT" => self.qp_timeout = value.number(0, 31)?,
            "RETRIES" => self.retries = value.number(0, 7)?,
            "CONNECT_TIMEOUT_MS" => self.connect_timeout = value.milliseconds()?,
            "HEALING" => self.healing = value.one_of(&[("on", true), ("off", false)])?,
            "STALL_TIMEOUT_MS" => self.stall_timeout = value.milliseconds()?,
            "RAIL_TIMEOUT_MS" => self.rail_timeout = value.milliseconds()?,
            "LINK_TIMEOUT_MS" => self.link_timeout = value.milliseconds()?,
            "FLUSH" => {
                self.always_flush = value.one_of(&[("auto", false), ("always", true)])?;
            }
            "INTERFACE" => self.interfaces = InterfaceFilter::named(&value.text()?),
            "LOG_LEVEL" => {
                self.log_level = value.one_of(&[
                    ("none", Level::None),
                    ("warn", Level::Warn),
                    ("info", Level::Info),
                    ("trace", Level::Trace),
                ])?;
            }
            _ if OF_OTHERS.contains(&key) => {}
            _ => return Err(SettingError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

/// The value of a variable.
struct Value<'v> {
    name: &'v str,
    value: &'v OsStr,
}

impl Value<'_> {
    fn malformed(&self, expected: impl Display) -> SettingError {
        let (name, value) = (self.name.to_owned(), self.value.to_owned());
        SettingError::Malformed { name, value, expected: expected.to_string() }
    }

    fn is(&self, text: &str) -> bool {
        self.value == text
    }

    fn text(&self) -> Result<String, SettingError> {
        let text = self.value.to_str().filter(|text| !text.is_empty());
        text.map(Into::into).ok_or_else(|| self.malformed("a name"))
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, SettingError> {
        let chosen = choices.iter().find(|(name, _)| self.is(name));
        let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
        chosen.map(|(_, choice)| *choice).ok_or_else(|| self.malformed(names()))
    }

    fn parsed<T: FromStr>(&self) -> Option<T> {
        self.value.to_str()?.parse().ok()
    }

    fn number(&self, least: u8, most: u8) -> Result<u8, SettingError> {
        let number = self.parsed().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| self.malformed(format!("a number from {least} to {most}")))
    }

    fn milliseconds(&self) -> Result<Duration, SettingError> {
        let number: Option<u32> = self.parsed().filter(|number| *number > 0);
        let duration = number.map(|number| Duration::from_millis(number.into()));
        duration.ok_or_else(|| self.malformed("a number of milliseconds, at least 1"))
    }

    /// Parses a number of bytes, optionally with the suffix K, M or G.
    fn bytes(&self) -> Result<u32, SettingError> {
        let text = self.value.to_str().unwrap_or_default();
        let units = [('K', 10), ('M', 20), ('G', 30)];
        let unit = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(*unit)?, *bits)));
        let (digits, bits) = unit.unwrap_or((text, 0));
        let bytes = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(1 << bits));
        let expected = "a number of bytes below 4G, such as 65536 or 64K";
        bytes.ok_or_else(|| self.malformed(expected))
    }

    fn rail_ids(&self) -> Result<RailIdChoice, SettingError> {
        if self.is("networks") {
            return Ok(RailIdChoice::Networks);
        }
        if self.is("none") {
            return Ok(RailIdChoice::Listed(Vec::new()));
        }
        let text = self.value.to_str().unwrap_or_default();
        let listed: Result<Vec<ListedIds>, ()> = text.split(',').map(str::parse).collect();
        let words = "networks, none, or a list of devices with the numbers of their rails, and perhaps \
                     of their planes, such as mlx5_0=0,mlx5_1:2=1:0";
        let listed = listed.map_err(|()| self.malformed(words))?;
        let is_twice = |(at, ids): (usize, &ListedIds)| {
            listed[..at].iter().any(|other| other.device == ids.device)
        };
        if listed.iter().enumerate().any(is_twice) {
            return Err(self.malformed("each device once"));
        }
        Ok(RailIdChoice::Listed(listed))
    }

    fn interfaces(&self) -> Result<Vec<String>, SettingError> {
        let text = self.value.to_str().unwrap_or_default();
        let names: Vec<String> = text.split(',').map(ToOwned::to_owned).collect();
        if names.iter().any(String::is_empty) {
            let words = "a list of network interfaces or their addresses, such as eth0,10.0.1.1";
            return Err(self.malformed(words));
        }
        Ok(names)
    }

    /// Parses names of devices and their rates in Mbit/s.
    fn rates(&self) -> Result<Vec<(String, u32)>, SettingError> {
        let text = self.value.to_str().unwrap_or_default();
        let rate = |text: &str| {
            let (name, mbps) = text.split_once('=')?;
            let mbps = mbps.parse().ok().filter(|mbps| *mbps > 0)?;
            (!name.is_empty()).then(|| (name.to_owned(), mbps))
        };
        let rates: Option<Vec<_>> = text.split(',').map(rate).collect();
        let expected = "a list of devices and rates in Mbit/s, such as mlx5_0=400000,mlx5_1=100000";
        rates.ok_or_else(|| self.malformed(expected))
    }

    fn devices(&self) -> Result<Vec<DeviceName>, SettingError> {
        let text = self.value.to_str().unwrap_or_default();
        let names: Option<Vec<DeviceName>> =
            text.split(',').map(|name| name.parse().ok()).collect();
        let names = names.ok_or_else(|| {
            self.malformed("a list of devices or ports, such as mlx5_0,mlx5_1:1,mlx5_2@3")
        })?;
        let is_twice = |(at, name): (usize, &DeviceName)| {
            let is_same = |a: &DeviceName| (&a.device, a.port) == (&name.device, name.port);
            names[..at].iter().any(is_same)
        };
        if names.iter().enumerate().any(is_twice) {
            return Err(self.malformed("each device once"));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::read(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn every_variable_is_read() {
        let settings = read(&[
            ("PATH", "/bin"),
            ("POLYRAIL_BACKEND", "software"),
            ("POLYRAIL_DEVICES", "mlx5_0,mlx5_1:2,mlx5_2:1@3"),
            ("POLYRAIL_RAILS", "8"),
            ("POLYRAIL_QUEUE_PAIRS_PER_RAIL", "2"),
            ("POLYRAIL_RAIL_WEIGHTS", "rates"),
            ("POLYRAIL_DEVICE_MBPS", "mlx5_0=400000,mlx5_1=1"),
            ("POLYRAIL_SPLIT_THRESHOLD", "4K"),
            ("POLYRAIL_SEPARATE_SIGNAL", "1M"),
            ("POLYRAIL_TRAFFIC_CLASS", "105"),
            ("POLYRAIL_SERVICE_LEVEL", "3"),
            ("POLYRAIL_GID_INDEX", "1"),
            ("POLYRAIL_RAIL_IDS", "mlx5_0=0,mlx5_1:2=1:0,fe80::1=32767"),
            ("POLYRAIL_QP_TIMEOUT", "20"),
            ("POLYRAIL_RETRIES", "5"),
            ("POLYRAIL_CONNECT_TIMEOUT_MS", "500"),
            ("POLYRAIL_HEALING", "off"),
            ("POLYRAIL_STALL_TIMEOUT_MS", "2000"),
            ("POLYRAIL_RAIL_TIMEOUT_MS", "3000"),
            ("POLYRAIL_LINK_TIMEOUT_MS", "4000"),
            ("POLYRAIL_INTERFACE", "eth0"),
            ("POLYRAIL_FLUSH", "always"),
            ("POLYRAIL_LOG_LEVEL", "trace"),
        ]);
        let expected = Settings {
            backend: Backend::Software,
            devices: ["mlx5_0", "mlx5_1:2", "mlx5_2:1@3"].map(|name| name.parse().unwrap()).into(),
            interfaces_for_rails: Vec::new(),
            rails: Some(8),
            queue_pairs_per_rail: 2,
            rail_weights: RailWeights::Rates,
            device_mbps: vec![("mlx5_0".into(), 400_000), ("mlx5_1".into(), 1)],
            split_threshold: 4096,
            separate_signal: Some(1 << 20),
            traffic_class: 105,
            service_level: 3,
            gid_index: Some(1),
            rail_ids: RailIdChoice::Listed(
                [("mlx5_0", 0, None), ("mlx5_1:2", 1, Some(0)), ("fe80::1", i16::MAX, None)]
                    .map(|(device, rail, plane)| ListedIds { device: device.into(), rail, plane })
                    .into(),
            ),
            qp_timeout: 20,
            retries: 5,
            connect_timeout: Duration::from_millis(500),
            healing: false,
            stall_timeout: Duration::from_secs(2),
            rail_timeout: Duration::from_secs(3),
            link_timeout: Duration::from_secs(4),
            interfaces: InterfaceFilter::named("eth0"),
            log_level: Level::Trace,
            always_flush: true,
            ignored: Vec::new(),
        };
        assert_eq!(settings, Ok(expected));
        assert_eq!(read(&[("POLYRAIL", "x")]), Ok(Settings::default()));
    }

    #[test]
    fn devices_over_tcp_are_interfaces_or_addresses() {
        let backend = ("POLYRAIL_BACKEND", "tcp");
        let devices = ("POLYRAIL_DEVICES", "eth0,tcp:eth1,tcp:fe80::1,10.0.0.1");
        for variables in [[backend, devices], [devices, backend]] {
            let settings = read(&variables).unwrap();
            assert_eq!(
                settings.interfaces_for_rails,
                ["eth0", "tcp:eth1", "tcp:fe80::1", "10.0.0.1"]
            );
            assert!(settings.devices.is_empty());
        }
        for value in ["", "eth0,"] {
            let words = read(&[("POLYRAIL_DEVICES", value), backend]).unwrap_err().to_string();
            assert!(words.contains("POLYRAIL_DEVICES"), "{words}");
        }
    }

    #[test]
    fn rails_are_those_of_networks_unless_there_is_another_choice() {
        let choice = |value| read(&[("POLYRAIL_RAIL_IDS", value)]).unwrap().rail_ids;
        assert_eq!(read(&[]).unwrap().rail_ids, RailIdChoice::Networks);
        assert_eq!(choice("networks"), RailIdChoice::Networks);
        assert_eq!(choice("none"), RailIdChoice::Listed(vec![]));
    }

    /// A Service that is called `polyrail`.
    #[test]
    fn variables_of_kubernetes_are_ignored() {
        let settings = read(&[
            ("POLYRAIL_SERVICE_HOST", "10.96.0.7"),
            ("POLYRAIL_SERVICE_PORT", "7471"),
            ("POLYRAIL_PORT", "tcp://10.96.0.7:7471"),
            ("POLYRAIL_PORT_7471_TCP_ADDR", "10.96.0.7"),
            ("POLYRAIL_RAILS", "2"),
        ]);
        let ignored = [
            "POLYRAIL_PORT",
            "POLYRAIL_PORT_7471_TCP_ADDR",
            "POLYRAIL_SERVICE_HOST",
            "POLYRAIL_SERVICE_PORT",
        ];
        let ignored = ignored.map(Into::into).into();
        assert_eq!(settings, Ok(Settings { rails: Some(2), ignored, ..Settings::default() }));
    }

    #[test]
    fn nccls_choice_of_interfaces_counts_unless_there_is_another() {
        let interfaces = |variables: &[_]| read(variables).unwrap().interfaces;
        let of_nccl = ("NCCL_SOCKET_IFNAME", "^docker");
        assert_eq!(interfaces(&[of_nccl]), InterfaceFilter::from_nccl("^docker"));
        for variables in
            [[of_nccl, ("POLYRAIL_INTERFACE", "eth0")], [("POLYRAIL_INTERFACE", "eth0"), of_nccl]]
        {
            assert_eq!(interfaces(&variables), InterfaceFilter::named("eth0"));
        }
        assert_eq!(interfaces(&[("NCCL_SOCKET_IFNAME", "")]), InterfaceFilter::all());
    }

    #[test]
    fn what_nixls_plugin_is_told_is_no_mistake() {
        let page = include_str!("../../nixl/README.md");
        let settings = page.split("\n## ").find(|part| part.starts_with("Settings\n")).unwrap();
        let table = settings.lines().filter_map(|line| line.strip_prefix("| `"));
        let names = table.flat_map(|row| row.split('|').next().unwrap_or_default().split(", "));
        let names: Vec<_> = names.map(|name| name.trim_matches([' ', '`'])).collect();
        assert!(names.contains(&"rails") && names.contains(&"port"), "{names:?}");
        for name in names {
            let variable = format!("{PREFIX}{}", name.to_uppercase());
            let unknown = Err(SettingError::Unknown(variable.clone()));
            assert_ne!(read(&[(&variable, "1")]), unknown, "{variable}");
        }
    }

    #[test]
    fn what_is_unknown_or_malformed_is_named() {
        let unknown = read(&[("POLYRAIL_RIALS", "2")]).unwrap_err().to_string();
        assert!(unknown.contains("POLYRAIL_RIALS"), "{unknown}");
        for (name, value) in [
            ("POLYRAIL_BACKEND", "sofware"),
            ("POLYRAIL_DEVICES", ""),
            ("POLYRAIL_DEVICES", "a,"),
            ("POLYRAIL_DEVICES", "a,b,a"),
            ("POLYRAIL_DEVICES", "a:0"),
            ("POLYRAIL_DEVICES", "a@256"),
            ("POLYRAIL_DEVICES", "a:1@2,a:1@3"),
            ("POLYRAIL_RAILS", "0"),
            ("POLYRAIL_RAILS", "9"),
            ("POLYRAIL_RAILS", "two"),
            ("POLYRAIL_QUEUE_PAIRS_PER_RAIL", "17"),
            ("POLYRAIL_RAIL_WEIGHTS", "fast"),
            ("POLYRAIL_DEVICE_MBPS", ""),
            ("POLYRAIL_DEVICE_MBPS", "mlx5_0"),
            ("POLYRAIL_DEVICE_MBPS", "=1"),
            ("POLYRAIL_DEVICE_MBPS", "mlx5_0=0"),
            ("POLYRAIL_DEVICE_MBPS", "mlx5_0=1,"),
            ("POLYRAIL_SPLIT_THRESHOLD", "4G"),
            ("POLYRAIL_SPLIT_THRESHOLD", "-1"),
            ("POLYRAIL_SEPARATE_SIGNAL", "on"),
            ("POLYRAIL_TRAFFIC_CLASS", "256"),
            ("POLYRAIL_SERVICE_LEVEL", "16"),
            ("POLYRAIL_GID_INDEX", ""),
            ("POLYRAIL_RAIL_IDS", ""),
            ("POLYRAIL_RAIL_IDS", "0,1"),
            ("POLYRAIL_RAIL_IDS", "=1"),
            ("POLYRAIL_RAIL_IDS", "a=1,"),
            ("POLYRAIL_RAIL_IDS", "a=-1"),
            ("POLYRAIL_RAIL_IDS", "a=+1"),
            ("POLYRAIL_RAIL_IDS", "a=32768"),
            ("POLYRAIL_RAIL_IDS", "a=1:"),
            ("POLYRAIL_RAIL_IDS", "a=:1"),
            ("POLYRAIL_RAIL_IDS", "a=1:2:3"),
            ("POLYRAIL_RAIL_IDS", "a=1,b=2,a=3"),
            ("POLYRAIL_QP_TIMEOUT", "32"),
            ("POLYRAIL_RETRIES", "8"),
            ("POLYRAIL_CONNECT_TIMEOUT_MS", "0"),
            ("POLYRAIL_HEALING", "yes"),
            ("POLYRAIL_STALL_TIMEOUT_MS", "1.5"),
            ("POLYRAIL_RAIL_TIMEOUT_MS", "0"),
            ("POLYRAIL_LINK_TIMEOUT_MS", "-1"),
            ("POLYRAIL_INTERFACE", ""),
            ("POLYRAIL_FLUSH", "never"),
            ("POLYRAIL_LOG_LEVEL", "loud"),
        ] {
            let words = read(&[(name, value)]).unwrap_err().to_string();
            assert!(words.contains(name) && words.contains(&format!("{value:?}")), "{words}");
        }
    }
}
