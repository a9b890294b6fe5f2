//! Messages arrive, with their bytes and exact sizes, over the rails that carry them and no others.

use crate::rig::{Memory, Rig, SLOTS, Setup};
use polyrail_core::p2p::{CallError, ImmLayout, Mask, NotNow, SplitPolicy, Told};
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest};

const KIB: u32 = 1 << 10;

pub(super) fn decode(setup: &Setup, request: &SendRequest) -> (Mask, Told) {
    let immediate = ImmLayout::new(setup.rails).expect("rails").decode(request.imm);
    (immediate.mask, immediate.told)
}

pub(super) fn is_imm(request: &SendRequest) -> bool {
    request.opcode == Opcode::RdmaWriteWithImm
}

/// Sends one message and compares what came.
pub(super) fn check(rig: &mut Rig, source: &Memory, target: &Memory, length: u32, room: u32) {
    target.fill(|_| 0xee);
    assert_eq!(rig.message(source, target, length, room), length);
    let (length, bytes) = (length as usize, target.bytes());
    assert_eq!(bytes[..length], source.bytes()[..length]);
    assert!(bytes[length..].iter().all(|byte| *byte == 0xee), "nothing beyond");
}

#[test]
fn every_size_arrives_exactly_over_one_to_eight_rails() {
    for rails in 1..=8 {
        let mut rig = Setup::rails(rails).rig();
        let (source, target) = (rig.source(9000), rig.target(9000));
        let blocks =
            (0..=16).flat_map(|blocks| [blocks * 128, blocks * 128 + 1, blocks * 128 + 127]);
        for length in blocks.chain([4096, 8999]) {
            check(&mut rig, &source, &target, length, 9000);
        }
    }
}

#[test]
fn messages_longer_than_a_port_takes_go_in_pieces_and_have_exact_sizes() {
    for rails in [1, 2, 3] {
        let mut setup = Setup::rails(rails);
        setup.max_msg_size = 512;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1 << 16), rig.target(1 << 16));
        let edge = 512 * u32::from(rails);
        // Far more pieces than there are credits, too.
        for length in [edge - 1, edge, edge + 1, edge + 128, 40_000, 1 << 16] {
            check(&mut rig, &source, &target, length, 1 << 16);
        }
    }
}

/// Inactive rails see no packet, no receive and no completion.
#[test]
fn inactive_rails_get_nothing_at_all() {
    let mut setup = Setup::rails(3);
    setup.sender.split = SplitPolicy::Weighted { weights: [1, 0, 1, 0, 0, 0, 0, 0] };
    let mut rig = setup.rig();
    let (source, target) = (rig.source(4096), rig.target(4096));
    for _ in 0..20 {
        check(&mut rig, &source, &target, 4096, 4096);
    }
    let data = rig.take_data();
    assert!(data.iter().all(|(place, request)| {
        *place != 1 && decode(&setup, request).0 == Mask::from_bits(0b101)
    }));
    let counters = rig.connections[0].receiver.counters(1).expect("three queue pairs");
    assert_eq!(counters.completions, 0, "no ghost receives, nothing to drift");
}

/// The sender decides, inside isend: a receiver that decided would have to know the sender's
/// credits.
#[test]
fn the_mask_is_chosen_inside_isend_from_what_is_true_then() {
    let setup = Setup::rails(2);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1 << 13), rig.target(1 << 13));
    let recvs = [rig.irecv(&target, 1 << 13), rig.irecv(&target, 1 << 13)];
    rig.settle();
    rig.fabric.clear_log();
    // The first fills rail 0 after the buffers were offered.
    let mut sends = vec![];
    sends.push(rig.isend(&source, 128));
    assert_eq!(rig.fabric.posted(rig.near(0)).len(), 1);
    sends.push(rig.isend(&source, 1 << 13));
    rig.settle();
    assert!(sends.into_iter().all(|send| rig.sent(send)));
    let sizes = recvs.map(|recv| rig.received(recv).expect("arrived").sizes()[0]);
    assert_eq!(sizes, [128, 1 << 13]);
}

