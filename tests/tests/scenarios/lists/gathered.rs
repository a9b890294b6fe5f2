//! Lists on queue pairs that take several buffers with one request. `core/docs/architecture.md`,
//! "Rails and batches".

use super::{List, post};
use crate::reroute::{self, RAIL_0, RAIL_1, fail, fenced};
use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{
    DeviceKeys, LocalPart, Opcode, SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
};
use polyrail_core::virtual_qp::{PostRecvError, PostSendError, RailId};
use polyrail_tests::rig::{self, KEYS, LOCAL, REMOTE, Rig, Setup, done, ok};
use polyrail_tests::scripted::LIMITS;

/// Queue pairs that take this many buffers, with fragments of 128 bytes.
fn taking(max_sge: u32, mut setup: Setup) -> Setup {
    setup.limits = QpLimits { max_send_sge: max_sge, max_recv_sge: max_sge, ..LIMITS };
    setup.fragment(128)
}

/// Which buffer, its offset there, and its length.
type Bytes = (u32, u64, u32);

fn bytes(sge: &Sge) -> Bytes {
    let at = sge.lkey() - 1000;
    (at, sge.addr() - LOCAL - u64::from(at) * 4096, sge.length())
}

/// What every doorbell of a rail brought: the place of each fragment in the remote buffer, and its
/// bytes.
fn rung(rig: &Rig, rail: usize) -> Vec<Vec<(u64, Vec<Bytes>)>> {
    let rail = &rig.rails[rail];
    let fragment = |request: &SendRequest| {
        let bytes = rail.buffers(request).iter().map(bytes).collect();
        (request.remote_addr - REMOTE, bytes)
    };
    rail.take_doorbells().iter().map(|batch| batch.iter().map(fragment).collect()).collect()
}

#[test]
fn fragments_pass_the_borders_of_buffers_with_one_doorbell_for_a_rail() {
    let mut rig = taking(4, Setup::spray(2)).rig();
    post(&mut rig, &rig::write(1, 0), &[100, 1, 0, 200, 128, 83]).unwrap();
    let first = vec![(0, vec![(0, 0, 100), (1, 0, 1), (3, 0, 27)]), (128, vec![(3, 27, 128)])];
    let second = vec![(256, vec![(3, 155, 45), (4, 0, 83)]), (384, vec![(4, 83, 45), (5, 0, 83)])];
    assert_eq!((rung(&rig, 0), rung(&rig, 1)), (vec![first], vec![second]));
    let counters = rig.qp.counters(RAIL_0).unwrap();
    assert_eq!((counters.doorbells, counters.send_requests, counters.bytes), (1, 2, 256));
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 512)]);
}

#[test]
fn one_fragment_keeps_one_place_if_a_rail_takes_it_at_once() {
    let post_all = |mut rig: Rig<4, 16, 8>| {
        let list = List::new(&[1, 2, 3]);
        let mut posts = (0..9).map(|id| rig.qp.post_list(&rig::write(id, 0), &list.parts()));
        let posted = posts.by_ref().take_while(Result::is_ok).count();
        drop(posts);
        assert_eq!(rig.qp.unreported_sends(), posted);
        assert_eq!(rig.run_dry().len(), posted);
        posted
    };
    // The next one finds no four free places in case it has to wait.
    assert_eq!(post_all(taking(4, Setup::spray(2)).build()), 5);
    assert_eq!(post_all(taking(4, reroute::spray()).build()), 2);
}

#[test]
fn one_fragment_has_the_keys_of_its_rails_device() {
    let mut rig = taking(4, Setup::spray(2).devices(2)).rig();
    for wr_id in 0..2 {
        let list = List::new(&[1, 2]);
        let keys = KEYS.map(|keys| DeviceKeys { lkey: 100 + keys.device.0, ..keys });
        let parts = list.parts().into_iter().map(|part| LocalPart { keys: &keys, ..part });
        rig.qp.post_list(&rig::write(wr_id, 0), &parts.collect::<Vec<_>>()).unwrap();
    }
    for (rail, device) in rig.rails.iter().zip(0..) {
        let [request] = rail.sends()[..] else { panic!("one request on each rail") };
        let lkeys: Vec<_> = rail.buffers(&request).iter().map(Sge::lkey).collect();
        assert_eq!(lkeys, [100 + device; 2]);
    }
    assert_eq!(rig.run_dry().len(), 2);
}

