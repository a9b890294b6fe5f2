//! Users' immediates: the bytes on the wire, and the numbers that a receiver reports.
//! `core/docs/wire.md`, "Immediates of users".

use polyrail_core::verbs::{Imm, ImmOrder, RecvWr, SendFlags, SendWr, WcOpcode};
use polyrail_core::virtual_qp::Scheme;
use polyrail_tests::rig::{self, KEYS, Rig, Setup, local};

const NUMBER: u32 = 0x0102_0304;

/// Each order, with what [`NUMBER`] is on the wire.
const ORDERS: [(ImmOrder, [u8; 4]); 2] =
    [(ImmOrder::BigEndian, [1, 2, 3, 4]), (ImmOrder::LittleEndian, [4, 3, 2, 1])];

fn build(setup: Setup, order: ImmOrder) -> Rig {
    setup.fragment(128).depth(8).config(|config| config.imm_order = order).rig()
}

fn send_imm(wr_id: u64) -> SendWr<'static> {
    SendWr::send_with_imm(wr_id, local(64), NUMBER, &KEYS)
}

#[test]
fn a_spray_notify_carries_the_immediate_in_the_order_chosen() {
    for (order, wire) in ORDERS {
        let mut rig = build(Setup::spray(2), order);
        rig.post([rig::write_imm(1, 256, NUMBER)]);
        rig.rails.iter().for_each(|rail| rail.complete_all());
        _ = rig.poll();
        let [notify] = rig.notify().sends()[..] else { panic!("one notify") };
        assert_eq!(notify.imm.wire(), wire, "{order}");
    }
}

#[test]
fn a_single_rail_sends_immediates_in_the_order_chosen() {
    for (order, wire) in ORDERS {
        for scheme in [Scheme::Spray, Scheme::Dqplb] {
            let setup = Setup::spray(1).config(|config| config.scheme = scheme);
            let mut rig = build(setup, order);
            rig.post([rig::write_imm(1, 256, NUMBER), send_imm(2)]);
            let sent: Vec<_> = rig.rails[0].sends().iter().map(|send| send.imm.wire()).collect();
            assert_eq!(sent, [wire; 2], "{order} {scheme:?}");
        }
    }
}

/// One SEND that goes straight through, and one that waits in the ring for the WRITE before it.
#[test]
fn sends_over_several_rails_carry_the_immediate_in_the_order_chosen() {
    for (order, wire) in ORDERS {
        let mut rig = build(Setup::spray(2), order);
        rig.post([send_imm(1)]);
        assert_eq!(rig.rails[0].sends()[0].imm.wire(), wire, "{order}, at once");
        rig.rails[0].complete(1);
        rig.post([rig::write(2, 256), send_imm(3)]);
        rig.rails.iter().for_each(|rail| rail.complete_all());
        _ = rig.poll();
        let [deferred] = rig.rails[0].sends()[..] else { panic!("one SEND") };
        assert!(deferred.flags.contains(SendFlags::SIGNALED));
        assert_eq!(deferred.imm.wire(), wire, "{order}, later");
    }
}

#[test]
fn what_arrives_is_reported_as_the_number_that_was_sent() {
    for (order, wire) in ORDERS {
        let imm = Imm::from_wire(wire);
        let mut spray = build(Setup::spray(2), order);
        spray.qp.post_recv(&RecvWr::notification(1)).unwrap();
        spray.qp.post_recv(&RecvWr::data(2, local(64), &KEYS)).unwrap();
        spray.notify().deliver_imm(imm);
        spray.rails[0].deliver_send(64, Some(imm));
        let mut dqplb = build(Setup::dqplb(2), order);
        dqplb.qp.post_recv(&RecvWr::data(2, local(64), &KEYS)).unwrap();
        dqplb.rails[0].deliver_send(64, Some(imm));
        let mut single = build(Setup::spray(1), order);
        for id in 0..2 {
            single.qp.post_recv(&RecvWr::data(id, local(64), &KEYS)).unwrap();
        }
        single.rails[0].deliver(WcOpcode::RECV_RDMA_WITH_IMM, 256, Some(imm));
        single.rails[0].deliver_send(64, Some(imm));
        for (rig, count) in [(&mut spray, 2), (&mut dqplb, 1), (&mut single, 2)] {
            let arrived: Vec<_> = rig.poll().iter().map(|wc| wc.imm).collect();
            assert_eq!(arrived, vec![Some(NUMBER); count], "{order}");
        }
    }
}

/// Both ends of a connection understand each other's sequence numbers in whatever order they chose.
#[test]
fn dqplbs_numbers_keep_their_own_order() {
    for (order, _) in ORDERS {
        let mut rig = build(Setup::dqplb(2), order);
        rig.post([rig::write_imm(1, 300, NUMBER)]);
        let wire = |rail: usize| -> Vec<[u8; 4]> {
            rig.rails[rail].sends().iter().map(|send| send.imm.wire()).collect()
        };
        let mut numbers = [wire(0), wire(1)].concat();
        numbers.sort_unstable();
        assert_eq!(numbers, [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0x80]], "{order}");
        rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
        rig.rails[1].deliver_imm(Imm::from_wire([0, 0, 0, 0x80]));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(rig.poll().len(), 2, "{order}: a receive and a send");
    }
}