#[test]
fn short_messages_take_turns_on_one_rail() {
    let mut setup = Setup::rails(3);
    setup.sender.split_threshold = 64 * KIB;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let places: Vec<_> = (0..6)
        .map(|_| {
            assert_eq!(rig.message(&source, &target, 200, 256), 200);
            let data = rig.take_data();
            assert_eq!(data.len(), 1);
            data[0].0
        })
        .collect();
    assert_eq!(places, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_rails_queue_pairs_take_turns() {
    let mut setup = Setup::rails(2);
    setup.each = 3;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let mut places = vec![];
    for _ in 0..6 {
        check(&mut rig, &source, &target, 256, 256);
        places.extend(rig.take_data().into_iter().map(|(place, _)| place));
    }
    let mut counts = [0; 6];
    places.iter().for_each(|place| counts[*place] += 1);
    assert_eq!(counts, [2; 6]);
}

#[test]
fn a_rail_without_credits_is_left_out_rather_than_waited_for() {
    let mut setup = Setup::rails(2);
    setup.max_send_wr = 2;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let recvs: Vec<_> = (0..4).map(|_| rig.irecv(&target, 256)).collect();
    // Entries arrive; what is sent is not acknowledged on rail 0.
    rig.settle();
    rig.fabric.clear_log();
    for _ in 0..2 {
        let _ = rig.isend(&source, 256);
    }
    let near = rig.near(1);
    while rig.fabric.execute(near) == crate::device::Step::Done {
        rig.fabric.acknowledge(near);
    }
    rig.poll_near();
    let third = rig.isend(&source, 256);
    assert_eq!(rig.fabric.posted(near).len(), 1);
    assert_eq!(rig.fabric.posted(near)[0].sge.length(), 256, "all of it is on rail 1");
    let fourth = rig.isend(&source, 100);
    assert_eq!(rig.try_isend(&source, 1, 0), Err(NotNow::NoEntry.into()));
    rig.settle();
    assert!(rig.sent(third) && rig.sent(fourth));
    let sizes: Vec<_> =
        recvs.into_iter().map(|recv| rig.received(recv).expect("arrived").sizes()[0]).collect();
    assert_eq!(sizes, [256, 256, 256, 100]);
}

#[test]
fn without_credits_on_any_rail_isend_returns_not_now() {
    let mut setup = Setup::rails(2);
    setup.max_send_wr = 2;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(256), rig.target(256));
    for _ in 0..3 {
        let _ = rig.irecv(&target, 256);
    }
    rig.settle();
    for _ in 0..2 {
        let _ = rig.isend(&source, 256);
    }
    assert_eq!(rig.try_isend(&source, 256, 0), Err(NotNow::NoCredits.into()));
    rig.settle();
    assert!(rig.try_isend(&source, 256, 0).is_ok(), "nothing was lost");
}

#[test]
fn a_message_longer_than_its_buffer_is_refused_before_anything_is_posted() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(512), rig.target(512));
    let recv = rig.irecv(&target, 300);
    rig.settle();
    rig.fabric.clear_log();
    let error = CallError::TooLong { length: 301, capacity: 300 };
    assert_eq!(rig.try_isend(&source, 301, 0), Err(error));
    rig.settle();
    assert_eq!(rig.take_data().len(), 0);
    let send = rig.isend(&source, 300);
    rig.settle();
    assert!(rig.sent(send));
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [300]);
}

