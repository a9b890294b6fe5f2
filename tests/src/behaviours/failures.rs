//! Error statuses, what they do to both ends, and what is flushed.

use super::pair::{BYTES, Pair};
use super::{AccessFlags, End, Fixture, Memory, Retries};
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, Sge, WcStatus};

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// A request fails with `status`, those behind it are flushed, signaled or not, and so is what is
/// posted later.
fn fails<F: Fixture>(fixture: &F, pair: &mut Pair<F>, bad: SendRequest, status: WcStatus) {
    let unsignaled = SendRequest { flags: SendFlags::empty(), ..pair.write(3, 0, 8) };
    pair.near.post(&[SendRequest { wr_id: 1, ..bad }, pair.write(2, 0, 8), unsignaled]).unwrap();
    let ends = pair.near.completions(3);
    let seen: Vec<_> = ends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(1, status), (2, FLUSHED), (3, FLUSHED)]);
    assert!(ends.iter().all(|wc| wc.qp_num == pair.near.qp.qp_num()));
    assert!(fixture.is_failed(&pair.near.qp));
    pair.near.post(&[pair.write(4, 0, 8)]).unwrap();
    assert_eq!(pair.near.ends(1), [(4, FLUSHED)]);
}

/// A request that the peer refuses fails both ends: the peer's receives are flushed.
fn is_refused<F: Fixture>(fixture: &F, pair: &mut Pair<F>, bad: SendRequest) {
    pair.far.recv(101, Sge::EMPTY).unwrap();
    pair.far.recv(102, Sge::EMPTY).unwrap();
    fails(fixture, pair, bad, WcStatus::REM_ACCESS_ERR);
    assert_eq!(pair.far.ends(2), [(101, FLUSHED), (102, FLUSHED)]);
    assert!(fixture.is_failed(&pair.far.qp));
}

pub(super) fn a_bad_rkey_fails_and_flushes_what_follows<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let write = pair.write(1, 0, 8);
    is_refused(fixture, &mut pair, SendRequest { rkey: write.rkey ^ 0x0055_5500, ..write });
}

pub(super) fn a_range_outside_the_region_fails<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let remote_addr = pair.far.memory.addr() + BYTES as u64 - 4;
    let write = pair.write(1, 0, 8);
    is_refused(fixture, &mut pair, SendRequest { remote_addr, ..write });
}

pub(super) fn a_region_that_permits_nothing_fails<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let closed = fixture.memory(End::Far, 4096, AccessFlags::LOCAL_WRITE);
    let write = pair.write(1, 0, 8);
    let bad = SendRequest { remote_addr: closed.addr(), rkey: closed.rkey(0), ..write };
    is_refused(fixture, &mut pair, bad);
    assert_eq!(closed.read(0, 8), [0; 8]);
}

pub(super) fn a_bad_lkey_fails<F: Fixture>(fixture: &F) {
    let statuses = fixture.statuses();
    for (opcode, status) in [
        (Opcode::RdmaWrite, statuses.write_with_bad_lkey),
        (Opcode::RdmaRead, statuses.read_with_bad_lkey),
    ] {
        let mut pair = Pair::new(fixture);
        let lkey = pair.near.memory.lkey(0) ^ 0x0055_5500;
        let sge = pair.near.memory.local(0, 8).sge(lkey);
        let bad = SendRequest { sge, ..pair.request(1, opcode, 0, 8) };
        fails(fixture, &mut pair, bad, status);
        assert!(!fixture.is_failed(&pair.far.qp), "the peer has done nothing wrong");
    }
}

pub(super) fn a_missing_receive_fails_after_the_retries<F: Fixture>(fixture: &F) {
    for opcode in [Opcode::Send, Opcode::RdmaWriteWithImm] {
        let mut pair = Pair::with_few_retries(fixture);
        let request = pair.request(1, opcode, 0, 8);
        fails(fixture, &mut pair, request, WcStatus::RNR_RETRY_EXC_ERR);
        assert!(!fixture.is_failed(&pair.far.qp), "the peer has done nothing wrong");
    }
}

