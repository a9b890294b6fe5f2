//! Connection cards, which the two ends of a virtual queue pair exchange.
//!
//! A card is JSON in the reference implementation's format, with optional polyrail fields that the
//! reference ignores: two for DQPLB, the byte order of immediates (`"big"` or `"little"`), and the
//! effect of a rail's failure (`"fatal"` or `"reroute"`). A card without the last field, such as
//! the reference's, is of an end whose rails fail for good.
//!
//! ```json
//! {"notifyQpNum":"0000000005","qpNums":["0000000017"],"recvsPerRail":"0000000100","window":"0000008192",
//!  "immOrder":"big","railFailure":"reroute"}
//! ```
//!
//! # Interoperability
//!
//! The peer may run the reference implementation, the public VirtualQp in C++. Its cards do not
//! contain everything, so programs have to configure the same scheme and maximum fragment at both
//! ends, and the address of the queue pairs ([`Address`](crate::endpoint::Address)).
//!
//! - **Notify queue pairs.** The reference always has one, even if the scheme does not use it; the
//!   number on its card is then ignored. It connects its notify queue pair to the number on
//!   polyrail's card, which is 0 if polyrail needs none, unless
//!   [`always_notify_qp`](crate::endpoint::EndpointBuilder::always_notify_qp) creates one.
//! - **Users' immediates.** The reference passes the number to its NIC as it is in memory, so it is
//!   little endian on the wire between little-endian hosts. Polyrail sends big endian. Toward the
//!   reference, set [`imm_order`](crate::endpoint::EndpointBuilder::imm_order) to
//!   [`LittleEndian`](crate::verbs::ImmOrder::LittleEndian). Between two polyrail ends, cards show
//!   a difference, and connecting fails; the reference's cards do not show it.
//! - **Sequence numbers** of DQPLB always travel as the reference sends them
//!   (`scheme/dqplb/sequence.rs` in the engine). A card without a window is treated as the
//!   reference's, whose receiver has no limit.
//!
//! # Reading
//!
//! Cards come from peers and are parsed strictly: any deviation is a typed error that names the
//! field, and no input makes the parser panic or allocate much memory.

use crate::json::Value;
use polyrail_core::verbs::ImmOrder;
use polyrail_core::virtual_qp::{MAX_RAILS, PeerWindow, RailFailure};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Bytes of the longest text that is read. A card of ours has about 200; the rest is room for
/// fields that others may add.
pub const MAX_CARD_BYTES: usize = 4096;

const QP_NUMS: &str = "qpNums";
const NOTIFY_QP_NUM: &str = "notifyQpNum";
const WINDOW: &str = "window";
const RECVS_PER_RAIL: &str = "recvsPerRail";
const IMM_ORDER: &str = "immOrder";
const RAIL_FAILURE: &str = "railFailure";
const CANCEL_VERSION: &str = "cancelVersion";

/// How cards write the order of immediates.
const IMM_ORDERS: [(ImmOrder, &str); 2] =
    [(ImmOrder::BigEndian, "big"), (ImmOrder::LittleEndian, "little")];

/// How cards write what a rail's failure does.
const RAIL_FAILURES: [(RailFailure, &str); 2] =
    [(RailFailure::Fatal, "fatal"), (RailFailure::Reroute, "reroute")];

/// The physical queue pairs of a virtual one, and the receiver's parameters for a DQPLB sender.
///
/// ```
/// use polyrail::card::ConnectionCard;
///
/// let text = r#"{"notifyQpNum":"0000000005","qpNums":["0000000017"]}"#;
/// let card = ConnectionCard::from_json(text.as_bytes())?;
/// assert_eq!((card.qp_nums.as_slice(), card.notify_qp_num), (&[17][..], 5));
/// assert_eq!(card.to_json(), text);
/// # Ok::<(), polyrail::card::CardError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionCard {
    /// Numbers of the rails' queue pairs; the i-th connects to the peer's i-th. 1 to
    /// [`MAX_RAILS`] of them.
    pub qp_nums: Vec<u32>,
    /// Number of the notify queue pair; 0 if there is none. It need not be in use.
    pub notify_qp_num: u32,
    /// The receive window, if the card has it; the reference's does not.
    pub window: Option<PeerWindow>,
    /// How users' immediates travel, if the card has it; the reference's does not.
    pub imm_order: Option<ImmOrder>,
    /// What a rail's failure does; [`RailFailure::Fatal`] if the card does not contain the field.
    pub rail_failure: RailFailure,
    /// How this end fences rails to take requests back, a
    /// [`CANCEL_VERSION`](polyrail_core::virtual_qp::CANCEL_VERSION); 0 if the card does not contain
    /// the field.
    pub cancel_version: u32,
}

