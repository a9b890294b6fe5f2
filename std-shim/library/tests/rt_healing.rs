//! Endpoints that heal by themselves: what they notice, how long they wait, and how they give up.

mod fixture;
mod recorded;
mod rerouted;

use fixture::{LONG, holds_with};
use polyrail::chain::Chain;
use polyrail::endpoint::{
    ConnectError, Endpoint, EndpointBuilder, EndpointError, HealingMessage, connect_endpoints,
};
use polyrail::heal::{Detected, Healing};
use polyrail::nic::{CompletionQueue, Device, DeviceConfig, Fabric, Fault, When};
use polyrail::virtual_qp::{QpState, RailEventKind, RailId, RailSet, RailState, Scheme};
use recorded::{Log, Recorded, RecordedQp};
use rerouted::fault_schedule::Random;
use rerouted::{Ends, MESSAGES, healed, unwanted};
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::{Duration, Instant};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// Takes the link of rail 2 down at one end, until the rail is Down at both. Returns its device.
fn cut_rail_2(ends: &mut Ends, at_near: bool) -> Device {
    let device = ends.side(at_near).devices[2].clone();
    device.inject(When::Now, Fault::LinkDown);
    ends.poll_until(|ends| {
        [&ends.near, &ends.far].iter().all(|end| end.state(RailId::Data(2)) == RailState::Down)
    });
    device
}

#[test]
fn a_port_that_goes_down_costs_its_rails_before_any_request_does() {
    for scheme in SCHEMES {
        for of_near in [true, false] {
            let mut ends = Ends::new(1, 4, &healed(scheme));
            let device = cut_rail_2(&mut ends, of_near);
            let told = ends.side(of_near).told();
            let name = device.name();
            assert_eq!(told[0], format!("rail 2 (device {name}) failed: its port is down"));
            device.inject(When::Now, Fault::LinkUp);
            ends.poll_until(Ends::is_ready);
            let events = &ends.side(of_near).events;
            assert_eq!(events[0].detected, Some(Detected::PortDown));
            let returned = events.last().unwrap();
            assert_eq!(returned.event.kind, RailEventKind::Returned);
            assert_eq!(returned.out_for, returned.at.duration_since(events[0].at));
            ends.limit(MESSAGES);
            ends.finish(|_| ());
        }
    }
}

/// Both ends wait for long between two attempts, and the port's return ends that, at whichever end
/// it is.
#[test]
fn a_port_that_is_up_again_is_tried_at_once() {
    let forever = Duration::from_secs(3600);
    let healing =
        Healing { first_interval: forever, longest_interval: forever, ..Healing::default() };
    for of_near in [true, false] {
        let mut ends = Ends::new(1, 4, &healed(Scheme::Spray).healing(healing));
        let device = cut_rail_2(&mut ends, of_near);
        // An attempt was made, in vain.
        (0..1000).for_each(|_| ends.step());
        assert_eq!(ends.near.state(RailId::Data(2)), RailState::Down);
        device.inject(When::Now, Fault::LinkUp);
        ends.poll_until(Ends::is_ready);
    }
}

#[test]
fn a_rail_that_falls_silent_is_given_up_after_its_time() {
    // Far more than a busy machine takes to run the threads of all devices.
    const TIMEOUT: Duration = Duration::from_millis(400);
    let healing = Healing { stall_timeout: Some(TIMEOUT), ..Healing::default() };
    for scheme in SCHEMES {
        let mut ends = Ends::new(3, 4, &healed(scheme).healing(healing));
        let device = ends.near.devices[1].clone();
        device.inject(When::Bytes(50_000), Fault::Silent(true));
        ends.finish(|_| sleep(Duration::from_micros(20)));
        let silent = |told: &String| told == "rail 1 (device near1) failed: no progress for 400ms";
        let told: Vec<String> = ends.near.told().into_iter().chain(ends.far.told()).collect();
        assert!(told.iter().any(|told| silent(&told.replace("far1", "near1"))), "{told:?}");
        device.inject(When::Now, Fault::Silent(false));
        ends.poll_until(Ends::is_ready);
    }
}

