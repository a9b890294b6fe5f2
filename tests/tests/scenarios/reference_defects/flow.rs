//! Rows about what is posted, and when: 4, 10, 13, 14, 15, 19, 21, 22, 24.

use polyrail_core::hardware::QpLimits;
use polyrail_core::verbs::{
    DeviceId, Imm, Opcode, RecvWr, SendFlags, SendRequest, SendWr, WcOpcode, WcStatus,
};
use polyrail_core::virtual_qp::{BuildError, Config, PostRecvError, PostSendError, RailId, Scheme};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, done, local, ok};
use polyrail_tests::scripted::{LIMITS, Nic, ScriptedQp};
use polyrail_tests::view::{inner, write};

/// Defect 4: all notifies that are ready go out together, in order, as credits allow.
#[test]
fn defect_04_notifies_of_ready_requests_go_out_together() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post((0..8).map(|id| rig::write_imm(id, 256, 100 + id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [(100..108).collect::<Vec<_>>()], "one doorbell");
    let signaled: Vec<_> = rig.notify().sends().iter().map(signaled).collect();
    assert_eq!(signaled, [false, false, false, false, false, false, false, true]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[0, 1, 2, 3, 4, 5, 6, 7]));
}

fn signaled(request: &SendRequest) -> bool {
    request.flags.contains(SendFlags::SIGNALED)
}

/// Defect 10: one ring, nothing to leak.
#[test]
fn defect_10_a_hundred_thousand_receives_leave_nothing_behind() {
    let mut rig = Setup::spray(2).rig();
    for round in 0..25_000u64 {
        for id in 0..4 {
            rig.qp.post_recv(&RecvWr::notification(4 * round + id)).unwrap();
        }
        for _ in 0..4 {
            rig.notify().deliver_imm(Imm::from_number(0));
        }
        assert_eq!(rig.poll().len(), 4);
    }
    assert_eq!(rig.qp.unreported_recvs(), 0);
    assert!(rig.notify().recvs().is_empty());
}

/// Defect 13: "unlimited" means the queue pair's own depth.
#[test]
fn defect_13_an_unlimited_message_count_still_posts_receives() {
    for (max_recv_wr, expected) in [(1024, 16), (5, 5)] {
        let mut setup = Setup::dqplb(2).depth(u32::MAX);
        setup.limits.max_recv_wr = max_recv_wr;
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        for rail in &rig.rails {
            assert_eq!(rail.recvs().len(), expected);
        }
        assert_eq!(rig.qp.window().receives_per_rail, expected as u32);
    }
}

/// Defect 13: a limit of zero is refused when the queue pair is built.
#[test]
fn defect_13_a_limit_of_zero_messages_cannot_be_built() {
    let built = |scheme, max_msgs_per_qp, limits: QpLimits| {
        let config = Config { scheme, max_msgs_per_qp, ..Config::default() };
        build(config, limits).map(|_| ())
    };
    assert_eq!(built(Scheme::Spray, 0, LIMITS), Err(BuildError::NoMessages));
    // The text names the program's own terms, not numbers that were never given.
    let text = BuildError::NoMessages.to_string();
    assert_eq!(text, "max_msgs_per_qp is 0, so that no request could ever be posted");
    let limits = QpLimits { max_recv_wr: 0, ..LIMITS };
    assert_eq!(
        built(Scheme::Dqplb, 1, limits),
        Err(BuildError::NoRoom { qp_num: 10, send: false })
    );
    assert_eq!(built(Scheme::Spray, 1, limits), Ok(()), "SPRAY's rails need no receives");
}

fn build(config: Config, limits: QpLimits) -> Result<rig::TestQp, BuildError> {
    let nic = Nic::new();
    let cq = nic.cq(0, 1 << 10);
    let rails: Vec<ScriptedQp> = (10..12).map(|number| nic.qp(number, &cq, limits).0).collect();
    <rig::TestQp>::new(config, rails, None)
}

/// Defect 14: sizes are validated when the queue pair is built.
#[test]
fn defect_14_impossible_fragment_sizes_cannot_be_built() {
    for bytes in [0, 1, 127, 129, u32::MAX] {
        let config = Config { max_msg_size: bytes, ..Config::default() };
        assert_eq!(build(config, LIMITS).map(|_| ()), Err(BuildError::MaxMsgSize { bytes }));
    }
    let config = Config { max_msg_size: (1 << 20) + 128, ..Config::default() };
    let limits = QpLimits { max_msg_size: 1 << 20, ..LIMITS };
    let bytes = (1 << 20) + 128;
    let expected = BuildError::RailMsgSize { rail: 0, bytes, limit: 1 << 20 };
    assert_eq!(build(config, limits).map(|_| ()), Err(expected));
    let config = Config { max_msg_size: 1 << 20, ..config };
    assert!(build(config, limits).is_ok(), "what a rail can just carry");
}

