//! Requests that wait for the next poll, whose owner does not poll.

mod support;

use polyrail_core::verbs::WcStatus;
use support::{pair, wait};

#[test]
fn requests_arrive_although_their_owner_polls_no_more() {
    let (mut near, far) = pair("127.8.2.1", "127.8.2.2");
    for round in 0..100_u8 {
        // While it is polled, the completion queue is left to its poller.
        (0..1000).for_each(|_| assert!(near.poll().is_empty()));
        near.buffer.fill(round);
        for at in 0..8 {
            near.post(near.write_to(&far.buffer, 8 * at, 8)).unwrap();
        }
        wait("the last of them", || far.buffer.read(56, 8) == [round; 8]);
        let done = near.completions(8);
        assert!(done.iter().all(|done| done.status == WcStatus::SUCCESS));
    }
}
