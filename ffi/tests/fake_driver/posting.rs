//! Posts to a driver that refuses requests, or accepts a prefix of a list.

use crate::fake::{Posted, calls_of, with};
use crate::requests::{BOTH, connected, ids, in_init, post, posted, request, writes};
use polyrail_core::hardware::{
    CommitError, ReceiveQueue as _, RecvBatch as _, Refusal, SendBatch as _,
};
use polyrail_core::verbs::{Opcode, RecvRequest, SendFlags, SendRequest, Sge};
use polyrail_ffi::{Mtu, Path, PostMode, Rc, ToReset, Uc};

#[test]
fn both_ways_hand_over_the_same_requests() {
    let imm = u32::from_ne_bytes([1, 2, 3, 4]);
    let remote_addr = 0x9000;
    let rkey = 6;
    let operands = (7, 8);
    let seen = Posted { flags: 2, length: Some(8), ..Posted::default() };
    let table = [
        (Opcode::RdmaWrite, Posted { remote_addr, rkey, ..seen }),
        (Opcode::RdmaWriteWithImm, Posted { remote_addr, rkey, imm, ..seen }),
        (Opcode::Send, seen),
        (Opcode::SendWithImm, Posted { imm, ..seen }),
        (Opcode::RdmaRead, Posted { remote_addr, rkey, ..seen }),
        (Opcode::CompareSwap, Posted { remote_addr, rkey, operands, ..seen }),
        (Opcode::FetchAdd, Posted { remote_addr, rkey, operands: (7, 0), ..seen }),
        (Opcode::LocalInv, Posted { imm: rkey, length: None, ..seen }),
        (Opcode::SendWithInv, Posted { imm: rkey, ..seen }),
    ];
    for mode in BOTH {
        for (opcode, expected) in table {
            let wr_id = opcode as u64 + 20;
            let length = expected.length.unwrap_or(0);
            let swap = if opcode == Opcode::CompareSwap { 8 } else { 0 };
            let asked = SendRequest { compare_add: 7, swap, ..request(wr_id, opcode, length) };
            post(&mut connected(mode), [asked]).unwrap();
            let expected = Posted { wr_id, opcode: opcode as u32, ..expected };
            assert_eq!(posted(), [expected], "{mode:?}");
        }
    }
}

#[test]
fn both_ways_hand_over_flags_and_buffers() {
    for mode in BOTH {
        for flags in SendFlags::all().iter() {
            let mut qp = connected(mode);
            let write = SendRequest { flags, ..request(1, Opcode::RdmaWrite, 64) };
            let empty = SendRequest { sge: Sge::EMPTY, wr_id: 2, ..write };
            post(&mut qp, [write, empty]).unwrap();
            let seen: Vec<_> = posted().iter().map(|seen| (seen.flags, seen.length)).collect();
            let bits = flags.bits().into();
            assert_eq!(seen, [(bits, Some(64)), (bits, None)], "{mode:?} {flags:?}");
        }
    }
}

#[test]
fn a_driver_that_stops_half_way_has_taken_what_comes_before_bad_wr() {
    let mut qp = connected(PostMode::Classic);
    for (taken, code, refusal) in [
        (2, libc::ENOMEM, Refusal::QueueFull),
        (1, -libc::ENOMEM, Refusal::QueueFull),
        (0, libc::EINVAL, Refusal::Driver(libc::EINVAL)),
    ] {
        with(|state| state.refusing = Some((taken, code)));
        let accepted = taken as u32;
        assert_eq!(post(&mut qp, writes(0..3)), Err(CommitError { accepted, refusal }));
        assert_eq!(ids(), (0..accepted.into()).collect::<Vec<_>>());
    }
    assert_eq!(post(&mut qp, writes(0..3)), Ok(()));
    assert_eq!(ids(), [0, 1, 2]);
}

#[test]
fn the_extended_way_takes_all_or_none() {
    let mut qp = connected(PostMode::Extended);
    for (code, refusal) in [
        (libc::ENOMEM, Refusal::QueueFull),
        (libc::ENOSPC, Refusal::QueueFull),
        (libc::EIO, Refusal::Driver(libc::EIO)),
    ] {
        with(|state| state.refusing = Some((0, code)));
        assert_eq!(post(&mut qp, writes(0..3)), Err(CommitError { accepted: 0, refusal }));
        assert_eq!(ids(), [0; 0]);
    }
    assert_eq!(post(&mut qp, writes(0..3)), Ok(()));
    assert_eq!(ids(), [0, 1, 2]);
    assert_eq!((calls_of("ibv_wr_start"), calls_of("ibv_wr_complete")), (4, 4));
}

