//! Every way to fail: the status at both ends, the state of both ends, and what is flushed.

mod support;

use polyrail_core::hardware::{
    CommitError, CompletionQueue as _, CqError, QueuePair as _, Refusal,
};
use polyrail_core::verbs::{AccessFlags, Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_software_nic::{
    AsyncEvent, ConnectOptions, Fabric, Fault, Mtu, NicError, QpCap, QpInit, QpState, When, vendor,
};
use support::*;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// `a` fails with `status`; what follows is flushed; `b` ends in `state`, and its two receives with
/// the statuses in `receives`, if any.
fn fails(
    bad: impl Fn(&mut Pair) -> SendRequest,
    status: WcStatus,
    why: u32,
    state: QpState,
    receives: &[WcStatus],
) {
    impatient_both_ways(|mut pair| {
        let bad = bad(&mut pair);
        if !receives.is_empty() && pair.b.qp.limits().max_recv_wr > 0 {
            let sge = pair.b.sge(0, 8);
            let _ = (pair.b.recv(101, sge), pair.b.recv(102, sge));
        }
        let unsignaled = SendRequest { flags: SendFlags::empty(), ..pair.write(3, 0, 8) };
        let chain = [SendRequest { wr_id: 1, ..bad }, pair.write(2, 0, 8), unsignaled];
        pair.a.post_all(&chain).unwrap();
        let (a, b) = pair.settle();
        assert_eq!(ends(&a), [(1, status), (2, FLUSHED), (3, FLUSHED)]);
        assert_eq!(a[0].vendor_err, why);
        assert_eq!(pair.a.qp.state(), QpState::Err);
        assert_eq!(pair.b.qp.state(), state);
        assert_eq!(statuses(&b), receives.iter().map(|s| s.0).collect::<Vec<_>>());
    });
}

#[test]
fn a_remote_key_that_never_was_fails_both_ends() {
    let bad = |pair: &mut Pair| SendRequest { rkey: 12345, ..pair.write(1, 0, 8) };
    let flushed = [FLUSHED, FLUSHED];
    fails(bad, WcStatus::REM_ACCESS_ERR, vendor::KEY_UNKNOWN, QpState::Err, &flushed);
}

#[test]
fn an_lkey_is_not_an_rkey() {
    let bad = |pair: &mut Pair| SendRequest { rkey: pair.b.lkey(), ..pair.write(1, 0, 8) };
    fails(bad, WcStatus::REM_ACCESS_ERR, vendor::KEY_UNKNOWN, QpState::Err, &[FLUSHED; 2]);
}

#[test]
fn a_remote_range_beyond_its_region_fails_both_ends() {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let bad = |pair: &mut Pair| SendRequest {
            remote_addr: pair.b.buffer.addr() + BUFFER_BYTES as u64 - 7,
            ..pair.request(1, opcode, 0, 8)
        };
        fails(bad, WcStatus::REM_ACCESS_ERR, vendor::KEY_BOUNDS, QpState::Err, &[FLUSHED; 2]);
    }
}

#[test]
fn a_deregistered_region_fails_both_ends() {
    let bad = |pair: &mut Pair| {
        let gone = Buffer::new(4096, ALL_ACCESS, &pair.b.pd);
        let remote_addr = gone.addr();
        let rkey = gone.rkey();
        SendRequest { remote_addr, rkey, ..pair.write(1, 0, 8) }
    };
    fails(bad, WcStatus::REM_ACCESS_ERR, vendor::KEY_UNKNOWN, QpState::Err, &[FLUSHED; 2]);
}

#[test]
fn a_region_without_the_access_fails_both_ends() {
    let reads = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let cases = [
        (Opcode::RdmaWrite, reads),
        (Opcode::RdmaRead, ALL_ACCESS - AccessFlags::REMOTE_READ),
        (Opcode::FetchAdd, reads),
    ];
    for (opcode, access) in cases {
        impatient_both_ways(|mut pair| {
            let target = Buffer::new(4096, access, &pair.b.pd);
            let remote_addr = target.addr();
            let rkey = target.rkey();
            let bad = SendRequest { remote_addr, rkey, ..pair.request(1, opcode, 0, 8) };
            pair.a.post(bad).unwrap();
            let (a, _) = pair.settle();
            assert_eq!(ends(&a), [(1, WcStatus::REM_ACCESS_ERR)]);
            assert_eq!(a[0].vendor_err, vendor::KEY_ACCESS);
            assert_eq!(pair.b.qp.state(), QpState::Err);
        });
    }
}

