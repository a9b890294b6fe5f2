//! Names of devices that probably mean a device of another backend.

use polyrail_nic_parts::interface::index_of;
use std::net::IpAddr;

/// A name that is not that of an RDMA device, and probably means a device of another backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtherBackend {
    /// A network interface of this host has the name.
    #[error("{name} is a network interface, not an RDMA device: use the backend tcp (tcp:{name})")]
    Interface {
        /// The name.
        name: String,
    },
    /// The name is an address.
    #[error("{name} is an address, not an RDMA device: use the backend tcp (tcp:{name})")]
    Address {
        /// The address.
        name: String,
    },
    /// The name begins with that of a backend in other case, or is only that of a backend.
    #[error("{name:?} is not a device: write {write}")]
    Spelling {
        /// The name.
        name: String,
        /// How the device is written.
        write: String,
    },
}

impl OtherBackend {
    /// Returns what a name that is not that of an RDMA device probably means.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let spelling = |write: String| Some(Self::Spelling { name: name.into(), write });
        let (backend, rest) = name.split_once(':').unwrap_or((name, ""));
        match (&*backend.to_ascii_lowercase(), rest) {
            ("software", "") if backend != "software" => {
                return spelling("software or software:NAME".into());
            }
            ("software", rest) if backend != "software" => {
                return spelling(format!("software:{rest}"));
            }
            ("tcp", "") => {
                return spelling("tcp:INTERFACE or tcp:ADDRESS, such as tcp:eth0".into());
            }
            ("tcp", rest) if backend != "tcp" => return spelling(format!("tcp:{rest}")),
            _ => {}
        }
        // Behind it is the address for peers.
        let own = name.split_once('@').map_or(name, |(own, _)| own);
        let name = name.to_owned();
        match own.parse::<IpAddr>() {
            Ok(_) => Some(Self::Address { name }),
            // The kernel cuts a name off at a colon, as that of an alias.
            Err(_) if own.contains(':') => None,
            Err(_) => index_of(own).map(|_| Self::Interface { name }),
        }
    }
}

#[cfg(test)]
mod rt_tests {
    use super::*;

    #[test]
    fn names_of_other_backends_are_answered_with_what_to_write() {
        let tcp = "tcp:INTERFACE or tcp:ADDRESS, such as tcp:eth0";
        for (name, text) in [
            ("lo", "lo is a network interface, not an RDMA device: use the backend tcp (tcp:lo)"),
            (
                "127.0.0.1",
                "127.0.0.1 is an address, not an RDMA device: use the backend tcp (tcp:127.0.0.1)",
            ),
            ("::1", "::1 is an address, not an RDMA device: use the backend tcp (tcp:::1)"),
            ("tcp", &format!("\"tcp\" is not a device: write {tcp}")),
            ("TCP:", &format!("\"TCP:\" is not a device: write {tcp}")),
            ("TCP:eth0", "\"TCP:eth0\" is not a device: write tcp:eth0"),
            ("Software", "\"Software\" is not a device: write software or software:NAME"),
            ("SOFTWARE:a", "\"SOFTWARE:a\" is not a device: write software:a"),
        ] {
            assert_eq!(OtherBackend::of(name).unwrap().to_string(), text, "{name}");
        }
        for name in
            ["", ":", "mlx5_0", "no such interface", "software", "software:", "tcp:eth0", "lo:1"]
        {
            assert_eq!(OtherBackend::of(name), None, "{name}");
        }
    }
}
