//! Peers that break the protocol fail their connection, and no other on the same pools.

use crate::rig::{Rig, SLOTS, Setup, irecv};
use polyrail_core::p2p::{
    CallError, ConnectionEnd, EntryError, Failure, ImmLayout, Immediate, Mask, ProtocolError,
    RecordError, RecvHandle, Told,
};
use polyrail_core::verbs::{Completion, Imm, WcFlags, WcOpcode};

const SLOT: u8 = 0;

/// Two connections over two rails on the same pools; each waits for a message of up to 256 bytes.
fn waiting(buffers: u32) -> (Rig, RecvHandle, RecvHandle) {
    let mut setup = Setup::rails(2);
    (setup.connections, setup.limit) = (2, 16);
    let mut rig = setup.rig();
    let target = rig.target(1024);
    let offered: Vec<_> = (0..buffers).map(|tag| (&target, tag * 256, 256, tag)).collect();
    let bad = irecv(&mut rig.connections[0].receiver, &offered).expect("there is room");
    let good = irecv(&mut rig.connections[1].receiver, &[(&target, 0, 256, 0)]).expect("room");
    rig.settle();
    (rig, bad, good)
}

fn immediate(slot: u8, mask: u8, told: Told, byte_len: u32) -> Completion {
    let immediate = Immediate { slot, mask: Mask::from_bits(mask), told };
    number(ImmLayout::new(2).expect("two").encode(immediate), byte_len)
}

fn number(imm: Imm, byte_len: u32) -> Completion {
    let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    let wc_flags = WcFlags::WITH_IMM;
    Completion { imm, byte_len, wc_flags, ..Completion::success(0, 0, opcode) }
}

/// The last of these, by rail, is wrong: the first connection fails, the second one does not
/// notice.
fn breaks(buffers: u32, came: &[(usize, Completion)], expected: ProtocolError) {
    let (mut rig, bad, good) = waiting(buffers);
    for (at, (rail, completion)) in came.iter().enumerate() {
        assert_eq!(rig.receiver().failure(), None, "before {at}");
        rig.fabric.deliver(rig.far(*rail), *completion);
        rig.poll_far();
    }
    let failure = Failure::Protocol(expected);
    assert_eq!(rig.receiver().failure(), Some(&failure));
    let source = rig.source(256);
    let sender = &mut rig.connections[1].sender;
    let send = sender.isend(source.local(0, 200), 0, &source.keys).expect("it works");
    rig.settle();
    assert_eq!(rig.connections[1].sender.test(send), Ok(true));
    let received = rig.connections[1].receiver.test(good).expect("it works");
    assert_eq!(received.expect("arrived").sizes(), [200]);
    assert_eq!(rig.receiver().test(bad), Err(CallError::Failed(failure)));
    assert!(rig.receiver().is_drained());
    let target = rig.target(8);
    assert_eq!(rig.try_irecv(&[(&target, 0, 8, 0)]), Err(CallError::Failed(failure)));
}

#[test]
fn an_empty_mask() {
    let error = ProtocolError::EmptyMask { slot: SLOT };
    breaks(1, &[(0, immediate(SLOT, 0, Told::Units(1), 8))], error);
}

#[test]
fn a_foreign_mask() {
    let error = ProtocolError::ForeignMask { slot: SLOT, rail: 1, mask: Mask::of(0) };
    breaks(1, &[(1, immediate(SLOT, 0b01, Told::Units(1), 8))], error);
}

#[test]
fn a_mask_that_changes() {
    let units = Told::Units(2);
    let came = [(0, immediate(SLOT, 0b11, units, 128)), (1, immediate(SLOT, 0b10, units, 8))];
    let (before, now) = (Mask::first(2), Mask::of(1));
    breaks(1, &came, ProtocolError::MaskChanged { slot: SLOT, before, now });
}

