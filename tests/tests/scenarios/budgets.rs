//! Budgets of polls: what a budget leaves over comes first in the next poll, in order, and nothing
//! starves. `core/docs/architecture.md`, "The virtual completion queue".

use super::completion_queue::{Qp, one_cq, qp, wcs};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::{Event, VirtualCq};
use polyrail_core::virtual_qp::{RailId, RailState};
use polyrail_tests::rig::{self, Rig, Setup, TestCq, Way, ok};
use polyrail_tests::scripted::{Nic, QpHandle, ScriptedCq};

/// The completion queue and the queue pair that a poll begins with rotate.
#[test]
fn small_budgets_starve_no_completion_queue() {
    for queues in [2, 3] {
        let nic = Nic::new();
        let cqs: Vec<_> = (0..queues).map(|device| nic.cq(device, 1 << 12)).collect();
        let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
        let (mut set, handles): (Vec<_>, Vec<_>) =
            (10..).zip(cqs.chunks(1)).map(|(number, one)| qp(&nic, one, 1, number)).unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        for budget in [1, 2, 1] {
            for (qp, handles) in set.iter_mut().zip(&handles) {
                (0..40).for_each(|_| qp.post_send(&rig::write(u64::from(budget), 8)).unwrap());
                handles[0].complete_all();
            }
            let before: Vec<_> = handles.iter().map(|handle| handle[0].slots()).collect();
            for _ in 0..12 {
                assert_eq!(wcs(&mut cq, &mut set, budget as usize).len(), budget as usize);
            }
            for (before, handle) in before.iter().zip(&handles) {
                let taken = before - handle[0].slots();
                assert!(taken >= 2 * budget, "each queue gets its turns, this one {taken}");
            }
            while !wcs(&mut cq, &mut set, 32).is_empty() {}
        }
    }
}

/// The same for virtual queue pairs of many rails on one queue.
#[test]
fn small_budgets_starve_no_virtual_queue_pair() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut set, handles): (Vec<_>, Vec<_>) =
        (0..3).map(|n| qp(&nic, &cqs, 2, 10 + 10 * n)).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    for qp in &mut set {
        (0..12).for_each(|id| qp.post_send(&rig::write(id, 128)).unwrap());
    }
    handles.iter().flatten().for_each(QpHandle::complete_all);
    let mut reported = [0; 3];
    for _ in 0..30 {
        for wc in wcs(&mut cq, &mut set, 2) {
            reported[wc.qp_num as usize / 10 - 1] += 1;
        }
    }
    assert!(reported.iter().all(|count| *count >= 8), "{reported:?}");
}

#[test]
fn more_virtual_queue_pairs_than_one_poll_looks_at_take_turns() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut set, handles): (Vec<_>, Vec<_>) =
        (0..20).map(|n| qp(&nic, &cqs, 2, 10 * (n + 1))).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    for (qp, handles) in set.iter_mut().zip(&handles) {
        handles.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
        qp.post_send(&rig::write(1, 256)).unwrap();
        handles.iter().for_each(|rail| rail.refuse_all(None));
    }
    for _ in 0..2 {
        assert_eq!(wcs(&mut cq, &mut set, 32), []);
    }
    assert!(handles.iter().flatten().all(|rail| rail.sends().len() == 1), "all were polled");
}

/// "What is complete but over the limit comes out first next time", however many are attached.
#[test]
fn what_the_budget_left_behind_comes_first_next_time() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 14)];
    let mut cq: VirtualCq<ScriptedCq, 1, 256> = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let (mut set, handles): (Vec<_>, Vec<_>) =
        (0..40).map(|n| qp(&nic, &cqs, 2, 10 * (n + 1))).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    let mut poll = |set: &mut [Qp]| {
        let mut ids = Vec::new();
        let _ = cq.poll(set, 2, |event| ids.extend(event.completion().map(|wc| wc.wr_id)));
        ids
    };
    for at in 0..40 {
        (0..4).for_each(|id| set[at].post_send(&rig::write(id, 128)).unwrap());
        handles[at][1].complete_all();
        assert!(poll(&mut set).is_empty());
        handles[at][0].complete_all();
        assert_eq!(poll(&mut set), [0, 1]);
        assert_eq!(poll(&mut set), [2, 3]);
    }
}