#[test]
fn one_fragment_that_finds_the_drivers_queues_full_waits_with_its_buffers() {
    for setup in [Setup::spray(2), Setup::dqplb(2)] {
        let mut rig = taking(4, setup).rig();
        rig.rails.iter().for_each(|rail| rail.refuse_all(Some(Refusal::QueueFull)));
        post(&mut rig, &rig::write_imm(1, 0, 0), &[1, 2, 3]).unwrap();
        assert_eq!(rig.qp.unreported_sends(), 1);
        rig.rails.iter().for_each(|rail| rail.refuse_all(None));
        rig.poll();
        let sent = [rung(&rig, 0), rung(&rig, 1)].concat();
        assert_eq!(sent, [[(0, vec![(0, 0, 1), (1, 0, 2), (2, 0, 3)])]]);
        assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 6)]);
    }
}

#[test]
fn one_fragment_that_its_driver_refuses_for_good_leaves_nothing() {
    let mut rig = taking(4, Setup::spray(2)).rig();
    rig.rails[0].refuse_next(0, Refusal::Driver(22));
    let refused = post(&mut rig, &rig::write(1, 0), &[1, 2, 3]);
    assert_eq!(refused, Err(PostSendError::Driver { rail: RAIL_0, errno: 22 }));
    assert_eq!(rig.qp.unreported_sends(), 0);
    post(&mut rig, &rig::write(2, 0), &[1, 2, 3]).unwrap();
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::RDMA_WRITE, 6)]);
}

#[test]
fn a_fragment_ends_where_it_would_have_more_buffers_than_a_request_can() {
    let mut rig = taking(2, Setup::spray(2)).rig();
    post(&mut rig, &rig::read(1, 0), &[1, 2, 3, 4, 128]).unwrap();
    let first = vec![(0, vec![(0, 0, 1), (1, 0, 2)]), (3, vec![(2, 0, 3), (3, 0, 4)])];
    let second = vec![(10, vec![(4, 0, 128)])];
    assert_eq!((rung(&rig, 0), rung(&rig, 1)), (vec![first], vec![second]));
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_READ, 138)]);
}

#[test]
fn all_rails_take_what_the_one_takes_that_takes_least() {
    let mut setup = taking(4, Setup::spray(2));
    let least = QpLimits { max_send_sge: 2, ..setup.limits };
    setup.rail_limits = vec![setup.limits, least];
    let mut rig = setup.rig();
    post(&mut rig, &rig::write(1, 0), &[8; 4]).unwrap();
    assert_eq!(rung(&rig, 0), [[(0, vec![(0, 0, 8), (1, 0, 8)])]]);
    assert_eq!(rung(&rig, 1), [[(16, vec![(2, 0, 8), (3, 0, 8)])]]);
}

#[test]
fn with_dqplb_each_fragment_has_a_number_and_the_last_one_ends_the_request() {
    let mut rig = taking(3, Setup::dqplb(2)).rig();
    post(&mut rig, &rig::write_imm(1, 0, 0), &[50, 50, 50, 6, 100]).unwrap();
    let imms = |rail: usize| rig.rails[rail].sends().iter().map(|r| r.imm).collect::<Vec<_>>();
    assert_eq!(imms(0), [rig::imm(0, false)]);
    assert_eq!(imms(1), [rig::imm(1, true)]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn the_rest_of_a_batch_is_cut_as_the_front_was() {
    let mut rig = taking(2, Setup::spray(2)).rig();
    rig.rails[0].refuse_next(1, Refusal::QueueFull);
    post(&mut rig, &rig::write(1, 0), &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(rung(&rig, 0), [[(0, vec![(0, 0, 1), (1, 0, 2)])]]);
    assert_eq!(rung(&rig, 1).concat().len(), 2);
    rig.poll();
    assert_eq!(rung(&rig, 0), [[(3, vec![(2, 0, 3), (3, 0, 4)])]]);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 36)]);
}

