//! Sinks that panic: the poll that panics loses the event that it passed to the sink, and nothing
//! else. `core/docs/architecture.md`, "The virtual completion queue".

use super::budgets::names;
use super::completion_queue::{one_cq, qp};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::{Completion, DeviceId, SendFlags, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::RailId;
use polyrail_tests::rig::{self, Setup, Way};
use polyrail_tests::scripted::QpHandle;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A sink that panics is the caller's fault, and costs one event: the one that it was given.
#[test]
fn a_sink_that_panics_loses_nothing_else() {
    let run = |panics_at: usize, budget: usize| {
        let (nic, cqs, mut cq) = one_cq(1 << 14);
        let (mut set, handles): (Vec<_>, Vec<_>) = [(1, 10), (2, 20), (2, 30), (1, 40)]
            .map(|(rails, n)| qp(&nic, &cqs, rails, n))
            .into_iter()
            .unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        for round in 0..3 {
            for (qp, rails) in set.iter_mut().zip(&handles) {
                qp.post_send(&rig::send(10 * round, 8)).unwrap();
                qp.post_send(&rig::write(10 * round + 1, 128)).unwrap();
                qp.post_send(&rig::write(10 * round + 2, 128)).unwrap();
                let stranger = Completion::success(99, round, WcOpcode::SEND);
                rails.iter().for_each(QpHandle::complete_all);
                rails[0].inject(stranger);
            }
        }
        let mut events = Vec::new();
        for poll in 0..200 {
            let mut given = 0;
            let poll = AssertUnwindSafe(|| {
                cq.poll(&mut set[..], budget, |event| {
                    events.push(event);
                    given += 1;
                    assert!(poll > 3 || given != panics_at, "the sink's own");
                })
            });
            let _ = catch_unwind(poll).map(|polled| assert_eq!(polled.error, None));
            handles.iter().flatten().for_each(QpHandle::complete_all);
            cq.invariants();
        }
        let foreign = events.iter().filter(|event| matches!(event, Event::Foreign { .. })).count();
        let mut wcs: Vec<_> = events.iter().filter_map(|event| event.completion()).collect();
        assert!(wcs.iter().all(|wc| wc.status.is_success()));
        wcs.sort_by_key(|wc| (wc.qp_num, wc.wr_id));
        let expected: Vec<_> = [10, 20, 30, 40]
            .into_iter()
            .flat_map(|qp_num| [0, 1, 2, 10, 11, 12, 20, 21, 22].map(|id| (qp_num, id)))
            .collect();
        assert_eq!(wcs.iter().map(|wc| (wc.qp_num, wc.wr_id)).collect::<Vec<_>>(), expected);
        assert_eq!(foreign, 12);
        assert!(set.iter().all(|qp| qp.unreported_sends() == 0));
    };
    let outcome = catch_unwind(|| {
        for panics_at in 0..20 {
            for budget in [1, 2, 3, 7, 32, usize::MAX] {
                run(panics_at, budget);
            }
        }
    });
    outcome.unwrap();
}

/// After a panic, each completion of the rest of that batch and of the next one may be of another
/// queue pair than the one before it.
#[test]
fn after_a_sink_panicked_every_way_to_poll_goes_on() {
    let run = |way: Way| {
        let (nic, cqs, mut cq) = one_cq(1 << 14);
        let (mut set, handles): (Vec<_>, Vec<_>) =
            [10, 20, 30, 40].map(|number| qp(&nic, &cqs, 2, number)).into_iter().unzip();
        for (index, qp) in set.iter().enumerate() {
            cq.attach(index as u16, qp).unwrap();
        }
        handles[0][0].inject(Completion::success(99, 0, WcOpcode::SEND));
        for id in 0..16 {
            for (qp, handles) in set.iter_mut().zip(&handles) {
                qp.post_send(&rig::write(id, 128)).unwrap();
                handles.iter().for_each(QpHandle::complete_all);
            }
        }
        let panics = AssertUnwindSafe(|| cq.poll(&mut set[..], 32, |_| panic!("the sink's own")));
        assert!(catch_unwind(panics).is_err());
        let mut reports = 0;
        let mut sink = |event: Event| reports += u32::from(event.completion().is_some());
        match way {
            Way::Queue(at, budget) => {
                let _ = cq.poll_cq(at, &mut set[..], budget, &mut sink);
            }
            _ => {
                let mut batch = [const { MaybeUninit::uninit() }; 32];
                let completions = cqs[0].clone().poll(&mut batch).unwrap();
                // SAFETY: just polled from a queue of this device, in order.
                unsafe { cq.feed(&mut set[..], DeviceId(0), completions, &mut sink) };
            }
        }
        while cq.poll(&mut set[..], 32, &mut sink).events > 0 {}
        assert_eq!(reports, 64, "{way:?}");
    };
    let outcome = catch_unwind(|| {
        [Way::Queue(0, usize::MAX), Way::Queue(0, 40), Way::Feed(0)].into_iter().for_each(run);
    });
    outcome.unwrap();
}

/// A failure of an only rail is known to its queue pair before its completion finds budget.
#[test]
fn what_passed_through_and_waits_for_budget_is_counted_with_its_failures() {
    let mut rig = Setup::spray(1).rig();
    rig.rails[0].inject(Completion::success(99, 0, WcOpcode::SEND));
    rig.post((0..4).map(|id| rig::send(id, 8)));
    rig.rails[0].complete(2);
    rig.rails[0].flush();
    let panics = AssertUnwindSafe(|| rig.cq.poll(&mut rig.qp, 32, |_| panic!("the sink's own")));
    let outcome = catch_unwind(panics);
    assert!(outcome.is_err());
    assert_eq!(names(rig.poll_events(1).0), [0]);
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.completions, counters.errors), (4, 2));
    assert_eq!(rig.qp.first_error().map(|error| error.status), Some(WcStatus::WR_FLUSH_ERR));
    assert_eq!(names(rig.poll_events(32).0), [1, 2, 3]);
}

