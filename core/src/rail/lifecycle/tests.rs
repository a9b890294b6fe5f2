//! The table of what is effects, state by state, against a second writing of it.

use super::*;

extern crate std;
use std::vec::Vec;

const RAIL: RailId = RailId::Data(1);
const POSTED: u32 = 9;
const STATES: [RailState; 5] = [
    RailState::InService,
    RailState::Draining,
    RailState::Fenced,
    RailState::Down,
    RailState::Joining,
];
const TOLD: [ReportedState; 3] =
    [ReportedState::Failed, ReportedState::Fenced, ReportedState::Ready];

/// A rail of generation `generation` in each state that it can be in.
fn rails(generation: u16) -> Vec<Lifecycle> {
    let mut rails = Vec::new();
    for state in STATES {
        let noted: &[_] = match state {
            RailState::InService | RailState::Joining | RailState::Fenced => &[None],
            RailState::Draining => &[None, Some(3)],
            RailState::Down => &[Some(3)],
        };
        let ready: &[_] = if state == RailState::Down { &[false, true] } else { &[false] };
        for peer_arrived in noted {
            for peer_is_ready in ready {
                rails.push(Lifecycle {
                    state,
                    generation,
                    arrived: 7,
                    previous_arrived: 5,
                    peer_arrived: *peer_arrived,
                    peer_is_ready: *peer_is_ready,
                    has_failed: true,
                    dirty: false,
                });
            }
        }
    }
    rails
}

/// More than was posted, modulo 2^32: what is far more is less.
fn is_too_many(arrived: u32) -> bool {
    matches!(arrived.wrapping_sub(POSTED), 1..=0x7FFF_FFFF)
}

/// What the design's table says. `ahead` is how many generations the message is ahead. `None`: a
/// protocol error.
fn expected(before: &Lifecycle, report: &RailReport, ahead: i32) -> Option<(Effects, Lifecycle)> {
    use RailState::{Down, Draining, Fenced, InService, Joining};
    use ReportedState as T;
    let mut after = *before;
    let mut effects = Effects::default();
    match (before.state, ahead, report.state) {
        (_, ..0, _)
        | (InService | Draining | Fenced | Down, 0, T::Ready)
        | (Draining | Fenced | Down, 0, T::Failed) => effects.ignored = true,
        (InService | Joining, 0, T::Failed) => {
            effects.stopped = true;
            after.state = Draining;
        }
        (_, 0, T::Fenced) => {
            if before.peer_arrived == Some(report.arrived) {
                effects.ignored = true;
                return Some((effects, after));
            }
            if before.peer_arrived.is_some() || is_too_many(report.arrived) {
                return None;
            }
            after.peer_arrived = Some(report.arrived);
            match before.state {
                InService | Joining => {
                    effects.stopped = true;
                    after.state = Draining;
                }
                Fenced => {
                    effects.fenced = Some(report.arrived);
                    after.state = Down;
                }
                Draining | Down => {}
            }
        }
        (Joining, 0, T::Ready) => {
            effects.returned = true;
            after.state = InService;
        }
        (Fenced | Down, 1, told) => {
            if before.state == Fenced {
                if is_too_many(report.previous_arrived) {
                    return None;
                }
                effects.fenced = Some(report.previous_arrived);
                after.state = Down;
                after.peer_arrived = effects.fenced;
            }
            if told == T::Ready {
                after.peer_is_ready = true;
                return Some((effects, after));
            }
            if told == T::Fenced && report.arrived > 0 {
                return None;
            }
            effects.adopted = true;
            after = Lifecycle {
                state: if told == T::Fenced { Down } else { Fenced },
                generation: before.generation.wrapping_add(1),
                arrived: 0,
                previous_arrived: before.arrived,
                peer_arrived: (told == T::Fenced).then_some(0),
                peer_is_ready: false,
                has_failed: true,
                dirty: true,
            };
        }
        (InService | Draining | Joining, 1, _) | (_, 2.., _) => return None,
    }
    Some((effects, after))
}

