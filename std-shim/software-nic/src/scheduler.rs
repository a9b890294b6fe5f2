//! The deterministic way to run: one step, one thing, chosen by a seeded generator.

use crate::completion_queue::CqShared;
use crate::execute;
use crate::fabric::FabricShared;
use crate::fault::Fault;
use crate::queue_pair::QpShared;
use crate::sync::{SplitMix64, lock};
use polyrail_core::verbs::{Opcode, WcStatus};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How a turn of a queue pair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request was carried out and acknowledged.
    Done,
    /// The request failed; its queue pair is in ERR, and the rest was flushed.
    Failed(WcStatus),
    /// The peer has no receive; the request is tried again later.
    NotReady,
    /// The peer did not answer; the request is tried again later.
    NoAnswer,
    /// The peer has taken a READ or atomic, but its data comes later. Meanwhile requests without
    /// FENCE may overtake it.
    Deferred,
    /// The queue pair is in ERR: this request and all behind it were flushed.
    Flushed,
}

/// What happened in a step. Devices and completion queues are named by their place on the fabric,
/// counted from 0, so that equal histories are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// A queue pair had its turn.
    Executed {
        /// Its device.
        device: u32,
        /// Its number.
        qp_num: u32,
        /// The request.
        wr_id: u64,
        /// What it asked for.
        opcode: Opcode,
        /// What came of it.
        outcome: Outcome,
    },
    /// A completion can be polled from now on.
    Shown {
        /// The completion queue.
        cq: u32,
        /// The queue pair that it belongs to.
        qp_num: u32,
        /// The request that completed.
        wr_id: u64,
        /// How.
        status: WcStatus,
        /// Whether it was a receive.
        is_recv: bool,
    },
    /// Receives of a failed queue pair were flushed.
    FlushedReceives {
        /// Its device.
        device: u32,
        /// Its number.
        qp_num: u32,
    },
    /// Nothing else could happen, so time passed, until then.
    Waited {
        /// Time since the fabric's creation.
        until: Duration,
    },
    /// A planned fault happened.
    Struck {
        /// The device.
        device: u32,
        /// What happened to it.
        fault: FaultKind,
    },
}

/// Which fault struck, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// [`Fault::LinkDown`].
    LinkDown,
    /// [`Fault::LinkUp`].
    LinkUp,
    /// [`Fault::DeviceGone`].
    DeviceGone,
    /// Any other.
    Other,
}

impl From<Fault> for FaultKind {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::LinkDown => Self::LinkDown,
            Fault::LinkUp => Self::LinkUp,
            Fault::DeviceGone => Self::DeviceGone,
            _ => Self::Other,
        }
    }
}

/// Virtual time that a step takes, nanoseconds.
const STEP_NANOS: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Scheduler {
    rng: SplitMix64,
    steps: u64,
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: SplitMix64::new(seed), steps: 0 }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
}

/// Something that could happen next.
enum Choice {
    Execute(Arc<QpShared>),
    Show(Arc<CqShared>),
}

impl FabricShared {
    pub(crate) fn step(&self) -> Option<Step> {
        if self.threaded {
            return None;
        }
        let mut scheduler = lock(&self.scheduler);
        let step = self.next_thing(&mut scheduler)?;
        scheduler.steps += 1;
        self.clock.advance_to(self.clock.now() + STEP_NANOS);
        Some(step)
    }

    fn next_thing(&self, scheduler: &mut Scheduler) -> Option<Step> {
        if let Some(struck) = self.strike(scheduler.steps) {
            return Some(struck);
        }
        loop {
            let count = self.choices().count();
            if count == 0 {
                return self.wait(scheduler);
            }
            let chosen = scheduler.rng.below(count);
            let happened = match self.choices().nth(chosen)? {
                Choice::Execute(qp) => execute(&qp, &mut scheduler.rng),
                Choice::Show(cq) => show(&cq, &mut scheduler.rng, self.clock.now()),
            };
            // A request that has to wait after all is no choice any more; look again.
            if happened.is_some() {
                return happened;
            }
        }
    }