/// It takes new connections, and carries nothing over them. What requests wait for goes elsewhere.
#[test]
fn a_device_that_stays_silent_holds_up_no_requests() {
    let stall_timeout = Some(Duration::from_millis(200));
    let healing = Healing { stall_timeout, ..Healing::default() };
    for scheme in SCHEMES {
        for of_near in [true, false] {
            let mut ends = Ends::new(3, 4, &healed(scheme).healing(healing));
            let device = ends.side(of_near).devices[0].clone();
            device.inject(When::Bytes(50_000), Fault::Silent(true));
            let begin = Instant::now();
            ends.finish(|ends| {
                assert!(
                    begin.elapsed() < LONG,
                    "{} {of_near} {scheme:?} {:#?} {:#?}",
                    ends.report(),
                    ends.near.told(),
                    ends.far.told()
                );
                sleep(Duration::from_micros(20));
            });
        }
    }
}

/// What requests wait for stays on its device for a while, and then goes to another one.
#[test]
fn rail_0_waits_for_its_device_for_a_while() {
    const WHILE: Duration = Duration::from_millis(100);
    for scheme in SCHEMES {
        let home_after = Some(Duration::from_millis(20));
        let healing = Healing { fallback_after: WHILE, home_after, ..Healing::default() };
        let mut ends = Ends::new(5, 4, &healed(scheme).healing(healing));
        ends.far.devices[0].inject(When::Now, Fault::LinkDown);
        ends.poll_until(|ends| !ends.is_ready());
        ends.poll_until(Ends::is_ready);
        // The end whose device it is knows of the failure first. The other one may hear of it late.
        let returned = ends.far.events.iter().find(|event| {
            event.event.rail == RailId::Data(0) && event.event.kind == RailEventKind::Returned
        });
        let returned = returned.unwrap();
        assert!(returned.out_for >= WHILE, "{returned}");
        let moved = [&ends.near, &ends.far].map(|end| end.endpoint.device_of(RailId::Data(0)));
        assert!(moved[0].ends_with(['1', '2', '3']) && moved[1] == moved[0].replace("near", "far"));
        // And goes back once that is well.
        ends.far.devices[0].inject(When::Now, Fault::LinkUp);
        let is_home = |ends: &Ends| {
            let at_home = |rail| match ends.near.endpoint.device_of(rail).as_str() {
                "" => true,
                device => device == "near0",
            };
            at_home(RailId::Data(0)) && at_home(RailId::Notify) && ends.is_ready()
        };
        ends.poll_until(is_home);
        assert!(ends.far.told().iter().any(|told| told.ends_with(" goes back to its own device")));
        ends.limit(MESSAGES);
        ends.finish(|_| ());
    }
}

/// The only rail in service is not sent home: without any the endpoint would end.
#[test]
fn rail_0_goes_home_when_another_rail_is_in_service() {
    for scheme in SCHEMES {
        // On a machine that is busy, the time may be over before the other rail is out of service.
        let shortest = Duration::from_millis(300);
        let is_home = holds_with(shortest, |home_after| goes_home_late(scheme, home_after));
        assert!(is_home, "{scheme:?}: it is always time to go home");
    }
}

/// Takes the other rail out of service while rail 0 may not go home yet, and lets it go home.
/// Returns false if it was too late for that.
fn goes_home_late(scheme: Scheme, home_after: Duration) -> bool {
    let healing = Healing { home_after: Some(home_after), ..Healing::default() };
    let mut ends = Ends::new(11, 2, &healed(scheme).rails(2).healing(healing));
    let links = [&ends.near, &ends.far].map(|end| end.devices[0].clone());
    for link in &links {
        link.inject(When::Now, Fault::LinkDown);
    }
    ends.poll_until(|ends| !ends.is_ready());
    ends.poll_until(Ends::is_ready);
    assert_eq!(ends.near.endpoint.device_of(RailId::Data(0)), "near1");
    let begin = Instant::now();
    for link in &links {
        link.inject(When::Now, Fault::LinkUp);
    }
    // Long enough for both to hear of the links, and then until it is time.
    ends.poll_until(|_| begin.elapsed() > Duration::from_millis(20));
    if begin.elapsed() >= home_after {
        return false;
    }
    sleep(home_after);
    assert!(ends.near.endpoint.fail_rail(RailId::Data(1)));
    ends.poll_until(|ends| {
        ends.is_ready() && ends.near.endpoint.device_of(RailId::Data(0)) == "near0"
    });
    ends.limit(MESSAGES);
    ends.finish(|_| ());
    true
}

