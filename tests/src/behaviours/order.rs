//! The order of notifications and reports, over several rails.

use super::engine::Engines;
use super::pair::pattern;
use super::{Fixture, LIMIT, Memory, QUIET, Retries};
use polyrail_core::verbs::{RecvWr, ReportOrder, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::Scheme;
use std::time::Instant;

/// Bytes of one write.
const LENGTH: u32 = 100_000;

fn post_write<F: Fixture>(ends: &mut Engines<F>, wr_id: u64, order: ReportOrder) {
    let Engines { near, far } = ends;
    let offset = wr_id as usize * LENGTH as usize;
    let local = near.memory.local(offset, LENGTH);
    let wr = SendWr::write(wr_id, local, far.memory.addr() + offset as u64, &near.keys);
    near.qp.post_send(&wr.reported(order)).expect("room");
}

/// Writes without a notification, one of them reported out of turn, and a WRITE_WITH_IMM of no
/// bytes.
pub(super) fn a_signal_arrives_behind_what_was_posted_before<F: Fixture>(fixture: &F) {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut ends = Engines::new(fixture, 2, scheme, Retries::MANY);
        for round in 0..4 {
            let data = pattern(2 * LENGTH as usize, round);
            ends.near.memory.write(0, &data);
            ends.far.qp.post_recv(&RecvWr::notification(round)).expect("room");
            post_write(&mut ends, 0, ReportOrder::InOrder);
            post_write(&mut ends, 1, ReportOrder::WhenDone);
            ends.near.qp.post_send(&SendWr::signal(2, 77)).expect("room");

            let [mut sent, mut told] = [Vec::new(), Vec::new()];
            let start = Instant::now();
            while told.is_empty() {
                ends.near.poll(|wc| sent.push(wc));
                ends.far.poll(|wc| told.push(wc));
                assert!(start.elapsed() < LIMIT, "no notification with {scheme:?}, only {sent:?}");
            }
            // At once, before anybody polls again.
            assert!(
                ends.far.memory.read(0, data.len()) == data,
                "{scheme:?} told of what was not there"
            );
            let imm = (scheme == Scheme::Spray).then_some(77);
            let seen: Vec<_> =
                told.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len, wc.imm)).collect();
            assert_eq!(seen, [(round, WcStatus::SUCCESS, 0, imm)], "{scheme:?}");

            let [rest, _] = ends.reports(3 - sent.len(), 0);
            sent.extend(rest);
            assert!(sent.iter().all(|wc| wc.opcode == WcOpcode::RDMA_WRITE), "{sent:?}");
            let mut seen: Vec<_> =
                sent.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
            // The signal is reported in its turn, which is the last.
            seen[..2].sort_unstable_by_key(|&(wr_id, ..)| wr_id);
            let write = |wr_id| (wr_id, WcStatus::SUCCESS, LENGTH);
            assert_eq!(seen, [write(0), write(1), (2, WcStatus::SUCCESS, 0)], "{scheme:?}");
        }
    }
}

/// The first waits for a receive, and with it the third, which is to be reported in its turn.
pub(super) fn a_request_that_is_reported_when_done_waits_for_no_other<F: Fixture>(fixture: &F) {
    let mut ends = Engines::new(fixture, 2, Scheme::Spray, Retries::MANY);
    let data = pattern(3 * LENGTH as usize, 9);
    ends.near.memory.write(0, &data);
    ends.write(0, 0, LENGTH);
    post_write(&mut ends, 1, ReportOrder::WhenDone);
    post_write(&mut ends, 2, ReportOrder::InOrder);
    let [mut sent, _] = ends.reports(1, 0);
    let start = Instant::now();
    while start.elapsed() < QUIET {
        ends.near.poll(|wc| sent.push(wc));
    }
    let seen: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(1, WcStatus::SUCCESS)]);

    ends.far.qp.post_recv(&RecvWr::notification(5)).expect("room");
    let [sent, told] = ends.reports(2, 1);
    let seen: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(0, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    assert_eq!((told[0].wr_id, told[0].imm), (5, Some(100)));
    assert_eq!(ends.far.memory.read(0, data.len()), data);
}
