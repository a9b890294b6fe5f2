//! The search for worlds that break a promise, and for the fewest things that have to happen for it.

use super::action::Action;
use super::shape::{FRAGMENT, Job, Shape};
use super::{Summary, World};
use crate::choices::Seeded;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// What has happened in this thread's world.
    static HISTORY: RefCell<Vec<Action>> = const { RefCell::new(Vec::new()) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the messages of panics, with their places, instead of printing them. For programs only: the
/// setting is process-wide.
pub fn capture_panics() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.to_string();
        PANIC.with(|panic| *panic.borrow_mut() = Some(message));
    }));
}

/// A world that breaks a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What it was made of.
    pub shape: Shape,
    /// What happened.
    pub actions: Vec<Action>,
    /// The broken promise.
    pub message: String,
}

/// Runs the world of a seed for this many steps, and lets it end.
///
/// # Errors
///
/// A promise was broken.
pub fn attempt(seed: u64, steps: u64) -> Result<Summary, Box<Failure>> {
    let mut choices = Seeded::new(seed);
    let shape = Shape::choose(&mut choices);
    forget();
    let run = || {
        let mut world = World::new(shape.clone());
        let mut left = steps;
        while left > 0 {
            let Some(action) = world.choose(&mut choices) else { break };
            happens(&mut world, action);
            let is_last = world.summary.failures >= shape.last_failure;
            left = if is_last { (left - 1).min(shape.then) } else { left - 1 };
        }
        world.finish()
    };
    caught(&shape, run)
}

/// Nothing has happened yet in this thread's world.
pub(super) fn forget() {
    HISTORY.with(|history| history.borrow_mut().clear());
}

/// Lets something happen in this thread's world, and remembers it.
pub(super) fn happens(world: &mut World, action: Action) {
    HISTORY.with(|history| history.borrow_mut().push(action));
    world.perform(action);
}

/// What comes of this thread's world of this shape, or what happened until it broke a promise.
pub(super) fn caught<T>(shape: &Shape, run: impl FnOnce() -> T) -> Result<T, Box<Failure>> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_else(|| "a panic without words".to_owned());
        Box::new(Failure {
            shape: shape.clone(),
            actions: HISTORY.with(|history| history.borrow().clone()),
            message: PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or(text),
        })
    })
}

/// The first words of a broken promise, without its figures.
pub fn kind(message: &str) -> String {
    let words = message.chars().filter(|char| !char.is_ascii_digit() && *char != '\n');
    words.take(100).collect()
}

/// Lets these things happen, those that can, and the world end.
///
/// # Errors
///
/// The broken promise.
pub fn replay(shape: &Shape, actions: &[Action]) -> Result<Summary, String> {
    let run = || perform_all(World::new(shape.clone()), actions);
    caught(shape, run).map_err(|failure| failure.message)
}

fn perform_all(mut world: World, actions: &[Action]) -> Summary {
    for action in actions {
        if world.possible().iter().any(|other| action.is_like(other)) {
            world.perform(*action);
        }
    }
    world.finish()
}

/// What makes a world plainer.
const PLAINER: [fn(&mut Shape); 6] = [
    |shape| shape.slots.fill((8, 8)),
    |shape| shape.uneven = false,
    |shape| shape.budget = usize::MAX,
    |shape| shape.flushes_at_once = true,
    |shape| shape.min_rails = 0,
    |shape| shape.max_msgs_per_qp = 100,
];

impl Failure {
    /// Lets it happen again, and prints everything.
    pub fn show(&self) {
        let world = World::new(self.shape.clone()).loud();
        // What is wrong is known.
        let _ = caught(&self.shape, || perform_all(world, &self.actions));
        eprintln!();
    }

    /// The same failure with as little happening as possible, in a world as plain as possible.
    pub fn shortest(mut self) -> Self {
        loop {
            let before = (self.actions.len(), self.shape.size());
            self.with_fewer_actions();
            self.with_fewer_jobs();
            PLAINER.iter().for_each(|plainer| {
                let mut shape = self.shape.clone();
                plainer(&mut shape);
                let actions = self.actions.clone();
                self.fails_with(shape, actions);
            });
            if before == (self.actions.len(), self.shape.size()) {
                return self;
            }
        }
    }

