//! Bytes and messages: nothing that a peer can send is taken for more than it is.

use super::*;
use crate::RemoteBuffer;
use crate::backend::{Gid, Mtu};
use crate::card::{CardError, ConnectionCard};
use crate::endpoint::{Address, HealingMessage, RailAddress, ReplacementAddress};
use crate::p2p::{P2pAddress, QUEUE_PAIRS, QueuePairAddress};
use polyrail_core::p2p::{EntryForm, Ports, ReceiverCard, RemoteMemory, SenderCard};
use polyrail_core::virtual_qp::{ControlMessage, MAX_RAILS, RailId, RailNews, Scheme, ToldState};
use quickcheck::{Arbitrary, Gen, QuickCheck};

type Hello = super::Hello<NoPurpose>;
type Incoming = super::Incoming<NoPurpose>;
type Message = super::Message<NoPurpose>;

fn rail(g: &mut Gen) -> RailAddress {
    let gid: u128 = u128::arbitrary(g);
    RailAddress {
        device: u8::arbitrary(g) % 8,
        gid: Gid(gid.to_be_bytes()),
        lid: u16::arbitrary(g),
        mtu: *g.choose(&Mtu::ALL).unwrap(),
        psn: u32::arbitrary(g) & 0x00ff_ffff,
        rd_atomic: u8::arbitrary(g),
    }
}

fn endpoint(g: &mut Gen) -> Address {
    let card = ConnectionCard::arbitrary(g);
    Address {
        scheme: *g.choose(&[Scheme::Spray, Scheme::Dqplb]).unwrap(),
        max_msg_size: 1 + (u32::arbitrary(g) >> 1),
        rails: card.qp_nums.iter().map(|_| rail(g)).collect(),
        notify: bool::arbitrary(g).then(|| rail(g)),
        card,
    }
}

fn hello(g: &mut Gen) -> Hello {
    let addr = u64::arbitrary(g) >> 1;
    let rkeys = (0..1 + usize::arbitrary(g) % MAX_RAILS).map(|_| u32::arbitrary(g)).collect();
    let buffer = RemoteBuffer { addr, length: 1 + (u64::arbitrary(g) >> 1), rkeys };
    let session = bool::arbitrary(g).then(Session::random);
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
        devices: std::array::from_fn(|_| u8::arbitrary(g)),
        max_message: std::array::from_fn(|_| u32::arbitrary(g)),
    }
}

fn memory(g: &mut Gen) -> RemoteMemory {
    RemoteMemory { addr: u64::arbitrary(g), rkeys: std::array::from_fn(|_| u32::arbitrary(g)) }
}

impl Arbitrary for Message {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 9 {
            0 => Self::Ready {},
            7 => Self::Note { bytes: HexBytes(Vec::arbitrary(g)) },
            1 => Self::Done(NoOutcome {}),
            2 => Self::Alive {},
            4 => Self::Heal(heal(g)),
            5 => Self::Resume { session: Session::random() },
            6 => Self::Resumed {},
            3 => Self::Failed { reason: Reason::new(String::arbitrary(g)) },
            _ => Self::Hello(hello(g)),
        }
    }
}

fn heal(g: &mut Gen) -> HealingMessage {
    let generation = u16::arbitrary(g);
    let rail = *g.choose(&[RailId::Data(0), RailId::Data(7), RailId::Notify]).unwrap();
    let state = *g.choose(&[ToldState::Failed, ToldState::Fenced, ToldState::Ready]).unwrap();
    let arrived = u32::arbitrary(g);
    let address = *endpoint(g).rails.first().unwrap();
    let address = ReplacementAddress { rail, generation, qp_num: arrived, address };
    let news = RailNews { rail, generation, state, arrived, previous_arrived: !arrived };
    match u8::arbitrary(g) % 5 {
        0 => HealingMessage::Control(ControlMessage::Rail(news)),
        1 => HealingMessage::Offer(address),
        2 => HealingMessage::Answer { to: !arrived, with: address },
        3 => HealingMessage::Refused { rail, generation },
        _ => HealingMessage::Wanted { rail },
    }
}

