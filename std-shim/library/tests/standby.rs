//! Devices whose rails stand by.

mod fixture;
mod recorded;
mod rerouted;

use polyrail::heal::Healing;
use polyrail::nic::{DeviceConfig, Fabric, Fault, When};
use polyrail::p2p::P2pBuilder;
use polyrail::virtual_qp::{RailFailure, RailId, RailState, Scheme};
use rerouted::{Ends, MESSAGES, healed};
use std::time::Duration;

/// The rails of the second device stand by: while the first device is away they carry everything,
/// and nothing before and afterwards.
#[test]
fn rails_of_a_standby_device_take_over_and_stand_back() {
    let home_after = Some(Duration::ZERO);
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let healing = Healing {
            first_interval: Duration::ZERO,
            longest_interval: Duration::ZERO,
            fallback_after: Duration::ZERO,
            home_after,
            ..Healing::default()
        };
        let mut ends = Ends::new(9, 2, &healed(scheme).healing(healing).standby_devices([1]));
        let standby = |ends: &Ends| -> u64 {
            let of = |near: bool, rail| {
                let counters = ends.side(near).endpoint.virtual_qp().counters(RailId::Data(rail));
                counters.unwrap().send_requests
            };
            [true, false].map(|near| of(near, 1) + of(near, 3)).iter().sum()
        };
        ends.pause_after(MESSAGES / 3);
        assert_eq!(standby(&ends), 0, "{scheme:?}");
        let device = ends.near.devices[0].clone();
        device.inject(When::Now, Fault::LinkDown);
        let rail_0_is_on = |ends: &Ends, device: usize| {
            ["near", "far"].iter().zip([&ends.near, &ends.far]).all(|(name, end)| {
                let rail_0 = end.endpoint.rail_reports()[0].to_string();
                let is_there = rail_0.starts_with(&format!("rail 0 (device {name}{device}"));
                is_there && end.state(RailId::Data(0)) == RailState::InService
            })
        };
        // Requests wait for rail 0, so it moves. There it stands by, too.
        ends.poll_until(|ends| rail_0_is_on(ends, 1));
        let before = standby(&ends);
        ends.pause_after(2 * MESSAGES / 3);
        assert!(standby(&ends) > before, "{scheme:?}: {}", ends.report());
        device.inject(When::Now, Fault::LinkUp);
        ends.poll_until(|ends| rail_0_is_on(ends, 0) && ends.is_ready());
        let before = standby(&ends);
        ends.limit(MESSAGES);
        ends.finish(|_| ());
        assert_eq!(standby(&ends), before, "{scheme:?}: {}", ends.report());
    }
}

#[test]
fn message_endpoints_refuse_devices_that_cannot_stand_by() {
    let fabric = Fabric::threaded();
    let domain = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let (first, second) = (domain("first"), domain("second"));
    let error = |builder: P2pBuilder| {
        builder.build(&[&first, &second]).map(|_| ()).unwrap_err().to_string()
    };
    let builder = || P2pBuilder::new().rail_failure(RailFailure::Reroute);
    let all = error(builder().standby_devices([0, 1]));
    assert_eq!(all, "all 2 devices would stand by, and none is left for them to stand by for");
    for beyond in [2, 8, 1000] {
        let text = format!("device {beyond} cannot stand by: rails use 2 devices, counted from 0");
        assert_eq!(error(builder().standby_devices([1, beyond])), text);
    }
    let one_rail = error(builder().rails(1).standby_devices([1]));
    assert_eq!(one_rail, "device 1 cannot stand by: rails use 1 devices, counted from 0");
    let fatal = error(P2pBuilder::new().standby_devices([1]));
    assert_eq!(fatal, "standby rails (1) need re-routing, which is off");
    assert!(builder().standby_devices([0]).build(&[&first, &second]).is_ok());
}