#[test]
fn every_message_in_every_state_is_as_the_table_says() {
    let mut checked = 0;
    for generation in [0, 1, 7, u16::MAX - 1, u16::MAX] {
        for before in rails(generation) {
            for ahead in [-300, -1, 0, 1, 2, 300] {
                for state in TOLD {
                    for arrived in [0, 3, POSTED, POSTED + 1, 1 << 31, u32::MAX] {
                        for previous_arrived in [0, POSTED, POSTED + 1] {
                            let told = generation.wrapping_add_signed(ahead as i16);
                            let report = RailReport {
                                rail: RAIL,
                                generation: told,
                                state,
                                arrived,
                                previous_arrived,
                            };
                            let mut after = before;
                            let effects = after.handle(&report, POSTED).ok();
                            let expected = expected(&before, &report, ahead);
                            assert_eq!(
                                effects.map(|effects| (effects, after)),
                                expected,
                                "{before:?} {report:?}"
                            );
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(checked, 5 * 7 * 6 * 3 * 6 * 3);
}

/// The report that this end has for its peer.
fn report_of(end: &mut Lifecycle) -> RailReport {
    assert!(end.has_report());
    end.take_report(RAIL)
}

/// Two ends, whichever notices first, and whichever message is late: both are in service again.
#[test]
fn two_ends_go_through_the_same_states() {
    let mut ends = [Lifecycle::NEW; 2];
    assert!(!ends[0].has_report(), "nothing failed");
    assert!(ends[0].fail() && !ends[0].fail());
    let report = report_of(&mut ends[0]);
    assert_eq!((report.state, report.generation), (ReportedState::Failed, 0));
    assert!(ends[1].handle(&report, 4).unwrap().stopped);
    assert!(!ends[1].has_report(), "the other end knows");

    assert_eq!(ends[1].drained(3), None);
    let report = report_of(&mut ends[1]);
    assert_eq!((report.state, report.arrived), (ReportedState::Fenced, 3));
    assert_eq!(
        ends[0].handle(&report, 5),
        Ok(Effects::default()),
        "kept until it is drained itself"
    );
    assert_eq!(ends[0].drained(4), Some(3));
    assert_eq!(ends[0].state(), RailState::Down);
    let report = report_of(&mut ends[0]);
    assert_eq!(ends[1].handle(&report, 4).unwrap().fenced, Some(4));

    assert!(!ends[0].replaced());
    let report = report_of(&mut ends[0]);
    assert_eq!(
        (report.state, report.generation, report.previous_arrived),
        (ReportedState::Ready, 1, 4)
    );
    assert_eq!(ends[1].handle(&report, 0), Ok(Effects::default()), "kept until it has one itself");
    assert!(ends[1].replaced(), "the peer is ready");
    let report = report_of(&mut ends[1]);
    assert!(ends[0].handle(&report, 0).unwrap().returned);
    assert!(ends.iter().all(|end| end.is_in_service() && end.generation() == 1));
}

/// The newest state replaces the one before it, and carries the count that it would have reported.
#[test]
fn what_was_not_sent_is_replaced() {
    let mut here = Lifecycle { peer_arrived: Some(0), ..Lifecycle::NEW };
    here.fail();
    here.drained(6);
    here.replaced();
    let report = report_of(&mut here);
    assert_eq!((report.state, report.previous_arrived), (ReportedState::Ready, 6));
    let mut there = Lifecycle::NEW;
    there.fail();
    there.drained(0);
    let effects = there.handle(&report, 8).unwrap();
    assert_eq!(effects.fenced, Some(6));
    assert!(there.replaced());
    here.repeat();
    assert!(here.has_report(), "in service again, and said again all the same");
}

#[test]
fn what_arrived_is_compared_modulo_its_cycle() {
    let report = |arrived| RailReport {
        rail: RAIL,
        generation: 0,
        state: ReportedState::Fenced,
        arrived,
        previous_arrived: 0,
    };
    assert!(Lifecycle::NEW.clone().handle(&report(u32::MAX - 1), 2).is_ok());
    let too_many = ControlError::Arrived { rail: RAIL, arrived: 3, posted: 2 };
    assert_eq!(Lifecycle::NEW.clone().handle(&report(3), 2), Err(too_many));
}