fn error(json: &str) -> HandshakeError {
    match Message::from_json(json.as_bytes()) {
        Err(error) => error,
        Ok(message) => panic!("{json} was read as {message:?}"),
    }
}

#[test]
fn messages_survive_the_round_trip() {
    fn round_trip(message: Message, behind: Vec<u8>) -> bool {
        let mut bytes = message.encode();
        let length = bytes.len();
        bytes.extend(behind);
        Message::decode(&bytes) == Ok(Some((message, length)))
    }
    QuickCheck::new().tests(500).quickcheck(round_trip as fn(Message, Vec<u8>) -> bool);
}

#[test]
fn a_message_that_is_not_all_there_is_waited_for() {
    fn cut(message: Message, at: usize) -> bool {
        let bytes = message.encode();
        Message::decode(&bytes[..at % bytes.len()]) == Ok(None)
    }
    QuickCheck::new().tests(1000).quickcheck(cut as fn(Message, usize) -> bool);
}

#[test]
fn no_bytes_make_the_reader_panic_and_no_error_is_long() {
    fn any(bytes: Vec<u8>) -> bool {
        let mut framed = b"PLYR\0\0\0\x05\0\0".to_vec();
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
    QuickCheck::new().tests(2000).quickcheck(any as fn(Vec<u8>) -> bool);
    QuickCheck::new().tests(5000).quickcheck(mutated as fn(Message, usize, u8) -> bool);
}

#[test]
fn the_form_is_the_documented_one() {
    let bytes = Message::Done(NoOutcome {}).encode();
    assert_eq!(&bytes[..12], b"PLYR\0\0\0\x05\0\0\0\x0b");
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
    let mut g = Gen::new(100);
    let mut longest = hello(&mut g);
    longest.buffer.rkeys = vec![u32::MAX; MAX_RAILS];
    let rail = RailAddress {
        device: 7,
        gid: Gid([0xff; 16]),
        lid: u16::MAX,
        mtu: Mtu::Mtu4096,
        psn: 0x00ff_ffff,
        rd_atomic: u8::MAX,
    };
    let mut requests = endpoint(&mut g);
    requests.card.qp_nums = vec![u32::MAX; MAX_RAILS];
    requests.rails = vec![rail; MAX_RAILS];
    requests.notify = Some(rail);
    let ports = Ports {
        rails: 8,
        slots: 256,
        reroutes: false,
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
    assert_eq!(error.to_string(), "the peer speaks version 1 of the protocol, this side version 5");
    let error = Message::decode(b"PLYR\0\0\0\x05\0\0\x40\x01").unwrap_err();
    assert_eq!(error, HandshakeError::TooLong { length: 16385 });
}

const HELLO: &str = r#"{"hello":{"endpoint":{"card":{"notifyQpNum":"0","qpNums":["17"]},"scheme":"spray","maxMsgSize":65536,"rails":[{"device":0,"gid":"fe80::1","lid":0,"mtu":4096,"rdAtomic":16,"psn":7}]},"buffer":{"addr":4096,"length":8192,"rkeys":[5]}}}"#;

/// The error for the hello in which one piece is replaced.
fn spoilt(piece: &str, by: &str) -> HandshakeError {
    assert!(HELLO.contains(piece), "{piece}");
    error(&HELLO.replacen(piece, by, 1))
}

#[test]
fn fields_that_are_unknown_missing_or_repeated_are_named() {
    assert!(Message::from_json(HELLO.as_bytes()).is_ok());
    let at = |path: &str| path.to_owned();
    assert_eq!(
        spoilt(r#""lid":0"#, r#""lid":0,"sl":0"#),
        HandshakeError::Unknown { at: at("hello.endpoint.rails[0]"), name: at("\"sl\"") }
    );
    assert_eq!(
        spoilt(r#""psn":7"#, r#""psn":7,"psn":7"#),
        HandshakeError::Duplicate { at: at("hello.endpoint.rails[0].psn") }
    );
    assert_eq!(
        spoilt(r#","psn":7"#, ""),
        HandshakeError::Missing { at: at("hello.endpoint.rails[0].psn") }
    );
    assert_eq!(
        spoilt(r#","buffer":{"addr":4096,"length":8192,"rkeys":[5]}"#, ""),
        HandshakeError::Missing { at: at("hello.buffer") }
    );
    let source = CardError::Missing { field: "notifyQpNum" };
    assert_eq!(
        spoilt(r#""notifyQpNum":"0","#, ""),
        HandshakeError::Card { at: at("hello.endpoint.card"), source }
    );
    assert_eq!(
        error(r#"{"bye":{}}"#),
        HandshakeError::Unknown { at: String::new(), name: at("\"bye\"") }
    );
    assert!(matches!(error(r#"{"ready":{"x":1}}"#), HandshakeError::Unknown { .. }));
}

#[test]
fn a_hello_has_one_endpoint_of_either_kind() {
    let both = spoilt(r#","buffer""#, r#","p2p":{},"buffer""#);
    assert!(matches!(&both, HandshakeError::Kind { at, .. } if at == "hello"), "{both}");
    let wrong = error(r#"{"hello":{"p2p":{"sender":7},"buffer":{}}}"#);
    assert!(matches!(&wrong, HandshakeError::P2p { at, .. } if at == "hello.p2p"), "{wrong}");
}

#[test]
fn numbers_out_of_range_are_named_with_their_value() {
    let number = |at: &str, value: &str, min, max| HandshakeError::Number {
        at: at.to_owned(),
        value: value.to_owned(),
        min,
        max,
    };
    let cases = [
        (r#""device":0"#, r#""device":8"#, "hello.endpoint.rails[0].device", "8", 0, 7),
        (r#""lid":0"#, r#""lid":65536"#, "hello.endpoint.rails[0].lid", "65536", 0, 65535),
        (r#""psn":7"#, r#""psn":16777216"#, "hello.endpoint.rails[0].psn", "16777216", 0, 16777215),
        (r#""psn":7"#, r#""psn":-1"#, "hello.endpoint.rails[0].psn", "-1", 0, 16777215),
        (r#""psn":7"#, r#""psn":1.5"#, "hello.endpoint.rails[0].psn", "1.5", 0, 16777215),
        (
            r#""maxMsgSize":65536"#,
            r#""maxMsgSize":0"#,
            "hello.endpoint.maxMsgSize",
            "0",
            1,
            1 << 31,
        ),
        (r#"[5]"#, r#"[4294967296]"#, "hello.buffer.rkeys[0]", "4294967296", 0, u32::MAX.into()),
        (r#""length":8192"#, r#""length":0"#, "hello.buffer.length", "0", 1, u64::MAX - 4096),
    ];
    for (piece, by, at, value, min, max) in cases {
        assert_eq!(spoilt(piece, by), number(at, value, min, max), "{by}");
    }
    // A buffer that wraps around the address space.
    let wraps = spoilt(r#""addr":4096,"length":8192"#, r#""addr":18446744073709551614,"length":2"#);
    assert_eq!(wraps, number("hello.buffer.length", "2", 1, 1));
    let text = spoilt(r#""lid":0"#, r#""lid":70000"#).to_string();
    assert_eq!(
        text,
        "hello.endpoint.rails[0].lid is 70000, and should be a whole number from 0 to 65535"
    );
}

#[test]
fn values_of_another_kind_are_named() {
    let kind = |at: &str, expected, value: &str| HandshakeError::Kind {
        at: at.to_owned(),
        expected,
        value: value.to_owned(),
    };
    let rail = "hello.endpoint.rails[0]";
    assert_eq!(
        spoilt(r#""mtu":4096"#, r#""mtu":1500"#),
        kind(&format!("{rail}.mtu"), "256, 512, 1024, 2048 or 4096", "1500")
    );
    assert_eq!(
        spoilt("fe80::1", "10.0.0.1"),
        kind(&format!("{rail}.gid"), "an IPv6 address", "\"10.0.0.1\"")
    );
    assert_eq!(
        spoilt(r#""spray""#, r#""both""#),
        kind("hello.endpoint.scheme", "\"spray\" or \"dqplb\"", "\"both\"")
    );
    assert_eq!(
        spoilt(r#""lid":0"#, r#""lid":"0""#),
        kind(&format!("{rail}.lid"), "a number", "\"0\"")
    );
    assert_eq!(spoilt("[5]", "5"), kind("hello.buffer.rkeys", "a list", "5"));
    assert_eq!(error("17"), kind("", "an object", "17"));
    assert_eq!(error("{}"), kind("", "an object with one field, the message", "{}"));
    assert!(matches!(error(r#"{"ready":{},"done":{}}"#), HandshakeError::Kind { .. }));
    let lengths =
        |at: &str, length, min, max| HandshakeError::Length { at: at.to_owned(), length, min, max };
    assert_eq!(spoilt("[5]", "[]"), lengths("hello.buffer.rkeys", 0, 1, 8));
    assert_eq!(spoilt("[5]", "[1,2,3,4,5,6,7,8,9]"), lengths("hello.buffer.rkeys", 9, 1, 8));
    let long = format!(r#"{{"failed":{{"reason":"{}"}}}}"#, "x".repeat(1025));
    assert_eq!(error(&long), lengths("failed.reason", 1025, 0, 1024));
}

#[test]
fn sides_without_a_purpose_state_none() {
    let at = "hello.purpose".to_owned();
    let expected = "nothing: neither side asks";
    let asked = spoilt(r#""rkeys":[5]}"#, r#""rkeys":[5]},"purpose":17"#);
    assert_eq!(asked, HandshakeError::Kind { at, expected, value: "17".into() });
    assert!(matches!(error(r#"{"done":{"bytes":5}}"#), HandshakeError::Unknown { .. }));
}

#[test]
fn what_is_not_json_is_refused() {
    let nested = format!("{}{}", "[".repeat(4000), "]".repeat(4000));
    for bad in ["", "{", "\u{0}", r#"{"ready":{}} x"#, r#"{"ready":{},}"#, &nested] {
        assert!(matches!(error(bad), HandshakeError::NotJson { .. }), "{bad}");
    }
    assert!(Message::from_json(b"{\"ready\xff\":{}}").is_err());
}

#[test]
fn a_reason_is_safe_to_print() {
    let text = "\u{1b}[2J".repeat(500) + "\u{9b}";
    let sent = Reason::new(&text).to_string();
    assert!(sent.len() <= MAX_REASON_BYTES && !sent.contains(char::is_control));
    let json = r#"{"failed":{"reason":"a\u001b[2Jb\u202ec"}}"#;
    let Ok(Message::Failed { reason }) = Message::from_json(json.as_bytes()) else { panic!() };
    assert_eq!(reason.to_string(), "a\u{fffd}[2Jb\u{fffd}c");
}

/// Feeds bytes in, `at_once` at a time, and collects the messages.
fn read(mut bytes: &[u8], at_once: usize) -> Result<Vec<Message>, HandshakeError> {
    let mut incoming = Incoming::new();
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let room = incoming.room();
        assert!(!room.is_empty());
        let (piece, rest) = bytes.split_at(at_once.min(bytes.len()).min(room.len()));
        room[..piece.len()].copy_from_slice(piece);
        incoming.filled(piece.len());
        bytes = rest;
        while let Some(message) = incoming.next_message()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

#[test]
fn messages_come_in_their_order_however_the_bytes_come() {
    fn in_order(pieces: usize, failed: bool) -> bool {
        let heal = Message::Heal(HealingMessage::Wanted { rail: RailId::Notify });
        let mut messages = vec![
            Message::Hello(hello(&mut Gen::new(30))),
            Message::Ready {},
            Message::Alive {},
            Message::Alive {},
            heal.clone(),
            Message::Done(NoOutcome {}),
            heal,
        ];
        if failed {
            messages.push(Message::Failed { reason: Reason::new("tired") });
        }
        let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        read(&bytes, 1 + pieces % 4000) == Ok(messages)
    }
    QuickCheck::new().quickcheck(in_order as fn(usize, bool) -> bool);
}

#[test]
fn no_stream_makes_the_receiver_panic_or_run_out_of_room() {
    fn stream(messages: Vec<Message>, at: usize, byte: u8, pieces: usize) -> bool {
        let mut bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let length = bytes.len().max(1);
        if let Some(spoilt) = bytes.get_mut(at % length) {
            *spoilt = byte;
        }
        _ = read(&bytes, 1 + pieces % 9000);
        true
    }
    type Stream = fn(Vec<Message>, usize, u8, usize) -> bool;
    QuickCheck::new().tests(300).quickcheck(stream as Stream);
}

#[test]
fn messages_out_of_turn_are_refused() {
    let hello = Message::Hello(hello(&mut Gen::new(30)));
    let ready = Message::Ready {};
    let done = Message::Done(NoOutcome {});
    let failed = Message::Failed { reason: Reason::new("x") };
    let alive = Message::Alive {};
    let heal = Message::Heal(HealingMessage::Wanted { rail: RailId::Notify });
    let cases: [(&[&Message], &str, &str); 10] = [
        (&[&hello, &heal], "heal", "\"ready\""),
        (&[&hello, &failed, &heal], "heal", "nothing more"),
        (&[&hello, &alive], "alive", "\"ready\""),
        (&[&hello, &ready, &done, &alive], "alive", "nothing more"),
        (&[&ready], "ready", "\"hello\""),
        (&[&hello, &hello], "hello", "\"ready\""),
        (&[&hello, &done], "done", "\"ready\""),
        (&[&hello, &ready, &ready], "ready", "\"done\""),
        (&[&hello, &ready, &done, &done], "done", "nothing more"),
        (&[&failed, &failed], "failed", "nothing more"),
    ];
    for (messages, message, expected) in cases {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| message.encode()).collect();
        assert_eq!(read(&bytes, 4000), Err(HandshakeError::OutOfTurn { message, expected }));
    }
}

#[test]
fn a_note_is_pairs_of_digits_and_not_too_long() {
    let note =
        |bytes: &str| Message::from_json(format!(r#"{{"note":{{"bytes":"{bytes}"}}}}"#).as_bytes());
    assert_eq!(note("00ff7a"), Ok(Message::Note { bytes: HexBytes(vec![0, 255, 0x7a]) }));
    assert_eq!(note(""), Ok(Message::Note { bytes: HexBytes(vec![]) }));
    for bad in ["0", "0g", "FF", "000"] {
        assert!(matches!(note(bad), Err(HandshakeError::Kind { .. })), "{bad}");
    }
    assert!(note(&"00".repeat(MAX_NOTE_BYTES)).is_ok());
    assert!(matches!(note(&"00".repeat(MAX_NOTE_BYTES + 1)), Err(HandshakeError::Length { .. })));
    let longest = Message::Note { bytes: HexBytes(vec![7; MAX_NOTE_BYTES]) }.encode();
    assert!(longest.len() <= HEADER_BYTES + MAX_MESSAGE_BYTES as usize);
}

/// Offers until the other side takes no more, without a wait, and all of it arrives in order.
#[test]
fn what_is_offered_waits_for_the_other_side_and_nobody_waits_for_it() {
    let (mut near, mut far) = Control::<NoPurpose>::pair().unwrap();
    let hello = hello(&mut Gen::new(10));
    let hello = Message::Hello(Hello { session: None, ..hello });
    near.offer(&hello).unwrap();
    near.offer(&Message::Ready {}).unwrap();
    let note = |number: u32| Message::Note { bytes: HexBytes(number.to_be_bytes().repeat(500)) };
    let mut offered = 0;
    while near.go_on_sending().unwrap() {
        near.offer(&note(offered)).unwrap();
        offered += 1;
    }
    assert!(offered > 2, "{offered}");
    assert_eq!(far.try_recv().unwrap(), Some(hello));
    assert_eq!(far.try_recv().unwrap(), Some(Message::Ready {}));
    for number in 0..offered {
        let received = loop {
            if let Some(received) = far.try_recv().unwrap() {
                break received;
            }
            // Goes on with it.
            assert_eq!(near.try_recv().unwrap(), None);
        };
        assert_eq!(received, note(number));
    }
    assert!(near.go_on_sending().unwrap());
    assert_eq!(far.try_recv().unwrap(), None);
}
