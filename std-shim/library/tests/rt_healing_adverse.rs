//! Endpoints that heal by themselves, in adverse conditions: owners and peers that are slow or ask
//! too much.

mod fixture;
mod rerouted;

use fixture::{Host, LONG, holds_with};
use polyrail::endpoint::{
    Endpoint, EndpointBuilder, HealingLink, HealingMessage, ReplacementAddress, connect_endpoints,
};
use polyrail::hardware::QueuePair;
use polyrail::heal::Healing;
use polyrail::nic::{Fabric, Fault, When};
use polyrail::progress::{ProgressOptions, ProgressThread};
use polyrail::verbs::{RecvWr, SendWr};
use polyrail::virtual_cq::VirtualWc;
use polyrail::virtual_qp::{QpState, RailId, RailState, Scheme};
use rerouted::{Ends, first_offer, healed, unwanted};
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

fn said(link: &HealingLink) -> Vec<HealingMessage> {
    std::iter::from_fn(|| link.next_message()).collect()
}

fn carry(from: &HealingLink, to: &HealingLink) {
    said(from).into_iter().for_each(|message| to.handle(message).unwrap());
}

/// Without any requests.
fn apart() -> Ends {
    let mut ends = Ends::apart(Fabric::deterministic(2), 4, &healed(Scheme::Spray));
    ends.limit(0);
    ends
}

fn steps(ends: &mut Ends, count: usize) {
    (0..count).for_each(|_| ends.step());
}

/// Two endpoints that are not connected yet, and their hosts.
fn strangers(fabric: &Fabric, builder: &EndpointBuilder) -> ([Host; 2], [Endpoint; 2]) {
    let hosts = ["near", "far"].map(|name| Host::new(fabric, name, 4, 1 << 16));
    let endpoints = hosts.each_ref().map(|host| builder.build(&host.all()).unwrap());
    (hosts, endpoints)
}

/// Nobody carries anything meanwhile, or the peer does not poll.
#[test]
fn ports_that_flap_say_no_more_than_one_can_hear() {
    let mut ends = apart();
    let links = ends.links();
    for _ in 0..300 {
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            ends.near.devices[1].inject(When::Now, fault);
            ends.far.devices[1].inject(When::Now, fault);
            sleep(Duration::from_millis(1));
            steps(&mut ends, 8);
        }
    }
    for link in links {
        let said = said(&link);
        assert!(said.len() < 32, "{} messages", said.len());
    }
}

/// Also if each comes with an answer that nobody carries.
#[test]
fn a_peer_that_asks_without_end_is_not_answered_without_end() {
    let mut ends = apart();
    let address = unwanted();
    for link in ends.links() {
        for number in 0..3000 {
            let generation = 100 + number;
            // Refused if too many wait.
            _ = link.handle(HealingMessage::Offer(ReplacementAddress { generation, ..address }));
            steps(&mut ends, 8);
        }
        let said = said(&link);
        assert!(said.len() < 300, "{} messages", said.len());
        // It goes on to hear as soon as they are carried.
        steps(&mut ends, 8);
        assert!(link.next_message().is_some());
    }
}

/// There may have been an earlier one, of the same generation, before the link broke.
#[test]
fn an_answer_to_another_offer_is_refused_and_the_offer_stands() {
    let rail = RailId::Data(1);
    let mut ends = apart();
    let links = ends.links();
    ends.near.endpoint.fail_rail(rail);
    let (at, offered) = first_offer(&mut ends, &links);
    let ReplacementAddress { generation, qp_num, .. } = offered;
    links[at].handle(HealingMessage::Answer { to: qp_num + 1, with: offered }).unwrap();
    steps(&mut ends, 100);
    assert_eq!(said(&links[at]), [HealingMessage::Refused { rail, generation }]);
    links[1 - at].handle(HealingMessage::Offer(offered)).unwrap();
    carry_until_ready(&mut ends);
    let end = [&ends.near, &ends.far][at];
    assert_eq!(end.endpoint.virtual_qp().physical(rail).unwrap().qp_num(), qp_num);
    assert_eq!(end.generation(rail), 1);
}