/// Two queue pairs of two rails, each on its own queue; `each` is called before every one of
/// this many polls. Returns how many completions each queue gave.
fn taken_from(polls: usize, budget: usize, waiting: [usize; 2]) -> [u32; 2] {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 12), nic.cq(1, 1 << 12)];
    let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let (mut set, handles): (Vec<_>, Vec<_>) =
        cqs.chunks(1).zip([10, 20]).map(|(one, number)| qp(&nic, one, 1, number)).unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    let mut taken = [0; 2];
    for _ in 0..polls {
        for (at, waiting) in waiting.iter().enumerate() {
            while (handles[at][0].slots() as usize) < *waiting {
                set[at].post_send(&rig::write(1, 8)).unwrap();
            }
            handles[at][0].complete_all();
        }
        let before: Vec<_> = handles.iter().map(|handle| handle[0].slots()).collect();
        wcs(&mut cq, &mut set, budget);
        for (at, handle) in handles.iter().enumerate() {
            taken[at] += before[at] - handle[0].slots();
        }
    }
    taken
}

/// After a poll that ends where it began, the next one begins elsewhere: a queue that always has as
/// much as one poll takes leaves the other its turn.
#[test]
fn the_first_queue_of_a_poll_changes_after_full_turns_too() {
    for budget in [4, 16, 32] {
        // Always slightly less than a poll takes, so that the second queue has the last completion
        // of each.
        for waiting in [[budget - 1, 200], [200, budget - 1]] {
            let taken = taken_from(12, budget, waiting);
            let most = 12 * budget as u32;
            assert!(taken.iter().all(|taken| *taken >= most / 4), "{taken:?} of {most}");
        }
    }
}

/// What found no budget comes before what completed after it, however it is polled next.
#[test]
fn what_waits_for_budget_keeps_its_order() {
    for way in [Way::Queue(0, 1), Way::Queue(0, 7), Way::One, Way::All(1), Way::Feed(0)] {
        for rails in [1, 2] {
            let mut rig = Setup::spray(rails).fragment(128).rig();
            rig.post((0..3).map(|id| rig::send(id, 8)));
            rig.rails[0].complete_all();
            let mut ids: Vec<_> = names(rig.poll_by(Way::All(1)).0);
            rig.post([rig::send(3, 8)]);
            rig.rails[0].complete_all();
            for _ in 0..4 {
                ids.extend(names(rig.poll_by(way).0));
            }
            assert_eq!(ids, [0, 1, 2, 3], "{rails} rails, {way:?}");
        }
    }
}

pub(super) fn names(events: Vec<Event>) -> Vec<u64> {
    events.into_iter().filter_map(|event| event.completion().map(|wc| wc.wr_id)).collect()
}

/// Queue pairs on the queue that is polled first do not keep others waiting forever.
#[test]
fn polling_one_queue_with_a_small_budget_starves_no_other() {
    let (nic, cqs, mut cq) = one_cq(1 << 14);
    let (mut set, handles): (Vec<_>, Vec<_>) =
        [10, 20].map(|number| qp(&nic, &cqs, 2, number)).into_iter().unzip();
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    (0..4).for_each(|id| set[0].post_send(&rig::write(id, 128)).unwrap());
    handles[0].iter().for_each(QpHandle::complete_all);
    let mut first = 0;
    for _ in 0..12 {
        set[1].post_send(&rig::write(9, 128)).unwrap();
        handles[1].iter().for_each(QpHandle::complete_all);
        let sink = |event: Event| first += usize::from(event.completion().unwrap().qp_num == 10);
        assert_eq!(cq.poll_cq(0, &mut set[..], 1, sink).error, None);
    }
    assert_eq!(first, 4);
}

/// A WRITE that is complete waits for budget, while requests that pass straight through complete
/// all the time: however a queue is polled, each takes its turn.
#[test]
fn polling_one_queue_with_a_small_budget_starves_no_ring() {
    for ways in [[Way::Queue(0, 1); 2], [Way::All(1), Way::Queue(0, 1)], [Way::All(0), Way::All(1)]]
    {
        for rails in [1, 2] {
            let (nic, cqs, mut cq) = one_cq(1 << 14);
            let (mut set, handles): (Vec<_>, Vec<_>) = [(2, 10), (rails, 20)]
                .map(|(rails, number)| qp(&nic, &cqs, rails, number))
                .into_iter()
                .unzip();
            for (index, qp) in set.iter().enumerate() {
                cq.attach(index as u16, qp).unwrap();
            }
            (0..4).for_each(|id| set[0].post_send(&rig::write(id, 128)).unwrap());
            handles[0].iter().for_each(QpHandle::complete_all);
            let mut served = [0; 2];
            for way in ways.into_iter().cycle().take(40) {
                while handles[1][0].slots() < 4 {
                    set[1].post_send(&rig::send(9, 8)).unwrap();
                }
                handles[1][0].complete_all();
                let sink =
                    |event: Event| served[event.completion().unwrap().qp_num as usize / 20] += 1;
                let polled = match way {
                    Way::Queue(at, budget) => cq.poll_cq(at, &mut set[..], budget, sink),
                    Way::All(budget) => cq.poll(&mut set[..], budget, sink),
                    _ => unreachable!(),
                };
                assert_eq!(polled.error, None);
            }
            assert_eq!(served[0], 4, "{served:?} {rails} {ways:?}");
            assert!(served[1] >= 16, "{served:?}");
        }
    }
}

