//! The fields of messages: those that are wrong are named, and what peers say is safe to keep and
//! to print.

use super::{Message, error};
use crate::card::CardError;
use crate::link::{
    HEADER_BYTES, HandshakeError, HexBytes, MAX_MESSAGE_BYTES, MAX_NOTE_BYTES, MAX_REASON_BYTES,
    Reason,
};

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
fn the_addresses_of_a_peers_queue_pairs_are_those_of_ip() {
    let meeting = r#""meeting":{"port":7,"key":"00112233445566778899aabbccddeeff"}"#;
    // IPv4, also of RoCE; IPv6 over TCP; a GID of InfiniBand; and what leads to no host by itself.
    let addresses = |[tcp, roce]: [&str; 2], rest: &str| {
        let rail = |gid: &str, more: &str| {
            let rest = r#""lid":0,"mtu":4096,"rdAtomic":16,"psn":7"#;
            format!(r#"{{"device":0,"gid":"{gid}",{rest}{more}}}"#)
        };
        let rails = [rail(tcp, &format!(",{meeting}")), rail(roce, ""), rail(rest, "")];
        let rails = format!(r#""rails":[{}]"#, rails.join(","));
        let (begin, end) = (HELLO.find(r#""rails""#).unwrap(), HELLO.find("]},\"buffer").unwrap());
        let hello = format!("{}{rails}{}", &HELLO[..begin], &HELLO[end + 1..]);
        let Message::Hello(hello) = Message::from_json(hello.as_bytes()).unwrap() else { panic!() };
        hello.reach.ip_addresses().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(addresses(["fd00::1", "::ffff:10.0.0.2"], "fd00::2"), ["fd00::1", "10.0.0.2"]);
    assert_eq!(addresses(["::ffff:10.0.0.2", "::ffff:10.0.0.2"], "::"), ["10.0.0.2"]);
    assert!(addresses(["fe80::1", "::ffff:169.254.0.1"], "::ffff:0.0.0.0").is_empty());
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
        "hello.endpoint.rails[0].lid is 70000, but must be a whole number from 0 to 65535"
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
