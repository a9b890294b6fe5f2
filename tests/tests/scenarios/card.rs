//! The connection card is read strictly. `core/docs/reference.md`, defect 20; `core/docs/wire.md`,
//! "Connection cards".

use polyrail::card::{CardError, ConnectionCard, MAX_CARD_BYTES};
use polyrail_core::virtual_qp::{MAX_RAILS, PeerWindow, RailFailure};

fn read(text: &str) -> Result<ConnectionCard, CardError> {
    ConnectionCard::from_json(text.as_bytes())
}

/// A card with this as its only queue pair number, as JSON.
fn with_number(number: &str) -> Result<ConnectionCard, CardError> {
    read(&format!(r#"{{"notifyQpNum":"0000000005","qpNums":[{number}]}}"#))
}

#[test]
fn defect_20_numbers_of_a_card_are_decimal_digits_below_2_to_the_32() {
    assert_eq!(with_number(r#""0000000017""#).unwrap().qp_nums, [17]);
    assert_eq!(with_number(r#""17""#).unwrap().qp_nums, [17]);
    assert_eq!(with_number(r#""4294967295""#).unwrap().qp_nums, [u32::MAX]);
    let strings = [
        r#""12abc""#,
        r#""-1""#,
        r#""+1""#,
        r#""""#,
        r#"" 1""#,
        r#""1 ""#,
        r#""0x1""#,
        r#""1.0""#,
        r#""4294967296""#,
        r#""18446744073709551617""#,
        r#""00000000017""#,
        r#""\u0661""#, // a digit, but not an ASCII one
    ];
    let others = ["17", "null", "true", "[]", "{}", "1e3", r#"["17"]"#];
    for number in strings.into_iter().chain(others) {
        let refused = with_number(number);
        let is_typed = matches!(refused, Err(CardError::NotANumber { field: "qpNums", .. }));
        assert!(is_typed, "{number}: {refused:?}");
    }
}

#[test]
fn defect_20_a_card_has_a_bounded_number_of_queue_pairs() {
    let card = |count: usize| {
        let numbers = vec![r#""1""#; count].join(",");
        with_number(&numbers).map(|card| card.qp_nums.len())
    };
    assert_eq!(card(0), Err(CardError::Rails { count: 0 }));
    assert_eq!(card(MAX_RAILS), Ok(MAX_RAILS));
    assert_eq!(card(MAX_RAILS + 1), Err(CardError::Rails { count: MAX_RAILS + 1 }));
    let length = MAX_CARD_BYTES + 1;
    assert_eq!(read(&" ".repeat(length)), Err(CardError::TooLong { length }));
}

#[test]
fn defect_20_text_that_is_not_a_card_is_a_typed_error() {
    for text in ["", "17", "[]", "null", r#"{"qpNums""#, r#"{"qpNums":["1"]} x"#, "\u{0}"] {
        assert!(matches!(read(text), Err(CardError::NotAnObject { .. })), "{text}");
    }
    assert!(matches!(ConnectionCard::from_json(&[0xFF, 0xFE]), Err(CardError::NotAnObject { .. })));
    let missing = |field| Err(CardError::Missing { field });
    assert_eq!(read(r#"{"qpNums":["1"]}"#), missing("notifyQpNum"));
    assert_eq!(read(r#"{"notifyQpNum":"1"}"#), missing("qpNums"));
    let twice = r#"{"notifyQpNum":"1","qpNums":["1"],"qpNums":["2"]}"#;
    assert_eq!(read(twice), Err(CardError::Duplicate { field: "qpNums" }));
    let no_list = read(r#"{"notifyQpNum":"1","qpNums":"1"}"#);
    assert!(matches!(no_list, Err(CardError::NotAList { field: "qpNums", .. })));
}

/// Deep nesting and endless text in an unknown field.
#[test]
fn defect_20_hostile_texts_do_no_harm() {
    let nested = format!(r#"{{"x":{}"#, "[".repeat(MAX_CARD_BYTES - 10));
    assert!(read(&nested).is_err());
    let long = format!(r#"{{"notifyQpNum":"1","qpNums":["{}"]}}"#, "9".repeat(3000));
    let Err(CardError::NotANumber { value, .. }) = read(&long) else { panic!("not refused") };
    assert!(value.len() < 200, "an error message stays readable");
}

#[test]
fn defect_20_the_references_form_is_read_and_written() {
    let text = r#"{"notifyQpNum":"0000000005","qpNums":["0000000017","4294967295"]}"#;
    let card = read(text).unwrap();
    assert_eq!((card.notify_qp_num, card.qp_nums.as_slice()), (5, &[17, u32::MAX][..]));
    assert_eq!((card.window, card.peer_window()), (None, PeerWindow::REFERENCE));
    assert_eq!(card.imm_order, None);
    assert_eq!(card.to_json(), text);
    let reordered = r#" {"qpNums": ["0000000017", "4294967295"], "notifyQpNum": "5", "more": 1} "#;
    assert_eq!(read(reordered).unwrap(), card, "key order and further fields do not matter");
}

#[test]
fn defect_20_the_window_is_part_of_the_card() {
    let window = Some(PeerWindow { window: 8192, receives_per_rail: 100 });
    let card = ConnectionCard {
        qp_nums: vec![1],
        notify_qp_num: 0,
        window,
        imm_order: None,
        rail_failure: RailFailure::Reroute,
        cancel_version: 1,
    };
    assert_eq!(read(&card.to_json()).unwrap(), card);
    let half = r#"{"notifyQpNum":"1","qpNums":["1"],"window":"1"}"#;
    assert_eq!(read(half), Err(CardError::Missing { field: "recvsPerRail" }));
}
