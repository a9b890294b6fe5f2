//! Interfaces and addresses that change while they are in use. They are in network namespaces, so
//! these tests take iproute2 and root.

mod namespace;
mod support;

use namespace::Namespace;
use polyrail_core::verbs::{Opcode, SendRequest, WcStatus};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::interface::{InterfaceAddress, addresses, is_dummy};
use polyrail_nic_parts::options::ConnectOptions;
use polyrail_nic_parts::state::QpState;
use polyrail_tcp_nic::{Device, DeviceOptions, OpenError, PORT, connect_pair};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::{LONG, Side, exchange, pair, request, wait};

fn open(name: &str) -> Result<Device, OpenError> {
    Device::open(name, &DeviceOptions::default())
}

/// Opens the device of a name, whose port is up.
fn open_up(name: &str) -> Device {
    let device = open(name).unwrap();
    wait("carrier", || device.is_up());
    while device.next_event().is_some() {}
    device
}

/// Connects two new queue pairs of the devices, whose requests have seconds to make progress.
fn connected(near: &Device, far: &Device) -> (Side, Side) {
    connected_with(near, far, &ConnectOptions::default())
}

/// Connects two new queue pairs of the devices for requests that are to fail, after 134 ms without
/// progress. On a busy machine an I/O thread may do nothing for as long.
fn connected_to_fail(near: &Device, far: &Device) -> (Side, Side) {
    let options = ConnectOptions { timeout: 14, retry_cnt: 1, ..ConnectOptions::default() };
    connected_with(near, far, &options)
}

/// Connects two new queue pairs for requests that are to fail later: one has arrived.
fn connected_to_fail_later(near: &Device, far: &Device) -> (Side, Side) {
    let begin = Instant::now();
    loop {
        let (near, mut far) = connected_to_fail(near, far);
        far.post(far.write_to(&near.buffer, 0, 8)).unwrap();
        let status = far.completion().status;
        if status == WcStatus::SUCCESS {
            return (near, far);
        }
        // The machine was busy with something else.
        assert!(status == WcStatus::RETRY_EXC_ERR && begin.elapsed() < LONG, "{status:?}");
    }
}

fn connected_with(near: &Device, far: &Device, options: &ConnectOptions) -> (Side, Side) {
    let (near, far) = (Side::on(near), Side::on(far));
    connect_pair(&near.qp, &far.qp, options).unwrap();
    (near, far)
}

/// Waits for the event of the port, which is the only one.
fn event(device: &Device, is_up: bool) {
    let port = PORT;
    let event = match is_up {
        true => AsyncEvent::PortActive { port },
        false => AsyncEvent::PortError { port },
    };
    let mut found = None;
    wait("an event", || {
        found = device.next_event();
        found.is_some()
    });
    assert_eq!((found, device.is_up()), (Some(event), is_up));
}

/// A link with two addresses of this host, each a device, and connections that do not use it.
struct Link {
    near: Device,
    far: Device,
    others: (Side, Side),
    namespace: Namespace,
}

impl Link {
    fn new() -> Option<Self> {
        let mut namespace = Namespace::enter()?;
        namespace.link("eth0");
        namespace.run("ip addr add 10.99.0.1/32 dev eth0");
        namespace.run("ip addr add 10.99.1.1/32 dev lo");
        let (near, far) = (open_up("10.99.0.1"), open_up("10.99.1.1"));
        Some(Self { near, far, others: pair("127.0.0.1", "127.0.0.2"), namespace })
    }