/// Defect 14: 4 GiB - 1 in large fragments, the last one odd.
#[test]
fn defect_14_the_longest_request_is_split_and_completes() {
    let mut rig = Setup::spray(2).fragment(1 << 30).rig();
    rig.post([rig::write(1, u32::MAX)]);
    let gib = 1u64 << 30;
    assert_eq!(rig.pieces(0), [[inner(write(0, 1 << 30)), write(gib, 1 << 30)]]);
    let last = write(3 * gib, (1 << 30) - 1);
    assert_eq!(rig.pieces(1), [[inner(write(2 * gib, 1 << 30)), last]]);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, u32::MAX)]);
}

/// Defect 14: `length + max_msg_size` overflows 32 bits in the reference.
#[test]
fn defect_14_the_largest_fragment_size_does_not_overflow() {
    let largest = u32::MAX - 127;
    let mut setup = Setup::spray(2).fragment(largest);
    setup.limits.max_msg_size = u32::MAX;
    let mut rig = setup.rig();
    rig.post([rig::write(1, u32::MAX), rig::read(2, largest)]);
    assert_eq!(rig.pieces(0)[0], [write(0, largest)]);
    assert_eq!(rig.pieces(1)[0], [write(u64::from(largest), 127)]);
    assert_eq!(rig.run_dry().len(), 2);
}

/// Defect 14: 4 GiB - 1 in 2^20 fragments; every one is checked.
#[test]
fn defect_14_the_longest_request_covers_every_byte_once() {
    covers_every_byte_once(4096, 1 << 20);
}

/// Defect 14: the maximum number of fragments. Takes some seconds without optimisation.
#[test]
#[ignore = "slow: seconds without optimisation; tests/full.sh runs it"]
fn defect_14_the_longest_request_in_the_shortest_fragments_covers_every_byte_once() {
    covers_every_byte_once(128, 1 << 25);
}

fn covers_every_byte_once(fragment: u32, expected_fragments: u64) {
    let setup = Setup::spray(3).fragment(fragment).depth(1024).deep();
    let mut rig: Rig<3, 1024, 2> = setup.build();
    rig.post([rig::write(1, u32::MAX)]);
    let mut bytes = 0u64;
    let mut fragments = 0u64;
    let mut ends = std::collections::BTreeSet::from([0u64]);
    while rig.qp.unreported_sends() > 0 {
        for rail in &rig.rails {
            for batch in rail.take_doorbells() {
                let (start, end) = span(&batch, fragment);
                fragments += batch.len() as u64;
                bytes += end - start;
                assert!(ends.insert(end), "no byte twice");
            }
            rail.complete_all();
        }
        rig.poll();
    }
    assert_eq!((bytes, fragments), (u64::from(u32::MAX), expected_fragments));
    assert_eq!(ends.last(), Some(&u64::from(u32::MAX)));
}

/// Where a batch of consecutive fragments starts and ends.
fn span(batch: &[SendRequest], fragment: u32) -> (u64, u64) {
    let start = batch[0].sge.addr() - rig::LOCAL;
    let mut end = start;
    for request in batch {
        assert_eq!(request.sge.addr() - rig::LOCAL, end);
        assert_eq!(request.remote_addr - rig::REMOTE, end);
        assert_eq!(end % u64::from(fragment), 0);
        end += u64::from(request.sge.length());
    }
    (start, end)
}

/// Defect 14: a remote range past the end of the address space.
#[test]
fn defect_14_a_remote_range_that_wraps_is_refused() {
    let mut rig = Setup::spray(2).rig();
    let addr = u64::MAX - 99;
    let wr = SendWr { remote_addr: addr, ..rig::write(1, 100) };
    assert_eq!(rig.qp.post_send(&wr), Err(PostSendError::RemoteRange { addr, length: 100 }));
    rig.post([SendWr { remote_addr: addr - 1, ..rig::write(2, 100) }]);
    assert_eq!(rig.run_dry().len(), 1);
}

