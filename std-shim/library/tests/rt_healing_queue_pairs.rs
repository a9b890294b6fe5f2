//! New queue pairs in the place of queue pairs that failed: what the two ends exchange, and in
//! which order they act.

mod fixture;
mod recorded;
mod rerouted;

use fixture::{Host, connect_sets};
use polyrail::backend::Domain;
use polyrail::endpoint::{
    Endpoint, EndpointBuilder, HealingLink, HealingMessage, ReplacementAddress, connect_endpoints,
};
use polyrail::hardware::{CompletionQueue, QueuePair};
use polyrail::nic::{self, DeviceConfig, Fabric, Fault, When};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{QpState, RailFailure, RailId, RailState, Scheme};
use recorded::{Asked, Log, Recorded, RecordedQp};
use rerouted::{Ends, LENGTH, first_offer, healed};
use std::time::{Duration, Instant};

/// Carries all messages as text, and returns them.
fn carry(links: &[HealingLink; 2]) -> Vec<HealingMessage> {
    let mut carried = Vec::new();
    for at in 0..2 {
        while let Some(message) = links[at].next_message() {
            let received = HealingMessage::from_json(message.to_json().as_bytes()).unwrap();
            links[1 - at].handle(received).unwrap();
            carried.push(received);
        }
    }
    carried
}

#[test]
fn both_ends_send_each_other_where_the_new_queue_pairs_are() {
    let rail = RailId::Data(1);
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut ends = Ends::apart(Fabric::deterministic(2), 3, &healed(scheme));
        let links = ends.links();
        let old = ends.near.endpoint.rail_reports()[1].qp_num;
        ends.near.devices[1].inject(When::Bytes(3 * LENGTH as u64), Fault::LinkDown);
        let is_down = |ends: &Ends| {
            [&ends.near, &ends.far].iter().all(|end| end.state(rail) == RailState::Down)
        };
        ends.go_on(|_| _ = carry(&links), is_down);
        ends.near.devices[1].inject(When::Now, Fault::LinkUp);
        let mut carried = Vec::new();
        ends.go_on(|_| carried.extend(carry(&links)), Ends::is_ready);
        let mut answers = carried.iter().filter_map(|message| match *message {
            HealingMessage::Answer { to, with } => Some((to, with)),
            _ => None,
        });
        let (to, with) = answers.next_back().expect("one end answered");
        let offered = carried.iter().find_map(|message| match message {
            HealingMessage::Offer(offered) if offered.qp_num == to => Some(*offered),
            _ => None,
        });
        let offered = offered.expect("the answer names an offer");
        for address in [offered, with] {
            let ReplacementAddress { generation, address, .. } = address;
            assert_eq!((address.device, generation), (1, 1));
        }
        assert_ne!(offered.address.psn, with.address.psn);
        for end in [&ends.near, &ends.far] {
            assert_eq!((end.state(rail), end.generation(rail)), (RailState::InService, 1));
        }
        let report = &ends.near.endpoint.rail_reports()[1];
        assert!([offered.qp_num, with.qp_num].contains(&report.qp_num));
        assert_ne!(report.qp_num, old);
        ends.finish(|_| _ = carry(&links));
        let told = ends.near.told();
        assert!(told[2].starts_with("rail 1 (device near1) is back in service after "), "{told:?}");
        assert!(told[2].ends_with(": generation 1"), "{told:?}");
    }
}

#[test]
fn an_offer_that_fits_nothing_is_refused_and_changes_nothing() {
    let (rail, other) = (RailId::Data(1), RailId::Data(2));
    let mut ends = Ends::apart(Fabric::deterministic(9), 3, &healed(Scheme::Spray));
    ends.limit(0);
    let links = ends.links();
    ends.near.endpoint.fail_rail(rail);
    let (at, offered) = first_offer(&mut ends, &links);
    let link = &links[1 - at];
    let mut elsewhere = offered;
    elsewhere.address.device = 2;
    let mut unreachable = offered;
    unreachable.address.gid = "::ffff:10.0.0.2".parse().unwrap();
    for wrong in [
        ReplacementAddress { rail: other, ..offered },
        ReplacementAddress { generation: 2, ..offered },
        elsewhere,
        unreachable,
    ] {
        link.handle(HealingMessage::Offer(wrong)).unwrap();
        (0..100).for_each(|_| ends.step());
        let ReplacementAddress { rail: of, generation, .. } = wrong;
        assert_eq!(link.next_message(), Some(HealingMessage::Refused { rail: of, generation }));
        assert_eq!(link.next_message(), None);
        for end in [&ends.near, &ends.far] {
            assert_eq!((end.state(rail), end.generation(rail)), (RailState::Down, 0), "{wrong:?}");
            assert_eq!(end.state(other), RailState::InService);
        }
    }
    link.handle(HealingMessage::Offer(offered)).unwrap();
    ends.go_on(|_| _ = carry(&links), Ends::is_ready);
    assert_eq!(ends.near.generation(rail), 1);
}

type RecordedEndpoint = Endpoint<RecordedQp, nic::CompletionQueue>;

