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
                let purposes: &[_] = match state {
                    RailState::InService => {
                        &[Purpose::None, Purpose::Wanted, Purpose::Asked, Purpose::Owed]
                    }
                    _ => &[Purpose::None, Purpose::Out, Purpose::PerhapsOut],
                };
                rails.extend(purposes.iter().map(|purpose| Lifecycle {
                    state,
                    generation,
                    arrived: 7,
                    previous_arrived: 5,
                    peer_arrived: *peer_arrived,
                    peer_is_ready: *peer_is_ready,
                    has_failed: true,
                    dirty: false,
                    purpose: *purpose,
                }));
            }
        }
    }
    rails
}

/// A fence on purpose is awaited in service, and its rail is out on purpose out of service.
fn check_purpose(rail: &Lifecycle) {
    let fits = match rail.purpose {
        Purpose::None => true,
        Purpose::Wanted | Purpose::Asked | Purpose::Owed => rail.is_in_service(),
        Purpose::Out | Purpose::PerhapsOut => !rail.is_in_service(),
    };
    assert!(fits, "{rail:?}");
    assert_eq!(rail.holds_atomics(), rail.is_in_service() && rail.purpose != Purpose::None);
    assert_eq!(rail.is_out_on_purpose(), !rail.is_in_service() && rail.purpose != Purpose::None);
}

/// More than was posted, modulo 2^32: what is far more is less.
fn is_too_many(arrived: u32) -> bool {
    matches!(arrived.wrapping_sub(POSTED), 1..=0x7FFF_FFFF)
}