/// Defect 15: checked before anything changes; the next post works.
#[test]
fn defect_15_missing_keys_are_refused_before_anything_changes() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    let missing = |device| Err(PostSendError::MissingKeys { device: DeviceId(device) });
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaWriteWithImm, Opcode::RdmaRead] {
        let wr = SendWr { opcode, keys: &KEYS[..1], ..rig::write(1, 128) };
        assert_eq!(rig.qp.post_send(&wr), missing(1));
    }
    for wr in [rig::send(1, 8), rig::fetch_add(1)] {
        assert_eq!(rig.qp.post_send(&SendWr { keys: &KEYS[1..], ..wr }), missing(0));
    }
    let recv = RecvWr::data(1, local(8), &KEYS[1..]);
    let missing = PostRecvError::MissingKeys { device: DeviceId(0) };
    assert_eq!(rig.qp.post_recv(&recv), Err(missing));
    assert_eq!((rig.qp.unreported_sends(), rig.qp.unreported_recvs()), (0, 0));
    assert!(rig.rails.iter().all(|rail| rail.sends().is_empty() && rail.recvs().is_empty()));
    rig.post([rig::write(2, 256)]);
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::RDMA_WRITE, 256)]);
}

/// Defect 15: the notify queue pair's device counts as well.
#[test]
fn defect_15_missing_keys_of_the_notify_device_are_refused() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 256), nic.cq(1, 256)];
    let rails = [nic.qp(10, &cqs[0], LIMITS).0, nic.qp(11, &cqs[0], LIMITS).0];
    let notify = nic.qp(20, &cqs[1], LIMITS).0;
    let mut qp = <rig::TestQp>::new(Config::default(), rails, Some(notify)).unwrap();
    let wr = SendWr { keys: &KEYS[..1], ..rig::write_imm(1, 128, 1) };
    assert_eq!(qp.post_send(&wr), Err(PostSendError::MissingKeys { device: DeviceId(1) }));
    let plain = SendWr { keys: &KEYS[..1], ..rig::write(1, 128) };
    assert_eq!(qp.post_send(&plain), Ok(()), "a plain WRITE needs no notify");
}

/// Defect 19: a queue pair that is assigned over is dropped, its physical ones with it. (Using one
/// after it was moved away does not compile: `ui/use_after_move.rs`.)
#[test]
fn defect_19_assigning_over_a_queue_pair_drops_the_old_one() {
    let mut rig = Setup::spray(2).rig();
    let other = Setup::spray(2).rig();
    let before = rig.nic.owners();
    rig.qp = other.qp;
    assert_eq!(before - rig.nic.owners(), 3, "two rails and the notify queue pair");
}

/// Defect 21, FENCE: waits for every earlier READ and atomic, on any rail.
#[test]
fn defect_21_a_fenced_request_waits_for_reads_and_atomics_on_all_rails() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    rig.post([rig::fetch_add(1), rig::read(2, 2 * 128)]);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::write(3, 3 * 128).with_flags(fenced), rig::write(4, 128)]);
    let count = |rig: &Rig, fetching: bool| {
        let sends = rig.rails.iter().flat_map(|rail| rail.sends());
        sends.filter(|request| request.opcode.is_fetching() == fetching).count()
    };
    let mut reported = Vec::new();
    for rail in [2, 1, 0] {
        assert_eq!(count(&rig, false), 0, "3 waits for READ and atomic, 4 behind it");
        while rig.rails[rail].sends().first().is_some_and(|first| first.opcode.is_fetching()) {
            rig.rails[rail].complete(1);
            reported.extend(rig.poll_ids());
            assert!(count(&rig, true) == 0 || count(&rig, false) == 0);
        }
    }
    assert_eq!(count(&rig, false), 4, "3 fragments of request 3, one of request 4");
    let flags = rig.rails.iter().flat_map(|rail| rail.sends()).map(|request| request.flags);
    assert!(flags.clone().all(|flags| flags == SendFlags::SIGNALED), "no FENCE on fragments");
    reported.extend(rig.run_dry().iter().map(|wc| (wc.wr_id, wc.status)));
    assert_eq!(reported, ok(&[1, 2, 3, 4]));
}

