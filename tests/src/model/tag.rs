//! Tags beside their fields, one by one.

use crate::choices::{Bytes, Choices, pick};
use polyrail_core::internals::{Tag, TagKind};

const KINDS: [TagKind; 3] = [TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv];

/// Builds the tag that `bytes` choose, and reads `bytes` as a number.
///
/// # Panics
///
/// If a field does not survive, or a number is read wrongly.
pub fn tag(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let kind = pick(&mut bytes, &KINDS);
    let rail = bytes.below(u32::from(Tag::NOTIFY_RAIL) + 1) as u8;
    let generation = bytes.below(65_536) as u16;
    let number = (0..8).fold(0u64, |number, _| number << 8 | u64::from(bytes.byte()));
    let first = Tag::new(kind, rail, generation);
    let later = first.plus(number);
    for (tag, is_last) in [(later, false), (later.last(), true)] {
        let tag = Tag::from_wr_id(tag.wr_id());
        assert_eq!(tag.kind(), Some(kind));
        for other in KINDS {
            let fits = is_last && other == kind;
            let rail = usize::from(rail);
            assert_eq!(tag.rail_of_last(other) == rail, fits);
        }
        assert_eq!((tag.rail(), tag.generation(), tag.is_last()), (rail, generation, is_last));
        assert_eq!(tag.sequence(), number % (1 << 39));
        assert_eq!(tag.since(first), number % (1 << 39));
        assert_ne!(tag, Tag::NONE);
    }
    any_number(number);
}

/// An arbitrary number: its fields are consistent.
fn any_number(number: u64) {
    let tag = Tag::from_wr_id(number);
    assert_eq!(tag.wr_id(), number);
    assert!(tag.rail() <= Tag::NOTIFY_RAIL && tag.last().is_last());
    assert_eq!(tag.plus(7).since(tag), 7);
    if let Some(kind) = tag.kind() {
        let built = Tag::new(kind, tag.rail(), tag.generation()).plus(tag.sequence());
        let built = if tag.is_last() { built.last() } else { built };
        // One bit of a number has no meaning.
        assert_eq!(built.wr_id(), number & !(1 << 7));
        assert_ne!(number & Tag::MARK, 0);
    }
}
