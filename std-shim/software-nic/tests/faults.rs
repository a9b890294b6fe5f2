//! Faults on request.

mod support;

use polyrail_core::hardware::{CommitError, CompletionQueue as _, Refusal};
use polyrail_core::verbs::{Opcode, SendRequest, WcStatus};
use polyrail_software_nic::{
    AsyncEvent, ConnectOptions, Fabric, Fault, FaultKind, FaultPlan, NicError, PortState, QpCap,
    QpState, Step, TurnOutcome, When, vendor,
};
use std::iter::from_fn;
use std::time::Duration;
use support::*;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const EXCEEDED: WcStatus = WcStatus::RETRY_EXC_ERR;

#[test]
fn a_link_that_is_down_at_either_end_exceeds_the_retries() {
    for at_peer in [false, true] {
        impatient_both_ways(|mut pair| {
            let device = if at_peer { &pair.b.device } else { &pair.a.device };
            device.inject(When::Now, Fault::LinkDown);
            assert_eq!(device.port_state(1), Some(PortState::Down));
            assert_eq!(device.next_event(), Some(AsyncEvent::PortError { port: 1 }));
            pair.a.post_all(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
            let (a, b) = pair.settle();
            assert_eq!(ends(&a), [(1, EXCEEDED), (2, FLUSHED)]);
            assert_eq!((a[0].vendor_err, b), (vendor::LINK_DOWN, vec![]));
            assert_eq!(pair.b.qp.state(), QpState::Rts);
        });
    }
}

#[test]
fn every_reader_sees_the_events_since_it_began() {
    let device = Pair::impatient().a.device;
    let mut first = device.event_cursor();
    device.inject(When::Now, Fault::LinkDown);
    let mut second = device.event_cursor();
    device.inject(When::Now, Fault::LinkUp);
    let down = Some(AsyncEvent::PortError { port: 1 });
    let up = Some(AsyncEvent::PortActive { port: 1 });
    assert_eq!([(); 3].map(|()| device.next_event_of(&mut first)), [down, up, None]);
    assert_eq!([(); 2].map(|()| device.next_event_of(&mut second)), [up, None]);
    assert_eq!([(); 3].map(|()| device.next_event()), [down, up, None]);
    device.inject(When::Now, Fault::DeviceGone);
    let gone = Some(AsyncEvent::DeviceFatal);
    assert_eq!([(); 2].map(|()| device.clone().next_event()), [gone, None]);
    assert_eq!([&mut first, &mut second].map(|reader| device.next_event_of(reader)), [gone; 2]);
}

#[test]
fn who_reads_no_events_for_long_misses_the_oldest() {
    let device = Pair::impatient().a.device;
    let mut reader = device.event_cursor();
    for _ in 0..200 {
        device.inject(When::Now, Fault::LinkDown);
        device.inject(When::Now, Fault::LinkUp);
    }
    device.inject(When::Now, Fault::DeviceGone);
    let ends =
        |events: Vec<AsyncEvent>| (events.len(), events.first().copied(), events.last().copied());
    let up = AsyncEvent::PortActive { port: 1 };
    let expected = (256, Some(up), Some(AsyncEvent::DeviceFatal));
    assert_eq!(ends(from_fn(|| device.next_event_of(&mut reader)).collect()), expected);
    assert_eq!(ends(from_fn(|| device.next_event()).collect()), expected);
}

#[test]
fn a_link_that_comes_back_in_time_loses_nothing() {
    let options = ConnectOptions { timeout: 12, retry_cnt: 7, ..impatient() };
    for fabric in [Fabric::threaded(), Fabric::deterministic(2)] {
        let mut pair = Pair::with(fabric, QpCap::default(), &options);
        pair.a.device.inject(When::Now, Fault::LinkDown);
        pair.a.post(pair.write(1, 0, 8)).unwrap();
        assert_eq!(pair.a.poll(), []);
        pair.fabric.run_until_idle(3);
        pair.a.device.inject(When::Now, Fault::LinkUp);
        assert_eq!(pair.a.device.port_state(1), Some(PortState::Active));
        let mut completions = Vec::new();
        while completions.is_empty() {
            completions = pair.settle().0;
        }
        assert_eq!(ends(&completions), [(1, WcStatus::SUCCESS)]);
    }
}

#[test]
fn a_link_cut_after_some_bytes_leaves_those_bytes_there() {
    impatient_both_ways(|mut pair| {
        pair.a.buffer.fill(0, 3000, 7);
        pair.a.device.inject(When::Bytes(2500), Fault::LinkDown);
        let chain = [0, 1, 2].map(|i| pair.write(i, 1000 * i as usize, 1000));
        pair.a.post_all(&chain).unwrap();
        let (a, _) = pair.settle();
        let success = WcStatus::SUCCESS;
        assert_eq!(ends(&a), [(0, success), (1, success), (2, EXCEEDED)]);
        assert_eq!(pair.a.device.carried_bytes(), 2500);
        let there = pair.b.bytes(0, 3000);
        assert!(there[..2500].iter().all(|&b| b == 7) && there[2500..].iter().all(|&b| b == 0));
    });
}

#[test]
fn a_link_cut_at_the_end_of_a_message_lets_it_through() {
    impatient_both_ways(|mut pair| {
        pair.b.device.inject(When::Bytes(1000), Fault::LinkDown);
        pair.a.post_all(&[pair.write(1, 0, 1000), pair.write(2, 0, 0)]).unwrap();
        assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS), (2, EXCEEDED)]);
    });
}

