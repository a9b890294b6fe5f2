//! Queue pairs on which numbered fragments arrive.

use super::poll;
use crate::arrivals::ARRIVALS;
use crate::rig::Rig;
use crate::workload::{DEPTH, Reported};
use polyrail_core::hardware::{CompletionQueue, QueuePair, RecvBatch};
use polyrail_core::verbs::{RecvRequest, Sge};
use std::hint::black_box;

/// A queue pair, and its receives that have completed and are not posted again.
#[derive(Debug)]
struct Receiving<Q> {
    qp: Q,
    missing: u32,
}

/// Queue pairs whose receives are posted again as messages arrive.
#[derive(Debug)]
pub struct Receiver<Q, C> {
    rails: Vec<Receiving<Q>>,
    cq: C,
    /// Missing receives from which on they are posted again.
    low_water: u32,
    /// Messages of a burst.
    arrivals: usize,
}

impl<Q: QueuePair, C: CompletionQueue> Receiver<Q, C> {
    /// With `DEPTH` receives posted on each queue pair of `rig`.
    pub fn new(rig: Rig<Q, C>) -> Self {
        let depth = black_box(DEPTH as u32);
        let rails = rig.rails.into_iter().map(|qp| Receiving { qp, missing: depth }).collect();
        let arrivals = black_box(ARRIVALS);
        let mut receiver = Self { rails, cq: rig.cq, low_water: depth / 4, arrivals };
        receiver.refill();
        receiver
    }

    /// Polls a burst of arrivals and posts their receives again, a quarter of a queue pair's at a
    /// time. Returns the immediates, mixed, beside the rest.
    #[inline(never)]
    pub fn receive(&mut self) -> (Reported, u32) {
        let mut reported = Reported::default();
        let mut imms = 0;
        while reported.count() < self.arrivals {
            poll(&mut self.cq, |completion| {
                reported.note(completion.wr_id, completion.status);
                imms ^= completion.imm.number();
                self.rails[completion.wr_id as usize].missing += 1;
            });
            self.refill();
        }
        (reported, imms)
    }

    #[inline]
    fn refill(&mut self) {
        for (wr_id, rail) in (0..).zip(&mut self.rails) {
            if rail.missing >= self.low_water {
                let mut batch = rail.qp.start_recv();
                for _ in 0..std::mem::take(&mut rail.missing) {
                    batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY });
                }
                batch.commit().expect("the null device takes everything");
            }
        }
    }
}