#[test]
fn several_buffers_find_their_sends_by_tag_and_go_out_together() {
    for rails in [1, 2, 4] {
        let setup = Setup::rails(rails);
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1000), rig.target(4000));
        let buffers = [(&target, 0, 1000, 7), (&target, 1000, 500, 9), (&target, 2000, 0, 8)];
        let recv = rig.try_irecv(&buffers).expect("there is room");
        rig.settle();
        rig.fabric.clear_log();
        let not_now = Err(NotNow::NoSuchTag.into());
        let nine = rig.try_isend(&source, 333, 9).expect("tag 9");
        assert_eq!(rig.try_isend(&source, 1, 9), not_now, "it has its send");
        assert_eq!(rig.try_isend(&source, 1, 3), not_now);
        let eight = rig.try_isend(&source, 0, 8).expect("tag 8");
        rig.settle();
        assert_eq!(rig.take_data().len(), 0, "seven is waited for");
        assert!(!rig.sent(nine) && !rig.sent(eight));
        let seven = rig.try_isend(&source, 1000, 7).expect("tag 7");
        rig.settle();
        assert!([seven, nine, eight].into_iter().all(|send| rig.sent(send)));
        let received = rig.received(recv).expect("arrived");
        assert_eq!(received.sizes(), [1000, 333, 0]);
        let (from, to) = (source.bytes(), target.bytes());
        assert_eq!(to[..1000], from[..1000]);
        assert_eq!(to[1000..1333], from[..333]);
        assert!(to[1333..].iter().all(|byte| *byte == 0));
    }
}

/// A gibibyte over ports like rxe's, of 8 MiB.
#[test]
fn a_gibibyte_goes_in_pieces_of_8_mib() {
    let mut setup = Setup::rails(2);
    setup.max_msg_size = 8 << 20;
    let mut rig = setup.rig();
    let [source, target] = rig.phantoms(1 << 30);
    for length in [1 << 30, (1 << 30) - 1] {
        assert_eq!(rig.message(&source, &target, length, 1 << 30), length);
        let data = rig.take_data();
        let bytes: u64 = data.iter().map(|(_, request)| u64::from(request.sge.length())).sum();
        assert!(data.iter().all(|(_, request)| request.sge.length() <= 8 << 20));
        // Too long for an immediate: the size is in the record.
        assert_eq!(bytes, u64::from(length) + 8);
    }
}

#[test]
fn slots_are_taken_in_order_and_never_one_that_is_just_free() {
    let mut rig = Setup::rails(1).rig();
    let (source, target) = (rig.source(64), rig.target(64));
    let recvs: Vec<_> = (0..SLOTS).map(|_| rig.irecv(&target, 64)).collect();
    let taken = CallError::NotNow(NotNow::SlotTaken { number: 1 });
    assert_eq!(rig.try_irecv(&[(&target, 0, 64, 0)]), Err(taken));
    rig.settle();
    let sends: Vec<_> = (0..SLOTS).map(|_| rig.isend(&source, 10)).collect();
    rig.settle();
    // All are done, and the second one was tested; the next receive takes the first one's slot.
    assert!(rig.received(recvs[1]).is_some());
    assert_eq!(rig.try_irecv(&[(&target, 0, 64, 0)]), Err(taken));
    assert!(rig.received(recvs[0]).is_some());
    let next = rig.irecv(&target, 64);
    assert_eq!(next.number(), SLOTS as u64 + 1);
    // The same at the sender's.
    rig.settle();
    assert_eq!(rig.try_isend(&source, 10, 0), Err(taken));
    assert!(rig.sent(sends[0]));
    assert!(rig.try_isend(&source, 10, 0).is_ok());
}

/// Sizes are copied when the last immediate is in.
#[test]
fn sizes_are_kept_until_their_caller_asks_though_later_messages_come() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(1000), rig.target(4000));
    let recvs: Vec<_> = (0..SLOTS as u32)
        .map(|at| {
            let buffers = [(&target, 0, 1000, 0), (&target, 1000, 1000, 1)];
            let recv = rig.try_irecv(&buffers).expect("there is room");
            rig.settle();
            let sends = [0, 1].map(|tag| rig.try_isend(&source, at * 10 + tag, tag));
            rig.settle();
            assert!(sends.into_iter().all(|send| rig.sent(send.expect("there is room"))));
            recv
        })
        .collect();
    for (at, recv) in (0..).zip(recvs) {
        assert_eq!(rig.received(recv).expect("arrived").sizes(), [at * 10, at * 10 + 1]);
    }
}

