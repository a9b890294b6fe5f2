extern crate std;

use super::*;
use crate::hardware::CommitError;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

/// A shared receive queue that counts.
#[derive(Clone, Debug, Default)]
struct Shared(Rc<State>);

#[derive(Debug, Default)]
struct State {
    posted: Cell<i64>,
    batches: RefCell<Vec<u32>>,
    /// What it takes of the next batch.
    accepts: Cell<Option<u32>>,
}

impl Shared {
    fn take(&self, count: i64) {
        self.0.posted.set(self.0.posted.get() - count);
        assert!(self.0.posted.get() >= 0, "the pool is dry");
    }

    fn batches(&self) -> Vec<u32> {
        self.0.batches.take()
    }
}

struct Batch<'q>(&'q Shared, u32);

impl RecvBatch for Batch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        assert_eq!((request.wr_id, request.sge.length()), (POOL_WR_ID, 0));
        self.1 += 1;
    }

    fn commit(self) -> Result<(), CommitError> {
        let Self(Shared(state), count) = self;
        let accepted = state.accepts.take().unwrap_or(count).min(count);
        state.posted.set(state.posted.get() + i64::from(accepted));
        state.batches.borrow_mut().push(accepted);
        let refusal = Refusal::QueueFull;
        if accepted < count { Err(CommitError { accepted, refusal }) } else { Ok(()) }
    }
}

impl ReceiveQueue for Shared {
    type RecvBatch<'q> = Batch<'q>;

    fn start_recv(&mut self) -> Batch<'_> {
        Batch(self, 0)
    }
}

const DEVICE: DeviceId = DeviceId(3);

fn lower<S>(account: &mut Account<S>, count: u32) {
    account.lower(count);
}

#[test]
fn an_account_is_filled_up_at_the_low_water_mark_in_one_batch() {
    let queue = Shared::default();
    let mut account = Pool::new(DEVICE, 4096).open(queue.clone(), 2048).unwrap();
    assert_eq!(account.refill(1), Ok(()));
    assert_eq!(queue.batches(), [512]);
    lower(&mut account, 448);
    assert_eq!(account.refill(1), Ok(()));
    assert_eq!(queue.batches(), [], "64 are left");
    lower(&mut account, 1);
    assert_eq!(account.refill(1), Ok(()));
    assert_eq!(queue.batches(), [449]);
}

/// A fixed low water mark is not enough.
#[test]
fn what_was_promised_is_posted_beyond_the_water_marks() {
    let queue = Shared::default();
    let mut account = Pool::new(DEVICE, 4096).open(queue.clone(), 2048).unwrap();
    for promised in 1..=2048 {
        assert!(account.may_promise(promised));
        assert_eq!(account.refill(promised), Ok(()));
        assert!(account.covers(promised) && account.posted() == queue.0.posted.get());
    }
    assert!(!account.may_promise(2049));
    let all: u32 = queue.batches().iter().sum();
    assert_eq!(all, 2048, "never more than the limit");
}

/// A connection that takes receives which others posted replaces them from its own account.
#[test]
fn the_sum_of_accounts_is_what_the_queue_holds() {
    let queue = Shared::default();
    let mut pool = Pool::new(DEVICE, 64);
    let mut honest = pool.open(queue.clone(), 32).unwrap();
    let mut rogue = pool.open(queue.clone(), 32).unwrap();
    for account in [&mut honest, &mut rogue] {
        assert_eq!(account.refill(4), Ok(()));
    }
    queue.take(50);
    lower(&mut rogue, 50);
    assert_eq!((honest.posted(), rogue.posted()), (32, -18));
    assert_eq!(rogue.pay_back(), Ok(()));
    assert_eq!((rogue.posted(), queue.0.posted.get()), (32, 64));
    assert_eq!(rogue.pay_back(), Ok(()), "nothing is owed");
    assert_eq!(queue.0.posted.get(), 64);
}

#[test]
fn limits_add_up_to_no_more_than_the_queue_holds() {
    let mut pool = Pool::new(DEVICE, 100);
    let first = pool.open(Shared::default(), 60).unwrap();
    let full = PoolError::Full { asked: 41, left: 40, capacity: 100 };
    assert_eq!(pool.open(Shared::default(), 41).err(), Some(full));
    assert_eq!(pool.open(Shared::default(), 0).err(), Some(PoolError::Nothing));
    let _second = pool.open(Shared::default(), 40).unwrap();
    assert!(pool.close(first).is_ok());
    assert!(pool.open(Shared::default(), 60).is_ok());
}

