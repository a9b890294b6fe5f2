//! How a search sees this kind of world.

use super::action::Action;
use super::shape::{Job, KeyOrder, Shape};
use super::{Summary, World};
use crate::choices::Choices;
use crate::search::{self, AnyWorld};

impl search::Shape for Shape {
    type Action = Action;
    type Summary = Summary;

    const NAME: &'static str = "ends";

    fn choose(choices: &mut dyn Choices) -> Self {
        Self::choose(choices)
    }

    fn build(&self) -> AnyWorld<Self> {
        Box::new(World::new(self.clone()))
    }

    fn plainer(&self) -> Vec<Self> {
        let all = PLAINER.iter().map(|plainer| {
            let mut shape = self.clone();
            plainer(&mut shape);
            shape
        });
        all.chain(self.with_fewer_jobs()).chain(self.with_plainer_jobs()).collect()
    }
}

/// What makes a world plainer.
const PLAINER: [fn(&mut Shape); 16] = [
    |shape| {
        shape.connections = 1;
        shape.jobs.truncate(2);
    },
    |shape| shape.devices = [1; 2],
    |shape| shape.devices[1] = shape.devices[0],
    |shape| shape.devices = shape.devices.map(|devices| devices.min(2)),
    |shape| shape.keys = KeyOrder::Rails,
    |shape| shape.rails = 2,
    |shape| shape.rails -= usize::from(shape.rails > 2),
    |shape| (shape.polls_anyhow, shape.posts_many) = (false, false),
    |shape| shape.slots.fill((8, 8)),
    |shape| shape.uneven = false,
    |shape| shape.standby = [0; 2],
    |shape| shape.standby[1] = 0,
    |shape| shape.budget = usize::MAX,
    |shape| shape.flushes_at_once = true,
    |shape| shape.min_rails = 0,
    |shape| shape.max_msgs_per_qp = 100,
];

impl Shape {
    /// The end of each job, and its place, from the last one on.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.jobs.len())
            .flat_map(|end| (0..self.jobs[end].len()).rev().map(move |at| (end, at)))
    }

    fn with_fewer_jobs(&self) -> impl Iterator<Item = Self> {
        self.places().map(|(end, at)| {
            let mut shape = self.clone();
            shape.jobs[end].remove(at);
            shape
        })
    }

    fn with_plainer_jobs(&self) -> impl Iterator<Item = Self> {
        let all = self.places().flat_map(|(end, at)| {
            let jobs = self.jobs[end][at].plainer();
            jobs.into_iter().map(move |job| (end, at, job))
        });
        all.map(|(end, at, job)| {
            let mut shape = self.clone();
            shape.jobs[end][at] = job;
            shape
        })
    }
}

impl Job {
    fn plainer(self) -> [Self; 7] {
        [
            Self { fence: false, ..self },
            Self { signaled: true, ..self },
            Self { when_done: false, ..self },
            Self { solicited: false, ..self },
            Self { list: 0, ..self },
            Self::new(self.kind, 1),
            Self { length: Self::new(self.kind, 2).length.min(self.length), ..self },
        ]
    }
}

impl search::World for World {
    type Action = Action;
    type Summary = Summary;

    fn choose(&self, choices: &mut dyn Choices) -> Option<Action> {
        self.choose(choices)
    }

    fn can(&self, action: &Action) -> bool {
        self.possible().iter().any(|other| action.is_like(other))
    }

    fn perform(&mut self, action: Action) {
        self.perform(action);
    }

    fn steps(&self, most: u64) -> u64 {
        let is_last = self.summary.failures >= self.shape.last_failure;
        if is_last { most.min(self.shape.then) } else { most }
    }

    fn finish(&mut self) -> Summary {
        self.finish()
    }

    fn be_loud(&mut self) {
        self.is_loud = true;
    }
}

impl Action {
    /// Whether this can happen where the other can.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fail(name, _), Self::Fail(other, _))
            | (Self::Refuse { name, .. }, Self::Refuse { name: other, .. }) => name == other,
            (Self::Poll { host, .. }, Self::Poll { host: other, .. }) => host == other,
            (Self::Post { end, .. }, Self::Post { end: other, .. }) => end == other,
            (Self::Reserve { end, .. }, Self::Reserve { end: other, .. }) => end == other,
            (Self::Cancel { end, .. }, Self::Cancel { end: other, .. }) => end == other,
            (Self::Lose { end, rail, .. }, Self::Lose { end: e, rail: r, .. }) => {
                (end, rail) == (e, r)
            }
            _ => self == other,
        }
    }
}