/// Defect 21, FENCE of a SEND: it waits for READs even where pass-through may overtake writes.
#[test]
fn defect_21_a_fenced_send_waits_for_reads_even_unordered() {
    let mut rig = Setup::spray(2).fragment(128).unordered().rig();
    rig.post([rig::read(1, 256)]);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::send(2, 8).with_flags(fenced)]);
    assert_eq!(rig.rails[0].sends().len(), 1, "only the READ's fragment");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[0].sends().len(), 0);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.rails[0].sends()[0].opcode, Opcode::Send);
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::SEND, 8)]);
}

/// Defect 21, FENCE: an earlier READ that is not yet posted counts too. Here DQPLB's span holds up
/// the request ahead of the READ, while rail 0 has room for an atomic.
#[test]
fn defect_21_a_fenced_atomic_waits_for_reads_that_wait_themselves() {
    let mut rig = Setup::dqplb(2).fragment(128).depth(8).unordered().rig();
    let peer = polyrail_core::virtual_qp::PeerWindow { window: 17, receives_per_rail: 8 };
    rig.qp.set_peer_window(peer).unwrap();
    rig.post([rig::write_imm(1, 128, 0), rig::write_imm(2, 128, 0), rig::read(3, 128)]);
    rig.post([rig::fetch_add(4).with_flags(SendFlags::SIGNALED | SendFlags::FENCE)]);
    let opcodes: Vec<_> = rig.rails[0].sends().iter().map(|request| request.opcode).collect();
    assert_eq!(opcodes, [Opcode::RdmaWriteWithImm], "span 1: request 2 and the READ wait");
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

/// Defect 21, SOLICITED with DQPLB: on every fragment, since any of them can be the one whose
/// arrival completes the request.
#[test]
fn defect_21_solicited_goes_on_every_numbered_fragment() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 4 * 128, 0).with_flags(flags)]);
    for rail in 0..2 {
        let posted = rig.pieces(rail).concat();
        assert_eq!(posted.len(), 2);
        assert!(posted.iter().all(|piece| piece.flags.contains(SendFlags::SOLICITED)));
        assert!(!posted[0].flags.contains(SendFlags::SIGNALED), "one completion for two");
    }
    rig.post([rig::write(2, 256).with_flags(flags)]);
    assert_eq!(rig.pieces(0), [[write(0, 128)]], "a plain WRITE's fragment notifies nobody");
}

/// A fragment of an unsolicited earlier request could be the last to arrive of all that a solicited
/// one waits for.
#[test]
fn defect_21_a_solicited_request_waits_for_unsolicited_numbers() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 0), rig::write_imm(2, 256, 0).with_flags(flags)]);
    rig.post([rig::write_imm(3, 256, 0).with_flags(flags)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[0].sends().len(), 0);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.rails[0].sends().len(), 2, "solicited ones wait for none of their kind");
    assert_eq!(rig.run_dry().len(), 2);
}

/// Defect 21, SOLICITED: with SPRAY on the notify, which is what the peer's queue sees.
#[test]
fn defect_21_solicited_goes_on_the_notify() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 5).with_flags(flags), rig::write_imm(2, 256, 6)]);
    for rail in 0..2 {
        let posted = rig.pieces(rail).concat();
        assert!(posted.iter().all(|piece| piece.flags == SendFlags::SIGNALED), "{posted:?}");
        rig.rails[rail].complete_all();
    }
    assert_eq!(rig.poll(), []);
    let notifies: Vec<_> = rig.notify().sends().iter().map(|notify| notify.flags).collect();
    assert_eq!(notifies, [SendFlags::SOLICITED, SendFlags::SIGNALED]);
}

/// Defect 21, INLINE: the buffer is free when the post returns, so it must be posted at once.
#[test]
fn defect_21_an_inline_request_is_posted_at_once_or_refused() {
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    let mut rig = Setup::spray(2).fragment(512).depth(1).rig();
    let too_long = Err(PostSendError::InlineTooLong { length: 257, max: 256 });
    for wr in [rig::write(1, 257), rig::write_imm(1, 257, 0), rig::send(1, 257)] {
        assert_eq!(rig.qp.post_send(&wr.with_flags(inline)), too_long);
    }
    let read = rig.qp.post_send(&rig::read(1, 8).with_flags(inline));
    assert_eq!(read, Err(PostSendError::InlineOpcode(Opcode::RdmaRead)));
    let atomic = rig.qp.post_send(&rig::fetch_add(1).with_flags(inline));
    assert_eq!(atomic, Err(PostSendError::InlineOpcode(Opcode::FetchAdd)));

    rig.post([rig::write(1, 256).with_flags(inline)]);
    assert_eq!(rig.rails[0].sends()[0].flags, inline);
    rig.post([rig::write(2, 128)]);
    // Both rails are full now.
    let must_wait = Err(PostSendError::InlineMustWait);
    for wr in [rig::write(3, 8), rig::write_imm(3, 8, 0), rig::send(3, 8)] {
        assert_eq!(rig.qp.post_send(&wr.with_flags(inline)), must_wait);
    }
    assert_eq!(rig.qp.unreported_sends(), 2);
    assert_eq!(rig.run_dry().len(), 2);
}