    /// Takes the address away by a command, and gives it back by another.
    fn lose_the_address(&mut self, away: &str, back: &[&str]) {
        let (mut near, mut far) = connected(&self.near, &self.far);
        exchange(&mut near, &mut far, 1);
        let (cut, mut failing) = connected_to_fail_later(&self.near, &self.far);
        let options = ConnectOptions { timeout: 17, retry_cnt: 1, ..ConnectOptions::default() };
        let (_dry, mut waiting) = connected_with(&self.near, &self.far, &options);
        waiting
            .post(SendRequest { sge: waiting.buffer.sge(0, 8), ..request(Opcode::Send, 7) })
            .unwrap();
        // It waits although its limit is over: the peer has answered that it has no receive.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(waiting.poll().is_empty());
        self.namespace.run(away);
        event(&self.near, false);
        // Acknowledgements cannot arrive any more.
        failing.post(failing.write_to(&cut.buffer, 0, 8)).unwrap();
        assert_eq!(failing.completion().status, WcStatus::RETRY_EXC_ERR);
        assert_eq!(failing.qp.state(), QpState::Err);
        // Nor can a receive that is posted be announced.
        let mut waiting = waiting;
        assert_eq!(waiting.completion().status, WcStatus::RETRY_EXC_ERR);
        let (mut late, to) = connected_to_fail(&self.near, &self.far);
        late.post(late.write_to(&to.buffer, 0, 8)).unwrap();
        assert_eq!(late.completion().status, WcStatus::RETRY_EXC_ERR);
        let (one, other) = &mut self.others;
        exchange(one, other, 2);
        for command in back {
            self.namespace.run(command);
        }
        event(&self.near, true);
        let (mut near, mut far) = connected(&self.near, &self.far);
        exchange(&mut near, &mut far, 3);
        let (one, other) = &mut self.others;
        exchange(one, other, 4);
    }
}

#[test]
fn a_device_that_loses_its_address_is_down_until_it_is_back() {
    let Some(mut link) = Link::new() else { return };
    // It is the interface's only one, or one of two.
    link.lose_the_address(
        "ip addr del 10.99.0.1/32 dev eth0",
        &["ip addr add 10.99.0.1/32 dev eth0"],
    );
    link.lose_the_address(
        "ip addr add 10.99.0.77/32 dev eth0 && ip addr del 10.99.0.1/32 dev eth0",
        &["ip addr add 10.99.0.1/32 dev eth0"],
    );
}

#[test]
fn a_device_whose_interface_is_deleted_follows_its_address_to_another_one() {
    let Some(mut link) = Link::new() else { return };
    link.lose_the_address(
        "ip link del eth0",
        &[
            "ip link add eth7 type veth peer name eth7-peer",
            "ip link set eth7 up",
            "ip link set eth7-peer up",
            "ip addr add 10.99.0.1/32 dev eth7",
        ],
    );
}

#[test]
fn a_device_stays_up_when_its_interface_is_renamed() {
    let Some(mut link) = Link::new() else { return };
    let (mut near, mut far) = connected(&link.near, &link.far);
    exchange(&mut near, &mut far, 1);
    if !link.namespace.succeeds("ip link set eth0 name wan0") {
        // Linux before 6.2 renames only interfaces that are down.
        link.namespace.run("ip link set eth0 down");
        event(&link.near, false);
        link.namespace.run("ip link set eth0 name wan0 && ip link set wan0 up");
        event(&link.near, true);
    }
    exchange(&mut near, &mut far, 2);
    let (mut late, mut to) = connected(&link.near, &link.far);
    exchange(&mut late, &mut to, 3);
    assert!(link.near.is_up());
    link.namespace.run("ip link set wan0 down");
    event(&link.near, false);
    assert!(matches!(open("eth0"), Err(OpenError::NotFound { .. })));
    assert_eq!(open("wan0").unwrap().address().ip(), link.near.address().ip());
}

#[test]
fn a_dummy_interface_is_known_by_its_driver() {
    let Some(mut namespace) = Namespace::enter() else { return };
    namespace.run("ip link add pair0 type veth peer name pair1");
    assert!(!is_dummy("pair0").unwrap());
    if namespace.succeeds("ip link add other0 type dummy") {
        assert!(is_dummy("other0").unwrap());
    } else {
        eprintln!("skipped: this kernel has no dummy interfaces");
    }
}

