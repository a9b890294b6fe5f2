//! Rules of the protocol over two rails: records, leaders, empty messages, immediates, slots.

use crate::rig::Setup;
use polyrail_core::p2p::{ImmLayout, Mask, SplitPolicy, Told};
use polyrail_core::verbs::{Opcode, SendRequest};

/// All ones in the 22 bits of *size_q*.
const SENTINEL: u32 = 0x3F_FFFF;

fn is_imm(request: &SendRequest) -> bool {
    request.opcode == Opcode::RdmaWriteWithImm
}

/// Slot, mask and *size_q* of an immediate, taken apart by the bits of the layout for two rails.
fn fields(request: &SendRequest) -> (u32, u32, u32) {
    let number = u32::from_be_bytes(request.imm.wire());
    (number & 0xFF, number >> 8 & 0b11, number >> 10)
}

/// A length beyond *size_q*: *size_q* is the sentinel, each active rail has its payload in WRITEs,
/// and one request of the leader alone writes the exact size into the receiver's record.
#[test]
fn a_length_beyond_size_q_is_in_the_record_that_the_leader_writes() {
    let mut setup = Setup::rails(2);
    setup.max_msg_size = 1 << 31;
    let mut rig = setup.rig();
    let [source, target] = rig.phantoms(1 << 30);
    let largest = ImmLayout::new(2).expect("two rails").largest_units() * 128;
    let length = largest + 1;
    assert_eq!(rig.message(&source, &target, length, 1 << 30), length, "to the byte");
    let data = rig.take_data();
    for place in 0..2 {
        let requests: Vec<_> =
            data.iter().filter(|(at, _)| *at == place).map(|(_, request)| request).collect();
        let [payload, signal] = requests[..] else { panic!("{requests:?}") };
        assert!(payload.opcode == Opcode::RdmaWrite && payload.sge.length() > 1 << 27);
        assert_eq!((is_imm(signal), fields(signal)), (true, (0, 0b11, SENTINEL)));
        // One size has 8 bytes; the other rail's signal brings nothing.
        assert_eq!(signal.sge.length(), if place == 0 { 8 } else { 0 });
    }
}

/// If only bit 1 of the mask is set, rail 1 is the leader, and writes the sizes.
#[test]
fn rail_1_is_the_leader_of_a_message_that_it_carries_alone() {
    let mut setup = Setup::rails(2);
    setup.sender.split = SplitPolicy::Weighted { weights: [0, 1, 0, 0, 0, 0, 0, 0] };
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1000), rig.target(2000));
    let recv = rig.try_irecv(&[(&target, 0, 1000, 0), (&target, 1000, 1000, 1)]).expect("room");
    rig.settle();
    rig.fabric.clear_log();
    let sends = [(600, 0), (77, 1)];
    let sends = sends.map(|(length, tag)| rig.try_isend(&source, length, tag).expect("its tag"));
    rig.settle();
    assert!(sends.into_iter().all(|send| rig.sent(send)));
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [600, 77]);
    let data = rig.take_data();
    assert!(data.iter().all(|(place, _)| *place == 1), "{data:?}");
    let (_, signal) = data.last().expect("a signal");
    assert_eq!((fields(signal), signal.sge.length()), ((0, 0b10, SENTINEL), 16));
}

/// When all sizes are 0, one rail alone is active, with one immediate. It is a rail in turn and not
/// always rail 0, which may have failed.
#[test]
fn a_message_of_no_bytes_has_one_active_rail_and_one_immediate() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(64), rig.target(64));
    for buffers in [1, 2, 8] {
        let offered: Vec<_> = (0..buffers).map(|tag| (&target, tag * 8, 8, tag)).collect();
        let recv = rig.try_irecv(&offered).expect("room");
        rig.settle();
        rig.fabric.clear_log();
        let sends: Vec<_> =
            (0..buffers).map(|tag| rig.try_isend(&source, 0, tag).expect("its tag")).collect();
        rig.settle();
        assert!(sends.into_iter().all(|send| rig.sent(send)));
        assert!(rig.received(recv).expect("arrived").sizes().iter().all(|size| *size == 0));
        let data = rig.take_data();
        let [(place, only)] = data[..] else { panic!("{data:?}") };
        let (_, mask, size) = fields(&only);
        assert!(is_imm(&only) && mask == 1 << place);
        assert_eq!(size, if buffers == 1 { 0 } else { SENTINEL });
    }
    // Without rail 0, the other one carries them.
    assert!(rig.sender().fail_queue_pair(0));
    rig.recover();
    assert_eq!(rig.message(&source, &target, 0, 8), 0);
    let last = rig.take_data().pop().expect("a signal");
    assert_eq!((last.0, fields(&last.1).1), (1, 0b10));
}

/// The last request on each active rail has an immediate of slot, mask and *size_q*, in network
/// byte order; no other request has one.
#[test]
fn the_last_request_of_each_rail_has_slot_mask_and_size_in_network_byte_order() {
    for separate_signal in [None, Some(0)] {
        let mut setup = Setup::rails(2);
        setup.sender.separate_signal = separate_signal;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1 << 13), rig.target(1 << 13));
        for slot in 0..3 {
            assert_eq!(rig.message(&source, &target, 1 << 13, 1 << 13), 1 << 13);
            let data = rig.take_data();
            for place in 0..2 {
                let requests: Vec<_> = data
                    .iter()
                    .filter(|(at, _)| *at == place)
                    .map(|(_, request)| request)
                    .collect();
                let (last, others) = requests.split_last().expect("a share");
                assert!(is_imm(last) && !others.iter().any(|request| is_imm(request)));
                assert_eq!(others.len(), usize::from(separate_signal.is_some()));
                // 64 units of 128 bytes: the bytes of slot | 0b11 << 8 | 64 << 10, the most
                // significant first.
                assert_eq!(last.imm.wire(), [0, 1, 3, slot]);
                let immediate = ImmLayout::new(2).expect("two rails").decode(last.imm);
                assert_eq!((immediate.mask, immediate.told), (Mask::first(2), Told::Units(64)));
            }
        }
    }
}

/// An immediate names its message by the slot alone, in 8 bits, so no immediate of a former message
/// may come once the slot is reused. Here the former one is sent again over another rail, and its
/// slot waits.
#[test]
fn a_slot_is_not_taken_anew_while_an_immediate_of_it_may_come() {
    use polyrail_core::p2p::{CallError, NotNow};
    use polyrail_core::verbs::WcStatus;
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let first = rig.irecv(&target, 1000);
    rig.settle();
    let send = rig.isend(&source, 1000);
    // Rail 1's share is lost, and sent again by rail 0.
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    rig.poll();
    for _ in 0..8 {
        rig.carry();
        rig.poll();
    }
    rig.fabric.clear_log();
    assert!(rig.is_down(1));
    let others: Vec<_> = (1..crate::rig::SLOTS).map(|_| rig.irecv(&target, 1000)).collect();
    let taken = CallError::NotNow(NotNow::SlotTaken { number: first.number() });
    assert!(rig.received(first).is_none());
    assert_eq!(rig.try_irecv(&[(&target, 0, 1000, 0)]), Err(taken), "a share is on its way");
    rig.recover();
    assert!(rig.sent(send) && rig.received(first).is_some());
    let again = rig.irecv(&target, 1000);
    assert_eq!(again.number() - first.number(), crate::rig::SLOTS as u64);
    drop(others);
}