#[test]
fn a_region_of_another_domain_fails_both_ends() {
    impatient_both_ways(|mut pair| {
        let other = pair.b.device.alloc_pd().unwrap();
        let target = Buffer::new(4096, ALL_ACCESS, &other);
        let remote_addr = target.addr();
        let rkey = target.rkey();
        pair.a.post(SendRequest { remote_addr, rkey, ..pair.write(1, 0, 8) }).unwrap();
        let (a, _) = pair.settle();
        assert_eq!(ends(&a), [(1, WcStatus::REM_ACCESS_ERR)]);
        assert_eq!(a[0].vendor_err, vendor::KEY_DOMAIN);
    });
}

#[test]
fn a_write_with_imm_to_a_bad_key_also_consumes_a_receive() {
    let bad = |pair: &mut Pair| SendRequest {
        rkey: 1,
        ..pair.request(1, Opcode::RdmaWriteWithImm, 0, 8)
    };
    let receives = [WcStatus::REM_ACCESS_ERR, FLUSHED];
    fails(bad, WcStatus::REM_ACCESS_ERR, vendor::KEY_UNKNOWN, QpState::Err, &receives);
}

#[test]
fn a_bad_local_key_fails_this_end_only() {
    for opcode in [Opcode::RdmaWrite, Opcode::Send, Opcode::RdmaRead] {
        let bad = |pair: &mut Pair| SendRequest {
            sge: wild(&pair.a, 8, 54321),
            ..pair.request(1, opcode, 0, 8)
        };
        fails(bad, WcStatus::LOC_PROT_ERR, vendor::KEY_UNKNOWN, QpState::Rts, &[]);
    }
}

#[test]
fn a_local_region_that_must_not_be_written_takes_no_read() {
    impatient_both_ways(|mut pair| {
        let reads = Buffer::new(4096, AccessFlags::empty(), &pair.a.pd);
        let sge = reads.local(0, 8).sge(reads.lkey());
        pair.a.post(SendRequest { sge, ..pair.write(1, 0, 8) }).unwrap();
        pair.a.post(SendRequest { sge, ..pair.request(2, Opcode::RdmaRead, 0, 8) }).unwrap();
        let (a, _) = pair.settle();
        assert_eq!(ends(&a), [(1, WcStatus::SUCCESS), (2, WcStatus::LOC_PROT_ERR)]);
        assert_eq!((a[1].vendor_err, pair.b.qp.state()), (vendor::KEY_ACCESS, QpState::Rts));
    });
}

#[test]
fn a_send_longer_than_the_receive_fails_both_ends() {
    let bad = |pair: &mut Pair| pair.request(1, Opcode::Send, 0, 9);
    let receives = [WcStatus::LOC_LEN_ERR, FLUSHED];
    fails(bad, WcStatus::REM_INV_REQ_ERR, vendor::RECEIVE_TOO_SHORT, QpState::Err, &receives);
}

#[test]
fn a_receive_with_a_bad_key_fails_both_ends() {
    impatient_both_ways(|mut pair| {
        let sge = wild(&pair.b, 8, 999);
        pair.b.recv(101, sge).unwrap();
        pair.b.recv(102, sge).unwrap();
        pair.a.post(pair.request(1, Opcode::Send, 0, 8)).unwrap();
        let (a, b) = pair.settle();
        assert_eq!(ends(&a), [(1, WcStatus::REM_OP_ERR)]);
        assert_eq!(ends(&b), [(101, WcStatus::LOC_PROT_ERR), (102, FLUSHED)]);
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
    });
}

#[test]
fn an_operation_that_the_peers_queue_pair_does_not_permit_is_invalid() {
    let cases = [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::FetchAdd, Opcode::CompareSwap];
    for opcode in cases {
        let options = ConnectOptions { access: AccessFlags::empty(), ..impatient() };
        let mut pair = Pair::with(Fabric::threaded(), QpCap::default(), &options);
        pair.a.post(pair.request(1, opcode, 0, 8)).unwrap();
        let (a, _) = pair.settle();
        assert_eq!(ends(&a), [(1, WcStatus::REM_INV_REQ_ERR)]);
        assert_eq!((a[0].vendor_err, pair.b.qp.state()), (vendor::QP_ACCESS, QpState::Err));
    }
}

#[test]
fn atomics_must_be_aligned_there_and_long_enough_here() {
    let misaligned = |pair: &mut Pair| pair.request(1, Opcode::FetchAdd, 4, 8);
    let why = vendor::ATOMIC_MISALIGNED;
    fails(misaligned, WcStatus::REM_INV_REQ_ERR, why, QpState::Err, &[FLUSHED; 2]);
    let short = |pair: &mut Pair| pair.request(1, Opcode::CompareSwap, 0, 7);
    fails(short, WcStatus::LOC_LEN_ERR, vendor::ATOMIC_TOO_SHORT, QpState::Rts, &[]);
}

