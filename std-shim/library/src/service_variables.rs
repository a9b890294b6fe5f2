//! Environment variables that are not settings although their names begin like those.
//!
//! Kubernetes describes each Service of a namespace to its pods in environment variables. If a
//! Service is called `polyrail`, these begin with `POLYRAIL_`, the prefix of the plugins' settings:
//!
//! ```text
//! POLYRAIL_SERVICE_HOST=10.96.0.7
//! POLYRAIL_SERVICE_PORT=7471
//! POLYRAIL_SERVICE_PORT_LINKS=7471
//! POLYRAIL_PORT=tcp://10.96.0.7:7471
//! POLYRAIL_PORT_7471_TCP=tcp://10.96.0.7:7471
//! POLYRAIL_PORT_7471_TCP_PROTO=tcp
//! POLYRAIL_PORT_7471_TCP_PORT=7471
//! POLYRAIL_PORT_7471_TCP_ADDR=10.96.0.7
//! ```
//!
//! The variables of a Service `polyrail-nixl` begin with `POLYRAIL_NIXL_`.

/// The protocols of Services.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Returns whether Kubernetes made the variable, by its name and value.
///
/// ```
/// use polyrail::service_variables::is_service_variable;
///
/// assert!(is_service_variable("POLYRAIL_PORT", "tcp://10.96.0.7:7471"));
/// assert!(!is_service_variable("POLYRAIL_PORT", "7471"));
/// ```
pub fn is_service_variable(name: &str, value: &str) -> bool {
    is_host_or_port(name)
        || (name.ends_with("_PORT") && is_url(value))
        || name.match_indices("_PORT_").any(|(at, found)| is_numbered(&name[at + found.len()..]))
}

/// Returns whether the name is `..._SERVICE_HOST`, `..._SERVICE_PORT` or `..._SERVICE_PORT_NAME`.
fn is_host_or_port(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|suffix| name.ends_with(suffix))
        || name.contains("_SERVICE_PORT_")
}

/// Returns whether the value is a URL such as `tcp://10.96.0.7:7471`, which a port number is not.
fn is_url(value: &str) -> bool {
    value.split_once("://").is_some_and(|(protocol, _)| is_protocol(&protocol.to_uppercase()))
}

/// Returns whether the rest of a name is `NUMBER_PROTOCOL`, perhaps with `_PROTO`, `_PORT` or
/// `_ADDR`.
fn is_numbered(rest: &str) -> bool {
    let mut parts = rest.split('_');
    let [number, protocol, last, none] = [(); 4].map(|()| parts.next());
    number.is_some_and(|number| number.parse::<u16>().is_ok())
        && protocol.is_some_and(is_protocol)
        && last.is_none_or(|last| ["PROTO", "PORT", "ADDR"].contains(&last))
        && none.is_none()
}

fn is_protocol(name: &str) -> bool {
    PROTOCOLS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_services_are_recognized() {
        for (name, value) in [
            ("POLYRAIL_SERVICE_HOST", "10.96.0.7"),
            ("POLYRAIL_SERVICE_HOST", "fd00::7"),
            ("POLYRAIL_SERVICE_PORT", "7471"),
            ("POLYRAIL_SERVICE_PORT_LINKS", "7471"),
            ("POLYRAIL_PORT", "tcp://10.96.0.7:7471"),
            ("POLYRAIL_PORT", "sctp://[fd00::7]:7471"),
            ("POLYRAIL_PORT_7471_TCP", "tcp://10.96.0.7:7471"),
            ("POLYRAIL_PORT_7471_TCP_PROTO", "tcp"),
            ("POLYRAIL_PORT_7471_TCP_PORT", "7471"),
            ("POLYRAIL_PORT_53_UDP_ADDR", "10.96.0.7"),
            ("POLYRAIL_NIXL_SERVICE_HOST", "10.96.0.7"),
            ("POLYRAIL_NIXL_PORT", "udp://10.96.0.7:7471"),
            ("POLYRAIL_NIXL_PORT_7471_TCP_ADDR", "10.96.0.7"),
        ] {
            assert!(is_service_variable(name, value), "{name}={value}");
        }
    }

    #[test]
    fn settings_and_misspelt_settings_are_none() {
        for (name, value) in [
            ("POLYRAIL_PORT", "7471"),
            ("POLYRAIL_PORT", ""),
            ("POLYRAIL_PORT", "http://10.96.0.7"),
            ("POLYRAIL_SERVICE_LEVEL", "3"),
            ("POLYRAIL_PORTS", "tcp://10.96.0.7:7471"),
            ("POLYRAIL_PORT_7471", "7471"),
            ("POLYRAIL_PORT_7471_TCP_NAME", "x"),
            ("POLYRAIL_PORT_ONE_TCP", "x"),
            ("POLYRAIL_PORT_99999_TCP", "x"),
            ("POLYRAIL_RIALS", "2"),
        ] {
            assert!(!is_service_variable(name, value), "{name}={value}");
        }
    }
}
