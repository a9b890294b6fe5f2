//! A WRITE_WITH_IMM without data over several rails: a pure signal, which keeps its place.
//! `core/docs/architecture.md`, "The schemes".

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{Opcode, RecvWr, SendFlags, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::QpState;
use polyrail_tests::rig::{self, Rig, Setup, done, imm, ok};

fn signal(wr_id: u64) -> SendWr<'static> {
    SendWr::signal(wr_id, wr_id as u32)
}

#[test]
fn with_spray_a_signal_is_a_notify_and_nothing_else() {
    let mut rig = Setup::spray(2).rig();
    rig.post([signal(7)]);
    assert_eq!(rig.notifies(), [[7]]);
    assert!(rig.rails.iter().all(|rail| rail.take_doorbells().is_empty()));
    assert_eq!(rig.run_dry(), [done(7, WcOpcode::RDMA_WRITE, 0)]);
}

#[test]
fn with_spray_a_signal_follows_the_data_posted_before_it() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), signal(2), rig::write(3, 128), signal(4)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), Vec::<Vec<u32>>::new());
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.notifies(), [[2]], "the next one waits for the data behind this one");
    rig.rails[0].complete(1);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2, 3]));
    assert_eq!(rig.notifies(), [[4]]);
}

#[test]
fn signals_that_wait_go_out_with_one_doorbell() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), signal(2), signal(3), signal(4)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.notifies(), [[2, 3, 4]]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2, 3, 4]));
}

#[test]
fn with_spray_signals_wait_for_credits_of_the_notify_queue_pair() {
    let mut setup = Setup::spray(2);
    setup.notify_limits.max_send_wr = 1;
    let mut rig = setup.rig();
    rig.post([signal(1), signal(2), signal(3)]);
    assert_eq!(rig.notifies(), [[1]]);
    assert_eq!(rig.run_dry().len(), 3);
    assert_eq!(rig.notifies(), [[2], [3]]);
}

#[test]
fn with_dqplb_a_signal_is_an_empty_fragment_with_a_number() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 300, 0), signal(2)]);
    let sent = rig.rails.iter().flat_map(|rail| rail.sends());
    let empty: Vec<_> = sent.filter(|request| request.sge.length() == 0).collect();
    let [request] = empty[..] else { panic!("one empty fragment: {empty:?}") };
    assert_eq!(request.opcode, Opcode::RdmaWriteWithImm);
    let number = SequenceImm::decode(request.imm).expect("a number");
    assert_eq!((number.number.get(), number.last), (3, true));
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_dqplb_receiver_is_notified_of_a_signal_in_its_turn() {
    let mut rig: Rig = Setup::dqplb(2).rig();
    for id in [1, 2] {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    rig.rails[1].deliver_imm(imm(1, true));
    assert_eq!(rig.poll(), [], "the fragment before the signal is missing");
    rig.rails[0].deliver_imm(imm(0, true));
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

#[test]
fn an_empty_fragment_that_a_driver_refuses_goes_to_another_rail_or_waits() {
    let mut rig = Setup::dqplb(2).rig();
    rig.rails[0].refuse_next(0, Refusal::QueueFull);
    rig.post([signal(1)]);
    assert_eq!(rig.rails.iter().map(|rail| rail.sends().len()).collect::<Vec<_>>(), [0, 1]);
    rig.rails.iter().for_each(|rail| rail.refuse_next(0, Refusal::QueueFull));
    rig.post([signal(2)]);
    assert_eq!(rig.qp.unreported_sends(), 2);
    assert_eq!(rig.run_dry().len(), 2, "it is offered again");
}

#[test]
fn a_fenced_signal_waits_for_everything_before_it() {
    let mut rig = Setup::spray(2).unordered().rig();
    let fenced = signal(2).with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    rig.post([rig::send(1, 64), fenced]);
    assert_eq!(rig.notifies(), Vec::<Vec<u32>>::new());
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.notifies(), [[2]]);
}

#[test]
fn no_signal_is_sent_past_a_failure() {
    let mut rig = Setup::spray(2).rig();
    rig.post([rig::write(1, 64), signal(2)]);
    rig.rails[0].fail(WcStatus::REM_ACCESS_ERR);
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(rig.poll_ids(), [(1, WcStatus::REM_ACCESS_ERR), (2, flushed)]);
    assert_eq!(rig.notifies(), Vec::<Vec<u32>>::new());
    assert_eq!(rig.qp.state(), QpState::Error);
}