/// Completions that passed through wait in the backlog, a SEND that is flushed in the ring. The two
/// take turns, and the order of SENDs holds all the same.
#[test]
fn a_send_that_is_flushed_comes_behind_completions_that_wait_for_budget() {
    for budget in [1, 2, usize::MAX] {
        let mut rig = Setup::spray(2).fragment(128).rig();
        rig.post((1..=4).map(|id| rig::send(id, 64)));
        rig.post([rig::write(5, 256), rig::send(6, 64), rig::send(7, 64)]);
        rig.rails[0].complete(4);
        rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
        rig.rails[0].flush();
        let mut reported = Vec::new();
        for _ in 0..12 {
            let (events, _) = rig.poll_events(budget);
            let ids = events.into_iter().filter_map(Event::completion).map(|wc| wc.wr_id);
            reported.extend(ids.filter(|id| *id != 5));
        }
        assert_eq!(reported, [1, 2, 3, 4, 6, 7], "with a budget of {budget}");
    }
}

/// A SEND that will not be posted any more has something to report, as others have: requests of
/// other virtual queue pairs that pass straight through all the time do not keep it waiting for
/// ever, whatever the budget.
#[test]
fn a_send_that_is_flushed_has_its_turn_while_others_pass_through() {
    for budget in [1, 2, 8] {
        let (nic, cqs, mut cq) = one_cq(1 << 14);
        let (mut set, handles): (Vec<_>, Vec<_>) = [(2, 10), (1, 20)]
            .map(|(rails, number)| qp(&nic, &cqs, rails, number))
            .into_iter()
            .unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        set[0].post_send(&rig::write(1, 256)).unwrap();
        set[0].post_send(&rig::send(2, 64)).unwrap();
        let mut flushed = 0;
        for at in 0..200 {
            if at == 20 {
                handles[0][1].fail(WcStatus::REM_ACCESS_ERR);
                handles[0][0].flush();
            }
            while handles[1][0].slots() < 64 {
                set[1].post_send(&rig::send(9, 8)).unwrap();
            }
            handles[1][0].complete_all();
            let reported = wcs(&mut cq, &mut set, budget);
            flushed += reported.iter().filter(|wc| (wc.qp_num, wc.wr_id) == (10, 2)).count();
        }
        assert_eq!(flushed, 1, "with a budget of {budget}");
    }
}

/// An owner that waits for completion queues alone would wait forever: no completion comes.
#[test]
fn a_poll_is_needed_for_what_no_completion_brings() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    while rig.cq.needs_poll() {
        assert_eq!(rig.poll(), []);
    }
    rig.rails.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
    rig.post([rig::write(1, 256)]);
    assert_eq!(rig.poll(), []);
    assert!(rig.cq.needs_poll(), "the drivers are to be offered it again");
    rig.rails.iter().for_each(|rail| rail.refuse_all(None));
    assert_eq!(rig.poll(), []);
    assert!(!rig.cq.needs_poll(), "what is in flight completes");
    rig.post([rig::write(2, 128), rig::write(3, 128)]);
    rig.rails.iter().for_each(QpHandle::complete_all);
    assert_eq!(rig.poll_events(1).0.len(), 1);
    assert!(rig.cq.needs_poll(), "what found no budget");
    assert_eq!(rig.poll().len(), 2);
    assert!(!rig.cq.needs_poll());
}

#[test]
fn no_poll_is_needed_for_completions_of_a_virtual_queue_pair_that_failed() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::write(2, 128)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.poll(), []);
    assert!(!rig.cq.needs_poll(), "what is in flight on the other rail completes");
    rig.rails[0].flush();
    assert_eq!(rig.poll().len(), 2);
}

