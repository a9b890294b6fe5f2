//! The search for worlds that break a promise, and for the fewest things that have to happen for it.

use super::shape::Shape;
use super::{Action, AnyWorld, Summary};
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
    let run = || {
        let mut world = shape.build();
        for _ in 0..steps {
            let action = world.choose(&mut choices);
            happens(&mut *world, action);
        }
        world.finish()
    };
    caught(&shape, run)
}

/// Lets something happen in this thread's world, and remembers it.
fn happens(world: &mut dyn AnyWorld, action: Action) {
    HISTORY.with(|history| history.borrow_mut().push(action));
    world.perform(action);
}

/// What comes of this thread's world of this shape, or what happened until it broke a promise.
fn caught<T>(shape: &Shape, run: impl FnOnce() -> T) -> Result<T, Box<Failure>> {
    HISTORY.with(|history| history.borrow_mut().clear());
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
pub fn replay(shape: &Shape, actions: &[Action], is_loud: bool) -> Result<Summary, String> {
    let run = || {
        let mut world = shape.build();
        if is_loud {
            world.be_loud();
        }
        actions.iter().for_each(|action| world.perform(*action));
        world.finish()
    };
    caught(shape, run).map_err(|failure| failure.message)
}

/// What makes a world plainer.
const PLAINER: [fn(&mut Shape); 10] = [
    |shape| shape.tears = false,
    |shape| shape.flushes_all = true,
    |shape| shape.word_after = 0,
    |shape| shape.lines.truncate(1),
    |shape| shape.lines.iter_mut().for_each(|line| line.flushes = false),
    |shape| shape.lines.iter_mut().for_each(|line| line.inline = 512),
    |shape| shape.lines.iter_mut().for_each(|line| line.split_threshold = 0),
    |shape| shape.lines.iter_mut().for_each(|line| line.separate_signal = None),
    |shape| shape.lines.iter_mut().for_each(|line| line.max_message = [[1 << 30; 8]; 2]),
    |shape| shape.lines.iter_mut().for_each(|line| line.split = Default::default()),
];

impl Failure {
    /// Lets it happen again, and prints everything.
    pub fn show(&self) {
        // What is wrong is known.
        let _ = replay(&self.shape, &self.actions, true);
        eprintln!();
    }

    /// The same failure with as little happening as possible, in a world as plain as possible.
    pub fn shortest(mut self) -> Self {
        loop {
            let before = self.actions.len();
            self.with_fewer_actions();
            for plainer in PLAINER {
                let mut shape = self.shape.clone();
                plainer(&mut shape);
                let actions = self.actions.clone();
                self.fails_with(shape, actions);
            }
            if before == self.actions.len() {
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

    /// Whether this fails in the same way: then it takes the place of what is known.
    fn fails_with(&mut self, shape: Shape, actions: Vec<Action>) -> bool {
        let failed = replay(&shape, &actions, false).err();
        let Some(message) = failed.filter(|message| kind(message) == kind(&self.message)) else {
            return false;
        };
        *self = Self { shape, actions, message };
        true
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
    /// `count` seeds from `first` on, each for this many steps; up to the first that fails, unless all that
    /// fail are to be counted.
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