    fn with_fewer_actions(&mut self) {
        let mut size = self.actions.len().next_power_of_two();
        while size > 0 {
            let mut at = 0;
            while at < self.actions.len() {
                let end = (at + size).min(self.actions.len());
                let fewer = [&self.actions[..at], &self.actions[end..]].concat();
                if !self.fails_with(self.shape.clone(), fewer) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    fn with_fewer_jobs(&mut self) {
        for end in 0..2 {
            for at in (0..self.shape.jobs[end].len()).rev() {
                let mut shape = self.shape.clone();
                shape.jobs[end].remove(at);
                let actions = self.actions.clone();
                if !self.fails_with(shape, actions) {
                    self.with_plainer_job(end, at);
                }
            }
        }
    }

    fn with_plainer_job(&mut self, end: usize, at: usize) {
        let job = self.shape.jobs[end][at];
        for plainer in [
            Job { fence: false, ..job },
            Job { signaled: true, ..job },
            Job::new(job.kind, 1),
            Job { length: Job::new(job.kind, 2).length.min(job.length), ..job },
        ] {
            let mut shape = self.shape.clone();
            shape.jobs[end][at] = plainer;
            let actions = self.actions.clone();
            self.fails_with(shape, actions);
        }
    }

    /// Whether this fails in the same way: then it takes the place of what is known.
    fn fails_with(&mut self, shape: Shape, actions: Vec<Action>) -> bool {
        let failed = replay(&shape, &actions).err();
        let Some(message) = failed.filter(|message| kind(message) == kind(&self.message)) else {
            return false;
        };
        *self = Self { shape, actions, message };
        true
    }
}

impl Shape {
    /// Fragments of all requests, and requests.
    fn size(&self) -> u32 {
        self.jobs.iter().flatten().map(|job| 1 + job.length.div_ceil(FRAGMENT)).sum()
    }
}

impl Action {
    /// Whether this can happen where the other can.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fail(name, _), Self::Fail(other, _))
            | (Self::Refuse { name, .. }, Self::Refuse { name: other, .. }) => name == other,
            (Self::Poll { end, .. }, Self::Poll { end: other, .. }) => end == other,
            (Self::Lose { end, rail, .. }, Self::Lose { end: e, rail: r, .. }) => {
                (end, rail) == (e, r)
            }
            _ => self == other,
        }
    }
}

/// Seeds to be run by several threads.
#[derive(Debug)]
pub struct Search {
    next: AtomicU64,
    end: u64,
    steps: u64,
    /// Whether it goes on after a failure.
    counts: bool,
    results: Mutex<(Summary, Vec<(u64, Failure)>)>,
}

impl Search {
    /// `count` seeds from `first` on, each for this many steps at most; up to the first that fails,
    /// unless all that fail are to be counted.
    pub fn new(first: u64, count: u64, steps: u64, counts: bool) -> Self {
        let results = Mutex::default();
        Self { next: first.into(), end: first.saturating_add(count), steps, counts, results }
    }

    /// Takes seeds until there are none left.
    pub fn work(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            let attempted = attempt(seed, self.steps);
            let mut results = self.results.lock().expect("no panic while it is locked");
            match attempted {
                Ok(summary) => results.0 += summary,
                Err(failure) => {
                    results.1.push((seed, *failure));
                    let next = if self.counts { 0 } else { self.end };
                    self.next.fetch_max(next, Ordering::Relaxed);
                }
            }
        }
    }

    /// What happened in all worlds, and the seeds that failed, in order.
    pub fn into_results(self) -> (Summary, Vec<(u64, Failure)>) {
        let (total, mut failures) = self.results.into_inner().expect("no panic while it is locked");
        failures.sort_by_key(|(seed, _)| *seed);
        (total, failures)
    }
}
