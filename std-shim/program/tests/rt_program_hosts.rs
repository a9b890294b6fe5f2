//! `serve` on one host, and `copy` on another, over TCP: two network namespaces joined by links.

mod program_support;

use program_support::namespaces::{Namespaces, ip};
use program_support::server::{LONG, Server, assert_ok};
use program_support::*;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Two network namespaces, joined by links.
struct Hosts(Namespaces<2>);

impl Hosts {
    /// Makes `links` links, with addresses `10.200.LINK.1` and `.2`. Both hosts also have a network
    /// of the same addresses that does not join them, as those of containers. `None`, with the
    /// reason on stderr: the system has no `ip`, or does not permit it.
    fn new(links: usize) -> Option<Self> {
        let skipped = || eprintln!("skipped: network namespaces take iproute2 and root");
        let Some(namespaces) = Namespaces::new() else {
            skipped();
            return None;
        };
        let hosts = Self(namespaces);
        let [a, b] = &hosts.0.0;
        let mut made = true;
        for link in 0..links {
            let peer = format!("type veth peer name to-a{link} netns {b}");
            made = made && ip(&format!("-n {a} link add to-b{link} {peer}"));
            for (host, interface, at) in [(a, "to-b", 1), (b, "to-a", 2)] {
                let address = format!("10.200.{link}.{at}/24");
                made = made
                    && ip(&format!("-n {host} addr add {address} dev {interface}{link}"))
                    && ip(&format!("-n {host} link set {interface}{link} up"));
            }
        }
        for host in [a, b] {
            made = made
                && ip(&format!("-n {host} link add inner type veth peer name container"))
                && ip(&format!("-n {host} link set container up"))
                && ip(&format!("-n {host} addr add 172.30.0.1/16 dev inner"))
                && ip(&format!("-n {host} link set inner up"))
                && ip(&format!("-n {host} link set lo up"));
        }
        if !made {
            skipped();
            return None;
        }
        for link in 0..links {
            hosts.wait_for_carrier(0, &format!("to-b{link}"));
            hosts.wait_for_carrier(1, &format!("to-a{link}"));
        }
        hosts.wait_for_carrier(1, "inner");
        Some(hosts)
    }

    /// Runs `ip ARGUMENTS` on a host, which must succeed.
    #[track_caller]
    fn ip(&self, host: usize, line: &str) {
        assert!(ip(&format!("-n {} {line}", self.0.0[host])), "{line}");
    }

