//! Events whose text is longer than an event may be.

use super::*;
use polyrail::verbs::DeviceId;
use std::mem::zeroed;

/// Takes the oldest event with room for POLYRAIL_MESSAGE_BYTES.
pub(crate) fn take(events: &mut EventQueue) -> Result<(Event, Vec<u8>), Refusal> {
    // SAFETY: any bits are an event.
    let mut event = Event { size: size_of::<Event>() as u32, ..unsafe { zeroed() } };
    let mut bytes = vec![0u8; POLYRAIL_MESSAGE_BYTES];
    // SAFETY: both pointers are to what they should be.
    unsafe { events.next(&raw mut event, bytes.as_mut_ptr().cast(), bytes.len()) }?;
    bytes.truncate(event.length as usize);
    Ok((event, bytes))
}

#[test]
fn text_that_is_too_long_is_cut_between_characters_and_the_next_event_follows() {
    let mut events = EventQueue::default();
    // The limit is within a character.
    let words = format!("a{}", "\u{e9}".repeat(POLYRAIL_MESSAGE_BYTES));
    let kind = EventKind::NotConnected;
    events.push(1, PeerEvent::failed(kind, Code::Link, words.clone()));
    let returned = RailEvent {
        rail: RailId::Data(3),
        device: DeviceId(0),
        generation: 1,
        kind: RailEventKind::Returned,
    };
    events.push(2, PeerEvent::of_rail(&returned, words.clone()));
    events.push(3, PeerEvent::failed(kind, Code::Link, "short".into()));
    for peer in [1, 2] {
        let (event, bytes) = take(&mut events).unwrap();
        assert_eq!(event.peer, peer);
        assert_eq!(bytes, &words.as_bytes()[..POLYRAIL_MESSAGE_BYTES - 1]);
    }
    let (event, bytes) = take(&mut events).unwrap();
    assert_eq!((event.peer, event.code, &*bytes), (3, Code::Link as i32, &b"short"[..]));
    assert!(matches!(take(&mut events), Err(Refusal::NotNow)));
}