#[test]
fn a_rail_twice() {
    let first = (0, immediate(SLOT, 0b11, Told::Units(2), 128));
    breaks(1, &[first, first], ProtocolError::Twice { slot: SLOT, rail: 0 });
}

#[test]
fn slots_in_which_no_message_waits() {
    for slot in [1, 7, 8, 255] {
        let error = ProtocolError::NoReceive { slot };
        breaks(1, &[(0, immediate(slot, 0b01, Told::Units(1), 8))], error);
    }
}

/// Only irecv takes a slot again: an immediate before that is not due.
#[test]
fn a_slot_whose_receive_is_done() {
    let units = Told::Units(1);
    let once = (0, immediate(SLOT, 0b01, units, 8));
    breaks_done(once.1);
}

fn breaks_done(completion: Completion) {
    let (mut rig, bad, _) = waiting(1);
    for _ in 0..2 {
        rig.fabric.deliver(rig.far(0), completion);
        rig.poll_far();
    }
    let failure = Failure::Protocol(ProtocolError::NoReceive { slot: SLOT });
    assert_eq!(rig.receiver().failure(), Some(&failure));
    assert!(rig.received(bad).is_some(), "what had arrived has arrived");
}

#[test]
fn moved_for_a_rail_that_is_not_fenced() {
    let error = ProtocolError::NotFenced { slot: SLOT, rail: 1 };
    breaks(1, &[(0, immediate(SLOT, 0b11, Told::Moved(1), 8))], error);
}

#[test]
fn sizes_that_disagree() {
    let error = |said, came| ProtocolError::SizesDisagree { slot: SLOT, said, came };
    breaks(1, &[(0, immediate(SLOT, 0b01, Told::Units(2), 128))], error(256, 128));
    let came = [
        (0, immediate(SLOT, 0b11, Told::Units(2), 128)),
        (1, immediate(SLOT, 0b11, Told::Units(1), 8)),
    ];
    breaks(1, &came, error(256, 128));
}

#[test]
fn sizes_beyond_the_buffer() {
    let error = ProtocolError::TooLong { slot: SLOT, size: 384, capacity: 256 };
    breaks(1, &[(0, immediate(SLOT, 0b01, Told::Units(3), 0))], error);
}

#[test]
fn a_record_that_was_not_written() {
    let source = RecordError::NotWritten { buffer: 0 };
    let error = ProtocolError::Record { slot: SLOT, source };
    breaks(1, &[(0, immediate(SLOT, 0b01, Told::Record, 8))], error);
    breaks(2, &[(0, immediate(SLOT, 0b01, Told::Record, 16))], error);
    breaks(2, &[(0, immediate(SLOT, 0b01, Told::Units(1), 8))], error);
}

/// The record is poisoned again for each receive.
#[test]
fn a_record_of_an_earlier_message_of_the_slot() {
    let mut rig = Setup::rails(1).rig();
    let (source, target) = (rig.source(64), rig.target(64));
    let offered = [(&target, 0, 32, 0), (&target, 32, 32, 1)];
    for _ in 0..crate::rig::SLOTS {
        let recv = rig.try_irecv(&offered).expect("there is room");
        rig.settle();
        let sends = [0, 1].map(|tag| rig.try_isend(&source, 8, tag).expect("its tag"));
        rig.settle();
        assert!(sends.into_iter().all(|send| rig.sent(send)) && rig.received(recv).is_some());
    }
    let _ = rig.try_irecv(&offered).expect("there is room");
    let imm = ImmLayout::new(1).expect("one").encode(Immediate {
        slot: SLOT,
        mask: Mask::of(0),
        told: Told::Record,
    });
    rig.fabric.deliver(rig.far(0), number(imm, 16));
    rig.poll_far();
    let source = RecordError::NotWritten { buffer: 0 };
    let error = ProtocolError::Record { slot: SLOT, source };
    assert_eq!(rig.receiver().failure(), Some(&Failure::Protocol(error)));
}

