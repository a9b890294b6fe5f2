//! The reader of connection cards.

use polyrail::card::ConnectionCard;

/// Reads a connection card. A valid one survives being written and read again; anything else is an
/// error short enough for a terminal.
///
/// # Panics
///
/// If that does not hold.
pub fn card(bytes: &[u8]) {
    match ConnectionCard::from_json(bytes) {
        Ok(card) => assert_eq!(ConnectionCard::from_json(card.to_json().as_bytes()), Ok(card)),
        Err(error) => assert!(error.to_string().len() < 300, "{error}"),
    }
}