#[test]
fn what_a_closed_account_leaves_is_the_next_ones() {
    let queue = Shared::default();
    let mut pool = Pool::new(DEVICE, 100);
    let mut first = pool.open(queue.clone(), 60).unwrap();
    assert_eq!(first.refill(0), Ok(()));
    let queue = pool.close(first).unwrap();
    assert_eq!((pool.unowned(), pool.left()), (60, 40));
    let late = Completion::success(7, POOL_WR_ID, crate::verbs::WcOpcode::RECV_RDMA_WITH_IMM);
    assert!(pool.note_foreign(&late));
    queue.take(1);
    assert!(!pool.note_foreign(&Completion { wr_id: 0, ..late }));
    let unsettled = PoolError::Unsettled { asked: 100, left: 41, unsettled: 59 };
    assert_eq!(pool.open(queue.clone(), 100).err(), Some(unsettled));
    pool.note_empty();
    let mut second = pool.open(queue.clone(), 100).unwrap();
    assert_eq!((second.posted(), pool.unowned()), (59, 0));
    queue.batches();
    assert_eq!(second.refill(80), Ok(()));
    assert_eq!(queue.batches(), [41]);
}

/// A driver may have forgotten which of them were taken, or may tell of it later: the queue never
/// holds more than at the beginning, and nobody is promised any of them.
#[test]
fn what_is_written_off_is_nobodys() {
    let mut queue = Shared::default();
    let mut pool = Pool::new(DEVICE, 100);
    let mut first = pool.open(queue.clone(), 60).unwrap();
    assert_eq!(first.refill(0), Ok(()));
    assert!(pool.close(first).is_ok());
    pool.write_off();
    assert_eq!((pool.capacity(), pool.left(), pool.unowned()), (40, 40, 0));
    pool.note_empty();
    let full = PoolError::Full { asked: 41, left: 40, capacity: 40 };
    assert_eq!(pool.open(queue.clone(), 41).err(), Some(full));
    let mut second = pool.open(queue.clone(), 40).unwrap();
    assert_eq!((second.posted(), second.refill(40)), (0, Ok(())));
    let late = Completion::failure(7, POOL_WR_ID, crate::verbs::WcStatus::WR_FLUSH_ERR, 0);
    queue.take(1);
    assert!(pool.note_foreign(&late));
    assert_eq!(pool.settle(&mut queue), Ok(1));
    assert_eq!((second.posted(), pool.unowned(), queue.0.posted.get()), (40, 0, 100));
}

#[test]
fn receives_that_unknown_queue_pairs_took_are_posted_again() {
    let mut queue = Shared::default();
    let mut pool = Pool::new(DEVICE, 100);
    let mut account = pool.open(queue.clone(), 100).unwrap();
    assert_eq!(account.refill(10), Ok(()));
    let late = Completion::failure(7, POOL_WR_ID, crate::verbs::WcStatus::WR_FLUSH_ERR, 0);
    (0..3).for_each(|_| assert!(pool.note_foreign(&late)));
    queue.take(3);
    assert_eq!(pool.settle(&mut queue), Ok(3));
    assert_eq!(pool.settle(&mut queue), Ok(0));
    assert_eq!(account.posted() + pool.unowned(), queue.0.posted.get());
}

/// What a closed account took of others is missing in the queue: another account does not begin
/// with it.
#[test]
fn what_a_closed_account_owes_is_settled_by_the_pool() {
    let mut queue = Shared::default();
    let mut pool = Pool::new(DEVICE, 100);
    let mut honest = pool.open(queue.clone(), 50).unwrap();
    let mut rogue = pool.open(queue.clone(), 40).unwrap();
    assert_eq!(honest.refill(50), Ok(()));
    queue.take(3);
    lower(&mut rogue, 3);
    assert!(pool.close(rogue).is_ok());
    let next = pool.open(queue.clone(), 50).unwrap();
    assert_eq!((next.posted(), pool.unowned()), (0, -3));
    assert_eq!(pool.settle(&mut queue), Ok(3));
    assert_eq!((honest.posted(), queue.0.posted.get()), (50, 50));
}

#[test]
fn what_a_driver_takes_in_part_is_counted() {
    let queue = Shared::default();
    let mut account = Pool::new(DEVICE, 4096).open(queue.clone(), 512).unwrap();
    queue.0.accepts.set(Some(3));
    assert_eq!(account.refill(5), Err(Refusal::QueueFull));
    assert_eq!(account.posted(), 3);
    assert!(account.covers(3) && !account.covers(5));
    assert_eq!(account.refill(5), Ok(()));
    assert_eq!(queue.batches(), [3, 509]);
}
