//! Rails that are replaced by hand, over a channel of text.

mod fixture;
mod recorded;
mod rerouted;

use fixture::{Host, connect_sets};
use polyrail::backend::{DeviceError, Domain};
use polyrail::chain::Chain;
use polyrail::endpoint::{
    Endpoint, EndpointBuilder, EndpointSet, RailMismatch, ReplaceError, ReplacementAddress,
    connect_endpoints,
};
use polyrail::hardware::QueuePair;
use polyrail::nic::{self, DeviceConfig, Fabric, Fault, NicError, When};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{self as engine, QpState, RailFailure, RailId, RailState, Scheme};
use recorded::{Asked, Log, Recorded, RecordedQp};
use rerouted::{Ends, LENGTH, rerouted};

/// As it arrives at the other end.
fn sent(address: &ReplacementAddress) -> ReplacementAddress {
    ReplacementAddress::from_json(address.to_json().as_bytes()).unwrap()
}

/// Two ends without traffic, of which `rail` is Down.
fn down(rail: RailId, builder: &EndpointBuilder) -> Ends {
    let mut ends = Ends::new(9, 3, builder);
    ends.near.endpoint.fail_rail(rail);
    ends.go_on(
        |_| (),
        |ends| ends.near.state(rail) == RailState::Down && ends.far.state(rail) == RailState::Down,
    );
    ends
}

/// New queue pairs at both ends.
fn replace_both(ends: &mut Ends, rail: RailId) {
    let near = ends.near.endpoint.new_queue_pair(rail).unwrap();
    let far = ends.far.endpoint.new_queue_pair_for(near.address()).unwrap();
    let [near_address, far_address] = [*near.address(), *far.address()];
    ends.near.endpoint.replace(near, &far_address).unwrap();
    ends.far.endpoint.replace(far, &near_address).unwrap();
    ends.carry();
}

/// What the engine said.
fn engine(error: engine::ReplaceError) -> ReplaceError {
    ReplaceError::Engine(error)
}

#[test]
fn both_ends_tell_each_other_where_the_new_queue_pairs_are() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut ends = Ends::new(2, 3, &rerouted(scheme));
        let rail = RailId::Data(1);
        ends.near.devices[1].inject(When::AfterBytes(3 * LENGTH as u64), Fault::LinkDown);
        ends.go_on(
            |_| (),
            |ends| {
                ends.near.state(rail) == RailState::Down && ends.far.state(rail) == RailState::Down
            },
        );
        let old = ends.near.endpoint.rail_reports()[1].qp_num;
        let refused = ends.near.endpoint.new_queue_pair(rail).unwrap_err();
        assert_eq!(Chain(&refused).to_string(), "rail 1 (device near1): port 1 is down");
        ends.near.devices[1].inject(When::Now, Fault::LinkUp);
        let near = ends.near.endpoint.new_queue_pair(rail).unwrap();
        let to_far = sent(near.address());
        assert_eq!((to_far.rail, to_far.generation, to_far.address.device), (rail, 1, 1));
        let far = ends.far.endpoint.new_queue_pair_for(&to_far).unwrap();
        let to_near = sent(far.address());
        assert_ne!(to_far.address.psn, to_near.address.psn);
        ends.far.endpoint.replace(far, &to_far).unwrap();
        assert_eq!(ends.far.state(rail), RailState::Joining);
        // Traffic goes on meanwhile.
        ends.go_on(|_| (), |ends| ends.near.received() > 10);
        ends.near.endpoint.replace(near, &to_near).unwrap();
        ends.carry();
        for end in [&ends.near, &ends.far] {
            assert_eq!((end.state(rail), end.generation(rail)), (RailState::InService, 1));
        }
        let report = &ends.near.endpoint.rail_reports()[1];
        assert_eq!(report.qp_num, to_far.qp_num);
        assert_ne!(report.qp_num, old);
        ends.finish(|_| ());
        let told = ends.near.told();
        assert!(told[2].starts_with("rail 1 (device near1) is back in service after "), "{told:?}");
        assert!(told[2].ends_with(": generation 1"), "{told:?}");
    }
}

