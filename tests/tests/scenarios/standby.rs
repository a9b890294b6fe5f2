//! Rails that carry fragments only while no other rail is in service. `VirtualQp`, "Standby rails".

use super::reroute::{RAIL_0, RAIL_1, fail, fenced, ready};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{LocalPart, WcStatus};
use polyrail_core::virtual_qp::{
    BuildError, Config, QpState, RailChoice, RailId, RailSet, RailState, Scheme,
};
use polyrail_tests::rig::{self, Rig, Setup, TestQp, ok};
use polyrail_tests::scripted::{LIMITS, Nic};

const RAIL_2: RailId = RailId::Data(2);

/// Fragments in flight on each rail.
fn loads(rig: &Rig) -> Vec<usize> {
    rig.rails.iter().map(|rail| rail.sends().len()).collect()
}

/// With these standby rails, and two requests in flight on each rail.
fn standby<const N: usize>(setup: Setup, rails: [RailId; N]) -> Setup {
    setup.fragment(128).depth(2).config(|config| config.standby = rails.into_iter().collect())
}

/// Rails 0 and 1 are home rails, rail 2 stands by, with either scheme.
fn setups() -> [Setup; 2] {
    [Setup::spray(3), Setup::dqplb(3)].map(|setup| standby(setup, [RAIL_2]))
}

fn built(setup: &Setup) -> Rig {
    let mut rig = setup.rig();
    if setup.config.scheme == Scheme::Dqplb {
        rig.qp.prepare_receives().unwrap();
    }
    rig
}

/// Completes what is on the home rails until everything is reported; the standby rail gets nothing.
fn run_at_home(rig: &mut Rig, reports: usize) {
    let mut reported = 0;
    while reported < reports {
        rig.rails[..2].iter().for_each(|rail| rail.complete_all());
        rig.notify.iter().for_each(|notify| notify.complete_all());
        reported += rig.poll().len();
        assert_eq!(rig.qp.counters(RAIL_2).unwrap().send_requests, 0);
    }
}

/// Whether home rails have credits or not, whichever call posts, and whatever chooses the rail.
#[test]
fn a_standby_rail_carries_nothing_while_a_home_rail_is_in_service() {
    let bandwidth_mbps = [1, 1, 1000, 1, 1, 1, 1, 1];
    let faster = RailChoice::LeastFinishTime { bandwidth_mbps };
    for setup in setups() {
        for rail_choice in [RailChoice::RoundRobin, faster] {
            let setup = setup.clone().config(|config| config.rail_choice = rail_choice);
            let mut rig = built(&setup);
            let three = [rig::write(2, 9 * 128), rig::write(3, 128), rig::write_imm(4, 512, 7)];
            rig.post([rig::write_imm(1, 9 * 128, 7)]);
            assert_eq!(loads(&rig), [2, 2, 0], "no credits");
            rig.qp.post_many(&three).unwrap();
            let part = |length| LocalPart { local: rig::local(length), keys: &rig::KEYS };
            let parts = [300, 468].map(part);
            rig.qp.post_list(&rig::write(5, 768), &parts).unwrap();
            run_at_home(&mut rig, 5);
        }
    }
}

#[test]
fn the_last_home_rail_that_leaves_opens_the_standby_rail_and_the_first_closes_it() {
    for setup in setups() {
        let mut rig = built(&setup);
        rig.post([rig::write(1, 20 * 128)]);
        assert!(rig.qp.set_rail_in_service(0, false));
        assert_eq!(loads(&rig), [2, 2, 0], "rail 1 is in service");
        assert!(rig.qp.set_rail_in_service(1, false));
        assert_eq!(loads(&rig), [2, 2, 2], "no completion was needed");
        assert!(!rig.qp.set_rail_in_service(2, false), "requests would wait for ever");
        assert_eq!(rig.qp.state(), QpState::Degraded);
        rig.rails[2].complete_all();
        rig.rails[0].complete_all();
        assert_eq!(rig.poll(), []);
        assert_eq!(loads(&rig), [0, 2, 2]);
        assert!(rig.qp.set_rail_in_service(0, true));
        assert_eq!(loads(&rig), [2, 2, 2], "what is in flight stays");
        rig.rails[2].complete_all();
        assert_eq!(rig.poll(), []);
        assert_eq!(loads(&rig), [2, 2, 0]);
        rig.post([rig::write(2, 128)]);
        let before = rig.qp.counters(RAIL_2);
        assert_eq!(rig.run_dry().len(), 2);
        assert_eq!(rig.qp.counters(RAIL_2), before);
    }
}