    /// Waits for the kernel, which notes a moment later that a link has carrier.
    fn wait_for_carrier(&self, host: usize, interface: &str) {
        let begin = Instant::now();
        let is_up = || {
            let show = ["-n", &self.0.0[host], "link", "show", interface];
            stdout(&Command::new("ip").args(show).output().unwrap()).contains("state UP")
        };
        while !is_up() {
            assert!(begin.elapsed() < LONG);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the program as a command on a host.
    fn on(&self, host: usize, place: &Place) -> Command {
        self.0.on(host, place)
    }

    /// Copies `src` to the server on the second host, which writes `dst`, and checks the bytes.
    /// Returns the report.
    #[track_caller]
    fn copy(&self, place: &Place, to: &str, options: &[&str]) -> Value {
        let mut copy = self.on(0, place);
        let output = copy.args(["copy", "--to", to, "--json"]).args(options).arg("src").output();
        let output = output.unwrap();
        assert_ok(&output);
        assert!(fs::read(place.path("dst")).unwrap() == fs::read(place.path("src")).unwrap());
        fs::remove_file(place.path("dst")).unwrap();
        json(&output)
    }
}

#[test]
fn two_hosts_use_every_interface_that_shares_a_network() {
    let Some(hosts) = Hosts::new(3) else { return };
    let place = Place::with_source((8 << 20) + 5);
    let server = Server::run(hosts.on(1, &place).args(["serve", "dst"]));
    let names = server.line("polyrail: listening at ");
    assert!(names.ends_with("on tcp:to-a0, tcp:to-a1, tcp:to-a2, tcp:inner, tcp:lo"), "{names}");
    for (to, first) in [("10.200.0.2", "tcp:to-b0"), ("10.200.2.2", "tcp:to-b0")] {
        let report = hosts.copy(&place, to, &["--rails", "6"]);
        assert_eq!(report["devices"], 3, "{report}");
        let rails = report["sender"]["rails"].as_array().unwrap();
        assert_eq!(rails[0]["device"], first, "{report}");
        assert!(rails[..6].iter().all(|rail| rail["bytes"].as_u64().unwrap() > 0), "{report}");
    }
    let report = hosts.copy(&place, "10.200.1.2", &["--device", "tcp:to-b1", "--rails", "2"]);
    assert_eq!(report["devices"], 1, "{report}");
    assert_eq!(report["sender"]["rails"][1]["device"], "tcp:to-b1", "{report}");
}

/// Hosts whose routers are on the hosts have their addresses on loopback or dummy interfaces.
#[test]
fn an_address_that_no_link_has_is_reached_by_its_route() {
    let Some(hosts) = Hosts::new(1) else { return };
    let place = Place::with_source((1 << 20) + 5);
    let mut near = "lo";
    for host in [0, 1] {
        if ip(&format!("-n {} link add of-host type dummy", hosts.0.0[host])) {
            hosts.ip(host, "link set of-host up");
            near = "of-host";
        } else {
            eprintln!("skipped: dummy interfaces, which this system has not");
        }
    }
    for (interface, net) in [("lo", "10.9.0"), (near, "10.9.1")] {
        for (host, own, other) in [(0, 1, 2), (1, 2, 1)] {
            hosts.ip(host, &format!("addr add {net}.{own}/32 dev {interface}"));
            let via = format!("via 10.200.0.{other} src {net}.{own}");
            hosts.ip(host, &format!("route add {net}.{other}/32 {via}"));
        }
        let device = format!("tcp:{net}.2");
        let _server = Server::run(hosts.on(1, &place).args(["serve", "--device", &device, "dst"]));
        let device = format!("tcp:{net}.1");
        hosts.copy(&place, &format!("{net}.2"), &["--device", &device, "--rails", "2"]);
        // One side of a connection may have a link's address.
        hosts.copy(&place, &format!("{net}.2"), &["--device", "tcp:to-b0", "--rails", "2"]);
    }
}

#[test]
fn the_device_of_a_server_follows_its_address_and_goes_with_it() {
    let Some(hosts) = Hosts::new(1) else { return };
    let place = Place::with_source((1 << 20) + 5);
    let port = ["serve", "--tcp-port", "7500", "dst"];
    let server = Server::run(hosts.on(1, &place).args(port));
    let idle = server.descriptors();
    let copy = || hosts.copy(&place, "10.200.0.2", &[]);
    copy();
    hosts.ip(1, "link set to-a0 down");
    hosts.ip(1, "link set to-a0 name bond0");
    hosts.ip(1, "link set bond0 up");
    hosts.wait_for_carrier(1, "bond0");
    let report = copy();
    assert_eq!(report["devices"], 1, "{report}");
    for number in 1..5 {
        hosts.ip(1, &format!("addr add 10.201.{number}.2/24 dev bond0"));
        copy();
        hosts.ip(1, &format!("addr del 10.201.{number}.2/24 dev bond0"));
    }
    copy();
    let begin = Instant::now();
    while server.descriptors() > idle {
        assert!(begin.elapsed() < LONG, "{} of {idle} descriptors", server.descriptors());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel lists the newest IPv6 address first.
#[test]
fn an_interface_is_used_with_the_address_that_stays() {
    let Some(hosts) = Hosts::new(1) else { return };
    for (host, interface, own) in [(0, "to-b0", 1), (1, "to-a0", 2)] {
        hosts.ip(host, &format!("-4 addr flush dev {interface}"));
        let add = format!("addr add fd00::{own}/64 dev {interface} nodad");
        if !ip(&format!("-n {} {add}", hosts.0.0[host])) {
            eprintln!("skipped: this system has no IPv6");
            return;
        }
    }
    let expires = "dev to-a0 nodad valid_lft 3000 preferred_lft";
    hosts.ip(1, &format!("addr add fd00::d/64 {expires} 2000"));
    hosts.ip(1, &format!("addr add fd00::e/64 {expires} 0"));
    let place = Place::with_source((1 << 20) + 5);
    let _server = Server::run(hosts.on(1, &place).args(["serve", "--device", "tcp:to-a0", "dst"]));
    hosts.copy(&place, "fd00::2", &["--rails", "2"]);
    hosts.ip(1, "addr del fd00::d/64 dev to-a0");
    hosts.ip(1, "addr del fd00::e/64 dev to-a0");
    hosts.copy(&place, "fd00::2", &["--rails", "2"]);
}