/// Nor is it if the owners have taken the others out.
#[test]
fn rail_0_stays_away_while_its_owners_took_the_other_rail_out() {
    const HOME_AFTER: Duration = Duration::from_millis(20);
    let healing = Healing { home_after: Some(HOME_AFTER), ..Healing::default() };
    let mut ends = Ends::new(12, 2, &healed(Scheme::Spray).rails(2).healing(healing));
    let link = ends.near.devices[0].clone();
    link.inject(When::Now, Fault::LinkDown);
    ends.poll_until(|ends| !ends.is_ready());
    ends.poll_until(Ends::is_ready);
    let set_rail_1 = |ends: &mut Ends, in_service| {
        for end in [&mut ends.near, &mut ends.far] {
            assert!(end.endpoint.virtual_qp_mut().set_rail_in_service(1, in_service));
        }
    };
    set_rail_1(&mut ends, false);
    link.inject(When::Now, Fault::LinkUp);
    let begin = Instant::now();
    ends.poll_until(|_| begin.elapsed() > 20 * HOME_AFTER);
    assert_eq!(ends.near.endpoint.state(), QpState::Degraded, "{}", ends.report());
    set_rail_1(&mut ends, true);
    ends.poll_until(|ends| {
        ends.is_ready() && ends.near.endpoint.device_of(RailId::Data(0)) == "near0"
    });
}

/// Why an end failed, once all its requests are reported.
fn end_of(ends: &mut Ends, near: bool) -> EndpointError {
    ends.near.may_fail = true;
    ends.far.may_fail = true;
    let begin = Instant::now();
    while !ends.side(near).has_ended() {
        ends.step();
        assert!(begin.elapsed() < LONG, "{}", ends.report());
    }
    let end = if near { &mut ends.near } else { &mut ends.far };
    end.endpoint.failure().unwrap()
}

#[test]
fn requests_do_not_wait_for_rails_for_ever() {
    for scheme in SCHEMES {
        // On a machine that is busy, the ends need longer to exchange what arrived.
        let tries = [400, 2_000, 10_000].map(Duration::from_millis);
        let exchanged = tries.into_iter().find(|timeout| without_rails(scheme, *timeout));
        assert!(exchanged.is_some(), "{scheme:?}: rails stay unfenced");
    }
}

/// Takes all links down for good. Returns whether the ends had exchanged by then what arrived.
fn without_rails(scheme: Scheme, timeout: Duration) -> bool {
    let healing = Healing { rail_timeout: Some(timeout), ..Healing::default() };
    let mut ends = Ends::new(7, 4, &healed(scheme).healing(healing).min_rails(0));
    ends.pause_after(3);
    for device in &ends.near.devices {
        device.inject(When::Now, Fault::LinkDown);
    }
    // Either may be the first.
    let mut errors = [true, false].map(|near| end_of(&mut ends, near));
    errors.sort_by_key(|error| *error == EndpointError::Peer);
    let [EndpointError::NotHealed { out_of_service, waited, unfenced }, other] = errors else {
        panic!("{errors:?}: {}", ends.report())
    };
    let gave_up = matches!(other, EndpointError::NotHealed { .. });
    assert!(gave_up || other == EndpointError::Peer, "{other}");
    assert_eq!(waited, timeout);
    let rails: RailSet = (0..4).map(RailId::Data).collect();
    assert!(rails.into_iter().all(|rail| out_of_service.contains(rail)));
    let memory = if unfenced.is_empty() { "is no longer" } else { "may still be" };
    let text = EndpointError::NotHealed { out_of_service: rails, waited, unfenced }.to_string();
    let begin = format!(
        "requests made no progress for {timeout:?} with rail 0, rail 1, rail 2, rail 3 out of service; the peer's \
         memory {memory} written"
    );
    assert!(text.starts_with(&begin), "{text}");
    unfenced.is_empty()
}

