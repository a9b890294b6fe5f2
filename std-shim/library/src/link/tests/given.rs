//! Messages of all kinds, by chance.

use super::{Hello, Message};
use crate::backend::{Gid, Meeting, MeetingKey, Mtu};
use crate::card::ConnectionCard;
use crate::endpoint::{Address, HealingMessage, RailAddress, ReplacementAddress};
use crate::interfaces::IpNet;
use crate::link::{
    HexBytes, MAX_OFFERED_ADDRESSES, MAX_OFFERED_INTERFACES, NoOutcome, Offer, Reason, Session,
};
use crate::memory::RemoteBuffer;
use crate::p2p::{P2pAddress, QUEUE_PAIRS, QueuePairAddress};
use polyrail_core::p2p::{EntryForm, Ports, ReceiverCard, RemoteMemory, SenderCard};
use polyrail_core::virtual_qp::{
    ControlMessage, MAX_RAILS, RailId, RailReport, ReportedState, Scheme,
};
use quickcheck::{Arbitrary, Gen};
use std::net::IpAddr;

fn rail(g: &mut Gen) -> RailAddress {
    let gid: u128 = u128::arbitrary(g);
    RailAddress {
        device: u8::arbitrary(g) % 8,
        gid: Gid(gid.to_be_bytes()),
        lid: u16::arbitrary(g),
        mtu: *g.choose(&Mtu::ALL).unwrap(),
        psn: u32::arbitrary(g) & 0x00ff_ffff,
        rd_atomic: u8::arbitrary(g),
        meeting: bool::arbitrary(g).then(|| Meeting {
            port: u16::arbitrary(g).max(1),
            key: MeetingKey(std::array::from_fn(|_| u8::arbitrary(g))),
        }),
    }
}

pub(super) fn endpoint(g: &mut Gen) -> Address {
    let card = ConnectionCard::arbitrary(g);
    Address {
        scheme: *g.choose(&[Scheme::Spray, Scheme::Dqplb]).unwrap(),
        max_msg_size: 1 + (u32::arbitrary(g) >> 1),
        rails: card.qp_nums.iter().map(|_| rail(g)).collect(),
        notify: bool::arbitrary(g).then(|| rail(g)),
        card,
    }
}

pub(super) fn hello(g: &mut Gen) -> Hello {
    let addr = u64::arbitrary(g) >> 1;
    let rkeys = (0..1 + usize::arbitrary(g) % MAX_RAILS).map(|_| u32::arbitrary(g)).collect();
    let buffer = RemoteBuffer { addr, length: 1 + (u64::arbitrary(g) >> 1), rkeys };
    let session = bool::arbitrary(g).then(|| Session::random().unwrap());
    let reach = if bool::arbitrary(g) { endpoint(g).into() } else { messages(g).into() };
    Hello { reach, buffer, purpose: None, session }
}

fn messages(g: &mut Gen) -> P2pAddress {
    let count = 1 + usize::arbitrary(g) % QUEUE_PAIRS;
    let (sending, receiving) = (queue_pairs(g, count), queue_pairs(g, count));
    let sender = SenderCard { ports: ports(g), ring: memory(g), form: EntryForm::Hashed };
    let receiver = ReceiverCard { ports: ports(g), records: memory(g), depth: u32::arbitrary(g) };
    P2pAddress { sender: Some(sender), sending, receiver: Some(receiver), receiving }
}

fn queue_pairs(g: &mut Gen, count: usize) -> Vec<QueuePairAddress> {
    let queue_pair = |_| QueuePairAddress { qp_num: u32::arbitrary(g), address: rail(g) };
    (0..count).map(queue_pair).collect()
}

fn ports(g: &mut Gen) -> Ports {
    Ports {
        rails: u8::arbitrary(g),
        slots: u16::arbitrary(g),
        reroutes: bool::arbitrary(g),
        cancel_version: u32::arbitrary(g),
        devices: std::array::from_fn(|_| u8::arbitrary(g)),
        max_message: std::array::from_fn(|_| u32::arbitrary(g)),
    }
}

fn memory(g: &mut Gen) -> RemoteMemory {
    RemoteMemory { addr: u64::arbitrary(g), rkeys: std::array::from_fn(|_| u32::arbitrary(g)) }
}

impl Arbitrary for Message {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 12 {
            0 => Self::Ready {},
            7 => Self::Note { bytes: HexBytes(Vec::arbitrary(g)) },
            1 => Self::Done(NoOutcome {}),
            2 => Self::Alive {},
            4 => Self::Heal(heal(g)),
            5 => Self::Resume { session: Session::random().unwrap() },
            6 => Self::Resumed {},
            8 => Self::Refused { reason: Reason::new(String::arbitrary(g)) },
            9 => Self::Ask {},
            10 => Self::Offer(offer(g)),
            3 => Self::Failed { reason: Reason::new(String::arbitrary(g)) },
            _ => Self::Hello(hello(g)),
        }
    }
}

fn offer(g: &mut Gen) -> Offer {
    let net = |g: &mut Gen| {
        let ip: IpAddr = IpAddr::arbitrary(g);
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, u8::arbitrary(g) % (bits + 1)).unwrap()
    };
    let mut interface =
        |_| (0..1 + usize::arbitrary(g) % MAX_OFFERED_ADDRESSES).map(|_| net(g)).collect();
    let tcp = (0..MAX_OFFERED_INTERFACES / 4).map(&mut interface).collect();
    Offer { verbs: true, tcp }
}

fn heal(g: &mut Gen) -> HealingMessage {
    let generation = u16::arbitrary(g);
    let rail = *g.choose(&[RailId::Data(0), RailId::Data(7), RailId::Notify]).unwrap();
    let state =
        *g.choose(&[ReportedState::Failed, ReportedState::Fenced, ReportedState::Ready]).unwrap();
    let arrived = u32::arbitrary(g);
    let address = *endpoint(g).rails.first().unwrap();
    let address = ReplacementAddress { rail, generation, qp_num: arrived, address };
    let news = RailReport {
        rail,
        generation,
        state,
        arrived,
        previous_arrived: !arrived,
        on_purpose: false,
    };
    match u8::arbitrary(g) % 5 {
        0 => HealingMessage::Control(ControlMessage::Rail(news)),
        1 => HealingMessage::Offer(address),
        2 => HealingMessage::Answer { to: !arrived, with: address },
        3 => HealingMessage::Refused { rail, generation },
        _ => HealingMessage::Wanted { rail },
    }
}
