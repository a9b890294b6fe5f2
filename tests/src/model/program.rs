//! The program's readers of text that comes from outside.

use polyrail::link::HandshakeError;
use polyrail_program::job::{Incoming, Message};
use polyrail_program::size::{human_size, parse_size};

/// Reads a message of the exchange between processes, and then a stream of them: at once, and in
/// pieces whose length is the first byte.
///
/// # Panics
///
/// If a message does not survive being written and read again, if the pieces in which a stream
/// arrives make a difference, or if an error does not fit a terminal.
pub fn handshake(bytes: &[u8]) {
    match Message::from_json(bytes) {
        Ok(message) => {
            let frame = message.encode();
            let length = frame.len();
            assert_eq!(Message::decode(&frame), Ok(Some((message, length))));
        }
        Err(error) => assert_short(&error),
    }
    let Some((&piece, stream)) = bytes.split_first() else { return };
    let (whole, its_end) = read_stream(stream, usize::MAX);
    let (pieces, their_end) = read_stream(stream, usize::from(piece) + 1);
    assert_eq!(whole, pieces);
    // What is shown of a peer that is not polyrail depends on how much of it had come.
    let kind = |end: &Option<HandshakeError>| end.as_ref().map(std::mem::discriminant);
    assert_eq!(kind(&its_end), kind(&their_end));
}

/// The messages of a stream that arrives in pieces of `piece` bytes, and the error that ends it.
fn read_stream(mut stream: &[u8], piece: usize) -> (Vec<Message>, Option<HandshakeError>) {
    let mut incoming = Incoming::new();
    let mut messages = Vec::new();
    loop {
        match incoming.next_message() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => {
                let room = incoming.room();
                let length = room.len().min(piece).min(stream.len());
                if length == 0 {
                    assert!(stream.is_empty(), "there is room for a whole message");
                    return (messages, None);
                }
                let (next, rest) = stream.split_at(length);
                room[..length].copy_from_slice(next);
                incoming.filled(length);
                stream = rest;
            }
            Err(error) => {
                assert_short(&error);
                return (messages, Some(error));
            }
        }
    }
}

fn assert_short(error: &HandshakeError) {
    let text = error.to_string();
    assert!(text.len() < 500 && !text.contains(char::is_control), "{text:?}");
}

/// Reads a size, and computes it again from its digits.
///
/// # Panics
///
/// If the two disagree.
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
