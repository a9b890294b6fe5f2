//! The threaded way to run: both sides at once, everything intact, nothing stuck.

mod support;

use polyrail_core::verbs::{Imm, Opcode, SendFlags, SendRequest};
use polyrail_software_nic::{
    ConnectOptions, Fabric, Fault, ModifyError, QpCap, QpInit, QpState, When,
};
use std::sync::Barrier;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::*;

const MESSAGE: u32 = 16 * 1024;
const MESSAGES: u64 = 512;
const SLOTS: u64 = 16;

/// What one end needs of the other.
#[derive(Clone, Copy)]
struct Far {
    addr: u64,
    rkey: u32,
}

/// Half of the buffer is sent from, half is written by the peer.
const OUT: usize = 0;
const IN: usize = BUFFER_BYTES / 2;

fn pattern(from: u8, message: u64) -> Vec<u8> {
    (0..MESSAGE).map(|i| (u64::from(i) * 31 + message * 7 + u64::from(from)) as u8).collect()
}

/// Sends `MESSAGES` patterns and checks as many, one slot of the window after the other. A slot is
/// sent again only when the peer has answered that it has looked at it.
fn exchange(mut side: Side, me: u8, far: Far) {
    let mut sent = 0;
    let mut acked = 0;
    let mut seen = 0;
    let mut done = 0;
    for wr_id in 0..SLOTS * 2 {
        side.recv(wr_id, nothing()).unwrap();
    }
    while acked < MESSAGES || seen < MESSAGES || done < MESSAGES * 2 {
        if sent < MESSAGES && sent < acked + SLOTS {
            let offset = (sent % SLOTS) as usize * MESSAGE as usize;
            side.buffer.write_at(OUT + offset, &pattern(me, sent));
            let imm = Imm::from_number(sent as u32);
            let sge = side.sge(OUT + offset, MESSAGE);
            side.post(notify(sent, imm, sge, far, (IN + offset) as u64)).unwrap();
            sent += 1;
        }
        for completion in side.poll() {
            assert!(completion.status.is_success(), "{completion:?}");
            let Some(imm) = completion.imm() else {
                done += 1;
                continue;
            };
            side.recv(0, nothing()).unwrap();
            if completion.byte_len == 0 {
                acked += 1;
                continue;
            }
            let message = u64::from(imm.number());
            assert_eq!(message, seen, "messages arrive in order");
            let offset = (message % SLOTS) as usize * MESSAGE as usize;
            assert!(side.bytes(IN + offset, MESSAGE as usize) == pattern(1 - me, message));
            side.post(notify(seen, imm, nothing(), far, 0)).unwrap();
            seen += 1;
        }
        // Two sides and a test machine of few cores: let the other one run.
        std::thread::yield_now();
    }
    // The peer may still wait for acknowledgements that only this side's polling sends: none are
    // left, since every send completed. Keep the queue pair until the peer has finished too.
    END.wait();
}

static END: Barrier = Barrier::new(2);

fn notify(wr_id: u64, imm: Imm, sge: polyrail_core::verbs::Sge, far: Far, at: u64) -> SendRequest {
    SendRequest {
        wr_id,
        opcode: Opcode::RdmaWriteWithImm,
        flags: SendFlags::SIGNALED,
        imm,
        sge,
        remote_addr: far.addr + at,
        rkey: far.rkey,
        compare_add: 0,
        swap: 0,
    }
}

#[test]
fn two_threads_move_megabytes_both_ways_at_once() {
    let pair = Pair::threaded();
    let far = |side: &Side| Far { addr: side.buffer.addr(), rkey: side.rkey() };
    let far_a = far(&pair.a);
    let far_b = far(&pair.b);
    let Pair { a, b, .. } = pair;
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(a, 0, far_b));
        scope.spawn(|| exchange(b, 1, far_a));
    });
}

#[test]
fn deregistering_while_the_peer_writes_fails_requests_and_nothing_else() {
    let mut pair = Pair::impatient();
    let target = Buffer::new(1 << 20, ALL_ACCESS, &pair.b.pd);
    let remote_addr = target.addr();
    let rkey = target.rkey();
    let request = SendRequest { remote_addr, rkey, ..pair.write(1, 0, 1 << 20) };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(target);
        });
        let end = loop {
            pair.a.post(request).unwrap();
            let completions = pair.settle().0;
            if let Some(failed) = completions.iter().find(|c| !c.status.is_success()) {
                break failed.status;
            }
        };
        assert_eq!(end, polyrail_core::verbs::WcStatus::REM_ACCESS_ERR);
    });
}

/// Posts receives until the queue pair fails; returns the completions, when nothing more comes, and
/// how many receives were taken.
fn post_until_failed(
    mut side: Side,
    both_failed: &Barrier,
) -> (Vec<polyrail_core::verbs::Completion>, u64) {
    let mut posted = 0;
    let mut completions = Vec::new();
    while side.qp.state() == polyrail_software_nic::QpState::Rts {
        posted += u64::from(side.recv(posted, nothing()).is_ok());
        completions.extend(side.poll());
    }
    // One more, which is flushed at once.
    posted += u64::from(side.recv(posted, nothing()).is_ok());
    both_failed.wait();
    loop {
        let more = side.poll();
        if more.is_empty() {
            return (completions, posted);
        }
        completions.extend(more);
    }
}

