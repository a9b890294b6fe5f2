//! Jobs on the wire: whatever a peer sends is checked.

use super::*;
use polyrail::backend::{Gid, Meeting, MeetingKey, Mtu};
use polyrail::card::ConnectionCard;
use polyrail::endpoint::{Address, RailAddress};
use polyrail::link::{HandshakeError, MAX_MESSAGE_BYTES, Reach, Reason};
use polyrail::memory::RemoteBuffer;
use polyrail::virtual_qp::{MAX_RAILS, RailFailure, Scheme};
use quickcheck::{Arbitrary, Gen, QuickCheck};

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

fn hello(g: &mut Gen) -> Hello {
    let qp_nums: Vec<u32> =
        (0..1 + usize::arbitrary(g) % MAX_RAILS).map(|_| u32::arbitrary(g)).collect();
    let card = ConnectionCard {
        qp_nums,
        notify_qp_num: u32::arbitrary(g),
        window: None,
        imm_order: None,
        rail_failure: RailFailure::Fatal,
        cancel_version: 0,
    };
    let endpoint = Address {
        scheme: *g.choose(&[Scheme::Spray, Scheme::Dqplb]).unwrap(),
        max_msg_size: 1 + (u32::arbitrary(g) >> 1),
        rails: card.qp_nums.iter().map(|_| rail(g)).collect(),
        notify: bool::arbitrary(g).then(|| rail(g)),
        card,
    };
    let addr = u64::arbitrary(g) >> 1;
    let rkeys = (0..1 + usize::arbitrary(g) % MAX_RAILS).map(|_| u32::arbitrary(g)).collect();
    let buffer = RemoteBuffer { addr, length: 1 + (u64::arbitrary(g) >> 1), rkeys };
    let purpose = bool::arbitrary(g).then(|| job(g));
    Hello { reach: endpoint.into(), buffer, purpose, session: None }
}

fn job(g: &mut Gen) -> Job {
    let window = 1 + u32::arbitrary(g) % 128;
    if bool::arbitrary(g) {
        let operation = *g.choose(&Operation::ALL).unwrap();
        let any_size = 1 + (u32::arbitrary(g) >> 4);
        let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { any_size };
        let window = 1 + u32::arbitrary(g) % MAX_IN_FLIGHT;
        let answered = !operation.fetches() && bool::arbitrary(g);
        let bidirectional = !answered && bool::arbitrary(g);
        let inline = u32::arbitrary(g) % (MAX_INLINE + 1);
        return Job::Perf(Workload {
            operation,
            message_size,
            window,
            answered,
            bidirectional,
            inline,
        });
    }
    let plan = TreePlan { chunk: MIN_TREE_CHUNK + (u32::arbitrary(g) >> 3), window };
    let overwrite = bool::arbitrary(g);
    match u8::arbitrary(g) % 3 {
        0 => return Job::Tree(TreeJob { plan, overwrite }),
        1 => return Job::Pull(PullJob { plan, path: String::arbitrary(g) }),
        _ => {}
    }
    let total = u64::arbitrary(g) >> 1;
    let chunk = 1 + (u32::arbitrary(g) >> 2);
    let name = FileName::new(&String::arbitrary(g));
    let mode = bool::arbitrary(g).then(|| u16::arbitrary(g) & 0o777);
    Job::Copy(CopyJob { plan: CopyPlan { total, chunk, window }, name, mode, overwrite })
}

/// An arbitrary message for these tests.
#[derive(Clone, Debug)]
struct Any(Message);

impl Arbitrary for Any {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(match u8::arbitrary(g) % 7 {
            0 => Message::Ready {},
            1 => {
                let bytes = u64::arbitrary(g);
                let crc32 = u32::arbitrary(g);
                Message::Done(JobOutcome::Copy(Sum { bytes, crc32 }))
            }
            2 => {
                let posted = u64::arbitrary(g);
                let completed = posted.min(u64::arbitrary(g));
                let nanoseconds = u64::arbitrary(g).max(1);
                let back = bool::arbitrary(g).then_some(Back { posted, completed, nanoseconds });
                Message::Done(JobOutcome::Perf { requests: u64::arbitrary(g), back })
            }
            3 => Message::Alive {},
            5 => Message::Done(JobOutcome::Tree(TreeSum {
                files: u64::arbitrary(g),
                unchanged: u64::arbitrary(g),
                bytes: u64::arbitrary(g),
                skipped: u64::arbitrary(g),
            })),
            4 => Message::Failed { reason: Reason::new(String::arbitrary(g)) },
            _ => Message::Hello(hello(g)),
        })
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
    fn round_trip(Any(message): Any, behind: Vec<u8>) -> bool {
        let mut bytes = message.encode();
        let length = bytes.len();
        bytes.extend(behind);
        Message::decode(&bytes) == Ok(Some((message, length)))
    }
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .tests(500)
        .quickcheck(round_trip as fn(Any, Vec<u8>) -> bool);
}