#[test]
fn a_fault_is_applied_at_its_step() {
    let mut pair = Pair::deterministic(1);
    pair.a.device.inject(When::Step(3), Fault::LinkDown);
    pair.a.post_all(&[pair.write(1, 0, 8); 20]).unwrap();
    let history: Vec<Step> = std::iter::from_fn(|| pair.fabric.step()).collect();
    assert_eq!(history[3], Step::Struck { device: 0, fault: FaultKind::LinkDown });
    assert!(history.iter().any(|step| {
        matches!(step, Step::Executed { outcome: TurnOutcome::Failed(EXCEEDED), .. })
    }));
}

#[test]
fn a_fault_at_a_later_step_is_applied_to_an_idle_fabric() {
    let pair = Pair::deterministic(1);
    pair.b.device.inject(When::Step(1000), Fault::DeviceGone);
    let struck = Step::Struck { device: 1, fault: FaultKind::DeviceGone };
    assert_eq!(pair.fabric.step(), Some(struck));
    assert_eq!((pair.fabric.step(), pair.fabric.steps()), (None, 1001));
}

#[test]
fn a_device_that_goes_away_fails_everything_on_it() {
    impatient_both_ways(|mut pair| {
        pair.b.device.inject(When::Now, Fault::DeviceGone);
        let gone = Err(CommitError { accepted: 0, refusal: Refusal::Driver(19) });
        let request = pair.write(1, 0, 8);
        assert_eq!(pair.b.post(request), gone);
        assert_eq!(pair.b.recv(1, nothing()), gone);
        let error = poll(&mut pair.b.cq).unwrap_err();
        assert_eq!((error.errno, error.cq), (19, pair.b.cq.id()));
        assert_eq!(pair.b.device.create_cq(8).unwrap_err(), NicError::DeviceGone);
        assert_eq!(pair.b.device.next_event(), Some(AsyncEvent::DeviceFatal));
        pair.a.post(request).unwrap();
        pair.fabric.run_until_idle(1000);
        let a = loop {
            let completions = pair.a.poll();
            if !completions.is_empty() {
                break completions;
            }
        };
        assert_eq!((ends(&a), a[0].vendor_err), (vec![(1, EXCEEDED)], vendor::PEER_GONE));
    });
}

#[test]
fn forced_rnr_is_retried_as_often_as_allowed() {
    impatient_both_ways(|mut pair| {
        pair.b.recv(101, nothing()).unwrap();
        pair.b.device.inject(When::Now, Fault::ForceRnr { requests: 1 });
        pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!((ends(&a), ids(&b)), (vec![(1, WcStatus::SUCCESS)], vec![101]));
        pair.b.recv(102, nothing()).unwrap();
        pair.b.device.inject(When::Now, Fault::ForceRnr { requests: 2 });
        pair.a.post(pair.request(2, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
        assert_eq!(ends(&pair.settle().0), [(2, WcStatus::RNR_RETRY_EXC_ERR)]);
    });
}

#[test]
fn the_data_of_a_write_with_imm_comes_before_its_receive_and_once() {
    let mut pair = Pair::deterministic(1);
    pair.a.buffer.fill(0, 8, 1);
    pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 8)).unwrap();
    let step = pair.fabric.step();
    assert!(
        matches!(step, Some(Step::Executed { outcome: TurnOutcome::NotReady, .. })),
        "{step:?}"
    );
    assert_eq!(pair.b.bytes(0, 8), [1; 8]);
    pair.a.buffer.fill(0, 8, 2);
    pair.b.recv(101, nothing()).unwrap();
    assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS)]);
    assert_eq!(pair.b.bytes(0, 8), [1; 8]);
}