#[test]
fn receives_posted_while_the_queue_pair_fails_complete_once_and_in_order() {
    for round in 0..80 {
        let pair = Pair::threaded();
        let notify = pair.request(1, Opcode::Send, 0, 0);
        let bad = SendRequest { rkey: 1, ..pair.write(2, 0, 8) };
        let Pair { mut a, b, .. } = pair;
        let both_failed = Barrier::new(2);
        let (completions, posted) = std::thread::scope(|scope| {
            let poster = scope.spawn(|| post_until_failed(b, &both_failed));
            for _ in 0..round % 40 {
                let _ = a.post(notify);
                a.poll();
            }
            a.post(bad).unwrap();
            while a.qp.state() == polyrail_software_nic::QpState::Rts {
                a.poll();
            }
            both_failed.wait();
            poster.join().unwrap()
        });
        let seen: Vec<_> = (0..posted).collect();
        assert_eq!(ids(&completions), seen, "round {round}");
    }
}

/// One thread's part in a brawl: everything that takes locks, in any order, on its own side, while
/// the other side does the same. Failures are welcome.
fn brawl(mut side: Side, mut other: polyrail_software_nic::QueuePair, far: Far, seed: u64) {
    let mut dice = seed;
    for round in 0..3000_u64 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let rkey = if dice >> 60 == 0 { 1 } else { far.rkey };
        let write = notify(round, Imm::default(), side.sge(0, 4096), Far { rkey, ..far }, 8192);
        let _ = side.recv(round, nothing());
        let _ = side.post_all(&[write; 3]);
        side.poll();
        match (dice >> 32) % 16 {
            0 => drop(side.qp.to_error()),
            1 => drop(side.qp.reset()),
            2 => drop(Buffer::new(4096, ALL_ACCESS, &side.pd)),
            3 => other = side.pd.create_qp(&QpInit::new(&side.cq, QpCap::default())).unwrap(),
            4..8 => std::mem::swap(&mut side.qp, &mut other),
            _ => {}
        }
        if side.qp.state() != polyrail_software_nic::QpState::Rts {
            let _ = side.qp.reset();
            // Both sides number alike, so this often finds the peer, and often does not.
            let peer = polyrail_software_nic::RemoteQp {
                gid: polyrail_software_nic::Gid::link_local(far_guid(&side)),
                lid: 0,
                qp_num: number(&side.qp),
                psn: 5,
                meeting: None,
            };
            let _ = side.qp.connect(5, &peer, &impatient());
        }
    }
}

/// Returns the other device's port, on a fabric of two.
fn far_guid(side: &Side) -> u64 {
    (side.device.guid() ^ 0x100) | 1
}

#[test]
fn sides_that_fail_reset_register_and_destroy_at_random_never_deadlock() {
    let (finished, watch) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..4 {
            let pair = Pair::impatient();
            let far = |side: &Side| Far { addr: side.buffer.addr(), rkey: side.rkey() };
            let far_a = far(&pair.a);
            let far_b = far(&pair.b);
            let second =
                |side: &Side| side.pd.create_qp(&QpInit::new(&side.cq, QpCap::default())).unwrap();
            let other_a = second(&pair.a);
            let other_b = second(&pair.b);
            let Pair { a, b, .. } = pair;
            std::thread::scope(|scope| {
                scope.spawn(move || brawl(a, other_a, far_b, seed));
                scope.spawn(move || brawl(b, other_b, far_a, seed + 100));
            });
        }
        finished.send(()).unwrap();
    });
    let patience = Duration::from_secs(60);
    watch.recv_timeout(patience).expect("a deadlock, or a panic above");
}

/// A pair whose `a` is connected on another thread, which searches for a path for this long.
fn searching(search: Duration) -> (Pair, JoinHandle<Result<(), ModifyError>>) {
    let options = ConnectOptions::default();
    let pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.a.qp.modify(QpState::Init, &options.to_init()).unwrap();
    let to_rtr = options.to_rtr(&pair.b.qp.as_remote(5));
    pair.a.device.inject(When::Now, Fault::SearchPaths(search));
    assert!(pair.a.qp.searches_paths());
    let connector = pair.a.qp.connector();
    (pair, std::thread::spawn(move || connector.connect(&to_rtr, &options.to_rts(1))))
}

#[test]
fn a_queue_pair_is_connected_on_another_thread_while_it_searches_for_a_path() {
    const SEARCH: Duration = Duration::from_millis(100);
    let begun = Instant::now();
    let (pair, connecting) = searching(SEARCH);
    assert_eq!(connecting.join().unwrap(), Ok(()));
    assert!(begun.elapsed() >= SEARCH);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    // One that is moved to ERR or destroyed meanwhile is not connected.
    const LONGER: Duration = Duration::from_secs(2);
    let (pair, connecting) = searching(LONGER);
    pair.a.qp.to_error().unwrap();
    assert!(connecting.join().unwrap().is_err());
    assert_eq!(pair.a.qp.state(), QpState::Err);
    let (pair, connecting) = searching(LONGER);
    drop(pair);
    assert!(connecting.join().unwrap().is_err());
}