#[test]
fn a_job_with_a_changed_byte_is_read_or_refused_in_few_words() {
    /// A message with one byte changed, which reaches deeper than noise does.
    fn mutated(Any(message): Any, at: usize, byte: u8) -> bool {
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
        .tests(5000)
        .quickcheck(mutated as fn(Any, usize, u8) -> bool);
}

#[test]
fn the_form_is_the_documented_one() {
    let bytes = Message::Done(JobOutcome::Copy(Sum { bytes: 5, crc32: 7 })).encode();
    assert_eq!(&bytes[..12], b"PLYR\0\0\0\x08\0\0\0\x27");
    assert_eq!(&bytes[12..], br#"{"done":{"copy":{"bytes":5,"crc32":7}}}"#.as_slice());
    let json = |message: Message| String::from_utf8(message.encode()[12..].to_vec()).unwrap();
    assert_eq!(
        json(Message::Done(JobOutcome::Perf { requests: 9, back: None })),
        r#"{"done":{"perf":{"requests":9}}}"#
    );
    let back = Some(Back { posted: 8, completed: 7, nanoseconds: 6 });
    assert_eq!(
        json(Message::Done(JobOutcome::Perf { requests: 9, back })),
        r#"{"done":{"perf":{"requests":9,"back":{"posted":8,"completed":7,"nanoseconds":6}}}}"#
    );
    assert_eq!(json(Message::Alive {}), r#"{"alive":{}}"#);
    let mut hello = hello(&mut Gen::from_size_and_seed(30, 1));
    for operation in Operation::ALL {
        let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { 65536 };
        let workload = Workload::new(operation, message_size, 8).unwrap();
        hello.purpose = Some(Job::Perf(Workload { inline: 64, ..workload }));
        let purpose = format!(
            r#""purpose":{{"perf":{{"operation":"{}","messageSize":{message_size},"window":8,"answered":false,"bidirectional":false,"inline":64}}}}}}}}"#,
            operation.name()
        );
        let said = json(Message::Hello(hello.clone()));
        assert!(said.ends_with(&purpose), "{said}");
    }
}

#[test]
fn the_longest_messages_fit() {
    let mut longest = hello(&mut Gen::from_size_and_seed(100, 1));
    let Reach::Requests(endpoint) = &mut longest.reach else { unreachable!() };
    endpoint.card.qp_nums = vec![u32::MAX; MAX_RAILS];
    endpoint.rails = vec![
        RailAddress {
            device: 7,
            gid: Gid([0xff; 16]),
            lid: u16::MAX,
            mtu: Mtu::Mtu4096,
            psn: 0x00ff_ffff,
            rd_atomic: u8::MAX,
            meeting: Some(Meeting { port: u16::MAX, key: MeetingKey([0xff; 16]) }),
        };
        MAX_RAILS
    ];
    endpoint.notify = endpoint.rails.first().copied();
    longest.buffer.rkeys = vec![u32::MAX; MAX_RAILS];
    longest.purpose = Some(Job::Copy(CopyJob {
        plan: CopyPlan { total: u64::MAX, chunk: u32::MAX, window: u32::MAX },
        name: FileName::new(&"x".repeat(MAX_NAME_BYTES)),
        mode: Some(0o777),
        overwrite: false,
    }));
    let bytes = Message::Hello(longest).encode();
    assert!(bytes.len() < MAX_MESSAGE_BYTES as usize / 2, "{}", bytes.len());
}

const HELLO: &str = r#"{"hello":{"endpoint":{"card":{"notifyQpNum":"0","qpNums":["17"]},"scheme":"spray","maxMsgSize":65536,"rails":[{"device":0,"gid":"fe80::1","lid":0,"mtu":4096,"rdAtomic":16,"psn":7}]},"buffer":{"addr":4096,"length":8192,"rkeys":[5]},"purpose":{"copy":{"plan":{"total":1,"chunk":1,"window":1},"overwrite":true}}}}"#;

/// [`HELLO`], but to measure.
fn perf_hello() -> String {
    let copy = r#"{"copy":{"plan":{"total":1,"chunk":1,"window":1},"overwrite":true}}"#;
    let perf = r#"{"perf":{"operation":"write","messageSize":65536,"window":8,"answered":false,"bidirectional":false,"inline":0}}"#;
    assert!(HELLO.contains(copy));
    HELLO.replacen(copy, perf, 1)
}

/// Returns the error for the hello with one piece replaced.
fn spoilt(piece: &str, by: &str) -> HandshakeError {
    spoilt_in(HELLO, piece, by)
}

fn spoilt_in(hello: &str, piece: &str, by: &str) -> HandshakeError {
    assert!(hello.contains(piece), "{piece}");
    error(&hello.replacen(piece, by, 1))
}

#[test]
fn what_is_to_be_measured_is_checked() {
    let hello = perf_hello();
    let Ok(Message::Hello(read)) = Message::from_json(hello.as_bytes()) else { panic!("{hello}") };
    let workload = Workload::new(Operation::Write, 65536, 8).unwrap();
    assert_eq!(read.purpose, Some(Job::Perf(workload)));
    let at = "hello.purpose.perf";
    let perf = r#""operation":"write","#;
    let missing = HandshakeError::Missing { at: format!("{at}.operation") };
    assert_eq!(spoilt_in(&hello, perf, ""), missing);
    let kind = |piece, by, field: &str| {
        let HandshakeError::Kind { at: place, .. } = spoilt_in(&hello, piece, by) else {
            panic!("{piece}: {by}")
        };
        assert_eq!(place, format!("{at}.{field}"));
    };
    kind("\"write\"", "\"atomic\"", "operation");
    for (piece, by, field, value, max) in [
        ("65536,\"window\"", "0,\"window\"", "messageSize", "0", 256 << 20),
        ("65536,\"window\"", "268435457,\"window\"", "messageSize", "268435457", 256 << 20),
        ("\"window\":8", "\"window\":16385", "window", "16385", MAX_IN_FLIGHT.into()),
    ] {
        let at = format!("{at}.{field}");
        let value = value.to_owned();
        assert_eq!(spoilt_in(&hello, piece, by), HandshakeError::Number { at, value, min: 1, max });
    }
    kind("\"answered\":false", "\"answered\":1", "answered");
    kind(
        "write\",\"messageSize\":65536,\"window\":8,\"answered\":false",
        "read\",\"messageSize\":65536,\"window\":8,\"answered\":true",
        "answered",
    );
    let one_way = "\"answered\":false,\"bidirectional\":false";
    kind(one_way, "\"answered\":true,\"bidirectional\":true", "bidirectional");
    for (piece, by, field, value, min, max) in [
        ("write\"", "fetch-add\"", "messageSize", "65536", 8, 8),
        ("\"inline\":0", "\"inline\":4097", "inline", "4097", 0, MAX_INLINE.into()),
    ] {
        let at = format!("{at}.{field}");
        let value = value.to_owned();
        assert_eq!(spoilt_in(&hello, piece, by), HandshakeError::Number { at, value, min, max });
    }
    let unknown = spoilt_in(&hello, perf, r#""operation":"write","threads":2,"#);
    assert_eq!(unknown, HandshakeError::Unknown { at: at.to_owned(), name: "\"threads\"".into() });
}

#[test]
fn a_connection_has_one_purpose() {
    let perf = r#""purpose":{"perf":{"operation":"write","messageSize":1,"window":8},"copy""#;
    for (piece, by) in [
        (r#""purpose":{"copy""#, perf),
        (r#"{"copy":{"plan":{"total":1,"chunk":1,"window":1},"overwrite":true}}"#, "{}"),
    ] {
        let HandshakeError::Kind { at, expected, .. } = spoilt(piece, by) else { panic!("{by}") };
        assert_eq!(
            (at.as_str(), expected),
            ("hello.purpose", "an object with one field, the purpose")
        );
    }
    let name = "\"move\"".to_owned();
    let unknown = HandshakeError::Unknown { at: "hello.purpose".into(), name };
    assert_eq!(spoilt("\"copy\"", "\"move\""), unknown);
    assert!(matches!(error(r#"{"done":{"bytes":5,"crc32":7}}"#), HandshakeError::Unknown { .. }));
    assert!(matches!(error(r#"{"done":{"perf":{}}}"#), HandshakeError::Missing { .. }));
    for back in [
        r#"{"posted":1,"completed":2,"nanoseconds":3}"#,
        r#"{"posted":1,"completed":1,"nanoseconds":0}"#,
    ] {
        let outcome = format!(r#"{{"done":{{"perf":{{"requests":1,"back":{back}}}}}}}"#);
        assert!(matches!(error(&outcome), HandshakeError::Number { .. }), "{outcome}");
    }
}

#[test]
fn numbers_out_of_range_are_named_with_their_value() {
    for (piece, by, field, max) in [
        (r#""chunk":1"#, r#""chunk":0"#, "chunk", 1 << 30),
        (r#""window":1"#, r#""window":129"#, "window", 128),
    ] {
        let value = by.rsplit(':').next().unwrap().to_owned();
        let at = format!("hello.purpose.copy.plan.{field}");
        assert_eq!(spoilt(piece, by), HandshakeError::Number { at, value, min: 1, max }, "{by}");
    }
}

#[test]
fn a_name_leads_nowhere_else() {
    let long = "x".repeat(255);
    for good in ["model.bin", "a", &long, "a b", "übung", "a..b"] {
        assert_eq!(FileName::new(good).unwrap().as_str(), good);
    }
    let longer = "x".repeat(256);
    for bad in ["", ".", "..", "/etc/passwd", "a/b", "../a", ".bashrc", "a\0", "a\n", &longer] {
        assert_eq!(FileName::new(bad), None, "{bad}");
        let text = serde_json::to_string(bad).unwrap();
        let HandshakeError::Kind { at, .. } =
            spoilt(r#""plan":"#, &format!(r#""name":{text},"plan":"#))
        else {
            panic!("{bad}")
        };
        assert_eq!(at, "hello.purpose.copy.name");
    }
}
