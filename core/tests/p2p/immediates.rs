//! What is on the wire for one message: the immediate of each rail, the record and its leader.
//! `core/docs/wire.md`, "Immediates of messages" and "Records"; `core/docs/messages.md`, "Exact
//! sizes".

use super::messages::{check, decode, is_imm};
use crate::rig::{Memory, Rig, Setup};
use polyrail_core::p2p::{ConnectionEnd, ImmLayout, Mask, SplitPolicy, Told};
use polyrail_core::verbs::{Opcode, SendRequest};

/// All ones in the 22 bits of *size_q*.
const SENTINEL: u32 = 0x3F_FFFF;

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
    for (buffers, room) in [(1, 8), (2, 8), (8, 8), (1, 0)] {
        let offered: Vec<_> = (0..buffers).map(|tag| (&target, tag * 8, room, tag)).collect();
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

/// One request on each active rail carries payload and size.
#[test]
fn fast_path_is_one_write_with_imm_on_each_active_rail() {
    let setup = Setup::rails(4);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(4096), rig.target(4096));
    assert_eq!(rig.message(&source, &target, 1000, 4096), 1000);
    let data = rig.take_data();
    assert_eq!(data.len(), 4);
    for (at, (place, request)) in data.iter().enumerate() {
        assert_eq!((*place, is_imm(request)), (at, true));
        assert_eq!(decode(&setup, request), (Mask::first(4), Told::Units(8)));
    }
    let lengths = data.iter().map(|(_, request)| request.sge.length());
    assert!(lengths.eq([256, 256, 256, 232]));
}

#[test]
fn a_separate_signal_holds_multiples_of_128_and_leaves_the_rest_to_the_record() {
    let mut setup = Setup::rails(2);
    setup.sender.separate_signal = Some(256);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1 << 13), rig.target(1 << 13));
    for (length, told) in [
        (255, Told::Units(2)),
        (256, Told::Units(2)),
        (257, Told::Record),
        (1 << 13, Told::Units(64)),
    ] {
        check(&mut rig, &source, &target, length, 1 << 13);
        let data = rig.take_data();
        let signals: Vec<_> = data.iter().filter(|(_, request)| is_imm(request)).collect();
        assert_eq!(signals.len(), 2);
        assert!(signals.iter().all(|(_, request)| decode(&setup, request).1 == told));
        assert_eq!(data.len() - signals.len(), if length < 256 { 0 } else { 2 });
        let with_bytes = signals.iter().filter(|(_, signal)| signal.sge.length() > 0).count();
        let expected = if length < 256 { 2 } else { usize::from(told == Told::Record) };
        assert_eq!(with_bytes, expected);
    }
}

#[test]
fn lengths_beyond_what_an_immediate_can_say_are_in_the_record() {
    for rails in [2, 8] {
        let mut setup = Setup::rails(rails);
        setup.max_msg_size = 1 << 31;
        let mut rig = setup.rig();
        let [source, target] = rig.phantoms(1 << 30);
        let end = ImmLayout::new(rails).expect("rails").largest_units() * 128;
        let one = 1 << 30;
        for (length, is_told) in [(end - 1, true), (end, true), (end + 1, false), (one, end >= one)]
        {
            if length > one {
                continue;
            }
            assert_eq!(rig.message(&source, &target, length, one), length);
            let data = rig.take_data();
            let told = decode(&setup, &data.last().expect("requests").1).1;
            assert_eq!(told == Told::Record, !is_told, "{length} bytes");
        }
    }
}

/// Payload goes on the rails of the mask with one signal on each, sizes with the leader's signal
/// only, and a rail that a buffer gives nothing has no request for that buffer.
#[test]
fn the_leader_attaches_the_sizes_and_no_rail_writes_nothing() {
    let mut setup = Setup::rails(3);
    setup.sender.split_threshold = 256;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1000), rig.target(4000));
    // One buffer over all rails, one in turn on rail 1.
    let _ = rig.isend_two(&source, &target, 600, 100);
    let data = rig.take_data();
    let of = |place| data.iter().filter(move |(at, _)| *at == place).map(|(_, request)| *request);
    for place in 0..3 {
        let requests: Vec<_> = of(place).collect();
        let (signal, payload) = requests.split_last().expect("a signal");
        assert!(is_imm(signal) && decode(&setup, signal) == (Mask::first(3), Told::Record));
        assert_eq!(signal.sge.length(), if place == 0 { 16 } else { 0 }, "the leader");
        assert!(payload.iter().all(|request| !is_imm(request) && request.sge.length() > 0));
    }
    let payloads: Vec<_> = (0..3).map(|place| of(place).count() - 1).collect();
    assert_eq!(payloads.iter().sum::<usize>(), 4, "three parts and one whole");
}

impl Rig {
    /// Sends two buffers with one message.
    fn isend_two(&mut self, source: &Memory, target: &Memory, first: u32, second: u32) -> u64 {
        let buffers = [(target, 0, 1000, 0), (target, 1000, 1000, 1)];
        let recv = self.try_irecv(&buffers).expect("there is room");
        self.settle();
        let _ = self.try_isend(source, first, 0).expect("tag 0");
        let _ = self.try_isend(source, second, 1).expect("tag 1");
        self.settle();
        assert_eq!(self.received(recv).expect("arrived").sizes(), [first, second]);
        recv.number()
    }
}