/// A queue pair that took completions in a poll whose sink panicked, and was detached before the
/// next one, goes on when it is attached again: perhaps no further completion comes.
#[test]
fn a_queue_pair_that_is_attached_again_after_a_sink_panicked_goes_on() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::send(1, 8), rig::write(2, 256).with_flags(fenced)]);
    rig.rails[0].complete_all();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let panics = AssertUnwindSafe(|| rig.cq.poll(&mut rig.qp, 32, |_| panic!("the sink's own")));
    let outcome = catch_unwind(panics);
    std::panic::set_hook(hook);
    assert!(outcome.is_err(), "it was given request 1");
    assert!(rig.cq.detach(0));
    assert_eq!(rig.poll(), []);
    rig.cq.attach(0, &rig.qp).unwrap();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.run_dry().len(), 1, "request 2 waited for request 1 only");
}

/// What a sink that panicked left behind was taken out of the completion queue: which reports it no
/// more.
#[test]
fn a_poll_is_needed_after_a_sink_panicked() {
    for rails in [1, 2] {
        let mut rig = Setup::spray(rails).fragment(128).rig();
        while rig.cq.needs_poll() {
            assert_eq!(rig.poll(), []);
        }
        rig.post((0..4).map(|id| rig::write(id, 128)));
        rig.rails.iter().for_each(QpHandle::complete_all);
        let panics =
            AssertUnwindSafe(|| rig.cq.poll(&mut rig.qp, 32, |_| panic!("the sink's own")));
        assert!(catch_unwind(panics).is_err());
        assert_eq!(rig.nic.unpolled(), 0, "no completion queue has anything");
        assert!(rig.cq.needs_poll(), "three reports wait, of {rails} rails");
        assert_eq!(names(rig.poll_events(32).0), [1, 2, 3]);
        assert!(!rig.cq.needs_poll());
    }
}

/// The same while SENDs are flushed: each is given once, and in order.
#[test]
fn a_sink_that_panics_while_sends_are_flushed_loses_nothing_else() {
    for panics_at in 0..9 {
        for budget in [1, 2, 3, usize::MAX] {
            let mut rig = Setup::spray(2).fragment(128).rig();
            rig.post((1..=4).map(|id| rig::send(id, 64)));
            rig.post([rig::write(5, 256), rig::send(6, 64), rig::send(7, 64), rig::send(8, 64)]);
            rig.rails[0].complete(4);
            rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
            rig.rails[0].flush();
            let mut given = Vec::new();
            let mut polls = 0;
            while polls < 4 || rig.cq.needs_poll() {
                let poll = AssertUnwindSafe(|| {
                    rig.cq.poll(&mut rig.qp, budget, |event| {
                        given.push(event.completion().unwrap().wr_id);
                        assert!(given.len() != panics_at, "the sink's own");
                    })
                });
                let _ = catch_unwind(poll).map(|polled| assert_eq!(polled.error, None));
                rig.cq.invariants();
                rig.qp.invariants();
                polls += 1;
                assert!(polls < 40, "{given:?}");
            }
            given.retain(|id| *id != 5);
            assert_eq!(given, [1, 2, 3, 4, 6, 7, 8], "at {panics_at}, budget {budget}");
        }
    }
}
