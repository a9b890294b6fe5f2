//! Rails that fail and come back.

mod fixture;
mod rerouted;

use fixture::{Host, connect_sets};
use polyrail::endpoint::{EndpointError, EndpointSet, connect_endpoints};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::virtual_qp::{QpState, RailId, RailState, Scheme};
use rerouted::fault_schedule::FaultSchedule;
use rerouted::{End, Ends, LENGTH, MESSAGES, healed};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// Bytes of a device until so many messages have arrived.
fn after(messages: usize) -> When {
    When::Bytes((messages * LENGTH / 2 + 1234) as u64)
}

/// Where a rail's queue pair is.
fn device_of(end: &End, rail: RailId) -> String {
    end.endpoint.device_of(rail)
}

#[test]
fn a_rail_whose_link_comes_back_is_back_in_service() {
    for scheme in SCHEMES {
        for device in 0..4 {
            for seed in 0..2 {
                let mut ends = Ends::new(seed, 4, &healed(scheme));
                ends.near.devices[device].inject(after(seed as usize), Fault::LinkDown);
                let rail = RailId::Data(device as u8);
                ends.go_on(|_| (), |ends| !ends.near.events.is_empty());
                ends.near.devices[device].inject(When::Now, Fault::LinkUp);
                ends.finish(|_| ());
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
        let mut ends = Ends::new(1, 4, &healed(scheme));
        ends.far.devices[0].inject(after(2), Fault::LinkDown);
        ends.finish(|_| ());
        assert!(ends.is_ready(), "{}", ends.report());
        for rail in [RailId::Data(0), RailId::Notify] {
            let exists = ends.near.endpoint.virtual_qp().rail_state(rail).is_some();
            assert!(!exists || device_of(&ends.near, rail) == "near1", "{rail}");
            assert!(!exists || device_of(&ends.far, rail) == "far1", "{rail}");
        }
        // Back where it was, when it fails next.
        ends.far.devices[0].inject(When::Now, Fault::LinkUp);
        ends.near.endpoint.fail_rail(RailId::Data(0));
        ends.go_on(|_| (), |ends| ends.is_ready() && ends.near.generation(RailId::Data(0)) > 1);
        assert_eq!(device_of(&ends.near, RailId::Data(0)), "near0");
        assert_eq!(device_of(&ends.far, RailId::Data(0)), "far0");
        assert_eq!(ends.near.state(RailId::Data(0)), RailState::InService);
    }
}

/// It shares a device with another rail there, and would halve what that one carries.
#[test]
fn rail_0_carries_no_fragments_while_it_is_away() {
    let rail = RailId::Data(0);
    // With DQPLB nothing but fragments goes to rails.
    let mut ends = Ends::new(1, 4, &healed(Scheme::Dqplb));
    ends.limit(0);
    ends.far.devices[0].inject(When::Now, Fault::LinkDown);
    ends.go_on(|_| (), |ends| ends.is_ready() && device_of(&ends.near, rail) == "near1");
    ends.pause_after(10);
    ends.limit(10);
    let carried = |ends: &Ends| ends.near.endpoint.rail_reports().into_iter().map(|it| it.bytes);
    let bytes: Vec<u64> = carried(&ends).collect();
    assert!(bytes[0] == 0 && bytes[1..].iter().all(|bytes| *bytes > 0), "{bytes:?}");
    ends.far.devices[0].inject(When::Now, Fault::LinkUp);
    ends.near.endpoint.fail_rail(rail);
    ends.go_on(|_| (), |ends| ends.is_ready() && device_of(&ends.near, rail) == "near0");
    ends.limit(MESSAGES);
    ends.finish(|_| ());
    assert!(carried(&ends).all(|bytes| bytes > 0), "{}", ends.report());
}

/// Two links, one after the other or at once, on either side; both come back.
#[test]
fn two_links_are_cut_one_after_the_other() {
    for scheme in SCHEMES {
        for seed in 0..6 {
            let mut ends = Ends::new(seed, 4, &healed(scheme));
            let first = (seed % 4) as usize;
            let second = (first + 1) % 4;
            ends.near.devices[first].inject(after(1), Fault::LinkDown);
            ends.far.devices[second].inject(after(1 + (seed % 3) as usize), Fault::LinkDown);
            ends.go_on(|_| (), |ends| ends.near.received() > 15);
            ends.near.devices[first].inject(When::Now, Fault::LinkUp);
            ends.far.devices[second].inject(When::Now, Fault::LinkUp);
            ends.finish(|_| ());
            ends.poll_until(Ends::is_ready);
        }
    }
}

/// Also while what the first one lost is posted again, and while its replacement joins.
#[test]
fn devices_that_are_well_and_unwell_lose_nothing() {
    for scheme in SCHEMES {
        for seed in 0..6 {
            let mut ends = Ends::new(seed, 3 + seed as usize % 2, &healed(scheme).min_rails(0));
            let mut schedule = FaultSchedule::new(seed);
            ends.go_on(
                |ends| schedule.step(ends),
                |ends| ends.near.received() > 21 && ends.far.received() > 21,
            );
            schedule.lift_all(&mut ends);
            ends.finish(|_| ());
            ends.poll_until(Ends::is_ready);
        }
    }
}

/// Its queue pairs touch no memory any more, so what was in flight there is posted elsewhere
/// although the device never says so.
#[test]
fn a_device_that_is_removed_costs_its_rails() {
    for scheme in SCHEMES {
        for device in 0..4 {
            let mut ends = Ends::new(device as u64, 4, &healed(scheme));
            ends.pause_after(3);
            ends.near.devices[device].inject(When::Now, Fault::DeviceGone);
            // The driver refuses a post, or the backend says so first.
            ends.finish(|_| ());
            check_removed(&ends, device);
        }
    }
}

/// Also with requests under way, where nobody is told of what arrives: SPRAY's data rails.
#[test]
fn a_device_that_is_removed_in_the_middle_of_messages_costs_its_data_rails() {
    for (seed, device) in (0..9).zip([1, 2, 3].into_iter().cycle()) {
        let mut ends = Ends::new(seed, 4, &healed(Scheme::Spray));
        ends.near.devices[device].inject(after(seed as usize / 2), Fault::DeviceGone);
        ends.finish(|_| ());
        check_removed(&ends, device);
    }
}

/// Where somebody is told, a completion that the device takes with it may be of a request that the
/// peer knows to have arrived: then both ends fail, and say why. Until then nothing was told that
/// is not so.
#[test]
fn completions_that_a_removed_device_takes_with_it_are_missed() {
    let mut survived = 0;
    let mut missed = 0;
    for seed in 0..12 {
        let mut ends = Ends::new(seed, 4, &healed(SCHEMES[seed as usize / 6]));
        ends.near.may_fail = true;
        ends.far.may_fail = true;
        let device = (seed % 4) as usize;
        ends.near.devices[device].inject(after(seed as usize % 7), Fault::DeviceGone);
        ends.go_on(
            |_| (),
            |ends| {
                let is_done = ends.near.is_done() && ends.far.is_done();
                is_done || (ends.near.has_ended() && ends.far.has_ended())
            },
        );
        if ends.near.endpoint.state() != QpState::Error {
            ends.finish(|_| ());
            check_removed(&ends, device);
            survived += 1;
            continue;
        }
        let why = [&mut ends.near, &mut ends.far].map(|end| end.endpoint.failure().unwrap());
        let lost = |why: &EndpointError| matches!(why, EndpointError::CompletionsLost { .. });
        assert!(why.iter().any(lost), "{why:?}");
        assert!(why.iter().all(|why| lost(why) || *why == EndpointError::Peer), "{why:?}");
        missed += 1;
    }
    assert!(survived > 0 && missed > 0, "{survived} survived, {missed} missed");
}

fn check_removed(ends: &Ends, device: usize) {
    let rail = RailId::Data(device as u8);
    let lost = format!("{rail} (device near{device}) failed: its queue pair is gone");
    let refused = format!("{rail} (device near{device}, queue pair 17) failed: the driver refused");
    // The peer may miss it first.
    let heard = format!("{rail} (device near{device}) failed at the peer; it cannot be drained");
    let told = ends.near.told();
    let knows =
        |told: &String| [&lost, &refused, &heard].iter().any(|known| told.starts_with(*known));
    assert!(told.iter().any(knows), "{}", ends.report());
    if device == 0 {
        // Requests wait for rail 0, so it is on another device now.
        assert!(ends.is_ready(), "{}", ends.report());
        assert_eq!(device_of(&ends.near, rail), "near1");
    } else {
        assert_eq!(ends.near.state(rail), RailState::Down, "{}", ends.report());
    }
}

/// Until all rails of all members are in service again, of generation 1.
fn poll_until_ready(fabric: &Fabric, sets: &mut [&mut EndpointSet]) {
    let is_ready = |set: &&mut EndpointSet| set.qps().all(|qp| qp.state() == QpState::Ready);
    for _ in 0..2000 {
        fabric.step();
        for set in sets.iter_mut() {
            assert_eq!(set.poll(16).error, None);
        }
        if sets.iter().all(is_ready) {
            return;
        }
    }
    panic!("not all are ready")
}

#[test]
fn members_of_sets_heal_with_those_of_another_set_or_of_their_own() {
    let fabric = Fabric::deterministic(8);
    let host = |name| Host::new(&fabric, name, 2, LENGTH);
    let (near_host, far_host) = (host("near"), host("far"));
    let builder = healed(Scheme::Spray);
    let rail = RailId::Data(3);
    let generations = |set: &EndpointSet| {
        set.virtual_cq().invariants();
        set.qps().map(|qp| qp.virtual_qp().rail_generation(rail)).collect::<Vec<_>>()
    };

    let shapes = [(builder, &[0, 1][..]), (builder, &[1][..])];
    let (mut near, mut far) = (near_host.set(&shapes), far_host.set(&shapes));
    connect_sets(&mut near, &mut far);
    near.get_mut(1).unwrap().fail_rail(rail);
    poll_until_ready(&fabric, &mut [&mut near, &mut far]);
    assert_eq!([generations(&near), generations(&far)], [[Some(0), Some(1)], [Some(0), Some(1)]]);

    let mut set = near_host.set(&[(builder, &[0, 1]), (builder, &[0, 1])]);
    let Some([a, b]) = set.get_disjoint_mut([0, 1]) else { unreachable!("both") };
    connect_endpoints(a, b).unwrap();
    b.fail_rail(rail);
    poll_until_ready(&fabric, &mut [&mut set]);
    assert_eq!(generations(&set), [Some(1), Some(1)]);
}