/// Text that is not a connection card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The text is longer than any card.
    #[error("the connection card has {length} bytes, but the limit is {MAX_CARD_BYTES}")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// Not a JSON object.
    #[error("the connection card is not a JSON object: {reason}")]
    NotAnObject {
        /// The JSON reader's message, with the position.
        reason: String,
    },
    /// A field is not there. The two fields about the window come together.
    #[error("the connection card has no field {field}")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field is there twice.
    #[error("the connection card has the field {field} twice")]
    Duplicate {
        /// Its name.
        field: &'static str,
    },
    /// A field, or an entry of its list, is not a string of decimal digits below 2^32.
    #[error(
        "field {field} of the connection card: {value} is not a string of 1 to 10 decimal digits below 2^32"
    )]
    NotANumber {
        /// Its name.
        field: &'static str,
        /// What is there instead, as JSON; cut off if it is long.
        value: String,
    },
    /// A field is not a list.
    #[error("field {field} of the connection card: {value} is not a list")]
    NotAList {
        /// Its name.
        field: &'static str,
        /// What is there instead, as JSON; cut off if it is long.
        value: String,
    },
    /// The order of immediates is neither of the two.
    #[error("field immOrder of the connection card: {value} is neither \"big\" nor \"little\"")]
    NotAnOrder {
        /// What is there instead, as JSON; cut off if it is long.
        value: String,
    },
    /// What a rail's failure does is neither of the two.
    #[error(
        "field railFailure of the connection card: {value} is neither \"fatal\" nor \"reroute\""
    )]
    NotARailFailure {
        /// What is there instead, as JSON; cut off if it is long.
        value: String,
    },
    /// No rails, or too many.
    #[error("the connection card lists {count} queue pairs, but 1 to {MAX_RAILS} are allowed")]
    Rails {
        /// How many.
        count: usize,
    },
}

impl ConnectionCard {
    /// The window of the receiver that sent this card: its own, or the reference's.
    pub fn peer_window(&self) -> PeerWindow {
        self.window.unwrap_or(PeerWindow::REFERENCE)
    }

    /// Reads a card.
    ///
    /// # Errors
    ///
    /// See [`CardError`]. Nothing but a card is accepted.
    pub fn from_json(text: &[u8]) -> Result<Self, CardError> {
        if text.len() > MAX_CARD_BYTES {
            return Err(CardError::TooLong { length: text.len() });
        }
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| CardError::NotAnObject { reason: error.to_string() })?;
        Self::from_value(&value)
    }

    /// Reads a card that is part of something larger.
    pub(crate) fn from_value(value: &Value) -> Result<Self, CardError> {
        match value {
            Value::Object(fields) => Fields(fields).card(),
            other => {
                Err(CardError::NotAnObject { reason: format!("{} is not one", other.shown()) })
            }
        }
    }

    /// Writes the card in the reference's form.
    pub fn to_json(&self) -> String {
        // Strings and lists of strings: nothing here can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for ConnectionCard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(NOTIFY_QP_NUM, &Digits(self.notify_qp_num))?;
        let qp_nums: Vec<Digits> = self.qp_nums.iter().copied().map(Digits).collect();
        map.serialize_entry(QP_NUMS, &qp_nums)?;
        if let Some(window) = self.window {
            map.serialize_entry(RECVS_PER_RAIL, &Digits(window.receives_per_rail))?;
            map.serialize_entry(WINDOW, &Digits(window.window))?;
        }
        for (_, name) in IMM_ORDERS.iter().filter(|(order, _)| Some(*order) == self.imm_order) {
            map.serialize_entry(IMM_ORDER, name)?;
        }
        // What is usual is not written: such a card is as it always was.
        if self.rail_failure == RailFailure::Reroute {
            map.serialize_entry(RAIL_FAILURE, "reroute")?;
        }
        if self.cancel_version > 0 {
            map.serialize_entry(CANCEL_VERSION, &Digits(self.cancel_version))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ConnectionCard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A number of 32 bits as the reference writes it: decimal digits in a string, ten of them.
struct Digits(u32);

impl Serialize for Digits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:010}", self.0))
    }
}

/// The fields of an object as they came, repeated ones included.
struct Fields<'v>(&'v [(String, Value)]);