#[test]
fn handles_of_requests_that_are_done_are_recognised() {
    let mut rig = Setup::rails(1).rig();
    let (source, target) = (rig.source(64), rig.target(64));
    let (send, recv) = rig.start(&source, &target, 64);
    assert_eq!(rig.sender().test(send), Ok(false));
    assert_eq!(rig.receiver().test(recv), Ok(None));
    rig.settle();
    assert!(rig.sent(send) && rig.received(recv).is_some());
    for _ in 0..2 * SLOTS {
        assert_eq!(rig.sender().test(send), Err(CallError::NoRequest { number: 1 }));
        assert_eq!(rig.receiver().test(recv), Err(CallError::NoRequest { number: 1 }));
        rig.message(&source, &target, 64, 64);
    }
}

#[test]
fn keys_must_be_there_for_every_device() {
    let mut rig = Setup::rails(2).rig();
    let (mut source, mut target) = (rig.source(64), rig.target(64));
    let (near, far) = (source.keys.pop().expect("two"), target.keys.pop().expect("two"));
    let missing = Err(CallError::MissingKeys { device: far.device });
    assert_eq!(rig.try_irecv(&[(&target, 0, 64, 0)]), missing);
    let _ = rig.try_irecv(&[(&target, 0, 0, 0)]).expect("no bytes need no keys");
    target.keys.push(far);
    let _ = rig.irecv(&target, 64);
    rig.settle();
    let _ = rig.isend(&source, 0);
    let missing = Err(CallError::MissingKeys { device: near.device });
    assert_eq!(rig.try_isend(&source, 64, 0), missing);
}

#[test]
fn what_fits_goes_inline_if_its_memory_can_be_read() {
    let mut setup = Setup::rails(2);
    setup.sender.split_threshold = 128;
    setup.max_inline_data = 128;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(384), rig.target(384));
    // Over one rail, and over both, of which the longer share is too long at last.
    for (length, readable, inline) in
        [(0, true, 0), (128, true, 1), (128, false, 0), (256, true, 2), (384, true, 1)]
    {
        let recv = rig.irecv(&target, 384);
        rig.settle();
        rig.fabric.take_log();
        let (local, keys) = (source.local(0, length), source.keys.clone());
        let sender = rig.sender();
        let sent = match readable {
            true => sender.isend_inline(local, 0, &keys),
            false => sender.isend(local, 0, &keys),
        };
        let sent = sent.expect("there is room");
        rig.settle();
        let posted = rig.take_data();
        let is_inline = |request: &SendRequest| request.flags.contains(SendFlags::INLINE);
        let brought = posted.iter().filter(|(_, request)| is_inline(request)).count();
        assert_eq!(brought, inline, "{length} bytes: {posted:?}");
        assert!(rig.sent(sent));
        assert_eq!(rig.received(recv).expect("arrived").sizes(), [length]);
    }
}

#[test]
fn receives_have_one_to_eight_buffers() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(64), rig.target(64));
    for buffers in [0, 9] {
        let none: Vec<_> = (0..buffers).map(|tag| (&target, 0, 8, tag)).collect();
        let buffers = buffers as usize;
        assert_eq!(rig.try_irecv(&none), Err(CallError::Buffers { buffers }));
    }
    let eight: Vec<_> = (0..8).map(|tag| (&target, tag * 8, 8, tag)).collect();
    let recv = rig.try_irecv(&eight).expect("eight");
    rig.settle();
    for tag in (0..8).rev() {
        let _ = rig.try_isend(&source, tag, tag).expect("its tag");
    }
    rig.settle();
    let received = rig.received(recv).expect("arrived");
    assert_eq!(received.sizes(), [0, 1, 2, 3, 4, 5, 6, 7]);
}
