extern crate std;

use super::*;
use std::vec::Vec;

const MARKER: Purpose = Purpose::Marker;

fn entries(number: u64) -> Purpose {
    Purpose::EntriesAgain { number }
}

/// What the completion of a request takes off.
fn ended(queue: &mut SendQueue<8>, number: u64) -> Vec<Purpose> {
    let mut ended = Vec::new();
    queue.end(number, |purpose| ended.push(purpose));
    ended
}

#[test]
fn a_completion_ends_every_request_up_to_its_own() {
    let mut queue = SendQueue::<8>::new(2, 100);
    assert_eq!(queue.credits(), 8);
    queue.push(false, entries(1));
    queue.push_chain(3, false, entries(2));
    let last = queue.next_tag();
    queue.push(true, entries(3));
    queue.push(false, MARKER);
    assert_eq!((queue.posted(), queue.chains()), (6, 4));
    assert_eq!((queue.credits(), queue.unsignaled()), (2, 1));
    let number = queue.find(last.wr_id()).unwrap();
    let part = Purpose::Part;
    let all = [entries(1), part, part, entries(2), entries(3)];
    assert_eq!(ended(&mut queue, number), all);
    assert_eq!(queue.credits(), 7);
    assert_eq!(queue.find(last.wr_id()), None, "none ends twice");
    queue.end_all();
    assert!(queue.is_empty());
    queue.invariants();
}

#[test]
fn a_completion_within_a_chain_does_not_end_the_chain() {
    let mut queue = SendQueue::<8>::new(0, 8);
    queue.push(true, entries(1));
    let within = queue.next_tag().plus(1);
    queue.push_chain(3, true, entries(2));
    let number = queue.find(within.wr_id()).unwrap();
    assert_eq!(ended(&mut queue, number), [entries(1), Purpose::Part, Purpose::Part]);
    assert_eq!(queue.credits(), 7);
    queue.invariants();
}

#[test]
fn foreign_numbers_are_not_found() {
    let mut queue = SendQueue::<4>::new(1, 4);
    let first = queue.next_tag();
    assert_eq!(queue.find(first.wr_id()), None, "nothing is in flight");
    queue.push(true, MARKER);
    assert_eq!(queue.find(first.wr_id()), Some(0));
    assert_eq!(queue.find(first.plus(1).wr_id()), None, "not posted yet");
    for other in [0, first.last().wr_id(), Tag::new(TagKind::Send, 2, 0).wr_id()] {
        assert_eq!(queue.find(other), None, "{other:#x}");
    }
    assert_eq!(queue.find(Tag::new(TagKind::Send, 1, 1).wr_id()), None, "a later queue pair's");
}
