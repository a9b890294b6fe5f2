//! Every operation has its effect.

use super::pair::{IMM, Pair, Side, pattern, recv};
use super::{End, Fixture, Memory, Retries};
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{Imm, Opcode, SendFlags, SendRequest, Sge, WcFlags, WcOpcode, WcStatus};
use std::thread;

pub(super) fn write_arrives_without_a_completion_at_the_peer<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let data = pattern(20_000, 1);
    pair.near.memory.write(100, &data);
    pair.near.post(&[pair.write(7, 100, 20_000)]).unwrap();
    let done = pair.near.completions(1)[0];
    assert_eq!((done.wr_id, done.status), (7, WcStatus::SUCCESS));
    assert_eq!((done.opcode, done.qp_num), (WcOpcode::RDMA_WRITE, pair.near.qp.qp_num()));
    pair.far.stays_quiet();
    assert_eq!(pair.far.memory.read(100, 20_000), data);
    assert_eq!((pair.far.memory.read(99, 1), pair.far.memory.read(20_100, 1)), (vec![0], vec![0]));
}

pub(super) fn write_with_imm_completes_a_receive<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let data = pattern(9_000, 2);
    pair.near.memory.write(0, &data);
    pair.far.recv(11, Sge::EMPTY).unwrap();
    pair.near.post(&[pair.request(7, Opcode::RdmaWriteWithImm, 0, 9_000)]).unwrap();
    assert_eq!(pair.near.ends(1), [(7, WcStatus::SUCCESS)]);
    let arrived = pair.far.completions(1)[0];
    assert_eq!((arrived.wr_id, arrived.status), (11, WcStatus::SUCCESS));
    assert_eq!((arrived.opcode, arrived.byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 9_000));
    assert_eq!(
        (arrived.imm(), arrived.qp_num),
        (Some(Imm::from_number(IMM)), pair.far.qp.qp_num())
    );
    assert_eq!(pair.far.memory.read(0, 9_000), data);
}

pub(super) fn empty_write_with_imm_completes_a_receive<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.far.recv(11, Sge::EMPTY).unwrap();
    let request = pair.request(7, Opcode::RdmaWriteWithImm, 0, 0);
    // With no bytes to write, address and key mean nothing.
    pair.near.post(&[SendRequest { remote_addr: 3, rkey: 99, ..request }]).unwrap();
    assert_eq!(pair.near.ends(1), [(7, WcStatus::SUCCESS)]);
    let arrived = pair.far.completions(1)[0];
    assert_eq!((arrived.wr_id, arrived.byte_len), (11, 0));
    assert_eq!(arrived.imm(), Some(Imm::from_number(IMM)));
}

pub(super) fn sends_land_in_receives_in_order<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.near.memory.write(0, b"first second");
    for (wr_id, offset) in [(1, 1000), (2, 2000)] {
        let sge = pair.far.sge(offset, 100);
        pair.far.recv(wr_id, sge).unwrap();
    }
    let plain = pair.request(7, Opcode::Send, 0, 5);
    let with_imm = pair.request(8, Opcode::SendWithImm, 6, 6);
    pair.near.post(&[plain, with_imm]).unwrap();
    assert_eq!(pair.near.ends(2), [(7, WcStatus::SUCCESS), (8, WcStatus::SUCCESS)]);
    let arrived = pair.far.completions(2);
    let seen: Vec<_> = arrived.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(seen, [(1, WcOpcode::RECV, 5), (2, WcOpcode::RECV, 6)]);
    assert!(!arrived[0].wc_flags.contains(WcFlags::WITH_IMM));
    assert_eq!(arrived[1].imm(), Some(Imm::from_number(IMM)));
    assert_eq!(pair.far.memory.read(1000, 5), b"first");
    assert_eq!(pair.far.memory.read(2000, 6), b"second");
}

pub(super) fn read_brings_the_bytes_here<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let data = pattern(17_000, 3);
    pair.far.memory.write(50, &data);
    pair.near.post(&[pair.request(7, Opcode::RdmaRead, 50, 17_000)]).unwrap();
    let done = pair.near.completions(1)[0];
    assert_eq!((done.wr_id, done.status, done.opcode), (7, WcStatus::SUCCESS, WcOpcode::RDMA_READ));
    pair.far.stays_quiet();
    assert_eq!(pair.near.memory.read(50, 17_000), data);
}

pub(super) fn atomics_change_the_word_and_bring_the_old_one<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.far.memory.write(64, &40_u64.to_ne_bytes());
    let add = SendRequest { compare_add: 2, ..pair.request(1, Opcode::FetchAdd, 64, 8) };
    let swap = SendRequest {
        compare_add: 42,
        swap: 7,
        sge: pair.near.sge(72, 8),
        ..pair.request(2, Opcode::CompareSwap, 64, 8)
    };
    let miss = SendRequest { sge: pair.near.sge(80, 8), wr_id: 3, ..swap };
    pair.near.post(&[add, swap, miss]).unwrap();
    let seen: Vec<_> = pair.near.completions(3).iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
    let add = WcOpcode::FETCH_ADD;
    let swap = WcOpcode::COMP_SWAP;
    assert_eq!(seen, [(1, add), (2, swap), (3, swap)]);
    let word = |memory: &F::Memory, at| {
        u64::from_ne_bytes(memory.read(at, 8).try_into().expect("eight bytes"))
    };
    assert_eq!([64, 72, 80].map(|at| word(&pair.near.memory, at)), [40, 42, 7]);
    assert_eq!(word(&pair.far.memory, 64), 7);
}