    /// Lets one planned fault happen whose step has come.
    fn strike(&self, step: u64) -> Option<Step> {
        let mut index = 0;
        while let Some(device) = self.nth_device(index) {
            if let Some(fault) = device.and_then(|device| {
                let fault = device.faults.take_due_step(step)?;
                device.suffer(fault);
                Some(fault)
            }) {
                return Some(Step::Struck { device: index as u32, fault: fault.into() });
            }
            index += 1;
        }
        None
    }

    fn nth_device(&self, index: usize) -> Option<Option<Arc<crate::device::DeviceShared>>> {
        lock(&self.registry).devices.get(index).map(Weak::upgrade)
    }

    /// Everything that could happen next, in an order that repeats from run to run.
    fn choices(&self) -> impl Iterator<Item = Choice> + '_ {
        let now = self.clock.now();
        let runnable = self.qps().filter(|qp| execute::is_runnable(qp)).map(Choice::Execute);
        let due = self.cqs().filter(move |cq| cq.has_due(now)).map(Choice::Show);
        runnable.chain(due)
    }

    /// All queue pairs. The registry is locked for each step only, so that its leaf lock is never
    /// held while others are taken.
    fn qps(&self) -> impl Iterator<Item = Arc<QpShared>> + '_ {
        let mut after = None;
        std::iter::from_fn(move || {
            loop {
                let registry = lock(&self.registry);
                let lower = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
                let (&key, qp) = registry.qps.range((lower, std::ops::Bound::Unbounded)).next()?;
                after = Some(key);
                if let Some(qp) = qp.upgrade() {
                    return Some(qp);
                }
            }
        })
    }

    fn cqs(&self) -> impl Iterator<Item = Arc<CqShared>> + '_ {
        let mut index = 0;
        std::iter::from_fn(move || {
            loop {
                let registry = lock(&self.registry);
                let cq = registry.cqs.get(index)?;
                index += 1;
                if let Some(cq) = cq.upgrade() {
                    return Some(cq);
                }
            }
        })
    }

    /// Lets time pass until something can happen, or goes on to the step of the next fault.
    fn wait(&self, scheduler: &mut Scheduler) -> Option<Step> {
        let now = self.clock.now();
        let timers = self.qps().filter_map(|qp| execute::wakes_at(&qp));
        let due = self.cqs().filter_map(|cq| cq.next_due(now));
        if let Some(until) = timers.chain(due).filter(|&time| time > now).min() {
            self.clock.advance_to(until);
            return Some(Step::Waited { until: Duration::from_nanos(until) });
        }
        let devices = (0..).map_while(|index| self.nth_device(index)).flatten();
        let next = devices.filter_map(|device| device.faults.next_step()).min()?;
        scheduler.steps = scheduler.steps.max(next);
        self.strike(scheduler.steps)
    }
}

fn execute(qp: &QpShared, rng: &mut SplitMix64) -> Option<Step> {
    let coins = rng.next();
    let (device, qp_num) = (qp.device.index, qp.number);
    if let Some(turn) = execute::run_one(qp, coins & 1 != 0, coins & 2 != 0) {
        let (wr_id, opcode, outcome) = (turn.wr_id, turn.opcode, turn.outcome);
        return Some(Step::Executed { device, qp_num, wr_id, opcode, outcome });
    }
    execute::finish_if_failed(qp).then_some(Step::FlushedReceives { device, qp_num })
}

fn show(cq: &CqShared, rng: &mut SplitMix64, now: u64) -> Option<Step> {
    let shown = cq.show_one(rng, now)?;
    let completion = shown.completion;
    Some(Step::Shown {
        cq: cq.index,
        qp_num: completion.qp_num,
        wr_id: completion.wr_id,
        status: completion.status,
        is_recv: shown.is_recv,
    })
}