#[test]
fn an_interface_without_an_address_is_refused_until_it_has_one() {
    let Some(mut namespace) = Namespace::enter() else { return };
    namespace.run("ip link add eth0 type veth peer name eth0-peer");
    let error = open("eth0").unwrap_err();
    assert!(matches!(&error, OpenError::NoAddress { interface } if interface == "eth0"));
    namespace.run("ip addr add 10.99.0.1/32 dev eth0");
    assert!(!open("eth0").unwrap().is_up(), "the interface is down");
}

/// The ports of a device's listener are those of the system: each is there once for an address.
#[test]
fn a_port_that_is_taken_is_refused_with_its_address_and_free_later() {
    let _turn = namespace::turn();
    let near = open("127.7.0.1").unwrap();
    let port = near.address().port();
    let options = DeviceOptions { port, ..DeviceOptions::default() };
    let error = Device::open("127.7.0.1", &options).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on 127.7.0.1:{port}"));
    let OpenError::Listen { source, .. } = error else { panic!("{error:?}") };
    assert_eq!(source.raw_os_error(), Some(libc::EADDRINUSE));
    // Another address has the same port.
    let far = Device::open("127.7.0.2", &options).unwrap();
    let (mut one, mut other) = (Side::on(&near), Side::on(&far));
    connect_pair(&one.qp, &other.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut one, &mut other, 1);
    // It is free as soon as it is closed, although its connections were.
    drop((near, one));
    let near = Device::open("127.7.0.1", &options).unwrap();
    let (mut one, mut other) = (Side::on(&near), Side::on(&far));
    connect_pair(&one.qp, &other.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut one, &mut other, 2);
}

/// Unlike a link-local address, it is the same one wherever it is.
#[test]
fn an_address_of_several_interfaces_is_one_device() {
    let Some(mut namespace) = Namespace::enter() else { return };
    namespace.link("eth0");
    for place in ["10.99.0.1/32 dev lo", "10.99.0.1/24 dev eth0", "10.99.0.1/32 dev eth0"] {
        namespace.run(&format!("ip addr add {place}"));
    }
    assert_eq!(open("10.99.0.1").unwrap().interface(), "eth0");
    assert_eq!(open("10.99.0.1%lo").unwrap().interface(), "lo");
}

/// As with unnumbered links: hosts have one address on all of them.
#[test]
fn an_address_of_several_interfaces_is_used_while_one_of_them_has_carrier() {
    let Some(mut namespace) = Namespace::enter() else { return };
    for interface in ["eth0", "eth1"] {
        namespace.link(interface);
        namespace.run(&format!("ip addr add 10.99.0.1/32 dev {interface}"));
    }
    let device = open_up("10.99.0.1");
    namespace.run("ip link set eth0 down");
    let late = open_up("10.99.0.1");
    assert_eq!(late.interface(), "eth1");
    let (mut near, mut far) = connected(&device, &late);
    exchange(&mut near, &mut far, 1);
    assert!(device.is_up() && device.next_event().is_none());
    namespace.run("ip link set eth1 down");
    event(&device, false);
}

/// A router's address is on its loopback interface, too, which always has carrier and leads
/// nowhere.
#[test]
fn a_device_is_down_without_its_link_although_a_loopback_interface_has_its_address() {
    let Some(mut namespace) = Namespace::enter() else { return };
    namespace.link("eth0");
    let mut dummies = Vec::new();
    if namespace.succeeds("ip link add dummy7 type dummy && ip link set dummy7 up") {
        dummies.push("dummy7");
    }
    for interface in ["eth0", "lo"].iter().chain(&dummies) {
        namespace.run(&format!("ip addr add 10.99.0.1/32 dev {interface}"));
    }
    let device = open_up("10.99.0.1");
    assert_eq!(device.interface(), "eth0");
    let on_loopback = open_up("10.99.0.1%lo");
    namespace.run("ip link set eth0 down");
    event(&device, false);
    assert!(on_loopback.is_up() && on_loopback.next_event().is_none());
    namespace.run("ip link set eth0 up");
    event(&device, true);
    namespace.run("ip link del eth0");
    event(&device, false);
}

