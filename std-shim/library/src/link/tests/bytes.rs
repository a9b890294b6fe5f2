//! The bytes of a message: no others are taken for one, and one that is not all there is waited
//! for.

use super::given::{endpoint, hello};
use super::{Hello, Message, error};
use crate::backend::{Gid, Meeting, MeetingKey, Mtu};
use crate::endpoint::{HealingMessage, RailAddress};
use crate::interfaces::IpNet;
use crate::link::{
    HandshakeError, MAX_MESSAGE_BYTES, MAX_OFFERED_ADDRESSES, MAX_OFFERED_INTERFACES, NoOutcome,
    Offer, Reason,
};
use crate::p2p::{P2pAddress, QUEUE_PAIRS, QueuePairAddress};
use polyrail_core::p2p::{EntryForm, Ports, ReceiverCard, RemoteMemory, SenderCard};
use polyrail_core::virtual_qp::{MAX_RAILS, RailId};
use quickcheck::{Gen, QuickCheck};
use std::net::IpAddr;

#[test]
fn messages_survive_the_round_trip() {
    fn round_trip(message: Message, behind: Vec<u8>) -> bool {
        let mut bytes = message.encode();
        let length = bytes.len();
        bytes.extend(behind);
        Message::decode(&bytes) == Ok(Some((message, length)))
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(500)
        .quickcheck(round_trip as fn(Message, Vec<u8>) -> bool);
}

#[test]
fn a_message_that_is_not_all_there_is_waited_for() {
    fn cut(message: Message, at: usize) -> bool {
        let bytes = message.encode();
        Message::decode(&bytes[..at % bytes.len()]) == Ok(None)
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(1000)
        .quickcheck(cut as fn(Message, usize) -> bool);
}

#[test]
fn no_bytes_make_the_reader_panic_and_no_error_is_long() {
    fn any(bytes: Vec<u8>) -> bool {
        let mut framed = b"PLYR\0\0\0\x08\0\0".to_vec();
        framed.extend((bytes.len() as u16).to_be_bytes());
        framed.extend(&bytes);
        let decoded = Message::decode(&framed);
        _ = Message::decode(&bytes);
        let body = Message::from_json(&bytes);
        decoded == body.map(|message| Some((message, framed.len())))
    }
    /// A message with one byte changed, which reaches deeper than noise does.
    fn mutated(message: Message, at: usize, byte: u8) -> bool {
        let mut bytes = message.encode();
        let length = bytes.len();
        bytes[at % length] = byte;
        match Message::decode(&bytes) {
            Ok(Some((message, _))) => {
                let again = message.encode();
                Message::decode(&again) == Ok(Some((message, again.len())))
            }
            Ok(None) => true,
            Err(error) => {
                let text = error.to_string();
                text.len() < 300 && !text.contains(char::is_control)
            }
        }
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(2000)
        .quickcheck(any as fn(Vec<u8>) -> bool);
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(5000)
        .quickcheck(mutated as fn(Message, usize, u8) -> bool);
}

#[test]
fn the_form_is_the_documented_one() {
    let bytes = Message::Done(NoOutcome {}).encode();
    assert_eq!(&bytes[..12], b"PLYR\0\0\0\x08\0\0\0\x0b");
    assert_eq!(&bytes[12..], br#"{"done":{}}"#.as_slice());
    let json = |message: Message| String::from_utf8(message.encode()[12..].to_vec()).unwrap();
    assert_eq!(json(Message::Alive {}), r#"{"alive":{}}"#);
    let refused = HealingMessage::Refused { rail: RailId::Notify, generation: 3 };
    let text = r#"{"heal":{"refused":{"rail":"notify","generation":3}}}"#;
    assert_eq!(json(Message::Heal(refused)), text);
    let wrong = error(&text.replace("notify", "9"));
    assert!(matches!(&wrong, HandshakeError::Heal { at, .. } if at == "heal"), "{wrong}");
    let twice = error(&text.replace("\"generation", "\"generation\":3,\"generation"));
    assert!(matches!(twice, HandshakeError::Heal { .. }), "{twice}");
}

#[test]
fn the_longest_messages_fit() {
    // A quotation mark is two bytes of JSON; control characters, which are six, are replaced.
    let reason = Reason::new("\"".repeat(5000));
    let failed = Message::Failed { reason };
    assert!(matches!(Message::decode(&failed.encode()), Ok(Some((read, _))) if read == failed));
    let mut g = Gen::from_size_and_seed(100, 1);
    let mut longest = hello(&mut g);
    longest.buffer.rkeys = vec![u32::MAX; MAX_RAILS];
    let rail = RailAddress {
        device: 7,
        gid: Gid([0xff; 16]),
        lid: u16::MAX,
        mtu: Mtu::Mtu4096,
        psn: 0x00ff_ffff,
        rd_atomic: u8::MAX,
        meeting: Some(Meeting { port: u16::MAX, key: MeetingKey([0xff; 16]) }),
    };
    let mut requests = endpoint(&mut g);
    requests.card.qp_nums = vec![u32::MAX; MAX_RAILS];
    requests.rails = vec![rail; MAX_RAILS];
    requests.notify = Some(rail);
    let ports = Ports {
        rails: 8,
        slots: 256,
        reroutes: false,
        cancel_version: u32::MAX,
        devices: [7; MAX_RAILS],
        max_message: [u32::MAX; MAX_RAILS],
    };
    let memory = RemoteMemory { addr: u64::MAX, rkeys: [u32::MAX; MAX_RAILS] };
    let queue_pairs = vec![QueuePairAddress { qp_num: u32::MAX, address: rail }; QUEUE_PAIRS];
    let messages = P2pAddress {
        sender: Some(SenderCard { ports, ring: memory, form: EntryForm::Hashed }),
        sending: queue_pairs.clone(),
        receiver: Some(ReceiverCard { ports, records: memory, depth: u32::MAX }),
        receiving: queue_pairs,
    };
    for reach in [requests.into(), messages.into()] {
        let bytes = Message::Hello(Hello { reach, ..longest.clone() }).encode();
        assert!(bytes.len() < MAX_MESSAGE_BYTES as usize / 2, "{}", bytes.len());
    }
    let address = IpNet::from(IpAddr::from([0xffff; 8]));
    let tcp = vec![vec![address; MAX_OFFERED_ADDRESSES]; MAX_OFFERED_INTERFACES];
    let bytes = Message::Offer(Offer { verbs: false, tcp }).encode();
    assert!(bytes.len() < MAX_MESSAGE_BYTES as usize / 2, "{}", bytes.len());
}

#[test]
fn other_programs_and_other_versions_are_told_apart() {
    let start = "GET / HTTP/1.1\\r\\n".to_string();
    let error = Message::decode(b"GET / HTTP/1.1\r\nHost: x").unwrap_err();
    assert_eq!(error, HandshakeError::NotPolyrail { start });
    assert!(Message::decode(b"PLX").is_err());
    assert_eq!(Message::decode(b"PL"), Ok(None));
    // Known before the length is there.
    let error = Message::decode(b"PLYR\0\0\0\x01").unwrap_err();
    assert_eq!(error, HandshakeError::Version { peer: 1 });
    assert_eq!(error.to_string(), "the peer speaks version 1 of the protocol, this side version 8");
    let error = Message::decode(b"PLYR\0\0\0\x08\0\0\x40\x01").unwrap_err();
    assert_eq!(error, HandshakeError::TooLong { length: 16385 });
}