#[test]
fn a_rail_in_service_can_change_its_role() {
    let mut rig = built(&standby(Setup::spray(2), [RAIL_1]));
    rig.post([rig::write(1, 20 * 128)]);
    assert_eq!(loads(&rig), [2, 0]);
    assert!(rig.qp.set_standby(1, false));
    assert_eq!(loads(&rig), [2, 2], "no completion was needed");
    assert!(rig.qp.set_standby(1, true));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(loads(&rig), [2, 0]);
    assert!(!rig.qp.set_standby(9, true));
}

/// What a home rail lost goes over the standby rail, and returns home with the next one.
#[test]
fn a_standby_rail_takes_what_the_last_home_rail_lost() {
    for mut setup in [Setup::spray(2), Setup::dqplb(2)].map(|setup| standby(setup, [RAIL_1])) {
        setup.config.max_msgs_per_qp = 8;
        let mut rig = built(&setup.reroute());
        rig.post([rig::write_imm(1, 512, 7)]);
        assert_eq!(loads(&rig), [4, 0]);
        fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
        rig.post([rig::write(2, 128)]);
        rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
        assert_eq!(rig.rails[1].sends().len(), 5);
        rig.rails[1].complete_all();
        rig.poll();
        rig.replace(RAIL_0, 1, 90);
        ready(&mut rig, RAIL_0, 1);
        rig.post([rig::write(3, 512)]);
        assert_eq!(loads(&rig), [4, 0]);
        rig.notify.iter().for_each(|notify| notify.complete_all());
        rig.run_dry();
        assert_eq!((rig.qp.unreported_sends(), rig.qp.state()), (0, QpState::Ready));
    }
}