/// `169.254.0.2` at one link is another address than at another link.
#[test]
fn a_device_of_a_link_local_ipv4_address_stays_on_its_link() {
    let Some(mut namespace) = Namespace::enter() else { return };
    for interface in ["eth0", "eth1"] {
        namespace.link(interface);
        namespace.run(&format!("ip addr add 169.254.0.2/16 dev {interface}"));
    }
    let [first, second] = ["eth0", "eth1"].map(open_up);
    namespace.run("ip link set eth0 down");
    event(&first, false);
    assert!(second.is_up() && second.next_event().is_none());
    // Also when its link is gone, which was looked at before the next change.
    namespace.run("ip link del eth0");
    namespace.run("ip link set eth1 down");
    event(&second, false);
    assert!(!first.is_up() && first.next_event().is_none());
    // The link may have another name.
    namespace.run("ip link set eth1 name wan0 && ip link set wan0 up");
    event(&second, true);
    assert!(!first.is_up() && first.next_event().is_none());
}

#[test]
fn a_device_is_up_if_another_interface_has_its_address_and_carrier_from_the_beginning() {
    let Some(mut namespace) = Namespace::enter() else { return };
    for interface in ["eth0", "eth1"] {
        namespace.link(interface);
        namespace.run(&format!("ip addr add 10.99.0.1/32 dev {interface}"));
    }
    namespace.run("ip link set eth0 down");
    let runs = |own: &InterfaceAddress| own.interface == "eth1" && own.has_carrier;
    wait("carrier of eth1", || addresses().unwrap().iter().any(runs));
    // At once: later, other changes make it look again.
    let device = open("eth0").unwrap();
    assert!(device.is_up() && device.interface() == "eth0");
}

#[test]
fn link_local_addresses_are_those_of_their_interface() {
    let Some(mut namespace) = Namespace::enter() else { return };
    namespace.link("eth0");
    namespace.link("eth1");
    if !namespace.succeeds("ip addr add fe80::1/64 dev eth0 nodad") {
        eprintln!("skipped: there is no IPv6");
        return;
    }
    namespace.run("ip addr add fe80::1/64 dev eth1 nodad");
    namespace.run("ip addr add fe80::2/64 dev eth1 nodad");
    namespace.run("ip addr add fd00::1/64 dev eth1 nodad");
    let error = open("fe80::1").unwrap_err();
    let OpenError::Ambiguous { interfaces, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*interfaces, ["eth0", "eth1"]);
    assert!(error.to_string().ends_with("such as fe80::1%eth0"), "{error}");
    for unknown in ["fe80::1%eth2", "fe80::2%eth0", "fe80::1%", "fe80::1%99", "10.0.0.1%eth0"] {
        let error = open(unknown).unwrap_err();
        assert!(matches!(error, OpenError::NotFound { .. }), "{unknown}: {error}");
    }
    let scope = |device: &Device| match device.address() {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let [first, second] = ["fe80::1%eth0", "fe80::1%eth1"].map(open_up);
    assert_eq!((first.interface(), second.interface()), ("eth0", "eth1"));
    assert_ne!(scope(&first), scope(&second));
    let by_index = open(&format!("fe80::1%{}", scope(&second))).unwrap();
    assert_eq!(by_index.address().ip(), second.address().ip());
    assert_eq!((by_index.interface(), scope(&by_index)), ("eth1", scope(&second)));
    let peer = open_up("fe80::2");
    assert_eq!(peer.interface(), "eth1");
    let (mut near, mut far) = connected(&second, &peer);
    exchange(&mut near, &mut far, 1);
    // The lesser address connects. It has no zone, but its device has an interface.
    let wide = open_up("fd00::1");
    let (mut near, mut far) = connected(&wide, &peer);
    exchange(&mut near, &mut far, 2);
}
