//! The deterministic mode: each step performs one action, chosen by a seeded generator.

use crate::execute;
use crate::shared::{CqShared, DeviceShared, FabricShared, QpShared, Scheduler};
use crate::step::Step;
use polyrail_nic_parts::sync::{SplitMix64, lock};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Virtual time of a step in nanoseconds.
const STEP_NANOS: u64 = 1000;

/// A possible next action.
enum Choice {
    Execute(Arc<QpShared>),
    Show(Arc<CqShared>),
}

impl FabricShared {
    pub(crate) fn step(&self) -> Option<Step> {
        if self.threaded || !self.process.is_current() {
            return None;
        }
        let mut scheduler = lock(&self.scheduler);
        let step = self.next_thing(&mut scheduler)?;
        scheduler.steps += 1;
        self.clock.advance_to(self.clock.now() + STEP_NANOS);
        Some(step)
    }

    fn next_thing(&self, scheduler: &mut Scheduler) -> Option<Step> {
        if let Some(struck) = self.apply_due_fault(scheduler.steps) {
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
            // A request that turned out to have to wait is no longer a choice; choose again.
            if happened.is_some() {
                return happened;
            }
        }
    }

    /// Applies one planned fault that is due at this step.
    fn apply_due_fault(&self, step: u64) -> Option<Step> {
        let mut place = 0;
        while let Some(device) = self.nth_device(place) {
            if let Some(device) = device
                && let Some(fault) = device.faults.take_due_step(step)
            {
                device.suffer(fault);
                return Some(Step::Struck { device: device.index, fault: fault.into() });
            }
            place += 1;
        }
        None
    }

    fn nth_device(&self, place: usize) -> Option<Option<Arc<DeviceShared>>> {
        lock(&self.registry).devices.get(place).map(Weak::upgrade)
    }

    /// Returns all possible next actions, in an order that is the same in every run.
    fn choices(&self) -> impl Iterator<Item = Choice> + '_ {
        let now = self.clock.now();
        let runnable = self.qps().filter(|qp| execute::is_runnable(qp)).map(Choice::Execute);
        let due = self.cqs().filter(move |cq| cq.has_due(now)).map(Choice::Show);
        runnable.chain(due)
    }

    /// Returns all queue pairs. The registry is locked for each step of the iteration only, so that
    /// its leaf lock is never held while others are taken.
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

    /// Advances the time until something can happen, or the steps to the next fault.
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
        self.apply_due_fault(scheduler.steps)
    }
}

fn execute(qp: &QpShared, rng: &mut SplitMix64) -> Option<Step> {
    let coins = rng.next();
    let device = qp.device.index;
    let qp_num = qp.number;
    if let Some(turn) = execute::run_one(qp, coins & 1 != 0, coins & 2 != 0) {
        let wr_id = turn.wr_id;
        let opcode = turn.opcode;
        let outcome = turn.outcome;
        return Some(Step::Executed { device, qp_num, wr_id, opcode, outcome });
    }
    let finished = match qp.srq {
        Some(_) => Step::LastWqeReached { device, qp_num },
        None => Step::FlushedReceives { device, qp_num },
    };
    execute::finish_if_failed(qp).then_some(finished)
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