/// Requests that wait for the peer alone do not wait for a rail that stays out of service.
#[test]
fn a_peer_may_be_late_although_a_rail_is_out_of_service() {
    const TIMEOUT: Duration = Duration::from_millis(100);
    let healing = Healing { rail_timeout: Some(TIMEOUT), ..Healing::default() };
    for (scheme, is_send) in [(Scheme::Spray, true), (Scheme::Spray, false), (Scheme::Dqplb, false)]
    {
        let fabric = Fabric::deterministic(4);
        let builder = healed(scheme).healing(healing);
        let ([near_host, far_host], [mut near, mut far]) = strangers(&fabric, &builder);
        connect_endpoints(&mut near, &mut far).unwrap();
        let poll = |near: &mut Endpoint, far: &mut Endpoint| {
            fabric.step();
            let batch = near.poll(16);
            assert_eq!(batch.error, None);
            let completions = batch.completions.into_iter().chain(far.poll(16).completions);
            completions.inspect(|wc| assert!(wc.status.is_success(), "{wc:?}")).count()
        };
        near_host.devices[3].inject(When::Now, Fault::LinkDown);
        let begin = Instant::now();
        while near.virtual_qp().rail_state(RailId::Data(3)) != Some(RailState::Down) {
            poll(&mut near, &mut far);
            assert!(begin.elapsed() < LONG);
        }
        let keys = near_host.buffer.toward(&far_host.buffer.remote()).unwrap();
        let from = near_host.buffer.local(0, 20_000).unwrap();
        let wr = match is_send {
            true => SendWr::send(1, from, &keys),
            false => SendWr::write_with_imm(1, from, far_host.buffer.addr(), 5, &keys),
        };
        near.post_send(&wr).unwrap();
        let mut completed = 0;
        let begin = Instant::now();
        while begin.elapsed() < 4 * TIMEOUT {
            completed += poll(&mut near, &mut far);
        }
        assert_eq!(
            near.state(),
            QpState::Degraded,
            "{scheme:?}: {:?}",
            near.virtual_qp().failure()
        );
        let local_keys = far_host.buffer.local_keys();
        let wr = match is_send {
            true => RecvWr::data(1, far_host.buffer.local(0, 20_000).unwrap(), &local_keys),
            false => RecvWr::notification(1),
        };
        far.post_recv(&wr).unwrap();
        let begin = Instant::now();
        while completed < 2 && begin.elapsed() < LONG {
            completed += poll(&mut near, &mut far);
        }
        assert_eq!(completed, 2, "{scheme:?}");
    }
}

/// A server polls what waits for its peer, too.
#[test]
fn a_port_that_flaps_before_the_endpoints_are_connected_costs_nothing() {
    for scheme in SCHEMES {
        let fabric = Fabric::deterministic(4);
        let ([near_host, _far_host], [mut near, mut far]) = strangers(&fabric, &healed(scheme));
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            near_host.devices[1].inject(When::Now, fault);
            sleep(Duration::from_millis(2));
            near.heal();
        }
        connect_endpoints(&mut near, &mut far).unwrap();
        assert_eq!(near.state(), QpState::Ready);
    }
}

/// However its peer is busy with other things.
#[test]
fn an_endpoint_that_is_given_up_tells_its_peer() {
    for scheme in SCHEMES {
        let mut ends = Ends::new(6, 4, &healed(scheme));
        ends.near.may_fail = true;
        ends.far.may_fail = true;
        ends.limit(0);
        steps(&mut ends, 20);
        ends.near.endpoint.give_up(Duration::from_secs(1));
        let begin = Instant::now();
        while ends.far.endpoint.state() != QpState::Error {
            ends.fabric.step();
            _ = ends.far.endpoint.poll(16);
            assert!(begin.elapsed() < LONG, "{}", ends.report());
        }
    }
}

