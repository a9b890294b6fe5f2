use super::*;
use crate::verbs::Opcode;

fn fragments(count: u16) -> Batch {
    Batch { wr: 7, length: 1, count, ..Batch::BLANK }
}

#[test]
fn only_the_front_batch_matches_and_only_its_last_request_retires_it() {
    let mut queue = InFlight::<8>::new(2, 8);
    let tag = queue.tag;
    queue.push(fragments(3));
    queue.push(fragments(1));
    assert_eq!(queue.credits(), 4);
    assert_eq!(queue.compare(tag.wr_id()), TagMatch::Inner(0));
    assert_eq!(queue.compare(tag.plus(1).wr_id()), TagMatch::Inner(1));
    assert_eq!(queue.compare(tag.plus(2).wr_id()), TagMatch::Mismatch);
    assert_eq!(queue.compare(tag.plus(3).last().wr_id()), TagMatch::Mismatch);
    assert_eq!(queue.compare(tag.plus(2).last().wr_id()), TagMatch::Last);
    assert_eq!(queue.retire_fragments(tag.plus(3).last()), None);
    assert_eq!(queue.retire_fragments(tag.plus(2).last()), Some(7));
    assert_eq!(queue.compare(tag.plus(3).last().wr_id()), TagMatch::Last);
    assert_eq!(queue.retire().count, 1);
    queue.invariants();
}

#[test]
fn with_nothing_in_flight_nothing_matches() {
    let mut queue = InFlight::<4>::new(0, 4);
    let tag = queue.tag;
    for number in 0..9 {
        for old in 0..12 {
            assert_eq!(queue.retire_fragments(tag.plus(old).last()), None);
            assert_eq!(queue.compare(tag.plus(old).last().wr_id()), TagMatch::Mismatch);
        }
        queue.push(fragments(1));
        assert_eq!(queue.retire_fragments(tag.plus(number).last()), Some(7));
    }
}

#[test]
fn the_rest_of_a_batch_is_known_until_the_driver_has_taken_it() {
    let mut queue = InFlight::<8>::new(0, 8);
    let tag = queue.tag;
    queue.push(fragments(1));
    queue.push(fragments(5));
    queue.truncate(5, 2);
    assert_eq!(queue.requests_posted(), 3);
    let (batch, index, next) = queue.partial().unwrap();
    assert_eq!((batch.count, index, next), (5, 2, tag.plus(3)));
    queue.accepted(2);
    assert_eq!(queue.partial().unwrap().1, 4);
    queue.accepted(1);
    assert!(queue.partial().is_none());
    queue.invariants();
}

#[test]
fn a_truncated_batch_retires_with_the_last_request_taken() {
    let mut queue = InFlight::<8>::new(0, 8);
    queue.push(fragments(5));
    queue.truncate(5, 3);
    let last = queue.tag.plus(4).last();
    assert_eq!(queue.compare(last.wr_id()), TagMatch::Mismatch);
    assert_eq!(queue.compare(queue.tag.plus(3).wr_id()), TagMatch::Mismatch);
    assert!(queue.retire_truncated(1).is_none());
    assert_eq!(queue.retire_truncated(2).unwrap().count, 5);
    assert_eq!(queue.requests_posted(), 3);
    assert_eq!(queue.credits(), 8);
    queue.invariants();
}

#[test]
fn before_a_partial_batch_completions_are_expected_as_ever() {
    let mut queue = InFlight::<8>::new(0, 8);
    queue.push(fragments(3));
    assert!(!queue.waits_for_driver());
    queue.push(fragments(5));
    queue.truncate(5, 2);
    assert!(!queue.waits_for_driver());
    assert_eq!(queue.compare(queue.tag.plus(1).wr_id()), TagMatch::Inner(1));
    assert_eq!(queue.compare(queue.tag.plus(2).last().wr_id()), TagMatch::Last);
    assert_eq!(queue.retire().count, 3);
    assert!(queue.waits_for_driver());
    queue.invariants();
}

#[test]
fn the_oldest_number_is_that_of_the_first_batch_with_numbers() {
    let numbered = |number| Batch::fragments(7, Content::Numbered, 0, 1, number, 2);
    let mut queue = InFlight::<8>::new(0, 8);
    assert_eq!(queue.oldest_numbers().next(), None);
    queue.push(fragments(1));
    queue.push(numbered(40));
    queue.push(numbered(42));
    assert_eq!(queue.oldest_numbers().next(), Some(40));
}

/// Tags of batches wrap long before the sequence does, so that those within a batch never do.
#[test]
fn a_batch_retires_across_the_wrap_of_its_tags() {
    let mut queue = InFlight::<8>::new(1, 8);
    queue.tail = (1 << 32) - 2;
    queue.head = queue.tail;
    let first = queue.push(fragments(5));
    assert_eq!(first, queue.tag.plus((1 << 32) - 2));
    let tags = core::iter::successors(Some(first), |tag| Some(tag.next_of_batch()));
    for (index, tag) in (0..4).zip(tags) {
        assert_eq!(queue.compare(tag.wr_id()), TagMatch::Inner(index));
    }
    assert_eq!(queue.retire_fragments(first.plus(4).last()), Some(7));
    assert_eq!(queue.push(fragments(1)), queue.tag.plus(3));
    queue.invariants();
}

#[test]
fn what_is_lost_is_acknowledged_only_if_it_arrived() {
    let notify = Batch::one(3, 0, Content::Deferred, Opcode::Send);
    let mut queue = InFlight::<16>::new(0, 16);
    queue.push(fragments(2));
    queue.push(fragments(3));
    queue.push(notify);
    queue.push(notify);
    assert_eq!(queue.requests_acknowledged(), 0);
    queue.retire();
    assert_eq!(queue.requests_acknowledged(), 2);
    queue.begin_loss();
    // The second of three fragments fails, which proves that the first one arrived.
    queue.note_failed(1, true);
    queue.lose_front(1);
    assert_eq!(queue.requests_acknowledged(), 3);
    queue.lose_front(0);
    queue.lose_front(0);
    assert_eq!((queue.requests_acknowledged(), queue.requests_lost()), (3, 4));
    queue.resolve(1);
    assert_eq!(queue.requests_acknowledged(), 4);
    queue.start_over(1);
    queue.push_again(notify);
    assert_eq!(queue.requests_acknowledged(), 4);
    queue.retire();
    assert_eq!(queue.requests_acknowledged(), 5);
    queue.invariants();
}
