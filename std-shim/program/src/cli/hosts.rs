//! Addresses and devices of commands that reach another host.

use super::args::{DeviceArguments, TokenArguments};
use super::exit::Failure;
use super::output;
use polyrail::chain::Chain;
use polyrail::printable;
use polyrail_program::devices::{self, OpenedDevices, Reached};
use polyrail_program::serve::DEFAULT_PORT;
use polyrail_program::session::{PeerTimeouts, ServerAddress};
use std::error::Error;
use std::net::Ipv6Addr;

/// Opens the devices that reach a server, and prints those that this number of rails uses unless
/// `quiet`.
pub(super) fn reach(
    server: &ServerAddress,
    arguments: &DeviceArguments,
    rails: usize,
    timeouts: &PeerTimeouts,
    quiet: bool,
) -> Result<OpenedDevices, Failure> {
    let Reached { devices, why_tcp } =
        devices::reach(server, &arguments.choice(), timeouts, note_not_used)?;
    if !quiet {
        let names = devices.names();
        let names = names[..names.len().min(rails)].join(", ");
        let why =
            why_tcp.map_or_else(String::new, |why| format!(" ({})", printable::escaped(&why)));
        let backend = devices.backend();
        output::tell(&format!("polyrail: over {backend}, on {names}{why}\n"));
    }
    Ok(devices)
}

/// Prints why a device that was not named is not used.
pub(super) fn note_not_used(device: &str, reason: &dyn Error) {
    let reason = Chain(reason).to_string();
    let reason = printable::escaped(&reason);
    output::tell(&format!("polyrail: not used: {device}: {reason}\n"));
}

/// Evaluates an expression with the domains of opened devices, of whichever backend they are.
macro_rules! with_domains {
    ($devices:expr, $domains:ident => $work:expr) => {
        match $devices {
            #[cfg(feature = "verbs")]
            polyrail_program::devices::OpenedDevices::Verbs($domains) => $work,
            polyrail_program::devices::OpenedDevices::Tcp($domains) => $work,
        }
    };
}
pub(super) use with_domains;

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
    let address = of_server(address).map_err(|why| Failure::usage(&why))?;
    Ok(ServerAddress { address, token: token.read()? })
}

/// Returns `HOST:PORT`. Refuses what `scp` and `rsync` would accept.
fn of_server(address: &str) -> Result<String, String> {
    if let Some((_, host)) = address.split_once('@') {
        return Err(format!("{address}: write {host}, without a user: polyrail has no users"));
    }
    let with_port = with_port(address);
    let port = with_port.rsplit_once(':').map(|(_, port)| port);
    if port.is_some_and(|port| port.parse::<u16>().is_ok()) {
        Ok(with_port)
    } else {
        let why = "after the colon of --to comes a TCP port; the server chooses the directory";
        Err(format!("{address}: {why}"))
    }
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
    fn users_and_directories_are_refused_with_what_to_write() {
        let port = "after the colon of --to comes a TCP port; the server chooses the directory";
        let user = "write 10.0.0.2, without a user: polyrail has no users";
        for (given, why) in [
            ("10.0.0.2:data", port),
            ("10.0.0.2:/data", port),
            ("10.0.0.2:70000", port),
            ("10.0.0.2:", port),
            ("[::1]:data", port),
            ("root@10.0.0.2", user),
        ] {
            assert_eq!(of_server(given), Err(format!("{given}: {why}")));
        }
    }

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
            assert_eq!(of_server(given), Ok(meant.to_owned()));
        }
    }
}