#[test]
fn something_else_than_an_immediate() {
    let send = Completion { byte_len: 8, ..Completion::success(0, 0, WcOpcode::RECV) };
    let error = |opcode| ProtocolError::NoImmediate { rail: 0, opcode };
    breaks(1, &[(0, send)], error(WcOpcode::RECV));
    let with_imm = Completion { wc_flags: WcFlags::WITH_IMM, ..send };
    breaks(1, &[(0, with_imm)], error(WcOpcode::RECV));
    let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    breaks(1, &[(0, Completion::success(0, 0, opcode))], error(opcode));
}

/// Whatever the peer sends: no panic, no wrong account, no other connection harmed.
#[test]
fn any_immediate_at_all() {
    let mut random = 0x9e37_79b9_u64;
    for _ in 0..2000 {
        let (mut rig, bad, _) = waiting(1);
        for _ in 0..3 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let imm = Imm::from_number((random >> 32) as u32 & !0xf8);
            let rail = random as usize >> 20 & 1;
            rig.fabric.deliver(rig.far(rail), number(imm, random as u32 >> 24));
            rig.poll_far();
        }
        let failure = *rig.receiver().failure().expect("no such thing is due");
        assert!(matches!(failure, Failure::Protocol(_)));
        assert_eq!(rig.connections[1].receiver.failure(), None);
        rig.settle();
        let tested = rig.receiver().test(bad);
        assert!(matches!(tested, Err(CallError::Failed(_)) | Ok(Some(_))), "{tested:?}");
    }
}

/// Immediates without an offer take receives of others: these are posted again.
#[test]
fn what_a_peer_takes_at_the_cost_of_others_is_posted_again() {
    let (mut rig, _, good) = waiting(1);
    let before = rig.fabric.receives(0);
    let many = rig.connections[0].receiver.accounts().next().expect("one").posted() + 3;
    for _ in 0..many {
        rig.fabric.deliver(rig.far(0), immediate(200, 1, Told::Units(1), 1));
    }
    rig.poll_far();
    let accounts = rig.connections[0].receiver.accounts();
    assert!(accounts.map(|account| account.posted()).all(|posted| posted >= 0));
    assert!(i64::from(rig.fabric.receives(0)) >= i64::from(before) - many);
    let source = rig.source(256);
    let sender = &mut rig.connections[1].sender;
    let _ = sender.isend(source.local(0, 256), 0, &source.keys).expect("it works");
    rig.settle();
    let received = rig.connections[1].receiver.test(good).expect("it works");
    assert_eq!(received.expect("arrived").sizes(), [256]);
}

/// Entries are the peer's as well: those that lie fail the connection at isend.
#[test]
fn entries_that_lie() {
    use polyrail_core::p2p::{Entry, EntryForm};
    use std::sync::atomic::AtomicU64;
    let lies = [
        (Entry { count: 9, ..Entry::default() }, EntryError::Count { index: 0, count: 9 }),
        // One of two, in the place of an only one.
        (Entry { count: 2, ..Entry::default() }, EntryError::Count { index: 0, count: 2 }),
        (
            Entry { index: 1, count: 2, ..Entry::default() },
            EntryError::Index { index: 0, found: 1 },
        ),
        (
            Entry { addr: u64::MAX, length: 9, count: 1, ..Entry::default() },
            EntryError::Range { index: 0, addr: u64::MAX, length: 9 },
        ),
    ];
    for (lie, source) in lies {
        let mut rig = Setup::rails(1).rig();
        let words = [const { AtomicU64::new(0) }; 8];
        Entry { number: 1, ..lie }.store(EntryForm::Hashed, &words);
        let ring = rig.sender().card().ring.addr;
        rig.fabric.put(ring, &words);
        let memory = rig.source(8);
        let failure = Failure::Protocol(ProtocolError::Entry { number: 1, source });
        assert_eq!(rig.try_isend(&memory, 8, 0), Err(CallError::Failed(failure)));
        assert_eq!(rig.sender().failure(), Some(&failure));
        assert!(rig.fabric.is_error(rig.near(0)));
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }
}