#[test]
fn nobody_waits_for_ever_for_what_the_peer_does_not_tell() {
    const TIMEOUT: Duration = Duration::from_millis(60);
    let healing = Healing { fence_timeout: Some(TIMEOUT), ..Healing::default() };
    let mut ends =
        Ends::apart(Fabric::deterministic(2), 4, &healed(Scheme::Spray).healing(healing));
    // Nobody carries anything.
    ends.near.devices[1].inject(When::Bytes(50_000), Fault::LinkDown);
    let error = end_of(&mut ends, true);
    let rail = RailId::Data(1);
    let device = "near1".to_owned();
    let unfenced = RailSet::of(rail);
    let EndpointError::NoFence { waited, unfenced: still, .. } = error else { panic!("{error}") };
    assert!(waited == TIMEOUT && still.contains(rail), "{error}");
    let error = EndpointError::NoFence { rail, device, waited, unfenced };
    assert_eq!(
        Chain(&error).to_string(),
        "rail 1 (device near1) failed, and the peer has not reported for 60ms what arrived; the peer's \
         memory may still be written through rail 1"
    );
}

/// An owner who never reads, and a peer who never stops.
#[test]
fn a_link_takes_so_much_and_no_more() {
    let ends = Ends::apart(Fabric::deterministic(2), 4, &healed(Scheme::Spray));
    let link = ends.near.endpoint.healing_link().unwrap();
    let message = HealingMessage::Refused { rail: RailId::Data(7), generation: 1 };
    let taken = (0..1000).take_while(|_| link.handle(message).is_ok()).count();
    assert_eq!(taken, 256);
    let refused = link.handle(message).unwrap_err();
    assert_eq!(refused.0, message);
    assert_eq!(
        refused.to_string(),
        "256 messages already wait for the endpoint: poll it, then try again"
    );
}

/// Whatever a peer says of queue pairs changes nothing that it may not change.
#[test]
fn offers_and_answers_that_nobody_asked_for_are_refused() {
    let mut ends = Ends::apart(Fabric::deterministic(2), 4, &healed(Scheme::Spray));
    ends.limit(0);
    let address = unwanted();
    for at_near in [true, false] {
        let link = ends.side(at_near).endpoint.healing_link().unwrap();
        let mut none = address;
        none.rail = RailId::Data(6);
        for said in [
            HealingMessage::Offer(address),
            HealingMessage::Answer { to: 17, with: address },
            HealingMessage::Offer(none),
            HealingMessage::Answer { to: 17, with: none },
        ] {
            link.handle(said).unwrap();
        }
        let refused = HealingMessage::Refused { rail: RailId::Data(1), generation: 0 };
        link.handle(refused).unwrap();
        (0..100).for_each(|_| ends.step());
        let answers: Vec<_> = std::iter::from_fn(|| link.next_message()).collect();
        let refused = |rail| HealingMessage::Refused { rail, generation: 1 };
        let of = |rail| answers.iter().filter(|said| **said == refused(rail)).count();
        assert_eq!((answers.len(), of(address.rail), of(none.rail)), (4, 2, 2), "{answers:?}");
    }
    assert!(ends.is_ready());
    assert!(ends.near.events.is_empty() && ends.far.events.is_empty());
}

#[test]
fn an_endpoint_is_not_its_own_peer() {
    let mut ends = Ends::apart(Fabric::deterministic(2), 4, &healed(Scheme::Spray));
    let own = ends.near.endpoint.address();
    let refused = ends.near.endpoint.connect(&own).unwrap_err();
    assert!(matches!(refused, ConnectError::Itself { qp_num: 17, .. }), "{refused}");
}

#[test]
fn an_endpoint_that_is_dropped_leaves_nobody_waiting() {
    let ends = Ends::new(6, 4, &healed(Scheme::Spray));
    let Ends { near, mut far, .. } = ends;
    drop(near);
    let begin = Instant::now();
    while far.endpoint.state() != QpState::Error {
        _ = far.endpoint.poll(16);
        assert!(begin.elapsed() < LONG, "nobody says anything");
    }
    assert_eq!(far.endpoint.failure(), Some(EndpointError::Peer));
}

/// An end of two rails on two devices, of which it is known how often they are asked for their
/// ports.
struct Counted {
    devices: [Device; 2],
    domains: [Recorded; 2],
    endpoint: Endpoint<RecordedQp, CompletionQueue>,
}

impl Counted {
    fn new(fabric: &Fabric, names: [&str; 2], builder: &EndpointBuilder) -> Self {
        let devices = names.map(|name| fabric.create_device(DeviceConfig::named(name)));
        let log = Log::default();
        let domains = devices.each_ref().map(|on| Recorded::new(on.alloc_pd().unwrap(), &log));
        let endpoint = builder.rails(2).build(&domains.each_ref()).unwrap();
        Self { devices, domains, endpoint }
    }

