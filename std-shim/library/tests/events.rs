//! Events of a device reach every reader.

use polyrail::backend::{ConnectOptions, QpCap};
use polyrail::backend::{DeviceError, DeviceEvent, Domain, EventCursor};
use polyrail::nic::{
    Device, DeviceConfig, Fabric, Fault, ProtectionDomain, QpInit, QpState, When, connect_pair,
};

const DOWN: DeviceEvent = DeviceEvent::PortDown { port: 1 };
const UP: DeviceEvent = DeviceEvent::PortUp { port: 1 };

fn device() -> Device {
    Fabric::threaded().create_device(DeviceConfig::named("a"))
}

fn set_link(device: &Device, up: bool) {
    device.inject(When::Now, if up { Fault::LinkUp } else { Fault::LinkDown });
}

fn events(domain: &impl Domain, reader: &mut EventCursor) -> Vec<DeviceEvent> {
    std::iter::from_fn(|| domain.next_event(reader)).collect()
}

/// Raises an event that does not concern endpoints.
fn drain(domain: &ProtectionDomain) {
    let cq = domain.device().create_cq(8).unwrap();
    let qp = || domain.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap();
    let near = qp();
    let far = qp();
    connect_pair(&near, &far, &ConnectOptions::default()).unwrap();
    near.modify(QpState::Sqd, &Default::default()).unwrap();
}

#[test]
fn all_domains_of_a_device_receive_events_of_its_ports_and_of_its_end() {
    let device = device();
    let domain = device.alloc_pd().unwrap();
    set_link(&device, false);
    set_link(&device, true);
    let mut first = domain.event_cursor();
    assert_eq!(domain.next_event(&mut first), None, "it happened before");
    set_link(&device, false);
    drain(&domain);
    let other = device.alloc_pd().unwrap();
    let mut second = other.event_cursor();
    set_link(&device, true);
    assert_eq!(events(&domain.clone(), &mut first), [DOWN, UP]);
    device.inject(When::Now, Fault::DeviceGone);
    assert_eq!(events(&other, &mut second), [UP, DeviceEvent::Gone]);
    assert_eq!(events(&domain, &mut first), [DeviceEvent::Gone]);
}

#[test]
fn events_come_with_the_port_as_they_say_it_is() {
    let device =
        Fabric::threaded().create_device(DeviceConfig { ports: 2, ..DeviceConfig::named("a") });
    let domain = device.alloc_pd().unwrap();
    let before = domain.ports().unwrap();
    let mut reader = domain.event_cursor();
    set_link(&device, false);
    for port in [1, 2] {
        assert_eq!(domain.next_event(&mut reader), Some(DeviceEvent::PortDown { port }));
        assert_eq!(domain.port(port), Err(DeviceError::PortDown { port }));
    }
    set_link(&device, true);
    for (port, before) in (1..).zip(before) {
        assert_eq!(domain.next_event(&mut reader), Some(DeviceEvent::PortUp { port }));
        assert_eq!(domain.port(port), Ok(before));
    }
    assert_eq!(domain.next_event(&mut reader), None);
}

#[test]
fn a_cursor_that_reads_late_receives_the_newest_events() {
    let device = device();
    let domain = device.alloc_pd().unwrap();
    let mut behind = domain.event_cursor();
    let mut in_time = domain.event_cursor();
    for _ in 0..1000 {
        set_link(&device, false);
        set_link(&device, true);
        assert_eq!(events(&domain, &mut in_time), [DOWN, UP]);
    }
    device.inject(When::Now, Fault::DeviceGone);
    let heard = events(&domain, &mut behind);
    assert!(heard.len() < 2000, "{}", heard.len());
    assert_eq!(heard[heard.len() - 3..], [DOWN, UP, DeviceEvent::Gone]);
}
