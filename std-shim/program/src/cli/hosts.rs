//! Addresses and devices of commands that use RDMA devices.

use super::args::{DeviceArguments, TokenArguments};
use super::exit::Failure;
use super::output;
use polyrail_program::serve::DEFAULT_PORT;
use polyrail_program::session::ServerAddress;
use std::net::Ipv6Addr;

/// The protection domain of a device of this host.
#[cfg(feature = "verbs")]
pub(super) type HostDomain = polyrail::rdma::VerbsDomain;

/// Without verbs this type is a placeholder: [`open`] always fails.
#[cfg(not(feature = "verbs"))]
pub(super) type HostDomain = polyrail::nic::ProtectionDomain;

#[cfg(feature = "verbs")]
pub(super) fn open(arguments: &DeviceArguments) -> Result<Vec<HostDomain>, Failure> {
    use polyrail::rdma::{OpenOptions, open_devices_with};
    let options = OpenOptions { gid_index: arguments.gid_index };
    let opened = open_devices_with(&arguments.device, &options, |device, reason| {
        output::tell(&format!("polyrail: not used: {device}: {reason}\n"));
    });
    opened.map_err(|error| Failure::no_devices(&error))
}

/// Without verbs, RDMA devices cannot be opened.
#[cfg(not(feature = "verbs"))]
pub(super) fn open(_: &DeviceArguments) -> Result<Vec<HostDomain>, Failure> {
    Err(Failure::without_verbs())
}

/// Prints how many devices stay unused: a rail uses one device.
pub(super) fn note_unused(devices: usize, rails: usize) {
    let unused = match devices.saturating_sub(rails) {
        0 => return,
        1 => "one stays".to_owned(),
        several => format!("{several} stay"),
    };
    let (are, s) = if rails == 1 { ("is", "") } else { ("are", "s") };
    output::tell(&format!(
        "polyrail: of {devices} devices the last {unused} unused: there {are} {rails} rail{s}\n"
    ));
}

/// Returns the server at `HOST` or `HOST:PORT`, and reads its token.
pub(super) fn server(address: &str, token: &TokenArguments) -> Result<ServerAddress, Failure> {
    Ok(ServerAddress { address: with_port(address), token: token.read()? })
}

/// Returns `HOST:PORT`: adds [`DEFAULT_PORT`] if `address` has no port. An IPv6 address that has a
/// port is in brackets; without a port, the brackets may be missing.
pub(super) fn with_port(address: &str) -> String {
    // A scope such as `%eth0` is part of the address.
    let without_scope = address.split('%').next().unwrap_or_default();
    if without_scope.parse::<Ipv6Addr>().is_ok() {
        return format!("[{address}]:{DEFAULT_PORT}");
    }
    let after_brackets = address.rsplit_once(']').map_or(address, |(_, rest)| rest);
    if after_brackets.contains(':') {
        address.to_owned()
    } else {
        format!("{address}:{DEFAULT_PORT}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_where_none_is() {
        for (given, meant) in [
            ("10.0.0.2", "10.0.0.2:7471"),
            ("storage:9000", "storage:9000"),
            ("[fe80::1]", "[fe80::1]:7471"),
            ("[fe80::1]:9000", "[fe80::1]:9000"),
            ("*", "*:7471"),
            ("::1", "[::1]:7471"),
            ("::", "[::]:7471"),
            ("2001:db8::7471", "[2001:db8::7471]:7471"),
            ("fe80::1%eth0", "[fe80::1%eth0]:7471"),
            ("[fe80::1%eth0]:9000", "[fe80::1%eth0]:9000"),
            ("::ffff:10.0.0.2", "[::ffff:10.0.0.2]:7471"),
        ] {
            assert_eq!(with_port(given), meant);
        }
    }
}