pub(super) fn atomics_of_two_queue_pairs_lose_no_update<F: Fixture>(fixture: &F) {
    const EACH: u64 = 12;
    let mut pairs = [Pair::new(fixture), Pair::new(fixture)];
    pairs[0].far.memory.write(64, &0_u64.to_ne_bytes());
    let add = pairs[0].request(0, Opcode::FetchAdd, 64, 8);
    for turn in 0..EACH {
        for pair in &mut pairs {
            let sge = pair.near.sge(8 * turn as usize, 8);
            pair.near.post(&[SendRequest { wr_id: turn, sge, compare_add: 1, ..add }]).unwrap();
        }
    }
    let mut seen = Vec::new();
    for pair in &mut pairs {
        assert!(pair.near.ends(EACH as usize).iter().all(|(_, status)| status.is_success()));
        let old = |turn| pair.near.memory.read(8 * turn as usize, 8);
        seen.extend((0..EACH).map(old).map(|old| u64::from_ne_bytes(old.try_into().unwrap())));
    }
    // Each update met another value of the word, so none was lost.
    seen.sort_unstable();
    assert_eq!(seen, (0..2 * EACH).collect::<Vec<_>>());
    let word = pairs[0].far.memory.read(64, 8);
    assert_eq!(word, (2 * EACH).to_ne_bytes());
}

pub(super) fn inline_data_is_taken_while_posting<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.near.memory.write(0, b"now");
    let sge = pair.near.memory.local(0, 3).sge(0);
    let flags = SendFlags::INLINE | SendFlags::SIGNALED;
    pair.near.post(&[SendRequest { sge, flags, ..pair.write(7, 0, 3) }]).unwrap();
    pair.near.memory.write(0, b"new");
    assert_eq!(pair.near.ends(1), [(7, WcStatus::SUCCESS)]);
    assert_eq!(pair.far.memory.read(0, 3), b"now");
}

pub(super) fn two_rails_carry_at_the_same_time<F: Fixture>(fixture: &F) {
    let mut pairs = [0, 1].map(|rail| Pair::on(fixture, rail, Retries::MANY));
    for (seed, pair) in (0..).zip(&mut pairs) {
        pair.near.memory.write(0, &pattern(40_000, seed));
        pair.near.post(&[pair.write(seed, 0, 40_000)]).unwrap();
    }
    for (seed, pair) in (0..).zip(&mut pairs) {
        assert_eq!(pair.near.ends(1), [(seed, WcStatus::SUCCESS)]);
        assert_eq!(pair.far.memory.read(0, 40_000), pattern(40_000, seed));
    }
    let [first, second] = pairs.map(|pair| pair.near.qp.device());
    assert_ne!(first, second);
}

pub(super) fn a_shared_receive_queue_serves_two_queue_pairs<F: Fixture>(fixture: &F) {
    let mut srq = fixture.create_srq(End::Far, 0, 8);
    let mut pairs = [1, 2].map(|_| {
        let near = Side::new(fixture, End::Near, 0, None);
        let far = Side::new(fixture, End::Far, 0, Some(&srq));
        fixture.connect(0, &near.qp, &far.qp, Retries::MANY);
        Pair { near, far }
    });
    recv(&mut srq, 1, pairs[0].far.sge(0, 100)).unwrap();
    pairs[0].near.memory.write(0, b"from one");
    pairs[0].near.post(&[pairs[0].request(7, Opcode::Send, 0, 8)]).unwrap();
    assert_eq!(pairs[0].near.ends(1), [(7, WcStatus::SUCCESS)]);
    let arrived = pairs[0].far.completions(1)[0];
    assert_eq!((arrived.wr_id, arrived.qp_num, arrived.byte_len), (1, pairs[0].far.qp.qp_num(), 8));
    assert_eq!(pairs[0].far.memory.read(0, 8), b"from one");
    // From another handle, by another thread.
    let mut other = srq.clone();
    thread::scope(|scope| scope.spawn(|| recv(&mut other, 2, Sge::EMPTY)).join()).unwrap().unwrap();
    pairs[1].near.post(&[pairs[1].request(8, Opcode::RdmaWriteWithImm, 0, 0)]).unwrap();
    assert_eq!(pairs[1].near.ends(1), [(8, WcStatus::SUCCESS)]);
    let arrived = pairs[1].far.completions(1)[0];
    assert_eq!((arrived.wr_id, arrived.qp_num), (2, pairs[1].far.qp.qp_num()));
}
