//! Rails that fail and come back.

mod fixture;
mod rerouted;

use polyrail::nic::{Fault, When};
use polyrail::virtual_qp::{QpState, RailId, RailState, Scheme};
use rerouted::{End, Ends, LENGTH, rerouted};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// Heals, whatever cannot be healed yet.
fn heal(ends: &mut Ends) {
    _ = ends.heal();
}

/// Bytes of a device until so many messages have arrived.
fn after(messages: usize) -> When {
    When::AfterBytes((messages * LENGTH / 2 + 1234) as u64)
}

/// Where a rail's queue pair is.
fn device_of(end: &End, rail: RailId) -> String {
    end.endpoint.device_of(rail)
}

#[test]
fn a_rail_whose_link_comes_back_is_back_in_service() {
    for scheme in SCHEMES {
        for device in 0..4 {
            for seed in 0..3 {
                let mut ends = Ends::new(seed, 4, &rerouted(scheme));
                ends.near.devices[device].inject(after(seed as usize), Fault::LinkDown);
                let rail = RailId::Data(device as u8);
                ends.go_on(heal, |ends| !ends.near.events.is_empty());
                ends.near.devices[device].inject(When::Now, Fault::LinkUp);
                ends.finish(heal);
                for end in [&ends.near, &ends.far] {
                    assert_eq!(end.endpoint.state(), QpState::Ready, "{}", ends.report());
                    assert!(end.generation(rail) > 0);
                }
                let again = &ends.near.endpoint.rail_reports()[device];
                assert!(again.bytes > 0, "{again}");
            }
        }
    }
}

#[test]
fn a_link_that_stays_down_costs_the_notify_queue_pair_and_rail_0_their_device() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(1, 4, &rerouted(scheme));
        ends.far.devices[0].inject(after(2), Fault::LinkDown);
        ends.finish(heal);
        assert!(ends.is_ready(), "{}", ends.report());
        for rail in [RailId::Data(0), RailId::Notify] {
            let exists = ends.near.endpoint.virtual_qp().rail_state(rail).is_some();
            assert!(!exists || device_of(&ends.near, rail) == "near1", "{rail}");
            assert!(!exists || device_of(&ends.far, rail) == "far1", "{rail}");
        }
        // Back where it was, when it fails next.
        ends.far.devices[0].inject(When::Now, Fault::LinkUp);
        ends.near.endpoint.fail_rail(RailId::Data(0));
        ends.go_on(heal, |ends| ends.is_ready() && ends.near.generation(RailId::Data(0)) > 1);
        assert_eq!(device_of(&ends.near, RailId::Data(0)), "near0");
        assert_eq!(device_of(&ends.far, RailId::Data(0)), "far0");
        assert_eq!(ends.near.state(RailId::Data(0)), RailState::InService);
    }
}