/// Whatever words the peer writes into the ring: no panic, and nothing but messages to its own
/// memory.
#[test]
fn any_entry_at_all() {
    use polyrail_core::p2p::{Entry, EntryForm};
    use std::sync::atomic::AtomicU64;
    let mut random = Random(7);
    let (mut sent, mut failed) = (0, 0);
    for round in 0..3000 {
        let mut setup = Setup::rails(2);
        setup.sender.entry_form = [EntryForm::Plain, EntryForm::Hashed][round % 2];
        let mut rig = setup.rig();
        let ring = rig.sender().card().ring.addr;
        // Two receives of one buffer, or behind the entries of such receives one of two buffers.
        let is_alone = round % 3 == 0;
        let first = if is_alone { ring } else { ring + SLOTS as u64 * 64 };
        for at in 0..2 {
            let [a, b, c] = [(); 3].map(|()| random.next());
            let entry = Entry {
                number: 1 + u64::from(is_alone) * u64::from(at) + u64::from(a % 11 == 0),
                addr: b,
                length: c as u32,
                tag: at,
                rkeys: [b as u32; 8],
                count: if a % 7 == 0 { a as u8 } else { 2 - u8::from(is_alone) },
                index: if a % 5 == 0 { b as u8 } else { at as u8 * u8::from(!is_alone) },
            };
            let words = [const { AtomicU64::new(0) }; 8];
            entry.store(setup.sender.entry_form, &words);
            if a % 13 == 0 {
                words[6].store(c, std::sync::atomic::Ordering::Relaxed);
            }
            rig.fabric.put(first + u64::from(at) * 64, &words);
        }
        let memory = rig.source(1000);
        for tag in [0, 1] {
            match rig.try_isend(&memory, 1000, tag) {
                Ok(_) => sent += 1,
                Err(error) => assert!(error != CallError::NotConnected, "{error}"),
            }
        }
        failed += u32::from(rig.sender().failure().is_some());
        rig.invariants();
    }
    assert!(sent > 1000 && failed > 500, "{sent} sent, {failed} failed");
}

/// Whatever bytes the peer sends as control messages: no panic, and a typed failure at most.
#[test]
fn any_control_message_at_all() {
    use polyrail_core::p2p::Control;
    let mut random = Random(11);
    let (mut refused, mut failed) = (0, 0);
    for _ in 0..1000 {
        let mut rig = Setup::rerouting(2).rig();
        let (source, target) = (rig.source(256), rig.target(256));
        let _ = rig.irecv(&target, 256);
        rig.settle();
        let _ = rig.isend(&source, 256);
        for _ in 0..12 {
            let mut bytes = [0; Control::BYTES];
            bytes[..3].copy_from_slice(&[0x50, 0x52, 1]);
            let [a, b] = [(); 2].map(|()| random.next());
            bytes[3] = a as u8 % 5;
            (bytes[4], bytes[5]) = ((b & 1) as u8, (b & 1) as u8 ^ u8::from(a % 31 == 0));
            bytes[7] = (a >> 8) as u8 % 3;
            bytes[11] = (a >> 16) as u8 % 3;
            bytes[15] = (a >> 24) as u8 % 2;
            let Ok(control) = Control::decode(&bytes) else {
                refused += 1;
                continue;
            };
            if b & 2 == 0 {
                let _ = rig.sender().control(control);
            } else {
                let _ = rig.receiver().control(control);
            }
            if b & 12 == 0 {
                rig.fabric.run();
            }
            rig.poll();
            while rig.sender().next_control().is_some() {}
            while rig.receiver().next_control().is_some() {}
        }
        failed += u32::from(rig.sender().failure().is_some());
    }
    assert!(refused > 100 && failed > 100, "{refused} refused, {failed} failed");
}