#[test]
fn what_does_not_go_together_changes_nothing() {
    let rail = RailId::Data(1);
    let mut ends = down(rail, &rerouted(Scheme::Spray));
    let Ends { near, far, .. } = &mut ends;
    let (near, far) = (&mut near.endpoint, &mut far.endpoint);
    let other = RailId::Data(2);
    let state = RailState::InService;
    let expected = engine(engine::ReplaceError::State { rail: other, state });
    assert_eq!(near.new_queue_pair(other).unwrap_err(), expected);
    let none = RailId::Data(7);
    let expected = engine(engine::ReplaceError::NoRail(none));
    assert_eq!(near.new_queue_pair(none).unwrap_err(), expected);

    let good = *far.new_queue_pair(rail).unwrap().address();
    let refused = |near: &mut Endpoint, peer: ReplacementAddress| {
        let own = near.new_queue_pair(rail).unwrap();
        near.replace(own, &peer).unwrap_err()
    };
    let wrong = ReplaceError::Rails { here: rail, peer: other };
    assert_eq!(refused(near, ReplacementAddress { rail: other, ..good }), wrong);
    let later = ReplacementAddress { generation: 2, ..good };
    let wrong = ReplaceError::Generation { rail, here: 1, peer: 2 };
    assert_eq!(refused(near, later), wrong);
    assert_eq!(near.new_queue_pair_for(&later).unwrap_err(), wrong);
    let mut elsewhere = good;
    elsewhere.address.device = 2;
    let wrong = ReplaceError::Ends(RailMismatch::Devices { rail, here: 1, peer: 2 });
    assert_eq!(refused(near, elsewhere), wrong);
    assert_eq!(near.new_queue_pair_for(&elsewhere).unwrap_err(), wrong);
    let mut unreachable = good;
    unreachable.address.gid = "::ffff:10.0.0.2".parse().unwrap();
    let text = refused(near, unreachable).to_string();
    assert!(text.starts_with("rail 1 (device near1): IPv6 link-local here"), "{text}");
    assert_eq!(near.virtual_qp().rail_state(rail), Some(RailState::Down));

    // One that was made too early: meanwhile the next generation has failed as well.
    let early = near.new_queue_pair(rail).unwrap();
    let far_one = far.new_queue_pair(rail).unwrap();
    let address = *early.address();
    let to_near = *far_one.address();
    far.replace(far_one, &address).unwrap();
    far.fail_rail(rail);
    ends.go_on(
        |_| (),
        |ends| ends.near.generation(rail) == 1 && ends.near.state(rail) == RailState::Down,
    );
    let expected = engine::ReplaceError::Generation { rail, expected: 2, given: 1 };
    assert_eq!(ends.near.endpoint.replace(early, &to_near), Err(engine(expected)));
    replace_both(&mut ends, rail);
    assert!(ends.is_ready(), "{}", ends.report());
    assert_eq!(ends.near.generation(rail), 2);
    ends.finish(|_| ());
}

#[test]
fn an_endpoint_that_failed_or_whose_rails_fail_for_good_gets_no_queue_pairs() {
    let rail = RailId::Data(1);
    let mut ends = down(rail, &rerouted(Scheme::Dqplb));
    ends.near.endpoint.fail_all();
    let expected = engine(engine::ReplaceError::InErrorState);
    assert_eq!(ends.near.endpoint.new_queue_pair(rail).unwrap_err(), expected);
    let fabric = Fabric::deterministic(1);
    let domain = fabric.create_device(DeviceConfig::named("x")).alloc_pd().unwrap();
    let fatal: Endpoint = EndpointBuilder::new().build(&[&domain]).unwrap();
    let state = RailState::InService;
    let expected = engine(engine::ReplaceError::State { rail, state });
    assert_eq!(fatal.new_queue_pair(rail).unwrap_err(), expected);
}

#[test]
fn what_requests_wait_for_goes_to_another_device() {
    let ends = down(RailId::Notify, &rerouted(Scheme::Spray));
    ends.near.devices[0].inject(When::Now, Fault::LinkDown);
    let near = ends.near.endpoint.new_queue_pair(RailId::Notify).unwrap();
    assert_eq!(near.address().address.device, 1);
    let far = ends.far.endpoint.new_queue_pair_for(near.address()).unwrap();
    assert_eq!(far.address().address.device, 1);
    // Others stay where they were: there are enough of them.
    let ends = down(RailId::Data(1), &rerouted(Scheme::Spray));
    ends.near.devices[1].inject(When::Now, Fault::DeviceGone);
    let error = ends.near.endpoint.new_queue_pair(RailId::Data(1)).unwrap_err();
    let source = DeviceError::Nic(NicError::DeviceGone);
    let device = "near1".to_owned();
    assert_eq!(error, ReplaceError::Device { rail: RailId::Data(1), device, source });
}

type RecordedEndpoint = Endpoint<RecordedQp, nic::CompletionQueue>;

fn recorded(fabric: &Fabric, name: &str, builder: &EndpointBuilder) -> (RecordedEndpoint, Log) {
    let log = Log::default();
    let domain = fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let domain = Recorded::new(domain, &log);
    (builder.build(&[&domain]).unwrap(), log)
}