#[test]
fn a_failure_reports_the_offset_of_its_fragment_in_the_request() {
    let mut rig = taking(2, Setup::spray(2)).rig();
    post(&mut rig, &rig::write(1, 0), &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    rig.rails[0].fail_after(1, WcStatus::LOC_PROT_ERR);
    rig.poll();
    assert_eq!(rig.qp.first_error().map(|error| error.offset), Some(3));
}

#[test]
fn what_is_lost_goes_again_with_its_buffers_from_where_it_was_not_acknowledged() {
    let mut rig = taking(2, reroute::spray()).rig();
    post(&mut rig, &rig::write(1, 0), &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let lost = rung(&rig, 1).concat();
    assert_eq!(lost, [(10, vec![(4, 0, 5), (5, 0, 6)]), (21, vec![(6, 0, 7), (7, 0, 8)])]);
    rung(&rig, 0);
    // The first of the two is known to have arrived, since the one behind it was answered.
    rig.rails[1].fail_after(1, WcStatus::RETRY_EXC_ERR);
    rig.poll();
    assert_eq!(rung(&rig, 0).concat(), lost[1..]);
    rig.rails[0].complete_all();
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn of_numbered_fragments_those_that_did_not_arrive_go_again() {
    let mut rig = taking(2, reroute::dqplb()).rig();
    post(&mut rig, &rig::write_imm(1, 0, 0), &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let lost = rung(&rig, 1).concat();
    rung(&rig, 0);
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    rig.rails[0].complete_all();
    rig.poll();
    rig.qp.control(fenced(RAIL_1, 0, 1)).unwrap();
    rig.poll();
    assert_eq!(rung(&rig, 0).concat(), lost[1..]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn an_inline_list_is_one_fragment_or_none() {
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    let mut rig = taking(2, Setup::spray(2)).depth(1).rig();
    let wr = rig::write(1, 0).with_flags(inline);
    let too_many = Err(PostSendError::TooManyBuffers { count: 3, max: 2 });
    assert_eq!(post(&mut rig, &wr, &[1, 2, 3]), too_many);
    let too_long = Err(PostSendError::InlineTooLong { length: 200, max: 128 });
    assert_eq!(post(&mut rig, &wr, &[100, 100]), too_long);
    post(&mut rig, &wr, &[60, 60]).unwrap();
    post(&mut rig, &wr, &[60]).unwrap();
    assert_eq!(post(&mut rig, &wr, &[1, 2]), Err(PostSendError::InlineMustWait));
    assert_eq!(rig.qp.unreported_sends(), 2);
    assert_eq!(rig.run_dry().len(), 2);
    rig.post([rig::write(7, 1000)]);
    assert_eq!(post(&mut rig, &wr, &[1, 2]), Err(PostSendError::InlineMustWait));
    assert_eq!(rig.run_dry().len(), 1);
    let read = rig::read(1, 0).with_flags(inline);
    let refused = Err(PostSendError::InlineOpcode(Opcode::RdmaRead));
    assert_eq!(post(&mut rig, &read, &[1, 2]), refused);
}

#[test]
fn over_a_single_rail_the_list_goes_as_it_is() {
    let mut rig = taking(4, Setup::spray(1)).rig();
    for wr in [rig::write(1, 0), rig::write_imm(2, 0, 9), rig::read(3, 0), rig::send(4, 0)] {
        post(&mut rig, &wr, &[100, 0, 1000, 3]).unwrap();
    }
    let list = || vec![(0, 0, 100), (2, 0, 1000), (3, 0, 3)];
    let sent: Vec<Vec<_>> = rig.rails[0]
        .sends()
        .iter()
        .map(|request| rig.rails[0].buffers(request).iter().map(bytes).collect())
        .collect();
    assert_eq!(sent, [list(), list(), list(), list()]);
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.send_requests, counters.bytes), (4, 4 * 1103));
    assert_eq!(rig.run_dry().len(), 4);
    let list = List::new(&[64, 0, 8]);
    rig.qp.post_recv_list(5, &list.parts()).unwrap();
    let receive = rig.rails[0].recvs()[0];
    let into: Vec<_> = rig.rails[0].recv_buffers(&receive).iter().map(bytes).collect();
    assert_eq!((receive.wr_id, into), (5, vec![(0, 0, 64), (2, 0, 8)]));
}

#[test]
fn a_send_is_gathered_at_once_or_when_its_turn_comes() {
    let mut rig = taking(4, Setup::spray(2)).rig();
    post(&mut rig, &rig::send(1, 0), &[8, 4]).unwrap();
    assert_eq!(rung_sends(&rig), [[(0, 0, 8), (1, 0, 4)]]);
    rig.post([rig::write(2, 512)]);
    post(&mut rig, &rig::send(3, 0), &[8, 4, 2]).unwrap();
    rig.post([rig::write(4, 8)]);
    assert_eq!(rig.qp.unreported_sends(), 4);
    rig.rails.iter().for_each(|rail| drop(rail.take_doorbells()));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.poll();
    let gathered = rig.rails[0].sends();
    let bytes: Vec<_> = rig.rails[0].buffers(&gathered[0]).iter().map(bytes).collect();
    assert_eq!((gathered[0].opcode, bytes.len()), (Opcode::Send, 3));
    assert_eq!(bytes, [(0, 0, 8), (1, 0, 4), (2, 0, 2)]);
    let last = rig.run_dry();
    assert_eq!(last, [done(3, WcOpcode::SEND, 14)]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn a_send_that_was_lost_is_gathered_again() {
    let mut rig = taking(4, reroute::spray()).rig();
    post(&mut rig, &rig::send(1, 0), &[8, 4]).unwrap();
    let before = rung_sends(&rig);
    fail(&mut rig, 0, WcStatus::RETRY_EXC_ERR);
    rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
    reroute::replace(&mut rig, RAIL_0);
    rig.poll();
    assert_eq!(rung_sends(&rig), before);
    assert_eq!(before, [[(0, 0, 8), (1, 0, 4)]]);
}

/// The buffers of every SEND on rail 0.
fn rung_sends(rig: &Rig) -> Vec<Vec<Bytes>> {
    let rail = &rig.rails[0];
    let buffers = |request: &SendRequest| rail.buffers(request).iter().map(bytes).collect();
    rail.sends().iter().map(buffers).collect()
}

#[test]
fn a_receive_is_scattered_and_what_its_queue_pair_lost_is_posted_again() {
    for setup in [Setup::spray(2), reroute::spray()] {
        let mut rig = taking(3, setup).rig();
        let long = List::new(&[64, 0, 8, 16]);
        let short = List::new(&[32]);
        rig.qp.post_recv_list(1, &long.parts()).unwrap();
        rig.qp.post_recv_list(2, &short.parts()).unwrap();
        rig.qp.post_recv_list(3, &long.parts()).unwrap();
        let expected = vec![
            vec![(0, 0, 64), (2, 0, 8), (3, 0, 16)],
            vec![(0, 0, 32)],
            vec![(0, 0, 64), (2, 0, 8), (3, 0, 16)],
        ];
        assert_eq!(recvs(&rig), expected);
        rig.rails[0].deliver_send(80, None);
        assert_eq!(rig.poll(), [done(1, WcOpcode::RECV, 80)]);
        assert_eq!(recvs(&rig), expected[1..]);
        if rig.qp.config().rail_failure == polyrail_core::virtual_qp::RailFailure::Fatal {
            continue;
        }
        assert!(rig.qp.fail_rail(RAIL_0));
        assert_eq!(rig.poll(), []);
        rig.qp.control(fenced(RAIL_0, 0, 0)).unwrap();
        reroute::replace(&mut rig, RAIL_0);
        assert_eq!(recvs(&rig), expected[1..]);
        rig.rails[0].deliver_send(32, None);
        rig.rails[0].deliver_send(88, None);
        assert_eq!(rig.poll(), [done(2, WcOpcode::RECV, 32), done(3, WcOpcode::RECV, 88)]);
        let one = [LocalPart { ..long.parts()[0] }];
        rig.qp.post_recv_list(4, &one).unwrap();
        rig.rails[0].deliver_send(1, None);
        assert_eq!(rig.poll(), [done(4, WcOpcode::RECV, 1)]);
    }
}

#[test]
fn with_re_routing_a_receive_takes_a_place_for_each_of_its_buffers() {
    let mut setup = taking(20, reroute::spray());
    setup.limits.max_recv_wr = 2;
    let mut rig = setup.rig();
    let full = Err(PostRecvError::QueueFull(RAIL_0));
    // 16 places, and two receives at most.
    let too_many = Err(PostRecvError::TooManyBuffers { count: 17, max: 16 });
    assert_eq!(rig.qp.post_recv_list(1, &List::new(&[1; 17]).parts()), too_many);
    rig.qp.post_recv_list(1, &List::new(&[1; 14]).parts()).unwrap();
    assert_eq!(rig.qp.post_recv_list(2, &List::new(&[1; 3]).parts()), full);
    rig.qp.post_recv_list(2, &List::new(&[1; 2]).parts()).unwrap();
    assert_eq!(rig.qp.post_recv_list(3, &List::new(&[1]).parts()), full);
    rig.rails[0].deliver_send(14, None);
    assert_eq!(rig.poll(), [done(1, WcOpcode::RECV, 14)]);
    rig.qp.post_recv_list(3, &List::new(&[1; 14]).parts()).unwrap();
    rig.rails[0].deliver_send(2, None);
    rig.rails[0].deliver_send(14, None);
    assert_eq!(rig.poll(), [done(2, WcOpcode::RECV, 2), done(3, WcOpcode::RECV, 14)]);
}

/// The buffers of every receive on rail 0.
fn recvs(rig: &Rig) -> Vec<Vec<Bytes>> {
    let rail = &rig.rails[0];
    rail.recvs().iter().map(|recv| rail.recv_buffers(recv).iter().map(bytes).collect()).collect()
}