impl Fields<'_> {
    fn card(&self) -> Result<ConnectionCard, CardError> {
        let window = match (self.optional(WINDOW)?, self.optional(RECVS_PER_RAIL)?) {
            (Some(window), Some(receives)) => Some(PeerWindow {
                window: number(WINDOW, window)?,
                receives_per_rail: number(RECVS_PER_RAIL, receives)?,
            }),
            (None, None) => None,
            (Some(_), None) => return Err(CardError::Missing { field: RECVS_PER_RAIL }),
            (None, Some(_)) => return Err(CardError::Missing { field: WINDOW }),
        };
        Ok(ConnectionCard {
            qp_nums: qp_nums(self.required(QP_NUMS)?)?,
            notify_qp_num: number(NOTIFY_QP_NUM, self.required(NOTIFY_QP_NUM)?)?,
            window,
            imm_order: self.optional(IMM_ORDER)?.map(imm_order).transpose()?,
            rail_failure: self
                .optional(RAIL_FAILURE)?
                .map_or(Ok(RailFailure::Fatal), rail_failure)?,
            cancel_version: self
                .optional(CANCEL_VERSION)?
                .map_or(Ok(0), |version| number(CANCEL_VERSION, version))?,
        })
    }

    fn optional(&self, field: &'static str) -> Result<Option<&Value>, CardError> {
        let mut found = self.0.iter().filter(|(name, _)| name == field);
        let first = found.next();
        if found.next().is_some() {
            return Err(CardError::Duplicate { field });
        }
        Ok(first.map(|(_, value)| value))
    }

    fn required(&self, field: &'static str) -> Result<&Value, CardError> {
        self.optional(field)?.ok_or(CardError::Missing { field })
    }
}

fn qp_nums(value: &Value) -> Result<Vec<u32>, CardError> {
    let Value::List(list) = value else {
        return Err(CardError::NotAList { field: QP_NUMS, value: value.shown() });
    };
    if !(1..=MAX_RAILS).contains(&list.len()) {
        return Err(CardError::Rails { count: list.len() });
    }
    list.iter().map(|entry| number(QP_NUMS, entry)).collect()
}

fn imm_order(value: &Value) -> Result<ImmOrder, CardError> {
    one_of(&IMM_ORDERS, value).ok_or_else(|| CardError::NotAnOrder { value: value.shown() })
}

fn rail_failure(value: &Value) -> Result<RailFailure, CardError> {
    one_of(&RAIL_FAILURES, value).ok_or_else(|| CardError::NotARailFailure { value: value.shown() })
}

/// Returns the value with this name.
fn one_of<T: Copy>(names: &[(T, &str)], value: &Value) -> Option<T> {
    let Value::Text(text) = value else { return None };
    names.iter().find(|(_, name)| name == text).map(|(known, _)| *known)
}