#[test]
fn delayed_completions_come_later_and_in_order() {
    let delay = Duration::from_millis(20);
    for fabric in [Fabric::threaded(), Fabric::deterministic(2)] {
        let mut pair = Pair::with(fabric, QpCap::default(), &impatient());
        pair.a.device.inject(When::Now, Fault::DelayCompletions(delay));
        let start = pair.fabric.now();
        pair.a.post_all(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
        let soon = pair.a.poll();
        assert!(pair.fabric.is_threaded() || soon.is_empty(), "{soon:?}");
        pair.fabric.step();
        pair.a.device.inject(When::Now, Fault::DelayCompletions(Duration::ZERO));
        pair.a.post(pair.write(3, 0, 8)).unwrap();
        let mut completions = soon;
        while completions.len() < 3 {
            completions.extend(pair.settle().0);
        }
        assert_eq!(ids(&completions), [1, 2, 3]);
        assert!(pair.fabric.now() - start >= delay);
    }
}

#[test]
fn a_silent_link_completes_nothing_until_the_queue_pair_is_moved_to_err() {
    for at_peer in [false, true] {
        impatient_both_ways(|mut pair| {
            let device = if at_peer { &pair.b.device } else { &pair.a.device };
            device.inject(When::Now, Fault::Silent(true));
            pair.a.post_all(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
            assert_eq!(pair.settle(), (vec![], vec![]));
            pair.a.qp.to_error().unwrap();
            assert_eq!(ends(&pair.settle().0), [(1, FLUSHED), (2, FLUSHED)]);
        });
    }
}

#[test]
fn a_silent_link_that_speaks_again_goes_on() {
    impatient_both_ways(|mut pair| {
        pair.a.device.inject(When::Now, Fault::Silent(true));
        pair.a.post(pair.write(1, 0, 8)).unwrap();
        assert_eq!(pair.settle().0, []);
        pair.a.device.inject(When::Now, Fault::Silent(false));
        assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS)]);
    });
}

#[test]
fn a_lost_acknowledgement_fails_a_request_that_was_carried_out_once() {
    impatient_both_ways(|mut pair| {
        pair.b.recv(101, nothing()).unwrap();
        pair.b.recv(102, nothing()).unwrap();
        pair.a.buffer.fill(0, 100, 5);
        pair.a.device.inject(When::Now, Fault::LoseAcks(true));
        pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!((ends(&a), ends(&b)), (vec![(1, EXCEEDED)], vec![(101, WcStatus::SUCCESS)]));
        assert_eq!(a[0].vendor_err, vendor::ACK_LOST);
        assert_eq!(pair.b.bytes(0, 100), [5; 100]);
    });
}

#[test]
fn a_device_that_drops_what_arrives_is_reached_by_nothing_and_hears_no_answer() {
    impatient_both_ways(|mut pair| {
        pair.b.recv(101, nothing()).unwrap();
        pair.a.buffer.fill(0, 100, 5);
        pair.b.buffer.fill(0, 100, 7);
        pair.b.device.inject(When::Now, Fault::DropArriving(true));
        pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!((ends(&a), ends(&b)), (vec![(1, EXCEEDED)], vec![]));
        assert_eq!(a[0].vendor_err, vendor::DROPPED);
        assert_eq!(pair.b.bytes(0, 100), [7; 100]);
    });
    impatient_both_ways(|mut pair| {
        pair.b.recv(101, nothing()).unwrap();
        pair.a.buffer.fill(0, 100, 5);
        pair.a.device.inject(When::Now, Fault::DropArriving(true));
        pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!((ends(&a), ends(&b)), (vec![(1, EXCEEDED)], vec![(101, WcStatus::SUCCESS)]));
        assert_eq!(a[0].vendor_err, vendor::ACK_LOST);
        assert_eq!(pair.b.bytes(0, 100), [5; 100]);
    });
    // It does not hear either that the peer has no receive.
    impatient_both_ways(|mut pair| {
        pair.a.device.inject(When::Now, Fault::DropArriving(true));
        pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!((ends(&a), ends(&b)), (vec![(1, EXCEEDED)], vec![]));
    });
}

