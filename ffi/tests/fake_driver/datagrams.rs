//! Datagrams with their destinations.

use crate::fixture::{open, path};
use crate::requests::{BOTH, CAP, buffers, ids, part, posted, request};
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::Opcode;
use polyrail_ffi::{
    CompletionQueue, DatagramToInit, DatagramToRtr, PostMode, ProtectionDomain, QpCap, QpInit,
    QueuePair, Ud, UnreliableToRts,
};

fn datagrams(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    post_mode: PostMode,
    cap: QpCap,
) -> QueuePair<Ud> {
    let qp = pd.create_qp(&QpInit { post_mode, ..QpInit::new(cq, cap) }).unwrap();
    qp.modify(&DatagramToInit { port_num: 1, pkey_index: 0, qkey: 9 }).unwrap();
    qp.modify(&DatagramToRtr).unwrap();
    qp.modify(&UnreliableToRts { sq_psn: 0 }).unwrap();
    qp
}

#[test]
fn datagrams_go_to_the_address_of_each() {
    let (_, pd, cq) = open();
    let to = pd.create_ah(&path()).unwrap();
    for mode in BOTH {
        let mut qp = datagrams(&pd, &cq, mode, CAP);
        let mut batch = qp.start_datagrams();
        for wr_id in 0..3 {
            batch.add(&request(wr_id, Opcode::Send, 8), &to, 20 + wr_id as u32, 30);
        }
        batch.commit().unwrap();
        let seen: Vec<_> = posted().iter().map(|request| (request.wr_id, request.to)).collect();
        let expected = [(0, Some((20, 30))), (1, Some((21, 30))), (2, Some((22, 30)))];
        assert_eq!(seen, expected, "{mode:?}");
        let two = QpCap { max_send_sge: 2, ..CAP };
        let mut qp = datagrams(&pd, &cq, mode, two);
        buffers();
        let mut batch = qp.start_datagrams();
        batch.add_list(&request(3, Opcode::Send, 8), &[part(7), part(8)], &to, 5, 6);
        batch.commit().unwrap();
        assert_eq!((posted()[0].to, buffers()[0].len()), (Some((5, 6)), 2), "{mode:?}");
    }
}

#[test]
fn address_handles_of_another_device_never_reach_the_driver() {
    let (_, pd, cq) = open();
    let (_, there, _) = open();
    let own = pd.create_ah(&path()).unwrap();
    let foreign = there.create_ah(&path()).unwrap();
    for (mode, accepted) in [(PostMode::Classic, 1), (PostMode::Extended, 0)] {
        let mut qp = datagrams(&pd, &cq, mode, CAP);
        let mut batch = qp.start_datagrams();
        for (wr_id, to) in [(0, &own), (1, &foreign), (2, &own)] {
            batch.add(&request(wr_id, Opcode::Send, 8), to, 5, 6);
        }
        let refusal = Refusal::Driver(libc::EINVAL);
        assert_eq!(batch.commit(), Err(CommitError { accepted, refusal }), "{mode:?}");
        assert_eq!(ids(), (0..accepted.into()).collect::<Vec<_>>());
    }
}