/// They have a watch of their own, which does not blame a rail for a peer that is late.
#[test]
fn a_threads_stall_timeout_is_not_for_endpoints_that_heal() {
    let waited = Duration::from_millis(50);
    let fabric = Fabric::threaded();
    let ([near_host, far_host], [mut near, mut far]) = strangers(&fabric, &healed(Scheme::Spray));
    connect_endpoints(&mut near, &mut far).unwrap();
    let options = ProgressOptions { stall_timeout: Some(waited), ..ProgressOptions::default() };
    let thread = ProgressThread::spawn_with(near, options).unwrap();
    near_host.devices[0].inject(When::Now, Fault::Silent(true));
    let mut sends = thread.handle(0).unwrap();
    let keys = near_host.buffer.toward(&far_host.buffer.remote()).unwrap();
    let from = near_host.buffer.local(0, 64).unwrap();
    let wr = SendWr::write(1, from, far_host.buffer.addr(), &keys);
    let pending = sends.post_send(&wr).unwrap();
    // Rails are looked at only every 256 rounds.
    sleep(20 * waited);
    assert_eq!(sends.endpoint_error(), None);
    near_host.devices[0].inject(When::Now, Fault::Silent(false));
    assert!(pending.wait().unwrap().status.is_success());
    assert!(thread.take_rail_event().is_none());
}

#[test]
fn a_thread_that_ends_tells_the_peers() {
    let fabric = Fabric::threaded();
    let (_hosts, [mut near, mut far]) = strangers(&fabric, &healed(Scheme::Spray));
    connect_endpoints(&mut near, &mut far).unwrap();
    _ = ProgressThread::spawn(near).unwrap().shutdown().unwrap();
    let begin = Instant::now();
    while far.state() != QpState::Error {
        _ = far.poll(16);
        assert!(begin.elapsed() < LONG, "{:?}", far.state());
    }
}

/// The longest interval that can be said is not none.
#[test]
fn an_interval_of_for_ever_is_not_none() {
    let forever = Duration::MAX;
    let healing =
        Healing { first_interval: forever, longest_interval: forever, ..Healing::default() };
    let mut ends =
        Ends::apart(Fabric::deterministic(2), 4, &healed(Scheme::Spray).healing(healing));
    ends.limit(0);
    let links = ends.links();
    let rail = RailId::Data(1);
    ends.near.endpoint.fail_rail(rail);
    let mut offers = 0;
    for _ in 0..500 {
        steps(&mut ends, 8);
        for (from, to) in [(0, 1), (1, 0)] {
            for message in said(&links[from]) {
                if let HealingMessage::Offer(ReplacementAddress { rail, generation, .. }) = message
                {
                    offers += 1;
                    links[from].handle(HealingMessage::Refused { rail, generation }).unwrap();
                } else {
                    links[to].handle(message).unwrap();
                }
            }
        }
    }
    assert_eq!(offers, 1);
}

/// What did not fit is told as soon as there is room, whatever else there is to do by then.
#[test]
fn what_had_no_room_is_told_later() {
    let mut ends = apart();
    let [near, far] = ends.links();
    let rail = RailId::Data(1);
    let address = unwanted();
    ends.near.endpoint.fail_rail(rail);
    let mut offer = None;
    for _ in 0..200 {
        steps(&mut ends, 8);
        carry(&far, &near);
        for message in said(&near) {
            if matches!(message, HealingMessage::Offer(_)) {
                offer = Some(message);
            } else {
                far.handle(message).unwrap();
            }
        }
    }
    assert_eq!(ends.far.state(rail), RailState::Down, "{}", ends.report());
    // So much to say that there is no room; then the answer, and as much again behind it.
    let ask = |ends: &mut Ends, generations: Range<u16>| {
        for generation in generations {
            let with = ReplacementAddress { generation, ..address };
            far.handle(HealingMessage::Answer { to: address.qp_num, with }).unwrap();
        }
        steps(ends, 8);
    };
    ask(&mut ends, 100..120);
    far.handle(offer.expect("the near end offers")).unwrap();
    ask(&mut ends, 120..121);
    assert_eq!(ends.far.state(rail), RailState::Joining);
    ask(&mut ends, 121..141);
    while ends.near.state(rail) != RailState::Joining {
        near.handle(far.next_message().unwrap()).unwrap();
        steps(&mut ends, 8);
    }
    carry(&near, &far);
    steps(&mut ends, 16);
    assert_eq!(ends.far.endpoint.state(), QpState::Ready, "{}", ends.report());
    for _ in 0..10 {
        carry(&far, &near);
        carry(&near, &far);
        steps(&mut ends, 8);
    }
    assert!(ends.is_ready(), "{}", ends.report());
}