/// A new queue pair is connected before it gets receives, and gets them before anything is told; the old
/// one is never reset.
#[test]
fn the_order_is_that_of_the_design() {
    let fabric = Fabric::threaded();
    let builder = rerouted(Scheme::Dqplb);
    let (mut near, log) = recorded(&fabric, "near", &builder);
    let (mut far, _) = recorded(&fabric, "far", &builder);
    connect_endpoints(&mut near, &mut far).unwrap();
    let rail = RailId::Data(3);
    near.fail_rail(rail);
    while near.virtual_qp().rail_state(rail) != Some(RailState::Down) {
        for endpoint in [&mut near, &mut far] {
            assert_eq!(endpoint.poll(16).error, None);
        }
        while let Some(message) = near.next_control() {
            far.control(message).unwrap();
        }
        while let Some(message) = far.next_control() {
            near.control(message).unwrap();
        }
    }
    log.lock().unwrap().clear();
    let old = near.virtual_qp().physical(rail).unwrap().qp_num();
    let own = near.new_queue_pair(rail).unwrap();
    let peer = far.new_queue_pair_for(own.address()).unwrap();
    let number = own.address().qp_num;
    near.replace(own, peer.address()).unwrap();
    let log = log.lock().unwrap();
    let asked: Vec<(u32, &Asked)> = log.iter().map(|(_, qp_num, asked)| (*qp_num, asked)).collect();
    let [
        (_, Asked::Init { .. }),
        (_, Asked::Rtr { .. }),
        (_, Asked::Rts { psn, .. }),
        (_, Asked::Receives(receives)),
        (last, Asked::Retire),
    ] = asked[..]
    else {
        panic!("{asked:?}")
    };
    assert!(asked[..4].iter().all(|(qp_num, _)| *qp_num == number), "{asked:?}");
    assert_eq!((*receives, last), (100, old));
    assert_ne!(*psn, near.address().rails[0].psn);
}

/// A member of a set is replaced on the set's completion queues, and the others notice nothing.
#[test]
fn members_of_sets_are_replaced_by_number() {
    let fabric = Fabric::deterministic(4);
    let near = Host::new(&fabric, "near", 2, LENGTH);
    let far = Host::new(&fabric, "far", 2, LENGTH);
    let builder = rerouted(Scheme::Spray);
    let shapes = [(builder, &[0, 1][..]), (builder, &[1, 0][..])];
    let (mut near_set, mut far_set) = (near.set(&shapes), far.set(&shapes));
    connect_sets(&mut near_set, &mut far_set);
    let rail = RailId::Data(2);
    near_set.get_mut(1).unwrap().fail_rail(rail);
    let step = |near_set: &mut EndpointSet, far_set: &mut EndpointSet| {
        fabric.step();
        assert_eq!((near_set.poll(16).error, far_set.poll(16).error), (None, None));
        for (near, far) in near_set.qps_mut().zip(far_set.qps_mut()) {
            while let Some(message) = near.next_control() {
                far.control(message).unwrap();
            }
            while let Some(message) = far.next_control() {
                near.control(message).unwrap();
            }
        }
    };
    for _ in 0..200 {
        step(&mut near_set, &mut far_set);
    }
    let own = near_set.new_queue_pair(1, rail).unwrap();
    let peer = far_set.new_queue_pair_for(1, own.address()).unwrap();
    let (to_far, to_near) = (*own.address(), *peer.address());
    near_set.replace(1, own, &to_near).unwrap();
    far_set.replace(1, peer, &to_far).unwrap();
    step(&mut near_set, &mut far_set);
    for set in [&near_set, &far_set] {
        assert!(set.qps().all(|qp| qp.state() == QpState::Ready));
        let generations: Vec<_> =
            set.qps().map(|qp| qp.virtual_qp().rail_generation(rail)).collect();
        assert_eq!(generations, [Some(0), Some(1)]);
        set.virtual_cq().invariants();
    }
    let none = ReplaceError::NoMember { number: 2, count: 2 };
    assert_eq!(near_set.new_queue_pair(2, rail).unwrap_err(), none);
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

/// Completion queues have room for queue pairs that come from other devices, whatever drivers grant.
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
        let all: Vec<u32> = cqs.iter().map(polyrail::hardware::CompletionQueue::capacity).collect();
        assert!(endpoint.virtual_qp().rails().all(|qp| qp.limits().max_send_wr == 256));
        assert_eq!(domains[0].max_qp_wr(), 32_768);
        all
    };
    assert_eq!(capacity(RailFailure::Fatal), [512, 256]);
    assert_eq!(capacity(RailFailure::Reroute), [512, 768]);
}