#[test]
fn a_dropped_batch_posts_nothing_and_is_aborted() {
    for mode in BOTH {
        let mut qp = connected(mode);
        let mut batch = qp.start_send();
        writes(0..2).for_each(|request| batch.add(&request));
        drop(batch);
        assert_eq!(ids(), [0; 0]);
        post(&mut qp, writes(5..6)).unwrap();
        assert_eq!(ids(), [5], "{mode:?}");
    }
    assert_eq!((calls_of("ibv_wr_start"), calls_of("ibv_wr_abort")), (2, 1));
}

#[test]
fn a_forgotten_batch_posts_nothing_and_is_aborted_by_the_next() {
    for mode in BOTH {
        let mut qp = connected(mode);
        let mut batch = qp.start_send();
        writes(0..2).for_each(|request| batch.add(&request));
        std::mem::forget(batch);
        post(&mut qp, writes(5..6)).unwrap();
        assert_eq!(ids(), [5], "{mode:?}");
    }
    assert_eq!((calls_of("ibv_wr_start"), calls_of("ibv_wr_abort")), (2, 1));
}

#[test]
fn a_forgotten_batch_is_aborted_by_a_transition() {
    let mut qp = connected(PostMode::Extended);
    let mut batch = qp.start_send();
    writes(0..2).for_each(|request| batch.add(&request));
    std::mem::forget(batch);
    qp.modify(&ToReset).unwrap();
    let last: Vec<_> = with(|state| state.calls.iter().rev().take(2).copied().collect());
    assert_eq!(last, ["ibv_modify_qp", "ibv_wr_abort"], "the last first");
    drop(qp);
    assert_eq!((ids(), calls_of("ibv_wr_abort")), (vec![], 1));
}

#[test]
fn what_drivers_answer_in_their_own_ways_is_refused_here() {
    let inline = SendFlags::INLINE;
    let too_long = SendRequest { flags: inline, ..request(2, Opcode::RdmaWrite, 65) };
    let inline_read = SendRequest { flags: inline, ..request(2, Opcode::RdmaRead, 8) };
    let einval = Refusal::Driver(libc::EINVAL);
    for bad in [too_long, inline_read] {
        let chain = [request(1, Opcode::RdmaWrite, 8), bad, request(3, Opcode::RdmaWrite, 8)];
        let refused = |accepted| Err(CommitError { accepted, refusal: einval });
        assert_eq!(post(&mut connected(PostMode::Classic), chain), refused(1));
        assert_eq!(ids(), [1]);
        assert_eq!(post(&mut connected(PostMode::Extended), chain), refused(0));
        assert_eq!(ids(), [0; 0]);
    }
    assert_eq!(calls_of("ibv_wr_start"), calls_of("ibv_wr_abort"));
}

#[test]
fn an_operation_that_the_service_lacks_is_refused() {
    let refusal = Refusal::Driver(libc::EOPNOTSUPP);
    for mode in BOTH {
        let mut qp = in_init::<Uc>(mode);
        // Posting in INIT is refused before any other check, which shows the order of checks.
        let early = post(&mut qp, [request(1, Opcode::RdmaRead, 8)]);
        let einval = Refusal::Driver(libc::EINVAL);
        assert_eq!(early, Err(CommitError { accepted: 0, refusal: einval }));
        let rtr = polyrail_ffi::UnreliableToRtr {
            path: Path::infiniband(1, 3),
            path_mtu: Mtu::Mtu256,
            dest_qp_num: 1,
            rq_psn: 0,
        };
        qp.modify(&rtr).unwrap();
        qp.modify(&polyrail_ffi::UnreliableToRts { sq_psn: 0 }).unwrap();
        let read = post(&mut qp, [request(1, Opcode::RdmaRead, 8)]);
        assert_eq!(read, Err(CommitError { accepted: 0, refusal }), "{mode:?}");
        assert_eq!(post(&mut qp, [request(2, Opcode::RdmaWrite, 8)]), Ok(()));
        assert_eq!(ids(), [2]);
    }
}

#[test]
fn sends_before_rts_never_reach_the_driver() {
    for mode in BOTH {
        let mut qp = in_init::<Rc>(mode);
        let refusal = Refusal::Driver(libc::EINVAL);
        let refused = Err(CommitError { accepted: 0, refusal });
        assert_eq!(post(&mut qp, writes(0..1)), refused, "{mode:?}");
        assert_eq!(ids(), [0; 0]);
    }
    assert_eq!(calls_of("ibv_wr_start"), 0);
}

#[test]
fn receives_are_taken_up_to_the_one_that_does_not_fit() {
    let mut qp = in_init::<Rc>(PostMode::Classic);
    with(|state| state.refusing = Some((2, -libc::ENOMEM)));
    let mut batch = qp.start_recv();
    (0..3).for_each(|wr_id| batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY }));
    let refusal = Refusal::QueueFull;
    assert_eq!(batch.commit(), Err(CommitError { accepted: 2, refusal }));
    let seen: Vec<_> = posted().iter().map(|receive| (receive.wr_id, receive.length)).collect();
    assert_eq!(seen, [(0, None), (1, None)]);
}