#[test]
fn acknowledgements_that_get_through_in_time_complete_the_request_once() {
    let options = ConnectOptions { timeout: 0, ..impatient() };
    let mut pair = Pair::with(Fabric::deterministic(1), QpCap::default(), &options);
    pair.b.buffer.fill(0, 8, 0);
    pair.a.device.inject(When::Now, Fault::LoseAcks(true));
    let add = SendRequest { compare_add: 1, ..pair.request(1, Opcode::FetchAdd, 0, 8) };
    pair.a.post(add).unwrap();
    pair.settle();
    pair.a.device.inject(When::Now, Fault::LoseAcks(false));
    assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS)]);
    assert_eq!(pair.b.bytes(0, 8), 1_u64.to_ne_bytes());
}

#[test]
fn a_plan_is_plain_data() {
    let mut pair = Pair::impatient();
    let plan = FaultPlan {
        faults: vec![
            (When::Now, Fault::ForceRnr { requests: 9 }),
            (When::Bytes(8), Fault::LinkDown),
        ],
    };
    pair.b.device.apply(&plan.clone());
    pair.a.post_all(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
    assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS), (2, EXCEEDED)]);
}

#[test]
fn an_internal_error_fails_requests_that_were_carried_out() {
    for at_peer in [false, true] {
        impatient_both_ways(|mut pair| {
            pair.b.recv(101, nothing()).unwrap();
            pair.b.recv(102, nothing()).unwrap();
            pair.a.buffer.fill(0, 100, 5);
            let fault = Fault::FailRequests(true);
            let device = if at_peer { &pair.b.device } else { &pair.a.device };
            device.inject(When::Bytes(8), fault);
            pair.a.post(pair.write(1, 0, 4)).unwrap();
            assert_eq!(ends(&pair.settle().0), [(1, WcStatus::SUCCESS)]);
            pair.a.post(pair.request(2, Opcode::RdmaWriteWithImm, 0, 100)).unwrap();
            let (a, b) = pair.settle();
            let device = if at_peer { &pair.b.device } else { &pair.a.device };
            assert!(device.suffers(fault) && !device.suffers(Fault::FailRequests(false)));
            let status = if at_peer { WcStatus::REM_OP_ERR } else { WcStatus::GENERAL_ERR };
            assert_eq!((ends(&a), a[0].vendor_err), (vec![(2, status)], vendor::INTERNAL));
            assert_eq!(pair.a.qp.state(), QpState::Err);
            assert_eq!(pair.b.bytes(0, 100), [5; 100]);
            let arrived = (101, WcStatus::SUCCESS);
            if at_peer {
                assert_eq!(
                    (ends(&b), pair.b.qp.state()),
                    (vec![arrived, (102, FLUSHED)], QpState::Err)
                );
            } else {
                assert_eq!((ends(&b), pair.b.qp.state()), (vec![arrived], QpState::Rts));
            }
        });
    }
}

#[test]
fn a_device_is_as_its_faults_make_it_until_they_are_undone() {
    let pair = Pair::impatient();
    let device = &pair.a.device;
    let late = Fault::DelayCompletions(Duration::from_millis(1));
    for (begins, ends) in [
        (Fault::LinkDown, Fault::LinkUp),
        (late, Fault::DelayCompletions(Duration::ZERO)),
        (Fault::RefuseRtr { transitions: 3 }, Fault::RefuseRtr { transitions: 0 }),
        (Fault::Silent(true), Fault::Silent(false)),
        (Fault::LoseAcks(true), Fault::LoseAcks(false)),
        (Fault::DropArriving(true), Fault::DropArriving(false)),
        (Fault::FailRequests(true), Fault::FailRequests(false)),
        (Fault::OneMoreReceive(Duration::from_millis(1)), Fault::OneMoreReceive(Duration::ZERO)),
        (Fault::TakeSharedReceive(true), Fault::TakeSharedReceive(false)),
    ] {
        assert!(!device.suffers(begins) && device.suffers(ends), "{begins:?}");
        device.inject(When::Now, begins);
        assert!(device.suffers(begins) && !device.suffers(ends), "{begins:?}");
        device.inject(When::Now, ends);
        assert!(!device.suffers(begins) && device.suffers(ends), "{begins:?}");
    }
    for lasting in [Fault::ForceRnr { requests: 1 }, Fault::DeviceGone] {
        assert!(!device.suffers(lasting), "{lasting:?}");
        device.inject(When::Now, lasting);
        assert!(device.suffers(lasting), "{lasting:?}");
    }
}