fn recorded(fabric: &Fabric, name: &str, builder: &EndpointBuilder) -> (RecordedEndpoint, Log) {
    let log = Log::default();
    let domain = fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let domain = Recorded::new(domain, &log);
    (builder.build(&[&domain]).unwrap(), log)
}

/// A new queue pair is connected before it gets receives, and gets them before the peer learns of
/// it. The old queue pair is retired last and never reset, or its number could be given away while
/// the peer still sends to it.
#[test]
fn a_new_queue_pair_has_its_receives_before_the_old_one_is_retired() {
    let fabric = Fabric::threaded();
    let builder = healed(Scheme::Dqplb);
    let (mut near, log) = recorded(&fabric, "near", &builder);
    let (mut far, _) = recorded(&fabric, "far", &builder);
    connect_endpoints(&mut near, &mut far).unwrap();
    let rail = RailId::Data(3);
    let old = near.virtual_qp().physical(rail).unwrap().qp_num();
    log.lock().unwrap().clear();
    near.fail_rail(rail);
    while [&near, &far].iter().any(|end| end.state() != QpState::Ready) {
        for endpoint in [&mut near, &mut far] {
            assert_eq!(endpoint.poll(16).error, None);
        }
    }
    let new = near.virtual_qp().physical(rail).unwrap().qp_num();
    assert_ne!(new, old);
    // A queue pair takes 5 ms to create: no second one is under way.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) {
        for endpoint in [&mut near, &mut far] {
            assert_eq!(endpoint.poll(16).error, None);
        }
    }
    let log = log.lock().unwrap();
    let asked: Vec<(u32, &Asked)> = log.iter().map(|(_, qp_num, asked)| (*qp_num, asked)).collect();
    let [
        (failed, Asked::Err),
        (_, Asked::Init { .. }),
        (_, Asked::Rtr { .. }),
        (_, Asked::Rts { psn, .. }),
        (_, Asked::Receives(receives)),
        (last, Asked::Retire),
    ] = asked[..]
    else {
        panic!("{asked:?}")
    };
    assert!(asked[1..5].iter().all(|(qp_num, _)| *qp_num == new), "{asked:?}");
    assert_eq!((failed, *receives, last), (old, 100, old));
    assert_ne!(*psn, near.address().rails[0].psn);
}

/// A member of a set gets its new queue pair on the set's completion queues, and the other members
/// notice nothing.
#[test]
fn a_member_of_a_set_gets_a_queue_pair_of_the_sets_devices() {
    let fabric = Fabric::deterministic(4);
    let near = Host::new(&fabric, "near", 2, LENGTH);
    let far = Host::new(&fabric, "far", 2, LENGTH);
    let builder = healed(Scheme::Spray);
    let shapes = [(builder, &[0, 1][..]), (builder, &[1, 0][..])];
    let (mut near_set, mut far_set) = (near.set(&shapes), far.set(&shapes));
    connect_sets(&mut near_set, &mut far_set);
    let rail = RailId::Data(2);
    near_set.get_mut(1).unwrap().fail_rail(rail);
    for _ in 0..1000 {
        fabric.step();
        assert_eq!((near_set.poll(16).error, far_set.poll(16).error), (None, None));
    }
    for set in [&near_set, &far_set] {
        assert!(set.qps().all(|qp| qp.state() == QpState::Ready));
        let generations: Vec<_> =
            set.qps().map(|qp| qp.virtual_qp().rail_generation(rail)).collect();
        assert_eq!(generations, [Some(0), Some(1)]);
        set.virtual_cq().invariants();
    }
    // Requests go over all of them.
    let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
    let local = near.buffer.local(0, LENGTH as u32).unwrap();
    for qp in 0..2 {
        far_set.get_mut(qp).unwrap().post_recv(&RecvWr::notification(1)).unwrap();
        let wr = SendWr::write_with_imm(1, local, far.buffer.addr(), 1, &keys);
        near_set.get_mut(qp).unwrap().post_send(&wr).unwrap();
    }
    let mut completed = Vec::new();
    for _ in 0..2000 {
        fabric.step();
        completed.extend(near_set.poll(16).completions);
        completed.extend(far_set.poll(16).completions);
    }
    assert_eq!(completed.len(), 4);
    assert!(completed.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{completed:?}");
}

/// Completion queues have room for queue pairs that come from other devices, whatever drivers
/// grant.
#[test]
fn there_is_room_for_guests() {
    let fabric = Fabric::threaded();
    let capacity = |rail_failure| {
        let log = Log::default();
        let domain = |name| {
            let domain = fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
            Recorded::new(domain, &log)
        };
        let domains = [domain("a"), domain("b")];
        let builder = EndpointBuilder::new().rails(2).rail_failure(rail_failure);
        let endpoint = builder.build(&domains.each_ref()).unwrap();
        let cqs = endpoint.virtual_cq().cqs();
        let all: Vec<u32> = cqs.iter().map(CompletionQueue::capacity).collect();
        assert!(endpoint.virtual_qp().rails().all(|qp| qp.limits().max_send_wr == 256));
        assert_eq!(domains[0].max_qp_wr(), 32_768);
        all
    };
    assert_eq!(capacity(RailFailure::Fatal), [512, 256]);
    assert_eq!(capacity(RailFailure::Reroute), [512, 768]);
}
