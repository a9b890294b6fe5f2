//! The deterministic way to run: histories repeat, orders vary, queues keep theirs.

mod support;

use polyrail_core::hardware::{QueuePair as _, SendBatch as _};
use polyrail_core::verbs::{Completion, Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_software_nic::{
    ConnectOptions, Fabric, QpCap, QpInit, QueuePair, Step, TurnOutcome, connect_pair,
};
use std::collections::HashMap;
use support::*;

/// Four rails between two devices, with work on all of them.
struct Rails {
    pair: Pair,
    more: Vec<(QueuePair, QueuePair)>,
}

impl Rails {
    fn new(seed: u64) -> Self {
        let options = ConnectOptions { rnr_retry: 7, ..impatient() };
        let pair = Pair::with(Fabric::deterministic(seed), QpCap::default(), &options);
        let more = (0..3).map(|_| {
            let create =
                |side: &Side| side.pd.create_qp(&QpInit::new(&side.cq, QpCap::default())).unwrap();
            let a = create(&pair.a);
            let b = create(&pair.b);
            connect_pair(&a, &b, &options).unwrap();
            (a, b)
        });
        let more = more.collect();
        let mut rails = Self { pair, more };
        rails.post();
        rails
    }

    fn post(&mut self) {
        let opcodes = [Opcode::RdmaWriteWithImm, Opcode::RdmaRead, Opcode::RdmaWrite];
        let requests: Vec<_> = (0..12)
            .map(|i| self.pair.request(i, opcodes[i as usize % 3], 64 * i as usize, 64))
            .collect();
        self.pair.a.post_all(&requests).unwrap();
        (100..104).for_each(|wr_id| self.pair.b.recv(wr_id, nothing()).unwrap());
        for (a, b) in &mut self.more {
            let mut batch = a.start_send();
            requests.iter().for_each(|request| batch.add(request));
            batch.commit().unwrap();
            (100..104).for_each(|wr_id| recv(b, wr_id, nothing()).unwrap());
        }
    }

    fn run(&mut self) -> (Vec<Step>, Vec<Completion>, Vec<Completion>) {
        let history = std::iter::from_fn(|| self.pair.fabric.step()).collect();
        let (a, b) = self.pair.settle();
        (history, a, b)
    }
}

fn shown(completions: &[Completion]) -> Vec<(u32, u64)> {
    completions.iter().map(|c| (c.qp_num, c.wr_id)).collect()
}

#[test]
fn equal_seeds_give_equal_histories() {
    for seed in 0..20 {
        let first = Rails::new(seed).run();
        let second = Rails::new(seed).run();
        assert!(first.0.len() > 4 * (12 + 12 + 4));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_histories() {
    let histories: std::collections::HashSet<_> =
        (0..20).map(|seed| Rails::new(seed).run().0).collect();
    assert_eq!(histories.len(), 20);
}

#[test]
fn each_queue_keeps_its_order_and_queues_mix() {
    let mut mixed = 0;
    for seed in 0..50 {
        let (_, a, b) = Rails::new(seed).run();
        assert_eq!((a.len(), b.len()), (48, 16), "seed {seed}");
        for completions in [&a, &b] {
            let mut last = HashMap::new();
            for (qp, wr_id) in shown(completions) {
                let before = last.insert(qp, wr_id);
                assert!(before.is_none_or(|before| before < wr_id), "seed {seed}, qp {qp}");
            }
        }
        let qps: Vec<u32> = a.iter().map(|c| c.qp_num).collect();
        mixed += usize::from(!qps.is_sorted());
    }
    assert_eq!(mixed, 50);
}

#[test]
fn nothing_moves_and_nothing_shows_without_a_step() {
    let mut pair = Pair::deterministic(1);
    pair.a.buffer.fill(0, 8, 1);
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    assert_eq!(pair.a.poll(), []);
    assert_eq!(pair.b.bytes(0, 8), [0; 8]);
    assert!(matches!(pair.fabric.step(), Some(Step::Executed { wr_id: 1, .. })));
    assert_eq!(pair.b.bytes(0, 8), [1; 8]);
    assert_eq!(pair.a.poll(), []);
    assert!(matches!(pair.fabric.step(), Some(Step::Shown { wr_id: 1, .. })));
    assert_eq!(ids(&pair.a.poll()), [1]);
    assert_eq!(pair.fabric.step(), None);
}

#[test]
fn a_threaded_fabric_takes_no_steps() {
    let mut pair = Pair::threaded();
    pair.a.post(pair.write(1, 0, 8)).unwrap();
    assert_eq!((pair.fabric.step(), pair.fabric.steps()), (None, 0));
}

#[test]
fn waiting_is_a_step_that_moves_time() {
    let mut pair = Pair::deterministic(1);
    pair.a.post(pair.request(1, Opcode::Send, 0, 8)).unwrap();
    let history: Vec<Step> = std::iter::from_fn(|| pair.fabric.step()).collect();
    let outcome =
        |wanted| move |s: &Step| matches!(s, Step::Executed { outcome, .. } if *outcome == wanted);
    assert!(history.iter().any(outcome(TurnOutcome::NotReady)));
    assert!(history.iter().any(|step| matches!(step, Step::Waited { .. })));
    assert!(history.iter().any(outcome(TurnOutcome::Failed(WcStatus::RNR_RETRY_EXC_ERR))));
}

/// Reads 8 bytes from the peer and writes them back elsewhere, from the same local buffer; returns
/// what arrived there.
fn read_then_write_back(seed: u64, flags: SendFlags) -> Vec<u8> {
    let mut pair = Pair::deterministic(seed);
    pair.b.buffer.fill(0, 8, 9);
    let back = SendRequest {
        flags: flags | SendFlags::SIGNALED,
        remote_addr: pair.b.buffer.addr() + 512,
        ..pair.write(2, 0, 8)
    };
    pair.a.post_all(&[pair.request(1, Opcode::RdmaRead, 0, 8), back]).unwrap();
    assert_eq!(ids(&pair.settle().0), [1, 2], "completions keep their order");
    pair.b.bytes(512, 8)
}

#[test]
fn a_fence_waits_for_reads_and_without_one_no_request_waits() {
    let fresh = |flags: SendFlags| {
        (0..100).filter(|&seed| read_then_write_back(seed, flags) == [9; 8]).count()
    };
    assert_eq!(fresh(SendFlags::FENCE), 100);
    let lucky = fresh(SendFlags::empty());
    assert!((1..100).contains(&lucky), "{lucky} of 100");
}

#[test]
fn a_request_that_overtook_a_read_completes_after_it_even_when_it_fails() {
    for seed in 0..100 {
        let mut pair = Pair::deterministic(seed);
        let bad = SendRequest { rkey: 1, ..pair.write(3, 0, 8) };
        let read = pair.request(1, Opcode::RdmaRead, 0, 8);
        pair.a.post_all(&[read, pair.write(2, 0, 8), bad, pair.write(4, 0, 8)]).unwrap();
        let success = WcStatus::SUCCESS;
        let flushed = WcStatus::WR_FLUSH_ERR;
        let expected = [(1, success), (2, success), (3, WcStatus::REM_ACCESS_ERR), (4, flushed)];
        assert_eq!(ends(&pair.settle().0), expected, "seed {seed}");
    }
}

#[test]
fn a_read_that_fails_late_takes_what_overtook_it_along() {
    let mut overtaken = 0;
    for seed in 0..100 {
        let mut pair = Pair::deterministic(seed);
        pair.a.buffer.fill(64, 8, 3);
        let read = SendRequest { rkey: 1, ..pair.request(1, Opcode::RdmaRead, 0, 8) };
        pair.a.post_all(&[read, pair.write(2, 64, 8), pair.write(3, 64, 8)]).unwrap();
        let flushed = WcStatus::WR_FLUSH_ERR;
        let expected = [(1, WcStatus::REM_ACCESS_ERR), (2, flushed), (3, flushed)];
        assert_eq!(ends(&pair.settle().0), expected, "seed {seed}");
        overtaken += usize::from(pair.b.bytes(64, 8) == [3; 8]);
    }
    assert!(overtaken > 0, "an error completion does not mean that nothing was delivered");
}

#[test]
fn random_failures_never_lose_or_repeat_a_completion() {
    use polyrail_software_nic::{Fault, When};
    for seed in 0..300 {
        let mut rails = Rails::new(seed);
        let device = if seed % 2 == 0 { &rails.pair.a.device } else { &rails.pair.b.device };
        device.inject(When::Step(seed % 37), Fault::LinkDown);
        if seed % 3 == 0 {
            device.inject(When::Step(seed % 37 + 10), Fault::LinkUp);
        }
        let (_, a, b) = rails.run();
        let mut sends = shown(&a);
        sends.sort_unstable();
        sends.dedup();
        assert_eq!((sends.len(), a.len()), (48, 48), "seed {seed}");
        let mut receives = shown(&b);
        receives.sort_unstable();
        receives.dedup();
        assert_eq!(receives.len(), b.len(), "seed {seed}");
        assert_eq!(rails.pair.a.qp.qp_num(), rails.pair.b.qp.qp_num(), "numbers repeat on purpose");
    }
}