#[test]
fn reads_need_resources_at_both_ends() {
    let none = ConnectOptions { max_rd_atomic: 0, ..impatient() };
    let mut pair = Pair::with(Fabric::threaded(), QpCap::default(), &none);
    pair.a.post(pair.request(1, Opcode::RdmaRead, 0, 8)).unwrap();
    assert_eq!(ends(&pair.settle().0), [(1, WcStatus::LOC_QP_OP_ERR)]);

    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.b.qp.to_init(&none).unwrap();
    pair.a.qp.connect(1, &pair.b.qp.as_remote(2), &impatient()).unwrap();
    pair.b.qp.connect(2, &pair.a.qp.as_remote(1), &none).unwrap();
    pair.a.post(pair.request(1, Opcode::RdmaRead, 0, 8)).unwrap();
    let (a, _) = pair.settle();
    assert_eq!(ends(&a), [(1, WcStatus::REM_INV_REQ_ERR)]);
    assert_eq!(a[0].vendor_err, vendor::NO_READ_RESOURCES);
}

#[test]
fn ends_must_agree_on_the_mtu() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let small = ConnectOptions { path_mtu: Mtu::Mtu256, ..impatient() };
    pair.b.qp.to_init(&small).unwrap();
    pair.a.qp.connect(1, &pair.b.qp.as_remote(2), &impatient()).unwrap();
    pair.b.qp.connect(2, &pair.a.qp.as_remote(1), &small).unwrap();
    pair.a.post(pair.write(1, 0, 8192)).unwrap();
    let (a, _) = pair.settle();
    assert_eq!(ends(&a), [(1, WcStatus::REM_INV_REQ_ERR)]);
    assert_eq!(a[0].vendor_err, vendor::MTU_MISMATCH);
}

#[test]
fn moving_to_err_flushes_both_queues_in_posting_order() {
    impatient_both_ways(|mut pair| {
        (101..104).for_each(|wr_id| pair.a.recv(wr_id, nothing()).unwrap());
        let quiet = SendRequest { flags: SendFlags::empty(), ..pair.write(2, 0, 8) };
        pair.a.post_all(&[pair.write(1, 0, 8), quiet, pair.write(3, 0, 8)]).unwrap();
        pair.a.qp.to_error().unwrap();
        let (a, _) = pair.settle();
        assert!(a.iter().all(|c| c.status == FLUSHED && c.vendor_err == vendor::FLUSHED));
        let (sends, receives): (Vec<_>, Vec<_>) = ids(&a).iter().partition(|&&id| id < 100);
        assert_eq!((sends, receives), (vec![1, 2, 3], vec![101, 102, 103]));
    });
}

#[test]
fn a_failed_responders_own_requests_are_flushed_too() {
    let mut pair = Pair::impatient();
    let to_a = SendRequest {
        sge: pair.b.sge(0, 8),
        remote_addr: pair.a.buffer.addr(),
        rkey: pair.a.rkey(),
        ..pair.write(50, 0, 8)
    };
    pair.b.post_all(&[to_a, to_a]).unwrap();
    pair.a.post(SendRequest { rkey: 7, ..pair.write(1, 0, 8) }).unwrap();
    // `a` runs first: its failure reaches `b` before `b`'s requests run.
    assert_eq!(ends(&pair.a.poll()), [(1, WcStatus::REM_ACCESS_ERR)]);
    assert_eq!(ends(&pair.b.poll()), [(50, FLUSHED), (50, FLUSHED)]);
    let number = pair.b.qp.qp_num();
    assert_eq!(pair.b.device.next_event(), Some(AsyncEvent::QpAccessError { qp_num: number }));
}

#[test]
fn a_failed_responders_receives_are_flushed_though_its_sends_are_not_polled() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    let mut recv_cq = pair.b.device.create_cq(16).unwrap();
    let init = QpInit { recv_cq: &recv_cq, ..QpInit::new(&pair.b.cq, QpCap::default()) };
    pair.b.qp = pair.b.pd.create_qp(&init).unwrap();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
    pair.b.recv(101, nothing()).unwrap();
    pair.a.post(SendRequest { rkey: 7, ..pair.write(1, 0, 8) }).unwrap();
    pair.a.poll();
    assert_eq!(ends(&poll(&mut recv_cq).unwrap()), [(101, FLUSHED)]);
}

