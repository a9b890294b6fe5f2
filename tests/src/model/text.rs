//! Readers of text that comes from outside.

use polyrail::card::ConnectionCard;
use polyrail::size::{human_size, parse_size};

/// Reads a connection card. What is one survives being written and read again; what is none is an
/// error of a length that fits a terminal.
///
/// # Panics
///
/// If that is not so.
pub fn card(bytes: &[u8]) {
    match ConnectionCard::from_json(bytes) {
        Ok(card) => assert_eq!(ConnectionCard::from_json(card.to_json().as_bytes()), Ok(card)),
        Err(error) => assert!(error.to_string().len() < 300, "{error}"),
    }
}

/// Reads a size, and computes it anew from its digits.
///
/// # Panics
///
/// If both disagree.
pub fn size(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match parse_size(text) {
        Ok(size) => {
            let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
            let number: u128 = text[..text.len() - unit.len()].parse().expect("digits");
            let letter = unit.trim_start().chars().next().unwrap_or('B').to_ascii_uppercase();
            let power = "BKMGT".find(letter).expect("a unit") as u32;
            assert_eq!(u128::from(size), number * 1024u128.pow(power), "{text}");
            assert!(human_size(size).len() < 30);
        }
        Err(error) => assert!(error.to_string().len() < 500, "{error}"),
    }
}