#[test]
fn a_poll_is_needed_while_a_driver_leaves_a_rail_that_failed_alive() {
    let mut rig = Setup::spray(2).fragment(128).reroute().rig();
    let rail = RailId::Data(1);
    rig.rails[1].refuse_error(Some(Refusal::Driver(19)));
    assert!(rig.qp.fail_rail(rail));
    assert_eq!(rig.poll(), []);
    assert!(rig.cq.needs_poll(), "to ask its driver again");
    rig.rails[1].refuse_error(None);
    assert_eq!(rig.poll(), []);
    assert!(!rig.cq.needs_poll(), "it is Fenced, and the peer's word is awaited");
}

/// A rail fails in a post: its driver refuses a request for good, and nothing is in flight on it.
/// No completion of it comes, so polls alone have to find that it is Fenced.
#[test]
fn a_rail_that_failed_in_a_post_is_fenced_by_polls_though_nothing_completes() {
    let rail = RailId::Data(1);
    let mut rig = Setup::spray(2).fragment(128).reroute().rig();
    while rig.cq.needs_poll() {
        assert_eq!(rig.poll(), []);
    }
    rig.rails[1].refuse_next(0, Refusal::Driver(5));
    rig.post([rig::write(1, 256)]);
    assert_eq!(rig.qp.rail_state(rail), Some(RailState::Draining));
    for _ in 0..=rig.cq.polls_before_waiting() {
        assert_eq!(rig.poll(), []);
    }
    let state = rig.qp.rail_state(rail);
    assert!(state == Some(RailState::Fenced) || rig.cq.needs_poll(), "{state:?}, and nobody polls");
}

#[test]
fn a_budget_of_zero_reports_nothing_and_loses_nothing() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_events(0).0, []);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// Priority polling: the completions of one device first.
#[test]
fn poll_cq_takes_from_one_queue_only() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails[0].complete(1);
    rig.rails[1].complete(1);
    let mut seen = Vec::new();
    let polled = rig.cq.poll_cq(1, &mut rig.qp, 32, |event| seen.push(event));
    assert_eq!((polled.events, seen.len()), (0, 0), "request 1 is not complete");
    assert_eq!(rig.nic.unpolled(), 1);
    let polled = rig.cq.poll_cq(0, &mut rig.qp, 32, |event| seen.push(event));
    assert_eq!((polled.events, polled.error), (2, None));
    let ids: Vec<_> = seen.into_iter().filter_map(Event::completion).map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn poll_cq_hands_over_what_its_own_budget_left_behind() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post((0..4).map(|id| rig::write(id, 128)));
    // Request 0 last, so that all four become reportable with the last completion.
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let _ = rig.cq.poll_cq(0, &mut rig.qp, 1, |event| seen.push(event));
    }
    let ids: Vec<_> = seen.into_iter().filter_map(Event::completion).map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

/// Defect 24: a poll stops at its budget, and takes at most a batch of completions.
#[test]
fn defect_24_a_poll_hands_over_no_more_than_its_budget() {
    let mut rig = Setup::spray(1).rig();
    rig.post((0..50).map(|id| rig::write(id, 8)));
    rig.rails[0].complete_all();
    let mut ids = Vec::new();
    for unpolled in [50 - 32, 50 - 40, 50 - 44] {
        let (events, polled) = rig.poll_events(4);
        assert_eq!((events.len(), polled.events), (4, 4));
        assert_eq!(rig.nic.unpolled(), unpolled, "as many as there is room for");
        ids.extend(events.into_iter().filter_map(|event| event.completion().map(|wc| wc.wr_id)));
    }
    ids.extend(rig.poll().iter().map(|wc| wc.wr_id));
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
}

/// Defect 24: completions without a report do not make a poll endless either.
#[test]
fn defect_24_silent_completions_are_bounded_too() {
    let mut rig: Rig<2, 128, 128> = Setup::spray(2).fragment(128).depth(128).build();
    rig.post([rig::write(0, 256)]);
    rig.post((1..100).map(|id| rig::write(id, 256)));
    rig.rails[1].complete_all();
    assert_eq!(rig.nic.unpolled(), 100);
    let (events, _) = rig.poll_events(1);
    assert_eq!((events.len(), rig.nic.unpolled()), (0, 68), "one batch of 32");
    rig.rails[0].complete_all();
    let statuses = rig.run_dry().iter().map(|wc| wc.status).collect::<Vec<_>>();
    assert_eq!(statuses, [WcStatus::SUCCESS; 100]);
}