#[test]
fn requests_that_a_failed_responder_held_back_are_flushed() {
    impatient_both_ways(|mut pair| {
        pair.b.qp.modify(QpState::Sqd, &Default::default()).unwrap();
        pair.b.post(pair.write(50, 0, 8)).unwrap();
        assert_eq!(pair.settle().1, []);
        pair.a.post(SendRequest { rkey: 7, ..pair.write(1, 0, 8) }).unwrap();
        assert_eq!(ends(&pair.settle().1), [(50, FLUSHED)]);
    });
}

#[test]
fn failed_completions_are_rubbish_where_verbs_leaves_them_undefined() {
    let mut opcodes = std::collections::HashSet::new();
    let mut immediates = std::collections::HashSet::new();
    let mut pair = Pair::impatient();
    pair.a.qp.to_error().unwrap();
    for wr_id in 0..64 {
        pair.a.post(pair.write(wr_id, 0, 8)).unwrap();
    }
    for completion in pair.settle().0 {
        assert_eq!((completion.status, completion.qp_num), (FLUSHED, pair.a.qp.qp_num()));
        opcodes.insert(completion.opcode);
        immediates.insert(completion.imm);
    }
    assert!(opcodes.len() > 4 && immediates.len() > 60);
}

#[test]
fn an_overrun_breaks_the_queue_and_fails_its_queue_pairs() {
    for fabric in [Fabric::threaded(), Fabric::deterministic(9)] {
        let mut pair = Pair::unconnected(fabric, QpCap::default());
        pair.a.cq = pair.a.device.create_cq(3).unwrap();
        let init = QpInit::new(&pair.a.cq, QpCap::default());
        pair.a.qp = pair.a.pd.create_qp(&init).unwrap();
        let bystander = pair.a.pd.create_qp(&init).unwrap();
        let bystander = bystander;
        bystander.to_init(&impatient()).unwrap();
        polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
        (1..=4).for_each(|wr_id| pair.a.post(pair.write(wr_id, 0, 8)).unwrap());
        pair.fabric.run_until_idle(1000);
        let broken = CqError { cq: pair.a.cq.id(), device: pair.a.device.id(), errno: 5 };
        assert_eq!(poll(&mut pair.a.cq), Err(broken));
        assert_eq!(poll(&mut pair.a.cq), Err(broken));
        assert_eq!((pair.a.qp.state(), bystander.state()), (QpState::Err, QpState::Err));
        assert_eq!(pair.b.qp.state(), QpState::Rts);
        let event = pair.a.device.next_event();
        assert_eq!(event, Some(AsyncEvent::CqError { cq: pair.a.cq.id() }));
    }
}

#[test]
fn a_full_queue_that_is_polled_in_time_does_not_overrun() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.a.cq = pair.a.device.create_cq(2).unwrap();
    pair.a.qp = pair.a.pd.create_qp(&QpInit::new(&pair.a.cq, QpCap::default())).unwrap();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
    for wr_id in 0..10 {
        pair.a.post_all(&[pair.write(wr_id, 0, 8); 2]).unwrap();
        assert_eq!(ids(&pair.settle().0), [wr_id; 2]);
    }
}

#[test]
fn a_queue_can_be_made_larger_and_smaller_while_it_holds_something() {
    let mut pair = Pair::unconnected(Fabric::threaded(), QpCap::default());
    pair.a.cq = pair.a.device.create_cq(2).unwrap();
    pair.a.qp = pair.a.pd.create_qp(&QpInit::new(&pair.a.cq, QpCap::default())).unwrap();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
    let what = "the completion queue's capacity";
    assert_eq!(pair.a.cq.resize(0), Err(NicError::Zero { what }));
    let most = pair.a.device.limits().max_cqe;
    let limit = NicError::Limit { what, asked: u64::from(most) + 1, limit: most.into() };
    assert_eq!(pair.a.cq.resize(most + 1), Err(limit));
    pair.a.cq.resize(8).unwrap();
    assert_eq!(pair.a.cq.capacity(), 8);
    // More than it could hold before; a poll of a single one executes them all.
    (0..8).for_each(|wr_id| pair.a.post(pair.write(wr_id, 0, 8)).unwrap());
    let mut one = [std::mem::MaybeUninit::uninit()];
    assert_eq!(pair.a.cq.poll(&mut one).unwrap()[0].wr_id, 0);
    assert_eq!(pair.a.cq.resize(3), Err(NicError::Holds { asked: 3, held: 7 }));
    pair.a.cq.resize(7).unwrap();
    assert_eq!(ids(&pair.settle().0), (1..8).collect::<Vec<_>>());
    pair.a.device.inject(When::Now, Fault::DeviceGone);
    assert_eq!(pair.a.cq.resize(9), Err(NicError::DeviceGone));
}