pub(super) fn a_missing_receive_is_waited_for<F: Fixture>(fixture: &F) {
    let mut pair = Pair::on(fixture, 0, Retries { rnr_retry: 7, ..Retries::FEW });
    pair.near.post(&[pair.request(1, Opcode::RdmaWriteWithImm, 0, 8)]).unwrap();
    pair.near.stays_quiet();
    pair.far.recv(11, Sge::EMPTY).unwrap();
    assert_eq!(pair.near.ends(1), [(1, WcStatus::SUCCESS)]);
    assert_eq!(pair.far.ends(1), [(11, WcStatus::SUCCESS)]);
}

pub(super) fn a_receive_that_is_too_short_fails_both_ends<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (sender, receiver) = fixture.statuses().receive_too_short;
    let short = pair.far.sge(0, 7);
    pair.far.recv(11, short).unwrap();
    pair.far.recv(12, Sge::EMPTY).unwrap();
    let request = pair.request(1, Opcode::Send, 0, 8);
    fails(fixture, &mut pair, request, sender);
    assert_eq!(pair.far.ends(2), [(11, receiver), (12, FLUSHED)]);
    assert!(fixture.is_failed(&pair.far.qp));
}

pub(super) fn a_receive_with_a_bad_lkey_fails_both_ends<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (sender, receiver) = fixture.statuses().receive_with_bad_lkey;
    let lkey = pair.far.memory.lkey(0) ^ 0x0055_5500;
    pair.far.recv(11, pair.far.memory.local(0, 8).sge(lkey)).unwrap();
    let request = pair.request(1, Opcode::Send, 0, 8);
    fails(fixture, &mut pair, request, sender);
    assert_eq!(pair.far.ends(1), [(11, receiver)]);
    assert_eq!(pair.far.memory.read(0, 8), [0; 8]);
}

pub(super) fn moving_to_err_flushes_everything_in_order<F: Fixture>(fixture: &F) {
    let mut pair = Pair::on(fixture, 0, Retries { rnr_retry: 7, ..Retries::FEW });
    (11..15).for_each(|wr_id| pair.near.recv(wr_id, Sge::EMPTY).unwrap());
    // Waits for a receive that never comes, so what is behind it is in flight too.
    let waits = pair.request(1, Opcode::RdmaWriteWithImm, 0, 8);
    let unsignaled = SendRequest { flags: SendFlags::empty(), ..pair.write(2, 0, 8) };
    pair.near.post(&[waits, unsignaled, pair.write(3, 0, 8)]).unwrap();
    pair.near.stays_quiet();
    fixture.fail(&pair.near.qp);
    let (receives, sends): (Vec<_>, Vec<_>) =
        pair.near.ends(7).into_iter().partition(|&(wr_id, _)| wr_id > 10);
    assert_eq!(sends, [1, 2, 3].map(|wr_id| (wr_id, FLUSHED)));
    assert_eq!(receives, [11, 12, 13, 14].map(|wr_id| (wr_id, FLUSHED)));
}

pub(super) fn a_peer_in_err_does_not_answer<F: Fixture>(fixture: &F) {
    let mut pair = Pair::with_few_retries(fixture);
    fixture.fail(&pair.far.qp);
    let request = pair.write(1, 0, 8);
    fails(fixture, &mut pair, request, WcStatus::RETRY_EXC_ERR);
}

/// Sends only: rxe leaves receives that are posted in ERR where they are.
pub(super) fn a_failed_queue_pair_accepts_sends_and_flushes_them<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    fixture.fail(&pair.near.qp);
    pair.near.post(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
    assert_eq!(pair.near.ends(2), [(1, FLUSHED), (2, FLUSHED)]);
}