    /// The two ends, connected.
    fn pair(builder: &EndpointBuilder) -> [Self; 2] {
        let fabric = Fabric::threaded();
        let mut near = Self::new(&fabric, ["near0", "near1"], builder);
        let mut far = Self::new(&fabric, ["far0", "far1"], builder);
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        [near, far]
    }

    /// Of rail 1.
    fn state(&self) -> RailState {
        self.endpoint.virtual_qp().rail_state(RailId::Data(1)).unwrap()
    }

    /// How often the device of rail 1 was asked.
    fn asked(&self) -> usize {
        self.domains[1].asked_for_ports.load(SeqCst)
    }
}

/// Over some devices the answer waits until whoever takes the port down is done, and polls wait for
/// it.
#[test]
fn a_port_is_asked_how_it_is_only_if_it_may_be_up_again() {
    for (faults, is_up, asked) in [
        (&[Fault::LinkDown][..], false, 0),
        (&[Fault::LinkDown, Fault::LinkUp], true, 1),
        (&[Fault::LinkDown, Fault::LinkUp, Fault::LinkDown], false, 1),
    ] {
        let [mut near, _far] = Counted::pair(&healed(Scheme::Spray));
        let before = near.asked();
        for fault in faults {
            near.devices[1].inject(When::Now, *fault);
        }
        near.endpoint.heal();
        assert_eq!(near.asked() - before, asked, "{faults:?}");
        assert_eq!(near.state() == RailState::InService, is_up, "{faults:?}");
    }
}

#[test]
fn a_port_that_stays_down_is_tried_once_in_an_interval() {
    let forever = Duration::from_secs(3600);
    let healing =
        Healing { first_interval: forever, longest_interval: forever, ..Healing::default() };
    for cut in 0..2 {
        let mut ends = Counted::pair(&healed(Scheme::Spray).healing(healing));
        ends[cut].devices[1].inject(When::Now, Fault::LinkDown);
        let before = ends.each_ref().map(Counted::asked);
        // Another thread makes the attempt. Long enough for a second one after the first.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(200) || ends[cut].asked() == before[cut] {
            assert!(begin.elapsed() < LONG, "nothing was tried");
            for end in &mut ends {
                _ = end.endpoint.poll(16);
                end.endpoint.heal();
            }
        }
        assert!(ends.iter().all(|end| end.state() == RailState::Down));
        assert_eq!(ends[cut].asked() - before[cut], 1);
        assert!(ends[1 - cut].asked() - before[1 - cut] <= 1);
    }
}

/// Polls go on meanwhile, and a rail that fails again before its queue pair is connected gets
/// another one.
#[test]
fn queue_pairs_that_take_long_to_connect_hold_nobody_up() {
    let rail = RailId::Data(1);
    for scheme in SCHEMES {
        let fabric = Fabric::threaded();
        let log = Log::default();
        let domain = |name| {
            let device = fabric.create_device(DeviceConfig::named(name));
            Recorded::new(device.alloc_pd().unwrap(), &log)
        };
        let domains = ["near", "far"].map(domain);
        let hold = |holds| domains.iter().for_each(|domain| domain.holds.store(holds, SeqCst));
        let [mut near, mut far] = domains.each_ref().map(|on| healed(scheme).build(&[on]).unwrap());
        connect_endpoints(&mut near, &mut far).unwrap();
        let mut random = Random(3);
        for round in 0..20 {
            let begin = Instant::now();
            // Queue pairs are connected only after these polls, which would wait without end if
            // they waited for a queue pair.
            hold(true);
            near.fail_rail(rail);
            let mut polls = 0;
            let mut others = random.below(3);
            while near.state() != QpState::Ready || far.state() != QpState::Ready {
                _ = near.poll(16);
                _ = far.poll(16);
                polls += 1;
                hold(polls < 100);
                if others > 0 && random.one_in(2000) {
                    others -= 1;
                    let end = if random.one_in(2) { &mut near } else { &mut far };
                    end.fail_rail(rail);
                }
                assert!(begin.elapsed() < LONG, "round {round}");
            }
            assert!(polls >= 100, "in service after {polls} polls");
        }
        let generation = |end: &Endpoint<_>| end.virtual_qp().rail_generation(rail);
        assert!(generation(&near) >= Some(20) && generation(&near) == generation(&far));
    }
}
