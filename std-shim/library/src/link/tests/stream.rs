//! Messages one after the other, however their bytes come, and those that wait to be sent.

use super::given::hello;
use super::{Hello, Incoming, Message};
use crate::endpoint::HealingMessage;
use crate::link::{HandshakeError, HexBytes, Link, NoOutcome, NoPurpose, Reason};
use polyrail_core::virtual_qp::RailId;
use quickcheck::{Gen, QuickCheck};

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
            Message::Hello(hello(&mut Gen::from_size_and_seed(30, 1))),
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
    QuickCheck::new()
        .rng(Gen::from_size_and_seed(100, 1))
        .quickcheck(in_order as fn(usize, bool) -> bool);
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
    QuickCheck::new().rng(Gen::from_size_and_seed(100, 1)).tests(300).quickcheck(stream as Stream);
}

#[test]
fn messages_out_of_turn_are_refused() {
    let hello = Message::Hello(hello(&mut Gen::from_size_and_seed(30, 1)));
    let ready = Message::Ready {};
    let done = Message::Done(NoOutcome {});
    let failed = Message::Failed { reason: Reason::new("x") };
    let alive = Message::Alive {};
    let heal = Message::Heal(HealingMessage::Wanted { rail: RailId::Notify });
    let refused = Message::Refused { reason: Reason::new("x") };
    let cases: [(&[&Message], &str, &str); 12] = [
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
        (&[&refused, &failed], "failed", "nothing more"),
        (&[&hello, &refused], "refused", "\"ready\""),
    ];
    for (messages, message, expected) in cases {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| message.encode()).collect();
        assert_eq!(read(&bytes, 4000), Err(HandshakeError::OutOfTurn { message, expected }));
    }
}

/// Offers until the other side takes no more, without a wait, and all of it arrives in order.
#[test]
fn what_is_offered_waits_for_the_other_side_and_nobody_waits_for_it() {
    let (mut near, mut far) = Link::<NoPurpose>::pair().unwrap();
    let hello = hello(&mut Gen::from_size_and_seed(10, 1));
    let hello = Message::Hello(Hello { session: None, ..hello });
    near.offer(&hello).unwrap();
    near.offer(&Message::Ready {}).unwrap();
    let note = |number: u32| Message::Note { bytes: HexBytes(number.to_be_bytes().repeat(500)) };
    let mut offered = 0;
    while near.go_on_sending() {
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
    assert!(near.go_on_sending());
    assert_eq!(far.try_recv().unwrap(), None);
}
