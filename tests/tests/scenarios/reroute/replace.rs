//! Queue pairs that take a rail's place. `core/docs/rails-that-fail.md`, "States" and "What each
//! owner must do".

use super::{RAIL_0, RAIL_1, fail, fenced, ready, replace, spray};
use polyrail_core::hardware::{CompletionQueue, QpLimits, Refusal};
use polyrail_core::verbs::{DeviceId, Opcode, WcStatus};
use polyrail_core::virtual_cq::AttachError;
use polyrail_core::virtual_qp::{
    PostSendError, QpState, RailEventKind, RailId, RailState, Rejected, ReplaceError, ReportedState,
};
use polyrail_tests::rig::{self, Rig, Setup, TestCq, ok};
use polyrail_tests::scripted::{LIMITS, Nic, ScriptedCq};

fn down(rig: &mut Rig, rail: RailId) {
    rig.qp.fail_rail(rail);
    rig.qp.control(fenced(rail, 0, 0)).unwrap();
    assert_eq!(rig.qp.rail_state(rail), Some(RailState::Down));
}

fn refusal(
    rig: &mut Rig,
    rail: RailId,
    generation: u16,
    (device, limits): (usize, QpLimits),
) -> Option<ReplaceError> {
    let (queue_pair, handle) = rig.nic.qp(77, &rig.cqs[device], limits);
    let replaced = rig.qp.replace_rail(&mut rig.cq, 0, rail, generation, queue_pair);
    rig.qp.invariants();
    rig.cq.invariants();
    match replaced {
        Ok(_) => None,
        Err(Rejected { error, .. }) => {
            assert!(handle.recvs().is_empty(), "nothing was posted to it");
            Some(error)
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_given_back() {
    let mut rig = Setup { rail_devices: vec![0, 0], devices: 2, ..spray() }.rig();
    let fits = (0, LIMITS);
    let state = ReplaceError::State { rail: RAIL_1, state: RailState::InService };
    assert_eq!(refusal(&mut rig, RAIL_1, 1, fits), Some(state));
    down(&mut rig, RAIL_1);
    for given in [0, 2, u16::MAX] {
        let generation = ReplaceError::Generation { rail: RAIL_1, expected: 1, given };
        assert_eq!(refusal(&mut rig, RAIL_1, given, fits), Some(generation));
    }
    let no_rail = ReplaceError::NoRail(RailId::Data(2));
    assert_eq!(refusal(&mut rig, RailId::Data(2), 1, fits), Some(no_rail));
    let device = ReplaceError::Device { device: DeviceId(1) };
    assert_eq!(refusal(&mut rig, RAIL_1, 1, (1, LIMITS)), Some(device));
    for (what, limits) in [
        ("max_send_wr", QpLimits { max_send_wr: 1, ..LIMITS }),
        ("max_recv_wr", QpLimits { max_recv_wr: 1, ..LIMITS }),
        ("max_msg_size", QpLimits { max_msg_size: 1, ..LIMITS }),
    ] {
        let error = refusal(&mut rig, RAIL_1, 1, (0, limits));
        assert!(matches!(error, Some(ReplaceError::Limit { what: w, given: 1, .. }) if w == what));
    }
    assert_eq!(refusal(&mut rig, RAIL_1, 1, fits), None);
    rig.qp.fail();
    assert_eq!(refusal(&mut rig, RAIL_1, 2, fits), Some(ReplaceError::InErrorState));
}

#[test]
fn completions_of_the_new_queue_pair_find_their_way() {
    let mut rig = spray().rig();
    down(&mut rig, RAIL_1);
    let handle = rig.replace(RAIL_1, 1, 99);
    ready(&mut rig, RAIL_1, 1);
    rig.post([rig::write(1, 256)]);
    assert_eq!(handle.sends().len(), 1);
    handle.complete_all();
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    let kinds: Vec<_> =
        rig.rail_events().iter().map(|event| (event.generation, event.kind)).collect();
    assert!(matches!(
        kinds[..],
        [
            (0, RailEventKind::Failed { .. }),
            (0, RailEventKind::Fenced { arrived: 0, again: 0 }),
            (1, RailEventKind::Returned)
        ]
    ));
}

/// A queue pair that is attached elsewhere, and an index that is another's: nothing changes.
#[test]
fn a_route_that_cannot_be_is_refused() {
    let mut rig = spray().rig();
    down(&mut rig, RAIL_1);
    let (taken, _) = rig.nic.qp(rig::FIRST_QP_NUM, &rig.cqs[0], LIMITS);
    let rejected = rig.qp.replace_rail(&mut rig.cq, 0, RAIL_1, 1, taken).unwrap_err();
    assert!(matches!(rejected.error, ReplaceError::Attach(AttachError::Route(_))));
    let (good, _) = rig.nic.qp(77, &rig.cqs[0], LIMITS);
    let rejected = rig.qp.replace_rail(&mut rig.cq, 1, RAIL_1, 1, good).unwrap_err();
    let device = DeviceId(0);
    let not_attached = AttachError::NotAttached { device, qp_num: rig::FIRST_QP_NUM + 1 };
    assert_eq!(rejected.error, ReplaceError::Attach(not_attached));
    rig.cq.invariants();
    rig.replace(RAIL_1, 1, 78);
    ready(&mut rig, RAIL_1, 1);
}

/// Rail 0 on the device of another rail: keys follow.
#[test]
fn a_replacement_on_another_device_uses_its_keys() {
    let mut rig = spray().devices(2).rig();
    rig.post([rig::send(1, 8)]);
    rig.rails[0].flush();
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    let (queue_pair, handle) = rig.nic.qp(77, &rig.cqs[1], LIMITS);
    let replaced = rig.qp.replace_rail(&mut rig.cq, 0, RAIL_0, 1, queue_pair);
    assert!(replaced.is_ok());
    ready(&mut rig, RAIL_0, 1);
    assert_eq!(handle.sends()[0].sge.lkey(), rig::keys_on(1).lkey);
    handle.complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// Maintenance of rail 0 while a SEND is lost on it, and the other way round: the SEND was
/// accepted, so it goes out on the queue pair that takes the place of the lost one.
#[test]
fn a_send_that_rail_0_lost_is_posted_again_though_rail_0_is_out_of_service() {
    for maintenance_first in [false, true] {
        let mut rig = spray().rig();
        rig.post([rig::send(1, 64)]);
        assert!(!maintenance_first || rig.qp.set_rail_in_service(0, false));
        fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
        assert!(maintenance_first || rig.qp.set_rail_in_service(0, false));
        rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
        replace(&mut rig, RAIL_0);
        assert_eq!(rig.opcodes(0), [Opcode::Send]);
        rig.rails[0].complete_all();
        assert_eq!(rig.poll_ids(), ok(&[1]));
        assert_eq!(rig.qp.post_send(&rig::send(2, 64)), Err(PostSendError::RailDown));
        rig.post([rig::write(3, 256)]);
        assert!(rig.rails[0].sends().is_empty(), "it gets no new fragments");
        assert!(rig.qp.set_rail_in_service(0, true));
        rig.post([rig::send(4, 64)]);
        assert_eq!(rig.run_dry().len(), 2);
        assert_eq!(rig.qp.state(), QpState::Ready);
    }
}

/// The peer is ready, so that the rail is in service at once; then its driver refuses receives. An
/// owner that goes by the last event sees that the rail has failed.
#[test]
fn a_rail_that_fails_while_it_is_replaced_has_returned_before() {
    let mut rig = super::dqplb().rig();
    rig.qp.prepare_receives().unwrap();
    assert!(rig.qp.fail_rail(RAIL_1));
    assert_eq!(rig.poll(), []);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.qp.control(super::news(RAIL_1, 1, ReportedState::Ready, 0)).unwrap();
    rig.rail_events();
    let (queue_pair, handle) = rig.nic.qp(77, &rig.cqs[0], LIMITS);
    handle.refuse_all_recvs(Some(Refusal::Driver(5)));
    assert!(rig.qp.replace_rail(&mut rig.cq, 0, RAIL_1, 1, queue_pair).is_ok());
    let kinds: Vec<_> = rig.rail_events().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds[0], RailEventKind::Returned);
    assert!(matches!(kinds[1], RailEventKind::Failed { .. }));
    assert!(rig.qp.rail_state(RAIL_1).is_some_and(|state| state != RailState::InService));
}

/// Two rails that completed nowhere when they were attached: their completions are fed. The one
/// whose queue pair is replaced by one of a queue that was added meanwhile has entries there from
/// then on, and the entries of no other.
#[test]
fn a_replacement_takes_the_entries_that_it_needs_and_gives_back_those_that_were_reserved() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 24), nic.cq(1, 16)];
    let setup = Setup { notify: false, devices: 2, ..spray() };
    let [(mut fed, ..), (other, ..)] = [10, 20].map(|first| {
        let setup = setup.clone().config(|config| config.virtual_qp_num = first);
        setup.build_qp::<2, 8, 8>(&nic, &cqs, first)
    });
    let mut cq = TestCq::EMPTY;
    cq.attach(0, &fed).unwrap();
    cqs.iter().for_each(|own| cq.add_cq(own.clone()).unwrap());
    let mut replace = |cq: &mut TestCq, generation, qp_num, on: &ScriptedCq| {
        fed.fail_rail(RAIL_0);
        fed.control(fenced(RAIL_0, generation, 0)).unwrap();
        let (queue_pair, _) = nic.qp(qp_num, on, LIMITS);
        let replaced = fed.replace_rail(cq, 0, RAIL_0, generation + 1, queue_pair);
        cq.invariants();
        replaced.map(drop).map_err(|rejected| rejected.error)
    };
    cq.attach(1, &other).unwrap();
    let too_small = |needed| AttachError::CqTooSmall { cq: cqs[0].id(), capacity: 24, needed };
    assert_eq!(replace(&mut cq, 0, 30, &cqs[0]), Err(too_small(32).into()));
    let elsewhere = nic.cq(0, 1);
    assert_eq!(replace(&mut cq, 0, 31, &elsewhere), Ok(()), "as the one before it, it is fed");
    assert!(cq.detach(1));
    assert_eq!(replace(&mut cq, 1, 32, &cqs[0]), Ok(()));
    let foreign = AttachError::ForeignCq { device: DeviceId(0), qp_num: 33 };
    assert_eq!(replace(&mut cq, 2, 33, &elsewhere), Err(foreign.into()));
    assert_eq!(replace(&mut cq, 2, 34, &cqs[1]), Ok(()), "the other queue has what it needs");
    cq.set_aside(cqs[0].id(), 24).expect("nothing is reserved there any more");
    assert!(cq.detach(0));
    cq.set_aside(cqs[1].id(), 16).expect("nor there");
}

/// The owner reads late: the events of the old queue pair name the device that it was on.
#[test]
fn events_name_the_device_of_their_queue_pair() {
    let mut rig = spray().devices(2).rig();
    rig.qp.fail_rail(RAIL_1);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.replace(RAIL_1, 1, 77);
    ready(&mut rig, RAIL_1, 1);
    let devices: Vec<_> =
        rig.rail_events().iter().map(|event| (event.generation, event.device.0)).collect();
    assert_eq!(devices, [(0, 1), (0, 1), (1, 0)]);
}
