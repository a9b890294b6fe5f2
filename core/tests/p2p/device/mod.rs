//! Devices of which the test chooses every step: what is executed, acknowledged, shown, refused.
//!
//! A request is *posted*, then *executed* at its peer, then *acknowledged*: only then it completes.
//! A queue pair in the error state executes nothing of its peer's any more, but for what the test
//! lets through.
//!
//! This file has their state, and what tests see of it; `block` is memory, `execution` what devices
//! do with requests, `steps` how tests let them, and `queues` what the engine asks of them.

mod block;
mod execution;
mod queues;
mod steps;

pub(crate) use block::Block;
pub(crate) use queues::{TestCq, TestQp, TestSrq};

use crate::nic::Shared;
use polyrail_core::hardware::{CommitError, QpLimits, Refusal};
use polyrail_core::p2p::POOL_WR_ID;
use polyrail_core::verbs::{Completion, SendRequest};
use std::collections::VecDeque;

struct Registered {
    device: u32,
    block: Block,
}

/// A send request on its way.
#[derive(Clone, Copy)]
struct Sent {
    request: SendRequest,
    executed: bool,
}

struct Qp {
    device: u32,
    cq: usize,
    srq: Option<usize>,
    peer: Option<usize>,
    limits: QpLimits,
    sends: VecDeque<Sent>,
    is_error: bool,
    /// Its driver does not report yet that no further receive can complete.
    holds_word: bool,
    said_word: bool,
    /// Completions that appear when its driver gives its word.
    hidden: Vec<Completion>,
    refusals: VecDeque<CommitError>,
    error_refusal: Option<Refusal>,
    /// Unsignaled requests complete when they are flushed, too.
    flushes_all: bool,
}

struct Srq {
    receives: u32,
    capacity: u32,
    refusals: VecDeque<CommitError>,
    batches: Vec<u32>,
}

struct Cq {
    device: u32,
    entries: VecDeque<Completion>,
    capacity: u32,
    /// It cannot be polled for now.
    is_broken: bool,
}

#[derive(Default)]
pub(crate) struct World {
    memory: Vec<Registered>,
    qps: Vec<Qp>,
    srqs: Vec<Srq>,
    cqs: Vec<Cq>,
    /// Words of entries are kept back: address and bytes.
    tears: bool,
    kept: Vec<(u32, u64, [u8; 8])>,
    /// Every request that was executed: queue pair and request.
    log: Vec<(usize, SendRequest)>,
    rnr: u32,
    /// Requests of queue pairs that failed, which may be on their way still: queue pair and
    /// request.
    stragglers: Vec<(usize, SendRequest)>,
}

/// All devices. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Fabric(Shared<World>);

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// There is nothing to do.
    Idle,
    /// The peer has no receive.
    Rnr,
    /// The peer does not answer any more.
    Dead,
}

/// What happened.
impl Fabric {
    pub(crate) fn is_error(&self, at: usize) -> bool {
        self.0.borrow().qps[at].is_error
    }

    /// Requests that are posted and did not complete.
    pub(crate) fn posted(&self, at: usize) -> Vec<SendRequest> {
        self.0.borrow().qps[at].sends.iter().map(|sent| sent.request).collect()
    }

    /// Requests executed since the last call: queue pair and request.
    pub(crate) fn take_log(&self) -> Vec<(usize, SendRequest)> {
        std::mem::take(&mut self.0.borrow_mut().log)
    }

    /// Forgets what was executed.
    pub(crate) fn clear_log(&self) {
        self.0.borrow_mut().log.clear();
    }

    pub(crate) fn reserve(&self) {
        let mut world = self.0.borrow_mut();
        world.log.reserve(1 << 16);
        world.stragglers.reserve(1 << 12);
        world.srqs.iter_mut().for_each(|srq| srq.batches.reserve(1 << 16));
    }

    /// Receives in a shared queue.
    pub(crate) fn receives(&self, srq: usize) -> u32 {
        self.0.borrow().srqs[srq].receives
    }

    /// Sizes of the batches of receives since the last call.
    pub(crate) fn take_batches(&self, srq: usize) -> Vec<u32> {
        std::mem::take(&mut self.0.borrow_mut().srqs[srq].batches)
    }

    /// Receive completions that wait in a completion queue.
    pub(crate) fn untaken_receives(&self, cq: usize) -> u32 {
        let world = self.0.borrow();
        let hidden = world.qps.iter().filter(|qp| qp.cq == cq).flat_map(|qp| &qp.hidden);
        let entries = world.cqs[cq].entries.iter().chain(hidden);
        entries.filter(|entry| entry.wr_id == POOL_WR_ID).count() as u32
    }

    /// How often a request found no receive.
    pub(crate) fn rnr(&self) -> u32 {
        self.0.borrow().rnr
    }
}
