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

/// Two links, one after the other or at once, on either side; both come back.
#[test]
fn two_links_are_cut_one_after_the_other() {
    for scheme in SCHEMES {
        for seed in 0..6 {
            let mut ends = Ends::new(seed, 4, &rerouted(scheme));
            let first = (seed % 4) as usize;
            let second = (first + 1) % 4;
            ends.near.devices[first].inject(after(1), Fault::LinkDown);
            ends.far.devices[second].inject(after(1 + (seed % 3) as usize), Fault::LinkDown);
            ends.go_on(heal, |ends| ends.near.received() > 15);
            ends.near.devices[first].inject(When::Now, Fault::LinkUp);
            ends.far.devices[second].inject(When::Now, Fault::LinkUp);
            ends.finish(heal);
            assert!(ends.is_ready(), "{}", ends.report());
        }
    }
}

/// Also while what the first one lost is posted again, and while its replacement joins.
#[test]
fn links_that_come_and_go_lose_nothing() {
    for scheme in SCHEMES {
        for seed in 0..10 {
            flap(scheme, seed, 3 + seed % 2);
        }
    }
}

/// Links of all devices go down and up at random, up to three at a time.
fn flap(scheme: Scheme, seed: u64, devices: u64) {
    let mut ends = Ends::new(seed, devices as usize, &rerouted(scheme).min_rails(0));
    let mut random = Random(seed);
    let mut is_down = [[false; 4]; 2];
    let mut changes = 0;
    let mut flap = |ends: &mut Ends| {
        let all_are_up = is_down == [[false; 4]; 2];
        if !random.one_in(400) || (changes > 30 && all_are_up) {
            return heal_sometimes(&mut random, ends);
        }
        let side = random.below(2) as usize;
        let device = random.below(devices) as usize;
        let fault = if is_down[side][device] { Fault::LinkUp } else { Fault::LinkDown };
        let end = if side == 0 { &ends.near } else { &ends.far };
        end.devices[device].inject(When::Now, fault);
        is_down[side][device] ^= true;
        changes += 1;
        if changes > 30 {
            for (end, is_down) in [&ends.near, &ends.far].into_iter().zip(&mut is_down) {
                end.devices.iter().for_each(|device| device.inject(When::Now, Fault::LinkUp));
                *is_down = [false; 4];
            }
        }
    };
    ends.go_on(&mut flap, |ends| ends.near.received() > 20 && ends.far.received() > 20);
    for end in [&ends.near, &ends.far] {
        end.devices.iter().for_each(|device| device.inject(When::Now, Fault::LinkUp));
    }
    ends.finish(heal);
    assert!(ends.is_ready(), "{scheme:?} {seed}: {}", ends.report());
}

fn heal_sometimes(random: &mut Random, ends: &mut Ends) {
    if random.one_in(20) {
        _ = ends.heal();
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Its queue pairs touch no memory any more, so what was in flight there is posted elsewhere although the
/// device never says so.
#[test]
fn a_device_that_is_removed_costs_its_rails() {
    for scheme in SCHEMES {
        for device in 0..4 {
            let mut ends = Ends::new(device as u64, 4, &rerouted(scheme));
            ends.pause_after(3);
            ends.near.devices[device].inject(When::Now, Fault::DeviceGone);
            // The driver refuses a post, or the backend says so first.
            ends.finish(heal);
            check_removed(&ends, device);
        }
    }
}

/// Also with requests under way. What the peer sent and what the device took of it is not known, unless it
/// tells nobody anything: SPRAY's data rails.
#[test]
fn a_device_that_is_removed_in_the_middle_of_messages_costs_its_data_rails() {
    for (seed, device) in (0..9).zip([1, 2, 3].into_iter().cycle()) {
        let mut ends = Ends::new(seed, 4, &rerouted(Scheme::Spray));
        ends.near.devices[device].inject(after(seed as usize / 2), Fault::DeviceGone);
        ends.finish(heal);
        check_removed(&ends, device);
    }
}

fn check_removed(ends: &Ends, device: usize) {
    let rail = RailId::Data(device as u8);
    let lost = format!("{rail} (device near{device}) failed: its queue pair is gone");
    let refused = format!("{rail} (device near{device}, queue pair 17) failed: the driver refused");
    let told = ends.near.told();
    let knows = |told: &String| told.starts_with(&lost) || told.starts_with(&refused);
    assert!(told.iter().any(knows), "{}", ends.report());
    if device == 0 {
        // Requests wait for rail 0, so it is on another device now.
        assert!(ends.is_ready(), "{}", ends.report());
        assert_eq!(device_of(&ends.near, rail), "near1");
    } else {
        assert_eq!(ends.near.state(rail), RailState::Down, "{}", ends.report());
    }
}