/// Two ends with limits, of which the near one is told nothing of a rail that fails with requests
/// in flight. Either may give up.
fn impatient_ends(patience: Duration) -> Ends {
    let timeout = Some(patience);
    let healing = Healing { fence_timeout: timeout, rail_timeout: timeout, ..Healing::default() };
    let builder = healed(Scheme::Spray).healing(healing);
    let mut ends = Ends::apart(Fabric::deterministic(2), 4, &builder);
    ends.near.may_fail = true;
    ends.far.may_fail = true;
    ends
}

const PATIENCE: Duration = Duration::from_millis(160);

fn carry_until_ready(ends: &mut Ends) {
    assert!(are_ready_again(ends), "{}", ends.report());
}

/// Carries everything between the two ends until all is well. Returns whether no end gave up.
fn are_ready_again(ends: &mut Ends) -> bool {
    let [near, far] = ends.links();
    let begin = Instant::now();
    while !ends.is_ready() {
        if [&ends.near, &ends.far].iter().any(|end| end.endpoint.state() == QpState::Error) {
            return false;
        }
        steps(ends, 8);
        carry(&near, &far);
        carry(&far, &near);
        assert!(begin.elapsed() < LONG, "{}", ends.report());
    }
    true
}

/// What the peer told meanwhile is heard before patience ends.
#[test]
fn an_owner_who_was_away_has_not_waited() {
    assert!(holds_with(PATIENCE, |patience| {
        let mut ends = impatient_ends(patience);
        ends.near.devices[1].inject(When::Bytes(50_000), Fault::LinkDown);
        ends.go_on(|_| (), |ends| !ends.near.events.is_empty());
        sleep(3 * patience);
        steps(&mut ends, 40);
        if ends.near.endpoint.state() == QpState::Error {
            return false;
        }
        assert_eq!(ends.near.endpoint.state(), QpState::Degraded, "{}", ends.report());
        ends.near.devices[1].inject(When::Now, Fault::LinkUp);
        are_ready_again(&mut ends)
    }));
}

/// A peer may be away while there is nothing to do.
#[test]
fn patience_begins_with_requests() {
    assert!(holds_with(PATIENCE, |patience| {
        let mut ends = impatient_ends(patience);
        ends.limit(0);
        ends.near.endpoint.fail_rail(RailId::Data(1));
        let begin = Instant::now();
        while begin.elapsed() < 2 * patience {
            steps(&mut ends, 1);
        }
        ends.near.limit = 3;
        steps(&mut ends, 40);
        if ends.near.endpoint.state() == QpState::Error {
            return false;
        }
        assert_eq!(ends.near.endpoint.state(), QpState::Degraded, "{}", ends.report());
        are_ready_again(&mut ends)
    }));
}

/// Whoever polls late is told of everything that arrived before the peer's end, and of the end.
#[test]
fn what_arrived_before_the_end_is_told() {
    const MESSAGES: u64 = 60;
    for scheme in SCHEMES {
        let fabric = Fabric::deterministic(4);
        let ([near_host, far_host], [mut near, mut far]) = strangers(&fabric, &healed(scheme));
        connect_endpoints(&mut near, &mut far).unwrap();
        let keys = near_host.buffer.toward(&far_host.buffer.remote()).unwrap();
        let from = near_host.buffer.local(0, 9000).unwrap();
        for number in 0..MESSAGES {
            far.post_recv(&RecvWr::notification(number)).unwrap();
            let to = far_host.buffer.addr();
            near.post_send(&SendWr::write_with_imm(number, from, to, 5, &keys)).unwrap();
        }
        let mut sent = 0;
        let begin = Instant::now();
        while sent < MESSAGES as usize && begin.elapsed() < LONG {
            fabric.step();
            sent += near.poll(16).completions.len();
        }
        near.give_up(Duration::from_secs(1));
        drop(near);
        let mut told = Vec::new();
        while far.state() != QpState::Error || told.len() < MESSAGES as usize {
            fabric.step();
            told.extend(far.poll(1).completions);
            assert!(begin.elapsed() < LONG, "{}", told.len());
        }
        let is_next =
            |(number, wc): (u64, &VirtualWc)| wc.wr_id == number && wc.status.is_success();
        assert!((0..).zip(&told).all(is_next), "{told:?}");
    }
}