/// What the design's table says. `ahead` is how many generations the message is ahead. `None`: a
/// protocol error.
fn expected(
    before: &Lifecycle,
    report: &RailReport,
    ahead: i32,
    has_atomics: bool,
) -> Option<(Effects, Lifecycle)> {
    use RailState::{Down, Draining, Fenced, InService, Joining};
    use ReportedState as T;
    let mut after = *before;
    let mut effects = Effects::default();
    let out = if report.on_purpose { Purpose::Out } else { Purpose::None };
    match (before.state, ahead, report.state) {
        (_, ..0, _)
        | (InService | Draining | Fenced | Down, 0, T::Ready)
        | (Draining | Fenced | Down, 0, T::Failed) => effects.ignored = true,
        (InService, 0, T::Failed) if report.on_purpose && has_atomics => {
            effects.ignored = before.purpose == Purpose::Owed;
            after.purpose = Purpose::Owed;
        }
        (InService | Joining, 0, T::Failed) => {
            effects.stopped = true;
            (after.state, after.purpose) = (Draining, out);
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
                    (after.state, after.purpose) = (Draining, out);
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
            (after.state, after.purpose) = (InService, Purpose::None);
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
                purpose: Purpose::None,
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
                for (state, on_purpose, has_atomics) in told() {
                    for arrived in [0, 3, POSTED, POSTED + 1, 1 << 31, u32::MAX] {
                        for previous_arrived in [0, POSTED, POSTED + 1] {
                            let told = generation.wrapping_add_signed(ahead as i16);
                            let report = RailReport {
                                rail: RAIL,
                                generation: told,
                                state,
                                arrived,
                                previous_arrived,
                                on_purpose,
                            };
                            let mut after = before;
                            let effects = after.handle(&report, POSTED, has_atomics).ok();
                            let expected = expected(&before, &report, ahead, has_atomics);
                            assert_eq!(
                                effects.map(|effects| (effects, after)),
                                expected,
                                "{before:?} {report:?}"
                            );
                            check_purpose(&after);
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(checked, 5 * 22 * 6 * 10 * 6 * 3);
}

/// What a peer may report, on purpose or not, while this end has atomics in flight or not.
fn told() -> Vec<(ReportedState, bool, bool)> {
    let mut told = Vec::new();
    for state in TOLD {
        for on_purpose in [false, true] {
            // Ready is about no fence.
            if !(on_purpose && state == ReportedState::Ready) {
                told.extend([false, true].map(|atomics| (state, on_purpose, atomics)));
            }
        }
    }
    told
}

/// What this end does itself changes what is as the table says, and nothing else.
#[test]
fn every_step_in_every_state_is_as_the_table_says() {
    use RailState::{Down, Draining, Fenced, InService, Joining};
    let changed = |before: &Lifecycle, step: &dyn Fn(&mut Lifecycle), wanted: Lifecycle| {
        let mut after = *before;
        step(&mut after);
        assert_eq!(after, wanted, "{before:?}");
        check_purpose(&after);
    };
    for before in rails(7) {
        check_purpose(&before);
        let Lifecycle { state, purpose, .. } = before;
        let awaits = matches!(state, Draining | Fenced);
        for on_purpose in [false, true] {
            let is_new = matches!(state, InService | Joining);
            let next = match (on_purpose, purpose) {
                (true, _) => Purpose::Out,
                (false, Purpose::Asked) => Purpose::PerhapsOut,
                (false, _) => Purpose::None,
            };
            let failed = Lifecycle { state: Draining, purpose: next, dirty: true, ..before };
            let fail = |rail: &mut Lifecycle| assert_eq!(rail.fail(on_purpose), is_new);
            changed(&before, &fail, if is_new { failed } else { before });
            let wanted = match (purpose, on_purpose) {
                (Purpose::None, true) if state == InService => Purpose::Wanted,
                (Purpose::Wanted, false) => Purpose::None,
                _ => purpose,
            };
            let want = |rail: &mut Lifecycle| rail.want_fence(on_purpose);
            changed(&before, &want, Lifecycle { purpose: wanted, ..before });
        }
        let asked = Lifecycle { purpose: Purpose::Asked, dirty: true, ..before };
        let is_wanted = purpose == Purpose::Wanted;
        changed(&before, &Lifecycle::ask_for_fence, if is_wanted { asked } else { before });
        let ends = awaits && purpose != Purpose::None;
        let ended = if ends { Purpose::None } else { purpose };
        let end = |rail: &mut Lifecycle| assert_eq!(rail.end_purpose(), ends);
        changed(&before, &end, Lifecycle { purpose: ended, ..before });
        // A question is repeated although no queue pair of the rail ever failed.
        for has_failed in [false, true] {
            let quiet = Lifecycle { has_failed, ..before };
            let dirty = has_failed || purpose == Purpose::Asked;
            changed(&quiet, &Lifecycle::repeat, Lifecycle { dirty, ..quiet });
        }
        let report = before.clone().take_report(RAIL);
        let is_asked = purpose == Purpose::Asked;
        let reported = match state {
            InService if is_asked => ReportedState::Failed,
            InService | Joining => ReportedState::Ready,
            Draining => ReportedState::Failed,
            Fenced | Down => ReportedState::Fenced,
        };
        assert_eq!(report.state, reported);
        let is_out = purpose == Purpose::Out && state != Joining;
        assert_eq!(report.on_purpose, is_asked || is_out, "{before:?}");
        if state == Draining {
            let next = if before.peer_arrived.is_some() { Down } else { Fenced };
            let drained = Lifecycle { state: next, arrived: 6, dirty: true, ..before };
            let drain = |rail: &mut Lifecycle| assert_eq!(rail.drained(6), before.peer_arrived);
            changed(&before, &drain, drained);
        }
        if state == Down {
            let is_back = before.peer_is_ready;
            let mut after = before;
            assert_eq!(after.replaced(), is_back);
            let wanted = if is_back { (InService, Purpose::None) } else { (Joining, purpose) };
            assert_eq!((after.state, after.purpose), wanted);
            check_purpose(&after);
        }
    }
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
    assert!(ends[0].fail(false) && !ends[0].fail(false));
    let report = report_of(&mut ends[0]);
    assert_eq!((report.state, report.generation), (ReportedState::Failed, 0));
    assert!(ends[1].handle(&report, 4, false).unwrap().stopped);
    assert!(!ends[1].has_report(), "the other end knows");

    assert_eq!(ends[1].drained(3), None);
    let report = report_of(&mut ends[1]);
    assert_eq!((report.state, report.arrived), (ReportedState::Fenced, 3));
    assert_eq!(
        ends[0].handle(&report, 5, false),
        Ok(Effects::default()),
        "kept until it is drained itself"
    );
    assert_eq!(ends[0].drained(4), Some(3));
    assert_eq!(ends[0].state(), RailState::Down);
    let report = report_of(&mut ends[0]);
    assert_eq!(ends[1].handle(&report, 4, false).unwrap().fenced, Some(4));

    assert!(!ends[0].replaced());
    let report = report_of(&mut ends[0]);
    assert_eq!(
        (report.state, report.generation, report.previous_arrived),
        (ReportedState::Ready, 1, 4)
    );
    assert_eq!(
        ends[1].handle(&report, 0, false),
        Ok(Effects::default()),
        "kept until it has one itself"
    );
    assert!(ends[1].replaced(), "the peer is ready");
    let report = report_of(&mut ends[1]);
    assert!(ends[0].handle(&report, 0, false).unwrap().returned);
    assert!(ends.iter().all(|end| end.is_in_service() && end.generation() == 1));
}

/// The newest state replaces the one before it, and carries the count that it would have reported.
#[test]
fn what_was_not_sent_is_replaced() {
    let mut here = Lifecycle { peer_arrived: Some(0), ..Lifecycle::NEW };
    here.fail(false);
    here.drained(6);
    here.replaced();
    let report = report_of(&mut here);
    assert_eq!((report.state, report.previous_arrived), (ReportedState::Ready, 6));
    let mut there = Lifecycle::NEW;
    there.fail(false);
    there.drained(0);
    let effects = there.handle(&report, 8, false).unwrap();
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
        on_purpose: false,
    };
    assert!(Lifecycle::NEW.clone().handle(&report(u32::MAX - 1), 2, false).is_ok());
    let too_many = ControlError::Arrived { rail: RAIL, arrived: 3, posted: 2 };
    assert_eq!(Lifecycle::NEW.clone().handle(&report(3), 2, false), Err(too_many));
}

/// A rail that is fenced on purpose counts as in service until it is back, or its replacement
/// fails.
#[test]
fn a_rail_is_out_on_purpose_until_its_replacement_is_there_or_fails() {
    for fails in [false, true] {
        let mut ends = [Lifecycle::NEW; 2];
        assert!(ends[0].fail(true));
        let report = report_of(&mut ends[0]);
        assert_eq!((report.state, report.on_purpose), (ReportedState::Failed, true));
        assert!(ends[1].handle(&report, 0, false).unwrap().stopped);
        for end in 0..2 {
            ends[end].drained(0);
            let report = report_of(&mut ends[end]);
            assert_eq!((report.state, report.on_purpose), (ReportedState::Fenced, true));
            ends[1 - end].handle(&report, 0, false).unwrap();
        }
        assert!(ends.iter().all(|end| end.state() == RailState::Down && end.is_out_on_purpose()));
        assert!(!ends[0].replaced() && ends[0].is_out_on_purpose(), "it joins");
        if fails {
            assert!(ends[0].fail(false));
            assert!(!ends[0].is_out_on_purpose());
            let report = report_of(&mut ends[0]);
            assert!(ends[1].handle(&report, 0, false).unwrap().adopted);
            assert!(!ends[1].is_out_on_purpose());
        } else {
            let report = report_of(&mut ends[0]);
            assert!(!report.on_purpose);
            ends[1].handle(&report, 0, false).unwrap();
            assert!(ends[1].replaced() && !ends[1].is_out_on_purpose());
            let report = report_of(&mut ends[1]);
            assert!(ends[0].handle(&report, 0, false).unwrap().returned);
            assert!(!ends[0].is_out_on_purpose());
        }
    }
}

/// Atomics at either end are awaited while both queue pairs answer.
#[test]
fn a_fence_on_purpose_waits_for_the_atomics_of_both_ends() {
    let mut ends = [Lifecycle::NEW; 2];
    ends[0].want_fence(true);
    assert!(ends[0].awaits_atomics() && !ends[0].has_report(), "its own first");
    ends[0].ask_for_fence();
    let report = report_of(&mut ends[0]);
    assert_eq!((report.state, report.on_purpose), (ReportedState::Failed, true));
    assert!(ends[0].is_in_service() && ends[0].holds_atomics(), "it answers");
    ends[0].want_fence(false);
    assert!(ends[0].holds_atomics(), "the peer was asked");
    assert_eq!(ends[1].handle(&report, 0, true), Ok(Effects::default()));
    assert!(ends[1].is_in_service() && ends[1].owes_fence() && ends[1].holds_atomics());
    ends[0].repeat();
    let report = report_of(&mut ends[0]);
    assert!(ends[1].handle(&report, 0, true).unwrap().ignored);
    assert!(ends[1].fail(true));
    let report = report_of(&mut ends[1]);
    assert_eq!((report.state, report.on_purpose), (ReportedState::Failed, true));
    let mut failed = ends[0];
    assert!(ends[0].handle(&report, 0, false).unwrap().stopped);
    assert!(ends.iter().all(|end| end.is_out_on_purpose() && !end.holds_atomics()));
    assert!(failed.fail(false), "the peer's queue pair has stopped, and answers no more");
    assert!(failed.is_out_on_purpose());
    let report = report_of(&mut failed);
    assert!(!report.on_purpose, "a peer that waits for atomics cannot complete them any more");
}