/// Defect 21, INLINE with SPRAY and imm: the data goes at once, the notify carries no data.
#[test]
fn defect_21_an_inline_spray_request_is_notified_without_inline() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 8, 3).with_flags(SendFlags::SIGNALED | SendFlags::INLINE)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notify().sends()[0].flags, SendFlags::SIGNALED);
    assert_eq!(rig.run_dry().len(), 1);
}

/// Defect 22: pass-through requests take credits of rail 0.
#[test]
fn defect_22_pass_through_takes_credits_of_rail_0() {
    let mut rig = Setup::spray(2).fragment(128).depth(4).unordered().rig();
    rig.post((0..3).map(|id| rig::send(id, 8)));
    rig.post([rig::write(3, 16 * 128)]);
    assert_eq!(rig.rails[0].sends().len(), 4, "three SENDs leave one credit");
    assert_eq!(rig.rails[1].sends().len(), 4);
    rig.post([rig::send(4, 8)]);
    assert_eq!(rig.rails[0].sends().len(), 4, "a SEND without credit waits");
    assert_eq!(rig.rails[0].slots(), 4);
    assert_eq!(rig.run_dry().len(), 5);
}

/// Defect 22: on a single rail the driver's own queue-full is the back-pressure.
#[test]
fn defect_22_a_single_rail_reports_the_drivers_queue_full() {
    let mut setup = Setup::spray(1);
    setup.limits = QpLimits { max_send_wr: 2, max_recv_wr: 1, ..LIMITS };
    let mut rig = setup.rig();
    rig.post([rig::write(1, 8), rig::send(2, 8)]);
    assert_eq!(rig.qp.post_send(&rig::write(3, 8)), Err(PostSendError::QueueFull(RailId::Data(0))));
    rig.qp.post_recv(&RecvWr::data(4, local(8), &KEYS)).unwrap();
    let full = rig.qp.post_recv(&RecvWr::data(5, local(8), &KEYS));
    assert_eq!(full, Err(PostRecvError::QueueFull(RailId::Data(0))));
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), [done(1, WcOpcode::RDMA_WRITE, 0)]);
    assert_eq!(rig.qp.post_send(&rig::write(3, 8)), Ok(()));
}

/// Defect 24: a poll stops at its budget, and takes no more than a batch of completions.
#[test]
fn defect_24_a_poll_hands_over_no_more_than_its_budget() {
    let mut rig = Setup::spray(1).rig();
    rig.post((0..50).map(|id| rig::write(id, 8)));
    rig.rails[0].complete_all();
    let mut ids = Vec::new();
    for unpolled in [50 - 32, 50 - 40, 50 - 44] {
        let (events, polled) = rig.poll_events(4);
        assert_eq!((events.len(), polled.events), (4, 4));
        assert_eq!(rig.nic.unpolled(), unpolled, "as many as there is room for");
        ids.extend(events.into_iter().filter_map(|event| event.completion().map(|wc| wc.wr_id)));
    }
    ids.extend(rig.poll().iter().map(|wc| wc.wr_id));
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
}

/// Defect 24: completions without a report do not make a poll endless either.
#[test]
fn defect_24_silent_completions_are_bounded_too() {
    let mut rig: Rig<2, 128, 128> = Setup::spray(2).fragment(128).depth(128).build();
    rig.post([rig::write(0, 256)]);
    rig.post((1..100).map(|id| rig::write(id, 256)));
    rig.rails[1].complete_all();
    assert_eq!(rig.nic.unpolled(), 100);
    let (events, _) = rig.poll_events(1);
    assert_eq!((events.len(), rig.nic.unpolled()), (0, 68), "one batch of 32");
    rig.rails[0].complete_all();
    let statuses = rig.run_dry().iter().map(|wc| wc.status).collect::<Vec<_>>();
    assert_eq!(statuses, [WcStatus::SUCCESS; 100]);
}