fn number(field: &'static str, value: &Value) -> Result<u32, CardError> {
    let digits = |text: &str| {
        (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let number = match value {
        Value::Text(text) if digits(text) => text.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| CardError::NotANumber { field, value: value.shown() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::{Arbitrary, Gen, QuickCheck};

    impl Arbitrary for ConnectionCard {
        fn arbitrary(g: &mut Gen) -> Self {
            let rails = 1 + usize::arbitrary(g) % MAX_RAILS;
            let window = Option::<(u32, u32)>::arbitrary(g);
            Self {
                qp_nums: (0..rails).map(|_| u32::arbitrary(g)).collect(),
                notify_qp_num: u32::arbitrary(g),
                window: window
                    .map(|(window, receives_per_rail)| PeerWindow { window, receives_per_rail }),
                imm_order: *g
                    .choose(&[None, Some(ImmOrder::BigEndian), Some(ImmOrder::LittleEndian)])
                    .unwrap(),
                rail_failure: *g.choose(&[RailFailure::Fatal, RailFailure::Reroute]).unwrap(),
                cancel_version: u32::arbitrary(g) % 3,
            }
        }
    }

    fn error(text: &str) -> CardError {
        match ConnectionCard::from_json(text.as_bytes()) {
            Err(error) => error,
            Ok(card) => panic!("{text} was read as {card:?}"),
        }
    }

    #[test]
    fn the_references_form_is_read_and_written() {
        let text = r#"{"notifyQpNum":"0000000005","qpNums":["0000000017","4294967295"]}"#;
        let card = ConnectionCard::from_json(text.as_bytes()).unwrap();
        assert_eq!(card.qp_nums, [17, u32::MAX]);
        assert_eq!(card.notify_qp_num, 5);
        assert_eq!(card.peer_window(), PeerWindow::REFERENCE);
        assert_eq!(card.to_json(), text);
    }

    #[test]
    fn key_order_spaces_and_foreign_fields_do_not_matter() {
        let text = r#" { "x": [{}], "qpNums" : [ "17" ], "notifyQpNum" : "0" } "#;
        let card = ConnectionCard::from_json(text.as_bytes()).unwrap();
        assert_eq!((card.qp_nums, card.notify_qp_num), (vec![17], 0));
    }

    #[test]
    fn our_fields_travel() {
        let window = PeerWindow { window: 8192, receives_per_rail: 100 };
        let card = ConnectionCard {
            qp_nums: vec![1, 2],
            notify_qp_num: 0,
            window: Some(window),
            imm_order: Some(ImmOrder::LittleEndian),
            rail_failure: RailFailure::Reroute,
            cancel_version: 1,
        };
        let text = card.to_json();
        assert!(text.contains(r#""railFailure":"reroute""#), "{text}");
        assert!(text.contains(r#""cancelVersion":"0000000001""#), "{text}");
        assert!(text.contains(r#""immOrder":"little""#), "{text}");
        assert!(text.contains(r#""window":"0000008192""#), "{text}");
        assert!(text.contains(r#""recvsPerRail":"0000000100""#), "{text}");
        assert_eq!(ConnectionCard::from_json(text.as_bytes()).unwrap(), card);
    }

    #[test]
    fn the_order_of_immediates_is_one_of_two() {
        let card =
            |order: &str| format!(r#"{{"notifyQpNum":"0","qpNums":["1"],"immOrder":{order}}}"#);
        let read = |order| ConnectionCard::from_json(card(order).as_bytes()).unwrap().imm_order;
        assert_eq!(read(r#""big""#), Some(ImmOrder::BigEndian));
        assert_eq!(read(r#""little""#), Some(ImmOrder::LittleEndian));
        for bad in [r#""Big""#, r#""""#, r#""host""#, "1", "null", "[]", r#"["big"]"#] {
            assert_eq!(error(&card(bad)), CardError::NotAnOrder { value: bad.into() });
        }
        let twice = r#"{"notifyQpNum":"1","qpNums":["1"],"immOrder":"big","immOrder":"big"}"#;
        assert_eq!(error(twice), CardError::Duplicate { field: "immOrder" });
    }

    #[test]
    fn what_a_rails_failure_does_is_one_of_two_and_fatal_where_it_is_not_said() {
        let with = |fields: &str| format!(r#"{{"notifyQpNum":"0","qpNums":["1"]{fields}}}"#);
        let read = |text: &str| ConnectionCard::from_json(text.as_bytes()).unwrap().rail_failure;
        let old = with("");
        assert_eq!(read(&old), RailFailure::Fatal);
        assert_eq!(read(&with(r#","railFailure":"fatal""#)), RailFailure::Fatal);
        assert_eq!(read(&with(r#","railFailure":"reroute""#)), RailFailure::Reroute);
        for bad in [r#""Reroute""#, r#""""#, "true", "null", "[]"] {
            let text = with(&format!(r#","railFailure":{bad}"#));
            assert_eq!(error(&text), CardError::NotARailFailure { value: bad.into() });
        }
        let twice = with(r#","railFailure":"fatal","railFailure":"reroute""#);
        assert_eq!(error(&twice), CardError::Duplicate { field: "railFailure" });
        let card = ConnectionCard::from_json(old.as_bytes()).unwrap();
        assert!(!card.to_json().contains("railFailure"), "{}", card.to_json());
    }

    #[test]
    fn a_card_without_a_version_of_cancel_is_of_an_end_that_knows_none() {
        let with = |fields: &str| format!(r#"{{"notifyQpNum":"0","qpNums":["1"]{fields}}}"#);
        let read = |text: &str| ConnectionCard::from_json(text.as_bytes()).unwrap();
        assert_eq!(read(&with("")).cancel_version, 0);
        assert!(!read(&with("")).to_json().contains("cancelVersion"));
        assert_eq!(read(&with(r#","cancelVersion":"7""#)).cancel_version, 7);
        for bad in ["1", "null", r#""-1""#, r#""4294967296""#] {
            let value = bad.to_owned();
            let text = with(&format!(r#","cancelVersion":{bad}"#));
            assert_eq!(error(&text), CardError::NotANumber { field: "cancelVersion", value });
        }
        let twice = with(r#","cancelVersion":"1","cancelVersion":"1""#);
        assert_eq!(error(&twice), CardError::Duplicate { field: "cancelVersion" });
    }

    /// Defect 20 of the [reference](polyrail_core::docs::reference): numbers that it reads in part.
    #[test]
    fn defect_20_what_is_not_a_number_is_refused_by_name_and_value() {
        for bad in ["12abc", "-1", "+1", "4294967296", "99999999999", "", " 1", "1.0", "0x10"] {
            let value = format!("{bad:?}");
            let refused = |field| CardError::NotANumber { field, value: value.clone() };
            let text = format!(r#"{{"notifyQpNum":"{bad}","qpNums":["0000000017"]}}"#);
            assert_eq!(error(&text), refused("notifyQpNum"));
            let text = format!(r#"{{"notifyQpNum":"0","qpNums":["1","{bad}"]}}"#);
            assert_eq!(error(&text), refused("qpNums"));
        }
    }

    #[test]
    fn defect_20_entries_that_are_not_strings_are_refused() {
        for bad in ["17", "null", "[]", "{}", "true", "1.5", r#"["17"]"#] {
            let text = format!(r#"{{"notifyQpNum":"0","qpNums":[{bad}]}}"#);
            let refused = CardError::NotANumber { field: "qpNums", value: bad.into() };
            assert_eq!(error(&text), refused);
        }
        let refused = CardError::NotANumber { field: "notifyQpNum", value: "5".into() };
        assert_eq!(error(r#"{"notifyQpNum":5,"qpNums":["1"]}"#), refused);
        let refused = CardError::NotAList { field: "qpNums", value: r#""1""#.into() };
        assert_eq!(error(r#"{"notifyQpNum":"5","qpNums":"1"}"#), refused);
    }

    #[test]
    fn missing_and_repeated_fields_are_refused() {
        let missing = |field| CardError::Missing { field };
        assert_eq!(error(r#"{"qpNums":["1"]}"#), missing("notifyQpNum"));
        assert_eq!(error(r#"{"notifyQpNum":"1"}"#), missing("qpNums"));
        let half = r#"{"notifyQpNum":"1","qpNums":["1"],"window":"9"}"#;
        assert_eq!(error(half), missing("recvsPerRail"));
        let twice = r#"{"notifyQpNum":"1","qpNums":["1"],"qpNums":["1"]}"#;
        assert_eq!(error(twice), CardError::Duplicate { field: "qpNums" });
    }

    #[test]
    fn counts_and_lengths_are_bounded() {
        assert_eq!(error(r#"{"notifyQpNum":"1","qpNums":[]}"#), CardError::Rails { count: 0 });
        let nine = [r#""1""#; 9].join(",");
        let nine = format!(r#"{{"notifyQpNum":"1","qpNums":[{nine}]}}"#);
        assert_eq!(error(&nine), CardError::Rails { count: 9 });
        let long = " ".repeat(MAX_CARD_BYTES + 1);
        assert_eq!(error(&long), CardError::TooLong { length: MAX_CARD_BYTES + 1 });
        let text = error(&format!("\"{}\"", "x".repeat(600))).to_string();
        assert!(text.len() < 200, "{text}");
        let digits = "1".repeat(3000);
        let shown = error(&format!(r#"{{"notifyQpNum":"{digits}","qpNums":["1"]}}"#)).to_string();
        assert!(shown.len() < 200, "{shown}");
    }

    #[test]
    fn what_is_not_a_json_object_is_refused() {
        let nested = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
        let after = r#"{"notifyQpNum":"1","qpNums":["1"]} x"#;
        let comma = r#"{"notifyQpNum":"1","qpNums":["1"],}"#;
        for bad in ["", "{", "[]", "17", r#""x""#, "\u{0}", comma, after, &nested] {
            assert!(matches!(error(bad), CardError::NotAnObject { .. }), "{bad}");
        }
    }

    #[test]
    fn any_card_survives_the_round_trip() {
        fn round_trip(card: ConnectionCard) -> bool {
            ConnectionCard::from_json(card.to_json().as_bytes()) == Ok(card)
        }
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .quickcheck(round_trip as fn(ConnectionCard) -> bool);
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        fn any_bytes(bytes: Vec<u8>) -> bool {
            _ = ConnectionCard::from_json(&bytes);
            true
        }
        /// A card with one byte changed, which reaches deeper than noise does.
        fn mutated(card: ConnectionCard, at: usize, byte: u8) -> bool {
            let mut text = card.to_json().into_bytes();
            let length = text.len();
            text[at % length] = byte;
            match ConnectionCard::from_json(&text) {
                Ok(card) => ConnectionCard::from_json(card.to_json().as_bytes()) == Ok(card),
                Err(error) => error.to_string().len() < 300,
            }
        }
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .tests(2000)
            .quickcheck(any_bytes as fn(Vec<u8>) -> bool);
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .tests(5000)
            .quickcheck(mutated as fn(ConnectionCard, usize, u8) -> bool);
    }
}
