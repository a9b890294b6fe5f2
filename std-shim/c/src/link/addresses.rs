//! Addresses as text: their form, and those at which peers reach a listener.

use crate::arguments::{Answer, text};
use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::types::POLYRAIL_MAX_ADDRESSES;
use polyrail::interfaces::{InterfaceError, InterfaceFilter, reachable_at};
use std::ffi::{c_char, c_void};
use std::net::SocketAddr;

/// Returns the first addresses, separated by commas.
fn listed(addresses: &[SocketAddr]) -> String {
    let first = addresses.iter().take(POLYRAIL_MAX_ADDRESSES);
    first.map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

fn addresses(interface: Option<&str>, port: u32) -> Result<String, Refusal> {
    let Ok(port) = u16::try_from(port) else {
        return refuse(Code::Argument, format_args!("port {port} is above 65535"));
    };
    let filter = interface.filter(|name| !name.is_empty());
    let filter = filter.map_or_else(InterfaceFilter::all, InterfaceFilter::named);
    let found = reachable_at(port, &filter).map_err(|error| {
        let code = match error {
            InterfaceError::NotSelected { .. } => Code::Argument,
            _ => Code::System,
        };
        Failure::of(code, &error)
    });
    Ok(listed(&found?))
}

/// Refuses an address that is not `HOST:PORT`, which no lookup finds, with a port of at least
/// `least`: 0 is a port for a listener only.
pub(super) fn check_form(address: &str, least: u16) -> Result<(), Refusal> {
    let port = match address.rsplit_once(':') {
        None | Some(("", _)) => None,
        Some((_, port)) => port.parse::<u16>().ok(),
    };
    match port.filter(|port| *port >= least) {
        Some(_) => Ok(()),
        None => {
            let words = format!(
                "the address {address:?} is not HOST:PORT with a port from {least} to 65535, such \
                 as \"10.0.0.2:7471\""
            );
            refuse(Code::Argument, words)
        }
    }
}

/// Stores the addresses at which other hosts reach a listener of this host at `port`, such as
/// "10.0.0.2:7471,10.0.1.2:7471", for polyrail_link_open, with a 0 byte at the end, and in
/// `length` the number of bytes without it: at most POLYRAIL_MAX_ADDRESSES addresses, the best
/// first, which take at most POLYRAIL_ADDRESSES_BYTES. Link-local addresses, and those of bridges
/// without a NIC and of interfaces without carrier, are last. Loopback addresses are left out, and
/// without any other address the call fails, unless `interface` names the network interface. NULL
/// or "": all interfaces. POLYRAIL_CODE_ARGUMENT: no network interface of this name has an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_addresses(
    interface: *const c_char,
    port: u32,
    addresses: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Code {
    call(|| {
        // SAFETY: the caller's promise.
        let answer = unsafe { Answer::new(addresses.cast::<c_void>(), capacity, length) }?;
        // SAFETY: the caller's promise.
        let interface = unsafe { text(interface, "interface") }?;
        answer.give_with(self::addresses(interface, port)?.as_bytes(), &[0])
    })
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::types::POLYRAIL_ADDRESSES_BYTES;

    #[test]
    fn the_longest_list_fits_into_its_room() {
        let longest: SocketAddr =
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535".parse().unwrap();
        let list = listed(&[longest; POLYRAIL_MAX_ADDRESSES + 1]);
        assert_eq!(list.split(',').count(), POLYRAIL_MAX_ADDRESSES);
        assert!(list.len() < POLYRAIL_ADDRESSES_BYTES, "{}", list.len());
    }

    #[test]
    fn wrong_arguments_are_refused_with_words() {
        let Err(Refusal::Failure(failure)) = addresses(Some("lo"), 65536) else { panic!() };
        assert!(failure.words.contains("65536"), "{}", failure.words);
        let Err(Refusal::Failure(failure)) = addresses(Some("no such"), 1) else { panic!() };
        assert!(failure.words.contains("lo"), "{}", failure.words);
        assert_eq!(failure.code, Code::Argument);
        let Ok(list) = addresses(Some("lo"), 7471) else { panic!() };
        assert!(list.split(',').any(|address| address == "127.0.0.1:7471"), "{list}");
    }
}
