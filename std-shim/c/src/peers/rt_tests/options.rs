//! Options that cannot work are refused when an object is opened, not by a later call.

use super::*;
use crate::types::{Listener, POLYRAIL_ENDPOINT_FLUSHES, RailWeights};

type Change = fn(&mut EndpointOptions);

/// Opens an object with changed options, and returns the code and the text of its error.
fn opened(domain: *mut Domain, kind: For, change: Change) -> (Code, String) {
    let mut peers = ptr::null_mut();
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    unsafe {
        let mut options = EndpointOptions { size: size_of::<EndpointOptions>() as u32, ..zeroed() };
        change(&mut options);
        let code = match kind {
            For::Requests => polyrail_peers_open(domain, &raw const options, &raw mut peers),
            For::Messages => polyrail_messages_open(domain, &raw const options, 2, &raw mut peers),
        };
        match code {
            Code::Ok => ok(polyrail_peers_close(peers)),
            _ => assert!(peers.is_null(), "a handle is stored though the call returned {code:?}"),
        }
        (code, CStr::from_ptr(polyrail_last_error()).to_str().unwrap().to_owned())
    }
}

fn reroute(options: &mut EndpointOptions) {
    options.rail_failure = RailFailure::Reroute as u32;
}

#[test]
fn options_that_cannot_work_are_refused_at_open() {
    for_both(refuse_at_open);
}

fn refuse_at_open(kind: For) {
    const OF_BOTH: &[(Change, Code, &str)] = &[
        (|o| o.rails = 9, Code::Argument, "9 rails"),
        (|o| o.rail_weights = RailWeights::Equal as u32, Code::Ok, ""),
        (|o| o.rail_weights = 5, Code::Argument, "rail_weights is 5"),
        (|o| o.device_mbps[0] = 100_000, Code::Ok, ""),
        (|o| o.device_mbps[7] = 1, Code::Argument, "device_mbps[7] is 1"),
        (|o| (o.rails, o.min_rails) = (2, 3), Code::Ok, ""),
        (
            |o| {
                reroute(o);
                (o.rails, o.min_rails) = (2, 3);
            },
            Code::Argument,
            "min_rails is 3",
        ),
        (
            |o| {
                reroute(o);
                o.rails = 1;
            },
            Code::Argument,
            "single rail",
        ),
    ];
    const OF_REQUESTS: &[(Change, Code, &str)] = &[
        (|o| o.max_msg_size = 100, Code::Argument, "max_msg_size 100"),
        (|o| o.max_inline_data = 1 << 20, Code::Device, "1048576 bytes of inline data"),
        (
            |o| {
                reroute(o);
                o.max_inline_data = 32;
            },
            Code::Argument,
            "max_inline_data is 32",
        ),
        (|o| o.max_inline_data = 32, Code::Ok, ""),
    ];
    const OF_MESSAGES: &[(Change, Code, &str)] = &[
        (|o| o.queue_pairs_per_rail = 17, Code::Argument, "17 queue pairs"),
        (|o| o.flags = POLYRAIL_ENDPOINT_FLUSHES, Code::Ok, ""),
    ];
    let (domain, peers) = open(kind);
    let own = if kind == For::Requests { OF_REQUESTS } else { OF_MESSAGES };
    for (change, code, words) in OF_BOTH.iter().chain(own) {
        let (returned, said) = opened(domain, kind, *change);
        assert_eq!(returned, *code, "{words}: {said}");
        assert!(said.contains(words), "{said}");
    }
    ok(polyrail_peers_close(peers));
    ok(polyrail_domain_close(domain));
}

#[test]
fn addresses_without_a_host_or_a_port_are_refused_at_open() {
    let code = |address: &CStr| {
        let mut link = ptr::null_mut::<Link>();
        // SAFETY: all pointers are to what they should be.
        unsafe { polyrail_link_open(address.as_ptr(), ptr::null(), &raw mut link) }
    };
    for address in [c"10.0.0.2", c"", c":7471", c"far:0", c"far:65536", c"127.0.0.1:1,", c"a:1,b"] {
        assert_eq!(code(address), Code::Argument, "{address:?}");
    }
    let mut listener = ptr::null_mut::<Listener>();
    for address in [c"127.0.0.1", c"", c"*", c":7471", c"127.0.0.1:65536"] {
        // SAFETY: all pointers are to what they should be.
        let code =
            unsafe { polyrail_listener_open(address.as_ptr(), ptr::null(), &raw mut listener) };
        assert_eq!(code, Code::Argument, "{address:?}");
    }
}
