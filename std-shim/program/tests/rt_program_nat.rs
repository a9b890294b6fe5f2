//! Two hosts behind a router that translates their addresses and ports: neither can send to the
//! other's own address. In network namespaces, so it takes iproute2, nftables and root.

mod program_support;

use program_support::namespaces::{Namespaces, ip};
use program_support::server::{Server, assert_ok};
use program_support::*;
use std::fs;
use std::io::Write;
use std::process::Stdio;

/// What the router does: peers reach the device of the first host, whose port is 7500, at
/// 198.51.100.1 and .3, and that of the second, with its server, at 198.51.100.2. Each host sends
/// from the address of the first, or of the second. Nothing else passes.
const RULES: &str = "table ip polyrail {
  chain before { type nat hook prerouting priority dstnat;
    ip daddr { 198.51.100.1, 198.51.100.3 } tcp dport 7601 dnat to 10.1.0.2:7500
    ip daddr 198.51.100.2 tcp dport 7602 dnat to 10.2.0.2:7500
    ip daddr 198.51.100.2 tcp dport 7471 dnat to 10.2.0.2:7471
  }
  chain between { type filter hook forward priority filter; policy drop;
    ct status dnat accept
  }
  chain after { type nat hook postrouting priority srcnat;
    ip saddr 10.1.0.2 snat to 198.51.100.1
    ip saddr 10.2.0.2 snat to 198.51.100.2
  }
}";

/// Makes two hosts, and the router between them. `None`: the system has not what it takes, or does
/// not permit it.
fn network() -> Option<Namespaces<3>> {
    let network = Namespaces::new()?;
    let [a, b, router] = &network.0;
    let mut made = true;
    for (host, to, net) in [(a, "to-a", "10.1.0"), (b, "to-b", "10.2.0")] {
        let peer = format!("type veth peer name to-r netns {host}");
        made = made
            && ip(&format!("-n {router} link add {to} {peer}"))
            && ip(&format!("-n {router} addr add {net}.1/24 dev {to}"))
            && ip(&format!("-n {router} link set {to} up"))
            && ip(&format!("-n {host} addr add {net}.2/24 dev to-r"))
            && ip(&format!("-n {host} link set to-r up"))
            && ip(&format!("-n {host} link set lo up"))
            && ip(&format!("-n {host} route add default via {net}.1"));
    }
    made = made && {
        let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward && exec nft -f -";
        let mut command = network.command(2, "sh");
        let command = command.args(["-c", forward]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let written = child.stdin.take().unwrap().write_all(RULES.as_bytes());
        child.wait().unwrap().success() && written.is_ok()
    };
    made.then_some(network)
}

#[test]
fn hosts_whose_addresses_are_translated_meet_at_those_that_they_advertise() {
    let Some(network) = network() else {
        eprintln!("skipped: a router between namespaces takes iproute2, nftables and root");
        return;
    };
    let place = Place::with_source((8 << 20) + 5);
    let mut serve = network.on(1, &place);
    let device = "tcp:to-r@198.51.100.2:7602";
    let _server =
        Server::run(serve.args(["serve", "--device", device, "--tcp-port", "7500", "dst"]));
    // Of two queue pairs, the one with the lesser address connects.
    for own in ["198.51.100.1:7601", "198.51.100.3:7601"] {
        let device = format!("tcp:to-r@{own}");
        let mut copy = network.on(0, &place);
        copy.args(["copy", "--to", "198.51.100.2", "--device", &device, "--tcp-port", "7500"]);
        assert_ok(&copy.args(["--rails", "4", "src"]).output().unwrap());
        assert!(fs::read(place.path("dst")).unwrap() == fs::read(place.path("src")).unwrap());
        fs::remove_file(place.path("dst")).unwrap();
    }
}