/// A home rail that was out of service is back before a standby rail's fence: what the standby rail
/// lost goes home, also after the standby rail itself has returned.
#[test]
fn what_a_standby_rail_lost_goes_over_home_rails() {
    let mut rig = built(&standby(Setup::dqplb(2), [RAIL_1]).reroute());
    assert!(rig.qp.set_rail_in_service(0, false));
    rig.post([rig::write_imm(1, 256, 0)]);
    assert_eq!(loads(&rig), [0, 2]);
    assert!(rig.qp.set_rail_in_service(0, true));
    rig.post([rig::write(2, 256)]);
    assert_eq!(loads(&rig), [2, 2], "no credits at home");
    rig.rails[1].fail(WcStatus::RETRY_EXC_ERR);
    rig.poll();
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.replace(RAIL_1, 1, 90);
    ready(&mut rig, RAIL_1, 1);
    assert_eq!(loads(&rig), [2, 0], "it is back, and its lost fragments wait for home");
    rig.rails[0].complete_all();
    rig.poll();
    assert_eq!(loads(&rig), [2, 0]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

/// The front of a batch cannot be taken back, so its rest follows on the same rail.
#[test]
fn the_rest_of_a_batch_stays_on_the_standby_rail() {
    let mut rig = built(&standby(Setup::spray(2), [RAIL_1]));
    assert!(rig.qp.set_rail_in_service(0, false));
    rig.rails[1].refuse_next(1, Refusal::QueueFull);
    rig.post([rig::write(1, 512)]);
    assert_eq!(loads(&rig), [0, 1]);
    assert!(rig.qp.set_rail_in_service(0, true));
    assert_eq!(loads(&rig), [2, 2]);
    assert_eq!(rig.run_dry().len(), 1);
}

/// A standby rail that fails unused costs nothing, and with no rail left requests wait.
#[test]
fn a_standby_rail_that_fails_unused_is_missed_only_when_it_is_needed() {
    let mut rig = built(&standby(Setup::spray(2), [RAIL_1]).reroute().config(|c| c.min_rails = 0));
    rig.post([rig::write(1, 256)]);
    assert!(rig.qp.fail_rail(RAIL_1));
    assert_eq!(loads(&rig), [2, 0]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.rail_state(RAIL_1), Some(RailState::Fenced));
    assert!(rig.qp.fail_rail(RAIL_0));
    rig.poll();
    rig.post([rig::write(2, 256)]);
    assert_eq!(loads(&rig), [0, 0]);
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    rig.replace(RAIL_1, 1, 90);
    ready(&mut rig, RAIL_1, 1);
    assert_eq!(loads(&rig), [0, 2], "the standby rail is the only one");
    assert_eq!(rig.run_dry().len(), 1);
}

/// They count for `min_rails`, used or not.
#[test]
fn standby_rails_count_as_rails_in_service() {
    let mut rig = built(&standby(Setup::spray(2), [RAIL_1]).reroute().config(|c| c.min_rails = 2));
    assert!(rig.qp.rails_in_service().eq([RAIL_0, RAIL_1]));
    assert_eq!(rig.qp.state(), QpState::Ready);
    assert!(rig.qp.fail_rail(RAIL_1));
    assert_eq!(rig.qp.state(), QpState::Error);
}

/// A reserved home rail comes before standby rails, and among these the reserved one comes last.
#[test]
fn reserved_rails_come_last_within_their_class() {
    let mut rig = built(&standby(Setup::spray(4), [RAIL_2, RailId::Data(3)]));
    assert!(rig.qp.reserve_rail(0, true) && rig.qp.reserve_rail(2, true));
    let carries = |rig: &mut Rig| {
        rig.post([rig::write(1, 4 * 128)]);
        let loads = loads(rig);
        assert_eq!(rig.run_dry().len(), 1);
        (0..4).filter(|rail| loads[*rail] > 0).collect::<Vec<_>>()
    };
    assert_eq!(carries(&mut rig), [1]);
    assert!(rig.qp.set_rail_in_service(1, false));
    assert_eq!(carries(&mut rig), [0]);
    assert!(rig.qp.set_rail_in_service(0, false));
    assert_eq!(carries(&mut rig), [3]);
    assert!(rig.qp.set_rail_in_service(3, false));
    assert_eq!(carries(&mut rig), [2]);
}

#[test]
fn standby_rails_that_cannot_stand_by_are_refused() {
    let build = |rails: u32, standby: &[RailId]| {
        let nic = Nic::new();
        let cq = nic.cq(0, 64);
        let standby = standby.iter().copied().collect::<RailSet>();
        let config = Config { standby, ..Config::default() };
        let rails = (0..rails).map(|rail| nic.qp(rail, &cq, LIMITS).0);
        TestQp::<4, 8, 8>::new(config, rails, None).map(|_| ())
    };
    assert_eq!(build(3, &[RAIL_1, RAIL_2]), Ok(()));
    assert_eq!(build(3, &[RAIL_0, RAIL_1]), Err(BuildError::StandbyRail0));
    assert_eq!(build(1, &[RAIL_0]), Err(BuildError::StandbyRail0));
    let unknown = |rail, rails| Err(BuildError::StandbyRail { rail, rails });
    assert_eq!(build(2, &[RAIL_1, RAIL_2]), unknown(RAIL_2, 2));
    assert_eq!(build(1, &[RAIL_1]), unknown(RAIL_1, 1));
    assert_eq!(build(2, &[RailId::Notify]), unknown(RailId::Notify, 2));
}