#[test]
fn reset_forgets_everything_and_the_queue_pair_can_be_used_again() {
    impatient_both_ways(|mut pair| {
        pair.a.recv(101, nothing()).unwrap();
        pair.a.post(SendRequest { rkey: 7, ..pair.write(1, 0, 8) }).unwrap();
        pair.settle();
        pair.a.post(pair.write(2, 0, 8)).unwrap();
        pair.settle();
        for side in [&mut pair.a, &mut pair.b] {
            side.qp.reset().unwrap();
            assert_eq!(side.qp.state(), QpState::Reset);
        }
        polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
        pair.a.recv(102, nothing()).unwrap();
        pair.a.post_all(&[pair.write(3, 0, 8); 128]).unwrap();
        let (a, _) = pair.settle();
        assert_eq!(ends(&a), [(3, WcStatus::SUCCESS); 128]);
    });
}

#[test]
fn reset_with_requests_outstanding_drops_them_silently() {
    for seed in 0..20 {
        let mut pair = Pair::deterministic(seed);
        (101..104).for_each(|wr_id| pair.a.recv(wr_id, nothing()).unwrap());
        pair.a.post_all(&[pair.write(1, 0, 8); 128]).unwrap();
        pair.fabric.run_until_idle(20);
        pair.a.poll();
        pair.a.qp.reset().unwrap();
        assert_eq!(pair.settle().0, [], "seed {seed}");
        assert_eq!(pair.a.qp.outstanding_sends(), 0);
    }
}

#[test]
fn completions_of_a_destroyed_queue_pair_stay_and_free_nothing() {
    let mut pair = Pair::deterministic(4);
    pair.a.post_all(&[pair.write(1, 0, 8); 4]).unwrap();
    pair.fabric.run_until_idle(100);
    let old = pair.a.qp.qp_num();
    pair.a.qp = pair.a.pd.create_qp(&QpInit::new(&pair.a.cq, QpCap::default())).unwrap();
    let (a, _) = pair.settle();
    assert_eq!(a.iter().map(|c| c.qp_num).collect::<Vec<_>>(), [old; 4]);
}

#[test]
fn a_receive_queue_that_is_full_refuses() {
    let cap = QpCap { max_recv_wr: 2, ..QpCap::default() };
    let mut pair = Pair::with(Fabric::threaded(), cap, &impatient());
    let full = Err(CommitError { accepted: 0, refusal: Refusal::QueueFull });
    pair.b.recv(1, nothing()).unwrap();
    pair.b.recv(2, nothing()).unwrap();
    assert_eq!(pair.b.recv(3, nothing()), full);
    pair.a.post(pair.request(1, Opcode::RdmaWriteWithImm, 0, 0)).unwrap();
    pair.a.poll();
    assert_eq!(pair.b.recv(3, nothing()), full, "the slot is free when the completion is polled");
    pair.b.poll();
    assert_eq!(pair.b.recv(3, nothing()), Ok(()));
}

/// A pair with room for many receives, of which `b` has posted 40 that are numbered from 0, and `a`
/// has used one.
fn with_receives_at_hand() -> Pair {
    let cap = QpCap { max_recv_wr: 64, ..QpCap::default() };
    let mut pair = Pair::with(Fabric::threaded(), cap, &impatient());
    (0..40).for_each(|wr_id| pair.b.recv(wr_id, nothing()).unwrap());
    pair.a.post(pair.request(1, Opcode::Send, 0, 0)).unwrap();
    assert_eq!(ids(&pair.settle().1), [0]);
    pair
}

/// The responder takes receives off their queue several at a time.
#[test]
fn receives_that_the_responder_has_at_hand_are_flushed_first() {
    let mut pair = with_receives_at_hand();
    pair.b.qp.to_error().unwrap();
    let flushed: Vec<_> = (1..40).map(|wr_id| (wr_id, FLUSHED)).collect();
    assert_eq!(ends(&pair.settle().1), flushed);
}

#[test]
fn receives_that_the_responder_has_at_hand_are_forgotten_by_a_reset() {
    let mut pair = with_receives_at_hand();
    pair.a.qp.reset().unwrap();
    pair.b.qp.reset().unwrap();
    polyrail_software_nic::connect_pair(&pair.a.qp, &pair.b.qp, &impatient()).unwrap();
    // All places are free.
    (100..164).for_each(|wr_id| pair.b.recv(wr_id, nothing()).unwrap());
    pair.a.post(pair.request(2, Opcode::Send, 0, 0)).unwrap();
    assert_eq!(ids(&pair.settle().1), [100]);
}
